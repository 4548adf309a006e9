//! The thread that sees completions: it reads the completion words of all clients' busy streams.
//!
//! A client whose own thread looks for completions is left to that thread, but for a look now and then.
//!
//! It spins while work is short, sleeps longer the longer nothing happens, and sleeps for good while
//! no client has work. Reading a word costs no call of the driver. Now and then, when nothing has moved
//! for a while, it asks the driver whether the devices are well: a dead one writes no words.
//!
//! Started by the engine, woken by streams. Must not know what the work is.

use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::device::Device;
use crate::device::waker::Waker;
use crate::submit::client_streams::{ClientStreams, Polled};
use crate::submit::completion_predictor::NEAR;

/// How long it spins after the last progress, where there are cores to spare.
const SPIN: Duration = Duration::from_micros(60);
/// Its shortest and its longest sleep while there is work, and what part of the time since the last
/// progress it sleeps: so much of a kernel's time may be lost before its end is seen.
const SHORTEST: Duration = Duration::from_micros(50);
const LONGEST: Duration = Duration::from_micros(500);
const PART: u32 = 32;
/// How long it sleeps shortly before work is expected to be over, when it sleeps no more, and how long it
/// sleeps at most while all work is expected to be over later.
const CLOSE: Duration = Duration::from_micros(20);
const AWAKE: Duration = Duration::from_micros(80);
const FAR: Duration = Duration::from_millis(2);
/// How often clients are looked after whose own threads look, while it is awake: one of these may be held up.
const LOOK_AFTER: Duration = Duration::from_micros(500);
/// How often the devices are asked while nothing moves.
const PROBE: Duration = Duration::from_millis(2);
/// Cores below which spinning would take the time of who posts the work.
const CORES_TO_SPIN: usize = 4;

#[derive(Debug)]
struct PollingState {
    waker: Arc<Waker>,
    devices: Vec<Arc<Device>>,
    clients: Mutex<Vec<Arc<ClientStreams>>>,
    stop: AtomicBool,
}

/// The polling thread and those it polls for.
#[derive(Debug)]
pub(crate) struct Poller {
    state: Arc<PollingState>,
    thread: Option<JoinHandle<()>>,
}

impl Poller {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub(crate) fn start(devices: Vec<Arc<Device>>) -> std::io::Result<Self> {
        let state = Arc::new(PollingState {
            waker: Arc::default(),
            devices,
            clients: Mutex::default(),
            stop: AtomicBool::new(false),
        });
        let thread = std::thread::Builder::new()
            .name("nvidia-poller".into())
            .spawn({
                let state = Arc::clone(&state);
                move || state.run()
            })?;
        state.waker.set_thread(thread.thread().clone());
        for device in &state.devices {
            device.gate().set_waker(&state.waker);
        }
        Ok(Self {
            state,
            thread: Some(thread),
        })
    }

    pub(crate) fn waker(&self) -> &Arc<Waker> {
        &self.state.waker
    }

    pub(crate) fn add(&self, client: Arc<ClientStreams>) {
        self.state.clients.lock().push(client);
    }

    /// All clients.
    pub(crate) fn clients(&self) -> Vec<Arc<ClientStreams>> {
        self.state.clients.lock().clone()
    }

    pub(crate) fn remove(&self, client: &Arc<ClientStreams>) {
        self.state
            .clients
            .lock()
            .retain(|other| !Arc::ptr_eq(other, client));
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        self.state.stop.store(true, Ordering::SeqCst);
        self.state.waker.wake();
        // The last who knew the engine may be a client's streams that only the thread still looks at; it ends by itself.
        let this = std::thread::current().id();
        if let Some(thread) = self
            .thread
            .take()
            .filter(|poller| poller.thread().id() != this)
        {
            let _ = thread.join();
        }
        for device in &self.state.devices {
            let gate = device.gate();
            while !gate.run_pending() && !gate.anything_runs() {}
        }
    }
}

/// How long to sleep after nothing has happened for `still`, if it is time to sleep. `left` is the time until
/// the first work is expected to be over, if there is any telling; `untold` says that there is other work too.
fn pause(still: Duration, left: Option<Duration>, untold: bool) -> Option<Duration> {
    let part = (still / PART).max(SHORTEST);
    let Some(left) = left else {
        return Some(part.min(LONGEST));
    };
    if left <= AWAKE {
        return None;
    }
    let (part, most) = if untold {
        (part, LONGEST)
    } else {
        // What is over sooner than expected may be seen so much later.
        (part.max(left / PART), FAR)
    };
    Some(part.min(most).min(left.saturating_sub(NEAR)).max(CLOSE))
}

impl PollingState {
    fn run(&self) {
        // The kernel rounds sleeps up by 50 µs unless told otherwise. If it refuses, ends are seen later.
        // SAFETY: changes a number of this very thread's.
        let _ = unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1 as libc::c_ulong) };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let spin = if cores < CORES_TO_SPIN {
            Duration::ZERO
        } else {
            SPIN
        };
        let mut clients: Vec<Arc<ClientStreams>> = Vec::new();
        let mut scratch = Vec::new();
        let mut seen = 0;
        let mut still_since = Instant::now();
        let mut next_probe = still_since + PROBE;
        let mut next_of_all = still_since;
        while !self.stop.load(Ordering::SeqCst) {
            let posts = self.waker.posts();
            clients.clone_from(&self.clients.lock());
            let (mut polled, mut busy) = (Polled::default(), false);
            let now = Instant::now();
            let all = now >= next_of_all;
            if all {
                next_of_all = now + LOOK_AFTER;
            }
            for client in &clients {
                if all || !client.is_polled_by_client() {
                    polled.add(client.poll(&mut scratch));
                    busy |= client.is_busy() && !client.is_polled_by_client();
                }
            }
            if polled.progress || posts != seen {
                seen = posts;
                still_since = now;
                next_probe = now + PROBE;
                continue;
            }
            if !busy {
                let swept = self
                    .devices
                    .iter()
                    .map(|device| device.gate().run_pending());
                // What attended clients have running keeps the rest from being given back.
                let again = swept.fold(false, |again, done| again | !done);
                self.tell_the_idle(&clients);
                clients.clear();
                self.waker.sleep(posts, again.then_some(LONGEST));
                continue;
            }
            if now >= next_probe {
                for device in &self.devices {
                    // What a device died of, it keeps.
                    let _ = device.probe();
                }
                self.tell_the_idle(&clients);
                next_probe = now + PROBE;
            }
            let still = now - still_since;
            let left = polled.due.map(|due| due.saturating_duration_since(now));
            match pause(still, left, polled.untold) {
                Some(pause) if still >= spin => self.waker.sleep(posts, Some(pause)),
                None if spin.is_zero() => self.waker.sleep(posts, Some(CLOSE)),
                _ => std::hint::spin_loop(),
            }
        }
    }

    /// Tells the clients without work of devices that have died. Those with work are told when they are
    /// polled.
    fn tell_the_idle(&self, clients: &[Arc<ClientStreams>]) {
        if self.devices.iter().any(|device| device.check().is_err()) {
            for client in clients.iter().filter(|client| !client.is_busy()) {
                client.report_faults(&[]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_expects_an_end_sleeps_until_shortly_before_it() {
        let (micros, millis) = (Duration::from_micros, Duration::from_millis);
        assert_eq!(pause(micros(100), None, true), Some(SHORTEST));
        assert_eq!(pause(millis(10), None, true), Some(millis(10) / PART));
        assert_eq!(pause(millis(1000), None, true), Some(LONGEST));
        let left = |left| pause(millis(10), Some(left), false);
        assert_eq!(left(millis(5)), Some(millis(10) / PART));
        assert_eq!(left(NEAR + micros(70)), Some(micros(70)));
        assert_eq!(left(NEAR), Some(CLOSE));
        assert_eq!(left(AWAKE), None);
        assert_eq!(left(Duration::ZERO), None);
        assert_eq!(pause(millis(1000), Some(millis(5)), false), Some(FAR));
        assert_eq!(pause(millis(1000), Some(millis(5)), true), Some(LONGEST));
        assert_eq!(
            pause(millis(1), Some(millis(20)), false),
            Some(millis(20) / PART)
        );
        assert_eq!(pause(millis(1), Some(millis(20)), true), Some(SHORTEST));
    }
}
