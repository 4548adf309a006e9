//! A file that grows by events and can be read at any moment: what is there always ends with what makes it whole.
//! When the disk is full, it ends after the last event that had room.
//!
//! Called by `chrome::write` and by `openmps trace merge`. Must not know what an event is.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// What is kept back before it is written.
const BLOCK: usize = 64 << 10;

/// Where bytes go. Made for [`File`]; tests bring a disk of their own.
pub trait Storage {
    /// Writes all bytes at a place.
    ///
    /// # Errors
    /// The system's; part of the bytes may be there then.
    fn write_at(&mut self, bytes: &[u8], at: u64) -> io::Result<()>;

    /// Cuts off what is behind a place.
    ///
    /// # Errors
    /// The system's.
    fn truncate(&mut self, length: u64) -> io::Result<()>;
}

impl Storage for File {
    fn write_at(&mut self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.write_all_at(bytes, at)
    }

    fn truncate(&mut self, length: u64) -> io::Result<()> {
        self.set_len(length)
    }
}

/// Storage that grows no larger than that: who writes more than RLIMIT_FSIZE allows is killed by a signal.
#[derive(Debug)]
pub struct Limited<S: Storage> {
    /// What is written.
    pub storage: S,
    /// Bytes at most.
    pub most: u64,
}

impl<S: Storage> Storage for Limited<S> {
    fn write_at(&mut self, bytes: &[u8], at: u64) -> io::Result<()> {
        let end = at.checked_add(bytes.len() as u64);
        if end.is_none_or(|end| end > self.most) {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.storage.write_at(bytes, at)
    }

    fn truncate(&mut self, length: u64) -> io::Result<()> {
        self.storage.truncate(length)
    }
}

impl Storage for &mut Vec<u8> {
    fn write_at(&mut self, bytes: &[u8], at: u64) -> io::Result<()> {
        let at = usize::try_from(at).map_err(io::Error::other)?;
        if self.len() < at + bytes.len() {
            self.resize(at + bytes.len(), 0);
        }
        self[at..at + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn truncate(&mut self, length: u64) -> io::Result<()> {
        Vec::truncate(self, usize::try_from(length).map_err(io::Error::other)?);
        Ok(())
    }
}

/// See the module.
#[derive(Debug)]
pub struct Output<S: Storage> {
    storage: S,
    /// How much of the file is events; the tail lies behind.
    committed: u64,
    /// Events that are not written yet.
    block: Vec<u8>,
    tail: &'static [u8],
    failed: bool,
}

impl<S: Storage> Output<S> {
    /// Begins a file with what comes before all events; `tail` is what ends it, and may be nothing.
    ///
    /// # Errors
    /// The storage's.
    pub fn new(storage: S, head: &[u8], tail: &'static [u8]) -> io::Result<Self> {
        let mut output = Self {
            storage,
            committed: 0,
            block: head.to_vec(),
            tail,
            failed: false,
        };
        output.flush()?;
        Ok(output)
    }

    /// Adds one event. It is in the file after the next [`flush`](Self::flush), or when a block of them is full.
    ///
    /// # Errors
    /// The storage's, and then the same kind for every event: the file ends with the last block that had room.
    pub fn append(&mut self, event: &[u8]) -> io::Result<()> {
        if self.failed {
            return Err(io::Error::other("the file could not be written before"));
        }
        self.block.extend_from_slice(event);
        if self.block.len() >= BLOCK {
            self.flush()?;
        }
        Ok(())
    }

    /// Writes what was kept back.
    ///
    /// # Errors
    /// The storage's: the file then ends with the last block that had room, and takes no more.
    pub fn flush(&mut self) -> io::Result<()> {
        if self.block.is_empty() {
            return Ok(());
        }
        let events = self.block.len() as u64;
        self.block.extend_from_slice(self.tail);
        let written = self.storage.write_at(&self.block, self.committed);
        self.block.clear();
        match written {
            Ok(()) => self.committed += events,
            Err(error) => {
                self.failed = true;
                // The tail's place had its bytes already, so that this needs none of the disk.
                let at = self.committed;
                self.storage.write_at(self.tail, at).ok();
                let end = at + if at == 0 { 0 } else { self.tail.len() as u64 };
                self.storage.truncate(end).ok();
                return Err(error);
            }
        }
        Ok(())
    }
}

impl<S: Storage> Drop for Output<S> {
    fn drop(&mut self) {
        if !self.failed {
            self.flush().ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk with so much room.
    #[derive(Debug)]
    struct Disk<'a> {
        bytes: &'a mut Vec<u8>,
        room: usize,
    }

    impl Storage for Disk<'_> {
        fn write_at(&mut self, bytes: &[u8], at: u64) -> io::Result<()> {
            let fits = self.room.saturating_sub(usize::try_from(at).unwrap());
            self.bytes.write_at(&bytes[..bytes.len().min(fits)], at)?;
            if bytes.len() > fits {
                return Err(io::ErrorKind::StorageFull.into());
            }
            Ok(())
        }

        fn truncate(&mut self, length: u64) -> io::Result<()> {
            Storage::truncate(&mut self.bytes, length)
        }
    }

    #[test]
    fn a_full_disk_leaves_a_whole_file() {
        let mut whole = 0;
        for room in (0..300_000).step_by(20_011) {
            let mut bytes = Vec::new();
            let disk = Disk {
                bytes: &mut bytes,
                room,
            };
            let mut failures = 0;
            if let Ok(mut output) = Output::new(disk, b"[0", b"]") {
                for number in 0..100_000 {
                    failures += u32::from(output.append(format!(",{number}").as_bytes()).is_err());
                }
            }
            if bytes.is_empty() {
                assert_eq!(room, 0);
                continue;
            }
            let numbers: Vec<u32> = serde_json::from_slice(&bytes).unwrap();
            assert!(numbers.len() < 100_000 && failures > 0);
            assert!(bytes.len() <= room);
            whole += usize::from(numbers.len() > 10_000);
        }
        assert!(whole > 5, "{whole}");
    }

    #[test]
    fn a_limit_is_kept_to() {
        let mut bytes = Vec::new();
        let limited = Limited {
            storage: &mut bytes,
            most: 200_000,
        };
        let mut output = Output::new(limited, b"[0", b"]").unwrap();
        let mut numbers = (1..100_000).map(|number| output.append(format!(",{number}").as_bytes()));
        let refused = numbers.find_map(Result::err);
        assert_eq!(refused.unwrap().kind(), io::ErrorKind::FileTooLarge);
        drop(output);
        let numbers: Vec<u32> = serde_json::from_slice(&bytes).unwrap();
        assert!(numbers.len() > 10_000 && bytes.len() <= 200_000);
    }

    #[test]
    fn it_is_whole_at_any_moment() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut output = Output::new(file.reopen().unwrap(), b"[0", b"]").unwrap();
        for number in 1..30_000 {
            output.append(format!(",{number}").as_bytes()).unwrap();
            if number % 5_000 == 0 {
                let now: Vec<u32> =
                    serde_json::from_slice(&std::fs::read(file.path()).unwrap()).unwrap();
                assert!(now.len() <= number);
            }
        }
        drop(output);
        let all: Vec<u32> = serde_json::from_slice(&std::fs::read(file.path()).unwrap()).unwrap();
        assert_eq!(all, (0..30_000).collect::<Vec<_>>());
    }
}
