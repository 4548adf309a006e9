//! Streams: each one's operations in their order, one at a time.
//!
//! A stream is *busy* while somebody has its head in hand: the thread that brought an operation to an
//! idle stream, or whichever worker finished the one before. Only that thread reports completions, so
//! they come in order. Small operations run on it at once; what takes longer becomes a job of the
//! scheduler, and the thread that finishes the job goes on with the stream.
//!
//! Called by clients that post and by workers that finish jobs. Must not know what an operation computes.

use parking_lot::Mutex;
use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use engine::{Activity, CUresult, InFlight, Span, clock};
use protocol::operations::{At, Copy, Fill, HoldReason, STREAM_DEPTH};

use crate::client_state::ClientState;
use crate::context::Context;
use crate::copy::{ArrayTransfer, SMALL, Transfer};
use crate::device_graph::DeviceGraph;
use crate::family::graph::GraphRun;
use crate::family::{Launched, Origin};
use crate::grid::Place;
use crate::memory;
use crate::rest::InOrder;
use crate::work::{Job, JobSource, Part, Piece, Progress, SliceClock, Spent, Task, run_contained};

/// Kernels that are expected to take at most this long are run by the thread that brings them.
const SMALL_KERNEL: Duration = Duration::from_micros(40);

/// For how long a thread that has a stream in hand starts its small operations itself, one after the
/// other, before it lets others run.
const SPREE: Duration = Duration::from_millis(1);

/// What a stream can be told to do.
#[derive(Debug)]
pub(crate) enum Operation<'a> {
    Launch(Launched),
    /// One after another.
    Run(VecDeque<Launched>),
    Graph(Box<GraphLaunch>),
    Copy(Copy),
    ArrayCopy(Box<ArrayTransfer>),
    Fill(Fill),
    Write {
        to: u64,
        data: Cow<'a, [u8]>,
    },
    Event {
        event: u32,
        timing: bool,
    },
    Destroy,
    /// It was found wrong when it came, which is reported in order.
    Refused(CUresult),
}

/// A launch of a graph that kernels may launch too.
#[derive(Debug)]
pub(crate) struct GraphLaunch {
    pub(crate) graph: Arc<DeviceGraph>,
    pub(crate) place: Place,
    pub(crate) priority: i32,
}

/// One stream of a client, or several that use its slot one after the other: a new one continues the
/// order of the one before, so that what the old one still has is reported first.
#[derive(Debug)]
pub(crate) struct Stream {
    slot: u32,
    client: Arc<ClientState>,
    state: Mutex<StreamState>,
    /// How long the kernel at its head has run.
    kernel_time: Mutex<KernelTime>,
}

/// How long a kernel has run with what it launched. Not counted is the time in which all of that stood aside for others.
#[derive(Debug, Default)]
struct KernelTime {
    ran: Duration,
    /// The latest end of its time slices, in nanoseconds of CLOCK_MONOTONIC.
    until: u64,
}

impl KernelTime {
    /// Adds a time slice, of which several threads may give it some at once, and says how long it has run.
    fn add(&mut self, spent: &Spent<'_>) -> Duration {
        let began = spent.began.max(self.until);
        self.ran += Duration::from_nanos(spent.ended.saturating_sub(began));
        self.until = self.until.max(spent.ended);
        self.ran
    }
}

#[derive(Debug)]
struct StreamState {
    queue: VecDeque<Waiting>,
    busy: bool,
    /// It is busy with nothing: its head waits in the queue until streams [go on](crate::rest::Rest).
    is_held: bool,
    context: Arc<Context>,
    priority: i32,
    /// It was destroyed, or its context was, and takes nothing more.
    ended: bool,
}

/// An operation and where it belongs.
#[derive(Debug)]
struct Waiting {
    sequence: u64,
    context: Arc<Context>,
    priority: i32,
    operation: Operation<'static>,
    /// A part of it is over.
    has_begun: bool,
}

/// How far an operation came that was started.
enum Started {
    Done(Result<(), CUresult>),
    /// Its first part is over, and the rest comes next in the queue, or was told of there.
    Begun,
    /// A job was made of it, and whoever finishes that goes on.
    Running,
}

impl Stream {
    pub(crate) fn new(
        slot: u32,
        priority: i32,
        context: Arc<Context>,
        client: Arc<ClientState>,
    ) -> Arc<Self> {
        let stream = Arc::new(Self {
            slot,
            client,
            state: Mutex::new(StreamState {
                queue: VecDeque::new(),
                busy: false,
                is_held: false,
                context,
                priority,
                ended: false,
            }),
            kernel_time: Mutex::default(),
        });
        let weak = Arc::downgrade(&stream);
        stream.client.rest.add(weak);
        stream
    }

    /// Begins a new stream in the slot of one that has ended.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE if it has not.
    pub(crate) fn renew(&self, priority: i32, context: Arc<Context>) -> Result<(), CUresult> {
        let mut state = self.state.lock();
        if !state.ended {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        state.context = context;
        state.priority = priority;
        state.ended = false;
        Ok(())
    }

    /// Ends it if it is of this context.
    pub(crate) fn end_with(&self, context: &Arc<Context>) {
        let mut state = self.state.lock();
        state.ended |= Arc::ptr_eq(&state.context, context);
    }

    /// Its context, and the urgency of its work; lower goes first.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_HANDLE if it has ended.
    pub(crate) fn place(&self) -> Result<(Arc<Context>, i32), CUresult> {
        let state = self.state.lock();
        if state.ended {
            return Err(CUresult::ERROR_INVALID_HANDLE);
        }
        Ok((Arc::clone(&state.context), state.priority))
    }

    /// Takes an operation, and carries it out if the stream is idle and it is small.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_HANDLE after the stream's destruction was asked for, and
    /// CUDA_ERROR_INVALID_VALUE beyond [`STREAM_DEPTH`]; the operation is not taken.
    pub(crate) fn post(
        self: &Arc<Self>,
        sequence: u64,
        operation: Operation<'_>,
    ) -> Result<(), CUresult> {
        let ends = matches!(operation, Operation::Destroy);
        let mut state = self.state.lock();
        if state.ended {
            return Err(CUresult::ERROR_INVALID_HANDLE);
        }
        let is_held = !state.busy && self.client.rest.is_asked();
        if state.busy || is_held {
            if state.queue.len() as u64 >= STREAM_DEPTH {
                return Err(CUresult::ERROR_INVALID_VALUE);
            }
            let bytes = operation.bytes();
            let kept = if self.client.wait(bytes) {
                operation.into_owned()
            } else {
                Operation::Refused(CUresult::ERROR_OUT_OF_MEMORY)
            };
            let waiting = Waiting {
                sequence,
                context: Arc::clone(&state.context),
                priority: state.priority,
                operation: kept,
                has_begun: false,
            };
            state.queue.push_back(waiting);
            state.busy = true;
            state.is_held |= is_held;
            state.ended = ends;
            return Ok(());
        }
        state.busy = true;
        state.ended = ends;
        let context = Arc::clone(&state.context);
        let priority = state.priority;
        drop(state);
        match self.start(sequence, &context, priority, operation, true) {
            Started::Done(result) => {
                self.report(sequence, result);
                self.drive();
            }
            Started::Begun => self.drive(),
            Started::Running => {}
        }
        Ok(())
    }

    /// Drops what waits. The client is going.
    pub(crate) fn clear(&self) {
        let waiting = std::mem::take(&mut self.state.lock().queue);
        drop(waiting);
    }

    /// Carries out what waits until something is left to others or nothing waits.
    fn drive(self: &Arc<Self>) {
        let mut until = None;
        loop {
            let mut state = self.state.lock();
            let Some(head) = state.queue.pop_front() else {
                state.busy = false;
                return;
            };
            if !head.has_begun && self.client.rest.is_asked() {
                state.queue.push_front(head);
                state.is_held = true;
                return;
            }
            drop(state);
            let Waiting {
                sequence,
                context,
                priority,
                operation,
                has_begun: _,
            } = head;
            let bytes = operation.bytes();
            self.client.waited(bytes);
            let now = Instant::now();
            let here = now < *until.get_or_insert(now + SPREE);
            match self.start(sequence, &context, priority, operation, here) {
                Started::Done(result) => self.report(sequence, result),
                Started::Begun => {}
                Started::Running => return,
            }
        }
    }

    fn report(&self, sequence: u64, result: Result<(), CUresult>) {
        if !self.client.closed.load(Ordering::Relaxed) {
            let stream = self.slot;
            self.client
                .observer
                .completed(At { stream, sequence }, result);
        }
    }

    /// Starts an operation; `here` says that small work may be done by this thread.
    fn start(
        self: &Arc<Self>,
        sequence: u64,
        context: &Arc<Context>,
        priority: i32,
        operation: Operation<'_>,
        here: bool,
    ) -> Started {
        let ClientState {
            observer,
            spaces,
            closed,
            ..
        } = &*self.client;
        if closed.load(Ordering::Relaxed) {
            return Started::Done(Ok(()));
        }
        if let Err(code) = context.check() {
            return Started::Done(Err(code));
        }
        let space = &memory::read(spaces);
        let moving = || space.moving();
        let (moving, transfer) = match operation {
            Operation::Launch(grid) => {
                let part = Part {
                    sequence,
                    is_last: true,
                };
                return self.start_grid(part, context, grid, here);
            }
            Operation::Run(grids) => {
                return self.start_run(sequence, context, priority, grids, here);
            }
            Operation::Graph(launch) => {
                let part = Part {
                    sequence,
                    is_last: true,
                };
                let source: Arc<dyn JobSource> = Arc::clone(self) as _;
                let GraphLaunch {
                    graph,
                    place,
                    priority,
                } = *launch;
                let begun = GraphRun::launch_in_stream(&graph, place, priority, source, part);
                return begun.map_or_else(|code| Started::Done(Err(code)), |()| Started::Running);
            }
            Operation::Copy(request) => (moving(), Transfer::copy(space, &request)),
            Operation::ArrayCopy(copy) => (moving(), Transfer::array(space, *copy)),
            Operation::Fill(request) => (moving(), Transfer::fill(space, &request)),
            Operation::Write { to, data } => return Started::Done(space.write(to, &data)),
            Operation::Event { event, timing } => {
                if timing {
                    observer.event_time(event, clock::now());
                }
                return Started::Done(Ok(()));
            }
            Operation::Destroy => return Started::Done(Ok(())),
            Operation::Refused(code) => return Started::Done(Err(code)),
        };
        let part = Part {
            sequence,
            is_last: true,
        };
        match transfer {
            Ok(transfer) if transfer.bytes() <= SMALL => {
                let mut clock = SliceClock::start(Duration::ZERO);
                transfer.run_all();
                clock.is_up();
                self.spent(part, Spent::new(context, &transfer, &clock));
                Started::Done(Ok(()))
            }
            Ok(transfer) => {
                drop(moving);
                let units = transfer.units();
                let left = Piece::whole(units);
                let context = Arc::clone(context);
                let job = Job::new(
                    Arc::clone(self) as _,
                    part,
                    context,
                    priority,
                    Box::new(transfer),
                    left,
                );
                self.submit(job, units as usize)
            }
            Err(code) => Started::Done(Err(code)),
        }
    }

    /// Starts the first of these; the others come next.
    fn start_run(
        self: &Arc<Self>,
        sequence: u64,
        context: &Arc<Context>,
        priority: i32,
        mut grids: VecDeque<Launched>,
        here: bool,
    ) -> Started {
        let Some(grid) = grids.pop_front() else {
            return Started::Done(Ok(()));
        };
        let part = Part {
            sequence,
            is_last: grids.is_empty(),
        };
        if part.is_last {
            return self.start_grid(part, context, grid, here);
        }
        let rest = Operation::Run(grids);
        let bytes = rest.bytes();
        self.client.waiting.fetch_add(bytes, Ordering::Relaxed);
        // Before the first starts, since whoever ends that goes on with what is next.
        self.state.lock().queue.push_front(Waiting {
            sequence,
            context: Arc::clone(context),
            priority,
            operation: rest,
            has_begun: true,
        });
        match self.start_grid(part, context, grid, here) {
            Started::Done(Err(code)) => {
                self.end_run(code);
                Started::Begun
            }
            Started::Done(Ok(())) => Started::Begun,
            started => started,
        }
    }

    /// Drops what is left of a run, which comes next, since a part of it failed; that is its result.
    fn end_run(&self, code: CUresult) {
        let rest = self.state.lock().queue.pop_front();
        if let Some(Waiting {
            sequence,
            operation,
            ..
        }) = rest
        {
            self.client.waited(operation.bytes());
            self.report(sequence, Err(code));
        }
    }

    /// Starts a kernel.
    fn start_grid(
        self: &Arc<Self>,
        part: Part,
        context: &Arc<Context>,
        launched: Launched,
        here: bool,
    ) -> Started {
        let Launched { grid, family } = launched;
        *self.kernel_time.lock() = KernelTime::default();
        let cost = grid.cost();
        let mut piece = Piece::whole(grid.units());
        let source: Arc<dyn JobSource> = Arc::clone(self) as _;
        let source = match &family {
            Some(family) => {
                family.begin(Origin::Host(source, part), grid.priority());
                Arc::clone(family) as _
            }
            None => source,
        };
        let ClientState {
            scheduler, account, ..
        } = &*self.client;
        if here && cost <= SMALL_KERNEL && scheduler.may_run_here(account) {
            let sm = self.slot % scheduler.workers() as u32;
            let mut clock = SliceClock::start(SMALL_KERNEL);
            let progress = run_contained(&grid, context, &mut piece, &mut clock, sm);
            scheduler.charge(account, clock.took(), context.part);
            self.spent(part, Spent::new(context, &grid, &clock));
            let result = match progress {
                Progress::Finished => Some(Ok(())),
                Progress::Failed(code) => Some(Err(code)),
                Progress::Yielded => None,
            };
            if let Some(result) = result {
                // It is over with what it has launched.
                let result = match family {
                    Some(family) => family.end(result).map(|(_, result)| result),
                    None => Some(result),
                };
                return result.map_or(Started::Running, Started::Done);
            }
        }
        let threads = cost.as_nanos() / SMALL_KERNEL.as_nanos() + 1;
        let priority = grid.priority();
        let context = Arc::clone(context);
        let job = Job::new(source, part, context, priority, Box::new(grid), piece);
        self.submit(job, usize::try_from(threads).unwrap_or(usize::MAX))
    }

    fn submit(&self, job: Job, threads: usize) -> Started {
        let ClientState {
            scheduler,
            account,
            jobs,
            observer,
            ..
        } = &*self.client;
        observer.wants_every_processor(scheduler.takes_every_processor(threads));
        // Before it can end.
        let in_flight = InFlight {
            stream: self.slot,
            device: job.device(),
            what: job.what(),
            since: Some(clock::now()),
        };
        jobs.begin(in_flight);
        scheduler.submit(account, Arc::new(job), threads);
        Started::Running
    }
}

impl InOrder for Stream {
    fn has_begun(&self) -> bool {
        let state = self.state.lock();
        state.busy && !state.is_held
    }

    fn go_on(self: Arc<Self>) {
        if std::mem::take(&mut self.state.lock().is_held) {
            self.drive();
        }
    }
}

impl JobSource for Stream {
    fn spent(&self, part: Part, spent: Spent<'_>) {
        if self.client.closed.load(Ordering::Relaxed) {
            return;
        }
        self.client.observer.ran(&Span {
            at: At {
                stream: self.slot,
                sequence: part.sequence,
            },
            device: spent.context.device,
            activity: spent.task.activity(),
            began: spent.began,
            ended: spent.ended,
            multiprocessors: Some(1),
        });
        if spent.task.activity() == Activity::Kernel
            && let Some(limit) = self.client.observer.kernel_time_limit()
        {
            let ran = self.kernel_time.lock().add(&spent);
            if ran > limit {
                spent.context.overran(spent.task.name(), ran, limit);
            }
        }
    }

    fn waited(&self, part: Part, device: u32, waited: Duration, why: HoldReason) {
        let nanoseconds = u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX);
        let at = At {
            stream: self.slot,
            sequence: part.sequence,
        };
        self.client.observer.held_back(at, device, why, nanoseconds);
    }

    /// Reports the job of the stream's head, unless the rest of its operation comes next, and goes on.
    fn job_ended(self: Arc<Self>, part: Part, result: Result<(), CUresult>) {
        self.client.jobs.end(self.slot);
        if part.is_last {
            self.report(part.sequence, result);
        } else if let Err(code) = result {
            self.end_run(code);
        }
        self.drive();
    }
}

impl Operation<'_> {
    /// About how many bytes it takes while it waits.
    fn bytes(&self) -> u64 {
        let data = match self {
            Self::Launch(launched) => launched.grid.param_bytes(),
            Self::Run(grids) => grids
                .iter()
                .map(|launched| size_of::<Launched>() + launched.grid.param_bytes())
                .sum(),
            Self::Graph(_) => size_of::<GraphLaunch>(),
            Self::Write { data, .. } => data.len(),
            Self::ArrayCopy(_) => size_of::<ArrayTransfer>(),
            _ => 0,
        };
        (size_of::<Self>() + data) as u64
    }

    /// The operation with what it borrowed copied.
    fn into_owned(self) -> Operation<'static> {
        match self {
            Self::Launch(launched) => Operation::Launch(launched),
            Self::Run(grids) => Operation::Run(grids),
            Self::Graph(launch) => Operation::Graph(launch),
            Self::Copy(request) => Operation::Copy(request),
            Self::ArrayCopy(copy) => Operation::ArrayCopy(copy),
            Self::Fill(request) => Operation::Fill(request),
            Self::Write { to, data } => Operation::Write {
                to,
                data: Cow::Owned(data.into_owned()),
            },
            Self::Event { event, timing } => Operation::Event { event, timing },
            Self::Destroy => Operation::Destroy,
            Self::Refused(code) => Operation::Refused(code),
        }
    }
}
