//! `isolated-device-list`: the virtual devices, in the forms of two releases of Cloudpods.
//!
//! Called by `openmps cloudpods`. Must not read Cloudpods' files: it is made of the plan.

use std::fmt::Write;
use std::path::Path;

use serde::Serialize;

use super::bus;
use super::plan::SharedDevice;

/// Whose form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Release 4.0.3: a row for each part.
    Rows,
    /// Since July 2026: one row for a device, with the number of its parts.
    Shared,
}

/// A virtual device, with Cloudpods' names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct VirtualDevice {
    /// Made of the device's UUID and the part's number, so that it stays the same.
    pub id: String,
    /// `NVIDIA_MPS`, or `GPU` where sharing is said apart.
    pub dev_type: String,
    /// `MPS` in the second form.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub sharing_mode: String,
    /// The device's name.
    pub model: String,
    /// `NVIDIA` in the second form.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub vendor: String,
    /// `00:06.0-1`, or in the second form `00:06.0`.
    pub addr: String,
    /// `10de:1b38`
    pub vendor_device_id: String,
    /// This machine.
    pub host: String,
    /// The node of memory that it is near to, -1 if that is not known.
    pub numa_node: i64,
    /// The device's UUID.
    pub device_path: String,
    /// Its render node.
    pub render_path: String,
    /// Its link.
    pub pcie_info: String,
    /// -1: it is not told by number.
    pub index: i32,
    /// -1 likewise.
    pub device_minor: i32,
    /// MiB of a part.
    pub mps_memory_limit: u64,
    /// Percent of the threads that a part has.
    pub mps_thread_percentage: u32,
    /// MiB of the device.
    pub mps_memory_total: u64,
    /// Parts that this row stands for.
    pub virtual_num: u32,
}

/// The virtual devices of what is shared. `root` is `/` but in tests.
#[must_use]
pub fn virtual_devices(
    shared: &[SharedDevice],
    shape: Shape,
    host: &str,
    root: &Path,
) -> Vec<VirtualDevice> {
    let mut list = Vec::new();
    for one in shared {
        let facts = bus::facts(root, one.gpu.pci);
        let device = |part: u32| VirtualDevice {
            id: identity(&one.gpu.uuid, part),
            dev_type: "NVIDIA_MPS".into(),
            sharing_mode: String::new(),
            model: one.gpu.name.clone(),
            vendor: String::new(),
            addr: format!("{}-{part}", one.gpu.pci.short()),
            vendor_device_id: facts.vendor_device.clone(),
            host: host.to_owned(),
            numa_node: facts.numa_node,
            device_path: one.gpu.uuid.clone(),
            render_path: facts.render.clone(),
            pcie_info: facts.link.clone(),
            index: -1,
            device_minor: -1,
            mps_memory_limit: one.slice.mib,
            mps_thread_percentage: one.slice.percentage,
            mps_memory_total: one.gpu.mib(),
            virtual_num: 1,
        };
        match shape {
            Shape::Rows => list.extend((0..one.parts).map(device)),
            Shape::Shared => list.push(VirtualDevice {
                dev_type: "GPU".into(),
                sharing_mode: "MPS".into(),
                vendor: "NVIDIA".into(),
                addr: one.gpu.pci.short(),
                virtual_num: one.parts,
                ..device(0)
            }),
        }
    }
    list
}

/// An identity in the form of a UUID: the device's, with the part's number added to its end.
fn identity(uuid: &str, part: u32) -> String {
    let text = uuid.strip_prefix("GPU-").unwrap_or(uuid);
    let end = text.len().saturating_sub(4);
    match (text.get(..end), text.get(end..)) {
        (Some(begin), Some(end)) => match u16::from_str_radix(end, 16) {
            Ok(number) => format!("{begin}{:04x}", number.wrapping_add(part as u16)),
            Err(_) => format!("{text}-{part}"),
        },
        _ => format!("{text}-{part}"),
    }
}

/// The table, with the columns that hold something.
#[must_use]
pub fn table(devices: &[VirtualDevice]) -> String {
    let column = |head: &'static str, of: fn(&VirtualDevice) -> String| (head, of);
    let columns = [
        column("ID", |it| it.id.clone()),
        column("Dev_type", |it| it.dev_type.clone()),
        column("Sharing_mode", |it| it.sharing_mode.clone()),
        column("Model", |it| it.model.clone()),
        column("Vendor", |it| it.vendor.clone()),
        column("Addr", |it| it.addr.clone()),
        column("Vendor_device_id", |it| it.vendor_device_id.clone()),
        column("Host", |it| it.host.clone()),
        column("numa_node", |it| it.numa_node.to_string()),
        column("Device_path", |it| it.device_path.clone()),
        column("Render_path", |it| it.render_path.clone()),
        column("PCIE_Info", |it| it.pcie_info.clone()),
        column("Index", |it| it.index.to_string()),
        column("Device_minor", |it| it.device_minor.to_string()),
        column("virtual_num", |it| match it.sharing_mode.is_empty() {
            true => String::new(),
            false => it.virtual_num.to_string(),
        }),
    ];
    let columns: Vec<(&str, Vec<String>, usize)> = columns
        .into_iter()
        .map(|(head, of)| {
            let cells: Vec<String> = devices.iter().map(of).collect();
            let widths = cells.iter().map(|cell| cell.chars().count());
            let width = widths.chain([head.len()]).max().unwrap_or(0);
            (head, cells, width)
        })
        .filter(|(_, cells, _)| cells.iter().any(|cell| !cell.is_empty()))
        .collect();
    let mut text = String::new();
    let rule: String = columns
        .iter()
        .map(|(_, _, width)| format!("+{}", "-".repeat(width + 2)))
        .collect();
    let _ = writeln!(text, "{rule}+");
    for (head, _, width) in &columns {
        let _ = write!(text, "| {head:^width$} ");
    }
    let _ = writeln!(text, "|\n{rule}+");
    for row in 0..devices.len() {
        for (_, cells, width) in &columns {
            let _ = write!(text, "| {:<width$} ", cells[row]);
        }
        let _ = writeln!(text, "|");
    }
    let _ = writeln!(text, "{rule}+");
    let _ = writeln!(
        text,
        "*** Total: {} Pages: 1 Limit: {} Offset: 0 Page: 1 ***",
        devices.len(),
        devices.len().max(20)
    );
    text
}

#[cfg(test)]
mod tests {
    use super::super::bus::tests::tree;
    use super::*;
    use crate::gpus::{Gpu, MIB, Slice};

    fn p40() -> Vec<SharedDevice> {
        vec![SharedDevice {
            gpu: Gpu {
                uuid: "GPU-76aef7ff-372d-2432-b4b4-beca4d8d3400".into(),
                name: "Tesla P40".into(),
                pci: "00000000:00:06.0".parse().unwrap(),
                memory: 23040 * MIB,
                ..Gpu::default()
            },
            parts: 4,
            slice: Slice::of(23040, 4).unwrap(),
        }]
    }

    #[test]
    fn the_first_form_has_a_row_for_each_part() {
        let root = tree("0000:00:06.0", "renderD128");
        let devices = virtual_devices(&p40(), Shape::Rows, "node1", root.path());
        let addresses: Vec<&str> = devices.iter().map(|device| device.addr.as_str()).collect();
        assert_eq!(
            addresses,
            ["00:06.0-0", "00:06.0-1", "00:06.0-2", "00:06.0-3"]
        );
        let ids: std::collections::BTreeSet<&str> =
            devices.iter().map(|device| device.id.as_str()).collect();
        assert_eq!(ids.len(), 4);
        assert!(ids.contains("76aef7ff-372d-2432-b4b4-beca4d8d3403"));
        let value = serde_json::to_value(&devices[1]).unwrap();
        assert_eq!(value["mps_memory_limit"], 5760);
        assert_eq!(value["mps_thread_percentage"], 25);
        assert_eq!(value["mps_memory_total"], 23040);

        let text = table(&devices);
        let lines: Vec<&str> = text.lines().collect();
        let heads: Vec<&str> = lines[1].split('|').map(str::trim).collect();
        assert_eq!(
            heads[1..heads.len() - 1],
            [
                "ID",
                "Dev_type",
                "Model",
                "Addr",
                "Vendor_device_id",
                "Host",
                "numa_node",
                "Device_path",
                "Render_path",
                "PCIE_Info",
                "Index",
                "Device_minor"
            ]
        );
        assert!(lines[3].contains("| NVIDIA_MPS | Tesla P40 | 00:06.0-0 | 10de:1b38 "));
        assert_eq!(
            lines.last(),
            Some(&"*** Total: 4 Pages: 1 Limit: 20 Offset: 0 Page: 1 ***")
        );
    }

    #[test]
    fn the_second_form_has_one_row_with_a_number() {
        let root = tree("0000:00:07.0", "renderD128");
        let devices = virtual_devices(&p40(), Shape::Shared, "node1", root.path());
        assert_eq!(devices.len(), 1);
        assert_eq!(
            (devices[0].virtual_num, devices[0].addr.as_str()),
            (4, "00:06.0")
        );
        let text = table(&devices);
        let head = text.lines().nth(1).unwrap();
        for part in ["Sharing_mode", "Vendor", "virtual_num"] {
            assert!(head.contains(part), "{text}");
        }
        // Nothing is known of this device's place: no columns for it.
        for part in ["Vendor_device_id", "Render_path", "PCIE_Info"] {
            assert!(!head.contains(part), "{text}");
        }
        assert!(
            text.contains("| GPU      | MPS          | Tesla P40 |"),
            "{text}"
        );
    }
}
