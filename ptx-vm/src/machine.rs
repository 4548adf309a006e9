//! The machine that a path of lanes runs on: its operations, its state while it runs, and the loop
//! that steps it. It knows lanes and masks, not how paths are chosen ([`super::lane_group`] does).
//!
//! Called by `lane_group`; every function of `ops` is given one.

use super::fault::FaultKind;
use super::grid::{ClusterPlace, Grid};
use super::limits::MAX_GROUP_LANES;
use super::mask::Mask;
use super::program::Program;
use super::reach::Reach;
use super::regs::{Bytes, Frame, STRIP};

/// A compiled operation: one cache line.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Op {
    /// What runs it.
    pub(crate) run: OpFn,
    /// A constant of the operation; which, its function says.
    pub(crate) imm: u64,
    /// The scalar function of an operation that goes lane by lane.
    pub(crate) cold: Option<ColdFn>,
    /// Slots written: byte offsets in the frame.
    pub(crate) d: [u32; 4],
    /// Slots read.
    pub(crate) s: [u32; 5],
    /// Bits 0..5: the source differs between lanes; bits 8..12: the destination does.
    pub(crate) varying: u16,
    /// Widths of a lane in bytes: the destination's, and the sources' where a function needs them.
    pub(crate) width: [u8; 2],
}

/// What runs an operation. Unsafe to call only for the vector unit that it may be compiled for.
pub(crate) type OpFn = unsafe fn(&mut Machine<'_>, &Op) -> Flow;
/// One lane of an operation that is not worth vectors: operands zero-extended, and [`Op::imm`].
pub(crate) type ColdFn = fn(u64, u64, u64, u64) -> u64;

impl Op {
    #[inline(always)]
    pub(crate) fn varies(&self, source: usize) -> bool {
        self.varying >> source & 1 != 0
    }

    #[inline(always)]
    pub(crate) fn writes_varying(&self, destination: usize) -> bool {
        self.varying >> (8 + destination) & 1 != 0
    }
}

/// What comes after an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// The next operation.
    Next,
    /// This operation.
    Jump(u32),
    /// The scheduler looks at [`Machine::event`].
    Stop,
}

/// Why a path stopped.
#[derive(Clone, Debug, Default)]
pub(crate) enum Event {
    /// Not stopped.
    #[default]
    None,
    /// It reached the start of the block, and others may be before it.
    Boundary(u32),
    /// It took a back-edge to the block, and its time slice or its budget is used up.
    BackEdge(u32),
    /// Its lanes disagree: those of the mask go to the first block, the others to the second.
    Split { taken: Mask, to: u32, other: u32 },
    /// Its lanes go to several blocks.
    Scatter(Vec<(Mask, u32)>),
    /// It waits at a barrier and goes on at the block.
    Barrier { arrival: Arrival, next: u32 },
    /// Not all lanes that the operation wants are here; these are the lanes that can do it. The others wait for lanes
    /// of so many warps, aligned to as many.
    Warp { ready: Mask, warps: usize },
    /// It calls a function and goes on at the block.
    Call { site: u32, next: u32 },
    /// It calls several functions through a pointer.
    CallEach {
        site: u32,
        next: u32,
        groups: Vec<(Mask, u32)>,
    },
    /// What it asked for is to be asked for again, once others have run.
    Later,
    /// Return from a function, or the end of an entry.
    Return,
    /// Its lanes end.
    Exit,
    /// A lane did something wrong.
    Fault {
        kind: FaultKind,
        address: u64,
        lane: usize,
        /// The line of the PTX, if the operation has several.
        line: Option<u32>,
    },
}

/// The barrier of a cluster, after the block's own 16.
pub(crate) const CLUSTER_BARRIER: u8 = 16;

/// How a path arrives at a block's barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrival {
    /// Number of the barrier, 0..16, or [`CLUSTER_BARRIER`].
    pub(crate) id: u8,
    /// Threads that it wants, a multiple of 32; 0 for all of the block.
    pub(crate) count: u32,
    /// `barrier.arrive`: goes on at once.
    pub(crate) arrive_only: bool,
    /// `bar.red`: what is reduced, with the slots of source and destination.
    pub(crate) reduce: Option<Reduce>,
}

/// A reduction at a barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reduce {
    /// What is computed of the predicates.
    pub(crate) op: ReduceOp,
    /// The arriving lanes whose predicate holds.
    pub(crate) holds: Mask,
    /// Slot of the destination, varying.
    pub(crate) destination: u32,
    /// Bytes of a lane of it.
    pub(crate) width: u8,
}

/// What `bar.red` computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReduceOp {
    And,
    Or,
    Popc,
}

/// What a running path sees.
pub(crate) struct Machine<'a> {
    /// The program.
    pub(crate) program: &'a Program,
    /// What its block shares with all of the grid.
    pub(crate) grid: &'a Grid,
    /// Registers of the current function.
    pub(crate) frame: Frame,
    /// Where masked operations compute first, and addresses: see [`Machine::SCRATCH_BYTES`].
    pub(crate) scratch: Frame,
    /// The block's shared memory.
    pub(crate) shared: &'a Bytes,
    /// The block's place in its cluster, and the shared memory of the others there.
    pub(crate) cluster: &'a ClusterPlace<'a>,
    /// Bytes of shared memory that each block may use.
    pub(crate) shared_bytes: u64,
    /// The lane group's local memory, all bytes of a thread together.
    pub(crate) local: &'a Bytes,
    /// The last error of each lane's calls of the device runtime, if the program calls it.
    pub(crate) errors: Frame,
    /// Bytes of local memory of a thread.
    pub(crate) local_stride: u32,
    /// Where the current function's frame starts in a thread's local memory.
    pub(crate) local_base: u32,
    /// The block's index.
    pub(crate) block_index: [u32; 3],
    /// What `%smid` reads.
    pub(crate) sm: u32,
    /// The lane group's first thread.
    pub(crate) first_thread: u32,
    /// Lanes that have not exited.
    pub(crate) live: Mask,
    /// Lanes that run.
    pub(crate) mask: Mask,
    /// All live lanes run: arithmetic may write every lane.
    pub(crate) full: bool,
    /// The strips with lanes that run.
    pub(crate) low: usize,
    /// See `low`.
    pub(crate) high: usize,
    /// The lanes without the guard of the current instruction.
    pub(crate) unguarded: Mask,
    /// The last segment that may do so has decided what its predicates are in the whole block ([`Reach::decides`]).
    pub(crate) decided: bool,
    /// Blocks from this one on end the run: another path of the lane group may stand before them.
    pub(crate) limit: u32,
    /// The block `limit`, if the path there waits for nothing but its turn: lanes that come there join it at once.
    pub(crate) meeting: u32,
    /// The lanes that have joined it.
    pub(crate) joined: Mask,
    /// All of the block's threads that have not exited are here, and none has arrived at a barrier.
    pub(crate) alone: bool,
    /// Other paths exist.
    pub(crate) diverged: bool,
    /// Warp operations do not wait for lanes that are not here.
    pub(crate) force: bool,
    /// What is left to spend.
    pub(crate) budget: i64,
    /// Back-edges left until another path gets a time slice.
    pub(crate) slice_left: u32,
    /// Block boundaries in the divergent code until the lane group tries the convergent one again.
    pub(crate) reconvergence_delay: u32,
    /// What segments may read without asking.
    pub(crate) reach: &'a mut Reach,
    /// Why it stopped.
    pub(crate) event: Event,
}

impl Machine<'_> {
    /// Bytes of scratch: a slot of 64-bit lanes for results, one for addresses, and one for the registers of a segment
    /// that asks for something.
    pub(crate) const SCRATCH_BYTES: usize = 3 * Self::SLOT;
    /// Bytes of the widest slot.
    const SLOT: usize = MAX_GROUP_LANES * 8;
    /// Offset of the addresses in scratch.
    pub(crate) const ADDRESSES: u32 = Self::SLOT as u32;
    /// Offset of a segment's registers in scratch.
    pub(crate) const SPILL: u32 = 2 * Self::SLOT as u32;

    /// Chooses the lanes that run.
    pub(crate) fn set_mask(&mut self, mask: Mask) {
        self.mask = mask;
        (self.low, self.high) = mask.strips();
        self.full = mask == self.live;
    }

    /// Makes it, after all lanes have exited, the machine of these lanes of another block.
    pub(crate) fn begin(&mut self, block_index: [u32; 3], lanes: Mask, slice: u32) {
        self.block_index = block_index;
        self.reach.block_index = block_index;
        self.event = Event::None;
        // What is written in words and read in vectors makes a processor wait.
        if self.live != lanes {
            self.live = lanes;
            self.set_mask(lanes);
        }
        self.unguarded = self.mask;
        self.force = false;
        self.slice_left = slice;
        self.reconvergence_delay = 0;
        self.budget -= 1;
    }

    /// Whether every lane of strips `low..high` runs.
    pub(crate) fn whole(&self) -> bool {
        self.mask.count() as usize == (self.high - self.low) * STRIP
    }

    /// Steps until something stops the path. Returns the position of the operation that did.
    pub(crate) fn run(&mut self, mut pc: u32) -> u32 {
        let ops = &self.program.ops;
        loop {
            let op = &ops[pc as usize];
            // SAFETY: `Program` is only made with functions for a vector unit that this machine has
            // (`Isa::best` or `Isa::available`).
            match unsafe { (op.run)(self, op) } {
                Flow::Next => pc += 1,
                Flow::Jump(to) => pc = to,
                Flow::Stop => return pc,
            }
        }
    }

    /// Stops with an event.
    #[cold]
    #[inline(never)]
    pub(crate) fn stop(&mut self, event: Event) -> Flow {
        self.event = event;
        Flow::Stop
    }

    /// Stops with a fault of one lane.
    #[cold]
    #[inline(never)]
    pub(crate) fn fault(&mut self, kind: FaultKind, address: u64, lane: usize) -> Flow {
        self.stop(Event::Fault {
            kind,
            address,
            lane,
            line: None,
        })
    }
}
