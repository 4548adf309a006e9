//! Devices: all from what the server told at the start.
//!
//! Owns the form of each answer. Called by the shells of `exports`. Must not ask the server, nor know why these
//! devices are visible.

use cuda_abi::CUresult;
use cuda_abi::types::{
    CUdevice, CUdevice_attribute, CUdevprop, CUexecAffinityType, CUuuid, DEVICE_ATTRIBUTES,
};

use super::Outcome;
use crate::pointers::{Address, Out, Text, TextOut};
use crate::session::connection::Device;
use crate::session::session;

fn device(ordinal: CUdevice) -> Result<&'static Device, CUresult> {
    session()?.device(ordinal)
}

pub(crate) fn cuDeviceGet(device: Out<CUdevice>, ordinal: i32) -> Outcome {
    let session = session()?;
    device.required()?;
    session.device(ordinal)?;
    device.set(ordinal)
}

pub(crate) fn cuDeviceGetCount(count: Out<i32>) -> Outcome {
    count.set(session()?.devices().len() as i32)
}

pub(crate) fn cuDeviceGetName(name: TextOut, len: i32, ordinal: CUdevice) -> Outcome {
    name.set(len, &device(ordinal)?.facts.name)
}

pub(crate) fn cuDeviceGetUuid(uuid: Out<CUuuid>, ordinal: CUdevice) -> Outcome {
    uuid.set(CUuuid(device(ordinal)?.facts.uuid))
}

pub(crate) fn cuDeviceGetUuid_v2(uuid: Out<CUuuid>, ordinal: CUdevice) -> Outcome {
    cuDeviceGetUuid(uuid, ordinal)
}

/// The adapter's number under Windows.
pub(crate) fn cuDeviceGetLuid(
    luid: Address,
    _device_node_mask: Out<u32>,
    ordinal: CUdevice,
) -> Outcome {
    device(ordinal)?;
    if luid.is_null() {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    // Linux gives none.
    Err(CUresult::ERROR_NOT_SUPPORTED)
}

pub(crate) fn cuDeviceTotalMem(bytes: Out<u32>, ordinal: CUdevice) -> Outcome {
    let total = device(ordinal)?.facts.total_memory;
    bytes.set(u32::try_from(total).unwrap_or(u32::MAX))
}

pub(crate) fn cuDeviceTotalMem_v2(bytes: Out<usize>, ordinal: CUdevice) -> Outcome {
    bytes.set(device(ordinal)?.facts.total_memory as usize)
}

/// A context can ask for a count of multiprocessors of its own, as under MPS.
pub(crate) fn cuDeviceGetExecAffinitySupport(
    value: Out<i32>,
    kind: CUexecAffinityType,
    ordinal: CUdevice,
) -> Outcome {
    device(ordinal)?;
    value.set(i32::from(kind == CUexecAffinityType::SM_COUNT))
}

pub(crate) fn cuDeviceGetAttribute(
    value: Out<i32>,
    attribute: CUdevice_attribute,
    ordinal: CUdevice,
) -> Outcome {
    let device = device(ordinal)?;
    value.required()?;
    // One error here at a runtime's start fails all that it does: every attribute of the header
    // has an answer, 0 where the server tells none.
    if !(1..=DEVICE_ATTRIBUTES.len() as u32).contains(&attribute.0) {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    value.set(device.attribute(attribute))
}

pub(crate) fn cuDeviceGetProperties(properties: Out<CUdevprop>, ordinal: CUdevice) -> Outcome {
    let device = device(ordinal)?;
    let of = |attribute| device.attribute(attribute);
    properties.set(CUdevprop {
        maxThreadsPerBlock: of(CUdevice_attribute::MAX_THREADS_PER_BLOCK),
        maxThreadsDim: [
            of(CUdevice_attribute::MAX_BLOCK_DIM_X),
            of(CUdevice_attribute::MAX_BLOCK_DIM_Y),
            of(CUdevice_attribute::MAX_BLOCK_DIM_Z),
        ],
        maxGridSize: [
            of(CUdevice_attribute::MAX_GRID_DIM_X),
            of(CUdevice_attribute::MAX_GRID_DIM_Y),
            of(CUdevice_attribute::MAX_GRID_DIM_Z),
        ],
        sharedMemPerBlock: of(CUdevice_attribute::MAX_SHARED_MEMORY_PER_BLOCK),
        totalConstantMemory: of(CUdevice_attribute::TOTAL_CONSTANT_MEMORY),
        SIMDWidth: of(CUdevice_attribute::WARP_SIZE),
        memPitch: of(CUdevice_attribute::MAX_PITCH),
        regsPerBlock: of(CUdevice_attribute::MAX_REGISTERS_PER_BLOCK),
        clockRate: of(CUdevice_attribute::CLOCK_RATE),
        textureAlign: of(CUdevice_attribute::TEXTURE_ALIGNMENT),
    })
}

pub(crate) fn cuDeviceComputeCapability(
    major: Out<i32>,
    minor: Out<i32>,
    ordinal: CUdevice,
) -> Outcome {
    let device = device(ordinal)?;
    minor.required()?;
    major.set(device.attribute(CUdevice_attribute::COMPUTE_CAPABILITY_MAJOR))?;
    minor.set(device.attribute(CUdevice_attribute::COMPUTE_CAPABILITY_MINOR))
}

/// Domain, bus and device on the PCI bus.
fn pci(device: &Device) -> [i32; 3] {
    [
        device.attribute(CUdevice_attribute::PCI_DOMAIN_ID),
        device.attribute(CUdevice_attribute::PCI_BUS_ID),
        device.attribute(CUdevice_attribute::PCI_DEVICE_ID),
    ]
}

pub(crate) fn cuDeviceGetPCIBusId(bus_id: TextOut, len: i32, ordinal: CUdevice) -> Outcome {
    let [domain, bus, slot] = pci(device(ordinal)?);
    let text = format!("{domain:04X}:{bus:02X}:{slot:02X}.0");
    // A cut bus id would be another device's.
    if usize::try_from(len).unwrap_or(0) <= text.len() {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    bus_id.set(len, &text)
}

pub(crate) fn cuDeviceGetByPCIBusId(found: Out<CUdevice>, bus_id: Text) -> Outcome {
    let session = session()?;
    found.required()?;
    let wanted = parse_bus_id(bus_id.get()?).ok_or(CUresult::ERROR_INVALID_VALUE)?;
    let ordinal = session.ordinal_where(|device| pci(device) == wanted);
    found.set(ordinal.ok_or(CUresult::ERROR_INVALID_DEVICE)?)
}

/// Reads `[domain:]bus:device[.function]`, in hexadecimal.
fn parse_bus_id(text: &[u8]) -> Option<[i32; 3]> {
    let text = std::str::from_utf8(text).ok()?;
    let text = text.split_once('.').map_or(text, |(before, _)| before);
    let parts: Vec<i32> = text
        .split(':')
        .map(|part| i32::from_str_radix(part, 16).ok())
        .collect::<Option<_>>()?;
    match parts[..] {
        [bus, slot] => Some([0, bus, slot]),
        [domain, bus, slot] => Some([domain, bus, slot]),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::parse_bus_id;

    #[test]
    fn bus_ids_are_hexadecimal_with_or_without_domain_and_function() {
        assert_eq!(parse_bus_id(b"0000:1A:00.0"), Some([0, 0x1a, 0]));
        assert_eq!(parse_bus_id(b"1a:02"), Some([0, 0x1a, 2]));
        assert_eq!(parse_bus_id(b"0001:00:1f"), Some([1, 0, 0x1f]));
        assert_eq!(parse_bus_id(b"nonsense"), None);
        assert_eq!(parse_bus_id(b""), None);
    }
}
