//! Who may have a context on a device. The software GPU's devices are named by their numbers, NVIDIA's
//! by their UUIDs.

use anyhow::{Context, Result};
use control::compute_mode::{DeviceModes, SoftwareModes};
use platform::gpus::{ComputeMode, Gpu};

use crate::engines;

/// The software GPU's name.
const SOFTWARE: &str = "OpenMPS software GPU";

pub fn is_software(gpu: &Gpu) -> bool {
    gpu.name == SOFTWARE
}

/// The mode of a device; the default one where it cannot be found out.
pub fn get(gpu: &Gpu) -> ComputeMode {
    if is_software(gpu) {
        let number = SoftwareModes::new(0).get(gpu.index);
        return ComputeMode::numbered(number).unwrap_or_default();
    }
    of_nvidia(gpu).unwrap_or_default()
}

fn of_nvidia(gpu: &Gpu) -> Option<ComputeMode> {
    let modes = engines::open_modes().ok()??.modes().ok()?;
    let (_, number) = modes.into_iter().find(|(uuid, _)| *uuid == gpu.uuid)?;
    ComputeMode::numbered(number)
}

/// Sets the mode of a device.
pub fn set(gpu: &Gpu, mode: ComputeMode) -> Result<()> {
    if is_software(gpu) {
        let name = gpu.index.to_string();
        return SoftwareModes::new(0)
            .set(&name, mode.number())
            .map_err(anyhow::Error::msg);
    }
    let modes = engines::open_modes()
        .map_err(anyhow::Error::msg)?
        .context("there is no device whose mode could be set")?;
    modes
        .set(&gpu.uuid, mode.number())
        .map_err(anyhow::Error::msg)
}
