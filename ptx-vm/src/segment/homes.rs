//! Where registers are while a lane goes through a loop alone, and what is made behind the loop.
//!
//! Plain data of `scalar`, used by what makes its code. Must not know how code is made of it.

use std::collections::HashMap;

use super::branch::Label;
use super::encode::Assembler;
use super::general::{Place, op};
use super::step::SegmentStep;
use crate::ir::Reg;

/// Where a register is while a lane goes through the loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Home {
    General(u8),
    Vector(u8),
    Slot,
}

/// A run once more, in which the executor is asked, to be made behind the loop.
pub(super) struct Careful {
    pub(super) label: Label,
    pub(super) back: usize,
    pub(super) number: usize,
    pub(super) steps: Vec<SegmentStep>,
    /// As that of a run.
    pub(super) guard: Option<(Reg, bool)>,
    pub(super) before: Homes,
    pub(super) after: Homes,
}

/// Where registers are, which ones are free, and how many loads and stores there have been.
#[derive(Clone, PartialEq)]
pub(super) struct Homes {
    pub(super) homes: HashMap<Reg, Home>,
    pub(super) free: [Vec<u8>; 2],
    pub(super) transfers: usize,
}

impl Homes {
    /// Whether registers are where they are there.
    pub(super) fn has_homes_of(&self, other: &Self) -> bool {
        self.homes == other.homes
    }
}

/// The condition of a register on which the last access of a run is made.
#[derive(Clone, Copy, Debug)]
pub(super) struct OnlyIf {
    pub(super) register: u8,
    pub(super) condition: u8,
}

/// A value in r11 that is not what was there already.
pub(super) struct Differing {
    pub(super) label: Label,
    pub(super) back: usize,
    pub(super) only_if: OnlyIf,
    pub(super) wide: bool,
    pub(super) to: u8,
}

impl OnlyIf {
    /// The condition on which it holds; the flags say it.
    pub(super) fn test(self, out: &mut Assembler) -> u8 {
        out.general(
            false,
            op::TEST,
            self.register,
            Place::Register(self.register),
        );
        self.condition
    }
}
