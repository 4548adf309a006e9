//! A program as bytes and back.
//!
//! Called by `module`. Must not know what an operation does.

use std::collections::HashMap;

use super::build;
use super::bytes::{Reader, Writer};
use crate::machine::{ColdFn, Op, OpFn};
use crate::program::{BlockCode, CallSite, FunctionCode, Move, Program, Slot};
use crate::segment::{CodeBytes, Native};

/// Stands for no function.
const NONE: u32 = u32::MAX;
/// What machine code is aligned to in the bytes, which is run where it lies in them.
const CODE_ALIGNMENT: usize = 64;
/// Bytes of an operation.
const OP: usize = 60;

impl Program {
    /// What is to be kept of it. `None` if it does what it does because something is missing here, or calls what is not this
    /// program's code.
    pub(crate) fn to_kept(&self) -> Option<Vec<u8>> {
        if self.is_makeshift {
            return None;
        }
        let own = build::own()?;
        let mut functions = Vec::new();
        let mut numbers: HashMap<usize, u32> = HashMap::new();
        let mut number = |function: usize| {
            if let Some(&number) = numbers.get(&function) {
                return Some(number);
            }
            functions.push(own.offset(function)?);
            let number = functions.len() as u32 - 1;
            numbers.insert(function, number);
            Some(number)
        };
        let mut segments = self.segments.iter().peekable();
        let mut to = Writer(Vec::with_capacity(self.ops.len() * OP));
        to.count(self.ops.len());
        for (index, (op, &line)) in self.ops.iter().zip(&self.lines).enumerate() {
            to.u32(number(op.run as usize)?);
            to.u32(match op.cold {
                Some(cold) => number(cold as usize)?,
                None => NONE,
            });
            // Where a segment's code is mapped here is nothing to anybody else.
            let segment = segments.next_if(|segment| segment.0 as usize == index);
            to.u64(if segment.is_some() { 0 } else { op.imm });
            op.d.iter().chain(&op.s).for_each(|&slot| to.u32(slot));
            to.0.extend(op.varying.to_le_bytes());
            to.0.extend(op.width);
            to.u32(line);
        }
        to.list(&functions, |to, &offset| to.u64(offset));
        to.list(&self.segments, |to, &(op, at)| {
            to.u32(op);
            to.u32(at);
        });
        let code = self.native.as_ref().map_or(&[][..], Native::code);
        to.count(code.len());
        to.0.resize(to.0.len().next_multiple_of(CODE_ALIGNMENT), 0);
        to.0.extend(code);
        to.list(&self.blocks, |to, block| {
            to.u32(block.fast);
            to.u32(block.slow);
            to.list(&block.moves, |to, moved| {
                to.u32(moved.uniform);
                to.u32(moved.varying);
                to.u8(moved.width);
            });
        });
        to.list(&self.functions, |to, function| {
            for number in [
                function.first,
                function.frame,
                function.local,
                function.cost,
            ] {
                to.u32(number);
            }
            to.list(&function.params, slot);
            to.list(&function.returns, slot);
        });
        to.list(&self.sites, |to, site| {
            to.u32(site.callee);
            to.u32(site.caller);
            to.list(&site.args, slot);
            to.list(&site.results, slot);
        });
        to.list(&self.tables, |to, table| {
            to.list(table, |to, &block| to.u32(block));
        });
        to.list(&self.by_address, |to, &function| to.u32(function));
        for number in [
            self.prologue,
            self.block_prologue,
            self.divergent,
            self.local_stride,
        ] {
            to.u32(number);
        }
        to.u8(u8::from(self.asks_runtime));
        Some(to.0)
    }

    /// A program as [`Program::to_kept`] wrote it; its machine code stays where it is. `None` for other bytes, as far as
    /// that can be seen, and where the system does not let it run.
    ///
    /// # Safety
    /// Before it runs: the bytes are what this build wrote, of a kernel for this vector unit.
    pub(crate) unsafe fn from_kept(bytes: CodeBytes) -> Option<Self> {
        let own = build::own()?;
        let mut from = Reader(&bytes);
        let count = from.u32()? as usize;
        let mut stored = Reader(from.bytes(count.checked_mul(OP)?)?);
        let functions = from.list(|from| own.address(from.u64()?))?;
        let segments = from.list(|from| Some((from.u32()?, from.u32()?)))?;
        let length = from.u32()? as usize;
        let at = bytes.len() - from.0.len();
        let first = at.next_multiple_of(CODE_ALIGNMENT);
        from.bytes(first - at)?;
        from.bytes(length)?;
        let mut program = Self {
            ops: Vec::with_capacity(count),
            lines: Vec::with_capacity(count),
            ..Self::default()
        };
        for _ in 0..count {
            let run = *functions.get(stored.u32()? as usize)?;
            let cold = match stored.u32()? {
                NONE => None,
                number => Some(*functions.get(number as usize)?),
            };
            let op = Op {
                // SAFETY: an address in this program's code. It is that of such a function if this build wrote it, as the caller
                // sees to before anything runs.
                run: unsafe { std::mem::transmute::<usize, OpFn>(run) },
                imm: stored.u64()?,
                // SAFETY: an address in this program's code, found in the place of functions for one lane: it is that of one if this
                // build wrote it, as the caller sees to before anything runs.
                cold: cold.map(|cold| unsafe { std::mem::transmute::<usize, ColdFn>(cold) }),
                d: numbers(&mut stored)?,
                s: numbers(&mut stored)?,
                varying: stored.array().map(u16::from_le_bytes)?,
                width: stored.array()?,
            };
            program.ops.push(op);
            program.lines.push(stored.u32()?);
        }
        program.blocks = from.list(|from| {
            Some(BlockCode {
                fast: from.u32()?,
                slow: from.u32()?,
                moves: from.list(|from| {
                    Some(Move {
                        uniform: from.u32()?,
                        varying: from.u32()?,
                        width: from.u8()?,
                    })
                })?,
            })
        })?;
        program.functions = from.list(|from| {
            Some(FunctionCode {
                first: from.u32()?,
                frame: from.u32()?,
                local: from.u32()?,
                cost: from.u32()?,
                params: from.list(read_slot)?,
                returns: from.list(read_slot)?,
            })
        })?;
        program.sites = from.list(|from| {
            Some(CallSite {
                callee: from.u32()?,
                caller: from.u32()?,
                args: from.list(read_slot)?,
                results: from.list(read_slot)?,
            })
        })?;
        program.tables = from.list(|from| from.list(Reader::u32))?;
        program.by_address = from.list(Reader::u32)?;
        [
            program.prologue,
            program.block_prologue,
            program.divergent,
            program.local_stride,
        ] = numbers(&mut from)?;
        program.asks_runtime = from.bool()?;
        if !from.0.is_empty() {
            return None;
        }
        if !segments.is_empty() {
            let native = Native::part_of(bytes, first..first + length)?;
            for &(op, at) in &segments {
                if at as usize >= length {
                    return None;
                }
                program.ops.get_mut(op as usize)?.imm = native.address() + u64::from(at);
            }
            program.native = Some(native);
        }
        program.segments = segments;
        Some(program)
    }
}

fn numbers<const N: usize>(from: &mut Reader<'_>) -> Option<[u32; N]> {
    let mut all = [0; N];
    for number in &mut all {
        *number = from.u32()?;
    }
    Some(all)
}

fn slot(to: &mut Writer, slot: &Slot) {
    let (kind, offset, size) = match *slot {
        Slot::Register {
            offset,
            width,
            varying,
        } => (1 + u8::from(varying), offset, width.into()),
        Slot::Local { offset, size } => (0, offset, size),
    };
    to.u8(kind);
    to.u32(offset);
    to.u32(size);
}

fn read_slot(from: &mut Reader<'_>) -> Option<Slot> {
    let (kind, offset, size) = (from.u8()?, from.u32()?, from.u32()?);
    match kind {
        0 => Some(Slot::Local { offset, size }),
        1 | 2 => Some(Slot::Register {
            offset,
            width: u8::try_from(size).ok()?,
            varying: kind == 2,
        }),
        _ => None,
    }
}
