//! `openmps logs`: what the daemon and its servers wrote, in the order of time, and what they write
//! from now on.
//!
//! Called by `main`; `compose` follows the logs by it. Must not know what a line means, only when it was written.

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

/// Former files that a daemon keeps of a log, as `.1` and so on.
const FORMER: u32 = 3;

/// Bytes at a file's beginning by which it is known again under another name. Stamps are in them.
const HEAD: u64 = 128;

/// A file that others append to, make anew, or copy to `.1` and empty when it is long.
#[derive(Debug)]
struct Followed {
    path: PathBuf,
    open: Option<Open>,
    /// A line without its end.
    rest: Vec<u8>,
}

/// What is being read.
#[derive(Debug)]
struct Open {
    file: File,
    inode: u64,
    /// How much of it was.
    read: u64,
    /// Its first bytes, as many as there were.
    head: Vec<u8>,
    /// The first bytes of what was its newest copy when this was begun with.
    newest: Vec<u8>,
}

impl Open {
    fn new(path: &Path, inode: u64) -> std::io::Result<Self> {
        Ok(Self {
            file: File::open(path)?,
            inode,
            read: 0,
            head: Vec::new(),
            newest: head_of(former(path, 1)),
        })
    }

    /// Appends what was not read yet.
    fn take_lines(&mut self, bytes: &mut Vec<u8>) -> std::io::Result<()> {
        if (self.head.len() as u64) < HEAD {
            self.head = head(&mut self.file, HEAD)?;
        }
        self.file.seek(SeekFrom::Start(self.read))?;
        self.read += self.file.read_to_end(bytes)? as u64;
        Ok(())
    }

    /// Whether it was emptied since, however much was written afterwards.
    fn was_emptied(&mut self, path: &Path, length: u64) -> std::io::Result<bool> {
        if self.head.is_empty() {
            // It was empty. A copy is made before the file is emptied, and begins as it does until then.
            let newest = head_of(former(path, 1));
            return Ok(newest != self.newest && newest != head(&mut self.file, HEAD)?);
        }
        let known = self.head.len() as u64;
        Ok(self.read > length || head(&mut self.file, known)? != self.head)
    }

    /// Appends what was written before the file was emptied and not read here: the rest of the copy that
    /// begins as the file did, and the copies that came after it.
    fn take_former(&self, path: &Path, bytes: &mut Vec<u8>) {
        let begins = |number: &u32, head: &[u8]| {
            let there = head_of(former(path, *number));
            !head.is_empty() && there.get(..head.len()) == Some(head)
        };
        let found = match self.head.is_empty() {
            false => (1..=FORMER).find(|number| begins(number, &self.head)),
            // All that are newer than the one that was the newest.
            true => Some((1..=FORMER).find(|number| begins(number, &self.newest)))
                .map(|known| known.map_or(FORMER, |known| known - 1)),
        };
        for number in (1..=found.unwrap_or(0)).rev() {
            let from = if Some(number) == found { self.read } else { 0 };
            if let Some(mut file) = former(path, number) {
                // What cannot be read is lost, as on a disk without room for copies.
                let _ = file
                    .seek(SeekFrom::Start(from))
                    .and_then(|_| file.read_to_end(bytes));
            }
        }
    }
}

/// A copy of a log, if it is there; 1 is the newest.
fn former(path: &Path, number: u32) -> Option<File> {
    let mut name = path.to_owned().into_os_string();
    name.push(format!(".{number}"));
    File::open(name).ok()
}

fn head_of(file: Option<File>) -> Vec<u8> {
    file.and_then(|mut file| head(&mut file, HEAD).ok())
        .unwrap_or_default()
}

/// The first bytes of a file, so many at most.
fn head(file: &mut File, most: u64) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    file.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
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
        let mut bytes = std::mem::take(&mut self.rest);
        if let Some(mut open) = self.open.take() {
            if open.inode != there.ino() {
                open.take_lines(&mut bytes)?;
            } else if open.was_emptied(&self.path, there.len())? {
                open.take_former(&self.path, &mut bytes);
            } else {
                self.open = Some(open);
            }
        }
        if self.open.is_none() {
            // What has no end never gets one.
            let end = bytes.iter().rposition(|byte| *byte == b'\n');
            bytes.truncate(end.map_or(0, |end| end + 1));
        }
        let open = match &mut self.open {
            Some(open) => open,
            none => none.insert(Open::new(&self.path, there.ino())?),
        };
        open.take_lines(&mut bytes)?;
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

    #[test]
    fn no_line_is_lost_while_the_daemon_turns_files_over() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.log");
        let log = control::log::Log::open(&path, false).unwrap();
        let mut logs = Logs::new(&[path]);
        let mut written = Vec::new();
        let mut read = logs.more().unwrap();
        // Looked at before, after, and long after it was turned over, once with two lines to each file.
        for (turned, looked) in [(7, 1), (5, 3), (6, 6), (3, 5), (4, 9), (2, 5)] {
            for round in 0..100 {
                let line = format!("[2026-11-20 21:42:57.000 X 1] {turned} {looked} {round}\n");
                log.raw(&line);
                written.push(line);
                if round % turned == 0 {
                    log.rotate(20);
                }
                if round % looked == 0 {
                    read.extend(logs.more().unwrap());
                }
            }
            read.extend(logs.more().unwrap());
        }
        assert_eq!(read, written);
        // With more turns than former files are kept, what was in the others is lost, and no more.
        for round in 0..9 {
            log.raw(&format!("[2026-11-20 21:42:58.000 X 1] {round}\n"));
            log.rotate(20);
        }
        log.raw("[2026-11-20 21:42:58.000 X 1] last\n");
        assert!(logs.more().unwrap().concat().ends_with("] last\n"));
    }
}
