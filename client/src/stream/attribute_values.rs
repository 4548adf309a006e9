//! Values of attributes that streams and launches share: 64 bytes, read by the attribute's kind.
//!
//! Which values are refused is as NVIDIA's driver 580 was seen to do it. Knows neither streams nor kernels.
//!
//! Called by `attributes`, launches' attributes, `api::occupancy` and `api::graph::described`.

use cuda_abi::CUresult;
use cuda_abi::types::{CUdevice_attribute, CUlaunchAttributeID, CUlaunchAttributeValue};

use crate::session::connection::Device;

/// The 32-bit word of a value at an index.
pub(crate) fn word(value: &CUlaunchAttributeValue, index: usize) -> u32 {
    let at = index * 4;
    let mut bytes = [0; 4];
    bytes.copy_from_slice(&value.0[at..at + 4]);
    u32::from_ne_bytes(bytes)
}

/// The 64-bit word of a value at an index.
pub(crate) fn long(value: &CUlaunchAttributeValue, index: usize) -> u64 {
    u64::from(word(value, 2 * index)) | u64::from(word(value, 2 * index + 1)) << 32
}

/// Checks a value that depends on nothing but the device.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE for one that the attribute cannot have.
pub(crate) fn check_value(
    device: &Device,
    attribute: CUlaunchAttributeID,
    value: &CUlaunchAttributeValue,
) -> Result<(), CUresult> {
    let fits = match attribute {
        CUlaunchAttributeID::ACCESS_POLICY_WINDOW => {
            // Address, bytes, hit ratio, what hits and what misses are.
            let (bytes, ratio) = (long(value, 1), f32::from_bits(word(value, 4)));
            let most = device.attribute(CUdevice_attribute::MAX_ACCESS_POLICY_WINDOW_SIZE);
            // A device that has no such windows keeps the hint, as it would one that it cannot use.
            let most = if most > 0 {
                i64::from(most) as u64
            } else {
                u64::from(u32::MAX)
            };
            bytes == 0
                || ((0.0..=1.0).contains(&ratio)
                    && bytes <= most
                    && word(value, 5) <= 2
                    && word(value, 6) <= 1)
        }
        CUlaunchAttributeID::MEM_SYNC_DOMAIN => word(value, 0) <= 1,
        CUlaunchAttributeID::MEM_SYNC_DOMAIN_MAP => value.0[0] < 4 && value.0[1] < 4,
        CUlaunchAttributeID::CLUSTER_SCHEDULING_POLICY_PREFERENCE => word(value, 0) <= 2,
        CUlaunchAttributeID::PREFERRED_SHARED_MEMORY_CARVEOUT => {
            word(value, 0) <= 100 || word(value, 0) == u32::MAX
        }
        CUlaunchAttributeID::NVLINK_UTIL_CENTRIC_SCHEDULING => word(value, 0) <= 1,
        _ => true,
    };
    match fits {
        true => Ok(()),
        false => Err(CUresult::ERROR_INVALID_VALUE),
    }
}
