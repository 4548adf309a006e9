//! What texture references are set to.
//!
//! Called by the shells of `exports`. Owns nothing: settings are `reference`'s. Must not know how a change takes effect.

use cuda_abi::CUresult;
use cuda_abi::types::{
    CUaddress_mode, CUarray, CUarray_format, CUdeviceptr, CUdeviceptr_v1, CUfilter_mode,
    CUmipmappedArray, CUtexref,
};
use protocol::textures::Resource;

use super::reference::{TEXTURE, settings};
use super::{Outcome, narrow_address};
use crate::pointers::Out;

pub(crate) fn cuTexRefGetAddress(dptr: Out<CUdeviceptr_v1>, tex_ref: CUtexref) -> Outcome {
    dptr.required()?;
    dptr.set(narrow_address(address(tex_ref)?)?)
}

pub(crate) fn cuTexRefGetAddress_v2(dptr: Out<CUdeviceptr>, tex_ref: CUtexref) -> Outcome {
    dptr.required()?;
    dptr.set(address(tex_ref)?)
}

fn address(tex_ref: CUtexref) -> Result<u64, CUresult> {
    match settings(tex_ref.bits(), TEXTURE)?.bound {
        Some(Resource::Linear { address, .. } | Resource::Pitched { address, .. }) => Ok(address),
        _ => Err(CUresult::ERROR_INVALID_VALUE),
    }
}

pub(crate) fn cuTexRefGetArray(array: Out<CUarray>, tex_ref: CUtexref) -> Outcome {
    array.required()?;
    match settings(tex_ref.bits(), TEXTURE)?.bound {
        Some(Resource::Array(handle)) => array.set(CUarray::from_bits(handle)),
        _ => Err(CUresult::ERROR_INVALID_VALUE),
    }
}

pub(crate) fn cuTexRefGetMipmappedArray(
    mipmapped_array: Out<CUmipmappedArray>,
    tex_ref: CUtexref,
) -> Outcome {
    mipmapped_array.required()?;
    match settings(tex_ref.bits(), TEXTURE)?.bound {
        Some(Resource::Mipmapped(handle)) => {
            mipmapped_array.set(CUmipmappedArray::from_bits(handle))
        }
        _ => Err(CUresult::ERROR_INVALID_VALUE),
    }
}

pub(crate) fn cuTexRefGetFormat(
    format: Out<CUarray_format>,
    num_channels: Out<i32>,
    tex_ref: CUtexref,
) -> Outcome {
    let settings = settings(tex_ref.bits(), TEXTURE)?;
    format.set_if(settings.format);
    num_channels.set_if(settings.channels as i32);
    Ok(())
}

pub(crate) fn cuTexRefGetAddressMode(
    mode: Out<CUaddress_mode>,
    tex_ref: CUtexref,
    dim: i32,
) -> Outcome {
    mode.required()?;
    let modes = settings(tex_ref.bits(), TEXTURE)?.sampler.addressMode;
    let of_dimension = usize::try_from(dim).ok().and_then(|dim| modes.get(dim));
    mode.set(*of_dimension.ok_or(CUresult::ERROR_INVALID_VALUE)?)
}

pub(crate) fn cuTexRefGetFilterMode(mode: Out<CUfilter_mode>, tex_ref: CUtexref) -> Outcome {
    mode.required()?;
    mode.set(settings(tex_ref.bits(), TEXTURE)?.sampler.filterMode)
}

pub(crate) fn cuTexRefGetMipmapFilterMode(mode: Out<CUfilter_mode>, tex_ref: CUtexref) -> Outcome {
    mode.required()?;
    mode.set(settings(tex_ref.bits(), TEXTURE)?.sampler.mipmapFilterMode)
}

pub(crate) fn cuTexRefGetMipmapLevelBias(bias: Out<f32>, tex_ref: CUtexref) -> Outcome {
    bias.required()?;
    bias.set(settings(tex_ref.bits(), TEXTURE)?.sampler.mipmapLevelBias)
}

pub(crate) fn cuTexRefGetMipmapLevelClamp(
    least: Out<f32>,
    most: Out<f32>,
    tex_ref: CUtexref,
) -> Outcome {
    let sampler = settings(tex_ref.bits(), TEXTURE)?.sampler;
    least.set_if(sampler.minMipmapLevelClamp);
    most.set_if(sampler.maxMipmapLevelClamp);
    Ok(())
}

pub(crate) fn cuTexRefGetMaxAnisotropy(max_anisotropy: Out<i32>, tex_ref: CUtexref) -> Outcome {
    max_anisotropy.required()?;
    max_anisotropy.set(settings(tex_ref.bits(), TEXTURE)?.sampler.maxAnisotropy as i32)
}

pub(crate) fn cuTexRefGetBorderColor(border_color: Out<[f32; 4]>, tex_ref: CUtexref) -> Outcome {
    border_color.required()?;
    border_color.set(settings(tex_ref.bits(), TEXTURE)?.sampler.borderColor)
}

pub(crate) fn cuTexRefGetFlags(flags: Out<u32>, tex_ref: CUtexref) -> Outcome {
    flags.required()?;
    flags.set(settings(tex_ref.bits(), TEXTURE)?.sampler.flags)
}
