//! Log files in the form that tools know: `[2026-11-20 21:42:57.831 Control   451] 100.0`.
//!
//! Written by the daemon and, with a file that it is given, by a server of `openmps`. Must not know what a line
//! says.
//!
//! Lines are appended with one write each, so that a daemon and its servers may share a file. Times
//! are local. A line that cannot be written (a full disk) is lost; nobody waits or fails for it.
//!
//! A file that has grown too long is copied to `.1` and emptied, not renamed: servers have it open,
//! and tools follow it by its descriptor. A file that is gone is made again. No link of another user's is
//! followed. What strangers bring about is written at their cost ([`quota`]), so that nobody floods a log.

pub(crate) mod events;
mod quota;

use std::fmt;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use jiff::Zoned;
use parking_lot::{Mutex, MutexGuard};
pub use quota::{About, LeftOut};

use crate::files::safe_fs::{append, create_in_place_of, open_in_place};

/// Bytes of a line beside its text.
const HEAD: usize = 48;

/// Former files that are kept of each log.
const KEPT: u32 = 3;

/// Who writes a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The control daemon.
    Control,
    /// A server.
    Server,
    /// A process before it is a server.
    Other,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Control => "Control",
            Self::Server => "Server",
            Self::Other => "Other",
        })
    }
}

/// A log file.
#[derive(Debug)]
pub struct Log {
    file: Mutex<File>,
    /// Where it is, for those who look after it.
    path: Option<PathBuf>,
    /// Whether lines are written to standard output too.
    echo: bool,
    /// Who has the file: of what that user brings about everything is written.
    owner: u32,
    shares: Mutex<quota::Shares>,
    /// How it is told that lines were left out, where that is not a line as others.
    tell: Option<fn(&LeftOut) -> String>,
}

impl Log {
    /// Opens a file for appending, and makes it if need be.
    ///
    /// # Errors
    /// What the system says of it.
    pub fn open(path: &Path, echo: bool) -> std::io::Result<Self> {
        Self::new(append(path)?, Some(path), echo)
    }

    /// A log that cannot be opened yet: its lines are lost until [`Log::rotate`] can.
    ///
    /// # Errors
    /// When nothing at all can be opened.
    pub fn not_open_yet(path: &Path, echo: bool) -> std::io::Result<Self> {
        let nothing = File::options().write(true).open("/dev/null")?;
        Self::new(nothing, Some(path), echo)
    }

    /// Takes a file that was opened for appending.
    ///
    /// # Errors
    /// When the system does not say whose it is.
    pub fn from_file(file: File) -> std::io::Result<Self> {
        Self::new(file, None, false)
    }

    fn new(file: File, path: Option<&Path>, echo: bool) -> std::io::Result<Self> {
        Ok(Self {
            owner: file.metadata()?.uid(),
            file: Mutex::new(file),
            path: path.map(Path::to_owned),
            echo,
            shares: Mutex::default(),
            tell: None,
        })
    }

    /// Has lines that were left out told of in a form of the log's own.
    #[must_use]
    pub fn with_left_out_format(mut self, tell: fn(&LeftOut) -> String) -> Self {
        self.tell = Some(tell);
        self
    }

    fn file(&self) -> MutexGuard<'_, File> {
        self.file.lock()
    }

    /// The file, for handing it to a child.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub fn try_clone_file(&self) -> std::io::Result<File> {
        self.file().try_clone()
    }

    /// Looks after the file: makes it again where it is gone, and turns it over when it is longer
    /// than `most` bytes. What fails is tried again next time.
    pub fn rotate(&self, most: u64) {
        let Some(path) = &self.path else {
            return;
        };
        let mut file = self.file();
        let Ok(ours) = file.metadata() else {
            return;
        };
        let there = std::fs::metadata(path).is_ok_and(|there| there.ino() == ours.ino());
        if !there {
            if let Some(directory) = path.parent() {
                let _ = std::fs::create_dir_all(directory);
            }
            if let Ok(new) = append(path) {
                *file = new;
            }
        } else if ours.len() > most {
            let former = |number: u32| {
                let mut name = path.clone().into_os_string();
                name.push(format!(".{number}"));
                PathBuf::from(name)
            };
            for number in (1..KEPT).rev() {
                let _ = std::fs::rename(former(number), former(number + 1));
            }
            // Not kept is better than too long: a disk that is full already gets room.
            let _ = copy(path, &former(1), ours.mode());
            let _ = file.set_len(0);
        }
    }

    fn write(&self, text: &str) {
        let _ = self.file().write_all(text.as_bytes());
    }

    /// Writes text as it is, which ends its line.
    pub fn raw(&self, text: &str) {
        self.tell_of_left_out(Role::Other, false);
        self.write(text);
    }

    /// As [`Log::raw`], of what somebody brought about, while there is room for that.
    pub fn raw_about(&self, about: &About, text: &str) {
        if self.has_room(about, text.len()) {
            self.raw(text);
        } else {
            self.tell_of_left_out(Role::Other, false);
        }
    }

    /// As [`Log::line`], of what somebody brought about, while there is room for that.
    pub fn line_about(&self, about: &About, role: Role, text: &str) {
        if self.has_room(about, HEAD + text.len()) {
            self.line(role, text);
        } else {
            self.tell_of_left_out(role, false);
        }
    }

    fn shares(&self) -> MutexGuard<'_, quota::Shares> {
        self.shares.lock()
    }

    fn has_room(&self, about: &About, bytes: usize) -> bool {
        let is_free = matches!(*about, About::User(uid) if uid == 0 || uid == self.owner);
        is_free || self.shares().try_charge(about, bytes, Instant::now())
    }

    fn tell_of_left_out(&self, role: Role, at_the_end: bool) {
        let all = self.shares().left_out_to_report(Instant::now(), at_the_end);
        for left_out in all {
            match self.tell {
                Some(tell) => self.write(&tell(&left_out)),
                None => self.write_line(role, std::process::id(), &left_out.to_string()),
            }
        }
    }

    /// Writes a line in the name of this process.
    pub fn line(&self, role: Role, text: &str) {
        self.line_of(role, std::process::id(), text);
    }

    /// Writes a line in the name of another process.
    pub fn line_of(&self, role: Role, pid: u32, text: &str) {
        self.tell_of_left_out(role, false);
        self.write_line(role, pid, text);
    }

    fn write_line(&self, role: Role, pid: u32, text: &str) {
        let line = format_line(&Zoned::now(), role, pid, text);
        if self.echo {
            let _ = std::io::stdout().write_all(line.as_bytes());
        }
        self.write(&line);
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.tell_of_left_out(Role::Other, true);
    }
}

/// Copies a log into a file that is made for it, with the same mode.
fn copy(path: &Path, former: &Path, mode: u32) -> std::io::Result<()> {
    let mut from = open_in_place(path, File::options().read(true))?;
    let mut to = create_in_place_of(former, mode & 0o777)?;
    std::io::copy(&mut from, &mut to).map(drop)
}

/// One line, with its end. Whatever could be taken for the end of a line, or would move a terminal's
/// cursor, is replaced: parts of the text come from clients.
fn format_line(now: &Zoned, role: Role, pid: u32, text: &str) -> String {
    let text: String = text
        .chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .collect();
    let stamp = now.strftime("%Y-%m-%d %H:%M:%S.%3f");
    format!("[{stamp} {role} {pid:>5}] {text}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(milliseconds: i64, zone: jiff::tz::TimeZone) -> Zoned {
        jiff::Timestamp::from_millisecond(milliseconds)
            .unwrap()
            .to_zoned(zone)
    }

    #[test]
    fn lines_have_the_known_form_and_local_times() {
        let utc = jiff::tz::TimeZone::UTC;
        assert_eq!(
            format_line(&at(1_795_210_977_831, utc), Role::Control, 451, "100.0"),
            "[2026-11-20 21:42:57.831 Control   451] 100.0\n"
        );
        let two_east = jiff::tz::TimeZone::fixed(jiff::tz::offset(2));
        assert_eq!(
            format_line(
                &at(1_795_210_977_005, two_east),
                Role::Server,
                1_234_567,
                "a\nb\x1b[0m"
            ),
            "[2026-11-20 23:42:57.005 Server 1234567] a?b?[0m\n"
        );
    }

    #[test]
    fn a_long_log_is_turned_over_and_a_lost_one_made_again() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("log/x.log");
        std::fs::create_dir(root.path().join("log")).unwrap();
        let log = Log::open(&path, false).unwrap();
        // A server's, which knows no path.
        let other = Log::from_file(log.try_clone_file().unwrap()).unwrap();
        let read = |name: &str| std::fs::read_to_string(root.path().join("log").join(name));
        for round in 0..5 {
            log.raw(&format!("{round}{}\n", "x".repeat(100)));
            log.rotate(50);
            assert_eq!(read("x.log").unwrap(), "");
        }
        other.raw("goes on\n");
        log.rotate(50);
        assert_eq!(read("x.log").unwrap(), "goes on\n");
        assert!(read("x.log.1").unwrap().starts_with('4'));
        assert!(read("x.log.3").unwrap().starts_with('2'));
        assert!(read("x.log.4").is_err());
        std::fs::remove_dir_all(root.path().join("log")).unwrap();
        log.raw("lost\n");
        log.rotate(50);
        log.raw("found\n");
        assert_eq!(read("x.log").unwrap(), "found\n");
    }

    #[test]
    fn a_flood_of_one_user_is_cut_off_and_told_of() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("x.log");
        let log = Log::open(&path, false).unwrap();
        let somebody = log.owner + 4242;
        let flood = "x".repeat(100_000);
        for number in 0..100 {
            log.line_about(&About::User(somebody), Role::Control, &flood);
            log.raw_about(&About::Group("a".into()), &format!("{flood}\n"));
            if number == 50 {
                log.line_about(&About::User(somebody + 1), Role::Control, "another's");
                log.line(Role::Control, "a fault");
            }
            log.line_about(&About::User(log.owner), Role::Control, "its own");
        }
        drop(log);
        let written = std::fs::read_to_string(&path).unwrap();
        let count = |part: &str| written.lines().filter(|line| line.ends_with(part)).count();
        assert_eq!(count("xxx"), 2 * (quota::AT_ONCE as usize / flood.len()));
        assert_eq!(
            (count("another's"), count("a fault"), count("its own")),
            (1, 1, 100)
        );
        let told = "... 80 more lines about ";
        for about in [&*format!("user {somebody}"), "clients of group a"] {
            assert!(written.contains(&format!("{told}{about} in ")), "{about}");
        }
    }
}
