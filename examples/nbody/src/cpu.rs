//! The same simulation on the CPU's threads: `-cpu`, and what `-compare` compares with.
//!
//! Called by `main`. Must not know CUDA.

use std::thread;

use crate::bodies::{Bodies, Real, SOFTENING_SQUARED, TIME_STEP};

/// Bodies calculated at a time, so that the compiler can lay them side by side in vectors.
const LANES: usize = 8;

/// Moves the bodies on by `steps`, on as many threads as the process may use.
pub fn advance<T: Real>(bodies: &mut Bodies<T>, steps: u32) {
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let share = bodies
        .positions
        .len()
        .div_ceil(threads)
        .next_multiple_of(LANES);
    let mut next = bodies.positions.clone();
    for _ in 0..steps {
        let positions = &bodies.positions;
        thread::scope(|scope| {
            let shares = next
                .chunks_mut(share)
                .zip(bodies.velocities.chunks_mut(share));
            for (index, (next, velocities)) in shares.enumerate() {
                scope.spawn(move || advance_share(positions, index * share, next, velocities));
            }
        });
        std::mem::swap(&mut bodies.positions, &mut next);
    }
}

fn advance_share<T: Real>(
    positions: &[[T; 4]],
    first: usize,
    next: &mut [[T; 4]],
    velocities: &mut [[T; 4]],
) {
    let time_step = T::from_f64(TIME_STEP);
    let lanes = next.chunks_mut(LANES).zip(velocities.chunks_mut(LANES));
    for (index, (next, velocities)) in lanes.enumerate() {
        let accelerations = accelerations(positions, first + index * LANES);
        for (lane, (next, velocity)) in next.iter_mut().zip(velocities).enumerate() {
            *next = positions[first + index * LANES + lane];
            for axis in 0..3 {
                velocity[axis] += accelerations[axis][lane] * time_step;
                next[axis] += velocity[axis] * time_step;
            }
        }
    }
}

/// The accelerations of `LANES` bodies from `first` on, by axis. Lanes beyond the last body are spare.
fn accelerations<T: Real>(positions: &[[T; 4]], first: usize) -> [[T; LANES]; 3] {
    let softening_squared = T::from_f64(SOFTENING_SQUARED);
    let mut own = [[T::default(); LANES]; 3];
    for (lane, position) in positions[first..].iter().take(LANES).enumerate() {
        for axis in 0..3 {
            own[axis][lane] = position[axis];
        }
    }
    let [x, y, z] = own;
    let [mut ax, mut ay, mut az] = [[T::default(); LANES]; 3];
    for other in positions {
        for lane in 0..LANES {
            let dx = other[0] - x[lane];
            let dy = other[1] - y[lane];
            let dz = other[2] - z[lane];
            let inverse = (dx * dx + dy * dy + dz * dz + softening_squared).inverse_root();
            let pull = other[3] * (inverse * inverse * inverse);
            ax[lane] += dx * pull;
            ay[lane] += dy * pull;
            az[lane] += dz * pull;
        }
    }
    [ax, ay, az]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bodies::largest_error;

    /// The sum as a textbook writes it, against the vectorised one with its threads.
    #[test]
    fn agrees_with_the_plain_sum() {
        // Not a multiple of the lanes.
        let start = Bodies::<f64>::cluster(301);
        let mut plain = start.clone();
        for (body, velocity) in plain.velocities.iter_mut().enumerate() {
            let at = start.positions[body];
            let mut acceleration = [0.0; 3];
            for other in &start.positions {
                let offset = [0, 1, 2].map(|axis| other[axis] - at[axis]);
                let square: f64 = offset.iter().map(|along| along * along).sum();
                let cube = (square + SOFTENING_SQUARED).powf(1.5);
                for axis in 0..3 {
                    acceleration[axis] += other[3] * offset[axis] / cube;
                }
            }
            for axis in 0..3 {
                velocity[axis] += acceleration[axis] * TIME_STEP;
                plain.positions[body][axis] += velocity[axis] * TIME_STEP;
            }
        }
        let mut double = start.clone();
        advance(&mut double, 1);
        let error = largest_error(&start, &double, &plain);
        assert!(error < 1e-12, "{error}");

        let single_start = Bodies::<f32>::cluster(301);
        let mut single = single_start.clone();
        advance(&mut single, 1);
        let error = largest_error(&single_start, &single, &plain);
        assert!(error > 0.0 && error < f32::TOLERANCE, "{error}");
    }

    #[test]
    fn momentum_is_kept() {
        let mut bodies = Bodies::<f64>::cluster(256);
        let momentum = |bodies: &Bodies<f64>| {
            let sum = |axis: usize| {
                bodies
                    .velocities
                    .iter()
                    .map(|velocity| velocity[axis])
                    .sum()
            };
            [0, 1, 2].map(sum)
        };
        let before: [f64; 3] = momentum(&bodies);
        advance(&mut bodies, 20);
        for (before, after) in before.into_iter().zip(momentum(&bodies)) {
            assert!((before - after).abs() < 1e-9, "{before} {after}");
        }
    }
}
