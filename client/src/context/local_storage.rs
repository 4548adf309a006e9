//! What programs keep with a context and a key: a value, and what ends it.
//!
//! Owns all values that are kept. Each copy of CUDA's runtime has a key and asks for its value at nearly every call, so the question must cost next to nothing:
//! a fixed cache, shared by all threads and read without a lock, stands before the map. The cache
//! needs neither thread-local memory nor room that grows, so it works while the process dies and
//! however many contexts and runtimes there are; what it has no room for is found in the map.
//!
//! Called by `export_tables`, and at a context's end. Must not know what a value is: its destructor ends it.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Mutex, MutexGuard, PoisonError};

use cuda_abi::types::CUcontext;

/// Told of a value whose context ends.
pub(crate) type Destructor =
    Option<unsafe extern "C" fn(context: CUcontext, key: *mut c_void, value: *mut c_void)>;

/// Context and key.
pub(crate) type StorageKey = (u64, u64);

/// What is kept.
#[derive(Clone, Copy)]
struct StoredValue {
    /// The value's bits: it is only handed back.
    value: u64,
    destructor: Destructor,
}

/// Everything that is kept. Never locked in a fork's child, where nobody may be left to unlock it.
static KEPT: Mutex<BTreeMap<StorageKey, StoredValue>> = Mutex::new(BTreeMap::new());

static CACHE: Cache = Cache::new();

fn kept() -> MutexGuard<'static, BTreeMap<StorageKey, StoredValue>> {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps a value, in place of the one before.
///
/// # Safety
/// `destructor` may be called with the context, the key and the value until the value is removed.
pub(crate) unsafe fn put(place: StorageKey, value: u64, destructor: Destructor) {
    let mut kept = kept();
    kept.insert(place, StoredValue { value, destructor });
    CACHE.set(place, value);
}

/// Removes a value, without its destructor. Says whether there was one.
pub(crate) fn remove(place: StorageKey) -> bool {
    let mut kept = kept();
    CACHE.clear(place);
    kept.remove(&place).is_some()
}

/// A value that was asked for lately.
#[inline]
pub(crate) fn get_cached(place: StorageKey) -> Option<u64> {
    CACHE.get(place)
}

/// A value.
#[cold]
pub(crate) fn get(place: StorageKey) -> Option<u64> {
    let kept = kept();
    let StoredValue { value, .. } = *kept.get(&place)?;
    // With the lock held, so that nobody takes it away in between.
    CACHE.set(place, value);
    Some(value)
}

/// Takes away all that is kept with a context that ends, and runs the destructors, on this thread.
///
/// They are the program's code and may call any entry point, so the caller holds no lock.
pub(crate) fn context_destroyed(context: CUcontext) {
    let ended: Vec<(StorageKey, StoredValue)> = {
        let mut kept = kept();
        let of_context = (context.bits(), 0)..=(context.bits(), u64::MAX);
        let places: Vec<StorageKey> = kept.range(of_context).map(|(place, _)| *place).collect();
        places
            .into_iter()
            .filter_map(|place| {
                CACHE.clear(place);
                Some((place, kept.remove(&place)?))
            })
            .collect()
    };
    for ((_, key), StoredValue { value, destructor }) in ended {
        if let Some(destructor) = destructor {
            // SAFETY: whoever kept the value allowed this call (`put`), and it happens once.
            unsafe {
                destructor(
                    context,
                    std::ptr::with_exposed_provenance_mut(key as usize),
                    std::ptr::with_exposed_provenance_mut(value as usize),
                );
            }
        }
    }
}

/// Sets of the cache.
const SETS: usize = 256;

/// Places in a set.
const WAYS: usize = 4;

/// The newest values by place. Written with the map locked, read by anybody at any time.
struct Cache([Set; SETS]);

#[repr(align(64))]
struct Set([Way; WAYS]);

/// One place of the cache. A reader that met a writer sees another `sequence` after than before, or
/// an odd one, and believes nothing.
struct Way {
    sequence: AtomicU64,
    /// 0, which is no context, where there is nothing.
    context: AtomicU64,
    key: AtomicU64,
    value: AtomicU64,
}

impl Cache {
    const fn new() -> Self {
        Self(
            [const {
                Set([const {
                    Way {
                        sequence: AtomicU64::new(0),
                        context: AtomicU64::new(0),
                        key: AtomicU64::new(0),
                        value: AtomicU64::new(0),
                    }
                }; WAYS])
            }; SETS],
        )
    }

    fn set_of(&self, (context, key): StorageKey) -> &[Way; WAYS] {
        // Keys are addresses and contexts count from 0: the product spreads both to the upper bits.
        let mixed = (context ^ key.rotate_left(20)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.0[(mixed >> 56) as usize % SETS].0
    }

    #[inline]
    fn get(&self, place: StorageKey) -> Option<u64> {
        self.set_of(place).iter().find_map(|way| way.get(place))
    }

    /// Notes a value. To be called with the map locked.
    fn set(&self, place: StorageKey, value: u64) {
        let set = self.set_of(place);
        let way = set
            .iter()
            .find(|way| way.is(place))
            .or_else(|| set.iter().find(|way| way.is_empty()))
            // Full: the place that has changed least, so that all get their turn.
            .or_else(|| {
                set.iter()
                    .min_by_key(|way| way.sequence.load(Ordering::Relaxed))
            });
        if let Some(way) = way {
            way.write(place, value);
        }
    }

    /// Forgets a place. To be called with the map locked.
    fn clear(&self, place: StorageKey) {
        if let Some(way) = self.set_of(place).iter().find(|way| way.is(place)) {
            way.write((0, 0), 0);
        }
    }
}

impl Way {
    fn is(&self, (context, key): StorageKey) -> bool {
        self.context.load(Ordering::Relaxed) == context && self.key.load(Ordering::Relaxed) == key
    }

    fn is_empty(&self) -> bool {
        self.context.load(Ordering::Relaxed) == 0
    }

    #[inline]
    fn get(&self, place: StorageKey) -> Option<u64> {
        // Acquire: what is read below is at least as new as this sequence.
        let before = self.sequence.load(Ordering::Acquire);
        if !self.is(place) {
            return None;
        }
        let value = self.value.load(Ordering::Relaxed);
        // Pairs with the fence in `write`: had any load above seen that write, the one below sees
        // its odd sequence, or a later one.
        fence(Ordering::Acquire);
        let after = self.sequence.load(Ordering::Relaxed);
        (before == after && before & 1 == 0).then_some(value)
    }

    fn write(&self, (context, key): StorageKey, value: u64) {
        let sequence = self.sequence.load(Ordering::Relaxed);
        self.sequence
            .store(sequence.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        self.context.store(context, Ordering::Relaxed);
        self.key.store(key, Ordering::Relaxed);
        self.value.store(value, Ordering::Relaxed);
        self.sequence
            .store(sequence.wrapping_add(2), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    static SHARED: Cache = Cache::new();

    #[test]
    fn a_cache_gives_what_was_put_last_until_it_is_cleared() {
        let cache = Cache::new();
        assert_eq!(cache.get((0xc1, 16)), None);
        cache.set((0xc1, 16), 5);
        cache.set((0xc1, 16), 6);
        cache.set((0xc2, 16), 7);
        assert_eq!(cache.get((0xc1, 16)), Some(6));
        assert_eq!(cache.get((0xc2, 16)), Some(7));
        cache.clear((0xc1, 16));
        assert_eq!(cache.get((0xc1, 16)), None);
        assert_eq!(cache.get((0xc2, 16)), Some(7));
    }

    #[test]
    fn a_full_cache_holds_the_newest_and_gives_nothing_wrong() {
        let cache = Cache::new();
        for key in 0..10_000 {
            cache.set((0xc1, key * 64), key);
            assert_eq!(cache.get((0xc1, key * 64)), Some(key));
        }
        let held = (0..10_000).filter(|&key| match cache.get((0xc1, key * 64)) {
            Some(value) => {
                assert_eq!(value, key);
                true
            }
            None => false,
        });
        // The keys spread over the sets well enough to fill nearly all of them.
        assert!(held.count() > SETS * WAYS * 9 / 10);
    }

    #[test]
    fn readers_beside_a_writer_never_see_a_value_of_another_place() {
        static STOP: AtomicBool = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut found = 0_u64;
                    // A reader may come to its turn only when the writer is through.
                    while !STOP.load(Ordering::Relaxed) || found == 0 {
                        for key in 0..64 {
                            if let Some(value) = SHARED.get((0xc1, key)) {
                                assert_eq!(value >> 32, key, "{value:x}");
                                found += 1;
                            }
                        }
                    }
                });
            }
            // All places in a few sets, so that each is taken over again and again.
            for round in 0..200_000_u64 {
                let key = round % 64;
                SHARED.set((0xc1, key), key << 32 | round & 0xffff_ffff);
                if round % 7 == 0 {
                    SHARED.clear((0xc1, key / 2));
                }
            }
            STOP.store(true, Ordering::Relaxed);
        });
    }
}
