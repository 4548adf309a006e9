//! Which devices there are, and what they are called.
//!
//! Called by the exports. Must not know how the daemon answers.

use std::ffi::{c_char, c_void};

use cuda_abi::nvml::nvmlReturn_t;

use super::version_is;
use crate::params::{In, Out, Text, TextOut};
use crate::sensors;
use crate::state::{self, Device};
use crate::structs::{
    nvmlDevice_t, nvmlPciInfo_t, nvmlPciInfo_v2_t, nvmlPciInfoExt_t, nvmlUUID_t, version,
};

/// nvmlUUIDType_t: text.
const UUID_TEXT: u32 = 1;
/// The sixteen bytes.
const UUID_BYTES: u32 = 2;

/// nvmlGpuP2PStatus_t: it works.
const P2P_OK: u32 = 0;
/// It does not.
const P2P_NOT_SUPPORTED: u32 = 5;
/// nvmlGpuP2PCapsIndex_t: reading, writing; and how many there are.
const P2P_READ: u32 = 0;
const P2P_WRITE: u32 = 1;
const P2P_INDEXES: u32 = 5;

/// NVML_DEVICE_ARCH_UNKNOWN
const UNKNOWN_ARCHITECTURE: u32 = u32::MAX;

/// A device and its index.
fn of(device: nvmlDevice_t) -> Result<(usize, &'static Device), nvmlReturn_t> {
    state::facts()?.device(device)
}

/// Gives the first device for which something holds.
fn give_first(
    device: &Out<nvmlDevice_t>,
    holds: impl FnMut(&Device) -> bool,
) -> Result<(), nvmlReturn_t> {
    let found = state::facts()?.devices.iter().position(holds);
    device.set(state::handle(found.ok_or(nvmlReturn_t::ERROR_NOT_FOUND)?))
}

pub(crate) fn nvmlDeviceGetCount(count: Out<u32>) -> Result<(), nvmlReturn_t> {
    let facts = state::facts()?;
    count.set(facts.devices.len() as u32)
}

pub(crate) fn nvmlDeviceGetCount_v2(count: Out<u32>) -> Result<(), nvmlReturn_t> {
    nvmlDeviceGetCount(count)
}

pub(crate) fn nvmlDeviceGetHandleByIndex(
    index: u32,
    device: Out<nvmlDevice_t>,
) -> Result<(), nvmlReturn_t> {
    let facts = state::facts()?;
    if index as usize >= facts.devices.len() {
        return Err(nvmlReturn_t::ERROR_INVALID_ARGUMENT);
    }
    device.set(state::handle(index as usize))
}

pub(crate) fn nvmlDeviceGetHandleByIndex_v2(
    index: u32,
    device: Out<nvmlDevice_t>,
) -> Result<(), nvmlReturn_t> {
    nvmlDeviceGetHandleByIndex(index, device)
}

pub(crate) fn nvmlDeviceGetHandleByUUID(
    uuid: Text,
    device: Out<nvmlDevice_t>,
) -> Result<(), nvmlReturn_t> {
    state::facts()?;
    device.required()?;
    let uuid = uuid.get()?;
    give_first(&device, |device| device.listed.uuid == uuid)
}

pub(crate) fn nvmlDeviceGetHandleByUUIDV(
    uuid: In<nvmlUUID_t>,
    device: Out<nvmlDevice_t>,
) -> Result<(), nvmlReturn_t> {
    state::facts()?;
    device.required()?;
    let uuid = uuid.get()?;
    version_is(uuid.version, version::<nvmlUUID_t>(1))?;
    let value = &uuid.value;
    match uuid.kind {
        UUID_TEXT => {
            let text = value.split(|byte| *byte == 0).next().unwrap_or_default();
            give_first(&device, |device| device.listed.uuid.as_bytes() == text)
        }
        UUID_BYTES => give_first(&device, |device| {
            uuid_bytes(&device.listed.uuid).as_deref() == Some(&value[..16])
        }),
        _ => Err(nvmlReturn_t::ERROR_INVALID_ARGUMENT),
    }
}

/// The bytes of a UUID's text.
fn uuid_bytes(text: &str) -> Option<Vec<u8>> {
    let digits = text.strip_prefix("GPU-")?.replace('-', "");
    let pairs = digits.as_bytes().chunks(2);
    pairs
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
        .collect()
}

pub(crate) fn nvmlDeviceGetHandleByPciBusId(
    bus_id: Text,
    device: Out<nvmlDevice_t>,
) -> Result<(), nvmlReturn_t> {
    state::facts()?;
    device.required()?;
    let address = pci_address(bus_id.get()?).ok_or(nvmlReturn_t::ERROR_INVALID_ARGUMENT)?;
    give_first(&device, |device| device.listed.pci == address)
}

pub(crate) fn nvmlDeviceGetHandleByPciBusId_v2(
    bus_id: Text,
    device: Out<nvmlDevice_t>,
) -> Result<(), nvmlReturn_t> {
    nvmlDeviceGetHandleByPciBusId(bus_id, device)
}

/// Domain, bus and device of an address such as 00000000:9B:00.0, of which the domain and the function may
/// be left out.
fn pci_address(text: &str) -> Option<[u32; 3]> {
    let text = match text.split_once('.') {
        Some((before, "0")) => before,
        Some(_) => return None,
        None => text,
    };
    let mut parts = text.rsplit(':').map(|part| {
        let is_hex = part.bytes().all(|byte| byte.is_ascii_hexdigit());
        u32::from_str_radix(part, 16).ok().filter(|_| is_hex)
    });
    let (device, bus) = (parts.next()??, parts.next()??);
    let domain = match parts.next() {
        Some(domain) => domain?,
        None => 0,
    };
    parts.next().is_none().then_some([domain, bus, device])
}

/// The driver's own library alone knows serial numbers.
pub(crate) fn nvmlDeviceGetHandleBySerial(
    serial: Text,
    device: Out<nvmlDevice_t>,
) -> Result<(), nvmlReturn_t> {
    let facts = state::facts()?;
    device.required()?;
    let serial = serial.get()?;
    let mut index = 0..facts.devices.len();
    let found = index.find(|index| serial_of(state::handle(*index)).as_deref() == Ok(serial));
    device.set(state::handle(found.ok_or(nvmlReturn_t::ERROR_NOT_FOUND)?))
}

fn serial_of(device: nvmlDevice_t) -> Result<String, nvmlReturn_t> {
    // NVML_DEVICE_SERIAL_BUFFER_SIZE
    let mut text = [0_u8; 30];
    let (pointer, room) = (text.as_mut_ptr().cast(), text.len() as u32);
    // SAFETY: `text` is a local of `room` bytes.
    unsafe { ask_serial(device, pointer, room) }?;
    let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
    Ok(String::from_utf8_lossy(text).into_owned())
}

/// # Safety
/// `text` has room for `room` bytes.
unsafe fn ask_serial(
    device: nvmlDevice_t,
    text: *mut c_void,
    room: u32,
) -> Result<(), nvmlReturn_t> {
    sensors::ask!(c"nvmlDeviceGetSerial", device: nvmlDevice_t, text: *mut c_void, room: u32)
}

pub(crate) fn nvmlDeviceGetIndex(
    device: nvmlDevice_t,
    index: Out<u32>,
) -> Result<(), nvmlReturn_t> {
    let (number, _) = of(device)?;
    index.set(number as u32)
}

pub(crate) fn nvmlDeviceGetName(
    device: nvmlDevice_t,
    name: TextOut,
    room: u32,
) -> Result<(), nvmlReturn_t> {
    let (_, device) = of(device)?;
    name.set(room, &device.listed.name)
}

pub(crate) fn nvmlDeviceGetUUID(
    device: nvmlDevice_t,
    uuid: TextOut,
    room: u32,
) -> Result<(), nvmlReturn_t> {
    let (_, device) = of(device)?;
    uuid.set(room, &device.listed.uuid)
}

/// A text in a field of a structure, with its NUL.
fn field<const N: usize>(text: &str) -> [c_char; N] {
    let mut field = [0; N];
    let bytes = text.bytes().take(N - 1);
    for (place, byte) in field.iter_mut().zip(bytes) {
        *place = byte.cast_signed();
    }
    field
}

fn bus_id(pci: [u32; 3]) -> String {
    let [domain, bus, device] = pci;
    format!("{domain:08X}:{bus:02X}:{device:02X}.0")
}

fn legacy_bus_id(pci: [u32; 3]) -> String {
    let [domain, bus, device] = pci;
    format!("{domain:04X}:{bus:02X}:{device:02X}.0")
}

/// What the kernel says of a card: device and vendor in one, the same of its subsystem, and its class.
/// Zeros where it is not to be seen, and of a program.
fn identity(device: &Device) -> [u32; 3] {
    if device.is_software {
        return [0; 3];
    }
    let [domain, bus, number] = device.listed.pci;
    let of = |name: &str| {
        let path = format!("/sys/bus/pci/devices/{domain:04x}:{bus:02x}:{number:02x}.0/{name}");
        let text = std::fs::read_to_string(path).unwrap_or_default();
        u32::from_str_radix(text.trim().trim_start_matches("0x"), 16).unwrap_or(0)
    };
    [
        of("device") << 16 | of("vendor"),
        of("subsystem_device") << 16 | of("subsystem_vendor"),
        of("class"),
    ]
}

pub(crate) fn nvmlDeviceGetPciInfo(
    device: nvmlDevice_t,
    pci: Out<nvmlPciInfo_v2_t>,
) -> Result<(), nvmlReturn_t> {
    let (_, device) = of(device)?;
    let [id, subsystem, _] = identity(device);
    let [domain, bus, number] = device.listed.pci;
    pci.set(nvmlPciInfo_v2_t {
        busId: field(&legacy_bus_id(device.listed.pci)),
        domain,
        bus,
        device: number,
        pciDeviceId: id,
        pciSubSystemId: subsystem,
        reserved: [0; 4],
    })
}

pub(crate) fn nvmlDeviceGetPciInfo_v2(
    device: nvmlDevice_t,
    pci: Out<nvmlPciInfo_v2_t>,
) -> Result<(), nvmlReturn_t> {
    nvmlDeviceGetPciInfo(device, pci)
}

pub(crate) fn nvmlDeviceGetPciInfo_v3(
    device: nvmlDevice_t,
    pci: Out<nvmlPciInfo_t>,
) -> Result<(), nvmlReturn_t> {
    let (_, device) = of(device)?;
    let [id, subsystem, _] = identity(device);
    let [domain, bus, number] = device.listed.pci;
    pci.set(nvmlPciInfo_t {
        busIdLegacy: field(&legacy_bus_id(device.listed.pci)),
        domain,
        bus,
        device: number,
        pciDeviceId: id,
        pciSubSystemId: subsystem,
        busId: field(&bus_id(device.listed.pci)),
    })
}

pub(crate) fn nvmlDeviceGetPciInfoExt(
    device: nvmlDevice_t,
    pci: Out<nvmlPciInfoExt_t>,
) -> Result<(), nvmlReturn_t> {
    let (_, device) = of(device)?;
    let given = pci.get()?;
    version_is(given.version, version::<nvmlPciInfoExt_t>(1))?;
    let [id, subsystem, class] = identity(device);
    let [domain, bus, number] = device.listed.pci;
    pci.set(nvmlPciInfoExt_t {
        version: given.version,
        domain,
        bus,
        device: number,
        pciDeviceId: id,
        pciSubSystemId: subsystem,
        baseClass: class >> 16,
        subClass: class >> 8 & 0xff,
        busId: field(&bus_id(device.listed.pci)),
    })
}

pub(crate) fn nvmlDeviceGetCudaComputeCapability(
    device: nvmlDevice_t,
    major: Out<i32>,
    minor: Out<i32>,
) -> Result<(), nvmlReturn_t> {
    let (_, device) = of(device)?;
    major.required()?;
    minor.required()?;
    let [whole, part] = device.listed.capability;
    major.set(whole.cast_signed())?;
    minor.set(part.cast_signed())
}

pub(crate) fn nvmlDeviceGetArchitecture(
    device: nvmlDevice_t,
    number: Out<u32>,
) -> Result<(), nvmlReturn_t> {
    let (_, device) = of(device)?;
    number.set(architecture(device.listed.capability))
}

/// nvmlDeviceArchitecture_t of a compute capability.
const fn architecture(capability: [u32; 2]) -> u32 {
    match capability {
        [3, _] => 2,
        [5, _] => 3,
        [6, _] => 4,
        [7, minor] if minor >= 5 => 6,
        [7, _] => 5,
        [8, minor] if minor >= 9 => 8,
        [8, _] => 7,
        [9, _] => 9,
        [10..=12, _] => 10,
        _ => UNKNOWN_ARCHITECTURE,
    }
}

/// The daemon knows the software GPU's; of a card it may change at any time, and the driver knows it.
pub(crate) fn nvmlDeviceGetComputeMode(
    device: nvmlDevice_t,
    mode: Out<u32>,
) -> Result<(), nvmlReturn_t> {
    let (_, known) = of(device)?;
    mode.required()?;
    if known.is_software {
        let (view, at) = state::current_view(known)?;
        let viewed = view.devices.get(at).and_then(|viewed| viewed.mode);
        return mode.set(viewed.ok_or(nvmlReturn_t::ERROR_NOT_SUPPORTED)?);
    }
    let pointer = mode.pointer();
    sensors::ask!(c"nvmlDeviceGetComputeMode", device: nvmlDevice_t, pointer: *mut u32)
}

/// Kernels of a software device read and write the others' memory, over no link.
pub(crate) fn nvmlDeviceGetP2PStatus(
    device: nvmlDevice_t,
    peer: nvmlDevice_t,
    capability: u32,
    status: Out<u32>,
) -> Result<(), nvmlReturn_t> {
    let ((_, one), (_, other)) = (of(device)?, of(peer)?);
    status.required()?;
    if capability >= P2P_INDEXES {
        return Err(nvmlReturn_t::ERROR_INVALID_ARGUMENT);
    }
    if one.is_software && other.is_software {
        return status.set(match capability {
            P2P_READ | P2P_WRITE => P2P_OK,
            _ => P2P_NOT_SUPPORTED,
        });
    }
    let pointer = status.pointer();
    sensors::ask!(
        c"nvmlDeviceGetP2PStatus",
        device: nvmlDevice_t, peer: nvmlDevice_t, capability: u32, pointer: *mut u32
    )
}

/// Slices of a device are not offered.
pub(crate) fn nvmlDeviceIsMigDeviceHandle(
    device: nvmlDevice_t,
    is_mig: Out<u32>,
) -> Result<(), nvmlReturn_t> {
    of(device)?;
    is_mig.set(0)
}

pub(crate) fn nvmlDeviceGetMaxMigDeviceCount(
    device: nvmlDevice_t,
    count: Out<u32>,
) -> Result<(), nvmlReturn_t> {
    of(device)?;
    count.set(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_understood_in_all_their_forms() {
        for text in ["00000000:9B:10.0", "0000:9b:10.0", "9b:10.0", "9B:10"] {
            assert_eq!(pci_address(text), Some([0, 0x9b, 0x10]), "{text}");
        }
        assert_eq!(pci_address("00010000:01:00.0"), Some([0x10000, 1, 0]));
        for text in [
            "",
            "9b",
            "9b:10.1",
            "0:0:9b:10.0",
            "+1:10.0",
            "xy:10.0",
            "9b:",
        ] {
            assert_eq!(pci_address(text), None, "{text}");
        }
        assert_eq!(bus_id([0, 0x9b, 0]), "00000000:9B:00.0");
        assert_eq!(legacy_bus_id([0, 0x9b, 0]), "0000:9B:00.0");
    }

    #[test]
    fn uuids_have_sixteen_bytes() {
        let bytes = uuid_bytes("GPU-42cb4199-3815-ad18-8602-5061126b1629");
        let bytes = bytes.expect("a UUID");
        assert_eq!((bytes.len(), bytes[0], bytes[15]), (16, 0x42, 0x29));
        assert_eq!(uuid_bytes("MIG-42"), None);
    }

    #[test]
    fn architectures_follow_from_capabilities() {
        let all = [
            [6, 1],
            [7, 0],
            [7, 5],
            [8, 0],
            [8, 6],
            [8, 9],
            [9, 0],
            [10, 0],
            [12, 0],
        ];
        assert_eq!(all.map(architecture), [4, 5, 6, 7, 7, 8, 9, 10, 10]);
        assert_eq!(architecture([99, 0]), UNKNOWN_ARCHITECTURE);
    }

    #[test]
    fn fields_end_with_a_nul() {
        let [first, .., last] = field::<4>("abcdef");
        assert_eq!((first, last), (b'a'.cast_signed(), 0));
    }
}
