//! Loads whose address is the same in all lanes, which segments do once: the same as by operations, also where lanes have ended, and
//! where what they load is not theirs or not aligned.

use ptx_vm::FaultKind;

use crate::segments::same_by_all_ways;

/// Each width, in shared memory and in global, several of a lane, amid arithmetic on what is the same in all lanes and what is not.
#[test]
fn loads_of_what_all_lanes_share_are_the_same() {
    const LOADS: [&str; 12] = [
        "ld.shared.u32 %r7, [%r6]; add.u32 %r8, %r8, %r7; ld.shared.u32 %r9, [%r6+4]; xor.b32 %r8, %r8, %r9;",
        "ld.shared.u8 %r7, [%r6+3]; mad.lo.u32 %r8, %r8, 3, %r7; ld.shared.u8 %r9, [%r6+1001]; add.u32 %r8, %r8, %r9;",
        "ld.shared.u16 %r7, [%r6+2]; mad.lo.u32 %r8, %r8, 3, %r7;",
        "ld.shared.s8 %r7, [%r6+5]; mad.lo.u32 %r8, %r8, 3, %r7;",
        "ld.shared.v2.u32 {%r7, %r9}, [%r6+8]; mad.lo.u32 %r8, %r7, 3, %r9;",
        "ld.shared.v4.u32 {%r7, %r9, %r10, %r11}, [%r6+16]; mad.lo.u32 %r8, %r7, %r10, %r9; add.u32 %r8, %r8, %r11;",
        "ld.shared.u64 %v1, [%r6+24]; cvt.u32.u64 %r7, %v1; shr.u64 %v1, %v1, 32; cvt.u32.u64 %r9, %v1; xor.b32 %r8, %r7, %r9;",
        "ld.global.u32 %r7, [%a0+64]; ld.global.u32 %r9, [%a0+4]; sub.u32 %r8, %r7, %r9;",
        "ld.global.u8 %r7, [%a0+65]; ld.global.u16 %r9, [%a0+6]; mad.lo.u32 %r8, %r7, 77, %r9;",
        "ld.global.v2.u64 {%v1, %v2}, [%a0+32]; xor.b64 %v1, %v1, %v2; cvt.u32.u64 %r8, %v1; ld.shared.f32 %f1, [%r6+12]; mov.b32 %r9, %f1; add.u32 %r8, %r8, %r9;",
        "ld.global.u32 %r7, [%a0+32]; and.b32 %r7, %r7, 1020; add.u32 %r9, %r6, %r7; ld.shared.u32 %r8, [%r9];",
        "ld.volatile.shared.u32 %r7, [%r6]; ld.relaxed.gpu.global.u32 %r9, [%a0+8]; add.u32 %r8, %r7, %r9;",
    ];
    for load in LOADS {
        for threads in [64, 250] {
            for step in [0, 8, 1024] {
                // Shared memory is filled, and a few turns are made; in some of them some lanes have ended.
                let body = format!(
                    "rem.u32 %r6, %r2, 64; shl.b32 %r6, %r6, 4; add.u32 %r6, %r15, %r6; mul.lo.u32 %r7, %r2, 77777;\n\
                     st.shared.v4.u32 [%r6], {{%r7, %r2, %r5, %r7}};\nbar.sync 0;\nmov.u32 %r8, %r1; mov.u32 %r14, 0; mov.u32 %r13, 0;\n\
                     TURN: and.b32 %r6, %r14, 48; add.u32 %r6, %r6, %r15;\n{load}\nmad.lo.u32 %r13, %r13, 5, %r8; xor.b32 %r13, %r13, %r2;\n\
                     add.u32 %r14, %r14, 16; setp.ge.u32 %p1, %r2, %r0;\n@%p1 bra OVER;\nsetp.lt.u32 %p0, %r14, 64;\n@%p0 bra TURN;\n\
                     OVER: st.global.u32 [%a1], %r13; st.global.u32 [%a1+4], %r8;"
                );
                // The last lanes of shared memory are of several threads: only of one are they stored.
                let body = body.replace("%r7, %r2, %r5, %r7}", "%r6, %r15, 7, %r6}");
                same_by_all_ways(&body, threads, step, 3).expect("no fault");
            }
        }
    }
}

#[test]
fn wrong_addresses_of_all_lanes_are_found() {
    for (load, kind) in [
        ("ld.shared.u32 %r7, [%r6];", FaultKind::IllegalAddress),
        (
            "ld.shared.v4.u32 {%r7, %r9, %r10, %r11}, [%r6-16];",
            FaultKind::IllegalAddress,
        ),
        ("ld.shared.u32 %r7, [%r6-6];", FaultKind::MisalignedAddress),
        ("ld.shared.u64 %v1, [%r6-4];", FaultKind::IllegalAddress),
        (
            "mul.wide.u32 %v1, %r6, 0x10000; add.s64 %a2, %a0, %v1; ld.global.u32 %r7, [%a2];",
            FaultKind::IllegalAddress,
        ),
        (
            "add.s64 %a2, %a0, 2; ld.global.u32 %r7, [%a2];",
            FaultKind::MisalignedAddress,
        ),
        (
            "mov.u64 %a2, 0; ld.global.u8 %r7, [%a2];",
            FaultKind::IllegalAddress,
        ),
    ] {
        // The first lanes have ended: the fault is another lane's.
        for ended in [0, 5, 70] {
            let body = format!(
                "setp.lt.u32 %p0, %r2, {ended};\n@%p0 exit;\nbar.sync 0;\nmov.u32 %r8, 1; add.u32 %r6, %r15, 4096;\n\
                 {load}\nadd.u32 %r8, %r8, 3; st.global.u32 [%a1], %r8;"
            );
            let body = if kind == FaultKind::IllegalAddress && load.contains("-16") {
                body.replace("-16]", "]")
            } else {
                body
            };
            let fault = same_by_all_ways(&body, 128, 0, 0).expect_err("wrong");
            assert_eq!(fault.kind, kind, "{load}");
        }
    }
}

/// The larger and the smaller of special numbers.
#[test]
fn larger_and_smaller_numbers_are_the_same() {
    const NUMBERS: [u32; 12] = [
        0,
        0x8000_0000,
        1,
        0x8000_0001,
        0x3f80_0000,
        0xbf80_0000,
        0x7f80_0000,
        0xff80_0000,
        0x7fc0_0000,
        0xffc1_2345,
        0x7f80_0001,
        0xffa0_0000,
    ];
    for number in NUMBERS {
        for op in ["max.f32", "min.f32", "max.ftz.f32", "min.NaN.f32"] {
            let mut body = format!("mov.u32 %r6, {number}; mov.b32 %f0, %r6; mov.u32 %r8, 0;\n");
            for other in NUMBERS {
                // In lanes that differ, and the same in all.
                body += &format!(
                    "mov.u32 %r7, {other}; mov.b32 %f1, %r7; {op} %f2, %f0, %f1; mov.b32 %r9, %f2; mad.lo.u32 %r8, %r8, 31, %r9;\n\
                     and.b32 %r10, %r2, 1; setp.eq.u32 %p0, %r10, 0; selp.b32 %r11, %r6, %r7, %p0; mov.b32 %f3, %r11;\n\
                     {op} %f4, %f3, %f1; mov.b32 %r9, %f4; mad.lo.u32 %r8, %r8, 31, %r9;\n"
                );
            }
            same_by_all_ways(&format!("{body}st.global.u32 [%a1], %r8;"), 40, 0, 0)
                .expect("no fault");
        }
    }
}
