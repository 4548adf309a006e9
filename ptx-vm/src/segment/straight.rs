//! Two loops of which several turns of the first are one of the second, as one row of single turns without a jump: a lane counts how many
//! it has to make, and begins so many before the row's end. Only that one jump cannot be foretold, where the two loops have two.
//!
//! Of a strip's lanes it is computed first where each of them begins (`Record`), then they go through the row one after the other. So the
//! jump of the next lane need not wait for anything but its address.
//!
//! Before, it is looked at whether all elements are there that the index leads to, for all turns at once, and whether there are turns
//! left. Lanes of which anything is not so, or is found outside of what is known on the way, come through the two loops afterwards, from
//! the beginning: nothing that they begin with has changed.
//!
//! Called by `scalar`. Must not know why the loops are the same: that is `same_turns`'.

use std::collections::HashSet;

use super::branch::{Label, When};
use super::general::{Place, R11, RAX, RCX, TURNS, op, when};
use super::homes::Home;
use super::neighbours::Neighbours;
use super::repeat::{Loop, LoopRun};
use super::same_turns::{self, SameTurns};
use super::scalar::{COMING, Scalar};
use super::step::SegmentStep;
use crate::ir::Reg;
use crate::reach::Reach;

/// Turns in a row, a power of two: a lane with more goes through it again.
const ROW: usize = 64;

/// Where code of a row leads that is not made yet.
#[derive(Default)]
struct Labels {
    looked: Label,
    careful: Label,
    no_turns: Label,
    done: Label,
    row_begins: Label,
}

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

/// What is known of a lane before its row, in `Reach`: where it begins in the row's code, with which index, at which one it has made all
/// turns, and its number.
struct Record;

impl Record {
    const START: i32 = 0;
    const INDEX: i32 = 8;
    const END: i32 = 16;
    const LANE: i32 = 24;
    const BYTES: i32 = size_of::<[u64; 4]>() as i32;
}

impl Scalar<'_> {
    /// Makes the row of a strip's lanes, which eax has. Those that have to go through the two loops are in [`COMING`] at its end; of the
    /// others is in slots what is `needed` afterwards. `None` if there is no such row, and no code then.
    pub(super) fn straight(
        &mut self,
        repeated: &Loop,
        same: SameTurns,
        kept: &[Reg],
    ) -> Option<()> {
        let (begin, before) = (self.out.code.len(), self.state());
        let counts = (self.asked.len(), self.careful.len(), self.differing.len());
        let made = self.try_straight(repeated, same, kept);
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

    fn try_straight(&mut self, repeated: &Loop, same: SameTurns, kept: &[Reg]) -> Option<()> {
        let turn = self.turn_of(repeated, same)?;
        let before = same_turns::steps(&repeated.blocks[0])?;
        // What a lane has when it comes to the row, and what of it was not so in its slots.
        let counts = [same.index, same.counter];
        let comes = kept.iter().copied().filter(|reg| {
            let reads = turn.run.steps.iter().any(|step| step.s.contains(reg));
            !counts.contains(reg) && (reads || repeated.needed.contains(reg))
        });
        let comes: Vec<Reg> = comes.collect();
        let made = |reg: &&Reg| before.iter().any(|step| step.d.contains(reg));
        let made: Vec<Reg> = comes.iter().filter(made).copied().collect();
        // The two loops begin with what is in slots. Faults come in the order of lanes.
        let changes = |reg: &Reg| self.home(*reg) == Home::Slot || made.contains(reg);
        if repeated.read.iter().any(changes) || before.iter().any(|step| step.access.1 != 0) {
            return None;
        }
        let Labels {
            mut looked,
            mut careful,
            mut no_turns,
            mut done,
            mut row_begins,
        } = Labels::default();
        let first = Place::Reach(Reach::RECORDS);
        let (next_record, scan) = (Place::Reach(Reach::NEXT_RECORD), Place::Reach(Reach::SCAN));
        self.out.general(false, op::STORE, RAX, scan);
        self.out.general(true, op::ADDRESS, RAX, first);
        self.out.general(true, op::STORE, RAX, next_record);
        self.out.set_constant(RAX, 0);
        self.out.general(false, op::STORE, RAX, Place::Own(COMING));

        // A lane after the other is looked at.
        let next = self.out.code.len();
        self.out.general(false, op::LOAD, RAX, scan);
        self.out.general(false, op::TEST, RAX, Place::Register(RAX));
        self.out.jump_if(when::ZERO, &mut looked);
        self.out.next_lane();
        self.out.general(false, op::STORE, R11, scan);
        self.out.lane_of_strip();
        for &reg in kept.iter().filter(|reg| repeated.read.contains(reg)) {
            self.fetch(reg)?;
        }
        self.count_turns(repeated, same, &turn, &comes, &mut careful)?;
        // r11 = all turns, rax = the index after them
        let index = turn.index;
        self.out.general(true, op::LOAD, turn.counter, next_record);
        let field = |at: i32| Place::At(turn.counter, at);
        self.out.general(true, op::STORE, RAX, field(Record::END));
        self.out.general(true, op::STORE, RCX, field(Record::LANE));
        for &reg in &made {
            self.put_back(reg)?;
        }
        self.out.general(false, op::TEST, R11, Place::Register(R11));
        self.out.jump_if(when::ZERO, &mut no_turns);
        // r11 = turns of the row that are left out the first time
        self.out.general(false, &[0xf7], 3, Place::Register(R11)); // neg
        self.out.general_constant(false, 4, R11, ROW as i32 - 1);
        self.out.general(true, op::SUB, index, Place::Register(R11));
        let size = self.out.multiply(RAX, R11);
        self.out.address(R11, &mut row_begins);
        self.out.general(true, op::ADD, RAX, Place::Register(R11));
        let recorded = self.out.code.len();
        self.out.general(true, op::STORE, RAX, field(Record::START));
        self.out
            .general(true, op::STORE, index, field(Record::INDEX));
        self.out
            .general_constant(true, 0, turn.counter, Record::BYTES);
        self.out.general(true, op::STORE, turn.counter, next_record);
        self.out.jump_back(next);
        self.out.bind(no_turns);
        self.out.address(RAX, &mut done);
        self.out.jump_back(recorded);
        self.out.bind(careful);
        self.comes_later();
        self.out.jump_back(next);

        // Behind the last record is one that leads out.
        let mut finished = Label::default();
        self.out.bind(looked);
        self.out.general(true, op::LOAD, turn.counter, next_record);
        self.out.address(RAX, &mut finished);
        self.out.general(true, op::STORE, RAX, field(Record::START));
        self.out.set_constant(RAX, 0);
        self.out.general(true, op::STORE, RAX, field(Record::LANE));
        self.out.general(true, op::ADDRESS, turn.counter, first);
        // A lane goes through the row.
        let go = self.out.code.len();
        self.out.general(true, op::LOAD, RCX, field(Record::LANE));
        self.out
            .general(true, op::LOAD, index, field(Record::INDEX));
        for &reg in &comes {
            self.fetch(reg)?;
        }
        self.out.general(false, &[0xff], 4, field(Record::START)); // jmp
        let row = self.out.code.len();
        self.out.bind(row_begins);
        self.instead = Some(Label::default());
        let bytes = self.row(&turn)?;
        let missing = self.instead.take()?;
        self.out.code[size..size + 4].copy_from_slice(&(bytes as u32).to_le_bytes());
        self.out.general_constant(true, 0, index, ROW as i32);
        self.out
            .general(true, op::COMPARE, index, field(Record::END));
        self.out.jump_back_if(when::BELOW, row);
        self.out.bind(done);
        for &reg in kept.iter().filter(|reg| repeated.needed.contains(reg)) {
            self.put_back(reg)?;
        }
        self.out
            .general_constant(true, 0, turn.counter, Record::BYTES);
        self.out.jump_back(go);
        self.out.bind(missing);
        self.comes_later();
        self.out
            .general_constant(true, 0, turn.counter, Record::BYTES);
        self.out.jump_back(go);
        self.out.bind(finished);
        Some(())
    }

    /// What a lane does before the loops, and how many turns it has to make: r11 has them, and rax the index after them. If that is not to be
    /// done so, it jumps.
    fn count_turns(
        &mut self,
        repeated: &Loop,
        same: SameTurns,
        turn: &Turn<'_>,
        comes: &[Reg],
        careful: &mut Label,
    ) -> Option<()> {
        let log = same.times.trailing_zeros() as u8;
        let (index, counter) = (Place::Register(turn.index), Place::Register(turn.counter));
        let run = repeated.blocks[0].runs.first();
        if same.plain {
            self.needed_steps(run?, comes, same)?;
            self.read(R11, same.end)?;
            self.out.general(false, op::SUB, R11, index);
            self.out.jump_if(when::NOT_ABOVE, careful);
            // At most as many as the loops count, and one for a lane that leaves them.
            self.out.general(false, op::LOAD, RAX, Place::Register(R11));
            self.out.shift(false, 5, RAX, log);
            self.out.general_constant(false, 0, RAX, same.times as i32);
            return self.look_for_all(turn, careful);
        }
        let number_of = |block: usize| {
            let blocks = repeated.blocks[..block].iter();
            blocks.map(|block| block.runs.len()).sum::<usize>()
        };
        if let Some(run) = run {
            self.run(0, run)?;
        }
        // What is between the loops decides whether lanes go to the second one.
        let between = &repeated.blocks[same.first + 1];
        for run in &between.runs {
            self.run(number_of(same.first + 1), run)?;
        }
        let (on, leaves) = same_turns::parts(between, [None, Some(same.first + 2)])?;
        let leaves = self.test(on, !leaves)?;
        let (mut no_groups, mut counted) = (Label::default(), Label::default());
        self.out.jump_if(leaves, &mut no_groups);
        // r11 = all turns, rax = those that the second loop stands for, which have to be whole ones of it, and are at least one
        self.read(R11, same.end)?;
        self.out.general(false, op::SUB, R11, index);
        self.out.general(false, op::LOAD, RAX, Place::Register(R11));
        self.out.general(false, op::SUB, RAX, counter);
        self.out.jump_if(when::NOT_ABOVE, careful);
        self.out.test_low(RAX, (same.times - 1) as u8);
        self.out.jump_if(when::NOT_ZERO, careful);
        self.out.jump(When::Always, &mut counted);
        self.out.bind(no_groups);
        self.out.general(false, op::LOAD, R11, counter);
        self.out.set_constant(RAX, 0);
        self.out.bind(counted);
        // Turns are counted as the loops count them, and one for a lane that leaves them.
        self.out.shift(false, 5, RAX, log);
        self.out.general(false, op::ADD, RAX, counter);
        self.out.general_constant(false, 0, RAX, 1);
        self.look_for_all(turn, careful)
    }

    /// Makes of the steps before the loops those of which a lane's row needs something.
    fn needed_steps(&mut self, run: &LoopRun, comes: &[Reg], same: SameTurns) -> Option<()> {
        let mut needed: HashSet<Reg> = comes.iter().copied().collect();
        needed.extend([same.index, same.end]);
        let mut made: Vec<bool> = vec![false; run.steps.len()];
        for (step, made) in run.steps.iter().zip(&mut made).rev() {
            if step.d.iter().any(|reg| needed.contains(reg)) {
                *made = true;
                needed.extend(&step.s);
            }
        }
        self.length = run.steps.len();
        for (at, step) in run.steps.iter().enumerate() {
            (self.now, self.flags) = ((0, at), None);
            if made[at] {
                self.step(step, None)?;
            }
            self.release();
        }
        Some(())
    }

    /// rax turns are taken from those that are left. Then rax = the index after r11 turns. Who has not so many, or no such elements, jumps.
    fn look_for_all(&mut self, turn: &Turn<'_>, careful: &mut Label) -> Option<()> {
        self.out
            .general(false, op::COMPARE, TURNS, Place::Register(RAX));
        self.out.jump_if(when::NOT_ABOVE, careful);
        self.out
            .general(false, op::SUB, TURNS, Place::Register(RAX));
        // Whether the index after them is still one of an element that is there: then nothing goes over the end of 32 bits.
        self.out.general(true, op::LOAD, RAX, Place::Register(R11));
        self.out
            .general(true, op::ADD, RAX, Place::Register(turn.index));
        self.compare_with_shortest(&turn.neighbours, RAX);
        self.out.jump_if(when::NOT_BELOW, careful);
        Some(())
    }

    /// A lane has to go through the loops.
    fn comes_later(&mut self) {
        self.out.lane_bit();
        self.out.general(false, op::OR, RAX, Place::Own(COMING));
        self.out.general(false, op::STORE, RAX, Place::Own(COMING));
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
