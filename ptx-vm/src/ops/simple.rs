//! What an operation without side effects is to those that choose it: what runs it, and the widths of its operands.
//!
//! Families of instructions ([`super::integer`], [`super::float`] and their neighbours) give out such operations, each written as
//! one line of Rust on one lane ([`op!`]); [`super::pure`] makes loops of the line for every vector unit.
//!
//! Must not know which vector unit there is, nor where registers lie.

use ptx::ast::Type;

use super::pure::PureOp;
use crate::machine::ColdFn;
use crate::segment::Tag;

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

    /// The same, known to segments as `tag`.
    pub(crate) fn tagged(mut self, tag: Tag) -> Self {
        if let Body::Pure(_, own) = &mut self.body {
            *own = tag;
        }
        self
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
        impl $crate::ops::pure::Pure for Operation {
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
        $crate::ops::simple::Simple::pure($crate::ops::pure::PureOp::of::<Operation>(), $tag)
    }};
    ($($rest:tt)*) => { op!(@ $crate::segment::Tag::None; $($rest)*) };
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
pub(crate) use signed;

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
pub(crate) use ints;

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
pub(crate) use bits;

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
    ($ty:expr; $($line:tt)+) => { floats!($ty, $crate::segment::Tag::None, $crate::segment::Tag::None; $($line)+) };
}
pub(crate) use floats;

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
}
