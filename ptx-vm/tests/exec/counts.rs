//! Sums into words of shared memory whose old values nobody reads are the same in segments as lane by lane, wherever lanes meet at a
//! word.

use ptx_vm::FaultKind;

use crate::segments::{HEAD, same_by_all_ways, same_text_by_all_ways};

/// `%r6` and `%r7` are random words of the thread, `%r8` is a place of the tile of its own.
const BEFORE: &str = ".reg .b32 %q<8>;\nmul.wide.u32 %v1, %r5, 8; add.s64 %a2, %a0, %v1; ld.global.u32 %r6, [%a2]; ld.global.u32 %r7, [%a2+4];\n\
    shl.b32 %r8, %r2, 2; add.s32 %r8, %r8, %r15; setp.lt.u32 %p0, %r2, 21; and.b32 %q7, %r2, 3; setp.eq.u32 %p1, %q7, 1;\n";

/// Stores the tile, four words of it a thread.
const AFTER: &str = "bar.sync 0;\nld.shared.u32 %r9, [%r8]; ld.shared.u32 %r10, [%r8+1024]; ld.shared.u32 %r11, [%r8+2048]; ld.shared.u32 %r12, [%r8+3072];\n\
    st.global.u32 [%a1], %r9; st.global.u32 [%a1+4], %r10; st.global.u32 [%a1+8], %r11; st.global.u32 [%a1+12], %r12;\n";

/// A word of the tile by eight bits of a register.
fn place(of: &str, shift: u32, into: &str) -> String {
    format!(
        "shr.u32 {into}, {of}, {shift}; and.b32 {into}, {into}, 255; shl.b32 {into}, {into}, 2; add.s32 {into}, {into}, %r15;\n"
    )
}

/// By all ways, of blocks that end within a strip and of whole ones.
fn same(body: &str) {
    for threads in [1, 50, 256] {
        let memory = same_by_all_ways(&format!("{BEFORE}{body}\n{AFTER}"), threads, 1, 0);
        let memory = memory.expect("no fault");
        assert!(
            threads == 1 || memory.iter().any(|&word| word != 0),
            "{body}"
        );
    }
}

#[test]
fn counts_are_the_same_wherever_lanes_meet() {
    let bins = place("%r6", 0, "%q0") + &place("%r6", 24, "%q1") + &place("%r7", 9, "%q2");
    for sums in [
        "atom.shared.add.u32 %q4, [%q0], 1; red.shared.add.u32 [%q1], 1; red.shared.add.u32 [%q2], 1;",
        "red.shared.add.u32 [%q0], %r7; red.shared.add.s32 [%q1+1024], %r6; red.shared.add.u32 [%q2+2048], -3;",
        // All meet at one word, also where its address is the same in all lanes.
        "and.b32 %q0, %q0, 0; add.s32 %q0, %q0, %r15; red.shared.add.u32 [%q0+64], %r6; red.shared.add.u32 [%r15], %r7; red.shared.add.u32 [%r15], 1;",
        // In 32 bits an address goes over the end.
        "add.u32 %q0, %q0, 0xfffffff0; red.shared.add.u32 [%q0+16], 5; add.u32 %q1, %q1, 256; red.shared.add.u32 [%q1+-256], %r2;",
        // The old value is read in one place of two.
        "atom.shared.add.u32 %q4, [%r8], %r6; atom.shared.add.u32 %q5, [%r8+1024], 7; red.shared.add.u32 [%r8+2048], %q4;",
        "@%p0 red.shared.add.u32 [%q0], 1; @!%p0 red.shared.add.u32 [%q1], %r7; @%p1 atom.shared.add.u32 %q4, [%q2], 3;",
        "@%p1 bra PAST;\nred.shared.add.u32 [%q0], 1; red.shared.add.u32 [%q1], %r7;\nPAST:\nred.shared.add.u32 [%q2], 1;",
    ] {
        same(&format!("{bins}{sums}"));
    }
}

/// What a lane stores, adds and loads in its own word follows in this order.
#[test]
fn sums_stand_between_stores_and_loads() {
    same(
        "st.shared.u32 [%r8], %r6; red.shared.add.u32 [%r8], %r7; ld.shared.u32 %q0, [%r8];\n\
         red.shared.add.u32 [%r8+1024], %q0; red.shared.add.u32 [%r8+1024], 1; st.shared.u32 [%r8+1024], %q0; red.shared.add.u32 [%r8+1024], 2;\n\
         cvt.u64.u32 %v2, %r8; cvta.shared.u64 %v2, %v2; red.shared.add.u32 [%r8+2048], %r7; ld.u32 %q1, [%v2+2048]; st.u32 [%v2+3072], %q1;\n\
         red.shared.add.u32 [%r8+3072], 9;",
    );
}

/// A count that is the same in all lanes is loaded after it was added to.
#[test]
fn a_common_count_is_loaded_after_the_sums_before_it() {
    same(
        "bar.sync 0;\nred.shared.add.u32 [%r15], %r7;\nbar.sync 0;\nld.shared.u32 %q0, [%r15];\nbar.sync 0;\n\
         red.shared.add.u32 [%r8+1024], %q0;\nbar.sync 0;\nred.shared.add.u32 [%r15], 1; xor.b32 %q1, %r6, %r7; st.global.u32 [%a1+16], %q1;\nbar.sync 0;\n\
         ld.shared.u32 %q2, [%r15]; add.u32 %q2, %q2, %q1; st.global.u32 [%a1+20], %q2;",
    );
}

/// Lanes leave a loop one by one that counts, and one that also looks at what it has counted.
#[test]
fn loops_count() {
    let first = "and.b32 %q0, %r6, 7; mov.u32 %q1, %r7;\nIN:\n";
    let next = "mad.lo.u32 %q1, %q1, 1664525, 1013904223; sub.u32 %q0, %q0, 1; setp.lt.s32 %p2, %q0, 0;\n@!%p2 bra IN;\n";
    let count = place("%q1", 20, "%q2") + "red.shared.add.u32 [%q2], 1;\n";
    same(&format!("{first}{count}{next}"));
    same(&format!("{first}@%p1 bra PAST;\n{count}PAST:\n{next}"));
    let own = "red.shared.add.u32 [%r8], %q1; ld.shared.u32 %q3, [%r8]; xor.b32 %q1, %q1, %q3;\n";
    same(&format!("{first}{own}{next}"));
}

/// A lane that adds where nothing is, or not at a multiple of four, faults as ever; one whose guard leaves it out does not.
#[test]
fn faults_of_sums_are_the_same() {
    for (made, kind) in [
        ("selp.b32 %q0, 65536, 0, %p2;", FaultKind::IllegalAddress),
        ("selp.b32 %q0, 4096, 0, %p2;", FaultKind::IllegalAddress),
        ("selp.b32 %q0, -4096, 0, %p2;", FaultKind::IllegalAddress),
        ("selp.b32 %q0, 2, 0, %p2;", FaultKind::MisalignedAddress),
    ] {
        let made = format!(
            "{BEFORE}setp.eq.u32 %p2, %r2, 37; {made} add.s32 %q0, %q0, %r15; shl.b32 %q1, %q7, 2; add.s32 %q0, %q0, %q1;\n"
        );
        let sums = "red.shared.add.u32 [%q0], %r6; red.shared.add.u32 [%r8], 1;";
        let fault = same_by_all_ways(&format!("{made}{sums}\n{AFTER}"), 256, 1, 0);
        let fault = fault.expect_err("lane 37 faults");
        assert_eq!((fault.kind, fault.thread), (kind, [37, 0, 0]));
        let guarded = format!("{made}@!%p2 {sums}\n{AFTER}");
        same_by_all_ways(&guarded, 256, 1, 0).expect("lane 37 is left out");
    }
}

/// Where a block has no shared memory, who adds nothing touches none, and who adds is told.
#[test]
fn sums_touch_nothing_where_there_is_no_shared_memory() {
    let head = HEAD
        .replace(".shared .align 16 .b8 tile[4096];\n", "")
        .replace("mov.u32 %r15, tile;", "mov.u32 %r15, 0;");
    let run = |body: &str, threads: u32| {
        let text = format!("{head}{BEFORE}{body}\nst.global.u32 [%a1], %r6;\nret;\n}}\n");
        same_text_by_all_ways(&text, threads, 1, 0)
    };
    let never = "setp.gt.u32 %p2, %r2, 5000; and.b32 %q0, %r6, 252; xor.b32 %q1, %r6, %r7;\n";
    for body in [
        "@%p2 red.shared.add.u32 [%q0], %r7; add.u32 %r6, %r6, %q1;",
        "@%p2 bra ADD;\nadd.u32 %r6, %r6, %q1;\nbra PAST;\nADD:\nred.shared.add.u32 [%q0], %r7; red.shared.add.u32 [%q0+4], %q1;\nPAST:\nadd.u32 %r6, %r6, 1;",
        "mov.u32 %q2, 0;\nNEXT:\n@%p2 red.shared.add.u32 [%q0], %q2; add.u32 %q2, %q2, 1; setp.lt.u32 %p3, %q2, 9;\n@%p3 bra NEXT;",
    ] {
        for threads in [1, 21, 256] {
            assert!(run(&format!("{never}{body}"), threads).is_ok(), "{body}");
        }
    }
    let told = run("@%p0 red.shared.add.u32 [%r15], %r7;", 256);
    assert!(told.is_err());
}
