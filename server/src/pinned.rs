//! How much host memory all clients together may have in their windows: page-locked, registered and
//! managed memory, none of which the system can take back from them.
//!
//! Each client's is bounded by its window too. Knows nothing of clients.

use std::fs::read_to_string;
use std::sync::{Mutex, PoisonError};

/// Of the memory that there is, the part that clients may have so, as a fraction: what the programs, the
/// server and the system need beside it is left.
const PART: (u64, u64) = (3, 4);

/// The bytes that all clients may have together, and have.
#[derive(Debug)]
pub struct Pinned {
    used: Mutex<u64>,
    most: u64,
}

impl Pinned {
    /// So many bytes at most.
    #[must_use]
    pub const fn new(most: u64) -> Self {
        Self {
            used: Mutex::new(0),
            most,
        }
    }

    /// A part of what this machine has, or of what this process may have of it. Without a bound where
    /// the system does not say.
    #[must_use]
    pub fn of_this_machine() -> Self {
        let meminfo = read_to_string("/proc/meminfo").unwrap_or_default();
        let machine = total(&meminfo).unwrap_or(u64::MAX);
        let group = read_to_string("/proc/self/cgroup").unwrap_or_default();
        let limit = group.lines().find_map(|line| {
            let path = line.strip_prefix("0::")?;
            let text = read_to_string(format!("/sys/fs/cgroup{path}/memory.max")).ok()?;
            text.trim().parse().ok()
        });
        let all: u64 = limit.map_or(machine, |limit: u64| limit.min(machine));
        let (part, of) = PART;
        Self::new((all / of).saturating_mul(part))
    }

    /// Takes bytes. Says whether there are as many.
    #[must_use]
    pub fn take(&self, bytes: u64) -> bool {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = bytes <= self.most.saturating_sub(*used);
        if fits {
            *used += bytes;
        }
        fits
    }

    /// Gives them back.
    pub fn give(&self, bytes: u64) {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        *used = used.saturating_sub(bytes);
    }
}

/// Bytes of memory, of the text of /proc/meminfo.
fn total(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kilobytes: u64 = line.split_whitespace().next()?.parse().ok()?;
    kilobytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_is_read() {
        assert_eq!(
            total("MemTotal:       1024 kB\nMemFree: 1 kB\n"),
            Some(1 << 20)
        );
        assert_eq!(total("MemFree: 1 kB\n"), None);
        let most = Pinned::of_this_machine().most;
        assert!(most > 64 << 20 && most < u64::MAX / 2, "{most}");
    }

    #[test]
    fn no_more_than_there_may_be_is_taken() {
        let pinned = Pinned::new(10);
        assert!(pinned.take(6) && !pinned.take(5) && pinned.take(4));
        assert!(!pinned.take(u64::MAX));
        pinned.give(5);
        assert!(pinned.take(5) && !pinned.take(1));
    }
}
