//! `openmps doctor`: what is wrong with this machine's set-up, and how to mend it.
//!
//! It looks and asks, and changes nothing. What a program would find is what counts: the same
//! variables, the same user, the same places.
//!
//! Called by `main`. Must not mend anything.

mod checks;
mod compiled_code;
mod confinement;
mod finding;
mod listed_servers;
mod machine;
mod underlay;

use std::process::ExitCode;

use anyhow::Result;

use finding::{CheckOutcome, Finding};

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
        Some(CheckOutcome::Problem) => ExitCode::FAILURE,
        _ => ExitCode::SUCCESS,
    })
}

fn text(findings: &[Finding]) -> String {
    let mut text = String::new();
    for finding in findings {
        let state = match finding.state {
            CheckOutcome::Ok => "ok",
            CheckOutcome::Warning => "warning",
            CheckOutcome::Problem => "PROBLEM",
        };
        text += &format!("{state:<8} {:<16} {}\n", finding.subject, finding.text);
        if let Some(mend) = &finding.mend {
            text += &format!("{:25} -> {mend}\n", "");
        }
    }
    text
}
