//! Whole kernels, results checked against plain Rust.

use crate::gpu::{Args, Gpu};

#[test]
fn nbody_single() {
    let mut gpu = Gpu::new(include_str!("../../../examples/nbody/nbody.ptx"));
    let count = 512;
    let bodies: Vec<[f32; 4]> = (0..count)
        .map(|i| {
            let t = i as f32;
            [
                (t * 0.37).sin(),
                (t * 0.11).cos(),
                (t * 0.73).sin() * 0.5,
                1.0 / count as f32,
            ]
        })
        .collect();
    let positions = gpu.upload(&bodies);
    let moved = gpu.upload(&vec![[0f32; 4]; count]);
    let velocities = gpu.upload(&vec![[0f32; 4]; count]);
    let (dt, softening) = (0.016f32, 0.01f32);
    let args = Args::new()
        .ptr(moved)
        .ptr(positions)
        .ptr(velocities)
        .u32(0)
        .u32(count as u32 / 256)
        .f32(dt)
        .f32(softening);
    gpu.run("step_f32", 2, 256, &args);
    let got: Vec<[f32; 4]> = gpu.read(moved, count);
    for (i, body) in bodies.iter().enumerate() {
        let mut pull = [0f64; 3];
        for other in &bodies {
            let d: [f64; 3] = std::array::from_fn(|k| f64::from(other[k]) - f64::from(body[k]));
            let square = d.iter().map(|x| x * x).sum::<f64>() + f64::from(softening);
            let weight = f64::from(other[3]) / (square * square.sqrt());
            for k in 0..3 {
                pull[k] += d[k] * weight;
            }
        }
        for k in 0..3 {
            let dt = f64::from(dt);
            let expected = f64::from(body[k]) + pull[k] * dt * dt;
            assert!(
                (f64::from(got[i][k]) - expected).abs() < 1e-6,
                "{i} {k}: {} {expected}",
                got[i][k]
            );
        }
        assert_eq!(got[i][3], body[3]);
    }
}
