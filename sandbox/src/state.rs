//! What holds, as the kernel tells it.
//!
//! Called by the log and by `openmps doctor`. Must not know what was asked for.

use std::path::Path;

/// What the kernel tells of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessState {
    /// Whether the calls of all its threads are filtered.
    pub calls_are_filtered: bool,
    /// By how many filters at least, where the kernel tells (since Linux 5.9).
    pub filters: Option<u32>,
}

impl ProcessState {
    /// Of a process; `None` where it has gone or cannot be seen.
    #[must_use]
    pub fn of(pid: u32) -> Option<Self> {
        let tasks = std::fs::read_dir(Path::new("/proc").join(pid.to_string()).join("task"));
        let mut threads = tasks.ok()?.filter_map(|task| {
            // One that has just ended has nothing to say.
            let status = std::fs::read_to_string(task.ok()?.path().join("status")).ok()?;
            Some(Self::told_by(&status))
        });
        let first = threads.next()?;
        Some(threads.fold(first, |all, one| Self {
            calls_are_filtered: all.calls_are_filtered && one.calls_are_filtered,
            filters: all.filters.min(one.filters),
        }))
    }

    /// By /proc/PID/status.
    fn told_by(status: &str) -> Self {
        const FILTER: u32 = 2;
        let number = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|line| line.trim().parse::<u32>().ok())
        };
        Self {
            calls_are_filtered: number("Seccomp:") == Some(FILTER),
            filters: number("Seccomp_filters:"),
        }
    }
}

/// What the kernel can.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// Whether it filters system calls.
    pub filters_calls: bool,
    /// The version of its Landlock; 0 where it has none.
    pub landlock: u32,
}

impl Kernel {
    /// Of the running one.
    #[must_use]
    pub fn running() -> Self {
        /// LANDLOCK_CREATE_RULESET_VERSION
        const WHICH_VERSION: libc::c_uint = 1;
        const SECCOMP_GET_ACTION_AVAIL: libc::c_uint = 2;
        let action: u32 = libc::SECCOMP_RET_KILL_PROCESS;
        // SAFETY: asks for a number; the kernel reads the four bytes of `action`, which live as long.
        let seccomp = unsafe {
            libc::syscall(
                libc::SYS_seccomp,
                SECCOMP_GET_ACTION_AVAIL,
                0,
                &raw const action,
            )
        };
        // SAFETY: with this flag the kernel takes no attributes and gives a number.
        let landlock = unsafe {
            libc::syscall(
                libc::SYS_landlock_create_ruleset,
                std::ptr::null::<u8>(),
                0usize,
                WHICH_VERSION,
            )
        };
        Self {
            filters_calls: seccomp == 0,
            landlock: u32::try_from(landlock).unwrap_or(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_words_are_understood() {
        let filtered = ProcessState::told_by("Name:\ta\nSeccomp:\t2\nSeccomp_filters:\t3\n");
        assert!(filtered.calls_are_filtered);
        assert_eq!(filtered.filters, Some(3));
        for status in ["Seccomp:\t0\nSeccomp_filters:\t0\n", "Seccomp:\t1\n", ""] {
            assert!(
                !ProcessState::told_by(status).calls_are_filtered,
                "{status}"
            );
        }
    }

    #[test]
    fn a_process_that_is_not_there_has_no_state() {
        assert!(ProcessState::of(std::process::id()).is_some());
        assert_eq!(ProcessState::of(u32::MAX), None);
    }
}
