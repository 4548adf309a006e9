//! A client's device memory: windows of virtual addresses, backed where the client has memory, and
//! what others share with it there. It begins with one window and gets more as its memory grows.
//!
//! Physical memory comes in chunks, each mapped as a whole, and exportable, so that it can outlive the
//! process. A chunk goes when the client has no granule of it left. Memory is cleared, on a stream of
//! the window's own, before the client's streams may go on: they wait on the GPU, nobody here does.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use cuda_abi::CUresult;
use cuda_abi::types::*;
use engine::{Owner, Window};

use crate::device::Device;
use crate::driver::Driver;
use crate::memory::granules::{Granules, is_granular};
use crate::memory::peek::DevicePeeks;
use crate::memory::physical::{Allocation, Mapping, Reservation};
use crate::memory::zero_fill::ZeroFillProgress;
use crate::sync::Handle;

/// The most that a chunk is made larger than what was asked for, as long as the client has no more than that
/// mapped and not in use.
const LARGEST_ROUNDING: u64 = 64 << 20;

/// What a client may have mapped and not in use, beyond as much as it uses: its quota counts what it uses, and
/// a granule in each of many chunks keeps them all.
const MOST_UNUSED: u64 = 256 << 20;

/// Between two looks whether memory is cleared, where that must be waited for.
const PAUSE: Duration = Duration::from_micros(50);

/// Memory of a client's that others use.
#[derive(Debug)]
pub(crate) struct SharedBlock {
    range: Window,
    device: Arc<Device>,
    /// The memory, which lives as long as this, whether the client does or not.
    chunks: Vec<Arc<Mapping>>,
    /// When it is cleared.
    cleared: Arc<ZeroFillProgress>,
}

impl SharedBlock {
    pub(crate) const fn range(&self) -> Window {
        self.range
    }

    pub(crate) const fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Lets a device reach it.
    ///
    /// # Errors
    /// The driver's status.
    pub(crate) fn reach(&self, device: &Device) -> Result<(), CUresult> {
        self.chunks
            .iter()
            .try_for_each(|chunk| chunk.reach(device, true))
    }
}

/// Zeroed memory without an address that a client knows.
#[derive(Debug)]
pub(crate) struct Physical {
    /// Where it is cleared. It stays there for good, so that nobody waits for the clearing to end.
    home: Mapping,
    allocation: Arc<Allocation>,
    cleared: Arc<ZeroFillProgress>,
}

impl Drop for Physical {
    fn drop(&mut self) {
        let device = self.allocation.device();
        while let Ok(driver) = device.enter()
            && !self.cleared.is_over(driver)
        {
            let _ = device.probe();
            std::thread::sleep(PAUSE);
        }
    }
}

/// Physical memory that the client has mapped.
#[derive(Debug)]
struct Mapped {
    mapping: Mapping,
    /// Kept while it is mapped.
    physical: Arc<Physical>,
}

/// Addresses of a client in one piece.
#[derive(Debug)]
struct Span {
    window: Window,
    reservation: Arc<Reservation>,
    granules: Granules,
}

impl Span {
    fn reserve(
        device: &Arc<Device>,
        window: Window,
        addresses: &Arc<dyn Owner>,
    ) -> Result<Self, CUresult> {
        let granularity = device.granularity();
        if !window.base.is_multiple_of(granularity) || !window.bytes.is_multiple_of(granularity) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        Ok(Self {
            window,
            reservation: Reservation::at(device, window, addresses)?,
            granules: Granules::new(window.base),
        })
    }
}

/// A client's addresses on one device.
#[derive(Debug)]
pub(crate) struct DeviceWindow {
    device: Arc<Device>,
    /// The first window, and further ones. No chunk and no range of the client's lies in two.
    spans: Vec<Span>,
    /// By address.
    chunks: BTreeMap<u64, Arc<Mapping>>,
    /// Bytes of all chunks.
    mapped: u64,
    /// Physical memory that the client mapped itself, by address.
    physical: BTreeMap<u64, Mapped>,
    /// Other devices that may reach all chunks.
    peers: Vec<Arc<Device>>,
    cleared: Arc<ZeroFillProgress>,
    /// The stream that clears; null until it is first needed.
    clearing: Handle<CUstream>,
    /// Ranges that were taken back while memory was still being cleared, or looked at.
    leaving: Vec<Window>,
    peeks: DevicePeeks,
}

impl DeviceWindow {
    /// Reserves a window's addresses.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for addresses that physical memory cannot be mapped at, and
    /// CUDA_ERROR_OUT_OF_MEMORY if this process uses some of them already.
    pub(crate) fn new(
        device: &Arc<Device>,
        window: Window,
        addresses: &Arc<dyn Owner>,
    ) -> Result<Self, CUresult> {
        let cleared = Arc::new(ZeroFillProgress::new(device)?);
        Ok(Self {
            device: Arc::clone(device),
            spans: vec![Span::reserve(device, window, addresses)?],
            chunks: BTreeMap::new(),
            mapped: 0,
            physical: BTreeMap::new(),
            peers: Vec::new(),
            cleared,
            clearing: Handle(CUstream::NULL),
            leaving: Vec::new(),
            peeks: DevicePeeks::new(device),
        })
    }

    /// See [`engine::Client::window_add`].
    ///
    /// # Errors
    /// As [`DeviceWindow::new`].
    pub(crate) fn add_window(
        &mut self,
        window: Window,
        addresses: &Arc<dyn Owner>,
    ) -> Result<(), CUresult> {
        let span = Span::reserve(&self.device, window, addresses)?;
        self.spans.push(span);
        Ok(())
    }

    /// See [`engine::Client::window_remove`]. Its addresses are free when its last chunk is.
    pub(crate) fn remove_window(&mut self, window: Window) {
        self.tidy();
        let mut number = 0;
        // Never the first.
        self.spans.retain(|span| {
            number += 1;
            number == 1 || span.window != window
        });
    }

    pub(crate) fn contains(&self, range: Window) -> bool {
        self.span_of(range).is_some()
    }

    /// Whether any of a range is an address of the client's on this device.
    pub(crate) fn overlaps(&self, range: Window) -> bool {
        let end = range.base.saturating_add(range.bytes);
        let mut windows = self.spans.iter().map(|span| span.window);
        windows.any(|window| window.base < end && range.base < window.base + window.bytes)
    }

    fn span_of(&self, range: Window) -> Option<&Span> {
        let mut spans = self.spans.iter();
        spans.find(|span| span.window.contains(range.base, range.bytes))
    }

    /// Whether the client has all of a range, which lies in one window.
    fn has_all(&self, range: Window) -> bool {
        let span = self.span_of(range);
        span.is_some_and(|span| span.granules.has_all(range))
    }

    /// Whether the client has any of a range. It has nothing of a window that was removed.
    fn has_any(&self, range: Window) -> bool {
        let span = self.span_of(range);
        span.is_some_and(|span| span.granules.has_any(range))
    }

    /// Notes what the client has of a window.
    fn set_granules(&mut self, range: Window, had: bool) {
        let mut spans = self.spans.iter_mut();
        let span = spans.find(|span| span.window.contains(range.base, range.bytes));
        if let Some(span) = span {
            span.granules.set(range, had);
        }
    }

    /// Bytes that the client has.
    fn used(&self) -> u64 {
        self.spans.iter().map(|span| span.granules.bytes()).sum()
    }

    /// Whether the client has all of a range of this window, and its work on a device may be let reach
    /// it.
    pub(crate) fn has(&self, range: Window, on: &Device) -> bool {
        self.has_all(range) || self.has_mapped(range, on)
    }

    /// Whether all of a range is physical memory that the client mapped for a device.
    fn has_mapped(&self, range: Window, on: &Device) -> bool {
        let end = range.base + range.bytes;
        let mut at = range.base;
        while at < end {
            let part = self.physical.range(..=at).next_back();
            let Some((_, Mapped { mapping, .. })) = part else {
                return false;
            };
            if !mapping.at().contains(at, 1) || !mapping.is_reached(on) {
                return false;
            }
            at = mapping.at().base + mapping.at().bytes;
        }
        true
    }

    /// Lets another device reach the client's memory here, what there is and what there will be.
    ///
    /// # Errors
    /// CUDA_ERROR_PEER_ACCESS_UNSUPPORTED if the devices cannot, and the driver's status.
    pub(crate) fn let_reach(&mut self, other: &Arc<Device>) -> Result<(), CUresult> {
        let known = |device: &Arc<Device>| Arc::ptr_eq(device, other);
        if known(&self.device) || self.peers.iter().any(known) {
            return Ok(());
        }
        if !other.can_reach(&self.device) {
            return Err(CUresult::ERROR_PEER_ACCESS_UNSUPPORTED);
        }
        for chunk in self.chunks.values() {
            chunk.reach(other, true)?;
        }
        self.peers.push(Arc::clone(other));
        Ok(())
    }

    /// Other devices that may reach all of the client's memory here.
    pub(crate) fn peers(&self) -> &[Arc<Device>] {
        &self.peers
    }

    pub(crate) fn cleared(&self) -> &Arc<ZeroFillProgress> {
        &self.cleared
    }

    /// What the client looks at.
    pub(crate) fn peeks(&self) -> &DevicePeeks {
        &self.peeks
    }

    /// See [`engine::Client::peek`]. The address is the client's, on this window's device.
    ///
    /// # Errors
    /// As [`DevicePeeks::value`].
    pub(crate) fn peek(&mut self, address: u64, bytes: u32) -> Result<u64, CUresult> {
        self.peeks.value(address, bytes, &self.cleared)
    }

    /// Gives the client a range of this window, cleared.
    ///
    /// # Errors
    /// CUDA_ERROR_OUT_OF_MEMORY; then nothing has changed.
    pub(crate) fn commit(&mut self, range: Window) -> Result<(), CUresult> {
        if !is_granular(range) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let device = Arc::clone(&self.device);
        let driver = device.enter()?;
        self.tidy();
        let result = self.back(range).and_then(|()| self.clear(driver, range));
        match device.confirm(result) {
            Ok(()) => {
                self.set_granules(range, true);
                Ok(())
            }
            Err(code) => {
                self.release(driver, range);
                Err(code)
            }
        }
    }

    /// Takes a range of this window back. Whoever calls knows that no work uses it.
    pub(crate) fn decommit(&mut self, range: Window) {
        if !is_granular(range) {
            return;
        }
        self.set_granules(range, false);
        let device = Arc::clone(&self.device);
        if let Ok(driver) = device.enter() {
            self.release(driver, range);
        }
    }

    /// Maps chunks wherever a range has none.
    fn back(&mut self, range: Window) -> Result<(), CUresult> {
        let granularity = self.device.granularity();
        let span = self.span_of(range);
        let window = span.ok_or(CUresult::ERROR_INVALID_VALUE)?.window;
        let end = (range.base + range.bytes).next_multiple_of(granularity);
        let mut at = range.base / granularity * granularity;
        while at < end {
            let covered = self.chunks.range(..=at).next_back();
            if let Some((_, chunk)) = covered
                && chunk.at().contains(at, 1)
            {
                at = chunk.at().base + chunk.at().bytes;
                continue;
            }
            let next = self.chunks.range(at..).next().map(|(&base, _)| base);
            let other = self.physical.range(at..).next().map(|(&base, _)| base);
            let next = next.into_iter().chain(other).min();
            let limit = next.map_or(u64::MAX, |next| next - at);
            let limit = limit.min(window.base + window.bytes - at);
            let asked = limit.min(end - at);
            let used = self.used();
            let unused = self.mapped.saturating_sub(used);
            if unused > used.saturating_add(range.bytes).saturating_add(MOST_UNUSED) {
                return Err(CUresult::ERROR_OUT_OF_MEMORY);
            }
            // Clients with much memory get more at a time, so that chunks stay few.
            let rounded = asked.max(
                self.mapped
                    .min(LARGEST_ROUNDING.saturating_sub(unused))
                    .next_multiple_of(granularity)
                    .min(limit),
            );
            let bytes = match self.map(at, rounded) {
                Ok(()) => rounded,
                Err(CUresult::ERROR_OUT_OF_MEMORY) if asked < rounded => {
                    self.map(at, asked)?;
                    asked
                }
                Err(code) => return Err(code),
            };
            at += bytes;
        }
        Ok(())
    }

    fn map(&mut self, base: u64, bytes: u64) -> Result<(), CUresult> {
        let at = Window { base, bytes };
        let span = self.span_of(at).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        let reservation = Arc::clone(&span.reservation);
        let allocation = Allocation::new(&self.device, bytes)?;
        let chunk = Mapping::new(&reservation, at, &allocation, 0)?;
        for device in [&self.device].into_iter().chain(&self.peers) {
            chunk.reach(device, true)?;
        }
        self.mapped += bytes;
        self.chunks.insert(base, Arc::new(chunk));
        Ok(())
    }

    fn clear(&mut self, driver: &Driver, range: Window) -> Result<(), CUresult> {
        let clearing = self.clearing_stream(driver)?;
        // SAFETY: the range is mapped and this device reaches it; the stream is ours.
        unsafe { driver.cuMemsetD8Async(range.base, 0, range.bytes as usize, clearing)? };
        self.record_clearing(driver)
    }

    /// Writes a few bytes to memory of this window's device, before the client's later work.
    ///
    /// # Errors
    /// The driver's status.
    pub(crate) fn set(&mut self, to: u64, bytes: &[u8]) -> Result<(), CUresult> {
        let device = Arc::clone(&self.device);
        let written = (|| {
            let driver = device.enter()?;
            let clearing = self.clearing_stream(driver)?;
            // SAFETY: the destination is a variable of a module that is being loaded, large enough for
            // the bytes, as the caller knows; so few of them the driver has taken when it returns.
            unsafe {
                driver.cuMemcpyHtoDAsync_v2(to, bytes.as_ptr().cast(), bytes.len(), clearing)?;
            }
            self.record_clearing(driver)
        })();
        device.confirm(written)
    }

    /// The stream that clears.
    fn clearing_stream(&mut self, driver: &Driver) -> Result<CUstream, CUresult> {
        if self.clearing.0.is_null() {
            // SAFETY: the pointer is to our own field.
            unsafe { driver.cuStreamCreate(&raw mut self.clearing.0, CU_STREAM_NON_BLOCKING)? };
        }
        Ok(self.clearing.0)
    }

    /// Lets the client's streams wait for what the clearing stream has to do by now.
    fn record_clearing(&self, driver: &Driver) -> Result<(), CUresult> {
        self.cleared.record(driver, self.clearing.0)
    }

    /// Lets the client's streams wait for another window's clearing too.
    fn follow(&mut self, other: &Arc<ZeroFillProgress>) -> Result<(), CUresult> {
        if Arc::ptr_eq(&self.cleared, other) {
            return Ok(());
        }
        let device = Arc::clone(&self.device);
        let driver = device.enter()?;
        let clearing = self.clearing_stream(driver)?;
        other.wait(driver, clearing, &mut 0)?;
        self.record_clearing(driver)
    }

    /// See [`engine::Client::share`]. The range is of this window.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for memory that the client does not have.
    pub(crate) fn share(&self, range: Window) -> Result<SharedBlock, CUresult> {
        if range.bytes == 0 || !self.has_all(range) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let end = range.base + range.bytes;
        let chunks = self.chunks.range(..end).rev().map(|(_, chunk)| chunk);
        let chunks = chunks.take_while(|chunk| chunk.at().base + chunk.at().bytes > range.base);
        Ok(SharedBlock {
            range,
            device: Arc::clone(&self.device),
            chunks: chunks.cloned().collect(),
            cleared: Arc::clone(&self.cleared),
        })
    }

    /// Makes another client's block, which is on this window's device, ready for this client's work.
    ///
    /// # Errors
    /// The driver's status.
    pub(crate) fn import(&mut self, block: &SharedBlock) -> Result<(), CUresult> {
        for peer in &self.peers {
            block.reach(peer)?;
        }
        self.follow(&block.cleared)
    }

    /// See [`engine::Client::physical_create`].
    ///
    /// # Errors
    /// CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_INVALID_VALUE for what is not granular.
    pub(crate) fn create_physical(&mut self, bytes: u64) -> Result<Physical, CUresult> {
        if bytes == 0 || !bytes.is_multiple_of(self.device.granularity()) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let device = Arc::clone(&self.device);
        let made = (|| {
            let driver = device.enter()?;
            let allocation = Allocation::new(&device, bytes)?;
            let reservation = Reservation::anywhere(&device, bytes)?;
            let home = Mapping::new(&reservation, reservation.window(), &allocation, 0)?;
            home.reach(&device, true)?;
            let physical = Physical {
                home,
                allocation,
                cleared: Arc::clone(&self.cleared),
            };
            self.clear(driver, physical.home.at())?;
            Ok(physical)
        })();
        device.confirm(made)
    }

    /// See [`engine::Client::physical_map`]. The range is of this window.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for what is not granular, does not fit or is occupied.
    pub(crate) fn map_physical(
        &mut self,
        at: Window,
        physical: &Arc<Physical>,
        offset: u64,
    ) -> Result<(), CUresult> {
        let unit = self.device.granularity();
        let granular = [at.base, at.bytes, offset]
            .iter()
            .all(|number| number.is_multiple_of(unit));
        let end = at.base + at.bytes;
        let before = self.physical.range(..end).next_back();
        let occupied = before.is_some_and(|(_, mapped)| {
            let there = mapped.mapping.at();
            there.base + there.bytes > at.base
        });
        if at.bytes == 0 || !granular || occupied || self.has_any(at) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let span = self.span_of(at).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        let reservation = Arc::clone(&span.reservation);
        self.make_way(at)?;
        let mapped = Mapped {
            mapping: Mapping::new(&reservation, at, &physical.allocation, offset)?,
            physical: Arc::clone(physical),
        };
        self.physical.insert(at.base, mapped);
        Ok(())
    }

    /// Takes chunks of which the client has nothing from a range, where they were rounded up to.
    fn make_way(&mut self, range: Window) -> Result<(), CUresult> {
        let end = range.base + range.bytes;
        let in_the_way = |window: &Self| {
            let chunk = window.chunks.range(..end).next_back();
            let chunk = chunk.map(|(_, chunk)| chunk.at())?;
            (chunk.base + chunk.bytes > range.base).then_some(chunk)
        };
        while let Some(chunk) = in_the_way(self) {
            if self.has_any(chunk) {
                return Err(CUresult::ERROR_OUT_OF_MEMORY);
            }
            self.wait_until_clear();
            self.unmap(chunk.base);
        }
        Ok(())
    }

    /// See [`engine::Client::physical_unmap`].
    pub(crate) fn unmap_physical(&mut self, at: Window) {
        if self
            .physical
            .get(&at.base)
            .is_some_and(|mapped| mapped.mapping.at() == at)
        {
            self.peeks.wait_until_over();
            self.physical.remove(&at.base);
        }
    }

    /// See [`engine::Client::physical_access`].
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE where nothing is mapped, and the driver's status.
    pub(crate) fn access_physical(
        &mut self,
        at: Window,
        device: &Device,
        reaches: bool,
    ) -> Result<(), CUresult> {
        let mapped = self.physical.get(&at.base);
        let mapped = mapped.filter(|mapped| mapped.mapping.at() == at);
        let mapped = mapped.ok_or(CUresult::ERROR_INVALID_VALUE)?;
        if !reaches {
            self.peeks.wait_until_over();
        }
        let set = mapped.mapping.reach(device, reaches);
        self.device.confirm(set)?;
        let cleared = Arc::clone(&mapped.physical.cleared);
        if reaches {
            self.follow(&cleared)
        } else {
            Ok(())
        }
    }

    /// Gives back what could not be given back when it was taken, if it can be by now.
    pub(crate) fn tidy(&mut self) {
        if self.leaving.is_empty() {
            return;
        }
        let device = Arc::clone(&self.device);
        if let Ok(driver) = device.enter()
            && self.is_clear(driver)
        {
            for range in std::mem::take(&mut self.leaving) {
                self.release(driver, range);
            }
        }
    }

    /// Whether no memory is being cleared or looked at.
    fn is_clear(&self, driver: &Driver) -> bool {
        // The stream is asked, and not the event: what was begun may have failed to be recorded.
        // SAFETY: the stream is ours and alive.
        let clears =
            !self.clearing.0.is_null() && unsafe { driver.cuStreamQuery(self.clearing.0) }.is_err();
        self.peeks.are_over() && !clears
    }

    /// Waits until no memory is being cleared or looked at. A device that dies ends the waiting.
    fn wait_until_clear(&self) {
        while let Ok(driver) = self.device.enter()
            && !self.is_clear(driver)
        {
            // An error of the query is the context's.
            let _ = self.device.probe();
            std::thread::sleep(PAUSE);
        }
    }

    /// Gives the chunks back that touch a range and of which the client has nothing.
    fn release(&mut self, driver: &Driver, range: Window) {
        if !self.is_clear(driver) {
            self.leaving.push(range);
            return;
        }
        let empty: Vec<u64> = self
            .chunks
            .range(..range.base + range.bytes)
            .rev()
            .take_while(|(_, chunk)| chunk.at().base + chunk.at().bytes > range.base)
            .filter(|(_, chunk)| !self.has_any(chunk.at()))
            .map(|(&base, _)| base)
            .collect();
        for base in empty {
            self.unmap(base);
        }
    }

    fn unmap(&mut self, base: u64) {
        if let Some(chunk) = self.chunks.remove(&base) {
            self.mapped -= chunk.at().bytes;
            // No work uses it, as the caller of `decommit` knows; others who do keep it.
            drop(chunk);
        }
    }
}

impl Drop for DeviceWindow {
    fn drop(&mut self) {
        // With its context dead, the process is of no more use; the end of it frees all.
        self.wait_until_clear();
        let Ok(driver) = self.device.enter() else {
            return;
        };
        if !self.clearing.0.is_null() {
            // SAFETY: the stream is ours, and nothing is in it any more.
            let _ = unsafe { driver.cuStreamDestroy_v2(self.clearing.0) };
        }
    }
}
