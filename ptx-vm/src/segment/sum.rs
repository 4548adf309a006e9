//! Sums into words of shared memory whose old values nobody reads, for AVX-512: a histogram's counts.
//!
//! Lanes may add to one word, so there is no scatter: a strip's addresses and values are put where general registers find them, and
//! added one lane after the other. Whoever else reaches shared memory runs on this thread, so a sum need not be atomic for the processor.
//! Lanes that do not run add 0 to the first word, which is there if one of the others was found to be inside.
//!
//! Called by `allocate` for its steps. Must not know what is counted.

use super::allocate::Allocator;
use super::ask::TransferFacts;
use super::branch::{Label, When};
use super::encode::{self, Assembler, Base, Rm};
use super::general::{Place, R11, RAX, RCX, op};
use super::question::Question;
use super::step::SegmentStep;
use super::transfer::{COMPARE_32, NOT_BELOW, TEST_32};
use crate::reach::Reach;
use crate::regs::STRIP;
use crate::spaces::unpack;

/// Bytes of a word.
const SIZE: usize = 4;
/// The mask of the strip's running lanes.
const RUNNING: u8 = 1;

impl Allocator<'_> {
    /// A sum: `s[1]` is added to the word at `s[0]`.
    pub(super) fn sum(&mut self, step: &SegmentStep) {
        self.pinned.clear();
        let (imm, element) = step.access;
        let offset = unpack(imm).offset as u32;
        let address = self.load((step.s[0], 0));
        let value = self.load((step.s[1], 0));
        let spare = self.free();
        let is_held = |register: &u8| self.registers[usize::from(*register)].is_some();
        let held = (0..self.registers.len() as u8).filter(is_held).collect();
        let mut asked = Label::default();
        let out = &mut self.out;
        let mut place = address;
        if offset != 0 {
            place = spare;
            out.vector(encode::ADD_32, place, address, Rm::Constant(offset), 0);
        }
        let limit = Rm::Broadcast(Base::R10, Reach::limit(SIZE) as i32);
        out.vector_imm(COMPARE_32, 3, place, limit, RUNNING, Some(NOT_BELOW));
        out.vector(TEST_32, 4, place, Rm::Constant(SIZE as u32 - 1), RUNNING);
        out.test_masks(false);
        out.jump(When::NotZero, &mut asked);
        let kept = [Reach::KEPT, Reach::KEPT + STRIP * SIZE];
        for (from, to) in [place, value].into_iter().zip(kept) {
            out.vector(
                encode::BLEND,
                spare,
                0,
                Rm::Register(from),
                encode::ZEROED | RUNNING,
            );
            out.store(spare, Base::R10, to as i32, false, 0);
        }
        out.push(RCX);
        out.general(true, op::LOAD, RCX, Place::Reach(Reach::SHARED));
        for lane in 0..STRIP {
            for (register, from) in [R11, RAX].into_iter().zip(kept) {
                let from = Place::Reach(from + SIZE * lane);
                out.general(false, op::LOAD, register, from);
            }
            out.add_at_rcx();
        }
        out.pop(RCX);
        self.questions.push(Question {
            asked,
            back: self.out.code.len(),
            addresses: vec![address],
            held,
            elements: vec![value],
            access: imm,
            facts: TransferFacts {
                element,
                stores: true,
                sums: true,
                number: (self.transfers % 256) as u8,
                line: step.line,
            },
        });
        self.transfers += 1;
    }
}

impl Assembler {
    /// [rcx + r11] = [rcx + r11] + eax
    fn add_at_rcx(&mut self) {
        self.code.extend_from_slice(&[0x42, 0x01, 0x04, 0x19]);
    }
}
