//! Servers that a daemon left which was killed: they serve their clients to the end, and what those
//! hold of a group's budget must count although no daemon started them.
//!
//! The group's usage is in each such server's hands; it is taken from there, by its name among the server's
//! files. Where that is not allowed (a server of another user, in a container), the group takes no
//! clients until those servers are gone. Which processes they are is in the groups' files.
//!
//! Called by `daemon::orphaned_servers` and by groups. Must not signal a server.

use std::fs::File;
use std::os::fd::OwnedFd;

use daemon_interface::group_usage::GroupUsage;
use daemon_interface::process::ProcessStat;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::groups::saved::UsageHolder;
use crate::groups::usage_name;

/// A server that a former daemon left.
#[derive(Debug)]
pub struct OrphanedServer {
    /// It.
    pub holder: UsageHolder,
    /// The groups that it has clients of.
    pub groups: Vec<u32>,
    /// Those of them whose usage could not be had.
    pub unseen: Vec<u32>,
    /// Becomes readable when the process ends.
    /// Readable when the process has ended.
    pub pidfd: OwnedFd,
}

impl OrphanedServer {
    /// Whether it keeps a group from taking clients.
    #[must_use]
    pub fn holds_back_clients_of(&self, group: u32) -> bool {
        self.unseen.contains(&group)
    }
}

/// A descriptor of a server's process, if it is still that very one.
pub(crate) fn alive(holder: UsageHolder) -> Option<OwnedFd> {
    let pid = Pid::from_raw(holder.pid.try_into().ok()?)?;
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).ok()?;
    (ProcessStat::of(holder.pid)?.started == holder.started).then_some(pidfd)
}

/// The usage of a group that a process has.
pub(crate) fn usage_in(pid: u32, group: &str) -> Option<GroupUsage> {
    let wanted = format!("/memfd:{}", usage_name(group));
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd")).ok()? {
        let path = entry.ok()?.path();
        let Ok(name) = std::fs::read_link(&path) else {
            continue;
        };
        let name = name.to_string_lossy();
        if name.strip_suffix(" (deleted)").unwrap_or(&name) == wanted {
            let file = File::options().read(true).write(true).open(&path).ok()?;
            return GroupUsage::from_fd(file.into()).ok();
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_by_when_it_was_started() {
        let pid = std::process::id();
        let started = ProcessStat::of(pid).unwrap().started;
        let holder = |started| UsageHolder {
            pid,
            started,
            slot: 0,
        };
        assert!(alive(holder(started)).is_some());
        assert!(alive(holder(started + 1)).is_none());
    }

    #[test]
    fn a_groups_usage_is_found_among_a_processes_files() {
        let usage = GroupUsage::create(&usage_name("found-here")).unwrap();
        assert!(usage.reserve(0, 0, 77, 100));
        let found = usage_in(std::process::id(), "found-here").unwrap();
        assert_eq!(found.used(0), 77);
        assert!(usage_in(std::process::id(), "not-here").is_none());
    }
}
