//! Arrays, and the textures and surfaces made of them or of plain memory: from CUDA's descriptions to
//! what the executor reads.
//!
//! An array's bytes count against its device's budget for as long as anything may read them. Called by clients'
//! objects, by textures and by copies. Must not know images or kernels.

use std::sync::Arc;

use cuda_abi::types::{
    CU_TRSF_NORMALIZED_COORDINATES, CU_TRSF_READ_AS_INTEGER, CU_TRSF_SRGB, CUDA_RESOURCE_VIEW_DESC,
    CUDA_TEXTURE_DESC, CUaddress_mode, CUarray_format, CUdevice_attribute, CUfilter_mode,
};
use engine::{Bound, CUresult, Charge};
use protocol::arrays::{MOST_1D, MOST_2D, MOST_3D, MOST_LAYERED, MOST_LAYERS, MOST_LINEAR, Shape};
use protocol::operations::ArrayCreate;
use protocol::textures::{Resource, Spec};

use crate::context::Context;
use ptx_vm::{Edge, Format, Level, Source, Surface, Texels, Texture};

/// Flags of a texture that mean something here; the others are hints about speed and cube edges.
const KNOWN_FLAGS: u32 = 0x7f;

/// What programs are told of the longest sides: those that `protocol::arrays` allows, and where NVIDIA's
/// devices have less, as they do for pitched memory, that.
pub(crate) const LIMITS: [(CUdevice_attribute, u64); 38] = {
    use CUdevice_attribute as Attribute;
    [
        (Attribute::MAXIMUM_TEXTURE1D_WIDTH, MOST_1D),
        (Attribute::MAXIMUM_TEXTURE2D_WIDTH, MOST_2D[0]),
        (Attribute::MAXIMUM_TEXTURE2D_HEIGHT, MOST_2D[1]),
        (Attribute::MAXIMUM_TEXTURE3D_WIDTH, MOST_3D),
        (Attribute::MAXIMUM_TEXTURE3D_HEIGHT, MOST_3D),
        (Attribute::MAXIMUM_TEXTURE3D_DEPTH, MOST_3D),
        (Attribute::MAXIMUM_TEXTURE2D_LAYERED_WIDTH, MOST_LAYERED),
        (Attribute::MAXIMUM_TEXTURE2D_LAYERED_HEIGHT, MOST_LAYERED),
        (Attribute::MAXIMUM_TEXTURE2D_LAYERED_LAYERS, MOST_LAYERS),
        (Attribute::MAXIMUM_TEXTURE1D_LAYERED_WIDTH, MOST_LAYERED),
        (Attribute::MAXIMUM_TEXTURE1D_LAYERED_LAYERS, MOST_LAYERS),
        (Attribute::CAN_TEX2D_GATHER, 1),
        (Attribute::MAXIMUM_TEXTURE2D_GATHER_WIDTH, MOST_LAYERED),
        (Attribute::MAXIMUM_TEXTURE2D_GATHER_HEIGHT, MOST_LAYERED),
        (Attribute::MAXIMUM_TEXTURECUBEMAP_WIDTH, MOST_LAYERED),
        (
            Attribute::MAXIMUM_TEXTURECUBEMAP_LAYERED_WIDTH,
            MOST_LAYERED,
        ),
        (
            Attribute::MAXIMUM_TEXTURECUBEMAP_LAYERED_LAYERS,
            MOST_LAYERS / 6 * 6,
        ),
        (Attribute::MAXIMUM_SURFACE1D_WIDTH, MOST_1D),
        (Attribute::MAXIMUM_SURFACE2D_WIDTH, MOST_2D[0]),
        (Attribute::MAXIMUM_SURFACE2D_HEIGHT, MOST_2D[1]),
        (Attribute::MAXIMUM_SURFACE3D_WIDTH, MOST_3D),
        (Attribute::MAXIMUM_SURFACE3D_HEIGHT, MOST_3D),
        (Attribute::MAXIMUM_SURFACE3D_DEPTH, MOST_3D),
        (Attribute::MAXIMUM_SURFACE1D_LAYERED_WIDTH, MOST_LAYERED),
        (Attribute::MAXIMUM_SURFACE1D_LAYERED_LAYERS, MOST_LAYERS),
        (Attribute::MAXIMUM_SURFACE2D_LAYERED_WIDTH, MOST_LAYERED),
        (Attribute::MAXIMUM_SURFACE2D_LAYERED_HEIGHT, MOST_LAYERED),
        (Attribute::MAXIMUM_SURFACE2D_LAYERED_LAYERS, MOST_LAYERS),
        (Attribute::MAXIMUM_SURFACECUBEMAP_WIDTH, MOST_LAYERED),
        (
            Attribute::MAXIMUM_SURFACECUBEMAP_LAYERED_WIDTH,
            MOST_LAYERED,
        ),
        (
            Attribute::MAXIMUM_SURFACECUBEMAP_LAYERED_LAYERS,
            MOST_LAYERS / 6 * 6,
        ),
        (Attribute::MAXIMUM_TEXTURE1D_LINEAR_WIDTH, MOST_LINEAR),
        (Attribute::MAXIMUM_TEXTURE2D_LINEAR_WIDTH, MOST_2D[0]),
        (Attribute::MAXIMUM_TEXTURE2D_LINEAR_HEIGHT, 65_000),
        (Attribute::MAXIMUM_TEXTURE2D_LINEAR_PITCH, 2_097_120),
        (Attribute::MAXIMUM_TEXTURE2D_MIPMAPPED_WIDTH, MOST_LAYERED),
        (Attribute::MAXIMUM_TEXTURE2D_MIPMAPPED_HEIGHT, MOST_LAYERED),
        (Attribute::MAXIMUM_TEXTURE1D_MIPMAPPED_WIDTH, MOST_LAYERED),
    ]
};

/// One array of a client.
#[derive(Debug)]
pub(crate) struct Array {
    pub(crate) shape: Shape,
    pub(crate) context: Arc<Context>,
    pub(crate) texels: Arc<Texels>,
    /// Of what the device has.
    _taken: Charge,
}

impl Array {
    /// Makes an array of zeroes.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE and CUDA_ERROR_NOT_SUPPORTED as [`Shape::new`],
    /// CUDA_ERROR_OUT_OF_MEMORY beyond what the device has.
    pub(crate) fn new(
        request: &ArrayCreate,
        context: Arc<Context>,
        budget: &Arc<Bound>,
    ) -> Result<Self, CUresult> {
        let shape = Shape::of(request)?;
        let bytes = shape.bytes();
        let mut taken = Charge::new(Arc::clone(budget));
        if !taken.grow(bytes) {
            return Err(CUresult::ERROR_OUT_OF_MEMORY);
        }
        let texels = Texels::new(bytes).map_err(|_| CUresult::ERROR_OUT_OF_MEMORY)?;
        Ok(Self {
            shape,
            context,
            texels: Arc::new(texels),
            _taken: taken,
        })
    }

    fn level(&self, level: u32) -> Result<Level, CUresult> {
        let level = self.shape.level(level);
        let level = level.ok_or(CUresult::ERROR_INVALID_VALUE)?;
        Ok(Level {
            sides: [level.width, level.height, level.depth],
            offset: level.offset,
        })
    }
}

fn format_of(format: CUarray_format) -> Result<Format, CUresult> {
    Ok(match format {
        CUarray_format::UNSIGNED_INT8 => Format::U8,
        CUarray_format::UNSIGNED_INT16 => Format::U16,
        CUarray_format::UNSIGNED_INT32 => Format::U32,
        CUarray_format::SIGNED_INT8 => Format::S8,
        CUarray_format::SIGNED_INT16 => Format::S16,
        CUarray_format::SIGNED_INT32 => Format::S32,
        CUarray_format::HALF => Format::F16,
        CUarray_format::FLOAT => Format::F32,
        _ => return Err(CUresult::ERROR_NOT_SUPPORTED),
    })
}

/// The format and channels of a view's number, if it is an ordinary one.
fn view_format(number: u32) -> Result<(Format, u32), CUresult> {
    const FORMATS: [Format; 8] = [
        Format::U8,
        Format::S8,
        Format::U16,
        Format::S16,
        Format::U32,
        Format::S32,
        Format::F16,
        Format::F32,
    ];
    let index = number.checked_sub(1).ok_or(CUresult::ERROR_INVALID_VALUE)?;
    let format = FORMATS.get(index as usize / 3);
    let format = format.ok_or(CUresult::ERROR_NOT_SUPPORTED)?;
    Ok((*format, [1, 2, 4][index as usize % 3]))
}

/// An array by its handle, if the context has it.
pub(crate) type Find<'a> = &'a dyn Fn(u64) -> Result<Arc<Array>, CUresult>;

/// Makes a surface.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE for what is no array, CUDA_ERROR_INVALID_HANDLE for one that is not there.
pub(crate) fn surface(spec: &Spec, find: Find<'_>) -> Result<Surface, CUresult> {
    let Resource::Array(array) = spec.resource else {
        return Err(CUresult::ERROR_INVALID_VALUE);
    };
    // NVIDIA's driver does not ask that the array was made for surfaces, and levels of mipmapped ones
    // never are.
    let array = find(array)?;
    Ok(Surface {
        texels: Arc::clone(&array.texels),
        level: array.level(spec.level)?,
        format: format_of(array.shape.format)?,
        channels: array.shape.channels,
    })
}

/// Makes a texture.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE for what makes no sense together, CUDA_ERROR_INVALID_HANDLE for an array
/// that is not there, CUDA_ERROR_NOT_SUPPORTED for views that are not built.
pub(crate) fn texture(spec: &Spec, find: Find<'_>) -> Result<Texture, CUresult> {
    let invalid = CUresult::ERROR_INVALID_VALUE;
    let sampler = spec.sampler.ok_or(invalid)?;
    let mut layers = [0, 1];
    let mut cube = false;
    let (format, mut channels, mut source) = match spec.resource {
        Resource::Array(array) | Resource::Mipmapped(array) => {
            let array = find(array)?;
            let shape = &array.shape;
            cube = shape.is_cube();
            let levels = match spec.resource {
                Resource::Array(_) => vec![array.level(spec.level)?],
                _ => (0..shape.levels)
                    .map(|level| array.level(level))
                    .collect::<Result<_, _>>()?,
            };
            if shape.is_layered() || cube {
                layers = [0, shape.depth];
            }
            let source = Source::Array(Arc::clone(&array.texels), levels);
            (shape.format, shape.channels, source)
        }
        Resource::Linear {
            address,
            format,
            channels,
            bytes,
        } => {
            let element = u64::from(protocol::arrays::element_bytes(format, channels)?);
            let source = Source::Memory {
                base: address,
                pitch: 0,
                sides: [bytes / element, 1],
                run: true,
            };
            (format, channels, source)
        }
        Resource::Pitched {
            address,
            format,
            channels,
            width,
            height,
            pitch,
        } => {
            let source = Source::Memory {
                base: address,
                pitch,
                sides: [width, height],
                run: false,
            };
            (format, channels, source)
        }
    };
    let mut texel = format_of(format)?;
    if let Some(view) = &spec.view {
        let element = texel.bytes() * u64::from(channels);
        (texel, channels) = see(view, &mut source, &mut layers, (texel, channels))?;
        if texel.bytes() * u64::from(channels) != element {
            return Err(invalid);
        }
    }
    build(&sampler, source, (texel, channels), layers, cube)
}

/// Applies a view: a format of the same size, fewer levels, fewer layers.
fn see(
    view: &CUDA_RESOURCE_VIEW_DESC,
    source: &mut Source,
    layers: &mut [u64; 2],
    own: (Format, u32),
) -> Result<(Format, u32), CUresult> {
    let invalid = CUresult::ERROR_INVALID_VALUE;
    let Source::Array(_, levels) = source else {
        return Err(invalid);
    };
    let (first, last) = (view.firstMipmapLevel, view.lastMipmapLevel);
    if first > last || last as usize >= levels.len() {
        return Err(invalid);
    }
    levels.truncate(last as usize + 1);
    levels.drain(..first as usize);
    let (first, last) = (u64::from(view.firstLayer), u64::from(view.lastLayer));
    if first > last || last >= layers[1] {
        // A view of something without layers says 0 and 0.
        return Err(invalid);
    }
    if layers[1] > 1 {
        *layers = [first, last - first + 1];
    }
    match view.format {
        0 => Ok(own),
        format => view_format(format),
    }
}

fn build(
    sampler: &CUDA_TEXTURE_DESC,
    source: Source,
    (format, channels): (Format, u32),
    layers: [u64; 2],
    cube: bool,
) -> Result<Texture, CUresult> {
    let invalid = CUresult::ERROR_INVALID_VALUE;
    if sampler.flags & !KNOWN_FLAGS != 0 || sampler.maxAnisotropy > 16 {
        return Err(invalid);
    }
    let filter = |filter: CUfilter_mode| match filter {
        CUfilter_mode::POINT => Ok(false),
        CUfilter_mode::LINEAR => Ok(true),
        _ => Err(invalid),
    };
    let edge = |mode: CUaddress_mode| {
        Ok(match mode {
            CUaddress_mode::WRAP => Edge::Wrap,
            CUaddress_mode::CLAMP => Edge::Clamp,
            CUaddress_mode::MIRROR => Edge::Mirror,
            CUaddress_mode::BORDER => Edge::Border,
            _ => return Err(invalid),
        })
    };
    let [x, y, z] = sampler.addressMode;
    let edges = [edge(x)?, edge(y)?, edge(z)?];
    let has = |flag: u32| sampler.flags & flag != 0;
    let small = matches!(format, Format::U8 | Format::U16 | Format::S8 | Format::S16);
    // Without the flag small integers are read as fractions; those of 32 bits never are.
    let fractions = small && !has(CU_TRSF_READ_AS_INTEGER);
    let linear = filter(sampler.filterMode)?;
    let run = matches!(source, Source::Memory { run: true, .. });
    if linear && !fractions && !format.is_float() && !run {
        return Err(invalid);
    }
    let many = matches!(&source, Source::Array(_, levels) if levels.len() > 1);
    let normalized = has(CU_TRSF_NORMALIZED_COORDINATES);
    if many && !normalized {
        return Err(invalid);
    }
    Ok(Texture {
        source,
        format,
        channels,
        edges: if cube { [Edge::Clamp; 3] } else { edges },
        linear: linear && !run,
        linear_levels: filter(sampler.mipmapFilterMode)?,
        normalized: normalized && !run,
        fractions,
        srgb: has(CU_TRSF_SRGB) && format == Format::U8,
        bias: sampler.mipmapLevelBias,
        detail: [sampler.minMipmapLevelClamp, sampler.maxMipmapLevelClamp],
        border: sampler.borderColor,
        layers,
    })
}
