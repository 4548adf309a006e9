//! How fast one step of the same n-body goes by different ways on this machine, in one run:
//! PoCL, plain Rust, Rust with rayon and the vector units, and programs that print the lines of
//! `examples/nbody`, such as that one under the software GPU.
//!
//! `cargo run --release -p benches --bin nbody_peers -- [--json] [--bodies N] [--rounds N]
//! [--program "NAME=COMMAND"]...`; the command gets `-benchmark -numbodies=N -iterations=3` added:
//! `--program "software GPU=target/release/openmps run -- target/release/nbody"`.

mod bodies;
mod cpu;
mod opencl;
mod program;

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use bodies::{BLOCK, Bodies, FLOPS_PER_INTERACTION};
use cpu::Cpu;
use opencl::Pocl;
use program::Program;

/// A way to calculate that runs in this process.
pub trait Peer {
    /// As the table calls it.
    fn name(&self) -> &str;
    /// One step of all bodies; returns when it is done.
    fn step(&mut self) -> Result<()>;
    /// The velocities after the steps so far.
    fn velocities(&mut self) -> Result<Vec<[f32; 4]>>;
}

/// One line of the table.
struct Row {
    name: String,
    /// Of each round, in GFLOP/s; empty if there is a failure.
    rates: Vec<f64>,
    /// Against double precision after one step; other programs compare for themselves.
    error: Option<f64>,
    failure: Option<String>,
}

impl Row {
    fn failed(name: impl Into<String>, failure: String) -> Self {
        Self {
            name: name.into(),
            rates: Vec::new(),
            error: None,
            failure: Some(failure),
        }
    }

    fn median(&self) -> Option<f64> {
        let mut rates = self.rates.clone();
        rates.sort_by(f64::total_cmp);
        let middle = rates.len() / 2;
        match rates.len() {
            0 => None,
            odd if odd % 2 == 1 => Some(rates[middle]),
            _ => Some((rates[middle - 1] + rates[middle]) / 2.0),
        }
    }
}

fn main() -> ExitCode {
    match Arguments::parse(std::env::args().skip(1)) {
        Ok(arguments) => {
            let rows = measure(&arguments);
            if arguments.json {
                print_json(&arguments, &rows);
            } else {
                print_table(&arguments, &rows);
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("nbody_peers: {error:#}");
            ExitCode::FAILURE
        }
    }
}

struct Arguments {
    json: bool,
    bodies: usize,
    rounds: usize,
    programs: Vec<Program>,
}

impl Arguments {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self> {
        let mut parsed = Self {
            json: false,
            bodies: 14_336,
            rounds: 7,
            programs: Vec::new(),
        };
        while let Some(option) = arguments.next() {
            let mut value = || {
                arguments
                    .next()
                    .with_context(|| format!("{option} needs a value"))
            };
            match option.as_str() {
                "--json" => parsed.json = true,
                "--bodies" => parsed.bodies = number(&option, &value()?)?,
                "--rounds" => parsed.rounds = number(&option, &value()?)?,
                "--program" => parsed.programs.push(Program::parse(&value()?)?),
                _ => bail!("unknown option {option}"),
            }
        }
        if !parsed.bodies.is_multiple_of(BLOCK) {
            bail!("--bodies must be a multiple of {BLOCK}");
        }
        Ok(parsed)
    }
}

fn number(option: &str, value: &str) -> Result<usize> {
    match value.parse() {
        Ok(number) if (1..=1 << 24).contains(&number) => Ok(number),
        _ => bail!("{option} {value}: not a whole number from 1 to {}", 1 << 24),
    }
}

/// Runs the peers in turns, a step each, so that a slow minute of the machine hits them all.
fn measure(arguments: &Arguments) -> Vec<Row> {
    let start = Bodies::cube(arguments.bodies);
    let mut peers: Vec<std::result::Result<Box<dyn Peer>, Row>> = Vec::new();
    for options in [c"", c"-cl-fast-relaxed-math"] {
        let name = format!("PoCL {}", options.to_string_lossy());
        peers.push(match Pocl::new(&start, options) {
            Ok(peer) => Ok(Box::new(peer)),
            Err(error) => Err(Row::failed(name.trim_end(), format!("{error:#}"))),
        });
    }
    peers.push(Ok(Box::new(Cpu::scalar(&start))));
    let vectors = Cpu::vectors(&start);
    if vectors.is_empty() {
        let failure = "this CPU has neither AVX2 nor AVX-512";
        peers.push(Err(Row::failed("Rust, vectors", failure.into())));
    }
    for peer in vectors {
        peers.push(Ok(Box::new(peer)));
    }

    let interactions = (arguments.bodies * arguments.bodies) as f64;
    let mut rows: Vec<Row> = peers.iter_mut().map(|peer| warm_up(peer, &start)).collect();
    let mut program_rows: Vec<Row> = arguments
        .programs
        .iter()
        .map(|program| Row {
            failure: None,
            ..Row::failed(program.name(), String::new())
        })
        .collect();
    for _ in 0..arguments.rounds {
        for (peer, row) in peers.iter_mut().zip(&mut rows) {
            if let (Ok(peer), None) = (peer, &row.failure) {
                let begin = Instant::now();
                match peer.step() {
                    Ok(()) => {
                        let seconds = begin.elapsed().as_secs_f64();
                        row.rates
                            .push(interactions * FLOPS_PER_INTERACTION / seconds / 1e9);
                    }
                    Err(error) => row.failure = Some(format!("{error:#}")),
                }
            }
        }
        for (program, row) in arguments.programs.iter().zip(&mut program_rows) {
            if row.failure.is_none() {
                match program.gigaflops(arguments.bodies) {
                    Ok(rate) => row.rates.push(rate),
                    Err(error) => row.failure = Some(format!("{error:#}")),
                }
            }
        }
    }
    rows.extend(program_rows);
    rows
}

/// The first step pays for compiling and cold caches; its result is checked instead of timed.
fn warm_up(peer: &mut std::result::Result<Box<dyn Peer>, Row>, start: &Bodies) -> Row {
    let peer = match peer {
        Ok(peer) => peer,
        Err(row) => return Row::failed(row.name.clone(), row.failure.clone().unwrap_or_default()),
    };
    match peer.step().and_then(|()| peer.velocities()) {
        Ok(velocities) => Row {
            name: peer.name().to_owned(),
            rates: Vec::new(),
            error: Some(start.error_after_one_step(&velocities)),
            failure: None,
        },
        Err(error) => Row::failed(peer.name(), format!("{error:#}")),
    }
}

fn print_table(arguments: &Arguments, rows: &[Row]) {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let (bodies, rounds) = (arguments.bodies, arguments.rounds);
    println!(
        "one step of {bodies} bodies, single precision, {cores} CPUs, median of {rounds} rounds"
    );
    println!(
        "{:<44} {:>8}  {:>8} {:>8}  {:>9}",
        "", "GFLOP/s", "least", "most", "error"
    );
    for row in rows {
        let (Some(median), None) = (row.median(), &row.failure) else {
            println!(
                "{:<44} {}",
                row.name,
                row.failure.as_deref().unwrap_or("not measured")
            );
            continue;
        };
        let least = row.rates.iter().copied().fold(f64::INFINITY, f64::min);
        let most = row.rates.iter().copied().fold(0.0, f64::max);
        let error = row.error.map_or("-".into(), |error| format!("{error:.1e}"));
        println!(
            "{:<44} {median:>8.1}  {least:>8.1} {most:>8.1}  {error:>9}",
            row.name
        );
    }
}

fn print_json(arguments: &Arguments, rows: &[Row]) {
    let rows: Vec<_> = rows
        .iter()
        .map(|row| {
            serde_json::json!({
                "name": row.name,
                "gflops": row.median(),
                "rounds": row.rates,
                "error": row.error,
                "failure": row.failure,
            })
        })
        .collect();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    println!(
        "{:#}",
        serde_json::json!({ "bodies": arguments.bodies, "cpus": cores, "rows": rows })
    );
}
