//! The arithmetic, logic and comparison instructions: which words mean which operation.
//!
//! Each entry is one line of Rust on one lane; [`super::pure`] makes loops of it for every vector unit.
//! Directed roundings and what nobody needs fast go lane by lane ([`super::cold`]).

use ptx::ast::Type;

use super::cold;
use super::float::{copysign, flush, flush64, max, max_nan, min, min_nan};
use super::pure::PureOp;
use crate::exec::machine::ColdFn;
use crate::exec::segment::Tag;

/// What an instruction without side effects becomes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Simple {
    pub(crate) body: Body,
    /// Widths of destination and operands in bytes; 0 where there is none.
    pub(crate) widths: [u8; 4],
    pub(crate) imm: u64,
}

/// How it runs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Body {
    Pure(PureOp, Tag),
    Cold(ColdFn),
}

impl Simple {
    pub(crate) fn pure(op: PureOp, tag: Tag) -> Self {
        Self {
            body: Body::Pure(op, tag),
            widths: op.widths,
            imm: 0,
        }
    }

    pub(crate) fn cold(f: ColdFn, widths: [u8; 4], imm: u64) -> Self {
        Self {
            body: Body::Cold(f),
            widths,
            imm,
        }
    }
}

/// One operation from a closure-like line: `op!(u32, u32 => u32; |a, b| a & b)`.
macro_rules! op {
    (@ $tag:expr; $A:ty => $D:ty; |$a:ident| $e:expr) => {
        op!(@impl $tag; 1; $A, u8, u8 => $D; |$a, _b, _c, _i| $e)
    };
    (@ $tag:expr; $A:ty, $B:ty => $D:ty; |$a:ident, $b:ident| $e:expr) => {
        op!(@impl $tag; 2; $A, $B, u8 => $D; |$a, $b, _c, _i| $e)
    };
    (@ $tag:expr; $A:ty, $B:ty, $C:ty => $D:ty; |$a:ident, $b:ident, $c:ident| $e:expr) => {
        op!(@impl $tag; 3; $A, $B, $C => $D; |$a, $b, $c, _i| $e)
    };
    (@ $tag:expr; $A:ty, $B:ty, $C:ty => $D:ty; |$a:ident, $b:ident, $c:ident, $i:ident| $e:expr) => {
        op!(@impl $tag; 3; $A, $B, $C => $D; |$a, $b, $c, $i| $e)
    };
    (@impl $tag:expr; $n:expr; $A:ty, $B:ty, $C:ty => $D:ty;
     |$a:ident, $b:ident, $c:ident, $i:ident| $e:expr) => {{
        struct Operation;
        impl $crate::exec::ops::pure::Pure for Operation {
            type A = $A;
            type B = $B;
            type C = $C;
            type D = $D;
            const ARITY: usize = $n;

            #[inline(always)]
            fn lane($a: $A, $b: $B, $c: $C, $i: u64) -> $D {
                $e
            }
        }
        $crate::exec::ops::table::Simple::pure($crate::exec::ops::pure::PureOp::of::<Operation>(), $tag)
    }};
    ($($rest:tt)*) => { op!(@ $crate::exec::segment::Tag::None; $($rest)*) };
}
pub(crate) use op;

/// The operation for each signed integer type, which the line calls `T`: `signed!(ty; T, T => T; |a, b|
/// a.min(b))`.
macro_rules! signed {
    ($ty:expr; $($line:tt)+) => {
        match $ty {
            Type::S16 => {
                type T = i16;
                Some(op!($($line)+))
            }
            Type::S32 => {
                type T = i32;
                Some(op!($($line)+))
            }
            Type::S64 => {
                type T = i64;
                Some(op!($($line)+))
            }
            _ => None,
        }
    };
}

/// [`signed!`] for all integers.
macro_rules! ints {
    ($ty:expr; $($line:tt)+) => {
        match $ty {
            Type::U16 => {
                type T = u16;
                Some(op!($($line)+))
            }
            Type::U32 => {
                type T = u32;
                Some(op!($($line)+))
            }
            Type::U64 => {
                type T = u64;
                Some(op!($($line)+))
            }
            Type::S16 => {
                type T = i16;
                Some(op!($($line)+))
            }
            Type::S32 => {
                type T = i32;
                Some(op!($($line)+))
            }
            Type::S64 => {
                type T = i64;
                Some(op!($($line)+))
            }
            _ => None,
        }
    };
}

/// [`signed!`] for integers where the sign means nothing.
macro_rules! bits {
    ($ty:expr; $($line:tt)+) => {
        match $ty {
            Type::B16 | Type::U16 | Type::S16 => {
                type T = u16;
                Some(op!($($line)+))
            }
            Type::B32 | Type::U32 | Type::S32 => {
                type T = u32;
                Some(op!($($line)+))
            }
            Type::B64 | Type::U64 | Type::S64 => {
                type T = u64;
                Some(op!($($line)+))
            }
            _ => None,
        }
    };
}

/// [`signed!`] for floats; a tag for each.
macro_rules! floats {
    ($ty:expr, $t32:expr, $t64:expr; $($line:tt)+) => {
        match $ty {
            Type::F32 => {
                type T = f32;
                Some(op!(@ $t32; $($line)+))
            }
            Type::F64 => {
                type T = f64;
                Some(op!(@ $t64; $($line)+))
            }
            _ => None,
        }
    };
    ($ty:expr; $($line:tt)+) => { floats!($ty, Tag::None, Tag::None; $($line)+) };
}

/// The words of an instruction, sorted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Words<'a> {
    pub(crate) opcode: &'a str,
    pub(crate) flags: &'a [&'a str],
    pub(crate) types: &'a [Type],
}

impl Words<'_> {
    pub(crate) fn has(&self, flag: &str) -> bool {
        self.flags.contains(&flag)
    }

    /// Whether all flags are among those.
    pub(crate) fn only(&self, allowed: &[&str]) -> bool {
        self.flags.iter().all(|flag| allowed.contains(flag))
    }

    /// A directed rounding, if one is asked for.
    pub(crate) fn directed(&self) -> Option<cold::Rounding> {
        self.flags
            .iter()
            .find_map(|flag| cold::Rounding::named(flag))
    }
}

/// The operation of an instruction; `None` if there is none. `.ftz` and `.sat` of floats are not looked
/// at but where noted: the caller flushes and clamps around it.
pub(crate) fn find(words: &Words<'_>) -> Option<Simple> {
    let &[ty] = words.types else {
        return mixed(words).or_else(|| super::video::find(words));
    };
    match ty {
        Type::F32 | Type::F64 => float(words, ty).or_else(|| logic(words, ty)),
        Type::F16 | Type::F16x2 | Type::Bf16 | Type::Bf16x2 => super::half::find(words, ty),
        Type::Pred => predicate(words),
        Type::S16x2 | Type::U16x2 => pairs(words, ty),
        _ => integer(words, ty).or_else(|| logic(words, ty)),
    }
}

/// Two integers of 16 bits in a word, each by itself.
fn pairs(words: &Words<'_>, ty: Type) -> Option<Simple> {
    fn each(a: u32, b: u32, f: impl Fn(u16, u16) -> u16) -> u32 {
        let low = f(a as u16, b as u16);
        let high = f((a >> 16) as u16, (b >> 16) as u16);
        u32::from(high) << 16 | u32::from(low)
    }
    fn signed(a: u32, b: u32, f: impl Fn(i16, i16) -> i16) -> u32 {
        each(a, b, |a, b| f(a as i16, b as i16) as u16)
    }
    Some(match (words.opcode, ty, words.has("relu")) {
        ("add", _, false) => op!(u32, u32 => u32; |a, b| each(a, b, u16::wrapping_add)),
        ("min", Type::U16x2, false) => op!(u32, u32 => u32; |a, b| each(a, b, u16::min)),
        ("max", Type::U16x2, false) => op!(u32, u32 => u32; |a, b| each(a, b, u16::max)),
        ("min", Type::S16x2, false) => op!(u32, u32 => u32; |a, b| signed(a, b, i16::min)),
        ("max", Type::S16x2, false) => op!(u32, u32 => u32; |a, b| signed(a, b, i16::max)),
        ("min", Type::S16x2, true) => {
            op!(u32, u32 => u32; |a, b| signed(a, b, |a, b| a.min(b).max(0)))
        }
        ("max", Type::S16x2, true) => {
            op!(u32, u32 => u32; |a, b| signed(a, b, |a, b| a.max(b).max(0)))
        }
        _ => return None,
    })
}

fn predicate(words: &Words<'_>) -> Option<Simple> {
    Some(match words.opcode {
        "and" => op!(u8, u8 => u8; |a, b| a & b),
        "or" => op!(u8, u8 => u8; |a, b| a | b),
        "xor" => op!(u8, u8 => u8; |a, b| a ^ b),
        "not" => op!(u8 => u8; |a| a ^ 1),
        "mov" => op!(u8 => u8; |a| a),
        _ => return None,
    })
}

/// Whatever looks at bits only.
fn logic(words: &Words<'_>, ty: Type) -> Option<Simple> {
    match (words.opcode, ty) {
        ("and", _) => match ty {
            Type::B32 => Some(op!(@ Tag::And32; u32, u32 => u32; |a, b| a & b)),
            _ => bits!(ty; T, T => T; |a, b| a & b),
        },
        ("or", _) => match ty {
            Type::B32 => Some(op!(@ Tag::Or32; u32, u32 => u32; |a, b| a | b)),
            _ => bits!(ty; T, T => T; |a, b| a | b),
        },
        ("xor", _) => match ty {
            Type::B32 => Some(op!(@ Tag::Xor32; u32, u32 => u32; |a, b| a ^ b)),
            _ => bits!(ty; T, T => T; |a, b| a ^ b),
        },
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
        ("shl", _) => bits!(ty; T, u32 => T; |a, b| if b < T::BITS { a << b } else { 0 }),
        ("shr", Type::S16 | Type::S64) => {
            signed!(ty; T, u32 => T; |a, b| a >> b.min(T::BITS - 1))
        }
        ("shr", _) => bits!(ty; T, u32 => T; |a, b| if b < T::BITS { a >> b } else { 0 }),
        ("popc", _) => bits!(ty; T => u32; |a| a.count_ones()),
        ("clz", _) => bits!(ty; T => u32; |a| a.leading_zeros()),
        ("brev", _) => bits!(ty; T => T; |a| a.reverse_bits()),
        ("lop3", Type::B32) => Some(op!(u32, u32, u32 => u32; |a, b, c, imm| {
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
        1 => op!(u8 => u8; |a| a),
        2 => op!(u16 => u16; |a| a),
        4 => op!(@ Tag::Mov32; u32 => u32; |a| a),
        8 => op!(@ Tag::Mov64; u64 => u64; |a| a),
        _ => return None,
    })
}

/// d = c ? a : b for values of this width.
pub(crate) fn select(width: u8) -> Option<Simple> {
    Some(match width {
        2 => op!(u16, u16, u8 => u16; |a, b, p| if p != 0 { a } else { b }),
        4 => op!(u32, u32, u8 => u32; |a, b, p| if p != 0 { a } else { b }),
        8 => op!(u64, u64, u8 => u64; |a, b, p| if p != 0 { a } else { b }),
        _ => return None,
    })
}

fn integer(words: &Words<'_>, ty: Type) -> Option<Simple> {
    let signed = matches!(ty, Type::S16 | Type::S32 | Type::S64);
    match words.opcode {
        "add" if words.has("sat") => Some(op!(i32, i32 => i32; |a, b| a.saturating_add(b))),
        "sub" if words.has("sat") => Some(op!(i32, i32 => i32; |a, b| a.saturating_sub(b))),
        "add" => match ty {
            Type::U32 | Type::S32 => {
                Some(op!(@ Tag::Add32; u32, u32 => u32; |a, b| a.wrapping_add(b)))
            }
            Type::U64 | Type::S64 => {
                Some(op!(@ Tag::Add64; u64, u64 => u64; |a, b| a.wrapping_add(b)))
            }
            _ => bits!(ty; T, T => T; |a, b| a.wrapping_add(b)),
        },
        "sub" => match ty {
            Type::U32 | Type::S32 => {
                Some(op!(@ Tag::Sub32; u32, u32 => u32; |a, b| a.wrapping_sub(b)))
            }
            _ => bits!(ty; T, T => T; |a, b| a.wrapping_sub(b)),
        },
        "mul" if words.has("wide") => match ty {
            Type::U16 => Some(op!(u16, u16 => u32; |a, b| u32::from(a) * u32::from(b))),
            Type::S16 => Some(op!(i16, i16 => i32; |a, b| i32::from(a) * i32::from(b))),
            Type::U32 => Some(op!(u32, u32 => u64; |a, b| u64::from(a) * u64::from(b))),
            Type::S32 => Some(op!(i32, i32 => i64; |a, b| i64::from(a) * i64::from(b))),
            _ => None,
        },
        "mul" if words.has("hi") => high(ty),
        "mul" if words.has("lo") => match ty {
            Type::U32 | Type::S32 => {
                Some(op!(@ Tag::Mul32; u32, u32 => u32; |a, b| a.wrapping_mul(b)))
            }
            _ => bits!(ty; T, T => T; |a, b| a.wrapping_mul(b)),
        },
        "mad" if words.has("wide") => match ty {
            Type::U16 => Some(op!(u16, u16, u32 => u32; |a, b, c| {
                (u32::from(a) * u32::from(b)).wrapping_add(c)
            })),
            Type::S16 => Some(op!(i16, i16, i32 => i32; |a, b, c| {
                (i32::from(a) * i32::from(b)).wrapping_add(c)
            })),
            Type::U32 => Some(op!(u32, u32, u64 => u64; |a, b, c| {
                (u64::from(a) * u64::from(b)).wrapping_add(c)
            })),
            Type::S32 => Some(op!(i32, i32, i64 => i64; |a, b, c| {
                (i64::from(a) * i64::from(b)).wrapping_add(c)
            })),
            _ => None,
        },
        "mad" if words.has("hi") && words.has("sat") => Some(op!(i32, i32, i32 => i32; |a, b, c| {
            (((i64::from(a) * i64::from(b)) >> 32) as i32).saturating_add(c)
        })),
        "mad" if words.has("hi") => high_add(ty),
        "mad" if words.has("lo") => match ty {
            Type::U32 | Type::S32 => Some(
                op!(@ Tag::Mad32; u32, u32, u32 => u32; |a, b, c| a.wrapping_mul(b).wrapping_add(c)),
            ),
            _ => bits!(ty; T, T, T => T; |a, b, c| a.wrapping_mul(b).wrapping_add(c)),
        },
        "mul24" => Some(match (words.has("hi"), signed) {
            (false, false) => op!(u32, u32 => u32; |a, b| low24(a).wrapping_mul(low24(b))),
            (false, true) => op!(u32, u32 => u32; |a, b| sign24(a).wrapping_mul(sign24(b)) as u32),
            (true, false) => op!(u32, u32 => u32; |a, b| {
                ((u64::from(low24(a)) * u64::from(low24(b))) >> 16) as u32
            }),
            (true, true) => op!(u32, u32 => u32; |a, b| {
                ((i64::from(sign24(a)) * i64::from(sign24(b))) >> 16) as u32
            }),
        }),
        "mad24" if !words.has("hi") => Some(if signed {
            op!(u32, u32, u32 => u32; |a, b, c| (sign24(a).wrapping_mul(sign24(b)) as u32).wrapping_add(c))
        } else {
            op!(u32, u32, u32 => u32; |a, b, c| low24(a).wrapping_mul(low24(b)).wrapping_add(c))
        }),
        "sad" => {
            ints!(ty; T, T, T => T; |a, b, c| c.wrapping_add(if a < b { b.wrapping_sub(a) } else { a.wrapping_sub(b) }))
        }
        // What a division by 0 gives is open; these give what the hardware does.
        "div" => ints!(ty; T, T => T; |a, b| if b == 0 { !0 } else { a.wrapping_div(b) }),
        "rem" => ints!(ty; T, T => T; |a, b| if b == 0 { a } else { a.wrapping_rem(b) }),
        "abs" => signed!(ty; T => T; |a| a.wrapping_abs()),
        "neg" => signed!(ty; T => T; |a| a.wrapping_neg()),
        "min" if words.has("relu") => Some(op!(i32, i32 => i32; |a, b| a.min(b).max(0))),
        "max" if words.has("relu") => Some(op!(i32, i32 => i32; |a, b| a.max(b).max(0))),
        "min" => ints!(ty; T, T => T; |a, b| a.min(b)),
        "max" => ints!(ty; T, T => T; |a, b| a.max(b)),
        "bfind" => {
            let shift = words.has("shiftamt");
            Some(match (ty, shift) {
                (Type::U32, false) => op!(u32 => u32; |a| 31u32.wrapping_sub(a.leading_zeros())),
                (Type::U32, true) => {
                    op!(u32 => u32; |a| if a == 0 { u32::MAX } else { a.leading_zeros() })
                }
                (Type::U64, false) => op!(u64 => u32; |a| 63u32.wrapping_sub(a.leading_zeros())),
                (Type::U64, true) => {
                    op!(u64 => u32; |a| if a == 0 { u32::MAX } else { a.leading_zeros() })
                }
                (Type::S32, _) => Simple::cold(
                    cold::find_top_signed,
                    [4, 4, 0, 0],
                    32 | u64::from(shift) << 8,
                ),
                (Type::S64, _) => Simple::cold(
                    cold::find_top_signed,
                    [4, 8, 0, 0],
                    64 | u64::from(shift) << 8,
                ),
                _ => return None,
            })
        }
        "bfe" => Some(match ty {
            Type::U32 => op!(u32, u32, u32 => u32; |a, b, c| {
                let (start, len) = (b & 0xff, c & 0xff);
                let field = if start < 32 { a >> start } else { 0 };
                if len < 32 { field & ((1 << len) - 1) } else { field }
            }),
            Type::U64 => op!(u64, u32, u32 => u64; |a, b, c| {
                let (start, len) = (b & 0xff, c & 0xff);
                let field = if start < 64 { a >> start } else { 0 };
                if len < 64 { field & ((1 << len) - 1) } else { field }
            }),
            Type::S32 => Simple::cold(cold::extract_signed, [4, 4, 4, 4], 32),
            Type::S64 => Simple::cold(cold::extract_signed, [8, 8, 4, 4], 64),
            _ => return None,
        }),
        "szext" => {
            let wrap = words.has("wrap");
            Some(match (ty, wrap) {
                (Type::S32, false) => {
                    op!(i32, u32 => i32; |a, b| if b == 0 { 0 } else if b >= 32 { a } else { a << (32 - b) >> (32 - b) })
                }
                (Type::S32, true) => {
                    op!(i32, u32 => i32; |a, b| { let n = b & 31; if n == 0 { 0 } else { a << (32 - n) >> (32 - n) } })
                }
                (Type::U32, false) => {
                    op!(u32, u32 => u32; |a, b| if b >= 32 { a } else { a & ((1 << b) - 1) })
                }
                (Type::U32, true) => op!(u32, u32 => u32; |a, b| a & ((1 << (b & 31)) - 1)),
                _ => return None,
            })
        }
        _ => None,
    }
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

#[inline(always)]
fn low24(a: u32) -> u32 {
    a & 0xff_ffff
}

#[inline(always)]
fn sign24(a: u32) -> i32 {
    (a << 8).cast_signed() >> 8
}

fn high(ty: Type) -> Option<Simple> {
    Some(match ty {
        Type::U16 => op!(u16, u16 => u16; |a, b| ((u32::from(a) * u32::from(b)) >> 16) as u16),
        Type::S16 => op!(i16, i16 => i16; |a, b| ((i32::from(a) * i32::from(b)) >> 16) as i16),
        Type::U32 => op!(u32, u32 => u32; |a, b| ((u64::from(a) * u64::from(b)) >> 32) as u32),
        Type::S32 => op!(i32, i32 => i32; |a, b| ((i64::from(a) * i64::from(b)) >> 32) as i32),
        Type::U64 => op!(u64, u64 => u64; |a, b| ((u128::from(a) * u128::from(b)) >> 64) as u64),
        Type::S64 => op!(i64, i64 => i64; |a, b| ((i128::from(a) * i128::from(b)) >> 64) as i64),
        _ => return None,
    })
}

fn high_add(ty: Type) -> Option<Simple> {
    Some(match ty {
        Type::U16 => op!(u16, u16, u16 => u16; |a, b, c| {
            (((u32::from(a) * u32::from(b)) >> 16) as u16).wrapping_add(c)
        }),
        Type::S16 => op!(i16, i16, i16 => i16; |a, b, c| {
            (((i32::from(a) * i32::from(b)) >> 16) as i16).wrapping_add(c)
        }),
        Type::U32 => op!(u32, u32, u32 => u32; |a, b, c| {
            (((u64::from(a) * u64::from(b)) >> 32) as u32).wrapping_add(c)
        }),
        Type::S32 => op!(i32, i32, i32 => i32; |a, b, c| {
            (((i64::from(a) * i64::from(b)) >> 32) as i32).wrapping_add(c)
        }),
        Type::U64 => op!(u64, u64, u64 => u64; |a, b, c| {
            (((u128::from(a) * u128::from(b)) >> 64) as u64).wrapping_add(c)
        }),
        Type::S64 => op!(i64, i64, i64 => i64; |a, b, c| {
            (((i128::from(a) * i128::from(b)) >> 64) as i64).wrapping_add(c)
        }),
        _ => return None,
    })
}

fn float(words: &Words<'_>, ty: Type) -> Option<Simple> {
    if let Some(rounding) = words.directed() {
        return cold::rounded(words.opcode, ty, rounding);
    }
    let ftz = words.has("ftz") && ty == Type::F32;
    match words.opcode {
        // These flush by themselves, and `rsqrt`.
        "add" if ftz => Some(op!(f32, f32 => f32; |a, b| flush(flush(a) + flush(b)))),
        "sub" if ftz => Some(op!(f32, f32 => f32; |a, b| flush(flush(a) - flush(b)))),
        "mul" if ftz => Some(op!(f32, f32 => f32; |a, b| flush(flush(a) * flush(b)))),
        "fma" | "mad" if ftz => {
            Some(op!(f32, f32, f32 => f32; |a, b, c| flush(flush(a).mul_add(flush(b), flush(c)))))
        }
        "add" => floats!(ty, Tag::AddF32, Tag::AddF64; T, T => T; |a, b| a + b),
        "sub" => floats!(ty, Tag::SubF32, Tag::SubF64; T, T => T; |a, b| a - b),
        "mul" => floats!(ty, Tag::MulF32, Tag::MulF64; T, T => T; |a, b| a * b),
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
        "rsqrt" if ty == Type::F32 => Some(super::float::rsqrt(ftz)),
        "rsqrt" => Some(op!(f64 => f64; |a| 1.0 / a.sqrt())),
        "sin" if ty == Type::F32 => Some(Simple::cold(cold::sin, [4, 4, 0, 0], 0)),
        "cos" if ty == Type::F32 => Some(Simple::cold(cold::cos, [4, 4, 0, 0], 0)),
        "tanh" if ty == Type::F32 => Some(Simple::cold(cold::tanh, [4, 4, 0, 0], 0)),
        "lg2" if ty == Type::F32 => Some(Simple::cold(cold::lg2, [4, 4, 0, 0], 0)),
        "ex2" if ty == Type::F32 => Some(super::float::ex2()),
        "neg" => match ty {
            Type::F32 => Some(op!(@ Tag::NegF32; f32 => f32; |a| -a)),
            _ => Some(op!(f64 => f64; |a| -a)),
        },
        "abs" => floats!(ty; T => T; |a| a.abs()),
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
        "min" => floats!(ty; T, T => T; |a, b| min(a, b)),
        "max" => floats!(ty; T, T => T; |a, b| max(a, b)),
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

/// Instructions that name two types.
fn mixed(words: &Words<'_>) -> Option<Simple> {
    match (words.opcode, words.types) {
        ("slct", &[ty, Type::S32]) => match ty.size() {
            2 => Some(op!(u16, u16, i32 => u16; |a, b, c| if c >= 0 { a } else { b })),
            4 => Some(op!(u32, u32, i32 => u32; |a, b, c| if c >= 0 { a } else { b })),
            8 => Some(op!(u64, u64, i32 => u64; |a, b, c| if c >= 0 { a } else { b })),
            _ => None,
        },
        ("slct", &[ty, Type::F32]) => match ty.size() {
            2 => Some(op!(u16, u16, f32 => u16; |a, b, c| if c >= 0.0 { a } else { b })),
            4 => Some(op!(u32, u32, f32 => u32; |a, b, c| if c >= 0.0 { a } else { b })),
            8 => Some(op!(u64, u64, f32 => u64; |a, b, c| if c >= 0.0 { a } else { b })),
            _ => None,
        },
        ("dp4a" | "dp2a", &[a, b]) => {
            let signs = u64::from(a == Type::S32) | u64::from(b == Type::S32) << 1;
            let high = u64::from(words.has("hi")) << 2;
            let f = if words.opcode == "dp4a" {
                cold::dot4
            } else {
                cold::dot2
            };
            Some(Simple::cold(f, [4, 4, 4, 4], signs | high))
        }
        _ => None,
    }
}

/// The comparison `name` of values of a type: a predicate.
pub(crate) fn compare(name: &str, ty: Type) -> Option<Simple> {
    macro_rules! comparisons {
        ($name:expr, $ty:expr, $by:ident) => {
            match $name {
                "eq" => $by!($ty; T, T => u8; |a, b| u8::from(a == b)),
                "ne" => $by!($ty; T, T => u8; |a, b| u8::from(a != b)),
                "lt" | "lo" => $by!($ty; T, T => u8; |a, b| u8::from(a < b)),
                "le" | "ls" => $by!($ty; T, T => u8; |a, b| u8::from(a <= b)),
                "gt" | "hi" => $by!($ty; T, T => u8; |a, b| u8::from(a > b)),
                "ge" | "hs" => $by!($ty; T, T => u8; |a, b| u8::from(a >= b)),
                _ => None,
            }
        };
    }
    match ty {
        Type::F16 | Type::Bf16 => super::half::compare(name, ty),
        Type::F32 | Type::F64 => match name {
            // On ordered values `!=` is false for a NaN.
            "ne" => floats!(ty; T, T => u8; |a, b| u8::from(a < b) | u8::from(a > b)),
            "equ" => floats!(ty; T, T => u8; |a, b| (u8::from(a < b) | u8::from(a > b)) ^ 1),
            "neu" => floats!(ty; T, T => u8; |a, b| u8::from(a != b)),
            "ltu" => floats!(ty; T, T => u8; |a, b| u8::from(a >= b) ^ 1),
            "leu" => floats!(ty; T, T => u8; |a, b| u8::from(a > b) ^ 1),
            "gtu" => floats!(ty; T, T => u8; |a, b| u8::from(a <= b) ^ 1),
            "geu" => floats!(ty; T, T => u8; |a, b| u8::from(a < b) ^ 1),
            "num" => floats!(ty; T, T => u8; |a, b| u8::from(!a.is_nan()) & u8::from(!b.is_nan())),
            "nan" => floats!(ty; T, T => u8; |a, b| u8::from(a.is_nan()) | u8::from(b.is_nan())),
            _ => comparisons!(name, ty, floats),
        },
        Type::B16 => comparisons!(name, Type::U16, ints),
        Type::B32 => comparisons!(name, Type::U32, ints),
        Type::B64 => comparisons!(name, Type::U64, ints),
        _ => comparisons!(name, ty, ints),
    }
}

/// From `from` bytes to `to` bytes, with the sign or with zeroes.
pub(crate) fn resize(from: u8, to: u8, signed: bool) -> Option<Simple> {
    Some(match (from, to, signed) {
        (1, 4, _) => op!(u8 => u32; |a| u32::from(a)),
        (2, 4, false) => op!(u16 => u32; |a| u32::from(a)),
        (2, 4, true) => op!(i16 => i32; |a| i32::from(a)),
        (2, 8, false) => op!(u16 => u64; |a| u64::from(a)),
        (2, 8, true) => op!(i16 => i64; |a| i64::from(a)),
        (4, 8, false) => op!(u32 => u64; |a| u64::from(a)),
        (4, 8, true) => op!(i32 => i64; |a| i64::from(a)),
        (4, 2, _) => op!(u32 => u16; |a| a as u16),
        (8, 2, _) => op!(u64 => u16; |a| a as u16),
        (8, 4, _) => op!(u64 => u32; |a| a as u32),
        (a, b, _) if a == b => return mov(a),
        _ => return None,
    })
}

/// Helpers for packing and for carry chains, which no instruction is by itself.
pub(crate) mod parts {
    use super::*;

    /// Two 32-bit halves to 64 bits.
    pub(crate) fn pack64() -> Simple {
        op!(u32, u32 => u64; |low, high| u64::from(high) << 32 | u64::from(low))
    }

    /// The upper half of 64 bits.
    pub(crate) fn high64() -> Simple {
        op!(u64 => u32; |a| (a >> 32) as u32)
    }

    /// Two 16-bit halves to 32 bits.
    pub(crate) fn pack32() -> Simple {
        op!(u16, u16 => u32; |low, high| u32::from(high) << 16 | u32::from(low))
    }

    /// Two bytes, the low ones of 16-bit registers, to 16 bits.
    pub(crate) fn pack16() -> Simple {
        op!(u16, u16 => u16; |low, high| high << 8 | low & 0xff)
    }

    /// The lower and upper byte of 16 bits.
    pub(crate) fn low16() -> Simple {
        op!(u16 => u16; |a| a & 0xff)
    }

    /// See [`low16`].
    pub(crate) fn high16() -> Simple {
        op!(u16 => u16; |a| a >> 8)
    }

    /// The upper half of 32 bits.
    pub(crate) fn high32() -> Simple {
        op!(u32 => u16; |a| (a >> 16) as u16)
    }

    /// Start and length of a bit field as one operand.
    pub(crate) fn field() -> Simple {
        op!(u32, u32 => u32; |start, len| start & 0xff | (len & 0xff) << 8)
    }

    /// Inserts `a` into `b` at a [`field`].
    pub(crate) fn insert(wide: bool) -> Simple {
        if wide {
            op!(u64, u64, u32 => u64; |a, b, f| {
                let (start, len) = (f & 0xff, f >> 8 & 0xff);
                let ones = if len < 64 { (1u64 << len) - 1 } else { u64::MAX };
                if start < 64 { b & !(ones << start) | (a & ones) << start } else { b }
            })
        } else {
            op!(u32, u32, u32 => u32; |a, b, f| {
                let (start, len) = (f & 0xff, f >> 8 & 0xff);
                let ones = if len < 32 { (1u32 << len) - 1 } else { u32::MAX };
                if start < 32 { b & !(ones << start) | (a & ones) << start } else { b }
            })
        }
    }

    /// a + b + carry, or a - b - 1 + carry: the flag after a subtraction says that nothing was borrowed, so
    /// that one chain may go on with the other's instructions (the compiler's 128-bit division does).
    pub(crate) fn with_carry(wide: bool, subtract: bool) -> Simple {
        match (wide, subtract) {
            (false, false) => {
                op!(u32, u32, u8 => u32; |a, b, c| a.wrapping_add(b).wrapping_add(c.into()))
            }
            (false, true) => {
                op!(u32, u32, u8 => u32; |a, b, c| a.wrapping_add(!b).wrapping_add(c.into()))
            }
            (true, false) => {
                op!(u64, u64, u8 => u64; |a, b, c| a.wrapping_add(b).wrapping_add(c.into()))
            }
            (true, true) => {
                op!(u64, u64, u8 => u64; |a, b, c| a.wrapping_add(!b).wrapping_add(c.into()))
            }
        }
    }

    /// The flag that leaves.
    pub(crate) fn carry(wide: bool, subtract: bool) -> Simple {
        match (wide, subtract) {
            (false, false) => op!(u32, u32, u8 => u8; |a, b, c| {
                u8::from(u64::from(a) + u64::from(b) + u64::from(c) > u64::from(u32::MAX))
            }),
            (false, true) => op!(u32, u32, u8 => u8; |a, b, c| {
                u8::from(u64::from(a) + u64::from(!b) + u64::from(c) > u64::from(u32::MAX))
            }),
            (true, false) => op!(u64, u64, u8 => u8; |a, b, c| {
                let (sum, first) = a.overflowing_add(b);
                u8::from(first) | u8::from(sum.overflowing_add(c.into()).1)
            }),
            (true, true) => op!(u64, u64, u8 => u8; |a, b, c| {
                let (sum, first) = a.overflowing_add(!b);
                u8::from(first) | u8::from(sum.overflowing_add(c.into()).1)
            }),
        }
    }

    /// An `f32` with subnormals made 0.
    pub(crate) fn flushed() -> Simple {
        op!(f32 => f32; |a| flush(a))
    }

    /// An `f32` or `f64` between 0 and 1; a NaN gives 0.
    pub(crate) fn saturated(wide: bool) -> Simple {
        if wide {
            op!(f64 => f64; |a| if a > 0.0 { if a < 1.0 { a } else { 1.0 } } else { 0.0 })
        } else {
            op!(f32 => f32; |a| if a > 0.0 { if a < 1.0 { a } else { 1.0 } } else { 0.0 })
        }
    }

    /// A predicate as all ones or 0 (`set` to integers), or as 1.0 or 0.0.
    pub(crate) fn widened(float: bool, wide: bool) -> Simple {
        match (float, wide) {
            (true, _) => op!(u8 => f32; |p| if p != 0 { 1.0 } else { 0.0 }),
            (false, false) => op!(u8 => u32; |p| if p != 0 { u32::MAX } else { 0 }),
            (false, true) => op!(u8 => u64; |p| if p != 0 { u64::MAX } else { 0 }),
        }
    }

    /// a + b for addresses; a - b.
    pub(crate) fn offset64(subtract: bool) -> Simple {
        if subtract {
            op!(u64, u64 => u64; |a, b| a.wrapping_sub(b))
        } else {
            op!(@ Tag::Add64; u64, u64 => u64; |a, b| a.wrapping_add(b))
        }
    }

    /// Whether `a` lies in the window of `SPAN` bytes at `b`.
    pub(crate) fn in_window() -> Simple {
        op!(u64, u64 => u8; |a, b| u8::from(a.wrapping_sub(b) < crate::exec::spaces::WINDOW))
    }
}
