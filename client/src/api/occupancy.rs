//! How many blocks fit.
//!
//! Owns the arguments, and the question of clusters, which alone the server answers. Called by the shells of
//! `exports`. Must not know the arithmetic (`code::occupancy`).

use cuda_abi::CUresult;
use cuda_abi::types::{
    CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE, CUdevice_attribute, CUfunction, CUlaunchAttribute,
    CUlaunchAttributeID, CUlaunchConfig, CUoccupancyB2DSize,
};
use protocol::operations::ClusterOccupancy;

use super::Outcome;
use crate::code::function::Function;
use crate::code::launch::encode_attribute;
use crate::code::occupancy;
use crate::context::current;
use crate::pointers::{In, Out};
use crate::session::connection::Device;
use crate::session::session;
use crate::stream::attribute_values::word;

/// The current context's device, and the function.
fn subject(function: CUfunction) -> Result<(&'static Device, &'static Function), CUresult> {
    let current = current()?;
    Ok((
        current.device()?,
        session()?.code.functions.get(function.bits())?,
    ))
}

fn check_flags(flags: u32) -> Outcome {
    if flags & !CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE != 0 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    Ok(())
}

pub(crate) fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
    num_blocks: Out<i32>,
    function: CUfunction,
    block_size: i32,
    dynamic_bytes: usize,
) -> Outcome {
    let (device, function) = subject(function)?;
    num_blocks.required()?;
    let threads = u32::try_from(block_size)
        .ok()
        .filter(|threads| *threads > 0);
    let threads = threads.ok_or(CUresult::ERROR_INVALID_VALUE)?;
    num_blocks.set(occupancy::blocks_per_multiprocessor(
        device,
        function,
        threads,
        dynamic_bytes,
    )?)
}

pub(crate) fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    num_blocks: Out<i32>,
    function: CUfunction,
    block_size: i32,
    dynamic_bytes: usize,
    flags: u32,
) -> Outcome {
    check_flags(flags)?;
    cuOccupancyMaxActiveBlocksPerMultiprocessor(num_blocks, function, block_size, dynamic_bytes)
}

pub(crate) fn cuOccupancyMaxPotentialBlockSize(
    min_grid_size: Out<i32>,
    block_size: Out<i32>,
    function: CUfunction,
    dynamic_bytes_of: CUoccupancyB2DSize,
    dynamic_bytes: usize,
    block_size_limit: i32,
) -> Outcome {
    let (device, function) = subject(function)?;
    min_grid_size.required()?;
    block_size.required()?;
    if block_size_limit < 0 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let dynamic = |size| match dynamic_bytes_of {
        // SAFETY: the program's function, which it promises may be called with any block size.
        Some(of) => unsafe { of(size) },
        None => dynamic_bytes,
    };
    let (grid, block) = occupancy::best_block(device, function, block_size_limit, dynamic)?;
    min_grid_size.set(grid)?;
    block_size.set(block)
}

pub(crate) fn cuOccupancyMaxPotentialBlockSizeWithFlags(
    min_grid_size: Out<i32>,
    block_size: Out<i32>,
    function: CUfunction,
    dynamic_bytes_of: CUoccupancyB2DSize,
    dynamic_bytes: usize,
    block_size_limit: i32,
    flags: u32,
) -> Outcome {
    check_flags(flags)?;
    cuOccupancyMaxPotentialBlockSize(
        min_grid_size,
        block_size,
        function,
        dynamic_bytes_of,
        dynamic_bytes,
        block_size_limit,
    )
}

pub(crate) fn cuOccupancyAvailableDynamicSMemPerBlock(
    dynamic_bytes: Out<usize>,
    function: CUfunction,
    num_blocks: i32,
    block_size: i32,
) -> Outcome {
    let (device, function) = subject(function)?;
    dynamic_bytes.required()?;
    dynamic_bytes.set(occupancy::available_shared(
        device, function, num_blocks, block_size,
    )?)
}

/// Asks the server about the clusters of a launch. The device's own driver decides, since how clusters
/// fit depends on how its multiprocessors are grouped.
fn ask_about_clusters(
    function: CUfunction,
    config: &CUlaunchConfig,
    attributes: &[CUlaunchAttribute],
    largest: bool,
) -> Result<i32, CUresult> {
    let current = current()?;
    let code = session()?.code;
    let (_, function) = code.in_context(function.bits(), &current)?;
    let described: Vec<_> = attributes
        .iter()
        .filter(|attribute| SHAPING.contains(&attribute.id))
        .collect();
    let request = ClusterOccupancy {
        module: function.module(),
        kernel: function.index(),
        grid: [config.gridDimX, config.gridDimY, config.gridDimZ],
        block: [config.blockDimX, config.blockDimY, config.blockDimZ],
        shared: config.sharedMemBytes,
        attributes: described.len() as u32,
        largest: largest.into(),
    };
    let data: Vec<u8> = described.into_iter().flat_map(encode_attribute).collect();
    let reply = session()?.call_with(&request, &data)?;
    i32::try_from(reply.fields.count).map_err(|_| CUresult::ERROR_UNKNOWN)
}

/// Launch attributes that have a say in how many clusters fit.
const SHAPING: [CUlaunchAttributeID; 4] = [
    CUlaunchAttributeID::CLUSTER_DIMENSION,
    CUlaunchAttributeID::PREFERRED_CLUSTER_DIMENSION,
    CUlaunchAttributeID::CLUSTER_SCHEDULING_POLICY_PREFERENCE,
    CUlaunchAttributeID::PREFERRED_SHARED_MEMORY_CARVEOUT,
];

/// Whether a launch has clusters of more than one block.
fn has_clusters(function: &Function, attributes: &[CUlaunchAttribute]) -> bool {
    let named = attributes
        .iter()
        .rfind(|attribute| attribute.id == CUlaunchAttributeID::CLUSTER_DIMENSION)
        .map(|cluster| [0, 1, 2].map(|side| word(&cluster.value, side)));
    [named, function.required_cluster()]
        .into_iter()
        .flatten()
        .any(|sides| sides.iter().any(|side| *side > 1))
}

pub(crate) fn cuOccupancyMaxActiveClusters(
    num_clusters: Out<i32>,
    function: CUfunction,
    config: In<CUlaunchConfig>,
) -> Outcome {
    let (device, known) = subject(function)?;
    num_clusters.required()?;
    let config = config.get()?;
    // SAFETY: the program's configuration, whose list is as long as it says.
    let attributes = unsafe { super::launch::attributes(&config)? };
    if has_clusters(known, &attributes) {
        let clusters = ask_about_clusters(function, &config, &attributes, false)?;
        return num_clusters.set(clusters);
    }
    let threads = config
        .blockDimX
        .checked_mul(config.blockDimY)
        .and_then(|threads| threads.checked_mul(config.blockDimZ))
        .filter(|threads| *threads > 0)
        .ok_or(CUresult::ERROR_INVALID_VALUE)?;
    let shared = config.sharedMemBytes as usize;
    let blocks = occupancy::blocks_per_multiprocessor(device, known, threads, shared)?;
    let multiprocessors = device.attribute(CUdevice_attribute::MULTIPROCESSOR_COUNT);
    num_clusters.set(blocks.saturating_mul(multiprocessors))
}

pub(crate) fn cuOccupancyMaxPotentialClusterSize(
    cluster_size: Out<i32>,
    function: CUfunction,
    config: In<CUlaunchConfig>,
) -> Outcome {
    let (device, _) = subject(function)?;
    cluster_size.required()?;
    let config = config.get()?;
    let size = match device.attribute(CUdevice_attribute::CLUSTER_LAUNCH) {
        // One block is a cluster everywhere.
        0 => 1,
        _ => {
            // SAFETY: the program's configuration, whose list is as long as it says.
            let attributes = unsafe { super::launch::attributes(&config)? };
            ask_about_clusters(function, &config, &attributes, true)?
        }
    };
    cluster_size.set(size)
}
