//! A case on PoCL, from the same text as OpenCL C.
//!
//! Called by `main`. Must not know what it is compared with.

use anyhow::Result;
use benches::opencl::{Buffer, Pocl};

use crate::Device;
use crate::cases::{Argument, Case};

impl Device for Pocl {
    type Memory = Buffer;

    fn upload(&mut self, words: &[u32]) -> Result<Buffer> {
        let buffer = self.buffer(size_of_val(words))?;
        self.write(buffer, words)?;
        Ok(buffer)
    }

    fn restore(&mut self, memory: Buffer, words: &[u32]) -> Result<()> {
        self.write(memory, words)
    }

    fn download(&mut self, memory: Buffer, words: &mut [u32]) -> Result<()> {
        self.read(words, memory)
    }

    fn run(&mut self, case: &Case, memory: &[Buffer]) -> Result<()> {
        for launch in &case.launches {
            let kernel = self.kernel(launch.kernel)?;
            for (index, argument) in launch.arguments.iter().enumerate() {
                let index = index as u32;
                match argument {
                    Argument::Buffer(buffer) => self.set(kernel, index, &memory[*buffer])?,
                    Argument::Number(number) => self.set(kernel, index, number)?,
                }
            }
            self.launch(kernel, launch.groups, launch.items)?;
        }
        self.finish()
    }
}
