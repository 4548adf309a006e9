//! The processes of this machine as /proc tells them: who descends from whom, and ending all of a tree.
//!
//! For who starts programs that start programs: the parts of a run, and tests of platforms.
//!
//! Must not know what the processes do.

use std::fs;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::shell::INTERVAL;

/// How long the killed may take to be gone.
const END: Duration = Duration::from_secs(20);

/// A process, as far as it matters here.
#[derive(Debug, PartialEq, Eq)]
pub struct Process {
    pub pid: i32,
    pub parent: i32,
    pub name: String,
    /// Whether it has ended, and its parent has not asked for its status.
    pub has_ended: bool,
    /// What it and those of its children that it has waited for have had of the processors, in the kernel's ticks.
    pub ticks: u64,
}

impl Process {
    /// Reads `/proc/PID/stat`: number, name in parentheses (which may hold anything), state, parent, and, further on, times.
    fn from_stat(stat: &str) -> Option<Self> {
        let (pid, rest) = stat.split_once(" (")?;
        let (name, rest) = rest.rsplit_once(") ")?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        // In user and kernel mode, its own and its children's: fields 14 to 17 of the whole line.
        let times = fields.get(11..15)?.iter().map(|it| it.parse::<u64>());
        Some(Self {
            pid: pid.parse().ok()?,
            parent: fields.get(1)?.parse().ok()?,
            name: name.to_owned(),
            has_ended: matches!(*fields.first()?, "Z" | "X"),
            ticks: times.sum::<Result<u64, _>>().ok()?,
        })
    }

    /// The process of this number, if there is one.
    pub fn of(pid: u32) -> Option<Self> {
        Self::from_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// All that there are.
    pub fn all() -> Vec<Self> {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        entries
            .filter_map(|entry| {
                Self::from_stat(&fs::read_to_string(entry.path().join("stat")).ok()?)
            })
            .collect()
    }

    /// What it has had of the processors.
    pub fn processor_time(&self) -> Duration {
        let milliseconds = self.ticks * 1000 / rustix::param::clock_ticks_per_second().max(1);
        Duration::from_millis(milliseconds)
    }

    /// Kills it; it may be gone by now.
    pub fn kill(&self) {
        send(self.pid, Signal::KILL);
    }
}

fn send(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid) {
        kill_process(pid, signal).ok();
    }
}

/// Those that descend from one of these, themselves left out.
pub fn descendants<'a>(processes: &'a [Process], ancestors: &[i32]) -> Vec<&'a Process> {
    let mut found: Vec<&Process> = Vec::new();
    loop {
        let is_known = |pid: i32, found: &[&Process]| {
            ancestors.contains(&pid) || found.iter().any(|it| it.pid == pid)
        };
        let more: Vec<&Process> = processes
            .iter()
            .filter(|one| is_known(one.parent, &found) && !is_known(one.pid, &found))
            .collect();
        if more.is_empty() {
            return found;
        }
        found.extend(more);
    }
}

/// What still runs below a child of ours: of each its number and its command line.
pub fn command_lines(child: u32) -> Vec<(i32, String)> {
    let processes = Process::all();
    let below = descendants(&processes, &[child.cast_signed()]);
    let alive = below.iter().filter(|process| !process.has_ended);
    alive
        .map(|process| {
            let words = fs::read(format!("/proc/{}/cmdline", process.pid)).unwrap_or_default();
            let words: Vec<_> = words.split(|&byte| byte == 0).collect();
            let line = String::from_utf8_lossy(&words.join(&b' ')).into_owned();
            (process.pid, line.trim_end().to_owned())
        })
        .collect()
}

/// Kills a child of ours and all that descends from it; whoever started it has yet to ask for its status. Of what
/// belongs to nobody any more it finds what the child is the reaper of.
pub fn end(child: u32) {
    let start = Instant::now();
    let child = child.cast_signed();
    // So that it starts nothing more, and is still there to be descended from.
    send(child, Signal::STOP);
    let mut ancestors = vec![child];
    loop {
        let processes = Process::all();
        let mut found = descendants(&processes, &ancestors);
        found.retain(|process| !process.has_ended);
        if found.is_empty() || start.elapsed() > END {
            break;
        }
        for process in found {
            process.kill();
            // Its own children now are others'.
            ancestors.push(process.pid);
        }
        std::thread::sleep(INTERVAL);
    }
    send(child, Signal::KILL);
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn names_of_processes_hold_anything() {
        let stat = "12 (a) b (c) S 7 12 12 0 -1 4194304 1 2 3 4 100 20 3 4000 20 0 1 0";
        let process = Process::from_stat(stat).unwrap();
        assert_eq!((process.pid, process.parent), (12, 7));
        assert_eq!(process.name, "a) b (c");
        assert_eq!(process.ticks, 4123);
        assert!(!process.has_ended);
        assert_eq!(Process::from_stat("12"), None);
        assert_eq!(Process::from_stat("12 (a) S 7"), None);
    }

    #[test]
    fn descendants_are_found_in_any_order() {
        let process = |pid, parent| Process {
            pid,
            parent,
            name: String::new(),
            has_ended: false,
            ticks: 0,
        };
        let all = [
            process(5, 4),
            process(4, 3),
            process(3, 1),
            process(9, 1),
            process(6, 5),
        ];
        let mut pids: Vec<i32> = descendants(&all, &[3]).iter().map(|it| it.pid).collect();
        pids.sort_unstable();
        assert_eq!(pids, [4, 5, 6]);
    }

    #[test]
    fn what_a_program_has_started_ends_too() {
        let mut outer = Command::new("sh")
            .args(["-c", "sleep 600 & sh -c 'sleep 600; true'; true"])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let sleepers = || {
            let processes = Process::all();
            let below = descendants(&processes, &[outer.id().cast_signed()]);
            let asleep = |it: &&&Process| it.name == "sleep" && !it.has_ended;
            below.iter().filter(asleep).map(|it| it.pid).collect()
        };
        let deadline = Instant::now() + END;
        let mut found: Vec<i32> = sleepers();
        while found.len() < 2 {
            assert!(Instant::now() < deadline, "the two do not begin: {found:?}");
            std::thread::sleep(INTERVAL);
            found = sleepers();
        }
        end(outer.id());
        let still = Process::all();
        let still = still
            .iter()
            .find(|it| found.contains(&it.pid) && !it.has_ended);
        assert_eq!(still, None);
        outer.wait().unwrap();
    }
}
