//! What the program has allocated, by address: for frees, pointer questions and copies that do not
//! say their direction.
//!
//! Owns the map only. Who allocates and frees is the api's business.

use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock};

/// What kind of memory a range is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// cuMemAlloc and its kin.
    Device,
    /// cuMemHostAlloc: page-locked, at the same address for the program and the devices.
    Host,
    /// A variable of a module.
    Variable,
}

/// A range of addresses that the program may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    /// The first address.
    pub base: u64,
    /// Bytes, at least one.
    pub bytes: u64,
    /// What it is.
    pub origin: Origin,
    /// The handle of the context that it was made in.
    pub context: u64,
    /// The slot of that context.
    pub slot: u32,
    /// The flags that it was made with.
    pub flags: u32,
    /// A number that no other range of this process has or had.
    pub id: u64,
}

impl Range {
    /// Whether `bytes` bytes from `address` lie in this range.
    pub(crate) const fn contains(&self, address: u64, bytes: u64) -> bool {
        address >= self.base && bytes <= self.bytes && address - self.base <= self.bytes - bytes
    }
}

/// All ranges, which never overlap.
#[derive(Debug, Default)]
pub(crate) struct Ranges {
    map: RwLock<Map>,
}

#[derive(Debug, Default)]
struct Map {
    by_base: BTreeMap<u64, Range>,
    last_id: u64,
}

impl Ranges {
    /// Adds a range, and gives it its number. `false` if it would overlap another one.
    pub(crate) fn insert(&self, mut range: Range) -> bool {
        let mut map = self.map.write().unwrap_or_else(PoisonError::into_inner);
        let Some(last) = range
            .bytes
            .checked_sub(1)
            .and_then(|rest| range.base.checked_add(rest))
        else {
            return false;
        };
        let before = map.by_base.range(..=last).next_back();
        if before.is_some_and(|(_, other)| other.base + (other.bytes - 1) >= range.base) {
            return false;
        }
        map.last_id += 1;
        range.id = map.last_id;
        map.by_base.insert(range.base, range);
        true
    }

    /// The range in which an address lies.
    pub(crate) fn find(&self, address: u64) -> Option<Range> {
        let map = self.map.read().unwrap_or_else(PoisonError::into_inner);
        let (_, range) = map.by_base.range(..=address).next_back()?;
        range.contains(address, 1).then_some(*range)
    }

    /// Takes out the range that begins at an address, if `fits` says so.
    pub(crate) fn remove(&self, base: u64, fits: impl Fn(&Range) -> bool) -> Option<Range> {
        let mut map = self.map.write().unwrap_or_else(PoisonError::into_inner);
        map.by_base.get(&base).filter(|range| fits(range))?;
        map.by_base.remove(&base)
    }

    /// Takes out all ranges that `goes` names.
    pub(crate) fn remove_all(&self, goes: impl Fn(&Range) -> bool) {
        self.map
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .by_base
            .retain(|_, range| !goes(range));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(base: u64, bytes: u64) -> Range {
        Range {
            base,
            bytes,
            origin: Origin::Device,
            context: 0,
            slot: 0,
            flags: 0,
            id: 0,
        }
    }

    #[test]
    fn ranges_are_found_by_any_address_in_them_and_never_overlap() {
        let ranges = Ranges::default();
        assert!(ranges.insert(range(0x1000, 0x100)));
        assert!(!ranges.insert(range(0x10ff, 1)));
        assert!(!ranges.insert(range(0xfff, 2)));
        assert!(!ranges.insert(range(0, 0x4000)), "around it");
        assert!(ranges.insert(range(0x1100, 1)));
        assert_eq!(ranges.find(0x10ff).unwrap().base, 0x1000);
        assert_eq!(ranges.find(0xfff), None);
        assert_eq!(ranges.find(0x1101), None);
    }

    #[test]
    fn a_range_is_freed_once_and_only_from_its_start() {
        let ranges = Ranges::default();
        assert!(ranges.insert(range(0x1000, 0x100)));
        assert_eq!(ranges.remove(0x1001, |_| true), None);
        assert_eq!(
            ranges.remove(0x1000, |range| range.origin == Origin::Host),
            None
        );
        assert!(ranges.remove(0x1000, |_| true).is_some());
        assert_eq!(ranges.remove(0x1000, |_| true), None);
    }
}
