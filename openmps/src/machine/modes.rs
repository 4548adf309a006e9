//! Who may have a context on a device, for the software GPU: a file says so, since its devices are
//! wherever a server runs. NVIDIA's devices are asked by NVIDIA's own program, where there is one.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use control::compute_mode::{DeviceModes, SoftwareModes};
use platform::gpus::{ComputeMode, Gpu};

/// NVIDIA's own program, by its place: our own may be what a search finds.
const NVIDIA_SMI: &str = "/usr/bin/nvidia-smi";

/// The software GPU's name.
const SOFTWARE: &str = "OpenMPS software GPU";

/// The mode of a device.
pub fn get(gpu: &Gpu) -> ComputeMode {
    if gpu.name != SOFTWARE {
        return of_nvidia(gpu).unwrap_or_default();
    }
    let modes = SoftwareModes::new(0);
    ComputeMode::numbered(modes.get(gpu.index)).unwrap_or_default()
}

/// Sets the mode of a device.
pub fn set(gpu: &Gpu, mode: ComputeMode) -> Result<()> {
    if gpu.name != SOFTWARE {
        ensure!(is_nvidias(), "{NVIDIA_SMI} is not here to set it");
        let output = Command::new(NVIDIA_SMI)
            .args(["-i", &gpu.uuid, "-c", &mode.number().to_string()])
            .output()
            .context(NVIDIA_SMI)?;
        let said = String::from_utf8_lossy(&output.stdout);
        ensure!(output.status.success(), "{NVIDIA_SMI}: {}", said.trim());
        return Ok(());
    }
    SoftwareModes::new(0)
        .set(&gpu.index.to_string(), mode.number())
        .map_err(anyhow::Error::msg)
}

/// Whether NVIDIA's program is there, and is not this one under its name.
fn is_nvidias() -> bool {
    let (Ok(theirs), Ok(ours)) = (
        fs::canonicalize(NVIDIA_SMI),
        fs::read_link("/proc/self/exe"),
    ) else {
        return false;
    };
    theirs != ours
}

fn of_nvidia(gpu: &Gpu) -> Option<ComputeMode> {
    if !is_nvidias() {
        return None;
    }
    let output = Command::new(NVIDIA_SMI)
        .args([
            "-i",
            &gpu.uuid,
            "--query-gpu=compute_mode",
            "--format=csv,noheader",
        ])
        .output()
        .ok()?;
    String::from_utf8_lossy(&output.stdout).trim().parse().ok()
}
