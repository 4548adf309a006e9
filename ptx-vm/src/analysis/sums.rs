//! Addresses of elements whose index is a sum of what a thread's index says and what all threads of a block share.
//!
//! Compilers write `from[(block.y * 8 + y) * side + block.x * 32 + x - 1]` as a chain of arithmetic on lanes, done again in each
//! block. Here such an index becomes one sum of two numbers: of the thread, which is the same in all blocks and computed once
//! (`Func::threads`), and of the block, which is the same in all threads. Both are computed modulo 2^32, as the index is, so the
//! sum is what it was, whatever wraps around. Accesses whose elements differ in the number of the block alone share that of the thread,
//! and whoever makes their code needs look at it once (`segment::rows`).
//!
//! Called when the entry's blocks are in order and its values have classes. Must not know vectors.

use std::collections::{HashMap, HashSet};

use super::set::BitSet;
use super::turns::{self, Turning};
use super::uniformity::{Class, note_of_block};
use crate::ir::{Func, Inst, InstKind, Reg};
use crate::segment::{Compared, Tag};
use crate::spaces::unpack;

mod turning;

/// The most numbers of threads: each has a place of its own for all lanes.
const MOST: usize = 8;
/// How far a chain of arithmetic is followed.
const DEPTH: usize = 16;

/// A number of the thread and one of the block, of which at least one is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Sum {
    thread: Option<Reg>,
    block: Option<Reg>,
}

/// Where an element is: at a base that all lanes share, and as many elements of so many bytes further as its index says.
#[derive(Clone, Copy, Debug)]
struct Element {
    base: Reg,
    index: Reg,
    signed: bool,
    log: u8,
    /// The first that is made of the index.
    product: Reg,
}

/// What is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Made {
    Operation(Tag),
    Number(u32),
}

/// What is made of what.
type Key = (Made, [Reg; 2]);

struct Sums<'a> {
    regs: &'a mut Vec<u8>,
    threads: &'a mut Vec<Reg>,
    classes: Vec<Class>,
    /// The one instruction that makes a register, if there is one.
    makers: HashMap<Reg, Inst>,
    /// Registers that blocks of a grid have different values of.
    of_block: BitSet,
    known: HashMap<Reg, Option<Sum>>,
    made: HashMap<Key, Reg>,
    /// Where each register is written that is written once.
    places: HashMap<Reg, Place>,
    /// What is put behind an instruction: all that reads it is behind what it reads.
    behind: HashMap<Place, Vec<Inst>>,
    /// New constants, which come first of all.
    numbers: Vec<Inst>,
    /// To be put before the access that is looked at.
    fresh: Vec<Inst>,
    /// Registers that loops change, and what they are the sum of: the second number changes instead.
    turning: HashMap<Reg, (Turning, Sum)>,
    /// Those numbers, and what they are before the first turn.
    turned: HashMap<Reg, Reg>,
    /// The instruction that is looked at.
    here: Place,
}

/// Addresses and sums that a block has made: of elements by base, index, whether that is signed, and the logarithm of their bytes; of a sum
/// by itself, which has no base.
type Elements = HashMap<(Option<Reg>, Sum, bool, u8), Reg>;

/// A block, and which of its instructions.
type Place = (usize, usize);

/// Rewrites the accesses whose index, or address of shared memory, is such a sum, and comparisons of such, and leaves out arithmetic that nothing reads then. Whether there are any.
pub(super) fn split(func: &mut Func, classes: &[Class]) -> bool {
    let mut counts = vec![0_u32; func.regs.len()];
    let mut of_block = BitSet::new(func.regs.len());
    let mut makers = HashMap::new();
    let mut places = HashMap::new();
    for (number, block) in func.blocks.iter().enumerate() {
        for (at, inst) in block.insts.iter().enumerate() {
            for &reg in &inst.d {
                // What a guard leaves out was never written there, or is what it was: all that a sum is made of stays.
                counts[reg as usize] += 1;
                places.insert(reg, (number, at));
            }
            note_of_block(inst, &mut of_block);
            if let (InstKind::Pure { .. } | InstKind::Const(_), &[reg]) =
                (&inst.kind, inst.d.as_slice())
            {
                makers.insert(reg, inst.clone());
            }
        }
        for reg in block.end.defs() {
            counts[reg as usize] += 2;
        }
    }
    makers.retain(|reg, _| counts[*reg as usize] == 1);
    places.retain(|reg, _| counts[*reg as usize] == 1);
    let mut sums = Sums {
        regs: &mut func.regs,
        threads: &mut func.threads,
        classes: classes.to_vec(),
        makers,
        of_block,
        known: HashMap::new(),
        made: HashMap::new(),
        places,
        behind: HashMap::new(),
        numbers: Vec::new(),
        fresh: Vec::new(),
        turning: HashMap::new(),
        turned: HashMap::new(),
        here: (0, 0),
    };
    let registers = sums.regs.len();
    let turning = turns::find(&func.blocks, sums.regs, classes);
    turning.into_iter().for_each(|turning| sums.turn(turning));
    let mut changed = false;
    // The instructions of each block, those that were there and others.
    let mut rewritten: Vec<Vec<(bool, Vec<Inst>)>> = Vec::new();
    for (number, block) in func.blocks.iter_mut().enumerate() {
        // Elements of this block whose addresses are made in it.
        let mut elements = HashMap::new();
        let mut out = Vec::with_capacity(block.insts.len());
        for (at, mut inst) in block.insts.drain(..).enumerate() {
            sums.here = (number, at);
            let made = sums.source(&inst, &mut elements);
            let fresh = std::mem::take(&mut sums.fresh);
            if let Some((at, reg)) = made {
                out.push((false, fresh));
                inst.s[at] = reg;
                changed = true;
            }
            sums.rewrite_turning(&mut inst);
            out.push((false, std::mem::take(&mut sums.fresh)));
            out.push((true, vec![inst]));
        }
        rewritten.push(out);
    }
    // What was begun and given up may have left some.
    changed |= sums.regs.len() != registers;
    let Sums {
        numbers,
        mut behind,
        ..
    } = sums;
    let mut first = numbers;
    for (number, (block, out)) in func.blocks.iter_mut().zip(rewritten).enumerate() {
        block.insts = std::mem::take(&mut first);
        let mut at = 0;
        for (was_there, insts) in out {
            block.insts.extend(insts);
            if was_there {
                block
                    .insts
                    .extend(behind.remove(&(number, at)).unwrap_or_default());
                at += 1;
            }
        }
    }
    if changed {
        drop_unread(func);
    }
    let insts = func.blocks.iter().flat_map(|block| &block.insts);
    let written: HashSet<Reg> = insts.flat_map(|inst| inst.d.iter().copied()).collect();
    func.threads.retain(|reg| written.contains(reg));
    changed
}

/// Leaves out arithmetic whose results nothing reads.
fn drop_unread(func: &mut Func) {
    let mut reads = vec![0_u32; func.regs.len()];
    let insts = func.blocks.iter().flat_map(|block| &block.insts);
    let ends = func.blocks.iter().flat_map(|block| block.end.uses());
    for reg in insts.flat_map(Inst::uses).chain(ends) {
        reads[reg as usize] += 1;
    }
    // What reads comes after what it reads, nearly always.
    for block in func.blocks.iter_mut().rev() {
        let mut kept: Vec<Inst> = Vec::with_capacity(block.insts.len());
        for inst in block.insts.drain(..).rev() {
            // One under a guard reads what it leaves.
            let own = u32::from(inst.guard.is_some() && inst.kept);
            let unread = inst.d.iter().all(|&reg| reads[reg as usize] == own);
            if unread && matches!(inst.kind, InstKind::Pure { .. }) {
                inst.uses().for_each(|reg| reads[reg as usize] -= 1);
            } else {
                kept.push(inst);
            }
        }
        kept.reverse();
        block.insts = kept;
    }
}

impl Sums<'_> {
    fn class(&self, reg: Reg) -> Class {
        self.classes[reg as usize]
    }

    /// What each lane has in a register that all share, and that is the same in all blocks.
    fn is_of_grid(&self, reg: Reg) -> bool {
        self.class(reg) == Class::Fixed && !self.of_block.has(reg)
    }

    fn constant(&self, reg: Reg) -> Option<u64> {
        match self.makers.get(&reg)?.kind {
            InstKind::Const(value) => Some(value),
            _ => None,
        }
    }

    fn tag(inst: &Inst) -> Tag {
        match inst.kind {
            InstKind::Pure { tag, .. } => tag,
            _ => Tag::None,
        }
    }

    /// A new source for an instruction, and which it is, if that is a sum with a number of the thread; what makes it is in `fresh`.
    fn source(&mut self, inst: &Inst, elements: &mut Elements) -> Option<(usize, Reg)> {
        let step = inst.step()?;
        match step.tag {
            Tag::LoadGlobal | Tag::StoreGlobal => Some((0, self.access(inst, elements)?)),
            Tag::LoadShared | Tag::StoreShared if unpack(step.access.0).count == 1 => {
                let sum = self.new_sum(inst.s[0])?;
                Some((0, self.whole(sum, inst, elements)?))
            }
            // Whether it holds in a whole block may be asked (`segment::decided`).
            Tag::Compare(Compared::S32 | Compared::U32, _) => {
                let class = |at: usize| self.class(inst.s[at]);
                let at = match (class(0), class(1)) {
                    (Class::Varying, Class::Fixed) => 0,
                    (Class::Fixed, Class::Varying) => 1,
                    _ => return None,
                };
                let sum = self.new_sum(inst.s[at])?;
                let block = sum.block?;
                (self.of_block.has(block) || self.turns(block)).then_some(())?;
                Some((at, self.whole(sum, inst, elements)?))
            }
            _ => None,
        }
    }

    /// What a number is the sum of, if it is none by itself.
    fn new_sum(&mut self, reg: Reg) -> Option<Sum> {
        if let Some(sum) = self.turning(reg, None) {
            return Some(sum);
        }
        let is_sum = self.makers.get(&reg).is_some_and(|made| {
            let has = |class: Class| made.s.iter().any(|&reg| self.class(reg) == class);
            Self::tag(made) == Tag::Add32 && has(Class::Thread) && has(Class::Fixed)
        });
        let is_new = !is_sum && self.class(reg) != Class::Thread;
        self.sum(reg, DEPTH)
            .filter(|sum| is_new && sum.thread.is_some())
    }

    /// A register with a sum.
    fn whole(&mut self, sum: Sum, inst: &Inst, elements: &mut Elements) -> Option<Reg> {
        let thread = sum.thread?;
        let Some(block) = sum.block else {
            return Some(thread);
        };
        let key = (None, sum, false, 0);
        // What changes in a loop may have changed since.
        let stays = inst.guard.is_none() && !self.turns(block);
        if stays && let Some(&known) = elements.get(&key) {
            return Some(known);
        }
        // What the whole grid shares belongs to the thread's number.
        let made = self.operation(Tag::Add32, [thread, block], 4, inst)?;
        if self.class(made) == Class::Varying {
            self.fresh.last_mut()?.guard = inst.guard;
            if stays {
                elements.insert(key, made);
            }
        }
        Some(made)
    }

    /// A new address for an access of global memory, if its index is a sum with a number of the thread.
    fn access(&mut self, inst: &Inst, elements: &mut Elements) -> Option<Reg> {
        let step = inst.step()?;
        let access = unpack(step.access.0);
        if access.count != 1 {
            return None;
        }
        let element = self.element(inst.s[0])?;
        if 1 << element.log != step.access.1 {
            return None;
        }
        let sum = match self.turning(element.index, Some(element.product)) {
            Some(sum) => sum,
            None => self.sum(element.index, DEPTH)?,
        };
        let thread = sum.thread?;
        let Element {
            base, signed, log, ..
        } = element;
        let key = (Some(base), sum, signed, log);
        // What was made under a guard, lanes may not have that another one lets through.
        let stays = inst.guard.is_none() && !sum.block.is_some_and(|block| self.turns(block));
        if stays && let Some(&address) = elements.get(&key) {
            return Some(address);
        }
        // Under the guard of the access, so that both stand together.
        let lane = |me: &mut Self, tag: Tag, s: [Reg; 2], width: u8| {
            let made = me.operation(tag, s, width, inst)?;
            // A sum with what the grid shares is of the thread.
            if me.class(made) == Class::Varying {
                me.fresh.last_mut()?.guard = inst.guard;
            }
            Some(made)
        };
        let index = match sum.block {
            Some(block) => lane(self, Tag::Add32, [thread, block], 4)?,
            None => thread,
        };
        let size = self.number(1 << log, inst);
        let product = if signed {
            Tag::MulWideS32
        } else {
            Tag::MulWideU32
        };
        let product = lane(self, product, [index, size], 8)?;
        let address = lane(self, Tag::Add64, [base, product], 8)?;
        if stays {
            elements.insert(key, address);
        }
        Some(address)
    }

    /// What element an address is of.
    fn element(&self, address: Reg) -> Option<Element> {
        let add = self.makers.get(&address)?;
        let &[first, second] = add.s.as_slice() else {
            return None;
        };
        let (base, product) = match (self.class(first), self.class(second)) {
            (Class::Fixed, Class::Varying) => (first, second),
            (Class::Varying, Class::Fixed) => (second, first),
            _ => return None,
        };
        if Self::tag(add) != Tag::Add64 {
            return None;
        }
        let mut first = product;
        let product = self.makers.get(&product)?;
        let widened = |inst: &Inst| match Self::tag(inst) {
            Tag::WidenU32 => Some((inst.s[0], false)),
            Tag::WidenS32 => Some((inst.s[0], true)),
            _ => None,
        };
        let (index, signed, factor) = match Self::tag(product) {
            tag @ (Tag::MulWideU32 | Tag::MulWideS32) => {
                let (mut index, mut factor) = (product.s[0], product.s[1]);
                if self.constant(index).is_some() {
                    (index, factor) = (factor, index);
                }
                (index, tag == Tag::MulWideS32, self.constant(factor)?)
            }
            Tag::Shl64 => {
                first = product.s[0];
                let (index, signed) = widened(self.makers.get(&first)?)?;
                let log = self.constant(product.s[1])?;
                (index, signed, 1_u64.checked_shl(u32::try_from(log).ok()?)?)
            }
            _ => {
                let (index, signed) = widened(product)?;
                (index, signed, 1)
            }
        };
        (factor.is_power_of_two() && factor <= 8).then_some(Element {
            base,
            index,
            signed,
            log: factor.trailing_zeros() as u8,
            product: first,
        })
    }

    /// A number of 32 bits as a sum.
    fn sum(&mut self, reg: Reg, depth: usize) -> Option<Sum> {
        if let Some(&known) = self.known.get(&reg) {
            return known;
        }
        let sum = self.find(reg, depth);
        // Not found for its depth, it may be found from another place.
        if sum.is_some() || depth > 0 {
            self.known.insert(reg, sum);
        }
        sum
    }

    fn find(&mut self, reg: Reg, depth: usize) -> Option<Sum> {
        if self.regs[reg as usize] != 4 || depth == 0 {
            return None;
        }
        match self.class(reg) {
            Class::Fixed => {
                return Some(Sum {
                    thread: None,
                    block: Some(reg),
                });
            }
            Class::Thread => {
                return Some(Sum {
                    thread: Some(reg),
                    block: None,
                });
            }
            Class::Uniform | Class::Varying => {}
        }
        let inst = self.makers.get(&reg)?.clone();
        let source = |me: &mut Self, at: usize| me.sum(inst.s[at], depth - 1);
        match Self::tag(&inst) {
            Tag::Mov32 => source(self, 0),
            Tag::Narrow => {
                let widened = self.makers.get(&inst.s[0])?;
                let is_widened = matches!(Self::tag(widened), Tag::WidenU32 | Tag::WidenS32);
                let number = is_widened.then(|| widened.s[0])?;
                self.sum(number, depth - 1)
            }
            Tag::Add32 => {
                let (a, b) = (source(self, 0)?, source(self, 1)?);
                self.add(a, b, &inst)
            }
            Tag::Sub32 => {
                let (a, b) = (source(self, 0)?, source(self, 1)?);
                if b.thread.is_some() {
                    return None;
                }
                let block = match (a.block, b.block?) {
                    (Some(a), b) => self.operation(Tag::Sub32, [a, b], 4, &inst)?,
                    (None, b) => {
                        let zero = self.number(0, &inst);
                        self.operation(Tag::Sub32, [zero, b], 4, &inst)?
                    }
                };
                Some(Sum {
                    block: Some(block),
                    ..a
                })
            }
            Tag::Mul32 => {
                let (a, b) = (source(self, 0)?, source(self, 1)?);
                self.multiply(a, b, &inst)
            }
            Tag::Mad32 => {
                let (a, b) = (source(self, 0)?, source(self, 1)?);
                let addend = source(self, 2)?;
                let product = self.multiply(a, b, &inst)?;
                self.add(product, addend, &inst)
            }
            Tag::Shl32 => {
                let count = self.constant(inst.s[1]).filter(|&count| count < 32)?;
                let a = source(self, 0)?;
                let factor = Sum {
                    thread: None,
                    block: Some(self.number(1 << count, &inst)),
                };
                self.multiply(a, factor, &inst)
            }
            _ => None,
        }
    }

    fn add(&mut self, a: Sum, b: Sum, like: &Inst) -> Option<Sum> {
        Some(Sum {
            thread: self.both(a.thread, b.thread, like)?,
            block: self.both(a.block, b.block, like)?,
        })
    }

    /// The sum of two numbers, if there are two.
    fn both(&mut self, a: Option<Reg>, b: Option<Reg>, like: &Inst) -> Option<Option<Reg>> {
        Some(match (a, b) {
            (Some(a), Some(b)) => Some(self.operation(Tag::Add32, [a, b], 4, like)?),
            (one, other) => one.or(other),
        })
    }

    /// The product of two sums of which one is the same in the whole grid, unless nothing of the thread is in it.
    fn multiply(&mut self, a: Sum, b: Sum, like: &Inst) -> Option<Sum> {
        let (sum, factor) = if a.thread.is_none() { (b, a) } else { (a, b) };
        if factor.thread.is_some() {
            return None;
        }
        let factor = factor.block?;
        let thread = match sum.thread {
            Some(thread) if self.is_of_grid(factor) => {
                Some(self.operation(Tag::Mul32, [thread, factor], 4, like)?)
            }
            Some(_) => return None,
            None => None,
        };
        let block = match sum.block {
            Some(block) => Some(self.operation(Tag::Mul32, [block, factor], 4, like)?),
            None => None,
        };
        Some(Sum { thread, block })
    }

    /// A constant of 32 bits.
    fn number(&mut self, value: u32, like: &Inst) -> Reg {
        let key = (Made::Number(value), [0; 2]);
        if let Some(&reg) = self.made.get(&key) {
            return reg;
        }
        let reg = self.register(4, Class::Fixed);
        let inst = Inst {
            kind: InstKind::Const(value.into()),
            d: vec![reg],
            s: Vec::new(),
            guard: None,
            kept: false,
            line: like.line,
        };
        self.makers.insert(reg, inst.clone());
        self.numbers.push(inst);
        self.made.insert(key, reg);
        reg
    }

    /// A register with the result of an operation.
    fn operation(&mut self, tag: Tag, s: [Reg; 2], width: u8, like: &Inst) -> Option<Reg> {
        let is_lane = width == 8 || s.iter().any(|&reg| self.class(reg) >= Class::Varying);
        let is_thread = is_lane && width == 4 && self.of_threads(&s);
        let class = match (is_lane, is_thread) {
            (false, _) => Class::Fixed,
            (true, true) => Class::Thread,
            (true, false) => Class::Varying,
        };
        let key = (Made::Operation(tag), s);
        // What differs in lanes is made anew where it is read.
        if class != Class::Varying
            && let Some(&reg) = self.made.get(&key)
        {
            return Some(reg);
        }
        let turns = s.iter().any(|&reg| self.turns(reg));
        if class == Class::Thread && self.threads.len() == MOST || class == Class::Fixed && turns {
            return None;
        }
        let reg = self.register(width, class);
        if class == Class::Thread {
            self.threads.push(reg);
        }
        if class == Class::Fixed && s.iter().any(|&reg| self.of_block.has(reg)) {
            self.of_block.insert(reg);
        }
        let inst = turns::made(tag, &s, reg, like)?;
        if class == Class::Varying {
            self.fresh.push(inst);
            return Some(reg);
        }
        // All of them are there where the last one is written; a new number is there from the beginning.
        if let Some(&place) = s.iter().filter_map(|reg| self.places.get(reg)).max() {
            self.places.insert(reg, place);
            self.behind.entry(place).or_default().push(inst);
        } else {
            self.numbers.push(inst);
        }
        self.made.insert(key, reg);
        Some(reg)
    }

    /// Whether a result of these is of the thread: the same in all blocks.
    fn of_threads(&self, s: &[Reg]) -> bool {
        s.iter()
            .all(|&reg| self.class(reg) == Class::Thread || self.is_of_grid(reg))
    }

    fn register(&mut self, width: u8, class: Class) -> Reg {
        self.regs.push(width);
        self.classes.push(class);
        self.of_block.grow(self.regs.len());
        self.regs.len() as Reg - 1
    }
}
