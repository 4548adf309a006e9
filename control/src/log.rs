//! Log files in the form that tools know: `[2026-11-20 21:42:57.831 Control   451] 100.0`.
//!
//! Lines are appended with one write each, so that a daemon and its servers may share a file. Times
//! are UTC. A line that cannot be written (a full disk) is lost; nobody waits or fails for it.

use std::fmt;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

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
    file: File,
    /// Whether lines are written to standard output too.
    echo: bool,
}

impl Log {
    /// Opens a file for appending, and makes it if need be.
    ///
    /// # Errors
    /// What the system says of it.
    pub fn open(path: &Path, echo: bool) -> std::io::Result<Self> {
        let file = File::options()
            .create(true)
            .append(true)
            .mode(0o644)
            .open(path)?;
        Ok(Self { file, echo })
    }

    /// Takes a file that was opened for appending.
    #[must_use]
    pub const fn from_file(file: File) -> Self {
        Self { file, echo: false }
    }

    /// The file, for handing it to a child.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub fn try_clone_file(&self) -> std::io::Result<File> {
        self.file.try_clone()
    }

    /// Writes a line in the name of this process.
    pub fn line(&self, role: Role, text: &str) {
        self.line_of(role, std::process::id(), text);
    }

    /// Writes a line in the name of another process.
    pub fn line_of(&self, role: Role, pid: u32, text: &str) {
        let line = format_line(SystemTime::now(), role, pid, text);
        if self.echo {
            let _ = std::io::stdout().write_all(line.as_bytes());
        }
        let _ = (&self.file).write_all(line.as_bytes());
    }
}

/// One line, with its end. Whatever could be taken for the end of a line, or would move a terminal's
/// cursor, is replaced: parts of the text come from clients.
fn format_line(now: SystemTime, role: Role, pid: u32, text: &str) -> String {
    let text: String = text
        .chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .collect();
    format!("[{} {role} {pid:>5}] {text}\n", Stamp(now))
}

struct Stamp(SystemTime);

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let since = self.0.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        let seconds = since.as_secs();
        let (year, month, day) = civil(seconds / 86_400);
        let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
        let milliseconds = since.subsec_millis();
        write!(
            f,
            "{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{milliseconds:03}"
        )
    }
}

/// The date of a day counted from 1970-01-01, in the Gregorian calendar. Years are taken to begin in
/// March, so that the leap day is a year's last.
const fn civil(day: u64) -> (u64, u64, u64) {
    const DAYS_IN_400_YEARS: u64 = 146_097;
    const DAYS_FROM_MARCH_OF_YEAR_0: u64 = 719_468;
    let day = day + DAYS_FROM_MARCH_OF_YEAR_0;
    let era = day / DAYS_IN_400_YEARS;
    let of_era = day % DAYS_IN_400_YEARS;
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * of_year + 2) / 153;
    let of_month = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 {
        shifted + 3
    } else {
        shifted - 9
    };
    let year = year_of_era + era * 400 + if month <= 2 { 1 } else { 0 };
    (year, month, of_month)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64, milliseconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_millis(seconds * 1000 + milliseconds)
    }

    #[test]
    fn lines_have_the_known_form() {
        assert_eq!(
            format_line(at(1_795_210_977, 831), Role::Control, 451, "100.0"),
            "[2026-11-20 21:42:57.831 Control   451] 100.0\n"
        );
        assert_eq!(
            format_line(at(1_795_210_977, 5), Role::Server, 1_234_567, "a\nb\x1b[0m"),
            "[2026-11-20 21:42:57.005 Server 1234567] a?b?[0m\n"
        );
    }

    #[test]
    fn dates_are_right_around_leap_days() {
        for (day, date) in [
            (0, (1970, 1, 1)),
            (58, (1970, 2, 28)),
            (59, (1970, 3, 1)),
            (11_016, (2000, 2, 29)),
            (11_017, (2000, 3, 1)),
            (19_782, (2024, 2, 29)),
            (20_088, (2024, 12, 31)),
            (47_540, (2100, 2, 28)),
            (47_541, (2100, 3, 1)),
        ] {
            assert_eq!(civil(day), date, "day {day}");
        }
    }
}
