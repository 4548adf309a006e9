//! What a thread knows of its own recording: which call is under way, and what its words say already.
//!
//! Called by `recorder` in the thread that calls. Must not know who passes words on.

use std::cell::RefCell;
use std::sync::Arc;

use trace::thread_log::{self, Call, ThreadWriter};
use trace::told::{Posted, PostedWork};

use super::ring::Ring;
use super::{Recorder, ticks};

/// Kernels that a thread knows to be known.
const KNOWN_KERNELS: usize = 64;

thread_local! {
    /// Nothing before the thread's first call that is recorded.
    static LOG: RefCell<Option<Box<ThreadLog>>> = const { RefCell::new(None) };
}

/// See the module.
#[derive(Debug)]
pub(super) struct ThreadLog {
    ring: Arc<Ring>,
    writer: ThreadWriter,
    /// Which of the process' recordings the words are of.
    recording: u32,
    /// When the call that is under way began, in ticks.
    began: u64,
    /// What joins it with its work; 0 before it has posted any.
    correlation: u64,
    /// Kernels whose facts this thread knows to be there, each at its place.
    known: [Option<(u64, u32)>; KNOWN_KERNELS],
}

impl Drop for ThreadLog {
    fn drop(&mut self) {
        self.ring.end();
    }
}

/// Does something with the calling thread's, unless it ends, or a signal's handler asks in the midst of another call.
#[inline]
pub(super) fn with<T>(recorder: &Recorder, act: impl FnOnce(&mut ThreadLog) -> T) -> Option<T> {
    let act = |log: &RefCell<Option<Box<ThreadLog>>>| {
        let mut log = log.try_borrow_mut().ok()?;
        if log.is_none() {
            *log = Some(ThreadLog::begin(recorder)?);
        }
        let log = log.as_mut()?;
        if log.recording != recorder.number() {
            log.restart(recorder.number());
        }
        Some(act(log))
    };
    LOG.try_with(act).ok().flatten()
}

impl ThreadLog {
    #[cold]
    fn begin(recorder: &Recorder) -> Option<Box<Self>> {
        let tid = rustix::thread::gettid()
            .as_raw_nonzero()
            .get()
            .unsigned_abs();
        let ring = Arc::new(Ring::new(tid));
        recorder.add_ring(&ring).then(|| {
            Box::new(Self {
                ring,
                writer: ThreadWriter::default(),
                recording: recorder.number(),
                began: 0,
                correlation: 0,
                known: [None; KNOWN_KERNELS],
            })
        })
    }

    #[cold]
    fn restart(&mut self, recording: u32) {
        self.writer.restart();
        self.correlation = 0;
        self.recording = recording;
        self.ring.set_holding(0);
    }

    /// A call begins.
    pub(super) fn call_began(&mut self, began: u64) {
        self.began = began;
        if self.correlation != 0 {
            // Of a call of whose end nothing was told.
            self.correlation = 0;
            self.writer.begin();
        }
    }

    /// The call that is under way is over.
    pub(super) fn call_ended(&mut self, function: u16) {
        self.writer.call(&Call {
            function,
            began: self.began,
            ended: ticks::now(),
            correlation: self.correlation,
        });
        let has_posted = self.correlation != 0;
        self.correlation = 0;
        self.push();
        if has_posted {
            self.ring.set_holding(0);
        }
    }

    /// The call that is under way put work into a stream.
    pub(super) fn posted(&mut self, stream: u32, sequence: u64, context: u32, work: PostedWork) {
        if self.correlation == 0 {
            self.correlation = thread_log::correlation(stream, sequence);
        }
        self.writer.posted(&Posted {
            stream,
            sequence,
            context,
            correlation: self.correlation,
            work,
        });
        match self.writer.is_holding() {
            true => self.ring.set_holding(self.began),
            // Who waits in this call for its work wants to see it.
            false => self.push(),
        }
    }

    /// Whether the thread knew that the facts of a kernel are there; from now on it does.
    pub(super) fn knows(&mut self, kernel: (u64, u32)) -> bool {
        let place = kernel.0.wrapping_mul(31).wrapping_add(kernel.1.into());
        let place = &mut self.known[place as usize % KNOWN_KERNELS];
        place.replace(kernel) == Some(kernel)
    }

    fn push(&mut self) {
        if !self.ring.push(self.writer.words()) {
            self.ring.drop_one();
            self.writer.restart();
        }
        self.writer.clear();
    }
}
