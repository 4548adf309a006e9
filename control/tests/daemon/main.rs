//! The daemon as a process: this very program, which behaves as the daemon, the command client or a
//! server when it is invoked under their names, and runs the tests otherwise.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod boundary;
mod commands;
#[path = "../../../server/tests/rig/engine.rs"]
#[allow(dead_code, reason = "the server's tests use more of it")]
mod fake;
mod groups;
mod harness;
mod logs;
mod modes;
mod partitions;
mod roles;
mod service;
#[path = "../../../tests/src/skipped.rs"]
mod skipped;
mod tests;
mod transcript;
mod users;
#[path = "../../../tests/src/watchdog.rs"]
#[allow(
    dead_code,
    unused_imports,
    reason = "its own test is one of the crate `tests`"
)]
mod watchdog;

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args();
    let name = arguments.next().unwrap_or_default();
    let arguments: Vec<String> = arguments.collect();
    let host = control::HostProgram {
        start_server: roles::server_program,
        supervise_underlay: control::this_program,
        driver: || None,
        open_modes: modes::open,
        drives_hardware: || false,
    };
    if let Some(exit) = roles::play(&name, &arguments, host) {
        return exit;
    }
    match name.rsplit('/').next() {
        Some("look") => boundary::look(),
        Some("flood") => logs::flood(),
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
            watchdog::watch();
            harness::run(&tests.concat(), &arguments)
        }
    }
}
