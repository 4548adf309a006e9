//! What the program has advised about its managed memory. It lies in the host window, where program
//! and devices reach the same pages, so advice and prefetching change nothing; they are remembered,
//! since the program may ask.
//!
//! Owns the advice by address. Knows not whether an address is managed memory.
//!
//! Called by `api::managed`, and by `api::memory` when memory is freed.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cuda_abi::types::{CU_MEM_LOCATION_TYPE_NONE, CUmemLocation};

pub(crate) const NOWHERE: CUmemLocation = CUmemLocation {
    r#type: CU_MEM_LOCATION_TYPE_NONE,
    id: 0,
};

/// What was advised about some memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Advised {
    /// It is mostly read.
    pub read_mostly: bool,
    /// Where it should be.
    pub preferred: CUmemLocation,
    /// Who will use it: ordinals of devices, and CU_DEVICE_CPU.
    pub accessed_by: Vec<i32>,
    /// Where it was last prefetched to.
    pub prefetched: CUmemLocation,
}

impl Default for Advised {
    fn default() -> Self {
        Self {
            read_mostly: false,
            preferred: NOWHERE,
            accessed_by: Vec::new(),
            prefetched: NOWHERE,
        }
    }
}

/// What was advised, by address.
#[derive(Debug, Default)]
pub(crate) struct Advice {
    /// First addresses; each entry holds up to its end. They do not overlap.
    parts: Mutex<BTreeMap<u64, AdvisedRange>>,
}

#[derive(Clone, Debug)]
struct AdvisedRange {
    end: u64,
    advised: Advised,
}

/// Cuts the part in which an address lies, so that one begins there.
fn cut(parts: &mut BTreeMap<u64, AdvisedRange>, at: u64) {
    if let Some((&start, part)) = parts.range_mut(..at).next_back()
        && part.end > at
        && start < at
    {
        let rest = part.clone();
        part.end = at;
        parts.insert(at, rest);
    }
}

impl Advice {
    fn parts(&self) -> MutexGuard<'_, BTreeMap<u64, AdvisedRange>> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes what is advised about a range.
    pub(crate) fn change(&self, base: u64, bytes: u64, change: impl Fn(&mut Advised)) {
        let end = base.saturating_add(bytes);
        let mut parts = self.parts();
        cut(&mut parts, base);
        cut(&mut parts, end);
        // Fill what nothing was said about yet, so that all of the range has parts.
        let mut at = base;
        while at < end {
            let next = parts.range(at..end).next().map_or(end, |(&start, _)| start);
            if next > at {
                let advised = Advised::default();
                parts.insert(at, AdvisedRange { end: next, advised });
            }
            at = parts.get(&at).map_or(end, |part| part.end);
        }
        for part in parts.range_mut(base..end).map(|(_, part)| part) {
            change(&mut part.advised);
        }
    }

    /// What is advised about the parts of a range, in order; the default where nothing was.
    pub(crate) fn of(&self, base: u64, bytes: u64) -> Vec<Advised> {
        let end = base.saturating_add(bytes);
        let parts = self.parts();
        let mut found = Vec::new();
        let mut at = base;
        while at < end {
            match parts.range(..=at).next_back() {
                Some((_, part)) if part.end > at => {
                    found.push(part.advised.clone());
                    at = part.end;
                }
                _ => {
                    found.push(Advised::default());
                    at = parts.range(at..).next().map_or(end, |(&start, _)| start);
                }
            }
        }
        found
    }

    /// Forgets a range, whose memory is freed.
    pub(crate) fn forget(&self, base: u64, bytes: u64) {
        let end = base.saturating_add(bytes);
        let mut parts = self.parts();
        if parts.is_empty() {
            return;
        }
        cut(&mut parts, base);
        cut(&mut parts, end);
        parts.retain(|start, _| !(base..end).contains(start));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_holds_for_just_the_range_that_it_was_given_for() {
        let advice = Advice::default();
        advice.change(100, 100, |advised| advised.read_mostly = true);
        advice.change(150, 100, |advised| advised.accessed_by.push(0));
        let flags = |base, bytes| -> Vec<(bool, usize)> {
            let parts = advice.of(base, bytes).into_iter();
            parts
                .map(|advised| (advised.read_mostly, advised.accessed_by.len()))
                .collect()
        };
        assert_eq!(flags(100, 50), [(true, 0)]);
        assert_eq!(flags(120, 100), [(true, 0), (true, 1), (false, 1)]);
        assert_eq!(flags(0, 100), [(false, 0)]);
        assert_eq!(flags(240, 20), [(false, 1), (false, 0)]);
        advice.forget(100, 150);
        assert_eq!(flags(100, 150), [(false, 0)]);
    }
}
