//! Tables of objects that are looked up without a lock.
//!
//! A table only grows, in chunks of doubling size that never move, so a reader needs one atomic load
//! to find a slot and one to see that its generation is the handle's. Slots are used again with a
//! new generation; what they hold is made of atomics and locks, so a program that destroys an object
//! while another of its threads uses it gets an error or a stale answer, never undefined behaviour.
//!
//! Used by the tables of contexts, streams, events, functions, modules, pools and graphs. Must not know what an
//! object is, nor when it is to end.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use crate::handle::{Key, MAX_INDEX};

/// Slots of the first chunk.
const FIRST: u32 = 64;

/// Chunks that cover all of [`MAX_INDEX`].
const CHUNKS: usize = 19;

/// A table of `T`.
pub(crate) struct Slots<T> {
    chunks: [OnceLock<Box<[Slot<T>]>>; CHUNKS],
    free: Mutex<Free>,
    limit: u32,
}

struct Slot<T> {
    /// Odd while the slot is taken. Written only by whoever takes or releases the slot.
    generation: AtomicU32,
    value: T,
}

struct Free {
    /// Slots to use again, the longest unused one first.
    released: VecDeque<u32>,
    /// The first slot that was never used.
    next: u32,
}

impl<T> std::fmt::Debug for Slots<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Slots")
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}

/// What a slot holds of an object that is in use for as long as anybody has a reference to it.
#[derive(Debug)]
pub(crate) struct ArcSlot<T>(RwLock<Option<Arc<T>>>);

impl<T> Default for ArcSlot<T> {
    fn default() -> Self {
        Self(RwLock::new(None))
    }
}

impl<T> ArcSlot<T> {
    /// Puts an object there, or none, and gives what was there.
    pub(crate) fn put(&self, value: Option<Arc<T>>) -> Option<Arc<T>> {
        let mut held = self.0.write().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut held, value)
    }

    /// What is there.
    pub(crate) fn get(&self) -> Option<Arc<T>> {
        self.0
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

/// The chunk of a slot, and its place in it.
#[inline]
const fn place(index: u32) -> (usize, usize) {
    let scaled = index / FIRST + 1;
    let chunk = scaled.ilog2();
    let first = ((1 << chunk) - 1) * FIRST;
    (chunk as usize, (index - first) as usize)
}

impl<T: Default> Slots<T> {
    /// A table that hands out the slots from `first` up to but without `limit`.
    pub(crate) fn new(first: u32, limit: u32) -> Self {
        Self {
            chunks: [const { OnceLock::new() }; CHUNKS],
            free: Mutex::new(Free {
                released: VecDeque::new(),
                next: first,
            }),
            limit: limit.min(MAX_INDEX),
        }
    }

    #[inline]
    fn slot(&self, index: u32) -> Option<&Slot<T>> {
        let (chunk, at) = place(index);
        self.chunks.get(chunk)?.get()?.get(at)
    }

    fn make_slot(&self, index: u32) -> &Slot<T> {
        let (chunk, at) = place(index);
        let slots = self.chunks[chunk].get_or_init(|| {
            (0..FIRST << chunk)
                .map(|_| Slot {
                    generation: AtomicU32::new(0),
                    value: T::default(),
                })
                .collect()
        });
        &slots[at]
    }

    /// Takes a slot, lets `fill` write it, and then makes it findable.
    ///
    /// A slot that was used before is taken only if `ready` says so of what it holds.
    pub(crate) fn insert(
        &self,
        ready: impl Fn(u32, &T) -> bool,
        fill: impl FnOnce(u32, &T),
    ) -> Option<Key> {
        let index = {
            let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
            match free.released.front().copied() {
                Some(index)
                    if self
                        .slot(index)
                        .is_some_and(|slot| ready(index, &slot.value)) =>
                {
                    free.released.pop_front();
                    index
                }
                _ if free.next < self.limit => {
                    free.next += 1;
                    free.next - 1
                }
                _ => return None,
            }
        };
        Some(self.insert_at(index, |value| fill(index, value)))
    }

    /// Takes a slot that [`Slots::insert`] never hands out, or one that was taken before.
    pub(crate) fn insert_at(&self, index: u32, fill: impl FnOnce(&T)) -> Key {
        let slot = self.make_slot(index);
        fill(&slot.value);
        let generation = slot.generation.load(Ordering::Relaxed) | 1;
        // Release: whoever finds the generation finds what `fill` wrote.
        slot.generation.store(generation, Ordering::Release);
        Key::new(index, generation)
    }

    /// What a live place holds.
    #[inline]
    pub(crate) fn get(&self, key: Key) -> Option<&T> {
        let slot = self.slot(key.index())?;
        let generation = slot.generation.load(Ordering::Acquire);
        (generation == key.generation() && generation & 1 == 1).then_some(&slot.value)
    }

    /// What a slot holds, whoever lives there.
    #[inline]
    pub(crate) fn at(&self, index: u32) -> Option<&T> {
        self.slot(index).map(|slot| &slot.value)
    }

    /// The place of whoever lives in a slot.
    pub(crate) fn current_key(&self, index: u32) -> Option<Key> {
        let generation = self.slot(index)?.generation.load(Ordering::Acquire);
        (generation & 1 == 1).then_some(Key::new(index, generation))
    }

    /// Ends a place: of several threads that try, one is told what it held. The slot is not used
    /// again before [`Slots::release`].
    pub(crate) fn remove(&self, key: Key) -> Option<&T> {
        let slot = self.slot(key.index())?;
        if key.generation() & 1 == 0 {
            return None;
        }
        slot.generation
            .compare_exchange(
                key.generation(),
                key.generation().wrapping_add(1),
                Ordering::AcqRel,
                Ordering::Relaxed,
            )
            .ok()
            .map(|_| &slot.value)
    }

    /// Gives a slot whose occupant was removed back for use.
    pub(crate) fn release(&self, index: u32) {
        self.free
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .released
            .push_back(index);
    }

    /// Every live place, in order of the slots.
    pub(crate) fn live(&self) -> impl Iterator<Item = (Key, &T)> {
        let end = self
            .free
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .next;
        (0..end).filter_map(|index| {
            let key = self.current_key(index)?;
            Some((key, &self.slot(index)?.value))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    fn insert(table: &Slots<AtomicU64>, value: u64) -> Option<Key> {
        table.insert(|_, _| true, |_, slot| slot.store(value, Ordering::Relaxed))
    }

    #[test]
    fn chunks_cover_every_index_once() {
        let mut expected = (0, 0);
        for index in 0..100_000 {
            assert_eq!(place(index), expected);
            expected.1 += 1;
            if expected.1 == (FIRST as usize) << expected.0 {
                expected = (expected.0 + 1, 0);
            }
        }
        assert!(place(MAX_INDEX).0 < CHUNKS);
    }

    #[test]
    fn a_dead_place_is_not_found_even_when_its_slot_lives_again() {
        let table = Slots::new(0, 10);
        let first = insert(&table, 7).unwrap();
        assert_eq!(table.get(first).unwrap().load(Ordering::Relaxed), 7);
        assert!(table.remove(first).is_some());
        assert!(table.remove(first).is_none(), "only one destroys");
        table.release(first.index());
        let second = insert(&table, 8).unwrap();
        assert_eq!(second.index(), first.index());
        assert!(table.get(first).is_none());
        assert_eq!(table.get(second).unwrap().load(Ordering::Relaxed), 8);
    }

    #[test]
    fn a_full_table_says_so_and_a_slot_that_is_not_ready_is_passed_over() {
        let table = Slots::new(2, 4);
        let first = insert(&table, 1).unwrap();
        assert_eq!(first.index(), 2);
        table.remove(first).unwrap();
        table.release(first.index());
        let other = table.insert(|_, _| false, |_, _| {}).unwrap();
        assert_eq!(other.index(), 3);
        assert!(table.insert(|_, _| false, |_, _| {}).is_none());
        assert!(insert(&table, 1).is_some());
        assert_eq!(table.live().count(), 2);
    }
}
