//! The scheduler's threads: made with the engine, ended with it.
//!
//! Called by `soft_engine`. What a thread does is [`Scheduler::serve`]'s. Must not know clients and jobs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::thread::JoinHandle;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use super::shares::Shares;
use super::{Scheduler, SchedulerState};

/// The pool's threads; ends them when dropped.
#[derive(Debug)]
pub(crate) struct WorkerPool {
    scheduler: Arc<Scheduler>,
    threads: Vec<JoinHandle<()>>,
}

impl WorkerPool {
    /// Starts so many threads.
    pub(crate) fn new(workers: usize) -> std::io::Result<Self> {
        let processors = std::thread::available_parallelism().map_or(usize::MAX, usize::from);
        let scheduler = Arc::new(Scheduler {
            state: Mutex::new(SchedulerState {
                shares: Shares::new(workers),
                members: Vec::new(),
                asleep: 0,
                waking: 0,
                helping: 0,
                timer_sleeps: false,
                stop: false,
            }),
            work: Condvar::new(),
            timer: Condvar::new(),
            quiet: Condvar::new(),
            plain: AtomicBool::new(true),
            ready: AtomicUsize::new(0),
            spare: AtomicUsize::new(0),
            unwoken: AtomicUsize::new(0),
            floors: Default::default(),
            workers,
            one_each: workers >= processors,
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

impl Drop for WorkerPool {
    fn drop(&mut self) {
        self.scheduler.state.lock().stop = true;
        self.scheduler.call_all();
        for thread in self.threads.drain(..) {
            // A worker contains panics of what it runs, so it ends in good order.
            let _ = thread.join();
        }
    }
}
