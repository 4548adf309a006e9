//! How many blocks fit.

use cuda_abi::CUresult;
use cuda_abi::types::{
    CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE, CUdevice_attribute, CUfunction, CUlaunchAttributeID,
    CUlaunchConfig, CUoccupancyB2DSize,
};

use super::Outcome;
use crate::context::current;
use crate::function::Function;
use crate::occupancy;
use crate::params::{In, Out};
use crate::session::Device;

/// The current context's device, and the function.
fn subject(function: CUfunction) -> Result<(&'static Device, &'static Function), CUresult> {
    let current = current()?;
    Ok((
        current.device()?,
        current.session.functions.get(function.bits())?,
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

/// Blocks of a cluster that a launch asks for, where 0 is as good as 1.
fn cluster(config: &CUlaunchConfig) -> Result<u32, CUresult> {
    let wanted = super::launch::attributes(config)?
        .iter()
        .filter(|attribute| attribute.id == CUlaunchAttributeID::CLUSTER_DIMENSION)
        .map(|attribute| {
            let side = |at: usize| {
                let bytes = &attribute.value.0[at..at + 4];
                u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]).max(1)
            };
            side(0).saturating_mul(side(4)).saturating_mul(side(8))
        })
        .next_back();
    Ok(wanted.unwrap_or(1))
}

pub(crate) fn cuOccupancyMaxActiveClusters(
    num_clusters: Out<i32>,
    function: CUfunction,
    config: In<CUlaunchConfig>,
) -> Outcome {
    let (device, function) = subject(function)?;
    num_clusters.required()?;
    let config = config.get()?;
    if cluster(&config)? > 1 {
        // Launches refuse such clusters too.
        return Err(CUresult::ERROR_NOT_SUPPORTED);
    }
    let threads = config
        .blockDimX
        .checked_mul(config.blockDimY)
        .and_then(|threads| threads.checked_mul(config.blockDimZ))
        .filter(|threads| *threads > 0)
        .ok_or(CUresult::ERROR_INVALID_VALUE)?;
    let shared = config.sharedMemBytes as usize;
    let blocks = occupancy::blocks_per_multiprocessor(device, function, threads, shared)?;
    let multiprocessors = device.attribute(CUdevice_attribute::MULTIPROCESSOR_COUNT);
    num_clusters.set(blocks.saturating_mul(multiprocessors))
}

pub(crate) fn cuOccupancyMaxPotentialClusterSize(
    cluster_size: Out<i32>,
    function: CUfunction,
    config: In<CUlaunchConfig>,
) -> Outcome {
    subject(function)?;
    cluster_size.required()?;
    config.get()?;
    // One block is a cluster everywhere; larger ones are not built.
    cluster_size.set(1)
}
