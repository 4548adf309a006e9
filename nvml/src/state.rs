//! Whether the library is initialised, and the devices that there are.
//!
//! No lock: a fork's child may be made while another thread is anywhere in here. What the daemon says of
//! the devices is kept for ever once it was read, and read again by each first initialisation; it is
//! kept a second time only if it has changed.
//!
//! Called by `api` and `exports`. Must not know what a function answers.

use std::ffi::c_void;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use cuda_abi::nvml::nvmlReturn_t;
use protocol::control_messages::{ListedDevice, View, ViewedDevice};

use crate::daemon;
use crate::structs::nvmlDevice_t;

/// Initialisations that have not been taken back.
static INITIALISED: AtomicU32 = AtomicU32::new(0);

/// What was read last; null before.
static FACTS: AtomicPtr<Facts> = AtomicPtr::new(std::ptr::null_mut());

/// Devices are named by this number and their index. No pointer is made of it.
const HANDLES: usize = 0x4f4d_5053_0000_0000;

/// What there is to know of the devices that does not change.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    /// The driver's version, or nothing where the daemon does not know it.
    pub driver: String,
    /// The devices, by index.
    pub devices: Vec<Device>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Device {
    /// What the daemon says of it.
    pub listed: ListedDevice,
    /// Whether it is a program.
    pub is_software: bool,
}

impl Facts {
    fn of(view: View) -> Self {
        let device = |viewed: ViewedDevice| Device {
            listed: viewed.device,
            is_software: viewed.software,
        };
        Self {
            driver: view.driver,
            devices: view.devices.into_iter().map(device).collect(),
        }
    }

    /// The device that a handle names, and its index.
    pub(crate) fn device(&self, handle: nvmlDevice_t) -> Result<(usize, &Device), nvmlReturn_t> {
        let index = handle.0.addr().checked_sub(HANDLES + 1);
        let found = index.and_then(|index| Some((index, self.devices.get(index)?)));
        found.ok_or(nvmlReturn_t::ERROR_INVALID_ARGUMENT)
    }
}

/// The handle of a device.
pub(crate) fn handle(index: usize) -> nvmlDevice_t {
    nvmlDevice_t(std::ptr::without_provenance_mut::<c_void>(
        HANDLES + 1 + index,
    ))
}

/// What there is to know of the devices.
///
/// # Errors
/// NVML_ERROR_UNINITIALIZED.
pub(crate) fn facts() -> Result<&'static Facts, nvmlReturn_t> {
    if INITIALISED.load(Ordering::Acquire) == 0 {
        return Err(nvmlReturn_t::ERROR_UNINITIALIZED);
    }
    // SAFETY: null, or from a box that `keep` has leaked, so valid for ever.
    let facts = unsafe { FACTS.load(Ordering::Acquire).as_ref() };
    facts.ok_or(nvmlReturn_t::ERROR_UNINITIALIZED)
}

/// Initialises the library, once more if it is already.
///
/// # Errors
/// What comes of asking the daemon.
pub(crate) fn init() -> Result<(), nvmlReturn_t> {
    if facts().is_err() {
        let view = daemon::view(nvmlReturn_t::ERROR_DRIVER_NOT_LOADED)?;
        store_facts(Facts::of(view));
    }
    let more = |count: u32| count.checked_add(1);
    let counted = INITIALISED.fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
    counted.map(drop).map_err(|_| nvmlReturn_t::ERROR_UNKNOWN)
}

fn store_facts(new: Facts) {
    // SAFETY: null, or from a box that this function has leaked, so valid for ever.
    let there = unsafe { FACTS.load(Ordering::Acquire).as_ref() };
    if there != Some(&new) {
        FACTS.store(Box::leak(Box::new(new)), Ordering::Release);
    }
}

/// Takes an initialisation back.
///
/// # Errors
/// NVML_ERROR_UNINITIALIZED when there is none left.
pub(crate) fn shutdown() -> Result<(), nvmlReturn_t> {
    let less = |count: u32| count.checked_sub(1);
    let counted = INITIALISED.fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
    counted
        .map(drop)
        .map_err(|_| nvmlReturn_t::ERROR_UNINITIALIZED)
}

/// What the daemon says now, and which of its devices one of ours is.
///
/// # Errors
/// NVML_ERROR_GPU_IS_LOST when the daemon or the device is gone; else what comes of asking.
pub(crate) fn current_view(device: &Device) -> Result<(View, usize), nvmlReturn_t> {
    let view = daemon::view(nvmlReturn_t::ERROR_GPU_IS_LOST)?;
    let mut devices = view.devices.iter();
    let at = devices.position(|viewed| viewed.device.uuid == device.listed.uuid);
    let at = at.ok_or(nvmlReturn_t::ERROR_GPU_IS_LOST)?;
    Ok((view, at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_name_devices_and_nothing_else_does() {
        let device = || Device {
            listed: ListedDevice::default(),
            is_software: true,
        };
        let facts = Facts {
            driver: String::new(),
            devices: vec![device(), device()],
        };
        let index = |handle| facts.device(handle).map(|(index, _)| index);
        assert_eq!(index(handle(0)), Ok(0));
        assert_eq!(index(handle(1)), Ok(1));
        let wrong = Err(nvmlReturn_t::ERROR_INVALID_ARGUMENT);
        assert_eq!(index(handle(2)), wrong);
        for address in [0, 1, HANDLES, usize::MAX] {
            let handle = nvmlDevice_t(std::ptr::without_provenance_mut(address));
            assert_eq!(index(handle), wrong, "{address:#x}");
        }
    }
}
