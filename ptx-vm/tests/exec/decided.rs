//! Branches on predicates that a segment has decided for a whole block: the same as by operations.

use crate::segments::same_by_all_ways;

/// A predicate that holds in a whole block, in none of its lanes, or in some, where a branch goes another way that cannot be a guard.
#[test]
fn branches_on_what_a_block_has_decided_are_the_same() {
    for compare in ["lt", "ge", "eq"] {
        for sign in ["", "!"] {
            for threads in [64, 50] {
                let body = format!(
                    ".reg .b32 %q<16>;\nmov.u32 %q6, 7;\nadd.u32 %q0, %r5, 5; setp.{compare}.u32 %p0, %q0, %r0;\n@{sign}%p0 bra FAR;\n\
                     mov.u32 %q1, 0;\nTURN: mad.lo.u32 %q6, %q6, 3, %r2; add.u32 %q1, %q1, 1; setp.lt.u32 %p1, %q1, 3;\n@%p1 bra TURN;\n\
                     bra DONE;\nFAR: mov.u32 %q1, 0;\nAGAIN: mad.lo.u32 %q6, %q6, 5, %r5; add.u32 %q1, %q1, 1; setp.lt.u32 %p1, %q1, 2;\n\
                     @%p1 bra AGAIN;\nDONE: st.global.u32 [%a1], %q6;"
                );
                for limit in [0, 5, 6, 30, 54, 55, 69, 70, 100, 104, 105, 133, 0xffff_ffff] {
                    same_by_all_ways(&body, threads, limit, 0).expect("no fault");
                }
            }
        }
    }
}
