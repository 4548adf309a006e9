//! A client's device memory: windows of virtual addresses, backed where the client has memory, and
//! what others share with it there. It begins with one window and gets more as its memory grows.
//!
//! Physical memory comes in chunks, each mapped as a whole, and exportable, so that it can outlive the
//! process. A chunk goes when the client has no granule of it left. Memory is cleared, on a stream of
//! the window's own, before the client's streams may go on: they wait on the GPU, nobody here does.
//!
//! Called by the client's address space. Must not know quotas, which the server keeps.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cuda_abi::CUresult;
use cuda_abi::types::*;
use engine::{MemoryChunk, MemoryPiece, Observer, Owner, Window};

use crate::device::Device;
use crate::driver::Driver;
use crate::memory::granules::is_granular;
use crate::memory::kept_chunks::KeptChunks;
use crate::memory::peek::DevicePeeks;
use crate::memory::physical::{Allocation, Mapping};
use crate::memory::physical_mappings::{Physical, PhysicalMappings};
use crate::memory::shared_block::SharedBlock;
use crate::memory::spans::Spans;
use crate::memory::zero_fill::{PAUSE, ZeroFillProgress};
use crate::sync::Handle;

/// The most that a chunk is made larger than what was asked for, as long as the client has no more than that
/// mapped and not in use.
const LARGEST_ROUNDING: u64 = 64 << 20;

/// What a client may have mapped and not in use, beyond as much as it uses: its quota counts what it uses, and
/// a granule in each of many chunks keeps them all.
const MOST_UNUSED: u64 = 256 << 20;

/// A client's addresses on one device.
#[derive(Debug)]
pub(crate) struct DeviceWindow {
    device: Arc<Device>,
    spans: Spans,
    /// By address.
    chunks: BTreeMap<u64, Arc<Mapping>>,
    /// Bytes of all chunks.
    mapped: u64,
    physical: PhysicalMappings,
    /// Other devices that may reach all chunks.
    peers: Vec<Arc<Device>>,
    cleared: Arc<ZeroFillProgress>,
    /// The stream that clears; null until it is first needed.
    clearing: Handle<CUstream>,
    /// Ranges that were taken back while memory was still being cleared, or looked at.
    leaving: Vec<Window>,
    peeks: DevicePeeks,
    /// Of a fenced client, how many of its streams have work: what was taken back stays mapped as long, since a kernel that
    /// runs already may still be let reach it, and would end everybody's context.
    work: Option<Arc<AtomicUsize>>,
    /// Who is told of the chunks, if they are to outlive this process.
    kept: Option<KeptChunks>,
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
            spans: Spans::new(device, window, addresses)?,
            chunks: BTreeMap::new(),
            mapped: 0,
            physical: PhysicalMappings::default(),
            peers: Vec::new(),
            cleared,
            clearing: Handle(CUstream::NULL),
            leaving: Vec::new(),
            peeks: DevicePeeks::new(device),
            work: None,
            kept: None,
        })
    }

    /// From now on chunks are to outlive this process: `observer` is told of them.
    pub(crate) fn keep_chunks(&mut self, observer: Arc<dyn Observer>) {
        let device = self.device.number() as u32;
        self.kept = Some(KeptChunks::new(observer, device));
    }

    /// Maps a chunk that a former process left. What it holds stays where it is committed next. One of a window that the client
    /// has no more was about to go.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for what overlaps another chunk, and the driver's status.
    pub(crate) fn inherit(&mut self, chunk: &MemoryChunk) -> Result<(), CUresult> {
        let (at, wrong) = (chunk.at, CUresult::ERROR_INVALID_VALUE);
        if !is_granular(at) || at.bytes == 0 {
            return Err(wrong);
        }
        let kept = self.kept.as_mut().ok_or(wrong)?;
        let Some(span) = self.spans.of(at) else {
            kept.gone(at);
            return Ok(());
        };
        kept.inherit(at, span.window());
        let allocation = Allocation::import(&self.device, at.bytes, &chunk.descriptor)?;
        self.map_chunk(at, &allocation)
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
        self.spans.add(&self.device, window, addresses)
    }

    /// See [`engine::Client::window_remove`]. Its addresses are free when its last chunk is.
    pub(crate) fn remove_window(&mut self, window: Window) {
        self.tidy();
        self.spans.remove(window);
    }

    pub(crate) fn contains(&self, range: Window) -> bool {
        self.spans.of(range).is_some()
    }

    /// Whether any of a range is an address of the client's on this device.
    pub(crate) fn overlaps(&self, range: Window) -> bool {
        self.spans.overlap(range)
    }

    /// Whether the client has all of a range of this window, and its work on a device may be let reach
    /// it.
    pub(crate) fn has(&self, range: Window, on: &Device) -> bool {
        self.spans.has_all(range) || self.physical.has_all(range, on)
    }

    /// The client is fenced, and so many of its streams have work.
    pub(crate) fn set_work(&mut self, work: Arc<AtomicUsize>) {
        self.work = Some(work);
    }

    /// What the client's work on a device may be let reach, in pieces: all chunks are for the same devices, and what the
    /// client mapped itself for those that it says.
    pub(crate) fn reached(&self, on: &Arc<Device>) -> Vec<Window> {
        let mut all = [&self.device].into_iter().chain(&self.peers);
        let mut windows: Vec<Window> = self.physical.reached(on).collect();
        if all.any(|device| Arc::ptr_eq(device, on)) {
            windows.extend(self.spans.runs());
        }
        windows
    }

    /// Lets another device reach the client's memory here, what there is and what there will be.
    ///
    /// # Errors
    /// CUDA_ERROR_PEER_ACCESS_UNSUPPORTED if the devices cannot, and the driver's status.
    pub(crate) fn enable_access(&mut self, other: &Arc<Device>) -> Result<(), CUresult> {
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
        self.physical.let_foreign_be_reached(other)?;
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
                self.spans.set(range, true);
                Ok(())
            }
            Err(code) => {
                self.release(driver, range);
                Err(code)
            }
        }
    }

    /// Gives the client a range of this window as a former process has left it, if it has left all of it.
    pub(crate) fn recommit(&mut self, range: Window) -> bool {
        let is_left = is_granular(range)
            && self.contains(range)
            && self.kept.as_mut().is_some_and(|kept| kept.claim(range));
        if is_left {
            self.spans.set(range, true);
        }
        is_left
    }

    /// Takes a range of this window back. Whoever calls knows that no work uses it.
    pub(crate) fn decommit(&mut self, range: Window) {
        if !is_granular(range) {
            return;
        }
        if let Some(kept) = &mut self.kept {
            kept.forget(range);
        }
        self.spans.set(range, false);
        let device = Arc::clone(&self.device);
        if let Ok(driver) = device.enter() {
            self.release(driver, range);
        }
    }

    /// Maps chunks wherever a range has none.
    fn back(&mut self, range: Window) -> Result<(), CUresult> {
        let granularity = self.device.granularity();
        let span = self.spans.of(range);
        let window = span.ok_or(CUresult::ERROR_INVALID_VALUE)?.window();
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
            let other = self.physical.next_from(at);
            let next = next.into_iter().chain(other).min();
            let limit = next.map_or(u64::MAX, |next| next - at);
            let limit = limit.min(window.base + window.bytes - at);
            let asked = limit.min(end - at);
            let used = self.spans.used();
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
        let allocation = Allocation::new(&self.device, bytes)?;
        self.map_chunk(at, &allocation)?;
        if self.kept.is_some() {
            let told = self.tell_of_chunk(at);
            told.inspect_err(|_| self.unmap(base))?;
        }
        Ok(())
    }

    fn map_chunk(&mut self, at: Window, allocation: &Arc<Allocation>) -> Result<(), CUresult> {
        let span = self.spans.of(at).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        let reservation = Arc::clone(span.reservation());
        let chunk = Mapping::new(&reservation, at, allocation, 0)?;
        for device in [&self.device].into_iter().chain(&self.peers) {
            chunk.reach(device, true)?;
        }
        self.mapped += at.bytes;
        self.chunks.insert(at.base, Arc::new(chunk));
        Ok(())
    }

    /// Tells of a new chunk, once nothing of its former owner is in it: whoever maps it next does not know how far its
    /// clearing had come.
    fn tell_of_chunk(&mut self, at: Window) -> Result<(), CUresult> {
        let device = Arc::clone(&self.device);
        let driver = device.enter()?;
        self.clear(driver, at)?;
        // SAFETY: the stream is ours and alive: memory was just cleared on it.
        unsafe { driver.cuStreamSynchronize(self.clearing.0)? };
        match (&self.kept, self.chunks.get(&at.base)) {
            (Some(kept), Some(chunk)) => kept.made(chunk),
            _ => Ok(()),
        }
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
        self.before_later_work(|driver, clearing| {
            // SAFETY: the destination is a variable of a module or the table of what the client reaches, large enough
            // for the bytes, as the caller knows; from pageable memory the driver has taken them when it returns.
            unsafe { driver.cuMemcpyHtoDAsync_v2(to, bytes.as_ptr().cast(), bytes.len(), clearing) }
        })
    }

    /// Zeroes memory before all of the client's later work.
    ///
    /// # Errors
    /// The driver's status.
    pub(crate) fn zero(&mut self, range: Window) -> Result<(), CUresult> {
        self.before_later_work(|driver, clearing| {
            // SAFETY: the range is a module's variables in the client's memory, as the caller knows.
            unsafe { driver.cuMemsetD8Async(range.base, 0, range.bytes as usize, clearing) }
        })
    }

    /// Copies within the device's memory before all of the client's later work.
    ///
    /// # Errors
    /// The driver's status.
    pub(crate) fn copy(&mut self, to: u64, from: Window) -> Result<(), CUresult> {
        self.before_later_work(|driver, clearing| {
            // SAFETY: both sides are a module's variable, one where the driver has it, as the caller knows.
            unsafe { driver.cuMemcpyAsync(to, from.base, from.bytes as usize, clearing) }
        })
    }

    /// Gives the driver what is to be done before all of the client's later work on the device.
    fn before_later_work(
        &mut self,
        work: impl FnOnce(&Driver, CUstream) -> Result<(), CUresult>,
    ) -> Result<(), CUresult> {
        let device = Arc::clone(&self.device);
        let given = (|| {
            let driver = device.enter()?;
            let clearing = self.clearing_stream(driver)?;
            work(driver, clearing)?;
            self.record_clearing(driver)
        })();
        device.confirm(given)
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
    pub(crate) fn follow(&mut self, other: &Arc<ZeroFillProgress>) -> Result<(), CUresult> {
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
        if range.bytes == 0 || !self.spans.has_all(range) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let end = range.base + range.bytes;
        let chunks = self.chunks.range(..end).rev().map(|(_, chunk)| chunk);
        let chunks = chunks.take_while(|chunk| chunk.at().base + chunk.at().bytes > range.base);
        let mut chunks: Vec<Arc<Mapping>> = chunks.cloned().collect();
        chunks.reverse();
        let driver = self.device.enter();
        let is_cleared = driver.is_ok_and(|driver| self.cleared.is_over(driver));
        let cleared = (Arc::clone(&self.cleared), is_cleared);
        let device = Arc::clone(&self.device);
        Ok(SharedBlock::new(range, device, chunks, cleared))
    }

    /// Makes another client's block, which is on this window's device, ready for this client's work.
    ///
    /// # Errors
    /// The driver's status.
    pub(crate) fn import(&mut self, block: &SharedBlock) -> Result<(), CUresult> {
        for peer in &self.peers {
            block.reach(peer)?;
        }
        self.follow(block.cleared())
    }

    /// See [`engine::Client::physical_create`]. Gives the memory, and where it is mapped for this process alone.
    ///
    /// # Errors
    /// CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_INVALID_VALUE for what is not granular.
    pub(crate) fn create_physical(&mut self, bytes: u64) -> Result<(Physical, Window), CUresult> {
        if bytes == 0 || !bytes.is_multiple_of(self.device.granularity()) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let device = Arc::clone(&self.device);
        let made = (|| {
            let driver = device.enter()?;
            let (physical, home) = Physical::new(&device, bytes, Arc::clone(&self.cleared))?;
            self.clear(driver, home)?;
            Ok((physical, home))
        })();
        device.confirm(made)
    }

    /// See [`engine::Client::foreign_import`].
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for what is no piece of memory, and the driver's status.
    pub(crate) fn import_foreign(&self, piece: &MemoryPiece) -> Result<Physical, CUresult> {
        if piece.bytes == 0 || !piece.bytes.is_multiple_of(self.device.granularity()) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let imported = Physical::import(&self.device, piece, Arc::clone(&self.cleared));
        self.device.confirm(imported)
    }

    /// See [`engine::Client::foreign_map`]. The range is of this window.
    ///
    /// # Errors
    /// As [`DeviceWindow::map_physical`], and CUDA_ERROR_INVALID_VALUE for less than the whole piece.
    pub(crate) fn map_foreign(
        &mut self,
        at: Window,
        physical: &Arc<Physical>,
        part: Window,
    ) -> Result<(), CUresult> {
        if at.bytes != physical.bytes() || !at.contains(part.base, part.bytes) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        self.map_physical(at, physical, 0)?;
        let reaching = [&self.device].into_iter().chain(&self.peers);
        let shown = self.physical.show_part(at.base, part, reaching);
        let shown = shown.inspect_err(|_| self.physical.unmap(at.base));
        self.device.confirm(shown)
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
        if at.bytes == 0 || !granular || self.physical.has_any(at) || self.spans.has_any(at) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let span = self.spans.of(at).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        let reservation = Arc::clone(span.reservation());
        self.make_way(at)?;
        self.physical.map((&reservation, at), physical, offset)
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
            if self.spans.has_any(chunk) {
                return Err(CUresult::ERROR_OUT_OF_MEMORY);
            }
            self.wait_until_clear();
            self.unmap(chunk.base);
        }
        Ok(())
    }

    /// See [`engine::Client::physical_unmap`].
    pub(crate) fn unmap_physical(&mut self, at: Window) {
        if self.physical.at(at).is_some() {
            self.peeks.wait_until_over();
            self.physical.unmap(at.base);
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
        let mapped = self.physical.at(at);
        let (mapping, cleared) = mapped.ok_or(CUresult::ERROR_INVALID_VALUE)?;
        if !reaches {
            self.peeks.wait_until_over();
        }
        let set = mapping.reach(device, reaches);
        self.device.confirm(set)?;
        let cleared = Arc::clone(cleared);
        if reaches {
            self.follow(&cleared)
        } else {
            self.physical.withdraw(at.base);
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
            && self.may_release(driver)
        {
            for range in std::mem::take(&mut self.leaving) {
                self.release(driver, range);
            }
        }
    }

    /// Whether chunks may go.
    fn may_release(&self, driver: &Driver) -> bool {
        let works = |work: &Arc<AtomicUsize>| work.load(Ordering::Acquire) != 0;
        self.is_clear(driver) && !self.work.as_ref().is_some_and(works)
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
        if !self.may_release(driver) {
            self.leaving.push(range);
            return;
        }
        let empty: Vec<u64> = self
            .chunks
            .range(..range.base + range.bytes)
            .rev()
            .take_while(|(_, chunk)| chunk.at().base + chunk.at().bytes > range.base)
            .filter(|(_, chunk)| !self.spans.has_any(chunk.at()))
            .map(|(&base, _)| base)
            .collect();
        for base in empty {
            self.unmap(base);
        }
    }

    fn unmap(&mut self, base: u64) {
        if let Some(chunk) = self.chunks.remove(&base) {
            self.mapped -= chunk.at().bytes;
            if let Some(kept) = &mut self.kept {
                kept.gone(chunk.at());
            }
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
