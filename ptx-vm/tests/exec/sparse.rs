//! Products of sparse and of scaled matrices, and those of warpgroups, of random matrices against plain sums.

use half::f16;

use crate::gpu::{Args, Gpu};

const HEAD: &str = ".version 9.0\n.target sm_120a\n.address_size 64\n";

/// Numbers that look random.
pub(crate) fn noise(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut state = seed;
    move |below| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    }
}

pub(crate) fn list(first: usize, count: usize) -> String {
    let all: Vec<String> = (first..first + count)
        .map(|number| format!("%r{number}"))
        .collect();
    format!("{{{}}}", all.join(", "))
}

/// Runs an instruction of a warp on registers 0 to `count` of each lane, lane by lane; the registers from `d` on that come
/// back.
pub(crate) fn run(instruction: &str, registers: &[Vec<u32>], results: usize) -> Vec<Vec<u32>> {
    let count = registers[0].len();
    let mut text = format!(
        "{HEAD}.visible .entry k(.param .u64 in, .param .u64 out) {{\n.reg .b64 %in, %out, %x; .reg .b32 %t, %r<60>;\n\
         ld.param.u64 %in, [in]; ld.param.u64 %out, [out]; mov.u32 %t, %tid.x;\n\
         mul.wide.u32 %x, %t, {}; add.s64 %in, %in, %x; mul.wide.u32 %x, %t, {}; add.s64 %out, %out, %x;\n",
        4 * count,
        4 * results
    );
    for at in 0..count {
        text += &format!("ld.global.b32 %r{at}, [%in+{}];\n", 4 * at);
    }
    text += instruction;
    for at in 0..results {
        text += &format!("\nst.global.b32 [%out+{}], %r{};", 4 * at, 40 + at);
    }
    let mut gpu = Gpu::new(&(text + "\nret; }\n"));
    let (input, out) = (
        gpu.upload(&registers.concat()),
        gpu.upload(&vec![0_u32; 32 * results]),
    );
    gpu.run("k", 1, 32, &Args::new().ptr(input).ptr(out));
    gpu.read::<u32>(out, 32 * results)
        .chunks(results)
        .map(<[u32]>::to_vec)
        .collect()
}

fn half_bits(value: i64) -> u32 {
    f16::from_f32(value as f32).to_bits().into()
}

fn as_is(value: i64) -> u32 {
    value as u32
}

fn single(value: i64) -> u32 {
    (value as f32).to_bits()
}

#[test]
fn sparse_products_are_those_of_the_matrix_spread_out() {
    // Shape, types, elements in a register, columns of the whole left matrix, selector, code.
    type Code = fn(i64) -> u32;
    let cases: [(&str, &str, usize, usize, usize, Code); 9] = [
        ("m16n8k16", "f32.f16.f16.f32", 2, 16, 3, half_bits),
        ("m16n8k32", "f32.f16.f16.f32", 2, 32, 1, half_bits),
        ("m16n8k8", "f32.tf32.tf32.f32", 1, 8, 2, single),
        ("m16n8k16", "f32.tf32.tf32.f32", 1, 16, 0, single),
        ("m16n8k32", "s32.s8.s8.s32", 4, 32, 1, as_is),
        ("m16n8k64", "s32.s8.s8.s32", 4, 64, 0, as_is),
        ("m16n8k64", "s32.s4.s4.s32", 8, 64, 0, as_is),
        ("m16n8k64", "s32.s4.s4.s32", 8, 64, 1, as_is),
        ("m16n8k128", "s32.s4.s4.s32", 8, 128, 0, as_is),
    ];
    for (shape, types, each, depth, selector, code) in cases {
        let mut random = noise(depth as u64 * 8 + each as u64 + selector as u64);
        let mut value = || random(9) as i64 - 4;
        // Which of how many that follow each other are there: of pairs for 4 bits.
        let (unit, group, kept) = match each {
            1 => (1, 2, 1),
            8 => (2, 4, 2),
            _ => (1, 4, 2),
        };
        let mut whole = vec![vec![0; depth]; 16];
        let mut stored = vec![Vec::new(); 16];
        let mut nibbles = vec![Vec::new(); 16];
        for row in 0..16 {
            for start in (0..depth).step_by(unit * group) {
                let first = (value() + 4) as usize % (group - kept + 1);
                let second = first + 1 + (value() + 4) as usize % (group - kept - first + 1).max(1);
                let places = if kept == 1 {
                    vec![first]
                } else {
                    vec![first, second.min(group - 1)]
                };
                for &place in &places {
                    for part in 0..unit {
                        let number = value();
                        whole[row][start + place * unit + part] = number;
                        stored[row].push(number);
                    }
                }
                nibbles[row].push(match places.as_slice() {
                    [one] => [0b0100, 0b1110][*one],
                    two => (two[0] | two[1] << 2) as u32,
                });
            }
        }
        let right: Vec<Vec<i64>> = (0..depth)
            .map(|_| (0..8).map(|_| value()).collect())
            .collect();
        let bits = 32 / each;
        let mask = u32::MAX >> (32 - bits);
        let pack = |values: &[i64]| -> u32 {
            values.iter().enumerate().fold(0, |word, (at, &value)| {
                word | (code(value) & mask) << (bits * at)
            })
        };
        let steps = depth / 2 / (4 * each);
        let mut lanes = Vec::new();
        for lane in 0..32 {
            let (row, number) = (lane / 4, lane % 4);
            let mut words = Vec::new();
            for step in 0..steps {
                let start = (4 * step + number) * each;
                words.extend([row, row + 8].map(|row| pack(&stored[row][start..start + each])));
            }
            for step in 0..2 * steps {
                let start = (4 * step + number) * each;
                let column: Vec<i64> = (start..start + each).map(|k| right[k][row]).collect();
                words.push(pack(&column));
            }
            // Metadata: of both rows in one lane, four groups each, or eight groups of one row.
            let groups = |row: usize, from: usize, count: usize| {
                (0..count).fold(0, |word, at| word | nibbles[row][from + at] << (4 * at))
            };
            let lanes_used = if each > 2 { 2 * steps } else { steps };
            words.push(
                match number
                    .checked_sub(selector * lanes_used)
                    .filter(|at| *at < lanes_used)
                {
                    None => 0xdead_beef,
                    Some(at) if each > 2 => groups(row + 8 * (at % 2), 8 * (at / 2), 8),
                    Some(at) => groups(row, 4 * at, 4) | groups(row + 8, 4 * at, 4) << 16,
                },
            );
            lanes.push(words);
        }
        let instruction = format!(
            "mov.b32 %r50, 0;\nmma.sp::ordered_metadata.sync.aligned.{shape}.row.col.{types} {}, {}, {}, {{%r50, %r50, %r50, %r50}}, %r{}, {selector};",
            list(40, 4),
            list(0, 2 * steps),
            list(2 * steps, 2 * steps),
            4 * steps
        );
        let got = run(&instruction, &lanes, 4);
        for (lane, sums) in got.iter().enumerate() {
            for (at, &bits) in sums.iter().enumerate() {
                let (row, column) = (lane / 4 + 8 * (at / 2), lane % 4 * 2 + at % 2);
                let wanted: i64 = (0..depth).map(|k| whole[row][k] * right[k][column]).sum();
                let got = if types.starts_with("f32") {
                    f32::from_bits(bits) as i64
                } else {
                    i64::from(bits as i32)
                };
                assert_eq!(got, wanted, "{shape} {types} {selector}: {row}, {column}");
            }
        }
    }
}

#[test]
fn small_floats_are_multiplied() {
    // Each code of six bits, and of four in the middle of a byte.
    let decode = |code: u32, exponent: u32| -> f64 {
        let fraction = 5 - exponent;
        let bias = (1 << (exponent - 1)) - 1;
        let (e, f) = (
            (code >> fraction & ((1 << exponent) - 1)) as i32,
            f64::from(code & ((1 << fraction) - 1)),
        );
        let part = f / f64::from(1 << fraction);
        let amount = if e == 0 {
            part * 2f64.powi(1 - bias)
        } else {
            (1.0 + part) * 2f64.powi(e - bias)
        };
        if code >> 5 & 1 != 0 { -amount } else { amount }
    };
    for (left, right) in [("e3m2", "e2m3"), ("e2m3", "e2m1"), ("e2m1", "e3m2")] {
        let mut random = noise(left.len() as u64 + u64::from(right.as_bytes()[1]));
        let mut code = |kind: &str| match kind {
            "e2m1" => random(16) as u32 * 4,
            _ => random(64) as u32,
        };
        let exponent = |kind: &str| if kind == "e3m2" { 3 } else { 2 };
        let a: Vec<Vec<u32>> = (0..16)
            .map(|_| (0..32).map(|_| code(left)).collect())
            .collect();
        let b: Vec<Vec<u32>> = (0..8)
            .map(|_| (0..32).map(|_| code(right)).collect())
            .collect();
        let word = |row: &[u32], start: usize| {
            (0..4).fold(0, |word, at| word | row[start + at] << (8 * at))
        };
        let lanes: Vec<Vec<u32>> = (0..32)
            .map(|lane| {
                let (group, number) = (lane / 4, 4 * (lane % 4));
                let (low, high) = (&a[group], &a[group + 8]);
                vec![
                    word(low, number),
                    word(high, number),
                    word(low, number + 16),
                    word(high, number + 16),
                    word(&b[group], number),
                    word(&b[group], number + 16),
                ]
            })
            .collect();
        let instruction = format!(
            "mov.b32 %r50, 0;\nmma.sync.aligned.m16n8k32.row.col.kind::f8f6f4.f32.{left}.{right}.f32 {}, {}, {}, {{%r50, %r50, %r50, %r50}};",
            list(40, 4),
            list(0, 4),
            list(4, 2)
        );
        for (lane, sums) in run(&instruction, &lanes, 4).iter().enumerate() {
            for (at, &bits) in sums.iter().enumerate() {
                let (row, column) = (lane / 4 + 8 * (at / 2), lane % 4 * 2 + at % 2);
                let exact: f64 = (0..32)
                    .map(|k| {
                        decode(a[row][k], exponent(left)) * decode(b[column][k], exponent(right))
                    })
                    .sum();
                assert_eq!(
                    f32::from_bits(bits),
                    exact as f32,
                    "{left} {right}: {row}, {column}"
                );
            }
        }
    }
}

#[test]
fn scaled_products_are_sums_of_scaled_blocks() {
    const FOUR: [f64; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    let decode = |code: u32| {
        if code & 8 != 0 {
            -FOUR[(code & 7) as usize]
        } else {
            FOUR[code as usize]
        }
    };
    for (kind, blocks, factor_type, (byte_a, lane_a), (byte_b, lane_b)) in [
        ("mxf4", 2, "ue8m0", (2, 1), (0, 3)),
        ("mxf4nvf4", 2, "ue8m0", (0, 0), (2, 1)),
        ("mxf4nvf4", 4, "ue4m3", (0, 1), (0, 2)),
    ] {
        let mut random = noise(blocks as u64 + byte_a as u64);
        let mut rows = |count: usize| -> Vec<Vec<u32>> {
            (0..count)
                .map(|_| (0..64).map(|_| random(16) as u32).collect())
                .collect()
        };
        let (a, b) = (rows(16), rows(8));
        // Powers of two, or floats of eight bits, which are so here, too.
        let mut factors = |count: usize| -> Vec<Vec<u32>> {
            (0..count)
                .map(|_| {
                    (0..blocks)
                        .map(|_| {
                            if factor_type == "ue8m0" {
                                125 + random(5) as u32
                            } else {
                                (5 + random(5) as u32) << 3
                            }
                        })
                        .collect()
                })
                .collect()
        };
        let (scale_a, scale_b) = (factors(16), factors(8));
        let factor = |code: u32| {
            if factor_type == "ue8m0" {
                2f64.powi(code as i32 - 127)
            } else {
                2f64.powi((code >> 3) as i32 - 7)
            }
        };
        let word = |row: &[u32], start: usize| {
            (0..8).fold(0, |word, at| word | row[start + at] << (4 * at))
        };
        let bytes = |codes: &[u32], byte: usize| {
            codes
                .iter()
                .enumerate()
                .fold(0, |word, (at, code)| word | code << (8 * (byte + at)))
        };
        let lanes: Vec<Vec<u32>> = (0..32)
            .map(|lane| {
                let (group, number) = (lane / 4, lane % 4);
                let (low, high) = (&a[group], &a[group + 8]);
                let scale_left = match number.checked_sub(2 * lane_a) {
                    Some(0) => bytes(&scale_a[group], byte_a),
                    Some(1) => bytes(&scale_a[group + 8], byte_a),
                    _ => 0x7777_7777,
                };
                let scale_right = if number == lane_b {
                    bytes(&scale_b[group], byte_b)
                } else {
                    0x7777_7777
                };
                vec![
                    word(low, 8 * number),
                    word(high, 8 * number),
                    word(low, 8 * number + 32),
                    word(high, 8 * number + 32),
                    word(&b[group], 8 * number),
                    word(&b[group], 8 * number + 32),
                    scale_left,
                    scale_right,
                ]
            })
            .collect();
        let instruction = format!(
            "mov.b32 %r50, 0f3F000000;\nmma.sync.aligned.m16n8k64.row.col.kind::{kind}.block_scale.scale_vec::{blocks}X.f32.e2m1.e2m1.f32.{factor_type} {}, {}, {}, {{%r50, %r50, %r50, %r50}}, %r6, {{{byte_a}, {lane_a}}}, %r7, {{{byte_b}, {lane_b}}};",
            list(40, 4),
            list(0, 4),
            list(4, 2)
        );
        for (lane, sums) in run(&instruction, &lanes, 4).iter().enumerate() {
            for (at, &bits) in sums.iter().enumerate() {
                let (row, column) = (lane / 4 + 8 * (at / 2), lane % 4 * 2 + at % 2);
                let exact: f64 = (0..64)
                    .map(|k| {
                        let block = k * blocks / 64;
                        let scale = factor(scale_a[row][block]) * factor(scale_b[column][block]);
                        decode(a[row][k]) * decode(b[column][k]) * scale
                    })
                    .sum();
                assert_eq!(
                    f32::from_bits(bits),
                    (exact + 0.5) as f32,
                    "{kind} {blocks}: {row}, {column}"
                );
            }
        }
    }
}

/// Where an element of 16 bits of a matrix in shared memory is, as descriptors have it: `index` counts rows of the left
/// matrix or columns of the right one.
fn place(index: usize, depth: usize, turned: bool, swizzle: usize) -> usize {
    // Parts follow each other, those along the depth first where there is no swizzle.
    let plain = match (turned, swizzle) {
        (false, 0) => index / 8 * 256 + depth / 8 * 128 + index % 8 * 16 + depth % 8 * 2,
        (true, 0) => index / 8 * 256 + depth / 8 * 128 + depth % 8 * 16 + index % 8 * 2,
        (false, width) => index * width + depth * 2,
        (true, width) => 2 * index / width * 16 * width + depth * width + 2 * index % width,
    };
    match swizzle {
        0 => plain,
        width => plain ^ (plain >> 7 & (width / 16 - 1)) << 4,
    }
}

#[test]
fn warpgroups_multiply_matrices_in_shared_memory() {
    for (swizzle, turned) in [
        (0, [false, true]),
        (32, [true, true]),
        (64, [false, false]),
        (128, [true, false]),
    ] {
        let mut random = noise(swizzle as u64);
        let mut value = || random(9) as i64 - 4;
        let a: Vec<Vec<i64>> = (0..64)
            .map(|_| (0..16).map(|_| value()).collect())
            .collect();
        let b: Vec<Vec<i64>> = (0..24)
            .map(|_| (0..16).map(|_| value()).collect())
            .collect();
        let mut shared = vec![0_u16; 16384];
        for (start, matrix, turned) in [(0, &a, turned[0]), (16384, &b, turned[1])] {
            for (index, row) in matrix.iter().enumerate() {
                for (depth, &number) in row.iter().enumerate() {
                    shared[(start + place(index, depth, turned, swizzle)) / 2] =
                        half_bits(number) as u16;
                }
            }
        }
        let descriptor = |register: &str, start: usize, turned: bool| {
            let (leading, stride) = match (turned, swizzle) {
                (_, 0) => (128, 256),
                (false, width) => (16, 8 * width),
                (true, width) => (16 * width, 8 * width),
            };
            let code = match swizzle {
                0 => 0_u64,
                128 => 1,
                64 => 2,
                _ => 3,
            };
            let bits = (leading as u64 >> 4) << 16 | (stride as u64 >> 4) << 32 | code << 62;
            format!(
                "mov.u64 {register}, tile; add.s64 {register}, {register}, {start}; shr.u64 {register}, {register}, 4; or.b64 {register}, {register}, {bits:#x};\n"
            )
        };
        let registers: Vec<String> = (0..12).map(|at| format!("%f{at}")).collect();
        let mut text = format!(
            ".version 8.6\n.target sm_90a\n.address_size 64\n.shared .align 1024 .b8 tile[32768];\n\
             .visible .entry k(.param .u64 in, .param .u64 out) {{\n.reg .b64 %in, %out, %x<4>; .reg .b32 %t, %r<4>; .reg .f32 %f<12>; .reg .pred %p<3>;\n\
             ld.param.u64 %in, [in]; ld.param.u64 %out, [out]; mov.u32 %t, %tid.x; mul.wide.u32 %x0, %t, 4; add.s64 %in, %in, %x0; mov.u64 %x1, tile; add.s64 %x1, %x1, %x0; mov.u32 %r0, 0;\n\
             FILL: ld.global.u32 %r1, [%in]; st.shared.u32 [%x1], %r1; add.s64 %in, %in, 512; add.s64 %x1, %x1, 512; add.u32 %r0, %r0, 1; setp.lt.u32 %p0, %r0, 64; @%p0 bra FILL;\n\
             fence.proxy.async; bar.sync 0;\n{}{}",
            descriptor("%x2", 0, turned[0]),
            descriptor("%x3", 16384, turned[1]),
        );
        for register in &registers {
            text += &format!("mov.f32 {register}, 0f42000000;\n");
        }
        // The second time what is there is added to, negated.
        text += &format!(
            "setp.ne.u32 %p1, %t, %t; setp.eq.u32 %p2, %t, %t; wgmma.fence.sync.aligned;\n\
             wgmma.mma_async.sync.aligned.m64n24k16.f32.f16.f16 {{{0}}}, %x2, %x3, %p1, 1, 1, {1}, {2};\n\
             wgmma.mma_async.sync.aligned.m64n24k16.f32.f16.f16 {{{0}}}, %x2, %x3, %p2, 1, 1, {1}, {2};\n\
             wgmma.mma_async.sync.aligned.m64n24k16.f32.f16.f16 {{{0}}}, %x2, %x3, %p2, -1, 1, {1}, {2};\n\
             wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;\nmul.wide.u32 %x0, %t, 48; add.s64 %out, %out, %x0;\n",
            registers.join(", "),
            u32::from(turned[0]),
            u32::from(turned[1])
        );
        for (at, register) in registers.iter().enumerate() {
            text += &format!("st.global.f32 [%out+{}], {register};\n", 4 * at);
        }
        let mut gpu = Gpu::new(&(text + "ret; }\n"));
        let (input, out) = (gpu.upload(&shared), gpu.upload(&vec![0_f32; 128 * 12]));
        gpu.run("k", 1, 128, &Args::new().ptr(input).ptr(out));
        let got: Vec<f32> = gpu.read(out, 128 * 12);
        for (at, &sum) in got.iter().enumerate() {
            let (thread, register) = (at / 12, at % 12);
            let row = thread / 32 * 16 + thread % 32 / 4 + 8 * (register / 2 % 2);
            let column = register / 4 * 8 + thread % 4 * 2 + register % 2;
            let wanted: i64 = (0..16).map(|k| a[row][k] * b[column][k]).sum();
            assert_eq!(sum, wanted as f32, "{swizzle} {turned:?}: {row}, {column}");
        }
    }
}

#[test]
fn warpgroups_refuse_by_name_and_fault_outside_of_shared_memory() {
    let text = |instruction: &str| {
        format!(
            ".version 8.6\n.target sm_90a\n.address_size 64\n.visible .entry k(.param .u64 in, .param .u64 out) {{\n.reg .b64 %x<4>; .reg .b32 %r<10>; .reg .f32 %f<4>; .reg .pred %p1;\n\
             mov.u64 %x1, 0x3fff; mov.u64 %x2, 0; setp.eq.u64 %p1, %x1, %x1;\n{instruction}\nret; }}\n"
        )
    };
    let gpu = Gpu::new(&text(
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f0, %f1, %f2, %f3}, %x1, %x2, %p1, 1, 1, 0, 0;",
    ));
    let fault = gpu.try_run("k", 1, 128, 0, &Args::new()).unwrap_err();
    assert_eq!(fault.kind.code(), 700);
    for refused in [
        "wgmma.mma_async.sync.aligned.m64n12k16.f32.f16.f16 {%f0, %f1, %f2, %f3}, %x1, %x2, %p1, 1, 1, 0, 0;",
        "wgmma.mma_async.sync.aligned.m64n8k32.f32.f16.f16 {%f0, %f1, %f2, %f3}, %x1, %x2, %p1, 1, 1, 0, 0;",
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f0, %f1, %f2, %f3}, %x1, %x2, %p1, 1, 2, 0, 0;",
        "wgmma.mma_async.sync.aligned.m64n8k8.f32.tf32.tf32 {%f0, %f1, %f2, %f3}, %x1, %x2, %p1, 1, 1, 0, 0;",
        "wgmma.mma_async.sp.sync.aligned.m64n8k32.f32.f16.f16 {%f0, %f1, %f2, %f3}, %x1, %x2, %r1, 2, %p1, 1, 1, 0, 0;",
    ] {
        let text = text(refused);
        let tree = ptx::parse(&text).unwrap();
        let error = ptx_vm::Module::load(&tree, &ptx_vm::Options::default()).unwrap_err();
        assert!(
            error.message.contains("wgmma.mma_async") && error.line == 7,
            "{error}"
        );
    }
}
