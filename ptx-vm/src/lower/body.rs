//! One function: its blocks and its registers. Its operands are in `operands`, the instructions
//! themselves in the neighbouring modules.
//!
//! Called by `lower` for each function, and by the files beside it, which put their instructions into its blocks.
//! Must not know what an opcode means.

use std::collections::HashMap;

use ptx::ast::{self, Instruction, Parameter, Space};

use super::KernelFacts;
use crate::ir::{Block, BlockId, End, Func, Inst, InstKind, Passed, Reg};
use crate::limits::{FRAME_BYTES, STRAIGHT};
use crate::load_error::LoadError;
use crate::ops::simple::{Body as How, Simple};

mod operands;

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
    /// Where calls of the device runtime have their arguments in the local frame.
    pub(super) argument_place: Option<u32>,
    /// Where memory is taken while the function runs, and the register that says how much is.
    pub(super) stack: Option<(u32, Reg)>,
    /// Registers of ours that keep their values where a guard does not hold, as the source's do.
    kept: Vec<Reg>,
    /// The carry flag.
    carry: Option<Reg>,
    guard: Option<(Reg, bool)>,
    /// The upper halves of the registers of 128 bits.
    pub(super) wide: HashMap<u32, Reg>,
    /// Registers of the source come before those of ours.
    pub(super) named: usize,
    line: u32,
    at: &'a Instruction<'a>,
    /// What it has come to so far: instructions, and what [`End::weight`] counts.
    cost: u64,
}

/// Lowers the function with this index. Returns what it costs as well; `None` if that is more than `room`.
pub(super) fn lower(
    kernel: &KernelFacts<'_>,
    index: usize,
    room: u64,
) -> Lowered<Option<(Func, u64)>> {
    let tree = &kernel.module.tree.functions[index];
    let Some(instructions) = &tree.body else {
        return Err(LoadError::new(tree.line, tree.name, "function has no body"));
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
        argument_place: None,
        stack: None,
        kept: Vec::new(),
        carry: None,
        guard: None,
        wide: HashMap::new(),
        named: tree.registers.len(),
        line: tree.line,
        at: &nothing,
        // What is declared takes its time in every kernel that has the function.
        cost: (tree.registers.len() / 64 + tree.variables.len() + tree.labels.len()) as u64,
    };
    if body.cost > room {
        return Ok(None);
    }
    for ty in &tree.registers {
        // Those of 128 bits have their upper halves behind all others.
        body.func.regs.push(width_of(*ty).unwrap_or(8));
    }
    for (register, ty) in (0..).zip(&tree.registers) {
        if width_of(*ty).is_none() {
            let high = body.temp(8);
            body.wide.insert(register, high);
        }
    }
    body.named = body.func.regs.len();
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
        if !body.ended && body.func.blocks[body.current as usize].insts.len() >= STRAIGHT {
            let block = body.new_block();
            body.end(End::Jump(block));
            body.begin(block);
        }
        if body.cost + body.func.blocks.len() as u64 > room {
            return Ok(None);
        }
    }
    body.end(End::Return);
    // A label at the very end is a return.
    let preamble = std::mem::take(&mut body.preamble);
    body.func.blocks[0] = Block {
        insts: preamble,
        end: End::Jump(1),
        line: tree.line,
    };
    let cost = body.cost + body.func.blocks.len() as u64;
    Ok(Some((body.func, cost)))
}

/// Bytes of a lane of a register of this type; `None` for those that are not built.
pub(super) fn width_of(ty: ast::Type) -> Option<u8> {
    Some(match ty.size() {
        0 => 1,
        1 | 2 => 2,
        4 => 4,
        8 => 8,
        _ => return None,
    })
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
            if end > FRAME_BYTES || align > 4096 {
                let what = "bytes of a function's local memory";
                return Err(LoadError::beyond(tree.line, tree.name, what, FRAME_BYTES));
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
            self.cost += end.weight();
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

    pub(super) fn guard(&self) -> Option<(Reg, bool)> {
        self.guard
    }

    pub(super) fn set_guard(&mut self, guard: Option<(Reg, bool)>) {
        self.guard = guard;
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
        LoadError::new(
            self.line,
            self.tree.name,
            format!("instruction \"{text}\": {why}"),
        )
    }

    /// The error for what is not built.
    pub(super) fn unbuilt(&self) -> LoadError {
        self.fail("not supported by the software GPU (docs/instructions.md says what is)")
    }

    /// A new register of `width` bytes.
    pub(super) fn temp(&mut self, width: u8) -> Reg {
        self.func.regs.push(width);
        self.func.regs.len() as Reg - 1
    }

    /// Adds an instruction. It is guarded if it may touch what the source names.
    pub(super) fn emit(&mut self, kind: InstKind, d: Vec<Reg>, s: Vec<Reg>) {
        let effects = !matches!(
            kind,
            InstKind::Pure { .. }
                | InstKind::Cold { .. }
                | InstKind::LocalAddress { .. }
                | InstKind::Clock { .. }
        );
        let named = d
            .iter()
            .any(|&reg| (reg as usize) < self.named || self.kept.contains(&reg));
        let guard = if effects || named { self.guard } else { None };
        let inst = Inst {
            kind,
            d,
            s,
            guard,
            kept: true,
            line: self.line,
        };
        self.cost += 1;
        self.func.blocks[self.current as usize].insts.push(inst);
    }

    /// Adds an operation on lanes.
    pub(super) fn simple(&mut self, simple: &Simple, d: Reg, s: Vec<Reg>) {
        let kind = match simple.body {
            How::Pure(op, tag) => InstKind::Pure {
                run: op.run,
                tag,
                imm: simple.imm,
            },
            How::Cold(f) => InstKind::Cold { f, imm: simple.imm },
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
}
