//! Whether a program can load our library at all: it is glibc's loader that does, as with NVIDIA's
//! driver. A program of musl's would stop at a symbol that nobody knows.
//!
//! Called by `run` before it starts the program. Must not run it.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

/// The type of the program header that names a loader.
const PT_INTERP: u32 = 3;

/// No loader's path is longer.
const LONGEST: u64 = 4096;

/// Refuses a program of musl's, in words. What is no program of this machine's is not looked at: who
/// runs it will say.
///
/// # Errors
/// When it is one.
pub fn check(program: &OsStr) -> Result<()> {
    let Some(path) = found(program) else {
        return Ok(());
    };
    if let Some(loader) = interpreter(&path).filter(|loader| is_musl(loader)) {
        bail!(
            "{} is a program of musl's (its loader is {loader}), and CUDA's libraries need glibc: \
             NVIDIA's driver does, and so does ours. Use an image with glibc (Debian, Ubuntu, Fedora), or \
             build the program for x86_64-unknown-linux-gnu",
            path.display()
        );
    }
    Ok(())
}

fn is_musl(loader: &str) -> bool {
    let name = loader.rsplit('/').next().unwrap_or(loader);
    name.starts_with("ld-musl-")
}

/// The file that a name stands for, as exec finds it.
fn found(program: &OsStr) -> Option<PathBuf> {
    let name = Path::new(program);
    if name.components().count() > 1 {
        return Some(name.to_owned());
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
}

/// The loader that a program of 64 bits names.
fn interpreter(path: &Path) -> Option<String> {
    let mut file = File::open(path)
        .ok()
        .filter(|file| file.metadata().is_ok_and(|facts| facts.is_file()))?;
    let mut header = [0; 64];
    file.read_exact(&mut header).ok()?;
    let number = |bytes: &[u8], at: usize, size: usize| -> Option<u64> {
        let mut all = [0; 8];
        all[..size].copy_from_slice(bytes.get(at..at + size)?);
        Some(u64::from_le_bytes(all))
    };
    // 64 bits, little endian.
    if !header.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let (start, size) = (number(&header, 32, 8)?, number(&header, 54, 2)?);
    let count = number(&header, 56, 2)?;
    for index in 0..count {
        let mut entry = [0; 56];
        let at = start.checked_add(index.checked_mul(size)?)?;
        file.seek(SeekFrom::Start(at)).ok()?;
        file.read_exact(&mut entry).ok()?;
        if number(&entry, 0, 4)? != u64::from(PT_INTERP) {
            continue;
        }
        let (offset, length) = (number(&entry, 8, 8)?, number(&entry, 32, 8)?);
        let mut text = vec![0; usize::try_from(length.min(LONGEST)).ok()?];
        file.read_exact_at(&mut text, offset).ok()?;
        let text = String::from_utf8_lossy(&text);
        return Some(text.trim_end_matches('\0').to_owned());
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program that is nothing but its loader's name.
    fn program(loader: &str) -> Vec<u8> {
        let mut bytes = vec![0; 64 + 56];
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        bytes[32] = 64;
        bytes[54] = 56;
        bytes[56] = 1;
        bytes[64] = 3;
        bytes[64 + 8] = 120;
        bytes[64 + 32] = u8::try_from(loader.len() + 1).unwrap();
        bytes.extend_from_slice(loader.as_bytes());
        bytes.push(0);
        bytes
    }

    #[test]
    fn a_program_of_musls_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("program");
        std::fs::write(&file, program("/lib/ld-musl-x86_64.so.1")).unwrap();
        let error = check(file.as_os_str()).unwrap_err().to_string();
        assert!(
            error.contains("glibc") && error.contains("ld-musl-x86_64.so.1"),
            "{error}"
        );
        for fine in [
            program("/lib64/ld-linux-x86-64.so.2"),
            b"#!/bin/sh\n".to_vec(),
            program("/lib/ld-musl-x86_64.so.1")[..100].to_vec(),
            Vec::new(),
        ] {
            std::fs::write(&file, fine).unwrap();
            check(file.as_os_str()).unwrap();
        }
        check(OsStr::new("/no/such/program")).unwrap();
        check(OsStr::new("no-such-program")).unwrap();
        check(folder.path().as_os_str()).unwrap();
    }

    #[test]
    fn this_programs_own_loader_is_found() {
        let loader = interpreter(Path::new("/proc/self/exe")).unwrap();
        assert!(loader.contains("ld-") && !is_musl(&loader), "{loader}");
        assert_eq!(
            found(OsStr::new("sh")).and_then(|path| path.file_name().map(OsStr::to_owned)),
            Some("sh".into())
        );
    }
}
