//! `openmps trace summary`.
//!
//! Called by `trace`. Must not know how rows are added up: `trace::summary` of the crate does.

use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use trace::summary::{Summary, print, print_csv};

use super::files::{self, Progress};

#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Comma-separated values, with nvprof's columns; times in nanoseconds
    #[arg(long, conflicts_with = "json")]
    csv: bool,
    /// A list of objects; times in nanoseconds
    #[arg(long)]
    json: bool,
    /// Time lines in Chrome's JSON: ours, or those of PyTorch's profiler; added up
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let mut summary = Summary::default();
    let mut open = Vec::new();
    let mut bytes = 0;
    for path in &arguments.files {
        let file = files::open(path)?;
        bytes += file.metadata()?.len();
        open.push(file);
    }
    let mut progress = Progress::new(bytes);
    for (path, file) in arguments.files.iter().zip(&open) {
        let header = summary
            .add(progress.of(path, file))
            .with_context(|| format!("cannot read {}", path.display()))?;
        if let Some(why) = header.cut_short {
            eprintln!(
                "openmps: {} ends before its end ({why}); what is there counts",
                path.display()
            );
        }
    }
    drop(progress);
    if summary.dropped() > 0 {
        eprintln!(
            "openmps: {} activities are missing: the recorder's buffer was full",
            summary.dropped()
        );
    }
    let rows = summary.rows();
    let mut text = Vec::new();
    if arguments.json {
        serde_json::to_writer_pretty(&mut text, &rows)?;
        text.push(b'\n');
    } else if arguments.csv {
        print_csv(&rows, &mut text)?;
    } else {
        print(&rows, &mut text)?;
    }
    match std::io::stdout().write_all(&text) {
        // Whoever read has seen enough.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
        result => result.context("cannot print")?,
    }
    Ok(ExitCode::SUCCESS)
}
