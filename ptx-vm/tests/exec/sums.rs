//! Elements whose index is a sum of a thread's number and a block's: loaded and stored as in any other way, whatever wraps around,
//! is left out or lies outside.

use ptx_vm::FaultKind;

use crate::segments::same_by_all_ways;

/// `%r9`: a thread's place in a plane of `%r0` columns, 32 for each block; `%a4` is an address amid the data, and `%a5` where the
/// results of threads stand, 16 bytes for each.
const PLACE: &str = ".reg .b32 %q<32>;\n.reg .b64 %u<16>;\n.reg .b16 %h<4>;\nmov.u32 %r6, %tid.y; shl.b32 %r7, %r3, 5; add.s32 %r8, %r7, %r2;\n\
    mad.lo.s32 %r9, %r6, %r0, %r8; add.s64 %a4, %a0, 32768;\nld.param.u64 %a5, [to];\n\
    mad.lo.s32 %q7, %r6, 64, %r8; mul.wide.u32 %v7, %q7, 16; add.s64 %a5, %a5, %v7; mov.u32 %q6, 0;\n";
const STORE: &str = "st.global.u32 [%a5], %q6; st.global.u32 [%a5+4], %r9;";

/// Blocks whose strips are rows, parts of rows, and several rows.
const BLOCKS: [[u32; 3]; 6] = [
    [32, 8, 1],
    [16, 4, 1],
    [64, 1, 1],
    [50, 1, 1],
    [8, 16, 1],
    [20, 3, 1],
];

fn same(body: &str) {
    for threads in BLOCKS {
        // Rows as far apart as 16 lanes, and others.
        for columns in [0, 1, 64, 77, 0x8000_0000, 0xffff_ffc0] {
            // A thread whose place wraps around reads the first element.
            let body = format!("{PLACE}{body}\n{STORE}");
            let memory = same_by_all_ways(&body, threads, columns, 0).expect("no fault");
            assert!(memory.iter().any(|&word| word != 0), "{body}");
        }
    }
}

/// What a place is brought to where the index may be used: below 4096.
const BOUND: &str = "setp.lt.u32 %p0, %r9, 4096;\n";

#[test]
fn neighbours_are_loaded_as_ever() {
    for widen in ["mul.wide.u32", "mul.wide.s32"] {
        let mut body = String::from(BOUND);
        let ways = [
            "add.s32 I, %r9, -1;",
            "add.s32 I, %r9, 1;",
            "sub.s32 I, %r9, %r0;",
            "add.s32 I, %r0, %r9;",
            "mov.u32 I, %r9;",
        ];
        // Each register is written once, as compilers do.
        for (at, made) in ways.iter().enumerate() {
            let (index, to) = (format!("%q{}", 10 + at), format!("%q{}", 20 + at));
            let (product, place) = (format!("%u{}", 2 * at), format!("%u{}", 2 * at + 1));
            let made = made.replace('I', &index);
            body += &format!(
                "{made} setp.lt.u32 %p1, {index}, 4096;\n@%p1 {widen} {product}, {index}, 4; @%p1 add.s64 {place}, %a4, {product};\n\
                 @%p1 ld.global.u32 {to}, [{place}]; @%p1 xor.b32 %q6, %q6, {to};\n"
            );
        }
        same(&body);
    }
}

#[test]
fn all_elements_and_ways_to_write_an_index_are_the_same() {
    const LOADS: [&str; 11] = [
        "mul.wide.u32 %v1, %r9, 2; add.s64 %a2, %v1, %a4; ld.global.u16 %h0, [%a2]; cvt.u32.u16 %q6, %h0;",
        "cvt.u64.u32 %v1, %r9; add.s64 %a2, %a4, %v1; ld.global.u8 %h0, [%a2]; cvt.u32.u16 %q6, %h0;",
        "mul.wide.s32 %v1, %r9, 8; add.s64 %a2, %a4, %v1; ld.global.u64 %v2, [%a2-16]; cvt.u32.u64 %q6, %v2;",
        "cvt.u64.u32 %v1, %r9; shl.b64 %v2, %v1, 2; add.s64 %a2, %a4, %v2; ld.global.u32 %q6, [%a2+4];",
        "cvt.s64.s32 %v1, %r9; shl.b64 %v2, %v1, 2; add.s64 %a2, %a4, %v2; ld.global.u32 %q6, [%a2-4];",
        "mul.wide.u32 %v1, %r9, 4; add.s64 %a2, %a4, %v1; ld.global.u32 %q6, [%a2]; ld.global.u32 %q1, [%a2+4]; add.u32 %q6, %q6, %q1;",
        "shl.b32 %q0, %r9, 1; mul.wide.u32 %v1, %q0, 4; add.s64 %a2, %a4, %v1; ld.global.u32 %q6, [%a2];",
        "mov.u64 %v2, 3; cvt.u32.u64 %q0, %v2; add.u32 %q1, %q0, %r9; mul.wide.u32 %v1, %q1, 4; add.s64 %a2, %a4, %v1; ld.global.u32 %q6, [%a2];",
        "sub.u32 %q0, 500, %r9; mul.wide.s32 %v1, %q0, 4; add.s64 %a2, %a4, %v1; ld.global.u32 %q6, [%a2];",
        "mul.lo.u32 %q0, %r6, 3; add.u32 %q1, %q0, %r7; mul.wide.u32 %v1, %q1, 4; add.s64 %a2, %a4, %v1; ld.global.u32 %q6, [%a2];",
        "cvt.u64.u32 %v1, %r9; cvt.u32.u64 %q0, %v1; sub.u32 %q1, %q0, 3; add.u32 %q2, %q1, 3; mul.wide.u32 %v2, %q2, 4;\n\
         add.s64 %a2, %a4, %v2; ld.global.f32 %f1, [%a2]; mov.b32 %q6, %f1;",
    ];
    for load in LOADS {
        let mut guarded = String::from(BOUND);
        for part in load.split_inclusive(';') {
            guarded += &format!("@%p0 {}\n", part.trim());
        }
        same(&guarded);
        // Behind a branch, the index made before it.
        let (made, rest) = load.split_once(';').expect("a statement");
        same(&format!("{BOUND}{made};\n@!%p0 bra PAST;\n{rest}\nPAST:"));
    }
}

/// An index that wraps around 32 bits within a strip is two places far apart, and so is one that goes over the end of signed numbers.
#[test]
fn indices_that_wrap_around_are_no_rows() {
    for (start, widen) in [
        (0xffff_fff8_u32, "mul.wide.u32"),
        (0xffff_fff8, "mul.wide.s32"),
        (0x7fff_fff8, "mul.wide.u32"),
        (0x7fff_fff8, "mul.wide.s32"),
        (0x8000_0000, "mul.wide.s32"),
        (0xffff_ffd8, "mul.wide.s32"),
    ] {
        for threads in [[32, 2, 1], [50, 1, 1]] {
            // Lanes whose index is a small number read, the others do not.
            let body = format!(
                "{PLACE}add.u32 %q0, %r9, {start}; add.u32 %q1, %q0, 64; setp.lt.u32 %p0, %q1, 128;\n\
                 @%p0 {widen} %v1, %q0, 4;\n@%p0 add.s64 %a2, %a4, %v1;\n"
            );
            // Of an unsigned index below none.
            let only = if widen.ends_with("u32") {
                "setp.lt.and.u32 %p0, %q0, 128, %p0;\n"
            } else {
                ""
            };
            let body = body.replace("@%p0 mul", &format!("{only}@%p0 mul"));
            let body = format!("{body}@%p0 ld.global.u32 %q6, [%a2];\n{STORE}");
            same_by_all_ways(&body, threads, 64, 0).expect("no fault");
            // Without a guard some lane is far outside, the same one in any way.
            let bare = body.replace("@%p0 ", "");
            let result = same_by_all_ways(&bare, threads, 64, 0);
            assert!(
                result.is_ok()
                    || result.is_err_and(|fault| fault.kind == FaultKind::IllegalAddress)
            );
        }
    }
}

/// A row that ends where memory does: lanes beyond it fault, and do not if their guard leaves them out.
#[test]
fn faults_in_rows_are_the_same() {
    // 16,384 words from `%a0` on; whole granules of memory are 64 KiB.
    for (access, by) in [
        ("ld.global.u32 %q6, [%a2];", 0x0100_0000_u32),
        ("st.global.u32 [%a2], %r9;", 0x0100_0000),
    ] {
        let body = format!(
            "{PLACE}add.u32 %q0, %r9, {by}; mul.wide.u32 %v1, %q0, 4; add.s64 %a2, %a0, %v1;\n\
             setp.gt.u32 %p0, %r2, 19; G{access}\n{STORE}"
        );
        let fault = same_by_all_ways(&body.replace('G', ""), [32, 4, 1], 64, 0);
        assert_eq!(fault.expect_err("outside").kind, FaultKind::IllegalAddress);
        let out = body.replace('G', "setp.gt.u32 %p0, %r2, 1000;\n@%p0 ");
        same_by_all_ways(&out, [32, 4, 1], 64, 0).expect("no lane reads");
        // A base that is no multiple of an element.
        let odd = body
            .replace(&format!("{by}"), "5")
            .replace(
                "add.s64 %a2, %a0, %v1;",
                "add.s64 %a3, %a0, 2; add.s64 %a2, %a3, %v1;",
            )
            .replace('G', "");
        let fault = same_by_all_ways(&odd, [32, 4, 1], 64, 0).expect_err("odd");
        assert_eq!(fault.kind, FaultKind::MisalignedAddress);
    }
}

/// What a lane stores it loads again, by whichever sum its place is said.
#[test]
fn stores_and_loads_of_one_place_keep_their_order() {
    same(
        "ld.param.u64 %a6, [to]; add.s64 %a6, %a6, 40000; setp.lt.u32 %p0, %q7, 1024;\n@!%p0 bra PAST;\n\
         mul.wide.u32 %v1, %q7, 4; add.s64 %a2, %a6, %v1; add.u32 %q0, %q7, 1; mul.wide.u32 %v2, %q0, 4; add.s64 %a7, %a6, -4;\n\
         add.s64 %a3, %a7, %v2;\nst.global.u32 [%a2], %r9; ld.global.u32 %q1, [%a3]; add.u32 %q1, %q1, 7;\n\
         st.global.u32 [%a3], %q1; ld.global.u32 %q6, [%a2]; st.global.u32 [%a2], %r2; ld.global.u32 %q2, [%a3];\n\
         mad.lo.u32 %q6, %q6, 3, %q2;\nPAST:",
    );
}

/// Comparisons of sums, which hold in a whole block, in none of its lanes, or in some; also where a sum wraps around.
#[test]
fn comparisons_of_sums_are_the_same() {
    let limits = [
        0,
        1,
        31,
        32,
        33,
        63,
        64,
        65,
        0x7fff_ffff,
        0x8000_0000,
        0xffff_ffc0,
        0xffff_ffff,
    ];
    let together = [
        "or.pred %p3, %p0, %p1; or.pred %p3, %p3, %p2;",
        "and.pred %p3, %p0, %p1; xor.pred %p3, %p3, %p2;",
        "not.pred %p1, %p1; and.pred %p3, %p0, %p1; or.pred %p3, %p2, %p3;",
    ];
    let compares = ["eq", "ne", "lt", "le", "gt", "ge"];
    for (at, compare) in compares.into_iter().enumerate() {
        for ty in ["s32", "u32"] {
            for threads in [[32, 4, 1], [50, 1, 1], [16, 3, 1]] {
                let next = compares[(at + 1) % compares.len()];
                let by = ["0x7fffffe0", "0xffffffe0", "5"][at % 3];
                let body = format!(
                    "{PLACE}bar.sync 0;\nsetp.{compare}.{ty} %p0, %r8, %r0; add.u32 %q0, %r8, {by}; setp.{next}.{ty} %p1, %r1, %q0;\n\
                     mad.lo.u32 %q1, %r3, %r4, %r2; setp.{compare}.{ty} %p2, %q1, 64; {}\n\
                     @%p3 mov.u32 %q6, 5;\n@!%p3 mov.u32 %q6, 9;\n{STORE}",
                    together[at % together.len()]
                );
                for limit in limits {
                    same_by_all_ways(&body, threads, limit, limit ^ 31).expect("no fault");
                }
                // With lanes that have ended, and under a guard.
                let body = body
                    .replace("setp", "@%p0 setp")
                    .replacen("@%p0 setp", "setp", 1);
                let body = format!("setp.gt.u32 %p0, %r2, 40;\n@%p0 exit;\n{body}");
                for limit in [0, 20, 40] {
                    same_by_all_ways(&body, threads, limit, 7).expect("no fault");
                }
            }
        }
    }
}

/// Where threads have their elements in shared memory: `%q2`, elements of `1 << LOG` bytes.
const TILE: &str =
    "mad.lo.u32 %q0, %r6, %r4, %r2; shl.b32 %q1, %q0, LOG; add.u32 %q2, %r15, %q1;\n";

#[test]
fn rows_of_shared_memory_are_the_same() {
    let ways = [
        (0, "st.shared.u8 [A], %r9;", "ld.shared.u8 %q9, [A];"),
        (1, "st.shared.u16 [A], %r9;", "ld.shared.u16 %q9, [A];"),
        (2, "st.shared.u32 [A], %r9;", "ld.shared.u32 %q9, [A];"),
        (
            3,
            "mul.wide.u32 %v3, %r9, 77777; st.shared.u64 [A], %v3;",
            "ld.shared.u64 %v4, [A]; cvt.u32.u64 %q9, %v4;",
        ),
    ];
    for (log, store, load) in ways {
        let tile = TILE.replace("LOG", &log.to_string());
        let at = |text: &str, address: &str| text.replace("[A]", &format!("[{address}]"));
        let guarded = |text: &str| text.replace("; ", ";\n@%p0 ");
        let bytes = 1 << log;
        let body = format!(
            "{tile}{}\nbar.sync 0;\nsetp.ge.u32 %p0, %r2, 3; mov.u32 %q9, 1;\n@%p0 {}\nadd.u32 %q6, %q6, %q9;\nbar.sync 0;\n\
             {}\nmad.lo.u32 %q6, %q6, 3, %q9;\nbar.sync 0;\n@%p0 {}\nbar.sync 0;\n{}\nmad.lo.u32 %q6, %q6, 5, %q9;\n\
             mad.lo.u32 %q3, %r3, {bytes}, %q2;\n{}\nmad.lo.u32 %q6, %q6, 7, %q9;",
            at(store, "%q2"),
            guarded(&at(load, &format!("%q2-{}", 3 * bytes))),
            at(load, &format!("%q2+{bytes}")),
            guarded(&at(store, &format!("%q2-{}", 2 * bytes))),
            at(load, "%q2"),
            at(load, "%q3"),
        );
        same(&body);
    }
}

/// A row of shared memory that begins before it or ends behind it, or is not aligned: lanes outside fault, and do not if their guard leaves
/// them out.
#[test]
fn faults_in_rows_of_shared_memory_are_the_same() {
    for access in ["ld.shared.u32 %q6, [%q3];", "st.shared.u32 [%q3], %r9;"] {
        let tile = TILE.replace("LOG", "2");
        let body = format!("{PLACE}{tile}add.u32 %q3, %q2, %r0;\nG{access}\n{STORE}");
        for (by, kind) in [
            (4096 - 64, FaultKind::IllegalAddress),
            (4096 - 32, FaultKind::IllegalAddress),
            (4096 - 124, FaultKind::IllegalAddress),
            (0xffff_fff0, FaultKind::IllegalAddress),
            (0x8000_0000, FaultKind::IllegalAddress),
            (2, FaultKind::MisalignedAddress),
        ] {
            let fault = same_by_all_ways(&body.replace('G', ""), [32, 2, 1], by, 0);
            assert_eq!(fault.expect_err("outside").kind, kind, "{by:#x}");
            // Only what is inside.
            let inside = "add.u32 %q4, %q3, 0; sub.u32 %q4, %q4, %r15; setp.lt.u32 %p0, %q4, 4093; and.b32 %q5, %q4, 3;\n\
                setp.eq.and.u32 %p0, %q5, 0, %p0;\n@%p0 ";
            same_by_all_ways(&body.replace('G', inside), [32, 2, 1], by, 0).expect("inside");
        }
    }
}
