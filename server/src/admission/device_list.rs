//! What lists show of devices.
//!
//! Called by the main loop for the daemon, and by sessions for their own client. Must not know who asks.

use engine::Engine;
use protocol::control_messages::ListedDevice;
use protocol::device_facts::{
    COMPUTE_CAPABILITY_MAJOR, COMPUTE_CAPABILITY_MINOR, DeviceFacts, MULTIPROCESSOR_COUNT,
    PCI_BUS_ID, PCI_DEVICE_ID, PCI_DOMAIN_ID,
};

/// A UUID as lists and variables write it.
#[must_use]
pub fn uuid(bytes: &[u8; 16]) -> String {
    let mut text = String::from("GPU");
    for (index, byte) in bytes.iter().enumerate() {
        if matches!(index, 0 | 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

/// What the daemon's lists show of a device, but for the chunks that its engine gives out.
#[must_use]
pub fn listed(device: &DeviceFacts) -> ListedDevice {
    let number = |attribute| {
        device
            .attribute(attribute)
            .unwrap_or(0)
            .max(0)
            .cast_unsigned()
    };
    ListedDevice {
        uuid: uuid(&device.uuid),
        name: device.name.clone(),
        pci: [PCI_DOMAIN_ID, PCI_BUS_ID, PCI_DEVICE_ID].map(number),
        total_memory: device.total_memory,
        multiprocessors: number(MULTIPROCESSOR_COUNT),
        chunk: 0,
        chunks: 0,
        capability: [COMPUTE_CAPABILITY_MAJOR, COMPUTE_CAPABILITY_MINOR].map(number),
    }
}

/// What the daemon's lists show of an engine's devices.
#[must_use]
pub fn all_listed(engine: &dyn Engine) -> Vec<ListedDevice> {
    let devices = engine.devices().iter().enumerate();
    devices
        .map(|(ordinal, device)| {
            let granularity = engine.granularity(ordinal);
            let device = listed(device);
            let chunk = granularity.least.max(granularity.step).max(1);
            ListedDevice {
                chunk,
                chunks: granularity.most.min(device.multiprocessors) / chunk,
                ..device
            }
        })
        .collect()
}
