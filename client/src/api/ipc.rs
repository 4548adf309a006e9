//! Memory and events shared between processes of one user.
//!
//! Owns the bytes of such handles. Called by the shells of `exports`; `pool_sharing` opens blocks by it, frees ask
//! it first. Must not know who made what a token names: the server judges.

use cuda_abi::CUresult;
use cuda_abi::types::{
    CU_EVENT_DISABLE_TIMING, CU_EVENT_INTERPROCESS, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS,
    CUdeviceptr, CUevent, CUipcEventHandle, CUipcMemHandle,
};
use protocol::operations::{
    EventOpen, Expose, ExposeReply, Exposed, MemClose, MemImport, MemImportReply,
};

use super::Outcome;
use crate::context::{Current, resource_context};
use crate::handle::HandleKind;
use crate::memory::ranges::{Origin, Range};
use crate::pointers::Out;
use crate::session::{Session, session};

/// What a handle begins with; the token follows.
const MEMORY: [u8; 8] = *b"OMPSmem1";
const EVENT: [u8; 8] = *b"OMPSevt1";

/// The bytes of a handle.
pub(super) fn handle_of(kind: [u8; 8], token: [u64; 4]) -> [u8; 64] {
    let mut bytes = [0; 64];
    bytes[..8].copy_from_slice(&kind);
    for (at, word) in token.into_iter().enumerate() {
        bytes[8 + 8 * at..][..8].copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// The token in a handle.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE for what is no handle of this kind.
pub(super) fn token_in_handle(kind: [u8; 8], bytes: &[u8; 64]) -> Result<[u64; 4], CUresult> {
    if bytes[..8] != kind {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let mut token = [0; 4];
    for (word, bytes) in token.iter_mut().zip(bytes[8..40].as_chunks().0) {
        *word = u64::from_le_bytes(*bytes);
    }
    Ok(token)
}

pub(crate) fn cuIpcGetMemHandle(handle: Out<CUipcMemHandle>, dptr: CUdeviceptr) -> Outcome {
    resource_context()?;
    let session = session()?;
    handle.required()?;
    let range = session
        .ranges
        .find(dptr)
        .filter(Range::has_ipc_handle)
        .ok_or(CUresult::ERROR_INVALID_VALUE)?;
    let ExposeReply { token } = session
        .call(&Expose {
            kind: Exposed::Block as u32,
            object: range.base,
            bytes: range.bytes,
        })?
        .fields;
    handle.set(CUipcMemHandle {
        reserved: handle_of(MEMORY, token),
    })
}

pub(crate) fn cuIpcOpenMemHandle(
    dptr: Out<CUdeviceptr>,
    handle: CUipcMemHandle,
    flags: u32,
) -> Outcome {
    cuIpcOpenMemHandle_v2(dptr, handle, flags)
}

pub(crate) fn cuIpcOpenMemHandle_v2(
    dptr: Out<CUdeviceptr>,
    handle: CUipcMemHandle,
    flags: u32,
) -> Outcome {
    let current = resource_context()?;
    dptr.required()?;
    if flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let token = token_in_handle(MEMORY, &handle.reserved)?;
    dptr.set(open(&current, token, 0)?)
}

/// Opens another process's block, for a pool of this one or for none, and gives its address.
pub(super) fn open(current: &Current, token: [u64; 4], pool: u64) -> Result<u64, CUresult> {
    let session = session()?;
    // Held over the call: two threads that open the same memory get it once.
    let mut imports = session.addresses.imports();
    let MemImportReply {
        address,
        bytes,
        device,
    } = session.call(&MemImport { token })?.fields;
    if let Some(shares) = imports.get_mut(&address) {
        *shares += 1;
        // Here the shares are counted, and the server has it open once.
        session.post(&MemClose { address })?;
        return Ok(address);
    }
    // What a client of another context shares lies in a window of this client's, which may be a new one; what one of the same
    // context does, in that client's.
    if let Err(code) = session.reserve_around(address)
        && code != CUresult::ERROR_INVALID_VALUE
    {
        session.post(&MemClose { address })?;
        return Err(code);
    }
    let range = Range {
        pool,
        ..Range::new(current, Origin::Imported, address, bytes)
    };
    // What it lies on must be a device that this process sees.
    let visible = session.ordinal_of(device).is_some();
    // It may lie where this process had memory once: the addresses are still reserved here.
    if session.is_in_host_window(address) || !visible || !session.ranges.insert(range) {
        session.post(&MemClose { address })?;
        return Err(CUresult::ERROR_MAP_FAILED);
    }
    session.addresses.add_import(&mut imports, address);
    Ok(address)
}

pub(crate) fn cuIpcCloseMemHandle(dptr: CUdeviceptr) -> Outcome {
    let session = session()?;
    // What came through a pool goes as what comes from pools does.
    let of_pool = session
        .ranges
        .find(dptr)
        .is_some_and(|range| range.pool != 0);
    match of_pool {
        true => Err(CUresult::ERROR_INVALID_VALUE),
        false => close(session, dptr),
    }
}

/// Gives up a share in another process's block that came through a pool, if that is at an address.
pub(super) fn close_of_pool(session: &Session, dptr: u64) -> Option<Outcome> {
    let range = session.ranges.find(dptr)?;
    let is_one = range.base == dptr && range.origin == Origin::Imported && range.pool != 0;
    is_one.then(|| close(session, dptr))
}

/// Gives up a share in another process's block.
fn close(session: &Session, dptr: u64) -> Outcome {
    let mut imports = session.addresses.imports();
    let shares = imports
        .get_mut(&dptr)
        .ok_or(CUresult::ERROR_INVALID_VALUE)?;
    *shares -= 1;
    if *shares > 0 {
        return Ok(());
    }
    imports.remove(&dptr);
    session
        .ranges
        .remove(dptr, |range| range.origin == Origin::Imported);
    session.post(&MemClose { address: dptr })
}

pub(crate) fn cuIpcGetEventHandle(handle: Out<CUipcEventHandle>, event: CUevent) -> Outcome {
    let session = session()?;
    handle.required()?;
    let slot = session.events.get(event)?.shared();
    let event = slot.ok_or(CUresult::ERROR_INVALID_HANDLE)?;
    let ExposeReply { token } = session
        .call(&Expose {
            kind: Exposed::Event as u32,
            object: u64::from(event),
            bytes: 0,
        })?
        .fields;
    handle.set(CUipcEventHandle {
        reserved: handle_of(EVENT, token),
    })
}

pub(crate) fn cuIpcOpenEventHandle(event: Out<CUevent>, handle: CUipcEventHandle) -> Outcome {
    let current = resource_context()?;
    event.required()?;
    let token = token_in_handle(EVENT, &handle.reserved).map_err(|_| CUresult::ERROR_MAP_FAILED)?;
    let opened = session()?.call(&EventOpen { token })?;
    let flags = CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING;
    let shared = Some(opened.fields.event);
    let key = session()?.events.create(&current, flags, shared)?;
    event.set(CUevent::from_bits(key.handle(HandleKind::Event)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_holds_its_token_and_only_for_its_kind() {
        let token = [1, 2, 3, u64::MAX];
        let bytes = handle_of(MEMORY, token);
        assert_eq!(token_in_handle(MEMORY, &bytes), Ok(token));
        assert_eq!(
            token_in_handle(EVENT, &bytes),
            Err(CUresult::ERROR_INVALID_VALUE)
        );
        assert_eq!(
            token_in_handle(MEMORY, &[0; 64]),
            Err(CUresult::ERROR_INVALID_VALUE)
        );
    }
}
