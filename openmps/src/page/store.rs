//! The page's history in a file, which outlives the page's process: read when it begins, and written a minute at a time.
//!
//! Called by the watcher. Owns the file and where it is; its bytes are [`history_form`](super::history_form)'s. Must not know what is drawn.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{FlockOperation, OFlags, flock};

use super::history_form::{self, HEAD, Record, WHOLE};

/// The file's name in its folder.
const NAME: &str = "page-history";

#[derive(Debug)]
pub struct Store {
    file: File,
    path: PathBuf,
    /// A write has failed, which was told.
    failed: bool,
}

impl Store {
    /// Opens the file, or makes it, and gives what it has of the day that ends with this minute.
    ///
    /// # Errors
    /// When it cannot be made, is another's or something else; then nothing was changed.
    pub fn open(path: &Path, now: u64) -> Result<(Self, Vec<Record>)> {
        if let Some(folder) = path
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty())
        {
            std::fs::create_dir_all(folder)
                .with_context(|| format!("cannot make {}", folder.display()))?;
        }
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        // Whoever else may write in the folder leads it nowhere, and a FIFO does not hold it up.
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        options.mode(0o600).custom_flags(flags.bits().cast_signed());
        let mut file = options
            .open(path)
            .with_context(|| format!("cannot open {}", path.display()))?;
        ensure!(
            file.metadata()?.is_file(),
            "{} is not a file: give another --history",
            path.display()
        );
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            bail!(
                "{} is another page's, which runs: give another --history",
                path.display()
            );
        }
        let mut bytes = Vec::new();
        (&mut file).take(WHOLE).read_to_end(&mut bytes)?;
        let is_ours = bytes.starts_with(&HEAD);
        ensure!(
            is_ours || bytes.is_empty(),
            "{} is no history of this version's: remove it, or give another --history",
            path.display()
        );
        let store = Self {
            file,
            path: path.to_owned(),
            failed: false,
        };
        if !is_ours {
            store.file.write_all_at(&HEAD, 0)?;
        }
        Ok((store, history_form::records(&bytes, now)))
    }

    /// Writes a minute's records over those of the day before.
    pub fn write(&mut self, minute: u64, records: &[Record]) {
        let block = history_form::block(records);
        let written = self.file.write_all_at(&block, history_form::place(minute));
        match written {
            Ok(()) => self.failed = false,
            // As long as it lasts it is told once.
            Err(error) if !self.failed => {
                eprintln!(
                    "openmps page: {} is not written: {error}",
                    self.path.display()
                );
                self.failed = true;
            }
            Err(_) => {}
        }
    }
}

/// Where the history is kept if nobody says where: in the daemon's own folder where the page is started with it, else in the user's.
/// None where there is neither.
pub fn default_path(of_daemon: Option<&Path>) -> Option<PathBuf> {
    if let Some(folder) = of_daemon {
        return Some(folder.join(NAME));
    }
    let variable = |name| std::env::var_os(name).map(PathBuf::from);
    let state = variable("XDG_STATE_HOME").filter(|folder| folder.is_absolute());
    let state = state.or_else(|| Some(variable("HOME")?.join(".local/state")));
    Some(state?.join("openmps").join(NAME))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(minute: u64) -> Record {
        Record {
            minute,
            device: 0,
            client: None,
            sample: [0.5; 4],
        }
    }

    #[test]
    fn what_was_written_is_there_the_next_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state/history");
        let (mut store, before) = Store::open(&path, 1000).unwrap();
        assert_eq!(before, []);
        store.write(1000, &[record(1000)]);
        store.write(1001, &[record(1001)]);
        let error = Store::open(&path, 1001).unwrap_err().to_string();
        assert!(error.contains("another page's"), "{error}");
        drop(store);
        let (mut store, before) = Store::open(&path, 1001).unwrap();
        assert_eq!(before, [record(1000), record(1001)]);
        for minute in 1002..1002 + 3 * 1440 {
            store.write(minute, &[record(minute)]);
        }
        assert!(path.metadata().unwrap().len() <= WHOLE, "it grows no more");
        drop(store);
        let (_, before) = Store::open(&path, 1001 + 3 * 1440).unwrap();
        assert_eq!(before.len(), 1440);
    }

    #[test]
    fn what_is_something_else_stays_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        std::fs::write(&path, "a letter").unwrap();
        let error = Store::open(&path, 1).unwrap_err().to_string();
        assert!(error.contains("remove it"), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), b"a letter");
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(folder.path().join("y"), &link).unwrap();
        assert!(Store::open(&link, 1).is_err() && !folder.path().join("y").exists());
        let error = Store::open(folder.path(), 1).unwrap_err().to_string();
        assert!(error.contains("cannot open"), "{error}");
        let error = Store::open(Path::new("/dev/null"), 1)
            .unwrap_err()
            .to_string();
        assert!(error.contains("is not a file"), "{error}");
    }
}
