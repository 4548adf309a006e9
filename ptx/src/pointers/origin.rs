//! What a value may be made of, as bits.
//!
//! Called by `flow`. Must not know where values come from.

/// Bit of an origin: something from memory, or of another function, or that is not known.
pub(super) const FOREIGN: usize = 0;
/// Bit of an origin: an address of memory that the thread, its block or its cluster has to itself.
pub(super) const OWN: usize = 1;
/// Bit of an origin: an address of the kernel's parameters.
pub(super) const PARAMETERS: usize = 2;
/// Bit of an origin: an address of a variable of the module.
pub(super) const VARIABLE: usize = 3;
/// Bit of an origin: something may have been taken off.
pub(super) const LOWERED: usize = 4;
/// The first of the bits that stand for bytes of the parameters: one for each four.
pub(super) const FIRST: usize = 5;
/// Bytes of parameters that one bit stands for.
pub(super) const BYTES: u64 = 4;

/// Where in the parameters pointers of 8 bytes may stand of which an address with this origin is made.
pub(super) fn offsets(origin: &[u64]) -> Vec<u32> {
    let last = (origin.len() * 64 - FIRST) as u64 * BYTES;
    let is_there = |start: &u64| {
        (start / BYTES..=(start + 7) / BYTES).all(|bit| is_set(origin, FIRST + bit as usize))
    };
    let starts = 0..=last.saturating_sub(8);
    starts.filter(is_there).map(|start| start as u32).collect()
}

pub(super) fn is_set(origin: &[u64], bit: usize) -> bool {
    origin
        .get(bit / 64)
        .is_some_and(|word| word >> (bit % 64) & 1 != 0)
}

pub(super) fn set(origin: &mut [u64], bit: usize) {
    if let Some(word) = origin.get_mut(bit / 64) {
        *word |= 1 << (bit % 64);
    }
}

pub(super) fn merge(origin: &mut [u64], other: &[u64]) {
    for (word, &more) in origin.iter_mut().zip(other) {
        *word |= more;
    }
}
