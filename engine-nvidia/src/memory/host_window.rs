//! A client's host memory that the GPU may reach: parts of a region that somebody else mapped, pinned
//! where they are in use. Called by the client's address space. Must not know what copies are for.
//!
//! Pinning is by whole *registrations* of the driver's. A copy must not span two of them, so whoever
//! plans copies asks [`HostWindow::registered_from`] how far one reaches. Pages go back to the system when a
//! registration has nothing in use any more and the device is idle: unpinning waits for all kernels.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::Arc;

use cuda_abi::CUresult;
use engine::arena::GRANULE;
use engine::{Owner, Region, Window};

use crate::device::Device;
use crate::memory::granules::{Granules, is_granular};
use crate::memory::host_pages;

/// Staging memory is pinned in pieces of this size, as it comes into use.
const STAGING_PIECE: u64 = 4 << 20;

/// A region, and what of it is pinned.
#[derive(Debug)]
pub(crate) struct HostWindow {
    device: Arc<Device>,
    region: Region,
    /// Keeps the region's addresses from being another's.
    addresses: Arc<dyn Owner>,
    registrations: Arc<Mutex<Registrations>>,
    granules: Granules,
}

/// By first address.
type Registrations = BTreeMap<u64, Registration>;

#[derive(Clone, Debug)]
struct Registration {
    bytes: u64,
    /// It goes when the device is idle, unless it is used again before.
    leaving: bool,
    /// What somebody else mapped here, whose pages are not ours to give back.
    lent: Option<Arc<dyn Owner>>,
}

impl HostWindow {
    /// A region of which nothing is pinned. `device` is any one of the client's.
    pub(crate) fn new(device: &Arc<Device>, region: Region, addresses: &Arc<dyn Owner>) -> Self {
        Self {
            device: Arc::clone(device),
            addresses: Arc::clone(addresses),
            registrations: Arc::default(),
            granules: Granules::new(region.window.base),
            region,
        }
    }

    pub(crate) fn window(&self) -> Window {
        self.region.window
    }

    pub(crate) fn owner(&self) -> &Arc<dyn Owner> {
        &self.region.owner
    }

    pub(crate) fn contains(&self, range: Window) -> bool {
        self.region.window.contains(range.base, range.bytes)
    }

    /// Whether the client has all of a range of this window.
    pub(crate) fn has(&self, range: Window) -> bool {
        self.granules.has_all(range)
    }

    /// What the client has of it, in pieces.
    pub(crate) fn runs(&self) -> Vec<Window> {
        self.granules.runs()
    }

    /// How many bytes from an address on lie in one registration; 0 if it lies in none.
    pub(crate) fn registered_from(&self, address: u64) -> u64 {
        registered_from(&self.registrations.lock(), address)
    }

    /// Gives the client a range of this window, zeroed and pinned.
    ///
    /// # Errors
    /// CUDA_ERROR_OUT_OF_MEMORY and the like; then nothing has changed.
    pub(crate) fn commit(&mut self, range: Window) -> Result<(), CUresult> {
        if !is_granular(range) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        self.device.make_room()?;
        self.clear(range);
        self.pin_all(range)
    }

    /// As [`HostWindow::commit`], with what is in the window's memory there.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn recommit(&mut self, range: Window) -> Result<(), CUresult> {
        if !is_granular(range) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        self.device.make_room()?;
        self.pin_all(range)
    }

    fn pin_all(&mut self, range: Window) -> Result<(), CUresult> {
        if let Err(code) = self.pin(range) {
            self.release(range);
            return Err(code);
        }
        self.granules.set(range, true);
        Ok(())
    }

    /// Fills a range with zeroes. What is not pinned gets new pages; what is stays so from here on, since whoever unpinned
    /// it would take its pages away under our hands.
    fn clear(&self, range: Window) {
        let end = range.base + range.bytes;
        let mut at = range.base;
        while at < end {
            let (pinned, bytes) = {
                let mut registrations = self.registrations.lock();
                let next = registrations.range(at..).next();
                let gap = next.map_or(end, |(&base, _)| base.min(end)) - at;
                match registered_from(&registrations, at) {
                    0 => (false, gap),
                    bytes => {
                        if let Some((_, kept)) = registrations.range_mut(..=at).next_back() {
                            kept.leaving = false;
                        }
                        (true, bytes.min(end - at))
                    }
                }
            };
            let part = Window { base: at, bytes };
            if pinned || !host_pages::renew(part) {
                host_pages::zero(part);
            }
            at += bytes;
        }
    }

    /// Gives the client what somebody mapped over a range of this window, pinned.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for a range of which the client has something or that is not granular,
    /// the driver's status; then nothing has changed.
    pub(crate) fn map_external(
        &mut self,
        range: Window,
        memory: Arc<dyn Owner>,
    ) -> Result<(), CUresult> {
        let is_free = is_granular(range)
            && range.bytes > 0
            && self.contains(range)
            && !self.granules.has_any(range);
        if !is_free {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        self.device.make_room()?;
        self.settle(range)?;
        host_pages::prefault(range);
        self.register(range, Some(memory))?;
        self.granules.set(range, true);
        Ok(())
    }

    /// Waits until nothing of a range is pinned any more of which the client has nothing.
    ///
    /// # Errors
    /// CUDA_ERROR_OUT_OF_MEMORY if something stays pinned, and the driver's status.
    pub(crate) fn settle(&self, range: Window) -> Result<(), CUresult> {
        let is_pinned = || {
            let registrations = self.registrations.lock();
            let mut before = registrations.range(..range.base + range.bytes);
            let last = before.next_back();
            last.is_some_and(|(&base, registration)| base + registration.bytes > range.base)
        };
        if is_pinned() {
            // Pages of this window's own, which leave when the device is idle: they are still pinned.
            self.device.give_back()?;
            if is_pinned() {
                return Err(CUresult::ERROR_OUT_OF_MEMORY);
            }
        }
        Ok(())
    }

    /// Writes bytes to the beginning of a range, and zeroes to the rest of it. What of it the client does
    /// not have yet it has from now on.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for a range that is not in this window, and as [`HostWindow::commit`].
    pub(crate) fn set(&mut self, range: Window, first: &[u8]) -> Result<(), CUresult> {
        if !self.contains(range) || first.len() as u64 > range.bytes {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let mut base = range.base / GRANULE * GRANULE;
        while base < range.base + range.bytes {
            let granule = Window {
                base,
                bytes: GRANULE,
            };
            if !self.has(granule) {
                self.commit(granule)?;
            }
            base += GRANULE;
        }
        let rest = range.bytes as usize - first.len();
        // SAFETY: the range lies in the region, which its owner keeps mapped and writable; nothing in it
        // is a Rust object, and `first` is none of it.
        unsafe {
            let to = range.base as *mut u8;
            std::ptr::copy_nonoverlapping(first.as_ptr(), to, first.len());
            std::ptr::write_bytes(to.add(first.len()), 0, rest);
        }
        Ok(())
    }

    /// Takes a range of this window back. Whoever calls knows that no work uses it.
    pub(crate) fn decommit(&mut self, range: Window) {
        if is_granular(range) {
            self.granules.set(range, false);
            self.release(range);
        }
    }

    /// Pins a range of staging memory, all of which the client has.
    ///
    /// # Errors
    /// The driver's status.
    pub(crate) fn use_staging(&mut self, range: Window) -> Result<(), CUresult> {
        if self.registered_from(range.base) >= range.bytes {
            return Ok(());
        }
        let Window { base: start, bytes } = self.region.window;
        let mut at = start + (range.base - start) / STAGING_PIECE * STAGING_PIECE;
        while at < range.base + range.bytes {
            self.pin(Window {
                base: at,
                bytes: STAGING_PIECE.min(start + bytes - at),
            })?;
            at += STAGING_PIECE;
        }
        Ok(())
    }

    /// Registers whatever of a range is not registered.
    fn pin(&mut self, range: Window) -> Result<(), CUresult> {
        let end = range.base + range.bytes;
        let mut at = range.base;
        while at < end {
            let mut registrations = self.registrations.lock();
            let bytes = registered_from(&registrations, at);
            if bytes != 0 {
                if let Some((_, registration)) = registrations.range_mut(..=at).next_back() {
                    registration.leaving = false;
                }
                at += bytes;
                continue;
            }
            let next = registrations.range(at..).next();
            let bytes = next.map_or(end, |(&base, _)| base.min(end)) - at;
            drop(registrations);
            self.register(Window { base: at, bytes }, None)?;
            at += bytes;
        }
        Ok(())
    }

    /// Registers a range of which nothing is registered.
    fn register(&self, range: Window, lent: Option<Arc<dyn Owner>>) -> Result<(), CUresult> {
        let Window { base, bytes } = range;
        // SAFETY: the region's owner keeps the range mapped until this window is dropped, which
        // unregisters it first.
        unsafe { self.device.register_host(range)? };
        let registration = Registration {
            bytes,
            leaving: false,
            lent,
        };
        self.registrations.lock().insert(base, registration);
        Ok(())
    }

    /// Has what touches a range and of which the client has nothing unpinned.
    fn release(&self, range: Window) {
        let mut empty = Vec::new();
        for (&base, registration) in self
            .registrations
            .lock()
            .range_mut(..range.base + range.bytes)
            .rev()
            .take_while(|(base, registration)| **base + registration.bytes > range.base)
        {
            let bytes = registration.bytes;
            if !registration.leaving && !self.granules.has_any(Window { base, bytes }) {
                registration.leaving = true;
                empty.push(base);
            }
        }
        for base in empty {
            self.unpin(base);
        }
    }

    /// Has a registration that was marked as leaving unpinned.
    fn unpin(&self, base: u64) {
        let registrations = Arc::clone(&self.registrations);
        let bytes = registrations.lock().get(&base).map_or(0, |it| it.bytes);
        let kept = (Arc::clone(&self.region.owner), Arc::clone(&self.addresses));
        self.device.when_idle(bytes, move |driver| {
            let mut registrations = registrations.lock();
            let leaves = registrations.get(&base).is_some_and(|it| it.leaving);
            if leaves && let Some(registration) = registrations.remove(&base) {
                // SAFETY: registered by `register`; no work uses it, as the caller of `decommit` knows.
                // The range is still mapped, its owner being kept, and the client does not have it.
                let _ = unsafe { driver.cuMemHostUnregister(base as *mut c_void) };
                if registration.lent.is_none() {
                    let bytes = registration.bytes as usize;
                    // SAFETY: the range is mapped, its owner being kept, and nobody uses it: it is not
                    // registered any more and the client does not have it. Where the memory cannot lose
                    // its pages they stay, and are zeroed before their next use.
                    unsafe { libc::madvise(base as *mut c_void, bytes, libc::MADV_REMOVE) };
                }
            }
            drop(kept);
        });
    }
}

/// How many bytes from an address on lie in one registration.
fn registered_from(registrations: &Registrations, address: u64) -> u64 {
    let before = registrations.range(..=address).next_back();
    before.map_or(0, |(&base, registration)| {
        (base + registration.bytes).saturating_sub(address)
    })
}

impl Drop for HostWindow {
    fn drop(&mut self) {
        let bases: Vec<u64> = {
            let mut registrations = self.registrations.lock();
            for registration in registrations.values_mut() {
                registration.leaving = true;
            }
            registrations.keys().copied().collect()
        };
        for base in bases {
            self.unpin(base);
        }
    }
}
