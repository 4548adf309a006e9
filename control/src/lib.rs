//! The control daemon: commands, registry, spawning, logs.
//!
//! It holds no CUDA, so that no fault of a device or an engine can reach it, and is the one place
//! where it is decided who is served, where and within which limits. One thread; it sleeps in epoll.
//!
//! * `daemon`: the composition root, an event loop and what it does with each event; everything below is told to by it and
//!   knows nothing of it, but for `commands`, the table of what operators ask;
//! * `servers`: what is known of server processes and their clients, how one is started, who shares one, and their limits;
//! * `groups`: clients that share limits, what is saved of them, static partitions, what a killed daemon left;
//! * `compute_mode`: who may have contexts on a device; `underlay`: NVIDIA's own MPS beneath servers;
//! * `container`: which container a process is in;
//! * `views`: what programs are shown of devices and clients; `time_lines`: who has clients recorded;
//! * `files`: the daemon's directories, and how files are written where other users can write too; `log`: its logs;
//! * `startup`: becoming the daemon, and what the kernel lets it do; `command_line`: the program that gives commands;
//! * `host`: what the daemon needs of the program that it is part of.
#![forbid(unsafe_code)]

mod command_line;
mod commands;
pub mod compute_mode;
mod container;
mod daemon;
mod files;
mod groups;
mod host;
pub mod log;
mod process_limits;
pub mod servers;
mod startup;
mod time_lines;
pub mod underlay;
mod views;

use std::io::IsTerminal;
use std::process::{Command, ExitCode};

pub use command_line::arguments::PAGE_PROCESS;
pub use command_line::client::{AskError, NO_DAEMON, ask};
pub use commands::{
    Arguments, Command as CommandRow, CommandLine, LineError, list as command_list,
    parse as parse_line,
};
pub use commands::{device_from_json, device_json};
pub use files::directories::{self, Directories, VariableError, is_path_list};
pub use files::error::{FileError, ProgramError};
pub use files::instance::{CLOSED_FILES, ClosedFile};
pub use files::safe_path::open_directory;
pub use host::{BINARY_VERSION, HostProgram, OWN_PROGRAM};
pub use servers::limits::SettingError;
pub use startup::notify;
// The grammar of sizes, for those who read settings as the daemon does.
pub use protocol::limits::size_in_bytes;

use command_line::arguments::{self, Action};
use command_line::{client, prompt};

/// Does what the arguments (without the program's name) say: be the daemon, start one, or send it
/// commands.
///
/// `host` is what a daemon needs of whoever has devices.
#[must_use]
pub fn main(arguments: &[String], host: HostProgram) -> ExitCode {
    let socket = match Directories::from_environment() {
        Ok(directories) => directories.control_socket(),
        Err(line) => {
            eprintln!("{line}");
            return ExitCode::FAILURE;
        }
    };
    match arguments::parse(arguments) {
        Action::Help => {
            print!("{}", usage());
            ExitCode::SUCCESS
        }
        Action::Version => {
            println!("OpenMPS control. Binary version: {BINARY_VERSION}");
            ExitCode::SUCCESS
        }
        Action::Daemon(options) => startup::daemon(options, host),
        Action::Command(line) => client::command(&socket, &line),
        Action::Lines if std::io::stdin().is_terminal() => prompt::run(&socket),
        Action::Lines => client::lines(&socket),
        Action::Refused(why) => {
            eprintln!("{why}");
            eprint!("{}", usage());
            ExitCode::FAILURE
        }
    }
}

/// Whether the limits in the environment, if there are any, can be read: a daemon does not start with
/// others, and a program with others is refused.
///
/// # Errors
/// What cannot be read.
pub fn limits_in_environment() -> Result<(), SettingError> {
    servers::limits::limits_in_environment().map(drop)
}

/// How a process is started that is another of this program.
#[must_use]
pub fn this_program() -> Command {
    Command::new(OWN_PROGRAM)
}

fn usage() -> String {
    format!(
        "nvidia-cuda-mps-control [options] [command]\n\
         The OpenMPS control daemon, and the program that commands it. Without options and command,\n\
         commands are read from standard input, one to a line; from a terminal, with a prompt.\n\
         \n\
         Options:\n\
         \x20 -h, --help                 print this text\n\
         \x20 -v                         print the version\n\
         \x20 -d, --daemon               start the daemon in the background\n\
         \x20 -f, --forground            be the daemon, in the foreground\n\
         \x20 -M, --multiuser-server     serve several users at once, each by a server of its own\n\
         \x20 -q, --ready-devices        start a server at once, so that device_query answers at once\n\
         \x20 -S, --static-partitioning  clients run in static partitions only, made by sm_partition\n\
         \x20 --compute-mode=<mode>      what devices are set to while the daemon runs, EXCLUSIVE_PROCESS\n\
         \x20                            for example; they get back what they had\n\
         \x20 --isolation=<how>          a server for each user, group or client, or none: one for all\n\
         \x20                            ...,fenced: and a kernel reaches nothing but its client's own memory\n\
         \x20 --underlay=<what>          NVIDIA's own MPS beneath the servers, so that they overlap on a GPU:\n\
         \x20                            nvidia-mps, auto (where it can be had) or none, the default\n\
         \x20 --contexts=<number>        so many servers there for each user, among whom its clients are spread\n\
         \x20 --failover                 another server takes over the clients of one that crashes or faults\n\
         \x20 --standby=<when>           with that, a server waits ready-made: auto, the default, where devices have\n\
         \x20                            memory to spare, always or never\n\
         \x20 --web=<address>            a page for a browser at 127.0.0.1:9401, say, by a process beside the daemon\n\
         \n\
         Commands (each takes --json too):\n{}",
        commands::list()
    )
}
