//! What the daemon's image says when it starts, in the order and the words that people know.
//!
//! Called by `openmps compose`. Must not know which daemon says it, nor where it is written.

use crate::gpus::Gpu;

/// The lines before the daemon's own. `shared_memory` is how large /dev/shm is, if there is one;
/// `percentage` is CUDA_MPS_ACTIVE_THREAD_PERCENTAGE.
#[must_use]
pub fn log_header(shared_memory: Option<u64>, percentage: Option<&str>, gpus: &[Gpu]) -> String {
    let mut text = String::new();
    if let Some(bytes) = shared_memory {
        text += &format!("Size of /dev/shm: {bytes} bytes\n");
    }
    text += &format!(
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE: {}\n",
        percentage.unwrap_or_default()
    );
    text += "Available GPUs:\n";
    for gpu in gpus {
        text += &format!(
            "    - {}, {}, {}, {}\n",
            gpu.index, gpu.pci, gpu.name, gpu.mode
        );
    }
    text += "Starting NVIDIA MPS control daemon...\n";
    text
}

/// Why NVIDIA_VISIBLE_DEVICES leaves a container no devices.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VisibleError {
    /// It says so.
    #[error("NVIDIA_VISIBLE_DEVICES=none leaves the daemon no GPU: name one, or say all")]
    None,
    /// It names a device that is not there.
    #[error(
        "NVIDIA_VISIBLE_DEVICES={variable}: there is no GPU {name:?}; there are {count} GPUs, named from 0 or by UUID"
    )]
    Unknown {
        /// What it holds.
        variable: String,
        /// The name that is none's.
        name: String,
        /// How many devices there are.
        count: usize,
    },
}

/// Those of the software GPU's devices that `NVIDIA_VISIBLE_DEVICES` leaves to a container, by indices or
/// UUIDs, as NVIDIA's container runtime does with cards; numbered anew, as they are in the container.
/// `void` and nothing ask that runtime to do nothing, and leave all.
///
/// # Errors
/// When it names one that is not there, or none at all.
pub fn visible(gpus: Vec<Gpu>, variable: Option<&str>) -> Result<Vec<Gpu>, VisibleError> {
    let text = variable.unwrap_or("all").trim();
    match text {
        "all" | "" | "void" => return Ok(gpus),
        "none" => return Err(VisibleError::None),
        _ => {}
    }
    let mut shown = Vec::new();
    for word in text.split(',').map(str::trim) {
        match gpus.iter().find(|gpu| gpu.is_named(word)) {
            Some(gpu) if shown.iter().any(|it: &Gpu| it.uuid == gpu.uuid) => {}
            Some(gpu) => shown.push(gpu.clone()),
            None => {
                return Err(VisibleError::Unknown {
                    variable: text.to_owned(),
                    name: word.to_owned(),
                    count: gpus.len(),
                });
            }
        }
    }
    for (index, gpu) in (0..).zip(&mut shown) {
        gpu.index = index;
    }
    Ok(shown)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpus::{ComputeMode, PciAddress};

    fn gpu() -> Gpu {
        Gpu {
            name: "Tesla T4".into(),
            uuid: "GPU-1".into(),
            pci: PciAddress {
                domain: 0,
                bus: 0,
                device: 0x1e,
            },
            mode: ComputeMode::ExclusiveProcess,
            ..Gpu::default()
        }
    }

    #[test]
    fn the_greeting_is_the_walk_throughs() {
        assert_eq!(
            log_header(Some(67_108_864), Some("33"), &[gpu()]),
            "Size of /dev/shm: 67108864 bytes\n\
             CUDA_MPS_ACTIVE_THREAD_PERCENTAGE: 33\n\
             Available GPUs:\n\
             \x20   - 0, 00000000:00:1E.0, Tesla T4, Exclusive_Process\n\
             Starting NVIDIA MPS control daemon...\n"
        );
    }

    #[test]
    fn devices_are_chosen_by_the_variable() {
        let all = || vec![gpu()];
        for everything in [None, Some("all"), Some(""), Some("void"), Some("GPU-1, 0")] {
            assert_eq!(visible(all(), everything).unwrap().len(), 1);
        }
        let second = Gpu {
            index: 1,
            uuid: "GPU-2".into(),
            ..gpu()
        };
        let some = visible(vec![gpu(), second], Some("1")).unwrap();
        assert_eq!((some.len(), some[0].index), (1, 0));
        assert_eq!(some[0].uuid, "GPU-2");
        assert_eq!(visible(all(), Some("none")), Err(VisibleError::None));
        let error = visible(all(), Some("0,3")).unwrap_err().to_string();
        assert!(error.contains("\"3\""), "{error}");
    }
}
