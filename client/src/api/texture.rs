//! Texture and surface objects.
//!
//! Owns the checks of descriptions and their wire form. Called by the shells of `exports`; `reference` gives its
//! objects the same resources. Must not know how a texture is read.

use cuda_abi::CUresult;
use cuda_abi::types::{
    CUDA_RESOURCE_DESC, CUDA_RESOURCE_VIEW_DESC, CUDA_TEXTURE_DESC, CUarray_format, CUdevice,
    CUsurfObject, CUtexObject,
};
use protocol::textures::{Resource, Spec};

use super::{Outcome, given};
use crate::context::resource_context;
use crate::handle::HandleKind;
use crate::memory::array::Texture;
use crate::pointers::{In, Out};
use crate::session::{Session, session};

/// How many of a texture's bytes of memory there are. It may be described longer than its memory is, as
/// NVIDIA's driver has it; then it ends with its memory.
fn present(session: &Session, address: u64, bytes: u64) -> Result<u64, CUresult> {
    if session.ranges.cover(address, bytes) {
        return Ok(bytes);
    }
    let range = session.ranges.find(address);
    let range = range.ok_or(CUresult::ERROR_INVALID_VALUE)?;
    Ok(bytes.min(range.base + range.bytes - address))
}

/// What a description names, with the server's numbers, and the level that is meant.
pub(super) fn resource(
    session: &Session,
    descriptor: &CUDA_RESOURCE_DESC,
) -> Result<(Resource, u32), CUresult> {
    Ok(match Resource::new(descriptor)? {
        Resource::Array(handle) => {
            given(handle)?;
            let array = session.arrays.get(handle, HandleKind::Array)?;
            (Resource::Array(array.number), array.level)
        }
        Resource::Mipmapped(handle) => {
            let array = session.arrays.get(handle, HandleKind::Mipmaps)?;
            (Resource::Mipmapped(array.number), 0)
        }
        Resource::Linear {
            address,
            format,
            channels,
            bytes,
        } => {
            let bytes = present(session, address, bytes)?;
            let linear = Resource::Linear {
                address,
                format,
                channels,
                bytes,
            };
            (linear, 0)
        }
        Resource::Pitched {
            address,
            format,
            channels,
            width,
            height,
            pitch,
        } => {
            let element = protocol::arrays::element_bytes(format, channels)?;
            // Checked above: neither can overflow.
            let row = width * u64::from(element);
            let there = present(session, address, pitch * (height - 1) + row)?;
            let rows = there.checked_sub(row).map(|more| 1 + more / pitch);
            let pitched = Resource::Pitched {
                address,
                format,
                channels,
                width,
                height: rows.ok_or(CUresult::ERROR_INVALID_VALUE)?,
                pitch,
            };
            (pitched, 0)
        }
    })
}

pub(crate) fn cuTexObjectCreate(
    tex_object: Out<CUtexObject>,
    res_desc: In<CUDA_RESOURCE_DESC>,
    tex_desc: In<CUDA_TEXTURE_DESC>,
    res_view_desc: In<CUDA_RESOURCE_VIEW_DESC>,
) -> Outcome {
    let current = resource_context()?;
    tex_object.required()?;
    let descriptor = res_desc.get()?;
    let sampler = tex_desc.get()?;
    let (resource, level) = resource(session()?, &descriptor)?;
    let spec = Spec {
        resource,
        level,
        sampler: Some(sampler),
        // NULL means that there is none.
        view: res_view_desc.get().ok(),
    };
    let texture = Texture {
        resource: descriptor,
        spec,
    };
    let arrays = &session()?.arrays;
    tex_object.set(arrays.create_texture(&current, false, texture)?)
}

pub(crate) fn cuTexObjectDestroy(tex_object: CUtexObject) -> Outcome {
    let current = resource_context()?;
    if tex_object == 0 {
        return Ok(());
    }
    let arrays = &session()?.arrays;
    arrays.destroy_texture(&current, false, tex_object)
}

pub(crate) fn cuTexObjectGetResourceDesc(
    res_desc: Out<CUDA_RESOURCE_DESC>,
    tex_object: CUtexObject,
) -> Outcome {
    let current = resource_context()?;
    res_desc.required()?;
    let texture = session()?.arrays.texture(&current, false, tex_object)?;
    res_desc.set(texture.resource)
}

pub(crate) fn cuTexObjectGetResourceViewDesc(
    res_view_desc: Out<CUDA_RESOURCE_VIEW_DESC>,
    tex_object: CUtexObject,
) -> Outcome {
    let current = resource_context()?;
    res_view_desc.required()?;
    let texture = session()?.arrays.texture(&current, false, tex_object)?;
    // One without a view has none to give.
    let view = texture.spec.view.ok_or(CUresult::ERROR_INVALID_VALUE)?;
    res_view_desc.set(view)
}

pub(crate) fn cuTexObjectGetTextureDesc(
    tex_desc: Out<CUDA_TEXTURE_DESC>,
    tex_object: CUtexObject,
) -> Outcome {
    let current = resource_context()?;
    tex_desc.required()?;
    let texture = session()?.arrays.texture(&current, false, tex_object)?;
    tex_desc.set(texture.spec.sampler.unwrap_or_default())
}

pub(crate) fn cuSurfObjectCreate(
    surf_object: Out<CUsurfObject>,
    res_desc: In<CUDA_RESOURCE_DESC>,
) -> Outcome {
    let current = resource_context()?;
    surf_object.required()?;
    let descriptor = res_desc.get()?;
    let (resource, level) = resource(session()?, &descriptor)?;
    let texture = Texture {
        resource: descriptor,
        spec: Spec {
            resource,
            level,
            sampler: None,
            view: None,
        },
    };
    let arrays = &session()?.arrays;
    surf_object.set(arrays.create_texture(&current, true, texture)?)
}

pub(crate) fn cuSurfObjectDestroy(surf_object: CUsurfObject) -> Outcome {
    let current = resource_context()?;
    if surf_object == 0 {
        return Ok(());
    }
    let arrays = &session()?.arrays;
    arrays.destroy_texture(&current, true, surf_object)
}

pub(crate) fn cuSurfObjectGetResourceDesc(
    res_desc: Out<CUDA_RESOURCE_DESC>,
    surf_object: CUsurfObject,
) -> Outcome {
    let current = resource_context()?;
    res_desc.required()?;
    let surface = session()?.arrays.texture(&current, true, surf_object)?;
    res_desc.set(surface.resource)
}

pub(crate) fn cuDeviceGetTexture1DLinearMaxWidth(
    max_width_in_elements: Out<usize>,
    format: CUarray_format,
    num_channels: u32,
    device: CUdevice,
) -> Outcome {
    session()?.device(device)?;
    max_width_in_elements.required()?;
    protocol::arrays::element_bytes(format, num_channels)?;
    max_width_in_elements.set(protocol::arrays::MOST_LINEAR as usize)
}
