//! Fills: all of them come down to one.
//!
//! Owns the spread of CUDA's many functions to one `Fill`, now or as a captured node. Called by the shells of
//! `exports`. Must not know what a fill must keep to (`memory::fill`), nor where an address lies.

use cuda_abi::types::{CUdeviceptr, CUdeviceptr_v1, CUstream};
use protocol::operations::Fill;

use super::Outcome;
use crate::graph::node::{FillNode, Payload};
use crate::memory::fill::check_fill;
use crate::session::session;
use crate::stream;

/// A run of elements.
fn run(to: u64, value: u32, element: u32, width: usize) -> Fill {
    Fill {
        to,
        pitch: 0,
        value,
        element,
        width: width as u64,
        height: 1,
    }
}

/// Fills in the order of a stream. `here` is whether the call is a synchronous one.
fn fill(mut fill: Fill, stream: CUstream, here: bool) -> Outcome {
    let target = stream::target(stream)?;
    if fill.width == 0 || fill.height == 0 {
        return Ok(());
    }
    let session = session()?;
    fill.to = session.addresses.device_address(fill.to);
    let range = check_fill(session.ranges, &fill)?;
    let sequence = target.enqueue_as(&fill, &[], || {
        let context = target.stream.context();
        Payload::Fill(FillNode { fill, context }).into()
    })?;
    // Of device memory a program sees nothing before it asks; shared memory it sees at once.
    if here && (range.is_shared() || range.sync_memops) {
        return target.wait(sequence);
    }
    Ok(())
}

macro_rules! fills {
    ($($type:ty, $element:literal: $plain:ident $plain_v2:ident $pitched:ident $pitched_v2:ident $plain_async:ident $pitched_async:ident;)*) => {$(
        pub(crate) fn $plain(dst_device: CUdeviceptr_v1, value: $type, count: u32) -> Outcome {
            $plain_v2(u64::from(dst_device), value, count as usize)
        }

        pub(crate) fn $plain_v2(dst_device: CUdeviceptr, value: $type, count: usize) -> Outcome {
            fill(run(dst_device, u32::from(value), $element, count), CUstream::NULL, true)
        }

        pub(crate) fn $pitched(dst_device: CUdeviceptr_v1, dst_pitch: u32, value: $type, width: u32, height: u32) -> Outcome {
            $pitched_v2(u64::from(dst_device), dst_pitch as usize, value, width as usize, height as usize)
        }

        pub(crate) fn $pitched_v2(dst_device: CUdeviceptr, dst_pitch: usize, value: $type, width: usize, height: usize) -> Outcome {
            let rows = Fill { to: dst_device, pitch: dst_pitch as u64, value: u32::from(value), element: $element, width: width as u64, height: height as u64 };
            fill(rows, CUstream::NULL, true)
        }

        pub(crate) fn $plain_async(dst_device: CUdeviceptr, value: $type, count: usize, stream: CUstream) -> Outcome {
            fill(run(dst_device, u32::from(value), $element, count), stream, false)
        }

        pub(crate) fn $pitched_async(dst_device: CUdeviceptr, dst_pitch: usize, value: $type, width: usize, height: usize, stream: CUstream) -> Outcome {
            let rows = Fill { to: dst_device, pitch: dst_pitch as u64, value: u32::from(value), element: $element, width: width as u64, height: height as u64 };
            fill(rows, stream, false)
        }
    )*};
}

fills! {
    u8, 1: cuMemsetD8 cuMemsetD8_v2 cuMemsetD2D8 cuMemsetD2D8_v2 cuMemsetD8Async cuMemsetD2D8Async;
    u16, 2: cuMemsetD16 cuMemsetD16_v2 cuMemsetD2D16 cuMemsetD2D16_v2 cuMemsetD16Async cuMemsetD2D16Async;
    u32, 4: cuMemsetD32 cuMemsetD32_v2 cuMemsetD2D32 cuMemsetD2D32_v2 cuMemsetD32Async cuMemsetD2D32Async;
}
