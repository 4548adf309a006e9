//! A case on whatever `libcuda.so.1` is found, from the PTX that nvcc made of the kernels.
//!
//! Called by `main`. Must not know what it is compared with.

use std::ffi::c_void;
use std::ptr;

use anyhow::{Result, anyhow};
use tests::cuda::{Address, Driver, Handle};

use crate::Device;
use crate::cases::{Argument, Case};

pub struct Cuda {
    driver: Driver,
    module: Handle,
}

/// What went wrong: CUDA's code.
fn failed(code: u32) -> anyhow::Error {
    anyhow!("CUDA error {code}")
}

impl Cuda {
    /// Loads the module, and gives how many seconds that took.
    pub fn new(image: &str) -> Result<(Self, f64)> {
        let driver = Driver::open();
        driver.enter().map_err(failed)?;
        let begin = std::time::Instant::now();
        let module = driver.module(image).map_err(failed)?;
        let seconds = begin.elapsed().as_secs_f64();
        Ok((Self { driver, module }, seconds))
    }
}

impl Device for Cuda {
    type Memory = Address;

    fn upload(&mut self, words: &[u32]) -> Result<Address> {
        let address = self.driver.alloc(size_of_val(words)).map_err(failed)?;
        self.restore(address, words)?;
        Ok(address)
    }

    fn restore(&mut self, memory: Address, words: &[u32]) -> Result<()> {
        self.driver.upload(memory, words).map_err(failed)
    }

    fn download(&mut self, memory: Address, words: &mut [u32]) -> Result<()> {
        self.driver.download(words, memory).map_err(failed)
    }

    fn run(&mut self, case: &Case, memory: &[Address]) -> Result<()> {
        for launch in &case.launches {
            let function = self
                .driver
                .function(self.module, launch.kernel)
                .map_err(failed)?;
            let mut values: Vec<u64> = launch
                .arguments
                .iter()
                .map(|argument| match *argument {
                    Argument::Buffer(index) => memory[index],
                    Argument::Number(number) => number.into(),
                })
                .collect();
            let mut pointers: Vec<*mut c_void> = values
                .iter_mut()
                .map(|value| ptr::from_mut(value).cast())
                .collect();
            let ([x, y], [width, height]) = (launch.groups, launch.items);
            // SAFETY: each pointer leads to eight readable bytes, as many as any of the kernels' parameters has.
            unsafe {
                self.driver.launch_kernel(
                    function,
                    x,
                    y,
                    1,
                    width,
                    height,
                    1,
                    0,
                    0,
                    pointers.as_mut_ptr(),
                    ptr::null_mut(),
                )
            }
            .map_err(failed)?;
        }
        self.driver.synchronize().map_err(failed)
    }
}
