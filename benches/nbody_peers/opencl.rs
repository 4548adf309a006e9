//! The same step by PoCL.
//!
//! Called by `main` through `Peer`. Must not know what it is compared with.

use std::ffi::CStr;

use anyhow::Result;
use benches::opencl::{self, Buffer, Kernel};

use crate::Peer;
use crate::bodies::{BLOCK, Bodies, SOFTENING_SQUARED, TIME_STEP};

pub struct Pocl {
    name: String,
    device: opencl::Pocl,
    kernel: Kernel,
    positions: [Buffer; 2],
    velocities: Buffer,
    present: usize,
    count: usize,
}

impl Pocl {
    /// Builds the kernel with the given options and uploads the bodies.
    pub fn new(start: &Bodies, options: &CStr) -> Result<Self> {
        let device = opencl::Pocl::new(include_str!("nbody.cl"), options)?;
        let kernel = device.kernel("nbody_step")?;
        let size = size_of_val(&start.positions[..]);
        let [even, odd, velocities] = [
            device.buffer(size)?,
            device.buffer(size)?,
            device.buffer(size)?,
        ];
        device.write(even, &start.positions)?;
        device.write(velocities, &start.velocities)?;
        let name = format!("{} {}", device.name(), options.to_string_lossy());
        Ok(Self {
            name: name.trim_end().to_owned(),
            device,
            kernel,
            positions: [even, odd],
            velocities,
            present: 0,
            count: start.positions.len(),
        })
    }
}

impl Peer for Pocl {
    fn name(&self) -> &str {
        &self.name
    }

    fn step(&mut self) -> Result<()> {
        let (device, kernel) = (&self.device, self.kernel);
        let groups = (self.count / BLOCK) as u32;
        device.set(kernel, 0, &self.positions[1 - self.present])?;
        device.set(kernel, 1, &self.positions[self.present])?;
        device.set(kernel, 2, &self.velocities)?;
        device.set(kernel, 3, &groups)?;
        device.set(kernel, 4, &TIME_STEP)?;
        device.set(kernel, 5, &SOFTENING_SQUARED)?;
        device.launch(kernel, [groups, 1], [BLOCK as u32, 1])?;
        device.finish()?;
        self.present = 1 - self.present;
        Ok(())
    }

    fn velocities(&mut self) -> Result<Vec<[f32; 4]>> {
        let mut values = vec![[0.0; 4]; self.count];
        self.device.read(&mut values, self.velocities)?;
        Ok(values)
    }
}
