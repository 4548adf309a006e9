//! All that the private tables need of the rest of the client.
//!
//! Owns nothing: it asks the session as an entry point would. Called by the tables' entries. Whatever else of the
//! client a table needs is added here, so that one file shows what they depend on.

use std::ffi::c_void;

use cuda_abi::CUresult;
use cuda_abi::proc_address::DRIVER_VERSION;
use cuda_abi::types::{CUdevice, CUdevice_attribute, CUmodule, CUstream};
use protocol::device_facts::{PCI_BUS_ID, PCI_DEVICE_ID, PCI_DOMAIN_ID};

use super::integrity::Device;
use crate::handle::HandleKind;
use crate::pointers::{FromOpaque, ImageStart, Out};
use crate::session::session;
use crate::{api, context, stream};

/// What cuDriverGetVersion reports.
pub(super) fn driver_version() -> i32 {
    DRIVER_VERSION
}

/// Whether this process is a client.
///
/// # Errors
/// CUDA_ERROR_NOT_INITIALIZED before cuInit and in a fork's child.
#[inline]
pub(super) fn attached() -> Result<(), CUresult> {
    session().map(drop)
}

/// What the public interface reports of each device, in order of their ordinals.
pub(super) fn devices() -> Result<impl Iterator<Item = Device>, CUresult> {
    Ok(session()?.devices().iter().map(|device| Device {
        uuid: device.facts.uuid,
        pci_domain: device.attribute(CUdevice_attribute(PCI_DOMAIN_ID)),
        pci_bus: device.attribute(CUdevice_attribute(PCI_BUS_ID)),
        pci_device: device.attribute(CUdevice_attribute(PCI_DEVICE_ID)),
    }))
}

/// The handle of a device's primary context.
pub(super) fn primary_context(device: CUdevice) -> Result<u64, CUresult> {
    Ok(session()?.contexts.primary(device)?.handle())
}

/// The handle of the calling thread's context.
#[inline]
pub(super) fn current() -> Option<u64> {
    match context::top() {
        0 => None,
        handle => Some(handle),
    }
}

/// Whether a handle names a context that is alive.
///
/// # Errors
/// CUDA_ERROR_INVALID_CONTEXT when not.
pub(super) fn alive(handle: u64) -> Result<(), CUresult> {
    session()?.contexts.get(handle).map(drop)
}

/// A number that no other context has or had.
pub(super) fn context_id(handle: u64) -> Result<u64, CUresult> {
    Ok(session()?.contexts.get(handle)?.id())
}

/// A number that no other stream has or had, of a stream of the context.
///
/// # Errors
/// CUDA_ERROR_INVALID_CONTEXT for a dead context, CUDA_ERROR_INVALID_HANDLE for a stream that is none
/// of its own.
pub(super) fn stream_id(context: u64, stream: CUstream) -> Result<u64, CUresult> {
    alive(context)?;
    let target = stream::target(stream)?;
    if target.stream.context() != context {
        return Err(CUresult::ERROR_INVALID_HANDLE);
    }
    Ok(target.stream.id())
}

/// Loads an image into the calling thread's context, and gives the module's handle.
///
/// # Safety
/// `image` is null or leads to a whole image, which stays as it is during the call.
pub(super) unsafe fn load_module(image: *const c_void) -> Result<u64, CUresult> {
    let mut module = CUmodule::NULL;
    // SAFETY: the local variable is valid for the write.
    let out = unsafe { Out::new(&raw mut module) };
    // SAFETY: the caller vouches for the image.
    let image = unsafe { ImageStart::from_opaque(image) };
    api::cuModuleLoadData(out, image)?;
    Ok(module.bits())
}

/// The handles of a module's functions.
pub(super) fn functions(module: u64) -> Result<Vec<u64>, CUresult> {
    let session = session()?;
    let module = session.code.modules.get(module)?;
    (0..module.image.descriptor.kernels.len() as u32)
        .map(|index| {
            Ok(module
                .function(&session.code.functions, index)?
                .handle(HandleKind::Function))
        })
        .collect()
}
