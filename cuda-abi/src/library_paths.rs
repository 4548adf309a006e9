//! Where the driver's libraries are on a machine that has them.
//!
//! `engine-nvidia` and `nvml` look there, and nowhere else. Opens nothing.
//!
//! Must not know which of them a program needs, nor whether there is a driver.

use std::path::{Path, PathBuf};

/// Where distributions, NVIDIA's installer, container runtimes and WSL put them.
const DIRECTORIES: &[&str] = &[
    "/usr/lib/x86_64-linux-gnu",
    "/lib/x86_64-linux-gnu",
    "/usr/lib64",
    "/usr/lib64/nvidia",
    "/usr/lib",
    "/usr/local/nvidia/lib64",
    "/usr/lib/wsl/lib",
    "/run/opengl-driver/lib",
    "/opt/nvidia/lib64",
];

/// Absolute paths at which a library of the driver's may be, best first.
#[must_use]
pub fn of(library: &str) -> Vec<PathBuf> {
    let directories = DIRECTORIES.iter();
    directories
        .map(|directory| Path::new(directory).join(library))
        .collect()
}
