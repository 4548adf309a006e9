//! Loops as machine code that a lane goes through alone: it makes all its turns before the next lane begins.
//!
//! What lanes do one by one in vectors costs them all: a gather takes as long as single loads, and so it does for two lanes of
//! sixteen. A loop whose loads find their addresses in what it has loaded (a row's columns, a node's neighbours) has nothing
//! else, so its lanes go through it as threads of a processor would. A lane's registers of the loop are general ones and single
//! numbers in vector registers; what does not fit is in its slot.
//!
//! Called by `segment` for such loops; `repeat` has the others. Must not know why a loop may be such code.

use std::collections::{HashMap, HashSet};

use super::ask::TransferFacts;
use super::branch::{Label, When};
use super::elements::{Element, Elements};
use super::encode::Assembler;
use super::general::{Place, R11, RAX, RCX, RDX, RSI, Single, TURNS, op, when};
use super::lives::{self, Ending};
use super::repeat::{Loop, LoopEdge, LoopEnd, LoopRun};
use super::step::{RegisterSlot, SegmentStep};
use crate::ir::Reg;
use crate::isa::Target;
use crate::machine::Machine;
use crate::reach::Reach;
use crate::spaces::unpack;

/// General registers that hold a lane's numbers.
const GENERAL: [u8; 9] = [3, 5, RSI, RDX, 8, 9, 12, 13, 14];
/// Vector registers that do: the other two are for what is between.
pub(super) const VECTORS: u8 = 14;
/// Registers of both kinds that are kept free for what lives within a run.
const FREE: usize = 4;
/// Where the code's own part of the stack has the strip, the one after the last, the masks' address, the lanes of the strip that
/// are still to come, and those that have not left.
const STRIP: u8 = 0;
const LAST: u8 = 8;
const MASKS: u8 = 16;
const COMING: u8 = 24;
const LEFT: u8 = 32;
/// Lanes of a strip.
const STRIP_LANES: i32 = 16;

/// Where a register is while a lane goes through the loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Home {
    General(u8),
    Vector(u8),
    Slot,
}

/// An access that the executor is asked about.
pub(super) struct Asked {
    pub(super) label: Label,
    /// The register that has the address; of an element, what is known of it, and where its index is.
    pub(super) address: u8,
    pub(super) element: Option<(Element, Home)>,
    pub(super) back: usize,
    /// Vector registers that hold values.
    pub(super) vectors: Vec<u8>,
    pub(super) step: SegmentStep,
    pub(super) facts: TransferFacts,
    /// Where the elements are.
    pub(super) elements: Vec<Home>,
}

pub(super) struct Scalar<'a> {
    pub(super) out: Assembler,
    pub(super) slot_of: &'a dyn Fn(Reg) -> RegisterSlot,
    pub(super) constant_of: &'a dyn Fn(Reg) -> Option<u64>,
    pub(super) floats: HashSet<Reg>,
    pub(super) homes: HashMap<Reg, Home>,
    pub(super) endings: HashMap<Reg, Ending>,
    pub(super) free: [Vec<u8>; 2],
    /// The predicate that the processor's flags have, and on which condition it holds.
    pub(super) flags: Option<(Reg, u8)>,
    /// The run and the step that are being made, and how many steps the run has.
    pub(super) now: Ending,
    pub(super) length: usize,
    pub(super) transfers: usize,
    pub(super) asked: Vec<Asked>,
    pub(super) elements: Elements,
}

/// Compiles a loop, as [`super::compile`] does a segment; one turn of it is a lane's. `None` if it has steps that are not for
/// single numbers.
pub(super) fn compile(
    repeated: &Loop,
    slot_of: &dyn Fn(Reg) -> RegisterSlot,
    constant_of: &dyn Fn(Reg) -> Option<u64>,
    target: Target,
    first: usize,
) -> Option<Vec<u8>> {
    let (elements, repeated) = Elements::find(repeated, slot_of, constant_of, first);
    let repeated = &repeated;
    let floats = lives::floats(repeated)?;
    let endings = lives::endings(repeated);
    let mut scalar = Scalar {
        out: Assembler::new(target.isa),
        slot_of,
        constant_of,
        floats,
        homes: HashMap::new(),
        endings,
        free: [GENERAL.to_vec(), (0..VECTORS).collect()],
        flags: None,
        now: (0, 0),
        length: 0,
        transfers: first,
        asked: Vec::new(),
        elements,
    };
    let kept = scalar.settle(repeated)?;
    let out = &mut scalar.out;
    out.enter();
    for (register, place) in [(RSI, STRIP), (RDX, LAST), (RCX, MASKS)] {
        out.general(true, op::STORE, register, Place::Own(place));
    }
    out.general(true, op::LOAD, 10, Place::Register(8));
    out.general(false, op::LOAD, TURNS, Place::Reach(Reach::TURNS));
    scalar.begin_elements()?;
    let out = &mut scalar.out;
    let strip = out.code.len();
    out.general(true, op::LOAD, RSI, Place::Own(STRIP));
    out.general(true, op::LOAD, RCX, Place::Own(MASKS));
    out.lanes_of_strip();
    out.general(false, op::STORE, RAX, Place::Own(COMING));
    out.set_constant(RAX, 0);
    out.general(false, op::STORE, RAX, Place::Own(LEFT));
    let next_lane = out.code.len();
    let (mut strip_done, mut out_of_turns) = (Label::default(), Label::default());
    out.general(false, op::LOAD, RAX, Place::Own(COMING));
    out.general(false, op::TEST, RAX, Place::Register(RAX));
    out.jump_if(when::ZERO, &mut strip_done);
    out.general(false, op::TEST, TURNS, Place::Register(TURNS));
    out.jump_if(when::ZERO, &mut out_of_turns);
    out.next_lane();
    out.general(false, op::STORE, R11, Place::Own(COMING));
    out.general(true, op::LOAD, R11, Place::Own(STRIP));
    out.shift(true, 4, R11, 4);
    out.general(true, op::ADD, RCX, Place::Register(R11));
    for &reg in kept.iter().filter(|reg| repeated.read.contains(reg)) {
        scalar.fetch(reg)?;
    }
    let turn = scalar.out.code.len();
    let (mut again, mut left) = (Label::default(), Label::default());
    scalar.turn(repeated, &mut again, &mut left)?;
    scalar.out.bind(again);
    scalar.out.general_constant(false, 5, TURNS, 1);
    scalar.out.jump_back_if(when::NOT_ZERO, turn);
    // No turns are left, but the lane is.
    for &reg in kept.iter().filter(|reg| repeated.read.contains(reg)) {
        scalar.put_back(reg)?;
    }
    scalar.out.lane_bit();
    scalar.out.general(false, op::OR, RAX, Place::Own(LEFT));
    scalar.out.general(false, op::STORE, RAX, Place::Own(LEFT));
    scalar.out.jump_back(next_lane);
    scalar.out.bind(left);
    for &reg in kept.iter().filter(|reg| repeated.needed.contains(reg)) {
        scalar.put_back(reg)?;
    }
    let out = &mut scalar.out;
    out.general_constant(false, 5, TURNS, 1);
    out.jump_back(next_lane);
    out.bind(out_of_turns);
    out.general(false, op::OR, RAX, Place::Own(LEFT));
    out.general(false, op::STORE, RAX, Place::Own(LEFT));
    out.bind(strip_done);
    out.general(false, op::LOAD, RAX, Place::Own(LEFT));
    out.general(true, op::LOAD, RSI, Place::Own(STRIP));
    out.set_left(Reach::LEFT);
    out.general_constant(true, 0, RSI, 1);
    out.general(true, op::STORE, RSI, Place::Own(STRIP));
    out.general(true, op::COMPARE, RSI, Place::Own(LAST));
    out.jump_back_if(when::BELOW, strip);
    out.general(false, op::STORE, TURNS, Place::Reach(Reach::TURNS));
    out.set_constant(RAX, 0);
    out.leave();
    let mut failed = Label::default();
    for asked in std::mem::take(&mut scalar.asked) {
        scalar.ask(asked, &mut failed)?;
    }
    let out = &mut scalar.out;
    out.bind(failed);
    out.set_constant(RAX, 1);
    out.leave();
    Some(scalar.out.finish())
}

impl Scalar<'_> {
    pub(super) fn width(&self, reg: Reg) -> u8 {
        (self.slot_of)(reg).width
    }

    /// Gives registers that the loop writes, and that live longer than a run, their homes; returns those that have one.
    fn settle(&mut self, repeated: &Loop) -> Option<Vec<Reg>> {
        let runs = repeated.blocks.iter().flat_map(|block| &block.runs);
        let (mut uses, mut written) = (HashMap::new(), HashSet::new());
        for step in runs.flat_map(|run: &LoopRun| &run.steps) {
            for &reg in step.s.iter().chain(&step.d) {
                *uses.entry(reg).or_insert(0_usize) += 1;
            }
            written.extend(step.d.iter().copied());
        }
        if written.iter().any(|&reg| !(self.slot_of)(reg).varying) {
            return None;
        }
        let lasts = written.iter().filter(|reg| !self.endings.contains_key(reg));
        let mut lasting: Vec<Reg> = lasts.copied().collect();
        lasting.sort_by_key(|reg| (usize::MAX - uses[reg], *reg));
        let is_whole = |reg: &&Reg| !self.floats.contains(reg);
        let wanted = FREE + lasting.iter().filter(is_whole).count();
        self.settle_bases(GENERAL.len().saturating_sub(wanted));
        let mut kept = Vec::new();
        for reg in lasting {
            let home = self.take(reg, FREE);
            self.homes.insert(reg, home);
            if home != Home::Slot {
                kept.push(reg);
            }
        }
        Some(kept)
    }

    /// A home for a register, if more than so many of its kind are free.
    pub(super) fn take(&mut self, reg: Reg, least: usize) -> Home {
        let is_float = self.floats.contains(&reg);
        let free = &mut self.free[usize::from(is_float)];
        let register = if free.len() > least { free.pop() } else { None };
        match register {
            Some(register) if is_float => Home::Vector(register),
            Some(register) => Home::General(register),
            None => Home::Slot,
        }
    }

    /// Frees what ends at this step.
    pub(super) fn release(&mut self) {
        let now = self.now;
        let ended = |reg: &Reg, endings: &HashMap<Reg, Ending>| endings.get(reg) == Some(&now);
        let homes = self.homes.keys().copied();
        let mut gone: Vec<Reg> = homes.filter(|reg| ended(reg, &self.endings)).collect();
        // The same code comes of the same loop.
        gone.sort_unstable();
        for home in gone.iter().filter_map(|reg| self.homes.remove(reg)) {
            match home {
                Home::General(register) => self.free[0].push(register),
                Home::Vector(register) => self.free[1].push(register),
                Home::Slot => {}
            }
        }
    }

    /// The home of a result.
    pub(super) fn define(&mut self, reg: Reg) -> Home {
        if let Some(&home) = self.homes.get(&reg) {
            return home;
        }
        let home = self.take(reg, 0);
        self.homes.insert(reg, home);
        home
    }

    /// A register's slot.
    pub(super) fn slot(&self, reg: Reg) -> Option<Place> {
        let slot = (self.slot_of)(reg);
        let offset = i32::try_from(slot.offset).ok()?;
        Some(if slot.varying {
            Place::Lane(offset, slot.width.trailing_zeros() as u8)
        } else {
            Place::Frame(offset)
        })
    }

    /// A constant in as many bits as its register has.
    pub(super) fn constant(&self, reg: Reg) -> Option<u64> {
        let bits = 8 * u32::from(self.width(reg));
        Some((self.constant_of)(reg)? & (u64::MAX >> (64 - bits)))
    }

    pub(super) fn home(&self, reg: Reg) -> Home {
        self.homes.get(&reg).copied().unwrap_or(Home::Slot)
    }

    /// Loads a slot into a general register.
    pub(super) fn load_slot(&mut self, to: u8, reg: Reg) -> Option<()> {
        let place = self.slot(reg)?;
        match self.width(reg) {
            1 => self.out.general(false, op::LOAD_8, to, place),
            2 => self.out.general(false, op::LOAD_16, to, place),
            width => self.out.general(width == 8, op::LOAD, to, place),
        }
        Some(())
    }

    /// Stores a general register to a slot.
    pub(super) fn store_slot(&mut self, from: u8, reg: Reg) -> Option<()> {
        let place = self.slot(reg)?;
        match self.width(reg) {
            1 => self.out.general(false, op::STORE_8, from, place),
            2 => self.out.general_16(op::STORE, from, place),
            width => self.out.general(width == 8, op::STORE, from, place),
        }
        Some(())
    }

    /// Loads what a lane begins with.
    fn fetch(&mut self, reg: Reg) -> Option<()> {
        match self.home(reg) {
            Home::General(register) => self.load_slot(register, reg)?,
            Home::Vector(register) => {
                let op = Single::LOAD[usize::from(self.width(reg) == 8)];
                let place = self.slot(reg)?;
                self.out.single(op, register, 0, place);
            }
            Home::Slot => {}
        }
        Some(())
    }

    /// Stores what a lane ends with.
    fn put_back(&mut self, reg: Reg) -> Option<()> {
        match self.home(reg) {
            Home::General(register) => self.store_slot(register, reg)?,
            Home::Vector(register) => {
                let op = Single::STORE[usize::from(self.width(reg) == 8)];
                let place = self.slot(reg)?;
                self.out.single(op, register, 0, place);
            }
            Home::Slot => {}
        }
        Some(())
    }

    /// The loop's blocks, of which a lane goes through some; whose next turn comes jumps to one label, who leaves to the other.
    fn turn(&mut self, repeated: &Loop, again: &mut Label, left: &mut Label) -> Option<()> {
        let count = repeated.blocks.len();
        let mut blocks: Vec<Label> = (0..count).map(|_| Label::default()).collect();
        let mut number = 0;
        for (index, block) in repeated.blocks.iter().enumerate() {
            self.out.bind(std::mem::take(&mut blocks[index]));
            self.flags = None;
            for run in &block.runs {
                let mut skipped = Label::default();
                if let Some((on, negated)) = run.guard {
                    let holds = self.test(on, negated)?;
                    self.out.jump_if(holds ^ 1, &mut skipped);
                }
                self.length = run.steps.len();
                for (at, step) in run.steps.iter().enumerate() {
                    self.now = (number, at);
                    self.flags = None;
                    self.step(step)?;
                    self.release();
                }
                if run.guard.is_some() {
                    self.flags = None;
                }
                self.out.bind(skipped);
                number += 1;
            }
            let next = Some(index + 1).filter(|&next| next < count);
            let mut go = |out: &mut Assembler, condition: Option<u8>, to: LoopEdge| {
                let label = match to {
                    None => &mut *left,
                    Some(to) if to == count => &mut *again,
                    Some(to) => &mut blocks[to],
                };
                match condition {
                    Some(condition) => out.jump_if(condition, label),
                    None if to.is_some() && to == next => {}
                    None => out.jump(When::Always, label),
                }
            };
            match block.end {
                LoopEnd::Jump(to) => go(&mut self.out, None, to),
                LoopEnd::Branch {
                    on,
                    negated,
                    then,
                    other,
                } => {
                    let holds = self.test(on, negated)?;
                    self.now = (number.wrapping_sub(1), self.length);
                    self.release();
                    if next.is_some() && then == next {
                        go(&mut self.out, Some(holds ^ 1), other);
                    } else {
                        go(&mut self.out, Some(holds), then);
                        go(&mut self.out, None, other);
                    }
                }
            }
        }
        Some(())
    }

    /// The condition on which a predicate holds, or does not; the flags say it.
    fn test(&mut self, on: Reg, negated: bool) -> Option<u8> {
        if let Some((known, holds)) = self.flags
            && known == on
        {
            return Some(holds ^ u8::from(negated));
        }
        let register = match self.home(on) {
            Home::General(register) => register,
            _ => {
                self.read(RAX, on)?;
                RAX
            }
        };
        self.out
            .general(false, op::TEST, register, Place::Register(register));
        Some(when::NOT_ZERO ^ u8::from(negated))
    }

    /// The code behind the loop that asks the executor about an access of a lane.
    fn ask(&mut self, asked: Asked, failed: &mut Label) -> Option<()> {
        let Asked {
            label,
            address,
            element: by_index,
            back,
            vectors,
            step,
            facts,
            elements,
        } = asked;
        let access = unpack(step.access.0);
        let wide = access.wide;
        let element = i32::from(facts.element.max(4));
        let log = element.trailing_zeros() as u8;
        let place = |index: usize| Place::Scratch(STRIP_LANES * element * index as i32, log);
        let values = if facts.stores {
            &step.s[1..]
        } else {
            &step.d[..]
        };
        self.out.bind(label);
        if let Some((element, index)) = by_index {
            self.element_address(element, index)?;
        } else {
            if address != RAX {
                self.out
                    .general(true, op::LOAD, RAX, Place::Register(address));
            }
            // The executor adds it.
            self.out
                .general_constant(wide, 5, RAX, access.offset as i32);
        }
        for register in [RCX, RSI, RSI] {
            self.out.push(register);
        }
        let moved = 24;
        self.out
            .general(true, op::LOAD, R11, Place::Reach(Reach::SCRATCH));
        self.out.general_constant(false, 4, RCX, STRIP_LANES - 1);
        let addresses = Place::Scratch(Machine::ADDRESSES as i32, if wide { 3 } else { 2 });
        self.out.general(wide, op::STORE, RAX, addresses);
        for (index, (&reg, &home)) in values.iter().zip(&elements).enumerate() {
            match home {
                _ if !facts.stores => {}
                Home::General(register) => {
                    self.out
                        .general(element == 8, op::STORE, register, place(index));
                }
                Home::Vector(register) => {
                    let op = Single::STORE[usize::from(element == 8)];
                    self.out.single(op, register, 0, place(index));
                }
                Home::Slot => {
                    self.out.general(true, op::LOAD, RCX, Place::Own(16));
                    self.read_from(RAX, reg, Home::Slot)?;
                    self.out.general_constant(false, 4, RCX, STRIP_LANES - 1);
                    self.out.general(element == 8, op::STORE, RAX, place(index));
                }
            }
        }
        self.out.set_constant(RAX, 1);
        self.out.general(false, &[0xd3], 4, Place::Register(RAX));
        self.out
            .general_16(op::STORE, RAX, Place::Reach(Reach::RUNNING));
        let spill = |vector: u8| Place::At(R11, Machine::SPILL as i32 + 64 * i32::from(vector));
        for &vector in &vectors {
            self.out.single(Single::STORE_ALL, vector, 0, spill(vector));
        }
        self.out
            .general(true, op::LOAD, RSI, Place::Own(moved + STRIP));
        let words = [step.access.0, facts.pack()];
        self.out.ask(Reach::HELPER, Reach::MACHINE, words);
        for register in [RSI, RSI, RCX] {
            self.out.pop(register);
        }
        self.out.jump_if(when::NOT_ZERO, failed);
        self.out
            .general(true, op::LOAD, R11, Place::Reach(Reach::SCRATCH));
        for &vector in &vectors {
            self.out.single(Single::LOAD_ALL, vector, 0, spill(vector));
        }
        if !facts.stores {
            self.out.push(RCX);
            self.out.general_constant(false, 4, RCX, STRIP_LANES - 1);
            for (index, (&reg, &home)) in values.iter().zip(&elements).enumerate() {
                match home {
                    Home::General(register) => {
                        self.out
                            .general(element == 8, op::LOAD, register, place(index));
                    }
                    Home::Vector(register) => {
                        let op = Single::LOAD[usize::from(element == 8)];
                        self.out.single(op, register, 0, place(index));
                    }
                    Home::Slot => {
                        self.out.general(element == 8, op::LOAD, RAX, place(index));
                        self.out.general(true, op::LOAD, RCX, Place::Own(0));
                        self.store_slot(RAX, reg)?;
                        self.out.general_constant(false, 4, RCX, STRIP_LANES - 1);
                    }
                }
            }
            self.out.pop(RCX);
        }
        if let Some((element, _)) = by_index {
            self.count_again(element)?;
        }
        self.out.jump_back(back);
        Some(())
    }
}
