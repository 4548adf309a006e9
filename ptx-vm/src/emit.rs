//! From basic blocks to compiled operations.
//!
//! Owns the order of operations and which of them become machine code. Called once a function, with what `analysis`
//! has found. Must not know PTX.

use std::collections::{HashMap, HashSet};

use super::analysis::{self, BitSet, Class, Layout};
use super::ir::{Barrier, Block, BlockId, Callee, End, Func, Inst, InstKind, Passed, Reg};
use super::isa::{Isa, Target};
use super::machine::{Op, OpFn, ReduceOp};
use super::ops::{control, pure, special};
use super::program::{BlockCode, CallSite, FunctionCode, NOWHERE, Program, Slot};
use super::segment::{self, Compiled, Known, Native, RegisterSlot, SegmentLanes, SegmentStep};

mod loops;
mod places;
mod rows;
mod runs;
mod search;
#[cfg(test)]
mod tests;

/// Instructions that a block may have so that going on to a later one is free.
const FREE: usize = 64;

use places::{moves, passed, slot};
use rows::Rows;

/// Compiles an entry (function 0) and the functions that it may call, in which `by_address` says which
/// of them each function of the module is. Threads have `local_stride` bytes of local memory.
pub(crate) fn emit(
    funcs: &[Func],
    by_address: Vec<u32>,
    local_stride: u32,
    target: Target,
    lanes: usize,
) -> Program {
    let mut out = Emitter {
        program: Program {
            by_address,
            local_stride,
            asks_runtime: funcs.iter().any(|func| func.asks_runtime),
            ..Program::default()
        },
        target,
        code: Vec::new(),
        transfers: 0,
        fixups: Vec::new(),
        decided: (0, Vec::new()),
        line: 0,
    };
    let mut first = 0;
    let align = analysis::alignment(funcs);
    for (index, func) in funcs.iter().enumerate() {
        let live = analysis::live_in(func);
        let classes = if index == 0 {
            analysis::classes(func, &live)
        } else {
            vec![Class::Varying; func.regs.len()]
        };
        let mut layout = analysis::layout(func, &live, &classes, lanes);
        let rows = if index == 0 && target.jit && target.isa == Isa::Avx512 {
            Rows::find(func, &classes, &mut layout)
        } else {
            Rows::default()
        };
        let moves = |block: usize| moves(func, &live[block], &classes, &layout);
        let blocks = (0..func.blocks.len()).map(|block| BlockCode {
            fast: NOWHERE,
            slow: NOWHERE,
            moves: moves(block),
        });
        out.program.blocks.extend(blocks);
        let slot = |passed: &Passed| slot(func, &classes, &layout, false, passed);
        out.program.functions.push(FunctionCode {
            first,
            // `prepare` has seen that it is below a limit far below 2^32.
            frame: layout.bytes as u32,
            local: func.local_bytes.next_multiple_of(align),
            cost: func
                .blocks
                .iter()
                .map(|block| block.insts.len() as u32 + 1)
                .sum(),
            params: func.params.iter().map(slot).collect(),
            returns: func.returns.iter().map(slot).collect(),
        });
        let mut body = Body {
            func,
            index,
            first,
            live: &live,
            classes,
            layout,
            passed: passed(func),
            convergent: true,
            constants: HashMap::new(),
            rows,
        };
        body.constants = body.find_constants();
        if index == 0 {
            out.prologue(&body);
            out.blocks(&body);
            out.program.divergent = out.program.ops.len() as u32;
        }
        body.convergent = false;
        out.blocks(&body);
        first += func.blocks.len() as u32;
    }
    if out.place_code().is_none() {
        let without = Target {
            jit: false,
            ..target
        };
        let program = emit(funcs, out.program.by_address, local_stride, without, lanes);
        return Program {
            is_makeshift: true,
            ..program
        };
    }
    out.finish()
}

/// A function while it is compiled.
struct Body<'a> {
    func: &'a Func,
    /// Its number.
    index: usize,
    /// The program's number of its block 0.
    first: u32,
    /// Registers live at the start of each block.
    live: &'a [BitSet],
    classes: Vec<Class>,
    layout: Layout,
    /// See [`passed`].
    passed: Vec<(usize, usize)>,
    convergent: bool,
    /// What is in registers that are written once, by a constant.
    constants: HashMap<Reg, u64>,
    rows: Rows,
}

impl Body<'_> {
    /// A register's slot, as segments know it.
    fn register_slot(&self, reg: Reg) -> RegisterSlot {
        let (offset, varying) = self.home(reg);
        RegisterSlot {
            offset,
            varying,
            width: self.width(reg),
        }
    }

    /// A register's slot, and whether it holds a value per lane.
    fn home(&self, reg: Reg) -> (u32, bool) {
        match slot(
            self.func,
            &self.classes,
            &self.layout,
            self.convergent,
            &Passed::Register(reg),
        ) {
            Slot::Register {
                offset, varying, ..
            } => (offset, varying),
            Slot::Local { .. } => (0, false),
        }
    }

    fn find_constants(&self) -> HashMap<Reg, u64> {
        let insts = self.func.blocks.iter().flat_map(|block| &block.insts);
        let constants = insts.filter_map(|inst| match (&inst.kind, inst.d.as_slice()) {
            (InstKind::Const(value), &[reg]) if self.classes[reg as usize] == Class::Fixed => {
                Some((reg, *value))
            }
            _ => None,
        });
        constants.collect()
    }

    /// A block's instructions without those of the prologue.
    fn own<'b>(&self, block: &'b Block) -> Vec<&'b Inst> {
        let insts = block.insts.iter();
        insts.filter(|inst| !inst.is_fixed(&self.classes)).collect()
    }

    fn width(&self, reg: Reg) -> u8 {
        self.func.regs[reg as usize]
    }
}

struct Emitter {
    program: Program,
    target: Target,
    /// Machine code of segments.
    code: Vec<u8>,
    /// Loads and stores that segments have.
    transfers: usize,
    /// Operation, which of `s[0]` and `s[1]`, the block, and whether its convergent code is meant.
    fixups: Vec<(usize, usize, u32, bool)>,
    /// The place behind the last segment that may decide predicates for the whole block, and their numbers.
    decided: (usize, Vec<(Reg, u32)>),
    line: u32,
}

/// An operation with nothing in it.
fn blank(run: OpFn) -> Op {
    Op {
        run,
        imm: 0,
        cold: None,
        d: [0; 4],
        s: [0; 5],
        varying: 0,
        width: [0; 2],
    }
}

impl Emitter {
    fn push(&mut self, op: Op) {
        self.program.ops.push(op);
        self.program.lines.push(self.line);
    }

    /// What is the same while the block runs: first what is so in all blocks of the grid.
    fn prologue(&mut self, body: &Body<'_>) {
        let fixed = |inst: &&Inst| inst.is_fixed(&body.classes);
        let insts = body.func.blocks.iter().flat_map(|block| &block.insts);
        let mut of_block = HashSet::new();
        let (own, shared): (Vec<&Inst>, Vec<&Inst>) = insts.filter(fixed).partition(|inst| {
            let is_own = match inst.kind {
                InstKind::Special(special) => special.is_of_block(),
                _ => inst.uses().any(|reg| of_block.contains(&reg)),
            };
            if is_own {
                of_block.extend(inst.d.iter().copied());
            }
            is_own
        });
        self.program.prologue = self.program.ops.len() as u32;
        self.fixed(body, &shared);
        body.rows.facts().for_each(|op| self.push(op));
        // Falls through into the entry's first block.
        self.program.block_prologue = self.program.ops.len() as u32;
        // What reads no register first, so that arithmetic stands together.
        let (mut first, own): (Vec<&Inst>, Vec<&Inst>) = own
            .into_iter()
            .partition(|inst| inst.uses().next().is_none());
        // What a segment has of it stands beside that arithmetic.
        first.sort_by_key(|inst| self.once(body, inst).is_some());
        first.extend(own);
        self.fixed(body, &first);
    }

    fn blocks(&mut self, body: &Body<'_>) {
        for (index, block) in body.func.blocks.iter().enumerate() {
            let at = self.program.ops.len() as u32;
            let code = &mut self.program.blocks[body.first as usize + index];
            if body.convergent {
                code.fast = at;
                self.search(body, index);
            } else {
                code.slow = at;
                self.repeat(body, index);
            }
            self.repeat_several(body, index);
            self.insts(body, block, index);
            self.repeat_beside(body, index);
            self.end(body, block, index as BlockId);
        }
    }

    /// Adds a segment; `false` if there is no code for it.
    fn segment(
        &mut self,
        body: &Body<'_>,
        steps: &[SegmentStep],
        live: &HashSet<Reg>,
        lanes: SegmentLanes,
    ) -> bool {
        let slot_of = |reg: Reg| {
            let slot = body.register_slot(reg);
            RegisterSlot {
                // The one strip of what does not vary is done as the first of one that does.
                varying: slot.varying || lanes == SegmentLanes::Once,
                ..slot
            }
        };
        let live = |reg: Reg| live.contains(&reg);
        let first = self.transfers;
        let known = Known {
            slot_of: &slot_of,
            constant_of: &|reg| body.constants.get(&reg).copied(),
            row_of: &|reg, step| body.rows.of(reg, step, body.convergent),
        };
        let compiled = segment::compile(steps, &known, &live, self.target, lanes, first);
        let Some(Compiled { code, decided }) = compiled else {
            return false;
        };
        self.transfers += steps.iter().filter(|step| step.access.1 != 0).count();
        let mut op = blank(match lanes {
            SegmentLanes::Once => segment::run_once,
            _ if !decided.is_empty() => segment::run_deciding,
            _ => segment::run,
        });
        op.d[0] = body.layout.bytes as u32;
        self.machine_code(op, &code);
        self.decided = (self.program.ops.len(), decided);
        true
    }

    /// Adds an operation that runs machine code, where `imm` will say.
    fn machine_code(&mut self, op: Op, code: &[u8]) {
        let at = (self.program.ops.len() as u32, self.code.len() as u32);
        self.program.segments.push(at);
        self.code.extend_from_slice(code);
        self.push(op);
    }

    fn inst(&mut self, body: &Body<'_>, inst: &Inst) {
        self.line = inst.line;
        let op = self.operation(body, inst);
        self.push(op);
    }

    /// Begins what only the lanes do that a predicate names; returns the operation, which is to be told where that ends.
    fn guard(&mut self, body: &Body<'_>, (reg, negated): (Reg, bool)) -> usize {
        let (offset, varying) = body.home(reg);
        let mut op = blank(control::guard);
        op.s[2] = offset;
        op.varying = u16::from(varying) << 2;
        op.width[1] = u8::from(negated);
        if let Some(number) = self.decided(reg) {
            op.run = control::guard_decided;
            op.s[3] = number;
        }
        self.push(op);
        self.program.ops.len() - 1
    }

    /// The number of a predicate that the segment right before the next operation may have decided.
    fn decided(&self, reg: Reg) -> Option<u32> {
        let (behind, predicates) = &self.decided;
        let is_next = *behind == self.program.ops.len();
        let number = predicates.iter().find(|(decided, _)| *decided == reg);
        number.filter(|_| is_next).map(|&(_, number)| number)
    }

    fn operation(&self, body: &Body<'_>, inst: &Inst) -> Op {
        let isa = self.target.isa as usize;
        let mut op = blank(control::done);
        for (index, &reg) in inst.s.iter().enumerate() {
            let (offset, varying) = body.home(reg);
            op.s[index] = offset;
            op.varying |= u16::from(varying) << index;
        }
        for (index, &reg) in inst.d.iter().enumerate() {
            let (offset, varying) = body.home(reg);
            op.d[index] = offset;
            op.varying |= u16::from(varying) << (8 + index);
        }
        op.width[0] = inst.d.first().map_or(0, |&reg| body.width(reg));
        match &inst.kind {
            InstKind::Pure { run, imm, .. } => {
                op.run = run[isa];
                op.imm = *imm;
            }
            InstKind::Cold { f, imm } => {
                op.run = pure::run_cold;
                op.cold = Some(*f);
                op.imm = *imm;
                for (index, &reg) in inst.s.iter().enumerate() {
                    op.width[1] |= (body.width(reg).trailing_zeros() as u8) << (2 * index);
                }
            }
            InstKind::Const(value) => {
                op.run = special::constant;
                op.imm = *value;
            }
            InstKind::Special(special) => {
                op.run = special::read_special;
                op.imm = special.imm();
            }
            InstKind::Clock { nanoseconds } => {
                op.run = special::clock;
                op.imm = u64::from(*nanoseconds);
            }
            InstKind::Global(index, addend) => {
                op.run = special::global_address;
                op.s[4] = *index;
                op.imm = *addend;
            }
            InstKind::LocalAddress { offset } => {
                op.run = special::local_address;
                op.imm = *offset;
            }
            InstKind::Param { run, imm }
            | InstKind::Load { run, imm, .. }
            | InstKind::Store { run, imm, .. } => {
                op.run = run[isa];
                op.imm = *imm;
            }
            InstKind::Atomic { run, imm, .. }
            | InstKind::Warp { run, imm }
            | InstKind::System { run, imm }
            | InstKind::Texture { run, imm } => {
                op.run = *run;
                op.imm = *imm;
            }
            InstKind::Fence => op.run = control::fence,
            InstKind::Pause => op.run = control::pause,
        }
        op
    }

    /// What it costs to go from block `from` to block `to`.
    fn cost(&self, body: &Body<'_>, from: BlockId, to: BlockId) -> u32 {
        let own = body.func.blocks[from as usize].insts.len();
        if to > from {
            // Straight-line code is free, but not whatever its length.
            return if own < FREE {
                0
            } else {
                control::forward(own as u32)
            };
        }
        let (before, after) = (body.passed[to as usize], body.passed[from as usize + 1]);
        control::edge((after.0 - before.0) as u32, after.1 > before.1)
    }

    fn target(&mut self, body: &Body<'_>, op: &mut Op, which: usize, from: BlockId, to: BlockId) {
        let block = body.first + to;
        op.d[which] = block;
        op.imm |= u64::from(self.cost(body, from, to)) << (32 * which);
        self.fixups
            .push((self.program.ops.len(), which, block, body.convergent));
    }

    fn end(&mut self, body: &Body<'_>, block: &Block, from: BlockId) {
        self.line = block.line;
        let mut op = blank(control::exit);
        let source = |op: &mut Op, which: usize, reg: Reg| {
            let (offset, varying) = body.home(reg);
            op.s[which] = offset;
            op.varying |= u16::from(varying) << which;
        };
        match &block.end {
            End::Jump(next) => {
                op.run = if body.convergent {
                    control::jump_fast
                } else {
                    control::jump_slow
                };
                self.target(body, &mut op, 0, from, *next);
            }
            End::Branch {
                on,
                negated,
                then,
                other,
            } => {
                op.run = if body.convergent {
                    control::branch_fast
                } else {
                    control::branch_slow
                };
                source(&mut op, 2, *on);
                op.width[1] = u8::from(*negated);
                if let Some(number) = self.decided(*on) {
                    op.run = control::branch_decided;
                    op.s[3] = number;
                }
                self.target(body, &mut op, 0, from, *then);
                self.target(body, &mut op, 1, from, *other);
            }
            End::Table { index, targets } => {
                op.run = control::table;
                source(&mut op, 2, *index);
                let costs = targets.iter().map(|&to| self.cost(body, from, to));
                let cost = costs.max().unwrap_or(0);
                op.imm = self.program.tables.len() as u64 | u64::from(cost) << 32;
                self.program
                    .tables
                    .push(targets.iter().map(|block| body.first + block).collect());
            }
            End::Barrier {
                id,
                count,
                arrive_only,
                reduce,
                next,
            } => {
                op.run = control::barrier;
                op.d[0] = body.first + next;
                self.fixups
                    .push((self.program.ops.len(), 0, op.d[0], body.convergent));
                match id {
                    Barrier::Fixed(id) => op.width[0] = *id,
                    Barrier::Register(reg) => {
                        op.width[0] = 255;
                        source(&mut op, 2, *reg);
                    }
                }
                if let Some(count) = count {
                    source(&mut op, 3, *count);
                }
                op.width[1] = u8::from(count.is_some()) | u8::from(*arrive_only) << 1;
                if let Some((kind, of, to)) = reduce {
                    source(&mut op, 4, *of);
                    op.d[1] = body.home(*to).0;
                    let kind = match kind {
                        ReduceOp::And => 1,
                        ReduceOp::Or => 2,
                        ReduceOp::Popc => 3,
                    };
                    op.width[1] |= kind << 2;
                }
            }
            End::Call {
                callee,
                args,
                results,
                next,
            } => {
                op.d[0] = body.first + next;
                op.imm = self.program.sites.len() as u64;
                let slot = |passed: &Passed| {
                    slot(
                        body.func,
                        &body.classes,
                        &body.layout,
                        body.convergent,
                        passed,
                    )
                };
                let callee = match callee {
                    Callee::Direct(callee) => {
                        op.run = control::call;
                        *callee
                    }
                    Callee::Indirect(reg) => {
                        op.run = control::call_indirect;
                        source(&mut op, 2, *reg);
                        NOWHERE
                    }
                };
                self.program.sites.push(CallSite {
                    callee,
                    caller: body.index as u32,
                    args: args.iter().map(slot).collect(),
                    results: results.iter().map(slot).collect(),
                });
            }
            End::Return if body.index != 0 => op.run = control::ret,
            End::Return | End::Exit => {}
            End::Trap { breakpoint } => {
                op.run = control::trap;
                op.imm = u64::from(*breakpoint);
            }
        }
        self.push(op);
    }

    /// Gives the segments' code its place; `None` if there is no memory for it.
    fn place_code(&mut self) -> Option<()> {
        if self.program.segments.is_empty() {
            return Some(());
        }
        let native = Native::map(&self.code)?;
        for &(op, at) in &self.program.segments {
            self.program.ops[op as usize].imm = native.address() + u64::from(at);
        }
        self.program.native = Some(native);
        Some(())
    }

    fn finish(mut self) -> Program {
        for (op, which, block, fast) in std::mem::take(&mut self.fixups) {
            let block = &self.program.blocks[block as usize];
            self.program.ops[op].s[which] = if fast { block.fast } else { block.slow };
        }
        self.program
    }
}

impl Inst {
    /// Whether it runs once, in the prologue.
    fn is_fixed(&self, classes: &[Class]) -> bool {
        let fixed = |&reg: &Reg| matches!(classes[reg as usize], Class::Fixed | Class::Thread);
        !self.d.is_empty() && self.d.iter().all(fixed)
    }

    /// Whether a loop with it in it may wait for another thread.
    fn waits(&self) -> bool {
        match &self.kind {
            InstKind::Load { traits, .. } => traits.volatile,
            InstKind::Atomic { .. } => !self.d.is_empty(),
            InstKind::Pause => true,
            _ => false,
        }
    }
}
