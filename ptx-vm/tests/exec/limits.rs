//! PTX that asks for more than any program needs: it is refused when it is loaded, or its kernel ends as
//! any other one, and nothing of it holds up or ends the process that all clients share.

use std::fmt::Write;
use std::sync::Arc;

use ptx_vm::{Cluster, FaultKind, LoadError, Module, Options, Outcome};

use crate::gpu::{Args, Gpu, run_all};

const HEAD: &str = ".version 9.0\n.target sm_75\n.address_size 64\n";

fn load(source: &str) -> Result<Module, LoadError> {
    let tree = ptx::parse(source).unwrap_or_else(|error| panic!("{error}"));
    Module::load(&tree, &Options::default())
}

/// The error of a module that is beyond a limit.
fn refused(source: &str, what: &str) {
    let error = load(source).expect_err("a refusal");
    assert!(error.limit, "{error}");
    assert!(error.message.contains(what), "{error}");
}

/// A kernel that would run for ever gives way, whatever it does, and ends when it is cancelled.
fn can_be_stopped(source: &str, threads: u32) -> String {
    let gpu = Gpu::new(source);
    let launch = gpu.launch("k", 1, threads, 0, &Args::new());
    let mut block = Cluster::new(launch, 0, 0).unwrap();
    for _ in 0..3 {
        assert_eq!(block.run(10_000), Outcome::Yielded);
    }
    let state = format!("{block:?}");
    gpu.cancel();
    assert_eq!(block.run(u64::MAX), Outcome::Cancelled);
    state
}

#[test]
fn a_tree_of_calls_without_a_loop_gives_way() {
    let mut source = format!("{HEAD}.func f0() {{ ret; }}\n");
    for n in 1..60 {
        let below = n - 1;
        let _ = writeln!(
            source,
            ".func f{n}() {{ call f{below}; call f{below}; ret; }}"
        );
    }
    source += ".visible .entry k() { call f59; ret; }";
    can_be_stopped(&source, 64);
    // The same through pointers.
    let source = source.replace(
        "call f58;",
        "{ .reg .b64 %d; mov.u64 %d, f58; call %d, (), p; }",
    );
    let source = source.replace(".func f59() {", ".func f59() { p: .callprototype () _ ();");
    can_be_stopped(&source, 64);
}

#[test]
fn recursion_gives_way_and_goes_on() {
    let source = format!(
        "{HEAD}.func (.param .b32 r) fib(.param .b32 n) {{ .reg .b32 %r<6>; .reg .pred %p;
        ld.param.u32 %r1, [n]; setp.lt.u32 %p, %r1, 2; @%p bra DONE; sub.u32 %r2, %r1, 1;
        {{ .param .b32 a; .param .b32 b; st.param.b32 [a], %r2; call (b), fib, (a); ld.param.b32 %r3, [b]; }}
        sub.u32 %r2, %r1, 2;
        {{ .param .b32 a; .param .b32 b; st.param.b32 [a], %r2; call (b), fib, (a); ld.param.b32 %r4, [b]; }}
        add.u32 %r1, %r3, %r4;
        DONE: st.param.b32 [r], %r1; ret; }}
        .visible .entry k(.param .u64 out) {{ .reg .b32 %r<3>; .reg .b64 %d<2>; ld.param.u64 %d1, [out];
        {{ .param .b32 a; .param .b32 b; st.param.b32 [a], 16; call (b), fib, (a); ld.param.b32 %r1, [b]; }}
        st.global.u32 [%d1], %r1; ret; }}"
    );
    let mut gpu = Gpu::new(&source);
    let out = gpu.alloc_bytes(4);
    let launch = gpu.launch("k", 1, 32, 0, &Args::new().ptr(out));
    let mut block = Cluster::new(Arc::clone(&launch), 0, 0).unwrap();
    assert_eq!(block.run(1000), Outcome::Yielded);
    run_all(&[launch], 1000).unwrap();
    assert_eq!(gpu.read::<u32>(out, 1), [987]);
}

#[test]
fn a_loop_of_table_jumps_gives_way() {
    let source = format!(
        "{HEAD}.visible .entry k() {{ .reg .b32 %r<2>; mov.u32 %r1, %tid.x; and.b32 %r1, %r1, 1;
        T: .branchtargets A, B; A: brx.idx %r1, T; B: brx.idx %r1, T; ret; }}"
    );
    can_be_stopped(&source, 64);
}

#[test]
fn arriving_at_a_barrier_for_ever_takes_no_memory() {
    let source = format!(
        "{HEAD}.visible .entry k() {{ .reg .b32 %r<2>; mov.u32 %r1, 64;
        L: bar.arrive 1, %r1; add.u32 %r1, %r1, 32; and.b32 %r1, %r1, 0xffff; max.u32 %r1, %r1, 64; bra L; }}"
    );
    let state = can_be_stopped(&source, 32);
    let lists = state.matches("arrived").count();
    assert!(lists > 0 && state.len() < 20_000, "{} bytes", state.len());
}

#[test]
fn a_long_chain_of_functions_is_only_a_deep_stack() {
    let mut source = format!("{HEAD}.func f0() {{ ret; }}\n");
    for n in 1..30_000 {
        let _ = writeln!(source, ".func f{n}() {{ call f{}; ret; }}", n - 1);
    }
    source +=
        ".visible .entry k() { call f29999; ret; } .visible .entry few() { call f4000; ret; }";
    let gpu = Gpu::new(&source);
    let fault = gpu
        .try_run("k", 1, 32, 0, &Args::new())
        .expect_err("a fault");
    assert_eq!(fault.kind, FaultKind::StackOverflow);
    gpu.run("few", 1, 32, &Args::new());
}

#[test]
fn local_memory_of_a_thread_has_an_end() {
    let chain = |functions: u32, bytes: u32| {
        let mut source = format!(
            "{HEAD}.func f0() {{ .local .b8 l[{bytes}]; .reg .b32 %r; st.local.u32 [l], 1; ret; }}\n"
        );
        for n in 1..functions {
            let _ = writeln!(
                source,
                ".func f{n}() {{ .local .b8 l[{bytes}]; .reg .b32 %r; st.local.u32 [l], 1; call f{}; ret; }}",
                n - 1
            );
        }
        source + &format!(".visible .entry k() {{ call f{}; ret; }}", functions - 1)
    };
    let what = "local memory of a thread";
    refused(&chain(4000, 1 << 19), what);
    refused(&chain(9, 64 << 10), what);
    refused(&chain(1, (512 << 10) + 16), what);
    Gpu::new(&chain(8, 64 << 10)).run("k", 1, 32, &Args::new());
    // What calls itself has what there is.
    let loops = chain(9, 64 << 10).replacen("ret;", "call f8; ret;", 1);
    let loops = loops.replacen(".func f0", ".func f8();\n.func f0", 1);
    let fault = Gpu::new(&loops).try_run("k", 1, 32, 0, &Args::new());
    assert_eq!(fault.expect_err("a fault").kind, FaultKind::StackOverflow);
}

#[test]
fn declared_registers_cost_nothing() {
    let mut body =
        String::from(".reg .b32 %r<1000000>; .reg .pred %p; setp.ne.u32 %p, %r999999, 0;\nL:\n");
    body += &"@%p bra L;\n".repeat(20_000);
    let gpu = Gpu::new(&format!("{HEAD}.visible .entry k() {{ {body} ret; }}"));
    gpu.run("k", 1, 32, &Args::new());
}

#[test]
fn blocks_and_registers_have_limits() {
    let mut many = String::new();
    for n in 0..20_000 {
        let (x, y) = (2 * n, 2 * n + 1);
        let _ = writeln!(
            many,
            "add.u32 %r{x}, %r0, {n}; @%p bra B{n}; add.u32 %r{y}, %r1, {n}; B{n}:"
        );
    }
    let kernel = |body: &str| format!("{HEAD}.visible .entry k() {{ {body} ret; }}");
    let head = ".reg .b32 %r<80000>; .reg .pred %p; setp.ne.u32 %p, %r1, 0; L:\n";
    refused(
        &kernel(&format!("{head}{many}")),
        "basic blocks times registers",
    );
    refused(
        &kernel(&format!("{head}{}", "@%p bra L;\n".repeat(70_000))),
        "basic blocks",
    );
    let mut loops = String::from(head);
    for n in 0..20_000 {
        let _ = writeln!(loops, "A{n}: @%p bra A{n};");
    }
    refused(&kernel(&loops), "loops");
    let mut sum = String::from(".reg .b32 %r<80000>; mov.u32 %r0, %tid.x;\n");
    for n in 1..80_000 {
        let _ = writeln!(sum, "add.u32 %r{n}, %r0, {n};");
    }
    for n in 1..80_000 {
        let _ = writeln!(sum, "add.u32 %r0, %r0, %r{n};");
    }
    refused(&kernel(&sum), "registers");
}

#[test]
fn a_table_of_targets_counts_for_each_jump() {
    let mut body = String::from(".reg .b32 %r; mov.u32 %r, %tid.x;\n");
    for n in 0..2000 {
        let _ = writeln!(body, "A{n}:");
    }
    let names: Vec<String> = (0..2000).map(|n| format!("A{n}")).collect();
    let _ = writeln!(body, "T: .branchtargets {};", names.join(", "));
    body += &"brx.idx %r, T;\n".repeat(600);
    refused(
        &format!("{HEAD}.visible .entry k() {{ {body} ret; }}"),
        "instructions of a kernel",
    );
}

#[test]
fn kernels_count_together() {
    let mut source = String::from(HEAD);
    for n in 0..70_000 {
        let _ = writeln!(source, ".visible .entry k{n}() {{ ret; }}");
    }
    refused(&source, "instructions of all kernels");
    // What several of them call counts for each.
    let mut source = format!("{HEAD}.func f() {{ .reg .b32 %r;\n");
    source += &"add.u32 %r, %r, 1;\n".repeat(100_000);
    source += "ret; }\n";
    for n in 0..50 {
        let _ = writeln!(source, ".visible .entry k{n}() {{ call f; ret; }}");
    }
    refused(&source, "instructions of all kernels");
}

#[test]
fn long_straight_code_gives_way() {
    let body = "atom.global.add.u32 %r1, [%d1], 1;\n".repeat(20_000);
    let source = format!(
        "{HEAD}.visible .entry k(.param .u64 out) {{ .reg .b32 %r<2>; .reg .b64 %d<2>; ld.param.u64 %d1, [out];
        {body} ret; }}"
    );
    let mut gpu = Gpu::new(&source);
    let out = gpu.alloc_bytes(4);
    let launch = gpu.launch("k", 1, 32, 0, &Args::new().ptr(out));
    let mut block = Cluster::new(Arc::clone(&launch), 0, 0).unwrap();
    assert_eq!(block.run(4000), Outcome::Yielded);
    while block.run(4000) == Outcome::Yielded {}
    assert_eq!(gpu.read::<u32>(out, 1), [20_000 * 32]);
}

#[test]
fn arguments_in_registers_are_as_wide_as_the_parameters() {
    let source = format!(
        "{HEAD}.func (.reg .b32 r) f(.reg .b32 x, .reg .b32 y) {{ add.u32 r, x, y; ret; }}
        .visible .entry k(.param .u64 out) {{ .reg .b32 %r<3>; .reg .b64 %d<4>; ld.param.u64 %d1, [out];
        mov.u32 %r1, %tid.x; call (%r2), f, (5, %r1); mul.wide.u32 %d2, %r1, 4; add.u64 %d3, %d1, %d2;
        st.global.u32 [%d3], %r2; ret; }}"
    );
    let mut gpu = Gpu::new(&source);
    let out = gpu.alloc_bytes(4 * 256);
    gpu.run("k", 1, 256, &Args::new().ptr(out));
    let wanted: Vec<u32> = (5..261).collect();
    assert_eq!(gpu.read::<u32>(out, 256), wanted);
    // Through a pointer nobody compares: the callee's register is written, and no other.
    let pointer = source
        .replace("call (%r2), f, (5, %r1);", "P: .callprototype (.param .b32 _) _ (.param .b64 _, .param .b32 _); .reg .b64 %f; mov.u64 %f, f; cvt.u64.u32 %d2, %r1; call (%r2), %f, (%d2, %r1), P;");
    let mut gpu = Gpu::new(&pointer);
    let out = gpu.alloc_bytes(4 * 256);
    gpu.run("k", 1, 256, &Args::new().ptr(out));
    let wanted: Vec<u32> = (0..256).map(|n| 2 * n).collect();
    assert_eq!(gpu.read::<u32>(out, 256), wanted);
    for wrong in ["(%d1, %r1)", "(%r1)", "(%r1, %d1)"] {
        let error = load(&source.replace("(5, %r1)", wrong)).expect_err("a refusal");
        assert!(error.message.contains("do not fit"), "{error}");
    }
    let error = load(&source.replace("call (%r2)", "call (%d2)")).expect_err("a refusal");
    assert!(error.message.contains("do not fit"), "{error}");
}

#[test]
fn parameters_end_where_they_end() {
    let source = |at: &str| {
        format!(
            "{HEAD}.visible .entry k(.param .u64 out, .param .u32 n) {{ .reg .b32 %r<3>; .reg .b64 %d<2>; .reg .pred %p;
            ld.param.u64 %d1, [out]; ld.param.u32 %r1, [n]; setp.eq.u32 %p, %r1, 0; @%p bra DONE;
            ld.param.u32 %r2, [{at}]; st.global.u32 [%d1], %r2; DONE: ret; }}"
        )
    };
    for (at, kind) in [
        ("n+4", FaultKind::IllegalAddress),
        ("n+65536", FaultKind::IllegalAddress),
        ("out-4", FaultKind::IllegalAddress),
        ("n-2", FaultKind::MisalignedAddress),
    ] {
        let mut gpu = Gpu::new(&source(at));
        let out = gpu.alloc_bytes(4);
        let run = |n: u32| gpu.try_run("k", 1, 32, 0, &Args::new().ptr(out).u32(n));
        // What is not reached does no harm.
        assert!(run(0).is_ok(), "{at}");
        assert_eq!(run(1).expect_err(at).kind, kind, "{at}");
    }
}

#[test]
fn atomics_are_for_the_types_that_they_are_for() {
    let source = |text: &str| {
        format!(
            "{HEAD}.visible .entry k(.param .u64 out) {{ .reg .b16 %h<3>; .reg .b32 %r<3>; .reg .b64 %d<4>;
            ld.param.u64 %d1, [out]; {text} ret; }}"
        )
    };
    for text in [
        "atom.global.cas.b8 %h1, [%d1], %h1, %h2;",
        "atom.global.exch.b16 %h1, [%d1], %h2;",
        "atom.global.and.b16 %h1, [%d1], %h2;",
        "atom.global.or.b8 %h1, [%d1], %h2;",
        "atom.global.cas.u16 %h1, [%d1], %h1, %h2;",
    ] {
        let error = load(&source(text)).expect_err(text);
        assert!(error.message.contains("not supported"), "{error}");
    }
    for text in [
        "atom.global.cas.b16 %h1, [%d1], %h1, %h2;",
        "atom.global.cas.b32 %r1, [%d1], %r1, %r2;",
        "atom.global.cas.b64 %d1, [%d1], %d2, %d3;",
    ] {
        assert!(load(&source(text)).is_ok(), "{text}");
    }
}
