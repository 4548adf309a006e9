//! Replays `tests/transcript.txt`, which says how.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;

use crate::harness::{Held, Rig, until};

crate::harness::tests! {
    the_transcript_holds_for_arguments
    the_transcript_holds_for_lines
    the_transcript_holds_for_lines_without_an_end
}

#[derive(Clone, Copy, PartialEq)]
enum How {
    Arguments,
    Line,
    Unended,
}

fn the_transcript_holds_for_arguments() {
    replay(How::Arguments);
}

fn the_transcript_holds_for_lines() {
    replay(How::Line);
}

fn the_transcript_holds_for_lines_without_an_end() {
    replay(How::Unended);
}

/// What an entry says, or said with NVIDIA's.
#[derive(Default, Debug, PartialEq)]
struct Said {
    out: String,
    err: String,
    exit: i32,
}

impl Said {
    /// Takes a line; says whether it ends the entry.
    fn take(&mut self, line: &str) -> bool {
        if let Some(exit) = line.strip_prefix("[exit ") {
            self.exit = exit.trim_end_matches(']').parse().unwrap();
            return true;
        }
        let line = line.strip_suffix('$').expect("a line ends with $");
        match line.strip_prefix("2>") {
            Some(line) => self.err.push_str(&format!("{line}\n")),
            None => self.out.push_str(&format!("{line}\n")),
        }
        false
    }
}

/// Replaces `{name}`, and `{name:10}` with blanks to that width.
fn fill(line: &str, names: &HashMap<&str, String>) -> String {
    let mut out = line.to_owned();
    for (name, value) in names {
        out = out.replace(&format!("{{{name}}}"), value);
        for width in [10, 15] {
            out = out.replace(&format!("{{{name}:{width}}}"), &format!("{value:<width$}"));
        }
    }
    out
}

fn replay(how: How) {
    let mut rig = Rig::without_daemon();
    if how == How::Arguments {
        // Whatever the daemon's clock, its stamps are not looked at.
        rig.environment.push(("TZ", "UTC".into()));
    }
    let mut names = HashMap::new();
    names.insert("pipe", rig.pipe().display().to_string());
    names.insert("uid", rustix::process::geteuid().as_raw().to_string());
    let namespace = std::fs::metadata("/proc/self/ns/pid").unwrap().ino();
    names.insert("namespace", namespace.to_string());
    let mut clients: Vec<Held> = Vec::new();
    let mut log: Vec<String> = Vec::new();
    let mut files: Vec<String> = Vec::new();

    let text = include_str!("../transcript.txt");
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let line = fill(line, &names);
        if let Some(step) = line.strip_prefix('@') {
            match step.split_once(' ').unwrap_or((step, "")) {
                ("daemon", _) => rig.start(),
                ("server", _) => {
                    names.insert("server", rig.servers()[0].to_string());
                }
                ("clients", _) => {
                    for name in ["first", "second"] {
                        let client = rig.hold();
                        names.insert(name, client.pid().to_string());
                        clients.push(client);
                    }
                }
                ("log", line) => log.push(line.to_owned()),
                ("files", name) => files.push(name.to_owned()),
                other => panic!("{other:?}"),
            }
            continue;
        }
        if !log.is_empty() {
            assert_eq!(logged(&rig, log.len()), log);
            log.clear();
        }
        let mut ours = Said::default();
        while !ours.take(&fill(lines.next().unwrap(), &names)) {}
        if let Some(reason) = lines.peek().and_then(|line| line.strip_prefix('!')) {
            assert!(!reason.trim().is_empty(), "{line}: a reason");
            lines.next();
            let mut theirs = Said::default();
            while !theirs.take(lines.next().unwrap().strip_prefix('-').unwrap()) {}
            assert_ne!(ours, theirs, "{line}: this differs in nothing");
        }
        let output = match line.split_at(1) {
            ("$", command) => {
                let command = command.trim();
                match how {
                    // Nothing but an empty line is no command at all in arguments.
                    How::Arguments if command.is_empty() => rig.control(&[""], None),
                    How::Arguments => {
                        let words: Vec<&str> = command.split(' ').collect();
                        rig.control(&words, None)
                    }
                    How::Unended if !command.is_empty() => rig.control(&[], Some(command)),
                    _ => rig.control(&[], Some(&format!("{command}\n"))),
                }
            }
            ("%", arguments) => {
                let words: Vec<&str> = arguments.split_whitespace().collect();
                rig.control(&words, None)
            }
            _ => panic!("{line}"),
        };
        let err = String::from_utf8(output.stderr).unwrap();
        let said = Said {
            out: String::from_utf8(output.stdout).unwrap(),
            // An option that is refused is followed by the usage text.
            err: match err.starts_with("Unrecognized") {
                true => format!("{}\n", err.lines().next().unwrap()),
                false => err,
            },
            exit: output.status.code().unwrap(),
        };
        assert_eq!(said, ours, "{line}");
    }
    let mut left: Vec<String> = std::fs::read_dir(rig.pipe())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    left.sort();
    assert_eq!(left, files, "what quit leaves");
    assert_eq!(clients[1].work(), "810", "it was terminated");
    until("they have nothing to hold", || clients[0].work() == "806");
}

/// The first lines of control.log, less those of connections and commands and our own.
fn logged(rig: &Rig, count: usize) -> Vec<String> {
    const PASSED_OVER: [&str; 8] = [
        "Accepting connection...",
        "NEW UI",
        "UI closed",
        "Cmd:",
        "Unrecognized",
        "System calls are ",
        "Up to ",
        "User did not send",
    ];
    let log = rig.control_log();
    log.lines()
        .map(|line| line.split_once("] ").map_or("", |(_, text)| text))
        .filter(|text| !PASSED_OVER.iter().any(|part| text.starts_with(part)))
        .take(count)
        .map(str::to_owned)
        .collect()
}
