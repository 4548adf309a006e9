//! Reasons of unsafe code: each `unsafe` block and impl has a `SAFETY:` comment of its own, which can be understood where it
//! stands. Clippy asks for the comment; this asks for what it says, and reads the fuzz targets too.
//!
//! `check` is called by `ci`. It reads lines and knows no syntax: whether a reason is true is for those who review it.

use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::shell::root;

/// Words that send the reader elsewhere.
const REFERENCES: &[&str] = &[
    "as above",
    "as before",
    "as there",
    "ditto",
    "likewise",
    "same as",
    "see above",
    "see there",
    "the same",
];

/// The fewest words that can name an invariant and who keeps it: "the handle is open".
const FEWEST_WORDS: usize = 4;

/// How many lines of one statement may stand between the comment and the block.
const LONGEST_STATEMENT: usize = 12;

/// Refuses a tree with unsafe code whose reason is missing, or stands elsewhere.
pub fn check() -> Result<()> {
    let listed = Command::new("git")
        .args([
            "ls-files",
            "--cached",
            "--others",
            "--exclude-standard",
            "*.rs",
        ])
        .current_dir(root())
        .output()
        .context("cannot run git")?;
    ensure!(listed.status.success(), "git ls-files: {}", listed.status);
    let mut count = 0;
    for path in String::from_utf8_lossy(&listed.stdout).lines() {
        let file = root().join(path);
        // A file that was removed and is not committed yet is listed all the same.
        if !file.exists() {
            continue;
        }
        let text = std::fs::read_to_string(&file).with_context(|| path.to_owned())?;
        for (line, problem) in problems(&text) {
            println!("{path}:{line}: {problem}");
            count += 1;
        }
    }
    if count > 0 {
        bail!("{count} reasons of unsafe code are missing or do not stand by themselves");
    }
    Ok(())
}

/// What is wrong with a file, by line.
fn problems(text: &str) -> Vec<(usize, String)> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let mut problems = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        if let Some(begin) = line.strip_prefix("// SAFETY:") {
            let reason = reason(begin, &lines[index + 1..]);
            if let Some(problem) = problem(&reason) {
                problems.push((index + 1, problem));
            }
        } else if is_unsafe(line) && !has_comment(&lines, index) {
            problems.push((index + 1, "unsafe code without a reason".to_owned()));
        }
    }
    problems
}

/// Whether unsafe code begins in a line.
fn is_unsafe(line: &str) -> bool {
    let code = line.split("//").next().unwrap_or_default();
    code.match_indices("unsafe ").any(|(at, word)| {
        let rest = &code[at + word.len()..];
        rest.starts_with('{') || rest.starts_with("impl")
    })
}

/// Whether a comment with a reason is in the line, or above the statement that it is part of.
fn has_comment(lines: &[&str], index: usize) -> bool {
    if lines[index].contains("SAFETY:") {
        return true;
    }
    let above = lines[..index].iter().enumerate().rev();
    for (number, line) in above.take(LONGEST_STATEMENT) {
        if line.starts_with("//") {
            let comment = lines[..=number].iter().rev();
            return comment
                .take_while(|line| line.starts_with("//"))
                .any(|line| line.contains("SAFETY:"));
        }
        if line.ends_with(';') || *line == "}" {
            return false;
        }
    }
    false
}

/// A reason of several lines, in one.
fn reason(begin: &str, following: &[&str]) -> String {
    let mut reason = begin.trim().to_owned();
    for line in following {
        match line.strip_prefix("//") {
            Some(more) if !line.starts_with("// SAFETY:") => {
                reason.push(' ');
                reason.push_str(more.trim());
            }
            _ => break,
        }
    }
    reason
}

/// Why a reason cannot be understood by itself.
fn problem(reason: &str) -> Option<String> {
    let lower = reason.to_lowercase();
    if let Some(words) = REFERENCES.iter().find(|words| lower.starts_with(**words)) {
        return Some(format!("{words:?} is a reason that stands elsewhere"));
    }
    (reason.split_whitespace().count() < FEWEST_WORDS)
        .then(|| format!("{reason:?} does not say which invariant holds, or who keeps it"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_stands_beside_its_block_and_by_itself() {
        // Put together here, so that this file passes its own check.
        let block = format!("{} {{ call() }}", "unsafe");
        let of = |text: &str| problems(&text.replace("BLOCK", &block));
        assert_eq!(
            of("// SAFETY: the caller keeps the handle open.\nlet a =\n    BLOCK;"),
            []
        );
        assert_eq!(of("let a = BLOCK; // SAFETY: the handle is open here."), []);
        for (text, line) in [
            ("let a = BLOCK;", 1),
            (
                "// SAFETY: the handle is open here.\nlet a = 1;\nlet b = BLOCK;",
                3,
            ),
            (
                "// SAFETY: as above, but\n// for the other handle.\nBLOCK;",
                1,
            ),
            ("// SAFETY: no pointers.\nBLOCK;", 1),
            ("// SAFETY:\nBLOCK;", 1),
        ] {
            let found = of(text);
            assert_eq!(found.len(), 1, "{text}: {found:?}");
            assert_eq!(found[0].0, line, "{text}: {found:?}");
        }
    }
}
