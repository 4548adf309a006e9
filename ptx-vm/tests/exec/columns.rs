//! Loads from shared memory whose lanes are apart by what threads' numbers say, columns of a tile for instance: the same as by
//! operations, in turns and blocks that take them further, in lanes that run alone, and where they are not inside.

use ptx_vm::{Fault, FaultKind};

use crate::segments::same_by_all_ways;

/// `tile` has a word of its own everywhere; threads' results stand at `%a5`, `%q6` is what was found.
const HEAD: &str = ".reg .b32 %q<40>;\nmov.u32 %r6, %tid.y; mov.u32 %r7, %ntid.y; mad.lo.s32 %r8, %r6, %r4, %r2; mul.lo.u32 %r9, %r4, %r7;\n\
    ld.param.u64 %a5, [to]; mad.lo.s32 %r10, %r3, %r9, %r8; mul.wide.u32 %v7, %r10, 16; add.s64 %a5, %a5, %v7; mov.u32 %q6, 0;\n\
    xor.b32 %q0, %r8, 0;\nFILL: shl.b32 %q1, %q0, 2; add.s32 %q1, %q1, %r15; mul.lo.u32 %q2, %q0, 0x9e3779b1; st.shared.u32 [%q1], %q2;\n\
    add.s32 %q0, %q0, %r9; setp.lt.u32 %p0, %q0, 1024;\n@%p0 bra FILL;\nbar.sync 0; setp.lt.u32 %p1, %r2, 9;\n";
const STORE: &str = "\nst.global.u32 [%a5], %q6;";

const BLOCKS: [[u32; 3]; 5] = [[16, 16, 1], [20, 3, 1], [8, 16, 1], [16, 4, 1], [5, 1, 1]];

fn by_all_ways(body: &str, threads: [u32; 3]) -> Result<Vec<u32>, Fault> {
    same_by_all_ways(&format!("{HEAD}{body}{STORE}"), threads, 1, 0)
}

fn same(body: &str) {
    for threads in BLOCKS {
        let memory = by_all_ways(body, threads).expect("no fault");
        // Of five lanes none has the guard that the others have.
        assert!(
            threads[0] < 9 || memory.iter().any(|&word| word != 0),
            "{body}"
        );
    }
}

/// What a place begins with: columns of several strides, among them near lanes, all alike, rows, and some that go backwards.
const PLACES: [&str; 8] = [
    "mul.lo.u32 %q12, %r2, 132; mad.lo.u32 %q3, %r6, 4, %q12;",
    "mul.lo.u32 %q12, %r2, 100; mad.lo.u32 %q3, %r6, 8, %q12;",
    "mul.lo.u32 %q12, %r2, 8; mad.lo.u32 %q3, %r6, 132, %q12;",
    "mul.lo.u32 %q12, %r2, 4; mad.lo.u32 %q3, %r6, 68, %q12;",
    "mul.lo.u32 %q3, %r6, 132;",
    "mul.lo.u32 %q12, %r2, -132; mad.lo.u32 %q13, %r6, 4, %q12; add.s32 %q3, %q13, 2640;",
    "mul.lo.u32 %q12, %r2, 0xc0000084; shl.b32 %q13, %r2, 30; add.s32 %q14, %q12, %q13; mad.lo.u32 %q3, %r6, 4, %q14;",
    // No sum.
    "mul.lo.u32 %q12, %r2, 132; xor.b32 %q3, %q12, 64;",
];

#[test]
fn columns_are_the_same() {
    for place in PLACES {
        for guard in ["", "@%p1 ", "@!%p1 "] {
            same(&format!(
                "{place} add.s32 %q4, %r15, %q3; shl.b32 %q5, %r3, 4; add.s32 %q7, %q4, %q5;\n{guard}ld.shared.u32 %q8, [%q4];\n\
                 {guard}ld.shared.u32 %q9, [%q7+48];\n{guard}mad.lo.u32 %q6, %q8, 3, %q9;"
            ));
        }
    }
}

/// Loads from one address are looked at together, and of more of them than there is room for not each is known.
#[test]
fn many_loads_of_a_column_are_the_same() {
    for place in PLACES {
        for guard in ["", "@%p1 "] {
            let load = |at: u32| {
                let distance = 4 * at;
                format!(
                    "{guard}ld.shared.u32 %q8, [%q4+{distance}]; {guard}mad.lo.u32 %q6, %q6, 5, %q8;\n"
                )
            };
            let loads: String = (0..20).map(load).collect();
            same(&format!("{place} add.s32 %q4, %r15, %q3;\n{loads}"));
        }
    }
}

#[test]
fn turns_take_columns_further() {
    for place in PLACES {
        // Farther, nearer, and by lanes that leave one by one.
        for (step, leaves) in [
            ("add.s32 %q4, %q4, 32;", "setp.lt.u32 %p0, %q10, 4;"),
            ("sub.s32 %q4, %q4, 16;", "setp.lt.u32 %p0, %q10, 4;"),
            (
                "add.s32 %q4, %q4, 64;",
                "and.b32 %q11, %r8, 3; setp.lt.u32 %p0, %q10, %q11;",
            ),
        ] {
            same(&format!(
                "{place} add.s32 %q4, %r15, %q3; add.s32 %q4, %q4, 128; mov.u32 %q10, 0;\nTURN: ld.shared.u32 %q8, [%q4];\n\
                 mad.lo.u32 %q6, %q6, 5, %q8; {step} add.u32 %q10, %q10, 1; {leaves}\n@%p0 bra TURN;"
            ));
        }
    }
}

/// Places behind the end, before the beginning and between words are faults of the first lane that has one, also in a later turn.
#[test]
fn columns_that_are_not_inside_are_faults() {
    let fault = |place: &str, step: &str| {
        let body = format!(
            "{place} add.s32 %q4, %r15, %q3; mov.u32 %q10, 0;\nTURN: ld.shared.u32 %q8, [%q4]; mad.lo.u32 %q6, %q6, 5, %q8; {step}\n\
             add.u32 %q10, %q10, 1; setp.lt.u32 %p0, %q10, 9;\n@%p0 bra TURN;"
        );
        by_all_ways(&body, [16, 16, 1]).expect_err("outside").kind
    };
    let column = PLACES[0];
    assert!(matches!(
        fault(column, "add.s32 %q4, %q4, 512;"),
        FaultKind::IllegalAddress
    ));
    assert!(matches!(
        fault(column, "sub.s32 %q4, %q4, 4;"),
        FaultKind::IllegalAddress
    ));
    assert!(matches!(
        fault(column, "add.s32 %q4, %q4, 0x80000000;"),
        FaultKind::IllegalAddress
    ));
    assert!(matches!(
        fault(column, "add.s32 %q4, %q4, 2;"),
        FaultKind::MisalignedAddress
    ));
    let between = "mul.lo.u32 %q12, %r2, 130; mad.lo.u32 %q3, %r6, 4, %q12;";
    assert!(matches!(
        fault(between, "add.s32 %q4, %q4, 4;"),
        FaultKind::MisalignedAddress
    ));
    fault("mul.lo.u32 %q3, %r2, 0x10000084;", "add.s32 %q4, %q4, 4;");
}
