//! From the bytes of a program of 1 MB to the end of its first launch, on an engine that has to compile it and on a later one
//! that finds it kept. Printed, not judged: `cargo bench -p engine-soft --bench first_launch`.
//!
//! The way of the bytes from client to server is not in it.
#![allow(
    clippy::unwrap_used,
    reason = "a measurement that fails has nothing to say"
)]

use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use engine::arena::GRANULE;
use engine::conformance::rig::{Guest, params, simple_launch};
use engine_soft::{CodeFiles, Config, SoftEngine};
use protocol::operations::Launch;

/// Bytes of a program.
const BYTES: usize = 1_000_000;
const ROUNDS: usize = 11;

fn main() {
    let many = program(1 << 6, 0);
    let mixed = program(1 << 6, 6000);
    let one = program(0, 26_000);
    for (name, text) in [
        ("many kernels of 80 instructions", many),
        ("the same, and one of 8,000, launched", mixed),
        ("one kernel of 34,000", one),
    ] {
        measure(name, &text);
    }
}

/// A kernel that reads, computes, compares, branches and writes, as compilers write it, with about so many instructions.
fn kernel(text: &mut String, name: &str, instructions: usize) {
    let _ = writeln!(
        text,
        ".visible .entry {name}(.param .u64 {name}_param_0, .param .u64 {name}_param_1)\n{{\n\
         \t.reg .pred \t%p<{0}>;\n\t.reg .b32 \t%r<{1}>;\n\t.reg .f32 \t%f<{1}>;\n\t.reg .b64 \t%rd<8>;\n\
         \tld.param.u64 \t%rd1, [{name}_param_0];\n\tld.param.u32 \t%r1, [{name}_param_1];\n\
         \tcvta.to.global.u64 \t%rd3, %rd1;\n\tmov.u32 \t%r2, %ctaid.x;\n\tmov.u32 \t%r3, %ntid.x;\n\
         \tmov.u32 \t%r4, %tid.x;\n\tmad.lo.s32 \t%r5, %r2, %r3, %r4;\n\tsetp.ge.s32 \t%p1, %r5, %r1;\n\
         \t@%p1 bra \t$L_{name}_end;\n\tmul.wide.s32 \t%rd5, %r5, 4;\n\tadd.s64 \t%rd6, %rd3, %rd5;\n\
         \tld.global.f32 \t%f1, [%rd6];\n\tmov.u32 \t%r6, 0;",
        instructions / 8 + 4,
        instructions + 20
    );
    let (mut f, mut r) = (1, 6);
    let parts = instructions / 16;
    for part in 0..parts {
        let at = 4 * (part % 8);
        let _ = writeln!(
            text,
            "$L_{name}_{part}:\n\tld.global.f32 \t%f{}, [%rd6+{at}];",
            f + 1
        );
        for step in f + 1..f + 9 {
            let to = step + 1;
            let _ = match step % 4 {
                0 => writeln!(text, "\tfma.rn.f32 \t%f{to}, %f{step}, %f{f}, 0f3F800000;"),
                1 => writeln!(text, "\tmul.f32 \t%f{to}, %f{step}, %f{step};"),
                2 => writeln!(text, "\tadd.f32 \t%f{to}, %f{step}, %f1;"),
                _ => writeln!(text, "\tmax.f32 \t%f{to}, %f{step}, 0f00000000;"),
            };
        }
        f += 9;
        let (first, second, third) = (r + 1, r + 2, r + 3);
        let _ = writeln!(
            text,
            "\tst.global.f32 \t[%rd6+{at}], %f{f};\n\tadd.s32 \t%r{first}, %r{r}, 1;\n\
             \tand.b32 \t%r{second}, %r{first}, 255;\n\txor.b32 \t%r{third}, %r{second}, {part};\n\
             \tsetp.lt.s32 \t%p{}, %r{third}, %r1;\n\t@%p{} bra \t$L_{name}_{};\n\tst.global.f32 \t[%rd6], %f{f};",
            part + 2,
            part + 2,
            part + 1
        );
        r += 3;
    }
    let _ = writeln!(
        text,
        "$L_{name}_{parts}:\n\tst.global.f32 \t[%rd6], %f{f};\n$L_{name}_end:\n\tret;\n}}"
    );
}

/// A program of a large kernel first, if there is one, and as many small ones as there is room for.
fn program(small: usize, large: usize) -> String {
    let mut text = ".version 8.0\n.target sm_80\n.address_size 64\n".to_owned();
    if large != 0 {
        kernel(&mut text, "large", large);
    }
    for number in 0.. {
        if small == 0 || text.len() >= BYTES {
            break;
        }
        kernel(&mut text, &format!("_Z11kernel_{number:04}Pfi"), small);
    }
    text
}

struct Times {
    open: Duration,
    load: Duration,
    launch: Duration,
}

/// What an engine takes that begins now.
fn run(folder: &Path, text: &str) -> Times {
    let start = Instant::now();
    let files = CodeFiles::open(folder, Box::new(|_| {})).unwrap();
    let open = start.elapsed();
    let config = Config {
        workers: 2,
        memory: 512 << 20,
        ..Config::default()
    };
    let engine = SoftEngine::with_numbers(&config, &[0], Some(files)).unwrap();
    let mut guest = Guest::new(&engine);
    let to = guest.commit(0, GRANULE);
    let start = Instant::now();
    let module = guest.module(text);
    let load = start.elapsed();
    let request = Launch {
        kernel: 0,
        ..simple_launch(module, 1, 256)
    };
    let start = Instant::now();
    guest
        .launch_result(0, &request, &params(&[to, 256]))
        .unwrap();
    guest.wait(0).unwrap();
    let launch = start.elapsed();
    Times { open, load, launch }
}

fn measure(name: &str, text: &str) {
    let (mut cold, mut kept) = (Vec::new(), Vec::new());
    let mut bytes = 0;
    // In turn, so that what else the machine does favours nobody.
    for _ in 0..ROUNDS {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("code");
        cold.push(run(&folder, text));
        kept.push(run(&folder, text));
        let files = std::fs::read_dir(&folder).unwrap();
        bytes = files
            .map(|file| file.unwrap().metadata().unwrap().len())
            .sum();
    }
    println!("{name}: {} bytes of PTX, {bytes} bytes kept", text.len());
    for (what, times) in [("  compiled", &cold), ("  kept", &kept)] {
        let row = |of: &dyn Fn(&Times) -> Duration| {
            let mut all: Vec<f64> = times
                .iter()
                .map(|times| of(times).as_secs_f64() * 1e3)
                .collect();
            all.sort_by(f64::total_cmp);
            format!(
                "{:6.1} ({:.1}–{:.1})",
                all[ROUNDS / 2],
                all[0],
                all[ROUNDS - 1]
            )
        };
        println!(
            "{what:<12} load {} + first launch {} = {} ms; files opened in {} ms",
            row(&|times| times.load),
            row(&|times| times.launch),
            row(&|times| times.load + times.launch),
            row(&|times| times.open)
        );
    }
}
