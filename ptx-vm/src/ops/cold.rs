//! Operations that go lane by lane through a scalar function: operands come zero-extended to 64 bits,
//! with a constant of the instruction; the result's low bytes are taken.
//!
//! Used by the other families and by `lower::arith`, where speed matters less than code. Must not know lanes: each
//! function sees one value of each operand.

use std::arch::asm;

use ptx::ast::Type;

use super::simple::{Simple, Words};
use crate::machine::ColdFn;

/// A directed rounding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rounding {
    Zero,
    Down,
    Up,
}

impl Rounding {
    /// The rounding that a modifier names, if it is a directed one of floats.
    pub(crate) fn named(word: &str) -> Option<Self> {
        match word {
            "rz" => Some(Self::Zero),
            "rm" => Some(Self::Down),
            "rp" => Some(Self::Up),
            _ => None,
        }
    }

    /// The directed rounding that an instruction asks for, if it does.
    pub(crate) fn of(words: &Words<'_>) -> Option<Self> {
        words.flags.iter().find_map(|flag| Self::named(flag))
    }

    /// The MXCSR with this rounding and all exceptions masked.
    pub(crate) fn mxcsr(self) -> u64 {
        match self {
            Self::Down => 0x1f80 | 1 << 13,
            Self::Up => 0x1f80 | 2 << 13,
            Self::Zero => 0x1f80 | 3 << 13,
        }
    }
}

/// One scalar SSE instruction under a rounding. The compiler must not see the changed MXCSR, so it is set
/// and restored inside one piece of assembly.
macro_rules! under {
    ($name:ident, $t:ident, $bits:ident, $instruction:literal, 2) => {
        fn $name(a: u64, b: u64, _: u64, mxcsr: u64) -> u64 {
            let (mut x, y) = ($t::from_bits(a as $bits), $t::from_bits(b as $bits));
            let (new, mut old) = (mxcsr as u32, 0u32);
            // SAFETY: arithmetic on registers of our own; the memory operands are locals; the MXCSR is restored before
            // the assembly ends, and has all exceptions masked, so it cannot trap.
            unsafe {
                asm!(
                    "stmxcsr [{old}]", "ldmxcsr [{new}]",
                    concat!($instruction, " {x}, {y}"),
                    "ldmxcsr [{old}]",
                    x = inout(xmm_reg) x, y = in(xmm_reg) y,
                    old = in(reg) &raw mut old, new = in(reg) &raw const new,
                    options(nostack),
                );
            }
            u64::from(x.to_bits())
        }
    };
    ($name:ident, $t:ident, $bits:ident, $instruction:literal, fma) => {
        fn $name(a: u64, b: u64, c: u64, mxcsr: u64) -> u64 {
            let (mut x, y) = ($t::from_bits(a as $bits), $t::from_bits(b as $bits));
            let z = $t::from_bits(c as $bits);
            let (new, mut old) = (mxcsr as u32, 0u32);
            // SAFETY: arithmetic on registers of our own; the memory operands are locals; the MXCSR is restored before
            // the assembly ends, and has all exceptions masked, so it cannot trap; `rounded`
            // gives this function out only where the processor has FMA.
            unsafe {
                asm!(
                    "stmxcsr [{old}]", "ldmxcsr [{new}]",
                    concat!($instruction, " {x}, {y}, {z}"),
                    "ldmxcsr [{old}]",
                    x = inout(xmm_reg) x, y = in(xmm_reg) y, z = in(xmm_reg) z,
                    old = in(reg) &raw mut old, new = in(reg) &raw const new,
                    options(nostack),
                );
            }
            u64::from(x.to_bits())
        }
    };
    ($name:ident, $from:ident $from_bits:ident, $to:ident, $instruction:literal, convert) => {
        pub(crate) fn $name(a: u64, _: u64, _: u64, mxcsr: u64) -> u64 {
            let x = $from::from_bits(a as $from_bits);
            let result: $to;
            let (new, mut old) = (mxcsr as u32, 0u32);
            // SAFETY: a conversion between registers of our own; the memory operands are locals; the MXCSR is restored before
            // the assembly ends, and has all exceptions masked, so it cannot trap.
            unsafe {
                asm!(
                    "stmxcsr [{old}]", "ldmxcsr [{new}]",
                    concat!($instruction, " {r}, {x}"),
                    "ldmxcsr [{old}]",
                    x = in(xmm_reg) x, r = out(xmm_reg) result,
                    old = in(reg) &raw mut old, new = in(reg) &raw const new,
                    options(nostack),
                );
            }
            u64::from(result.to_bits())
        }
    };
    ($name:ident, $from:ident, $to:ident, $instruction:literal, integer) => {
        pub(crate) fn $name(a: u64, _: u64, _: u64, mxcsr: u64) -> u64 {
            let x = a as $from;
            let result: $to;
            let (new, mut old) = (mxcsr as u32, 0u32);
            // SAFETY: a conversion between registers of our own; the memory operands are locals; the MXCSR is restored before
            // the assembly ends, and has all exceptions masked, so it cannot trap.
            unsafe {
                asm!(
                    "stmxcsr [{old}]", "ldmxcsr [{new}]", "xorps {r}, {r}",
                    concat!($instruction, " {r}, {x}"),
                    "ldmxcsr [{old}]",
                    x = in(reg) x, r = out(xmm_reg) result,
                    old = in(reg) &raw mut old, new = in(reg) &raw const new,
                    options(nostack),
                );
            }
            u64::from(result.to_bits())
        }
    };
}
under!(add32, f32, u32, "addss", 2);
under!(sub32, f32, u32, "subss", 2);
under!(mul32, f32, u32, "mulss", 2);
under!(div32, f32, u32, "divss", 2);
under!(root32, f32, u32, "sqrtss", 2);
under!(fma32, f32, u32, "vfmadd213ss", fma);
under!(add64, f64, u64, "addsd", 2);
under!(sub64, f64, u64, "subsd", 2);
under!(mul64, f64, u64, "mulsd", 2);
under!(div64, f64, u64, "divsd", 2);
under!(root64, f64, u64, "sqrtsd", 2);
under!(fma64, f64, u64, "vfmadd213sd", fma);
under!(narrow, f64 u64, f32, "cvtsd2ss", convert);
under!(signed_to_32, i64, f32, "cvtsi2ss", integer);
under!(signed_to_64, i64, f64, "cvtsi2sd", integer);

fn sqrt32(a: u64, _: u64, _: u64, mxcsr: u64) -> u64 {
    root32(a, a, 0, mxcsr)
}

fn sqrt64(a: u64, _: u64, _: u64, mxcsr: u64) -> u64 {
    root64(a, a, 0, mxcsr)
}

fn rcp32(a: u64, _: u64, _: u64, mxcsr: u64) -> u64 {
    div32(1.0f32.to_bits().into(), a, 0, mxcsr)
}

fn rcp64(a: u64, _: u64, _: u64, mxcsr: u64) -> u64 {
    div64(1.0f64.to_bits(), a, 0, mxcsr)
}

/// Arithmetic of floats under a directed rounding.
pub(crate) fn rounded(opcode: &str, ty: Type, rounding: Rounding) -> Option<Simple> {
    let wide = ty == Type::F64;
    let (f, operands): (ColdFn, usize) = match (opcode, wide) {
        ("add", false) => (add32, 2),
        ("sub", false) => (sub32, 2),
        ("mul", false) => (mul32, 2),
        ("div", false) => (div32, 2),
        ("rcp", false) => (rcp32, 1),
        ("sqrt", false) => (sqrt32, 1),
        ("add", true) => (add64, 2),
        ("sub", true) => (sub64, 2),
        ("mul", true) => (mul64, 2),
        ("div", true) => (div64, 2),
        ("rcp", true) => (rcp64, 1),
        ("sqrt", true) => (sqrt64, 1),
        ("fma" | "mad", _) if !is_x86_feature_detected!("fma") => return None,
        ("fma" | "mad", false) => (fma32, 3),
        ("fma" | "mad", true) => (fma64, 3),
        _ => return None,
    };
    let width = if wide { 8 } else { 4 };
    let used = |index: usize| if index < operands { width } else { 0 };
    Some(Simple::cold(
        f,
        [width, used(0), used(1), used(2)],
        rounding.mxcsr(),
    ))
}

fn unary32(a: u64, f: impl Fn(f64) -> f64) -> u64 {
    u64::from((f(f64::from(f32::from_bits(a as u32))) as f32).to_bits())
}

pub(crate) fn sin(a: u64, _: u64, _: u64, _: u64) -> u64 {
    unary32(a, f64::sin)
}

pub(crate) fn cos(a: u64, _: u64, _: u64, _: u64) -> u64 {
    unary32(a, f64::cos)
}

pub(crate) fn tanh(a: u64, _: u64, _: u64, _: u64) -> u64 {
    unary32(a, f64::tanh)
}

pub(crate) fn lg2(a: u64, _: u64, _: u64, _: u64) -> u64 {
    unary32(a, f64::log2)
}

/// `prmt` in mode f4e, b4e, rc8, ecl, ecr, rc16.
pub(crate) fn permute(a: u64, b: u64, c: u64, mode: u64) -> u64 {
    let pool = b << 32 | a;
    let pick = |byte: u64| {
        let c = c & 3;
        match mode {
            0 => c + byte,
            1 => c.wrapping_sub(byte) & 7,
            2 => c,
            3 => c.max(byte),
            4 => c.min(byte),
            _ => (c & 1) * 2 + (byte & 1),
        }
    };
    (0..4).fold(0, |word, byte| {
        word | (pool >> (8 * pick(byte)) & 0xff) << (8 * byte)
    })
}

/// `fns`: the position of the n-th set bit from a base.
pub(crate) fn find_nth_set(mask: u64, base: u64, offset: u64, _: u64) -> u64 {
    let (mask, base, offset) = (mask as u32, base as u32, offset as u32 as i32);
    if base > 31 {
        return u64::from(u32::MAX);
    }
    if offset == 0 {
        return u64::from(if mask >> base & 1 != 0 {
            base
        } else {
            u32::MAX
        });
    }
    let mut left = offset.unsigned_abs();
    let step: i32 = if offset > 0 { 1 } else { -1 };
    let mut position = base.cast_signed();
    while (0..32).contains(&position) {
        if mask >> position & 1 != 0 {
            left -= 1;
            if left == 0 {
                return u64::from(position.cast_unsigned());
            }
        }
        position += step;
    }
    u64::from(u32::MAX)
}

/// `bfind` of signed values of `imm & 0xff` bits; the shift amount if bit 8 is set.
pub(crate) fn find_top_signed(a: u64, _: u64, _: u64, imm: u64) -> u64 {
    let bits = (imm & 0xff) as u32;
    let value = if bits == 32 {
        (a as i32) as i64
    } else {
        a as i64
    };
    let value = if value < 0 { !value } else { value } as u64;
    if value == 0 {
        return u64::from(u32::MAX);
    }
    let top = 63 - value.leading_zeros();
    u64::from(if imm >> 8 != 0 { bits - 1 - top } else { top })
}

/// `bfe` of signed values of `imm` bits.
pub(crate) fn extract_signed(a: u64, start: u64, len: u64, imm: u64) -> u64 {
    let (bits, start, len) = (imm as u32, (start & 0xff) as u32, (len & 0xff) as u32);
    let value = if bits == 32 {
        (a as i32) as i64
    } else {
        a as i64
    };
    if len == 0 {
        return 0;
    }
    let moved = value >> start.min(63);
    if start + len >= bits || len >= 64 {
        return moved as u64;
    }
    (moved << (64 - len) >> (64 - len)) as u64
}

/// `dp4a`: bits 0 and 1 of `imm` say whether a and b are signed.
pub(crate) fn dot4(a: u64, b: u64, c: u64, imm: u64) -> u64 {
    let byte = |word: u64, index: u32, signed: bool| {
        let byte = (word >> (8 * index)) as u8;
        if signed {
            i32::from(byte.cast_signed())
        } else {
            i32::from(byte)
        }
    };
    let sum = (0..4).fold(c as i32, |sum, index| {
        sum.wrapping_add(byte(a, index, imm & 1 != 0) * byte(b, index, imm & 2 != 0))
    });
    u64::from(sum.cast_unsigned())
}

/// `dp2a`: as [`dot4`]; bit 2: the upper two bytes of b.
pub(crate) fn dot2(a: u64, b: u64, c: u64, imm: u64) -> u64 {
    let half = |index: u32| {
        let half = (a >> (16 * index)) as u16;
        if imm & 1 != 0 {
            i64::from(half.cast_signed())
        } else {
            i64::from(half)
        }
    };
    let byte = |index: u32| {
        let byte = (b >> (8 * (index + if imm & 4 != 0 { 2 } else { 0 }))) as u8;
        if imm & 2 != 0 {
            i64::from(byte.cast_signed())
        } else {
            i64::from(byte)
        }
    };
    let sum = half(0) * byte(0) + half(1) * byte(1);
    u64::from((c as i32).wrapping_add(sum as i32).cast_unsigned())
}
