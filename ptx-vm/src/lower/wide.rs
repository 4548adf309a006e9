//! Registers of 128 bits: each is two of 64, the named one with the lower half. They are moved, loaded, stored, and
//! exchanged atomically; nothing else has them as operands.
//!
//! Called by `lower::arith` and `lower::memory`. Must not know how 16 bytes are accessed at once: `access` does.

use ptx::ast::{Instruction, Operand, Type};

use super::body::{Body, Lowered};
use super::memory::Target;
use crate::ir::{InstKind, Reg, Traits};
use crate::ops::simple::Words;
use crate::ops::{atomic, logic, memory};

impl<'a> Body<'a> {
    /// Both halves of an operand of 128 bits: a register, or a vector of two.
    pub(super) fn halves_of(&mut self, operand: &Operand<'a>) -> Lowered<[Reg; 2]> {
        match operand {
            Operand::Register(register) => match self.wide.get(&register.0) {
                Some(&high) => Ok([register.0, high]),
                None => Err(self.fail("an operand's register does not fit its type")),
            },
            Operand::Vector(elements) => match elements.as_slice() {
                [low, high] => Ok([self.read(low, 8)?, self.read(high, 8)?]),
                _ => Err(self.fail("a vector of a wrong length")),
            },
            _ => Err(self.fail("an operand that is no value of 128 bits")),
        }
    }

    /// Writes both halves to a register of 128 bits, or to a vector of two.
    fn write_halves(&mut self, d: &Operand<'a>, values: [Reg; 2]) -> Lowered {
        let places = match d {
            Operand::Sink => return Ok(()),
            Operand::Register(_) => self.halves_of(d)?.map(Some),
            Operand::Vector(elements) => {
                let [low, high] = elements.as_slice() else {
                    return Err(self.fail("a vector of a wrong length"));
                };
                let mut place = |operand: &Operand<'a>| match operand {
                    Operand::Sink => Ok(None),
                    operand => self.dest(operand, 8).map(Some),
                };
                [place(low)?, place(high)?]
            }
            _ => return Err(self.fail("a destination that is no register")),
        };
        let copy = logic::mov(8).ok_or_else(|| self.unbuilt())?;
        for (place, value) in places.into_iter().zip(values) {
            if let Some(place) = place {
                self.simple(&copy, place, vec![value]);
            }
        }
        Ok(())
    }

    /// `mov.b128`.
    pub(super) fn move_whole(&mut self, at: &'a Instruction<'a>, words: &Words<'_>) -> Lowered {
        let [d, source] = self.operands(at)?;
        if !words.flags.is_empty() {
            return Err(self.unbuilt());
        }
        let values = self.halves_of(source)?;
        // The destination may be the source's own register.
        let copy = logic::mov(8).ok_or_else(|| self.unbuilt())?;
        let values = values.map(|value| self.compute(&copy, vec![value]));
        self.write_halves(d, values)
    }

    /// A load of 16 bytes at once.
    pub(super) fn load_whole(&mut self, d: &Operand<'a>, target: &Target) -> Lowered {
        let imm = self.access(target, 2)?;
        let run = memory::load(8, false, 8, true).ok_or_else(|| self.unbuilt())?;
        let traits = Traits {
            private: true,
            volatile: true,
            ..Traits::default()
        };
        let values = [self.temp(8), self.temp(8)];
        self.emit(
            InstKind::Load { run, imm, traits },
            values.to_vec(),
            vec![target.base],
        );
        self.write_halves(d, values)
    }

    /// A store of 16 bytes at once.
    pub(super) fn store_whole(&mut self, target: &Target, value: &Operand<'a>) -> Lowered {
        let imm = self.access(target, 2)?;
        let run = memory::store(8, 8, true).ok_or_else(|| self.unbuilt())?;
        let [low, high] = self.halves_of(value)?;
        let sources = vec![target.base, low, high];
        self.emit(InstKind::Store { run, imm, loose: 0 }, Vec::new(), sources);
        Ok(())
    }

    /// `atom.exch.b128` and `atom.cas.b128`.
    pub(super) fn exchange_whole(
        &mut self,
        name: &str,
        target: &Target,
        d: Option<&Operand<'a>>,
        values: &[Operand<'a>],
    ) -> Lowered {
        if !is_x86_feature_detected!("cmpxchg16b") {
            return Err(self.fail("this processor exchanges no 16 bytes"));
        }
        let imm = self.access(target, 1)?;
        let mut sources = vec![target.base];
        let run = match (name, values) {
            ("exch", [_]) => atomic::exchange_whole,
            ("cas", [_, _]) => atomic::compare_whole,
            _ => return Err(self.unbuilt()),
        };
        for value in values {
            sources.extend(self.halves_of(value)?);
        }
        let old = [self.temp(8), self.temp(8)];
        self.emit(InstKind::System { run, imm }, old.to_vec(), sources);
        match d {
            Some(d) => self.write_halves(d, old),
            None => Ok(()),
        }
    }

    /// Whether an instruction is of 128 bits.
    pub(super) fn is_whole(words: &Words<'_>) -> bool {
        words.types == [Type::B128]
    }
}
