//! What a daemon that was killed left: its groups, and servers that still have clients of them.
//!
//! Called by the daemon's start and by the event loop. Must not speak to such a server: it only counts and waits.

use std::os::fd::OwnedFd;

use daemon_interface::group_usage::GroupUsage;

use super::Daemon;
use super::epoll_token::EpollToken;
use crate::groups::error::GroupError;
use crate::groups::orphaned_servers::{OrphanedServer, alive, usage_in};
use crate::groups::saved::{self, SavedGroup, UsageHolder};
use crate::groups::usage_name;

impl Daemon {
    /// Takes in the groups that a former daemon kept.
    ///
    /// # Errors
    /// When one cannot be believed or set up.
    pub(crate) fn load_groups(&mut self) -> Result<(), GroupError> {
        for kept in saved::load(self.instance.directories())? {
            self.load_group(kept)?;
        }
        Ok(())
    }

    fn load_group(&mut self, kept: SavedGroup) -> Result<(), GroupError> {
        let holders: Vec<(UsageHolder, OwnedFd)> = kept
            .holders
            .iter()
            .filter_map(|&holder| Some((holder, alive(holder)?)))
            .collect();
        let name = kept.name.clone();
        let found = holders
            .iter()
            .find_map(|(holder, _)| usage_in(holder.pid, &name));
        let seen = found.is_some();
        let usage = match found {
            Some(usage) => usage,
            None => GroupUsage::create(&usage_name(&name)).map_err(GroupError::Usage)?,
        };
        for holder in &kept.holders {
            if !holders.iter().any(|(other, _)| other == holder) {
                usage.release_all(holder.slot);
            }
        }
        let number = self.set_up_group(kept, usage)?;
        self.log(&format!("Group {name} was taken over"));
        for (holder, pidfd) in holders {
            self.groups.slots.insert(holder.slot);
            let known = self.groups.orphaned_servers.iter_mut();
            let mut known = known.filter(|former| former.holder == holder);
            if let Some(former) = known.next() {
                former.groups.push(number);
                if !seen {
                    former.unseen.push(number);
                }
                continue;
            }
            self.watch(&pidfd, EpollToken::Orphan(holder.slot))
                .map_err(GroupError::WatchServer)?;
            self.groups.orphaned_servers.push(OrphanedServer {
                holder,
                groups: vec![number],
                unseen: if seen { Vec::new() } else { vec![number] },
                pidfd,
            });
        }
        Ok(())
    }

    /// A server that a former daemon left has ended.
    pub(crate) fn orphaned_server_ended(&mut self, slot: u32) {
        let former = &mut self.groups.orphaned_servers;
        let Some(at) = former.iter().position(|one| one.holder.slot == slot) else {
            return;
        };
        let gone = former.swap_remove(at);
        self.unwatch(&gone.pidfd);
        self.groups.slots.remove(&slot);
        self.log(&format!(
            "Server {} of a former daemon has ended",
            gone.holder.pid
        ));
        for number in gone.groups {
            if let Some(group) = self.groups.by_number.get(&number) {
                group.usage.release_all(slot);
            }
            self.save_group(number);
        }
    }
}
