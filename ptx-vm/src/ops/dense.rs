//! Products of small matrices of halves with single sums, whole warps at a time, on vectors of 64-bit lanes.
//!
//! Every product of two halves is exact in 64 bits, and the sums are made in the order of [`super::matrix`], so the results
//! are the same bit for bit.
//!
//! Called by `matrix`. Must not know which instruction the product is of.

use std::arch::x86_64 as arch;

use super::matrix::{ElementKind, Product};
use crate::isa::Isa;
use crate::machine::{Machine, Op};
use crate::regs::STRIP;

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

/// As [`multiply`], on vectors of eight doubles. The left matrix stays in the order of its fragments, which is the order in which
/// sums want single elements of it; of the right one each row is a vector, as of the sums.
///
/// # Safety
/// The machine has AVX-512 F, BW, DQ and VL.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn avx512(cx: &mut Machine<'_>, op: &Op, depth: usize, base: usize, bf16: bool) {
    let mut left = [[[0.0_f64; 2 * COLUMNS]; 8]; DEEPEST / 8];
    for (step, groups) in left.iter_mut().enumerate().take(depth / 8) {
        let words = fragment(cx, op, step, base);
        for (of_group, words) in groups.iter_mut().zip(words.as_chunks::<4>().0) {
            let (low, high) = (pair(words[0], words[1]), pair(words[2], words[3]));
            let values = singles(arch::_mm256_set_m128i(high, low), bf16);
            let (low, high) = of_group.split_at_mut(COLUMNS);
            low.copy_from_slice(&doubles(values, false));
            high.copy_from_slice(&doubles(values, true));
        }
    }
    let words = fragment(cx, op, 2, base);
    let mut right = [[0.0_f64; COLUMNS]; DEEPEST];
    for number in 0..4 {
        let column = |group: usize| words[4 * group + number].cast_signed();
        let words = arch::_mm512_set_epi64(
            column(7),
            column(6),
            column(5),
            column(4),
            column(3),
            column(2),
            column(1),
            column(0),
        );
        for step in 0..depth / 8 {
            let count = arch::_mm_cvtsi32_si128(32 * step as i32);
            let lower = arch::_mm512_srl_epi64(words, count);
            let upper = arch::_mm512_srli_epi64::<16>(lower);
            let [lower, upper] = [lower, upper].map(|words| arch::_mm512_cvtepi64_epi16(words));
            let values = singles(arch::_mm256_set_m128i(upper, lower), bf16);
            let at = 8 * step + 2 * number;
            right[at] = doubles(values, false);
            right[at + 1] = doubles(values, true);
        }
    }
    let before = [3, 4].map(|source| fragment(cx, op, source, base));
    for first in (0..8).step_by(4) {
        // Rows of four groups, upper and lower ones, so that a sum need not wait for the one before it.
        let mut sums = [[arch::_mm512_set1_pd(-0.0); 4]; 2];
        for (at, others) in right.iter().enumerate().take(depth) {
            let others = vector(others);
            for (half, sums) in sums.iter_mut().enumerate() {
                for (group, sum) in sums.iter_mut().enumerate() {
                    let place = at % 8 / 2 * 4 + 2 * half + at % 2;
                    let element = left[at / 8][first + group][place];
                    *sum = arch::_mm512_fmadd_pd(arch::_mm512_set1_pd(element), others, *sum);
                }
            }
        }
        for (half, sums) in sums.iter().enumerate() {
            for (group, &sum) in sums.iter().enumerate() {
                let lane = 4 * (first + group);
                let mut row = [0.0_f64; COLUMNS];
                for number in 0..4 {
                    let word = before[half][lane + number];
                    row[2 * number] = f32::from_bits(word as u32).into();
                    row[2 * number + 1] = f32::from_bits((word >> 32) as u32).into();
                }
                let row = arch::_mm512_cvtpd_ps(arch::_mm512_add_pd(vector(&row), sum));
                let order = arch::_mm256_set_epi32(7, 5, 3, 1, 6, 4, 2, 0);
                let row = arch::_mm256_permutevar8x32_ps(row, order);
                let columns = [
                    arch::_mm256_castps256_ps128(row),
                    arch::_mm256_extractf128_ps::<1>(row),
                ];
                for (index, values) in columns.into_iter().enumerate() {
                    let slot = op.d[2 * half + index] as usize;
                    if slot != 0 {
                        let at = cx.frame.at(slot + 4 * (base + lane), 16);
                        // SAFETY: `at` has tested that 16 bytes are there; the lane group runs on one thread.
                        unsafe { arch::_mm_storeu_ps(at.cast(), values) };
                    }
                }
            }
        }
    }
}

/// What a warp's lanes have in a source of 64 bits.
#[inline(always)]
fn fragment(cx: &Machine<'_>, op: &Op, source: usize, base: usize) -> [u64; 2 * STRIP] {
    let slot = op.s[source] as usize;
    let mut words = [0; 2 * STRIP];
    for (index, strip) in words.as_chunks_mut::<STRIP>().0.iter_mut().enumerate() {
        // A slot that does not vary has one strip, of the same value.
        let at = if op.varies(source) {
            base / STRIP + index
        } else {
            0
        };
        *strip = cx.frame.strip(slot, at);
    }
    words
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn pair(low: u64, high: u64) -> arch::__m128i {
    arch::_mm_set_epi64x(high.cast_signed(), low.cast_signed())
}

/// The values of 16 halves, or of `bf16`s.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn singles(halves: arch::__m256i, bf16: bool) -> arch::__m512 {
    if bf16 {
        let words = arch::_mm512_cvtepu16_epi32(halves);
        arch::_mm512_castsi512_ps(arch::_mm512_slli_epi32::<16>(words))
    } else {
        arch::_mm512_cvtph_ps(halves)
    }
}

/// The lower eight of 16 numbers, or the upper ones.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn doubles(values: arch::__m512, upper: bool) -> [f64; COLUMNS] {
    let half = if upper {
        arch::_mm512_extractf32x8_ps::<1>(values)
    } else {
        arch::_mm512_castps512_ps256(values)
    };
    let mut numbers = [0.0; COLUMNS];
    // SAFETY: the array has as many bytes as the vector.
    unsafe { arch::_mm512_storeu_pd(numbers.as_mut_ptr(), arch::_mm512_cvtps_pd(half)) };
    numbers
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn vector(numbers: &[f64; COLUMNS]) -> arch::__m512d {
    // SAFETY: the array has as many bytes as the vector.
    unsafe { arch::_mm512_loadu_pd(numbers.as_ptr()) }
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
    // Loops, as closures of `map` are compiled without the vectors that the caller has.
    let mut left = [[0.0_f64; DEEPEST]; ROWS];
    for (values, halves) in left.iter_mut().flatten().zip(a.iter().flatten()) {
        *values = value(*halves, bf16);
    }
    let mut right = [[0.0_f64; COLUMNS]; DEEPEST];
    for (values, halves) in right.iter_mut().flatten().zip(b.iter().flatten()) {
        *values = value(*halves, bf16);
    }
    let mut sums = [[-0.0_f64; COLUMNS]; ROWS];
    for (sums, row) in sums.iter_mut().zip(&left) {
        for (element, others) in row.iter().zip(&right).take(depth) {
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
