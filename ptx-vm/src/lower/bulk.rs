//! Copies of many bytes, made by one thread: `cp.async.bulk`, `cp.reduce.async.bulk`. Those of tensors are
//! `lower::tensor`'s.
//!
//! Called by `lower::copies`. Must not know whose shared memory a place is in: `ops::bulk` finds that out.

use ptx::ast::{Instruction, Operand, Space};

use super::body::{Body, Lowered};
use super::memory::is_hint;
use crate::ir::{InstKind, Reg};
use crate::machine::OpFn;
use crate::ops::logic;
use crate::ops::simple::Words;
use crate::ops::{atomic, bulk};
use crate::spaces::SHARED_BASE;

/// The state space that a word names.
fn space(word: &str) -> Option<Space> {
    match word {
        "global" => Some(Space::Global),
        "shared::cta" | "shared::cluster" => Some(Space::Shared),
        _ => None,
    }
}

impl<'a> Body<'a> {
    /// `cp.async.bulk…`: `flags` are the words after that.
    pub(super) fn bulk(
        &mut self,
        at: &'a Instruction<'a>,
        words: &Words<'_>,
        flags: &[&str],
    ) -> Lowered {
        match flags {
            ["commit_group" | "wait_group" | "prefetch", ..] => Ok(()),
            ["tensor", rank, rest @ ..] => self.copy_tensor(at, words, rank, rest),
            ["global", "shared::cta", "bulk_group", hints @ .., "cp_mask"]
                if hints.iter().all(|word| is_hint(word)) =>
            {
                self.copy_masked(at, hints)
            }
            [to, from, rest @ ..] => {
                let (Some(to), Some(from)) = (space(to), space(from)) else {
                    return Err(self.unbuilt());
                };
                self.copy_bulk(at, words, bulk::copy, (to, from), rest)
            }
            _ => Err(self.unbuilt()),
        }
    }

    /// `cp.reduce.async.bulk…`: `flags` are the words after that.
    pub(super) fn reduce_bulk(
        &mut self,
        at: &'a Instruction<'a>,
        words: &Words<'_>,
        flags: &[&str],
    ) -> Lowered {
        if let ["tensor", rank, rest @ ..] = flags {
            return self.copy_tensor(at, words, rank, rest);
        }
        let ([to, from, rest @ .., name], &[ty]) = (flags, words.types) else {
            return Err(self.unbuilt());
        };
        // Sums of halves are never flushed, and say so.
        let (rest, name) = match (rest, *name) {
            ([rest @ .., "add"], "noftz") => (rest, "add"),
            (rest, name) => (rest, name),
        };
        let spaces = space(to).zip(space(from));
        let found = atomic::find(name, ty).filter(|found| found.operands == 1);
        let (Some(spaces), Some(found)) = (spaces, found) else {
            return Err(self.unbuilt());
        };
        self.copy_bulk(at, words, found.bulk, spaces, rest)
    }

    /// A copy of which the last operand says the bytes of each 16.
    fn copy_masked(&mut self, at: &'a Instruction<'a>, hints: &[&str]) -> Lowered {
        // A policy of the cache stands before the mask.
        let (to, from, bytes, mask) = match at.operands.as_slice() {
            [to, from, bytes, mask] if hints.is_empty() => (to, from, bytes, mask),
            [to, from, bytes, _, mask] if !hints.is_empty() => (to, from, bytes, mask),
            _ => return Err(self.fail("a wrong number of operands")),
        };
        let to = self.generic(to, Space::Global)?;
        let from = self.generic(from, Space::Shared)?;
        let bytes = self.read(bytes, 4)?;
        let mask = self.read(mask, 2)?;
        let widen = logic::resize(2, 4, false).ok_or_else(|| self.unbuilt())?;
        let after = self.enter_guarded();
        let mask = self.compute(&widen, vec![mask]);
        let sources = vec![to, from, bytes, self.constant(0, 8), mask];
        let run: OpFn = bulk::copy_masked;
        self.emit(InstKind::System { run, imm: 0 }, Vec::new(), sources);
        self.leave_guarded(after);
        Ok(())
    }

    fn copy_bulk(
        &mut self,
        at: &'a Instruction<'a>,
        words: &Words<'_>,
        run: OpFn,
        (to_space, from_space): (Space, Space),
        rest: &[&str],
    ) -> Lowered {
        let known = |word: &&str| {
            is_hint(word)
                || matches!(
                    *word,
                    "mbarrier::complete_tx::bytes" | "multicast::cluster" | "bulk_group"
                )
        };
        let tells = rest.contains(&"mbarrier::complete_tx::bytes");
        if !rest.iter().all(known)
            || tells == (to_space == Space::Global)
            || from_space == to_space && to_space == Space::Global
            || rest.contains(&"multicast::cluster") && from_space != Space::Global
        {
            return Err(self.unbuilt());
        }
        let operands = self.without_policy(at, words)?;
        let (operands, ranks) =
            self.without_ranks(operands, rest.contains(&"multicast::cluster"))?;
        let (to, from, bytes, barrier) = match operands {
            [to, from, bytes, barrier] if tells => (to, from, bytes, Some(barrier)),
            [to, from, bytes] if !tells => (to, from, bytes, None),
            _ => return Err(self.fail("a wrong number of operands")),
        };
        let to = self.generic(to, to_space)?;
        let from = self.generic(from, from_space)?;
        let bytes = self.read(bytes, 4)?;
        let barrier = match barrier {
            Some(barrier) => self.generic(barrier, Space::Shared)?,
            None => self.constant(0, 8),
        };
        let mut sources = vec![to, from, bytes, barrier];
        sources.extend(ranks);
        let imm = u64::from(ranks.is_some());
        let after = self.enter_guarded();
        self.emit(InstKind::System { run, imm }, Vec::new(), sources);
        self.leave_guarded(after);
        Ok(())
    }

    /// The operands without the ranks of the blocks that get a multicast, and those.
    pub(super) fn without_ranks(
        &mut self,
        operands: &'a [Operand<'a>],
        multicast: bool,
    ) -> Lowered<(&'a [Operand<'a>], Option<Reg>)> {
        if !multicast {
            return Ok((operands, None));
        }
        let Some((ranks, operands)) = operands.split_last() else {
            return Err(self.fail("a wrong number of operands"));
        };
        let ranks = self.read(ranks, 2)?;
        let widen = logic::resize(2, 4, false).ok_or_else(|| self.unbuilt())?;
        Ok((operands, Some(self.compute(&widen, vec![ranks]))))
    }

    /// The generic address of what an operand names in a space.
    pub(super) fn generic(&mut self, operand: &Operand<'a>, space: Space) -> Lowered<Reg> {
        let window = if space == Space::Shared {
            SHARED_BASE
        } else {
            0
        };
        let target = self.target(Some(space), operand)?;
        self.whole_address(&target, window)
    }
}
