//! Batches: of boxes that are copied, and of managed ranges that are moved or whose contents are dropped.
//!
//! Called by the shells of `exports`. It makes one call of `api::copy` or `api::managed` of each element and must
//! not know how either is done; a batch is nothing to the server.

use cuda_abi::CUresult;
use cuda_abi::types::{
    CUDA_MEMCPY3D_BATCH_OP, CUarray, CUdeviceptr, CUmemDecompressParams, CUmemLocation,
    CUmemcpy3DOperand, CUmemorytype, CUstream,
};
use protocol::operations::CONTEXT_SLOTS;

use super::Outcome;
use super::copy_box::{Operand, copy_box};
use super::managed::{managed, prefetch};
use crate::handle::HandleKind;
use crate::memory::copy::Return;
use crate::memory::copy::sides::Extent;
use crate::pointers::{List, Out};
use crate::session::{Session, session};
use crate::stream::{StreamTarget, target};

const WRONG: CUresult = CUresult::ERROR_INVALID_VALUE;

/// What a batch may have: more than any program's.
const MOST: usize = 1 << 24;

/// CU_MEMCPY_OPERAND_TYPE_POINTER and CU_MEMCPY_OPERAND_TYPE_ARRAY.
const POINTER: u32 = 1;
const ARRAY: u32 = 2;

/// CU_MEMCPY_SRC_ACCESS_ORDER_ANY, the last of the orders; 0 is none.
const LAST_ORDER: u32 = 3;

/// CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE, the only flag of a copy.
const OVERLAP: u32 = 1;

/// The stream of a batch, which cannot be a legacy one.
fn stream_of(stream: CUstream, count: usize, flags: u64) -> Result<StreamTarget, CUresult> {
    let target = target(stream)?;
    let fits = (1..=MOST).contains(&count) && flags == 0 && target.slot >= CONTEXT_SLOTS;
    fits.then_some(target).ok_or(WRONG)
}

/// Bytes of an element of an operand; `None` for memory, whose elements are the other side's.
fn element(session: &Session, operand: &CUmemcpy3DOperand) -> Result<Option<u64>, CUresult> {
    match operand.r#type {
        POINTER => Ok(None),
        ARRAY => {
            super::given(operand.op[0])?;
            let array = session.arrays.get(operand.op[0], HandleKind::Array)?;
            Ok(Some(array.shape.element()))
        }
        _ => Err(WRONG),
    }
}

/// One side of a copy. `extent` is in elements.
fn operand(
    operand: &CUmemcpy3DOperand,
    extent: [u64; 3],
    element: u64,
) -> Result<Operand, CUresult> {
    let [first, second, third, fourth] = operand.op;
    let none = Operand {
        kind: CUmemorytype::UNIFIED,
        host: std::ptr::null(),
        device: 0,
        array: CUarray::NULL,
        pitch: 0,
        rows: 0,
        x: 0,
        y: 0,
        z: 0,
    };
    if operand.r#type == ARRAY {
        let x = second.checked_mul(element).ok_or(WRONG)?;
        return Ok(Operand {
            kind: CUmemorytype::ARRAY,
            array: CUarray::from_bits(first),
            x: x as usize,
            y: third as usize,
            z: fourth as usize,
            ..none
        });
    }
    // 0 is as long and as high as what is copied.
    let row = if second == 0 { extent[0] } else { second };
    let rows = if third == 0 { extent[1] } else { third };
    if row < extent[0] || rows < extent[1] {
        return Err(WRONG);
    }
    Ok(Operand {
        device: first,
        pitch: row.checked_mul(element).ok_or(WRONG)? as usize,
        rows: rows as usize,
        ..none
    })
}

fn copy_operation(target: &StreamTarget, copy: &CUDA_MEMCPY3D_BATCH_OP) -> Outcome {
    let session = session()?;
    let known = (1..=LAST_ORDER).contains(&copy.srcAccessOrder) && copy.flags & !OVERLAP == 0;
    let extent = copy.extent.map(|side| side as u64);
    if !known || extent.contains(&0) {
        return Err(WRONG);
    }
    let (to, from) = (element(session, &copy.dst)?, element(session, &copy.src)?);
    let element = match (to, from) {
        (Some(one), Some(other)) if one != other => return Err(WRONG),
        (one, other) => one.or(other).unwrap_or(1),
    };
    let (to, from) = (
        operand(&copy.dst, extent, element)?,
        operand(&copy.src, extent, element)?,
    );
    let extent = Extent {
        width: extent[0].checked_mul(element).ok_or(WRONG)?,
        height: extent[1],
        depth: extent[2],
    };
    copy_box(target, &to, &from, extent, Return::Early)
}

fn copy_boxes(
    count: usize,
    list: &List<CUDA_MEMCPY3D_BATCH_OP>,
    flags: u64,
    stream: CUstream,
    failed_at: impl Fn(usize),
) -> Outcome {
    let target = stream_of(stream, count, flags)?;
    // In order, which is one of the orders that a batch allows.
    for (at, copy) in list.get(count as u32)?.iter().enumerate() {
        copy_operation(&target, copy).inspect_err(|_| failed_at(at))?;
    }
    Ok(())
}

pub(crate) fn cuMemcpy3DBatchAsync(
    num_params: usize,
    op_list: List<CUDA_MEMCPY3D_BATCH_OP>,
    fail_idx: Out<usize>,
    flags: u64,
    stream: CUstream,
) -> Outcome {
    // What fails as a whole fails at no copy in particular.
    fail_idx.set_if(usize::MAX);
    copy_boxes(num_params, &op_list, flags, stream, |at| {
        fail_idx.set_if(at);
    })
}

pub(crate) fn cuMemcpy3DBatchAsync_v2(
    num_params: usize,
    op_list: List<CUDA_MEMCPY3D_BATCH_OP>,
    flags: u64,
    stream: CUstream,
) -> Outcome {
    copy_boxes(num_params, &op_list, flags, stream, |_| {})
}

/// The location that each range of a batch goes to: each of `locations` holds from its index on, the first
/// from 0.
fn spread(
    locations: &[CUmemLocation],
    indices: &[usize],
    count: usize,
) -> Result<Vec<CUmemLocation>, CUresult> {
    let rising = indices.windows(2).all(|pair| pair[0] < pair[1]);
    let inside = indices.iter().all(|index| *index < count);
    if indices.first() != Some(&0) || !rising || !inside || locations.len() != indices.len() {
        return Err(WRONG);
    }
    let ends = indices[1..].iter().copied().chain([count]);
    let runs = locations.iter().zip(indices.iter().zip(ends));
    Ok(runs
        .flat_map(|(location, (start, end))| std::iter::repeat_n(*location, end - start))
        .collect())
}

/// The ranges of a batch, each of which is managed memory.
fn ranges(
    dptrs: &List<CUdeviceptr>,
    sizes: &List<usize>,
    count: usize,
) -> Result<Vec<(CUdeviceptr, usize)>, CUresult> {
    let (dptrs, sizes) = (dptrs.get(count as u32)?, sizes.get(count as u32)?);
    let all: Vec<_> = dptrs.into_iter().zip(sizes).collect();
    let session = session()?;
    for (dptr, size) in &all {
        managed(session, *dptr, *size)?;
    }
    Ok(all)
}

#[allow(clippy::too_many_arguments, reason = "CUDA's function has them")]
pub(crate) fn cuMemPrefetchBatchAsync(
    dptrs: List<CUdeviceptr>,
    sizes: List<usize>,
    count: usize,
    prefetch_locs: List<CUmemLocation>,
    prefetch_loc_idxs: List<usize>,
    num_prefetch_locs: usize,
    flags: u64,
    stream: CUstream,
) -> Outcome {
    stream_of(stream, count, flags)?;
    let all = ranges(&dptrs, &sizes, count)?;
    if num_prefetch_locs > count {
        return Err(WRONG);
    }
    let number = num_prefetch_locs as u32;
    let (locations, indices) = (prefetch_locs.get(number)?, prefetch_loc_idxs.get(number)?);
    let locations = spread(&locations, &indices, count)?;
    let session = session()?;
    for ((dptr, size), location) in all.into_iter().zip(locations) {
        prefetch(session, dptr, size, location, 0)?;
    }
    Ok(())
}

pub(crate) fn cuMemDiscardBatchAsync(
    dptrs: List<CUdeviceptr>,
    sizes: List<usize>,
    count: usize,
    flags: u64,
    stream: CUstream,
) -> Outcome {
    stream_of(stream, count, flags)?;
    // What was dropped may be read as it was: it is where the program reads it already.
    ranges(&dptrs, &sizes, count).map(drop)
}

#[allow(clippy::too_many_arguments, reason = "CUDA's function has them")]
pub(crate) fn cuMemDiscardAndPrefetchBatchAsync(
    dptrs: List<CUdeviceptr>,
    sizes: List<usize>,
    count: usize,
    prefetch_locs: List<CUmemLocation>,
    prefetch_loc_idxs: List<usize>,
    num_prefetch_locs: usize,
    flags: u64,
    stream: CUstream,
) -> Outcome {
    cuMemPrefetchBatchAsync(
        dptrs,
        sizes,
        count,
        prefetch_locs,
        prefetch_loc_idxs,
        num_prefetch_locs,
        flags,
        stream,
    )
}

pub(crate) fn cuMemBatchDecompressAsync(
    _params_array: List<CUmemDecompressParams>,
    _count: usize,
    _flags: u32,
    _error_index: Out<usize>,
    _stream: CUstream,
) -> Outcome {
    session()?;
    // CU_DEVICE_ATTRIBUTE_MEM_DECOMPRESS_ALGORITHM_MASK is 0: no device does it, as NVIDIA's driver
    // answers on an H200.
    Err(CUresult::ERROR_NOT_SUPPORTED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_hold_from_their_index_on() {
        let at = |id| CUmemLocation { r#type: 1, id };
        let (one, two) = (at(1), at(2));
        let all = spread(&[one, two], &[0, 2], 4).unwrap();
        assert_eq!(all, [one, one, two, two]);
        assert_eq!(spread(&[one], &[0], 1).unwrap(), [one]);
        for (indices, count) in [([1, 2], 4), ([0, 0], 4), ([0, 4], 4)] {
            assert_eq!(spread(&[one, two], &indices, count), Err(WRONG));
        }
        assert_eq!(spread(&[], &[], 4), Err(WRONG));
    }
}
