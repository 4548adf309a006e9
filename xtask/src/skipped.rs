//! What was not run, and why: each is told where it happens, and all of them again at the end. With
//! `--strict` they are failures: for machines that should have everything.
//!
//! Tests run in processes of their own, so the list is a file, which those find by a variable.
//!
//! Used by whoever may have to skip, and by `parts` and `platforms` at the end. Must not decide what is skipped.

use std::fmt;
use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

use crate::shell::root;

/// The variable with the list's path. The tests of crates know it too (`tests/src/skipped.rs`).
pub const VARIABLE: &str = "OPENMPS_SKIPPED";

/// The list of this run, or of the run that this process is part of.
pub fn list() -> PathBuf {
    match std::env::var_os(VARIABLE) {
        Some(path) => path.into(),
        None => root().join(format!("target/skipped-{}", std::process::id())),
    }
}

/// Adds a part to the list. Whoever skips it says so itself, in the place where its result would be.
pub fn record(part: &str, why: &str) -> Result<()> {
    let path = list();
    let mut file = File::options()
        .append(true)
        .create(true)
        .open(&path)
        .with_context(|| path.display().to_string())?;
    // One write for each, since several processes write.
    Ok(file.write_all(line(part, why).as_bytes())?)
}

fn line(part: &str, why: &str) -> String {
    let why: Vec<&str> = why.split_whitespace().collect();
    format!("{part}: {}\n", why.join(" "))
}

/// A test that this machine cannot run, and why.
#[derive(Debug)]
pub struct Skipped(String);

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Skipped {}

/// Says that this machine cannot run a test.
pub fn skip<T>(why: impl Into<String>) -> Result<T> {
    Err(Skipped(why.into()).into())
}

/// Why this machine cannot run what ended with an error, if that is it.
pub fn why_skipped(error: &anyhow::Error) -> Option<&str> {
    error.downcast_ref().map(|Skipped(why)| why.as_str())
}

/// Ends a run with its list: what was skipped is a failure if the run is strict.
pub fn finish(is_strict: bool, result: Result<()>) -> Result<()> {
    let path = list();
    let skipped = fs::read_to_string(&path).unwrap_or_default();
    fs::remove_file(path).ok();
    println!("{}", summary(&skipped));
    result?;
    ensure!(
        !is_strict || skipped.is_empty(),
        "with --strict nothing may be skipped, and the parts above were"
    );
    Ok(())
}

fn summary(skipped: &str) -> String {
    match skipped.lines().count() {
        0 => "skipped: nothing".into(),
        count => format!(
            "skipped, parts: {count}\n  {}",
            skipped.trim_end().replace('\n', "\n  ")
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_skipped_is_told_by_name() {
        assert_eq!(summary(""), "skipped: nothing");
        let list = line("podman", "root may not\nmake namespaces") + &line("helm", "no network");
        assert_eq!(
            summary(&list),
            "skipped, parts: 2\n  podman: root may not make namespaces\n  helm: no network"
        );
    }
}
