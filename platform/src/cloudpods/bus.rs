//! What the kernel's directories tell of a device. All paths are below `root`, which is `/` but in
//! tests.
//!
//! Called by `plan` and `list`. Must not know how a device is shared.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use crate::gpus::PciAddress;

/// What is shown of a device's place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct BusFacts {
    /// `10de:1b38`; empty if it is not known.
    pub(super) vendor_device: String,
    /// -1 if it is not known.
    pub(super) numa_node: i64,
    /// Of its link, as JSON; empty if it is not known.
    pub(super) link: String,
    /// Its render node; empty if there is none.
    pub(super) render: String,
}

/// A path, as it is called below another root.
pub(super) fn below(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// Why a path is no render node of a PCI device.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NoNode {
    /// It is not in /dev/dri, or is called otherwise.
    Name,
    /// It is not there.
    Missing,
    /// It is there, and no device.
    NoDevice,
    /// It is a device, and no link names its address.
    NoAddress,
}

/// The address of the device that a render node belongs to.
pub(super) fn address_of(root: &Path, path: &Path) -> Result<PciAddress, NoNode> {
    let name = path.file_name().and_then(|name| name.to_str());
    let number = name.and_then(|name| name.strip_prefix("renderD"));
    let numbered =
        number.is_some_and(|it| !it.is_empty() && it.bytes().all(|b| b.is_ascii_digit()));
    let (Some(name), true) = (name, numbered) else {
        return Err(NoNode::Name);
    };
    let facts = fs::metadata(below(root, path)).map_err(|_| NoNode::Missing)?;
    if !facts.file_type().is_char_device() {
        return Err(NoNode::NoDevice);
    }
    links(root)
        .into_iter()
        .find(|(_, node)| node == name)
        .map(|(address, _)| address)
        .ok_or(NoNode::NoAddress)
}

/// The addresses of PCI devices with a render node, and the nodes' names.
fn links(root: &Path) -> Vec<(PciAddress, String)> {
    let folder = root.join("dev/dri/by-path");
    let Ok(entries) = fs::read_dir(folder) else {
        return Vec::new();
    };
    entries
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let name = entry.file_name().into_string().ok()?;
            let address = name.strip_prefix("pci-")?.strip_suffix("-render")?;
            let node = fs::read_link(entry.path()).ok()?;
            let node = node.file_name()?.to_str()?.to_owned();
            Some((address.parse().ok()?, node))
        })
        .collect()
}

/// The render nodes that there are.
pub(super) fn render_nodes(root: &Path) -> Vec<String> {
    let mut nodes: Vec<String> = links(root)
        .into_iter()
        .map(|(_, node)| format!("/dev/dri/{node}"))
        .collect();
    nodes.sort();
    nodes
}

/// What there is to know of the device at an address.
pub(super) fn facts(root: &Path, pci: PciAddress) -> BusFacts {
    let folder = root.join("sys/bus/pci/devices").join(pci.kernel());
    let read = |name: &str| {
        let text = fs::read_to_string(folder.join(name)).ok()?;
        Some(text.trim().to_owned())
    };
    let id = |name: &str| Some(read(name)?.trim_start_matches("0x").to_owned());
    let vendor_device = match (id("vendor"), id("device")) {
        (Some(vendor), Some(device)) => format!("{vendor}:{device}"),
        _ => String::new(),
    };
    let link = match (read("max_link_speed"), read("max_link_width")) {
        (Some(speed), Some(width)) => link(&speed, &width).unwrap_or_default(),
        _ => String::new(),
    };
    let node = links(root).into_iter().find(|(address, _)| *address == pci);
    BusFacts {
        vendor_device,
        numa_node: read("numa_node")
            .and_then(|text| text.parse().ok())
            .unwrap_or(-1),
        link,
        render: node.map_or_else(String::new, |(_, name)| format!("/dev/dri/{name}")),
    }
}

/// A link's facts in Cloudpods' form, from the kernel's `8.0 GT/s PCIe` and `16`.
fn link(speed: &str, width: &str) -> Option<String> {
    // Transfers, what the version is called, and GB/s that a lane carries after encoding.
    const VERSIONS: [(&str, &str, f64); 6] = [
        ("2.5", "1.0", 0.25),
        ("5", "2.0", 0.5),
        ("8", "3.0", 0.985),
        ("16", "4.0", 1.969),
        ("32", "5.0", 3.938),
        ("64", "6.0", 7.563),
    ];
    let transfers = speed.split_whitespace().next()?;
    let transfers = transfers.strip_suffix(".0").unwrap_or(transfers);
    let (_, version, lane) = VERSIONS.iter().find(|(known, ..)| *known == transfers)?;
    let width: u32 = width.parse().ok()?;
    Some(format!(
        "{{\"lane_width\":{width},\"throughput\":\"{:.2} GB/s\",\"transfer_rate_per_lane\":\
         \"{transfers}GT/s\",\"version\":\"{version}\"}}",
        lane * f64::from(width)
    ))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// A root with one device at an address, as the kernel would have it.
    pub(in super::super) fn tree(address: &str, node: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let dri = root.path().join("dev/dri");
        fs::create_dir_all(dri.join("by-path")).unwrap();
        // Some character device, which no test needs root to make.
        symlink("/dev/null", dri.join(node)).unwrap();
        let link = format!("pci-{address}-render");
        symlink(format!("../{node}"), dri.join("by-path").join(link)).unwrap();
        fs::write(dri.join("card0"), "").unwrap();
        let device = root.path().join("sys/bus/pci/devices").join(address);
        fs::create_dir_all(&device).unwrap();
        for (name, text) in [
            ("vendor", "0x10de\n"),
            ("device", "0x1b38\n"),
            ("numa_node", "-1\n"),
            ("max_link_speed", "8.0 GT/s PCIe\n"),
            ("max_link_width", "16\n"),
        ] {
            fs::write(device.join(name), text).unwrap();
        }
        root
    }

    #[test]
    fn a_render_node_is_found_by_its_link() {
        let root = tree("0000:0a:00.0", "renderD128");
        let at = |path: &str| address_of(root.path(), Path::new(path));
        assert_eq!(at("/dev/dri/renderD128"), Ok("0a:00.0".parse().unwrap()));
        assert_eq!(at("/dev/dri/card0"), Err(NoNode::Name));
        assert_eq!(at("/dev/dri/renderD"), Err(NoNode::Name));
        assert_eq!(at("/dev/dri/renderD129"), Err(NoNode::Missing));
        fs::write(root.path().join("dev/dri/renderD130"), "").unwrap();
        assert_eq!(at("/dev/dri/renderD130"), Err(NoNode::NoDevice));
        symlink("/dev/null", root.path().join("dev/dri/renderD131")).unwrap();
        assert_eq!(at("/dev/dri/renderD131"), Err(NoNode::NoAddress));
        assert_eq!(render_nodes(root.path()), ["/dev/dri/renderD128"]);
    }

    #[test]
    fn facts_are_in_cloudpods_form() {
        let root = tree("0000:00:06.0", "renderD128");
        assert_eq!(
            facts(root.path(), "00:06.0".parse().unwrap()),
            BusFacts {
                vendor_device: "10de:1b38".into(),
                numa_node: -1,
                link: "{\"lane_width\":16,\"throughput\":\"15.76 GB/s\",\
                       \"transfer_rate_per_lane\":\"8GT/s\",\"version\":\"3.0\"}"
                    .into(),
                render: "/dev/dri/renderD128".into(),
            }
        );
        let unknown = facts(root.path(), "00:07.0".parse().unwrap());
        assert_eq!((unknown.numa_node, unknown.link.as_str()), (-1, ""));
    }
}
