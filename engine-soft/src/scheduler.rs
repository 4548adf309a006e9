//! Who runs next: a pool of threads that all clients' jobs share.
//!
//! Every client has a virtual time that grows with the processor time it is given, the slower the
//! larger its percentage; the client that is furthest behind goes next, for one turn of some
//! milliseconds. So clients that all have work get it in proportion to their percentages, and one that
//! is alone gets everything. Clients of the lower priority class run when no normal client waits, and
//! for a small part of the time, one in [`TRICKLE`], when one does, so that no kernel waits for ever
//! for another client's. Since every turn ends, kernels that wait for each other all proceed, on one thread too.
//!
//! Knows what a job is, and nothing of addresses, kernels or streams' contents.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use engine::Share;

use crate::sync::lock;
use crate::work::{Job, Piece};

/// Below-normal work gets one part of so many of the time while normal work waits.
const TRICKLE: i64 = 32;

/// Among one client's jobs the most urgent ones go first, but for one turn of so many.
const OTHERS: u64 = 8;

/// What a turn is taken to cost until it is over, in nanoseconds.
const ADVANCE: u64 = 500_000;

/// How far a client may be ahead of the others and still use the thread that serves it for its
/// small kernels, in virtual nanoseconds.
const SLACK: u64 = 2_000_000;

/// A turn that takes this long shows that more threads would have been of use.
const LONG_TURN: Duration = Duration::from_micros(100);

/// The pool's threads; ends them when dropped.
#[derive(Debug)]
pub(crate) struct Pool {
    scheduler: Arc<Scheduler>,
    threads: Vec<JoinHandle<()>>,
}

/// What the pool's threads and the clients share.
#[derive(Debug)]
pub(crate) struct Scheduler {
    state: Mutex<State>,
    /// There is work for a thread that sleeps.
    work: Condvar,
    /// A closed member has no thread left in its work.
    quiet: Condvar,
    /// Members that have work to hand out; written under the lock, read without.
    ready: AtomicUsize,
    /// Threads that sleep or are waking; written under the lock, read without.
    spare: AtomicUsize,
    /// By class, virtual time of the member that went last: where newcomers begin.
    floors: [AtomicU64; 2],
    workers: usize,
}

#[derive(Debug, Default)]
struct State {
    members: Vec<Option<Member>>,
    /// By class, members with work to hand out, the one furthest behind first.
    ready: [BTreeSet<(u64, usize)>; 2],
    /// Nanoseconds of normal work for which below-normal work that waited had no part yet. Below
    /// zero when it had its part in advance.
    owed: i64,
    asleep: usize,
    waking: usize,
    helping: usize,
    stop: bool,
}

/// A client, as the scheduler sees it.
#[derive(Debug)]
struct Member {
    account: Arc<Account>,
    /// Its key in `ready`, while it is there.
    key: Option<u64>,
    jobs: BTreeMap<i32, VecDeque<Arc<Job>>>,
    turns: u64,
    /// Threads in its work.
    active: usize,
    closed: bool,
}

/// What a client has used.
#[derive(Debug)]
pub(crate) struct Account {
    id: usize,
    class: usize,
    /// Virtual nanoseconds for a real one.
    rate: f64,
    time: AtomicU64,
}

/// A piece of work in a thread's hand.
#[derive(Debug)]
struct Turn {
    member: usize,
    job: Arc<Job>,
    piece: Piece,
}

/// How a turn ended.
#[derive(Debug)]
struct TurnEnd {
    member: usize,
    /// The job, if it must be queued again.
    again: Option<Arc<Job>>,
    took: Duration,
}

impl Pool {
    /// Starts so many threads.
    pub(crate) fn new(workers: usize) -> std::io::Result<Self> {
        let scheduler = Arc::new(Scheduler {
            state: Mutex::default(),
            work: Condvar::new(),
            quiet: Condvar::new(),
            ready: AtomicUsize::new(0),
            spare: AtomicUsize::new(0),
            floors: Default::default(),
            workers,
        });
        let mut pool = Self {
            scheduler,
            threads: Vec::new(),
        };
        for index in 0..workers {
            let scheduler = Arc::clone(&pool.scheduler);
            let thread = std::thread::Builder::new()
                .name(format!("soft-sm-{index}"))
                .spawn(move || scheduler.serve(index as u32))?;
            pool.threads.push(thread);
        }
        Ok(pool)
    }

    pub(crate) fn scheduler(&self) -> &Arc<Scheduler> {
        &self.scheduler
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        lock(&self.scheduler.state).stop = true;
        self.scheduler.work.notify_all();
        for thread in self.threads.drain(..) {
            // A worker contains panics of what it runs, so it ends in good order.
            let _ = thread.join();
        }
    }
}

impl Scheduler {
    /// How many threads there are.
    pub(crate) fn workers(&self) -> usize {
        self.workers
    }

    /// Adds a client.
    pub(crate) fn join(&self, share: Share) -> Arc<Account> {
        let mut state = lock(&self.state);
        let id = match state.members.iter().position(Option::is_none) {
            Some(id) => id,
            None => {
                state.members.push(None);
                state.members.len() - 1
            }
        };
        let account = Arc::new(Account {
            id,
            class: usize::from(share.priority > 0),
            rate: 100.0 / f64::from(share.percentage.clamp(0.01, 100.0)),
            time: AtomicU64::new(0),
        });
        state.members[id] = Some(Member {
            account: Arc::clone(&account),
            key: None,
            jobs: BTreeMap::new(),
            turns: 0,
            active: 0,
            closed: false,
        });
        account
    }

    /// Takes a client's work out and waits until no thread is in it. Its work has been cancelled, so
    /// that is soon.
    pub(crate) fn leave(&self, account: &Account) {
        let mut state = lock(&self.state);
        let taken = state.close(account.id);
        self.publish(&state);
        drop(state);
        drop(taken);
        let mut state = lock(&self.state);
        while state.members[account.id]
            .as_ref()
            .is_some_and(|member| member.active > 0)
        {
            state = self
                .quiet
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        state.members[account.id] = None;
    }

    /// Queues a job of which about `threads` threads can make use.
    pub(crate) fn submit(&self, account: &Account, job: Arc<Job>, threads: usize) {
        let mut state = lock(&self.state);
        let refused = state.queue(account.id, job, &self.floors).err();
        let wake = threads.min(state.asleep);
        state.asleep -= wake;
        state.waking += wake;
        self.publish(&state);
        drop(state);
        drop(refused);
        for _ in 0..wake {
            self.work.notify_one();
        }
    }

    /// Whether a client may run small work on the thread that brings it: nobody waits for a turn, or
    /// the client has had less than its share.
    pub(crate) fn may_run_here(&self, account: &Account) -> bool {
        if self.ready.load(Ordering::Relaxed) == 0 {
            return account.class == 0 || self.spare.load(Ordering::Relaxed) > 0;
        }
        let floor = self.floors[account.class].load(Ordering::Relaxed);
        let time = account.time.fetch_max(floor, Ordering::Relaxed).max(floor);
        account.class == 0 && time <= floor.saturating_add(SLACK)
    }

    /// Charges a client for what it ran on the thread that brought it.
    pub(crate) fn charge(&self, account: &Account, took: Duration) {
        if self.ready.load(Ordering::Relaxed) > 0 {
            account.charge(took.as_nanos() as u64);
        }
    }

    /// Gives one turn of the client's own work to the calling thread, if a processor is free for it.
    pub(crate) fn help(&self, account: &Account, limit: Duration) -> bool {
        if self.ready.load(Ordering::Relaxed) == 0 || self.spare.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let mut state = lock(&self.state);
        if state.helping >= state.asleep + state.waking {
            return false;
        }
        let Some(turn) = state.take_turn(account.id, self.workers) else {
            return false;
        };
        state.helping += 1;
        self.publish(&state);
        drop(state);
        let end = self.run(turn, self.workers as u32, Some(limit));
        let mut state = lock(&self.state);
        state.helping -= 1;
        self.settle(state, end);
        true
    }

    /// A worker's life.
    fn serve(&self, index: u32) {
        let mut state = lock(&self.state);
        while !state.stop {
            if let Some(turn) = state.pick(&self.floors, self.workers) {
                self.publish(&state);
                drop(state);
                let end = self.run(turn, index, None);
                self.settle(lock(&self.state), end);
                state = lock(&self.state);
            } else {
                state.asleep += 1;
                self.publish(&state);
                state = self
                    .work
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
                if state.waking > 0 {
                    state.waking -= 1;
                } else {
                    state.asleep -= 1;
                }
                self.publish(&state);
            }
        }
    }

    fn run(&self, turn: Turn, sm: u32, limit: Option<Duration>) -> TurnEnd {
        let Turn { member, job, piece } = turn;
        let started = Instant::now();
        let again = job.run(piece, sm, limit).then_some(job);
        let took = started.elapsed();
        TurnEnd {
            member,
            again,
            took,
        }
    }

    fn settle(&self, mut state: MutexGuard<'_, State>, end: TurnEnd) {
        let TurnEnd {
            member: id,
            again,
            took,
        } = end;
        let mut refused = None;
        if let Some(member) = &state.members[id] {
            let nanoseconds = took.as_nanos() as u64;
            member.account.correct(nanoseconds);
            let class = member.account.class;
            state.share_classes(class, i64::try_from(nanoseconds).unwrap_or(i64::MAX));
        }
        if let Some(job) = again {
            refused = state.queue(id, job, &self.floors).err();
        }
        let wake = took > LONG_TURN && state.asleep > 0 && state.ready_members() > 0;
        if wake {
            state.asleep -= 1;
            state.waking += 1;
        }
        // What was refused holds the client's memory: it goes before the client is told.
        drop(refused);
        if let Some(member) = &mut state.members[id] {
            member.active -= 1;
            if member.closed && member.active == 0 {
                self.quiet.notify_all();
            }
        }
        self.publish(&state);
        drop(state);
        if wake {
            self.work.notify_one();
        }
    }

    fn publish(&self, state: &State) {
        self.ready.store(state.ready_members(), Ordering::Relaxed);
        let spare = (state.asleep + state.waking).saturating_sub(state.helping);
        self.spare.store(spare, Ordering::Relaxed);
    }
}

impl Account {
    fn charge(&self, nanoseconds: u64) {
        let virtual_time = (nanoseconds as f64 * self.rate) as u64;
        self.time.fetch_add(virtual_time, Ordering::Relaxed);
    }

    /// Replaces what a turn was taken to cost by what it did cost.
    fn correct(&self, nanoseconds: u64) {
        let more = (nanoseconds as f64 - ADVANCE as f64) * self.rate;
        if more >= 0.0 {
            self.time.fetch_add(more as u64, Ordering::Relaxed);
        } else {
            self.time.fetch_sub(-more as u64, Ordering::Relaxed);
        }
    }
}

impl State {
    fn ready_members(&self) -> usize {
        self.ready.iter().map(BTreeSet::len).sum()
    }

    /// Notes what a turn of a class took, while the other class waits.
    fn share_classes(&mut self, class: usize, took: i64) {
        if self.ready[1 - class].is_empty() {
            // Nobody waits, so nothing is owed; what was had in advance stays so.
            self.owed = self.owed.min(0);
        } else if class == 0 {
            self.owed = self.owed.saturating_add(took);
        } else {
            let more = took.saturating_sub(ADVANCE as i64).saturating_mul(TRICKLE);
            self.owed = self.owed.saturating_sub(more);
        }
    }

    /// Puts a job into its client's queue, or gives it back if the client is gone.
    fn queue(&mut self, id: usize, job: Arc<Job>, floors: &[AtomicU64; 2]) -> Result<(), Arc<Job>> {
        let Some(member) = self.members[id].as_mut().filter(|member| !member.closed) else {
            return Err(job);
        };
        member.jobs.entry(job.priority).or_default().push_back(job);
        if member.key.is_none() {
            let account = &member.account;
            let floor = floors[account.class].load(Ordering::Relaxed);
            let time = account.time.fetch_max(floor, Ordering::Relaxed).max(floor);
            member.key = Some(time);
            self.ready[account.class].insert((time, id));
        }
        Ok(())
    }

    /// The next turn of whoever is furthest behind.
    fn pick(&mut self, floors: &[AtomicU64; 2], threads: usize) -> Option<Turn> {
        loop {
            let below = self.ready[0].is_empty() || (!self.ready[1].is_empty() && self.owed > 0);
            let &(key, id) = self.ready[usize::from(below)].first()?;
            let time = self.members[id]
                .as_ref()
                .map_or(key, |member| member.account.time.load(Ordering::Relaxed));
            if time > key {
                // It was charged since it was put here.
                self.move_to(id, time);
                continue;
            }
            floors[usize::from(below)].fetch_max(time, Ordering::Relaxed);
            if below && !self.ready[0].is_empty() {
                // Paid for in advance, or all threads would take such a turn at once.
                self.owed -= TRICKLE * ADVANCE as i64;
            }
            if let Some(turn) = self.take_turn(id, threads) {
                return Some(turn);
            }
        }
    }

    /// A turn of this client's. Takes the client out of `ready` if it has no more.
    fn take_turn(&mut self, id: usize, threads: usize) -> Option<Turn> {
        let member = self.members[id].as_mut()?;
        let mut found = None;
        while found.is_none() && !member.jobs.is_empty() {
            member.turns += 1;
            let pick = if member.turns.is_multiple_of(OTHERS) {
                // The classes take turns at this, so that none of them waits for ever.
                (member.turns / OTHERS) as usize % member.jobs.len()
            } else {
                0
            };
            let Some((&priority, jobs)) = member.jobs.iter_mut().nth(pick) else {
                break;
            };
            if let Some(job) = jobs.pop_front() {
                let (piece, more) = job.take(threads);
                if more {
                    jobs.push_back(Arc::clone(&job));
                }
                found = piece.map(|piece| Turn {
                    member: id,
                    job,
                    piece,
                });
            }
            if jobs.is_empty() {
                member.jobs.remove(&priority);
            }
        }
        if found.is_some() {
            member.active += 1;
            member.account.charge(ADVANCE);
        }
        let time = member.account.time.load(Ordering::Relaxed);
        if member.jobs.is_empty() {
            if let Some(key) = member.key.take() {
                self.ready[member.account.class].remove(&(key, id));
            }
        } else {
            self.move_to(id, time);
        }
        found
    }

    fn move_to(&mut self, id: usize, time: u64) {
        if let Some(member) = &mut self.members[id]
            && let Some(key) = member.key.replace(time)
        {
            let ready = &mut self.ready[member.account.class];
            ready.remove(&(key, id));
            ready.insert((time, id));
        }
    }

    /// Closes a client and gives its jobs, to be dropped outside of the lock.
    fn close(&mut self, id: usize) -> BTreeMap<i32, VecDeque<Arc<Job>>> {
        let Some(member) = &mut self.members[id] else {
            return BTreeMap::new();
        };
        member.closed = true;
        if let Some(key) = member.key.take() {
            self.ready[member.account.class].remove(&(key, id));
        }
        std::mem::take(&mut member.jobs)
    }
}

#[cfg(test)]
mod tests;
