//! The parts of a long run: which one is under way, and at the end a table of what each came to and how long it took.
//!
//! A part that fails does not keep the others from running, so that one run shows all that is wrong.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// A part that is to run.
pub struct Part {
    name: &'static str,
    run: Box<dyn FnOnce() -> Result<()>>,
}

/// A part by its name.
pub fn part(name: &'static str, run: impl FnOnce() -> Result<()> + 'static) -> Part {
    let run = Box::new(run);
    Part { name, run }
}

/// What a part came to.
#[derive(Debug)]
struct Outcome {
    name: &'static str,
    took: Duration,
    has_passed: bool,
}

/// Runs parts one after another, and prints the table.
///
/// # Errors
/// When some failed: which.
pub fn run(parts: Vec<Part>) -> Result<()> {
    let count = parts.len();
    let mut outcomes = Vec::new();
    for (index, part) in parts.into_iter().enumerate() {
        let name = part.name;
        println!("xtask: part {} of {count}: {name}", index + 1);
        let begun = Instant::now();
        let result = (part.run)();
        if let Err(error) = &result {
            println!("xtask: {name} failed: {error:#}");
        }
        outcomes.push(Outcome {
            name,
            took: begun.elapsed(),
            has_passed: result.is_ok(),
        });
    }
    println!("{}", table(&outcomes));
    let failed = outcomes.iter().filter(|outcome| !outcome.has_passed);
    let failed: Vec<&str> = failed.map(|outcome| outcome.name).collect();
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(())
}

fn table(outcomes: &[Outcome]) -> String {
    let row = |name: &str, took: Duration, result: &str| {
        let seconds = took.as_secs();
        format!(
            "{name:<30} {:>3}:{:02}  {result}",
            seconds / 60,
            seconds % 60
        )
    };
    let mut lines = vec![format!("{:<30} {:>6}  result", "part", "min:s")];
    lines.extend(outcomes.iter().map(|outcome| {
        let result = if outcome.has_passed {
            "passed"
        } else {
            "FAILED"
        };
        row(outcome.name, outcome.took, result)
    }));
    let all = outcomes.iter().map(|outcome| outcome.took).sum();
    lines.push(row("all", all, "").trim_end().to_owned());
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::*;

    #[test]
    fn all_parts_run_and_the_failed_are_named() {
        let ran = Rc::new(Cell::new(0));
        let counted = |name, result: fn() -> Result<()>| {
            let ran = Rc::clone(&ran);
            part(name, move || {
                ran.set(ran.get() + 1);
                result()
            })
        };
        let parts = vec![
            counted("one", || bail!("no room")),
            counted("two", || Ok(())),
            counted("three", || bail!("no time")),
        ];
        assert_eq!(run(parts).unwrap_err().to_string(), "failed: one, three");
        assert_eq!(ran.get(), 3);
    }

    #[test]
    fn the_table_has_times_and_results() {
        let outcome = |name, seconds, has_passed| Outcome {
            name,
            took: Duration::from_secs(seconds),
            has_passed,
        };
        let table = table(&[outcome("build", 75, true), outcome("loom", 4, false)]);
        let lines: Vec<Vec<&str>> = table
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(lines[0], ["part", "min:s", "result"]);
        assert_eq!(lines[1], ["build", "1:15", "passed"]);
        assert_eq!(lines[2], ["loom", "0:04", "FAILED"]);
        assert_eq!(lines[3], ["all", "1:19"]);
    }
}
