//! The daemon as a process: this very program, which behaves as the daemon, the command client or a
//! server when it is invoked under their names, and runs the tests otherwise.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod boundary;
mod commands;
#[path = "../../../server/tests/rig/engine.rs"]
#[allow(dead_code, reason = "the server's tests use more of it")]
mod fake;
mod figures;
mod groups;
mod harness;
mod logs;
mod modes;
mod partitions;
mod service;
#[path = "../../../tests/src/skipped.rs"]
mod skipped;
mod tests;
mod transcript;
mod users;

use std::process::ExitCode;
use std::sync::Arc;

use control::log::{About, Log, Role};

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

/// How a daemon starts a server: this program again, with what tests tell it.
fn server_program(_: Option<&str>) -> std::process::Command {
    let mut command = control::this_program();
    for name in ["TEST_SERVER_FAILS", "TEST_SERVER_WAITS"] {
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
    let engine = Arc::new(fake::FakeEngine::new());
    match server::run(connection, engine, Arc::new(ServerLog(log))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn main() -> ExitCode {
    let mut arguments = std::env::args();
    let name = arguments.next().unwrap_or_default();
    match name.rsplit('/').next() {
        Some("nvidia-cuda-mps-control") => {
            let arguments: Vec<String> = arguments.collect();
            let host = control::HostProgram {
                start_server: server_program,
                supervise_underlay: control::this_program,
                driver: || None,
                open_modes: modes::open,
                drives_hardware: || false,
            };
            control::main(&arguments, host)
        }
        Some("nvidia-cuda-mps-server") => serve(),
        Some("look") => boundary::look(),
        Some("flood") => logs::flood(),
        Some("lim") => harness::hold(&arguments.collect::<Vec<_>>()),
        _ => {
            let tests = [
                boundary::TESTS,
                tests::TESTS,
                commands::TESTS,
                groups::TESTS,
                logs::TESTS,
                modes::TESTS,
                partitions::TESTS,
                service::TESTS,
                transcript::TESTS,
                users::TESTS,
            ];
            harness::run(&tests.concat(), figures::FIGURES, arguments)
        }
    }
}
