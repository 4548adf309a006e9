//! Each instruction by itself, on edge values and noise, against one line of Rust that says what PTX's
//! manual says; on every vector unit, with and without machine code.

use ptx_vm::{Isa, Options};

use crate::gpu::{Args, Gpu};

/// What is expected of a result.
pub enum Want {
    /// These bits.
    Bits(fn(u64, u64, u64) -> u64),
    /// An `f32` within a relative error of the exact value (`f64`), or both NaN, or within 1e-37 of each
    /// other where they are subnormal.
    Near(f64, fn(f64, f64, f64) -> f64),
    /// An `f32` within an absolute error, for operands up to 100.
    Around(f64, fn(f64, f64, f64) -> f64),
}
use Want::{Around, Bits, Near};

/// One instruction: its text with `%d`, `%a`, `%b`, `%c` for registers; the width in bytes of each.
pub struct Case {
    text: &'static str,
    widths: [u8; 4],
    want: Want,
}

pub fn case(text: &'static str, widths: [u8; 4], want: Want) -> Case {
    Case { text, widths, want }
}

pub fn f(bits: u64) -> f32 {
    f32::from_bits(bits as u32)
}

fn g(bits: u64) -> f64 {
    f64::from_bits(bits)
}

pub fn wf(value: f32) -> u64 {
    // All NaNs are one.
    if value.is_nan() {
        0x7fff_ffff
    } else {
        value.to_bits().into()
    }
}

fn wg(value: f64) -> u64 {
    if value.is_nan() {
        0x7fff_ffff_ffff_ffff
    } else {
        value.to_bits()
    }
}

pub fn s(bits: u64) -> i32 {
    bits as i32
}

fn u(bits: u64) -> u32 {
    bits as u32
}

fn w(value: i32) -> u64 {
    u64::from(value as u32)
}

fn l(bits: u64) -> i64 {
    bits as i64
}

/// Both halves by themselves, as signed numbers.
fn halves(a: u64, b: u64, f: impl Fn(i16, i16) -> i16) -> u64 {
    let half = |shift| u64::from(f((a >> shift) as i16, (b >> shift) as i16) as u16) << shift;
    half(0) | half(16)
}

pub const S: [u8; 4] = [4, 4, 4, 4];
pub const D: [u8; 4] = [8, 8, 8, 8];
pub const H: [u8; 4] = [2, 2, 2, 2];

#[rustfmt::skip]
fn integer_cases() -> Vec<Case> {
    vec![
        case("add.s32 %d, %a, %b;", S, Bits(|a, b, _| w(s(a).wrapping_add(s(b))))),
        case("add.s16x2 %d, %a, %b;", S, Bits(|a, b, _| halves(a, b, i16::wrapping_add))),
        case("min.s16x2 %d, %a, %b;", S, Bits(|a, b, _| halves(a, b, i16::min))),
        case("max.s16x2 %d, %a, %b;", S, Bits(|a, b, _| halves(a, b, i16::max))),
        case("max.s16x2.relu %d, %a, %b;", S, Bits(|a, b, _| halves(a, b, |a, b| a.max(b).max(0)))),
        case("min.u16x2 %d, %a, %b;", S, Bits(|a, b, _| halves(a, b, |a, b| (a as u16).min(b as u16) as i16))),
        case("max.u16x2 %d, %a, %b;", S, Bits(|a, b, _| halves(a, b, |a, b| (a as u16).max(b as u16) as i16))),
        case("add.u64 %d, %a, %b;", D, Bits(|a, b, _| a.wrapping_add(b))),
        case("add.s16 %d, %a, %b;", H, Bits(|a, b, _| a.wrapping_add(b) & 0xffff)),
        case("add.sat.s32 %d, %a, %b;", S, Bits(|a, b, _| w(s(a).saturating_add(s(b))))),
        case("sub.s32 %d, %a, %b;", S, Bits(|a, b, _| w(s(a).wrapping_sub(s(b))))),
        case("sub.u64 %d, %a, %b;", D, Bits(|a, b, _| a.wrapping_sub(b))),
        case("sub.sat.s32 %d, %a, %b;", S, Bits(|a, b, _| w(s(a).saturating_sub(s(b))))),
        case("mul.lo.s32 %d, %a, %b;", S, Bits(|a, b, _| w(s(a).wrapping_mul(s(b))))),
        case("mul.lo.u64 %d, %a, %b;", D, Bits(|a, b, _| a.wrapping_mul(b))),
        case("mul.lo.s16 %d, %a, %b;", H, Bits(|a, b, _| a.wrapping_mul(b) & 0xffff)),
        case("mul.hi.u32 %d, %a, %b;", S, Bits(|a, b, _| a * b >> 32)),
        case("mul.hi.s32 %d, %a, %b;", S, Bits(|a, b, _| w((i64::from(s(a)) * i64::from(s(b)) >> 32) as i32))),
        case("mul.hi.u64 %d, %a, %b;", D, Bits(|a, b, _| (u128::from(a) * u128::from(b) >> 64) as u64)),
        case("mul.hi.s64 %d, %a, %b;", D, Bits(|a, b, _| (i128::from(l(a)) * i128::from(l(b)) >> 64) as u64)),
        case("mul.wide.u32 %d, %a, %b;", [8, 4, 4, 4], Bits(|a, b, _| a * b)),
        case("mul.wide.s32 %d, %a, %b;", [8, 4, 4, 4], Bits(|a, b, _| (i64::from(s(a)) * i64::from(s(b))) as u64)),
        case("mul.wide.u16 %d, %a, %b;", [4, 2, 2, 2], Bits(|a, b, _| a * b)),
        case("mul.wide.s16 %d, %a, %b;", [4, 2, 2, 2], Bits(|a, b, _| w(i32::from(a as i16) * i32::from(b as i16)))),
        case("mul24.lo.s32 %d, %a, %b;", S, Bits(|a, b, _| w((s(a) << 8 >> 8).wrapping_mul(s(b) << 8 >> 8)))),
        case("mad.lo.s32 %d, %a, %b, %c;", S, Bits(|a, b, c| w(s(a).wrapping_mul(s(b)).wrapping_add(s(c))))),
        case("mad.lo.u64 %d, %a, %b, %c;", D, Bits(|a, b, c| a.wrapping_mul(b).wrapping_add(c))),
        case("mad.hi.u32 %d, %a, %b, %c;", S, Bits(|a, b, c| u64::from(((a * b >> 32) as u32).wrapping_add(u(c))))),
        case("mad.wide.u32 %d, %a, %b, %c;", [8, 4, 4, 8], Bits(|a, b, c| (a * b).wrapping_add(c))),
        case("mad.wide.s32 %d, %a, %b, %c;", [8, 4, 4, 8], Bits(|a, b, c| (i64::from(s(a)) * i64::from(s(b))).wrapping_add(l(c)) as u64)),
        case("sad.s32 %d, %a, %b, %c;", S, Bits(|a, b, c| u64::from(s(a).abs_diff(s(b)).wrapping_add(u(c))))),
        case("sad.u32 %d, %a, %b, %c;", S, Bits(|a, b, c| u64::from(u(a).abs_diff(u(b)).wrapping_add(u(c))))),
        case("div.s32 %d, %a, %b;", S, Bits(|a, b, _| if s(b) == 0 { 0xffff_ffff } else { w(s(a).wrapping_div(s(b))) })),
        case("div.u32 %d, %a, %b;", S, Bits(|a, b, _| a.checked_div(b).unwrap_or(0xffff_ffff))),
        case("div.u16 %d, %a, %b;", H, Bits(|a, b, _| a.checked_div(b).unwrap_or(0xffff))),
        case("div.s64 %d, %a, %b;", D, Bits(|a, b, _| if b == 0 { u64::MAX } else { l(a).wrapping_div(l(b)) as u64 })),
        case("rem.s32 %d, %a, %b;", S, Bits(|a, b, _| if s(b) == 0 { a } else { w(s(a).wrapping_rem(s(b))) })),
        case("rem.u64 %d, %a, %b;", D, Bits(|a, b, _| a.checked_rem(b).unwrap_or(a))),
        case("abs.s32 %d, %a;", S, Bits(|a, _, _| w(s(a).wrapping_abs()))),
        case("neg.s64 %d, %a;", D, Bits(|a, _, _| a.wrapping_neg())),
        case("min.s32 %d, %a, %b;", S, Bits(|a, b, _| w(s(a).min(s(b))))),
        case("max.u64 %d, %a, %b;", D, Bits(|a, b, _| a.max(b))),
        case("max.s16 %d, %a, %b;", H, Bits(|a, b, _| (a as i16).max(b as i16) as u16 as u64)),
        case("popc.b32 %d, %a;", S, Bits(|a, _, _| a.count_ones().into())),
        case("popc.b64 %d, %a;", [4, 8, 8, 8], Bits(|a, _, _| a.count_ones().into())),
        case("clz.b32 %d, %a;", S, Bits(|a, _, _| u(a).leading_zeros().into())),
        case("clz.b64 %d, %a;", [4, 8, 8, 8], Bits(|a, _, _| a.leading_zeros().into())),
        case("brev.b32 %d, %a;", S, Bits(|a, _, _| u(a).reverse_bits().into())),
        case("brev.b64 %d, %a;", D, Bits(|a, _, _| a.reverse_bits())),
        case("bfind.u32 %d, %a;", S, Bits(|a, _, _| if a == 0 { 0xffff_ffff } else { u(a).ilog2().into() })),
        case("bfind.shiftamt.u32 %d, %a;", S, Bits(|a, _, _| if a == 0 { 0xffff_ffff } else { u(a).leading_zeros().into() })),
        case("bfind.s32 %d, %a;", S, Bits(|a, _, _| { let v = u(a) ^ (s(a) >> 31) as u32; if v == 0 { 0xffff_ffff } else { v.ilog2().into() } })),
        case("bfind.u64 %d, %a;", [4, 8, 8, 8], Bits(|a, _, _| if a == 0 { 0xffff_ffff } else { a.ilog2().into() })),
        case("bfe.u32 %d, %a, %b, %c;", S, Bits(|a, b, c| { let (p, n) = (b & 255, c & 255); let v = if p < 32 { a >> p } else { 0 }; if n < 32 { v & ((1 << n) - 1) } else { v } })),
        case("bfe.s32 %d, %a, %b, %c;", S, Bits(|a, b, c| bfe(i64::from(s(a)), b, c, 31) & 0xffff_ffff)),
        case("bfe.s64 %d, %a, %b, %c;", [8, 8, 4, 4], Bits(|a, b, c| bfe(l(a), b, c, 63))),
        case("bfi.b32 %d, %a, %b, %c, 7;", S, Bits(|a, b, c| { let p = c & 255; (0..7).fold(b, |v, i| if p + i < 32 { v & !(1 << (p + i)) | (a >> i & 1) << (p + i) } else { v }) })),
        case("bfi.b64 %d, %a, %b, %c, 40;", [8, 8, 8, 4], Bits(|a, b, c| { let p = c & 255; (0..40).fold(b, |v, i| if p + i < 64 { v & !(1 << (p + i)) | (a >> i & 1) << (p + i) } else { v }) })),
        case("bmsk.clamp.b32 %d, %a, %b;", S, Bits(|a, b, _| (0..u64::from(u(b)).min(32)).fold(0, |v, i| if a + i < 32 { v | 1 << (a + i) } else { v }))),
        case("szext.clamp.s32 %d, %a, %b;", S, Bits(|a, b, _| { let n = u(b).min(32); if n == 0 { 0 } else { w(s(a) << (32 - n) >> (32 - n)) } })),
        case("shl.b32 %d, %a, %b;", S, Bits(|a, b, _| if b < 32 { a << b & 0xffff_ffff } else { 0 })),
        case("shl.b64 %d, %a, %b;", [8, 8, 4, 4], Bits(|a, b, _| if b < 64 { a << b } else { 0 })),
        case("shl.b16 %d, %a, %b;", [2, 2, 4, 4], Bits(|a, b, _| if b < 16 { a << b & 0xffff } else { 0 })),
        case("shr.u32 %d, %a, %b;", S, Bits(|a, b, _| if b < 32 { a >> b } else { 0 })),
        case("shr.s32 %d, %a, %b;", S, Bits(|a, b, _| w(s(a) >> b.min(31)))),
        case("shr.s64 %d, %a, %b;", [8, 8, 4, 4], Bits(|a, b, _| (l(a) >> b.min(63)) as u64)),
        case("shr.s16 %d, %a, %b;", [2, 2, 4, 4], Bits(|a, b, _| (a as i16 >> b.min(15)) as u16 as u64)),
        case("shf.l.wrap.b32 %d, %a, %b, %c;", S, Bits(|a, b, c| ((b << 32 | a) << (c & 31)) >> 32)),
        case("shf.r.clamp.b32 %d, %a, %b, %c;", S, Bits(|a, b, c| (b << 32 | a) >> c.min(32) & 0xffff_ffff)),
        case("lop3.b32 %d, %a, %b, %c, 0xca;", S, Bits(|a, b, c| a & b | !a & c & 0xffff_ffff)),
        case("prmt.b32 %d, %a, %b, %c;", S, Bits(|a, b, c| { let p = (b << 32 | a).to_le_bytes(); (0..4).fold(0, |v, i| { let k = c >> (4 * i) & 15; let x = p[(k & 7) as usize]; let x = if k & 8 != 0 { if x >= 128 { 255 } else { 0 } } else { x }; v | u64::from(x) << (8 * i) }) })),
        case("and.b32 %d, %a, %b;", S, Bits(|a, b, _| a & b)),
        case("or.b64 %d, %a, %b;", D, Bits(|a, b, _| a | b)),
        case("xor.b16 %d, %a, %b;", H, Bits(|a, b, _| a ^ b)),
        case("not.b32 %d, %a;", S, Bits(|a, _, _| !a & 0xffff_ffff)),
        case("cnot.b32 %d, %a;", S, Bits(|a, _, _| u64::from(a == 0))),
        case("dp4a.s32.s32 %d, %a, %b, %c;", S, Bits(|a, b, c| w((0..4).fold(s(c), |v, i| v.wrapping_add(i32::from((a >> (8 * i)) as i8) * i32::from((b >> (8 * i)) as i8)))))),
        case("dp4a.u32.u32 %d, %a, %b, %c;", S, Bits(|a, b, c| (0..4).fold(c, |v, i| v + (a >> (8 * i) & 255) * (b >> (8 * i) & 255)) & 0xffff_ffff)),
        case("{ add.cc.u32 %d, %a, %b; addc.u32 %d, %c, 0; }", S, Bits(|a, b, c| (c + (a + b >> 32)) & 0xffff_ffff)),
        case("{ sub.cc.u32 %d, %a, %b; subc.u32 %d, %c, 0; }", S, Bits(|a, b, c| c.wrapping_sub(u64::from(a < b)) & 0xffff_ffff)),
        case("{ sub.cc.u32 %d, %a, %b; addc.u32 %d, 0, 0; }", S, Bits(|a, b, _| u64::from(a >= b))),
        case("{ add.cc.u32 %d, %a, %b; subc.u32 %d, %c, 0; }", S, Bits(|a, b, c| c.wrapping_sub(1).wrapping_add(a + b >> 32) & 0xffff_ffff)),
        case("{ sub.cc.s64 %d, %a, %b; subc.cc.s64 %d, %c, %a; addc.s64 %d, 0, 0; }", D, Bits(|a, b, c| u64::from(u128::from(c) >= u128::from(a) + u128::from(a < b)))),
        case("vabsdiff4.u32.u32.u32.add %d, %a, %b, %c;", S, Bits(|a, b, c| (0..4).fold(c, |v, i| v + (a >> (8 * i) & 255).abs_diff(b >> (8 * i) & 255)) & 0xffff_ffff)),
        case("vadd2.s32.s32.s32.sat %d, %a, %b, %c;", S, Bits(|a, b, _| (0..2).fold(0, |v, i| v | u64::from(((a >> (16 * i)) as i16).saturating_add((b >> (16 * i)) as i16) as u16) << (16 * i)))),
        case("vset4.u32.u32.lt %d, %a, %b, %c;", S, Bits(|a, b, _| (0..4).fold(0, |v, i| v | u64::from((a >> (8 * i)) as u8 <= ((b >> (8 * i)) as u8).wrapping_sub(1) && (b >> (8 * i)) as u8 != 0) << (8 * i)))),
        case("{ mad.lo.cc.u32 %d, %a, %b, %c; madc.hi.u32 %d, %a, %b, 0; }", S, Bits(|a, b, c| ((a * b >> 32) + (((a * b & 0xffff_ffff) + c) >> 32)) & 0xffff_ffff)),
        case("{ .reg .pred p, q; setp.lt.s32 p|q, %a, %b; selp.b32 %d, %a, %b, q; }", S, Bits(|a, b, _| if s(a) < s(b) { b } else { a })),
        case("{ .reg .pred p; setp.hi.or.u32 p, %a, %b, 0; @p mov.u32 %d, 5; @!p mov.u32 %d, 6; }", S, Bits(|a, b, _| if a > b { 5 } else { 6 })),
        case("set.ge.u32.s32 %d, %a, %b;", S, Bits(|a, b, _| if s(a) >= s(b) { 0xffff_ffff } else { 0 })),
        case("slct.b32.s32 %d, %a, %b, %c;", S, Bits(|a, b, c| if s(c) >= 0 { a } else { b })),
        case("mov.b64 %d, {%a, %b};", [8, 4, 4, 4], Bits(|a, b, _| b << 32 | a)),
        case("{ .reg .b32 t; mov.b64 {t, %d}, %a; }", [4, 8, 8, 8], Bits(|a, _, _| a >> 32)),
    ]
}

fn bfe(a: i64, b: u64, c: u64, msb: u64) -> u64 {
    let (start, len) = (b & 255, c & 255);
    let sign = if len == 0 {
        0
    } else {
        a >> (start + len - 1).min(msb) & 1
    };
    (0..=msb).fold(0, |v, i| {
        let bit = if i < len && start + i <= msb {
            a >> (start + i) & 1
        } else {
            sign
        };
        v | (bit as u64) << i
    })
}

/// A value as it is rounded to `f32` toward zero, down or up.
fn toward(exact: f64, down: bool, up: bool) -> f32 {
    let near = exact as f32;
    let back = f64::from(near);
    let too_high = back > exact;
    let too_low = back < exact;
    let toward_zero = !down && !up;
    if too_high && (down || toward_zero && exact > 0.0) {
        near.next_down()
    } else if too_low && (up || toward_zero && exact < 0.0) {
        near.next_up()
    } else {
        near
    }
}

fn flush(x: f32) -> f32 {
    if x.is_subnormal() {
        0f32.copysign(x)
    } else {
        x
    }
}

fn minimum(a: f32, b: f32) -> f32 {
    match (a.is_nan(), b.is_nan()) {
        (true, _) => b,
        (_, true) => a,
        _ if a == b => {
            if a.is_sign_negative() {
                a
            } else {
                b
            }
        }
        _ => {
            if a < b {
                a
            } else {
                b
            }
        }
    }
}

#[rustfmt::skip]
fn float_cases() -> Vec<Case> {
    vec![
        case("add.f32 %d, %a, %b;", S, Bits(|a, b, _| wf(f(a) + f(b)))),
        case("add.ftz.f32 %d, %a, %b;", S, Bits(|a, b, _| wf(flush(flush(f(a)) + flush(f(b)))))),
        case("add.sat.f32 %d, %a, %b;", S, Bits(|a, b, _| { let v = f(a) + f(b); wf(if v > 0.0 { v.min(1.0) } else { 0.0 }) })),
        case("add.rz.f32 %d, %a, %b;", S, Bits(|a, b, _| near_zero(f(a), f(b)))),
        case("sub.f32 %d, %a, %b;", S, Bits(|a, b, _| wf(f(a) - f(b)))),
        case("mul.f32 %d, %a, %b;", S, Bits(|a, b, _| wf(f(a) * f(b)))),
        case("mul.rm.f32 %d, %a, %b;", S, Bits(|a, b, _| directed(f64::from(f(a)) * f64::from(f(b)), true, false))),
        case("mul.rp.f32 %d, %a, %b;", S, Bits(|a, b, _| directed(f64::from(f(a)) * f64::from(f(b)), false, true))),
        case("fma.rn.f32 %d, %a, %b, %c;", S, Bits(|a, b, c| wf(f(a).mul_add(f(b), f(c))))),
        case("fma.rn.ftz.f32 %d, %a, %b, %c;", S, Bits(|a, b, c| wf(flush(flush(f(a)).mul_add(flush(f(b)), flush(f(c))))))),
        case("div.rn.f32 %d, %a, %b;", S, Bits(|a, b, _| wf(f(a) / f(b)))),
        case("rcp.rn.f32 %d, %a;", S, Bits(|a, _, _| wf(1.0 / f(a)))),
        case("sqrt.rn.f32 %d, %a;", S, Bits(|a, _, _| wf(f(a).sqrt()))),
        case("neg.f32 %d, %a;", S, Bits(|a, _, _| wf(-f(a)))),
        case("abs.f32 %d, %a;", S, Bits(|a, _, _| wf(f(a).abs()))),
        case("min.f32 %d, %a, %b;", S, Bits(|a, b, _| wf(minimum(f(a), f(b))))),
        case("max.f32 %d, %a, %b;", S, Bits(|a, b, _| wf(-minimum(-f(a), -f(b))))),
        case("min.NaN.f32 %d, %a, %b;", S, Bits(|a, b, _| wf(if f(a).is_nan() { f(a) } else if f(b).is_nan() { f(b) } else { minimum(f(a), f(b)) }))),
        case("copysign.f32 %d, %a, %b;", S, Bits(|a, b, _| wf(f(b).copysign(f(a))))),
        case("{ .reg .pred p; setp.neu.f32 p, %a, %b; selp.u32 %d, 1, 0, p; }", S, Bits(|a, b, _| u64::from(f(a) != f(b)))),
        case("{ .reg .pred p; setp.ne.f32 p, %a, %b; selp.u32 %d, 1, 0, p; }", S, Bits(|a, b, _| u64::from(f(a) < f(b) || f(a) > f(b)))),
        case("{ .reg .pred p; setp.geu.f32 p, %a, %b; selp.u32 %d, 1, 0, p; }", S, Bits(|a, b, _| u64::from(!(f(a) < f(b))))),
        case("{ .reg .pred p; setp.nan.f32 p, %a, %b; selp.u32 %d, 1, 0, p; }", S, Bits(|a, b, _| u64::from(f(a).is_nan() || f(b).is_nan()))),
        case("{ .reg .pred p; testp.subnormal.f32 p, %a; selp.u32 %d, 1, 0, p; }", S, Bits(|a, _, _| u64::from(f(a).is_subnormal()))),
        case("set.lt.f32.f32 %d, %a, %b;", S, Bits(|a, b, _| wf(if f(a) < f(b) { 1.0 } else { 0.0 }))),
        case("rsqrt.approx.f32 %d, %a;", S, Near(1.27e-7, |a, _, _| 1.0 / a.sqrt())),
        case("rsqrt.approx.ftz.f32 %d, %a;", S, Near(1.27e-7, |a, _, _| 1.0 / f64::from(flush(a as f32)).sqrt())),
        case("rcp.approx.ftz.f32 %d, %a;", S, Near(1.2e-7, |a, _, _| f64::from(flush((1.0 / f64::from(flush(a as f32))) as f32)))),
        case("ex2.approx.f32 %d, %a;", S, Near(2.4e-7, |a, _, _| a.exp2())),
        case("ex2.approx.ftz.f32 %d, %a;", S, Near(2.4e-7, |a, _, _| f64::from(flush(a.exp2() as f32)))),
        case("lg2.approx.f32 %d, %a;", S, Around(4.8e-7, |a, _, _| a.log2())),
        case("sin.approx.f32 %d, %a;", S, Around(4.8e-7, |a, _, _| a.sin())),
        case("cos.approx.f32 %d, %a;", S, Around(4.8e-7, |a, _, _| a.cos())),
        case("tanh.approx.f32 %d, %a;", S, Near(4.8e-4, |a, _, _| a.tanh())),
        case("div.full.f32 %d, %a, %b;", S, Near(2.4e-7, |a, b, _| a / b)),
        case("add.f64 %d, %a, %b;", D, Bits(|a, b, _| wg(g(a) + g(b)))),
        case("sub.f64 %d, %a, %b;", D, Bits(|a, b, _| wg(g(a) - g(b)))),
        case("mul.f64 %d, %a, %b;", D, Bits(|a, b, _| wg(g(a) * g(b)))),
        case("fma.rn.f64 %d, %a, %b, %c;", D, Bits(|a, b, c| wg(g(a).mul_add(g(b), g(c))))),
        case("div.rn.f64 %d, %a, %b;", D, Bits(|a, b, _| wg(g(a) / g(b)))),
        case("sqrt.rn.f64 %d, %a;", D, Bits(|a, _, _| wg(g(a).sqrt()))),
        case("{ .reg .pred p; setp.leu.f64 p, %a, %b; selp.f64 %d, %a, %b, p; }", D, Bits(|a, b, _| wg(if g(a) > g(b) { g(b) } else { g(a) }))),
        case("cvt.rn.f32.s32 %d, %a;", S, Bits(|a, _, _| wf(s(a) as f32))),
        case("cvt.rn.f32.u32 %d, %a;", S, Bits(|a, _, _| wf(u(a) as f32))),
        case("cvt.rz.f32.s32 %d, %a;", S, Bits(|a, _, _| directed(f64::from(s(a)), false, false))),
        case("cvt.rp.f32.u32 %d, %a;", S, Bits(|a, _, _| directed(f64::from(u(a)), false, true))),
        case("cvt.rn.f32.u64 %d, %a;", [4, 8, 8, 8], Bits(|a, _, _| wf(a as f32))),
        case("cvt.rn.f64.s64 %d, %a;", D, Bits(|a, _, _| wg(l(a) as f64))),
        case("cvt.rzi.s32.f32 %d, %a;", S, Bits(|a, _, _| w(f(a) as i32))),
        case("cvt.rzi.u32.f32 %d, %a;", S, Bits(|a, _, _| u64::from(f(a) as u32))),
        case("cvt.rni.s32.f32 %d, %a;", S, Bits(|a, _, _| w(f(a).round_ties_even() as i32))),
        case("cvt.rmi.s32.f32 %d, %a;", S, Bits(|a, _, _| w(f(a).floor() as i32))),
        case("cvt.rpi.s64.f64 %d, %a;", D, Bits(|a, _, _| if g(a).is_nan() { 1 << 63 } else { g(a).ceil() as i64 as u64 })),
        case("cvt.rzi.u64.f32 %d, %a;", [8, 4, 4, 4], Bits(|a, _, _| if f(a).is_nan() { 1 << 63 } else { f(a) as u64 })),
        case("cvt.rzi.u32.f64 %d, %a;", [4, 8, 8, 8], Bits(|a, _, _| if g(a).is_nan() { 1 << 31 } else { (g(a) as u32).into() })),
        case("cvt.rzi.s16.f64 %d, %a;", [2, 8, 8, 8], Bits(|a, _, _| if g(a).is_nan() { 1 << 15 } else { (g(a) as i16 as u16).into() })),
        case("set.lt.f16.f16 %d, %a, %b;", H, Bits(|a, b, _| if half::f16::from_bits(a as u16) < half::f16::from_bits(b as u16) { 0x3c00 } else { 0 })),
        case("{ .reg .pred p, q; setp.gt.f16x2 p|q, %a, %b; selp.u32 %d, 5, 6, q; }", S, Bits(|a, b, _| if half::f16::from_bits((a >> 16) as u16) > half::f16::from_bits((b >> 16) as u16) { 5 } else { 6 })),
        case("cvt.rni.f32.f32 %d, %a;", S, Bits(|a, _, _| wf(f(a).round_ties_even()))),
        case("cvt.sat.f32.f32 %d, %a;", S, Bits(|a, _, _| wf(if f(a) > 0.0 { f(a).min(1.0) } else { 0.0 }))),
        case("cvt.f64.f32 %d, %a;", [8, 4, 4, 4], Bits(|a, _, _| wg(f(a).into()))),
        case("cvt.rn.f32.f64 %d, %a;", [4, 8, 8, 8], Bits(|a, _, _| wf(g(a) as f32))),
        case("cvt.rz.f32.f64 %d, %a;", [4, 8, 8, 8], Bits(|a, _, _| directed(g(a), false, false))),
        case("cvt.rm.f32.f64 %d, %a;", [4, 8, 8, 8], Bits(|a, _, _| directed(g(a), true, false))),
        case("cvt.u16.u32 %d, %a;", [2, 4, 4, 4], Bits(|a, _, _| a & 0xffff)),
        case("cvt.s32.s16 %d, %a;", [4, 2, 2, 2], Bits(|a, _, _| w(i32::from(a as i16)))),
        case("cvt.s32.s8 %d, %a;", S, Bits(|a, _, _| w(i32::from(a as i8)))),
        case("cvt.u32.u8 %d, %a;", S, Bits(|a, _, _| a & 0xff)),
        case("cvt.s64.s32 %d, %a;", [8, 4, 4, 4], Bits(|a, _, _| i64::from(s(a)) as u64)),
        case("cvt.u64.u32 %d, %a;", [8, 4, 4, 4], Bits(|a, _, _| a)),
        case("cvt.s8.s32 %d, %a;", S, Bits(|a, _, _| w(i32::from(a as i8)))),
        case("cvt.u8.u32 %d, %a;", S, Bits(|a, _, _| a & 0xff)),
        case("cvt.sat.u8.s32 %d, %a;", S, Bits(|a, _, _| w(s(a).clamp(0, 255)))),
        case("cvt.sat.s16.s32 %d, %a;", [2, 4, 4, 4], Bits(|a, _, _| s(a).clamp(-32768, 32767) as u16 as u64)),
        case("cvt.rn.f16.f32 %d, %a;", [2, 4, 4, 4], Bits(|a, _, _| half_bits(f(a)))),
        case("cvt.f32.f16 %d, %a;", [4, 2, 2, 2], Bits(|a, _, _| wf(half::f16::from_bits(a as u16).to_f32()))),
        case("cvt.rn.bf16.f32 %d, %a;", [2, 4, 4, 4], Bits(|a, _, _| if f(a).is_nan() { 0x7fff } else { half::bf16::from_f32(f(a)).to_bits().into() })),
        case("add.f16 %d, %a, %b;", H, Bits(|a, b, _| half_bits(half::f16::from_bits(a as u16).to_f32() + half::f16::from_bits(b as u16).to_f32()))),
        case("mul.f16 %d, %a, %b;", H, Bits(|a, b, _| half_bits(half::f16::from_bits(a as u16).to_f32() * half::f16::from_bits(b as u16).to_f32()))),
    ]
}

fn half_bits(value: f32) -> u64 {
    if value.is_nan() {
        0x7fff
    } else {
        half::f16::from_f32(value).to_bits().into()
    }
}

fn directed(exact: f64, down: bool, up: bool) -> u64 {
    wf(toward(exact, down, up))
}

fn near_zero(a: f32, b: f32) -> u64 {
    let near = a + b;
    if !near.is_finite() {
        // An overflow toward zero stays at the largest number.
        return wf(if a.is_finite() && b.is_finite() {
            f32::MAX.copysign(near)
        } else {
            near
        });
    }
    // The error of a sum is a float.
    let back = near - a;
    let error = (a - (near - back)) + (b - back);
    let away = error != 0.0 && (error < 0.0) == (near > 0.0);
    wf(if away {
        f32::from_bits(near.to_bits() - 1)
    } else {
        near
    })
}

/// Values of `width` bytes that are likely to show mistakes.
fn values(width: u8, seed: u64) -> Vec<u64> {
    let edges: &[u64] = match width {
        2 => &[
            0, 1, 2, 0x7fff, 0x8000, 0xffff, 0x3c00, 0x7c00, 0x7bff, 0x0400, 0x03ff, 0xbc00, 7,
            0x80ff,
        ],
        4 => &[
            0,
            1,
            2,
            7,
            31,
            32,
            33,
            0x7fff_ffff,
            0x8000_0000,
            0xffff_ffff,
            0x3f80_0000,
            0xbf80_0000,
            0x7f80_0000,
            0xff80_0000,
            0x7fc0_0000,
            0x0080_0000,
            0x007f_ffff,
            0x8000_0001,
            0x7f7f_ffff,
            0x3f00_0000,
            0x4b00_0001,
            0x4f00_0000,
            0xcf00_0001,
            0x42c8_0000,
            0xc120_0000,
            0x3fc0_0000,
            0xffff_fff9,
            0x1234_5678,
        ],
        _ => &[
            0,
            1,
            2,
            63,
            64,
            u64::MAX,
            i64::MAX as u64,
            1 << 63,
            0x3ff0_0000_0000_0000,
            0xbff0_0000_0000_0000,
            0x7ff0_0000_0000_0000,
            0x7ff8_0000_0000_0000,
            0x0010_0000_0000_0000,
            0x000f_ffff_ffff_ffff,
            0x7fef_ffff_ffff_ffff,
            0x3690_0000_0000_0001,
            0x47ef_ffff_f000_0000,
            0x43e0_0000_0000_0000,
            0xc3e0_0000_0000_0001,
            0x3ff8_0000_0000_0000,
            0x8000_0000,
            0xffff_ffff,
            0x1_0000_0000,
            0x4059_0000_0000_0000,
        ],
    };
    let mask = if width == 8 {
        u64::MAX
    } else {
        (1 << (8 * width)) - 1
    };
    let mut state = seed;
    let mut noise = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        state ^ state >> 31
    };
    (0..700)
        .map(|_| match noise() % 4 {
            0 | 1 => edges[noise() as usize % edges.len()],
            2 => noise() & mask,
            // Numbers of ordinary size, as integers and as floats.
            _ if width == 4 => {
                let small = (noise() % 2000) as f32 / 10.0 - 100.0;
                if noise() % 2 == 0 {
                    small.to_bits().into()
                } else {
                    noise() % 70
                }
            }
            _ if width == 8 => ((noise() % 2000) as f64 / 10.0 - 100.0).to_bits(),
            _ => noise() % 40,
        })
        .collect()
}

fn source(cases: &[Case]) -> String {
    use std::fmt::Write;
    let mut text = String::from(".version 8.0\n.target sm_80\n.address_size 64\n");
    for (index, case) in cases.iter().enumerate() {
        let bits = case.widths.map(|width| u32::from(width) * 8);
        let body = case
            .text
            .replace("%d", "d")
            .replace("%a", "a")
            .replace("%b", "b")
            .replace("%c", "c");
        write!(
            text,
            ".visible .entry k{index}(.param .u64 pa, .param .u64 pb, .param .u64 pc, .param .u64 pd, .param .u32 n) {{\n\
             .reg .b{} d; .reg .b{} a; .reg .b{} b; .reg .b{} c; .reg .b64 p; .reg .b64 o; .reg .b32 i; .reg .b32 m; .reg .pred q;\n\
             mov.u32 i, %ctaid.x; mov.u32 m, %ntid.x; mad.lo.s32 i, i, m, 0; mov.u32 m, %tid.x; add.s32 i, i, m;\n\
             ld.param.u32 m, [n]; setp.ge.u32 q, i, m; @q bra DONE; mul.wide.u32 o, i, 8;\n\
             ld.param.u64 p, [pa]; add.s64 p, p, o; ld.global.b{} a, [p];\n\
             ld.param.u64 p, [pb]; add.s64 p, p, o; ld.global.b{} b, [p];\n\
             ld.param.u64 p, [pc]; add.s64 p, p, o; ld.global.b{} c, [p];\n\
             {body}\n\
             ld.param.u64 p, [pd]; add.s64 p, p, o; st.global.b{} [p], d;\n\
             DONE: ret; }}\n",
            bits[0], bits[1], bits[2], bits[3], bits[1], bits[2], bits[3], bits[0],
        )
        .unwrap();
    }
    text
}

/// Whether the result is a float of this width (or the operand is: that does no harm).
fn is_float(text: &str, width: u8) -> bool {
    let name = text.split(" %d").next().unwrap_or_default();
    match width {
        4 => name.contains(".f32"),
        8 => name.contains(".f64"),
        _ => false,
    }
}

pub fn check(cases: &[Case]) {
    let text = source(cases);
    let inputs: Vec<Vec<Vec<u64>>> = cases
        .iter()
        .map(|case| {
            (1..4)
                .map(|i| values(case.widths[i], i as u64 * 77 + 5))
                .collect()
        })
        .collect();
    for isa in [Isa::Sse2, Isa::Avx2, Isa::Avx512] {
        for jit in [false, true] {
            if !isa.available() {
                continue;
            }
            let options = Options {
                isa: Some(isa),
                jit: Some(jit),
                ..Options::default()
            };
            let mut gpu = Gpu::with(&text, &options, 64);
            let buffers: Vec<u64> = (0..4).map(|_| gpu.alloc_bytes(700 * 8)).collect();
            for (index, case) in cases.iter().enumerate() {
                for (buffer, input) in buffers.iter().zip(&inputs[index]) {
                    gpu.write(*buffer, input);
                }
                gpu.write(buffers[3], &vec![0u64; 700]);
                let args = buffers
                    .iter()
                    .fold(Args::new(), |args, &buffer| args.ptr(buffer))
                    .u32(700);
                gpu.run(&format!("k{index}"), 3, 256, &args);
                let got: Vec<u64> = gpu.read(buffers[3], 700);
                for (i, &got) in got.iter().enumerate() {
                    let [a, b, c] = [0, 1, 2].map(|k| inputs[index][k][i]);
                    judge(case, (a, b, c), got, &format!("{isa:?} jit {jit}"));
                }
            }
        }
    }
}

fn judge(case: &Case, (a, b, c): (u64, u64, u64), got: u64, on: &str) {
    let about = |expected: String| {
        format!(
            "{} of {a:#x}, {b:#x}, {c:#x}: {got:#x}, expected {expected} on {on}",
            case.text
        )
    };
    match case.want {
        Bits(f) => {
            let expected = f(a, b, c);
            // Which NaN it is is not promised.
            let same_nan = is_float(case.text, case.widths[0])
                && match case.widths[0] {
                    4 => {
                        f32::from_bits(got as u32).is_nan()
                            && f32::from_bits(expected as u32).is_nan()
                    }
                    _ => f64::from_bits(got).is_nan() && f64::from_bits(expected).is_nan(),
                };
            assert!(
                got == expected || same_nan,
                "{}",
                about(format!("{expected:#x}"))
            );
        }
        Near(error, exact) => {
            let expected = exact(f(a).into(), f(b).into(), f(c).into());
            let value = f64::from(f(got));
            let fits = value == expected
                || value.is_nan() && expected.is_nan()
                || expected.abs() > f64::from(f32::MAX)
                    && value.is_infinite()
                    && (value > 0.0) == (expected > 0.0)
                || (value - expected).abs() <= expected.abs() * error + 3e-45;
            assert!(fits, "{}", about(format!("{expected:e}, got {value:e}")));
        }
        Around(error, exact) => {
            let x = f64::from(f(a));
            let expected = exact(x, f(b).into(), f(c).into());
            let value = f64::from(f(got));
            let close = (value - expected).abs() <= error * expected.abs().max(1.0);
            let fits = x.abs() > 100.0
                || close
                || value == expected
                || value.is_nan() && expected.is_nan();
            assert!(fits, "{}", about(format!("{expected:e}, got {value:e}")));
        }
    }
}

#[test]
fn integers() {
    check(&integer_cases());
}

#[test]
fn floats() {
    check(&float_cases());
}
