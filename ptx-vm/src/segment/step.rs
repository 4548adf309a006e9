//! What a segment is compiled from: its operations, and where their registers lie.
//!
//! Made by `emit`, read by `allocate`. Plain data; knows no vector unit.

use super::tag::Tag;
use crate::ir::{Inst, InstKind, Reg};

/// One operation of a segment.
#[derive(Clone, Debug)]
pub(crate) struct SegmentStep {
    pub(crate) tag: Tag,
    pub(crate) d: Reg,
    pub(crate) s: Vec<Reg>,
}

/// Where a register of a segment lies: offset, whether it has a value per lane, bytes of a lane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RegisterSlot {
    pub(crate) offset: u32,
    pub(crate) varying: bool,
    pub(crate) width: u8,
}

impl Inst {
    /// The instruction as a step, if it can be one.
    pub(crate) fn step(&self) -> Option<SegmentStep> {
        let InstKind::Pure { tag, .. } = self.kind else {
            return None;
        };
        let &[d] = self.d.as_slice() else { return None };
        (tag != Tag::None && self.guard.is_none()).then(|| SegmentStep {
            tag,
            d,
            s: self.s.clone(),
        })
    }
}
