//! What a segment's code asks for when a strip's addresses are not all where they may be: a load or a store lane by lane.
//!
//! Called by machine code that `transfer` made. Must not panic: no frame of that code can be unwound.

use std::ffi::c_void;

use crate::access::Cell;
use crate::fault::FaultKind;
use crate::machine::{Event, Machine};
use crate::reach::{LONGEST, Range, Reach};
use crate::regs::STRIP;
use crate::spaces::{GRID_BASE, LOCAL_BASE, SHARED_BASE, StateSpace, WINDOW, in_window, unpack};

/// What [`transfer_lanes`] has to know of a load or a store beside its access.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TransferFacts {
    /// Bytes of an element: 1, 2, 4 or 8; narrow ones stand in 32 bits.
    pub(crate) element: u8,
    pub(crate) stores: bool,
    /// It adds what it stores.
    pub(crate) sums: bool,
    /// Its number, by which it has a range.
    pub(crate) number: u8,
    /// Of the PTX.
    pub(crate) line: u32,
}

impl TransferFacts {
    pub(crate) fn pack(self) -> u64 {
        u64::from(self.line) << 32
            | u64::from(self.sums) << 17
            | u64::from(self.stores) << 16
            | u64::from(self.number) << 8
            | u64::from(self.element)
    }

    fn unpack(word: u64) -> Self {
        Self {
            element: word as u8,
            stores: word >> 16 & 1 != 0,
            sums: word >> 17 & 1 != 0,
            number: (word >> 8) as u8,
            line: (word >> 32) as u32,
        }
    }
}

impl Machine<'_> {
    /// Gets ready for a segment's code; returns what it is given.
    pub(crate) fn ready_reach(&mut self) -> *mut Reach {
        self.reach.helper = transfer_lanes;
        self.reach.scratch = self.scratch.at(0, Self::SCRATCH_BYTES);
        let machine: *mut Self = self;
        // SAFETY: the pointer is our own reference.
        unsafe {
            (*machine).reach.machine = machine.cast();
            &raw mut *(*machine).reach
        }
    }

    /// Moves the elements of a strip's running lanes, whose addresses stand in scratch, to or from the front of scratch:
    /// 16 of the first elements, then of the second ones. Whether all could be; if not, there is a fault to be told.
    fn transfer_lanes(&mut self, access: u64, strip: usize, facts: TransferFacts) -> bool {
        let access = unpack(access);
        let element = usize::from(facts.element);
        let size = (element * access.count) as u64;
        let slot = Self::ADDRESSES as usize;
        let running = self.reach.running();
        let mut last = None;
        for lane in (0..STRIP).filter(|lane| running >> lane & 1 != 0) {
            let address = if access.wide {
                let base = self.scratch.lane::<u64>(slot, lane);
                base.wrapping_add_signed(access.offset)
            } else {
                let base = u64::from(self.scratch.lane::<u32>(slot, lane));
                base.wrapping_add_signed(access.offset) & 0xffff_ffff
            };
            let thread = strip * STRIP + lane;
            let host = match self.reached(address, access.place, thread, size, facts.stores) {
                Ok(host) => host,
                Err(kind) => {
                    self.fault(kind, address, thread);
                    if let Event::Fault { line, .. } = &mut self.event {
                        *line = Some(facts.line);
                    }
                    return false;
                }
            };
            for index in 0..access.count {
                let (at, host) = (index * STRIP + lane, host + (index * element) as u64);
                // SAFETY: `reached` tested all elements of the access, and its alignment.
                unsafe {
                    match (facts.stores, element) {
                        (false, 1) => self.scratch.set_lane(0, at, u32::from(u8::load(host))),
                        (false, 2) => self.scratch.set_lane(0, at, u32::from(u16::load(host))),
                        (true, 1) => u8::store(host, self.scratch.lane::<u32>(0, at) as u8),
                        (true, 2) => u16::store(host, self.scratch.lane::<u32>(0, at) as u16),
                        (false, 4) => self.scratch.set_lane(0, at, u32::load(host)),
                        (false, _) => self.scratch.set_lane(0, at, u64::load(host)),
                        // Whoever else reaches shared memory runs on this thread.
                        (true, 4) if facts.sums => {
                            let sum = u32::load(host).wrapping_add(self.scratch.lane(0, at));
                            u32::store(host, sum);
                        }
                        (true, 4) => u32::store(host, self.scratch.lane(0, at)),
                        (true, _) => u64::store(host, self.scratch.lane(0, at)),
                    }
                }
            }
            last = Some(address);
        }
        if let (Some(address), StateSpace::Global | StateSpace::Generic) = (last, access.place) {
            self.learn(address, facts.number);
        }
        true
    }

    /// Remembers what of global memory may be reached around an address.
    fn learn(&mut self, address: u64, number: u8) {
        if self.reach.knows(number.into(), address) {
            return;
        }
        let grid = self.grid;
        let generation = grid.memory.generation();
        let range = Range::around(&grid.memory, address);
        // A generic address among those of other spaces means those, whatever memory there is.
        let end = range.first + range.limit + LONGEST;
        let is_apart = end <= SHARED_BASE || range.first >= GRID_BASE + WINDOW;
        if range.limit > 0 && is_apart {
            self.reach
                .learn(&grid.readable, number.into(), range, generation);
        }
    }

    /// The host address of one lane's access.
    fn reached(
        &self,
        address: u64,
        place: StateSpace,
        lane: usize,
        size: u64,
        write: bool,
    ) -> Result<u64, FaultKind> {
        let local = match place {
            StateSpace::Local => Some(address),
            StateSpace::Generic if in_window(address, LOCAL_BASE) => Some(address - LOCAL_BASE),
            _ => None,
        };
        let host = match local {
            Some(offset) => self.local_host(offset, lane, size),
            None => self.host(address, place, size, write),
        };
        match host {
            Err(()) => Err(FaultKind::IllegalAddress),
            Ok(_) if address & (size - 1) != 0 => Err(FaultKind::MisalignedAddress),
            Ok(host) => Ok(host),
        }
    }
}

/// [`Machine::transfer_lanes`] as machine code calls it; 0 if all went well.
///
/// # Safety
/// The machine is the one that runs the segment, and nobody else has it meanwhile.
unsafe extern "sysv64" fn transfer_lanes(
    machine: *mut c_void,
    access: u64,
    strip: u64,
    facts: u64,
) -> u64 {
    // SAFETY: the caller's: it is the machine that was made ready.
    let machine = unsafe { &mut *machine.cast::<Machine<'_>>() };
    u64::from(!machine.transfer_lanes(access, strip as usize, TransferFacts::unpack(facts)))
}
