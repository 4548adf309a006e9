//! Calls of CUDA's device runtime, lane by lane: arguments are read from the caller's local frame, and the engine
//! carries the call out. The threads' last errors are kept here.
//!
//! Chosen by `lower::device_runtime`. Must not know grids or streams: it speaks to the trait `DeviceRuntime`.

use crate::device_runtime::{DeviceCall, DeviceFunction, MOST_ARGUMENTS, Reply, numbered};
use crate::fault::FaultKind;
use crate::machine::{Event, Flow, Machine, Op};
use crate::spaces::LOCAL_BASE;

/// cudaErrorNotSupported: a grid that was made without a device runtime.
const NOT_SUPPORTED: u32 = 801;
/// cudaErrorLaunchPendingCountExceeded
const TOO_MANY_PENDING: u32 = 69;
/// What a call costs of the budget.
const CALL: i64 = 64;
/// What a launch costs.
const LAUNCH: i64 = 512;

impl Machine<'_> {
    fn last_error(&self, lane: usize) -> u32 {
        self.errors.lane::<u32>(0, lane)
    }

    fn set_last_error(&mut self, lane: usize, error: u32) {
        self.errors.set_lane(0, lane, error);
    }

    /// The arguments of one lane's call, which lie in words of 8 bytes.
    fn call_arguments(
        &self,
        lane: usize,
        place: u64,
        widths: &[u8],
    ) -> Option<[u64; MOST_ARGUMENTS]> {
        let mut arguments = [0; MOST_ARGUMENTS];
        let widths = widths.iter().flat_map(|&width| match width {
            12 => [4, 4, 4].as_slice(),
            4 => &[4],
            _ => &[8],
        });
        for (at, (argument, &width)) in arguments.iter_mut().zip(widths).enumerate() {
            let mut bytes = [0; 8];
            let address = LOCAL_BASE.checked_add(place)?.checked_add(8 * at as u64)?;
            self.read_bytes(lane, address, &mut bytes[..width])?;
            *argument = u64::from_le_bytes(bytes);
        }
        Some(arguments)
    }
}

/// The source is where the arguments lie in local memory; `imm` numbers the function. It is run again from the
/// beginning where the engine says so, which it does before anything was done.
///
/// # Safety
/// None.
pub(crate) unsafe fn call(cx: &mut Machine<'_>, op: &Op) -> Flow {
    let known = numbered(op.imm);
    let launches = matches!(
        known.function,
        DeviceFunction::Launch | DeviceFunction::LaunchV2
    );
    let [x, y, _] = cx.grid.size.map(u64::from);
    let [at_x, at_y, at_z] = cx.block_index.map(u64::from);
    let block = at_x + x * (at_y + y * at_z);
    let runtime = cx.grid.runtime.clone();
    let mut room = 0;
    if let (true, Some(runtime)) = (launches, &runtime) {
        match runtime.reserve(block, cx.mask.count().into()) {
            Some(granted) => room = granted,
            None => return cx.stop(Event::Later),
        }
    }
    for lane in cx.mask.lanes() {
        let place = cx.argument(op, 0, lane, 8);
        let Some(arguments) = cx.call_arguments(lane, place, known.arguments) else {
            return cx.fault(FaultKind::IllegalAddress, place, lane);
        };
        let is_graph = known.function == DeviceFunction::GraphLaunch;
        cx.budget -= if launches || is_graph { LAUNCH } else { CALL };
        let reply = match (known.function, &runtime) {
            (DeviceFunction::TakeError, _) => {
                let error = cx.last_error(lane);
                cx.set_last_error(lane, 0);
                cx.give(op, lane, 4, error.into());
                continue;
            }
            (DeviceFunction::PeekError, _) => {
                let error = cx.last_error(lane);
                cx.give(op, lane, 4, error.into());
                continue;
            }
            (_, None) => Reply::Status(NOT_SUPPORTED),
            (_, Some(_)) if launches && room == 0 => Reply::Status(TOO_MANY_PENDING),
            (function, Some(runtime)) => {
                room = room.saturating_sub(1);
                runtime.call(&DeviceCall {
                    function,
                    arguments,
                    block,
                    read: &|address, into| cx.read_bytes(lane, address, into).is_some(),
                })
            }
        };
        let (value, error) = match reply {
            Reply::Status(error) => (error.into(), error),
            Reply::Address(address, error) => (address, error),
            Reply::Written(bytes, count) => {
                let bytes = bytes.get(..count).unwrap_or(&bytes);
                if cx.write_bytes(lane, arguments[0], bytes).is_none() {
                    return cx.fault(FaultKind::IllegalAddress, arguments[0], lane);
                }
                (0, 0)
            }
            // Asked of a block as a whole, and so by the first of its lanes.
            Reply::Later => return cx.stop(Event::Later),
        };
        if error != 0 {
            cx.set_last_error(lane, error);
        }
        cx.give(op, lane, known.result, value);
    }
    Flow::Next
}
