//! The driver statuses that this engine gives, by the names of `cuda.h` without their prefix.

use engine::CUresult;

pub(crate) const INVALID_VALUE: CUresult = CUresult(1);
pub(crate) const OUT_OF_MEMORY: CUresult = CUresult(2);
pub(crate) const INVALID_DEVICE: CUresult = CUresult(101);
pub(crate) const INVALID_IMAGE: CUresult = CUresult(200);
pub(crate) const INVALID_CONTEXT: CUresult = CUresult(201);
pub(crate) const NO_BINARY_FOR_GPU: CUresult = CUresult(209);
pub(crate) const INVALID_PTX: CUresult = CUresult(218);
pub(crate) const INVALID_HANDLE: CUresult = CUresult(400);
pub(crate) const LAUNCH_OUT_OF_RESOURCES: CUresult = CUresult(701);
pub(crate) const CONTEXT_IS_DESTROYED: CUresult = CUresult(709);
pub(crate) const LAUNCH_FAILED: CUresult = CUresult(719);
pub(crate) const COOPERATIVE_LAUNCH_TOO_LARGE: CUresult = CUresult(720);
pub(crate) const NOT_SUPPORTED: CUresult = CUresult(801);
