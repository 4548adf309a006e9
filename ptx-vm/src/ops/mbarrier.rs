//! The `mbarrier` object: a barrier in shared memory that counts arrivals, and bytes that asynchronous
//! copies still bring (PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier").
//!
//! Chosen by `lower::mbarrier`; `ops::bulk` tells of bytes here. Must not know who waits: waiting is a loop of the
//! program's own.
//!
//! It is a word of 64 bits, and what an instruction does to it is one atomic operation:
//!
//! ```text
//!  0 arrivals that are pending [20]     20 arrivals that a phase expects [20]
//! 40 bytes that are pending [21, signed]                63 parity of the phase [1]
//! ```
//!
//! The state that `mbarrier.arrive` returns is the word before the arrival.

use super::atomic::{Atomic, run};
use crate::access::Cell;
use crate::machine::OpFn;

/// Bits of a count of arrivals.
const ARRIVALS: u32 = 20;
/// Where the expected arrivals stand.
const EXPECTED: u32 = 20;
/// Where the bytes stand, and bits of them.
const BYTES: u32 = 40;
const BYTES_BITS: u32 = 21;
/// The bit of the parity of the phase.
pub(crate) const PARITY: u32 = 63;

const fn mask(bits: u32) -> u64 {
    (1 << bits) - 1
}

/// The pending arrivals of a state: its lowest bits.
pub(crate) const PENDING: u64 = mask(ARRIVALS);

/// A barrier's word, taken apart. Counts that run over their bits are the kernel's mistake, and undefined.
#[derive(Clone, Copy)]
struct Phase {
    pending: u64,
    expected: u64,
    bytes: u64,
    parity: u64,
}

impl Phase {
    fn of(word: u64) -> Self {
        Self {
            pending: word & mask(ARRIVALS),
            expected: word >> EXPECTED & mask(ARRIVALS),
            bytes: word >> BYTES & mask(BYTES_BITS),
            parity: word >> PARITY,
        }
    }

    /// The word, after the phase's end if nothing is pending.
    fn word(self) -> u64 {
        let Self {
            pending,
            expected,
            bytes,
            parity,
        } = self;
        let (pending, expected) = (pending & mask(ARRIVALS), expected & mask(ARRIVALS));
        let bytes = bytes & mask(BYTES_BITS);
        let (pending, parity) = if pending == 0 && bytes == 0 {
            (expected, parity ^ 1)
        } else {
            (pending, parity)
        };
        pending | expected << EXPECTED | bytes << BYTES | parity << PARITY
    }

    fn expect(self, bytes: u64) -> Self {
        Self {
            bytes: self.bytes.wrapping_add(bytes),
            ..self
        }
    }

    fn arrive(self, count: u64) -> Self {
        Self {
            pending: self.pending.wrapping_sub(count),
            ..self
        }
    }
}

macro_rules! operation {
    ($name:ident: $what:literal, |$phase:ident, $b:ident, $c:ident| $e:expr) => {
        #[doc = $what]
        pub(crate) fn $name() -> OpFn {
            struct Operation;
            impl Atomic for Operation {
                type Value = u64;

                fn apply(old: u64, $b: u64, $c: u64) -> u64 {
                    let $phase = Phase::of(old);
                    Phase::word($e)
                }
            }
            run::<Operation>
        }
    };
}

operation!(arrive: "So many arrivals, after so many more bytes are expected.",
    |phase, count, bytes| phase.expect(bytes).arrive(count));
operation!(drop: "The same, by threads that no later phase expects.",
    |phase, count, bytes| Phase { expected: phase.expected.wrapping_sub(count), ..phase.expect(bytes).arrive(count) });
operation!(expect: "So many more bytes are expected.", |phase, bytes, _none| phase.expect(bytes));
operation!(complete: "So many bytes have come.", |phase, bytes, _none| phase.expect(bytes.wrapping_neg()));

/// The word of a barrier that expects so many arrivals in each phase.
pub(crate) fn initial(count: u64) -> u64 {
    count | count << EXPECTED
}

/// So many bytes have come to the barrier at a host address.
///
/// # Safety
/// The contract of [`crate::access`] for 8 bytes at `host`, for writing.
pub(crate) unsafe fn bytes_came(host: u64, bytes: u64) {
    // SAFETY: the caller keeps the contract of `access` for the 8 bytes at `host`.
    unsafe {
        u64::update(host, |word| {
            Some(Phase::of(word).expect(bytes.wrapping_neg()).word())
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phase_ends_when_all_have_arrived_and_all_bytes_have_come() {
        let word = |phase: Phase| phase.word();
        let start = initial(2);
        let one = word(Phase::of(start).expect(64).arrive(1));
        assert_eq!((one & PENDING, one >> PARITY), (1, 0));
        let both = word(Phase::of(one).arrive(1));
        assert_eq!(
            (both & PENDING, both >> PARITY),
            (0, 0),
            "bytes are to come"
        );
        let half = word(Phase::of(both).expect(32u64.wrapping_neg()));
        assert_eq!(half >> PARITY, 0);
        let next = word(Phase::of(half).expect(32u64.wrapping_neg()));
        assert_eq!(next, start | 1 << PARITY);
    }

    #[test]
    fn bytes_may_come_before_they_are_expected() {
        let early = Phase::of(initial(1)).expect(16u64.wrapping_neg()).word();
        assert_eq!((early & PENDING, early >> PARITY), (1, 0));
        let next = Phase::of(early).expect(16).arrive(1).word();
        assert_eq!(next, initial(1) | 1 << PARITY);
    }
}
