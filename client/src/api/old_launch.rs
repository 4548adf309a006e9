//! The launches of before CUDA 4, which are prepared call by call, and those of several devices.
//!
//! Owns the checks of each step. Called by the shells of `exports`. Keeps nothing: `code::legacy_launch` does, and
//! `code::launch` launches; how, it must not know.

use std::ffi::c_void;

use cuda_abi::CUresult;
use cuda_abi::types::{
    CU_LAUNCH_PARAM_BUFFER_POINTER, CU_LAUNCH_PARAM_BUFFER_SIZE, CU_LAUNCH_PARAM_END,
    CUDA_LAUNCH_PARAMS, CUdevice_attribute, CUfunction, CUfunction_attribute, CUstream,
};

use super::Outcome;
use crate::code::function::MOST_PARAM_BYTES;
use crate::code::launch::{LaunchShape, Params, launch};
use crate::code::legacy_launch::Prepared;
use crate::handle::{HandleKind, Key};
use crate::pointers::{Bytes, List};
use crate::session::session;
use crate::stream::{self, StreamTarget};

/// CU_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_PRE_LAUNCH_SYNC and NO_POST_LAUNCH_SYNC.
const NO_SYNC_BEFORE: u32 = 1;
const NO_SYNC_AFTER: u32 = 2;

/// Changes what a live function is prepared for.
fn change(function: CUfunction, change: impl FnOnce(&mut Prepared) -> Outcome) -> Outcome {
    let session = session()?;
    session.code.functions.get(function.bits())?;
    let key =
        Key::of(function.bits(), HandleKind::Function).ok_or(CUresult::ERROR_INVALID_HANDLE)?;
    session.code.functions.prepared.change(key, change)
}

pub(crate) fn cuFuncSetBlockShape(function: CUfunction, x: i32, y: i32, z: i32) -> Outcome {
    let most = session()?
        .code
        .functions
        .get(function.bits())?
        .attribute(CUfunction_attribute::MAX_THREADS_PER_BLOCK)?;
    let threads = [x, y, z].iter().fold(1_i64, |threads, side| {
        threads.saturating_mul(i64::from(*side))
    });
    let sides = [x, y, z].map(u32::try_from);
    let ([Ok(x @ 1..), Ok(y @ 1..), Ok(z @ 1..)], true) = (sides, threads <= i64::from(most))
    else {
        return Err(CUresult::ERROR_INVALID_VALUE);
    };
    change(function, |prepared| {
        prepared.block = [x, y, z];
        Ok(())
    })
}

pub(crate) fn cuFuncSetSharedSize(function: CUfunction, bytes: u32) -> Outcome {
    let most = session()?
        .code
        .functions
        .get(function.bits())?
        .attribute(CUfunction_attribute::MAX_DYNAMIC_SHARED_SIZE_BYTES)?;
    if i64::from(bytes) > i64::from(most) {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    change(function, |prepared| {
        prepared.shared = bytes;
        Ok(())
    })
}

pub(crate) fn cuParamSetSize(function: CUfunction, bytes: u32) -> Outcome {
    if bytes > MOST_PARAM_BYTES {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    change(function, |prepared| {
        prepared.size = bytes;
        Ok(())
    })
}

pub(crate) fn cuParamSeti(function: CUfunction, offset: i32, value: u32) -> Outcome {
    change(function, |prepared| {
        prepared.write(offset, &value.to_ne_bytes())
    })
}

pub(crate) fn cuParamSetf(function: CUfunction, offset: i32, value: f32) -> Outcome {
    change(function, |prepared| {
        prepared.write(offset, &value.to_ne_bytes())
    })
}

pub(crate) fn cuParamSetv(function: CUfunction, offset: i32, ptr: Bytes, bytes: u32) -> Outcome {
    if bytes > MOST_PARAM_BYTES || (bytes > 0 && ptr.pointer().is_null()) {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let value: Vec<u8> = match bytes {
        0 => Vec::new(),
        // SAFETY: not NULL; the program promises as many bytes there as it says.
        _ => unsafe { std::slice::from_raw_parts(ptr.pointer(), bytes as usize) }.to_vec(),
    };
    change(function, |prepared| prepared.write(offset, &value))
}

/// Launches a function as it was prepared.
fn launch_prepared(function: CUfunction, grid: [i32; 2], stream: CUstream) -> Outcome {
    let session = session()?;
    let found = session.code.functions.get(function.bits())?;
    let least = found.layout().map_or(0, |layout| layout.bytes);
    let key =
        Key::of(function.bits(), HandleKind::Function).ok_or(CUresult::ERROR_INVALID_HANDLE)?;
    let prepared = session.code.functions.prepared.of(key);
    let [Ok(width), Ok(height)] = grid.map(u32::try_from) else {
        return Err(CUresult::ERROR_INVALID_VALUE);
    };
    let shape = LaunchShape {
        grid: [width, height, 1],
        block: prepared.block,
        shared: prepared.shared,
        cooperative: false,
    };
    let mut block = prepared.block_of_params(least);
    let mut size = block.len();
    let key = |number| std::ptr::without_provenance_mut::<c_void>(number);
    let mut extra = [
        key(CU_LAUNCH_PARAM_BUFFER_POINTER),
        block.as_mut_ptr().cast(),
        key(CU_LAUNCH_PARAM_BUFFER_SIZE),
        (&raw mut size).cast(),
        key(CU_LAUNCH_PARAM_END),
    ];
    let params = Params {
        each: std::ptr::null_mut(),
        extra: extra.as_mut_ptr(),
    };
    // SAFETY: the list names a block of ours and its size, and ends; both outlive the call.
    unsafe { launch(session.code, function.bits(), stream, shape, params, &[]) }
}

pub(crate) fn cuLaunch(function: CUfunction) -> Outcome {
    launch_prepared(function, [1, 1], CUstream::NULL)
}

pub(crate) fn cuLaunchGrid(function: CUfunction, grid_width: i32, grid_height: i32) -> Outcome {
    launch_prepared(function, [grid_width, grid_height], CUstream::NULL)
}

pub(crate) fn cuLaunchGridAsync(
    function: CUfunction,
    grid_width: i32,
    grid_height: i32,
    stream: CUstream,
) -> Outcome {
    launch_prepared(function, [grid_width, grid_height], stream)
}

/// Makes each stream wait for what all the others have been given until now.
fn meet(targets: &[StreamTarget]) -> Outcome {
    let ends: Vec<_> = targets
        .iter()
        .map(|target| (target.slot, target.stream.posted()))
        .collect();
    for target in targets {
        for (slot, sequence) in &ends {
            target.wait_for(*slot, *sequence)?;
        }
    }
    Ok(())
}

pub(crate) fn cuLaunchCooperativeKernelMultiDevice(
    launch_params_list: List<CUDA_LAUNCH_PARAMS>,
    num_devices: u32,
    flags: u32,
) -> Outcome {
    let session = session()?;
    let wrong = CUresult::ERROR_INVALID_VALUE;
    if num_devices == 0
        || num_devices as usize > session.devices().len()
        || flags & !(NO_SYNC_BEFORE | NO_SYNC_AFTER) != 0
    {
        return Err(wrong);
    }
    let launches = launch_params_list.get(num_devices)?;
    let mut targets = Vec::new();
    let mut devices = Vec::new();
    for one in &launches {
        // Default streams are refused by NVIDIA's documentation.
        if Key::of(one.hStream.bits(), HandleKind::Stream).is_none() {
            return Err(CUresult::ERROR_INVALID_HANDLE);
        }
        let target = stream::target(one.hStream)?;
        let device = target.current.context.device();
        let supported = target
            .current
            .device()?
            .attribute(CUdevice_attribute::COOPERATIVE_MULTI_DEVICE_LAUNCH);
        if supported == 0 {
            return Err(CUresult::ERROR_NOT_SUPPORTED);
        }
        if devices.contains(&device) {
            return Err(CUresult::ERROR_INVALID_DEVICE);
        }
        devices.push(device);
        targets.push(target);
    }
    let shape = |one: &CUDA_LAUNCH_PARAMS| LaunchShape {
        grid: [one.gridDimX, one.gridDimY, one.gridDimZ],
        block: [one.blockDimX, one.blockDimY, one.blockDimZ],
        shared: one.sharedMemBytes,
        cooperative: true,
    };
    let first = launches.first().map(shape).ok_or(wrong)?;
    if launches.iter().any(|one| shape(one) != first) {
        return Err(wrong);
    }
    if flags & NO_SYNC_BEFORE == 0 {
        meet(&targets)?;
    }
    for one in &launches {
        let params = Params {
            each: one.kernelParams,
            extra: std::ptr::null_mut(),
        };
        // SAFETY: the program promises parameters as the kernel has them.
        let launched = unsafe {
            launch(
                session.code,
                one.function.bits(),
                one.hStream,
                first,
                params,
                &[],
            )
        };
        launched?;
    }
    if flags & NO_SYNC_AFTER == 0 {
        meet(&targets)?;
    }
    Ok(())
}
