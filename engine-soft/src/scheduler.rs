//! Who runs next: a pool of threads that all clients' jobs share.
//!
//! A thread takes the next turn of whoever [`shares`] names, for some milliseconds, and says what it
//! took: processor time, as the system counts it for the thread, so that other programs on the machine
//! change nothing in what clients get of each other. Since every turn ends, kernels that wait for each
//! other all proceed, on one thread too.
//!
//! While something is reserved, there may be work and nobody who may go on. Then one of the threads
//! that have nothing to do, the *lookout*, sleeps until the next part may, and the others until they
//! are called.
//!
//! Knows what a job is, and nothing of addresses, kernels or streams' contents.

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use engine::{CUresult, GroupShare, Share};
use rustix::time::{ClockId, clock_gettime};

pub(crate) use self::shares::Account;
use self::shares::{Choice, Shares};
use self::tree::SLACK;
use crate::sync::lock;
use crate::work::{Job, Piece};

mod shares;
mod tree;

/// Among one client's jobs the most urgent ones go first, but for one turn of so many.
const OTHERS: u64 = 8;

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
    /// There is work for the lookout, or something to look out for.
    lookout: Condvar,
    /// A closed member has no thread left in its work.
    quiet: Condvar,
    /// Every client stands by itself and nothing is reserved, so that a client's own virtual time
    /// says all; written under the lock, read without.
    plain: AtomicBool,
    /// Members that have work to hand out; written under the lock, read without.
    ready: AtomicUsize,
    /// Threads that sleep or are waking; written under the lock, read without.
    spare: AtomicUsize,
    /// By class, virtual time of the member that went last: where newcomers begin. Written under
    /// the lock, read without.
    floors: [AtomicU64; 2],
    workers: usize,
    started: Instant,
}

#[derive(Debug)]
struct State {
    shares: Shares,
    /// By their accounts' ids.
    members: Vec<Option<Member>>,
    asleep: usize,
    waking: usize,
    helping: usize,
    /// One thread sleeps until a part may go on, and is none of those that are asleep.
    watched: bool,
    stop: bool,
}

/// A client, as the scheduler sees it.
#[derive(Debug, Default)]
struct Member {
    jobs: BTreeMap<i32, VecDeque<Arc<Job>>>,
    turns: u64,
    /// Threads in its work.
    active: usize,
    closed: bool,
}

thread_local! {
    /// Whether this thread is in a turn, which is counted as a whole.
    static IN_TURN: Cell<bool> = const { Cell::new(false) };
}

/// A piece of work in a thread's hand.
#[derive(Debug)]
struct Turn {
    choice: Choice,
    job: Arc<Job>,
    piece: Piece,
    limit: Option<Duration>,
}

/// How a turn ended.
#[derive(Debug)]
struct TurnEnd {
    choice: Choice,
    /// The job, if it must be queued again.
    again: Option<Arc<Job>>,
    took: Duration,
    /// Nanoseconds of processor time.
    used: u64,
    /// Percent that the job's context has at most.
    part: f32,
}

impl Pool {
    /// Starts so many threads.
    pub(crate) fn new(workers: usize) -> std::io::Result<Self> {
        let scheduler = Arc::new(Scheduler {
            state: Mutex::new(State {
                shares: Shares::new(workers),
                members: Vec::new(),
                asleep: 0,
                waking: 0,
                helping: 0,
                watched: false,
                stop: false,
            }),
            work: Condvar::new(),
            lookout: Condvar::new(),
            quiet: Condvar::new(),
            plain: AtomicBool::new(true),
            ready: AtomicUsize::new(0),
            spare: AtomicUsize::new(0),
            floors: Default::default(),
            workers,
            started: Instant::now(),
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
        self.scheduler.call_all();
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

    /// Adds a client, to a group if one is named.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION if more would be reserved than there is.
    pub(crate) fn join(&self, share: Share, group: Option<u32>) -> Result<Arc<Account>, CUresult> {
        let mut state = lock(&self.state);
        let account = state.shares.join(share, group, self.now())?;
        if state.members.len() <= account.id {
            state.members.resize_with(account.id + 1, || None);
        }
        state.members[account.id] = Some(Member::default());
        self.rearranged(state);
        Ok(account)
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
        state.shares.leave(account.id, self.now());
        self.rearranged(state);
    }

    /// Changes a client's share, from the next turn on.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION if more would be reserved than there is.
    pub(crate) fn set_share(&self, account: &Account, share: Share) -> Result<(), CUresult> {
        let mut state = lock(&self.state);
        let result = state.shares.set_share(account, share, self.now());
        self.rearranged(state);
        result
    }

    /// Sets or ends a group, from the next turn on.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION if more would be reserved than there is.
    pub(crate) fn set_group(&self, group: u32, share: Option<GroupShare>) -> Result<(), CUresult> {
        let mut state = lock(&self.state);
        let result = state.shares.set_group(group, share, self.now());
        self.rearranged(state);
        result
    }

    /// Shares may have changed: whoever sleeps looks whether that is something to do.
    fn rearranged(&self, state: MutexGuard<'_, State>) {
        let was_plain = self.plain.load(Ordering::Relaxed);
        self.publish(&state);
        let call = !(was_plain && state.shares.is_plain());
        drop(state);
        if call {
            self.call_all();
        }
    }

    fn call_all(&self) {
        self.work.notify_all();
        self.lookout.notify_all();
    }

    /// Queues a job of which about `threads` threads can make use.
    pub(crate) fn submit(&self, account: &Account, job: Arc<Job>, threads: usize) {
        let mut state = lock(&self.state);
        let refused = state.queue(account.id, job).err();
        let calls = if state.shares.is_open(account, self.now()) {
            state.call(threads)
        } else {
            state.call_lookout()
        };
        self.publish(&state);
        drop(state);
        drop(refused);
        self.make(calls);
    }

    /// Whether a client may run small work on the thread that brings it: nobody waits for a turn, or
    /// the client has had less than its share.
    pub(crate) fn may_run_here(&self, account: &Account) -> bool {
        if !self.plain.load(Ordering::Relaxed) {
            let mut state = lock(&self.state);
            let spare = state.shares.ready() == 0 && state.spare() > 0;
            return (account.class() == 0 || spare)
                && state.shares.may_go_ahead(account, self.now());
        }
        let class = account.class();
        if self.ready.load(Ordering::Relaxed) == 0 {
            return class == 0 || self.spare.load(Ordering::Relaxed) > 0;
        }
        let floor = self.floors[class].load(Ordering::Relaxed);
        class == 0 && account.time_from(floor) <= floor.saturating_add(SLACK)
    }

    /// Charges a client for what it ran on the thread that brought it, in a context that has at most
    /// `part` percent.
    pub(crate) fn charge(&self, account: &Account, took: Duration, part: f32) {
        let nanoseconds = took.as_nanos() as u64;
        if IN_TURN.get() {
            return;
        }
        if !self.plain.load(Ordering::Relaxed) {
            let mut state = lock(&self.state);
            let now = self.now();
            state.shares.charge(account, nanoseconds, part, now);
            let calls = state.keep_lookout(now);
            self.publish(&state);
            drop(state);
            self.make(calls);
        } else if self.ready.load(Ordering::Relaxed) > 0 {
            account.charge(nanoseconds, part);
        }
    }

    /// Gives one turn of the client's own work to the calling thread, if a processor is free for it.
    pub(crate) fn help(&self, account: &Account, limit: Duration) -> bool {
        if self.ready.load(Ordering::Relaxed) == 0 || self.spare.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let mut state = lock(&self.state);
        if state.spare() == 0 {
            return false;
        }
        let now = self.now();
        let Some(choice) = state.shares.of(account, now) else {
            return false;
        };
        let Some(mut turn) = state.take_turn(choice, self.workers, now) else {
            return false;
        };
        turn.limit = Some(turn.limit.map_or(limit, |most| most.min(limit)));
        state.helping += 1;
        self.publish(&state);
        drop(state);
        let end = self.run(turn, self.workers as u32);
        let mut state = lock(&self.state);
        state.helping -= 1;
        self.settle(state, end);
        true
    }

    /// A worker's life.
    fn serve(&self, index: u32) {
        let mut state = lock(&self.state);
        while !state.stop {
            let now = self.now();
            if let Some(turn) = state.pick(self.workers, now) {
                let calls = state.keep_lookout(now);
                self.publish(&state);
                drop(state);
                self.make(calls);
                let end = self.run(turn, index);
                self.settle(lock(&self.state), end);
                state = lock(&self.state);
            } else {
                state = self.sleep(state, now);
            }
        }
    }

    /// Waits for something to do.
    fn sleep<'a>(&'a self, mut state: MutexGuard<'a, State>, now: u64) -> MutexGuard<'a, State> {
        let opens = state.shares.opens(now).filter(|_| !state.watched);
        if let Some(opens) = opens {
            state.watched = true;
            self.publish(&state);
            let waited = self.lookout.wait_timeout(state, opens);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            state.watched = false;
        } else {
            state.asleep += 1;
            self.publish(&state);
            let waited = self.work.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
            if state.waking > 0 {
                state.waking -= 1;
            } else {
                state.asleep -= 1;
            }
        }
        self.publish(&state);
        state
    }

    /// Nanoseconds since it began.
    fn now(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }

    fn make(&self, calls: Calls) {
        for _ in 0..calls.asleep {
            self.work.notify_one();
        }
        if calls.lookout {
            self.lookout.notify_one();
        }
    }

    fn run(&self, turn: Turn, sm: u32) -> TurnEnd {
        let Turn {
            choice,
            job,
            piece,
            limit,
        } = turn;
        let (started, before) = (Instant::now(), processor_time());
        let part = job.part();
        IN_TURN.set(true);
        let again = job.run(piece, sm, limit).then_some(job);
        IN_TURN.set(false);
        TurnEnd {
            choice,
            again,
            took: started.elapsed(),
            used: processor_time().saturating_sub(before),
            part,
        }
    }

    fn settle(&self, mut state: MutexGuard<'_, State>, end: TurnEnd) {
        let TurnEnd {
            choice,
            again,
            took,
            used,
            part,
        } = end;
        let now = self.now();
        state.shares.end(choice, used, part, now);
        let refused = again.and_then(|job| state.queue(choice.id, job).err());
        let calls = if took > LONG_TURN && state.shares.may_go_on(now) {
            state.call(1)
        } else {
            state.keep_lookout(now)
        };
        // What was refused holds the client's memory: it goes before the client is told.
        drop(refused);
        if let Some(member) = &mut state.members[choice.id] {
            member.active -= 1;
            if member.closed && member.active == 0 {
                self.quiet.notify_all();
            }
        }
        self.publish(&state);
        drop(state);
        self.make(calls);
    }

    fn publish(&self, state: &State) {
        self.plain.store(state.shares.is_plain(), Ordering::Relaxed);
        self.ready.store(state.shares.ready(), Ordering::Relaxed);
        self.spare.store(state.spare(), Ordering::Relaxed);
        for (shown, floor) in self.floors.iter().zip(state.shares.floors()) {
            shown.store(floor, Ordering::Relaxed);
        }
    }
}

/// Nanoseconds of processor time that this thread has had.
fn processor_time() -> u64 {
    let had = clock_gettime(ClockId::ThreadCPUTime);
    had.tv_sec.unsigned_abs() * 1_000_000_000 + had.tv_nsec.unsigned_abs()
}

/// Threads to be woken, once the lock is free.
#[derive(Clone, Copy, Debug, Default)]
struct Calls {
    asleep: usize,
    lookout: bool,
}

impl State {
    /// Threads that have nothing to do, less those that help beside them.
    fn spare(&self) -> usize {
        let idle = self.asleep + self.waking + usize::from(self.watched);
        idle.saturating_sub(self.helping)
    }

    /// Calls so many threads to work, as far as there are any.
    fn call(&mut self, threads: usize) -> Calls {
        let asleep = threads.min(self.asleep);
        self.asleep -= asleep;
        self.waking += asleep;
        Calls {
            asleep,
            lookout: threads > asleep && self.watched,
        }
    }

    /// There is one more part to look out for.
    fn call_lookout(&mut self) -> Calls {
        if self.watched {
            return Calls {
                asleep: 0,
                lookout: true,
            };
        }
        self.call(1)
    }

    /// Sees to it that somebody looks out, if that is of use and a thread has nothing else to do.
    fn keep_lookout(&mut self, now: u64) -> Calls {
        if self.watched || self.asleep == 0 || self.shares.opens(now).is_none() {
            return Calls::default();
        }
        self.call(1)
    }

    /// Puts a job into its client's queue, or gives it back if the client is gone.
    fn queue(&mut self, id: usize, job: Arc<Job>) -> Result<(), Arc<Job>> {
        let Some(member) = self.members[id].as_mut().filter(|member| !member.closed) else {
            return Err(job);
        };
        member.jobs.entry(job.priority).or_default().push_back(job);
        self.shares.wake(id);
        Ok(())
    }

    /// The next turn of whoever is to have it.
    fn pick(&mut self, threads: usize, now: u64) -> Option<Turn> {
        loop {
            let choice = self.shares.next(now)?;
            if let Some(turn) = self.take_turn(choice, threads, now) {
                return Some(turn);
            }
        }
    }

    /// A turn of this client's, if it has one. If it has no more, it goes out of those with work.
    fn take_turn(&mut self, choice: Choice, threads: usize, now: u64) -> Option<Turn> {
        let member = self.members[choice.id].as_mut()?;
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
                found = piece.map(|piece| (job, piece));
            }
            if jobs.is_empty() {
                member.jobs.remove(&priority);
            }
        }
        if member.jobs.is_empty() {
            self.shares.idle(choice.id);
        }
        let (job, piece) = found?;
        member.active += 1;
        Some(Turn {
            choice,
            job,
            piece,
            limit: self.shares.begin(choice, now),
        })
    }

    /// Closes a client and gives its jobs, to be dropped outside of the lock.
    fn close(&mut self, id: usize) -> BTreeMap<i32, VecDeque<Arc<Job>>> {
        let Some(member) = &mut self.members[id] else {
            return BTreeMap::new();
        };
        member.closed = true;
        self.shares.idle(id);
        std::mem::take(&mut member.jobs)
    }
}

#[cfg(test)]
mod tests;
