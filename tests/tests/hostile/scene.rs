//! A daemon, a client that wants nothing but to work, and programs that mean harm.

use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tests::daemon::{Daemon, eventually, succeed};
use tests::talker::Talker;

/// A bystander's round takes a few milliseconds, and on a busy machine some more. Who waits for so long waits for
/// what an attacker does.
const HANGS: Duration = Duration::from_secs(10);

/// A program that means harm, in front of a daemon's own directory or a group's.
pub fn attacker(what: &str, directory: &Path, more: &str) -> Talker {
    let mut command = Command::new(env!("CARGO_BIN_EXE_attacker"));
    Talker::start(command.arg(what).arg(directory).arg(more))
}

pub struct Scene {
    pub daemon: Daemon,
    bystander: Talker,
    server: u32,
}

impl Scene {
    pub fn start() -> Self {
        Self::with(Daemon::start())
    }

    /// In front of a daemon that nobody uses yet.
    pub fn with(daemon: Daemon) -> Self {
        let mut bystander = Talker::start(&mut daemon.probe(&["bystander"]));
        assert_eq!(bystander.hear(), "running");
        let server = daemon.server();
        Self {
            daemon,
            bystander,
            server,
        }
    }

    /// An attacker, in front of the daemon's own directory or a group's.
    pub fn attacker(&self, what: &str, directory: &Path, more: &str) -> Talker {
        attacker(what, directory, more)
    }

    /// Whoever comes while an attack is on is served, and so is who gives a command.
    pub fn others_are_served(&self) {
        assert_eq!(succeed(&mut self.daemon.probe(&["work", "1"])), "ok\n");
        self.daemon.control_output(&["get_server_list"]);
    }

    /// The server has said of so many that it disconnected them.
    pub fn told_of(&self, lies: usize) {
        let log = self.daemon.server_log();
        let told = log.lines().filter(|line| line.contains("disconnect"));
        let told = told.count();
        assert!(told >= lies, "{lies} lies, {told} lines:\n{log}");
    }

    /// The bystander's results were right, it waited for nobody, nobody else is left, and who comes now is served
    /// by the same server.
    #[track_caller]
    pub fn nobody_noticed(mut self) {
        self.bystander.say("");
        let said = self.bystander.hear();
        let (rounds, worst) = said.split_once(' ').unwrap_or_else(|| panic!("{said:?}"));
        let worst = Duration::from_millis(worst.parse().unwrap());
        assert_eq!(self.bystander.hear(), "ok");
        report(&format!("{rounds} rounds, the longest took {worst:?}"));
        assert!(worst < HANGS, "the bystander waited for {worst:?}");
        let server = self.server.to_string();
        eventually("all clients are gone", || {
            self.daemon
                .control_output(&["get_client_list", &server])
                .is_empty()
        });
        self.others_are_served();
        let servers = self.daemon.control_output(&["get_server_list"]);
        let lives = servers.lines().any(|line| line.trim() == server);
        assert!(lives, "the server {server} lives, not {servers:?}");
    }
}

/// Says what a bystander saw. Past the harness, which keeps what passing tests print.
fn report(what: &str) {
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("a test");
    let line = format!("bystander of {name}: {what}\n");
    std::io::stderr().write_all(line.as_bytes()).unwrap();
}
