//! Specifications of the Container Device Interface: what a container needs to be a client.
//!
//! A client needs the daemon's socket directory and our library, and no device node; so a device here
//! is two mounts and a few variables. The version written is 0.5.0: it is the oldest that lets a
//! device's name begin with a digit, Debian 12's podman takes nothing newer, and an unknown version or
//! field would make the whole file void without a word.
//!
//! Called by `openmps cdi` and by the device plugin's answers; Cloudpods' containers take its paths. Must not know
//! a container engine, nor where the library really lies: the offer says it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::gpus::{Gpu, MOST_SLICES, Slice};

/// What containers ask for: `openmps.org/gpu=0`.
pub const KIND: &str = "openmps.org/gpu";

/// Where generated specifications belong.
pub const DEFAULT_OUTPUT: &str = "/var/run/cdi/openmps.json";

/// The version of the specification's form.
const VERSION: &str = "0.5.0";

/// Where a container has the daemon's directory: where programs look without being told.
pub const PIPE_INSIDE: &str = "/tmp/nvidia-mps";

/// Where a container has our library.
pub const LIBRARY_INSIDE: &str = "/usr/local/openmps/lib";

/// The loader's path in a container. Our folder comes first; the others are those that CUDA's images
/// set, since a variable that is set here replaces the image's.
pub const LOADER_PATH: &str =
    "/usr/local/openmps/lib:/usr/local/nvidia/lib:/usr/local/nvidia/lib64";

/// What cannot be specified.
#[derive(Debug, thiserror::Error)]
pub enum CdiError {
    /// There is nothing to offer.
    #[error("there is no GPU to write a specification for")]
    NoGpu,
    /// A device cannot be divided so.
    #[error(
        "--replicas {replicas}: GPU {gpu} has {mib} MiB and 100 percent of threads, which are no \
         {replicas} parts; the most is {MOST_SLICES}"
    )]
    Replicas {
        /// So many were asked for.
        replicas: u32,
        /// The device.
        gpu: u32,
        /// Its memory.
        mib: u64,
    },
    /// A path that a mount cannot have.
    #[error("{0} is not an absolute path in UTF-8")]
    Path(PathBuf),
}

/// What a specification is made from.
#[derive(Debug)]
pub struct Offer<'a> {
    /// The devices.
    pub gpus: &'a [Gpu],
    /// The daemon's pipe directory on the host.
    pub pipe: &'a Path,
    /// The folder with our library on the host.
    pub library: &'a Path,
    /// Into how many parts each device is divided; 0 for none.
    pub replicas: u32,
    /// Directories of groups, by the name of the part that each is for. A part without one is held to
    /// its limits by variables, for each process alone.
    pub groups: &'a BTreeMap<String, PathBuf>,
}

/// A specification.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Spec {
    cdi_version: &'static str,
    kind: &'static str,
    devices: Vec<Device>,
    container_edits: Edits,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Device {
    name: String,
    container_edits: Edits,
}

#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Edits {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    env: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    mounts: Vec<Mount>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Mount {
    host_path: String,
    container_path: String,
    options: Vec<&'static str>,
}

impl Mount {
    fn read_only(host: &Path, inside: &str) -> Result<Self, CdiError> {
        let bad = || CdiError::Path(host.to_owned());
        let text = host.to_str().filter(|_| host.is_absolute());
        Ok(Self {
            host_path: text.ok_or_else(bad)?.to_owned(),
            container_path: inside.to_owned(),
            // A socket on a read-only mount can be connected to; nothing else is wanted there.
            options: vec!["ro", "nosuid", "nodev", "bind"],
        })
    }
}

/// One of the equal parts of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DevicePart {
    /// What containers ask for: `<uuid>::<n>`.
    pub name: String,
    /// What the daemon's group for it is called. Short, since it is in a socket's path.
    pub group: String,
    /// The device.
    pub uuid: String,
    /// What it has.
    pub slice: Slice,
}

/// All parts of all devices.
///
/// # Errors
/// When a device cannot be divided so.
pub fn parts(gpus: &[Gpu], replicas: u32) -> Result<Vec<DevicePart>, CdiError> {
    let mut parts = Vec::new();
    for gpu in gpus {
        let slice = Slice::of(gpu.mib(), replicas).ok_or(CdiError::Replicas {
            replicas,
            gpu: gpu.index,
            mib: gpu.mib(),
        })?;
        let text = gpu.uuid.trim_start_matches("GPU-");
        let first = text.split('-').next().unwrap_or(text);
        parts.extend((0..replicas).map(|part| DevicePart {
            name: format!("{}::{part}", gpu.uuid),
            group: format!("cdi-{first}-{part}"),
            uuid: gpu.uuid.clone(),
            slice,
        }));
    }
    Ok(parts)
}

impl Spec {
    /// Writes down what is offered: each device under its number and its UUID, each part of it as
    /// `<uuid>::<n>`, and `all`.
    ///
    /// # Errors
    /// When there is nothing to offer or it cannot be divided so.
    pub fn new(offer: &Offer<'_>) -> Result<Self, CdiError> {
        if offer.gpus.is_empty() {
            return Err(CdiError::NoGpu);
        }
        let mut devices = Vec::new();
        let mut add = |name: String, env: Vec<String>, pipe: &Path| {
            devices.push(Device {
                name,
                container_edits: Edits {
                    env,
                    mounts: vec![Mount::read_only(pipe, PIPE_INSIDE)?],
                },
            });
            Ok::<(), CdiError>(())
        };
        let visible = |gpu: &Gpu| format!("CUDA_VISIBLE_DEVICES={}", gpu.uuid);
        for gpu in offer.gpus {
            for name in [gpu.index.to_string(), gpu.uuid.clone()] {
                add(name, vec![visible(gpu)], offer.pipe)?;
            }
            if offer.replicas == 0 {
                continue;
            }
            for part in parts(std::slice::from_ref(gpu), offer.replicas)? {
                let mut env = vec![visible(gpu)];
                let pipe = match offer.groups.get(&part.name) {
                    // The group's limits are the daemon's: nothing in the container can widen them.
                    Some(group) => group.as_path(),
                    None => {
                        let Slice { mib, percentage } = part.slice;
                        let uuid = &part.uuid;
                        env.push(format!("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT={uuid}={mib}M"));
                        env.push(format!("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE={percentage}"));
                        offer.pipe
                    }
                };
                add(part.name, env, pipe)?;
            }
        }
        add("all".into(), Vec::new(), offer.pipe)?;
        Ok(Self {
            cdi_version: VERSION,
            kind: KIND,
            devices,
            container_edits: Edits {
                env: vec![
                    format!("CUDA_MPS_PIPE_DIRECTORY={PIPE_INSIDE}"),
                    format!("LD_LIBRARY_PATH={LOADER_PATH}"),
                    // Keeps NVIDIA's runtime, where it is the default one, from bringing its own.
                    "NVIDIA_VISIBLE_DEVICES=void".into(),
                ],
                mounts: vec![Mount::read_only(offer.library, LIBRARY_INSIDE)?],
            },
        })
    }

    /// A single device with these variables and mounts (host path, path inside), for one container.
    ///
    /// # Errors
    /// When a path is not absolute.
    pub fn of_one(
        name: &str,
        env: Vec<String>,
        mounts: &[(String, String)],
    ) -> Result<Self, CdiError> {
        let mounts = mounts
            .iter()
            .map(|(host, inside)| Mount::read_only(Path::new(host), inside))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            cdi_version: VERSION,
            kind: KIND,
            devices: vec![Device {
                name: name.to_owned(),
                container_edits: Edits { env, mounts },
            }],
            container_edits: Edits::default(),
        })
    }

    /// The names that containers can ask for.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.devices.iter().map(|device| device.name.as_str())
    }

    /// The file's content.
    #[must_use]
    pub fn json(&self) -> String {
        // A struct of strings and lists always serializes.
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpus::MIB;
    use serde_json::{Value, json};

    fn gpus() -> Vec<Gpu> {
        vec![Gpu {
            uuid: "GPU-6f3dd1e3-4d9c-4a5a-8b55-0f7f4f9b1a0c".into(),
            name: "Tesla T4".into(),
            memory: 15360 * MIB,
            ..Gpu::default()
        }]
    }

    fn offer<'a>(
        gpus: &'a [Gpu],
        groups: &'a BTreeMap<String, PathBuf>,
        replicas: u32,
    ) -> Offer<'a> {
        Offer {
            gpus,
            pipe: Path::new("/tmp/nvidia-mps"),
            library: Path::new("/var/lib/openmps/lib"),
            replicas,
            groups,
        }
    }

    #[test]
    fn a_specification_names_each_device_and_each_part() {
        let (gpus, mut groups) = (gpus(), BTreeMap::new());
        let part = "GPU-6f3dd1e3-4d9c-4a5a-8b55-0f7f4f9b1a0c::1";
        groups.insert(part.to_owned(), PathBuf::from("/tmp/nvidia-mps/groups/one"));
        let spec = Spec::new(&offer(&gpus, &groups, 2)).unwrap();
        let names: Vec<&str> = spec.names().collect();
        let uuid = gpus[0].uuid.as_str();
        assert_eq!(
            names,
            [
                "0",
                uuid,
                &format!("{uuid}::0"),
                &format!("{uuid}::1"),
                "all"
            ]
        );
        let value: Value = serde_json::from_str(&spec.json()).unwrap();
        assert_eq!(value["cdiVersion"], "0.5.0");
        assert_eq!(value["kind"], "openmps.org/gpu");
        assert_eq!(
            value["containerEdits"]["env"],
            json!([
                "CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps",
                "LD_LIBRARY_PATH=/usr/local/openmps/lib:/usr/local/nvidia/lib:/usr/local/nvidia/lib64",
                "NVIDIA_VISIBLE_DEVICES=void"
            ])
        );
        let edits = |at: usize| value["devices"][at]["containerEdits"].clone();
        // Limits of a part: by variables, or by its group's directory.
        assert_eq!(
            edits(2)["env"],
            json!([
                format!("CUDA_VISIBLE_DEVICES={uuid}"),
                format!("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT={uuid}=7680M"),
                "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50"
            ])
        );
        assert_eq!(edits(2)["mounts"][0]["hostPath"], "/tmp/nvidia-mps");
        assert_eq!(
            edits(3)["env"],
            json!([format!("CUDA_VISIBLE_DEVICES={uuid}")])
        );
        assert_eq!(
            edits(3)["mounts"][0]["hostPath"],
            "/tmp/nvidia-mps/groups/one"
        );
        assert_eq!(edits(4)["env"], Value::Null);
        assert!(!spec.json().contains("deviceNodes"));
    }

    #[test]
    fn what_cannot_be_offered_is_refused() {
        let (gpus, none) = (gpus(), BTreeMap::new());
        assert!(matches!(
            Spec::new(&offer(&[], &none, 0)),
            Err(CdiError::NoGpu)
        ));
        assert!(Spec::new(&offer(&gpus, &none, 100)).is_ok());
        let error = Spec::new(&offer(&gpus, &none, 101))
            .unwrap_err()
            .to_string();
        assert!(error.contains("15360 MiB"), "{error}");
        let relative = Offer {
            pipe: Path::new("pipe"),
            ..offer(&gpus, &none, 0)
        };
        assert!(matches!(Spec::new(&relative), Err(CdiError::Path(_))));
    }
}
