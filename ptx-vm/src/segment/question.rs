//! Where machine code asks the executor about a load or a store: what it hands over and takes back.
//!
//! Called by `allocate` and `repeat`, behind the loop over strips. Must not know why it is asked.

use super::ask::TransferFacts;
use super::branch::{Label, When};
use super::encode::{Assembler, Base};
use crate::machine::Machine;
use crate::reach::Reach;

/// What is left to be made of a transfer after the loop: how it is asked for.
pub(super) struct Question {
    pub(super) asked: Label,
    /// Where the code goes on.
    pub(super) back: usize,
    /// The vectors of addresses, vectors that hold values, and those of the elements.
    pub(super) addresses: Vec<u8>,
    pub(super) held: Vec<u8>,
    pub(super) elements: Vec<u8>,
    pub(super) access: u64,
    pub(super) facts: TransferFacts,
}

/// The code behind the loop that asks the executor.
pub(super) fn answer(out: &mut Assembler, questions: Vec<Question>) {
    if questions.is_empty() {
        return;
    }
    let mut failed = Label::default();
    for question in questions {
        let spill = |register: u8| Machine::SPILL as i32 + 64 * i32::from(register);
        out.bind(question.asked);
        out.keep_running(Reach::RUNNING);
        out.r11_from(Reach::SCRATCH);
        for (index, &register) in question.addresses.iter().enumerate() {
            let place = Machine::ADDRESSES as i32 + 64 * index as i32;
            out.store(register, Base::R11, place, false, 0);
        }
        for &register in &question.held {
            out.store(register, Base::R11, spill(register), false, 0);
        }
        let elements = question.elements.iter().enumerate();
        let elements = elements.map(|(index, &register)| (register, 64 * index as i32));
        if question.facts.stores {
            for (register, place) in elements.clone() {
                out.store(register, Base::R11, place, false, 0);
            }
        }
        let words = [question.access, question.facts.pack()];
        out.ask(Reach::HELPER, Reach::MACHINE, words);
        out.jump(When::NotZero, &mut failed);
        out.r11_from(Reach::SCRATCH);
        for &register in &question.held {
            out.load(register, Base::R11, spill(register));
        }
        if !question.facts.stores {
            for (register, place) in elements {
                out.load(register, Base::R11, place);
            }
        }
        out.running_again(Reach::RUNNING);
        out.jump_back(question.back);
    }
    out.bind(failed);
    out.fail();
}
