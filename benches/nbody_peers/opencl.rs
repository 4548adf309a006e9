//! The same kernel by PoCL, through the machine's OpenCL loader, opened when the benchmark runs.
//!
//! What it creates lives until the process ends, which is soon: nothing is released.
//!
//! Called by `main` through `Peer`. Must not know what it is compared with.

use std::ffi::{CStr, c_char, c_void};
use std::ptr;

use anyhow::{Result, anyhow, bail};
use libloading::Library;

use crate::Peer;
use crate::bodies::{BLOCK, Bodies, SOFTENING_SQUARED, TIME_STEP};

const SOURCE: &str = concat!(include_str!("nbody.cl"), "\0");
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

pub struct Pocl {
    name: String,
    api: OpenCl,
    queue: Handle,
    kernel: Handle,
    positions: [Handle; 2],
    velocities: Handle,
    present: usize,
    count: usize,
}

impl Pocl {
    /// Builds the kernel with the given options and uploads the bodies.
    pub fn new(start: &Bodies, options: &CStr) -> Result<Self> {
        let api = OpenCl::open()?;
        let (platform, name) = find_platform(&api)?;
        let mut device = ptr::null_mut();
        let none = ptr::null_mut();
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
        let source = SOURCE.as_ptr().cast();
        let program = cl_make!(
            api,
            clCreateProgramWithSource(context, 1, &raw const source, ptr::null())
        )?;
        cl!(
            api,
            clBuildProgram(
                program,
                1,
                &raw const device,
                options.as_ptr(),
                ptr::null(),
                none
            )
        )
        .map_err(|error| anyhow!("{error}: {}", build_log(&api, program, device)))?;
        let kernel = cl_make!(api, clCreateKernel(program, c"nbody_step".as_ptr()))?;
        let size = size_of_val(&start.positions[..]);
        let buffer = || cl_make!(api, clCreateBuffer(context, CL_MEM_READ_WRITE, size, none));
        let [even, odd, velocities] = [buffer()?, buffer()?, buffer()?];
        for (buffer, values) in [(even, &start.positions), (velocities, &start.velocities)] {
            let values = values.as_ptr().cast();
            cl!(
                api,
                clEnqueueWriteBuffer(
                    queue,
                    buffer,
                    CL_TRUE,
                    0,
                    size,
                    values,
                    0,
                    ptr::null(),
                    none.cast()
                )
            )?;
        }
        let count = start.positions.len();
        let name = format!("{name} {}", options.to_string_lossy())
            .trim_end()
            .to_owned();
        let positions = [even, odd];
        Ok(Self {
            name,
            api,
            queue,
            kernel,
            positions,
            velocities,
            present: 0,
            count,
        })
    }

    fn set<T>(&self, index: u32, value: &T) -> Result<()> {
        let place = ptr::from_ref(value).cast();
        cl!(
            self.api,
            clSetKernelArg(self.kernel, index, size_of::<T>(), place)
        )
    }
}

impl Peer for Pocl {
    fn name(&self) -> &str {
        &self.name
    }

    fn step(&mut self) -> Result<()> {
        self.set(0, &self.positions[1 - self.present])?;
        self.set(1, &self.positions[self.present])?;
        self.set(2, &self.velocities)?;
        self.set(3, &((self.count / BLOCK) as u32))?;
        self.set(4, &TIME_STEP)?;
        self.set(5, &SOFTENING_SQUARED)?;
        let (queue, kernel, none) = (self.queue, self.kernel, ptr::null_mut());
        cl!(
            self.api,
            clEnqueueNDRangeKernel(
                queue,
                kernel,
                1,
                ptr::null(),
                &raw const self.count,
                &BLOCK,
                0,
                ptr::null(),
                none
            )
        )?;
        cl!(self.api, clFinish(queue))?;
        self.present = 1 - self.present;
        Ok(())
    }

    fn velocities(&mut self) -> Result<Vec<[f32; 4]>> {
        let mut values = vec![[0.0; 4]; self.count];
        let size = size_of_val(&values[..]);
        let (to, none) = (values.as_mut_ptr().cast(), ptr::null_mut());
        cl!(
            self.api,
            clEnqueueReadBuffer(
                self.queue,
                self.velocities,
                CL_TRUE,
                0,
                size,
                to,
                0,
                ptr::null(),
                none
            )
        )?;
        Ok(values)
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
