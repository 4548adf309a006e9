//! The C entry points: one shell for each function of the table.
//!
//! A shell calls the function of the same name in [`api`](crate::api), or passes the call on to the
//! driver's own library, and turns what comes of it, a panic too, into a status. It knows nothing else.

// The shells' safety contract is NVML's documentation of each function.
#![allow(clippy::missing_safety_doc, reason = "the contract of each is NVML's")]
#![allow(non_snake_case, reason = "the names are C's")]

use std::ffi::{c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use cuda_abi::nvml::nvmlReturn_t;

use crate::params::{In, ListOut, Out, Text, TextOut};
use crate::structs::*;
use crate::{api, sensors, state};

/// Turns the outcome of a call into a status. Nothing unwinds into the program.
pub(crate) fn guarded(name: &str, call: impl FnOnce() -> Result<(), nvmlReturn_t>) -> nvmlReturn_t {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => nvmlReturn_t::of(result),
        Err(_) => {
            crate::log::log!(
                "{name} failed inside of the library, a fault of OpenMPS; the line before says where"
            );
            nvmlReturn_t::ERROR_UNKNOWN
        }
    }
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

/// The one function that returns something else.
// SAFETY: no other symbol of this library has this name.
#[unsafe(no_mangle)]
extern "C" fn nvmlErrorString(result: nvmlReturn_t) -> *const c_char {
    result.text().as_ptr()
}

macro_rules! shell {
    (local nvmlErrorString($($argument:ident: $type:ty),*)) => {};
    (absent $name:ident) => {
        // Whatever its arguments are, they are not looked at.
        // SAFETY: no other symbol of this library has this name.
        #[unsafe(no_mangle)]
        extern "C" fn $name() -> nvmlReturn_t {
            guarded(stringify!($name), || {
                state::facts()?;
                Err(nvmlReturn_t::ERROR_NOT_SUPPORTED)
            })
        }
    };
    (sensor $name:ident($($argument:ident: $type:ty),*)) => {
        // SAFETY: no other symbol of this library has this name.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $type),*) -> nvmlReturn_t {
            guarded(stringify!($name), || {
                state::facts()?;
                sensors::ask!(sensors::c_name!($name), $($argument: $type),*)
            })
        }
    };
    ($class:ident $name:ident($($argument:ident: $type:ty),*)) => {
        // SAFETY: no other symbol of this library has this name.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $type),*) -> nvmlReturn_t {
            guarded(stringify!($name), || api::$name($($argument),*))
        }
    };
}

macro_rules! shells {
    ($(
        $class:ident $(($why:ident))? $name:ident $(($($argument:ident: $type:ty),*))?;
    )*) => {
        $( shell!($class $name $(($($argument: $type),*))?); )*
    };
}

cuda_abi::for_each_nvml_function!(shells);
