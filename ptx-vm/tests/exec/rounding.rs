//! What happens at the edges of 16-bit floats: subnormal numbers, and integers that lie next to the middle
//! between two floats.

use crate::gpu::{Args, Gpu};

const HEAD: &str = ".version 9.0\n.target sm_90\n.address_size 64\n";

/// What a kernel stores of 32 bits; `text` sets `%r1`.
fn result(text: &str) -> u32 {
    let mut gpu = Gpu::new(&format!(
        "{HEAD}.visible .entry k(.param .u64 out) {{ .reg .b16 %h<4>; .reg .b32 %r<5>; .reg .b64 %d<3>; .reg .pred %p, %q;
        ld.param.u64 %d1, [out]; {text} st.global.u32 [%d1], %r1; ret; }}"
    ));
    let out = gpu.alloc_bytes(4);
    gpu.run("k", 1, 1, &Args::new().ptr(out));
    gpu.read::<u32>(out, 1)[0]
}

#[test]
fn integers_are_rounded_once_to_bfloat16() {
    for (ty, from, wanted) in [
        // Just below the middle, and in `f64` the middle itself.
        ("u64", 0x807f_ffff_ffff_ffff_u64, 0x5f00),
        ("u64", 0x8080_0000_0000_0000, 0x5f00),
        ("u64", 0x8080_0000_0000_0001, 0x5f01),
        ("u64", 0x8180_0000_0000_0000, 0x5f02),
        ("u64", 0x817f_ffff_ffff_ffff, 0x5f01),
        ("s64", 0x403f_ffff_ffff_ffff, 0x5e80),
        ("s64", 0x4040_0000_0000_0001, 0x5e81),
        ("s64", 0x403f_ffff_ffff_ffff_u64.wrapping_neg(), 0xde80),
        ("s64", 0x4040_0000_0000_0001_u64.wrapping_neg(), 0xde81),
    ] {
        let text =
            format!("mov.b64 %d2, {from:#x}; cvt.rn.bf16.{ty} %h1, %d2; cvt.u32.u16 %r1, %h1;");
        assert_eq!(result(&text), wanted, "{ty} {from:#x}");
    }
}

#[test]
fn comparisons_of_halves_flush_where_they_are_told_to() {
    let halves = "mov.b16 %h1, 1; mov.b16 %h2, 0x8001; mov.b16 %h3, 0x3c00;";
    for (flush, equal) in [("", 0), (".ftz", 1)] {
        let text = format!("{halves} setp.eq{flush}.f16 %p, %h1, %h2; selp.u32 %r1, 1, 0, %p;");
        assert_eq!(result(&text), equal, "{text}");
        let text = format!("{halves} set.eq{flush}.u32.f16 %r1, %h1, %h2;");
        assert_eq!(result(&text) & 1, equal, "{text}");
        let text = format!(
            "{halves} mov.b32 %r2, {{%h1, %h3}}; mov.b32 %r3, {{%h2, %h3}}; setp.eq{flush}.f16x2 %p|%q, %r2, %r3;
            selp.u32 %r1, 1, 0, %p; selp.u32 %r4, 2, 0, %q; or.b32 %r1, %r1, %r4;"
        );
        assert_eq!(result(&text), equal | 2, "{text}");
    }
}

#[test]
fn halves_beside_a_nan_differ_only_where_that_is_asked() {
    // NaN and 1, beside 2 and 1.
    let pairs = "mov.b32 %r2, 0x3c007fff; mov.b32 %r3, 0x3c004000;";
    for (name, wanted) in [("ne", 0), ("neu", 0xffff), ("lt", 0), ("ltu", 0xffff)] {
        for ty in ["f16x2", "bf16x2"] {
            let text = format!("{pairs} set.{name}.u32.{ty} %r1, %r2, %r3;");
            // 0x7fff is a NaN of both.
            assert_eq!(result(&text), wanted, "{text}");
        }
    }
}
