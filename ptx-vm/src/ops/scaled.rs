//! Factors of blocks of matrices: powers of two in a byte (`ue8m0`), or unsigned floats (`ue4m3`).
//!
//! Chosen by `lower::scaled`. Must not know how a block's sums are made.

use super::fp8;
use super::warp::ALL;
use crate::machine::{Flow, Machine, Op};

/// Lanes of a warp.
const LANES: usize = 32;

/// Where a block's factors are: for the left matrix and the right one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Factors {
    /// The first lane of a quad that has one; of the left matrix the next one has that of the lower row.
    pub(crate) lanes: [usize; 2],
    /// The byte of its register.
    pub(crate) bytes: [usize; 2],
    /// They are floats of 8 bits.
    pub(crate) unsigned: bool,
}

impl Factors {
    pub(crate) fn pack(self) -> u64 {
        let [a, b] = self.lanes;
        let [c, d] = self.bytes;
        (a | b << 8 | c << 16 | d << 24) as u64 | u64::from(self.unsigned) << 32
    }

    fn unpack(imm: u64) -> Self {
        let part = |at: u32| (imm >> at & 3) as usize;
        Self {
            lanes: [part(0), part(8)],
            bytes: [part(16), part(24)],
            unsigned: imm >> 32 != 0,
        }
    }

    fn value(self, byte: u8) -> f64 {
        if self.unsigned {
            return fp8::decode(byte & 0x7f, false).into();
        }
        match byte {
            0xff => f64::NAN,
            exponent => (f64::from(exponent) - 127.0).exp2(),
        }
    }
}

/// Adds a block's sums, scaled: sources, of two registers in 64 bits each: a lane's four sums of the block, of rows `g` and
/// `g + 8`, its four sums so far, and its registers of factors; four destinations.
///
/// # Safety
/// None: any machine has it.
pub(crate) unsafe fn add(cx: &mut Machine<'_>, op: &Op) -> Flow {
    if let Err(flow) = cx.members(op, Some(ALL)) {
        return flow;
    }
    let factors = Factors::unpack(op.imm);
    for (base, lanes) in cx.warps() {
        let is_there = |lane: &usize| lanes >> lane & 1 != 0;
        // Lanes that a partial warp does not have hold zeroes.
        let words: [u64; LANES] = std::array::from_fn(|lane| match is_there(&lane) {
            true => cx.argument(op, 4, base + lane, 8),
            false => 0,
        });
        let factor = |side: usize, lane: usize| {
            let word = (words[lane] >> (32 * side)) as u32;
            factors.value((word >> (8 * factors.bytes[side])) as u8)
        };
        for lane in (0..LANES).filter(is_there) {
            let (group, number) = (lane / 4, lane % 4);
            for index in 0..4 {
                let sum = |source: usize| {
                    let word = cx.argument(op, source + index / 2, base + lane, 8);
                    f64::from(f32::from_bits((word >> (32 * (index % 2))) as u32))
                };
                let row = factor(0, 4 * group + factors.lanes[0] + index / 2);
                let column = factor(1, 4 * (2 * number + index % 2) + factors.lanes[1]);
                let value = sum(2) + sum(0) * row * column;
                cx.set_if(op, index, base + lane, 4, (value as f32).to_bits().into());
            }
        }
    }
    Flow::Next
}
