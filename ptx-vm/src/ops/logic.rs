//! Instructions that look at bits only: logic, shifts, permutations, moves, and logic of predicates.
//!
//! Found by way of `ops::table`; most of `lower` moves and selects by it. Must not know what the bits stand for.

use ptx::ast::Type;

use super::cold;
use super::simple::{Simple, Words, bits, op, signed};
use crate::segment::Tag;

/// Logic of predicates.
pub(super) fn predicate(words: &Words<'_>) -> Option<Simple> {
    Some(match words.opcode {
        "and" => op!(@ Tag::AndPredicate; u8, u8 => u8; |a, b| a & b),
        "or" => op!(@ Tag::OrPredicate; u8, u8 => u8; |a, b| a | b),
        "xor" => op!(@ Tag::XorPredicate; u8, u8 => u8; |a, b| a ^ b),
        "not" => op!(@ Tag::NotPredicate; u8 => u8; |a| a ^ 1),
        "mov" => op!(@ Tag::MovNarrow; u8 => u8; |a| a),
        _ => return None,
    })
}

/// Whatever looks at bits only.
pub(super) fn logic(words: &Words<'_>, ty: Type) -> Option<Simple> {
    match (words.opcode, ty) {
        ("and", _) => match ty {
            Type::B32 => Some(op!(@ Tag::And32; u32, u32 => u32; |a, b| a & b)),
            Type::B64 => Some(op!(@ Tag::And64; u64, u64 => u64; |a, b| a & b)),
            _ => bits!(ty; T, T => T; |a, b| a & b),
        },
        ("or", _) => match ty {
            Type::B32 => Some(op!(@ Tag::Or32; u32, u32 => u32; |a, b| a | b)),
            Type::B64 => Some(op!(@ Tag::Or64; u64, u64 => u64; |a, b| a | b)),
            _ => bits!(ty; T, T => T; |a, b| a | b),
        },
        ("xor", _) => match ty {
            Type::B32 => Some(op!(@ Tag::Xor32; u32, u32 => u32; |a, b| a ^ b)),
            Type::B64 => Some(op!(@ Tag::Xor64; u64, u64 => u64; |a, b| a ^ b)),
            _ => bits!(ty; T, T => T; |a, b| a ^ b),
        },
        ("not", Type::B32) => Some(op!(@ Tag::Not32; u32 => u32; |a| !a)),
        ("not", _) => bits!(ty; T => T; |a| !a),
        ("cnot", _) => bits!(ty; T => T; |a| T::from(a == 0)),
        ("mov", _) => mov(ty.size() as u8),
        ("selp", _) => select(ty.size() as u8),
        ("shl", Type::B32) => {
            Some(op!(@ Tag::Shl32; u32, u32 => u32; |a, b| if b < 32 { a << b } else { 0 }))
        }
        ("shr", Type::S32) => Some(op!(@ Tag::ShrS32; i32, u32 => i32; |a, b| a >> b.min(31))),
        ("shr", Type::U32 | Type::B32) => {
            Some(op!(@ Tag::ShrU32; u32, u32 => u32; |a, b| if b < 32 { a >> b } else { 0 }))
        }
        ("shl", Type::B64) => {
            Some(op!(@ Tag::Shl64; u64, u32 => u64; |a, b| if b < 64 { a << b } else { 0 }))
        }
        ("shr", Type::U64 | Type::B64) => {
            Some(op!(@ Tag::ShrU64; u64, u32 => u64; |a, b| if b < 64 { a >> b } else { 0 }))
        }
        ("shl", _) => bits!(ty; T, u32 => T; |a, b| if b < T::BITS { a << b } else { 0 }),
        ("shr", Type::S16 | Type::S64) => {
            signed!(ty; T, u32 => T; |a, b| a >> b.min(T::BITS - 1))
        }
        ("shr", _) => bits!(ty; T, u32 => T; |a, b| if b < T::BITS { a >> b } else { 0 }),
        ("popc", _) => bits!(ty; T => u32; |a| a.count_ones()),
        ("clz", _) => bits!(ty; T => u32; |a| a.leading_zeros()),
        ("brev", _) => bits!(ty; T => T; |a| a.reverse_bits()),
        ("lop3", Type::B32) => Some(op!(@ Tag::Lop3; u32, u32, u32 => u32; |a, b, c, imm| {
            let mut result = 0;
            for term in 0..8u32 {
                let wanted = 0u32.wrapping_sub((imm >> term) as u32 & 1);
                let x = if term & 4 != 0 { a } else { !a };
                let y = if term & 2 != 0 { b } else { !b };
                let z = if term & 1 != 0 { c } else { !c };
                result |= x & y & z & wanted;
            }
            result
        })),
        ("shf", Type::B32) => Some(match (words.has("l"), words.has("wrap")) {
            (true, true) => op!(u32, u32, u32 => u32; |a, b, c| {
                ((u64::from(b) << 32 | u64::from(a)) << (c & 31) >> 32) as u32
            }),
            (true, false) => op!(u32, u32, u32 => u32; |a, b, c| {
                ((u64::from(b) << 32 | u64::from(a)) << c.min(32) >> 32) as u32
            }),
            (false, true) => op!(u32, u32, u32 => u32; |a, b, c| {
                ((u64::from(b) << 32 | u64::from(a)) >> (c & 31)) as u32
            }),
            (false, false) => op!(u32, u32, u32 => u32; |a, b, c| {
                ((u64::from(b) << 32 | u64::from(a)) >> c.min(32)) as u32
            }),
        }),
        ("bmsk", Type::B32) if words.has("wrap") => Some(op!(u32, u32 => u32; |a, b| {
            let (start, len) = (a & 31, b & 31);
            (((1u64 << len) - 1) << start) as u32
        })),
        ("bmsk", Type::B32) => Some(op!(u32, u32 => u32; |a, b| {
            let ones = (1u64 << b.min(32)) - 1;
            if a < 32 { (ones << a) as u32 } else { 0 }
        })),
        ("prmt", Type::B32) => {
            let mode = ["f4e", "b4e", "rc8", "ecl", "ecr", "rc16"];
            let mode = mode.iter().position(|mode| words.has(mode));
            match mode {
                None => Some(op!(u32, u32, u32 => u32; |a, b, c| {
                    let pool = u64::from(b) << 32 | u64::from(a);
                    let mut result = 0;
                    for byte in 0..4 {
                        let pick = c >> (4 * byte);
                        let value = (pool >> ((pick & 7) * 8)) as u8;
                        let sign = 0u8.wrapping_sub(value >> 7);
                        let value = if pick & 8 != 0 { sign } else { value };
                        result |= u32::from(value) << (8 * byte);
                    }
                    result
                })),
                Some(mode) => Some(Simple::cold(cold::permute, [4, 4, 4, 4], mode as u64)),
            }
        }
        ("fns", Type::B32) => Some(Simple::cold(cold::find_nth_set, [4, 4, 4, 4], 0)),
        _ => None,
    }
}

/// A copy of values of this width.
pub(crate) fn mov(width: u8) -> Option<Simple> {
    Some(match width {
        1 => op!(@ Tag::MovNarrow; u8 => u8; |a| a),
        2 => op!(@ Tag::MovNarrow; u16 => u16; |a| a),
        4 => op!(@ Tag::Mov32; u32 => u32; |a| a),
        8 => op!(@ Tag::Mov64; u64 => u64; |a| a),
        _ => return None,
    })
}

/// d = c ? a : b for values of this width.
pub(crate) fn select(width: u8) -> Option<Simple> {
    Some(match width {
        2 => op!(@ Tag::Select32; u16, u16, u8 => u16; |a, b, p| if p != 0 { a } else { b }),
        4 => op!(@ Tag::Select32; u32, u32, u8 => u32; |a, b, p| if p != 0 { a } else { b }),
        8 => op!(@ Tag::Select64; u64, u64, u8 => u64; |a, b, p| if p != 0 { a } else { b }),
        _ => return None,
    })
}

/// From `from` bytes to `to` bytes, with the sign or with zeroes.
pub(crate) fn resize(from: u8, to: u8, signed: bool) -> Option<Simple> {
    Some(match (from, to, signed) {
        (1, 4, _) => op!(@ Tag::MovNarrow; u8 => u32; |a| u32::from(a)),
        (2, 4, false) => op!(@ Tag::MovNarrow; u16 => u32; |a| u32::from(a)),
        (2, 4, true) => op!(i16 => i32; |a| i32::from(a)),
        (2, 8, false) => op!(u16 => u64; |a| u64::from(a)),
        (2, 8, true) => op!(i16 => i64; |a| i64::from(a)),
        (4, 8, false) => op!(@ Tag::WidenU32; u32 => u64; |a| u64::from(a)),
        (4, 8, true) => op!(@ Tag::WidenS32; i32 => i64; |a| i64::from(a)),
        (4, 2, _) => op!(@ Tag::Narrow16; u32 => u16; |a| a as u16),
        (8, 2, _) => op!(u64 => u16; |a| a as u16),
        (8, 4, _) => op!(@ Tag::Narrow; u64 => u32; |a| a as u32),
        (a, b, _) if a == b => return mov(a),
        _ => return None,
    })
}
