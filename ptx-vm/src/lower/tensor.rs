//! Copies of parts of tensors, made by one thread: `cp.async.bulk.tensor`, `cp.reduce.async.bulk.tensor`; and changes
//! of their descriptors, `tensormap.replace`.
//!
//! Called by `lower::bulk` and `lower::arith`. Must not know how a part lies in memory: `ops::tensor` and `tensor_map`
//! do.

use ptx::ast::{Instruction, Operand, Space, Type};

use super::body::{Body, Lowered};
use super::memory::is_hint;
use crate::ir::{InstKind, Reg};
use crate::machine::OpFn;
use crate::ops::simple::Words;
use crate::ops::tensor::{self, Form, Mode, REDUCTIONS};
use crate::ops::{logic, parts};
use crate::tensor_map::Field;

/// The most dimensions of a tensor.
const MOST_RANK: usize = 5;
/// Bytes of a descriptor that is copied.
const DESCRIPTOR: i64 = 128;

impl<'a> Body<'a> {
    /// `cp.async.bulk.tensor` and `cp.reduce.async.bulk.tensor`: `rest` are the words after the rank.
    pub(super) fn copy_tensor(
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
        let is_plain = |word: &&str| *word == "tile" || is_hint(word) || *word == "cta_group::1";
        let mut flags: Vec<&str> = rest
            .iter()
            .copied()
            .filter(|word| !is_plain(word))
            .collect();
        let multicast = flags.last() == Some(&"multicast::cluster");
        if multicast {
            flags.pop();
        }
        let reduces = words.has("reduce");
        let reduction = match flags.get(2) {
            Some(word) if reduces => {
                let found = REDUCTIONS.iter().position(|name| name == word);
                flags.remove(2);
                Some(found.ok_or_else(|| self.unbuilt())?)
            }
            _ => None,
        };
        let (operands, ranks) = self.without_ranks(operands, multicast)?;
        let four_rows = matches!(
            flags.get(2),
            Some(&"tile::gather4") if flags[0] != "global"
        ) || matches!(flags.get(2), Some(&"tile::scatter4") if flags[0] == "global");
        if four_rows {
            if rank != 2 || reduces {
                return Err(self.unbuilt());
            }
            flags.remove(2);
        }
        let (run, mode): (OpFn, _) = match flags.as_slice() {
            [
                "shared::cta" | "shared::cluster",
                "global",
                mode @ ..,
                "mbarrier::complete_tx::bytes",
            ] if !reduces && (!multicast || flags[0] == "shared::cluster") => match mode {
                [] => (tensor::load, Mode::Box),
                ["im2col"] if rank >= 3 => (tensor::load, Mode::Columns),
                ["im2col::w"] if rank >= 3 => (tensor::load, Mode::Wide),
                ["im2col::w::128"] if rank >= 3 => (tensor::load, Mode::Wide128),
                _ => return Err(self.unbuilt()),
            },
            ["global", "shared::cta", mode @ .., "bulk_group"]
                if !multicast && reduces == reduction.is_some() =>
            {
                match mode {
                    [] => (tensor::store, Mode::Box),
                    ["im2col_no_offs"] if rank >= 3 => (tensor::store, Mode::Columns),
                    _ => return Err(self.unbuilt()),
                }
            }
            _ => return Err(self.unbuilt()),
        };
        let loads = flags[0] != "global";
        let (map, tile, barrier, offsets) = match operands {
            [tile, map, barrier, Operand::Vector(offsets)] if loads && mode != Mode::Box => {
                (map, tile, Some(barrier), offsets.as_slice())
            }
            [tile, map, barrier] if loads && mode == Mode::Box => {
                (map, tile, Some(barrier), &[][..])
            }
            [map, tile] if !loads => (map, tile, None, &[][..]),
            _ => return Err(self.fail("a wrong number of operands")),
        };
        let Operand::Indexed(inside) = map else {
            return Err(self.fail("an operand without coordinates"));
        };
        let [map @ Operand::Address(_), Operand::Vector(coordinates)] = inside.as_slice() else {
            return Err(self.unbuilt());
        };
        let count = if four_rows { MOST_RANK } else { rank };
        let widths = mode.offset_bits(rank);
        if coordinates.len() != count || loads && offsets.len() != widths.len() {
            return Err(self.fail("a wrong number of coordinates"));
        }
        let target = self.target(None, map)?;
        let map = self.whole_address(&target, 0)?;
        let mut places = [self.constant(0, 4); 2];
        for (place, operand) in places.iter_mut().zip([Some(tile), barrier]) {
            if let Some(operand) = operand {
                *place = self.shared_place(operand)?;
            }
        }
        let mut at = [self.constant(0, 4); MOST_RANK];
        for (at, coordinate) in at.iter_mut().zip(coordinates) {
            *at = self.read(coordinate, 4)?;
        }
        let ranks = ranks.unwrap_or_else(|| self.constant(0, 4));
        let extra = self.with_offsets(ranks, offsets, widths)?;
        let pair = |body: &mut Self, low, high| body.compute(&parts::pack64(), vec![low, high]);
        let places = pair(self, places[0], places[1]);
        let (first, second) = (pair(self, at[0], at[1]), pair(self, at[2], at[3]));
        let last = pair(self, at[4], extra);
        let form = Form {
            rank,
            mode,
            four_rows,
            reduction,
        };
        let after = self.enter_guarded();
        self.emit(
            InstKind::System {
                run,
                imm: form.pack(),
            },
            Vec::new(),
            vec![places, map, first, second, last],
        );
        self.leave_guarded(after);
        Ok(())
    }

    /// Ranks in the lower 16 bits, and in the upper ones the offsets of columns, which share them.
    fn with_offsets(
        &mut self,
        ranks: Reg,
        offsets: &[Operand<'a>],
        widths: &[u32],
    ) -> Lowered<Reg> {
        let mut all = ranks;
        let mut at = 16;
        for (offset, width) in offsets.iter().zip(widths) {
            let offset = self.read(offset, 2)?;
            let widen = logic::resize(2, 4, false).ok_or_else(|| self.unbuilt())?;
            let offset = self.compute(&widen, vec![offset]);
            let most = self.constant((1 << width) - 1, 4);
            let offset = self.apply32("and", Type::B32, vec![offset, most])?;
            let shift = self.constant(at, 4);
            at += u64::from(*width);
            let offset = self.apply32("shl", Type::B32, vec![offset, shift])?;
            all = self.apply32("or", Type::B32, vec![all, offset])?;
        }
        Ok(all)
    }

    /// `tensormap.replace` and `tensormap.cp_fenceproxy`.
    pub(super) fn tensor_map(&mut self, at: &'a Instruction<'a>, words: &Words<'_>) -> Lowered {
        match words.flags {
            ["replace", "tile", field, rest @ ..] => self.replace_field(at, words, field, rest),
            [
                "cp_fenceproxy",
                "global",
                "shared::cta",
                "tensormap::generic",
                "release",
                "cta" | "cluster" | "gpu" | "sys",
                "sync",
                "aligned",
            ] => {
                let [to, from, Operand::Integer(DESCRIPTOR)] = self.operands(at)? else {
                    return Err(self.unbuilt());
                };
                let to = self.generic(to, Space::Global)?;
                let from = self.generic(from, Space::Shared)?;
                let after = self.enter_guarded();
                let run: OpFn = tensor::copy_descriptor;
                self.emit(InstKind::System { run, imm: 0 }, Vec::new(), vec![to, from]);
                self.leave_guarded(after);
                self.fence();
                Ok(())
            }
            _ => Err(self.unbuilt()),
        }
    }

    fn replace_field(
        &mut self,
        at: &'a Instruction<'a>,
        words: &Words<'_>,
        field: &str,
        rest: &[&str],
    ) -> Lowered {
        let field = Field::named(field).ok_or_else(|| self.unbuilt())?;
        let (space, rest) = match rest {
            ["global", rest @ ..] => (Some(Space::Global), rest),
            ["shared::cta", rest @ ..] => (Some(Space::Shared), rest),
            rest => (None, rest),
        };
        let wide = matches!(field, Field::GlobalAddress | Field::GlobalStride);
        let ty = if wide { Type::B64 } else { Type::B32 };
        if rest != ["b1024"] || words.types != [ty] {
            return Err(self.unbuilt());
        }
        let (map, ordinal, value) = match at.operands.as_slice() {
            [map, ordinal, value] if field.has_ordinal() => (map, Some(ordinal), value),
            [map, value] if !field.has_ordinal() => (map, None, value),
            _ => return Err(self.fail("a wrong number of operands")),
        };
        let map = match space {
            Some(space) => self.generic(map, space)?,
            None => {
                let target = self.target(None, map)?;
                self.whole_address(&target, 0)?
            }
        };
        let ordinal = match ordinal {
            Some(ordinal) => self.read(ordinal, 4)?,
            None => self.constant(0, 4),
        };
        let value = if wide {
            self.read(value, 8)?
        } else {
            self.count64(value)?
        };
        let after = self.enter_guarded();
        self.emit(
            InstKind::System {
                run: tensor::replace,
                imm: field as u64,
            },
            Vec::new(),
            vec![map, value, ordinal],
        );
        self.leave_guarded(after);
        Ok(())
    }
}
