//! The errors that device code is told, by CUDA's numbers, with their names and what CUDA's runtime says of them.
//!
//! Constants and words only, for the device runtime's functions.

use cuda_abi::{CUresult, errors};

/// cudaErrorNotSupported
pub(super) const NOT_SUPPORTED: u32 = 801;

/// A call's result: an error is a cudaError.
pub(super) type Called<T> = Result<T, u32>;

pub(super) const SUCCESS: u32 = 0;
/// cudaErrorInvalidValue
pub(super) const INVALID_VALUE: u32 = 1;
/// cudaErrorMemoryAllocation
pub(super) const NO_MEMORY: u32 = 2;
/// cudaErrorInvalidConfiguration
pub(super) const INVALID_CONFIGURATION: u32 = 9;
/// cudaErrorLaunchMaxDepthExceeded
pub(super) const TOO_DEEP: u32 = 65;
/// cudaErrorInvalidDeviceFunction
pub(super) const INVALID_FUNCTION: u32 = 98;
/// cudaErrorInvalidDevice
pub(super) const INVALID_DEVICE: u32 = 101;
/// cudaErrorInvalidResourceHandle
pub(super) const INVALID_HANDLE: u32 = 400;
/// cudaErrorLaunchOutOfResources
pub(super) const OUT_OF_RESOURCES: u32 = 701;

/// What CUDA's runtime says of errors that device code is told.
const ERRORS: [(u32, &str, &str); 14] = [
    (0, "cudaSuccess", "no error"),
    (1, "cudaErrorInvalidValue", "invalid argument"),
    (2, "cudaErrorMemoryAllocation", "out of memory"),
    (
        9,
        "cudaErrorInvalidConfiguration",
        "invalid configuration argument",
    ),
    (
        65,
        "cudaErrorLaunchMaxDepthExceeded",
        "launch would exceed maximum depth of nested launches",
    ),
    (
        68,
        "cudaErrorSyncDepthExceeded",
        "cudaDeviceSynchronize failed because caller's grid depth exceeds cudaLimitDevRuntimeSyncDepth",
    ),
    (
        69,
        "cudaErrorLaunchPendingCountExceeded",
        "launch failed because launch would exceed cudaLimitDevRuntimePendingLaunchCount",
    ),
    (
        98,
        "cudaErrorInvalidDeviceFunction",
        "invalid device function",
    ),
    (101, "cudaErrorInvalidDevice", "invalid device ordinal"),
    (
        400,
        "cudaErrorInvalidResourceHandle",
        "invalid resource handle",
    ),
    (
        701,
        "cudaErrorLaunchOutOfResources",
        "too many resources requested for launch",
    ),
    (719, "cudaErrorLaunchFailure", "unspecified launch failure"),
    (801, "cudaErrorNotSupported", "operation not supported"),
    (999, "cudaErrorUnknown", "unknown error"),
];

/// What is said of numbers that are none.
const UNKNOWN: &str = "unrecognized error code";

/// Whether a number is an error.
pub(super) fn is_known(error: u32) -> bool {
    ERRORS.iter().any(|known| known.0 == error) || errors::name(CUresult(error)).is_some()
}

/// An error's name, or else what it means. Of errors that device code is never told, the driver's.
pub(super) fn text(error: u32, name: bool) -> &'static str {
    match ERRORS.iter().find(|known| known.0 == error) {
        Some(known) if name => known.1,
        Some(known) => known.2,
        None => {
            let error = CUresult(error);
            let text = if name {
                errors::name(error)
            } else {
                errors::text(error)
            };
            text.unwrap_or(UNKNOWN)
        }
    }
}
