//! The steps of a loop that a lane goes through alone.
//!
//! Called by `scalar`. Must not know lanes.

use super::encode::Assembler;
use super::general::{Place, R11, RAX, Single, op, when};
use super::homes::Home;
use super::scalar::Scalar;
use super::step::SegmentStep;
use super::tag::{Compared, Tag};
use crate::ir::Reg;

/// Vector registers for what is between.
const FIRST: u8 = 15;
const SECOND: u8 = 14;

impl Scalar<'_> {
    /// A whole number into a general register, with zeros before it.
    pub(super) fn read(&mut self, to: u8, reg: Reg) -> Option<()> {
        if let Some(constant) = self.constant(reg) {
            self.out.set_constant(to, constant);
            return Some(());
        }
        match self.home(reg) {
            Home::General(from) if from == to => {}
            Home::General(from) => {
                let wide = self.width(reg) == 8;
                self.out.general(wide, op::LOAD, to, Place::Register(from));
            }
            Home::Vector(_) => return None,
            Home::Slot => self.load_slot(to, reg)?,
        }
        Some(())
    }

    /// A whole number as a last operand; r11 may be lost.
    fn operand(&mut self, reg: Reg) -> Option<Place> {
        match self.home(reg) {
            Home::General(register) => return Some(Place::Register(register)),
            Home::Slot if self.constant(reg).is_none() && self.width(reg) >= 4 => {
                return self.slot(reg);
            }
            _ => {}
        }
        self.read(R11, reg)?;
        Some(Place::Register(R11))
    }

    /// A constant that an instruction can have.
    fn short_constant(&self, reg: Reg) -> Option<i32> {
        let constant = self.constant(reg)?;
        match self.width(reg) {
            8 => i32::try_from(constant.cast_signed()).ok(),
            _ => Some((constant as u32).cast_signed()),
        }
    }

    /// The register in which a whole result is to be made: its home, unless an operand is read from there later.
    fn target(&mut self, step: &SegmentStep, later: &[Place]) -> u8 {
        self.release();
        match self.define(step.d[0]) {
            Home::General(register) if !later.contains(&Place::Register(register)) => register,
            _ => RAX,
        }
    }

    /// The result is in a general register.
    fn finish(&mut self, step: &SegmentStep, from: u8) -> Option<()> {
        match self.home(step.d[0]) {
            Home::General(register) if register == from => {}
            Home::General(register) => {
                self.out
                    .general(true, op::LOAD, register, Place::Register(from));
            }
            Home::Vector(_) => return None,
            Home::Slot => self.store_slot(from, step.d[0])?,
        }
        Some(())
    }

    /// `d = a op b`; `which` is the operation with a constant.
    fn binary(
        &mut self,
        step: &SegmentStep,
        wide: bool,
        op: &[u8],
        which: Option<u8>,
        commutes: bool,
    ) -> Option<()> {
        let (mut a, mut b) = (step.s[0], step.s[1]);
        // The result can be made where an operand is that is not read again.
        let is_home = |me: &Self, reg: Reg| {
            let same = me.homes.get(&reg) == me.homes.get(&step.d[0]);
            me.homes.contains_key(&reg) && (same || me.endings.get(&reg) == Some(&me.now))
        };
        if commutes && (self.short_constant(a).is_some() || is_home(self, b)) {
            (a, b) = (b, a);
        }
        if let (Some(which), Some(constant)) = (which, self.short_constant(b)) {
            let from = self.home(a);
            let to = self.target(step, &[]);
            self.read_from(to, a, from)?;
            self.out.general_constant(wide, which, to, constant);
            return self.finish(step, to);
        }
        let (from, other) = (self.home(a), self.operand(b)?);
        let to = self.target(step, &[other]);
        self.read_from(to, a, from)?;
        self.out.general(wide, op, to, other);
        self.finish(step, to)
    }

    /// As [`Self::read`], of a register whose home was this one.
    pub(super) fn read_from(&mut self, to: u8, reg: Reg, home: Home) -> Option<()> {
        match home {
            Home::General(from) => {
                if from != to {
                    let wide = self.width(reg) == 8;
                    self.out.general(wide, op::LOAD, to, Place::Register(from));
                }
                Some(())
            }
            Home::Vector(_) => None,
            Home::Slot => match self.constant(reg) {
                Some(constant) => {
                    self.out.set_constant(to, constant);
                    Some(())
                }
                None => self.load_slot(to, reg),
            },
        }
    }

    /// `d = f(a)`, where `make` changes a register.
    fn unary(&mut self, step: &SegmentStep, make: impl FnOnce(&mut Assembler, u8)) -> Option<()> {
        let from = self.home(step.s[0]);
        let to = self.target(step, &[]);
        self.read_from(to, step.s[0], from)?;
        make(&mut self.out, to);
        self.finish(step, to)
    }

    /// A shift by a constant, of numbers of so many bits.
    fn shift(&mut self, step: &SegmentStep, wide: bool, which: u8) -> Option<()> {
        let bits = if wide { 64 } else { 32 };
        let count = self.constant(step.s[1])?;
        let (count, gone) = match (which, count < bits) {
            (_, true) => (count as u8, false),
            (7, false) => (bits as u8 - 1, false),
            (_, false) => (0, true),
        };
        self.unary(step, |out, to| {
            if gone {
                out.set_constant(to, 0);
            } else {
                out.shift(wide, which, to, count);
            }
        })
    }

    /// The product of two numbers of 32 bits in 64.
    fn multiply_wide(&mut self, step: &SegmentStep, signed: bool) -> Option<()> {
        let (mut a, mut b) = (step.s[0], step.s[1]);
        if self.constant(a).is_some() {
            (a, b) = (b, a);
        }
        let log = self
            .constant(b)
            .filter(|&constant| constant.is_power_of_two());
        if let Some(constant) = log.filter(|&constant| constant < 1 << 31) {
            let log = constant.trailing_zeros() as u8;
            return self.unary(step, |out, to| {
                let from = Place::Register(to);
                if signed {
                    out.general(true, op::LOAD_SIGNED_32, to, from);
                }
                out.shift(true, 4, to, log);
            });
        }
        self.read(RAX, a)?;
        if signed {
            self.out
                .general(true, op::LOAD_SIGNED_32, RAX, Place::Register(RAX));
        }
        self.read(R11, b)?;
        if signed {
            self.out
                .general(true, op::LOAD_SIGNED_32, R11, Place::Register(R11));
        }
        self.out
            .general(true, op::MULTIPLY, RAX, Place::Register(R11));
        self.release();
        self.define(step.d[0]);
        self.finish(step, RAX)
    }

    /// The lesser of two numbers, or the greater: the second one on this condition.
    fn choose(&mut self, step: &SegmentStep, condition: u8) -> Option<()> {
        self.read(RAX, step.s[0])?;
        let other = self.operand(step.s[1])?;
        self.out.general(false, op::COMPARE, RAX, other);
        self.out.move_if(false, condition, RAX, other);
        self.release();
        self.define(step.d[0]);
        self.finish(step, RAX)
    }

    /// One of two values by a predicate.
    fn select(&mut self, step: &SegmentStep, wide: bool) -> Option<()> {
        self.read(R11, step.s[2])?;
        self.out.general(false, op::TEST, R11, Place::Register(R11));
        // Constants are set without the flags being lost.
        self.read(RAX, step.s[1])?;
        let other = self.operand(step.s[0])?;
        self.out.move_if(wide, when::NOT_ZERO, RAX, other);
        self.release();
        self.define(step.d[0]);
        self.finish(step, RAX)
    }

    /// A comparison of whole numbers; the flags have it too.
    fn compare(&mut self, step: &SegmentStep, compared: Compared, predicate: u8) -> Option<()> {
        let wide = compared.is_wide();
        let condition = when::holds(compared, predicate)?;
        let left = match self.home(step.s[0]) {
            Home::General(register) => register,
            _ => {
                self.read(RAX, step.s[0])?;
                RAX
            }
        };
        match self.short_constant(step.s[1]) {
            Some(constant) => self.out.general_constant(wide, 7, left, constant),
            None => {
                let right = self.operand(step.s[1])?;
                self.out.general(wide, op::COMPARE, left, right);
            }
        }
        self.release();
        // For what only the branch after the run asks about, the flags are enough.
        let (run, at) = self.now;
        let passes = self.endings.get(&step.d[0]) == Some(&(run, at + 1)) && at + 1 == self.length;
        if !passes {
            let to = self.target(step, &[]);
            self.out.set_if(condition, to);
            self.finish(step, to)?;
        }
        self.flags = Some((step.d[0], condition));
        Some(())
    }

    /// A comparison of floating-point numbers.
    fn compare_floats(&mut self, step: &SegmentStep, double: bool, predicate: u8) -> Option<()> {
        let left = self.vector(step.s[0], FIRST)?;
        let right = self.number(step.s[1])?;
        let op = Single::arithmetic(0xc2, double);
        self.out.single(op, FIRST, left, right);
        self.out.code.push(predicate);
        self.release();
        let to = self.target(step, &[]);
        self.out
            .single(Single::TO_GENERAL, FIRST, 0, Place::Register(to));
        self.out.general_constant(false, 4, to, 1);
        self.finish(step, to)
    }

    /// A floating-point number as a last operand.
    fn number(&self, reg: Reg) -> Option<Place> {
        match self.home(reg) {
            Home::Vector(register) => Some(Place::Register(register)),
            Home::General(_) => None,
            Home::Slot => self.slot(reg),
        }
    }

    /// A floating-point number in a vector register: its own, or this one.
    fn vector(&mut self, reg: Reg, spare: u8) -> Option<u8> {
        match self.number(reg)? {
            Place::Register(register) => Some(register),
            place => {
                let op = Single::LOAD[usize::from(self.width(reg) == 8)];
                self.out.single(op, spare, 0, place);
                Some(spare)
            }
        }
    }

    /// A factor of a product to which something is added: it may have been left in memory.
    fn factor(&self, reg: Reg) -> Option<Place> {
        match self.factor {
            Some((factor, Some(place))) if factor == reg => Some(place),
            _ => self.number(reg),
        }
    }

    /// The register in which a floating-point result is to be made.
    fn vector_target(&mut self, step: &SegmentStep) -> u8 {
        self.release();
        match self.define(step.d[0]) {
            Home::Vector(register) => register,
            _ => FIRST,
        }
    }

    /// The result is in a vector register.
    fn finish_vector(&mut self, step: &SegmentStep, from: u8) -> Option<()> {
        match self.home(step.d[0]) {
            Home::Vector(register) if register == from => {}
            Home::Vector(register) => {
                self.out
                    .single(Single::COPY, register, 0, Place::Register(from));
            }
            Home::General(_) => return None,
            Home::Slot => {
                let op = Single::STORE[usize::from(self.width(step.d[0]) == 8)];
                let place = self.slot(step.d[0])?;
                self.out.single(op, from, 0, place);
            }
        }
        Some(())
    }

    /// Arithmetic on two floating-point numbers.
    fn float(&mut self, step: &SegmentStep, byte: u8, double: bool) -> Option<()> {
        let left = self.vector(step.s[0], SECOND)?;
        let right = self.number(step.s[1])?;
        let to = self.vector_target(step);
        self.out
            .single(Single::arithmetic(byte, double), to, left, right);
        self.finish_vector(step, to)
    }

    fn root(&mut self, step: &SegmentStep, double: bool) -> Option<()> {
        let from = self.vector(step.s[0], SECOND)?;
        let to = self.vector_target(step);
        let op = Single::arithmetic(0x51, double);
        self.out.single(op, to, from, Place::Register(from));
        self.finish_vector(step, to)
    }

    /// A product and a sum, rounded once.
    fn fma(&mut self, step: &SegmentStep, double: bool) -> Option<()> {
        let load = Single::LOAD[usize::from(double)];
        let factors = [self.factor(step.s[0])?, self.factor(step.s[1])?];
        let addend = self.number(step.s[2])?;
        // One factor may be in memory; the instruction reads it there last.
        let (left, right) = match factors {
            [Place::Register(left), right] => (left, right),
            [left, Place::Register(right)] => (right, left),
            [left, right] => {
                self.out.single(load, SECOND, 0, left);
                (SECOND, right)
            }
        };
        // Where an operand is that ends here the result can be made without a copy: not where one was not loaded, nor where it would
        // have been, since both codes of a run have the same homes.
        let last = self.factor.take().map(|(reg, _)| reg);
        let operands = [step.s[2], step.s[1], step.s[0]].into_iter();
        let operands = operands.filter(|&reg| Some(reg) != last);
        let wanted: Vec<Home> = operands.map(|reg| self.home(reg)).collect();
        self.release();
        let to = match self.define_at(step.d[0], &wanted) {
            Home::Vector(register) => register,
            _ => FIRST,
        };
        let double = usize::from(double);
        let to = match addend {
            Place::Register(addend) if to != addend && to == left => {
                self.out.single(Single::FMA_132[double], to, addend, right);
                to
            }
            Place::Register(register) if to != register && right == Place::Register(to) => {
                self.out.single(Single::FMA_213[double], to, left, addend);
                to
            }
            // The sum is made where the addend is.
            _ => {
                let is_factor = to == left || right == Place::Register(to);
                let sum = if is_factor { FIRST } else { to };
                match addend {
                    Place::Register(from) if from == sum => {}
                    Place::Register(_) => self.out.single(Single::COPY, sum, 0, addend),
                    place => self.out.single(load, sum, 0, place),
                }
                self.out.single(Single::FMA_231[double], sum, left, right);
                sum
            }
        };
        self.finish_vector(step, to)
    }

    fn convert(&mut self, step: &SegmentStep, signed: bool) -> Option<()> {
        self.read(RAX, step.s[0])?;
        let to = self.vector_target(step);
        let op = if signed {
            Single::FROM_S32
        } else {
            Single::FROM_S64
        };
        self.out.single(op, to, to, Place::Register(RAX));
        self.finish_vector(step, to)
    }

    /// A copy of 4 or 8 bytes, of whichever kind.
    fn copy(&mut self, step: &SegmentStep) -> Option<()> {
        if !self.floats.contains(&step.d[0]) {
            return self.unary(step, |_, _| {});
        }
        let from = self.vector(step.s[0], FIRST)?;
        self.release();
        self.define(step.d[0]);
        self.finish_vector(step, from)
    }

    /// One step, with the one after it; `None` if it is none for single numbers.
    pub(super) fn step(&mut self, step: &SegmentStep, next: Option<&SegmentStep>) -> Option<()> {
        match step.tag {
            Tag::Add32 => self.binary(step, false, op::ADD, Some(0), true),
            Tag::Add64 => self.binary(step, true, op::ADD, Some(0), true),
            Tag::Sub32 => self.binary(step, false, op::SUB, Some(5), false),
            Tag::Sub64 => self.binary(step, true, op::SUB, Some(5), false),
            Tag::Mul32 => self.binary(step, false, op::MULTIPLY, None, true),
            Tag::And32 | Tag::AndPredicate => self.binary(step, false, op::AND, Some(4), true),
            Tag::And64 => self.binary(step, true, op::AND, Some(4), true),
            Tag::Or32 | Tag::OrPredicate => self.binary(step, false, op::OR, Some(1), true),
            Tag::Or64 => self.binary(step, true, op::OR, Some(1), true),
            Tag::Xor32 | Tag::XorPredicate => self.binary(step, false, op::XOR, Some(6), true),
            Tag::Xor64 => self.binary(step, true, op::XOR, Some(6), true),
            Tag::Not32 => self.unary(step, Assembler::complement),
            Tag::NotPredicate => self.unary(step, |out, to| out.general_constant(false, 6, to, 1)),
            Tag::Narrow16 => self.unary(step, |out, to| {
                out.general(false, op::LOAD_16, to, Place::Register(to));
            }),
            Tag::Narrow | Tag::WidenU32 => self.unary(step, |out, to| {
                out.general(false, op::LOAD, to, Place::Register(to));
            }),
            Tag::WidenS32 => self.unary(step, |out, to| {
                out.general(true, op::LOAD_SIGNED_32, to, Place::Register(to));
            }),
            Tag::MovNarrow => self.unary(step, |_, _| {}),
            Tag::Mov32 | Tag::Mov64 => self.copy(step),
            Tag::Shl32 => self.shift(step, false, 4),
            Tag::Shl64 => self.shift(step, true, 4),
            Tag::ShrU32 => self.shift(step, false, 5),
            Tag::ShrU64 => self.shift(step, true, 5),
            Tag::ShrS32 => self.shift(step, false, 7),
            Tag::MulWideS32 => self.multiply_wide(step, true),
            Tag::MulWideU32 => self.multiply_wide(step, false),
            Tag::MinS32 => self.choose(step, when::GREATER),
            Tag::MinU32 => self.choose(step, when::ABOVE),
            Tag::MaxS32 => self.choose(step, when::LESS),
            Tag::MaxU32 => self.choose(step, when::BELOW),
            Tag::Select32 => self.select(step, false),
            Tag::Select64 => self.select(step, true),
            Tag::Compare(Compared::F32, predicate) => self.compare_floats(step, false, predicate),
            Tag::Compare(Compared::F64, predicate) => self.compare_floats(step, true, predicate),
            Tag::Compare(compared, predicate) => self.compare(step, compared, predicate),
            Tag::AddF32 => self.float(step, 0x58, false),
            Tag::MulF32 => self.float(step, 0x59, false),
            Tag::SubF32 => self.float(step, 0x5c, false),
            Tag::DivF32 => self.float(step, 0x5e, false),
            Tag::AddF64 => self.float(step, 0x58, true),
            Tag::MulF64 => self.float(step, 0x59, true),
            Tag::SubF64 => self.float(step, 0x5c, true),
            Tag::DivF64 => self.float(step, 0x5e, true),
            Tag::SqrtF32 => self.root(step, false),
            Tag::SqrtF64 => self.root(step, true),
            Tag::FmaF32 => self.fma(step, false),
            Tag::FmaF64 => self.fma(step, true),
            Tag::CvtS32F32 => self.convert(step, true),
            Tag::CvtU32F32 => self.convert(step, false),
            Tag::LoadGlobal | Tag::LoadShared | Tag::StoreGlobal | Tag::StoreShared => {
                self.access(step, next)
            }
            Tag::None
            | Tag::AbsF32
            | Tag::BlockIndex(_)
            | Tag::Lop3
            | Tag::Mad32
            | Tag::NegF32
            | Tag::MaxF32
            | Tag::MinF32
            | Tag::RsqrtF32
            | Tag::RsqrtFtzF32
            | Tag::SumShared => None,
        }
    }
}
