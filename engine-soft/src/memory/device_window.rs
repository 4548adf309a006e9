//! A window of device memory: its mapping, and which of its granules the client has.
//!
//! Owns both. Called by the client's memory. Must not know what work uses them.

use std::any::Any;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use engine::{Bound, CUresult, Owner, Window};

use super::backing::{Backing, Counted, Mappings};
use super::mapped::{Mapped, Ticket};

/// Keeps a device window mapped, for this client's own work.
#[derive(Debug)]
pub(super) struct KeptMapped {
    pub(super) _backing: Arc<Backing>,
    pub(super) _ticket: Ticket,
}

/// A window of device memory.
#[derive(Debug)]
pub(super) struct DeviceWindow {
    /// The device's place among the engine's.
    pub(super) device: usize,
    pub(super) window: Window,
    pub(super) table: Arc<ptx_vm::Window>,
    pub(super) backing: Arc<Backing>,
    /// Bytes that are valid and taken from the device's budget.
    pub(super) committed: AtomicU64,
}

impl DeviceWindow {
    /// Maps a window of a device, of a file if there is one.
    pub(super) fn map(
        (device, window, file): (usize, Window, Option<OwnedFd>),
        budget: &Arc<Bound>,
        addresses: &Arc<dyn Owner>,
        mappings: &Arc<Mappings>,
        mapped: &Arc<Mapped>,
        counted: Option<Counted>,
    ) -> Result<Self, CUresult> {
        let backing = Backing::map((window, file), budget, addresses, mappings, counted)
            .map_err(|_| CUresult::ERROR_OUT_OF_MEMORY)?;
        let owner = KeptMapped {
            _backing: Arc::clone(&backing),
            _ticket: mapped.ticket(),
        };
        Ok(Self {
            device,
            window,
            table: table(window, Arc::new(owner)),
            backing,
            committed: AtomicU64::new(0),
        })
    }
}

/// The table of a range that `owner` keeps mapped; nothing of it is valid yet.
pub(super) fn table(window: Window, owner: Arc<dyn Any + Send + Sync>) -> Arc<ptx_vm::Window> {
    // SAFETY: `owner` is what keeps the range mapped, readable and writable: our own mapping, or the
    // region's owner by the contract of `engine::Region`. Nothing in it is a Rust object.
    Arc::new(unsafe { ptx_vm::Window::new(window.base, window.bytes, owner) })
}
