//! Matrices that a warp holds together, against plain products and transposes.

use half::f16;

use crate::gpu::{Args, Gpu};

const HEAD: &str = ".version 8.6\n.target sm_100\n.address_size 64\n";

#[test]
fn eight_by_eight_matrices_come_and_go_turned_or_not() {
    for trans in ["", ".trans"] {
        let mut gpu = Gpu::new(&format!(
            "{HEAD}.shared .align 16 .b8 tile[1024];\n\
             .visible .entry k(.param .u64 in, .param .u64 out) {{\n\
             .reg .b64 %p<3>; .reg .b32 %r<9>;\n\
             ld.param.u64 %p1, [in]; ld.param.u64 %p2, [out];\n\
             mov.u32 %r0, %tid.x; mul.wide.u32 %p0, %r0, 16; add.s64 %p1, %p1, %p0; add.s64 %p2, %p2, %p0;\n\
             ld.global.v4.b32 {{%r1, %r2, %r3, %r4}}, [%p1];\n\
             mov.u32 %r5, tile; mad.lo.u32 %r6, %r0, 16, %r5; st.shared.v4.b32 [%r6], {{%r1, %r2, %r3, %r4}};\n\
             bar.sync 0;\n\
             ldmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 {{%r1, %r2, %r3, %r4}}, [%r6];\n\
             bar.sync 0;\n\
             stmatrix.sync.aligned.m8n8.x4.shared.b16 [%r6+512], {{%r1, %r2, %r3, %r4}};\n\
             bar.sync 0;\n\
             ld.shared.v4.b32 {{%r1, %r2, %r3, %r4}}, [%r6+512]; st.global.v4.b32 [%p2], {{%r1, %r2, %r3, %r4}};\n\
             ret; }}\n"
        ));
        let values: Vec<u16> = (0..256).map(|i| i * 7 + 1).collect();
        let (input, output) = (gpu.upload(&values), gpu.upload(&[0u16; 256]));
        gpu.run("k", 1, 32, &Args::new().ptr(input).ptr(output));
        let got: Vec<u16> = gpu.read(output, 256);
        for matrix in 0..4 {
            for row in 0..8 {
                for column in 0..8 {
                    let (r, c) = if trans.is_empty() {
                        (row, column)
                    } else {
                        (column, row)
                    };
                    let wanted = values[matrix * 64 + r * 8 + c];
                    let got = got[matrix * 64 + row * 8 + column];
                    assert_eq!(got, wanted, "{trans} matrix {matrix}, {row}, {column}");
                }
            }
        }
    }
}

#[test]
fn rows_outside_of_shared_memory_are_faults() {
    for (address, expected) in [(8u64, "MisalignedAddress"), (1 << 20, "IllegalAddress")] {
        let mut gpu = Gpu::new(&format!(
            "{HEAD}.visible .entry k(.param .u64 at) {{\n\
             .reg .b64 %p; .reg .b32 %r<2>; ld.param.u64 %p, [at]; cvt.u32.u64 %r0, %p;\n\
             ldmatrix.sync.aligned.m8n8.x1.shared.b16 {{%r1}}, [%r0]; st.global.b32 [%p], %r1; ret; }}\n"
        ));
        let _ = gpu.alloc_bytes(8);
        let fault = gpu
            .try_run("k", 1, 32, 512, &Args::new().ptr(address))
            .unwrap_err();
        assert!(fault.to_string().starts_with(expected), "{fault}");
    }
}

/// A product's kernel: each lane's registers of both matrices and of the sums come from memory, one after
/// another.
fn kernel(instruction: &str, a: usize, b: usize, c: usize) -> String {
    let list = |name: &str, count: usize| {
        let all: Vec<String> = (0..count).map(|i| format!("%{name}{i}")).collect();
        format!("{{{}}}", all.join(", "))
    };
    let loads = |name: &str, param: &str, count: usize| {
        let mut text = format!(
            "ld.param.u64 %p1, [{param}]; mul.wide.u32 %p2, %t, {}; add.s64 %p1, %p1, %p2;\n",
            4 * count
        );
        for i in 0..count {
            text += &format!("ld.global.b32 %{name}{i}, [%p1+{}];\n", 4 * i);
        }
        text
    };
    let mut stores = String::new();
    for i in 0..c {
        stores += &format!("st.global.b32 [%p1+{}], %c{i};\n", 4 * i);
    }
    format!(
        "{HEAD}.visible .entry k(.param .u64 pa, .param .u64 pb, .param .u64 pc) {{\n\
         .reg .b64 %p<3>; .reg .b32 %t, %a<4>, %b<2>, %c<4>; mov.u32 %t, %tid.x;\n{}{}{}\
         {instruction} {}, {}, {}, {};\n{stores}ret; }}\n",
        loads("a", "pa", a),
        loads("b", "pb", b),
        loads("c", "pc", c),
        list("c", c),
        list("a", a),
        list("b", b),
        list("c", c),
    )
}

/// Runs a product of 16 × `depth` and `depth` × 8 small whole numbers, with so many in a register, which
/// `code` writes; sums are read by `sum`.
fn product(
    instruction: &str,
    (depth, each): (usize, usize),
    code: impl Fn(i32) -> u32,
    narrow: bool,
    sum: impl Fn(u32, usize) -> f64,
) {
    let left = |row: usize, k: usize| ((row * 5 + k * 3) % 7) as i32 - 3;
    let right = |k: usize, column: usize| ((k * 2 + column * 5) % 9) as i32 - 4;
    let steps = depth / (4 * each);
    let bits = 32 / each;
    let pack = |value: &dyn Fn(usize) -> i32| {
        let mask = u32::MAX >> (32 - bits);
        (0..each).fold(0, |word, i| word | (code(value(i)) & mask) << (bits * i))
    };
    let (mut a, mut b) = (Vec::new(), Vec::new());
    for lane in 0..32 {
        let (group, number) = (lane / 4, lane % 4);
        for step in 0..steps {
            let start = (4 * step + number) * each;
            a.push(pack(&|i| left(group, start + i)));
            a.push(pack(&|i| left(group + 8, start + i)));
            b.push(pack(&|i| right(start + i, group)));
        }
    }
    let sums = if narrow { 2 } else { 4 };
    let mut gpu = Gpu::new(&kernel(instruction, 2 * steps, steps, sums));
    let (pa, pb) = (gpu.upload(&a), gpu.upload(&b));
    let pc = gpu.upload(&vec![0u32; 32 * sums]);
    // Twice: what came is added to.
    for round in 1..=2 {
        gpu.run("k", 1, 32, &Args::new().ptr(pa).ptr(pb).ptr(pc));
        let got: Vec<u32> = gpu.read(pc, 32 * sums);
        for lane in 0..32 {
            for at in 0..4 {
                let (row, column) = (lane / 4 + 8 * (at / 2), lane % 4 * 2 + at % 2);
                let exact: i32 = (0..depth).map(|k| left(row, k) * right(k, column)).sum();
                let word = if narrow {
                    got[lane * 2 + at / 2]
                } else {
                    got[lane * 4 + at]
                };
                let (got, wanted) = (sum(word, at % 2), f64::from(round * exact));
                assert_eq!(got, wanted, "{instruction}: row {row}, column {column}");
            }
        }
    }
}

#[test]
fn products_are_of_rows_and_columns() {
    let float = |word: u32, _: usize| f64::from(f32::from_bits(word));
    let integer = |word: u32, _: usize| f64::from(word as i32);
    let halves = |word: u32, at: usize| f16::from_bits((word >> (16 * at)) as u16).to_f64();
    let f16s = |value: i32| f16::from_f32(value as f32).to_bits().into();
    let bf16s = |value: i32| (value as f32).to_bits() >> 16;
    let f32s = |value: i32| (value as f32).to_bits();
    let bytes = |value: i32| value as u32;
    // Whole numbers up to 4: of e5m2 the upper byte of a half, of e4m3 one more bit of the fraction.
    let e5m2s = |value: i32| u32::from(f16::from_f32(value as f32).to_bits() >> 8);
    let e4m3s = |value: i32| {
        let half = f16::from_f32(value as f32).to_bits();
        let amount = half & 0x7fff;
        let code = if amount == 0 {
            0
        } else {
            (amount >> 7) - (8 << 3)
        };
        u32::from(half >> 8 & 0x80 | code)
    };
    product(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32",
        (16, 2),
        f16s,
        false,
        float,
    );
    product(
        "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32",
        (8, 2),
        f16s,
        false,
        float,
    );
    product(
        "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16",
        (16, 2),
        f16s,
        true,
        halves,
    );
    product(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32",
        (16, 2),
        bf16s,
        false,
        float,
    );
    product(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32",
        (8, 1),
        f32s,
        false,
        float,
    );
    product(
        "mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32",
        (4, 1),
        f32s,
        false,
        float,
    );
    product(
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32",
        (32, 4),
        bytes,
        false,
        integer,
    );
    product(
        "mma.sync.aligned.m16n8k16.row.col.satfinite.s32.s8.s8.s32",
        (16, 4),
        bytes,
        false,
        integer,
    );
    product(
        "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32",
        (32, 4),
        e4m3s,
        false,
        float,
    );
    product(
        "mma.sync.aligned.m16n8k32.row.col.kind::f8f6f4.f32.e5m2.e5m2.f32",
        (32, 4),
        e5m2s,
        false,
        float,
    );
}

/// Small whole numbers, the same each time.
fn numbers(count: usize, step: usize) -> Vec<i32> {
    (0..count).map(|i| (i * step % 11) as i32 - 5).collect()
}

#[test]
fn squares_are_loaded_multiplied_and_stored() {
    for (left, right, sums) in [
        ("row", "col", "row"),
        ("col", "row", "col"),
        ("row", "row", "row"),
    ] {
        let list = |name: &str, count: usize| {
            let all: Vec<String> = (0..count).map(|i| format!("%{name}{i}")).collect();
            format!("{{{}}}", all.join(", "))
        };
        let (a, b, c) = (list("a", 8), list("b", 8), list("c", 8));
        let mut gpu = Gpu::new(&format!(
            "{HEAD}.shared .align 32 .b8 tile[1024];\n\
             .visible .entry k(.param .u64 pa, .param .u64 pb, .param .u64 pc) {{\n\
             .reg .b64 %p<4>; .reg .b32 %t, %s, %a<8>, %b<8>, %c<8>; .reg .f32 %f<8>;\n\
             ld.param.u64 %p1, [pa]; ld.param.u64 %p2, [pb]; ld.param.u64 %p3, [pc];\n\
             wmma.load.a.sync.aligned.{left}.m16n16k16.global.f16 {a}, [%p1], 24;\n\
             wmma.load.b.sync.aligned.{right}.m16n16k16.f16 {b}, [%p2], 16;\n\
             wmma.load.c.sync.aligned.{sums}.m16n16k16.global.f32 {c}, [%p3], 20;\n\
             wmma.mma.sync.aligned.{left}.{right}.m16n16k16.f32.f32 {c}, {a}, {b}, {c};\n\
             mov.u32 %t, tile;\n\
             wmma.store.d.sync.aligned.{sums}.m16n16k16.shared.f32 [%t], {c}, 16;\n\
             bar.warp.sync -1;\n\
             wmma.load.c.sync.aligned.{sums}.m16n16k16.shared.f32 {c}, [%t], 16;\n\
             wmma.store.d.sync.aligned.{sums}.m16n16k16.f32 [%p3], {c}, 20;\n\
             ret; }}\n"
        ));
        let at = |layout: &str, row: usize, column: usize, stride: usize| match layout {
            "row" => row * stride + column,
            _ => column * stride + row,
        };
        let (va, vb, vc) = (numbers(24 * 16, 7), numbers(256, 3), numbers(320, 5));
        let halves = |values: &[i32]| -> Vec<u16> {
            values
                .iter()
                .map(|&value| f16::from_f32(value as f32).to_bits())
                .collect()
        };
        let (pa, pb) = (gpu.upload(&halves(&va)), gpu.upload(&halves(&vb)));
        let pc = gpu.upload(&vc.iter().map(|&value| value as f32).collect::<Vec<_>>());
        gpu.run("k", 1, 32, &Args::new().ptr(pa).ptr(pb).ptr(pc));
        let got: Vec<f32> = gpu.read(pc, 320);
        for row in 0..16 {
            for column in 0..16 {
                let sum: i32 = (0..16)
                    .map(|k| va[at(left, row, k, 24)] * vb[at(right, k, column, 16)])
                    .sum();
                let place = at(sums, row, column, 20);
                let wanted = (sum + vc[place]) as f32;
                assert_eq!(got[place], wanted, "{left} {right} {sums}: {row}, {column}");
            }
        }
    }
}

/// Sums may come as halves and go as floats, or the other way round: rounded once, when they go.
#[test]
fn sums_of_squares_come_in_one_type_and_go_in_another() {
    for (to, from) in [("f32", "f16"), ("f16", "f32"), ("f16", "f16")] {
        let list = |name: &str, count: usize| {
            let all: Vec<String> = (0..count).map(|i| format!("%{name}{i}")).collect();
            format!("{{{}}}", all.join(", "))
        };
        let registers = |ty: &str| if ty == "f16" { 4 } else { 8 };
        let (a, b) = (list("a", 8), list("b", 8));
        let (c, d) = (list("c", registers(from)), list("d", registers(to)));
        let mut gpu = Gpu::new(&format!(
            "{HEAD}.visible .entry k(.param .u64 pa, .param .u64 pb, .param .u64 pc, .param .u64 pd) {{\n\
             .reg .b64 %p<5>; .reg .b32 %a<8>, %b<8>, %c<8>, %d<8>;\n\
             ld.param.u64 %p1, [pa]; ld.param.u64 %p2, [pb]; ld.param.u64 %p3, [pc]; ld.param.u64 %p4, [pd];\n\
             wmma.load.a.sync.aligned.row.m16n16k16.global.f16 {a}, [%p1];\n\
             wmma.load.b.sync.aligned.col.m16n16k16.global.f16 {b}, [%p2];\n\
             wmma.load.c.sync.aligned.row.m16n16k16.global.{from} {c}, [%p3];\n\
             wmma.mma.sync.aligned.row.col.m16n16k16.{to}.{from} {d}, {a}, {b}, {c};\n\
             wmma.store.d.sync.aligned.row.m16n16k16.global.{to} [%p4], {d}; ret; }}\n"
        ));
        let mut state = 77u32;
        let mut random = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            // From 1/16 to 16, of both signs: sums of products are exact in f64.
            let bits = (state >> 16) as u16;
            f16::from_bits(bits & 0x83ff | (11 + (state >> 8) as u16 % 8) << 10)
        };
        let mut matrix = || -> Vec<f16> { (0..256).map(|_| random()).collect() };
        let (va, vb, vc) = (matrix(), matrix(), matrix());
        // More digits than a half has.
        let wide = |value: f16| value.to_f32() * 1.000_244;
        let bits = |values: &[f16]| values.iter().map(|v| v.to_bits()).collect::<Vec<u16>>();
        let (pa, pb) = (gpu.upload(&bits(&va)), gpu.upload(&bits(&vb)));
        let pc = match from {
            "f16" => gpu.upload(&bits(&vc)),
            _ => gpu.upload(&vc.iter().map(|&v| wide(v)).collect::<Vec<f32>>()),
        };
        let pd = gpu.upload(&[0u32; 256]);
        gpu.run("k", 1, 32, &Args::new().ptr(pa).ptr(pb).ptr(pc).ptr(pd));
        for (at, before) in vc.iter().enumerate() {
            let (row, column) = (at / 16, at % 16);
            let sum: f64 = (0..16)
                .map(|k| va[16 * row + k].to_f64() * vb[16 * column + k].to_f64())
                .sum();
            let before = match from {
                "f16" => before.to_f64(),
                _ => wide(*before).into(),
            };
            let sum = sum + before;
            let (got, wanted) = match to {
                "f16" => (
                    f16::from_bits(gpu.read::<u16>(pd, 256)[at]).to_f64(),
                    f16::from_f64(sum).to_f64(),
                ),
                _ => (gpu.read::<f32>(pd, 256)[at].into(), f64::from(sum as f32)),
            };
            assert_eq!(got, wanted, "{to} of {from}: {row}, {column}");
        }
    }
}

/// `mma.m8n8k4` of halves makes four products, each of eight lanes: 4q to 4q + 3, and those 16 further.
#[test]
fn quads_of_lanes_multiply_halves() {
    // Rows and columns by lane and element, as PTX has them.
    let left = |turned: bool, lane: usize, i: usize| match turned {
        false => (lane % 4 + lane / 16 * 4, i),
        true => (i + lane / 16 * 4, lane % 4),
    };
    let right = |turned: bool, lane: usize, i: usize| match turned {
        true => (lane % 4, i + lane / 16 * 4),
        false => (i, lane % 4 + lane / 16 * 4),
    };
    let of_sums = |narrow: bool, lane: usize, i: usize| match narrow {
        true => (lane % 4 + lane / 16 * 4, i),
        false => (
            (lane & 1) + (i & 2) + lane / 16 * 4,
            (i & 4) + (lane & 2) + (i & 1),
        ),
    };
    for (a_layout, b_layout) in [
        ("row", "col"),
        ("col", "row"),
        ("row", "row"),
        ("col", "col"),
    ] {
        for (to, from) in [("f32", "f32"), ("f32", "f16"), ("f16", "f16")] {
            let list = |name: &str, ty: &str| {
                let count = if ty == "f16" { 4 } else { 8 };
                let all: Vec<String> = (0..count).map(|i| format!("%{name}{i}")).collect();
                (format!("{{{}}}", all.join(", ")), all)
            };
            let ((c, all_c), (d, all_d)) = (list("c", from), list("d", to));
            let loads: String = (0..)
                .zip(&all_c)
                .map(|(i, c)| format!("ld.global.b32 {c}, [%p3+{}];\n", 4 * i))
                .collect();
            let stores: String = (0..)
                .zip(&all_d)
                .map(|(i, d)| format!("st.global.b32 [%p4+{}], {d};\n", 4 * i))
                .collect();
            let mut gpu = Gpu::new(&format!(
                "{HEAD}.visible .entry k(.param .u64 pa, .param .u64 pb, .param .u64 pc, .param .u64 pd) {{\n\
                 .reg .b64 %p<6>; .reg .b32 %t, %a<2>, %b<2>, %c<8>, %d<8>; mov.u32 %t, %tid.x;\n\
                 ld.param.u64 %p1, [pa]; ld.param.u64 %p2, [pb]; ld.param.u64 %p3, [pc]; ld.param.u64 %p4, [pd];\n\
                 mul.wide.u32 %p5, %t, 8; add.s64 %p1, %p1, %p5; add.s64 %p2, %p2, %p5;\n\
                 mul.wide.u32 %p5, %t, 32; add.s64 %p3, %p3, %p5; add.s64 %p4, %p4, %p5;\n\
                 ld.global.v2.b32 {{%a0, %a1}}, [%p1]; ld.global.v2.b32 {{%b0, %b1}}, [%p2];\n{loads}\
                 mma.sync.aligned.m8n8k4.{a_layout}.{b_layout}.{to}.f16.f16.{from} {d}, {{%a0, %a1}}, {{%b0, %b1}}, {c};\n\
                 {stores}ret; }}\n"
            ));
            let mut state = 5u32;
            let mut random = || {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let bits = (state >> 16) as u16;
                f16::from_bits(bits & 0x83ff | (11 + (state >> 8) as u16 % 8) << 10)
            };
            // By quad, row and column.
            let mut matrices = |rows: usize, columns: usize| -> Vec<Vec<Vec<f16>>> {
                let mut row = || (0..columns).map(|_| random()).collect();
                (0..4).map(|_| (0..rows).map(|_| row()).collect()).collect()
            };
            let (ma, mb, mc) = (matrices(8, 4), matrices(4, 8), matrices(8, 8));
            let quad = |lane: usize| lane % 16 / 4;
            let (mut va, mut vb) = (Vec::new(), Vec::new());
            let mut vc = vec![0u8; 32 * 32];
            for lane in 0..32 {
                for i in 0..4 {
                    let (row, column) = left(a_layout == "col", lane, i);
                    va.push(ma[quad(lane)][row][column].to_bits());
                    let (row, column) = right(b_layout == "row", lane, i);
                    vb.push(mb[quad(lane)][row][column].to_bits());
                }
                for i in 0..8 {
                    let (row, column) = of_sums(from == "f16", lane, i);
                    let value = mc[quad(lane)][row][column];
                    match from {
                        "f16" => vc[32 * lane + 2 * i..][..2].copy_from_slice(&value.to_le_bytes()),
                        _ => vc[32 * lane + 4 * i..][..4]
                            .copy_from_slice(&value.to_f32().to_le_bytes()),
                    }
                }
            }
            let (pa, pb, pc) = (gpu.upload(&va), gpu.upload(&vb), gpu.upload(&vc));
            let pd = gpu.upload(&[0u8; 32 * 32]);
            gpu.run("k", 1, 32, &Args::new().ptr(pa).ptr(pb).ptr(pc).ptr(pd));
            for lane in 0..32 {
                for i in 0..8 {
                    let (row, column) = of_sums(to == "f16", lane, i);
                    let (a, b, c) = (&ma[quad(lane)], &mb[quad(lane)], &mc[quad(lane)]);
                    let sum: f64 = (0..4)
                        .map(|k| a[row][k].to_f64() * b[k][column].to_f64())
                        .sum();
                    let sum = sum + c[row][column].to_f64();
                    let (got, wanted) = match to {
                        "f16" => (
                            gpu.read::<u16>(pd + 32 * lane as u64, 8)[i].into(),
                            f16::from_f64(sum).to_bits().into(),
                        ),
                        _ => (
                            gpu.read::<u32>(pd + 32 * lane as u64, 8)[i],
                            (sum as f32).to_bits(),
                        ),
                    };
                    assert_eq!(
                        got, wanted,
                        "{a_layout} {b_layout} {to} {from}: lane {lane}, {i}"
                    );
                }
            }
        }
    }
}

#[test]
fn squares_of_bytes_and_of_tf32() {
    for (shape, kind, sums, depth) in [
        ("m16n16k16", "s8", "s32", 16),
        ("m16n16k8", "tf32", "f32", 8),
    ] {
        let regs = if kind == "s8" { 2 } else { 4 };
        let list = |name: &str, count: usize| {
            let all: Vec<String> = (0..count).map(|i| format!("%{name}{i}")).collect();
            format!("{{{}}}", all.join(", "))
        };
        let (a, b, c) = (list("a", regs), list("b", regs), list("c", 8));
        let types = format!("{sums}.{kind}.{kind}.{sums}");
        let mut gpu = Gpu::new(&format!(
            "{HEAD}.visible .entry k(.param .u64 pa, .param .u64 pb, .param .u64 pc) {{\n\
             .reg .b64 %p<4>; .reg .b32 %a<4>, %b<4>, %c<8>;\n\
             ld.param.u64 %p1, [pa]; ld.param.u64 %p2, [pb]; ld.param.u64 %p3, [pc];\n\
             wmma.load.a.sync.aligned.row.{shape}.global.{kind} {a}, [%p1];\n\
             wmma.load.b.sync.aligned.col.{shape}.global.{kind} {b}, [%p2];\n\
             wmma.load.c.sync.aligned.row.{shape}.global.{sums} {c}, [%p3];\n\
             wmma.mma.sync.aligned.row.col.{shape}.{types} {c}, {a}, {b}, {c};\n\
             wmma.store.d.sync.aligned.row.{shape}.global.{sums} [%p3], {c}; ret; }}\n"
        ));
        let (va, vb) = (numbers(16 * depth, 7), numbers(16 * depth, 3));
        let write = |gpu: &mut Gpu, values: &[i32]| match kind {
            "s8" => gpu.upload(&values.iter().map(|&value| value as i8).collect::<Vec<_>>()),
            _ => gpu.upload(&values.iter().map(|&value| value as f32).collect::<Vec<_>>()),
        };
        let (pa, pb) = (write(&mut gpu, &va), write(&mut gpu, &vb));
        let pc = gpu.upload(&[0u32; 256]);
        gpu.run("k", 1, 32, &Args::new().ptr(pa).ptr(pb).ptr(pc));
        let got: Vec<u32> = gpu.read(pc, 256);
        for row in 0..16 {
            for column in 0..16 {
                let sum: i32 = (0..depth)
                    .map(|k| va[row * depth + k] * vb[column * depth + k])
                    .sum();
                let got = match kind {
                    "s8" => got[row * 16 + column] as i32,
                    _ => f32::from_bits(got[row * 16 + column]) as i32,
                };
                assert_eq!(got, sum, "{kind}: {row}, {column}");
            }
        }
    }
}

/// Runs a product of integers of less than a byte or of eight rows, with so many in a register, whose bits
/// `value` reads as a number; `of` is what two of them add to a sum.
fn integers(
    instruction: &str,
    rows: usize,
    (depth, each): (usize, usize),
    value: impl Fn(u32) -> i32,
    of: impl Fn(i32, i32) -> i32,
) {
    let steps = depth / (4 * each);
    let bits = 32 / each;
    let noise = |seed: usize| {
        (seed as u32 + 1)
            .wrapping_mul(0x9e37_79b9)
            .rotate_left(seed as u32 % 31)
    };
    let a: Vec<u32> = (0..32 * steps * rows / 8).map(noise).collect();
    let b: Vec<u32> = (0..32 * steps).map(|seed| noise(seed + 1000)).collect();
    let c: Vec<u32> = (0..32 * rows / 4).map(|seed| seed as u32 * 3).collect();
    let element =
        |word: u32, index: usize| value(word >> (bits * index) & (u32::MAX >> (32 - bits)));
    let left = |row: usize, k: usize| {
        let (lane, step) = (row % 8 * 4 + k / each % 4, k / (4 * each));
        element(
            a[lane * steps * rows / 8 + step * rows / 8 + row / 8],
            k % each,
        )
    };
    let right = |k: usize, column: usize| {
        let (lane, step) = (column * 4 + k / each % 4, k / (4 * each));
        element(b[lane * steps + step], k % each)
    };
    let mut gpu = Gpu::new(&kernel(instruction, steps * rows / 8, steps, rows / 4));
    let (pa, pb, pc) = (gpu.upload(&a), gpu.upload(&b), gpu.upload(&c));
    gpu.run("k", 1, 32, &Args::new().ptr(pa).ptr(pb).ptr(pc));
    let got: Vec<u32> = gpu.read(pc, c.len());
    for (at, got) in got.iter().enumerate() {
        let (lane, sum) = (at / (rows / 4), at % (rows / 4));
        let (row, column) = (lane / 4 + 8 * (sum / 2), lane % 4 * 2 + sum % 2);
        let exact: i32 = (0..depth).map(|k| of(left(row, k), right(k, column))).sum();
        let wanted = c[at].wrapping_add_signed(exact);
        assert_eq!(*got, wanted, "{instruction}: row {row}, column {column}");
    }
}

#[test]
fn products_of_small_integers_and_of_bits() {
    let times = |a: i32, b: i32| a * b;
    let s4 = |bits: u32| (bits as i32) << 28 >> 28;
    let plain = |bits: u32| bits as i32;
    let head = "mma.sync.aligned";
    integers(
        &format!("{head}.m16n8k32.row.col.s32.s4.s4.s32"),
        16,
        (32, 8),
        s4,
        times,
    );
    integers(
        &format!("{head}.m16n8k64.row.col.satfinite.s32.u4.u4.s32"),
        16,
        (64, 8),
        plain,
        times,
    );
    integers(
        &format!("{head}.m8n8k32.row.col.s32.s4.s4.s32"),
        8,
        (32, 8),
        s4,
        times,
    );
    integers(
        &format!("{head}.m8n8k16.row.col.s32.u8.u8.s32"),
        8,
        (16, 4),
        plain,
        times,
    );
    integers(
        &format!("{head}.m8n8k16.row.col.s32.s8.s8.s32"),
        8,
        (16, 4),
        |bits| i32::from(bits as i8),
        times,
    );
    integers(
        &format!("{head}.m8n8k128.row.col.s32.b1.b1.s32.and.popc"),
        8,
        (128, 32),
        plain,
        |a, b| a & b,
    );
    integers(
        &format!("{head}.m16n8k128.row.col.s32.b1.b1.s32.xor.popc"),
        16,
        (128, 32),
        plain,
        |a, b| a ^ b,
    );
    integers(
        &format!("{head}.m16n8k256.row.col.s32.b1.b1.s32.xor.popc"),
        16,
        (256, 32),
        plain,
        |a, b| a ^ b,
    );
}

#[test]
fn products_of_doubles() {
    for (rows, depth) in [(8, 4), (16, 4), (16, 8), (16, 16)] {
        let (na, nb, nc) = (rows / 8 * depth / 4, depth / 4, rows / 4);
        let list = |name: &str, count: usize| {
            let all: Vec<String> = (0..count).map(|i| format!("%{name}{i}")).collect();
            format!("{{{}}}", all.join(", "))
        };
        let each = |what: &str, name: &str, param: &str, count: usize| {
            let mut text = format!(
                "ld.param.u64 %p1, [{param}]; mad.wide.u32 %p1, %t, {}, %p1;\n",
                8 * count
            );
            for i in 0..count {
                text += &match what {
                    "ld" => format!("ld.global.f64 %{name}{i}, [%p1+{}];\n", 8 * i),
                    _ => format!("st.global.f64 [%p1+{}], %{name}{i};\n", 8 * i),
                };
            }
            text
        };
        let mut gpu = Gpu::new(&format!(
            "{HEAD}.visible .entry k(.param .u64 pa, .param .u64 pb, .param .u64 pc) {{\n\
             .reg .b64 %p<3>; .reg .b32 %t; .reg .f64 %a<8>, %b<4>, %c<4>; mov.u32 %t, %tid.x;\n{}{}{}\
             mma.sync.aligned.m{rows}n8k{depth}.row.col.f64.f64.f64.f64 {c}, {}, {}, {c};\n{}ret; }}\n",
            each("ld", "a", "pa", na),
            each("ld", "b", "pb", nb),
            each("ld", "c", "pc", nc),
            list("a", na),
            list("b", nb),
            each("st", "c", "pc", nc),
            c = list("c", nc),
        ));
        let left = |row: usize, k: usize| (row * 3 + k * 7) as f64 / 8.0 - 5.0;
        let right = |k: usize, column: usize| (k * 5 + column * 11) as f64 / 4.0 - 9.0;
        let (mut a, mut b, mut c) = (Vec::new(), Vec::new(), Vec::new());
        for lane in 0..32 {
            let (group, number) = (lane / 4, lane % 4);
            for i in 0..na {
                a.push(left(
                    group + 8 * (i % (rows / 8)),
                    number + 4 * (i / (rows / 8)),
                ));
            }
            b.extend((0..nb).map(|i| right(number + 4 * i, group)));
            c.extend((0..nc).map(|i| (lane * nc + i) as f64));
        }
        let (pa, pb, pc) = (gpu.upload(&a), gpu.upload(&b), gpu.upload(&c));
        gpu.run("k", 1, 32, &Args::new().ptr(pa).ptr(pb).ptr(pc));
        let got: Vec<f64> = gpu.read(pc, c.len());
        for (at, got) in got.iter().enumerate() {
            let (lane, sum) = (at / nc, at % nc);
            let (row, column) = (lane / 4 + 8 * (sum / 2), lane % 4 * 2 + sum % 2);
            let exact: f64 = (0..depth).map(|k| left(row, k) * right(k, column)).sum();
            assert_eq!(
                *got,
                exact + c[at],
                "{rows} rows, depth {depth}: {row}, {column}"
            );
        }
    }
}

#[test]
fn what_is_no_product_is_refused_by_name() {
    for instruction in [
        "mma.sync.aligned.m8n8k4.row.col.f16.f16.f16.f32 {%c0, %c1}, {%a0}, {%b0}, {%c0, %c1};",
        "mma.sync.aligned.m16n8k16.col.row.f32.f16.f16.f32 {%c0, %c1, %c2, %c3}, {%a0, %a1, %a2, %a3}, {%b0, %b1}, {%c0, %c1, %c2, %c3};",
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.bf16.f32 {%c0, %c1, %c2, %c3}, {%a0, %a1, %a2, %a3}, {%b0, %b1}, {%c0, %c1, %c2, %c3};",
        "mma.sync.aligned.m16n8k128.row.col.s32.b1.b1.s32 {%c0, %c1, %c2, %c3}, {%a0, %a1}, {%b0}, {%c0, %c1, %c2, %c3};",
        "mma.sync.aligned.m16n8k64.row.col.s32.s8.s8.s32 {%c0, %c1, %c2, %c3}, {%a0, %a1, %a2, %a3}, {%b0, %b1}, {%c0, %c1, %c2, %c3};",
        "mma.sp.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%c0, %c1, %c2, %c3}, {%a0}, {%b0}, {%c0, %c1, %c2, %c3}, %a2, 0;",
    ] {
        let text = format!(
            "{HEAD}.visible .entry k() {{ .reg .b32 %a<4>, %b<4>, %c<4>; {instruction} ret; }}"
        );
        let tree = ptx::parse(&text).unwrap();
        let error = ptx_vm::Module::load(&tree, &ptx_vm::Options::default()).unwrap_err();
        let word = instruction.split_once(' ').unwrap().0;
        assert!(error.to_string().contains(word), "{error}");
    }
}
