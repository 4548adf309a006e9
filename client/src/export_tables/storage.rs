//! The table CONTEXT_LOCAL_STORAGE: what runtimes keep with a context.
//!
//! Each copy of the runtime has a key (an address inside of itself) and keeps one value in each
//! context. Called by runtimes through the table's slots. Must not know how values are kept: `context::local_storage` does.

use std::ffi::c_void;

use cuda_abi::CUresult;
use cuda_abi::types::CUcontext;

use super::client_access;
use super::table::{contain, status};
use crate::context::local_storage::{self, Destructor, StorageKey};

/// Slot 0: keeps a value, in place of the one before.
///
/// # Safety
/// `destructor` may be called with these arguments until the value is taken away.
pub(super) unsafe extern "C" fn put(
    context: CUcontext,
    key: *mut c_void,
    value: *mut c_void,
    destructor: Destructor,
) -> CUresult {
    status(|| {
        client_access::attached()?;
        let context = named(context)?;
        client_access::alive(context)?;
        let place = (context, key.addr() as u64);
        let value = value.expose_provenance() as u64;
        // SAFETY: the destructor may be called with these, as the caller promises.
        unsafe { local_storage::put(place, value, destructor) };
        Ok(())
    })
}

/// Slot 1: takes a value away, without its destructor.
pub(super) extern "C" fn delete(context: CUcontext, key: *mut c_void) -> CUresult {
    status(|| {
        client_access::attached()?;
        let place = (named(context)?, key.addr() as u64);
        match local_storage::remove(place) {
            true => Ok(()),
            false => Err(CUresult::ERROR_INVALID_HANDLE),
        }
    })
}

/// Slot 2: gives a value.
///
/// # Safety
/// `value` is null or valid for a write.
pub(super) unsafe extern "C" fn get(
    value: *mut *mut c_void,
    context: CUcontext,
    key: *mut c_void,
) -> CUresult {
    let found = match find(context, key.addr() as u64) {
        Ok(found) => found,
        Err(error) => return error,
    };
    if value.is_null() {
        return CUresult::ERROR_INVALID_VALUE;
    }
    // SAFETY: not null, so valid for the write, as the caller promises.
    unsafe { value.write(std::ptr::with_exposed_provenance_mut(found as usize)) };
    CUresult::SUCCESS
}

fn find(context: CUcontext, key: u64) -> Result<u64, CUresult> {
    client_access::attached()?;
    let place = (named(context)?, key);
    match local_storage::get_cached(place) {
        Some(value) => Ok(value),
        None => contain(Err(CUresult::ERROR_UNKNOWN), || find_in_map(place)),
    }
}

#[cold]
fn find_in_map(place: StorageKey) -> Result<u64, CUresult> {
    if let Some(value) = local_storage::get(place) {
        return Ok(value);
    }
    client_access::alive(place.0)?;
    Err(CUresult::ERROR_INVALID_HANDLE)
}

/// The context that is meant: null means the current one.
fn named(context: CUcontext) -> Result<u64, CUresult> {
    match context.bits() {
        0 => client_access::current().ok_or(CUresult::ERROR_INVALID_CONTEXT),
        bits => Ok(bits),
    }
}
