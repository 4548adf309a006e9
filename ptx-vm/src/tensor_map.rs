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
//!  81 bytes that are swizzled at once, where 128 are swizzled: 16, 32, 32 with halves that change places, 64 [1]
//!  82 zeroes
//! ```

use cuda_abi::CUresult;
use cuda_abi::types::{
    CUtensorMapDataType, CUtensorMapFloatOOBfill, CUtensorMapIm2ColWideMode, CUtensorMapSwizzle,
};
use protocol::tensor_maps::{BYTES, MOST_RANK, Shape, Spec, element_bytes};

use crate::ops::tensor::Mode;

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
const MODE_AT: usize = 19;
const DIMS_AT: usize = 20;
const STRIDES_AT: usize = 40;
const STEPS_AT: usize = 60;
const SIDES_AT: usize = 65;
const ATOMICITY_AT: usize = 81;

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
    let (swizzle, atomicity) = match spec.swizzle {
        CUtensorMapSwizzle::B128_ATOM_32B => (CUtensorMapSwizzle::B128, 1),
        CUtensorMapSwizzle::B128_ATOM_32B_FLIP_8B => (CUtensorMapSwizzle::B128, 2),
        CUtensorMapSwizzle::B128_ATOM_64B => (CUtensorMapSwizzle::B128, 3),
        plain => (plain, 0),
    };
    let small = [
        kind,
        spec.data_type.0,
        spec.rank,
        spec.interleave.0,
        swizzle.0,
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
    descriptor[ATOMICITY_AT] = atomicity;
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

/// The part of a tensor that one copy takes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Region {
    /// A box: how many elements in each dimension.
    Box([u64; MOST_RANK]),
    /// Pixels of a column one after the other (im2col), each with so many channels, which move through a box whose
    /// corners are so far from those of the tensor's inner dimensions.
    Columns {
        lower: [i64; MOST_RANK - 2],
        upper: [i64; MOST_RANK - 2],
        channels: u64,
        pixels: u64,
        /// In how many dimensions they move before the next image: in all, or along the width only.
        moves: usize,
        /// After how many pixels those of the halo come.
        run: u64,
        mode: Mode,
    },
}

impl Region {
    /// The mode of the instructions that take it.
    pub(crate) fn mode(&self) -> Mode {
        match *self {
            Self::Box(_) => Mode::Box,
            Self::Columns { mode, .. } => mode,
        }
    }
}

/// How places in shared memory are exchanged: bits of an address from bit 7 on, the number of its line of 128 bytes, are
/// combined with those from bit `atom` on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Swizzle {
    /// Which bits of the line's number.
    pub(crate) lines: u64,
    /// What stays together is 2 to this power in bytes.
    pub(crate) atom: u32,
}

/// A tensor and what one copy takes of it, as a kernel's instruction finds it in a descriptor.
///
/// A kernel may have written the descriptor, so that nothing here is sure to fit anything.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TensorMap {
    /// Where its first element is.
    pub(crate) address: u64,
    pub(crate) rank: usize,
    pub(crate) data_type: CUtensorMapDataType,
    /// Bytes of an element.
    pub(crate) element: u64,
    /// Elements of each dimension.
    pub(crate) dims: [u64; MOST_RANK],
    /// Bytes from one element to the next, in each dimension.
    pub(crate) strides: [u64; MOST_RANK],
    /// How far apart elements that are copied are in the tensor, in elements.
    pub(crate) steps: [u64; MOST_RANK],
    pub(crate) region: Region,
    pub(crate) swizzle: Swizzle,
    /// What an element beyond the tensor's edges is.
    pub(crate) fill: u64,
}

impl TensorMap {
    /// Reads a descriptor. `None` for what is none of ours, and for forms that are not built: interleaved dimensions,
    /// elements of less than a byte, and swizzling that has halves of 16 bytes change places.
    pub(crate) fn decode(map: &[u8; BYTES]) -> Option<Self> {
        let word = |at: usize, bytes: usize| {
            let bytes = map[at..at + bytes].iter().rev();
            bytes.fold(0, |sum, &byte| sum << 8 | u64::from(byte))
        };
        let data_type = CUtensorMapDataType(map[TYPE_AT].into());
        let element = element_bytes(data_type)?;
        let rank = usize::from(map[RANK_AT]);
        let swizzled = CUtensorMapSwizzle(map[SWIZZLE_AT].into());
        let (lines, atom) = match (swizzled, map[ATOMICITY_AT]) {
            (CUtensorMapSwizzle::NONE, _) => (0, 4),
            (CUtensorMapSwizzle::B32, 0) => (1, 4),
            (CUtensorMapSwizzle::B64, 0) => (3, 4),
            (CUtensorMapSwizzle::B128, 0) => (7, 4),
            (CUtensorMapSwizzle::B128, 1) => (3, 5),
            (CUtensorMapSwizzle::B128, 3) => (1, 6),
            _ => return None,
        };
        let is_built = map[MARK_AT..MARK_AT + MARK.len()] == MARK
            && map[INTERLEAVE_AT] == 0
            && (1..=MOST_RANK).contains(&rank);
        if !is_built {
            return None;
        }
        let mut tensor = Self {
            address: word(0, 8),
            rank,
            data_type,
            element,
            dims: [1; MOST_RANK],
            strides: [element; MOST_RANK],
            steps: [1; MOST_RANK],
            region: Region::Box([1; MOST_RANK]),
            swizzle: Swizzle { lines, atom },
            fill: 0,
        };
        for dim in 0..rank {
            tensor.dims[dim] = word(DIMS_AT + 4 * dim, 4) + 1;
            // The innermost dimension has no stride, and a step only where it is interleaved.
            if dim > 0 {
                tensor.strides[dim] = 16 * word(STRIDES_AT + 5 * (dim - 1), 5);
                tensor.steps[dim] = word(STEPS_AT + dim, 1).max(1);
            }
        }
        tensor.region = match map[KIND_AT] {
            0 => {
                let mut counts = [1; MOST_RANK];
                for (dim, count) in counts.iter_mut().enumerate().take(rank) {
                    let side = word(SIDES_AT + dim, 1) + 1;
                    *count = side.div_ceil(tensor.steps[dim]);
                }
                Region::Box(counts)
            }
            kind @ (1 | 2) if rank >= 3 => {
                let corner = |at: usize| -> [i64; MOST_RANK - 2] {
                    std::array::from_fn(|axis| i64::from(word(at + 2 * axis, 2) as u16 as i16))
                };
                let pixels = word(SIDES_AT + 14, 2);
                let (mode, moves, pixels, run) = match (kind, u32::from(map[MODE_AT])) {
                    (1, _) => (Mode::Columns, MOST_RANK, pixels, pixels),
                    // Wide columns are swizzled.
                    (_, _) if lines == 0 => return None,
                    (_, mode) if mode == CUtensorMapIm2ColWideMode::W.0 => {
                        (Mode::Wide, 1, pixels, pixels)
                    }
                    (_, _) => (Mode::Wide128, 1, 128, 32),
                };
                Region::Columns {
                    lower: corner(SIDES_AT),
                    upper: corner(SIDES_AT + 6),
                    channels: word(SIDES_AT + 12, 2),
                    pixels,
                    moves,
                    run,
                    mode,
                }
            }
            _ => return None,
        };
        if u32::from(map[FILL_AT]) == CUtensorMapFloatOOBfill::NAN_REQUEST_ZERO_FMA.0 {
            // All bits but the sign.
            tensor.fill = u64::MAX >> (65 - 8 * element);
        }
        Some(tensor)
    }

    /// Elements of a row in shared memory, and rows.
    pub(crate) fn extent(&self) -> (u64, u64) {
        match self.region {
            Region::Box(counts) => (counts[0], counts[1..].iter().product()),
            Region::Columns {
                channels, pixels, ..
            } => (channels, pixels),
        }
    }
}

/// What `tensormap.replace` changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Field {
    GlobalAddress,
    Rank,
    BoxDim,
    GlobalDim,
    GlobalStride,
    ElementStride,
    ElementType,
    InterleaveLayout,
    SwizzleMode,
    SwizzleAtomicity,
    FillMode,
}

/// The fields in the order of their numbers, by PTX's words.
const FIELDS: [(&str, Field); 11] = [
    ("global_address", Field::GlobalAddress),
    ("rank", Field::Rank),
    ("box_dim", Field::BoxDim),
    ("global_dim", Field::GlobalDim),
    ("global_stride", Field::GlobalStride),
    ("element_stride", Field::ElementStride),
    ("elemtype", Field::ElementType),
    ("interleave_layout", Field::InterleaveLayout),
    ("swizzle_mode", Field::SwizzleMode),
    ("swizzle_atomicity", Field::SwizzleAtomicity),
    ("fill_mode", Field::FillMode),
];

/// CUDA's number of each type of elements, by PTX's.
const ELEMENT_TYPES: [CUtensorMapDataType; 13] = [
    CUtensorMapDataType::UINT8,
    CUtensorMapDataType::UINT16,
    CUtensorMapDataType::UINT32,
    CUtensorMapDataType::INT32,
    CUtensorMapDataType::UINT64,
    CUtensorMapDataType::INT64,
    CUtensorMapDataType::FLOAT16,
    CUtensorMapDataType::FLOAT32,
    CUtensorMapDataType::FLOAT32_FTZ,
    CUtensorMapDataType::FLOAT64,
    CUtensorMapDataType::BFLOAT16,
    CUtensorMapDataType::TFLOAT32,
    CUtensorMapDataType::TFLOAT32_FTZ,
];

impl Field {
    /// The field that a word of PTX names.
    pub(crate) fn named(word: &str) -> Option<Self> {
        FIELDS
            .iter()
            .find(|(name, _)| *name == word)
            .map(|(_, field)| *field)
    }

    /// The field with a number, modulo how many there are.
    pub(crate) fn numbered(number: u64) -> Self {
        FIELDS[(number % FIELDS.len() as u64) as usize].1
    }

    /// Whether one of several of it is named.
    pub(crate) fn has_ordinal(self) -> bool {
        matches!(
            self,
            Self::BoxDim | Self::GlobalDim | Self::GlobalStride | Self::ElementStride
        )
    }
}

/// Puts another value into a field of a descriptor, which may be all zeroes as yet: number `ordinal` of those that there
/// are several of. `None` for a value or a number that there is not.
pub(crate) fn replace_field(
    map: &mut [u8; BYTES],
    field: Field,
    ordinal: u64,
    value: u64,
) -> Option<()> {
    let dim = usize::try_from(ordinal)
        .ok()
        .filter(|&dim| dim < MOST_RANK)?;
    let mut put = |at: usize, bytes: usize, value: u64| {
        map[at..at + bytes].copy_from_slice(&value.to_le_bytes()[..bytes]);
    };
    let small = |most: u64| (value <= most).then_some(value);
    match field {
        Field::GlobalAddress => put(0, 8, value),
        Field::Rank => put(RANK_AT, 1, small(MOST_RANK as u64 - 1)? + 1),
        Field::BoxDim => put(SIDES_AT + dim, 1, small(256)?.checked_sub(1)?),
        Field::GlobalDim => put(DIMS_AT + 4 * dim, 4, value.wrapping_sub(1) & 0xffff_ffff),
        Field::GlobalStride if dim < MOST_RANK - 1 && value < 1 << 40 => {
            put(STRIDES_AT + 5 * dim, 5, value / 16);
        }
        Field::GlobalStride => return None,
        Field::ElementStride => put(STEPS_AT + dim, 1, small(8)?),
        Field::ElementType => {
            let named = usize::try_from(value)
                .ok()
                .and_then(|at| ELEMENT_TYPES.get(at))?;
            put(TYPE_AT, 1, named.0.into());
        }
        Field::InterleaveLayout => put(INTERLEAVE_AT, 1, small(2)?),
        // The fourth, of 96 bytes, is later GPUs'.
        Field::SwizzleMode => put(SWIZZLE_AT, 1, small(3)?),
        Field::SwizzleAtomicity => put(ATOMICITY_AT, 1, small(3)?),
        Field::FillMode => put(FILL_AT, 1, small(1)?),
    }
    map[MARK_AT..MARK_AT + MARK.len()].copy_from_slice(&MARK);
    Some(())
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
