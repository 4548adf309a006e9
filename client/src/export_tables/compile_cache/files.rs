//! Entries of the compile cache in files, for later processes of the same user.
//!
//! An entry is a file, named by a digest of its key, that holds the key, the content and a checksum. It
//! is written under another name and renamed, so that readers see whole files; whatever is not whole, or
//! is another key's, is a miss. The folder must be the user's own and closed to everybody else, since
//! what lies there will run. The oldest files go when there are too many bytes.
//!
//! Called by the compile cache alone, which chooses the folder by `settings`. Must not know what a key or a content
//! means.

use std::ffi::CString;
use std::fs::{DirBuilder, File};
use std::hash::{DefaultHasher, Hasher};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, Stat, Timespec, Timestamps, UTIME_NOW, fstat, futimens,
    open, openat, renameat, statat, unlinkat,
};
use rustix::process::{Resource, geteuid, getrlimit};

use super::LARGEST;

/// What a file begins with; another form gets another number.
const MAGIC: [u8; 16] = *b"OpenMPS cache 1\n";

/// The magic, the checksum and the length of the key.
const HEADER: usize = 32;

/// The folder of a user's entries.
pub(super) struct Files {
    folder: PathBuf,
    /// How many bytes the files may have together.
    limit: u64,
    /// How many bytes may be written before the folder is looked through again. What several processes
    /// write at the same time may exceed the limit by a [`SHARE`] of it each.
    room: AtomicU64,
}

/// Which part of the limit is written between two looks through the folder.
const SHARE: u64 = 16;

/// A file in the folder.
struct CacheFile {
    name: CString,
    bytes: u64,
    /// When it was last used: seconds and nanoseconds.
    used: (i64, u64),
}

impl Files {
    pub(super) fn new(folder: PathBuf, limit: u64) -> Self {
        Self {
            folder,
            limit,
            room: AtomicU64::new(0),
        }
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The content that is kept under a key.
    pub(super) fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        let folder = self.open().ok()?;
        // Should a pipe lie there, opening it does not wait.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(openat(&folder, name_of(key), flags, Mode::empty()).ok()?);
        let stat = fstat(&file).ok()?;
        let least = HEADER + key.len();
        let size = usize::try_from(stat.st_size).ok()?;
        if kind(&stat) != FileType::RegularFile || size <= least || size > least + LARGEST {
            return None;
        }
        let mut bytes = Vec::with_capacity(size);
        (&file).take(size as u64).read_to_end(&mut bytes).ok()?;
        let content = content_of(&bytes, key)?.to_vec();
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: UTIME_NOW,
        };
        // The oldest go first. Where that cannot be noted, this one goes as if it had not been used.
        let _ = futimens(
            &file,
            &Timestamps {
                last_access: now,
                last_modification: now,
            },
        );
        Some(content)
    }

    /// Keeps a content under a key, unless it is larger than all may be.
    ///
    /// # Errors
    /// What hindered it. Then nothing is kept that was not before.
    pub(super) fn put(&self, key: &[u8], content: &[u8]) -> io::Result<()> {
        let size = (HEADER + key.len() + content.len()) as u64;
        // A file beyond the process's own limit would end it by a signal.
        let most = getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX);
        if size > self.limit.min(most) {
            return Ok(());
        }
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.folder)?;
        let folder = self.open()?;
        self.make_room(&folder, size)?;
        self.write(&folder, key, content)
    }

    /// The folder, if it is safe.
    fn open(&self) -> io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = open(&self.folder, flags, Mode::empty())?;
        let stat = fstat(&folder)?;
        if stat.st_uid != geteuid().as_raw() || stat.st_mode & 0o077 != 0 {
            return Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                "it must be the user's own and closed to others (chmod 700)",
            ));
        }
        Ok(folder)
    }

    fn write(&self, folder: &OwnedFd, key: &[u8], content: &[u8]) -> io::Result<()> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let name = name_of(key);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let unfinished = format!("{name}.{}.{number}", std::process::id());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = openat(folder, &unfinished, flags, Mode::RUSR | Mode::WUSR)?;
        let mut file = File::from(file);
        let written = file
            .write_all(&header(key, content))
            .and_then(|()| file.write_all(key))
            .and_then(|()| file.write_all(content))
            .and_then(|()| Ok(renameat(folder, &unfinished, folder, &name)?));
        if written.is_err() {
            // Should this fail too, the file goes when it is the oldest.
            let _ = unlinkat(folder, &unfinished, AtFlags::empty());
        }
        written
    }

    /// Takes room for so many bytes, for which the oldest files go if need be.
    fn make_room(&self, folder: &OwnedFd, size: u64) -> io::Result<()> {
        let take = |room: u64| room.checked_sub(size);
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        if self.room.fetch_update(set, fetch, take).is_ok() {
            return Ok(());
        }
        let room = size.max(self.limit / SHARE);
        let mut files = files(folder)?;
        files.sort_by_key(|file| file.used);
        let mut bytes: u64 = files.iter().map(|file| file.bytes).sum();
        for file in files {
            if bytes + room <= self.limit {
                break;
            }
            // Another process may have been quicker.
            let _ = unlinkat(folder, &file.name, AtFlags::empty());
            bytes -= file.bytes;
        }
        self.room.store(room - size, Ordering::Relaxed);
        Ok(())
    }
}

/// The files in the folder, entries and what was left unfinished.
fn files(folder: &OwnedFd) -> io::Result<Vec<CacheFile>> {
    let mut files = Vec::new();
    for entry in Dir::read_from(folder)? {
        let name = entry?.file_name().to_owned();
        // It may be gone by now.
        let Ok(stat) = statat(folder, &name, AtFlags::SYMLINK_NOFOLLOW) else {
            continue;
        };
        if kind(&stat) == FileType::RegularFile {
            files.push(CacheFile {
                name,
                bytes: stat.st_size as u64,
                used: (stat.st_mtime, stat.st_mtime_nsec),
            });
        }
    }
    Ok(files)
}

fn kind(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

/// A digest of parts. The standard library's may change with the compiler, which only makes misses.
fn digest(seed: u64, parts: &[&[u8]]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write_u64(seed);
    for part in parts {
        hasher.write(part);
    }
    hasher.finish()
}

fn name_of(key: &[u8]) -> String {
    format!("{:016x}{:016x}", digest(1, &[key]), digest(2, &[key]))
}

fn header(key: &[u8], content: &[u8]) -> [u8; HEADER] {
    let length = (key.len() as u64).to_le_bytes();
    let checksum = digest(3, &[&length, key, content]).to_le_bytes();
    let mut header = [0; HEADER];
    header[..16].copy_from_slice(&MAGIC);
    header[16..24].copy_from_slice(&checksum);
    header[24..].copy_from_slice(&length);
    header
}

/// The content in a file's bytes, if they are whole and this key's.
fn content_of<'a>(bytes: &'a [u8], key: &[u8]) -> Option<&'a [u8]> {
    let (found, rest) = bytes.split_at_checked(HEADER)?;
    let content = rest.strip_prefix(key)?;
    (!content.is_empty() && found == header(key, content)).then_some(content)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::time::{Duration, SystemTime};
    use tempfile::TempDir;

    /// A cache's folder in a new one, which goes with the first.
    fn folder(limit: u64) -> (TempDir, Files) {
        let place = TempDir::new().unwrap();
        let files = Files::new(place.path().join("of/openmps"), limit);
        (place, files)
    }

    fn listed(files: &Files) -> Vec<PathBuf> {
        let entries = fs::read_dir(files.folder()).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    }

    #[test]
    fn what_was_kept_last_is_found_in_a_private_file() {
        let (_place, files) = folder(1 << 20);
        assert_eq!(files.get(b"key"), None);
        files.put(b"key", b"content").unwrap();
        files.put(b"other key", b"other").unwrap();
        files.put(b"key", b"newer").unwrap();
        assert_eq!(files.get(b"key").unwrap(), b"newer");
        assert_eq!(files.get(b"other key").unwrap(), b"other");
        assert_eq!(files.get(b"ke"), None);
        let listed = listed(&files);
        assert_eq!(listed.len(), 2, "nothing unfinished is left");
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&listed[0]), 0o600);
        assert_eq!(mode(files.folder()), 0o700);
    }

    #[test]
    fn a_damaged_file_is_a_miss_wherever_the_damage_is() {
        let (_place, files) = folder(1 << 20);
        files.put(b"key", b"content").unwrap();
        let path = &listed(&files)[0];
        let whole = fs::read(path).unwrap();
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x10;
            fs::write(path, damaged).unwrap();
            assert_eq!(files.get(b"key"), None, "byte {at}");
            fs::write(path, &whole[..at]).unwrap();
            assert_eq!(files.get(b"key"), None, "cut at {at}");
        }
        fs::write(path, [&whole[..], b"more"].concat()).unwrap();
        assert_eq!(files.get(b"key"), None);
        fs::write(path, &whole).unwrap();
        assert_eq!(files.get(b"key").unwrap(), b"content");
    }

    #[test]
    fn another_keys_file_is_a_miss_though_it_has_the_digests_name() {
        let (_place, files) = folder(1 << 20);
        files.put(b"kez", b"content").unwrap();
        let other = files.folder().join(name_of(b"key"));
        fs::rename(&listed(&files)[0], &other).unwrap();
        assert_eq!(files.get(b"key"), None);
        // A key that is the other's beginning, too.
        fs::rename(&other, files.folder().join(name_of(b"ke"))).unwrap();
        assert_eq!(files.get(b"ke"), None);
    }

    #[test]
    fn a_folder_that_others_may_enter_or_that_is_a_link_is_not_used() {
        let (place, files) = folder(1 << 20);
        files.put(b"key", b"content").unwrap();
        let mode = |mode| {
            fs::set_permissions(files.folder(), fs::Permissions::from_mode(mode)).unwrap();
        };
        for open in [0o755, 0o710, 0o702] {
            mode(open);
            assert_eq!(files.get(b"key"), None);
            let refused = files.put(b"other", b"content").unwrap_err().to_string();
            assert!(refused.contains("chmod 700"), "{refused}");
        }
        mode(0o700);
        assert!(files.get(b"key").is_some());
        let link = place.path().join("link");
        symlink(files.folder(), &link).unwrap();
        let linked = Files::new(link, 1 << 20);
        assert_eq!(linked.get(b"key"), None);
        linked.put(b"other", b"content").unwrap_err();
        assert_eq!(listed(&files).len(), 1);
    }

    #[test]
    fn what_is_no_ordinary_file_is_a_miss() {
        let (_place, files) = folder(1 << 20);
        files.put(b"key", b"content").unwrap();
        let path = listed(&files)[0].clone();
        let elsewhere = files.folder().join("elsewhere");
        fs::rename(&path, &elsewhere).unwrap();
        symlink(&elsewhere, &path).unwrap();
        assert_eq!(files.get(b"key"), None);
        fs::remove_file(&path).unwrap();
        let pipe = rustix::fs::CWD;
        rustix::fs::mknodat(pipe, &path, FileType::Fifo, Mode::RUSR, 0).unwrap();
        assert_eq!(files.get(b"key"), None);
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert_eq!(files.get(b"key"), None);
    }

    #[test]
    fn the_files_used_longest_ago_go_first_and_all_stay_within_the_limit() {
        let (_place, files) = folder(10_000);
        let key = |number: u8| [number; 8];
        let age = |path: &Path, seconds| {
            let file = File::options().write(true).open(path).unwrap();
            let then = SystemTime::now() - Duration::from_secs(seconds);
            file.set_modified(then).unwrap();
        };
        let path = |number| files.folder().join(name_of(&key(number)));
        for number in 0..9 {
            files.put(&key(number), &[number; 1000]).unwrap();
            age(&path(number), 1000 - u64::from(number));
        }
        let unfinished = files.folder().join("left.unfinished");
        fs::write(&unfinished, [0; 100]).unwrap();
        age(&unfinished, 5000);
        // Used now: the second is the oldest.
        assert!(files.get(&key(0)).is_some());
        files.put(&key(9), &[9; 1000]).unwrap();
        assert!(!unfinished.exists());
        assert!(files.get(&key(1)).is_none());
        assert!(files.get(&key(0)).is_some() && files.get(&key(9)).is_some());
        for number in 10..100 {
            files.put(&key(number), &[number; 1000]).unwrap();
            let bytes: u64 = listed(&files)
                .iter()
                .map(|path| fs::metadata(path).unwrap().len())
                .sum();
            assert!(bytes <= 10_000, "{bytes}");
            assert!(files.get(&key(number)).is_some());
        }
        // Larger than all may be: nothing goes for it.
        let before = listed(&files).len();
        files.put(b"large", &[1; 10_000]).unwrap();
        assert_eq!(files.get(b"large"), None);
        assert_eq!(listed(&files).len(), before);
    }
}
