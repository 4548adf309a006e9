//! Virtual times and allowances: what each client, and all that it belongs to, has had.
//!
//! A tree: the root, below it parts of the device, below those groups and clients, below groups
//! clients. Only clients have work; a node above one has work as long as one below has. Each node has a
//! virtual time that grows with the processor time given to what is below it, the slower the larger its
//! weight; among the children of a node the one that is furthest behind goes first. A node that had no
//! work begins where its siblings are. Clients of the two priority classes stand in lines of their
//! own, on every level.
//!
//! Owns those numbers. Does not know why a node is where it is.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use engine::Share;

/// How far a client may be ahead of the others and still use the thread that serves it for its
/// small kernels, in virtual nanoseconds.
pub(super) const SLACK: u64 = 2_000_000;

/// A part that does nothing saves up what it would have had in this time, in nanoseconds.
const PERIOD: f64 = 20e6;

/// The node above all parts.
pub(super) const ROOT: usize = 0;

/// The part of all who have reserved nothing.
pub(super) const REST: usize = 1;

/// What a client has used, to be read and added to without the scheduler's lock.
#[derive(Debug)]
pub(crate) struct Account {
    /// Its node.
    pub(super) id: usize,
    class: AtomicUsize,
    /// Percent, as the bits of an `f64`.
    percentage: AtomicU64,
    /// Virtual nanoseconds.
    time: AtomicU64,
}

impl Account {
    /// 0 normal, 1 below normal.
    pub(super) fn class(&self) -> usize {
        self.class.load(Ordering::Relaxed)
    }

    /// Its virtual time, which is no less than where newcomers begin.
    pub(super) fn time_from(&self, floor: u64) -> u64 {
        self.time.fetch_max(floor, Ordering::Relaxed).max(floor)
    }

    /// Counts what was done outside of all time slices, for a context that has at most `part` percent.
    pub(super) fn charge(&self, nanoseconds: u64, part: f32) {
        let more = self.virtual_time(nanoseconds as f64, part);
        self.time.fetch_add(more as u64, Ordering::Relaxed);
    }

    /// Takes a share over, but for what it reserves.
    pub(super) fn set(&self, share: Share) {
        let percentage = weight(share.percentage).to_bits();
        self.percentage.store(percentage, Ordering::Relaxed);
        let class = usize::from(share.priority > 0);
        self.class.store(class, Ordering::Relaxed);
    }

    fn virtual_time(&self, nanoseconds: f64, part: f32) -> f64 {
        let percentage = f64::from_bits(self.percentage.load(Ordering::Relaxed));
        nanoseconds * 100.0 / percentage.min(weight(part))
    }
}

/// A percentage to divide by.
pub(super) fn weight(percentage: f32) -> f64 {
    f64::from(percentage).clamp(0.01, 100.0)
}

/// Processor time to count for a client.
#[derive(Clone, Copy, Debug)]
pub(super) struct Count {
    pub(super) class: usize,
    /// Nanoseconds that it was given.
    pub(super) took: f64,
    /// Nanoseconds that were counted before.
    pub(super) advance: f64,
    /// Percent that the context has at most for which it was.
    pub(super) part: f32,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Tree {
    nodes: Vec<Node>,
    /// Nodes that are nobody's.
    free: Vec<usize>,
    /// Clients that have work.
    ready: usize,
}

#[derive(Debug, Default)]
struct Node {
    parent: usize,
    /// Percent. A client's is in its account.
    weight: f64,
    lines: [Line; 2],
    /// A part's, while anything is reserved.
    allowance: Option<Allowance>,
    /// A client's, which has its time.
    account: Option<Arc<Account>>,
}

/// What a node is for the clients of one class.
#[derive(Debug, Default)]
struct Line {
    /// Virtual nanoseconds. A client's are in its account.
    time: u64,
    /// Its key among its siblings, while it has work.
    key: Option<u64>,
    /// Nodes below it that have work, the one furthest behind first.
    ready: BTreeSet<(u64, usize)>,
    /// Where newcomers among those begin: the time of the one that went last.
    floor: u64,
}

/// What a part may use before it has to wait.
#[derive(Debug)]
struct Allowance {
    /// Nanoseconds of processor time for each one that passes.
    rate: f64,
    /// Nanoseconds; below zero what is owed.
    left: f64,
    /// When that was so.
    at: u64,
}

impl Allowance {
    fn most(&self) -> f64 {
        self.rate * PERIOD
    }

    fn at(&self, now: u64) -> f64 {
        let grown = now.saturating_sub(self.at) as f64 * self.rate;
        (self.left + grown).min(self.most())
    }

    fn settle(&mut self, now: u64) {
        self.left = self.at(now);
        self.at = now.max(self.at);
    }
}

impl Tree {
    /// The root and the rest.
    pub(super) fn new() -> Self {
        let node = || Node {
            weight: 100.0,
            ..Node::default()
        };
        Self {
            nodes: vec![node(), node()],
            free: Vec::new(),
            ready: 0,
        }
    }

    /// Adds a group or part, or a client, which has an account.
    pub(super) fn add(&mut self, parent: usize) -> usize {
        let id = self.free.pop().unwrap_or_else(|| {
            self.nodes.push(Node::default());
            self.nodes.len() - 1
        });
        self.nodes[id].parent = parent;
        id
    }

    /// Makes a node a client's.
    pub(super) fn open_account(&mut self, id: usize, share: Share) -> Arc<Account> {
        let account = Arc::new(Account {
            id,
            class: AtomicUsize::new(0),
            percentage: AtomicU64::new(0),
            time: AtomicU64::new(0),
        });
        account.set(share);
        self.nodes[id].account = Some(Arc::clone(&account));
        account
    }

    /// Takes out a node that has nothing below it.
    pub(super) fn remove(&mut self, id: usize) {
        self.idle(id);
        self.nodes[id] = Node::default();
        self.free.push(id);
    }

    /// How many clients have work.
    pub(super) fn ready(&self) -> usize {
        self.ready
    }

    /// A client's account.
    pub(super) fn account(&self, id: usize) -> Option<&Arc<Account>> {
        self.nodes[id].account.as_ref()
    }

    /// Whether a node is a part that has an allowance.
    pub(super) fn is_held(&self, id: usize) -> bool {
        self.nodes[id].allowance.is_some()
    }

    /// By class, the virtual time at which newcomers begin below a node.
    pub(super) fn floors(&self, id: usize) -> [u64; 2] {
        [0, 1].map(|class| self.nodes[id].lines[class].floor)
    }

    /// Whether anybody of a class has work.
    pub(super) fn has_work(&self, class: usize) -> bool {
        !self.nodes[ROOT].lines[class].ready.is_empty()
    }

    /// A client has work.
    pub(super) fn wake(&mut self, id: usize) {
        if let Some(class) = self.class(id)
            && self.nodes[id].lines[class].key.is_none()
        {
            self.ready += 1;
            self.rouse(id, class);
        }
    }

    /// A client has no more work. Says whether it had any.
    pub(super) fn idle(&mut self, id: usize) -> bool {
        let Some(class) = self.class(id) else {
            return false;
        };
        let had_work = self.nodes[id].lines[class].key.is_some();
        if had_work {
            self.ready -= 1;
            self.rest(id, class);
        }
        had_work
    }

    /// The client of a class that is furthest behind, of those whose part has something left.
    pub(super) fn first(&mut self, class: usize, now: u64) -> Option<usize> {
        'again: loop {
            let parts = &self.nodes[ROOT].lines[class].ready;
            let mut open = parts.iter().filter(|&&(_, part)| self.is_open(part, now));
            let mut at = open.next()?.1;
            while self.nodes[at].account.is_none() {
                at = self.nodes[at].lines[class].ready.first()?.1;
            }
            if self.nodes[at].lines[class].key < Some(self.time(at, class)) {
                // It was charged since it was put here.
                self.sort(at, class);
                continue 'again;
            }
            return Some(at);
        }
    }

    /// Newcomers are to begin where this client is, which goes next.
    pub(super) fn raise_floors(&mut self, id: usize, class: usize) {
        let mut at = id;
        while at != ROOT {
            let time = self.time(at, class);
            at = self.nodes[at].parent;
            let floor = &mut self.nodes[at].lines[class].floor;
            *floor = time.max(*floor);
        }
    }

    /// Counts processor time for a client and all above it.
    pub(super) fn count(&mut self, id: usize, count: Count, now: u64) {
        let Count {
            class,
            took,
            advance,
            part,
        } = count;
        let mut at = id;
        while at != ROOT {
            let node = &mut self.nodes[at];
            if let Some(allowance) = &mut node.allowance {
                allowance.settle(now);
                allowance.left -= took - advance;
            }
            match &node.account {
                // What was counted before was not for any context.
                Some(account) => {
                    let before = account.virtual_time(advance, 100.0);
                    let more = (account.virtual_time(took, part) - before) as i64;
                    // Others add to it at the same time.
                    let add = |time: u64| Some(time.saturating_add_signed(more));
                    let _ = account
                        .time
                        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
                }
                None => {
                    let more = (took - advance) * 100.0 / node.weight;
                    let time = &mut node.lines[class].time;
                    *time = time.saturating_add_signed(more as i64);
                }
            }
            self.sort(at, class);
            at = self.nodes[at].parent;
        }
    }

    /// Whether the part that a node is in has something left.
    pub(super) fn is_open(&self, id: usize, now: u64) -> bool {
        let allowance = self.nodes[self.part_of(id)].allowance.as_ref();
        allowance.is_none_or(|allowance| allowance.at(now) > 0.0)
    }

    /// The most that the part of a client saves up.
    pub(super) fn most(&self, id: usize) -> Option<Duration> {
        let allowance = self.nodes[self.part_of(id)].allowance.as_ref()?;
        Some(Duration::from_nanos(allowance.most() as u64))
    }

    /// In what time the next part has something left of those that have work and nothing left.
    pub(super) fn opens(&self, now: u64) -> Option<Duration> {
        self.nodes[REST].allowance.as_ref()?;
        let parts = self.nodes[ROOT].lines.iter().flat_map(|line| &line.ready);
        let waits = parts.filter_map(|&(_, part)| {
            let allowance = self.nodes[part].allowance.as_ref()?;
            let left = allowance.at(now);
            (left <= 0.0).then(|| (1.0 - left / allowance.rate) as u64)
        });
        waits.min().map(Duration::from_nanos)
    }

    /// Whether a client, and all that it belongs to, has had no more than others that wait.
    pub(super) fn is_behind(&mut self, id: usize) -> bool {
        let Some(class) = self.class(id) else {
            return false;
        };
        let mut at = id;
        while at != ROOT {
            let floor = self.floor_of(at, class);
            let time = self.raise(at, class, floor);
            let parent = self.nodes[at].parent;
            let mut waiting = self.nodes[parent].lines[class].ready.iter();
            if time > floor.saturating_add(SLACK) && waiting.any(|&(_, other)| other != at) {
                return false;
            }
            at = parent;
        }
        true
    }

    /// Sets a part's or a group's weight, and for a part that is held to it the processor time that
    /// it has for each nanosecond.
    pub(super) fn set_weight(&mut self, id: usize, percentage: f64, rate: Option<f64>, now: u64) {
        let node = &mut self.nodes[id];
        let scale = node.weight / percentage;
        node.weight = percentage;
        node.allowance = rate.map(|rate| {
            let mut left = 0.0;
            if let Some(before) = &mut node.allowance {
                before.settle(now);
                left = before.left;
            }
            let at = now;
            Allowance { rate, left, at }
        });
        for class in [0, 1] {
            self.scale_lead(id, class, scale);
        }
    }

    /// Multiplies the virtual time by which a node is ahead of its siblings.
    pub(super) fn scale_lead(&mut self, id: usize, class: usize, scale: f64) {
        let floor = self.floor_of(id, class);
        let lead = self.time(id, class).saturating_sub(floor);
        if lead > 0 && scale != 1.0 {
            self.set_time(id, class, floor + (lead as f64 * scale) as u64);
            self.sort(id, class);
        }
    }

    /// Has a client begin like a newcomer.
    pub(super) fn begin_anew(&mut self, id: usize) {
        if let Some(class) = self.class(id) {
            let floor = self.floor_of(id, class);
            self.set_time(id, class, floor);
            self.sort(id, class);
        }
    }

    /// Puts a node below another one, where it begins like a newcomer.
    pub(super) fn move_to(&mut self, id: usize, parent: usize) {
        if self.nodes[id].parent == parent {
            return;
        }
        let had_work = [0, 1].map(|class| self.nodes[id].lines[class].key.is_some());
        for class in [0, 1] {
            if had_work[class] {
                self.rest(id, class);
            }
        }
        self.nodes[id].parent = parent;
        for class in [0, 1] {
            if self.class(id).is_none_or(|own| own == class) {
                let floor = self.floor_of(id, class);
                self.set_time(id, class, floor);
            }
            if had_work[class] {
                self.rouse(id, class);
            }
        }
    }

    fn class(&self, id: usize) -> Option<usize> {
        Some(self.account(id)?.class())
    }

    fn time(&self, id: usize, class: usize) -> u64 {
        match &self.nodes[id].account {
            Some(account) => account.time.load(Ordering::Relaxed),
            None => self.nodes[id].lines[class].time,
        }
    }

    fn set_time(&mut self, id: usize, class: usize, time: u64) {
        let node = &mut self.nodes[id];
        match &node.account {
            Some(account) => account.time.store(time, Ordering::Relaxed),
            None => node.lines[class].time = time,
        }
    }

    /// Has a node without work begin no earlier than its siblings, and gives its time.
    fn raise(&mut self, id: usize, class: usize, floor: u64) -> u64 {
        let node = &mut self.nodes[id];
        if let Some(account) = &node.account {
            return account.time_from(floor);
        }
        let line = &mut node.lines[class];
        if line.key.is_none() {
            line.time = line.time.max(floor);
        }
        line.time.max(floor)
    }

    fn floor_of(&self, id: usize, class: usize) -> u64 {
        self.nodes[self.nodes[id].parent].lines[class].floor
    }

    /// The part that a node is in.
    fn part_of(&self, id: usize) -> usize {
        let mut at = id;
        while self.nodes[at].parent != ROOT {
            at = self.nodes[at].parent;
        }
        at
    }

    /// Puts a node among its siblings that have work, and so those above it.
    fn rouse(&mut self, id: usize, class: usize) {
        let mut at = id;
        while at != ROOT && self.nodes[at].lines[class].key.is_none() {
            let time = self.raise(at, class, self.floor_of(at, class));
            self.nodes[at].lines[class].key = Some(time);
            let parent = self.nodes[at].parent;
            self.nodes[parent].lines[class].ready.insert((time, at));
            at = parent;
        }
    }

    /// Takes a node out from among them, and those above it that have nobody else.
    fn rest(&mut self, id: usize, class: usize) {
        let mut at = id;
        while at != ROOT {
            let parent = self.nodes[at].parent;
            if let Some(key) = self.nodes[at].lines[class].key.take() {
                self.nodes[parent].lines[class].ready.remove(&(key, at));
            }
            if !self.nodes[parent].lines[class].ready.is_empty() {
                break;
            }
            at = parent;
        }
    }

    /// Puts a node where its time has it among its siblings.
    fn sort(&mut self, id: usize, class: usize) {
        let time = self.time(id, class);
        let parent = self.nodes[id].parent;
        if let Some(key) = self.nodes[id].lines[class].key.as_mut()
            && *key != time
        {
            let old = std::mem::replace(key, time);
            let ready = &mut self.nodes[parent].lines[class].ready;
            ready.remove(&(old, id));
            ready.insert((time, id));
        }
    }
}
