//! The C entry points: one shell for each function of the table and for each per-thread twin.
//!
//! A shell turns the program's pointers into what they are ([`pointers`]), calls the
//! function of the same name in [`api`](crate::api), or in [`entry_points`] if it hands out shells, and turns what comes of it, a panic too, into a
//! status. It knows nothing else.

// The shells' safety contract is CUDA's documentation of each function.
#![allow(clippy::missing_safety_doc, reason = "the contract of each is CUDA's")]
#![allow(non_snake_case, reason = "the names are C's")]

pub(crate) mod entry_points;
pub(crate) mod unsupported;

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};

use cuda_abi::functions::Function;
use cuda_abi::proc_address::Entry;
use cuda_abi::types::*;

use crate::{error_log, pointers, recorder, stream};

/// What the shells call, by name.
mod functions {
    pub(super) use super::entry_points::*;
    pub(super) use crate::api::*;
}

/// Turns the outcome of a call into a status. Nothing unwinds into the program.
#[inline]
pub(crate) fn guarded(function: Function, call: impl FnOnce() -> Result<(), CUresult>) -> CUresult {
    let is_recorded = recorder::begin();
    let status = match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => CUresult::SUCCESS,
        Ok(Err(status)) => {
            if status != CUresult::ERROR_NOT_READY {
                refused(function, status);
            }
            status
        }
        Err(_) => failed(function),
    };
    if is_recorded {
        recorder::end(function);
    }
    status
}

/// Most lines about failed calls in one process' log: a program may ask in a loop.
const REFUSALS_TOLD: u32 = 1000;

/// Notes a call that failed, since programs seldom say which of their calls it was.
#[cold]
fn refused(function: Function, status: CUresult) {
    static TOLD: AtomicU32 = AtomicU32::new(0);
    let name = function.name();
    if TOLD.fetch_add(1, Ordering::Relaxed) < REFUSALS_TOLD {
        crate::log::file_line(&format!("{name} returned {status:?}"));
    }
    let code = cuda_abi::errors::name(status).unwrap_or("unknown");
    let text = format!("Returning {} ({code}) from {name}", status.0);
    error_log::add(error_log::Level::Error, &text);
    error_log::deliver();
}

#[cold]
fn failed(function: Function) -> CUresult {
    crate::log::log!(
        "{} failed inside of the library, a fault of OpenMPS; the line before says where",
        function.name()
    );
    CUresult::ERROR_UNKNOWN
}

/// Panics go to the client's log: the program's standard streams are not ours.
#[cfg(not(test))]
extern "C" fn quiet_panics() {
    std::panic::set_hook(Box::new(|panic| crate::log::log!("{panic}")));
}

/// Run by the loader. It sets the hook of this library's own copy of std, not the program's.
#[cfg(not(test))]
#[used]
// SAFETY: the section holds functions that the loader calls once, and this is one.
#[unsafe(link_section = ".init_array")]
static QUIET_PANICS: extern "C" fn() = quiet_panics;

/// A parameter as `api` takes it, from the C value. The program promises about each pointer what its
/// mode says.
macro_rules! carried {
    (val($type:ty) $value:ident) => {
        $value
    };
    (len($type:ty, $of:ident) $value:ident) => {
        $value
    };
    (opaque($type:ty) $value:ident) => {
        // SAFETY: the C caller's promise for what the parameter's type in `api` says.
        unsafe { pointers::FromOpaque::from_opaque($value) }
    };
    (cstr() $value:ident) => {
        // SAFETY: the C caller's promise for this mode.
        unsafe { pointers::Text::new($value) }
    };
    (bytes($count:ident) $value:ident) => {
        // SAFETY: the C caller's promise for this mode.
        unsafe { pointers::Bytes::new($value) }
    };
    (bytes_out($count:ident) $value:ident) => {
        // SAFETY: the C caller's promise for this mode.
        unsafe { pointers::BytesOut::new($value) }
    };
    (chars_out($count:ident) $value:ident) => {
        // SAFETY: the C caller's promise for this mode.
        unsafe { pointers::TextOut::new($value) }
    };
    (struct_in($type:ty) $value:ident) => {
        // SAFETY: the C caller's promise for this mode.
        unsafe { pointers::In::new($value) }
    };
    (list($type:ty, $count:ident) $value:ident) => {
        // SAFETY: the C caller's promise for this mode.
        unsafe { pointers::List::new($value, pointers::Count::elements($count)) }
    };
    (list_out($type:ty, $count:ident) $value:ident) => {
        // SAFETY: the C caller's promise for this mode.
        unsafe { pointers::ListOut::new($value, pointers::Count::elements($count)) }
    };
    ($out:ident($type:ty) $value:ident) => {
        // SAFETY: the C caller's promise for this mode.
        unsafe { pointers::Out::new($value) }
    };
}

/// What is asked before a call, by what the table says of it. Launches and the like are not asked
/// anything here: what concerns them is known of their stream.
macro_rules! admitted {
    (absent $capture:ident) => {};
    ($class:ident node) => {};
    (local allowed none) => {};
    ($class:ident prohibited) => {
        crate::stream::host_function::check_outside_host_function()?;
        stream::may_be_unsafe()?;
    };
    ($class:ident $capture:ident) => {
        crate::stream::host_function::check_outside_host_function()?;
    };
}

macro_rules! body {
    (absent $name:ident($($argument:ident: $mode:ident $tokens:tt),*)) => {{
        $(let _ = $argument;)*
        unsupported::absent(Function::$name)
    }};
    ($class:ident $name:ident($($argument:ident: $mode:ident $tokens:tt),*)) => {
        functions::$name($(carried!($mode $tokens $argument)),*)
    };
}

macro_rules! twin {
    ([] $($rest:tt)*) => {};
    ([$suffix:literal] $class:ident $capture:ident $name:ident($($argument:ident: $mode:ident $tokens:tt),*)) => {
        // SAFETY: no other symbol of this library has this name.
        #[unsafe(export_name = concat!(stringify!($name), $suffix))]
        pub(super) unsafe extern "C" fn $name($($argument: cuda_abi::c_type!($mode $tokens)),*) -> CUresult {
            guarded(Function::$name, || {
                admitted!($class $capture);
                stream::per_thread(|| body!($class $name($($argument: $mode $tokens),*)))
            })
        }
    };
}

/// Where a function's twin is, if it has one.
macro_rules! twin_address {
    ([] $name:ident) => {
        $name as *const c_void
    };
    ([$suffix:literal] $name:ident) => {
        per_thread::$name as *const c_void
    };
}

macro_rules! shells {
    ($(
        $(#[$doc:meta])*
        $class:ident $number:literal since $since:literal $(twin $suffix:literal $from:literal)?
            capture $capture:ident $(partial $how:literal)? =>
            fn $name:ident($($argument:ident: $mode:ident $tokens:tt),*);
    )*) => {
        $(
            $(#[$doc])*
            // SAFETY: no other symbol of this library has this name.
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($($argument: cuda_abi::c_type!($mode $tokens)),*) -> CUresult {
                guarded(Function::$name, || {
                    admitted!($class $capture);
                    body!($class $name($($argument: $mode $tokens),*))
                })
            }
        )*

        /// The twins: NULL means the calling thread's own stream.
        mod per_thread {
            use super::*;

            $(twin!([$($suffix)?] $class $capture $name($($argument: $mode $tokens),*));)*
        }

        /// Where an entry point of this library is.
        pub(crate) fn address(entry: Entry) -> *const c_void {
            match (entry.function, entry.per_thread) {
                $(
                    (Function::$name, false) => $name as *const c_void,
                    (Function::$name, true) => twin_address!([$($suffix)?] $name),
                )*
            }
        }
    };
}

cuda_abi::for_each_function!(shells);
