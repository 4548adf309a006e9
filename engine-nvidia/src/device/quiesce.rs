//! The gate of a device, which all operations of streams pass on their way to the driver.
//!
//! Some calls of the driver wait for every kernel that the context has running, whosever it is, and hold
//! the context's lock meanwhile, so that nobody could launch anything: loading and unloading modules,
//! unpinning host memory, destroying arrays (`benches/gpu/driver_calls.cu` finds out which). They are made
//! only while the gate is closed and nothing runs. What is to be loaded waits for that; what is to be
//! given back is [retired](QuiesceGate::when_idle) until the device has nothing to do.
//!
//! A closed gate keeps others' operations in their streams, and streams give the driver only as much at a time as
//! takes some [milliseconds](PATIENCE), or less while another client is [expected](QuiesceGate::expect_load) to load, so that usually nothing runs soon. Contexts whose work takes longer are *held*:
//! they begin nothing new, and the gate is open for all others until what these have running is over, when it is
//! closed again. So a long kernel holds up who loads, and whose it is, and nobody else. Where it is known how long a
//! kernel takes, its context is held at once. It may wait for something that its own context is to do: who is held for
//! long, and longer than its kernels are known to take, is let go for as long, and so on, up to some seconds.
//!
//! To the contexts of who loads the gate is not closed meanwhile: a kernel of theirs may wait for another process', which
//! waits for what was given to their streams before, as collective operations do.
//!
//! Who is held beside what does not end is not held again before that does.
//!
//! Nobody loads all the time beside others' work: each client has a [budget](load_budget) of time for which it keeps others waiting,
//! be it for what runs or for the load. Who is over it loads where nothing has run for a while.
//!
//! Who comes to a closed gate with something to do alone does it in the same turn, as long as a turn does not take
//! [too long](MOST_CLOSED).
//!
//! A kernel of a client that has gone may never end, and the driver cannot end it. After a [grace](GRACE)
//! the device counts as [stuck](QuiesceGate::is_stuck): what would wait for it fails at once, until it ends.
//!
//! Must not know what is loaded or retired.

use parking_lot::{Mutex, MutexGuard};
use std::fmt::{Debug, Formatter};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use cuda_abi::CUresult;
use engine::{Observer, clock};

use crate::device::waker::Waker;

mod closing;
mod gone;
mod load_budget;
mod retired;
mod running;

use closing::{ClosingState, Drained, Exempt, Pause};
use retired::Retired;
pub(crate) use running::Running;

/// How long the gate is closed for all while something runs.
pub(crate) const PATIENCE: Duration = Duration::from_millis(20);
/// How long contexts are held at first before they are let go, and at most.
const FIRST_HOLD: Duration = Duration::from_secs(1);
const MOST_HOLD: Duration = Duration::from_secs(4);
/// How long the gate stays closed for one who is alone after another, at most.
const MOST_CLOSED: Duration = Duration::from_millis(50);
/// For how long at a time what was retired is given back that nobody waits for.
const MOST_SWEPT: Duration = Duration::from_millis(2);
/// Time between two looks at what runs.
const LOOK: Duration = Duration::from_micros(20);

/// For how long code is expected to be loaded after a client has come, or something was loaded, or begins to be compiled: what follows
/// comes soon, and waits for what streams have given the driver by then.
const LOADS_FOLLOW: Duration = Duration::from_millis(50);

/// For how long it is believed how many contexts have operations: who counts looks at all of them.
const RECENT: u64 = 4_000_000;

/// How long what a client that has gone had running may take to its end, unless something else is set.
const GRACE: Duration = Duration::from_secs(30);

/// A device's gate.
pub(crate) struct QuiesceGate {
    closed: AtomicBool,
    /// Closed to all that has not been begun, whoever loads.
    resting: AtomicBool,
    clients: Mutex<Vec<Weak<Running>>>,
    /// Held by who closes the gate.
    turn: Mutex<ClosingState>,
    /// How many wait for that.
    waiting: AtomicUsize,
    /// Since when the closed gate keeps somebody waiting who has nothing else running: nanoseconds of CLOCK_MONOTONIC, or 0.
    keeps_since: AtomicU64,
    retired: Retired,
    /// Is told that the gate is open again.
    waker: OnceLock<Arc<Waker>>,
    /// Milliseconds.
    grace: AtomicU64,
    /// How many contexts had operations when they were counted last, and when that was: nanoseconds of CLOCK_MONOTONIC.
    busy: AtomicUsize,
    counted_at: AtomicU64,
    /// Until when a load is expected, likewise.
    load_expected_until: AtomicU64,
}

impl Default for QuiesceGate {
    fn default() -> Self {
        let gate = Self {
            closed: AtomicBool::default(),
            resting: AtomicBool::default(),
            clients: Mutex::default(),
            turn: Mutex::default(),
            waiting: AtomicUsize::default(),
            keeps_since: AtomicU64::default(),
            retired: Retired::default(),
            waker: OnceLock::new(),
            grace: AtomicU64::default(),
            busy: AtomicUsize::default(),
            counted_at: AtomicU64::default(),
            load_expected_until: AtomicU64::default(),
        };
        gate.set_grace(GRACE);
        gate
    }
}

impl Debug for QuiesceGate {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gate")
            .field("closed", &self.closed)
            .field("clients", &self.clients.lock().len())
            .field("retired", &self.retired.count())
            .finish_non_exhaustive()
    }
}

impl QuiesceGate {
    /// Who issues what waited while the gate was closed.
    pub(crate) fn set_waker(&self, waker: &Arc<Waker>) {
        // Nobody else sets it.
        let _ = self.waker.set(Arc::clone(waker));
    }

    /// This thread's client is about to load code, as far as is known: what the driver has of others should be over soon.
    pub(crate) fn expect_load(&self) {
        let this = Some(std::thread::current().id());
        let clients = self.clients.lock();
        let own = clients.iter().filter_map(Weak::upgrade);
        self.expect_load_of(own.filter(|client| client.thread == this));
    }

    fn expect_load_of(&self, own: impl Iterator<Item = Arc<Running>>) {
        let follow = u64::try_from(LOADS_FOLLOW.as_nanos()).unwrap_or(u64::MAX);
        let until = clock::now().saturating_add(follow);
        own.for_each(|client| client.load_expected_until.store(until, Ordering::Relaxed));
        self.load_expected_until.fetch_max(until, Ordering::Relaxed);
    }

    /// Whether somebody else is about to load code. Whoever loads itself gives the driver as much as ever, since it begins with kernels of which
    /// nothing is known.
    pub(crate) fn is_load_of_others_expected(&self, running: &Running) -> bool {
        // Most of the time nothing was loaded lately, and nobody asks what time it is.
        let until = self.load_expected_until.load(Ordering::Relaxed);
        if until == 0 {
            return false;
        }
        let now = clock::now();
        if now >= until {
            // Whoever expects one meanwhile says so once more.
            let _ = self.load_expected_until.compare_exchange(
                until,
                0,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
        }
        now < until && now >= running.load_expected_until.load(Ordering::Relaxed)
    }

    /// The counter of one more context, whose client's thread this is.
    pub(crate) fn add_context(&self, client: &Arc<dyn Observer>) -> Arc<Running> {
        let running = Arc::new(Running::of_this_thread(client));
        self.expect_load_of(std::iter::once(Arc::clone(&running)));
        let mut clients = self.clients.lock();
        clients.retain(|client| client.strong_count() > 0);
        clients.push(Arc::downgrade(&running));
        running
    }

    /// Lets one operation through, which [`Running::operation_done`] ends, unless the gate is closed. What `goes_on` has been begun in
    /// part, and is to be over before there is rest: whoever loads waits for what does not end, and it must not wait for them.
    pub(crate) fn try_pass(&self, running: &Running, goes_on: bool) -> bool {
        // Of who is gone what runs is all that there will be: its thread, which would drop the rest, may wait for that.
        let is_closed = || match self.resting.load(Ordering::SeqCst) {
            _ if running.is_gone() => true,
            true => !goes_on,
            false => self.is_closed_to(running),
        };
        // Who asks again and again would seem to have something running.
        if is_closed() {
            self.note_kept(running);
            return false;
        }
        // Pairs with `drain`: either it sees the operation, or we see that the gate is closed.
        running.operations.fetch_add(1, Ordering::SeqCst);
        if is_closed() {
            running.operation_done();
            self.note_kept(running);
            return false;
        }
        true
    }

    /// A context was not let begin something. As long as it has something else with the driver nobody loses by that.
    fn note_kept(&self, running: &Running) {
        if self.closed.load(Ordering::SeqCst)
            && !running.has_operations()
            && self.keeps_since.load(Ordering::Relaxed) == 0
        {
            // Who was first says since when.
            let _ = self.keeps_since.compare_exchange(
                0,
                clock::now(),
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
        }
    }

    /// For how long, of the time since then, the closed gate has kept somebody waiting.
    fn has_kept(&self, since: Instant) -> Duration {
        match self.keeps_since.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            first => Duration::from_nanos(clock::now().saturating_sub(first.max(clock::at(since)))),
        }
    }

    /// Whether the gate is closed for a context now.
    pub(crate) fn is_closed_to(&self, running: &Running) -> bool {
        (self.closed.load(Ordering::SeqCst) && !running.exempt.load(Ordering::SeqCst))
            || running.held.load(Ordering::SeqCst)
    }

    /// Whether other contexts had operations with the driver a moment ago. `now` is of CLOCK_MONOTONIC.
    pub(crate) fn others_run(&self, running: &Running, now: u64) -> bool {
        if now.saturating_sub(self.counted_at.load(Ordering::Relaxed)) >= RECENT
            && let Some(clients) = self.clients.try_lock()
        {
            self.counted_at.store(now, Ordering::Relaxed);
            let mut busy = 0;
            for client in clients.iter().filter_map(Weak::upgrade) {
                let runs = client.has_operations();
                client.was_counted.store(runs, Ordering::Relaxed);
                busy += usize::from(runs);
            }
            self.busy.store(busy, Ordering::Relaxed);
        }
        let own = usize::from(running.was_counted.load(Ordering::Relaxed));
        self.busy.load(Ordering::Relaxed) > own
    }

    /// Whether another context may have operations with the driver now.
    pub(crate) fn others_may_run(&self, running: &Running) -> bool {
        let Some(clients) = self.clients.try_lock() else {
            return true;
        };
        let mut others = clients.iter().filter_map(Weak::upgrade);
        others.any(|other| !std::ptr::eq(&raw const *other, running) && other.has_operations())
    }

    /// Closes the gate to whatever has not been begun, whoever loads, until [`QuiesceGate::end_rest`]. Whether nothing runs but what clients
    /// have left that are gone.
    pub(crate) fn rest(&self) -> bool {
        self.resting.store(true, Ordering::SeqCst);
        let clients = self.clients.lock();
        let mut running = clients.iter().filter_map(Weak::upgrade);
        // Pairs with `try_pass`: either an operation is seen here, or it has seen that the gate is closed.
        !running.any(|client| client.gone_since().is_none() && client.has_operations())
    }

    /// Opens the gate again to whom it was closed for that.
    pub(crate) fn end_rest(&self) {
        self.resting.store(false, Ordering::SeqCst);
        self.wake();
    }

    /// Makes a call while no operation of any client runs. Waits for those that do, as the module says,
    /// or until `dead` says that the device is.
    ///
    /// # Errors
    /// CUDA_ERROR_DEVICE_UNAVAILABLE while the device is [stuck](QuiesceGate::is_stuck): as the CUDA manual has
    /// it, kernels that run long keep new work from making progress. And where the client is gone that would wait.
    pub(crate) fn run_exclusive<T>(
        &self,
        dead: impl Fn() -> bool,
        call: impl FnOnce() -> T,
    ) -> Result<T, CUresult> {
        let mut was_quiet = false;
        let (mut turn, disturbs) = loop {
            let mut turn = self.take_turn()?;
            let drained = match turn.closed {
                Some(pause) => Ok(Drained::of(pause.disturbs)),
                None => self.drain(&mut turn, &dead, was_quiet),
            };
            match drained {
                Ok(Drained::NothingRan) => break (turn, Ok(false)),
                Ok(Drained::GaveWay) => break (turn, Ok(true)),
                Err(code) => break (turn, Err(code)),
                Ok(Drained::OverBudget) => {
                    drop(turn);
                    was_quiet = !self.wait(PATIENCE, &dead, || self.anything_runs())?;
                    if !was_quiet {
                        self.wait(PATIENCE, &dead, || false)?;
                    }
                }
            }
        };
        let began = Instant::now();
        let pause = turn.closed.take().unwrap_or(Pause {
            since: began,
            disturbs: disturbs == Ok(true),
        });
        let closed = Closed {
            gate: self,
            turn,
            pause,
            began,
            client: Some(std::thread::current().id()),
        };
        disturbs?;
        // First, because the call may need the memory.
        self.retired.run(MOST_CLOSED);
        let result = call();
        drop(closed);
        Ok(result)
    }

    /// Closes the gate and waits until nothing runs, as the module says. Opens it again for who is over its budget, unless it
    /// `was_quiet` for a while: that nothing runs now may be between two kernels of who waits for each.
    ///
    /// # Errors
    /// As [`QuiesceGate::run_exclusive`].
    fn drain(
        &self,
        turn: &mut ClosingState,
        dead: &impl Fn() -> bool,
        was_quiet: bool,
    ) -> Result<Drained, CUresult> {
        let client = std::thread::current().id();
        if !was_quiet && turn.budget.is_over(client, Instant::now()) && !dead() {
            return Ok(Drained::OverBudget);
        }
        let own = self.exempt_own_contexts();
        self.close();
        if self.is_drained(&own) || dead() {
            return Ok(Drained::NothingRan);
        }
        let mut hold = FIRST_HOLD;
        let mut until = Instant::now() + hold;
        // What ran when it was let go. Nobody else is held again before that is over, which may be never.
        let mut endless: Vec<Arc<Running>> = Vec::new();
        loop {
            endless.retain(|running| running.has_operations());
            let mut running = self.others_running(turn, &own);
            running.retain(|running| match endless.is_empty() {
                true => running.expected_remaining() > PATIENCE,
                false => endless.iter().any(|endless| Arc::ptr_eq(endless, running)),
            });
            if running.is_empty() && !turn.held_have_operations() && endless.is_empty() {
                self.close();
                let closed = Instant::now();
                let drained = self.wait(PATIENCE, dead, || self.is_drained(&own));
                let now = Instant::now();
                turn.budget.spend(client, self.has_kept(closed), now);
                if drained? {
                    return Ok(Drained::GaveWay);
                }
                running = self.others_running(turn, &own);
            }
            turn.hold_back(running);
            self.open();
            let known = Instant::now() + turn.held_expected_remaining();
            let left = until.max(known).saturating_duration_since(Instant::now());
            if !self.wait(left, dead, || {
                !turn.held_have_operations() && !own.have_operations()
            })? {
                endless = turn.held_running();
                endless.extend(own.running());
                turn.release_held();
                self.wake();
                self.wait(hold, dead, || false)?;
                hold = (hold * 2).min(MOST_HOLD);
                until = Instant::now() + hold;
            }
        }
    }

    /// Waits until something is so, or the device is dead, and for so long at most. Whether it is.
    ///
    /// # Errors
    /// As [`QuiesceGate::run_exclusive`].
    fn wait(
        &self,
        most: Duration,
        dead: &impl Fn() -> bool,
        is_so: impl Fn() -> bool,
    ) -> Result<bool, CUresult> {
        let until = Instant::now() + most;
        loop {
            if dead() || is_so() {
                return Ok(true);
            }
            if self.is_stuck() || self.is_this_client_gone() {
                return Err(CUresult::ERROR_DEVICE_UNAVAILABLE);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            // Of a client whose own thread looks for completions, and is held up, the poller hears.
            self.wake();
            std::thread::sleep(left.min(LOOK));
        }
    }

    /// Has a call made when no operation of any client runs, which gives back so many bytes of memory. Does not wait: who
    /// asks may be ending, or has work of his own to see to.
    pub(crate) fn when_idle(&self, bytes: u64, call: impl FnOnce() + Send + 'static) {
        self.retired.add(bytes, Box::new(call));
        self.wake();
    }

    /// Waits while much is retired: before anything is made that will be, so that what waits for an idle
    /// device has a bound.
    ///
    /// # Errors
    /// As [`QuiesceGate::run_exclusive`], if there is much.
    pub(crate) fn make_room(&self, dead: impl Fn() -> bool) -> Result<(), CUresult> {
        while self.retired.is_full() {
            self.run_exclusive(&dead, || ())?;
        }
        Ok(())
    }

    /// Waits until all that is retired by now is given back.
    ///
    /// # Errors
    /// As [`QuiesceGate::run_exclusive`].
    pub(crate) fn give_back(&self, dead: impl Fn() -> bool) -> Result<(), CUresult> {
        let all = self.retired.all_by_now();
        loop {
            // Once at least: somebody may be giving back the last of it in his turn.
            self.run_exclusive(&dead, || ())?;
            if self.retired.has_made(all) {
                return Ok(());
            }
        }
    }

    /// Wakes who issues what waited.
    pub(crate) fn wake(&self) {
        if let Some(waker) = self.waker.get() {
            waker.wake();
        }
    }

    /// Does what was retired, if nothing runs. Does not wait. Whether nothing is left.
    pub(crate) fn run_pending(&self) -> bool {
        if self.retired.count() == 0 {
            return true;
        }
        let swept = self.try_exclusive(|| self.retired.run(MOST_SWEPT));
        swept.is_some() && self.retired.count() == 0
    }

    /// As [`QuiesceGate::run_exclusive`], but does not wait: `None`, and no call, if anything runs or somebody else makes or
    /// wants to make such a call.
    pub(crate) fn try_exclusive<T>(&self, call: impl FnOnce() -> T) -> Option<T> {
        let turn = self.turn.try_lock()?;
        // Who tries again and again is not to close the gate each time.
        if turn.closed.is_some() || self.anything_runs() {
            return None;
        }
        self.close();
        let began = Instant::now();
        let pause = Pause {
            since: began,
            disturbs: false,
        };
        let closed = Closed {
            gate: self,
            turn,
            pause,
            began,
            client: None,
        };
        let result = (!self.anything_runs()).then(call);
        drop(closed);
        result
    }

    /// The contexts of this thread's client, to which the gate is open from now on.
    fn exempt_own_contexts(&self) -> Exempt {
        let this = Some(std::thread::current().id());
        let clients = self.clients.lock();
        let own = clients.iter().filter_map(Weak::upgrade);
        let own = Exempt(own.filter(|client| client.thread == this).collect());
        own.set(true);
        own
    }

    /// Whether nothing runs; then the gate is closed to all.
    fn is_drained(&self, own: &Exempt) -> bool {
        if self.anything_runs() {
            return false;
        }
        own.set(false);
        // One of these may have begun something just before.
        let drained = !self.anything_runs();
        own.set(!drained);
        drained
    }

    /// The contexts that have something running, but those that are held already and who loads.
    fn others_running(&self, turn: &ClosingState, own: &Exempt) -> Vec<Arc<Running>> {
        let clients = self.clients.lock();
        let running = clients.iter().filter_map(Weak::upgrade);
        running
            .filter(|client| {
                client.has_operations() && !turn.is_held_back(client) && !own.contains(client)
            })
            .collect()
    }

    /// Whether there are contexts of clients, which may begin something.
    pub(crate) fn has_contexts(&self) -> bool {
        let clients = self.clients.lock();
        clients.iter().any(|client| client.strong_count() > 0)
    }

    pub(crate) fn anything_runs(&self) -> bool {
        let clients = self.clients.lock();
        let mut running = clients.iter().filter_map(Weak::upgrade);
        running.any(|client| client.has_operations())
    }

    fn close(&self) {
        if !self.closed.swap(true, Ordering::SeqCst) {
            self.keeps_since.store(0, Ordering::Relaxed);
        }
    }

    fn open(&self) {
        self.closed.store(false, Ordering::SeqCst);
        self.wake();
    }
}

/// The gate while it is closed and nothing runs. Opens it when dropped, or leaves it closed to who waits for that.
struct Closed<'a> {
    gate: &'a QuiesceGate,
    turn: MutexGuard<'a, ClosingState>,
    pause: Pause,
    /// When this one's part of the pause began.
    began: Instant,
    /// Who loads, if it waited for its turn.
    client: Option<ThreadId>,
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        let now = Instant::now();
        if let Some(client) = self.client {
            let kept = self.gate.has_kept(self.began);
            self.turn.budget.spend(client, kept, now);
        }
        if self.pause.disturbs {
            self.gate.expect_load();
        }
        let waits = self.gate.waiting.load(Ordering::SeqCst) > 0;
        let closed = now.saturating_duration_since(self.pause.since);
        if waits && closed < MOST_CLOSED && !self.gate.anything_runs() {
            self.turn.closed = Some(self.pause);
            return;
        }
        self.turn.release_held();
        self.gate.open();
    }
}

#[cfg(test)]
mod tests;
