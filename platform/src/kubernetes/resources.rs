//! What a node offers, as lists of devices, and which limits a container gets for those it was given.
//!
//! A kubelet counts devices: a share of a GPU is offered as many devices, each for one unit of it. Their
//! ids are those that others use (`<uuid>-_-<n>` gpushare's, `<uuid>::<n>` NVIDIA's), because metrics
//! and tools take them apart. Called by the plugin and its `service`. Must not know which containers there are.

use std::collections::{BTreeMap, BTreeSet};

use super::memory_unit::MemoryUnit;
use super::sharing::Sharing;
use crate::gpus::{Gpu, Slice};

/// The resource of the `aliyun` mode.
pub const ALIYUN_MEMORY: &str = "aliyun.com/gpu-mem";

/// Memory in the `openmps` mode.
pub const OPENMPS_MEMORY: &str = "openmps.org/gpu-memory";

/// Percent of a GPU's multiprocessors in the `openmps` mode.
pub const OPENMPS_SHARE: &str = "openmps.org/gpu-share";

/// Bytes of the longest list of devices that a kubelet takes: gRPC's default limit of a message.
const LONGEST_LIST: usize = 4 << 20;

/// On which GPU of several a container's share is put.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// On the fullest that has room.
    #[default]
    Binpack,
    /// On the emptiest.
    Spread,
}

/// Whose resources a node offers.
#[derive(Clone, Debug)]
pub enum Mode {
    /// Alibaba's ACK and gpushare: `aliyun.com/gpu-mem`.
    Aliyun {
        /// What one of them is.
        unit: MemoryUnit,
    },
    /// NVIDIA's device plugin with `sharing.mps`.
    Nvidia(Sharing),
    /// Memory and multiprocessors, each asked for by itself.
    Openmps {
        /// What one of memory is.
        unit: MemoryUnit,
    },
}

/// What the devices of a resource are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// A unit of memory each.
    Memory(MemoryUnit),
    /// An equal part of a GPU each.
    Replica {
        /// Parts of each GPU.
        replicas: u32,
        /// Whether a container may have but one.
        only_one: bool,
    },
    /// A percent of a GPU's multiprocessors each, of whichever GPU the container's memory is on.
    Share,
}

/// A device as the kubelet sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfferedDevice {
    /// Its id, of at most 63 characters.
    pub id: String,
    /// Which GPU it is of, as a place in the list of GPUs; None for a share, which is of any.
    pub gpu: Option<usize>,
}

/// A resource that the node offers.
#[derive(Clone, Debug)]
pub struct Resource {
    /// As pods ask for it.
    pub name: String,
    /// The file name of the plugin's socket.
    pub socket: String,
    /// What its devices are.
    pub kind: DeviceKind,
    /// Its devices.
    pub devices: Vec<OfferedDevice>,
    by_id: BTreeMap<String, usize>,
}

/// What cannot be offered or given, in words that a pod's events show.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResourceError {
    /// No GPU.
    #[error(
        "this node has no GPU: the device plugin's DaemonSet selects nodes by their labels; take the \
         label from this node, or look why its daemon sees no device (openmps doctor)"
    )]
    NoGpu,
    /// A GPU with less memory than one unit.
    #[error("GPU {uuid} has {mib} MiB, less than one {unit}: use --memory-unit=MiB")]
    TooSmall {
        /// The GPU.
        uuid: String,
        /// Its memory.
        mib: u64,
        /// The unit.
        unit: MemoryUnit,
    },
    /// A list that no kubelet takes.
    #[error(
        "{count} devices of {name} are more than a kubelet takes in one message: use \
         --memory-unit=GiB"
    )]
    TooMany {
        /// How many.
        count: usize,
        /// The resource.
        name: String,
    },
    /// A part of a GPU would be nothing.
    #[error(
        "{replicas} parts of GPU {uuid} with {mib} MiB would have nothing each: fewer replicas"
    )]
    TooFine {
        /// Parts.
        replicas: u32,
        /// The GPU.
        uuid: String,
        /// Its memory.
        mib: u64,
    },
    /// A device that was never offered.
    #[error("{id} is not a device of {name}")]
    Unknown {
        /// The id.
        id: String,
        /// The resource.
        name: String,
    },
    /// Nothing was asked for.
    #[error("no device of {0} is asked for")]
    Nothing(String),
    /// Units of several GPUs.
    #[error(
        "no-gpu-has-{units}{unit}-to-run: what is free is on several GPUs, and a container's memory \
         is on one"
    )]
    Scattered {
        /// Units.
        units: usize,
        /// Of what.
        unit: MemoryUnit,
    },
    /// More than one replica.
    #[error("maximum request size for shared resources is 1; found {0}")]
    OnlyOne(usize),
}

/// What a container gets for the devices that it was given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grant {
    /// GPUs that it sees, as places in the list of GPUs.
    pub gpus: BTreeSet<usize>,
    /// MiB of memory, by the place of the GPU.
    pub mib: BTreeMap<usize, u64>,
    /// Percent of their multiprocessors.
    pub percentage: Option<u32>,
    /// How many devices it was given.
    pub units: usize,
}

impl Mode {
    /// The mode's word in names of groups.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Aliyun { .. } => "aliyun",
            Self::Nvidia(_) => "nvidia",
            Self::Openmps { .. } => "openmps",
        }
    }

    /// What a node with these GPUs offers.
    ///
    /// # Errors
    /// When there is no GPU, or they cannot be offered so.
    pub fn resources(&self, gpus: &[Gpu]) -> Result<Vec<Resource>, ResourceError> {
        if gpus.is_empty() {
            return Err(ResourceError::NoGpu);
        }
        match self {
            Self::Aliyun { unit } => {
                let kind = DeviceKind::Memory(*unit);
                let devices = memory_devices(gpus, *unit)?;
                Ok(vec![Resource::new(
                    ALIYUN_MEMORY,
                    "aliyungpushare.sock",
                    kind,
                    devices,
                )?])
            }
            Self::Nvidia(sharing) => {
                let replicas = sharing.replicas;
                for gpu in gpus {
                    slice(gpu, replicas)?;
                }
                let kind = DeviceKind::Replica {
                    replicas,
                    only_one: sharing.only_one,
                };
                let devices = of_each(gpus, |gpu| (u64::from(replicas), format!("{}::", gpu.uuid)));
                let socket = match sharing.resource.rsplit_once('/') {
                    Some((_, "gpu")) | None => "nvidia-gpu.sock".to_owned(),
                    Some((_, name)) => format!("nvidia-{name}.sock"),
                };
                Ok(vec![Resource::new(
                    &sharing.resource,
                    &socket,
                    kind,
                    devices,
                )?])
            }
            Self::Openmps { unit } => {
                let memory = memory_devices(gpus, *unit)?;
                let shares = (0..gpus.len() * 100).map(|number| OfferedDevice {
                    id: format!("share-{number}"),
                    gpu: None,
                });
                Ok(vec![
                    Resource::new(
                        OPENMPS_MEMORY,
                        "openmps-gpu-memory.sock",
                        DeviceKind::Memory(*unit),
                        memory,
                    )?,
                    Resource::new(
                        OPENMPS_SHARE,
                        "openmps-gpu-share.sock",
                        DeviceKind::Share,
                        shares.collect(),
                    )?,
                ])
            }
        }
    }
}

fn memory_devices(gpus: &[Gpu], unit: MemoryUnit) -> Result<Vec<OfferedDevice>, ResourceError> {
    if let Some(gpu) = gpus.iter().find(|gpu| gpu.mib() < unit.mib()) {
        return Err(ResourceError::TooSmall {
            uuid: gpu.uuid.clone(),
            mib: gpu.mib(),
            unit,
        });
    }
    Ok(of_each(gpus, |gpu| {
        (gpu.mib() / unit.mib(), format!("{}-_-", gpu.uuid))
    }))
}

/// So many devices of each GPU, whose ids begin so.
fn of_each(gpus: &[Gpu], of: impl Fn(&Gpu) -> (u64, String)) -> Vec<OfferedDevice> {
    let mut devices = Vec::new();
    for (place, gpu) in gpus.iter().enumerate() {
        let (count, prefix) = of(gpu);
        devices.extend((0..count).map(|number| OfferedDevice {
            id: format!("{prefix}{number}"),
            gpu: Some(place),
        }));
    }
    devices
}

/// One of a GPU's parts. Beyond a hundred, each has one percent all the same.
fn slice(gpu: &Gpu, replicas: u32) -> Result<Slice, ResourceError> {
    let percentage = 100_u32.checked_div(replicas).unwrap_or(0).max(1);
    match gpu.mib().checked_div(u64::from(replicas)) {
        Some(mib) if mib > 0 => Ok(Slice { mib, percentage }),
        _ => Err(ResourceError::TooFine {
            replicas,
            uuid: gpu.uuid.clone(),
            mib: gpu.mib(),
        }),
    }
}

impl Resource {
    fn new(
        name: &str,
        socket: &str,
        kind: DeviceKind,
        devices: Vec<OfferedDevice>,
    ) -> Result<Self, ResourceError> {
        // Each has its id, its health and the lengths of both.
        let bytes: usize = devices.iter().map(|device| device.id.len() + 20).sum();
        if bytes > LONGEST_LIST {
            return Err(ResourceError::TooMany {
                count: devices.len(),
                name: name.to_owned(),
            });
        }
        let by_id = devices.iter().enumerate();
        let by_id = by_id
            .map(|(place, device)| (device.id.clone(), place))
            .collect();
        Ok(Self {
            name: name.to_owned(),
            socket: socket.to_owned(),
            kind,
            devices,
            by_id,
        })
    }

    /// The device with an id.
    ///
    /// # Errors
    /// When there is none.
    pub fn device(&self, id: &str) -> Result<&OfferedDevice, ResourceError> {
        let place = self.by_id.get(id);
        place
            .and_then(|&place| self.devices.get(place))
            .ok_or_else(|| ResourceError::Unknown {
                id: id.to_owned(),
                name: self.name.clone(),
            })
    }

    /// What a container gets for these devices.
    ///
    /// # Errors
    /// When they are none of ours, or too many, or of several GPUs where that cannot be.
    pub fn grant(&self, ids: &[String], gpus: &[Gpu]) -> Result<Grant, ResourceError> {
        if ids.is_empty() {
            return Err(ResourceError::Nothing(self.name.clone()));
        }
        let mut of_gpu: BTreeMap<usize, u32> = BTreeMap::new();
        for id in ids.iter().collect::<BTreeSet<_>>() {
            if let Some(gpu) = self.device(id)?.gpu {
                *of_gpu.entry(gpu).or_default() += 1;
            }
        }
        let units = ids.len();
        let gpus_of = |of_gpu: &BTreeMap<usize, u32>| of_gpu.keys().copied().collect();
        match self.kind {
            DeviceKind::Memory(unit) if of_gpu.len() > 1 => {
                Err(ResourceError::Scattered { units, unit })
            }
            DeviceKind::Memory(unit) => Ok(Grant {
                gpus: gpus_of(&of_gpu),
                mib: of_gpu
                    .iter()
                    .map(|(&gpu, &count)| (gpu, u64::from(count) * unit.mib()))
                    .collect(),
                percentage: None,
                units,
            }),
            DeviceKind::Replica { only_one: true, .. } if units > 1 => {
                Err(ResourceError::OnlyOne(units))
            }
            DeviceKind::Replica { replicas, .. } => {
                let mut mib = BTreeMap::new();
                let mut percentage = 0;
                for (&gpu, &count) in &of_gpu {
                    let Some(facts) = gpus.get(gpu) else {
                        continue;
                    };
                    let slice = slice(facts, replicas)?;
                    mib.insert(gpu, slice.mib * u64::from(count));
                    percentage = percentage.max(slice.percentage * count).min(100);
                }
                Ok(Grant {
                    gpus: gpus_of(&of_gpu),
                    mib,
                    percentage: Some(percentage),
                    units,
                })
            }
            DeviceKind::Share => Ok(Grant {
                percentage: Some(u32::try_from(units).unwrap_or(100).min(100)),
                units,
                ..Grant::default()
            }),
        }
    }

    /// Which of the free devices a container should have: those that must be among them, and for
    /// memory all of one GPU, if one has room.
    #[must_use]
    pub fn preferred(
        &self,
        free: &[String],
        must: &[String],
        count: usize,
        placement: Placement,
    ) -> Vec<String> {
        let mut by_gpu: BTreeMap<Option<usize>, Vec<&String>> = BTreeMap::new();
        for id in free.iter().filter(|id| !must.contains(id)) {
            if let Ok(device) = self.device(id) {
                by_gpu.entry(device.gpu).or_default().push(id);
            }
        }
        let mut chosen: Vec<String> = must.iter().take(count).cloned().collect();
        let must_gpu = must.iter().find_map(|id| self.device(id).ok()?.gpu);
        while chosen.len() < count {
            let missing = count - chosen.len();
            // A replica each time, so that several are of several GPUs; of memory, all at once.
            let at_once = if matches!(self.kind, DeviceKind::Replica { .. }) {
                1
            } else {
                missing
            };
            let room = |(_, ids): &(&Option<usize>, &Vec<&String>)| ids.len();
            let there = by_gpu.iter().filter(|(_, ids)| !ids.is_empty());
            let fitting = there.clone().filter(|(_, ids)| ids.len() >= at_once);
            let of_must = fitting
                .clone()
                .find(|(gpu, _)| must_gpu.is_some() && at_once > 1 && **gpu == must_gpu);
            let best = of_must
                .or_else(|| match placement {
                    Placement::Binpack => fitting.clone().min_by_key(room),
                    Placement::Spread => fitting.clone().rev().max_by_key(room),
                })
                .or_else(|| there.clone().max_by_key(room))
                .map(|(gpu, _)| *gpu);
            let Some(ids) = best.and_then(|gpu| by_gpu.get_mut(&gpu)) else {
                break;
            };
            let taken = at_once.min(ids.len());
            chosen.extend(ids.drain(..taken).cloned());
        }
        chosen
    }
}

impl Grant {
    /// The limits that the container's processes share, for the daemon: by UUID; of a GPU that it does
    /// not see, one byte.
    #[must_use]
    pub fn memory(&self, gpus: &[Gpu]) -> BTreeMap<String, String> {
        let each = gpus.iter().enumerate();
        each.map(|(place, gpu)| {
            let size = match self.mib.get(&place) {
                Some(mib) => format!("{mib}M"),
                None => "1".to_owned(),
            };
            (gpu.uuid.clone(), size)
        })
        .collect()
    }
}

#[cfg(test)]
mod tests;
