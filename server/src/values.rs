//! Streams that wait until a value in memory is as they want it.
//!
//! Memory does not say when it changes, so the session looks at it, again and again with a pause
//! between, but only when the stream has done everything before the wait. The wait itself is a gate
//! of the stream (`order`), which is released here.

use std::collections::HashMap;

use cuda_abi::CUresult;
use cuda_abi::operations::{At, STREAM_SLOTS, ValueWait};
use engine::Client;

use crate::observer::Shared;
use crate::progress::gate;

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

/// A client's waits for values.
#[derive(Debug, Default)]
pub struct Values {
    waits: HashMap<At, ValueWait>,
    /// Waits that could not be, and why; taken when their turn comes.
    failed: HashMap<At, CUresult>,
    /// Whether a wait's turn has come and its value has not.
    asked: bool,
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

impl Values {
    /// Notes a wait whose record is held in its stream, so that there are no more than those: whoever
    /// is past its place was taken out by [`Values::pass`].
    pub fn add(&mut self, at: At, wait: ValueWait) {
        self.waits.insert(at, wait);
    }

    /// Whether some wait's turn has come, so that memory is to be looked at again soon.
    #[must_use]
    pub const fn are_asked(&self) -> bool {
        self.asked
    }

    /// Looks at the values of all waits whose turn has come. Says whether a stream goes on.
    pub fn poll(&mut self, client: &mut dyn Client, shared: &Shared) -> bool {
        let mut released = false;
        self.asked = false;
        let (asked, failed) = (&mut self.asked, &mut self.failed);
        self.waits.retain(|at, wait| {
            // Asks to be woken when its turn comes, unless it has.
            if at.stream >= STREAM_SLOTS || !shared.progress.want(at.stream, at.sequence - 1) {
                return true;
            }
            let dead = shared.is_dead(shared.progress.context(at.stream));
            let looked = client.peek(wait.address, wait.bytes);
            match looked.map(|value| holds(wait, value)) {
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
            let _ = shared.progress.complete(gate(at.stream), at.sequence);
            shared.progress.set_due();
            released = true;
            false
        });
        released
    }

    /// Forgets a wait whose turn is over: its value came, or the client released the gate itself.
    ///
    /// # Errors
    /// Why the wait could not be, if so.
    pub fn pass(&mut self, at: At) -> Result<(), CUresult> {
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
