//! Blocks of memory in a client's windows of one kind: a best-fit allocator over memory that an engine
//! commits and takes back.
//!
//! A heap begins with one window. What does not fit gets a further one, unless it is the host's, and a
//! further window in which nothing is left is given back by [`Heap::trim`].
//!
//! A block of [`GRANULE`] bytes or more lies on granules of its own; smaller ones share slabs. Of the host's those
//! that hold huge pages begin where their pages can be huge ones.
//! Memory that a block leaves stays committed for a while (up to [`RETAINED`] bytes, until the session
//! has nothing to do), so that programs which allocate and free in a loop cost the engine nothing; it
//! is given back to the device by [`Heap::trim`]. It never reaches another client uncleared: only an
//! engine's commit gives memory to a client, and that zeroes it.
//!
//! Knows neither handles nor quotas (`memory`).

use std::collections::{BTreeMap, BTreeSet};

use cuda_abi::CUresult;
use engine::Window;
use engine::arena::{EXTENT, GRANULE};
use protocol::operations::HUGE_PAGE;

/// Every block starts at a multiple of this many bytes, as cudaMalloc's do.
pub const ALIGNMENT: u64 = 512;

/// Bytes of a slab of small blocks, if there is room for a whole one.
const SLAB: u64 = 2 << 20;

/// Committed memory that a heap keeps at most without using it.
pub const RETAINED: u64 = 32 << 20;

/// The most that a further window is made larger than what was asked for, in bytes.
const LARGEST_ROUNDING: u64 = 64 << 30;

/// Where committed memory comes from, and addresses.
pub trait Backing {
    /// Makes zeroed memory accessible.
    ///
    /// # Errors
    /// When there is no more.
    fn commit(&mut self, range: Window) -> Result<(), CUresult>;
    /// Makes it accessible with what a former server has left there, or zeroed. Whether all of it was left.
    ///
    /// # Errors
    /// As [`Backing::commit`].
    fn recommit(&mut self, range: Window) -> Result<bool, CUresult>;
    /// Takes it back, and with it what a former server has left where nothing is committed.
    fn decommit(&mut self, range: Window);
    /// Gives a further window of a device, of at least so many bytes.
    ///
    /// # Errors
    /// When there are not as many addresses in a row.
    fn extend(&mut self, device: u32, bytes: u64) -> Result<Window, CUresult>;
    /// Takes such a window back, of which nothing is committed.
    fn retract(&mut self, window: Window);
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
    /// Gives what it is then: first address and bytes.
    fn join(&mut self, mut start: u64, mut bytes: u64, apart: impl Fn(u64) -> bool) -> (u64, u64) {
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
        (start, bytes)
    }

    /// Takes `bytes` that begin `phase` bytes behind where a huge page does, from the smallest range that has them.
    fn take_in_phase(&mut self, bytes: u64, phase: u64) -> Option<u64> {
        let (length, start, at) =
            self.by_size
                .range((bytes, 0)..)
                .find_map(|&(length, start)| {
                    let gap = phase.wrapping_sub(start) % HUGE_PAGE;
                    (gap + bytes <= length).then_some((length, start, start + gap))
                })?;
        self.take_part((start, length), (at, bytes));
        Some(at)
    }

    /// Takes this very range, if all of it is there.
    fn take_at(&mut self, at: u64, bytes: u64) -> bool {
        let before = self.by_start.range(..=at).next_back();
        let Some((&start, &length)) = before else {
            return false;
        };
        let fits = at
            .checked_add(bytes)
            .is_some_and(|end| end <= start + length);
        if fits {
            self.take_part((start, length), (at, bytes));
        }
        fits
    }

    /// Takes part of one of the ranges.
    fn take_part(&mut self, (start, length): (u64, u64), (at, bytes): (u64, u64)) {
        self.remove(start);
        if at > start {
            self.add(start, at - start);
        }
        if start + length > at + bytes {
            self.add(at + bytes, start + length - (at + bytes));
        }
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

/// Whether an address is where a window begins, be there one before it or not, or the first one ends.
fn parts_windows((first, further): (Window, &BTreeMap<u64, u64>), at: u64) -> bool {
    at == first.base || at == first.base + first.bytes || further.contains_key(&at)
}

#[derive(Debug)]
struct Slab {
    bytes: u64,
    used: u64,
}

impl Ranges {
    /// Takes `bytes` bytes that begin at a multiple of `align`, a power of two: the last ones of a range, the smallest or the largest
    /// that has them, so that what is committed from its beginning on comes near them late.
    fn take_aligned(&mut self, bytes: u64, align: u64, of_largest: bool) -> Option<u64> {
        let mut ranges = self.by_size.range((bytes, 0)..);
        let has_them = |&(length, start): &(u64, u64)| {
            let at = (start + length - bytes) & !(align - 1);
            (at >= start).then_some((length, start, at))
        };
        let (length, start, at) = match of_largest {
            true => ranges.rev().find_map(has_them),
            false => ranges.find_map(has_them),
        }?;
        self.take_part((start, length), (at, bytes));
        Some(at)
    }
}

/// The blocks of some windows.
#[derive(Debug)]
pub struct Heap {
    /// The device that gives further windows, if any does.
    device: Option<u32>,
    first: Window,
    /// Bytes of each further window, by its first address.
    further: BTreeMap<u64, u64>,
    /// Whether one of them may be without any block.
    maybe_empty: bool,
    /// Not committed.
    vacant: Ranges,
    /// Committed, in no block and no slab.
    retained: Ranges,
    /// Parts of slabs that are in no block.
    small: Ranges,
    slabs: BTreeMap<u64, Slab>,
    /// Memory of blocks that were placed where they lay in a former server, which has not left it.
    not_left: Vec<Window>,
}

impl Heap {
    /// A heap over a window of which nothing is committed, and over those that a device gives.
    #[must_use]
    pub fn new(first: Window, device: Option<u32>) -> Self {
        let mut vacant = Ranges::default();
        vacant.add(first.base, first.bytes);
        Self {
            device,
            first,
            further: BTreeMap::new(),
            maybe_empty: false,
            vacant,
            retained: Ranges::default(),
            small: Ranges::default(),
            slabs: BTreeMap::new(),
            not_left: Vec::new(),
        }
    }

    /// Adds a further window that there was in a former server.
    pub fn add_window(&mut self, window: Window) {
        self.further.insert(window.base, window.bytes);
        self.vacant.add(window.base, window.bytes);
        self.maybe_empty = true;
    }

    /// What a block of `bytes` bytes takes, or `None` if no window can be as large.
    #[must_use]
    pub fn rounded(&self, bytes: u64) -> Option<u64> {
        if self.device.is_none() && bytes > self.first.bytes {
            return None;
        }
        let unit = match bytes > GRANULE - ALIGNMENT {
            true => GRANULE,
            false => ALIGNMENT,
        };
        bytes.max(1).checked_next_multiple_of(unit)
    }

    /// The window in which an address lies.
    #[must_use]
    pub fn window_of(&self, address: u64) -> Option<Window> {
        let before = self.further.range(..=address).next_back();
        let further = before.map(|(&base, &bytes)| Window { base, bytes });
        [Some(self.first), further]
            .into_iter()
            .flatten()
            .find(|window| window.contains(address, 1))
    }

    /// Committed bytes that are in no block.
    #[must_use]
    pub const fn unused(&self) -> u64 {
        self.retained.total + self.small.total
    }

    /// Whether [`Heap::trim`] may have something to give back.
    #[must_use]
    pub const fn retains(&self) -> bool {
        self.retained.total > 0 || self.maybe_empty
    }

    /// Makes a block of a size that [`Heap::rounded`] gave. One of the host's that is as large as a huge page begins
    /// where one does, if there is room.
    ///
    /// # Errors
    /// CUDA_ERROR_OUT_OF_MEMORY, with everything as before.
    pub fn allocate(&mut self, bytes: u64, backing: &mut dyn Backing) -> Result<u64, CUresult> {
        if bytes >= GRANULE {
            let phase = (self.device.is_none() && bytes >= HUGE_PAGE).then_some(0);
            return self.granules(bytes, phase, backing);
        }
        if let Some(start) = self.small.take(bytes) {
            self.count(start, bytes);
            return Ok(start);
        }
        let (base, slab) = match self.granules(SLAB, None, backing) {
            Ok(base) => (base, SLAB),
            Err(_) => (self.granules(GRANULE, None, backing)?, GRANULE),
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

    /// Makes a block where one lay in a former server, of a size that [`Heap::rounded`] gave: in one window, apart
    /// from all others. Its memory keeps its contents.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE where there is no room for it, CUDA_ERROR_OUT_OF_MEMORY.
    pub fn place(
        &mut self,
        start: u64,
        bytes: u64,
        backing: &mut dyn Backing,
    ) -> Result<(), CUresult> {
        let unit = match bytes >= GRANULE {
            true => GRANULE,
            false => ALIGNMENT,
        };
        let window = self.window_of(start);
        let is_inside = window.is_some_and(|window| window.contains(start, bytes));
        if !start.is_multiple_of(unit) || !is_inside {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        if bytes >= GRANULE {
            return self.place_granules(start, bytes, backing);
        }
        // Slabs are made again of the granules that their blocks touch.
        let first = start / GRANULE * GRANULE;
        let end = (start + bytes).next_multiple_of(GRANULE);
        for granule in (first..end).step_by(GRANULE as usize) {
            let before = self.slabs.range(..=granule).next_back();
            if before.is_some_and(|(&base, slab)| granule < base + slab.bytes) {
                continue;
            }
            self.place_granules(granule, GRANULE, backing)?;
            let slab = Slab {
                bytes: GRANULE,
                used: 0,
            };
            self.slabs.insert(granule, slab);
            self.small.add(granule, GRANULE);
        }
        for boundary in (first + GRANULE..end).step_by(GRANULE as usize) {
            self.join_slabs(boundary);
        }
        if !self.small.take_at(start, bytes) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        self.count(start, bytes);
        Ok(())
    }

    /// Makes one slab of the one that begins at an address, if one does, and the one before it.
    fn join_slabs(&mut self, boundary: u64) {
        let Some(slab) = self.slabs.remove(&boundary) else {
            return;
        };
        if let Some((_, before)) = self.slabs.range_mut(..boundary).next_back() {
            before.bytes += slab.bytes;
            before.used += slab.used;
        }
        if let Some(bytes) = self.small.remove(boundary) {
            let slabs = &self.slabs;
            self.small
                .join(boundary, bytes, |at| slabs.contains_key(&at));
        }
    }

    fn place_granules(
        &mut self,
        start: u64,
        bytes: u64,
        backing: &mut dyn Backing,
    ) -> Result<(), CUresult> {
        if !self.vacant.take_at(start, bytes) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let range = Window { base: start, bytes };
        let is_left = backing
            .recommit(range)
            .inspect_err(|_| self.vacate(start, bytes))?;
        if !is_left {
            self.not_left.push(range);
        }
        Ok(())
    }

    /// Whether the former server has left all memory of [`Heap::place`].
    pub fn has_all_left(&self) -> bool {
        self.not_left.is_empty()
    }

    /// Whether any of a range is memory of [`Heap::place`] that the former server has not left.
    pub fn is_lost(&self, start: u64, bytes: u64) -> bool {
        let mut lost = self.not_left.iter();
        lost.any(|range| range.base < start + bytes && start < range.base + range.bytes)
    }

    /// Takes back whatever a former server left in memory that is in no block.
    pub fn clear_vacant(&self, backing: &mut dyn Backing) {
        for (&base, &bytes) in &self.vacant.by_start {
            backing.decommit(Window { base, bytes });
        }
    }

    fn count(&mut self, start: u64, bytes: u64) {
        if let Some((_, slab)) = self.slabs.range_mut(..=start).next_back() {
            slab.used += bytes;
        }
    }

    fn granules(
        &mut self,
        bytes: u64,
        phase: Option<u64>,
        backing: &mut dyn Backing,
    ) -> Result<u64, CUresult> {
        let retained = match phase {
            Some(phase) => self.retained.take_in_phase(bytes, phase),
            None => self.retained.take(bytes),
        };
        if let Some(start) = retained {
            return Ok(start);
        }
        match self.commit(bytes, phase, backing) {
            // What is retained may be what is missing, as memory or as addresses.
            Err(_) if self.retained.total > 0 => {
                self.trim_retained(backing);
                self.commit(bytes, phase, backing)
            }
            result => result,
        }
    }

    fn commit(
        &mut self,
        bytes: u64,
        phase: Option<u64>,
        backing: &mut dyn Backing,
    ) -> Result<u64, CUresult> {
        let placed = phase.and_then(|phase| self.vacant.take_in_phase(bytes, phase));
        let base = match placed.or_else(|| self.vacant.take(bytes)) {
            Some(base) => base,
            None => {
                self.grow(bytes, backing)?;
                let base = self.vacant.take(bytes);
                base.ok_or(CUresult::ERROR_OUT_OF_MEMORY)?
            }
        };
        backing.commit(Window { base, bytes }).inspect_err(|_| {
            self.vacate(base, bytes);
        })?;
        Ok(base)
    }

    /// Adds a further window that has room for so many bytes: for as many as there were before, if it
    /// can be, so that windows stay few.
    fn grow(&mut self, bytes: u64, backing: &mut dyn Backing) -> Result<(), CUresult> {
        let has = self.first.bytes + self.further.values().sum::<u64>();
        let rounded = bytes.max(has.min(LARGEST_ROUNDING));
        self.extend(rounded, backing)
            .or_else(|_| self.extend(bytes, backing))
    }

    fn extend(&mut self, bytes: u64, backing: &mut dyn Backing) -> Result<(), CUresult> {
        let device = self.device.ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
        let window = backing.extend(device, bytes)?;
        self.further.insert(window.base, window.bytes);
        self.vacant.add(window.base, window.bytes);
        Ok(())
    }

    /// Notes that a range is not committed any more. Ranges of two windows are never joined.
    fn vacate(&mut self, start: u64, bytes: u64) {
        let windows = (self.first, &self.further);
        let joined = self
            .vacant
            .join(start, bytes, |at| parts_windows(windows, at));
        let (base, bytes) = joined;
        self.maybe_empty |= self.further.get(&base) == Some(&bytes);
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
            let windows = (self.first, &self.further);
            self.retained
                .join(start, bytes, |at| parts_windows(windows, at));
        } else {
            backing.decommit(Window { base: start, bytes });
            self.vacate(start, bytes);
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
        // A device's engine takes memory in larger pieces than it is asked for, and may still have some in a small range between
        // blocks, where then nothing can be mapped.
        let apart = self.device.is_some();
        if let Some(start) = self.vacant.take_aligned(bytes, align, apart) {
            return Ok(start);
        }
        // What is retained may be in the way.
        self.trim_retained(backing);
        if let Some(start) = self.vacant.take_aligned(bytes, align, apart) {
            return Ok(start);
        }
        // A window may begin just behind a multiple.
        let full = CUresult::ERROR_OUT_OF_MEMORY;
        let gap = align.saturating_sub(EXTENT);
        self.grow(bytes.checked_add(gap).ok_or(full)?, backing)?;
        self.vacant.take_aligned(bytes, align, apart).ok_or(full)
    }

    /// As [`Heap::reserve`], of addresses that begin `phase` bytes behind where a huge page does, if there is room.
    ///
    /// # Errors
    /// As [`Heap::reserve`].
    pub fn reserve_in_phase(
        &mut self,
        bytes: u64,
        phase: u64,
        backing: &mut dyn Backing,
    ) -> Result<u64, CUresult> {
        match self.vacant.take_in_phase(bytes, phase) {
            Some(start) => Ok(start),
            None => self.reserve(bytes, GRANULE, backing),
        }
    }

    /// Takes addresses back that [`Heap::reserve`] gave.
    pub fn unreserve(&mut self, start: u64, bytes: u64) {
        self.vacate(start, bytes);
    }

    /// Gives memory that is in no block back to the device, and windows without any.
    pub fn trim(&mut self, backing: &mut dyn Backing) {
        self.trim_retained(backing);
        if !std::mem::take(&mut self.maybe_empty) {
            return;
        }
        let Self {
            further, vacant, ..
        } = self;
        further.retain(|&base, &mut bytes| {
            if vacant.by_start.get(&base) != Some(&bytes) {
                return true;
            }
            vacant.remove(base);
            backing.retract(Window { base, bytes });
            false
        });
    }

    fn trim_retained(&mut self, backing: &mut dyn Backing) {
        let retained = std::mem::take(&mut self.retained);
        for (&base, &bytes) in &retained.by_start {
            backing.decommit(Window { base, bytes });
            self.vacate(base, bytes);
        }
    }
}

#[cfg(test)]
mod tests;
