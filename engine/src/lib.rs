//! What an engine is: something that has devices and carries out clients' work on them.
//!
//! The software GPU and the real driver implement [`Engine`] and [`Client`]; a server knows nothing
//! else of them. Most of [`Client`] is made from the table of operations: one method for each row of
//! its engine group. Handles are the client's own (see `protocol::operations`), and each [`Client`]
//! keeps its own tables of them, so that no handle reaches another client's object.
//!
//! An engine sees no socket, no ring and no pointer of a client; it is told addresses in windows that
//! it or its server mapped, and checks them all.

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

pub use cuda_abi::CUresult;
pub use protocol::device_facts::DeviceFacts;
use protocol::operations::{At, HoldReason};

pub use bound::{Bound, Charge};
pub use runs::{Counted, Runs};

pub mod arena;
pub mod bound;
pub mod clock;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod format;
pub mod machine;
pub mod plan;
pub mod runs;

/// A set of devices of one kind, with what it takes to run work on them.
pub trait Engine: Send + Sync + Debug {
    /// What there is to know of each device, windows aside.
    fn devices(&self) -> &[DeviceFacts];

    /// The error of a device that does not work any more and that only another process can bring back.
    fn lost(&self) -> Option<CUresult>;

    /// What clients that exited still have running, for the log, if that is for so long that it has to be
    /// given up: a device that cannot end it is rid of it, and of what it keeps, only with this process.
    /// Work of other clients goes on, but they are refused what would have to wait for it
    /// (CUDA_ERROR_DEVICE_UNAVAILABLE).
    fn hung_work(&self) -> Option<String> {
        None
    }

    /// Whether modules' variables lie in memory that the engine takes by itself, once when an image that
    /// has any is loaded, for its first module, and then for each further module. If not, the engine asks
    /// for it ([`Observer::allocate`]), but for each module.
    fn keeps_variables(&self) -> bool {
        false
    }

    /// What memory of the devices is taken of, if it is this machine's own: what else clients have of that is
    /// taken of it too.
    fn machine_memory(&self) -> Option<&Arc<Bound>> {
        None
    }

    /// In which steps a device's multiprocessors are shared out.
    fn granularity(&self, device: usize) -> Granularity {
        let _ = device;
        Granularity::default()
    }

    /// The multiprocessors of a device that nobody has reserved now. Who has reserved none runs on no more,
    /// if the engine gives out multiprocessors.
    fn unreserved(&self, device: usize) -> u32 {
        let _ = device;
        u32::MAX
    }

    /// Makes room for a client.
    ///
    /// # Errors
    /// CUDA_ERROR_OUT_OF_MEMORY when the machine has no room for one more client,
    /// CUDA_ERROR_NOT_SUPPORTED for a reserved share if the engine cannot reserve, and
    /// CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION if more would be reserved than there is.
    fn attach(&self, attachment: Attachment) -> Result<Box<dyn Client>, CUresult>;

    /// Sets what a group of clients has together, from the next turn of their work on; `None` ends
    /// the group, and its clients stand each by itself again. The number is the caller's choice and
    /// may be set before any client names it.
    ///
    /// # Errors
    /// CUDA_ERROR_NOT_SUPPORTED if the engine cannot, CUDA_ERROR_INVALID_VALUE for a percentage that
    /// is none, and CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION if more would be reserved than there
    /// is; then nothing has changed.
    fn set_group(&self, group: u32, share: Option<GroupShare>) -> Result<(), CUresult> {
        let _ = (group, share);
        Err(CUresult::ERROR_NOT_SUPPORTED)
    }
}

/// In which steps a device's multiprocessors are shared out among clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granularity {
    /// A share is a multiple of this.
    pub step: u32,
    /// And no less than this.
    pub least: u32,
    /// And no more than this, unless it is the whole device.
    pub most: u32,
}

impl Default for Granularity {
    fn default() -> Self {
        Self {
            step: 1,
            least: 1,
            most: u32::MAX,
        }
    }
}

impl Granularity {
    /// The multiprocessors, of `all`, that an active thread percentage grants: rounded down to the
    /// step, and within the bounds. The whole device is the whole device, whatever these are.
    #[must_use]
    pub fn granted(self, all: u32, percentage: f32) -> u32 {
        if percentage >= 100.0 {
            return all;
        }
        let exact = f64::from(all) * f64::from(percentage) / 100.0;
        // A percentage such as 33.3 is no exact number; what is a hair below a whole one is it.
        let whole = (exact + 1e-4).floor() as u32;
        let stepped = whole - whole % self.step.max(1);
        stepped.min(self.most).max(self.least).min(all)
    }
}

/// What a client brings when it is attached.
#[derive(Debug)]
pub struct Attachment {
    /// For each device the addresses that the client's memory on it shall have at first. The engine
    /// maps them; nothing is accessible before [`Client::commit`].
    pub windows: Vec<Window>,
    /// Keeps the windows' addresses from being another's. To be held until nothing is mapped there
    /// any more, which for memory that others use is after the client has gone.
    pub addresses: Arc<dyn Owner>,
    /// Page-locked host memory, mapped at this very address in the client and here.
    pub host: Region,
    /// Memory through which pageable copies and images pass. All of it may be copied from and to,
    /// and the client may write it at any time.
    pub staging: Region,
    /// The client's share of each device.
    pub share: Share,
    /// The group of clients that it belongs to. A group for which nothing was set, or no longer, is
    /// none: its clients stand each by itself. See [`Engine::set_group`].
    pub group: Option<u32>,
    /// Of this process's own memory, what may be held for the client: code, what becomes of it, work
    /// that waits. Whatever an engine keeps of what a client sends it takes of this.
    pub held: Arc<Bound>,
    /// Who is told of progress.
    pub observer: Arc<dyn Observer>,
}

/// A range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The first address.
    pub base: u64,
    /// Bytes.
    pub bytes: u64,
}

impl Window {
    /// Whether `bytes` bytes from `address` lie in this window.
    #[must_use]
    pub const fn contains(&self, address: u64, bytes: u64) -> bool {
        address >= self.base && bytes <= self.bytes && address - self.base <= self.bytes - bytes
    }
}

/// Memory that somebody else mapped, readable and writable, and keeps mapped as long as this lives.
#[derive(Clone, Debug)]
pub struct Region {
    /// Where it is in this process.
    pub window: Window,
    /// Keeps it mapped.
    pub owner: Arc<dyn Owner>,
}

/// Whatever keeps a [`Region`] mapped.
pub trait Owner: Send + Sync + Debug {}

/// Memory of an engine that its server keeps and hands back: what several clients use lives until the last
/// handle is dropped.
#[derive(Clone)]
pub struct MemoryHandle(Arc<dyn Any + Send + Sync>);

impl MemoryHandle {
    /// A handle of the engine's own object.
    #[must_use]
    pub fn new<T: Any + Send + Sync>(thing: Arc<T>) -> Self {
        Self(thing)
    }

    /// The object, if it is of this type: one that another engine made is not.
    #[must_use]
    pub fn get<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        self.0.clone().downcast().ok()
    }
}

impl Debug for MemoryHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MemoryHandle")
    }
}

/// A client's part of the devices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share {
    /// Active thread percentage, above 0 and up to 100: the part of the SMs that the client sees. For
    /// engines that share out time it is the weight of its work against others', for those that give
    /// out multiprocessors as many as it has at most.
    pub percentage: f32,
    /// CUDA_MPS_CLIENT_PRIORITY: 0 normal, 1 below normal.
    pub priority: u32,
    /// The client is held to its percentage, even if nobody else wants the rest, and that part is
    /// kept free for it, even while it does nothing.
    pub reserved: bool,
}

impl Default for Share {
    /// All of the device, reserved from nobody.
    fn default() -> Self {
        Self {
            percentage: 100.0,
            priority: 0,
            reserved: false,
        }
    }
}

impl Share {
    /// A part of the device, of which nothing is reserved.
    #[must_use]
    pub fn of(percentage: f32) -> Self {
        Self {
            percentage,
            ..Self::default()
        }
    }

    /// A part of the device that is reserved.
    #[must_use]
    pub fn reserving(percentage: f32) -> Self {
        Self {
            reserved: true,
            ..Self::of(percentage)
        }
    }
}

/// The part of the devices that all clients of a group have together. They share it by their own
/// percentages.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GroupShare {
    /// Of which device, by its place among the engine's; `None` for each. Engines whose devices share
    /// their processors take it as a part of these.
    pub device: Option<u32>,
    /// Above 0 and up to 100.
    pub percentage: f32,
    /// As [`Share::reserved`], for the group.
    pub reserved: bool,
}

impl GroupShare {
    /// Whether it is a part of this device.
    #[must_use]
    pub fn is_of(&self, device: usize) -> bool {
        self.device.is_none_or(|of| of as usize == device)
    }
}

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

/// Is told how a client's work goes. Called from the engine's threads and from within calls of
/// [`Client`]'s methods, so it must not call back into the engine, and must not block.
pub trait Observer: Send + Sync + Debug {
    /// All work of the stream up to and including `at` is done. Positions of a stream come in order,
    /// each one exactly once; `Err` says that this one failed or was not run.
    fn completed(&self, at: At, result: Result<(), CUresult>);

    /// The stream's work is expected to end in a moment: wake whoever sleeps until then, so that the end finds
    /// it awake.
    fn pre_wake(&self, stream: u32) {
        let _ = stream;
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
    fn held(&self, at: At, device: u32, why: HoldReason, nanoseconds: u64) {
        let _ = (at, device, why, nanoseconds);
    }

    /// Kernels of the client took so many nanoseconds longer, until now, than they are known to take, while other clients had
    /// work in the device: an estimate, of engines whose device does not tell who waits.
    fn slowed(&self, device: u32, nanoseconds: u64) {
        let _ = (device, nanoseconds);
    }

    /// A timed event was passed at this time (CLOCK_MONOTONIC, or the device's own clock; the same
    /// clock for all events of a device). Comes before the event's `completed`.
    fn event_time(&self, event: u32, nanoseconds: u64);

    /// Kernels of the client have printed, and [`Client::output_take`] gives the text. Comes before the
    /// completion of what printed.
    fn wrote(&self);

    /// The client's context is dead: every later operation in it gives `code`. `text` says what
    /// happened, for the log.
    fn fault(&self, context: u32, code: CUresult, text: &str);

    /// Memory for a module's variables, within the client's quota: in its window of the context's
    /// device, or for managed variables in the host window. It is freed by the caller of
    /// `module_load` when the module goes.
    ///
    /// # Errors
    /// CUDA_ERROR_OUT_OF_MEMORY.
    fn allocate(&self, context: u32, bytes: u64, managed: bool) -> Result<Window, CUresult>;
}

/// What a [poll](Client::poll) of a client's work shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PollResult {
    /// Nothing is under way whose completion a poll would show.
    Idle,
    /// Something is, and has come no further.
    Pending,
    /// Something has completed and was reported.
    Progress,
}

macro_rules! client_trait {
    (session $session:tt engine { $(
        $(#[$doc:meta])*
        $class:ident $number:literal $version:literal $method:ident($request:ident $fields:tt) -> $reply:ident $reply_fields:tt;
    )* }) => {
        /// One client's objects in an engine: contexts, streams, images, modules, and its memory.
        ///
        /// Dropping it stops the client's running work within the engine's cancellation latency,
        /// and frees everything.
        ///
        /// Stream operations are taken in the order of the calls for a stream; different streams
        /// are independent, and none of them may keep another, of this client or of any, from
        /// making progress. No method waits for work to finish. A stream operation that returns
        /// an error was not taken and is not reported as completed.
        pub trait Client: Send + Debug {
            /// Makes zeroed memory accessible at addresses of the client's windows, device or host.
            /// Both ends are multiples of [`arena::GRANULE`].
            ///
            /// # Errors
            /// CUDA_ERROR_OUT_OF_MEMORY when the device has not that much left.
            fn commit(&mut self, range: Window) -> Result<(), CUresult>;

            /// Takes memory back. The caller knows that no work that began before uses it; work that
            /// does so all the same faults or reads zeroes, and harms nobody else.
            fn decommit(&mut self, range: Window);

            /// Adds addresses to those that the client's memory on a device can have, as if they had
            /// been the attachment's. `addresses` is held as [`Attachment::addresses`] is.
            ///
            /// # Errors
            /// CUDA_ERROR_INVALID_VALUE for addresses that overlap the client's or are not made of
            /// granules, CUDA_ERROR_INVALID_DEVICE, and CUDA_ERROR_OUT_OF_MEMORY when the system has
            /// no room for them; then nothing has changed.
            fn window_add(&mut self, device: u32, window: Window, addresses: Arc<dyn Owner>) -> Result<(), CUresult>;

            /// Takes a window of [`Client::window_add`] back. The caller knows that nothing of it is
            /// committed, mapped or shared; work that uses it all the same faults or reads zeroes,
            /// and harms nobody else.
            fn window_remove(&mut self, window: Window);

            /// Makes memory accessible that the caller has mapped over granules of the host window which are
            /// not committed, with what is in it: it is never cleared, nor are its pages given back.
            /// `memory` is dropped when nothing of the engine's touches it any more, after
            /// [`Client::host_return`]. Both ends are multiples of [`arena::GRANULE`].
            ///
            /// # Errors
            /// CUDA_ERROR_NOT_SUPPORTED if the engine cannot, CUDA_ERROR_INVALID_VALUE for another range,
            /// and why it cannot be page-locked.
            fn host_lend(&mut self, range: Window, memory: Arc<dyn Owner>) -> Result<(), CUresult> {
                let _ = (range, memory);
                Err(CUresult::ERROR_NOT_SUPPORTED)
            }

            /// Takes back what [`Client::host_lend`] gave, given just that range. The caller knows that no
            /// work that began before uses it.
            fn host_return(&mut self, range: Window) {
                let _ = range;
            }

            /// Bytes of a device that nobody has taken.
            fn free_memory(&self, device: u32) -> u64;

            /// The 4 or 8 bytes at an address of the client's memory, in one load if they are aligned.
            ///
            /// # Errors
            /// CUDA_ERROR_INVALID_VALUE for memory that the client does not have, CUDA_ERROR_NOT_READY
            /// if the caller is to ask again a little later, and CUDA_ERROR_NOT_SUPPORTED by engines
            /// that cannot look into it.
            fn peek(&mut self, address: u64, bytes: u32) -> Result<u64, CUresult> {
                let _ = (address, bytes);
                Err(CUresult::ERROR_NOT_SUPPORTED)
            }

            /// Changes the client's share, from the next turn of its work on. What the client was told
            /// of multiprocessors stays.
            ///
            /// # Errors
            /// CUDA_ERROR_NOT_SUPPORTED if the engine cannot, CUDA_ERROR_INVALID_VALUE for a
            /// percentage that is none, and CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION if more would
            /// be reserved than there is; then the share is as it was.
            fn set_share(&mut self, share: Share) -> Result<(), CUresult> {
                let _ = share;
                Err(CUresult::ERROR_NOT_SUPPORTED)
            }

            /// Runs this client's own waiting work on the calling thread for a short while, if that
            /// is of use. Returns whether it did anything.
            fn assist(&mut self) -> bool;

            /// Finds how far the client's work has come, and reports what is done. The engine's own threads
            /// need not do so until [`Client::stop_polling`]. Cheap, to be called again and again while
            /// something is under way.
            fn poll(&mut self) -> PollResult {
                PollResult::Idle
            }

            /// Nobody polls for a while: the engine's own threads see completions again.
            fn stop_polling(&mut self) {}

            /// Makes committed memory of a device window ready to be used by other clients. The
            /// caller does not take it back before what this gives, and all its clones, are dropped;
            /// but this client may go before, and then the memory stays for the others.
            ///
            /// # Errors
            /// CUDA_ERROR_NOT_SUPPORTED if the engine cannot, CUDA_ERROR_INVALID_VALUE for memory
            /// that the client does not have.
            fn share(&mut self, range: Window) -> Result<MemoryHandle, CUresult> {
                let _ = range;
                Err(CUresult::ERROR_NOT_SUPPORTED)
            }

            /// Lets this client's work use just the memory that another client's
            /// [`Client::share`] gave, at the addresses that it has there.
            ///
            /// # Errors
            /// CUDA_ERROR_NOT_SUPPORTED if the engine cannot.
            fn import(&mut self, shared: &MemoryHandle) -> Result<(), CUresult> {
                let _ = shared;
                Err(CUresult::ERROR_NOT_SUPPORTED)
            }

            /// Ends what [`Client::import`] allowed. The caller knows that no work uses it any more.
            fn close(&mut self, shared: &MemoryHandle) {
                let _ = shared;
            }

            /// Allocates zeroed physical memory of a device, which has no address. It is freed when
            /// it is dropped and mapped nowhere.
            ///
            /// # Errors
            /// CUDA_ERROR_NOT_SUPPORTED if the engine cannot, CUDA_ERROR_OUT_OF_MEMORY.
            fn physical_create(&mut self, device: u32, bytes: u64) -> Result<MemoryHandle, CUresult> {
                let _ = (device, bytes);
                Err(CUresult::ERROR_NOT_SUPPORTED)
            }

            /// Puts physical memory, from a byte of it on, at addresses of a device window that were
            /// never committed. Nobody may reach it yet.
            ///
            /// # Errors
            /// CUDA_ERROR_NOT_SUPPORTED if the engine cannot, CUDA_ERROR_INVALID_VALUE for what is
            /// not granular or does not fit, CUDA_ERROR_OUT_OF_MEMORY.
            fn physical_map(&mut self, at: Window, memory: &MemoryHandle, offset: u64) -> Result<(), CUresult> {
                let _ = (at, memory, offset);
                Err(CUresult::ERROR_NOT_SUPPORTED)
            }

            /// Takes what is mapped away. Work that still uses it faults or reads zeroes, and harms
            /// nobody else.
            fn physical_unmap(&mut self, at: Window) {
                let _ = at;
            }

            /// Lets a device reach what is mapped, or no longer.
            ///
            /// # Errors
            /// CUDA_ERROR_NOT_SUPPORTED if the engine cannot.
            fn physical_access(&mut self, at: Window, device: u32, reaches: bool) -> Result<(), CUresult> {
                let _ = (at, device, reaches);
                Err(CUresult::ERROR_NOT_SUPPORTED)
            }

            /// Lets the kernels of a context reach the client's memory on another device, from the
            /// next launch on, or no longer.
            ///
            /// # Errors
            /// CUDA_ERROR_PEER_ACCESS_UNSUPPORTED if the devices cannot, CUDA_ERROR_INVALID_CONTEXT,
            /// CUDA_ERROR_INVALID_DEVICE.
            fn peer_access(&mut self, context: u32, device: u32, enabled: bool) -> Result<(), CUresult> {
                let _ = (context, device, enabled);
                Err(CUresult::ERROR_PEER_ACCESS_UNSUPPORTED)
            }

            $(protocol::operation_method! { $class $(#[$doc])* $method($request) -> $reply })*
        }
    };
}

protocol::for_each_operation!(client_trait);

#[cfg(test)]
mod tests {
    use super::Granularity;

    /// As measured on an H200 (132 multiprocessors), and as reported for a device of 188 and a T4.
    #[test]
    fn percentages_grant_multiprocessors_as_measured() {
        let hopper = Granularity {
            step: 2,
            least: 8,
            ..Granularity::default()
        };
        for (percentage, granted) in [
            (1.0, 8),
            (5.0, 8),
            (10.0, 12),
            (25.0, 32),
            (33.0, 42),
            (33.3, 42),
            (50.0, 66),
            (66.0, 86),
            (75.0, 98),
            (90.0, 118),
            (100.0, 132),
        ] {
            assert_eq!(hopper.granted(132, percentage), granted, "{percentage} %");
        }
        for (percentage, granted) in [(10.0, 18), (25.0, 46), (75.0, 140)] {
            assert_eq!(hopper.granted(188, percentage), granted, "{percentage} %");
        }
        let older = Granularity {
            step: 2,
            least: 2,
            ..Granularity::default()
        };
        assert_eq!(older.granted(40, 10.0), 4);
        let single = Granularity::default();
        assert_eq!(single.granted(3, 50.0), 1);
        assert_eq!(single.granted(3, 1.0), 1);
        assert_eq!(hopper.granted(4, 50.0), 4, "no more than there are");
        assert_eq!(hopper.granted(133, 100.0), 133);
        let grouped = Granularity {
            step: 8,
            least: 8,
            most: 120,
        };
        for (percentage, granted) in [(1.0, 8), (33.0, 40), (91.0, 120), (99.0, 120), (100.0, 132)]
        {
            assert_eq!(grouped.granted(132, percentage), granted, "{percentage} %");
        }
    }
}
