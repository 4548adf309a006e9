//! A function's operands: constants, registers, symbols, and where results go.
//!
//! Called by the files of `lower`, one instruction at a time. Must not know what the instruction does with its
//! operands.

use ptx::ast::{self, Instruction, Operand, Space, Symbol, Type};

use super::super::{VariableId, function_address};
use super::{Body, Lowered};
use crate::ir::{Inst, InstKind, Passed, Reg};
use crate::ops::simple::{Simple, Words};
use crate::ops::{logic, parts, table};
use crate::special_register::Special;

impl<'a> Body<'a> {
    fn preamble(&mut self, kind: InstKind, width: u8) -> Reg {
        let d = self.temp(width);
        let inst = Inst {
            kind,
            d: vec![d],
            s: Vec::new(),
            guard: None,
            kept: true,
            line: self.tree.line,
        };
        self.cost += 1;
        self.preamble.push(inst);
        d
    }

    /// A register with a constant.
    pub(in crate::lower) fn constant(&mut self, value: u64, width: u8) -> Reg {
        let value = if width == 8 {
            value
        } else {
            value & ((1 << (8 * width)) - 1)
        };
        if let Some(&reg) = self.constants.get(&(value, width)) {
            return reg;
        }
        let reg = self.preamble(InstKind::Const(value), width);
        self.constants.insert((value, width), reg);
        reg
    }

    /// A register with a special register's value.
    fn special(&mut self, special: Special, width: u8) -> Reg {
        if let Some(&reg) = self.specials.get(&special.imm()) {
            return reg;
        }
        let reg = self.preamble(InstKind::Special(special), width);
        self.specials.insert(special.imm(), reg);
        reg
    }

    /// A register with a special register of 32 bits.
    pub(in crate::lower) fn special_of(&mut self, special: Special) -> Reg {
        self.special(special, 4)
    }

    /// The carry flag, clear at the start.
    pub(in crate::lower) fn carry(&mut self) -> Reg {
        if let Some(reg) = self.carry {
            return reg;
        }
        let reg = self.preamble(InstKind::Const(0), 1);
        self.carry = Some(reg);
        self.kept.push(reg);
        reg
    }

    /// A new register of 64 bits that is 0 at the start and keeps its value where a guard does not hold.
    pub(in crate::lower) fn counter(&mut self) -> Reg {
        let reg = self.preamble(InstKind::Const(0), 8);
        self.kept.push(reg);
        reg
    }

    /// A register of the source, which must have at least `width` bytes; it is narrowed if it has more.
    pub(in crate::lower) fn register(
        &mut self,
        register: ast::Register,
        width: u8,
    ) -> Lowered<Reg> {
        let reg = register.0;
        let Some(&have) = self
            .func
            .regs
            .get(reg as usize)
            .filter(|_| (reg as usize) < self.named)
        else {
            return Err(self.fail("no such register"));
        };
        if self.wide.contains_key(&reg) {
            return Err(self.fail("an operand's register does not fit its type"));
        }
        self.resize(reg, have, width)
    }

    fn resize(&mut self, reg: Reg, have: u8, want: u8) -> Lowered<Reg> {
        if have == want {
            return Ok(reg);
        }
        if have < want || want == 1 {
            return Err(self.fail("an operand's register does not fit its type"));
        }
        let narrow = logic::resize(have, want, false).ok_or_else(|| self.unbuilt())?;
        Ok(self.compute(&narrow, vec![reg]))
    }

    /// The value of an operand as a register of `width` bytes.
    pub(in crate::lower) fn read(&mut self, operand: &Operand<'_>, width: u8) -> Lowered<Reg> {
        match operand {
            Operand::Register(register) => self.register(*register, width),
            Operand::Not(register) => {
                let reg = self.register(*register, 1)?;
                if width != 1 {
                    return Err(self.fail("a negated operand that is no predicate"));
                }
                let not = self.predicate_op("not")?;
                Ok(self.compute(&not, vec![reg]))
            }
            Operand::Integer(value) => {
                let value = value.cast_unsigned();
                Ok(self.constant(
                    if width == 1 {
                        u64::from(value != 0)
                    } else {
                        value
                    },
                    width,
                ))
            }
            Operand::Float32(bits) => {
                let value = match width {
                    8 => f64::from(f32::from_bits(*bits)).to_bits(),
                    _ => u64::from(*bits),
                };
                Ok(self.constant(value, width))
            }
            Operand::Float64(bits) => {
                let value = f64::from_bits(*bits);
                let value = match width {
                    8 => *bits,
                    4 => u64::from((value as f32).to_bits()),
                    2 => u64::from(crate::ops::half::from_f64(value, 0)),
                    _ => return Err(self.fail("a floating-point operand in a wrong place")),
                };
                Ok(self.constant(value, width))
            }
            Operand::Special(name, component) => {
                let (reg, have) = self.special_register(name, *component)?;
                if have < width {
                    let wide = logic::resize(have, width, false).ok_or_else(|| self.unbuilt())?;
                    return Ok(self.compute(&wide, vec![reg]));
                }
                self.resize(reg, have, width)
            }
            Operand::Symbol(symbol, offset) => {
                let reg = self.symbol(*symbol, *offset)?;
                self.resize(reg, 8, width)
            }
            _ => Err(self.fail("an operand that is no value")),
        }
    }

    fn special_register(&mut self, name: &str, component: Option<char>) -> Lowered<(Reg, u8)> {
        let clock = match name {
            "clock64" | "globaltimer" => Some((8, name == "globaltimer")),
            "clock" | "globaltimer_lo" => Some((4, name == "globaltimer_lo")),
            _ => None,
        };
        if matches!(name, "clock_hi" | "globaltimer_hi") {
            let whole = self.temp(8);
            let nanoseconds = name == "globaltimer_hi";
            self.emit(InstKind::Clock { nanoseconds }, vec![whole], Vec::new());
            return Ok((self.compute(&parts::high64(), vec![whole]), 4));
        }
        if let Some((width, nanoseconds)) = clock {
            let d = self.temp(width);
            self.emit(InstKind::Clock { nanoseconds }, vec![d], Vec::new());
            return Ok((d, width));
        }
        let Some((special, width)) = Special::named(name, component) else {
            if name.starts_with("envreg") || name.starts_with("pm") {
                return Ok((self.constant(0, 4), 4));
            }
            return Err(self.fail(&format!(
                "special register %{name} is not supported by the software GPU (docs/instructions.md says what is)"
            )));
        };
        self.func.asks_reserved |= matches!(
            special,
            Special::ReservedBegin | Special::ReservedEnd | Special::ReservedCap
        );
        Ok((self.special(special, width), width))
    }

    /// The address of something in its own space, as a 64-bit register.
    pub(in crate::lower) fn symbol(&mut self, symbol: Symbol, offset: i64) -> Lowered<Reg> {
        let addend = offset.cast_unsigned();
        let id = match symbol {
            Symbol::Function(index) => {
                return Ok(self.constant(function_address(index).wrapping_add(addend), 8));
            }
            Symbol::Param(index) => {
                let place = u64::from(self.param_places.get(index).copied().unwrap_or(0));
                let place = place.wrapping_add(addend);
                return Ok(if self.tree.entry {
                    self.constant(place, 8)
                } else {
                    self.local(place)
                });
            }
            Symbol::Return(index) => {
                let place = u64::from(self.return_places.get(index).copied().unwrap_or(0));
                return Ok(self.local(place.wrapping_add(addend)));
            }
            Symbol::Module(index) => VariableId::Module(index),
            Symbol::Local(index) => VariableId::Local(self.index, index),
        };
        let Some(variable) = self.kernel.module.variable(id) else {
            return Err(self.fail("no such variable"));
        };
        match (variable.space, id) {
            (Space::Shared, _) => {
                let place = self.kernel.shared.get(&id).copied().unwrap_or(0);
                Ok(self.constant(place.wrapping_add(addend), 8))
            }
            (Space::Global | Space::Const, _) => {
                let index = self.kernel.module.global_index.get(&id).copied();
                let index = index.ok_or_else(|| self.fail("no such variable"))?;
                let base = match self.globals.get(&index) {
                    Some(&reg) => reg,
                    None => {
                        let reg = self.preamble(InstKind::Global(index, 0), 8);
                        self.globals.insert(index, reg);
                        reg
                    }
                };
                if offset == 0 {
                    return Ok(base);
                }
                let addend = self.constant(addend, 8);
                Ok(self.compute(&parts::offset64(false), vec![base, addend]))
            }
            (Space::Local | Space::Param, VariableId::Local(_, index)) => {
                let place = u64::from(self.places.get(index).copied().unwrap_or(0));
                Ok(self.local(place.wrapping_add(addend)))
            }
            _ => Err(self.fail("local variables of a module are not supported")),
        }
    }

    pub(in crate::lower) fn local(&mut self, offset: u64) -> Reg {
        let d = self.temp(8);
        self.emit(InstKind::LocalAddress { offset }, vec![d], Vec::new());
        d
    }

    /// Where a call's argument or result variable lies, if it is one.
    pub(in crate::lower) fn call_variable(&self, index: usize) -> Option<Passed> {
        let variable = self.tree.variables.get(index)?;
        let place = *self.places.get(index)?;
        matches!(variable.space, Space::Param | Space::Local)
            .then_some(Passed::Local(place, variable.size as u32))
    }

    /// Where a result of `width` bytes goes: the register that the operand names, or, if that is wider or
    /// the sink, a new one. [`Body::finish`] takes it from there.
    pub(in crate::lower) fn dest(&mut self, operand: &Operand<'_>, width: u8) -> Lowered<Reg> {
        match operand {
            Operand::Sink => Ok(self.temp(width)),
            Operand::Register(register) => {
                let reg = register.0;
                match self.func.regs.get(reg as usize) {
                    Some(_) if self.wide.contains_key(&reg) => {
                        Err(self.fail("the destination's register does not fit its type"))
                    }
                    Some(&have) if have == width => Ok(reg),
                    Some(&have) if have > width && width != 1 => Ok(self.temp(width)),
                    _ => Err(self.fail("the destination's register does not fit its type")),
                }
            }
            _ => Err(self.fail("a destination that is no register")),
        }
    }

    /// Extends a result to the register that the operand names, if [`Body::dest`] gave another.
    pub(in crate::lower) fn finish(
        &mut self,
        operand: &Operand<'_>,
        reg: Reg,
        signed: bool,
    ) -> Lowered {
        let Operand::Register(register) = operand else {
            return Ok(());
        };
        if register.0 == reg {
            return Ok(());
        }
        let (from, to) = (
            self.func.regs[reg as usize],
            self.func.regs[register.0 as usize],
        );
        let widen = logic::resize(from, to, signed).ok_or_else(|| self.unbuilt())?;
        self.simple(&widen, register.0, vec![reg]);
        Ok(())
    }

    /// An operation on predicates.
    pub(in crate::lower) fn predicate_op(&self, opcode: &str) -> Lowered<Simple> {
        let words = Words {
            opcode,
            flags: &[],
            types: &[Type::Pred],
        };
        table::find(&words).ok_or_else(|| self.unbuilt())
    }

    /// The operands, of which there must be `N`.
    pub(in crate::lower) fn operands<const N: usize>(
        &self,
        at: &'a Instruction<'a>,
    ) -> Lowered<&'a [Operand<'a>; N]> {
        at.operands
            .as_slice()
            .try_into()
            .map_err(|_| self.fail("a wrong number of operands"))
    }
}
