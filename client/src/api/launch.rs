//! Launches.
//!
//! The first stop of a launch behind the exported shell: what CUDA's variants of it have of their own, and then
//! `code::launch`. Knows no stream's lock and no ring.

use cuda_abi::CUresult;
use cuda_abi::types::{CUfunction, CUlaunchAttribute, CUlaunchConfig, CUstream};

use super::Outcome;
use crate::code::launch::{LaunchShape, Params, launch};
use crate::pointers::{In, ParameterList};
use crate::session::session;

/// More attributes than there are kinds of them.
const MOST_ATTRIBUTES: u32 = 64;

#[allow(clippy::too_many_arguments, reason = "CUDA's function has them")]
pub(crate) fn cuLaunchKernel(
    function: CUfunction,
    grid_dim_x: u32,
    grid_dim_y: u32,
    grid_dim_z: u32,
    block_dim_x: u32,
    block_dim_y: u32,
    block_dim_z: u32,
    shared_mem_bytes: u32,
    stream: CUstream,
    kernel_params: ParameterList,
    extra: ParameterList,
) -> Outcome {
    let shape = LaunchShape {
        grid: [grid_dim_x, grid_dim_y, grid_dim_z],
        block: [block_dim_x, block_dim_y, block_dim_z],
        shared: shared_mem_bytes,
        cooperative: false,
    };
    let params = Params {
        each: kernel_params.pointer(),
        extra: extra.pointer(),
    };
    // SAFETY: the program promises parameters as the kernel has them.
    unsafe { launch(session()?.code, function.bits(), stream, shape, params, &[]) }
}

pub(crate) fn cuLaunchKernelEx(
    config: In<CUlaunchConfig>,
    function: CUfunction,
    kernel_params: ParameterList,
    extra: ParameterList,
) -> Outcome {
    let config = config.get()?;
    let shape = LaunchShape {
        grid: [config.gridDimX, config.gridDimY, config.gridDimZ],
        block: [config.blockDimX, config.blockDimY, config.blockDimZ],
        shared: config.sharedMemBytes,
        cooperative: false,
    };
    // SAFETY: the program's configuration, whose list is as long as it says.
    let attributes = unsafe { attributes(&config)? };
    let params = Params {
        each: kernel_params.pointer(),
        extra: extra.pointer(),
    };
    // SAFETY: the program promises parameters as the kernel has them.
    unsafe {
        launch(
            session()?.code,
            function.bits(),
            config.hStream,
            shape,
            params,
            &attributes,
        )
    }
}

/// The attributes of a launch's configuration.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE for NULL where there are to be any, and for more than there are.
///
/// # Safety
/// The configuration's list is NULL or holds as many attributes as it says.
pub(super) unsafe fn attributes(
    config: &CUlaunchConfig,
) -> Result<Vec<CUlaunchAttribute>, CUresult> {
    if config.numAttrs == 0 {
        return Ok(Vec::new());
    }
    if config.attrs.is_null() || config.numAttrs > MOST_ATTRIBUTES {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    // SAFETY: not NULL, so the list has as many attributes as the caller vouches for.
    Ok((0..config.numAttrs as usize)
        .map(|at| unsafe { config.attrs.add(at).read_unaligned() })
        .collect())
}

#[allow(clippy::too_many_arguments, reason = "CUDA's function has them")]
pub(crate) fn cuLaunchCooperativeKernel(
    function: CUfunction,
    grid_dim_x: u32,
    grid_dim_y: u32,
    grid_dim_z: u32,
    block_dim_x: u32,
    block_dim_y: u32,
    block_dim_z: u32,
    shared_mem_bytes: u32,
    stream: CUstream,
    kernel_params: ParameterList,
) -> Outcome {
    let shape = LaunchShape {
        grid: [grid_dim_x, grid_dim_y, grid_dim_z],
        block: [block_dim_x, block_dim_y, block_dim_z],
        shared: shared_mem_bytes,
        cooperative: true,
    };
    let params = Params {
        each: kernel_params.pointer(),
        extra: std::ptr::null_mut(),
    };
    // SAFETY: the program promises parameters as the kernel has them.
    unsafe { launch(session()?.code, function.bits(), stream, shape, params, &[]) }
}
