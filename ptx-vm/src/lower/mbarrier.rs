//! Barriers in shared memory: `mbarrier`, and what copies and stores of `.async` tell them.
//!
//! Called by `lower::arith`, and by the lowering of copies and stores that tell a barrier. Must not know the
//! object's bits: they are in `ops::mbarrier`.

use ptx::ast::{Instruction, Operand, Space, Type};

use super::body::{Body, Lowered};
use super::memory::Target;
use crate::ir::{InstKind, Reg, Traits};
use crate::machine::OpFn;
use crate::ops::simple::Words;
use crate::ops::{compare, logic};
use crate::ops::{mbarrier, memory};
use crate::segment::Tag;

/// The most arrivals that a barrier expects.
const MOST_ARRIVALS: u64 = (1 << 20) - 1;

impl<'a> Body<'a> {
    pub(super) fn mbarrier(&mut self, at: &'a Instruction<'a>, words: &Words<'_>) -> Lowered {
        if words.types != [Type::B64] {
            return Err(self.unbuilt());
        }
        let (what, flags) = match words.flags {
            [what, flags @ ..] => (*what, flags),
            [] => return Err(self.unbuilt()),
        };
        let expects = flags.contains(&"expect_tx");
        let parity = flags.contains(&"parity");
        let known = |flag: &&str| {
            matches!(
                *flag,
                "shared"
                    | "shared::cta"
                    | "shared::cluster"
                    | "acquire"
                    | "release"
                    | "relaxed"
                    | "cta"
                    | "cluster"
            ) || match *flag {
                "expect_tx" => matches!(what, "arrive" | "arrive_drop"),
                "noComplete" => matches!(what, "arrive" | "arrive_drop") && !expects,
                "parity" => matches!(what, "test_wait" | "try_wait"),
                _ => false,
            }
        };
        if !flags.iter().all(known) {
            return Err(self.unbuilt());
        }
        let space = flags
            .iter()
            .any(|flag| flag.starts_with("shared"))
            .then_some(Space::Shared);
        match (what, at.operands.as_slice()) {
            ("init", [address, count]) => {
                let target = self.target(space, address)?;
                self.start_barrier(&target, count)
            }
            // Its memory is the kernel's again, whatever is in it.
            ("inval", [address]) => self.target(space, address).map(|_| ()),
            ("expect_tx" | "complete_tx", [address, bytes]) => {
                let target = self.target(space, address)?;
                let run = if what == "expect_tx" {
                    mbarrier::expect()
                } else {
                    mbarrier::complete()
                };
                let bytes = self.count64(bytes)?;
                self.change_barrier(&target, run, vec![bytes], None)
            }
            ("arrive" | "arrive_drop", [state, address, rest @ ..]) if rest.len() <= 1 => {
                let target = self.target(space, address)?;
                let run = if what == "arrive" {
                    mbarrier::arrive()
                } else {
                    mbarrier::drop()
                };
                let (mut count, mut bytes) = (self.constant(1, 8), self.constant(0, 8));
                match rest {
                    [operand] if expects => bytes = self.count64(operand)?,
                    [operand] => count = self.count64(operand)?,
                    _ if expects => return Err(self.fail("a wrong number of operands")),
                    _ => {}
                }
                self.change_barrier(&target, run, vec![count, bytes], Some(state))
            }
            // Without a state: what another block of a cluster does.
            ("arrive" | "arrive_drop", [address @ Operand::Address(_)]) => {
                let target = self.target(space, address)?;
                let run = if what == "arrive" {
                    mbarrier::arrive()
                } else {
                    mbarrier::drop()
                };
                let counts = vec![self.constant(1, 8), self.constant(0, 8)];
                self.change_barrier(&target, run, counts, None)
            }
            ("test_wait", [done, address, state]) => {
                let target = self.target(space, address)?;
                self.test_phase(&target, done, state, parity).map(|_| ())
            }
            // How long to wait at most is a hint.
            ("try_wait", [done, address, state] | [done, address, state, _]) => {
                let target = self.target(space, address)?;
                let after = self.enter_guarded();
                let is_done = self.test_phase(&target, done, state, parity)?;
                self.set_guard(Some((is_done, true)));
                let waited = self.enter_guarded();
                self.emit(InstKind::Pause, Vec::new(), Vec::new());
                self.leave_guarded(waited);
                self.leave_guarded(after);
                Ok(())
            }
            ("pending_count", [count, state]) => {
                let state = self.read(state, 8)?;
                let narrow = logic::resize(8, 4, false).ok_or_else(|| self.unbuilt())?;
                let low = self.compute(&narrow, vec![state]);
                let pending = self.constant(mbarrier::PENDING, 4);
                let value = self.apply32("and", Type::B32, vec![low, pending])?;
                self.write32(count, value)
            }
            _ => Err(self.fail("a wrong number of operands")),
        }
    }

    fn start_barrier(&mut self, target: &Target, count: &Operand<'a>) -> Lowered {
        let word = match count {
            Operand::Integer(count) => {
                let count = u64::try_from(*count)
                    .ok()
                    .filter(|count| (1..=MOST_ARRIVALS).contains(count));
                let count = count
                    .ok_or_else(|| self.fail("a count of arrivals that is not 1 to 1048575"))?;
                self.constant(mbarrier::initial(count), 8)
            }
            count => {
                let count = self.count64(count)?;
                let twice = self.constant(mbarrier::initial(1), 8);
                let words = Words {
                    opcode: "mul",
                    flags: &["lo"],
                    types: &[Type::U64],
                };
                self.apply(&words, vec![count, twice])?
            }
        };
        let imm = self.access(target, 1)?;
        let run = memory::store(8, 8, false).ok_or_else(|| self.unbuilt())?;
        self.emit(
            InstKind::Store { run, imm, loose: 0 },
            Vec::new(),
            vec![target.base, word],
        );
        Ok(())
    }

    /// Does something to a barrier's word; `state` gets what it was.
    pub(super) fn change_barrier(
        &mut self,
        target: &Target,
        run: OpFn,
        operands: Vec<Reg>,
        state: Option<&Operand<'a>>,
    ) -> Lowered {
        let imm = self.access(target, 1)?;
        let mut sources = vec![target.base];
        sources.extend(operands);
        let state = state.filter(|state| !matches!(state, Operand::Sink));
        let mut results = Vec::new();
        if let Some(state) = state {
            results.push(self.dest(state, 8)?);
        }
        self.emit(
            InstKind::Atomic {
                run,
                imm,
                tag: Tag::None,
            },
            results,
            sources,
        );
        Ok(())
    }

    /// Whether the phase of a state, or the last one of a parity, is over.
    fn test_phase(
        &mut self,
        target: &Target,
        done: &Operand<'a>,
        state: &Operand<'a>,
        parity: bool,
    ) -> Lowered<Reg> {
        let phase = if parity {
            let parity = self.count64(state)?;
            let top = self.constant(mbarrier::PARITY.into(), 4);
            let words = Words {
                opcode: "shl",
                flags: &[],
                types: &[Type::B64],
            };
            self.apply(&words, vec![parity, top])?
        } else {
            self.read(state, 8)?
        };
        let run = memory::load(8, false, 8, false).ok_or_else(|| self.unbuilt())?;
        let imm = self.access(target, 1)?;
        let traits = Traits {
            private: target.is_generic(),
            volatile: true,
            ..Traits::default()
        };
        let word = self.temp(8);
        self.emit(
            InstKind::Load { run, imm, traits },
            vec![word],
            vec![target.base],
        );
        self.fence();
        let words = Words {
            opcode: "xor",
            flags: &[],
            types: &[Type::B64],
        };
        let differs = self.apply(&words, vec![word, phase])?;
        let zero = self.constant(0, 8);
        let negative = compare::compare("lt", Type::S64).ok_or_else(|| self.unbuilt())?;
        let dest = self.dest(done, 1)?;
        self.simple(&negative, dest, vec![differs, zero]);
        Ok(dest)
    }

    /// A 32-bit operand, in 64 bits.
    pub(super) fn count64(&mut self, operand: &Operand<'a>) -> Lowered<Reg> {
        let count = self.read(operand, 4)?;
        let widen = logic::resize(4, 8, false).ok_or_else(|| self.unbuilt())?;
        Ok(self.compute(&widen, vec![count]))
    }

    /// `st.async` and `red.async`: what they do to memory is done, so the barrier is told of the bytes.
    pub(super) fn tell_barrier(&mut self, barrier: &Operand<'a>, bytes: u64) -> Lowered {
        let target = self.target(Some(Space::Shared), barrier)?;
        let bytes = self.constant(bytes, 8);
        self.change_barrier(&target, mbarrier::complete(), vec![bytes], None)
    }
}
