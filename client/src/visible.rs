//! CUDA_VISIBLE_DEVICES: which devices the program sees, and in which order.

use cuda_abi::facts::DeviceFacts;

/// The numbers of the devices that `setting` names, in its order.
///
/// Without a setting, all of them. The list ends before the first entry that names no device, as in
/// NVIDIA's driver; one that names a device twice gives none.
pub(crate) fn choose(devices: &[DeviceFacts], setting: Option<&str>) -> Vec<usize> {
    let Some(setting) = setting else {
        return (0..devices.len()).collect();
    };
    let mut chosen = Vec::new();
    for entry in setting.split(',') {
        match find(devices, entry.trim()) {
            Some(number) if chosen.contains(&number) => return Vec::new(),
            Some(number) => chosen.push(number),
            None => break,
        }
    }
    chosen
}

/// The device of an entry: its number, or enough of its UUID to tell it from the others.
fn find(devices: &[DeviceFacts], entry: &str) -> Option<usize> {
    if let Some(prefix) = entry.strip_prefix("GPU-") {
        let prefix = prefix.to_ascii_lowercase();
        let mut fitting =
            (0..devices.len()).filter(|&n| uuid_text(&devices[n].uuid).starts_with(&prefix));
        let first = fitting.next().filter(|_| !prefix.is_empty())?;
        return fitting.next().is_none().then_some(first);
    }
    entry
        .parse::<usize>()
        .ok()
        .filter(|&number| number < devices.len())
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
            assert_eq!(choose(&devices, setting), expected, "{setting:?}");
        }
    }
}
