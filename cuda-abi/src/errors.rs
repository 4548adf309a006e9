//! The driver's status codes, their names and what they mean in our words.
//!
//! Everybody's errors end as one of these. An unknown code is a number, and no error of its own.
//!
//! Used by every crate that answers with a code; `client` gives names and texts to cuGetErrorName and
//! cuGetErrorString. Must not know who made an error or why.

use core::fmt;

/// What every driver function returns. Codes that this build does not know can be held too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
#[must_use]
pub struct CUresult(pub u32);

macro_rules! results {
    ($($code:literal $constant:ident $name:literal $text:literal;)*) => {
        impl CUresult {
            $(
                #[doc = concat!($name, ": ", $text, ".")]
                pub const $constant: Self = Self($code);
            )*
        }

        /// Every code with its name and its text, in order of the codes.
        pub const RESULTS: &[(CUresult, &str, &str)] =
            &[$((CUresult($code), $name, $text),)*];
    };
}

results! {
    0 SUCCESS "CUDA_SUCCESS" "no error";
    1 ERROR_INVALID_VALUE "CUDA_ERROR_INVALID_VALUE" "an argument has a value that the call does not take";
    2 ERROR_OUT_OF_MEMORY "CUDA_ERROR_OUT_OF_MEMORY" "not enough memory";
    3 ERROR_NOT_INITIALIZED "CUDA_ERROR_NOT_INITIALIZED" "cuInit has not been called in this process";
    4 ERROR_DEINITIALIZED "CUDA_ERROR_DEINITIALIZED" "the driver has already been shut down in this process";
    5 ERROR_PROFILER_DISABLED "CUDA_ERROR_PROFILER_DISABLED" "the profiler is off";
    6 ERROR_PROFILER_NOT_INITIALIZED "CUDA_ERROR_PROFILER_NOT_INITIALIZED" "the profiler was not set up";
    7 ERROR_PROFILER_ALREADY_STARTED "CUDA_ERROR_PROFILER_ALREADY_STARTED" "the profiler runs already";
    8 ERROR_PROFILER_ALREADY_STOPPED "CUDA_ERROR_PROFILER_ALREADY_STOPPED" "the profiler does not run";
    34 ERROR_STUB_LIBRARY "CUDA_ERROR_STUB_LIBRARY" "a stub took the place of the driver library";
    36 ERROR_CALL_REQUIRES_NEWER_DRIVER "CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER" "the call needs a newer driver";
    46 ERROR_DEVICE_UNAVAILABLE "CUDA_ERROR_DEVICE_UNAVAILABLE" "the device is in use elsewhere or its compute mode forbids more contexts";
    100 ERROR_NO_DEVICE "CUDA_ERROR_NO_DEVICE" "no device that CUDA can use";
    101 ERROR_INVALID_DEVICE "CUDA_ERROR_INVALID_DEVICE" "no device with this number";
    102 ERROR_DEVICE_NOT_LICENSED "CUDA_ERROR_DEVICE_NOT_LICENSED" "the device lacks a licence for this use";
    200 ERROR_INVALID_IMAGE "CUDA_ERROR_INVALID_IMAGE" "the image of device code is damaged or of a kind that is not known";
    201 ERROR_INVALID_CONTEXT "CUDA_ERROR_INVALID_CONTEXT" "no context is current, or the context does not exist";
    202 ERROR_CONTEXT_ALREADY_CURRENT "CUDA_ERROR_CONTEXT_ALREADY_CURRENT" "the context is current already";
    205 ERROR_MAP_FAILED "CUDA_ERROR_MAP_FAILED" "mapping failed";
    206 ERROR_UNMAP_FAILED "CUDA_ERROR_UNMAP_FAILED" "unmapping failed";
    207 ERROR_ARRAY_IS_MAPPED "CUDA_ERROR_ARRAY_IS_MAPPED" "the array is mapped and cannot be destroyed";
    208 ERROR_ALREADY_MAPPED "CUDA_ERROR_ALREADY_MAPPED" "the resource is mapped already";
    209 ERROR_NO_BINARY_FOR_GPU "CUDA_ERROR_NO_BINARY_FOR_GPU" "the image holds no code for this device";
    210 ERROR_ALREADY_ACQUIRED "CUDA_ERROR_ALREADY_ACQUIRED" "the resource is acquired already";
    211 ERROR_NOT_MAPPED "CUDA_ERROR_NOT_MAPPED" "the resource is not mapped";
    212 ERROR_NOT_MAPPED_AS_ARRAY "CUDA_ERROR_NOT_MAPPED_AS_ARRAY" "the resource is not mapped as an array";
    213 ERROR_NOT_MAPPED_AS_POINTER "CUDA_ERROR_NOT_MAPPED_AS_POINTER" "the resource is not mapped as a pointer";
    214 ERROR_ECC_UNCORRECTABLE "CUDA_ERROR_ECC_UNCORRECTABLE" "a memory error that error correction could not mend";
    215 ERROR_UNSUPPORTED_LIMIT "CUDA_ERROR_UNSUPPORTED_LIMIT" "the device does not have this limit";
    216 ERROR_CONTEXT_ALREADY_IN_USE "CUDA_ERROR_CONTEXT_ALREADY_IN_USE" "the context belongs to another thread at the moment";
    217 ERROR_PEER_ACCESS_UNSUPPORTED "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED" "these devices cannot reach the memory of each other";
    218 ERROR_INVALID_PTX "CUDA_ERROR_INVALID_PTX" "the PTX does not compile";
    219 ERROR_INVALID_GRAPHICS_CONTEXT "CUDA_ERROR_INVALID_GRAPHICS_CONTEXT" "the graphics context is not valid";
    220 ERROR_NVLINK_UNCORRECTABLE "CUDA_ERROR_NVLINK_UNCORRECTABLE" "an NVLink error that could not be mended";
    221 ERROR_JIT_COMPILER_NOT_FOUND "CUDA_ERROR_JIT_COMPILER_NOT_FOUND" "the compiler of PTX is missing";
    222 ERROR_UNSUPPORTED_PTX_VERSION "CUDA_ERROR_UNSUPPORTED_PTX_VERSION" "the PTX is of a version that this driver does not know";
    223 ERROR_JIT_COMPILATION_DISABLED "CUDA_ERROR_JIT_COMPILATION_DISABLED" "compiling PTX is switched off";
    224 ERROR_UNSUPPORTED_EXEC_AFFINITY "CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY" "this execution affinity is not supported";
    225 ERROR_UNSUPPORTED_DEVSIDE_SYNC "CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC" "the code synchronises on the device in a way that is no longer supported";
    226 ERROR_CONTAINED "CUDA_ERROR_CONTAINED" "an error was contained; the process must start anew";
    300 ERROR_INVALID_SOURCE "CUDA_ERROR_INVALID_SOURCE" "the source of device code is not valid";
    301 ERROR_FILE_NOT_FOUND "CUDA_ERROR_FILE_NOT_FOUND" "the file was not found";
    302 ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND "CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND" "a shared library lacks a symbol";
    303 ERROR_SHARED_OBJECT_INIT_FAILED "CUDA_ERROR_SHARED_OBJECT_INIT_FAILED" "a shared library could not be initialised";
    304 ERROR_OPERATING_SYSTEM "CUDA_ERROR_OPERATING_SYSTEM" "a call of the operating system failed";
    400 ERROR_INVALID_HANDLE "CUDA_ERROR_INVALID_HANDLE" "the handle names nothing of this kind";
    401 ERROR_ILLEGAL_STATE "CUDA_ERROR_ILLEGAL_STATE" "the object is not in a state that allows this";
    402 ERROR_LOSSY_QUERY "CUDA_ERROR_LOSSY_QUERY" "the answer would not be the whole truth";
    500 ERROR_NOT_FOUND "CUDA_ERROR_NOT_FOUND" "there is nothing of this name";
    600 ERROR_NOT_READY "CUDA_ERROR_NOT_READY" "the work has not finished";
    700 ERROR_ILLEGAL_ADDRESS "CUDA_ERROR_ILLEGAL_ADDRESS" "a kernel touched an address that is not its own";
    701 ERROR_LAUNCH_OUT_OF_RESOURCES "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES" "the launch asks for more registers, shared memory or threads than there are";
    702 ERROR_LAUNCH_TIMEOUT "CUDA_ERROR_LAUNCH_TIMEOUT" "a kernel ran longer than is allowed";
    703 ERROR_LAUNCH_INCOMPATIBLE_TEXTURING "CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING" "the launch mixes ways of texturing that do not go together";
    704 ERROR_PEER_ACCESS_ALREADY_ENABLED "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED" "access to this peer is enabled already";
    705 ERROR_PEER_ACCESS_NOT_ENABLED "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED" "access to this peer is not enabled";
    708 ERROR_PRIMARY_CONTEXT_ACTIVE "CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE" "the primary context exists already";
    709 ERROR_CONTEXT_IS_DESTROYED "CUDA_ERROR_CONTEXT_IS_DESTROYED" "the current context has been destroyed";
    710 ERROR_ASSERT "CUDA_ERROR_ASSERT" "an assertion in a kernel failed";
    711 ERROR_TOO_MANY_PEERS "CUDA_ERROR_TOO_MANY_PEERS" "no more peers can be enabled";
    712 ERROR_HOST_MEMORY_ALREADY_REGISTERED "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED" "the host memory is registered already";
    713 ERROR_HOST_MEMORY_NOT_REGISTERED "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED" "the host memory is not registered";
    714 ERROR_HARDWARE_STACK_ERROR "CUDA_ERROR_HARDWARE_STACK_ERROR" "the stack of a kernel is damaged or overflowed";
    715 ERROR_ILLEGAL_INSTRUCTION "CUDA_ERROR_ILLEGAL_INSTRUCTION" "a kernel met an instruction that the device does not know";
    716 ERROR_MISALIGNED_ADDRESS "CUDA_ERROR_MISALIGNED_ADDRESS" "a kernel used an address that is not aligned for its access";
    717 ERROR_INVALID_ADDRESS_SPACE "CUDA_ERROR_INVALID_ADDRESS_SPACE" "a kernel used an instruction on an address space that it does not work on";
    718 ERROR_INVALID_PC "CUDA_ERROR_INVALID_PC" "a kernel jumped out of its code";
    719 ERROR_LAUNCH_FAILED "CUDA_ERROR_LAUNCH_FAILED" "a kernel failed; the context cannot be used any more";
    720 ERROR_COOPERATIVE_LAUNCH_TOO_LARGE "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE" "a cooperative launch has more blocks than fit on the device at once";
    721 ERROR_TENSOR_MEMORY_LEAK "CUDA_ERROR_TENSOR_MEMORY_LEAK" "a kernel ended without freeing its tensor memory";
    800 ERROR_NOT_PERMITTED "CUDA_ERROR_NOT_PERMITTED" "not permitted";
    801 ERROR_NOT_SUPPORTED "CUDA_ERROR_NOT_SUPPORTED" "not supported";
    802 ERROR_SYSTEM_NOT_READY "CUDA_ERROR_SYSTEM_NOT_READY" "the system is not ready for CUDA yet";
    803 ERROR_SYSTEM_DRIVER_MISMATCH "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH" "driver library and kernel driver do not fit together";
    804 ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE" "this device does not take the compatibility driver";
    805 ERROR_MPS_CONNECTION_FAILED "CUDA_ERROR_MPS_CONNECTION_FAILED" "no connection to the MPS daemon";
    806 ERROR_MPS_RPC_FAILURE "CUDA_ERROR_MPS_RPC_FAILURE" "the MPS server did not answer properly";
    807 ERROR_MPS_SERVER_NOT_READY "CUDA_ERROR_MPS_SERVER_NOT_READY" "the MPS server is not ready for new clients";
    808 ERROR_MPS_MAX_CLIENTS_REACHED "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED" "the MPS server has all the clients that it can take";
    809 ERROR_MPS_MAX_CONNECTIONS_REACHED "CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED" "no connections to the device are left for this client";
    810 ERROR_MPS_CLIENT_TERMINATED "CUDA_ERROR_MPS_CLIENT_TERMINATED" "the MPS server ended this client";
    811 ERROR_CDP_NOT_SUPPORTED "CUDA_ERROR_CDP_NOT_SUPPORTED" "launching kernels from kernels is not supported here";
    812 ERROR_CDP_VERSION_MISMATCH "CUDA_ERROR_CDP_VERSION_MISMATCH" "the code launches kernels from kernels by another version of the interface";
    900 ERROR_STREAM_CAPTURE_UNSUPPORTED "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED" "the call is not allowed while the stream is captured";
    901 ERROR_STREAM_CAPTURE_INVALIDATED "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED" "an earlier error has ended the capture";
    902 ERROR_STREAM_CAPTURE_MERGE "CUDA_ERROR_STREAM_CAPTURE_MERGE" "the call would join two captures";
    903 ERROR_STREAM_CAPTURE_UNMATCHED "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED" "the capture was not begun in this stream";
    904 ERROR_STREAM_CAPTURE_UNJOINED "CUDA_ERROR_STREAM_CAPTURE_UNJOINED" "a stream that joined the capture has not come back to it";
    905 ERROR_STREAM_CAPTURE_ISOLATION "CUDA_ERROR_STREAM_CAPTURE_ISOLATION" "the call would make captured work depend on work outside of the capture";
    906 ERROR_STREAM_CAPTURE_IMPLICIT "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT" "the call would make captured work depend on the legacy stream";
    907 ERROR_CAPTURED_EVENT "CUDA_ERROR_CAPTURED_EVENT" "the event was last recorded in a capture";
    908 ERROR_STREAM_CAPTURE_WRONG_THREAD "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD" "the capture was begun by another thread";
    909 ERROR_TIMEOUT "CUDA_ERROR_TIMEOUT" "the time allowed has run out";
    910 ERROR_GRAPH_EXEC_UPDATE_FAILURE "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE" "the graph differs too much to update the executable one";
    911 ERROR_EXTERNAL_DEVICE "CUDA_ERROR_EXTERNAL_DEVICE" "another device that takes part has failed";
    912 ERROR_INVALID_CLUSTER_SIZE "CUDA_ERROR_INVALID_CLUSTER_SIZE" "the cluster size does not work";
    913 ERROR_FUNCTION_NOT_LOADED "CUDA_ERROR_FUNCTION_NOT_LOADED" "the function is not loaded";
    914 ERROR_INVALID_RESOURCE_TYPE "CUDA_ERROR_INVALID_RESOURCE_TYPE" "a device resource is of the wrong type";
    915 ERROR_INVALID_RESOURCE_CONFIGURATION "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION" "a device resource is set up wrongly";
    916 ERROR_KEY_ROTATION "CUDA_ERROR_KEY_ROTATION" "a key was being replaced";
    917 ERROR_STREAM_DETACHED "CUDA_ERROR_STREAM_DETACHED" "the stream has been detached";
    999 ERROR_UNKNOWN "CUDA_ERROR_UNKNOWN" "an error of unknown cause";
}

fn find(result: CUresult) -> Option<&'static (CUresult, &'static str, &'static str)> {
    RESULTS
        .binary_search_by_key(&result, |&(code, ..)| code)
        .ok()
        .map(|index| &RESULTS[index])
}

/// The name of a code, as cuGetErrorName gives it.
#[must_use]
pub fn name(result: CUresult) -> Option<&'static str> {
    find(result).map(|&(_, name, _)| name)
}

/// What a code means, as cuGetErrorString gives it.
#[must_use]
pub fn text(result: CUresult) -> Option<&'static str> {
    find(result).map(|&(_, _, text)| text)
}

impl CUresult {
    /// Success as `Ok`, everything else as the error that it is.
    ///
    /// # Errors
    /// When the code is not CUDA_SUCCESS.
    pub const fn ok(self) -> Result<(), Self> {
        if self.0 == 0 { Ok(()) } else { Err(self) }
    }

    /// The code of a result.
    pub const fn of(result: Result<(), Self>) -> Self {
        match result {
            Ok(()) => Self::SUCCESS,
            Err(error) => error,
        }
    }
}

impl fmt::Display for CUresult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match find(*self) {
            Some((code, name, text)) => write!(f, "{text} ({name}, {})", code.0),
            None => write!(f, "error {} of a driver that is newer", self.0),
        }
    }
}

impl core::error::Error for CUresult {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_in_order_and_named() {
        assert_eq!(RESULTS.len(), 102);
        assert!(RESULTS.is_sorted_by(|a, b| a.0 < b.0));
        for &(code, code_name, code_text) in RESULTS {
            assert_eq!(name(code), Some(code_name));
            assert_eq!(text(code), Some(code_text));
            assert!(code_name.starts_with("CUDA_"));
        }
    }

    #[test]
    fn an_unknown_code_has_no_name() {
        assert_eq!(name(CUresult(9)), None);
        assert_eq!(text(CUresult(u32::MAX)), None);
        assert_eq!(
            CUresult(12345).to_string(),
            "error 12345 of a driver that is newer"
        );
    }

    #[test]
    fn results_go_both_ways() {
        assert_eq!(CUresult::SUCCESS.ok(), Ok(()));
        assert_eq!(CUresult::of(CUresult::ERROR_NOT_READY.ok()), CUresult(600));
        assert!(
            CUresult::ERROR_INVALID_PTX
                .to_string()
                .contains("CUDA_ERROR_INVALID_PTX, 218")
        );
    }
}
