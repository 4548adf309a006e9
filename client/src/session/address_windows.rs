//! The addresses that the devices' memory has in this process: reserved, so that the program's own
//! memory never comes to lie there, and an address says which of both it is.
//!
//! The server begins with one window on each device and gives more as memory grows; whoever gets an
//! address of it has its window reserved here first. What was reserved stays so. Knows no requests.
//!
//! Owns the reservations. Called by the connection, and by `attach` for the first windows.

use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock};

use protocol::device_facts::ARENA;
use transport::memory::{Mapping, MemoryError};

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Windows {
    /// By first address. Neighbours may come from one window or from two.
    reserved: RwLock<BTreeMap<u64, Mapping>>,
}

/// The address behind a mapping.
fn end(mapping: &Mapping) -> u64 {
    mapping.base() + mapping.len() as u64
}

impl Windows {
    /// Whether an address is one of the devices' memory, given out or not.
    pub(crate) fn contain(&self, address: u64) -> bool {
        // The program's own addresses need no lock.
        if !ARENA.contains(&address) {
            return false;
        }
        let reserved = self.reserved.read().unwrap_or_else(PoisonError::into_inner);
        let before = reserved.range(..=address).next_back();
        before.is_some_and(|(_, mapping)| address < end(mapping))
    }

    /// Reserves what of a range is not reserved yet.
    ///
    /// # Errors
    /// When the program has something there, or may have no more addresses. Then nothing has changed.
    pub(crate) fn add(&self, base: u64, bytes: u64) -> Result<(), MemoryError> {
        let mut reserved = self
            .reserved
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let stop = base.saturating_add(bytes);
        let mut at = base;
        let mut added = Vec::new();
        while at < stop {
            if let Some((_, before)) = reserved.range(..=at).next_back()
                && end(before) > at
            {
                at = end(before);
                continue;
            }
            let next = reserved.range(at..stop).next();
            let upto = next.map_or(stop, |(&next, _)| next);
            added.push(Mapping::reserve(at, upto - at)?);
            at = upto;
        }
        reserved.extend(added.into_iter().map(|mapping| (mapping.base(), mapping)));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Addresses that no other test uses.
    const BASE: u64 = ARENA.end - (1 << 40);
    const GIB: u64 = 1 << 30;

    #[test]
    fn what_is_not_reserved_yet_is_and_nothing_is_replaced() {
        let windows = Windows::default();
        windows.add(BASE, 4 * GIB).unwrap();
        windows.add(BASE + 8 * GIB, 4 * GIB).unwrap();
        let contained = |at: u64| windows.contain(BASE + at);
        assert!(contained(0) && contained(4 * GIB - 1) && contained(8 * GIB));
        assert!(!contained(4 * GIB) && !contained(12 * GIB));
        assert!(!windows.contain(BASE - 1) && !windows.contain(0));
        // What the program has there stays, and what was begun is undone.
        let own = Mapping::reserve(BASE + 14 * GIB, 4096).unwrap();
        assert!(windows.add(BASE + GIB, 15 * GIB).is_err());
        assert!(!contained(4 * GIB) && !contained(12 * GIB) && contained(8 * GIB));
        drop(own);
        windows.add(BASE + GIB, 15 * GIB).unwrap();
        assert!((0..16).all(|at| contained(at * GIB)) && !contained(16 * GIB));
        windows.add(BASE, 16 * GIB).unwrap();
        assert!(Mapping::reserve(BASE + 5 * GIB, 4096).is_err(), "reserved");
    }
}
