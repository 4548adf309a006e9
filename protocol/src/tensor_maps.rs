//! Tensor maps: what a program describes of a tensor so that kernels can copy boxes of it.
//!
//! A kernel gets a descriptor of [`BYTES`] bytes. What these mean is the GPU's own affair, so the engine
//! makes them; a [`Spec`] is what a client sends it. Owns the description, its checks and its bytes;
//! knows no descriptor's layout.

use cuda_abi::CUresult;
use cuda_abi::types::{
    CUtensorMapDataType, CUtensorMapFloatOOBfill, CUtensorMapIm2ColWideMode, CUtensorMapInterleave,
    CUtensorMapL2promotion, CUtensorMapSwizzle,
};

/// Bytes of a descriptor.
pub const BYTES: usize = 128;

/// Tensor copies read a descriptor at a multiple of this.
pub const ALIGNMENT: usize = 64;

/// The most dimensions of a tensor.
pub const MOST_RANK: usize = 5;

/// Words that a [`Spec`] travels as.
const WORDS: usize = 31;

/// The part of a tensor that one copy takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Shape {
    /// A box, by its sides in elements.
    Tiled([u32; MOST_RANK]),
    /// Columns of pixels, between corners that a convolution's filter moves.
    Im2col {
        /// The first pixel's offsets in width, height and depth.
        lower: [i32; MOST_RANK - 2],
        /// The last one's.
        upper: [i32; MOST_RANK - 2],
        /// Channels of a pixel.
        channels: u32,
        /// Pixels of a column.
        pixels: u32,
    },
    /// The same, along the width only.
    Im2colWide {
        /// The first pixel's offset.
        lower: i32,
        /// The last one's.
        upper: i32,
        /// Channels of a pixel.
        channels: u32,
        /// Pixels of a column.
        pixels: u32,
        /// Which form of it.
        mode: CUtensorMapIm2ColWideMode,
    },
}

/// A tensor and how copies take parts of it. What is beyond its rank is zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Spec {
    /// The type of an element.
    pub data_type: CUtensorMapDataType,
    /// Its dimensions.
    pub rank: u32,
    /// Where its first element is.
    pub address: u64,
    /// Elements of each dimension, the innermost one first.
    pub dims: [u64; MOST_RANK],
    /// Bytes from one element to the next of each dimension but the innermost.
    pub strides: [u64; MOST_RANK - 1],
    /// What a copy takes.
    pub shape: Shape,
    /// Of how many elements a copy takes one, in each dimension.
    pub element_strides: [u32; MOST_RANK],
    /// How the innermost dimension is interleaved.
    pub interleave: CUtensorMapInterleave,
    /// How shared memory is swizzled.
    pub swizzle: CUtensorMapSwizzle,
    /// How much the cache takes.
    pub l2_promotion: CUtensorMapL2promotion,
    /// What is beyond the edge.
    pub oob_fill: CUtensorMapFloatOOBfill,
}

/// Bytes of an element; `None` for types of less than a byte.
#[must_use]
pub fn element_bytes(data_type: CUtensorMapDataType) -> Option<u64> {
    type T = CUtensorMapDataType;
    Some(match data_type {
        T::UINT8 => 1,
        T::UINT16 | T::FLOAT16 | T::BFLOAT16 => 2,
        T::UINT64 | T::INT64 | T::FLOAT64 => 8,
        other if other <= T::TFLOAT32_FTZ => 4,
        _ => return None,
    })
}

/// Whether elements are fractions that can be a NaN.
fn is_float(data_type: CUtensorMapDataType) -> bool {
    type T = CUtensorMapDataType;
    (T::FLOAT16..=T::TFLOAT32_FTZ).contains(&data_type)
}

/// What an address or stride must be a multiple of, by the numbers of type and interleaving.
#[must_use]
pub const fn granule(data_type: u32, interleave: u32) -> u64 {
    type T = CUtensorMapDataType;
    match CUtensorMapDataType(data_type) {
        T::PACKED_16U4_ALIGN16B | T::PACKED_16U6_ALIGN16B => 32,
        _ if interleave == CUtensorMapInterleave::B32.0 => 32,
        _ => 16,
    }
}

impl Spec {
    /// Refuses what NVIDIA's driver 580 does, whatever the device (seen on an H200, where it asks less
    /// than the documentation says). A device may refuse more.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE.
    pub fn check(&self) -> Result<(), CUresult> {
        let fits = self.has_known_values()
            && self.tensor_fits()
            && match self.shape {
                Shape::Tiled(sides) => {
                    let rank = self.rank as usize;
                    sides[..rank].iter().all(|side| (1..=256).contains(side))
                        && self.inner_fits(sides[0])
                }
                Shape::Im2col {
                    lower,
                    upper,
                    channels,
                    pixels,
                } => {
                    // The corners share 32 bits or less.
                    let bound = match self.rank {
                        3 => 1 << 15,
                        4 => 1 << 7,
                        _ => 1 << 4,
                    };
                    let corners = self.rank as usize - 2;
                    let mut offsets = lower[..corners].iter().chain(&upper[..corners]);
                    offsets.all(|offset| (-bound..bound).contains(offset))
                        && self.columns_fit(channels, pixels)
                }
                Shape::Im2colWide {
                    lower,
                    upper,
                    channels,
                    pixels,
                    mode,
                } => {
                    let bound = 1 << 15;
                    mode <= CUtensorMapIm2ColWideMode::W128
                        && (-bound..bound).contains(&lower)
                        && (-bound..bound).contains(&upper)
                        && self.columns_fit(channels, pixels)
                }
            };
        match fits {
            true => Ok(()),
            false => Err(CUresult::ERROR_INVALID_VALUE),
        }
    }

    fn has_known_values(&self) -> bool {
        self.data_type <= CUtensorMapDataType::PACKED_16U6_ALIGN16B
            && self.interleave <= CUtensorMapInterleave::B32
            && self.swizzle <= CUtensorMapSwizzle::B128_ATOM_64B
            && self.l2_promotion <= CUtensorMapL2promotion::L2_256B
            && match self.oob_fill {
                CUtensorMapFloatOOBfill::NONE => true,
                CUtensorMapFloatOOBfill::NAN_REQUEST_ZERO_FMA => is_float(self.data_type),
                _ => false,
            }
    }

    fn tensor_fits(&self) -> bool {
        let is_plain = self.interleave == CUtensorMapInterleave::NONE;
        let least = match self.shape {
            Shape::Tiled(_) if is_plain => 1,
            _ => 3,
        };
        if !(least..=MOST_RANK as u32).contains(&self.rank) {
            return false;
        }
        let rank = self.rank as usize;
        let granule = granule(self.data_type.0, self.interleave.0);
        self.address.is_multiple_of(granule)
            && self.dims[..rank]
                .iter()
                .all(|dim| (1..=1 << 32).contains(dim))
            && self.strides[..rank - 1]
                .iter()
                .all(|stride| stride.is_multiple_of(granule) && *stride < 1 << 40)
            && self.element_strides[..rank]
                .iter()
                .all(|stride| (1..=8).contains(stride))
    }

    /// Whether the innermost side of what a copy takes suits the interleaving and the swizzle.
    fn inner_fits(&self, elements: u32) -> bool {
        let Some(element) = element_bytes(self.data_type) else {
            return true;
        };
        let bytes = u64::from(elements) * element;
        if self.interleave != CUtensorMapInterleave::NONE {
            return true;
        }
        let most = match self.swizzle {
            CUtensorMapSwizzle::NONE => u64::MAX,
            CUtensorMapSwizzle::B32 => 32,
            CUtensorMapSwizzle::B64 => 64,
            _ => 128,
        };
        bytes.is_multiple_of(16) && bytes <= most
    }

    fn columns_fit(&self, channels: u32, pixels: u32) -> bool {
        (1..=256).contains(&channels) && pixels <= 1024 && self.inner_fits(channels)
    }

    /// The bytes that it travels as.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let signed = |value: i32| u64::from(value.cast_unsigned());
        let mut words = vec![
            u64::from(self.data_type.0),
            u64::from(self.rank),
            self.address,
            u64::from(self.interleave.0),
            u64::from(self.swizzle.0),
            u64::from(self.l2_promotion.0),
            u64::from(self.oob_fill.0),
        ];
        words.extend(self.dims);
        words.extend(self.strides);
        words.extend(self.element_strides.map(u64::from));
        match self.shape {
            Shape::Tiled(sides) => {
                words.push(0);
                words.extend(sides.map(u64::from));
            }
            Shape::Im2col {
                lower,
                upper,
                channels,
                pixels,
            } => {
                words.push(1);
                words.extend(lower.map(signed));
                words.extend(upper.map(signed));
                words.extend([channels, pixels].map(u64::from));
            }
            Shape::Im2colWide {
                lower,
                upper,
                channels,
                pixels,
                mode,
            } => {
                words.extend([2, signed(lower), signed(upper)]);
                words.extend([channels, pixels, mode.0].map(u64::from));
            }
        }
        words.resize(WORDS, 0);
        words.into_iter().flat_map(u64::to_le_bytes).collect()
    }

    /// Reads what [`Spec::encode`] wrote, and checks it.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for bytes that are something else, and as [`Spec::check`].
    pub fn decode(bytes: &[u8]) -> Result<Self, CUresult> {
        let spec = Self::read(bytes).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        spec.check()?;
        Ok(spec)
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        if bytes.len() != WORDS * 8 {
            return None;
        }
        let (words, _) = bytes.as_chunks::<8>();
        let mut words = words.iter().map(|word| u64::from_le_bytes(*word));
        let mut long = || words.next();
        fn narrow(word: Option<u64>) -> Option<u32> {
            u32::try_from(word?).ok()
        }
        fn array<T: Copy + Default, const N: usize>(
            mut next: impl FnMut() -> Option<T>,
        ) -> Option<[T; N]> {
            let mut values = [T::default(); N];
            for value in &mut values {
                *value = next()?;
            }
            Some(values)
        }
        let data_type = CUtensorMapDataType(narrow(long())?);
        let rank = narrow(long())?;
        let address = long()?;
        let interleave = CUtensorMapInterleave(narrow(long())?);
        let swizzle = CUtensorMapSwizzle(narrow(long())?);
        let l2_promotion = CUtensorMapL2promotion(narrow(long())?);
        let oob_fill = CUtensorMapFloatOOBfill(narrow(long())?);
        let dims = array(&mut long)?;
        let strides = array(&mut long)?;
        let element_strides = array(|| narrow(long()))?;
        let kind = long()?;
        let mut word = || narrow(long());
        let shape = match kind {
            0 => Shape::Tiled(array(word)?),
            1 => Shape::Im2col {
                lower: array(|| word().map(u32::cast_signed))?,
                upper: array(|| word().map(u32::cast_signed))?,
                channels: word()?,
                pixels: word()?,
            },
            2 => Shape::Im2colWide {
                lower: word()?.cast_signed(),
                upper: word()?.cast_signed(),
                channels: word()?,
                pixels: word()?,
                mode: CUtensorMapIm2ColWideMode(word()?),
            },
            _ => return None,
        };
        Some(Self {
            data_type,
            rank,
            address,
            dims,
            strides,
            shape,
            element_strides,
            interleave,
            swizzle,
            l2_promotion,
            oob_fill,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tiled() -> Spec {
        Spec {
            data_type: CUtensorMapDataType::FLOAT32,
            rank: 2,
            address: 0x1000,
            dims: [64, 48, 0, 0, 0],
            strides: [256, 0, 0, 0],
            shape: Shape::Tiled([16, 8, 0, 0, 0]),
            element_strides: [1, 1, 0, 0, 0],
            interleave: CUtensorMapInterleave::NONE,
            swizzle: CUtensorMapSwizzle::B64,
            l2_promotion: CUtensorMapL2promotion::NONE,
            oob_fill: CUtensorMapFloatOOBfill::NAN_REQUEST_ZERO_FMA,
        }
    }

    fn columns() -> Spec {
        Spec {
            rank: 4,
            dims: [16, 20, 20, 2, 0],
            strides: [64, 1280, 25600, 0],
            element_strides: [1, 1, 1, 1, 0],
            shape: Shape::Im2col {
                lower: [-1, -2, 0],
                upper: [1, 2, 0],
                channels: 8,
                pixels: 100,
            },
            ..tiled()
        }
    }

    fn wide() -> Spec {
        Spec {
            shape: Shape::Im2colWide {
                lower: -3,
                upper: 4,
                channels: 8,
                pixels: 128,
                mode: CUtensorMapIm2ColWideMode::W128,
            },
            ..columns()
        }
    }

    #[test]
    fn specs_travel_and_other_bytes_are_refused() {
        for spec in [tiled(), columns(), wide()] {
            let bytes = spec.encode();
            assert_eq!(Spec::decode(&bytes), Ok(spec));
            for end in 0..bytes.len() {
                assert!(Spec::decode(&bytes[..end]).is_err());
            }
            assert!(Spec::decode(&[&bytes[..], &[0; 8]].concat()).is_err());
            let mut bytes = bytes;
            bytes[12] = 1;
            assert!(Spec::decode(&bytes).is_err(), "a rank of 2³² and more");
        }
    }

    #[test]
    fn what_the_manual_forbids_is_refused() {
        let refused = |change: fn(&mut Spec)| {
            let mut spec = tiled();
            change(&mut spec);
            assert_eq!(spec.check(), Err(CUresult::ERROR_INVALID_VALUE), "{spec:?}");
        };
        refused(|spec| spec.rank = 0);
        refused(|spec| spec.rank = 6);
        refused(|spec| spec.address += 8);
        refused(|spec| spec.dims[1] = 0);
        refused(|spec| spec.dims[0] = (1 << 32) + 1);
        refused(|spec| spec.strides[0] = 264);
        refused(|spec| spec.strides[0] = 1 << 40);
        refused(|spec| spec.shape = Shape::Tiled([16, 0, 0, 0, 0]));
        refused(|spec| spec.shape = Shape::Tiled([16, 257, 0, 0, 0]));
        refused(|spec| spec.shape = Shape::Tiled([3, 1, 0, 0, 0]));
        // 128 bytes with a swizzle of 64.
        refused(|spec| spec.shape = Shape::Tiled([32, 1, 0, 0, 0]));
        refused(|spec| spec.element_strides[1] = 9);
        refused(|spec| spec.element_strides[1] = 0);
        refused(|spec| spec.element_strides[0] = 0);
        refused(|spec| spec.interleave = CUtensorMapInterleave::B16);
        refused(|spec| spec.data_type = CUtensorMapDataType(16));
        refused(|spec| spec.data_type = CUtensorMapDataType::INT32);
        refused(|spec| spec.swizzle = CUtensorMapSwizzle(7));
        refused(|spec| spec.l2_promotion = CUtensorMapL2promotion(4));
        refused(|spec| spec.oob_fill = CUtensorMapFloatOOBfill(2));
        let of_columns = |change: fn(&mut Spec)| {
            for mut spec in [columns(), wide()] {
                change(&mut spec);
                assert_eq!(spec.check(), Err(CUresult::ERROR_INVALID_VALUE), "{spec:?}");
            }
        };
        of_columns(|spec| spec.rank = 2);
        of_columns(|spec| spec.strides[0] = 40);
        of_columns(|spec| match &mut spec.shape {
            Shape::Im2col { channels, .. } | Shape::Im2colWide { channels, .. } => *channels = 0,
            Shape::Tiled(_) => {}
        });
        of_columns(|spec| match &mut spec.shape {
            Shape::Im2col { lower, .. } => lower[0] = -129,
            Shape::Im2colWide { lower, .. } => *lower = -32769,
            Shape::Tiled(_) => {}
        });
        of_columns(|spec| match &mut spec.shape {
            Shape::Im2col { pixels, .. } | Shape::Im2colWide { pixels, .. } => *pixels = 1025,
            Shape::Tiled(_) => {}
        });
        of_columns(|spec| match &mut spec.shape {
            Shape::Im2col { channels, .. } | Shape::Im2colWide { channels, .. } => *channels = 257,
            Shape::Tiled(_) => {}
        });
    }

    #[test]
    fn interleaved_tensors_lie_at_multiples_of_32() {
        let mut spec = Spec {
            rank: 3,
            strides: [256, 512, 0, 0],
            dims: [8, 8, 8, 0, 0],
            element_strides: [1, 1, 1, 0, 0],
            shape: Shape::Tiled([8, 1, 1, 0, 0]),
            interleave: CUtensorMapInterleave::B32,
            swizzle: CUtensorMapSwizzle::B32,
            ..tiled()
        };
        assert_eq!(spec.check(), Ok(()));
        spec.address += 16;
        assert_eq!(spec.check(), Err(CUresult::ERROR_INVALID_VALUE));
        spec.address -= 16;
        spec.strides[1] = 528;
        assert_eq!(spec.check(), Err(CUresult::ERROR_INVALID_VALUE));
    }
}
