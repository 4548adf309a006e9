//! The library, the driver and the machine.
//!
//! Owns nothing: what is kept between calls is in `state`. Called by the exports. Must not know clients.

use std::path::PathBuf;

use cuda_abi::nvml::nvmlReturn_t;
use cuda_abi::proc_address::DRIVER_VERSION;

use super::version_is;
use crate::params::{Out, TextOut};
use crate::sensors;
use crate::state;
use crate::structs::{nvmlConfComputeSystemState_t, nvmlSystemConfComputeSettings_t, version};

/// All flags that nvmlInitWithFlags knows: devices may be missing, or may fail.
const INIT_FLAGS: u32 = 7;

pub(crate) fn nvmlInit() -> Result<(), nvmlReturn_t> {
    state::init()
}

pub(crate) fn nvmlInit_v2() -> Result<(), nvmlReturn_t> {
    state::init()
}

pub(crate) fn nvmlInitWithFlags(flags: u32) -> Result<(), nvmlReturn_t> {
    if flags & !INIT_FLAGS != 0 {
        return Err(nvmlReturn_t::ERROR_INVALID_ARGUMENT);
    }
    state::init()
}

pub(crate) fn nvmlShutdown() -> Result<(), nvmlReturn_t> {
    state::shutdown()
}

pub(crate) fn nvmlSystemGetDriverVersion(text: TextOut, room: u32) -> Result<(), nvmlReturn_t> {
    let driver = &state::facts()?.driver;
    if !driver.is_empty() {
        return text.set(room, driver);
    }
    let pointer = text.pointer();
    sensors::ask!(c"nvmlSystemGetDriverVersion", pointer: *mut std::ffi::c_char, room: u32)
}

/// CUDA's major version, and the version of this library.
pub(crate) fn nvmlSystemGetNVMLVersion(text: TextOut, room: u32) -> Result<(), nvmlReturn_t> {
    let version = format!("{}.{}", DRIVER_VERSION / 1000, env!("CARGO_PKG_VERSION"));
    text.set(room, &version)
}

pub(crate) fn nvmlSystemGetCudaDriverVersion(version: Out<i32>) -> Result<(), nvmlReturn_t> {
    version.set(DRIVER_VERSION)
}

pub(crate) fn nvmlSystemGetCudaDriverVersion_v2(version: Out<i32>) -> Result<(), nvmlReturn_t> {
    version.set(DRIVER_VERSION)
}

/// What /proc tells this process of another, and so no more than the kernel allows.
pub(crate) fn nvmlSystemGetProcessName(
    pid: u32,
    name: TextOut,
    room: u32,
) -> Result<(), nvmlReturn_t> {
    state::facts()?;
    let process = PathBuf::from(format!("/proc/{pid}"));
    let command = std::fs::read(process.join("cmdline")).map_err(|error| match error.kind() {
        std::io::ErrorKind::PermissionDenied => nvmlReturn_t::ERROR_NO_PERMISSION,
        _ => nvmlReturn_t::ERROR_NOT_FOUND,
    })?;
    let program = command.split(|byte| *byte == 0).next().unwrap_or_default();
    let text = String::from_utf8_lossy(program);
    name.set_beginning(room, &text)
}

/// Whether the machine keeps what devices compute from its operator. A software device does not.
pub(crate) fn nvmlSystemGetConfComputeState(
    state: Out<nvmlConfComputeSystemState_t>,
) -> Result<(), nvmlReturn_t> {
    state.required()?;
    if is_software()? {
        return state.set(nvmlConfComputeSystemState_t::default());
    }
    let pointer = state.pointer();
    sensors::ask!(c"nvmlSystemGetConfComputeState", pointer: *mut nvmlConfComputeSystemState_t)
}

pub(crate) fn nvmlSystemGetConfComputeSettings(
    settings: Out<nvmlSystemConfComputeSettings_t>,
) -> Result<(), nvmlReturn_t> {
    let is_software = is_software()?;
    let given = settings.get()?;
    version_is(given.version, version::<nvmlSystemConfComputeSettings_t>(1))?;
    if is_software {
        return settings.set(nvmlSystemConfComputeSettings_t {
            version: given.version,
            ..nvmlSystemConfComputeSettings_t::default()
        });
    }
    let pointer = settings.pointer();
    sensors::ask!(c"nvmlSystemGetConfComputeSettings", pointer: *mut nvmlSystemConfComputeSettings_t)
}

/// Whether all devices are programs.
fn is_software() -> Result<bool, nvmlReturn_t> {
    Ok(state::facts()?
        .devices
        .iter()
        .all(|device| device.is_software))
}
