//! Video instructions on the two or four parts of a word: `vadd4`, `vabsdiff2`, `vset4` and the like.
//!
//! Found by way of `ops::table`. Must not know lanes: a word in, a word out.

use ptx::ast::Type;

use super::simple::{Simple, Words};

/// What is done with the parts. Numbers stand in bits 0..8 of `imm`.
const NAMES: [&str; 7] = ["vadd", "vsub", "vavrg", "vabsdiff", "vmin", "vmax", "vset"];
const COMPARISONS: [&str; 6] = ["eq", "ne", "lt", "le", "gt", "ge"];
/// Bits of `imm`: two parts, not four; signs of d, a, b; clamps; sums up into c.
const TWO: u64 = 1 << 8;
const SIGNED: [u64; 3] = [1 << 9, 1 << 10, 1 << 11];
const SAT: u64 = 1 << 12;
const ADD: u64 = 1 << 13;
/// Where the comparison's number stands.
const COMPARISON: u32 = 16;

/// The operation of a SIMD video instruction without mask and selectors; operands a, b, c.
pub(crate) fn find(words: &Words<'_>) -> Option<Simple> {
    let (name, parts) = words.opcode.split_at_checked(words.opcode.len() - 1)?;
    let number = NAMES.iter().position(|known| *known == name)?;
    let mut imm = number as u64;
    match parts {
        "2" => imm |= TWO,
        "4" => {}
        _ => return None,
    }
    let comparison = |word: &&str| COMPARISONS.iter().position(|known| known == word);
    let types = if name == "vset" {
        let found = words.flags.iter().find_map(comparison)?;
        imm |= (found as u64) << COMPARISON;
        let &[a, b] = words.types else { return None };
        [Type::U32, a, b]
    } else {
        <[Type; 3]>::try_from(words.types).ok()?
    };
    for (ty, bit) in types.iter().zip(SIGNED) {
        match ty {
            Type::S32 => imm |= bit,
            Type::U32 => {}
            _ => return None,
        }
    }
    for flag in words.flags {
        match *flag {
            "sat" => imm |= SAT,
            "add" => imm |= ADD,
            other if name == "vset" && comparison(&other).is_some() => {}
            _ => return None,
        }
    }
    Some(Simple::cold(run, [4, 4, 4, 4], imm))
}

fn run(a: u64, b: u64, c: u64, imm: u64) -> u64 {
    let bits = if imm & TWO != 0 { 16 } else { 8 };
    let part = |word: u64, at: u32, signed: bool| {
        let value = (word >> at & ((1 << bits) - 1)).cast_signed();
        if signed && value >> (bits - 1) != 0 {
            value - (1 << bits)
        } else {
            value
        }
    };
    let (low, high) = if imm & SIGNED[0] != 0 {
        (-(1i64 << (bits - 1)), (1i64 << (bits - 1)) - 1)
    } else {
        (0, (1i64 << bits) - 1)
    };
    let (mut word, mut sum) = (0, c as u32);
    for at in (0..32).step_by(bits) {
        let a = part(a, at, imm & SIGNED[1] != 0);
        let b = part(b, at, imm & SIGNED[2] != 0);
        let value = match imm & 0xff {
            0 => a + b,
            1 => a - b,
            // Rounded up, away from zero below it.
            2 => (a + b + i64::from(a + b >= 0)) >> 1,
            3 => (a - b).abs(),
            4 => a.min(b),
            5 => a.max(b),
            _ => i64::from(match imm >> COMPARISON & 7 {
                0 => a == b,
                1 => a != b,
                2 => a < b,
                3 => a <= b,
                4 => a > b,
                _ => a >= b,
            }),
        };
        let value = if imm & SAT != 0 {
            value.clamp(low, high)
        } else {
            value
        };
        let kept = value.cast_unsigned() & ((1 << bits) - 1);
        word |= kept << at;
        sum = sum.wrapping_add(part(kept, 0, imm & SIGNED[0] != 0) as u32);
    }
    if imm & ADD != 0 { sum.into() } else { word }
}
