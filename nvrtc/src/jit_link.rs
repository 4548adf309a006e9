//! nvJitLink: what it links is handed on as PTX, for the driver to link, in place of machine code.
//!
//! Of a link without `-lto` the inputs are kept and become the image that cuLinkComplete would give: the driver links its parts
//! when it is loaded, and tells then what is wrong with them. With `-lto` nvJitLink itself makes PTX, if it is told `-ptx`. A link of
//! which the program wants PTX anyway is left alone.
//!
//! Owns the links of each copy of the library. Called by programs, by way of what `audit` binds. Must not know the driver.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, PoisonError};

use protocol::linked_image::{self, Part};

use crate::function_at;
use crate::symbols::{self, LinkMap};

/// How many copies may be loaded at once.
pub const LINKERS: usize = 4;

pub static LOADED: [Linker; LINKERS] = [const { Linker::new() }; LINKERS];

/// NVJITLINK_ERROR_INTERNAL
const INTERNAL_ERROR: c_int = 6;

/// CUjitInputType: what a part of a linked image is.
const CUBIN: u32 = 0;
const PTX: u32 = 1;
const FATBIN: u32 = 2;
const OBJECT: u32 = 3;
const LIBRARY: u32 = 4;

type Create = unsafe extern "C" fn(*mut *mut c_void, c_uint, *const *const c_char) -> c_int;
type AddData =
    unsafe extern "C" fn(*mut c_void, c_int, *const c_void, usize, *const c_char) -> c_int;
type AddFile = unsafe extern "C" fn(*mut c_void, c_int, *const c_char) -> c_int;
type Complete = unsafe extern "C" fn(*mut c_void) -> c_int;
type Destroy = unsafe extern "C" fn(*mut *mut c_void) -> c_int;
type GetBytes = unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int;
type GetSize = unsafe extern "C" fn(*mut c_void, *mut usize) -> c_int;

/// An input of a link.
struct Input {
    kind: u32,
    name: String,
    bytes: Vec<u8>,
}

/// A link of which a program wants machine code.
enum Link {
    /// nvJitLink makes PTX.
    ByLibrary,
    /// The driver will link these.
    Kept(Vec<Input>),
    /// They, as one image.
    Complete(Vec<u8>),
}

/// A copy of nvJitLink.
pub struct Linker {
    /// The loader's own record of it; null while no library has this place.
    pub record: AtomicPtr<LinkMap>,
    create: AtomicPtr<c_void>,
    add_data: AtomicPtr<c_void>,
    add_file: AtomicPtr<c_void>,
    complete: AtomicPtr<c_void>,
    destroy: AtomicPtr<c_void>,
    code: AtomicPtr<c_void>,
    code_size: AtomicPtr<c_void>,
    links: Mutex<Option<HashMap<usize, Link>>>,
}

impl Linker {
    const fn new() -> Self {
        Self {
            record: AtomicPtr::new(null_mut()),
            create: AtomicPtr::new(null_mut()),
            add_data: AtomicPtr::new(null_mut()),
            add_file: AtomicPtr::new(null_mut()),
            complete: AtomicPtr::new(null_mut()),
            destroy: AtomicPtr::new(null_mut()),
            code: AtomicPtr::new(null_mut()),
            code_size: AtomicPtr::new(null_mut()),
            links: Mutex::new(None),
        }
    }

    /// The library is closed: its place is free again.
    pub fn close(&self) {
        self.with_links(HashMap::clear);
        self.record.store(null_mut(), Ordering::Release);
    }

    fn with_links<R>(&self, then: impl FnOnce(&mut HashMap<usize, Link>) -> R) -> R {
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        then(links.get_or_insert_default())
    }

    /// Ours for one of nvJitLink's functions, whose address is kept; that address where we have none.
    pub fn bind<const AT: usize>(&self, name: &[u8], address: *mut c_void) -> *mut c_void {
        let (place, ours) = match plain(name) {
            b"Create" => (&self.create, create::<AT> as *mut c_void),
            b"AddData" => (&self.add_data, add_data::<AT> as *mut c_void),
            b"AddFile" => (&self.add_file, add_file::<AT> as *mut c_void),
            b"Complete" => (&self.complete, complete::<AT> as *mut c_void),
            b"Destroy" => (&self.destroy, destroy::<AT> as *mut c_void),
            b"GetLinkedCubin" => (&self.code, code::<AT> as *mut c_void),
            b"GetLinkedCubinSize" => (&self.code_size, code_size::<AT> as *mut c_void),
            _ => return address,
        };
        place.store(address, Ordering::Release);
        ours
    }

    /// A function of this copy by its name; null if it has none.
    fn function(&self, name: &CStr) -> *mut c_void {
        // SAFETY: the record is of a library that is loaded, since one of its functions is being called.
        unsafe { symbols::find(self.record.load(Ordering::Acquire), name) }
    }

    /// Keeps an input of a link whose inputs are kept; false if this is none.
    fn keep(&self, handle: *mut c_void, kind: c_int, name: &str, bytes: &[u8]) -> bool {
        self.with_links(|links| {
            let Some(Link::Kept(inputs)) = links.get_mut(&handle.addr()) else {
                return false;
            };
            let Some(kind) = part_kind(kind, bytes) else {
                return false;
            };
            inputs.push(Input {
                kind,
                name: name.to_owned(),
                bytes: bytes.to_vec(),
            });
            true
        })
    }
}

/// A function's name without what all have: `nvJitLinkCreate` and `__nvJitLinkCreate_13_0` are `Create`.
fn plain(name: &[u8]) -> &[u8] {
    let name = name.strip_prefix(b"__").unwrap_or(name);
    let name = name.strip_prefix(b"nvJitLink").unwrap_or_default();
    let end = name.iter().position(|byte| *byte == b'_');
    &name[..end.unwrap_or(name.len())]
}

/// What an nvJitLinkInputType is as a part; None for what the driver cannot link.
fn part_kind(kind: c_int, bytes: &[u8]) -> Option<u32> {
    let by_content = match bytes {
        [0x7f, b'E', b'L', b'F', ..] => OBJECT,
        [0x50, 0xed, 0x55, 0xba, ..] => FATBIN,
        _ if bytes.starts_with(b"!<arch>") => LIBRARY,
        _ => PTX,
    };
    match kind {
        // Machine code, or what NVRTC has handed over in its place.
        1 if by_content == OBJECT => Some(CUBIN),
        1 | 10 => Some(by_content),
        2 => Some(PTX),
        4 => Some(FATBIN),
        5 => Some(OBJECT),
        6 => Some(LIBRARY),
        _ => None,
    }
}

/// # Safety
/// `text` is null or ends in NUL, and stays for the lifetime.
unsafe fn text<'a>(text: *const c_char) -> &'a CStr {
    match text.is_null() {
        true => c"",
        // SAFETY: not null, so text that ends in NUL.
        false => unsafe { CStr::from_ptr(text) },
    }
}

/// nvJitLinkCreate.
///
/// # Safety
/// As NVIDIA's: a place for the handle, and so many options.
unsafe extern "C" fn create<const AT: usize>(
    handle: *mut *mut c_void,
    count: c_uint,
    options: *const *const c_char,
) -> c_int {
    let linker = &LOADED[AT];
    let mut given: Vec<*const c_char> = match count as usize {
        // SAFETY: so many options, as the caller promises.
        count if count > 0 && !options.is_null() => unsafe {
            std::slice::from_raw_parts(options, count).to_vec()
        },
        _ => Vec::new(),
    };
    // SAFETY: each is null or an option that ends in NUL, as the caller promises.
    let has = |option: &CStr| given.iter().any(|word| unsafe { text(*word) } == option);
    let (by_library, wants_ptx) = (has(c"-lto"), has(c"-ptx"));
    if by_library && !wants_ptx {
        given.push(c"-ptx".as_ptr());
    }
    // SAFETY: `bind` has put the function's address there before it gave ours away.
    let theirs: Create = unsafe { function_at(&linker.create) };
    // SAFETY: the caller's place, and options that live until the call has ended.
    let result = unsafe { theirs(handle, given.len() as c_uint, given.as_ptr()) };
    if result == 0 && !wants_ptx {
        // SAFETY: the call succeeded, so the handle has been written.
        let handle = unsafe { handle.read() };
        let link = match by_library {
            true => Link::ByLibrary,
            false => Link::Kept(Vec::new()),
        };
        linker.with_links(|links| links.insert(handle.addr(), link));
    }
    result
}

/// nvJitLinkAddData.
///
/// # Safety
/// As NVIDIA's: a handle, so many bytes, a name or null.
unsafe extern "C" fn add_data<const AT: usize>(
    handle: *mut c_void,
    kind: c_int,
    data: *const c_void,
    size: usize,
    name: *const c_char,
) -> c_int {
    let linker = &LOADED[AT];
    if !data.is_null() && size > 0 {
        // SAFETY: so many bytes, and a name that is null or ends in NUL, as the caller promises.
        let (bytes, name) = unsafe {
            (
                std::slice::from_raw_parts(data.cast::<u8>(), size),
                text(name),
            )
        };
        if linker.keep(handle, kind, &name.to_string_lossy(), bytes) {
            return 0;
        }
    }
    // SAFETY: `bind` has put the function's address there; the arguments are the caller's own.
    unsafe { function_at::<AddData>(&linker.add_data)(handle, kind, data, size, name) }
}

/// nvJitLinkAddFile.
///
/// # Safety
/// As NVIDIA's: a handle and a path.
unsafe extern "C" fn add_file<const AT: usize>(
    handle: *mut c_void,
    kind: c_int,
    path: *const c_char,
) -> c_int {
    let linker = &LOADED[AT];
    // SAFETY: null or text that ends in NUL, as the caller promises.
    let name = unsafe { text(path) }.to_string_lossy();
    // What cannot be read is nvJitLink's to say.
    if let Ok(bytes) = std::fs::read(&*name)
        && linker.keep(handle, kind, &name, &bytes)
    {
        return 0;
    }
    // SAFETY: `bind` has put the function's address there; the arguments are the caller's own.
    unsafe { function_at::<AddFile>(&linker.add_file)(handle, kind, path) }
}

/// nvJitLinkComplete.
///
/// # Safety
/// As NVIDIA's: a handle.
unsafe extern "C" fn complete<const AT: usize>(handle: *mut c_void) -> c_int {
    let linker = &LOADED[AT];
    let is_ours = linker.with_links(|links| {
        let Some(Link::Kept(inputs)) = links.get(&handle.addr()) else {
            return false;
        };
        if inputs.is_empty() {
            return false;
        }
        let image = linked_image::encode(inputs.iter().map(|input| Part {
            kind: input.kind,
            name: &input.name,
            bytes: &input.bytes,
        }));
        links.insert(handle.addr(), Link::Complete(image));
        true
    });
    if is_ours {
        return 0;
    }
    // SAFETY: `bind` has put the function's address there; the argument is the caller's own.
    unsafe { function_at::<Complete>(&linker.complete)(handle) }
}

/// nvJitLinkDestroy.
///
/// # Safety
/// As NVIDIA's: a place of a handle.
unsafe extern "C" fn destroy<const AT: usize>(handle: *mut *mut c_void) -> c_int {
    let linker = &LOADED[AT];
    if !handle.is_null() {
        // SAFETY: not null, so valid for reads, as the caller promises.
        let handle = unsafe { handle.read() };
        linker.with_links(|links| links.remove(&handle.addr()));
    }
    // SAFETY: `bind` has put the function's address there; the argument is the caller's own.
    unsafe { function_at::<Destroy>(&linker.destroy)(handle) }
}

/// nvJitLinkGetLinkedCubin.
///
/// # Safety
/// As NVIDIA's: a handle, and as many bytes as nvJitLinkGetLinkedCubinSize has said.
unsafe extern "C" fn code<const AT: usize>(handle: *mut c_void, code: *mut c_void) -> c_int {
    let linker = &LOADED[AT];
    let by_library = linker.with_links(|links| match links.get(&handle.addr()) {
        Some(Link::Complete(image)) => {
            // SAFETY: the buffer has the size that `code_size` told.
            unsafe {
                code.cast::<u8>()
                    .copy_from_nonoverlapping(image.as_ptr(), image.len());
            }
            None
        }
        Some(Link::ByLibrary) => Some(linker.function(c"nvJitLinkGetLinkedPtx")),
        _ => Some(linker.code.load(Ordering::Acquire)),
    });
    match by_library {
        None => 0,
        Some(theirs) if theirs.is_null() => INTERNAL_ERROR,
        // SAFETY: nvJitLink's functions of these names have this type; the arguments are the caller's own.
        Some(theirs) => unsafe {
            std::mem::transmute::<*mut c_void, GetBytes>(theirs)(handle, code)
        },
    }
}

/// nvJitLinkGetLinkedCubinSize.
///
/// # Safety
/// As NVIDIA's: a handle, and a place for the size.
unsafe extern "C" fn code_size<const AT: usize>(handle: *mut c_void, size: *mut usize) -> c_int {
    let linker = &LOADED[AT];
    let by_library = linker.with_links(|links| match links.get(&handle.addr()) {
        Some(Link::Complete(image)) if !size.is_null() => {
            // SAFETY: not null, so valid for the write, as the caller promises.
            unsafe { size.write(image.len()) };
            None
        }
        Some(Link::ByLibrary) => Some(linker.function(c"nvJitLinkGetLinkedPtxSize")),
        _ => Some(linker.code_size.load(Ordering::Acquire)),
    });
    match by_library {
        None => 0,
        Some(theirs) if theirs.is_null() => INTERNAL_ERROR,
        // SAFETY: nvJitLink's functions of these names have this type; the arguments are the caller's own.
        Some(theirs) => unsafe {
            std::mem::transmute::<*mut c_void, GetSize>(theirs)(handle, size)
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The last place, which no other test takes.
    const AT: usize = LINKERS - 1;

    /// nvJitLink's, as far as a link that is kept needs it.
    unsafe extern "C" fn their_create(
        handle: *mut *mut c_void,
        _count: c_uint,
        _options: *const *const c_char,
    ) -> c_int {
        // SAFETY: the test's own place.
        unsafe { handle.write(std::ptr::without_provenance_mut(64)) };
        0
    }
    unsafe extern "C" fn their_complete(_handle: *mut c_void) -> c_int {
        3
    }
    unsafe extern "C" fn their_destroy(_handle: *mut *mut c_void) -> c_int {
        0
    }

    #[test]
    fn what_is_linked_is_what_was_added() {
        let linker = &LOADED[AT];
        let bound =
            |name: &[u8], theirs: *mut c_void| assert_ne!(linker.bind::<AT>(name, theirs), theirs);
        bound(b"__nvJitLinkCreate_13_0", their_create as *mut c_void);
        bound(b"nvJitLinkComplete", their_complete as *mut c_void);
        bound(b"__nvJitLinkDestroy_12_4", their_destroy as *mut c_void);
        let ptx = c".version 8.0\n.target sm_75\n";
        let mut handle = null_mut();
        let options = [c"-arch=sm_121".as_ptr()];
        // SAFETY: arguments as a program gives them.
        unsafe {
            assert_eq!(create::<AT>(&raw mut handle, 1, options.as_ptr()), 0);
            // Nothing was added: nvJitLink says so.
            assert_eq!(complete::<AT>(handle), 3);
            for kind in [2, 1, 10] {
                let (text, size) = (ptx.as_ptr().cast(), ptx.count_bytes());
                assert_eq!(
                    add_data::<AT>(handle, kind, text, size, c"a.ptx".as_ptr()),
                    0
                );
            }
            assert_eq!(complete::<AT>(handle), 0);
            let mut size = 0;
            assert_eq!(code_size::<AT>(handle, &raw mut size), 0);
            let mut image = vec![0_u8; size];
            assert_eq!(code::<AT>(handle, image.as_mut_ptr().cast()), 0);
            let parts = linked_image::decode(&image).unwrap();
            let part = Part {
                kind: PTX,
                name: "a.ptx",
                bytes: ptx.to_bytes(),
            };
            assert_eq!(parts, [part; 3]);
            assert_eq!(destroy::<AT>(&raw mut handle), 0);
            assert!(linker.with_links(|links| links.is_empty()));
        }
    }

    #[test]
    fn inputs_are_what_they_say_or_what_they_begin_with() {
        let elf = b"\x7fELF\x02";
        assert_eq!(part_kind(1, elf), Some(CUBIN));
        assert_eq!(part_kind(1, b"//\n.version 9.0"), Some(PTX));
        assert_eq!(part_kind(10, elf), Some(OBJECT));
        assert_eq!(part_kind(10, b"!<arch>\n"), Some(LIBRARY));
        assert_eq!(part_kind(10, &[0x50, 0xed, 0x55, 0xba, 1]), Some(FATBIN));
        // LLVM's own, which wants -lto.
        assert_eq!(part_kind(3, b"BC"), None);
        assert_eq!(plain(b"nvJitLinkGetLinkedCubinSize"), b"GetLinkedCubinSize");
        assert_eq!(plain(b"__nvJitLinkVersion"), b"Version");
        assert_eq!(plain(b"nvrtcVersion"), b"");
    }
}
