//! A kernel in the form that runs: operations for the entry and every function that it may call.
//!
//! The entry is there twice. In the *convergent* code all live lanes of the lane group run together, and what
//! is the same in all of them stands in uniform slots. In the *divergent* code every register that lanes
//! write has a value per lane. A lane group leaves the first where its lanes disagree about a branch
//! ([`BlockCode::moves`] spread the uniform values over the lanes) and comes back at a block where it is
//! one path again and the values are found to be equal. Functions exist in the divergent form only.
//!
//! Made by `emit`, run by `lane_group`, kept by kernels. Plain data: it must not know PTX, nor what an operation
//! does.

use std::fmt;

use super::machine::Op;
use super::regs::{Frame, Lane};

/// No such position.
pub(crate) const NOWHERE: u32 = u32::MAX;

/// See the module.
#[derive(Default)]
pub(crate) struct Program {
    pub(crate) ops: Vec<Op>,
    /// The PTX line of each operation.
    pub(crate) lines: Vec<u32>,
    pub(crate) blocks: Vec<BlockCode>,
    /// Function 0 is the entry.
    pub(crate) functions: Vec<FunctionCode>,
    pub(crate) sites: Vec<CallSite>,
    /// Block lists of `brx.idx`.
    pub(crate) tables: Vec<Vec<u32>>,
    /// Where the operations stand that run before everything else.
    pub(crate) prologue: u32,
    /// Those of them from here on run for each block of a lane group's; the others' results stay. The entry follows.
    pub(crate) block_prologue: u32,
    /// Operations from here on are divergent code.
    pub(crate) divergent: u32,
    /// Bytes of local memory of a thread: the deepest chain of calls, and more if there is recursion.
    pub(crate) local_stride: u32,
    /// Which function of the module stands where, for indirect calls: [`NOWHERE`] or an index into
    /// `functions`. Empty if there is no such call.
    pub(crate) by_address: Vec<u32>,
    /// It calls CUDA's device runtime.
    pub(crate) asks_runtime: bool,
    /// Operations that run a segment, ascending, and where its code begins in `native`.
    pub(crate) segments: Vec<(u32, u32)>,
    /// The system gave no memory for machine code, which it may give next time.
    pub(crate) is_makeshift: bool,
    /// Code of segments; keeps it mapped.
    pub(crate) native: Option<super::segment::Native>,
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Program({} operations, {} blocks)",
            self.ops.len(),
            self.blocks.len()
        )
    }
}

/// One basic block.
#[derive(Clone, Debug)]
pub(crate) struct BlockCode {
    /// Its convergent operations, or [`NOWHERE`] in a function.
    pub(crate) fast: u32,
    /// Its divergent operations.
    pub(crate) slow: u32,
    /// Registers live at its start that are uniform in the convergent code, by [`Move::key`].
    pub(crate) moves: Vec<Move>,
}

/// A register's two places.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Move {
    pub(crate) uniform: u32,
    pub(crate) varying: u32,
    pub(crate) width: u8,
}

impl Move {
    /// Gives each lane of the strips `low..high` what they share.
    pub(crate) fn spread(&self, frame: Frame, low: usize, high: usize) {
        match self.width {
            1 => self.spread_of::<u8>(frame, low, high),
            2 => self.spread_of::<u16>(frame, low, high),
            4 => self.spread_of::<u32>(frame, low, high),
            _ => self.spread_of::<u64>(frame, low, high),
        }
    }

    fn spread_of<T: Lane>(&self, frame: Frame, low: usize, high: usize) {
        let value = frame.strip::<T>(self.uniform as usize, 0);
        for strip in low..high {
            frame.set_strip(self.varying as usize, strip, value);
        }
    }

    /// What blocks' moves are sorted by.
    pub(crate) fn key(&self) -> (u32, u32) {
        (self.uniform, self.varying)
    }
}

/// One function.
#[derive(Clone, Debug)]
pub(crate) struct FunctionCode {
    /// Its first block.
    pub(crate) first: u32,
    /// Bytes of its registers.
    pub(crate) frame: u32,
    /// Bytes of its local frame.
    pub(crate) local: u32,
    /// Its operations, which a call costs.
    pub(crate) cost: u32,
    pub(crate) params: Vec<Slot>,
    pub(crate) returns: Vec<Slot>,
}

/// Where a passed value lies in a frame.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Slot {
    Register {
        offset: u32,
        width: u8,
        varying: bool,
    },
    Local {
        offset: u32,
        size: u32,
    },
}

/// One call.
#[derive(Clone, Debug)]
pub(crate) struct CallSite {
    /// The callee, or [`NOWHERE`] for an indirect call.
    pub(crate) callee: u32,
    /// The calling function.
    pub(crate) caller: u32,
    pub(crate) args: Vec<Slot>,
    pub(crate) results: Vec<Slot>,
}
