//! Speed of whole kernels on the executor alone: no engine, no transport; blocks on plain threads.
//!
//! `cargo bench -p ptx-vm --bench kernels [-- THREADS] [ways] [fenced]`; `fenced` puts fences into the kernels, which
//! let everything through.

#![allow(missing_docs, reason = "a program")]

#[path = "../tests/exec/gpu.rs"]
#[allow(dead_code, reason = "shared with the tests")]
mod gpu;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use gpu::{Args, Gpu};
use ptx::fence::{Windows, fence};
use ptx_vm::{Cluster, Isa, Launch, Options, Outcome};

fn main() {
    let threads = std::env::args()
        .skip(1)
        .find_map(|arg| arg.parse().ok())
        .unwrap_or(2);
    let widths = if std::env::args().any(|arg| arg == "ways") {
        vec![32, 64, 128, 256]
    } else {
        vec![256]
    };
    for isa in [Isa::Sse2, Isa::Avx2, Isa::Avx512] {
        for jit in [false, true] {
            for &lanes in &widths {
                if isa.available() && !(isa == Isa::Sse2 && jit) {
                    nbody(isa, jit, lanes, threads);
                    product(isa, jit, lanes, threads);
                }
            }
        }
    }
}

/// The text, with fences where they are asked for.
fn text(source: &str) -> String {
    if !std::env::args().any(|arg| arg == "fenced") {
        return source.to_owned();
    }
    let all = Windows {
        base: 0,
        size: !127,
        table: 0,
        count: 0,
        record: 0,
    };
    let fenced = fence(source, &all, &|_| false, ptx::Budget::default());
    fenced.expect("a fence").text
}

/// n-body in single precision: 14,336 bodies, blocks of 256.
fn nbody(isa: Isa, jit: bool, lanes: usize, threads: usize) {
    let options = Options {
        isa: Some(isa),
        jit: Some(jit),
        group_lanes: Some(lanes),
        ..Options::default()
    };
    let mut gpu = Gpu::with(
        &text(include_str!("../../examples/nbody/nbody.ptx")),
        &options,
        256,
    );
    let count = 14_336usize;
    let bodies: Vec<[f32; 4]> = (0..count)
        .map(|i| {
            let t = i as f32;
            [
                (t * 0.37).sin(),
                (t * 0.11).cos(),
                (t * 0.73).sin(),
                1.0 / count as f32,
            ]
        })
        .collect();
    let positions = gpu.upload(&bodies);
    let moved = gpu.upload(&bodies);
    let velocities = gpu.upload(&bodies);
    let args = Args::new()
        .ptr(moved)
        .ptr(positions)
        .ptr(velocities)
        .u32(0)
        .u32((count / 256) as u32)
        .f32(0.016)
        .f32(0.01);
    let launch = gpu.launch("step_f32", (count / 256) as u32, 256, 0, &args);
    let gflop = (count * count) as f64 * 20.0 / 1e9;
    let name = format!("n-body f32 {isa:?}, segments {jit}, groups of {lanes}");
    report(&name, gflop, &launch, threads);
}

/// A product of matrices of single precision, 512 × 512, by tiles of 16 × 16 in shared memory.
fn product(isa: Isa, jit: bool, lanes: usize, threads: usize) {
    let options = Options {
        isa: Some(isa),
        jit: Some(jit),
        group_lanes: Some(lanes),
        ..Options::default()
    };
    let mut gpu = Gpu::with(
        &text(include_str!("../tests/kernels/kernels.ptx")),
        &options,
        256,
    );
    let side = 512usize;
    let values: Vec<f32> = (0..side * side).map(|i| (i % 7) as f32).collect();
    let [a, b, c] = [(); 3].map(|()| gpu.upload(&values));
    let args = Args::new().ptr(a).ptr(b).ptr(c).u32(side as u32);
    let blocks = (side / 16) as u32;
    let launch = gpu.launch("matrix_product", [blocks, blocks, 1], [16, 16, 1], 0, &args);
    let gflop = 2.0 * (side * side * side) as f64 / 1e9;
    let name = format!("product by tiles {isa:?}, segments {jit}, groups of {lanes}");
    report(&name, gflop, &launch, threads);
}

/// The best of three runs of a grid that does so many operations, 1e9 of them being one.
fn report(name: &str, gflop: f64, launch: &Arc<Launch>, threads: usize) {
    let times: Vec<(f64, f64)> = (0..3).map(|_| run(launch, threads)).collect();
    let wall = times.iter().map(|time| time.0).fold(f64::MAX, f64::min);
    let cpu = times.iter().map(|time| time.1).fold(f64::MAX, f64::min);
    println!(
        "{name}, {threads} threads: {:.1} ms, {:.1} GFLOP/s; {:.1} GFLOP per second of one core",
        wall * 1e3,
        gflop / wall,
        gflop / cpu,
    );
}

/// Seconds of processor time that this process has used.
fn cpu() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 * 1e-9
}

/// Runs a grid on so many threads; returns how long it took, and how much processor time (which is what
/// to compare on a machine that does other things beside).
fn run(launch: &Arc<Launch>, threads: usize) -> (f64, f64) {
    let next = AtomicU64::new(0);
    let (start, before) = (Instant::now(), cpu());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= launch.blocks() {
                        return;
                    }
                    let mut block = Cluster::new(Arc::clone(launch), index, 0).expect("a block");
                    loop {
                        match block.run(1 << 20) {
                            Outcome::Finished => break,
                            Outcome::Yielded => {}
                            other => panic!("{other:?}"),
                        }
                    }
                }
            });
        }
    });
    (start.elapsed().as_secs_f64(), cpu() - before)
}
