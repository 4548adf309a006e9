//! Structures of the graph interfaces and of memory operations in streams. Layouts are C's; the
//! tests hold sizes and offsets that a C compiler gave for the headers of CUDA 13.0.
//!
//! Used by the rows of functions and by `client`'s `api::graph`; `engine-nvidia` hands launch batches to the driver
//! in them. Must not know what a node does.

#![allow(non_camel_case_types, non_snake_case, reason = "the names are C's")]
#![allow(
    missing_docs,
    reason = "the fields' names are CUDA's and say what they are"
)]

use core::ffi::c_void;

use super::{
    CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS, CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS, CUcontext,
    CUdeviceptr, CUexternalSemaphore, CUfunction, CUgraphExecUpdateResult, CUgraphNode,
    CUgraphNodeType, CUhostFn, CUkernel, CUmemLocation, CUstream,
};

/// The launch of a kernel node. Form of CUDA 10.0.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CUDA_KERNEL_NODE_PARAMS_v1 {
    pub func: CUfunction,
    pub gridDimX: u32,
    pub gridDimY: u32,
    pub gridDimZ: u32,
    pub blockDimX: u32,
    pub blockDimY: u32,
    pub blockDimZ: u32,
    pub sharedMemBytes: u32,
    pub kernelParams: *mut *mut c_void,
    pub extra: *mut *mut c_void,
}

/// The launch of a kernel node. Form of CUDA 12.0.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CUDA_KERNEL_NODE_PARAMS {
    pub func: CUfunction,
    pub gridDimX: u32,
    pub gridDimY: u32,
    pub gridDimZ: u32,
    pub blockDimX: u32,
    pub blockDimY: u32,
    pub blockDimZ: u32,
    pub sharedMemBytes: u32,
    pub kernelParams: *mut *mut c_void,
    pub extra: *mut *mut c_void,
    pub kern: CUkernel,
    pub ctx: CUcontext,
}

/// The fill of a fill node. The form of CUDA 12.2 has a context behind these fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CUDA_MEMSET_NODE_PARAMS {
    pub dst: CUdeviceptr,
    pub pitch: usize,
    pub value: u32,
    pub elementSize: u32,
    pub width: usize,
    pub height: usize,
}

/// The function of a host node.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CUDA_HOST_NODE_PARAMS {
    pub r#fn: CUhostFn,
    pub userData: *mut c_void,
}

/// What an allocation node allocates. The properties of the pool, which are a structure of their own
/// in C, stand here as its fields.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CUDA_MEM_ALLOC_NODE_PARAMS {
    pub allocType: u32,
    pub handleTypes: u32,
    pub location: CUmemLocation,
    pub win32SecurityAttributes: *mut c_void,
    pub maxSize: usize,
    pub usage: u16,
    pub reserved: [u8; 54],
    pub accessDescs: *const c_void,
    pub accessDescCount: usize,
    pub bytesize: usize,
    pub dptr: CUdeviceptr,
}

/// How an executable graph is made, and what went wrong.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CUDA_GRAPH_INSTANTIATE_PARAMS {
    pub flags: u64,
    pub hUploadStream: CUstream,
    pub hErrNode_out: CUgraphNode,
    pub result_out: u32,
}

/// What an edge between nodes means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CUgraphEdgeData {
    pub from_port: u8,
    pub to_port: u8,
    pub r#type: u8,
    pub reserved: [u8; 5],
}

/// What came of updating an executable graph.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CUgraphExecUpdateResultInfo {
    pub result: CUgraphExecUpdateResult,
    pub errorNode: CUgraphNode,
    pub errorFromNode: CUgraphNode,
}

/// The parameters of a node of any kind: `body` is C's union, as words.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CUgraphNodeParams {
    pub r#type: CUgraphNodeType,
    pub reserved0: [i32; 3],
    pub body: [u64; 29],
    pub reserved2: i64,
}

/// A wait or a write of a list of memory operations: C's union, as words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CUstreamBatchMemOpParams(pub [u64; 6]);

/// What a node of such a list does.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CUDA_BATCH_MEM_OP_NODE_PARAMS {
    pub ctx: CUcontext,
    pub count: u32,
    pub paramArray: *mut CUstreamBatchMemOpParams,
    pub flags: u32,
}

/// What a node signals.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CUDA_EXT_SEM_SIGNAL_NODE_PARAMS {
    pub extSemArray: *mut CUexternalSemaphore,
    pub paramsArray: *const CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS,
    pub numExtSems: u32,
}

/// What a node waits for.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CUDA_EXT_SEM_WAIT_NODE_PARAMS {
    pub extSemArray: *mut CUexternalSemaphore,
    pub paramsArray: *const CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS,
    pub numExtSems: u32,
}

#[cfg(test)]
mod tests {
    use core::mem::offset_of;

    use super::*;

    #[test]
    fn nodes() {
        assert_eq!(size_of::<CUDA_KERNEL_NODE_PARAMS_v1>(), 56);
        assert_eq!(offset_of!(CUDA_KERNEL_NODE_PARAMS_v1, kernelParams), 40);
        assert_eq!(size_of::<CUDA_KERNEL_NODE_PARAMS>(), 72);
        assert_eq!(offset_of!(CUDA_KERNEL_NODE_PARAMS, ctx), 64);
        assert_eq!(size_of::<CUDA_MEMSET_NODE_PARAMS>(), 40);
        assert_eq!(size_of::<CUDA_HOST_NODE_PARAMS>(), 16);
        assert_eq!(size_of::<CUDA_MEM_ALLOC_NODE_PARAMS>(), 120);
        assert_eq!(offset_of!(CUDA_MEM_ALLOC_NODE_PARAMS, accessDescs), 88);
        assert_eq!(offset_of!(CUDA_MEM_ALLOC_NODE_PARAMS, dptr), 112);
        assert_eq!(size_of::<CUgraphNodeParams>(), 256);
        assert_eq!(offset_of!(CUgraphNodeParams, body), 16);
    }

    #[test]
    fn others() {
        assert_eq!(size_of::<CUDA_GRAPH_INSTANTIATE_PARAMS>(), 32);
        assert_eq!(size_of::<CUgraphEdgeData>(), 8);
        assert_eq!(size_of::<CUgraphExecUpdateResultInfo>(), 24);
        assert_eq!(size_of::<CUstreamBatchMemOpParams>(), 48);
        assert_eq!(size_of::<CUDA_BATCH_MEM_OP_NODE_PARAMS>(), 32);
    }
}
