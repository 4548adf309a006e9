//! Where the memory of clients lies: one range of addresses, the same in every process.
//!
//! Device and page-locked host memory of all clients lies in one arena, cut into extents. A client
//! gets an extent for its host memory and one for each device, and no other client gets them while
//! it lives. The arena is a stretch of x86-64 user space that Linux leaves empty (programs load at
//! 0x55…, libraries and stacks grow down from 0x7f…), so a client can reserve its extents too, and
//! host pointers and device pointers never coincide.

use crate::Window;

/// The first address.
pub const BASE: u64 = 0x1100_0000_0000;

/// Bytes of an extent: the most memory that a client can have on one device.
pub const EXTENT: u64 = 32 << 30;

/// How many extents there are.
pub const EXTENTS: u64 = 2048;

/// Memory becomes accessible in multiples of this many bytes.
pub const GRANULE: u64 = 64 << 10;

/// Hands out extents; each is in one hand at a time.
#[derive(Debug, Default)]
pub struct Arena {
    taken: Vec<bool>,
}

impl Arena {
    /// Takes `count` extents, or none if there are not so many left.
    pub fn take(&mut self, count: usize) -> Option<Vec<Window>> {
        self.taken.resize(EXTENTS as usize, false);
        let free: Vec<usize> = (0..self.taken.len())
            .filter(|&index| !self.taken[index])
            .take(count)
            .collect();
        if free.len() < count {
            return None;
        }
        Some(
            free.into_iter()
                .map(|index| {
                    self.taken[index] = true;
                    Window {
                        base: BASE + index as u64 * EXTENT,
                        bytes: EXTENT,
                    }
                })
                .collect(),
        )
    }

    /// Takes extents back.
    pub fn give_back(&mut self, windows: &[Window]) {
        for window in windows {
            if let Some(taken) = self.taken.get_mut(((window.base - BASE) / EXTENT) as usize) {
                *taken = false;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_are_in_one_hand_at_a_time() {
        let mut arena = Arena::default();
        let first = arena.take(2).unwrap();
        let second = arena.take(2).unwrap();
        assert!(first.iter().all(|window| !second.contains(window)));
        arena.give_back(&first);
        assert_eq!(arena.take(2).unwrap(), first);
        assert!(arena.take(EXTENTS as usize).is_none());
    }
}
