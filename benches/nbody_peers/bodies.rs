//! The state that every peer starts from, and the check that it calculated the right thing.
//!
//! Called by `main` and by every peer. Must not know how a step is calculated.

/// Threads in a work-group; the number of bodies is a multiple of it.
pub const BLOCK: usize = 256;
pub const TIME_STEP: f32 = 0.01;
pub const SOFTENING_SQUARED: f32 = 0.01;
/// By the convention of the CUDA sample, so that all figures can be set beside each other.
pub const FLOPS_PER_INTERACTION: f64 = 20.0;

/// Positions with the mass as the fourth, velocities with an unused fourth.
#[derive(Clone)]
pub struct Bodies {
    pub positions: Vec<[f32; 4]>,
    pub velocities: Vec<[f32; 4]>,
}

impl Bodies {
    /// A cube of bodies at rest, of mass 1 together.
    pub fn cube(count: usize) -> Self {
        let mut state = 1u64;
        let mut random = || {
            // Knuth's MMIX generator; its upper bits are good enough to scatter bodies.
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1u32 << 23) as f32 - 1.0
        };
        let mass = 1.0 / count as f32;
        let positions = (0..count)
            .map(|_| [random(), random(), random(), mass])
            .collect();
        Self {
            positions,
            velocities: vec![[0.0; 4]; count],
        }
    }

    /// The largest relative error of `velocities`, one step after this state (at rest), against
    /// double precision. Looks at every 61st body: all would take longer than the benchmark.
    pub fn error_after_one_step(&self, velocities: &[[f32; 4]]) -> f64 {
        let mut largest = 0.0;
        for (at, found) in self.positions.iter().zip(velocities).step_by(61) {
            let mut expected = [0.0; 3];
            for other in &self.positions {
                let offset = [0, 1, 2].map(|axis| f64::from(other[axis]) - f64::from(at[axis]));
                let square: f64 = offset.iter().map(|along| along * along).sum();
                let distance = (square + f64::from(SOFTENING_SQUARED)).sqrt();
                for axis in 0..3 {
                    expected[axis] += f64::from(other[3]) * offset[axis] / distance.powi(3);
                }
            }
            let expected = expected.map(|kick| kick * f64::from(TIME_STEP));
            let length = |v: [f64; 3]| v.iter().map(|along| along * along).sum::<f64>().sqrt();
            let difference = [0, 1, 2].map(|axis| f64::from(found[axis]) - expected[axis]);
            let error = length(difference) / length(expected);
            if error.is_nan() || error > largest {
                largest = error;
            }
        }
        largest
    }
}
