//! Memory, as the client may have it.
//!
//! Owns nothing: it asks the daemon's view of the device, which has the client's limits in it. Called by the
//! exports. Must not know a quota from a device's size.

use cuda_abi::nvml::nvmlReturn_t;
use protocol::control_messages::ViewedDevice;

use super::version_is;
use crate::params::Out;
use crate::state;
use crate::structs::{nvmlDevice_t, nvmlMemory_t, nvmlMemory_v2_t, version};

fn of(device: nvmlDevice_t) -> Result<ViewedDevice, nvmlReturn_t> {
    let (_, device) = state::facts()?.device(device)?;
    let (mut view, at) = state::current_view(device)?;
    Ok(view.devices.swap_remove(at))
}

/// In this form what is neither used nor free counts as used.
pub(crate) fn nvmlDeviceGetMemoryInfo(
    device: nvmlDevice_t,
    memory: Out<nvmlMemory_t>,
) -> Result<(), nvmlReturn_t> {
    state::facts()?.device(device)?;
    memory.required()?;
    let viewed = of(device)?;
    memory.set(nvmlMemory_t {
        total: viewed.total,
        free: viewed.free,
        used: viewed.total.saturating_sub(viewed.free),
    })
}

/// In this form what the client could take, if others of its group had not, is reserved.
pub(crate) fn nvmlDeviceGetMemoryInfo_v2(
    device: nvmlDevice_t,
    memory: Out<nvmlMemory_v2_t>,
) -> Result<(), nvmlReturn_t> {
    state::facts()?.device(device)?;
    let given = memory.get()?;
    version_is(given.version, version::<nvmlMemory_v2_t>(2))?;
    let viewed = of(device)?;
    let rest = viewed.total.saturating_sub(viewed.used);
    memory.set(nvmlMemory_v2_t {
        version: given.version,
        total: viewed.total,
        reserved: rest.saturating_sub(viewed.free),
        free: viewed.free,
        used: viewed.used,
    })
}
