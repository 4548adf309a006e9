//! Arrays: what shapes there are, and how many bytes they take.
//!
//! The client checks a program's descriptions by it, the server counts memory by it, and engines
//! check by it again, since nothing that a client says is trusted. Knows no memory.

use crate::operations::ArrayCreate;
use cuda_abi::CUresult;
use cuda_abi::types::{
    CUDA_ARRAY3D_CUBEMAP, CUDA_ARRAY3D_DESCRIPTOR, CUDA_ARRAY3D_LAYERED, CUDA_ARRAY3D_SURFACE_LDST,
    CUDA_ARRAY3D_TEXTURE_GATHER, CUarray_format,
};

/// CUDA_ARRAY3D_COLOR_ATTACHMENT: a hint for other interfaces, which changes nothing here.
const COLOR_ATTACHMENT: u32 = 0x20;
const BUILT_FLAGS: u32 = CUDA_ARRAY3D_LAYERED
    | CUDA_ARRAY3D_SURFACE_LDST
    | CUDA_ARRAY3D_CUBEMAP
    | CUDA_ARRAY3D_TEXTURE_GATHER
    | COLOR_ATTACHMENT;
/// All flags that CUDA 13 has: depth textures, sparse arrays, deferred mapping and video are not built.
const KNOWN_FLAGS: u32 = 0x1ff;

/// The longest sides, in elements: a one-dimensional array, width and height of a two-dimensional
/// one, each side of a three-dimensional one, layered and cube-shaped ones, and layers.
pub const MOST_1D: u64 = 131_072;
/// See [`MOST_1D`].
pub const MOST_2D: [u64; 2] = [131_072, 65_536];
/// See [`MOST_1D`].
pub const MOST_3D: u64 = 16_384;
/// See [`MOST_1D`].
pub const MOST_LAYERED: u64 = 32_768;
/// See [`MOST_1D`].
pub const MOST_LAYERS: u64 = 2048;
/// Elements of a texture of linear memory.
pub const MOST_LINEAR: u64 = 1 << 28;
/// Bytes to which the rows of a pitched texture and its start are aligned.
pub const PITCH_ALIGNMENT: u64 = 32;
/// Bytes to which a texture of linear memory is aligned.
pub const LINEAR_ALIGNMENT: u64 = 512;

/// Bytes of one channel of an ordinary format, or `None` for formats that are not built.
#[must_use]
pub const fn channel_bytes(format: CUarray_format) -> Option<u32> {
    Some(match format {
        CUarray_format::UNSIGNED_INT8 | CUarray_format::SIGNED_INT8 => 1,
        CUarray_format::UNSIGNED_INT16 | CUarray_format::SIGNED_INT16 | CUarray_format::HALF => 2,
        CUarray_format::UNSIGNED_INT32 | CUarray_format::SIGNED_INT32 | CUarray_format::FLOAT => 4,
        _ => return None,
    })
}

/// Bytes of an element of 1, 2 or 4 channels.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE for other counts of channels and formats that do not exist,
/// CUDA_ERROR_NOT_SUPPORTED for compressed, normalised and planar formats.
pub const fn element_bytes(format: CUarray_format, channels: u32) -> Result<u32, CUresult> {
    match (channel_bytes(format), channels) {
        (Some(bytes), 1 | 2 | 4) => Ok(bytes * channels),
        (None, _) if matches!(format.0, 0x50 | 0x91..=0xa9 | 0xb0..=0xb5 | 0xc0..=0xcb) => {
            Err(CUresult::ERROR_NOT_SUPPORTED)
        }
        _ => Err(CUresult::ERROR_INVALID_VALUE),
    }
}

/// An array: an ordinary one has one level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Elements of a row.
    pub width: u64,
    /// Rows; 0 for one dimension.
    pub height: u64,
    /// Slices, or layers (six faces each of a cube); 0 for less than three dimensions.
    pub depth: u64,
    /// The format of a channel.
    pub format: CUarray_format,
    /// Channels of an element.
    pub channels: u32,
    /// `CUDA_ARRAY3D_…`
    pub flags: u32,
    /// Mipmap levels, each half as large as the one before.
    pub levels: u32,
}

/// One level of an array, in elements that are there: no side is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level {
    /// Elements of a row.
    pub width: u64,
    /// Rows.
    pub height: u64,
    /// Slices or layers.
    pub depth: u64,
    /// Bytes of all levels before, as rows without gaps.
    pub offset: u64,
}

impl Shape {
    /// Checks a description.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for what makes no sense or is too large, CUDA_ERROR_NOT_SUPPORTED for
    /// formats and flags that are not built.
    pub fn new(descriptor: &CUDA_ARRAY3D_DESCRIPTOR, levels: u32) -> Result<Self, CUresult> {
        let invalid = Err(CUresult::ERROR_INVALID_VALUE);
        element_bytes(descriptor.Format, descriptor.NumChannels)?;
        let flags = descriptor.Flags;
        if flags & !KNOWN_FLAGS != 0 {
            return invalid;
        }
        if flags & !BUILT_FLAGS != 0 {
            return Err(CUresult::ERROR_NOT_SUPPORTED);
        }
        let shape = Self {
            width: descriptor.Width as u64,
            height: descriptor.Height as u64,
            depth: descriptor.Depth as u64,
            format: descriptor.Format,
            channels: descriptor.NumChannels,
            flags,
            levels,
        };
        let (width, height, depth) = (shape.width, shape.height, shape.depth);
        let layers = if shape.is_cube() { depth / 6 } else { depth };
        let fits = if shape.is_cube() {
            let faces = if shape.is_layered() {
                depth.is_multiple_of(6) && layers > 0
            } else {
                depth == 6
            };
            faces && width == height && width <= MOST_LAYERED && depth <= MOST_LAYERS
        } else if shape.is_layered() {
            width <= MOST_LAYERED && height <= MOST_LAYERED && depth > 0 && depth <= MOST_LAYERS
        } else if depth > 0 {
            height > 0 && width.max(height).max(depth) <= MOST_3D
        } else if height > 0 {
            width <= MOST_2D[0] && height <= MOST_2D[1]
        } else {
            width <= MOST_1D
        };
        let longest = width
            .max(height)
            .max(if shape.is_layered() || shape.is_cube() {
                0
            } else {
                depth
            });
        if width == 0 || !fits || levels == 0 || levels > 1 + longest.max(1).ilog2() {
            return invalid;
        }
        Ok(shape)
    }

    /// The shape that a request is for.
    ///
    /// # Errors
    /// As [`Shape::new`].
    pub fn of(request: &ArrayCreate) -> Result<Self, CUresult> {
        let side = |side: u64| usize::try_from(side).map_err(|_| CUresult::ERROR_INVALID_VALUE);
        let descriptor = CUDA_ARRAY3D_DESCRIPTOR {
            Width: side(request.width)?,
            Height: side(request.height)?,
            Depth: side(request.depth)?,
            Format: CUarray_format(request.format),
            NumChannels: request.channels,
            Flags: request.flags,
        };
        Self::new(&descriptor, request.levels)
    }

    /// Whether its depth counts layers.
    #[must_use]
    pub const fn is_layered(&self) -> bool {
        self.flags & CUDA_ARRAY3D_LAYERED != 0
    }

    /// Whether it has six faces, or layers of six.
    #[must_use]
    pub const fn is_cube(&self) -> bool {
        self.flags & CUDA_ARRAY3D_CUBEMAP != 0
    }

    /// Bytes of an element.
    #[must_use]
    pub const fn element(&self) -> u64 {
        match element_bytes(self.format, self.channels) {
            Ok(bytes) => bytes as u64,
            Err(_) => 0,
        }
    }

    /// A level, if it is there.
    #[must_use]
    pub fn level(&self, level: u32) -> Option<Level> {
        if level >= self.levels {
            return None;
        }
        let mut offset = 0;
        let mut here = self.sides(0);
        for index in 1..=level {
            offset += here.0 * here.1 * here.2 * self.element();
            here = self.sides(index);
        }
        Some(Level {
            width: here.0,
            height: here.1,
            depth: here.2,
            offset,
        })
    }

    fn sides(&self, level: u32) -> (u64, u64, u64) {
        let half = |side: u64| (side >> level).max(1);
        let whole = self.is_layered() || self.is_cube();
        let depth = if whole { self.depth } else { half(self.depth) };
        (half(self.width), half(self.height), depth)
    }

    /// Bytes of all levels, as rows without gaps. Cannot overflow for a shape that was checked.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.level(self.levels.saturating_sub(1)).map_or(0, |last| {
            last.offset + last.width * last.height * last.depth * self.element()
        })
    }

    /// CUDA's description of a level.
    #[must_use]
    pub fn descriptor(&self, level: u32) -> CUDA_ARRAY3D_DESCRIPTOR {
        let (width, height, depth) = self.sides(level);
        let kept = |side: u64, now: u64| if side == 0 { 0 } else { now as usize };
        CUDA_ARRAY3D_DESCRIPTOR {
            Width: width as usize,
            Height: kept(self.height, height),
            Depth: kept(self.depth, depth),
            Format: self.format,
            NumChannels: self.channels,
            Flags: self.flags,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn descriptor(sides: [usize; 3], flags: u32) -> CUDA_ARRAY3D_DESCRIPTOR {
        CUDA_ARRAY3D_DESCRIPTOR {
            Width: sides[0],
            Height: sides[1],
            Depth: sides[2],
            Format: CUarray_format::HALF,
            NumChannels: 4,
            Flags: flags,
        }
    }

    #[test]
    fn shapes_have_the_bytes_of_their_levels() {
        let shape = |sides, flags, levels| Shape::new(&descriptor(sides, flags), levels);
        let flat = shape([5, 3, 0], 0, 1).unwrap();
        assert_eq!((flat.element(), flat.bytes()), (8, 120));
        assert_eq!(flat.descriptor(0), descriptor([5, 3, 0], 0));
        let request = ArrayCreate {
            width: 5,
            height: 3,
            format: CUarray_format::HALF.0,
            channels: 4,
            levels: 1,
            ..ArrayCreate::default()
        };
        assert_eq!(Shape::of(&request), Ok(flat));
        let many = shape([8, 4, 2], 0, 4).unwrap();
        assert_eq!(many.bytes(), 8 * (8 * 4 * 2 + 4 * 2 + 2 + 1));
        assert_eq!(many.level(3).unwrap().offset, 8 * (64 + 8 + 2));
        assert_eq!(many.level(4), None);
        let layers = shape([8, 0, 7], CUDA_ARRAY3D_LAYERED, 2).unwrap();
        assert_eq!(layers.bytes(), 8 * (8 * 7 + 4 * 7));
        assert_eq!(
            layers.descriptor(1),
            descriptor([4, 0, 7], CUDA_ARRAY3D_LAYERED)
        );
    }

    #[test]
    fn shapes_that_make_no_sense_are_refused() {
        let code = |sides, flags, levels| Shape::new(&descriptor(sides, flags), levels).err();
        let invalid = Some(CUresult::ERROR_INVALID_VALUE);
        assert_eq!(code([0, 3, 0], 0, 1), invalid);
        assert_eq!(code([3, 0, 3], 0, 1), invalid);
        assert_eq!(code([usize::MAX; 3], 0, 1), invalid);
        assert_eq!(code([4, 4, 5], CUDA_ARRAY3D_CUBEMAP, 1), invalid);
        assert_eq!(code([4, 4, 6], CUDA_ARRAY3D_CUBEMAP, 1), None);
        assert_eq!(code([4, 4, 0], 0, 4), invalid, "three levels at most");
        assert_eq!(code([4, 4, 0], 0, 0), invalid);
        assert_eq!(code([4, 4, 0], 1 << 20, 1), invalid);
        assert_eq!(
            code([4, 4, 0], 0x40, 1),
            Some(CUresult::ERROR_NOT_SUPPORTED)
        );
        for (format, expected) in [
            (0x99, CUresult::ERROR_NOT_SUPPORTED),
            (7, CUresult::ERROR_INVALID_VALUE),
        ] {
            let strange = CUDA_ARRAY3D_DESCRIPTOR {
                Format: CUarray_format(format),
                ..descriptor([4, 4, 0], 0)
            };
            assert_eq!(Shape::new(&strange, 1), Err(expected));
        }
    }
}
