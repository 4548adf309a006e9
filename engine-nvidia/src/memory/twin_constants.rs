//! Constants of which there are two: one in the client's memory, which its program is told of and which outlives this process,
//! and one where the driver has it, which code reads. Whoever writes the first has it copied to the second.
//!
//! Owns where they are. Kept by the client's address space, asked by who plans copies. Must not know modules.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use engine::Window;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct TwinConstants {
    /// By the program's address, the bytes and the driver's address.
    twins: BTreeMap<u64, (u64, u64)>,
}

/// What is to be copied from one to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TwinCopy {
    /// The driver's address.
    pub(crate) to: u64,
    /// The program's.
    pub(crate) from: u64,
    pub(crate) bytes: u64,
}

impl TwinConstants {
    /// Adds one: where the program has it, and where the driver has.
    pub(crate) fn add(&mut self, own: Window, drivers: u64) {
        self.twins.insert(own.base, (own.bytes, drivers));
    }

    /// Forgets the one that the program has here, if there is one.
    pub(crate) fn remove(&mut self, base: u64) {
        self.twins.remove(&base);
    }

    /// What has to be copied when something in a range was written.
    pub(crate) fn written(&self, range: Window) -> impl Iterator<Item = TwinCopy> {
        let end = range.base.saturating_add(range.bytes);
        // None overlaps another: what begins before the range and reaches into it is the last of these.
        let before = self.twins.range(..range.base).next_back();
        let within = self.twins.range(range.base..end);
        before
            .into_iter()
            .chain(within)
            .filter_map(move |(&base, &(bytes, drivers))| {
                let from = base.max(range.base);
                let bytes = (base + bytes).min(end).checked_sub(from)?;
                (bytes > 0).then_some(TwinCopy {
                    to: drivers + (from - base),
                    from,
                    bytes,
                })
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_copied_as_far_as_there_are_two() {
        let mut twins = TwinConstants::default();
        let window = |base, bytes| Window { base, bytes };
        twins.add(window(100, 10), 1000);
        twins.add(window(120, 4), 2000);
        let written = |base, bytes| {
            let copies = twins.written(window(base, bytes));
            copies
                .map(|copy| (copy.to, copy.from, copy.bytes))
                .collect::<Vec<_>>()
        };
        assert_eq!(written(0, 100), []);
        assert_eq!(written(110, 10), []);
        assert_eq!(written(104, 2), [(1004, 104, 2)]);
        assert_eq!(written(0, 1000), [(1000, 100, 10), (2000, 120, 4)]);
        assert_eq!(written(109, 12), [(1009, 109, 1), (2000, 120, 1)]);
        assert_eq!(written(u64::MAX, 9), []);
        twins.remove(100);
        assert_eq!(twins.written(window(100, 10)).count(), 0);
    }
}
