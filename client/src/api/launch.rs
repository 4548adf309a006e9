//! Launches.

use std::ffi::c_void;

use cuda_abi::CUresult;
use cuda_abi::types::{CUfunction, CUlaunchAttribute, CUlaunchConfig, CUstream};

use super::Outcome;
use crate::launch::{Params, Shape, launch};
use crate::params::In;

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
    kernel_params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Outcome {
    let shape = Shape {
        grid: [grid_dim_x, grid_dim_y, grid_dim_z],
        block: [block_dim_x, block_dim_y, block_dim_z],
        shared: shared_mem_bytes,
        cooperative: false,
    };
    let params = Params {
        each: kernel_params,
        extra,
    };
    // SAFETY: the program promises parameters as the kernel has them.
    unsafe { launch(function.bits(), stream, shape, params, &[]) }
}

pub(crate) fn cuLaunchKernelEx(
    config: In<CUlaunchConfig>,
    function: CUfunction,
    kernel_params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Outcome {
    let config = config.get()?;
    let shape = Shape {
        grid: [config.gridDimX, config.gridDimY, config.gridDimZ],
        block: [config.blockDimX, config.blockDimY, config.blockDimZ],
        shared: config.sharedMemBytes,
        cooperative: false,
    };
    let attributes = attributes(&config)?;
    let params = Params {
        each: kernel_params,
        extra,
    };
    // SAFETY: the program promises parameters as the kernel has them.
    unsafe { launch(function.bits(), config.hStream, shape, params, &attributes) }
}

pub(super) fn attributes(config: &CUlaunchConfig) -> Result<Vec<CUlaunchAttribute>, CUresult> {
    if config.numAttrs == 0 {
        return Ok(Vec::new());
    }
    if config.attrs.is_null() || config.numAttrs > MOST_ATTRIBUTES {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    // SAFETY: the program promises as many attributes there as it says.
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
    kernel_params: *mut *mut c_void,
) -> Outcome {
    let shape = Shape {
        grid: [grid_dim_x, grid_dim_y, grid_dim_z],
        block: [block_dim_x, block_dim_y, block_dim_z],
        shared: shared_mem_bytes,
        cooperative: true,
    };
    let params = Params {
        each: kernel_params,
        extra: std::ptr::null_mut(),
    };
    // SAFETY: the program promises parameters as the kernel has them.
    unsafe { launch(function.bits(), stream, shape, params, &[]) }
}
