//! nvprof's tables: for each kernel, kind of copy and call how often and how long.
//!
//! Called by `openmps trace summary`. Must not know how a file was made: it reads any of Chrome's form.

use std::collections::HashMap;
use std::io::{self, Read};

use serde::Serialize;

use crate::chrome::category;
use crate::chrome::read::{Entry, Header, ReadError, read};

/// The most names that are told apart; what comes after counts as one.
const MOST_NAMES: usize = 100_000;

/// The name of all that came after [`MOST_NAMES`].
const OTHERS: &str = "(others)";

/// What a row is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub enum Section {
    /// Kernels, copies and fills.
    #[serde(rename = "GPU activities")]
    Gpu,
    /// Calls of the driver or runtime API.
    #[serde(rename = "API calls")]
    Calls,
}

impl Section {
    /// nvprof's word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Gpu => "GPU activities",
            Self::Calls => "API calls",
        }
    }
}

/// One row.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// In which table.
    #[serde(rename = "type")]
    pub section: Section,
    /// Its part of the table's time, in percent.
    pub percent: f64,
    /// All its time.
    pub time_ns: u64,
    /// How often.
    pub calls: u64,
    /// On the average.
    pub avg_ns: u64,
    /// The shortest.
    pub min_ns: u64,
    /// The longest.
    pub max_ns: u64,
    /// The kernel, the function, or nvprof's name of a kind of copy.
    pub name: String,
}

#[derive(Clone, Copy, Debug)]
struct Sums {
    time: u64,
    calls: u64,
    min: u64,
    max: u64,
}

/// Adds up files.
#[derive(Debug, Default)]
pub struct Summary {
    sums: HashMap<(Section, String), Sums>,
    dropped: u64,
}

impl Summary {
    /// Adds a file.
    ///
    /// # Errors
    /// As [`read`] has them; what was read by then is in the sums.
    pub fn add(&mut self, file: impl Read) -> Result<Header, ReadError> {
        read(file, |entry| {
            self.count(&entry);
            Ok(())
        })
    }

    /// How many activities the files say that they lack.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    fn count(&mut self, entry: &Entry) {
        let name = entry.text("name");
        if entry.text("cat") == category::NOTE && name == "dropped" {
            let count = entry
                .argument("dropped")
                .and_then(serde_json::Value::as_u64);
            self.dropped = self.dropped.saturating_add(count.unwrap_or_default());
        }
        if entry.phase() != b'X' {
            return;
        }
        // Kineto's of old had capitals.
        let (section, name) = match entry.text("cat").to_ascii_lowercase().as_str() {
            category::KERNEL => (Section::Gpu, name.to_owned()),
            category::COPY | "memcpy" => (Section::Gpu, copy_name(name)),
            category::FILL | "memset" => (Section::Gpu, "[CUDA memset]".to_owned()),
            category::DRIVER_CALL | category::RUNTIME_CALL | "runtime" => {
                (Section::Calls, name.to_owned())
            }
            _ => return,
        };
        let duration = entry.nanoseconds("dur").unwrap_or_default();
        let time = u64::try_from(duration).unwrap_or_default();
        let mut key = (section, name);
        if self.sums.len() >= MOST_NAMES && !self.sums.contains_key(&key) {
            key.1 = OTHERS.to_owned();
        }
        let sums = self.sums.entry(key).or_insert(Sums {
            time: 0,
            calls: 0,
            min: u64::MAX,
            max: 0,
        });
        sums.time = sums.time.saturating_add(time);
        sums.calls += 1;
        sums.min = sums.min.min(time);
        sums.max = sums.max.max(time);
    }

    /// The rows: GPU activities first, in each table what took longest first.
    #[must_use]
    pub fn rows(&self) -> Vec<Row> {
        let whole = |of: Section| {
            self.sums
                .iter()
                .filter(|((section, _), _)| *section == of)
                .fold(0_u64, |sum, (_, sums)| sum.saturating_add(sums.time))
        };
        let (gpu, calls) = (whole(Section::Gpu), whole(Section::Calls));
        let mut rows: Vec<Row> = self
            .sums
            .iter()
            .map(|((section, name), sums)| {
                let all = if *section == Section::Gpu { gpu } else { calls };
                #[allow(clippy::cast_precision_loss, reason = "a percentage, for people")]
                let percent = if all == 0 {
                    0.0
                } else {
                    sums.time as f64 * 100.0 / all as f64
                };
                Row {
                    section: *section,
                    percent,
                    time_ns: sums.time,
                    calls: sums.calls,
                    avg_ns: sums.time / sums.calls.max(1),
                    min_ns: sums.min,
                    max_ns: sums.max,
                    name: name.clone(),
                }
            })
            .collect();
        rows.sort_by(|left, right| {
            (left.section, u64::MAX - left.time_ns, &left.name).cmp(&(
                right.section,
                u64::MAX - right.time_ns,
                &right.name,
            ))
        });
        rows
    }
}

/// `Memcpy HtoD (Pageable -> Device)` is nvprof's `[CUDA memcpy HtoD]`.
fn copy_name(name: &str) -> String {
    let kind = name
        .split_whitespace()
        .find(|word| word.len() <= 6 && word.contains("to"));
    match kind {
        Some(kind) => format!("[CUDA memcpy {kind}]"),
        None => "[CUDA memcpy]".to_owned(),
    }
}

/// Writes the tables for people.
///
/// # Errors
/// The writer's.
pub fn print(rows: &[Row], out: &mut impl io::Write) -> io::Result<()> {
    if rows.is_empty() {
        return writeln!(out, "No GPU activities and no API calls were recorded.");
    }
    writeln!(
        out,
        "{:>15}  {:>7}  {:>9}  {:>9}  {:>9}  {:>9}  {:>9}  Name",
        "Type", "Time(%)", "Time", "Calls", "Avg", "Min", "Max"
    )?;
    let mut last = None;
    for row in rows {
        let label = if last == Some(row.section) {
            String::new()
        } else {
            format!("{}:", row.section.word())
        };
        last = Some(row.section);
        writeln!(
            out,
            "{label:>15}  {:>6.2}%  {:>9}  {:>9}  {:>9}  {:>9}  {:>9}  {}",
            row.percent,
            duration(row.time_ns),
            row.calls,
            duration(row.avg_ns),
            duration(row.min_ns),
            duration(row.max_ns),
            printable(&row.name)
        )?;
    }
    Ok(())
}

/// Writes the tables as comma-separated values, with nvprof's row of units.
///
/// # Errors
/// The writer's.
pub fn print_csv(rows: &[Row], out: &mut impl io::Write) -> io::Result<()> {
    writeln!(
        out,
        "\"Type\",\"Time(%)\",\"Time\",\"Calls\",\"Avg\",\"Min\",\"Max\",\"Name\""
    )?;
    writeln!(out, ",%,ns,,ns,ns,ns,")?;
    for row in rows {
        writeln!(
            out,
            "\"{}\",{:.6},{},{},{},{},{},\"{}\"",
            row.section.word(),
            row.percent,
            row.time_ns,
            row.calls,
            row.avg_ns,
            row.min_ns,
            row.max_ns,
            printable(&row.name).replace('"', "\"\"")
        )?;
    }
    Ok(())
}

/// A name without what a terminal would take for commands.
fn printable(name: &str) -> String {
    name.chars()
        .map(|character| {
            if character.is_control() || ('\u{2028}'..='\u{202e}').contains(&character) {
                '\u{fffd}'
            } else {
                character
            }
        })
        .collect()
}

/// Five digits and a unit, as nvprof has it.
fn duration(nanoseconds: u64) -> String {
    #[allow(clippy::cast_precision_loss, reason = "five digits are shown")]
    let exact = nanoseconds as f64;
    let (value, unit) = match nanoseconds {
        0..1_000 => return format!("{nanoseconds}ns"),
        1_000..1_000_000 => (exact / 1e3, "µs"),
        1_000_000..1_000_000_000 => (exact / 1e6, "ms"),
        _ => (exact / 1e9, "s"),
    };
    let places = match value {
        ..10.0 => 4,
        10.0..100.0 => 3,
        100.0..1_000.0 => 2,
        _ => 0,
    };
    format!("{value:.places$}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"{"traceEvents": [
        {"ph": "X", "cat": "kernel", "name": "add", "ts": 1, "dur": 300},
        {"ph": "X", "cat": "kernel", "name": "add", "ts": 400, "dur": 100.5},
        {"ph": "X", "cat": "Memcpy", "name": "Memcpy HtoD (Pageable -> Device)", "ts": 1, "dur": 0.512},
        {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD (Pinned -> Device)", "ts": 1, "dur": 0.5},
        {"ph": "X", "cat": "gpu_memset", "name": "Memset (Device)", "ts": 1, "dur": 2000000},
        {"ph": "X", "cat": "cuda_driver", "name": "cuLaunchKernel", "ts": 1, "dur": 5},
        {"ph": "X", "cat": "cuda_runtime", "name": "a \"b\", \u001b[2J", "ts": 1, "dur": -4},
        {"ph": "s", "cat": "kernel", "name": "add", "ts": 1, "dur": 7},
        {"ph": "X", "cat": "python_function", "name": "add", "ts": 1, "dur": 7},
        {"ph": "i", "cat": "openmps", "name": "dropped", "args": {"dropped": 12}}]}"#;

    fn summary() -> Summary {
        let mut summary = Summary::default();
        summary.add(FILE.as_bytes()).unwrap();
        summary
    }

    #[test]
    fn the_table_is_nvprofs() {
        let mut text = Vec::new();
        print(&summary().rows(), &mut text).unwrap();
        let expected = "           Type  Time(%)       Time      Calls        Avg        Min        Max  Name
GPU activities:   99.98%    2.0000s          1    2.0000s    2.0000s    2.0000s  [CUDA memset]
                   0.02%   400.50µs          2   200.25µs   100.50µs   300.00µs  add
                   0.00%   1.0120µs          2      506ns      500ns      512ns  [CUDA memcpy HtoD]
     API calls:  100.00%   5.0000µs          1   5.0000µs   5.0000µs   5.0000µs  cuLaunchKernel
                   0.00%        0ns          1        0ns        0ns        0ns  a \"b\", \u{fffd}[2J
";
        assert_eq!(String::from_utf8(text).unwrap(), expected);
        assert_eq!(summary().dropped(), 12);
    }

    #[test]
    fn values_may_be_parted_by_commas() {
        let mut text = Vec::new();
        print_csv(&summary().rows(), &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[1], ",%,ns,,ns,ns,ns,");
        assert_eq!(
            lines[3],
            "\"GPU activities\",0.020021,400500,2,200250,100500,300000,\"add\""
        );
        assert!(
            lines[6].ends_with(",\"a \"\"b\"\", \u{fffd}[2J\""),
            "{}",
            lines[6]
        );
    }

    #[test]
    fn names_are_bounded() {
        let mut summary = Summary::default();
        for name in 0..MOST_NAMES + 50 {
            let fields =
                serde_json::json!({"ph": "X", "cat": "kernel", "name": name.to_string(), "dur": 1});
            summary.count(&Entry(fields.as_object().unwrap().clone()));
        }
        assert_eq!(summary.sums.len(), MOST_NAMES + 1);
        let others = &summary.sums[&(Section::Gpu, OTHERS.to_owned())];
        assert_eq!(others.calls, 50);
    }
}
