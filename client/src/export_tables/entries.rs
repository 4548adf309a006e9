//! What the slots of the private tables do, apart from [`storage`](super::storage).
//!
//! Each is a shell that NVIDIA's code calls: it checks the pointers, contains panics, and asks the
//! client for the rest. Parameters that are passed and not needed are not declared.
//!
//! Owns the answers of the slots. `mod` puts them into the tables, runtimes call them. Must not know the session:
//! all of it comes through `client_access`.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use cuda_abi::CUresult;
use cuda_abi::types::{CUcontext, CUdevice, CUfunction, CUmodule, CUstream};

use super::integrity::{Question, answer};
use super::table::{contain, status};
use super::{CUDART_INTERFACE, INTEGRITY_CHECK, client_access};
use crate::log::log;

/// Writes an answer; null is an error.
///
/// # Safety
/// `out` is null or valid for a write.
unsafe fn set<T>(out: *mut T, value: T) -> Result<(), CUresult> {
    if out.is_null() {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    // SAFETY: not null, so valid for the write, as the caller promises.
    unsafe { out.write(value) };
    Ok(())
}

/// CUDART_INTERFACE slot 2: the handle of a device's primary context, which is not retained by this.
///
/// # Safety
/// `out` is null or valid for a write.
pub(super) unsafe extern "C" fn primary_context(out: *mut CUcontext, device: CUdevice) -> CUresult {
    status(|| {
        let primary = client_access::primary_context(device)?;
        // SAFETY: the caller vouches that `out` is null or valid for a write.
        unsafe { set(out, CUcontext::from_bits(primary)) }
    })
}

/// CUDART_INTERFACE slots 1 and 6: loads a fatbin, given its wrapper, into the current context. How
/// runtimes up to 11 load every module.
///
/// # Safety
/// `out` is null or valid for a write; `wrapper` leads to a whole wrapper and what it wraps.
pub(super) unsafe extern "C" fn load_module(
    out: *mut CUmodule,
    wrapper: *const c_void,
) -> CUresult {
    status(|| {
        if out.is_null() {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        // SAFETY: the caller vouches for the wrapper and what it wraps.
        let module = unsafe { client_access::load_module(wrapper)? };
        // SAFETY: the caller vouches that `out` is null or valid for a write.
        unsafe { set(out, CUmodule::from_bits(module)) }
    })
}

/// CUDART_INTERFACE slot 8: the same, given the fatbin itself.
///
/// # Safety
/// `out` is null or valid for a write; `fatbin` leads to a whole fatbin.
pub(super) unsafe extern "C" fn load_module_of_header(
    fatbin: *const c_void,
    out: *mut CUmodule,
) -> CUresult {
    // SAFETY: the caller vouches for `out` and for a whole fatbin, which says itself which form it has.
    unsafe { load_module(out, fatbin) }
}

/// CUDART_INTERFACE slot 7: a runtime up to 11 is done with a fatbin. Its modules are unloaded, or go
/// with their contexts, without this.
pub(super) extern "C" fn unregister(_wrapper: *const c_void) {}

/// CUDART_INTERFACE slot 12: dynamic runtimes from 13.5 announce that they will need compilers.
pub(super) extern "C" fn load_compilers() -> CUresult {
    CUresult::SUCCESS
}

/// What a runtime writes its own things into. 8 bytes an element, the most that one can have: its
/// width is not known.
struct Board<const N: usize>([AtomicUsize; N]);

impl<const N: usize> Board<N> {
    const fn new() -> Self {
        Self([const { AtomicUsize::new(0) }; N])
    }

    /// Tells where it is and how many elements it has.
    ///
    /// # Safety
    /// Each pointer is null or valid for a write.
    unsafe fn tell(&'static self, board: *mut *mut c_void, elements: *mut usize) {
        if !board.is_null() {
            // SAFETY: not null, so valid for the write.
            unsafe { board.write(self.0.as_ptr().cast_mut().cast()) };
        }
        if !elements.is_null() {
            // SAFETY: `elements` is not null, so valid for the write.
            unsafe { elements.write(N) };
        }
    }
}

/// HOOKS slot 2: the board for calls. Fewer elements than this, and runtimes do not start.
///
/// # Safety
/// Each pointer is null or valid for a write.
pub(super) unsafe extern "C" fn hooks_first(board: *mut *mut c_void, elements: *mut usize) {
    static BOARD: Board<1024> = Board::new();
    // SAFETY: the caller vouches that each pointer is null or valid for a write.
    unsafe { BOARD.tell(board, elements) };
}

/// HOOKS slot 6: the board for other events.
///
/// # Safety
/// Each pointer is null or valid for a write.
pub(super) unsafe extern "C" fn hooks_second(board: *mut *mut c_void, elements: *mut usize) {
    static BOARD: Board<14> = Board::new();
    // SAFETY: the caller vouches that each pointer is null or valid for a write.
    unsafe { BOARD.tell(board, elements) };
}

/// TOOLS_TLS slot 2: the calling thread's context, or null.
///
/// # Safety
/// `out` is null or valid for a write.
pub(super) unsafe extern "C" fn tools_context(out: *mut CUcontext) -> CUresult {
    status(|| {
        let current = client_access::current().unwrap_or(0);
        // SAFETY: the caller vouches that `out` is null or valid for a write.
        unsafe { set(out, CUcontext::from_bits(current)) }
    })
}

/// INTEGRITY_CHECK slot 1: the self-test.
///
/// # Safety
/// `out` is null or valid for a write.
pub(super) unsafe extern "C" fn check_integrity(
    version: u32,
    unix_seconds: u64,
    out: *mut [u8; 16],
) -> CUresult {
    status(|| {
        let devices = client_access::devices()?;
        let question = Question {
            driver_version: client_access::driver_version(),
            version,
            pid: std::process::id(),
            thread: thread(),
            cudart_interface: CUDART_INTERFACE.address().addr() as u64,
            integrity_check: INTEGRITY_CHECK.address().addr() as u64,
            function: INTEGRITY_CHECK.get(1).addr() as u64,
            unix_seconds,
        };
        // SAFETY: the caller vouches that `out` is null or valid for a write.
        unsafe { set(out, answer(&question, devices)) }
    })
}

/// The low half of the calling thread's pthread_self.
pub(super) fn thread() -> u32 {
    pthread_self() as u32
}

// SAFETY: the C library's function is declared as POSIX has it, its result as the machine word that
// it is on Linux.
unsafe extern "C" {
    /// The calling thread's name.
    safe fn pthread_self() -> usize;
}

/// CONTEXT_CHECKS slot 2: whether a context is fit for use. Errors show where it is used.
///
/// # Safety
/// `state` is null or valid for a write.
pub(super) unsafe extern "C" fn check_context(_context: CUcontext, state: *mut u32) -> CUresult {
    if !state.is_null() {
        // SAFETY: not null, so valid for the write.
        unsafe { state.write(0) };
    }
    CUresult::SUCCESS
}

/// CONTEXT_CHECKS slot 3.
pub(super) extern "C" fn check_process() -> CUresult {
    CUresult::SUCCESS
}

/// Whether a runtime has asked for silence.
static MUTED: AtomicBool = AtomicBool::new(false);

/// ERROR_LOG slot 1: a runtime says who has something to say, how grave it is, and what it is. The
/// text is a format for printf, and is noted without what it formats.
///
/// # Safety
/// `component` and `format` are null or text that ends in a NUL.
pub(super) unsafe extern "C" fn report_error(
    component: *const c_char,
    level: u32,
    format: *const c_char,
) -> CUresult {
    let none = component.is_null() || format.is_null();
    if !none && !MUTED.load(Ordering::Relaxed) {
        contain((), || {
            // SAFETY: neither is null, so both are text, as the caller promises.
            let (component, format) =
                unsafe { (CStr::from_ptr(component), CStr::from_ptr(format)) };
            let (component, format) = (component.to_string_lossy(), format.to_string_lossy());
            log!("{component} says (level {level}): {format}");
        });
    }
    CUresult::SUCCESS
}

/// ERROR_LOG slot 2: a runtime passes 0 before a question that it expects to fail, and 1 after it
/// (seen with 13.5).
pub(super) extern "C" fn enable_errors(on: c_int) -> CUresult {
    MUTED.store(on == 0, Ordering::Relaxed);
    CUresult::SUCCESS
}

/// T_21318C60 slot 4: a number that no other context has or had; 0 for none.
///
/// # Safety
/// `id` is null or valid for a write.
pub(super) unsafe extern "C" fn context_id(context: CUcontext, id: *mut u64) -> CUresult {
    status(|| {
        let number = match context.bits() {
            0 => 0,
            bits => client_access::context_id(bits)?,
        };
        // SAFETY: the caller vouches that `id` is null or valid for a write.
        unsafe { set(id, number) }
    })
}

/// T_21318C60 slot 51: the driver's own object of a stream of a context, where NULL is the default stream.
/// cuBLAS asks for it to give each stream a workspace of its own, and only hands it to slot 39, so what
/// it gets is the number that this tells.
///
/// # Safety
/// `object` is null or valid for a write.
pub(super) unsafe extern "C" fn stream_object(
    context: CUcontext,
    stream: CUstream,
    object: *mut u64,
) -> CUresult {
    status(|| {
        let number = client_access::stream_id(context.bits(), stream)?;
        // SAFETY: the caller vouches that `object` is null or valid for a write.
        unsafe { set(object, number) }
    })
}

/// T_21318C60 slot 39: the number of a stream, given its object.
///
/// # Safety
/// `id` is null or valid for a write.
pub(super) unsafe extern "C" fn stream_id(
    context: CUcontext,
    object: u64,
    id: *mut u64,
) -> CUresult {
    status(|| {
        client_access::alive(context.bits())?;
        // SAFETY: the caller vouches that `id` is null or valid for a write.
        unsafe { set(id, object) }
    })
}

/// Called with each function of a module.
type EachFunction = Option<unsafe extern "C" fn(user: *mut c_void, function: CUfunction)>;

/// T_6E163FBE slot 7: shows the caller each function of a module. Gives 1 for success and 0 for
/// failure.
///
/// # Safety
/// `callback` may be called with `user` during this call.
pub(super) unsafe extern "C" fn for_each_function(
    _context: CUcontext,
    module: CUmodule,
    callback: EachFunction,
    user: *mut c_void,
) -> c_int {
    let functions = contain(Err(CUresult::ERROR_UNKNOWN), || {
        client_access::functions(module.bits())
    });
    let (Ok(functions), Some(callback)) = (functions, callback) else {
        return 0;
    };
    for function in functions {
        // SAFETY: the caller vouches for callback and `user`; no lock is held, so the callback may call any entry point.
        unsafe { callback(user, CUfunction::from_bits(function)) };
    }
    1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boards_have_the_sizes_without_which_runtimes_do_not_start() {
        for (tell, expected) in [
            (hooks_first as unsafe extern "C" fn(_, _), 1024),
            (hooks_second, 14),
        ] {
            let (mut board, mut elements) = (std::ptr::null_mut(), 0);
            // SAFETY: both are valid for writes; then null, which is allowed.
            unsafe {
                tell(&raw mut board, &raw mut elements);
                tell(std::ptr::null_mut(), std::ptr::null_mut());
            }
            assert_eq!(elements, expected);
            let board: *mut u64 = board.cast();
            for at in 0..elements {
                // SAFETY: the board has that many elements of 8 bytes, and is there to be written.
                unsafe {
                    assert_eq!(board.add(at).read(), 0);
                    board.add(at).write(7);
                    board.add(at).write(0);
                }
            }
        }
    }

    #[test]
    fn null_is_an_error_wherever_an_answer_is_to_be_written() {
        // SAFETY: null is what each of these refuses before it writes.
        unsafe {
            assert_eq!(
                tools_context(std::ptr::null_mut()),
                CUresult::ERROR_INVALID_VALUE
            );
            assert_eq!(
                context_id(CUcontext::NULL, std::ptr::null_mut()),
                CUresult::ERROR_INVALID_VALUE
            );
            assert_eq!(
                load_module(std::ptr::null_mut(), std::ptr::null()),
                CUresult::ERROR_INVALID_VALUE
            );
            assert_eq!(
                check_context(CUcontext::NULL, std::ptr::null_mut()),
                CUresult::SUCCESS
            );
        }
    }
}
