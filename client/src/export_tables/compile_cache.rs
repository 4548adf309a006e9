//! The compile cache that NVRTC asks of the driver (table COMPILE_CACHE).
//!
//! NVRTC names an entry by everything that decides what comes out: the compiler's input, its options,
//! its own build and the target. It asks for the entry's content and, where there is none, compiles and
//! stores. A program is asked for twice: as PTX, then as machine code. The second name says nothing of
//! options that decide what the PTX is (-ftz=true), so the PTX itself is made part of it here: the one
//! that the same thread found or stored for the same program just before. Entries are kept in memory and, where the user has a safe folder, in files, which later
//! processes find. An entry is found only if its whole key is the same: hashes choose where to look.
//!
//! A miss is always right, so whatever goes wrong here is a miss. The protocol, as it was seen, is in
//! docs/notes/nvrtc-compile-cache.md.
//!
//! Called by NVRTC through the table's slots. Must not know the session: compiling needs no device.

mod files;
mod memory;
mod settings;

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};

use cuda_abi::CUresult;

use super::table::{contain, status};
use crate::log::log;
use files::Files;
use memory::CachedEntries;
use settings::Settings;

/// The most bytes that a key or a content may have. NVRTC's are far below; what is larger is compiled
/// each time.
const LARGEST: usize = 64 << 20;

/// What an entry is named by.
type Key = Arc<[u8]>;

/// What was compiled.
type Content = Arc<[u8]>;

/// What is made of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OutputKind {
    MachineCode = 1,
    Ptx = 2,
}

/// An entry that NVRTC has open.
struct OpenEntry {
    /// None where nothing is kept, because the name is too large or does not say all.
    key: Option<Key>,
    /// The program, if this is its PTX.
    program: Option<Arc<[u8]>>,
}

/// A program's PTX.
struct ProgramPtx {
    program: Arc<[u8]>,
    ptx: Content,
}

thread_local! {
    /// The PTX that this thread has found or stored, until it asks for the machine code.
    static LAST: RefCell<Option<ProgramPtx>> = const { RefCell::new(None) };
}

/// Takes what this thread did last. A thread that is ending has none.
fn take_last() -> Option<ProgramPtx> {
    LAST.try_with(|last| last.borrow_mut().take()).ok()?
}

impl OpenEntry {
    fn new(kind: u32, architecture: u32, texts: [Option<&CStr>; 3], data: &[u8]) -> Self {
        let last = take_last();
        let length = |text: &Option<&CStr>| text.map_or(0, CStr::count_bytes);
        let total = texts.iter().map(length).sum::<usize>() + data.len();
        let kept = |kind, parts: &[&[u8]]| {
            let bytes = total + parts.iter().map(|part| part.len()).sum::<usize>();
            (bytes <= LARGEST).then(|| key(kind, architecture, texts, parts).into())
        };
        match kind {
            2 => Self {
                key: kept(OutputKind::Ptx, &[data]),
                program: Some(data.into()),
            },
            1 => Self {
                key: last
                    .filter(|step| *step.program == *data)
                    .and_then(|step| kept(OutputKind::MachineCode, &[&step.ptx, data])),
                program: None,
            },
            _ => {
                log!("compile cache: entries of kind {kind} are not known, so not kept");
                Self {
                    key: None,
                    program: None,
                }
            }
        }
    }

    /// Notes what is under this name now.
    fn is(&self, content: &Content) {
        if let Some(program) = &self.program {
            let step = ProgramPtx {
                program: program.clone(),
                ptx: content.clone(),
            };
            let _ = LAST.try_with(|last| last.replace(Some(step)));
        }
    }
}

/// Where entries are kept.
struct CompileCache {
    memory: Mutex<CachedEntries>,
    files: Option<Files>,
    /// The process that made this, whose other threads unlock what they lock.
    process: u32,
    /// Whether the log has said that files cannot be written.
    complained: AtomicBool,
}

impl CompileCache {
    fn of_process() -> &'static Self {
        static CACHE: OnceLock<CompileCache> = OnceLock::new();
        CACHE.get_or_init(|| {
            Self::new(if cfg!(test) {
                // Unit tests leave the user's own folder alone.
                Settings::memory_only()
            } else {
                Settings::of_process()
            })
        })
    }

    fn new(settings: Settings) -> Self {
        let files = |folder| Files::new(folder, settings.bytes_of_files);
        Self {
            memory: Mutex::new(CachedEntries::new(settings.bytes_of_memory)),
            files: settings.folder.map(files),
            process: std::process::id(),
            complained: AtomicBool::new(false),
        }
    }

    /// The entries in memory. None in a fork's child if a thread of the parent had them locked, which
    /// nobody would unlock.
    fn memory(&self) -> Option<MutexGuard<'_, CachedEntries>> {
        if std::process::id() == self.process {
            return Some(self.memory.lock().unwrap_or_else(PoisonError::into_inner));
        }
        match self.memory.try_lock() {
            Ok(memory) => Some(memory),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn find(&self, key: &Key) -> Option<Content> {
        if let Some(content) = self.memory().and_then(|mut memory| memory.get(key)) {
            return Some(content);
        }
        let content: Content = self.files.as_ref()?.get(key)?.into();
        if let Some(mut memory) = self.memory() {
            memory.put(key, &content);
        }
        Some(content)
    }

    fn insert(&self, key: &Key, content: &Content) {
        if let Some(mut memory) = self.memory() {
            memory.put(key, content);
        }
        let Some(files) = &self.files else { return };
        if let Err(error) = files.put(key, content)
            && !self.complained.swap(true, Ordering::Relaxed)
        {
            log!(
                "compile cache: nothing is kept in {}: {error}; CUDA_CACHE_PATH names another folder",
                files.folder().display()
            );
        }
    }
}

/// Everything that decides what is compiled, so that two keys are the same bytes only if all parts are
/// the same.
fn key(kind: OutputKind, architecture: u32, texts: [Option<&CStr>; 3], parts: &[&[u8]]) -> Vec<u8> {
    let mut key = Vec::new();
    key.extend((kind as u32).to_le_bytes());
    key.extend(architecture.to_le_bytes());
    for text in texts {
        // With its NUL, a text has at least one byte: 0 stands for none.
        let bytes = text.map_or(&[][..], CStr::to_bytes_with_nul);
        key.extend((bytes.len() as u64).to_le_bytes());
        key.extend(bytes);
    }
    for part in parts {
        key.extend((part.len() as u64).to_le_bytes());
        key.extend(*part);
    }
    key
}

/// # Safety
/// `text` is null or text that ends in a NUL and stays as it is for the lifetime.
unsafe fn text<'a>(text: *const c_char) -> Option<&'a CStr> {
    // SAFETY: not null, so text, as the caller promises.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) })
}

/// # Safety
/// `data` leads to that many bytes, which stay as they are for the lifetime.
unsafe fn bytes<'a>(data: *const c_void, bytes: usize) -> Result<&'a [u8], CUresult> {
    match bytes {
        0 => Ok(&[]),
        _ if data.is_null() => Err(CUresult::ERROR_INVALID_VALUE),
        // SAFETY: not null, so that many bytes, as the caller promises.
        _ => Ok(unsafe { std::slice::from_raw_parts(data.cast(), bytes) }),
    }
}

/// A parameter that has only ever been seen as 0, so that nobody knows what else it would mean.
fn must_be_zero(parameter: u32) -> Result<(), CUresult> {
    if parameter != 0 {
        log!("compile cache: a parameter that is known as 0 is {parameter}: not served");
        return Err(CUresult::ERROR_NOT_SUPPORTED);
    }
    Ok(())
}

/// Slot 1: opens the entry of this name, whether anything is kept under it or not.
///
/// # Safety
/// `entry` is null or valid for a write; `data` leads to `size` bytes; each text is null or ends in a
/// NUL.
#[allow(
    clippy::too_many_arguments,
    reason = "these are the ones that NVRTC passes"
)]
pub(super) unsafe extern "C" fn open(
    entry: *mut *mut c_void,
    kind: u32,
    data: *const c_void,
    size: usize,
    options: *const c_char,
    flavour: *const c_char,
    build: *const c_char,
    architecture: u32,
    unknown: u32,
) -> CUresult {
    status(|| {
        must_be_zero(unknown)?;
        if entry.is_null() {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        // SAFETY: the caller vouches for `size` bytes at `data`.
        let data = unsafe { bytes(data, size)? };
        // SAFETY: the caller vouches that each text is null or ends in a NUL.
        let texts = unsafe { [text(options), text(flavour), text(build)] };
        let opened = Box::into_raw(Box::new(OpenEntry::new(kind, architecture, texts, data)));
        // SAFETY: not null, so valid for the write.
        unsafe { entry.write(opened.cast()) };
        Ok(())
    })
}

/// Slot 2: closes an entry. What is kept stays.
///
/// # Safety
/// `entry` is null or came from [`open`], and is not used again.
pub(super) unsafe extern "C" fn close(entry: *mut c_void) -> CUresult {
    if entry.is_null() {
        return CUresult::ERROR_INVALID_VALUE;
    }
    // SAFETY: `open` made it with Box::into_raw, and this is its last use, as the caller promises.
    drop(unsafe { Box::from_raw(entry.cast::<OpenEntry>()) });
    CUresult::SUCCESS
}

/// # Safety
/// `entry` is null or came from [`open`], and is not closed for the lifetime.
unsafe fn opened<'a>(entry: *mut c_void) -> Result<&'a OpenEntry, CUresult> {
    // SAFETY: null or what `open` made, as the caller promises.
    unsafe { entry.cast::<OpenEntry>().as_ref() }.ok_or(CUresult::ERROR_INVALID_VALUE)
}

/// Slot 3: what is kept, in memory that is the caller's from here on; CUDA_ERROR_NOT_FOUND for none.
///
/// # Safety
/// `entry` is null or came from [`open`]; `data` and `bytes` are null or valid for writes.
pub(super) unsafe extern "C" fn query(
    entry: *mut c_void,
    unknown: u32,
    data: *mut *mut c_void,
    bytes: *mut u32,
) -> CUresult {
    status(|| {
        must_be_zero(unknown)?;
        // SAFETY: the caller vouches that `entry` is null or came from `open`; it is open during the call.
        let entry = unsafe { opened(entry)? };
        if data.is_null() || bytes.is_null() {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let cache = CompileCache::of_process();
        let found = entry.key.as_ref().and_then(|key| cache.find(key));
        let content = found.ok_or(CUresult::ERROR_NOT_FOUND)?;
        entry.is(&content);
        let copy = malloc(content.len());
        if copy.is_null() {
            return Err(CUresult::ERROR_OUT_OF_MEMORY);
        }
        // SAFETY: the copy has as many bytes and is nobody else's; neither result is null.
        unsafe {
            copy.cast::<u8>()
                .copy_from_nonoverlapping(content.as_ptr(), content.len());
            data.write(copy);
            // At most LARGEST.
            bytes.write(content.len() as u32);
        }
        Ok(())
    })
}

/// Slot 4: keeps what was compiled, in place of what was kept before.
///
/// # Safety
/// `entry` is null or came from [`open`]; `data` leads to `size` bytes.
pub(super) unsafe extern "C" fn store(
    entry: *mut c_void,
    unknown: u32,
    data: *const c_void,
    size: u32,
) -> CUresult {
    status(|| {
        must_be_zero(unknown)?;
        // SAFETY: the caller vouches that `entry` is null or came from `open`; it is open during the call.
        let entry = unsafe { opened(entry)? };
        // SAFETY: the caller vouches for `size` bytes at `data`.
        let content = unsafe { bytes(data, size as usize)? };
        if content.is_empty() {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        if content.len() <= LARGEST {
            let content = content.into();
            entry.is(&content);
            if let Some(key) = &entry.key {
                CompileCache::of_process().insert(key, &content);
            }
        }
        Ok(())
    })
}

/// Slot 6: frees what [`query`] gave.
///
/// # Safety
/// `data` is null or came from [`query`], and is not used again.
pub(super) unsafe extern "C" fn release(data: *mut c_void) -> CUresult {
    // SAFETY: null or what malloc gave to `query`, as the caller promises.
    contain((), || unsafe { free(data) });
    CUresult::SUCCESS
}

// The caller's memory comes from the C library: drivers whose table lacks slot 6 leave it to `free`.
// SAFETY: these are the declarations of the C library; malloc may be called with any size.
unsafe extern "C" {
    safe fn malloc(bytes: usize) -> *mut c_void;
    fn free(data: *mut c_void);
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    fn settings(folder: &TempDir) -> Settings {
        Settings {
            folder: Some(folder.path().join("openmps")),
            ..Settings::memory_only()
        }
    }

    #[test]
    fn a_key_is_the_same_only_if_every_part_is() {
        let texts = [Some(c"-O3"), Some(c"HOST64"), None];
        let base = || key(OutputKind::Ptx, 90, texts, &[b"bitcode", b""]);
        let of_texts = |texts| key(OutputKind::Ptx, 90, texts, &[b"bitcode", b""]);
        let of_parts = |parts: &[&[u8]]| key(OutputKind::Ptx, 90, texts, parts);
        let others = [
            key(OutputKind::MachineCode, 90, texts, &[b"bitcode", b""]),
            key(OutputKind::Ptx, 80, texts, &[b"bitcode", b""]),
            of_texts([Some(c"-O2"), Some(c"HOST64"), None]),
            of_texts([Some(c"-O3HOST64"), Some(c""), None]),
            of_texts([Some(c"-O3"), Some(c"HOST64"), Some(c"")]),
            of_texts([Some(c"-O3"), None, Some(c"HOST64")]),
            of_parts(&[b"bitcodE", b""]),
            of_parts(&[b"bitcode\0", b""]),
            of_parts(&[b"bitcod", b"e"]),
            of_parts(&[b"bitcode"]),
        ];
        assert_eq!(base(), base());
        for other in others {
            assert_ne!(base(), other);
        }
    }

    #[test]
    fn a_later_process_finds_what_an_earlier_one_kept() {
        let folder = TempDir::new().unwrap();
        let (key, content): (Key, Content) = ((*b"key").into(), (*b"content").into());
        let earlier = CompileCache::new(settings(&folder));
        assert_eq!(earlier.find(&key), None);
        earlier.insert(&key, &content);
        let later = CompileCache::new(settings(&folder));
        assert_eq!(later.find(&key), Some(content.clone()));
        // From here on without the files.
        std::fs::remove_dir_all(folder.path()).unwrap();
        assert_eq!(later.find(&key), Some(content));
    }

    #[test]
    fn a_forks_child_does_without_memory_that_nobody_would_unlock() {
        let mut cache = CompileCache::new(Settings::memory_only());
        let (key, content): (Key, Content) = ((*b"key").into(), (*b"content").into());
        cache.insert(&key, &content);
        // As in a child of the process that made it.
        cache.process = 0;
        assert_eq!(cache.find(&key), Some(content.clone()));
        let _locked = cache.memory.lock().unwrap();
        assert_eq!(cache.find(&key), None);
        cache.insert(&key, &content);
    }
}
