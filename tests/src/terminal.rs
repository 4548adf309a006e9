//! A program in a terminal: a pseudo-terminal whose other end understands what terminals do, and shows the screen as text.
//!
//! Tests of programs with a screen use it. It knows nothing of what they show.

use std::fmt;
use std::fs::File;
use std::io::{Read, Write};
use std::num::NonZero;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Instant;

use rustix::fs::{Mode, OFlags, open};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::daemon::{PATIENCE, eventually};

/// A program and its terminal; dropping it kills the program.
pub struct Terminal {
    child: Child,
    keyboard: File,
    screen: Arc<Mutex<vt100::Parser>>,
    reader: Option<JoinHandle<()>>,
}

impl fmt::Debug for Terminal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Terminal")
            .field("child", &self.child)
            .finish_non_exhaustive()
    }
}

impl Terminal {
    /// Runs a command in a terminal of so many rows and columns.
    #[must_use]
    pub fn start(command: &mut Command, rows: u16, columns: u16) -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let ours = openpt(flags).expect("a terminal can be had");
        grantpt(&ours).expect("it is ours");
        unlockpt(&ours).expect("it is ours");
        let name = ptsname(&ours, Vec::new()).expect("it has a name");
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let theirs = open(&name, flags, Mode::empty()).expect("it can be opened");
        let size = Winsize {
            ws_row: rows,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&theirs, size).expect("it takes a size");
        let copy = |end: &OwnedFd| end.try_clone().expect("a descriptor is free");
        let child = command
            .env("TERM", "xterm-256color")
            .stdin(copy(&theirs))
            .stdout(copy(&theirs))
            .stderr(theirs)
            .spawn()
            .expect("the program starts");
        // What the command holds of the other end goes with it; else the terminal would never end.
        command.stdin(std::process::Stdio::null());
        command.stdout(std::process::Stdio::null());
        command.stderr(std::process::Stdio::null());
        let screen = Arc::new(Mutex::new(vt100::Parser::new(
            NonZero::new(rows).expect("rows"),
            NonZero::new(columns).expect("columns"),
            0,
        )));
        let mut output = File::from(copy(&ours));
        let shown = Arc::clone(&screen);
        let reader = std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // An error is how a terminal says that nobody has its other end any more.
            while let Ok(count) = output.read(&mut bytes)
                && count > 0
            {
                let mut screen = shown.lock().expect("no reader panics");
                screen.process(&bytes[..count]);
            }
        });
        Self {
            child,
            keyboard: File::from(ours),
            screen,
            reader: Some(reader),
        }
    }

    /// What the screen shows, a line each.
    #[must_use]
    pub fn text(&self) -> String {
        let screen = self.screen.lock().expect("no reader panics");
        screen.screen().contents()
    }

    /// Whether the program has the screen for itself, and shows no cursor there.
    #[must_use]
    pub fn is_taken(&self) -> bool {
        let screen = self.screen.lock().expect("no reader panics");
        screen.screen().alternate_screen() && screen.screen().hide_cursor()
    }

    /// Waits until the screen shows what is wanted, and gives its text.
    pub fn until(&self, what: &str, mut holds: impl FnMut(&str) -> bool) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let text = self.text();
            if holds(&text) {
                return text;
            }
            assert!(Instant::now() < deadline, "not shown: {what}\n{text}");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }

    /// Types.
    pub fn keys(&mut self, keys: &str) {
        self.keyboard
            .write_all(keys.as_bytes())
            .expect("somebody has the terminal");
    }

    /// Waits until the program has ended, and gives how.
    pub fn ended(&mut self) -> ExitStatus {
        let mut status = None;
        eventually("the program in the terminal ends", || {
            status = self.child.try_wait().expect("it is a child");
            status.is_some()
        });
        if let Some(reader) = self.reader.take() {
            reader.join().expect("no reader panics");
        }
        status.expect("it has ended")
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // One that has ended is no error.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
