//! Comparisons, whose result is a predicate.
//!
//! Chosen by `lower::compare` and others of `lower`. Must not know what the predicate guards.

use ptx::ast::Type;

use super::half;
use super::simple::{Simple, floats, ints, op};
use crate::segment::Tag;

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
    let found = match ty {
        Type::F16 | Type::Bf16 => half::compare(name, ty),
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
    };
    found.map(|simple| simple.tagged(Tag::comparison(name, ty)))
}
