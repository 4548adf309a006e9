//! CUDA's driver API as a test program uses it: by dlopen of `libcuda.so.1`, whatever is on the path.
//!
//! Called by the programs of `src/bin` and by `benches`. Must not know whose library answers.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::ptr;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW, Symbol};

/// A CUDA error code.
pub type Code = u32;

/// A device address.
pub type Address = u64;

/// An opaque handle; a pointer in C, but not one that this side may follow.
pub type Handle = usize;

/// Makes a struct `Functions` of functions of the driver library that one program alone has a use for: each with its name there, its
/// symbol and the types of its arguments, which must be those of CUDA's manual.
#[macro_export]
macro_rules! functions {
    ($($name:ident = $symbol:literal ($($type:ty),*);)*) => {
        /// Functions that the other tests have no use for.
        struct Functions {
            $($name: libloading::os::unix::Symbol<unsafe extern "C" fn($($type),*) -> $crate::cuda::Code>,)*
            _library: libloading::os::unix::Library,
        }

        impl Functions {
            fn open() -> Self {
                use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
                // SAFETY: loading a CUDA driver library runs no code that asks anything of its loader.
                let library = unsafe { Library::open(Some("libcuda.so.1"), RTLD_NOW | RTLD_LOCAL) }
                    .expect("libcuda.so.1 is on the path");
                $(
                    // SAFETY: the signature is the one that CUDA's manual gives for this symbol.
                    let $name = unsafe { library.get(concat!($symbol, "\0").as_bytes()) }.expect($symbol);
                )*
                Self { $($name,)* _library: library }
            }
        }
    };
}

macro_rules! driver {
    ($($(#[$doc:meta])* fn $name:ident = $symbol:literal ($($argument:ident: $type:ty),*);)*) => {
        /// The functions of the driver library that the tests use.
        #[derive(Debug)]
        pub struct Driver {
            $($name: Symbol<unsafe extern "C" fn($($type),*) -> Code>,)*
            /// Keeps the symbols valid.
            _library: Library,
        }

        impl Driver {
            /// Opens `libcuda.so.1`.
            pub fn open() -> Self {
                // SAFETY: loading a CUDA driver library runs no code that asks anything of its loader.
                let library = unsafe { Library::open(Some("libcuda.so.1"), RTLD_NOW | RTLD_LOCAL) }
                    .expect("libcuda.so.1 is on the path");
                $(
                    // SAFETY: the signature is the one that CUDA's manual gives for this symbol.
                    let $name = unsafe { library.get(concat!($symbol, "\0").as_bytes()) }.expect($symbol);
                )*
                Self { $($name,)* _library: library }
            }

            $(
                $(#[$doc])*
                ///
                /// # Safety
                /// As CUDA's manual says of the function; wrong handles are what some tests pass, and
                /// the library under test must bear them.
                #[allow(clippy::too_many_arguments, reason = "CUDA's own signature")]
                pub unsafe fn $name(&self, $($argument: $type),*) -> Result<(), Code> {
                    // SAFETY: passed on to the caller.
                    match unsafe { (self.$name)($($argument),*) } {
                        0 => Ok(()),
                        code => Err(code),
                    }
                }
            )*
        }
    };
}

driver! {
    /// cuInit
    fn init = "cuInit"(flags: c_uint);
    /// cuDeviceGetCount
    fn device_get_count = "cuDeviceGetCount"(count: *mut c_int);
    /// cuDeviceGetAttribute
    fn device_get_attribute = "cuDeviceGetAttribute"(value: *mut c_int, attribute: c_int, device: c_int);
    /// cuDeviceGetName
    fn device_get_name = "cuDeviceGetName"(name: *mut c_char, len: c_int, device: c_int);
    /// cuDeviceTotalMem_v2
    fn device_total_mem = "cuDeviceTotalMem_v2"(bytes: *mut usize, device: c_int);
    /// cuDevicePrimaryCtxRetain
    fn primary_retain = "cuDevicePrimaryCtxRetain"(context: *mut Handle, device: c_int);
    /// cuDevicePrimaryCtxReset_v2
    fn primary_reset = "cuDevicePrimaryCtxReset_v2"(device: c_int);
    /// cuArrayCreate_v2
    fn array_create = "cuArrayCreate_v2"(array: *mut Handle, descriptor: *const c_void);
    /// cuCtxCreate_v2
    fn ctx_create = "cuCtxCreate_v2"(context: *mut Handle, flags: c_uint, device: c_int);
    /// cuCtxCreate_v3, whose parameters are pairs of a type, 0 for multiprocessors, and their number
    fn ctx_create_with = "cuCtxCreate_v3"(context: *mut Handle, affinity: *mut [c_uint; 2], count: c_int, flags: c_uint, device: c_int);
    /// cuCtxGetExecAffinity
    fn ctx_get_exec_affinity = "cuCtxGetExecAffinity"(affinity: *mut [c_uint; 2], kind: c_uint);
    /// cuCtxDestroy_v2
    fn ctx_destroy = "cuCtxDestroy_v2"(context: Handle);
    /// cuCtxSetCurrent
    fn ctx_set_current = "cuCtxSetCurrent"(context: Handle);
    /// cuCtxSynchronize
    fn ctx_synchronize = "cuCtxSynchronize"();
    /// cuModuleLoadDataEx
    fn module_load_data_ex = "cuModuleLoadDataEx"(module: *mut Handle, image: *const c_void, options: c_uint, names: *mut c_int, values: *mut *mut c_void);
    /// cuModuleUnload
    fn module_unload = "cuModuleUnload"(module: Handle);
    /// cuModuleGetFunction
    fn module_get_function = "cuModuleGetFunction"(function: *mut Handle, module: Handle, name: *const c_char);
    /// cuModuleGetGlobal_v2
    fn module_get_global = "cuModuleGetGlobal_v2"(address: *mut Address, bytes: *mut usize, module: Handle, name: *const c_char);
    /// cuLaunchKernel
    fn launch_kernel = "cuLaunchKernel"(function: Handle, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint, stream: Handle, params: *mut *mut c_void, extra: *mut *mut c_void);
    /// cuMemGetInfo_v2
    fn mem_get_info = "cuMemGetInfo_v2"(free: *mut usize, total: *mut usize);
    /// cuMemAlloc_v2
    fn mem_alloc = "cuMemAlloc_v2"(address: *mut Address, bytes: usize);
    /// cuMemFree_v2
    fn mem_free = "cuMemFree_v2"(address: Address);
    /// cuMemHostAlloc
    fn mem_host_alloc = "cuMemHostAlloc"(pointer: *mut *mut c_void, bytes: usize, flags: c_uint);
    /// cuMemFreeHost
    fn mem_free_host = "cuMemFreeHost"(pointer: *mut c_void);
    /// cuMemcpyHtoD_v2
    fn copy_to_device = "cuMemcpyHtoD_v2"(to: Address, from: *const c_void, bytes: usize);
    /// cuMemcpyDtoH_v2
    fn copy_to_host = "cuMemcpyDtoH_v2"(to: *mut c_void, from: Address, bytes: usize);
    /// cuMemcpyDtoD_v2
    fn copy_on_device = "cuMemcpyDtoD_v2"(to: Address, from: Address, bytes: usize);
    /// cuMemcpyHtoDAsync_v2
    fn copy_to_device_async = "cuMemcpyHtoDAsync_v2"(to: Address, from: *const c_void, bytes: usize, stream: Handle);
    /// cuMemcpyDtoHAsync_v2
    fn copy_to_host_async = "cuMemcpyDtoHAsync_v2"(to: *mut c_void, from: Address, bytes: usize, stream: Handle);
    /// cuMemsetD32_v2
    fn fill_32 = "cuMemsetD32_v2"(to: Address, value: c_uint, count: usize);
    /// cuMemsetD8Async
    fn fill_8_async = "cuMemsetD8Async"(to: Address, value: u8, count: usize, stream: Handle);
    /// cuStreamCreate
    fn stream_create = "cuStreamCreate"(stream: *mut Handle, flags: c_uint);
    /// cuStreamDestroy_v2
    fn stream_destroy = "cuStreamDestroy_v2"(stream: Handle);
    /// cuStreamSynchronize
    fn stream_synchronize = "cuStreamSynchronize"(stream: Handle);
    /// cuStreamQuery
    fn stream_query = "cuStreamQuery"(stream: Handle);
    /// cuStreamBeginCapture_v2
    fn stream_begin_capture = "cuStreamBeginCapture_v2"(stream: Handle, mode: c_uint);
    /// cuStreamEndCapture
    fn stream_end_capture = "cuStreamEndCapture"(stream: Handle, graph: *mut Handle);
    /// cuGraphInstantiateWithFlags
    fn graph_instantiate = "cuGraphInstantiateWithFlags"(exec: *mut Handle, graph: Handle, flags: u64);
    /// cuGraphLaunch
    fn graph_launch = "cuGraphLaunch"(exec: Handle, stream: Handle);
    /// cuLaunchHostFunc
    fn launch_host_function = "cuLaunchHostFunc"(stream: Handle, function: extern "C" fn(*mut c_void), data: *mut c_void);
    /// cuStreamWaitEvent
    fn stream_wait_event = "cuStreamWaitEvent"(stream: Handle, event: Handle, flags: c_uint);
    /// cuEventCreate
    fn event_create = "cuEventCreate"(event: *mut Handle, flags: c_uint);
    /// cuEventRecord
    fn event_record = "cuEventRecord"(event: Handle, stream: Handle);
    /// cuEventSynchronize
    fn event_synchronize = "cuEventSynchronize"(event: Handle);
    /// cuEventElapsedTime
    fn event_elapsed_time = "cuEventElapsedTime"(milliseconds: *mut f32, start: Handle, end: Handle);
}

impl Driver {
    /// A driver with a current primary context of the first device.
    pub fn ready() -> Self {
        let driver = Self::open();
        driver.enter().expect("a context");
        driver
    }

    /// Resets the primary context of device 0, of which the program uses nothing from then on, and makes the new one current.
    pub fn reset(&self) -> Result<(), Code> {
        // SAFETY: a function of a number; nothing of the context is used after it.
        unsafe { self.primary_reset(0)? };
        self.enter()
    }

    /// Initialises and makes the primary context of device 0 current in this thread.
    pub fn enter(&self) -> Result<(), Code> {
        let mut context = 0;
        // SAFETY: the out pointer is a local's.
        unsafe {
            self.init(0)?;
            self.primary_retain(&raw mut context, 0)?;
            self.ctx_set_current(context)
        }
    }

    /// Allocates device memory.
    pub fn alloc(&self, bytes: usize) -> Result<Address, Code> {
        let mut address = 0;
        // SAFETY: the out pointer is a local's.
        unsafe { self.mem_alloc(&raw mut address, bytes)? };
        Ok(address)
    }

    /// Copies a slice to the device and waits.
    pub fn upload<T: Copy>(&self, to: Address, from: &[T]) -> Result<(), Code> {
        // SAFETY: the slice is readable over its whole size.
        unsafe { self.copy_to_device(to, from.as_ptr().cast(), size_of_val(from)) }
    }

    /// Copies from the device into a slice and waits.
    pub fn download<T: Copy>(&self, to: &mut [T], from: Address) -> Result<(), Code> {
        // SAFETY: the slice is writable over its whole size, and the tests' element types have no
        // invalid values.
        unsafe { self.copy_to_host(to.as_mut_ptr().cast(), from, size_of_val(to)) }
    }

    /// Loads PTX text.
    pub fn module(&self, text: &str) -> Result<Handle, Code> {
        let image = CString::new(text).expect("no zero byte");
        self.module_with_log(image.as_bytes_with_nul())
            .map_err(|(code, _)| code)
    }

    /// Loads an image, and gives the error log where that fails. Text ends with a zero byte.
    pub fn module_with_log(&self, image: &[u8]) -> Result<Handle, (Code, String)> {
        let mut module = 0;
        let mut log = vec![0u8; 4096];
        // CU_JIT_ERROR_LOG_BUFFER and CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES
        let mut names = [5, 6];
        let mut values = [
            log.as_mut_ptr().cast::<c_void>(),
            ptr::without_provenance_mut(log.len()),
        ];
        // SAFETY: the image says where it ends, within its bytes; the log's size is its own.
        unsafe {
            self.module_load_data_ex(
                &raw mut module,
                image.as_ptr().cast(),
                2,
                names.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        }
        .map_err(|code| {
            let text =
                CStr::from_bytes_until_nul(&log).map_or_else(|_| "".into(), CStr::to_string_lossy);
            (code, text.into_owned())
        })?;
        Ok(module)
    }

    /// A kernel of a module.
    pub fn function(&self, module: Handle, name: &str) -> Result<Handle, Code> {
        let mut function = 0;
        let name = CString::new(name).expect("no zero byte");
        // SAFETY: the name ends with a zero byte.
        unsafe { self.module_get_function(&raw mut function, module, name.as_ptr())? };
        Ok(function)
    }

    /// Launches a one-dimensional grid whose parameters are all 64-bit.
    pub fn launch(
        &self,
        function: Handle,
        grid: u32,
        block: u32,
        stream: Handle,
        parameters: &[u64],
    ) -> Result<(), Code> {
        let mut values = parameters.to_vec();
        let mut pointers: Vec<*mut c_void> = values
            .iter_mut()
            .map(|value| ptr::from_mut(value).cast())
            .collect();
        // SAFETY: each pointer leads to eight readable bytes, which is what the kernel's parameters
        // take.
        unsafe {
            self.launch_kernel(
                function,
                grid,
                1,
                1,
                block,
                1,
                1,
                0,
                stream,
                pointers.as_mut_ptr(),
                ptr::null_mut(),
            )
        }
    }

    /// Waits for all work of the current context.
    pub fn synchronize(&self) -> Result<(), Code> {
        // SAFETY: cuCtxSynchronize takes no arguments.
        unsafe { self.ctx_synchronize() }
    }

    /// A new stream.
    pub fn stream(&self, flags: u32) -> Result<Handle, Code> {
        let mut stream = 0;
        // SAFETY: the out pointer is a local's.
        unsafe { self.stream_create(&raw mut stream, flags)? };
        Ok(stream)
    }

    /// Free and total memory of the current device.
    pub fn memory(&self) -> Result<(usize, usize), Code> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: the out pointers are locals'.
        unsafe { self.mem_get_info(&raw mut free, &raw mut total)? };
        Ok((free, total))
    }
}
