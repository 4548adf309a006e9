//! What a container with virtual devices is given.
//!
//! Called by `openmps cloudpods`. Must not know the files that asked for the devices.

use std::path::Path;

use serde::Serialize;

use super::list::VirtualDevice;
use crate::cdi::{LIBRARY_INSIDE, LOADER_PATH};

/// A directory of the host in a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Mount {
    /// On the host.
    pub host_path: String,
    /// In the container.
    pub container_path: String,
    /// Whether the container may not write to it.
    pub read_only: bool,
}

/// A variable of a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Variable {
    /// Its name.
    pub key: String,
    /// Its value.
    pub value: String,
}

/// What a container is given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Container {
    /// Variables.
    pub env: Vec<Variable>,
    /// Directories.
    pub mounts: Vec<Mount>,
}

/// Why a container cannot have the devices that it names.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ContainerError {
    /// There is none at an address.
    #[error("there is no virtual device {address}; there are {}", known.join(", "))]
    Unknown {
        /// The address.
        address: String,
        /// Those that there are.
        known: Vec<String>,
    },
    /// Two are parts of one device.
    #[error(
        "{0} is a part of a device of which the container has one already: a container has one part of each device at most"
    )]
    SameDevice(String),
}

/// What a container with the devices at these addresses is given: Cloudpods' variables, and what an
/// OpenMPS client needs. Cloudpods also mounts the host's /dev/shm, which OpenMPS needs not.
///
/// # Errors
/// When there is no such device, or two are parts of one.
pub fn container(
    devices: &[VirtualDevice],
    addresses: &[String],
    pipe: &Path,
    library: &Path,
) -> Result<Container, ContainerError> {
    let mut uuids: Vec<&str> = Vec::new();
    for address in addresses {
        let place = address.to_lowercase();
        let device = devices
            .iter()
            .find(|device| device.addr == place || device.id == place)
            .ok_or_else(|| ContainerError::Unknown {
                address: address.clone(),
                known: devices.iter().map(|device| device.addr.clone()).collect(),
            })?;
        if uuids.contains(&device.device_path.as_str()) {
            return Err(ContainerError::SameDevice(address.clone()));
        }
        uuids.push(&device.device_path);
    }
    let variable = |key: &str, value: &str| Variable {
        key: key.to_owned(),
        value: value.to_owned(),
    };
    let pipe = pipe.display().to_string();
    let uuids = uuids.join(",");
    Ok(Container {
        env: vec![
            variable("CUDA_MPS_PIPE_DIRECTORY", &pipe),
            variable("NVIDIA_VISIBLE_DEVICES", &uuids),
            variable("NVIDIA_DRIVER_CAPABILITIES", "all"),
            variable("CUDA_VISIBLE_DEVICES", &uuids),
            variable("LD_LIBRARY_PATH", LOADER_PATH),
        ],
        mounts: vec![
            Mount {
                host_path: pipe.clone(),
                container_path: pipe,
                read_only: false,
            },
            Mount {
                host_path: library.display().to_string(),
                container_path: LIBRARY_INSIDE.to_owned(),
                read_only: true,
            },
        ],
    })
}

#[cfg(test)]
mod tests {
    use super::super::list::{Shape, virtual_devices};
    use super::super::plan::SharedDevice;
    use super::*;
    use crate::gpus::{Gpu, Slice};

    #[test]
    fn a_container_has_one_part_of_each_device() {
        let shared: Vec<SharedDevice> = [("GPU-a", "06"), ("GPU-b", "07")]
            .map(|(uuid, device)| SharedDevice {
                gpu: Gpu {
                    uuid: uuid.into(),
                    pci: format!("00:{device}.0").parse().unwrap(),
                    ..Gpu::default()
                },
                parts: 2,
                slice: Slice::of(1000, 2).unwrap(),
            })
            .into();
        let devices = virtual_devices(&shared, Shape::Rows, "h", Path::new("/nowhere"));
        let ask = |addresses: &[&str]| {
            let addresses: Vec<String> = addresses.iter().map(|&it| it.to_owned()).collect();
            let (pipe, library) = (Path::new("/tmp/nvidia-mps/pipe"), Path::new("/lib/openmps"));
            container(&devices, &addresses, pipe, library)
        };
        let given = ask(&["00:06.0-1", "00:07.0-0"]).unwrap();
        let has = |key: &str, value: &str| {
            let mut env = given.env.iter();
            env.any(|variable| variable.key == key && variable.value == value)
        };
        assert!(has("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps/pipe"));
        assert!(has("NVIDIA_VISIBLE_DEVICES", "GPU-a,GPU-b"));
        assert!(has("NVIDIA_DRIVER_CAPABILITIES", "all"));
        assert_eq!(given.mounts[0].host_path, given.mounts[0].container_path);
        assert!(given.mounts[1].read_only);
        let unknown = ask(&["00:06.0-9"]).unwrap_err().to_string();
        assert!(unknown.contains("00:07.0-1"), "{unknown}");
        assert_eq!(
            ask(&["00:06.0-0", "00:06.0-1"]),
            Err(ContainerError::SameDevice("00:06.0-1".into()))
        );
    }
}
