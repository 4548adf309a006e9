//! Who may have a context on a device, for the software GPU: a file says so, since its devices are
//! wherever a server runs. NVIDIA's devices are asked by NVIDIA's own program, where there is one.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use platform::gpus::{ComputeMode, Gpu};

/// Where the modes are kept, unless OPENMPS_STATE_DIRECTORY names another directory.
const DIRECTORY: &str = "/var/lib/openmps";

/// NVIDIA's own program, by its place: our own may be what a search finds.
const NVIDIA_SMI: &str = "/usr/bin/nvidia-smi";

/// The software GPU's name.
const SOFTWARE: &str = "OpenMPS software GPU";

fn file() -> PathBuf {
    let directory = std::env::var_os("OPENMPS_STATE_DIRECTORY").filter(|it| !it.is_empty());
    directory
        .map_or_else(|| PathBuf::from(DIRECTORY), PathBuf::from)
        .join("compute-modes.json")
}

fn all(path: &Path) -> BTreeMap<String, u32> {
    let text = fs::read(path).unwrap_or_default();
    serde_json::from_slice(&text).unwrap_or_default()
}

/// What a device is called in the file: by its number, since its UUID is another in each container.
fn key(gpu: &Gpu) -> String {
    gpu.index.to_string()
}

/// The mode of a device.
pub fn get(gpu: &Gpu) -> ComputeMode {
    if gpu.name != SOFTWARE {
        return of_nvidia(gpu).unwrap_or_default();
    }
    let modes = all(&file());
    let number = modes.get(&key(gpu)).copied().unwrap_or_default();
    ComputeMode::numbered(number).unwrap_or_default()
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
    let path = file();
    let directory = path.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(directory)
        .with_context(|| format!("cannot make the directory {}", directory.display()))?;
    let mut modes = all(&path);
    match mode {
        ComputeMode::Default => modes.remove(&key(gpu)),
        _ => modes.insert(key(gpu), mode.number()),
    };
    let new = path.with_extension("new");
    let written =
        fs::write(&new, serde_json::to_string(&modes)?).and_then(|()| fs::rename(&new, &path));
    if let Err(error) = written {
        bail!("cannot write {}: {error}", path.display());
    }
    Ok(())
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
