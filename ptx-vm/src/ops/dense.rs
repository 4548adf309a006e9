//! Products of small matrices of halves with single sums, whole warps at a time, on vectors of 64-bit lanes.
//!
//! Every product of two halves is exact in 64 bits, and the sums are made in the order of [`super::matrix`], so the results
//! are the same bit for bit.
//!
//! Called by `matrix`. Must not know which instruction the product is of.

use super::matrix::{ElementKind, Product};
use crate::isa::Isa;
use crate::machine::{Machine, Op};

/// The deepest product of halves.
const DEEPEST: usize = 16;
const ROWS: usize = 16;
const COLUMNS: usize = 8;

/// Makes the product of the warp whose first lane is `base`, if it is one of those and the machine has the vectors;
/// `false` if not.
pub(super) fn product(cx: &mut Machine<'_>, op: &Op, shape: Product, base: usize) -> bool {
    let narrow = match (shape.left, shape.right) {
        (ElementKind::F16, ElementKind::F16) => false,
        (ElementKind::Bf16, ElementKind::Bf16) => true,
        _ => return false,
    };
    if shape.depth > DEEPEST || shape.narrow != [false; 2] {
        return false;
    }
    match Isa::best() {
        Isa::Sse2 => return false,
        // SAFETY: the machine has what the function is compiled for.
        Isa::Avx2 => unsafe { avx2(cx, op, shape.depth, base, narrow) },
        // SAFETY: the machine has AVX-512, which the function is compiled for.
        Isa::Avx512 => unsafe { avx512(cx, op, shape.depth, base, narrow) },
    }
    true
}

/// # Safety
/// The machine has AVX2 and FMA.
#[target_feature(enable = "avx2,fma")]
unsafe fn avx2(cx: &mut Machine<'_>, op: &Op, depth: usize, base: usize, bf16: bool) {
    multiply(cx, op, depth, base, bf16);
}

/// # Safety
/// The machine has AVX-512 F, BW, DQ and VL.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn avx512(cx: &mut Machine<'_>, op: &Op, depth: usize, base: usize, bf16: bool) {
    multiply(cx, op, depth, base, bf16);
}

#[inline(always)]
fn multiply(cx: &mut Machine<'_>, op: &Op, depth: usize, base: usize, bf16: bool) {
    let frame = cx.frame;
    let wide = |source: usize, lane: usize| {
        let at = if op.varies(source) { base + lane } else { 0 };
        frame.lane::<u64>(op.s[source] as usize, at)
    };
    let mut a = [[0_u16; DEEPEST]; ROWS];
    let mut b = [[0_u16; COLUMNS]; DEEPEST];
    for group in 0..8 {
        for number in 0..4 {
            let lane = 4 * group + number;
            let column = wide(2, lane);
            for step in 0..depth / 8 {
                let rows = wide(step, lane);
                let at = 2 * (4 * step + number);
                for index in 0..2 {
                    a[group][at + index] = (rows >> (16 * index)) as u16;
                    a[group + 8][at + index] = (rows >> (32 + 16 * index)) as u16;
                    b[at + index][group] = (column >> (32 * step + 16 * index)) as u16;
                }
            }
        }
    }
    let a = a.map(|row| row.map(|half| value(half, bf16)));
    let b = b.map(|row| row.map(|half| value(half, bf16)));
    let mut sums = [[-0.0_f64; COLUMNS]; ROWS];
    for (sums, row) in sums.iter_mut().zip(&a) {
        for (element, others) in row.iter().zip(&b).take(depth) {
            for (sum, other) in sums.iter_mut().zip(others) {
                *sum = element.mul_add(*other, *sum);
            }
        }
    }
    for group in 0..8 {
        for number in 0..4 {
            let lane = 4 * group + number;
            for upper in 0..2 {
                let before = wide(3 + upper, lane);
                for index in 0..2 {
                    let before = f32::from_bits((before >> (32 * index)) as u32);
                    let sum = f64::from(before) + sums[group + 8 * upper][2 * number + index];
                    let bits = (sum as f32).to_bits();
                    cx.set_if(op, 2 * upper + index, base + lane, 4, bits.into());
                }
            }
        }
    }
}

/// The value of a half, or of a `bf16`.
#[inline(always)]
fn value(half: u16, bf16: bool) -> f64 {
    let word = u32::from(half);
    if bf16 {
        return f32::from_bits(word << 16).into();
    }
    // The exponents are 112 apart; scaling makes subnormals right, too. Infinities and NaNs have the highest exponent.
    let magnitude = f32::from_bits((word & 0x7fff) << 13) * f32::from_bits(0x7780_0000);
    let special = if word & 0x7c00 == 0x7c00 {
        0x7f80_0000
    } else {
        0
    };
    f32::from_bits(magnitude.to_bits() | special | (word & 0x8000) << 16).into()
}

#[cfg(test)]
mod tests {
    use ptx::ast::Type;

    use super::*;
    use crate::ops::half;

    #[test]
    fn every_half_has_its_value() {
        for bits in 0..=u16::MAX {
            for (ty, bf16) in [(Type::F16, false), (Type::Bf16, true)] {
                let wanted = f64::from(half::to_f32(bits, half::kind(ty)));
                let have = value(bits, bf16);
                assert!(
                    have.to_bits() == wanted.to_bits() || have.is_nan() && wanted.is_nan(),
                    "{bits:#x}: {have} instead of {wanted}"
                );
            }
        }
    }
}
