//! `openmps demo`: n-body programs that know nothing of OpenMPS share one device through it.
//!
//! It starts a private daemon and the programs, measures from outside, and ends with a table and a picture. It must not
//! know how a daemon or a client works. Called by `main`.

mod picture;

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use comfy_table::{CellAlignment, Table};
use indicatif::ProgressBar;
use serde::Serialize;

use crate::embedded;
use crate::private_daemon::PrivateDaemon;
use crate::report;
use crate::run::put_first_on_loader_path;
use crate::screen::{Screen, lines_to_file};
use picture::{Bar, Phase};

#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// How many programs share the device
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=64))]
    clients: u32,
    /// Bodies of each simulation
    #[arg(long, default_value_t = 14_336, value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    bodies: u32,
    /// Steps of each simulation
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    iterations: u32,
    /// Active thread percentage of each program
    #[arg(long, default_value = "33", value_parser = parse_percentage)]
    percentage: String,
    /// Print the result as JSON, and nothing else on standard output
    #[arg(long)]
    json: bool,
    /// Write a picture of when each program ran
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Write a report of who used what: an HTML file with plots
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Print what the daemon says, too
    #[arg(long, short)]
    verbose: bool,
}

/// What one program reported.
#[derive(Clone, Debug, Default, Serialize)]
struct Measured {
    client: String,
    gflops: f64,
    milliseconds: f64,
    /// From the beginning of the programs side by side, or of the first of those one after another.
    #[serde(skip)]
    began: Duration,
    #[serde(skip)]
    ended: Duration,
}

#[derive(Debug, Serialize)]
struct Report {
    bodies: u32,
    iterations: u32,
    percentage: String,
    together: Vec<Measured>,
    together_gflops: f64,
    one_after_another_gflops: f64,
    largest_relative_error: f64,
    #[serde(skip)]
    one_by_one: Vec<Measured>,
}

impl Report {
    fn title(&self) -> String {
        format!(
            "{} n-body programs on one device, {} bodies, {} steps, {} % each",
            self.together.len(),
            self.bodies,
            self.iterations,
            self.percentage
        )
    }

    fn phases(&self) -> [Phase; 2] {
        let bars = |runs: &[Measured]| {
            runs.iter()
                .map(|run| Bar {
                    name: run.client.clone(),
                    began: run.began,
                    ended: run.ended,
                })
                .collect()
        };
        [
            Phase {
                title: "side by side, from start to end of each process".to_owned(),
                colour: "#3d84a8",
                bars: bars(&self.together),
            },
            Phase {
                title: "the same work one after another".to_owned(),
                colour: "#d08a3c",
                bars: bars(&self.one_by_one),
            },
        ]
    }
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    let screen = Screen::new(arguments.json);
    let mut daemon = PrivateDaemon::start(|command| {
        // A group of its own: Ctrl-C is for this process, which ends the clients before the daemon.
        command
            .stdout(Stdio::piped())
            .process_group(0)
            .env("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", &arguments.percentage);
    })?;
    let said = daemon.stdout().context("the daemon's output is a pipe")?;
    let log = tempfile::Builder::new()
        .prefix("openmps-demo-")
        .suffix(".log")
        .tempfile()
        .context("cannot make a file for the daemon's lines")?;
    let daemon_lines = if arguments.verbose {
        screen.prefix_lines("mps-daemon", said)
    } else {
        lines_to_file(&Arc::new(log.reopen()?), said)
    };
    let output = arguments.report.as_deref().map(report::Output::open);
    let output = output.transpose()?;
    let recorder = match output {
        Some(_) => Some(report::Recorder::start(Some(daemon.pipe()))?),
        None => None,
    };
    let bar = screen.bar(u64::from(arguments.clients) * 2 + 1);
    let stage = DemoRun::new(&daemon, arguments, &screen, &bar, &stop)?;

    let result = (|| {
        let together = stage.run_together()?;
        let one_by_one = stage.run_one_by_one()?;
        let error = stage.compare()?;
        // All programs do the same work, so rates add up over the time that all of them took.
        let work = |runs: &[Measured]| {
            runs.iter()
                .map(|run| run.gflops * run.milliseconds)
                .sum::<f64>()
        };
        let longest = together
            .iter()
            .map(|run| run.milliseconds)
            .fold(0.0, f64::max);
        let sum = one_by_one.iter().map(|run| run.milliseconds).sum::<f64>();
        Ok::<_, anyhow::Error>(Report {
            bodies: arguments.bodies,
            iterations: arguments.iterations,
            percentage: arguments.percentage.clone(),
            together_gflops: work(&together) / longest,
            one_after_another_gflops: work(&one_by_one) / sum,
            largest_relative_error: error,
            together,
            one_by_one,
        })
    })();
    bar.finish_and_clear();
    drop(stage);
    let recorded = recorder.map(report::Recorder::finish);
    drop(daemon);
    daemon_lines.join().ok();
    if stop.load(Ordering::Relaxed) {
        // As a shell says of a program that SIGINT ended.
        return Ok(ExitCode::from(130));
    }
    let report = match result {
        Err(error) if !arguments.verbose => {
            let (_, path) = log.keep().context("cannot keep the daemon's lines")?;
            return Err(error.context(format!("what the daemon said is in {}", path.display())));
        }
        result => result?,
    };
    if let Some(file) = &arguments.svg {
        std::fs::write(file, picture::svg(&report.title(), &report.phases()))
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    if let (Some(output), Some(recorded)) = (output, recorded) {
        output.write(&recorded, &report.title())?;
    }
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        println!(
            "\n{}\n\n{}",
            table(&report),
            picture::text(&report.phases())
        );
    }
    Ok(ExitCode::SUCCESS)
}

fn table(report: &Report) -> Table {
    let mut table = Table::new();
    table.load_style(comfy_table::presets::ASCII_MARKDOWN);
    table.set_header(["", "GFLOP/s", "ms"]);
    for run in &report.together {
        table.add_row([
            run.client.clone(),
            format!("{:.1}", run.gflops),
            format!("{:.0}", run.milliseconds),
        ]);
    }
    table.add_row([
        "all together",
        &format!("{:.1}", report.together_gflops),
        "",
    ]);
    table.add_row([
        "the same, one after another",
        &format!("{:.1}", report.one_after_another_gflops),
        "",
    ]);
    table.add_row([
        "largest relative error against the CPU",
        &format!("{:.1e}", report.largest_relative_error),
        "",
    ]);
    for column in [1, 2] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

fn parse_percentage(text: &str) -> Result<String> {
    match text.parse::<f32>() {
        Ok(value) if value > 0.0 && value <= 100.0 => Ok(text.to_owned()),
        _ => bail!("expected a number above 0 and up to 100"),
    }
}

/// Where the programs run: everything that their starts have in common.
#[derive(Debug)]
struct DemoRun<'a> {
    daemon: &'a PrivateDaemon,
    arguments: &'a Arguments,
    screen: &'a Screen,
    bar: &'a ProgressBar,
    stop: &'a AtomicBool,
    library: PathBuf,
    nbody: PathBuf,
}

impl<'a> DemoRun<'a> {
    fn new(
        daemon: &'a PrivateDaemon,
        arguments: &'a Arguments,
        screen: &'a Screen,
        bar: &'a ProgressBar,
        stop: &'a AtomicBool,
    ) -> Result<Self> {
        let library = daemon.folder().join("lib");
        embedded::client_library_in(&library)?;
        let nbody = embedded::nbody_in(daemon.folder())?;
        Ok(Self {
            daemon,
            arguments,
            screen,
            bar,
            stop,
            library,
            nbody,
        })
    }

    fn run_together(&self) -> Result<Vec<Measured>> {
        let names: Vec<String> = (1..=self.arguments.clients)
            .map(|n| format!("nbody_{n}"))
            .collect();
        let label = format!("{} programs side by side", names.len());
        let beginning = Instant::now();
        self.watched(
            &label,
            beginning,
            names
                .iter()
                .map(|name| self.start(name, "-benchmark", self.arguments.iterations))
                .collect(),
        )
    }

    fn run_one_by_one(&self) -> Result<Vec<Measured>> {
        let beginning = Instant::now();
        (1..=self.arguments.clients)
            .map(|n| {
                let label = format!(
                    "the same work one after another: {n} of {}",
                    self.arguments.clients
                );
                let name = format!("alone_{n}");
                let mut runs = self.watched(
                    &label,
                    beginning,
                    vec![self.start(&name, "-benchmark", self.arguments.iterations)],
                )?;
                runs.pop().context("one program, one result")
            })
            .collect()
    }

    fn compare(&self) -> Result<f64> {
        // One step: the CPU takes its time with all pairs in double precision.
        let program = self.start("compare", "-compare", 1);
        let outputs = self.outputs("comparing with the CPU", vec![program])?;
        let output = outputs.first().context("one program, one result")?;
        number_after(&output.lines, "relative error").context("the comparison printed no error")
    }

    /// Starts one n-body program as a client; its lines go to the screen and into the result.
    fn start(&self, name: &str, mode: &str, iterations: u32) -> Result<Program> {
        let mut command = Command::new(&self.nbody);
        command
            .arg(mode)
            .arg(format!("-numbodies={}", self.arguments.bodies))
            .arg(format!("-iterations={iterations}"))
            .env(
                "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
                &self.arguments.percentage,
            )
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        self.daemon.make_client(&mut command);
        put_first_on_loader_path(&mut command, &self.library);
        let mut child = command.spawn().context("cannot start the n-body program")?;
        let out = child
            .stdout
            .take()
            .context("the program's output is a pipe")?;
        let err = child
            .stderr
            .take()
            .context("the program's errors are a pipe")?;
        Ok(Program {
            name: name.to_owned(),
            began: Instant::now(),
            ended: None,
            lines: vec![
                self.screen.prefix_lines(name, out),
                self.screen.prefix_lines(name, err),
            ],
            child,
        })
    }

    /// What programs measured, and when they ran, counted from `beginning`.
    fn watched(
        &self,
        label: &str,
        beginning: Instant,
        programs: Vec<Result<Program>>,
    ) -> Result<Vec<Measured>> {
        self.outputs(label, programs)?
            .into_iter()
            .map(|output| {
                Ok(Measured {
                    gflops: number_before(&output.lines, "single-precision GFLOP/s")
                        .context("the program printed no GFLOP/s")?,
                    milliseconds: number_before(&output.lines, "ms")
                        .context("the program printed no time")?,
                    client: output.name,
                    began: output.began - beginning,
                    ended: output.ended - beginning,
                })
            })
            .collect()
    }

    /// Waits for programs, moves the bar on as each ends, and gives each one's lines.
    fn outputs(&self, label: &str, programs: Vec<Result<Program>>) -> Result<Vec<Output>> {
        let mut programs = programs.into_iter().collect::<Result<Vec<_>>>()?;
        self.bar.set_message(label.to_owned());
        let mut failed = None;
        while programs.iter().any(|program| program.ended.is_none()) {
            for program in programs.iter_mut().filter(|one| one.ended.is_none()) {
                let Some(status) = program.child.try_wait()? else {
                    continue;
                };
                program.ended = Some(Instant::now());
                self.bar.inc(1);
                if !status.success() {
                    failed.get_or_insert_with(|| program.name.clone());
                }
            }
            if self.stop.load(Ordering::Relaxed) {
                bail!("interrupted");
            }
            std::thread::sleep(BETWEEN_LOOKS);
        }
        if let Some(name) = failed {
            bail!("{name} failed");
        }
        programs.into_iter().map(Program::finish).collect()
    }
}

/// Between looks at running programs: also how exact the picture is.
const BETWEEN_LOOKS: Duration = Duration::from_millis(5);

/// What a program that has ended printed, and when it ran.
#[derive(Debug)]
struct Output {
    name: String,
    lines: Vec<String>,
    began: Instant,
    ended: Instant,
}

/// A started program; dropping it ends it.
#[derive(Debug)]
struct Program {
    name: String,
    child: Child,
    began: Instant,
    /// None while it runs.
    ended: Option<Instant>,
    lines: Vec<JoinHandle<Vec<String>>>,
}

impl Program {
    /// The lines that the program printed, once it has ended.
    fn finish(mut self) -> Result<Output> {
        let ended = self.ended.context("the program has not ended")?;
        let mut lines = Vec::new();
        for reader in self.lines.drain(..) {
            lines.extend(
                reader
                    .join()
                    .ok()
                    .context("reading a program's output failed")?,
            );
        }
        Ok(Output {
            name: self.name.clone(),
            lines,
            began: self.began,
            ended,
        })
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// The number that stands right before `unit` on the first line that has both.
fn number_before(lines: &[String], unit: &str) -> Option<f64> {
    lines.iter().find_map(|line| {
        let (before, _) = line.split_once(unit)?;
        before.split_whitespace().next_back()?.parse().ok()
    })
}

/// The number that stands first after `label` on the first line that has both.
fn number_after(lines: &[String], label: &str) -> Option<f64> {
    lines.iter().find_map(|line| {
        let (_, after) = line.split_once(label)?;
        let number = |word: &str| word.trim_end_matches([',', ';', ')']).parse().ok();
        after.split_whitespace().find_map(number)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read_from_the_programs_lines() {
        let lines = [
            "14336 bodies, total time for 10 iterations: 123.456 ms".to_owned(),
            "= 16.648 billion interactions per second".to_owned(),
            "= 332.953 single-precision GFLOP/s at 20 flops per interaction".to_owned(),
        ];
        assert_eq!(number_before(&lines, "ms"), Some(123.456));
        assert_eq!(
            number_before(&lines, "single-precision GFLOP/s"),
            Some(332.953)
        );
        assert_eq!(number_before(&lines, "double-precision GFLOP/s"), None);
        let lines = ["largest relative error 1.5e-06 (allowed 1e-3)".to_owned()];
        assert_eq!(number_after(&lines, "relative error"), Some(1.5e-6));
    }

    #[test]
    fn percentages_are_checked() {
        assert!(parse_percentage("33.3").is_ok());
        for wrong in ["0", "101", "-1", "abc", "NaN", ""] {
            assert!(parse_percentage(wrong).is_err(), "{wrong}");
        }
    }
}
