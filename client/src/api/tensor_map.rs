//! Tensor maps: descriptors for tensor copies. The device's driver makes them, behind the server.
//!
//! Owns the reading of the program's arguments, and what is refused of them. Called by the shells of `exports`.
//! Must not know the bits of a map.

use cuda_abi::CUresult;
use cuda_abi::types::{
    CUtensorMap, CUtensorMapDataType, CUtensorMapFloatOOBfill, CUtensorMapIm2ColWideMode,
    CUtensorMapInterleave, CUtensorMapL2promotion, CUtensorMapSwizzle,
};
use protocol::operations::TensorMapReplace;
use protocol::tensor_maps::{MOST_RANK, Shape, Spec};

use super::Outcome;
use crate::code::tensor_map_cache::of_reply;
use crate::context::current_as_it_is;
use crate::pointers::{Address, List, Out};
use crate::session::{Session, session};

/// The elements of a list, and zeroes behind them.
fn padded<T: Copy + Default, const N: usize>(
    list: &List<T>,
    count: u32,
) -> Result<[T; N], CUresult> {
    let mut values = [T::default(); N];
    for (place, value) in values.iter_mut().zip(list.get(count)?) {
        *place = value;
    }
    Ok(values)
}

/// Refuses addresses that are nobody's or another client's. NULL is a place that the program fills in
/// later, on the device.
fn check_own(session: &Session, address: u64) -> Outcome {
    let is_own = address == 0
        || session.addresses.is_ours(address)
        || session.ranges.find(address).is_some();
    match is_own {
        true => Ok(()),
        false => Err(CUresult::ERROR_INVALID_VALUE),
    }
}

/// Refuses ranks for which lists would be read too far, and no list of strides, which one dimension needs too.
fn check_rank(rank: u32, strides: &List<u64>) -> Outcome {
    match rank as usize {
        1..=MOST_RANK if !strides.pointer().is_null() => Ok(()),
        _ => Err(CUresult::ERROR_INVALID_VALUE),
    }
}

/// Gives the descriptor that the current context's device has for a tensor.
fn encode(map: &Out<CUtensorMap>, spec: &Spec) -> Outcome {
    let current = current_as_it_is()?;
    spec.check()?;
    check_own(session()?, spec.address)?;
    let maps = &session()?.code.tensor_maps;
    map.set(maps.encode(session()?, current.device()?.number, spec)?)
}

#[allow(clippy::too_many_arguments, reason = "CUDA's function has them")]
pub(crate) fn cuTensorMapEncodeTiled(
    tensor_map: Out<CUtensorMap>,
    data_type: CUtensorMapDataType,
    rank: u32,
    global_address: Address,
    global_dim: List<u64>,
    global_strides: List<u64>,
    box_dim: List<u32>,
    element_strides: List<u32>,
    interleave: CUtensorMapInterleave,
    swizzle: CUtensorMapSwizzle,
    l2_promotion: CUtensorMapL2promotion,
    oob_fill: CUtensorMapFloatOOBfill,
) -> Outcome {
    current_as_it_is()?;
    tensor_map.required()?;
    check_rank(rank, &global_strides)?;
    let spec = Spec {
        data_type,
        rank,
        address: global_address.bits(),
        dims: padded(&global_dim, rank)?,
        strides: padded(&global_strides, rank - 1)?,
        shape: Shape::Tiled(padded(&box_dim, rank)?),
        element_strides: padded(&element_strides, rank)?,
        interleave,
        swizzle,
        l2_promotion,
        oob_fill,
    };
    encode(&tensor_map, &spec)
}

#[allow(clippy::too_many_arguments, reason = "CUDA's function has them")]
pub(crate) fn cuTensorMapEncodeIm2col(
    tensor_map: Out<CUtensorMap>,
    data_type: CUtensorMapDataType,
    rank: u32,
    global_address: Address,
    global_dim: List<u64>,
    global_strides: List<u64>,
    pixel_box_lower_corner: List<i32>,
    pixel_box_upper_corner: List<i32>,
    channels_per_pixel: u32,
    pixels_per_column: u32,
    element_strides: List<u32>,
    interleave: CUtensorMapInterleave,
    swizzle: CUtensorMapSwizzle,
    l2_promotion: CUtensorMapL2promotion,
    oob_fill: CUtensorMapFloatOOBfill,
) -> Outcome {
    current_as_it_is()?;
    tensor_map.required()?;
    check_rank(rank, &global_strides)?;
    // Channels and batch have no corner; a rank without any is refused below.
    let corners = rank.saturating_sub(2);
    let spec = Spec {
        data_type,
        rank,
        address: global_address.bits(),
        dims: padded(&global_dim, rank)?,
        strides: padded(&global_strides, rank - 1)?,
        shape: Shape::Im2col {
            lower: padded(&pixel_box_lower_corner, corners)?,
            upper: padded(&pixel_box_upper_corner, corners)?,
            channels: channels_per_pixel,
            pixels: pixels_per_column,
        },
        element_strides: padded(&element_strides, rank)?,
        interleave,
        swizzle,
        l2_promotion,
        oob_fill,
    };
    encode(&tensor_map, &spec)
}

#[allow(clippy::too_many_arguments, reason = "CUDA's function has them")]
pub(crate) fn cuTensorMapEncodeIm2colWide(
    tensor_map: Out<CUtensorMap>,
    data_type: CUtensorMapDataType,
    rank: u32,
    global_address: Address,
    global_dim: List<u64>,
    global_strides: List<u64>,
    pixel_box_lower_corner_width: i32,
    pixel_box_upper_corner_width: i32,
    channels_per_pixel: u32,
    pixels_per_column: u32,
    element_strides: List<u32>,
    interleave: CUtensorMapInterleave,
    mode: CUtensorMapIm2ColWideMode,
    swizzle: CUtensorMapSwizzle,
    l2_promotion: CUtensorMapL2promotion,
    oob_fill: CUtensorMapFloatOOBfill,
) -> Outcome {
    current_as_it_is()?;
    tensor_map.required()?;
    check_rank(rank, &global_strides)?;
    let spec = Spec {
        data_type,
        rank,
        address: global_address.bits(),
        dims: padded(&global_dim, rank)?,
        strides: padded(&global_strides, rank - 1)?,
        shape: Shape::Im2colWide {
            lower: pixel_box_lower_corner_width,
            upper: pixel_box_upper_corner_width,
            channels: channels_per_pixel,
            pixels: pixels_per_column,
            mode,
        },
        element_strides: padded(&element_strides, rank)?,
        interleave,
        swizzle,
        l2_promotion,
        oob_fill,
    };
    encode(&tensor_map, &spec)
}

pub(crate) fn cuTensorMapReplaceAddress(
    tensor_map: Out<CUtensorMap>,
    global_address: Address,
) -> Outcome {
    let current = current_as_it_is()?;
    let session = session()?;
    tensor_map.required()?;
    let address = global_address.bits();
    if address == 0 || !address.is_multiple_of(16) {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    check_own(session, address)?;
    let request = TensorMapReplace {
        device: current.device()?.number,
        address,
    };
    let old: Vec<u8> = tensor_map
        .get()?
        .opaque
        .into_iter()
        .flat_map(u64::to_le_bytes)
        .collect();
    let reply = session.call_with(&request, &old)?;
    tensor_map.set(of_reply(&reply.data)?)
}
