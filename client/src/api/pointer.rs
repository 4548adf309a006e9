//! What an address is.
//!
//! Owns each attribute's form, and the answer for memory that is not ours. Called by the shells of `exports`. Asks
//! ranges and pools; must not ask the server.

use std::ffi::c_void;

use cuda_abi::CUresult;
use cuda_abi::types::{CUdeviceptr, CUmemorytype, CUpointer_attribute};

use super::Outcome;
use crate::context;
use crate::memory::ranges::{Origin, Range};
use crate::pointers::{FromOpaque, List, Untyped};
use crate::session::{Session, session};

/// More attributes than there are.
const MOST: u32 = 256;

/// The value of an attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    /// A C++ bool.
    Bool(bool),
    /// 32 bits. Some of what the manual calls a boolean too: runtime 13.0 reads all four bytes of
    /// IS_MANAGED, and takes a byte among garbage for managed memory.
    Int(u32),
    Long(u64),
}

impl Value {
    /// Writes it where the program wants it.
    ///
    /// # Safety
    /// This is a value of the attribute that the program gave beside `data`.
    unsafe fn write(self, data: Untyped) -> Outcome {
        // SAFETY: the attribute's value is of the variant's type, as the caller vouches.
        unsafe {
            match self {
                Self::Bool(value) => data.typed().set(u8::from(value)),
                Self::Int(value) => data.typed().set(value),
                Self::Long(value) => data.typed().set(value),
            }
        }
    }
}

/// An address of a range as the devices have it, or as the program does.
fn on_side(session: &Session, range: &Range, address: u64, devices: bool) -> u64 {
    let is_registered = range.origin == Origin::Registered;
    match is_registered && session.is_in_host_window(address) != devices {
        true => range.across(address),
        false => address,
    }
}

/// What there is to say of an address in a range of ours.
fn value(
    session: &'static Session,
    range: &Range,
    attribute: CUpointer_attribute,
    address: u64,
) -> Result<Value, CUresult> {
    Ok(match attribute {
        CUpointer_attribute::CONTEXT => Value::Long(range.context),
        CUpointer_attribute::MEMORY_TYPE => Value::Int(match range.origin {
            Origin::Host | Origin::Registered => CUmemorytype::HOST.0,
            // Managed memory too, which IS_MANAGED tells from the rest.
            _ => CUmemorytype::DEVICE.0,
        }),
        CUpointer_attribute::DEVICE_POINTER => Value::Long(on_side(session, range, address, true)),
        CUpointer_attribute::HOST_POINTER if range.is_shared() => {
            Value::Long(on_side(session, range, address, false))
        }
        CUpointer_attribute::HOST_POINTER => return Err(CUresult::ERROR_INVALID_VALUE),
        CUpointer_attribute::SYNC_MEMOPS => Value::Int(range.sync_memops.into()),
        CUpointer_attribute::IS_MANAGED => Value::Int(range.is_managed().into()),
        CUpointer_attribute::IS_LEGACY_CUDA_IPC_CAPABLE => Value::Bool(range.has_ipc_handle()),
        CUpointer_attribute::IS_GPU_DIRECT_RDMA_CAPABLE
        | CUpointer_attribute::IS_HW_DECOMPRESS_CAPABLE => Value::Bool(false),
        CUpointer_attribute::BUFFER_ID | CUpointer_attribute::MEMORY_BLOCK_ID => {
            Value::Long(range.id)
        }
        CUpointer_attribute::DEVICE_ORDINAL => Value::Int(
            session
                .contexts
                .get(range.context)?
                .context
                .device()
                .cast_unsigned(),
        ),
        CUpointer_attribute::RANGE_START_ADDR | CUpointer_attribute::MAPPING_BASE_ADDR => {
            Value::Long(range.base)
        }
        CUpointer_attribute::RANGE_SIZE | CUpointer_attribute::MAPPING_SIZE => {
            Value::Long(range.bytes)
        }
        CUpointer_attribute::MAPPED => Value::Bool(true),
        CUpointer_attribute::ALLOWED_HANDLE_TYPES => {
            let pool = session.pools.get(range.pool);
            Value::Long(pool.map_or(0, |pool| pool.handle_types().0.into()))
        }
        CUpointer_attribute::MEMPOOL_HANDLE => Value::Long(range.pool),
        // Read and write.
        CUpointer_attribute::ACCESS_FLAGS => Value::Int(3),
        CUpointer_attribute::P2P_TOKENS => return Err(CUresult::ERROR_NOT_SUPPORTED),
        _ => return Err(CUresult::ERROR_INVALID_VALUE),
    })
}

/// What cuPointerGetAttributes says of an attribute that an address does not have.
fn nothing(attribute: CUpointer_attribute) -> Option<Value> {
    Some(match attribute {
        CUpointer_attribute::CONTEXT
        | CUpointer_attribute::DEVICE_POINTER
        | CUpointer_attribute::HOST_POINTER
        | CUpointer_attribute::BUFFER_ID
        | CUpointer_attribute::RANGE_START_ADDR
        | CUpointer_attribute::RANGE_SIZE
        | CUpointer_attribute::MAPPING_SIZE
        | CUpointer_attribute::MAPPING_BASE_ADDR
        | CUpointer_attribute::MEMORY_BLOCK_ID
        | CUpointer_attribute::ALLOWED_HANDLE_TYPES
        | CUpointer_attribute::MEMPOOL_HANDLE => Value::Long(0),
        CUpointer_attribute::MEMORY_TYPE
        | CUpointer_attribute::ACCESS_FLAGS
        | CUpointer_attribute::SYNC_MEMOPS
        | CUpointer_attribute::IS_MANAGED => Value::Int(0),
        // CU_DEVICE_INVALID
        CUpointer_attribute::DEVICE_ORDINAL => Value::Int((-2_i32).cast_unsigned()),
        CUpointer_attribute::IS_LEGACY_CUDA_IPC_CAPABLE
        | CUpointer_attribute::IS_GPU_DIRECT_RDMA_CAPABLE
        | CUpointer_attribute::IS_HW_DECOMPRESS_CAPABLE
        | CUpointer_attribute::MAPPED => Value::Bool(false),
        _ => return None,
    })
}

pub(crate) fn cuPointerGetAttribute(
    data: Untyped,
    attribute: CUpointer_attribute,
    ptr: CUdeviceptr,
) -> Outcome {
    let session = session()?;
    if data.is_null() {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    match session.ranges.find(ptr) {
        Some(range) => {
            let known = value(session, &range, attribute, ptr)?;
            // SAFETY: the value is that of the attribute, for which the program gives `data`.
            unsafe { known.write(data) }
        }
        None => Err(CUresult::ERROR_INVALID_VALUE),
    }
}

pub(crate) fn cuPointerGetAttributes(
    num_attributes: u32,
    attributes: List<CUpointer_attribute>,
    data: List<*mut c_void>,
    ptr: CUdeviceptr,
) -> Outcome {
    // Memory has its own context: none need be current.
    let session = session()?;
    if num_attributes == 0 || num_attributes > MOST {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let range = session.ranges.find(ptr);
    for (attribute, data) in attributes
        .get(num_attributes)?
        .into_iter()
        .zip(data.get(num_attributes)?)
    {
        // An address that is none of ours is no error here: every attribute says so by itself. Where it
        // is for kernels is said of the current context, if there is one.
        let is_said = attribute != CUpointer_attribute::DEVICE_POINTER || context::top() != 0;
        let known = range
            .filter(|_| is_said)
            .and_then(|range| value(session, &range, attribute, ptr).ok());
        let said = known.or_else(|| nothing(attribute));
        let said = said.ok_or(CUresult::ERROR_INVALID_VALUE)?;
        // SAFETY: the list has a place for the value of each attribute, and this is that attribute's.
        unsafe { said.write(Untyped::from_opaque(data))? };
    }
    Ok(())
}

pub(crate) fn cuPointerSetAttribute(
    value: Untyped,
    attribute: CUpointer_attribute,
    ptr: CUdeviceptr,
) -> Outcome {
    let session = session()?;
    if value.is_null() || attribute != CUpointer_attribute::SYNC_MEMOPS {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    // SAFETY: the attribute's value is an int.
    let on = unsafe { value.typed::<u32>() }.get()? != 0;
    match session.ranges.set_sync_memops(ptr, on) {
        true => Ok(()),
        false => Err(CUresult::ERROR_INVALID_VALUE),
    }
}
