//! `openmps trace merge`: one file of several, and with one file, another form of it.
//!
//! Called by `trace`. Must not know how clocks are put together: `trace::merge` of the crate does.

use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use trace::chrome::read::{ReadError, read};
use trace::merge::{self, Merge};
use trace::output::Output;
use trace::perfetto::Converter;

use super::files::{self, Progress};

#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Where the merged time line is written
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Chrome's JSON, or Perfetto's own form, which is smaller to load
    #[arg(long, value_enum, default_value_t = Format::Chrome)]
    format: Format,
    /// Write over a file that is there
    #[arg(short, long)]
    force: bool,
    /// Time lines in Chrome's JSON: ours, or those of PyTorch's profiler
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
}

/// The forms of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// JSON, for Perfetto, chrome://tracing and TensorBoard
    Chrome,
    /// Protobuf, for Perfetto
    Perfetto,
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let (output, format) = (&arguments.output, arguments.format);
    merge_files(&arguments.files, output, format, arguments.force)?;
    Ok(ExitCode::SUCCESS)
}

/// Makes one file of several.
pub fn merge_files(paths: &[PathBuf], output: &Path, format: Format, force: bool) -> Result<()> {
    let mut open = Vec::new();
    let mut bytes = 0;
    let there = std::fs::metadata(output)
        .ok()
        .map(|facts| (facts.dev(), facts.ino()));
    for path in paths {
        let file = files::open(path)?;
        let facts = file.metadata()?;
        ensure!(
            there != Some((facts.dev(), facts.ino())),
            "{} would be written over while it is read: give another name to -o",
            path.display()
        );
        bytes += facts.len();
        open.push(file);
    }
    // Each is read twice, and for Perfetto's form three times: a name may stand behind what it names.
    let passes = if format == Format::Perfetto { 3 } else { 2 };
    let mut progress = Progress::new(bytes * passes);
    let mut looked = Merge::default();
    for (path, file) in paths.iter().zip(&open) {
        let remarks = looked.look(progress.of(path, file));
        for remark in remarks.with_context(|| cannot_read(path))? {
            eprintln!("openmps: {}: {remark}", path.display());
        }
    }
    let (wall_ns, places) = looked.places();
    let mut events =
        |take: &mut dyn FnMut(trace::chrome::read::Entry) -> std::io::Result<()>| -> Result<()> {
            for ((path, file), place) in paths.iter().zip(&open).zip(&places) {
                rewind(file)?;
                let end = read(progress.of(path, file), |entry| take(place.moved(entry)));
                match end {
                    Err(ReadError::Io(error)) => {
                        return Err(error).context("the result has only what came before");
                    }
                    end => {
                        end.with_context(|| cannot_read(path))?;
                    }
                }
            }
            Ok(())
        };
    let cannot_write = || format!("cannot write {}", output.display());
    match format {
        Format::Chrome => {
            let (head, tail) = merge::frame(wall_ns);
            let storage = files::create(output, force)?;
            let mut out = Output::new(storage, head.as_bytes(), tail).with_context(cannot_write)?;
            events(&mut |entry| out.append(&merge::text(&entry)?)).with_context(cannot_write)?;
            out.flush().with_context(cannot_write)
        }
        Format::Perfetto => {
            let mut converter = Converter::new(wall_ns);
            events(&mut |entry| {
                converter.look(&entry);
                Ok(())
            })?;
            let storage = files::create(output, force)?;
            let mut out = Output::new(storage, &[], &[]).with_context(cannot_write)?;
            events(&mut |entry| out.append(&converter.packets(&entry)))
                .with_context(cannot_write)?;
            if converter.arrows_left_out() > 0 {
                eprintln!(
                    "openmps: {} arrows are left out: there are too many",
                    converter.arrows_left_out()
                );
            }
            out.flush().with_context(cannot_write)
        }
    }
}

fn cannot_read(path: &Path) -> String {
    format!("cannot read {}", path.display())
}

fn rewind(mut file: &File) -> Result<()> {
    file.seek(SeekFrom::Start(0))
        .context("the files are read twice, which a pipe cannot be")?;
    Ok(())
}
