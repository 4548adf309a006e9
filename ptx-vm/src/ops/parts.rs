//! Helpers for packing, saturation and carry chains, which no instruction is by itself.
//!
//! Called by lowering, where an instruction becomes several operations. Must not know which instruction that is.

use super::float::flush;
use super::simple::{Simple, op};
use crate::segment::Tag;
use crate::spaces::WINDOW;

/// Two 32-bit halves to 64 bits.
pub(crate) fn pack64() -> Simple {
    op!(u32, u32 => u64; |low, high| u64::from(high) << 32 | u64::from(low))
}

/// The upper half of 64 bits.
pub(crate) fn high64() -> Simple {
    op!(u64 => u32; |a| (a >> 32) as u32)
}

/// Two 16-bit halves to 32 bits.
pub(crate) fn pack32() -> Simple {
    op!(u16, u16 => u32; |low, high| u32::from(high) << 16 | u32::from(low))
}

/// Two bytes, the low ones of 16-bit registers, to 16 bits.
pub(crate) fn pack16() -> Simple {
    op!(u16, u16 => u16; |low, high| high << 8 | low & 0xff)
}

/// The lower and upper byte of 16 bits.
pub(crate) fn low16() -> Simple {
    op!(u16 => u16; |a| a & 0xff)
}

/// See [`low16`].
pub(crate) fn high16() -> Simple {
    op!(u16 => u16; |a| a >> 8)
}

/// The upper half of 32 bits.
pub(crate) fn high32() -> Simple {
    op!(u32 => u16; |a| (a >> 16) as u16)
}

/// Start and length of a bit field as one operand.
pub(crate) fn field() -> Simple {
    op!(u32, u32 => u32; |start, len| start & 0xff | (len & 0xff) << 8)
}

/// Inserts `a` into `b` at a [`field`].
pub(crate) fn insert(wide: bool) -> Simple {
    if wide {
        op!(u64, u64, u32 => u64; |a, b, f| {
            let (start, len) = (f & 0xff, f >> 8 & 0xff);
            let ones = if len < 64 { (1u64 << len) - 1 } else { u64::MAX };
            if start < 64 { b & !(ones << start) | (a & ones) << start } else { b }
        })
    } else {
        op!(u32, u32, u32 => u32; |a, b, f| {
            let (start, len) = (f & 0xff, f >> 8 & 0xff);
            let ones = if len < 32 { (1u32 << len) - 1 } else { u32::MAX };
            if start < 32 { b & !(ones << start) | (a & ones) << start } else { b }
        })
    }
}

/// a + b + carry, or a - b - 1 + carry: the flag after a subtraction says that nothing was borrowed, so
/// that one chain may go on with the other's instructions (the compiler's 128-bit division does).
pub(crate) fn with_carry(wide: bool, subtract: bool) -> Simple {
    match (wide, subtract) {
        (false, false) => {
            op!(u32, u32, u8 => u32; |a, b, c| a.wrapping_add(b).wrapping_add(c.into()))
        }
        (false, true) => {
            op!(u32, u32, u8 => u32; |a, b, c| a.wrapping_add(!b).wrapping_add(c.into()))
        }
        (true, false) => {
            op!(u64, u64, u8 => u64; |a, b, c| a.wrapping_add(b).wrapping_add(c.into()))
        }
        (true, true) => {
            op!(u64, u64, u8 => u64; |a, b, c| a.wrapping_add(!b).wrapping_add(c.into()))
        }
    }
}

/// The flag that leaves.
pub(crate) fn carry(wide: bool, subtract: bool) -> Simple {
    match (wide, subtract) {
        (false, false) => op!(u32, u32, u8 => u8; |a, b, c| {
            u8::from(u64::from(a) + u64::from(b) + u64::from(c) > u64::from(u32::MAX))
        }),
        (false, true) => op!(u32, u32, u8 => u8; |a, b, c| {
            u8::from(u64::from(a) + u64::from(!b) + u64::from(c) > u64::from(u32::MAX))
        }),
        (true, false) => op!(u64, u64, u8 => u8; |a, b, c| {
            let (sum, first) = a.overflowing_add(b);
            u8::from(first) | u8::from(sum.overflowing_add(c.into()).1)
        }),
        (true, true) => op!(u64, u64, u8 => u8; |a, b, c| {
            let (sum, first) = a.overflowing_add(!b);
            u8::from(first) | u8::from(sum.overflowing_add(c.into()).1)
        }),
    }
}

/// An `f32` with subnormals made 0.
pub(crate) fn flushed() -> Simple {
    op!(f32 => f32; |a| flush(a))
}

/// An `f32` or `f64` between 0 and 1; a NaN gives 0.
pub(crate) fn saturated(wide: bool) -> Simple {
    if wide {
        op!(f64 => f64; |a| if a > 0.0 { if a < 1.0 { a } else { 1.0 } } else { 0.0 })
    } else {
        op!(f32 => f32; |a| if a > 0.0 { if a < 1.0 { a } else { 1.0 } } else { 0.0 })
    }
}

/// A predicate as all ones or 0 (`set` to integers), or as 1.0 or 0.0.
pub(crate) fn widened(float: bool, wide: bool) -> Simple {
    match (float, wide) {
        (true, _) => op!(u8 => f32; |p| if p != 0 { 1.0 } else { 0.0 }),
        (false, false) => op!(u8 => u32; |p| if p != 0 { u32::MAX } else { 0 }),
        (false, true) => op!(u8 => u64; |p| if p != 0 { u64::MAX } else { 0 }),
    }
}

/// a + b for addresses; a - b.
pub(crate) fn offset64(subtract: bool) -> Simple {
    if subtract {
        op!(u64, u64 => u64; |a, b| a.wrapping_sub(b))
    } else {
        op!(@ Tag::Add64; u64, u64 => u64; |a, b| a.wrapping_add(b))
    }
}

/// Whether `a` lies in the window of `SPAN` bytes at `b`.
pub(crate) fn in_window() -> Simple {
    op!(u64, u64 => u8; |a, b| u8::from(a.wrapping_sub(b) < WINDOW))
}
