//! Texture and surface references, deprecated in CUDA 11 and still in every driver.
//!
//! A change takes effect for what is launched after it, as in NVIDIA's driver: it waits for the context's
//! work, then writes the object that stands for the new settings. One that no object can be made of is
//! refused and changes nothing.
//!
//! What references are set to is answered by `reference_query`. Called by the shells of `exports`, and by `api::module` when a module goes. Must not know how texels are read.

use std::sync::{MutexGuard, PoisonError};

use cuda_abi::CUresult;
use cuda_abi::types::{
    CUDA_ARRAY_DESCRIPTOR, CUDA_ARRAY_DESCRIPTOR_v1, CUaddress_mode, CUarray, CUarray_format,
    CUdeviceptr, CUdeviceptr_v1, CUfilter_mode, CUfunction, CUmipmappedArray, CUmodule, CUstream,
    CUsurfref, CUtexref,
};
use protocol::arrays::{LINEAR_ALIGNMENT, element_bytes};
use protocol::textures::{Resource, SURFACE_REFERENCE, Spec, TEXTURE_REFERENCE};

use super::Outcome;
use super::copy::host_to_device;
use crate::code::texture_references::{ModuleVariable, References, Settings};
use crate::context::{Current, current, resource_context};
use crate::handle::HandleKind;
use crate::log::log;
use crate::memory::array::Texture;
use crate::memory::copy::Return;
use crate::pointers::{Bytes, In, Out, Text};
use crate::session::{Session, session};

/// CU_TRSA_OVERRIDE_FORMAT, without which an array of another format cannot be set.
const OVERRIDE_FORMAT: u32 = 1;

/// CU_TRSF_READ_AS_INTEGER, NORMALIZED_COORDINATES, SRGB, DISABLE_TRILINEAR_OPTIMIZATION and
/// SEAMLESS_CUBEMAP.
const FLAGS: u32 = 0x73;

/// CU_PARAM_TR_DEFAULT.
const DEFAULT_UNIT: i32 = -1;

pub(super) const TEXTURE: HandleKind = HandleKind::TextureReference;
const SURFACE: HandleKind = HandleKind::SurfaceReference;

fn references(session: &Session) -> MutexGuard<'_, References> {
    let references = &session.code.references;
    references.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A reference's settings.
pub(super) fn settings(handle: u64, kind: HandleKind) -> Result<Settings, CUresult> {
    let session = session()?;
    Ok(references(session)
        .get(&session.code.modules, handle, kind)?
        .settings)
}

/// The object that stands for settings, or 0.
fn object(current: &Current, surface: bool, settings: &Settings) -> Result<u64, CUresult> {
    let Some(bound) = settings.bound else {
        return Ok(0);
    };
    let descriptor = bound.descriptor();
    let (resource, level) = super::texture::resource(session()?, &descriptor)?;
    let texture = Texture {
        resource: descriptor,
        spec: Spec {
            resource,
            level,
            sampler: (!surface).then_some(settings.sampler),
            view: None,
        },
    };
    let arrays = &session()?.arrays;
    arrays.create_texture(current, surface, texture)
}

/// Changes what a reference is set to, for all that is launched from here on.
fn change(
    handle: u64,
    kind: HandleKind,
    change: impl FnOnce(&mut Settings) -> Result<(), CUresult>,
) -> Outcome {
    let current = resource_context()?;
    let session = session()?;
    let mut references = references(session);
    let reference = references.get(&session.code.modules, handle, kind)?;
    let mut settings = reference.settings;
    change(&mut settings)?;
    if let Some(place) = reference.place {
        if place.context != current.handle() {
            return Err(CUresult::ERROR_INVALID_CONTEXT);
        }
        wait(&current)?;
        let surface = kind == SURFACE;
        let object = object(&current, surface, &settings)?;
        let arrays = &session.arrays;
        if let Err(code) = write(place, object) {
            if object != 0 {
                arrays.destroy_texture(&current, surface, object)?;
            }
            return Err(code);
        }
        let before = std::mem::replace(&mut reference.object, object);
        if before != 0 {
            arrays.destroy_texture(&current, surface, before)?;
        }
    }
    reference.settings = settings;
    Ok(())
}

/// Waits for what was launched in the context, or in a green one of it that is current.
fn wait(home: &Current) -> Outcome {
    let current = current()?;
    if current.handle() != home.handle() {
        current.drain()?;
    }
    home.drain()
}

fn write(place: ModuleVariable, object: u64) -> Outcome {
    let bytes = object.to_le_bytes();
    // SAFETY: the bytes outlive the copy, which is done when it returns.
    let source = unsafe { Bytes::new(bytes.as_ptr().cast()) };
    host_to_device(
        place.variable,
        source,
        bytes.len(),
        CUstream::NULL,
        Return::WhenDone,
    )
}

/// Finds a reference of a module.
fn named(module: CUmodule, name: &Text, kind: HandleKind, suffix: &str) -> Result<u64, CUresult> {
    let session = session()?;
    let owner = session.code.modules.get(module.bits())?;
    let name = name.get()?;
    let variable = [name, suffix.as_bytes()].concat();
    let Ok((address, 8)) = owner.variable(&variable) else {
        let name = String::from_utf8_lossy(name);
        log!(
            "the module has no reference {name}: one in machine code without PTX cannot be served, so \
             build with PTX (-gencode arch=compute_75,code=compute_75)"
        );
        return Err(CUresult::ERROR_NOT_FOUND);
    };
    let place = ModuleVariable {
        module: module.bits(),
        context: owner.context,
        variable: address,
    };
    Ok(references(session).named(kind, name, place))
}

/// Ends what the references of a module leave that was unloaded.
pub(super) fn delete_of_module(session: &'static Session, module: u64, context: u64) -> Outcome {
    let objects = references(session).forget(module);
    for (object, surface) in objects {
        let context = session.contexts.get(context)?;
        session.arrays.destroy_texture(&context, surface, object)?;
    }
    Ok(())
}

pub(crate) fn cuModuleGetTexRef(tex_ref: Out<CUtexref>, module: CUmodule, name: Text) -> Outcome {
    tex_ref.required()?;
    let handle = named(module, &name, TEXTURE, TEXTURE_REFERENCE)?;
    tex_ref.set(CUtexref::from_bits(handle))
}

pub(crate) fn cuModuleGetSurfRef(
    surf_ref: Out<CUsurfref>,
    module: CUmodule,
    name: Text,
) -> Outcome {
    surf_ref.required()?;
    let handle = named(module, &name, SURFACE, SURFACE_REFERENCE)?;
    surf_ref.set(CUsurfref::from_bits(handle))
}

pub(crate) fn cuParamSetTexRef(function: CUfunction, texunit: i32, tex_ref: CUtexref) -> Outcome {
    session()?.code.functions.get(function.bits())?;
    settings(tex_ref.bits(), TEXTURE)?;
    // Every kernel of the module reads it already.
    match texunit {
        DEFAULT_UNIT => Ok(()),
        _ => Err(CUresult::ERROR_INVALID_VALUE),
    }
}

pub(crate) fn cuTexRefCreate(tex_ref: Out<CUtexref>) -> Outcome {
    tex_ref.required()?;
    let handle = references(session()?).create(TEXTURE, None);
    tex_ref.set(CUtexref::from_bits(handle))
}

pub(crate) fn cuTexRefDestroy(tex_ref: CUtexref) -> Outcome {
    references(session()?).destroy(tex_ref.bits(), TEXTURE)
}

pub(crate) fn cuSurfRefSetArray(surf_ref: CUsurfref, array: CUarray, flags: u32) -> Outcome {
    change(surf_ref.bits(), SURFACE, |settings| {
        if flags != 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        settings.bound = Some(Resource::Array(array.bits()));
        Ok(())
    })
}

pub(crate) fn cuSurfRefGetArray(array: Out<CUarray>, surf_ref: CUsurfref) -> Outcome {
    array.required()?;
    match settings(surf_ref.bits(), SURFACE)?.bound {
        Some(Resource::Array(handle)) => array.set(CUarray::from_bits(handle)),
        _ => Err(CUresult::ERROR_INVALID_VALUE),
    }
}

/// A reference takes the format of an array that it is set to, or has it already: none reads an array as another.
fn set_format(settings: &mut Settings, array: (CUarray_format, u32), flags: u32) -> Outcome {
    match flags {
        OVERRIDE_FORMAT => (settings.format, settings.channels) = array,
        0 if (settings.format, settings.channels) == array => {}
        0 => {
            log!(
                "a texture reference is set to an array of another format than its own: \
                 pass CU_TRSA_OVERRIDE_FORMAT"
            );
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        _ => return Err(CUresult::ERROR_INVALID_VALUE),
    }
    Ok(())
}

pub(crate) fn cuTexRefSetArray(tex_ref: CUtexref, array: CUarray, flags: u32) -> Outcome {
    change(tex_ref.bits(), TEXTURE, |settings| {
        let shape = session()?
            .arrays
            .get(array.bits(), HandleKind::Array)?
            .shape;
        set_format(settings, (shape.format, shape.channels), flags)?;
        settings.bound = Some(Resource::Array(array.bits()));
        Ok(())
    })
}

pub(crate) fn cuTexRefSetMipmappedArray(
    tex_ref: CUtexref,
    mipmapped_array: CUmipmappedArray,
    flags: u32,
) -> Outcome {
    change(tex_ref.bits(), TEXTURE, |settings| {
        let handle = mipmapped_array.bits();
        let shape = session()?.arrays.get(handle, HandleKind::Mipmaps)?.shape;
        set_format(settings, (shape.format, shape.channels), flags)?;
        settings.bound = Some(Resource::Mipmapped(handle));
        Ok(())
    })
}

pub(crate) fn cuTexRefSetAddress(
    byte_offset: Out<u32>,
    tex_ref: CUtexref,
    dptr: CUdeviceptr_v1,
    bytes: u32,
) -> Outcome {
    let mut offset = 0;
    let place = match byte_offset.is_null() {
        true => Out::null(),
        // SAFETY: the local variable is valid for the write.
        false => unsafe { Out::new(&raw mut offset) },
    };
    cuTexRefSetAddress_v2(place, tex_ref, u64::from(dptr), bytes as usize)?;
    // Below the alignment of textures.
    byte_offset.set_if(offset as u32);
    Ok(())
}

pub(crate) fn cuTexRefSetAddress_v2(
    byte_offset: Out<usize>,
    tex_ref: CUtexref,
    dptr: CUdeviceptr,
    bytes: usize,
) -> Outcome {
    let offset = dptr % LINEAR_ALIGNMENT;
    if offset != 0 {
        // Whoever is not told of it would read beside it.
        byte_offset.required()?;
    }
    change(tex_ref.bits(), TEXTURE, |settings| {
        settings.bound = match (dptr, bytes) {
            (0, 0) => None,
            _ => Some(Resource::Linear {
                address: dptr - offset,
                format: settings.format,
                channels: settings.channels,
                bytes: (bytes as u64)
                    .checked_add(offset)
                    .ok_or(CUresult::ERROR_INVALID_VALUE)?,
            }),
        };
        Ok(())
    })?;
    byte_offset.set_if(offset as usize);
    Ok(())
}

pub(crate) fn cuTexRefSetAddress2D(
    tex_ref: CUtexref,
    desc: In<CUDA_ARRAY_DESCRIPTOR_v1>,
    dptr: CUdeviceptr_v1,
    pitch: u32,
) -> Outcome {
    let desc = super::array::widened(&desc.get()?);
    cuTexRefSetAddress2D_v3(tex_ref, In::of(&desc), u64::from(dptr), pitch as usize)
}

pub(crate) fn cuTexRefSetAddress2D_v2(
    tex_ref: CUtexref,
    desc: In<CUDA_ARRAY_DESCRIPTOR>,
    dptr: CUdeviceptr,
    pitch: usize,
) -> Outcome {
    cuTexRefSetAddress2D_v3(tex_ref, desc, dptr, pitch)
}

pub(crate) fn cuTexRefSetAddress2D_v3(
    tex_ref: CUtexref,
    desc: In<CUDA_ARRAY_DESCRIPTOR>,
    dptr: CUdeviceptr,
    pitch: usize,
) -> Outcome {
    let desc = desc.get()?;
    change(tex_ref.bits(), TEXTURE, |settings| {
        (settings.format, settings.channels) = (desc.Format, desc.NumChannels);
        settings.bound = Some(Resource::Pitched {
            address: dptr,
            format: desc.Format,
            channels: desc.NumChannels,
            width: desc.Width as u64,
            height: desc.Height as u64,
            pitch: pitch as u64,
        });
        Ok(())
    })
}

pub(crate) fn cuTexRefSetFormat(
    tex_ref: CUtexref,
    format: CUarray_format,
    num_packed_components: i32,
) -> Outcome {
    change(tex_ref.bits(), TEXTURE, |settings| {
        let channels =
            u32::try_from(num_packed_components).map_err(|_| CUresult::ERROR_INVALID_VALUE)?;
        element_bytes(format, channels)?;
        (settings.format, settings.channels) = (format, channels);
        // Arrays have their own.
        if let Some(
            Resource::Linear {
                format: of,
                channels: count,
                ..
            }
            | Resource::Pitched {
                format: of,
                channels: count,
                ..
            },
        ) = &mut settings.bound
        {
            (*of, *count) = (format, channels);
        }
        Ok(())
    })
}

pub(crate) fn cuTexRefSetAddressMode(tex_ref: CUtexref, dim: i32, mode: CUaddress_mode) -> Outcome {
    change(tex_ref.bits(), TEXTURE, |settings| {
        let dimension = usize::try_from(dim).ok();
        let place = dimension.and_then(|dim| settings.sampler.addressMode.get_mut(dim));
        *place.ok_or(CUresult::ERROR_INVALID_VALUE)? = mode;
        Ok(())
    })
}

pub(crate) fn cuTexRefSetFilterMode(tex_ref: CUtexref, mode: CUfilter_mode) -> Outcome {
    change(tex_ref.bits(), TEXTURE, |settings| {
        settings.sampler.filterMode = mode;
        Ok(())
    })
}

pub(crate) fn cuTexRefSetMipmapFilterMode(tex_ref: CUtexref, mode: CUfilter_mode) -> Outcome {
    change(tex_ref.bits(), TEXTURE, |settings| {
        settings.sampler.mipmapFilterMode = mode;
        Ok(())
    })
}

pub(crate) fn cuTexRefSetMipmapLevelBias(tex_ref: CUtexref, bias: f32) -> Outcome {
    change(tex_ref.bits(), TEXTURE, |settings| {
        settings.sampler.mipmapLevelBias = bias;
        Ok(())
    })
}

pub(crate) fn cuTexRefSetMipmapLevelClamp(tex_ref: CUtexref, least: f32, most: f32) -> Outcome {
    change(tex_ref.bits(), TEXTURE, |settings| {
        settings.sampler.minMipmapLevelClamp = least;
        settings.sampler.maxMipmapLevelClamp = most;
        Ok(())
    })
}

pub(crate) fn cuTexRefSetMaxAnisotropy(tex_ref: CUtexref, max_anisotropy: u32) -> Outcome {
    change(tex_ref.bits(), TEXTURE, |settings| {
        settings.sampler.maxAnisotropy = max_anisotropy;
        Ok(())
    })
}

pub(crate) fn cuTexRefSetBorderColor(tex_ref: CUtexref, border_color: In<[f32; 4]>) -> Outcome {
    let colour = border_color.get()?;
    change(tex_ref.bits(), TEXTURE, |settings| {
        settings.sampler.borderColor = colour;
        Ok(())
    })
}

pub(crate) fn cuTexRefSetFlags(tex_ref: CUtexref, flags: u32) -> Outcome {
    change(tex_ref.bits(), TEXTURE, |settings| {
        if flags & !FLAGS != 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        settings.sampler.flags = flags;
        Ok(())
    })
}
