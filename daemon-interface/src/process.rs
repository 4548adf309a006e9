//! Which process a number means: a process's parent, and when it was started, as the kernel tells it.
//!
//! Asked by clients of themselves and their ancestors, and by the daemon of servers and of what it has started. Must not know what it
//! is asked for.

/// What /proc/PID/stat says of a process (proc_pid_stat(5)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessStat {
    /// The parent's number.
    pub parent: u32,
    /// When it was started, in the kernel's clock ticks since the machine's start: with its number, what no other process has.
    pub started: u64,
}

impl ProcessStat {
    /// Of the process of this number; `None` where there is none that this one may see.
    #[must_use]
    pub fn of(pid: u32) -> Option<Self> {
        Self::parse(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// The parent is the second and the start the twentieth field behind the name, which stands in brackets and may hold anything.
    fn parse(stat: &str) -> Option<Self> {
        let (_, fields) = stat.rsplit_once(')')?;
        let mut fields = fields.split_whitespace();
        Some(Self {
            parent: fields.nth(1)?.parse().ok()?,
            started: fields.nth(17)?.parse().ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_a_parent_and_a_start() {
        let own = ProcessStat::of(std::process::id()).unwrap();
        assert_eq!(own.parent, std::os::unix::process::parent_id());
        assert!(own.started > 0);
        assert_eq!(ProcessStat::of(std::process::id()), Some(own));
        assert_eq!(ProcessStat::of(u32::MAX), None);
    }

    #[test]
    fn fields_are_found_whatever_the_name() {
        let stat = "12 (a) b) R 34 12 12 0 -1 0 0 0 0 0 1 2 0 0 20 0 1 0 5678 9";
        let expected = ProcessStat {
            parent: 34,
            started: 5678,
        };
        assert_eq!(ProcessStat::parse(stat), Some(expected));
        for cut in ["12 sh", "12 (sh) R 34 1", ""] {
            assert_eq!(ProcessStat::parse(cut), None, "{cut}");
        }
    }
}
