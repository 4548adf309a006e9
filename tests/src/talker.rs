//! A program with which a test speaks, a line at a time; the other side is `program`.
//!
//! Called by tests of whole processes. Must not know what is said.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::daemon::PATIENCE;

/// How long an answer may take, and an end. A program that hangs is its test's failure, and not the run's.
const ANSWER: Duration = PATIENCE.saturating_mul(3);

/// A program that runs; dropping it kills it.
#[derive(Debug)]
pub struct Talker {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Talker {
    /// Starts a program.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start(command: &mut Command) -> Self {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the program starts");
        Self {
            input: child.stdin.take(),
            output: BufReader::new(child.stdout.take().expect("it is piped")),
            child,
        }
    }

    /// Its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Says a line.
    ///
    /// # Panics
    /// If it does not listen any more.
    pub fn say(&mut self, line: &str) {
        let input = self.input.as_mut().expect("its input is open");
        writeln!(input, "{line}").expect("it listens");
    }

    /// The next line that it says, or nothing if it has ended.
    ///
    /// # Panics
    /// If that is no text, or it says nothing for minutes.
    pub fn hear(&mut self) -> String {
        let mut line = Vec::new();
        while line.last() != Some(&b'\n') {
            if self.output.buffer().is_empty() {
                self.comes_to(self.output.get_ref(), "a line");
            }
            let ready = self.output.fill_buf().expect("its output can be read");
            if ready.is_empty() {
                break;
            }
            let end = ready.iter().position(|&byte| byte == b'\n');
            let taken = end.map_or(ready.len(), |end| end + 1);
            line.extend_from_slice(&ready[..taken]);
            self.output.consume(taken);
        }
        String::from_utf8(line).expect("text").trim().to_owned()
    }

    /// Waits until something can be read.
    fn comes_to(&self, from: impl AsFd, what: &str) {
        let ready = transport::socket::poll(&[from.as_fd()], Some(ANSWER)).expect("it can wait");
        let pid = self.child.id();
        assert!(
            ready[0],
            "process {pid} does not come to {what} within {ANSWER:?}"
        );
    }

    /// Says a line and gives the one that is said then.
    pub fn ask(&mut self, line: &str) -> String {
        self.say(line);
        self.hear()
    }

    /// Ends its input, and gives what it says to that.
    pub fn last(mut self) -> String {
        self.input = None;
        let line = self.hear();
        self.wait();
        line
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// If that does not come for minutes.
    pub fn wait(mut self) -> ExitStatus {
        self.input = None;
        let process = Pid::from_child(&self.child);
        let process = pidfd_open(process, PidfdFlags::empty()).expect("a descriptor of it");
        self.comes_to(process, "its end");
        self.child.wait().expect("it is a child")
    }

    /// Sends it a signal.
    ///
    /// # Panics
    /// If it has ended.
    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).expect("it runs");
    }

    /// Waits until it says this, and kills it so much later.
    ///
    /// # Panics
    /// If it says something else.
    pub fn kill_after(mut self, line: &str, later: Duration) {
        assert_eq!(self.hear(), line);
        std::thread::sleep(later);
        self.kill();
    }

    /// Kills it.
    pub fn kill(self) {}
}

impl Drop for Talker {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
