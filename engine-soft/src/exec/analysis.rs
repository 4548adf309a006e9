//! What is known of a function before it is compiled: the order of its blocks, which registers are live
//! where, which values all lanes share, and where each register lies.

use super::ir::{End, Func, Inst, Kind, Passed, Reg};
use super::limits::{BLOCKS, LIVE_AT_ONCE, LIVE_BITS, LIVE_IN_ALL, LIVE_STEPS, REGISTER_BYTES};
use super::ops::special::Special;

mod layout;
mod order;

pub(crate) use layout::{Layout, layout};

/// What of a function is beyond a limit, and the limit.
pub(crate) type Beyond = (&'static str, u64);

/// A set of registers or blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Set(Vec<u64>);

impl Set {
    pub(crate) fn new(len: usize) -> Self {
        Self(vec![0; len.div_ceil(64)])
    }

    pub(crate) fn insert(&mut self, index: u32) -> bool {
        let word = &mut self.0[index as usize / 64];
        let new = *word >> (index % 64) & 1 == 0;
        *word |= 1 << (index % 64);
        new
    }

    pub(crate) fn remove(&mut self, index: u32) {
        self.0[index as usize / 64] &= !(1 << (index % 64));
    }

    pub(crate) fn has(&self, index: u32) -> bool {
        self.0[index as usize / 64] >> (index % 64) & 1 != 0
    }

    fn add(&mut self, other: &Self) {
        for (a, b) in self.0.iter_mut().zip(&other.0) {
            *a |= b;
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let words = self.0.iter().enumerate().filter(|(_, word)| **word != 0);
        words.flat_map(|(index, &word)| {
            let mut left = word;
            std::iter::from_fn(move || {
                let bit = left.trailing_zeros();
                left &= left.wrapping_sub(1);
                (bit < 64).then_some(index as u32 * 64 + bit)
            })
        })
    }

    fn count(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }
}

/// Makes a lowered function ready to be compiled for gangs of up to `lanes` lanes: its blocks in order, no
/// register that nothing uses, and in the entry, arithmetic brought together. Returns the most 32-bit
/// registers that are live at once.
///
/// # Errors
/// What is beyond a limit, so that compiling it would take memory or time without bound.
pub(crate) fn prepare(func: &mut Func, entry: bool, lanes: usize) -> Result<u32, Beyond> {
    if func.blocks.len() > BLOCKS {
        return Err(("basic blocks of a function", BLOCKS as u64));
    }
    order::order(func)?;
    drop_unused(func);
    if func.blocks.len() as u64 * func.regs.len() as u64 > LIVE_BITS {
        return Err(("basic blocks times registers of a function", LIVE_BITS));
    }
    let live = liveness(func, LIVE_STEPS).ok_or((
        "steps to find what a function's registers are used for",
        LIVE_STEPS,
    ))?;
    let sizes = live.iter().map(Set::count);
    if sizes.clone().any(|size| size > LIVE_AT_ONCE) {
        return Err(("registers in use at once", LIVE_AT_ONCE as u64));
    }
    if sizes.map(|size| size as u64).sum::<u64>() > LIVE_IN_ALL {
        return Err((
            "registers in use between the blocks of a function",
            LIVE_IN_ALL,
        ));
    }
    let classes = if entry {
        let classes = classes(func, &live);
        gather_segments(func, &classes);
        classes
    } else {
        vec![Class::Varying; func.regs.len()]
    };
    if !layout::fits(func, &live, &classes, lanes) {
        return Err(("bytes of registers of a function", REGISTER_BYTES as u64));
    }
    Ok(layout::pressure(func, &live))
}

/// Renumbers the registers so that there are only those which something names: a source declares as many
/// as it likes.
fn drop_unused(func: &mut Func) {
    const UNUSED: Reg = Reg::MAX;
    let mut new = vec![UNUSED; func.regs.len()];
    let mut name = |reg: Reg| new[reg as usize] = 0;
    for passed in func.params.iter().chain(&func.returns) {
        if let Passed::Register(reg) = passed {
            name(*reg);
        }
    }
    for block in &func.blocks {
        for inst in &block.insts {
            inst.uses().for_each(&mut name);
            inst.d.iter().copied().for_each(&mut name);
        }
        block.end.uses().into_iter().for_each(&mut name);
        block.end.defs().into_iter().for_each(&mut name);
    }
    let mut regs = Vec::new();
    for (old, new) in new.iter_mut().enumerate() {
        if *new != UNUSED {
            *new = regs.len() as Reg;
            regs.push(func.regs[old]);
        }
    }
    func.regs = regs;
    let new = |reg: Reg| new[reg as usize];
    for passed in func.params.iter_mut().chain(&mut func.returns) {
        passed.renumber(new);
    }
    for block in &mut func.blocks {
        for inst in &mut block.insts {
            for reg in inst.d.iter_mut().chain(&mut inst.s) {
                *reg = new(*reg);
            }
            if let Some((reg, _)) = &mut inst.guard {
                *reg = new(*reg);
            }
        }
        block.end.renumber(new);
    }
}

impl Inst {
    /// Registers read, the guard and what a guarded write may leave among them.
    pub(crate) fn uses(&self) -> impl Iterator<Item = Reg> + '_ {
        let kept = if self.guard.is_some() {
            self.d.as_slice()
        } else {
            &[]
        };
        self.s
            .iter()
            .copied()
            .chain(self.guard.map(|(reg, _)| reg))
            .chain(kept.iter().copied())
    }
}

/// Registers live at the start of each block.
pub(crate) fn live_in(func: &Func) -> Vec<Set> {
    // There are always as many steps left.
    liveness(func, u64::MAX).unwrap_or_default()
}

/// Registers live at the start of each block; `None` if more than `most` words have to be looked at.
fn liveness(func: &Func, most: u64) -> Option<Vec<Set>> {
    let count = func.blocks.len();
    let mut live: Vec<Set> = vec![Set::new(func.regs.len()); count];
    let mut predecessors = vec![Vec::new(); count];
    for (index, block) in func.blocks.iter().enumerate() {
        for next in block.end.successors() {
            predecessors[next as usize].push(index);
        }
    }
    let words = func.regs.len() as u64 / 64 + 1;
    let mut left = most;
    // Blocks whose successors have changed.
    let mut stale = vec![true; count];
    let mut changed = true;
    while changed {
        changed = false;
        for index in (0..count).rev() {
            if !std::mem::take(&mut stale[index]) {
                continue;
            }
            let mut now = live_out(func, &live, index);
            let block = &func.blocks[index];
            let sets = block.end.successors().len() as u64 + 2;
            left = left.checked_sub(sets * words + block.insts.len() as u64)?;
            before_end(&block.end, &mut now);
            for inst in block.insts.iter().rev() {
                before(inst, &mut now);
            }
            if live[index] != now {
                live[index] = now;
                changed = true;
                for &before in &predecessors[index] {
                    stale[before] = true;
                }
            }
        }
    }
    Some(live)
}

/// Steps a set of live registers back over an instruction.
pub(crate) fn before(inst: &Inst, live: &mut Set) {
    for &reg in &inst.d {
        live.remove(reg);
    }
    for reg in inst.uses() {
        live.insert(reg);
    }
}

/// Steps a set of live registers back over a block's end.
pub(crate) fn before_end(end: &End, live: &mut Set) {
    for reg in end.defs() {
        live.remove(reg);
    }
    for reg in end.uses() {
        live.insert(reg);
    }
}

/// Registers live at the end of a block, before what its end itself writes.
pub(crate) fn live_out(func: &Func, live_in: &[Set], block: usize) -> Set {
    let mut set = Set::new(func.regs.len());
    let end = &func.blocks[block].end;
    for next in end.successors() {
        set.add(&live_in[next as usize]);
    }
    if matches!(end, End::Return) {
        for passed in &func.returns {
            if let Passed::Register(reg) = passed {
                set.insert(*reg);
            }
        }
    }
    set
}

/// How a register's value may differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Class {
    /// One value while the block runs, computed before everything else.
    Fixed,
    /// One value in all lanes while they run together.
    Uniform,
    /// A value per lane.
    Varying,
}

/// The class of every register of the entry.
pub(crate) fn classes(func: &Func, live: &[Set]) -> Vec<Class> {
    let mut definitions = vec![0u32; func.regs.len()];
    for block in &func.blocks {
        for inst in &block.insts {
            for &reg in &inst.d {
                definitions[reg as usize] += 1 + u32::from(inst.guard.is_some());
            }
        }
        for reg in block.end.defs() {
            definitions[reg as usize] += 2;
        }
    }
    // A register that is read before it is ever written is undefined; it may be anything but must stand
    // somewhere, and one definition is not before all uses.
    if let Some(entry) = live.first() {
        for reg in entry.iter() {
            definitions[reg as usize] += 2;
        }
    }
    let mut classes: Vec<Class> = definitions
        .iter()
        .map(|&count| {
            if count == 1 {
                Class::Fixed
            } else {
                Class::Uniform
            }
        })
        .collect();
    // A class only ever rises; what rises is looked at once more by its readers.
    let mut readers: Vec<Vec<(u32, u32)>> = vec![Vec::new(); func.regs.len()];
    let mut risen: Vec<Reg> = Vec::new();
    let raise = |classes: &mut [Class], risen: &mut Vec<Reg>, reg: Reg, class: Class| {
        if classes[reg as usize] < class {
            classes[reg as usize] = class;
            risen.push(reg);
        }
    };
    for (at, block) in func.blocks.iter().enumerate() {
        for (index, inst) in block.insts.iter().enumerate() {
            for &reg in &inst.d {
                raise(&mut classes, &mut risen, reg, result_class(&inst.kind));
            }
            for reg in inst.uses() {
                readers[reg as usize].push((at as u32, index as u32));
            }
        }
        for reg in block.end.defs() {
            raise(&mut classes, &mut risen, reg, Class::Varying);
        }
    }
    // Undefined and often defined ones begin above the lowest class.
    let high = (0..classes.len()).filter(|&reg| classes[reg] > Class::Fixed);
    risen.extend(high.map(|reg| reg as Reg));
    while let Some(reg) = risen.pop() {
        let class = classes[reg as usize];
        for &(block, index) in &readers[reg as usize] {
            for &result in &func.blocks[block as usize].insts[index as usize].d {
                raise(&mut classes, &mut risen, result, class);
            }
        }
    }
    classes
}

/// Brings arithmetic on lanes together: what is computed once for all lanes moves up past it, as far as
/// nothing depends on the order.
fn gather_segments(func: &mut Func, classes: &[Class]) {
    // What a run that is not over yet reads or writes.
    let mut touched = Set::new(func.regs.len());
    for block in &mut func.blocks {
        let mut out: Vec<Inst> = Vec::with_capacity(block.insts.len());
        let mut run: Vec<Inst> = Vec::new();
        for inst in block.insts.drain(..) {
            let class = |reg: &Reg| classes[*reg as usize];
            if inst
                .step()
                .is_some_and(|step| class(&step.d) == Class::Varying)
            {
                for reg in inst.uses().chain(inst.d.iter().copied()) {
                    touched.insert(reg);
                }
                run.push(inst);
                continue;
            }
            let moves = matches!(
                inst.kind,
                Kind::Pure { .. } | Kind::Cold { .. } | Kind::Load { .. } | Kind::Param { .. }
            ) && !matches!(inst.kind, Kind::Load { traits, .. } if traits.volatile)
                && inst
                    .d
                    .iter()
                    .all(|reg| class(reg) != Class::Varying && !touched.has(*reg))
                && !inst.uses().any(|reg| class(&reg) == Class::Varying);
            if !moves {
                for done in &run {
                    for reg in done.uses().chain(done.d.iter().copied()) {
                        touched.remove(reg);
                    }
                }
                out.append(&mut run);
            }
            out.push(inst);
        }
        for done in &run {
            for reg in done.uses().chain(done.d.iter().copied()) {
                touched.remove(reg);
            }
        }
        out.append(&mut run);
        block.insts = out;
    }
}

/// The best class that a result of the instruction can have.
fn result_class(kind: &Kind) -> Class {
    match kind {
        Kind::Pure { .. }
        | Kind::Cold { .. }
        | Kind::Const(_)
        | Kind::Global(..)
        | Kind::LocalAddress { .. }
        | Kind::Param { .. } => Class::Fixed,
        Kind::Special(special) if Special::varies(*special) => Class::Varying,
        Kind::Special(_) => Class::Fixed,
        Kind::Clock { .. } => Class::Uniform,
        Kind::Load { traits, .. } if traits.private => Class::Varying,
        Kind::Load { .. } => Class::Uniform,
        Kind::Store { .. } | Kind::Fence | Kind::Pause => Class::Fixed,
        Kind::Atomic { .. } | Kind::Warp { .. } | Kind::System { .. } | Kind::Texture { .. } => {
            Class::Varying
        }
    }
}
