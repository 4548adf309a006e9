//! The twenty kernels: their data, their launches, and what plain Rust does in their place.
//!
//! Owns sizes and seeds. Called by `main`. Must not know who runs a case.

use crate::data::{halves, numbers, rows, words};
use crate::plain;

/// One kernel with its data. All data are words of 32 bits; numbers of single precision are given by their bits.
pub struct Case {
    pub name: &'static str,
    /// Millions of `unit` in one run.
    pub work: f64,
    pub unit: &'static str,
    pub buffers: Vec<Vec<u32>>,
    /// Buffers that a run changes and needs as they were.
    pub restored: &'static [usize],
    pub launches: Vec<Launch>,
    /// The buffer with the result.
    pub result: usize,
    /// How far numbers of single precision may be apart, relative to 1 + their size; `None`: words, equal.
    pub tolerance: Option<f32>,
    /// The same in Rust with rayon, from the buffers to the result.
    pub plain: fn(&[Vec<u32>]) -> Vec<u32>,
}

/// One launch.
pub struct Launch {
    pub kernel: &'static str,
    pub groups: [u32; 2],
    pub items: [u32; 2],
    pub arguments: Vec<Argument>,
}

/// What a launch is given.
#[derive(Clone, Copy)]
pub enum Argument {
    Buffer(usize),
    Number(u32),
}

use Argument::{Buffer, Number};

fn launch(
    kernel: &'static str,
    groups: [u32; 2],
    items: [u32; 2],
    arguments: &[Argument],
) -> Launch {
    Launch {
        kernel,
        groups,
        items,
        arguments: arguments.to_vec(),
    }
}

/// All cases, in the order of the table.
pub fn all() -> Vec<Case> {
    vec![
        product_tiles(),
        product_mma(),
        reduction(),
        scan(),
        prefix_sums(),
        transpose(),
        histogram(),
        stencil(),
        fft(),
        sort(),
        sparse(),
        monte_carlo(),
        mandelbrot(),
        convolution(),
        attention(),
        softmax(),
        layer_norm(),
        bfs(),
        sha256(),
        search(),
        nbody(),
    ]
}

fn product_tiles() -> Case {
    let side = plain::PRODUCT_SIDE;
    let blocks = side as u32 / 16;
    let arguments = [Buffer(0), Buffer(1), Buffer(2), Number(side as u32)];
    Case {
        name: "matrix product, fp32 tiles",
        work: 2e-6 * (side * side * side) as f64,
        unit: "flop",
        buffers: vec![
            numbers(side * side, 1),
            numbers(side * side, 2),
            vec![0; side * side],
        ],
        restored: &[],
        launches: vec![launch(
            "product_tiles",
            [blocks, blocks],
            [16, 16],
            &arguments,
        )],
        result: 2,
        tolerance: Some(1e-4),
        plain: plain::product,
    }
}

fn product_mma() -> Case {
    let side = plain::PRODUCT_SIDE;
    let (across, down) = (side as u32 / 32, side as u32 / 64);
    let arguments = [Buffer(0), Buffer(1), Buffer(2), Number(side as u32)];
    Case {
        name: "matrix product, fp16 mma.sync",
        work: 2e-6 * (side * side * side) as f64,
        unit: "flop",
        buffers: vec![
            halves(side * side, 1),
            halves(side * side, 2),
            vec![0; side * side],
        ],
        restored: &[],
        launches: vec![launch("product_mma", [across, down], [128, 1], &arguments)],
        result: 2,
        tolerance: Some(1e-3),
        plain: plain::product_halves,
    }
}

fn reduction() -> Case {
    let count = 1 << 22;
    Case {
        name: "reduction",
        work: count as f64 * 1e-6,
        unit: "element",
        buffers: vec![numbers(count, 3), vec![0; 256], vec![0; 1]],
        restored: &[],
        launches: vec![
            launch(
                "reduction",
                [256, 1],
                [256, 1],
                &[Buffer(0), Buffer(1), Number(64)],
            ),
            launch(
                "reduction",
                [1, 1],
                [256, 1],
                &[Buffer(1), Buffer(2), Number(1)],
            ),
        ],
        result: 2,
        tolerance: Some(1e-2),
        plain: plain::reduction,
    }
}

fn scan() -> Case {
    let count = 1 << 18;
    Case {
        name: "scan",
        work: count as f64 * 1e-6,
        unit: "element",
        buffers: vec![
            words(count, 4),
            vec![0; count],
            vec![0; 512],
            vec![0; 512],
            vec![0; 1],
        ],
        restored: &[],
        launches: vec![
            launch(
                "scan",
                [512, 1],
                [256, 1],
                &[Buffer(0), Buffer(1), Buffer(2)],
            ),
            launch("scan", [1, 1], [256, 1], &[Buffer(2), Buffer(3), Buffer(4)]),
            launch("scan_add", [512, 1], [256, 1], &[Buffer(1), Buffer(3)]),
        ],
        result: 1,
        tolerance: None,
        plain: plain::scan,
    }
}

fn prefix_sums() -> Case {
    let count = 1 << 18;
    let limit = Number(plain::PREFIX_LIMIT);
    let blocks = [count as u32 / 256, 1];
    Case {
        name: "prefix sums (compaction)",
        work: count as f64 * 1e-6,
        unit: "element",
        buffers: vec![
            words(count, 5),
            vec![0; 1024],
            vec![0; 1024],
            vec![0; count],
        ],
        restored: &[],
        launches: vec![
            launch(
                "prefix_count",
                blocks,
                [256, 1],
                &[Buffer(0), Buffer(1), limit],
            ),
            launch(
                "prefix_bases",
                [1, 1],
                [256, 1],
                &[Buffer(1), Buffer(2), Number(4)],
            ),
            launch(
                "prefix_place",
                blocks,
                [256, 1],
                &[Buffer(0), Buffer(2), Buffer(3), limit],
            ),
        ],
        result: 3,
        tolerance: None,
        plain: plain::prefix_sums,
    }
}

fn transpose() -> Case {
    let side = plain::TRANSPOSE_SIDE;
    let blocks = side as u32 / 32;
    let arguments = [Buffer(0), Buffer(1), Number(side as u32)];
    Case {
        name: "transpose",
        work: (side * side) as f64 * 1e-6,
        unit: "element",
        buffers: vec![words(side * side, 6), vec![0; side * side]],
        restored: &[],
        launches: vec![launch("transpose", [blocks, blocks], [32, 8], &arguments)],
        result: 1,
        tolerance: None,
        plain: plain::transpose,
    }
}

fn histogram() -> Case {
    let count = 1 << 20;
    let arguments = [Buffer(0), Buffer(1), Number(64)];
    Case {
        name: "histogram",
        work: 4e-6 * count as f64,
        unit: "byte",
        buffers: vec![words(count, 7), vec![0; 256]],
        restored: &[1],
        launches: vec![launch("histogram", [64, 1], [256, 1], &arguments)],
        result: 1,
        tolerance: None,
        plain: plain::histogram,
    }
}

fn stencil() -> Case {
    let side = plain::STENCIL_SIDE;
    let groups = [side as u32 / 32, side as u32 / 8];
    let step = |from: usize, to: usize| {
        let arguments = [Buffer(from), Buffer(to), Number(side as u32)];
        launch("stencil", groups, [32, 8], &arguments)
    };
    let launches = (0..plain::STENCIL_STEPS).map(|at| step(at % 2, 1 - at % 2));
    Case {
        name: "stencil (Jacobi)",
        work: (side * side * plain::STENCIL_STEPS) as f64 * 1e-6,
        unit: "point",
        buffers: vec![numbers(side * side, 8), vec![0; side * side]],
        restored: &[0],
        launches: launches.collect(),
        result: plain::STENCIL_STEPS % 2,
        tolerance: Some(1e-5),
        plain: plain::stencil,
    }
}

fn fft() -> Case {
    let batches = 512;
    Case {
        name: "FFT, 512 points",
        work: batches as f64 * 5.0 * 512.0 * 9.0 * 1e-6,
        unit: "flop",
        buffers: vec![numbers(batches * 1024, 9), vec![0; batches * 1024]],
        restored: &[],
        launches: vec![launch(
            "fft",
            [batches as u32, 1],
            [256, 1],
            &[Buffer(0), Buffer(1)],
        )],
        result: 1,
        tolerance: Some(2e-3),
        plain: plain::fft,
    }
}

fn sort() -> Case {
    let count: u32 = 1 << 16;
    let blocks = [count / 512, 1];
    let tile = |size: u32| launch("sort_tile", blocks, [256, 1], &[Buffer(0), Number(size)]);
    let mut launches = vec![tile(0)];
    let mut size = 1024;
    while size <= count {
        let mut stride = size / 2;
        while stride >= 512 {
            let arguments = [Buffer(0), Number(size), Number(stride)];
            launches.push(launch("sort_step", blocks, [256, 1], &arguments));
            stride /= 2;
        }
        launches.push(tile(size));
        size *= 2;
    }
    Case {
        name: "sort (bitonic)",
        work: f64::from(count) * 1e-6,
        unit: "element",
        buffers: vec![words(count as usize, 10)],
        restored: &[0],
        launches,
        result: 0,
        tolerance: None,
        plain: plain::sort,
    }
}

fn sparse() -> Case {
    let count = 1 << 15;
    let [starts, columns] = rows(count, 63, 11);
    let values = numbers(columns.len(), 12);
    let arguments = [0, 1, 2, 3, 4].map(Buffer);
    Case {
        name: "sparse product (CSR)",
        work: 2e-6 * columns.len() as f64,
        unit: "flop",
        buffers: vec![starts, columns, values, numbers(count, 13), vec![0; count]],
        restored: &[],
        launches: vec![launch(
            "sparse",
            [count as u32 / 256, 1],
            [256, 1],
            &arguments,
        )],
        result: 4,
        tolerance: Some(1e-4),
        plain: plain::sparse,
    }
}

fn monte_carlo() -> Case {
    let threads = 1 << 14;
    let arguments = [Buffer(0), Number(plain::MONTE_CARLO_EACH)];
    Case {
        name: "Monte Carlo",
        work: threads as f64 * f64::from(plain::MONTE_CARLO_EACH) * 1e-6,
        unit: "sample",
        buffers: vec![vec![0; threads]],
        restored: &[],
        launches: vec![launch(
            "monte_carlo",
            [threads as u32 / 256, 1],
            [256, 1],
            &arguments,
        )],
        result: 0,
        tolerance: None,
        plain: plain::monte_carlo,
    }
}

fn mandelbrot() -> Case {
    let side = plain::MANDELBROT_SIDE;
    let arguments = [
        Buffer(0),
        Number(side as u32),
        Number(plain::MANDELBROT_MOST),
    ];
    Case {
        name: "Mandelbrot",
        work: (side * side) as f64 * 1e-6,
        unit: "point",
        buffers: vec![vec![0; side * side]],
        restored: &[],
        launches: vec![launch(
            "mandelbrot",
            [side as u32 / 32, side as u32 / 8],
            [32, 8],
            &arguments,
        )],
        result: 0,
        tolerance: None,
        plain: plain::mandelbrot,
    }
}

fn convolution() -> Case {
    let side = plain::CONVOLUTION_SIDE;
    let pitch = side + 6;
    let arguments = [Buffer(0), Buffer(1), Buffer(2), Number(side as u32)];
    let blocks = side as u32 / 16;
    Case {
        name: "convolution, 7 x 7",
        work: 2e-6 * (side * side * 49) as f64,
        unit: "flop",
        buffers: vec![
            numbers(pitch * pitch, 14),
            numbers(49, 15),
            vec![0; side * side],
        ],
        restored: &[],
        launches: vec![launch(
            "convolution",
            [blocks, blocks],
            [16, 16],
            &arguments,
        )],
        result: 2,
        tolerance: Some(1e-4),
        plain: plain::convolution,
    }
}

fn attention() -> Case {
    let count = plain::ATTENTION_COUNT;
    let of = |seed: u32| numbers(count * 64, seed);
    let arguments = [
        Buffer(0),
        Buffer(1),
        Buffer(2),
        Buffer(3),
        Number(count as u32),
    ];
    Case {
        name: "attention",
        work: 4e-6 * (count * count * 64) as f64,
        unit: "flop",
        buffers: vec![of(16), of(17), of(18), vec![0; count * 64]],
        restored: &[],
        launches: vec![launch("attention", [count as u32, 1], [64, 1], &arguments)],
        result: 3,
        tolerance: Some(1e-3),
        plain: plain::attention,
    }
}

fn softmax() -> Case {
    let (rows, width) = (1024, plain::ROW);
    let arguments = [Buffer(0), Buffer(1), Number(width as u32)];
    Case {
        name: "softmax",
        work: (rows * width) as f64 * 1e-6,
        unit: "element",
        buffers: vec![numbers(rows * width, 19), vec![0; rows * width]],
        restored: &[],
        launches: vec![launch("softmax", [rows as u32, 1], [256, 1], &arguments)],
        result: 1,
        tolerance: Some(1e-4),
        plain: plain::softmax,
    }
}

fn layer_norm() -> Case {
    let (rows, width) = (1024, plain::ROW);
    let arguments = [
        Buffer(0),
        Buffer(1),
        Buffer(2),
        Buffer(3),
        Number(width as u32),
    ];
    Case {
        name: "layer norm",
        work: (rows * width) as f64 * 1e-6,
        unit: "element",
        buffers: vec![
            numbers(rows * width, 20),
            numbers(width, 21),
            numbers(width, 22),
            vec![0; rows * width],
        ],
        restored: &[],
        launches: vec![launch("layer_norm", [rows as u32, 1], [256, 1], &arguments)],
        result: 3,
        tolerance: Some(1e-3),
        plain: plain::layer_norm,
    }
}

fn bfs() -> Case {
    let count = 1 << 16;
    let [starts, columns] = rows(count, 7, 23);
    let edges = columns.len();
    let mut levels = vec![u32::MAX; count];
    levels[0] = 0;
    let buffers = vec![starts, columns, levels];
    let found = plain::bfs(&buffers);
    let deepest = found.iter().filter(|&&level| level != u32::MAX).max();
    let step = |level: u32| {
        let arguments = [Buffer(0), Buffer(1), Buffer(2), Number(level)];
        launch("bfs", [count as u32 / 256, 1], [256, 1], &arguments)
    };
    Case {
        name: "breadth-first search",
        work: edges as f64 * 1e-6,
        unit: "edge",
        buffers,
        restored: &[2],
        launches: (0..=deepest.copied().unwrap_or(0)).map(step).collect(),
        result: 2,
        tolerance: None,
        plain: plain::bfs,
    }
}

fn sha256() -> Case {
    let count = 1 << 15;
    let arguments = [Buffer(0), Buffer(1), Number(count as u32)];
    Case {
        name: "SHA-256",
        work: 64e-6 * count as f64,
        unit: "byte",
        buffers: vec![words(count * 16, 24), vec![0; count * 8]],
        restored: &[],
        launches: vec![launch(
            "sha256",
            [count as u32 / 256, 1],
            [256, 1],
            &arguments,
        )],
        result: 1,
        tolerance: None,
        plain: plain::sha256,
    }
}

fn search() -> Case {
    let count = 1 << 20;
    // Letters a to d, so that beginnings of the word are found often.
    let letters = |seed: u32, words_of: usize| -> Vec<u32> {
        let letter = |word: u32| (word & 0x0303_0303) + 0x6161_6161;
        words(words_of, seed).into_iter().map(letter).collect()
    };
    let arguments = [
        Buffer(0),
        Buffer(1),
        Buffer(2),
        Number(plain::SEARCH_LENGTH as u32),
    ];
    Case {
        name: "string search",
        work: count as f64 * 1e-6,
        unit: "byte",
        buffers: vec![letters(25, count / 4 + 8), letters(26, 8), vec![0; count]],
        restored: &[],
        launches: vec![launch(
            "search",
            [count as u32 / 256, 1],
            [256, 1],
            &arguments,
        )],
        result: 2,
        tolerance: None,
        plain: plain::search,
    }
}

fn nbody() -> Case {
    let count = 4096;
    let arguments = [Buffer(0), Buffer(1), Number(count as u32 / 256)];
    Case {
        name: "n-body",
        work: 20e-6 * (count * count) as f64,
        unit: "flop",
        buffers: vec![numbers(count * 4, 27), vec![0; count * 4]],
        restored: &[],
        launches: vec![launch(
            "nbody",
            [count as u32 / 256, 1],
            [256, 1],
            &arguments,
        )],
        result: 1,
        tolerance: Some(1e-2),
        plain: plain::nbody,
    }
}
