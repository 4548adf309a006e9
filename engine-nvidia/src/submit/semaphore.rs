//! A semaphore of another interface, and its signal by a stream.
//!
//! Made by `client::semaphores`; a signal is issued as any other work. Must not know who waits for it.

use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};
use std::sync::Arc;

use cuda_abi::CUresult;
use cuda_abi::types::{
    CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC, CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS,
    CUexternalSemaphore, CUstream,
};

use crate::device::Device;
use crate::driver::Driver;
use crate::sync::Handle;

/// A semaphore that the driver has imported.
#[derive(Debug)]
pub(crate) struct Semaphore {
    device: Arc<Device>,
    raw: Handle<CUexternalSemaphore>,
}

/// A signal of one.
#[derive(Debug)]
pub(crate) struct Signal {
    pub(crate) semaphore: Arc<Semaphore>,
    /// Of a timeline.
    pub(crate) value: u64,
}

impl Semaphore {
    /// Has the driver import a semaphore of a kind, CUexternalSemaphoreHandleType.
    ///
    /// # Errors
    /// The driver's status.
    pub(crate) fn import(
        device: &Arc<Device>,
        kind: u32,
        descriptor: OwnedFd,
    ) -> Result<Self, CUresult> {
        let driver = device.enter()?;
        let described = CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC {
            r#type: kind,
            handle: [u64::from(descriptor.as_raw_fd().cast_unsigned()), 0],
            flags: 0,
            reserved: [0; 16],
        };
        let mut raw = CUexternalSemaphore::NULL;
        // SAFETY: the pointers are to locals, and the descriptor is open.
        let imported =
            unsafe { driver.cuImportExternalSemaphore(&raw mut raw, &raw const described) };
        device.confirm(imported)?;
        // The driver's from here on.
        let _ = descriptor.into_raw_fd();
        Ok(Self {
            device: Arc::clone(device),
            raw: Handle(raw),
        })
    }

    /// The device that it was imported for.
    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// What the driver knows it by.
    pub(crate) fn raw(&self) -> CUexternalSemaphore {
        self.raw.raw()
    }
}

impl Drop for Semaphore {
    fn drop(&mut self) {
        if let Ok(driver) = self.device.enter() {
            // SAFETY: made in `import`, destroyed once; whoever signals it or waits for it holds a reference to this.
            let _ = unsafe { driver.cuDestroyExternalSemaphore(self.raw()) };
        }
    }
}

impl Signal {
    /// Gives it to the driver. The device's context is current.
    ///
    /// # Errors
    /// The driver's status.
    pub(crate) fn issue(&self, driver: &Driver, stream: CUstream) -> Result<(), CUresult> {
        let params = CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS {
            value: self.value,
            nvSciSync: 0,
            key: 0,
            reserved0: [0; 12],
            flags: 0,
            reserved1: [0; 16],
        };
        let raw = self.semaphore.raw();
        // SAFETY: one semaphore with its parameters, which the driver copies; it lives as long as the signal does,
        // which is until the stream has come past it.
        unsafe {
            driver.cuSignalExternalSemaphoresAsync(&raw const raw, &raw const params, 1, stream)
        }
    }
}
