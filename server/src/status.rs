//! The driver's statuses that a session gives by itself, under CUDA's names.

use cuda_abi::CUresult;

/// CUDA_ERROR_INVALID_VALUE
pub const INVALID_VALUE: CUresult = CUresult(1);
/// CUDA_ERROR_OUT_OF_MEMORY
pub const OUT_OF_MEMORY: CUresult = CUresult(2);
/// CUDA_ERROR_INVALID_DEVICE
pub const INVALID_DEVICE: CUresult = CUresult(101);
/// CUDA_ERROR_INVALID_CONTEXT
pub const INVALID_CONTEXT: CUresult = CUresult(201);
/// CUDA_ERROR_INVALID_HANDLE
pub const INVALID_HANDLE: CUresult = CUresult(400);
/// CUDA_ERROR_NOT_SUPPORTED
pub const NOT_SUPPORTED: CUresult = CUresult(801);
/// CUDA_ERROR_MPS_CONNECTION_FAILED
pub const MPS_CONNECTION_FAILED: CUresult = CUresult(805);
/// CUDA_ERROR_MPS_RPC_FAILURE
pub const MPS_RPC_FAILURE: CUresult = CUresult(806);
/// CUDA_ERROR_MPS_SERVER_NOT_READY
pub const MPS_SERVER_NOT_READY: CUresult = CUresult(807);
/// CUDA_ERROR_MPS_MAX_CLIENTS_REACHED
pub const MPS_MAX_CLIENTS_REACHED: CUresult = CUresult(808);
