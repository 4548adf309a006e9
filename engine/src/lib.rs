//! What an engine is: something that has devices and carries out clients' work on them.
//!
//! The software GPU and the real driver implement [`Engine`] and [`Client`]; a server knows nothing
//! else of them. Most of [`Client`] is made from the table of operations: one method for each row of
//! its engine group. Handles are the client's own (see `protocol::operations`), and each [`Client`]
//! keeps its own tables of them, so that no handle reaches another client's object.
//!
//! An engine sees no socket, no ring and no pointer of a client; it is told addresses in windows that
//! it or its server mapped, and checks them all.

use std::fmt::Debug;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

pub use cuda_abi::CUresult;
pub use protocol::control_messages::Guilt;
pub use protocol::device_facts::DeviceFacts;

pub use bound::{Bound, Charge};
pub use kernel_pointers::{KernelPointers, Place};
pub use memory::{ExportedMemory, MemoryHandle, MemoryPiece, Owner, Region, Window};
pub use observer::{Activity, CodeSource, InFlight, Observer, Span, WorkInFlight};
pub use runs::{Counted, Runs};
pub use share::{Granularity, GroupShare, Share};

pub mod arena;
pub mod bound;
pub mod clock;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod format;
mod kernel_pointers;
pub mod machine;
mod memory;
mod observer;
pub mod plan;
pub mod runs;
mod share;

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

    /// How a client's device memory can stay when this process ends, to be there again in the next one.
    fn keeping(&self) -> MemoryKeeping {
        MemoryKeeping::None
    }

    /// Whether only the first operation of a stream that is not complete can have been begun. If not, all that was given
    /// to the engine can.
    fn begins_one_at_a_time(&self) -> bool {
        false
    }

    /// What still runs of clients that have been gone for so long, in words, if there is something that the engine cannot end.
    fn left_work(&self, gone_for: Duration) -> Option<String> {
        let _ = gone_for;
        None
    }

    /// Gives devices nothing more of the work of clients that are here, until [`Engine::end_rest`], and says whether they have nothing of
    /// it any more: to be asked again until that is so. Then all that is complete has been reported, and nothing else has been begun.
    fn rest(&self) -> bool {
        false
    }

    /// Work goes on that [`Engine::rest`] has held back.
    fn end_rest(&self) {}

    /// What memory of the devices is taken of, if it is this machine's own: what else clients have of that is
    /// taken of it too.
    fn machine_memory(&self) -> Option<&Arc<Bound>> {
        None
    }

    /// Bytes of a device that nobody has, where other processes can have some of it too.
    fn free_of_all(&self, device: usize) -> Option<u64> {
        let _ = device;
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

    /// What another process can have memory by that [`Client::share`] or [`Client::physical_create`] gave, whether its client is
    /// still there or not. Nothing of a former owner's is in it any more, for which this waits so long at most.
    ///
    /// # Errors
    /// CUDA_ERROR_NOT_SUPPORTED if the engine cannot, CUDA_ERROR_NOT_READY when it is not cleared by then, and the driver's
    /// status.
    fn export_memory(
        &self,
        memory: &MemoryHandle,
        within: Duration,
    ) -> Result<ExportedMemory, CUresult> {
        let _ = (memory, within);
        Err(CUresult::ERROR_NOT_SUPPORTED)
    }

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

/// How an engine can have clients' device memory stay when its process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryKeeping {
    /// It cannot.
    None,
    /// It lays it into files.
    Files,
    /// It tells of each chunk of it: [`Observer::chunk_made`].
    Chunks,
}

/// How a client's device memory is to stay when this process ends.
#[derive(Debug)]
pub enum KeptMemory {
    /// It need not.
    None,
    /// It lies in these: a sealed memfd of each window's size.
    Files(Vec<OwnedFd>),
    /// The engine tells of each chunk. These are there already, from a former process, with what they hold.
    Chunks(Vec<MemoryChunk>),
}

/// Physical memory of a device, mapped at addresses of a client's, that stays as long as somebody has its descriptor.
#[derive(Debug)]
pub struct MemoryChunk {
    /// The device's number.
    pub device: u32,
    /// Where it is mapped, as a whole.
    pub at: Window,
    /// What keeps it, as the device's driver exports it.
    pub descriptor: OwnedFd,
}

/// Addresses that a client's memory on a device can have beside those of its first window there.
#[derive(Debug)]
pub struct FurtherWindow {
    /// The device's number.
    pub device: u32,
    /// The addresses.
    pub window: Window,
    /// Keeps them from being another's, held as [`Attachment::addresses`] is.
    pub addresses: Arc<dyn Owner>,
    /// What their memory lies in, if it is to stay in a file when this process ends: a sealed memfd of the window's size.
    pub file: Option<OwnedFd>,
}

/// What a client brings when it is attached.
#[derive(Debug)]
pub struct Attachment {
    /// For each device the addresses that the client's memory on it shall have at first. The engine
    /// maps them; nothing is accessible before [`Client::commit`].
    pub windows: Vec<Window>,
    /// How the windows' memory is to stay when this process ends, as [`Engine::keeping`] says that it can.
    pub kept: KeptMemory,
    /// Windows that it had got besides in a former process, with what these hold. As if they had been added by
    /// [`Client::window_add`].
    pub further: Vec<FurtherWindow>,
    /// Keeps the windows' addresses from being another's. To be held until nothing is mapped there
    /// any more, which for memory that others use is after the client has gone.
    pub addresses: Arc<dyn Owner>,
    /// Page-locked host memory, mapped at this very address in the client and here.
    pub host: Region,
    /// Memory through which pageable copies and images pass. All of it may be copied from and to,
    /// and the client may write it at any time.
    pub staging: Region,
    /// Words in which a device itself may say how far the client's first streams have come, one for each by its number: the client reads them,
    /// and nobody else writes them. Of who is told by the observer alone, nothing.
    pub completions: Option<Region>,
    /// The client's share of each device.
    pub share: Share,
    /// The group of clients that it belongs to. A group for which nothing was set, or no longer, is
    /// none: its clients stand each by itself. See [`Engine::set_group`].
    pub group: Option<u32>,
    /// Its kernels are to reach nothing but its own memory, and a wrong address of theirs is to end its contexts alone.
    /// An engine that sees to that for everybody has nothing to do; one that cannot for some code refuses that code.
    pub fenced: bool,
    /// Of this process's own memory, what may be held for the client: code, what becomes of it, work
    /// that waits. Whatever an engine keeps of what a client sends it takes of this.
    pub held: Arc<Bound>,
    /// Who is told of progress.
    pub observer: Arc<dyn Observer>,
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

            /// As [`Client::commit`], with what a former process has left there for the client, instead of zeroes. Whether
            /// it has left all of it; if not, there are zeroes.
            ///
            /// # Errors
            /// As there.
            fn recommit(&mut self, range: Window) -> Result<bool, CUresult> {
                self.commit(range).map(|()| true)
            }

            /// The process has ended that had the client's memory before, and what is in that does not change any more. Before
            /// this the contents of what was given by [`Client::recommit`] are neither read nor written; objects are made, and
            /// no work is begun.
            ///
            /// # Errors
            /// When what has to be read now cannot be.
            fn former_ended(&mut self) -> Result<(), CUresult> {
                Ok(())
            }

            /// Makes one thing ready that the client's work may need later, which else is done then, with the work waiting for
            /// it. Whether there was one. To be called while there is nothing else to do.
            fn make_ready(&mut self) -> bool {
                false
            }

            /// Takes memory back. The caller knows that no work that began before uses it; work that
            /// does so all the same faults or reads zeroes, and harms nobody else.
            fn decommit(&mut self, range: Window);

            /// Adds addresses to those that the client's memory on a device can have, as if they had
            /// been the attachment's.
            ///
            /// # Errors
            /// CUDA_ERROR_INVALID_VALUE for addresses that overlap the client's or are not made of
            /// granules, CUDA_ERROR_INVALID_DEVICE, and CUDA_ERROR_OUT_OF_MEMORY when the system has
            /// no room for them; then nothing has changed.
            fn window_add(&mut self, further: FurtherWindow) -> Result<(), CUresult>;

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

            /// Makes sure that nothing of the engine's touches granules of the host window any more which are not
            /// committed, so that the caller may put something there and then lend it.
            ///
            /// # Errors
            /// When that cannot be; then nothing may be put there.
            fn host_settle(&mut self, range: Window) -> Result<(), CUresult> {
                let _ = range;
                Ok(())
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

            /// Through which pointers a kernel of an image, whose bytes these are, reads and writes memory, where the text is known
            /// that was compiled.
            ///
            /// # Errors
            /// Why that cannot be said, in words.
            fn kernel_pointers(&self, image: &[u8], kernel: &str) -> Result<KernelPointers, String> {
                let _ = (image, kernel);
                Err("the engine knows no code".into())
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

            /// Who says what devices have of the client's work, from any thread; an engine that cannot tell has nobody.
            fn work_in_flight(&self) -> Option<Arc<dyn WorkInFlight>> {
                None
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

            /// Takes memory of a device that another process has exported, all of a piece. It is as that of
            /// [`Client::physical_create`], with what it holds.
            ///
            /// # Errors
            /// CUDA_ERROR_NOT_SUPPORTED if the engine cannot, CUDA_ERROR_INVALID_DEVICE,
            /// CUDA_ERROR_INVALID_VALUE for what is no such piece, and the driver's status.
            fn foreign_import(&mut self, device: u32, piece: &MemoryPiece) -> Result<MemoryHandle, CUresult> {
                let _ = (device, piece);
                Err(CUresult::ERROR_NOT_SUPPORTED)
            }

            /// Puts all of a piece of [`Client::foreign_import`] at addresses of a device window that were never
            /// committed. The client's work reaches `part` of that, as it reaches what it has committed, until
            /// [`Client::physical_access`] takes it from the devices and [`Client::physical_unmap`] takes it away.
            ///
            /// # Errors
            /// CUDA_ERROR_NOT_SUPPORTED if the engine cannot, CUDA_ERROR_INVALID_VALUE for what is
            /// not granular or does not fit, CUDA_ERROR_OUT_OF_MEMORY.
            fn foreign_map(&mut self, at: Window, memory: &MemoryHandle, part: Window) -> Result<(), CUresult> {
                let _ = (at, memory, part);
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

            /// Takes a semaphore of another interface by its descriptor, under the client's handle. A wait for one may
            /// take all of the device's work with it that is not this client's; the caller knows that there is none.
            ///
            /// # Errors
            /// CUDA_ERROR_NOT_SUPPORTED if the engine cannot, CUDA_ERROR_INVALID_HANDLE for a handle that is
            /// taken, CUDA_ERROR_INVALID_CONTEXT, and the driver's status.
            fn semaphore_import(&mut self, request: &protocol::operations::SemaphoreImport, descriptor: OwnedFd) -> Result<(), CUresult> {
                let _ = (request, descriptor);
                Err(CUresult::ERROR_NOT_SUPPORTED)
            }

            /// Lets a semaphore go, which no work uses any more.
            fn semaphore_destroy(&mut self, semaphore: u64) {
                let _ = semaphore;
            }

            /// Whether a wait of a stream for a semaphore is over. The first question about a place begins it, and
            /// a success ends it; the caller knows that all work before that place is done.
            ///
            /// # Errors
            /// CUDA_ERROR_NOT_READY while it is not over, CUDA_ERROR_INVALID_HANDLE, and the driver's status.
            fn semaphore_wait(&mut self, at: protocol::operations::At, request: &protocol::operations::SemaphoreWait) -> Result<(), CUresult> {
                let _ = (at, request);
                Err(CUresult::ERROR_NOT_SUPPORTED)
            }

            $(protocol::operation_method! { $class $(#[$doc])* $method($request) -> $reply })*
        }
    };
}

protocol::for_each_operation!(client_trait);
