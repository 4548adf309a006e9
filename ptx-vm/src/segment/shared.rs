//! Steps of what all lanes of a strip share, on general registers.
//!
//! Called by `search`. Must not know what lanes do with it.

use std::collections::HashMap;

use super::branch::{Label, When};
use super::encode::Assembler;
use super::general::{Place, R11, RAX, op, when};
use super::step::{RegisterSlot, SegmentStep};
use super::tag::Tag;
use crate::ir::Reg;
use crate::reach::Reach;
use crate::spaces::unpack;

/// Where it is.
pub(super) struct Shared<'a> {
    slot_of: &'a dyn Fn(Reg) -> RegisterSlot,
    constant_of: &'a dyn Fn(Reg) -> Option<u64>,
    /// The general registers of what is written meanwhile, with zeros before it; all else is in its slot.
    pub(super) homes: HashMap<Reg, u8>,
}

impl<'a> Shared<'a> {
    pub(super) fn new(
        slot_of: &'a dyn Fn(Reg) -> RegisterSlot,
        constant_of: &'a dyn Fn(Reg) -> Option<u64>,
    ) -> Self {
        Self {
            slot_of,
            constant_of,
            homes: HashMap::new(),
        }
    }

    fn width(&self, reg: Reg) -> u8 {
        (self.slot_of)(reg).width
    }

    fn constant(&self, reg: Reg) -> Option<u64> {
        let bits = 8 * u32::from(self.width(reg));
        Some((self.constant_of)(reg)? & (u64::MAX >> (64 - bits)))
    }

    /// A constant that an instruction can have.
    fn short_constant(&self, reg: Reg) -> Option<i32> {
        let constant = self.constant(reg)?;
        match self.width(reg) {
            8 => i32::try_from(constant.cast_signed()).ok(),
            _ => Some((constant as u32).cast_signed()),
        }
    }

    /// Where a register lies in the frame, if all lanes share it.
    fn slot(&self, reg: Reg) -> Option<Place> {
        let slot = (self.slot_of)(reg);
        let offset = i32::try_from(slot.offset).ok()?;
        (!slot.varying).then_some(Place::Frame(offset))
    }

    /// Loads a slot, with zeros before it.
    pub(super) fn load(&self, out: &mut Assembler, to: u8, reg: Reg) -> Option<()> {
        let place = self.slot(reg)?;
        match self.width(reg) {
            1 => out.general(false, op::LOAD_8, to, place),
            2 => out.general(false, op::LOAD_16, to, place),
            width => out.general(width == 8, op::LOAD, to, place),
        }
        Some(())
    }

    /// A value into a general register, with zeros before it.
    pub(super) fn read(&self, out: &mut Assembler, to: u8, reg: Reg) -> Option<()> {
        if let Some(&home) = self.homes.get(&reg) {
            if home != to {
                out.general(true, op::LOAD, to, Place::Register(home));
            }
        } else if let Some(constant) = self.constant(reg) {
            out.set_constant(to, constant);
        } else {
            self.load(out, to, reg)?;
        }
        Some(())
    }

    /// A value as a last operand; r11 may be lost.
    fn operand(&self, out: &mut Assembler, reg: Reg) -> Option<Place> {
        if let Some(&home) = self.homes.get(&reg) {
            return Some(Place::Register(home));
        }
        if self.constant(reg).is_none() && self.width(reg) >= 4 {
            return self.slot(reg);
        }
        self.read(out, R11, reg)?;
        Some(Place::Register(R11))
    }

    /// One step, of which loads have a number; jumps to `refused` if one may not be made without asking. `None` for a step that is not
    /// foreseen.
    pub(super) fn step(
        &self,
        out: &mut Assembler,
        step: &SegmentStep,
        number: usize,
        refused: &mut Label,
    ) -> Option<()> {
        let home = *self.homes.get(&step.d[0])?;
        match step.tag {
            Tag::Add32 => self.binary(out, step, home, (false, op::ADD, Some(0)))?,
            Tag::Add64 => self.binary(out, step, home, (true, op::ADD, Some(0)))?,
            Tag::Sub32 => self.binary(out, step, home, (false, op::SUB, Some(5)))?,
            Tag::Sub64 => self.binary(out, step, home, (true, op::SUB, Some(5)))?,
            Tag::Mul32 => self.binary(out, step, home, (false, op::MULTIPLY, None))?,
            Tag::And32 | Tag::AndPredicate => {
                self.binary(out, step, home, (false, op::AND, Some(4)))?;
            }
            Tag::Or32 | Tag::OrPredicate => {
                self.binary(out, step, home, (false, op::OR, Some(1)))?;
            }
            Tag::Xor32 | Tag::XorPredicate => {
                self.binary(out, step, home, (false, op::XOR, Some(6)))?;
            }
            Tag::Mov32 | Tag::Mov64 | Tag::MovNarrow => self.read(out, home, step.s[0])?,
            Tag::Narrow | Tag::WidenU32 => {
                self.read(out, RAX, step.s[0])?;
                out.general(false, op::LOAD, home, Place::Register(RAX));
            }
            Tag::WidenS32 => {
                self.read(out, RAX, step.s[0])?;
                out.general(true, op::LOAD_SIGNED_32, home, Place::Register(RAX));
            }
            Tag::Shl32 => self.shift(out, step, home, (false, 4))?,
            Tag::Shl64 => self.shift(out, step, home, (true, 4))?,
            Tag::ShrU32 => self.shift(out, step, home, (false, 5))?,
            Tag::ShrU64 => self.shift(out, step, home, (true, 5))?,
            Tag::ShrS32 => self.shift(out, step, home, (false, 7))?,
            Tag::MulWideS32 | Tag::MulWideU32 => {
                let factor = self.constant(step.s[1])?;
                let fits = factor.is_power_of_two() && factor < 1 << 31;
                self.read(out, RAX, step.s[0])?;
                if step.tag == Tag::MulWideS32 {
                    out.general(true, op::LOAD_SIGNED_32, RAX, Place::Register(RAX));
                }
                out.shift(true, 4, RAX, factor.trailing_zeros() as u8);
                out.general(true, op::LOAD, home, Place::Register(RAX));
                fits.then_some(())?;
            }
            Tag::Compare(..) => {
                let condition = self.compare(out, step)?;
                out.set_if(condition, home);
            }
            Tag::LoadShared | Tag::LoadGlobal => self.access(out, step, (home, number), refused)?,
            _ => return None,
        }
        Some(())
    }

    /// `home = a op b`; the last is the operation with a constant.
    fn binary(
        &self,
        out: &mut Assembler,
        step: &SegmentStep,
        home: u8,
        (wide, op, which): (bool, &[u8], Option<u8>),
    ) -> Option<()> {
        let (a, b) = (step.s[0], step.s[1]);
        let in_place = self.homes.get(&a) == Some(&home);
        if let (Some(which), Some(constant)) = (which, self.short_constant(b)) {
            let to = if in_place { home } else { RAX };
            self.read(out, to, a)?;
            out.general_constant(wide, which, to, constant);
            if !in_place {
                out.general(true, op::LOAD, home, Place::Register(RAX));
            }
            return Some(());
        }
        let other = self.operand(out, b)?;
        self.read(out, RAX, a)?;
        out.general(wide, op, RAX, other);
        out.general(true, op::LOAD, home, Place::Register(RAX));
        Some(())
    }

    /// A shift by a constant.
    fn shift(
        &self,
        out: &mut Assembler,
        step: &SegmentStep,
        home: u8,
        (wide, which): (bool, u8),
    ) -> Option<()> {
        let bits = if wide { 64 } else { 32 };
        let count = self.constant(step.s[1]).filter(|&count| count < bits)?;
        self.read(out, RAX, step.s[0])?;
        out.shift(wide, which, RAX, count as u8);
        out.general(wide, op::LOAD, home, Place::Register(RAX));
        Some(())
    }

    /// A comparison of whole numbers: on which condition it holds.
    pub(super) fn compare(&self, out: &mut Assembler, step: &SegmentStep) -> Option<u8> {
        let Tag::Compare(compared, predicate) = step.tag else {
            return None;
        };
        let wide = compared.is_wide();
        let condition = when::holds(compared, predicate)?;
        let right = match self.short_constant(step.s[1]) {
            Some(_) => None,
            None => Some(self.operand(out, step.s[1])?),
        };
        let left = match self.homes.get(&step.s[0]) {
            Some(&home) => home,
            None => {
                self.read(out, RAX, step.s[0])?;
                RAX
            }
        };
        match (right, self.short_constant(step.s[1])) {
            (Some(right), _) => out.general(wide, op::COMPARE, left, right),
            (None, constant) => out.general_constant(wide, 7, left, constant?),
        }
        Some(condition)
    }

    /// A predicate: on which condition it holds.
    pub(super) fn test(&self, out: &mut Assembler, on: Reg) -> Option<u8> {
        self.read(out, RAX, on)?;
        out.test_al(1);
        Some(when::NOT_ZERO)
    }

    /// A load of one element for all lanes.
    fn access(
        &self,
        out: &mut Assembler,
        step: &SegmentStep,
        (home, number): (u8, usize),
        refused: &mut Label,
    ) -> Option<()> {
        let access = unpack(step.access.0);
        let (size, offset) = (step.access.1, i32::try_from(access.offset).ok()?);
        if access.count != 1 {
            return None;
        }
        self.read(out, RAX, step.s[0])?;
        if step.tag == Tag::LoadShared {
            if offset != 0 {
                out.general_constant(false, 0, RAX, offset);
            }
            out.compare_eax(Reach::limit(size.into()));
        } else {
            out.advance(offset);
            let (first, limit) = Reach::range(number);
            out.compare_distance(first, limit);
        }
        out.jump(When::NotBelow, refused);
        if size > 1 {
            out.test_al(size - 1);
            out.jump(When::NotZero, refused);
        }
        if step.tag == Tag::LoadShared {
            out.rax_plus(Reach::SHARED);
        }
        let place = Place::At(RAX, 0);
        match size {
            1 => out.general(false, op::LOAD_8, home, place),
            2 => out.general(false, op::LOAD_16, home, place),
            4 | 8 => out.general(size == 8, op::LOAD, home, place),
            _ => return None,
        }
        Some(())
    }
}
