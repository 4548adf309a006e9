//! Work that several threads carry out together: a grid's blocks, a large copy's pieces.
//!
//! A [`Task`] consists of units. A [`Job`] hands them out as [`Piece`]s, takes back what was not
//! finished in a time slice, and knows when all is done. Whoever asks it for pieces (the scheduler) decides
//! about fairness between jobs; fairness between the blocks of one grid is decided here.
//!
//! Called by grids and copies, and by the scheduler. Must not know what a unit does.

use parking_lot::Mutex;
use std::collections::VecDeque;
use std::fmt::Debug;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use engine::{Activity, CUresult, clock};
use protocol::operations::HoldReason;
use ptx_vm::Cluster;

use crate::context::Context;

/// How long the units should take that a thread is given at once, at most and, where threads would share what is left, at least: to
/// give and to take back a piece takes some microseconds.
const CHUNK: Duration = Duration::from_micros(300);
const LEAST_CHUNK: Duration = Duration::from_micros(10);

/// Time slices that suspended blocks of a grid have, for each one of them, before the grid's next block is
/// started beside them: they may be waiting for it.
const SLICES_BEFORE_FRESH_BLOCK: u64 = 3;

/// Part of a task in one thread's hand.
#[derive(Debug, Default)]
pub(crate) struct Piece {
    /// Units that nobody has begun.
    pub(crate) fresh: Range<u64>,
    /// A cluster of thread blocks that was suspended.
    pub(crate) cluster: Option<Cluster>,
}

impl Piece {
    /// All units of a task of so many.
    pub(crate) fn whole(units: u64) -> Self {
        Self {
            fresh: 0..units,
            cluster: None,
        }
    }

    /// Whether nothing of it is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.fresh.is_empty() && self.cluster.is_none()
    }
}

/// What became of a piece in a time slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// All of it is done.
    Finished,
    /// Time is up; the piece holds what is left.
    Yielded,
    /// The whole task has failed.
    Failed(CUresult),
}

/// Something that consists of units which any thread may carry out.
pub(crate) trait Task: Send + Sync + Debug {
    /// What it is, for the log.
    fn name(&self) -> &str;

    /// What a device does that carries it out.
    fn activity(&self) -> Activity;

    /// How many units there are.
    fn units(&self) -> u64;

    /// About how many nanoseconds a unit takes, if known.
    fn unit_cost(&self) -> Option<u64>;

    /// Units that may be suspended at once before no further ones are begun.
    fn most_resident(&self) -> u64;

    /// Whether all units must be under way before one of them need finish.
    fn is_cooperative(&self) -> bool {
        false
    }

    /// How long a time slice may take.
    fn quantum(&self) -> Duration;

    /// Carries on with a piece until its time is up, and looks at the clock last of all. `sm` is the number of the thread.
    fn run(&self, piece: &mut Piece, clock: &mut SliceClock, sm: u32) -> Progress;
}

/// Of which operation of its source a job is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    /// The operation's position in the source's order.
    pub(crate) sequence: u64,
    /// Whether no more jobs of the operation come.
    pub(crate) is_last: bool,
}

/// The clock of a time slice, in nanoseconds of CLOCK_MONOTONIC. It is looked at once between two blocks: small kernels take little
/// more than some looks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SliceClock {
    began: u64,
    until: u64,
    /// When it was last looked at.
    seen: u64,
}

impl SliceClock {
    /// Starts a time slice.
    pub(crate) fn start(length: Duration) -> Self {
        let began = clock::now();
        let length = u64::try_from(length.as_nanos()).unwrap_or(u64::MAX);
        Self {
            began,
            until: began.saturating_add(length),
            seen: began,
        }
    }

    /// Whether the time is up.
    pub(crate) fn is_up(&mut self) -> bool {
        self.seen = clock::now();
        self.seen >= self.until
    }

    /// How long it took until the last look.
    pub(crate) fn took(&self) -> Duration {
        Duration::from_nanos(self.seen.saturating_sub(self.began))
    }
}

/// A time slice that was spent on a task.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spent<'a> {
    pub(crate) context: &'a Context,
    pub(crate) task: &'a dyn Task,
    /// When it began, in nanoseconds of CLOCK_MONOTONIC.
    pub(crate) began: u64,
    /// When it ended.
    pub(crate) ended: u64,
}

impl<'a> Spent<'a> {
    /// A time slice that is over.
    pub(crate) fn new(context: &'a Context, task: &'a dyn Task, clock: &SliceClock) -> Self {
        Self {
            context,
            task,
            began: clock.began,
            ended: clock.seen,
        }
    }
}

/// Whose operations become jobs: a stream, which goes on once one has ended.
pub(crate) trait JobSource: Send + Sync + Debug {
    /// A thread has given a job a time slice.
    fn spent(&self, part: Part, spent: Spent<'_>);

    /// A job was not given anything for so long until now.
    fn waited(&self, part: Part, device: u32, waited: Duration, why: HoldReason);

    /// A job has ended.
    fn job_ended(self: Arc<Self>, part: Part, result: Result<(), CUresult>);
}

/// A task under way.
#[derive(Debug)]
pub(crate) struct Job {
    source: Arc<dyn JobSource>,
    part: Part,
    context: Arc<Context>,
    /// Its place among its client's jobs; lower goes first.
    pub(crate) priority: i32,
    /// The task.
    task: Box<dyn Task>,
    rest: Mutex<Remaining>,
}

/// What of a job is not finished.
#[derive(Debug)]
struct Remaining {
    fresh: Vec<Range<u64>>,
    suspended: VecDeque<Cluster>,
    /// Pieces in threads' hands.
    running: u64,
    /// Time slices that ended with a suspended block since the last time a fresh one was preferred.
    waited: u64,
    error: Option<CUresult>,
    /// Whether the job stands in its scheduler's queue.
    queued: bool,
}

/// Runs a part of a task, unless its context is dead. A panic in it is a fault of the context.
pub(crate) fn run_contained(
    task: &dyn Task,
    context: &Context,
    piece: &mut Piece,
    clock: &mut SliceClock,
    sm: u32,
) -> Progress {
    if let Err(code) = context.check() {
        return Progress::Failed(code);
    }
    let progress = catch_unwind(AssertUnwindSafe(|| task.run(piece, clock, sm)));
    let progress = progress.unwrap_or_else(|_| {
        let text = format!("the software GPU panicked within {}", task.name());
        Progress::Failed(context.fault(CUresult::ERROR_LAUNCH_FAILED, &text))
    });
    if let Progress::Failed(_) = progress {
        clock.is_up();
    }
    progress
}

/// What is to be done with a job once a piece came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NextStep {
    /// All of it is done, or it has failed and no thread has a part of it.
    Ended(Result<(), CUresult>),
    /// It has something to hand out and is in no queue: the caller puts it into one.
    Queue,
    /// Nothing.
    Nothing,
}

impl Job {
    /// A job of what is left of a task, not in a queue.
    pub(crate) fn new(
        source: Arc<dyn JobSource>,
        part: Part,
        context: Arc<Context>,
        priority: i32,
        task: Box<dyn Task>,
        left: Piece,
    ) -> Self {
        Self {
            source,
            part,
            context,
            priority,
            task,
            rest: Mutex::new(Remaining {
                fresh: Vec::from([left.fresh]),
                suspended: left.cluster.into_iter().collect(),
                running: 0,
                waited: 0,
                error: None,
                queued: true,
            }),
        }
    }

    /// Percent of the device that its context has at most.
    pub(crate) fn percentage(&self) -> f32 {
        self.context.part
    }

    /// The device that it is on.
    pub(crate) fn device(&self) -> u32 {
        self.context.device
    }

    /// What it is, in words.
    pub(crate) fn what(&self) -> String {
        match self.task.activity() {
            Activity::Kernel => format!("kernel {}", self.task.name()),
            Activity::Copy => self.task.name().to_owned(),
        }
    }

    /// Nothing was given to it for so long.
    pub(crate) fn waited(&self, waited: Duration, why: HoldReason) {
        self.source
            .waited(self.part, self.context.device, waited, why);
    }

    /// Takes a piece out, for one of `threads` threads, and says whether there is more. A job that
    /// has no more is out of its queue.
    pub(crate) fn take(&self, threads: usize) -> (Option<Piece>, bool) {
        let mut rest = self.rest.lock();
        let piece = rest.take(&*self.task, threads as u64);
        if piece.is_some() {
            rest.running += 1;
        }
        rest.queued = rest.can_give();
        (piece, rest.queued)
    }

    /// Gives a piece one time slice, of at most `limit` if there is one, and lets its source go on if all
    /// is done. Says whether the job must be queued again.
    pub(crate) fn run(&self, mut piece: Piece, sm: u32, limit: Option<Duration>) -> bool {
        let quantum = self.task.quantum();
        let mut clock = SliceClock::start(limit.map_or(quantum, |limit| limit.min(quantum)));
        let progress = run_contained(&*self.task, &self.context, &mut piece, &mut clock, sm);
        // Before the job can end, so that who sees its end has been told of all.
        let spent = Spent::new(&self.context, &*self.task, &clock);
        self.source.spent(self.part, spent);
        match self.put_back(piece, progress) {
            NextStep::Ended(result) => {
                Arc::clone(&self.source).job_ended(self.part, result);
                false
            }
            NextStep::Queue => true,
            NextStep::Nothing => false,
        }
    }

    /// Takes a piece back.
    fn put_back(&self, piece: Piece, progress: Progress) -> NextStep {
        let mut rest = self.rest.lock();
        rest.running -= 1;
        if let Progress::Failed(code) = progress {
            rest.error.get_or_insert(code);
        }
        if rest.error.is_some() {
            rest.fresh.clear();
            rest.suspended.clear();
        } else {
            if !piece.fresh.is_empty() {
                rest.fresh.push(piece.fresh);
            }
            if let Some(cluster) = piece.cluster {
                rest.suspended.push_back(cluster);
                rest.waited += 1;
            }
        }
        if rest.running == 0 && rest.fresh.is_empty() && rest.suspended.is_empty() {
            return NextStep::Ended(rest.error.map_or(Ok(()), Err));
        }
        if !rest.queued && rest.can_give() {
            rest.queued = true;
            return NextStep::Queue;
        }
        NextStep::Nothing
    }
}

impl Remaining {
    fn can_give(&self) -> bool {
        !self.suspended.is_empty() || !self.fresh.is_empty()
    }

    fn take(&mut self, task: &dyn Task, threads: u64) -> Option<Piece> {
        let resident = self.suspended.len() as u64 + self.running;
        // Blocks of a grid may wait for later blocks, as the hardware would run many at once.
        let prefers_fresh = task.is_cooperative()
            || self.suspended.is_empty()
            || (resident < task.most_resident()
                && self.waited >= SLICES_BEFORE_FRESH_BLOCK * resident);
        // The earliest first: blocks wait for earlier ones far more often than for later ones.
        let earliest = (0..self.fresh.len()).min_by_key(|&index| self.fresh[index].start);
        if prefers_fresh && let Some(index) = earliest {
            let range = self.fresh.swap_remove(index);
            self.waited = 0;
            let units = range.end - range.start;
            let (least, most) = match task.unit_cost() {
                Some(cost) if !task.is_cooperative() => {
                    let units = |chunk: Duration| chunk.as_nanos() as u64 / cost.max(1);
                    (units(LEAST_CHUNK).max(1), units(CHUNK).max(1))
                }
                _ => (1, 1),
            };
            let split = range.start + units.div_ceil(2 * threads).clamp(least, most);
            if split < range.end {
                self.fresh.push(split..range.end);
            }
            return Some(Piece {
                fresh: range.start..split.min(range.end),
                cluster: None,
            });
        }
        self.suspended.pop_front().map(|cluster| Piece {
            fresh: 0..0,
            cluster: Some(cluster),
        })
    }
}
