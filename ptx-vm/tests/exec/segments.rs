//! Segments, which are machine code, do what single operations do: the same kernels by every way that this machine has,
//! results and faults compared with those of operations alone.

use std::fmt::Write;

use ptx_vm::{Fault, Isa, Options};

use crate::gpu::{Args, Dim, Gpu};

/// By single operations, and then by segments for each vector unit that this machine has, and with each way to load what is
/// apart.
fn ways() -> Vec<Options> {
    let way = |isa, jit, gathers| Options {
        isa: Some(isa),
        jit: Some(jit),
        gathers: Some(gathers),
        ..Options::default()
    };
    let segments = [
        way(Isa::Avx2, true, false),
        way(Isa::Avx512, true, false),
        way(Isa::Avx512, true, true),
    ];
    let available = |way: &Options| way.isa.is_some_and(Isa::available);
    let mut ways = vec![way(Isa::Sse2, false, false)];
    ways.extend(segments.into_iter().filter(available));
    ways
}

pub(crate) const HEAD: &str = ".version 7.5\n.target sm_75\n.address_size 64\n\
    .visible .entry k(.param .u64 from, .param .u64 to, .param .u32 step, .param .u32 left)\n{\n\
    .reg .b64 %a<8>; .reg .b64 %v<8>; .reg .f32 %f<8>; .reg .f64 %d<4>; .reg .b32 %r<16>; .reg .pred %p<4>;\n\
    .shared .align 16 .b8 tile[4096];\n\
    ld.param.u64 %a0, [from]; ld.param.u64 %a1, [to]; ld.param.u32 %r0, [step]; ld.param.u32 %r1, [left];\n\
    mov.u32 %r2, %tid.x; mov.u32 %r3, %ctaid.x; mov.u32 %r4, %ntid.x; mad.lo.s32 %r5, %r3, %r4, %r2;\n\
    mov.u32 %r15, tile; mul.wide.u32 %v0, %r5, 64; add.s64 %a1, %a1, %v0;\n";

/// Runs `body` after [`HEAD`] in 2 blocks of `threads`, by every way; all must give the same memory, or the same fault.
pub(crate) fn same_by_all_ways(
    body: &str,
    threads: impl Dim,
    step: u32,
    left: u32,
) -> Result<Vec<u32>, Fault> {
    same_text_by_all_ways(&format!("{HEAD}{body}\nret;\n}}\n"), threads, step, left)
}

/// The same of a whole text with [`HEAD`]'s kernel and parameters.
pub(crate) fn same_text_by_all_ways(
    text: &str,
    threads: impl Dim,
    step: u32,
    left: u32,
) -> Result<Vec<u32>, Fault> {
    let threads = threads.dim();
    let mut results = Vec::new();
    for options in ways() {
        let mut gpu = Gpu::with(text, &options, 16);
        let data: Vec<u32> = (0..16_384_u32)
            .map(|at| at.wrapping_mul(2_654_435_761) ^ at << 7)
            .collect();
        let from = gpu.upload(&data);
        let to = gpu.upload(&vec![0_u32; 16_384]);
        let args = Args::new().ptr(from).ptr(to).u32(step).u32(left);
        let result = gpu.try_run("k", 2, threads, 0, &args);
        // Each way has its own memory, and what lies as far around it as an index reaches.
        let furthest = 1 << 36;
        let own = gpu.window.base() - furthest..gpu.window.base() + gpu.window.len() + furthest;
        let fault = result.err().map(|fault| Fault {
            address: if own.contains(&fault.address) {
                fault.address.wrapping_sub(from)
            } else {
                fault.address
            },
            ..fault
        });
        let memory = gpu.read::<u32>(to, 16_384);
        results.push(fault.map_or(Ok(memory), Err));
    }
    for (way, result) in results.iter().enumerate() {
        assert_eq!(*result, results[0], "way {way}:\n{text}");
    }
    results.swap_remove(0)
}

/// The arithmetic that segments know, each on random bits: what is stored is the result.
#[test]
fn arithmetic_is_the_same_in_segments() {
    const LINES: [&str; 32] = [
        "add.u32 %r9, %r6, %r7;",
        "sub.s32 %r9, %r6, %r7;",
        "mul.lo.s32 %r9, %r6, %r7;",
        "mad.lo.s32 %r9, %r6, %r7, %r8;",
        "and.b32 %r9, %r6, %r7;",
        "or.b32 %r9, %r6, %r7;",
        "xor.b32 %r9, %r6, %r7;",
        "not.b32 %r9, %r6;",
        "lop3.b32 %r9, %r6, %r7, %r8, 0x2d;",
        "lop3.b32 %r9, %r6, %r7, %r8, 0xe8;",
        "shl.b32 %r9, %r6, %r2;",
        "shr.u32 %r9, %r6, %r2;",
        "shr.s32 %r9, %r6, %r2;",
        "min.s32 %r9, %r6, %r7;",
        "max.s32 %r9, %r6, %r7;",
        "min.u32 %r9, %r6, %r7;",
        "max.u32 %r9, %r6, %r7;",
        "mul.wide.s32 %v4, %r6, %r7; cvt.u32.u64 %r9, %v4; add.s64 %v5, %v4, %v4; cvt.u32.u64 %r10, %v5;",
        "mul.wide.u32 %v4, %r6, %r7; shr.u64 %v4, %v4, 32; cvt.u32.u64 %r9, %v4;",
        "cvt.s64.s32 %v4, %r6; cvt.u64.u32 %v5, %r7; sub.s64 %v4, %v4, %v5; shr.u64 %v5, %v4, 32; cvt.u32.u64 %r9, %v4; cvt.u32.u64 %r10, %v5;",
        "cvt.u64.u32 %v4, %r6; shl.b64 %v4, %v4, %r2; xor.b64 %v4, %v4, %a0; xor.b64 %v4, %v4, %a0; cvt.u32.u64 %r9, %v4;",
        "cvt.u64.u32 %v4, %r6; cvt.s64.s32 %v5, %r7; and.b64 %v6, %v4, %v5; or.b64 %v7, %v4, %v5; cvt.u32.u64 %r9, %v6; cvt.u32.u64 %r10, %v7;",
        "cvt.rn.f32.u32 %f1, %r6; mov.b32 %r9, %f1;",
        "cvt.rn.f32.s32 %f1, %r6; mov.b32 %r9, %f1;",
        "cvt.rn.f32.s32 %f1, %r6; neg.f32 %f2, %f1; abs.f32 %f3, %f2; mov.b32 %r9, %f3; mov.b32 %r10, %f2;",
        "cvt.rn.f32.s32 %f1, %r6; cvt.rn.f32.u32 %f2, %r7; fma.rn.f32 %f3, %f1, %f2, %f1; mov.b32 %r9, %f3;",
        "cvt.rn.f32.u32 %f1, %r6; sqrt.rn.f32 %f2, %f1; mov.b32 %r9, %f2;",
        "cvt.rn.f32.u32 %f1, %r6; cvt.rn.f32.u32 %f2, %r7; div.rn.f32 %f3, %f1, %f2; mov.b32 %r9, %f3;",
        "and.b32 %r9, %r6, 0x807fffff; mov.b32 %f1, %r9; cvt.rn.f32.u32 %f2, %r7; mul.f32 %f3, %f1, %f2; sub.f32 %f2, %f1, %f3; add.f32 %f3, %f1, %f1; mov.b32 %r9, %f2; mov.b32 %r10, %f3;",
        "cvt.rn.f64.u32 %d1, %r6; cvt.rn.f64.u32 %d2, %r7; mul.f64 %d3, %d1, %d2; add.f64 %d3, %d3, %d1; sub.f64 %d3, %d3, %d2; fma.rn.f64 %d3, %d3, %d1, %d2; div.rn.f64 %d2, %d3, %d1; sqrt.rn.f64 %d2, %d2; cvt.rn.f32.f64 %f1, %d2; mov.b32 %r9, %f1;",
        "sub.u32 %r9, %r6, %r7; add.u32 %r6, %r9, %r9; mov.u32 %r9, %r6;",
        "mov.u32 %r9, %r6; mov.u32 %r10, %r7;",
    ];
    let load = "mul.wide.u32 %v1, %r5, 12; add.s64 %a2, %a0, %v1;\n\
                ld.global.u32 %r6, [%a2]; ld.global.u32 %r7, [%a2+4]; ld.global.u32 %r8, [%a2+8];\nmov.u32 %r10, 0;\n";
    for line in LINES {
        for guard in ["", "@%p0 "] {
            let mut body = format!("{load}mov.u32 %r9, 77;\nsetp.lt.u32 %p0, %r2, 21;\n");
            for part in line.split_inclusive(';') {
                let _ = writeln!(body, "{guard}{}", part.trim());
            }
            body += "st.global.u32 [%a1], %r9; st.global.u32 [%a1+4], %r10;";
            let memory = same_by_all_ways(&body, 50, 1, 0).expect("no fault");
            assert!(memory.iter().any(|&word| word != 0), "{line}");
        }
    }
}

/// Comparisons of every type, also of NaNs, infinities and equal numbers, with logic of their predicates and choices by
/// them, in all lanes and in some.
#[test]
fn comparisons_are_the_same_in_segments() {
    const ORDERED: [&str; 6] = ["eq", "ne", "lt", "le", "gt", "ge"];
    const FLOATS: [&str; 8] = ["equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"];
    let types = [
        ("u32", "%r6, %r7"),
        ("s32", "%r6, %r7"),
        ("u64", "%v4, %v5"),
        ("s64", "%v4, %v5"),
        ("u16", "%h0, %h1"),
        ("s16", "%h0, %h1"),
        ("f32", "%f1, %f2"),
        ("f64", "%d1, %d2"),
    ];
    // Of each 8 lanes some compare equal numbers, a NaN, infinities, and zeros of both signs.
    let values = ".reg .b16 %h<3>;\nmul.wide.u32 %v1, %r5, 12; add.s64 %a2, %a0, %v1;\n\
        ld.global.u32 %r6, [%a2]; ld.global.u32 %r7, [%a2+4];\nand.b32 %r8, %r2, 7;\n\
        setp.eq.u32 %p0, %r8, 1; selp.b32 %r6, %r7, %r6, %p0;\n\
        setp.eq.u32 %p0, %r8, 2; selp.b32 %r6, 0x7fc00000, %r6, %p0;\n\
        setp.eq.u32 %p0, %r8, 3; selp.b32 %r6, 0x7f800000, %r6, %p0; selp.b32 %r7, 0xff800000, %r7, %p0;\n\
        setp.eq.u32 %p0, %r8, 4; selp.b32 %r6, 0, %r6, %p0; selp.b32 %r7, 0x80000000, %r7, %p0;\n\
        mov.b32 %f1, %r6; mov.b32 %f2, %r7; cvt.f64.f32 %d1, %f1; cvt.f64.f32 %d2, %f2;\n\
        cvt.s64.s32 %v4, %r6; cvt.s64.s32 %v5, %r7; cvt.u16.u32 %h0, %r6; cvt.u16.u32 %h1, %r7;\n";
    for (ty, operands) in types {
        let more: &[&str] = if ty.starts_with('f') { &FLOATS } else { &[] };
        for name in ORDERED.iter().chain(more) {
            for guard in ["", "@%p3 "] {
                let mut body = format!(
                    "{values}mov.u32 %r9, 7; mov.u32 %r10, 8; mov.u64 %v6, 9;\nsetp.lt.u32 %p3, %r2, 21;\n\
                     setp.lt.u32 %p1, %r6, %r5; setp.eq.u32 %p2, %r6, %r6;\n"
                );
                for part in [
                    &*format!("setp.{name}.{ty} %p0, {operands};"),
                    "selp.b32 %r9, %r5, 1, %p0;",
                    "selp.b64 %v6, %v4, %v5, %p0;",
                    "and.pred %p1, %p0, %p1;",
                    "xor.pred %p2, %p1, %p2;",
                    "not.pred %p1, %p1;",
                    "or.pred %p1, %p1, %p0;",
                    "selp.b32 %r10, 3, %r2, %p1;",
                    "selp.b16 %h2, %h0, %h1, %p2;",
                    "cvt.u32.u16 %r11, %h2;",
                ] {
                    let _ = writeln!(body, "{guard}{part}");
                }
                body += "mov.u32 %r11, 0;\n@%p2 mov.u32 %r11, 5;\n\
                    st.global.v4.u32 [%a1], {%r9, %r10, %r11, %r2}; st.global.u64 [%a1+16], %v6;";
                let memory = same_by_all_ways(&body, 50, 1, 0).expect("no fault");
                assert!(memory.iter().any(|&word| word != 0), "{name}.{ty}");
            }
        }
    }
}

/// Loads and stores of every shape that segments know, by addresses that are alike, in a row, strided and scattered, of all
/// lanes and of some.
#[test]
fn transfers_are_the_same_in_segments() {
    let index = [
        ("mov.u32 %r6, 5;", "alike"),
        ("mov.u32 %r6, %r2;", "a row"),
        ("shl.b32 %r6, %r2, 1;", "strided"),
        (
            "mul.lo.s32 %r6, %r2, 37; and.b32 %r6, %r6, 127;",
            "scattered",
        ),
        ("shr.u32 %r6, %r2, 4;", "alike in each strip"),
        ("xor.b32 %r6, %r2, 1;", "pairs changed"),
    ];
    let moves = [
        "ld.global.u32 %r9, [%a2+16]; st.global.u32 [%a1], %r9;",
        "ld.global.nc.f32 %f1, [%a2]; st.global.f32 [%a1+8], %f1;",
        "ld.global.u64 %v4, [%a3+8]; st.global.u64 [%a1+8], %v4;",
        "ld.global.v2.u32 {%r9, %r10}, [%a3]; st.global.v2.u32 [%a1], {%r10, %r9};",
        "ld.global.v4.u32 {%r9, %r10, %r11, %r12}, [%a4]; st.global.v4.u32 [%a1+16], {%r12, %r11, %r10, %r9};",
        "ld.global.v2.u64 {%v4, %v5}, [%a4]; st.global.v2.u64 [%a1+16], {%v5, %v4};",
        "ld.u32 %r9, [%a2]; st.u32 [%a1+12], %r9;",
        "ld.global.u8 %r9, [%a6]; st.global.u8 [%a1+5], %r9;",
        "ld.global.u16 %h0, [%a7+2]; st.global.u16 [%a1+6], %h0;",
        "ld.global.s8 %h0, [%a6+1]; cvt.s32.s16 %r9, %h0; st.global.u32 [%a1], %r9;",
        "ld.u8 %h0, [%a6+3]; cvt.u32.u16 %r9, %h0; st.u16 [%a1+10], %r9;",
        "st.shared.u8 [%r2+64], %r5; bar.sync 0; ld.shared.u8 %r9, [%r6+64]; st.global.u32 [%a1], %r9;",
        "st.shared.u16 [%r7+32], %r2; bar.sync 0; ld.shared.u16 %r9, [%r14+32]; st.global.u32 [%a1+4], %r9;",
        "st.shared.u32 [%r7+64], %r2; bar.sync 0; ld.shared.u32 %r9, [%r8+64]; st.global.u32 [%a1], %r9;",
        "st.shared.u64 [%r13], %a5; bar.sync 0; ld.shared.u64 %v4, [%r13]; st.global.u64 [%a1], %v4;",
        "st.shared.v2.u32 [%r13+512], {%r2, %r5}; bar.sync 0; ld.shared.v2.u32 {%r9, %r10}, [%r13+512]; st.global.v2.u32 [%a1], {%r9, %r10};",
    ];
    for (index, name) in index {
        for step in moves {
            for (threads, guard) in [(64, ""), (50, ""), (256, "@%p0 "), (40, "@!%p0 ")] {
                let mut body = format!(
                    "{index} shl.b32 %r7, %r2, 2; shl.b32 %r8, %r6, 2; shl.b32 %r13, %r2, 3;\n\
                     cvt.u64.u32 %a5, %r2; mul.wide.u32 %v1, %r6, 4; add.s64 %a2, %a0, %v1;\n\
                     mul.wide.u32 %v2, %r6, 8; add.s64 %a3, %a0, %v2; mul.wide.u32 %v3, %r6, 16; add.s64 %a4, %a0, %v3;\n\
                     .reg .b16 %h<2>;\ncvt.u64.u32 %a6, %r6; add.s64 %a6, %a6, %a0; mul.wide.u32 %a7, %r6, 2; add.s64 %a7, %a7, %a0;\n\
                     and.b32 %r14, %r2, 5; setp.eq.u32 %p0, %r14, 1; shl.b32 %r14, %r6, 1; mov.u16 %h0, 6;\n\
                     mov.u32 %r9, 1; mov.u32 %r10, 2; mov.u32 %r11, 3; mov.u32 %r12, 4; mov.u64 %v4, 5; mov.u64 %v5, 6;\n"
                );
                for part in step.split_inclusive(';') {
                    let guard = if part.contains("bar.sync") { "" } else { guard };
                    let _ = writeln!(body, "{guard}{}", part.trim());
                }
                let memory = same_by_all_ways(&body, threads, 1, 0);
                assert!(memory.is_ok(), "{name}: {memory:?}");
            }
        }
    }
}

/// One lane of many is wrong: by how much it is does not matter, nor whether it is the first one.
#[test]
fn a_wrong_lane_is_found_in_segments() {
    let moves = [
        ("ld.global.u32 %r9, [%a2+4];", 700),
        ("st.global.u32 [%a2+4], %r9;", 700),
        ("ld.u64 %v4, [%a2];", 700),
        ("st.global.v4.u32 [%a2], {%r9, %r9, %r9, %r9};", 700),
        ("ld.shared.u32 %r9, [%r7];", 700),
        ("st.shared.u64 [%r7], %v4;", 700),
    ];
    for (step, code) in moves {
        for lane in [0, 15, 16, 33, 63] {
            for (far, what) in [
                ("0x1fff00000000", "nowhere"),
                ("0xfffffffffffffff0", "the end of all addresses"),
                ("0x100000", "beyond the window"),
                ("0x10000000000", "another space's window"),
            ] {
                let body = format!(
                    "mul.wide.u32 %v1, %r2, 16; add.s64 %a2, %a0, %v1; shl.b32 %r7, %r2, 3; mov.u64 %v4, 9;\n\
                     mov.u32 %r9, 3; setp.eq.u32 %p0, %r2, {lane};\n\
                     @%p0 mov.u64 %a2, {far}; @%p0 mov.u32 %r7, 4096;\n{step}\nst.global.u32 [%a1], %r9;"
                );
                let result = same_by_all_ways(&body, 64, 1, 0);
                let is_generic_shared = what.starts_with("another") && step.starts_with("ld.u64");
                if is_generic_shared {
                    assert!(result.is_ok(), "{step} {what}");
                    continue;
                }
                let fault = result.expect_err(what);
                assert_eq!(fault.kind.code(), code, "{step} {what}");
                assert_eq!(fault.thread, [lane, 0, 0], "{step} {what}");
            }
            let body = format!(
                "mul.wide.u32 %v1, %r2, 16; add.s64 %a2, %a0, %v1; shl.b32 %r7, %r2, 3; mov.u64 %v4, 9;\n\
                 mov.u32 %r9, 3; setp.eq.u32 %p0, %r2, {lane};\n\
                 @%p0 add.s64 %a2, %a2, 2; @%p0 add.u32 %r7, %r7, 2;\n{step}\nst.global.u32 [%a1], %r9;"
            );
            let fault = same_by_all_ways(&body, 64, 1, 0).expect_err("misaligned");
            assert_eq!(
                (fault.kind.code(), fault.thread),
                (716, [lane, 0, 0]),
                "{step}"
            );
        }
    }
}

/// Short branches, which become guards, on predicates that lanes share and that they do not.
#[test]
fn short_branches_are_the_same_in_segments() {
    let conditions = [
        "setp.lt.u32 %p0, %r2, 20;",
        "setp.lt.u32 %p0, %r0, 20;",
        "and.b32 %r6, %r2, 1; setp.eq.u32 %p0, %r6, 0;",
        "setp.lt.u32 %p0, %r2, 9000;",
        "setp.gt.u32 %p0, %r2, 9000;",
    ];
    for condition in conditions {
        for other in ["", "mul.lo.s32 %r8, %r8, 3; st.global.u32 [%a1+12], %r8;"] {
            let body = format!(
                "mov.u32 %r8, 5; mov.u32 %r10, 0; shl.b32 %r7, %r2, 2; st.shared.u32 [%r7], %r5; bar.sync 0;\n\
                 again:\n{condition}\n@%p0 bra then;\n{other}\nbra join;\n\
                 then: add.u32 %r8, %r8, %r2; ld.shared.u32 %r9, [%r7]; add.u32 %r8, %r8, %r9; st.shared.u32 [%r7], %r8;\n\
                 join: add.u32 %r10, %r10, 1; setp.lt.u32 %p1, %r10, 3; @%p1 bra again;\n\
                 bar.sync 0; ld.shared.u32 %r9, [%r7]; st.global.v2.u32 [%a1], {{%r8, %r9}};"
            );
            for threads in [64, 50, 256] {
                let memory = same_by_all_ways(&body, threads, 1, 0).expect("no fault");
                assert!(memory.iter().any(|&word| word != 0));
            }
        }
    }
}

/// Elements of arrays by 32-bit indices: rows, one element, what is apart, and indices that are negative or beyond the end.
#[test]
fn elements_by_indices_are_the_same_in_segments() {
    const INDICES: [&str; 6] = [
        "mov.u32 %r6, %r2;",
        "and.b32 %r6, %r2, 0;",
        "mul.lo.s32 %r6, %r2, %r0;",
        "mul.lo.s32 %r6, %r2, 2654435761; shr.u32 %r6, %r6, 20;",
        "sub.s32 %r6, %r2, 5;",
        "shl.b32 %r6, %r2, 7;",
    ];
    const ACCESSES: [(u32, &str); 6] = [
        (1, "ld.global.u8 %r9, [%v3]; st.global.u32 [%a1], %r9;"),
        (4, "ld.global.u32 %r9, [%v3]; st.global.u32 [%a1], %r9;"),
        (
            4,
            "ld.global.u32 %r9, [%v3+8]; ld.global.u32 %r10, [%v4]; st.global.u32 [%a1+4], %r9; st.global.u32 [%a1], %r10;",
        ),
        (8, "ld.global.u64 %v5, [%v3]; st.global.u64 [%a1], %v5;"),
        (
            8,
            "ld.global.v2.u32 {%r9, %r10}, [%v3]; st.global.u32 [%a1], %r9; st.global.u32 [%a1+4], %r10;",
        ),
        (4, "st.global.u32 [%v3], %r2; st.global.u32 [%v4+4], %r5;"),
    ];
    for index in INDICES {
        for (size, access) in ACCESSES {
            for sign in ["u32", "s32"] {
                let product = match size {
                    1 => format!("cvt.{}64.{sign} %v2, %r6;", &sign[..1]),
                    _ => format!("mul.wide.{sign} %v2, %r6, {size};"),
                };
                // What is stored goes to the middle of the array, so that lanes may be told apart.
                let body = format!(
                    "add.s64 %a2, %a0, 64; add.s64 %a3, %a0, 128; {index} setp.lt.u32 %p1, %r2, %r1;\n\
                     @!%p1 bra end; {product} add.s64 %v3, %a2, %v2; add.s64 %v4, %v2, %a3;\n{access}\nend:"
                );
                for (threads, left) in [(64, 64), (64, 21), (37, 37)] {
                    let _ = same_by_all_ways(&body, threads, 3, left);
                }
            }
        }
    }
}

/// A row of indices ends where their numbers do: the lane after the greatest one has the least.
#[test]
fn a_row_of_indices_does_not_go_on_beyond_their_end() {
    for (sign, first) in [("u32", 0xffff_fff8_u64), ("s32", 0x7fff_fff8)] {
        let body = format!(
            "{HEAD}add.u32 %r6, %r2, {first}; mul.wide.{sign} %v2, %r6, 4; sub.s64 %a2, %a0, {}; \
             add.s64 %v3, %a2, %v2; ld.global.u32 %r9, [%v3]; st.global.u32 [%a1], %r9;\nret;\n}}\n",
            first * 4
        );
        for options in ways() {
            let mut gpu = Gpu::with(&body, &options, 16);
            let (from, to) = (gpu.upload(&[7_u32; 1024]), gpu.upload(&[0_u32; 1024]));
            let args = Args::new().ptr(from).ptr(to).u32(1).u32(1);
            let fault = gpu.try_run("k", 1, 8, 0, &args);
            assert!(fault.is_ok(), "{sign}: {fault:?}");
            let fault = gpu.try_run("k", 1, 16, 0, &args);
            assert!(fault.is_err(), "{sign}: lanes read what is not theirs");
        }
    }
}

/// Loads at several distances from one address: alike, rows, apart, unaligned, and with the furthest one outside.
#[test]
fn loads_from_one_address_are_the_same_in_segments() {
    const PLACES: [&str; 5] = [
        "and.b32 %r6, %r2, 0;",
        "shl.b32 %r6, %r2, 2;",
        "mul.lo.s32 %r6, %r2, 20;",
        "add.s32 %r6, %r2, 0;",
        "shl.b32 %r6, %r2, 3;",
    ];
    let fill = "shl.b32 %r6, %r2, 2; add.s32 %r6, %r6, %r15; st.shared.u32 [%r6], %r5; st.shared.u32 [%r6+512], %r2; bar.sync 0;\n";
    for place in PLACES {
        for furthest in [12, 512, 4092, 40_000] {
            let shared = format!(
                "{fill}{place} add.s32 %r6, %r6, %r15; ld.shared.u32 %r7, [%r6]; ld.shared.u32 %r8, [%r6+4]; \
                 add.s32 %r7, %r7, %r8; ld.shared.u32 %r9, [%r6+{furthest}]; st.global.u32 [%a1], %r7; st.global.u32 [%a1+4], %r9;"
            );
            let global = format!(
                "{place} cvt.u64.u32 %v1, %r6; add.s64 %v2, %a0, %v1; ld.global.u32 %r7, [%v2+8]; ld.global.u32 %r8, [%v2+4]; \
                 add.s32 %r7, %r7, %r8; ld.global.u32 %r9, [%v2+{furthest}]; st.global.u32 [%a1], %r7; st.global.u32 [%a1+4], %r9;"
            );
            let words = format!(
                "{place} cvt.u64.u32 %v1, %r6; add.s64 %v2, %a0, %v1; ld.global.u64 %v3, [%v2+8]; ld.global.u64 %v4, [%v2]; \
                 st.global.u64 [%a1], %v3; st.global.u64 [%a1+8], %v4;"
            );
            for body in [shared, global, words] {
                for threads in [128, 37] {
                    let _ = same_by_all_ways(&body, threads, 1, 1);
                }
            }
        }
    }
}

/// Rows of which the first lanes do not run, from the beginning of the memory and up to its end; bytes at the end of shared memory.
#[test]
fn lanes_that_do_not_run_need_not_be_of_a_row() {
    const CONDITIONS: [&str; 4] = [
        "setp.ge.u32 %p1, %r2, 5;",
        "and.b32 %r9, %r2, 15; setp.eq.u32 %p1, %r9, 15;",
        "and.b32 %r9, %r2, 8; setp.ne.u32 %p1, %r9, 0;",
        "setp.ge.u32 %p1, %r2, 33;",
    ];
    // What lanes have that do not run is anything.
    const INDICES: [&str; 3] = [
        "sub.s32 %r6, %r2, 5; @!%p1 mul.lo.s32 %r6, %r2, 0x12345678;",
        "mul.lo.s32 %r6, %r2, %r0; @!%p1 mul.lo.s32 %r6, %r2, 0x12345678;",
        "mov.u32 %r6, 40; @!%p1 mov.u32 %r6, %r2;",
    ];
    const ACCESSES: [&str; 8] = [
        "mul.wide.s32 %v2, %r6, 4; add.s64 %v3, %a0, %v2; ld.global.u32 %r9, [%v3+32]; st.global.u32 [%a1], %r9;",
        "mul.wide.s32 %v2, %r6, 4; shl.b64 %v2, %v2, 1; add.s64 %v3, %a0, %v2; ld.global.u64 %v4, [%v3+64]; st.global.u64 [%a1], %v4;",
        "cvt.s64.s32 %v2, %r6; add.s64 %v3, %a0, %v2; ld.global.u8 %r9, [%v3+8]; st.global.u32 [%a1], %r9;",
        "mul.wide.s32 %v2, %r6, 4; add.s64 %v3, %a1, 0; ld.global.u32 %r9, [%a0]; st.global.u32 [%v3], %r2; st.global.u32 [%a1+4], %r9;",
        "shl.b32 %r6, %r6, 2; add.s32 %r6, %r6, %r15; ld.shared.u32 %r9, [%r6+32]; ld.shared.u32 %r10, [%r6+36]; st.global.v2.u32 [%a1], {%r9, %r10};",
        "add.s32 %r6, %r6, %r15; st.shared.u8 [%r6+8], %r2; st.global.u32 [%a1], %r2;",
        "sub.s32 %r6, %r15, %r6; ld.shared.u8 %r9, [%r6+4095]; st.global.u32 [%a1], %r9;",
        "mul.wide.s32 %v2, %r6, 4; add.s64 %v3, %a0, %v2; ld.global.u32 %r9, [%v3+32]; ld.global.u32 %r10, [%v3+36]; st.global.v2.u32 [%a1], {%r9, %r10};",
    ];
    let fill = "shl.b32 %r7, %r2, 2; add.s32 %r7, %r7, %r15; st.shared.u32 [%r7], %r5; st.shared.u32 [%r7+3840], %r5; mov.u32 %r10, 0; bar.sync 0;\n";
    for condition in CONDITIONS {
        for index in INDICES {
            for access in ACCESSES {
                for threads in [64, 50] {
                    let body = format!("{fill}{condition} {index} @!%p1 bra end;\n{access}\nend:");
                    let _ = same_by_all_ways(&body, threads, 3, 1);
                }
            }
        }
    }
}

/// Loops that lanes leave one by one: of one block and of several, with guards, by two ways out, with loads and stores.
#[test]
fn loops_are_the_same_in_segments() {
    const TURNS: [&str; 6] = [
        "and.b32 %r6, %r2, 7;",
        "mul.lo.s32 %r6, %r2, 2654435761; shr.u32 %r6, %r6, 27;",
        "mov.u32 %r6, 0;",
        "setp.eq.u32 %p1, %r2, 37; selp.b32 %r6, 3000, 1, %p1;",
        "shr.u32 %r6, %r2, 4; mul.lo.s32 %r6, %r6, 30;",
        "sub.s32 %r6, 40, %r2; max.s32 %r6, %r6, 0;",
    ];
    const LOOPS: [&str; 7] = [
        // One block.
        "again: mad.lo.s32 %r8, %r8, 3, %r7; add.u32 %r7, %r7, 1; setp.le.u32 %p0, %r7, %r6; @%p0 bra again;",
        // With loads, and numbers of which lanes that do not run have others.
        "again: add.s32 %r9, %r7, %r2; and.b32 %r9, %r9, 1023; mul.wide.u32 %v1, %r9, 4; add.s64 %a2, %a0, %v1; ld.global.u32 %r10, [%a2]; \
         xor.b32 %r8, %r8, %r10; cvt.rn.f32.u32 %f1, %r10; fma.rn.f32 %f2, %f1, %f2, %f1; add.u32 %r7, %r7, 1; setp.le.u32 %p0, %r7, %r6; @%p0 bra again; mov.b32 %r11, %f2;",
        // Two ways out.
        "again: setp.gt.u32 %p0, %r7, %r6; @%p0 bra out; add.s32 %r9, %r7, %r2; and.b32 %r9, %r9, 4095; cvt.u64.u32 %v1, %r9; add.s64 %a2, %a0, %v1; ld.global.u8 %r10, [%a2]; \
         add.u32 %r8, %r8, %r10; setp.gt.u32 %p1, %r10, 250; @%p1 bra out; add.u32 %r7, %r7, 1; bra again; out:",
        // A guard, a store, and what lanes keep that do not take it.
        "again: and.b32 %r9, %r7, 1; setp.eq.u32 %p1, %r9, 0; @%p1 add.u32 %r8, %r8, 5; @!%p1 xor.b32 %r8, %r8, %r2; @%p1 st.global.u32 [%a1+8], %r8; \
         add.u32 %r7, %r7, 1; setp.gt.u32 %p0, %r7, %r6; @!%p0 bra again;",
        // Two sides that are too long for guards, and meet.
        "again: and.b32 %r9, %r7, 3; setp.eq.u32 %p1, %r9, 2; @%p1 bra side; LONG bra meet; side: sub.u32 %r8, %r8, %r7; LONG sub.u32 %r8, %r8, %r2; \
         meet: mul.lo.s32 %r8, %r8, 7; add.u32 %r7, %r7, 1; setp.le.u32 %p0, %r7, %r6; @%p0 bra again;",
        // Shared memory that is only read, and 64-bit numbers.
        "cvt.u64.u32 %v4, %r2; again: and.b32 %r9, %r7, 127; shl.b32 %r9, %r9, 2; add.s32 %r9, %r9, %r15; ld.shared.u32 %r10, [%r9]; cvt.u64.u32 %v5, %r10; add.s64 %v4, %v4, %v5; \
         add.u32 %r7, %r7, 1; setp.le.u32 %p0, %r7, %r6; @%p0 bra again; cvt.u32.u64 %r8, %v4;",
        // Within another loop.
        "outer: mov.u32 %r7, 0; again: mad.lo.s32 %r8, %r8, 3, %r7; add.u32 %r7, %r7, 1; setp.le.u32 %p0, %r7, %r6; @%p0 bra again; \
         add.u32 %r11, %r11, 1; setp.lt.u32 %p1, %r11, 3; @%p1 bra outer;",
    ];
    let fill = "shl.b32 %r7, %r2, 2; add.s32 %r7, %r7, %r15; st.shared.u32 [%r7], %r5; st.shared.u32 [%r7+2048], %r2; bar.sync 0;\n";
    let long = "add.u32 %r8, %r8, %r2; xor.b32 %r8, %r8, 0x155; ".repeat(15);
    for turns in TURNS {
        for body in LOOPS {
            let body = format!(
                "{fill}mov.u32 %r7, 0; mov.u32 %r8, 1; mov.u32 %r11, 0; mov.f32 %f2, 0f00000001; {turns}\n{}\nst.global.u32 [%a1], %r8; st.global.u32 [%a1+4], %r11;",
                body.replace("LONG", &long)
            );
            for threads in [64, 50, 256] {
                let memory = same_by_all_ways(&body, threads, 1, 0).expect("no fault");
                assert!(memory.iter().any(|&word| word != 0), "{body}");
            }
        }
    }
}

/// A lane goes outside in some turn of a loop: the fault is its, and what it had stored before is there.
#[test]
fn a_wrong_turn_of_a_loop_is_found_in_segments() {
    for lane in [0, 15, 17, 63] {
        for turn in [0, 1, 9] {
            for access in [
                "ld.global.u32 %r9, [%a2];",
                "st.global.u32 [%a2], %r8;",
                "ld.shared.u32 %r9, [%r10];",
            ] {
                let body = format!(
                    "and.b32 %r6, %r2, 7; add.u32 %r6, %r6, 3; setp.eq.u32 %p2, %r2, {lane}; selp.b32 %r6, 20, %r6, %p2; mov.u32 %r7, 0; mov.u32 %r8, 1;\n\
                     again: mov.u64 %a2, %a1; mov.u32 %r10, %r15; setp.eq.u32 %p1, %r7, {turn}; and.pred %p1, %p1, %p2; \
                     selp.b64 %a2, 0x100000, %a2, %p1; selp.b32 %r10, 4096, %r10, %p1; {access}\n\
                     add.u32 %r8, %r8, %r7; add.u32 %r7, %r7, 1; setp.le.u32 %p0, %r7, %r6; @%p0 bra again; st.global.u32 [%a1+4], %r8;"
                );
                let fault = same_by_all_ways(&body, 64, 1, 0).expect_err(access);
                assert_eq!(
                    (fault.kind.code(), fault.thread),
                    (700, [lane, 0, 0]),
                    "{access}"
                );
            }
        }
    }
}
