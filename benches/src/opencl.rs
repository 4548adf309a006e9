//! PoCL as a device, through the machine's OpenCL loader, opened when a benchmark runs.
//!
//! What it creates lives until the process ends, which is soon: nothing is released.
//!
//! Called by the benchmarks that compare with PoCL. Must not know their kernels.

use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr;

use anyhow::{Result, anyhow, bail};
use libloading::Library;

/// What the peer is missing on a machine without it.
const PACKAGE: &str = "install pocl-opencl-icd and ocl-icd-libopencl1";

type Handle = *mut c_void;
type Status = i32;

// Numbers of OpenCL, by the names of its specification.
const CL_DEVICE_TYPE_CPU: u64 = 2;
const CL_MEM_READ_WRITE: u64 = 1;
const CL_PLATFORM_NAME: u32 = 0x0902;
const CL_PLATFORM_VERSION: u32 = 0x0901;
const CL_PROGRAM_BUILD_LOG: u32 = 0x1183;
const CL_TRUE: u32 = 1;

macro_rules! opencl_functions {
    ($($name:ident($($kind:ty),*) -> $result:ty;)*) => {
        #[allow(non_snake_case, reason = "the fields have OpenCL's names")]
        #[derive(Debug)]
        struct OpenCl {
            $($name: unsafe extern "C" fn($($kind),*) -> $result,)*
            _library: Library,
        }

        impl OpenCl {
            fn open() -> Result<Self> {
                let missing = |error: libloading::Error| {
                    let reason = std::error::Error::source(&error).map(ToString::to_string);
                    anyhow!("{}; {PACKAGE}", reason.unwrap_or_else(|| error.to_string()))
                };
                // SAFETY: loading runs the initialisers of the machine's OpenCL loader.
                let library = unsafe { Library::new("libOpenCL.so.1") }.map_err(missing)?;
                Ok(Self {
                    $($name: {
                        let name = concat!(stringify!($name), "\0").as_bytes();
                        // SAFETY: the specification gives the function of this name this
                        // signature; the pointer is kept beside its library.
                        *unsafe { library.get(name) }.map_err(missing)?
                    },)*
                    _library: library,
                })
            }
        }
    };
}

opencl_functions! {
    clGetPlatformIDs(u32, *mut Handle, *mut u32) -> Status;
    clGetPlatformInfo(Handle, u32, usize, *mut c_void, *mut usize) -> Status;
    clGetDeviceIDs(Handle, u64, u32, *mut Handle, *mut u32) -> Status;
    clCreateContext(*const isize, u32, *const Handle, *const c_void, *mut c_void, *mut Status) -> Handle;
    clCreateCommandQueue(Handle, Handle, u64, *mut Status) -> Handle;
    clCreateProgramWithSource(Handle, u32, *const *const c_char, *const usize, *mut Status) -> Handle;
    clBuildProgram(Handle, u32, *const Handle, *const c_char, *const c_void, *mut c_void) -> Status;
    clGetProgramBuildInfo(Handle, Handle, u32, usize, *mut c_void, *mut usize) -> Status;
    clCreateKernel(Handle, *const c_char, *mut Status) -> Handle;
    clCreateBuffer(Handle, u64, usize, *mut c_void, *mut Status) -> Handle;
    clSetKernelArg(Handle, u32, usize, *const c_void) -> Status;
    clEnqueueWriteBuffer(Handle, Handle, u32, usize, usize, *const c_void, u32, *const Handle, *mut Handle) -> Status;
    clEnqueueReadBuffer(Handle, Handle, u32, usize, usize, *mut c_void, u32, *const Handle, *mut Handle) -> Status;
    clEnqueueNDRangeKernel(Handle, Handle, u32, *const usize, *const usize, *const usize, u32, *const Handle, *mut Handle) -> Status;
    clFinish(Handle) -> Status;
}

/// Calls a function that returns its status.
macro_rules! cl {
    ($api:expr, $function:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: handles come from OpenCL and are never released; pointers are to values or
        // slices, of the sizes given, that live for the call, and every transfer blocks.
        let status = unsafe { ($api.$function)($($argument),*) };
        checked(stringify!($function), status)
    }};
}

/// Calls a function that makes something and writes its status last.
macro_rules! cl_make {
    ($api:expr, $function:ident($($argument:expr),* $(,)?)) => {{
        let mut status = 0;
        // SAFETY: handles come from OpenCL and are never released; pointers are to values or slices, of the sizes
        // given, that live for the call; the status is a local.
        let handle = unsafe { ($api.$function)($($argument,)* &mut status) };
        checked(stringify!($function), status).map(|()| handle)
    }};
}

fn checked(function: &str, status: Status) -> Result<()> {
    if status == 0 {
        Ok(())
    } else {
        Err(anyhow!("{function} failed with {status}"))
    }
}

/// A program on PoCL's device for this processor, with a queue.
#[derive(Debug)]
pub struct Pocl {
    api: OpenCl,
    name: String,
    context: Handle,
    queue: Handle,
    program: Handle,
}

/// Memory of a device.
#[derive(Clone, Copy, Debug)]
pub struct Buffer(Handle);

/// A kernel of a program.
#[derive(Clone, Copy, Debug)]
pub struct Kernel(Handle);

impl Pocl {
    /// Builds OpenCL C with the given options.
    ///
    /// # Errors
    /// No loader, no PoCL, or what its compiler says.
    pub fn new(source: &str, options: &CStr) -> Result<Self> {
        let api = OpenCl::open()?;
        let (platform, name) = find_platform(&api)?;
        let mut device = ptr::null_mut();
        cl!(
            api,
            clGetDeviceIDs(
                platform,
                CL_DEVICE_TYPE_CPU,
                1,
                &raw mut device,
                ptr::null_mut()
            )
        )?;
        let context = cl_make!(
            api,
            clCreateContext(
                ptr::null(),
                1,
                &raw const device,
                ptr::null(),
                ptr::null_mut()
            )
        )?;
        let queue = cl_make!(api, clCreateCommandQueue(context, device, 0))?;
        let source = CString::new(source)?;
        let text = source.as_ptr();
        let program = cl_make!(
            api,
            clCreateProgramWithSource(context, 1, &raw const text, ptr::null())
        )?;
        cl!(
            api,
            clBuildProgram(
                program,
                1,
                &raw const device,
                options.as_ptr(),
                ptr::null(),
                ptr::null_mut()
            )
        )
        .map_err(|error| anyhow!("{error}: {}", build_log(&api, program, device)))?;
        Ok(Self {
            api,
            name,
            context,
            queue,
            program,
        })
    }

    /// Its name with its version.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A kernel of the program.
    ///
    /// # Errors
    /// OpenCL's status: there is none of this name.
    pub fn kernel(&self, name: &str) -> Result<Kernel> {
        let name = CString::new(name)?;
        cl_make!(self.api, clCreateKernel(self.program, name.as_ptr())).map(Kernel)
    }

    /// Memory of so many bytes.
    ///
    /// # Errors
    /// OpenCL's status.
    pub fn buffer(&self, bytes: usize) -> Result<Buffer> {
        let none = ptr::null_mut();
        cl_make!(
            self.api,
            clCreateBuffer(self.context, CL_MEM_READ_WRITE, bytes, none)
        )
        .map(Buffer)
    }

    /// Copies to a buffer, and waits.
    ///
    /// # Errors
    /// OpenCL's status.
    pub fn write<T: Copy>(&self, to: Buffer, from: &[T]) -> Result<()> {
        let (size, from) = (size_of_val(from), from.as_ptr().cast());
        let none = ptr::null_mut();
        cl!(
            self.api,
            clEnqueueWriteBuffer(
                self.queue,
                to.0,
                CL_TRUE,
                0,
                size,
                from,
                0,
                ptr::null(),
                none
            )
        )
    }

    /// Copies from a buffer, and waits. `T` is a number, or an array of numbers.
    ///
    /// # Errors
    /// OpenCL's status.
    pub fn read<T: Copy>(&self, to: &mut [T], from: Buffer) -> Result<()> {
        let (size, to) = (size_of_val(to), to.as_mut_ptr().cast());
        let none = ptr::null_mut();
        cl!(
            self.api,
            clEnqueueReadBuffer(
                self.queue,
                from.0,
                CL_TRUE,
                0,
                size,
                to,
                0,
                ptr::null(),
                none
            )
        )
    }

    /// Sets a kernel's argument: a number, or a buffer.
    ///
    /// # Errors
    /// OpenCL's status: there is no such argument, or it has another size.
    pub fn set<T: Copy>(&self, kernel: Kernel, index: u32, value: &T) -> Result<()> {
        let place = ptr::from_ref(value).cast();
        cl!(
            self.api,
            clSetKernelArg(kernel.0, index, size_of::<T>(), place)
        )
    }

    /// Queues `groups` of `items` work-items each.
    ///
    /// # Errors
    /// OpenCL's status.
    pub fn launch(&self, kernel: Kernel, groups: [u32; 2], items: [u32; 2]) -> Result<()> {
        let local = items.map(|items| items as usize);
        let global = [0, 1].map(|axis| groups[axis] as usize * local[axis]);
        let none = ptr::null_mut();
        cl!(
            self.api,
            clEnqueueNDRangeKernel(
                self.queue,
                kernel.0,
                2,
                ptr::null(),
                global.as_ptr(),
                local.as_ptr(),
                0,
                ptr::null(),
                none
            )
        )
    }

    /// Waits for all that was queued.
    ///
    /// # Errors
    /// OpenCL's status.
    pub fn finish(&self) -> Result<()> {
        cl!(self.api, clFinish(self.queue))
    }
}

/// PoCL among the platforms, and its name with its version.
fn find_platform(api: &OpenCl) -> Result<(Handle, String)> {
    let mut platforms = [ptr::null_mut(); 16];
    let mut count = 0;
    // A loader without platforms answers with an error: that is none found, too.
    let found = cl!(
        api,
        clGetPlatformIDs(16, platforms.as_mut_ptr(), &raw mut count)
    );
    let count = if found.is_ok() { count.min(16) } else { 0 };
    for &platform in &platforms[..count as usize] {
        if platform_text(api, platform, CL_PLATFORM_NAME)? == "Portable Computing Language" {
            // "OpenCL 3.0 PoCL 3.1+debian  Linux, ..."
            let version = platform_text(api, platform, CL_PLATFORM_VERSION)?;
            let number = version
                .split_whitespace()
                .skip_while(|word| *word != "PoCL")
                .nth(1);
            return Ok((platform, format!("PoCL {}", number.unwrap_or("?"))));
        }
    }
    bail!("none of the {count} OpenCL platforms is PoCL; {PACKAGE}")
}

fn platform_text(api: &OpenCl, platform: Handle, what: u32) -> Result<String> {
    let mut text = [0u8; 1024];
    let (size, place) = (text.len(), text.as_mut_ptr().cast());
    cl!(
        api,
        clGetPlatformInfo(platform, what, size, place, ptr::null_mut())
    )?;
    Ok(text_of(&text))
}

fn build_log(api: &OpenCl, program: Handle, device: Handle) -> String {
    let mut text = vec![0u8; 1 << 16];
    let (size, place) = (text.len(), text.as_mut_ptr().cast());
    let what = CL_PROGRAM_BUILD_LOG;
    match cl!(
        api,
        clGetProgramBuildInfo(program, device, what, size, place, ptr::null_mut())
    ) {
        Ok(()) => text_of(&text),
        Err(error) => error.to_string(),
    }
}

fn text_of(bytes: &[u8]) -> String {
    let text = CStr::from_bytes_until_nul(bytes).unwrap_or(c"");
    text.to_string_lossy().into_owned()
}
