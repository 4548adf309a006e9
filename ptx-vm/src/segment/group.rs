//! Loads of a segment from the same address register, at several distances from it.
//!
//! Such addresses are all alike, or a row, at one distance if they are so at every other; so a strip's lanes are looked at once
//! for the whole group, and where all its loads are inside of what may be reached, each of them is one or two instructions.
//!
//! Called by `transfer` and `allocate`. Must not know what is loaded for.

use super::allocate::Allocator;
use super::branch::{Label, When};
use super::encode::{self, Assembler, Base, Rm};
use super::plan::Group;
use super::rows::{KnownRow, STARTS};
use super::transfer::{Places, Transfer};
use crate::reach::{GROUPS, Reach};

/// The general registers that hold groups' addresses. A function must leave them as they were.
pub(super) const BASES: [Base; GROUPS] = [Base::Rbx, Base::R13, Base::R14, Base::R15];

/// How a group's addresses lie, as the code knows it while it does a strip.
const ALIKE: u8 = 0;
const ROW: u8 = 1;
const APART: u8 = 2;

impl Allocator<'_> {
    /// The group of the present step: its number, and whether this is its first load.
    pub(super) fn group(&self) -> Option<(usize, bool)> {
        let has = |group: &Group| group.has(self.now);
        let number = self.groups.iter().position(has)?;
        Some((number, self.groups[number].members[0] == self.now))
    }

    /// Where it stands, if the present step is a later load of a group, whether the group's first one was made without a look at how
    /// its addresses lie.
    pub(super) fn first_apart(&self) -> Option<usize> {
        let (number, is_first) = self.group()?;
        let first = self.groups[number].members.first()?;
        match self.rows.get(first)? {
            KnownRow::Shared { apart, .. } if !is_first => *apart,
            _ => None,
        }
    }

    /// Before a group's first load, whose addresses are in registers: finds out how they lie.
    pub(super) fn look(&mut self, number: usize, transfer: &Transfer, places: &Places) {
        let (least, span) = (self.groups[number].least, self.groups[number].span);
        let (least, span) = (least as i32, span as i32);
        let base = BASES[number];
        let out = &mut self.out;
        let low = (transfer.size() - 1) as u8;
        let (mut differ, mut apart, mut done) =
            (Label::default(), Label::default(), Label::default());
        let inside = |out: &mut Assembler, row: bool, apart: &mut Label| {
            out.lea_r11(places.is_wide(), least);
            out.base_from_r11(base);
            out.test_r11(low);
            out.jump(When::NotZero, apart);
            match places {
                Places::Global { range, .. } => {
                    out.r11_minus(range.0);
                    out.compare_r11(true, range.1);
                    out.jump(When::NotBelow, apart);
                    out.advance_r11(span);
                    out.compare_r11(true, range.1);
                    out.jump(When::NotBelow, apart);
                }
                Places::Shared { .. } => {
                    let limit = Reach::limit(transfer.size() * if row { 16 } else { 1 });
                    out.compare_r11(false, limit);
                    out.jump(When::NotBelow, apart);
                    out.advance_r11(span);
                    out.compare_r11(false, limit);
                    out.jump(When::NotBelow, apart);
                    out.base_plus(base, Reach::SHARED);
                }
            }
            out.set_class(Reach::class(number), if row { ROW } else { ALIKE });
        };
        places.compare(out, transfer, None);
        out.jump(When::NotZero, &mut differ);
        inside(out, false, &mut apart);
        out.jump(When::Always, &mut done);
        out.bind(differ);
        if transfer.rows() {
            places.compare(out, transfer, Some(transfer.size()));
            out.jump(When::NotZero, &mut apart);
            inside(out, true, &mut apart);
            out.jump(When::Always, &mut done);
        }
        out.bind(apart);
        out.set_class(Reach::class(number), APART);
        out.bind(done);
    }

    /// A load of a group, if its addresses are alike or a row; jumps to `done` then.
    pub(super) fn load_of_group(
        &mut self,
        number: usize,
        transfer: &Transfer,
        offset: i64,
        done: &mut Label,
    ) {
        let place = (BASES[number], (offset - self.groups[number].least) as i32);
        let out = &mut self.out;
        let (mut row, mut other) = (Label::default(), Label::default());
        out.compare_class(Reach::class(number), ROW);
        out.jump(When::Above, &mut other);
        if transfer.rows() {
            out.jump(When::Zero, &mut row);
        }
        transfer.one_for_all(out, place);
        out.jump(When::Always, done);
        if transfer.rows() {
            out.bind(row);
            transfer.row(out, place);
            out.jump(When::Always, done);
        }
        out.bind(other);
    }
}

impl Assembler {
    /// Keeps the registers of so many groups for whoever calls the code; an even number, so that the stack stays aligned.
    pub(super) fn push_bases(&mut self, groups: usize) {
        for &base in &BASES[..groups.next_multiple_of(2)] {
            self.code.extend(
                (base as u8 >= 8)
                    .then_some(0x41)
                    .into_iter()
                    .chain([0x50 | base as u8 & 7]),
            );
        }
        self.pushed = groups.next_multiple_of(2);
    }

    /// Keeps the registers of rows for whoever calls the code, two of them.
    pub(super) fn push_starts(&mut self) {
        STARTS.iter().for_each(|&register| self.push(register));
        self.keeps_rows = true;
    }

    /// Gives them back.
    pub(super) fn pop_bases(&mut self) {
        if self.keeps_rows {
            STARTS.iter().rev().for_each(|&register| self.pop(register));
        }
        for &base in BASES[..self.pushed].iter().rev() {
            self.code.extend(
                (base as u8 >= 8)
                    .then_some(0x41)
                    .into_iter()
                    .chain([0x58 | base as u8 & 7]),
            );
        }
    }

    /// r11 = rax + distance, in 64 bits or in 32.
    fn lea_r11(&mut self, wide: bool, distance: i32) {
        self.code
            .extend_from_slice(&[if wide { 0x4c } else { 0x44 }, 0x8d, 0x98]);
        self.code.extend_from_slice(&distance.to_le_bytes());
    }

    /// r11 = r11 + distance
    fn advance_r11(&mut self, distance: i32) {
        self.code.extend_from_slice(&[0x4d, 0x8d, 0x9b]);
        self.code.extend_from_slice(&distance.to_le_bytes());
    }

    /// Looks at bits of r11's lowest byte.
    fn test_r11(&mut self, bits: u8) {
        self.code.extend_from_slice(&[0x41, 0xf6, 0xc3, bits]);
    }

    /// r11 = r11 - [r10 + place]
    fn r11_minus(&mut self, place: usize) {
        self.reach([0x4d, 0x2b, 0x9a], place);
    }

    /// Compares r11 with [r10 + place], in 64 bits or in 32.
    fn compare_r11(&mut self, wide: bool, place: usize) {
        self.reach([if wide { 0x4d } else { 0x45 }, 0x3b, 0x9a], place);
    }

    /// base = r11
    fn base_from_r11(&mut self, base: Base) {
        let base = base as u8;
        self.code
            .extend_from_slice(&[0x4c | base >> 3, 0x89, 0xd8 | base & 7]);
    }

    /// base = base + [r10 + place]
    fn base_plus(&mut self, base: Base, place: usize) {
        let base = base as u8;
        self.reach(
            [0x49 | (base >> 3) << 2, 0x03, 0x82 | (base & 7) << 3],
            place,
        );
    }

    /// [r10 + place] = class
    fn set_class(&mut self, place: usize, class: u8) {
        self.reach([0x41, 0xc7, 0x82], place);
        self.code.extend_from_slice(&u32::from(class).to_le_bytes());
    }

    /// Compares [r10 + place] with a class.
    pub(super) fn compare_class(&mut self, place: usize, class: u8) {
        self.reach([0x41, 0x83, 0xba], place);
        self.code.push(class);
    }
}

impl Places {
    fn is_wide(&self) -> bool {
        matches!(self, Self::Global { .. })
    }

    /// Looks whether running lanes' addresses differ from the first lane's, or with a step from a row of it; puts the first
    /// lane's into rax.
    fn compare(&self, out: &mut Assembler, transfer: &Transfer, step: Option<usize>) {
        let [u, v] = transfer.spare();
        match *self {
            Self::Shared { lanes } => {
                match step {
                    None => transfer.first(out, &[lanes], u),
                    Some(step) => {
                        transfer.row_start(out, false, u, step);
                        let row = Rm::Row(false, step as u8, 0);
                        out.vector(encode::ADD_32, u, u, row, 0);
                    }
                }
                out.differ(false, 3, lanes, u, 1);
                out.test_mask();
            }
            Self::Global { lanes, .. } => {
                match step {
                    None => transfer.first(out, &lanes, u),
                    Some(step) => transfer.row_start(out, true, u, step),
                }
                for (part, lanes) in lanes.into_iter().enumerate() {
                    let mask = 1 + part as u8;
                    let mut other = u;
                    if let Some(step) = step {
                        let row = Rm::Row(true, step as u8, (8 * step * part) as u16);
                        out.vector(encode::ADD_64, v, u, row, 0);
                        other = v;
                    }
                    out.differ(true, 2 + mask, lanes, other, mask);
                }
                out.test_masks(true);
            }
        }
    }
}
