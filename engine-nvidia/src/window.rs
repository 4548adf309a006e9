//! A client's device memory: a window of virtual addresses, backed where the client has memory.
//!
//! Physical memory comes in chunks, each mapped as a whole, and exportable, so that it can outlive the
//! process. A chunk goes when the client has no granule of it left. Memory is cleared, on a stream of
//! the window's own, before the client's streams may go on: they wait on the GPU, nobody here does.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cuda_abi::CUresult;
use cuda_abi::types::*;
use engine::Window;

use crate::device::Device;
use crate::driver::Driver;
use crate::granules::{Granules, is_granular};
use crate::looks::Looks;
use crate::sync::Handle;

/// The most that a chunk is made larger than what was asked for.
const LARGEST_ROUNDING: u64 = 64 << 20;

const TYPE_PINNED: u32 = 1;
const HANDLE_POSIX_FILE_DESCRIPTOR: u32 = 1;
const LOCATION_DEVICE: u32 = 1;
const ACCESS_READ_WRITE: u32 = 3;
const GRANULARITY_MINIMUM: CUmemAllocationGranularity_flags = CUmemAllocationGranularity_flags(0);

/// `CUmemAllocationProp` as the driver has it.
#[derive(Debug)]
#[repr(C)]
struct AllocationProperties {
    kind: u32,
    handle_types: u32,
    location: CUmemLocation,
    windows_meta_data: u64,
    compression: u8,
    rdma_capable: u8,
    usage: u16,
    reserved: [u8; 4],
}

/// `CUmemAccessDesc` as the driver has it.
#[derive(Debug)]
#[repr(C)]
struct AccessDescription {
    location: CUmemLocation,
    flags: u32,
}

// As a C compiler has them for the headers of CUDA 13.0.
const _: () =
    assert!(size_of::<AllocationProperties>() == 32 && size_of::<AccessDescription>() == 12);

fn location(ordinal: i32) -> CUmemLocation {
    CUmemLocation {
        r#type: LOCATION_DEVICE,
        id: ordinal,
    }
}

fn properties(ordinal: i32) -> AllocationProperties {
    AllocationProperties {
        kind: TYPE_PINNED,
        handle_types: HANDLE_POSIX_FILE_DESCRIPTOR,
        location: location(ordinal),
        windows_meta_data: 0,
        compression: 0,
        rdma_capable: 0,
        usage: 0,
        reserved: [0; 4],
    }
}

/// The unit in which a device's physical memory comes.
///
/// # Errors
/// The driver's status.
pub(crate) fn granularity(driver: &Driver, ordinal: i32) -> Result<u64, CUresult> {
    let mut bytes = 0;
    let properties = properties(ordinal);
    // SAFETY: the pointers are to locals, the properties in the driver's layout.
    unsafe {
        driver.cuMemGetAllocationGranularity(
            &raw mut bytes,
            (&raw const properties).cast(),
            GRANULARITY_MINIMUM,
        )?;
    }
    Ok(bytes as u64)
}

/// How far the clearing of a window's memory has got, for streams to wait on.
#[derive(Debug)]
pub(crate) struct Cleared {
    device: Arc<Device>,
    event: Handle<CUevent>,
    epoch: AtomicU64,
}

impl Cleared {
    fn new(device: &Arc<Device>) -> Result<Self, CUresult> {
        let mut event = CUevent::NULL;
        // SAFETY: the pointer is to a local.
        unsafe {
            device
                .enter()?
                .cuEventCreate(&raw mut event, CU_EVENT_DISABLE_TIMING)?;
        }
        Ok(Self {
            device: Arc::clone(device),
            event: Handle(event),
            epoch: AtomicU64::new(0),
        })
    }

    /// Makes a stream's later work wait for all clearing so far, unless it does since `seen`.
    ///
    /// # Errors
    /// The driver's status.
    pub(crate) fn wait(
        &self,
        driver: &Driver,
        stream: CUstream,
        seen: &mut u64,
    ) -> Result<(), CUresult> {
        let epoch = self.epoch.load(Ordering::Acquire);
        if *seen != epoch {
            // SAFETY: the event is ours and alive; the stream is the caller's.
            unsafe { driver.cuStreamWaitEvent(stream, self.event.0, 0)? };
            *seen = epoch;
        }
        Ok(())
    }
}

impl Drop for Cleared {
    fn drop(&mut self) {
        if let Ok(driver) = self.device.enter() {
            // SAFETY: ours, and nobody else has it; the driver frees it when nothing waits for it.
            let _ = unsafe { driver.cuEventDestroy_v2(self.event.0) };
        }
    }
}

#[derive(Debug)]
struct Chunk {
    bytes: u64,
    memory: CUmemGenericAllocationHandle,
}

/// A client's addresses on one device.
#[derive(Debug)]
pub(crate) struct DeviceWindow {
    device: Arc<Device>,
    window: Window,
    chunks: BTreeMap<u64, Chunk>,
    /// Bytes of all chunks.
    mapped: u64,
    granules: Granules,
    cleared: Arc<Cleared>,
    /// The stream that clears; null until it is first needed.
    clearing: Handle<CUstream>,
    /// Ranges that were taken back while memory was still being cleared, or looked at.
    leaving: Vec<Window>,
    looks: Looks,
}

impl DeviceWindow {
    /// Reserves a window's addresses.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for addresses that physical memory cannot be mapped at, and
    /// CUDA_ERROR_OUT_OF_MEMORY if this process uses some of them already.
    pub(crate) fn new(device: &Arc<Device>, window: Window) -> Result<Self, CUresult> {
        let granularity = device.granularity();
        if !window.base.is_multiple_of(granularity) || !window.bytes.is_multiple_of(granularity) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let driver = device.enter()?;
        let cleared = Arc::new(Cleared::new(device)?);
        let mut base = 0;
        // SAFETY: the pointer is to a local; nothing is mapped over what exists.
        unsafe {
            driver.cuMemAddressReserve(&raw mut base, window.bytes as usize, 0, window.base, 0)?;
        }
        if base != window.base {
            // SAFETY: reserved just now, and nothing is mapped there.
            let _ = unsafe { driver.cuMemAddressFree(base, window.bytes as usize) };
            return Err(CUresult::ERROR_OUT_OF_MEMORY);
        }
        Ok(Self {
            device: Arc::clone(device),
            window,
            chunks: BTreeMap::new(),
            mapped: 0,
            granules: Granules::new(window.base),
            cleared,
            clearing: Handle(CUstream::NULL),
            leaving: Vec::new(),
            looks: Looks::new(device),
        })
    }

    pub(crate) fn contains(&self, range: Window) -> bool {
        self.window.contains(range.base, range.bytes)
    }

    /// Whether the client has all of a range of this window.
    pub(crate) fn has(&self, range: Window) -> bool {
        self.granules.has_all(range)
    }

    pub(crate) fn cleared(&self) -> &Arc<Cleared> {
        &self.cleared
    }

    /// What the client looks at.
    pub(crate) fn looks(&self) -> &Looks {
        &self.looks
    }

    /// See [`engine::Client::peek`]. The address is the client's, on this window's device.
    ///
    /// # Errors
    /// As [`Looks::value`].
    pub(crate) fn peek(&mut self, address: u64, bytes: u32) -> Result<u64, CUresult> {
        self.looks.value(address, bytes, &self.cleared)
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
        let result = self
            .back(driver, range)
            .and_then(|()| self.clear(driver, range));
        match device.confirm(result) {
            Ok(()) => {
                self.granules.set(range, true);
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
        self.granules.set(range, false);
        let device = Arc::clone(&self.device);
        if let Ok(driver) = device.enter() {
            self.release(driver, range);
        }
    }

    /// Maps chunks wherever a range has none.
    fn back(&mut self, driver: &Driver, range: Window) -> Result<(), CUresult> {
        let granularity = self.device.granularity();
        let end = (range.base + range.bytes).next_multiple_of(granularity);
        let mut at = range.base / granularity * granularity;
        while at < end {
            let covered = self.chunks.range(..=at).next_back();
            if let Some((&base, chunk)) = covered
                && base + chunk.bytes > at
            {
                at = base + chunk.bytes;
                continue;
            }
            let next = self.chunks.range(at..).next().map(|(&base, _)| base);
            let limit = next.unwrap_or(self.window.base + self.window.bytes) - at;
            let asked = limit.min(end - at);
            // Clients with much memory get more at a time, so that chunks stay few.
            let rounded = asked.max(
                self.mapped
                    .min(LARGEST_ROUNDING)
                    .next_multiple_of(granularity)
                    .min(limit),
            );
            let bytes = match self.map(driver, at, rounded) {
                Ok(()) => rounded,
                Err(CUresult::ERROR_OUT_OF_MEMORY) if asked < rounded => {
                    self.map(driver, at, asked)?;
                    asked
                }
                Err(code) => return Err(code),
            };
            at += bytes;
        }
        Ok(())
    }

    fn map(&mut self, driver: &Driver, base: u64, bytes: u64) -> Result<(), CUresult> {
        let properties = properties(self.device.ordinal());
        let access = AccessDescription {
            location: location(self.device.ordinal()),
            flags: ACCESS_READ_WRITE,
        };
        let mut memory = 0;
        let size = bytes as usize;
        // SAFETY: pointers are to locals in the driver's layout; the addresses are of our reservation,
        // and no chunk is mapped there.
        unsafe {
            driver.cuMemCreate(&raw mut memory, size, (&raw const properties).cast(), 0)?;
            let mapped = driver.cuMemMap(base, size, 0, memory, 0).and_then(|()| {
                driver
                    .cuMemSetAccess(base, size, (&raw const access).cast(), 1)
                    .inspect_err(|_| {
                        let _ = driver.cuMemUnmap(base, size);
                    })
            });
            if let Err(code) = mapped {
                let _ = driver.cuMemRelease(memory);
                return Err(code);
            }
        }
        self.mapped += bytes;
        self.chunks.insert(base, Chunk { bytes, memory });
        Ok(())
    }

    fn clear(&mut self, driver: &Driver, range: Window) -> Result<(), CUresult> {
        // SAFETY: the pointer is to our own field; the range is mapped; stream and event are ours.
        unsafe {
            if self.clearing.0.is_null() {
                driver.cuStreamCreate(&raw mut self.clearing.0, CU_STREAM_NON_BLOCKING)?;
            }
            driver.cuMemsetD8Async(range.base, 0, range.bytes as usize, self.clearing.0)?;
            driver.cuEventRecord(self.cleared.event.0, self.clearing.0)?;
        }
        self.cleared.epoch.fetch_add(1, Ordering::Release);
        Ok(())
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
        // SAFETY: the event is ours and alive.
        self.looks.are_over() && unsafe { driver.cuEventQuery(self.cleared.event.0) }.is_ok()
    }

    /// Gives the chunks back that touch a range and of which the client has nothing.
    fn release(&mut self, driver: &Driver, range: Window) {
        if !self.is_clear(driver) {
            self.leaving.push(range);
            return;
        }
        let granules = &self.granules;
        let empty: Vec<u64> = self
            .chunks
            .range(..range.base + range.bytes)
            .rev()
            .take_while(|&(base, chunk)| base + chunk.bytes > range.base)
            .filter(|&(&base, chunk)| {
                !granules.has_any(Window {
                    base,
                    bytes: chunk.bytes,
                })
            })
            .map(|(&base, _)| base)
            .collect();
        for base in empty {
            self.unmap(driver, base);
        }
    }

    fn unmap(&mut self, driver: &Driver, base: u64) {
        if let Some(chunk) = self.chunks.remove(&base) {
            self.mapped -= chunk.bytes;
            // SAFETY: mapped by `map` as a whole; no work uses it, as the caller of `decommit` knows.
            unsafe {
                let _ = driver.cuMemUnmap(base, chunk.bytes as usize);
                let _ = driver.cuMemRelease(chunk.memory);
            }
        }
    }
}

impl Drop for DeviceWindow {
    fn drop(&mut self) {
        let device = Arc::clone(&self.device);
        let Ok(driver) = device.enter() else {
            // With its context dead, the process is of no more use; the end of it frees all.
            return;
        };
        while device.check().is_ok() && !self.is_clear(driver) {
            // An error of the query is the context's.
            let _ = device.probe();
            std::thread::sleep(Duration::from_micros(50));
        }
        for base in self.chunks.keys().copied().collect::<Vec<_>>() {
            self.unmap(driver, base);
        }
        // SAFETY: the client's work is over, the stream is ours, and nothing is mapped any more.
        unsafe {
            if !self.clearing.0.is_null() {
                let _ = driver.cuStreamDestroy_v2(self.clearing.0);
            }
            let _ = driver.cuMemAddressFree(self.window.base, self.window.bytes as usize);
        }
    }
}
