//! Copies of many bytes and of boxes of tensors, made by one thread: `cp.async.bulk`, `cp.async.bulk.tensor`,
//! `cp.reduce.async.bulk`. A cluster is one block here, so that its shared memory is the block's.
//!
//! Called by `lower::copies`. Must not know how a box lies in memory: `ops::bulk` and `tensor_map` do.

use ptx::ast::{Instruction, Operand, Space};

use super::body::{Body, Lowered};
use super::memory::is_hint;
use crate::ir::{InstKind, Reg};
use crate::machine::OpFn;
use crate::ops::simple::Words;
use crate::ops::{atomic, bulk};
use crate::ops::{logic, parts};
use crate::spaces::SHARED_BASE;

/// The most dimensions of a tensor.
const MOST_RANK: usize = 5;

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
            ["commit_group" | "wait_group", ..] | ["prefetch", ..] => Ok(()),
            ["tensor", rank, rest @ ..] => self.copy_tensor(at, words, rank, rest),
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
        {
            return Err(self.unbuilt());
        }
        let operands = self.without_policy(at, words)?;
        // Which blocks of the cluster get it: this one is all of them.
        let operands = match operands.split_last() {
            Some((_, operands)) if rest.contains(&"multicast::cluster") => operands,
            _ => operands,
        };
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
        let after = self.enter_guarded();
        self.emit(
            InstKind::System { run, imm: 0 },
            Vec::new(),
            vec![to, from, bytes, barrier],
        );
        self.leave_guarded(after);
        Ok(())
    }

    fn copy_tensor(
        &mut self,
        at: &'a Instruction<'a>,
        words: &Words<'_>,
        rank: &str,
        rest: &[&str],
    ) -> Lowered {
        let rank = match rank {
            "1d" => 1,
            "2d" => 2,
            "3d" => 3,
            "4d" => 4,
            "5d" => 5,
            _ => return Err(self.unbuilt()),
        };
        let operands = self.without_policy(at, words)?;
        let flags: Vec<&str> = rest
            .iter()
            .copied()
            .filter(|word| *word != "tile" && !is_hint(word))
            .collect();
        let (run, map, tile, barrier): (OpFn, _, _, _) = match (flags.as_slice(), operands) {
            (
                [
                    "shared::cta" | "shared::cluster",
                    "global",
                    "mbarrier::complete_tx::bytes",
                ],
                [tile, map, barrier],
            )
            | (
                [
                    "shared::cluster",
                    "global",
                    "mbarrier::complete_tx::bytes",
                    "multicast::cluster",
                ],
                [tile, map, barrier, _],
            ) => (bulk::load_tensor, map, tile, Some(barrier)),
            (["global", "shared::cta", "bulk_group"], [map, tile]) => {
                (bulk::store_tensor, map, tile, None)
            }
            _ => return Err(self.unbuilt()),
        };
        let Operand::Indexed(inside) = map else {
            return Err(self.fail("an operand without coordinates"));
        };
        let [map @ Operand::Address(_), Operand::Vector(coordinates)] = inside.as_slice() else {
            return Err(self.unbuilt());
        };
        if coordinates.len() != rank {
            return Err(self.fail("a wrong number of coordinates"));
        }
        let target = self.target(None, map)?;
        let map = self.whole_address(&target, 0)?;
        let mut places = [self.constant(0, 4); 2];
        for (place, operand) in places.iter_mut().zip([Some(tile), barrier]) {
            if let Some(operand) = operand {
                let target = self.target(Some(Space::Shared), operand)?;
                let address = self.whole_address(&target, 0)?;
                let narrow = logic::resize(8, 4, false).ok_or_else(|| self.unbuilt())?;
                *place = self.compute(&narrow, vec![address]);
            }
        }
        let mut at = [self.constant(0, 4); MOST_RANK];
        for (at, coordinate) in at.iter_mut().zip(coordinates) {
            *at = self.read(coordinate, 4)?;
        }
        let pair = |body: &mut Self, low, high| body.compute(&parts::pack64(), vec![low, high]);
        let places = pair(self, places[0], places[1]);
        let (first, second) = (pair(self, at[0], at[1]), pair(self, at[2], at[3]));
        let rank = self.constant(rank as u64, 4);
        let last = pair(self, at[4], rank);
        let after = self.enter_guarded();
        self.emit(
            InstKind::System { run, imm: 0 },
            Vec::new(),
            vec![places, map, first, second, last],
        );
        self.leave_guarded(after);
        Ok(())
    }

    /// The generic address of what an operand names in a space.
    fn generic(&mut self, operand: &Operand<'a>, space: Space) -> Lowered<Reg> {
        let window = if space == Space::Shared {
            SHARED_BASE
        } else {
            0
        };
        let target = self.target(Some(space), operand)?;
        self.whole_address(&target, window)
    }
}
