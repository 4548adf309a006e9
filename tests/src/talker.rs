//! A program with which a test speaks, a line at a time; the other side is `program`.
//!
//! Called by tests of whole processes. Must not know what is said.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::Duration;

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
    /// If that is no text.
    pub fn hear(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("text");
        line.trim().to_owned()
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
    /// If that cannot be.
    pub fn wait(mut self) -> ExitStatus {
        self.input = None;
        self.child.wait().expect("it is a child")
    }

    /// Sends it a signal.
    ///
    /// # Panics
    /// If it has ended.
    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
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
