//! Loops that lanes leave as soon as each has found something, as machine code for AVX-512: a strip makes all its turns before the next
//! one begins.
//!
//! All lanes begin such a loop together and nobody comes back, so those that are still in it have made the same turns: a counter is one
//! number for the strip, in a general register, and stays one however many have left. An element's index is a counter and a number that
//! each lane has kept from before; whether the latter follow each other is asked once for a strip, and then each turn's elements are one
//! vector. A turn that all make costs a jump that a processor foretells; only where a strip's last lane leaves it does not.
//!
//! Nothing that the loop reads is written before it is over. So whatever is not as expected (an access that is not known to be inside,
//! elements that are no row, too many turns) ends the code at once, and the loop is done as any other one, from its beginning.
//!
//! Called by `segment`. Must not know why a loop may be such code: that is `emit::search`'s.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use super::allocate::{Allocator, CachedRegister, Facts, NEVER};
use super::branch::{Label, When};
use super::encode::{self, Assembler, Base, Opcode, Rm, opcode};
use super::general::{Place, RAX, RDX, RSI, op, when};
use super::plan::{self, Indexed};
use super::rows::Rows;
use super::shared::Shared;
use super::step::{Known, RegisterSlot, SegmentStep};
use super::tag::{Compared, Tag};
use super::transfer::{
    BROADCAST_32, BROADCAST_EAX, BROADCAST_RAX, COMPARE_32, FIRST_32, LOWER, TEST_32,
};
use crate::ir::Reg;
use crate::isa::Target;
use crate::reach::Reach;
use crate::spaces::unpack;

/// A loop whose blocks follow each other: of each block lanes go on to the next one, or leave the loop.
pub(crate) struct Search {
    pub(crate) blocks: Vec<SearchBlock>,
    /// Registers that a turn reads from before it.
    pub(crate) read: HashSet<Reg>,
    /// Those of 32 bits that lanes share, and that each needs as they were when it left: with where these are to lie, lane by lane.
    pub(crate) needed: Vec<(Reg, u32)>,
}

/// A block of it.
pub(crate) struct SearchBlock {
    pub(crate) steps: Vec<SegmentStep>,
    /// The predicate by which lanes stay, and what it is in those; `None` if all do.
    pub(crate) stays: Option<(Reg, bool)>,
}

/// The most registers that each lane needs as it left.
pub(crate) const NEEDED: usize = 2;
/// What the code returns if the loop is to be done as any other one.
const REFUSED: u64 = 2;

/// The general registers for what lanes share. A function must leave them as they were.
const GENERAL: [u8; 6] = [3, 5, 12, 13, 14, 15];
/// The most registers of the program that a block has in vectors: so none has to make way for another one.
const MOST_REGISTERS: usize = 10;

/// A row of elements: where its index comes from.
#[derive(Clone, Copy)]
struct SearchRow {
    indexed: Indexed,
    /// What each lane has, and what they share.
    lanes: Reg,
    shared: Reg,
}

/// The code under way.
struct Code<'a> {
    search: &'a Search,
    shared: Shared<'a>,
    slot_of: &'a dyn Fn(Reg) -> RegisterSlot,
    constant_of: &'a dyn Fn(Reg) -> Option<u64>,
    /// The registers for what the first lane of a strip has of the numbers that rows are made of.
    starts: HashMap<Reg, u8>,
    /// All registers that the loop writes.
    written: HashSet<Reg>,
    out: Assembler,
    refused: Label,
    done: Label,
    /// Loads so far.
    transfers: usize,
}

/// Compiles such a loop, as [`super::compile`] does a segment. `None` if there is something in it that is not foreseen.
pub(crate) fn compile(
    search: &Search,
    known: &Known<'_>,
    target: Target,
    first: usize,
) -> Option<Vec<u8>> {
    let mut code = Code::new(search, known, target, first)?;
    GENERAL.iter().for_each(|&register| code.out.push(register));
    code.out.set_reach();
    let top = code.out.open(false);
    let mut over = Label::default();
    code.out.lanes_of_strip();
    code.out.test_eax();
    code.out.jump(When::Zero, &mut over);
    code.out.run_eax();
    code.begin()?;
    let turn = code.out.code.len();
    for block in &search.blocks {
        code.block(block)?;
    }
    code.out.count_down(Reach::TURNS);
    code.out.jump(When::Zero, &mut code.refused);
    code.out.jump_back(turn);
    let done = std::mem::take(&mut code.done);
    code.out.bind(done);
    for (at, (_, offset)) in search.needed.iter().enumerate() {
        let offset = i32::try_from(*offset).ok()?;
        // All lanes of the strip that there are have left with it: nobody looks at the others.
        code.out.store(left(at), Base::R8, offset, false, 0);
    }
    code.out.bind(over);
    Some(code.finish(top))
}

/// The vector with what lanes had in a needed register as they left: none that the allocator has.
fn left(at: usize) -> u8 {
    31 - at as u8
}

impl<'a> Code<'a> {
    fn new(
        search: &'a Search,
        known: &Known<'a>,
        target: Target,
        transfers: usize,
    ) -> Option<Self> {
        let steps = || search.blocks.iter().flat_map(|block| &block.steps);
        let Known {
            slot_of,
            constant_of,
            ..
        } = *known;
        let mut code = Self {
            search,
            shared: Shared::new(slot_of, constant_of),
            slot_of,
            constant_of,
            starts: HashMap::new(),
            written: steps().flat_map(|step| step.d.iter().copied()).collect(),
            out: Assembler::new(target.isa),
            refused: Label::default(),
            done: Label::default(),
            transfers,
        };
        let mut free = GENERAL.into_iter();
        for (number, block) in search.blocks.iter().enumerate() {
            for (at, step) in block.steps.iter().enumerate() {
                let &[reg] = step.d.as_slice() else {
                    return None;
                };
                let has_home = code.shared.homes.contains_key(&reg);
                if code.varies(reg) {
                    // It is a number of this block and turn.
                    let others = search.blocks.iter().enumerate();
                    let mut others = others.filter(|(other, _)| *other != number);
                    if search.read.contains(&reg) || others.any(|(_, block)| block.reads(reg)) {
                        return None;
                    }
                } else if !has_home && !code.only_branches(block, at) {
                    code.shared.homes.insert(reg, free.next()?);
                }
            }
            let rows = code.indexed(block);
            for at in 0..block.steps.len() {
                if code.is_row(&block.steps[at]) {
                    let row = code.row(block, &rows, at)?;
                    if let Entry::Vacant(start) = code.starts.entry(row.lanes) {
                        start.insert(free.next()?);
                    }
                }
            }
        }
        Some(code)
    }

    fn varies(&self, reg: Reg) -> bool {
        (self.slot_of)(reg).varying
    }

    /// Whether a step loads what each lane has another one of.
    fn is_row(&self, step: &SegmentStep) -> bool {
        step.access.1 != 0 && self.varies(step.d[0])
    }

    /// Whether a step is a comparison of what lanes share, of which only the branch behind it wants to know.
    fn only_branches(&self, block: &SearchBlock, at: usize) -> bool {
        let step = &block.steps[at];
        let reg = step.d[0];
        let mut reads = self.search.blocks.iter().flat_map(|block| &block.steps);
        let branches = self.search.blocks.iter();
        let mut needed = self.search.needed.iter();
        at + 1 == block.steps.len()
            && matches!(step.tag, Tag::Compare(compared, _) if compared.is_whole())
            && block.stays.is_some_and(|(on, _)| on == reg)
            && branches
                .filter(|block| block.stays.is_some_and(|(on, _)| on == reg))
                .count()
                == 1
            && !reads.any(|step| step.s.contains(&reg))
            && !needed.any(|(needed, _)| *needed == reg)
            && !self.search.read.contains(&reg)
    }

    fn indexed(&self, block: &SearchBlock) -> HashMap<usize, Option<Indexed>> {
        // What varies is read in its block alone.
        let live = |reg: Reg| !(self.slot_of)(reg).varying;
        plan::find(&block.steps, &[], self.slot_of, &live, self.constant_of)
    }

    /// The row that a step loads, if it is one.
    fn row(
        &self,
        block: &SearchBlock,
        indexed: &HashMap<usize, Option<Indexed>>,
        at: usize,
    ) -> Option<SearchRow> {
        let step = &block.steps[at];
        let access = unpack(step.access.0);
        let indexed = indexed.get(&at).copied().flatten()?;
        let fits = step.tag == Tag::LoadGlobal
            && access.count == 1
            && step.access.1 <= 4
            && step.access.1 == 1 << indexed.log
            && i32::try_from(access.offset).is_ok()
            && !self.written.contains(&indexed.base);
        let index = indexed.index();
        let made = block.steps[..at]
            .iter()
            .rposition(|step| step.d.contains(&index))?;
        let (Tag::Add32, &[a, b]) = (block.steps[made].tag, block.steps[made].s.as_slice()) else {
            return None;
        };
        let (lanes, shared) = if self.varies(a) { (a, b) } else { (b, a) };
        let stays = !block.steps[made..at]
            .iter()
            .any(|step| step.d.contains(&shared));
        let fits = fits && stays && self.varies(lanes) && !self.varies(shared);
        (fits && !self.written.contains(&lanes)).then_some(SearchRow {
            indexed,
            lanes,
            shared,
        })
    }

    /// Before a strip's first turn.
    fn begin(&mut self) -> Option<()> {
        for (at, _) in self.search.needed.iter().enumerate() {
            let zero = left(at);
            self.out
                .vector(encode::XOR_32, zero, zero, Rm::Register(zero), 0);
        }
        let mut homes: Vec<(Reg, u8)> = self.shared.homes.iter().map(|(r, h)| (*r, *h)).collect();
        homes.sort_unstable();
        for (reg, home) in homes {
            if self.search.read.contains(&reg) {
                self.shared.load(&mut self.out, home, reg)?;
            }
        }
        let mut starts: Vec<(Reg, u8)> = self.starts.iter().map(|(r, s)| (*r, *s)).collect();
        starts.sort_unstable();
        let (numbers, first) = (0, 1);
        for (reg, start) in starts {
            let offset = i32::try_from((self.slot_of)(reg).offset).ok()?;
            let out = &mut self.out;
            // What each lane's number is beyond its place in the strip is to be the same in all that run.
            out.load(numbers, Base::R8, offset);
            out.vector(encode::SUB_32, numbers, numbers, Rm::Row(false, 1, 0), 0);
            out.vector(FIRST_32, numbers, 0, Rm::Register(first), LOWER);
            out.lowest_lane(false, first);
            out.vector(BROADCAST_32, first, 0, Rm::Register(first), 0);
            out.differ(false, 3, numbers, first, LOWER);
            out.test_mask();
            out.jump(When::NotZero, &mut self.refused);
            out.general(false, op::LOAD, start, Place::Register(RAX));
        }
        Some(())
    }

    fn block(&mut self, block: &SearchBlock) -> Option<()> {
        let indexed = self.indexed(block);
        let steps = &block.steps;
        let serves = |at: usize| {
            // What makes addresses of rows, nobody reads.
            let step = &steps[at];
            let is_made = |reg: Reg| {
                let mut readers = steps
                    .iter()
                    .enumerate()
                    .filter(|(_, step)| step.s.contains(&reg));
                readers.all(|(reader, _)| indexed.get(&reader).is_some_and(Option::is_none))
                    && block.stays.is_none_or(|(on, _)| on != reg)
            };
            let makes = indexed.get(&at).is_some_and(Option::is_none);
            let is_lane = step.access.1 == 0 && (self.slot_of)(step.d[0]).varying;
            !makes && (!is_lane || !is_made(step.d[0]))
        };
        let serves: Vec<bool> = (0..steps.len()).map(serves).collect();
        let lanes = steps.iter().zip(&serves);
        let lanes = lanes.filter(|(step, serves)| **serves && self.varies(step.d[0]));
        let in_vectors: HashSet<Reg> = lanes
            .flat_map(|(step, _)| step.s.iter().chain(&step.d).copied())
            .collect();
        if in_vectors.len() > MOST_REGISTERS {
            return None;
        }
        let facts = Facts {
            slot_of: self.slot_of,
            live_after: &|_| false,
            constant_of: self.constant_of,
            masked: true,
            once: false,
            // Nothing is loaded by addresses of lanes.
            gathers: true,
            merges: true,
        };
        let isa = self.out.isa;
        let out = std::mem::replace(&mut self.out, Assembler::new(isa));
        let mut allocator = Allocator::new(out, steps, facts, 0, &Rows::default());
        allocator.registers.truncate(usize::from(left(NEEDED - 1)));
        let last = steps.len().checked_sub(1);
        let mut fused = false;
        for (at, step) in steps.iter().enumerate() {
            allocator.now = at;
            let (reg, varies) = (step.d[0], self.varies(step.d[0]));
            let number = self.transfers;
            self.transfers += usize::from(step.access.1 != 0);
            if !serves[at] {
                continue;
            }
            if !varies {
                if self.only_branches(block, at) {
                    fused = true;
                    break;
                }
                let (out, refused) = (&mut allocator.out, &mut self.refused);
                self.shared.step(out, step, number, refused)?;
                allocator.forget(reg);
                continue;
            }
            if self.is_row(step) {
                let row = self.row(block, &indexed, at)?;
                let base = i32::try_from((self.slot_of)(row.indexed.base).offset).ok()?;
                allocator.pinned.clear();
                let to = allocator.free();
                let out = &mut allocator.out;
                let start = *self.starts.get(&row.lanes)?;
                self.shared.read(out, RAX, row.shared)?;
                out.general(false, op::ADD, RAX, Place::Register(start));
                self.load_row(out, step, (row.indexed, base), to, number)?;
                allocator.define(to, (reg, 0));
                continue;
            }
            allocator.pinned.clear();
            for &source in &step.s {
                if let Some(&home) = self.shared.homes.get(&source) {
                    allocator.hold(source, home);
                }
            }
            if let (Some((on, stays)), Tag::Compare(compared, predicate)) = (block.stays, step.tag)
                && Some(at) == last
                && on == reg
                && matches!(compared, Compared::S32 | Compared::U32)
            {
                let [a, b] = [0, 1].map(|source| allocator.load((step.s[source], 0)));
                let op = if compared == Compared::S32 {
                    COMPARE_S32
                } else {
                    COMPARE_32
                };
                // The processor's numbers of the opposite ones differ in this bit.
                let predicate = predicate ^ if stays { 0 } else { 4 };
                let b = Rm::Register(b);
                allocator
                    .out
                    .vector_imm(op, STAYING, a, b, LOWER, Some(predicate));
                fused = true;
                break;
            }
            let parts = ((self.slot_of)(reg).width / 4).max(1);
            for part in 0..parts {
                allocator.step(step, part);
            }
        }
        let is_far = allocator.far;
        if let (Some((on, stays)), false) = (block.stays, fused)
            && self.varies(on)
        {
            allocator.now = steps.len();
            allocator.pinned.clear();
            let predicate = allocator.load((on, 0));
            let test = if stays { TEST_32 } else { TEST_ZERO_32 };
            let from = Rm::Register(predicate);
            allocator.out.vector(test, STAYING, predicate, from, LOWER);
        }
        self.out = allocator.out;
        if let Some((on, stays)) = block.stays {
            if self.varies(on) {
                self.part();
            } else {
                let compared = steps.last().filter(|_| fused);
                let condition = match compared {
                    Some(step) => self.shared.compare(&mut self.out, step)?,
                    None => self.shared.test(&mut self.out, on)?,
                };
                let condition = condition ^ u8::from(!stays);
                self.all_or_none(condition);
            }
        }
        (!is_far).then_some(())
    }

    /// The elements of a row whose first index is in eax.
    fn load_row(
        &mut self,
        out: &mut Assembler,
        step: &SegmentStep,
        (indexed, base): (Indexed, i32),
        to: u8,
        number: usize,
    ) -> Option<()> {
        let size = step.access.1;
        let offset = i32::try_from(unpack(step.access.0).offset).ok()?;
        let (first, limit) = Reach::range(number);
        // Indices that go over the end of their numbers are no row of elements.
        out.last_of_row();
        let wraps = if indexed.signed {
            When::Overflow
        } else {
            When::Below
        };
        out.jump(wraps, &mut self.refused);
        indexed.place(out, base, offset);
        out.compare_distance(first, limit);
        out.jump(When::NotBelow, &mut self.refused);
        if size > 1 {
            out.test_al(size - 1);
            out.jump(When::NotZero, &mut self.refused);
        }
        if size < 4 {
            out.load_narrow(to, Base::Rax, 0, size);
        } else {
            out.load(to, Base::Rax, 0);
        }
        Some(())
    }

    /// Those lanes leave that do not stay; if none does, the strip is done.
    fn part(&mut self) {
        self.out.code.extend_from_slice(&[0xc5, 0xe4, 0x42, 0xe1]); // kandnw k4, k3, k1
        self.leave(LEAVING);
        self.out.code.extend_from_slice(&[0xc5, 0xf8, 0x90, 0xcb]); // kmovw k1, k3
        self.out.upper_running();
        self.out.test_running();
        self.out.jump(When::Zero, &mut self.done);
    }

    /// All lanes stay on a condition, else all of them leave.
    fn all_or_none(&mut self, condition: u8) {
        let mut stay = Label::default();
        self.out.jump_if(condition, &mut stay);
        self.leave(LOWER);
        self.out.jump(When::Always, &mut self.done);
        self.out.bind(stay);
    }

    /// Lanes of a mask need what is now in registers.
    fn leave(&mut self, mask: u8) {
        for (at, (reg, _)) in self.search.needed.iter().enumerate() {
            if let Some(&home) = self.shared.homes.get(reg) {
                let from = Rm::Register(home);
                self.out.vector(BROADCAST_EAX, left(at), 0, from, mask);
            }
        }
    }

    /// The next strip, and both ends.
    fn finish(mut self, top: usize) -> Vec<u8> {
        let out = &mut self.out;
        let mut end = Label::default();
        for (register, step) in [(Base::R8, 64), (Base::R9, 128)] {
            out.general_constant(true, 0, register as u8, step);
        }
        out.general_constant(true, 0, RSI, 1);
        out.general(true, op::COMPARE, RSI, Place::Register(RDX));
        out.jump_back_if(when::BELOW, top);
        out.set_constant(RAX, 0);
        out.jump(When::Always, &mut end);
        out.bind(self.refused);
        out.set_constant(RAX, REFUSED);
        out.bind(end);
        out.code.extend_from_slice(&[0xc5, 0xf8, 0x77]); // vzeroupper
        GENERAL.iter().rev().for_each(|&register| out.pop(register));
        out.code.push(0xc3);
        self.out.finish()
    }
}

impl SearchBlock {
    fn reads(&self, reg: Reg) -> bool {
        self.steps.iter().any(|step| step.s.contains(&reg))
            || self.stays.is_some_and(|(on, _)| on == reg)
    }
}

impl Allocator<'_> {
    /// A value that all lanes share is in a general register: it is in vectors as well then. Its slot has another one.
    fn hold(&mut self, reg: Reg, from: u8) {
        let width = (self.slot_of)(reg).width;
        let op = if width == 8 {
            BROADCAST_RAX
        } else {
            BROADCAST_EAX
        };
        for part in 0..(width / 4).max(1) {
            let unit = (reg, part);
            if let Some(register) = self.find(unit) {
                self.pinned.push(register);
                continue;
            }
            let register = self.free();
            self.out.vector(op, register, 0, Rm::Register(from), 0);
            self.registers[register as usize] = Some(CachedRegister {
                unit,
                dirty: false,
                made: NEVER,
            });
        }
    }

    /// A register has another value now, which no vector has.
    fn forget(&mut self, reg: Reg) {
        for held in &mut self.registers {
            if held.is_some_and(|held| held.unit.0 == reg) {
                *held = None;
            }
        }
    }
}

/// The masks of the lanes that stay and of those that leave.
const STAYING: u8 = 3;
const LEAVING: u8 = 4;

/// vpcmpd to a mask
const COMPARE_S32: Opcode = opcode(3, 1, false, 0x1f);
/// vptestnmd, to a mask
const TEST_ZERO_32: Opcode = opcode(2, 2, false, 0x27);
