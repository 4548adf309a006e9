//! Launch attributes: kept or refused, never dropped.
//!
//! Which values are refused, and with which error, is as NVIDIA's driver 580 was seen to do it.
//!
//! Owns the list of attributes, in the wire's form. Called by `code::launch`, graphs' kernel nodes and
//! `api::occupancy`. Must not post, nor know the stream of the launch.

use cuda_abi::CUresult;
use cuda_abi::types::{
    CUdevice_attribute, CUevent, CUfunction_attribute, CUlaunchAttribute, CUlaunchAttributeID,
    CUlaunchAttributeValue,
};

use super::LaunchShape;
use crate::code::function::Function;
use crate::context::Current;
use crate::session::connection::Device;
use crate::stream::attribute_values::{check_value, long, word};
use crate::stream::event::Events;

/// More launch attributes than there are kinds of them.
const MOST_ATTRIBUTES: usize = 64;

/// Bytes of a launch attribute.
const ATTRIBUTE_BYTES: usize = size_of::<CUlaunchAttribute>();

/// Blocks that a cluster may have on every device that has clusters.
const PORTABLE_CLUSTER: u64 = 8;

/// A launch as its attributes want it.
#[derive(Clone, Debug)]
pub(crate) struct LaunchConfig {
    pub shape: LaunchShape,
    /// Blocks of a cluster in x, y, z, if an attribute or the kernel says so.
    pub cluster: Option<[u32; 3]>,
    /// The attributes that the server is told of, as they travel.
    pub raw: Vec<u8>,
    /// Events that are to be recorded once the kernel is done. CUDA records some of them earlier; who
    /// waits for an event cannot tell, but by waiting longer.
    pub events: Vec<CUevent>,
}

impl LaunchConfig {
    /// How many attributes the server is told of.
    pub(crate) fn count(&self) -> u32 {
        (self.raw.len() / ATTRIBUTE_BYTES) as u32
    }
}

/// An attribute as it travels.
pub(crate) fn encode_attribute(attribute: &CUlaunchAttribute) -> [u8; ATTRIBUTE_BYTES] {
    let mut bytes = [0; ATTRIBUTE_BYTES];
    bytes[..4].copy_from_slice(&attribute.id.0.to_le_bytes());
    bytes[8..].copy_from_slice(&attribute.value.0);
    bytes
}

/// The clusters of a launch, checked: those that an attribute names, else those that its kernel wants.
///
/// # Errors
/// CUDA_ERROR_INVALID_CLUSTER_SIZE if an attribute names others than the kernel wants, and as [`check_cluster`]'s.
#[inline]
pub(super) fn cluster_of(
    device: &Device,
    function: &Function,
    grid: &[u32; 3],
    named: Option<[u32; 3]>,
) -> Result<Option<[u32; 3]>, CUresult> {
    let required = function.required_cluster();
    let Some(cluster) = named.or(required) else {
        return Ok(None);
    };
    if required.is_some_and(|required| required != cluster) {
        return Err(CUresult::ERROR_INVALID_CLUSTER_SIZE);
    }
    check_cluster(device, function, grid, cluster)?;
    Ok(Some(cluster))
}

/// Checks that somebody has said what the clusters of a launch are, where its kernel wants that.
///
/// # Errors
/// CUDA_ERROR_INVALID_CLUSTER_SIZE if nobody has.
#[inline]
pub(crate) fn check_is_said(
    function: &Function,
    cluster: Option<[u32; 3]>,
) -> Result<(), CUresult> {
    let must = function.attribute(CUfunction_attribute::CLUSTER_SIZE_MUST_BE_SET)? != 0;
    if must && cluster.is_none() {
        return Err(CUresult::ERROR_INVALID_CLUSTER_SIZE);
    }
    Ok(())
}

/// Checks a cluster's dimensions against the grid's, the kernel's and the device's.
///
/// # Errors
/// CUDA_ERROR_INVALID_CLUSTER_SIZE, and CUDA_ERROR_NOT_SUPPORTED on a device without clusters.
fn check_cluster(
    device: &Device,
    function: &Function,
    grid: &[u32; 3],
    cluster: [u32; 3],
) -> Result<(), CUresult> {
    if cluster == [1; 3] {
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
    let most = most.min(function.most_cluster_blocks().into());
    if !cluster.iter().zip(grid).all(divides) || blocks > most {
        return Err(CUresult::ERROR_INVALID_CLUSTER_SIZE);
    }
    match device.attribute(CUdevice_attribute::CLUSTER_LAUNCH) {
        0 => Err(CUresult::ERROR_NOT_SUPPORTED),
        _ => Ok(()),
    }
}

/// The sides of a cluster that an attribute has; zeroes are none.
fn sides(value: &CUlaunchAttributeValue) -> Option<[u32; 3]> {
    let sides = [word(value, 0), word(value, 1), word(value, 2)];
    (sides != [0; 3]).then_some(sides)
}

/// The event of an attribute that names one.
fn event(events: &Events, value: &CUlaunchAttributeValue) -> Result<CUevent, CUresult> {
    let event = CUevent::from_bits(long(value, 0));
    let known = events.get(event)?;
    match known.has_timing() {
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
pub(crate) fn read_attributes(
    events: &Events,
    current: &Current,
    function: &Function,
    shape: LaunchShape,
    attributes: &[CUlaunchAttribute],
) -> Result<LaunchConfig, CUresult> {
    let device = current.device()?;
    let mut asked = LaunchConfig {
        shape,
        cluster: None,
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
            CUlaunchAttributeID::CLUSTER_DIMENSION => {
                let Some(cluster) = sides(value) else {
                    continue; // As if it were not there.
                };
                asked.cluster = Some(cluster);
            }
            CUlaunchAttributeID::PREFERRED_CLUSTER_DIMENSION => {
                let Some(cluster) = sides(value) else {
                    continue;
                };
                check_cluster(device, function, &shape.grid, cluster)?;
            }
            // An event of this process means nothing to a server.
            CUlaunchAttributeID::PROGRAMMATIC_EVENT
            | CUlaunchAttributeID::LAUNCH_COMPLETION_EVENT => {
                asked.events.push(event(events, value)?);
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
        asked.raw.extend(encode_attribute(attribute));
    }
    asked.cluster = cluster_of(device, function, &shape.grid, asked.cluster)?;
    Ok(asked)
}
