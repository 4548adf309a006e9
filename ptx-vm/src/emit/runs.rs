//! Which of a block's instructions become segments, and which stand under one guard.
//!
//! Called by `emit` for each block. Must not know how either is compiled.

use std::collections::HashSet;
use std::ops::Range;

use super::{Body, Emitter, blank};
use crate::analysis;
use crate::ir::{Block, Inst, InstKind, Reg};
use crate::isa::{Isa, Target};
use crate::ops::control;
use crate::segment::{self, SegmentLanes, SegmentStep};
use crate::special_register::Special;

impl Emitter {
    /// An instruction as a step of a segment that is done once for all lanes, if it is arithmetic on what is the same in them, or loads
    /// it.
    pub(super) fn once(&self, body: &Body<'_>, inst: &Inst) -> Option<SegmentStep> {
        let Target { isa, jit, .. } = self.target;
        let fits = match inst.kind {
            InstKind::Pure { .. } => true,
            InstKind::Load { .. } | InstKind::Special(_) => isa == Isa::Avx512,
            _ => false,
        };
        let mut registers = inst.d.iter().chain(&inst.s);
        let possible = jit
            && fits
            && body.convergent
            && inst.guard.is_none()
            && segment::possible(isa, false)
            && registers.all(|&reg| !body.home(reg).1);
        let step = match inst.kind {
            InstKind::Special(Special::Ctaid(axis)) => inst
                .d
                .first()
                .filter(|&&reg| body.width(reg) == 4)
                .map(|_| SegmentStep::block_index(inst, axis)),
            _ => inst.step(),
        };
        step.filter(|step| possible && segment::has(isa, step.tag))
    }

    /// Instructions of the prologue, all of whose results are kept.
    pub(super) fn fixed(&mut self, body: &Body<'_>, insts: &[&Inst]) {
        let mut at = 0;
        while at < insts.len() {
            let steps: Vec<SegmentStep> = insts[at..]
                .iter()
                .map_while(|inst| self.once(body, inst))
                .collect();
            if steps.len() >= segment::LEAST {
                let live = steps.iter().flat_map(|step| step.d.iter().copied());
                self.line = insts[at].line;
                if self.segment(body, &steps, &live.collect(), SegmentLanes::Once) {
                    at += steps.len();
                    continue;
                }
            }
            self.inst(body, insts[at]);
            at += 1;
        }
    }

    /// An instruction as a step of a segment that is done for lanes, if it can be one for a vector unit.
    fn step(&self, body: &Body<'_>, inst: &Inst, isa: Isa) -> Option<SegmentStep> {
        let jit = self.target.jit;
        let masked = !body.convergent || inst.guard.is_some();
        inst.step().filter(|step| {
            let varying = step.d.iter().all(|&reg| body.home(reg).1);
            jit && segment::possible(isa, masked) && varying && segment::has(isa, step.tag)
        })
    }

    /// The runs that become segments of block `index`, whose instructions these are: of at least so many, or with a load or a
    /// store, of steps that the vector unit has. The last one comes first.
    pub(super) fn runs(
        &self,
        body: &Body<'_>,
        index: usize,
        insts: &[&Inst],
        least: usize,
        isa: Isa,
    ) -> Vec<Run> {
        let mut runs = Vec::new();
        let mut live = analysis::live_out(body.func, body.live, index);
        analysis::before_end(&body.func.blocks[index].end, &mut live);
        let mut end = insts.len();
        while end > 0 {
            let mut start = end;
            let guard = insts[end - 1].guard;
            let mut order = segment::Order::default();
            while start > 0 && self.once(body, insts[start - 1]).is_some() {
                start -= 1;
            }
            let once = start < end;
            while start > 0
                && !once
                && insts[start - 1].guard == guard
                && guard.is_none_or(|(reg, _)| !insts[start - 1].d.contains(&reg))
                && self
                    .step(body, insts[start - 1], isa)
                    .is_some_and(|step| order.precede(&step))
            {
                start -= 1;
            }
            let reaches = |inst: &&Inst| {
                matches!(
                    inst.kind,
                    InstKind::Load { .. } | InstKind::Store { .. } | InstKind::Atomic { .. }
                )
            };
            if end - start >= least || insts[start..end].iter().any(reaches) {
                let own = insts[start..end]
                    .iter()
                    .flat_map(|inst| inst.uses().chain(inst.d.iter().copied()));
                runs.push(Run {
                    range: start..end,
                    live: own.filter(|&reg| live.has(reg)).collect(),
                    once,
                });
            }
            // The run, or the one instruction that is none.
            start = start.min(end - 1);
            for inst in insts[start..end].iter().rev() {
                analysis::before(inst, &mut live);
            }
            end = start;
        }
        runs
    }

    /// The steps of a run.
    pub(super) fn steps(
        &self,
        body: &Body<'_>,
        run: &Run,
        insts: &[&Inst],
        isa: Isa,
    ) -> Vec<SegmentStep> {
        let step = |inst: &&Inst| {
            if run.once {
                self.once(body, inst)
            } else {
                self.step(body, inst, isa)
            }
        };
        insts[run.range.clone()].iter().filter_map(step).collect()
    }

    /// A block's instructions, runs of arithmetic, loads and stores as segments.
    pub(super) fn insts(&mut self, body: &Body<'_>, block: &Block, index: usize) {
        let insts = body.own(block);
        let isa = self.target.isa;
        let runs = self.runs(body, index, &insts, segment::LEAST, isa);
        let mut runs = runs.into_iter().rev().peekable();
        let mut at = 0;
        // The guard that has just ended, whose predicate is what it was.
        let mut closed: Option<(usize, (Reg, bool))> = None;
        while at < insts.len() {
            let guard = insts[at].guard;
            let end = at + together(&insts[at..]);
            self.line = insts[at].line;
            if let (Some((opened, (reg, negated))), Some(guard)) = (closed, guard)
                && guard == (reg, !negated)
            {
                // Lanes that the one leaves out are those of the other.
                self.program.ops[opened].imm = 1;
            }
            let opened = guard.map(|guard| self.guard(body, guard));
            let keeps =
                |(reg, _): &(Reg, bool)| !insts[at..end].iter().any(|inst| inst.d.contains(reg));
            closed = opened.zip(guard.filter(keeps));
            while at < end {
                if let Some(run) = runs.next_if(|run| run.range.start == at) {
                    let steps = self.steps(body, &run, &insts, isa);
                    self.line = insts[at].line;
                    let lanes = match (run.once, !body.convergent || guard.is_some()) {
                        (true, _) => SegmentLanes::Once,
                        (false, true) => SegmentLanes::Masked,
                        (false, false) => SegmentLanes::All,
                    };
                    if self.segment(body, &steps, &run.live, lanes) {
                        at = run.range.end;
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

/// Instructions that become a segment.
pub(super) struct Run {
    pub(super) range: Range<usize>,
    /// What of its own registers is needed after it.
    pub(super) live: HashSet<Reg>,
    /// It is the same in all lanes, and done once.
    once: bool,
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
