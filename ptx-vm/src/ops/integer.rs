//! Arithmetic of integers.
//!
//! Found by way of `ops::table`. Must not know registers or lanes: one line on one lane.

use ptx::ast::Type;

use super::cold;
use super::simple::{Simple, Words, bits, ints, op, signed};
use crate::segment::Tag;

/// Two integers of 16 bits in a word, each by itself.
pub(super) fn pairs(words: &Words<'_>, ty: Type) -> Option<Simple> {
    fn each(a: u32, b: u32, f: impl Fn(u16, u16) -> u16) -> u32 {
        let low = f(a as u16, b as u16);
        let high = f((a >> 16) as u16, (b >> 16) as u16);
        u32::from(high) << 16 | u32::from(low)
    }
    fn signed(a: u32, b: u32, f: impl Fn(i16, i16) -> i16) -> u32 {
        each(a, b, |a, b| f(a as i16, b as i16) as u16)
    }
    Some(match (words.opcode, ty, words.has("relu")) {
        ("add", _, false) => op!(u32, u32 => u32; |a, b| each(a, b, u16::wrapping_add)),
        ("min", Type::U16x2, false) => op!(u32, u32 => u32; |a, b| each(a, b, u16::min)),
        ("max", Type::U16x2, false) => op!(u32, u32 => u32; |a, b| each(a, b, u16::max)),
        ("min", Type::S16x2, false) => op!(u32, u32 => u32; |a, b| signed(a, b, i16::min)),
        ("max", Type::S16x2, false) => op!(u32, u32 => u32; |a, b| signed(a, b, i16::max)),
        ("min", Type::S16x2, true) => {
            op!(u32, u32 => u32; |a, b| signed(a, b, |a, b| a.min(b).max(0)))
        }
        ("max", Type::S16x2, true) => {
            op!(u32, u32 => u32; |a, b| signed(a, b, |a, b| a.max(b).max(0)))
        }
        _ => return None,
    })
}

/// The operation of an instruction on integers of a type.
pub(super) fn integer(words: &Words<'_>, ty: Type) -> Option<Simple> {
    let signed = matches!(ty, Type::S16 | Type::S32 | Type::S64);
    match words.opcode {
        "add" if words.has("sat") => Some(op!(i32, i32 => i32; |a, b| a.saturating_add(b))),
        "sub" if words.has("sat") => Some(op!(i32, i32 => i32; |a, b| a.saturating_sub(b))),
        "add" => match ty {
            Type::U32 | Type::S32 => {
                Some(op!(@ Tag::Add32; u32, u32 => u32; |a, b| a.wrapping_add(b)))
            }
            Type::U64 | Type::S64 => {
                Some(op!(@ Tag::Add64; u64, u64 => u64; |a, b| a.wrapping_add(b)))
            }
            _ => bits!(ty; T, T => T; |a, b| a.wrapping_add(b)),
        },
        "sub" => match ty {
            Type::U32 | Type::S32 => {
                Some(op!(@ Tag::Sub32; u32, u32 => u32; |a, b| a.wrapping_sub(b)))
            }
            Type::U64 | Type::S64 => {
                Some(op!(@ Tag::Sub64; u64, u64 => u64; |a, b| a.wrapping_sub(b)))
            }
            _ => bits!(ty; T, T => T; |a, b| a.wrapping_sub(b)),
        },
        "mul" if words.has("wide") => match ty {
            Type::U16 => Some(op!(u16, u16 => u32; |a, b| u32::from(a) * u32::from(b))),
            Type::S16 => Some(op!(i16, i16 => i32; |a, b| i32::from(a) * i32::from(b))),
            Type::U32 => {
                Some(op!(@ Tag::MulWideU32; u32, u32 => u64; |a, b| u64::from(a) * u64::from(b)))
            }
            Type::S32 => {
                Some(op!(@ Tag::MulWideS32; i32, i32 => i64; |a, b| i64::from(a) * i64::from(b)))
            }
            _ => None,
        },
        "mul" if words.has("hi") => high(ty),
        "mul" if words.has("lo") => match ty {
            Type::U32 | Type::S32 => {
                Some(op!(@ Tag::Mul32; u32, u32 => u32; |a, b| a.wrapping_mul(b)))
            }
            _ => bits!(ty; T, T => T; |a, b| a.wrapping_mul(b)),
        },
        "mad" if words.has("wide") => match ty {
            Type::U16 => Some(op!(u16, u16, u32 => u32; |a, b, c| {
                (u32::from(a) * u32::from(b)).wrapping_add(c)
            })),
            Type::S16 => Some(op!(i16, i16, i32 => i32; |a, b, c| {
                (i32::from(a) * i32::from(b)).wrapping_add(c)
            })),
            Type::U32 => Some(op!(u32, u32, u64 => u64; |a, b, c| {
                (u64::from(a) * u64::from(b)).wrapping_add(c)
            })),
            Type::S32 => Some(op!(i32, i32, i64 => i64; |a, b, c| {
                (i64::from(a) * i64::from(b)).wrapping_add(c)
            })),
            _ => None,
        },
        "mad" if words.has("hi") && words.has("sat") => Some(op!(i32, i32, i32 => i32; |a, b, c| {
            (((i64::from(a) * i64::from(b)) >> 32) as i32).saturating_add(c)
        })),
        "mad" if words.has("hi") => high_add(ty),
        "mad" if words.has("lo") => match ty {
            Type::U32 | Type::S32 => Some(
                op!(@ Tag::Mad32; u32, u32, u32 => u32; |a, b, c| a.wrapping_mul(b).wrapping_add(c)),
            ),
            _ => bits!(ty; T, T, T => T; |a, b, c| a.wrapping_mul(b).wrapping_add(c)),
        },
        "mul24" => Some(match (words.has("hi"), signed) {
            (false, false) => op!(u32, u32 => u32; |a, b| low24(a).wrapping_mul(low24(b))),
            (false, true) => op!(u32, u32 => u32; |a, b| sign24(a).wrapping_mul(sign24(b)) as u32),
            (true, false) => op!(u32, u32 => u32; |a, b| {
                ((u64::from(low24(a)) * u64::from(low24(b))) >> 16) as u32
            }),
            (true, true) => op!(u32, u32 => u32; |a, b| {
                ((i64::from(sign24(a)) * i64::from(sign24(b))) >> 16) as u32
            }),
        }),
        "mad24" if words.has("hi") => Some(match (signed, words.has("sat")) {
            (false, false) => op!(u32, u32, u32 => u32; |a, b, c| {
                (((u64::from(low24(a)) * u64::from(low24(b))) >> 16) as u32).wrapping_add(c)
            }),
            (true, false) => op!(u32, u32, u32 => u32; |a, b, c| {
                (((i64::from(sign24(a)) * i64::from(sign24(b))) >> 16) as u32).wrapping_add(c)
            }),
            (true, true) => op!(u32, u32, i32 => i32; |a, b, c| {
                (((i64::from(sign24(a)) * i64::from(sign24(b))) >> 16) as i32).saturating_add(c)
            }),
            (false, true) => return None,
        }),
        "mad24" if !words.has("hi") => Some(if signed {
            op!(u32, u32, u32 => u32; |a, b, c| (sign24(a).wrapping_mul(sign24(b)) as u32).wrapping_add(c))
        } else {
            op!(u32, u32, u32 => u32; |a, b, c| low24(a).wrapping_mul(low24(b)).wrapping_add(c))
        }),
        "sad" => {
            ints!(ty; T, T, T => T; |a, b, c| c.wrapping_add(if a < b { b.wrapping_sub(a) } else { a.wrapping_sub(b) }))
        }
        // What a division by 0 gives is open; these give what the hardware does.
        "div" => ints!(ty; T, T => T; |a, b| if b == 0 { !0 } else { a.wrapping_div(b) }),
        "rem" => ints!(ty; T, T => T; |a, b| if b == 0 { a } else { a.wrapping_rem(b) }),
        "abs" => signed!(ty; T => T; |a| a.wrapping_abs()),
        "neg" => signed!(ty; T => T; |a| a.wrapping_neg()),
        "min" if words.has("relu") => Some(op!(i32, i32 => i32; |a, b| a.min(b).max(0))),
        "max" if words.has("relu") => Some(op!(i32, i32 => i32; |a, b| a.max(b).max(0))),
        "min" => match ty {
            Type::S32 => Some(op!(@ Tag::MinS32; i32, i32 => i32; |a, b| a.min(b))),
            Type::U32 => Some(op!(@ Tag::MinU32; u32, u32 => u32; |a, b| a.min(b))),
            _ => ints!(ty; T, T => T; |a, b| a.min(b)),
        },
        "max" => match ty {
            Type::S32 => Some(op!(@ Tag::MaxS32; i32, i32 => i32; |a, b| a.max(b))),
            Type::U32 => Some(op!(@ Tag::MaxU32; u32, u32 => u32; |a, b| a.max(b))),
            _ => ints!(ty; T, T => T; |a, b| a.max(b)),
        },
        "bfind" => {
            let shift = words.has("shiftamt");
            Some(match (ty, shift) {
                (Type::U32, false) => op!(u32 => u32; |a| 31u32.wrapping_sub(a.leading_zeros())),
                (Type::U32, true) => {
                    op!(u32 => u32; |a| if a == 0 { u32::MAX } else { a.leading_zeros() })
                }
                (Type::U64, false) => op!(u64 => u32; |a| 63u32.wrapping_sub(a.leading_zeros())),
                (Type::U64, true) => {
                    op!(u64 => u32; |a| if a == 0 { u32::MAX } else { a.leading_zeros() })
                }
                (Type::S32, _) => Simple::cold(
                    cold::find_top_signed,
                    [4, 4, 0, 0],
                    32 | u64::from(shift) << 8,
                ),
                (Type::S64, _) => Simple::cold(
                    cold::find_top_signed,
                    [4, 8, 0, 0],
                    64 | u64::from(shift) << 8,
                ),
                _ => return None,
            })
        }
        "bfe" => Some(match ty {
            Type::U32 => op!(u32, u32, u32 => u32; |a, b, c| {
                let (start, len) = (b & 0xff, c & 0xff);
                let field = if start < 32 { a >> start } else { 0 };
                if len < 32 { field & ((1 << len) - 1) } else { field }
            }),
            Type::U64 => op!(u64, u32, u32 => u64; |a, b, c| {
                let (start, len) = (b & 0xff, c & 0xff);
                let field = if start < 64 { a >> start } else { 0 };
                if len < 64 { field & ((1 << len) - 1) } else { field }
            }),
            Type::S32 => Simple::cold(cold::extract_signed, [4, 4, 4, 4], 32),
            Type::S64 => Simple::cold(cold::extract_signed, [8, 8, 4, 4], 64),
            _ => return None,
        }),
        "szext" => {
            let wrap = words.has("wrap");
            Some(match (ty, wrap) {
                (Type::S32, false) => {
                    op!(i32, u32 => i32; |a, b| if b == 0 { 0 } else if b >= 32 { a } else { a << (32 - b) >> (32 - b) })
                }
                (Type::S32, true) => {
                    op!(i32, u32 => i32; |a, b| { let n = b & 31; if n == 0 { 0 } else { a << (32 - n) >> (32 - n) } })
                }
                (Type::U32, false) => {
                    op!(u32, u32 => u32; |a, b| if b >= 32 { a } else { a & ((1 << b) - 1) })
                }
                (Type::U32, true) => op!(u32, u32 => u32; |a, b| a & ((1 << (b & 31)) - 1)),
                _ => return None,
            })
        }
        _ => None,
    }
}

#[inline(always)]
fn low24(a: u32) -> u32 {
    a & 0xff_ffff
}

#[inline(always)]
fn sign24(a: u32) -> i32 {
    (a << 8).cast_signed() >> 8
}

fn high(ty: Type) -> Option<Simple> {
    Some(match ty {
        Type::U16 => op!(u16, u16 => u16; |a, b| ((u32::from(a) * u32::from(b)) >> 16) as u16),
        Type::S16 => op!(i16, i16 => i16; |a, b| ((i32::from(a) * i32::from(b)) >> 16) as i16),
        Type::U32 => op!(u32, u32 => u32; |a, b| ((u64::from(a) * u64::from(b)) >> 32) as u32),
        Type::S32 => op!(i32, i32 => i32; |a, b| ((i64::from(a) * i64::from(b)) >> 32) as i32),
        Type::U64 => op!(u64, u64 => u64; |a, b| ((u128::from(a) * u128::from(b)) >> 64) as u64),
        Type::S64 => op!(i64, i64 => i64; |a, b| ((i128::from(a) * i128::from(b)) >> 64) as i64),
        _ => return None,
    })
}

fn high_add(ty: Type) -> Option<Simple> {
    Some(match ty {
        Type::U16 => op!(u16, u16, u16 => u16; |a, b, c| {
            (((u32::from(a) * u32::from(b)) >> 16) as u16).wrapping_add(c)
        }),
        Type::S16 => op!(i16, i16, i16 => i16; |a, b, c| {
            (((i32::from(a) * i32::from(b)) >> 16) as i16).wrapping_add(c)
        }),
        Type::U32 => op!(u32, u32, u32 => u32; |a, b, c| {
            (((u64::from(a) * u64::from(b)) >> 32) as u32).wrapping_add(c)
        }),
        Type::S32 => op!(i32, i32, i32 => i32; |a, b, c| {
            (((i64::from(a) * i64::from(b)) >> 32) as i32).wrapping_add(c)
        }),
        Type::U64 => op!(u64, u64, u64 => u64; |a, b, c| {
            (((u128::from(a) * u128::from(b)) >> 64) as u64).wrapping_add(c)
        }),
        Type::S64 => op!(i64, i64, i64 => i64; |a, b, c| {
            (((i128::from(a) * i128::from(b)) >> 64) as i64).wrapping_add(c)
        }),
        _ => return None,
    })
}

/// Sums and products as the analysis makes them of others, by their names in segments.
pub(crate) fn made(tag: Tag) -> Option<Simple> {
    Some(match tag {
        Tag::Mov32 => op!(@ Tag::Mov32; u32 => u32; |a| a),
        Tag::Add32 => op!(@ Tag::Add32; u32, u32 => u32; |a, b| a.wrapping_add(b)),
        Tag::Sub32 => op!(@ Tag::Sub32; u32, u32 => u32; |a, b| a.wrapping_sub(b)),
        Tag::Mul32 => op!(@ Tag::Mul32; u32, u32 => u32; |a, b| a.wrapping_mul(b)),
        Tag::Add64 => op!(@ Tag::Add64; u64, u64 => u64; |a, b| a.wrapping_add(b)),
        Tag::MulWideU32 => {
            op!(@ Tag::MulWideU32; u32, u32 => u64; |a, b| u64::from(a) * u64::from(b))
        }
        Tag::MulWideS32 => {
            op!(@ Tag::MulWideS32; i32, i32 => i64; |a, b| i64::from(a) * i64::from(b))
        }
        _ => return None,
    })
}
