//! What programs printed, as tests look at it.
//!
//! Used by tests of platforms and Kubernetes. Pure functions of text: they know no program.

use std::process::Output;

use anyhow::{Result, bail};

/// Checks that texts follow each other, with anything between.
pub fn in_order(text: &str, parts: &[&str]) -> Result<()> {
    let mut rest = text;
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => bail!("{part:?} is missing, or out of order, in:\n{text}"),
        }
    }
    Ok(())
}

/// The last line that a program complained with.
pub fn last_line(output: &Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    let last = errors.lines().rfind(|line| !line.trim().is_empty());
    last.unwrap_or("it said nothing").trim().to_owned()
}

/// The number that stands before a word on the first line that has both.
pub fn number_before(text: &str, word: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let (before, _) = line.split_once(word)?;
        before.split_whitespace().next_back()?.parse().ok()
    })
}
