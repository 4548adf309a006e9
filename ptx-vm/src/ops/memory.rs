//! Loads and stores.
//!
//! Chosen by `lower::memory` and `lower::copies`. Reaches memory by `access` and `spaces` only, and must not know
//! windows or devices.

use super::pure::for_each_isa;
use crate::access::{Cell, copy_row_in, load_whole, store_whole};
use crate::isa::Isa;
use crate::limits::MAX_GROUP_LANES;
use crate::machine::{Flow, Machine, Op, OpFn};
use crate::regs::{Lane, STRIP};
use crate::spaces::{Access, StateSpace, Tested, shared_address, unpack};

/// A type in memory and the register type that it goes to or comes from.
pub(crate) trait Transfer {
    type Memory: Cell + Lane;
    type Register: Lane;

    fn load(value: Self::Memory) -> Self::Register;
    fn store(value: Self::Register) -> Self::Memory;

    /// Copies a strip's elements, which follow each other at `from`.
    ///
    /// # Safety
    /// As for [`copy_row_in`].
    unsafe fn copy_row_in(to: *mut u8, from: u64);
}

macro_rules! transfers {
    ($($name:ident: $memory:ident $register:ident;)*) => {$(
        struct $name;
        impl Transfer for $name {
            type Memory = $memory;
            type Register = $register;

            #[inline(always)]
            fn load(value: $memory) -> $register {
                value as $register
            }

            #[inline(always)]
            fn store(value: $register) -> $memory {
                value as $memory
            }

            #[inline(always)]
            unsafe fn copy_row_in(to: *mut u8, from: u64) {
                // SAFETY: the caller keeps that a strip of this type is tested at `from`, and fits at `to`.
                unsafe { copy_row_in::<{ STRIP * size_of::<$memory>() }>(to, from) };
            }
        }
    )*};
}
transfers! {
    U8U8: u8 u8; U8U16: u8 u16; U8U32: u8 u32; U8U64: u8 u64;
    S8U16: i8 u16; S8U32: i8 u32; S8U64: i8 u64;
    U16U16: u16 u16; U16U32: u16 u32; U16U64: u16 u64;
    S16U32: i16 u32; S16U64: i16 u64;
    U32U32: u32 u32; U32U64: u32 u64; S32U64: i32 u64;
    U64U64: u64 u64;
}

for_each_isa!(run_load, Transfer, load_table);
for_each_isa!(run_store, Transfer, store_table);
for_each_isa!(run_load_whole, Transfer, load_whole_table);
for_each_isa!(run_store_whole, Transfer, store_whole_table);

/// What is done, and how.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Which {
    Load,
    Store,
    /// All elements of a lane in one access.
    LoadWhole,
    StoreWhole,
}

/// The functions that move `bytes` of memory to or from registers of `register` bytes.
fn transfer(bytes: u8, signed: bool, register: u8, which: Which) -> Option<[OpFn; Isa::COUNT]> {
    fn of<T: Transfer>(which: Which) -> [OpFn; Isa::COUNT] {
        match which {
            Which::Load => load_table::table::<T>(),
            Which::Store => store_table::table::<T>(),
            Which::LoadWhole => load_whole_table::table::<T>(),
            Which::StoreWhole => store_whole_table::table::<T>(),
        }
    }
    Some(match (bytes, signed && register > bytes, register) {
        (1, _, 1) => of::<U8U8>(which),
        (1, false, 2) => of::<U8U16>(which),
        (1, false, 4) => of::<U8U32>(which),
        (1, false, 8) => of::<U8U64>(which),
        (1, true, 2) => of::<S8U16>(which),
        (1, true, 4) => of::<S8U32>(which),
        (1, true, 8) => of::<S8U64>(which),
        (2, _, 2) => of::<U16U16>(which),
        (2, false, 4) => of::<U16U32>(which),
        (2, false, 8) => of::<U16U64>(which),
        (2, true, 4) => of::<S16U32>(which),
        (2, true, 8) => of::<S16U64>(which),
        (4, _, 4) => of::<U32U32>(which),
        (4, false, 8) => of::<U32U64>(which),
        (4, true, 8) => of::<S32U64>(which),
        (8, _, 8) => of::<U64U64>(which),
        _ => return None,
    })
}

/// The load of `bytes`, extended to a register of `register` bytes; `whole` if a lane's elements are to be
/// read at once, which have [`WHOLE`](crate::access::WHOLE) bytes then at most.
pub(crate) fn load(
    bytes: u8,
    signed: bool,
    register: u8,
    whole: bool,
) -> Option<[OpFn; Isa::COUNT]> {
    let which = if whole { Which::LoadWhole } else { Which::Load };
    transfer(bytes, signed, register, which)
}

/// The store of the low `bytes` of a register of `register` bytes; `whole` as for loads.
pub(crate) fn store(bytes: u8, register: u8, whole: bool) -> Option<[OpFn; Isa::COUNT]> {
    let which = if whole {
        Which::StoreWhole
    } else {
        Which::Store
    };
    transfer(bytes, false, register, which)
}

#[inline(always)]
fn run_load<T: Transfer>(cx: &mut Machine<'_>, op: &Op) -> Flow {
    let access = unpack(op.imm);
    let element = size_of::<T::Memory>();
    if access.place == StateSpace::Shared && !op.varies(0) && !op.writes_varying(0) {
        // What one value of a tile for all lanes costs decides how fast tiled loops are.
        if let Some(host) = cx.one_shared(op, access, (element * access.count) as u64) {
            for (index, &offset) in op.d.iter().enumerate().take(access.count) {
                // SAFETY: `one_shared` tested all elements.
                let value = unsafe { T::Memory::load(host + (index * element) as u64) };
                cx.frame
                    .set_strip(offset as usize, 0, [T::load(value); STRIP]);
            }
            return Flow::Next;
        }
    }
    let size = element * access.count;
    // One result must not take the others' addresses away.
    let keeps_addresses = access.count == 1 || !op.d[..access.count].contains(&op.s[0]);
    if keeps_addresses && let Some((host, false)) = cx.each_shared(op, access, size as u64) {
        load_shared::<T>(cx, op, access, host);
        return Flow::Next;
    }
    let tested = match cx.addresses(op, access, element, false) {
        Ok(tested) => tested,
        Err(flow) => return flow,
    };
    // SAFETY: `addresses` tested every element of the access for each running lane, and gives lanes that
    // do not run the address of one that does.
    let read = |host: u64, index: usize| unsafe {
        T::load(T::Memory::load(host + (index * element) as u64))
    };
    if access.count == 1
        && cx.full
        && element == size_of::<T::Register>()
        && let (Tested::Row(host), true) = (tested, op.writes_varying(0))
    {
        cx.copy_row_in(op.d[0], host, element);
        return Flow::Next;
    }
    for index in 0..access.count {
        let target = cx.target(op, index);
        match tested {
            Tested::One(host) => {
                let value = [read(host, index); STRIP];
                for strip in target.low..target.high {
                    target.frame.set_strip(target.offset as usize, strip, value);
                }
            }
            Tested::Row(_) | Tested::Each => {
                for strip in target.low..target.high {
                    let mut values = [T::Register::default(); STRIP];
                    for (lane, value) in values.iter_mut().enumerate() {
                        *value = read(cx.tested(tested, strip * STRIP + lane, size), index);
                    }
                    target
                        .frame
                        .set_strip(target.offset as usize, strip, values);
                }
            }
        }
        if target.blend {
            cx.blend::<T::Register>(op.d[index]);
        }
    }
    Flow::Next
}

/// Loads from shared memory at `host`, where each lane has its own address of 32 bits, which
/// [`Machine::each_shared`] tested.
#[inline(always)]
fn load_shared<T: Transfer>(cx: &mut Machine<'_>, op: &Op, access: Access, host: u64) {
    let element = size_of::<T::Memory>();
    for index in 0..access.count {
        let host = host + (index * element) as u64;
        let target = cx.target(op, index);
        for strip in target.low..target.high {
            let addresses = cx.frame.strip::<u32>(op.s[0] as usize, strip);
            let places = addresses.map(|address| shared_address(address, access));
            let is = |step: usize| {
                let lanes = places.iter().enumerate();
                let differ = lanes.fold(0, |differ, (lane, &place)| {
                    differ | place ^ places[0].wrapping_add((lane * step) as u32)
                });
                differ == 0
            };
            // SAFETY: `each_shared` tested all elements of the access for each lane.
            let load = |place: u32| unsafe { T::Memory::load(host + u64::from(place)) };
            // Of a tile a strip of lanes often has one element, or a part of a row.
            if is(0) {
                let values = [T::load(load(places[0])); STRIP];
                target
                    .frame
                    .set_strip(target.offset as usize, strip, values);
            } else if element == size_of::<T::Register>() && is(element) {
                let bytes = STRIP * element;
                let to = target
                    .frame
                    .at(target.offset as usize + strip * bytes, bytes);
                let from = host + u64::from(places[0]);
                // SAFETY: `each_shared` tested the row, of which each lane reads its element; `at` has tested that the
                // slot has as many bytes.
                unsafe { T::copy_row_in(to, from) };
            } else {
                for (lane, place) in places.into_iter().enumerate() {
                    let (slot, lane) = (target.offset as usize, strip * STRIP + lane);
                    target.frame.set_lane(slot, lane, T::load(load(place)));
                }
            }
        }
        if target.blend {
            cx.blend::<T::Register>(op.d[index]);
        }
    }
}

#[inline(always)]
fn run_store<T: Transfer>(cx: &mut Machine<'_>, op: &Op) -> Flow {
    let access = unpack(op.imm);
    let element = size_of::<T::Memory>();
    let tested = match cx.addresses(op, access, element, true) {
        Ok(tested) => tested,
        Err(flow) => return flow,
    };
    let frame = cx.frame;
    let value = |lane: usize, index: usize| {
        let lane = if op.varies(1 + index) { lane } else { 0 };
        T::store(frame.lane::<T::Register>(op.s[1 + index] as usize, lane))
    };
    // SAFETY: `addresses` tested every element of the access for each running lane.
    let write = |host: u64, index: usize, value: T::Memory| unsafe {
        T::Memory::store(host + (index * element) as u64, value);
    };
    if access.count == 1
        && element == size_of::<T::Register>()
        && let (Tested::Row(host), true) = (tested, op.varies(1))
    {
        cx.copy_row_out(op.s[1], host, element);
        return Flow::Next;
    }
    for_each_place(cx, tested, element * access.count, |host, lane| {
        for index in 0..access.count {
            write(host, index, value(lane, index));
        }
    });
    Flow::Next
}

/// Has `write` write each place of a tested access of `size` bytes: where, and whose values.
#[inline(always)]
fn for_each_place(
    cx: &Machine<'_>,
    tested: Tested,
    size: usize,
    mut write: impl FnMut(u64, usize),
) {
    match tested {
        // All lanes write one place: which of them wins is open, so let it be one.
        Tested::One(host) => write(host, cx.mask.lowest().unwrap_or(0)),
        Tested::Row(_) => {
            for lane in cx.low * STRIP..cx.high * STRIP {
                write(cx.tested(tested, lane, size), lane);
            }
        }
        Tested::Each => {
            for lane in cx.mask.lanes() {
                write(cx.tested(tested, lane, size), lane);
            }
        }
    }
}

#[inline(always)]
fn run_load_whole<T: Transfer>(cx: &mut Machine<'_>, op: &Op) -> Flow {
    let access = unpack(op.imm);
    let element = size_of::<T::Memory>();
    let size = element * access.count;
    let tested = match cx.addresses(op, access, element, false) {
        Ok(tested) => tested,
        Err(flow) => return flow,
    };
    // SAFETY: `addresses` tested all of the access for each running lane, its alignment too, and gives lanes
    // that do not run the address of one that does.
    let read = |host: u64| unsafe { load_whole(host, size) };
    let mut wholes = [0; MAX_GROUP_LANES];
    if let Tested::One(host) = tested {
        wholes.fill(read(host));
    } else {
        let running = cx.low * STRIP..cx.high * STRIP;
        for (whole, lane) in wholes[running.clone()].iter_mut().zip(running) {
            *whole = read(cx.tested(tested, lane, size));
        }
    }
    for index in 0..access.count {
        let target = cx.target(op, index);
        for strip in target.low..target.high {
            let mut values = [T::Register::default(); STRIP];
            for (value, whole) in values.iter_mut().zip(&wholes[strip * STRIP..]) {
                *value = T::load(T::Memory::of_bits(whole >> (index * element * 8)));
            }
            target
                .frame
                .set_strip(target.offset as usize, strip, values);
        }
        if target.blend {
            cx.blend::<T::Register>(op.d[index]);
        }
    }
    Flow::Next
}

#[inline(always)]
fn run_store_whole<T: Transfer>(cx: &mut Machine<'_>, op: &Op) -> Flow {
    let access = unpack(op.imm);
    let element = size_of::<T::Memory>();
    let size = element * access.count;
    let tested = match cx.addresses(op, access, element, true) {
        Ok(tested) => tested,
        Err(flow) => return flow,
    };
    let frame = cx.frame;
    for_each_place(cx, tested, size, |host, lane| {
        let whole = (0..access.count).fold(0, |whole, index| {
            let lane = if op.varies(1 + index) { lane } else { 0 };
            let value = T::store(frame.lane::<T::Register>(op.s[1 + index] as usize, lane));
            whole | value.to_bits() << (index * element * 8)
        });
        // SAFETY: `addresses` tested all of the access for each running lane, its alignment too.
        unsafe { store_whole(host, size, whole) };
    });
    Flow::Next
}
