//! A file of a peer's, mapped over part of a mapping of ours.
//!
//! Nothing seals such a file. It may be cut short, or its file system run full, while it is mapped, and
//! whoever touches a page that is not there then gets SIGBUS. So all overlays are listed where a signal
//! handler finds them: it puts a page of zeroes in the place of the missing one, marks the overlay as
//! [torn](Overlay::is_torn), and lets the access go on. Files that can hold up who touches them, on a
//! network or served by a program, are refused.
//!
//! Owns these mappings, and the process's action for SIGBUS once there was one. Called by the server for files that
//! clients register. Must not know clients.

#![allow(clippy::disallowed_types, reason = "no model of loom goes here")]

use super::{Mapping, MemoryError, Sealed, system};
use crate::sync::{AtomicBool, AtomicU64, Ordering};
use rustix::fs::{FileType, OFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::ffi::{c_int, c_void};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// File systems whose pages come from this machine's memory or disks, by the kernel's numbers: tmpfs
/// (memfds, /dev/shm, anonymous shared memory), hugetlbfs, ext2 to ext4, XFS, Btrfs, F2FS.
const LOCAL: [u32; 6] = [
    0x0102_1994,
    HUGETLBFS,
    0xef53,
    0x5846_5342,
    0x9123_683e,
    0xf2f5_2010,
];
const HUGETLBFS: u32 = 0x9584_58f6;

/// Overlays that a process can have.
const MOST: usize = 4096;

/// An overlay, as the handler sees it. `start` is 0 where there is none.
struct OverlayEntry {
    start: AtomicU64,
    end: AtomicU64,
    /// Bytes of a page of its file.
    page: AtomicU64,
    torn: AtomicBool,
}

static OVERLAYS: [OverlayEntry; MOST] = [const {
    OverlayEntry {
        start: AtomicU64::new(0),
        end: AtomicU64::new(0),
        page: AtomicU64::new(0),
        torn: AtomicBool::new(false),
    }
}; MOST];

/// Missing pages of all overlays so far.
static TORN_PAGES: AtomicU64 = AtomicU64::new(0);

/// Held while the list changes.
static OVERLAYS_CHANGE: Mutex<()> = Mutex::new(());

/// How many pages were touched in all overlays that there were, which their files did not have.
#[must_use]
pub fn torn_pages() -> u64 {
    TORN_PAGES.load(Ordering::Acquire)
}

/// Bytes of the pages of a file: they bound how parts of it can be mapped.
///
/// # Errors
/// [`MemoryError::Unsuitable`] for what cannot be mapped over our memory: no regular file, or a file
/// whose pages may have to be waited for.
pub fn page_of(file: impl AsFd) -> Result<u64, MemoryError> {
    let look = system("look at a file");
    let stat = rustix::fs::fstat(&file).map_err(&look)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(MemoryError::Unsuitable("no regular file"));
    }
    let kind = rustix::fs::fstatfs(&file).map_err(&look)?.f_type as u32;
    if !LOCAL.contains(&kind) {
        return Err(MemoryError::Unsuitable(
            "in a file system other than tmpfs, hugetlbfs, ext4, XFS, Btrfs and F2FS",
        ));
    }
    let page = match kind {
        HUGETLBFS => stat.st_blksize as u64,
        _ => rustix::param::page_size() as u64,
    };
    match page.is_power_of_two() {
        true => Ok(page),
        false => Err(MemoryError::Unsuitable("a file of odd pages")),
    }
}

/// A part of a peer's file in the place of a part of our memory. That comes back, zeroed, when this is
/// dropped.
#[derive(Debug)]
pub struct Overlay {
    under: Arc<Mapping>,
    memory: Arc<Sealed>,
    /// Where in both of them it begins.
    at: usize,
    bytes: usize,
    slot: usize,
    is_mapped: bool,
}

impl Overlay {
    /// Maps `bytes` bytes of a file, from `offset` on, over `under`, a mapping of all of `memory`, from
    /// `at` on. All three are multiples of the file's pages. What a read-only one is written is nobody
    /// else's to see.
    ///
    /// # Errors
    /// [`MemoryError::Unsuitable`] for a file that cannot be used so, or is too short; and when the
    /// kernel has no room. Then nothing has changed.
    pub fn map(
        (under, memory): (&Arc<Mapping>, &Arc<Sealed>),
        at: usize,
        file: BorrowedFd<'_>,
        offset: u64,
        bytes: usize,
        read_only: bool,
    ) -> Result<Self, MemoryError> {
        let page = page_of(file)?;
        let is_aligned = |value: u64| value.is_multiple_of(page);
        let fits = bytes > 0 && bytes <= under.len() && at <= under.len() - bytes;
        if !fits
            || ![under.base() + at as u64, offset, bytes as u64]
                .into_iter()
                .all(is_aligned)
        {
            return Err(MemoryError::Unsuitable("not in whole pages of the file"));
        }
        let mode = rustix::fs::fcntl_getfl(file).map_err(system("look at a file"))?;
        let access = mode & OFlags::ACCMODE;
        if mode.contains(OFlags::PATH)
            || access != OFlags::RDWR && !(read_only && access == OFlags::RDONLY)
        {
            return Err(MemoryError::Unsuitable(
                "not open for what it is to be mapped for",
            ));
        }
        let stat = rustix::fs::fstat(file).map_err(system("look at a file"))?;
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        if offset
            .checked_add(bytes as u64)
            .is_none_or(|end| end > size.next_multiple_of(page))
        {
            return Err(MemoryError::Unsuitable("longer than the file"));
        }
        catch_torn_pages()?;
        let slot = list(under.base() + at as u64, bytes as u64, page)?;
        let mut overlay = Self {
            under: Arc::clone(under),
            memory: Arc::clone(memory),
            at,
            bytes,
            slot,
            is_mapped: false,
        };
        // Private where nobody may see what is written: such pages show the file until they are.
        let sharing = match read_only {
            true => MapFlags::PRIVATE,
            false => MapFlags::SHARED,
        };
        overlay.replace(file, offset, sharing)?;
        overlay.is_mapped = true;
        Ok(overlay)
    }

    /// Whether a page was touched that the file did not have.
    #[must_use]
    pub fn is_torn(&self) -> bool {
        OVERLAYS[self.slot].torn.load(Ordering::Acquire)
    }

    /// Puts our own memory back, zeroed. Nobody touches the file through this any more. It is done when
    /// this is dropped as well; called before, it says whether it could be.
    ///
    /// # Errors
    /// When the kernel has no room: then the file stays mapped for good.
    pub fn restore(&mut self) -> Result<(), MemoryError> {
        if !self.is_mapped {
            return Ok(());
        }
        let memory = Arc::clone(&self.memory);
        self.replace(memory.as_fd(), self.at as u64, MapFlags::SHARED)?;
        self.is_mapped = false;
        // What was written beside the file's end stays if it cannot be given back: it is the peer's.
        let _ = self.under.advise(self.at, self.bytes, Advice::LinuxRemove);
        Ok(())
    }

    fn replace(
        &self,
        file: BorrowedFd<'_>,
        offset: u64,
        sharing: MapFlags,
    ) -> Result<(), MemoryError> {
        let to = std::ptr::with_exposed_provenance_mut(self.under.base() as usize + self.at);
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = sharing | MapFlags::NORESERVE | MapFlags::FIXED;
        // SAFETY: the range lies in `under` (`map` has checked), which this keeps mapped, and to which
        // nobody has a reference: access is by atomics and raw copies, which may find other bytes at
        // any time. Pages that are missing are the handler's.
        unsafe { rustix::mm::mmap(to, self.bytes, access, flags, file, offset) }
            .map(drop)
            .map_err(system("map a file"))
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        if self.restore().is_ok() {
            let _changing = OVERLAYS_CHANGE
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            OVERLAYS[self.slot].start.store(0, Ordering::Release);
        }
    }
}

fn list(start: u64, bytes: u64, page: u64) -> Result<usize, MemoryError> {
    let _changing = OVERLAYS_CHANGE
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    let free = |entry: &OverlayEntry| entry.start.load(Ordering::Relaxed) == 0;
    let slot = OVERLAYS
        .iter()
        .position(free)
        .ok_or(MemoryError::System("map a file", rustix::io::Errno::NOMEM))?;
    let entry = &OVERLAYS[slot];
    entry.torn.store(false, Ordering::Relaxed);
    entry.page.store(page, Ordering::Relaxed);
    entry.end.store(start + bytes, Ordering::Relaxed);
    entry.start.store(start, Ordering::Release);
    Ok(slot)
}

/// The C library's struct sigaction, on 64-bit Linux.
#[repr(C)]
#[derive(Clone, Copy)]
struct Action {
    handler: usize,
    mask: [u64; 16],
    flags: c_int,
    restorer: usize,
}

/// The beginning of the C library's siginfo_t for a signal of a fault.
#[repr(C)]
struct Information {
    number: [c_int; 4],
    address: *mut c_void,
}

const SIGBUS: c_int = 7;
const SA_SIGINFO: c_int = 4;
const SA_ONSTACK: c_int = 0x0800_0000;

unsafe extern "C" {
    /// POSIX.
    fn sigaction(signal: c_int, action: *const Action, former: *mut Action) -> c_int;
}

/// What SIGBUS did before.
static PREVIOUS_ACTION: OnceLock<Action> = OnceLock::new();

/// Has SIGBUS come to `torn` from now on.
fn catch_torn_pages() -> Result<(), MemoryError> {
    let _changing = OVERLAYS_CHANGE
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    if PREVIOUS_ACTION.get().is_some() {
        return Ok(());
    }
    let handler: unsafe extern "C" fn(c_int, *const Information, *mut c_void) = torn;
    let ours = Action {
        handler: handler as usize,
        mask: [0; 16],
        flags: SA_SIGINFO | SA_ONSTACK,
        restorer: 0,
    };
    let mut former = Action { handler: 0, ..ours };
    // SAFETY: both are the C library's structure. The handler keeps to what handlers may do. It finds
    // what was before only once that is noted, and until then there is no overlay for it to be about.
    if unsafe { sigaction(SIGBUS, &raw const ours, &raw mut former) } != 0 {
        return Err(MemoryError::System(
            "handle SIGBUS",
            rustix::io::Errno::INVAL,
        ));
    }
    // Nobody else sets it: the lock is held.
    let _ = PREVIOUS_ACTION.set(former);
    Ok(())
}

/// Puts zeroes where a file has no page, if that is what the signal is about. Else has the same happen
/// again as if this handler were not there.
unsafe extern "C" fn torn(_: c_int, information: *const Information, _: *mut c_void) {
    // SAFETY: the kernel gives every handler with SA_SIGINFO a siginfo_t.
    let address = unsafe { (*information).address }.addr() as u64;
    let is_in = |entry: &&OverlayEntry| {
        let start = entry.start.load(Ordering::Acquire);
        start != 0 && (start..entry.end.load(Ordering::Relaxed)).contains(&address)
    };
    if let Some(entry) = OVERLAYS.iter().find(is_in) {
        let page = entry.page.load(Ordering::Relaxed);
        let to = std::ptr::with_exposed_provenance_mut((address & !(page - 1)) as usize);
        // SAFETY: a system call and nothing else, on a page of a listed overlay: what is mapped there is
        // a file that has no such page, and whose owner promised nothing.
        let mapped = unsafe {
            rustix::mm::mmap_anonymous(
                to,
                page as usize,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED,
            )
        };
        if mapped.is_ok() {
            entry.torn.store(true, Ordering::Release);
            TORN_PAGES.fetch_add(1, Ordering::Release);
            return;
        }
    }
    if let Some(former) = PREVIOUS_ACTION.get() {
        // SAFETY: what the C library gave is given back to it.
        unsafe { sigaction(SIGBUS, former, std::ptr::null_mut()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 4096;

    fn window() -> (Arc<Mapping>, Arc<Sealed>) {
        let memory = Sealed::create("test", 16 * PAGE as u64).unwrap();
        let mapping = Mapping::map(&memory).unwrap();
        (Arc::new(mapping), Arc::new(memory))
    }

    fn file(pages: usize) -> std::fs::File {
        let fd = rustix::fs::memfd_create("file", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let file = std::fs::File::from(fd);
        file.set_len((pages * PAGE) as u64).unwrap();
        file
    }

    #[test]
    #[cfg_attr(miri, ignore = "maps shared memory, which Miri does not know")]
    fn a_file_is_seen_and_written_in_its_place_until_it_goes() {
        use std::os::unix::fs::FileExt;
        let (under, memory) = window();
        let file = file(4);
        under.copy_in(0, &[1; 16 * PAGE]);
        file.write_all_at(&[2; 2 * PAGE], PAGE as u64).unwrap();
        let parts = (&under, &memory);
        let (offset, bytes) = (PAGE as u64, 2 * PAGE);
        let mut over = Overlay::map(parts, 3 * PAGE, file.as_fd(), offset, bytes, false).unwrap();
        let byte = |at: usize| {
            let mut byte = [0];
            under.copy_out(at, &mut byte);
            byte[0]
        };
        assert_eq!([byte(3 * PAGE - 1), byte(3 * PAGE)], [1, 2]);
        assert_eq!([byte(5 * PAGE - 1), byte(5 * PAGE)], [2, 1]);
        under.copy_in(4 * PAGE, &[3]);
        let mut there = [0];
        file.read_exact_at(&mut there, 2 * PAGE as u64).unwrap();
        assert_eq!(there, [3]);
        over.restore().unwrap();
        assert_eq!(
            [byte(3 * PAGE - 1), byte(3 * PAGE), byte(5 * PAGE)],
            [1, 0, 1]
        );
        drop(over);
        file.read_exact_at(&mut there, 2 * PAGE as u64).unwrap();
        assert_eq!(there, [3], "the file lost its pages");

        let over = Overlay::map(parts, 3 * PAGE, file.as_fd(), offset, bytes, true).unwrap();
        under.copy_in(4 * PAGE, &[4]);
        file.read_exact_at(&mut there, 2 * PAGE as u64).unwrap();
        assert_eq!(
            (there, over.is_torn()),
            ([3], false),
            "written though it is read-only"
        );
    }

    #[test]
    #[cfg_attr(miri, ignore = "maps shared memory, which Miri does not know")]
    fn a_file_that_is_cut_short_reads_as_zeroes_and_is_marked() {
        let (under, memory) = window();
        let parts = (&under, &memory);
        let whole = file(4);
        let other = file(4);
        let over = Overlay::map(parts, 0, whole.as_fd(), 0, 4 * PAGE, false).unwrap();
        let beside = Overlay::map(parts, 8 * PAGE, other.as_fd(), 0, 4 * PAGE, false).unwrap();
        under.copy_in(0, &[1; 4 * PAGE]);
        whole.set_len(PAGE as u64).unwrap();
        let mut bytes = vec![9; 4 * PAGE];
        under.copy_out(0, &mut bytes);
        assert!(bytes[..PAGE].iter().all(|&byte| byte == 1));
        assert!(bytes[PAGE..].iter().all(|&byte| byte == 0));
        assert!(over.is_torn() && !beside.is_torn());
        // A write lands nowhere, and does no harm.
        under.copy_in(2 * PAGE, &[1; PAGE]);
        drop(over);
        let again = Overlay::map(parts, 0, other.as_fd(), 0, PAGE, false).unwrap();
        assert!(!again.is_torn());
    }

    #[test]
    #[cfg_attr(miri, ignore = "maps shared memory, which Miri does not know")]
    fn what_is_no_file_of_this_machine_or_does_not_fit_is_refused() {
        let (under, memory) = window();
        let parts = (&under, &memory);
        let file = file(4);
        let map = |at: usize, offset: usize, bytes: usize| {
            Overlay::map(parts, at, file.as_fd(), offset as u64, bytes, false).err()
        };
        for (at, offset, bytes) in [
            (0, 0, 0),
            (1, 0, PAGE),
            (0, 1, PAGE),
            (0, 0, PAGE + 1),
            (0, PAGE, 4 * PAGE),
            (0, usize::MAX & !(PAGE - 1), PAGE),
            (14 * PAGE, 0, 4 * PAGE),
            (0, 0, usize::MAX & !(PAGE - 1)),
        ] {
            let error = map(at, offset, bytes);
            assert!(
                matches!(error, Some(MemoryError::Unsuitable(_))),
                "{at} {offset} {bytes}: {error:?}"
            );
        }
        let read_only = std::fs::File::open("/proc/self/exe").unwrap();
        let proc = std::fs::File::open("/proc/self/maps").unwrap();
        let (pipe, _end) = rustix::pipe::pipe().unwrap();
        for fd in [read_only.as_fd(), proc.as_fd(), pipe.as_fd()] {
            let error = Overlay::map(parts, 0, fd, 0, PAGE, false);
            assert!(
                matches!(error, Err(MemoryError::Unsuitable(_))),
                "{error:?}"
            );
        }
    }
}
