//! Copies from global to shared memory that a GPU makes meanwhile (`cp.async`). Here they are made at once,
//! as they may be, so that there is nothing to wait for.
//!
//! Called by `lower::arith` for `cp`. Must not know memory: loads, stores and barriers are `ops`'.

use ptx::ast::{Instruction, Operand, Space, Type};

use super::body::{Body, Lowered};
use super::memory::is_hint;
use crate::ir::{InstKind, Reg, Traits};
use crate::ops::simple::Words;
use crate::ops::{compare, logic};
use crate::ops::{mbarrier, memory};

impl<'a> Body<'a> {
    pub(super) fn copy(&mut self, at: &'a Instruction<'a>, words: &Words<'_>) -> Lowered {
        match words.flags {
            ["async", "commit_group" | "wait_group" | "wait_all"] => Ok(()),
            ["async", "mbarrier", "arrive", rest @ ..] => self.arrive_after_copies(at, words, rest),
            ["async", "bulk", flags @ ..] => self.bulk(at, words, flags),
            ["reduce", "async", "bulk", flags @ ..] => self.reduce_bulk(at, words, flags),
            [
                "async",
                "ca" | "cg",
                "shared" | "shared::cta",
                "global",
                hints @ ..,
            ] if hints.iter().all(|word| is_hint(word)) => self.copy_async(at, words),
            _ => Err(self.unbuilt()),
        }
    }

    /// `cp.async.mbarrier.arrive`: the copies before it are made, so that it arrives at once. Without
    /// `noinc` the phase expects one more arrival for it, which is that.
    fn arrive_after_copies(
        &mut self,
        at: &'a Instruction<'a>,
        words: &Words<'_>,
        rest: &[&str],
    ) -> Lowered {
        let (counts, space) = match rest {
            ["noinc", space @ ..] => (true, space),
            space => (false, space),
        };
        let space = match space {
            [] => None,
            ["shared" | "shared::cta"] => Some(Space::Shared),
            _ => return Err(self.unbuilt()),
        };
        let [address] = self.operands(at)?;
        if words.types != [Type::B64] {
            return Err(self.unbuilt());
        }
        let target = self.target(space, address)?;
        if !counts {
            return Ok(());
        }
        let operands = vec![self.constant(1, 8), self.constant(0, 8)];
        self.change_barrier(&target, mbarrier::arrive(), operands, None)
    }

    fn copy_async(&mut self, at: &'a Instruction<'a>, words: &Words<'_>) -> Lowered {
        let (to, from, size, limit) = match self.without_policy(at, words)? {
            [to, from, Operand::Integer(size)] => (to, from, *size, None),
            [to, from, Operand::Integer(size), limit] => (to, from, *size, Some(limit)),
            _ => return Err(self.fail("a wrong number of operands")),
        };
        let count = match size {
            4 => 1,
            8 => 2,
            16 => 4,
            _ => return Err(self.fail("a size that is none of 4, 8 and 16")),
        };
        let load = memory::load(4, false, 4, false).ok_or_else(|| self.unbuilt())?;
        let store = memory::store(4, 4, false).ok_or_else(|| self.unbuilt())?;
        let traits = Traits {
            loose: 4,
            ..Traits::default()
        };
        let source = self.target(Some(Space::Global), from)?;
        let mut values = Vec::new();
        match limit {
            None => {
                let imm = self.access(&source, count)?;
                values.extend((0..count).map(|_| self.temp(4)));
                let kind = InstKind::Load {
                    run: load,
                    imm,
                    traits,
                };
                self.emit(kind, values.clone(), vec![source.base]);
            }
            Some(limit) => {
                let bytes = self.bytes_wanted(limit, size)?;
                for word in 0..count {
                    let value = self.part_of_copy(bytes, word as u64, |body, value| {
                        let imm = body.access(&source.beyond(4 * word as i64), 1)?;
                        let kind = InstKind::Load {
                            run: load,
                            imm,
                            traits,
                        };
                        body.emit(kind, vec![value], vec![source.base]);
                        Ok(())
                    })?;
                    values.push(value);
                }
            }
        }
        let target = self.target(Some(Space::Shared), to)?;
        let imm = self.access(&target, count)?;
        let mut sources = vec![target.base];
        sources.extend(values);
        let kind = InstKind::Store {
            run: store,
            imm,
            loose: 4,
        };
        self.emit(kind, Vec::new(), sources);
        Ok(())
    }

    /// How many bytes a copy reads: the operand says that, or, if it is a predicate, whether it reads none.
    fn bytes_wanted(&mut self, limit: &Operand<'a>, size: i64) -> Lowered<Reg> {
        let predicate = match limit {
            Operand::Register(register) => self
                .func
                .regs
                .get(register.0 as usize)
                .is_some_and(|&width| width == 1),
            Operand::Not(_) => true,
            _ => false,
        };
        if !predicate {
            return self.read(limit, 4);
        }
        let ignored = self.read(limit, 1)?;
        let (none, all) = (self.constant(0, 4), self.constant(size.cast_unsigned(), 4));
        let select = logic::select(4).ok_or_else(|| self.unbuilt())?;
        Ok(self.compute(&select, vec![none, all, ignored]))
    }

    /// One word of a copy that reads `bytes` bytes and fills up with zeroes; `load` is only done where some
    /// of the word's bytes are wanted.
    fn part_of_copy(
        &mut self,
        bytes: Reg,
        word: u64,
        load: impl FnOnce(&mut Self, Reg) -> Lowered,
    ) -> Lowered<Reg> {
        let (zero, one, start) = (
            self.constant(0, 4),
            self.constant(1, 4),
            self.constant(4 * word, 4),
        );
        let value = self.temp(4);
        let copy = logic::mov(4).ok_or_else(|| self.unbuilt())?;
        self.simple(&copy, value, vec![zero]);
        let more = compare::compare("gt", Type::U32).ok_or_else(|| self.unbuilt())?;
        let mut wanted = self.compute(&more, vec![bytes, start]);
        let guard = self.guard();
        if let Some((on, negated)) = guard {
            let mut on = on;
            if negated {
                let not = self.predicate_op("not")?;
                on = self.compute(&not, vec![on]);
            }
            let and = self.predicate_op("and")?;
            wanted = self.compute(&and, vec![wanted, on]);
        }
        self.set_guard(Some((wanted, false)));
        let loaded = load(self, value);
        self.set_guard(guard);
        loaded?;
        // Of the word's bytes those that are wanted: all from 4 on, and a shift by 32 gives 0.
        let rest = self.apply32("sub", Type::U32, vec![bytes, start])?;
        let four = self.constant(4, 4);
        let rest = self.apply32("min", Type::U32, vec![rest, four])?;
        let three = self.constant(3, 4);
        let bits = self.apply32("shl", Type::B32, vec![rest, three])?;
        let bit = self.apply32("shl", Type::B32, vec![one, bits])?;
        let mask = self.apply32("sub", Type::U32, vec![bit, one])?;
        self.apply32("and", Type::B32, vec![value, mask])
    }
}
