//! Structures that built functions take, and those that travel by value. Layouts are C's; the tests
//! hold sizes and offsets that a C compiler gave for the headers of CUDA 13.0.
//!
//! Used by the rows of functions, by `client`'s `api`, and by `protocol` where it says how arrays and textures
//! travel. Must not know what is allowed in them.

#![allow(non_camel_case_types, non_snake_case, reason = "the names are C's")]
#![allow(
    missing_docs,
    reason = "the fields' names are CUDA's and say what they are"
)]

use core::ffi::c_void;

use super::{
    CUaddress_mode, CUarray, CUarray_format, CUcontext, CUdevResourceType, CUdeviceptr,
    CUdeviceptr_v1, CUexecAffinityType, CUfilter_mode, CUfunction, CUlaunchAttributeID,
    CUmemorytype, CUresourcetype, CUstream,
};

/// Sixteen bytes that name something for good, in memory order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct CUuuid(pub [u8; 16]);

/// A part of what a device has: some of its multiprocessors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(8))]
pub struct CUdevResource {
    pub r#type: CUdevResourceType,
    /// The driver's own: where in the device it is.
    pub _internal_padding: [u8; 92],
    pub smCount: u32,
    pub minSmPartitionSize: u32,
    pub smCoscheduledAlignment: u32,
    pub _rest: [u8; 36],
}

/// One launch of a cooperative one on several devices.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CUDA_LAUNCH_PARAMS {
    pub function: CUfunction,
    pub gridDimX: u32,
    pub gridDimY: u32,
    pub gridDimZ: u32,
    pub blockDimX: u32,
    pub blockDimY: u32,
    pub blockDimZ: u32,
    pub sharedMemBytes: u32,
    pub hStream: CUstream,
    pub kernelParams: *mut *mut c_void,
}

/// A descriptor for tensor copies, in the GPU's own form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct CUtensorMap {
    pub opaque: [u64; 16],
}

/// The facts of a device as CUDA 2 gave them; sizes in bytes, the clock in kHz.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CUdevprop {
    pub maxThreadsPerBlock: i32,
    pub maxThreadsDim: [i32; 3],
    pub maxGridSize: [i32; 3],
    pub sharedMemPerBlock: i32,
    pub totalConstantMemory: i32,
    pub SIMDWidth: i32,
    pub memPitch: i32,
    pub regsPerBlock: i32,
    pub clockRate: i32,
    pub textureAlign: i32,
}

/// A share of a device that a context asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CUexecAffinityParam {
    pub r#type: CUexecAffinityType,
    /// Multiprocessors, for the only type there is.
    pub smCount: u32,
}

/// What cuCtxCreate_v4 takes beside flags and a device.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CUctxCreateParams {
    pub execAffinityParams: *mut CUexecAffinityParam,
    pub numExecAffinityParams: i32,
    pub cigParams: *mut c_void,
}

/// Format and size of an array of one or two dimensions, in elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CUDA_ARRAY_DESCRIPTOR {
    pub Width: usize,
    pub Height: usize,
    pub Format: CUarray_format,
    pub NumChannels: u32,
}

/// The same, as interfaces before CUDA 3.2 have it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CUDA_ARRAY_DESCRIPTOR_v1 {
    pub Width: u32,
    pub Height: u32,
    pub Format: CUarray_format,
    pub NumChannels: u32,
}

/// Format and size of an array of up to three dimensions, in elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CUDA_ARRAY3D_DESCRIPTOR {
    pub Width: usize,
    pub Height: usize,
    pub Depth: usize,
    pub Format: CUarray_format,
    pub NumChannels: u32,
    pub Flags: u32,
}

/// The same, as interfaces before CUDA 3.2 have it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CUDA_ARRAY3D_DESCRIPTOR_v1 {
    pub Width: u32,
    pub Height: u32,
    pub Depth: u32,
    pub Format: CUarray_format,
    pub NumChannels: u32,
    pub Flags: u32,
}

/// Memory that an array needs, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CUDA_ARRAY_MEMORY_REQUIREMENTS {
    pub size: usize,
    pub alignment: usize,
    pub reserved: [u32; 4],
}

/// What a texture or a surface is made of. `res` is C's union, as words: an array's handle; or an
/// address, format and channels (one word), and bytes; or an address, format and channels, width,
/// height, and pitch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CUDA_RESOURCE_DESC {
    pub resType: CUresourcetype,
    pub res: [u64; 16],
    pub flags: u32,
}

/// How a texture is read.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct CUDA_TEXTURE_DESC {
    pub addressMode: [CUaddress_mode; 3],
    pub filterMode: CUfilter_mode,
    pub flags: u32,
    pub maxAnisotropy: u32,
    pub mipmapFilterMode: CUfilter_mode,
    pub mipmapLevelBias: f32,
    pub minMipmapLevelClamp: f32,
    pub maxMipmapLevelClamp: f32,
    pub borderColor: [f32; 4],
    pub reserved: [i32; 12],
}

/// How a texture sees its resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CUDA_RESOURCE_VIEW_DESC {
    pub format: u32,
    pub width: usize,
    pub height: usize,
    pub depth: usize,
    pub firstMipmapLevel: u32,
    pub lastMipmapLevel: u32,
    pub firstLayer: u32,
    pub lastLayer: u32,
    pub reserved: [u32; 16],
}

/// A rectangle to copy, sizes in bytes.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CUDA_MEMCPY2D {
    pub srcXInBytes: usize,
    pub srcY: usize,
    pub srcMemoryType: CUmemorytype,
    pub srcHost: *const c_void,
    pub srcDevice: CUdeviceptr,
    pub srcArray: CUarray,
    pub srcPitch: usize,
    pub dstXInBytes: usize,
    pub dstY: usize,
    pub dstMemoryType: CUmemorytype,
    pub dstHost: *mut c_void,
    pub dstDevice: CUdeviceptr,
    pub dstArray: CUarray,
    pub dstPitch: usize,
    pub WidthInBytes: usize,
    pub Height: usize,
}

/// A rectangle to copy, as interfaces before CUDA 3.2 have it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CUDA_MEMCPY2D_v1 {
    pub srcXInBytes: u32,
    pub srcY: u32,
    pub srcMemoryType: CUmemorytype,
    pub srcHost: *const c_void,
    pub srcDevice: CUdeviceptr_v1,
    pub srcArray: CUarray,
    pub srcPitch: u32,
    pub dstXInBytes: u32,
    pub dstY: u32,
    pub dstMemoryType: CUmemorytype,
    pub dstHost: *mut c_void,
    pub dstDevice: CUdeviceptr_v1,
    pub dstArray: CUarray,
    pub dstPitch: u32,
    pub WidthInBytes: u32,
    pub Height: u32,
}

/// A box to copy, sizes in bytes.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CUDA_MEMCPY3D {
    pub srcXInBytes: usize,
    pub srcY: usize,
    pub srcZ: usize,
    pub srcLOD: usize,
    pub srcMemoryType: CUmemorytype,
    pub srcHost: *const c_void,
    pub srcDevice: CUdeviceptr,
    pub srcArray: CUarray,
    pub reserved0: *mut c_void,
    pub srcPitch: usize,
    pub srcHeight: usize,
    pub dstXInBytes: usize,
    pub dstY: usize,
    pub dstZ: usize,
    pub dstLOD: usize,
    pub dstMemoryType: CUmemorytype,
    pub dstHost: *mut c_void,
    pub dstDevice: CUdeviceptr,
    pub dstArray: CUarray,
    pub reserved1: *mut c_void,
    pub dstPitch: usize,
    pub dstHeight: usize,
    pub WidthInBytes: usize,
    pub Height: usize,
    pub Depth: usize,
}

/// A box to copy, as interfaces before CUDA 3.2 have it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CUDA_MEMCPY3D_v1 {
    pub srcXInBytes: u32,
    pub srcY: u32,
    pub srcZ: u32,
    pub srcLOD: u32,
    pub srcMemoryType: CUmemorytype,
    pub srcHost: *const c_void,
    pub srcDevice: CUdeviceptr_v1,
    pub srcArray: CUarray,
    pub reserved0: *mut c_void,
    pub srcPitch: u32,
    pub srcHeight: u32,
    pub dstXInBytes: u32,
    pub dstY: u32,
    pub dstZ: u32,
    pub dstLOD: u32,
    pub dstMemoryType: CUmemorytype,
    pub dstHost: *mut c_void,
    pub dstDevice: CUdeviceptr_v1,
    pub dstArray: CUarray,
    pub reserved1: *mut c_void,
    pub dstPitch: u32,
    pub dstHeight: u32,
    pub WidthInBytes: u32,
    pub Height: u32,
    pub Depth: u32,
}

/// A box to copy between two contexts, sizes in bytes.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CUDA_MEMCPY3D_PEER {
    pub srcXInBytes: usize,
    pub srcY: usize,
    pub srcZ: usize,
    pub srcLOD: usize,
    pub srcMemoryType: CUmemorytype,
    pub srcHost: *const c_void,
    pub srcDevice: CUdeviceptr,
    pub srcArray: CUarray,
    pub srcContext: CUcontext,
    pub srcPitch: usize,
    pub srcHeight: usize,
    pub dstXInBytes: usize,
    pub dstY: usize,
    pub dstZ: usize,
    pub dstLOD: usize,
    pub dstMemoryType: CUmemorytype,
    pub dstHost: *mut c_void,
    pub dstDevice: CUdeviceptr,
    pub dstArray: CUarray,
    pub dstContext: CUcontext,
    pub dstPitch: usize,
    pub dstHeight: usize,
    pub WidthInBytes: usize,
    pub Height: usize,
    pub Depth: usize,
}

/// The value of a launch attribute: 64 bytes whose meaning its id says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(8))]
pub struct CUlaunchAttributeValue(pub [u8; 64]);

/// The value of a stream's attribute.
pub type CUstreamAttrValue = CUlaunchAttributeValue;
/// The value of a kernel node's attribute.
pub type CUkernelNodeAttrValue = CUlaunchAttributeValue;

/// A launch attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct CUlaunchAttribute {
    pub id: CUlaunchAttributeID,
    pub pad: [u8; 4],
    pub value: CUlaunchAttributeValue,
}

/// How cuLaunchKernelEx launches.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CUlaunchConfig {
    pub gridDimX: u32,
    pub gridDimY: u32,
    pub gridDimZ: u32,
    pub blockDimX: u32,
    pub blockDimY: u32,
    pub blockDimZ: u32,
    pub sharedMemBytes: u32,
    pub hStream: CUstream,
    pub attrs: *mut CUlaunchAttribute,
    pub numAttrs: u32,
}

/// A token for an allocation of another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct CUipcMemHandle {
    pub reserved: [u8; 64],
}

/// A token for an event of another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct CUipcEventHandle {
    pub reserved: [u8; 64],
}

/// Where memory is: a kind of place and its number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CUmemLocation {
    pub r#type: u32,
    pub id: i32,
}

/// A frame of an EGL stream.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CUeglFrame {
    /// An array or a pitched pointer for each plane.
    pub planes: [*mut c_void; 3],
    pub width: u32,
    pub height: u32,
    pub depth: u32,
    pub pitch: u32,
    pub planeCount: u32,
    pub numChannels: u32,
    pub frameType: u32,
    pub eglColorFormat: u32,
    pub cuFormat: u32,
}

#[cfg(test)]
mod tests {
    use core::mem::offset_of;

    use super::*;

    #[test]
    fn small_structures() {
        assert_eq!(size_of::<CUuuid>(), 16);
        assert_eq!(size_of::<CUdevResource>(), 144);
        assert_eq!(offset_of!(CUdevResource, smCount), 96);
        assert_eq!(size_of::<CUDA_LAUNCH_PARAMS>(), 56);
        assert_eq!(offset_of!(CUDA_LAUNCH_PARAMS, hStream), 40);
        assert_eq!(
            (size_of::<CUtensorMap>(), align_of::<CUtensorMap>()),
            (128, 64)
        );
        assert_eq!(size_of::<CUdevprop>(), 56);
        assert_eq!(size_of::<CUexecAffinityParam>(), 8);
        assert_eq!(size_of::<CUctxCreateParams>(), 24);
        assert_eq!(offset_of!(CUctxCreateParams, cigParams), 16);
        assert_eq!(
            (size_of::<CUipcMemHandle>(), align_of::<CUipcMemHandle>()),
            (64, 1)
        );
        assert_eq!(
            (
                size_of::<CUipcEventHandle>(),
                align_of::<CUipcEventHandle>()
            ),
            (64, 1)
        );
        assert_eq!(size_of::<CUmemLocation>(), 8);
        assert_eq!(size_of::<CUeglFrame>(), 64);
    }

    #[test]
    fn launches() {
        assert_eq!(
            (
                size_of::<CUlaunchAttribute>(),
                align_of::<CUlaunchAttribute>()
            ),
            (72, 8)
        );
        assert_eq!(offset_of!(CUlaunchAttribute, value), 8);
        assert_eq!(size_of::<CUlaunchConfig>(), 56);
        assert_eq!(offset_of!(CUlaunchConfig, hStream), 32);
        assert_eq!(offset_of!(CUlaunchConfig, attrs), 40);
        assert_eq!(offset_of!(CUlaunchConfig, numAttrs), 48);
    }

    #[test]
    fn arrays_and_textures() {
        assert_eq!(size_of::<CUDA_ARRAY_DESCRIPTOR>(), 24);
        assert_eq!(size_of::<CUDA_ARRAY_DESCRIPTOR_v1>(), 16);
        assert_eq!(size_of::<CUDA_ARRAY3D_DESCRIPTOR>(), 40);
        assert_eq!(size_of::<CUDA_ARRAY3D_DESCRIPTOR_v1>(), 24);
        assert_eq!(size_of::<CUDA_ARRAY_MEMORY_REQUIREMENTS>(), 32);
        assert_eq!(size_of::<CUDA_RESOURCE_DESC>(), 144);
        assert_eq!(offset_of!(CUDA_RESOURCE_DESC, res), 8);
        assert_eq!(offset_of!(CUDA_RESOURCE_DESC, flags), 136);
        assert_eq!(size_of::<CUDA_TEXTURE_DESC>(), 104);
        assert_eq!(offset_of!(CUDA_TEXTURE_DESC, borderColor), 40);
        assert_eq!(size_of::<CUDA_RESOURCE_VIEW_DESC>(), 112);
        assert_eq!(offset_of!(CUDA_RESOURCE_VIEW_DESC, firstMipmapLevel), 32);
    }

    #[test]
    fn rectangles() {
        assert_eq!(size_of::<CUDA_MEMCPY2D>(), 128);
        assert_eq!(offset_of!(CUDA_MEMCPY2D, srcHost), 24);
        assert_eq!(offset_of!(CUDA_MEMCPY2D, srcDevice), 32);
        assert_eq!(offset_of!(CUDA_MEMCPY2D, srcArray), 40);
        assert_eq!(offset_of!(CUDA_MEMCPY2D, srcPitch), 48);
        assert_eq!(offset_of!(CUDA_MEMCPY2D, dstXInBytes), 56);
        assert_eq!(offset_of!(CUDA_MEMCPY2D, dstMemoryType), 72);
        assert_eq!(offset_of!(CUDA_MEMCPY2D, dstPitch), 104);
        assert_eq!(offset_of!(CUDA_MEMCPY2D, WidthInBytes), 112);
        assert_eq!(offset_of!(CUDA_MEMCPY2D, Height), 120);

        assert_eq!(size_of::<CUDA_MEMCPY2D_v1>(), 96);
        assert_eq!(offset_of!(CUDA_MEMCPY2D_v1, srcHost), 16);
        assert_eq!(offset_of!(CUDA_MEMCPY2D_v1, srcDevice), 24);
        assert_eq!(offset_of!(CUDA_MEMCPY2D_v1, srcArray), 32);
        assert_eq!(offset_of!(CUDA_MEMCPY2D_v1, srcPitch), 40);
        assert_eq!(offset_of!(CUDA_MEMCPY2D_v1, dstXInBytes), 44);
        assert_eq!(offset_of!(CUDA_MEMCPY2D_v1, dstHost), 56);
        assert_eq!(offset_of!(CUDA_MEMCPY2D_v1, dstPitch), 80);
        assert_eq!(offset_of!(CUDA_MEMCPY2D_v1, Height), 88);
    }

    #[test]
    fn boxes() {
        assert_eq!(size_of::<CUDA_MEMCPY3D>(), 200);
        assert_eq!(offset_of!(CUDA_MEMCPY3D, srcLOD), 24);
        assert_eq!(offset_of!(CUDA_MEMCPY3D, srcHost), 40);
        assert_eq!(offset_of!(CUDA_MEMCPY3D, srcPitch), 72);
        assert_eq!(offset_of!(CUDA_MEMCPY3D, dstXInBytes), 88);
        assert_eq!(offset_of!(CUDA_MEMCPY3D, dstMemoryType), 120);
        assert_eq!(offset_of!(CUDA_MEMCPY3D, dstPitch), 160);
        assert_eq!(offset_of!(CUDA_MEMCPY3D, WidthInBytes), 176);
        assert_eq!(offset_of!(CUDA_MEMCPY3D, Depth), 192);

        assert_eq!(size_of::<CUDA_MEMCPY3D_PEER>(), 200);
        assert_eq!(offset_of!(CUDA_MEMCPY3D_PEER, srcContext), 64);
        assert_eq!(offset_of!(CUDA_MEMCPY3D_PEER, dstContext), 152);

        assert_eq!(size_of::<CUDA_MEMCPY3D_v1>(), 144);
        assert_eq!(offset_of!(CUDA_MEMCPY3D_v1, srcHost), 24);
        assert_eq!(offset_of!(CUDA_MEMCPY3D_v1, srcDevice), 32);
        assert_eq!(offset_of!(CUDA_MEMCPY3D_v1, srcArray), 40);
        assert_eq!(offset_of!(CUDA_MEMCPY3D_v1, srcPitch), 56);
        assert_eq!(offset_of!(CUDA_MEMCPY3D_v1, dstXInBytes), 64);
        assert_eq!(offset_of!(CUDA_MEMCPY3D_v1, dstHost), 88);
        assert_eq!(offset_of!(CUDA_MEMCPY3D_v1, WidthInBytes), 128);
        assert_eq!(offset_of!(CUDA_MEMCPY3D_v1, Depth), 136);
    }
}
