//! Sets of registers or blocks, as bits.
//!
//! Used by the analyses and by `emit`. Knows bits, not what they number.

/// Which of the numbers below a bound are in it, one bit each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct BitSet(Vec<u64>);

impl BitSet {
    pub(crate) fn new(len: usize) -> Self {
        Self(vec![0; len.div_ceil(64)])
    }

    /// Makes room for numbers below a higher bound.
    pub(super) fn grow(&mut self, len: usize) {
        let words = len.div_ceil(64).max(self.0.len());
        self.0.resize(words, 0);
    }

    pub(crate) fn insert(&mut self, index: u32) -> bool {
        let word = &mut self.0[index as usize / 64];
        let new = *word >> (index % 64) & 1 == 0;
        *word |= 1 << (index % 64);
        new
    }

    pub(crate) fn remove(&mut self, index: u32) {
        self.0[index as usize / 64] &= !(1 << (index % 64));
    }

    pub(crate) fn has(&self, index: u32) -> bool {
        self.0[index as usize / 64] >> (index % 64) & 1 != 0
    }

    pub(super) fn add(&mut self, other: &Self) {
        for (a, b) in self.0.iter_mut().zip(&other.0) {
            *a |= b;
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let words = self.0.iter().enumerate().filter(|(_, word)| **word != 0);
        words.flat_map(|(index, &word)| {
            let mut left = word;
            std::iter::from_fn(move || {
                let bit = left.trailing_zeros();
                left &= left.wrapping_sub(1);
                (bit < 64).then_some(index as u32 * 64 + bit)
            })
        })
    }

    pub(super) fn count(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }
}
