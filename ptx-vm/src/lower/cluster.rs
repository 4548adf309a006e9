//! Clusters: their barrier, and the addresses of other blocks' shared memory.
//!
//! Called by `lower::arith` and `lower::control`. Must not know which blocks a cluster has: places in shared memory
//! are tested when they are used.

use ptx::ast::{Instruction, Operand, Space, Type};

use super::body::{Body, Lowered};
use crate::ir::{Barrier, End, InstKind, Reg};
use crate::limits::MAX_CLUSTER;
use crate::machine::{CLUSTER_BARRIER, OpFn};
use crate::ops::simple::Words;
use crate::ops::{bulk, logic};
use crate::spaces::{SHARED_BASE, SHARED_SPAN, WINDOW};
use crate::special_register::Special;

impl<'a> Body<'a> {
    /// `barrier.cluster.arrive` and `.wait`.
    pub(super) fn cluster_barrier(
        &mut self,
        at: &'a Instruction<'a>,
        words: &Words<'_>,
    ) -> Lowered {
        let known = |word: &&str| {
            matches!(
                *word,
                "cluster" | "arrive" | "wait" | "release" | "acquire" | "relaxed" | "aligned"
            )
        };
        let [] = self.operands(at)?;
        if !words.flags.iter().all(known) || words.has("arrive") == words.has("wait") {
            return Err(self.unbuilt());
        }
        self.fence();
        let after = self.enter_guarded();
        let next = self.new_block();
        self.end(End::Barrier {
            id: Barrier::Fixed(CLUSTER_BARRIER),
            count: None,
            arrive_only: words.has("arrive"),
            reduce: None,
            next,
        });
        self.begin(next);
        self.leave_guarded(after);
        Ok(())
    }

    /// `mapa`: where a place of shared memory is in the block of a rank. `getctarank`: the rank of the block that a
    /// place is in.
    pub(super) fn of_cluster(&mut self, at: &'a Instruction<'a>, words: &Words<'_>) -> Lowered {
        let &[ty @ (Type::U32 | Type::U64)] = words.types else {
            return Err(self.unbuilt());
        };
        let named = words.has("shared::cluster");
        if !words.only(&["shared::cluster"]) || !named && ty == Type::U32 {
            return Err(self.unbuilt());
        }
        let width = ty.size() as u8;
        match at.operands.as_slice() {
            [d, place, rank] if words.opcode == "mapa" => {
                let (place, rank) = (self.read(place, width)?, self.read(rank, 4)?);
                let rank = if width == 8 {
                    let widen = logic::resize(4, 8, false).ok_or_else(|| self.unbuilt())?;
                    self.compute(&widen, vec![rank])
                } else {
                    rank
                };
                let mapped = self.mapped(place, rank, width)?;
                let base = self.constant(if named { 0 } else { SHARED_BASE }, width);
                let mapped = self.plain("add", ty, vec![mapped, base])?;
                let dest = self.dest(d, width)?;
                let copy = logic::mov(width).ok_or_else(|| self.unbuilt())?;
                self.simple(&copy, dest, vec![mapped]);
                self.finish(d, dest, false)
            }
            [d, place] if words.opcode == "getctarank" => {
                let place = self.read(place, width)?;
                let place = if width == 8 {
                    let narrow = logic::resize(8, 4, false).ok_or_else(|| self.unbuilt())?;
                    self.compute(&narrow, vec![place])
                } else {
                    place
                };
                let inside = self.constant(WINDOW - 1, 4);
                let place = self.apply32("and", Type::B32, vec![place, inside])?;
                let shift = self.constant(SHARED_SPAN.trailing_zeros().into(), 4);
                let slot = self.apply32("shr", Type::U32, vec![place, shift])?;
                // Slot 0 is the block's own.
                let (zero, one) = (self.constant(0, 4), self.constant(1, 4));
                let own = self.plain_compare("eq", Type::U32, slot, zero)?;
                let other = self.apply32("sub", Type::U32, vec![slot, one])?;
                let rank = self.special_of(Special::ClusterRank);
                let select = logic::select(4).ok_or_else(|| self.unbuilt())?;
                let value = self.compute(&select, vec![rank, other, own]);
                self.write32(d, value)
            }
            _ => Err(self.fail("a wrong number of operands")),
        }
    }

    /// `clusterlaunchcontrol`: asks for a cluster that has not begun, and whether and which one was given. None ever is.
    pub(super) fn control_launches(
        &mut self,
        at: &'a Instruction<'a>,
        words: &Words<'_>,
    ) -> Lowered {
        match (words.flags, words.types) {
            (["try_cancel", "async", rest @ ..], [Type::B128]) => {
                let rest = match rest {
                    ["shared::cta", rest @ ..] => rest,
                    rest => rest,
                };
                let all = match rest {
                    ["mbarrier::complete_tx::bytes"] => false,
                    ["mbarrier::complete_tx::bytes", "multicast::cluster::all"] => true,
                    _ => return Err(self.unbuilt()),
                };
                let [to, barrier] = self.operands(at)?;
                let mut sources = vec![
                    self.generic(to, Space::Shared)?,
                    self.generic(barrier, Space::Shared)?,
                ];
                if all {
                    let (one, count) =
                        (self.constant(1, 4), self.special_of(Special::ClusterBlocks));
                    let bit = self.apply32("shl", Type::B32, vec![one, count])?;
                    sources.push(self.apply32("sub", Type::U32, vec![bit, one])?);
                }
                let after = self.enter_guarded();
                let run: OpFn = bulk::cancel_none;
                let imm = u64::from(all);
                self.emit(InstKind::System { run, imm }, Vec::new(), sources);
                self.leave_guarded(after);
                Ok(())
            }
            (["query_cancel", "is_canceled"], [Type::Pred, Type::B128]) => {
                let [d, answer] = self.operands(at)?;
                self.halves_of(answer)?;
                let (dest, none) = (self.dest(d, 1)?, self.constant(0, 1));
                let copy = logic::mov(1).ok_or_else(|| self.unbuilt())?;
                self.simple(&copy, dest, vec![none]);
                self.finish(d, dest, false)
            }
            // Which one is asked only of what was given: whatever comes is as good.
            (["query_cancel", which @ ..], [Type::B32, Type::B128]) => {
                let count = match which {
                    ["get_first_ctaid::x" | "get_first_ctaid::y" | "get_first_ctaid::z"] => 1,
                    ["get_first_ctaid", "v4"] => 4,
                    _ => return Err(self.unbuilt()),
                };
                let [d, answer] = self.operands(at)?;
                self.halves_of(answer)?;
                for element in self.elements(d, count)? {
                    let none = self.constant(0, 4);
                    self.write32(element, none)?;
                }
                Ok(())
            }
            _ => Err(self.unbuilt()),
        }
    }

    /// A place of shared memory as it is in the block of a rank; one that no cluster has is in no block.
    fn mapped(&mut self, place: Reg, rank: Reg, width: u8) -> Lowered<Reg> {
        let (ty, bits) = match width {
            8 => (Type::U64, Type::B64),
            _ => (Type::U32, Type::B32),
        };
        let most = self.constant(MAX_CLUSTER.into(), width);
        let rank = self.plain("min", ty, vec![rank, most])?;
        let one = self.constant(1, width);
        let slot = self.plain("add", ty, vec![rank, one])?;
        let shift = self.constant(SHARED_SPAN.trailing_zeros().into(), 4);
        let start = self.plain("shl", bits, vec![slot, shift])?;
        let inside = self.constant(SHARED_SPAN - 1, width);
        let offset = self.plain("and", bits, vec![place, inside])?;
        self.plain("add", ty, vec![start, offset])
    }

    /// `isspacep` of shared memory: a block's own, or that of its cluster.
    pub(super) fn is_shared(&mut self, source: Reg, dest: Reg, cluster: bool) -> Lowered {
        let base = self.constant(SHARED_BASE, 8);
        let place = self.plain("sub", Type::U64, vec![source, base])?;
        let span = self.constant(if cluster { WINDOW } else { SHARED_SPAN }, 8);
        let inside = self.plain_compare("lt", Type::U64, place, span)?;
        let copy = logic::mov(1).ok_or_else(|| self.unbuilt())?;
        self.simple(&copy, dest, vec![inside]);
        Ok(())
    }

    /// An address in shared memory of the block or its cluster, of 32 bits.
    pub(super) fn shared_place(&mut self, operand: &Operand<'a>) -> Lowered<Reg> {
        let target = self.target(Some(Space::Shared), operand)?;
        let address = self.whole_address(&target, 0)?;
        let narrow = logic::resize(8, 4, false).ok_or_else(|| self.unbuilt())?;
        Ok(self.compute(&narrow, vec![address]))
    }

    /// An operation without modifiers.
    pub(super) fn plain(&mut self, opcode: &str, ty: Type, sources: Vec<Reg>) -> Lowered<Reg> {
        let words = Words {
            opcode,
            flags: &[],
            types: &[ty],
        };
        self.apply(&words, sources)
    }

    /// A comparison of two values.
    pub(super) fn plain_compare(&mut self, how: &str, ty: Type, a: Reg, b: Reg) -> Lowered<Reg> {
        let compare = crate::ops::compare::compare(how, ty).ok_or_else(|| self.unbuilt())?;
        Ok(self.compute(&compare, vec![a, b]))
    }
}
