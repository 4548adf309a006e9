//! Loads from shared memory whose lanes are near each other without being a row, which segments do by two vectors and a permutation.

use ptx_vm::FaultKind;

use crate::segments::same_by_all_ways;

/// Fills the tile with words that are all different.
const FILL: &str = ".reg .b32 %q<16>;\nmov.u32 %q0, %r2;\n\
    FILL: shl.b32 %q1, %q0, 2; add.u32 %q1, %q1, %r15; mul.lo.u32 %q2, %q0, 2654435761; st.shared.u32 [%q1], %q2;\n\
    add.u32 %q0, %q0, %r4; setp.lt.u32 %p0, %q0, 1024;\n@%p0 bra FILL;\nbar.sync 0;\n";

/// Which word of the tile a lane has: `%q5`, from `%r0` and `%r1`.
const WORDS: [&str; 8] = [
    // Partners of a butterfly, whose step is a power of two.
    "neg.s32 %q3, %r0; and.b32 %q4, %r2, %q3; shl.b32 %q4, %q4, 1; not.b32 %q3, %q3; and.b32 %q3, %q3, %r2; add.u32 %q5, %q4, %q3;",
    "neg.s32 %q3, %r0; and.b32 %q4, %r2, %q3; shl.b32 %q4, %q4, 1; not.b32 %q3, %q3; and.b32 %q3, %q3, %r2; add.u32 %q5, %q4, %q3;\n\
     add.u32 %q5, %q5, %r0;",
    // Every other one, and so on.
    "mul.lo.u32 %q5, %r2, %r0;",
    // Turned round within 16 lanes, so that the first lane has the last word.
    "xor.b32 %q5, %r2, 15;",
    // Any words among 32, also the same ones.
    "mul.lo.u32 %q3, %r2, 2654435761; shr.u32 %q3, %q3, 27; and.b32 %q4, %r2, 992; add.u32 %q5, %q3, %q4; and.b32 %q3, %r2, 15;\n\
     setp.eq.u32 %p0, %q3, 0; selp.b32 %q5, %q4, %q5, %p0;",
    // The last lane is one beyond them.
    "and.b32 %q3, %r2, 15; setp.eq.u32 %p0, %q3, 15; selp.b32 %q4, 32, 0, %p0; shl.b32 %q3, %q3, 1; add.u32 %q5, %q3, %q4;",
    // The last words that there are.
    "and.b32 %q3, %r2, 15; xor.b32 %q3, %q3, 1; add.u32 %q5, %q3, 1008;",
    "and.b32 %q3, %r2, 15; shl.b32 %q3, %q3, 1; xor.b32 %q3, %q3, 2; add.u32 %q5, %q3, 991;",
];

#[test]
fn words_near_each_other_are_the_same() {
    for words in WORDS {
        for step in [1, 2, 4, 8, 16, 32] {
            for threads in [64, 50, 13] {
                // All lanes, those that a guard lets through, and those that have not ended.
                let body = format!(
                    "{FILL}{words}\nand.b32 %q5, %q5, 1023; shl.b32 %q6, %q5, 2; add.u32 %q6, %q6, %r15; mov.u32 %q9, 5; mov.u32 %q10, 6;\n\
                     ld.shared.u32 %q7, [%q6]; setp.gt.u32 %p1, %q5, 0;\n@%p1 ld.shared.u32 %q9, [%q6-4];\n\
                     mul.lo.u32 %q11, %r2, 0x9e3779b9; setp.gt.u32 %p2, %q11, 0x70000000;\n@%p2 ld.shared.u32 %q10, [%q6];\n\
                     add.u32 %q7, %q7, 1;\n@%p2 exit;\nbar.sync 0;\nld.shared.f32 %f1, [%q6]; mov.b32 %q8, %f1;\n\
                     mad.lo.u32 %q8, %q8, 3, %q9; mad.lo.u32 %q8, %q8, 5, %q10; st.global.v2.u32 [%a1], {{%q7, %q8}};"
                );
                let memory = same_by_all_ways(&body, threads, step, 0).expect("no fault");
                assert!(memory.iter().any(|&word| word != 0));
            }
        }
    }
}

/// Stores to such words, also where not all lanes run, or more than one has the same word.
#[test]
fn words_near_each_other_are_stored_as_ever() {
    for words in WORDS {
        for step in [1, 2, 4, 8, 16] {
            for threads in [64, 50, 13] {
                // Of several lanes with one word any may be the last: they store the same.
                let body = format!(
                    "{FILL}{words}\nand.b32 %q5, %q5, 1023; shl.b32 %q6, %q5, 2; add.u32 %q6, %q6, %r15; mad.lo.u32 %q9, %q5, 77, 5;\n\
                     st.shared.u32 [%q6], %q9; bar.sync 0;\nmul.lo.u32 %q11, %r2, 0x9e3779b9; setp.gt.u32 %p2, %q11, 0x70000000;\n\
                     setp.lt.u32 %p1, %q5, 1015; mad.lo.u32 %q10, %q5, 99, 9;\n@%p1 st.shared.u32 [%q6+32], %q10;\nbar.sync 0;\n\
                     not.b32 %q10, %q10;\n@%p2 st.shared.u32 [%q6], %q10;\nadd.u32 %q7, %q10, 1;\n@%p2 exit;\nbar.sync 0;\n\
                     add.u32 %q9, %q9, 3; st.shared.u32 [%q6], %q9; bar.sync 0;\nmov.u32 %q0, %r2; mov.u32 %q1, 0;\n\
                     SUM: shl.b32 %q2, %q0, 2; add.u32 %q2, %q2, %r15; ld.shared.u32 %q3, [%q2]; mad.lo.u32 %q1, %q1, 31, %q3;\n\
                     add.u32 %q0, %q0, %r4; setp.lt.u32 %p0, %q0, 1024;\n@%p0 bra SUM;\nst.global.v2.u32 [%a1], {{%q7, %q1}};"
                );
                let memory = same_by_all_ways(&body, threads, step, 0).expect("no fault");
                assert!(memory.iter().any(|&word| word != 0));
            }
        }
    }
}

#[test]
fn faults_among_words_near_each_other_are_the_same() {
    for (by, kind) in [
        (2_u32, FaultKind::MisalignedAddress),
        (4096 - 24, FaultKind::IllegalAddress),
        (0xffff_ff00, FaultKind::IllegalAddress),
    ] {
        // One lane alone is wrong by so many bytes, or all are.
        for wrong in ["setp.eq.u32 %p0, %r2, 7;", "setp.lt.u32 %p0, %r2, 1000;"] {
            let body = format!(
                "{FILL}shl.b32 %q6, %r2, 3; add.u32 %q6, %q6, %r15; {wrong} selp.b32 %q7, {by}, 0, %p0; add.u32 %q6, %q6, %q7;\n\
                 bar.sync 0;\nld.shared.u32 %q8, [%q6]; st.global.u32 [%a1], %q8;"
            );
            for body in [
                &body,
                &body.replace("ld.shared.u32 %q8, [%q6]", "st.shared.u32 [%q6], %q6"),
            ] {
                let fault = same_by_all_ways(body, 40, 0, 0).expect_err("wrong");
                assert_eq!(fault.kind, kind, "{by:#x}");
            }
        }
    }
}
