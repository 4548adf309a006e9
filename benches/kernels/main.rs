//! Twenty classic kernels on the software GPU beside PoCL and plain Rust with rayon, in one run.
//!
//! `cargo xtask kernels [--filter NAME] [--rounds N]` builds all of it and runs it under OpenMPS. By itself:
//! `kernel_peers PTX [--filter NAME] [--rounds N]`, on whatever `libcuda.so.1` is found. Each result is compared with
//! plain Rust's before anything is timed.

mod cases;
mod cuda;
mod data;
mod plain;
mod pocl;

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use benches::opencl::Pocl;
use cases::Case;
use cuda::Cuda;

/// A device that runs cases.
trait Device {
    /// Memory of it.
    type Memory: Copy;

    fn upload(&mut self, words: &[u32]) -> Result<Self::Memory>;
    fn restore(&mut self, memory: Self::Memory, words: &[u32]) -> Result<()>;
    fn download(&mut self, memory: Self::Memory, words: &mut [u32]) -> Result<()>;
    /// Runs all launches of a case and waits.
    fn run(&mut self, case: &Case, memory: &[Self::Memory]) -> Result<()>;
}

struct Arguments {
    image: String,
    filter: String,
    rounds: usize,
}

impl Arguments {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self> {
        let mut parsed = Self {
            image: String::new(),
            filter: String::new(),
            rounds: 7,
        };
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().context("an option needs a value");
            match argument.as_str() {
                "--filter" => parsed.filter = value()?,
                "--rounds" => parsed.rounds = value()?.parse().context("--rounds")?,
                _ if argument.starts_with('-') => bail!("unknown option {argument}"),
                _ => parsed.image = argument,
            }
        }
        if parsed.image.is_empty() || parsed.rounds == 0 {
            bail!("kernel_peers PTX [--filter NAME] [--rounds N]");
        }
        Ok(parsed)
    }
}

fn main() -> ExitCode {
    let done = Arguments::parse(std::env::args().skip(1)).and_then(|arguments| table(&arguments));
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("kernel_peers: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// One peer of one case: the device with the case's memory, or why there is none.
struct Peer<'a, D: Device> {
    device: &'a mut D,
    memory: Vec<D::Memory>,
}

impl<'a, D: Device> Peer<'a, D> {
    /// Uploads the case, runs it once, and compares.
    fn new(device: &'a mut D, case: &Case, expected: &[u32]) -> Result<Self> {
        let memory: Result<Vec<_>> = case
            .buffers
            .iter()
            .map(|words| device.upload(words))
            .collect();
        let memory = memory?;
        device.run(case, &memory)?;
        let mut result = vec![0; case.buffers[case.result].len()];
        device.download(memory[case.result], &mut result)?;
        compare(case, &result, expected)?;
        Ok(Self { device, memory })
    }

    /// Seconds of one run.
    fn time(&mut self, case: &Case) -> Result<f64> {
        for &index in case.restored {
            self.device
                .restore(self.memory[index], &case.buffers[index])?;
        }
        let begin = Instant::now();
        self.device.run(case, &self.memory)?;
        Ok(begin.elapsed().as_secs_f64())
    }
}

fn compare(case: &Case, result: &[u32], expected: &[u32]) -> Result<()> {
    for (at, (&have, &want)) in result.iter().zip(expected).enumerate() {
        let right = match case.tolerance {
            None => have == want,
            Some(tolerance) => {
                let (have, want) = (f32::from_bits(have), f32::from_bits(want));
                (have - want).abs() <= tolerance * (1.0 + want.abs())
            }
        };
        if !right {
            bail!("element {at} is {have:#x}, not {want:#x}");
        }
    }
    if result.len() == expected.len() {
        Ok(())
    } else {
        bail!("{} elements, not {}", result.len(), expected.len())
    }
}

/// The median of some times; `None` if there are none.
fn median(mut times: Vec<f64>) -> Option<f64> {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied()
}

/// Measures and prints; whether all results were right.
fn table(arguments: &Arguments) -> Result<bool> {
    let image = std::fs::read_to_string(&arguments.image).context("the PTX")?;
    let (mut cuda, loading) = Cuda::new(&image)?;
    let mut pocl = Pocl::new(include_str!("kernels.h"), c"");
    match &pocl {
        Ok(pocl) => println!("{}, {} threads", pocl.name(), rayon::current_num_threads()),
        Err(error) => println!("no PoCL: {error:#}"),
    }
    println!(
        "{} KiB of PTX loaded in {:.1} ms; milliseconds, medians of {} rounds in turn",
        image.len() / 1024,
        loading * 1e3,
        arguments.rounds
    );
    println!(
        "{:<32} {:>9} {:>9} {:>9}  {:>7} {:>7}  {:>16}",
        "", "ours", "PoCL", "Rust", "x PoCL", "x Rust", "ours, M/s"
    );
    let (mut logarithms, mut right) = (Vec::new(), true);
    for case in cases::all() {
        if !case.name.contains(&arguments.filter) {
            continue;
        }
        let expected = (case.plain)(&case.buffers);
        let mut ours = Peer::new(&mut cuda, &case, &expected);
        let mut theirs = pocl
            .as_mut()
            .ok()
            .map(|pocl| Peer::new(pocl, &case, &expected));
        let mut times = [Vec::new(), Vec::new(), Vec::new()];
        for _ in 0..arguments.rounds {
            if let Ok(peer) = &mut ours {
                times[0].push(peer.time(&case)?);
            }
            if let Some(Ok(peer)) = &mut theirs {
                times[1].push(peer.time(&case)?);
            }
            let begin = Instant::now();
            std::hint::black_box((case.plain)(&case.buffers));
            times[2].push(begin.elapsed().as_secs_f64());
        }
        let [mine, pocls, plain] = times.map(median);
        let number = |value: Option<f64>, digits: usize| {
            value.map_or("-".into(), |value| format!("{value:.digits$}"))
        };
        let milliseconds = |time: Option<f64>| number(time.map(|time| time * 1e3), 2);
        let against = |other: Option<f64>| Some(other? / mine?);
        println!(
            "{:<32} {:>9} {:>9} {:>9}  {:>7} {:>7}  {:>9} {}",
            case.name,
            milliseconds(mine),
            milliseconds(pocls),
            milliseconds(plain),
            number(against(pocls), 2),
            number(against(plain), 2),
            number(mine.map(|time| case.work / time), 1),
            case.unit,
        );
        logarithms.extend(against(pocls).map(f64::ln));
        let failures = [ours.err(), theirs.and_then(Result::err)];
        for (who, failure) in ["ours", "PoCL"].iter().zip(failures) {
            if let Some(failure) = failure {
                println!("  {who}: {failure:#}");
                right = false;
            }
        }
    }
    if !logarithms.is_empty() {
        let mean = (logarithms.iter().sum::<f64>() / logarithms.len() as f64).exp();
        println!("geometric mean against PoCL: {mean:.2}");
    }
    Ok(right)
}
