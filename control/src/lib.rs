//! The control daemon: commands, registry, spawning, logs.
//!
//! It holds no CUDA, so that no fault of a device or an engine can reach it, and is the one place
//! where it is decided who is served, where and within which limits. One thread; it sleeps in epoll.
//!
//! * `start`: becoming the daemon; `resources`: how much the kernel lets it have; `confinement`: what the kernel refuses to it from then on; `instance`: its lock and files; `directories`: their names; `own_files`: how
//!   they are written where other users can write too;
//! * `daemon`: the event loop, `source`: what it waits for; `connections`: those who have not said what they want;
//!   `admission`: clients; `users`: who waits for whom, and sees what; `servers`: server processes;
//!   `registry`: what is known of both;
//! * `groups`: clients that share limits, `group_files`: what is kept of them, `former`: what a killed
//!   daemon left; `partitions`: static ones; `changes`: of limits, while clients run;
//! * `underlay`: NVIDIA's own MPS beneath servers, its supervisor and directories;
//! * `view`: what programs are shown of devices and clients, as NVIDIA's management library shows it;
//! * `commands`: the table of commands; `settings`: limits; `placement`: who shares an executor;
//! * `log`: control.log and server.log; `events`: the structured log; `notify`: service managers;
//! * `ask`: the other end of a command; `prompt`: commands from a terminal; `server_process`: what a
//!   server is started with.
#![forbid(unsafe_code)]

mod admission;
mod arguments;
mod ask;
mod changes;
mod commands;
pub mod compute_mode;
mod confinement;
mod connections;
mod daemon;
pub mod directories;
mod events;
mod former;
mod group_files;
mod groups;
mod instance;
pub mod log;
pub mod notify;
mod own_files;
mod partitions;
pub mod placement;
mod prompt;
mod registry;
mod resources;
pub mod server_process;
mod servers;
mod settings;
mod source;
mod start;
pub mod underlay;
mod users;
mod view;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

pub use ask::{AskError, NO_DAEMON, ask};
pub use commands::{
    Arguments, Command as CommandRow, Line, LineError, list as command_list, parse as parse_line,
};
pub use commands::{device_from_json, device_json};
pub use directories::{Directories, names_several};
pub use instance::{CLOSED_FILES, ClosedFile};
pub use own_files::open_directory;
// The grammar of sizes, for those who read settings as the daemon does.
pub use cuda_abi::limits::size_in_bytes;

use arguments::Action;

/// The version of the driver API that is offered, as NVIDIA's programs print it.
pub const BINARY_VERSION: u32 = 13000;

/// What a daemon needs of the program that it is part of.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    /// Gives the command that runs this program as a server, without arguments of its own: its name
    /// will be [`server_process::SERVER_NAME`], and it is to call [`server_process::adopt`]. On the underlay its
    /// driver is to take this for the pipe directory of NVIDIA's MPS, and it calls [`server_process::borrow_underlay`].
    pub start_server: fn(Option<&str>) -> Command,
    /// Gives the command that runs this program as [`underlay::supervise`].
    pub supervise_underlay: fn() -> Command,
    /// The driver library that a server opens, if there is one.
    pub driver: fn() -> Option<PathBuf>,
    /// Opens the devices' compute modes.
    pub open_modes: compute_mode::OpenModes,
    /// Whether a server may drive hardware, whose driver makes system calls that nobody here knows.
    pub drives_hardware: fn() -> bool,
}

/// Does what the arguments (without the program's name) say: be the daemon, start one, or send it
/// commands.
///
/// `machine` is what a daemon needs of whoever has devices.
#[must_use]
pub fn main(arguments: &[String], machine: Machine) -> ExitCode {
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
        Action::Daemon(options) => start::daemon(options, machine),
        Action::Command(line) => ask::command(&socket, &line),
        Action::Lines if std::io::stdin().is_terminal() => prompt::run(&socket),
        Action::Lines => ask::lines(&socket),
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
/// What cannot be read, in words.
pub fn limits_in_environment() -> Result<(), String> {
    daemon::limits_in_environment().map(drop)
}

/// How a server is started when nothing else is known: this program, run again.
#[must_use]
pub fn this_program() -> Command {
    Command::new("/proc/self/exe")
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
         \x20 --underlay=<what>          NVIDIA's own MPS beneath the servers, so that they overlap on a GPU:\n\
         \x20                            nvidia-mps, auto (where it can be had) or none, the default\n\
         \n\
         Commands (each takes --json too):\n{}",
        commands::list()
    )
}
