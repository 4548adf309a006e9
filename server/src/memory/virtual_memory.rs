//! Virtual memory management, as `cuMemCreate` and `cuMemMap` have it: reserved addresses, physical memory by the
//! client's handles, and what is mapped where.
//!
//! Called by the session's operations and when it frees. Everything is found by the client's own handles and addresses
//! and checked against what it has; what others offer is found by tokens. Must not know rings or streams: the session
//! says when no work uses a mapping any more.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};

use cuda_abi::CUresult;
use engine::arena::GRANULE;
use engine::{Client, Window};
use protocol::operations::{
    AddressReserve, PhysicalAccess, PhysicalCreate, PhysicalImport, PhysicalImportReply,
    PhysicalMap,
};
use transport::socket::Connection;

use crate::ipc::descriptors::Descriptors;
use crate::ipc::elsewhere::ForeignObject;
use crate::ipc::exports::{
    ExportedObject, Found, Payer, PhysicalCharge, PhysicalMemory, Returned, Token, UserExports,
};
use crate::log::ClientLog;
use crate::memory::backing::ClientBacking;
use crate::memory::client_memory::ClientMemory;
use crate::session::observer::ClientObserver;

/// Objects of a kind that a client may have; more are refused, so that it cannot fill the server.
const MAX_OBJECTS: usize = 1 << 14;

const INVALID: CUresult = CUresult::ERROR_INVALID_VALUE;

/// A client's virtual memory.
#[derive(Debug)]
pub struct VirtualMemory {
    user_exports: UserExports,
    descriptors: Arc<Descriptors>,
    /// The client's socket, over which it is given descriptors.
    connection: Arc<Connection>,
    /// Physical memory by handle.
    physical: HashMap<u64, Arc<PhysicalMemory>>,
    /// Physical memory that counts against this client's quota, whoever has it.
    charged: Vec<Weak<PhysicalMemory>>,
    /// Of that, what nobody has any more.
    returned: Arc<Returned>,
    /// Device and bytes of reserved addresses, by the first.
    reserved: BTreeMap<u64, (u32, u64)>,
    /// What is mapped, by address.
    mappings: BTreeMap<u64, Mapping>,
    /// What the client has unmapped and work of its may still use, by address. It counts as long.
    unmapping: BTreeMap<u64, Unmapping>,
}

/// Physical memory at addresses of the client's.
#[derive(Debug)]
struct Mapping {
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

impl VirtualMemory {
    /// Of a client that has none yet.
    #[must_use]
    pub fn new(
        user_exports: UserExports,
        descriptors: Arc<Descriptors>,
        connection: Arc<Connection>,
    ) -> Self {
        Self {
            user_exports,
            descriptors,
            connection,
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
    #[must_use]
    pub fn is_unmapping_in(&self, range: Window) -> bool {
        let before = self.unmapping.range(..range.base + range.bytes).next_back();
        before.is_some_and(|(&at, leaving)| at + leaving.bytes > range.base)
    }

    /// Whether something is being unmapped: a call that found no room does when that is over.
    #[must_use]
    pub fn has_unmapping(&self) -> bool {
        !self.unmapping.is_empty()
    }

    /// Reserves addresses.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for what is not granular, CUDA_ERROR_OUT_OF_MEMORY.
    pub fn reserve(
        &mut self,
        request: &AddressReserve,
        memory: &mut ClientMemory,
        mut backing: ClientBacking<'_>,
    ) -> Result<u64, CUresult> {
        let AddressReserve {
            device,
            bytes,
            align,
        } = *request;
        if bytes == 0 || !bytes.is_multiple_of(GRANULE) || !align.is_power_of_two() {
            return Err(INVALID);
        }
        if self.reserved.len() >= MAX_OBJECTS {
            return Err(CUresult::ERROR_OUT_OF_MEMORY);
        }
        let base = memory.reserve(device, bytes, align.max(GRANULE), &mut backing)?;
        self.reserved.insert(base, (device, bytes));
        Ok(base)
    }

    /// Takes a reservation out in which nothing is mapped any more, with its device. Its addresses are the caller's to
    /// give back.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE when there is none, or something is mapped in it.
    pub fn remove_reservation(&mut self, base: u64) -> Result<(u32, Window), CUresult> {
        let &(device, bytes) = self.reserved.get(&base).ok_or(INVALID)?;
        if self.mappings.range(base..base + bytes).next().is_some() {
            return Err(INVALID);
        }
        self.reserved.remove(&base);
        Ok((device, Window { base, bytes }))
    }

    /// Allocates physical memory.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for a handle that there is and for what is not granular, CUDA_ERROR_OUT_OF_MEMORY.
    pub fn create(
        &mut self,
        request: &PhysicalCreate,
        memory: &mut ClientMemory,
        mut backing: ClientBacking<'_>,
        owner: &Arc<ClientObserver>,
    ) -> Result<(), CUresult> {
        let PhysicalCreate {
            handle,
            device,
            bytes,
        } = *request;
        self.check_new_handle(handle)?;
        if bytes == 0 || !bytes.is_multiple_of(GRANULE) {
            return Err(INVALID);
        }
        memory.charge(device, bytes)?;
        let made = match backing.0.physical_create(device, bytes) {
            // What is retained without use may be what is missing.
            Err(CUresult::ERROR_OUT_OF_MEMORY) if memory.has_unused() => {
                memory.trim(&mut backing);
                backing.0.physical_create(device, bytes)
            }
            made => made,
        };
        let held = made.inspect_err(|_| memory.uncharge(device, bytes))?;
        let charge = PhysicalCharge {
            device,
            bytes,
            payer: Payer::Client {
                returned: self.returned.clone(),
                owner: owner.clone(),
            },
        };
        let physical = Arc::new(PhysicalMemory::new(held, charge));
        self.charged.push(Arc::downgrade(&physical));
        self.physical.insert(handle, physical);
        Ok(())
    }

    fn check_new_handle(&self, handle: u64) -> Result<(), CUresult> {
        if self.physical.contains_key(&handle) {
            return Err(INVALID);
        }
        if self.physical.len() >= MAX_OBJECTS {
            return Err(CUresult::ERROR_OUT_OF_MEMORY);
        }
        Ok(())
    }

    /// Frees physical memory, as far as this client is concerned.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE when there is none, or it is mapped.
    pub fn release(&mut self, handle: u64, memory: &mut ClientMemory) -> Result<(), CUresult> {
        let mut mappings = self.mappings.values();
        if mappings.any(|mapping| mapping.handle == handle) {
            return Err(INVALID);
        }
        drop(self.physical.remove(&handle).ok_or(INVALID)?);
        // Unless somebody else has it.
        self.uncharge_returned(memory);
        Ok(())
    }

    /// Counts physical memory back that nobody has any more.
    pub fn uncharge_returned(&mut self, memory: &mut ClientMemory) {
        let returned = self.returned.drain();
        if returned.is_empty() {
            return;
        }
        for (device, bytes) in returned {
            memory.uncharge(device, bytes);
        }
        self.charged.retain(|memory| memory.strong_count() > 0);
    }

    /// Gives the client a descriptor of physical memory, and the token by which others find it.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE when there is none, and what the descriptors say.
    pub fn export(&self, handle: u64, session: u64) -> Result<Token, CUresult> {
        let memory = self.physical.get(&handle).ok_or(INVALID)?;
        let UserExports { registry, user, .. } = &self.user_exports;
        self.descriptors
            .issue(registry, (session, *user), memory, &self.connection)
    }

    /// Takes physical memory of another client.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for a handle that there is, or a token of none; CUDA_ERROR_OUT_OF_MEMORY for too many; and what
    /// the engine says of another server's.
    pub fn import(
        &mut self,
        request: &PhysicalImport,
        client: &mut dyn Client,
    ) -> Result<PhysicalImportReply, CUresult> {
        let PhysicalImport { handle, token } = *request;
        self.check_new_handle(handle)?;
        let memory = match self.user_exports.find(&token)? {
            Some(Found::Here(ExportedObject::Physical(memory))) => memory,
            Some(Found::Elsewhere(ForeignObject::Physical(device, piece, lease))) => {
                let held = client.foreign_import(device, &piece)?;
                let charge = PhysicalCharge {
                    device,
                    bytes: piece.bytes,
                    payer: Payer::Elsewhere(lease),
                };
                Arc::new(PhysicalMemory::new(held, charge))
            }
            _ => return Err(INVALID),
        };
        let reply = PhysicalImportReply {
            bytes: memory.charge.bytes,
            device: memory.charge.device,
        };
        // It goes on to count against the quota of whoever allocated it.
        self.physical.insert(handle, memory);
        Ok(reply)
    }

    /// Maps physical memory at reserved addresses.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for addresses that are not reserved or are taken, CUDA_ERROR_OUT_OF_MEMORY for those
    /// that are still being unmapped, and what the engine says.
    pub fn map(&mut self, request: &PhysicalMap, client: &mut dyn Client) -> Result<(), CUresult> {
        let PhysicalMap {
            handle,
            address,
            bytes,
            offset,
        } = *request;
        let end = address.checked_add(bytes).ok_or(INVALID)?;
        let home = self.reserved.range(..=address).next_back();
        let inside = home.is_some_and(|(&base, &(_, size))| end <= base + size);
        let before = self.mappings.range(..end).next_back();
        let occupied = before.is_some_and(|(&base, mapping)| base + mapping.bytes > address);
        let Some((_, &(home, _))) = home.filter(|_| bytes != 0 && inside && !occupied) else {
            return Err(INVALID);
        };
        let at = Window {
            base: address,
            bytes,
        };
        // What is unmapped there will have gone when this is tried again.
        let objects = self.mappings.len() + self.unmapping.len();
        if objects >= MAX_OBJECTS || self.is_unmapping_in(at) {
            return Err(CUresult::ERROR_OUT_OF_MEMORY);
        }
        let held = &self.physical.get(&handle).ok_or(INVALID)?.held;
        client.physical_map(at, held, offset)?;
        let mapping = Mapping {
            bytes,
            handle,
            devices: bit(home),
        };
        self.mappings.insert(address, mapping);
        Ok(())
    }

    /// Says how a device may reach a mapping.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE when there is none, and what the engine says.
    pub fn set_access(
        &mut self,
        request: &PhysicalAccess,
        client: &mut dyn Client,
    ) -> Result<(), CUresult> {
        let mapping = self.mappings.get_mut(&request.address).ok_or(INVALID)?;
        let at = Window {
            base: request.address,
            bytes: mapping.bytes,
        };
        mapping.devices |= bit(request.device);
        client.physical_access(at, request.device, request.access != 0)
    }

    /// Takes a mapping from the client, the first of three steps: when the work that was taken before is complete,
    /// [`Self::withdraw`] lets no new work reach it, and when all that was begun until then is over,
    /// [`Self::end_unmap`] gives it back. Until then its memory is held and counts, whatever becomes of its handle.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE when there is none.
    pub fn begin_unmap(&mut self, base: u64) -> Result<(), CUresult> {
        let mapping = self.mappings.get(&base).ok_or(INVALID)?;
        let physical = self.physical.get(&mapping.handle).ok_or(INVALID)?;
        let leaving = Unmapping {
            bytes: mapping.bytes,
            devices: mapping.devices,
            memory: Arc::clone(physical),
        };
        self.mappings.remove(&base);
        self.unmapping.insert(base, leaving);
        Ok(())
    }

    /// Lets no new work reach a mapping that is being unmapped. Says whether there is one. So nothing is under way in it
    /// when its memory is given back: whatever wrote there afterwards would take memory that counts for nobody.
    pub fn withdraw(&self, base: u64, client: &mut dyn Client) -> bool {
        let Some(&Unmapping { bytes, devices, .. }) = self.unmapping.get(&base) else {
            return false;
        };
        for device in (0..u64::BITS).filter(|&device| devices & bit(device) != 0) {
            // Which may have failed to be granted as well; the memory goes in any case.
            let _ = client.physical_access(Window { base, bytes }, device, false);
        }
        true
    }

    /// Takes a mapping away that nothing uses any more.
    pub fn end_unmap(&mut self, base: u64, client: &mut dyn Client, memory: &mut ClientMemory) {
        if let Some(leaving) = self.unmapping.remove(&base) {
            let Unmapping {
                bytes,
                memory: physical,
                ..
            } = leaving;
            client.physical_unmap(Window { base, bytes });
            drop(physical);
            self.uncharge_returned(memory);
        }
    }

    /// Has what others still use of the client's physical memory count for its group until they have left it, or, if it
    /// has none, for its user.
    pub fn pass_to_group(&self, memory: &mut ClientMemory, log: &ClientLog) {
        for physical in self.charged.iter().filter_map(Weak::upgrade) {
            let PhysicalCharge { device, bytes, .. } = physical.charge;
            if let Some(kept) = memory.pass_to_group(device, bytes) {
                let _ = physical.group_charge.set(kept);
                continue;
            }
            let (user, most) = (self.user_exports.user, memory.limit(device));
            if !self.descriptors.charge_orphan(user, &physical, most) {
                log.line(format_args!(
                    "{bytes} bytes of device {device} are not held by descriptors any more: clients of user \
                     {user} that have gone left more than one may have"
                ));
            }
        }
    }
}

/// A device as a bit; no bit for one that cannot be.
const fn bit(device: u32) -> u64 {
    match 1u64.checked_shl(device) {
        Some(bit) => bit,
        None => 0,
    }
}
