//! Blocks of memory in one window of a client: a best-fit allocator over memory that an engine
//! commits and takes back.
//!
//! A block of [`GRANULE`] bytes or more lies on granules of its own; smaller ones share slabs.
//! Memory that a block leaves stays committed for a while (up to [`RETAINED`] bytes, until the session
//! has nothing to do), so that programs which allocate and free in a loop cost the engine nothing; it
//! is given back to the device by [`Heap::trim`]. It never reaches another client uncleared: only an
//! engine's commit gives memory to a client, and that zeroes it.
//!
//! Knows neither handles nor quotas (`memory`).

use std::collections::{BTreeMap, BTreeSet};

use cuda_abi::CUresult;
use engine::Window;
use engine::arena::GRANULE;

/// Every block starts at a multiple of this many bytes, as cudaMalloc's do.
pub const ALIGNMENT: u64 = 512;

/// Bytes of a slab of small blocks, if there is room for a whole one.
const SLAB: u64 = 2 << 20;

/// Committed memory that a heap keeps at most without using it.
pub const RETAINED: u64 = 32 << 20;

/// Where committed memory comes from.
pub trait Backing {
    /// Makes zeroed memory accessible.
    ///
    /// # Errors
    /// When there is no more.
    fn commit(&mut self, range: Window) -> Result<(), CUresult>;
    /// Takes it back.
    fn decommit(&mut self, range: Window);
}

/// A set of address ranges, found by address and by size.
#[derive(Debug, Default)]
struct Ranges {
    by_start: BTreeMap<u64, u64>,
    by_size: BTreeSet<(u64, u64)>,
    total: u64,
}

impl Ranges {
    fn add(&mut self, start: u64, bytes: u64) {
        self.by_start.insert(start, bytes);
        self.by_size.insert((bytes, start));
        self.total += bytes;
    }

    fn remove(&mut self, start: u64) -> Option<u64> {
        let bytes = self.by_start.remove(&start)?;
        self.by_size.remove(&(bytes, start));
        self.total -= bytes;
        Some(bytes)
    }

    /// Adds a range, joined with those that touch it unless `apart` says that an address parts them.
    fn join(&mut self, mut start: u64, mut bytes: u64, apart: impl Fn(u64) -> bool) {
        if !apart(start)
            && let Some((&before, &length)) = self.by_start.range(..start).next_back()
            && before + length == start
        {
            self.remove(before);
            start = before;
            bytes += length;
        }
        let end = start + bytes;
        if !apart(end)
            && let Some(length) = self.remove(end)
        {
            bytes += length;
        }
        self.add(start, bytes);
    }

    /// Takes `bytes` from the smallest range that has them.
    fn take(&mut self, bytes: u64) -> Option<u64> {
        let &(length, start) = self.by_size.range((bytes, 0)..).next()?;
        self.remove(start);
        if length > bytes {
            self.add(start + bytes, length - bytes);
        }
        Some(start)
    }
}

#[derive(Debug)]
struct Slab {
    bytes: u64,
    used: u64,
}

impl Ranges {
    /// Takes `bytes` bytes that begin at a multiple of `align`, a power of two: the last ones of a range,
    /// so that what is committed from its beginning on comes near them late.
    fn take_aligned(&mut self, bytes: u64, align: u64) -> Option<u64> {
        let (length, start, at) =
            self.by_size
                .range((bytes, 0)..)
                .find_map(|&(length, start)| {
                    let at = (start + length - bytes) & !(align - 1);
                    (at >= start).then_some((length, start, at))
                })?;
        self.remove(start);
        if at > start {
            self.add(start, at - start);
        }
        if start + length > at + bytes {
            self.add(at + bytes, start + length - (at + bytes));
        }
        Some(at)
    }
}

/// The blocks of one window.
#[derive(Debug)]
pub struct Heap {
    window: Window,
    /// Not committed.
    vacant: Ranges,
    /// Committed, in no block and no slab.
    retained: Ranges,
    /// Parts of slabs that are in no block.
    small: Ranges,
    slabs: BTreeMap<u64, Slab>,
}

impl Heap {
    /// A heap over a window of which nothing is committed.
    #[must_use]
    pub fn new(window: Window) -> Self {
        let mut vacant = Ranges::default();
        vacant.add(window.base, window.bytes);
        Self {
            window,
            vacant,
            retained: Ranges::default(),
            small: Ranges::default(),
            slabs: BTreeMap::new(),
        }
    }

    /// What a block of `bytes` bytes takes, or `None` if no window is as large.
    #[must_use]
    pub fn rounded(&self, bytes: u64) -> Option<u64> {
        if bytes > self.window.bytes {
            return None;
        }
        let bytes = bytes.max(1);
        Some(if bytes > GRANULE - ALIGNMENT {
            bytes.next_multiple_of(GRANULE)
        } else {
            bytes.next_multiple_of(ALIGNMENT)
        })
    }

    /// Committed bytes that are in no block.
    #[must_use]
    pub const fn unused(&self) -> u64 {
        self.retained.total + self.small.total
    }

    /// Whether [`Heap::trim`] has something to give back.
    #[must_use]
    pub const fn retains(&self) -> bool {
        self.retained.total > 0
    }

    /// Makes a block of a size that [`Heap::rounded`] gave.
    ///
    /// # Errors
    /// CUDA_ERROR_OUT_OF_MEMORY, with everything as before.
    pub fn allocate(&mut self, bytes: u64, backing: &mut dyn Backing) -> Result<u64, CUresult> {
        if bytes >= GRANULE {
            return self.granules(bytes, backing);
        }
        if let Some(start) = self.small.take(bytes) {
            self.count(start, bytes);
            return Ok(start);
        }
        let (base, slab) = match self.granules(SLAB, backing) {
            Ok(base) => (base, SLAB),
            Err(_) => (self.granules(GRANULE, backing)?, GRANULE),
        };
        self.slabs.insert(
            base,
            Slab {
                bytes: slab,
                used: 0,
            },
        );
        self.small.add(base, slab);
        let start = self
            .small
            .take(bytes)
            .ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
        self.count(start, bytes);
        Ok(start)
    }

    fn count(&mut self, start: u64, bytes: u64) {
        if let Some((_, slab)) = self.slabs.range_mut(..=start).next_back() {
            slab.used += bytes;
        }
    }

    fn granules(&mut self, bytes: u64, backing: &mut dyn Backing) -> Result<u64, CUresult> {
        if let Some(start) = self.retained.take(bytes) {
            return Ok(start);
        }
        match self.commit(bytes, backing) {
            // What is retained may be what is missing, as memory or as addresses.
            Err(_) if self.retained.total > 0 => {
                self.trim(backing);
                self.commit(bytes, backing)
            }
            result => result,
        }
    }

    fn commit(&mut self, bytes: u64, backing: &mut dyn Backing) -> Result<u64, CUresult> {
        let base = self
            .vacant
            .take(bytes)
            .ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
        backing.commit(Window { base, bytes }).inspect_err(|_| {
            self.vacant.join(base, bytes, |_| false);
        })?;
        Ok(base)
    }

    /// Takes a block back, given where [`Heap::allocate`] put it and its size there.
    pub fn release(&mut self, start: u64, bytes: u64, backing: &mut dyn Backing) {
        if bytes >= GRANULE {
            self.retain(start, bytes, backing);
            return;
        }
        let slabs = &mut self.slabs;
        self.small.join(start, bytes, |at| slabs.contains_key(&at));
        let Some((&base, slab)) = slabs.range_mut(..=start).next_back() else {
            return;
        };
        slab.used -= bytes;
        if slab.used == 0 {
            let bytes = slab.bytes;
            slabs.remove(&base);
            self.small.remove(base);
            self.retain(base, bytes, backing);
        }
    }

    fn retain(&mut self, start: u64, bytes: u64, backing: &mut dyn Backing) {
        if self.retained.total + bytes <= RETAINED {
            self.retained.join(start, bytes, |_| false);
        } else {
            backing.decommit(Window { base: start, bytes });
            self.vacant.join(start, bytes, |_| false);
        }
    }

    /// Sets granules' addresses aside without committing them.
    ///
    /// # Errors
    /// CUDA_ERROR_OUT_OF_MEMORY when there are not as many in a row.
    pub fn reserve(
        &mut self,
        bytes: u64,
        align: u64,
        backing: &mut dyn Backing,
    ) -> Result<u64, CUresult> {
        let taken = self.vacant.take_aligned(bytes, align).or_else(|| {
            // What is retained may be in the way.
            self.trim(backing);
            self.vacant.take_aligned(bytes, align)
        });
        taken.ok_or(CUresult::ERROR_OUT_OF_MEMORY)
    }

    /// Takes addresses back that [`Heap::reserve`] gave.
    pub fn unreserve(&mut self, start: u64, bytes: u64) {
        self.vacant.join(start, bytes, |_| false);
    }

    /// Gives memory that is in no block back to the device.
    pub fn trim(&mut self, backing: &mut dyn Backing) {
        let retained = std::mem::take(&mut self.retained);
        for (&base, &bytes) in &retained.by_start {
            backing.decommit(Window { base, bytes });
            self.vacant.join(base, bytes, |_| false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts what is committed, checks that nothing is twice, and has only so much.
    struct Device {
        room: u64,
        granules: BTreeSet<u64>,
        commits: usize,
    }

    impl Device {
        fn new(room: u64) -> Self {
            Self {
                room,
                granules: BTreeSet::new(),
                commits: 0,
            }
        }
    }

    impl Backing for Device {
        fn commit(&mut self, range: Window) -> Result<(), CUresult> {
            assert!(range.base.is_multiple_of(GRANULE) && range.bytes.is_multiple_of(GRANULE));
            if self.granules.len() as u64 * GRANULE + range.bytes > self.room {
                return Err(CUresult::ERROR_OUT_OF_MEMORY);
            }
            self.commits += 1;
            for at in (range.base..range.base + range.bytes).step_by(GRANULE as usize) {
                assert!(self.granules.insert(at), "committed twice");
            }
            Ok(())
        }
        fn decommit(&mut self, range: Window) {
            for at in (range.base..range.base + range.bytes).step_by(GRANULE as usize) {
                assert!(self.granules.remove(&at), "was not committed");
            }
        }
    }

    const WINDOW: Window = Window {
        base: 0x1100_0000_0000,
        bytes: 1 << 30,
    };

    #[test]
    fn reserved_addresses_are_aligned_and_never_committed() {
        let mut device = Device::new(WINDOW.bytes);
        let mut heap = Heap::new(WINDOW);
        let block = heap.allocate(3 * GRANULE, &mut device).unwrap();
        let align = 2 << 20;
        let one = heap.reserve(align, align, &mut device).unwrap();
        let two = heap.reserve(4 * align, 8 * align, &mut device).unwrap();
        assert!(one.is_multiple_of(align) && two.is_multiple_of(8 * align));
        assert_eq!(device.granules.len(), 3);
        assert!(heap.reserve(WINDOW.bytes, align, &mut device).is_err());
        heap.unreserve(one, align);
        heap.unreserve(two, 4 * align);
        heap.release(block, 3 * GRANULE, &mut device);
        assert_eq!(
            heap.reserve(WINDOW.bytes, align, &mut device),
            Ok(WINDOW.base)
        );
        assert!(device.granules.is_empty(), "what was retained made room");
    }

    #[test]
    fn allocating_and_freeing_in_a_loop_commits_once() {
        let mut device = Device::new(WINDOW.bytes);
        let mut heap = Heap::new(WINDOW);
        for _ in 0..100 {
            let bytes = heap.rounded(4 << 20).unwrap();
            let block = heap.allocate(bytes, &mut device).unwrap();
            heap.release(block, bytes, &mut device);
        }
        assert_eq!(device.commits, 1);
        assert!(heap.retains());
        heap.trim(&mut device);
        assert!(device.granules.is_empty());
        assert!(!heap.retains());
    }

    #[test]
    fn a_large_block_goes_back_to_the_device_at_once() {
        let mut device = Device::new(WINDOW.bytes);
        let mut heap = Heap::new(WINDOW);
        let bytes = heap.rounded(RETAINED + 1).unwrap();
        let block = heap.allocate(bytes, &mut device).unwrap();
        heap.release(block, bytes, &mut device);
        assert!(device.granules.is_empty());
    }

    #[test]
    fn out_of_memory_leaks_nothing_and_retained_memory_is_used_first() {
        let mut device = Device::new(8 << 20);
        let mut heap = Heap::new(WINDOW);
        assert_eq!(
            heap.allocate(16 << 20, &mut device),
            Err(CUresult::ERROR_OUT_OF_MEMORY),
            "more than the device has"
        );
        let block = heap.allocate(6 << 20, &mut device).unwrap();
        heap.release(block, 6 << 20, &mut device);
        heap.allocate(8 << 20, &mut device)
            .expect("what was retained is given back for it");
        assert_eq!(
            heap.allocate(512, &mut device),
            Err(CUresult::ERROR_OUT_OF_MEMORY)
        );
        assert_eq!(heap.rounded(WINDOW.bytes + 1), None);
        assert_eq!(heap.rounded(u64::MAX), None);
    }

    #[test]
    fn a_small_block_needs_only_a_granule_when_there_is_no_more() {
        let mut device = Device::new(GRANULE);
        let mut heap = Heap::new(WINDOW);
        heap.allocate(512, &mut device).unwrap();
    }

    #[test]
    fn random_blocks_never_overlap_and_everything_comes_back() {
        let mut device = Device::new(WINDOW.bytes);
        let mut heap = Heap::new(WINDOW);
        let mut blocks: BTreeMap<u64, u64> = BTreeMap::new();
        let mut state = 7u64;
        let mut roll = |below: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) % below
        };
        for round in 0..20_000 {
            if round % 977 == 0 {
                heap.trim(&mut device);
            }
            if roll(2) == 0 && blocks.len() < 500 {
                let wanted = match roll(3) {
                    0 => roll(2000),
                    1 => roll(100 << 10),
                    _ => roll(3 << 20),
                };
                let bytes = heap.rounded(wanted).unwrap();
                assert!(bytes >= wanted && bytes > 0);
                let start = heap.allocate(bytes, &mut device).unwrap();
                assert!(start.is_multiple_of(ALIGNMENT));
                assert!(WINDOW.contains(start, bytes));
                if let Some((&before, &length)) = blocks.range(..=start).next_back() {
                    assert!(before + length <= start, "overlap");
                }
                if let Some((&after, _)) = blocks.range(start..).next() {
                    assert!(start + bytes <= after, "overlap");
                }
                for granule in [start, start + bytes - 1] {
                    assert!(device.granules.contains(&(granule / GRANULE * GRANULE)));
                }
                blocks.insert(start, bytes);
            } else if !blocks.is_empty() {
                let index = roll(blocks.len() as u64) as usize;
                let (&start, &bytes) = blocks.iter().nth(index).unwrap();
                blocks.remove(&start);
                heap.release(start, bytes, &mut device);
            }
        }
        for (start, bytes) in blocks {
            heap.release(start, bytes, &mut device);
        }
        heap.trim(&mut device);
        assert!(device.granules.is_empty(), "everything was given back");
        assert_eq!(heap.unused(), 0);
        assert_eq!(heap.vacant.by_start.len(), 1, "and is one range again");
    }
}
