//! Loops that lanes go through alone do what they do in any other way: loads that find their addresses in what was loaded, of
//! all types, with guards and branches, in lanes that leave one by one.

use std::fmt::Write;

use ptx_vm::FaultKind;

use crate::segments::same_by_all_ways;

/// Before the loop: `%r13` turns, none of some lanes; `%r12` an index; results in `%r9`, `%r10`, `%f3`, `%d3`, `%v4`.
const BEFORE: &str = ".reg .b16 %h<4>;\n.reg .b32 %q<8>;\nand.b32 %r12, %r5, 255; mul.lo.u32 %r13, %r2, 5; and.b32 %r13, %r13, 7;\n\
    mov.u32 %r9, 77; mov.u32 %r10, 3; mov.f32 %f3, 0f3f800000; mov.f64 %d3, 0d3ff0000000000000; mov.u64 %v4, 5;\n\
    cvt.u64.u32 %v7, %r15; cvta.shared.u64 %v7, %v7; mov.u16 %h3, 9; setp.eq.u32 %p0, %r13, 0;\n@%p0 bra OUT;\n";

/// The start of a turn: a word at the index, and two words at an index that was loaded.
const LOADS: &str = "IN:\nmul.wide.u32 %v1, %r12, 4; add.s64 %a2, %a0, %v1; ld.global.u32 %r6, [%a2];\n\
    and.b32 %r12, %r6, 1023; mul.wide.u32 %v1, %r12, 4; add.s64 %a3, %a0, %v1;\n\
    ld.global.u32 %r7, [%a3]; ld.global.u32 %r8, [%a3+8];\n";

/// The end of a turn, and what is stored after the loop.
const AFTER: &str = "sub.u32 %r13, %r13, 1; setp.ne.u32 %p1, %r13, 0;\n@%p1 bra IN;\nOUT:\n\
    st.global.u32 [%a1], %r9; st.global.u32 [%a1+4], %r10; st.global.f32 [%a1+8], %f3; st.global.u64 [%a1+16], %v4;\n\
    st.global.f64 [%a1+24], %d3; st.global.u16 [%a1+32], %h3; st.global.u32 [%a1+36], %r12;";

/// By all ways, of blocks that end within a strip and of whole ones.
fn same(turn: &str) {
    for threads in [50, 256] {
        let body = format!("{BEFORE}{LOADS}{turn}\n{AFTER}");
        let memory = same_by_all_ways(&body, threads, 1, 0).expect("no fault");
        assert!(memory.iter().any(|&word| word != 0), "{turn}");
    }
}

#[test]
fn arithmetic_is_the_same_of_lanes_alone() {
    const TURNS: [&str; 34] = [
        "add.u32 %r9, %r9, %r7; sub.u32 %r10, %r8, %r10;",
        "sub.u32 %r9, %r7, %r9; add.u32 %r10, %r10, -5;",
        "sub.u32 %r9, 7, %r9; xor.b32 %r10, %r10, %r8;",
        "mul.lo.u32 %r9, %r9, %r7; and.b32 %r10, %r8, 0x7fffffff;",
        "or.b32 %r9, %r9, %r7; not.b32 %r10, %r8;",
        "mul.lo.u32 %r9, %r9, 13; xor.b32 %r9, %r9, 0xffff0000;",
        "shl.b32 %r9, %r7, 5; xor.b32 %r10, %r10, %r9; shr.u32 %r9, %r7, 31;",
        "shl.b32 %r9, %r7, 32; xor.b32 %r10, %r10, %r9; shr.u32 %r9, %r7, 40;",
        "shr.s32 %r9, %r7, 3; shr.s32 %r8, %r8, 99; xor.b32 %r10, %r10, %r8;",
        "min.s32 %r9, %r7, %r8; max.s32 %r10, %r10, %r7;",
        "min.u32 %r9, %r7, %r8; max.u32 %r10, %r10, %r7;",
        "min.s32 %r9, %r7, -4; max.u32 %r10, %r10, 12;",
        "mul.wide.s32 %v4, %r7, %r8;",
        "mul.wide.u32 %v4, %r7, %r8;",
        "mul.wide.s32 %v5, %r7, 8; add.s64 %v4, %v4, %v5;",
        "mul.wide.s32 %v5, %r7, -8; sub.s64 %v4, %v4, %v5;",
        "mul.wide.u32 %v5, %r7, 100; xor.b64 %v4, %v4, %v5;",
        "cvt.s64.s32 %v5, %r7; sub.s64 %v4, %v5, %v4;",
        "cvt.u64.u32 %v5, %r7; shl.b64 %v4, %v5, 3; shr.u64 %v5, %v4, 9; cvt.u32.u64 %r9, %v5;",
        "cvt.u64.u32 %v5, %r7; or.b64 %v4, %v4, %v5; and.b64 %v4, %v4, 0x123456789abcdef; add.s64 %v4, %v4, 0x100000000;",
        "setp.lt.s32 %p2, %r7, %r8; selp.b32 %r9, %r7, %r9, %p2;",
        "setp.le.u32 %p2, %r7, 4096; selp.b32 %r9, 17, %r9, %p2;",
        "setp.gt.u32 %p2, %r7, %r8; setp.ge.s32 %p3, %r7, 0; and.pred %p2, %p2, %p3; selp.b32 %r9, %r7, -9, %p2;",
        "setp.eq.s32 %p2, %r7, %r8; setp.lt.s32 %p3, %r7, 0; or.pred %p2, %p2, %p3; not.pred %p2, %p2; selp.u32 %r9, 1, 0, %p2;",
        "cvt.u64.u32 %v5, %r7; cvt.s64.s32 %v6, %r8; setp.lt.s64 %p2, %v5, %v6; selp.b64 %v4, %v5, %v4, %p2;",
        "cvt.u64.u32 %v5, %r7; cvt.s64.s32 %v6, %r8; setp.gt.u64 %p2, %v5, %v6; selp.b64 %v4, %v6, 12, %p2;",
        "cvt.rn.f32.u32 %f1, %r7; cvt.rn.f32.s32 %f2, %r8; add.f32 %f3, %f1, %f2;",
        "cvt.rn.f32.u32 %f1, %r7; cvt.rn.f32.s32 %f2, %r8; sub.f32 %f3, %f1, %f3; mul.f32 %f3, %f3, %f2;",
        "cvt.rn.f32.u32 %f1, %r7; cvt.rn.f32.s32 %f2, %r8; div.rn.f32 %f2, %f1, %f2; fma.rn.f32 %f3, %f1, %f2, %f3;",
        "cvt.rn.f32.u32 %f1, %r7; fma.rn.f32 %f3, %f3, 0f3f000000, %f1; sqrt.rn.f32 %f2, %f3; mov.f32 %f3, %f2;",
        "cvt.rn.f32.s32 %f1, %r7; setp.lt.f32 %p2, %f1, %f3; selp.u32 %r9, 4, 5, %p2; mov.f32 %f3, %f1;",
        "ld.global.f64 %d1, [%a0+64]; fma.rn.f64 %d3, %d3, %d1, %d1; add.f64 %d3, %d3, %d1; mul.f64 %d2, %d3, %d3; mov.f64 %d3, %d2;",
        "ld.global.u8 %h1, [%a3+1]; ld.global.u16 %h2, [%a3+2]; xor.b16 %h3, %h3, %h1; xor.b16 %h3, %h3, %h2;",
        "ld.global.v2.u32 {%q1, %q2}, [%a0+8]; ld.global.v4.u32 {%q3, %q4, %q5, %q6}, [%a0+32]; add.u32 %r9, %q1, %q4; xor.b32 %r10, %r10, %q6;",
    ];
    for turn in TURNS {
        same(turn);
        // The same under a guard, and behind a branch of the loop.
        let mut guarded = String::from("setp.lt.u32 %p3, %r7, 0x80000000;\n");
        if !turn.contains("%p3") {
            for part in turn.split_inclusive(';') {
                let _ = writeln!(guarded, "@%p3 {}", part.trim());
            }
            same(&guarded);
            same(&format!(
                "and.b32 %r11, %r7, 3; setp.eq.u32 %p3, %r11, 1;\n@%p3 bra PAST;\n{turn}\nadd.u32 %r10, %r10, 1;\nPAST:\n"
            ));
        }
    }
}

/// More values than a processor has registers, all of which a turn changes.
#[test]
fn what_does_not_fit_into_registers_is_in_slots() {
    let mut turn = String::new();
    for at in 0..8 {
        let _ = writeln!(
            turn,
            "ld.global.u32 %q{at}, [%a3+{}]; ld.global.u64 %v{}, [%a0+{}];",
            4 * at,
            5 + at % 2,
            64 + 8 * at
        );
    }
    for at in 0..8 {
        let _ = writeln!(
            turn,
            "xor.b32 %r9, %r9, %q{at}; add.u32 %r10, %r10, %q{};",
            7 - at
        );
    }
    turn += "xor.b64 %v4, %v4, %v5; add.s64 %v4, %v4, %v6;";
    same(&turn);
}

/// Stores of all widths, each lane to its own place, and what it then loads from there.
#[test]
fn stores_are_the_same_of_lanes_alone() {
    same(
        "st.global.u32 [%a1+40], %r7; ld.global.u32 %q1, [%a1+40]; add.u32 %r9, %r9, %q1; cvt.u64.u32 %v5, %r8;\n\
         st.global.u64 [%a1+48], %v5; ld.global.u64 %v6, [%a1+48]; xor.b64 %v4, %v4, %v6; st.global.f32 [%a1+56], %f3;\n\
         st.global.u8 [%a1+60], %h3; st.global.u32 [%a1+56], 12;",
    );
}

/// Generic addresses of shared and local memory are the executor's to find, in the midst of a turn.
#[test]
fn the_executor_is_asked_for_a_lane() {
    same(
        "and.b32 %q1, %r7, 1023; mul.wide.u32 %v6, %q1, 4; add.s64 %v5, %v7, %v6; ld.u32 %q2, [%v5]; add.u32 %r9, %r9, %q2; ld.v2.u32 {%q3, %q4}, [%a0+16]; xor.b32 %r10, %r10, %q4;\n\
         cvt.rn.f32.u32 %f1, %r8; ld.f32 %f2, [%v5]; add.f32 %f2, %f2, %f1; fma.rn.f32 %f3, %f2, %f1, %f3;\n\
         ld.global.u32 %q5, [%a3]; ld.global.u32 %q6, [%a3+4]; xor.b32 %r9, %r9, %q6;",
    );
}

/// Loads from shared memory, whose addresses have 32 bits and wrap around.
#[test]
fn shared_memory_is_read_by_lanes_alone() {
    same(
        "and.b32 %q1, %r7, 0xffc; add.u32 %q1, %q1, %r15; ld.shared.u32 %q2, [%q1]; add.u32 %r9, %r9, %q2;\n\
         add.u32 %q3, %q1, 0xfffffff0; ld.shared.u32 %q4, [%q3+16]; ld.shared.u8 %h1, [%q1+3]; xor.b32 %r10, %r10, %q4;",
    );
}

/// A lane that reads or writes where nothing is, or not at a multiple of its size, faults as ever; one whose guard leaves it out does
/// not.
#[test]
fn faults_of_lanes_alone_are_the_same() {
    let body = |turn: &str| format!("{BEFORE}{LOADS}{turn}\n{AFTER}");
    let far =
        "setp.eq.u32 %p2, %r2, 37; selp.b64 %v5, 0xc00000000, 0, %p2; add.s64 %v6, %a3, %v5;\n";
    let odd = "setp.eq.u32 %p2, %r2, 37; selp.b64 %v5, 2, 0, %p2; add.s64 %v6, %a3, %v5;\n";
    for (made, kind) in [
        (far, FaultKind::IllegalAddress),
        (odd, FaultKind::MisalignedAddress),
    ] {
        for access in ["ld.global.u32 %r9, [%v6];", "st.global.u32 [%v6], %r6;"] {
            let more = "ld.global.u32 %q1, [%a0+4]; ld.global.u32 %q2, [%a0+8];";
            let fault = same_by_all_ways(&body(&format!("{made}{access}\n{more}")), 256, 1, 0);
            let fault = fault.expect_err("lane 37 faults");
            assert_eq!(fault.kind, kind);
            assert_eq!(fault.thread, [37, 0, 0]);
            let guarded = format!("{made}not.pred %p3, %p2;\n@%p3 {access}\n{more}");
            let fine = guarded.replace("st.global.u32 [%v6]", "st.global.u32 [%a1+44]");
            same_by_all_ways(&body(&fine), 256, 1, 0).expect("lane 37 is left out");
        }
    }
}

/// More turns than a budget has: lanes go on where they were.
#[test]
fn lanes_alone_go_on_after_their_budget() {
    let before = BEFORE.replace(
        "and.b32 %r13, %r13, 7;",
        "and.b32 %r13, %r13, 7; mul.lo.u32 %r13, %r13, 3000;",
    );
    let turn = "add.u32 %r9, %r9, %r7; xor.b32 %r10, %r10, %r8;";
    same_by_all_ways(&format!("{before}{LOADS}{turn}\n{AFTER}"), 40, 1, 0).expect("no fault");
}

/// The base of all that threads store, the middle of what they load, and an index of a word of the thread's own.
const BASES: &str =
    "ld.param.u64 %a4, [to]; add.s64 %a5, %a0, 8192; shl.b32 %q7, %r5, 4; add.u32 %q7, %q7, 11;\n";

/// As [`same`], with bases that all lanes share.
fn same_of_elements(turn: &str) {
    for threads in [50, 256] {
        for guard in ["", "@%p3 "] {
            let mut guarded = String::from("setp.lt.u32 %p3, %r7, 0x80000000;\n");
            for part in turn.split_inclusive(';') {
                let _ = writeln!(guarded, "{guard}{}", part.trim());
            }
            let body = format!("{BASES}{BEFORE}{LOADS}{guarded}\n{AFTER}").replacen(
                ".reg .b16",
                "\n.reg .b16",
                1,
            );
            // Registers are declared before they are used.
            let (declared, rest) = BEFORE.split_once("and.b32").expect("declarations");
            let body = body.replacen(BEFORE, &format!("and.b32{rest}"), 1);
            let memory = same_by_all_ways(&format!("{declared}\n{body}"), threads, 1, 0);
            let memory = memory.expect("no fault");
            assert!(memory.iter().any(|&word| word != 0), "{turn}");
        }
    }
}

#[test]
fn elements_by_index_are_the_same_of_lanes_alone() {
    for turn in [
        "and.b32 %q1, %r7, 4095; cvt.u64.u32 %v5, %q1; add.s64 %v6, %a0, %v5; ld.global.u8 %h1, [%v6+3]; xor.b16 %h3, %h3, %h1;",
        "and.b32 %q1, %r7, 4095; mul.wide.u32 %v5, %q1, 2; add.s64 %v6, %a0, %v5; ld.global.u16 %h1, [%v6+2]; xor.b16 %h3, %h3, %h1;",
        "and.b32 %q1, %r7, 4095; mul.wide.u32 %v5, %q1, 8; add.s64 %v6, %v5, %a0; ld.global.u64 %v6, [%v6]; xor.b64 %v4, %v4, %v6;",
        "and.b32 %q1, %r7, 1023; mul.wide.u32 %v5, %q1, 4; add.s64 %v6, %a0, %v5; ld.global.f32 %f1, [%v6]; mul.f32 %f3, %f1, %f1;",
        // Indices below 0, and one that goes over the end of its 32 bits.
        "shr.s32 %q1, %r7, 21; mul.wide.s32 %v5, %q1, 4; add.s64 %v6, %a5, %v5; ld.global.u32 %q2, [%v6]; add.u32 %r9, %r9, %q2;",
        "shr.s32 %q1, %r7, 21; cvt.s64.s32 %v5, %q1; add.s64 %v6, %a5, %v5; ld.global.u8 %h1, [%v6]; xor.b16 %h3, %h3, %h1;",
        "or.b32 %q1, %r7, 0xfffffc00; add.u32 %q1, %q1, 1024; mul.wide.u32 %v5, %q1, 4; add.s64 %v6, %a0, %v5; ld.global.u32 %q2, [%v6]; add.u32 %r9, %r9, %q2;",
        // Elements that are wider than what an index counts, and pairs of them.
        "and.b32 %q1, %r7, 1022; mul.wide.u32 %v5, %q1, 4; add.s64 %v6, %a0, %v5; ld.global.u64 %v5, [%v6]; ld.global.v2.u32 {%q2, %q3}, [%v6+8]; xor.b64 %v4, %v4, %v5; add.u32 %r9, %q2, %q3;",
        // The index is written before it is used as one, or by the load.
        "and.b32 %q1, %r7, 1023; mul.wide.u32 %v5, %q1, 4; add.s64 %v6, %a0, %v5; add.u32 %q1, %q1, 77; ld.global.u32 %q2, [%v6]; add.u32 %r9, %q2, %q1;",
        "and.b32 %q1, %r7, 1023; mul.wide.u32 %v5, %q1, 4; add.s64 %v6, %a0, %v5; ld.global.u32 %q1, [%v6]; add.u32 %r9, %r9, %q1;",
        // The address serves something else as well.
        "and.b32 %q1, %r7, 1023; mul.wide.u32 %v5, %q1, 4; add.s64 %v6, %a0, %v5; ld.global.u32 %q2, [%v6]; sub.s64 %v6, %v6, %a0; add.s64 %v4, %v4, %v6; add.u32 %r9, %r9, %q2;",
        "and.b32 %q1, %r7, 1023; mul.wide.u32 %v5, %q1, 4; add.s64 %v6, %a0, %v5; add.u32 %q1, %q1, 7; ld.global.u32 %q2, [%v6+4]; sub.s64 %v6, %v6, %a0; add.s64 %v4, %v4, %v6; add.u32 %r9, %q1, %q2;",
        "and.b32 %q1, %r7, 1023; mul.wide.u32 %v5, %q1, 4; add.s64 %v6, %a0, %v5; ld.global.u32 %q2, [%v6+4]; ld.global.u32 %q1, [%v6]; sub.s64 %v6, %v6, %a0; add.s64 %v4, %v4, %v6; add.u32 %r9, %q1, %q2;",
        // Stores to a word of the lane's own, of what is in a register, in a slot and constant, and loads of it.
        "mul.wide.u32 %v5, %q7, 4; add.s64 %v6, %a4, %v5; st.global.u32 [%v6], %r7; ld.global.u32 %q2, [%v6]; add.u32 %r9, %r9, %q2; ld.global.u32 %q3, [%a0]; ld.global.u32 %q4, [%a0+4];",
        "mul.wide.u32 %v5, %q7, 4; add.s64 %v6, %a4, %v5; st.global.u32 [%v6], %r5; st.global.u32 [%v6+4], 12; ld.global.u32 %q2, [%v6]; add.u32 %r9, %r9, %q2;",
        "mul.wide.u32 %v5, %q7, 4; add.s64 %v6, %a4, %v5; st.global.f32 [%v6], %f3; cvt.rn.f32.u32 %f3, %r7; ld.global.u32 %q3, [%a0]; ld.global.u32 %q4, [%a0+4];",
        // Of shared memory by generic addresses.
        "and.b32 %q1, %r7, 1023; mul.wide.u32 %v5, %q1, 4; add.s64 %v6, %v7, %v5; ld.u32 %q2, [%v6]; add.u32 %r9, %r9, %q2; ld.global.u32 %q3, [%a0]; xor.b32 %r10, %r10, %q3;",
    ] {
        same_of_elements(turn);
    }
    // More arrays than a loop keeps counts of.
    let mut turn =
        String::from("and.b32 %q1, %r7, 1023; mul.wide.u32 %v5, %q1, 4; add.s64 %v6, %a0, %v5;");
    for at in 0..12 {
        let _ = write!(
            turn,
            " ld.global.u32 %q2, [%v6+{}]; xor.b32 %r9, %r9, %q2;",
            4 * at
        );
    }
    same_of_elements(&turn);
    same_of_elements(&format!(
        "{turn} sub.s64 %v6, %v6, %a0; add.s64 %v4, %v4, %v6;"
    ));
}

/// Guarded accesses whose guard depends on what was loaded: stores that go nowhere, loads that are not taken, and loads of what is
/// mostly there already, but is not where the lane has stored something else in between.
#[test]
fn guarded_accesses_are_the_same_without_a_jump() {
    const OWN: &str = "mul.wide.u32 %v5, %q7, 4; add.s64 %v6, %a4, %v5;";
    for guarded in [
        // Of what a register has, of a slot's and of a constant.
        "@%p3 add.u32 %q1, %r7, 3;\n@%p3 st.global.u32 [%v6], %q1; ld.global.u32 %q2, [%v6]; add.u32 %r9, %r9, %q2;",
        "@!%p3 st.global.u32 [%v6], %r5; ld.global.u32 %q2, [%v6]; xor.b32 %r9, %r9, %q2;",
        "@%p3 st.global.u32 [%v6], 12;\n@%p3 st.global.u32 [%v6+4], %r8; ld.global.u64 %v5, [%a1+48]; xor.b64 %v4, %v4, %v5;",
        "@%p3 st.global.u64 [%a1+48], %v4; ld.global.u64 %v5, [%a1+48]; add.s64 %v4, %v5, 7; add.s64 %v6, %v6, 0;",
        "cvt.u16.u32 %h2, %r7;\n@%p3 st.global.u16 [%a1+50], %h2; ld.global.u32 %q2, [%a1+48]; add.u32 %r9, %r9, %q2;",
        "@%p3 st.global.f32 [%v6], %f3; cvt.rn.f32.u32 %f3, %r7; ld.global.u32 %q2, [%v6]; add.u32 %r9, %r9, %q2;",
        // From an index that changes, of 8 bytes, and by an address.
        "and.b32 %q1, %r7, 1023;\n@%p3 mul.wide.u32 %v5, %q1, 4;\n@%p3 add.s64 %v7, %a0, %v5;\n@%p3 ld.global.u32 %r9, [%v7]; xor.b32 %r10, %r10, %r9;",
        "@!%p3 ld.global.u32 %r9, [%a3+12]; xor.b32 %r10, %r10, %r9;",
        "and.b32 %q1, %r7, 1022; mul.wide.u32 %v5, %q1, 4; add.s64 %v7, %a0, %v5;\n@%p3 ld.global.u64 %v4, [%v7]; xor.b64 %v4, %v4, 99;",
        // From one place, where something else may be each time, or is once in a while.
        "st.global.u32 [%a1+48], %r8;\n@%p3 ld.global.u32 %r9, [%a1+48]; xor.b32 %r10, %r10, %r9;",
        "st.global.u32 [%a1+48], %r8;\n@!%p3 ld.global.u32 %r9, [%a1+48]; xor.b32 %r10, %r10, %r9;",
        "and.b32 %q2, %r8, 1; st.global.u32 [%a1+48], %q2;\n@%p3 ld.global.u32 %r9, [%a1+48]; add.u32 %r10, %r10, %r9;",
        "st.global.u32 [%a1+48], %r8;\n@%p3 ld.global.u64 %v4, [%a1+48]; xor.b32 %r10, %r10, %r8;",
        "@%p3 add.u32 %q1, %q7, 2;\n@%p3 mul.wide.u32 %v5, %q1, 4;\n@%p3 add.s64 %v7, %a4, %v5;\n@%p3 ld.global.u32 %r9, [%v7]; st.global.u32 [%a1+52], %r8; add.u32 %r10, %r10, %r9;",
    ] {
        for threads in [50, 256] {
            let (declared, rest) = BEFORE.split_once("and.b32").expect("declarations");
            let before = format!("{declared}\n{BASES}{OWN} and.b32{rest}");
            let turn = format!("setp.lt.u32 %p3, %r7, 0x80000000;\n{guarded}\n");
            let body = format!("{before}{LOADS}{turn}\n{AFTER}");
            let memory = same_by_all_ways(&body, threads, 1, 0).expect("no fault");
            assert!(memory.iter().any(|&word| word != 0), "{turn}");
        }
    }
}

/// An index that leads out of memory, above and below, faults as ever, and so does a base that is no multiple of the element's size.
#[test]
fn faults_of_elements_are_the_same() {
    let (declared, rest) = BEFORE.split_once("and.b32").expect("declarations");
    let lane = "setp.eq.u32 %p2, %r2, 37; and.b32 %q1, %r7, 1023;";
    for (made, base, kind) in [
        (
            "selp.b32 %q1, 0xfffffff0, %q1, %p2; mul.wide.u32 %v5, %q1, 4;",
            "%a0",
            FaultKind::IllegalAddress,
        ),
        (
            "selp.b32 %q1, 0x7fffffff, %q1, %p2; mul.wide.s32 %v5, %q1, 4;",
            "%a0",
            FaultKind::IllegalAddress,
        ),
        (
            "selp.b32 %q1, 0xf0000000, %q1, %p2; mul.wide.s32 %v5, %q1, 4;",
            "%a0",
            FaultKind::IllegalAddress,
        ),
        (
            "selp.b32 %q1, 3, 0, %p2; cvt.u64.u32 %v5, %q1;",
            "%a0",
            FaultKind::MisalignedAddress,
        ),
        (
            "mul.wide.u32 %v5, %q1, 4;",
            "%a4",
            FaultKind::MisalignedAddress,
        ),
    ] {
        for access in ["ld.global.u32 %r9, [%v6];", "st.global.u32 [%v6], %r6;"] {
            if access.starts_with("st") && base == "%a0" && !made.contains("selp.b32 %q1, 3") {
                // Other lanes would store where lanes load.
                continue;
            }
            let turn = format!(
                "{lane} {made} add.s64 %v6, {base}, %v5; {access} ld.global.u32 %q3, [%a0]; ld.global.u32 %q4, [%a0+4];"
            );
            let before = format!("{declared}\nadd.s64 %a4, %a0, 2; and.b32{rest}");
            let fault = same_by_all_ways(&format!("{before}{LOADS}{turn}\n{AFTER}"), 256, 1, 0);
            assert_eq!(fault.expect_err("a lane faults").kind, kind, "{turn}");
        }
    }
}
