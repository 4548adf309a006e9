//! A set of lanes of a lane group.
//!
//! Called by all that runs lanes. Must not know what a lane does.

use super::limits::MAX_GROUP_LANES;

/// Lanes of a warp.
pub(crate) const WARP: u32 = 32;
/// Words of 64 lanes.
pub(crate) const WORDS: usize = MAX_GROUP_LANES / 64;

/// A set of lanes of a lane group, as bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mask(pub(crate) [u64; WORDS]);

impl Mask {
    /// The lanes `0..n`.
    pub(crate) fn first(n: usize) -> Self {
        let mut mask = Self::default();
        for (index, word) in mask.0.iter_mut().enumerate() {
            let bits = n.saturating_sub(index * 64).min(64);
            *word = if bits == 64 {
                u64::MAX
            } else {
                (1 << bits) - 1
            };
        }
        mask
    }

    /// One lane.
    pub(crate) fn lane(lane: usize) -> Self {
        let mut mask = Self::default();
        mask.0[lane / 64] = 1 << (lane % 64);
        mask
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.iter().all(|&word| word == 0)
    }

    pub(crate) fn count(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    pub(crate) fn has(&self, lane: usize) -> bool {
        self.0[lane / 64] >> (lane % 64) & 1 != 0
    }

    pub(crate) fn and(self, other: Self) -> Self {
        self.zip(other, |a, b| a & b)
    }

    pub(crate) fn and_not(self, other: Self) -> Self {
        self.zip(other, |a, b| a & !b)
    }

    pub(crate) fn or(self, other: Self) -> Self {
        self.zip(other, |a, b| a | b)
    }

    fn zip(mut self, other: Self, f: impl Fn(u64, u64) -> u64) -> Self {
        for (a, b) in self.0.iter_mut().zip(other.0) {
            *a = f(*a, b);
        }
        self
    }

    /// The 32 lanes of one warp.
    pub(crate) fn warp(&self, warp: usize) -> u32 {
        (self.0[warp / 2] >> (warp % 2 * 32)) as u32
    }

    /// Sets the 32 lanes of one warp.
    pub(crate) fn set_warp(&mut self, warp: usize, lanes: u32) {
        let shift = warp % 2 * 32;
        let word = &mut self.0[warp / 2];
        *word = *word & !(0xffff_ffff << shift) | u64::from(lanes) << shift;
    }

    /// The 16 lanes of one strip.
    #[inline(always)]
    pub(crate) fn strip(&self, strip: usize) -> u16 {
        (self.0[strip / 4] >> (strip % 4 * 16)) as u16
    }

    /// Sets the 16 lanes of one strip, which are still clear.
    #[inline(always)]
    pub(crate) fn add_strip(&mut self, strip: usize, lanes: u16) {
        self.0[strip / 4] |= u64::from(lanes) << (strip % 4 * 16);
    }

    /// The lowest lane.
    pub(crate) fn lowest(&self) -> Option<usize> {
        self.0
            .iter()
            .enumerate()
            .find(|(_, word)| **word != 0)
            .map(|(index, word)| index * 64 + word.trailing_zeros() as usize)
    }

    /// The first strip with a lane, and the one after the last; `0..0` for no lanes.
    pub(crate) fn strips(&self) -> (usize, usize) {
        let Some(low) = self.lowest() else {
            return (0, 0);
        };
        let high = self
            .0
            .iter()
            .enumerate()
            .rfind(|(_, word)| **word != 0)
            .map_or(0, |(index, word)| {
                index * 64 + 63 - word.leading_zeros() as usize
            });
        (low / 16, high / 16 + 1)
    }

    /// Its lanes, ascending.
    pub(crate) fn lanes(self) -> impl Iterator<Item = usize> {
        self.0
            .into_iter()
            .enumerate()
            .flat_map(|(index, word)| Bits(word).map(move |bit| index * 64 + bit))
    }
}

/// The set bits of a word, ascending.
struct Bits(u64);

impl Iterator for Bits {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        if self.0 == 0 {
            return None;
        }
        let bit = self.0.trailing_zeros() as usize;
        self.0 &= self.0 - 1;
        Some(bit)
    }
}
