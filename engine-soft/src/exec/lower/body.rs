//! One function: its blocks, its registers, its operands. The instructions themselves are in the
//! neighbouring modules.

use std::collections::HashMap;

use ptx::ast::{self, Instruction, Operand, Parameter, Space, Symbol, Type};

use super::{KernelFacts, MAX_FRAME, VariableId, error, function_address};
use crate::exec::ir::{Block, BlockId, End, Func, Inst, Kind, Passed, Reg};
use crate::exec::module::LoadError;
use crate::exec::ops::special::Special;
use crate::exec::ops::table::{self, Body as How, Simple, Words, parts};

/// The result of lowering one instruction.
pub(super) type Lowered<T = ()> = Result<T, LoadError>;

/// A function under way.
pub(super) struct Body<'a> {
    pub(super) kernel: &'a KernelFacts<'a>,
    pub(super) tree: &'a ast::Function<'a>,
    pub(super) index: usize,
    pub(super) func: Func,
    /// The block that instructions go to.
    current: BlockId,
    ended: bool,
    /// For each instruction that a label stands before: its block.
    starts: HashMap<usize, BlockId>,
    /// What defines constants and special registers.
    preamble: Vec<Inst>,
    constants: HashMap<(u64, u8), Reg>,
    specials: HashMap<u64, Reg>,
    globals: HashMap<u32, Reg>,
    /// Where the function's own variables lie in its local frame.
    places: Vec<u32>,
    /// Where its parameters lie: in the parameter buffer of an entry, or in the local frame.
    pub(super) param_places: Vec<u32>,
    return_places: Vec<u32>,
    /// The carry flag.
    carry: Option<Reg>,
    guard: Option<(Reg, bool)>,
    /// Registers of the source come before those of ours.
    named: usize,
    line: u32,
    at: &'a Instruction<'a>,
}

/// Lowers the function with this index.
pub(super) fn lower(kernel: &KernelFacts<'_>, index: usize) -> Lowered<Func> {
    let tree = &kernel.module.tree.functions[index];
    let Some(instructions) = &tree.body else {
        return Err(error(tree.line, tree.name, "function has no body"));
    };
    let nothing = Instruction {
        guard: None,
        opcode: "",
        modifiers: Vec::new(),
        operands: Vec::new(),
        line: tree.line,
    };
    let mut body = Body {
        kernel,
        tree,
        index,
        func: Func { ..Func::default() },
        current: 1,
        ended: false,
        starts: HashMap::new(),
        preamble: Vec::new(),
        constants: HashMap::new(),
        specials: HashMap::new(),
        globals: HashMap::new(),
        places: Vec::new(),
        param_places: Vec::new(),
        return_places: Vec::new(),
        carry: None,
        guard: None,
        named: tree.registers.len(),
        line: tree.line,
        at: &nothing,
    };
    for ty in &tree.registers {
        let width = match ty.size() {
            0 => 1,
            1 | 2 => 2,
            4 => 4,
            8 => 8,
            _ => {
                return Err(error(
                    tree.line,
                    tree.name,
                    "128-bit registers are not built",
                ));
            }
        };
        body.func.regs.push(width);
    }
    body.place_variables()?;
    body.new_block();
    body.new_block();
    for &at in &tree.labels {
        if at < instructions.len() && !body.starts.contains_key(&at) {
            let block = body.new_block();
            body.starts.insert(at, block);
        }
    }
    for (at, instruction) in instructions.iter().enumerate() {
        body.line = instruction.line;
        body.at = instruction;
        if let Some(&block) = body.starts.get(&at) {
            body.end(End::Jump(block));
            body.begin(block);
        } else if body.ended {
            let block = body.new_block();
            body.begin(block);
        }
        body.guard = match instruction.guard {
            Some(guard) => Some((body.register(guard.register, 1)?, guard.negated)),
            None => None,
        };
        body.instruction(instruction)?;
    }
    body.end(End::Return);
    // A label at the very end is a return.
    let preamble = std::mem::take(&mut body.preamble);
    body.func.blocks[0] = Block {
        insts: preamble,
        end: End::Jump(1),
        line: tree.line,
    };
    Ok(body.func)
}

impl<'a> Body<'a> {
    /// Gives parameters and variables their places.
    fn place_variables(&mut self) -> Lowered {
        let tree = self.tree;
        if tree.entry {
            let layout = ptx::layout::params(tree);
            self.param_places = layout.iter().map(|(offset, _)| *offset as u32).collect();
        }
        let mut end = 0u64;
        let mut most = 16u64;
        let mut place = |size: u64, align: u64| {
            most = most.max(align);
            let offset = end.next_multiple_of(align.max(1));
            end = offset.saturating_add(size);
            if end > MAX_FRAME || align > 4096 {
                return Err(error(tree.line, tree.name, "too much local memory"));
            }
            Ok(offset as u32)
        };
        if !tree.entry {
            let mut passed = |parameter: &Parameter<'_>| match parameter {
                Parameter::Memory(variable) => {
                    let offset = place(variable.size, variable.align)?;
                    Ok((offset, Passed::Local(offset, variable.size as u32)))
                }
                Parameter::Register(register) => Ok((0, Passed::Register(register.0))),
            };
            for parameter in &tree.params {
                let (offset, passed) = passed(parameter)?;
                self.param_places.push(offset);
                self.func.params.push(passed);
            }
            for parameter in &tree.returns {
                let (offset, passed) = passed(parameter)?;
                self.return_places.push(offset);
                self.func.returns.push(passed);
            }
        }
        for variable in &tree.variables {
            self.places.push(match variable.space {
                Space::Local | Space::Param => place(variable.size, variable.align)?,
                _ => 0,
            });
        }
        self.func.local_bytes = end as u32;
        self.func.local_align = most as u32;
        Ok(())
    }

    pub(super) fn new_block(&mut self) -> BlockId {
        self.func.blocks.push(Block {
            insts: Vec::new(),
            end: End::Exit,
            line: self.line,
        });
        self.func.blocks.len() as BlockId - 1
    }

    /// Makes `block` the one that instructions go to.
    pub(super) fn begin(&mut self, block: BlockId) {
        self.current = block;
        self.ended = false;
    }

    /// Ends the current block.
    pub(super) fn end(&mut self, end: End) {
        if !self.ended {
            let block = &mut self.func.blocks[self.current as usize];
            block.end = end;
            block.line = self.line;
            self.ended = true;
        }
    }

    /// Puts what follows into a block of its own that only lanes whose guard holds enter; returns the
    /// block for everybody after it. For instructions that no mask can guard.
    pub(super) fn enter_guarded(&mut self) -> Option<BlockId> {
        let (on, negated) = self.guard.take()?;
        let (inside, after) = (self.new_block(), self.new_block());
        self.end(End::Branch {
            on,
            negated,
            then: inside,
            other: after,
        });
        self.begin(inside);
        Some(after)
    }

    /// Ends what [`Body::enter_guarded`] began.
    pub(super) fn leave_guarded(&mut self, after: Option<BlockId>) {
        if let Some(after) = after {
            self.end(End::Jump(after));
            self.begin(after);
        }
    }

    pub(super) fn take_guard(&mut self) -> Option<(Reg, bool)> {
        self.guard.take()
    }

    /// The block of a label.
    pub(super) fn label(&mut self, label: ast::Label) -> Lowered<BlockId> {
        let Some(&at) = self.tree.labels.get(label.0 as usize) else {
            return Err(self.fail("no such label"));
        };
        if let Some(&block) = self.starts.get(&at) {
            return Ok(block);
        }
        // At the end of the function.
        let block = self.new_block();
        self.func.blocks[block as usize].end = End::Return;
        Ok(block)
    }

    /// An error about the current instruction.
    pub(super) fn fail(&self, why: &str) -> LoadError {
        let mut text = self.at.opcode.to_owned();
        for word in &self.at.modifiers {
            text.push('.');
            text.push_str(word);
        }
        error(
            self.line,
            self.tree.name,
            format!("instruction \"{text}\": {why}"),
        )
    }

    /// The error for what is not built.
    pub(super) fn unbuilt(&self) -> LoadError {
        self.fail("not supported by the software GPU")
    }

    /// A new register of `width` bytes.
    pub(super) fn temp(&mut self, width: u8) -> Reg {
        self.func.regs.push(width);
        self.func.regs.len() as Reg - 1
    }

    /// Adds an instruction. It is guarded if it may touch what the source names.
    pub(super) fn emit(&mut self, kind: Kind, d: Vec<Reg>, s: Vec<Reg>) {
        let effects = !matches!(
            kind,
            Kind::Pure { .. } | Kind::Cold { .. } | Kind::LocalAddress { .. } | Kind::Clock { .. }
        );
        let named = d
            .iter()
            .any(|&reg| (reg as usize) < self.named || Some(reg) == self.carry);
        let guard = if effects || named { self.guard } else { None };
        let inst = Inst {
            kind,
            d,
            s,
            guard,
            line: self.line,
        };
        self.func.blocks[self.current as usize].insts.push(inst);
    }

    /// Adds an operation on lanes.
    pub(super) fn simple(&mut self, simple: &Simple, d: Reg, s: Vec<Reg>) {
        let kind = match simple.body {
            How::Pure(op, tag) => Kind::Pure {
                run: op.run,
                tag,
                imm: simple.imm,
            },
            How::Cold(f) => Kind::Cold { f, imm: simple.imm },
        };
        self.emit(kind, vec![d], s);
    }

    /// Adds an operation into a new register.
    pub(super) fn compute(&mut self, simple: &Simple, s: Vec<Reg>) -> Reg {
        let d = self.temp(simple.widths[0]);
        self.simple(simple, d, s);
        d
    }

    /// Lets the instruction that computed `from` write to `to` instead, if it is the last one, so that
    /// nothing else has seen `from`.
    pub(super) fn redirect(&mut self, from: Reg, to: Reg) -> bool {
        let guard = self.guard;
        let last = self.func.blocks[self.current as usize].insts.last_mut();
        let Some(last) = last.filter(|last| last.d == [from] && from as usize >= self.named) else {
            return false;
        };
        last.d[0] = to;
        last.guard = guard;
        true
    }

    fn preamble(&mut self, kind: Kind, width: u8) -> Reg {
        let d = self.temp(width);
        let inst = Inst {
            kind,
            d: vec![d],
            s: Vec::new(),
            guard: None,
            line: self.tree.line,
        };
        self.preamble.push(inst);
        d
    }

    /// A register with a constant.
    pub(super) fn constant(&mut self, value: u64, width: u8) -> Reg {
        let value = if width == 8 {
            value
        } else {
            value & ((1 << (8 * width)) - 1)
        };
        if let Some(&reg) = self.constants.get(&(value, width)) {
            return reg;
        }
        let reg = self.preamble(Kind::Const(value), width);
        self.constants.insert((value, width), reg);
        reg
    }

    /// A register with a special register's value.
    fn special(&mut self, special: Special, width: u8) -> Reg {
        if let Some(&reg) = self.specials.get(&special.imm()) {
            return reg;
        }
        let reg = self.preamble(Kind::Special(special), width);
        self.specials.insert(special.imm(), reg);
        reg
    }

    /// The carry flag, clear at the start.
    pub(super) fn carry(&mut self) -> Reg {
        if let Some(reg) = self.carry {
            return reg;
        }
        let reg = self.preamble(Kind::Const(0), 1);
        self.carry = Some(reg);
        reg
    }

    /// A register of the source, which must have at least `width` bytes; it is narrowed if it has more.
    pub(super) fn register(&mut self, register: ast::Register, width: u8) -> Lowered<Reg> {
        let reg = register.0;
        let Some(&have) = self
            .func
            .regs
            .get(reg as usize)
            .filter(|_| (reg as usize) < self.named)
        else {
            return Err(self.fail("no such register"));
        };
        self.resize(reg, have, width)
    }

    fn resize(&mut self, reg: Reg, have: u8, want: u8) -> Lowered<Reg> {
        if have == want {
            return Ok(reg);
        }
        if have < want || want == 1 {
            return Err(self.fail("an operand's register does not fit its type"));
        }
        let narrow = table::resize(have, want, false).ok_or_else(|| self.unbuilt())?;
        Ok(self.compute(&narrow, vec![reg]))
    }

    /// The value of an operand as a register of `width` bytes.
    pub(super) fn read(&mut self, operand: &Operand<'_>, width: u8) -> Lowered<Reg> {
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
                    2 => u64::from(crate::exec::ops::half::from_f64(value, 0)),
                    _ => return Err(self.fail("a floating-point operand in a wrong place")),
                };
                Ok(self.constant(value, width))
            }
            Operand::Special(name, component) => {
                let (reg, have) = self.special_register(name, *component)?;
                if have < width {
                    let wide = table::resize(have, width, false).ok_or_else(|| self.unbuilt())?;
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
        if let Some((width, nanoseconds)) = clock {
            let d = self.temp(width);
            self.emit(Kind::Clock { nanoseconds }, vec![d], Vec::new());
            return Ok((d, width));
        }
        let Some((special, width)) = Special::named(name, component) else {
            if name.starts_with("envreg") || name.starts_with("pm") {
                return Ok((self.constant(0, 4), 4));
            }
            return Err(self.fail(&format!("special register %{name} is not supported")));
        };
        Ok((self.special(special, width), width))
    }

    /// The address of something in its own space, as a 64-bit register.
    pub(super) fn symbol(&mut self, symbol: Symbol, offset: i64) -> Lowered<Reg> {
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
                        let reg = self.preamble(Kind::Global(index, 0), 8);
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

    pub(super) fn local(&mut self, offset: u64) -> Reg {
        let d = self.temp(8);
        self.emit(
            Kind::LocalAddress {
                offset,
                generic: false,
            },
            vec![d],
            Vec::new(),
        );
        d
    }

    /// Where a call's argument or result variable lies, if it is one.
    pub(super) fn call_variable(&self, index: usize) -> Option<Passed> {
        let variable = self.tree.variables.get(index)?;
        let place = *self.places.get(index)?;
        matches!(variable.space, Space::Param | Space::Local)
            .then_some(Passed::Local(place, variable.size as u32))
    }

    /// Where a result of `width` bytes goes: the register that the operand names, or, if that is wider or
    /// the sink, a new one. [`Body::finish`] takes it from there.
    pub(super) fn dest(&mut self, operand: &Operand<'_>, width: u8) -> Lowered<Reg> {
        match operand {
            Operand::Sink => Ok(self.temp(width)),
            Operand::Register(register) => {
                let reg = register.0;
                match self.func.regs.get(reg as usize) {
                    Some(&have) if have == width => Ok(reg),
                    Some(&have) if have > width && width != 1 => Ok(self.temp(width)),
                    _ => Err(self.fail("the destination's register does not fit its type")),
                }
            }
            _ => Err(self.fail("a destination that is no register")),
        }
    }

    /// Extends a result to the register that the operand names, if [`Body::dest`] gave another.
    pub(super) fn finish(&mut self, operand: &Operand<'_>, reg: Reg, signed: bool) -> Lowered {
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
        let widen = table::resize(from, to, signed).ok_or_else(|| self.unbuilt())?;
        self.simple(&widen, register.0, vec![reg]);
        Ok(())
    }

    /// An operation on predicates.
    pub(super) fn predicate_op(&self, opcode: &str) -> Lowered<Simple> {
        let words = Words {
            opcode,
            flags: &[],
            types: &[Type::Pred],
        };
        table::find(&words).ok_or_else(|| self.unbuilt())
    }

    /// The operands, of which there must be `N`.
    pub(super) fn operands<const N: usize>(
        &self,
        at: &'a Instruction<'a>,
    ) -> Lowered<&'a [Operand<'a>; N]> {
        at.operands
            .as_slice()
            .try_into()
            .map_err(|_| self.fail("a wrong number of operands"))
    }
}

/// The type that a modifier names.
pub(super) fn type_of(word: &str) -> Option<Type> {
    Some(match word {
        "pred" => Type::Pred,
        "b8" => Type::B8,
        "b16" => Type::B16,
        "b32" => Type::B32,
        "b64" => Type::B64,
        "b128" => Type::B128,
        "u8" => Type::U8,
        "u16" => Type::U16,
        "u16x2" => Type::U16x2,
        "u32" => Type::U32,
        "u64" => Type::U64,
        "s8" => Type::S8,
        "s16" => Type::S16,
        "s16x2" => Type::S16x2,
        "s32" => Type::S32,
        "s64" => Type::S64,
        "f16" => Type::F16,
        "f16x2" => Type::F16x2,
        "bf16" => Type::Bf16,
        "bf16x2" => Type::Bf16x2,
        "f32" => Type::F32,
        "f64" => Type::F64,
        _ => return None,
    })
}
