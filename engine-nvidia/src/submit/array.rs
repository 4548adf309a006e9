//! Arrays, textures and surfaces: the driver's own, by the client's handles.
//!
//! Every array is cleared when it is made, for the driver gives memory out as it was. A texture's or
//! surface's number is the driver's, since kernels see it; handles inside of a description are the
//! client's and are exchanged here.
//!
//! Called by the client and by copies. Must not know modules.

use std::sync::Arc;

use cuda_abi::CUresult;
use cuda_abi::types::*;
use engine::Window;
use protocol::arrays::Shape;
use protocol::operations::{ArrayCopy, ArrayCreate, Space};
use protocol::textures::{Resource, Spec};

use crate::device::context::Context;
use crate::driver::Driver;
use crate::memory::address_space::ClientAddressSpace;
use crate::submit::copy::step::{Step, constants};
use crate::sync::Handle;

/// Bytes that are cleared at a time.
const CLEARED: u64 = 4 << 20;

/// Steps of one copy; more, which only host memory in many pieces needs, are refused.
const MOST_STEPS: usize = 1 << 16;

/// One array of a client.
#[derive(Debug)]
pub(crate) struct Array {
    context: Arc<Context>,
    shape: Shape,
    /// The array with all its levels, if it has several.
    whole: Option<Handle<CUmipmappedArray>>,
    levels: Vec<Handle<CUarray>>,
}

impl Array {
    /// Makes an array of zeroes.
    ///
    /// # Errors
    /// As [`Shape::new`], and the driver's status.
    pub(crate) fn new(context: &Arc<Context>, request: &ArrayCreate) -> Result<Self, CUresult> {
        let shape = Shape::of(request)?;
        let descriptor = shape.descriptor(0);
        let device = context.device();
        device.make_room()?;
        let driver = device.enter()?;
        let mut array = Self {
            context: Arc::clone(context),
            shape,
            whole: None,
            levels: Vec::new(),
        };
        if shape.levels == 1 {
            let mut raw = CUarray::NULL;
            // SAFETY: both pointers are to locals.
            device.confirm(unsafe {
                driver.cuArray3DCreate_v2(&raw mut raw, &raw const descriptor)
            })?;
            array.levels.push(Handle(raw));
        } else {
            let mut raw = CUmipmappedArray::NULL;
            // SAFETY: both pointers are to locals, which the driver has read and written when it returns.
            device.confirm(unsafe {
                driver.cuMipmappedArrayCreate(&raw mut raw, &raw const descriptor, shape.levels)
            })?;
            array.whole = Some(Handle(raw));
            for level in 0..shape.levels {
                let mut of_level = CUarray::NULL;
                // SAFETY: the pointer is to a local, the array was just made.
                device.confirm(unsafe {
                    driver.cuMipmappedArrayGetLevel(&raw mut of_level, raw, level)
                })?;
                array.levels.push(Handle(of_level));
            }
        }
        device.confirm(array.clear(driver))?;
        Ok(array)
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.shape.bytes()
    }

    fn clear(&self, driver: &Driver) -> Result<(), CUresult> {
        for (index, array) in (0..).zip(&self.levels) {
            let level = self.shape.level(index).ok_or(CUresult::ERROR_UNKNOWN)?;
            let row = level.width * self.shape.element();
            let rows = (CLEARED / row).clamp(1, level.height);
            let zeroes = vec![0_u8; (row * rows) as usize];
            for z in 0..level.depth {
                for y in (0..level.height).step_by(rows as usize) {
                    let mut copy = sentinel();
                    copy.srcMemoryType = CUmemorytype::HOST;
                    copy.srcHost = zeroes.as_ptr().cast();
                    copy.srcPitch = row as usize;
                    copy.srcHeight = rows as usize;
                    copy.dstMemoryType = CUmemorytype::ARRAY;
                    copy.dstArray = array.0;
                    copy.dstY = y as usize;
                    copy.dstZ = z as usize;
                    copy.WidthInBytes = row as usize;
                    copy.Height = rows.min(level.height - y) as usize;
                    copy.Depth = 1;
                    // SAFETY: the zeroes are as many as the box, which lies in the array.
                    unsafe { driver.cuMemcpy3D_v2(&raw const copy)? };
                }
            }
        }
        Ok(())
    }
}

impl Drop for Array {
    fn drop(&mut self) {
        let whole = self.whole;
        let levels = std::mem::take(&mut self.levels);
        self.context
            .device()
            .when_idle(self.shape.bytes(), move |driver| match whole {
                // SAFETY: made in `new`, destroyed once; whoever uses it holds a reference to this.
                Some(whole) => drop(unsafe { driver.cuMipmappedArrayDestroy(whole.raw()) }),
                None => {
                    for array in levels {
                        // SAFETY: made in `new`, destroyed once; nobody uses it, for the last reference is gone.
                        let _ = unsafe { driver.cuArrayDestroy(array.raw()) };
                    }
                }
            });
    }
}

/// A texture or surface.
#[derive(Debug)]
pub(crate) struct Texture {
    context: Arc<Context>,
    surface: bool,
    object: u64,
    /// What it is made of stays as long as it does.
    array: Option<Arc<Array>>,
}

impl Texture {
    /// Makes a texture or surface.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_HANDLE for arrays that are not there, CUDA_ERROR_INVALID_VALUE for memory
    /// that is not the client's, and the driver's status.
    pub(crate) fn new(
        context: &Arc<Context>,
        memory: &mut ClientAddressSpace,
        spec: &Spec,
        surface: bool,
        find: impl Fn(u64) -> Result<Arc<Array>, CUresult>,
    ) -> Result<Self, CUresult> {
        let invalid = CUresult::ERROR_INVALID_VALUE;
        let on = context.device().number();
        let mut descriptor = spec.resource.descriptor();
        let mut array = None;
        match spec.resource {
            Resource::Array(handle) => {
                let found = find(handle)?;
                let level = found.levels.get(spec.level as usize).ok_or(invalid)?;
                descriptor.res[0] = level.0.bits();
                array = Some(found);
            }
            Resource::Mipmapped(handle) => {
                let found = find(handle)?;
                descriptor.res[0] = found.whole.ok_or(invalid)?.0.bits();
                array = Some(found);
            }
            Resource::Linear { address, bytes, .. } => {
                let (base, _) = memory.find(on, Space::Unified as u32, address, bytes)?;
                descriptor.res[0] = base;
            }
            Resource::Pitched {
                address,
                width,
                height,
                pitch,
                format,
                channels,
            } => {
                let element = u64::from(protocol::arrays::element_bytes(format, channels)?);
                let bytes = pitch * (height - 1) + width * element;
                let (base, _) = memory.find(on, Space::Unified as u32, address, bytes)?;
                descriptor.res[0] = base;
            }
        }
        let device = context.device();
        let driver = device.enter()?;
        let mut object = 0;
        let made = if surface {
            // SAFETY: the pointers are to locals; what they name is the client's (above).
            unsafe { driver.cuSurfObjectCreate(&raw mut object, &raw const descriptor) }
        } else {
            let sampler = spec.sampler.ok_or(invalid)?;
            let view = spec
                .view
                .as_ref()
                .map_or(std::ptr::null(), |view| &raw const *view);
            // SAFETY: the pointers are to locals, or NULL for the view; the memory or array that the
            // descriptor names was found to be the client's.
            unsafe {
                driver.cuTexObjectCreate(
                    &raw mut object,
                    &raw const descriptor,
                    &raw const sampler,
                    view,
                )
            }
        };
        device.confirm(made)?;
        Ok(Self {
            context: Arc::clone(context),
            surface,
            object,
            array,
        })
    }

    /// Whether it is made of this array.
    pub(crate) fn is_of(&self, array: &Arc<Array>) -> bool {
        self.array
            .as_ref()
            .is_some_and(|own| Arc::ptr_eq(own, array))
    }

    pub(crate) fn object(&self) -> u64 {
        self.object
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

impl Drop for Texture {
    fn drop(&mut self) {
        if let Ok(driver) = self.context.device().enter() {
            // SAFETY: made in `new`, destroyed once, after the work that was posted before.
            let _ = unsafe {
                if self.surface {
                    driver.cuSurfObjectDestroy(self.object)
                } else {
                    driver.cuTexObjectDestroy(self.object)
                }
            };
        }
    }
}

/// A part of a copy with arrays.
#[derive(Debug)]
pub(crate) struct ArrayStep {
    copy: Handle<CUDA_MEMCPY3D>,
    /// Stay until the driver has the copy; it keeps arrays that it uses itself.
    _arrays: [Option<Arc<Array>>; 2],
}

impl ArrayStep {
    /// Gives it to the driver.
    ///
    /// # Errors
    /// The driver's status.
    pub(crate) fn issue(&self, driver: &Driver, stream: CUstream) -> Result<(), CUresult> {
        // SAFETY: both sides were found to be the client's when it was planned.
        unsafe { driver.cuMemcpy3DAsync_v2(&raw const self.copy.0, stream) }
    }
}

enum CopySide {
    Array(Arc<Array>),
    /// Address, pitch, slice.
    Memory(u64, u64, u64),
}

/// Plans a copy with arrays by a stream on a device.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE and CUDA_ERROR_INVALID_HANDLE.
pub(crate) fn plan(
    memory: &mut ClientAddressSpace,
    on: usize,
    request: &ArrayCopy,
    find: impl Fn(u64) -> Result<Arc<Array>, CUresult>,
) -> Result<Vec<Step>, CUresult> {
    let ArrayCopy {
        width,
        height,
        depth,
        ..
    } = *request;
    if width == 0 || height == 0 || depth == 0 {
        return Ok(Vec::new());
    }
    let invalid = CUresult::ERROR_INVALID_VALUE;
    let mut reach = u64::MAX;
    let mut side = |space: u32, at: u64, level: u32, place: [u64; 3], pitch: u64, slice: u64| {
        if Space::from_number(space) == Some(Space::Array) {
            let array = find(at)?;
            let sides = array.shape.level(level).ok_or(invalid)?;
            let row = sides.width * array.shape.element();
            let fits = |start: u64, count: u64, all: u64| count <= all && start <= all - count;
            if !fits(place[0], width, row)
                || !fits(place[1], height, sides.height)
                || !fits(place[2], depth, sides.depth)
            {
                return Err(invalid);
            }
            return Ok(CopySide::Array(array));
        }
        let pitch = if height == 1 { width } else { pitch };
        let full = pitch.checked_mul(height).ok_or(invalid)?;
        let slice = if depth == 1 { full } else { slice };
        if pitch < width || slice < full - pitch + width || pitch > i32::MAX as u64 {
            return Err(invalid);
        }
        let bytes = slice
            .checked_mul(depth - 1)
            .and_then(|bytes| bytes.checked_add(full - pitch + width))
            .ok_or(invalid)?;
        let (base, place) = memory.find(on, space, at, bytes)?;
        if let Some(window) = memory.host_of(place)
            && window.registered_from(base) < bytes
        {
            // Rows one by one, each of which may lie in two registrations.
            reach = reach.min(1);
        }
        Ok(CopySide::Memory(base, pitch, slice))
    };
    let to_at = [request.to_x, request.to_y, request.to_z];
    let from_at = [request.from_x, request.from_y, request.from_z];
    let to = side(
        request.to_space,
        request.to,
        request.to_level,
        to_at,
        request.to_pitch,
        request.to_slice,
    )?;
    let from = side(
        request.from_space,
        request.from,
        request.from_level,
        from_at,
        request.from_pitch,
        request.from_slice,
    )?;
    let written = match &to {
        CopySide::Memory(base, pitch, slice) => Window {
            base: *base,
            bytes: slice * (depth - 1) + pitch * (height - 1) + width,
        },
        CopySide::Array(_) => Window { base: 0, bytes: 0 },
    };
    let constants = constants(memory, written);
    let whole = reach == u64::MAX;
    let even = |side: &CopySide| match side {
        CopySide::Array(_) => true,
        CopySide::Memory(_, pitch, slice) => slice.is_multiple_of(*pitch),
    };
    let levels = (request.to_level, request.from_level);
    let part = |z: u64, y: u64, height: u64, depth: u64| {
        step(
            (&to, &from),
            levels,
            (to_at, from_at),
            [z, y],
            [width, height, depth],
        )
    };
    if whole && (depth == 1 || (even(&to) && even(&from))) {
        let all = part(0, 0, height, depth)?;
        return Ok([all].into_iter().chain(constants).collect());
    }
    let rows = if whole { height } else { 1 };
    if depth.saturating_mul(height / rows) > MOST_STEPS as u64 {
        return Err(invalid);
    }
    let mut steps = Vec::new();
    for z in 0..depth {
        for y in (0..height).step_by(rows as usize) {
            steps.push(part(z, y, rows, 1)?);
        }
    }
    steps.extend(constants);
    Ok(steps)
}

/// One call of the driver: a box of the whole, from slice and row `at` on.
fn step(
    (to, from): (&CopySide, &CopySide),
    (to_level, from_level): (u32, u32),
    (to_at, from_at): ([u64; 3], [u64; 3]),
    at: [u64; 2],
    [width, height, depth]: [u64; 3],
) -> Result<Step, CUresult> {
    let invalid = CUresult::ERROR_INVALID_VALUE;
    let mut copy = sentinel();
    let mut arrays = [None, None];
    match to {
        CopySide::Array(array) => {
            let raw = array.levels.get(to_level as usize).ok_or(invalid)?;
            copy.dstMemoryType = CUmemorytype::ARRAY;
            copy.dstArray = raw.0;
            copy.dstXInBytes = to_at[0] as usize;
            copy.dstY = (to_at[1] + at[1]) as usize;
            copy.dstZ = (to_at[2] + at[0]) as usize;
            arrays[0] = Some(Arc::clone(array));
        }
        CopySide::Memory(base, pitch, slice) => {
            copy.dstMemoryType = CUmemorytype::UNIFIED;
            copy.dstDevice = base + at[0] * slice + at[1] * pitch;
            copy.dstPitch = *pitch as usize;
            copy.dstHeight = if depth == 1 { height } else { slice / pitch } as usize;
        }
    }
    match from {
        CopySide::Array(array) => {
            let raw = array.levels.get(from_level as usize).ok_or(invalid)?;
            copy.srcMemoryType = CUmemorytype::ARRAY;
            copy.srcArray = raw.0;
            copy.srcXInBytes = from_at[0] as usize;
            copy.srcY = (from_at[1] + at[1]) as usize;
            copy.srcZ = (from_at[2] + at[0]) as usize;
            arrays[1] = Some(Arc::clone(array));
        }
        CopySide::Memory(base, pitch, slice) => {
            copy.srcMemoryType = CUmemorytype::UNIFIED;
            copy.srcDevice = base + at[0] * slice + at[1] * pitch;
            copy.srcPitch = *pitch as usize;
            copy.srcHeight = if depth == 1 { height } else { slice / pitch } as usize;
        }
    }
    copy.WidthInBytes = width as usize;
    copy.Height = height as usize;
    copy.Depth = depth as usize;
    Ok(Step::Array(Box::new(ArrayStep {
        copy: Handle(copy),
        _arrays: arrays,
    })))
}

/// A copy of nothing from nowhere.
fn sentinel() -> CUDA_MEMCPY3D {
    CUDA_MEMCPY3D {
        srcXInBytes: 0,
        srcY: 0,
        srcZ: 0,
        srcLOD: 0,
        srcMemoryType: CUmemorytype::UNIFIED,
        srcHost: std::ptr::null(),
        srcDevice: 0,
        srcArray: CUarray::NULL,
        reserved0: std::ptr::null_mut(),
        srcPitch: 0,
        srcHeight: 0,
        dstXInBytes: 0,
        dstY: 0,
        dstZ: 0,
        dstLOD: 0,
        dstMemoryType: CUmemorytype::UNIFIED,
        dstHost: std::ptr::null_mut(),
        dstDevice: 0,
        dstArray: CUarray::NULL,
        reserved1: std::ptr::null_mut(),
        dstPitch: 0,
        dstHeight: 0,
        WidthInBytes: 0,
        Height: 0,
        Depth: 0,
    }
}
