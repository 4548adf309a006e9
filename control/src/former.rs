//! Servers that a daemon left which was killed: they serve their clients to the end, and what those
//! hold of a group's budget must count although no daemon started them.
//!
//! The ledger is in each such server's hands; it is taken from there, by its name among the server's
//! files. Where that is not allowed (a server of another user, in a container), the group takes no
//! clients until those servers are gone. Which processes they are is in the groups' files.

use std::fs::File;
use std::os::fd::OwnedFd;

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use transport::ledger::Ledger;

use crate::daemon::Daemon;
use crate::group_files::{self, Holder, Kept};
use crate::groups::ledger_name;
use crate::source::Source;

/// A server that a former daemon left.
#[derive(Debug)]
pub struct Former {
    /// It.
    pub holder: Holder,
    /// The groups that it has clients of.
    pub groups: Vec<u32>,
    /// Those of them whose ledger could not be had.
    pub unseen: Vec<u32>,
    /// Becomes readable when the process ends.
    pidfd: OwnedFd,
}

impl Former {
    /// Whether it keeps a group from taking clients.
    #[must_use]
    pub fn holds(&self, group: u32) -> bool {
        self.unseen.contains(&group)
    }
}

/// When a process was started, in the kernel's ticks.
#[must_use]
pub fn start_of(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in brackets, may hold anything; the start is the 20th field behind it.
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(19)?.parse().ok()
}

/// A descriptor of a server's process, if it is still that very one.
fn alive(holder: Holder) -> Option<OwnedFd> {
    let pid = Pid::from_raw(holder.pid.try_into().ok()?)?;
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).ok()?;
    (start_of(holder.pid)? == holder.started).then_some(pidfd)
}

/// The ledger of a group that a process has.
fn ledger_in(pid: u32, group: &str) -> Option<Ledger> {
    let wanted = format!("/memfd:{}", ledger_name(group));
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd")).ok()? {
        let path = entry.ok()?.path();
        let Ok(name) = std::fs::read_link(&path) else {
            continue;
        };
        let name = name.to_string_lossy();
        if name.strip_suffix(" (deleted)").unwrap_or(&name) == wanted {
            let file = File::options().read(true).write(true).open(&path).ok()?;
            return Ledger::from_fd(file.into()).ok();
        }
    }
    None
}

impl Daemon {
    /// Takes in the groups that a former daemon kept.
    ///
    /// # Errors
    /// In words.
    pub(crate) fn load_groups(&mut self) -> Result<(), String> {
        for kept in group_files::load(self.instance.directories())? {
            self.load_group(kept)?;
        }
        Ok(())
    }

    fn load_group(&mut self, kept: Kept) -> Result<(), String> {
        let holders: Vec<(Holder, OwnedFd)> = kept
            .holders
            .iter()
            .filter_map(|&holder| Some((holder, alive(holder)?)))
            .collect();
        let name = kept.name.clone();
        let found = holders
            .iter()
            .find_map(|(holder, _)| ledger_in(holder.pid, &name));
        let seen = found.is_some();
        let ledger = match found {
            Some(ledger) => ledger,
            None => Ledger::create(&ledger_name(&name))
                .map_err(|error| format!("no memory for a group's ledger: {error}"))?,
        };
        for holder in &kept.holders {
            if !holders.iter().any(|(other, _)| other == holder) {
                ledger.clear(holder.slot);
            }
        }
        let number = self.set_up_group(kept, ledger)?;
        self.log(&format!("Group {name} was taken over"));
        for (holder, pidfd) in holders {
            self.groups.slots.insert(holder.slot);
            let known = self.groups.former.iter_mut();
            let mut known = known.filter(|former| former.holder == holder);
            if let Some(former) = known.next() {
                former.groups.push(number);
                if !seen {
                    former.unseen.push(number);
                }
                continue;
            }
            self.watch(&pidfd, Source::Orphan(holder.slot))
                .map_err(|error| format!("cannot wait for a former server: {error}"))?;
            self.groups.former.push(Former {
                holder,
                groups: vec![number],
                unseen: if seen { Vec::new() } else { vec![number] },
                pidfd,
            });
        }
        Ok(())
    }

    /// A server that a former daemon left has ended.
    pub(crate) fn former_server_ended(&mut self, slot: u32) {
        let former = &mut self.groups.former;
        let Some(at) = former.iter().position(|one| one.holder.slot == slot) else {
            return;
        };
        let gone = former.swap_remove(at);
        self.forget(&gone.pidfd);
        self.groups.slots.remove(&slot);
        self.log(&format!(
            "Server {} of a former daemon has ended",
            gone.holder.pid
        ));
        for number in gone.groups {
            if let Some(group) = self.groups.by_number.get(&number) {
                group.ledger.clear(slot);
            }
            self.keep_group(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_by_when_it_was_started() {
        let pid = std::process::id();
        let started = start_of(pid).unwrap();
        let holder = |started| Holder {
            pid,
            started,
            slot: 0,
        };
        assert!(alive(holder(started)).is_some());
        assert!(alive(holder(started + 1)).is_none());
        assert_eq!(start_of(u32::MAX), None);
    }

    #[test]
    fn a_ledger_is_found_among_a_processes_files() {
        let ledger = Ledger::create(&ledger_name("found-here")).unwrap();
        assert!(ledger.take(0, 0, 77, 100));
        let found = ledger_in(std::process::id(), "found-here").unwrap();
        assert_eq!(found.used(0), 77);
        assert!(ledger_in(std::process::id(), "not-here").is_none());
    }
}
