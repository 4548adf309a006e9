//! The driver's own library, for what a device measures: temperature, power, clocks, links.
//!
//! It is opened by absolute path, so that this library, which has its name, is not found in its place;
//! a copy of this one is refused by a symbol that only ours has. It is asked of devices only that the daemon offers,
//! named by their UUIDs. Where there is none, as in most containers, or where it cannot be initialised,
//! what it alone knows is not supported.
//!
//! Called by `api`, and by `exports` for functions that the driver alone can answer. Must not know what such a
//! function means: arguments are passed on.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicPtr, Ordering};

use cuda_abi::library_paths;
use cuda_abi::nvml::nvmlReturn_t;

use crate::log::log;
use crate::state::{self, Facts};
use crate::structs::nvmlDevice_t;

/// Names a library to use instead of those in the usual places.
const VARIABLE: &str = "OPENMPS_NVML";

const RTLD_NOW: c_int = 2;
const RTLD_LOCAL: c_int = 0;
/// What the library calls of its own names is its own, also where this one comes before it.
const RTLD_DEEPBIND: c_int = 8;

// libc's, which std links.
unsafe extern "C" {
    fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
    fn dlclose(library: *mut c_void) -> c_int;
}

/// A symbol that only this library has.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "a symbol's name")]
static openmps_libnvidia_ml: u8 = 1;

const OURS: &CStr = c"openmps_libnvidia_ml";

type ByUuid = unsafe extern "C" fn(*const c_char, *mut nvmlDevice_t) -> nvmlReturn_t;

/// The library, initialised, and never closed.
#[derive(Debug)]
pub(crate) struct DriverNvml {
    library: *mut c_void,
    by_uuid: ByUuid,
}

/// The library; null before somebody looks for it.
static REAL: AtomicPtr<DriverNvml> = AtomicPtr::new(std::ptr::null_mut());

/// Stands in [`REAL`] where there is none: no library is at this address.
const NONE: *mut DriverNvml = std::ptr::without_provenance_mut(1);

/// The library, if it is there and works.
fn real() -> Option<&'static DriverNvml> {
    let mut known = REAL.load(Ordering::Acquire);
    if known.is_null() {
        let found = open().map_or(NONE, |real| Box::leak(Box::new(real)));
        // Another thread's, if it was first: both name the same library.
        let first = REAL.compare_exchange(known, found, Ordering::AcqRel, Ordering::Acquire);
        known = first.map_or_else(|other| other, |_| found);
    }
    if known == NONE {
        return None;
    }
    // SAFETY: neither null nor the mark for none, so it is a leaked box's.
    unsafe { known.as_ref() }
}

fn open() -> Option<DriverNvml> {
    let named = daemon_interface::environment::variable(VARIABLE).filter(|path| !path.is_empty());
    let paths = match named {
        Some(path) => vec![PathBuf::from(path)],
        None => library_paths::of("libnvidia-ml.so.1"),
    };
    let there = paths
        .into_iter()
        .filter(|path| path.is_absolute() && path.exists());
    there.into_iter().find_map(|path| {
        let real = open_at(path.clone());
        if real.is_none() {
            log!("{} is not used for sensors", path.display());
        }
        real
    })
}

fn open_at(path: PathBuf) -> Option<DriverNvml> {
    let path = CString::new(path.into_os_string().into_vec()).ok()?;
    // SAFETY: a text with its NUL. Running the library's constructors is what loading it means; that it is
    // NVIDIA's is what whoever installed it at this place says.
    let library = unsafe { dlopen(path.as_ptr(), RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND) };
    if library.is_null() {
        return None;
    }
    // SAFETY: `dlopen` has just given the library.
    let usable = unsafe { usable(library) };
    if usable.is_none() {
        // SAFETY: `dlopen` has just given the library, and nothing of it is kept.
        unsafe { dlclose(library) };
    }
    usable
}

/// The library as it is used, if it is the driver's and works.
///
/// # Safety
/// `library` is open, and stays so if this gives something.
unsafe fn usable(library: *mut c_void) -> Option<DriverNvml> {
    // SAFETY: the caller has opened `library`, and the name ends with NUL.
    if !unsafe { dlsym(library, OURS.as_ptr()) }.is_null() {
        return None;
    }
    // SAFETY: the caller vouches that `library` is open.
    let init = unsafe { symbol(library, c"nvmlInit_v2") }?;
    // SAFETY: the caller vouches that `library` is open.
    let by_uuid = unsafe { symbol(library, c"nvmlDeviceGetHandleByUUID") }?;
    // SAFETY: the types are those that NVIDIA's documentation gives for the names.
    let (init, by_uuid) = unsafe {
        (
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> nvmlReturn_t>(init),
            std::mem::transmute::<*mut c_void, ByUuid>(by_uuid),
        )
    };
    // SAFETY: `init` is nvmlInit_v2, which takes no arguments.
    let code = unsafe { init() };
    (code == nvmlReturn_t::SUCCESS).then_some(DriverNvml { library, by_uuid })
}

/// A function's address.
///
/// # Safety
/// `library` is open.
unsafe fn symbol(library: *mut c_void, name: &CStr) -> Option<*mut c_void> {
    // SAFETY: the caller vouches that `library` is open, and the name ends with NUL.
    let address = unsafe { dlsym(library, name.as_ptr()) };
    (!address.is_null()).then_some(address)
}

/// A function of the library, and what turns arguments into its own.
///
/// # Errors
/// NVML_ERROR_NOT_SUPPORTED where there is no library, or it lacks the function.
pub(crate) fn function(name: &CStr) -> Result<(*mut c_void, Translator), nvmlReturn_t> {
    let facts = state::facts()?;
    let real = real().ok_or(nvmlReturn_t::ERROR_NOT_SUPPORTED)?;
    // SAFETY: a library that `real` gives is never closed.
    let address = unsafe { symbol(real.library, name) };
    let address = address.ok_or(nvmlReturn_t::ERROR_NOT_SUPPORTED)?;
    Ok((address, Translator { real, facts }))
}

/// Turns the program's arguments into the driver's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Translator {
    real: &'static DriverNvml,
    facts: &'static Facts,
}

/// An argument that is passed on.
pub(crate) trait Argument: Copy {
    /// What of it can be refused before the library is looked for.
    fn check(self) -> Result<(), nvmlReturn_t> {
        Ok(())
    }

    /// What the driver calls it.
    fn translated(self, _: Translator) -> Result<Self, nvmlReturn_t> {
        Ok(self)
    }
}

impl Argument for u32 {}
impl Argument for i32 {}
impl Argument for u64 {}
impl<T> Argument for *mut T {}

impl Argument for nvmlDevice_t {
    fn check(self) -> Result<(), nvmlReturn_t> {
        state::facts()?.device(self).map(drop)
    }

    fn translated(self, translator: Translator) -> Result<Self, nvmlReturn_t> {
        let (_, device) = translator.facts.device(self)?;
        let uuid = CString::new(&*device.listed.uuid);
        let uuid = uuid.map_err(|_| nvmlReturn_t::ERROR_UNKNOWN)?;
        let mut handle = Self(std::ptr::null_mut());
        // SAFETY: a text with its NUL, and a place for a handle.
        let code = unsafe { (translator.real.by_uuid)(uuid.as_ptr(), &raw mut handle) };
        match code {
            nvmlReturn_t::SUCCESS => Ok(handle),
            // The daemon's device is none of the driver's: the software GPU beside real ones.
            nvmlReturn_t::ERROR_NOT_FOUND | nvmlReturn_t::ERROR_INVALID_ARGUMENT => {
                Err(nvmlReturn_t::ERROR_NOT_SUPPORTED)
            }
            code => Err(code),
        }
    }
}

/// A function's name, as the loader wants it.
macro_rules! c_name {
    ($name:ident) => {
        const {
            match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!("a name has no NUL"),
            }
        }
    };
}
pub(crate) use c_name;

/// Calls a function of the driver's own library with these arguments.
macro_rules! ask {
    ($name:expr, $($argument:ident: $type:ty),*) => {{
        $( <$type as $crate::sensors::Argument>::check($argument)?; )*
        let (address, translator) = $crate::sensors::function($name)?;
        $( let $argument = <$type as $crate::sensors::Argument>::translated($argument, translator)?; )*
        type Function = unsafe extern "C" fn($($type),*) -> cuda_abi::nvml::nvmlReturn_t;
        // SAFETY: the library's function of this name takes these parameters, by NVIDIA's documentation.
        let function = unsafe { std::mem::transmute::<*mut std::ffi::c_void, Function>(address) };
        // SAFETY: the program's own promise about its pointers, and handles of the library's.
        match unsafe { function($($argument),*) } {
            cuda_abi::nvml::nvmlReturn_t::SUCCESS => Ok(()),
            code => Err(code),
        }
    }};
}
pub(crate) use ask;
