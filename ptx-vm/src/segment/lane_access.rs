//! Loads and stores of a loop that a lane goes through alone, and how the executor is asked about those that may be outside of what is known.
//!
//! Called by `lane_steps` and `scalar`. Must not know lanes but for the one that asks.

use super::ask::TransferFacts;
use super::branch::Label;
use super::general::{Place, R11, RAX, RCX, RSI, STRIP, Single, op, when};
use super::homes::Home;
use super::scalar::{Asked, STRIP_LANES, Scalar};
use super::step::SegmentStep;
use super::tag::Tag;
use crate::ir::Reg;
use crate::machine::Machine;
use crate::reach::Reach;
use crate::spaces::unpack;

impl Scalar<'_> {
    /// The register with an access's address, which is inside of what may be reached and aligned; who is not jumps.
    fn address(&mut self, step: &SegmentStep, size: usize, asked: &mut Label) -> Option<u8> {
        let access = unpack(step.access.0);
        let offset = i32::try_from(access.offset).ok()?;
        let address = match self.home(step.s[0]) {
            // The first of several elements may be loaded to where the address is.
            Home::General(register) if access.wide && offset == 0 && access.count == 1 => register,
            _ => {
                self.read(RAX, step.s[0])?;
                RAX
            }
        };
        if offset != 0 {
            self.out.general_constant(access.wide, 0, RAX, offset);
        }
        if access.wide {
            let (first, limit) = Reach::range(self.transfers);
            self.out
                .general(true, op::LOAD, R11, Place::Register(address));
            self.out.general(true, op::SUB, R11, Place::Reach(first));
            self.out
                .general(true, op::COMPARE, R11, Place::Reach(limit));
        } else {
            let limit = Place::Reach(Reach::limit(size));
            self.out.general(false, op::COMPARE, RAX, limit);
        }
        self.out.jump_if(when::NOT_BELOW, asked);
        if size > 1 {
            self.out.test_low(address, (size - 1) as u8);
            self.out.jump_if(when::NOT_ZERO, asked);
        }
        if !access.wide {
            let shared = Place::Reach(Reach::SHARED);
            self.out.general(true, op::ADD, RAX, shared);
        }
        Some(address)
    }

    /// A load or a store, and the step after it.
    pub(super) fn access(&mut self, step: &SegmentStep, next: Option<&SegmentStep>) -> Option<()> {
        let (imm, element) = step.access;
        let access = unpack(imm);
        let size = usize::from(element) * access.count;
        let stores = matches!(step.tag, Tag::StoreGlobal | Tag::StoreShared);
        let mut asked = Label::default();
        let (run, at) = self.now;
        let by_index = self.elements.of(run, at);
        let by_index = by_index.map(|element| (element, self.index_home(element)));
        let known = self.known.as_ref();
        let known = known.and_then(|(known, index)| Some((*known.distances.get(&at)?, *index)));
        let (address, first) = match by_index {
            Some((element, _)) => {
                let mut place = match known {
                    Some((distance, index)) => self.neighbour(element, index, distance)?,
                    None => self.element(element, step.s[0], &mut asked)?,
                };
                // What is stored from a slot comes through the register that may have the index.
                if stores && self.home(step.s[1]) == Home::Slot {
                    self.out.general(true, op::ADDRESS, RAX, place);
                    place = Place::At(RAX, 0);
                }
                (RAX, place)
            }
            None => {
                let address = self.address(step, size, &mut asked)?;
                (address, Place::At(address, 0))
            }
        };
        let first = match self.only_if {
            Some(only_if) if stores => self.else_nowhere(first, only_if),
            _ => first,
        };
        let is_free = |vector: &u8| !self.free[1].contains(vector);
        let vectors: Vec<u8> = (0..super::scalar::VECTORS).filter(is_free).collect();
        let place = |index: usize| match first {
            Place::At(address, distance) => {
                Place::At(address, distance + (usize::from(element) * index) as i32)
            }
            // There is one.
            place => place,
        };
        let mut elements = Vec::new();
        if stores {
            for (index, &reg) in step.s[1..].iter().enumerate() {
                let home = self.home(reg);
                match home {
                    Home::Vector(register) => {
                        let op = Single::STORE[usize::from(element == 8)];
                        self.out.single(op, register, 0, place(index));
                    }
                    Home::General(register) => self.store_element(element, register, place(index)),
                    Home::Slot => {
                        self.read(R11, reg)?;
                        self.store_element(element, R11, place(index));
                    }
                }
                elements.push(home);
            }
        } else {
            self.release();
            for (index, &reg) in step.d.iter().enumerate() {
                let home = self.define(reg);
                match home {
                    Home::Vector(register) => {
                        if self.is_factor(reg, next) {
                            let place = Some(first).filter(|_| known.is_some() && keeps(first));
                            self.factor = Some((reg, place));
                            if place.is_some() {
                                elements.push(home);
                                continue;
                            }
                        }
                        let op = Single::LOAD[usize::from(element == 8)];
                        self.out.single(op, register, 0, place(index));
                    }
                    Home::General(register) => match self.only_if {
                        Some(only_if) => {
                            self.load_element(element, R11, place(index));
                            self.take_only_if(only_if, element == 8, register);
                        }
                        None => self.load_element(element, register, place(index)),
                    },
                    Home::Slot => {
                        self.load_element(element, R11, place(index));
                        self.store_slot(R11, reg)?;
                    }
                }
                elements.push(home);
            }
        }
        if known.is_some() {
            self.transfers += 1;
            return Some(());
        }
        if let Some(instead) = &mut self.instead {
            instead.add(asked);
            self.transfers += 1;
            return Some(());
        }
        let number = match by_index {
            Some((element, _)) => self.elements.number(element),
            None => self.transfers,
        };
        self.asked.push(Asked {
            label: asked,
            address,
            element: by_index,
            back: self.out.code.len(),
            vectors,
            step: step.clone(),
            facts: TransferFacts {
                element,
                stores,
                sums: false,
                number: (number % 256) as u8,
                line: step.line,
            },
            elements,
        });
        self.transfers += 1;
        Some(())
    }

    /// Whether the next step multiplies by a register, once, adds something to the product, and nothing else needs it.
    fn is_factor(&self, reg: Reg, next: Option<&SegmentStep>) -> bool {
        let (run, at) = self.now;
        next.is_some_and(|next| {
            matches!(next.tag, Tag::FmaF32 | Tag::FmaF64)
                && next.s.iter().filter(|&&source| source == reg).count() == 1
                && next.s[2] != reg
                && self.endings.get(&reg) == Some(&(run, at + 1))
        })
    }

    fn load_element(&mut self, element: u8, to: u8, from: Place) {
        match element {
            1 => self.out.general(false, op::LOAD_8, to, from),
            2 => self.out.general(false, op::LOAD_16, to, from),
            _ => self.out.general(element == 8, op::LOAD, to, from),
        }
    }

    fn store_element(&mut self, element: u8, from: u8, to: Place) {
        match element {
            1 => self.out.general(false, op::STORE_8, from, to),
            2 => self.out.general_16(op::STORE, from, to),
            _ => self.out.general(element == 8, op::STORE, from, to),
        }
    }

    /// The code behind the loop that asks the executor about an access of a lane.
    pub(super) fn ask(&mut self, asked: Asked, failed: &mut Label) -> Option<()> {
        let Asked {
            label,
            address,
            element: by_index,
            back,
            vectors,
            step,
            facts,
            elements,
        } = asked;
        let access = unpack(step.access.0);
        let wide = access.wide;
        let element = i32::from(facts.element.max(4));
        let log = element.trailing_zeros() as u8;
        let place = |index: usize| Place::Scratch(STRIP_LANES * element * index as i32, log);
        let values = if facts.stores {
            &step.s[1..]
        } else {
            &step.d[..]
        };
        self.out.bind(label);
        if let Some((element, index)) = by_index {
            self.element_address(element, index)?;
        } else {
            if address != RAX {
                self.out
                    .general(true, op::LOAD, RAX, Place::Register(address));
            }
            // The executor adds it.
            self.out
                .general_constant(wide, 5, RAX, access.offset as i32);
        }
        for register in [RCX, RSI, RSI] {
            self.out.push(register);
        }
        let moved = 24;
        self.out
            .general(true, op::LOAD, R11, Place::Reach(Reach::SCRATCH));
        self.out.general_constant(false, 4, RCX, STRIP_LANES - 1);
        let addresses = Place::Scratch(Machine::ADDRESSES as i32, if wide { 3 } else { 2 });
        self.out.general(wide, op::STORE, RAX, addresses);
        for (index, (&reg, &home)) in values.iter().zip(&elements).enumerate() {
            match home {
                _ if !facts.stores => {}
                Home::General(register) => {
                    self.out
                        .general(element == 8, op::STORE, register, place(index));
                }
                Home::Vector(register) => {
                    let op = Single::STORE[usize::from(element == 8)];
                    self.out.single(op, register, 0, place(index));
                }
                Home::Slot => {
                    self.out.general(true, op::LOAD, RCX, Place::Own(16));
                    self.read_from(RAX, reg, Home::Slot)?;
                    self.out.general_constant(false, 4, RCX, STRIP_LANES - 1);
                    self.out.general(element == 8, op::STORE, RAX, place(index));
                }
            }
        }
        self.out.set_constant(RAX, 1);
        self.out.general(false, &[0xd3], 4, Place::Register(RAX));
        self.out
            .general_16(op::STORE, RAX, Place::Reach(Reach::RUNNING));
        let spill = |vector: u8| Place::At(R11, Machine::SPILL as i32 + 64 * i32::from(vector));
        for &vector in &vectors {
            self.out.single(Single::STORE_ALL, vector, 0, spill(vector));
        }
        self.out
            .general(true, op::LOAD, RSI, Place::Own(moved + STRIP));
        let words = [step.access.0, facts.pack()];
        self.out.ask(Reach::HELPER, Reach::MACHINE, words);
        for register in [RSI, RSI, RCX] {
            self.out.pop(register);
        }
        self.out.jump_if(when::NOT_ZERO, failed);
        self.out
            .general(true, op::LOAD, R11, Place::Reach(Reach::SCRATCH));
        for &vector in &vectors {
            self.out.single(Single::LOAD_ALL, vector, 0, spill(vector));
        }
        if !facts.stores {
            self.out.push(RCX);
            self.out.general_constant(false, 4, RCX, STRIP_LANES - 1);
            for (index, (&reg, &home)) in values.iter().zip(&elements).enumerate() {
                match home {
                    Home::General(register) => {
                        self.out
                            .general(element == 8, op::LOAD, register, place(index));
                    }
                    Home::Vector(register) => {
                        let op = Single::LOAD[usize::from(element == 8)];
                        self.out.single(op, register, 0, place(index));
                    }
                    Home::Slot => {
                        self.out.general(element == 8, op::LOAD, RAX, place(index));
                        self.out.general(true, op::LOAD, RCX, Place::Own(0));
                        self.store_slot(RAX, reg)?;
                        self.out.general_constant(false, 4, RCX, STRIP_LANES - 1);
                    }
                }
            }
            self.out.pop(RCX);
        }
        if let Some((element, _)) = by_index {
            self.count_again(element)?;
        }
        self.out.jump_back(back);
        Some(())
    }
}

/// Whether the next step can still read what stands there: its address is in registers that no step uses for what is between.
fn keeps(place: Place) -> bool {
    matches!(place, Place::Element { base, .. } if base != RAX)
}
