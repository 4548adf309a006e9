//! A client's memory as its operations see it: what an address is, and whether the client has it.

use std::collections::BTreeMap;
use std::sync::Arc;

use cuda_abi::CUresult;
use cuda_abi::operations::Space;
use engine::{Owner, Region, Window};

use crate::device::Device;
use crate::host::HostWindow;
use crate::window::{Cleared, DeviceWindow};

/// What kind of memory a range is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// That of the GPU of this number: its window, or a module's variable.
    Device(usize),
    /// Page-locked host memory.
    Host,
    /// Staging memory, which is host memory too.
    Staging,
}

/// One client's memory.
#[derive(Debug)]
pub(crate) struct Memory {
    devices: Vec<DeviceWindow>,
    host: HostWindow,
    staging: HostWindow,
    /// By first address, the bytes and the device of each variable of the client's modules.
    variables: BTreeMap<u64, (u64, usize)>,
}

impl Memory {
    /// Reserves a client's windows.
    ///
    /// # Errors
    /// See [`DeviceWindow::new`].
    pub(crate) fn new(
        devices: &[Arc<Device>],
        windows: &[Window],
        addresses: &Arc<dyn Owner>,
        host: Region,
        staging: Region,
    ) -> Result<Self, CUresult> {
        let first = devices.first().ok_or(CUresult::ERROR_NO_DEVICE)?;
        if windows.len() != devices.len() {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        Ok(Self {
            devices: devices
                .iter()
                .zip(windows)
                .map(|(device, &window)| DeviceWindow::new(device, window))
                .collect::<Result<_, _>>()?,
            host: HostWindow::new(first, host, addresses),
            staging: HostWindow::new(first, staging, addresses),
            variables: BTreeMap::new(),
        })
    }

    /// What streams have to wait for before they touch memory.
    pub(crate) fn cleared(&self) -> Vec<Arc<Cleared>> {
        self.devices
            .iter()
            .map(|window| Arc::clone(window.cleared()))
            .collect()
    }

    /// See [`engine::Client::commit`].
    pub(crate) fn commit(&mut self, range: Window) -> Result<(), CUresult> {
        if self.host.contains(range) {
            return self.host.commit(range);
        }
        self.devices
            .iter_mut()
            .find(|window| window.contains(range))
            .ok_or(CUresult::ERROR_INVALID_VALUE)?
            .commit(range)
    }

    /// See [`engine::Client::decommit`].
    pub(crate) fn decommit(&mut self, range: Window) {
        if self.host.contains(range) {
            self.host.decommit(range);
        } else if let Some(window) = self
            .devices
            .iter_mut()
            .find(|window| window.contains(range))
        {
            window.decommit(range);
        }
    }

    /// Gives back what is overdue.
    pub(crate) fn tidy(&mut self) {
        for window in &mut self.devices {
            window.tidy();
        }
    }

    /// Adds a variable of a module on a device.
    pub(crate) fn add_variable(&mut self, range: Window, device: usize) {
        self.variables.insert(range.base, (range.bytes, device));
    }

    /// Forgets a variable.
    pub(crate) fn remove_variable(&mut self, base: u64) {
        self.variables.remove(&base);
    }

    /// The address in this process of a range in a space, and what is there.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE if the client does not have all of it.
    pub(crate) fn find(
        &mut self,
        space: u32,
        at: u64,
        bytes: u64,
    ) -> Result<(u64, Place), CUresult> {
        match Space::from_number(space) {
            Some(Space::Unified) => {
                let range = Window { base: at, bytes };
                Ok((at, self.unified(range)?))
            }
            Some(Space::Staging) => {
                let base = self
                    .staging
                    .window()
                    .base
                    .checked_add(at)
                    .ok_or(CUresult::ERROR_INVALID_VALUE)?;
                let range = Window { base, bytes };
                if !self.staging.contains(range) {
                    return Err(CUresult::ERROR_INVALID_VALUE);
                }
                self.staging.use_staging(range)?;
                Ok((base, Place::Staging))
            }
            Some(Space::Array) | None => Err(CUresult::ERROR_INVALID_VALUE),
        }
    }

    fn unified(&self, range: Window) -> Result<Place, CUresult> {
        let had = |has: bool, place| {
            if has {
                Ok(place)
            } else {
                Err(CUresult::ERROR_INVALID_VALUE)
            }
        };
        if self.host.contains(range) {
            return had(self.host.has(range), Place::Host);
        }
        let mut windows = self.devices.iter().enumerate();
        if let Some((device, window)) = windows.find(|(_, window)| window.contains(range)) {
            return had(window.has(range), Place::Device(device));
        }
        let variable = self.variables.range(..=range.base).next_back();
        let (&base, &(bytes, device)) = variable.ok_or(CUresult::ERROR_INVALID_VALUE)?;
        let inside = Window { base, bytes }.contains(range.base, range.bytes);
        had(inside, Place::Device(device))
    }

    /// See [`engine::Client::peek`].
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for what the client does not have, CUDA_ERROR_NOT_READY for what is
    /// not there yet, and the driver's status.
    pub(crate) fn peek(&mut self, address: u64, bytes: u32) -> Result<u64, CUresult> {
        if !matches!(bytes, 4 | 8) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let range = Window {
            base: address,
            bytes: bytes.into(),
        };
        match self.unified(range)? {
            Place::Device(device) => self
                .devices
                .get_mut(device)
                .ok_or(CUresult::ERROR_INVALID_VALUE)?
                .peek(address, bytes),
            Place::Host | Place::Staging => Ok(host_value(range)),
        }
    }

    /// Waits until nothing of the client's is being looked at.
    pub(crate) fn wait_for_looks(&self) {
        for window in &self.devices {
            window.looks().wait_until_over();
        }
    }

    /// Whether nothing of the client's is being looked at.
    pub(crate) fn looks_are_over(&self) -> bool {
        self.devices.iter().all(|window| window.looks().are_over())
    }

    /// The host window that a place other than the device's is in.
    pub(crate) fn host_of(&self, place: Place) -> Option<&HostWindow> {
        match place {
            Place::Device(_) => None,
            Place::Host => Some(&self.host),
            Place::Staging => Some(&self.staging),
        }
    }
}

/// The value of 4 or 8 bytes of host memory, which its owner keeps mapped. What is aligned is read at
/// once.
fn host_value(range: Window) -> u64 {
    let Window { base, bytes } = range;
    // SAFETY: the caller found the range to be mapped memory of the client, who may write it at any time,
    // so it is read as one of a processor's words, or bytes, and nothing is concluded from it.
    unsafe {
        if !base.is_multiple_of(bytes) {
            (0..bytes).fold(0, |value, at| {
                value | u64::from(((base + at) as *const u8).read_volatile()) << (8 * at)
            })
        } else if bytes == 4 {
            u64::from((base as *const u32).read_volatile())
        } else {
            (base as *const u64).read_volatile()
        }
    }
}
