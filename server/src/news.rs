//! What sessions' threads and the engine's tell the server's main thread.
//!
//! Owns the list and its bell. Knows nothing of what the main thread makes of it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use cuda_abi::CUresult;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use transport::handshake::Ending;

/// A piece of news. The numbers are sessions'.
#[derive(Debug)]
pub enum News {
    /// The client was welcomed.
    Attached(u64),
    /// The session has ended, and all that it had is free.
    Ended(u64, Ending),
    /// A context of the client is dead.
    Fault {
        /// The session.
        session: u64,
        /// What it died of.
        code: CUresult,
        /// What happened, for the log.
        text: String,
    },
    /// A change of what a client may have was made, or was not.
    Changed {
        /// Which.
        request: u64,
        /// Why nothing has changed, if so.
        code: CUresult,
        /// The same in words.
        text: String,
        /// Bytes of each device that the client has taken.
        used: Vec<u64>,
    },
}

/// News that the main thread has not heard yet.
#[derive(Debug)]
pub struct Board {
    news: Mutex<Vec<News>>,
    /// A context died and nobody is to be told; but perhaps its device did too.
    died: AtomicBool,
    bell: OwnedFd,
}

impl Board {
    /// An empty one.
    ///
    /// # Errors
    /// When the system gives no descriptor.
    pub fn new() -> Result<Self, Errno> {
        Ok(Self {
            news: Mutex::default(),
            died: AtomicBool::new(false),
            bell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    /// Tells the main thread something.
    pub fn tell(&self, news: News) {
        self.lock().push(news);
        self.ring();
    }

    /// Tells the main thread that a context died of which it was told enough, so that it looks after
    /// the engine. Takes no room, however often it comes.
    pub fn tell_of_death(&self) {
        self.died.store(true, Ordering::Release);
        self.ring();
    }

    /// Whether [`Board::tell_of_death`] was called since.
    pub fn take_death(&self) -> bool {
        self.died.swap(false, Ordering::AcqRel)
    }

    fn ring(&self) {
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    /// Takes all news, in order.
    pub fn take(&self) -> Vec<News> {
        let mut counter = [0; 8];
        let _ = rustix::io::read(&self.bell, &mut counter);
        std::mem::take(&mut *self.lock())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<News>> {
        self.news.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Becomes readable when there is news.
impl AsFd for Board {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}
