//! Which devices are shared, in how many parts, and what a daemon is told of it.
//!
//! Called by `openmps cloudpods`, and by its daemon for the commands. Must not send them.

use std::path::Path;

use super::bus::{self, NoNode};
use super::files::{HostConf, SharedDeviceLine};
use crate::gpus::{Gpu, Slice};
use crate::yaml::BadFile;

/// A device that is shared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedDevice {
    /// The device.
    pub gpu: Gpu,
    /// Into how many parts it is divided.
    pub parts: u32,
    /// One of them.
    pub slice: Slice,
}

/// All that are shared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// At least one.
    pub shared: Vec<SharedDevice>,
}

impl Plan {
    /// Which of the machine's devices are shared: those with an entry, or without any entry all.
    ///
    /// # Errors
    /// When an entry names no device of the machine, or a device cannot be divided so.
    pub fn new(
        conf: &HostConf,
        entries: &[SharedDeviceLine],
        gpus: &[Gpu],
        root: &Path,
    ) -> Result<Self, BadFile> {
        if gpus.is_empty() {
            return Err(conf.no_gpu("its driver knows none"));
        }
        let mut shared: Vec<SharedDevice> = Vec::new();
        for entry in entries {
            let gpu = named_by(entry, gpus, root)?;
            let bad = |what: String, mend: &str| BadFile {
                file: entry.file.clone(),
                line: Some(entry.line),
                what,
                mend: mend.to_owned(),
            };
            if let Some(other) = shared.iter().find(|other| other.gpu.uuid == gpu.uuid) {
                return Err(bad(
                    format!(
                        "{} is GPU {}, for which there is another entry",
                        entry.path.display(),
                        other.gpu.index
                    ),
                    "keep one entry for each device",
                ));
            }
            shared.push(SharedDevice::of(gpu, entry.parts, "virtual_number", bad)?);
        }
        if entries.is_empty() {
            for gpu in gpus {
                let bad = |what: String, mend: &str| conf.bad(what, mend);
                shared.push(SharedDevice::of(
                    gpu,
                    conf.replicas,
                    "cuda_mps_replicas",
                    bad,
                )?);
            }
        }
        Ok(Self { shared })
    }

    /// The commands for a daemon, as Cloudpods' own daemon gives them: a memory limit for each device,
    /// and one percentage, that of the largest parts.
    #[must_use]
    pub fn commands(&self) -> Vec<String> {
        let mut commands: Vec<String> = self
            .shared
            .iter()
            .map(|shared| {
                let (index, mib) = (shared.gpu.index, shared.slice.mib);
                format!("set_default_device_pinned_mem_limit {index} {mib}M")
            })
            .collect();
        let percentages = self.shared.iter().map(|shared| shared.slice.percentage);
        let percentage = percentages.max().unwrap_or(100);
        commands.push(format!("set_default_active_thread_percentage {percentage}"));
        commands
    }
}

impl SharedDevice {
    /// A device in so many parts; `key` is what said so, and `bad` makes an error of its place.
    fn of(
        gpu: &Gpu,
        parts: u32,
        key: &str,
        bad: impl FnOnce(String, &str) -> BadFile,
    ) -> Result<Self, BadFile> {
        let Some(slice) = Slice::of(gpu.mib(), parts) else {
            return Err(bad(
                format!(
                    "{key} is {parts}, and GPU {} has {} MiB",
                    gpu.index,
                    gpu.mib()
                ),
                "write a smaller number: each part has at least 1 MiB",
            ));
        };
        Ok(Self {
            gpu: gpu.clone(),
            parts,
            slice,
        })
    }
}

/// The device that an entry means.
fn named_by<'a>(
    entry: &SharedDeviceLine,
    gpus: &'a [Gpu],
    root: &Path,
) -> Result<&'a Gpu, BadFile> {
    let path = entry.path.display();
    let bad = |what: String, mend: String| BadFile {
        file: entry.file.clone(),
        line: Some(entry.line),
        what,
        mend,
    };
    let nodes = bus::render_nodes(root);
    let there = match nodes.is_empty() {
        true => {
            "this machine has no render node: leave `devices` empty, and every GPU is shared in \
                 cuda_mps_replicas parts"
                .to_owned()
        }
        false => format!("name a render node; there are {}", nodes.join(", ")),
    };
    let address = bus::address_of(root, &entry.path).map_err(|why| match why {
        NoNode::Name => bad(format!("{path} is no render node"), there.clone()),
        NoNode::Missing => bad(format!("{path} is not there"), there.clone()),
        NoNode::NoDevice => bad(format!("{path} is not a device"), there.clone()),
        NoNode::NoAddress => bad(
            format!("no link in /dev/dri/by-path leads to {path}, so its PCI address is unknown"),
            "let udev make /dev/dri/by-path (`udevadm trigger`), and check the path".into(),
        ),
    })?;
    gpus.iter().find(|gpu| gpu.pci == address).ok_or_else(|| {
        let known: Vec<String> = gpus.iter().map(|gpu| gpu.pci.short()).collect();
        bad(
            format!("{path} is the device {address}, which is no GPU that OpenMPS can use"),
            format!("name the render node of one of {}", known.join(", ")),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::super::bus::tests::tree;
    use super::*;
    use crate::gpus::{MIB, PciAddress};
    use crate::yaml::File;

    fn conf() -> HostConf {
        let text = "a: 1\nenable_cuda_mps: true\n";
        HostConf::of(&File::parse(Path::new("host.conf"), text).unwrap()).unwrap()
    }

    fn gpu(index: u32, bus: u32) -> Gpu {
        Gpu {
            index,
            uuid: format!("GPU-{index}"),
            memory: 23040 * MIB,
            pci: PciAddress {
                domain: 0,
                bus,
                device: 0,
            },
            ..Gpu::default()
        }
    }

    fn entry(path: &str, parts: u32) -> SharedDeviceLine {
        SharedDeviceLine {
            file: "devices.yml".into(),
            line: 2,
            path: path.into(),
            parts,
        }
    }

    #[test]
    fn listed_devices_are_shared_or_else_all() {
        let root = tree("0000:0a:00.0", "renderD128");
        let gpus = [gpu(0, 3), gpu(1, 0x0a)];
        let plan = Plan::new(&conf(), &[], &gpus, root.path()).unwrap();
        assert_eq!(
            plan.commands(),
            [
                "set_default_device_pinned_mem_limit 0 2304M",
                "set_default_device_pinned_mem_limit 1 2304M",
                "set_default_active_thread_percentage 10"
            ]
        );
        let entries = [entry("/dev/dri/renderD128", 4)];
        let plan = Plan::new(&conf(), &entries, &gpus, root.path()).unwrap();
        assert_eq!(
            plan.commands(),
            [
                "set_default_device_pinned_mem_limit 1 5760M",
                "set_default_active_thread_percentage 25"
            ]
        );
    }

    #[test]
    fn one_percentage_is_for_all_devices() {
        let shared = |index, parts| SharedDevice {
            gpu: gpu(index, index),
            parts,
            slice: Slice::of(23040, parts).unwrap(),
        };
        let plan = Plan {
            shared: vec![shared(0, 8), shared(1, 4)],
        };
        assert_eq!(
            plan.commands(),
            [
                "set_default_device_pinned_mem_limit 0 2880M",
                "set_default_device_pinned_mem_limit 1 5760M",
                "set_default_active_thread_percentage 25"
            ]
        );
    }

    #[test]
    fn entries_that_name_no_device_are_told_with_their_line() {
        let root = tree("0000:0a:00.0", "renderD128");
        let gpus = [gpu(0, 0x0a)];
        std::fs::write(root.path().join("dev/dri/renderD140"), "").unwrap();
        for (path, gpus, says) in [
            ("/dev/dri/card0", &gpus[..], "is no render node"),
            ("/dev/dri/renderD129", &gpus, "is not there"),
            ("/dev/dri/renderD140", &gpus, "is not a device"),
            (
                "/dev/dri/renderD128",
                &[gpu(0, 3)],
                "no GPU that OpenMPS can use",
            ),
        ] {
            let error = Plan::new(&conf(), &[entry(path, 4)], gpus, root.path()).unwrap_err();
            let text = error.to_string();
            assert!(text.starts_with("devices.yml:2: "), "{text}");
            assert!(text.contains(says) && text.contains("\n  -> "), "{text}");
        }
        let twice = [
            entry("/dev/dri/renderD128", 4),
            entry("/dev/dri/../dri/renderD128", 2),
        ];
        let error = Plan::new(&conf(), &twice, &gpus, root.path()).unwrap_err();
        assert!(error.to_string().contains("another entry"), "{error}");
    }

    #[test]
    fn a_machine_without_gpu_is_told_of_where_mps_was_wanted() {
        let error = Plan::new(&conf(), &[], &[], Path::new("/")).unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with("host.conf:2: "), "{text}");
        assert!(text.contains("no GPU"), "{text}");
        let small = Gpu {
            memory: 3 * MIB,
            ..gpu(0, 1)
        };
        let error = Plan::new(&conf(), &[], &[small], Path::new("/")).unwrap_err();
        assert!(error.to_string().contains("3 MiB"), "{error}");
    }
}
