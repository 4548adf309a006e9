//! What the kernel can refuse to daemon and servers, and what it does.
//!
//! Called by `doctor::checks`. Must not restrict anything itself.

use control::Directories;
use sandbox::{Kernel, ProcessState, Setting, VARIABLE};

use super::finding::Finding;
use super::listed_servers;

const SUBJECT: &str = "sandbox";

/// The version of Landlock from which on all that is asked for holds.
const WHOLE_LANDLOCK: u32 = 6;

/// What a daemon that starts here will get.
pub(super) fn possible(kernel: Kernel) -> Finding {
    match sandbox::setting() {
        Err(error) => {
            return Finding::problem(SUBJECT, error.to_string(), "mend or unset the variable");
        }
        Ok(Setting::Off) => {
            return Finding::warning(
                SUBJECT,
                format!(
                    "{VARIABLE}=off: a daemon from here can do all that its user can, and so can servers"
                ),
                format!("unset {VARIABLE} unless a driver needs it"),
            );
        }
        Ok(Setting::Usual | Setting::Strict) => {}
    }
    let files = match kernel.landlock {
        0 => "has no Landlock, so that servers can open their user's files".to_owned(),
        version if version < WHOLE_LANDLOCK => {
            format!("has Landlock of version {version}, which restricts files in part")
        }
        version => format!("has Landlock of version {version}"),
    };
    if !kernel.filters_calls {
        return Finding::warning(
            SUBJECT,
            format!("this kernel cannot filter system calls, and {files}"),
            "a kernel with CONFIG_SECCOMP_FILTER, or a container whose profile allows the call seccomp",
        );
    }
    let text = format!("this kernel filters system calls, and {files}");
    match kernel.landlock {
        0 => Finding::warning(
            SUBJECT,
            text,
            "a kernel with CONFIG_SECURITY_LANDLOCK, and landlock among those of lsm= where it is given",
        ),
        _ => Finding::ok(SUBJECT, text),
    }
}

/// What holds for a daemon that runs, and for its servers.
pub(super) fn running(directories: &Directories) -> Option<Finding> {
    let daemon = std::fs::read_to_string(directories.pid()).ok()?;
    let socket = directories.control_socket();
    let (servers, _) = control::ask(&socket, listed_servers::COMMAND).ok()?;
    let daemon: u32 = daemon.trim().parse().ok()?;
    let own = ProcessState::of(std::process::id())?;
    let servers = listed_servers::read(&servers)
        .into_iter()
        .map(|server| server.pid);
    let processes = std::iter::once(("daemon", daemon)).chain(servers.map(|pid| ("server", pid)));
    let states = processes.filter_map(|(what, pid)| {
        // A process of another namespace has other numbers here.
        let state = ProcessState::of(pid)?;
        Some((format!("{what} {pid}"), is_filtered(state, own)))
    });
    said(&states.collect::<Vec<_>>())
}

/// A container's own filter is everybody's there, this program's too.
fn is_filtered(state: ProcessState, own: ProcessState) -> bool {
    state.calls_are_filtered
        && state
            .filters
            .is_none_or(|count| count > own.filters.unwrap_or(0))
}

fn said(states: &[(String, bool)]) -> Option<Finding> {
    let of = |filtered: bool| {
        let those = states.iter().filter(|(_, is)| *is == filtered);
        those
            .map(|(name, _)| name.as_str())
            .collect::<Vec<_>>()
            .join(", ")
    };
    let (filtered, open) = (of(true), of(false));
    match (filtered.is_empty(), open.is_empty()) {
        (true, true) => None,
        (_, true) => Some(Finding::ok(
            SUBJECT,
            format!("system calls are filtered of {filtered}"),
        )),
        _ => Some(Finding::warning(
            SUBJECT,
            format!("system calls are not filtered of {open}"),
            "control.log and server.log say why: openmps logs",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::CheckOutcome;

    #[test]
    fn a_kernel_that_can_less_is_told() {
        let kernel = |filters_calls, landlock| Kernel {
            filters_calls,
            landlock,
        };
        assert_eq!(possible(kernel(true, 7)).state, CheckOutcome::Ok);
        let older = possible(kernel(true, 3));
        assert!(older.state == CheckOutcome::Ok && older.text.contains("version 3"));
        let none = possible(kernel(true, 0));
        assert!(none.state == CheckOutcome::Warning && none.mend.unwrap().contains("LANDLOCK"));
        let neither = possible(kernel(false, 0));
        assert!(neither.text.contains("no Landlock") && neither.mend.unwrap().contains("SECCOMP"));
    }

    #[test]
    fn a_filter_of_the_container_is_not_ours() {
        let state = |calls_are_filtered, filters| ProcessState {
            calls_are_filtered,
            filters,
        };
        assert!(is_filtered(state(true, Some(1)), state(false, Some(0))));
        assert!(is_filtered(state(true, None), state(true, None)));
        assert!(!is_filtered(state(true, Some(1)), state(true, Some(1))));
        assert!(!is_filtered(state(false, Some(0)), state(false, Some(0))));
    }

    #[test]
    fn who_is_not_filtered_is_named() {
        let states = [
            ("daemon 7".to_owned(), true),
            ("server 8".to_owned(), false),
        ];
        assert!(said(&[]).is_none());
        assert_eq!(said(&states[..1]).unwrap().state, CheckOutcome::Ok);
        let found = said(&states).unwrap();
        assert!(found.state == CheckOutcome::Warning && found.text.contains("server 8"));
    }
}
