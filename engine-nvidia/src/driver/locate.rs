//! Where the real driver library is, and how it is told from ours.
//!
//! Ours has the same name and may lie where the driver used to; loading it into the server would make
//! the server a client of itself. It carries [`CLIENT_MARK`], and a file with the mark is refused
//! before anything of it runs.
//!
//! Called by the engine's start and by NVML's. Must not know what the library can do.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use cuda_abi::library_paths;

/// Text that our client library carries in its read-only data.
pub const CLIENT_MARK: &str = "OpenMPS client runtime";

/// Names a driver library to use instead of those in the usual places.
pub(crate) const VARIABLE: &str = "OPENMPS_DRIVER";

/// Absolute paths at which the driver may be, best first.
pub(crate) fn candidates() -> Vec<PathBuf> {
    match named_by(VARIABLE) {
        Some(path) => vec![path],
        None => library_paths::of("libcuda.so.1"),
    }
}

/// The driver library that a server would try first, whether it works or not.
#[must_use]
pub fn installed() -> Option<PathBuf> {
    let is_driver = |path: &PathBuf| path.exists() && !is_ours(path).unwrap_or(false);
    candidates().into_iter().find(is_driver)
}

/// The library that a variable names. A program that has more rights than whoever started it (set-uid,
/// file capabilities) believes no such variable, as the dynamic linker believes none of its own then.
pub(crate) fn named_by(variable: &str) -> Option<PathBuf> {
    // SAFETY: it reads what the kernel told this process at its start.
    let privileged = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    let path = std::env::var_os(variable).filter(|path| !privileged && !path.is_empty());
    path.map(PathBuf::from)
}

/// Whether a file carries the mark of our client library.
///
/// # Errors
/// When it cannot be read.
pub(crate) fn is_ours(path: &Path) -> io::Result<bool> {
    let signal_kernel = CLIENT_MARK.as_bytes();
    let mut file = File::open(path)?;
    let mut buffer = vec![0_u8; 1 << 20];
    // The mark may lie across two reads: the end of each is kept before the next.
    let mut kept = 0;
    loop {
        let count = file.read(&mut buffer[kept..])?;
        if count == 0 {
            return Ok(false);
        }
        let filled = kept + count;
        if contains(&buffer[..filled], signal_kernel) {
            return Ok(true);
        }
        kept = filled.min(signal_kernel.len() - 1);
        buffer.copy_within(filled - kept..filled, 0);
    }
}

/// Looks at every `mark.len()`-th byte only, and closer where that byte occurs in the mark.
fn contains(bytes: &[u8], signal_kernel: &[u8]) -> bool {
    let step = signal_kernel.len();
    let mut in_mark = [false; 256];
    for &byte in signal_kernel {
        in_mark[usize::from(byte)] = true;
    }
    let mut at = step - 1;
    while at < bytes.len() {
        if in_mark[usize::from(bytes[at])] {
            let from = at + 1 - step;
            let to = (at + step).min(bytes.len());
            if bytes[from..to]
                .windows(step)
                .any(|window| window == signal_kernel)
            {
                return true;
            }
        }
        at += step;
    }
    false
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn the_mark_is_found_wherever_it_lies() {
        let signal_kernel = CLIENT_MARK.as_bytes();
        let boundary = 1 << 20;
        for at in [
            0,
            1,
            21,
            22,
            23,
            4000,
            boundary - 5,
            boundary - 22,
            boundary,
            boundary + 1,
        ] {
            let mut file = tempfile::NamedTempFile::new().unwrap();
            let mut bytes = vec![b' '; boundary + 100];
            assert!(!contains(&bytes, signal_kernel));
            bytes[at..at + signal_kernel.len()].copy_from_slice(signal_kernel);
            file.write_all(&bytes).unwrap();
            assert!(is_ours(file.path()).unwrap(), "at {at}");
        }
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&signal_kernel[1..]).unwrap();
        file.write_all(&signal_kernel[..signal_kernel.len() - 1])
            .unwrap();
        assert!(!is_ours(file.path()).unwrap());
    }
}
