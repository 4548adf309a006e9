//! Launches: argument errors at once, and the rest into the ring.
//!
//! Owns the gathering of a kernel's parameters into one block, and the checks that CUDA makes before a launch.
//! `api::launch`, older launch functions and graph nodes call it. A launch whose
//! parameters are short takes the lock of its stream and no other, and allocates nothing for them.
//!
//! Must not know whether `api` or a graph asked, nor how an image became a function.

use std::ffi::c_void;

use cuda_abi::CUresult;
use cuda_abi::types::{
    CU_LAUNCH_PARAM_BUFFER_POINTER, CU_LAUNCH_PARAM_BUFFER_SIZE, CU_LAUNCH_PARAM_END,
    CUdevice_attribute, CUfunction_attribute, CUlaunchAttribute, CUstream,
};
use protocol::operations::{LAUNCH_COOPERATIVE, Launch};

use crate::code::Code;
use crate::code::function::{Function, Layout};
use crate::code::occupancy;
use crate::context::Current;
use crate::recorder;
use crate::stream::capture::{CAPTURED, Operation};
use crate::stream::event::Events;
use crate::stream::{self, StreamTarget};
use recorded::RecordedLaunch;

mod attributes;
pub(crate) mod recorded;

pub(crate) use attributes::{check_is_said, encode_attribute, read_attributes};

/// Parameter blocks up to this size are put together without an allocation.
const SHORT: usize = 128;

/// How a kernel shall be launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LaunchShape {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared: u32,
    pub cooperative: bool,
}

/// The parameters of a launch, as the program gives them: one of both, or none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Params {
    pub each: *mut *mut c_void,
    pub extra: *mut *mut c_void,
}

/// Launches a kernel.
///
/// # Errors
/// Those that CUDA reports at once: of handles, sizes and parameters.
///
/// # Safety
/// `params` are as CUDA has them for the kernel, and `attributes` are whole.
pub(crate) unsafe fn launch(
    code: &'static Code,
    handle: u64,
    stream: CUstream,
    shape: LaunchShape,
    params: Params,
    attributes: &[CUlaunchAttribute],
) -> Result<(), CUresult> {
    let target = stream::target(stream)?;
    let current = target.current;
    let (_, function) = code.in_context(handle, &current)?;
    let layout = function.layout().ok_or(CUresult::ERROR_INVALID_HANDLE)?;
    check(&current, function, &shape)?;
    if recorder::is_on() {
        record_facts(code, function);
    }
    let begun = Begun {
        events: code.events,
        target: &target,
        handle,
        function,
        layout,
        shape,
    };
    let bytes = layout.bytes as usize;
    // SAFETY: this function's caller vouches for the list.
    let given = unsafe { parameter_buffer(&params, layout)? };
    if let Some((from, size)) = given
        && size == bytes
    {
        // SAFETY: the program's buffer is readable for the size that it gave, which covers the block.
        let block = unsafe { std::slice::from_raw_parts(from, bytes) };
        return begun.post(attributes, block);
    }
    let mut short = [0; SHORT];
    let mut long = Vec::new();
    let block = if bytes <= SHORT {
        &mut short[..bytes]
    } else {
        long.resize(bytes, 0);
        &mut long[..]
    };
    // SAFETY: the caller vouches for the parameters, whose buffer the list has just named.
    unsafe { fill(given, params.each, layout, block)? };
    begun.post(attributes, block)
}

/// Tells the recorder what a kernel is.
pub(crate) fn record_facts(code: &'static Code, function: &Function) {
    recorder::kernel(function.module(), function.index(), || {
        let (owner, index) = (function.owner(), function.index());
        let module = code.modules.get(owner).ok();
        let name = module.and_then(|module| {
            Some(
                module
                    .image
                    .name(index)
                    .ok()?
                    .to_string_lossy()
                    .into_owned(),
            )
        });
        let attribute = |of| {
            let value = function.attribute(of).unwrap_or_default();
            u32::try_from(value).unwrap_or_default()
        };
        (
            name.unwrap_or_else(|| "kernel".to_owned()),
            attribute(CUfunction_attribute::SHARED_SIZE_BYTES),
            attribute(CUfunction_attribute::NUM_REGS),
        )
    });
}

/// The parameter block that `extra` names, and its bytes, if the parameters are given that way. It may be shorter
/// than the kernel's (NCCL's kernels declare 4 KiB and are given what they need of it): the rest is zero.
///
/// # Safety
/// `params.extra` is NULL or leads to a list as CUDA defines it, which ends with CU_LAUNCH_PARAM_END and
/// whose size entry leads to a size.
unsafe fn parameter_buffer(
    params: &Params,
    layout: &Layout,
) -> Result<Option<(*const u8, usize)>, CUresult> {
    if params.extra.is_null() {
        return Ok(None);
    }
    let (mut buffer, mut size) = (None, None);
    // Each of the two once, then the end.
    for entry in 0..3 {
        // SAFETY: the list is as long as its end mark says.
        let key = unsafe { *params.extra.add(2 * entry) }.addr();
        if key == CU_LAUNCH_PARAM_END {
            break;
        }
        // SAFETY: every key but the end has a value behind it.
        let value = unsafe { *params.extra.add(2 * entry + 1) };
        match key {
            CU_LAUNCH_PARAM_BUFFER_POINTER => buffer = Some(value.cast::<u8>().cast_const()),
            CU_LAUNCH_PARAM_BUFFER_SIZE if !value.is_null() => {
                // SAFETY: the value points at a size.
                size = Some(unsafe { value.cast::<usize>().read_unaligned() });
            }
            _ => return Err(CUresult::ERROR_INVALID_VALUE),
        }
    }
    match (buffer, size) {
        _ if layout.bytes == 0 => Ok(None),
        // Both ways at once is an error, but for a list that names nothing.
        (None, None) if !params.each.is_null() => Ok(None),
        _ if !params.each.is_null() => Err(CUresult::ERROR_INVALID_VALUE),
        (Some(_), Some(size)) if size > layout.bytes as usize => {
            Err(CUresult::ERROR_LAUNCH_OUT_OF_RESOURCES)
        }
        (Some(buffer), Some(size)) if !buffer.is_null() && size > 0 => Ok(Some((buffer, size))),
        _ => Err(CUresult::ERROR_INVALID_VALUE),
    }
}

/// Writes a parameter block, which is zero: from a buffer of so many bytes, no more than it has, or each by itself.
///
/// # Safety
/// As [`gather`]'s; the buffer is readable for so many bytes.
#[inline]
unsafe fn fill(
    given: Option<(*const u8, usize)>,
    each: *mut *mut c_void,
    layout: &Layout,
    block: &mut [u8],
) -> Result<(), CUresult> {
    let Some((from, size)) = given else {
        // SAFETY: the caller vouches for the parameters, given each by itself here.
        return unsafe { gather(each, layout, block) };
    };
    // SAFETY: the caller vouches for the buffer; the block has as many bytes and is ours.
    unsafe { std::ptr::copy_nonoverlapping(from, block[..size].as_mut_ptr(), size) };
    Ok(())
}

/// Puts a parameter block together.
///
/// # Safety
/// `each` points at one pointer a parameter, each of which leads to a value of that parameter's size.
#[inline]
unsafe fn gather(
    each: *mut *mut c_void,
    layout: &Layout,
    block: &mut [u8],
) -> Result<(), CUresult> {
    if layout.params.is_empty() {
        return Ok(());
    }
    if each.is_null() {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    for (index, (offset, size)) in layout.params.iter().enumerate() {
        // SAFETY: the caller vouches for a pointer a parameter.
        let value = unsafe { *each.add(index) }.cast::<u8>();
        if value.is_null() {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let place = &mut block[*offset as usize..(offset + size) as usize];
        // SAFETY: the caller vouches for `size` bytes; the place has as many and is ours.
        unsafe { std::ptr::copy_nonoverlapping(value, place.as_mut_ptr(), place.len()) };
    }
    Ok(())
}

/// The errors that a shape gives on this device, whatever the kernel does.
#[inline]
fn check(current: &Current, function: &Function, shape: &LaunchShape) -> Result<(), CUresult> {
    let device = current.device()?;
    let limits = [
        (
            shape.block,
            [
                CUdevice_attribute::MAX_BLOCK_DIM_X,
                CUdevice_attribute::MAX_BLOCK_DIM_Y,
                CUdevice_attribute::MAX_BLOCK_DIM_Z,
            ],
        ),
        (
            shape.grid,
            [
                CUdevice_attribute::MAX_GRID_DIM_X,
                CUdevice_attribute::MAX_GRID_DIM_Y,
                CUdevice_attribute::MAX_GRID_DIM_Z,
            ],
        ),
    ];
    for (sizes, most) in limits {
        for (size, most) in sizes.into_iter().zip(most) {
            if size == 0 || i64::from(size) > i64::from(device.attribute(most)) {
                return Err(CUresult::ERROR_INVALID_VALUE);
            }
        }
    }
    let threads = shape
        .block
        .iter()
        .map(|size| i64::from(*size))
        .product::<i64>();
    if threads > i64::from(device.attribute(CUdevice_attribute::MAX_THREADS_PER_BLOCK)) {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    if threads > i64::from(function.attribute(CUfunction_attribute::MAX_THREADS_PER_BLOCK)?) {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let most_shared = function.attribute(CUfunction_attribute::MAX_DYNAMIC_SHARED_SIZE_BYTES)?;
    if i64::from(shape.shared) > i64::from(most_shared) {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    if shape.cooperative {
        if device.attribute(CUdevice_attribute::COOPERATIVE_LAUNCH) == 0 {
            return Err(CUresult::ERROR_NOT_SUPPORTED);
        }
        let resident = occupancy::blocks_per_multiprocessor(
            device,
            function,
            threads as u32,
            shape.shared as usize,
        )?;
        let all = i64::from(resident)
            * i64::from(device.attribute(CUdevice_attribute::MULTIPROCESSOR_COUNT));
        // The three cannot overflow: only the first dimension may be larger than 65535.
        let blocks = shape
            .grid
            .iter()
            .map(|size| i64::from(*size))
            .product::<i64>();
        if blocks > all {
            return Err(CUresult::ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
        }
    }
    Ok(())
}

/// What travels of a launch, beside its attributes and parameters.
#[inline]
pub(crate) fn request(function: &Function, shape: &LaunchShape, attributes: u32) -> Launch {
    Launch {
        module: function.module(),
        kernel: function.index(),
        grid: shape.grid,
        block: shape.block,
        shared: shape.shared,
        flags: if shape.cooperative {
            LAUNCH_COOPERATIVE
        } else {
            0
        },
        attributes,
    }
}

/// A launch that is checked but for its attributes and parameters.
#[derive(Clone, Copy)]
struct Begun<'a> {
    events: &'static Events,
    target: &'a StreamTarget,
    /// The handle that the program gave.
    handle: u64,
    function: &'a Function,
    layout: &'a Layout,
    shape: LaunchShape,
}

impl Begun<'_> {
    /// It as a capture gets it.
    fn node(&self, attributes: &[CUlaunchAttribute], block: &[u8]) -> Operation {
        let mut recorded = RecordedLaunch::new(
            self.handle,
            self.target.stream.context(),
            self.shape,
            attributes.to_vec(),
            block.into(),
            self.layout,
        );
        recorded.priority = self.target.stream.priority();
        Operation::Described(Box::new(recorded))
    }

    #[inline]
    fn post(&self, attributes: &[CUlaunchAttribute], block: &[u8]) -> Result<(), CUresult> {
        if !attributes.is_empty() {
            return self.post_with(attributes, block);
        }
        let device = self.target.current.device()?;
        let cluster = attributes::cluster_of(device, self.function, &self.shape.grid, None)?;
        check_is_said(self.function, cluster)?;
        let request = request(self.function, &self.shape, 0);
        self.target
            .enqueue_as(&request, &[block], || self.node(&[], block))
            .map(drop)
    }

    fn post_with(&self, attributes: &[CUlaunchAttribute], block: &[u8]) -> Result<(), CUresult> {
        let current = &self.target.current;
        let asked = read_attributes(self.events, current, self.function, self.shape, attributes)?;
        check(current, self.function, &asked.shape)?;
        check_is_said(self.function, asked.cluster)?;
        let request = request(self.function, &asked.shape, asked.count());
        let captured = self.target.stream.mode_bits() & CAPTURED != 0;
        self.target.enqueue_as(&request, &[&asked.raw, block], || {
            self.node(attributes, block)
        })?;
        for event in asked.events.into_iter().filter(|_| !captured) {
            self.events.record(self.events.get(event)?, self.target)?;
        }
        Ok(())
    }
}

/// A kernel's launch as a node of a graph, from what the program describes.
///
/// # Errors
/// As [`launch`]'s, but for those of streams.
///
/// # Safety
/// As [`launch`]'s.
pub(crate) unsafe fn node(
    code: &'static Code,
    current: &Current,
    handle: u64,
    shape: LaunchShape,
    params: Params,
    attributes: Vec<CUlaunchAttribute>,
) -> Result<RecordedLaunch, CUresult> {
    let (_, function) = code.in_context(handle, current)?;
    let layout = function.layout().ok_or(CUresult::ERROR_INVALID_HANDLE)?;
    check(current, function, &shape)?;
    read_attributes(code.events, current, function, shape, &attributes)?;
    let mut block = vec![0; layout.bytes as usize].into_boxed_slice();
    // SAFETY: this function's caller vouches for the list.
    let given = unsafe { parameter_buffer(&params, layout)? };
    // SAFETY: the caller vouches for the parameters, whose buffer the list has just named.
    unsafe { fill(given, params.each, layout, &mut block)? };
    let context = current.handle();
    Ok(RecordedLaunch::new(
        handle, context, shape, attributes, block, layout,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout() -> Layout {
        Layout {
            params: Box::new([(0, 4), (8, 8)]),
            bytes: 16,
        }
    }

    #[test]
    fn parameters_are_put_where_the_kernel_reads_them() {
        let (mut first, mut second) = (0x0403_0201_u32, 7_u64);
        let mut each: [*mut c_void; 2] = [(&raw mut first).cast(), (&raw mut second).cast()];
        let mut block = [0; 16];
        // SAFETY: two parameters, each leading to a value of its size.
        unsafe { gather(each.as_mut_ptr(), &layout(), &mut block) }.unwrap();
        assert_eq!(block, [1, 2, 3, 4, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0]);
        each[1] = std::ptr::null_mut();
        // SAFETY: two parameters; the first leads to a value of its size, and NULL is not followed.
        let missing = unsafe { gather(each.as_mut_ptr(), &layout(), &mut block) };
        assert_eq!(missing, Err(CUresult::ERROR_INVALID_VALUE));
    }

    #[test]
    fn extra_names_a_block_that_may_be_shorter() {
        let buffer = [0_u8; 16];
        let key = |number| std::ptr::without_provenance_mut::<c_void>(number);
        let too_many = Err(CUresult::ERROR_LAUNCH_OUT_OF_RESOURCES);
        for (mut size, found) in [
            (16_usize, Ok(Some((buffer.as_ptr(), 16)))),
            (15, Ok(Some((buffer.as_ptr(), 15)))),
            (17, too_many),
            (0, Err(CUresult::ERROR_INVALID_VALUE)),
        ] {
            let mut extra = [
                key(CU_LAUNCH_PARAM_BUFFER_POINTER),
                buffer.as_ptr().cast_mut().cast(),
                key(CU_LAUNCH_PARAM_BUFFER_SIZE),
                (&raw mut size).cast(),
                key(CU_LAUNCH_PARAM_END),
            ];
            let params = Params {
                each: std::ptr::null_mut(),
                extra: extra.as_mut_ptr(),
            };
            // SAFETY: `extra` ends with its mark, and its size is a local variable.
            let given = unsafe { parameter_buffer(&params, &layout()) };
            assert_eq!(given, found);
        }
    }
}
