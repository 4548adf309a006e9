//! Owned contexts, modules, streams, events and memory over the driver's functions.
//!
//! Keeps every unsafe call of the GPU path but the table's own. Each object makes its context current
//! before a call and is released once, in `drop`. Knows nothing of bodies.

use std::cell::Cell;
use std::ffi::{CStr, c_int, c_uint, c_void};
use std::ptr;
use std::rc::Rc;

use crate::driver::*;

/// Calls a driver function and turns its result into `Result<(), CudaError>`.
macro_rules! cu {
    ($driver:expr, $function:ident($($argument:expr),* $(,)?)) => {{
        let driver: &Driver = $driver;
        // SAFETY: handles come from the driver and live until their owner's drop; places for
        // results, and memory given with its size, are borrowed for the call or pinned and owned
        // until their stream is synchronised (the callers in this file and in `gpu` see to that).
        let code = unsafe { (driver.$function)($($argument),*) };
        driver.check(stringify!($function), code)
    }};
}

/// The initialised driver. The current context is known here, to be set only when it changes.
pub struct Cuda {
    driver: Driver,
    current: Cell<CUcontext>,
}

impl Cuda {
    pub fn initialize(driver: Driver) -> Result<Rc<Self>, CudaError> {
        cu!(&driver, cuInit(0))?;
        Ok(Rc::new(Self {
            driver,
            current: Cell::new(ptr::null_mut()),
        }))
    }

    pub fn device_count(&self) -> Result<u32, CudaError> {
        let mut count = 0;
        cu!(&self.driver, cuDeviceGetCount(&raw mut count))?;
        Ok(count.max(0).cast_unsigned())
    }
}

/// A device with its primary context.
pub struct Context {
    cuda: Rc<Cuda>,
    device: CUdevice,
    handle: CUcontext,
}

impl Context {
    pub fn of_device(cuda: &Rc<Cuda>, ordinal: u32) -> Result<Rc<Self>, CudaError> {
        let mut device = 0;
        cu!(
            &cuda.driver,
            cuDeviceGet(&raw mut device, ordinal.cast_signed())
        )?;
        let mut handle = ptr::null_mut();
        cu!(
            &cuda.driver,
            cuDevicePrimaryCtxRetain(&raw mut handle, device)
        )?;
        Ok(Rc::new(Self {
            cuda: Rc::clone(cuda),
            device,
            handle,
        }))
    }

    pub fn name(&self) -> Result<String, CudaError> {
        let mut name = [0u8; 256];
        let size = name.len() as c_int;
        cu!(
            &self.cuda.driver,
            cuDeviceGetName(name.as_mut_ptr().cast(), size, self.device)
        )?;
        let text = CStr::from_bytes_until_nul(&name).unwrap_or(c"");
        Ok(text.to_string_lossy().into_owned())
    }

    pub fn attribute(&self, attribute: c_int) -> Result<u32, CudaError> {
        let mut value = 0;
        cu!(
            &self.cuda.driver,
            cuDeviceGetAttribute(&raw mut value, attribute, self.device)
        )?;
        Ok(value.max(0).cast_unsigned())
    }

    /// The driver, with this context current.
    fn enter(&self) -> Result<&Driver, CudaError> {
        let driver = &self.cuda.driver;
        if self.cuda.current.get() != self.handle {
            cu!(driver, cuCtxSetCurrent(self.handle))?;
            self.cuda.current.set(self.handle);
        }
        Ok(driver)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        self.cuda.current.set(ptr::null_mut());
        // Nobody can mend a failure here, and the process ends soon after.
        let _ = cu!(&self.cuda.driver, cuDevicePrimaryCtxRelease_v2(self.device));
    }
}

/// Releases a handle of a context, as `drop` must: an error has no one left to go to.
macro_rules! release_on_drop {
    ($($owner:ident => $function:ident;)*) => {$(
        impl Drop for $owner {
            fn drop(&mut self) {
                if let Ok(driver) = self.context.enter() {
                    let _ = cu!(driver, $function(self.handle));
                }
            }
        }
    )*};
}

release_on_drop! {
    DeviceMemory => cuMemFree_v2;
    Event => cuEventDestroy_v2;
    Kernel => cuModuleUnload;
    PinnedMemory => cuMemFreeHost;
    Stream => cuStreamDestroy_v2;
}

/// A module and the one kernel of it that is used.
pub struct Kernel {
    context: Rc<Context>,
    handle: CUmodule,
    function: CUfunction,
}

impl Kernel {
    /// Compiles PTX text for the context's device. What the compiler says about a failure is in the error.
    pub fn load(context: &Rc<Context>, ptx: &CStr, name: &CStr) -> Result<Self, CudaError> {
        let driver = context.enter()?;
        let mut log = [[0u8; 8192]; 2];
        let [info, errors] = &mut log;
        // Sizes travel as numbers in the place of a pointer.
        let size = ptr::without_provenance_mut(info.len());
        let mut names = [
            CU_JIT_INFO_LOG_BUFFER,
            CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES,
            CU_JIT_ERROR_LOG_BUFFER,
            CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
        ];
        let mut values: [*mut c_void; 4] = [
            info.as_mut_ptr().cast(),
            size,
            errors.as_mut_ptr().cast(),
            size,
        ];
        let mut handle = ptr::null_mut();
        cu!(
            driver,
            cuModuleLoadDataEx(
                &raw mut handle,
                ptx.as_ptr().cast(),
                names.len() as c_uint,
                names.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        )
        .map_err(|error| error.with_log(log_text(&log)))?;
        let mut kernel = Self {
            context: Rc::clone(context),
            handle,
            function: ptr::null_mut(),
        };
        cu!(
            driver,
            cuModuleGetFunction(&raw mut kernel.function, handle, name.as_ptr())
        )?;
        Ok(kernel)
    }

    /// Launches a row of blocks. The parameters are copied before this returns.
    ///
    /// # Safety
    /// `parameters` are pointers to values of the kernel's parameter types, in order, and the memory
    /// that they name is of the size that the kernel uses and lives until `stream` has passed the launch.
    pub unsafe fn launch(
        &self,
        blocks: u32,
        threads: u32,
        stream: &Stream,
        parameters: &mut [*mut c_void],
    ) -> Result<(), CudaError> {
        let driver = self.context.enter()?;
        let parameters = parameters.as_mut_ptr();
        let (stream, extra) = (stream.handle, ptr::null_mut());
        cu!(
            driver,
            cuLaunchKernel(
                self.function,
                blocks,
                1,
                1,
                threads,
                1,
                1,
                0,
                stream,
                parameters,
                extra
            )
        )
    }
}

fn log_text(log: &[[u8; 8192]]) -> String {
    let texts = log
        .iter()
        .map(|text| match CStr::from_bytes_until_nul(text) {
            Ok(text) => text.to_string_lossy(),
            // A full buffer need not end in a NUL.
            Err(_) => String::from_utf8_lossy(text),
        });
    texts
        .filter(|text| !text.is_empty())
        .collect::<Vec<_>>()
        .join("\n")
}

/// A stream that does not wait for the legacy default stream.
pub struct Stream {
    context: Rc<Context>,
    handle: CUstream,
}

impl Stream {
    pub fn new(context: &Rc<Context>) -> Result<Self, CudaError> {
        let mut handle = ptr::null_mut();
        cu!(
            context.enter()?,
            cuStreamCreate(&raw mut handle, CU_STREAM_NON_BLOCKING)
        )?;
        Ok(Self {
            context: Rc::clone(context),
            handle,
        })
    }

    pub fn synchronize(&self) -> Result<(), CudaError> {
        cu!(self.context.enter()?, cuStreamSynchronize(self.handle))
    }

    /// Holds back what comes next in this stream until the event, of any device, has happened.
    pub fn wait(&self, event: &Event) -> Result<(), CudaError> {
        cu!(
            self.context.enter()?,
            cuStreamWaitEvent(self.handle, event.handle, 0)
        )
    }
}

pub struct Event {
    context: Rc<Context>,
    handle: CUevent,
}

impl Event {
    pub fn new(context: &Rc<Context>, flags: c_uint) -> Result<Self, CudaError> {
        let mut handle = ptr::null_mut();
        cu!(context.enter()?, cuEventCreate(&raw mut handle, flags))?;
        Ok(Self {
            context: Rc::clone(context),
            handle,
        })
    }

    pub fn record(&self, stream: &Stream) -> Result<(), CudaError> {
        cu!(
            self.context.enter()?,
            cuEventRecord(self.handle, stream.handle)
        )
    }

    /// Milliseconds from `start` to this event; both have happened.
    pub fn milliseconds_since(&self, start: &Self) -> Result<f64, CudaError> {
        let mut milliseconds = 0.0;
        let (start, end) = (start.handle, self.handle);
        cu!(
            self.context.enter()?,
            cuEventElapsedTime(&raw mut milliseconds, start, end)
        )?;
        Ok(milliseconds.into())
    }
}

pub struct DeviceMemory {
    context: Rc<Context>,
    handle: CUdeviceptr,
    size: usize,
}

impl DeviceMemory {
    pub fn new(context: &Rc<Context>, size: usize) -> Result<Self, CudaError> {
        let mut handle = 0;
        cu!(context.enter()?, cuMemAlloc_v2(&raw mut handle, size))?;
        Ok(Self {
            context: Rc::clone(context),
            handle,
            size,
        })
    }

    pub fn address(&self) -> CUdeviceptr {
        self.handle
    }

    pub fn upload(&self, from: &PinnedMemory, stream: &Stream) -> Result<(), CudaError> {
        assert!(from.size <= self.size, "invariant: a copy fits its target");
        let (to, from, size) = (self.handle, from.handle, from.size);
        cu!(
            self.context.enter()?,
            cuMemcpyHtoDAsync_v2(to, from, size, stream.handle)
        )
    }

    pub fn download(&self, to: &PinnedMemory, stream: &Stream) -> Result<(), CudaError> {
        assert!(to.size <= self.size, "invariant: a copy fits its source");
        let (to, size) = (to.handle, to.size);
        cu!(
            self.context.enter()?,
            cuMemcpyDtoHAsync_v2(to, self.handle, size, stream.handle)
        )
    }

    /// Copies a range to the same place in another device's memory.
    pub fn send(
        &self,
        to: &Self,
        offset: usize,
        size: usize,
        stream: &Stream,
    ) -> Result<(), CudaError> {
        let fits = |memory: &Self| offset + size <= memory.size;
        assert!(
            fits(self) && fits(to),
            "invariant: a copy stays inside both memories"
        );
        let to_address = to.handle + offset as u64;
        let from_address = self.handle + offset as u64;
        let (to, from) = (to.context.handle, self.context.handle);
        cu!(
            self.context.enter()?,
            cuMemcpyPeerAsync(to_address, to, from_address, from, size, stream.handle)
        )
    }
}

/// Pinned host memory that every device can use and, where it maps host memory, read and write itself.
pub struct PinnedMemory {
    context: Rc<Context>,
    handle: *mut c_void,
    size: usize,
}

impl PinnedMemory {
    pub fn new(context: &Rc<Context>, size: usize) -> Result<Self, CudaError> {
        let flags = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP;
        let mut handle = ptr::null_mut();
        cu!(
            context.enter()?,
            cuMemHostAlloc(&raw mut handle, size, flags)
        )?;
        Ok(Self {
            context: Rc::clone(context),
            handle,
            size,
        })
    }

    /// Where the device of `context` sees this memory.
    pub fn address_on(&self, context: &Context) -> Result<CUdeviceptr, CudaError> {
        let mut address = 0;
        let driver = context.enter()?;
        cu!(
            driver,
            cuMemHostGetDevicePointer_v2(&raw mut address, self.handle, 0)
        )?;
        Ok(address)
    }

    /// Copies values in. No stream may be using the memory: the caller has synchronised.
    pub fn fill<T: Copy>(&self, values: &[T]) {
        assert!(
            size_of_val(values) <= self.size,
            "invariant: the memory holds the values"
        );
        // SAFETY: the driver gave `size` writable bytes, checked above to be enough; they are not
        // Rust's, so they do not overlap `values`; `T: Copy` has no drop to be skipped.
        unsafe { ptr::copy_nonoverlapping(values.as_ptr(), self.handle.cast(), values.len()) };
    }

    /// Copies values out. No stream may be using the memory: the caller has synchronised.
    pub fn read<T: Copy>(&self, values: &mut [T]) {
        assert!(
            size_of_val(values) <= self.size,
            "invariant: the memory holds the values"
        );
        // SAFETY: the driver gave `size` readable bytes, checked above to be enough; they are not Rust's, so they do
        // not overlap `values`; `T` is only ever an array of floats here, for which all bytes are valid.
        unsafe {
            ptr::copy_nonoverlapping(self.handle.cast(), values.as_mut_ptr(), values.len());
        }
    }
}
