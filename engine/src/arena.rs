//! Where the memory of clients lies: one range of addresses, the same in every process.
//!
//! Device and page-locked host memory of all clients lies in one arena, cut into extents. A client
//! gets a window of them for its host memory and one for each device when it comes, and further windows as
//! its memory grows; no other client gets them while it has them. An extent is a unit of addresses
//! and limits nothing: what a client may allocate is its quota's business. The arena is all that
//! x86-64 Linux leaves empty in one piece (programs load at 0x55…, libraries and stacks grow down
//! from 0x7f…), so a client can reserve its windows too, and host pointers and device pointers never
//! coincide.
//!
//! Called by the server for each client's windows, and by the suite. Must not know quotas or what lies there.

use protocol::device_facts::ARENA;

use crate::Window;

/// The first address.
pub const BASE: u64 = ARENA.start;

/// Bytes of an extent, the unit in which addresses are handed out.
pub const EXTENT: u64 = 4 << 30;

/// Bytes of addresses for a client's page-locked host memory.
pub const HOST_BYTES: u64 = 32 << 30;

/// How many extents there are.
pub const EXTENTS: u64 = (ARENA.end - ARENA.start) / EXTENT;

/// The first extent that clients may grow into. Those before it are kept for clients that come.
const FIRST_TO_GROW: u64 = EXTENTS / 2;

/// Memory becomes accessible in multiples of this many bytes.
pub const GRANULE: u64 = 64 << 10;

/// Hands out windows, which are extents in a row; each extent is in one hand at a time.
#[derive(Debug)]
pub struct Arena {
    taken: Vec<bool>,
    /// How many from [`FIRST_TO_GROW`] on are free.
    left: u64,
}

impl Default for Arena {
    fn default() -> Self {
        Self {
            taken: vec![false; EXTENTS as usize],
            left: EXTENTS - FIRST_TO_GROW,
        }
    }
}

impl Arena {
    /// Takes the windows that a client begins with, of so many bytes each, rounded up to extents: all of
    /// them, or none if there is no room for one.
    pub fn allocate(&mut self, sizes: &[u64]) -> Option<Vec<Window>> {
        let mut taken = Vec::new();
        for &bytes in sizes {
            let count = bytes.div_ceil(EXTENT).max(1);
            let Some(first) = self.lowest(count) else {
                for window in &taken {
                    self.release(window);
                }
                return None;
            };
            self.set(first, count, true);
            taken.push(window(first, count));
        }
        Some(taken)
    }

    /// Takes these very windows, which are made of extents and lie in the arena: all of them, or none if one is not free.
    pub fn allocate_at(&mut self, windows: &[Window]) -> bool {
        for (at, window) in windows.iter().enumerate() {
            let extents = self.extents(window);
            let Some((first, count)) = extents.filter(|&(first, count)| {
                count > 0 && (first..first + count).all(|extent| self.is_free(extent))
            }) else {
                for taken in &windows[..at] {
                    self.release(taken);
                }
                return false;
            };
            self.set(first, count, true);
        }
        true
    }

    /// The first extent of a window and how many it has, if it is made of the arena's.
    fn extents(&self, window: &Window) -> Option<(u64, u64)> {
        let offset = window.base.checked_sub(BASE)?;
        let is_whole = offset.is_multiple_of(EXTENT) && window.bytes.is_multiple_of(EXTENT);
        let (first, count) = (offset / EXTENT, window.bytes / EXTENT);
        let end = first.checked_add(count)?;
        (is_whole && end <= EXTENTS).then_some((first, count))
    }

    /// Takes a window for a client that has grown by `grown` bytes so far. No client grows by more than
    /// would then be left for others to grow by, so however many want all of it, the next one gets
    /// some.
    pub fn grow(&mut self, grown: u64, bytes: u64) -> Option<Window> {
        let count = bytes.div_ceil(EXTENT).max(1);
        let all = (grown / EXTENT).checked_add(count)?;
        if all > self.left.checked_sub(count)? {
            return None;
        }
        let first = self.highest(count)?;
        self.set(first, count, true);
        Some(window(first, count))
    }

    /// Takes a window back.
    pub fn release(&mut self, window: &Window) {
        let Some(offset) = window.base.checked_sub(BASE) else {
            return;
        };
        let (first, count) = (offset / EXTENT, window.bytes / EXTENT);
        if first.checked_add(count).is_some_and(|end| end <= EXTENTS) {
            self.set(first, count, false);
        }
    }

    fn set(&mut self, first: u64, count: u64, taken: bool) {
        for extent in first..first + count {
            let place = &mut self.taken[extent as usize];
            if *place != taken && extent >= FIRST_TO_GROW {
                match taken {
                    true => self.left -= 1,
                    false => self.left += 1,
                }
            }
            *place = taken;
        }
    }

    /// The first of the lowest `count` free extents in a row.
    fn lowest(&self, count: u64) -> Option<u64> {
        let mut free = 0;
        (0..EXTENTS).find_map(|extent| {
            free = if self.is_free(extent) { free + 1 } else { 0 };
            (free == count).then(|| extent + 1 - count)
        })
    }

    /// The first of the highest `count` free extents in a row that clients may grow into.
    fn highest(&self, count: u64) -> Option<u64> {
        let mut free = 0;
        (FIRST_TO_GROW..EXTENTS).rev().find(|&extent| {
            free = if self.is_free(extent) { free + 1 } else { 0 };
            free == count
        })
    }

    fn is_free(&self, extent: u64) -> bool {
        !self.taken[extent as usize]
    }
}

fn window(first: u64, count: u64) -> Window {
    Window {
        base: BASE + first * EXTENT,
        bytes: count * EXTENT,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIB: u64 = 1 << 40;

    fn overlap(one: &Window, other: &Window) -> bool {
        one.base < other.base + other.bytes && other.base < one.base + one.bytes
    }

    #[test]
    fn extents_are_in_one_hand_at_a_time() {
        let mut arena = Arena::default();
        let first = arena.allocate(&[HOST_BYTES, EXTENT]).unwrap();
        let second = arena.allocate(&[HOST_BYTES, EXTENT]).unwrap();
        let grown = arena.grow(0, 160 << 30).unwrap();
        let all: Vec<&Window> = first.iter().chain(&second).chain([&grown]).collect();
        for (at, one) in all.iter().enumerate() {
            assert!(all[..at].iter().all(|other| !overlap(one, other)));
        }
        assert_eq!(first[0].bytes, HOST_BYTES);
        assert_eq!(grown.bytes, 160 << 30);
        for window in &first {
            arena.release(window);
        }
        assert_eq!(arena.allocate(&[HOST_BYTES, EXTENT]).unwrap(), first);
        assert_eq!(arena.allocate(&[EXTENT, ARENA.end - ARENA.start]), None);
        let third = arena.allocate(&[EXTENT]).unwrap();
        assert_eq!(
            third[0].base,
            second[1].base + EXTENT,
            "the failed attempt has left nothing"
        );
    }

    #[test]
    fn windows_of_a_former_server_are_taken_where_they_were_or_not_at_all() {
        let mut arena = Arena::default();
        let before = arena.allocate(&[EXTENT, HOST_BYTES]).unwrap();
        let mut next = Arena::default();
        assert!(next.allocate_at(&before));
        assert!(!next.allocate_at(&before[1..]), "somebody has it");
        for window in &before {
            next.release(window);
        }
        let taken = next.allocate(&[EXTENT]).unwrap();
        assert_eq!(taken[0], before[0]);
        assert!(!next.allocate_at(&[before[1], before[0]]));
        assert!(next.allocate_at(&before[1..]), "nothing was left of that");
        for wrong in [
            (0, EXTENT),
            (BASE + 1, EXTENT),
            (BASE, EXTENT + 1),
            (BASE, 0),
            (ARENA.end - EXTENT, 2 * EXTENT),
            (ARENA.end, u64::MAX / EXTENT * EXTENT),
        ] {
            let (base, bytes) = wrong;
            assert!(!next.allocate_at(&[Window { base, bytes }]), "{wrong:?}");
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "a thousand walks over the arena take minutes")]
    fn as_many_clients_fit_as_is_written_down() {
        for (devices, clients) in [(1, 910), (8, 512)] {
            let mut arena = Arena::default();
            // Whatever clients grow by, those who come have room.
            while arena.grow(0, TIB).is_some() {}
            while arena.grow(0, EXTENT).is_some() {}
            let mut sizes = vec![EXTENT; devices];
            sizes.push(HOST_BYTES);
            let mut count = 0;
            while arena.allocate(&sizes).is_some() {
                count += 1;
            }
            assert!((clients..clients + 2).contains(&count), "{count} clients");
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "hundreds of walks over the arena take minutes")]
    fn who_grows_without_end_leaves_some_for_the_next() {
        let mut arena = Arena::default();
        let greedy = |arena: &mut Arena| {
            let mut grown = 0;
            while let Some(window) = arena.grow(grown, 160 << 30) {
                grown += window.bytes;
            }
            grown
        };
        let first = greedy(&mut arena);
        assert!((15 * TIB..=16 * TIB).contains(&first), "{first:#x}");
        let mut last = first;
        for _ in 0..6 {
            let next = greedy(&mut arena);
            assert!(next >= 160 << 30 && next <= last, "{next:#x}");
            last = next;
        }
        assert_eq!(arena.grow(0, u64::MAX), None);
        assert_eq!(arena.grow(u64::MAX, u64::MAX), None);
    }

    #[test]
    fn what_comes_back_can_be_had_in_one_piece_again() {
        let mut arena = Arena::default();
        let windows: Vec<Window> = (0..8)
            .map(|grown| arena.grow(grown * TIB, TIB).unwrap())
            .collect();
        for window in &windows {
            arena.release(window);
        }
        assert!(arena.grow(0, 16 * TIB).is_some());
        assert!(arena.grow(0, 16 * TIB).is_none(), "as much must be left");
        // What is none of the arena's changes nothing.
        arena.release(&Window {
            base: 0,
            bytes: TIB,
        });
        arena.release(&Window {
            base: ARENA.end,
            bytes: TIB,
        });
    }
}
