//! Loops that lanes leave as soon as each has found something: what each has as it leaves is the same as by operations, whatever is
//! compared, wherever elements are, and however many turns it takes.

use ptx_vm::FaultKind;

use crate::segments::same_by_all_ways;

/// `%q0` is what each lane begins with, `%q1` counts turns up to `%q9`; `tile` has words of 0 to 3.
const HEAD: &str = ".reg .b32 %q<32>;\n.reg .b64 %u<16>;\n.reg .b16 %h<8>;\n.reg .pred %s<6>;\n\
    and.b32 %q20, %r2, 1023; shl.b32 %q21, %q20, 2; add.s32 %q22, %r15, %q21; mul.lo.u32 %q23, %q20, 0x9e3779b1; shr.u32 %q23, %q23, 30;\n\
    st.shared.u32 [%q22], %q23;\nbar.sync 0; mov.u32 %q9, 16; mov.u32 %q3, 0; mov.u32 %q4, 77; mov.u32 %q5, 9;\n";
/// What is stored: the counter and another number that lanes share, and one that they do not.
const STORE: &str = "\nst.global.u32 [%a1], %q1; st.global.u32 [%a1+4], %q3; st.global.u32 [%a1+8], %q4; st.global.u32 [%a1+12], %q5;";

/// In blocks that end within a strip, of whole strips, and of two lane groups.
fn same(body: &str, left: u32) {
    for threads in [1, 20, 256, 300] {
        let memory = same_by_all_ways(&format!("{HEAD}{body}{STORE}"), threads, 3, left);
        let memory = memory.expect("no fault");
        // Of few lanes all may be gone.
        assert!(
            threads < 64 || memory.iter().any(|&word| word != 0),
            "{body}"
        );
    }
}

/// A loop by its parts: how lanes begin, how the element is loaded into `%q6`, what is loaded for all into `%q7`, when lanes leave.
fn search(lanes: &str, load: &str, shared: &str, leaves: &str) -> String {
    format!(
        "{lanes} mov.u32 %q1, 0;\nTURN:\nadd.s32 %q2, %q1, %q0; {load} {shared}\n{leaves}\n\
         add.s32 %q1, %q1, 1; setp.lt.u32 %s1, %q1, %q9;\n@%s1 bra TURN;\nOUT:"
    )
}

const BYTES: &str = "cvt.u64.u32 %u1, %q2; add.s64 %u2, %a0, %u1; ld.global.u8 %h1, [%u2]; and.b16 %h1, %h1, 3; cvt.u32.u16 %q6, %h1;";
const WORDS: &str = "mul.wide.u32 %u1, %q2, 4; add.s64 %u2, %a0, %u1; ld.global.u32 %q6, [%u2]; and.b32 %q6, %q6, 3;";
const SHARED: &str = "shl.b32 %q10, %q1, 2; add.s32 %q11, %q10, %r15; ld.shared.u32 %q7, [%q11];";
const LEAVES: &str = "setp.ne.u32 %s0, %q6, %q7;\n@%s0 bra OUT;";

#[test]
fn lanes_leave_with_the_turn_in_which_they_have_found_it() {
    const LANES: [&str; 7] = [
        "mov.u32 %q0, %r5;",
        "add.s32 %q0, %r5, 37;",
        // No rows: every third element, backwards, by pairs turned round, and of some strips alone.
        "mul.lo.u32 %q0, %r5, 3;",
        "sub.s32 %q0, 2000, %r2;",
        "xor.b32 %q0, %r2, 1;",
        "mov.u32 %q0, 5;\n@%p0 mov.u32 %q0, %r2;",
        "shr.u32 %q8, %r2, 4; mul.lo.u32 %q8, %q8, 100; and.b32 %q0, %r2, 15; add.s32 %q0, %q0, %q8;",
    ];
    const LOADS: [&str; 6] = [
        BYTES,
        WORDS,
        "mul.wide.s32 %u1, %q2, 4; add.s64 %u2, %u1, %a0; ld.global.u32 %q6, [%u2+20]; and.b32 %q6, %q6, 3;",
        "mul.wide.u32 %u1, %q2, 2; add.s64 %u2, %a0, %u1; ld.global.u16 %h1, [%u2+2]; and.b16 %h1, %h1, 3; cvt.u32.u16 %q6, %h1;",
        // Of two arrays, and an element that is longer than its step.
        "mul.wide.u32 %u1, %q2, 4; add.s64 %u2, %a0, %u1; ld.global.u32 %q6, [%u2]; add.s64 %u4, %a0, 512; add.s64 %u3, %u4, %u1;\n\
         ld.global.u32 %q8, [%u3]; xor.b32 %q6, %q6, %q8; and.b32 %q6, %q6, 3;",
        "mul.wide.u32 %u1, %q2, 8; add.s64 %u2, %a0, %u1; ld.global.u64 %u3, [%u2]; cvt.u32.u64 %q6, %u3; and.b32 %q6, %q6, 3;",
    ];
    for lanes in LANES {
        for load in LOADS {
            let lanes = format!("setp.lt.u32 %p0, %r2, 40; {lanes}");
            same(&search(&lanes, load, SHARED, LEAVES), 0);
        }
    }
}

#[test]
fn lanes_leave_on_any_comparison() {
    for name in ["eq", "ne", "lt", "le", "gt", "ge"] {
        for ty in ["u32", "s32"] {
            for bang in ["", "!"] {
                // Numbers of both signs, small ones among them.
                let less = "sub.s32 %q6, %q6, 2; sub.s32 %q7, %q7, 2;";
                let leaves = format!("{less} setp.{name}.{ty} %s0, %q6, %q7;\n@{bang}%s0 bra OUT;");
                same(&search("mov.u32 %q0, %r5;", WORDS, SHARED, &leaves), 0);
                let leaves = format!("setp.{name}.{ty} %s0, %q6, 1;\n@{bang}%s0 bra OUT;");
                same(&search("mov.u32 %q0, %r5;", BYTES, SHARED, &leaves), 0);
            }
        }
    }
    const OTHERS: [&str; 7] = [
        "cvt.rn.f32.u32 %f1, %q6; cvt.rn.f32.u32 %f2, %q7; setp.neu.f32 %s0, %f1, %f2;\n@%s0 bra OUT;",
        "cvt.rn.f32.u32 %f1, %q6; cvt.rn.f32.u32 %f2, %q7; setp.eq.f32 %s0, %f1, %f2;\n@!%s0 bra OUT;",
        "cvt.u64.u32 %u5, %q6; cvt.u64.u32 %u6, %q7; setp.ne.s64 %s0, %u5, %u6;\n@%s0 bra OUT;",
        "setp.ne.u32 %s2, %q6, %q7; setp.gt.u32 %s3, %q6, 1; and.pred %s0, %s2, %s3;\n@%s0 bra OUT;",
        // Two ways out, and what lanes share decides as well: that a lane leaves, and that all do.
        "setp.gt.u32 %s0, %q6, 2;\n@%s0 bra OUT;\nsetp.lt.u32 %s2, %q6, %q7;\n@%s2 bra OUT;",
        "setp.gt.u32 %s2, %q7, 2;\n@%s2 bra OUT;\nsetp.ne.u32 %s0, %q6, %q7;\n@%s0 bra OUT;",
        "setp.lt.u32 %s2, %q7, 3; setp.lt.u32 %s3, %q1, 7; and.pred %s2, %s2, %s3;\n@!%s2 bra OUT;\nsetp.ne.u32 %s0, %q6, %q7;\n@%s0 bra OUT;",
    ];
    for leaves in OTHERS {
        same(&search("mov.u32 %q0, %r5;", WORDS, SHARED, leaves), 0);
    }
}

/// What all lanes share in a turn: loads of all widths, sums and products, and what is needed after the loop.
#[test]
fn what_lanes_share_is_one_number() {
    const SHARES: [&str; 14] = [
        "mov.u32 %q7, 2;",
        "ld.shared.u32 %q7, [%r15+24];",
        // Two numbers in one turn, of which lanes have either.
        "and.b32 %q7, %q1, 3; xor.b32 %q6, %q6, %q7; add.s32 %q7, %q7, 1;",
        "shl.b32 %q10, %q1, 2; add.s32 %q11, %q10, %r15; ld.shared.u32 %q7, [%q11+8]; add.s32 %q3, %q3, %q7;",
        "add.s32 %q10, %q1, %r15; ld.shared.u8 %h2, [%q10]; cvt.u32.u16 %q7, %h2; xor.b32 %q3, %q3, %q7; mul.lo.u32 %q3, %q3, 5;",
        "mul.wide.u32 %u3, %q1, 4; add.s64 %u4, %a0, %u3; ld.global.u32 %q7, [%u4]; and.b32 %q7, %q7, 3; mov.u32 %q3, %q7;",
        "cvt.u64.u32 %u3, %q1; add.s64 %u4, %a0, %u3; ld.global.u8 %h2, [%u4+9]; and.b16 %h2, %h2, 3; cvt.u32.u16 %q7, %h2;",
        "cvt.s64.s32 %u3, %q1; sub.s64 %u4, %u3, -8; shl.b64 %u5, %u4, 1; add.s64 %u6, %a0, %u5; ld.global.u16 %h2, [%u6]; and.b16 %h2, %h2, 3;\n\
         cvt.u32.u16 %q7, %h2;",
        "mul.lo.u32 %q10, %q1, %q1; sub.s32 %q3, %q3, %q10; and.b32 %q7, %q10, 3; or.b32 %q3, %q3, 1;",
        "and.b32 %q7, %q1, 3; setp.lt.u32 %s4, %q7, 2; selp.b32 %q3, %q3, %q7, %s4;",
        // More than there is room for, and what each lane has for itself.
        "and.b32 %q7, %q1, 3; add.s32 %q10, %q1, 3; mul.lo.u32 %q11, %q10, %q1; xor.b32 %q12, %q11, %q10; sub.s32 %q13, %q12, %q1; add.s32 %q3, %q3, %q13;",
        "and.b32 %q7, %q1, 3; add.s32 %q4, %q6, 1;",
        "sub.s32 %q10, %q1, 3; shr.s32 %q3, %q10, 1; shl.b32 %q7, %q3, 3; shr.u32 %q7, %q7, 30;",
        "cvt.s64.s32 %u5, %q1; sub.s64 %u5, %u5, 3; shl.b64 %u5, %u5, 4; shr.u64 %u5, %u5, 60; cvt.u32.u64 %q3, %u5; and.b32 %q7, %q3, 3;",
    ];
    for shared in SHARES {
        same(&search("mov.u32 %q0, %r5;", WORDS, shared, LEAVES), 0);
        let after = format!("{LEAVES}\nadd.s32 %q3, %q3, %q7; mov.u32 %q5, %q3;");
        same(&search("mov.u32 %q0, %r5;", BYTES, shared, &after), 0);
    }
}

/// Turns that are none, or so many that the code gives up; and lanes that have gone before the loop.
#[test]
fn as_many_turns_as_it_takes() {
    for count in ["0", "1", "2", "1500"] {
        // Nobody but the last lane finds what is looked for before all have made their turns.
        let leaves = "setp.eq.u32 %s0, %q6, 0x7fffffff;\n@%s0 bra OUT;";
        for lanes in [
            "mov.u32 %q0, %r5;",
            "mov.u32 %q0, %r5; and.b32 %q8, %r2, 3; setp.eq.u32 %p1, %q8, 1;\n@%p1 exit;\nbar.sync 0;",
            "mov.u32 %q0, %r5; setp.lt.u32 %p1, %r2, 35;\n@%p1 exit;\nbar.sync 0;",
        ] {
            let lanes = format!("mov.u32 %q9, {count}; {lanes}");
            same(&search(&lanes, WORDS, SHARED, LEAVES), 0);
            same(&search(&lanes, WORDS, "", leaves), 0);
        }
    }
}

/// Where lanes go on after the loop: another one, and a barrier at which they have their numbers from before.
#[test]
fn lanes_go_on_after_a_search() {
    let first = search(
        "mov.u32 %q0, %r5; add.s32 %q5, %r0, 4;",
        WORDS,
        SHARED,
        LEAVES,
    );
    same(
        &format!(
            "{first}\nmov.u32 %q24, %q1; bar.sync 0; mov.u32 %q25, %q0; mov.u32 %q26, 0;\nAGAIN:\nadd.s32 %q27, %q25, %q26;\n\
             mul.wide.u32 %u7, %q27, 4; add.s64 %u8, %a0, %u7; ld.global.u32 %q28, [%u8]; and.b32 %q28, %q28, 7; setp.lt.u32 %s0, %q28, %q5;\n\
             @!%s0 bra DONE;\nadd.s32 %q26, %q26, 1; setp.lt.u32 %s1, %q26, 9;\n@%s1 bra AGAIN;\nDONE:\nbar.sync 0;\n\
             mad.lo.s32 %q4, %q26, 100, %q24; add.s32 %q3, %q3, %r0;"
        ),
        0,
    );
    // Many times, and nothing is needed of the loop but what lanes have found.
    same(
        &format!(
            "mov.u32 %q30, 0;\nROUND:\nmov.u32 %q9, 5; {} bar.sync 0; add.s32 %q3, %q3, %q30; add.s32 %q30, %q30, 1; setp.lt.u32 %s4, %q30, 6;\n\
             @%s4 bra ROUND;",
            search("add.s32 %q0, %r5, %q30;", WORDS, SHARED, LEAVES)
        ),
        0,
    );
}

/// Elements and numbers that are not there: the first lane that looks for one is at fault.
#[test]
fn what_is_outside_is_a_fault() {
    let fault = |body: &str, left: u32| {
        let body = format!("{HEAD}{body}{STORE}");
        same_by_all_ways(&body, 256, 1, left)
            .expect_err("outside")
            .kind
    };
    let far = search(
        "add.s32 %q0, %r5, %r1;",
        WORDS,
        "mov.u32 %q7, 9;",
        "setp.eq.u32 %s0, %q6, %q7;\n@%s0 bra OUT;",
    );
    assert!(matches!(
        fault(&far, 0x2000_0000),
        FaultKind::IllegalAddress
    ));
    // Behind the end of shared memory, and between words.
    let shared = "mul.lo.u32 %q12, %q1, 900; add.s32 %q10, %q12, %r15; ld.shared.u32 %q7, [%q10]; or.b32 %q7, %q7, 9;";
    let leaves = "setp.eq.u32 %s0, %q6, %q7;\n@%s0 bra OUT;";
    fault(&search("mov.u32 %q0, %r5;", WORDS, shared, leaves), 0);
    let shared = "shr.u32 %q12, %q1, 2; add.s32 %q10, %q12, %r15; ld.shared.u32 %q7, [%q10]; or.b32 %q7, %q7, 9;";
    fault(&search("mov.u32 %q0, %r5;", WORDS, shared, leaves), 0);
    // Over the end of an index, of words before it and behind.
    let wraps = "sub.s32 %q0, %r2, 7; add.s32 %q0, %q0, %r1;";
    let turned = "mul.wide.s32 %u1, %q2, 4; add.s64 %u2, %a0, %u1; ld.global.u32 %q6, [%u2+64]; and.b32 %q6, %q6, 3;";
    same(&search(wraps, turned, SHARED, LEAVES), 0);
    fault(&search(wraps, WORDS, SHARED, LEAVES), 0);
}
