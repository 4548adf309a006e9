//! A test that this machine cannot run says so. The usual harness keeps what a test prints that passes,
//! so `cargo xtask test` gives a file, and prints what it holds.
//!
//! Called by tests where they begin. Must not know `xtask`: it reads what is written.

use std::fs::File;
use std::io::Write;
use std::panic::Location;

/// Says that the calling test, or a part of it, is not run, and why.
///
/// # Panics
///
/// If the file that `OPENMPS_SKIPPED` names cannot be written to.
#[track_caller]
pub fn skipped(why: &str) {
    let place = Location::caller();
    println!("  skipped: {why}");
    if let Some(list) = std::env::var_os("OPENMPS_SKIPPED") {
        let line = format!("{}:{}: {why}\n", place.file(), place.line());
        let file = File::options().append(true).create(true).open(list);
        let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
        written.expect("the list of what is skipped");
    }
}
