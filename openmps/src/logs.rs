//! `openmps logs`: what the daemon and its servers wrote, in the order of time, and what they write
//! from now on.

use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use control::Directories;

/// How often the files are looked at for more.
pub const LOOK: Duration = Duration::from_millis(200);

#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Go on as more is written, until interrupted
    #[arg(short, long)]
    follow: bool,
    /// The structured log instead: a line of JSON for each thing that happened
    #[arg(long)]
    json: bool,
    /// Only so many of the lines that are there
    #[arg(short = 'n', long, value_name = "COUNT")]
    lines: Option<usize>,
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let directories = Directories::from_environment().map_err(anyhow::Error::msg)?;
    let paths = match arguments.json {
        true => vec![directories.events()],
        false => vec![directories.control_log(), directories.server_log()],
    };
    if !paths.iter().any(|path| path.exists()) && !arguments.follow {
        bail!(
            "no logs in {}; CUDA_MPS_LOG_DIRECTORY says where a daemon writes them",
            directories.log.display()
        );
    }
    let mut logs = Logs::new(&paths);
    let mut there = logs.more()?;
    if let Some(count) = arguments.lines {
        there.drain(..there.len().saturating_sub(count));
    }
    let mut out = std::io::stdout().lock();
    let mut print = move |lines: Vec<String>| -> Result<bool> {
        match out
            .write_all(lines.concat().as_bytes())
            .and_then(|()| out.flush())
        {
            // Whoever read has seen enough.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
            result => result.map(|()| true).context("cannot print"),
        }
    };
    let mut goes_on = print(there)?;
    while arguments.follow && goes_on {
        std::thread::sleep(LOOK);
        goes_on = print(logs.more()?)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Several logs as one.
#[derive(Debug)]
pub struct Logs(Vec<Followed>);

impl Logs {
    /// Logs that are there, or will be.
    pub fn new(paths: &[PathBuf]) -> Self {
        Self(paths.iter().map(|path| Followed::new(path)).collect())
    }

    /// The whole lines that came since, of all files, in the order of their stamps.
    pub fn more(&mut self) -> Result<Vec<String>> {
        let mut lines = Vec::new();
        for file in &mut self.0 {
            let of_file = file.more();
            lines.extend(of_file.with_context(|| format!("cannot read {}", file.path.display()))?);
        }
        // Stamps begin the lines and sort as text; lines of one file keep their order.
        lines.sort_by(|one, other| stamp(one).cmp(stamp(other)));
        Ok(lines)
    }
}

/// The time that begins a line, or nothing, which keeps a structured line in its place.
fn stamp(line: &str) -> &str {
    match line.starts_with('[') {
        true => line.get(..24).unwrap_or(""),
        false => "",
    }
}

/// A file that others append to, empty when it is long, or make anew.
#[derive(Debug)]
struct Followed {
    path: PathBuf,
    /// The file, its inode, and how much of it was read.
    open: Option<(File, u64, u64)>,
    /// A line without its end.
    rest: Vec<u8>,
}

impl Followed {
    fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            open: None,
            rest: Vec::new(),
        }
    }

    fn more(&mut self) -> std::io::Result<Vec<String>> {
        let there = match std::fs::metadata(&self.path) {
            Ok(there) => there,
            // Not yet, or not at the moment.
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let stale = self
            .open
            .as_ref()
            .is_none_or(|(_, inode, read)| *inode != there.ino() || *read > there.len());
        if stale {
            self.open = Some((File::open(&self.path)?, there.ino(), 0));
            self.rest.clear();
        }
        let mut bytes = std::mem::take(&mut self.rest);
        if let Some((file, _, read)) = &mut self.open {
            file.seek(SeekFrom::Start(*read))?;
            *read += file.read_to_end(&mut bytes)? as u64;
        }
        let end = bytes.iter().rposition(|byte| *byte == b'\n');
        self.rest = bytes.split_off(end.map_or(0, |end| end + 1));
        let text = String::from_utf8_lossy(&bytes);
        Ok(text.split_inclusive('\n').map(str::to_owned).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_merged_by_time_and_followed_when_they_are_turned_over() {
        let folder = tempfile::tempdir().unwrap();
        let (one, other) = (folder.path().join("one"), folder.path().join("other"));
        let line =
            |second: u32, text: &str| format!("[2026-11-20 21:42:{second:02}.000 X 1] {text}\n");
        std::fs::write(&one, line(1, "a") + &line(3, "c") + "[2026-11-20 21:42:09").unwrap();
        let mut logs = Logs::new(&[one.clone(), other.clone()]);
        assert_eq!(logs.more().unwrap(), [line(1, "a"), line(3, "c")]);
        std::fs::write(&other, line(2, "b")).unwrap();
        assert_eq!(logs.more().unwrap(), [line(2, "b")]);
        assert!(logs.more().unwrap().is_empty());
        // Emptied and written again, shorter than it was.
        std::fs::write(&one, line(4, "d")).unwrap();
        assert_eq!(logs.more().unwrap(), [line(4, "d")]);
        std::fs::remove_file(&other).unwrap();
        assert!(logs.more().unwrap().is_empty());
        std::fs::write(&other, line(5, "e")).unwrap();
        assert_eq!(logs.more().unwrap(), [line(5, "e")]);
    }
}
