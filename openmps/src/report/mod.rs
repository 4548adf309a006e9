//! `openmps report`: who used what while a program ran, or for a time, as one HTML file.
//!
//! [`record`] looks at the accounts, [`html`] and [`plot`] make the file; here is when it begins and ends.
//!
//! Called by `main`. Must not know what is counted.

mod html;
mod plot;
mod record;

use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use control::directories::{DEFAULT_PIPE_DIRECTORY, named_pipe_directory};
use indicatif::{ProgressBar, ProgressStyle};

pub use self::record::Recorder;
use crate::machine;
use crate::private_daemon::{PrivateDaemon, own_program};
use crate::run::exit_code;

#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// The file
    #[arg(
        short,
        long,
        value_name = "FILE",
        default_value = "openmps-report.html"
    )]
    output: PathBuf,
    /// End after so many seconds; without it and without a program, Ctrl-C ends it
    #[arg(long, value_name = "SECONDS", conflicts_with = "program", value_parser = clap::value_parser!(u64).range(1..=604_800))]
    seconds: Option<u64>,
    /// A program to run as `openmps run` does, and to report on until it ends
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    program: Vec<OsString>,
}

/// Between looks at whether it is over.
const LOOK: Duration = Duration::from_millis(50);

/// A line of progress comes when it takes longer.
const QUIET: Duration = Duration::from_secs(2);

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&interrupted))?;
    }
    let daemon = match arguments.program.is_empty() {
        true => None,
        false => private_daemon()?,
    };
    let pipe = daemon.as_ref().map(PrivateDaemon::pipe);
    let recorder = Recorder::start(pipe)?;
    let file = Output::open(&arguments.output)?;
    let mut child = match arguments.program.is_empty() {
        true => None,
        false => Some(start(&arguments.program, daemon.as_ref())?),
    };
    let begun = Instant::now();
    let bar = progress(arguments.seconds);
    let status = loop {
        if let Some(child) = &mut child
            && let Some(status) = child.try_wait()?
        {
            break Some(status);
        }
        // A program has had its own Ctrl-C, and what it still does is of interest.
        let is_over = arguments
            .seconds
            .is_some_and(|seconds| begun.elapsed().as_secs() >= seconds);
        if child.is_none() && (is_over || interrupted.load(Ordering::Relaxed)) {
            break None;
        }
        if begun.elapsed() > QUIET {
            bar.set_position(begun.elapsed().as_secs());
            bar.set_message(format!("{} clients", recorder.clients()));
        }
        std::thread::sleep(LOOK);
    };
    bar.finish_and_clear();
    let recorded = recorder.finish();
    let what = match arguments.program.is_empty() {
        true => "What was used".to_owned(),
        false => words(&arguments.program),
    };
    file.write(&recorded, &what)?;
    Ok(status.map_or(ExitCode::SUCCESS, exit_code))
}

/// The program in words, as it was written.
fn words(program: &[OsString]) -> String {
    let words: Vec<_> = program.iter().map(|word| word.to_string_lossy()).collect();
    words.join(" ")
}

/// The time here, to the minute.
fn now() -> String {
    jiff::Zoned::now().strftime("%Y-%m-%d %H:%M").to_string()
}

/// A daemon for the program alone, where none is named and none is there.
fn private_daemon() -> Result<Option<PrivateDaemon>> {
    let default = Path::new(DEFAULT_PIPE_DIRECTORY);
    if named_pipe_directory().is_some() || machine::has_daemon_at(default, machine::PATIENCE) {
        return Ok(None);
    }
    PrivateDaemon::start(|command| {
        use std::os::unix::process::CommandExt;
        command.stdout(std::process::Stdio::null()).process_group(0);
    })
    .map(Some)
}

fn start(program: &[OsString], daemon: Option<&PrivateDaemon>) -> Result<Child> {
    let mut command = Command::new(own_program()?);
    command.args(["run", "--"]).args(program);
    if let Some(daemon) = daemon {
        daemon.make_client(&mut command);
    }
    command.spawn().context("cannot start this program again")
}

/// A line on a terminal that says how far it is; nothing elsewhere.
fn progress(seconds: Option<u64>) -> ProgressBar {
    let (template, bar) = match seconds {
        Some(seconds) => ("[{bar:30}] {pos}/{len} s {msg}", ProgressBar::new(seconds)),
        None => ("{spinner} {elapsed} {msg}", ProgressBar::new_spinner()),
    };
    bar.set_style(
        ProgressStyle::with_template(template)
            .unwrap_or_else(|_| ProgressStyle::default_bar())
            .progress_chars("=> "),
    );
    bar
}

/// The file of a report, which is opened before anything is recorded, so that a wrong name is told at once.
#[derive(Debug)]
pub struct Output {
    path: PathBuf,
    file: File,
}

impl Output {
    /// Opens it; what it holds stays until the report is written.
    ///
    /// # Errors
    /// If it cannot be written to.
    pub fn open(path: &Path) -> Result<Self> {
        let file = File::options()
            .create(true)
            .write(true)
            .truncate(false)
            .open(path)
            .with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self {
            path: path.to_owned(),
            file,
        })
    }

    /// Writes what was recorded, and says so on standard error.
    pub fn write(mut self, recorded: &record::Recorded, what: &str) -> Result<()> {
        let hostname = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let about = [
            format!(
                "{} on {}, OpenMPS {}",
                now(),
                hostname.trim_end(),
                env!("CARGO_PKG_VERSION")
            ),
            format!(
                "{} clients in {}",
                recorded.clients.len(),
                plot::format_seconds(recorded.seconds())
            ),
        ];
        let html = html::page(recorded, what, &about);
        let cannot = || format!("cannot write {}", self.path.display());
        self.file
            .set_len(0)
            .and_then(|()| self.file.write_all(html.as_bytes()))
            .with_context(cannot)?;
        eprintln!("openmps: the report is in {}", self.path.display());
        Ok(())
    }
}
