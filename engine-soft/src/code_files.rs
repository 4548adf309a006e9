//! Compiled code in files, so that a later server of the same user compiles nothing that one has compiled.
//!
//! Records, each under a digest of all that its contents depend on, stand behind each other in a few files. A server opens
//! the files when it starts, before the kernel refuses it files: it reads all of them, and writes to one that is its own as
//! long as it lives, where it only adds at the end. So servers do not meet, nothing is opened later, and a server that somebody
//! has taken over reaches no more than these files. What is added by others meanwhile is not seen. A record counts
//! only if its digest and its checksum are right; a damaged one is compiled again and added again, and the later one counts.
//! The files written longest ago go when there are too many bytes.
//!
//! What lies here is run by the server. So the folder and its files must be the user's own and closed to everybody else.
//!
//! Made by the server's process, read and written by `module`. Must not know what a record is.

use std::collections::HashMap;
use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::ops::DerefMut;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use rustix::fs::OFlags;
use rustix::process::geteuid;

/// What a file begins with; another form gets another number.
const MAGIC: [u8; 16] = *b"OpenMPS soft 1\n\n";
/// What a record begins with.
const RECORD: [u8; 8] = *b"a record";
/// Before a record's contents: [`RECORD`], how many bytes they are, digest, checksum.
const HEADER: usize = 80;

/// Bytes of all files, when a server starts. It adds at most one file.
const MOST_BYTES: u64 = 256 << 20;
/// Bytes of one file, and its records.
const FILE_BYTES: u64 = 64 << 20;
const FILE_RECORDS: usize = 1 << 14;
/// Bytes that are read at once.
const READ_BYTES: usize = 256 << 10;
/// Files that are looked at, and those that stay: a server has them open as long as it lives, beside one of its own.
const MOST_SEEN: usize = 256;
const MOST_FILES: usize = 16;

/// How the name of a file ends.
const ENDING: &str = ".kept";

/// What a record is found by.
pub(crate) type Digest = [u8; 32];

/// The folder of the files, in that in which a server keeps code.
pub const FOLDER: &str = "compiled";

/// What the server's log is told.
pub type Say = Box<dyn Fn(&str) + Send + Sync>;

/// The files.
pub struct CodeFiles {
    folder: PathBuf,
    files: Vec<File>,
    /// By digest: the file, and where in it the contents are.
    places: RwLock<HashMap<Digest, Place>>,
    /// How far the last file is written, if this process adds to it.
    own: Mutex<Option<Extent>>,
    counts: Counts,
    say: Say,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    file: usize,
    at: u64,
    bytes: u64,
    checksum: [u8; 32],
}

/// How far a file has records.
#[derive(Clone, Copy, Debug)]
struct Extent {
    bytes: u64,
    records: usize,
}

/// What was compiled by this process, and what was not because it was kept.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) images_compiled: AtomicU64,
    pub(crate) images_found: AtomicU64,
    pub(crate) kernels_compiled: AtomicU64,
    pub(crate) kernels_found: AtomicU64,
}

impl Counts {
    pub(crate) fn add(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

impl std::fmt::Debug for CodeFiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CodeFiles")
            .field("folder", &self.folder)
            .field("counts", &self.counts)
            .finish_non_exhaustive()
    }
}

/// A file as it was found.
struct Found {
    file: File,
    name: String,
    bytes: u64,
    written: std::time::SystemTime,
}

impl CodeFiles {
    /// Opens the files of a folder, which is made if need be. `say` is told once what hinders it from keeping more, and at the
    /// end how much was compiled.
    ///
    /// # Errors
    /// What hinders it, and a folder that is not this user's alone.
    pub fn open(folder: &Path, say: Say) -> io::Result<Self> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)?;
        let directory = OpenOptions::new()
            .read(true)
            .custom_flags(flags(OFlags::DIRECTORY | OFlags::NOFOLLOW))
            .open(folder)?;
        let metadata = directory.metadata()?;
        if metadata.uid() != geteuid().as_raw() || metadata.mode() & 0o077 != 0 {
            return Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                format!(
                    "{} must be the server's user's own and closed to others (chmod 700)",
                    folder.display()
                ),
            ));
        }
        let within = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd()));
        let mut found = find_files(&within)?;
        make_room(&within, &mut found);
        let own = open_own(&within, &mut found);
        let mut files = Vec::new();
        let mut places = HashMap::new();
        for one in found {
            // What cannot be read keeps nothing.
            let _ = read_places(&one.file, files.len(), &mut places);
            files.push(one.file);
        }
        let own = own.and_then(|file| {
            let read = read_places(&file, files.len(), &mut places)?;
            // What is no record is cut off.
            file.set_len(read.bytes)?;
            files.push(file);
            Ok(read)
        });
        let own = own.inspect_err(|error| {
            say(&format!(
                "Compiled code is not kept in {}: {error}",
                folder.display()
            ));
        });
        Ok(Self {
            folder: folder.to_owned(),
            files,
            places: RwLock::new(places),
            own: Mutex::new(own.ok()),
            counts: Counts::default(),
            say,
        })
    }

    pub(crate) fn counts(&self) -> &Counts {
        &self.counts
    }

    /// What was kept under a digest, whole.
    pub(crate) fn find(&self, digest: &Digest) -> Option<Vec<u8>> {
        self.find_in(digest, |bytes| Some(vec![0; bytes]))
    }

    /// The same, in room for so many bytes that is made for it.
    pub(crate) fn find_in<Room: DerefMut<Target = [u8]>>(
        &self,
        digest: &Digest,
        make: impl FnOnce(usize) -> Option<Room>,
    ) -> Option<Room> {
        let place = *self.places.read().get(digest)?;
        let mut contents = make(usize::try_from(place.bytes).ok()?)?;
        let mut hasher = begun_checksum(digest);
        // What has just been read is still near the processor.
        let mut at = place.at;
        let read = contents.chunks_mut(READ_BYTES).try_for_each(|part| {
            self.files[place.file].read_exact_at(part, at)?;
            at += part.len() as u64;
            hasher.update(part);
            io::Result::Ok(())
        });
        if read.is_ok() && *hasher.finalize().as_bytes() == place.checksum {
            return Some(contents);
        }
        // It is compiled again, and added again.
        self.places.write().remove(digest);
        None
    }

    /// Keeps something under a digest, if there is room.
    pub(crate) fn keep(&self, digest: &Digest, contents: &[u8]) {
        let mut own = self.own.lock();
        let Some(end) = &mut *own else { return };
        let bytes = (HEADER + contents.len()) as u64;
        if end.bytes + bytes > FILE_BYTES || end.records >= FILE_RECORDS {
            return;
        }
        let checksum = checksum(digest, contents);
        let mut record = Vec::with_capacity(HEADER + contents.len());
        record.extend(RECORD);
        record.extend((contents.len() as u64).to_le_bytes());
        record.extend(digest);
        record.extend(checksum);
        record.extend(contents);
        let number = self.files.len() - 1;
        let mut file = &self.files[number];
        if let Err(error) = file.write_all(&record) {
            // What came of it is no record, and is cut off now or by who opens it next.
            let _ = file.set_len(end.bytes);
            *own = None;
            drop(own);
            (self.say)(&format!(
                "Compiled code is not kept in {} any more: {error}",
                self.folder.display()
            ));
            return;
        }
        let place = Place {
            file: number,
            at: end.bytes + HEADER as u64,
            bytes: contents.len() as u64,
            checksum,
        };
        end.bytes += bytes;
        end.records += 1;
        self.places.write().insert(*digest, place);
    }
}

impl Drop for CodeFiles {
    fn drop(&mut self) {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (self.say)(&format!(
            "Compiled: {} images, {} kernels; kept from before: {} images, {} kernels, in {}",
            count(&self.counts.images_compiled),
            count(&self.counts.kernels_compiled),
            count(&self.counts.images_found),
            count(&self.counts.kernels_found),
            self.folder.display()
        ));
    }
}

fn flags(flags: OFlags) -> i32 {
    flags.bits().cast_signed()
}

/// The files that are ours, those written longest ago first.
fn find_files(within: &Path) -> io::Result<Vec<Found>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(within)?.take(MOST_SEEN) {
        let Ok(name) = entry?.file_name().into_string() else {
            continue;
        };
        if !name.ends_with(ENDING) {
            continue;
        }
        // Should a pipe lie there, opening it does not wait. Another server may have removed it.
        let mut open = OpenOptions::new();
        open.read(true)
            .custom_flags(flags(OFlags::NOFOLLOW | OFlags::NONBLOCK));
        let Ok(file) = open.open(within.join(&name)) else {
            continue;
        };
        let metadata = file.metadata()?;
        let is_own = metadata.uid() == geteuid().as_raw() && metadata.mode() & 0o077 == 0;
        if metadata.is_file() && is_own {
            found.push(Found {
                file,
                name,
                bytes: metadata.len(),
                written: metadata.modified()?,
            });
        }
    }
    found.sort_by_key(|one| one.written);
    Ok(found)
}

/// Has those written longest ago go, until there are few enough bytes and files. A server that still has one open reads on.
fn make_room(within: &Path, found: &mut Vec<Found>) {
    let mut all: u64 = found.iter().map(|one| one.bytes).sum();
    let mut files = found.len();
    found.retain(|one| {
        let stays = all <= MOST_BYTES && files <= MOST_FILES;
        if !stays {
            all -= one.bytes;
            files -= 1;
            // Where nothing may be removed, nothing is added.
            let _ = std::fs::remove_file(within.join(&one.name));
        }
        stays
    });
}

/// A file to add to: the one written last of those that are half empty and no living server's, which is taken out of
/// `found`, or a new one.
fn open_own(within: &Path, found: &mut Vec<Found>) -> io::Result<File> {
    for index in (0..found.len()).rev() {
        let one = &found[index];
        if one.bytes > FILE_BYTES / 2 {
            continue;
        }
        let mut open = OpenOptions::new();
        open.read(true)
            .append(true)
            .custom_flags(flags(OFlags::NOFOLLOW | OFlags::NONBLOCK));
        let file = open.open(within.join(&one.name))?;
        let same = |file: &File| {
            file.metadata()
                .map(|metadata| (metadata.dev(), metadata.ino()))
        };
        match file.try_lock() {
            Ok(()) if same(&file)? == same(&one.file)? => {
                found.remove(index);
                let mut magic = [0; MAGIC.len()];
                if file.read_exact_at(&mut magic, 0).is_err() || magic != MAGIC {
                    file.set_len(0)?;
                    (&file).write_all(&MAGIC)?;
                }
                return Ok(file);
            }
            Ok(()) | Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
    let mut number = [0; 8];
    File::open("/dev/urandom")?.read_exact(&mut number)?;
    let name = format!("{:016x}{ENDING}", u64::from_ne_bytes(number));
    let mut new = OpenOptions::new();
    new.read(true).append(true).create_new(true).mode(0o600);
    let file = new.open(within.join(name))?;
    // Nobody else knows it yet but who lists the folder just now, and then that server has it.
    file.lock()?;
    (&file).write_all(&MAGIC)?;
    Ok(file)
}

/// Adds where the records of a file are, as far as they follow each other; gives where they end.
fn read_places(
    file: &File,
    number: usize,
    places: &mut HashMap<Digest, Place>,
) -> io::Result<Extent> {
    let length = file.metadata()?.len();
    let mut magic = [0; MAGIC.len()];
    file.read_exact_at(&mut magic, 0)?;
    if magic != MAGIC {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut at = MAGIC.len() as u64;
    let mut records = 0;
    while records < FILE_RECORDS {
        let mut header = [0; HEADER];
        if file.read_exact_at(&mut header, at).is_err() {
            break;
        }
        let (kind, rest) = header.split_at(RECORD.len());
        let (bytes, rest) = rest.split_at(8);
        let (digest, checksum) = rest.split_at(32);
        let whole = |bytes: &[u8]| <Digest>::try_from(bytes).unwrap_or_default();
        let bytes = bytes.try_into().map_or(u64::MAX, u64::from_le_bytes);
        let start = at + HEADER as u64;
        let Some(end) = start.checked_add(bytes).filter(|end| *end <= length) else {
            break;
        };
        if kind != RECORD {
            break;
        }
        let place = Place {
            file: number,
            at: start,
            bytes,
            checksum: whole(checksum),
        };
        places.insert(whole(digest), place);
        at = end;
        records += 1;
    }
    Ok(Extent { bytes: at, records })
}

fn checksum(digest: &Digest, contents: &[u8]) -> [u8; 32] {
    let mut hasher = begun_checksum(digest);
    *hasher.update(contents).finalize().as_bytes()
}

fn begun_checksum(digest: &Digest) -> blake3::Hasher {
    let mut hasher = blake3::Hasher::new();
    hasher.update(digest);
    hasher
}

#[cfg(test)]
mod tests;
