//! Functions that are exported and not built: answered, counted, and named once to the server.
//!
//! The shells of `exports` call it for rows of the table that have no function in `api`. It knows names and
//! numbers only.

use std::sync::atomic::{AtomicU32, Ordering};

use cuda_abi::CUresult;
use cuda_abi::functions::{Function, ROWS};
use protocol::operations::NotSupported;

/// Numbers that functions of the table have at most.
const NUMBERS: usize = {
    let (mut most, mut at) = (0, 0);
    while at < ROWS.len() {
        if ROWS[at].number as usize > most {
            most = ROWS[at].number as usize;
        }
        at += 1;
    }
    most + 1
};

/// How often each was called.
static CALLS: [AtomicU32; NUMBERS] = [const { AtomicU32::new(0) }; NUMBERS];

/// Answers a call of a function that is not built.
#[cold]
pub(crate) fn absent(function: Function) -> Result<(), CUresult> {
    let calls = &CALLS[function.number() as usize];
    if calls.load(Ordering::Relaxed) == 0 {
        crate::log::log!("{} is not built", function.name());
    }
    if let Ok(session) = crate::session::session()
        && calls.fetch_add(1, Ordering::Relaxed) == 0
    {
        // Whether the server's log names it changes nothing for the program.
        let _ = session.post(&NotSupported {
            function: u32::from(function.number()),
        });
    }
    Err(CUresult::ERROR_NOT_SUPPORTED)
}

/// How often a function that is not built was called since cuInit.
#[cfg(test)]
pub(crate) fn calls(function: Function) -> u32 {
    CALLS[function.number() as usize].load(Ordering::Relaxed)
}
