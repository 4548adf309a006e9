//! The client's log: a file that OPENMPS_CLIENT_LOG names, or nothing.
//!
//! Opened for each line: there are few, and a file that is kept open would be one more thing in somebody
//! else's process.
//!
//! Called by what a program would otherwise hear nothing of. Must not know why a line is written.

use std::fs::OpenOptions;
use std::io::Write;

/// Adds a line, in one write, so that lines of several processes do not mix.
pub(crate) fn write_line(text: std::fmt::Arguments<'_>) {
    let Some(path) = daemon_interface::environment::variable("OPENMPS_CLIENT_LOG") else {
        return;
    };
    // Rust opens files close-on-exec.
    if let Ok(mut file) = OpenOptions::new().append(true).create(true).open(path) {
        let text = daemon_interface::log_text::one_line(&text.to_string());
        let line = format!("[{}] nvml: {text}\n", std::process::id());
        // Nobody is there to be told that the log cannot be written.
        let _ = file.write_all(line.as_bytes());
    }
}

/// Adds a formatted line to the client's log.
macro_rules! log {
    ($($arg:tt)*) => { $crate::log::write_line(format_args!($($arg)*)) };
}
pub(crate) use log;
