//! What a segment's code may read and write without asking, and whom it asks about everything else.
//!
//! An access is inside if its first byte is below a limit, counted from where memory begins; the limits leave room for
//! all bytes of the longest access. A segment's code makes that comparison for a strip of lanes at once. For a strip with a
//! lane that is not inside, it asks (`segment::ask`); what is found readable around an address is remembered for the grid.
//!
//! Made for each lane group, and anew when memory was freed; read by machine code at the offsets that stand here. Must not know instructions of a
//! processor, nor who asks.

use std::ffi::c_void;
use std::mem::offset_of;
use std::ptr::null_mut;
use std::sync::OnceLock;

use super::limits::MAX_GROUP_LANES;
use super::mask::Mask;
use super::memory::AddressSpace;
use super::regs::{Bytes, STRIP};

/// Loads and stores of global memory are told apart by their number modulo this: each finds its own array. A kernel has its accesses up to
/// three times (for lanes together, apart, and in loops), and two of different arrays with one number ask in each block.
pub(crate) const RANGES: usize = 32;
/// The longest row that is read at once, and what limits leave free at the end.
pub(crate) const LONGEST: u64 = 256;

/// Bytes of words that are near each other: two vectors have them (`segment::near`).
pub(crate) const NEAR: usize = 128;
/// Groups of loads that a segment can have.
pub(crate) const GROUPS: usize = 4;
/// Accesses that a segment can know to be rows before its first strip.
pub(crate) const ROWS: usize = 8;
/// Predicates that a segment can decide before its first strip.
pub(crate) const DECIDED: usize = 16;
/// Blocks that a loop can have which is machine code.
pub(crate) const LOOP_BLOCKS: usize = 15;
/// Places in such a loop, or in several that are one operation, at which lanes can be that have not left it.
pub(crate) const PLACES: usize = 3;
/// The most loops in a row that are not tried as searches.
const MOST_PASSED_OVER: u32 = 1 << 16;
/// Strips of a lane group.
const STRIPS: usize = MAX_GROUP_LANES / STRIP;

/// A part of global memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Range {
    pub(crate) first: u64,
    /// How far from `first` an access may begin; 0 if nothing is known.
    pub(crate) limit: u64,
}

/// What a grid's blocks have found readable, and the generation of memory in which they did.
#[derive(Debug, Default)]
pub(crate) struct Readable([OnceLock<(Range, u64)>; RANGES]);

/// Who loads or stores for a strip what is not inside: given the machine, the access, the strip, and facts of it. 0 if all
/// went well.
pub(crate) type Helper = unsafe extern "sysv64" fn(*mut c_void, u64, u64, u64) -> u64;

/// See the module. The layout is what segments' code is made for.
#[repr(C, align(64))]
#[derive(Debug)]
pub(crate) struct Reach {
    /// Where a segment's code keeps the addresses of a strip. Whole cache lines: a processor reads parts of a vector that was
    /// just stored at once only if the vector lies in one line, else it waits for all stores before it.
    kept: [u64; STRIP],
    /// Host address of shared memory.
    shared: u64,
    /// The machine that runs the segment, as the helper knows it.
    pub(crate) machine: *mut c_void,
    /// Who is asked.
    pub(crate) helper: Helper,
    /// Where addresses, results and registers are kept meanwhile.
    pub(crate) scratch: *mut u8,
    ranges: [Range; RANGES],
    /// By the logarithm of an access's bytes: below which address of shared memory it may begin.
    limits: [u32; 9],
    /// How the addresses of a segment's groups of loads lie in the strip that it does (`segment::group`).
    classes: [u32; GROUPS],
    /// Where the elements begin of a segment's accesses that are known to be rows (`segment::rows`).
    rows: [u64; ROWS],
    /// Predicates of a block (`segment::decided`).
    decided: [u32; DECIDED],
    /// The index of the block that runs.
    pub(crate) block_index: [u32; 3],
    /// The lanes of a strip that asks.
    running: u16,
    /// Of each block of a loop that is machine code, the lanes of a strip that are before it (`segment::repeat`).
    before: [u16; LOOP_BLOCKS + 1],
    /// Of each strip, the lanes that have not left such a loop, by where they are.
    left: [[u16; STRIPS]; PLACES],
    /// How many turns of a strip may still be made.
    turns: u32,
    /// Not zero if there are lanes of several loops (`segment::scalar`) that have not left them.
    some_left: u32,
    /// Where a lane's code stores what is not to be stored anywhere (`segment::unguarded`).
    nowhere: u64,
    /// Of a strip's lanes that go through a row of turns, where they begin and end, and one that leads out behind them
    /// (`segment::straight`); where the next one is to be, and the lanes that are to be looked at.
    records: [[u64; 4]; STRIP + 1],
    next_record: u64,
    scan: u32,
    /// The generation of memory that the ranges are of.
    generation: u64,
    /// How many times searches are still done as any other loop, and how many it is after the next one that is refused.
    passed_over: u32,
    passes_over: u32,
}

// SAFETY: its pointers are made anew, by the thread that runs the lane group, each time before they are used
// (`Machine::ready_reach`).
unsafe impl Send for Reach {}
// SAFETY: a shared reference gives none of the pointers to read or write by.
unsafe impl Sync for Reach {}

impl Reach {
    pub(crate) const KEPT: usize = offset_of!(Self, kept);
    pub(crate) const SHARED: usize = offset_of!(Self, shared);
    pub(crate) const MACHINE: usize = offset_of!(Self, machine);
    pub(crate) const HELPER: usize = offset_of!(Self, helper);
    pub(crate) const SCRATCH: usize = offset_of!(Self, scratch);
    pub(crate) const RUNNING: usize = offset_of!(Self, running);
    pub(crate) const TURNS: usize = offset_of!(Self, turns);
    pub(crate) const SOME_LEFT: usize = offset_of!(Self, some_left);
    pub(crate) const RECORDS: usize = offset_of!(Self, records);
    pub(crate) const NEXT_RECORD: usize = offset_of!(Self, next_record);
    pub(crate) const SCAN: usize = offset_of!(Self, scan);
    pub(crate) const NOWHERE: usize = offset_of!(Self, nowhere);

    /// Where the lanes stand that are before a block of a loop; after the last block, those before the next turn.
    pub(crate) fn before(block: usize) -> usize {
        offset_of!(Self, before) + 2 * (block % (LOOP_BLOCKS + 1))
    }

    /// Where the lanes stand of the first strip that are at a place of a loop.
    pub(crate) fn left_at(place: usize) -> usize {
        offset_of!(Self, left) + size_of::<[u16; STRIPS]>() * (place % PLACES)
    }

    /// The lanes of a strip that asks.
    pub(crate) fn running(&self) -> u16 {
        self.running
    }

    /// A loop begins, of which so many turns of strips may be made.
    pub(crate) fn begin_loop(&mut self, turns: u32) {
        // A fault may have left some.
        self.before.fill(0);
        self.turns = turns;
        self.some_left = 0;
        self.left = [[0; STRIPS]; PLACES];
    }

    /// Whether lanes have not left several loops.
    pub(crate) fn some_left(&self) -> bool {
        self.some_left != 0
    }

    /// A search begins, of which so many turns of strips may be made.
    pub(crate) fn begin_search(&mut self, turns: u32) {
        self.turns = turns;
    }

    /// Whether a search is done as any other loop this time: those before it were refused, and that may be so again.
    pub(crate) fn passes_over(&mut self) -> bool {
        let passes = self.passed_over > 0;
        self.passed_over = self.passed_over.saturating_sub(1);
        passes
    }

    /// Whether a search was done. Each refusal in a row costs the next ones twice as long a wait.
    pub(crate) fn searched(&mut self, done: bool) {
        if done {
            self.passes_over = 1;
        } else {
            self.passed_over = self.passes_over;
            self.passes_over = (self.passes_over * 2).min(MOST_PASSED_OVER);
        }
    }

    /// How many turns of strips may still be made.
    pub(crate) fn turns(&self) -> u32 {
        self.turns
    }

    /// The lanes of strips `low..high` that have not left a loop and are at a place of it, which is its beginning for the first one.
    pub(crate) fn left(&self, place: usize, low: usize, high: usize) -> Mask {
        let mut mask = Mask::default();
        for strip in low..high.min(STRIPS) {
            mask.add_strip(strip, self.left[place % PLACES][strip]);
        }
        mask
    }

    /// Where the limit of accesses of `bytes`, a power of two up to 256, stands.
    pub(crate) fn limit(bytes: usize) -> usize {
        offset_of!(Self, limits) + 4 * bytes.trailing_zeros() as usize
    }

    /// Where the range of load number `load` stands: its first address, and its limit.
    pub(crate) fn range(load: usize) -> (usize, usize) {
        let at = offset_of!(Self, ranges) + size_of::<Range>() * (load % RANGES);
        (at + offset_of!(Range, first), at + offset_of!(Range, limit))
    }

    /// Where a segment's code keeps how the addresses of a group lie.
    pub(crate) fn class(group: usize) -> usize {
        offset_of!(Self, classes) + 4 * (group % GROUPS)
    }

    /// Where the place of the first element of an access stands that is known to be a row.
    pub(crate) fn row(number: usize) -> usize {
        offset_of!(Self, rows) + 8 * (number % ROWS)
    }

    /// Where a predicate stands that is the same in all lanes of a block.
    pub(crate) fn decided(number: usize) -> usize {
        offset_of!(Self, decided) + 4 * (number % DECIDED)
    }

    /// Where the block's index along an axis stands.
    pub(crate) fn block_index(axis: u8) -> usize {
        offset_of!(Self, block_index) + 4 * usize::from(axis % 3)
    }

    /// A predicate that was decided for the whole block.
    pub(crate) fn decides(&self, number: u32) -> bool {
        self.decided[number as usize % DECIDED] != 0
    }

    /// Of a block with so many bytes of shared memory.
    pub(crate) fn new(
        readable: &Readable,
        memory: &AddressSpace,
        shared: &Bytes,
        bytes: u32,
    ) -> Self {
        let limit = |log: usize| (bytes + 1).saturating_sub(1 << log);
        let generation = memory.generation();
        let range = |known: &OnceLock<(Range, u64)>| match known.get() {
            Some((range, then)) if *then == generation => *range,
            _ => Range::default(),
        };
        Self {
            kept: [0; STRIP],
            shared: shared.ptr() as u64,
            machine: null_mut(),
            helper: refuse,
            scratch: null_mut(),
            ranges: std::array::from_fn(|index| range(&readable.0[index])),
            limits: std::array::from_fn(limit),
            classes: [0; GROUPS],
            rows: [0; ROWS],
            decided: [0; DECIDED],
            block_index: [0; 3],
            running: 0,
            before: [0; LOOP_BLOCKS + 1],
            left: [[0; STRIPS]; PLACES],
            turns: 0,
            some_left: 0,
            nowhere: 0,
            records: [[0; 4]; STRIP + 1],
            next_record: 0,
            scan: 0,
            generation,
            passed_over: 0,
            passes_over: 1,
        }
    }

    /// Whether what it knows is still so: nothing of the memory has been freed since.
    pub(crate) fn holds(&self, memory: &AddressSpace) -> bool {
        self.generation == memory.generation()
    }

    /// Whether load number `load` may begin at an address without asking, as far as it is known.
    pub(crate) fn knows(&self, load: usize, address: u64) -> bool {
        let range = self.ranges[load % RANGES];
        address.wrapping_sub(range.first) < range.limit
    }

    /// Load number `load` may read a range of global memory, which was found in a generation of it.
    pub(crate) fn learn(
        &mut self,
        readable: &Readable,
        load: usize,
        range: Range,
        generation: u64,
    ) {
        self.ranges[load % RANGES] = range;
        // Another thread may have been first: then its range is the grid's.
        let _ = readable.0[load % RANGES].set((range, generation));
    }
}

/// Nobody is asked before a segment runs.
unsafe extern "sysv64" fn refuse(_: *mut c_void, _: u64, _: u64, _: u64) -> u64 {
    1
}

impl Range {
    /// What may be read around an address; nothing if it is too little to be worth it.
    pub(crate) fn around(memory: &AddressSpace, address: u64) -> Self {
        let Some((start, bytes)) = memory.around(address) else {
            return Self::default();
        };
        // Alignment is seen in the distance from the first address.
        let first = start.next_multiple_of(LONGEST);
        let limit = bytes.saturating_sub(first - start + LONGEST - 1);
        Self { first, limit }
    }
}
