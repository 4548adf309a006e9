//! Loops as machine code, for AVX-512: a strip makes all its turns before the next strip begins.
//!
//! The blocks of a loop stand one after the other, and of each the code knows which lanes are before it. A branch puts lanes before
//! one block or another, before the header for the next turn, or before none: those have left the loop, all of them for the
//! same place. A block that no lane is before is jumped over. So lanes that disagree cost nothing but what both sides do, and a
//! strip whose lanes have all left costs nothing at all.
//!
//! Called by `segment`. Must not know why a loop may be such code: that is `emit::loops`'s.

use std::collections::HashSet;

use super::allocate::{Allocator, Facts};
use super::branch::{Label, When};
use super::encode::{Assembler, Base, Opcode, Rm, opcode};
use super::plan::Group;
use super::question;
use super::rows::Rows;
use super::step::{RegisterSlot, SegmentStep};
use super::transfer::TEST_32;
use crate::ir::Reg;
use crate::isa::Target;
use crate::reach::Reach;

/// A loop: its header first, and each block before those that it leads to.
pub(crate) struct Loop {
    pub(crate) blocks: Vec<LoopBlock>,
    /// Of the registers that it writes, those that a turn reads from before it, and those that are needed where lanes go.
    pub(crate) read: HashSet<Reg>,
    pub(crate) needed: HashSet<Reg>,
    /// If it is several loops, one after the other: the headers of each, with those of the registers that are needed there. The first block
    /// is none then, and lanes go through it alone.
    pub(crate) inner: Vec<(usize, HashSet<Reg>)>,
}

/// A block of a loop.
pub(crate) struct LoopBlock {
    pub(crate) runs: Vec<LoopRun>,
    pub(crate) end: LoopEnd,
}

/// Steps under one guard.
pub(crate) struct LoopRun {
    pub(crate) steps: Vec<SegmentStep>,
    /// The registers that are needed after it.
    pub(crate) live: HashSet<Reg>,
    /// A predicate, and whether it is negated.
    pub(crate) guard: Option<(Reg, bool)>,
}

/// Where lanes go: a block of the loop, its number of blocks for the next turn, or out of it. A block that is not a later one is an inner
/// loop's header.
pub(crate) type LoopEdge = Option<usize>;

/// How a block of a loop ends.
#[derive(Clone, Copy)]
pub(crate) enum LoopEnd {
    Jump(LoopEdge),
    Branch {
        on: Reg,
        negated: bool,
        then: LoopEdge,
        other: LoopEdge,
    },
}

impl Loop {
    /// Whether lanes come to the next turn from the last block alone, which others leave the loop from: then they need not be
    /// kept meanwhile.
    fn is_direct(&self) -> bool {
        let next = Some(self.blocks.len());
        let edges = |block: &LoopBlock| match block.end {
            LoopEnd::Jump(to) => [to, None],
            LoopEnd::Branch { then, other, .. } => [then, other],
        };
        let Some((last, before)) = self.blocks.split_last() else {
            return false;
        };
        let [then, other] = edges(last);
        matches!(last.end, LoopEnd::Branch { .. })
            && (then == next && other.is_none() || then.is_none() && other == next)
            && before.iter().all(|block| !edges(block).contains(&next))
    }
}

/// Compiles a loop, as [`super::compile`] does a segment.
pub(crate) fn compile(
    repeated: &Loop,
    slot_of: &dyn Fn(Reg) -> RegisterSlot,
    constant_of: &dyn Fn(Reg) -> Option<u64>,
    target: Target,
    mut first: usize,
) -> Option<Vec<u8>> {
    let mut out = Assembler::new(target.isa);
    let runs = repeated.blocks.iter().flat_map(|block| &block.runs);
    let groups = runs.map(|run| Group::all(&run.steps).len()).max();
    out.push_bases(groups.unwrap_or(0));
    out.set_reach();
    let top = out.open(false);
    let direct = repeated.is_direct();
    let (mut out_of_turns, mut done) = (Label::default(), Label::default());
    out.lanes_of_strip();
    out.set_left(Reach::left_at(0));
    out.test_eax();
    out.jump(When::Zero, &mut out_of_turns);
    out.compare_class(Reach::TURNS, 0);
    out.jump(When::Zero, &mut out_of_turns);
    let turn = out.code.len();
    out.set_before(Reach::before(0));
    let mut questions = Vec::new();
    for (index, block) in repeated.blocks.iter().enumerate() {
        let before = Reach::before(index);
        let mut passed = Label::default();
        // Before the header there are some.
        if index > 0 {
            out.lanes_before(before);
            out.test_eax();
            out.jump(When::Zero, &mut passed);
        }
        out.run_eax();
        let mut tested = false;
        for (at, run) in block.runs.iter().enumerate() {
            let mut skipped = Label::default();
            if at > 0 {
                out.running_again(before);
            }
            if let Some((on, negated)) = run.guard {
                out.load_predicate(slot_of(on))?;
                out.vector(test(negated), 1, 0, Rm::Register(0), 1);
                out.upper_running();
                out.test_running();
                out.jump(When::Zero, &mut skipped);
            }
            let live = |reg: Reg| run.live.contains(&reg);
            let facts = Facts {
                slot_of,
                live_after: &live,
                constant_of,
                masked: true,
                once: false,
                gathers: target.gathers,
                merges: true,
            };
            let mut allocator = Allocator::new(out, &run.steps, facts, first, &Rows::default());
            allocator.steps(&run.steps);
            if let LoopEnd::Branch { on, negated, .. } = block.end
                && at + 1 == block.runs.len()
                && run.guard.is_none()
            {
                // What the run has just computed is in a register.
                let predicate = allocator.predicate(on);
                let from = Rm::Register(predicate);
                allocator.out.vector(test(negated), 3, predicate, from, 1);
                tested = true;
            }
            allocator.flush();
            if allocator.far {
                return None;
            }
            first = allocator.transfers;
            questions.append(&mut allocator.questions);
            out = allocator.out;
            out.bind(skipped);
        }
        match block.end {
            LoopEnd::Jump(to) => {
                out.lanes_before(before);
                out.clear_before(before);
                out.join(to.map(Reach::before));
            }
            LoopEnd::Branch {
                on,
                negated,
                then,
                other,
            } => {
                if !tested {
                    out.running_again(before);
                    out.load_predicate(slot_of(on))?;
                    out.vector(test(negated), 3, 0, Rm::Register(0), 1);
                }
                if direct && index + 1 == repeated.blocks.len() {
                    out.lanes_of_turn(before, then.is_none());
                } else {
                    out.part(before, then.map(Reach::before), other.map(Reach::before));
                }
            }
        }
        out.bind(passed);
    }
    if !direct {
        let next = Reach::before(repeated.blocks.len());
        out.lanes_before(next);
        out.clear_before(next);
    }
    out.count_down(Reach::TURNS);
    out.test_eax();
    out.jump(When::Zero, &mut done);
    out.compare_class(Reach::TURNS, 0);
    out.jump(When::Zero, &mut done);
    out.jump_back(turn);
    out.bind(done);
    out.set_left(Reach::left_at(0));
    out.bind(out_of_turns);
    out.close(top);
    question::answer(&mut out, questions);
    Some(out.finish())
}

/// Of two vectors that are one: its lanes that are not zero, or (`negated`) those that are.
fn test(negated: bool) -> Opcode {
    if negated { TEST_ZERO_32 } else { TEST_32 }
}

impl Assembler {
    /// eax = the lanes of the strip with which the code was called
    pub(super) fn lanes_of_strip(&mut self) {
        self.code.extend_from_slice(&[0x0f, 0xb7, 0x04, 0x71]); // movzx eax, word [rcx + 2*rsi]
    }

    /// The strip's place at [r10 + place] = ax
    fn set_left(&mut self, place: usize) {
        self.code.extend_from_slice(&[0x66, 0x41]);
        self.reach([0x89, 0x84, 0x72], place); // mov [r10 + 2*rsi + place], ax
    }

    /// Looks at eax.
    pub(super) fn test_eax(&mut self) {
        self.code.extend_from_slice(&[0x85, 0xc0]);
    }

    /// [r10 + place] = ax
    fn set_before(&mut self, place: usize) {
        self.code.push(0x66);
        self.reach([0x41, 0x89, 0x82], place);
    }

    /// eax = the lanes at [r10 + place]
    fn lanes_before(&mut self, place: usize) {
        self.code.push(0x41);
        self.reach([0x0f, 0xb7, 0x82], place); // movzx eax, word [r10 + place]
    }

    /// There are no lanes at [r10 + place] any more.
    fn clear_before(&mut self, place: usize) {
        self.code.push(0x66);
        self.reach([0x41, 0xc7, 0x82], place); // mov word [r10 + place], 0
        self.code.extend_from_slice(&[0, 0]);
    }

    /// k1 = the lanes of eax, and k2 their upper half
    pub(super) fn run_eax(&mut self) {
        self.code.extend_from_slice(&[0xc5, 0xf8, 0x92, 0xc8]); // kmovw k1, eax
        self.upper_running();
    }

    /// The lanes of ax are at [r10 + place] too.
    fn join(&mut self, place: Option<usize>) {
        if let Some(place) = place {
            self.code.push(0x66);
            self.reach([0x41, 0x09, 0x82], place); // or [r10 + place], ax
        }
    }

    /// eax = the lanes of k3, or (`others`) those at [r10 + place] that are not of it.
    fn lanes_of_turn(&mut self, place: usize, others: bool) {
        self.code.extend_from_slice(&[0xc5, 0xf8, 0x93, 0xc3]); // kmovw eax, k3
        if others {
            self.code.push(0x66);
            self.reach([0x41, 0x33, 0x82], place); // xor ax, [r10 + place]
        }
        self.clear_before(place);
    }

    /// Of the lanes at [r10 + place] those of k3 go to one place, the others to another.
    fn part(&mut self, place: usize, then: Option<usize>, other: Option<usize>) {
        self.code.extend_from_slice(&[0xc5, 0xf8, 0x93, 0xc3]); // kmovw eax, k3
        self.code.push(0x45);
        self.reach([0x0f, 0xb7, 0x9a], place); // movzx r11d, word [r10 + place]
        self.clear_before(place);
        self.code.extend_from_slice(&[0x41, 0x31, 0xc3]); // xor r11d, eax
        self.join(then);
        if let Some(other) = other {
            self.code.push(0x66);
            self.reach([0x45, 0x09, 0x9a], other); // or [r10 + other], r11w
        }
    }

    /// One less at [r10 + place]
    pub(super) fn count_down(&mut self, place: usize) {
        self.reach([0x41, 0xff, 0x8a], place); // dec dword [r10 + place]
    }

    /// Vector 0 = a predicate from its slot. `None` if that is too far away.
    fn load_predicate(&mut self, slot: RegisterSlot) -> Option<()> {
        let offset = i32::try_from(slot.offset).ok()?;
        let base = if slot.varying {
            self.narrow_strip(slot.width);
            Base::R11
        } else {
            Base::Rdi
        };
        self.load_narrow(0, base, offset, slot.width);
        Some(())
    }
}

impl Allocator<'_> {
    /// The register of a predicate after the last step.
    fn predicate(&mut self, on: Reg) -> u8 {
        self.pinned.clear();
        self.load((on, 0))
    }
}

/// vptestnmd, to a mask
const TEST_ZERO_32: Opcode = opcode(2, 2, false, 0x27);
