//! CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER: which devices the program sees, and in which order.
//!
//! `attach` asks it once. It reads no environment itself, so that tests can say what stands there.

use cuda_abi::types::CUdevice_attribute;
use protocol::device_facts::DeviceFacts;

/// The numbers of the devices that `setting`, the value of CUDA_VISIBLE_DEVICES, names, in its order.
///
/// Without a setting, all of them. The list ends before the first entry that names no device, as in
/// NVIDIA's driver; one that names a device twice gives none. Numbers count in the server's order, or,
/// if CUDA_DEVICE_ORDER, `order`, says so, in that of the devices' places on the PCI bus.
pub(crate) fn choose(
    devices: &[DeviceFacts],
    setting: Option<&str>,
    order: Option<&str>,
) -> Vec<usize> {
    let mut ordered: Vec<usize> = (0..devices.len()).collect();
    if order == Some("PCI_BUS_ID") {
        ordered.sort_by_key(|&number| {
            [
                CUdevice_attribute::PCI_DOMAIN_ID,
                CUdevice_attribute::PCI_BUS_ID,
                CUdevice_attribute::PCI_DEVICE_ID,
            ]
            .map(|attribute| devices[number].attribute(attribute.0))
        });
    }
    let Some(setting) = setting else {
        return ordered;
    };
    let mut chosen = Vec::new();
    for entry in setting.split(',') {
        match find(devices, &ordered, entry.trim()) {
            Some(number) if chosen.contains(&number) => return Vec::new(),
            Some(number) => chosen.push(number),
            None => break,
        }
    }
    chosen
}

/// The device of an entry: its place in the order, or enough of its UUID to tell it from the others.
fn find(devices: &[DeviceFacts], ordered: &[usize], entry: &str) -> Option<usize> {
    if let Some(prefix) = entry.strip_prefix("GPU-") {
        let prefix = prefix.to_ascii_lowercase();
        let mut fitting =
            (0..devices.len()).filter(|&n| uuid_text(&devices[n].uuid).starts_with(&prefix));
        let first = fitting.next().filter(|_| !prefix.is_empty())?;
        return fitting.next().is_none().then_some(first);
    }
    ordered.get(entry.parse::<usize>().ok()?).copied()
}

/// A UUID as text, without what stands before it.
fn uuid_text(uuid: &[u8; 16]) -> String {
    let mut text = String::with_capacity(36);
    for (at, byte) in uuid.iter().enumerate() {
        if matches!(at, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_chooses_and_orders_up_to_its_first_mistake() {
        let device = |first: u8| DeviceFacts {
            uuid: [first; 16],
            ..DeviceFacts::default()
        };
        let devices = [device(0x10), device(0x11), device(0x22)];
        for (setting, expected) in [
            (None, vec![0, 1, 2]),
            (Some(""), vec![]),
            (Some("-1"), vec![]),
            (Some("2, 0"), vec![2, 0]),
            (Some("1,7,0"), vec![1]),
            (Some("1,1"), vec![]),
            (Some("GPU-22222222-2222,0"), vec![2, 0]),
            (Some("GPU-1"), vec![]),
            (Some("GPU-11"), vec![1]),
            (Some("GPU-"), vec![]),
        ] {
            let chosen = choose(&devices, setting, Some("FASTEST_FIRST"));
            assert_eq!(chosen, expected, "{setting:?}");
        }
    }

    #[test]
    fn devices_are_counted_by_their_places_on_the_bus_where_that_is_asked_for() {
        let places = [(0, 0x80, 1), (0, 0x17, 0), (1, 0, 0), (0, 0x80, 0)];
        let devices = places.map(|(domain, bus, device)| {
            let mut attributes = vec![0; 51];
            attributes[CUdevice_attribute::PCI_DOMAIN_ID.0 as usize] = domain;
            attributes[CUdevice_attribute::PCI_BUS_ID.0 as usize] = bus;
            attributes[CUdevice_attribute::PCI_DEVICE_ID.0 as usize] = device;
            DeviceFacts {
                attributes,
                ..DeviceFacts::default()
            }
        });
        let by_bus = Some("PCI_BUS_ID");
        assert_eq!(choose(&devices, None, by_bus), [1, 3, 0, 2]);
        assert_eq!(choose(&devices, Some("2,0,4"), by_bus), [0, 1]);
        assert_eq!(choose(&devices, Some("2,0"), None), [2, 0]);
    }
}
