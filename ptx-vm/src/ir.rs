//! Functions between the syntax tree and the compiled operations: basic blocks of instructions over
//! virtual registers.
//!
//! Everything that an instruction reads is a virtual register: immediates, special registers and
//! addresses of variables are registers that an instruction at the function's start defines, so that the
//! analysis needs no second kind of operand.
//!
//! Made by `lower`, read by `analysis`, `segment` and `emit`. Must not know PTX's words, nor where a register lies.

use super::isa::Isa;
use super::machine::{ColdFn, OpFn, ReduceOp};
use super::segment::Tag;
use super::special_register::Special;

/// A virtual register: an index into [`Func::regs`].
pub(crate) type Reg = u32;
/// A basic block: an index into [`Func::blocks`].
pub(crate) type BlockId = u32;

/// A function.
#[derive(Debug, Default)]
pub(crate) struct Func {
    /// Bytes of a lane of each register: 1 (predicates), 2, 4, 8.
    pub(crate) regs: Vec<u8>,
    /// Block 0 is the entry.
    pub(crate) blocks: Vec<Block>,
    /// Bytes of its frame in a thread's local memory.
    pub(crate) local_bytes: u32,
    /// What that frame must be aligned to.
    pub(crate) local_align: u32,
    /// Numbers of threads that are the same in all blocks of a grid, as `analysis::sums` has made them.
    pub(crate) threads: Vec<Reg>,
    /// Where its parameters and return values lie.
    pub(crate) params: Vec<Passed>,
    pub(crate) returns: Vec<Passed>,
    /// It asks of addresses whether they are constants'.
    pub(crate) asks_constants: bool,
    /// It asks where the system's part of shared memory lies.
    pub(crate) asks_reserved: bool,
    /// It calls CUDA's device runtime.
    pub(crate) asks_runtime: bool,
}

/// Where a parameter or a return value lies in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Passed {
    Register(Reg),
    /// Offset in the local frame, and bytes.
    Local(u32, u32),
}

impl Passed {
    /// Renumbers the register.
    pub(crate) fn renumber(&mut self, f: impl Fn(Reg) -> Reg) {
        if let Self::Register(reg) = self {
            *reg = f(*reg);
        }
    }
}

/// A basic block.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) insts: Vec<Inst>,
    pub(crate) end: End,
    pub(crate) line: u32,
}

/// An instruction.
#[derive(Clone, Debug)]
pub(crate) struct Inst {
    pub(crate) kind: InstKind,
    /// Registers written; sinks are not among them.
    pub(crate) d: Vec<Reg>,
    /// Registers read, without the guard.
    pub(crate) s: Vec<Reg>,
    pub(crate) guard: Option<(Reg, bool)>,
    /// Lanes that the guard leaves out keep what they have in `d`; else nothing reads that.
    pub(crate) kept: bool,
    pub(crate) line: u32,
}

impl Inst {
    /// Registers read, the guard and what a guarded write may leave among them.
    pub(crate) fn uses(&self) -> impl Iterator<Item = Reg> + '_ {
        let kept = if self.guard.is_some() && self.kept {
            self.d.as_slice()
        } else {
            &[]
        };
        self.s
            .iter()
            .copied()
            .chain(self.guard.map(|(reg, _)| reg))
            .chain(kept.iter().copied())
    }
}

/// What an instruction does.
#[derive(Clone, Debug)]
pub(crate) enum InstKind {
    /// Lane by lane, without effect on anything else. `tag` is how segments know it.
    Pure {
        run: [OpFn; Isa::COUNT],
        tag: Tag,
        imm: u64,
    },
    /// The same through a scalar function.
    Cold { f: ColdFn, imm: u64 },
    /// A constant.
    Const(u64),
    /// A special register that stays as it is.
    Special(Special),
    /// A special register that changes: clocks.
    Clock { nanoseconds: bool },
    /// Address of the module's global with this index, plus an addend.
    Global(u32, u64),
    /// Address in the function's local frame.
    LocalAddress { offset: u64 },
    /// A load from the entry's parameters at a fixed place: the same in every lane of the grid.
    Param { run: [OpFn; Isa::COUNT], imm: u64 },
    /// A load: destination elements; source: address.
    Load {
        run: [OpFn; Isa::COUNT],
        imm: u64,
        traits: Traits,
    },
    /// A store: sources are the address and the elements; `loose` as [`Traits::loose`].
    Store {
        run: [OpFn; Isa::COUNT],
        imm: u64,
        loose: u8,
    },
    /// An atomic: sources are the address and the operands; it may have a destination. `imm` is the
    /// access, `run` knows the operation, and `tag` is how segments know it.
    Atomic { run: OpFn, imm: u64, tag: Tag },
    /// An exchange among the lanes of a warp.
    Warp { run: OpFn, imm: u64 },
    /// Something asked of the system, lane by lane: sources and a destination as its function says.
    System { run: OpFn, imm: u64 },
    /// A read of a texture, or an access to a surface: lane by lane, through the client's own objects.
    Texture { run: OpFn, imm: u64 },
    /// A fence, a prefetch with no destination, or `nanosleep`.
    Fence,
    /// Gives way to others.
    Pause,
}

/// What the analysis must know of a load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Traits {
    /// Threads see different memory at one address (`.local`).
    pub(crate) private: bool,
    /// Another thread may write it meanwhile and this one waits for that.
    pub(crate) volatile: bool,
    /// Bytes of an element in memory and in its register, of a load whose lanes and elements may come in any order;
    /// 0 for others. Segments may have it.
    pub(crate) loose: u8,
}

/// How a block ends.
#[derive(Clone, Debug)]
pub(crate) enum End {
    Jump(BlockId),
    Branch {
        on: Reg,
        negated: bool,
        then: BlockId,
        other: BlockId,
    },
    /// `brx.idx`: past the list is undefined; takes the last.
    Table {
        index: Reg,
        targets: Vec<BlockId>,
    },
    Barrier {
        id: Barrier,
        count: Option<Reg>,
        arrive_only: bool,
        /// What is reduced, of which predicate, and where the result goes.
        reduce: Option<(ReduceOp, Reg, Reg)>,
        next: BlockId,
    },
    Call {
        callee: Callee,
        args: Vec<Passed>,
        results: Vec<Passed>,
        next: BlockId,
    },
    Return,
    Exit,
    Trap {
        breakpoint: bool,
    },
}

/// Which barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Barrier {
    Fixed(u8),
    Register(Reg),
}

/// Whom a call calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Callee {
    /// An index into the program's functions.
    Direct(u32),
    /// A register with a function's address; arguments have this many parameters and results.
    Indirect(Reg),
}

impl End {
    /// Blocks that may come next.
    pub(crate) fn successors(&self) -> Vec<BlockId> {
        match self {
            Self::Jump(next) | Self::Barrier { next, .. } | Self::Call { next, .. } => vec![*next],
            Self::Branch { then, other, .. } => vec![*then, *other],
            Self::Table { targets, .. } => targets.clone(),
            Self::Return | Self::Exit | Self::Trap { .. } => Vec::new(),
        }
    }

    /// Renumbers the blocks.
    pub(crate) fn map(&mut self, f: impl Fn(BlockId) -> BlockId) {
        match self {
            Self::Jump(next) | Self::Barrier { next, .. } | Self::Call { next, .. } => {
                *next = f(*next);
            }
            Self::Branch { then, other, .. } => {
                *then = f(*then);
                *other = f(*other);
            }
            Self::Table { targets, .. } => {
                targets.iter_mut().for_each(|target| *target = f(*target));
            }
            Self::Return | Self::Exit | Self::Trap { .. } => {}
        }
    }

    /// What it counts as beside one, where blocks are counted: a table has as many entries as it likes.
    pub(crate) fn weight(&self) -> u64 {
        match self {
            Self::Table { targets, .. } => targets.len() as u64,
            Self::Call { args, results, .. } => (args.len() + results.len()) as u64,
            _ => 0,
        }
    }

    /// Renumbers the registers.
    pub(crate) fn renumber(&mut self, f: impl Fn(Reg) -> Reg) {
        let passed = |list: &mut Vec<Passed>| {
            list.iter_mut().for_each(|passed| passed.renumber(&f));
        };
        match self {
            Self::Branch { on: reg, .. } | Self::Table { index: reg, .. } => *reg = f(*reg),
            Self::Barrier {
                id, count, reduce, ..
            } => {
                if let Barrier::Register(reg) = id {
                    *reg = f(*reg);
                }
                if let Some(reg) = count {
                    *reg = f(*reg);
                }
                if let Some((_, source, destination)) = reduce {
                    *source = f(*source);
                    *destination = f(*destination);
                }
            }
            Self::Call {
                callee,
                args,
                results,
                ..
            } => {
                if let Callee::Indirect(reg) = callee {
                    *reg = f(*reg);
                }
                passed(args);
                passed(results);
            }
            Self::Jump(_) | Self::Return | Self::Exit | Self::Trap { .. } => {}
        }
    }

    /// Registers read.
    pub(crate) fn uses(&self) -> Vec<Reg> {
        let passed = |list: &[Passed]| -> Vec<Reg> {
            list.iter()
                .filter_map(|passed| match passed {
                    Passed::Register(reg) => Some(*reg),
                    Passed::Local(..) => None,
                })
                .collect()
        };
        match self {
            Self::Branch { on, .. } => vec![*on],
            Self::Table { index, .. } => vec![*index],
            Self::Barrier {
                id, count, reduce, ..
            } => {
                let id = match id {
                    Barrier::Register(reg) => Some(*reg),
                    Barrier::Fixed(_) => None,
                };
                id.into_iter()
                    .chain(*count)
                    .chain(reduce.map(|(_, source, _)| source))
                    .collect()
            }
            Self::Call { callee, args, .. } => {
                let mut uses = passed(args);
                if let Callee::Indirect(reg) = callee {
                    uses.push(*reg);
                }
                uses
            }
            Self::Jump(_) | Self::Return | Self::Exit | Self::Trap { .. } => Vec::new(),
        }
    }

    /// Registers written.
    pub(crate) fn defs(&self) -> Vec<Reg> {
        match self {
            Self::Barrier {
                reduce: Some((.., destination)),
                ..
            } => vec![*destination],
            Self::Call { results, .. } => results
                .iter()
                .filter_map(|passed| match passed {
                    Passed::Register(reg) => Some(*reg),
                    Passed::Local(..) => None,
                })
                .collect(),
            _ => Vec::new(),
        }
    }
}
