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
use super::general::{Place, R10, R11, RAX, RCX, RDX, RSI, STRIP, Single, TURNS, op, when};
use super::homes::{Careful, Differing, Home, OnlyIf};
use super::lives::{self, Ending};
use super::neighbours::{AllNeighbours, Neighbours};
use super::repeat::{Loop, LoopEdge, LoopEnd, LoopRun};
use super::same_turns;
use super::step::{RegisterSlot, SegmentStep};
use crate::ir::Reg;
use crate::isa::Target;
use crate::reach::{PLACES, Reach};

/// General registers that hold a lane's numbers.
const GENERAL: [u8; 9] = [3, 5, RSI, RDX, 8, 9, 12, 13, 14];
/// Vector registers that do: the other two are for what is between.
pub(super) const VECTORS: u8 = 14;
/// Vector registers that are kept free for what lives within a run: what does not find one is in its slot meanwhile.
const FREE: usize = 3;
/// Where the code's own part of the stack has, behind the strip, the one after the last, the masks' address, the lanes of the strip that
/// are still to come, and those that have not left, by where they are.
const LAST: u8 = 8;
const MASKS: u8 = 16;
pub(super) const COMING: u8 = 24;
const LEFT: [u8; PLACES] = [28, 32, 36];
/// Lanes of a strip.
pub(super) const STRIP_LANES: i32 = 16;

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
    pub(super) neighbours: AllNeighbours,
    /// Of the run that is being made, if its elements are known to be there; with the register that has their index.
    pub(super) known: Option<(Neighbours, u8)>,
    /// A register that the last step loads, and only the next one reads; where that reads it in memory if it was not loaded.
    pub(super) factor: Option<(Reg, Option<Place>)>,
    /// Where an access goes on that may be outside of what is known, if the executor is not asked there.
    pub(super) instead: Option<Label>,
    /// The last access of a run is made on this condition only, without a jump.
    pub(super) only_if: Option<OnlyIf>,
    pub(super) differing: Vec<Differing>,
    /// The registers that the loop writes.
    pub(super) written: HashSet<Reg>,
    pub(super) careful: Vec<Careful>,
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
    let same = same_turns::find(repeated, constant_of);
    let (elements, repeated) = Elements::find(repeated, slot_of, constant_of, first);
    let repeated = &repeated;
    let floats = lives::floats(repeated, constant_of)?;
    let endings = lives::endings(repeated);
    let runs = repeated.blocks.iter().flat_map(|block| &block.runs);
    let neighbours = AllNeighbours::find(runs, &elements, slot_of, constant_of);
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
        neighbours,
        known: None,
        factor: None,
        instead: None,
        only_if: None,
        differing: Vec::new(),
        written: HashSet::new(),
        careful: Vec::new(),
    };
    let kept = scalar.settle(repeated)?;
    let out = &mut scalar.out;
    out.enter();
    for (register, place) in [(RSI, STRIP), (RDX, LAST), (RCX, MASKS)] {
        out.general(true, op::STORE, register, Place::Own(place));
    }
    out.general(true, op::LOAD, R10, Place::Register(8));
    out.general(false, op::LOAD, TURNS, Place::Reach(Reach::TURNS));
    scalar.begin_elements()?;
    let out = &mut scalar.out;
    out.set_constant(RAX, 0);
    let places = LEFT.get(..1 + repeated.inner.len())?;
    for &left in places {
        out.general(false, op::STORE, RAX, Place::Own(left));
    }
    let strip = out.code.len();
    // Other registers have bases and numbers of elements, which stay for all strips.
    out.general(true, op::LOAD, RAX, Place::Own(STRIP));
    out.general(true, op::LOAD, RCX, Place::Own(MASKS));
    out.general(false, op::LOAD_16, RAX, of_strip(RCX, RAX, 0));
    let [
        mut next_strip,
        mut strip_done,
        mut some_left,
        mut out_of_turns,
    ] = [(); 4].map(|()| Label::default());
    out.general(false, op::TEST, RAX, Place::Register(RAX));
    out.jump_if(when::ZERO, &mut next_strip);
    out.general(false, op::STORE, RAX, Place::Own(COMING));
    if let Some(same) = same {
        // If not, all lanes are coming.
        let _ = scalar.straight(repeated, same, &kept);
    }
    let out = &mut scalar.out;
    let next_lane = out.code.len();
    out.general(false, op::LOAD, RAX, Place::Own(COMING));
    out.general(false, op::TEST, RAX, Place::Register(RAX));
    out.jump_if(when::ZERO, &mut strip_done);
    out.general(false, op::TEST, TURNS, Place::Register(TURNS));
    out.jump_if(when::ZERO, &mut out_of_turns);
    out.next_lane();
    out.general(false, op::STORE, R11, Place::Own(COMING));
    out.lane_of_strip();
    for &reg in kept.iter().filter(|reg| repeated.read.contains(reg)) {
        scalar.fetch(reg)?;
    }
    let (mut again, mut left) = (Label::default(), Label::default());
    let turn = scalar.out.code.len();
    let stops = scalar.turn(repeated, &mut again, &mut left)?;
    // No turns are left, but the lane is.
    if repeated.inner.is_empty() {
        scalar.out.bind(again);
        scalar.out.general_constant(false, 5, TURNS, 1);
        scalar.out.jump_back_if(when::NOT_ZERO, turn);
        scalar.stop(&kept, &repeated.read, LEFT[0])?;
        scalar.out.jump_back(next_lane);
    }
    for ((stop, (_, needed)), &place) in stops.into_iter().zip(&repeated.inner).zip(&LEFT[1..]) {
        scalar.out.bind(stop);
        scalar.stop(&kept, needed, place)?;
        scalar.out.jump_back(next_lane);
    }
    scalar.out.bind(left);
    for &reg in kept.iter().filter(|reg| repeated.needed.contains(reg)) {
        scalar.put_back(reg)?;
    }
    let out = &mut scalar.out;
    out.general_constant(false, 5, TURNS, 1);
    out.jump_back(next_lane);
    out.bind(out_of_turns);
    out.general(false, op::OR, RAX, Place::Own(LEFT[0]));
    out.general(false, op::STORE, RAX, Place::Own(LEFT[0]));
    out.bind(strip_done);
    // Mostly all have left.
    out.general(false, op::LOAD, RAX, Place::Own(places[0]));
    for &left in &places[1..] {
        out.general(false, op::OR, RAX, Place::Own(left));
    }
    out.general(false, op::TEST, RAX, Place::Register(RAX));
    out.jump_if(when::NOT_ZERO, &mut some_left);
    out.bind(next_strip);
    let strip_left = out.code.len();
    out.general(true, op::LOAD, RCX, Place::Own(STRIP));
    out.general_constant(true, 0, RCX, 1);
    out.general(true, op::STORE, RCX, Place::Own(STRIP));
    out.general(true, op::COMPARE, RCX, Place::Own(LAST));
    out.jump_back_if(when::BELOW, strip);
    out.general(false, op::STORE, TURNS, Place::Reach(Reach::TURNS));
    out.set_constant(RAX, 0);
    out.leave();
    out.bind(some_left);
    out.general(false, op::STORE, RAX, Place::Reach(Reach::SOME_LEFT));
    out.general(true, op::LOAD, RCX, Place::Own(STRIP));
    for (place, &left) in places.iter().enumerate() {
        out.general(false, op::LOAD, RAX, Place::Own(left));
        out.general_16(op::STORE, RAX, of_strip(R10, RCX, Reach::left_at(place)));
        out.set_constant(RAX, 0);
        out.general(false, op::STORE, RAX, Place::Own(left));
    }
    out.jump_back(strip_left);
    for careful in std::mem::take(&mut scalar.careful) {
        scalar.make_careful(careful)?;
    }
    for differing in std::mem::take(&mut scalar.differing) {
        scalar.make_differing(differing);
    }
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

/// Where a strip's 16 bits are, of a register that has its number.
fn of_strip(base: u8, strip: u8, distance: usize) -> Place {
    Place::Element {
        base,
        index: strip,
        log: 1,
        distance: distance as i32,
    }
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
        self.written.clone_from(&written);
        if written.iter().any(|&reg| !(self.slot_of)(reg).varying) {
            return None;
        }
        let lasts = written.iter().filter(|reg| !self.endings.contains_key(reg));
        let mut lasting: Vec<Reg> = lasts.copied().collect();
        lasting.sort_by_key(|reg| (usize::MAX - uses[reg], *reg));
        let is_whole = |reg: &&Reg| !self.floats.contains(reg);
        let free = lives::most_at_once(repeated, &self.endings, &self.floats);
        let wanted = free + lasting.iter().filter(is_whole).count();
        self.settle_bases(GENERAL.len().saturating_sub(wanted));
        let mut kept = Vec::new();
        for reg in lasting {
            let is_float = self.floats.contains(&reg);
            let least = if is_float { FREE } else { free };
            let home = self.take(reg, least);
            self.homes.insert(reg, home);
            if home != Home::Slot {
                kept.push(reg);
            }
        }
        self.settle_counts(free);
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

    /// The home of a floating-point result: one of these vector registers, if one is free.
    pub(super) fn define_at(&mut self, reg: Reg, wanted: &[Home]) -> Home {
        let free = &self.free[1];
        let place = |home: &Home| free.iter().position(|&one| Home::Vector(one) == *home);
        let found = wanted.iter().find_map(place);
        match found {
            Some(at) if !self.homes.contains_key(&reg) => {
                let home = Home::Vector(self.free[1].remove(at));
                self.homes.insert(reg, home);
                home
            }
            _ => self.define(reg),
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
    pub(super) fn fetch(&mut self, reg: Reg) -> Option<()> {
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
    pub(super) fn put_back(&mut self, reg: Reg) -> Option<()> {
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

    /// Ends a lane's part for want of turns, at a place of the loop where these registers are needed.
    fn stop(&mut self, kept: &[Reg], needed: &HashSet<Reg>, place: u8) -> Option<()> {
        for &reg in kept.iter().filter(|reg| needed.contains(reg)) {
            self.put_back(reg)?;
        }
        self.out.lane_bit();
        self.out.general(false, op::OR, RAX, Place::Own(place));
        self.out.general(false, op::STORE, RAX, Place::Own(place));
        Some(())
    }

    /// The loop's blocks, of which a lane goes through some; whose next turn comes jumps to one label, who leaves to the other. Returns the
    /// labels of those who have no turns left, by the inner loop.
    fn turn(&mut self, repeated: &Loop, again: &mut Label, left: &mut Label) -> Option<Vec<Label>> {
        let count = repeated.blocks.len();
        let mut stops: Vec<Label> = repeated.inner.iter().map(|_| Label::default()).collect();
        let mut starts = Vec::new();
        let mut blocks: Vec<Label> = (0..count).map(|_| Label::default()).collect();
        let mut number = 0;
        for (index, block) in repeated.blocks.iter().enumerate() {
            self.out.bind(std::mem::take(&mut blocks[index]));
            starts.push(self.out.code.len());
            self.flags = None;
            for run in &block.runs {
                if let Some(careful) = self.unguarded(number, run) {
                    self.careful.push(careful?);
                    self.flags = None;
                    number += 1;
                    continue;
                }
                let mut skipped = Label::default();
                if let Some((on, negated)) = run.guard {
                    let holds = self.test(on, negated)?;
                    self.out.jump_if(holds ^ 1, &mut skipped);
                }
                self.run(number, run)?;
                if run.guard.is_some() {
                    self.flags = None;
                }
                self.out.bind(skipped);
                number += 1;
            }
            let mut go = |out: &mut Assembler, condition: Option<u8>, to: LoopEdge| {
                let label = match to {
                    None => &mut *left,
                    Some(to) if to == count => &mut *again,
                    Some(to) => &mut blocks[to],
                };
                match condition {
                    Some(condition) => out.jump_if(condition, label),
                    None if to == Some(index + 1) => {}
                    None => out.jump(When::Always, label),
                }
            };
            let is_back = |to: LoopEdge| to.is_some_and(|to| to <= index);
            let mut back = |out: &mut Assembler, to: LoopEdge| {
                let at = repeated
                    .inner
                    .iter()
                    .position(|(header, _)| Some(*header) == to)?;
                out.general_constant(false, 5, TURNS, 1);
                out.jump_back_if(when::NOT_ZERO, starts[repeated.inner[at].0]);
                out.jump(When::Always, &mut stops[at]);
                Some(())
            };
            match block.end {
                LoopEnd::Jump(to) if is_back(to) => back(&mut self.out, to)?,
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
                    // Behind the last block the next turn begins.
                    if is_back(then) && is_back(other) {
                        return None;
                    } else if is_back(then) {
                        go(&mut self.out, Some(holds ^ 1), other);
                        back(&mut self.out, then)?;
                    } else if is_back(other) {
                        go(&mut self.out, Some(holds), then);
                        back(&mut self.out, other)?;
                    } else if then == Some(index + 1) {
                        go(&mut self.out, Some(holds ^ 1), other);
                    } else {
                        go(&mut self.out, Some(holds), then);
                        go(&mut self.out, None, other);
                    }
                }
            }
        }
        Some(stops)
    }

    /// A run's steps, which look once for several elements where they can.
    pub(super) fn run(&mut self, number: usize, run: &LoopRun) -> Option<()> {
        let neighbours = self.neighbours.of(number).cloned();
        let known = neighbours.and_then(|known| match self.home(known.index) {
            Home::General(index) => Some((known, index)),
            _ => None,
        });
        let Some((neighbours, index)) = known else {
            return self.steps(number, &run.steps);
        };
        let before = self.state();
        let mut label = Label::default();
        self.test_neighbours(&neighbours, index);
        self.out.jump_if(when::NOT_BELOW, &mut label);
        self.known = Some((neighbours, index));
        self.steps(number, &run.steps)?;
        self.known = None;
        self.careful.push(Careful {
            label,
            back: self.out.code.len(),
            number,
            steps: run.steps.clone(),
            guard: None,
            before,
            after: self.state(),
        });
        Some(())
    }

    pub(super) fn steps(&mut self, number: usize, steps: &[SegmentStep]) -> Option<()> {
        self.length = steps.len();
        for (at, step) in steps.iter().enumerate() {
            self.now = (number, at);
            self.flags = None;
            let is_known = self.known.as_ref();
            if is_known.is_some_and(|(known, _)| known.sums.contains(&at)) {
                // The registers are as if it were made.
                self.release();
                self.define(step.d[0]);
            } else {
                self.step(step, steps.get(at + 1))?;
            }
            self.release();
        }
        Some(())
    }

    /// The condition on which a predicate holds, or does not; the flags say it.
    pub(super) fn test(&mut self, on: Reg, negated: bool) -> Option<u8> {
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
}
