//! Loops whose indices, addresses of shared memory and counters are a number of the thread taken further by what all lanes share: the same
//! as by operations, whatever wraps around, leaves early, lies outside, or is changed between an address and its access.

use ptx_vm::{Fault, FaultKind};

use crate::segments::same_by_all_ways;

/// `%q0`: a place in rows of `%r0` words, brought below 4096 at each access; `%q6` is what is found; results of threads stand at `%a5`.
const HEAD: &str = ".reg .b32 %q<40>;\n.reg .b64 %u<16>;\nmov.u32 %r6, %tid.y; shl.b32 %r7, %r3, 5; add.s32 %r8, %r7, %r2;\n\
    ld.param.u64 %a5, [to]; mad.lo.s32 %q7, %r6, 64, %r8; mul.wide.u32 %v7, %q7, 16; add.s64 %a5, %a5, %v7; mov.u32 %q6, 0;\n\
    mad.lo.s32 %q37, %r6, 96, %r8; COPY %q1, %q37; shl.b32 %q8, %r0, 3;\n";
const STORE: &str = "st.global.u32 [%a5], %q6; st.global.u32 [%a5+4], %q1;";

const BLOCKS: [[u32; 3]; 4] = [[32, 8, 1], [16, 4, 1], [20, 3, 1], [8, 16, 1]];

/// By all ways, and by a text in which nobody sees that numbers are the thread's: they come by way of another operation.
fn same_as_apart(body: &str, threads: [u32; 3], step: u32, left: u32) -> Result<Vec<u32>, Fault> {
    let text = |copy: &str| {
        let statements = body.split_inclusive(';').map(|statement| {
            let copies = statement.contains("COPY ");
            let statement = statement.replace("COPY ", copy);
            if copies && copy.starts_with("xor") {
                statement.replace(';', ", 0;")
            } else {
                statement
            }
        });
        format!("{}\n", statements.collect::<String>())
    };
    let known = same_by_all_ways(&text("mov.u32 "), threads, step, left);
    let apart = same_by_all_ways(&text("xor.b32 "), threads, step, left);
    assert_eq!(known, apart, "{body}");
    known
}

fn same(body: &str, steps: &[u32], left: u32) {
    for threads in BLOCKS {
        for &step in steps {
            let body = format!("{HEAD}{body}\n{STORE}");
            let memory = same_as_apart(&body, threads, step, left).expect("no fault");
            assert!(memory.iter().any(|&word| word != 0), "{body}");
        }
    }
}

/// How far a turn goes, and what it does with the place that it has.
#[test]
fn indices_that_turns_take_further_are_the_same() {
    const ACCESSES: [&str; 6] = [
        "mul.wide.u32 %u1, %q0, 4; add.s64 %u2, %a0, %u1; ld.global.u32 %q9, [%u2];\nSTEP",
        // Changed before the access, by which its address is an earlier one.
        "mul.wide.u32 %u1, %q0, 4;\nSTEP\nadd.s64 %u2, %a0, %u1; ld.global.u32 %q9, [%u2];",
        "mul.wide.u32 %u1, %q0, 4; add.s64 %u2, %a0, %u1;\nSTEP\nld.global.u32 %q9, [%u2+4];",
        "cvt.u64.u32 %u0, %q0; shl.b64 %u1, %u0, 2;\nSTEP\nadd.s64 %u2, %a0, %u1; ld.global.u32 %q9, [%u2];",
        // Twice, with a step between.
        "mul.wide.s32 %u1, %q0, 4; add.s64 %u2, %a0, %u1; ld.global.u32 %q9, [%u2];\nSTEP\nmul.wide.s32 %u3, %q0, 4;\n\
         add.s64 %u4, %a0, %u3; ld.global.u32 %q10, [%u4]; mad.lo.u32 %q9, %q9, 7, %q10;",
        // Of bytes.
        "cvt.u64.u32 %u0, %q0; add.s64 %u2, %a0, %u0; ld.global.u8 %q9, [%u2];\nSTEP",
    ];
    const STEPS: [&str; 3] = [
        "add.s32 %q0, %q0, %r0;",
        "add.s32 %q0, 32, %q0;",
        "sub.s32 %q0, %q0, %r0;",
    ];
    for access in ACCESSES {
        for step in STEPS {
            let begin = if step.starts_with("sub") { 8192 } else { 0 };
            let body = format!(
                "add.s32 %q0, %q1, {begin}; mov.u32 %q2, 0;\nTURN: {}\nmad.lo.u32 %q6, %q6, 3, %q9; add.u32 %q2, %q2, 1;\n\
                 setp.lt.u32 %p0, %q2, 5;\n@%p0 bra TURN;",
                access.replace("STEP", step)
            );
            same(&body, &[0, 1, 64, 77, 1000], 0);
        }
    }
}

/// What is stored, and loaded again in a later turn; under guards as well.
#[test]
fn stores_in_turns_are_the_same() {
    for guard in ["", "@%p1 ", "@!%p1 "] {
        let body = format!(
            "mov.u32 %q0, %q1; mov.u32 %q2, 0; setp.lt.u32 %p1, %r2, %r1; ld.param.u64 %a6, [to]; add.s64 %a6, %a6, 40000;\n\
             TURN: and.b32 %q3, %q2, 1; mul.wide.u32 %u1, %q0, 4; add.s64 %u2, %a6, %u1;\n{guard}st.global.u32 [%u2], %q2;\n\
             {guard}ld.global.u32 %q9, [%u2]; mad.lo.u32 %q6, %q6, 3, %q2;\nadd.s32 %q0, %q0, 3; add.u32 %q2, %q2, 1;\n\
             setp.lt.u32 %p0, %q2, 4;\n@%p0 bra TURN;\nadd.s32 %q4, %q1, 9; mul.wide.u32 %u3, %q4, 4; add.s64 %u4, %a6, %u3;\n\
             bar.sync 0; mad.lo.u32 %q6, %q6, 5, %q1;"
        );
        for left in [0, 7, 16, 100] {
            same(&body, &[0], left);
        }
    }
}

/// Counters that begin with a thread's index, in the register that had it: lanes leave after as many turns, or not.
#[test]
fn counters_of_threads_are_the_same() {
    for by in ["%r4", "8", "%r0"] {
        for compare in ["lt.u32", "lt.s32", "ne.s32"] {
            // What is read of the first number before, behind and amid the loop.
            let body = format!(
                "mov.u32 %q36, %tid.x; COPY %q20, %q36; add.u32 %q21, %q20, 5; mov.u32 %q2, 0; mov.u32 %q22, %q20; setp.gt.u32 %p2, %q20, 40;\n\
                 @%p2 bra OVER;\nTURN: shl.b32 %q3, %q20, 1; mad.lo.u32 %q6, %q6, 3, %q21; add.u32 %q20, %q20, {by};\n\
                 add.u32 %q2, %q2, 1; setp.{compare} %p0, %q20, %r1; setp.lt.and.u32 %p0, %q2, 9, %p0;\n@%p0 bra TURN;\n\
                 OVER: mad.lo.u32 %q6, %q6, 5, %q22; mul.wide.u32 %u1, %q21, 4; add.s64 %u2, %a0, %u1; ld.global.u32 %q9, [%u2];\n\
                 xor.b32 %q6, %q6, %q9;"
            );
            for left in [0, 1, 31, 32, 33, 64, 100, 0x8000_0005] {
                same(&body, &[16], left);
            }
            // Nothing but the counter.
            let body = format!(
                "COPY %q20, %r2; mov.u32 %q2, 0; bar.sync 0;\nTURN: add.u32 %q6, %q6, 3; add.u32 %q20, %q20, {by};\n\
                 add.u32 %q2, %q2, 1; setp.{compare} %p0, %q20, %r1; setp.gt.u32 %p1, %q2, 9;\n@%p1 bra OVER;\n@%p0 bra TURN;\n\
                 OVER: add.u32 %q6, %q6, %q2;"
            );
            for left in [0, 1, 31, 32, 33, 64, 100, 0x8000_0005] {
                same(&body, &[16], left);
            }
        }
    }
}

/// Rows of shared memory, of which each turn has another.
#[test]
fn rows_of_shared_memory_that_turns_take_further_are_the_same() {
    let body = "mad.lo.u32 %q10, %r6, %r4, %r2; shl.b32 %q35, %q10, 2; COPY %q11, %q35; add.u32 %q12, %r15, %q11; mov.u32 %q2, 0;\n\
        FILL: mul.lo.u32 %q9, %q12, 2654435761; st.shared.u32 [%q12], %q9; add.u32 %q12, %q12, 512; add.u32 %q2, %q2, 1;\n\
        setp.lt.u32 %p0, %q2, 5;\n@%p0 bra FILL;\nbar.sync 0;\nmad.lo.u32 %q13, %r2, 12, %r15; mov.u32 %q2, 0;\n\
        add.u32 %q14, %q11, %r15;\nTURN: ld.shared.u32 %q9, [%q13]; add.u32 %q13, %q13, 4; ld.shared.u32 %q15, [%q14+64];\n\
        mad.lo.u32 %q6, %q6, 3, %q9; add.u32 %q14, %q14, %r0; xor.b32 %q6, %q6, %q15; add.u32 %q2, %q2, 1; setp.lt.u32 %p0, %q2, 6;\n\
        @%p0 bra TURN;";
    same(body, &[0, 4, 64, 128], 0);
}

/// A loop within a loop begins anew; an index of the inner one goes on from where the outer one is.
#[test]
fn loops_within_loops_are_the_same() {
    let body = "mov.u32 %q30, %q1; mov.u32 %q3, 0;\nOUTER: mov.u32 %q2, 0; add.u32 %q34, %r8, 5; COPY %q0, %q34;\n\
        INNER: mul.wide.u32 %u1, %q0, 4; add.s64 %u2, %a0, %u1; ld.global.u32 %q9, [%u2]; mul.wide.u32 %u3, %q30, 4;\n\
        add.s64 %u4, %a0, %u3; ld.global.u32 %q10, [%u4]; mad.lo.u32 %q6, %q6, 3, %q9; xor.b32 %q6, %q6, %q10; add.u32 %q0, %q0, %r0;\n\
        add.u32 %q2, %q2, 1; setp.le.u32 %p0, %q2, %q3;\n@%p0 bra INNER;\nadd.u32 %q30, %q30, 7; add.u32 %q3, %q3, 1;\n\
        setp.lt.u32 %p1, %q3, 4;\n@%p1 bra OUTER;";
    same(body, &[0, 3, 100], 0);
    // Lanes make other numbers of turns, by which they part and join.
    let parted = body.replace(
        "setp.le.u32 %p0, %q2, %q3;",
        "and.b32 %q31, %r2, 3; add.u32 %q31, %q31, %q3; setp.le.u32 %p0, %q2, %q31;",
    );
    same(&parted, &[0, 3, 100], 0);
}

#[test]
fn faults_in_turns_are_the_same() {
    for (step, kind) in [
        (0x0010_0000_u32, FaultKind::IllegalAddress),
        (0x4000_0000, FaultKind::IllegalAddress),
    ] {
        let body = format!(
            "{HEAD}mov.u32 %q0, %q1; mov.u32 %q2, 0;\nTURN: mul.wide.u32 %u1, %q0, 4; add.s64 %u2, %a0, %u1; ld.global.u32 %q9, [%u2];\n\
             add.u32 %q6, %q6, %q9; add.u32 %q0, %q0, %r0; add.u32 %q2, %q2, 1; setp.lt.u32 %p0, %q2, 9;\n@%p0 bra TURN;\n{STORE}"
        );
        let fault = same_as_apart(&body, [32, 4, 1], step, 0).expect_err("outside");
        assert_eq!(fault.kind, kind);
    }
    // A row of shared memory that leaves it in a later turn.
    let body = format!(
        "{HEAD}shl.b32 %q0, %r2, 2; add.u32 %q0, %q0, %r15; mov.u32 %q2, 0;\nTURN: st.shared.u32 [%q0], %q2; add.u32 %q0, %q0, %r0;\n\
         add.u32 %q2, %q2, 1; setp.lt.u32 %p0, %q2, 9;\n@%p0 bra TURN;\n{STORE}"
    );
    for (step, kind) in [
        (1000, FaultKind::IllegalAddress),
        (2, FaultKind::MisalignedAddress),
    ] {
        let fault = same_as_apart(&body, [32, 1, 1], step, 0).expect_err("outside");
        assert_eq!(fault.kind, kind);
    }
}

/// A number that changes where there is no loop, and a sum with a counter that changes between the sum and what reads it.
#[test]
fn sums_that_are_no_more_are_not_read() {
    let once = "mov.u32 %q36, %tid.x; COPY %q20, %q36; add.u32 %q21, %q20, 3; bar.sync 0; add.u32 %q20, %q20, %r0;\n\
        mul.wide.u32 %u1, %q20, 4; add.s64 %u2, %a0, %u1; ld.global.u32 %q6, [%u2]; xor.b32 %q6, %q6, %q21; bar.sync 0;\n\
        add.u32 %q20, %q20, 9; mul.wide.u32 %u3, %q20, 4; add.s64 %u4, %a0, %u3; ld.global.u32 %q9, [%u4]; add.u32 %q6, %q6, %q9;\n\
        sub.u32 %q6, %q6, %q20;";
    let between = "COPY %q20, %r2; mov.u32 %q2, 5;\nTURN: add.u32 %q10, %q20, %q2; add.u32 %q2, %q2, %r0; mul.wide.u32 %u1, %q10, 4;\n\
        add.s64 %u2, %a0, %u1; ld.global.u32 %q9, [%u2]; mad.lo.u32 %q6, %q6, 3, %q9; setp.lt.u32 %p0, %q2, 300;\n@%p0 bra TURN;";
    let behind = "COPY %q20, %r2; mov.u32 %q2, 5;\nTURN: add.u32 %q10, %q20, %q2; mul.wide.u32 %u1, %q10, 4;\n\
        add.s64 %u2, %a0, %u1; ld.global.u32 %q9, [%u2]; mad.lo.u32 %q6, %q6, 3, %q9; add.u32 %q2, %q2, %r0;\n\
        setp.lt.u32 %p0, %q2, 300;\n@%p0 bra TURN;\nshl.b32 %q11, %q10, 2; cvt.u64.u32 %u3, %q11; add.s64 %u4, %a0, %u3;\n\
        ld.global.u32 %q9, [%u4]; add.u32 %q6, %q6, %q9;";
    for body in [once, between, behind] {
        same(body, &[16, 77], 0);
    }
    // What all ways have in common is compared with Rust.
    let data = |at: u32| at.wrapping_mul(2_654_435_761) ^ at << 7;
    let body = format!("{HEAD}{once}\n{STORE}");
    let memory = same_as_apart(&body, [32, 1, 1], 16, 0).expect("no fault");
    for thread in 0..64 {
        let x = thread % 32;
        let first = data(x + 16) ^ (x + 3);
        let sum = first.wrapping_add(data(x + 25)).wrapping_sub(x + 25);
        assert_eq!(memory[4 * thread as usize], sum, "thread {thread}");
    }
}
