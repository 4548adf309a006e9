//! Straight-line runs of arithmetic as one operation, in machine code.
//!
//! Called by `emit`. Must not know PTX or memory: it sees tags, slots and vector units.
//!
//! Operation by operation, each result goes through memory: two or three loads, a store and a dispatch
//! for one multiplication. A *segment* is a run of arithmetic within a basic block, compiled to a loop
//! over strips that keeps everything in vector registers and reads and writes the register file only for
//! what comes from before and is needed after. It touches nothing but the register file, at offsets that
//! [`super::analysis::layout`] gave, so all checks of memory and control stay where they are.
//!
//! Where there is no code for a vector unit, or the system gives no executable memory, the operations run
//! one by one.

mod allocate;
mod encode;
mod native;
mod step;
mod tag;

use super::ir::Reg;
use super::isa::Isa;
use super::machine::{Flow, Machine, Op};

pub(crate) use native::Native;
pub(crate) use step::{RegisterSlot, SegmentStep};
pub(crate) use tag::Tag;

/// Fewer operations than this are not worth a segment.
pub(crate) const LEAST: usize = 2;

/// Whether there is code for this unit; with a mask, for lanes that run and others that do not.
pub(crate) fn possible(isa: Isa, masked: bool) -> bool {
    match isa {
        Isa::Avx512 => true,
        Isa::Avx2 => !masked,
        Isa::Sse2 => false,
    }
}

/// Compiles a segment: the code, to be placed anywhere. `None` if it cannot reach its slots.
pub(crate) fn compile(
    steps: &[SegmentStep],
    slot_of: &dyn Fn(Reg) -> RegisterSlot,
    live_after: &dyn Fn(Reg) -> bool,
    isa: Isa,
    masked: bool,
) -> Option<Vec<u8>> {
    allocate::compile(steps, slot_of, live_after, isa, masked)
}

/// What the code of a segment is called as: the frame, the first strip, the one after the last, and the
/// lanes that run, 16 bits for each strip.
type Code = unsafe extern "sysv64" fn(*mut u8, usize, usize, *const u64);

/// Runs the segment whose code stands at `imm`; it needs `d[0]` bytes of the frame.
///
/// # Safety
/// `imm` is an address in one of the program's [`Native`]s, where a segment for this machine's vector
/// unit begins.
pub(crate) unsafe fn run(cx: &mut Machine<'_>, op: &Op) -> Flow {
    let frame = cx.frame.at(0, op.d[0] as usize);
    // SAFETY: the caller's: it is such a function, and the program keeps it mapped.
    let code: Code = unsafe { std::mem::transmute::<usize, Code>(op.imm as usize) };
    // SAFETY: the code touches the slots that the layout gave, all inside of the bytes just checked, for
    // strips of this lane group; and it reads the mask.
    unsafe { code(frame, cx.low, cx.high, cx.mask.0.as_ptr()) };
    Flow::Next
}
