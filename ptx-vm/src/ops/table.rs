//! Which words of an instruction mean which operation: the families' answers, put together.
//!
//! Lowering asks here. A family knows its own instructions and none of the others.
//!
//! It must not know an instruction by itself, nor what reads the operands.

use ptx::ast::Type;

use super::float::float;
use super::integer::{integer, pairs};
use super::logic::{logic, predicate};
use super::simple::{Simple, Words, op};
use super::{cold, half, video};

/// The operation of an instruction; `None` if there is none. `.ftz` and `.sat` of floats are not looked
/// at but where noted: the caller flushes and clamps around it.
pub(crate) fn find(words: &Words<'_>) -> Option<Simple> {
    let &[ty] = words.types else {
        return mixed(words).or_else(|| video::find(words));
    };
    match ty {
        Type::F32 | Type::F64 => float(words, ty).or_else(|| logic(words, ty)),
        Type::F16 | Type::F16x2 | Type::Bf16 | Type::Bf16x2 => half::find(words, ty),
        Type::Pred => predicate(words),
        Type::S16x2 | Type::U16x2 => pairs(words, ty),
        _ => integer(words, ty).or_else(|| logic(words, ty)),
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
