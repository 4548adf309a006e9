//! Who may have a context on a device. The software GPU's devices are named by their numbers, NVIDIA's
//! by their UUIDs.
//!
//! Called by `machine`. Must not know who has a context.

use anyhow::{Context, Result};
use control::compute_mode::{self, DeviceModes, SoftwareModes};
use platform::gpus::{ComputeMode, Gpu};

use crate::engines;

/// Whether a device is one of the software GPU's.
pub fn is_software(gpu: &Gpu) -> bool {
    compute_mode::is_software_name(&gpu.name)
}

/// The mode of a device; of a card, the default one where it cannot be found out.
pub fn get(gpu: &Gpu) -> ComputeMode {
    if is_software(gpu) {
        let mode = SoftwareModes::new(Vec::new()).in_force(number(gpu));
        return ComputeMode::numbered(mode).unwrap_or_default();
    }
    of_nvidia(gpu).unwrap_or_default()
}

/// The number that a device of the software GPU has among all of them. It is also its place on the bus;
/// its index is another one where a daemon has only some.
fn number(gpu: &Gpu) -> u32 {
    gpu.pci.device
}

fn of_nvidia(gpu: &Gpu) -> Option<ComputeMode> {
    let modes = engines::open_modes().ok()??.modes().ok()?;
    let (_, number) = modes.into_iter().find(|(uuid, _)| *uuid == gpu.uuid)?;
    ComputeMode::numbered(number)
}

/// Sets the mode of a device.
pub fn set(gpu: &Gpu, mode: ComputeMode) -> Result<()> {
    if is_software(gpu) {
        return SoftwareModes::new(Vec::new())
            .set(&number(gpu).to_string(), mode.number())
            .map_err(anyhow::Error::msg);
    }
    let modes = engines::open_modes()
        .map_err(anyhow::Error::msg)?
        .context("there is no device whose mode could be set")?;
    modes
        .set(&gpu.uuid, mode.number())
        .map_err(anyhow::Error::msg)
}
