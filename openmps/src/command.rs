//! A command of the daemon's, carried out for a screen or a page: who gives it has a line for what came of it.
//!
//! `top` and the page give them. Must not know what commands there are.

use anyhow::{Result, bail};
use control::Directories;

use crate::usage::printable;

/// Has the daemon of the environment carry out a command, and gives what it said.
///
/// # Errors
/// Why it did not, in a line.
pub fn carry_out(line: &str) -> Result<String> {
    let directories = Directories::from_environment()?;
    match control::ask(&directories.control_socket(), line)? {
        (said, 0) => Ok(said),
        (said, _) => bail!("{}", first_line(&said)),
    }
}

/// The first line of what was said, for a place that has room for one.
pub fn first_line(said: &str) -> String {
    printable(said.lines().next().unwrap_or_default())
}
