//! The structures that are filled here. Their sizes and versions are held against those of NVIDIA's own
//! Python bindings by `tests/python/nvml_view.py`, through `tests/data/sizes.tsv`.
//!
//! Filled by `api`, through `params`. Plain data: must not know where values come from.

#![allow(non_camel_case_types, non_snake_case, reason = "the names are C's")]

use std::ffi::{c_char, c_void};

use crate::params::ListOut;

/// The version field of a structure of this size.
pub(crate) const fn version<T>(number: u32) -> u32 {
    size_of::<T>() as u32 | number << 24
}

/// A device, as the program names it. Never followed: see `state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct nvmlDevice_t(pub *mut c_void);

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct nvmlMemory_t {
    pub total: u64,
    pub free: u64,
    pub used: u64,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct nvmlMemory_v2_t {
    pub version: u32,
    pub total: u64,
    pub reserved: u64,
    pub free: u64,
    pub used: u64,
}

/// The form of PCI information before its third version.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct nvmlPciInfo_v2_t {
    pub busId: [c_char; 16],
    pub domain: u32,
    pub bus: u32,
    pub device: u32,
    pub pciDeviceId: u32,
    pub pciSubSystemId: u32,
    pub reserved: [u32; 4],
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct nvmlPciInfo_t {
    pub busIdLegacy: [c_char; 16],
    pub domain: u32,
    pub bus: u32,
    pub device: u32,
    pub pciDeviceId: u32,
    pub pciSubSystemId: u32,
    pub busId: [c_char; 32],
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct nvmlPciInfoExt_t {
    pub version: u32,
    pub domain: u32,
    pub bus: u32,
    pub device: u32,
    pub pciDeviceId: u32,
    pub pciSubSystemId: u32,
    pub baseClass: u32,
    pub subClass: u32,
    pub busId: [c_char; 32],
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct nvmlProcessInfo_v1_t {
    pub pid: u32,
    pub usedGpuMemory: u64,
}

/// The form of the second and third version.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct nvmlProcessInfo_v2_t {
    pub pid: u32,
    pub usedGpuMemory: u64,
    pub gpuInstanceId: u32,
    pub computeInstanceId: u32,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct nvmlProcessDetail_v1_t {
    pub pid: u32,
    pub usedGpuMemory: u64,
    pub gpuInstanceId: u32,
    pub computeInstanceId: u32,
    pub usedGpuCcProtectedMemory: u64,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct nvmlProcessDetailList_t {
    pub version: u32,
    pub mode: u32,
    pub numProcArrayEntries: u32,
    pub procArray: ListOut<nvmlProcessDetail_v1_t>,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct nvmlUtilization_t {
    pub gpu: u32,
    pub memory: u32,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct nvmlProcessUtilizationSample_t {
    pub pid: u32,
    pub timeStamp: u64,
    pub smUtil: u32,
    pub memUtil: u32,
    pub encUtil: u32,
    pub decUtil: u32,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct nvmlProcessUtilizationInfo_v1_t {
    pub timeStamp: u64,
    pub pid: u32,
    pub smUtil: u32,
    pub memUtil: u32,
    pub encUtil: u32,
    pub decUtil: u32,
    pub jpgUtil: u32,
    pub ofaUtil: u32,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct nvmlProcessesUtilizationInfo_t {
    pub version: u32,
    pub processSamplesCount: u32,
    pub lastSeenTimeStamp: u64,
    pub procUtilArray: ListOut<nvmlProcessUtilizationInfo_v1_t>,
}

/// Of a UUID's text with its NUL, or its bytes.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct nvmlUUID_t {
    pub version: u32,
    pub kind: u32,
    pub value: [u8; 41],
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct nvmlConfComputeSystemState_t {
    pub environment: u32,
    pub ccFeature: u32,
    pub devToolsMode: u32,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct nvmlSystemConfComputeSettings_t {
    pub version: u32,
    pub environment: u32,
    pub ccFeature: u32,
    pub devToolsMode: u32,
    pub multiGpuMode: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_that_are_held_against_nvidias() {
        let mut sizes = String::new();
        macro_rules! sizes {
            ($($name:ident)*) => {
                $(sizes += &format!("{}\t{}\n", stringify!($name), size_of::<$name>());)*
            };
        }
        sizes! {
            nvmlMemory_t nvmlMemory_v2_t nvmlPciInfo_v2_t nvmlPciInfo_t nvmlPciInfoExt_t
            nvmlProcessInfo_v1_t nvmlProcessInfo_v2_t nvmlProcessDetail_v1_t nvmlProcessDetailList_t
            nvmlUtilization_t nvmlProcessUtilizationSample_t nvmlProcessUtilizationInfo_v1_t
            nvmlProcessesUtilizationInfo_t nvmlUUID_t nvmlConfComputeSystemState_t nvmlSystemConfComputeSettings_t
        }
        assert_eq!(sizes, include_str!("../tests/data/sizes.tsv"));
    }

    #[test]
    fn versions_hold_the_size() {
        assert_eq!(version::<nvmlMemory_v2_t>(2), 0x200_0028);
        assert_eq!(version::<nvmlUUID_t>(1), 0x100_0034);
        assert_eq!(version::<nvmlProcessDetailList_t>(1), 0x100_0018);
    }
}
