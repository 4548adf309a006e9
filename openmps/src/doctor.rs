//! `openmps doctor`: what is wrong with this machine's set-up, and how to mend it.
//!
//! It looks and asks, and changes nothing. What a program would find is what counts: the same
//! variables, the same user, the same places.

mod checks;
mod confinement;
mod underlay;

use std::process::ExitCode;

use anyhow::Result;

/// What came of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    /// As it should be, or a fact.
    Ok,
    /// Works, but perhaps not as meant.
    Warning,
    /// Programs will fail.
    Problem,
}

/// One finding.
#[derive(Debug, serde::Serialize)]
struct Finding {
    /// What was looked at.
    subject: &'static str,
    state: State,
    /// What was found.
    text: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    mend: Option<String>,
}

impl Finding {
    fn new(subject: &'static str, state: State, text: impl Into<String>) -> Self {
        Self {
            subject,
            state,
            text: text.into(),
            mend: None,
        }
    }

    fn ok(subject: &'static str, text: impl Into<String>) -> Self {
        Self::new(subject, State::Ok, text)
    }

    fn warning(subject: &'static str, text: impl Into<String>, mend: impl Into<String>) -> Self {
        Self {
            mend: Some(mend.into()),
            ..Self::new(subject, State::Warning, text)
        }
    }

    fn problem(subject: &'static str, text: impl Into<String>, mend: impl Into<String>) -> Self {
        Self {
            mend: Some(mend.into()),
            ..Self::new(subject, State::Problem, text)
        }
    }
}

#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Print what was found as JSON
    #[arg(long)]
    json: bool,
}

/// Looks at everything. The exit status is 1 when programs will fail.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let findings = checks::all();
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&findings)?);
    } else {
        print!("{}", text(&findings));
    }
    let worst = findings.iter().map(|finding| finding.state).max();
    Ok(match worst {
        Some(State::Problem) => ExitCode::FAILURE,
        _ => ExitCode::SUCCESS,
    })
}

fn text(findings: &[Finding]) -> String {
    let mut text = String::new();
    for finding in findings {
        let state = match finding.state {
            State::Ok => "ok",
            State::Warning => "warning",
            State::Problem => "PROBLEM",
        };
        text += &format!("{state:<8} {:<16} {}\n", finding.subject, finding.text);
        if let Some(mend) = &finding.mend {
            text += &format!("{:25} -> {mend}\n", "");
        }
    }
    text
}
