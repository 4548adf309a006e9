//! What waits for an idle device to be given back, in the order in which it came.
//!
//! Called by the gate, which knows when the device is idle. Must not know what is given back.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// While so many things, or bytes of memory in them, are kept for an idle device, who makes more of their kind waits first.
pub(super) const MOST_THINGS: usize = 64;
const MOST_BYTES: u64 = 256 << 20;

/// What makes the calls that give something back.
type Call = Box<dyn FnOnce() + Send>;

/// What was retired.
#[derive(Default)]
pub(super) struct Retired(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    /// Each with the bytes of memory that it gives back.
    calls: VecDeque<(u64, Call)>,
    /// Bytes of all.
    bytes: u64,
    /// Calls that were made.
    made: usize,
}

impl Retired {
    pub(super) fn add(&self, bytes: u64, call: Call) {
        let mut waiting = self.0.lock();
        waiting.calls.push_back((bytes, call));
        waiting.bytes = waiting.bytes.saturating_add(bytes);
    }

    pub(super) fn count(&self) -> usize {
        self.0.lock().calls.len()
    }

    /// How many calls will have been made when what is retired by now is given back.
    pub(super) fn all_by_now(&self) -> usize {
        let waiting = self.0.lock();
        waiting.made + waiting.calls.len()
    }

    /// Whether so many calls were made.
    pub(super) fn has_made(&self, calls: usize) -> bool {
        self.0.lock().made >= calls
    }

    /// Whether so much is kept that more is not to be made.
    pub(super) fn is_full(&self) -> bool {
        let waiting = self.0.lock();
        waiting.calls.len() > MOST_THINGS || waiting.bytes > MOST_BYTES
    }

    /// Does what was retired by now, or as much of it as takes so long: a client that ends may leave very much at once.
    pub(super) fn run(&self, most: Duration) {
        let until = Instant::now() + most;
        for _ in 0..self.count() {
            let Some(call) = self.take() else { return };
            call();
            self.0.lock().made += 1;
            if Instant::now() >= until {
                return;
            }
        }
    }

    fn take(&self) -> Option<Call> {
        let mut waiting = self.0.lock();
        let (bytes, call) = waiting.calls.pop_front()?;
        waiting.bytes = waiting.bytes.saturating_sub(bytes);
        Some(call)
    }
}
