//! Host functions: what the program's streams call in this very process.
//!
//! A host function is a *barrier* in its stream: the server holds what is behind it until this side says
//! that the function has returned. The functions of one stream are called in the stream's order, by a
//! thread that sleeps until the work before them is done; different streams have different threads, so
//! a function that takes its time keeps nothing waiting but its own stream.
//!
//! The threads are ours, and there are some only while functions are to be called and for a short time
//! after that. They leave the program's signals to the program's threads.
//!
//! `api::stream` and graphs' launches append functions; `exports` asks whether a call is permitted in one. Must not
//! know what a function does, nor graphs: work of ours comes as `InternalWork`.

use std::cell::Cell;
use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cuda_abi::CUresult;
use cuda_abi::types::{CU_STREAM_NON_BLOCKING, CUstream};
use protocol::operations::{EventRecord, HostBarrier, HostRelease};

use crate::os::signal_mask;
use crate::pointers::CallbackData;
use crate::stream::{StreamGuard, StreamTarget, Streams};

/// How long a thread that has nothing to call stays.
const IDLE: Duration = Duration::from_secs(5);

/// Work of ours that stands in a stream as a host function does. It cannot fail, and is called only
/// if nothing before it did.
pub(crate) trait InternalWork: Send + Sync + std::fmt::Debug {
    /// Does it.
    fn run(&self);
}

/// What is called.
#[derive(Clone, Debug)]
pub(crate) enum HostCall {
    /// cuLaunchHostFunc's: not called if the context is dead.
    Function {
        function: unsafe extern "C" fn(*mut c_void),
        data: CallbackData,
    },
    /// cuStreamAddCallback's: called in any case, and told of the error.
    Callback {
        function: unsafe extern "C" fn(CUstream, CUresult, *mut c_void),
        stream: CUstream,
        data: CallbackData,
    },
    /// Work of ours.
    Internal(Arc<dyn InternalWork>),
}

// SAFETY: a stream's handle has the type of a pointer, and leads nowhere; all else may be sent.
unsafe impl Send for HostCall {}
// SAFETY: a shared `HostCall` is only read, and a stream's handle leads nowhere.
unsafe impl Sync for HostCall {}

/// A call that stands in a stream.
#[derive(Debug)]
struct QueuedCall {
    /// The place of its barrier.
    sequence: u64,
    /// The slot of the stream's context.
    context: u32,
    call: HostCall,
}

/// The calls that stand in one stream, in its order.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    list: Mutex<CallQueue>,
}

#[derive(Debug, Default)]
struct CallQueue {
    queued: VecDeque<QueuedCall>,
    /// Whether a thread serves the stream, or will.
    served: bool,
}

/// What a thread is to do.
#[derive(Debug)]
enum Job {
    /// Call what stands in the stream of this slot.
    Stream(u32),
    /// Do something once a stream has reached a place.
    After {
        slot: u32,
        sequence: u64,
        work: Arc<dyn InternalWork>,
    },
}

/// The threads that call.
#[derive(Debug, Default)]
pub(crate) struct Callers {
    state: Mutex<CallerState>,
    bell: Condvar,
}

#[derive(Debug, Default)]
struct CallerState {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
}

thread_local! {
    /// Set while a function of the program's is called by a thread of ours.
    static CALLING: Cell<bool> = const { Cell::new(false) };
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Refuses what a host function must not call.
///
/// # Errors
/// CUDA_ERROR_NOT_PERMITTED within a host function.
#[inline]
pub(crate) fn check_outside_host_function() -> Result<(), CUresult> {
    if CALLING.get() {
        return Err(CUresult::ERROR_NOT_PERMITTED);
    }
    Ok(())
}

/// Calls something of the program's that may not call back.
pub(crate) fn calling(call: impl FnOnce()) {
    struct Reset(bool);
    impl Drop for Reset {
        fn drop(&mut self) {
            CALLING.set(self.0);
        }
    }
    let _reset = Reset(CALLING.replace(true));
    call();
}

impl HostCall {
    /// `status` is what became of the context before it.
    fn run(&self, status: Result<(), CUresult>) {
        match self {
            Self::Function { function, data } if status.is_ok() => {
                // SAFETY: the program promised that the function may be called with its data.
                calling(|| unsafe { function(data.pointer()) });
            }
            Self::Callback {
                function,
                stream,
                data,
            } => {
                // SAFETY: the program promised that the callback may be called with its stream and data.
                calling(|| unsafe { function(*stream, CUresult::of(status), data.pointer()) });
            }
            Self::Internal(work) if status.is_ok() => work.run(),
            Self::Function { .. } | Self::Internal(_) => {}
        }
    }
}

/// Puts a call at the end of a stream.
///
/// # Errors
/// CUDA_ERROR_OUT_OF_MEMORY when there can be no thread for it, and as for any operation.
pub(crate) fn enqueue(target: &StreamTarget, call: HostCall) -> Result<u64, CUresult> {
    ready(target.streams)?;
    let mut guard = target.guard();
    append(&mut guard, call)
}

/// Sees to it that there is a thread that can call; to be called before [`append`].
pub(crate) fn ready(streams: &'static Streams) -> Result<(), CUresult> {
    let callers = &streams.callers;
    if lock(&callers.state).threads == 0 {
        callers.add_thread(streams)?;
    }
    Ok(())
}

/// Puts a call at the end of a stream whose guard the caller holds. Gives the place of its barrier.
pub(crate) fn append(guard: &mut StreamGuard<'_>, call: HostCall) -> Result<u64, CUresult> {
    let (streams, slot, stream) = (guard.streams(), guard.slot(), guard.stream());
    if stream.flags() & CU_STREAM_NON_BLOCKING == 0 {
        // What the legacy stream and others owe each other is no part of the place before the barrier;
        // it is part of an empty record's.
        guard.post(
            &EventRecord {
                event: 0,
                timing: 0,
            },
            &[],
        )?;
    }
    let sequence = guard.post(&HostBarrier { reserved: 0 }, &[])?;
    let unserved = {
        let mut list = lock(&stream.calls.list);
        list.queued.push_back(QueuedCall {
            sequence,
            context: guard.context(),
            call,
        });
        !std::mem::replace(&mut list.served, true)
    };
    if unserved {
        streams.callers.queue(streams, Job::Stream(slot));
    }
    Ok(sequence)
}

/// Has something of ours done once a stream has reached a place, or the session is over.
pub(crate) fn run_after(
    streams: &'static Streams,
    slot: u32,
    sequence: u64,
    work: Arc<dyn InternalWork>,
) {
    if streams.connection.reached(slot, sequence) || ready(streams).is_err() {
        work.run();
        return;
    }
    let job = Job::After {
        slot,
        sequence,
        work,
    };
    streams.callers.queue(streams, job);
}

impl Callers {
    fn queue(&self, streams: &'static Streams, job: Job) {
        let mut state = lock(&self.state);
        state.jobs.push_back(job);
        let more = state.jobs.len() > state.idle;
        drop(state);
        self.bell.notify_one();
        if more {
            // If there can be no more threads, those that there are get to it later.
            let _ = self.add_thread(streams);
        }
    }

    fn add_thread(&self, streams: &'static Streams) -> Result<(), CUresult> {
        lock(&self.state).threads += 1;
        let signals = signal_mask::Blocked::now();
        let made = std::thread::Builder::new()
            .name("cuda host functions".into())
            .spawn(move || streams.callers.serve(streams));
        drop(signals);
        if made.is_err() {
            lock(&self.state).threads -= 1;
            return Err(CUresult::ERROR_OUT_OF_MEMORY);
        }
        Ok(())
    }

    /// A thread's life.
    fn serve(&self, streams: &'static Streams) {
        let mut state = lock(&self.state);
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                job.run(streams);
                state = lock(&self.state);
                continue;
            }
            state.idle += 1;
            let (woken, waited) = self
                .bell
                .wait_timeout(state, IDLE)
                .unwrap_or_else(PoisonError::into_inner);
            state = woken;
            state.idle -= 1;
            // The last one stays: whoever was told that there is one may rely on it.
            if waited.timed_out() && state.jobs.is_empty() && state.threads > 1 {
                state.threads -= 1;
                return;
            }
        }
    }
}

impl Job {
    fn run(self, streams: &'static Streams) {
        match self {
            Self::Stream(slot) => serve_stream(streams, slot),
            Self::After {
                slot,
                sequence,
                work,
            } => {
                // If the session ends meanwhile, so does the work.
                let _ = streams.connection.wait(slot, sequence);
                work.run();
            }
        }
    }
}

/// Calls what stands in a stream until nothing does.
fn serve_stream(streams: &'static Streams, slot: u32) {
    let Some(stream) = streams.at(slot) else {
        return;
    };
    loop {
        let next = {
            let mut list = lock(&stream.calls.list);
            match list.queued.pop_front() {
                Some(next) => next,
                None => {
                    list.served = false;
                    return;
                }
            }
        };
        let before = streams.connection.wait(slot, next.sequence - 1);
        let status = before.and_then(|()| streams.connection.check_fault(next.context));
        next.call.run(status);
        // For a server that reads no further until this very stream goes on.
        streams
            .connection
            .link()
            .release_host_barrier(slot, next.sequence);
        // If it cannot be posted there is nobody whom it concerns.
        let _ = streams.connection.post(&HostRelease {
            stream: slot,
            until: next.sequence,
        });
    }
}
