//! Calls in divergent code, and what device code asks of the system: printing, assertions, the heap, a
//! grid's barrier.

use std::sync::{Arc, Mutex};

use ptx_vm::{FaultKind, Services};

use crate::gpu::{Args, Gpu, run_all};

/// Keeps what is printed and gives addresses.
#[derive(Debug, Default)]
struct Kept {
    printed: Mutex<Vec<String>>,
    messages: Mutex<Vec<String>>,
    given: Mutex<Vec<u64>>,
}

impl Services for Kept {
    fn print(&self, text: Vec<u8>) {
        self.printed
            .lock()
            .unwrap()
            .push(String::from_utf8(text).unwrap());
    }

    fn assertion_failed(&self, text: Vec<u8>) {
        self.messages
            .lock()
            .unwrap()
            .push(String::from_utf8(text).unwrap());
    }

    fn allocate(&self, bytes: u64) -> u64 {
        if bytes > 1000 {
            return 0;
        }
        let mut given = self.given.lock().unwrap();
        given.push(bytes);
        given.len() as u64 * 4096
    }

    fn free(&self, address: u64) -> bool {
        address == 4096
    }
}

const HEAD: &str = ".version 8.0\n.target sm_80\n.address_size 64\n";

/// A string as a global variable.
fn text(name: &str, value: &str) -> String {
    let bytes: Vec<String> = value.bytes().chain([0]).map(|b| b.to_string()).collect();
    format!(
        ".global .align 1 .b8 {name}[{}] = {{{}}};\n",
        bytes.len(),
        bytes.join(", ")
    )
}

#[test]
fn recursion_of_different_depth_and_functions() {
    // `junk` leaves other bytes than 0 and 1 where `fib` has its predicates; which of the two a lane calls
    // first differs, and each loops for some time.
    let source = format!(
        "{HEAD}
        .func (.param .b32 rv) junk(.param .b32 a) {{ .reg .b32 %r<60>; .reg .pred %p<2>;
        ld.param.u32 %r1, [a]; add.s32 %r2, %r1, 37; mul.lo.s32 %r3, %r2, %r2; mul.lo.s32 %r4, %r3, %r2;
        add.s32 %r5, %r4, %r3; mov.u32 %r6, 0; mov.u32 %r7, %r1;
        LOOP: add.s32 %r6, %r6, %r5; add.s32 %r7, %r7, -1; setp.gt.s32 %p1, %r7, 0; @%p1 bra LOOP;
        sub.s32 %r8, %r6, %r6; add.s32 %r9, %r8, %r2; st.param.b32 [rv], %r9; ret; }}
        .func (.param .b32 rv) fib(.param .b32 a) {{ .reg .pred %p<2>; .reg .b32 %r<9>;
        ld.param.u32 %r8, [a]; setp.lt.s32 %p1, %r8, 2; @%p1 bra DONE; add.s32 %r4, %r8, -1;
        {{ .param .b32 x; st.param.b32 [x], %r4; .param .b32 y; call (y), fib, (x); ld.param.b32 %r5, [y]; }}
        {{ .param .b32 x; st.param.b32 [x], %r4; .param .b32 y; call (y), junk, (x); ld.param.b32 %r3, [y]; }}
        add.s32 %r6, %r8, -2;
        {{ .param .b32 x; st.param.b32 [x], %r6; .param .b32 y; call (y), fib, (x); ld.param.b32 %r7, [y]; }}
        add.s32 %r8, %r7, %r5; sub.s32 %r3, %r3, %r4; sub.s32 %r3, %r3, 37; add.s32 %r8, %r8, %r3;
        DONE: st.param.b32 [rv], %r8; ret; }}
        .visible .entry k(.param .u64 out) {{ .reg .b32 %r<9>; .reg .b64 %d<4>; .reg .pred %p<3>;
        mov.u32 %r1, %tid.x; ld.param.u64 %d1, [out]; rem.u32 %r4, %r1, 11; and.b32 %r5, %r1, 1;
        setp.eq.u32 %p1, %r5, 0; mov.u32 %r3, 0; @%p1 bra FIRST;
        {{ .param .b32 x; st.param.b32 [x], %r1; .param .b32 y; call (y), junk, (x); ld.param.b32 %r3, [y]; }}
        FIRST:
        {{ .param .b32 x; st.param.b32 [x], %r4; .param .b32 y; call (y), fib, (x); ld.param.b32 %r2, [y]; }}
        add.s32 %r2, %r2, %r3; mul.wide.u32 %d2, %r1, 4; add.s64 %d3, %d1, %d2; st.global.u32 [%d3], %r2; ret; }}"
    );
    for threads in [5u32, 32, 100, 256] {
        for budget in [64, 2048, 1 << 14] {
            let mut gpu = Gpu::new(&source);
            let out = gpu.alloc_bytes(1024);
            let launch = gpu.launch("k", 1, threads, 0, &Args::new().ptr(out));
            run_all(&[launch], budget).unwrap();
            let fib = [0u32, 1, 1, 2, 3, 5, 8, 13, 21, 34, 55];
            for (i, got) in gpu
                .read::<u32>(out, threads as usize)
                .into_iter()
                .enumerate()
            {
                let junk = if i % 2 == 1 { i as u32 + 37 } else { 0 };
                assert_eq!(
                    got,
                    fib[i % 11] + junk,
                    "thread {i} of {threads}, budget {budget}"
                );
            }
        }
    }
}

#[test]
fn frames_are_aligned_as_their_variables_ask() {
    let source = format!(
        "{HEAD}
        .func (.param .b64 rv) f(.param .b32 a) {{ .local .align 64 .b8 own[64]; .reg .b64 %d<3>; .reg .b32 %r<2>;
        ld.param.u32 %r1, [a]; st.local.u32 [own+4], %r1; ld.local.v2.u32 {{%r1, %r1}}, [own];
        cvta.local.u64 %d1, own; and.b64 %d2, %d1, 63; st.param.b64 [rv], %d2; ret; }}
        .visible .entry k(.param .u64 out) {{ .local .align 4 .b8 odd[20]; .reg .b32 %r<3>; .reg .b64 %d<4>;
        ld.param.u64 %d1, [out]; mov.u32 %r1, %tid.x; st.local.u32 [odd+16], %r1;
        {{ .param .b32 x; st.param.b32 [x], %r1; .param .b64 y; call (y), f, (x); ld.param.b64 %d2, [y]; }}
        st.global.u64 [%d1], %d2; ret; }}"
    );
    let mut gpu = Gpu::new(&source);
    let out = gpu.upload(&[1u64]);
    gpu.run("k", 1, 7, &Args::new().ptr(out));
    assert_eq!(gpu.read::<u64>(out, 1), [0]);
}

#[test]
fn printf_reads_its_arguments_and_counts_them() {
    let source = format!(
        "{HEAD}{}{}
        .extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 a);
        .visible .entry k(.param .u64 out) {{ .local .align 8 .b8 args[24]; .reg .b64 %d<7>; .reg .b32 %r<5>; .reg .pred %p<2>;
        ld.param.u64 %d1, [out]; mov.u32 %r1, %tid.x; setp.lt.u32 %p1, %r1, 30; @%p1 bra DONE;
        cvta.local.u64 %d2, args; st.u32 [%d2], %r1; mov.u64 %d3, word; cvta.global.u64 %d4, %d3; st.u64 [%d2+8], %d4;
        mov.b64 %d5, 0x3ff8000000000000; st.u64 [%d2+16], %d5; mov.u64 %d3, form; cvta.global.u64 %d4, %d3;
        {{ .param .b64 x; st.param.b64 [x], %d4; .param .b64 y; st.param.b64 [y], %d2; .param .b32 z;
        call (z), vprintf, (x, y); ld.param.b32 %r2, [z]; }}
        {{ .param .b64 x; st.param.b64 [x], 0; .param .b64 y; st.param.b64 [y], 0; .param .b32 z;
        call (z), vprintf, (x, y); ld.param.b32 %r3, [z]; }}
        st.global.v2.u32 [%d1], {{%r2, %r3}};
        DONE: ret; }}
        .visible .entry bad(.param .u64 out) {{ .reg .b64 %d<3>; .reg .b32 %r<2>; ld.param.u64 %d1, [out];
        {{ .param .b64 x; st.param.b64 [x], %d1; .param .b64 y; st.param.b64 [y], 0; .param .b32 z;
        call (z), vprintf, (x, y); ld.param.b32 %r1, [z]; }} ret; }}",
        text("form", "%d %s %g%%\n"),
        text("word", "text"),
    );
    let kept = Arc::new(Kept::default());
    let mut gpu = Gpu::new(&source);
    gpu.services = Arc::clone(&kept) as _;
    let out = gpu.alloc_bytes(8);
    gpu.run("k", 1, 32, &Args::new().ptr(out));
    assert_eq!(
        *kept.printed.lock().unwrap(),
        ["30 text 1.5%\n", "31 text 1.5%\n"]
    );
    assert_eq!(gpu.read::<i32>(out, 2), [3, -1]);
    let fault = gpu
        .try_run("bad", 1, 1, 0, &Args::new().ptr(out + (1 << 30)))
        .expect_err("a fault");
    assert_eq!(fault.kind, FaultKind::IllegalAddress);
}

#[test]
fn a_failed_assertion_says_where_and_ends_the_grid() {
    let source = format!(
        "{HEAD}{}{}{}
        .extern .func __assertfail(.param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d, .param .b64 e);
        .visible .entry k() {{ .reg .b64 %d<7>; .reg .b32 %r<5>; .reg .pred %p<2>; mov.u32 %r1, %tid.x;
        setp.lt.u32 %p1, %r1, 2; @%p1 bra DONE; mov.u64 %d1, what; cvta.global.u64 %d2, %d1; mov.u64 %d1, file;
        cvta.global.u64 %d3, %d1; mov.u64 %d1, where; cvta.global.u64 %d4, %d1;
        {{ .param .b64 a; st.param.b64 [a], %d2; .param .b64 b; st.param.b64 [b], %d3; .param .b32 c; st.param.b32 [c], 12;
        .param .b64 d; st.param.b64 [d], %d4; .param .b64 e; st.param.b64 [e], 1; call __assertfail, (a, b, c, d, e); }}
        DONE: ret; }}",
        text("what", "x == 1"),
        text("file", "a.cu"),
        text("where", "void k()"),
    );
    let kept = Arc::new(Kept::default());
    let mut gpu = Gpu::new(&source);
    gpu.services = Arc::clone(&kept) as _;
    // Threads 0 and 1 of x are in order; in the second kernel's block nobody is.
    gpu.run("k", 1, 2, &Args::new());
    let fault = gpu
        .try_run("k", [1, 3, 1], 3, 0, &Args::new())
        .expect_err("a fault");
    assert_eq!(
        (fault.kind, fault.kind.code(), fault.thread),
        (FaultKind::Assert, 710, [2, 0, 0])
    );
    assert_eq!(
        kept.messages.lock().unwrap()[0],
        "a.cu:12: void k(): block: [0,0,0], thread: [2,0,0] Assertion `x == 1` failed.\n"
    );
}

#[test]
fn the_heap_is_asked_for_each_thread() {
    let source = format!(
        "{HEAD}
        .extern .func (.param .b64 r) malloc(.param .b64 n);
        .extern .func free(.param .b64 p);
        .visible .entry k(.param .u64 out, .param .u64 bytes) {{ .reg .b64 %d<6>; .reg .b32 %r<3>;
        ld.param.u64 %d1, [out]; ld.param.u64 %d2, [bytes]; mov.u32 %r1, %tid.x;
        {{ .param .b64 n; st.param.b64 [n], %d2; .param .b64 z; call (z), malloc, (n); ld.param.b64 %d3, [z]; }}
        mul.wide.u32 %d4, %r1, 8; add.s64 %d5, %d1, %d4; st.global.u64 [%d5], %d3; ret; }}
        .visible .entry give(.param .u64 p) {{ .reg .b64 %d<2>; ld.param.u64 %d1, [p];
        {{ .param .b64 n; st.param.b64 [n], %d1; call free, (n); }} ret; }}"
    );
    let kept = Arc::new(Kept::default());
    let mut gpu = Gpu::new(&source);
    assert!(gpu.module.uses_heap());
    gpu.services = Arc::clone(&kept) as _;
    let out = gpu.alloc_bytes(64);
    gpu.run("k", 1, 3, &Args::new().ptr(out).u64(24));
    assert_eq!(gpu.read::<u64>(out, 3), [4096, 8192, 12288]);
    assert_eq!(*kept.given.lock().unwrap(), [24; 3]);
    gpu.run("k", 1, 3, &Args::new().ptr(out).u64(1 << 40));
    assert_eq!(gpu.read::<u64>(out, 3), [0; 3]);
    gpu.run("give", 1, 1, &Args::new().u64(0));
    gpu.run("give", 1, 1, &Args::new().u64(4096));
    assert!(gpu.try_run("give", 1, 1, 0, &Args::new().u64(12)).is_err());
}

#[test]
fn a_cooperative_grid_has_a_place_to_meet() {
    let source = format!(
        "{HEAD}
        .visible .entry k(.param .u64 out) {{ .reg .b64 %d<4>; .reg .b32 %r<4>; .reg .pred %p<2>;
        ld.param.u64 %d1, [out]; mov.u32 %r1, %envreg1; mov.u32 %r2, %envreg2; mov.b64 %d2, {{%r2, %r1}};
        setp.eq.u64 %p1, %d2, 0; @%p1 trap; add.s64 %d2, %d2, 4; atom.add.release.gpu.u32 %r3, [%d2], 1;
        WAIT: ld.acquire.gpu.u32 %r3, [%d2]; setp.lt.u32 %p1, %r3, 5; @%p1 bra WAIT;
        red.global.add.u32 [%d1], 1; ret; }}
        .visible .entry far(.param .u64 by) {{ .reg .b64 %d<4>; .reg .b32 %r<4>; ld.param.u64 %d1, [by];
        mov.u32 %r1, %envreg1; mov.u32 %r2, %envreg2; mov.b64 %d2, {{%r2, %r1}}; add.s64 %d2, %d2, %d1;
        st.global.u32 [%d2], %r1; ret; }}"
    );
    let mut gpu = Gpu::new(&source);
    let out = gpu.alloc_bytes(4);
    let plain = gpu.try_run("k", 5, 1, 0, &Args::new().ptr(out));
    assert_eq!(plain.expect_err("a trap").kind, FaultKind::Trap);
    gpu.cooperative = true;
    gpu.run("k", 5, 1, &Args::new().ptr(out));
    assert_eq!(gpu.read::<u32>(out, 1), [5]);
    assert!(gpu.try_run("far", 1, 1, 0, &Args::new().u64(0)).is_ok());
    for by in [256u64, 254, 1 << 20, (1 << 24) - 4, u64::MAX - 3] {
        assert!(
            gpu.try_run("far", 1, 1, 0, &Args::new().u64(by)).is_err(),
            "{by}"
        );
    }
}

#[test]
fn constants_are_known_by_their_addresses() {
    let source = format!(
        "{HEAD}.const .align 4 .b8 table[64];\n.global .align 4 .b8 other[64];
        .visible .entry k(.param .u64 out) {{ .reg .b64 %d<4>; .reg .b32 %r<8>; .reg .pred %p<5>;
        ld.param.u64 %d1, [out]; mov.u32 %r1, %tid.x; mov.u64 %d2, table; mov.u64 %d3, other; setp.eq.u32 %p1, %r1, 1;
        @%p1 mov.u64 %d2, %d3; add.s64 %d2, %d2, 60; isspacep.const %p2, %d2; isspacep.global %p3, %d2;
        selp.u32 %r2, 1, 0, %p2; selp.u32 %r3, 2, 0, %p3; or.b32 %r4, %r2, %r3; mul.wide.u32 %d3, %r1, 4;
        add.s64 %d3, %d1, %d3; st.global.u32 [%d3], %r4; ret; }}"
    );
    let mut gpu = Gpu::new(&source);
    let out = gpu.alloc_bytes(8);
    gpu.run("k", 1, 2, &Args::new().ptr(out));
    assert_eq!(gpu.read::<u32>(out, 2), [1, 2]);
}
