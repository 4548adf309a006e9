//! Events that clients share: the numbers of their records, and how far they have come.
//!
//! Those of an event that no other server knows are kept here; what it has in common with clients of other servers stands in memory
//! that these servers share (`event_table`). There the server that made it is in the middle: it tells all others, and
//! they tell it. They have it in common only for so long as another server has it, and as its maker has not destroyed it or
//! records of it are under way. Called by `events`, which has a client's slots for them, and by who exports and opens. Knows
//! nothing of sessions but how to wake one.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use cuda_abi::CUresult;
use engine::{Bound, Charge};
use parking_lot::{Mutex, MutexGuard};
use rustix::event::{EventfdFlags, eventfd};
use transport::memory::Sealed;

use crate::ipc::elsewhere::ForeignEvent;
use crate::ipc::event_links::{EventLink, EventLinks, LinkedEvent, Tells};
use crate::ipc::event_table::{BYTES, EventTable, RECORDS};
use crate::session::observer::ClientObserver;
use crate::stream_scheduler::completion::shared_event;

/// The side of the server that made an event.
const MAKER: u16 = 0;

/// Other servers' clients that may have one event open.
const MOST_OTHERS: usize = 256;

/// An event that several clients record and wait for.
///
/// Each record has a number. The event has reached all records up to a number are past.
#[derive(Debug, Default)]
pub struct SharedEvent {
    /// Whose it is: the session that made it.
    session: u64,
    /// What may be held of this server's memory for that one's client; nothing of an event of another server's.
    held: Option<Arc<Bound>>,
    state: Mutex<EventState>,
}

#[derive(Debug, Default)]
struct EventState {
    records: Records,
    /// How far those who have it were told that it is.
    told: u64,
    /// The client that made it has destroyed it, or its server is gone: nobody new comes to have it.
    is_destroyed: bool,
    /// Sessions that have it, and the slot that it has there.
    watchers: Vec<(Weak<ClientObserver>, u32)>,
}

/// Where the records of an event stand.
#[derive(Debug)]
enum Records {
    /// Here alone.
    Own(OwnRecords),
    /// In memory of several servers.
    Common(CommonRecords),
}

#[derive(Debug, Default)]
struct OwnRecords {
    recorded: u64,
    completed: u64,
    /// Records that are past, beyond `completed`: runs of them, the last number of each by the first.
    /// Between two runs is a record that somebody has, so there are no more runs than those.
    ahead: BTreeMap<u64, u64>,
}

#[derive(Debug)]
struct CommonRecords {
    table: EventTable,
    /// Which of the servers this is.
    side: u16,
    /// Whom to wake when it has come further, by side.
    others: BTreeMap<u16, OwnedFd>,
    /// What wakes this server.
    woken: EventLink,
    of: Origin,
}

#[derive(Debug)]
enum Origin {
    /// This server made it, and gives this to others.
    Here(
        Sealed,
        #[expect(dead_code, reason = "kept for its drop")] Charge,
    ),
    /// Another server, which is there as long as the other end of this is open.
    #[expect(dead_code, reason = "kept for their drop")]
    Elsewhere(EventLink, Charge),
}

/// What another server gets of an event.
#[derive(Debug)]
pub struct ExportedEvent {
    /// Which of the servers that one is.
    pub side: u16,
    /// The table of its records, what wakes this server, and what wakes that one.
    pub descriptors: [OwnedFd; 3],
    /// That server's part in it.
    pub part: EventPart,
}

/// Another server's part in an event: when this is dropped, its records are past.
#[derive(Debug)]
pub struct EventPart {
    event: Arc<SharedEvent>,
    side: u16,
    stays_open: bool,
}

impl EventPart {
    /// It goes on without this server: what it has recorded is not past when this is dropped.
    pub const fn leave_open(&mut self) {
        self.stays_open = true;
    }
}

impl Drop for EventPart {
    fn drop(&mut self) {
        if !self.stays_open {
            self.event.end_side(self.side);
        }
    }
}

impl Default for Records {
    fn default() -> Self {
        Self::Own(OwnRecords::default())
    }
}

impl OwnRecords {
    fn complete(&mut self, number: u64) {
        let last = self.ahead.remove(&(number + 1)).unwrap_or(number);
        if self.completed + 1 != number {
            match self.ahead.range_mut(..number).next_back() {
                Some((_, end)) if *end + 1 == number => *end = last,
                _ => drop(self.ahead.insert(number, last)),
            }
            return;
        }
        self.completed = last;
    }

    fn is_past(&self, number: u64) -> bool {
        let run = self.ahead.range(..=number).next_back();
        number <= self.completed || run.is_some_and(|(_, &last)| number <= last)
    }
}

impl CommonRecords {
    /// Whether there is nothing to have in common any more.
    fn is_over(&self) -> bool {
        match &self.of {
            Origin::Here(..) => self.others.is_empty(),
            Origin::Elsewhere(..) => self.table.is_over(),
        }
    }

    fn wake_others(&self) {
        for other in self.others.values() {
            // One that is full wakes as well.
            let _ = rustix::io::write(other, &1u64.to_ne_bytes());
        }
    }

    /// What is left of them without the others: all but this server's own records are past.
    fn alone(&self) -> OwnRecords {
        let (recorded, completed) = self.table.progress();
        let mut own = OwnRecords {
            // There are no more, whatever the others say.
            recorded: recorded.min(completed + RECORDS),
            completed,
            ahead: BTreeMap::new(),
        };
        for number in completed + 1..=own.recorded {
            if !self.table.is_open(number, self.side) {
                own.complete(number);
            }
        }
        own
    }
}

impl Records {
    fn progress(&self) -> (u64, u64) {
        match self {
            Self::Own(own) => (own.recorded, own.completed),
            Self::Common(common) => common.table.progress(),
        }
    }
}

impl EventState {
    /// Tells all who have it how far it is, if they do not know.
    fn tell(&mut self) {
        let (_, completed) = self.records.progress();
        if completed <= self.told {
            return;
        }
        self.told = completed;
        self.watchers
            .retain(|(shared, _)| shared.strong_count() > 0);
        for (shared, slot) in &self.watchers {
            if let Some(shared) = shared.upgrade() {
                signal_importer(&shared, *slot, completed);
            }
        }
        if let Records::Common(common) = &self.records {
            common.wake_others();
        }
    }

    /// Has the records by itself from now on, if that `is_due`. What it had in common is to be dropped without the lock.
    fn part(&mut self, is_due: impl Fn(&CommonRecords) -> bool) -> Option<Records> {
        let alone = match &self.records {
            Records::Common(common) if is_due(common) => Records::Own(common.alone()),
            _ => return None,
        };
        let former = std::mem::replace(&mut self.records, alone);
        if let Records::Common(common) = &former {
            self.is_destroyed |= matches!(common.of, Origin::Elsewhere(..));
        }
        Some(former)
    }

    /// Tells how far it is, and has nothing in common any more with whom there is nothing to have in common.
    fn has_come_further(mut state: MutexGuard<'_, Self>) {
        state.tell();
        let former = state.part(CommonRecords::is_over);
        drop(state);
        drop(former);
    }
}

fn signal_importer(shared: &ClientObserver, slot: u32, completed: u64) {
    if shared.progress.complete(shared_event(slot), completed) {
        shared.publisher.ring_self();
    }
}

/// What wakes a server.
fn waker() -> Result<OwnedFd, CUresult> {
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    eventfd(0, flags).map_err(|_| CUresult::ERROR_OPERATING_SYSTEM)
}

fn copy(descriptor: &OwnedFd) -> Result<OwnedFd, CUresult> {
    let copied = descriptor.try_clone();
    copied.map_err(|_| CUresult::ERROR_OPERATING_SYSTEM)
}

impl SharedEvent {
    /// An event that a session makes. `held` is what may be held of this server's memory for its client.
    #[must_use]
    pub fn new(session: u64, held: Arc<Bound>) -> Self {
        Self {
            session,
            held: Some(held),
            ..Self::default()
        }
    }

    /// The session that made it.
    #[must_use]
    pub const fn session(&self) -> u64 {
        self.session
    }

    /// An event that another server has made.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_HANDLE when what came is no event, CUDA_ERROR_OPERATING_SYSTEM.
    pub fn import(foreign: ForeignEvent, links: &Arc<EventLinks>) -> Result<Arc<Self>, CUresult> {
        let ForeignEvent {
            side,
            table,
            maker,
            woken,
            lease,
        } = foreign;
        let (lease, charge) = lease.into_parts();
        let table = EventTable::open(table).map_err(|_| CUresult::ERROR_INVALID_HANDLE)?;
        let event = Arc::new(Self::default());
        let linked = |tells, descriptor| {
            let weak: Weak<dyn LinkedEvent> = Arc::<Self>::downgrade(&event);
            let linked = links.add(weak, tells, descriptor);
            linked.map_err(|_| CUresult::ERROR_OPERATING_SYSTEM)
        };
        let common = CommonRecords {
            table,
            side,
            others: BTreeMap::from([(MAKER, maker)]),
            woken: linked(Tells::Moved, woken)?,
            of: Origin::Elsewhere(linked(Tells::LeftAlone, lease)?, charge),
        };
        let mut state = event.state.lock();
        state.records = Records::Common(common);
        EventState::has_come_further(state);
        Ok(event)
    }

    /// Makes it an event of one more other server.
    ///
    /// # Errors
    /// CUDA_ERROR_NOT_SUPPORTED for one that is another server's, CUDA_ERROR_INVALID_HANDLE for one that is destroyed,
    /// CUDA_ERROR_OUT_OF_MEMORY when too many have it, too many records are under way or too much is held for the client that made it,
    /// CUDA_ERROR_OPERATING_SYSTEM.
    pub fn export(self: &Arc<Self>, links: &Arc<EventLinks>) -> Result<ExportedEvent, CUresult> {
        let mut state = self.state.lock();
        if state.is_destroyed {
            return Err(CUresult::ERROR_INVALID_HANDLE);
        }
        if let Records::Own(own) = &state.records {
            let held = self.held.clone().ok_or(CUresult::ERROR_NOT_SUPPORTED)?;
            let mut charge = Charge::new(held);
            if !charge.grow(BYTES) {
                return Err(CUresult::ERROR_OUT_OF_MEMORY);
            }
            let progress = (own.recorded, own.completed);
            let made = EventTable::create(progress, |number| own.is_past(number));
            let made = made.map_err(|_| CUresult::ERROR_OUT_OF_MEMORY)?;
            let (table, memory) = made.ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
            let weak: Weak<dyn LinkedEvent> = Arc::<Self>::downgrade(self);
            let woken = links.add(weak, Tells::Moved, waker()?);
            state.records = Records::Common(CommonRecords {
                table,
                side: MAKER,
                others: BTreeMap::new(),
                woken: woken.map_err(|_| CUresult::ERROR_OPERATING_SYSTEM)?,
                of: Origin::Here(memory, charge),
            });
        }
        let Records::Common(common) = &mut state.records else {
            return Err(CUresult::ERROR_NOT_SUPPORTED);
        };
        let Origin::Here(memory, _) = &common.of else {
            return Err(CUresult::ERROR_NOT_SUPPORTED);
        };
        if common.others.len() >= MOST_OTHERS {
            return Err(CUresult::ERROR_OUT_OF_MEMORY);
        }
        let mut sides = MAKER + 1..=u16::MAX;
        let free = sides.find(|side| !common.others.contains_key(side));
        let side = free.ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
        let memory = memory.try_clone();
        let memory = memory.map_err(|_| CUresult::ERROR_OPERATING_SYSTEM)?;
        let theirs = waker()?;
        let descriptors = [
            memory.into(),
            copy(common.woken.descriptor())?,
            copy(&theirs)?,
        ];
        common.others.insert(side, theirs);
        Ok(ExportedEvent {
            side,
            descriptors,
            part: EventPart {
                event: self.clone(),
                side,
                stays_open: false,
            },
        })
    }

    /// Another server has it no longer.
    fn end_side(&self, side: u16) {
        let mut state = self.state.lock();
        if let Records::Common(common) = &mut state.records {
            common.others.remove(&side);
            common.table.complete_all_of(side);
        }
        EventState::has_come_further(state);
    }

    /// The client that made it has destroyed it, or has gone. Other servers have it until its records are past, and then each goes on
    /// by itself with what clients of its own still do with it.
    pub fn destroy(&self) {
        let mut state = self.state.lock();
        state.is_destroyed = true;
        if let Records::Common(common) = &state.records {
            common.table.destroy();
            common.wake_others();
        }
    }

    /// Takes the number of a new record.
    ///
    /// # Errors
    /// CUDA_ERROR_OUT_OF_MEMORY when too many are under way of one that several servers have.
    pub fn record(&self) -> Result<u64, CUresult> {
        match &mut self.state.lock().records {
            Records::Own(own) => {
                own.recorded += 1;
                Ok(own.recorded)
            }
            Records::Common(common) => {
                let number = common.table.record(common.side);
                number.ok_or(CUresult::ERROR_OUT_OF_MEMORY)
            }
        }
    }

    /// The number of the last record, and how far the event has come.
    #[must_use]
    pub fn progress(&self) -> (u64, u64) {
        self.state.lock().records.progress()
    }

    /// Whether it is destroyed, and all of its records are past.
    #[must_use]
    pub fn is_over(&self) -> bool {
        let state = self.state.lock();
        let (recorded, completed) = state.records.progress();
        state.is_destroyed && recorded == completed
    }

    /// A record is past.
    pub fn complete(&self, number: u64) {
        let mut state = self.state.lock();
        match &mut state.records {
            Records::Own(own) => own.complete(number),
            Records::Common(common) => common.table.complete(number),
        }
        EventState::has_come_further(state);
    }

    /// From now on a session is told how far it is, in a slot.
    pub fn watch(&self, shared: &Arc<ClientObserver>, slot: u32) {
        let mut state = self.state.lock();
        state.watchers.push((Arc::downgrade(shared), slot));
        signal_importer(shared, slot, state.told);
    }

    /// From now on it is not.
    pub fn unwatch(&self, shared: &Arc<ClientObserver>, slot: u32) {
        self.state.lock().watchers.retain(|(other, at)| {
            *at != slot || !std::ptr::eq(other.as_ptr(), Arc::as_ptr(shared))
        });
    }
}

impl LinkedEvent for SharedEvent {
    fn moved(&self) {
        let state = self.state.lock();
        if let Records::Common(common) = &state.records {
            let _ = rustix::io::read(common.woken.descriptor(), &mut [0; 8]);
        }
        EventState::has_come_further(state);
    }

    fn left_alone(&self) {
        let mut state = self.state.lock();
        let former = state.part(|_| true);
        state.tell();
        drop(state);
        drop(former);
    }
}

#[cfg(test)]
mod tests {
    use protocol::control_messages::SharedObject;
    use transport::socket::Connection;
    use transport::token_descriptor;

    use super::*;
    use crate::ipc::elsewhere::ForeignObject;

    #[test]
    fn an_event_comes_as_far_as_all_of_its_records_are_past() {
        let event = SharedEvent::default();
        let [one, two, three] = [(); 3].map(|()| event.record().unwrap());
        assert_eq!((one, two, three), (1, 2, 3));
        event.complete(two);
        assert_eq!(event.progress(), (3, 0));
        event.complete(one);
        assert_eq!(event.progress(), (3, 2));
        event.complete(three);
        assert_eq!(event.progress(), (3, 3));
    }

    #[test]
    fn records_behind_one_that_never_passes_take_no_room() {
        let event = SharedEvent::default();
        let first = event.record().unwrap();
        let runs = |event: &SharedEvent| match &event.state.lock().records {
            Records::Own(own) => own.ahead.len(),
            Records::Common(_) => unreachable!("nobody else has it"),
        };
        for _ in 0..10_000 {
            let number = event.record().unwrap();
            event.complete(number);
            assert_eq!(runs(&event), 1);
        }
        // In any order: each that is missing parts two runs at most.
        let [a, b, c, d] = [(); 4].map(|()| event.record().unwrap());
        for (number, expected) in [(b, 2), (d, 3), (c, 2), (a, 1)] {
            event.complete(number);
            assert_eq!(runs(&event), expected);
        }
        assert_eq!(event.progress(), (10_005, 0));
        event.complete(first);
        assert_eq!(event.progress(), (10_005, 10_005));
        assert_eq!(runs(&event), 0);
    }

    #[test]
    fn nothing_is_kept_in_common_that_others_have_no_more_or_that_is_destroyed() {
        let links = Arc::new(EventLinks::new().unwrap());
        let held = Arc::new(Bound::new(BYTES));
        let event = Arc::new(SharedEvent::new(1, held.clone()));
        let is_common =
            |event: &SharedEvent| matches!(event.state.lock().records, Records::Common(_));
        // As another server has it, whose descriptors are counted; and what this one keeps of that.
        let kept = Arc::new(Bound::new(3));
        let open = || {
            let exported = event.export(&links).unwrap();
            let (ours, lease) = token_descriptor::make([1; 4]).unwrap();
            let object = SharedObject::Event {
                side: exported.side,
                records: RECORDS,
            };
            let descriptors = [lease].into_iter().chain(exported.descriptors);
            let mut charge = Charge::new(kept.clone());
            assert!(charge.grow(3));
            let found = ForeignObject::new((object, descriptors.collect()), &[], charge);
            let Some(ForeignObject::Event(foreign)) = found else {
                panic!("{found:?}");
            };
            let opened = SharedEvent::import(foreign, &links).unwrap();
            (opened, exported.part, Connection::from_fd(ours))
        };
        let (opened, part, _) = open();
        assert!(is_common(&event) && held.remaining() == 0);
        assert_eq!([event.record(), opened.record()], [Ok(1), Ok(2)]);
        drop(opened);
        drop(part);
        assert!(!is_common(&event));
        assert_eq!((held.remaining(), kept.remaining()), (BYTES, 3));
        assert_eq!(event.progress(), (2, 0), "its own record is left");
        event.complete(1);
        assert_eq!(event.progress(), (2, 2));

        let (opened, part, lease) = open();
        assert_eq!(opened.record(), Ok(3));
        event.destroy();
        links.hand_on();
        assert!(is_common(&opened), "a record is under way");
        assert!(event.export(&links).is_err(), "for nobody new");
        opened.complete(3);
        assert!(!is_common(&opened) && lease.is_closed());
        assert_eq!(kept.remaining(), 3);
        assert_eq!((opened.progress(), event.progress()), ((3, 3), (3, 3)));
        assert!(opened.is_over() && event.is_over());
        assert_eq!(opened.record(), Ok(4), "as one of its own");
        drop(part);
        assert!(!is_common(&event));
        assert_eq!((event.progress(), held.remaining()), ((3, 3), BYTES));
    }
}
