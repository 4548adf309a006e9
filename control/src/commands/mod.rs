//! The commands: a table of names, usages and handlers. What they print is what scripts parse, so
//! lists hold digits and nothing else, and more is said in the log.
//!
//! NVIDIA's exits 0 whatever comes of a command. Ours exits 1 when a command was refused or failed:
//! no tool that is known depends on the 0, and scripts under `set -e` want to know. Two failures in
//! name only keep it: an empty line, with which here-documents end, and `ps` where no server runs.
//!
//! Called by `daemon::connections` for each line. Must not know sockets: a caller and a line come in, an answer
//! goes out.

mod answer;
mod clients;
mod devices;
mod faults;
mod groups;
mod label;
mod limit_answers;
mod limit_command;
mod line;
mod lookup;
mod partitions;
mod row;
mod server_limits;
mod servers;

use serde_json::json;

use crate::daemon::Daemon;

pub use answer::{Answer, Awaited, Caller};
pub use devices::{device_from_json, device_json};
pub use groups::{group_added, group_limits};
pub use limit_answers::{client_limits, refused_change};
pub use line::{Arguments, CommandLine, LineError};
pub use row::Command;

use lookup::not_allowed;

/// What most rows have.
const PLAIN: Command = Command {
    name: "",
    usage: "",
    what: "",
    flags: &[],
    values: &[],
    words: 0,
    changes: false,
    quiet: false,
    run: |_, _, _| Answer::nothing(),
};

/// All commands, in the order in which the usage text has them. Each takes `--json` too.
pub const COMMANDS: &[Command] = &[
    Command {
        name: "start_server",
        usage: "-uid <user id>",
        what: "start a server for a user",
        values: &["-uid"],
        run: servers::start_server, // for oneself, or for root
        ..PLAIN
    },
    Command {
        name: "shutdown_server",
        usage: "<PID> [-f]",
        what: "end a server when its clients have left, or at once",
        flags: &["-f"],
        words: 1,
        changes: true,
        run: servers::shutdown_server,
        ..PLAIN
    },
    Command {
        name: "quit",
        usage: "[-t <seconds>]",
        what: "end the servers when their clients have left or the time is over, and the daemon",
        values: &["-t"],
        changes: true,
        run: servers::quit,
        ..PLAIN
    },
    Command {
        name: "upgrade",
        what: "go on as the program now installed: running clients go over to its servers (--failover) or stay, later ones get new ones",
        changes: true,
        run: servers::upgrade,
        ..PLAIN
    },
    Command {
        name: "get_server_list",
        what: "list the servers",
        run: servers::get_server_list,
        ..PLAIN
    },
    Command {
        name: "get_server_status",
        usage: "<PID>",
        what: "say in what state a server is: INITIALIZING, ACTIVE, FAULT or STOPPING",
        words: 1,
        run: servers::get_server_status,
        ..PLAIN
    },
    Command {
        name: "get_client_list",
        usage: "<PID>",
        what: "list the clients of a server",
        words: 1,
        run: clients::get_client_list,
        ..PLAIN
    },
    Command {
        name: "get_device_client_list",
        usage: "[<PID>]",
        what: "list the devices with their clients",
        words: 1,
        run: devices::get_device_client_list,
        ..PLAIN
    },
    Command {
        name: "ps",
        usage: "[-p <PID>]",
        what: "show the clients of all servers or of one",
        values: &["-p"],
        run: clients::ps,
        ..PLAIN
    },
    Command {
        name: "set_default_active_thread_percentage",
        usage: "<percentage>",
        what: "set the active thread percentage of later servers",
        words: 1,
        changes: true,
        run: server_limits::set_default_active_thread_percentage,
        ..PLAIN
    },
    Command {
        name: "get_default_active_thread_percentage",
        what: "show it",
        run: server_limits::get_default_active_thread_percentage,
        ..PLAIN
    },
    Command {
        name: "set_active_thread_percentage",
        usage: "<PID> <percentage>",
        what: "set the active thread percentage of a server's later clients",
        words: 2,
        changes: true,
        run: server_limits::set_active_thread_percentage,
        ..PLAIN
    },
    Command {
        name: "get_active_thread_percentage",
        usage: "<PID>",
        what: "show it",
        words: 1,
        run: server_limits::get_active_thread_percentage,
        ..PLAIN
    },
    Command {
        name: "set_default_device_pinned_mem_limit",
        usage: "<device> <size>",
        what: "set the memory limit of each client of later servers",
        words: 2,
        changes: true,
        run: server_limits::set_default_device_pinned_mem_limit,
        ..PLAIN
    },
    Command {
        name: "get_default_device_pinned_mem_limit",
        usage: "<device>",
        what: "show it",
        words: 1,
        run: server_limits::get_default_device_pinned_mem_limit,
        ..PLAIN
    },
    Command {
        name: "set_device_pinned_mem_limit",
        usage: "<PID> <device> <size>",
        what: "set the memory limit of each later client of a server",
        words: 3,
        changes: true,
        run: server_limits::set_device_pinned_mem_limit,
        ..PLAIN
    },
    Command {
        name: "get_device_pinned_mem_limit",
        usage: "<PID> <device>",
        what: "show it",
        words: 2,
        run: server_limits::get_device_pinned_mem_limit,
        ..PLAIN
    },
    Command {
        name: "set_default_client_priority",
        usage: "<priority>",
        what: "set the priority of later clients, 0 normal or 1 below normal",
        words: 1,
        changes: true,
        run: server_limits::set_default_client_priority,
        ..PLAIN
    },
    Command {
        name: "get_default_client_priority",
        what: "show it",
        run: server_limits::get_default_client_priority,
        ..PLAIN
    },
    Command {
        name: "set_default_kernel_time_limit",
        usage: "<time>|none",
        what: "set how long a kernel of later servers' clients may run, as 500ms or 30s",
        words: 1,
        changes: true,
        run: server_limits::set_default_kernel_time_limit,
        ..PLAIN
    },
    Command {
        name: "get_default_kernel_time_limit",
        what: "show it",
        run: server_limits::get_default_kernel_time_limit,
        ..PLAIN
    },
    Command {
        name: "terminate_client",
        usage: "<server PID> <client PID>",
        what: "end a client's work and contexts; its process lives on and gets error 810",
        words: 2,
        changes: true,
        run: clients::terminate_client,
        ..PLAIN
    },
    Command {
        name: "faults",
        what: "show the last faults of clients: who had them, when, and whose they were",
        quiet: true,
        run: faults::faults,
        ..PLAIN
    },
    Command {
        name: "device_query",
        usage: "[<PID>] [--csv]",
        what: "show the devices that are offered, and those of each server",
        flags: &["--csv"],
        words: 1,
        run: devices::device_query,
        ..PLAIN
    },
    Command {
        name: "group",
        usage: "list | show <name> | remove <name> | add <name> [--memory <device>=<size>,...] \
                [--percentage <percentage>] [--reserved] [--fenced] [--kernel-time <time>|none] [--cgroup <path>]",
        what: "groups of clients that share a budget of memory and a part of the compute",
        flags: &["--reserved", "--fenced"],
        values: &["--memory", "--percentage", "--kernel-time", "--cgroup"],
        words: 2,
        run: groups::group, // which says itself who may
        ..PLAIN
    },
    Command {
        name: "limit",
        usage: "show|set --client <PID>|--group <name> [--memory <device>=<size>|none,...] \
                [--percentage <percentage>] [--reserved|--no-reserved] [--fenced|--no-fenced] \
                [--priority 0|1] [--kernel-time <time>|none]",
        what: "show what a running client or a group may have, or change it at once",
        flags: &["--reserved", "--no-reserved", "--fenced", "--no-fenced"],
        values: &[
            "--client",
            "--group",
            "--memory",
            "--percentage",
            "--priority",
            "--kernel-time",
        ],
        words: 1,
        run: limit_command::limit, // as above
        ..PLAIN
    },
    Command {
        name: "label",
        usage: "<PID>|<session> [<text>]",
        what: "give a client a name of its own in lists, for its user or root; without a text, take it away",
        words: label::WORDS,
        run: label::label, // which says itself who may
        ..PLAIN
    },
    Command {
        name: "lspart",
        what: "list the static partitions of a daemon with -S",
        run: partitions::lspart,
        ..PLAIN
    },
    Command {
        name: "sm_partition",
        usage: "add <device> <chunks> | rm <device> <partition>",
        what: "make or remove a static partition, which clients name in CUDA_MPS_SM_PARTITION",
        words: 3,
        changes: true,
        run: partitions::sm_partition,
        ..PLAIN
    },
    Command {
        name: "underlay",
        what: "say what runs beneath the servers, and why if nothing does",
        run: servers::underlay, // which says less to others than root and the owner
        ..PLAIN
    },
    Command {
        name: "ping",
        what: "say that the daemon runs, without a line in its logs",
        quiet: true,
        run: |_, _, _| Answer::line("The daemon runs"),
        ..PLAIN
    },
    Command {
        name: "help",
        usage: "[<command>]",
        what: "show the commands, or what one does",
        words: 1,
        run: |_, _, arguments| help(arguments),
        ..PLAIN
    },
];

/// Reads a line as one of these commands.
///
/// # Errors
/// As [`line::parse`].
pub fn parse(line: &str) -> Result<CommandLine<'_>, LineError<'_>> {
    line::parse(COMMANDS, line)
}

/// Carries out a line.
pub fn run(daemon: &mut Daemon, caller: Caller, line: &str) -> Answer {
    let parsed = match parse(line) {
        Ok(parsed) => parsed,
        // See above.
        Err(empty @ LineError::Unknown("")) => return Answer::line(empty),
        Err(error) => {
            let mut answer = Answer::refusal(error);
            answer.as_json = line.split_whitespace().any(|word| word == "--json");
            return answer;
        }
    };
    let command = parsed.command;
    let mut answer = if command.changes && !daemon.may_change(caller) {
        not_allowed(caller, command.name)
    } else {
        (command.run)(daemon, caller, &parsed.arguments)
    };
    answer.as_json = parsed.arguments.json;
    answer
}

/// Whether the logs say nothing of a line.
#[must_use]
pub fn is_quiet(line: &str) -> bool {
    parse(line).is_ok_and(|parsed| parsed.command.quiet)
}

/// The commands with their usages, a command to a line and what it does below it.
#[must_use]
pub fn list() -> String {
    use std::fmt::Write;
    let mut text = String::new();
    for command in COMMANDS {
        let _ = writeln!(
            text,
            "{}",
            format!("  {} {}", command.name, command.usage).trim_end()
        );
        let _ = writeln!(text, "                             {}", command.what);
    }
    text
}

fn help(arguments: &Arguments<'_>) -> Answer {
    let value = |command: &Command| json!({ "name": command.name, "usage": command.usage, "what": command.what });
    let Some(name) = arguments.word(0) else {
        let all = COMMANDS.iter().map(value).collect();
        return Answer::text(list()).with_value(all);
    };
    match COMMANDS.iter().find(|command| command.name == name) {
        Some(command) => {
            let usage = format!("{} {}", command.name, command.usage);
            Answer::text(format!("{}\n  {}\n", usage.trim_end(), command.what))
                .with_value(value(command))
        }
        None => Answer::refusal(LineError::Unknown(name)),
    }
}
