//! Local memory that a function takes while it runs: `alloca`, `stacksave`, `stackrestore`. A part of its frame is for
//! that; how much of it is taken, each thread has in a register.
//!
//! Called by `lower::arith`. Must not know how deep calls are: a frame is a call's own.

use ptx::ast::{Instruction, Operand, Type};

use super::body::{Body, Lowered};
use crate::ir::{InstKind, Reg};
use crate::limits::{ALLOCA_BYTES, FRAME_BYTES};
use crate::ops::simple::Words;
use crate::ops::{logic, system};

/// What is given is aligned to this at least.
const LEAST_ALIGNMENT: i64 = 16;
/// And to this at most.
const MOST_ALIGNMENT: i64 = 4096;

impl<'a> Body<'a> {
    pub(super) fn stack(&mut self, at: &'a Instruction<'a>, words: &Words<'_>) -> Lowered {
        let &[ty @ (Type::U32 | Type::U64)] = words.types else {
            return Err(self.unbuilt());
        };
        if !words.flags.is_empty() {
            return Err(self.unbuilt());
        }
        let width = ty.size() as u8;
        let (place, taken) = self.stack_place()?;
        match (words.opcode, at.operands.as_slice()) {
            ("alloca", [d, bytes]) => {
                self.allocate(d, bytes, LEAST_ALIGNMENT, (place, taken), width)
            }
            ("alloca", [d, bytes, Operand::Integer(align)])
                if (1..=MOST_ALIGNMENT).contains(align) && align & (align - 1) == 0 =>
            {
                let align = (*align).max(LEAST_ALIGNMENT);
                self.allocate(d, bytes, align, (place, taken), width)
            }
            ("stacksave", [d]) => self.write_wide(d, taken, width),
            ("stackrestore", [saved]) => {
                let mut saved = self.read(saved, width)?;
                if width == 4 {
                    let widen = logic::resize(4, 8, false).ok_or_else(|| self.unbuilt())?;
                    saved = self.compute(&widen, vec![saved]);
                }
                self.take(saved, taken);
                Ok(())
            }
            _ => Err(self.fail("a wrong number of operands")),
        }
    }

    fn allocate(
        &mut self,
        d: &Operand<'a>,
        bytes: &Operand<'a>,
        align: i64,
        (place, taken): (u32, Reg),
        width: u8,
    ) -> Lowered {
        let mut bytes = self.read(bytes, width)?;
        if width == 4 {
            let widen = logic::resize(4, 8, false).ok_or_else(|| self.unbuilt())?;
            bytes = self.compute(&widen, vec![bytes]);
        }
        // The frame is aligned to as much.
        let rest = self.constant(align.cast_unsigned() - 1, 8);
        let mask = self.constant(align.wrapping_neg().cast_unsigned(), 8);
        let start = self.plain("add", Type::U64, vec![taken, rest])?;
        let start = self.plain("and", Type::B64, vec![start, mask])?;
        // More than all of it is too much, however it adds up.
        let most = self.constant(u64::from(ALLOCA_BYTES) + 1, 8);
        let bytes = self.plain("min", Type::U64, vec![bytes, most])?;
        let end = self.plain("add", Type::U64, vec![start, bytes])?;
        let base = self.local(place.into());
        let address = self.plain("add", Type::U64, vec![base, start])?;
        self.take(end, taken);
        self.write_wide(d, address, width)
    }

    /// So much is taken from now on; too much is a stack that overflows.
    fn take(&mut self, end: Reg, taken: Reg) {
        let checked = self.temp(8);
        let kind = InstKind::System {
            run: system::within_stack,
            imm: ALLOCA_BYTES.into(),
        };
        self.emit(kind, vec![checked], vec![end]);
        if let Some(copy) = logic::mov(8) {
            self.simple(&copy, taken, vec![checked]);
        }
    }

    fn write_wide(&mut self, d: &Operand<'a>, value: Reg, width: u8) -> Lowered {
        let resize = logic::resize(8, width, false).or_else(|| logic::mov(8));
        let resize = resize.ok_or_else(|| self.unbuilt())?;
        let dest = self.dest(d, width)?;
        self.simple(&resize, dest, vec![value]);
        self.finish(d, dest, false)
    }

    /// Where in the frame the function's own memory is taken, and the register that says how much is.
    fn stack_place(&mut self) -> Lowered<(u32, Reg)> {
        if let Some(place) = self.stack {
            return Ok(place);
        }
        let align = MOST_ALIGNMENT as u32;
        let place = self.func.local_bytes.next_multiple_of(align);
        let end = u64::from(place) + u64::from(ALLOCA_BYTES);
        if end > FRAME_BYTES {
            return Err(self.fail("the function has no local memory left to take"));
        }
        self.func.local_bytes = end as u32;
        self.func.local_align = self.func.local_align.max(align);
        let taken = self.counter();
        self.stack = Some((place, taken));
        Ok((place, taken))
    }
}
