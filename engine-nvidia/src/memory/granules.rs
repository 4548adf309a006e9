//! Which granules of a window a client has.
//!
//! Owns one bit for each granule. Called by the windows of device and of host memory. Must not know what backs a
//! granule.

use engine::Window;
use engine::arena::GRANULE;

/// A bit for each granule of a window, kept up to the last one that was ever set.
#[derive(Debug)]
pub(crate) struct Granules {
    base: u64,
    bits: Vec<u64>,
    /// How many are had.
    count: u64,
}

impl Granules {
    pub(crate) fn new(base: u64) -> Self {
        Self {
            base,
            bits: Vec::new(),
            count: 0,
        }
    }

    /// Bytes that are had.
    pub(crate) fn bytes(&self) -> u64 {
        self.count * GRANULE
    }

    /// Whether all of a range that lies in the window is had.
    pub(crate) fn has_all(&self, range: Window) -> bool {
        self.masks(range)
            .all(|(index, mask)| self.bits.get(index).is_some_and(|bits| bits & mask == mask))
    }

    /// Whether anything of a range that lies in the window is had.
    pub(crate) fn has_any(&self, range: Window) -> bool {
        self.masks(range)
            .any(|(index, mask)| self.bits.get(index).is_some_and(|bits| bits & mask != 0))
    }

    /// Notes that a range of granules is had, or is not.
    pub(crate) fn set(&mut self, range: Window, had: bool) {
        for (index, mask) in self.masks(range) {
            if had {
                if self.bits.len() <= index {
                    self.bits.resize(index + 1, 0);
                }
                self.count += u64::from((mask & !self.bits[index]).count_ones());
                self.bits[index] |= mask;
            } else if let Some(bits) = self.bits.get_mut(index) {
                self.count -= u64::from((mask & *bits).count_ones());
                *bits &= !mask;
            }
        }
    }

    /// Those that are had, in pieces that end where one is not had, in order.
    pub(crate) fn runs(&self) -> Vec<Window> {
        let mut runs: Vec<Window> = Vec::new();
        let had = |index: u64| {
            let word = self.bits.get((index / 64) as usize);
            word.is_some_and(|bits| bits >> (index % 64) & 1 != 0)
        };
        let mut index = 0;
        while index < 64 * self.bits.len() as u64 {
            if index.is_multiple_of(64) && self.bits[(index / 64) as usize] == 0 {
                index += 64;
                continue;
            }
            let base = self.base + index * GRANULE;
            if had(index) {
                match runs.last_mut() {
                    Some(last) if last.base + last.bytes == base => last.bytes += GRANULE,
                    _ => runs.push(Window {
                        base,
                        bytes: GRANULE,
                    }),
                }
            }
            index += 1;
        }
        runs
    }

    /// The words and the bits in them that stand for a range.
    fn masks(&self, range: Window) -> impl Iterator<Item = (usize, u64)> + use<> {
        let first = (range.base - self.base) / GRANULE;
        let end = (range.base - self.base + range.bytes).div_ceil(GRANULE);
        (first / 64..end.div_ceil(64)).map(move |word| {
            let low = first.max(word * 64) - word * 64;
            let high = end.min(word * 64 + 64) - word * 64;
            let upto = if high == 64 {
                u64::MAX
            } else {
                (1 << high) - 1
            };
            (word as usize, upto & (u64::MAX << low))
        })
    }
}

/// Whether a range is one of whole granules that does not wrap round.
pub(crate) fn is_granular(range: Window) -> bool {
    range.base.is_multiple_of(GRANULE)
        && range.bytes.is_multiple_of(GRANULE)
        && range.base.checked_add(range.bytes).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_kept_to_the_granule() {
        let base = 0x1100_0000_0000;
        let range = |from: u64, to: u64| Window {
            base: base + from,
            bytes: to - from,
        };
        let mut granules = Granules::new(base);
        assert!(!granules.has_any(range(0, 1 << 30)));
        granules.set(range(GRANULE, 200 * GRANULE), true);
        assert!(granules.has_all(range(GRANULE, 200 * GRANULE)));
        assert!(granules.has_all(range(GRANULE + 5, GRANULE + 6)));
        assert!(!granules.has_all(range(GRANULE - 1, GRANULE + 1)));
        assert!(!granules.has_all(range(199 * GRANULE, 200 * GRANULE + 1)));
        granules.set(range(64 * GRANULE, 128 * GRANULE), false);
        assert!(!granules.has_any(range(64 * GRANULE, 128 * GRANULE)));
        assert!(granules.has_any(range(63 * GRANULE, 65 * GRANULE)));
        assert!(granules.has_all(range(128 * GRANULE, 129 * GRANULE)));
        assert!(!granules.has_any(range(200 * GRANULE, 100_000 * GRANULE)));
        assert_eq!(granules.bytes(), (199 - 64) * GRANULE);
        let runs = [
            range(GRANULE, 64 * GRANULE),
            range(128 * GRANULE, 200 * GRANULE),
        ];
        assert_eq!(granules.runs(), runs);
        granules.set(range(0, 66 * GRANULE), true);
        assert_eq!(granules.bytes(), (200 - 62) * GRANULE);
    }
}
