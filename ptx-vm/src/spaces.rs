//! Where the state spaces lie among the 64-bit generic addresses, and how an instruction's addresses
//! become host addresses that were tested.
//!
//! Global memory is the host's own address space (inside the client's windows). Shared, local and
//! parameter memory have windows of their own at addresses where Linux maps nothing of ours: below any
//! arena and any library, but not at 0.
//!
//! Called by the operations that reach memory, and by `lower` for the windows' addresses. Must not know who has a
//! window, only which are in the launch's `AddressSpace`.

use super::access;
use super::fault::FaultKind;
use super::grid::RESERVED_SHARED;
use super::limits::{MAX_CLUSTER, MAX_SHARED_BYTES};
use super::machine::{Flow, Machine, Op};
use super::memory::GRANULE;
use super::regs::STRIP;

/// Generic address of shared memory's byte 0.
pub(crate) const SHARED_BASE: u64 = 0x0000_0100_0000_0000;
/// Bytes that a block's shared memory spans in the window. A block's own begins at 0, as seen from itself; as seen from
/// all blocks of its cluster, that of rank `r` begins at `(r + 1) * SHARED_SPAN`.
pub(crate) const SHARED_SPAN: u64 = 0x0004_0000;
/// Generic address of a thread's local byte 0.
pub(crate) const LOCAL_BASE: u64 = 0x0000_0100_0100_0000;
/// Generic address of the entry's parameter byte 0.
pub(crate) const PARAM_BASE: u64 = 0x0000_0100_0200_0000;
/// Address of the memory that a cooperative grid's blocks meet in; they reach it as global memory.
pub(crate) const GRID_BASE: u64 = 0x0000_0100_0300_0000;
/// Bytes that each of them spans.
pub(crate) const WINDOW: u64 = 0x0100_0000;
/// "Address" of function 0 of a module; the next ones follow at [`FUNCTION_STEP`].
pub(crate) const FUNCTION_BASE: u64 = 0x0000_0100_0400_0000;
const _: () = assert!(
    MAX_SHARED_BYTES as u64 + RESERVED_SHARED as u64 <= SHARED_SPAN
        && (MAX_CLUSTER as u64 + 1) * SHARED_SPAN <= WINDOW
);
/// Lanes whose addresses are further apart than this are tested one by one, as testing every granule
/// between them would take longer.
const MAX_SPAN: u64 = 64 * GRANULE;
/// See [`FUNCTION_BASE`].
pub(crate) const FUNCTION_STEP: u64 = 16;

/// The state space that an instruction names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StateSpace {
    Generic,
    /// `.global`, and `.const`, which lies in device memory too.
    Global,
    Shared,
    Local,
    /// The entry's parameters.
    Param,
}

/// An instruction's addresses, tested: host addresses.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Tested {
    /// One for all lanes.
    One(u64),
    /// Lane `16 × low` is here, and each lane follows the one before.
    Row(u64),
    /// Each lane of the strips has its own, in [`Machine::ADDRESSES`]; lanes that do not run have that of
    /// one that does.
    Each,
}

/// What a memory operation's `imm` holds: see [`pack`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Access {
    /// Added to the address.
    pub(crate) offset: i64,
    /// The space.
    pub(crate) place: StateSpace,
    /// The address register has 64 bits.
    pub(crate) wide: bool,
    /// Elements of a vector.
    pub(crate) count: usize,
}

/// Packs an [`Access`]. `None` if the offset does not fit into 48 bits.
pub(crate) fn pack(access: Access) -> Option<u64> {
    let offset = access.offset;
    if !(-(1 << 47)..1 << 47).contains(&offset) {
        return None;
    }
    let place = access.place as u64;
    Some(
        (offset as u64) << 16
            | place << 8
            | u64::from(access.wide) << 4
            | access.count as u64 & 0xf,
    )
}

/// Unpacks an [`Access`].
#[inline(always)]
pub(crate) fn unpack(imm: u64) -> Access {
    let place = match imm >> 8 & 0xff {
        0 => StateSpace::Generic,
        1 => StateSpace::Global,
        2 => StateSpace::Shared,
        3 => StateSpace::Local,
        _ => StateSpace::Param,
    };
    Access {
        offset: imm as i64 >> 16,
        place,
        wide: imm >> 4 & 1 != 0,
        count: (imm & 0xf) as usize,
    }
}

/// Where in shared memory an access by an address of 32 bits is: it wraps around as 32 bits do.
#[inline(always)]
pub(crate) fn shared_address(register: u32, access: Access) -> u32 {
    register.wrapping_add(access.offset as u32)
}

/// What the addresses of a strip loop have in common.
#[derive(Clone, Copy)]
struct Survey {
    min: u64,
    max: u64,
    /// Or of all differences from a row.
    crooked: u64,
    /// Or of all addresses.
    bits: u64,
}

impl Machine<'_> {
    /// Tests the addresses of source 0 for an access of `access.count` elements of `element` bytes.
    #[inline(always)]
    pub(crate) fn addresses(
        &mut self,
        op: &Op,
        access: Access,
        element: usize,
        write: bool,
    ) -> Result<Tested, Flow> {
        let size = (element * access.count) as u64;
        if !op.varies(0) {
            let offset = op.s[0] as usize;
            let base = if access.wide {
                self.frame.lane::<u64>(offset, 0)
            } else {
                u64::from(self.frame.lane::<u32>(offset, 0))
            };
            return self.test_one(base, access, size, write);
        }
        let survey = if access.wide {
            self.survey::<u64>(op, access, size)
        } else {
            self.survey::<u32>(op, access, size)
        };
        self.test_many(survey, access, size, write)
    }

    /// The host address of an access to shared memory that is the same in all lanes, if it is right.
    #[inline(always)]
    pub(crate) fn one_shared(&self, op: &Op, access: Access, size: u64) -> Option<u64> {
        let slot = op.s[0] as usize;
        let address = if access.wide {
            self.frame
                .lane::<u64>(slot, 0)
                .wrapping_add_signed(access.offset)
        } else {
            u64::from(self.frame.lane::<u32>(slot, 0)).wrapping_add_signed(access.offset)
                & 0xffff_ffff
        };
        let fits = address <= self.shared_bytes.wrapping_sub(size) && size <= self.shared_bytes;
        (fits && address & (size - 1) == 0).then(|| self.shared.ptr() as u64 + address)
    }

    /// The host address of the block's shared memory, if all lanes of all strips run and each accesses bytes
    /// of it, by an address of 32 bits, that are right; and whether each lane follows the one before.
    #[inline(always)]
    pub(crate) fn each_shared(&self, op: &Op, access: Access, size: u64) -> Option<(u64, bool)> {
        if access.place != StateSpace::Shared || access.wide || !self.whole() || !op.varies(0) {
            return None;
        }
        let last = u32::try_from(self.shared_bytes.checked_sub(size)?).ok()?;
        let slot = op.s[0] as usize;
        let step = size as u32;
        let first = shared_address(self.frame.lane::<u32>(slot, self.low * STRIP), access);
        let mut row: [u32; STRIP] =
            std::array::from_fn(|lane| first.wrapping_add(step * lane as u32));
        let mut max = [0; STRIP];
        let mut crooked = [0; STRIP];
        let mut bits = [0; STRIP];
        for strip in self.low..self.high {
            let values = self.frame.strip::<u32>(slot, strip);
            for lane in 0..STRIP {
                let value = shared_address(values[lane], access);
                max[lane] = value.max(max[lane]);
                crooked[lane] |= value ^ row[lane];
                bits[lane] |= value;
                row[lane] = row[lane].wrapping_add(step * STRIP as u32);
            }
        }
        let or = |lanes: [u32; STRIP]| lanes.into_iter().fold(0, |a, b| a | b);
        let fits = max.into_iter().fold(0, u32::max) <= last && or(bits) & (step - 1) == 0;
        fits.then(|| (self.shared.ptr() as u64, or(crooked) == 0))
    }

    /// Computes the lanes' addresses into scratch.
    #[inline(always)]
    fn survey<T: crate::regs::Lane + Into<u64>>(
        &mut self,
        op: &Op,
        access: Access,
        size: u64,
    ) -> Survey {
        let slot = op.s[0] as usize;
        let address = |value: T| {
            let sum = Into::<u64>::into(value).wrapping_add_signed(access.offset);
            // A 32-bit address wraps around as 32 bits do.
            if access.wide { sum } else { sum & 0xffff_ffff }
        };
        let lead = self.mask.lowest().unwrap_or(0);
        let first = address(self.frame.lane::<T>(slot, lead));
        let mut min = [u64::MAX; STRIP];
        let mut max = [0; STRIP];
        let mut crooked = [0; STRIP];
        let mut bits = [0; STRIP];
        let mut row: [u64; STRIP] =
            std::array::from_fn(|lane| first.wrapping_add(size * lane as u64));
        for strip in self.low..self.high {
            let values = self.frame.strip::<T>(slot, strip);
            let lanes = self.mask.strip(strip);
            let mut out = [0u64; STRIP];
            for lane in 0..STRIP {
                let value = address(values[lane]);
                let value = if lanes >> lane & 1 != 0 { value } else { first };
                out[lane] = value;
                min[lane] = min[lane].min(value);
                max[lane] = max[lane].max(value);
                crooked[lane] |= value ^ row[lane];
                bits[lane] |= value;
                row[lane] = row[lane].wrapping_add(size * STRIP as u64);
            }
            self.scratch.set_strip(Self::ADDRESSES as usize, strip, out);
        }
        Survey {
            min: min.into_iter().fold(u64::MAX, u64::min),
            max: max.into_iter().fold(0, u64::max),
            crooked: crooked.into_iter().fold(0, |a, b| a | b),
            bits: bits.into_iter().fold(0, |a, b| a | b),
        }
    }

    /// Tests one address that all lanes have.
    fn test_one(
        &mut self,
        base: u64,
        access: Access,
        size: u64,
        write: bool,
    ) -> Result<Tested, Flow> {
        let sum = base.wrapping_add_signed(access.offset);
        let address = if access.wide { sum } else { sum & 0xffff_ffff };
        if access.place == StateSpace::Local
            || access.place == StateSpace::Generic && in_window(address, LOCAL_BASE)
        {
            for strip in self.low..self.high {
                self.scratch
                    .set_strip(Self::ADDRESSES as usize, strip, [address; STRIP]);
            }
            let survey = Survey {
                min: address,
                max: address,
                crooked: u64::MAX,
                bits: address,
            };
            return self.test_many(survey, access, size, write);
        }
        match self.host(address, access.place, size, write) {
            Ok(host) if address & (size - 1) == 0 => Ok(Tested::One(host)),
            Ok(_) => Err(self.address_fault(FaultKind::MisalignedAddress, address, None)),
            Err(()) => Err(self.address_fault(FaultKind::IllegalAddress, address, None)),
        }
    }

    /// Tests the lanes' addresses in scratch and makes host addresses of them.
    #[inline(never)]
    fn test_many(
        &mut self,
        survey: Survey,
        access: Access,
        size: u64,
        write: bool,
    ) -> Result<Tested, Flow> {
        if survey.bits & (size - 1) != 0 {
            return Err(self.first_fault(access.place, size, write));
        }
        let span = survey.max - survey.min;
        let place = match access.place {
            StateSpace::Generic => home(survey.min, survey.max),
            place => Some(place),
        };
        let (Some(place), Some(reach)) = (place, span.checked_add(size)) else {
            return self.test_each(access, size, write);
        };
        if place == StateSpace::Local {
            return self.test_local(survey, access, size, write);
        }
        if reach > MAX_SPAN {
            return self.test_each(access, size, write);
        }
        // One test of the whole span is enough where all of it is allowed; else each lane is asked.
        let Ok(host) = self.host_range(
            survey.min,
            place,
            access.place == StateSpace::Generic,
            reach,
            write,
        ) else {
            return self.test_each(access, size, write);
        };
        let shift = host.wrapping_sub(survey.min);
        if survey.crooked == 0 && self.whole() {
            return Ok(Tested::Row(host));
        }
        if shift != 0 {
            self.shift_addresses(|address, _| address.wrapping_add(shift));
        }
        Ok(Tested::Each)
    }

    /// The same for local memory: each thread has its own.
    fn test_local(
        &mut self,
        survey: Survey,
        access: Access,
        size: u64,
        write: bool,
    ) -> Result<Tested, Flow> {
        let base = if access.place == StateSpace::Generic {
            LOCAL_BASE
        } else {
            0
        };
        let stride = u64::from(self.local_stride);
        if survey.max - base > stride.wrapping_sub(size) || stride < size {
            return Err(self.first_fault(access.place, size, write));
        }
        let start = (self.local.ptr() as u64).wrapping_sub(base);
        self.shift_addresses(|address, lane| {
            address
                .wrapping_add(start)
                .wrapping_add(lane as u64 * stride)
        });
        Ok(Tested::Each)
    }

    /// Asks for each running lane by itself, as its addresses lie too far apart.
    #[cold]
    fn test_each(&mut self, access: Access, size: u64, write: bool) -> Result<Tested, Flow> {
        let slot = Self::ADDRESSES as usize;
        let mut any = None;
        for lane in self.mask.lanes() {
            let address = self.scratch.lane::<u64>(slot, lane);
            let host = if access.place == StateSpace::Generic && in_window(address, LOCAL_BASE) {
                self.local_host(address - LOCAL_BASE, lane, size)
            } else {
                self.host(address, access.place, size, write)
            };
            let Ok(host) = host else {
                return Err(self.address_fault(FaultKind::IllegalAddress, address, Some(lane)));
            };
            self.scratch.set_lane(slot, lane, host);
            any = Some(host);
        }
        if let (false, Some(host)) = (self.whole(), any) {
            for lane in (self.low * STRIP..self.high * STRIP).filter(|&lane| !self.mask.has(lane)) {
                self.scratch.set_lane(slot, lane, host);
            }
        }
        Ok(Tested::Each)
    }

    /// Finds the first lane that is wrong.
    #[cold]
    fn first_fault(&mut self, place: StateSpace, size: u64, write: bool) -> Flow {
        for lane in self.mask.lanes() {
            let address = self.scratch.lane::<u64>(Self::ADDRESSES as usize, lane);
            let local = match place {
                StateSpace::Local => Some(address),
                StateSpace::Generic if in_window(address, LOCAL_BASE) => Some(address - LOCAL_BASE),
                _ => None,
            };
            let host = match local {
                Some(offset) => self.local_host(offset, lane, size),
                None => self.host(address, place, size, write),
            };
            if host.is_err() {
                return self.address_fault(FaultKind::IllegalAddress, address, Some(lane));
            }
            if address & (size - 1) != 0 {
                return self.address_fault(FaultKind::MisalignedAddress, address, Some(lane));
            }
        }
        self.address_fault(FaultKind::IllegalAddress, 0, None)
    }

    #[cold]
    fn address_fault(&mut self, kind: FaultKind, address: u64, lane: Option<usize>) -> Flow {
        let lane = lane.or_else(|| self.mask.lowest()).unwrap_or(0);
        self.fault(kind, address, lane)
    }

    fn shift_addresses(&mut self, f: impl Fn(u64, usize) -> u64) {
        let slot = Self::ADDRESSES as usize;
        for strip in self.low..self.high {
            let mut addresses = self.scratch.strip::<u64>(slot, strip);
            for (lane, address) in addresses.iter_mut().enumerate() {
                *address = f(*address, strip * STRIP + lane);
            }
            self.scratch.set_strip(slot, strip, addresses);
        }
    }

    pub(crate) fn local_host(&self, offset: u64, lane: usize, size: u64) -> Result<u64, ()> {
        let stride = u64::from(self.local_stride);
        if stride < size || offset > stride - size {
            return Err(());
        }
        Ok(self.local.ptr() as u64 + lane as u64 * stride + offset)
    }

    /// The host address of one access, which is not local.
    pub(crate) fn host(
        &self,
        address: u64,
        place: StateSpace,
        size: u64,
        write: bool,
    ) -> Result<u64, ()> {
        let generic = place == StateSpace::Generic;
        let place = if generic {
            home(address, address).ok_or(())?
        } else {
            place
        };
        self.host_range(address, place, generic, size, write)
    }

    /// The host address of a range in one space other than local.
    fn host_range(
        &self,
        first: u64,
        place: StateSpace,
        generic: bool,
        len: u64,
        write: bool,
    ) -> Result<u64, ()> {
        let inside = |base: u64, start: u64, size: u64| {
            let offset = first.wrapping_sub(if generic { base } else { 0 });
            if len <= size && offset <= size - len {
                Ok(start + offset)
            } else {
                Err(())
            }
        };
        match place {
            StateSpace::Shared => {
                let own = inside(SHARED_BASE, self.shared.ptr() as u64, self.shared_bytes);
                own.or_else(|()| {
                    let place = first.wrapping_sub(if generic { SHARED_BASE } else { 0 });
                    self.distributed(place, len)
                })
            }
            StateSpace::Param if !write => inside(
                PARAM_BASE,
                self.grid.params.ptr() as u64,
                self.grid.param_bytes.into(),
            ),
            StateSpace::Global | StateSpace::Generic if self.grid.memory.allows(first, len) => {
                Ok(first)
            }
            StateSpace::Global | StateSpace::Generic if in_window(first, GRID_BASE) => {
                let offset = first - GRID_BASE;
                let all = self.grid.meeting.len() as u64;
                if len <= all && offset <= all - len {
                    Ok(self.grid.meeting.ptr() as u64 + offset)
                } else {
                    Err(())
                }
            }
            _ => Err(()),
        }
    }

    /// The host address of a range in the shared memory of a block of the cluster, which has its place after the
    /// block's own: see [`SHARED_SPAN`].
    #[cold]
    fn distributed(&self, place: u64, len: u64) -> Result<u64, ()> {
        let (slot, offset) = (place / SHARED_SPAN, place % SHARED_SPAN);
        let rank = slot
            .checked_sub(1)
            .and_then(|rank| usize::try_from(rank).ok());
        let memory = rank
            .and_then(|rank| self.cluster.shared.get(rank))
            .ok_or(())?;
        let fits = len <= self.shared_bytes && offset <= self.shared_bytes - len;
        if fits {
            Ok(memory.ptr() as u64 + offset)
        } else {
            Err(())
        }
    }

    /// Reads bytes at a generic address for one lane; `None` if it may not.
    pub(crate) fn read_bytes(&self, lane: usize, address: u64, into: &mut [u8]) -> Option<()> {
        let len = into.len() as u64;
        let host = if in_window(address, LOCAL_BASE) {
            self.local_host(address - LOCAL_BASE, lane, len)
        } else {
            self.host(address, StateSpace::Generic, len, false)
        };
        // SAFETY: tested for this lane, as `access` asks; the slice is ours.
        unsafe { access::copy_in(into.as_mut_ptr(), host.ok()?, into.len()) };
        Some(())
    }

    /// Writes bytes at a generic address for one lane; `None` if it may not.
    pub(crate) fn write_bytes(&self, lane: usize, address: u64, from: &[u8]) -> Option<()> {
        let len = from.len() as u64;
        let host = if in_window(address, LOCAL_BASE) {
            self.local_host(address - LOCAL_BASE, lane, len)
        } else {
            self.host(address, StateSpace::Generic, len, true)
        };
        // SAFETY: tested for this lane, as `access` asks; the slice is ours.
        unsafe { access::copy_out(host.ok()?, from.as_ptr(), from.len()) };
        Some(())
    }

    /// The tested host address of one lane.
    #[inline(always)]
    pub(crate) fn tested(&self, tested: Tested, lane: usize, size: usize) -> u64 {
        match tested {
            Tested::One(host) => host,
            Tested::Row(host) => host + ((lane - self.low * STRIP) * size) as u64,
            Tested::Each => self.scratch.lane::<u64>(Self::ADDRESSES as usize, lane),
        }
    }

    /// Copies a row of `bytes` for each running lane into a slot.
    #[inline(always)]
    pub(crate) fn copy_row_in(&mut self, slot: u32, host: u64, bytes: usize) {
        let len = (self.high - self.low) * STRIP * bytes;
        let to = self.frame.at(slot as usize + self.low * STRIP * bytes, len);
        // SAFETY: `addresses` tested the row for reading; `at` has tested that the slot has as many bytes.
        unsafe { access::copy_in(to, host, len) };
    }

    /// Copies a slot's running lanes to a row.
    #[inline(always)]
    pub(crate) fn copy_row_out(&mut self, slot: u32, host: u64, bytes: usize) {
        let len = (self.high - self.low) * STRIP * bytes;
        let from = self.frame.at(slot as usize + self.low * STRIP * bytes, len);
        // SAFETY: `addresses` tested the row for writing; `at` has tested that the slot has as many bytes.
        unsafe { access::copy_out(host, from, len) };
    }
}

/// Whether a generic address lies in the window at `base`.
pub(crate) fn in_window(address: u64, base: u64) -> bool {
    address.wrapping_sub(base) < WINDOW
}

/// The space of generic addresses from `min` to `max`, if it is one.
fn home(min: u64, max: u64) -> Option<StateSpace> {
    for (base, place) in [
        (SHARED_BASE, StateSpace::Shared),
        (LOCAL_BASE, StateSpace::Local),
        (PARAM_BASE, StateSpace::Param),
    ] {
        if in_window(min, base) && in_window(max, base) {
            return Some(place);
        }
    }
    let fake = SHARED_BASE..PARAM_BASE + WINDOW;
    let apart = max < fake.start || min >= fake.end;
    apart.then_some(StateSpace::Global)
}
