//! Files of time lines as the commands open them: what cannot be opened is told with what to do, and reading that
//! takes long shows how far it is.
//!
//! Called by `merge`, `tables` and `clients`. Must not know what an event is.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, IsTerminal, Read};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// What takes longer shows how far it is.
const SILENT: Duration = Duration::from_secs(2);

/// Opens a time line.
pub fn open(path: &Path) -> Result<File> {
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    if file.metadata()?.is_dir() {
        bail!("{} is a folder: name the files in it", path.display());
    }
    Ok(file)
}

/// Makes the file of a result.
pub fn create(path: &Path, force: bool) -> Result<File> {
    let mut options = OpenOptions::new();
    options.write(true);
    if force {
        options.create(true).truncate(true);
    } else {
        options.create_new(true);
    }
    match options.open(path) {
        Ok(file) => Ok(file),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => bail!(
            "{} is there already: give another name, or --force to write over it",
            path.display()
        ),
        Err(error) => Err(error).with_context(|| format!("cannot make {}", path.display())),
    }
}

/// How far all reading is.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    began: Instant,
    shown: bool,
}

impl Progress {
    /// For so many bytes.
    pub fn new(bytes: u64) -> Self {
        let bar = ProgressBar::with_draw_target(Some(bytes), ProgressDrawTarget::hidden());
        let style =
            ProgressStyle::with_template("[{bar:30}] {bytes}/{total_bytes} {wide_msg} ({elapsed})")
                .unwrap_or_else(|_| ProgressStyle::default_bar())
                .progress_chars("=> ");
        bar.set_style(style);
        Self {
            bar,
            began: Instant::now(),
            shown: false,
        }
    }

    /// Counts what is read of a file.
    pub fn of<'a>(&'a mut self, name: &Path, file: &'a File) -> impl Read + use<'a> {
        self.bar.set_message(name.display().to_string());
        Counted {
            file,
            progress: self,
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

struct Counted<'a> {
    file: &'a File,
    progress: &'a mut Progress,
}

impl Read for Counted<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.file.read(buffer)?;
        let progress = &mut *self.progress;
        if !progress.shown && progress.began.elapsed() > SILENT && std::io::stderr().is_terminal() {
            progress.shown = true;
            progress.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        progress.bar.inc(count as u64);
        Ok(count)
    }
}
