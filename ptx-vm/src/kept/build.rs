//! Which build of the program this process runs, and where its code lies.
//!
//! Called by what writes and reads programs. Must not know what they are.

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::sync::OnceLock;

/// This executor, as it was loaded.
#[derive(Debug)]
pub(super) struct Build {
    /// The build id that the linker gave it: a digest of all that it has.
    pub(super) id: Vec<u8>,
    /// Addresses of its code.
    code: Range<usize>,
}

/// What this process runs. `None` if the linker gave it no build id.
pub(super) fn own() -> Option<&'static Build> {
    static OWN: OnceLock<Option<Build>> = OnceLock::new();
    OWN.get_or_init(look).as_ref()
}

impl Build {
    /// Where a function lies in the code, if it does.
    pub(super) fn offset(&self, function: usize) -> Option<u64> {
        let inside = self.code.contains(&function);
        inside.then(|| (function - self.code.start) as u64)
    }

    /// The address of a place in the code.
    pub(super) fn address(&self, offset: u64) -> Option<usize> {
        let address = self.code.start.checked_add(usize::try_from(offset).ok()?)?;
        self.code.contains(&address).then_some(address)
    }
}

fn look() -> Option<Build> {
    let mut found: Option<Build> = None;
    let argument = std::ptr::from_mut(&mut found).cast::<c_void>();
    // SAFETY: `visit` is what the C library wants, and gets `found`, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(visit), argument) };
    found
}

/// Looks at a program or library that is loaded; not 0 if this code is in it.
///
/// # Safety
/// `info` is what the C library says of it, and `found` what [`look`] gave.
unsafe extern "C" fn visit(
    info: *mut libc::dl_phdr_info,
    _bytes: usize,
    found: *mut c_void,
) -> c_int {
    // SAFETY: the C library gives something valid for the time of the call.
    let info = unsafe { &*info };
    if info.dlpi_phdr.is_null() {
        return 0;
    }
    // SAFETY: so many headers stand there as long as the object is loaded.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    let place = |header: &libc::Elf64_Phdr| {
        let start = (info.dlpi_addr + header.p_vaddr) as usize;
        start..start + header.p_memsz as usize
    };
    let here = look as fn() -> Option<Build> as usize;
    let code = headers.iter().find(|header| {
        header.p_type == libc::PT_LOAD
            && header.p_flags & libc::PF_X != 0
            && place(header).contains(&here)
    });
    let Some(code) = code else { return 0 };
    let id = headers
        .iter()
        .filter(|header| header.p_type == libc::PT_NOTE)
        .find_map(|header| {
            let notes = place(header);
            // SAFETY: a loaded object's notes lie there and do not change; this code is in it, so it stays loaded.
            let notes =
                unsafe { std::slice::from_raw_parts(notes.start as *const u8, notes.len()) };
            build_id(notes)
        });
    if let Some(id) = id {
        let build = Build {
            id: id.to_vec(),
            code: place(code),
        };
        // SAFETY: the caller's: it is the variable of `look`, which waits for us.
        unsafe { *found.cast::<Option<Build>>() = Some(build) };
    }
    1
}

/// The build id among notes in the form of ELF: lengths of name and contents, a kind, and both in steps of four bytes.
fn build_id(mut notes: &[u8]) -> Option<&[u8]> {
    const NT_GNU_BUILD_ID: u32 = 3;
    loop {
        let (head, rest) = notes.split_first_chunk::<12>()?;
        let word =
            |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let (name, contents) = (word(0) as usize, word(4) as usize);
        let (owner, rest) = rest.split_at_checked(name.next_multiple_of(4))?;
        if word(8) == NT_GNU_BUILD_ID && owner.starts_with(b"GNU\0") {
            return rest.get(..contents).filter(|id| !id.is_empty());
        }
        notes = rest.get(contents.next_multiple_of(4)..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_build_has_a_name_and_functions_have_places() {
        let own = own().expect("linkers give build ids");
        assert!(own.id.len() >= 8);
        let function = build_id as fn(&[u8]) -> Option<&[u8]> as usize;
        let offset = own.offset(function).unwrap();
        assert_eq!(own.address(offset), Some(function));
        // What is no code of this program has none.
        assert_eq!(own.offset(std::ptr::from_ref(own) as usize), None);
        assert_eq!(own.address(u64::MAX), None);
        assert_eq!(own.address(1 << 40), None);
    }

    #[test]
    fn a_build_id_is_found_among_notes() {
        let note = |kind: u32, owner: &[u8], contents: &[u8]| {
            let mut note = Vec::new();
            for word in [owner.len() as u32, contents.len() as u32, kind] {
                note.extend(word.to_le_bytes());
            }
            for part in [owner, contents] {
                note.extend(part);
                note.resize(note.len().next_multiple_of(4), 0);
            }
            note
        };
        let id = note(3, b"GNU\0", b"12345678");
        let mut notes = note(1, b"GNU\0", &[0; 15]);
        notes.extend(note(3, b"other\0", b"no"));
        notes.extend(&id);
        assert_eq!(build_id(&notes), Some(&b"12345678"[..]));
        for cut in 0..notes.len() {
            assert_eq!(build_id(&notes[..cut]), None, "{cut}");
        }
        assert_eq!(build_id(&note(3, b"GNU\0", b"")), None);
        assert_eq!(build_id(&[255; 64]), None);
    }
}
