//! A row of the table of commands.
//!
//! Used by the table and by the reading of lines. Plain data: must not know a command by name.

use super::answer::{Answer, Caller};
use super::line::Arguments;
use crate::daemon::Daemon;

/// A row of the table.
#[derive(Debug)]
pub struct Command {
    /// Its name, case-sensitive.
    pub name: &'static str,
    /// What follows the name.
    pub usage: &'static str,
    /// What it does, in a line.
    pub what: &'static str,
    /// Options without a value.
    pub(super) flags: &'static [&'static str],
    /// Options with one.
    pub(super) values: &'static [&'static str],
    /// Plain words at most.
    pub(super) words: usize,
    /// Whether it is only for root and the daemon's own user.
    pub(super) changes: bool,
    /// Whether the logs say nothing of it: it is given all the time.
    pub(super) quiet: bool,
    pub(super) run: fn(&mut Daemon, Caller, &Arguments<'_>) -> Answer,
}
