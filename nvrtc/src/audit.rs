//! What the loader calls of an auditor: for each library that it opens, and for each symbol that it binds.
//!
//! Owns which libraries are NVRTC's and nvJitLink's, and their places in the lists. Called by the loader alone, with its lock held. Must not
//! know what their functions do.

use std::ffi::{CStr, c_char, c_long, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::jit_link::{self, LINKERS};
use crate::symbols::{LinkMap, Symbol};
use crate::{LIBRARIES, LOADED};

/// The newest version of the interface that is known here (LAV_CURRENT).
const VERSION: c_uint = 2;

/// LA_FLG_BINDTO: symbols that are found in this library are told of.
const BIND_TO: c_uint = 1;
/// LA_FLG_BINDFROM: symbols that this library asks for are told of.
const BIND_FROM: c_uint = 2;

/// What begins the names of the libraries' files; behind it is the release.
const NVRTC: &[u8] = b"libnvrtc.so";
const NVJITLINK: &[u8] = b"libnvJitLink.so";

/// The loader asks which version of the interface is spoken.
#[unsafe(no_mangle)]
pub extern "C" fn la_version(offered: c_uint) -> c_uint {
    offered.min(VERSION)
}

/// A library is opened. Its cookie becomes its place, from 1: in NVRTC's list, and behind that in nvJitLink's; 0 for all others.
///
/// # Safety
/// As the loader calls it: its record of the library, and a place for the cookie.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn la_objopen(
    record: *mut LinkMap,
    _namespace: c_long,
    cookie: *mut usize,
) -> c_uint {
    // SAFETY: the loader's record has a name, or null.
    let name = unsafe { (*record).name };
    let place = match name.is_null() {
        true => None,
        // SAFETY: not null, so text that ends in NUL.
        false => take_place(unsafe { CStr::from_ptr(name) }, record),
    };
    // SAFETY: the loader gives a place for the cookie.
    unsafe { cookie.write(place.map_or(0, |place| place + 1)) };
    // Their calls of their own functions stay their own.
    if place.is_some() { BIND_TO } else { BIND_FROM }
}

/// A library is closed: its place is free again.
///
/// # Safety
/// As the loader calls it: with the cookie's place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn la_objclose(cookie: *mut usize) -> c_uint {
    // SAFETY: the place that `la_objopen` wrote.
    let place = unsafe { cookie.read() };
    let Some(place) = place.checked_sub(1) else {
        return 0;
    };
    if let Some(library) = LOADED.get(place) {
        library.with_turned(|programs| programs.clear());
        library.record.store(null_mut(), Ordering::Release);
    } else if let Some(linker) = jit_link::LOADED.get(place - LIBRARIES) {
        linker.close();
    }
    0
}

/// A symbol is bound, by the loader or by dlsym: gives the address that its user gets.
///
/// # Safety
/// As the loader calls it: a symbol with its address, the cookie of the library that has it, its name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn la_symbind64(
    symbol: *mut Symbol,
    _index: c_uint,
    _user: *mut usize,
    owner: *mut usize,
    _flags: *mut c_uint,
    name: *const c_char,
) -> *mut c_void {
    // SAFETY: the loader calls this with a symbol that lives during the call.
    let address = std::ptr::with_exposed_provenance_mut(unsafe { (*symbol).value });
    // SAFETY: the place that `la_objopen` wrote.
    let place = unsafe { owner.read() };
    // SAFETY: a symbol's name ends in NUL.
    let name = unsafe { CStr::from_ptr(name) }.to_bytes();
    bound(place, name, address)
}

fn bound(place: usize, name: &[u8], address: *mut c_void) -> *mut c_void {
    macro_rules! at {
        ($($number:literal)*; $($linker:literal)*) => {
            match place {
                $(place if place == $number + 1 => LOADED[$number].bind::<$number>(name, address),)*
                $(place if place == LIBRARIES + $linker + 1 => {
                    jit_link::LOADED[$linker].bind::<$linker>(name, address)
                })*
                _ => address,
            }
        };
    }
    const { assert!(LIBRARIES == 8 && LINKERS == 4) };
    at!(0 1 2 3 4 5 6 7; 0 1 2 3)
}

/// A free place for a library of this path; None if it is none of ours, or all are taken.
fn take_place(path: &CStr, record: *mut LinkMap) -> Option<usize> {
    let path = path.to_bytes();
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
    let take = |place: &AtomicPtr<LinkMap>| {
        let (free, order) = (null_mut(), Ordering::AcqRel);
        let taken = place.compare_exchange(free, record, order, Ordering::Relaxed);
        taken.is_ok()
    };
    if name.starts_with(NVRTC) {
        return LOADED.iter().position(|library| take(&library.record));
    }
    if name.starts_with(NVJITLINK) {
        let place = jit_link::LOADED
            .iter()
            .position(|linker| take(&linker.record));
        return place.map(|place| LIBRARIES + place);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_functions_that_give_machine_code_are_ours() {
        let record = std::ptr::dangling_mut::<LinkMap>();
        let address = std::ptr::without_provenance_mut::<c_void>(4096);
        let nvrtc = c"/a/libnvrtc.so.12";
        for other in [
            c"/a/libnvrtc.so.13/other.so",
            c"/a/libnvrtc-builtins.so.13.0",
            c"",
        ] {
            assert_eq!(take_place(other, record), None, "{other:?}");
        }
        let place = take_place(nvrtc, record).unwrap() + 1;
        assert_eq!(bound(0, b"nvrtcGetCUBIN", address), address);
        assert_eq!(bound(place, b"nvrtcGetPTX", address), address);
        let ours = bound(place, b"nvrtcGetCUBIN", address);
        assert_ne!(ours, address);
        // Two copies of NVRTC have functions of their own.
        let other = take_place(c"libnvrtc.so.11.2", record).unwrap() + 1;
        assert_ne!(bound(other, b"nvrtcGetCUBIN", address), ours);
        let mut cookie = other;
        // SAFETY: a place with a cookie, as the loader has.
        unsafe { la_objclose(&raw mut cookie) };
        assert_eq!(take_place(nvrtc, record), Some(other - 1));
        let linker = take_place(c"libnvJitLink.so.13", record).unwrap() + 1;
        assert!(linker > LIBRARIES);
        assert_ne!(bound(linker, b"nvJitLinkCreate", address), address);
        assert_eq!(bound(linker, b"nvJitLinkVersion", address), address);
    }
}
