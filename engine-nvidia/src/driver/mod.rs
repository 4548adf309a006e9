//! The driver library: its function pointers, made from the table of functions.
//!
//! A function that an older driver lacks answers CUDA_ERROR_NOT_SUPPORTED. Owns the loading and the
//! raw calls; what they mean is for the modules that make them. Called by all that touches the device. Must not know
//! clients.

pub(crate) mod allocation;
pub(crate) mod environment;
pub(crate) mod facts;
pub(crate) mod locate;
pub(crate) mod nvml;

use std::ffi::CStr;
use std::fmt;
use std::path::{Path, PathBuf};

use cuda_abi::CUresult;
use cuda_abi::types::*;
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use thiserror::Error;

use crate::driver::environment::Unprepared;

/// The oldest driver that is taken, as `cuDriverGetVersion` gives it: CUDA 12.4, the first that tells
/// of a module's kernels and of a kernel's parameters.
pub(crate) const OLDEST: i32 = 12040;

/// Why the real driver cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// There is no driver library in any of the places where one may be.
    #[error("no NVIDIA driver found: none of {} exists", show(.tried))]
    NoDriver {
        /// Where it was looked for.
        tried: Vec<PathBuf>,
    },
    /// A driver library was named by a path that depends on where the process stands.
    #[error("the driver's path must be absolute: {}", .0.display())]
    NotAbsolute(PathBuf),
    /// The library is our own.
    #[error("{} is the client library of OpenMPS, not NVIDIA's driver; name the driver's path in OPENMPS_DRIVER", .0.display())]
    Ours(PathBuf),
    /// The library does not load or is not a driver.
    #[error("the driver {} cannot be loaded: {text}", .path.display())]
    Load {
        /// The library.
        path: PathBuf,
        /// What the loader says.
        text: String,
    },
    /// The driver is too old.
    #[error("the driver {} is for CUDA {}.{}; OpenMPS needs a driver for CUDA 12.4 (550) or newer", .path.display(), .version / 1000, .version % 1000 / 10)]
    TooOld {
        /// The library.
        path: PathBuf,
        /// As cuDriverGetVersion gives it.
        version: i32,
    },
    /// A call that is needed at the start failed.
    #[error("{call} failed: {code}")]
    Call {
        /// The function.
        call: &'static str,
        /// Its status.
        code: CUresult,
    },
    /// The environment lacks a setting.
    #[error(transparent)]
    Environment(#[from] Unprepared),
    /// NVIDIA's MPS was to be beneath, and the driver has not found it.
    #[error("NVIDIA's MPS is to run beneath this server, and the driver has not become its client")]
    NoMps,
}

impl OpenError {
    /// Whether there is no GPU here to be used: no driver, or none that sees a device.
    #[must_use]
    pub fn is_no_gpu(&self) -> bool {
        match self {
            Self::NoDriver { .. } | Self::Ours(_) => true,
            Self::Call { code, .. } => *code == CUresult::ERROR_NO_DEVICE,
            _ => false,
        }
    }

    /// Says which call failed.
    pub(crate) fn of(call: &'static str) -> impl FnOnce(CUresult) -> Self {
        move |code| Self::Call { call, code }
    }
}

fn show(paths: &[PathBuf]) -> String {
    let shown: Vec<_> = paths
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    shown.join(", ")
}

macro_rules! pointers {
    ($(
        $(#[$doc:meta])*
        $class:ident $number:literal since $since:literal $(twin $suffix:literal $from:literal)?
            capture $capture:ident $(partial $how:literal)? =>
            fn $name:ident($($argument:ident: $mode:ident $tokens:tt),*);
    )*) => {
        #[allow(non_snake_case, reason = "the names are C's")]
        struct Functions {
            $($name: Option<unsafe extern "C" fn($($argument: cuda_abi::c_type!($mode $tokens)),*) -> CUresult>,)*
        }

        impl Functions {
            fn of(library: &Library) -> Self {
                Self {
                    // SAFETY: the symbol of this name has this type; the table is held to the C
                    // headers by its tests. The pointers live in `Driver`, which keeps the library.
                    $($name: unsafe { library.get(concat!(stringify!($name), "\0").as_bytes()) }
                        .ok()
                        .map(|symbol| *symbol),)*
                }
            }

            fn count(&self) -> usize {
                [$(self.$name.is_some()),*].into_iter().filter(|&has| has).count()
            }
        }

        #[allow(non_snake_case, reason = "the names are C's")]
        #[allow(dead_code, reason = "made from the whole table; which are called is for other modules")]
        #[allow(clippy::too_many_arguments, reason = "the signatures are C's")]
        impl Driver {
            $(
                $(#[$doc])*
                ///
                /// # Errors
                /// The status, if it is not CUDA_SUCCESS.
                ///
                /// # Safety
                /// As the driver's documentation says of pointers and handles.
                pub(crate) unsafe fn $name(&self, $($argument: cuda_abi::c_type!($mode $tokens)),*) -> Result<(), CUresult> {
                    match self.functions.$name {
                        // SAFETY: the caller keeps what the driver's documentation says of these pointers and handles.
                        Some(function) => unsafe { function($($argument),*) }.ok(),
                        None => Err(CUresult::ERROR_NOT_SUPPORTED),
                    }
                }
            )*
        }
    };
}

cuda_abi::for_each_function!(pointers);

/// A driver library that is loaded and initialised.
pub(crate) struct Driver {
    functions: Functions,
    path: PathBuf,
    version: i32,
    /// Keeps the code mapped.
    _library: Library,
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver")
            .field("path", &self.path)
            .field("version", &self.version)
            .field("functions", &self.functions.count())
            .finish()
    }
}

impl Driver {
    /// Opens and initialises the first driver in these places.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub(crate) fn open(tried: Vec<PathBuf>) -> Result<Self, OpenError> {
        let mut ours = None;
        for path in &tried {
            match Self::open_at(path) {
                Err(OpenError::NoDriver { .. }) => {}
                // In a container our library may stand in the driver's first place.
                Err(error @ OpenError::Ours(_)) => ours = Some(error),
                other => return other,
            }
        }
        Err(ours.unwrap_or(OpenError::NoDriver { tried }))
    }

    /// Opens and initialises the driver at an absolute path.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub(crate) fn open_at(path: &Path) -> Result<Self, OpenError> {
        if !path.is_absolute() {
            return Err(OpenError::NotAbsolute(path.into()));
        }
        let load_error = |text: String| OpenError::Load {
            path: path.into(),
            text,
        };
        match locate::is_ours(path) {
            Ok(false) => {}
            Ok(true) => return Err(OpenError::Ours(path.into())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(OpenError::NoDriver {
                    tried: vec![path.into()],
                });
            }
            Err(error) => return Err(load_error(error.to_string())),
        }
        // SAFETY: running a library's constructors is what loading the driver means; that it is the
        // driver is what whoever installed it at this place says. Ours is refused above.
        let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }
            .map_err(|error| load_error(error.to_string()))?;
        let mut driver = Self {
            functions: Functions::of(&library),
            path: path.into(),
            version: 0,
            _library: library,
        };
        if driver.functions.cuDriverGetVersion.is_none() || driver.functions.cuInit.is_none() {
            return Err(load_error("it has not the functions of a driver".into()));
        }
        let mut version = 0;
        // SAFETY: the pointer is to a local.
        unsafe { driver.cuDriverGetVersion(&raw mut version) }
            .map_err(OpenError::of("cuDriverGetVersion"))?;
        if version < OLDEST {
            return Err(OpenError::TooOld {
                path: path.into(),
                version,
            });
        }
        driver.version = version;
        // SAFETY: cuInit takes flags only, which have to be 0.
        unsafe { driver.cuInit(0) }.map_err(OpenError::of("cuInit"))?;
        Ok(driver)
    }

    /// Loads a text of our own into the current context: the module, and its kernel of this name.
    ///
    /// # Errors
    /// The driver's status; then nothing is loaded.
    pub(crate) fn load_own(
        &self,
        text: &CStr,
        kernel: &CStr,
    ) -> Result<(CUmodule, CUfunction), CUresult> {
        let (mut module, mut function) = (CUmodule::NULL, CUfunction::NULL);
        // SAFETY: pointers are to locals and to strings with their NUL.
        unsafe {
            self.cuModuleLoadData(&raw mut module, text.as_ptr().cast())?;
            if let Err(code) = self.cuModuleGetFunction(&raw mut function, module, kernel.as_ptr())
            {
                let _ = self.cuModuleUnload(module);
                return Err(code);
            }
        }
        Ok((module, function))
    }

    /// How many devices there are; at least one.
    ///
    /// # Errors
    /// CUDA_ERROR_NO_DEVICE if there is none, and the driver's status.
    pub(crate) fn count_devices(&self) -> Result<i32, OpenError> {
        let call = "cuDeviceGetCount";
        let mut count = 0;
        // SAFETY: the pointer is to a local.
        unsafe { self.cuDeviceGetCount(&raw mut count) }.map_err(OpenError::of(call))?;
        if count < 1 {
            return Err(OpenError::of(call)(CUresult::ERROR_NO_DEVICE));
        }
        Ok(count)
    }

    /// Whether the driver is a client of NVIDIA's own MPS; `None` from one that does not say.
    pub(crate) fn is_under_mps(&self) -> Option<bool> {
        let mut value = 0;
        let asked = CUdevice_attribute::MPS_ENABLED;
        // SAFETY: the pointer is to a local.
        let told = unsafe { self.cuDeviceGetAttribute(&raw mut value, asked, 0) };
        told.ok().map(|()| value != 0)
    }

    /// The CUDA version that the driver is for, as cuDriverGetVersion gives it.
    pub(crate) fn version(&self) -> i32 {
        self.version
    }

    /// The library's path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}
