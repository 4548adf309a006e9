//! Fills: all of them come down to one.

use cuda_abi::CUresult;
use cuda_abi::operations::Fill;
use cuda_abi::types::{CUdeviceptr, CUdeviceptr_v1, CUstream};

use super::Outcome;
use crate::graph::node::{FillNode, Payload};
use crate::memory::Range;
use crate::session::Session;
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

/// Bytes from the first to the last that is filled.
fn span(fill: &Fill) -> Option<u64> {
    let row = fill.width.checked_mul(u64::from(fill.element))?;
    let aligned = fill.pitch.is_multiple_of(u64::from(fill.element));
    if fill.height > 1 && (row > fill.pitch || !aligned) {
        return None;
    }
    fill.pitch.checked_mul(fill.height - 1)?.checked_add(row)
}

/// Checks a fill that is not empty. Gives the range of memory that it is in.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE.
pub(crate) fn check_fill(session: &Session, fill: &Fill) -> Result<Range, CUresult> {
    let wrong = CUresult::ERROR_INVALID_VALUE;
    if !matches!(fill.element, 1 | 2 | 4) || !fill.to.is_multiple_of(u64::from(fill.element)) {
        return Err(wrong);
    }
    let span = span(fill).ok_or(wrong)?;
    let range = session.ranges.find(fill.to);
    range
        .filter(|_| session.ranges.cover(fill.to, span))
        .ok_or(wrong)
}

/// Fills in the order of a stream. `here` is whether the call is a synchronous one.
fn fill(mut fill: Fill, stream: CUstream, here: bool) -> Outcome {
    let target = stream::target(stream)?;
    if fill.width == 0 || fill.height == 0 {
        return Ok(());
    }
    let session = target.current.session;
    fill.to = session.device_address(fill.to);
    let range = check_fill(session, &fill)?;
    let sequence = target.enqueue_as(&fill, &[], || {
        let context = target.stream.context();
        Payload::Fill(FillNode { fill, context })
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

#[cfg(test)]
mod tests {
    use super::{Fill, span};

    #[test]
    fn spans_are_checked() {
        let rows = |pitch, width, height| Fill {
            to: 0,
            pitch,
            value: 0,
            element: 4,
            width,
            height,
        };
        assert_eq!(span(&rows(0, 3, 1)), Some(12));
        assert_eq!(span(&rows(16, 3, 2)), Some(28));
        assert_eq!(span(&rows(8, 3, 2)), None, "rows overlap");
        assert_eq!(span(&rows(18, 3, 2)), None, "rows are not aligned");
        assert_eq!(span(&rows(0, u64::MAX, 1)), None);
        assert_eq!(span(&rows(u64::MAX - 3, 1, 3)), None);
    }
}
