//! Parts of tensors that are copied, reduced and described by kernels, against a plain model of what PTX says of them.

use cuda_abi::types::{
    CUtensorMapDataType, CUtensorMapFloatOOBfill, CUtensorMapIm2ColWideMode, CUtensorMapInterleave,
    CUtensorMapL2promotion, CUtensorMapSwizzle,
};
use protocol::tensor_maps::{Shape, Spec};
use ptx_vm::tensor_map;

use crate::gpu::{Args, Gpu};

const HEAD: &str = ".version 8.6\n.target sm_90a\n.address_size 64\n";

/// A kernel of one thread with a descriptor in `%map`, a tile in shared memory and a barrier.
fn kernel(body: &str) -> Gpu {
    Gpu::new(&format!(
        "{HEAD}.visible .entry k(.param .u64 map, .param .u64 out) {{\n\
         .shared .align 1024 .b8 tile[8192]; .shared .align 8 .b64 bar; .shared .align 128 .b8 made[128];\n\
         .reg .b64 %map, %out, %x<9>; .reg .b32 %r<20>; .reg .b16 %h<4>; .reg .pred %p<3>;\n\
         ld.param.u64 %map, [map]; ld.param.u64 %out, [out];\n{body}\nret; }}\n"
    ))
}

/// Writes the first words of the tile to the output.
fn tile_out(words: usize) -> String {
    format!(
        "mov.u32 %r10, 0; mov.u64 %x1, tile; mov.u64 %x2, %out;\n\
         OUT: ld.shared.u32 %r11, [%x1]; st.global.u32 [%x2], %r11; add.s64 %x1, %x1, 4; add.s64 %x2, %x2, 4;\n\
         add.u32 %r10, %r10, 1; setp.lt.u32 %p0, %r10, {words}; @%p0 bra OUT;"
    )
}

/// Fills the tile's first words with the numbers from 100 on.
fn tile_in(words: usize) -> String {
    format!(
        "mov.u32 %r10, 0; mov.u64 %x1, tile;\n\
         IN: add.u32 %r11, %r10, 100; st.shared.u32 [%x1], %r11; add.s64 %x1, %x1, 4;\n\
         add.u32 %r10, %r10, 1; setp.lt.u32 %p0, %r10, {words}; @%p0 bra IN;"
    )
}

/// A tensor of 32-bit numbers, packed, the innermost dimension first.
fn spec(address: u64, dims: &[u64], shape: Shape) -> Spec {
    let mut all = [0; 5];
    all[..dims.len()].copy_from_slice(dims);
    let mut strides = [0; 4];
    let mut bytes = 4;
    for (stride, dim) in strides.iter_mut().zip(&dims[..dims.len() - 1]) {
        bytes *= dim;
        *stride = bytes;
    }
    Spec {
        data_type: CUtensorMapDataType::UINT32,
        rank: dims.len() as u32,
        address,
        dims: all,
        strides,
        shape,
        element_strides: [1; 5],
        interleave: CUtensorMapInterleave::NONE,
        swizzle: CUtensorMapSwizzle::NONE,
        l2_promotion: CUtensorMapL2promotion::NONE,
        oob_fill: CUtensorMapFloatOOBfill::NONE,
    }
}

fn upload(gpu: &mut Gpu, spec: &Spec) -> u64 {
    spec.check().unwrap();
    gpu.upload(&tensor_map::encode(spec))
}

#[test]
fn rows_are_gathered_and_scattered() {
    let (dims, width) = ([40_u64, 6], 32);
    let of = |swizzle, rows| {
        let mut counts = [1; 5];
        (counts[0], counts[1]) = (width as u32, rows);
        move |address| {
            let mut spec = spec(address, &dims, Shape::Tiled(counts));
            spec.swizzle = swizzle;
            spec
        }
    };
    let (from, to) = (
        "shared::cta.global.tile::gather4.mbarrier::complete_tx::bytes",
        "global.shared::cta.tile::scatter4.bulk_group",
    );
    // Rows in any order, one twice, one that there is not; what is behind the end of a row is none either.
    for (column, rows) in [(0, [3, 0, 5, 3]), (16, [5, 7, 1, -1]), (-4, [2, 2, 2, 2])] {
        for swizzle in [CUtensorMapSwizzle::NONE, CUtensorMapSwizzle::B128] {
            let words = 4 * width;
            let at = |row: usize, word: usize| match swizzle {
                CUtensorMapSwizzle::NONE => row * width + word,
                // Units of 16 bytes, by rows of 128.
                _ => row * width + (word / 4 ^ row) * 4 + word % 4,
            };
            let places = format!(
                "mov.s32 %r0, {column}; mov.s32 %r1, {}; mov.s32 %r2, {}; mov.s32 %r3, {}; mov.s32 %r4, {};",
                rows[0], rows[1], rows[2], rows[3]
            );
            let mut gpu = kernel(&format!(
                "{places} mbarrier.init.shared::cta.b64 [bar], 1; mbarrier.arrive.expect_tx.shared::cta.b64 %x3, [bar], {};\n\
                 cp.async.bulk.tensor.2d.{from} [tile], [%map, {{%r0, %r1, %r2, %r3, %r4}}], [bar];\n\
                 WAIT: mbarrier.try_wait.shared::cta.b64 %p1, [bar], %x3; @!%p1 bra WAIT;\n{}",
                4 * words,
                tile_out(words)
            ));
            let values: Vec<u32> = (1..=dims.iter().product::<u64>() as u32).collect();
            let tensor = gpu.upload(&values);
            let map = upload(&mut gpu, &of(swizzle, 1)(tensor));
            let out = gpu.upload(&vec![7_u32; words]);
            gpu.run("k", 1, 1, &Args::new().ptr(map).ptr(out));
            let got: Vec<u32> = gpu.read(out, words);
            for (row, number) in rows.into_iter().enumerate() {
                for word in 0..width {
                    let x = column + word as i32;
                    let inside = (0..40).contains(&x) && (0..6).contains(&number);
                    let wanted = if inside {
                        (number * 40 + x + 1) as u32
                    } else {
                        0
                    };
                    assert_eq!(
                        got[at(row, word)],
                        wanted,
                        "{rows:?}: row {row}, word {word}"
                    );
                }
            }
            // A box of more rows is none.
            let wrong = upload(&mut gpu, &of(swizzle, 2)(tensor));
            let fault = gpu
                .try_run("k", 1, 1, 0, &Args::new().ptr(wrong).ptr(out))
                .unwrap_err();
            assert_eq!(fault.kind.code(), 715);

            // What is stored begins in the tensor.
            let mut gpu = kernel(&format!(
                "{places} {}\ncp.async.bulk.tensor.2d.{to} [%map, {{%r0, %r1, %r2, %r3, %r4}}], [tile]; cp.async.bulk.commit_group;",
                tile_in(words)
            ));
            let tensor = gpu.upload(&values);
            let map = upload(&mut gpu, &of(swizzle, 1)(tensor));
            let stored = gpu.try_run("k", 1, 1, 0, &Args::new().ptr(map).ptr(out));
            if column < 0 || rows.contains(&-1) {
                assert_eq!(stored.unwrap_err().kind.code(), 715);
                continue;
            }
            stored.unwrap();
            let mut wanted = values.clone();
            for (row, number) in rows.into_iter().enumerate() {
                for word in 0..width {
                    let x = column as usize + word;
                    if x < 40 && number < 6 {
                        wanted[number as usize * 40 + x] = 100 + at(row, word) as u32;
                    }
                }
            }
            assert_eq!(gpu.read::<u32>(tensor, values.len()), wanted);
        }
    }
}

#[test]
fn columns_of_pixels_move_through_their_box() {
    // Images of 5 × 4 pixels with 8 channels each; a filter of 3 × 3 moves over them, so that its box begins a pixel
    // before the image and ends one behind.
    let dims = [8_u64, 5, 4, 2];
    let pixels = 11;
    for (lower, upper, steps, start, offset) in [
        ([-1, -1], [-1, -1], [1, 1], [0, -1, -1, 0], [0, 0]),
        ([-1, -1], [-1, -1], [1, 1], [4, 2, 2, 0], [2, 1]),
        ([-1, -2], [0, -1], [2, 1], [0, 1, -2, 1], [1, 2]),
        ([0, 0], [0, 0], [1, 2], [4, 3, 0, 1], [0, 0]),
    ] {
        let mut gpu = kernel(&format!(
            "mbarrier.init.shared::cta.b64 [bar], 1;\n\
             mov.s32 %r0, {}; mov.s32 %r1, {}; mov.s32 %r2, {}; mov.s32 %r3, {}; mov.u16 %h0, {}; mov.u16 %h1, {};\n\
             cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [tile], [%map, {{%r0, %r1, %r2, %r3}}], [bar], {{%h0, %h1}};\n{}",
            start[0],
            start[1],
            start[2],
            start[3],
            offset[0],
            offset[1],
            tile_out(4 * pixels)
        ));
        let values: Vec<u32> = (1..=dims.iter().product::<u64>() as u32).collect();
        let tensor = gpu.upload(&values);
        let shape = Shape::Im2col {
            lower: [lower[0], lower[1], 0],
            upper: [upper[0], upper[1], 0],
            channels: 4,
            pixels: pixels as u32,
        };
        let mut spec = spec(tensor, &dims, shape);
        spec.element_strides[1..3].copy_from_slice(&steps);
        let map = upload(&mut gpu, &spec);
        let out = gpu.upload(&vec![7_u32; 4 * pixels]);
        gpu.run("k", 1, 1, &Args::new().ptr(map).ptr(out));
        let got: Vec<u32> = gpu.read(out, 4 * pixels);
        let last = [5 - 1 + upper[0], 4 - 1 + upper[1]];
        let [c, mut w, mut h, mut n] = start;
        for pixel in 0..pixels {
            for channel in 0..4 {
                let (x, y) = (w + offset[0], h + offset[1]);
                let inside = (0..5).contains(&x) && (0..4).contains(&y) && (0..2).contains(&n);
                let wanted = if inside {
                    (((n * 4 + y) * 5 + x) * 8 + c + channel + 1) as u32
                } else {
                    0
                };
                let at = 4 * pixel + channel as usize;
                assert_eq!(
                    got[at], wanted,
                    "{start:?}: pixel {pixel}, channel {channel}"
                );
            }
            w += steps[0] as i32;
            if w > last[0] {
                w = lower[0];
                h += steps[1] as i32;
            }
            if h > last[1] {
                h = lower[1];
                n += 1;
            }
        }
    }
}

#[test]
fn wide_columns_move_along_the_width_and_have_a_halo() {
    let dims = [16_u64, 7, 3, 2, 40];
    for (rank, mode, words) in [
        (5, CUtensorMapIm2ColWideMode::W, "im2col::w"),
        (5, CUtensorMapIm2ColWideMode::W128, "im2col::w::128"),
        (3, CUtensorMapIm2ColWideMode::W, "im2col::w"),
        (3, CUtensorMapIm2ColWideMode::W128, "im2col::w::128"),
    ] {
        // The tensor's dimensions and the first pixel's place: those of height and depth stay.
        let dims: Vec<u64> = match rank {
            3 => vec![dims[0], dims[1], dims[4]],
            _ => dims.to_vec(),
        };
        for (lower, upper, step, column, first, [halo, offset]) in [
            (0, 0, 1, 8, (3, 1), [2, 0]),
            (-1, 0, 2, 0, (-1, 0), [1, 0]),
            (-1, 0, 2, 4, (1, 2), [0, 1]),
            (-1, -1, 3, 0, (-2, 1), [3, 2]),
        ] {
            let (count, run) = match mode {
                CUtensorMapIm2ColWideMode::W => (50, 50),
                _ => (128, 32),
            };
            let pixels = count + count / run * halo as usize;
            let mut start = vec![0; rank];
            (start[0], start[1], start[rank - 1]) = (column, first.0, first.1);
            if rank == 5 {
                (start[2], start[3]) = (2, 1);
            }
            let coordinates: String = (0..rank)
                .map(|at| format!("mov.s32 %r{at}, {};", start[at]))
                .collect();
            let named: Vec<String> = (0..rank).map(|at| format!("%r{at}")).collect();
            let mut gpu = kernel(&format!(
                "mbarrier.init.shared::cta.b64 [bar], 1; mbarrier.arrive.expect_tx.shared::cta.b64 %x3, [bar], {};\n\
                 {coordinates} mov.u16 %h0, {halo}; mov.u16 %h1, {offset};\n\
                 cp.async.bulk.tensor.{rank}d.shared::cluster.global.{words}.mbarrier::complete_tx::bytes [tile], [%map, {{{}}}], [bar], {{%h0, %h1}};\n\
                 WAIT: mbarrier.try_wait.shared::cta.b64 %p1, [bar], %x3; @!%p1 bra WAIT;\n{}",
                32 * pixels,
                named.join(", "),
                tile_out(8 * pixels)
            ));
            let values: Vec<u32> = (1..=dims.iter().product::<u64>() as u32).collect();
            let tensor = gpu.upload(&values);
            let shape = Shape::Im2colWide {
                lower,
                upper,
                channels: 8,
                // Those of 128 pixels do not ask.
                pixels: 50,
                mode,
            };
            let mut spec = spec(tensor, &dims, shape);
            spec.element_strides[1] = step;
            spec.swizzle = CUtensorMapSwizzle::B32;
            let map = upload(&mut gpu, &spec);
            let out = gpu.upload(&vec![7_u32; 8 * pixels]);
            gpu.run("k", 1, 1, &Args::new().ptr(map).ptr(out));
            let got: Vec<u32> = gpu.read(out, 8 * pixels);
            // What the walk along the width finds, image after image.
            let mut walk = Vec::new();
            let (mut w, mut n) = first;
            for _ in 0..count + halo as usize {
                walk.push((w + offset, n));
                w += step as i32;
                if w > 7 - 1 + upper {
                    (w, n) = (lower, n + 1);
                }
            }
            let runs = (0..count).step_by(run);
            let wanted = runs.flat_map(|at| walk[at..at + run + halo as usize].to_vec());
            for (pixel, (x, n)) in wanted.enumerate() {
                for channel in 0..8 {
                    let inside = (0..7).contains(&x)
                        && (0..dims[rank - 1] as i32).contains(&n)
                        && column + channel < 16;
                    let height = if rank == 5 { (n * 2 + 1) * 3 + 2 } else { n };
                    let wanted = match inside {
                        true => ((height * 7 + x) * 16 + column + channel + 1) as u32,
                        false => 0,
                    };
                    // Halves of 32 bytes change places in every other line of 128.
                    let at = 8 * pixel + (channel as usize ^ (pixel / 4 % 2 * 4));
                    assert_eq!(
                        got[at], wanted,
                        "{words} of {rank}: {start:?}, pixel {pixel}, channel {channel}"
                    );
                }
            }
            // The descriptor says the same mode, and is swizzled.
            let mut other = spec;
            other.shape = Shape::Im2colWide {
                lower,
                upper,
                channels: 8,
                pixels: 50,
                mode: CUtensorMapIm2ColWideMode(1 - mode.0),
            };
            let mut plain = spec;
            plain.swizzle = CUtensorMapSwizzle::NONE;
            for wrong in [other, plain] {
                let map = upload(&mut gpu, &wrong);
                let args = Args::new().ptr(map).ptr(out);
                let fault = gpu.try_run("k", 1, 1, 0, &args).unwrap_err();
                assert_eq!(fault.kind.code(), 715);
            }
        }
    }
}

#[test]
fn boxes_are_swizzled_by_atoms_of_several_sizes() {
    // Lines of 128 bytes, and in each the numbers of its units of 16 bytes as PTX's tables have them.
    const ATOM_32: [[usize; 8]; 4] = [
        [0, 1, 2, 3, 4, 5, 6, 7],
        [2, 3, 0, 1, 6, 7, 4, 5],
        [4, 5, 6, 7, 0, 1, 2, 3],
        [6, 7, 4, 5, 2, 3, 0, 1],
    ];
    const ATOM_64: [[usize; 8]; 2] = [[0, 1, 2, 3, 4, 5, 6, 7], [4, 5, 6, 7, 0, 1, 2, 3]];
    for (swizzle, atomicity, lines) in [
        (CUtensorMapSwizzle::B128_ATOM_32B, 1, &ATOM_32[..]),
        (CUtensorMapSwizzle::B128_ATOM_64B, 3, &ATOM_64[..]),
    ] {
        for replaced in [None, Some(atomicity)] {
            let replace = match replaced {
                Some(value) => format!(
                    "tensormap.replace.tile.swizzle_mode.global.b1024.b32 [%map], 3;\n\
                     tensormap.replace.tile.swizzle_atomicity.global.b1024.b32 [%map], {value};"
                ),
                None => String::new(),
            };
            let mut gpu = kernel(&format!(
                "{replace} mbarrier.init.shared::cta.b64 [bar], 1; mov.s32 %r0, 0; mov.s32 %r1, 0;\n\
                 cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes [tile], [%map, {{%r0, %r1}}], [bar];\n{}",
                tile_out(32 * 9)
            ));
            let values: Vec<u32> = (0..32 * 9).collect();
            let tensor = gpu.upload(&values);
            let mut spec = spec(tensor, &[32, 9], Shape::Tiled([32, 9, 0, 0, 0]));
            if replaced.is_none() {
                spec.swizzle = swizzle;
            }
            let map = upload(&mut gpu, &spec);
            let out = gpu.upload(&vec![7_u32; 32 * 9]);
            gpu.run("k", 1, 1, &Args::new().ptr(map).ptr(out));
            let got: Vec<u32> = gpu.read(out, 32 * 9);
            for (at, value) in got.into_iter().enumerate() {
                let (line, unit) = (at / 32, at % 32 / 4);
                let from = lines[line % lines.len()][unit];
                assert_eq!(
                    value as usize,
                    32 * line + 4 * from + at % 4,
                    "{swizzle:?}: {at}"
                );
            }
        }
    }
}

#[test]
fn boxes_are_reduced_element_by_element() {
    let old = |index: u32| index.wrapping_mul(0x9e37_79b9) % 300;
    for (name, f) in [
        ("add", (|a, b| a + b) as fn(u32, u32) -> u32),
        ("min", u32::min),
        ("max", u32::max),
        ("inc", |a, b| if a >= b { 0 } else { a + 1 }),
        ("dec", |a, b| if a == 0 || a > b { b } else { a - 1 }),
        ("and", |a, b| a & b),
        ("or", |a, b| a | b),
        ("xor", |a, b| a ^ b),
    ] {
        let mut gpu = kernel(&format!(
            "{}\nmov.s32 %r0, 4; mov.s32 %r1, 2;\n\
             cp.reduce.async.bulk.tensor.2d.global.shared::cta.{name}.tile.bulk_group [%map, {{%r0, %r1}}], [tile];\n\
             cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;",
            tile_in(8 * 4)
        ));
        let values: Vec<u32> = (0..12 * 5).map(old).collect();
        let tensor = gpu.upload(&values);
        let map = upload(
            &mut gpu,
            &spec(tensor, &[12, 5], Shape::Tiled([8, 4, 0, 0, 0])),
        );
        gpu.run("k", 1, 1, &Args::new().ptr(map).ptr(tensor));
        let got: Vec<u32> = gpu.read(tensor, 12 * 5);
        for (at, (&before, &after)) in values.iter().zip(&got).enumerate() {
            let (x, y) = (at as i32 % 12 - 4, at as i32 / 12 - 2);
            let wanted = match (x, y) {
                (0..8, 0..4) => f(before, 100 + (8 * y + x) as u32),
                _ => before,
            };
            assert_eq!(after, wanted, "{name} at {x}, {y}");
        }
    }
    // Bits of floats are none that are counted with.
    let mut gpu = kernel(
        "mov.s32 %r0, 0;\ncp.reduce.async.bulk.tensor.1d.global.shared::cta.and.bulk_group [%map, {%r0}], [tile];",
    );
    let tensor = gpu.upload(&[0.0_f64; 4]);
    let mut spec = spec(tensor, &[4], Shape::Tiled([4, 0, 0, 0, 0]));
    spec.data_type = CUtensorMapDataType::UINT16;
    spec.shape = Shape::Tiled([8, 0, 0, 0, 0]);
    let map = upload(&mut gpu, &spec);
    let fault = gpu
        .try_run("k", 1, 1, 0, &Args::new().ptr(map).ptr(tensor))
        .unwrap_err();
    assert_eq!(fault.kind.code(), 715);
}

#[test]
fn boxes_come_to_several_blocks() {
    let mut gpu = kernel(&format!(
        "mov.u32 %r8, %cluster_ctarank; mbarrier.init.shared::cta.b64 [bar], 1; mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], 64;\n\
         mov.u64 %x1, tile; st.shared.u32 [%x1], 5;\n\
         barrier.cluster.arrive; barrier.cluster.wait;\n\
         setp.eq.u32 %p1, %r8, 2; mov.s32 %r0, 4; mov.s32 %r1, 1; mov.u16 %h0, 0b0011;\n\
         @%p1 cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [tile], [%map, {{%r0, %r1}}], [bar], %h0;\n\
         setp.ge.u32 %p1, %r8, 2; @%p1 bra DONE;\n\
         WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p2, [bar], 0; @!%p2 bra WAIT;\n\
         DONE: mul.wide.u32 %x0, %r8, 64; add.s64 %out, %out, %x0;\n{}\nbarrier.cluster.arrive; barrier.cluster.wait;",
        tile_out(16)
    ));
    gpu.cluster = Some([3, 1, 1]);
    let values: Vec<u32> = (0..12 * 5).collect();
    let tensor = gpu.upload(&values);
    let map = upload(
        &mut gpu,
        &spec(tensor, &[12, 5], Shape::Tiled([4, 4, 0, 0, 0])),
    );
    let out = gpu.upload(&[0_u32; 48]);
    gpu.run("k", 3, 1, &Args::new().ptr(map).ptr(out));
    let got: Vec<u32> = gpu.read(out, 48);
    let wanted: Vec<u32> = (0..16).map(|at| 12 * (1 + at / 4) + 4 + at % 4).collect();
    assert_eq!(
        (&got[..16], &got[16..32], got[32]),
        (&wanted[..], &wanted[..], 5)
    );
    // To a block that there is not.
    gpu.cluster = Some([1, 1, 1]);
    let mut gpu = kernel(
        "mov.s32 %r0, 0; mov.s32 %r1, 0; mov.u16 %h0, 2;\n\
         cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [tile], [%map, {%r0, %r1}], [bar], %h0;",
    );
    let tensor = gpu.upload(&values);
    let map = upload(
        &mut gpu,
        &spec(tensor, &[12, 5], Shape::Tiled([4, 4, 0, 0, 0])),
    );
    let fault = gpu
        .try_run("k", 1, 1, 0, &Args::new().ptr(map).ptr(tensor))
        .unwrap_err();
    assert_eq!(fault.kind.code(), 700);
}

#[test]
fn descriptors_are_made_field_by_field() {
    // One of zeroes in shared memory becomes that of a matrix of 12 × 5 numbers and boxes of 4 × 3.
    let replace = "tensormap.replace.tile";
    let at = ".shared::cta.b1024";
    let mut gpu = kernel(&format!(
        "mov.u32 %r0, 0; mov.u64 %x0, made;\n\
         ZERO: st.shared.u64 [%x0], 0; add.s64 %x0, %x0, 8; add.u32 %r0, %r0, 1; setp.lt.u32 %p0, %r0, 16; @%p0 bra ZERO;\n\
         mov.u64 %x0, made; add.s64 %x3, %out, 256; mov.u64 %x4, 48; mov.u32 %r1, 12; mov.u32 %r2, 5; mov.u32 %r3, 4; mov.u32 %r4, 3; mov.u32 %r5, 1;\n\
         {replace}.global_address{at}.b64 [%x0], %x3; {replace}.rank{at}.b32 [%x0], 1;\n\
         {replace}.box_dim{at}.b32 [%x0], 0, %r3; {replace}.box_dim{at}.b32 [%x0], 1, %r4;\n\
         {replace}.global_dim{at}.b32 [%x0], 0, %r1; {replace}.global_dim{at}.b32 [%x0], 1, %r2;\n\
         {replace}.global_stride{at}.b64 [%x0], 0, %x4; {replace}.element_stride{at}.b32 [%x0], 0, %r5; {replace}.element_stride{at}.b32 [%x0], 1, %r5;\n\
         {replace}.elemtype{at}.b32 [%x0], 0x2; {replace}.interleave_layout{at}.b32 [%x0], 0x0; {replace}.swizzle_mode{at}.b32 [%x0], 0x0; {replace}.fill_mode{at}.b32 [%x0], 0x0;\n\
         tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%map], [%x0], 128;\n\
         fence.proxy.tensormap::generic.acquire.gpu [%map], 128;\n\
         mbarrier.init.shared::cta.b64 [bar], 1; mov.s32 %r6, 8; mov.s32 %r7, 3;\n\
         cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes [tile], [%map, {{%r6, %r7}}], [bar];\n{}",
        tile_out(12)
    ));
    let map = gpu.upload(&[0xff_u8; 128]);
    let mut values = vec![0_u32; 64];
    values.extend(0..60);
    let out = gpu.upload(&values);
    gpu.run("k", 1, 1, &Args::new().ptr(map).ptr(out));
    let wanted = [44, 45, 46, 47, 56, 57, 58, 59, 0, 0, 0, 0];
    assert_eq!(gpu.read::<u32>(out, 12), wanted);
    for (code, error) in [
        (
            "tensormap.replace.tile.rank.global.b1024.b32 [%map], 5;",
            715,
        ),
        (
            "mov.u32 %r0, 257; tensormap.replace.tile.box_dim.global.b1024.b32 [%map], 0, %r0;",
            715,
        ),
        (
            "tensormap.replace.tile.global_stride.global.b1024.b64 [%map], 4, %map;",
            715,
        ),
        (
            "tensormap.replace.tile.elemtype.global.b1024.b32 [%map], 99;",
            715,
        ),
        (
            "tensormap.replace.tile.rank.global.b1024.b32 [%map+8], 1;",
            716,
        ),
        (
            "mov.u64 %x0, 64; tensormap.replace.tile.rank.global.b1024.b32 [%x0], 1;",
            700,
        ),
    ] {
        let mut gpu = kernel(code);
        let map = gpu.upload(&[0_u8; 256]);
        let fault = gpu
            .try_run("k", 1, 1, 0, &Args::new().ptr(map).ptr(map))
            .unwrap_err();
        assert_eq!(fault.kind.code(), error, "{code}");
    }
}
