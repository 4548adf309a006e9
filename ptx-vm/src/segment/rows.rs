//! Accesses of elements whose index is a sum of a number of the thread and one of the block: what is asked about them once, before
//! the first strip.
//!
//! A thread's numbers are the same in all blocks, so it is known ([`crate::ops::rows`]) whether those of each strip follow each other,
//! and which are the least and the greatest. If all elements of a block are inside of what may be reached, and no index goes over the
//! end of its 32 bits, the code for its strips neither compares lanes nor looks at addresses: each access is one vector, as far from the
//! block's first element as the number of the strip's first lane says. There is a second code for all other blocks, which looks at
//! every strip.
//!
//! Of shared memory, whose addresses are such sums by themselves, nothing is asked before: whether all of a row is inside is one
//! comparison for each strip, since strips in which not all lanes run may stand at its ends.
//!
//! Called by `allocate`, and by `transfer` for what is known then. Must not know where such sums come from.

use std::collections::HashMap;

use super::branch::Label;
use super::encode::{Assembler, Base};
use super::general::{Place, R11, RAX, op, when};
use super::plan::Indexed;
use super::step::{RegisterSlot, Row, SegmentStep};
use super::tag::Tag;
use crate::ir::Reg;
use crate::ops::rows::{APART, BITS, LEAST, MOST, ROWS};
use crate::reach::{self, Reach};
use crate::spaces::unpack;

/// The general registers that hold how far from a block's first element a strip's is, for accesses that have that in common: `rbp` and
/// `r12`. A function must leave them as they were.
pub(super) const STARTS: [u8; 2] = [5, 12];

const R8: u8 = Base::R8 as u8;
const R9: u8 = Base::R9 as u8;

/// An access of a segment that is known to be a row, once its segment has asked.
#[derive(Clone, Copy, Debug)]
pub(super) enum KnownRow {
    /// Of global memory, inside of what may be reached.
    Global {
        /// Where the strips' first numbers lie.
        thread: i32,
        log: u8,
        /// Where the place of the block's first element is kept.
        kept: usize,
        /// The register that has the strip's distance from there, if several accesses share it.
        start: Option<u8>,
        /// Where it lies how many elements further the next turn's row is.
        ahead: Option<i32>,
    },
    /// Of shared memory, at the sum of these numbers and a distance; whether lanes follow each other, and a strip's elements are inside,
    /// is asked for each.
    Shared {
        facts: i32,
        thread: i32,
        block: Option<i32>,
        offset: i32,
        /// Of loads of words, where it is kept from where on threads' numbers are places of words, all of them inside; 0 if they are not, or
        /// there is a better way.
        apart: Option<usize>,
    },
}

/// What is asked about an access.
#[derive(Clone, Copy, Debug)]
struct Asked {
    row: KnownRow,
    facts: i32,
    /// Of elements of global memory.
    element: Option<Element>,
}

/// What is asked about elements of global memory.
#[derive(Clone, Copy, Debug)]
struct Element {
    log: u8,
    kept: usize,
    block: Option<i32>,
    base: i32,
    offset: i32,
    signed: bool,
    /// Its number among loads and stores, by which it has a range.
    number: usize,
}

/// The accesses of a segment that may be known to be rows.
#[derive(Clone, Debug, Default)]
pub(super) struct Rows {
    accesses: Vec<(usize, Asked)>,
    /// Where the numbers of strips' first lanes lie and the logarithm of an element's bytes, of which a register has the product.
    starts: Vec<(i32, u8)>,
}

impl Rows {
    /// Of steps whose loads and stores are numbered from `first` on.
    pub(super) fn find(
        steps: &[SegmentStep],
        indexed: &HashMap<usize, Option<Indexed>>,
        slot_of: &dyn Fn(Reg) -> RegisterSlot,
        row_of: &dyn Fn(Reg, u8) -> Option<Row>,
        first: usize,
    ) -> Self {
        let accesses = steps
            .iter()
            .enumerate()
            .filter(|(_, step)| step.access.1 != 0);
        let place = |offset: u32| i32::try_from(offset).ok();
        let mut rows = Vec::new();
        let mut kept = 0;
        for (number, (at, step)) in accesses.enumerate() {
            let access = unpack(step.access.0);
            let shared = || {
                let row = row_of(step.s[0], step.access.1)?;
                let block = match row.block {
                    Some(block) => Some(place(block)?),
                    None => None,
                };
                Some(Asked {
                    row: KnownRow::Shared {
                        facts: place(row.facts)?,
                        thread: place(row.thread)?,
                        block,
                        offset: i32::try_from(access.offset).ok()?,
                        apart: None,
                    },
                    facts: place(row.facts)?,
                    element: None,
                })
            };
            let global = || {
                let indexed = indexed.get(&at).copied().flatten()?;
                let row = row_of(indexed.index(), 1)?;
                let log = indexed.log;
                let fits = step.access.1 == 1 << log && kept < reach::ROWS;
                let kept = Reach::row(kept);
                let element = Element {
                    log,
                    kept,
                    block: match row.block {
                        Some(block) => Some(place(block)?),
                        None => None,
                    },
                    base: place(slot_of(indexed.base).offset)?,
                    offset: i32::try_from(access.offset).ok()?,
                    signed: indexed.signed,
                    number: first + number,
                };
                let thread = place(row.thread)?;
                fits.then_some(Asked {
                    row: KnownRow::Global {
                        thread,
                        log,
                        kept,
                        start: None,
                        ahead: row.ahead.and_then(place),
                    },
                    facts: place(row.facts)?,
                    element: Some(element),
                })
            };
            if access.count != 1 {
                continue;
            }
            let asked = match step.tag {
                Tag::LoadShared | Tag::StoreShared => shared(),
                _ => global(),
            };
            if let Some(mut asked) = asked {
                kept += usize::from(asked.element.is_some());
                if let KnownRow::Shared { apart, .. } = &mut asked.row
                    && step.tag == Tag::LoadShared
                    && step.access.1 == 4
                    && kept < reach::ROWS
                {
                    *apart = Some(Reach::row(kept));
                    kept += 1;
                }
                rows.push((at, asked));
            }
        }
        let mut found = Self {
            accesses: rows,
            starts: Vec::new(),
        };
        found.share_starts();
        found
    }

    /// Gives registers to what several accesses have in common.
    fn share_starts(&mut self) {
        let mut seen = Vec::new();
        for (_, asked) in &mut self.accesses {
            if let KnownRow::Global { thread, log, .. } = asked.row {
                if seen.contains(&(thread, log))
                    && !self.starts.contains(&(thread, log))
                    && self.starts.len() < STARTS.len()
                {
                    self.starts.push((thread, log));
                }
                seen.push((thread, log));
            }
        }
        for (_, asked) in &mut self.accesses {
            if let KnownRow::Global {
                thread, log, start, ..
            } = &mut asked.row
            {
                let shared = self.starts.iter().position(|it| it == &(*thread, *log));
                *start = shared.map(|number| STARTS[number]);
            }
        }
    }

    /// Whether registers are needed.
    pub(super) fn has_starts(&self) -> bool {
        !self.starts.is_empty()
    }

    /// Where a strip begins: fills the registers.
    pub(super) fn start(&self, out: &mut Assembler) {
        for (&(thread, log), register) in self.starts.iter().zip(STARTS) {
            out.general(true, op::LOAD_SIGNED_32, register, Place::At(R8, thread));
            if log > 0 {
                out.shift(true, 4, register, log);
            }
        }
    }

    /// Whether something is to be asked before the first strip.
    pub(super) fn asks(&self) -> bool {
        self.accesses
            .iter()
            .any(|(_, asked)| asked.element.is_some())
    }

    /// Those that nothing is asked about before.
    pub(super) fn shared(&self) -> Self {
        let accesses = self.accesses.iter();
        let shared = accesses.filter(|(_, asked)| asked.element.is_none());
        Self {
            accesses: shared.copied().collect(),
            starts: Vec::new(),
        }
    }

    /// Before the first strip: finds out about loads from shared memory whose lanes are apart.
    pub(super) fn ask_apart(&self, out: &mut Assembler) {
        for (_, asked) in &self.accesses {
            if let KnownRow::Shared {
                facts,
                block,
                offset,
                apart: Some(apart),
                ..
            } = asked.row
            {
                ask_apart(out, (facts, block, offset), apart);
            }
        }
    }

    /// By step.
    pub(super) fn known(&self) -> HashMap<usize, KnownRow> {
        let accesses = self.accesses.iter();
        accesses.map(|(at, asked)| (*at, asked.row)).collect()
    }

    /// The code that asks, before any other; it jumps where one of them is not known to be a row.
    pub(super) fn ask(&self, out: &mut Assembler, other: &mut Label) {
        let mut seen = Vec::new();
        let accesses = self.accesses.iter();
        for (_, asked) in accesses.filter(|(_, asked)| asked.element.is_some()) {
            if !seen.contains(&asked.facts) {
                seen.push(asked.facts);
                out.general(false, &[0x83], 7, Place::Frame(asked.facts + ROWS));
                out.code.push(0); // cmp dword [...], 0
                out.jump_if(when::ZERO, other);
            }
            if let Some(element) = &asked.element {
                element.ask(out, asked.facts, other);
            }
        }
    }
}

/// Where the words of all lanes are inside, and neither rows nor the same for a strip: from where on threads' numbers are their places.
fn ask_apart(out: &mut Assembler, (facts, block, offset): (i32, Option<i32>, i32), apart: usize) {
    let mut other = Label::default();
    out.set_constant(RAX, 0);
    out.general(true, op::STORE, RAX, Place::Reach(apart));
    out.general(false, &[0x83], 7, Place::Frame(facts + APART));
    out.code.push(0); // cmp dword [...], 0
    out.jump_if(when::ZERO, &mut other);
    match block {
        None => out.set_constant(R11, 0),
        Some(block) => out.general(true, op::LOAD_SIGNED_32, R11, Place::Frame(block)),
    }
    out.general_constant(true, 0, R11, offset);
    // The sums in 64 bits are those in 32 if they are inside.
    out.general(false, op::LOAD, R9, Place::Reach(Reach::limit(4)));
    for fact in [LEAST, MOST] {
        out.general(true, op::LOAD, RAX, Place::Frame(facts + fact));
        out.general(true, op::ADD, RAX, Place::Register(R11));
        out.general(true, op::COMPARE, RAX, Place::Register(R9));
        out.jump_if(when::NOT_BELOW, &mut other);
    }
    out.general(false, op::LOAD, RAX, Place::Frame(facts + BITS));
    out.general(false, op::OR, RAX, Place::Register(R11));
    out.test_low(RAX, 3);
    out.jump_if(when::NOT_ZERO, &mut other);
    out.general(true, op::ADD, R11, Place::Reach(Reach::SHARED));
    out.general(true, op::STORE, R11, Place::Reach(apart));
    out.bind(other);
}

impl Element {
    /// rax = the number of the block, r11 and r9 = the least index and the greatest; then where their elements are.
    fn ask(&self, out: &mut Assembler, facts: i32, other: &mut Label) {
        let size = 1_u8 << self.log;
        match self.block {
            None => out.set_constant(RAX, 0),
            Some(block) if self.signed => {
                out.general(true, op::LOAD_SIGNED_32, RAX, Place::Frame(block));
            }
            Some(block) => out.general(false, op::LOAD, RAX, Place::Frame(block)),
        }
        for (register, fact) in [(R11, LEAST), (R9, MOST)] {
            out.general(true, op::LOAD, register, Place::Frame(facts + fact));
            out.general(true, op::ADD, register, Place::Register(RAX));
            // It is what it is modulo 2^32.
            let modulo = if self.signed {
                op::LOAD_SIGNED_32
            } else {
                op::LOAD
            };
            out.general(self.signed, modulo, R8, Place::Register(register));
            out.general(true, op::COMPARE, R8, Place::Register(register));
            out.jump_if(when::NOT_ZERO, other);
        }
        if self.log > 0 {
            for register in [RAX, R11, R9] {
                out.shift(true, 4, register, self.log);
            }
        }
        out.general(true, op::LOAD, R8, Place::Frame(self.base));
        if self.offset != 0 {
            out.general_constant(true, 0, R8, self.offset);
        }
        out.general(true, op::ADD, RAX, Place::Register(R8));
        out.general(true, op::STORE, RAX, Place::Reach(self.kept));
        let (first, limit) = Reach::range(self.number);
        for register in [R11, R9] {
            out.general(true, op::ADD, register, Place::Register(R8));
            out.general(true, op::SUB, register, Place::Reach(first));
            out.general(true, op::COMPARE, register, Place::Reach(limit));
            out.jump_if(when::NOT_BELOW, other);
        }
        if size > 1 {
            out.test_low(R11, size - 1);
            out.jump_if(when::NOT_ZERO, other);
        }
    }
}
