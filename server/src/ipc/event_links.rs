//! What wakes this server for events that it shares with the user's other servers: one of them has come further, or the server
//! that made it has ended.
//!
//! Made by `shared_event`; the main thread waits for it, and hands on what came. Must not know what an event is.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;

use crate::ipc::ready_numbers::ready_numbers;

/// An event that others share.
pub trait LinkedEvent: Send + Sync + std::fmt::Debug {
    /// It has come further, at another server.
    fn moved(&self);
    /// The server that made it has ended.
    fn left_alone(&self);
}

/// What a descriptor tells.
#[derive(Clone, Copy, Debug)]
pub enum Tells {
    /// An eventfd that is written: the event has come further.
    Moved,
    /// A socket whose other end is closed: the server is gone that made it.
    LeftAlone,
}

/// All of them.
#[derive(Debug)]
pub struct EventLinks {
    epoll: OwnedFd,
    links: Mutex<Links>,
}

#[derive(Debug, Default)]
struct Links {
    last: u64,
    all: HashMap<u64, (Weak<dyn LinkedEvent>, Tells)>,
}

/// A descriptor that is waited for, until this is dropped.
#[derive(Debug)]
pub struct EventLink {
    links: Arc<EventLinks>,
    number: u64,
    descriptor: OwnedFd,
}

impl EventLinks {
    /// None yet.
    ///
    /// # Errors
    /// When the system gives no descriptor.
    pub fn new() -> Result<Self, Errno> {
        Ok(Self {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            links: Mutex::default(),
        })
    }

    /// From now on a descriptor tells something of an event.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn add(
        self: &Arc<Self>,
        event: Weak<dyn LinkedEvent>,
        tells: Tells,
        descriptor: OwnedFd,
    ) -> Result<EventLink, Errno> {
        let number = {
            let mut links = self.links.lock();
            links.last += 1;
            let number = links.last;
            links.all.insert(number, (event, tells));
            number
        };
        let flags = match tells {
            Tells::Moved => EventFlags::IN,
            // A hang-up is told in any case, and what lies in the socket is not for this server.
            Tells::LeftAlone => EventFlags::empty(),
        };
        let data = EventData::new_u64(number);
        let added = epoll::add(&self.epoll, &descriptor, data, flags);
        let link = EventLink {
            links: self.clone(),
            number,
            descriptor,
        };
        added.map(|()| link)
    }

    /// Hands on what has come.
    pub fn hand_on(&self) {
        for number in ready_numbers(&self.epoll) {
            // Without the lock: the last who has an event takes its links away.
            let link = self.links.lock().all.get(&number).cloned();
            match link.and_then(|(event, tells)| Some((event.upgrade()?, tells))) {
                Some((event, Tells::Moved)) => event.moved(),
                Some((event, Tells::LeftAlone)) => event.left_alone(),
                None => {}
            }
        }
    }
}

impl EventLink {
    /// What is waited for.
    pub fn descriptor(&self) -> &OwnedFd {
        &self.descriptor
    }
}

impl Drop for EventLink {
    fn drop(&mut self) {
        // Other servers have copies of it, by which it would go on telling.
        let _ = epoll::delete(&self.links.epoll, &self.descriptor);
        self.links.links.lock().all.remove(&self.number);
    }
}

/// Becomes readable when [`EventLinks::hand_on`] has something to do.
impl AsFd for EventLinks {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}
