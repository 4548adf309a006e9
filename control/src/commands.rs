//! The commands: a table of names, usages and handlers. What they print is what scripts parse, so
//! lists hold digits and nothing else, and more is said in the log.
//!
//! NVIDIA's exits 0 whatever comes of a command. Ours exits 1 when a command was refused or failed:
//! no tool that is known depends on the 0, and scripts under `set -e` want to know. Two failures in
//! name only keep it: an empty line, with which here-documents end, and `ps` where no server runs.

mod changes;
mod clients;
mod devices;
mod groups;
mod limits;
mod line;
mod partitions;
mod servers;

use std::fmt::Display;

use serde_json::{Value, json};

use crate::daemon::{Daemon, Until};
use crate::registry::{Server, ServerId};

pub use changes::{changed_client, changed_group, refused_change};
pub use devices::{device_from_json, device_json};
pub use groups::settled;
pub use line::{Arguments, Line, LineError, parse};

/// Who gave a command, by the kernel's word.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    /// Its user.
    pub uid: u32,
    /// Its process id as seen from here, or 0.
    pub pid: i32,
    /// The group to whose socket it came.
    pub group: Option<u32>,
}

/// What a command comes to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    /// What it prints.
    pub text: String,
    /// The same for programs; without it, what is made of the text.
    pub value: Option<Value>,
    /// Whether the value is to be printed.
    pub as_json: bool,
    /// What the command client exits with.
    pub exit: u8,
    /// What people are to read beside it, where tools parse the text.
    pub remark: Option<Box<str>>,
    /// What goes to the log in place of the text.
    pub log: Option<String>,
    /// What must come to pass before the answer is given.
    pub until: Option<Until>,
    /// Whether the command is to be carried out again then, in place of this answer.
    pub again: bool,
}

impl Answer {
    fn line(text: impl Display) -> Self {
        Self::text(format!("{text}\n"))
    }

    fn text(text: String) -> Self {
        Self {
            text,
            ..Self::default()
        }
    }

    fn nothing() -> Self {
        Self::default()
    }

    fn refusal(text: impl Display) -> Self {
        Self {
            exit: 1,
            ..Self::line(text)
        }
    }

    pub(crate) fn after(until: Until) -> Self {
        Self {
            until: Some(until),
            ..Self::default()
        }
    }

    /// Has the command carried out again when something has come to pass.
    fn again_after(until: Until) -> Self {
        Self {
            again: true,
            ..Self::after(until)
        }
    }

    fn with_value(self, value: Value) -> Self {
        Self {
            value: Some(value),
            ..self
        }
    }

    fn with_remark(self, remark: impl Display) -> Self {
        Self {
            remark: Some(remark.to_string().into()),
            ..self
        }
    }

    fn with_log(self, log: impl Into<String>) -> Self {
        Self {
            log: Some(log.into()),
            ..self
        }
    }

    /// Makes it a failure.
    pub(crate) fn fail(&mut self, text: &str) {
        self.text = format!("{text}\n");
        self.value = None;
        self.exit = 1;
        self.again = false;
    }

    /// What the command client prints.
    #[must_use]
    pub fn output(&self) -> String {
        if !self.as_json {
            return self.text.clone();
        }
        let text = self.text.trim_end();
        let value = match &self.value {
            Some(value) => value.clone(),
            None if self.exit != 0 => json!({ "error": text }),
            None if text.is_empty() => json!({}),
            None => json!({ "message": text }),
        };
        format!("{value}\n")
    }
}

/// A row of the table.
#[derive(Debug)]
pub struct Command {
    /// Its name, case-sensitive.
    pub name: &'static str,
    /// What follows the name.
    pub usage: &'static str,
    /// What it does, in a line.
    pub what: &'static str,
    /// Options without a value.
    flags: &'static [&'static str],
    /// Options with one.
    values: &'static [&'static str],
    /// Plain words at most.
    words: usize,
    /// Whether it is only for root and the daemon's own user.
    changes: bool,
    /// Whether the logs say nothing of it: it is given all the time.
    quiet: bool,
    run: fn(&mut Daemon, Caller, &Arguments<'_>) -> Answer,
}

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
        run: limits::set_default_active_thread_percentage,
        ..PLAIN
    },
    Command {
        name: "get_default_active_thread_percentage",
        what: "show it",
        run: limits::get_default_active_thread_percentage,
        ..PLAIN
    },
    Command {
        name: "set_active_thread_percentage",
        usage: "<PID> <percentage>",
        what: "set the active thread percentage of a server's later clients",
        words: 2,
        changes: true,
        run: limits::set_active_thread_percentage,
        ..PLAIN
    },
    Command {
        name: "get_active_thread_percentage",
        usage: "<PID>",
        what: "show it",
        words: 1,
        run: limits::get_active_thread_percentage,
        ..PLAIN
    },
    Command {
        name: "set_default_device_pinned_mem_limit",
        usage: "<device> <size>",
        what: "set the memory limit of each client of later servers",
        words: 2,
        changes: true,
        run: limits::set_default_device_pinned_mem_limit,
        ..PLAIN
    },
    Command {
        name: "get_default_device_pinned_mem_limit",
        usage: "<device>",
        what: "show it",
        words: 1,
        run: limits::get_default_device_pinned_mem_limit,
        ..PLAIN
    },
    Command {
        name: "set_device_pinned_mem_limit",
        usage: "<PID> <device> <size>",
        what: "set the memory limit of each later client of a server",
        words: 3,
        changes: true,
        run: limits::set_device_pinned_mem_limit,
        ..PLAIN
    },
    Command {
        name: "get_device_pinned_mem_limit",
        usage: "<PID> <device>",
        what: "show it",
        words: 2,
        run: limits::get_device_pinned_mem_limit,
        ..PLAIN
    },
    Command {
        name: "set_default_client_priority",
        usage: "<priority>",
        what: "set the priority of later clients, 0 normal or 1 below normal",
        words: 1,
        changes: true,
        run: limits::set_default_client_priority,
        ..PLAIN
    },
    Command {
        name: "get_default_client_priority",
        what: "show it",
        run: limits::get_default_client_priority,
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
                [--percentage <percentage>] [--reserved] [--cgroup <path>]",
        what: "groups of clients that share a budget of memory and a part of the compute",
        flags: &["--reserved"],
        values: &["--memory", "--percentage", "--cgroup"],
        words: 2,
        run: groups::group, // which says itself who may
        ..PLAIN
    },
    Command {
        name: "limit",
        usage: "show|set --client <PID>|--group <name> [--memory <device>=<size>|none,...] \
                [--percentage <percentage>] [--reserved|--no-reserved] [--priority 0|1]",
        what: "show what a running client or a group may have, or change it at once",
        flags: &["--reserved", "--no-reserved"],
        values: &[
            "--client",
            "--group",
            "--memory",
            "--percentage",
            "--priority",
        ],
        words: 1,
        run: changes::limit, // as above
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

/// What is said to who may not do what changes things.
fn not_allowed(caller: Caller, what: &str) -> Answer {
    if caller.group.is_some() {
        return Answer::refusal(format_args!(
            "{what} is for root, and not through a group's socket"
        ));
    }
    Answer::refusal(format_args!(
        "{what} is for root and user {} only",
        rustix::process::geteuid().as_raw()
    ))
}

/// What every command says of a server that is not there, or that the caller may not see.
fn not_found(pid: impl Display) -> Answer {
    Answer::refusal(format_args!("Server {pid} not found"))
}

/// The server that an argument names, if the caller may know of it.
fn server(daemon: &Daemon, caller: Caller, argument: Option<&str>) -> Result<ServerId, Answer> {
    let text = argument.unwrap_or("0");
    text.parse()
        .ok()
        .and_then(|pid| daemon.registry.by_pid(pid))
        .filter(|id| daemon.sees(caller, *id))
        .ok_or_else(|| not_found(text))
}

fn with_server(
    daemon: &mut Daemon,
    caller: Caller,
    argument: Option<&str>,
    answer: impl FnOnce(&mut Server) -> Answer,
) -> Answer {
    match server(daemon, caller, argument) {
        Ok(id) => match daemon.registry.servers.get_mut(&id) {
            Some(server) => answer(server),
            None => not_found(argument.unwrap_or("0")),
        },
        Err(refusal) => refusal,
    }
}
