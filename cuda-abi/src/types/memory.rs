//! Structures of physical memory, pools and batches of copies. Layouts are C's; the tests hold sizes
//! and offsets that a C compiler gave for the headers of CUDA 13.
//!
//! Used by the rows of functions, by `client`'s `api` and by `engine-nvidia` towards the driver. Must not know what
//! is allowed in them.

#![allow(non_snake_case, reason = "the names are C's")]
#![allow(
    missing_docs,
    reason = "the fields' names are CUDA's and say what they are"
)]

use core::ffi::c_void;

use super::{CUmemAccess_flags, CUmemAllocationHandleType, CUmemAllocationType, CUmemLocation};

/// How physical memory is allocated.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CUmemAllocationProp {
    pub r#type: CUmemAllocationType,
    pub requestedHandleTypes: CUmemAllocationHandleType,
    pub location: CUmemLocation,
    pub win32HandleMetaData: *mut c_void,
    pub compressionType: u8,
    pub gpuDirectRDMACapable: u8,
    pub usage: u16,
    pub reserved: [u8; 4],
}

/// How a place may reach memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct CUmemAccessDesc {
    pub location: CUmemLocation,
    pub flags: CUmemAccess_flags,
}

/// How a memory pool is made.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CUmemPoolProps {
    pub allocType: CUmemAllocationType,
    pub handleTypes: CUmemAllocationHandleType,
    pub location: CUmemLocation,
    pub win32SecurityAttributes: *mut c_void,
    pub maxSize: usize,
    pub usage: u16,
    pub reserved: [u8; 54],
}

/// A token for an allocation of a shared pool.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CUmemPoolPtrExportData {
    pub reserved: [u8; 64],
}

/// How the copies of a batch are made.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CUmemcpyAttributes {
    pub srcAccessOrder: u32,
    pub srcLocHint: CUmemLocation,
    pub dstLocHint: CUmemLocation,
    pub flags: u32,
}

/// One side of a copy of a batch of boxes.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CUmemcpy3DOperand {
    pub r#type: u32,
    /// An address with its row length and layer height in elements and its location, or an array
    /// with an offset.
    pub op: [u64; 4],
}

/// One copy of a batch of boxes.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CUDA_MEMCPY3D_BATCH_OP {
    pub src: CUmemcpy3DOperand,
    pub dst: CUmemcpy3DOperand,
    pub extent: [usize; 3],
    pub srcAccessOrder: u32,
    pub flags: u32,
}

/// Memory of another interface, as a program imports it. `handle` is C's union, as words: a descriptor is
/// in the lower half of the first.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CUDA_EXTERNAL_MEMORY_HANDLE_DESC {
    pub r#type: u32,
    pub handle: [u64; 2],
    pub size: u64,
    pub flags: u32,
    pub reserved: [u32; 16],
}

/// A part of memory of another interface.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CUDA_EXTERNAL_MEMORY_BUFFER_DESC {
    pub offset: u64,
    pub size: u64,
    pub flags: u32,
    pub reserved: [u32; 16],
}

/// Which semaphore of another interface is meant: C's union is a descriptor, in the lower half of the first word,
/// or pointers.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC {
    pub r#type: u32,
    pub handle: [u64; 2],
    pub flags: u32,
    pub reserved: [u32; 16],
}

/// How a semaphore is signalled: a value, what two interfaces have that are not on Linux, and flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS {
    pub value: u64,
    pub nvSciSync: u64,
    pub key: u64,
    pub reserved0: [u32; 12],
    pub flags: u32,
    pub reserved1: [u32; 16],
}

/// For what of a semaphore is waited; as [`CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS {
    pub value: u64,
    pub nvSciSync: u64,
    pub key: u64,
    pub timeoutMs: u32,
    pub padding: u32,
    pub reserved0: [u32; 10],
    pub flags: u32,
    pub reserved1: [u32; 16],
}

const _: () = assert!(
    size_of::<CUDA_EXTERNAL_MEMORY_HANDLE_DESC>() == 104
        && size_of::<CUDA_EXTERNAL_MEMORY_BUFFER_DESC>() == 88
        && size_of::<CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC>() == 96
        && size_of::<CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS>() == 144
        && size_of::<CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS>() == 144
        && core::mem::offset_of!(CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS, flags) == 72
        && core::mem::offset_of!(CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS, flags) == 72
);

#[cfg(test)]
mod tests {
    use core::mem::offset_of;

    use super::*;

    #[test]
    fn layouts_are_those_of_c() {
        assert_eq!(size_of::<CUmemAllocationProp>(), 32);
        assert_eq!(offset_of!(CUmemAllocationProp, location), 8);
        assert_eq!(offset_of!(CUmemAllocationProp, compressionType), 24);
        assert_eq!(size_of::<CUmemAccessDesc>(), 12);
        assert_eq!(size_of::<CUmemPoolProps>(), 88);
        assert_eq!(offset_of!(CUmemPoolProps, maxSize), 24);
        assert_eq!(offset_of!(CUmemPoolProps, usage), 32);
        assert_eq!(size_of::<CUmemPoolPtrExportData>(), 64);
        assert_eq!(size_of::<CUmemcpyAttributes>(), 24);
        assert_eq!(offset_of!(CUmemcpyAttributes, flags), 20);
        assert_eq!(size_of::<CUmemcpy3DOperand>(), 40);
        assert_eq!(size_of::<CUDA_MEMCPY3D_BATCH_OP>(), 112);
        assert_eq!(offset_of!(CUDA_MEMCPY3D_BATCH_OP, extent), 80);
        assert_eq!(offset_of!(CUDA_MEMCPY3D_BATCH_OP, flags), 108);
    }
}
