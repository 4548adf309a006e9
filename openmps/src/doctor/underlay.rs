//! What runs beneath servers, and why if nothing does.
//!
//! Called by `doctor::checks`. Must not start anything: the daemon is asked.

use control::Directories;
use control::underlay::{Mode, NoProgram, UnderlayError};
use serde_json::Value;

use super::finding::Finding;

const SUBJECT: &str = "underlay";

/// What holds for a daemon that runs; else what one from here would get.
pub(super) fn running(directories: &Directories) -> Finding {
    let asked = control::ask(&directories.control_socket(), "underlay --json").ok();
    let told = asked.filter(|(_, exit)| *exit == 0);
    match told.and_then(|(text, _)| serde_json::from_str::<Value>(&text).ok()) {
        Some(value) => said(&value),
        None => possible(Mode::asked(None), control::underlay::program()),
    }
}

fn said(value: &Value) -> Finding {
    let of = |name: &str| value[name].as_str().unwrap_or_default();
    let (mode, state) = (of("mode"), of("state"));
    let text = match of("text") {
        "" => format!("{mode}: {state}"),
        text => format!("{mode}: {text}"),
    };
    let mend = "control.log has NVIDIA's last words: openmps logs; a daemon with --underlay=none does without";
    let contexts = &value["contexts"];
    let users = contexts["users"].as_array().into_iter().flatten();
    let lacks_some = |user: &Value| {
        user["why_not_more"].is_string() && user["contexts"].as_u64() < contexts["most"].as_u64()
    };
    match (Mode::named(mode), state) {
        (Some(Mode::NvidiaMps), "absent") => Finding::problem(SUBJECT, text, mend),
        (_, "absent") => Finding::warning(SUBJECT, text, mend),
        _ if users.clone().any(lacks_some) => Finding::warning(
            SUBJECT,
            text,
            "clients share the contexts that there are; --contexts asks for another number",
        ),
        _ => Finding::ok(SUBJECT, text),
    }
}

fn possible(
    mode: Result<Mode, UnderlayError>,
    program: Result<std::path::PathBuf, NoProgram>,
) -> Finding {
    let mode = match mode {
        Ok(mode) => mode,
        Err(error) => {
            return Finding::problem(SUBJECT, error.to_string(), "mend or unset the variable");
        }
    };
    let name = mode.name();
    match (mode, program) {
        (Mode::NvidiaMps, Err(why)) => Finding::problem(
            SUBJECT,
            format!("{name}: {why}, so that no daemon starts"),
            "install NVIDIA's programs, or unset OPENMPS_UNDERLAY",
        ),
        (Mode::None, Ok(program)) => Finding::ok(
            SUBJECT,
            format!(
                "{name}; {} could run beneath servers: openmps control --underlay=auto",
                program.display()
            ),
        ),
        (Mode::None, Err(_)) => Finding::ok(SUBJECT, name),
        (_, Ok(program)) => Finding::ok(SUBJECT, format!("{name}: {}", program.display())),
        (_, Err(why)) => Finding::ok(SUBJECT, format!("{name}: there is none: {why}")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::doctor::finding::CheckOutcome;

    #[test]
    fn one_that_is_absent_is_worse_where_it_must_be_had() {
        let of =
            |mode: &str, state: &str| said(&json!({ "mode": mode, "state": state, "text": "t" }));
        assert_eq!(of("none", "off").state, CheckOutcome::Ok);
        assert_eq!(of("auto", "up").state, CheckOutcome::Ok);
        assert_eq!(of("auto", "absent").state, CheckOutcome::Warning);
        assert_eq!(of("nvidia-mps", "absent").state, CheckOutcome::Problem);
        assert_eq!(of("auto", "up").text, "auto: t");
        assert_eq!(
            said(&json!({ "mode": "auto", "state": "up" })).text,
            "auto: up"
        );
    }

    #[test]
    fn fewer_contexts_than_were_asked_for_are_told() {
        let of = |why: Option<&str>| {
            let user = json!({ "uid": 7, "contexts": 3, "why_not_more": why });
            let contexts = json!({ "most": 8, "users": [user] });
            said(&json!({ "mode": "auto", "state": "up", "text": "t", "contexts": contexts })).state
        };
        assert_eq!(of(None), CheckOutcome::Ok, "they are being made");
        assert_eq!(of(Some("memory")), CheckOutcome::Warning);
    }

    #[test]
    fn without_a_daemon_it_is_said_what_one_would_get() {
        let there = || Ok(std::path::PathBuf::from("/usr/bin/x"));
        let not = || Err(NoProgram::SoftwareGpu);
        assert!(
            possible(Ok(Mode::None), there())
                .text
                .contains("--underlay=auto")
        );
        assert_eq!(possible(Ok(Mode::None), not()).text, "none");
        assert_eq!(
            possible(Ok(Mode::NvidiaMps), not()).state,
            CheckOutcome::Problem
        );
        assert_eq!(possible(Ok(Mode::Auto), not()).state, CheckOutcome::Ok);
        assert_eq!(
            possible(
                Err(UnderlayError::Mode {
                    text: "x".into(),
                    names: Mode::NAMES,
                }),
                not()
            )
            .state,
            CheckOutcome::Problem
        );
    }
}
