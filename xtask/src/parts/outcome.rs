//! What the parts of a run came to, and the table of it.
//!
//! Must not know how parts are run.

use std::time::Duration;

/// What a part came to.
#[derive(Debug)]
pub(super) struct PartOutcome {
    pub(super) name: &'static str,
    pub(super) took: Duration,
    /// What it had of the processors, where the kernel tells.
    pub(super) processors: Option<Duration>,
    pub(super) result: Ending,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ending {
    Passed,
    Failed(String),
    NotRun(String),
}

impl PartOutcome {
    /// Of one that was not begun.
    pub(super) fn not_run(name: &'static str, why: &str) -> Self {
        Self {
            name,
            took: Duration::ZERO,
            processors: None,
            result: Ending::NotRun(why.to_owned()),
        }
    }
}

impl Ending {
    /// The result, and why.
    pub(super) fn words(&self) -> (&'static str, &str) {
        match self {
            Self::Passed => ("passed", ""),
            Self::Failed(why) => ("FAILED", why),
            Self::NotRun(why) => ("NOT RUN", why),
        }
    }
}

pub(super) fn minutes(took: Duration) -> String {
    let seconds = took.as_secs();
    format!("{}:{:02}", seconds / 60, seconds % 60)
}

/// What each part came to, in the order in which they ended, and how long all took, beside each other as they ran.
pub(super) fn table(outcomes: &[PartOutcome], all: Duration) -> String {
    let row = |name: &str, took: &str, processors: &str, result: &str| {
        let line = format!("{name:<24} {took:>6} {processors:>10}  {result}");
        line.trim_end().to_owned()
    };
    let mut lines = vec![row("part", "min:s", "processors", "result")];
    lines.extend(outcomes.iter().map(|outcome| {
        let (result, why) = outcome.result.words();
        let result = match why.is_empty() {
            true => result.to_owned(),
            false => format!("{result}: {why}"),
        };
        let processors = outcome.processors.map_or_else(String::new, minutes);
        row(outcome.name, &minutes(outcome.took), &processors, &result)
    }));
    let processors = outcomes.iter().filter_map(|it| it.processors).sum();
    lines.push(row("all", &minutes(all), &minutes(processors), ""));
    lines.join("\n")
}
