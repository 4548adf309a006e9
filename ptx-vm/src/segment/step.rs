//! What a segment is compiled from: its operations, and where their registers lie.
//!
//! Made by `emit`, read by `allocate`. Plain data; knows no vector unit.

use super::tag::Tag;
use crate::ir::{Inst, InstKind, Reg};
use crate::spaces::{StateSpace, unpack};

/// One operation of a segment.
#[derive(Clone, Debug)]
pub(crate) struct SegmentStep {
    pub(crate) tag: Tag,
    /// A constant of the operation.
    pub(crate) imm: u64,
    /// One register; several of loads of vectors, none of stores.
    pub(crate) d: Vec<Reg>,
    pub(crate) s: Vec<Reg>,
    /// Of loads and stores: the access as [`crate::spaces::pack`] packs it, and bytes of an element.
    pub(crate) access: (u64, u8),
    /// Of the PTX.
    pub(crate) line: u32,
}

/// Of which lanes a segment's values are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SegmentLanes {
    /// Of all, whether they run or not.
    All,
    /// Of those that run.
    Masked,
    /// The same in all lanes, computed for one strip.
    Once,
}

/// A segment's code, to be placed anywhere.
#[derive(Debug)]
pub(crate) struct Compiled {
    pub(crate) code: Vec<u8>,
    /// Predicates that it may decide for the whole block before its first strip, and their numbers.
    pub(crate) decided: Vec<(Reg, u32)>,
}

/// Where a register of a segment lies: offset, whether it has a value per lane, bytes of a lane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RegisterSlot {
    pub(crate) offset: u32,
    pub(crate) varying: bool,
    pub(crate) width: u8,
}

/// An index, or an address of shared memory, that is a sum.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    /// Where the thread's numbers lie, all lanes one after the other, and what is known of them.
    pub(crate) thread: u32,
    pub(crate) facts: u32,
    /// Where the block's number lies, if there is one.
    pub(crate) block: Option<u32>,
    /// Where it lies how far a loop's next turn takes that number, if it may be far.
    pub(crate) ahead: Option<u32>,
}

/// What is known of registers of the program.
#[derive(Clone, Copy)]
pub(crate) struct Known<'a> {
    pub(crate) slot_of: &'a dyn Fn(Reg) -> RegisterSlot,
    /// What a register has that is written once, by a constant.
    pub(crate) constant_of: &'a dyn Fn(Reg) -> Option<u64>,
    /// Of what an index is the sum, or an address whose elements have so many bytes; an index's step is 1.
    pub(crate) row_of: &'a dyn Fn(Reg, u8) -> Option<Row>,
}

impl SegmentStep {
    /// An instruction that reads the block's index along an axis.
    pub(crate) fn block_index(inst: &Inst, axis: u8) -> Self {
        Self {
            tag: Tag::BlockIndex(axis),
            imm: 0,
            d: inst.d.clone(),
            s: Vec::new(),
            access: (0, 0),
            line: inst.line,
        }
    }
}

impl Inst {
    /// The instruction as a step, if it can be one.
    pub(crate) fn step(&self) -> Option<SegmentStep> {
        let (tag, access) = match self.kind {
            InstKind::Pure { tag, .. } if self.d.len() == 1 => (tag, (0, 0)),
            InstKind::Load { imm, traits, .. } => {
                let tag = transfer(imm, traits.loose, [Tag::LoadShared, Tag::LoadGlobal])?;
                (tag, (imm, traits.loose))
            }
            InstKind::Store { imm, loose, .. } => {
                let tag = transfer(imm, loose, [Tag::StoreShared, Tag::StoreGlobal])?;
                (tag, (imm, loose))
            }
            InstKind::Atomic { imm, tag, .. } if self.d.is_empty() => {
                (transfer(imm, 4, [tag, Tag::None])?, (imm, 4))
            }
            _ => return None,
        };
        let imm = match self.kind {
            InstKind::Pure { imm, .. } => imm,
            _ => 0,
        };
        (tag != Tag::None).then(|| SegmentStep {
            tag,
            imm,
            d: self.d.clone(),
            s: self.s.clone(),
            access,
            line: self.line,
        })
    }
}

/// What segments call a load or a store of elements of `loose` bytes, if they can have it: in shared memory, or global.
fn transfer(imm: u64, loose: u8, [shared, global]: [Tag; 2]) -> Option<Tag> {
    let access = unpack(imm);
    let fits = match loose {
        1 | 2 => access.count == 1,
        4 | 8 => access.count * usize::from(loose) <= 16,
        _ => false,
    };
    let fits =
        fits && access.count.is_power_of_two() && (-(1 << 30)..1 << 30).contains(&access.offset);
    match (access.place, access.wide) {
        (StateSpace::Shared, false) if fits => Some(shared),
        (StateSpace::Global | StateSpace::Generic, true) if fits => Some(global),
        _ => None,
    }
}

/// Which memory a run of steps has touched, as far as its order may be seen by other lanes of a warp.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Order {
    /// By global and shared memory; a generic address may be either.
    loaded: [bool; 2],
    stored: [bool; 2],
    /// Sums into shared memory: in which order they are made nobody sees that does neither load nor store there.
    summed: bool,
}

impl Order {
    /// Adds a step before those that were added; `false` if it must not be in one segment with them.
    pub(crate) fn precede(&mut self, step: &SegmentStep) -> bool {
        let stores = match step.tag {
            Tag::LoadGlobal | Tag::LoadShared => false,
            Tag::StoreGlobal | Tag::StoreShared => true,
            Tag::SumShared => {
                self.summed = true;
                return !self.loaded[1] && !self.stored[1];
            }
            _ => return true,
        };
        let touched = match unpack(step.access.0).place {
            StateSpace::Shared => [false, true],
            StateSpace::Generic => [true, true],
            _ => [true, false],
        };
        for (space, touched) in touched.into_iter().enumerate() {
            if !touched {
                continue;
            }
            // A store and then a load of what another lane stored; or a load, and then another lane's store: that is usual
            // in global memory, where lanes of a warp do not hand each other values.
            if stores && self.loaded[space]
                || space == 1 && (!stores && self.stored[space] || self.summed)
            {
                return false;
            }
            if stores {
                self.stored[space] = true;
            } else {
                self.loaded[space] = true;
            }
        }
        true
    }
}
