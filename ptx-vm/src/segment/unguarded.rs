//! Guarded loads and stores of a lane that goes through a loop alone, without a jump: whether a guard holds cannot be foretold where it
//! depends on what was loaded, and a jump that was foretold wrongly takes as long as twenty instructions.
//!
//! The steps are made in any case, and what is stored goes nowhere if the guard does not hold. What is loaded from an address that does not
//! change in the loop is mostly there already: a compiler loads it again since something was stored in between. So it is compared, and
//! the guard is asked only if it differs; what the lane does next need not wait for the guard then, as it would if the value were chosen
//! by it. Other loads keep their jump: memory that nobody asked for would take the place of other memory in caches.
//!
//! If an address is not known to be inside of memory, the run is made with its guard, behind the loop.
//!
//! Called by `scalar` for each run, and by `lane_access` for such an access. Must not know what a guard is for.

use super::branch::Label;
use super::general::{Place, R11, RAX, op, when};
use super::homes::{Careful, Differing, Home, OnlyIf};
use super::repeat::LoopRun;
use super::scalar::Scalar;
use super::step::SegmentStep;
use super::tag::Tag;
use crate::reach::Reach;
use crate::spaces::unpack;

/// The most steps of such a run: more cost more than the jump.
const MOST: usize = 6;

impl Scalar<'_> {
    /// Makes a guarded run without a jump, if it can be one; `None` if not. It has to be made once more, with its guard.
    pub(super) fn unguarded(&mut self, number: usize, run: &LoopRun) -> Option<Option<Careful>> {
        let (on, negated) = run.guard?;
        let Home::General(register) = self.home(on) else {
            return None;
        };
        if !self.is_quiet(number, run) {
            return None;
        }
        let before = self.state();
        let condition = when::NOT_ZERO ^ u8::from(negated);
        (self.instead, self.only_if) = (
            Some(Label::default()),
            Some(OnlyIf {
                register,
                condition,
            }),
        );
        let made = self.steps(number, &run.steps);
        let label = self.instead.take().unwrap_or_default();
        self.only_if = None;
        Some(made.map(|()| Careful {
            label,
            back: self.out.code.len(),
            number,
            steps: run.steps.clone(),
            guard: run.guard,
            before,
            after: self.state(),
        }))
    }

    /// Whether nothing is seen of a run but what its last step does, an access of one element, and nothing before that can fault.
    fn is_quiet(&self, number: usize, run: &LoopRun) -> bool {
        let Some((last, before)) = run.steps.split_last() else {
            return false;
        };
        let passes = |step: &SegmentStep| {
            is_plain(step.tag)
                && step
                    .d
                    .iter()
                    .all(|reg| self.endings.get(reg).is_some_and(|&(run, _)| run == number))
        };
        let kept = |step: &SegmentStep| match step.d.as_slice() {
            [reg] => {
                let ends = self.endings.contains_key(reg);
                !ends && matches!(self.home(*reg), Home::General(_))
            }
            _ => false,
        };
        let is_access = match last.tag {
            Tag::StoreGlobal | Tag::StoreShared => true,
            Tag::LoadGlobal | Tag::LoadShared => kept(last) && self.is_from_outside(run),
            _ => false,
        };
        is_access
            && unpack(last.access.0).count == 1
            && run.steps.len() <= MOST
            && before.iter().all(passes)
            && self.neighbours.of(number).is_none()
    }

    /// Whether a run reads nothing that the loop writes but what it has made itself.
    fn is_from_outside(&self, run: &LoopRun) -> bool {
        let steps = run.steps.iter().enumerate();
        let mut read = steps.flat_map(|(at, step)| step.s.iter().map(move |reg| (at, reg)));
        let made = |at: usize, reg| run.steps[..at].iter().any(|step| step.d.contains(reg));
        read.all(|(at, reg)| made(at, reg) || !self.written.contains(reg))
    }

    /// Where to store: there if the condition holds, else nowhere. rax and r11 are lost.
    pub(super) fn else_nowhere(&mut self, place: Place, only_if: OnlyIf) -> Place {
        let nowhere = Place::Reach(Reach::NOWHERE);
        self.out.general(true, op::ADDRESS, RAX, place);
        self.out.general(true, op::ADDRESS, R11, nowhere);
        let not = only_if.test(&mut self.out) ^ 1;
        self.out.move_if(true, not, RAX, Place::Register(R11));
        Place::At(RAX, 0)
    }

    /// Takes what is in r11, of 64 bits or fewer, if the condition holds: mostly it is there already.
    pub(super) fn take_only_if(&mut self, only_if: OnlyIf, wide: bool, to: u8) {
        let mut label = Label::default();
        self.out
            .general(wide, op::COMPARE, to, Place::Register(R11));
        self.out.jump_if(when::NOT_ZERO, &mut label);
        self.differing.push(Differing {
            label,
            back: self.out.code.len(),
            only_if,
            wide,
            to,
        });
    }

    /// The code behind the loop that takes such a value where it differs.
    pub(super) fn make_differing(&mut self, differing: Differing) {
        self.out.bind(differing.label);
        let holds = differing.only_if.test(&mut self.out);
        let from = Place::Register(R11);
        self.out.move_if(differing.wide, holds, differing.to, from);
        self.out.jump_back(differing.back);
    }
}

/// Arithmetic that takes a cycle or three.
fn is_plain(tag: Tag) -> bool {
    matches!(
        tag,
        Tag::Add32
            | Tag::Add64
            | Tag::Sub32
            | Tag::Sub64
            | Tag::Mul32
            | Tag::And32
            | Tag::And64
            | Tag::Or32
            | Tag::Or64
            | Tag::Xor32
            | Tag::Xor64
            | Tag::Not32
            | Tag::Shl32
            | Tag::Shl64
            | Tag::ShrU32
            | Tag::ShrU64
            | Tag::ShrS32
            | Tag::MulWideS32
            | Tag::MulWideU32
            | Tag::Narrow
            | Tag::WidenU32
            | Tag::WidenS32
            | Tag::Mov32
            | Tag::Mov64
    )
}
