//! Streams: each one's operations in their order, and how far the GPU has come.
//!
//! After an operation is *signed*, the GPU writes a ticket into the stream's completion word, which any
//! thread may read. Signing costs about as much of the context's lock as a launch, so launches that come
//! one after another are signed together: when there are [`BATCH`] of them, when nothing more comes for
//! now and the GPU has come as far as what is signed ([`Common::pause`]), when the client's thread turns to
//! something else, or after [`STALE`].
//!
//! Once a stream has had some launches, it gathers those that come one after another, and gives them to
//! the driver, for the same reasons, as a [chain](Chains), which signs by itself.
//!
//! Only so many commands of a stream are with the driver at a time, because a launch into a full
//! hardware queue waits, with the context's lock held; the others wait here, and follow when earlier ones
//! complete. An operation of many commands is given to the driver in parts. And nothing more goes there while
//! what is there is expected to take more than [`MOST_AHEAD`]: who must wait until nothing runs, to load code,
//! waits for as long and the longest.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, TryLockError};
use std::time::{Duration, Instant};

use cuda_abi::CUresult;
use cuda_abi::operations::{At, STREAM_DEPTH};
use cuda_abi::types::CUstream;
use engine::Counted;

use crate::chain::{Chains, MOST_GATHERED, Signal};
use crate::common::{Common, Polled};
use crate::context::{Context, Made};
use crate::device::Device;
use crate::driver::Driver;
use crate::fetch::{Habit, Landing};
use crate::launch::Launch;
use crate::rhythm::{Due, Kind, LATE, Rhythm};
use crate::run::Run;
use crate::sync::{Handle, lock};
use crate::words::{Word, has_come_to};
use crate::work::{After, Work};

/// Places in a hardware queue of about a thousand that the commands of the streams may take which share it;
/// and the bounds of one stream's part.
const PLACES: usize = 640;
const LEAST_DEPTH: usize = 4;
const MOST_DEPTH: usize = 256;

/// Microseconds that what the driver has of a stream may take for more to go there.
const MOST_AHEAD: u64 = 16_000;

/// Hardware queues of a context, to which the driver deals out streams in turn.
const QUEUES: usize = 32;

/// Launches that are signed together at most.
const BATCH: u32 = 32;

/// Launches that are not worth a chain where they need not be signed.
const FEW: usize = 8;

/// How long an operation stays unsigned at most, more or less. Many times what a launch takes when all
/// clients launch at once, or batches would never fill.
const STALE: Duration = Duration::from_micros(500);

/// One stream of a client.
#[derive(Debug)]
pub(crate) struct Stream {
    slot: u32,
    context: Arc<Context>,
    common: Arc<Common>,
    priority: i32,
    word: Word,
    /// What a look without the lock compares the word with.
    last: Last,
    state: Mutex<State>,
}

/// What the last look at a stream saw, for the next one: most see nothing new, and need no lock.
#[derive(Debug, Default)]
struct Last {
    /// The completion word.
    word: AtomicU32,
    /// There is nothing to do before the word changes.
    calm: AtomicBool,
    /// When it is expected to change, in nanoseconds after the client came; 0 if there is no telling.
    due: AtomicU64,
    /// When the client is to be told that this is near, likewise; 0 if it was.
    near: AtomicU64,
}

#[derive(Debug)]
struct State {
    raw: Handle<CUstream>,
    /// Of the context, when `raw` was made.
    epoch: u64,
    chains: Chains,
    /// With the driver, in order.
    issued: VecDeque<Issued>,
    /// Behind these, the launches that go to the driver together, with their sequence numbers and lengths. They
    /// have passed the gate.
    gathered: (Vec<(u64, Length)>, Vec<Launch>),
    /// Commands of both.
    commands: usize,
    /// Microseconds that both are expected to take.
    expected: u64,
    /// When the last end was seen, or the first of them began.
    looked_at: Instant,
    /// What is found to have ended in one look: empty.
    ended_now: Vec<Length>,
    /// Not yet with the driver, in order.
    pending: VecDeque<(u64, Work)>,
    /// The last ticket that was signed for.
    ticket: u32,
    /// Operations since then, which the next ticket is for.
    unsigned: u32,
    /// When the first of them was issued, or of `gathered` came.
    open_since: Instant,
    /// Up to where it waits for clearing, as in [`Common::cleared`].
    cleared: Vec<u64>,
    rhythm: Rhythm,
    /// Where fetches come to, unless one is under way.
    landing: Option<Landing>,
    habit: Habit,
    /// It is among the busy ones, or somebody is looking at it.
    listed: bool,
    /// It takes nothing more.
    ending: bool,
    /// The driver's stream is gone.
    ended: bool,
    /// The stream that had the slot before and must finish first.
    before: Option<Arc<Stream>>,
}

/// Of what sort an operation is, and the microseconds that it is expected to take.
type Length = (Kind, u32);

#[derive(Debug)]
struct Issued {
    /// Which operation it is, or is the last part of.
    sequence: Option<u64>,
    commands: usize,
    length: Length,
    ticket: u32,
    result: Result<(), CUresult>,
    after: After,
}

impl State {
    /// Whether anything was taken that no ticket is on its way for.
    fn is_open(&self) -> bool {
        self.unsigned > 0 || !self.gathered.0.is_empty()
    }

    /// Whether the last operation is a fetch, of which the data tells that it is over.
    fn is_fetching(&self) -> bool {
        let last = self.issued.back();
        last.is_some_and(|last| matches!(last.after, After::Deliver(_)))
    }

    /// The driver has something more.
    fn push(&mut self, issued: Issued) {
        self.commands += issued.commands;
        self.expected += u64::from(issued.length.1);
        self.issued.push_back(issued);
    }

    /// Whether there is work that has passed the gate.
    fn is_under_way(&self) -> bool {
        !self.issued.is_empty() || !self.gathered.0.is_empty()
    }
}

impl Issued {
    /// Takes what its kernel has printed, if it is one.
    fn drain(&self, common: &Common) {
        match &self.after {
            After::Keep { module, .. } => common.drain(module),
            After::KeepRun(run) => run.modules().iter().for_each(|module| common.drain(module)),
            _ => {}
        }
    }
}

impl Stream {
    /// Makes a stream. `before` is the one that had the slot.
    ///
    /// # Errors
    /// The driver's status.
    pub(crate) fn new(
        slot: u32,
        priority: i32,
        context: Arc<Context>,
        common: Arc<Common>,
        before: Option<Arc<Self>>,
    ) -> Result<Arc<Self>, CUresult> {
        let device = context.device();
        let driver = device.enter()?;
        let word = Word::new(device)?;
        let (least, greatest) = device.priorities();
        let priority = priority.clamp(greatest.min(least), least.max(greatest));
        let Made { raw, epoch, home } = device.confirm(context.make_stream(driver, priority))?;
        device.count_stream(true);
        let state = Mutex::new(State {
            raw,
            epoch,
            chains: Chains::new(device, &common, home),
            issued: VecDeque::new(),
            gathered: (Vec::new(), Vec::new()),
            commands: 0,
            expected: 0,
            looked_at: Instant::now(),
            ended_now: Vec::new(),
            pending: VecDeque::new(),
            ticket: word.load(),
            unsigned: 0,
            open_since: Instant::now(),
            cleared: vec![0; common.cleared.len()],
            rhythm: Rhythm::default(),
            landing: None,
            habit: Habit::default(),
            listed: false,
            ending: false,
            ended: false,
            before: before.filter(|stream| !stream.is_idle()),
        });
        Ok(Arc::new(Self {
            slot,
            context,
            common,
            priority,
            word,
            last: Last::default(),
            state,
        }))
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(crate) fn device(&self) -> &Arc<Device> {
        self.context.device()
    }

    /// Whether it takes nothing more.
    pub(crate) fn is_ending(&self) -> bool {
        lock(&self.state).ending
    }

    /// The kernel that the GPU is at, if it is at one.
    pub(crate) fn running(&self) -> Option<String> {
        let word = self.word.load();
        let state = lock(&self.state);
        let mut unfinished = state
            .issued
            .iter()
            .filter(|issued| !has_come_to(word, issued.ticket));
        unfinished.find_map(|issued| match &issued.after {
            After::Keep { module, kernel } => module.kernel_name(*kernel).map(str::to_owned),
            // One of these, and which cannot be seen.
            After::KeepRun(run) => run.launches().first().and_then(Launch::kernel_name),
            _ => None,
        })
    }

    /// Takes what its kernels have printed.
    pub(crate) fn drain(&self) {
        for issued in &lock(&self.state).issued {
            issued.drain(&self.common);
        }
    }

    /// Whether it has no work.
    pub(crate) fn is_idle(&self) -> bool {
        !lock(&self.state).listed
    }

    /// Takes nothing more; what waits fails. Its context was destroyed.
    pub(crate) fn end(&self) {
        lock(&self.state).ending = true;
    }

    /// Drops what waits. The client is going.
    pub(crate) fn clear(&self) {
        let waiting = std::mem::take(&mut lock(&self.state).pending);
        drop(waiting);
    }

    /// Takes an operation, and gives it to the driver if there is room.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_HANDLE after the stream's destruction was asked for, and
    /// CUDA_ERROR_INVALID_VALUE beyond [`STREAM_DEPTH`]; the operation is not taken.
    pub(crate) fn post(self: &Arc<Self>, sequence: u64, work: Work) -> Result<(), CUresult> {
        let mut state = lock(&self.state);
        if state.ending {
            return Err(CUresult::ERROR_INVALID_HANDLE);
        }
        state.ending = matches!(work, Work::Destroy);
        let was_open = state.is_open();
        if state.pending.is_empty() && self.may_issue(&mut state) {
            self.take(&mut state, sequence, work);
            let word = self.word.load();
            let first = state.issued.front();
            if first.is_some_and(|first| has_come_to(word, first.ticket)) {
                self.advance(&mut state);
            }
        } else if state.pending.len() as u64 >= STREAM_DEPTH {
            return Err(CUresult::ERROR_INVALID_VALUE);
        } else {
            let work = if self.common.waiting.take(work.kept()) {
                work
            } else {
                Work::Refused(CUresult::ERROR_OUT_OF_MEMORY)
            };
            state.pending.push_back((sequence, work));
            // Who posts faster than the GPU works issues what follows too, and does not leave it to the
            // poller, which has everybody's.
            self.advance(&mut state);
        }
        let to_sign = !was_open && state.is_open();
        let list = !std::mem::replace(&mut state.listed, true);
        self.note(&state);
        drop(state);
        if to_sign {
            self.common.add_unsigned(self);
        }
        if list {
            self.common.add_busy(Arc::clone(self));
        }
        self.common.wake();
        Ok(())
    }

    /// Commands that may be with the driver.
    fn depth(&self) -> usize {
        let sharing = self.device().streams().div_ceil(QUEUES).max(1);
        (PLACES / sharing).clamp(LEAST_DEPTH, MOST_DEPTH)
    }

    /// Whether more may go to the driver now. If so, it has passed the gate.
    fn may_issue(&self, state: &mut State) -> bool {
        self.has_room(state)
            && state.before.is_none()
            // What comes after a fetch may read what it has not delivered yet.
            && !state.is_fetching()
            && self.is_current(state)
            && self.context.pass_gate()
    }

    /// Whether what is with the driver leaves room for more.
    fn has_room(&self, state: &mut State) -> bool {
        if state.commands >= self.depth() {
            return false;
        }
        if state.expected <= MOST_AHEAD {
            return true;
        }
        // What is not signed makes no room.
        if state.is_open() && !state.is_fetching() {
            self.sign_rest(state);
        }
        false
    }

    /// Nothing more comes for now, or `for_long`: signs what is to be signed then, and says whether that is all.
    /// As long as the GPU has not come as far as what is signed, and somebody looks, the rest need not be: the GPU is
    /// done with all that is before a signature before it begins with what is behind it, which costs each kernel
    /// about 2 us that would follow at once.
    pub(crate) fn pause(&self, for_long: bool) -> bool {
        let mut state = lock(&self.state);
        if !state.is_fetching() {
            if for_long || has_come_to(self.word.load(), state.ticket) {
                self.sign_rest(&mut state);
            } else {
                self.issue_gathered(&mut state, true);
            }
        }
        self.note(&state);
        for_long || state.is_fetching() || state.unsigned == 0
    }

    fn sign_rest(&self, state: &mut State) {
        self.issue_gathered(state, false);
        if state.unsigned > 0 {
            let signed = self
                .device()
                .enter()
                .and_then(|driver| self.sign(driver, state));
            // A device that has died tells by itself; anything else is tried again by the poller.
            let _ = self.device().confirm(signed);
        }
    }

    /// Whether the driver's stream is in the part that the context has now. If it is not and has nothing
    /// to do, it is made again; if it has, what comes waits until then.
    fn is_current(&self, state: &mut State) -> bool {
        if state.epoch == self.context.epoch() {
            return true;
        }
        if state.is_under_way() {
            return false;
        }
        let made = self
            .device()
            .enter()
            .and_then(|driver| Ok((driver, self.context.make_stream(driver, self.priority)?)));
        match self.device().confirm(made) {
            Ok((driver, Made { raw, epoch, home })) => {
                let old = std::mem::replace(&mut state.raw, raw);
                state.epoch = epoch;
                state.chains = Chains::new(self.device(), &self.common, home);
                state.cleared.fill(0);
                // SAFETY: made here or in `new`, and nothing is issued in it.
                let _ = unsafe { driver.cuStreamDestroy_v2(old.0) };
                true
            }
            // What is issued on a device that has died fails. Otherwise it is tried again: nothing is
            // issued in a part that the client does not have any more.
            Err(_) => self.device().check().is_err(),
        }
    }

    /// Takes an operation that passed the gate: gathers it, or gives it to the driver.
    fn take(&self, state: &mut State, sequence: u64, work: Work) {
        if !state.is_under_way() {
            state.looked_at = Instant::now();
            state.rhythm.begin(state.looked_at);
        }
        state.rhythm.add(work.kind());
        state.habit.learn(false);
        let work = match work {
            Work::Fetch(fetch) if !fetch.is_awaited() && !state.habit.ask() => {
                Work::steps(vec![fetch.step()])
            }
            work => work,
        };
        let length = self.length(&work);
        match work {
            Work::Launch(launch) if state.chains.take(&launch) => {
                if !state.is_open() {
                    state.open_since = Instant::now();
                }
                let (sequences, launches) = &mut state.gathered;
                sequences.push((sequence, length));
                launches.push(launch);
                state.commands += 1;
                state.expected += u64::from(length.1);
                // What is not issued makes no room.
                if launches.len() >= MOST_GATHERED || state.commands >= self.depth() {
                    self.issue_gathered(state, false);
                }
            }
            Work::Run(run, part) => {
                self.issue_gathered(state, false);
                self.issue_run(state, sequence, (run, part), length);
            }
            work => {
                let tells = !matches!(work, Work::Event { timing: false, .. });
                self.issue_gathered(state, tells);
                self.issue(state, sequence, work, length);
            }
        }
    }

    /// Of what sort an operation is, and how long it is expected to take.
    fn length(&self, work: &Work) -> Length {
        let (sort, unknown) = work.sort();
        (sort, self.context.durations().expected(sort, unknown))
    }

    /// Gives what was gathered to the driver. If something follows that tells of what was before it, few
    /// launches need not.
    fn issue_gathered(&self, state: &mut State, followed: bool) {
        if state.gathered.0.is_empty() {
            return;
        }
        let (mut sequences, mut launches) = std::mem::take(&mut state.gathered);
        state.commands -= launches.len();
        state.expected -= sequences
            .iter()
            .map(|&(_, (_, each))| u64::from(each))
            .sum::<u64>();
        while !launches.is_empty() {
            let ticket = state.ticket.wrapping_add(1);
            let signal = Signal {
                word: self.word.address(),
                ticket,
            };
            let issued = if followed && launches.len() < FEW {
                None
            } else {
                self.context
                    .check()
                    .and_then(|()| self.device().enter())
                    .and_then(|driver| {
                        self.wait_until_cleared(driver, state)?;
                        state.chains.issue(state.raw.0, &mut launches, signal)
                    })
                    .ok()
            };
            let Some(count) = issued else {
                for ((sequence, length), launch) in sequences.drain(..).zip(launches.drain(..)) {
                    self.issue(state, sequence, Work::Launch(launch), length);
                }
                break;
            };
            state.ticket = ticket;
            state.unsigned = 0;
            for ((sequence, length), launch) in
                sequences.drain(..count).zip(launches.drain(..count))
            {
                state.push(Issued {
                    sequence: Some(sequence),
                    commands: 1,
                    length,
                    ticket,
                    result: Ok(()),
                    after: launch.after(),
                });
            }
        }
        // Empty, with room for the next.
        state.gathered = (sequences, launches);
    }

    /// Gives a part of a run that passed the gate to the driver: as the chain that the run has of its own, or
    /// as much of it as goes into one of the stream's. The rest follows when that may.
    fn issue_run(
        &self,
        state: &mut State,
        sequence: u64,
        (run, part): (Arc<Counted<Run>>, Range<usize>),
        mut length: Length,
    ) {
        let ticket = state.ticket.wrapping_add(1);
        let Some(count) = self.issue_chain_of(state, &run, &part, ticket) else {
            return self.issue(state, sequence, Work::Run(run, part), length);
        };
        let rest = part.start + count..part.end;
        state.ticket = ticket;
        state.unsigned = 0;
        if !rest.is_empty() {
            let done = Work::Run(Arc::clone(&run), part.start..rest.start);
            length = self.length(&done);
        }
        state.push(Issued {
            sequence: rest.is_empty().then_some(sequence),
            commands: count,
            length,
            ticket,
            result: Ok(()),
            after: After::KeepRun(Arc::clone(&run)),
        });
        if !rest.is_empty() {
            let rest = Work::Run(run, rest);
            self.common.waiting.take_anyway(rest.kept());
            state.pending.push_front((sequence, rest));
        }
    }

    /// Gives the first launches of a part of a run to the driver as a chain, and says how many; `None` if they
    /// are to be issued one by one.
    fn issue_chain_of(
        &self,
        state: &mut State,
        run: &Run,
        part: &Range<usize>,
        ticket: u32,
    ) -> Option<usize> {
        let signal = Signal {
            word: self.word.address(),
            ticket,
        };
        self.context.check().ok()?;
        let driver = self.device().enter().ok()?;
        self.wait_until_cleared(driver, state).ok()?;
        let (all, depth) = (run.launches().len(), self.depth());
        if let Some(home) = state.chains.home()
            && *part == (0..all)
            && all <= depth
            && run
                .issue((self.device(), &self.common), home, state.raw.0, signal)
                .is_some()
        {
            return Some(all);
        }
        let room = depth.saturating_sub(state.commands).max(1);
        let count = part.len().min(room).min(MOST_GATHERED);
        let launches = run.launches().get(part.start..part.start + count)?;
        if !launches.iter().all(Launch::is_known_and_plain) {
            return None;
        }
        let (stream, launches) = (state.raw.0, &mut launches.to_vec());
        state.chains.issue(stream, launches, signal).ok()
    }

    /// Gives an operation that passed the gate to the driver, or as much of it as there is room for; what
    /// comes of it is told in its turn.
    fn issue(&self, state: &mut State, sequence: u64, mut work: Work, mut length: Length) {
        let last = matches!(work, Work::Destroy);
        // The driver has nothing to do for it, and all before it is signed.
        let signed = state.unsigned == 0 && matches!(work, Work::Event { timing: false, .. });
        let room = self.depth().saturating_sub(state.commands).max(1);
        let rest = work.split(room);
        let commands = work.commands();
        if rest.is_some() {
            length = self.length(&work);
        }
        let issued = self
            .context
            .check()
            .and_then(|()| self.device().enter())
            .and_then(|driver| {
                let (launch, fetch) = (
                    matches!(work, Work::Launch(_)),
                    matches!(work, Work::Fetch(_)),
                );
                if signed {
                    return Ok(After::Nothing);
                }
                let result = self.issue_work(driver, state, work);
                if state.unsigned == 0 {
                    state.open_since = Instant::now();
                }
                state.unsigned += 1;
                // What is not signed makes no room.
                if !fetch && (!launch || state.unsigned >= BATCH || commands >= room) {
                    self.sign_rest(state);
                }
                result
            });
        let (result, after) = match self.device().confirm(issued) {
            Ok(after) => (Ok(()), after),
            // A stream whose context is gone still ends.
            Err(_) if last => (Ok(()), After::Destroy),
            Err(code) => (Err(code), After::Nothing),
        };
        // What failed in part is over.
        let rest = rest.filter(|_| result.is_ok());
        state.push(Issued {
            sequence: rest.is_none().then_some(sequence),
            commands,
            length,
            ticket: state.ticket.wrapping_add(u32::from(state.unsigned > 0)),
            result,
            after,
        });
        if let Some(rest) = rest {
            self.common.waiting.take_anyway(rest.kept());
            state.pending.push_front((sequence, rest));
        }
    }

    fn issue_work(
        &self,
        driver: &Driver,
        state: &mut State,
        work: Work,
    ) -> Result<After, CUresult> {
        self.wait_until_cleared(driver, state)?;
        let ticket = state.ticket.wrapping_add(1);
        work.issue(
            self.device(),
            driver,
            state.raw.0,
            ticket,
            &mut state.landing,
        )
    }

    /// Has the stream wait for the clearing of memory that was asked for since it last did.
    fn wait_until_cleared(&self, driver: &Driver, state: &mut State) -> Result<(), CUresult> {
        for (cleared, seen) in self.common.cleared.iter().zip(&mut state.cleared) {
            cleared.wait(driver, state.raw.0, seen)?;
        }
        Ok(())
    }

    /// Has the GPU write the next ticket once it has come this far, even where an operation was taken
    /// only in part.
    fn sign(&self, driver: &Driver, state: &mut State) -> Result<(), CUresult> {
        let ticket = state.ticket.wrapping_add(1);
        // SAFETY: the word outlives the stream's work: it is kept by `self`, which is kept as long as
        // anything is issued.
        unsafe { driver.cuStreamWriteValue32_v2(state.raw.0, self.word.address(), ticket, 0)? };
        state.ticket = ticket;
        state.unsigned = 0;
        Ok(())
    }

    /// Notes whether there is anything to do before the word changes, for [`Stream::poll`].
    fn note(&self, state: &State) {
        let seen = self.last.word.load(Ordering::Relaxed);
        let calm = !state.is_open()
            && state.pending.is_empty()
            && state.before.is_none()
            && state
                .issued
                .front()
                .is_some_and(|front| !has_come_to(seen, front.ticket) && !front.after.prints());
        let after = |time: Instant| {
            let after = time.saturating_duration_since(self.common.came);
            u64::try_from(after.as_nanos()).unwrap_or(0)
        };
        let (near, due) = match state.rhythm.due() {
            Some(Due { near, at }) => (after(near), after(at)),
            // What waits for room is to follow at once; nobody sleeps for it.
            None if !state.pending.is_empty() && state.expected > MOST_AHEAD => (
                0,
                after(state.looked_at + Duration::from_micros(state.expected)),
            ),
            None => (0, 0),
        };
        if self.last.due.swap(due, Ordering::Relaxed) != due {
            self.last.near.store(near, Ordering::Relaxed);
        }
        self.last.calm.store(calm, Ordering::Release);
    }

    /// What a look has found. An end that is long overdue was not to be told.
    fn polled(&self, progress: bool, busy: bool) -> Polled {
        let time = |word: &AtomicU64| match word.load(Ordering::Relaxed) {
            0 => None,
            after => Some(self.common.came + Duration::from_nanos(after)),
        };
        let due = time(&self.last.due).filter(|_| busy);
        let now = due.map(|_| Instant::now());
        let due = due.filter(|&due| now < Some(due + LATE));
        if due.is_some()
            && time(&self.last.near).is_some_and(|near| Some(near) <= now)
            && self.last.near.swap(0, Ordering::Relaxed) != 0
            && self.common.is_open()
        {
            self.common.observer.near(self.slot);
        }
        Polled {
            progress,
            busy,
            due,
            untold: busy && due.is_none(),
        }
    }

    /// Reports what has completed, issues what waits, and signs what has been unsigned for long.
    pub(crate) fn poll(self: &Arc<Self>) -> Polled {
        if self.last.calm.load(Ordering::Acquire)
            && self.word.load() == self.last.word.load(Ordering::Relaxed)
            && self.context.check_told().is_ok()
        {
            return self.polled(false, true);
        }
        let mut state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // Somebody is issuing, or looking.
            Err(TryLockError::WouldBlock) => {
                return self.polled(false, true);
            }
        };
        let state = &mut *state;
        if let Some(before) = &state.before {
            if !before.is_idle() {
                return self.polled(false, true);
            }
            state.before = None;
        }
        // So that the ring of a kernel that runs long does not become full.
        if let Some(front) = state.issued.front() {
            front.drain(&self.common);
        }
        let progress = self.advance(state);
        if state.is_open() && state.open_since.elapsed() > STALE {
            self.sign_rest(state);
        }
        let busy = state.is_under_way() || !state.pending.is_empty();
        state.listed = busy;
        self.note(state);
        self.polled(progress, busy)
    }

    /// Where the last operation is a fetch whose data has come, writes the word as the GPU does for others.
    fn land(&self, state: &mut State) {
        if state.unsigned > 0
            && let Some(last) = state.issued.back_mut()
            && let After::Deliver(fetch) = &mut last.after
            && fetch.has_come()
        {
            self.word.store(last.ticket);
            state.ticket = last.ticket;
            state.unsigned = 0;
        }
    }

    /// Reports what has completed and issues what waits. Whether anything had completed.
    fn advance(&self, state: &mut State) -> bool {
        let mut progress = false;
        loop {
            // In this order: a device that died later does not undo what had completed.
            let dead = self.context.check_told();
            self.land(state);
            let word = self.word.load();
            self.last.word.store(word, Ordering::Relaxed);
            while let Some(front) = state.issued.front() {
                let come = has_come_to(word, front.ticket);
                if !come && dead.is_ok() {
                    break;
                }
                let Some(mut issued) = state.issued.pop_front() else {
                    break;
                };
                let result = if come { issued.result } else { dead };
                if let After::Deliver(fetch) = issued.after {
                    state.landing = Some(fetch.end(result.is_ok()));
                    issued.after = After::Nothing;
                }
                state.commands -= issued.commands;
                state.expected -= u64::from(issued.length.1);
                if come {
                    state.ended_now.push(issued.length);
                }
                self.context.leave();
                progress = true;
                if matches!(issued.after, After::Destroy) {
                    self.destroy(state.raw);
                    state.ended = true;
                }
                self.finish(issued.sequence, result, issued.after);
            }
            if !state.ended_now.is_empty() {
                let now = Instant::now();
                let took = now.saturating_duration_since(state.looked_at);
                self.context.durations().learn(&state.ended_now, took);
                state.ended_now.clear();
                state.looked_at = now;
            }
            if progress && !state.is_under_way() {
                state.rhythm.end(Instant::now());
                state.habit.learn(state.pending.is_empty());
            }
            let mut gave = false;
            while !state.pending.is_empty() && self.may_issue(state) {
                let Some((sequence, work)) = state.pending.pop_front() else {
                    self.context.leave();
                    break;
                };
                gave = true;
                self.common.waiting.give(work.kept());
                self.take(state, sequence, work);
            }
            // What failed at once is reported at once.
            if !gave {
                return progress;
            }
            if !state.is_fetching() {
                self.sign_rest(state);
            }
        }
    }

    /// Does what is due after an operation and reports it.
    fn finish(&self, sequence: Option<u64>, result: Result<(), CUresult>, after: After) {
        let open = self.common.is_open();
        match after {
            After::Nothing | After::Deliver(_) | After::Destroy => {}
            After::Keep { module, .. } => {
                self.common.drain(&module);
                drop(module);
            }
            After::KeepRun(run) => run
                .modules()
                .iter()
                .for_each(|module| self.common.drain(module)),
            After::Time { event, raw } => {
                let time = self
                    .device()
                    .enter()
                    .and_then(|driver| self.device().clock().time(driver, raw));
                if let Ok(time) = time
                    && open
                {
                    self.common.observer.event_time(event, time);
                }
            }
        }
        if open && let Some(sequence) = sequence {
            let at = At {
                stream: self.slot,
                sequence,
            };
            self.common.observer.completed(at, result);
        }
    }

    fn destroy(&self, raw: Handle<CUstream>) {
        if let Ok(driver) = self.device().enter() {
            // SAFETY: made by the context, destroyed once: `ended` says so; nothing is issued in it.
            let _ = unsafe { driver.cuStreamDestroy_v2(raw.0) };
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.device().count_stream(false);
        let state = lock(&self.state);
        let (raw, ended) = (state.raw, state.ended);
        drop(state);
        if !ended {
            self.destroy(raw);
        }
    }
}
