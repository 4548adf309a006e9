//! Products of matrices that are sparse and scaled at once, against plain sums.

use crate::sparse::{list, noise, run};

/// The code of a small number as a float of four bits, or of eight (`e4m3`).
fn code(value: i64, bits: usize) -> u32 {
    let (codes, sign) = match bits {
        4 => ([0, 2, 4, 5, 6], 8),
        _ => ([0, 0x38, 0x40, 0x44, 0x48], 0x80),
    };
    let magnitude = codes[value.unsigned_abs() as usize];
    if value < 0 {
        magnitude | sign
    } else {
        magnitude
    }
}

#[test]
fn sparse_products_are_scaled_block_by_block() {
    for (kind, scales, types, bits, depth, blocks, (byte_a, lane_a), (byte_b, lane_b)) in [
        (
            "mxf8f6f4",
            "",
            "e4m3.e4m3.f32.ue8m0",
            8,
            64,
            1,
            (3, 1),
            (2, 3),
        ),
        (
            "mxf8f6f4",
            ".scale_vec::1X",
            "e4m3.e4m3.f32.ue8m0",
            8,
            64,
            1,
            (0, 0),
            (1, 0),
        ),
        (
            "mxf4",
            ".scale_vec::2X",
            "e2m1.e2m1.f32.ue8m0",
            4,
            128,
            2,
            (2, 1),
            (0, 2),
        ),
        (
            "mxf4nvf4",
            ".scale_vec::2X",
            "e2m1.e2m1.f32.ue8m0",
            4,
            128,
            2,
            (0, 0),
            (2, 1),
        ),
        (
            "mxf4nvf4",
            ".scale_vec::4X",
            "e2m1.e2m1.f32.ue4m3",
            4,
            128,
            4,
            (0, 1),
            (0, 3),
        ),
    ] {
        let mut random = noise(depth as u64 + blocks as u64 + byte_a as u64);
        let each = 32 / bits;
        // Of four elements two are there, or of four pairs two pairs.
        let unit = if bits == 4 { 2 } else { 1 };
        let mut whole = vec![vec![0; depth]; 16];
        let mut stored = vec![Vec::new(); 16];
        let mut places_of = vec![Vec::new(); 16];
        for row in 0..16 {
            for start in (0..depth).step_by(4 * unit) {
                let first = random(3) as usize;
                let second = first + 1 + random(3 - first as u64) as usize;
                for at in [first, second].map(|place| start + place * unit) {
                    for element in &mut whole[row][at..at + unit] {
                        *element = random(9) as i64 - 4;
                        stored[row].push(*element);
                    }
                }
                places_of[row].push((first | second << 2) as u32);
            }
        }
        let right: Vec<Vec<i64>> = (0..8)
            .map(|_| (0..depth).map(|_| random(9) as i64 - 4).collect())
            .collect();
        // Powers of two: of both types of factors.
        let mut factors = |count: usize| -> Vec<Vec<i32>> {
            (0..count)
                .map(|_| (0..blocks).map(|_| random(5) as i32 - 2).collect())
                .collect()
        };
        let (scale_a, scale_b) = (factors(16), factors(8));
        let factor_code = |power: i32| match types.ends_with("ue8m0") {
            true => (127 + power) as u32,
            false => ((7 + power) as u32) << 3,
        };
        let bytes = |powers: &[i32], byte: usize| {
            let codes = powers.iter().map(|power| factor_code(*power)).enumerate();
            codes.fold(0, |word, (at, code)| word | code << (8 * (byte + at)))
        };
        let word = |values: &[i64], start: usize| {
            let values = values[start..start + each].iter().enumerate();
            values.fold(0, |word, (at, value)| {
                word | code(*value, bits) << (bits * at)
            })
        };
        let lanes: Vec<Vec<u32>> = (0..32)
            .map(|lane| {
                let (group, number) = (lane / 4, lane % 4);
                let mut words = Vec::new();
                for step in 0..2 {
                    let start = (4 * step + number) * each;
                    words.extend([group, group + 8].map(|row| word(&stored[row], start)));
                }
                for step in 0..4 {
                    words.push(word(&right[group], (4 * step + number) * each));
                }
                // Of the first half of the depth the rows of the quad, and then of the second one.
                let places = &places_of[group + 8 * (number % 2)][8 * (number / 2)..][..8];
                let places = places.iter().enumerate();
                words.push(places.fold(0, |word, (at, place)| word | place << (4 * at)));
                words.push(match number.checked_sub(2 * lane_a) {
                    Some(0) => bytes(&scale_a[group], byte_a),
                    Some(1) => bytes(&scale_a[group + 8], byte_a),
                    _ => 0x7777_7777,
                });
                words.push(match number == lane_b {
                    true => bytes(&scale_b[group], byte_b),
                    false => 0x7777_7777,
                });
                words
            })
            .collect();
        let instruction = format!(
            "mov.b32 %r50, 0f3F000000;\nmma.sp::ordered_metadata.sync.aligned.m16n8k{depth}.row.col.kind::{kind}.block_scale{scales}.f32.{types} {}, {}, {}, {{%r50, %r50, %r50, %r50}}, %r8, 0, %r9, {{{byte_a}, {lane_a}}}, %r10, {{{byte_b}, {lane_b}}};",
            list(40, 4),
            list(0, 4),
            list(4, 4)
        );
        for (lane, sums) in run(&instruction, &lanes, 4).iter().enumerate() {
            for (at, &sum) in sums.iter().enumerate() {
                let (row, column) = (lane / 4 + 8 * (at / 2), lane % 4 * 2 + at % 2);
                let exact: f64 = (0..depth)
                    .map(|k| {
                        let block = k * blocks / depth;
                        let scale = scale_a[row][block] + scale_b[column][block];
                        (whole[row][k] * right[column][k]) as f64 * f64::from(scale).exp2()
                    })
                    .sum();
                assert_eq!(
                    f32::from_bits(sum),
                    (exact + 0.5) as f32,
                    "{kind} {blocks}: {row}, {column}"
                );
            }
        }
    }
}
