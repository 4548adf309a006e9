//! What sessions' threads and the engine's tell the server's main thread.
//!
//! Owns the list and the eventfd that wakes the main thread. Knows nothing of what the main thread makes of it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use cuda_abi::CUresult;
use engine::{MemoryChunk, Window};
use parking_lot::Mutex;
use protocol::control_messages::{DeviceAccount, Ending, Guilt, SharedObject, Takeovers};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

/// Something that the main thread is to hear of; the numbers are those of sessions.
#[derive(Debug)]
pub enum ServerEvent {
    /// The client was welcomed, with its windows there if another server may take it over.
    Attached(u64, Vec<u64>),
    /// The session was another server's, and goes on.
    TakenOver(u64, Takeovers),
    /// The session has ended, and all that it had is free.
    Ended(u64, Ending),
    /// A chunk of the client's device memory was made that its next server can map again.
    ChunkMade(u64, MemoryChunk),
    /// A chunk that begins there is the client's no longer.
    ChunkGone(u64, u32, u64),
    /// The client got a further window, which its next server is to give it again.
    WindowMade {
        /// The session.
        session: u64,
        /// The device's number.
        device: u32,
        /// Its addresses.
        window: Window,
        /// What its memory lies in, if that is a file.
        file: Option<OwnedFd>,
    },
    /// A further window that begins there is the client's no longer.
    WindowGone(u64, u64),
    /// A context of the client is dead.
    Fault {
        /// The session.
        session: u64,
        /// What it died of.
        code: CUresult,
        /// Whose fault it is.
        guilt: Guilt,
        /// What happened, for the log.
        text: String,
    },
    /// A kernel of the client runs for longer than it may, and the engine cannot end it.
    Overran {
        /// The session.
        session: u64,
        /// Which kernel, for the log.
        text: String,
    },
    /// A client opens what nobody here shares: the user's other servers are to be asked.
    SeekExport {
        /// The number of the question.
        question: u64,
        /// The client's user.
        uid: u32,
        /// What the client knows of it.
        token: [u64; 4],
    },
    /// What another server asked for is exported, or cannot be.
    ExportAnswer {
        /// The daemon's number of the question.
        question: u64,
        /// What it is, with its descriptors.
        found: Option<(SharedObject, Vec<OwnedFd>)>,
    },
    /// A change of what a client may have was made, or was not.
    Changed {
        /// Which.
        request: u64,
        /// Why nothing has changed, if so.
        code: CUresult,
        /// The same in words.
        text: String,
        /// What the client has had of each device.
        accounts: Vec<DeviceAccount>,
    },
}

/// Events that the main thread has not handled yet.
#[derive(Debug)]
pub struct EventQueue {
    events: Mutex<Vec<ServerEvent>>,
    /// A context died and nobody is to be told; but perhaps its device did too.
    died: AtomicBool,
    eventfd: OwnedFd,
}

impl EventQueue {
    /// An empty one.
    ///
    /// # Errors
    /// When the system gives no descriptor.
    pub fn new() -> Result<Self, Errno> {
        Ok(Self {
            events: Mutex::default(),
            died: AtomicBool::new(false),
            eventfd: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    /// Appends an event and wakes the main thread.
    pub fn push(&self, event: ServerEvent) {
        self.events.lock().push(event);
        self.signal();
    }

    /// Tells the main thread that a context died of which it was told enough, so that it looks after
    /// the engine. Takes no room, however often it comes.
    pub fn note_dead_context(&self) {
        self.died.store(true, Ordering::Release);
        self.signal();
    }

    /// Whether [`EventQueue::note_dead_context`] was called since.
    pub fn take_dead_context(&self) -> bool {
        self.died.swap(false, Ordering::AcqRel)
    }

    fn signal(&self) {
        let _ = rustix::io::write(&self.eventfd, &1u64.to_ne_bytes());
    }

    /// Takes all events, in order.
    pub fn drain(&self) -> Vec<ServerEvent> {
        let mut counter = [0; 8];
        let _ = rustix::io::read(&self.eventfd, &mut counter);
        std::mem::take(&mut *self.events.lock())
    }
}

/// Becomes readable when there are events.
impl AsFd for EventQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.eventfd.as_fd()
    }
}
