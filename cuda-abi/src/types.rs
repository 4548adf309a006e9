//! The C types of the driver's interface: handles, numbers, structures, and what points to what.
//!
//! Names and layouts are C's. Values that a program may choose freely are open enums (a number with
//! named constants), so that one we do not know is a number and not an error. This module knows no
//! function and carries no behaviour.
#![allow(non_camel_case_types, reason = "the names are C's")]

mod attributes;
mod enums;
mod graphs;
mod memory;
mod structs;

pub use attributes::{CUdevice_attribute, DEVICE_ATTRIBUTES, device_attribute_name};
pub use core::ffi::{c_char, c_void};
pub use enums::*;
pub use graphs::*;
pub use memory::*;
pub use structs::*;

pub use crate::errors::CUresult;

/// A device's ordinal.
pub type CUdevice = i32;
/// An address in device memory, or in unified memory.
pub type CUdeviceptr = u64;
/// An address as interfaces before CUDA 3.2 have it.
pub type CUdeviceptr_v1 = u32;
/// A texture object.
pub type CUtexObject = u64;
/// A surface object.
pub type CUsurfObject = u64;
/// Physical memory without an address.
pub type CUmemGenericAllocationHandle = u64;
/// The condition of a conditional graph node.
pub type CUgraphConditionalHandle = u64;
/// A place in the driver's log.
pub type CUlogIterator = u32;
/// An EGL image, as EGL has it.
pub type EGLImageKHR = *mut c_void;
/// An EGL stream, as EGL has it.
pub type EGLStreamKHR = *mut c_void;

/// A host function that a stream calls.
pub type CUhostFn = Option<unsafe extern "C" fn(user_data: *mut c_void)>;
/// A host function that a stream calls with its status.
pub type CUstreamCallback =
    Option<unsafe extern "C" fn(stream: CUstream, status: CUresult, user_data: *mut c_void)>;
/// Gives the dynamic shared memory in bytes that a block of so many threads needs.
pub type CUoccupancyB2DSize = Option<unsafe extern "C" fn(block_size: i32) -> usize>;
/// Called when something happens to a device.
pub type CUasyncCallback = Option<
    unsafe extern "C" fn(
        info: *mut c_void,
        user_data: *mut c_void,
        callback: CUasyncCallbackHandle,
    ),
>;
/// Called with each line of the driver's log.
pub type CUlogsCallback = Option<
    unsafe extern "C" fn(user_data: *mut c_void, level: u32, message: *mut c_char, length: usize),
>;

macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident,)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(transparent)]
        pub struct $name(pub *mut c_void);

        impl $name {
            /// No object.
            pub const NULL: Self = Self(core::ptr::null_mut());

            /// The handle with these bits. A handle is a name: nobody on this side of the driver
            /// follows it as a pointer.
            #[must_use]
            pub const fn from_bits(bits: u64) -> Self {
                Self(core::ptr::without_provenance_mut(bits as usize))
            }

            /// The handle's bits.
            #[must_use]
            pub fn bits(self) -> u64 {
                self.0.addr() as u64
            }

            /// Whether it names no object.
            #[must_use]
            pub fn is_null(self) -> bool {
                self.0.is_null()
            }
        }

        impl Default for $name {
            fn default() -> Self {
                Self::NULL
            }
        }
    )*};
}

handles! {
    /// An array: memory in a layout for textures.
    CUarray,
    /// A registration for what happens to a device.
    CUasyncCallbackHandle,
    /// A context.
    CUcontext,
    /// Resources that a green context can be made of.
    CUdevResourceDesc,
    /// One end of an EGL stream.
    CUeglStreamConnection,
    /// An event.
    CUevent,
    /// Memory of another interface.
    CUexternalMemory,
    /// A semaphore of another interface.
    CUexternalSemaphore,
    /// A kernel of a module. Since CUDA 12 programs also pass a [`CUkernel`] as one.
    CUfunction,
    /// A graph.
    CUgraph,
    /// An executable graph.
    CUgraphExec,
    /// A node of a graph.
    CUgraphNode,
    /// A resource of a graphics interface.
    CUgraphicsResource,
    /// A context with a share of the multiprocessors.
    CUgreenCtx,
    /// A kernel of a library.
    CUkernel,
    /// A library: a module of no particular context.
    CUlibrary,
    /// A link under way.
    CUlinkState,
    /// A registration for the driver's log.
    CUlogsCallbackHandle,
    /// A memory pool.
    CUmemoryPool,
    /// An array with mipmap levels.
    CUmipmappedArray,
    /// A module.
    CUmodule,
    /// A stream.
    CUstream,
    /// A surface reference.
    CUsurfref,
    /// A texture reference.
    CUtexref,
    /// An object of the program that graphs hold.
    CUuserObject,
}

impl CUstream {
    /// The legacy default stream by name; null means it too, unless the caller is per-thread.
    pub const LEGACY: Self = Self::from_bits(1);
    /// The default stream of the calling thread.
    pub const PER_THREAD: Self = Self::from_bits(2);
}

macro_rules! opaque_structs {
    ($($name:ident)*) => {$(
        /// A structure that only functions that are not built take; its fields are not described.
        #[derive(Clone, Copy, Debug)]
        #[repr(C)]
        pub struct $name {
            _opaque: [u8; 0],
        }
    )*};
}

opaque_structs! {
    CUDA_ARRAY_SPARSE_PROPERTIES
    CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC
    CUarrayMapInfo CUcheckpointCheckpointArgs CUcheckpointLockArgs CUcheckpointRestoreArgs CUcheckpointUnlockArgs CUmemDecompressParams CUmulticastObjectProp
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_are_pointers_and_keep_their_bits() {
        assert_eq!(size_of::<CUstream>(), 8);
        assert_eq!(CUstream::from_bits(0xdead_0002).bits(), 0xdead_0002);
        assert!(CUcontext::NULL.is_null());
        assert!(!CUstream::PER_THREAD.is_null());
        assert_eq!(size_of::<CUhostFn>(), 8);
    }

    #[test]
    fn an_open_enum_keeps_what_it_does_not_know() {
        assert_eq!(CUlimit(77).0, 77);
        assert_ne!(CUlimit(77), CUlimit::STACK_SIZE);
        assert_eq!(size_of::<CUlimit>(), 4);
    }
}
