//! Floats of 8 bits: `e4m3`, which has no infinity and one NaN, and `e5m2`, the upper byte of a half.
//!
//! Chosen by `lower::arith`; `ops::matrix` decodes elements by it. Must not know lanes.

use ptx::ast::Type;

use super::half;
use super::simple::{Simple, Words};

/// Bit of `imm`: `e5m2`, not `e4m3`.
const E5M2: u64 = 1 << 32;
/// Bit of `imm`: negative results become 0.
const RELU: u64 = 1 << 33;
/// Bit of `imm`: the source is a pair of halves, not two `f32`.
const HALVES: u64 = 1 << 34;

/// The value of a byte.
pub(crate) fn decode(byte: u8, e5m2: bool) -> f32 {
    if e5m2 {
        return half::to_f32(u16::from(byte) << 8, 0);
    }
    let (exponent, fraction) = (i32::from(byte >> 3 & 0xf), f32::from(byte & 7));
    let amount = match (exponent, byte & 0x7f) {
        (_, 0x7f) => f32::NAN,
        (0, _) => fraction * (-9f32).exp2(),
        _ => (1.0 + fraction / 8.0) * ((exponent - 7) as f32).exp2(),
    };
    if byte >> 7 != 0 { -amount } else { amount }
}

/// The value of the lowest six bits of a byte: a sign, so many bits of an exponent, and a fraction, without infinity or NaN.
pub(crate) fn decode_six(byte: u8, exponent_bits: u32) -> f32 {
    let fraction_bits = 5 - exponent_bits;
    let bias = (1 << (exponent_bits - 1)) - 1;
    let exponent = i32::from(byte >> fraction_bits & ((1 << exponent_bits) - 1));
    let fraction = f32::from(byte & ((1 << fraction_bits) - 1)) * (-(fraction_bits as f32)).exp2();
    let amount = match exponent {
        0 => fraction * ((1 - bias) as f32).exp2(),
        _ => (1.0 + fraction) * ((exponent - bias) as f32).exp2(),
    };
    if byte >> 5 & 1 != 0 { -amount } else { amount }
}

/// The byte nearest to a value; what is beyond the largest becomes that.
fn encode(value: f64, e5m2: bool) -> u8 {
    let (bits, bias, largest) = if e5m2 { (2, 15, 0x7b) } else { (3, 7, 0x7e) };
    if value.is_nan() {
        return 0x7f;
    }
    let sign = u8::from(value.is_sign_negative()) << 7;
    let amount = value.abs();
    if amount == 0.0 {
        return sign;
    }
    if amount.is_infinite() {
        return sign | largest;
    }
    // A subnormal `f64` is far below the smallest byte's value.
    let exponent = ((amount.to_bits() >> 52) as i32 - 1023).max(1 - bias);
    let steps = (amount / f64::from(exponent - bits).exp2()).round_ties_even() as i64;
    // A step too many carries over into the exponent, as it should.
    let code = (i64::from(exponent + bias - 1) << bits) + steps;
    sign | code.clamp(0, i64::from(largest)) as u8
}

/// `cvt` to or from a pair of such bytes: the operation, and how many operands it takes.
pub(crate) fn find(words: &Words<'_>) -> Option<(Simple, usize)> {
    let named = words.flags.iter().find_map(|word| match *word {
        "e4m3x2" => Some(0),
        "e5m2x2" => Some(E5M2),
        _ => None,
    })?;
    let relu = if words.has("relu") { RELU } else { 0 };
    if !words.only(&["rn", "satfinite", "relu", "e4m3x2", "e5m2x2"]) {
        return None;
    }
    match (words.types, words.has("satfinite")) {
        ([Type::F32], true) => Some((Simple::cold(narrow, [2, 4, 4, 0], named | relu), 2)),
        ([Type::F16x2], true) => {
            Some((Simple::cold(narrow, [2, 4, 0, 0], named | relu | HALVES), 1))
        }
        ([Type::F16x2], false) => Some((Simple::cold(widen, [4, 2, 0, 0], named | relu), 1)),
        _ => None,
    }
}

/// Two numbers to two bytes: of two `f32` the first becomes the upper byte.
fn narrow(a: u64, b: u64, _: u64, imm: u64) -> u64 {
    let (high, low) = if imm & HALVES != 0 {
        (half::to_f32((a >> 16) as u16, 0), half::to_f32(a as u16, 0))
    } else {
        (f32::from_bits(a as u32), f32::from_bits(b as u32))
    };
    let one = |value: f32| {
        let value = if imm & RELU != 0 && value < 0.0 {
            0.0
        } else {
            value
        };
        u64::from(encode(value.into(), imm & E5M2 != 0))
    };
    one(high) << 8 | one(low)
}

/// Two bytes to a pair of halves.
fn widen(a: u64, _: u64, _: u64, imm: u64) -> u64 {
    let one = |byte: u8| {
        let value = decode(byte, imm & E5M2 != 0);
        let value = if imm & RELU != 0 && value < 0.0 {
            0.0
        } else {
            value
        };
        match value.is_nan() {
            true => 0x7fff,
            false => u64::from(half::from_f64(value.into(), 0)),
        }
    };
    one((a >> 8) as u8) << 16 | one(a as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_floats_have_their_values() {
        let all = |exponent_bits| -> Vec<f32> {
            (0..32)
                .map(|byte| decode_six(byte, exponent_bits))
                .collect()
        };
        let (e2m3, e3m2) = (all(2), all(3));
        assert_eq!(
            e2m3[..10],
            [0.0, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0, 1.125]
        );
        assert_eq!((e2m3[31], e3m2[31]), (7.5, 28.0));
        assert_eq!(e3m2[..6], [0.0, 0.0625, 0.125, 0.1875, 0.25, 0.3125]);
        assert!(e2m3.is_sorted() && e3m2.is_sorted());
        assert_eq!(decode_six(0x3f, 2), -7.5);
        // Four bits in the middle of a byte, and two zeroes.
        let e2m1: Vec<f32> = (0..8).map(|code| decode_six(code << 2, 2)).collect();
        assert_eq!(e2m1, [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]);
    }

    #[test]
    fn every_byte_comes_back_and_the_nearest_is_taken() {
        for e5m2 in [false, true] {
            let values: Vec<(u8, f32)> = (0..=255u8)
                .map(|byte| (byte, decode(byte, e5m2)))
                .filter(|(_, value)| value.is_finite())
                .collect();
            assert_eq!(values.len(), if e5m2 { 248 } else { 254 });
            for &(byte, value) in &values {
                assert_eq!(encode(value.into(), e5m2), byte, "{value}");
            }
            let positive: Vec<_> = values.iter().filter(|(byte, _)| byte >> 7 == 0).collect();
            for pair in positive.windows(2) {
                let (&(low, a), &(high, b)) = (pair[0], pair[1]);
                let middle = (f64::from(a) + f64::from(b)) / 2.0;
                let even = if low & 1 == 0 { low } else { high };
                assert_eq!(encode(middle, e5m2), even, "{middle}");
                assert_eq!(encode(middle.next_up(), e5m2), high);
                assert_eq!(encode(-middle.next_down(), e5m2), low | 0x80);
            }
            let most = values.iter().map(|(_, value)| *value).fold(0.0, f32::max);
            assert_eq!(most, if e5m2 { 57344.0 } else { 448.0 });
            assert_eq!(decode(encode(1e9, e5m2), e5m2), most);
            assert!(decode(encode(f64::NAN, e5m2), e5m2).is_nan());
        }
    }
}
