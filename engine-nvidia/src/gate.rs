//! The gate of a device, which all operations of streams pass on their way to the driver.
//!
//! Some calls of the driver wait for every kernel that the context has running, whosever it is, and hold
//! the context's lock meanwhile, so that nobody could launch anything: loading and unloading modules,
//! unpinning host memory, destroying arrays (`benches/gpu/driver_calls.cu` finds out which). They are made
//! only while the gate is closed and nothing runs. What is to be loaded waits for that; what is to be
//! given back is [retired](Gate::retire) until the device has nothing to do.
//!
//! A closed gate keeps others' operations in their streams. It is closed for a short time at first, and
//! then open for nine times as long: a kernel that runs long holds up who loads, and nobody else.
//!
//! A kernel of a client that has gone may never end, and the driver cannot end it. After a [grace](GRACE)
//! the device counts as [stuck](Gate::is_stuck): what would wait for it fails at once, until it ends.
//!
//! Must not know what is loaded or retired.

use std::fmt::{Debug, Formatter};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

use cuda_abi::CUresult;

use crate::poller::Waker;
use crate::sync::lock;

/// How long the gate is closed at first for what runs to finish, and at most.
const FIRST_PATIENCE: Duration = Duration::from_millis(5);
const MOST_PATIENCE: Duration = Duration::from_secs(1);
/// How much longer it is open than it was closed, before it is closed again.
const OPEN: u32 = 9;
/// Time between two looks at what runs.
const LOOK: Duration = Duration::from_micros(20);
/// While so many retired things, or bytes of memory in them, are kept for an idle device, who makes more of
/// their kind waits first.
const MOST_RETIRED: usize = 64;
const MOST_RETIRED_BYTES: u64 = 256 << 20;

/// How long what a client that has gone had running may take to its end, unless something else is set.
const GRACE: Duration = Duration::from_secs(30);

/// Operations of one client that the driver has and that are not known to be done. Apart from others' in
/// memory, since every launch counts.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Running {
    operations: AtomicUsize,
    /// Since when the client is gone.
    gone: OnceLock<Instant>,
}

/// What waits for an idle device.
#[derive(Default)]
struct Retired {
    calls: Vec<Box<dyn FnOnce() + Send>>,
    /// Bytes of memory that the calls give back.
    bytes: u64,
}

/// A device's gate.
pub(crate) struct Gate {
    closed: AtomicBool,
    clients: Mutex<Vec<Weak<Running>>>,
    /// Held by who closes the gate.
    turn: Mutex<()>,
    retired: Mutex<Retired>,
    /// Is told that the gate is open again.
    waker: OnceLock<Arc<Waker>>,
    /// Milliseconds.
    grace: AtomicU64,
}

impl Default for Gate {
    fn default() -> Self {
        let gate = Self {
            closed: AtomicBool::default(),
            clients: Mutex::default(),
            turn: Mutex::default(),
            retired: Mutex::default(),
            waker: OnceLock::new(),
            grace: AtomicU64::default(),
        };
        gate.set_grace(GRACE);
        gate
    }
}

impl Debug for Gate {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gate")
            .field("closed", &self.closed)
            .field("clients", &lock(&self.clients).len())
            .field("retired", &lock(&self.retired).calls.len())
            .finish_non_exhaustive()
    }
}

impl Gate {
    /// Who issues what waited while the gate was closed.
    pub(crate) fn set_waker(&self, waker: &Arc<Waker>) {
        // Nobody else sets it.
        let _ = self.waker.set(Arc::clone(waker));
    }

    /// The counter of one more client.
    pub(crate) fn join(&self) -> Arc<Running> {
        let running = Arc::new(Running::default());
        let mut clients = lock(&self.clients);
        clients.retain(|client| client.strong_count() > 0);
        clients.push(Arc::downgrade(&running));
        running
    }

    /// Lets one operation through, which [`Running::leave`] ends, unless the gate is closed.
    pub(crate) fn pass(&self, running: &Running) -> bool {
        // Pairs with `close`: either it sees the operation, or we see that the gate is closed.
        running.operations.fetch_add(1, Ordering::SeqCst);
        if self.closed.load(Ordering::SeqCst) {
            running.leave();
            return false;
        }
        true
    }

    /// Sets how long what a client that has gone had running may take to its end.
    pub(crate) fn set_grace(&self, grace: Duration) {
        let milliseconds = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        self.grace.store(milliseconds, Ordering::Relaxed);
    }

    /// Whether something runs of a client that has been gone for longer than the grace.
    pub(crate) fn is_stuck(&self) -> bool {
        let grace = Duration::from_millis(self.grace.load(Ordering::Relaxed));
        let clients = lock(&self.clients);
        let mut running = clients.iter().filter_map(Weak::upgrade);
        running.any(|client| {
            let gone = client.gone.get();
            gone.is_some_and(|since| since.elapsed() >= grace) && client.runs()
        })
    }

    /// Makes a call while no operation of any client runs. Waits for those that do, as the module says,
    /// or until `dead` says that the device is.
    ///
    /// # Errors
    /// CUDA_ERROR_DEVICE_UNAVAILABLE while the device is [stuck](Gate::is_stuck): as the CUDA manual has
    /// it, kernels that run long keep new work from making progress.
    pub(crate) fn alone<T>(
        &self,
        dead: impl Fn() -> bool,
        call: impl FnOnce() -> T,
    ) -> Result<T, CUresult> {
        let turn = lock(&self.turn);
        let mut patience = FIRST_PATIENCE;
        let closed = loop {
            if self.is_stuck() && !dead() {
                return Err(CUresult::ERROR_DEVICE_UNAVAILABLE);
            }
            let closed = self.close();
            let until = Instant::now() + patience;
            while self.runs() && Instant::now() < until && !dead() {
                // Of a client whose own thread looks for completions, and is held up, the poller hears.
                self.wake();
                std::thread::sleep(LOOK);
            }
            if !self.runs() || dead() {
                break closed;
            }
            drop(closed);
            let until = Instant::now() + patience * OPEN;
            while let Some(left) = until.checked_duration_since(Instant::now())
                && !self.is_stuck()
                && !dead()
            {
                std::thread::sleep(left.min(MOST_PATIENCE));
            }
            patience = (patience * 2).min(MOST_PATIENCE);
        };
        // First, because the call may need the memory.
        self.give_back();
        let result = call();
        drop(closed);
        drop(turn);
        Ok(result)
    }

    /// Has so many bytes of memory given back when no operation of any client runs. Does not wait: who
    /// gives back may be ending, or has work of his own to see to.
    pub(crate) fn retire(&self, bytes: u64, call: impl FnOnce() + Send + 'static) {
        let mut retired = lock(&self.retired);
        retired.calls.push(Box::new(call));
        retired.bytes = retired.bytes.saturating_add(bytes);
        drop(retired);
        self.wake();
    }

    /// Waits while much is retired: before anything is made that will be, so that what waits for an idle
    /// device has a bound.
    ///
    /// # Errors
    /// As [`Gate::alone`], if there is much.
    pub(crate) fn make_room(&self, dead: impl Fn() -> bool) -> Result<(), CUresult> {
        let full = {
            let retired = lock(&self.retired);
            retired.calls.len() > MOST_RETIRED || retired.bytes > MOST_RETIRED_BYTES
        };
        if full {
            self.alone(dead, || ())?;
        }
        Ok(())
    }

    fn wake(&self) {
        if let Some(waker) = self.waker.get() {
            waker.wake();
        }
    }

    /// Does what was retired, if nothing runs. Does not wait. Whether nothing is left.
    pub(crate) fn sweep(&self) -> bool {
        if lock(&self.retired).calls.is_empty() {
            return true;
        }
        let Ok(_turn) = self.turn.try_lock() else {
            return false;
        };
        let _closed = self.close();
        let idle = !self.runs();
        if idle {
            self.give_back();
        }
        idle
    }

    fn give_back(&self) {
        let retired = std::mem::take(&mut *lock(&self.retired));
        for call in retired.calls {
            call();
        }
    }

    fn runs(&self) -> bool {
        let clients = lock(&self.clients);
        let mut running = clients.iter().filter_map(Weak::upgrade);
        running.any(|client| client.runs())
    }

    fn close(&self) -> Closed<'_> {
        self.closed.store(true, Ordering::SeqCst);
        Closed(self)
    }
}

/// Opens the gate when dropped.
struct Closed<'a>(&'a Gate);

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        self.0.closed.store(false, Ordering::SeqCst);
        self.0.wake();
    }
}

impl Running {
    /// An operation that was let through is done.
    pub(crate) fn leave(&self) {
        self.operations.fetch_sub(1, Ordering::SeqCst);
    }

    /// The client has gone: what runs is all that there will be.
    pub(crate) fn go(&self) {
        // Only the first time counts.
        let _ = self.gone.set(Instant::now());
    }

    fn runs(&self) -> bool {
        self.operations.load(Ordering::SeqCst) != 0
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    const NEVER: fn() -> bool = || false;

    #[test]
    fn who_is_alone_waits_for_what_runs_and_lets_nothing_through() {
        let gate = Arc::new(Gate::default());
        let running = gate.join();
        assert!(gate.pass(&running));
        let (tell, told) = mpsc::channel();
        let alone = std::thread::spawn({
            let (gate, running) = (Arc::clone(&gate), Arc::clone(&running));
            move || {
                let call = || {
                    assert!(!gate.pass(&running), "let through a closed gate");
                    tell.send(()).unwrap();
                };
                gate.alone(NEVER, call).unwrap();
            }
        });
        // Others are let through again and again while it waits for an operation that runs long.
        while !gate.closed.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        let other = gate.join();
        while !gate.pass(&other) {
            std::thread::yield_now();
        }
        other.leave();
        assert!(told.try_recv().is_err(), "alone beside what runs");
        running.leave();
        alone.join().unwrap();
        told.try_recv().unwrap();
        assert!(gate.pass(&running), "the gate stayed closed");
    }

    #[test]
    fn a_dead_device_is_not_waited_for() {
        let gate = Gate::default();
        let running = gate.join();
        assert!(gate.pass(&running));
        assert_eq!(gate.alone(|| true, || 7), Ok(7));
    }

    #[test]
    fn what_is_retired_waits_for_an_idle_device() {
        let gate = Gate::default();
        let running = gate.join();
        let (tell, told) = mpsc::channel();
        assert!(gate.pass(&running));
        gate.retire(1, move || tell.send(()).unwrap());
        gate.sweep();
        assert!(told.try_recv().is_err(), "given back beside what runs");
        running.leave();
        gate.sweep();
        told.try_recv().unwrap();
        assert!(lock(&gate.retired).calls.is_empty());
    }

    #[test]
    fn what_was_retired_is_given_back_before_more_is_taken() {
        let gate = Gate::default();
        let (tell, told) = mpsc::channel();
        gate.retire(1, move || tell.send(()).unwrap());
        assert_eq!(gate.alone(NEVER, || told.try_recv()), Ok(Ok(())));
    }

    #[test]
    fn who_makes_more_waits_while_much_is_retired_and_who_retires_never() {
        let gate = Arc::new(Gate::default());
        let running = gate.join();
        let given_back = Arc::new(AtomicUsize::new(0));
        assert!(gate.pass(&running));
        for count in 0..=MOST_RETIRED {
            assert_eq!(given_back.load(Ordering::SeqCst), 0, "after {count}");
            gate.make_room(NEVER).unwrap();
            let given_back = Arc::clone(&given_back);
            gate.retire(0, move || {
                given_back.fetch_add(1, Ordering::SeqCst);
            });
        }
        let (tell, told) = mpsc::channel();
        let making = std::thread::spawn({
            let gate = Arc::clone(&gate);
            move || {
                gate.make_room(NEVER).unwrap();
                tell.send(()).unwrap();
            }
        });
        while !gate.closed.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        assert!(told.try_recv().is_err(), "more was made");
        running.leave();
        making.join().unwrap();
        assert_eq!(given_back.load(Ordering::SeqCst), MOST_RETIRED + 1);
    }

    #[test]
    fn a_client_that_has_gone_runs_nothing() {
        let gate = Gate::default();
        let running = gate.join();
        assert!(gate.pass(&running));
        drop(running);
        gate.alone(NEVER, || ()).unwrap();
    }

    #[test]
    fn what_a_client_left_that_does_not_end_is_given_up_after_a_while() {
        let gate = Arc::new(Gate::default());
        let (live, gone) = (gate.join(), gate.join());
        assert!(gate.pass(&live) && gate.pass(&gone));
        gate.set_grace(Duration::ZERO);
        assert!(!gate.is_stuck(), "both are there");
        gate.set_grace(GRACE);
        gone.go();
        let waiting = std::thread::spawn({
            let gate = Arc::clone(&gate);
            move || gate.alone(NEVER, || ())
        });
        while !gate.closed.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        gate.set_grace(Duration::ZERO);
        let unavailable = Err(CUresult::ERROR_DEVICE_UNAVAILABLE);
        assert_eq!(waiting.join().unwrap(), unavailable);
        assert_eq!(gate.alone(NEVER, || ()), unavailable);
        assert_eq!(gate.make_room(NEVER), Ok(()), "there is room");
        assert_eq!(
            gate.alone(|| true, || ()),
            Ok(()),
            "a dead device runs nothing"
        );
        gone.leave();
        live.leave();
        assert_eq!(gate.alone(NEVER, || ()), Ok(()));
    }
}
