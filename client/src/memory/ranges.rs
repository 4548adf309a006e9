//! What the program has allocated, by address: for frees, pointer questions and copies that do not
//! say their direction.
//!
//! Owns the map only. Who allocates and frees is the business of `api`.
//!
//! Modules, graphs' memory and registrations enter theirs too; `address_space` looks addresses up. Must not ask the
//! server, nor know what is mapped there.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock};

use crate::context::Current;

/// What kind of memory a range is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// cuMemAlloc and its kin.
    Device,
    /// cuMemHostAlloc: page-locked, at the same address for the program and the devices.
    Host,
    /// cuMemAllocManaged: as page-locked memory, but it counts as the device's.
    Managed,
    /// A variable of a module.
    Variable,
    /// A managed variable of a module.
    ManagedVariable,
    /// Memory of the program that cuMemHostRegister has shared with the devices: once as the program
    /// has it and once as the devices do. Each says where the other is.
    Registered,
    /// Another process's device memory.
    Imported,
    /// Physical memory that is mapped at reserved addresses. Its flags say whether it can be reached.
    Mapped,
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
    /// The handle of the pool that it came from, or 0.
    pub pool: u64,
    /// Where the same bytes are for the other side, program or devices.
    pub other: u64,
    /// A number that no other range of this process has or had.
    pub id: u64,
    /// Synchronous copies and fills wait until they are done, whatever the memory is.
    pub sync_memops: bool,
}

impl Range {
    /// A range of a context, which is the same for program and devices.
    pub(crate) fn new(current: &Current, origin: Origin, base: u64, bytes: u64) -> Self {
        Self {
            base,
            bytes,
            origin,
            context: current.handle(),
            slot: current.slot(),
            flags: 0,
            pool: 0,
            other: base,
            id: 0,
            sync_memops: false,
        }
    }

    /// Whether `bytes` bytes from `address` lie in this range.
    pub(crate) const fn contains(&self, address: u64, bytes: u64) -> bool {
        address >= self.base && bytes <= self.bytes && address - self.base <= self.bytes - bytes
    }

    /// Whether it is managed memory.
    pub(crate) const fn is_managed(&self) -> bool {
        matches!(self.origin, Origin::Managed | Origin::ManagedVariable)
    }

    /// Whether it has a handle of cuIpcGetMemHandle: what cuMemAlloc and its kin gave; memory of pools has other ways.
    pub(crate) const fn has_ipc_handle(&self) -> bool {
        matches!(self.origin, Origin::Device) && self.pool == 0
    }

    /// Whether the program sees its bytes too.
    pub(crate) const fn is_shared(&self) -> bool {
        !matches!(
            self.origin,
            Origin::Device | Origin::Variable | Origin::Imported | Origin::Mapped
        )
    }

    /// The address of a byte of this range on the other side.
    pub(crate) const fn across(&self, address: u64) -> u64 {
        self.other + (address - self.base)
    }
}

/// All ranges, which never overlap.
#[derive(Debug, Default)]
pub(crate) struct Ranges {
    map: RwLock<RangeMap>,
    /// Set once any range was told to have synchronous operations; read without the lock by these.
    any_sync_memops: AtomicBool,
}

#[derive(Debug, Default)]
struct RangeMap {
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

    /// Whether all of some bytes may be copied: they lie in one range, or in mappings that can be
    /// reached and follow each other.
    pub(crate) fn cover(&self, address: u64, bytes: u64) -> bool {
        let map = self.map.read().unwrap_or_else(PoisonError::into_inner);
        let (mut at, mut left) = (address, bytes);
        loop {
            let Some((_, range)) = map.by_base.range(..=at).next_back() else {
                return false;
            };
            if !range.contains(at, 1) {
                return false;
            }
            if range.origin != Origin::Mapped {
                return at == address && range.contains(address, bytes);
            }
            if range.flags == 0 {
                return false;
            }
            let here = range.bytes - (at - range.base);
            if left <= here {
                return true;
            }
            at += here;
            left -= here;
        }
    }

    /// Sets the flags of the range that begins at an address.
    pub(crate) fn set_flags(&self, base: u64, flags: u32) {
        let mut map = self.map.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(range) = map.by_base.get_mut(&base) {
            range.flags = flags;
        }
    }

    /// Has synchronous operations on the range in which an address lies wait, or no longer. `false` if
    /// there is none.
    pub(crate) fn set_sync_memops(&self, address: u64, on: bool) -> bool {
        let mut map = self.map.write().unwrap_or_else(PoisonError::into_inner);
        let before = map.by_base.range_mut(..=address).next_back();
        let Some((_, range)) = before.filter(|(_, range)| range.contains(address, 1)) else {
            return false;
        };
        range.sync_memops = on;
        if on {
            self.any_sync_memops.store(true, Ordering::Relaxed);
        }
        true
    }

    /// Whether synchronous operations at an address wait, whatever the memory is.
    pub(crate) fn has_sync_memops(&self, address: u64) -> bool {
        self.any_sync_memops.load(Ordering::Relaxed)
            && self.find(address).is_some_and(|range| range.sync_memops)
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
            pool: 0,
            other: base,
            id: 0,
            sync_memops: false,
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
    fn what_spans_mappings_is_covered_if_all_of_them_can_be_reached() {
        let ranges = Ranges::default();
        let mapped = |base| Range {
            origin: Origin::Mapped,
            flags: 1,
            ..range(base, 0x100)
        };
        assert!(ranges.insert(mapped(0x1000)) && ranges.insert(mapped(0x1100)));
        assert!(ranges.insert(range(0x1200, 0x100)));
        assert!(ranges.cover(0x1080, 0x100) && ranges.cover(0x1000, 0x200));
        assert!(!ranges.cover(0x1180, 0x100), "into what is no mapping");
        assert!(ranges.cover(0x1200, 0x100) && !ranges.cover(0x1200, 0x101));
        ranges.set_flags(0x1100, 0);
        assert!(!ranges.cover(0x1080, 0x100) && ranges.cover(0x1080, 0x80));
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
