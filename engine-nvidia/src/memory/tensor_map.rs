//! Tensor maps, which the driver makes: what is in them is the GPU's own affair.
//!
//! The driver computes them from its arguments alone; nothing is kept. Called by the client. Must not know kernels.

use cuda_abi::CUresult;
use cuda_abi::types::CUtensorMap;
use protocol::tensor_maps::{ALIGNMENT, BYTES, Shape, Spec};

use crate::device::Device;

const _: () = assert!(size_of::<CUtensorMap>() == BYTES && align_of::<CUtensorMap>() == ALIGNMENT);

/// A descriptor's bytes.
fn bytes(map: &CUtensorMap) -> Vec<u8> {
    map.opaque.into_iter().flat_map(u64::to_le_bytes).collect()
}

/// The address as the driver's signatures have it. Nothing follows it.
fn pointer(address: u64) -> *mut std::ffi::c_void {
    std::ptr::without_provenance_mut(address as usize)
}

/// Makes the descriptor of a tensor that was [checked](Spec::check).
///
/// # Errors
/// The driver's status.
pub(crate) fn encode(device: &Device, spec: &Spec) -> Result<Vec<u8>, CUresult> {
    let driver = device.enter()?;
    let mut map = CUtensorMap { opaque: [0; 16] };
    let made = &raw mut map;
    let (data_type, rank, address) = (spec.data_type, spec.rank, pointer(spec.address));
    let (dims, strides) = (spec.dims.as_ptr(), spec.strides.as_ptr());
    let element_strides = spec.element_strides.as_ptr();
    // SAFETY: the lists are locals of the caller's with as many elements as the greatest rank needs,
    // which `check` holds the rank to; the descriptor is a local, aligned as its type says.
    unsafe {
        match &spec.shape {
            Shape::Tiled(sides) => driver.cuTensorMapEncodeTiled(
                made,
                data_type,
                rank,
                address,
                dims,
                strides,
                sides.as_ptr(),
                element_strides,
                spec.interleave,
                spec.swizzle,
                spec.l2_promotion,
                spec.oob_fill,
            )?,
            Shape::Im2col {
                lower,
                upper,
                channels,
                pixels,
            } => driver.cuTensorMapEncodeIm2col(
                made,
                data_type,
                rank,
                address,
                dims,
                strides,
                lower.as_ptr(),
                upper.as_ptr(),
                *channels,
                *pixels,
                element_strides,
                spec.interleave,
                spec.swizzle,
                spec.l2_promotion,
                spec.oob_fill,
            )?,
            Shape::Im2colWide {
                lower,
                upper,
                channels,
                pixels,
                mode,
            } => driver.cuTensorMapEncodeIm2colWide(
                made,
                data_type,
                rank,
                address,
                dims,
                strides,
                *lower,
                *upper,
                *channels,
                *pixels,
                element_strides,
                spec.interleave,
                *mode,
                spec.swizzle,
                spec.l2_promotion,
                spec.oob_fill,
            )?,
        }
    }
    Ok(bytes(&map))
}

/// Puts another address into a descriptor.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE for what has not a descriptor's length, and the driver's status.
pub(crate) fn replace(device: &Device, map: &[u8], address: u64) -> Result<Vec<u8>, CUresult> {
    let (words, rest) = map.as_chunks::<8>();
    let words: [[u8; 8]; BYTES / 8] = words
        .try_into()
        .map_err(|_| CUresult::ERROR_INVALID_VALUE)?;
    if !rest.is_empty() {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let mut map = CUtensorMap {
        opaque: words.map(u64::from_le_bytes),
    };
    // SAFETY: the descriptor is a local, aligned as its type says.
    unsafe {
        device
            .enter()?
            .cuTensorMapReplaceAddress(&raw mut map, pointer(address))?;
    }
    Ok(bytes(&map))
}
