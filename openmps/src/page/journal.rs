//! The last lines of the daemon's and the servers' logs, if this user may read them.
//!
//! Must not know who shows them: lines come with control characters made visible, and no longer than a screen takes.
//! Called by `answers`.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::usage::printable;

/// Bytes of each log that are looked at, from its end.
const BYTES: u64 = 32 << 10;

/// Lines that are shown.
const LINES: usize = 100;

/// Characters of a line.
const CHARACTERS: usize = 400;

/// Characters of the stamp that begins a line, which sorts as text.
const STAMP: usize = 24;

/// What in a line tells of trouble.
const TROUBLE: &[&str] = &[
    "fatal",
    "fault",
    "Failed",
    "failed",
    "cannot",
    "Cannot",
    "refused",
    "exception",
];

/// The last lines of these logs in the order of time; why there are none, where that is so.
pub fn last_lines(logs: &[PathBuf]) -> Value {
    let mut lines = Vec::new();
    let mut why = Vec::new();
    for path in logs {
        match tail(path) {
            Ok(text) => lines.extend(text.lines().map(str::to_owned)),
            Err(error) => why.push(format!("{}: {error}", path.display())),
        }
    }
    // Lines of one file keep their order.
    lines.sort_by(|one, other| stamp(one).cmp(stamp(other)));
    let last = lines.len().saturating_sub(LINES);
    let lines: Vec<Value> = lines[last..].iter().map(|line| shown(line)).collect();
    json!({ "lines": lines, "unread": why })
}

fn stamp(line: &str) -> &str {
    line.get(..STAMP).unwrap_or_default()
}

fn shown(line: &str) -> Value {
    let cut: String = line.chars().take(CHARACTERS).collect();
    let is_trouble = TROUBLE.iter().any(|word| line.contains(word));
    json!({ "text": printable(&cut), "trouble": is_trouble })
}

/// The whole lines in the last bytes of a file.
fn tail(path: &Path) -> std::io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    let from = length.saturating_sub(BYTES);
    file.seek(SeekFrom::Start(from))?;
    let mut bytes = Vec::new();
    file.take(BYTES).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    Ok(match (from, text.split_once('\n')) {
        (0, _) => text,
        (_, Some((_, whole))) => whole.to_owned(),
        (_, None) => String::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_of_all_logs_come_by_time_and_harmless() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let line =
            |second: usize, text: &str| format!("[2026-11-20 21:42:{second:02}.000 X 1] {text}\n");
        let long = line(1, &"a".repeat(40 << 10)) + &line(3, "a fatal \u{1b}[2J<b>");
        std::fs::write(at("one"), long).unwrap();
        std::fs::write(at("two"), line(2, "b")).unwrap();
        let shown = last_lines(&[at("one"), at("two"), at("three")]);
        let lines = shown["lines"].as_array().unwrap();
        assert_eq!(lines.len(), 2, "{shown}");
        assert!(lines[0]["text"].as_str().unwrap().ends_with("b"));
        assert_eq!(lines[0]["trouble"], false);
        let text = lines[1]["text"].as_str().unwrap();
        assert!(text.ends_with("a fatal \\u{1b}[2J<b>"), "{text}");
        assert_eq!(lines[1]["trouble"], true);
        assert!(shown["unread"][0].as_str().unwrap().contains("three"));
        let many: String = (0..500).map(|number| line(number % 60, "x")).collect();
        std::fs::write(at("two"), many).unwrap();
        let lines = last_lines(&[at("two")]);
        assert_eq!(lines["lines"].as_array().unwrap().len(), LINES);
    }
}
