//! Words in which the GPU itself tells a client how far its streams have come, so that the client hears of it at once and not when a thread
//! of this process has seen it.
//!
//! Owns that the GPU can write them, from the first time on that one is asked for. Called by streams, which say what is told: only what needs
//! nothing of this process when it ends. Must not know when a stream is used.

use std::ffi::c_void;
use std::sync::{Arc, OnceLock};

use cuda_abi::CUresult;
use cuda_abi::types::CUdeviceptr;
use engine::{Region, Window};

use crate::device::Device;

/// What is registered is whole pages.
const PAGE: u64 = 4096;

/// Behind a batch, where the GPU writes for the client how far the stream is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientSignal {
    pub(crate) word: CUdeviceptr,
    pub(crate) sequence: u64,
}

/// The words of one client.
#[derive(Debug)]
pub(crate) struct ClientWords {
    region: Region,
    /// The pages of the words, once the GPU can write there, and where they are unpinned; nothing where that was refused.
    registered: OnceLock<Option<(Window, Arc<Device>)>>,
}

impl ClientWords {
    /// Words at which nothing writes yet.
    pub(crate) fn new(region: Region) -> Self {
        Self {
            region,
            registered: OnceLock::new(),
        }
    }

    /// Where the GPU writes for a stream; `None` for one that has no word. The device's context is current.
    pub(crate) fn word(&self, slot: u32, device: &Arc<Device>) -> Option<CUdeviceptr> {
        let Window { base, bytes } = self.region.window;
        let at = u64::from(slot) * 8;
        if at >= bytes {
            return None;
        }
        let registered = self.registered.get_or_init(|| self.register(device).ok());
        registered.is_some().then_some(base + at)
    }

    fn register(&self, device: &Arc<Device>) -> Result<(Window, Arc<Device>), CUresult> {
        let Window { base, bytes } = self.region.window;
        let first = base / PAGE * PAGE;
        let pages = Window {
            base: first,
            bytes: (base + bytes - first).next_multiple_of(PAGE),
        };
        // SAFETY: the region's owner keeps the pages mapped until `drop` has had them unregistered.
        unsafe { device.register_host(pages)? };
        Ok((pages, Arc::clone(device)))
    }
}

impl Drop for ClientWords {
    fn drop(&mut self) {
        if let Some(Some((pages, device))) = self.registered.take() {
            let owner = Arc::clone(&self.region.owner);
            device.when_idle(pages.bytes, move |driver| {
                // SAFETY: registered by `register`, and still mapped, the owner being kept; the client's streams, which
                // keep the words, are gone, and with them all work that writes there.
                let _ = unsafe { driver.cuMemHostUnregister(pages.base as *mut c_void) };
                drop(owner);
            });
        }
    }
}
