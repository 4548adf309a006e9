//! `openmps demo`: n-body programs that know nothing of OpenMPS share one device through it.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use comfy_table::{CellAlignment, Table};
use serde::Serialize;

use crate::embedded;
use crate::private_daemon::PrivateDaemon;
use crate::run::put_first_on_loader_path;
use crate::screen::Screen;

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
}

/// What one program reported.
#[derive(Clone, Debug, Default, Serialize)]
struct Measured {
    client: String,
    gflops: f64,
    milliseconds: f64,
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
    let daemon_lines = screen.prefix_lines("mps-daemon", said);
    let stage = Stage::new(&daemon, arguments, &screen, &stop)?;

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
        })
    })();
    drop(stage);
    drop(daemon);
    daemon_lines.join().ok();
    if stop.load(Ordering::Relaxed) {
        // As a shell says of a program that SIGINT ended.
        return Ok(ExitCode::from(130));
    }
    let report = result?;
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        println!("\n{}", table(&report));
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

fn parse_percentage(text: &str) -> Result<String, String> {
    match text.parse::<f32>() {
        Ok(value) if value > 0.0 && value <= 100.0 => Ok(text.to_owned()),
        _ => Err("expected a number above 0 and up to 100".to_owned()),
    }
}

/// Where the programs run: everything that their starts have in common.
#[derive(Debug)]
struct Stage<'a> {
    daemon: &'a PrivateDaemon,
    arguments: &'a Arguments,
    screen: &'a Screen,
    stop: &'a AtomicBool,
    library: PathBuf,
    nbody: PathBuf,
}

impl<'a> Stage<'a> {
    fn new(
        daemon: &'a PrivateDaemon,
        arguments: &'a Arguments,
        screen: &'a Screen,
        stop: &'a AtomicBool,
    ) -> Result<Self> {
        let library = daemon.folder().join("lib");
        embedded::client_library_in(&library)?;
        let nbody = embedded::nbody_in(daemon.folder())?;
        Ok(Self {
            daemon,
            arguments,
            screen,
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
        self.watched(
            &label,
            names
                .iter()
                .map(|name| self.start(name, "-benchmark", self.arguments.iterations))
                .collect(),
        )
    }

    fn run_one_by_one(&self) -> Result<Vec<Measured>> {
        (1..=self.arguments.clients)
            .map(|n| {
                let label = format!(
                    "the same work one after another: {n} of {}",
                    self.arguments.clients
                );
                let name = format!("alone_{n}");
                let mut runs = self.watched(
                    &label,
                    vec![self.start(&name, "-benchmark", self.arguments.iterations)],
                )?;
                runs.pop().context("one program, one result")
            })
            .collect()
    }

    fn compare(&self) -> Result<f64> {
        // One step: the CPU takes its time with all pairs in double precision.
        let program = self.start("compare", "-compare", 1);
        let (_, lines) = self
            .outputs("comparing with the CPU", vec![program])?
            .remove(0);
        number_after(&lines, "relative error").context("the comparison printed no error")
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
        self.daemon.adopt(&mut command);
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
            lines: vec![
                self.screen.prefix_lines(name, out),
                self.screen.prefix_lines(name, err),
            ],
            child,
        })
    }

    fn watched(&self, label: &str, programs: Vec<Result<Program>>) -> Result<Vec<Measured>> {
        self.outputs(label, programs)?
            .into_iter()
            .map(|(client, lines)| {
                Ok(Measured {
                    gflops: number_before(&lines, "single-precision GFLOP/s")
                        .context("the program printed no GFLOP/s")?,
                    milliseconds: number_before(&lines, "ms")
                        .context("the program printed no time")?,
                    client,
                })
            })
            .collect()
    }

    /// Waits for programs, shows that time passes, and gives each one's lines.
    fn outputs(
        &self,
        label: &str,
        programs: Vec<Result<Program>>,
    ) -> Result<Vec<(String, Vec<String>)>> {
        let mut programs = programs.into_iter().collect::<Result<Vec<_>>>()?;
        let bar = self.screen.busy(label);
        let mut failed = None;
        for program in &mut programs {
            while program.child.try_wait()?.is_none() {
                if self.stop.load(Ordering::Relaxed) {
                    bar.finish_and_clear();
                    bail!("interrupted");
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            if !program.child.wait()?.success() {
                failed.get_or_insert_with(|| program.name.clone());
            }
        }
        bar.finish_and_clear();
        if let Some(name) = failed {
            bail!("{name} failed");
        }
        programs.into_iter().map(Program::finish).collect()
    }
}

/// A started program; dropping it ends it.
#[derive(Debug)]
struct Program {
    name: String,
    child: Child,
    lines: Vec<JoinHandle<Vec<String>>>,
}

impl Program {
    /// The lines that the program printed, once it has ended.
    fn finish(mut self) -> Result<(String, Vec<String>)> {
        let mut lines = Vec::new();
        for reader in self.lines.drain(..) {
            lines.extend(
                reader
                    .join()
                    .ok()
                    .context("reading a program's output failed")?,
            );
        }
        Ok((self.name.clone(), lines))
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
