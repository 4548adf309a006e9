//! Copies of parts of tensors (`cp.async.bulk.tensor`), and what changes their descriptors. A GPU makes the copies
//! meanwhile; here they are made at once, as they may be, and then the barrier is told of the bytes.
//!
//! Chosen by `lower::tensor`. Must not know PTX's words, nor who else waits at the barrier.

use cuda_abi::types::CUtensorMapDataType;
use protocol::tensor_maps::{ALIGNMENT, BYTES, MOST_RANK};
use ptx::ast::Type;

use super::atomic;
use super::bulk::{UNIT, multicast};
use crate::access;
use crate::fault::FaultKind;
use crate::machine::{Flow, Machine, Op};
use crate::spaces::StateSpace;
use crate::tensor_map::{Field, Region, Swizzle, TensorMap, replace_field};

/// What a box in shared memory is aligned to.
const BOX_ALIGNMENT: u64 = 128;

/// How an instruction takes part of a tensor, as `imm` holds it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Form {
    /// How many coordinates it names.
    pub(crate) rank: usize,
    /// What the descriptor is to be of.
    pub(crate) mode: Mode,
    /// It takes four rows of a tensor of two dimensions, each by its coordinate: gathers or scatters them.
    pub(crate) four_rows: bool,
    /// Which of [`REDUCTIONS`] it makes, if it reduces.
    pub(crate) reduction: Option<usize>,
}

/// What an instruction takes a tensor's part as; the descriptor says the same.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub(crate) enum Mode {
    Box,
    /// Columns of pixels: im2col.
    Columns,
    /// Columns of pixels along the width: im2col::w.
    Wide,
    /// The same of 128 pixels: im2col::w::128.
    Wide128,
}

impl Mode {
    const ALL: [Self; 4] = [Self::Box, Self::Columns, Self::Wide, Self::Wide128];

    /// Bits of each of the numbers that an instruction gives beside the coordinates, in the order in which they stand:
    /// offsets of columns, of which wide ones have one, after how many pixels more they take (the halo).
    pub(crate) fn offset_bits(self, rank: usize) -> &'static [u32] {
        match (self, rank) {
            (Self::Box, _) => &[],
            (Self::Columns, 4) => &[8, 8],
            (Self::Columns, 5) => &[5, 5, 5],
            (Self::Columns, _) => &[16],
            (Self::Wide | Self::Wide128, _) => &[9, 7],
        }
    }
}

/// What a tensor may be reduced by.
pub(crate) const REDUCTIONS: [&str; 8] = ["add", "min", "max", "inc", "dec", "and", "or", "xor"];

impl Form {
    pub(crate) fn pack(self) -> u64 {
        let reduction = self.reduction.map_or(0, |index| index as u64 + 1);
        let flags = self.mode as u64 | u64::from(self.four_rows) << 2;
        self.rank as u64 | flags << 8 | reduction << 16
    }

    fn unpack(imm: u64) -> Self {
        Self {
            rank: (imm & 0xff) as usize,
            mode: Mode::ALL[(imm >> 8 & 3) as usize],
            four_rows: imm >> 10 & 1 != 0,
            reduction: ((imm >> 16 & 0xff) as usize).checked_sub(1),
        }
    }

    /// The pixels of a halo, and offsets in width, height and depth, that an instruction gives for columns, from the 16
    /// bits that they share.
    fn halo_and_offsets(self, bits: u64) -> (u64, [i64; MOST_RANK - 2]) {
        let mut parts = [0; MOST_RANK - 2];
        let mut at = 0;
        for (part, width) in parts.iter_mut().zip(self.mode.offset_bits(self.rank)) {
            *part = (bits >> at & ((1 << width) - 1)) as i64;
            at += width;
        }
        match self.mode {
            Mode::Wide | Mode::Wide128 => (parts[0] as u64, [parts[1], 0, 0]),
            Mode::Box | Mode::Columns => (0, parts),
        }
    }
}

/// Where a part comes from and goes to.
#[derive(Clone, Copy, Eq, PartialEq)]
enum Direction {
    Load,
    Store,
}

/// One lane's copy of a part of a tensor.
struct Copy {
    map: TensorMap,
    form: Form,
    /// Where it is in shared memory.
    shared: u64,
    /// The barrier that is told.
    barrier: u64,
    /// Ranks of the blocks that get it; 0 if it is not multicast.
    ranks: u64,
    /// Its first element in the tensor; where it takes four rows, the place in them and their numbers.
    start: [i64; MOST_RANK],
    /// What is added to the pixels' places.
    offsets: [i64; MOST_RANK - 2],
    /// Pixels that follow each run of a column.
    halo: u64,
}

/// A row in shared memory that lies within the tensor, at least in part.
struct Row {
    /// Where its part in the tensor is in global memory.
    address: u64,
    /// Where that is in what is copied, in bytes.
    at: usize,
    bytes: usize,
}

/// The descriptor at a generic address.
fn descriptor(cx: &mut Machine<'_>, lane: usize, map: u64) -> Result<[u8; BYTES], Flow> {
    if !map.is_multiple_of(ALIGNMENT as u64) {
        return Err(cx.fault(FaultKind::MisalignedAddress, map, lane));
    }
    let mut bytes = [0; BYTES];
    if cx.read_bytes(lane, map, &mut bytes).is_none() {
        return Err(cx.fault(FaultKind::IllegalAddress, map, lane));
    }
    Ok(bytes)
}

impl Copy {
    /// Sources: the place and the barrier in shared memory, of 32 bits each in one of 64, the descriptor's
    /// generic address, and in three of 64 bits five coordinates, the ranks that get it (16 bits), and the
    /// offsets of columns (16 bits).
    fn of(cx: &mut Machine<'_>, op: &Op, lane: usize, way: Direction) -> Result<Self, Flow> {
        let form = Form::unpack(op.imm);
        let address = cx.argument(op, 1, lane, 8);
        let bytes = descriptor(cx, lane, address)?;
        let map = TensorMap::decode(&bytes).filter(|map| {
            // Each of four rows is a box.
            let is_row = || map.extent().1 == 1;
            map.rank == form.rank && form.mode == map.region.mode() && (!form.four_rows || is_row())
        });
        let Some(map) = map else {
            return Err(cx.fault(FaultKind::IllegalInstruction, address, lane));
        };
        let places = cx.argument(op, 0, lane, 8);
        let (shared, barrier) = (places & 0xffff_ffff, places >> 32);
        let last = cx.argument(op, 4, lane, 8);
        let pairs = [2, 3].map(|source| cx.argument(op, source, lane, 8));
        let coordinate = |value: u64| i64::from(value as u32 as i32);
        let [a, b] = pairs.map(|pair| [pair, pair >> 32].map(coordinate));
        let start = [a[0], a[1], b[0], b[1], coordinate(last)];
        // A GPU copies units, and what it loads may begin before the tensor, but not what it stores.
        let crooked = start[0] * map.element as i64 % UNIT as i64 != 0;
        let named = if form.four_rows { MOST_RANK } else { map.rank };
        let before = start[..named].iter().any(|&at| at < 0);
        if crooked || (before && way == Direction::Store && form.mode == Mode::Box) {
            return Err(cx.fault(FaultKind::IllegalInstruction, address, lane));
        }
        let (halo, offsets) = form.halo_and_offsets(last >> 48);
        let copy = Self {
            map,
            form,
            shared,
            barrier,
            ranks: last >> 32 & 0xffff,
            start,
            offsets,
            halo,
        };
        for place in multicast(shared, copy.ranks) {
            let place = (place, StateSpace::Shared);
            cx.reach(lane, place, copy.bytes(), (BOX_ALIGNMENT, true))?;
        }
        Ok(copy)
    }

    /// Bytes in shared memory.
    fn bytes(&self) -> u64 {
        let halos = match self.map.region {
            Region::Columns { pixels, run, .. } => pixels.div_ceil(run.max(1)) * self.halo,
            Region::Box(_) => 0,
        };
        let (columns, rows) = self.map.extent();
        let rows = (rows + halos) * if self.form.four_rows { 4 } else { 1 };
        // At most 256 elements of 8 bytes in each dimension, or 2^32 of them: less than 2^44.
        columns * rows * self.map.element
    }

    /// The rows that the tensor has something of.
    fn rows(&self) -> Vec<Row> {
        let TensorMap { dims, element, .. } = self.map;
        let (columns, count) = self.map.extent();
        let pitch = (columns * element) as usize;
        // What of a row is within the tensor is the same for all rows.
        let first = (-self.start[0]).clamp(0, columns as i64);
        let end = (dims[0] as i64 - self.start[0]).clamp(first, columns as i64);
        let bytes = (end - first) as usize * element as usize;
        if bytes == 0 {
            return Vec::new();
        }
        let inner = (self.start[0] + first) as u64;
        let base = self.map.address.wrapping_add(inner.wrapping_mul(element));
        let row = |index: u64, place: [i64; MOST_RANK]| {
            let mut address = base;
            for dim in 1..MOST_RANK {
                let at = u64::try_from(place[dim])
                    .ok()
                    .filter(|&at| at < dims[dim])?;
                address = address.wrapping_add(at.wrapping_mul(self.map.strides[dim]));
            }
            Some(Row {
                address,
                at: index as usize * pitch + first as usize * element as usize,
                bytes,
            })
        };
        let mut place = self.start;
        let mut rows = Vec::new();
        if self.form.four_rows {
            for (index, &number) in (0..).zip(&self.start[1..]) {
                let place = [self.start[0], number, 0, 0, 0];
                rows.extend(row(index, place));
            }
            return rows;
        }
        match self.map.region {
            Region::Box(counts) => {
                for index in 0..count {
                    let mut rest = index;
                    for dim in 1..MOST_RANK {
                        let step = rest % counts[dim] * self.map.steps[dim];
                        place[dim] = self.start[dim] + step as i64;
                        rest /= counts[dim];
                    }
                    rows.extend(row(index, place));
                }
            }
            Region::Columns {
                lower,
                upper,
                moves,
                run,
                ..
            } => {
                // The last dimension counts images.
                let images = self.map.rank - 1;
                let run = run.max(1);
                for index in 0..count + self.halo {
                    let mut moved = place;
                    for axis in 0..images - 1 {
                        moved[axis + 1] += self.offsets[axis];
                    }
                    // The pixels that follow a run are a part of it too.
                    for (number, first) in (0..).zip((0..count).step_by(run as usize)) {
                        if (first..(first + run).min(count) + self.halo).contains(&index) {
                            rows.extend(row(index + number * self.halo, moved));
                        }
                    }
                    let mut dim = 1;
                    while dim < images.min(moves + 1) {
                        let last = dims[dim] as i64 - 1 + upper[dim - 1];
                        place[dim] += self.map.steps[dim] as i64;
                        if place[dim] <= last {
                            break;
                        }
                        place[dim] = lower[dim - 1];
                        dim += 1;
                    }
                    if dim == images.min(moves + 1) {
                        place[images] += 1;
                    }
                }
            }
        }
        rows
    }

    /// Calls `f` with each unit's place in what is copied and its host address in shared memory.
    fn units(
        &self,
        cx: &mut Machine<'_>,
        lane: usize,
        shared: u64,
        mut f: impl FnMut(std::ops::Range<usize>, u64),
    ) -> Result<(), Flow> {
        let bytes = self.bytes();
        for at in (0..bytes).step_by(UNIT as usize) {
            let plain = shared + at;
            let Swizzle { lines, atom } = self.map.swizzle;
            let place = plain ^ (plain >> 7 & lines) << atom;
            let len = UNIT.min(bytes - at);
            let host = cx.reach(lane, (place, StateSpace::Shared), len, (UNIT, true))?;
            f(at as usize..(at + len) as usize, host);
        }
        Ok(())
    }
}

fn load_part(cx: &mut Machine<'_>, op: &Op, lane: usize) -> Result<(), Flow> {
    let copy = Copy::of(cx, op, lane, Direction::Load)?;
    let element = copy.map.element as usize;
    let fill = copy.map.fill.to_le_bytes();
    // It fits into a block's shared memory.
    let mut tile: Vec<u8> = fill[..element]
        .iter()
        .copied()
        .cycle()
        .take(copy.bytes() as usize)
        .collect();
    for row in copy.rows() {
        let from = (row.address, StateSpace::Global);
        let host = cx.reach(lane, from, row.bytes as u64, (copy.map.element, false))?;
        let into = &mut tile[row.at..row.at + row.bytes];
        // SAFETY: `reach` tested the row; the slice is ours.
        unsafe { access::copy_in(into.as_mut_ptr(), host, into.len()) };
    }
    let barriers = multicast(copy.barrier, copy.ranks);
    for (shared, barrier) in multicast(copy.shared, copy.ranks).zip(barriers) {
        copy.units(cx, lane, shared, |part, host| {
            let part = &tile[part];
            // SAFETY: `units` tested the place; the slice is ours.
            unsafe { access::copy_out(host, part.as_ptr(), part.len()) };
        })?;
        cx.tell(lane, (barrier, StateSpace::Shared), copy.bytes())?;
    }
    Ok(())
}

fn store_part(cx: &mut Machine<'_>, op: &Op, lane: usize) -> Result<(), Flow> {
    let copy = Copy::of(cx, op, lane, Direction::Store)?;
    let combine = match copy.form.reduction {
        None => None,
        Some(index) => {
            let name = REDUCTIONS[index % REDUCTIONS.len()];
            let found = element_type(copy.map.data_type)
                .and_then(|ty| atomic::find(name, ty))
                .filter(|found| found.operands == 1);
            let Some(found) = found else {
                let address = cx.argument(op, 1, lane, 8);
                return Err(cx.fault(FaultKind::IllegalInstruction, address, lane));
            };
            Some(found.combine)
        }
    };
    // Words, so that elements of it are aligned.
    let mut tile = vec![0_u64; (copy.bytes() as usize).div_ceil(8)];
    let bytes = tile.as_mut_ptr().cast::<u8>();
    copy.units(cx, lane, copy.shared, |part, host| {
        // SAFETY: `units` tested the place; the part is within the tile, which is as long as all units.
        unsafe { access::copy_in(bytes.add(part.start), host, part.len()) };
    })?;
    for row in copy.rows() {
        let to = (row.address, StateSpace::Global);
        let host = cx.reach(lane, to, row.bytes as u64, (copy.map.element, true))?;
        // SAFETY: the row is within the tile.
        let from = unsafe { bytes.add(row.at) };
        match combine {
            // SAFETY: `reach` tested the row, for writing; the tile is ours.
            None => unsafe { access::copy_out(host, from, row.bytes) },
            // SAFETY: `reach` tested the row, for writing, and that it is aligned to an element; the tile is ours, and rows of it
            // begin at multiples of an element.
            Some(combine) => unsafe { combine(host, from as u64, row.bytes as u64) },
        }
    }
    Ok(())
}

/// What arithmetic on elements of a tensor is; `None` where there is none.
fn element_type(data_type: CUtensorMapDataType) -> Option<Type> {
    Some(match data_type {
        CUtensorMapDataType::UINT32 => Type::U32,
        CUtensorMapDataType::INT32 => Type::S32,
        CUtensorMapDataType::UINT64 => Type::U64,
        CUtensorMapDataType::INT64 => Type::S64,
        CUtensorMapDataType::FLOAT16 => Type::F16,
        CUtensorMapDataType::BFLOAT16 => Type::Bf16,
        CUtensorMapDataType::FLOAT32 | CUtensorMapDataType::FLOAT32_FTZ => Type::F32,
        CUtensorMapDataType::FLOAT64 => Type::F64,
        _ => return None,
    })
}

fn each_lane(
    cx: &mut Machine<'_>,
    op: &Op,
    copy: fn(&mut Machine<'_>, &Op, usize) -> Result<(), Flow>,
) -> Flow {
    for lane in cx.mask.lanes() {
        if let Err(flow) = copy(cx, op, lane) {
            return flow;
        }
    }
    Flow::Next
}

/// A part of a tensor to shared memory: sources as in [`Copy::of`].
///
/// # Safety
/// None: any machine has it; so for all functions below.
pub(crate) unsafe fn load(cx: &mut Machine<'_>, op: &Op) -> Flow {
    each_lane(cx, op, load_part)
}

/// A part of a tensor from shared memory, or reduced by what is there: sources as in [`Copy::of`], without a barrier.
///
/// # Safety
/// None.
pub(crate) unsafe fn store(cx: &mut Machine<'_>, op: &Op) -> Flow {
    each_lane(cx, op, store_part)
}

/// `tensormap.replace`: sources: the descriptor's generic address, the new value (64 bits), which one of several (32
/// bits); `imm` numbers the field.
///
/// # Safety
/// None.
pub(crate) unsafe fn replace(cx: &mut Machine<'_>, op: &Op) -> Flow {
    each_lane(cx, op, |cx, op, lane| {
        let [address, value] = [0, 1].map(|source| cx.argument(op, source, lane, 8));
        let ordinal = cx.argument(op, 2, lane, 4);
        let mut map = descriptor(cx, lane, address)?;
        if replace_field(&mut map, Field::numbered(op.imm), ordinal, value).is_none() {
            return Err(cx.fault(FaultKind::IllegalInstruction, address, lane));
        }
        match cx.write_bytes(lane, address, &map) {
            Some(()) => Ok(()),
            None => Err(cx.fault(FaultKind::IllegalAddress, address, lane)),
        }
    })
}

/// `tensormap.cp_fenceproxy`: a descriptor to another place: sources are the generic addresses of both.
///
/// # Safety
/// None.
pub(crate) unsafe fn copy_descriptor(cx: &mut Machine<'_>, op: &Op) -> Flow {
    each_lane(cx, op, |cx, op, lane| {
        let [to, from] = [0, 1].map(|source| cx.argument(op, source, lane, 8));
        let map = descriptor(cx, lane, from)?;
        cx.reach(
            lane,
            (to, StateSpace::Generic),
            BYTES as u64,
            (ALIGNMENT as u64, true),
        )?;
        match cx.write_bytes(lane, to, &map) {
            Some(()) => Ok(()),
            None => Err(cx.fault(FaultKind::IllegalAddress, to, lane)),
        }
    })
}
