//! The twenty kernels in plain Rust with rayon, as somebody would write them who has no GPU; compiled for any x86-64 but the
//! products of matrices, which have the processor's vectors.
//!
//! Called by `cases` for what results must be, and by `main` for how long they take. Must not know the kernels' text.

use rayon::prelude::*;

pub const PRODUCT_SIDE: usize = 512;
pub const PREFIX_LIMIT: u32 = 1 << 30;
pub const TRANSPOSE_SIDE: usize = 1024;
pub const STENCIL_SIDE: usize = 1024;
pub const STENCIL_STEPS: usize = 8;
pub const MONTE_CARLO_EACH: u32 = 1000;
pub const MANDELBROT_SIDE: usize = 512;
pub const MANDELBROT_MOST: u32 = 256;
pub const CONVOLUTION_SIDE: usize = 512;
pub const ATTENTION_COUNT: usize = 512;
pub const ROW: usize = 1024;
pub const SEARCH_LENGTH: usize = 16;

/// Words as the numbers whose bits they are.
fn floats(words: &[u32]) -> &[f32] {
    // SAFETY: both have four bytes and their alignment, and every word is some number's bits.
    unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), words.len()) }
}

fn bits(numbers: Vec<f32>) -> Vec<u32> {
    numbers.into_iter().map(f32::to_bits).collect()
}

/// Rows of a product: four of `a` give four of `c`.
#[inline(always)]
fn multiply_rows(c: &mut [f32], a: &[f32], b: &[f32], side: usize) {
    for k in 0..side {
        let b = &b[k * side..][..side];
        for (c, a) in c.chunks_mut(side).zip(a.chunks(side)) {
            let factor = a[k];
            for (c, b) in c.iter_mut().zip(b) {
                *c += factor * b;
            }
        }
    }
}

/// [`multiply_rows`] with the vectors of AVX-512.
#[target_feature(enable = "avx512f,avx512vl")]
fn multiply_rows_avx512(c: &mut [f32], a: &[f32], b: &[f32], side: usize) {
    multiply_rows(c, a, b, side);
}

/// [`multiply_rows`] with the vectors of AVX2.
#[target_feature(enable = "avx2")]
fn multiply_rows_avx2(c: &mut [f32], a: &[f32], b: &[f32], side: usize) {
    multiply_rows(c, a, b, side);
}

/// A product of matrices, with the widest vectors that there are.
fn multiply(a: &[f32], b: &[f32], side: usize) -> Vec<u32> {
    let mut c = vec![0.0_f32; side * side];
    let has_avx512 = is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vl");
    let has_avx2 = is_x86_feature_detected!("avx2");
    let rows = c.par_chunks_mut(4 * side).zip(a.par_chunks(4 * side));
    rows.for_each(|(c, a)| {
        if has_avx512 {
            // SAFETY: the processor has what the function is compiled for.
            unsafe { multiply_rows_avx512(c, a, b, side) };
        } else if has_avx2 {
            // SAFETY: the processor has AVX2, for which the function is compiled.
            unsafe { multiply_rows_avx2(c, a, b, side) };
        } else {
            multiply_rows(c, a, b, side);
        }
    });
    bits(c)
}

pub fn product(buffers: &[Vec<u32>]) -> Vec<u32> {
    multiply(floats(&buffers[0]), floats(&buffers[1]), PRODUCT_SIDE)
}

/// Two numbers of half precision, neither infinite nor subnormal.
fn halves(word: u32) -> [f32; 2] {
    let wide = |half: u32| match half & 0x7fff {
        0 => 0.0,
        magnitude => f32::from_bits((half & 0x8000) << 16 | ((magnitude << 13) + (112 << 23))),
    };
    [wide(word & 0xffff), wide(word >> 16)]
}

pub fn product_halves(buffers: &[Vec<u32>]) -> Vec<u32> {
    let side = PRODUCT_SIDE;
    let wide =
        |words: &Vec<u32>| -> Vec<f32> { words.iter().flat_map(|&word| halves(word)).collect() };
    let (a, columns) = (wide(&buffers[0]), wide(&buffers[1]));
    let mut b = vec![0.0; side * side];
    for (column, values) in columns.chunks(side).enumerate() {
        for (row, value) in values.iter().enumerate() {
            b[row * side + column] = *value;
        }
    }
    multiply(&a, &b, side)
}

pub fn reduction(buffers: &[Vec<u32>]) -> Vec<u32> {
    let parts = floats(&buffers[0]).par_chunks(1 << 14);
    let part = |part: &[f32]| {
        let mut sums = [0.0_f32; 16];
        for values in part.chunks_exact(16) {
            for (sum, value) in sums.iter_mut().zip(values) {
                *sum += value;
            }
        }
        sums.iter().sum::<f32>()
    };
    bits(vec![parts.map(part).sum()])
}

/// Elements that a thread takes at a time.
const CHUNK: usize = 1 << 14;

pub fn scan(buffers: &[Vec<u32>]) -> Vec<u32> {
    let from = &buffers[0];
    let add = |sum: u32, value: &u32| sum.wrapping_add(*value);
    let sums: Vec<u32> = from
        .par_chunks(CHUNK)
        .map(|part| part.iter().fold(0, add))
        .collect();
    let mut base = 0_u32;
    let mut bases = Vec::new();
    for sum in sums {
        bases.push(base);
        base = base.wrapping_add(sum);
    }
    let mut to = vec![0; from.len()];
    let parts = to
        .par_chunks_mut(CHUNK)
        .zip(from.par_chunks(CHUNK))
        .zip(bases);
    parts.for_each(|((to, from), mut sum)| {
        for (to, value) in to.iter_mut().zip(from) {
            *to = sum;
            sum = sum.wrapping_add(*value);
        }
    });
    to
}

pub fn prefix_sums(buffers: &[Vec<u32>]) -> Vec<u32> {
    let chosen = buffers[0].par_iter().filter(|&&word| word < PREFIX_LIMIT);
    let mut to: Vec<u32> = chosen.copied().collect();
    to.resize(buffers[0].len(), 0);
    to
}

pub fn transpose(buffers: &[Vec<u32>]) -> Vec<u32> {
    let side = TRANSPOSE_SIDE;
    let mut to = vec![0; side * side];
    to.par_chunks_mut(16 * side)
        .enumerate()
        .for_each(|(block, to)| {
            for (row, from) in buffers[0].chunks(side).enumerate() {
                for (at, value) in from[block * 16..][..16].iter().enumerate() {
                    to[at * side + row] = *value;
                }
            }
        });
    to
}

pub fn histogram(buffers: &[Vec<u32>]) -> Vec<u32> {
    let add = |mut a: Vec<u32>, b: Vec<u32>| {
        a.iter_mut().zip(b).for_each(|(a, b)| *a += b);
        a
    };
    let part = |part: &[u32]| {
        let mut bins = vec![0; 256];
        for word in part {
            for byte in word.to_le_bytes() {
                bins[usize::from(byte)] += 1;
            }
        }
        bins
    };
    buffers[0]
        .par_chunks(CHUNK)
        .map(part)
        .reduce(|| vec![0; 256], add)
}

pub fn stencil(buffers: &[Vec<u32>]) -> Vec<u32> {
    let side = STENCIL_SIDE;
    let mut from = floats(&buffers[0]).to_vec();
    let mut to = from.clone();
    for _ in 0..STENCIL_STEPS {
        to.par_chunks_mut(side)
            .enumerate()
            .skip(1)
            .take(side - 2)
            .for_each(|(y, to)| {
                let row = |y: usize| &from[y * side..][..side];
                let (above, here, below) = (row(y - 1), row(y), row(y + 1));
                for x in 1..side - 1 {
                    to[x] = 0.25 * (here[x - 1] + here[x + 1] + above[x] + below[x]);
                }
            });
        std::mem::swap(&mut from, &mut to);
    }
    bits(from)
}

pub fn fft(buffers: &[Vec<u32>]) -> Vec<u32> {
    let mut all = floats(&buffers[0]).to_vec();
    let turns: Vec<(f32, f32)> = (0..256)
        .map(|k| (-std::f32::consts::PI * k as f32 / 256.0).sin_cos())
        .map(|(sin, cos)| (cos, sin))
        .collect();
    all.par_chunks_mut(1024).for_each(|values| {
        let mut now: Vec<(f32, f32)> = values.chunks(2).map(|pair| (pair[0], pair[1])).collect();
        let mut next = now.clone();
        let mut half_way = 1;
        while half_way < 512 {
            for x in 0..256 {
                let k = x & (half_way - 1);
                let to = ((x - k) << 1) + k;
                let ((c, s), (ar, ai), (br, bi)) =
                    (turns[k * (256 / half_way)], now[x], now[x + 256]);
                let (tr, ti) = (c * br - s * bi, c * bi + s * br);
                next[to] = (ar + tr, ai + ti);
                next[to + half_way] = (ar - tr, ai - ti);
            }
            std::mem::swap(&mut now, &mut next);
            half_way *= 2;
        }
        for (pair, (real, imaginary)) in values.chunks_mut(2).zip(now) {
            pair.copy_from_slice(&[real, imaginary]);
        }
    });
    bits(all)
}

pub fn sort(buffers: &[Vec<u32>]) -> Vec<u32> {
    let mut values = buffers[0].clone();
    values.par_sort_unstable();
    values
}

pub fn sparse(buffers: &[Vec<u32>]) -> Vec<u32> {
    let (starts, columns) = (&buffers[0], &buffers[1]);
    let (values, x) = (floats(&buffers[2]), floats(&buffers[3]));
    let row = |pair: &[u32]| {
        let range = pair[0] as usize..pair[1] as usize;
        let products = values[range.clone()].iter().zip(&columns[range]);
        products
            .map(|(value, column)| value * x[*column as usize])
            .sum()
    };
    bits(starts.par_windows(2).map(row).collect())
}

pub fn monte_carlo(buffers: &[Vec<u32>]) -> Vec<u32> {
    let thread = |thread: u32| {
        let mut state = thread.wrapping_mul(2_654_435_761).wrapping_add(12_345);
        let mut inside = 0;
        for _ in 0..MONTE_CARLO_EACH {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            let x = (state & 0xffff) as f32 / 65536.0;
            let y = (state >> 16) as f32 / 65536.0;
            inside += u32::from(x * x + y * y < 1.0);
        }
        inside
    };
    (0..buffers[0].len() as u32)
        .into_par_iter()
        .map(thread)
        .collect()
}

pub fn mandelbrot(_: &[Vec<u32>]) -> Vec<u32> {
    let side = MANDELBROT_SIDE;
    let step = 3.0 / side as f32;
    let point = |i: usize| {
        let (cr, ci) = (
            ((i % side) as f32).mul_add(step, -2.0),
            ((i / side) as f32).mul_add(step, -1.5),
        );
        let (mut zr, mut zi, mut n) = (0.0_f32, 0.0_f32, 0);
        while n < MANDELBROT_MOST {
            let (rr, ii) = (zr * zr, zi * zi);
            if rr + ii > 4.0 {
                break;
            }
            zi = (zr + zr).mul_add(zi, ci);
            zr = rr - ii + cr;
            n += 1;
        }
        n
    };
    (0..side * side).into_par_iter().map(point).collect()
}

pub fn convolution(buffers: &[Vec<u32>]) -> Vec<u32> {
    let side = CONVOLUTION_SIDE;
    let pitch = side + 6;
    let (from, weights) = (floats(&buffers[0]), floats(&buffers[1]));
    let mut to = vec![0.0_f32; side * side];
    to.par_chunks_mut(side).enumerate().for_each(|(y, to)| {
        for (at, weight) in weights.iter().enumerate() {
            let row = &from[(y + at / 7) * pitch + at % 7..][..side];
            for (to, value) in to.iter_mut().zip(row) {
                *to += weight * value;
            }
        }
    });
    bits(to)
}

pub fn attention(buffers: &[Vec<u32>]) -> Vec<u32> {
    let count = ATTENTION_COUNT;
    let (q, k, v) = (
        floats(&buffers[0]),
        floats(&buffers[1]),
        floats(&buffers[2]),
    );
    let mut to = vec![0.0_f32; count * 64];
    to.par_chunks_mut(64)
        .zip(q.par_chunks(64))
        .for_each(|(to, query)| {
            let mut weights = vec![0.0_f32; count];
            for (q, k) in query.iter().zip(k.chunks(count)) {
                for (weight, k) in weights.iter_mut().zip(k) {
                    *weight += q * 0.125 * k;
                }
            }
            let most = weights.iter().copied().fold(f32::MIN, f32::max);
            weights
                .iter_mut()
                .for_each(|weight| *weight = (*weight - most).exp());
            let sum: f32 = weights.iter().sum();
            for (weight, v) in weights.iter().zip(v.chunks(64)) {
                for (to, v) in to.iter_mut().zip(v) {
                    *to += weight * v / sum;
                }
            }
        });
    bits(to)
}

pub fn softmax(buffers: &[Vec<u32>]) -> Vec<u32> {
    let mut to = floats(&buffers[0]).to_vec();
    to.par_chunks_mut(ROW).for_each(|row| {
        let most = row.iter().copied().fold(f32::MIN, f32::max);
        row.iter_mut()
            .for_each(|value| *value = (*value - most).exp());
        let sum: f32 = row.iter().sum();
        row.iter_mut().for_each(|value| *value /= sum);
    });
    bits(to)
}

pub fn layer_norm(buffers: &[Vec<u32>]) -> Vec<u32> {
    let (scale, shift) = (floats(&buffers[1]), floats(&buffers[2]));
    let mut to = floats(&buffers[0]).to_vec();
    to.par_chunks_mut(ROW).for_each(|row| {
        let mean = row.iter().sum::<f32>() / ROW as f32;
        let square = row.iter().map(|value| value * value).sum::<f32>() / ROW as f32;
        let inverse = 1.0 / (square - mean * mean + 1e-5).sqrt();
        for (value, (scale, shift)) in row.iter_mut().zip(scale.iter().zip(shift)) {
            *value = (*value - mean) * inverse * scale + shift;
        }
    });
    bits(to)
}

pub fn bfs(buffers: &[Vec<u32>]) -> Vec<u32> {
    let (starts, columns) = (&buffers[0], &buffers[1]);
    let mut levels = buffers[2].clone();
    let mut front = vec![0_usize];
    let mut level = 0;
    while !front.is_empty() {
        level += 1;
        let mut next = Vec::new();
        for node in front {
            for &other in &columns[starts[node] as usize..starts[node + 1] as usize] {
                if levels[other as usize] == u32::MAX {
                    levels[other as usize] = level;
                    next.push(other as usize);
                }
            }
        }
        front = next;
    }
    levels
}

/// The first 32 bits of the fractions of the cube roots of the first 64 primes.
fn sha_words() -> [u32; 64] {
    let is_prime = |n: &u64| {
        (2..*n)
            .take_while(|d| d * d <= *n)
            .all(|d| !n.is_multiple_of(d))
    };
    let mut primes = (2_u64..).filter(is_prime);
    std::array::from_fn(|_| {
        let prime = primes.next().map_or(2, u128::from);
        // The cube root of prime * 2^96 has 32 bits after the point.
        let (mut low, mut high) = (0_u128, 1 << 40);
        while high - low > 1 {
            let middle = (low + high) / 2;
            if middle * middle * middle <= prime << 96 {
                low = middle;
            } else {
                high = middle;
            }
        }
        low as u32
    })
}

pub fn sha256(buffers: &[Vec<u32>]) -> Vec<u32> {
    const START: [u32; 8] = [
        0x6a09_e667,
        0xbb67_ae85,
        0x3c6e_f372,
        0xa54f_f53a,
        0x510e_527f,
        0x9b05_688c,
        0x1f83_d9ab,
        0x5be0_cd19,
    ];
    let (from, words) = (&buffers[0], sha_words());
    let count = from.len() / 16;
    let one = |m: usize| {
        let mut w: [u32; 64] = [0; 64];
        for i in 0..16 {
            w[i] = from[i * count + m];
        }
        for i in 16..64 {
            let (p, q) = (w[i - 15], w[i - 2]);
            let p = p.rotate_right(7) ^ p.rotate_right(18) ^ p >> 3;
            let q = q.rotate_right(17) ^ q.rotate_right(19) ^ q >> 10;
            w[i] = w[i - 16]
                .wrapping_add(p)
                .wrapping_add(w[i - 7])
                .wrapping_add(q);
        }
        let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = START;
        for i in 0..64 {
            let t = h
                .wrapping_add(e.rotate_right(6) ^ e.rotate_right(11) ^ e.rotate_right(25))
                .wrapping_add(e & f ^ !e & g)
                .wrapping_add(words[i])
                .wrapping_add(w[i]);
            let u = (a.rotate_right(2) ^ a.rotate_right(13) ^ a.rotate_right(22))
                .wrapping_add(a & b ^ a & c ^ b & c);
            (h, g, f, e, d, c, b, a) = (g, f, e, d.wrapping_add(t), c, b, a, t.wrapping_add(u));
        }
        let sums = [a, b, c, d, e, f, g, h];
        std::array::from_fn::<u32, 8, _>(|i| sums[i].wrapping_add(START[i]))
    };
    let digests: Vec<[u32; 8]> = (0..count).into_par_iter().map(one).collect();
    (0..8)
        .flat_map(|i| digests.iter().map(move |digest| digest[i]))
        .collect()
}

pub fn search(buffers: &[Vec<u32>]) -> Vec<u32> {
    let bytes =
        |words: &[u32]| -> Vec<u8> { words.iter().flat_map(|word| word.to_le_bytes()).collect() };
    let (text, word) = (bytes(&buffers[0]), bytes(&buffers[1]));
    let word = &word[..SEARCH_LENGTH];
    let places = text.par_windows(SEARCH_LENGTH).take(buffers[2].len());
    places.map(|place| u32::from(place == word)).collect()
}

pub fn nbody(buffers: &[Vec<u32>]) -> Vec<u32> {
    let bodies = floats(&buffers[0]);
    let pull = |own: &[f32]| {
        let mut sums = [0.0_f32; 4];
        for other in bodies.chunks_exact(4) {
            let [dx, dy, dz] = [0, 1, 2].map(|axis| other[axis] - own[axis]);
            let inverse = 1.0 / (dx * dx + (dy * dy + (dz * dz + 0.01))).sqrt();
            let pull = other[3] * (inverse * inverse * inverse);
            for (sum, distance) in sums.iter_mut().zip([dx, dy, dz]) {
                *sum += distance * pull;
            }
        }
        sums
    };
    let all: Vec<[f32; 4]> = bodies.par_chunks_exact(4).map(pull).collect();
    bits(all.concat())
}
