//! Two loops of which several turns of the first are one of the second, as one row of single turns without a jump: a lane counts how many
//! it has to make, and begins so many before the row's end. Only that one jump cannot be foretold, where the two loops have two.
//!
//! Before a lane begins, it is looked at whether all elements are there that the index leads to, for all turns at once, and whether
//! there are turns left. Whatever is not so, and whatever is found outside of what is known on the way, is done by the two loops, from the
//! beginning: nothing that the lane began with was changed yet.
//!
//! Called by `scalar`. Must not know why the loops are the same: that is `same_turns`'.

use super::branch::{Label, When};
use super::general::{Place, R11, RAX, TURNS, op, when};
use super::neighbours::Neighbours;
use super::repeat::{Loop, LoopRun};
use super::same_turns::{self, SameTurns};
use super::scalar::{Home, Scalar};
use super::step::SegmentStep;
use crate::ir::Reg;
use crate::reach::Reach;

/// Turns in a row, a power of two: a lane with more goes through it again.
const ROW: usize = 64;

/// What the row is made of.
struct Turn<'a> {
    /// The run of the first loop, and its number.
    run: &'a LoopRun,
    number: usize,
    /// Those of its steps that only count.
    counting: [Reg; 3],
    neighbours: Neighbours,
    /// Where its index and how many turns the first loop makes are.
    index: u8,
    counter: u8,
}

impl Scalar<'_> {
    /// Makes the row of a lane that has fetched what it begins with. Who has made all turns jumps to `left`; who has to make them by the two
    /// loops comes to the end of it, or to the label that is returned. `None` if there is no such row, and no code then.
    pub(super) fn straight(
        &mut self,
        repeated: &Loop,
        same: SameTurns,
        left: &mut Label,
    ) -> Option<Label> {
        let (begin, before) = (self.out.code.len(), self.state());
        let counts = (self.asked.len(), self.careful.len(), self.differing.len());
        let made = self.try_straight(repeated, same, left);
        self.restore(before);
        (self.known, self.instead, self.factor) = (None, None, None);
        if made.is_none() {
            self.out.code.truncate(begin);
            self.asked.truncate(counts.0);
            self.careful.truncate(counts.1);
            self.differing.truncate(counts.2);
        }
        made
    }

    fn try_straight(
        &mut self,
        repeated: &Loop,
        same: SameTurns,
        left: &mut Label,
    ) -> Option<Label> {
        let turn = self.turn_of(repeated, same)?;
        // The two loops begin with what is in slots, if a lane comes to them in the midst of its row.
        if repeated
            .read
            .iter()
            .any(|&reg| self.home(reg) == Home::Slot)
        {
            return None;
        }
        let number_of = |block: usize| {
            repeated.blocks[..block]
                .iter()
                .map(|block| block.runs.len())
                .sum::<usize>()
        };
        for (at, run) in repeated.blocks[0].runs.iter().enumerate() {
            self.run(at, run)?;
        }
        // What is between the loops decides whether lanes go to the second one.
        let between = &repeated.blocks[same.first + 1];
        for run in &between.runs {
            self.run(number_of(same.first + 1), run)?;
        }
        let (on, leaves) = same_turns::parts(between, [None, Some(same.first + 2)])?;
        let leaves = self.test(on, !leaves)?;
        let [mut careful, mut no_groups, mut done] = [(); 3].map(|()| Label::default());
        self.out.jump_if(leaves, &mut no_groups);
        // r11 = all turns, rax = those that the second loop stands for, which have to be whole ones of it, and are at least one
        let (index, counter) = (turn.index, turn.counter);
        self.read(R11, same.end)?;
        self.out
            .general(false, op::SUB, R11, Place::Register(index));
        self.out.general(false, op::LOAD, RAX, Place::Register(R11));
        self.out
            .general(false, op::SUB, RAX, Place::Register(counter));
        self.out.jump_if(when::NOT_ABOVE, &mut careful);
        self.out.test_low(RAX, (same.times - 1) as u8);
        self.out.jump_if(when::NOT_ZERO, &mut careful);
        let counted = self.out.code.len();
        // Turns are counted as the loops count them.
        self.out
            .shift(false, 5, RAX, same.times.trailing_zeros() as u8);
        self.out
            .general(false, op::ADD, RAX, Place::Register(counter));
        self.out
            .general(false, op::COMPARE, TURNS, Place::Register(RAX));
        self.out.jump_if(when::NOT_ABOVE, &mut careful);
        self.out
            .general(false, op::SUB, TURNS, Place::Register(RAX));
        // rax = the index after them, and whether it is still one of an element that is there: then nothing goes over the end of 32 bits
        self.out.general(true, op::LOAD, RAX, Place::Register(R11));
        self.out.general(true, op::ADD, RAX, Place::Register(index));
        self.compare_with_shortest(&turn.neighbours, RAX);
        self.out.jump_if(when::NOT_BELOW, &mut careful);
        self.out
            .general(true, op::STORE, RAX, Place::Reach(Reach::END));
        // r11 = turns of the row that are left out the first time
        self.out.general(false, op::TEST, R11, Place::Register(R11));
        self.out.jump_if(when::ZERO, &mut done);
        self.out.general(false, &[0xf7], 3, Place::Register(R11)); // neg
        self.out.general_constant(false, 4, R11, ROW as i32 - 1);
        self.out.general(true, op::SUB, index, Place::Register(R11));
        let row = self.out.begin_row();
        self.instead = Some(careful);
        let bytes = self.row(&turn)?;
        let careful = self.instead.take()?;
        self.out.row_has(row, bytes);
        let end = Place::Reach(Reach::END);
        self.out.general_constant(true, 0, index, ROW as i32);
        self.out.general(true, op::COMPARE, index, end);
        self.out.jump_back_if(when::BELOW, row.start);
        self.out.jump(When::Always, &mut done);
        self.out.bind(no_groups);
        let only = Place::Register(counter);
        self.out.general(false, op::LOAD, R11, only);
        self.out.set_constant(RAX, 0);
        self.out.jump_back(counted);
        left.add(done);
        Some(careful)
    }

    /// What the row is made of, if its steps but those that count read the index as one of elements only.
    fn turn_of<'r>(&self, repeated: &'r Loop, same: SameTurns) -> Option<Turn<'r>> {
        let [run] = repeated.blocks[same.first].runs.as_slice() else {
            return None;
        };
        let blocks = repeated.blocks[..same.first].iter();
        let number: usize = blocks.map(|block| block.runs.len()).sum();
        let neighbours = self.neighbours.of(number)?.clone();
        let (Home::General(index), Home::General(counter)) =
            (self.home(same.index), self.home(same.counter))
        else {
            return None;
        };
        let second = same.first + 1;
        let (more, _) = same_turns::parts(
            &repeated.blocks[same.first],
            [Some(same.first), Some(second)],
        )?;
        let turn = Turn {
            run,
            number,
            counting: [same.index, same.counter, more],
            neighbours,
            index,
            counter,
        };
        let fits = run.steps.iter().enumerate().all(|(at, step)| {
            if turn.counts(step) {
                return step.d.len() == 1;
            }
            let is_element = turn.neighbours.distances.get(&at) == Some(&0);
            let reads = |reg: Reg| step.s.contains(&reg);
            let stays =
                |&reg: &Reg| self.endings.contains_key(&reg) || self.home(reg) != Home::Slot;
            (is_element || !reads(same.index))
                && !reads(same.counter)
                && !reads(more)
                && step.d.iter().all(stays)
        });
        let is_plain = turn.neighbours.index == same.index && turn.neighbours.sums.is_empty();
        (fits && is_plain).then_some(turn)
    }

    /// The turns of the row; returns how many bytes one has.
    fn row(&mut self, turn: &Turn<'_>) -> Option<usize> {
        let before = self.state();
        let mut bytes = None;
        for further in 0..ROW {
            let begin = self.out.code.len();
            self.restore(before.clone());
            let mut neighbours = turn.neighbours.clone();
            neighbours
                .distances
                .values_mut()
                .for_each(|distance| *distance = further as i32);
            self.known = Some((neighbours, turn.index));
            self.length = turn.run.steps.len();
            for (at, step) in turn.run.steps.iter().enumerate() {
                self.now = (turn.number, at);
                self.flags = None;
                if !turn.counts(step) {
                    self.step(step, turn.run.steps.get(at + 1))?;
                }
                self.release();
            }
            let made = self.out.code.len() - begin;
            if *bytes.get_or_insert(made) != made || !self.state().has_homes_of(&before) {
                return None;
            }
        }
        bytes
    }
}

impl Turn<'_> {
    fn counts(&self, step: &SegmentStep) -> bool {
        step.d.iter().any(|reg| self.counting.contains(reg))
    }
}
