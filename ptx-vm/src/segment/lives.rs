//! What is known of a loop whose lanes may go through it alone: whether that is worth it, which of its registers are floating-point
//! numbers, and which live within a run.
//!
//! Called by `segment` and `scalar`. Must not know where a register is kept.

use std::collections::{HashMap, HashSet};

use super::repeat::{Loop, LoopEnd};
use super::step::SegmentStep;
use super::tag::{Compared, Tag};
use crate::ir::Reg;

/// The most steps for each access of such a loop: of more arithmetic than that, vectors do more at once.
const MOST_STEPS: usize = 6;
/// Of a register that lives within a run: the run, and the step that reads it last.
pub(super) type Ending = (usize, usize);

/// Whether lanes of a loop are better off alone: it loads from where it has found in memory, and does little else.
pub(super) fn is_worth_it(repeated: &Loop) -> bool {
    let runs = repeated.blocks.iter().flat_map(|block| &block.runs);
    let steps: Vec<&SegmentStep> = runs.flat_map(|run| &run.steps).collect();
    let accesses = steps.iter().filter(|step| step.access.1 != 0).count();
    let mut loaded: HashSet<Reg> = HashSet::new();
    let mut found = false;
    for step in &steps {
        let loads = matches!(step.tag, Tag::LoadGlobal | Tag::LoadShared);
        found |= loads && loaded.contains(&step.s[0]);
        if loads || step.s.iter().any(|reg| loaded.contains(reg)) {
            loaded.extend(&step.d);
        }
    }
    found && steps.len() <= MOST_STEPS * accesses
}

/// The registers that hold floating-point numbers; `None` if one is a whole number as well. Constants are either, as they are needed:
/// they are read from their slots.
pub(super) fn floats(
    repeated: &Loop,
    constant_of: &dyn Fn(Reg) -> Option<u64>,
) -> Option<HashSet<Reg>> {
    let varies = |reg: &Reg| constant_of(*reg).is_none();
    let runs = repeated.blocks.iter().flat_map(|block| &block.runs);
    let steps: Vec<&SegmentStep> = runs.flat_map(|run| &run.steps).collect();
    let (mut floats, mut whole) = (HashSet::new(), HashSet::new());
    for step in &steps {
        match step.tag {
            Tag::AddF32
            | Tag::SubF32
            | Tag::MulF32
            | Tag::DivF32
            | Tag::SqrtF32
            | Tag::FmaF32
            | Tag::AddF64
            | Tag::SubF64
            | Tag::MulF64
            | Tag::DivF64
            | Tag::SqrtF64
            | Tag::FmaF64 => floats.extend(step.s.iter().chain(&step.d)),
            Tag::Compare(Compared::F32 | Compared::F64, _) => {
                floats.extend(&step.s);
                whole.extend(&step.d);
            }
            Tag::CvtS32F32 | Tag::CvtU32F32 => {
                floats.extend(&step.d);
                whole.extend(&step.s);
            }
            Tag::LoadGlobal | Tag::LoadShared | Tag::StoreGlobal | Tag::StoreShared => {
                whole.insert(step.s[0]);
            }
            Tag::Mov32 | Tag::Mov64 => {}
            _ => whole.extend(step.s.iter().chain(&step.d)),
        }
    }
    floats.retain(varies);
    whole.retain(varies);
    // What is copied is what its copy is.
    loop {
        let before = floats.len();
        for step in &steps {
            if matches!(step.tag, Tag::Mov32 | Tag::Mov64)
                && varies(&step.s[0])
                && (floats.contains(&step.s[0]) || floats.contains(&step.d[0]))
            {
                floats.extend([step.s[0], step.d[0]]);
            }
        }
        if floats.len() == before {
            break;
        }
    }
    floats.is_disjoint(&whole).then_some(floats)
}

/// The most registers at once that live within a run and are whole numbers.
pub(super) fn most_at_once(
    repeated: &Loop,
    endings: &HashMap<Reg, Ending>,
    floats: &HashSet<Reg>,
) -> usize {
    let runs = repeated.blocks.iter().flat_map(|block| &block.runs);
    let of_run = runs.enumerate().map(|(number, run)| {
        let mut live: HashSet<Reg> = HashSet::new();
        let mut most = 0;
        for (at, step) in run.steps.iter().enumerate() {
            live.retain(|reg| endings.get(reg) != Some(&(number, at)));
            let whole = step.d.iter().filter(|reg| !floats.contains(reg));
            live.extend(whole.filter(|reg| endings.contains_key(reg)));
            most = most.max(live.len());
        }
        most
    });
    of_run.max().unwrap_or(0)
}

/// The registers that live within one run, and where they end.
pub(super) fn endings(repeated: &Loop) -> HashMap<Reg, Ending> {
    // Each register's run, or `None` for more than one; whether the first that happens to it is that it is written; its last step.
    let mut lives: HashMap<Reg, (Option<usize>, bool, usize)> = HashMap::new();
    let mut touch = |reg: Reg, run: Option<usize>, at: usize, writes: bool| {
        let life = lives.entry(reg).or_insert((run, writes, at));
        if life.0 != run {
            life.0 = None;
        }
        life.2 = at;
    };
    let mut number = 0;
    let mut needed: HashSet<Reg> = HashSet::new();
    for block in &repeated.blocks {
        for run in &block.runs {
            if let Some((reg, _)) = run.guard {
                touch(reg, None, 0, false);
            }
            for (at, step) in run.steps.iter().enumerate() {
                for &reg in &step.s {
                    touch(reg, Some(number), at, false);
                }
                for &reg in &step.d {
                    touch(reg, Some(number), at, true);
                }
            }
            needed.extend(&run.live);
            number += 1;
        }
        if let LoopEnd::Branch { on, .. } = block.end {
            let last = block.runs.last().filter(|run| run.guard.is_none());
            let at = last.map_or(0, |run| run.steps.len());
            touch(on, last.map(|_| number - 1), at, false);
        }
    }
    let within = lives.into_iter().filter_map(|(reg, life)| {
        let (run, written_first, at) = life;
        (written_first && !needed.contains(&reg)).then_some((reg, (run?, at)))
    });
    within.collect()
}
