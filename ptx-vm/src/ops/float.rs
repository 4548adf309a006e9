//! Arithmetic of floats, and those helpers that are more than one Rust operator.
//!
//! Found by way of `ops::table`; halves, parts and warps use its helpers. Knows no rounding but Rust's: the others
//! are in `ops::cold`.

use std::arch::x86_64 as arch;

use ptx::ast::Type;

use super::cold;
use super::pure::{StripOp, strips};
use super::simple::{Body, Simple, Words, floats, op};
use crate::isa::Isa;
use crate::regs::STRIP;
use crate::segment::Tag;

/// The two float types, as far as these helpers need them.
pub(crate) trait Float: Copy + PartialOrd {
    const NAN: Self;
    fn or(self, other: Self) -> Self;
    fn and(self, other: Self) -> Self;
    fn with_sign_of(self, other: Self) -> Self;
}

macro_rules! float {
    ($($t:ident $bits:ident $nan:expr;)*) => {$(
        impl Float for $t {
            const NAN: Self = $t::from_bits($nan);

            #[inline(always)]
            fn or(self, other: Self) -> Self {
                $t::from_bits(self.to_bits() | other.to_bits())
            }

            #[inline(always)]
            fn and(self, other: Self) -> Self {
                $t::from_bits(self.to_bits() & other.to_bits())
            }

            #[inline(always)]
            fn with_sign_of(self, other: Self) -> Self {
                self.copysign(other)
            }
        }
    )*};
}
float! {
    f32 u32 0x7fff_ffff;
    f64 u64 0x7fff_ffff_ffff_ffff;
}

/// The smaller; a NaN loses; -0 is below +0.
#[inline(always)]
#[expect(
    clippy::eq_op,
    reason = "a NaN is not equal to itself, and this vectorises"
)]
pub(crate) fn min<T: Float>(a: T, b: T) -> T {
    let ordered = if a < b {
        a
    } else if b < a {
        b
    } else {
        a.or(b)
    };
    match (a == a, b == b) {
        (true, true) => ordered,
        (true, false) => a,
        (false, true) => b,
        (false, false) => T::NAN,
    }
}

/// The larger; a NaN loses; +0 is above -0.
#[inline(always)]
#[expect(clippy::eq_op, reason = "as in `min`")]
pub(crate) fn max<T: Float>(a: T, b: T) -> T {
    let ordered = if a > b {
        a
    } else if b > a {
        b
    } else {
        a.and(b)
    };
    match (a == a, b == b) {
        (true, true) => ordered,
        (true, false) => a,
        (false, true) => b,
        (false, false) => T::NAN,
    }
}

/// The smaller; a NaN wins.
#[inline(always)]
#[expect(clippy::eq_op, reason = "as in `min`")]
pub(crate) fn min_nan<T: Float>(a: T, b: T) -> T {
    if a == a && b == b { min(a, b) } else { T::NAN }
}

/// The larger; a NaN wins.
#[inline(always)]
#[expect(clippy::eq_op, reason = "as in `min`")]
pub(crate) fn max_nan<T: Float>(a: T, b: T) -> T {
    if a == a && b == b { max(a, b) } else { T::NAN }
}

/// The magnitude of `b` with the sign of `a`, as PTX orders them.
#[inline(always)]
pub(crate) fn copysign<T: Float>(a: T, b: T) -> T {
    b.with_sign_of(a)
}

/// A subnormal becomes a 0 of its sign.
#[inline(always)]
pub(crate) fn flush(a: f32) -> f32 {
    let bits = a.to_bits();
    f32::from_bits(if bits & 0x7f80_0000 == 0 {
        bits & 0x8000_0000
    } else {
        bits
    })
}

/// [`flush`] for doubles.
#[inline(always)]
pub(crate) fn flush64(a: f64) -> f64 {
    let bits = a.to_bits();
    f64::from_bits(if bits & 0x7ff0_0000_0000_0000 == 0 {
        bits & 1 << 63
    } else {
        bits
    })
}

/// `rsqrt.approx.f32` with or without `.ftz`, to 1 ulp (PTX asks for 2^-22.9).
pub(crate) fn rsqrt(ftz: bool) -> Simple {
    let mut simple = if ftz {
        op!(@ Tag::RsqrtFtzF32; f32 => f32; |a| 1.0 / flush(a).sqrt())
    } else {
        op!(@ Tag::RsqrtF32; f32 => f32; |a| 1.0 / a.sqrt())
    };
    let Body::Pure(op, _) = &mut simple.body else {
        return simple;
    };
    let fast = if ftz {
        strips::<Rsqrt14<true>>()
    } else {
        strips::<Rsqrt14<false>>()
    };
    op.run[Isa::Avx512 as usize] = fast[Isa::Avx512 as usize];
    simple
}

/// The reciprocal square root from the processor's 14-bit estimate and one step of Newton's.
struct Rsqrt14<const FTZ: bool>;

impl<const FTZ: bool> StripOp for Rsqrt14<FTZ> {
    type A = f32;
    type D = f32;

    #[inline(always)]
    fn strip(a: [f32; STRIP]) -> [f32; STRIP] {
        let a = if FTZ { a.map(flush) } else { a };
        // SAFETY: only entered on machines with AVX-512 F and DQ: `rsqrt` puts it into that one place. The
        // arrays and the vectors are 64 plain bytes.
        unsafe {
            let x: arch::__m512 = std::mem::transmute(a);
            let estimate = arch::_mm512_rsqrt14_ps(x);
            let one = arch::_mm512_set1_ps(1.0);
            let error = arch::_mm512_fnmadd_ps(arch::_mm512_mul_ps(x, estimate), estimate, one);
            let half = arch::_mm512_mul_ps(estimate, arch::_mm512_set1_ps(0.5));
            let better = arch::_mm512_fmadd_ps(error, half, estimate);
            // Of 0 and infinity the estimate is exact, and the step would make NaNs of it.
            let exact = arch::_mm512_fpclass_ps_mask::<0b1001_1110>(estimate);
            std::mem::transmute(arch::_mm512_mask_mov_ps(better, exact, estimate))
        }
    }
}

/// The operation, but on one vector unit as another one does it.
fn with_own(mut simple: Simple, isa: Isa, own: &Simple) -> Simple {
    if let (Body::Pure(op, _), Body::Pure(own, _)) = (&mut simple.body, &own.body) {
        op.run[isa as usize] = own.run[isa as usize];
    }
    simple
}

/// a * b + c, rounded once, for processors without such an instruction: the product is exact in double precision, and the
/// sum is rounded to odd there, after which rounding it again does no harm (53 >= 24 + 2).
#[inline(always)]
fn fused(a: f32, b: f32, c: f32) -> f32 {
    let (product, c) = (f64::from(a) * f64::from(b), f64::from(c));
    let sum = product + c;
    // What rounding has taken from the sum, exactly; a NaN if it is infinite.
    let part = sum - product;
    let lost = (product - (sum - part)) + (c - part);
    let inexact = u64::from(lost < 0.0) | u64::from(lost > 0.0);
    // Rounded away from zero: its amount is one too large.
    let away = u64::from(lost * sum < 0.0);
    f64::from_bits((sum.to_bits() - away) | inexact) as f32
}

/// `ex2.approx.f32`, within 2 ulp.
pub(crate) fn ex2() -> Simple {
    op!(f32 => f32; |a| {
        // Above 128 the result is infinite, below -150 it is 0; a NaN stays one.
        let x = if a > 130.0 { 130.0 } else { a };
        let x = if x < -160.0 { -160.0 } else { x };
        // Round to an integer by adding a number so large that no fraction fits.
        let shifted = x + 12_582_912.0;
        let whole = shifted - 12_582_912.0;
        let f = x - whole;
        let n = (shifted.to_bits() as i32).wrapping_sub(0x4b40_0000);
        // Taylor series of 2^f on [-1/2, 1/2].
        let mut p = 1.525_273_4e-5f32;
        p = p * f + 1.540_353e-4;
        p = p * f + 1.333_355_8e-3;
        p = p * f + 9.618_129e-3;
        p = p * f + 5.550_411e-2;
        p = p * f + 2.402_265e-1;
        p = p * f + 6.931_472e-1;
        p = p * f + 1.0;
        // 2^n in two factors, so that subnormal results come out right.
        let half = n >> 1;
        let power = |n: i32| f32::from_bits(((n + 127) as u32) << 23);
        p * power(half) * power(n - half)
    })
}

/// A number with the sign that the product of two others has; a NaN stays as it is.
#[inline(always)]
fn xor_sign(value: f32, a: f32, b: f32) -> f32 {
    let sign = (a.to_bits() ^ b.to_bits()) & 0x8000_0000;
    if value.is_nan() {
        value
    } else {
        f32::from_bits(value.to_bits() | sign)
    }
}

/// The operation of an instruction on floats of a type.
pub(super) fn float(words: &Words<'_>, ty: Type) -> Option<Simple> {
    if let Some(rounding) = cold::Rounding::of(words) {
        return cold::rounded(words.opcode, ty, rounding);
    }
    let ftz = words.has("ftz") && ty == Type::F32;
    match words.opcode {
        // These flush by themselves, and `rsqrt`.
        "add" if ftz => Some(op!(f32, f32 => f32; |a, b| flush(flush(a) + flush(b)))),
        "sub" if ftz => Some(op!(f32, f32 => f32; |a, b| flush(flush(a) - flush(b)))),
        "mul" if ftz => Some(op!(f32, f32 => f32; |a, b| flush(flush(a) * flush(b)))),
        "fma" | "mad" if ftz => Some(with_own(
            op!(f32, f32, f32 => f32; |a, b, c| flush(flush(a).mul_add(flush(b), flush(c)))),
            Isa::Sse2,
            &op!(f32, f32, f32 => f32; |a, b, c| flush(fused(flush(a), flush(b), flush(c)))),
        )),
        "add" => floats!(ty, Tag::AddF32, Tag::AddF64; T, T => T; |a, b| a + b),
        "sub" => floats!(ty, Tag::SubF32, Tag::SubF64; T, T => T; |a, b| a - b),
        "mul" => floats!(ty, Tag::MulF32, Tag::MulF64; T, T => T; |a, b| a * b),
        "fma" | "mad" if ty == Type::F32 => Some(with_own(
            op!(@ Tag::FmaF32; f32, f32, f32 => f32; |a, b, c| a.mul_add(b, c)),
            Isa::Sse2,
            &op!(f32, f32, f32 => f32; |a, b, c| fused(a, b, c)),
        )),
        "fma" | "mad" => {
            floats!(ty, Tag::FmaF32, Tag::FmaF64; T, T, T => T; |a, b, c| a.mul_add(b, c))
        }
        "div" => floats!(ty, Tag::DivF32, Tag::DivF64; T, T => T; |a, b| a / b),
        // The approximations of doubles take subnormal numbers for 0.
        "rcp" if words.has("ftz") && ty == Type::F64 => Some(op!(f64 => f64; |a| 1.0 / flush64(a))),
        "rsqrt" if words.has("ftz") && ty == Type::F64 => {
            Some(op!(f64 => f64; |a| 1.0 / flush64(a).sqrt()))
        }
        "rcp" => floats!(ty; T => T; |a| 1.0 / a),
        "sqrt" => floats!(ty, Tag::SqrtF32, Tag::SqrtF64; T => T; |a| a.sqrt()),
        "rsqrt" if ty == Type::F32 => Some(rsqrt(ftz)),
        "rsqrt" => Some(op!(f64 => f64; |a| 1.0 / a.sqrt())),
        "sin" if ty == Type::F32 => Some(Simple::cold(cold::sin, [4, 4, 0, 0], 0)),
        "cos" if ty == Type::F32 => Some(Simple::cold(cold::cos, [4, 4, 0, 0], 0)),
        "tanh" if ty == Type::F32 => Some(Simple::cold(cold::tanh, [4, 4, 0, 0], 0)),
        "lg2" if ty == Type::F32 => Some(Simple::cold(cold::lg2, [4, 4, 0, 0], 0)),
        "ex2" if ty == Type::F32 => Some(ex2()),
        "neg" => match ty {
            Type::F32 => Some(op!(@ Tag::NegF32; f32 => f32; |a| -a)),
            _ => Some(op!(f64 => f64; |a| -a)),
        },
        "abs" => floats!(ty, Tag::AbsF32, Tag::None; T => T; |a| a.abs()),
        // The smaller or larger of the amounts, negative if one operand is.
        "min" | "max" if words.has("xorsign") && words.has("abs") && ty == Type::F32 => {
            Some(match (words.opcode, words.has("NaN")) {
                ("min", false) => {
                    op!(f32, f32 => f32; |a, b| xor_sign(min(a.abs(), b.abs()), a, b))
                }
                ("min", true) => {
                    op!(f32, f32 => f32; |a, b| xor_sign(min_nan(a.abs(), b.abs()), a, b))
                }
                (_, false) => op!(f32, f32 => f32; |a, b| xor_sign(max(a.abs(), b.abs()), a, b)),
                (_, true) => op!(f32, f32 => f32; |a, b| xor_sign(max_nan(a.abs(), b.abs()), a, b)),
            })
        }
        _ if words.has("xorsign") || words.has("abs") => None,
        "min" if words.has("NaN") => floats!(ty; T, T => T; |a, b| min_nan(a, b)),
        "max" if words.has("NaN") => floats!(ty; T, T => T; |a, b| max_nan(a, b)),
        "min" => floats!(ty, Tag::MinF32, Tag::None; T, T => T; |a, b| min(a, b)),
        "max" => floats!(ty, Tag::MaxF32, Tag::None; T, T => T; |a, b| max(a, b)),
        "copysign" => floats!(ty; T, T => T; |a, b| copysign(a, b)),
        "testp" => {
            if words.has("finite") {
                floats!(ty; T => u8; |a| u8::from(a.is_finite()))
            } else if words.has("infinite") {
                floats!(ty; T => u8; |a| u8::from(a.is_infinite()))
            } else if words.has("number") {
                floats!(ty; T => u8; |a| u8::from(!a.is_nan()))
            } else if words.has("notanumber") {
                floats!(ty; T => u8; |a| u8::from(a.is_nan()))
            } else if words.has("normal") {
                floats!(ty; T => u8; |a| u8::from(a.is_normal()))
            } else if words.has("subnormal") {
                floats!(ty; T => u8; |a| u8::from(a.is_subnormal()))
            } else {
                None
            }
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::fused;

    /// Sums that double precision rounds to the middle between two floats, and anything else: also where the result is
    /// subnormal, infinite, or no number.
    #[test]
    fn products_and_sums_are_rounded_once() {
        let tie = 1.0 + f32::powi(2.0, -12);
        let tiny = f32::powi(2.0, -70);
        let twice = |a: f32, b: f32, c: f32| (f64::from(a) * f64::from(b) + f64::from(c)) as f32;
        assert_ne!(twice(tie, tie, tiny), tie.mul_add(tie, tiny));
        let mut state = 1_u32;
        let mut random = || {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            state
        };
        let check = |a: f32, b: f32, c: f32| {
            let (have, want) = (fused(a, b, c), a.mul_add(b, c));
            let same = have.to_bits() == want.to_bits() || have.is_nan() && want.is_nan();
            assert!(same, "{a:e} * {b:e} + {c:e}: {have:e}, not {want:e}");
        };
        for sign in [1.0, -1.0] {
            for exponent in -149..128 {
                let c = sign * f32::powi(2.0, exponent);
                for scale in [-140, -126, -100, -25, -1, 0, 1, 60, 120] {
                    let b = tie * f32::powi(2.0, scale);
                    for a in [tie, -tie, 1.0, 3.0] {
                        check(a, b, c);
                    }
                }
            }
        }
        for _ in 0..200_000 {
            let [a, b, c] = [random(), random(), random()].map(f32::from_bits);
            check(a, b, c);
            // Of amounts that are near each other, and with few bits set.
            let near = |bits: u32| f32::from_bits(bits & 0x83f8_000f | 0x3800_0000);
            let [a, b, c] = [random(), random(), random()].map(near);
            check(a, b, c);
        }
    }
}
