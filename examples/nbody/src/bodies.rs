//! The bodies: their layout, their initial state, and how far two results lie apart.
//! Knows nothing of who moves them.

use std::ops::{Add, AddAssign, Mul, Sub};

/// Threads in a block of the kernel, and the unit in which bodies are counted.
pub const BLOCK: u32 = 256;

/// Length of a step; a circular orbit at the cluster's edge takes 2 pi.
pub const TIME_STEP: f64 = 0.01;

/// Square of the length below which two bodies no longer attract more strongly.
pub const SOFTENING_SQUARED: f64 = 0.01;

/// Single or double precision: what the two simulations differ in.
pub trait Real:
    Copy
    + Send
    + Sync
    + Default
    + AddAssign
    + Add<Output = Self>
    + Mul<Output = Self>
    + Sub<Output = Self>
{
    /// As the output names it.
    const PRECISION: &'static str;
    /// The kernel in `nbody.ptx`.
    const KERNEL: &'static std::ffi::CStr;
    /// By convention; nobody counts what the root really takes.
    const FLOPS_PER_INTERACTION: u32;
    /// Largest relative error that rounding may explain.
    const TOLERANCE: f64;

    fn from_f64(value: f64) -> Self;
    fn to_f64(self) -> f64;
    fn inverse_root(self) -> Self;
}

impl Real for f32 {
    const PRECISION: &'static str = "single-precision";
    const KERNEL: &'static std::ffi::CStr = c"step_f32";
    const FLOPS_PER_INTERACTION: u32 = 20;
    const TOLERANCE: f64 = 5e-4;

    fn from_f64(value: f64) -> Self {
        value as Self
    }

    fn to_f64(self) -> f64 {
        self.into()
    }

    fn inverse_root(self) -> Self {
        1.0 / self.sqrt()
    }
}

impl Real for f64 {
    const PRECISION: &'static str = "double-precision";
    const KERNEL: &'static std::ffi::CStr = c"step_f64";
    const FLOPS_PER_INTERACTION: u32 = 30;
    const TOLERANCE: Self = 1e-9;

    fn from_f64(value: f64) -> Self {
        value
    }

    fn to_f64(self) -> f64 {
        self
    }

    fn inverse_root(self) -> Self {
        1.0 / self.sqrt()
    }
}

/// Positions (the fourth is the mass) and velocities (the fourth is unused) as the kernel reads them.
#[derive(Debug, Clone, PartialEq)]
pub struct Bodies<T> {
    pub positions: Vec<[T; 4]>,
    pub velocities: Vec<[T; 4]>,
}

impl<T: Real> Bodies<T> {
    /// A round cluster of mass 1 and radius 1 that turns about its z axis. Always the same one.
    pub fn cluster(count: u32) -> Self {
        let mut random = SplitMix64(count.into());
        let mass = T::from_f64(1.0 / f64::from(count));
        let mut bodies = Self {
            positions: Vec::new(),
            velocities: Vec::new(),
        };
        while bodies.positions.len() < count as usize {
            let [x, y, z] = [(); 3].map(|()| random.next_within_one());
            if x * x + y * y + z * z > 1.0 {
                continue;
            }
            // Slower than a circular orbit everywhere, so that the cluster contracts at first.
            let velocity = [-0.5 * y, 0.5 * x, 0.0, 0.0].map(T::from_f64);
            let [x, y, z] = [x, y, z].map(T::from_f64);
            bodies.positions.push([x, y, z, mass]);
            bodies.velocities.push(velocity);
        }
        bodies
    }

    pub fn to_double(&self) -> Bodies<f64> {
        let widen = |quads: &[[T; 4]]| quads.iter().map(|quad| quad.map(T::to_f64)).collect();
        Bodies {
            positions: widen(&self.positions),
            velocities: widen(&self.velocities),
        }
    }
}

/// The largest relative error of a result, over the positions and over the changes of velocity.
///
/// The change of velocity is the force's doing alone: the velocities and positions themselves would
/// look right after one step even if no force had been calculated. An error is set against the
/// vector's length, or against the root mean square of all if that is greater, as the forces near
/// the centre cancel. NaN anywhere gives NaN.
pub fn largest_error<T: Real>(start: &Bodies<T>, end: &Bodies<T>, reference: &Bodies<f64>) -> f64 {
    let (start, end) = (start.to_double(), end.to_double());
    let origin = vec![[0.0; 4]; start.positions.len()];
    let positions = largest_error_of(&origin, &end.positions, &reference.positions);
    let kicks = largest_error_of(&start.velocities, &end.velocities, &reference.velocities);
    max_or_nan(positions, kicks)
}

fn largest_error_of(from: &[[f64; 4]], found: &[[f64; 4]], expected: &[[f64; 4]]) -> f64 {
    let lengths: Vec<f64> = from
        .iter()
        .zip(expected)
        .map(|(a, b)| distance(a, b))
        .collect();
    let squares: f64 = lengths.iter().map(|length| length * length).sum();
    let typical = (squares / lengths.len() as f64).sqrt();
    found
        .iter()
        .zip(expected)
        .zip(&lengths)
        .map(|((a, b), length)| match distance(a, b) {
            // A single body is pulled by nothing: no error, whatever it is set against.
            0.0 => 0.0,
            error => error / length.max(typical),
        })
        .fold(0.0, max_or_nan)
}

fn distance(a: &[f64; 4], b: &[f64; 4]) -> f64 {
    let squares: f64 = a
        .iter()
        .zip(b)
        .take(3)
        .map(|(a, b)| (a - b) * (a - b))
        .sum();
    squares.sqrt()
}

fn max_or_nan(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() {
        f64::NAN
    } else {
        a.max(b)
    }
}

/// Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (2014).
struct SplitMix64(u64);

impl SplitMix64 {
    fn next_within_one(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^= bits >> 31;
        (bits >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cluster_is_the_same_in_both_precisions_and_each_time() {
        let single = Bodies::<f32>::cluster(512);
        let double = Bodies::<f64>::cluster(512);
        assert_eq!(single, Bodies::<f32>::cluster(512));
        assert_eq!(single.positions.len(), 512);
        let pairs = double.positions.iter().zip(single.to_double().positions);
        assert!(
            pairs
                .into_iter()
                .all(|(double, single)| distance(double, &single) < 1e-7)
        );
    }

    #[test]
    fn a_missing_force_and_a_nan_are_seen() {
        let start = Bodies::<f64>::cluster(256);
        let mut reference = start.clone();
        for velocity in &mut reference.velocities {
            velocity[0] += 1e-6;
        }
        assert_eq!(largest_error(&start, &reference, &reference), 0.0);
        let error = largest_error(&start, &start, &reference);
        assert!((error - 1.0).abs() < 1e-9, "{error}");
        let mut broken = reference.clone();
        broken.positions[3][1] = f64::NAN;
        assert!(largest_error(&start, &broken, &reference).is_nan());
    }
}
