//! How much of each device's memory a group of clients has taken, counted in memory that the daemon
//! and all servers with such clients share.
//!
//! Each server has a slot of its own, and only counts there; what the group has is the sum. So
//! whatever a server that dies had taken is given back by clearing its slot, and there is no count
//! beside it that could be left wrong. Nobody ever takes more than the limit: whoever finds the sum
//! above it takes back what it had added.
//!
//! The memory is sealed against resizing, and a count that somebody has damaged is only a wrong
//! number. The daemon makes one for each group, servers reserve and release. Knows neither limits nor what is allocated.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use transport::memory::{Mapping, MemoryError, Sealed};
use transport::sync::{AtomicU64, Ordering};

/// Servers that may have clients of one group at a time.
pub const SLOTS: u32 = 256;

/// Devices that can be counted for.
pub const DEVICES: u32 = 64;

const BYTES: u64 = (SLOTS * DEVICES) as u64 * size_of::<u64>() as u64;

/// Attempts of a server that others are in the way of.
const ATTEMPTS: u32 = 64;

/// The counts of one group.
#[derive(Debug)]
pub struct GroupUsage {
    memory: Sealed,
    mapping: Mapping,
}

impl GroupUsage {
    /// A new one, in which nothing is taken. `name` shows in /proc.
    ///
    /// # Errors
    /// When the kernel has no descriptor or no room for it.
    pub fn create(name: &str) -> Result<Self, MemoryError> {
        Self::of(Sealed::create(name, BYTES)?)
    }

    /// One that somebody sent.
    ///
    /// # Errors
    /// When the descriptor is not such memory.
    pub fn from_fd(fd: OwnedFd) -> Result<Self, MemoryError> {
        Self::of(Sealed::from_fd(fd, BYTES)?)
    }

    fn of(memory: Sealed) -> Result<Self, MemoryError> {
        let mapping = Mapping::map(&memory)?;
        Ok(Self { memory, mapping })
    }

    fn counts(&self, device: u32) -> &[AtomicU64] {
        let slots = SLOTS as usize;
        if device >= DEVICES {
            return &[];
        }
        self.mapping
            .words(device as usize * slots * size_of::<u64>(), slots)
    }

    /// Bytes of a device that are taken.
    #[must_use]
    pub fn used(&self, device: u32) -> u64 {
        let counts = self.counts(device).iter();
        counts.fold(0, |sum: u64, count| {
            sum.saturating_add(count.load(Ordering::SeqCst))
        })
    }

    /// Takes bytes of a device for a server, if no more than `limit` are then taken in all. Calls of
    /// one server do not overlap; if several servers ask at the same moment for the last bytes, it
    /// can be that none gets them.
    #[must_use]
    pub fn reserve(&self, slot: u32, device: u32, bytes: u64, limit: u64) -> bool {
        let Some(count) = self.counts(device).get(slot as usize) else {
            return false;
        };
        for _ in 0..ATTEMPTS {
            // Asked before it is added, so that what never fits is in nobody's way.
            let used = self.used(device);
            if used.checked_add(bytes).is_none_or(|sum| sum > limit) {
                // What others have may be an attempt of theirs, about to be taken back.
                if used == count.load(Ordering::SeqCst) {
                    return false;
                }
                std::thread::yield_now();
                continue;
            }
            count.fetch_add(bytes, Ordering::SeqCst);
            if self.used(device) <= limit {
                return true;
            }
            self.release(slot, device, bytes);
            std::thread::yield_now();
        }
        false
    }

    /// Gives back what [`GroupUsage::reserve`] reserved.
    pub fn release(&self, slot: u32, device: u32, bytes: u64) {
        if let Some(count) = self.counts(device).get(slot as usize) {
            let less = |had: u64| Some(had.saturating_sub(bytes));
            let _ = count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
        }
    }

    /// Gives back all that a server has taken, which is no more.
    pub fn release_all(&self, slot: u32) {
        for device in 0..DEVICES {
            if let Some(count) = self.counts(device).get(slot as usize) {
                count.store(0, Ordering::SeqCst);
            }
        }
    }
}

/// The memory, for sending it to a server.
impl AsFd for GroupUsage {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_servers_take_adds_up_and_what_a_dead_one_had_is_back() {
        let usage = GroupUsage::create("test").expect("room for a usage");
        let fd = usage.as_fd().try_clone_to_owned().expect("a descriptor");
        let other = GroupUsage::from_fd(fd).expect("a usage");
        assert!(usage.reserve(0, 3, 600, 1000));
        assert!(other.reserve(7, 3, 400, 1000), "just fits");
        assert!(!usage.reserve(0, 3, 1, 1000));
        assert!(!other.reserve(7, 3, 1, 1000));
        assert_eq!((usage.used(3), usage.used(2)), (1000, 0));
        other.release(7, 3, 100);
        assert!(usage.reserve(0, 3, 100, 1000));
        other.release_all(0);
        assert_eq!(usage.used(3), 300);
        // A limit that was lowered below what is taken.
        assert!(!usage.reserve(0, 3, 1, 200));
        assert!(!usage.reserve(0, 3, u64::MAX, u64::MAX));
        other.release(7, 3, 1 << 40);
        assert_eq!(usage.used(3), 0);
        assert!(!usage.reserve(SLOTS, 3, 1, 1000) && !usage.reserve(0, DEVICES, 1, 1000));
        assert_eq!(usage.used(DEVICES), 0);
    }

    #[test]
    fn servers_at_once_never_take_more_than_the_limit() {
        let usage = GroupUsage::create("test").expect("room for a usage");
        std::thread::scope(|scope| {
            for slot in 0..4 {
                let usage = &usage;
                scope.spawn(move || {
                    for round in 0..2000 {
                        let bytes = 1 + (slot as u64 + round) % 40;
                        if usage.reserve(slot, 0, bytes, 100) {
                            usage.release(slot, 0, bytes);
                        }
                    }
                });
            }
            let usage = &usage;
            // With 61 of them held, whoever gets 39 has the rest.
            scope.spawn(move || {
                while !usage.reserve(9, 0, 61, 100) {}
                for _ in 0..2000 {
                    if usage.reserve(10, 0, 39, 100) {
                        assert!(!usage.reserve(11, 0, 1, 100), "more than the limit");
                        usage.release(10, 0, 39);
                    }
                }
                usage.release(9, 0, 61);
            });
        });
        assert_eq!(usage.used(0), 0);
    }

    #[test]
    fn what_is_no_usage_is_refused() {
        let small = Sealed::create("test", 4096).expect("room");
        assert!(GroupUsage::from_fd(small.into()).is_err());
        let file = tempfile().expect("a file");
        assert!(GroupUsage::from_fd(file.into()).is_err());
    }

    fn tempfile() -> std::io::Result<std::fs::File> {
        std::fs::File::open("/dev/null")
    }
}
