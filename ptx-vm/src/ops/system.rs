//! What device code asks of the system: `printf`, `assert`, `malloc`, `free`. The compiler calls functions
//! of known names for them; here they are operations, lane by lane.
//!
//! Chosen by `lower::control`. Must not know where text goes or memory comes from: it asks the trait `Services`.

use engine::format::{self, Arguments, LONGEST};

use crate::fault::FaultKind;
use crate::machine::{Flow, Machine, Op};

/// The most characters of a string of an assertion.
const NAME: usize = 1024;

impl Machine<'_> {
    /// A source of one lane, of `width` bytes.
    pub(super) fn argument(&self, op: &Op, source: usize, lane: usize, width: u8) -> u64 {
        let lane = if op.varies(source) { lane } else { 0 };
        self.frame.wide(op.s[source] as usize, lane, width)
    }

    /// Characters up to a zero, at most `most`. `None` if one of them cannot be read.
    fn characters(&self, lane: usize, address: u64, most: usize) -> Option<Vec<u8>> {
        let mut text = Vec::new();
        while text.len() < most {
            let mut byte = [0];
            let at = address.checked_add(text.len() as u64)?;
            self.read_bytes(lane, at, &mut byte)?;
            if byte[0] == 0 {
                break;
            }
            text.push(byte[0]);
        }
        Some(text)
    }

    pub(super) fn give(&mut self, op: &Op, lane: usize, width: u8, value: u64) {
        // A slot at offset 0 is nobody's: the sink.
        if op.d[0] != 0 {
            self.frame.set_wide(op.d[0] as usize, lane, width, value);
        }
    }
}

/// A thread's arguments of `printf`, laid out as a C structure.
struct Packed<'a, 'b> {
    machine: &'a Machine<'b>,
    lane: usize,
    at: u64,
    /// The address that could not be read.
    wrong: u64,
}

impl Arguments for Packed<'_, '_> {
    fn next(&mut self, bytes: usize) -> Option<u64> {
        let mut value = [0; 8];
        let at = self.at.checked_next_multiple_of(bytes as u64)?;
        self.wrong = at;
        self.machine
            .read_bytes(self.lane, at, &mut value[..bytes])?;
        self.at = at.checked_add(bytes as u64)?;
        Some(u64::from_le_bytes(value))
    }

    fn string(&mut self, address: u64, most: usize) -> Option<Vec<u8>> {
        self.wrong = address;
        self.machine.characters(self.lane, address, most)
    }
}

/// `vprintf`: sources are the format and the arguments; the result is how many arguments were taken, or -1
/// without a format.
///
/// # Safety
/// None: any machine has it; so for all functions below.
pub(crate) unsafe fn print(cx: &mut Machine<'_>, op: &Op) -> Flow {
    for lane in cx.mask.lanes() {
        let (text, at) = (cx.argument(op, 0, lane, 8), cx.argument(op, 1, lane, 8));
        let result = if text == 0 {
            -1
        } else {
            let Some(format) = cx.characters(lane, text, LONGEST) else {
                return cx.fault(FaultKind::IllegalAddress, text, lane);
            };
            let mut arguments = Packed {
                machine: cx,
                lane,
                at,
                wrong: at,
            };
            let Some((text, taken)) = format::format(&format, &mut arguments) else {
                let wrong = arguments.wrong;
                return cx.fault(FaultKind::IllegalAddress, wrong, lane);
            };
            cx.grid.services.print(text);
            taken
        };
        cx.budget -= 64;
        cx.give(op, lane, 4, u64::from(result.cast_unsigned()));
    }
    Flow::Next
}

/// `__assertfail`: sources are the expression, the file, the line, the function, the size of a character.
///
/// # Safety
/// None.
pub(crate) unsafe fn assertion_failed(cx: &mut Machine<'_>, op: &Op) -> Flow {
    let [x, y, _] = cx.grid.block;
    for lane in cx.mask.lanes() {
        let string = |source: usize| {
            let address = cx.argument(op, source, lane, 8);
            let text = cx.characters(lane, address, NAME).unwrap_or_default();
            String::from_utf8_lossy(&text).into_owned()
        };
        let (expression, file, function) = (string(0), string(1), string(3));
        let line = cx.argument(op, 2, lane, 4);
        let thread = cx.first_thread + lane as u32;
        let (tx, ty, tz) = (thread % x, thread / x % y, thread / (x * y));
        let at = (&file[..], line as u32);
        let text = format::assertion(&expression, at, &function, cx.block_index, [tx, ty, tz]);
        cx.grid.services.assertion_failed(text.into_bytes());
    }
    let lane = cx.mask.lowest().unwrap_or(0);
    cx.fault(FaultKind::Assert, 0, lane)
}

/// `malloc`: the source is how many bytes; the result is their address or 0.
///
/// # Safety
/// None.
pub(crate) unsafe fn allocate(cx: &mut Machine<'_>, op: &Op) -> Flow {
    for lane in cx.mask.lanes() {
        let bytes = cx.argument(op, 0, lane, 8);
        let address = cx.grid.services.allocate(bytes);
        cx.budget -= 16;
        cx.give(op, lane, 8, address);
    }
    Flow::Next
}

/// `free`: the source is an address that `malloc` gave, or 0.
///
/// # Safety
/// None.
pub(crate) unsafe fn free(cx: &mut Machine<'_>, op: &Op) -> Flow {
    for lane in cx.mask.lanes() {
        let address = cx.argument(op, 0, lane, 8);
        cx.budget -= 16;
        if address != 0 && !cx.grid.services.free(address) {
            return cx.fault(FaultKind::IllegalAddress, address, lane);
        }
    }
    Flow::Next
}

/// `cudaGraphSetConditional`: sources are the handle, which is the address of a word, and the value.
///
/// # Safety
/// None.
pub(crate) unsafe fn set_condition(cx: &mut Machine<'_>, op: &Op) -> Flow {
    for lane in cx.mask.lanes() {
        let (handle, value) = (cx.argument(op, 0, lane, 8), cx.argument(op, 1, lane, 4));
        let value = (value as u32).to_le_bytes();
        if cx.write_bytes(lane, handle, &value).is_none() {
            return cx.fault(FaultKind::IllegalAddress, handle, lane);
        }
    }
    Flow::Next
}

/// How much a function has taken of its local memory, source 0, which is a stack that overflows if it is more than `imm`.
///
/// # Safety
/// None.
pub(crate) unsafe fn within_stack(cx: &mut Machine<'_>, op: &Op) -> Flow {
    for lane in cx.mask.lanes() {
        let taken = cx.argument(op, 0, lane, 8);
        if taken > op.imm {
            return cx.fault(FaultKind::StackOverflow, taken, lane);
        }
        cx.give(op, lane, 8, taken);
    }
    Flow::Next
}
