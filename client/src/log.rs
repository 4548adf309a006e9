//! The client's log: a file that OPENMPS_CLIENT_LOG names, or nothing.
//!
//! The process is somebody else's program: nothing is ever written to its standard streams, and to no file
//! of a set-uid program's, whose environment is not its own.
//!
//! Called from all over the client, by `log!`. What it says goes to the [`error_log`](crate::error_log) too. Must not know the session:
//! it works before there is one.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::sync::OnceLock;

static FILE: OnceLock<Option<File>> = OnceLock::new();

/// Adds a line, in one write, so that lines of several processes do not mix.
pub(crate) fn line(text: std::fmt::Arguments<'_>) {
    let text = text.to_string();
    crate::error_log::add(crate::error_log::Level::Warning, &text);
    file_line(&text);
}

/// The same, and for programs that ask nothing.
pub(crate) fn file_line(text: &str) {
    let file = FILE.get_or_init(|| {
        let path = daemon_interface::environment::variable("OPENMPS_CLIENT_LOG")?;
        // Rust opens files close-on-exec.
        OpenOptions::new().append(true).create(true).open(path).ok()
    });
    if let Some(mut file) = file.as_ref() {
        let text = daemon_interface::log_text::one_line(text);
        let line = format!("[{}] {text}\n", std::process::id());
        // Nobody is there to be told that the log cannot be written.
        let _ = file.write_all(line.as_bytes());
    }
}

/// Adds a formatted line to the client's log.
macro_rules! log {
    ($($arg:tt)*) => { $crate::log::line(format_args!($($arg)*)) };
}
pub(crate) use log;
