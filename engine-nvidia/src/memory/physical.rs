//! Physical memory of devices, and the addresses that it is mapped at.
//!
//! Everything here goes when it is dropped, and keeps what it needs: a mapping its memory and its
//! addresses. Whoever drops a mapping knows that no work uses it. Called by windows and shared blocks. Must not know
//! clients or quotas.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cuda_abi::CUresult;
use cuda_abi::types::*;
use engine::{Owner, Window};

use crate::device::Device;
use crate::driver::allocation::{HANDLE_POSIX_FILE_DESCRIPTOR, location, properties};

/// How memory is exported: as what `properties` says.
const POSIX_FILE_DESCRIPTOR: CUmemAllocationHandleType =
    CUmemAllocationHandleType(HANDLE_POSIX_FILE_DESCRIPTOR);

const ACCESS_NONE: u32 = 0;
const ACCESS_READ_WRITE: u32 = 3;
/// `CUmemAccessDesc` as the driver has it.
#[derive(Debug)]
#[repr(C)]
struct AccessDescription {
    location: CUmemLocation,
    flags: u32,
}

// As a C compiler has it for the headers of CUDA 13.0.
const _: () = assert!(size_of::<AccessDescription>() == 12);

/// Addresses that are set aside.
#[derive(Debug)]
pub(crate) struct Reservation {
    device: Arc<Device>,
    window: Window,
    /// Keeps them from being another client's.
    _addresses: Option<Arc<dyn Owner>>,
}

impl Reservation {
    /// Sets just these addresses aside.
    ///
    /// # Errors
    /// CUDA_ERROR_OUT_OF_MEMORY if this process uses some of them already.
    pub(crate) fn at(
        device: &Arc<Device>,
        window: Window,
        addresses: &Arc<dyn Owner>,
    ) -> Result<Arc<Self>, CUresult> {
        let made = Self::make(device, window, Some(Arc::clone(addresses)))?;
        if made.window.base != window.base {
            return Err(CUresult::ERROR_OUT_OF_MEMORY);
        }
        Ok(Arc::new(made))
    }

    /// Sets addresses aside, wherever there are any.
    ///
    /// # Errors
    /// The driver's status.
    pub(crate) fn anywhere(device: &Arc<Device>, bytes: u64) -> Result<Arc<Self>, CUresult> {
        Self::make(device, Window { base: 0, bytes }, None).map(Arc::new)
    }

    fn make(
        device: &Arc<Device>,
        wanted: Window,
        addresses: Option<Arc<dyn Owner>>,
    ) -> Result<Self, CUresult> {
        let mut base = 0;
        // SAFETY: the pointer is to a local; nothing is mapped over what exists.
        unsafe {
            device.enter()?.cuMemAddressReserve(
                &raw mut base,
                wanted.bytes as usize,
                0,
                wanted.base,
                0,
            )?;
        }
        Ok(Self {
            device: Arc::clone(device),
            window: Window { base, ..wanted },
            _addresses: addresses,
        })
    }

    pub(crate) const fn window(&self) -> Window {
        self.window
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if let Ok(driver) = self.device.enter() {
            // SAFETY: reserved in `make`; mappings keep their reservation, so that none is left.
            let _ =
                unsafe { driver.cuMemAddressFree(self.window.base, self.window.bytes as usize) };
        }
    }
}

/// Physical memory, with whatever content.
#[derive(Debug)]
pub(crate) struct Allocation {
    device: Arc<Device>,
    bytes: u64,
    handle: CUmemGenericAllocationHandle,
}

impl Allocation {
    /// Takes memory of a device.
    ///
    /// # Errors
    /// CUDA_ERROR_OUT_OF_MEMORY; CUDA_ERROR_INVALID_VALUE for bytes that are no multiple of the
    /// device's granularity.
    pub(crate) fn new(device: &Arc<Device>, bytes: u64) -> Result<Arc<Self>, CUresult> {
        let properties = properties(device.ordinal());
        let handle = device.take_memory(|driver| {
            let mut handle = 0;
            // SAFETY: pointers are to locals, the properties in the driver's layout.
            unsafe {
                driver.cuMemCreate(
                    &raw mut handle,
                    bytes as usize,
                    (&raw const properties).cast(),
                    0,
                )?;
            }
            Ok(handle)
        })?;
        Ok(Arc::new(Self {
            device: Arc::clone(device),
            bytes,
            handle,
        }))
    }

    /// Memory of a device that another process took, with what it holds.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for a descriptor of something else, and the driver's status.
    pub(crate) fn import(
        device: &Arc<Device>,
        bytes: u64,
        descriptor: &OwnedFd,
    ) -> Result<Arc<Self>, CUresult> {
        let mut handle = 0;
        // SAFETY: the pointer to the handle is to a local; the driver takes the descriptor's number in the place of a
        // pointer, and does not keep it.
        unsafe {
            device.enter()?.cuMemImportFromShareableHandle(
                &raw mut handle,
                descriptor.as_raw_fd() as usize as *mut _,
                POSIX_FILE_DESCRIPTOR,
            )?;
        }
        Ok(Arc::new(Self {
            device: Arc::clone(device),
            bytes,
            handle,
        }))
    }

    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What another process can have it by.
    ///
    /// # Errors
    /// The driver's status.
    pub(crate) fn export(&self) -> Result<OwnedFd, CUresult> {
        let mut number: std::ffi::c_int = -1;
        // SAFETY: the pointer is to a local of the type that the driver writes for this kind of handle; the memory was made
        // to be exported as one.
        unsafe {
            self.device.enter()?.cuMemExportToShareableHandle(
                (&raw mut number).cast(),
                self.handle,
                POSIX_FILE_DESCRIPTOR,
                0,
            )?;
        }
        // SAFETY: the driver has just opened it, for the caller.
        Ok(unsafe { OwnedFd::from_raw_fd(number) })
    }

    pub(crate) const fn device(&self) -> &Arc<Device> {
        &self.device
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if let Ok(driver) = self.device.enter() {
            // SAFETY: made in `new` or `import`; the driver frees the memory when it is mapped nowhere.
            let _ = unsafe { driver.cuMemRelease(self.handle) };
        }
    }
}

/// Physical memory at addresses. At first no device may reach it.
#[derive(Debug)]
pub(crate) struct Mapping {
    at: Window,
    /// The devices that may reach it, as bits.
    reached: AtomicU64,
    /// These two go after the mapping itself, in this order.
    allocation: Arc<Allocation>,
    _reservation: Arc<Reservation>,
}

impl Mapping {
    /// Maps a part of some memory at addresses of a reservation where nothing is mapped.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for what is not granular, and the driver's status.
    pub(crate) fn new(
        reservation: &Arc<Reservation>,
        at: Window,
        allocation: &Arc<Allocation>,
        offset: u64,
    ) -> Result<Self, CUresult> {
        let invalid = CUresult::ERROR_INVALID_VALUE;
        let end = offset.checked_add(at.bytes).ok_or(invalid)?;
        if !reservation.window.contains(at.base, at.bytes) || end > allocation.bytes {
            return Err(invalid);
        }
        // SAFETY: the addresses are of a reservation of ours, and the part is within the memory; both
        // are kept. The driver refuses to map over something.
        unsafe {
            allocation.device.enter()?.cuMemMap(
                at.base,
                at.bytes as usize,
                offset as usize,
                allocation.handle,
                0,
            )?;
        }
        Ok(Self {
            at,
            reached: AtomicU64::new(0),
            allocation: Arc::clone(allocation),
            _reservation: Arc::clone(reservation),
        })
    }

    pub(crate) const fn at(&self) -> Window {
        self.at
    }

    /// What another process can have the memory by that it maps.
    ///
    /// # Errors
    /// The driver's status.
    pub(crate) fn export(&self) -> Result<OwnedFd, CUresult> {
        self.allocation.export()
    }

    /// Whether a device may reach it.
    pub(crate) fn is_reached(&self, device: &Device) -> bool {
        self.reached.load(Ordering::Acquire) & device.bit() != 0
    }

    /// Lets a device reach it, or no longer.
    ///
    /// # Errors
    /// The driver's status.
    pub(crate) fn reach(&self, device: &Device, reaches: bool) -> Result<(), CUresult> {
        if self.is_reached(device) == reaches {
            return Ok(());
        }
        let access = AccessDescription {
            location: location(device.ordinal()),
            flags: if reaches {
                ACCESS_READ_WRITE
            } else {
                ACCESS_NONE
            },
        };
        // SAFETY: the pointer is to a local in the driver's layout; the range is our mapping.
        unsafe {
            self.allocation.device.enter()?.cuMemSetAccess(
                self.at.base,
                self.at.bytes as usize,
                (&raw const access).cast(),
                1,
            )?;
        }
        if reaches {
            self.reached.fetch_or(device.bit(), Ordering::AcqRel);
        } else {
            self.reached.fetch_and(!device.bit(), Ordering::AcqRel);
        }
        Ok(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if let Ok(driver) = self.allocation.device.enter() {
            // SAFETY: mapped in `new` as a whole; no work uses it, as whoever drops it knows.
            let _ = unsafe { driver.cuMemUnmap(self.at.base, self.at.bytes as usize) };
        }
    }
}
