//! Textures and surfaces: what they are made of, and the form in which their description travels.
//!
//! Both ends check by it: the client what a program says, an engine what a client says. Knows no memory and no handle.

use crate::arrays::{LINEAR_ALIGNMENT, MOST_2D, MOST_LINEAR, PITCH_ALIGNMENT, element_bytes};
use crate::codec::{ByteCodec as _, Damaged, Reader};
use cuda_abi::CUresult;
use cuda_abi::types::{
    CUDA_RESOURCE_DESC, CUDA_RESOURCE_VIEW_DESC, CUDA_TEXTURE_DESC, CUaddress_mode, CUarray_format,
    CUfilter_mode, CUresourcetype,
};

/// What stands behind the name of a texture reference in that of the variable of 8 bytes that an engine makes
/// of it, which holds a texture object.
pub const TEXTURE_REFERENCE: &str = "$texture";

/// The same of a surface reference, whose variable holds a surface object.
pub const SURFACE_REFERENCE: &str = "$surface";

/// What a texture or a surface is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// An array by its handle, and which of its levels if it has many and one is meant.
    Array(u64),
    /// All levels of an array, by its handle.
    Mipmapped(u64),
    /// A run of elements in device memory.
    Linear {
        /// Its first address.
        address: u64,
        /// The format of a channel.
        format: CUarray_format,
        /// Channels of an element.
        channels: u32,
        /// Bytes of the run.
        bytes: u64,
    },
    /// Rows of elements in device memory.
    Pitched {
        /// Its first address.
        address: u64,
        /// The format of a channel.
        format: CUarray_format,
        /// Channels of an element.
        channels: u32,
        /// Elements of a row.
        width: u64,
        /// Rows.
        height: u64,
        /// Bytes from row to row.
        pitch: u64,
    },
}

impl Resource {
    /// Reads CUDA's form and checks what can be checked without the objects that it names.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE, and CUDA_ERROR_NOT_SUPPORTED for formats that are not built.
    pub fn new(descriptor: &CUDA_RESOURCE_DESC) -> Result<Self, CUresult> {
        let invalid = Err(CUresult::ERROR_INVALID_VALUE);
        if descriptor.flags != 0 {
            return invalid;
        }
        let word = |at: usize| descriptor.res[at];
        let format = CUarray_format(word(1) as u32);
        let channels = (word(1) >> 32) as u32;
        let resource = match descriptor.resType {
            CUresourcetype::ARRAY => Self::Array(word(0)),
            CUresourcetype::MIPMAPPED_ARRAY => Self::Mipmapped(word(0)),
            CUresourcetype::LINEAR => Self::Linear {
                address: word(0),
                format,
                channels,
                bytes: word(2),
            },
            CUresourcetype::PITCH2D => Self::Pitched {
                address: word(0),
                format,
                channels,
                width: word(2),
                height: word(3),
                pitch: word(4),
            },
            _ => return invalid,
        };
        match resource {
            Self::Linear { address, bytes, .. } => {
                let element = u64::from(element_bytes(format, channels)?);
                let elements = bytes / element;
                if address == 0
                    || !address.is_multiple_of(LINEAR_ALIGNMENT)
                    || elements == 0
                    || elements > MOST_LINEAR
                {
                    return invalid;
                }
            }
            Self::Pitched {
                address,
                width,
                height,
                pitch,
                ..
            } => {
                let element = u64::from(element_bytes(format, channels)?);
                if address == 0
                    || !address.is_multiple_of(LINEAR_ALIGNMENT)
                    || !pitch.is_multiple_of(PITCH_ALIGNMENT)
                    || width == 0
                    || height == 0
                    || width > MOST_2D[0]
                    || height > MOST_2D[1]
                    || pitch < width * element
                    || pitch > u64::from(u32::MAX)
                {
                    return invalid;
                }
            }
            _ => {}
        }
        Ok(resource)
    }

    /// CUDA's form of it.
    #[must_use]
    pub fn descriptor(&self) -> CUDA_RESOURCE_DESC {
        let mut res = [0; 16];
        let kind =
            |format: CUarray_format, channels: u32| u64::from(format.0) | u64::from(channels) << 32;
        let kind_of = match *self {
            Self::Array(array) => {
                res[0] = array;
                CUresourcetype::ARRAY
            }
            Self::Mipmapped(array) => {
                res[0] = array;
                CUresourcetype::MIPMAPPED_ARRAY
            }
            Self::Linear {
                address,
                format,
                channels,
                bytes,
            } => {
                res[..3].copy_from_slice(&[address, kind(format, channels), bytes]);
                CUresourcetype::LINEAR
            }
            Self::Pitched {
                address,
                format,
                channels,
                width,
                height,
                pitch,
            } => {
                let words = [address, kind(format, channels), width, height, pitch];
                res[..5].copy_from_slice(&words);
                CUresourcetype::PITCH2D
            }
        };
        CUDA_RESOURCE_DESC {
            resType: kind_of,
            res,
            flags: 0,
        }
    }
}

/// A texture or a surface, as it travels: a surface has no sampler.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spec {
    /// What it is made of.
    pub resource: Resource,
    /// The level of an array that it means, where that is one level of many.
    pub level: u32,
    /// How it is read.
    pub sampler: Option<CUDA_TEXTURE_DESC>,
    /// How it sees its resource.
    pub view: Option<CUDA_RESOURCE_VIEW_DESC>,
}

impl Spec {
    /// The bytes that tell of it.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let descriptor = self.resource.descriptor();
        let mut word = |value: u32| out.extend(value.to_le_bytes());
        word(descriptor.resType.0);
        word(self.level);
        for value in &descriptor.res[..5] {
            word(*value as u32);
            word((*value >> 32) as u32);
        }
        word(u32::from(self.sampler.is_some()));
        if let Some(sampler) = &self.sampler {
            sampler.addressMode.iter().for_each(|mode| word(mode.0));
            word(sampler.filterMode.0);
            word(sampler.flags);
            word(sampler.maxAnisotropy);
            word(sampler.mipmapFilterMode.0);
            word(sampler.mipmapLevelBias.to_bits());
            word(sampler.minMipmapLevelClamp.to_bits());
            word(sampler.maxMipmapLevelClamp.to_bits());
            sampler.borderColor.iter().for_each(|c| word(c.to_bits()));
        }
        word(u32::from(self.view.is_some()));
        if let Some(view) = &self.view {
            word(view.format);
            for side in [view.width, view.height, view.depth] {
                word(u32::try_from(side).unwrap_or(u32::MAX));
            }
            word(view.firstMipmapLevel);
            word(view.lastMipmapLevel);
            word(view.firstLayer);
            word(view.lastLayer);
        }
        out
    }

    /// Reads what [`Spec::encode`] wrote.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for bytes that are something else, and as [`Resource::new`].
    pub fn decode(bytes: &[u8]) -> Result<Self, CUresult> {
        let mut reader = Reader::new(bytes);
        let (descriptor, level, sampler, view) =
            Self::read(&mut reader).map_err(|Damaged| CUresult::ERROR_INVALID_VALUE)?;
        Ok(Self {
            resource: Resource::new(&descriptor)?,
            level,
            sampler,
            view,
        })
    }

    #[allow(
        clippy::type_complexity,
        reason = "the parts, once, for the caller above"
    )]
    fn read(
        reader: &mut Reader<'_>,
    ) -> Result<
        (
            CUDA_RESOURCE_DESC,
            u32,
            Option<CUDA_TEXTURE_DESC>,
            Option<CUDA_RESOURCE_VIEW_DESC>,
        ),
        Damaged,
    > {
        let mut descriptor = CUDA_RESOURCE_DESC {
            resType: CUresourcetype(u32::get(reader)?),
            ..CUDA_RESOURCE_DESC::default()
        };
        let level = u32::get(reader)?;
        for value in &mut descriptor.res[..5] {
            *value = u64::get(reader)?;
        }
        let mut sampler = None;
        if u32::get(reader)? != 0 {
            let mut read = CUDA_TEXTURE_DESC::default();
            for mode in &mut read.addressMode {
                *mode = CUaddress_mode(u32::get(reader)?);
            }
            read.filterMode = CUfilter_mode(u32::get(reader)?);
            read.flags = u32::get(reader)?;
            read.maxAnisotropy = u32::get(reader)?;
            read.mipmapFilterMode = CUfilter_mode(u32::get(reader)?);
            read.mipmapLevelBias = f32::from_bits(u32::get(reader)?);
            read.minMipmapLevelClamp = f32::from_bits(u32::get(reader)?);
            read.maxMipmapLevelClamp = f32::from_bits(u32::get(reader)?);
            for component in &mut read.borderColor {
                *component = f32::from_bits(u32::get(reader)?);
            }
            sampler = Some(read);
        }
        let mut view = None;
        if u32::get(reader)? != 0 {
            view = Some(CUDA_RESOURCE_VIEW_DESC {
                format: u32::get(reader)?,
                width: u32::get(reader)? as usize,
                height: u32::get(reader)? as usize,
                depth: u32::get(reader)? as usize,
                firstMipmapLevel: u32::get(reader)?,
                lastMipmapLevel: u32::get(reader)?,
                firstLayer: u32::get(reader)?,
                lastLayer: u32::get(reader)?,
                reserved: [0; 16],
            });
        }
        Ok((descriptor, level, sampler, view))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specs_travel_and_truncations_are_refused() {
        let spec = Spec {
            resource: Resource::Pitched {
                address: 0x1000,
                format: CUarray_format::FLOAT,
                channels: 2,
                width: 10,
                height: 20,
                pitch: 96,
            },
            level: 3,
            sampler: Some(CUDA_TEXTURE_DESC {
                filterMode: CUfilter_mode::LINEAR,
                borderColor: [0.5, 1.0, -1.0, 0.0],
                ..CUDA_TEXTURE_DESC::default()
            }),
            view: Some(CUDA_RESOURCE_VIEW_DESC {
                lastLayer: 4,
                ..CUDA_RESOURCE_VIEW_DESC::default()
            }),
        };
        let bytes = spec.encode();
        assert_eq!(Spec::decode(&bytes), Ok(spec));
        for end in 0..bytes.len() {
            assert_eq!(
                Spec::decode(&bytes[..end]),
                Err(CUresult::ERROR_INVALID_VALUE)
            );
        }
    }

    #[test]
    fn resources_keep_cudas_form() {
        let resource = Resource::Linear {
            address: 512,
            format: CUarray_format::SIGNED_INT16,
            channels: 4,
            bytes: 80,
        };
        assert_eq!(Resource::new(&resource.descriptor()), Ok(resource));
        let crooked = Resource::Linear {
            address: 100,
            format: CUarray_format::SIGNED_INT16,
            channels: 4,
            bytes: 80,
        };
        let refused = Resource::new(&crooked.descriptor());
        assert_eq!(refused, Err(CUresult::ERROR_INVALID_VALUE));
    }
}
