//! What an engine reports of a client's work: completions, faults, and time that devices worked for it or did not.
//!
//! Servers implement [`Observer`], engines call it. Must not know what becomes of a report.

use std::fmt::Debug;
use std::time::Duration;

use cuda_abi::CUresult;
use protocol::operations::{At, HoldReason};

use crate::{Guilt, MemoryChunk, Window};

/// What a device did in a [`Span`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// It ran kernels.
    Kernel,
    /// It copied or filled memory.
    Copy,
}

/// Time in which a device worked for a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// For which of its operations.
    pub at: At,
    /// The device's ordinal.
    pub device: u32,
    /// What it did.
    pub activity: Activity,
    /// When it began, in nanoseconds of CLOCK_MONOTONIC.
    pub began: u64,
    /// When it ended, on the same clock.
    pub ended: u64,
    /// Multiprocessors that it took, where that is known.
    pub multiprocessors: Option<u32>,
}

/// Where code came from that an engine which compiles needed for a client: an image's, or a kernel's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodeSource {
    /// It was kept on disk by an earlier server.
    Disk,
    /// It was compiled.
    Compiler,
}

/// What a device has of a stream's work: the first that has not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InFlight {
    /// The stream.
    pub stream: u32,
    /// The device's ordinal.
    pub device: u32,
    /// A kernel by its name, or what else it is, in words.
    pub what: String,
    /// Since when the device has it, at the latest since what was before it ended: nanoseconds of CLOCK_MONOTONIC. `None` where
    /// that cannot be seen now.
    pub since: Option<u64>,
}

/// A client's work, for whoever asks from any thread what devices have of it; perhaps after the client's end, so it must keep nothing
/// of the client's alive.
pub trait WorkInFlight: Send + Sync + Debug {
    /// What they have now. Takes no longer than a look at each stream.
    fn in_flight(&self) -> Vec<InFlight>;

    /// Whether the client was told, if it is to be, since a device was lost of which it has work.
    fn was_told(&self) -> bool {
        true
    }

    /// Whether the devices may have begun with a kernel that they did not complete, where one of them has died.
    fn may_have_begun(&self) -> bool {
        true
    }
}

/// Is told how a client's work goes. Called from the engine's threads and from within calls of
/// [`Client`](crate::Client)'s methods, so it must not call back into the engine, and must not block.
pub trait Observer: Send + Sync + Debug {
    /// All work of the stream up to and including `at` is done. Positions of a stream come in order,
    /// each one exactly once; `Err` says that this one failed or was not run.
    fn completed(&self, at: At, result: Result<(), CUresult>);

    /// The stream's work is expected to end in a moment: wake whoever sleeps until then, so that the end finds
    /// it awake.
    fn pre_wake(&self, stream: u32) {
        let _ = stream;
    }

    /// Whether the work that the client is about to give the engine's own threads has something to do for every processor, so that
    /// whoever looks for its end, instead of sleeping, takes one from it. Told before the work begins.
    fn wants_every_processor(&self, whether: bool) {
        let _ = whether;
    }

    /// A device has worked for the client. An operation that takes several time slices, or several multiprocessors, is
    /// told of in as many spans, which may overlap; about the time of its completion all of them were told.
    ///
    /// Where an engine cannot tell when each of several operations ended, since it saw them all ended at once, it tells of one
    /// span, as what the last of them is; or if the observer [wants](Self::wants_each_span) it of each of them, with
    /// the time divided by how long each is expected to take.
    fn ran(&self, span: &Span) {
        let _ = span;
    }

    /// A device has worked for several of a stream's operations, in their order.
    fn ran_each(&self, spans: &[Span]) {
        for span in spans {
            self.ran(span);
        }
    }

    /// Whether it wants a span for each operation.
    fn wants_each_span(&self) -> bool {
        false
    }

    /// The operation was held back for so many nanoseconds until now. Where [others](HoldReason::is_others) are why, the
    /// client had kernels that could have run all that time, and nothing of the device was given to any of them.
    fn held_back(&self, at: At, device: u32, why: HoldReason, nanoseconds: u64) {
        let _ = (at, device, why, nanoseconds);
    }

    /// Kernels of the client took so many nanoseconds longer, until now, than they are known to take, while other clients had
    /// work in the device: an estimate, of engines whose device does not tell who waits.
    fn slowed(&self, device: u32, nanoseconds: u64) {
        let _ = (device, nanoseconds);
    }

    /// Code for a device was not in memory, and came from there.
    fn code_came(&self, device: u32, from: CodeSource) {
        let _ = (device, from);
    }

    /// A timed event was passed at this time (CLOCK_MONOTONIC, or the device's own clock; the same
    /// clock for all events of a device). Comes before the event's `completed`.
    fn event_time(&self, event: u32, nanoseconds: u64);

    /// Kernels of the client have printed, and [`Client::output_take`](crate::Client::output_take) gives the text. Comes before the
    /// completion of what printed.
    fn output_ready(&self);

    /// The client's context is dead: every later operation in it gives `code`. `guilt` says whether the client's own work is why,
    /// and `text` what happened, for the log.
    fn fault(&self, context: u32, code: CUresult, guilt: Guilt, text: &str);

    /// How long a kernel of the client may run, with what it launches, if that is limited. A context whose kernel runs for longer
    /// dies of CUDA_ERROR_LAUNCH_TIMEOUT, and the kernel ends; an engine that cannot end it says so
    /// ([`Observer::overran`]). Asked again and again, since it may change at any time.
    fn kernel_time_limit(&self) -> Option<Duration> {
        None
    }

    /// A kernel runs for longer than it may, which the engine cannot end: the client is to be ended, soon. `text` says which
    /// kernel and for how long, for the log. Perhaps told again and again.
    fn overran(&self, text: &str) {
        let _ = text;
    }

    /// Whether the client is gone, or is to be ended, though its session may not have come to that yet: it may wait in a call of the
    /// engine's, perhaps for what the client itself has left. Nothing more is begun for it then. Asked again and again.
    fn has_ended(&self) -> bool {
        false
    }

    /// Memory for a module's variables, within the client's quota: in its window of the context's
    /// device, or for managed variables in the host window. It is freed by the caller of
    /// `module_load` when the module goes.
    ///
    /// # Errors
    /// CUDA_ERROR_OUT_OF_MEMORY.
    fn allocate(&self, context: u32, bytes: u64, managed: bool) -> Result<Window, CUresult>;

    /// A chunk of the client's device memory was made, which holds nothing of anybody else's: whoever has its descriptor can
    /// map it again when this process has ended. Told of those with [`KeptMemory::Chunks`](crate::KeptMemory) alone.
    fn chunk_made(&self, chunk: MemoryChunk) {
        drop(chunk);
    }

    /// A chunk that was told of, or was there at the beginning, is the client's no longer.
    fn chunk_gone(&self, device: u32, base: u64) {
        let _ = (device, base);
    }

    /// Whether the memory that [`Observer::allocate`] gives now holds the variables as they are to be: their module was
    /// another server's before.
    fn has_variables(&self) -> bool {
        false
    }
}
