//! The commands: a table of names, usages and handlers. What they print is what scripts parse, so
//! lists hold digits and nothing else, and more is said in the log.

use std::fmt::Write;

use cuda_abi::limits;

use crate::daemon::{Daemon, Until};
use crate::registry::{Server, ServerId, State};

/// Who gave a command, by the kernel's word.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    /// Its user.
    pub uid: u32,
}

/// What a command comes to.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// What it prints.
    pub text: String,
    /// What the command client exits with.
    pub exit: u8,
    /// What goes to the log in place of the text.
    pub log: Option<String>,
    /// What must come to pass before the answer is given.
    pub until: Option<Until>,
}

impl Answer {
    fn line(text: impl std::fmt::Display) -> Self {
        Self {
            text: format!("{text}\n"),
            ..Self::default()
        }
    }

    fn nothing() -> Self {
        Self::default()
    }

    fn refusal(text: impl std::fmt::Display) -> Self {
        Self {
            exit: 1,
            ..Self::line(text)
        }
    }

    fn after(until: Until) -> Self {
        Self {
            until: Some(until),
            ..Self::default()
        }
    }
}

/// A row of the table.
pub struct Command {
    /// Its name, case-sensitive.
    pub name: &'static str,
    /// What follows the name.
    pub usage: &'static str,
    /// What it does, in a line.
    pub what: &'static str,
    /// Whether it is only for root and the daemon's own user.
    changes: bool,
    run: fn(&mut Daemon, Caller, &[&str]) -> Answer,
}

/// All commands, in the order in which the usage text has them.
pub const COMMANDS: &[Command] = &[
    Command {
        name: "start_server",
        usage: "-uid <user id>",
        what: "start a server for a user",
        changes: false, // for oneself
        run: start_server,
    },
    Command {
        name: "shutdown_server",
        usage: "<PID> [-f]",
        what: "end a server when its clients have left, or at once",
        changes: true,
        run: shutdown_server,
    },
    Command {
        name: "quit",
        usage: "[-t <seconds>]",
        what: "end the servers when their clients have left or the time is over, and the daemon",
        changes: true,
        run: quit,
    },
    Command {
        name: "get_server_list",
        usage: "",
        what: "list the servers",
        changes: false,
        run: get_server_list,
    },
    Command {
        name: "get_server_status",
        usage: "<PID>",
        what: "say in what state a server is",
        changes: false,
        run: get_server_status,
    },
    Command {
        name: "get_client_list",
        usage: "<PID>",
        what: "list the clients of a server",
        changes: false,
        run: get_client_list,
    },
    Command {
        name: "get_device_client_list",
        usage: "[<PID>]",
        what: "list the devices with their clients",
        changes: false,
        run: get_device_client_list,
    },
    Command {
        name: "ps",
        usage: "[-p <PID>]",
        what: "show the clients of all servers or of one",
        changes: false,
        run: ps,
    },
    Command {
        name: "set_default_active_thread_percentage",
        usage: "<percentage>",
        what: "set the active thread percentage of later servers",
        changes: true,
        run: set_default_active_thread_percentage,
    },
    Command {
        name: "get_default_active_thread_percentage",
        usage: "",
        what: "show it",
        changes: false,
        run: get_default_active_thread_percentage,
    },
    Command {
        name: "set_active_thread_percentage",
        usage: "<PID> <percentage>",
        what: "set the active thread percentage of a server's later clients",
        changes: true,
        run: set_active_thread_percentage,
    },
    Command {
        name: "get_active_thread_percentage",
        usage: "<PID>",
        what: "show it",
        changes: false,
        run: get_active_thread_percentage,
    },
    Command {
        name: "set_default_device_pinned_mem_limit",
        usage: "<device> <size>",
        what: "set the memory limit of each client of later servers",
        changes: true,
        run: set_default_device_pinned_mem_limit,
    },
    Command {
        name: "get_default_device_pinned_mem_limit",
        usage: "<device>",
        what: "show it",
        changes: false,
        run: get_default_device_pinned_mem_limit,
    },
    Command {
        name: "set_device_pinned_mem_limit",
        usage: "<PID> <device> <size>",
        what: "set the memory limit of each later client of a server",
        changes: true,
        run: set_device_pinned_mem_limit,
    },
    Command {
        name: "get_device_pinned_mem_limit",
        usage: "<PID> <device>",
        what: "show it",
        changes: false,
        run: get_device_pinned_mem_limit,
    },
    Command {
        name: "set_default_client_priority",
        usage: "<priority>",
        what: "set the priority of later clients, 0 normal or 1 below normal",
        changes: true,
        run: set_default_client_priority,
    },
    Command {
        name: "get_default_client_priority",
        usage: "",
        what: "show it",
        changes: false,
        run: get_default_client_priority,
    },
];

/// Carries out a line.
pub fn run(daemon: &mut Daemon, caller: Caller, line: &str) -> Answer {
    let words: Vec<&str> = line.split_whitespace().collect();
    let command = words
        .first()
        .and_then(|name| COMMANDS.iter().find(|command| command.name == *name));
    let Some(command) = command else {
        return Answer::line(format_args!("Unknown command \"{}\"", line.trim()));
    };
    if command.changes && !daemon.is_owner(caller.uid) {
        return Answer::refusal(format_args!(
            "{} is for root and user {} only",
            command.name,
            rustix::process::geteuid().as_raw()
        ));
    }
    (command.run)(daemon, caller, &words[1..])
}

fn not_found(pid: impl std::fmt::Display) -> Answer {
    Answer::line(format_args!("Server {pid} not found"))
}

/// The server that an argument names.
fn server(daemon: &Daemon, argument: Option<&&str>) -> Result<ServerId, Answer> {
    let text = argument.copied().unwrap_or("0");
    text.parse()
        .ok()
        .and_then(|pid| daemon.registry.by_pid(pid))
        .ok_or_else(|| not_found(text))
}

fn with_server(
    daemon: &mut Daemon,
    argument: Option<&&str>,
    answer: impl FnOnce(&mut Server) -> Answer,
) -> Answer {
    match server(daemon, argument) {
        Ok(id) => match daemon.registry.servers.get_mut(&id) {
            Some(server) => answer(server),
            None => not_found(argument.copied().unwrap_or("0")),
        },
        Err(refusal) => refusal,
    }
}

fn start_server(daemon: &mut Daemon, caller: Caller, words: &[&str]) -> Answer {
    let uid = match words {
        ["-uid", uid, ..] => uid.parse::<u32>().ok(),
        _ => None,
    };
    let Some(uid) = uid else {
        return Answer::line("A user id (UID) is required to start a new server");
    };
    if uid != caller.uid && !daemon.is_owner(caller.uid) {
        return Answer::refusal("start_server for another user is for root only");
    }
    match daemon.start_for_user(uid) {
        Ok(id) => match daemon.registry.servers.get(&id) {
            Some(server) if server.state == State::Initializing => Answer::after(Until::Ready(id)),
            _ => Answer::nothing(),
        },
        Err(error) => Answer::refusal(error),
    }
}

fn shutdown_server(daemon: &mut Daemon, _: Caller, words: &[&str]) -> Answer {
    let force = words.contains(&"-f");
    let pid = words.iter().find(|word| **word != "-f");
    match server(daemon, pid) {
        Ok(id) => {
            daemon.shut_down_server(id, force, None);
            Answer::after(Until::Gone(id))
        }
        Err(refusal) => refusal,
    }
}

fn quit(daemon: &mut Daemon, _: Caller, words: &[&str]) -> Answer {
    let grace = match words {
        [] => None,
        ["-t", seconds] => match seconds.parse::<u32>() {
            Ok(seconds) => Some(std::time::Duration::from_secs(seconds.into())),
            Err(_) => return Answer::refusal("quit -t takes a number of seconds"),
        },
        _ => return Answer::refusal("quit takes nothing, or -t and a number of seconds"),
    };
    daemon.quit(grace);
    Answer::after(Until::AllGone)
}

fn get_server_list(daemon: &mut Daemon, _: Caller, _: &[&str]) -> Answer {
    let mut text = String::new();
    for server in daemon.registry.servers.values() {
        let _ = writeln!(text, "{}", server.pid());
    }
    Answer {
        text,
        ..Answer::default()
    }
}

fn get_server_status(daemon: &mut Daemon, _: Caller, words: &[&str]) -> Answer {
    with_server(daemon, words.first(), |server| {
        Answer::line(match server.state {
            State::Initializing => "INITIALIZING",
            State::Active => "ACTIVE",
            State::Stopping => "STOPPING",
        })
    })
}

fn get_client_list(daemon: &mut Daemon, _: Caller, words: &[&str]) -> Answer {
    with_server(daemon, words.first(), |server| {
        let mut text = String::new();
        for client in server.clients_in_order() {
            let _ = writeln!(text, "{}", client.pid);
        }
        Answer {
            text,
            ..Answer::default()
        }
    })
}

fn get_device_client_list(daemon: &mut Daemon, _: Caller, words: &[&str]) -> Answer {
    let only = match words.first() {
        Some(_) => match server(daemon, words.first()) {
            Ok(id) => Some(id),
            Err(refusal) => return refusal,
        },
        None => None,
    };
    let mut text = String::new();
    for (id, server) in &daemon.registry.servers {
        if only.is_some_and(|only| only != *id) || server.clients.is_empty() {
            continue;
        }
        for (ordinal, device) in server.devices.iter().enumerate() {
            let _ = writeln!(text, "[{ordinal}] 00:00.0, {}", device.name);
            for client in server.clients_in_order() {
                let _ = writeln!(text, "{}.1", client.pid);
            }
        }
    }
    Answer {
        text,
        ..Answer::default()
    }
}

fn ps(daemon: &mut Daemon, _: Caller, words: &[&str]) -> Answer {
    let only = match words {
        ["-p", pid, ..] => match server(daemon, Some(pid)) {
            Ok(id) => Some(id),
            // Twice, and an empty line: as scripts see it from NVIDIA's.
            Err(refusal) => {
                return Answer {
                    text: format!("{0}{0}\n", refusal.text),
                    ..refusal
                };
            }
        },
        _ if daemon.registry.servers.is_empty() => return Answer::line("Server not found"),
        _ => None,
    };
    let row = |text: &mut String, fields: [&str; 6]| {
        let [pid, id, server, device, namespace, command] = fields;
        let _ = writeln!(
            text,
            "{pid:<10}{id:<10}{server:<15}{device:<26}{namespace:<15}{command:<15}"
        );
    };
    let mut text = String::new();
    for (id, server) in &daemon.registry.servers {
        if only.is_some_and(|only| only != *id) {
            continue;
        }
        for client in server.clients_in_order() {
            if text.is_empty() {
                row(
                    &mut text,
                    ["PID", "ID", "SERVER", "DEVICE", "NAMESPACE", "COMMAND"],
                );
            }
            for device in &server.devices {
                row(
                    &mut text,
                    [
                        &client.pid.to_string(),
                        &client.serial.to_string(),
                        &server.pid().to_string(),
                        device.short_uuid(),
                        &client.namespace.to_string(),
                        &client.program,
                    ],
                );
            }
        }
    }
    Answer {
        text,
        ..Answer::default()
    }
}

/// Sets a percentage and answers with the one in force, which is what NVIDIA's prints even when it
/// refuses; that it refused is said in the log and by the exit status.
fn set_percentage(percentage: &mut f32, text: Option<&&str>) -> Answer {
    match limits::percentage(text.copied().unwrap_or("")) {
        Ok(value) => {
            *percentage = value;
            show_percentage(value)
        }
        Err(error) => Answer {
            exit: 1,
            log: Some(format!(
                "Invalid percentage, expected between (0.0, 100.0]: {error}\n{percentage:.1}"
            )),
            ..show_percentage(*percentage)
        },
    }
}

fn show_percentage(percentage: f32) -> Answer {
    Answer::line(format_args!("{percentage:.1}"))
}

fn set_default_active_thread_percentage(daemon: &mut Daemon, _: Caller, words: &[&str]) -> Answer {
    set_percentage(&mut daemon.defaults.percentage, words.first())
}

fn get_default_active_thread_percentage(daemon: &mut Daemon, _: Caller, _: &[&str]) -> Answer {
    show_percentage(daemon.defaults.percentage)
}

fn set_active_thread_percentage(daemon: &mut Daemon, _: Caller, words: &[&str]) -> Answer {
    with_server(daemon, words.first(), |server| {
        set_percentage(&mut server.settings.percentage, words.get(1))
    })
}

fn get_active_thread_percentage(daemon: &mut Daemon, _: Caller, words: &[&str]) -> Answer {
    with_server(daemon, words.first(), |server| {
        show_percentage(server.settings.percentage)
    })
}

/// Sets a memory limit and prints nothing; where NVIDIA's takes what does not parse for "no limit",
/// this refuses it and says why.
fn set_memory(settings: &mut crate::settings::Settings, words: &[&str]) -> Answer {
    let [device, size] = words else {
        return Answer::refusal("Invalid command format.");
    };
    match settings.set_memory(device, size) {
        Ok(()) => Answer::nothing(),
        Err(error) => Answer::refusal(error),
    }
}

fn show_memory(settings: &crate::settings::Settings, device: Option<&&str>) -> Answer {
    let Some(device) = device else {
        return Answer {
            log: Some("Invalid command format.".into()),
            ..Answer::nothing()
        };
    };
    match settings.memory.get(*device) {
        Some(size) => Answer::line(size),
        None => Answer {
            log: Some("No default pinned memory limit set for the device!".into()),
            ..Answer::nothing()
        },
    }
}

fn set_default_device_pinned_mem_limit(daemon: &mut Daemon, _: Caller, words: &[&str]) -> Answer {
    let answer = set_memory(&mut daemon.defaults, words);
    if answer.exit != 0 {
        return answer;
    }
    Answer {
        log: Some(format!(
            "set_default_device_pinned_mem_limit {}.",
            words.join(" ")
        )),
        ..answer
    }
}

fn get_default_device_pinned_mem_limit(daemon: &mut Daemon, _: Caller, words: &[&str]) -> Answer {
    show_memory(&daemon.defaults, words.first())
}

fn set_device_pinned_mem_limit(daemon: &mut Daemon, _: Caller, words: &[&str]) -> Answer {
    with_server(daemon, words.first(), |server| {
        set_memory(&mut server.settings, words.get(1..).unwrap_or(&[]))
    })
}

fn get_device_pinned_mem_limit(daemon: &mut Daemon, _: Caller, words: &[&str]) -> Answer {
    with_server(daemon, words.first(), |server| {
        show_memory(&server.settings, words.get(1))
    })
}

fn set_default_client_priority(daemon: &mut Daemon, _: Caller, words: &[&str]) -> Answer {
    match words.first().map(|text| limits::priority(text)) {
        Some(Ok(priority)) => {
            daemon.default_priority = priority;
            Answer::nothing()
        }
        _ => Answer::line("Invalid priority value - must be 0 or 1!"),
    }
}

fn get_default_client_priority(daemon: &mut Daemon, _: Caller, _: &[&str]) -> Answer {
    Answer::line(daemon.default_priority)
}
