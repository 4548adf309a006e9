//! Tensor maps of the software GPU, in a layout of our own: what the host encodes and kernels copy by.
//!
//! Called by `engine-soft`'s client for the host's requests, and by `ops::bulk`. Must not know memory: an address
//! is a number here.
//!
//! Little-endian, without gaps; the sizes in brackets are bytes:
//!
//! ```text
//!   0 address [8]            8 mark [4]              12 kind, type, rank, interleave [1 each]
//!  16 swizzle, L2, fill, mode [1 each]               20 dimensions less one [4 × 5]
//!  40 strides / 16 [5 × 4]  60 element strides [1 × 5]
//!  65 box sides less one [1 × 5], or lower corner [2 × 3], upper corner [2 × 3], channels [2], pixels [2]
//!  81 zeroes
//! ```

use cuda_abi::CUresult;
use cuda_abi::types::{CUtensorMapDataType, CUtensorMapFloatOOBfill, CUtensorMapSwizzle};
use protocol::tensor_maps::{BYTES, MOST_RANK, Shape, Spec, element_bytes};

/// What tells a descriptor of ours from other bytes.
const MARK: [u8; 4] = *b"oTM1";
/// Where each thing stands.
const MARK_AT: usize = 8;
const KIND_AT: usize = 12;
const TYPE_AT: usize = 13;
const RANK_AT: usize = 14;
const INTERLEAVE_AT: usize = 15;
const SWIZZLE_AT: usize = 16;
const FILL_AT: usize = 18;
const DIMS_AT: usize = 20;
const STRIDES_AT: usize = 40;
const STEPS_AT: usize = 60;
const SIDES_AT: usize = 65;

/// The descriptor of a tensor that was [checked](Spec::check): narrowing loses nothing.
#[must_use]
pub fn encode(spec: &Spec) -> [u8; BYTES] {
    let mut map = Vec::with_capacity(BYTES);
    map.extend(spec.address.to_le_bytes());
    map.extend(MARK);
    let (kind, mode) = match spec.shape {
        Shape::Tiled(_) => (0, 0),
        Shape::Im2col { .. } => (1, 0),
        Shape::Im2colWide { mode, .. } => (2, mode.0),
    };
    let small = [
        kind,
        spec.data_type.0,
        spec.rank,
        spec.interleave.0,
        spec.swizzle.0,
        spec.l2_promotion.0,
        spec.oob_fill.0,
        mode,
    ];
    map.extend(small.map(|value| value as u8));
    for dim in spec.dims {
        map.extend((dim.saturating_sub(1) as u32).to_le_bytes());
    }
    for stride in spec.strides {
        map.extend_from_slice(&(stride / 16).to_le_bytes()[..5]);
    }
    map.extend(spec.element_strides.map(|stride| stride as u8));
    let half = |value: i32| (value as i16).to_le_bytes();
    match spec.shape {
        Shape::Tiled(sides) => map.extend(sides.map(|side| side.saturating_sub(1) as u8)),
        Shape::Im2col {
            lower,
            upper,
            channels,
            pixels,
        } => {
            map.extend(lower.into_iter().chain(upper).flat_map(half));
            map.extend(
                [channels, pixels]
                    .map(|count| count as u16)
                    .map(u16::to_le_bytes)
                    .concat(),
            );
        }
        Shape::Im2colWide {
            lower,
            upper,
            channels,
            pixels,
            ..
        } => {
            map.extend([lower, 0, 0, upper, 0, 0].into_iter().flat_map(half));
            map.extend(
                [channels, pixels]
                    .map(|count| count as u16)
                    .map(u16::to_le_bytes)
                    .concat(),
            );
        }
    }
    let mut descriptor = [0; BYTES];
    descriptor[..map.len()].copy_from_slice(&map);
    descriptor
}

/// Puts another address into a descriptor.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE for what is no descriptor of ours, and for an address that its tensor
/// cannot be at.
pub fn replace(map: &[u8], address: u64) -> Result<[u8; BYTES], CUresult> {
    let mut map: [u8; BYTES] = map.try_into().map_err(|_| CUresult::ERROR_INVALID_VALUE)?;
    if map[MARK_AT..MARK_AT + MARK.len()] != MARK {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let granule = protocol::tensor_maps::granule(map[TYPE_AT].into(), map[INTERLEAVE_AT].into());
    if !address.is_multiple_of(granule) {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    map[..8].copy_from_slice(&address.to_le_bytes());
    Ok(map)
}

/// A tensor and the box of it that one copy takes, as a kernel's instruction finds it in a descriptor.
///
/// A kernel may have written the descriptor, so that nothing here is sure to fit anything.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tiled {
    /// Where its first element is.
    pub(crate) address: u64,
    pub(crate) rank: usize,
    /// Bytes of an element.
    pub(crate) element: u64,
    /// Elements of each dimension.
    pub(crate) dims: [u64; MOST_RANK],
    /// Bytes from one element to the next, in each dimension.
    pub(crate) strides: [u64; MOST_RANK],
    /// Elements that are copied, in each dimension.
    pub(crate) counts: [u64; MOST_RANK],
    /// How far apart these are in the tensor, in elements.
    pub(crate) steps: [u64; MOST_RANK],
    /// Which of an address's bits 7 to 9 in shared memory its bits 4 to 6 are combined with.
    pub(crate) swizzle: u64,
    /// What an element beyond the tensor's edges is.
    pub(crate) fill: u64,
}

impl Tiled {
    /// Reads a descriptor. `None` for what is none of ours, and for forms that are not built: im2col,
    /// interleaved dimensions, elements of less than a byte, and swizzling of more than 16 bytes at once.
    pub(crate) fn decode(map: &[u8; BYTES]) -> Option<Self> {
        let word = |at: usize, bytes: usize| {
            let bytes = map[at..at + bytes].iter().rev();
            bytes.fold(0, |sum, &byte| sum << 8 | u64::from(byte))
        };
        let element = element_bytes(CUtensorMapDataType(map[TYPE_AT].into()))?;
        let rank = usize::from(map[RANK_AT]);
        let swizzle = match CUtensorMapSwizzle(map[SWIZZLE_AT].into()) {
            CUtensorMapSwizzle::NONE => 0,
            CUtensorMapSwizzle::B32 => 1,
            CUtensorMapSwizzle::B64 => 3,
            CUtensorMapSwizzle::B128 => 7,
            _ => return None,
        };
        let is_built = map[MARK_AT..MARK_AT + MARK.len()] == MARK
            && map[KIND_AT] == 0
            && map[INTERLEAVE_AT] == 0
            && (1..=MOST_RANK).contains(&rank);
        if !is_built {
            return None;
        }
        let mut tiled = Self {
            address: word(0, 8),
            rank,
            element,
            dims: [1; MOST_RANK],
            strides: [element; MOST_RANK],
            counts: [1; MOST_RANK],
            steps: [1; MOST_RANK],
            swizzle,
            fill: 0,
        };
        for dim in 0..rank {
            tiled.dims[dim] = word(DIMS_AT + 4 * dim, 4) + 1;
            // The innermost dimension has no stride, and a step only where it is interleaved.
            if dim > 0 {
                tiled.strides[dim] = 16 * word(STRIDES_AT + 5 * (dim - 1), 5);
                tiled.steps[dim] = word(STEPS_AT + dim, 1).max(1);
            }
            let side = word(SIDES_AT + dim, 1) + 1;
            tiled.counts[dim] = side.div_ceil(tiled.steps[dim]);
        }
        if u32::from(map[FILL_AT]) == CUtensorMapFloatOOBfill::NAN_REQUEST_ZERO_FMA.0 {
            // All bits but the sign.
            tiled.fill = u64::MAX >> (65 - 8 * element);
        }
        Some(tiled)
    }

    /// Bytes of the box in shared memory.
    pub(crate) fn bytes(&self) -> u64 {
        // At most 256 elements of 8 bytes in each dimension: less than 2^44.
        self.counts.iter().product::<u64>() * self.element
    }
}

#[cfg(test)]
mod tests {
    use cuda_abi::types::{CUtensorMapInterleave, CUtensorMapL2promotion};

    use super::*;

    #[test]
    fn what_a_descriptor_says_stands_where_the_layout_has_it() {
        let spec = Spec {
            data_type: CUtensorMapDataType::BFLOAT16,
            rank: 5,
            address: 0x1122_3344_5560,
            dims: [1 << 32, 2, 3, 4, 5],
            strides: [16, (1 << 40) - 16, 32, 64],
            shape: Shape::Im2col {
                lower: [-16, 15, 0],
                upper: [1, 2, 3],
                channels: 256,
                pixels: 1024,
            },
            element_strides: [1, 2, 3, 4, 8],
            interleave: CUtensorMapInterleave::NONE,
            swizzle: CUtensorMapSwizzle::NONE,
            l2_promotion: CUtensorMapL2promotion::L2_256B,
            oob_fill: CUtensorMapFloatOOBfill::NAN_REQUEST_ZERO_FMA,
        };
        spec.check().unwrap();
        let map = encode(&spec);
        assert_eq!(map[..8], 0x1122_3344_5560_u64.to_le_bytes());
        assert_eq!(map[8..20], *b"oTM1\x01\x09\x05\x00\x00\x03\x01\x00");
        assert_eq!(map[20..28], [0xff, 0xff, 0xff, 0xff, 1, 0, 0, 0]);
        assert_eq!(map[40..50], [1, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xf]);
        assert_eq!(map[60..65], [1, 2, 3, 4, 8]);
        assert_eq!(map[65..69], [0xf0, 0xff, 15, 0]);
        assert_eq!(map[77..81], [0, 1, 0, 4]);
        assert_eq!(map[81..], [0; 47]);
        let moved = replace(&map, 0x40).unwrap();
        assert_eq!(
            (&moved[..8], &moved[8..]),
            (&0x40_u64.to_le_bytes()[..], &map[8..])
        );
        for refused in [
            replace(&map, 8),
            replace(&map[1..], 0x40),
            replace(&[0; BYTES], 0x40),
        ] {
            assert_eq!(refused, Err(CUresult::ERROR_INVALID_VALUE));
        }
    }
}
