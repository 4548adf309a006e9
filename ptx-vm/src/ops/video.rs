//! Video instructions: on words (`vadd`, `vmad`), and on their two or four parts (`vadd4`, `vabsdiff2`, `vset4`).
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

/// The operations on whole words.
const SCALARS: [&str; 9] = [
    "vadd", "vsub", "vabsdiff", "vmin", "vmax", "vset", "vshl", "vshr", "vmad",
];
/// What is done with the third operand: nothing, or one of these.
const SECOND: [&str; 3] = ["add", "min", "max"];
/// Where the number of that stands, and how far `vmad` shifts.
const SECOND_AT: u32 = 24;
const SHIFT_AT: u32 = 32;
/// Where the lowest bit of the destination's part stands, and its bits: 8, 16, or 0 for the whole word.
const PART_FIRST_AT: u32 = 40;
const PART_BITS_AT: u32 = 48;
/// Bit of `imm`: shifts by 32 and more are by nothing.
const WRAP: u64 = 1 << 28;

/// Whether a video instruction has a third operand that it cannot do without.
pub(crate) fn takes_three(words: &Words<'_>) -> bool {
    words.opcode == "vmad"
        || words.opcode.ends_with(['2', '4'])
        || words.flags.iter().any(|word| SECOND.contains(word))
}

/// The part of a word that a selector names, extended to a word.
pub(crate) fn part(first: u8, bits: u8, signed: bool) -> Simple {
    let imm = u64::from(first) << PART_FIRST_AT | u64::from(bits) << PART_BITS_AT;
    let sign = if signed { SIGNED[0] } else { 0 };
    Simple::cold(run_part, [4, 4, 0, 0], imm | sign)
}

fn run_part(word: u64, _: u64, _: u64, imm: u64) -> u64 {
    let (first, bits) = (imm >> PART_FIRST_AT & 31, imm >> PART_BITS_AT & 31);
    let top = (word << (64 - first - bits)).cast_signed();
    let value = if imm & SIGNED[0] != 0 {
        (top >> (64 - bits)).cast_unsigned()
    } else {
        top.cast_unsigned() >> (64 - bits)
    };
    value & 0xffff_ffff
}

/// Lets an operation on words write a part of its destination, whose other parts are the third operand's.
pub(crate) fn into_part(simple: &mut Simple, first: u8, bits: u8) {
    simple.imm |= u64::from(first) << PART_FIRST_AT | u64::from(bits) << PART_BITS_AT;
}

/// Whether the operands that a video instruction multiplies, adds or compares have signs.
pub(crate) fn signs(words: &Words<'_>) -> Option<[bool; 2]> {
    let [.., a, b] = words.types else { return None };
    Some([*a == Type::S32, *b == Type::S32])
}

/// The operation of a video instruction on words; operands a, b, c.
fn scalar(words: &Words<'_>) -> Option<Simple> {
    let number = SCALARS.iter().position(|known| *known == words.opcode)?;
    let mut imm = number as u64;
    let is_set = words.opcode == "vset";
    let is_shift = matches!(words.opcode, "vshl" | "vshr");
    let types = match words.types {
        &[a, b] if is_set => [Type::U32, a, b],
        types => <[Type; 3]>::try_from(types).ok().filter(|_| !is_set)?,
    };
    for (ty, bit) in types.iter().zip(SIGNED) {
        match ty {
            Type::S32 => imm |= bit,
            Type::U32 => {}
            _ => return None,
        }
    }
    for flag in words.flags {
        let second = SECOND.iter().position(|known| known == flag);
        let comparison = COMPARISONS.iter().position(|known| known == flag);
        imm |= match (*flag, second, comparison) {
            (_, Some(second), _) if words.opcode != "vmad" => (second as u64 + 1) << SECOND_AT,
            (_, _, Some(comparison)) if is_set => (comparison as u64) << COMPARISON,
            ("sat", ..) if !is_set => SAT,
            ("wrap", ..) if is_shift => WRAP,
            ("clamp", ..) if is_shift => 0,
            ("shr7", ..) if words.opcode == "vmad" => 7 << SHIFT_AT,
            ("shr15", ..) if words.opcode == "vmad" => 15 << SHIFT_AT,
            _ => return None,
        };
    }
    Some(Simple::cold(run_scalar, [4, 4, 4, 4], imm))
}

fn run_scalar(a: u64, b: u64, c: u64, imm: u64) -> u64 {
    let value = |word: u64, signed: bool| {
        if signed {
            i128::from(word as u32 as i32)
        } else {
            i128::from(word as u32)
        }
    };
    let [to, left, right] = SIGNED.map(|bit| imm & bit != 0);
    let (x, y) = (value(a, left), value(b, right));
    let by = if imm & WRAP != 0 {
        b & 31
    } else {
        (b & 0xffff_ffff).min(32)
    };
    // The product's range is that of what is multiplied.
    let is_product = imm & 0xff == 8;
    let signed = if is_product { left || right } else { to };
    let result = match imm & 0xff {
        0 => x + y,
        1 => x - y,
        2 => (x - y).abs(),
        3 => x.min(y),
        4 => x.max(y),
        5 => i128::from(compared(imm, x, y)),
        6 => x << by,
        7 => x >> by,
        _ => (x * y + value(c, signed)) >> (imm >> SHIFT_AT & 31),
    };
    let (first, part_bits) = (imm >> PART_FIRST_AT & 31, imm >> PART_BITS_AT & 31);
    let bits = if part_bits == 0 { 32 } else { part_bits };
    let result = match (imm & SAT != 0, signed) {
        (false, _) => result,
        (true, true) => result.clamp(-(1 << (bits - 1)), (1 << (bits - 1)) - 1),
        (true, false) => result.clamp(0, (1 << bits) - 1),
    };
    let result = value(result as u64, to);
    let result = match imm >> SECOND_AT & 3 {
        0 => result,
        1 => result + value(c, to),
        2 => result.min(value(c, to)),
        _ => result.max(value(c, to)),
    };
    let result = result as u64;
    if part_bits == 0 {
        return result & 0xffff_ffff;
    }
    let mask = ((1 << part_bits) - 1) << first;
    c & 0xffff_ffff & !mask | result << first & mask
}

fn compared<T: PartialOrd>(imm: u64, a: T, b: T) -> bool {
    match imm >> COMPARISON & 7 {
        0 => a == b,
        1 => a != b,
        2 => a < b,
        3 => a <= b,
        4 => a > b,
        _ => a >= b,
    }
}

/// The operation of a video instruction without the packed ones' masks and selectors; operands a, b, c.
pub(crate) fn find(words: &Words<'_>) -> Option<Simple> {
    if let Some(simple) = scalar(words) {
        return Some(simple);
    }
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
            _ => i64::from(compared(imm, a, b)),
        };
        let value = if imm & SAT != 0 {
            value.clamp(low, high)
        } else {
            value
        };
        let kept = value.cast_unsigned() & ((1 << bits) - 1);
        word |= kept << at;
        // As it is before it is cut off.
        sum = sum.wrapping_add(value as u32);
    }
    if imm & ADD != 0 { sum.into() } else { word }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What an instruction makes of three words.
    fn of(opcode: &str, flags: &[&str], types: &[Type], [a, b, c]: [u32; 3]) -> u32 {
        let words = Words {
            opcode,
            flags,
            types,
        };
        let simple = find(&words).unwrap();
        let super::super::simple::Body::Cold(f) = simple.body else {
            panic!("it runs lane by lane");
        };
        f(a.into(), b.into(), c.into(), simple.imm) as u32
    }

    /// Opcode, flags, types, operands, and what comes out.
    type Case = (
        &'static str,
        &'static [&'static str],
        &'static [Type],
        [u32; 3],
        u32,
    );

    #[test]
    fn words_are_clamped_shifted_and_combined_as_documented() {
        const S: Type = Type::S32;
        const U: Type = Type::U32;
        let most = u32::MAX;
        let cases: [Case; 14] = [
            ("vadd", &["sat"], &[U, U, U], [most, 5, 0], most),
            (
                "vadd",
                &["sat"],
                &[S, U, U],
                [0x7fff_fff0, 0x100, 0],
                0x7fff_ffff,
            ),
            ("vsub", &["sat"], &[U, S, S], [3, 5, 0], 0),
            ("vsub", &["sat", "add"], &[U, U, U], [9, 5, 7], 11),
            ("vadd", &["min"], &[U, U, U], [9, 5, 7], 7),
            ("vabsdiff", &["max"], &[S, S, S], [most, 5, most], 6),
            ("vmax", &["min"], &[S, S, S], [2, 5, most], most),
            ("vshl", &["sat", "clamp"], &[U, U, U], [3, 40, 0], most),
            ("vshl", &["sat", "wrap"], &[U, U, U], [3, 33, 0], 6),
            (
                "vshr",
                &["clamp", "add"],
                &[S, S, U],
                [0x8000_0000, 99, 1],
                0,
            ),
            ("vmad", &["shr7"], &[U, U, U], [0x100, 0x200, 0x80], 0x401),
            ("vmad", &["sat"], &[U, U, U], [most, most, 0], most),
            (
                "vmad",
                &["sat", "shr15"],
                &[S, S, S],
                [most, 0x10000, 0],
                most - 1,
            ),
            ("vset", &["lt", "add"], &[S, S], [most, 0, 41], 42),
        ];
        for (opcode, flags, types, operands, wanted) in cases {
            assert_eq!(
                of(opcode, flags, types, operands),
                wanted,
                "{opcode} {flags:?} {operands:?}"
            );
        }
    }
}
