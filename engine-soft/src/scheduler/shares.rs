//! Which client runs next, by what clients and groups of them are to have.
//!
//! The device's time is divided into *parts* first: one for each client that has reserved its share,
//! one for each reserved group (less what its members have reserved for themselves), and the rest,
//! which is all others' together. A part has an allowance that grows with the clock, by its percentage
//! of all threads' time, and that time slices use up; while it is used up, nobody of the part has a time slice, and
//! the device may well be idle. Nothing is ever taken from another part, so what is reserved is there
//! for its owner. While nothing is reserved there is only the rest, without an allowance: it is
//! everything.
//!
//! Among those that may have a time slice, virtual time decides ([`tree`](super::tree)): between parts, within the rest
//! between groups and clients that are in none, within a group between its clients. Clients of the lower
//! priority class go when no normal client may, and for a small part of the time, one in
//! [`TRICKLE`], when one may, so that no kernel waits for ever for another client's.
//!
//! **How exact that is.** A time slice is begun as long as the part's allowance is not used up; what it takes
//! beyond is owed, and is waited for before the next one. What is not used is saved up for 20 ms. So in
//! a time `t` a part of `p` percent has at most `p` percent of `t + 20 ms`, and one time slice of each thread
//! (3 ms; less for a part that has not that much in 20 ms). The rest is one percent at least, even
//! where all is reserved, so that work for which nobody reserved anything still ends. What a client's own
//! thread in the server does is counted if it is a kernel, not if it is a small copy.
//!
//! Is told the time and what time slices took; knows nothing of threads, of clocks and of what time slices are for.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use engine::{CUresult, GroupShare, Share};

pub(crate) use super::tree::Account;
use super::tree::{Count, REST, ROOT, Tree, weight};

/// Below-normal work gets one part of so many of the time while normal work waits.
const TRICKLE: i64 = 32;

/// What a time slice is taken to cost until it is over, in nanoseconds.
const ADVANCE: u64 = 500_000;

/// The shortest limit of a time slice: however small a part is, it gets somewhere.
const SHORTEST_SLICE: Duration = Duration::from_micros(200);

/// What is left of the device, or of a group, when all of it is reserved. Percent.
const LEAST_REST: f64 = 1.0;

/// By how much percentages that make 100 together may exceed it, being no exact numbers.
const INEXACT: f64 = 1e-3;

/// A client that is to have a time slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) id: usize,
    class: usize,
    /// It is of the lower class, and somebody of the other could have had it.
    early: bool,
}

impl Choice {
    /// Whether it is of the lower priority class.
    pub(super) fn is_below_normal(self) -> bool {
        self.class == 1
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Shares {
    tree: Tree,
    clients: BTreeMap<usize, Client>,
    groups: BTreeMap<u32, Group>,
    threads: f64,
    /// Nanoseconds of normal work for which below-normal work that waited had no part yet. Below
    /// zero when it had its part in advance.
    owed: i64,
}

#[derive(Clone, Copy, Debug)]
struct Client {
    share: Share,
    group: Option<u32>,
    /// Its own part, if it has one.
    part: Option<usize>,
}

#[derive(Clone, Copy, Debug)]
struct Group {
    share: GroupShare,
    node: usize,
}

impl Shares {
    /// For a device of so many threads.
    pub(super) fn new(threads: usize) -> Self {
        Self {
            tree: Tree::new(),
            clients: BTreeMap::new(),
            groups: BTreeMap::new(),
            threads: threads as f64,
            owed: 0,
        }
    }

    /// Whether every client stands by itself and nothing is reserved.
    pub(super) fn is_plain(&self) -> bool {
        self.groups.is_empty() && !self.tree.is_held(REST)
    }

    /// How many clients have work.
    pub(super) fn ready(&self) -> usize {
        self.tree.ready()
    }

    /// By class, the virtual time at which a newcomer begins that stands by itself.
    pub(super) fn floors(&self) -> [u64; 2] {
        self.tree.floors(REST)
    }

    /// Adds a client.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION if more would be reserved than there is.
    pub(super) fn join(
        &mut self,
        share: Share,
        group: Option<u32>,
        now: u64,
    ) -> Result<Arc<Account>, CUresult> {
        let id = self.tree.add(REST);
        let account = self.tree.open_account(id, share);
        let client = Client {
            share,
            group,
            part: None,
        };
        self.clients.insert(id, client);
        if !share.reserved {
            self.place(id, now);
            return Ok(account);
        }
        if let Err(code) = self.check() {
            self.leave(id, now);
            return Err(code);
        }
        self.arrange(now);
        Ok(account)
    }

    /// Takes a client out.
    pub(super) fn leave(&mut self, id: usize, now: u64) {
        if let Some(client) = self.clients.remove(&id) {
            self.tree.remove(id);
            if let Some(part) = client.part {
                self.tree.remove(part);
            }
            if client.share.reserved {
                self.arrange(now);
            }
        }
    }

    /// Changes a client's share.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION if more would be reserved than there is; then
    /// nothing has changed.
    pub(super) fn set_share(
        &mut self,
        account: &Account,
        share: Share,
        now: u64,
    ) -> Result<(), CUresult> {
        let id = account.id;
        let Some(client) = self.clients.get(&id).copied() else {
            return Ok(());
        };
        self.clients.insert(id, Client { share, ..client });
        if let Err(code) = self.check() {
            self.clients.insert(id, client);
            return Err(code);
        }
        let had_work = self.tree.idle(id);
        // By how much it is ahead was counted by its percentage until now.
        let scale = weight(client.share.percentage) / weight(share.percentage);
        let was = account.class();
        self.tree.scale_lead(id, was, scale);
        account.set(share);
        if account.class() != was {
            self.tree.begin_anew(id);
        }
        if had_work {
            self.tree.wake(id);
        }
        if client.share.reserved || share.reserved {
            self.arrange(now);
        }
        Ok(())
    }

    /// Sets or ends a group.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION if more would be reserved than there is; then
    /// nothing has changed.
    pub(super) fn set_group(
        &mut self,
        number: u32,
        share: Option<GroupShare>,
        now: u64,
    ) -> Result<(), CUresult> {
        let before = self.groups.get(&number).copied();
        let Some(share) = share else {
            if let Some(group) = self.groups.remove(&number) {
                self.arrange(now);
                self.tree.remove(group.node);
            }
            return Ok(());
        };
        let node = before.map_or_else(|| self.tree.add(REST), |group| group.node);
        self.groups.insert(number, Group { share, node });
        if let Err(code) = self.check() {
            match before {
                Some(group) => {
                    self.groups.insert(number, group);
                }
                None => {
                    self.groups.remove(&number);
                    self.tree.remove(node);
                }
            }
            return Err(code);
        }
        self.arrange(now);
        Ok(())
    }

    /// A client has work.
    pub(super) fn wake(&mut self, id: usize) {
        self.tree.wake(id);
    }

    /// A client has no more work to hand out.
    pub(super) fn idle(&mut self, id: usize) {
        self.tree.idle(id);
    }

    /// Who goes next.
    pub(super) fn next(&mut self, now: u64) -> Option<Choice> {
        let normal = self.tree.first(0, now);
        let choice = match self.tree.first(1, now) {
            Some(id) if normal.is_none() || self.owed > 0 => Choice {
                id,
                class: 1,
                early: normal.is_some(),
            },
            _ => Choice {
                id: normal?,
                class: 0,
                early: false,
            },
        };
        self.tree.raise_floors(choice.id, choice.class);
        Some(choice)
    }

    /// A time slice of this client's, whoever is first, if its part has something left.
    pub(super) fn of(&mut self, account: &Account, now: u64) -> Option<Choice> {
        let class = account.class();
        let early = class == 1 && self.tree.first(0, now).is_some();
        let choice = Choice {
            id: account.id,
            class,
            early,
        };
        self.is_open(account.id, now).then_some(choice)
    }

    /// Whether anybody may have a time slice.
    pub(super) fn may_go_on(&mut self, now: u64) -> bool {
        self.ready() > 0
            && (!self.tree.is_held(REST)
                || (0..2).any(|class| self.tree.first(class, now).is_some()))
    }

    /// In what time the next part has something left of those that have work and nothing left.
    pub(super) fn opens(&self, now: u64) -> Option<Duration> {
        self.tree.opens(now)
    }

    /// A time slice begins. Gives its limit, if it has one beside the work's own.
    pub(super) fn begin(&mut self, choice: Choice, now: u64) -> Option<Duration> {
        // Paid for in advance, or all threads would take such a time slice at once.
        if choice.early {
            self.owed -= TRICKLE * ADVANCE.cast_signed();
        }
        let count = Count {
            class: choice.class,
            took: ADVANCE as f64,
            advance: 0.0,
            part: 100.0,
        };
        self.tree.count(choice.id, count, now);
        let most = self.tree.most(choice.id)?;
        Some(most.max(SHORTEST_SLICE))
    }

    /// A time slice is over that took so many nanoseconds. `part` is the percentage that the context has at
    /// most for which it was.
    pub(super) fn end(&mut self, choice: Choice, nanoseconds: u64, part: f32, now: u64) {
        let count = Count {
            class: choice.class,
            took: nanoseconds as f64,
            advance: ADVANCE as f64,
            part,
        };
        self.tree.count(choice.id, count, now);
        let took = i64::try_from(nanoseconds).unwrap_or(i64::MAX);
        if choice.early {
            let more = took.saturating_sub(ADVANCE.cast_signed());
            self.owed = self.owed.saturating_sub(more.saturating_mul(TRICKLE));
        } else if choice.class == 0 && self.tree.first(1, now).is_some() {
            self.owed = self.owed.saturating_add(took);
        }
        if !self.tree.has_work(1 - choice.class) {
            // Nobody waits, so nothing is owed; what was had in advance stays so.
            self.owed = self.owed.min(0);
        }
    }

    /// Counts what a client did outside of all time slices.
    pub(super) fn charge(&mut self, account: &Account, nanoseconds: u64, part: f32, now: u64) {
        let count = Count {
            class: account.class(),
            took: nanoseconds as f64,
            advance: 0.0,
            part,
        };
        self.tree.count(account.id, count, now);
    }

    /// Whether a client may do small work outside of all time slices: its part has something left, and
    /// nobody waits, or neither it nor what it belongs to is ahead of others.
    pub(super) fn may_go_ahead(&mut self, account: &Account, now: u64) -> bool {
        let is_behind = self.ready() == 0 || self.tree.is_behind(account.id);
        self.is_open(account.id, now) && is_behind
    }

    /// Whether a client's part has something left.
    pub(super) fn is_open(&self, id: usize, now: u64) -> bool {
        self.tree.is_open(id, now)
    }

    /// Whether more is reserved than there is.
    fn check(&self) -> Result<(), CUresult> {
        let of_groups = self.reserved_of_groups();
        let is_too_much = |(number, reserved): (&u32, &f64)| {
            let share = self.groups[number].share;
            share.reserved && *reserved > f64::from(share.percentage) + INEXACT
        };
        if self.reserved() > 100.0 + INEXACT || of_groups.iter().any(is_too_much) {
            return Err(CUresult::ERROR_INVALID_RESOURCE_CONFIGURATION);
        }
        Ok(())
    }

    fn group_of(&self, client: &Client) -> Option<&Group> {
        self.groups.get(&client.group?)
    }

    /// Percent of the device that are reserved.
    fn reserved(&self) -> f64 {
        let clients = self.clients.values().filter(|client| {
            let group = self.group_of(client);
            client.share.reserved && group.is_none_or(|group| !group.share.reserved)
        });
        let groups = self.groups.values().filter(|group| group.share.reserved);
        clients
            .map(|client| client.share.percentage)
            .chain(groups.map(|group| group.share.percentage))
            .map(f64::from)
            .sum()
    }

    /// Percent of the device that clients of each group have reserved for themselves, if any have.
    fn reserved_of_groups(&self) -> BTreeMap<u32, f64> {
        let mut reserved = BTreeMap::new();
        for client in self.clients.values().filter(|client| client.share.reserved) {
            let group = client.group;
            if let Some(number) = group.filter(|number| self.groups.contains_key(number)) {
                *reserved.entry(number).or_default() += f64::from(client.share.percentage);
            }
        }
        reserved
    }

    /// Brings everybody to where their shares have them.
    fn arrange(&mut self, now: u64) {
        let reserved = self.reserved();
        let rest = (100.0 - reserved).max(LEAST_REST);
        self.set_part(REST, rest, reserved > 0.0, now);
        let of_groups = self.reserved_of_groups();
        for (number, Group { share, node }) in self.groups.clone() {
            let left = f64::from(share.percentage) - of_groups.get(&number).unwrap_or(&0.0);
            let parent = if share.reserved { ROOT } else { REST };
            self.tree.move_to(node, parent);
            self.set_part(node, left.max(LEAST_REST), share.reserved, now);
        }
        for id in self.clients.keys().copied().collect::<Vec<_>>() {
            self.place(id, now);
        }
    }

    /// Brings a client to where its share has it.
    fn place(&mut self, id: usize, now: u64) {
        let Some(client) = self.clients.get(&id).copied() else {
            return;
        };
        let Client { share, part, .. } = client;
        let own = share
            .reserved
            .then(|| part.unwrap_or_else(|| self.tree.add(ROOT)));
        if let Some(own) = own {
            self.set_part(own, weight(share.percentage), true, now);
        }
        let group = self.group_of(&client).map(|group| group.node);
        self.tree.move_to(id, own.or(group).unwrap_or(REST));
        if own != part {
            let moved = Client {
                part: own,
                ..client
            };
            self.clients.insert(id, moved);
            if let Some(part) = part {
                self.tree.remove(part);
            }
        }
    }

    fn set_part(&mut self, node: usize, percentage: f64, held: bool, now: u64) {
        let rate = held.then_some(percentage / 100.0 * self.threads);
        self.tree.set_weight(node, percentage, rate, now);
    }
}

#[cfg(test)]
mod tests;
