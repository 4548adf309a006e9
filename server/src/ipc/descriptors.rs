//! Descriptors of physical memory that clients were given, and leases that other servers were: each holds its memory until the
//! last copy of it is closed, whoever has that, and whoever else has gone.
//!
//! Memory counts for whoever allocated it while that client lives, and then for its group. What clients
//! without a group leave behind counts for their user, who may have no more so than one client could have:
//! what is beyond that is not held. Knows nothing of sessions.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use cuda_abi::CUresult;
use parking_lot::Mutex;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use transport::socket::Connection;
use transport::token_descriptor;

use crate::ipc::exports::{
    Export, ExportRegistry, ExportedObject, Import, PhysicalMemory, Token, User,
};
use crate::ipc::ready_numbers::ready_numbers;
use crate::ipc::shared_event::EventPart;

/// Descriptors that one client may have been given, or others of its memory, as long as they are open.
const ONE_CLIENT: usize = 1 << 12;

/// What part of this process's descriptors all of them may use.
const ALL_CLIENTS: u64 = 4;

/// Descriptors that this process keeps of an event which another server has: of its lease, of what wakes that server and this one, and
/// of the table of records.
const OF_EVENT: usize = 4;

/// All of them.
#[derive(Debug)]
pub struct Descriptors {
    epoll: OwnedFd,
    most: usize,
    state: Mutex<IssuedDescriptors>,
    left: Arc<Mutex<Counts>>,
}

/// Bytes by user and device.
type Counts = HashMap<(User, u32), u64>;

#[derive(Debug, Default)]
struct IssuedDescriptors {
    last: u64,
    given: HashMap<u64, IssuedDescriptor>,
    /// How many descriptors this process keeps for those of each session, and for all.
    counts: HashMap<u64, usize>,
    all: usize,
}

/// A descriptor that somebody has a copy of. Dropped without the lock: its memory may take time.
#[derive(Debug)]
pub struct IssuedDescriptor {
    session: u64,
    holds: Holds,
    ours: OwnedFd,
}

#[derive(Debug)]
enum Holds {
    /// What whoever has a copy finds by the token in it.
    Offered(
        Arc<PhysicalMemory>,
        #[expect(dead_code, reason = "kept for its drop")] Export,
    ),
    /// What another server uses.
    Leased(Leased),
}

impl Holds {
    /// How many descriptors this process keeps for it.
    const fn descriptors(&self) -> usize {
        match self {
            Self::Leased(Leased::Event(_)) => OF_EVENT,
            Self::Offered(..) | Self::Leased(Leased::Block(_) | Leased::Physical(_)) => 1,
        }
    }
}

/// What another server uses for clients of its own.
#[derive(Debug)]
pub enum Leased {
    /// A block.
    Block(#[expect(dead_code, reason = "kept for its drop")] Import),
    /// Physical memory.
    Physical(#[expect(dead_code, reason = "kept for its drop")] Arc<PhysicalMemory>),
    /// An event.
    Event(EventPart),
}

/// What memory counts for its user when its allocator has gone.
#[derive(Debug)]
pub struct OrphanedMemory {
    all: Arc<Mutex<Counts>>,
    of: (User, u32),
    bytes: u64,
}

impl Drop for OrphanedMemory {
    fn drop(&mut self) {
        let mut all = self.all.lock();
        if let Some(bytes) = all.get_mut(&self.of) {
            *bytes -= self.bytes;
            if *bytes == 0 {
                all.remove(&self.of);
            }
        }
    }
}

impl IssuedDescriptors {
    fn remove(&mut self, number: u64) -> Option<IssuedDescriptor> {
        let given = self.given.remove(&number)?;
        let kept = given.holds.descriptors();
        self.all -= kept;
        if let Some(count) = self.counts.get_mut(&given.session) {
            *count -= kept;
            if *count == 0 {
                self.counts.remove(&given.session);
            }
        }
        Some(given)
    }
}

impl Descriptors {
    /// None yet.
    ///
    /// # Errors
    /// When the system gives no descriptor.
    pub fn new() -> Result<Self, Errno> {
        let all = getrlimit(Resource::Nofile).current.unwrap_or(1 << 20);
        Ok(Self {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            most: (all / ALL_CLIENTS) as usize,
            state: Mutex::default(),
            left: Arc::default(),
        })
    }

    /// Gives a session's client a descriptor of memory, over its socket.
    ///
    /// # Errors
    /// CUDA_ERROR_OUT_OF_MEMORY when there are too many, or the memory is beyond what its user may hold,
    /// CUDA_ERROR_OPERATING_SYSTEM.
    pub fn issue(
        &self,
        sharing: &Arc<ExportRegistry>,
        (session, user): (u64, User),
        memory: &Arc<PhysicalMemory>,
        to: &Connection,
    ) -> Result<Token, CUresult> {
        let failed = |_| CUresult::ERROR_OPERATING_SYSTEM;
        let offer = sharing.offer(user, ExportedObject::Physical(memory.clone()))?;
        let token = offer.token();
        let (ours, theirs) = token_descriptor::make(token).map_err(failed)?;
        let mut state = self.state.lock();
        // Asked with the lock held, under which `charge_orphan` says so.
        let beyond = memory.orphan.get().is_some_and(Option::is_none);
        if beyond {
            return Err(CUresult::ERROR_OUT_OF_MEMORY);
        }
        let holds = Holds::Offered(memory.clone(), offer);
        self.add(&mut state, session, ours, holds)?;
        drop(state);
        // If it cannot be sent, nobody has it, and it goes as any other that is closed.
        token_descriptor::send(to, token, &theirs).map_err(failed)?;
        Ok(token)
    }

    /// Makes a descriptor by which another server keeps what a session's client shares.
    ///
    /// # Errors
    /// CUDA_ERROR_OUT_OF_MEMORY when there are too many, CUDA_ERROR_OPERATING_SYSTEM.
    pub fn lease(&self, session: u64, token: Token, leased: Leased) -> Result<OwnedFd, CUresult> {
        let made = token_descriptor::make(token);
        let (ours, theirs) = made.map_err(|_| CUresult::ERROR_OPERATING_SYSTEM)?;
        let mut state = self.state.lock();
        self.add(&mut state, session, ours, Holds::Leased(leased))?;
        Ok(theirs)
    }

    fn add(
        &self,
        state: &mut IssuedDescriptors,
        session: u64,
        ours: OwnedFd,
        holds: Holds,
    ) -> Result<(), CUresult> {
        let count = state.counts.get(&session).copied().unwrap_or(0);
        let kept = holds.descriptors();
        if count + kept > ONE_CLIENT || state.all + kept > self.most {
            return Err(CUresult::ERROR_OUT_OF_MEMORY);
        }
        state.last += 1;
        let number = state.last;
        let data = EventData::new_u64(number);
        epoll::add(&self.epoll, &ours, data, EventFlags::empty())
            .map_err(|_| CUresult::ERROR_OPERATING_SYSTEM)?;
        state.all += kept;
        *state.counts.entry(session).or_default() += kept;
        let given = IssuedDescriptor {
            session,
            holds,
            ours,
        };
        state.given.insert(number, given);
        Ok(())
    }

    /// Takes what nobody has a copy of any more.
    #[must_use]
    pub fn take_closed(&self) -> Vec<IssuedDescriptor> {
        let numbers = ready_numbers(&self.epoll).into_iter();
        let mut state = self.state.lock();
        let closed: Vec<IssuedDescriptor> =
            numbers.filter_map(|number| state.remove(number)).collect();
        for descriptor in &closed {
            // Else it would go on telling until it is dropped, which may take time.
            let _ = epoll::delete(&self.epoll, &descriptor.ours);
        }
        closed
    }

    /// The allocator of memory has gone, which could have so many bytes of the device at most. Says whether
    /// the memory may be held without it; if not, its descriptors hold it no longer.
    pub fn charge_orphan(&self, user: User, memory: &Arc<PhysicalMemory>, most: u64) -> bool {
        let of = (user, memory.charge.device);
        let bytes = memory.charge.bytes;
        let mut gone = Vec::new();
        let mut state = self.state.lock();
        let mut all = self.left.lock();
        let sum = all.get(&of).copied().unwrap_or(0).saturating_add(bytes);
        let fits = sum <= most;
        let left = fits.then(|| {
            all.insert(of, sum);
            OrphanedMemory {
                all: self.left.clone(),
                of,
                bytes,
            }
        });
        drop(all);
        let refused = memory.orphan.set(left).is_err();
        if !fits {
            // What another server uses it does, as clients here that have it.
            let of_it = |(_, given): &(&u64, &IssuedDescriptor)| match &given.holds {
                Holds::Offered(offered, _) => Arc::ptr_eq(offered, memory),
                Holds::Leased(_) => false,
            };
            let numbers: Vec<u64> = state
                .given
                .iter()
                .filter(of_it)
                .map(|(&number, _)| number)
                .collect();
            gone.extend(numbers.into_iter().map(|number| state.remove(number)));
        }
        drop(state);
        fits && !refused
    }
}

impl Drop for Descriptors {
    /// The server ends, and those who have something of it do not.
    fn drop(&mut self) {
        for given in self.state.get_mut().given.values_mut() {
            if let Holds::Leased(Leased::Event(part)) = &mut given.holds {
                part.leave_open();
            }
        }
    }
}

/// Becomes readable when [`Descriptors::take_closed`] has something to give.
impl AsFd for Descriptors {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use engine::Bound;

    use super::*;
    use crate::ipc::event_links::EventLinks;
    use crate::ipc::shared_event::SharedEvent;

    fn event() -> Arc<SharedEvent> {
        Arc::new(SharedEvent::new(1, Arc::new(Bound::new(u64::MAX))))
    }

    #[test]
    fn what_is_closed_is_told_once_however_long_it_takes_to_go() {
        let descriptors = Descriptors::new().unwrap();
        let links = Arc::new(EventLinks::new().unwrap());
        let event = event();
        let tells = |patience: u64| {
            let patience = Some(Duration::from_millis(patience));
            transport::socket::poll(&[descriptors.as_fd()], patience).unwrap()[0]
        };
        let part = event.export(&links).unwrap().part;
        let lease = descriptors.lease(1, [1; 4], Leased::Event(part)).unwrap();
        assert!(!tells(0));
        drop(lease);
        assert!(tells(20_000));
        let closed = descriptors.take_closed();
        assert_eq!(closed.len(), 1);
        assert!(!tells(0), "as long as it is there");
        drop(closed);
        assert!(!tells(0) && descriptors.take_closed().is_empty());
    }

    #[test]
    fn an_event_counts_for_all_that_is_kept_of_it() {
        let descriptors = Descriptors::new().unwrap();
        let links = Arc::new(EventLinks::new().unwrap());
        let lease = || -> Result<_, CUresult> {
            let event = event();
            let part = event.export(&links)?.part;
            let lease = descriptors.lease(1, [1; 4], Leased::Event(part))?;
            Ok((event, lease))
        };
        // Its lease, what wakes each of both servers, and its table.
        let most = ONE_CLIENT.min(descriptors.most) / 4;
        let mut kept: Vec<_> = (0..most).map(|_| lease().unwrap()).collect();
        assert_eq!(lease().unwrap_err(), CUresult::ERROR_OUT_OF_MEMORY);
        kept.pop();
        assert_eq!(descriptors.take_closed().len(), 1);
        lease().unwrap();
    }
}
