//! Matrices of bytes that a warp loads and stores together: `ldmatrix` and `stmatrix` of `.b8`, and of elements of four and
//! six bits that become bytes on their way.
//!
//! Turned ones are exchanged as pairs of bytes are: of two neighbouring registers' elements a lane has two of four rows, in
//! two columns that are eight apart.
//!
//! Chosen by `lower::matrix`. Must not know products of what is loaded.

use super::matrix::{LANES, ROW};
use super::warp::ALL;
use crate::access;
use crate::machine::{Flow, Machine, Op};

/// How many bits of a row's bytes each element has; a row is 16 elements, the rest is not read.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub(crate) enum Packing {
    Bytes = 8,
    Six = 6,
    Four = 4,
}

impl Packing {
    /// What the words `.b8x16.b6x16_p32` name.
    pub(crate) fn named(words: &[&str]) -> Option<Self> {
        match words {
            ["b8"] => Some(Self::Bytes),
            ["b8x16", "b6x16_p32"] => Some(Self::Six),
            ["b8x16", "b4x16_p64"] => Some(Self::Four),
            _ => None,
        }
    }
}

/// What a load takes, as `imm` holds it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Form {
    /// How many matrices.
    pub(crate) count: usize,
    /// They are of 16 rows, and turned; else of 8 rows.
    pub(crate) turned: bool,
    pub(crate) packing: Packing,
}

impl Form {
    pub(crate) fn pack(self) -> u64 {
        self.count as u64 | u64::from(self.turned) << 8 | (self.packing as u64) << 16
    }

    fn unpack(imm: u64) -> Self {
        Self {
            count: (imm & 0xff) as usize,
            turned: imm >> 8 & 1 != 0,
            packing: match imm >> 16 {
                4 => Packing::Four,
                6 => Packing::Six,
                _ => Packing::Bytes,
            },
        }
    }

    /// Registers of a matrix in each lane, which are also its rows in eights.
    pub(crate) fn registers(self) -> usize {
        if self.turned { 2 } else { 1 }
    }
}

/// Where a byte of a lane's register stands in a turned matrix, of so many registers a lane: row and column.
fn turned(lane: usize, registers: usize, register: usize, byte: usize) -> (usize, usize) {
    let row = 2 * registers * (lane % 4) + 2 * register + byte % 2;
    (row, lane / 4 + byte / 2 * 8)
}

/// `ldmatrix`: source: the address in shared memory, of 64 bits; as many destinations as the form has registers.
///
/// # Safety
/// None: any machine has it; so for all functions below.
pub(crate) unsafe fn load(cx: &mut Machine<'_>, op: &Op) -> Flow {
    if let Err(flow) = cx.members(op, Some(ALL)) {
        return flow;
    }
    let form = Form::unpack(op.imm);
    let registers = form.registers();
    let (bits, mask) = (form.packing as u32, (1_u128 << form.packing as u32) - 1);
    for (base, lanes) in cx.warps() {
        let rows = match cx.rows(op, (base, lanes), form.count * registers, false) {
            Ok(rows) => rows,
            Err(flow) => return flow,
        };
        let rows = rows.map(|host| {
            let mut row = [0; ROW as usize];
            if let Some(host) = host {
                // SAFETY: `rows` tested all of the row; the array is ours.
                unsafe { access::copy_in(row.as_mut_ptr(), host, row.len()) };
            }
            u128::from_le_bytes(row)
        });
        for matrix in 0..form.count {
            for register in 0..registers {
                for lane in (0..LANES).filter(|lane| lanes >> lane & 1 != 0) {
                    let mut value = 0;
                    for byte in 0..4 {
                        let (row, column) = match form.turned {
                            true => turned(lane, registers, register, byte),
                            false => (lane / 4, lane % 4 * 4 + byte),
                        };
                        let row = rows[8 * registers * matrix + row];
                        let element = row >> (bits * column as u32) & mask;
                        value |= (element as u64) << (8 * byte);
                    }
                    cx.set_if(op, registers * matrix + register, base + lane, 4, value);
                }
            }
        }
    }
    Flow::Next
}

/// `stmatrix`, of matrices of 16 rows and 8 columns that are turned: sources: the address as for [`load`], and as many
/// values as matrices, which `imm` counts.
///
/// # Safety
/// None.
pub(crate) unsafe fn store(cx: &mut Machine<'_>, op: &Op) -> Flow {
    if let Err(flow) = cx.members(op, Some(ALL)) {
        return flow;
    }
    let count = (op.imm & 0xff) as usize;
    for (base, lanes) in cx.warps() {
        let rows = match cx.rows(op, (base, lanes), count, true) {
            Ok(rows) => rows,
            Err(flow) => return flow,
        };
        for matrix in 0..count {
            for lane in (0..LANES).filter(|lane| lanes >> lane & 1 != 0) {
                let value = cx.operand(op, 1 + matrix, base + lane).to_le_bytes();
                for (byte, value) in value.iter().enumerate() {
                    let (row, column) = turned(lane, 1, 0, byte);
                    if let Some(host) = rows[8 * matrix + row] {
                        // SAFETY: `rows` tested all of the row, for writing; the byte is ours.
                        unsafe { access::copy_out(host + column as u64, value, 1) };
                    }
                }
            }
        }
    }
    Flow::Next
}
