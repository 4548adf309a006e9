//! Images in files, so that the servers of a user that come later load them ahead.
//!
//! A file has one image as it was sent, and is named by a digest of it and by whether several clients had it. It is written
//! under another name and renamed, and holds a checksum, so that only whole ones are read. The folder must be the user's
//! own and closed to everybody else, since what lies there is given to the driver. Those used longest ago go when there
//! are too many bytes of their kind.
//!
//! An image is set aside while it is loaded from its file for the first time in a server. If the server does not survive
//! that, the image stays set aside, and goes.
//!
//! Everything is done by paths through the folder's descriptor, with the older system calls, which servers may make when
//! they may make no other. Called by the thread that loads ahead. Must not know what an image is.

use std::fs::{DirBuilder, File, OpenOptions};
use std::hash::{DefaultHasher, Hasher};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::code::warm_set::{LEAST, Seen};

/// What a file begins with; another form gets another number.
const MAGIC: [u8; 16] = *b"OpenMPS code 1\n\n";
/// The magic, the checksum, and a number that is written when the file is used.
const HEADER: usize = 32;
const USED_AT: u64 = 24;

/// Bytes of files of each kind, and of one file.
const MOST_BYTES: u64 = 256 << 20;
const MOST_IMAGE: u64 = 64 << 20;
/// What a file counts at least.
const LEAST_BYTES: u64 = LEAST as u64;
/// Files that are looked at: as many as there may be of both kinds.
const MOST_FILES: usize = 2 * (MOST_BYTES / LEAST_BYTES) as usize;

/// What is set aside or unfinished for longer is so for good.
const LONGEST_LOAD: Duration = Duration::from_secs(60);

/// Endings of names.
const ONCE: &str = ".once";
const AGAIN: &str = ".again";
const LOADING: &str = ".loading";
const UNFINISHED: &str = ".unfinished";

/// The folder.
#[derive(Debug)]
pub(crate) struct WarmFiles {
    folder: PathBuf,
    /// Keeps `open` valid.
    _descriptor: File,
    /// The path through the descriptor.
    open: PathBuf,
}

/// A file with an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WarmFile {
    name: String,
    pub(crate) seen: Seen,
    bytes: u64,
    used: SystemTime,
}

impl WarmFile {
    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

fn ending(seen: Seen) -> &'static str {
    match seen {
        Seen::Once => ONCE,
        Seen::Again => AGAIN,
    }
}

impl WarmFiles {
    /// Opens the folder, which is made if need be.
    ///
    /// # Errors
    /// What hinders it, and a folder that is not this user's alone.
    pub(crate) fn open(folder: &Path) -> io::Result<Self> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)?;
        let descriptor = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW)
            .open(folder)?;
        let metadata = descriptor.metadata()?;
        // SAFETY: geteuid takes no arguments and cannot fail.
        let user = unsafe { libc::geteuid() };
        if metadata.uid() != user || metadata.mode() & 0o077 != 0 {
            return Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                "it must be the server's user's own and closed to others (chmod 700)",
            ));
        }
        Ok(Self {
            folder: folder.to_owned(),
            open: format!("/proc/self/fd/{}", descriptor.as_raw_fd()).into(),
            _descriptor: descriptor,
        })
    }

    /// Where it is.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The files, those used last first. What was set aside by a server that did not survive, or left unfinished, goes;
    /// `set_aside` is told how many files were set aside.
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub(crate) fn list(&self, set_aside: &mut usize) -> io::Result<Vec<WarmFile>> {
        let mut files = Vec::new();
        for entry in std::fs::read_dir(&self.open)?.take(MOST_FILES) {
            let entry = entry?;
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            // It may be gone by now. Links are not followed.
            let Ok(metadata) = self.path(&name).symlink_metadata() else {
                continue;
            };
            let used = metadata.modified()?;
            let is_old = used.elapsed().is_ok_and(|age| age > LONGEST_LOAD);
            if name.ends_with(LOADING) || name.ends_with(UNFINISHED) {
                if is_old && std::fs::remove_file(self.path(&name)).is_ok() {
                    *set_aside += usize::from(name.ends_with(LOADING));
                }
                continue;
            }
            let kinds = [Seen::Once, Seen::Again];
            let seen = kinds.into_iter().find(|seen| name.ends_with(ending(*seen)));
            if let Some(seen) = seen
                && metadata.is_file()
            {
                files.push(WarmFile {
                    name,
                    seen,
                    bytes: metadata.len().max(LEAST_BYTES),
                    used,
                });
            }
        }
        files.sort_by_key(|file| std::cmp::Reverse(file.used));
        Ok(files)
    }

    /// The image in a file. `None` if it is not whole, or gone; then the file goes too.
    pub(crate) fn read(&self, file: &WarmFile) -> Option<Vec<u8>> {
        let image = self.image_in(file);
        if image.is_none() {
            self.remove(file);
        }
        image
    }

    fn image_in(&self, file: &WarmFile) -> Option<Vec<u8>> {
        // Should a pipe lie there, opening it does not wait.
        let mut open = OpenOptions::new();
        open.read(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
        let opened = open.open(self.path(&file.name)).ok()?;
        let metadata = opened.metadata().ok()?;
        let most = HEADER as u64 + MOST_IMAGE;
        if !metadata.is_file() || metadata.len() > most {
            return None;
        }
        let mut bytes = Vec::with_capacity(metadata.len() as usize);
        opened.take(most).read_to_end(&mut bytes).ok()?;
        let (header, image) = bytes.split_at_checked(HEADER)?;
        let is_whole = header.starts_with(&MAGIC)
            && header[MAGIC.len()..].starts_with(&checksum(image))
            && file.name.starts_with(&digest(image));
        is_whole.then(|| bytes.split_off(HEADER))
    }

    /// Keeps an image, or notes that it was used.
    ///
    /// # Errors
    /// What hinders it. Then nothing is kept that was not before.
    pub(crate) fn keep(&self, image: &[u8], seen: Seen) -> io::Result<()> {
        let bytes = ((HEADER + image.len()) as u64).max(LEAST_BYTES);
        if image.len() as u64 > MOST_IMAGE {
            return Ok(());
        }
        let digest = digest(image);
        let name = format!("{digest}{}", ending(seen));
        let again = format!("{digest}{AGAIN}");
        if self.note_use(&again) || self.note_use(&name) {
            return Ok(());
        }
        if seen == Seen::Again
            && std::fs::rename(self.path(&format!("{digest}{ONCE}")), self.path(&again)).is_ok()
        {
            self.make_room(seen, 0)?;
            return Ok(());
        }
        self.make_room(seen, bytes)?;
        let unfinished = format!("{digest}.{}{UNFINISHED}", std::process::id());
        let path = self.path(&unfinished);
        let mut new = OpenOptions::new();
        new.write(true).create_new(true).mode(0o600);
        let written = new.open(&path).and_then(|mut file| {
            file.write_all(&header(image))?;
            file.write_all(image)?;
            std::fs::rename(&path, self.path(&name))
        });
        if written.is_err() {
            // Should this fail too, it goes when it is old.
            let _ = std::fs::remove_file(&path);
        }
        written
    }

    /// Whether there is a file of this name, which counts as used now.
    fn note_use(&self, name: &str) -> bool {
        let mut open = OpenOptions::new();
        open.write(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
        let opened = open.open(self.path(name));
        // Writing sets the time.
        opened.is_ok_and(|file| file.write_all_at(&[0; 8], USED_AT).is_ok())
    }

    /// Sets a file aside while its image is loaded. Whether it is there to be.
    pub(crate) fn set_aside(&self, file: &WarmFile) -> bool {
        // The time is that of setting aside.
        self.note_use(&file.name)
            && std::fs::rename(self.path(&file.name), self.path(&aside(file))).is_ok()
    }

    /// Puts a file back that was set aside.
    pub(crate) fn put_back(&self, file: &WarmFile) {
        // If it cannot be, it goes when it is old.
        let _ = std::fs::rename(self.path(&aside(file)), self.path(&file.name));
    }

    /// Removes a file that was set aside: the driver does not take its image.
    pub(crate) fn remove_aside(&self, file: &WarmFile) {
        let _ = std::fs::remove_file(self.path(&aside(file)));
    }

    /// Removes a file.
    pub(crate) fn remove(&self, file: &WarmFile) {
        // Another server may have been quicker.
        let _ = std::fs::remove_file(self.path(&file.name));
    }

    /// Has those of a kind used longest ago go until there is room for so many bytes.
    fn make_room(&self, seen: Seen, bytes: u64) -> io::Result<()> {
        let mut files = self.list(&mut 0)?;
        files.retain(|file| file.seen == seen);
        let mut all: u64 = files.iter().map(|file| file.bytes).sum();
        while all.saturating_add(bytes) > MOST_BYTES
            && let Some(oldest) = files.pop()
        {
            self.remove(&oldest);
            all -= oldest.bytes;
        }
        Ok(())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.open.join(name)
    }
}

fn aside(file: &WarmFile) -> String {
    format!("{}{LOADING}", file.name)
}

/// A number for bytes. The standard library's may change with the compiler, which only makes files that are not read.
fn hash(seed: u64, bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write_u64(seed);
    hasher.write(bytes);
    hasher.finish()
}

fn digest(image: &[u8]) -> String {
    format!("{:016x}{:016x}", hash(1, image), hash(2, image))
}

fn checksum(image: &[u8]) -> [u8; 8] {
    hash(3, image).to_le_bytes()
}

fn header(image: &[u8]) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..MAGIC.len()].copy_from_slice(&MAGIC);
    header[MAGIC.len()..][..8].copy_from_slice(&checksum(image));
    header
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use tempfile::TempDir;

    fn folder() -> (TempDir, WarmFiles) {
        let place = TempDir::new().unwrap();
        let files = WarmFiles::open(&place.path().join("of/code")).unwrap();
        (place, files)
    }

    fn listed(files: &WarmFiles) -> Vec<WarmFile> {
        files.list(&mut 0).unwrap()
    }

    fn age(files: &WarmFiles, name: &str, seconds: u64) {
        let file = File::options().write(true).open(files.path(name)).unwrap();
        let then = SystemTime::now() - Duration::from_secs(seconds);
        file.set_modified(then).unwrap();
    }

    #[test]
    fn what_is_kept_is_found_in_a_private_file_once() {
        let (_place, files) = folder();
        files.keep(b"one", Seen::Once).unwrap();
        files.keep(b"two", Seen::Again).unwrap();
        for file in listed(&files) {
            age(&files, &file.name, 1000);
        }
        files.keep(b"one", Seen::Once).unwrap();
        let [first, second] = &listed(&files)[..] else {
            panic!("two files");
        };
        assert_eq!((first.seen, second.seen), (Seen::Once, Seen::Again));
        assert_eq!(files.read(first).unwrap(), b"one");
        assert_eq!(files.read(second).unwrap(), b"two");
        let metadata = fs::metadata(files.path(&first.name)).unwrap();
        assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
        // Another client had it.
        files.keep(b"one", Seen::Again).unwrap();
        files.keep(b"one", Seen::Once).unwrap();
        let all = listed(&files);
        assert_eq!(all.len(), 2);
        assert!(all.iter().all(|file| file.seen == Seen::Again));
    }

    #[test]
    fn a_damaged_file_is_not_read_and_goes() {
        let (_place, files) = folder();
        let keep = || {
            files.keep(b"image", Seen::Once).unwrap();
            listed(&files)[0].clone()
        };
        let file = keep();
        let path = files.path(&file.name);
        let whole = fs::read(&path).unwrap();
        for at in (0..whole.len()).filter(|at| !(24..HEADER).contains(at)) {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x10;
            fs::write(&path, &damaged).unwrap();
            assert_eq!(files.read(&file), None, "byte {at}");
            assert!(!path.exists());
            fs::write(&path, &whole[..at]).unwrap();
            assert_eq!(files.read(&file), None, "cut at {at}");
        }
        // Whole, and under another's name.
        let other = WarmFile {
            name: format!("{}{ONCE}", digest(b"other")),
            ..keep()
        };
        fs::rename(&path, files.path(&other.name)).unwrap();
        assert_eq!(files.read(&other), None);
        let large = File::create(&path).unwrap();
        large.set_len(HEADER as u64 + MOST_IMAGE + 1).unwrap();
        assert_eq!(files.read(&file), None);
    }

    #[test]
    fn what_is_no_file_of_ours_is_left_alone() {
        let (place, files) = folder();
        files.keep(b"image", Seen::Once).unwrap();
        let file = listed(&files)[0].clone();
        let elsewhere = place.path().join("elsewhere");
        fs::rename(files.path(&file.name), &elsewhere).unwrap();
        symlink(&elsewhere, files.path(&file.name)).unwrap();
        assert_eq!(listed(&files), []);
        assert_eq!(files.read(&file), None);
        assert!(elsewhere.exists());
        fs::write(files.path("notes"), "mine").unwrap();
        assert_eq!(listed(&files), []);
        assert!(files.path("notes").exists());
    }

    #[test]
    fn a_folder_that_others_may_enter_or_that_is_a_link_is_not_opened() {
        let (place, files) = folder();
        for open in [0o755, 0o710, 0o702] {
            fs::set_permissions(files.folder(), fs::Permissions::from_mode(open)).unwrap();
            let refused = WarmFiles::open(files.folder()).unwrap_err().to_string();
            assert!(refused.contains("chmod 700"), "{refused}");
        }
        fs::set_permissions(files.folder(), fs::Permissions::from_mode(0o700)).unwrap();
        let link = place.path().join("link");
        symlink(files.folder(), &link).unwrap();
        WarmFiles::open(&link).unwrap_err();
        WarmFiles::open(files.folder()).unwrap();
    }

    #[test]
    fn those_used_longest_ago_go_for_their_like() {
        let (_place, files) = folder();
        let sparse = |number: u8, seen| {
            let name = format!("{}{}", digest(&[number]), ending(seen));
            let file = File::create(files.path(&name)).unwrap();
            file.set_len(MOST_BYTES / 4).unwrap();
            age(&files, &name, 100 - u64::from(number));
        };
        for number in 0..4 {
            sparse(number, Seen::Once);
            sparse(10 + number, Seen::Again);
        }
        files.keep(b"image", Seen::Once).unwrap();
        let count = |seen| {
            listed(&files)
                .iter()
                .filter(|file| file.seen == seen)
                .count()
        };
        assert_eq!((count(Seen::Once), count(Seen::Again)), (4, 4));
        assert!(!files.path(&format!("{}{ONCE}", digest(&[0]))).exists());
        // One that several have now comes to theirs.
        files.keep(b"image", Seen::Again).unwrap();
        assert_eq!((count(Seen::Once), count(Seen::Again)), (3, 4));
    }

    #[test]
    fn small_files_are_not_too_many() {
        let (_place, files) = folder();
        let most = MOST_BYTES / LEAST_BYTES;
        for number in 0..most + 10 {
            let name = format!("{}{ONCE}", digest(&number.to_le_bytes()));
            File::create(files.path(&name)).unwrap();
        }
        let oldest = format!("{}{ONCE}", digest(&5_u64.to_le_bytes()));
        age(&files, &oldest, 1000);
        files.keep(b"image", Seen::Once).unwrap();
        assert_eq!(listed(&files).len() as u64, most);
        assert!(!files.path(&oldest).exists());
    }

    #[test]
    fn an_image_that_a_server_did_not_survive_goes() {
        let (_place, files) = folder();
        files.keep(b"image", Seen::Once).unwrap();
        let file = listed(&files)[0].clone();
        assert!(files.set_aside(&file));
        assert_eq!(listed(&files), [], "another loads it");
        assert!(!files.set_aside(&file));
        files.put_back(&file);
        assert_eq!(listed(&files).len(), 1);
        assert!(files.set_aside(&file));
        age(&files, &aside(&file), 2 * LONGEST_LOAD.as_secs());
        let mut set_aside = 0;
        assert_eq!(files.list(&mut set_aside).unwrap(), []);
        assert_eq!(set_aside, 1);
        assert!(!files.path(&aside(&file)).exists());
    }
}
