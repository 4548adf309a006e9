//! What warpgroups add to products of matrices: fragments that are read by descriptors of shared memory, and waiting
//! for all four warps. Products themselves are `ops::matrix`'s.
//!
//! A descriptor says where a matrix lies, how far apart its parts are, and how it is swizzled:
//!
//! ```text
//!  0 start / 16 [14]   16 leading offset / 16 [14]   32 stride offset / 16 [14]
//! 49 base offset [3]   62 swizzle: none, 128, 64, 32 bytes [2]
//! ```
//!
//! Chosen by `lower::warpgroup`. Must not know the sums.

use crate::access::Cell;
use crate::fault::FaultKind;
use crate::machine::{Flow, Machine, Op};
use crate::spaces::StateSpace;

use super::warp::ALL;

/// Lanes of a warp.
const LANES: usize = 32;
/// Warps of a warpgroup.
const WARPS: usize = 4;
/// Rows of the left matrix that each warp has.
const WARP_ROWS: usize = 16;
/// Bit of `imm`: along the rows of the left matrix, or the columns of the right one, elements lie beside each other.
pub(crate) const TURNED: u64 = 1 << 32;

/// Where a matrix lies in shared memory, in bytes.
#[derive(Clone, Copy, Debug)]
struct Descriptor {
    start: u64,
    leading: u64,
    stride: u64,
    base: u64,
    /// Bytes of a swizzled row; 0 if none is.
    swizzle: u64,
}

impl Descriptor {
    fn of(bits: u64) -> Self {
        let sixteens = |shift: u32| 16 * (bits >> shift & 0x3fff);
        Self {
            start: sixteens(0),
            leading: sixteens(16),
            stride: sixteens(32),
            base: bits >> 49 & 7,
            swizzle: [0, 128, 64, 32][(bits >> 62) as usize],
        }
    }

    /// An address as it is swizzled: 16 bytes at a time change places, by which of the pattern's rows of 128 bytes they
    /// are in.
    fn swizzled(self, address: u64) -> u64 {
        match self.swizzle {
            0 => address,
            width => {
                let row = (address >> 7).wrapping_sub(self.base) & (width / 16 - 1);
                address ^ row << 4
            }
        }
    }

    /// The byte `depth` of row `index`, where elements lie beside each other along the depth.
    fn plain(self, index: u64, depth: u64) -> u64 {
        let group = self.start + index / 8 * self.stride;
        match self.swizzle {
            0 => group + depth / 16 * self.leading + index % 8 * 16 + depth % 16,
            width => {
                let group = group + depth / width * self.leading;
                self.swizzled(group + index % 8 * width + depth % width)
            }
        }
    }

    /// The 16-bit element at `depth` of row `index`, where elements lie beside each other along the rows.
    fn turned(self, index: u64, depth: u64) -> u64 {
        match self.swizzle {
            0 => {
                let group = self.start + index / 8 * self.stride + depth / 8 * self.leading;
                group + depth % 8 * 16 + index % 8 * 2
            }
            width => {
                let bytes = 2 * index;
                let group = self.start + bytes / width * self.leading + depth / 8 * self.stride;
                self.swizzled(group + depth % 8 * width + bytes % width)
            }
        }
    }
}

impl Machine<'_> {
    /// The 32 bits of row `index` that begin at byte `depth`.
    fn fragment(
        &mut self,
        descriptor: Descriptor,
        turned: bool,
        (index, depth): (u64, u64),
        lane: usize,
    ) -> Result<u32, Flow> {
        let read = |cx: &mut Self, address: u64, bytes: u64| {
            cx.host(address, StateSpace::Shared, bytes, false)
                .map_err(|()| cx.fault(FaultKind::IllegalAddress, address, lane))
        };
        if !turned {
            let host = read(self, descriptor.plain(index, depth), 4)?;
            // SAFETY: `host` tested the four bytes, which all parts of a descriptor align.
            return Ok(unsafe { <u32 as Cell>::load(host) });
        }
        let mut bits = 0;
        for upper in 0..2 {
            let host = read(self, descriptor.turned(index, depth / 2 + upper), 2)?;
            // SAFETY: `host` tested the two bytes, which all parts of a descriptor align.
            let element = unsafe { <u16 as Cell>::load(host) };
            bits |= u32::from(element) << (16 * upper);
        }
        Ok(bits)
    }
}

/// Reads registers by a descriptor, source 0; `rows` gives the row of each, and at which byte of the depth its first 16
/// begin.
fn read(cx: &mut Machine<'_>, op: &Op, rows: impl Fn(usize, usize) -> Vec<(usize, usize)>) -> Flow {
    if let Err(flow) = cx.members(op, Some(ALL)) {
        return flow;
    }
    let turned = op.imm & TURNED != 0;
    for (base, lanes) in cx.warps() {
        let warp = (cx.first_thread as usize + base) / LANES % WARPS;
        for lane in (0..LANES).filter(|lane| lanes >> lane & 1 != 0) {
            let descriptor = Descriptor::of(cx.argument(op, 0, base + lane, 8));
            for (register, (row, start)) in rows(warp, lane / 4).into_iter().enumerate() {
                let place = (row as u64, (start + lane % 4 * 4) as u64);
                match cx.fragment(descriptor, turned, place, base + lane) {
                    Ok(bits) => cx.set_if(op, register, base + lane, 4, bits.into()),
                    Err(flow) => return flow,
                }
            }
        }
    }
    Flow::Next
}

/// A warp's part of the left matrix, 16 rows of 32 bytes each: source: the descriptor; four destinations in the order of
/// `mma`.
///
/// # Safety
/// None: any machine has it; so for all functions below.
pub(crate) unsafe fn load_left(cx: &mut Machine<'_>, op: &Op) -> Flow {
    read(cx, op, |warp, group| {
        let row = WARP_ROWS * warp + group;
        vec![(row, 0), (row + 8, 0), (row, 16), (row + 8, 16)]
    })
}

/// Eight columns of the right matrix from the one that `imm` says, 32 bytes of each, beginning at the byte that its
/// second byte says: source: the descriptor; two destinations.
///
/// # Safety
/// None.
pub(crate) unsafe fn load_right(cx: &mut Machine<'_>, op: &Op) -> Flow {
    let (column, start) = ((op.imm & 0xffff) as usize, (op.imm >> 16 & 0xff) as usize);
    read(cx, op, |_, group| {
        vec![(column + group, start), (column + group, start + 16)]
    })
}

/// Waits for all warps of the warpgroup: what one of them goes on to tell others holds for all of them.
///
/// # Safety
/// None.
pub(crate) unsafe fn meet(cx: &mut Machine<'_>, _: &Op) -> Flow {
    match cx.warpgroups() {
        Ok(()) => Flow::Next,
        Err(flow) => flow,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn swizzled_rows_keep_their_bytes_and_change_places() {
        for (code, width) in [(1_u64, 128_u64), (2, 64), (3, 32)] {
            // A pattern of 8 rows from 1024 on.
            let descriptor = Descriptor::of((code << 62) | ((8 * width / 16) << 32) | (1024 / 16));
            let mut seen: Vec<u64> = (0..16)
                .flat_map(|row| (0..width).step_by(16).map(move |at| (row, at)))
                .map(|(row, at)| descriptor.plain(row, at))
                .collect();
            let plain = |row: u64, at: u64| 1024 + row * width + at;
            assert_eq!(descriptor.plain(0, 16), plain(0, 16));
            // The pattern's second row of 128 bytes.
            let row = 128 / width;
            assert_eq!(descriptor.plain(row, 0), plain(row, 16));
            assert_eq!(descriptor.plain(row, 16), plain(row, 0));
            seen.sort_unstable();
            let all: Vec<u64> = (1024..1024 + 16 * width).step_by(16).collect();
            assert_eq!(seen, all, "{width}");
        }
    }
}
