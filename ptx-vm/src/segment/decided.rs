//! Predicates of borders and bounds, which hold in all lanes of nearly every block or in none: asked once for the block.
//!
//! Such a predicate compares a sum of a number of the thread and one of the block with what all lanes share. The least number of the
//! threads and the greatest are known ([`crate::ops::rows`]), so whether all sums are on one side of the other number is a matter of a
//! few instructions on general registers. Where all comparisons of a segment are decided so, and nothing but predicates made of
//! them is needed after it, its code writes those and is done; else it does all strips, as everywhere.
//!
//! Called by `allocate`. Must not know what a predicate guards.

use std::collections::HashMap;

use super::branch::{Label, When};
use super::encode::{Assembler, Base, Opcode, Rm, opcode};
use super::general::{Place, R11, RAX, RDI, RDX, RSI, op, when};
use super::step::{Known, SegmentStep};
use super::tag::{Compared, Tag};
use crate::ir::Reg;
use crate::ops::rows::{LEAST, MOST};
use crate::reach::{DECIDED, Reach};

/// vmovups
const STORE: Opcode = opcode(1, 0, false, 0x11);

const R8: u8 = 8;
const R9: u8 = 9;

/// How what is asked about is made; numbers are places in the frame, predicates are numbers of steps before.
#[derive(Debug)]
enum Made {
    Comparison {
        facts: i32,
        block: i32,
        other: i32,
        signed: bool,
        /// That of the sum with the other number.
        predicate: u8,
    },
    And(usize, usize),
    Or(usize, usize),
    Xor(usize, usize),
    Not(usize),
}

/// See the module.
#[derive(Debug)]
pub(super) struct Decided {
    made: Vec<Made>,
    /// Predicates that are needed after the segment, where they lie, and which they are.
    results: Vec<(Reg, i32, usize)>,
}

/// What the code returns that has decided all.
pub(super) const DECIDED_ALL: u8 = 2;

impl Decided {
    /// What can be asked instead of doing these steps, if there is such.
    pub(super) fn find(
        steps: &[SegmentStep],
        known: &Known<'_>,
        live_after: &dyn Fn(Reg) -> bool,
    ) -> Option<Self> {
        let mut made: Vec<Made> = Vec::new();
        // Which each register is, as long as nothing else is written to it.
        let mut number: HashMap<Reg, usize> = HashMap::new();
        for step in steps {
            let &[reg] = step.d.as_slice() else {
                return None;
            };
            if step.access.1 != 0 {
                return None;
            }
            match Self::predicate(step, known, &number) {
                Some(one) => {
                    number.insert(reg, made.len());
                    made.push(one);
                }
                None => {
                    number.remove(&reg);
                }
            }
        }
        let mut results = Vec::new();
        let written = steps.iter().flat_map(|step| &step.d);
        for &reg in written.filter(|&&reg| live_after(reg)) {
            let slot = (known.slot_of)(reg);
            if !slot.varying || slot.width != 1 {
                return None;
            }
            let offset = i32::try_from(slot.offset).ok()?;
            results.push((reg, offset, *number.get(&reg)?));
        }
        results.dedup();
        (!results.is_empty() && made.len() <= DECIDED).then_some(Self { made, results })
    }

    fn predicate(
        step: &SegmentStep,
        known: &Known<'_>,
        number: &HashMap<Reg, usize>,
    ) -> Option<Made> {
        let of = |at: usize| number.get(step.s.get(at)?).copied();
        match step.tag {
            Tag::Compare(compared @ (Compared::S32 | Compared::U32), predicate) => {
                let &[first, second] = step.s.as_slice() else {
                    return None;
                };
                let signed = compared == Compared::S32;
                let (sum, other, predicate) = if (known.slot_of)(second).varying {
                    (second, first, turned(predicate))
                } else {
                    (first, second, predicate)
                };
                let other = (known.slot_of)(other);
                // A number of the thread alone is what it is in every block.
                let row = (known.row_of)(sum, 1).filter(|_| !other.varying && other.width == 4)?;
                Some(Made::Comparison {
                    facts: i32::try_from(row.facts).ok()?,
                    block: i32::try_from(row.block?).ok()?,
                    other: i32::try_from(other.offset).ok()?,
                    signed,
                    predicate,
                })
            }
            Tag::AndPredicate => Some(Made::And(of(0)?, of(1)?)),
            Tag::OrPredicate => Some(Made::Or(of(0)?, of(1)?)),
            Tag::XorPredicate => Some(Made::Xor(of(0)?, of(1)?)),
            Tag::NotPredicate => Some(Made::Not(of(0)?)),
            _ => None,
        }
    }

    /// The predicates that are needed after the segment, and their numbers ([`Reach::decides`]).
    pub(super) fn results(&self) -> Vec<(Reg, u32)> {
        let results = self.results.iter();
        results
            .map(|&(reg, _, number)| (reg, number as u32))
            .collect()
    }

    /// The code that asks, before any other, and returns; it jumps where a comparison is not decided.
    pub(super) fn ask(&self, out: &mut Assembler, other: &mut Label) {
        for (number, made) in self.made.iter().enumerate() {
            let mut gate = |operation: &[u8], first: usize, second: Option<usize>| {
                out.general(false, op::LOAD, RAX, Place::Reach(Reach::decided(first)));
                match second {
                    Some(second) => {
                        let second = Place::Reach(Reach::decided(second));
                        out.general(false, operation, RAX, second);
                    }
                    None => out.general_constant(false, 6, RAX, 1),
                }
            };
            match *made {
                Made::And(first, second) => gate(op::AND, first, Some(second)),
                Made::Or(first, second) => gate(op::OR, first, Some(second)),
                Made::Xor(first, second) => gate(op::XOR, first, Some(second)),
                Made::Not(first) => gate(op::XOR, first, None),
                Made::Comparison {
                    facts,
                    block,
                    other: compared,
                    signed,
                    predicate,
                } => {
                    let places = (facts, block, compared);
                    compare(out, places, signed, predicate, other);
                }
            }
            let place = Place::Reach(Reach::decided(number));
            out.general(false, op::STORE, RAX, place);
        }
        for &(_, offset, number) in &self.results {
            out.broadcast_byte(Place::Reach(Reach::decided(number)));
            // r8 = the strip, r9 = where four of them are: a slot is made of whole cache lines.
            out.general(true, op::LOAD, R8, Place::Register(RSI));
            out.general_constant(true, 4, R8, -4);
            out.general(true, op::LOAD, R9, Place::Register(R8));
            out.shift(true, 4, R9, 4);
            out.general(true, op::ADD, R9, Place::Register(RDI));
            let top = out.code.len();
            out.vector(STORE, 0, 0, Rm::Memory(Base::R9, offset), 0);
            out.general_constant(true, 0, R9, 64);
            out.general_constant(true, 0, R8, 4);
            out.general(true, op::COMPARE, R8, Place::Register(RDX));
            out.jump_back_if(when::BELOW, top);
        }
        out.succeed();
    }
}

/// A comparison's predicate with its operands in the other order.
fn turned(predicate: u8) -> u8 {
    match predicate {
        1 => 6,
        2 => 5,
        5 => 2,
        6 => 1,
        same => same,
    }
}

/// eax = whether a comparison of all sums holds; jumps where it holds for some, or where a sum goes over the end of its 32 bits.
fn compare(
    out: &mut Assembler,
    (facts, block, compared): (i32, i32, i32),
    signed: bool,
    predicate: u8,
    other: &mut Label,
) {
    let load = if signed { op::LOAD_SIGNED_32 } else { op::LOAD };
    out.general(signed, load, RAX, Place::Frame(block));
    // r11 and r9 = the least sum and the greatest
    for (register, fact) in [(R11, LEAST), (R9, MOST)] {
        out.general(true, op::LOAD, register, Place::Frame(facts + fact));
        out.general(true, op::ADD, register, Place::Register(RAX));
        // It is what it is modulo 2^32.
        out.general(signed, load, R8, Place::Register(register));
        out.general(true, op::COMPARE, R8, Place::Register(register));
        out.jump_if(when::NOT_ZERO, other);
    }
    out.general(signed, load, R8, Place::Frame(compared));
    let (mut first, mut done) = (Label::default(), Label::default());
    // Whether it holds at `first`; behind these comparisons the opposite is so.
    let holds = match predicate {
        0 | 4 => {
            out.general(true, op::COMPARE, R8, Place::Register(R11));
            out.jump_if(when::LESS, &mut first);
            out.general(true, op::COMPARE, R8, Place::Register(R9));
            out.jump_if(when::GREATER, &mut first);
            out.general(true, op::COMPARE, R11, Place::Register(R9));
            out.jump_if(when::NOT_ZERO, other);
            predicate == 4
        }
        1 | 5 => {
            out.general(true, op::COMPARE, R9, Place::Register(R8));
            out.jump_if(when::LESS, &mut first);
            out.general(true, op::COMPARE, R11, Place::Register(R8));
            out.jump_if(when::LESS, other);
            predicate == 1
        }
        _ => {
            out.general(true, op::COMPARE, R9, Place::Register(R8));
            out.jump_if(when::NOT_GREATER, &mut first);
            out.general(true, op::COMPARE, R11, Place::Register(R8));
            out.jump_if(when::NOT_GREATER, other);
            predicate == 2
        }
    };
    out.set_constant(RAX, u64::from(!holds));
    out.jump(When::Always, &mut done);
    out.bind(first);
    out.set_constant(RAX, u64::from(holds));
    out.bind(done);
}

impl Assembler {
    /// Vector 0 = a byte from memory, 64 times
    fn broadcast_byte(&mut self, from: Place) {
        self.general(false, op::LOAD, RAX, from);
        self.code
            .extend_from_slice(&[0x62, 0xf2, 0x7d, 0x48, 0x7a, 0xc0]); // vpbroadcastb zmm0, eax
    }

    /// Returns that all is decided, before the loop over strips.
    fn succeed(&mut self) {
        self.set_constant(RAX, DECIDED_ALL.into());
        self.code.extend_from_slice(&[0xc5, 0xf8, 0x77]); // vzeroupper
        self.pop_bases();
        self.code.push(0xc3);
    }
}
