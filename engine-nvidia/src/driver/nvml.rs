//! NVIDIA's management library, as far as compute modes need it: who may have contexts on a device.
//!
//! Opened by absolute path as the driver is, but by another process: the daemon sets modes, which
//! takes root, and holds no context. It must not know why a mode is set.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::path::{Path, PathBuf};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::driver::locate;

/// Names a library to use instead of those in the usual places.
const VARIABLE: &str = "OPENMPS_NVML";

/// nvmlReturn_t: done.
const SUCCESS: c_int = 0;

/// NVML_ERROR_NO_PERMISSION
const NO_PERMISSION: c_int = 4;

/// Why compute modes cannot be known or set through the library.
#[derive(Debug, thiserror::Error)]
pub enum NvmlError {
    /// A relative path means something else in each directory.
    #[error("{}: it is not an absolute path", .0.display())]
    NotAbsolute(PathBuf),
    /// It would ask the very daemon that opens it.
    #[error("{}: it is OpenMPS's own library, which knows no more than the daemon", .0.display())]
    Ours(PathBuf),
    /// The file cannot be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// The library.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// The loader refuses it, or it lacks a function.
    #[error("{}: {source}", path.display())]
    Load {
        /// The library.
        path: PathBuf,
        /// What the loader says.
        source: libloading::Error,
    },
    /// It does not begin.
    #[error("{}: {source}", path.display())]
    Init {
        /// The library.
        path: PathBuf,
        /// What the library says.
        source: Refusal,
    },
    /// It refuses a call.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// It knows of no such device.
    #[error("there is no device {0}")]
    NoDevice(String),
}

/// An error code of the library's, in its words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}{}", self.advice())]
pub struct Refusal {
    /// nvmlReturn_t.
    pub code: c_int,
    text: String,
}

impl Refusal {
    const fn advice(&self) -> &'static str {
        match self.code {
            // It is not for being root that the driver asks.
            NO_PERMISSION => {
                ": it takes CAP_SYS_ADMIN, which root has unless a container or a service takes it away"
            }
            _ => "",
        }
    }
}

/// Bytes that a UUID takes with its end, at most.
const UUID_BYTES: usize = 96;

type Handle = *mut c_void;

/// The library, initialised.
#[derive(Debug)]
pub struct Nvml {
    shutdown: unsafe extern "C" fn() -> c_int,
    count: unsafe extern "C" fn(*mut c_uint) -> c_int,
    handle: unsafe extern "C" fn(c_uint, *mut Handle) -> c_int,
    uuid: unsafe extern "C" fn(Handle, *mut c_char, c_uint) -> c_int,
    get_mode: unsafe extern "C" fn(Handle, *mut c_uint) -> c_int,
    set_mode: unsafe extern "C" fn(Handle, c_uint) -> c_int,
    text_of: unsafe extern "C" fn(c_int) -> *const c_char,
    /// Keeps the functions.
    _library: Library,
}

/// A device, and who may have contexts on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceMode {
    /// `GPU-…`
    pub uuid: String,
    /// nvmlComputeMode_t, which is CUcomputemode: 0 everybody, 2 nobody, 3 one process.
    pub mode: u32,
}

impl Nvml {
    /// Opens the library that OPENMPS_NVML names, or the one where it usually is; `None` where there is
    /// none.
    ///
    /// # Errors
    /// When there is one that does not work, or none where the variable says.
    pub fn open() -> Result<Option<Self>, NvmlError> {
        if let Some(path) = locate::named_by(VARIABLE) {
            return Self::open_at(&path).map(Some);
        }
        let usual = cuda_abi::library_paths::of("libnvidia-ml.so.1");
        // Ours may lie where the driver's used to, and would ask the very daemon that opens it.
        let is_real = |path: &&PathBuf| path.exists() && !locate::is_ours(path).unwrap_or(false);
        let found = usual.iter().find(is_real);
        found.map(|path| Self::open_at(path)).transpose()
    }

    /// Opens the library at an absolute path.
    ///
    /// # Errors
    /// When it does not work.
    pub fn open_at(path: &Path) -> Result<Self, NvmlError> {
        let not_loaded = |source| NvmlError::Load {
            path: path.to_owned(),
            source,
        };
        if !path.is_absolute() {
            return Err(NvmlError::NotAbsolute(path.to_owned()));
        }
        let is_ours = locate::is_ours(path).map_err(|source| NvmlError::Read {
            path: path.to_owned(),
            source,
        })?;
        if is_ours {
            return Err(NvmlError::Ours(path.to_owned()));
        }
        // SAFETY: running a library's constructors is what loading it means; that it is NVIDIA's is
        // what whoever installed it at this place says.
        let library =
            unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }.map_err(not_loaded)?;
        macro_rules! function {
            ($name:literal) => {
                // SAFETY: the type at the field is the one that NVIDIA's manual gives for the name.
                *unsafe { library.get(concat!($name, "\0").as_bytes()) }.map_err(not_loaded)?
            };
        }
        let init: unsafe extern "C" fn() -> c_int = function!("nvmlInit_v2");
        let nvml = Self {
            shutdown: function!("nvmlShutdown"),
            count: function!("nvmlDeviceGetCount_v2"),
            handle: function!("nvmlDeviceGetHandleByIndex_v2"),
            uuid: function!("nvmlDeviceGetUUID"),
            get_mode: function!("nvmlDeviceGetComputeMode"),
            set_mode: function!("nvmlDeviceSetComputeMode"),
            text_of: function!("nvmlErrorString"),
            _library: library,
        };
        // SAFETY: `init` is nvmlInit_v2, which takes no arguments.
        let code = unsafe { init() };
        match code {
            SUCCESS => Ok(nvml),
            code => {
                let error = NvmlError::Init {
                    path: path.to_owned(),
                    source: nvml.refusal(code),
                };
                #[expect(clippy::mem_forget, reason = "what was not begun is not to be ended")]
                std::mem::forget(nvml);
                Err(error)
            }
        }
    }

    fn refusal(&self, code: c_int) -> Refusal {
        Refusal {
            code,
            text: self.text(code),
        }
    }

    fn text(&self, code: c_int) -> String {
        // SAFETY: any number may be asked for.
        let text = unsafe { (self.text_of)(code) };
        if text.is_null() {
            return format!("NVML error {code}");
        }
        // SAFETY: not NULL, so it is one of the library's constant texts, which end with a zero.
        let text = unsafe { CStr::from_ptr(text) };
        format!("{} (NVML error {code})", text.to_string_lossy())
    }

    fn check(&self, code: c_int) -> Result<(), Refusal> {
        match code {
            SUCCESS => Ok(()),
            code => Err(self.refusal(code)),
        }
    }

    fn handles(&self) -> Result<Vec<Handle>, Refusal> {
        let mut count = 0;
        // SAFETY: the pointer is to a local.
        self.check(unsafe { (self.count)(&raw mut count) })?;
        let handle = |index| {
            let mut handle = std::ptr::null_mut();
            // SAFETY: the pointer is to a local; the index is below the count that the library gave.
            self.check(unsafe { (self.handle)(index, &raw mut handle) })?;
            Ok(handle)
        };
        (0..count).map(handle).collect()
    }

    fn uuid_of(&self, handle: Handle) -> Result<String, Refusal> {
        let mut text = [0 as c_char; UUID_BYTES];
        // SAFETY: the handle is the library's, and the text has as many bytes as are said.
        self.check(unsafe { (self.uuid)(handle, text.as_mut_ptr(), UUID_BYTES as c_uint) })?;
        text[UUID_BYTES - 1] = 0;
        // SAFETY: it ends with a zero, within its bytes.
        let text = unsafe { CStr::from_ptr(text.as_ptr()) };
        Ok(text.to_string_lossy().into_owned())
    }

    /// All devices, in the library's order.
    ///
    /// # Errors
    /// What the library says.
    pub fn modes(&self) -> Result<Vec<DeviceMode>, Refusal> {
        let of = |handle| {
            let mut mode = 0;
            // SAFETY: the handle is the library's, the pointer is to a local.
            self.check(unsafe { (self.get_mode)(handle, &raw mut mode) })?;
            Ok(DeviceMode {
                uuid: self.uuid_of(handle)?,
                mode,
            })
        };
        self.handles()?.into_iter().map(of).collect()
    }

    /// Sets the mode of a device.
    ///
    /// # Errors
    /// What the library says, or that there is no such device.
    pub fn set(&self, uuid: &str, mode: u32) -> Result<(), NvmlError> {
        for handle in self.handles()? {
            if self.uuid_of(handle)? == uuid {
                // SAFETY: the handle is the library's.
                return Ok(self.check(unsafe { (self.set_mode)(handle, mode) })?);
            }
        }
        Err(NvmlError::NoDevice(uuid.to_owned()))
    }
}

impl Drop for Nvml {
    fn drop(&mut self) {
        // SAFETY: it was initialised, and no handle is used any more.
        unsafe { (self.shutdown)() };
    }
}
