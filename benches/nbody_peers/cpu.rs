//! Plain Rust on all threads: body by body, and with the vector units.
//!
//! Called by `main` through `Peer`. Must not know what it is compared with.

use anyhow::Result;
use rayon::prelude::*;

use crate::Peer;
use crate::bodies::{Bodies, SOFTENING_SQUARED, TIME_STEP};

/// Bodies that a thread takes at a time.
const CHUNK: usize = 256;

/// Calculates the accelerations of the chunk of bodies that begins at an index.
type Accelerate = fn(&[[f32; 4]], usize, &mut [[f32; 3]; CHUNK]);

pub struct Cpu {
    name: String,
    accelerate: Accelerate,
    bodies: Bodies,
    next: Vec<[f32; 4]>,
}

impl Cpu {
    /// One body with one other at a time.
    pub fn scalar(start: &Bodies) -> Self {
        Self::with("Rust, scalar", scalar, start)
    }

    /// Wide vectors by the compiler and by hand; none where the CPU has no wide ones.
    pub fn vectors(start: &Bodies) -> Vec<Self> {
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f") {
                return vec![
                    Self::with("Rust, compiler's AVX-512", x86::lanes_avx512, start),
                    Self::with("Rust, AVX-512 by hand", x86::avx512, start),
                ];
            }
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                return vec![
                    Self::with("Rust, compiler's AVX2", x86::lanes_avx2, start),
                    Self::with("Rust, AVX2 by hand", x86::avx2, start),
                ];
            }
        }
        Vec::new()
    }

    fn with(name: &str, accelerate: Accelerate, start: &Bodies) -> Self {
        let name = format!("{name}, threads: {}", rayon::current_num_threads());
        Self {
            name,
            accelerate,
            bodies: start.clone(),
            next: start.positions.clone(),
        }
    }
}

impl Peer for Cpu {
    fn name(&self) -> &str {
        &self.name
    }

    fn step(&mut self) -> Result<()> {
        let Bodies {
            positions,
            velocities,
        } = &mut self.bodies;
        let chunks = self
            .next
            .par_chunks_mut(CHUNK)
            .zip(velocities.par_chunks_mut(CHUNK));
        chunks.enumerate().for_each(|(index, (next, velocities))| {
            let first = index * CHUNK;
            let mut accelerations = [[0.0; 3]; CHUNK];
            (self.accelerate)(positions, first, &mut accelerations);
            let own = positions[first..].iter().zip(&accelerations);
            for ((next, velocity), (position, acceleration)) in
                next.iter_mut().zip(velocities).zip(own)
            {
                *next = *position;
                for axis in 0..3 {
                    velocity[axis] += acceleration[axis] * TIME_STEP;
                    next[axis] += velocity[axis] * TIME_STEP;
                }
            }
        });
        std::mem::swap(positions, &mut self.next);
        Ok(())
    }

    fn velocities(&mut self) -> Result<Vec<[f32; 4]>> {
        Ok(self.bodies.velocities.clone())
    }
}

fn scalar(positions: &[[f32; 4]], first: usize, accelerations: &mut [[f32; 3]; CHUNK]) {
    for (at, acceleration) in positions[first..].iter().zip(accelerations) {
        for other in positions {
            let [dx, dy, dz] = [other[0] - at[0], other[1] - at[1], other[2] - at[2]];
            let inverse = 1.0 / (dx * dx + dy * dy + dz * dz + SOFTENING_SQUARED).sqrt();
            let pull = other[3] * (inverse * inverse * inverse);
            acceleration[0] += dx * pull;
            acceleration[1] += dy * pull;
            acceleration[2] += dz * pull;
        }
    }
}

/// `LANES` bodies side by side, in arrays that the compiler can keep in vectors.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn lanes<const LANES: usize>(
    positions: &[[f32; 4]],
    first: usize,
    accelerations: &mut [[f32; 3]; CHUNK],
) {
    for start in (0..CHUNK).step_by(LANES) {
        let own = |axis: usize| -> [f32; LANES] {
            std::array::from_fn(|lane| positions[first + start + lane][axis])
        };
        let [x, y, z] = [own(0), own(1), own(2)];
        let [mut ax, mut ay, mut az] = [[0.0f32; LANES]; 3];
        for other in positions {
            for lane in 0..LANES {
                let (dx, dy, dz) = (other[0] - x[lane], other[1] - y[lane], other[2] - z[lane]);
                let square = dx.mul_add(dx, dy.mul_add(dy, dz.mul_add(dz, SOFTENING_SQUARED)));
                let inverse = 1.0 / square.sqrt();
                let pull = other[3] * (inverse * inverse * inverse);
                ax[lane] = dx.mul_add(pull, ax[lane]);
                ay[lane] = dy.mul_add(pull, ay[lane]);
                az[lane] = dz.mul_add(pull, az[lane]);
            }
        }
        for lane in 0..LANES {
            accelerations[start + lane] = [ax[lane], ay[lane], az[lane]];
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    //! By the compiler: `lanes`, compiled for the wide vectors; the root and the division are exact.
    //! By hand: one body in each lane, four vectors of bodies at a time, the others broadcast one by one.
    //! The root is the hardware's estimate with one Newton step, as compilers make it of fast maths.

    use std::arch::x86_64::*;

    use super::{CHUNK, lanes};
    use crate::bodies::SOFTENING_SQUARED;

    macro_rules! lanes_with {
        ($name:ident, $inner:ident, $features:literal, $lanes:literal) => {
            pub(super) fn $name(all: &[[f32; 4]], first: usize, out: &mut [[f32; 3]; CHUNK]) {
                // SAFETY: `Cpu::vectors` hands this function out only after it found the features.
                unsafe { $inner(all, first, out) }
            }

            #[target_feature(enable = $features)]
            fn $inner(all: &[[f32; 4]], first: usize, out: &mut [[f32; 3]; CHUNK]) {
                lanes::<$lanes>(all, first, out);
            }
        };
    }

    lanes_with!(lanes_avx512, with_lanes_avx512, "avx512f", 16);
    lanes_with!(lanes_avx2, with_lanes_avx2, "avx2,fma", 16);

    /// Vectors of bodies under way together, to hide the latency of the chain in each.
    const GROUPS: usize = 4;

    macro_rules! accelerate_with {
        ($name:ident, $inner:ident, $features:literal, $lanes:literal, $vector:ty,
         $set:ident, $subtract:ident, $multiply:ident, $add_product:ident, $estimate:ident) => {
            pub(super) fn $name(all: &[[f32; 4]], first: usize, out: &mut [[f32; 3]; CHUNK]) {
                // SAFETY: `Cpu::vectors` hands this function out only after it found the features.
                unsafe { $inner(all, first, out) }
            }

            #[target_feature(enable = $features)]
            fn $inner(all: &[[f32; 4]], first: usize, out: &mut [[f32; 3]; CHUNK]) {
                let softening = $set(SOFTENING_SQUARED);
                let (half, three_halves) = ($set(-0.5), $set(1.5));
                for start in (0..CHUNK).step_by($lanes * GROUPS) {
                    let gather = |axis: usize| -> [$vector; GROUPS] {
                        std::array::from_fn(|group| {
                            let from = first + start + group * $lanes;
                            let lanes: [f32; $lanes] = std::array::from_fn(|l| all[from + l][axis]);
                            // SAFETY: a vector is its lanes, in this order, and nothing else.
                            unsafe { std::mem::transmute::<[f32; $lanes], $vector>(lanes) }
                        })
                    };
                    let [x, y, z] = [gather(0), gather(1), gather(2)];
                    let [mut ax, mut ay, mut az] = [[$set(0.0); GROUPS]; 3];
                    for other in all {
                        let [ox, oy, oz, mass] = other.map(|value| $set(value));
                        for g in 0..GROUPS {
                            let dx = $subtract(ox, x[g]);
                            let dy = $subtract(oy, y[g]);
                            let dz = $subtract(oz, z[g]);
                            let square = $add_product(dz, dz, softening);
                            let square = $add_product(dy, dy, square);
                            let square = $add_product(dx, dx, square);
                            let estimate = $estimate(square);
                            let squared = $multiply(estimate, estimate);
                            let correction =
                                $add_product($multiply(square, half), squared, three_halves);
                            let inverse = $multiply(estimate, correction);
                            let cube = $multiply($multiply(inverse, inverse), inverse);
                            let pull = $multiply(mass, cube);
                            ax[g] = $add_product(dx, pull, ax[g]);
                            ay[g] = $add_product(dy, pull, ay[g]);
                            az[g] = $add_product(dz, pull, az[g]);
                        }
                    }
                    for (axis, sums) in [ax, ay, az].into_iter().enumerate() {
                        for (group, sum) in sums.into_iter().enumerate() {
                            // SAFETY: an array of lanes is the vector that holds them, in this order, and nothing else.
                            let lanes: [f32; $lanes] = unsafe { std::mem::transmute(sum) };
                            for (lane, value) in lanes.into_iter().enumerate() {
                                out[start + group * $lanes + lane][axis] = value;
                            }
                        }
                    }
                }
            }
        };
    }

    accelerate_with!(
        avx512,
        with_avx512,
        "avx512f",
        16,
        __m512,
        _mm512_set1_ps,
        _mm512_sub_ps,
        _mm512_mul_ps,
        _mm512_fmadd_ps,
        _mm512_rsqrt14_ps
    );
    accelerate_with!(
        avx2,
        with_avx2,
        "avx2,fma",
        8,
        __m256,
        _mm256_set1_ps,
        _mm256_sub_ps,
        _mm256_mul_ps,
        _mm256_fmadd_ps,
        _mm256_rsqrt_ps
    );
}
