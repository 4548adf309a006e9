//! Streams that wait until a value in memory is as they want it, or a semaphore of another interface.
//!
//! Memory does not say when it changes, so the session looks at it, again and again with a pause
//! between, but only when the stream has done everything before the wait. The wait itself is a host-function barrier
//! of the stream (`stream_scheduler`), which is released here.
//!
//! Called by the session's loop. Must not know what else the stream has to do.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use cuda_abi::CUresult;
use engine::{Client, Guilt, Observer};
use protocol::operations::{At, STREAM_SLOTS, SemaphoreWait, ValueWait};

use crate::session::observer::ClientObserver;
use crate::stream_scheduler::completion::host_barrier;

/// CUstreamWaitValue_flags: the value is as great or greater, counted in a circle.
const GREATER: u32 = 0;
/// The value is the same.
const EQUAL: u32 = 1;
/// A bit is set in both.
const AND: u32 = 2;
/// A bit is set in none of both.
const NOR: u32 = 3;
/// The bits that say how to compare; the other is about remote writes, of which there are none.
const COMPARISON: u32 = 0xff;

/// How long a session that reads no further, and has nothing under way, waits for a value.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a stream waits for.
#[derive(Clone, Copy, Debug)]
pub enum Wait {
    /// A value in memory.
    Value(ValueWait),
    /// A semaphore, which the engine waits for and says when that is over.
    Semaphore(SemaphoreWait),
}

/// A client's waits for values.
#[derive(Debug, Default)]
pub struct ValueWaits {
    waits: HashMap<At, Wait>,
    /// Waits that could not be, and why; taken when their turn comes.
    failed: HashMap<At, CUresult>,
    /// Whether a wait's turn has come and its value has not.
    asked: bool,
    /// Since when nothing but such waits keeps the session from reading further.
    stuck_since: Option<Instant>,
}

/// Whether a value is as a wait wants it.
fn holds(wait: &ValueWait, value: u64) -> Option<bool> {
    let narrow = wait.bytes == 4;
    let mask = if narrow {
        u64::from(u32::MAX)
    } else {
        u64::MAX
    };
    let (value, wanted) = (value & mask, wait.value & mask);
    Some(match wait.flags & COMPARISON {
        GREATER if narrow => (value as u32).wrapping_sub(wanted as u32).cast_signed() >= 0,
        GREATER => value.wrapping_sub(wanted).cast_signed() >= 0,
        EQUAL => value == wanted,
        AND => value & wanted != 0,
        NOR => !(value | wanted) & mask != 0,
        _ => return None,
    })
}

impl ValueWaits {
    /// Notes a wait whose record is held in its stream, so that there are no more than those: whoever
    /// is past its place was taken out by [`ValueWaits::finish`].
    pub fn add(&mut self, at: At, wait: Wait) {
        self.waits.insert(at, wait);
    }

    /// Whether some wait's turn has come, so that memory is to be looked at again soon.
    #[must_use]
    pub const fn has_active(&self) -> bool {
        self.asked
    }

    /// Ends the contexts of waits that is due, if nothing but these has kept the session from
    /// reading on for long: `stuck` says that it reads no further and that nothing is under way. A value
    /// that one of the records would write that are not read would never come. (Where a stream's places
    /// are taken, a native program would be held up in its call for ever.) A semaphore may be signalled by others at
    /// any time.
    pub fn time_out_if_stuck(&mut self, stuck: bool, observer: &ClientObserver) {
        if !stuck || !self.asked {
            self.stuck_since = None;
            return;
        }
        let now = Instant::now();
        if now - *self.stuck_since.get_or_insert(now) < PATIENCE {
            return;
        }
        self.stuck_since = None;
        let turn = |at: &At| observer.progress.completed(at.stream) + 1 >= at.sequence;
        let is_stuck = |(at, wait): &(&At, &Wait)| matches!(wait, Wait::Value(_)) && turn(at);
        for (at, _) in self.waits.iter().filter(is_stuck) {
            let text = format!(
                "a stream waited {} s for a value, while so much was posted behind such waits that no \
                 more is read: if a later operation was to write it, it would never have come",
                PATIENCE.as_secs()
            );
            let context = observer.progress.context(at.stream);
            let code = CUresult::ERROR_LAUNCH_TIMEOUT;
            observer.fault(context, code, Guilt::Guilty, &text);
        }
    }

    /// Looks at the values of all waits that is due. Says whether a stream goes on.
    pub fn poll(&mut self, client: &mut dyn Client, observer: &ClientObserver) -> bool {
        let mut released = false;
        self.asked = false;
        let (asked, failed) = (&mut self.asked, &mut self.failed);
        self.waits.retain(|at, wait| {
            // Asks to be woken when its turn comes, unless it has.
            if at.stream >= STREAM_SLOTS || !observer.progress.wake_when(at.stream, at.sequence - 1)
            {
                return true;
            }
            let dead = observer.is_dead(observer.progress.context(at.stream));
            let looked = match wait {
                Wait::Value(wait) => {
                    let looked = client.peek(wait.address, wait.bytes);
                    looked.map(|value| holds(wait, value))
                }
                Wait::Semaphore(wait) => client.semaphore_wait(*at, wait).map(|()| Some(true)),
            };
            match looked {
                // The engine may need more than one look.
                Ok(Some(false)) | Err(CUresult::ERROR_NOT_READY) if !dead => {
                    *asked = true;
                    return true;
                }
                Ok(Some(_)) => {}
                Ok(None) => {
                    failed.insert(*at, CUresult::ERROR_INVALID_VALUE);
                }
                Err(code) => {
                    failed.insert(*at, code);
                }
            }
            let _ = observer
                .progress
                .complete(host_barrier(at.stream), at.sequence);
            observer.progress.set_ready();
            released = true;
            false
        });
        if released {
            self.stuck_since = None;
        }
        released
    }

    /// Forgets a wait whose turn is over: its value came, or the client released the barrier itself.
    ///
    /// # Errors
    /// Why the wait could not be, if so.
    pub fn finish(&mut self, at: At) -> Result<(), CUresult> {
        self.waits.remove(&at);
        self.failed.remove(&at).map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_compare_as_the_flags_say() {
        let wait = |value, bytes, flags| ValueWait {
            address: 0,
            value,
            bytes,
            flags,
        };
        for (value, bytes, flags, is, expected) in [
            (5, 4, GREATER, 5, true),
            (5, 4, GREATER, 4, false),
            (5, 4, GREATER, 0xffff_ffff_8000_0005, false),
            (0xffff_fff0, 4, GREATER, 3, true),
            (5, 8, GREATER, 1 << 40, true),
            (5, 8, EQUAL, 1 << 32 | 5, false),
            (5, 4, EQUAL, 1 << 32 | 5, true),
            (6, 4, AND, 1, false),
            (6, 4, AND, 2, true),
            (0xffff_fffe, 4, NOR, 1, false),
            (0xffff_fffe, 4, NOR, 0, true),
            (0, 8, NOR, u64::MAX, false),
        ] {
            assert_eq!(
                holds(&wait(value, bytes, flags | 1 << 30), is),
                Some(expected),
                "{value:#x} {bytes} {flags} {is:#x}"
            );
        }
        assert_eq!(holds(&wait(0, 4, 9), 0), None);
    }
}
