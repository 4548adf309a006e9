//! The driver's own functions, found in `libcuda.so.1`, and its error codes. Types only; no policy.
//!
//! Called by `cuda`. Must not know bodies.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fmt;
use std::ptr;

use libloading::Library;

/// The soname of the driver on every Linux system.
const LIBRARY: &str = "libcuda.so.1";

pub type CUresult = c_int;
pub type CUdevice = c_int;
pub type CUdeviceptr = u64;
pub type CUcontext = *mut c_void;
pub type CUevent = *mut c_void;
pub type CUfunction = *mut c_void;
pub type CUmodule = *mut c_void;
pub type CUstream = *mut c_void;

// Numbers of the driver API that this program uses, by the names of its manual.
pub const CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: c_int = 16;
pub const CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: c_int = 75;
pub const CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: c_int = 76;
pub const CU_EVENT_DEFAULT: c_uint = 0;
pub const CU_EVENT_DISABLE_TIMING: c_uint = 2;
pub const CU_JIT_ERROR_LOG_BUFFER: c_int = 5;
pub const CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES: c_int = 6;
pub const CU_JIT_INFO_LOG_BUFFER: c_int = 3;
pub const CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES: c_int = 4;
pub const CU_MEMHOSTALLOC_DEVICEMAP: c_uint = 2;
pub const CU_MEMHOSTALLOC_PORTABLE: c_uint = 1;
pub const CU_STREAM_NON_BLOCKING: c_uint = 1;
pub const CUDA_ERROR_MPS_CONNECTION_FAILED: CUresult = 805;

macro_rules! driver_functions {
    ($($name:ident($($argument:ident: $kind:ty),*);)*) => {
        /// One pointer for each driver function, under its exported name.
        #[allow(non_snake_case, reason = "the fields have the driver's names")]
        pub struct Driver {
            $(pub $name: unsafe extern "C" fn($($argument: $kind),*) -> CUresult,)*
            // Last, so that the pointers above never outlive it.
            _library: Library,
        }

        impl Driver {
            /// Opens the driver. The loader's usual search applies.
            pub fn open() -> Result<Self, DriverMissing> {
                // SAFETY: loading runs the library's initialisers; whoever installs a library under
                // the driver's soname answers for them, as for every CUDA program.
                let library = unsafe { Library::new(LIBRARY) }.map_err(DriverMissing)?;
                Ok(Self {
                    $($name: {
                        let name = concat!(stringify!($name), "\0").as_bytes();
                        // SAFETY: the driver's manual gives the function of this name this
                        // signature; the pointer is kept beside the library that it lies in.
                        let symbol = unsafe { library.get(name) };
                        *symbol.map_err(DriverMissing)?
                    },)*
                    _library: library,
                })
            }
        }
    };
}

driver_functions! {
    cuInit(flags: c_uint);
    cuGetErrorName(error: CUresult, name: *mut *const c_char);
    cuGetErrorString(error: CUresult, text: *mut *const c_char);
    cuDeviceGetCount(count: *mut c_int);
    cuDeviceGet(device: *mut CUdevice, ordinal: c_int);
    cuDeviceGetName(name: *mut c_char, size: c_int, device: CUdevice);
    cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: CUdevice);
    cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice);
    cuDevicePrimaryCtxRelease_v2(device: CUdevice);
    cuCtxSetCurrent(context: CUcontext);
    cuModuleLoadDataEx(module: *mut CUmodule, image: *const c_void, options: c_uint, names: *mut c_int, values: *mut *mut c_void);
    cuModuleUnload(module: CUmodule);
    cuModuleGetFunction(function: *mut CUfunction, module: CUmodule, name: *const c_char);
    cuLaunchKernel(function: CUfunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint, block_z: c_uint, shared: c_uint, stream: CUstream, parameters: *mut *mut c_void, extra: *mut *mut c_void);
    cuMemAlloc_v2(address: *mut CUdeviceptr, size: usize);
    cuMemFree_v2(address: CUdeviceptr);
    cuMemHostAlloc(pointer: *mut *mut c_void, size: usize, flags: c_uint);
    cuMemHostGetDevicePointer_v2(address: *mut CUdeviceptr, pointer: *mut c_void, flags: c_uint);
    cuMemFreeHost(pointer: *mut c_void);
    cuMemcpyHtoDAsync_v2(to: CUdeviceptr, from: *const c_void, size: usize, stream: CUstream);
    cuMemcpyDtoHAsync_v2(to: *mut c_void, from: CUdeviceptr, size: usize, stream: CUstream);
    cuMemcpyPeerAsync(to: CUdeviceptr, to_context: CUcontext, from: CUdeviceptr, from_context: CUcontext, size: usize, stream: CUstream);
    cuStreamCreate(stream: *mut CUstream, flags: c_uint);
    cuStreamDestroy_v2(stream: CUstream);
    cuStreamSynchronize(stream: CUstream);
    cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint);
    cuEventCreate(event: *mut CUevent, flags: c_uint);
    cuEventDestroy_v2(event: CUevent);
    cuEventRecord(event: CUevent, stream: CUstream);
    cuEventElapsedTime(milliseconds: *mut f32, start: CUevent, end: CUevent);
}

impl Driver {
    /// Turns a result code into an error that carries the driver's name and text for it.
    pub fn check(&self, function: &'static str, code: CUresult) -> Result<(), CudaError> {
        if code == 0 {
            return Ok(());
        }
        let text_by = |lookup: unsafe extern "C" fn(CUresult, *mut *const c_char) -> CUresult| {
            let mut text = ptr::null();
            // SAFETY: `text` is a valid place for one pointer.
            let known = unsafe { lookup(code, &raw mut text) } == 0 && !text.is_null();
            known.then(|| {
                // SAFETY: a pointer that the driver gives here is to a string constant of its own.
                unsafe { CStr::from_ptr(text) }
                    .to_string_lossy()
                    .into_owned()
            })
        };
        Err(CudaError {
            function,
            code,
            name: text_by(self.cuGetErrorName).unwrap_or_else(|| "unknown error".into()),
            text: text_by(self.cuGetErrorString).unwrap_or_else(|| "no description".into()),
            log: String::new(),
        })
    }
}

/// There is no driver to be loaded, or it lacks a function.
#[derive(Debug)]
pub struct DriverMissing(libloading::Error);

impl fmt::Display for DriverMissing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The loader's own words, which name the library or the function, are in the source.
        match std::error::Error::source(&self.0) {
            Some(reason) => write!(f, "no CUDA driver: {reason} (-cpu needs none)"),
            None => write!(f, "no CUDA driver: {} (-cpu needs none)", self.0),
        }
    }
}

impl std::error::Error for DriverMissing {}

/// A driver function's failure.
#[derive(Debug)]
pub struct CudaError {
    function: &'static str,
    code: CUresult,
    name: String,
    text: String,
    log: String,
}

impl CudaError {
    /// Adds what the JIT compiler said.
    pub fn with_log(mut self, log: String) -> Self {
        self.log = log;
        self
    }
}

impl fmt::Display for CudaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            function,
            code,
            name,
            text,
            log,
        } = self;
        write!(f, "{function} failed: {name} ({code}): {text}")?;
        if *code == CUDA_ERROR_MPS_CONNECTION_FAILED {
            f.write_str(
                "\nnbody: the MPS daemon could not be reached. Is it running, and does \
                 CUDA_MPS_PIPE_DIRECTORY name the directory that it uses?",
            )?;
        }
        if !log.is_empty() {
            write!(f, "\nnbody: JIT log:\n{log}")?;
        }
        Ok(())
    }
}

impl std::error::Error for CudaError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unreachable_daemon_is_hinted_at() {
        let mut error = CudaError {
            function: "cuInit",
            code: CUDA_ERROR_MPS_CONNECTION_FAILED,
            name: "CUDA_ERROR_MPS_CONNECTION_FAILED".into(),
            text: "no daemon".into(),
            log: String::new(),
        };
        let shown = error.to_string();
        assert!(
            shown.starts_with("cuInit failed: CUDA_ERROR_MPS_CONNECTION_FAILED (805): no daemon\n"),
            "{shown}"
        );
        assert!(
            shown.contains("the MPS daemon could not be reached"),
            "{shown}"
        );
        error.code = 2;
        assert!(!error.to_string().contains("MPS daemon"));
        assert!(
            error
                .with_log("line 3: odd".into())
                .to_string()
                .ends_with("JIT log:\nline 3: odd")
        );
    }
}
