//! The scheduler: a pool of threads that all clients' jobs share, and which client's job runs next.
//!
//! A thread runs a time slice of the client that [`shares`] names, for some milliseconds, and reports what it
//! took: processor time, as the system counts it for the thread, so that other programs on the machine
//! change nothing in what clients get of each other. Since every time slice ends, kernels that wait for each
//! other all proceed, on one thread too.
//!
//! While something is reserved, there may be work that no client may run yet. Then one of the idle threads,
//! the *timer thread*, sleeps until the next part may run, and the others until they are woken.
//!
//! Knows what a job is, and nothing of addresses, kernels or streams' contents.

use parking_lot::{Condvar, Mutex, MutexGuard};
use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use engine::{CUresult, GroupShare, Share};
use protocol::operations::HoldReason;
use rustix::time::{ClockId, clock_gettime};

pub(crate) use self::pool::WorkerPool;
pub(crate) use self::shares::Account;
use self::shares::{Choice, Shares};
use self::tree::SLACK;
use crate::work::{Job, Piece};

mod pool;
mod shares;
mod tree;

/// Among one client's jobs the most urgent ones go first, but for one time slice of so many.
const OTHERS: u64 = 8;

/// A time slice that takes this long shows that more threads would have been of use.
const LONG_SLICE: Duration = Duration::from_micros(100);

/// What the pool's threads and the clients share.
#[derive(Debug)]
pub(crate) struct Scheduler {
    state: Mutex<SchedulerState>,
    /// There is work for a thread that sleeps.
    work: Condvar,
    /// Wakes the timer thread: there is work for it, or an earlier time to wait for.
    timer: Condvar,
    /// A closed member has no thread left in its work.
    quiet: Condvar,
    /// Every client stands by itself and nothing is reserved, so that a client's own virtual time
    /// says all; written under the lock, read without.
    plain: AtomicBool,
    /// Members that have work to hand out; written under the lock, read without.
    ready: AtomicUsize,
    /// Threads that sleep or are waking; written under the lock, read without.
    spare: AtomicUsize,
    /// Sleeping threads that somebody has still to wake. Whoever woke the first one may have lost its processor to that, so that each
    /// thread that wakes goes on with the rest.
    unwoken: AtomicUsize,
    /// By class, virtual time of the member that went last: where newcomers begin. Written under
    /// the lock, read without.
    floors: [AtomicU64; 2],
    workers: usize,
    /// There is a thread for each processor that this process may use.
    one_each: bool,
    started: Instant,
}

#[derive(Debug)]
struct SchedulerState {
    shares: Shares,
    /// By their accounts' ids.
    members: Vec<Option<Member>>,
    asleep: usize,
    waking: usize,
    helping: usize,
    /// The timer thread sleeps, which is none of those that are asleep.
    timer_sleeps: bool,
    stop: bool,
}

/// A client, as the scheduler sees it.
#[derive(Debug, Default)]
struct Member {
    jobs: BTreeMap<i32, VecDeque<Arc<Job>>>,
    slices: u64,
    /// Threads in its work.
    active: usize,
    /// Since when it has work and no thread, and why.
    waiting: Option<(u64, HoldReason)>,
    closed: bool,
}

thread_local! {
    /// Whether this thread is in a time slice, which is counted as a whole.
    static IN_SLICE: Cell<bool> = const { Cell::new(false) };
}

/// A piece of work in a thread's hand.
#[derive(Debug)]
struct TimeSlice {
    choice: Choice,
    job: Arc<Job>,
    piece: Piece,
    limit: Option<Duration>,
    /// For how long its client was given nothing, and why.
    waited: Option<(Duration, HoldReason)>,
}

/// How a time slice ended.
#[derive(Debug)]
struct SliceEnd {
    choice: Choice,
    /// The job, if it must be queued again.
    again: Option<Arc<Job>>,
    took: Duration,
    /// Nanoseconds of processor time.
    used: u64,
    /// Percent that the job's context has at most.
    part: f32,
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
        let mut state = self.state.lock();
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
        let mut state = self.state.lock();
        let taken = state.close(account.id);
        self.publish(&state);
        drop(state);
        drop(taken);
        let mut state = self.state.lock();
        while state.members[account.id]
            .as_ref()
            .is_some_and(|member| member.active > 0)
        {
            self.quiet.wait(&mut state);
        }
        state.members[account.id] = None;
        state.shares.leave(account.id, self.now());
        self.rearranged(state);
    }

    /// Changes a client's share, from the next time slice on.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION if more would be reserved than there is.
    pub(crate) fn set_share(&self, account: &Account, share: Share) -> Result<(), CUresult> {
        let mut state = self.state.lock();
        let result = state.shares.set_share(account, share, self.now());
        self.rearranged(state);
        result
    }

    /// Sets or ends a group, from the next time slice on.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION if more would be reserved than there is.
    pub(crate) fn set_group(&self, group: u32, share: Option<GroupShare>) -> Result<(), CUresult> {
        let mut state = self.state.lock();
        let result = state.shares.set_group(group, share, self.now());
        self.rearranged(state);
        result
    }

    /// Shares may have changed: whoever sleeps looks whether that is something to do.
    fn rearranged(&self, state: MutexGuard<'_, SchedulerState>) {
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
        self.timer.notify_all();
    }

    /// Queues a job of which about `threads` threads can make use.
    pub(crate) fn submit(&self, account: &Account, job: Arc<Job>, threads: usize) {
        let mut state = self.state.lock();
        let now = self.now();
        let refused = state.queue(account.id, job, now).err();
        let wakeups = if state.shares.is_open(account.id, now) {
            state.wake(threads)
        } else {
            state.wake_timer()
        };
        self.publish(&state);
        drop(state);
        drop(refused);
        self.notify(wakeups);
    }

    /// Whether a client may run small work on the thread that brings it: nobody waits for a time slice, or
    /// the client has had less than its share.
    pub(crate) fn may_run_here(&self, account: &Account) -> bool {
        if !self.plain.load(Ordering::Relaxed) {
            let mut state = self.state.lock();
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
        if IN_SLICE.get() {
            return;
        }
        if !self.plain.load(Ordering::Relaxed) {
            let mut state = self.state.lock();
            let now = self.now();
            state.shares.charge(account, nanoseconds, part, now);
            let wakeups = state.ensure_timer(now);
            self.publish(&state);
            drop(state);
            self.notify(wakeups);
        } else if self.ready.load(Ordering::Relaxed) > 0 {
            account.charge(nanoseconds, part);
        }
    }

    /// Whether work for so many more threads has no processor idle, as there is a thread for each.
    pub(crate) fn takes_every_processor(&self, threads: usize) -> bool {
        self.one_each && threads >= self.spare.load(Ordering::Relaxed)
    }

    /// Gives one time slice of the client's own work to the calling thread, if a processor is free for it.
    pub(crate) fn help(&self, account: &Account, limit: Duration) -> bool {
        if self.ready.load(Ordering::Relaxed) == 0 || self.spare.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let mut state = self.state.lock();
        if state.spare() == 0 {
            return false;
        }
        let now = self.now();
        let Some(choice) = state.shares.of(account, now) else {
            return false;
        };
        let Some(mut slice) = state.take_slice(choice, self.workers, now) else {
            return false;
        };
        slice.limit = Some(slice.limit.map_or(limit, |most| most.min(limit)));
        state.helping += 1;
        self.publish(&state);
        drop(state);
        let end = self.run(slice, self.workers as u32);
        let mut state = self.state.lock();
        state.helping -= 1;
        self.settle(state, end);
        true
    }

    /// A worker's life.
    fn serve(&self, index: u32) {
        let mut state = self.state.lock();
        while !state.stop {
            let now = self.now();
            if let Some(slice) = state.pick(self.workers, now) {
                let wakeups = state.ensure_timer(now);
                self.publish(&state);
                drop(state);
                self.notify(wakeups);
                let end = self.run(slice, index);
                self.settle(self.state.lock(), end);
                state = self.state.lock();
            } else {
                state = self.sleep(state, now);
            }
        }
    }

    /// Waits for something to do.
    fn sleep<'a>(
        &'a self,
        mut state: MutexGuard<'a, SchedulerState>,
        now: u64,
    ) -> MutexGuard<'a, SchedulerState> {
        let opens = state.shares.opens(now).filter(|_| !state.timer_sleeps);
        if let Some(opens) = opens {
            state.timer_sleeps = true;
            self.publish(&state);
            self.timer.wait_for(&mut state, opens);
            state.timer_sleeps = false;
        } else {
            state.asleep += 1;
            self.publish(&state);
            self.work.wait(&mut state);
            if state.waking > 0 {
                state.waking -= 1;
            } else {
                state.asleep -= 1;
            }
            if self.unwoken.load(Ordering::Relaxed) > 0 {
                MutexGuard::unlocked(&mut state, || self.wake_unwoken());
            }
        }
        self.publish(&state);
        state
    }

    /// Nanoseconds since it began.
    fn now(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }

    fn notify(&self, wakeups: Wakeups) {
        if wakeups.asleep > 0 {
            self.unwoken.fetch_add(wakeups.asleep, Ordering::Relaxed);
            self.wake_unwoken();
        }
        if wakeups.timer {
            self.timer.notify_one();
        }
    }

    fn wake_unwoken(&self) {
        let one_less = |unwoken: usize| unwoken.checked_sub(1);
        while self
            .unwoken
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less)
            .is_ok()
        {
            self.work.notify_one();
        }
    }

    fn run(&self, slice: TimeSlice, sm: u32) -> SliceEnd {
        let TimeSlice {
            choice,
            job,
            piece,
            limit,
            waited,
        } = slice;
        if let Some((waited, why)) = waited {
            job.waited(waited, why);
        }
        let (started, before) = (Instant::now(), processor_time());
        let part = job.percentage();
        IN_SLICE.set(true);
        let again = job.run(piece, sm, limit).then_some(job);
        IN_SLICE.set(false);
        SliceEnd {
            choice,
            again,
            took: started.elapsed(),
            used: processor_time().saturating_sub(before),
            part,
        }
    }

    fn settle(&self, mut state: MutexGuard<'_, SchedulerState>, end: SliceEnd) {
        let SliceEnd {
            choice,
            again,
            took,
            used,
            part,
        } = end;
        let now = self.now();
        state.shares.end(choice, used, part, now);
        let refused = again.and_then(|job| state.queue(choice.id, job, now).err());
        let wakeups = if took > LONG_SLICE && state.shares.may_go_on(now) {
            state.wake(1)
        } else {
            state.ensure_timer(now)
        };
        // What was refused holds the client's memory: it goes before the client is told.
        drop(refused);
        if let Some(member) = &mut state.members[choice.id] {
            member.active -= 1;
            if member.closed && member.active == 0 {
                self.quiet.notify_all();
            }
        }
        state.begin_wait(choice.id, now);
        self.publish(&state);
        drop(state);
        self.notify(wakeups);
    }

    fn publish(&self, state: &SchedulerState) {
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
struct Wakeups {
    asleep: usize,
    timer: bool,
}

impl SchedulerState {
    /// Threads that have nothing to do, less those that help beside them.
    fn spare(&self) -> usize {
        let idle = self.asleep + self.waking + usize::from(self.timer_sleeps);
        idle.saturating_sub(self.helping)
    }

    /// Wakes so many threads, as far as there are any.
    fn wake(&mut self, threads: usize) -> Wakeups {
        let asleep = threads.min(self.asleep);
        self.asleep -= asleep;
        self.waking += asleep;
        Wakeups {
            asleep,
            timer: threads > asleep && self.timer_sleeps,
        }
    }

    /// The timer thread has one more part to wait for.
    fn wake_timer(&mut self) -> Wakeups {
        if self.timer_sleeps {
            return Wakeups {
                asleep: 0,
                timer: true,
            };
        }
        self.wake(1)
    }

    /// Makes an idle thread the timer thread, if there is none and a part waits for its time.
    fn ensure_timer(&mut self, now: u64) -> Wakeups {
        if self.timer_sleeps || self.asleep == 0 || self.shares.opens(now).is_none() {
            return Wakeups::default();
        }
        self.wake(1)
    }

    /// Puts a job into its client's queue, or gives it back if the client is gone.
    fn queue(&mut self, id: usize, job: Arc<Job>, now: u64) -> Result<(), Arc<Job>> {
        let Some(member) = self.members[id].as_mut().filter(|member| !member.closed) else {
            return Err(job);
        };
        member.jobs.entry(job.priority).or_default().push_back(job);
        self.shares.wake(id);
        self.begin_wait(id, now);
        Ok(())
    }

    /// Notes that a client waits, if it has work and no thread: for its part of the device, or since no thread is to spare.
    fn begin_wait(&mut self, id: usize, now: u64) {
        let why = match self.shares.is_open(id, now) {
            false => HoldReason::Limit,
            true if self.spare() > 0 => return,
            true => HoldReason::Others,
        };
        if let Some(member) = &mut self.members[id]
            && member.active == 0
            && !member.jobs.is_empty()
        {
            member.waiting.get_or_insert((now, why));
        }
    }

    /// The next time slice of whoever is to have it.
    fn pick(&mut self, threads: usize, now: u64) -> Option<TimeSlice> {
        loop {
            let choice = self.shares.next(now)?;
            if let Some(slice) = self.take_slice(choice, threads, now) {
                return Some(slice);
            }
        }
    }

    /// A time slice of this client's, if it has one. If it has no more, it goes out of those with work.
    fn take_slice(&mut self, choice: Choice, threads: usize, now: u64) -> Option<TimeSlice> {
        let member = self.members[choice.id].as_mut()?;
        let mut found = None;
        while found.is_none() && !member.jobs.is_empty() {
            member.slices += 1;
            let pick = if member.slices.is_multiple_of(OTHERS) {
                // The classes take turns at this, so that none of them waits for ever.
                (member.slices / OTHERS) as usize % member.jobs.len()
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
        let waited = member.waiting.take().map(|(since, why)| {
            let why = match why {
                HoldReason::Others if choice.is_below_normal() => HoldReason::Priority,
                why => why,
            };
            (Duration::from_nanos(now.saturating_sub(since)), why)
        });
        Some(TimeSlice {
            waited,
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
