//! Sparse matrices: half of the elements of each row are stored, and metadata says which of each few they are.
//!
//! Of four elements of 8 or 16 bits two are stored, of two of 32 bits one, and of four pairs of 4 bits two pairs. Four bits
//! of metadata say where the two stand that are stored, two bits each; of 32 bits, which half. Lanes of a quad have the
//! metadata of the quad's two rows: one lane for both rows where elements have 16 bits or more, else one for each.
//!
//! Chosen by `lower::sparse`. Must not know what elements mean: they are bits here.

use super::matrix::ElementKind;
use super::warp::ALL;
use crate::machine::{Flow, Machine, Op};

/// Lanes of a warp.
const LANES: usize = 32;
/// Rows of the left matrix.
const ROWS: usize = 16;
/// The most elements of a row of a piece.
const DEEPEST: usize = 64;

/// Which lanes have the metadata, and of what.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Metadata {
    /// Elements in a register of 32 bits.
    each: usize,
    /// The first lane of a quad that has some.
    first: usize,
}

impl Metadata {
    /// For elements of a kind, a depth of so many pieces, and an instruction's selector, if there are such.
    pub(crate) fn checked(kind: ElementKind, pieces: usize, selector: i64) -> Option<Self> {
        let each = kind.in_register();
        let lanes = if each > 2 { 2 * pieces } else { pieces };
        let selector = usize::try_from(selector).ok()?;
        ((selector + 1) * lanes <= 4).then_some(Self {
            each,
            first: selector * lanes,
        })
    }

    /// What [`expand`] takes as `imm` for a piece.
    pub(crate) fn pack(self, piece: usize) -> u64 {
        (self.each | self.first << 8 | piece << 16) as u64
    }

    /// Of a piece: the lane of a quad that has the metadata of its upper or lower row, and at which bit it begins.
    fn place(self, piece: usize, lower: bool) -> (usize, u32) {
        let lower = usize::from(lower);
        if self.each > 2 {
            (self.first + 2 * piece + lower, 0)
        } else {
            (self.first + piece, 16 * lower as u32)
        }
    }

    /// Where the stored element `index` of a row stands, by the row's metadata.
    fn column(self, metadata: u32, index: usize) -> usize {
        let two = |at: usize| (metadata >> (2 * at) & 3) as usize;
        match self.each {
            1 => 2 * index + (two(2 * index) >> 1),
            8 => 8 * (index / 4) + 2 * two(index / 2) + index % 2,
            _ => 4 * (index / 2) + two(index),
        }
    }
}

/// Spreads a piece of the left matrix: sources: a lane's two registers of what is stored, of rows `g` and `g + 8`, in 64
/// bits, and its metadata; four destinations, in the order of `mma`.
///
/// # Safety
/// None: any machine has it.
pub(crate) unsafe fn expand(cx: &mut Machine<'_>, op: &Op) -> Flow {
    if let Err(flow) = cx.members(op, Some(ALL)) {
        return flow;
    }
    let metadata = Metadata {
        each: (op.imm & 0xff) as usize,
        first: (op.imm >> 8 & 0xff) as usize,
    };
    let (each, piece) = (metadata.each, (op.imm >> 16 & 0xff) as usize);
    let bits = 32 / each;
    let mask = u32::MAX >> (32 - bits);
    for (base, lanes) in cx.warps() {
        let is_there = |lane: &usize| lanes >> lane & 1 != 0;
        // Lanes that a partial warp does not have hold zeroes.
        let words: [u32; LANES] = std::array::from_fn(|lane| match is_there(&lane) {
            true => cx.operand(op, 1, base + lane),
            false => 0,
        });
        let mut rows = [[0; DEEPEST]; ROWS];
        for lane in (0..LANES).filter(is_there) {
            let stored = cx.argument(op, 0, base + lane, 8);
            for lower in [false, true] {
                let row = lane / 4 + 8 * usize::from(lower);
                let register = (stored >> (32 * u32::from(lower))) as u32;
                let (of_quad, start) = metadata.place(piece, lower);
                let places = words[lane / 4 * 4 + of_quad % 4] >> start;
                for index in 0..each {
                    let column = metadata.column(places, lane % 4 * each + index);
                    rows[row][column % DEEPEST] = register >> (bits * index) & mask;
                }
            }
        }
        for lane in (0..LANES).filter(is_there) {
            for register in 0..4 {
                let row = &rows[lane / 4 + register % 2 * 8];
                let start = (register / 2 * 4 + lane % 4) * each;
                let elements = row[start..start + each].iter().enumerate();
                let value = elements.fold(0, |word, (at, element)| word | element << (bits * at));
                cx.set_if(op, register, base + lane, 4, value.into());
            }
        }
    }
    Flow::Next
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_are_as_many_as_lanes_of_a_quad_can_be_chosen() {
        let last = |kind, pieces| {
            let known = |&selector: &i64| Metadata::checked(kind, pieces, selector).is_some();
            (-1..5).filter(known).max()
        };
        assert_eq!(last(ElementKind::F16, 1), Some(3));
        assert_eq!(last(ElementKind::F16, 2), Some(1));
        assert_eq!(last(ElementKind::Tf32, 1), Some(3));
        assert_eq!(last(ElementKind::S8, 1), Some(1));
        assert_eq!(last(ElementKind::S4, 2), Some(0));
        assert_eq!(last(ElementKind::E4m3, 2), Some(0));
        assert!(Metadata::checked(ElementKind::F16, 1, -1).is_none());
    }

    #[test]
    fn elements_stand_where_metadata_says() {
        let of = |kind| Metadata::checked(kind, 1, 0).unwrap();
        // Two of four: the second and the last, then the first and the third.
        let places: Vec<usize> = (0..4)
            .map(|index| of(ElementKind::S8).column(0b1000_1101, index))
            .collect();
        assert_eq!(places, [1, 3, 4, 6]);
        // One of two: the first, then the second.
        let places: Vec<usize> = (0..2)
            .map(|index| of(ElementKind::Tf32).column(0b1110_0100, index))
            .collect();
        assert_eq!(places, [0, 3]);
        // Two pairs of four: the first and the third.
        let places: Vec<usize> = (0..4)
            .map(|index| of(ElementKind::U4).column(0b1000, index))
            .collect();
        assert_eq!(places, [0, 1, 4, 5]);
    }
}
