//! A bound for every wait on a child: one that lives for longer than any test takes is named and killed, so that the test
//! which waits for its end, or for what it prints, goes on and fails.
//!
//! `daemon::openmps` starts it, and so does the harness of `control`'s tests. Must not know what children are for.

use std::collections::HashMap;
use std::sync::Once;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, getpid, kill_process};

/// How long a child may live. On a busy machine the build of a program is one of the children.
const LIMIT: Duration = Duration::from_secs(20 * 60);

/// Between looks at the children.
const INTERVAL: Duration = Duration::from_secs(5);

/// Watches the children of this process from now on. May be called any number of times.
pub fn watch() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        std::thread::spawn(|| {
            let mut children = Children::default();
            loop {
                for line in children.kill_older_than(LIMIT, children_of(getpid())) {
                    eprintln!("{line}");
                }
                std::thread::sleep(INTERVAL);
            }
        });
    });
}

/// The children that there were at the last look, and when each was first seen.
#[derive(Debug, Default)]
struct Children(HashMap<i32, Instant>);

impl Children {
    /// Kills those of `pids` that were first seen so long ago, and says of each what it was.
    fn kill_older_than(&mut self, limit: Duration, pids: Vec<i32>) -> Vec<String> {
        let now = Instant::now();
        let mut seen = HashMap::new();
        let mut lines = Vec::new();
        for pid in pids {
            let since = *self.0.get(&pid).unwrap_or(&now);
            seen.insert(pid, since);
            let Some(child) = Pid::from_raw(pid).filter(|_| now - since > limit) else {
                continue;
            };
            lines.push(format!(
                "a test waited in vain: child {pid} has run for {limit:?} and is killed: {}",
                command_line(pid)
            ));
            // It may have ended meanwhile.
            kill_process(child, Signal::KILL).ok();
        }
        self.0 = seen;
        lines
    }
}

/// The processes whose parent is this one, and which have not ended.
fn children_of(parent: Pid) -> Vec<i32> {
    let parent = parent.as_raw_nonzero().get();
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
            // The name in parentheses may hold anything; state and parent follow it.
            let mut fields = stat.rsplit_once(") ")?.1.split(' ');
            let has_ended = fields.next()? == "Z";
            let is_ours = fields.next()?.parse() == Ok(parent);
            (is_ours && !has_ended).then_some(pid)
        })
        .collect()
}

fn command_line(pid: i32) -> String {
    let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&words).replace('\0', " ")
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use super::*;

    #[test]
    fn a_child_that_does_not_end_is_named_and_killed() {
        let mut child = Command::new("sleep").arg("1234").spawn().unwrap();
        let pid = child.id() as i32;
        assert!(children_of(getpid()).contains(&pid));
        let mut children = Children::default();
        assert!(children.kill_older_than(LIMIT, vec![pid]).is_empty());
        std::thread::sleep(Duration::from_millis(5));
        let lines = children.kill_older_than(Duration::from_millis(1), vec![pid]);
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].contains(&format!("child {pid} ")), "{lines:?}");
        assert!(lines[0].contains("sleep 1234"), "{lines:?}");
        assert_eq!(child.wait().unwrap().signal(), Some(9));
        assert!(!children_of(getpid()).contains(&pid));
    }
}
