//! Which of a block's instructions become segments, and which stand under one guard.
//!
//! Called by `emit` for each block. Must not know how either is compiled.

use std::collections::HashSet;
use std::ops::Range;

use super::{Body, Emitter, Target, blank};
use crate::analysis;
use crate::ir::{Block, Inst, InstKind, Reg};
use crate::ops::control;
use crate::segment::{self, SegmentStep};

impl Emitter {
    /// A block's instructions, runs of arithmetic, loads and stores as segments.
    pub(super) fn insts(&mut self, body: &Body<'_>, block: &Block, index: usize) {
        let insts: Vec<&Inst> = block
            .insts
            .iter()
            .filter(|inst| !inst.is_fixed(&body.classes))
            .collect();
        let Target { isa, jit } = self.target;
        let step = |inst: &Inst| {
            let masked = !body.convergent || inst.guard.is_some();
            inst.step().filter(|step| {
                let varying = step.d.iter().all(|&reg| body.home(reg).1);
                jit && segment::possible(isa, masked) && varying && segment::has(isa, step.tag)
            })
        };
        // With what of the run's own registers is needed after it.
        let mut runs: Vec<(Range<usize>, HashSet<Reg>)> = Vec::new();
        let mut live = analysis::live_out(body.func, body.live, index);
        analysis::before_end(&block.end, &mut live);
        let mut end = insts.len();
        while end > 0 {
            let mut start = end;
            let guard = insts[end - 1].guard;
            let mut order = segment::Order::default();
            while start > 0
                && insts[start - 1].guard == guard
                && guard.is_none_or(|(reg, _)| !insts[start - 1].d.contains(&reg))
                && step(insts[start - 1]).is_some_and(|step| order.precede(&step))
            {
                start -= 1;
            }
            let reaches =
                |inst: &&Inst| matches!(inst.kind, InstKind::Load { .. } | InstKind::Store { .. });
            if end - start >= segment::LEAST || insts[start..end].iter().any(reaches) {
                let own = insts[start..end]
                    .iter()
                    .flat_map(|inst| inst.uses().chain(inst.d.iter().copied()));
                runs.push((start..end, own.filter(|&reg| live.has(reg)).collect()));
            }
            // The run, or the one instruction that is none.
            start = start.min(end - 1);
            for inst in insts[start..end].iter().rev() {
                analysis::before(inst, &mut live);
            }
            end = start;
        }
        let mut runs = runs.into_iter().rev().peekable();
        let mut at = 0;
        while at < insts.len() {
            let guard = insts[at].guard;
            let end = at + together(&insts[at..]);
            self.line = insts[at].line;
            let opened = guard.map(|guard| self.guard(body, guard));
            while at < end {
                if let Some((range, live)) = runs.next_if(|(range, _)| range.start == at) {
                    let steps: Vec<SegmentStep> = insts[range.clone()]
                        .iter()
                        .filter_map(|inst| step(inst))
                        .collect();
                    self.line = insts[at].line;
                    let masked = !body.convergent || guard.is_some();
                    if self.segment(body, &steps, &live, masked) {
                        at = range.end;
                        continue;
                    }
                }
                self.inst(body, insts[at]);
                at += 1;
            }
            if let Some(opened) = opened {
                self.push(blank(control::unguard));
                self.program.ops[opened].s[0] = self.program.ops.len() as u32;
            }
        }
    }
}

/// How many of the instructions one guard can be of, from the first one on: whose guard is the same and still holds what it
/// held, and which go on with the next one. Those without a guard, up to one with one.
fn together(insts: &[&Inst]) -> usize {
    let Some((reg, _)) = insts[0].guard else {
        let guarded = insts.iter().position(|inst| inst.guard.is_some());
        return guarded.unwrap_or(insts.len());
    };
    let mut count = 1;
    while let Some(inst) = insts.get(count)
        && inst.guard == insts[0].guard
        && inst.kind.goes_on()
        && insts[count - 1].kind.goes_on()
        && !insts[count - 1].d.contains(&reg)
    {
        count += 1;
    }
    count
}
