//! A function of a loaded library by its name, found as the loader finds it: by the library's own table of hashes.
//!
//! dlsym is not asked: it knows libraries that were opened by dlopen, and of one that a program was linked with it reads what
//! was never set up. Called when NVRTC's PTX is wanted. Must not know which library it is.

use std::ffi::{CStr, c_char, c_void};
use std::ptr::null_mut;

/// The part of the loader's record of a library that all may read (link_map).
#[repr(C)]
#[derive(Debug)]
pub struct LinkMap {
    /// What is added to addresses in the file.
    pub offset: usize,
    /// The file's path.
    pub name: *const c_char,
    /// The table of where everything else is.
    dynamic: *const Dynamic,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Dynamic {
    tag: i64,
    value: usize,
}

/// A symbol of a library, as it lies in the file and as the loader tells auditors of it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Symbol {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    /// Its address: in the library, or, once bound, in the process.
    pub value: usize,
    size: u64,
}

const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_GNU_HASH: i64 = 0x6fff_fef5;

/// The function's address in the process; null if the library has none of that name.
///
/// # Safety
/// The record is the loader's, of a library that is loaded, relocated, and stays so.
pub unsafe fn find(record: *const LinkMap, wanted: &CStr) -> *mut c_void {
    // SAFETY: the loader's record, as the caller promises.
    let (offset, mut entry) = unsafe { ((*record).offset, (*record).dynamic) };
    let (mut names, mut symbols, mut hashes) = (0, 0, 0);
    loop {
        // SAFETY: the table ends with an entry of tag 0, and none behind that is read.
        let Dynamic { tag, value } = unsafe { entry.read() };
        match tag {
            0 => break,
            DT_STRTAB => names = value,
            DT_SYMTAB => symbols = value,
            DT_GNU_HASH => hashes = value,
            _ => {}
        }
        // SAFETY: it was not the last entry.
        entry = unsafe { entry.add(1) };
    }
    if names == 0 || symbols == 0 || hashes == 0 {
        return null_mut();
    }
    // Most loaders have put addresses of the process here, some leave those of the file.
    let address = |value: usize| match value < offset {
        true => value + offset,
        false => value,
    };
    // SAFETY: where the library says that its tables are, in memory that stays.
    unsafe {
        look_up(
            address(hashes),
            address(symbols),
            address(names),
            offset,
            wanted,
        )
    }
}

/// # Safety
/// The addresses are of a library's table of hashes, its symbols and their names.
unsafe fn look_up(
    hashes: usize,
    symbols: usize,
    names: usize,
    offset: usize,
    wanted: &CStr,
) -> *mut c_void {
    // SAFETY: a word of the table of hashes, whose form the numbers at its head tell; the caller vouches for it.
    let word = |at: usize| unsafe { *std::ptr::with_exposed_provenance::<u32>(hashes + at * 4) };
    let (buckets, first, filter) = (word(0) as usize, word(1) as usize, word(2) as usize);
    let hash = hash(wanted);
    if buckets == 0 {
        return null_mut();
    }
    // Behind the head lie the filter, of 8 bytes a word, the buckets, and a chain of hashes.
    let bucket = 4 + filter * 2;
    let mut number = word(bucket + hash as usize % buckets) as usize;
    if number < first {
        return null_mut();
    }
    loop {
        let chained = word(bucket + buckets + number - first);
        // The lowest bit says that the chain ends.
        if chained | 1 == hash | 1 {
            let place = symbols + number * size_of::<Symbol>();
            // SAFETY: the chain has as many entries as there are such symbols.
            let symbol = unsafe { *std::ptr::with_exposed_provenance::<Symbol>(place) };
            let name = std::ptr::with_exposed_provenance(names + symbol.name as usize);
            // SAFETY: a symbol's name is among the names and ends in NUL.
            if symbol.section != 0 && unsafe { CStr::from_ptr(name) } == wanted {
                return std::ptr::with_exposed_provenance_mut(offset + symbol.value);
            }
        }
        if chained & 1 != 0 {
            return null_mut();
        }
        number += 1;
    }
}

/// The hash that such tables are made by.
fn hash(name: &CStr) -> u32 {
    name.to_bytes().iter().fold(5381, |hash: u32, byte| {
        hash.wrapping_mul(33).wrapping_add(u32::from(*byte))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    // SAFETY: these are the C library's declarations.
    unsafe extern "C" {
        fn dlopen(path: *const c_char, flags: i32) -> *mut LinkMap;
        fn dlsym(library: *mut LinkMap, name: *const c_char) -> *mut c_void;
    }

    #[test]
    fn functions_are_found_where_the_loader_finds_them() {
        // SAFETY: the mathematics' library has no code that runs when it is opened; 2 is RTLD_NOW.
        let library = unsafe { dlopen(c"libm.so.6".as_ptr(), 2) };
        assert!(!library.is_null());
        for name in [c"nan", c"fegetround", c"cabs"] {
            // SAFETY: a handle of dlopen, and glibc's handles are its records.
            let (found, known) = unsafe { (find(library, name), dlsym(library, name.as_ptr())) };
            assert!(!found.is_null());
            assert_eq!(found, known, "{name:?}");
        }
        // SAFETY: `library` is a handle of dlopen, which in glibc is the library's record.
        assert!(unsafe { find(library, c"no such function") }.is_null());
        assert_eq!(hash(c"printf"), 0x156b_2bb8);
    }
}
