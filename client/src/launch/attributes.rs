//! Launch attributes: kept or refused, never dropped.
//!
//! Which values are refused, and with which error, is as NVIDIA's driver 580 was seen to do it.

use cuda_abi::CUresult;
use cuda_abi::types::{
    CUdevice_attribute, CUevent, CUfunction_attribute, CUlaunchAttribute, CUlaunchAttributeID,
    CUlaunchAttributeValue,
};

use super::Shape;
use crate::context::Current;
use crate::function::Function;
use crate::session::Device;

/// More launch attributes than there are kinds of them.
const MOST_ATTRIBUTES: usize = 64;

/// Bytes of a launch attribute.
const ATTRIBUTE_BYTES: usize = size_of::<CUlaunchAttribute>();

/// Blocks that a cluster may have on every device that has clusters.
const PORTABLE_CLUSTER: u64 = 8;

/// A launch as its attributes want it.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub shape: Shape,
    /// The attributes that the server is told of, as they travel.
    pub raw: Vec<u8>,
    /// Events that are to be recorded once the kernel is done. CUDA records some of them earlier; who
    /// waits for an event cannot tell, but by waiting longer.
    pub events: Vec<CUevent>,
}

impl Asked {
    /// How many attributes the server is told of.
    pub(crate) fn count(&self) -> u32 {
        (self.raw.len() / ATTRIBUTE_BYTES) as u32
    }
}

/// The 32-bit word of a value at an index.
pub(crate) fn word(value: &CUlaunchAttributeValue, index: usize) -> u32 {
    let at = index * 4;
    let mut bytes = [0; 4];
    bytes.copy_from_slice(&value.0[at..at + 4]);
    u32::from_ne_bytes(bytes)
}

/// An attribute as it travels.
pub(crate) fn wire_form(attribute: &CUlaunchAttribute) -> [u8; ATTRIBUTE_BYTES] {
    let mut bytes = [0; ATTRIBUTE_BYTES];
    bytes[..4].copy_from_slice(&attribute.id.0.to_le_bytes());
    bytes[8..].copy_from_slice(&attribute.value.0);
    bytes
}

/// The 64-bit word of a value at an index.
fn long(value: &CUlaunchAttributeValue, index: usize) -> u64 {
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

/// Checks a cluster's dimensions against the grid's.
fn check_cluster(
    device: &Device,
    function: &Function,
    shape: &Shape,
    value: &CUlaunchAttributeValue,
) -> Result<(), CUresult> {
    let cluster = [word(value, 0), word(value, 1), word(value, 2)];
    if cluster == [0; 3] || cluster == [1; 3] {
        return Ok(());
    }
    let divides = |(size, grid): (&u32, &u32)| *size != 0 && grid.is_multiple_of(*size);
    let blocks: u64 = cluster
        .iter()
        .fold(1, |all, size| u64::saturating_mul(all, u64::from(*size)));
    let larger = function.attribute(CUfunction_attribute::NON_PORTABLE_CLUSTER_SIZE_ALLOWED)? != 0;
    let most = if larger {
        2 * PORTABLE_CLUSTER
    } else {
        PORTABLE_CLUSTER
    };
    if !cluster.iter().zip(&shape.grid).all(divides) || blocks > most {
        return Err(CUresult::ERROR_INVALID_CLUSTER_SIZE);
    }
    match device.attribute(CUdevice_attribute::CLUSTER_LAUNCH) {
        0 => Err(CUresult::ERROR_NOT_SUPPORTED),
        _ => Ok(()),
    }
}

/// The event of an attribute that names one.
fn event(current: &Current, value: &CUlaunchAttributeValue) -> Result<CUevent, CUresult> {
    let event = CUevent::from_bits(long(value, 0));
    let known = current.session.events.get(event)?;
    match known.keeps_time() {
        // Only events without times can be recorded from within a kernel.
        true => Err(CUresult::ERROR_NOT_SUPPORTED),
        false => Ok(event),
    }
}

/// What the attributes of a launch ask for.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE for attributes that launches do not have and for wrong values,
/// CUDA_ERROR_INVALID_CLUSTER_SIZE, CUDA_ERROR_INVALID_HANDLE for dead events, and
/// CUDA_ERROR_NOT_SUPPORTED for what cannot be done.
pub(crate) fn asked(
    current: &Current,
    function: &Function,
    shape: Shape,
    attributes: &[CUlaunchAttribute],
) -> Result<Asked, CUresult> {
    let device = current.device()?;
    let mut asked = Asked {
        shape,
        raw: Vec::new(),
        events: Vec::new(),
    };
    if attributes.len() > MOST_ATTRIBUTES {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    for attribute in attributes {
        let value = &attribute.value;
        check_value(device, attribute.id, value)?;
        match attribute.id {
            CUlaunchAttributeID::IGNORE => continue,
            CUlaunchAttributeID::COOPERATIVE => asked.shape.cooperative |= word(value, 0) != 0,
            CUlaunchAttributeID::CLUSTER_DIMENSION
            | CUlaunchAttributeID::PREFERRED_CLUSTER_DIMENSION => {
                check_cluster(device, function, &shape, value)?;
                if word(value, 0) == 0 {
                    continue; // As if it were not there.
                }
            }
            // An event of this process means nothing to a server.
            CUlaunchAttributeID::PROGRAMMATIC_EVENT
            | CUlaunchAttributeID::LAUNCH_COMPLETION_EVENT => {
                asked.events.push(event(current, value)?);
                continue;
            }
            CUlaunchAttributeID::DEVICE_UPDATABLE_KERNEL_NODE => {
                return Err(CUresult::ERROR_NOT_SUPPORTED);
            }
            CUlaunchAttributeID::ACCESS_POLICY_WINDOW
            | CUlaunchAttributeID::CLUSTER_SCHEDULING_POLICY_PREFERENCE
            | CUlaunchAttributeID::PROGRAMMATIC_STREAM_SERIALIZATION
            | CUlaunchAttributeID::PRIORITY
            | CUlaunchAttributeID::MEM_SYNC_DOMAIN_MAP
            | CUlaunchAttributeID::MEM_SYNC_DOMAIN
            | CUlaunchAttributeID::PREFERRED_SHARED_MEMORY_CARVEOUT
            | CUlaunchAttributeID::NVLINK_UTIL_CENTRIC_SCHEDULING => {}
            // A stream's own, such as its synchronisation policy, and those that there are not.
            _ => return Err(CUresult::ERROR_INVALID_VALUE),
        }
        asked.raw.extend(wire_form(attribute));
    }
    Ok(asked)
}
