//! Floating-point helpers that are more than one Rust operator.

use std::arch::x86_64 as arch;

use super::pure::{StripOp, strips};
use super::table::{Simple, op};
use crate::exec::isa::Isa;
use crate::exec::regs::STRIP;
use crate::exec::segment::Tag;

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
    let super::table::Body::Pure(op, _) = &mut simple.body else {
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
