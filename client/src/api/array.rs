//! Arrays: making, describing, ending them.
//!
//! Owns CUDA's descriptors of arrays, in both widths. Called by the shells of `exports`. Must not know how elements
//! lie in memory: the server's engine does.

use cuda_abi::CUresult;
use cuda_abi::types::{
    CUDA_ARRAY_DESCRIPTOR, CUDA_ARRAY_DESCRIPTOR_v1, CUDA_ARRAY_MEMORY_REQUIREMENTS,
    CUDA_ARRAY_SPARSE_PROPERTIES, CUDA_ARRAY3D_DESCRIPTOR, CUDA_ARRAY3D_DESCRIPTOR_v1, CUarray,
    CUdevice, CUmipmappedArray,
};
use protocol::arrays::Shape;

use super::Outcome;
use crate::context::resource_context;
use crate::handle::HandleKind;
use crate::pointers::{In, Out};
use crate::session::session;

fn create(handle: &Out<CUarray>, descriptor: &CUDA_ARRAY3D_DESCRIPTOR) -> Outcome {
    let current = resource_context()?;
    handle.required()?;
    let shape = Shape::new(descriptor, 1)?;
    let array = session()?
        .arrays
        .create(&current, shape, HandleKind::Array)?;
    handle.set(CUarray::from_bits(array))
}

/// What the first release of CUDA had in 32 bits.
pub(super) fn widened(old: &CUDA_ARRAY_DESCRIPTOR_v1) -> CUDA_ARRAY_DESCRIPTOR {
    CUDA_ARRAY_DESCRIPTOR {
        Width: old.Width as usize,
        Height: old.Height as usize,
        Format: old.Format,
        NumChannels: old.NumChannels,
    }
}

pub(crate) fn cuArrayCreate(
    handle: Out<CUarray>,
    allocate_array: In<CUDA_ARRAY_DESCRIPTOR_v1>,
) -> Outcome {
    let descriptor = widened(&allocate_array.get()?);
    cuArrayCreate_v2(handle, In::of(&descriptor))
}

pub(crate) fn cuArrayCreate_v2(
    handle: Out<CUarray>,
    allocate_array: In<CUDA_ARRAY_DESCRIPTOR>,
) -> Outcome {
    let flat = allocate_array.get()?;
    let descriptor = CUDA_ARRAY3D_DESCRIPTOR {
        Width: flat.Width,
        Height: flat.Height,
        Depth: 0,
        Format: flat.Format,
        NumChannels: flat.NumChannels,
        Flags: 0,
    };
    create(&handle, &descriptor)
}

pub(crate) fn cuArray3DCreate(
    handle: Out<CUarray>,
    allocate_array: In<CUDA_ARRAY3D_DESCRIPTOR_v1>,
) -> Outcome {
    let old = allocate_array.get()?;
    let descriptor = CUDA_ARRAY3D_DESCRIPTOR {
        Width: old.Width as usize,
        Height: old.Height as usize,
        Depth: old.Depth as usize,
        Format: old.Format,
        NumChannels: old.NumChannels,
        Flags: old.Flags,
    };
    create(&handle, &descriptor)
}

pub(crate) fn cuArray3DCreate_v2(
    handle: Out<CUarray>,
    allocate_array: In<CUDA_ARRAY3D_DESCRIPTOR>,
) -> Outcome {
    create(&handle, &allocate_array.get()?)
}

pub(crate) fn cuArrayDestroy(array: CUarray) -> Outcome {
    let session = session()?;
    session
        .arrays
        .destroy(session, array.bits(), HandleKind::Array)
}

fn descriptor(array: CUarray) -> Result<CUDA_ARRAY3D_DESCRIPTOR, CUresult> {
    let array = session()?.arrays.get(array.bits(), HandleKind::Array)?;
    Ok(array.shape.descriptor(array.level))
}

fn saturating_u32(side: usize) -> u32 {
    // Far fewer elements than that fit in any direction.
    u32::try_from(side).unwrap_or(u32::MAX)
}

pub(crate) fn cuArrayGetDescriptor(
    array_descriptor: Out<CUDA_ARRAY_DESCRIPTOR_v1>,
    array: CUarray,
) -> Outcome {
    array_descriptor.required()?;
    let whole = descriptor(array)?;
    array_descriptor.set(CUDA_ARRAY_DESCRIPTOR_v1 {
        Width: saturating_u32(whole.Width),
        Height: saturating_u32(whole.Height),
        Format: whole.Format,
        NumChannels: whole.NumChannels,
    })
}

pub(crate) fn cuArrayGetDescriptor_v2(
    array_descriptor: Out<CUDA_ARRAY_DESCRIPTOR>,
    array: CUarray,
) -> Outcome {
    let whole = descriptor(array)?;
    array_descriptor.set(CUDA_ARRAY_DESCRIPTOR {
        Width: whole.Width,
        Height: whole.Height,
        Format: whole.Format,
        NumChannels: whole.NumChannels,
    })
}

pub(crate) fn cuArray3DGetDescriptor(
    array_descriptor: Out<CUDA_ARRAY3D_DESCRIPTOR_v1>,
    array: CUarray,
) -> Outcome {
    array_descriptor.required()?;
    let whole = descriptor(array)?;
    array_descriptor.set(CUDA_ARRAY3D_DESCRIPTOR_v1 {
        Width: saturating_u32(whole.Width),
        Height: saturating_u32(whole.Height),
        Depth: saturating_u32(whole.Depth),
        Format: whole.Format,
        NumChannels: whole.NumChannels,
        Flags: whole.Flags,
    })
}

pub(crate) fn cuArray3DGetDescriptor_v2(
    array_descriptor: Out<CUDA_ARRAY3D_DESCRIPTOR>,
    array: CUarray,
) -> Outcome {
    array_descriptor.required()?;
    array_descriptor.set(descriptor(array)?)
}

pub(crate) fn cuArrayGetMemoryRequirements(
    memory_requirements: Out<CUDA_ARRAY_MEMORY_REQUIREMENTS>,
    array: CUarray,
    _device: CUdevice,
) -> Outcome {
    memory_requirements.required()?;
    descriptor(array)?;
    // Only arrays whose memory is mapped later have some, and those are not built.
    Err(CUresult::ERROR_INVALID_VALUE)
}

pub(crate) fn cuArrayGetPlane(
    plane_array: Out<CUarray>,
    array: CUarray,
    _plane_idx: u32,
) -> Outcome {
    plane_array.required()?;
    descriptor(array)?;
    // Only arrays of planar formats have planes.
    Err(CUresult::ERROR_INVALID_VALUE)
}

pub(crate) fn cuArrayGetSparseProperties(
    sparse_properties: Out<CUDA_ARRAY_SPARSE_PROPERTIES>,
    array: CUarray,
) -> Outcome {
    sparse_properties.required()?;
    descriptor(array)?;
    // No array is sparse.
    Err(CUresult::ERROR_INVALID_VALUE)
}

pub(crate) fn cuMipmappedArrayCreate(
    handle: Out<CUmipmappedArray>,
    mipmapped_array_desc: In<CUDA_ARRAY3D_DESCRIPTOR>,
    num_mipmap_levels: u32,
) -> Outcome {
    let current = resource_context()?;
    handle.required()?;
    let descriptor = mipmapped_array_desc.get()?;
    // CUDA makes as many levels as there can be where more are asked for.
    let sides = [descriptor.Width, descriptor.Height, descriptor.Depth];
    let most = 1 + sides.into_iter().max().unwrap_or(1).max(1).ilog2();
    let shape = Shape::new(&descriptor, num_mipmap_levels.clamp(1, most))?;
    let array = session()?
        .arrays
        .create(&current, shape, HandleKind::Mipmaps)?;
    handle.set(CUmipmappedArray::from_bits(array))
}

pub(crate) fn cuMipmappedArrayDestroy(mipmapped_array: CUmipmappedArray) -> Outcome {
    let session = session()?;
    session
        .arrays
        .destroy(session, mipmapped_array.bits(), HandleKind::Mipmaps)
}

pub(crate) fn cuMipmappedArrayGetLevel(
    level_array: Out<CUarray>,
    mipmapped_array: CUmipmappedArray,
    level: u32,
) -> Outcome {
    level_array.required()?;
    let handle = session()?.arrays.level(mipmapped_array.bits(), level)?;
    level_array.set(CUarray::from_bits(handle))
}

pub(crate) fn cuMipmappedArrayGetMemoryRequirements(
    memory_requirements: Out<CUDA_ARRAY_MEMORY_REQUIREMENTS>,
    mipmap: CUmipmappedArray,
    _device: CUdevice,
) -> Outcome {
    memory_requirements.required()?;
    session()?.arrays.get(mipmap.bits(), HandleKind::Mipmaps)?;
    Err(CUresult::ERROR_INVALID_VALUE)
}

pub(crate) fn cuMipmappedArrayGetSparseProperties(
    sparse_properties: Out<CUDA_ARRAY_SPARSE_PROPERTIES>,
    mipmap: CUmipmappedArray,
) -> Outcome {
    sparse_properties.required()?;
    session()?.arrays.get(mipmap.bits(), HandleKind::Mipmaps)?;
    Err(CUresult::ERROR_INVALID_VALUE)
}
