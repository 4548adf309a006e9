//! Where an address lies: in memory of ours, which devices reach, or in the program's own.
//!
//! Asks the ranges, the registrations and the windows; owns the list of other processes' memory that is
//! open. Copies, fills and pointer questions call it. It copies nothing.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use cuda_abi::CUresult;

use super::copy::sides::{CopySide, Extent, Location};
use super::ranges::{Origin, Ranges};
use super::registered::Registered;
use crate::session::connection::Connection;

/// All addresses that mean something to CUDA.
#[derive(Debug)]
pub(crate) struct AddressSpace {
    connection: &'static Connection,
    ranges: &'static Ranges,
    registered: &'static Registered,
    /// Other processes' memory that is open, by address, and how often.
    imports: Mutex<BTreeMap<u64, u32>>,
    /// Set once any was; read without the lock by copies.
    any_imports: AtomicBool,
}

impl AddressSpace {
    pub(crate) fn new(
        connection: &'static Connection,
        ranges: &'static Ranges,
        registered: &'static Registered,
    ) -> Self {
        Self {
            connection,
            ranges,
            registered,
            imports: Mutex::default(),
            any_imports: AtomicBool::new(false),
        }
    }

    /// Other processes' memory that is open, by address, and how often.
    pub(crate) fn imports(&self) -> MutexGuard<'_, BTreeMap<u64, u32>> {
        self.imports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds other processes' memory that is open now to what [`AddressSpace::imports`] gave.
    pub(crate) fn add_import(&self, imports: &mut BTreeMap<u64, u32>, address: u64) {
        imports.insert(address, 1);
        self.any_imports.store(true, Ordering::Relaxed);
    }

    /// Whether any other process's memory is open, or was.
    pub(crate) fn has_imports(&self) -> bool {
        self.any_imports.load(Ordering::Relaxed)
    }

    /// Where an address lies that the program says devices reach.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE when it is in no allocation.
    pub(crate) fn device_place(&self, address: u64) -> Result<Location, CUresult> {
        match self.ranges.find(address) {
            Some(range) if range.origin == Origin::Registered => {
                Ok(Location::Pinned(self.device_address(address)))
            }
            Some(range) if range.is_shared() => Ok(Location::Pinned(address)),
            Some(_) => Ok(Location::Device(address)),
            None => Err(CUresult::ERROR_INVALID_VALUE),
        }
    }

    /// An address as the devices have it: another one only for the program's registered memory.
    pub(crate) fn device_address(&self, address: u64) -> u64 {
        if !self.registered.any() || self.connection.is_in_host_window(address) {
            return address;
        }
        match self.ranges.find(address) {
            Some(range) if range.origin == Origin::Registered => range.across(address),
            _ => address,
        }
    }

    /// Where an address lies that the program says is its own.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for NULL and for addresses of device memory.
    pub(crate) fn host_place(&self, address: *const u8) -> Result<Location, CUresult> {
        let bits = address.addr() as u64;
        if self.connection.is_in_host_window(bits) {
            return self.device_place(bits);
        }
        if bits == 0 || self.connection.is_in_device_window(bits) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        // Only where there is such memory need it be looked for.
        if (self.registered.any() || self.has_imports())
            && let Some(range) = self.ranges.find(bits)
        {
            return match range.origin {
                Origin::Registered => Ok(Location::Pinned(range.across(bits))),
                _ => Err(CUresult::ERROR_INVALID_VALUE), // Another process's device memory.
            };
        }
        Ok(Location::Program(address.cast_mut()))
    }

    /// Where an address lies of which the program says nothing.
    pub(crate) fn any_place(&self, address: u64) -> Result<Location, CUresult> {
        match self.device_place(address) {
            Ok(place) => Ok(place),
            Err(_) => self.host_place(std::ptr::with_exposed_provenance(address as usize)),
        }
    }

    /// Whether synchronous operations at an address wait, whatever the memory is.
    pub(crate) fn has_sync_memops(&self, address: u64) -> bool {
        self.ranges.has_sync_memops(address)
    }

    /// Whether an address lies in a window of ours, given out or not.
    pub(crate) fn is_ours(&self, address: u64) -> bool {
        self.connection.is_in_host_window(address) || self.connection.is_in_device_window(address)
    }

    /// Checks that all that a copy touches of memory that we gave out lies in one allocation.
    pub(crate) fn check_side(&self, side: &CopySide, extent: &Extent) -> Result<(), CUresult> {
        let span = side.span(extent)?;
        match side.address() {
            None => Ok(()),
            Some(address) if self.ranges.cover(address, span) => Ok(()),
            Some(_) => Err(CUresult::ERROR_INVALID_VALUE),
        }
    }
}
