//! Loads and stores of which it is known before the first strip how their addresses lie.
//!
//! Called by `transfer`. Must not know who found that out.

use super::allocate::Allocator;
use super::branch::{Label, When};
use super::encode::{self, Assembler, Base, Rm};
use super::general::{Place, R11, RAX, op, when};
use super::transfer::{GATHER_32_BY_32, LOWER, Transfer, UPPER};
use crate::ops::rows::ROWS;
use crate::reach::Reach;

impl Allocator<'_> {
    /// A load of what is the same in all lanes.
    pub(super) fn one(
        &mut self,
        transfer: &Transfer,
        addresses: &[u8],
        offset: i32,
        (first, limit): (usize, usize),
        asked: &mut Label,
    ) {
        let out = &mut self.out;
        let wide = addresses.len() == 2;
        out.lowest_lane(wide, addresses[0]);
        if wide {
            out.advance(offset);
            out.compare_distance(first, limit);
        } else {
            if offset != 0 {
                out.general_constant(false, 0, Base::Rax as u8, offset);
            }
            out.compare_eax(Reach::limit(transfer.size()));
        }
        out.jump(When::NotBelow, asked);
        if transfer.size() > 1 {
            out.test_al((transfer.size() - 1) as u8);
            out.jump(When::NotZero, asked);
        }
        if !wide {
            out.rax_plus(Reach::SHARED);
        }
        transfer.one_for_all(out, (Base::Rax, 0));
    }

    /// A load or a store of elements of global memory that are known to be a row.
    pub(super) fn known_row(
        &mut self,
        transfer: &Transfer,
        (thread, log): (i32, u8),
        (kept, start): (usize, Option<u8>),
        ahead: Option<i32>,
    ) {
        let strip = Place::At(Base::R8 as u8, thread);
        let out = &mut self.out;
        if let Some(start) = start.filter(|_| transfer.element >= 4) {
            out.general(true, op::LOAD, R11, Place::Reach(kept));
            let vectors = transfer.elements.iter().zip([LOWER, UPPER]).zip([0, 64]);
            for ((&vector, mask), distance) in vectors {
                let mask = if transfer.stores { mask } else { 0 };
                let wide = transfer.element == 8;
                let place = Rm::Indexed(start, distance);
                out.transfer_at(transfer.stores, vector, place, wide, mask);
            }
            return;
        }
        out.general(true, op::LOAD_SIGNED_32, R11, strip);
        if log > 0 {
            out.shift(true, 4, R11, log);
        }
        out.general(true, op::ADD, R11, Place::Reach(kept));
        if let Some(ahead) = ahead {
            // Rows far from each other are each in a page of their own, where a processor does not look ahead, and there are about as many
            // loads in a turn as it has under way. So what comes two turns later is fetched, or in the next one, of 64 bits.
            out.general(true, op::LOAD_SIGNED_32, RAX, Place::Frame(ahead));
            let next = Place::Element {
                base: R11,
                index: RAX,
                log: (log + 1).min(3),
                distance: 0,
            };
            let fetch = if transfer.stores {
                op::FETCH_TO_WRITE
            } else {
                op::FETCH
            };
            out.general(false, fetch, 1, next);
        }
        transfer.row(out, (Base::R11, 0));
    }

    /// A load or a store of elements of shared memory of which it is known whether they are a row; jumps to `done` if they are and all of
    /// them are inside, and to `apart` if they are not all inside. Then, and else, the addresses without the distance are in `t`.
    pub(super) fn known_shared(
        &mut self,
        transfer: &Transfer,
        t: u8,
        (facts, (thread, block, offset), kept): (i32, (i32, Option<i32>, i32), Option<usize>),
        (done, apart): (&mut Label, &mut Label),
    ) {
        let out = &mut self.out;
        let addresses = |out: &mut Assembler| {
            out.load(t, Base::R8, thread);
            if let Some(block) = block {
                // All lanes of what is the same in them have it.
                let block = Rm::Memory(Base::Rdi, block);
                out.vector(encode::ADD_32, t, t, block, 0);
            }
        };
        let (mut outside, mut no_row) = (Label::default(), Label::default());
        out.general(false, &[0x83], 7, Place::Frame(facts + ROWS));
        out.code.push(0); // cmp dword [...], 0
        out.jump_if(when::ZERO, &mut no_row);
        let first = Place::At(Base::R8 as u8, thread);
        out.general(false, op::LOAD, R11, first);
        if let Some(block) = block {
            out.general(false, op::ADD, R11, Place::Frame(block));
        }
        if offset != 0 {
            out.general_constant(false, 0, R11, offset);
        }
        let limit = Place::Reach(Reach::limit(16 * transfer.size()));
        out.general(false, op::COMPARE, R11, limit);
        out.jump_if(when::NOT_BELOW, &mut outside);
        if transfer.size() > 1 {
            out.test_low(R11, (transfer.size() - 1) as u8);
            out.jump_if(when::NOT_ZERO, &mut outside);
        }
        out.general(true, op::ADD, R11, Place::Reach(Reach::SHARED));
        transfer.row(out, (Base::R11, 0));
        out.jump(When::Always, done);
        out.bind(outside);
        addresses(out);
        out.jump(When::Always, apart);
        out.bind(no_row);
        if let Some(kept) = kept {
            let mut unknown = Label::default();
            out.rax_from(kept);
            out.general(true, op::TEST, RAX, Place::Register(RAX));
            out.jump_if(when::ZERO, &mut unknown);
            out.load(t, Base::R8, thread);
            out.copy_mask(LOWER);
            out.indexed(GATHER_32_BY_32, transfer.elements[0], (t, 0), 0);
            out.jump(When::Always, done);
            out.bind(unknown);
        }
        addresses(out);
    }
}
