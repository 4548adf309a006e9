//! An n-body program on the CUDA driver API. It finds the driver by its soname when it runs, and
//! knows nothing of who provides it.
//!
//! `options` reads the command line, `bodies` is the state, `cpu` and `gpu` move it, `report` writes
//! the figures; `cuda` owns what `driver`, the table of functions, hands out.

mod bodies;
mod cpu;
mod cuda;
mod driver;
mod gpu;
mod options;
mod report;

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Instant;
use std::{env, fmt};

use bodies::{BLOCK, Bodies, Real};
use cuda::{Context, Cuda};
use driver::{
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
    CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, CudaError, Driver, DriverMissing,
};
use gpu::Simulation;
use options::{BadOption, DEFAULT_ITERATIONS, MAX_BODIES, Options, USAGE};

/// Bodies unless the command line or the device says otherwise: what a CPU does in a moment.
const CPU_BODIES: u32 = 4096;

fn main() -> ExitCode {
    let arguments = env::args_os()
        .skip(1)
        .map(|argument| argument.to_string_lossy().into_owned());
    let outcome = Options::parse(arguments)
        .map_err(Failure::from)
        .and_then(|options| {
            // Rust's standard output passes each line on as it ends, into pipes too.
            run(&options, &mut io::stdout())
        });
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(failure) => {
            // There is nowhere left to say that standard error is closed.
            let _ = writeln!(io::stderr(), "nbody: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// Does what the options ask for; false if a comparison failed.
fn run(options: &Options, out: &mut dyn Write) -> Result<bool, Failure> {
    if options.help {
        writeln!(out, "{USAGE}")?;
        return Ok(true);
    }
    if !options.has_mode() {
        writeln!(out, "{USAGE}\n")?;
        writeln!(
            out,
            "> Neither -benchmark nor -compare is given: -benchmark is assumed"
        )?;
    }
    match options.fp64 {
        false => run_in::<f32>(options, out),
        true => run_in::<f64>(options, out),
    }
}

fn run_in<T: Real>(options: &Options, out: &mut dyn Write) -> Result<bool, Failure> {
    let precision = if options.fp64 { "Double" } else { "Single" };
    if options.cpu {
        writeln!(out, "> Simulation with CPU")?;
        writeln!(out, "> {precision} precision floating point simulation")?;
        let bodies = round_up(options.bodies.unwrap_or(CPU_BODIES), out)?;
        return Machine::<T>::Cpu.work(options, bodies, out);
    }
    let place = if options.hostmem { "host" } else { "device" };
    let devices = options.devices.unwrap_or(1);
    writeln!(out, "> Simulation data stored in {place} memory")?;
    writeln!(out, "> {precision} precision floating point simulation")?;
    writeln!(out, "> {devices} Devices used for simulation")?;

    let cuda = Cuda::initialize(Driver::open()?)?;
    let first = options.device.unwrap_or(0);
    let present = cuda.device_count()?;
    if first.checked_add(devices).is_none_or(|end| end > present) {
        return Err(Failure::NoSuchDevice {
            first,
            devices,
            present,
        });
    }
    let mut contexts = Vec::new();
    let mut multiprocessors = 0;
    for ordinal in first..first + devices {
        let context = Context::of_device(&cuda, ordinal)?;
        let major = context.attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = context.attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        multiprocessors += context.attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        writeln!(
            out,
            "> Compute {major}.{minor} CUDA device: [{}]",
            context.name()?
        )?;
        contexts.push(context);
    }
    let bodies = options
        .bodies
        .unwrap_or(if options.compare && !options.benchmark {
            CPU_BODIES
        } else {
            // Four blocks for each multiprocessor.
            multiprocessors
                .saturating_mul(4 * BLOCK)
                .clamp(BLOCK, MAX_BODIES)
        });
    let bodies = round_up(bodies, out)?;
    if bodies / BLOCK < devices {
        return Err(Failure::TooFewBodies { devices });
    }
    let simulation = Simulation::<T>::new(&contexts, bodies, options.hostmem)?;
    Machine::Gpu(simulation).work(options, bodies, out)
}

fn round_up(bodies: u32, out: &mut dyn Write) -> io::Result<u32> {
    let rounded = bodies.next_multiple_of(BLOCK);
    if rounded != bodies {
        writeln!(
            out,
            "> {bodies} bodies are rounded up to {rounded}, a multiple of {BLOCK}"
        )?;
    }
    Ok(rounded)
}

/// What moves the bodies.
enum Machine<T> {
    Cpu,
    Gpu(Simulation<T>),
}

impl<T: Real> Machine<T> {
    fn work(mut self, options: &Options, count: u32, out: &mut dyn Write) -> Result<bool, Failure> {
        let start = Bodies::<T>::cluster(count);
        if options.benchmark || !options.compare {
            // The first step pays for loading, growing clocks and cold caches.
            self.advance(&start, 1)?;
            let steps = options.iterations.unwrap_or(DEFAULT_ITERATIONS);
            let (milliseconds, _) = self.advance(&start, steps)?;
            report::write_rates::<T>(out, count, steps, milliseconds)?;
        }
        if !options.compare {
            return Ok(true);
        }
        // The CPU needs minutes for what a device benchmarks in a moment.
        let steps = if options.benchmark {
            1
        } else {
            options.iterations.unwrap_or(1)
        };
        let (_, end) = self.advance(&start, steps)?;
        let mut reference = start.to_double();
        cpu::advance(&mut reference, steps);
        let error = bodies::largest_error(&start, &end, &reference);
        let limit = T::TOLERANCE;
        writeln!(
            out,
            "> {count} bodies after {steps} iterations: largest relative error against the CPU in double \
             precision: {error:.3e} (limit {limit:.1e})"
        )?;
        // NaN passes nothing.
        let passed = error <= limit;
        writeln!(
            out,
            "> Comparison {}",
            if passed { "passed" } else { "FAILED" }
        )?;
        Ok(passed)
    }

    /// Takes the bodies `steps` on from `start`; returns the milliseconds of it, and where they are.
    fn advance(&mut self, start: &Bodies<T>, steps: u32) -> Result<(f64, Bodies<T>), Failure> {
        match self {
            Self::Cpu => {
                let mut bodies = start.clone();
                let begin = Instant::now();
                cpu::advance(&mut bodies, steps);
                Ok((begin.elapsed().as_secs_f64() * 1e3, bodies))
            }
            Self::Gpu(simulation) => {
                simulation.upload(start)?;
                let milliseconds = simulation.advance(steps)?;
                Ok((milliseconds, simulation.download()?))
            }
        }
    }
}

/// Why the program ends with 1.
#[derive(Debug)]
enum Failure {
    Cuda(CudaError),
    Driver(DriverMissing),
    NoSuchDevice {
        first: u32,
        devices: u32,
        present: u32,
    },
    Option(BadOption),
    Output(io::Error),
    TooFewBodies {
        devices: u32,
    },
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cuda(error) => error.fmt(f),
            Self::Driver(error) => error.fmt(f),
            Self::NoSuchDevice {
                first,
                devices: 1,
                present,
            } => {
                write!(f, "no CUDA device {first}: there are {present}")
            }
            Self::NoSuchDevice {
                first,
                devices,
                present,
            } => {
                write!(
                    f,
                    "no {devices} CUDA devices from device {first} up: there are {present}"
                )
            }
            Self::Option(error) => error.fmt(f),
            Self::Output(error) => write!(f, "cannot write the output: {error}"),
            Self::TooFewBodies { devices } => {
                write!(f, "{devices} devices need at least {BLOCK} bodies each")
            }
        }
    }
}

macro_rules! failure_from {
    ($($variant:ident($error:ty);)*) => {$(
        impl From<$error> for Failure {
            fn from(error: $error) -> Self {
                Self::$variant(error)
            }
        }
    )*};
}

failure_from! {
    Cuda(CudaError);
    Driver(DriverMissing);
    Option(BadOption);
    Output(io::Error);
}
