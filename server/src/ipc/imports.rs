//! What a client shares with others, and its virtual memory management: exports, imports, shared
//! events, physical memory and reserved addresses.
//!
//! Everything is found by the client's own handles and addresses and checked against what it has;
//! what others offer is found by tokens (`ipc::exports`). Knows nothing of rings.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock, Weak};

use cuda_abi::CUresult;
use engine::Window;
use engine::arena::GRANULE;
use protocol::operations::{
    AddressReserve, At, EventMarkReply, Expose, Exposed, MemImportReply, PhysicalAccess,
    PhysicalCreate, PhysicalImport, PhysicalImportReply, PhysicalMap, SHARED_EVENT_SLOTS,
};
use transport::socket::Connection;

use crate::ipc::descriptors::Descriptors;
use crate::ipc::exports::{
    Export, ExportRegistry, ExportedObject, Import, PhysicalCharge, PhysicalMemory, Returned,
    SharedBlock, SharedEvent, Token, User,
};
use crate::memory::backing::ClientBacking;
use crate::memory::quota::Block;
use crate::session::observer::ClientObserver;
use crate::session::{DeferredAction, Session};
use crate::stream_scheduler::completion::{CompletionTracker, shared_event};

const WRONG: CUresult = CUresult::ERROR_INVALID_VALUE;
const NO_HANDLE: CUresult = CUresult::ERROR_INVALID_HANDLE;

/// Objects of a kind that a client may have; more are refused, so that it cannot fill the server.
const MOST_OBJECTS: usize = 1 << 14;

/// What a client shares.
#[derive(Debug)]
pub struct SharedObjects {
    sharing: Arc<ExportRegistry>,
    descriptors: Arc<Descriptors>,
    /// The client's socket, over which it is given descriptors.
    connection: Arc<Connection>,
    user: User,
    /// Blocks of this client that others may open, by address.
    exports: HashMap<u64, OwnExport>,
    /// Blocks that this client has freed and others still use.
    lingering: Vec<(Block, Arc<SharedBlock>)>,
    /// Blocks of others that this client has open, by address.
    imports: BTreeMap<u64, OpenImport>,
    events: Vec<Option<OpenEvent>>,
    /// Records of shared events that have a number and are not in a stream yet.
    marks: Vec<EventMark>,
    /// Those that are, and where.
    passes: Vec<(At, EventMark)>,
    /// Physical memory by handle.
    physical: HashMap<u64, PhysicalHandle>,
    /// Physical memory that counts against this client's quota, whoever has it.
    charged: Vec<Weak<PhysicalMemory>>,
    /// Of that, what nobody has any more.
    returned: Arc<Returned>,
    /// Device and bytes of reserved addresses, by the first.
    reserved: BTreeMap<u64, (u32, u64)>,
    /// What is mapped, by address.
    mappings: BTreeMap<u64, PhysicalMapping>,
    /// What the client has unmapped and work of its may still use, by address. It counts as long.
    unmapping: BTreeMap<u64, Unmapping>,
}

/// Physical memory at addresses of the client's.
#[derive(Debug)]
struct PhysicalMapping {
    bytes: u64,
    handle: u64,
    /// The devices that may reach it, as bits, and the one whose addresses it has.
    devices: u64,
}

/// A mapping that goes when the work before it is over.
#[derive(Debug)]
struct Unmapping {
    bytes: u64,
    devices: u64,
    memory: Arc<PhysicalMemory>,
}

#[derive(Debug)]
struct OwnExport {
    offer: Export,
    block: Arc<SharedBlock>,
}

/// Another client's block that this one has open.
#[derive(Debug)]
struct OpenImport {
    import: Import,
    /// How often it was opened and not closed for good.
    count: u64,
    /// How often of that it is about to be closed.
    closing: u64,
}

#[derive(Debug)]
struct OpenEvent {
    event: Arc<SharedEvent>,
    offer: Option<Export>,
    /// The client has forgotten it.
    closed: bool,
}

#[derive(Debug)]
struct PhysicalHandle {
    memory: Arc<PhysicalMemory>,
}

/// A record of a shared event. It is past when this is dropped, however that comes.
#[derive(Debug)]
pub struct EventMark {
    event: Arc<SharedEvent>,
    number: u64,
}

impl Drop for EventMark {
    fn drop(&mut self) {
        self.event.pass(self.number);
    }
}

impl SharedObjects {
    /// Of a client that shares nothing yet.
    #[must_use]
    pub fn new(
        sharing: Arc<ExportRegistry>,
        descriptors: Arc<Descriptors>,
        connection: Arc<Connection>,
        user: User,
    ) -> Self {
        Self {
            sharing,
            descriptors,
            connection,
            user,
            exports: HashMap::new(),
            lingering: Vec::new(),
            imports: BTreeMap::new(),
            events: Vec::new(),
            marks: Vec::new(),
            passes: Vec::new(),
            physical: HashMap::new(),
            charged: Vec::new(),
            returned: Arc::default(),
            reserved: BTreeMap::new(),
            mappings: BTreeMap::new(),
            unmapping: BTreeMap::new(),
        }
    }

    /// Whether something that is being unmapped lies in a range. As mappings do not overlap, the last
    /// one that begins before its end tells.
    fn is_unmapping(&self, base: u64, end: u64) -> bool {
        let before = self.unmapping.range(..end).next_back();
        before.is_some_and(|(&at, leaving)| at + leaving.bytes > base)
    }

    /// Whether something is being unmapped: a call that found no room does when that is over.
    pub(crate) fn has_unmapping(&self) -> bool {
        !self.unmapping.is_empty()
    }

    /// Keeps a block that this client has freed, if others use it; else gives it back.
    #[must_use]
    pub fn keep_if_used(&mut self, block: Block) -> Option<Block> {
        let Some(OwnExport {
            offer,
            block: shared,
        }) = self.exports.remove(&block.start())
        else {
            return Some(block);
        };
        drop(offer);
        if shared.close() {
            return Some(block);
        }
        self.lingering.push((block, shared));
        None
    }

    fn event(&self, slot: u32) -> Result<&OpenEvent, CUresult> {
        let open = self.events.get(slot as usize).and_then(Option::as_ref);
        open.filter(|open| !open.closed).ok_or(NO_HANDLE)
    }

    /// Gives an event a slot.
    ///
    /// # Errors
    /// CUDA_ERROR_OUT_OF_MEMORY when all are taken.
    pub fn add_event(
        &mut self,
        observer: &Arc<ClientObserver>,
        event: Arc<SharedEvent>,
    ) -> Result<u32, CUresult> {
        let free = self.events.iter().position(Option::is_none);
        let slot = match free {
            Some(slot) => slot,
            None if self.events.len() < SHARED_EVENT_SLOTS as usize => {
                self.events.push(None);
                self.events.len() - 1
            }
            None => return Err(CUresult::ERROR_OUT_OF_MEMORY),
        };
        observer.progress.reset(shared_event(slot as u32));
        event.watch(observer, slot as u32);
        self.events[slot] = Some(OpenEvent {
            event,
            offer: None,
            closed: false,
        });
        Ok(slot as u32)
    }

    /// Opens another client's event.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_HANDLE when there is none of this token.
    pub fn open_event(
        &mut self,
        observer: &Arc<ClientObserver>,
        token: &Token,
    ) -> Result<u32, CUresult> {
        match self.sharing.find(self.user, token) {
            Some(ExportedObject::Event(event)) => self.add_event(observer, event),
            _ => Err(NO_HANDLE),
        }
    }

    /// Takes an event from the client, whose work may still wait for it.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_HANDLE
    pub fn close_event(&mut self, slot: u32) -> Result<(), CUresult> {
        self.event(slot)?;
        if let Some(Some(open)) = self.events.get_mut(slot as usize) {
            open.closed = true;
        }
        Ok(())
    }

    /// Says how far an event is, after a new record if one is wanted.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_HANDLE, and CUDA_ERROR_OUT_OF_MEMORY for more records than are posted.
    pub fn mark(&mut self, slot: u32, record: bool) -> Result<EventMarkReply, CUresult> {
        let event = self.event(slot)?.event.clone();
        if record {
            if self.marks.len() >= MOST_OBJECTS {
                return Err(CUresult::ERROR_OUT_OF_MEMORY);
            }
            let number = event.record();
            self.marks.push(EventMark {
                event: event.clone(),
                number,
            });
        }
        let (recorded, completed) = event.progress();
        Ok(EventMarkReply {
            recorded,
            completed,
        })
    }

    /// Takes a record that is to go into a stream.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_HANDLE
    pub fn take_mark(&mut self, slot: u32, number: u64) -> Result<EventMark, CUresult> {
        // The event may be forgotten by now; its records stay.
        let open = self.events.get(slot as usize).and_then(Option::as_ref);
        let event = &open.ok_or(NO_HANDLE)?.event;
        let at = self
            .marks
            .iter()
            .position(|mark| mark.number == number && Arc::ptr_eq(&mark.event, event));
        Ok(self.marks.swap_remove(at.ok_or(NO_HANDLE)?))
    }

    /// Notes where in a stream a record is.
    pub fn passes_at(&mut self, at: At, mark: EventMark, progress: &CompletionTracker) {
        self.passes.push((at, mark));
        if progress.wake_when(at.stream, at.sequence) {
            progress.set_ready();
        }
    }
}

impl Session {
    /// Does what waited for others or for streams and can be done now.
    pub(crate) fn release_shared_objects(&mut self) {
        let progress = &self.observer.progress;
        // What is past passes by being dropped.
        self.shared_objects
            .passes
            .retain(|(at, _)| !progress.wake_when(at.stream, at.sequence));
        let unused = |(_, shared): &mut (Block, Arc<SharedBlock>)| shared.is_unused();
        let freed: Vec<_> = self
            .shared_objects
            .lingering
            .extract_if(.., unused)
            .collect();
        for (block, shared) in freed {
            drop(shared);
            let mut committer = ClientBacking(&mut *self.client, &self.addresses);
            self.memory.release(&block, &mut committer);
        }
        self.uncharge_returned();
    }

    /// Counts physical memory back that nobody has any more.
    fn uncharge_returned(&mut self) {
        let returned = self.shared_objects.returned.take();
        if returned.is_empty() {
            return;
        }
        for (device, bytes) in returned {
            self.memory.uncharge(device, bytes);
        }
        self.shared_objects
            .charged
            .retain(|memory| memory.strong_count() > 0);
    }

    /// Offers something of this client's.
    pub(crate) fn expose_object(&mut self, request: &Expose) -> Result<Token, CUresult> {
        match Exposed::from_number(request.kind).ok_or(WRONG)? {
            Exposed::Block => self.expose_block(request.object, request.bytes),
            Exposed::Event => {
                let slot = u32::try_from(request.object).map_err(|_| NO_HANDLE)?;
                let event = self.shared_objects.event(slot)?.event.clone();
                let SharedObjects {
                    events,
                    sharing,
                    user,
                    ..
                } = &mut self.shared_objects;
                let open = events.get_mut(slot as usize).and_then(Option::as_mut);
                let offer = &mut open.ok_or(NO_HANDLE)?.offer;
                offered(offer, sharing, *user, ExportedObject::Event(event))
            }
            Exposed::Physical => {
                let commons = &self.shared_objects;
                let physical = commons.physical.get(&request.object).ok_or(WRONG)?;
                let who = (self.observer.session(), commons.user);
                let (sharing, connection) = (&commons.sharing, &commons.connection);
                let memory = &physical.memory;
                commons.descriptors.issue(sharing, who, memory, connection)
            }
        }
    }

    fn expose_block(&mut self, address: u64, bytes: u64) -> Result<Token, CUresult> {
        let (device, whole) = self.memory.device_block(address).ok_or(WRONG)?;
        if bytes == 0 || bytes > whole {
            return Err(WRONG);
        }
        if let Some(export) = self.shared_objects.exports.get(&address) {
            return Ok(export.offer.token());
        }
        let range = Window {
            base: address,
            bytes,
        };
        let held = self.client.share(range)?;
        let session = self.observer.session();
        let owner = self.observer.clone();
        let block = Arc::new(SharedBlock::new(session, device, range, held, owner));
        let SharedObjects { sharing, user, .. } = &self.shared_objects;
        let offer = sharing.offer(*user, ExportedObject::Block(block.clone()))?;
        let token = offer.token();
        self.shared_objects
            .exports
            .insert(address, OwnExport { offer, block });
        Ok(token)
    }

    /// Opens another client's block.
    pub(crate) fn open_import(&mut self, token: Token) -> Result<MemImportReply, CUresult> {
        let Some(ExportedObject::Block(block)) = self
            .shared_objects
            .sharing
            .find(self.shared_objects.user, &token)
        else {
            return Err(NO_HANDLE);
        };
        if block.session == self.observer.session() {
            return Err(CUresult::ERROR_INVALID_CONTEXT);
        }
        let reply = MemImportReply {
            address: block.range.base,
            bytes: block.range.bytes,
            device: block.device,
        };
        if let Some(opened) = self.shared_objects.imports.get_mut(&reply.address) {
            opened.count += 1;
            return Ok(reply);
        }
        if self.shared_objects.imports.len() >= MOST_OBJECTS {
            return Err(CUresult::ERROR_OUT_OF_MEMORY);
        }
        let import = block.import()?;
        self.client.import(&block.held)?;
        let opened = OpenImport {
            import,
            count: 1,
            closing: 0,
        };
        self.shared_objects.imports.insert(reply.address, opened);
        Ok(reply)
    }

    /// Closes another client's block once no work of this one uses it any more.
    pub(crate) fn close_import_later(&mut self, address: u64) -> Result<(), CUresult> {
        let opened = self.shared_objects.imports.get_mut(&address);
        let opened = opened
            .filter(|opened| opened.closing < opened.count)
            .ok_or(WRONG)?;
        opened.closing += 1;
        self.defer(DeferredAction::Close(address));
        Ok(())
    }

    /// Closes another client's block, which no work of this one uses any more.
    pub(crate) fn close_import(&mut self, address: u64) {
        let Some(opened) = self.shared_objects.imports.get_mut(&address) else {
            return;
        };
        opened.closing -= 1;
        opened.count -= 1;
        if opened.count == 0 {
            self.client.close(&opened.import.block().held);
            self.shared_objects.imports.remove(&address);
        }
    }

    /// Forgets a shared event, for which nothing of this client waits any more.
    pub(crate) fn forget_event(&mut self, slot: u32) {
        if let Some(place) = self.shared_objects.events.get_mut(slot as usize)
            && let Some(open) = place.take()
        {
            open.event.unwatch(&self.observer, slot);
        }
    }

    /// Reserves addresses.
    pub(crate) fn reserve_addresses(&mut self, request: &AddressReserve) -> Result<u64, CUresult> {
        let AddressReserve {
            device,
            bytes,
            align,
        } = *request;
        if bytes == 0 || !bytes.is_multiple_of(GRANULE) || !align.is_power_of_two() {
            return Err(WRONG);
        }
        if self.shared_objects.reserved.len() >= MOST_OBJECTS {
            return Err(CUresult::ERROR_OUT_OF_MEMORY);
        }
        let mut committer = ClientBacking(&mut *self.client, &self.addresses);
        let align = align.max(GRANULE);
        let base = self.memory.reserve(device, bytes, align, &mut committer)?;
        self.shared_objects.reserved.insert(base, (device, bytes));
        Ok(base)
    }

    /// Gives reserved addresses back, once nothing is mapped there any more.
    pub(crate) fn free_addresses(&mut self, base: u64) -> Result<(), CUresult> {
        let commons = &mut self.shared_objects;
        let &(device, bytes) = commons.reserved.get(&base).ok_or(WRONG)?;
        if commons.mappings.range(base..base + bytes).next().is_some() {
            return Err(WRONG);
        }
        commons.reserved.remove(&base);
        self.unreserve(device, Window { base, bytes });
        Ok(())
    }

    /// Gives addresses back, or puts that behind what is still to be unmapped there.
    pub(crate) fn unreserve(&mut self, device: u32, at: Window) {
        if self
            .shared_objects
            .is_unmapping(at.base, at.base + at.bytes)
        {
            self.defer(DeferredAction::Unreserve(device, at));
        } else {
            self.memory.unreserve(device, at.base, at.bytes);
        }
    }

    /// Allocates physical memory.
    pub(crate) fn create_physical(&mut self, request: &PhysicalCreate) -> Result<(), CUresult> {
        let PhysicalCreate {
            handle,
            device,
            bytes,
        } = *request;
        self.check_new_physical(handle)?;
        if bytes == 0 || !bytes.is_multiple_of(GRANULE) {
            return Err(WRONG);
        }
        self.memory.charge(device, bytes)?;
        let made = match self.client.physical_create(device, bytes) {
            // What is retained without use may be what is missing.
            Err(CUresult::ERROR_OUT_OF_MEMORY) if self.memory.has_unused() => {
                self.memory
                    .trim(&mut ClientBacking(&mut *self.client, &self.addresses));
                self.client.physical_create(device, bytes)
            }
            made => made,
        };
        let held = made.inspect_err(|_| self.memory.uncharge(device, bytes))?;
        let charge = PhysicalCharge {
            device,
            bytes,
            returned: self.shared_objects.returned.clone(),
            owner: self.observer.clone(),
        };
        let memory = Arc::new(PhysicalMemory {
            held,
            kept: OnceLock::new(),
            left: OnceLock::new(),
            charge,
        });
        self.shared_objects.charged.push(Arc::downgrade(&memory));
        self.shared_objects
            .physical
            .insert(handle, PhysicalHandle { memory });
        Ok(())
    }

    fn check_new_physical(&self, handle: u64) -> Result<(), CUresult> {
        if self.shared_objects.physical.contains_key(&handle) {
            return Err(WRONG);
        }
        if self.shared_objects.physical.len() >= MOST_OBJECTS {
            return Err(CUresult::ERROR_OUT_OF_MEMORY);
        }
        Ok(())
    }

    /// Frees physical memory, as far as this client is concerned.
    pub(crate) fn release_physical(&mut self, handle: u64) -> Result<(), CUresult> {
        let commons = &mut self.shared_objects;
        if commons
            .mappings
            .values()
            .any(|mapping| mapping.handle == handle)
        {
            return Err(WRONG);
        }
        drop(commons.physical.remove(&handle).ok_or(WRONG)?);
        // Unless somebody else has it.
        self.uncharge_returned();
        Ok(())
    }

    /// What others still use of this client's memory counts for its group until they have left it.
    pub(crate) fn pass_to_others(&mut self) {
        for (address, export) in &self.shared_objects.exports {
            if let Some((device, bytes)) = self.memory.device_block(*address) {
                export.block.keep(self.memory.pass_to_group(device, bytes));
            }
        }
        for (block, shared) in &self.shared_objects.lingering {
            let kept = self.memory.pass_to_group(shared.device, block.bytes());
            shared.keep(kept);
        }
        for memory in self.shared_objects.charged.iter().filter_map(Weak::upgrade) {
            let PhysicalCharge { device, bytes, .. } = memory.charge;
            if let Some(kept) = self.memory.pass_to_group(device, bytes) {
                let _ = memory.kept.set(kept);
                continue;
            }
            let (user, most) = (self.shared_objects.user, self.memory.limit(device));
            if !self
                .shared_objects
                .descriptors
                .charge_orphan(user, &memory, most)
            {
                self.name.line(format_args!(
                    "{bytes} bytes of device {device} are not held by descriptors any more: clients of user \
                     {user} that have gone left more than one may have"
                ));
            }
        }
    }

    /// Takes physical memory of another client.
    pub(crate) fn import_physical(
        &mut self,
        request: &PhysicalImport,
    ) -> Result<PhysicalImportReply, CUresult> {
        let PhysicalImport { handle, token } = *request;
        self.check_new_physical(handle)?;
        let commons = &mut self.shared_objects;
        let Some(ExportedObject::Physical(memory)) = commons.sharing.find(commons.user, &token)
        else {
            return Err(WRONG);
        };
        let reply = PhysicalImportReply {
            bytes: memory.charge.bytes,
            device: memory.charge.device,
        };
        // It goes on to count against the quota of whoever allocated it.
        commons.physical.insert(handle, PhysicalHandle { memory });
        Ok(reply)
    }

    /// Maps physical memory at reserved addresses.
    pub(crate) fn map_physical(&mut self, request: &PhysicalMap) -> Result<(), CUresult> {
        let PhysicalMap {
            handle,
            address,
            bytes,
            offset,
        } = *request;
        let commons = &self.shared_objects;
        let end = address.checked_add(bytes).ok_or(WRONG)?;
        let home = commons.reserved.range(..=address).next_back();
        let inside = home.is_some_and(|(&base, &(_, size))| end <= base + size);
        let before = commons.mappings.range(..end).next_back();
        let occupied = before.is_some_and(|(&base, mapping)| base + mapping.bytes > address);
        let Some((_, &(home, _))) = home.filter(|_| bytes != 0 && inside && !occupied) else {
            return Err(WRONG);
        };
        // What is unmapped there will have gone when this is tried again.
        let objects = commons.mappings.len() + commons.unmapping.len();
        if objects >= MOST_OBJECTS || commons.is_unmapping(address, end) {
            return Err(CUresult::ERROR_OUT_OF_MEMORY);
        }
        let held = &commons.physical.get(&handle).ok_or(WRONG)?.memory.held;
        let at = Window {
            base: address,
            bytes,
        };
        self.client.physical_map(at, held, offset)?;
        let mapping = PhysicalMapping {
            bytes,
            handle,
            devices: bit(home),
        };
        self.shared_objects.mappings.insert(address, mapping);
        Ok(())
    }

    /// Takes a mapping away when the work that was taken before is complete. Until then its memory is
    /// held and counts, whatever becomes of its handle.
    pub(crate) fn unmap_physical(&mut self, base: u64) -> Result<(), CUresult> {
        let commons = &mut self.shared_objects;
        let mapping = commons.mappings.get(&base).ok_or(WRONG)?;
        let physical = commons.physical.get(&mapping.handle).ok_or(WRONG)?;
        let leaving = Unmapping {
            bytes: mapping.bytes,
            devices: mapping.devices,
            memory: Arc::clone(&physical.memory),
        };
        commons.mappings.remove(&base);
        commons.unmapping.insert(base, leaving);
        self.defer(DeferredAction::Withdraw(base));
        Ok(())
    }

    /// Lets no new work reach a mapping, which goes when all that was begun until now is over. So
    /// nothing is under way in it when its memory is given back: whatever wrote there afterwards would
    /// take memory that counts for nobody.
    pub(crate) fn withdraw_physical(&mut self, base: u64) {
        let Some(&Unmapping { bytes, devices, .. }) = self.shared_objects.unmapping.get(&base)
        else {
            return;
        };
        for device in (0..u64::BITS).filter(|&device| devices & bit(device) != 0) {
            // Which may have failed to be granted as well; the memory goes in any case.
            let _ = self
                .client
                .physical_access(Window { base, bytes }, device, false);
        }
        self.defer(DeferredAction::Unmap(base));
    }

    /// Takes a mapping away that nothing uses any more.
    pub(crate) fn end_mapping(&mut self, base: u64) {
        if let Some(Unmapping { bytes, memory, .. }) = self.shared_objects.unmapping.remove(&base) {
            self.client.physical_unmap(Window { base, bytes });
            drop(memory);
            self.uncharge_returned();
        }
    }

    /// Says how a device may reach a mapping.
    pub(crate) fn access_physical(&mut self, request: &PhysicalAccess) -> Result<(), CUresult> {
        let mapping = self.shared_objects.mappings.get_mut(&request.address);
        let mapping = mapping.ok_or(WRONG)?;
        let at = Window {
            base: request.address,
            bytes: mapping.bytes,
        };
        mapping.devices |= bit(request.device);
        self.client
            .physical_access(at, request.device, request.access != 0)
    }
}

/// A device as a bit; no bit for one that cannot be.
const fn bit(device: u32) -> u64 {
    match 1u64.checked_shl(device) {
        Some(bit) => bit,
        None => 0,
    }
}

/// The token of an offer, which is made if there is none.
fn offered(
    offer: &mut Option<Export>,
    sharing: &Arc<ExportRegistry>,
    user: User,
    thing: ExportedObject,
) -> Result<Token, CUresult> {
    if let Some(offer) = offer {
        return Ok(offer.token());
    }
    let made = sharing.offer(user, thing)?;
    let token = made.token();
    *offer = Some(made);
    Ok(token)
}
