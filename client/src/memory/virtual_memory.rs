//! Physical memory, reserved addresses, and what is mapped where: what the program has made with the
//! functions of virtual memory management.
//!
//! Owns the bookkeeping, by which wrong calls are refused here. The server has its own and trusts
//! none of this. Knows neither arguments nor requests.
//!
//! Called by `api::virtual_memory` and `api::external`.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cuda_abi::CUresult;

/// Physical memory comes in multiples of this many bytes, and addresses are reserved in them.
pub(crate) const GRANULARITY: u64 = 2 << 20;

/// What marks a handle of physical memory, which is a number and no pointer.
const MARK: u64 = 0x52 << 56;

const WRONG: CUresult = CUresult::ERROR_INVALID_VALUE;

/// Physical memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Physical {
    /// The ordinal of its device.
    pub device: i32,
    pub bytes: u64,
    /// The kinds of handles that it may be exported as.
    pub handle_types: u32,
    /// How many shares in it the program has.
    shares: u32,
    /// How often it is mapped.
    mapped: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub addresses: Range<u64>,
    pub handle: u64,
    /// How devices may reach it, by ordinals; a device that is not there may not.
    pub access: Vec<(i32, u32)>,
}

/// All of it.
#[derive(Debug, Default)]
pub(crate) struct VirtualMemory {
    state: Mutex<MappingTable>,
}

/// What is known, while it is locked.
#[derive(Debug, Default)]
pub(crate) struct MappingTable {
    last: u64,
    physical: HashMap<u64, Physical>,
    /// Bytes by first address.
    reserved: BTreeMap<u64, u64>,
    mappings: BTreeMap<u64, Mapping>,
}

impl VirtualMemory {
    /// Locks it, for as long as a call takes: calls of several threads about the same addresses come
    /// one after the other.
    pub(crate) fn lock(&self) -> MutexGuard<'_, MappingTable> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MappingTable {
    /// A handle that no physical memory has or had.
    pub(crate) fn new_handle(&mut self) -> u64 {
        self.last += 1;
        MARK | self.last
    }

    /// Notes physical memory, in which the program has one share.
    pub(crate) fn add(&mut self, handle: u64, device: i32, bytes: u64, handle_types: u32) {
        let physical = Physical {
            device,
            bytes,
            handle_types,
            shares: 1,
            mapped: 0,
        };
        self.physical.insert(handle, physical);
    }

    /// The physical memory of a handle in which the program has a share.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE
    pub(crate) fn get(&self, handle: u64) -> Result<Physical, CUresult> {
        let physical = self.physical.get(&handle).copied();
        physical.filter(|physical| physical.shares > 0).ok_or(WRONG)
    }

    /// Takes a share in what is mapped at an address.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE when nothing is.
    pub(crate) fn retain(&mut self, address: u64) -> Result<u64, CUresult> {
        let handle = self.at(address).ok_or(WRONG)?.handle;
        let physical = self.physical.get_mut(&handle).ok_or(WRONG)?;
        physical.shares = physical.shares.checked_add(1).ok_or(WRONG)?;
        Ok(handle)
    }

    /// Gives a share back. Says whether it was the last use of the memory.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE when the program has none.
    pub(crate) fn release(&mut self, handle: u64) -> Result<bool, CUresult> {
        self.get(handle)?;
        if let Some(physical) = self.physical.get_mut(&handle) {
            physical.shares -= 1;
        }
        Ok(self.drop_unused(handle))
    }

    fn drop_unused(&mut self, handle: u64) -> bool {
        let physical = self.physical.get(&handle);
        let unused = physical.is_some_and(|physical| physical.shares == 0 && physical.mapped == 0);
        if unused {
            self.physical.remove(&handle);
        }
        unused
    }

    /// Notes reserved addresses.
    pub(crate) fn reserve(&mut self, base: u64, bytes: u64) {
        self.reserved.insert(base, bytes);
    }

    /// Ends a reservation, whole, in which nothing is mapped.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE
    pub(crate) fn unreserve(&mut self, base: u64, bytes: u64) -> Result<(), CUresult> {
        let whole = self.reserved.get(&base) == Some(&bytes);
        if !whole || self.mappings.range(base..base + bytes).next().is_some() {
            return Err(WRONG);
        }
        self.reserved.remove(&base);
        Ok(())
    }

    /// Checks that a range is reserved, in one piece, and that nothing is mapped in it.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE
    pub(crate) fn may_map(&self, range: &Range<u64>) -> Result<(), CUresult> {
        let home = self.reserved.range(..=range.start).next_back();
        let inside = home.is_some_and(|(&base, &bytes)| range.end <= base + bytes);
        let before = self.mappings.range(..range.end).next_back();
        let occupied = before.is_some_and(|(_, other)| other.addresses.end > range.start);
        if !inside || occupied {
            return Err(WRONG);
        }
        Ok(())
    }

    /// Notes a mapping.
    pub(crate) fn map(&mut self, addresses: Range<u64>, handle: u64) {
        if let Some(physical) = self.physical.get_mut(&handle) {
            physical.mapped += 1;
        }
        let mapping = Mapping {
            addresses: addresses.clone(),
            handle,
            access: Vec::new(),
        };
        self.mappings.insert(addresses.start, mapping);
    }

    /// The mapping at an address.
    pub(crate) fn at(&self, address: u64) -> Option<&Mapping> {
        let (_, mapping) = self.mappings.range(..=address).next_back()?;
        mapping.addresses.contains(&address).then_some(mapping)
    }

    /// The mappings that make up a range, which none of them exceeds.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE when they do not cover it.
    pub(crate) fn whole(&self, range: &Range<u64>) -> Result<Vec<Mapping>, CUresult> {
        let mut at = range.start;
        let mut found = Vec::new();
        while at < range.end {
            let mapping = self.mappings.get(&at).ok_or(WRONG)?;
            at = mapping.addresses.end;
            found.push(mapping.clone());
        }
        if at != range.end || found.is_empty() {
            return Err(WRONG);
        }
        Ok(found)
    }

    /// Notes how a device may reach a mapping.
    pub(crate) fn set_access(&mut self, base: u64, device: i32, flags: u32) {
        if let Some(mapping) = self.mappings.get_mut(&base) {
            mapping.access.retain(|(other, _)| *other != device);
            if flags != 0 {
                mapping.access.push((device, flags));
            }
        }
    }

    /// Forgets a mapping. Says whether it was the last use of its memory.
    pub(crate) fn unmap(&mut self, base: u64) -> Option<(u64, bool)> {
        let handle = self.mappings.remove(&base)?.handle;
        if let Some(physical) = self.physical.get_mut(&handle) {
            physical.mapped -= 1;
        }
        Some((handle, self.drop_unused(handle)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_lives_while_it_is_mapped_or_shared() {
        let mut state = MappingTable::default();
        let handle = state.new_handle();
        state.add(handle, 0, 100, 0);
        state.reserve(1000, 500);
        assert_eq!(state.may_map(&(1400..1600)), Err(WRONG), "beyond the end");
        assert_eq!(state.may_map(&(900..1000)), Err(WRONG));
        state.may_map(&(1100..1200)).unwrap();
        state.map(1100..1200, handle);
        assert_eq!(state.may_map(&(1199..1300)), Err(WRONG), "mapped already");
        assert_eq!(state.release(handle), Ok(false), "still mapped");
        assert_eq!(state.get(handle), Err(WRONG));
        assert_eq!(state.release(handle), Err(WRONG));
        assert_eq!(state.retain(1150), Ok(handle));
        assert_eq!(state.unreserve(1000, 500), Err(WRONG));
        assert_eq!(state.unmap(1100), Some((handle, false)));
        assert_eq!(state.release(handle), Ok(true));
        assert_eq!(state.unreserve(1000, 400), Err(WRONG));
        assert_eq!(state.unreserve(1000, 500), Ok(()));
    }

    #[test]
    fn access_and_unmapping_take_whole_mappings() {
        let mut state = MappingTable::default();
        let handle = state.new_handle();
        state.add(handle, 0, 100, 0);
        state.reserve(1000, 500);
        state.map(1000..1100, handle);
        state.map(1100..1200, handle);
        assert_eq!(state.whole(&(1000..1200)).unwrap().len(), 2);
        for wrong in [1000..1150, 1050..1200, 1000..1300, 1200..1200] {
            assert_eq!(state.whole(&wrong), Err(WRONG));
        }
        state.set_access(1000, 0, 3);
        assert_eq!(state.at(1099).unwrap().access, [(0, 3)]);
        assert!(state.at(1100).unwrap().access.is_empty());
        state.set_access(1000, 0, 0);
        assert!(state.at(1000).unwrap().access.is_empty());
    }
}
