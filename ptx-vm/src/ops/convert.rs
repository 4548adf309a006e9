//! `cvt`: one type to another.
//!
//! Chosen by `lower::arith` and `lower::newer`. Must not know registers: one line on one lane, as all of
//! `ops::simple`.

use ptx::ast::Type;

use super::cold::{self, Rounding};
use super::half;
use super::simple::{Simple, Words, op};
use super::{logic, parts};
use crate::machine::ColdFn;
use crate::segment::Tag;

/// A conversion as a chain of operations, each on the result of the one before, and the width of a lane
/// that the chain wants and gives. `None` if there is none.
pub(crate) fn find(words: &Words<'_>) -> Option<Vec<Simple>> {
    let &[to, from] = words.types else {
        return None;
    };
    let allowed = [
        "rn",
        "rz",
        "rm",
        "rp",
        "rni",
        "rzi",
        "rmi",
        "rpi",
        "ftz",
        "sat",
        "rna",
        "relu",
        "satfinite",
    ];
    let to_half = matches!(to, Type::F16 | Type::Bf16);
    let bounds = words.has("relu") || words.has("satfinite");
    if !words.only(&allowed) || words.has("rna") || bounds && !(to_half && from == Type::F32) {
        return None;
    }
    let mut chain = match (is_float(from), is_float(to)) {
        (false, false) => integers(from, to, words.has("sat"))?,
        (false, true) => to_float(from, to, words)?,
        (true, false) => to_integer(from, to, words)?,
        (true, true) => floats(from, to, words)?,
    };
    if is_float(to) && words.has("ftz") && to == Type::F32 {
        chain.push(parts::flushed());
    }
    if to_half {
        chain.extend(half::bounded(words, to));
    } else if is_float(to) && words.has("sat") {
        match to {
            Type::F32 => chain.push(parts::saturated(false)),
            Type::F64 => chain.push(parts::saturated(true)),
            _ => return None,
        }
    }
    Some(chain)
}

fn is_float(ty: Type) -> bool {
    matches!(ty, Type::F16 | Type::Bf16 | Type::F32 | Type::F64)
}

fn is_signed(ty: Type) -> bool {
    matches!(ty, Type::S8 | Type::S16 | Type::S32 | Type::S64)
}

/// Bytes of a register that holds the type.
fn width(ty: Type) -> u8 {
    (ty.size() as u8).max(2)
}

fn integers(from: Type, to: Type, saturate: bool) -> Option<Vec<Simple>> {
    if is_float(from) || is_float(to) || from.size() == 0 || to.size() == 0 {
        return None;
    }
    if saturate {
        let signs = u64::from(is_signed(from)) | u64::from(is_signed(to)) << 1;
        let imm = signs | from.size() << 8 | to.size() << 16;
        return Some(vec![Simple::cold(
            clamp_integer,
            [width(to), width(from), 0, 0],
            imm,
        )]);
    }
    let mut chain = Vec::new();
    // 8-bit values stand in wider registers, of which only the low byte counts.
    if from.size() == 1 && to.size() > 1 {
        chain.push(byte(is_signed(from)));
    }
    if width(from) != width(to) {
        chain.push(logic::resize(width(from), width(to), is_signed(from))?);
    } else if chain.is_empty() {
        chain.push(logic::mov(width(to))?);
    }
    if to.size() == 1 {
        chain.push(byte(is_signed(to)));
    }
    Some(chain)
}

/// The low byte of a 16-bit register, extended.
fn byte(signed: bool) -> Simple {
    if signed {
        op!(u16 => u16; |a| (a as u8 as i8).cast_unsigned() as i8 as i16 as u16)
    } else {
        op!(u16 => u16; |a| a & 0xff)
    }
}

/// Integer to integer with clamping; bits 0 and 1: signs of source and destination; bytes 1 and 2: sizes.
fn clamp_integer(a: u64, _: u64, _: u64, imm: u64) -> u64 {
    let (from, to) = ((imm >> 8 & 0xff) as u32 * 8, (imm >> 16 & 0xff) as u32 * 8);
    let shift = 64 - from;
    let value = if imm & 1 != 0 {
        i128::from((a << shift).cast_signed() >> shift)
    } else {
        i128::from(a << shift >> shift)
    };
    clamp(value, to, imm & 2 != 0)
}

fn clamp(value: i128, bits: u32, signed: bool) -> u64 {
    let (low, high) = if signed {
        (-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1)
    } else {
        (0, (1i128 << bits) - 1)
    };
    value.clamp(low, high) as u64
}

fn to_float(from: Type, to: Type, words: &Words<'_>) -> Option<Vec<Simple>> {
    let mut chain = Vec::new();
    let (mut size, signed) = (from.size(), is_signed(from));
    if size == 1 {
        chain.push(byte(signed));
        size = 2;
    }
    if size == 2 {
        chain.push(logic::resize(2, 4, signed)?);
    }
    let wide = size == 8;
    if let Some(rounding) = Rounding::of(words) {
        let f: ColdFn = match (to, signed, wide) {
            (Type::F32, true, true) => cold::signed_to_32,
            (Type::F32, true, false) => int32_to_f32,
            (Type::F32, false, false) => cold::signed_to_32,
            (Type::F64, true, true) => cold::signed_to_64,
            (Type::F32, false, true) => unsigned64_to_f32,
            (Type::F64, false, true) => unsigned64_to_f64,
            (Type::F16 | Type::Bf16, ..) => {
                chain.push(to_half(to, signed, wide, Some(rounding)));
                return Some(chain);
            }
            (Type::F64, _, false) => {
                return to_float(
                    from,
                    to,
                    &Words {
                        flags: &["rn"],
                        ..*words
                    },
                );
            }
            _ => return None,
        };
        chain.push(Simple::cold(
            f,
            [to.size() as u8, if wide { 8 } else { 4 }, 0, 0],
            rounding.mxcsr(),
        ));
        return Some(chain);
    }
    chain.push(match (to, signed, wide) {
        (Type::F32, false, false) => op!(@ Tag::CvtU32F32; u32 => f32; |a| a as f32),
        (Type::F32, true, false) => op!(@ Tag::CvtS32F32; i32 => f32; |a| a as f32),
        (Type::F32, false, true) => op!(u64 => f32; |a| a as f32),
        (Type::F32, true, true) => op!(i64 => f32; |a| a as f32),
        (Type::F64, false, false) => op!(u32 => f64; |a| f64::from(a)),
        (Type::F64, true, false) => op!(i32 => f64; |a| f64::from(a)),
        (Type::F64, false, true) => op!(u64 => f64; |a| a as f64),
        (Type::F64, true, true) => op!(i64 => f64; |a| a as f64),
        _ => to_half(to, signed, wide, None),
    });
    Some(chain)
}

/// An integer to a 16-bit float.
fn to_half(to: Type, signed: bool, wide: bool, rounding: Option<Rounding>) -> Simple {
    let imm = half::kind(to) | direction(rounding) << 8 | FROM_F64;
    Simple::cold(
        integer_to_half,
        [2, if wide { 8 } else { 4 }, 0, 0],
        imm | u64::from(signed) << 16 | u64::from(wide) << 17,
    )
}

/// What [`narrow_to_half`] knows a rounding as.
fn direction(rounding: Option<Rounding>) -> u64 {
    match rounding {
        None => 0,
        Some(Rounding::Zero) => 1,
        Some(Rounding::Down) => 2,
        Some(Rounding::Up) => 3,
    }
}

/// Half of a number, with the bit that goes kept as a sticky one: it rounds as the number does.
fn half_of(a: u64) -> u64 {
    a >> 1 | a & 1
}

fn unsigned64_to_f32(a: u64, b: u64, c: u64, mxcsr: u64) -> u64 {
    if a >> 63 == 0 {
        return cold::signed_to_32(a, b, c, mxcsr);
    }
    let half = f32::from_bits(cold::signed_to_32(half_of(a), b, c, mxcsr) as u32);
    (half * 2.0).to_bits().into()
}

fn unsigned64_to_f64(a: u64, b: u64, c: u64, mxcsr: u64) -> u64 {
    if a >> 63 == 0 {
        return cold::signed_to_64(a, b, c, mxcsr);
    }
    (f64::from_bits(cold::signed_to_64(half_of(a), b, c, mxcsr)) * 2.0).to_bits()
}

fn int32_to_f32(a: u64, b: u64, c: u64, mxcsr: u64) -> u64 {
    cold::signed_to_32(i64::from(a as u32 as i32).cast_unsigned(), b, c, mxcsr)
}

fn integer_to_half(a: u64, _: u64, _: u64, imm: u64) -> u64 {
    let value = match (imm >> 16 & 1 != 0, imm >> 17 & 1 != 0) {
        (true, true) => a.cast_signed() as i128,
        (true, false) => i128::from(a as u32 as i32),
        (false, _) => i128::from(a),
    };
    // More than 53 bits are far above the largest half; of a bfloat they count as sticky ones.
    let near = value as f64;
    let back = near as i128;
    let sticky = if back == value {
        near
    } else {
        // Toward zero, so that it stays on its side of what the second rounding may take for the middle.
        let away = u64::from(back.unsigned_abs() > value.unsigned_abs());
        f64::from_bits((near.to_bits() - away) | 1)
    };
    narrow_to_half(sticky.to_bits(), 0, 0, imm)
}

/// How a float becomes an integer.
#[derive(Clone, Copy)]
enum Whole {
    Near,
    Zero,
    Down,
    Up,
}

fn whole(words: &Words<'_>) -> Option<Whole> {
    words.flags.iter().find_map(|flag| match *flag {
        "rni" => Some(Whole::Near),
        "rzi" => Some(Whole::Zero),
        "rmi" => Some(Whole::Down),
        "rpi" => Some(Whole::Up),
        _ => None,
    })
}

fn round32(how: Whole) -> Simple {
    match how {
        Whole::Near => op!(f32 => f32; |a| a.round_ties_even()),
        Whole::Zero => op!(f32 => f32; |a| a.trunc()),
        Whole::Down => op!(f32 => f32; |a| a.floor()),
        Whole::Up => op!(f32 => f32; |a| a.ceil()),
    }
}

fn round64(how: Whole) -> Simple {
    match how {
        Whole::Near => op!(f64 => f64; |a| a.round_ties_even()),
        Whole::Zero => op!(f64 => f64; |a| a.trunc()),
        Whole::Down => op!(f64 => f64; |a| a.floor()),
        Whole::Up => op!(f64 => f64; |a| a.ceil()),
    }
}

fn to_integer(from: Type, to: Type, words: &Words<'_>) -> Option<Vec<Simple>> {
    let how = whole(words)?;
    let mut chain = Vec::new();
    let wide = match from {
        Type::F64 => true,
        Type::F32 => {
            if words.has("ftz") {
                chain.push(parts::flushed());
            }
            false
        }
        _ => {
            chain.push(widen_half(from));
            false
        }
    };
    // Rust's casts truncate and clamp as PTX asks. A NaN becomes 0, as they make it, only from and to
    // narrow types; else it is the destination's top bit.
    if !matches!(how, Whole::Zero) {
        chain.push(if wide { round64(how) } else { round32(how) });
    }
    chain.push(match (wide, to) {
        (false, Type::U8) => op!(f32 => u16; |a| u16::from(a as u8)),
        (false, Type::S8) => op!(f32 => i16; |a| i16::from(a as i8)),
        (false, Type::U16) => op!(f32 => u16; |a| a as u16),
        (false, Type::S16) => op!(f32 => i16; |a| a as i16),
        (false, Type::U32) => op!(f32 => u32; |a| a as u32),
        (false, Type::S32) => op!(f32 => i32; |a| a as i32),
        (false, Type::U64) => op!(f32 => u64; |a| if a.is_nan() { 1 << 63 } else { a as u64 }),
        (false, Type::S64) => op!(f32 => i64; |a| if a.is_nan() { i64::MIN } else { a as i64 }),
        (true, Type::U8) => op!(f64 => u16; |a| if a.is_nan() { 0x80 } else { u16::from(a as u8) }),
        (true, Type::S8) => {
            op!(f64 => i16; |a| if a.is_nan() { -0x80 } else { i16::from(a as i8) })
        }
        (true, Type::U16) => op!(f64 => u16; |a| if a.is_nan() { 1 << 15 } else { a as u16 }),
        (true, Type::S16) => op!(f64 => i16; |a| if a.is_nan() { i16::MIN } else { a as i16 }),
        (true, Type::U32) => op!(f64 => u32; |a| if a.is_nan() { 1 << 31 } else { a as u32 }),
        (true, Type::S32) => op!(f64 => i32; |a| if a.is_nan() { i32::MIN } else { a as i32 }),
        (true, Type::U64) => op!(f64 => u64; |a| if a.is_nan() { 1 << 63 } else { a as u64 }),
        (true, Type::S64) => op!(f64 => i64; |a| if a.is_nan() { i64::MIN } else { a as i64 }),
        _ => return None,
    });
    Some(chain)
}

fn widen_half(from: Type) -> Simple {
    fn f(a: u64, _: u64, _: u64, imm: u64) -> u64 {
        u64::from(half::to_f32(a as u16, imm).to_bits())
    }
    Simple::cold(f, [4, 2, 0, 0], half::kind(from))
}

fn floats(from: Type, to: Type, words: &Words<'_>) -> Option<Vec<Simple>> {
    let mut chain = Vec::new();
    if from == Type::F32 && words.has("ftz") {
        chain.push(parts::flushed());
    }
    match (from, to) {
        (Type::F32, Type::F32) => match whole(words) {
            Some(how) => chain.push(round32(how)),
            None => chain.push(logic::mov(4)?),
        },
        (Type::F64, Type::F64) => match whole(words) {
            Some(how) => chain.push(round64(how)),
            None => chain.push(logic::mov(8)?),
        },
        (Type::F32, Type::F64) => chain.push(op!(f32 => f64; |a| f64::from(a))),
        (Type::F64, Type::F32) => match Rounding::of(words) {
            None => chain.push(op!(f64 => f32; |a| a as f32)),
            Some(rounding) => {
                chain.push(Simple::cold(cold::narrow, [4, 8, 0, 0], rounding.mxcsr()));
            }
        },
        (Type::F16, Type::F16) | (Type::Bf16, Type::Bf16) if whole(words).is_none() => {
            chain.push(logic::mov(2)?);
        }
        (Type::F16 | Type::Bf16, Type::F32) => chain.push(widen_half(from)),
        (Type::F16 | Type::Bf16, Type::F64) => {
            chain.push(widen_half(from));
            chain.push(op!(f32 => f64; |a| f64::from(a)));
        }
        (_, Type::F16 | Type::Bf16) => {
            let source = match from {
                Type::F64 => 8,
                Type::F32 => 4,
                _ => {
                    chain.push(widen_half(from));
                    4
                }
            };
            let mut imm = half::kind(to) | direction(Rounding::of(words)) << 8;
            if source == 8 {
                imm |= FROM_F64;
            }
            let whole = match whole(words) {
                None => 0,
                Some(Whole::Near) => 1,
                Some(Whole::Zero) => 2,
                Some(Whole::Down) => 3,
                Some(Whole::Up) => 4,
            };
            chain.push(Simple::cold(
                narrow_to_half,
                [2, source, 0, 0],
                imm | whole << 11,
            ));
        }
        _ => return None,
    }
    Some(chain)
}

/// Two `f32` to a pair of 16-bit floats: `cvt.rn.f16x2.f32 d, a, b`; a becomes the upper half.
pub(crate) fn pair(to: Type, words: &Words<'_>) -> Option<Simple> {
    fn f(a: u64, b: u64, c: u64, imm: u64) -> u64 {
        narrow_to_half(a, 0, c, imm) << 16 | narrow_to_half(b, 0, c, imm)
    }
    if !words.only(&["rn", "rz", "relu", "satfinite"]) {
        return None;
    }
    let rounding = if words.has("rz") { 1u64 } else { 0 };
    let one = if to == Type::Bf16x2 {
        Type::Bf16
    } else {
        Type::F16
    };
    Some(Simple::cold(
        f,
        [4, 4, 4, 0],
        half::kind(one) | rounding << 8,
    ))
}

/// Bit of `imm` of [`narrow_to_half`]: from `f64`.
const FROM_F64: u64 = 1 << 10;

/// `cvt.rna.tf32.f32` and its kin: an `f32` of which 10 bits of the fraction are left.
pub(crate) fn tf32(words: &Words<'_>) -> Option<Simple> {
    if !words.only(&["tf32", "rn", "rna", "rz", "relu", "satfinite"]) {
        return None;
    }
    let relu = u64::from(words.has("relu"));
    let rounding = if words.has("rna") {
        0
    } else if words.has("rn") {
        1
    } else {
        2
    };
    let finite = u64::from(words.has("satfinite"));
    Some(Simple::cold(
        round_to_tf32,
        [4, 4, 0, 0],
        rounding | relu << 2 | finite << 3,
    ))
}

fn round_to_tf32(a: u64, _: u64, _: u64, imm: u64) -> u64 {
    const LOST: u32 = 0x1fff;
    let bits = a as u32;
    if f32::from_bits(bits).is_nan() {
        return 0x7fff_ffff;
    }
    let mut rounded = match imm & 3 {
        _ if bits & 0x7f80_0000 == 0x7f80_0000 => bits,
        0 => bits + 0x1000,
        1 => bits + 0xfff + (bits >> 13 & 1),
        _ => bits,
    } & !LOST;
    if imm >> 3 & 1 != 0 && rounded & 0x7fff_ffff == 0x7f80_0000 {
        rounded = rounded & 0x8000_0000 | 0x7f7f_e000;
    }
    if imm >> 2 & 1 != 0 && rounded >> 31 != 0 {
        rounded = 0;
    }
    rounded.into()
}

/// To a 16-bit float; bits 8 and 9: rounding; [`FROM_F64`]; from bit 11: to an integer first.
fn narrow_to_half(a: u64, _: u64, _: u64, imm: u64) -> u64 {
    let value = if imm >> 10 & 1 != 0 {
        f64::from_bits(a)
    } else {
        f64::from(f32::from_bits(a as u32))
    };
    let value = match imm >> 11 & 7 {
        1 => value.round_ties_even(),
        2 => value.trunc(),
        3 => value.floor(),
        4 => value.ceil(),
        _ => value,
    };
    if value.is_nan() {
        return 0x7fff;
    }
    let near = half::from_f64(value, imm);
    let back = f64::from(half::to_f32(near, imm));
    let toward_zero = match imm >> 8 & 3 {
        0 => return near.into(),
        1 => true,
        2 => value > 0.0,
        _ => value < 0.0,
    };
    // The bits of finite floats of one sign are ordered as the numbers are.
    let bits = if toward_zero && back.abs() > value.abs() {
        near - 1
    } else if !toward_zero && back.abs() < value.abs() {
        near + 1
    } else {
        near
    };
    bits.into()
}

/// `cvt.pack`: two clamped integers beside each other, before what there is in the third operand. The bits of the result's
/// parts, and how many operands it takes.
pub(crate) fn pack(words: &Words<'_>) -> Option<(Simple, usize)> {
    let (bits, signed, count) = match (words.flags, words.types) {
        (["pack", "sat"], [Type::U16, Type::S32]) => (16, false, 2),
        (["pack", "sat"], [Type::S16, Type::S32]) => (16, true, 2),
        (["pack", "sat"], [Type::U8, Type::S32, Type::B32]) => (8, false, 3),
        (["pack", "sat"], [Type::S8, Type::S32, Type::B32]) => (8, true, 3),
        (["pack", "sat", "u4"], [Type::S32, Type::B32]) => (4, false, 3),
        (["pack", "sat", "s4"], [Type::S32, Type::B32]) => (4, true, 3),
        (["pack", "sat", "u2"], [Type::S32, Type::B32]) => (2, false, 3),
        (["pack", "sat", "s2"], [Type::S32, Type::B32]) => (2, true, 3),
        _ => return None,
    };
    let widths = [4, 4, 4, if count == 3 { 4 } else { 0 }];
    let imm = bits | u64::from(signed) << 8;
    Some((Simple::cold(pack_clamped, widths, imm), count))
}

fn pack_clamped(a: u64, b: u64, c: u64, imm: u64) -> u64 {
    let bits = (imm & 0xff) as u32;
    let part = |value: u64| {
        clamp(i128::from(value as u32 as i32), bits, imm >> 8 != 0) & ((1 << bits) - 1)
    };
    let kept = if bits == 16 { 0 } else { c << (2 * bits) };
    (kept | part(a) << bits | part(b)) & 0xffff_ffff
}
