//! Bulk copies, plain ones and of tensors (`cp.async.bulk`, `cp.async.bulk.tensor`), which a GPU makes
//! meanwhile. Here they are made at once, as they may be, and then the barrier is told of the bytes.
//!
//! Chosen by `lower::bulk`. Must not know PTX's words, nor who else waits at the barrier.

use protocol::tensor_maps::{ALIGNMENT, BYTES, MOST_RANK};

use super::atomic::Atomic;
use super::mbarrier;
use crate::access;
use crate::fault::FaultKind;
use crate::machine::{Flow, Machine, Op};
use crate::spaces::StateSpace;
use crate::tensor_map::Tiled;

/// What addresses and sizes of plain bulk copies are multiples of, and what tensors are swizzled by.
const UNIT: u64 = 16;
/// What a box in shared memory is aligned to.
const BOX_ALIGNMENT: u64 = 128;

impl Machine<'_> {
    /// The host address of bytes for one lane, aligned as said.
    fn reach(
        &mut self,
        lane: usize,
        (address, place): (u64, StateSpace),
        bytes: u64,
        (align, write): (u64, bool),
    ) -> Result<u64, Flow> {
        if address & (align - 1) != 0 {
            return Err(self.fault(FaultKind::MisalignedAddress, address, lane));
        }
        self.host(address, place, bytes, write)
            .map_err(|()| self.fault(FaultKind::IllegalAddress, address, lane))
    }

    /// Both ends of a plain copy: sources 0 to 2 are where to and from, as generic addresses, and bytes.
    fn ends(&mut self, op: &Op, lane: usize) -> Result<(u64, u64, u64), Flow> {
        let [to, from] = [0, 1].map(|source| self.argument(op, source, lane, 8));
        let bytes = self.argument(op, 2, lane, 4);
        if !bytes.is_multiple_of(UNIT) {
            return Err(self.fault(FaultKind::IllegalInstruction, to, lane));
        }
        let from = self.reach(lane, (from, StateSpace::Generic), bytes, (UNIT, false))?;
        let to = self.reach(lane, (to, StateSpace::Generic), bytes, (UNIT, true))?;
        Ok((to, from, bytes))
    }

    /// Tells the barrier at a generic address, if it is one, that bytes have come.
    fn tell(&mut self, lane: usize, barrier: (u64, StateSpace), bytes: u64) -> Result<(), Flow> {
        let host = self.reach(lane, barrier, 8, (8, true))?;
        // SAFETY: `reach` tested the 8 bytes, for writing, and their alignment.
        unsafe { mbarrier::bytes_came(host, bytes) };
        Ok(())
    }
}

/// For each lane: source 3 is 0 or the generic address of the barrier that is told.
fn each(cx: &mut Machine<'_>, op: &Op, mut copy: impl FnMut(u64, u64, u64)) -> Result<(), Flow> {
    for lane in cx.mask.lanes() {
        let (to, from, bytes) = cx.ends(op, lane)?;
        copy(to, from, bytes);
        let barrier = cx.argument(op, 3, lane, 8);
        if barrier != 0 {
            cx.tell(lane, (barrier, StateSpace::Generic), bytes)?;
        }
    }
    Ok(())
}

/// `cp.async.bulk`: sources: where to and where from, as generic addresses, bytes (32 bits), and the
/// barrier's generic address or 0.
///
/// # Safety
/// None: any machine has it; so for all functions below.
pub(crate) unsafe fn copy(cx: &mut Machine<'_>, op: &Op) -> Flow {
    let copied = each(cx, op, |to, from, bytes| {
        // SAFETY: `ends` tested both ranges.
        unsafe { access::copy(to, from, bytes as usize) };
    });
    copied.err().unwrap_or(Flow::Next)
}

/// `cp.reduce.async.bulk`: sources as for [`copy`]; each element is atomic by itself.
///
/// # Safety
/// None.
pub(crate) unsafe fn reduce<A: Atomic>(cx: &mut Machine<'_>, op: &Op) -> Flow {
    use access::Cell;
    let size = size_of::<A::Value>() as u64;
    let reduced = each(cx, op, |to, from, bytes| {
        for at in (0..bytes).step_by(size as usize) {
            // SAFETY: `ends` tested both ranges, which are aligned to more than an element.
            unsafe {
                let value = A::Value::load(from + at);
                A::Value::update(to + at, |old| Some(A::apply(old, value, value)));
            }
        }
    });
    reduced.err().unwrap_or(Flow::Next)
}

/// Where a box comes from and goes to.
#[derive(Clone, Copy, Eq, PartialEq)]
enum Direction {
    Load,
    Store,
}

/// One lane's copy of a box.
struct Copy {
    map: Tiled,
    /// Where the box is in shared memory.
    shared: u64,
    /// The box's first element in the tensor.
    start: [i64; MOST_RANK],
}

/// A row of a box that lies within the tensor, at least in part.
struct Row {
    /// Where its part in the tensor is in global memory.
    address: u64,
    /// Where that is in the box, in bytes.
    at: usize,
    bytes: usize,
}

impl Copy {
    /// Sources: the box and the barrier in shared memory, of 32 bits each in one of 64, the descriptor's
    /// generic address, and in three of 64 bits five coordinates and how many of them count.
    fn of(cx: &mut Machine<'_>, op: &Op, lane: usize, way: Direction) -> Result<Self, Flow> {
        let map = cx.argument(op, 1, lane, 8);
        if !map.is_multiple_of(ALIGNMENT as u64) {
            return Err(cx.fault(FaultKind::MisalignedAddress, map, lane));
        }
        let mut bytes = [0; BYTES];
        if cx.read_bytes(lane, map, &mut bytes).is_none() {
            return Err(cx.fault(FaultKind::IllegalAddress, map, lane));
        }
        let last = cx.argument(op, 4, lane, 8);
        let Some(tiled) = Tiled::decode(&bytes).filter(|map| map.rank as u64 == last >> 32) else {
            return Err(cx.fault(FaultKind::IllegalInstruction, map, lane));
        };
        let shared = cx.argument(op, 0, lane, 8) & 0xffff_ffff;
        cx.reach(
            lane,
            (shared, StateSpace::Shared),
            tiled.bytes(),
            (BOX_ALIGNMENT, true),
        )?;
        let pairs = [2, 3].map(|source| cx.argument(op, source, lane, 8));
        let coordinate = |value: u64| i64::from(value as u32 as i32);
        let [a, b] = pairs.map(|pair| [pair, pair >> 32].map(coordinate));
        let start = [a[0], a[1], b[0], b[1], coordinate(last)];
        // A GPU copies units, and what it loads may begin before the tensor, but not what it stores.
        let crooked = start[0] * tiled.element as i64 % UNIT as i64 != 0;
        let before = start[..tiled.rank].iter().any(|&at| at < 0);
        if crooked || (before && way == Direction::Store) {
            return Err(cx.fault(FaultKind::IllegalInstruction, map, lane));
        }
        Ok(Self {
            map: tiled,
            shared,
            start,
        })
    }

    /// The rows of the box that the tensor has something of.
    fn rows(&self) -> impl Iterator<Item = Row> {
        let Tiled { dims, counts, .. } = self.map;
        let pitch = (counts[0] * self.map.element) as usize;
        let count: u64 = counts[1..].iter().product();
        // What of a row is within the tensor is the same for all rows.
        let first = (-self.start[0]).clamp(0, counts[0] as i64);
        let end = (dims[0] as i64 - self.start[0]).clamp(first, counts[0] as i64);
        let bytes = (end - first) as usize * self.map.element as usize;
        (0..count).filter_map(move |row| {
            let inner = (self.start[0] + first) as u64;
            let mut address = self
                .map
                .address
                .wrapping_add(inner.wrapping_mul(self.map.element));
            let mut rest = row;
            for dim in 1..MOST_RANK {
                let index = (rest % counts[dim] * self.map.steps[dim]) as i64 + self.start[dim];
                rest /= counts[dim];
                let index = u64::try_from(index)
                    .ok()
                    .filter(|&index| index < dims[dim])?;
                address = address.wrapping_add(index.wrapping_mul(self.map.strides[dim]));
            }
            (bytes != 0).then_some(Row {
                address,
                at: row as usize * pitch + first as usize * self.map.element as usize,
                bytes,
            })
        })
    }

    /// Calls `f` with each unit's place in the box and its host address in shared memory.
    fn units(
        &self,
        cx: &mut Machine<'_>,
        lane: usize,
        mut f: impl FnMut(std::ops::Range<usize>, u64),
    ) -> Result<(), Flow> {
        let bytes = self.map.bytes();
        for at in (0..bytes).step_by(UNIT as usize) {
            let plain = self.shared + at;
            let place = plain ^ (plain >> 7 & self.map.swizzle) << 4;
            let len = UNIT.min(bytes - at);
            let host = cx.reach(lane, (place, StateSpace::Shared), len, (UNIT, true))?;
            f(at as usize..(at + len) as usize, host);
        }
        Ok(())
    }
}

fn load_box(cx: &mut Machine<'_>, op: &Op, lane: usize) -> Result<(), Flow> {
    let copy = Copy::of(cx, op, lane, Direction::Load)?;
    let element = copy.map.element as usize;
    let fill = copy.map.fill.to_le_bytes();
    // It fits into a block's shared memory.
    let mut tile: Vec<u8> = fill[..element]
        .iter()
        .copied()
        .cycle()
        .take(copy.map.bytes() as usize)
        .collect();
    for row in copy.rows() {
        let from = (row.address, StateSpace::Global);
        let host = cx.reach(lane, from, row.bytes as u64, (copy.map.element, false))?;
        let into = &mut tile[row.at..row.at + row.bytes];
        // SAFETY: `reach` tested the row; the slice is ours.
        unsafe { access::copy_in(into.as_mut_ptr(), host, into.len()) };
    }
    copy.units(cx, lane, |part, host| {
        let part = &tile[part];
        // SAFETY: `units` tested the place; the slice is ours.
        unsafe { access::copy_out(host, part.as_ptr(), part.len()) };
    })?;
    let barrier = cx.argument(op, 0, lane, 8) >> 32;
    cx.tell(lane, (barrier, StateSpace::Shared), copy.map.bytes())
}

fn store_box(cx: &mut Machine<'_>, op: &Op, lane: usize) -> Result<(), Flow> {
    let copy = Copy::of(cx, op, lane, Direction::Store)?;
    let mut tile = vec![0; copy.map.bytes() as usize];
    copy.units(cx, lane, |part, host| {
        let part = &mut tile[part];
        // SAFETY: `units` tested the place; the slice is ours.
        unsafe { access::copy_in(part.as_mut_ptr(), host, part.len()) };
    })?;
    for row in copy.rows() {
        let to = (row.address, StateSpace::Global);
        let host = cx.reach(lane, to, row.bytes as u64, (copy.map.element, true))?;
        let from = &tile[row.at..row.at + row.bytes];
        // SAFETY: `reach` tested the row, for writing; the slice is ours.
        unsafe { access::copy_out(host, from.as_ptr(), from.len()) };
    }
    Ok(())
}

fn boxes(
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

/// A box of a tensor to shared memory: sources as in [`Copy::of`].
///
/// # Safety
/// None.
pub(crate) unsafe fn load_tensor(cx: &mut Machine<'_>, op: &Op) -> Flow {
    boxes(cx, op, load_box)
}

/// A box of a tensor from shared memory: sources as in [`Copy::of`], without a barrier.
///
/// # Safety
/// None.
pub(crate) unsafe fn store_tensor(cx: &mut Machine<'_>, op: &Op) -> Flow {
    boxes(cx, op, store_box)
}
