//! Two loops of which several turns of the first are one of the second: a compiler makes such ones of a loop, what remains of its turns by
//! four and then groups of four. Here it is proven, so that lanes may make single turns only.
//!
//! What steps compute is told apart by how it is made of what registers had before: two registers with the same value number hold the
//! same, whatever that is. Loads are numbered too: between them nothing is stored.
//!
//! Called by `straight`. Must not know how a loop is compiled.

use std::collections::{HashMap, HashSet};

use super::repeat::{Loop, LoopBlock, LoopEdge, LoopEnd};
use super::step::SegmentStep;
use super::tag::{Compared, Tag};
use crate::ir::Reg;

/// The most turns of the first loop that are one of the second.
const MOST: u32 = 16;

/// What is known of two such loops. The first one makes as many turns as `counter` says, before which an index is not changed; none if
/// that is 0. The second one, if lanes go there, makes turns while the index is below `end`, at least one.
#[derive(Clone, Copy, Debug)]
pub(super) struct SameTurns {
    /// The first loop: a block; the next one is between the loops and leads into the second one, or out.
    pub(super) first: usize,
    /// Counts the first loop's turns down; needed nowhere else.
    pub(super) counter: Reg,
    /// One more after each turn of the first loop, `times` more after one of the second.
    pub(super) index: Reg,
    pub(super) end: Reg,
    /// A power of two.
    pub(super) times: u32,
    /// Whether all turns are as many as the index is below `end`, if it is. Then nothing else has to be looked at.
    pub(super) plain: bool,
}

type Number = usize;
type State = HashMap<Reg, Number>;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Value {
    Before(Reg),
    Constant(u64),
    /// Of 32 bits.
    Sum(Number, u32),
    Made {
        tag: Tag,
        imm: u64,
        access: (u64, u8),
        from: Vec<Number>,
        which: usize,
    },
}

struct Values<'a> {
    numbers: HashMap<Value, Number>,
    all: Vec<Value>,
    constant_of: &'a dyn Fn(Reg) -> Option<u64>,
}

impl Values<'_> {
    fn number(&mut self, value: Value) -> Number {
        let next = self.all.len();
        let number = *self.numbers.entry(value.clone()).or_insert(next);
        if number == next {
            self.all.push(value);
        }
        number
    }

    fn read(&mut self, state: &State, reg: Reg) -> Number {
        match ((self.constant_of)(reg), state.get(&reg)) {
            (Some(constant), _) => self.number(Value::Constant(constant)),
            (None, Some(&number)) => number,
            (None, None) => self.number(Value::Before(reg)),
        }
    }

    /// The sum of a number and a constant, in 32 bits.
    fn sum(&mut self, of: Number, by: u32) -> Number {
        let (of, by) = match self.all[of] {
            Value::Sum(of, further) => (of, further.wrapping_add(by)),
            _ => (of, by),
        };
        match by {
            0 => of,
            by => self.number(Value::Sum(of, by)),
        }
    }

    fn run(&mut self, steps: &[SegmentStep], state: &mut State) {
        for step in steps {
            let from: Vec<Number> = step.s.iter().map(|&reg| self.read(state, reg)).collect();
            let constant = |at: usize| match self.all[from[at]] {
                Value::Constant(constant) => Some(constant as u32),
                _ => None,
            };
            let single = match step.tag {
                Tag::Mov32 | Tag::Mov64 => Some(from[0]),
                Tag::Add32 => match (constant(0), constant(1)) {
                    (None, Some(by)) => Some(self.sum(from[0], by)),
                    (Some(by), None) => Some(self.sum(from[1], by)),
                    _ => None,
                },
                _ => None,
            };
            for (which, &reg) in step.d.iter().enumerate() {
                let number = single.unwrap_or_else(|| {
                    self.number(Value::Made {
                        tag: step.tag,
                        imm: step.imm,
                        access: step.access,
                        from: from.clone(),
                        which,
                    })
                });
                state.insert(reg, number);
            }
        }
    }

    /// The sources of what an operation makes.
    fn made(&self, number: Number, by: Tag) -> Option<&[Number]> {
        match &self.all[number] {
            Value::Made { tag, from, .. } if *tag == by => Some(from),
            _ => None,
        }
    }

    /// Whether a number is another one, and a constant the other source.
    fn with_constant(&self, sources: &[Number], constant: u32) -> Option<Number> {
        let &[one, other] = sources else {
            return None;
        };
        let is = |number: Number| self.all[number] == Value::Constant(constant.into());
        match (is(one), is(other)) {
            (false, true) => Some(one),
            (true, false) => Some(other),
            _ => None,
        }
    }

    /// Whether a number is the end, if the index is below it: it is that, or the larger one of it and the next index.
    fn is_end(&self, number: Number, [index, end]: [Number; 2]) -> bool {
        let larger = [Tag::MaxU32, Tag::MaxS32].into_iter();
        let mut larger = larger.filter_map(|tag| self.made(number, tag));
        let is_next = |number: Number| self.all[number] == Value::Sum(index, 1);
        number == end
            || larger.any(|sources| match *sources {
                [one, other] => one == end && is_next(other) || is_next(one) && other == end,
                _ => false,
            })
    }

    /// Whether a number is how far the index is below the end.
    fn is_distance(&self, number: Number, range: [Number; 2]) -> bool {
        let sources = self.made(number, Tag::Sub32);
        sources.is_some_and(|sources| self.is_end(sources[0], range) && sources[1] == range[0])
    }

    /// Whether a number is the remainder of that by a power of two.
    fn is_remainder(&self, number: Number, range: [Number; 2], by: u32) -> bool {
        let sources = self.made(number, Tag::And32);
        let of = sources.and_then(|sources| self.with_constant(sources, by - 1));
        of.is_some_and(|of| self.is_distance(of, range))
    }

    /// Whether a predicate says, if it is so, that it is less than a number; or that one less is less than one less.
    fn is_fewer(&self, (number, holds): (Number, bool), range: [Number; 2], than: u32) -> bool {
        let Some((left, right, Compared::U32)) = self.compared(number, holds, LESS) else {
            return false;
        };
        let constant = |constant: u32| self.all[right] == Value::Constant(constant.into());
        // The end and the index's complement.
        let one_less = self.made(left, Tag::Add32).is_some_and(|sources| {
            let is_not = |number: Number| self.made(number, Tag::Not32) == Some(&range[..1]);
            match *sources {
                [one, other] => {
                    self.is_end(one, range) && is_not(other)
                        || is_not(one) && self.is_end(other, range)
                }
                _ => false,
            }
        });
        constant(than) && self.is_distance(left, range) || constant(than - 1) && one_less
    }

    /// The operands of a comparison of whole numbers of 32 bits: of the first of these two where it is to hold, of the second where not.
    fn compared(
        &self,
        number: Number,
        holds: bool,
        which: [u8; 2],
    ) -> Option<(Number, Number, Compared)> {
        match &self.all[number] {
            Value::Made {
                tag: Tag::Compare(compared @ (Compared::S32 | Compared::U32), predicate),
                from,
                ..
            } if *predicate == which[usize::from(!holds)] => Some((from[0], from[1], *compared)),
            _ => None,
        }
    }
}

/// Comparisons as PTX numbers them.
const EQUAL: [u8; 2] = [0, 4];
const NOT_EQUAL: [u8; 2] = [4, 0];
const LESS: [u8; 2] = [1, 5];

/// The steps of a block, if all of them are made in any case.
pub(super) fn steps(block: &LoopBlock) -> Option<&[SegmentStep]> {
    match block.runs.as_slice() {
        [] => Some(&[]),
        [run] if run.guard.is_none() => Some(&run.steps),
        _ => None,
    }
}

/// The predicate of a block's branch that leads to one of two places, and whether it holds for the first of them.
pub(super) fn parts(block: &LoopBlock, places: [LoopEdge; 2]) -> Option<(Reg, bool)> {
    match block.end {
        LoopEnd::Branch {
            on,
            negated,
            then,
            other,
        } if [then, other] == places => Some((on, !negated)),
        LoopEnd::Branch {
            on,
            negated,
            then,
            other,
        } if [other, then] == places => Some((on, negated)),
        _ => None,
    }
}

fn written(steps: &[SegmentStep]) -> HashSet<Reg> {
    steps
        .iter()
        .flat_map(|step| step.d.iter().copied())
        .collect()
}

fn read(steps: &[SegmentStep]) -> HashSet<Reg> {
    steps
        .iter()
        .flat_map(|step| step.s.iter().copied())
        .collect()
}

/// Proves it of a loop that is two, or not.
pub(super) fn find(repeated: &Loop, constant_of: &dyn Fn(Reg) -> Option<u64>) -> Option<SameTurns> {
    let [(first, live_at_first), (second, live_at_second)] = repeated.inner.as_slice() else {
        return None;
    };
    let (first, second) = (*first, *second);
    let blocks = repeated.blocks.as_slice();
    if !(1..=2).contains(&first) || second != first + 2 || blocks.len() != second + 1 {
        return None;
    }
    let (before, other_before) = (
        steps(&blocks[0])?,
        match first {
            2 => steps(&blocks[1])?,
            _ => &[],
        },
    );
    let (singles, between, groups) = (
        steps(&blocks[first])?,
        steps(&blocks[first + 1])?,
        steps(&blocks[second])?,
    );
    let all = [before, other_before, singles, between, groups];
    let stores = |step: &SegmentStep| {
        matches!(
            step.tag,
            Tag::StoreGlobal | Tag::StoreShared | Tag::SumShared
        )
    };
    if all.iter().any(|steps| steps.iter().any(stores))
        || between.iter().any(|step| step.access.1 != 0)
    {
        return None;
    }
    // Where lanes go.
    let (none, skips) = parts(&blocks[0], [Some(first + 1), Some(1)])?;
    if first == 2 && !matches!(blocks[1].end, LoopEnd::Jump(Some(2))) {
        return None;
    }
    let (more, goes_on) = parts(&blocks[first], [Some(first), Some(first + 1)])?;
    parts(&blocks[first + 1], [None, Some(second)])?;
    let (further, goes_further) = parts(&blocks[second], [Some(second), None])?;

    let mut values = Values {
        numbers: HashMap::new(),
        all: Vec::new(),
        constant_of,
    };
    let zero = values.number(Value::Constant(0));
    // A turn of the first loop counts one down, and goes on unless that is 0.
    let mut after = State::new();
    values.run(singles, &mut after);
    let number = values.read(&after, more);
    let (left, right, _) = values.compared(number, goes_on, NOT_EQUAL)?;
    let Value::Sum(counted, u32::MAX) = values.all[left] else {
        return None;
    };
    let Value::Before(counter) = values.all[counted] else {
        return None;
    };
    if right != zero || after.get(&counter) != Some(&left) {
        return None;
    }
    // A turn of the second loop, and where it ends.
    let mut grouped = State::new();
    values.run(groups, &mut grouped);
    let number = values.read(&grouped, further);
    let (left, right, _) = values.compared(number, goes_further, LESS)?;
    let (&Value::Sum(of, times), &Value::Before(end)) = (&values.all[left], &values.all[right])
    else {
        return None;
    };
    let Value::Before(index) = values.all[of] else {
        return None;
    };
    let next = values.sum(of, 1);
    let moves = grouped.get(&index) == Some(&left) && after.get(&index) == Some(&next);
    if !moves || !times.is_power_of_two() || !(2..=MOST).contains(&times) {
        return None;
    }
    // So many turns of the first one are the same.
    for _ in 1..times {
        values.run(singles, &mut after);
    }
    let needed: HashSet<Reg> = live_at_second.union(&repeated.needed).copied().collect();
    if needed.contains(&counter)
        || needed
            .iter()
            .any(|&reg| values.read(&after, reg) != values.read(&grouped, reg))
    {
        return None;
    }
    // Lanes without a turn of the first loop have counted 0, and come to the second one with what they would have had before the first.
    let mut skipping = State::new();
    values.run(before, &mut skipping);
    let number = values.read(&skipping, none);
    let (left, right, _) = values.compared(number, skips, EQUAL)?;
    let mut coming = skipping.clone();
    values.run(other_before, &mut coming);
    let same = live_at_first
        .union(&needed)
        .all(|&reg| values.read(&coming, reg) == values.read(&skipping, reg));
    if right != zero || values.read(&coming, counter) != left || !same {
        return None;
    }
    // What is between the loops can be done before them.
    let (reads, writes) = (read(between), written(between));
    let changed = written(singles).into_iter().chain(written(other_before));
    let apart = changed
        .into_iter()
        .all(|reg| !reads.contains(&reg) && !writes.contains(&reg))
        && writes.is_disjoint(&needed)
        && writes.is_disjoint(&read(singles));
    let stays = [singles, groups]
        .iter()
        .all(|steps| !written(steps).contains(&end));
    if !apart || !stays {
        return None;
    }
    let (index_before, end_before) = (values.read(&skipping, index), values.read(&skipping, end));
    let mut both = skipping;
    values.run(between, &mut both);
    let (leaves, leaves_if) = parts(&blocks[first + 1], [None, Some(second)])?;
    let leaves = values.read(&both, leaves);
    let plain = values.is_remainder(left, [index_before, end_before], times)
        && values.is_fewer((leaves, leaves_if), [index_before, end_before], times);
    Some(SameTurns {
        first,
        counter,
        index,
        end,
        times,
        plain,
    })
}
