//! A function of a loaded library by its name, found as the loader finds it: by one of the library's own tables of hashes.
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

const DT_HASH: i64 = 4;
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
    let (mut names, mut symbols, mut hashes, mut old_hashes) = (0, 0, 0, 0);
    loop {
        // SAFETY: the table ends with an entry of tag 0, and none behind that is read.
        let Dynamic { tag, value } = unsafe { entry.read() };
        match tag {
            0 => break,
            DT_HASH => old_hashes = value,
            DT_STRTAB => names = value,
            DT_SYMTAB => symbols = value,
            DT_GNU_HASH => hashes = value,
            _ => {}
        }
        // SAFETY: it was not the last entry.
        entry = unsafe { entry.add(1) };
    }
    if names == 0 || symbols == 0 {
        return null_mut();
    }
    // Most loaders have put addresses of the process here, some leave those of the file.
    let address = |value: usize| match value < offset {
        true => value + offset,
        false => value,
    };
    let table = Table {
        symbols: address(symbols),
        names: address(names),
        offset,
    };
    // SAFETY: where the library says that its tables are, in memory that stays.
    unsafe {
        match (hashes, old_hashes) {
            (0, 0) => null_mut(),
            // NVIDIA's libraries of CUDA 12.6 and before have this one alone.
            (0, old) => table.look_through(address(old), wanted),
            (hashes, _) => table.look_up(address(hashes), wanted),
        }
    }
}

/// A library's symbols and their names, by address.
struct Table {
    symbols: usize,
    names: usize,
    offset: usize,
}

impl Table {
    /// The address of the symbol of this number, if it is there and has this name.
    ///
    /// # Safety
    /// The addresses are of symbols and names, and there are as many symbols.
    unsafe fn named(&self, number: usize, wanted: &CStr) -> Option<*mut c_void> {
        let place = self.symbols + number * size_of::<Symbol>();
        // SAFETY: there are as many, as the caller promises.
        let symbol = unsafe { *std::ptr::with_exposed_provenance::<Symbol>(place) };
        let name = std::ptr::with_exposed_provenance(self.names + symbol.name as usize);
        // SAFETY: a symbol's name is among the names and ends in NUL.
        let is_it = symbol.section != 0 && unsafe { CStr::from_ptr(name) } == wanted;
        is_it.then(|| std::ptr::with_exposed_provenance_mut(self.offset + symbol.value))
    }

    /// By the older table, of which only the number of symbols is used.
    ///
    /// # Safety
    /// As [`Self::named`]'s, and `hashes` is the address of that table.
    unsafe fn look_through(&self, hashes: usize, wanted: &CStr) -> *mut c_void {
        // SAFETY: the second word of the table is the number of symbols.
        let count = unsafe { *std::ptr::with_exposed_provenance::<u32>(hashes + 4) };
        (0..count as usize)
            // SAFETY: below the number of symbols.
            .find_map(|number| unsafe { self.named(number, wanted) })
            .unwrap_or(null_mut())
    }

    /// By the newer table.
    ///
    /// # Safety
    /// As [`Self::named`]'s, and `hashes` is the address of that table.
    unsafe fn look_up(&self, hashes: usize, wanted: &CStr) -> *mut c_void {
        // SAFETY: a word of the table of hashes, whose form the numbers at its head tell; the caller vouches for it.
        let word =
            |at: usize| unsafe { *std::ptr::with_exposed_provenance::<u32>(hashes + at * 4) };
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
            if chained | 1 == hash | 1
                // SAFETY: the chain has as many entries as there are such symbols.
                && let Some(found) = unsafe { self.named(number, wanted) }
            {
                return found;
            }
            if chained & 1 != 0 {
                return null_mut();
            }
            number += 1;
        }
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

        // The older table, of a library that has three symbols, the first of which is none.
        let names = *b"\0one\0two\0";
        let symbol = |name, section, value| Symbol {
            name,
            info: 0,
            other: 0,
            section,
            value,
            size: 0,
        };
        let symbols = [symbol(0, 0, 0), symbol(1, 0, 16), symbol(5, 9, 32)];
        let hashes = [1_u32, 3, 0, 0];
        let table = Table {
            symbols: symbols.as_ptr().expose_provenance(),
            names: names.as_ptr().expose_provenance(),
            offset: 4096,
        };
        let look = |name: &CStr| {
            // SAFETY: symbols, names and hashes are arrays of this function's, which are there until it returns.
            let found = unsafe { table.look_through(hashes.as_ptr().expose_provenance(), name) };
            found.addr()
        };
        assert_eq!(
            [look(c"two"), look(c"one"), look(c"three")],
            [4096 + 32, 0, 0]
        );
        assert_eq!(hash(c"printf"), 0x156b_2bb8);
    }
}
