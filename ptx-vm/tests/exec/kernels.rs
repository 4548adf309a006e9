//! Whole kernels, results checked against plain Rust.

use crate::gpu::{Args, Gpu};

#[test]
fn nbody_single() {
    let mut gpu = Gpu::new(include_str!("../../../examples/nbody/nbody.ptx"));
    let count = 512;
    let bodies: Vec<[f32; 4]> = (0..count)
        .map(|i| {
            let t = i as f32;
            [
                (t * 0.37).sin(),
                (t * 0.11).cos(),
                (t * 0.73).sin() * 0.5,
                1.0 / count as f32,
            ]
        })
        .collect();
    let positions = gpu.upload(&bodies);
    let moved = gpu.upload(&vec![[0f32; 4]; count]);
    let velocities = gpu.upload(&vec![[0f32; 4]; count]);
    let (dt, softening) = (0.016f32, 0.01f32);
    let args = Args::new()
        .ptr(moved)
        .ptr(positions)
        .ptr(velocities)
        .u32(0)
        .u32(count as u32 / 256)
        .f32(dt)
        .f32(softening);
    gpu.run("step_f32", 2, 256, &args);
    let got: Vec<[f32; 4]> = gpu.read(moved, count);
    for (i, body) in bodies.iter().enumerate() {
        let mut pull = [0f64; 3];
        for other in &bodies {
            let d: [f64; 3] = std::array::from_fn(|k| f64::from(other[k]) - f64::from(body[k]));
            let square = d.iter().map(|x| x * x).sum::<f64>() + f64::from(softening);
            let weight = f64::from(other[3]) / (square * square.sqrt());
            for k in 0..3 {
                pull[k] += d[k] * weight;
            }
        }
        for k in 0..3 {
            let dt = f64::from(dt);
            let expected = f64::from(body[k]) + pull[k] * dt * dt;
            assert!(
                (f64::from(got[i][k]) - expected).abs() < 1e-6,
                "{i} {k}: {} {expected}",
                got[i][k]
            );
        }
        assert_eq!(got[i][3], body[3]);
    }
}

/// The kernels of `tests/kernels/kernels.cu`.
fn gpu() -> Gpu {
    Gpu::new(include_str!("../kernels/kernels.ptx"))
}

/// Numbers that look random, the same each time.
fn noise(seed: u32) -> impl Iterator<Item = u32> {
    let mut state = u64::from(seed) * 2 + 1;
    std::iter::repeat_with(move || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32
    })
}

#[test]
fn reduction_through_shuffles() {
    for block in [32, 64, 100, 256, 1024] {
        let mut gpu = gpu();
        let values: Vec<f32> = noise(1).take(10_000).map(|n| (n % 16) as f32).collect();
        let (input, output) = (gpu.upload(&values), gpu.upload(&[0f32]));
        // A warp with dead lanes sums what shuffles from them give, so whole warps only.
        let block = if block == 100 { 96 } else { block };
        gpu.run(
            "reduce_sum",
            3,
            block,
            &Args::new().ptr(input).ptr(output).u32(values.len() as u32),
        );
        assert_eq!(
            gpu.read::<f32>(output, 1)[0],
            values.iter().sum::<f32>(),
            "{block}"
        );
    }
}

#[test]
fn scan_of_one_block() {
    for threads in [32u32, 100, 256, 512, 1024] {
        let mut gpu = gpu();
        let values: Vec<u32> = noise(2).take(threads as usize).collect();
        let (input, output) = (gpu.upload(&values), gpu.upload(&values));
        gpu.try_run(
            "scan_block",
            1,
            threads,
            threads * 4,
            &Args::new().ptr(input).ptr(output),
        )
        .unwrap();
        let mut sum = 0u32;
        let expected: Vec<u32> = values
            .iter()
            .map(|value| {
                sum = sum.wrapping_add(*value);
                sum
            })
            .collect();
        assert_eq!(
            gpu.read::<u32>(output, threads as usize),
            expected,
            "{threads}"
        );
    }
}

#[test]
fn transpose_through_shared_memory() {
    let mut gpu = gpu();
    let (width, height) = (50u32, 37u32);
    let values: Vec<f32> = (0..width * height).map(|i| i as f32).collect();
    let (input, output) = (gpu.upload(&values), gpu.upload(&vec![0f32; values.len()]));
    let args = Args::new().ptr(input).ptr(output).u32(width).u32(height);
    gpu.run(
        "transpose",
        [width.div_ceil(16), height.div_ceil(16), 1],
        [16, 16, 1],
        &args,
    );
    let got: Vec<f32> = gpu.read(output, values.len());
    for x in 0..width {
        for y in 0..height {
            assert_eq!(
                got[(x * height + y) as usize],
                values[(y * width + x) as usize]
            );
        }
    }
}

#[test]
fn histogram_with_atomics() {
    let mut gpu = gpu();
    let values: Vec<u8> = noise(3)
        .take(20_000)
        .map(|n| ((n % 256) & (n / 256)) as u8)
        .collect();
    let (input, output) = (gpu.upload(&values), gpu.upload(&[0u32; 256]));
    gpu.run(
        "histogram",
        4,
        192,
        &Args::new().ptr(input).ptr(output).u32(values.len() as u32),
    );
    let mut expected = [0u32; 256];
    for value in values {
        expected[usize::from(value)] += 1;
    }
    assert_eq!(gpu.read::<u32>(output, 256), expected);
}

#[test]
fn product_of_matrices() {
    let mut gpu = gpu();
    let n = 48usize;
    let a: Vec<f32> = noise(4).take(n * n).map(|n| (n % 7) as f32).collect();
    let b: Vec<f32> = noise(5).take(n * n).map(|n| (n % 5) as f32).collect();
    let (pa, pb, pc) = (
        gpu.upload(&a),
        gpu.upload(&b),
        gpu.upload(&vec![0f32; n * n]),
    );
    gpu.run(
        "matrix_product",
        [3, 3, 1],
        [16, 16, 1],
        &Args::new().ptr(pa).ptr(pb).ptr(pc).u32(n as u32),
    );
    let got: Vec<f32> = gpu.read(pc, n * n);
    for row in 0..n {
        for column in 0..n {
            let expected: f32 = (0..n).map(|k| a[row * n + k] * b[k * n + column]).sum();
            assert_eq!(got[row * n + column], expected);
        }
    }
}

#[test]
fn sort_in_shared_memory() {
    for threads in [64u32, 256, 1024] {
        let mut gpu = gpu();
        let mut values: Vec<u32> = noise(6).take(threads as usize).collect();
        let data = gpu.upload(&values);
        gpu.try_run(
            "sort_block",
            1,
            threads,
            threads * 4,
            &Args::new().ptr(data),
        )
        .unwrap();
        values.sort_unstable();
        assert_eq!(gpu.read::<u32>(data, threads as usize), values);
    }
}

#[test]
fn mandelbrot_with_lanes_that_leave_early() {
    let mut gpu = gpu();
    let (width, height, limit) = (70u32, 40u32, 200u32);
    let output = gpu.upload(&vec![0u32; (width * height) as usize]);
    let args = Args::new().ptr(output).u32(width).u32(height).u32(limit);
    gpu.run(
        "mandelbrot",
        [width.div_ceil(32), height.div_ceil(8), 1],
        [32, 8, 1],
        &args,
    );
    let got: Vec<u32> = gpu.read(output, (width * height) as usize);
    let mut inside = 0;
    for y in 0..height {
        for x in 0..width {
            // The compiler contracts products and sums; follow it.
            let cx = (3.0 * x as f32) / width as f32 - 2.0;
            let cy = (2.0 * y as f32) / height as f32 - 1.0;
            let (mut zx, mut zy, mut n) = (0f32, 0f32, 0);
            while n < limit && zx.mul_add(zx, zy * zy) < 4.0 {
                let t = zx * zx - zy * zy + cx;
                zy = (2.0 * zx).mul_add(zy, cy);
                zx = t;
                n += 1;
            }
            // Points at the set's edge depend on the last bit: allow them to differ.
            let got = got[(y * width + x) as usize];
            inside += u32::from(got == limit);
            assert!(got.abs_diff(n) <= 2 || n > 30, "{x} {y}: {got} {n}");
        }
    }
    assert!(inside > 300 && inside < 1500, "{inside}");
}

#[test]
fn recursion_and_calls_through_pointers() {
    fn ackermann(m: u32, n: u32) -> u32 {
        match (m, n) {
            (0, n) => n + 1,
            (m, 0) => ackermann(m - 1, 1),
            (m, n) => ackermann(m - 1, ackermann(m, n - 1)),
        }
    }
    let mut gpu = gpu();
    let output = gpu.upload(&[0u32; 64]);
    gpu.run("recursion", 1, 64, &Args::new().ptr(output));
    let expected: Vec<u32> = (0..64).map(|t| ackermann(t % 3, t % 5)).collect();
    assert_eq!(gpu.read::<u32>(output, 64), expected);

    gpu.run("indirect", 1, 64, &Args::new().ptr(output));
    let expected: Vec<i32> = (0..64)
        .map(|t| match t % 3 {
            0 => t + 7,
            1 => t * 7,
            _ => t - 7,
        })
        .collect();
    assert_eq!(gpu.read::<i32>(output, 64), expected);
}

#[test]
fn lanes_that_wait_for_lanes() {
    let mut gpu = gpu();
    let (lock, count) = (gpu.upload(&[0u32]), gpu.upload(&[0u32]));
    gpu.run("locked_count", 3, 96, &Args::new().ptr(lock).ptr(count));
    assert_eq!(gpu.read::<u32>(count, 1), [288]);

    let (flag, output) = (gpu.upload(&[0u32]), gpu.upload(&[0u32; 64]));
    gpu.run(
        "wait_for_neighbour",
        1,
        64,
        &Args::new().ptr(flag).ptr(output),
    );
    assert_eq!(gpu.read::<u32>(output, 64), (1..=64).collect::<Vec<_>>());

    let (flag, output) = (gpu.upload(&[0u32]), gpu.upload(&[0u32; 64]));
    gpu.run("wait_for_block", 2, 64, &Args::new().ptr(flag).ptr(output));
    assert_eq!(gpu.read::<u32>(output, 64), [42; 64]);

    let (arrived, values, output) = (
        gpu.upload(&[0u32]),
        gpu.upload(&[0u32; 20]),
        gpu.upload(&[0u32; 20]),
    );
    gpu.run(
        "grid_barrier",
        20,
        64,
        &Args::new().ptr(arrived).ptr(values).ptr(output),
    );
    let expected: Vec<u32> = (0..20).map(|i| (i + 1) % 20 * ((i + 1) % 20)).collect();
    assert_eq!(gpu.read::<u32>(output, 20), expected);
}

#[test]
fn votes_and_matches() {
    let mut gpu = gpu();
    let values: Vec<u32> = noise(7).take(64).map(|n| n % 900).collect();
    let (input, output) = (gpu.upload(&values), gpu.upload(&[0u32; 320]));
    gpu.run("votes", 1, 64, &Args::new().ptr(input).ptr(output));
    let got: Vec<u32> = gpu.read(output, 320);
    for (warp, lanes) in values.chunks(32).enumerate() {
        let bits = |f: &dyn Fn(u32) -> bool| {
            lanes
                .iter()
                .enumerate()
                .fold(0u32, |bits, (lane, &v)| bits | u32::from(f(v)) << lane)
        };
        let odd = bits(&|v| v & 1 != 0);
        for (lane, &v) in lanes.iter().enumerate() {
            let row = &got[(warp * 32 + lane) * 5..][..5];
            assert_eq!(row[0], odd);
            assert_eq!(row[1], 2 + u32::from(lanes.contains(&7)));
            assert_eq!(row[2], bits(&|w| w % 5 == v % 5));
            assert_eq!(row[3], if v & 1 != 0 { odd } else { 0 });
            assert_eq!(row[4], lanes[(lane + 5) % 32]);
        }
    }
}

#[test]
fn halves_of_a_warp_in_different_branches() {
    let mut gpu = gpu();
    let output = gpu.upload(&[0u32; 64]);
    gpu.run("warp_halves", 1, 64, &Args::new().ptr(output));
    let expected: Vec<u32> = (0..64u32)
        .map(|t| {
            let base = t & !31;
            if t % 32 < 16 {
                ((t ^ 2) ^ 1) + 100 + base + 3
            } else {
                base + 16 + ((t % 32 - 16) ^ 5)
            }
        })
        .collect();
    assert_eq!(gpu.read::<u32>(output, 64), expected);
}

#[test]
fn barriers_do_not_wait_for_the_dead() {
    for threads in [64usize, 100, 300, 1000] {
        let mut gpu = gpu();
        let output = gpu.upload(&vec![0u32; threads]);
        gpu.run("early_exit", 1, threads as u32, &Args::new().ptr(output));
        let odd = (0..threads).filter(|t| t % 3 != 0 && t % 2 == 1).count() as u32;
        let expected: Vec<u32> = (0..threads)
            .map(|t| if t % 3 == 0 { 0 } else { odd })
            .collect();
        assert_eq!(gpu.read::<u32>(output, threads), expected, "{threads}");
    }
}

#[test]
fn module_variables_and_pointers_to_them() {
    let mut gpu = gpu();
    let (output, old) = (gpu.upload(&[0f32; 32]), gpu.upload(&[0u32; 32]));
    gpu.run("variables", 1, 32, &Args::new().ptr(output).ptr(old));
    assert_eq!(
        gpu.read::<f32>(output, 32),
        (0..32).map(|i| (i % 8 + 1) as f32).collect::<Vec<_>>()
    );
    let mut seen: Vec<u32> = gpu.read(old, 32);
    seen.sort_unstable();
    assert_eq!(seen, (5..37).collect::<Vec<_>>());
    assert_eq!(gpu.read::<u32>(gpu.global("counter"), 1), [37]);
}

#[test]
fn arrays_of_a_thread() {
    let mut gpu = gpu();
    let values: Vec<u32> = noise(8).take(70).collect();
    let (input, output) = (gpu.upload(&values), gpu.upload(&[0u32; 70]));
    gpu.run(
        "local_array",
        1,
        70,
        &Args::new().ptr(input).ptr(output).u32(40),
    );
    for (t, (&seed, got)) in values.iter().zip(gpu.read::<u32>(output, 70)).enumerate() {
        let mut stack = [0u32; 32];
        // The array is not cleared, but 40 steps of 7 reach all of it.
        for i in 0..40u32 {
            stack[(i.wrapping_mul(7).wrapping_add(seed) % 32) as usize] = i + t as u32;
        }
        let sum = (0..40u32).fold(0u32, |sum, i| {
            sum.wrapping_mul(3)
                .wrapping_add(stack[(seed.wrapping_add(i) % 32) as usize])
        });
        assert_eq!(got, sum, "{t}");
    }
}

#[test]
fn a_structure_by_value() {
    let mut gpu = gpu();
    let output = gpu.upload(&[0f64; 12]);
    let args = Args::new()
        .f64(1.5)
        .f64(2.5)
        .f64(3.5)
        .f64(4.5)
        .u32(10)
        .u32(20)
        .u32(30)
        .u32(7)
        .ptr(output);
    gpu.run("by_value", 1, 12, &args);
    let expected: Vec<f64> = (0..12)
        .map(|t| (f64::from(t % 4) + 1.5) * f64::from(t % 3 + 1) * 10.0 + 7.0)
        .collect();
    assert_eq!(gpu.read::<f64>(output, 12), expected);
}

fn close(got: f64, expected: f64, relative: f64, absolute: f64) -> bool {
    got == expected
        || (got.is_nan() && expected.is_nan())
        || (got - expected).abs() <= expected.abs() * relative + absolute
}

#[test]
fn mathematics_in_single_precision() {
    let mut gpu = gpu();
    let values: Vec<f32> = (0..500)
        .map(|i| (i as f32 - 250.0) * 0.0731)
        .chain([1e5, -3e7, 0.0])
        .collect();
    let (input, output) = (
        gpu.upload(&values),
        gpu.upload(&vec![0f32; values.len() * 12]),
    );
    let args = Args::new().ptr(input).ptr(output).u32(values.len() as u32);
    gpu.run("math_single", 4, 128, &args);
    let got: Vec<f32> = gpu.read(output, values.len() * 12);
    for (&x, row) in values.iter().zip(got.chunks(12)) {
        let d = f64::from(x);
        let positive = f64::from(x.abs() + 1e-3);
        let expected = [
            (d.sin(), 2e-7, 1e-7),
            (d.cos(), 2e-7, 1e-7),
            (d.exp(), 3e-7, 1e-44),
            (positive.ln(), 2e-7, 1e-7),
            (d.abs().sqrt(), 1e-7, 0.0),
            (d.tanh(), 3e-7, 0.0),
            (d.abs().powf(f64::from(1.7f32)), 1e-6, 0.0),
            (f64::from(x / 3.7), 0.0, 0.0),
            (1.0 / f64::from(x.abs() + 0.5).sqrt(), 1.3e-7, 0.0),
            (d.floor(), 0.0, 0.0),
            (d.sin(), 0.0, if x.abs() < 3.2 { 5e-7 } else { 3.0 }),
        ];
        for (index, (expected, relative, absolute)) in expected.into_iter().enumerate() {
            let got = f64::from(row[index]);
            let fits = close(got, expected, relative, absolute);
            let infinite = expected > f64::from(f32::MAX) && got.is_infinite();
            assert!(
                fits || infinite,
                "function {index} of {x}: {got} {expected}"
            );
        }
    }
}

#[test]
fn mathematics_in_double_precision() {
    let mut gpu = gpu();
    let values: Vec<f64> = (0..300)
        .map(|i| f64::from(i - 150) * 0.173)
        .chain([1e6, -1e-9, 0.0])
        .collect();
    let (input, output) = (
        gpu.upload(&values),
        gpu.upload(&vec![0f64; values.len() * 8]),
    );
    let args = Args::new().ptr(input).ptr(output).u32(values.len() as u32);
    gpu.run("math_double", 3, 128, &args);
    let got: Vec<f64> = gpu.read(output, values.len() * 8);
    for (&x, row) in values.iter().zip(got.chunks(8)) {
        let expected = [
            (x.sin(), 1e-15, 1e-15),
            (x.exp(), 1e-15, 0.0),
            ((x.abs() + 1e-3).ln(), 1e-15, 1e-15),
            (x.abs().sqrt(), 0.0, 0.0),
            (x / 3.7, 0.0, 0.0),
            (x.abs().powf(1.7), 1e-14, 0.0),
            (x.round_ties_even(), 0.0, 0.0),
            (x.cbrt(), 1e-15, 0.0),
        ];
        for (index, (expected, relative, absolute)) in expected.into_iter().enumerate() {
            assert!(
                close(row[index], expected, relative, absolute),
                "function {index} of {x}: {} {expected}",
                row[index]
            );
        }
    }
}

#[test]
fn integers_of_all_sizes() {
    let mut gpu = gpu();
    let mut random = noise(9);
    let mut values: Vec<i64> = (0..200)
        .map(|i| {
            let wide =
                i64::from(random.next().unwrap()) << 32 | i64::from(random.next().unwrap()) << 1;
            wide >> ((i % 60) * i64::from(i % 2 == 0))
        })
        .collect();
    values.extend([
        0,
        1,
        -1,
        i64::MIN,
        i64::MAX,
        i64::from(i32::MIN),
        0x8000_0000,
    ]);
    let (input, output) = (
        gpu.upload(&values),
        gpu.upload(&vec![0i64; values.len() * 16]),
    );
    gpu.run(
        "integers",
        2,
        128,
        &Args::new().ptr(input).ptr(output).u32(values.len() as u32),
    );
    let got: Vec<i64> = gpu.read(output, values.len() * 16);
    for (i, row) in got.chunks(16).enumerate() {
        let (x, y) = (values[i], values[(i + 1) % values.len()]);
        let (a, b) = (x as i32, y as i32);
        let (ua, ub) = (a as u32, b as u32);
        let unsigned = |n: u32| i64::from(n as i32);
        let sad = 9u32.wrapping_add(a.max(b).wrapping_sub(a.min(b)) as u32);
        let permuted = {
            let pool = (u64::from(ub) << 32 | u64::from(ua)).to_le_bytes();
            u32::from_le_bytes([pool[2], pool[4], pool[1], pool[5]])
        };
        let wide = u128::from(x as u64) * u128::from(y as u64);
        let expected = [
            if y == 0 { 1 } else { x.wrapping_div(y) },
            if y == 0 { 1 } else { x.wrapping_rem(y) },
            if b == 0 { 1 } else { i64::from(ua / ub) },
            if b != 0 && !(a == i32::MIN && b == -1) {
                i64::from(a % b)
            } else {
                1
            },
            ((i128::from(x) * i128::from(y)) >> 64) as i64,
            i64::from(((u64::from(ua) * u64::from(ub)) >> 32) as u32),
            i64::from(a.leading_zeros()),
            i64::from(x.count_ones()),
            x.reverse_bits(),
            i64::from(ub << 11 | ua >> 21),
            i64::from(permuted),
            i64::from(sad),
            if x == 0 {
                0
            } else {
                i64::from(x.trailing_zeros()) + 1
            },
            (wide >> 37) as i64,
            i64::from(a as i16) * i64::from(b as i8),
            i64::from(a.min(b)).wrapping_add(x.max(y) >> 3),
        ];
        for (index, expected) in expected.into_iter().enumerate() {
            let fits = row[index] == expected
                || row[index] as u32 == expected as u32
                    && unsigned(row[index] as u32) == row[index];
            assert!(
                fits,
                "{index} of {x:#x} {y:#x}: {:#x} {expected:#x}",
                row[index]
            );
        }
    }
}

/// What looks at pairs, and what writes them, a pair for each thread, as scans do that keep a status beside a value.
const PAIRS: &str = ".version 7.0\n.target sm_70\n.address_size 64\n\
    .visible .entry look(.param .u64 pairs, .param .u64 torn)\n{\n\
    .reg .b64 %rd<5>;\n.reg .b32 %r<6>;\n.reg .pred %p<3>;\n\
    ld.param.u64 %rd1, [pairs];\nld.param.u64 %rd2, [torn];\n\
    mov.u32 %r1, %tid.x;\nmul.wide.u32 %rd3, %r1, 8;\nadd.u64 %rd1, %rd1, %rd3;\n\
    mov.u32 %r2, 0;\n\
    again:\n\
    ld.relaxed.gpu.v2.u32 {%r3, %r4}, [%rd1];\n\
    setp.ne.u32 %p1, %r3, %r4;\n@%p1 red.global.add.u32 [%rd2], 1;\n\
    add.u32 %r2, %r2, 1;\nsetp.lt.u32 %p2, %r2, 3000;\n@%p2 bra again;\n\
    ret;\n}\n\
    .visible .entry say(.param .u64 pairs, .param .u64 torn)\n{\n\
    .reg .b64 %rd<5>;\n.reg .b32 %r<6>;\n.reg .pred %p<3>;\n\
    ld.param.u64 %rd1, [pairs];\n\
    mov.u32 %r1, %tid.x;\nmul.wide.u32 %rd3, %r1, 8;\nadd.u64 %rd1, %rd1, %rd3;\n\
    mov.u32 %r2, 0;\n\
    again:\n\
    st.global.cg.v2.u32 [%rd1], {%r2, %r2};\n\
    add.u32 %r2, %r2, 1;\nsetp.lt.u32 %p2, %r2, 30000;\n@%p2 bra again;\n\
    ret;\n}\n\
    .visible .entry carry(.param .u64 to, .param .u64 from)\n{\n\
    .reg .b64 %rd<8>;\n.reg .b32 %r<8>;\n.reg .b16 %h<5>;\n.reg .pred %p<3>;\n\
    ld.param.u64 %rd1, [to];\nld.param.u64 %rd2, [from];\n\
    mov.u32 %r1, %tid.x;\nmul.wide.u32 %rd3, %r1, 16;\n\
    add.u64 %rd1, %rd1, %rd3;\nadd.u64 %rd2, %rd2, %rd3;\n\
    and.b32 %r2, %r1, 3;\nsetp.eq.u32 %p1, %r2, 0;\n@%p1 bra words;\nsetp.eq.u32 %p2, %r2, 1;\n@%p2 bra wide;\n\
    ld.volatile.v4.u16 {%h1, %h2, %h3, %h4}, [%rd2];\nst.volatile.v4.u16 [%rd1], {%h1, %h2, %h3, %h4};\nret;\n\
    words:\n\
    ld.relaxed.gpu.v4.u32 {%r3, %r4, %r5, %r6}, [%rd2];\nst.relaxed.gpu.v4.u32 [%rd1], {%r6, %r5, %r4, %r3};\nret;\n\
    wide:\n\
    ld.acquire.gpu.v2.u64 {%rd4, %rd5}, [%rd2];\nst.release.gpu.v2.u64 [%rd1], {%rd5, %rd4};\nret;\n}\n";

#[test]
fn vectors_that_others_use_are_accessed_at_once() {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    let threads = 32;
    let mut gpu = Gpu::new(PAIRS);
    let pairs = gpu.upload(&vec![0u64; threads]);
    let torn = gpu.upload(&[0u32]);
    let cells: Vec<&AtomicU64> = (0..threads as u64)
        // SAFETY: memory of the window, aligned, which everybody accesses as whole words.
        .map(|index| unsafe { AtomicU64::from_ptr((pairs + index * 8) as *mut u64) })
        .collect();
    let args = Args::new().ptr(pairs).ptr(torn);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut value = 0u64;
            while !over.load(Ordering::Relaxed) {
                value = (value + 1) & 0xffff_ffff;
                for cell in &cells {
                    cell.store(value << 32 | value, Ordering::Relaxed);
                }
            }
        });
        gpu.run("look", 1, threads as u32, &args);
        over.store(true, Ordering::Relaxed);
        writer.join().unwrap();
    });
    assert_eq!(gpu.read::<u32>(torn, 1), [0]);
    over.store(false, Ordering::Relaxed);
    let seen = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut torn = 0;
            while !over.load(Ordering::Relaxed) {
                for cell in &cells {
                    let pair = cell.load(Ordering::Relaxed);
                    torn += u64::from(pair >> 32 != pair & 0xffff_ffff);
                }
            }
            torn
        });
        gpu.run("say", 1, threads as u32, &args);
        over.store(true, Ordering::Relaxed);
        reader.join().unwrap()
    });
    assert_eq!(seen, 0);
}

#[test]
fn vectors_that_others_use_come_and_go_whole() {
    let threads = 77;
    let mut gpu = Gpu::new(PAIRS);
    let values: Vec<[u32; 4]> = (0..threads)
        .map(|i| [4 * i + 1, 4 * i + 2, 4 * i + 3, 4 * i + 4])
        .collect();
    let from = gpu.upload(&values);
    let to = gpu.upload(&vec![[0u32; 4]; values.len()]);
    gpu.run("carry", 1, threads, &Args::new().ptr(to).ptr(from));
    let got: Vec<[u32; 4]> = gpu.read(to, values.len());
    for (index, ([a, b, c, d], got)) in values.into_iter().zip(got).enumerate() {
        let expected = match index % 4 {
            0 => [d, c, b, a],
            1 => [c, d, a, b],
            _ => [a, b, 0, 0],
        };
        assert_eq!(got, expected, "{index}");
    }
}
