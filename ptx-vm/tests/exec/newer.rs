//! What compilers write for newer architectures, and forms that few programs have: each against plain Rust.

use crate::gpu::{Args, Gpu};
use crate::instructions::Want::Bits;
use crate::instructions::{Case, D, H, S, case, check, f, s, wf};

const HEAD: &str = ".version 9.0\n.target sm_100\n.address_size 64\n";

fn both(a: u64, b: u64, c: u64, op: impl Fn(f32, f32, f32) -> f32) -> u64 {
    let part = |shift: u32| op(f(a >> shift), f(b >> shift), f(c >> shift));
    // NaNs of halves are compared as bits.
    let bits = |value: f32| u64::from(value.to_bits());
    bits(part(32)) << 32 | bits(part(0))
}

/// The nearest `f32` to an integer that is not above it in amount.
fn toward_zero(exact: u64) -> f32 {
    let near = exact as f32;
    if near as u128 > u128::from(exact) {
        f32::from_bits(near.to_bits() - 1)
    } else {
        near
    }
}

fn tf32(bits: u64, add: u32) -> u64 {
    let value = f(bits);
    if value.is_nan() {
        return 0x7fff_ffff;
    }
    if value.is_infinite() {
        return bits;
    }
    u64::from((bits as u32 + add) & !0x1fff)
}

fn amount_with_sign(a: u64, b: u64, pick: fn(f32, f32) -> f32) -> u64 {
    let value = pick(f(a).abs(), f(b).abs());
    let sign = (a ^ b) as u32 & 0x8000_0000;
    if value.is_nan() {
        wf(value)
    } else {
        u64::from(value.to_bits() | sign)
    }
}

#[rustfmt::skip]
fn cases() -> Vec<Case> {
    vec![
        case("{ .reg .pred p, q; setp.lt.s32 q, %a, 0; lop3.or.b32 %d|p, %a, %b, %c, 0xc0, q; @p mov.b32 %d, 7; }", S,
            Bits(|a, b, _| if a & b != 0 || s(a) < 0 { 7 } else { 0 })),
        case("{ .reg .pred p, q; setp.lt.s32 q, %a, 0; lop3.and.b32 _|p, %a, %b, %c, 0x80, q; selp.b32 %d, 1, 2, p; }", S,
            Bits(|a, b, c| if a & b & c != 0 && s(a) < 0 { 1 } else { 2 })),
        case("{ .reg .b8 x, y; mov.b16 {x, y}, %a; mov.b16 %d, {y, x}; }", H, Bits(|a, _, _| u64::from((a as u16).swap_bytes()))),
        case("{ .reg .b8 x<4>; mov.b32 {x0, x1, x2, x3}, %a; mov.b32 %d, {x3, x2, x1, x0}; }", S, Bits(|a, _, _| u64::from((a as u32).swap_bytes()))),
        case("cvt.rz.f32.u64 %d, %a;", [4, 8, 8, 8], Bits(|a, _, _| wf(toward_zero(a)))),
        case("cvt.rm.f64.u64 %d, %a;", D, Bits(|a, _, _| { let near = a as f64; let bits = near.to_bits(); if near as u128 > u128::from(a) { bits - 1 } else { bits } })),
        case("cvt.rp.f64.u64 %d, %a;", D, Bits(|a, _, _| { let near = a as f64; let bits = near.to_bits(); if (near as u128) < u128::from(a) { bits + 1 } else { bits } })),
        case("cvt.rz.bf16.s16 %d, %a;", H, Bits(|a, _, _| u64::from(f32::from(a as i16).to_bits() >> 16))),
        case("cvt.rna.tf32.f32 %d, %a;", S, Bits(|a, _, _| tf32(a, 0x1000))),
        case("cvt.rz.tf32.f32 %d, %a;", S, Bits(|a, _, _| tf32(a, 0))),
        case("min.xorsign.abs.f32 %d, %a, %b;", S, Bits(|a, b, _| amount_with_sign(a, b, f32::min))),
        case("max.xorsign.abs.f32 %d, %a, %b;", S, Bits(|a, b, _| amount_with_sign(a, b, f32::max))),
        case("min.f32 %d, %a, %b, %c;", S, Bits(|a, b, c| wf([f(b), f(c)].into_iter().fold(f(a), |x, y| if y.is_nan() || x < y || x == y && x.is_sign_negative() { x } else { y })))),
        case("max.NaN.abs.f32 %d, %a, %b, %c;", S, Bits(|a, b, c| { let all = [f(a).abs(), f(b).abs(), f(c).abs()]; if all.iter().any(|x| x.is_nan()) { wf(f32::NAN) } else { wf(all.into_iter().fold(0.0, f32::max)) } })),
        case("{ .reg .b16 h; mov.b32 {h, _}, %a; add.f32.bf16 %d, h, %b; }", S, Bits(|a, b, _| wf(f32::from_bits((a as u32) << 16) + f(b)))),
        case("{ .reg .b16 h; mov.b32 {_, h}, %a; fma.rn.f32.bf16 %d, h, h, %b; }", S, Bits(|a, b, _| { let h = f32::from_bits(a as u32 & 0xffff_0000); wf(h.mul_add(h, f(b))) })),
        case("createpolicy.fractional.L2::evict_first.b64 %d, 1.0;", D, Bits(|_, _, _| 0)),
    ]
}

#[test]
fn forms_of_newer_architectures() {
    check(&cases());
}

/// The amounts of a format without infinity and NaN, by code.
fn amounts(exponent_bits: u32, fraction_bits: u32) -> Vec<f64> {
    let bias = (1 << (exponent_bits - 1)) - 1;
    (0..1u32 << (exponent_bits + fraction_bits))
        .map(|code| {
            let fraction = f64::from(code % (1 << fraction_bits)) / f64::from(1 << fraction_bits);
            match (code >> fraction_bits) as i32 {
                0 => fraction * f64::from(1 - bias).exp2(),
                exponent => (1.0 + fraction) * f64::from(exponent - bias).exp2(),
            }
        })
        .collect()
}

/// The code of the amount that is nearest, the even one of two, with the sign above it.
fn nearest(amounts: &[f64], value: f32, relu: bool) -> u64 {
    let (sign, last) = (amounts.len() as u64, amounts.len() as u64 - 1);
    if value.is_nan() {
        return last;
    }
    if relu && value < 0.0 {
        return 0;
    }
    let far = |code: u64| (amounts[code as usize] - f64::from(value.abs()).min(1e3)).abs();
    let code = (0..=last)
        .min_by(|&a, &b| far(a).total_cmp(&far(b)).then((a & 1).cmp(&(b & 1))))
        .unwrap();
    code | if value.is_sign_negative() { sign } else { 0 }
}

fn value_of(amounts: &[f64], code: u64, relu: bool) -> u64 {
    let code = code as usize & (2 * amounts.len() - 1);
    let amount = amounts[code % amounts.len()];
    // Each is a half, exactly.
    let (exponent, negative) = (amount.log2().floor() as i32, code >= amounts.len());
    let bits = match amount == 0.0 {
        true => 0,
        false => {
            ((exponent + 15) as u64) << 10
                | ((amount / f64::from(exponent).exp2() - 1.0) * 1024.0) as u64
        }
    };
    match negative {
        true if relu && amount != 0.0 => 0,
        true => bits | 0x8000,
        false => bits,
    }
}

/// The power of two that a byte stands for, next to a value.
fn power(bits: u64, up: bool, finite: bool) -> u64 {
    let value = f64::from(f(bits)).abs();
    if value.is_nan() {
        return 0xff;
    }
    let of = |code: i32| f64::from(code - 127).exp2();
    let code = match up {
        true => (0..255).find(|&code| of(code) >= value).unwrap_or(255),
        false => (0..255).rev().find(|&code| of(code) <= value).unwrap_or(0),
    };
    let beyond = !up && value.is_infinite();
    match (finite, code) {
        (true, 255) => 254,
        (false, _) if beyond => 255,
        (_, code) => code as u64,
    }
}

/// What a conversion gives of `%a` and `%b`, which is put into `%d`.
type Conversion = (String, Box<dyn Fn(u64, u64) -> u64>);

#[test]
fn small_floats_and_powers_of_two_are_converted() {
    let mut all: Vec<Conversion> = Vec::new();
    for (name, exponent, fraction) in [("e2m3x2", 2, 3), ("e3m2x2", 3, 2), ("e2m1x2", 2, 1)] {
        let (bits, step) = match name {
            "e2m1x2" => (8, 4),
            _ => (16, 8),
        };
        for (relu, flag) in [(false, ""), (true, ".relu")] {
            let table = amounts(exponent, fraction);
            let to = format!(
                "{{ .reg .b{bits} x; cvt.rn.satfinite{flag}.{name}.f32 x, %a, %b; cvt.u32.u{bits} %d, x; }}"
            );
            let narrow =
                move |a, b| nearest(&table, f(a), relu) << step | nearest(&table, f(b), relu);
            all.push((to, Box::new(narrow)));
            let table = amounts(exponent, fraction);
            let from = format!(
                "{{ .reg .b{bits} x; cvt.u{bits}.u32 x, %a; cvt.rn{flag}.f16x2.{name} %d, x; }}"
            );
            let widen =
                move |a, _| value_of(&table, a >> step, relu) << 16 | value_of(&table, a, relu);
            all.push((from, Box::new(widen)));
        }
    }
    for (up, rounding) in [(false, "rz"), (true, "rp")] {
        for (finite, flag) in [(false, ""), (true, ".satfinite")] {
            let to = |operands: &str, from: &str| {
                format!(
                    "{{ .reg .b16 x; cvt.{rounding}{flag}.ue8m0x2.{from} x, {operands}; cvt.u32.u16 %d, x; }}"
                )
            };
            let two = move |a, b| power(a, up, finite) << 8 | power(b, up, finite);
            all.push((to("%a, %b", "f32"), Box::new(two)));
            let pair = move |a: u64, _| two(a & 0xffff_0000, a << 16 & 0xffff_0000);
            all.push((to("%a", "bf16x2"), Box::new(pair)));
        }
    }
    let from = "{ .reg .b16 x; cvt.u16.u32 x, %a; cvt.rn.bf16x2.ue8m0x2 %d, x; }";
    let widen = |a: u64, _| {
        let one = |code: u64| match code & 0xff {
            0xff => 0x7fff,
            code => {
                let value = f64::from(code as i32 - 127).exp2() as f32;
                u64::from(value.to_bits() >> 16)
            }
        };
        one(a >> 8) << 16 | one(a)
    };
    all.push((from.to_owned(), Box::new(widen)));

    const COUNT: u32 = 2048;
    let body: String = all
        .iter()
        .enumerate()
        .map(|(at, (text, _))| {
            let text = text
                .replace("%d", "%r2")
                .replace("%a", "%r0")
                .replace("%b", "%r1");
            format!(
                "{text} st.global.u32 [%x2+{}], %r2;\n",
                at as u32 * 4 * COUNT
            )
        })
        .collect();
    let mut gpu = Gpu::new(&format!(
        "{HEAD}.visible .entry k(.param .u64 in, .param .u64 out) {{ .reg .b64 %x<4>; .reg .b32 %r<8>;\n\
         ld.param.u64 %x0, [in]; ld.param.u64 %x1, [out]; mov.u32 %r3, %ctaid.x; mov.u32 %r4, %ntid.x; mov.u32 %r5, %tid.x;\n\
         mad.lo.u32 %r3, %r3, %r4, %r5; mul.wide.u32 %x3, %r3, 4; add.s64 %x2, %x1, %x3; mul.wide.u32 %x3, %r3, 8; add.s64 %x0, %x0, %x3;\n\
         ld.global.v2.b32 {{%r0, %r1}}, [%x0];\n{body} ret; }}"
    ));
    // Amounts about those of the formats, any bits, and what is special.
    let special = [
        0,
        0x8000_0000,
        0x7f80_0000,
        0xff80_0000,
        0x7fff_ffff,
        1,
        0x0040_0000,
        0x0040_0001,
        0x0080_0000,
        0x7f00_0000,
        0x7f00_0001,
    ];
    let word = |index: u32| {
        let random = index.wrapping_mul(0x9e37_79b9) ^ index.wrapping_mul(0x85eb_ca6b) >> 13;
        match index % 4 {
            0 => random & 0x83ff_ffff | 0x3c00_0000,
            1 => random & 0x81f0_0000 | 0x4000_0000,
            2 => random,
            _ => special[(random % 11) as usize],
        }
    };
    let input: Vec<[u32; 2]> = (0..COUNT)
        .map(|index| [word(index), word(index / 4 + 5)])
        .collect();
    let flat: Vec<u32> = input.iter().flatten().copied().collect();
    let (from, to) = (
        gpu.upload(&flat),
        gpu.upload(&vec![0u32; all.len() * COUNT as usize]),
    );
    gpu.run("k", COUNT / 128, 128, &Args::new().ptr(from).ptr(to));
    let got: Vec<u32> = gpu.read(to, all.len() * COUNT as usize);
    for ((text, wanted), got) in all.iter().zip(got.chunks(COUNT as usize)) {
        for ([a, b], got) in input.iter().zip(got) {
            let wanted = wanted(u64::from(*a), u64::from(*b));
            assert_eq!(
                u64::from(*got),
                wanted,
                "{text} of {a:x} and {b:x}: {got:x}, not {wanted:x}"
            );
        }
    }
}

#[test]
fn pairs_of_floats_are_two_floats() {
    let values = [0.0f32, -1.5, 3.25, 1e30, -1e-30, f32::INFINITY];
    let pairs: Vec<u64> = values
        .iter()
        .flat_map(|&x| values.iter().map(move |&y| (x, y)))
        .map(|(x, y)| u64::from(y.to_bits()) << 32 | u64::from(x.to_bits()))
        .collect();
    let count = pairs.len();
    let mut gpu = Gpu::new(
        ".version 8.6\n.target sm_100\n.address_size 64\n\
         .visible .entry k(.param .u64 in, .param .u64 out) {\n\
         .reg .b64 %p<3>, %a, %b, %d; .reg .b32 %i, %x, %y;\n\
         mov.u32 %i, %tid.x; mul.wide.u32 %p0, %i, 8;\n\
         ld.param.u64 %p1, [in]; add.s64 %p1, %p1, %p0; ld.global.b64 %a, [%p1];\n\
         mov.b64 {%x, %y}, %a; mov.b64 %b, {%y, %x};\n\
         ld.param.u64 %p1, [out]; mul.lo.s64 %p0, %p0, 4; add.s64 %p1, %p1, %p0;\n\
         add.rn.f32x2 %d, %a, %b; st.global.b64 [%p1], %d;\n\
         sub.f32x2 %d, %a, %b; st.global.b64 [%p1+8], %d;\n\
         mul.rn.ftz.f32x2 %d, %a, %b; st.global.b64 [%p1+16], %d;\n\
         fma.rn.f32x2 %d, %a, %b, %a; st.global.b64 [%p1+24], %d;\n\
         ret; }\n",
    );
    let input = gpu.upload(&pairs);
    let output = gpu.alloc_bytes(count as u64 * 32);
    gpu.run("k", 1, count as u32, &Args::new().ptr(input).ptr(output));
    let got: Vec<u64> = gpu.read(output, count * 4);
    let flush = |x: f32| if x.is_subnormal() { 0.0 * x } else { x };
    for (i, &a) in pairs.iter().enumerate() {
        let b = a.rotate_left(32);
        let wanted = [
            both(a, b, a, |a, b, _| a + b),
            both(a, b, a, |a, b, _| a - b),
            both(a, b, a, |a, b, _| flush(flush(a) * flush(b))),
            both(a, b, a, f32::mul_add),
        ];
        for (op, (&got, wanted)) in got[i * 4..].iter().zip(wanted).enumerate() {
            for shift in [0, 32] {
                let (got, wanted) = (f(got >> shift), f(wanted >> shift));
                let same = got.to_bits() == wanted.to_bits() || got.is_nan() && wanted.is_nan();
                assert!(same, "{a:#x} operation {op}: {got}, not {wanted}");
            }
        }
    }
}

#[test]
fn vectors_of_one_and_of_eight_and_policies_of_caches() {
    let mut gpu = Gpu::new(
        ".version 8.8\n.target sm_100\n.address_size 64\n\
         .visible .entry k(.param .u64 in, .param .u64 out) {\n\
         .reg .b64 %p<3>, %e; .reg .b32 %r<9>; .reg .f32 %f<5>;\n\
         ld.param.u64 %p1, [in]; ld.param.u64 %p2, [out];\n\
         createpolicy.fractional.L2::evict_last.b64 %e, 1.0;\n\
         ld.global.L1::evict_last.L2::cache_hint.b32 { %r0 }, [ %p1 + 0 ], %e;\n\
         st.global.L2::cache_hint.b32 [ %p2 + 0 ], { %r0 }, %e;\n\
         ld.global.v8.b32 {%r0, %r1, %r2, %r3, %r4, %r5, %r6, %r7}, [%p1+32];\n\
         st.global.v8.b32 [%p2+32], {%r7, %r6, %r5, %r4, %r3, %r2, %r1, %r0};\n\
         mov.f32 %f1, 0f3F800000; mov.f32 %f2, 0f40000000;\n\
         atom.global.v2.f32.add {%f3, %f4}, [%p2+64], {%f1, %f2};\n\
         st.global.v2.f32 [%p2+72], {%f3, %f4};\n\
         red.global.add.v2.f32 [%p2+64], {%f1, %f2};\n\
         ret; }\n",
    );
    let input = gpu.upload(&(0..16u32).collect::<Vec<_>>());
    let output = gpu.upload(&[0u32; 32]);
    gpu.write(output + 64, &[10f32, 20.0]);
    gpu.run("k", 1, 1, &Args::new().ptr(input).ptr(output));
    let got: Vec<u32> = gpu.read(output, 16);
    assert_eq!(got[0], 0);
    assert_eq!(got[8..], [15, 14, 13, 12, 11, 10, 9, 8]);
    assert_eq!(gpu.read::<f32>(output + 64, 4), [12.0, 24.0, 10.0, 20.0]);
}

#[test]
fn copies_to_shared_memory_read_what_they_are_told_and_fill_up_with_zeroes() {
    let mut gpu = Gpu::new(
        ".version 8.0\n.target sm_80\n.address_size 64\n\
         .shared .align 16 .b8 tile[4096];\n\
         .visible .entry k(.param .u64 in, .param .u64 out, .param .u64 sizes) {\n\
         .reg .b64 %p<5>; .reg .b32 %r<9>; .reg .pred %q;\n\
         ld.param.u64 %p1, [in]; ld.param.u64 %p2, [out]; ld.param.u64 %p3, [sizes];\n\
         mov.u32 %r0, %tid.x; mul.wide.u32 %p0, %r0, 4; add.s64 %p3, %p3, %p0; ld.global.u32 %r1, [%p3];\n\
         mul.wide.u32 %p0, %r0, 16; setp.eq.u32 %q, %r1, 0;\n\
         @!%q add.s64 %p1, %p1, %p0; @%q mov.b64 %p1, 64;\n\
         mov.u32 %r2, tile; mad.lo.u32 %r2, %r0, 16, %r2;\n\
         cp.async.cg.shared.global.L2::128B [%r2], [%p1], 16, %r1;\n\
         cp.async.commit_group; cp.async.wait_group 0; bar.sync 0;\n\
         ld.shared.v4.b32 {%r3, %r4, %r5, %r6}, [%r2];\n\
         add.s64 %p2, %p2, %p0; st.global.v4.b32 [%p2], {%r3, %r4, %r5, %r6};\n\
         ret; }\n",
    );
    let bytes: Vec<u8> = (1..=255).cycle().take(32 * 16).collect();
    let sizes: Vec<u32> = (0..32).map(|i| i % 17).collect();
    let (input, output) = (gpu.upload(&bytes), gpu.upload(&[0xffu8; 32 * 16]));
    let limits = gpu.upload(&sizes);
    let args = Args::new().ptr(input).ptr(output).ptr(limits);
    gpu.run("k", 1, 32, &args);
    let got: Vec<u8> = gpu.read(output, 32 * 16);
    for (i, &size) in sizes.iter().enumerate() {
        for k in 0..16 {
            let expected = if k < size as usize {
                bytes[16 * i + k]
            } else {
                0
            };
            assert_eq!(
                got[16 * i + k],
                expected,
                "thread {i}, {size} bytes, byte {k}"
            );
        }
    }
}

#[test]
fn reductions_of_floats_over_a_warp() {
    let mut gpu = Gpu::new(
        ".version 8.6\n.target sm_100a\n.address_size 64\n\
         .visible .entry k(.param .u64 in, .param .u64 out) {\n\
         .reg .b64 %p<4>; .reg .b32 %r<2>; .reg .f32 %f<5>;\n\
         ld.param.u64 %p1, [in]; ld.param.u64 %p2, [out];\n\
         mov.u32 %r0, %tid.x; mul.wide.u32 %p0, %r0, 4; add.s64 %p1, %p1, %p0; ld.global.f32 %f0, [%p1];\n\
         redux.sync.min.f32 %f1, %f0, 0xffffffff;\n\
         redux.sync.max.abs.f32 %f2, %f0, 0xffffffff;\n\
         redux.sync.max.NaN.f32 %f3, %f0, 0xffffffff;\n\
         mul.wide.u32 %p0, %r0, 16; add.s64 %p2, %p2, %p0; mov.f32 %f4, %f0;\n\
         st.global.v4.f32 [%p2], {%f1, %f2, %f3, %f4};\n\
         ret; }\n",
    );
    let mut values: Vec<f32> = (0..32u8).map(|i| f32::from(i) * 1.5 - 40.0).collect();
    values[9] = f32::NAN;
    let (input, output) = (gpu.upload(&values), gpu.upload(&[0f32; 128]));
    gpu.run("k", 1, 32, &Args::new().ptr(input).ptr(output));
    for got in gpu.read::<f32>(output, 128).chunks(4) {
        assert_eq!(got[..2], [-40.0, 40.0]);
        assert!(got[2].is_nan());
    }
}

#[test]
fn the_systems_part_of_shared_memory_is_within_reach() {
    let mut gpu = Gpu::new(
        ".version 8.0\n.target sm_80\n.address_size 64\n\
         .shared .align 4 .b8 own[20];\n\
         .visible .entry k(.param .u64 out) {\n\
         .reg .b64 %p; .reg .b32 %r<6>;\n\
         ld.param.u64 %p, [out];\n\
         mov.u32 %r0, %reserved_smem_offset_1; mov.u32 %r1, %reserved_smem_offset_end;\n\
         mov.u32 %r2, own; st.shared.u32 [%r2+16], 3; st.shared.u32 [%r0], 5; st.shared.u32 [%r1+-4], 6;\n\
         ld.shared.u32 %r3, [%r2+16]; sub.u32 %r4, %r1, %r0;\n\
         st.global.u32 [%p], %r3; st.global.u32 [%p+4], %r4;\n\
         ret; }\n",
    );
    let output = gpu.upload(&[0u32; 2]);
    gpu.run("k", 1, 1, &Args::new().ptr(output));
    assert_eq!(gpu.read::<u32>(output, 2), [3, 1024]);
}

#[test]
fn a_declaration_of_vprintf_may_leave_the_result_out() {
    let tree = ptx::parse(
        ".version 7.0\n.target sm_70\n.address_size 64\n\
         .extern .func vprintf(.param .b64 a, .param .b64 b);\n\
         .visible .entry k() { .param .b64 x; .param .b64 y; call vprintf, (x, y); ret; }\n",
    );
    let tree = tree.unwrap_or_else(|error| panic!("{error}"));
    let loaded = ptx_vm::Module::load(&tree, &ptx_vm::Options::default());
    assert!(loaded.is_ok(), "{loaded:?}");
}

#[test]
fn local_memory_is_taken_and_given_back() {
    // Each thread takes as much as its number says, twice, with what it has saved given back between.
    let text = |bytes: &str| {
        format!(
            "{HEAD}.visible .entry k(.param .u64 out) {{\n.reg .b64 %out, %x<9>; .reg .b32 %t, %r<9>; .reg .pred %p<3>;\n\
             ld.param.u64 %out, [out]; mov.u32 %t, %tid.x; mul.wide.u32 %x0, %t, 16; add.s64 %out, %out, %x0;\n\
             stacksave.u64 %x1; cvt.u64.u32 %x2, %t; add.s64 %x2, %x2, 4; {bytes}\n\
             alloca.u64 %x3, %x2; st.local.u32 [%x3], %t;\n\
             setp.lt.u32 %p0, %t, 20; @%p0 alloca.u64 %x4, %x2, 64; @!%p0 alloca.u64 %x4, 8; st.local.u32 [%x4], 77;\n\
             cvta.local.u64 %x5, %x3; ld.u32 %r0, [%x5]; ld.local.u32 %r1, [%x4]; and.b64 %x6, %x4, 63; cvt.u32.u64 %r2, %x6; and.b32 %r2, %r2, 15;\n\
             stackrestore.u64 %x1; alloca.u64 %x6, 4; setp.eq.u64 %p1, %x6, %x3; selp.u32 %r3, 1, 0, %p1;\n\
             st.global.v4.u32 [%out], {{%r0, %r1, %r2, %r3}}; ret; }}\n"
        )
    };
    let mut gpu = Gpu::new(&text(""));
    let out = gpu.upload(&[0u32; 128]);
    gpu.run("k", 1, 32, &Args::new().ptr(out));
    let got: Vec<u32> = gpu.read(out, 128);
    for (thread, row) in got.chunks(4).enumerate() {
        assert_eq!(row, [thread as u32, 77, 0, 1], "thread {thread}");
    }
    for bytes in [
        "mov.u64 %x2, 16385;",
        "mov.u64 %x2, -1;",
        "mov.u64 %x2, 16384;",
    ] {
        let mut gpu = Gpu::new(&text(bytes));
        let out = gpu.upload(&[0u32; 128]);
        let fault = gpu
            .try_run("k", 1, 32, 0, &Args::new().ptr(out))
            .unwrap_err();
        // CUDA_ERROR_HARDWARE_STACK_ERROR
        assert_eq!(fault.kind.code(), 714, "{bytes}");
    }
}

#[test]
fn registers_of_128_bits_move() {
    let mut gpu = Gpu::new(&format!(
        "{HEAD}.visible .entry k(.param .u64 cell, .param .u64 out) {{\n.reg .b64 %cell, %out, %x<9>; .reg .b128 %q<6>; .reg .b32 %t; .reg .pred %p<3>;\n\
         ld.param.u64 %cell, [cell]; ld.param.u64 %out, [out]; mov.u32 %t, %tid.x; mul.wide.u32 %x0, %t, 64; add.s64 %out, %out, %x0;\n\
         ld.global.b128 %q0, [%out]; mov.b128 {{%x1, %x2}}, %q0; mov.b128 %q1, {{%x2, %x1}}; mov.b128 %q2, %q1; st.global.b128 [%out+16], %q2;\n\
         setp.lt.u32 %p0, %t, 5; @%p0 mov.b128 %q2, %q0; st.relaxed.gpu.global.b128 [%out+32], %q2;\n\
         LOOP: ld.relaxed.gpu.global.b128 %q3, [%cell]; mov.b128 {{%x3, %x4}}, %q3; add.s64 %x5, %x3, 1; sub.s64 %x6, %x4, 1; mov.b128 %q4, {{%x5, %x6}};\n\
         atom.relaxed.gpu.global.cas.b128 %q5, [%cell], %q3, %q4; mov.b128 {{%x7, %x8}}, %q5;\n\
         setp.ne.s64 %p1, %x7, %x3; @%p1 bra LOOP; setp.ne.s64 %p1, %x8, %x4; @%p1 bra LOOP;\n\
         add.s64 %x0, %out, 48; atom.global.exch.b128 %q5, [%x0], %q0; ret; }}\n"
    ));
    let cell = gpu.upload(&[5u64, 1000]);
    let start: Vec<u64> = (0..40 * 8).map(|at| at * 0x1_0000_0001).collect();
    let out = gpu.upload(&start);
    gpu.run("k", 1, 40, &Args::new().ptr(cell).ptr(out));
    assert_eq!(gpu.read::<u64>(cell, 2), [45, 960]);
    let got: Vec<u64> = gpu.read(out, 40 * 8);
    for (thread, (before, after)) in start.chunks(8).zip(got.chunks(8)).enumerate() {
        let [low, high] = [before[0], before[1]];
        let third = if thread < 5 { [low, high] } else { [high, low] };
        let wanted = [low, high, high, low, third[0], third[1], low, high];
        assert_eq!(after, wanted, "thread {thread}");
    }
    for (wrong, why) in [
        ("mov.b64 %x, %q;", "does not fit"),
        ("ld.global.b64 %q, [%x];", "does not fit"),
        ("mov.b128 %x, %q;", "does not fit"),
        ("and.b128 %q, %q, %q;", "not supported"),
        ("atom.global.add.b128 %q, [%x], %q;", "not supported"),
    ] {
        let text =
            format!("{HEAD}.visible .entry k() {{ .reg .b64 %x; .reg .b128 %q; {wrong} ret; }}");
        let tree = ptx::parse(&text).unwrap();
        let error = ptx_vm::Module::load(&tree, &ptx_vm::Options::default()).unwrap_err();
        assert!(error.message.contains(why), "{wrong}: {error}");
    }
}

#[test]
fn vectors_are_atomic_element_by_element() {
    let half = |value: f32| u32::from(half::f16::from_f32(value).to_bits());
    let mut gpu = Gpu::new(&format!(
        "{HEAD}.visible .entry k(.param .u64 out) {{\n.reg .b64 %out; .reg .b32 %r<9>; .reg .b16 %h<9>;\n\
         ld.param.u64 %out, [out]; mov.b32 %r0, 0f3F800000; mov.b32 %r1, 0f40000000; mov.b16 %h0, 0x3c00; mov.b16 %h1, 0x4000; mov.b32 %r2, {{%h0, %h1}};\n\
         red.global.add.v2.f32 [%out], {{%r0, %r1}}; atom.global.add.v4.f32 {{%r3, %r4, %r5, %r6}}, [%out+16], {{%r0, %r1, %r1, %r0}};\n\
         red.global.max.noftz.v4.f16 [%out+32], {{%h0, %h1, %h1, %h0}}; red.global.min.noftz.v2.f16x2 [%out+40], {{%r2, %r2}}; ret; }}\n"
    ));
    let mut start = [0u32; 12];
    start[10] = half(1.5) << 16 | half(0.5);
    let out = gpu.upload(&start);
    gpu.run("k", 1, 32, &Args::new().ptr(out));
    let got: Vec<u32> = gpu.read(out, 12);
    let floats: Vec<f32> = got[..8].iter().map(|&bits| f32::from_bits(bits)).collect();
    assert_eq!(floats, [32.0, 64.0, 0.0, 0.0, 32.0, 64.0, 64.0, 32.0]);
    let pair = |low: f32, high: f32| half(high) << 16 | half(low);
    assert_eq!(
        got[8..],
        [pair(1.0, 2.0), pair(2.0, 1.0), pair(0.5, 1.5), 0]
    );
}

/// A part of a word as a number.
fn part(word: u64, first: u32, bits: u32, signed: bool) -> i64 {
    let value = (word as u32).cast_signed();
    match (bits, signed) {
        (8, true) => i64::from((value >> first) as i8),
        (8, false) => i64::from((value >> first) as u8),
        (_, true) => i64::from((value >> first) as i16),
        (_, false) => i64::from((value >> first) as u16),
    }
}

/// A word with a part put in.
fn put(word: u64, first: u32, bits: u32, value: i64) -> u64 {
    let mut bytes = (word as u32).to_le_bytes();
    let from = first as usize / 8;
    let size = bits as usize / 8;
    bytes[from..from + size].copy_from_slice(&value.to_le_bytes()[..size]);
    u32::from_le_bytes(bytes).into()
}

fn word(value: i64) -> u64 {
    u64::from(value as u32)
}

#[test]
#[rustfmt::skip]
fn parts_of_words_are_selected_and_merged() {
    check(&[
        case("vsub.s32.u32.u32 %d, %a.b1, %b.h1;", S, Bits(|a, b, _| word(part(a, 8, 8, false) - part(b, 16, 16, false)))),
        case("vadd.s32.s32.u32 %d, %a.b3, %b.b2;", S, Bits(|a, b, _| word(part(a, 24, 8, true) + part(b, 16, 8, false)))),
        case("vadd.u32.u32.s32 %d, %a.h0, %b.b0;", S, Bits(|a, b, _| word(part(a, 0, 16, false) + part(b, 0, 8, true)))),
        case("vabsdiff.u32.s32.s32.add %d, %a.b2, %b.b3, %c;", S, Bits(|a, b, c| word((part(a, 16, 8, true) - part(b, 24, 8, true)).abs() + c as i64))),
        case("vmin.s32.s32.s32.max %d, %a.h0, %b.h1, %c;", S, Bits(|a, b, c| word(part(a, 0, 16, true).min(part(b, 16, 16, true)).max(s(c).into())))),
        case("vmax.u32.u32.u32 %d.b1, %a.b0, %b.b1, %c;", S, Bits(|a, b, c| put(c, 8, 8, part(a, 0, 8, false).max(part(b, 8, 8, false))))),
        case("vadd.u32.s32.u32 %d.h1, %a.h1, %b.h0, %c;", S, Bits(|a, b, c| put(c, 16, 16, part(a, 16, 16, true) + part(b, 0, 16, false)))),
        case("vadd.u32.u32.u32.sat %d.b0, %a.b3, %b.b2, %c;", S, Bits(|a, b, c| put(c, 0, 8, (part(a, 24, 8, false) + part(b, 16, 8, false)).min(255)))),
        case("vsub.s32.u32.u32.sat %d.b3, %a.b0, %b.b1, %c;", S, Bits(|a, b, c| put(c, 24, 8, (part(a, 0, 8, false) - part(b, 8, 8, false)).clamp(-128, 127)))),
        case("vsub.u32.s32.s32.sat %d.h0, %a, %b.h1, %c;", S, Bits(|a, b, c| put(c, 0, 16, (i64::from(s(a)) - part(b, 16, 16, true)).clamp(0, 65535)))),
        case("vadd.s32.s32.s32.sat %d.h1, %a.h0, %b.h1, %c;", S, Bits(|a, b, c| put(c, 16, 16, (part(a, 0, 16, true) + part(b, 16, 16, true)).clamp(-32768, 32767)))),
        case("vmax.s32.s32.s32 %a.b2, %a.b2, %b.b0, %a; mov.b32 %d, %a;", S, Bits(|a, b, _| put(a, 16, 8, part(a, 16, 8, true).max(part(b, 0, 8, true))))),
        case("vshl.u32.u32.u32.clamp %d, %a.h0, %b.b0;", S, Bits(|a, b, _| word(part(a, 0, 16, false) << part(b, 0, 8, false).min(32)))),
        case("vshr.s32.s32.u32.wrap %d, %a.b1, %b.b2;", S, Bits(|a, b, _| word(part(a, 8, 8, true) >> (part(b, 16, 8, false) & 31)))),
        case("vshr.u32.u32.u32.wrap.add %d, %a, %b.b0, %c;", S, Bits(|a, b, c| word((a as i64 >> (b & 31)) + c as i64))),
        case("vmad.s32.s32.s32 %d, %a.h1, %b.h0, %c;", S, Bits(|a, b, c| word(part(a, 16, 16, true) * part(b, 0, 16, true) + c as i64))),
        case("vmad.u32.u32.u32 %d, %a.b3, %b.h1, %c;", S, Bits(|a, b, c| word(part(a, 24, 8, false) * part(b, 16, 16, false) + c as i64))),
        case("vset.s32.s32.lt %d, %a.h0, %b.h1;", S, Bits(|a, b, _| u64::from(part(a, 0, 16, true) < part(b, 16, 16, true)))),
        case("vset.u32.s32.ge %d.b2, %a.b3, %b.b3, %c;", S, Bits(|a, b, c| put(c, 16, 8, (part(a, 24, 8, false) >= part(b, 24, 8, true)).into()))),
    ]);
    for wrong in [
        "vadd.s32.s32.s32 r.b0, r, r;",
        "vadd.s32.s32.s32.add r.b0, r, r, r;",
        "vmad.s32.s32.s32 r.h0, r, r, r;",
        "vadd.s32.s32.s32 r, x.b0, r;",
        "vadd.s32.s32.s32 p.b0, r, r, r;",
    ] {
        let text = format!("{HEAD}.visible .entry k() {{ .reg .b32 r; .reg .b16 x; .reg .pred p; {wrong} ret; }}");
        let tree = ptx::parse(&text).unwrap();
        assert!(ptx_vm::Module::load(&tree, &ptx_vm::Options::default()).is_err(), "{wrong}");
    }
}
