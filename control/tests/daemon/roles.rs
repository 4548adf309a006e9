//! What this program is when it is invoked under another name: the daemon, its command client, a server, a client.
//!
//! Called by `main` of the tests and of the benches. Must not know the tests.

use std::process::ExitCode;
use std::sync::Arc;

use control::HostProgram;
use control::log::{About, Log, Role};
use rustix::process::{Signal, getppid, kill_process};

use crate::{fake, harness};

#[derive(Debug)]
struct ServerLog(Log);

impl server::Log for ServerLog {
    fn line(&self, starting: bool, text: &str) {
        let role = if starting { Role::Other } else { Role::Server };
        self.0.line(role, text);
    }

    fn line_about(&self, user: u32, group: Option<&str>, text: &str) {
        let about = group.map_or(About::User(user), |group| About::Group(group.to_owned()));
        self.0.line_about(&about, Role::Server, text);
    }
}

/// How a daemon starts a server, with what tests tell it.
pub fn server_program(program: &std::path::Path, _: Option<&str>) -> std::process::Command {
    let mut command = std::process::Command::new(program);
    for name in [
        "TEST_SERVER_FAILS",
        "TEST_SERVER_WAITS",
        "TEST_SERVER_TRAPS",
    ] {
        command.envs(std::env::var_os(name).map(|value| (name, value)));
    }
    command
}

fn serve() -> ExitCode {
    if std::env::var_os("TEST_SERVER_FAILS").is_some() {
        return ExitCode::FAILURE;
    }
    if let Some(path) = std::env::var_os("TEST_SERVER_WAITS") {
        harness::until("it may go on", || std::path::Path::new(&path).exists());
    }
    let (connection, log) =
        control::servers::process::connect_to_daemon().expect("started by a daemon");
    let traps = std::env::var_os("TEST_SERVER_TRAPS");
    // Kept by its peer.
    let _trap = traps.map(|_| {
        let daemon = getppid().expect("a daemon started it");
        // It is not to close its copy before this process has closed its own.
        kill_process(daemon, Signal::STOP).expect("it is of the same user");
        let peer = harness::trap(&connection);
        kill_process(daemon, Signal::CONT).expect("it is of the same user");
        peer
    });
    let engine = Arc::new(fake::FakeEngine::new());
    match server::run(connection, engine, Arc::new(ServerLog(log))) {
        Ok(_) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Plays the role that goes with the name of the program; `None` under its own name.
pub fn play(name: &str, arguments: &[String], host: HostProgram) -> Option<ExitCode> {
    match name.rsplit('/').next() {
        Some("nvidia-cuda-mps-control") => Some(control::main(arguments, host)),
        Some("nvidia-cuda-mps-server") => Some(serve()),
        Some("lim") => Some(harness::hold(arguments)),
        _ => None,
    }
}
