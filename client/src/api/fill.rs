//! Fills: all of them come down to one.

use cuda_abi::CUresult;
use cuda_abi::operations::Fill;
use cuda_abi::types::{CUdeviceptr, CUdeviceptr_v1, CUstream};

use super::Outcome;
use crate::stream;

/// Rows to fill: `width` elements of `element` bytes each.
#[derive(Clone, Copy, Debug)]
struct Rows {
    to: u64,
    pitch: u64,
    element: u32,
    width: u64,
    height: u64,
}

impl Rows {
    fn run(to: u64, element: u32, width: usize) -> Self {
        Self {
            to,
            pitch: 0,
            element,
            width: width as u64,
            height: 1,
        }
    }

    /// Bytes from the first to the last that is filled.
    fn span(&self) -> Option<u64> {
        let row = self.width.checked_mul(u64::from(self.element))?;
        if self.height > 1
            && (row > self.pitch || !self.pitch.is_multiple_of(u64::from(self.element)))
        {
            return None;
        }
        self.pitch.checked_mul(self.height - 1)?.checked_add(row)
    }
}

/// Fills in the order of a stream. `here` is whether the call is a synchronous one.
fn fill(rows: Rows, value: u32, stream: CUstream, here: bool) -> Outcome {
    let target = stream::target(stream)?;
    if rows.width == 0 || rows.height == 0 {
        return Ok(());
    }
    if !rows.to.is_multiple_of(u64::from(rows.element)) {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let span = rows.span().ok_or(CUresult::ERROR_INVALID_VALUE)?;
    let session = target.current.session;
    let to = session.device_address(rows.to);
    let range = session.ranges.find(to);
    let range = range
        .filter(|_| session.ranges.cover(to, span))
        .ok_or(CUresult::ERROR_INVALID_VALUE)?;
    let sequence = target.enqueue(
        &Fill {
            to,
            pitch: rows.pitch,
            value,
            element: rows.element,
            width: rows.width,
            height: rows.height,
        },
        &[],
    )?;
    // Of device memory a program sees nothing before it asks; shared memory it sees at once.
    if here && range.is_shared() {
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
            fill(Rows::run(dst_device, $element, count), u32::from(value), CUstream::NULL, true)
        }

        pub(crate) fn $pitched(dst_device: CUdeviceptr_v1, dst_pitch: u32, value: $type, width: u32, height: u32) -> Outcome {
            $pitched_v2(u64::from(dst_device), dst_pitch as usize, value, width as usize, height as usize)
        }

        pub(crate) fn $pitched_v2(dst_device: CUdeviceptr, dst_pitch: usize, value: $type, width: usize, height: usize) -> Outcome {
            let rows = Rows { to: dst_device, pitch: dst_pitch as u64, element: $element, width: width as u64, height: height as u64 };
            fill(rows, u32::from(value), CUstream::NULL, true)
        }

        pub(crate) fn $plain_async(dst_device: CUdeviceptr, value: $type, count: usize, stream: CUstream) -> Outcome {
            fill(Rows::run(dst_device, $element, count), u32::from(value), stream, false)
        }

        pub(crate) fn $pitched_async(dst_device: CUdeviceptr, dst_pitch: usize, value: $type, width: usize, height: usize, stream: CUstream) -> Outcome {
            let rows = Rows { to: dst_device, pitch: dst_pitch as u64, element: $element, width: width as u64, height: height as u64 };
            fill(rows, u32::from(value), stream, false)
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
    use super::Rows;

    #[test]
    fn spans_are_checked() {
        let rows = |pitch, width, height| Rows {
            to: 0,
            pitch,
            element: 4,
            width,
            height,
        };
        assert_eq!(rows(0, 3, 1).span(), Some(12));
        assert_eq!(rows(16, 3, 2).span(), Some(28));
        assert_eq!(rows(8, 3, 2).span(), None, "rows overlap");
        assert_eq!(rows(18, 3, 2).span(), None, "rows are not aligned");
        assert_eq!(rows(0, u64::MAX, 1).span(), None);
        assert_eq!(rows(u64::MAX - 3, 1, 3).span(), None);
    }
}
