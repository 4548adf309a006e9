//! What a container gets with a grant: the variables of its environment, and what is mounted into it.
//!
//! Called by the device plugin. Must not know who has granted what, nor how it reaches the kubelet.

use std::collections::BTreeMap;
use std::path::Path;

use super::resources::{Grant, Mode};
use crate::cdi::{LIBRARY_INSIDE, LOADER_PATH, PIPE_INSIDE};
use crate::gpus::Gpu;

/// Where a container has the socket directory in a mode.
#[must_use]
fn pipe_inside(mode: &Mode) -> String {
    match mode {
        // Where NVIDIA's plugin has it, for those who look at it.
        Mode::Nvidia(sharing) => format!("/mps/{}/pipe", sharing.resource),
        _ => PIPE_INSIDE.to_owned(),
    }
}

/// The variables that a container gets with a grant. `of_pod` are the units of all its pod's containers, as
/// far as they are known.
#[must_use]
pub fn environment(
    mode: &Mode,
    grant: &Grant,
    of_pod: u64,
    gpus: &[Gpu],
) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let mut set = |name: &str, value: String| all.insert(name.to_owned(), value);
    if let (None, Some(percentage)) = (grant.gpus.first(), grant.percentage) {
        set("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", percentage.to_string());
        return all;
    }
    let seen = || grant.gpus.iter().filter_map(|&place| gpus.get(place));
    let uuids: Vec<&str> = seen().map(|gpu| gpu.uuid.as_str()).collect();
    let limits = grant.mib.iter();
    let limits: Vec<String> = limits
        .filter_map(|(&place, mib)| Some(format!("{}={mib}M", gpus.get(place)?.uuid)))
        .collect();
    set("CUDA_MPS_PIPE_DIRECTORY", pipe_inside(mode));
    set("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", limits.join(","));
    set("CUDA_VISIBLE_DEVICES", uuids.join(","));
    set("LD_LIBRARY_PATH", LOADER_PATH.to_owned());
    // Keeps NVIDIA's runtime, where it is the default one, from bringing its own.
    set("NVIDIA_VISIBLE_DEVICES", "void".to_owned());
    if let Some(percentage) = grant.percentage {
        set("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", percentage.to_string());
    }
    if let (Mode::Aliyun { unit }, Some(gpu)) = (mode, seen().next()) {
        set("ALIYUN_COM_GPU_MEM_IDX", gpu.index.to_string());
        set("ALIYUN_COM_GPU_MEM_POD", of_pod.to_string());
        set("ALIYUN_COM_GPU_MEM_CONTAINER", grant.units.to_string());
        set(
            "ALIYUN_COM_GPU_MEM_DEV",
            (gpu.mib() / unit.mib()).to_string(),
        );
    }
    all
}

/// What is mounted into a container: host path, path inside.
#[must_use]
pub fn mounts(mode: &Mode, group: &Path, library: &Path) -> [(String, String); 2] {
    let text = |path: &Path| path.to_string_lossy().into_owned();
    [
        (text(group), pipe_inside(mode)),
        (text(library), LIBRARY_INSIDE.to_owned()),
    ]
}
