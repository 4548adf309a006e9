//! Registrations of memory that is shared already: mappings of files, of memfds, of /dev/shm. The program
//! keeps its mapping, and so does whoever else has it. The server is given a descriptor of the file and maps
//! the same part of it for the devices; here it is mapped at the window's addresses too, so that they mean
//! the same on both sides.
//!
//! The kernel has no call that gives the file of a mapping, so it is looked for: among the process's
//! descriptors, by its path, and under /proc/self/map_files, which needs privileges. What is found is mapped
//! once, to see whether the kernel says of both mappings that they are of one file.
//!
//! Owns the search and nothing that lasts. Called by `memory::registered`, which keeps what was registered. Must
//! not know what else is.

use std::ffi::c_void;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use cuda_abi::CUresult;
use protocol::operations::{FILE_PACKET, FILE_READ_ONLY, FileMap, HostFree};
use rustix::fs::{Mode, OFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::check_given;
use super::pieces::pointer;
use crate::context::Current;
use crate::os::process_maps::{MappedArea, areas};
use crate::session::connection::Connection;

/// A part of a file that the program has mapped.
pub(super) struct FilePart {
    /// Where the program has it: whole pages of the file's.
    pub(super) pages: Range<u64>,
    file: OwnedFd,
    offset: u64,
    pub(super) read_only: bool,
}

/// Why a file was not found.
pub(super) enum NotFound {
    /// There is more than one in the range.
    Several,
    /// It is none that the server could map; what it is.
    Unsuitable(String),
    /// Nothing leads to it.
    Nothing,
}

impl FilePart {
    /// Finds the file of which the mappings `areas` show the range `pages`, which they cover.
    pub(super) fn find(
        areas: &[MappedArea],
        pages: &Range<u64>,
        read_only: bool,
    ) -> Result<Self, NotFound> {
        let first = areas.first().ok_or(NotFound::Nothing)?;
        let continues = |pair: &[MappedArea]| {
            let bytes = pair[0].addresses.end - pair[0].addresses.start;
            pair[1].file == pair[0].file && pair[1].offset == pair[0].offset + bytes
        };
        if !areas.windows(2).all(continues) {
            return Err(NotFound::Several);
        }
        let file = find(first, read_only).ok_or(NotFound::Nothing)?;
        let unit = transport::memory::page_of(&file);
        let unit = unit.map_err(|error| NotFound::Unsuitable(error.to_string()))?;
        // Of huge pages whole ones, as mappings of them are.
        let pages = pages.start / unit * unit..pages.end.next_multiple_of(unit);
        Ok(Self {
            offset: first.offset + (pages.start - first.addresses.start),
            pages,
            file,
            read_only,
        })
    }

    /// Has the server map it, and maps it in the window here. Gives its address there.
    pub(super) fn share(&self, current: &Current) -> Result<u64, CUresult> {
        let connection = current.connection();
        let bytes = self.pages.end - self.pages.start;
        // The pages are this process's to pay for, not the server's. Where the kernel does not do it,
        // the server does.
        // SAFETY: reading the program's own readable memory changes nothing.
        let _ = unsafe {
            let (at, bytes) = (pointer(self.pages.start), bytes as usize);
            rustix::mm::madvise(at, bytes, Advice::LinuxPopulateRead)
        };
        let request = FileMap {
            context: current.slot(),
            flags: if self.read_only { FILE_READ_ONLY } else { 0 },
            offset: self.offset,
            bytes,
        };
        let reply = connection.call_with_descriptor(FILE_PACKET, self.file.as_fd(), &request)?;
        let window = reply.fields.address;
        check_given(connection, window, bytes)?;
        let access = match self.read_only {
            true => ProtFlags::READ,
            false => ProtFlags::READ | ProtFlags::WRITE,
        };
        let range = window..window + bytes;
        // SAFETY: the server has just given these addresses of the window, which nobody uses yet.
        let mapped = unsafe { put(&range, access, self.file.as_fd(), self.offset) };
        // A fork's child has the program's own mapping. That it has this one too would do no harm.
        // SAFETY: the advice is about forks: it changes nothing in this process.
        let _ =
            unsafe { rustix::mm::madvise(pointer(window), bytes as usize, Advice::LinuxDontFork) };
        if let Err(error) = mapped {
            crate::log::log!("cuMemHostRegister: the file cannot be mapped a second time: {error}");
            connection.post(&HostFree { address: window })?;
            return Err(CUresult::ERROR_OUT_OF_MEMORY);
        }
        Ok(window)
    }
}

/// Ends what [`FilePart::share`] made.
pub(super) fn unshare(connection: &Connection, window: Range<u64>) -> Result<(), CUresult> {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let file = connection.host_memory();
    // SAFETY: these addresses of the window are a registration's that ends; what was there before, the
    // window's own memory, comes back.
    unsafe { put(&window, access, file, connection.host_offset(window.start)) }.map_err(
        |error| {
            // The server keeps the addresses: they show the file here.
            crate::log::log!("cuMemHostUnregister: a file stays mapped in the window: {error}");
            CUresult::ERROR_OUT_OF_MEMORY
        },
    )?;
    connection.post(&HostFree {
        address: window.start,
    })
}

/// Maps a file at addresses of the window.
///
/// # Safety
/// Nobody has to do with what is at these addresses.
unsafe fn put(
    at: &Range<u64>,
    access: ProtFlags,
    file: BorrowedFd<'_>,
    offset: u64,
) -> rustix::io::Result<()> {
    let bytes = (at.end - at.start) as usize;
    let flags = MapFlags::SHARED | MapFlags::NORESERVE | MapFlags::FIXED;
    // SAFETY: the caller keeps that nobody has to do with what is at these addresses.
    unsafe { rustix::mm::mmap(pointer(at.start), bytes, access, flags, file, offset) }.map(drop)
}

/// Looks for the file of a mapping.
fn find(area: &MappedArea, read_only: bool) -> Option<OwnedFd> {
    let access = match read_only {
        true => OFlags::RDONLY,
        false => OFlags::RDWR,
    };
    let open = |path: &str| {
        let flags = access | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
        rustix::fs::open(path, flags, Mode::empty()).ok()
    };
    let is_it = |file: &OwnedFd| is_file_of(file.as_fd(), area);
    let Range { start, end } = area.addresses;
    let of_number = |number: i32| {
        // SAFETY: borrowed for one system call, which says so if there is no such descriptor.
        let theirs = unsafe { BorrowedFd::borrow_raw(number) };
        // Our own, since the program may close and reuse its numbers at any time.
        let ours = rustix::io::fcntl_dupfd_cloexec(theirs, 0).ok()?;
        // Of another inode it is not; of this one it is as a rule, which `is_it` then knows.
        if rustix::fs::fstat(&ours).ok()?.st_ino != area.file.1 {
            return None;
        }
        let mode = rustix::fs::fcntl_getfl(&ours).ok()?;
        let is_read_only = mode & OFlags::ACCMODE == OFlags::RDONLY;
        match is_read_only && !read_only || mode.contains(OFlags::PATH) {
            true => open(&format!("/proc/self/fd/{number}")),
            false => Some(ours),
        }
        .filter(is_it)
    };
    let descriptors = || {
        let numbers = std::fs::read_dir("/proc/self/fd").ok()?;
        let mut numbers =
            numbers.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        numbers.find_map(of_number)
    };
    let by_path = || open(area.path.as_deref()?).filter(is_it);
    descriptors()
        .or_else(by_path)
        .or_else(|| open(&format!("/proc/self/map_files/{start:x}-{end:x}")).filter(is_it))
}

/// Whether a mapping is of this file.
fn is_file_of(file: BorrowedFd<'_>, area: &MappedArea) -> bool {
    let Ok(unit) = transport::memory::page_of(file) else {
        // Whatever it is, it cannot be used; who asks for it is to be told what it is. Inodes of other
        // file systems have the same numbers.
        return rustix::fs::fstat(file).is_ok_and(|stat| (device(&stat), stat.st_ino) == area.file);
    };
    let bytes = unit as usize;
    let flags = MapFlags::SHARED | MapFlags::NORESERVE;
    let nothing: *mut c_void = std::ptr::null_mut();
    let offset = area.offset / unit * unit;
    // SAFETY: a new mapping, at addresses of the kernel's choice, that nobody ever touches.
    let Ok(mapped) =
        (unsafe { rustix::mm::mmap(nothing, bytes, ProtFlags::empty(), flags, file, offset) })
    else {
        return false;
    };
    let start = mapped.addr() as u64;
    let found = areas(&(start..start + 1));
    // SAFETY: `mapped` is a mapping of this call alone, of so many bytes.
    let _ = unsafe { rustix::mm::munmap(mapped, bytes) };
    found.is_ok_and(|found| found.first().is_some_and(|found| found.file == area.file))
}

/// A file's device as /proc/self/maps writes it.
pub(super) fn device(stat: &rustix::fs::Stat) -> String {
    let (major, minor) = (
        rustix::fs::major(stat.st_dev),
        rustix::fs::minor(stat.st_dev),
    );
    format!("{major:02x}:{minor:02x}")
}
