//! Small floats: of 8 bits `e4m3`, which has no infinity and one NaN, and `e5m2`, the upper byte of a half; of 6 and 4 bits
//! `e2m3`, `e3m2` and `e2m1`, which have neither; and powers of two in a byte, `ue8m0`.
//!
//! Chosen by `lower::arith`; `ops::matrix` decodes elements by it. Must not know lanes.

use ptx::ast::Type;

use super::half;
use super::simple::{Simple, Words};

/// Bit of `imm`: negative results become 0.
const RELU: u64 = 1 << 33;
/// Bit of `imm`: the source is a pair of halves, not two `f32`.
const HALVES: u64 = 1 << 34;
/// Bit of `imm`: powers of two are rounded up.
const UP: u64 = 1 << 35;
/// Bit of `imm`: what is beyond the largest power of two becomes that.
const FINITE: u64 = 1 << 36;

/// A format with a sign.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Format {
    /// How PTX names a pair of it.
    name: &'static str,
    bits: u32,
    /// Bits of the fraction.
    fraction: i32,
    bias: i32,
    /// The code of its largest number.
    largest: u8,
    /// The code that a NaN becomes.
    nan: u8,
}

const fn format(
    name: &'static str,
    bits: u32,
    fraction: i32,
    bias: i32,
    largest: u8,
    nan: u8,
) -> Format {
    Format {
        name,
        bits,
        fraction,
        bias,
        largest,
        nan,
    }
}

/// The formats, whose numbers stand in the lowest bits of `imm`.
const FORMATS: [Format; 5] = [
    format("e4m3x2", 8, 3, 7, 0x7e, 0x7f),
    format("e5m2x2", 8, 2, 15, 0x7b, 0x7f),
    format("e2m3x2", 6, 3, 1, 0x1f, 0x1f),
    format("e3m2x2", 6, 2, 3, 0x1f, 0x1f),
    format("e2m1x2", 4, 1, 1, 0x07, 0x07),
];

impl Format {
    fn of(imm: u64) -> Self {
        FORMATS[(imm & 7) as usize % FORMATS.len()]
    }

    /// Bits from one of a pair to the other: those of 6 bits have a byte each.
    fn step(self) -> u32 {
        if self.bits == 4 { 4 } else { 8 }
    }

    /// The value of a code.
    fn decode(self, code: u8) -> f32 {
        match self.name {
            "e4m3x2" => decode(code, false),
            "e5m2x2" => decode(code, true),
            "e2m3x2" => decode_six(code, 2),
            "e3m2x2" => decode_six(code, 3),
            _ => decode_six(code << 2, 2),
        }
    }

    /// The code nearest to a value; what is beyond the largest becomes that.
    fn encode(self, value: f64) -> u8 {
        if value.is_nan() {
            return self.nan;
        }
        let sign = u8::from(value.is_sign_negative()) << (self.bits - 1);
        let amount = value.abs();
        if amount == 0.0 {
            return sign;
        }
        if amount.is_infinite() {
            return sign | self.largest;
        }
        // A subnormal `f64` is far below the smallest code's value.
        let exponent = ((amount.to_bits() >> 52) as i32 - 1023).max(1 - self.bias);
        let steps = (amount / f64::from(exponent - self.fraction).exp2()).round_ties_even() as i64;
        // A step too many carries over into the exponent, as it should.
        let code = (i64::from(exponent + self.bias - 1) << self.fraction) + steps;
        sign | code.clamp(0, i64::from(self.largest)) as u8
    }
}

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

/// The power of two next to the amount of a value, towards zero or `up`, as a byte: 255 is NaN, which what is beyond the
/// largest becomes too, but where it is to be `finite`.
fn encode_power(value: f32, up: bool, finite: bool) -> u8 {
    if value.is_nan() {
        return 0xff;
    }
    let bits = value.to_bits() & 0x7fff_ffff;
    let (exponent, fraction) = (bits >> 23, bits & 0x7f_ffff);
    // 0 stands for 2^-127, which is subnormal.
    let over = match exponent {
        0 => fraction > 0x40_0000,
        _ => fraction > 0,
    };
    let code = exponent + u32::from(up && over);
    let most = if finite { 0xfe } else { 0xff };
    code.min(most) as u8
}

/// `cvt` to or from a pair of such numbers: the operation, and how many operands it takes.
pub(crate) fn find(words: &Words<'_>) -> Option<(Simple, usize)> {
    if words.has("ue8m0x2") {
        return find_power(words);
    }
    let number = FORMATS.iter().position(|format| words.has(format.name))?;
    if !words.only(&["rn", "satfinite", "relu", FORMATS[number].name]) || !words.has("rn") {
        return None;
    }
    let imm = number as u64 | if words.has("relu") { RELU } else { 0 };
    // Halves become bytes only.
    let is_byte = FORMATS[number].bits == 8;
    match (words.types, words.has("satfinite")) {
        ([Type::F32], true) => Some((Simple::cold(narrow, [2, 4, 4, 0], imm), 2)),
        ([Type::F16x2], true) if is_byte => {
            Some((Simple::cold(narrow, [2, 4, 0, 0], imm | HALVES), 1))
        }
        ([Type::F16x2], false) => Some((Simple::cold(widen, [4, 2, 0, 0], imm), 1)),
        _ => None,
    }
}

/// The same for powers of two.
fn find_power(words: &Words<'_>) -> Option<(Simple, usize)> {
    if words.only(&["rn", "ue8m0x2"]) && words.has("rn") && words.types == [Type::Bf16x2] {
        return Some((Simple::cold(widen_powers, [4, 2, 0, 0], 0), 1));
    }
    let up = match (words.has("rz"), words.has("rp")) {
        (true, false) => 0,
        (false, true) => UP,
        _ => return None,
    };
    if !words.only(&["rz", "rp", "satfinite", "ue8m0x2"]) {
        return None;
    }
    let imm = up | if words.has("satfinite") { FINITE } else { 0 };
    match words.types {
        [Type::F32] => Some((Simple::cold(narrow_powers, [2, 4, 4, 0], imm), 2)),
        [Type::Bf16x2] => Some((Simple::cold(narrow_powers, [2, 4, 0, 0], imm | HALVES), 1)),
        _ => None,
    }
}

/// Two numbers to two codes: of two `f32` the first becomes the upper one.
fn narrow(a: u64, b: u64, _: u64, imm: u64) -> u64 {
    let (high, low) = if imm & HALVES != 0 {
        (half::to_f32((a >> 16) as u16, 0), half::to_f32(a as u16, 0))
    } else {
        (f32::from_bits(a as u32), f32::from_bits(b as u32))
    };
    let format = Format::of(imm);
    let one = |value: f32| {
        let value = if imm & RELU != 0 && value < 0.0 {
            0.0
        } else {
            value
        };
        u64::from(format.encode(value.into()))
    };
    one(high) << format.step() | one(low)
}

/// Two codes to a pair of halves.
fn widen(a: u64, _: u64, _: u64, imm: u64) -> u64 {
    let format = Format::of(imm);
    let one = |code: u64| {
        let value = format.decode((code & ((1 << format.bits) - 1)) as u8);
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
    one(a >> format.step()) << 16 | one(a)
}

/// Two `f32`, the first of which becomes the upper byte, or a pair of `bf16`, to powers of two.
fn narrow_powers(a: u64, b: u64, _: u64, imm: u64) -> u64 {
    let (high, low) = if imm & HALVES != 0 {
        (a as u32 & 0xffff_0000, (a as u32) << 16)
    } else {
        (a as u32, b as u32)
    };
    let one = |bits: u32| {
        let code = encode_power(f32::from_bits(bits), imm & UP != 0, imm & FINITE != 0);
        u64::from(code)
    };
    one(high) << 8 | one(low)
}

/// Two powers of two to a pair of `bf16`.
fn widen_powers(a: u64, _: u64, _: u64, _: u64) -> u64 {
    let one = |code: u64| match code & 0xff {
        0 => 0x40,
        0xff => 0x7fff,
        code => code << 7,
    };
    one(a >> 8) << 16 | one(a)
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
    fn every_code_comes_back_and_the_nearest_is_taken() {
        for (format, count, largest) in [
            (FORMATS[0], 254, 448.0),
            (FORMATS[1], 248, 57344.0),
            (FORMATS[2], 64, 7.5),
            (FORMATS[3], 64, 28.0),
            (FORMATS[4], 16, 6.0),
        ] {
            let sign = 1 << (format.bits - 1);
            let codes = 0..=(u8::MAX >> (8 - format.bits));
            let values: Vec<(u8, f32)> = codes
                .map(|code| (code, format.decode(code)))
                .filter(|(_, value)| value.is_finite())
                .collect();
            assert_eq!(values.len(), count);
            for &(code, value) in &values {
                assert_eq!(format.encode(value.into()), code, "{value}");
            }
            let positive: Vec<_> = values.iter().filter(|(code, _)| code & sign == 0).collect();
            for pair in positive.windows(2) {
                let (&(low, a), &(high, b)) = (pair[0], pair[1]);
                let middle = (f64::from(a) + f64::from(b)) / 2.0;
                let even = if low & 1 == 0 { low } else { high };
                assert_eq!(format.encode(middle), even, "{middle}");
                assert_eq!(format.encode(middle.next_up()), high);
                assert_eq!(format.encode(-middle.next_down()), low | sign);
            }
            let most = values.iter().map(|(_, value)| *value).fold(0.0, f32::max);
            assert_eq!(most, largest);
            for beyond in [1e9, f64::INFINITY] {
                assert_eq!(format.decode(format.encode(beyond)), most);
                assert_eq!(format.decode(format.encode(-beyond)), -most);
            }
            let nan = format.decode(format.encode(f64::NAN));
            assert!(nan.is_nan() || format.bits < 8 && nan == most);
        }
    }

    #[test]
    fn powers_of_two_are_next_to_the_value() {
        for code in 0..=254u8 {
            let value = f64::from(i32::from(code) - 127).exp2() as f32;
            let next = f32::from_bits(value.to_bits() + 1);
            let before = f32::from_bits(value.to_bits() - 1);
            for (up, finite) in [(false, false), (false, true), (true, false), (true, true)] {
                let encode = |value| encode_power(value, up, finite);
                assert_eq!((encode(value), encode(-value)), (code, code), "{value}");
                let above = match (up, code) {
                    (false, _) => code,
                    (true, 254) if finite => 254,
                    (true, code) => code + 1,
                };
                assert_eq!(encode(next), above, "{next}");
                let below = if up { code } else { code.saturating_sub(1) };
                assert_eq!(encode(before), below, "{before}");
            }
            let bits = widen_powers(u64::from(code) << 8, 0, 0, 0) >> 16;
            assert_eq!(f32::from_bits((bits as u32) << 16), value);
        }
        assert_eq!(encode_power(0.0, true, false), 0);
        assert_eq!(encode_power(f32::INFINITY, false, false), 0xff);
        assert_eq!(encode_power(f32::INFINITY, true, true), 0xfe);
        assert_eq!(encode_power(f32::NAN, true, true), 0xff);
    }
}
