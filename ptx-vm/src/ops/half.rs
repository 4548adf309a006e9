//! 16-bit floats, alone and in pairs: computed in `f64` and rounded once, lane by lane.
//!
//! Sums and products of halves are exact in `f64`; of bfloats a sum may be rounded there, which does no
//! harm (53 ≥ 2 · 8 + 2). Only `fma` needs the care that it takes.
//!
//! Found by way of `ops::table`; conversions, atomics, matrices and textures use its forms of numbers. Must not
//! know lanes.

use half::{bf16, f16};
use ptx::ast::Type;

use super::simple::{Simple, Words, op};
use crate::machine::ColdFn;

/// Bit of `imm`: bfloat16, not half.
const BF16: u64 = 1;
/// Bit of `imm`: a pair.
const PAIR: u64 = 2;
/// Bit of `imm`: flush subnormal results (and operands) to 0.
const FTZ: u64 = 4;
/// Bit of `imm`: clamp to [0, 1].
const SAT: u64 = 8;
/// Bit of `imm`: negative results become 0.
const RELU: u64 = 16;

/// Bit of `imm`: the amounts are compared, and the result has the product of both signs.
const XORSIGN: u64 = 64;
/// Bit of `imm`: infinite results become the greatest.
const FINITE: u64 = 32;
/// What copies of tensors fill with where programs ask for a NaN.
const OOB_NAN: u16 = 0x7fff;

pub(crate) fn to_f32(bits: u16, imm: u64) -> f32 {
    if imm & BF16 != 0 {
        bf16::from_bits(bits).to_f32()
    } else {
        f16::from_bits(bits).to_f32()
    }
}

/// Rounds to the nearest, through an `f32` that is rounded to odd, so that only one rounding counts.
pub(crate) fn from_f64(value: f64, imm: u64) -> u16 {
    let near = value as f32;
    let back = f64::from(near);
    let odd = if back == value || near.is_nan() || back.is_infinite() && value.is_infinite() {
        near
    } else {
        let bits = near.to_bits() - u32::from(back.abs() > value.abs());
        f32::from_bits(bits | 1)
    };
    if imm & BF16 != 0 {
        bf16::from_f32(odd).to_bits()
    } else {
        f16::from_f32(odd).to_bits()
    }
}

fn flush(bits: u16, imm: u64) -> u16 {
    let exponent = if imm & BF16 != 0 { 0x7f80 } else { 0x7c00 };
    if imm & FTZ != 0 && bits & exponent == 0 {
        bits & 0x8000
    } else {
        bits
    }
}

/// A half without its bits if it is subnormal.
pub(crate) fn flushed() -> Simple {
    op!(u16 => u16; |a| flush(a, FTZ))
}

fn lanes(a: u64, b: u64, c: u64, imm: u64, f: impl Fn(f64, f64, f64) -> f64) -> u64 {
    let one = |shift: u32| {
        let operand = |word: u64| f64::from(to_f32(flush((word >> shift) as u16, imm), imm));
        let mut value = f(operand(a), operand(b), operand(c));
        if imm & SAT != 0 {
            value = if value > 0.0 { value.min(1.0) } else { 0.0 };
        }
        if imm & RELU != 0 && value < 0.0 {
            value = 0.0;
        }
        let bits = if value.is_nan() {
            0x7fff
        } else {
            from_f64(value, imm)
        };
        u64::from(flush(bits, imm))
    };
    if imm & PAIR != 0 {
        one(0) | one(16) << 16
    } else {
        one(0)
    }
}

/// Applies a function of bits to each half.
fn bitwise(a: u64, b: u64, imm: u64, f: impl Fn(u16, u16) -> u16) -> u64 {
    let one = |shift: u32| u64::from(f((a >> shift) as u16, (b >> shift) as u16));
    if imm & PAIR != 0 {
        one(0) | one(16) << 16
    } else {
        one(0)
    }
}

fn add(a: u64, b: u64, c: u64, imm: u64) -> u64 {
    lanes(a, b, c, imm, |a, b, _| a + b)
}

fn sub(a: u64, b: u64, c: u64, imm: u64) -> u64 {
    lanes(a, b, c, imm, |a, b, _| a - b)
}

fn mul(a: u64, b: u64, c: u64, imm: u64) -> u64 {
    lanes(a, b, c, imm, |a, b, _| a * b)
}

fn fma(a: u64, b: u64, c: u64, imm: u64) -> u64 {
    // The product of two 11-bit numbers is exact in f64; the sum is rounded to odd, so that the rounding
    // to 16 bits is the only one.
    lanes(a, b, c, imm, |a, b, c| {
        let (x, y) = (a * b, c);
        let sum = x + y;
        let back = sum - x;
        let error = (x - (sum - back)) + (y - back);
        if error == 0.0 || !sum.is_finite() || sum.to_bits() & 1 != 0 {
            return sum;
        }
        let up = (error > 0.0) == (sum > 0.0);
        f64::from_bits(if up {
            sum.to_bits() + 1
        } else {
            sum.to_bits() - 1
        })
    })
}

fn neg(a: u64, _: u64, _: u64, imm: u64) -> u64 {
    bitwise(a, 0, imm, |a, _| flush(a, imm) ^ 0x8000)
}

fn abs(a: u64, _: u64, _: u64, imm: u64) -> u64 {
    bitwise(a, 0, imm, |a, _| flush(a, imm) & 0x7fff)
}

fn choose(a: u64, b: u64, imm: u64, pick: impl Fn(f32, f32) -> f32) -> u64 {
    if imm & XORSIGN == 0 {
        return lanes(a, b, 0, imm, |a, b, _| f64::from(pick(a as f32, b as f32)));
    }
    // Of the amounts, with the signs' product; a NaN has none.
    let amounts = lanes(a, b, 0, imm, |a, b, _| {
        f64::from(pick(a.abs() as f32, b.abs() as f32))
    });
    let infinite = if imm & BF16 != 0 { 0x7f80 } else { 0x7c00 };
    let signs = bitwise(a, b, imm, |a, b| (a ^ b) & 0x8000);
    bitwise(amounts, signs, imm, |amount, sign| {
        if amount & 0x7fff > infinite {
            amount
        } else {
            amount | sign
        }
    })
}

fn min(a: u64, b: u64, _: u64, imm: u64) -> u64 {
    choose(a, b, imm, super::float::min)
}

fn max(a: u64, b: u64, _: u64, imm: u64) -> u64 {
    choose(a, b, imm, super::float::max)
}

fn min_nan(a: u64, b: u64, _: u64, imm: u64) -> u64 {
    choose(a, b, imm, super::float::min_nan)
}

fn max_nan(a: u64, b: u64, _: u64, imm: u64) -> u64 {
    choose(a, b, imm, super::float::max_nan)
}

fn ex2(a: u64, b: u64, c: u64, imm: u64) -> u64 {
    lanes(a, b, c, imm, |a, _, _| a.exp2())
}

fn tanh(a: u64, b: u64, c: u64, imm: u64) -> u64 {
    lanes(a, b, c, imm, |a, _, _| a.tanh())
}

/// The operation of an instruction on 16-bit floats.
pub(crate) fn find(words: &Words<'_>, ty: Type) -> Option<Simple> {
    let imm = kind(ty)
        | if words.has("ftz") { FTZ } else { 0 }
        | if words.has("sat") { SAT } else { 0 }
        | if words.has("relu") { RELU } else { 0 }
        | if words.has("xorsign") { XORSIGN } else { 0 };
    let nan = words.has("NaN");
    let (f, operands): (ColdFn, usize) = match words.opcode {
        "add" => (add, 2),
        "sub" => (sub, 2),
        "mul" => (mul, 2),
        "fma" => (fma, 3),
        "neg" => (neg, 1),
        "abs" => (abs, 1),
        "min" if nan => (min_nan, 2),
        "max" if nan => (max_nan, 2),
        "min" => (min, 2),
        "max" => (max, 2),
        "ex2" => (ex2, 1),
        "tanh" => (tanh, 1),
        _ => return None,
    };
    let width = ty.size() as u8;
    let used = |index: usize| if index < operands { width } else { 0 };
    Some(Simple::cold(f, [width, used(0), used(1), used(2)], imm))
}

/// The result of `fma.oob`: source 0 is that of `fma`, which becomes 0 where source 1 or 2 is the NaN that stands for
/// what is beyond a tensor.
pub(crate) fn without_oob(ty: Type) -> Simple {
    fn one(value: u16, a: u16, b: u16) -> u16 {
        if a == OOB_NAN || b == OOB_NAN {
            0
        } else {
            value
        }
    }
    fn f(value: u64, a: u64, b: u64, _: u64) -> u64 {
        let part = |at: u32| {
            u64::from(one(
                (value >> at) as u16,
                (a >> at) as u16,
                (b >> at) as u16,
            ))
        };
        part(0) | part(16) << 16
    }
    let width = ty.size() as u8;
    Simple::cold(f, [width; 4], 0)
}

/// What a conversion to 16-bit floats does with results: clamps them to 0 to 1, makes negative ones 0, or makes
/// infinite ones the greatest. `None` for words that do none of it.
pub(crate) fn bounded(words: &Words<'_>, ty: Type) -> Option<Simple> {
    fn one(bits: u16, imm: u64) -> u16 {
        let (infinite, unit) = if imm & BF16 != 0 {
            (0x7f80, 0x3f80)
        } else {
            (0x7c00, 0x3c00)
        };
        let amount = bits & 0x7fff;
        let is_negative = bits >> 15 != 0;
        match (amount > infinite, imm & SAT != 0) {
            (true, true) => 0,
            (true, false) => 0x7fff,
            (false, true) if is_negative => 0,
            (false, true) => amount.min(unit),
            (false, false) if is_negative && imm & RELU != 0 => 0,
            (false, false) if amount == infinite && imm & FINITE != 0 => bits - 1,
            (false, false) => bits,
        }
    }
    fn f(a: u64, _: u64, _: u64, imm: u64) -> u64 {
        let part = |at: u32| u64::from(one((a >> at) as u16, imm)) << at;
        if imm & PAIR != 0 {
            part(0) | part(16)
        } else {
            part(0)
        }
    }
    let flags = [("sat", SAT), ("relu", RELU), ("satfinite", FINITE)];
    let asked = flags
        .iter()
        .filter(|(word, _)| words.has(word))
        .fold(0, |all, (_, bit)| all | bit);
    let width = ty.size() as u8;
    (asked != 0).then(|| Simple::cold(f, [width, width, 0, 0], asked | kind(ty)))
}

/// The bits of `imm` that say which type it is.
pub(crate) fn kind(ty: Type) -> u64 {
    match ty {
        Type::Bf16 => BF16,
        Type::Bf16x2 => BF16 | PAIR,
        Type::F16x2 => PAIR,
        _ => 0,
    }
}

/// The two values of `set` with a 16-bit float or a pair of them as its result, from a predicate.
pub(crate) fn one(ty: Type) -> u64 {
    if kind(ty) & BF16 != 0 { 0x3f80 } else { 0x3c00 }
}

/// The comparison `name` of the upper halves of two pairs, or of the lower ones.
pub(crate) fn half_of_pair(upper: bool) -> Simple {
    fn low(a: u64, _: u64, _: u64, _: u64) -> u64 {
        a & 0xffff
    }
    fn high(a: u64, _: u64, _: u64, _: u64) -> u64 {
        a >> 16
    }
    Simple::cold(if upper { high } else { low }, [2, 4, 0, 0], 0)
}

/// The comparison `name`: a predicate.
pub(crate) fn compare(name: &str, ty: Type) -> Option<Simple> {
    macro_rules! by {
        (|$a:ident, $b:ident| $e:expr) => {{
            fn f(a: u64, b: u64, _: u64, imm: u64) -> u64 {
                let ($a, $b) = (to_f32(a as u16, imm), to_f32(b as u16, imm));
                u64::from($e)
            }
            f as ColdFn
        }};
    }
    let f = match name {
        "eq" => by!(|a, b| a == b),
        // False where one is NaN, unlike "neu".
        "ne" => by!(|a, b| a.partial_cmp(&b).is_some_and(std::cmp::Ordering::is_ne)),
        "lt" => by!(|a, b| a < b),
        "le" => by!(|a, b| a <= b),
        "gt" => by!(|a, b| a > b),
        "ge" => by!(|a, b| a >= b),
        "equ" => by!(|a, b| a == b || a.is_nan() || b.is_nan()),
        "neu" => by!(|a, b| a != b),
        "ltu" => by!(|a, b| a < b || a.is_nan() || b.is_nan()),
        "leu" => by!(|a, b| a <= b || a.is_nan() || b.is_nan()),
        "gtu" => by!(|a, b| a > b || a.is_nan() || b.is_nan()),
        "geu" => by!(|a, b| a >= b || a.is_nan() || b.is_nan()),
        "num" => by!(|a, b| !a.is_nan() && !b.is_nan()),
        "nan" => by!(|a, b| a.is_nan() || b.is_nan()),
        _ => return None,
    };
    Some(Simple::cold(f, [1, 2, 2, 0], kind(ty)))
}
