//! Between the convergent code, where what all lanes share stands once, and the divergent code, where each lane has its own.
//!
//! Called by the lane group when lanes part, and when all are together again.

use super::{LaneGroup, MAX_BACKOFF};
use crate::mask::Mask;
use crate::program::{Move, NOWHERE, Program};
use crate::regs::{Frame, Lane, STRIP};

impl LaneGroup {
    /// Spreads the uniform values that `blocks` want over the lanes.
    pub(super) fn diverge(&mut self, program: &Program, index: usize, blocks: &[u32]) {
        let frame = Frame::new(&self.registers, self.paths[index].base);
        let (low, high) = self.live.strips();
        for (at, &block) in blocks.iter().enumerate() {
            for one in &program.blocks[block as usize].moves {
                // Twice does no harm, and with many blocks it costs more to find out.
                if at == 1 && has_move(program, blocks[0], one) {
                    continue;
                }
                one.spread(frame, low, high);
            }
        }
        self.reconvergence_delay = 0;
    }

    /// Tries to go on in the convergent code at `block`: all live lanes are here, and those registers that
    /// are uniform there hold one value in all of them. Returns the position if so.
    pub(super) fn converge(&mut self, program: &Program, index: usize, block: u32) -> Option<u32> {
        let code = &program.blocks[block as usize];
        if self.paths.len() != 1 || code.fast == NOWHERE {
            return None;
        }
        let frame = Frame::new(&self.registers, self.paths[index].base);
        let live = self.live;
        let equal = code.moves.iter().all(|one| match one.width {
            1 => gather::<u8>(frame, one, live),
            2 => gather::<u16>(frame, one, live),
            4 => gather::<u32>(frame, one, live),
            _ => gather::<u64>(frame, one, live),
        });
        if equal {
            self.reconvergence_backoff = 1;
            return Some(code.fast);
        }
        self.reconvergence_delay = self.reconvergence_backoff;
        self.reconvergence_backoff = (self.reconvergence_backoff * 2).min(MAX_BACKOFF);
        None
    }
}

fn has_move(program: &Program, block: u32, one: &Move) -> bool {
    let moves = &program.blocks[block as usize].moves;
    moves.binary_search_by_key(&one.key(), Move::key).is_ok()
}

/// Whether all lanes of `live` hold one value; if so, it is the uniform one.
fn gather<T: Lane + PartialEq>(frame: Frame, one: &Move, live: Mask) -> bool {
    let Some(lead) = live.lowest() else {
        return false;
    };
    let value: T = frame.lane(one.varying as usize, lead);
    let (low, high) = live.strips();
    for strip in low..high {
        let lanes = live.strip(strip);
        let values = frame.strip::<T>(one.varying as usize, strip);
        let differ = (0..STRIP).fold(0u16, |bits, lane| {
            bits | u16::from(values[lane] != value) << lane
        });
        if differ & lanes != 0 {
            return false;
        }
    }
    frame.set_strip(one.uniform as usize, 0, [value; STRIP]);
    true
}
