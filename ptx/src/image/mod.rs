//! What an image pointer may be, and which PTX in it a device runs.
//!
//! Owns the classification of bytes and the choice among a fatbin's entries; [`fatbin`] owns the
//! container. The client has followed pointers already: what arrives here is bytes.
//!
//! Called by the image loading of both engines (`engine-soft/src/image.rs`, `engine-nvidia/src/code`). Follows no
//! pointer, and must not know what the device makes of the chosen text.

pub mod fatbin;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::BTreeSet;

use thiserror::Error;

use crate::error::{Error as ParseError, ErrorKind};
use crate::parser::header;
use fatbin::{Damage, EntryKind, FatbinEntry, Reach};

/// First word of the structure that holds a pointer to a fatbin.
pub const WRAPPER_MAGIC: u32 = 0x4662_43b1;
/// First word of a fatbin.
pub const FATBIN_MAGIC: u32 = 0xba55_ed50;
/// The newest major version of the PTX language taken. Minor versions are not held against a text:
/// an instruction that is not known is refused by name anyway.
pub const MAX_PTX_MAJOR: u8 = 9;

const ELF_MAGIC: [u8; 4] = *b"\x7fELF";
/// `e_machine` of NVIDIA's machine code.
const EM_CUDA: [u8; 2] = 190_u16.to_le_bytes();

/// How much a compressed image may become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of one decompressed entry.
    pub max_bytes: u64,
    /// Times its compressed size; the first MiB is free.
    pub max_ratio: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_bytes: 512 << 20,
            max_ratio: 1000,
        }
    }
}

/// The form of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageKind {
    /// Machine code for one NVIDIA architecture.
    Cubin,
    /// A container of several forms of one program.
    Fatbin,
    /// PTX text.
    Ptx,
    /// Holds a pointer to a fatbin, which means something only where it was made.
    Wrapper,
}

/// Why no PTX could be had from an image.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ImageError {
    /// A container that is damaged.
    #[error(transparent)]
    Damaged(#[from] Damage),
    /// PTX text that is damaged at its head.
    #[error(transparent)]
    InvalidPtx(#[from] ParseError),
    /// The image has machine code only, and a software GPU runs none.
    #[error(
        "the image has no PTX, only machine code for NVIDIA GPUs{}: a software GPU needs PTX; \
         build with -gencode arch=compute_{device},code=compute_{device} or lower; docs/python.md says how \
         what compiles at run time hands over PTX", list(.found)
    )]
    MachineCodeOnly {
        /// Architectures of that code, where known.
        found: Vec<u32>,
        /// The device's architecture.
        device: u32,
    },
    /// A fatbin whose PTX is all for other devices.
    #[error(
        "the image's PTX is for other architectures{} than this device's sm_{device}; build with \
         -gencode arch=compute_{device},code=compute_{device} or lower", list(.found)
    )]
    NoPtxForDevice {
        /// Architectures that the PTX is for.
        found: Vec<u32>,
        /// The device's architecture.
        device: u32,
    },
    /// Bytes that are no image of any kind.
    #[error("the bytes are no CUDA image")]
    NotAnImage,
    /// PTX text for a newer or another device.
    #[error("the PTX is for sm_{target}, which this device (sm_{device}) cannot run")]
    Target {
        /// The text's target, with its letter if it has one.
        target: String,
        /// The device's architecture.
        device: u32,
    },
    /// PTX in a version of the language that is not known.
    #[error("PTX version {}.{} is not supported", .0.0, .0.1)]
    Version((u8, u8)),
}

impl ImageError {
    /// The CUDA error code that the driver gives for it.
    #[must_use]
    pub fn cuda_error(&self) -> u32 {
        match self {
            // CUDA_ERROR_OUT_OF_MEMORY
            Self::Damaged(Damage::NoRoom { .. }) => 2,
            // CUDA_ERROR_INVALID_IMAGE
            Self::Damaged(_) | Self::NotAnImage => 200,
            // CUDA_ERROR_NO_BINARY_FOR_GPU
            Self::MachineCodeOnly { .. } | Self::NoPtxForDevice { .. } => 209,
            // CUDA_ERROR_INVALID_PTX
            Self::InvalidPtx(_) | Self::Target { .. } => 218,
            // CUDA_ERROR_UNSUPPORTED_PTX_VERSION
            Self::Version(_) => 222,
        }
    }
}

fn list(architectures: &[u32]) -> String {
    // A fatbin can have thousands of entries; nobody reads that many.
    let names: Vec<String> = architectures
        .iter()
        .take(16)
        .map(|a| format!("sm_{a}"))
        .collect();
    if names.is_empty() {
        String::new()
    } else {
        format!(" ({})", names.join(", "))
    }
}

/// The PTX text chosen from an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PtxText<'a> {
    /// The text, without what followed its NUL.
    pub text: Cow<'a, str>,
    /// The source file's name, if the image gives it.
    pub name: Option<&'a str>,
}

/// What form of image the bytes are, judged by their beginning.
#[must_use]
pub fn classify(image: &[u8]) -> Option<ImageKind> {
    if image.starts_with(&WRAPPER_MAGIC.to_le_bytes()) {
        return Some(ImageKind::Wrapper);
    }
    if image.starts_with(&FATBIN_MAGIC.to_le_bytes()) {
        return Some(ImageKind::Fatbin);
    }
    if image.starts_with(&ELF_MAGIC) {
        return (image.get(18..20) == Some(&EM_CUDA)).then_some(ImageKind::Cubin);
    }
    match image.trim_ascii_start() {
        [b'.', ..] | [b'/', b'/' | b'*', ..] => Some(ImageKind::Ptx),
        _ => None,
    }
}

/// The best PTX in an image for a device of this architecture number (90 for compute capability
/// 9.0): that for the newest architecture not beyond the device's.
///
/// # Errors
/// No image, a damaged one, or one without PTX that the device can run; see [`ImageError`].
pub fn select(image: &[u8], device: u32) -> Result<PtxText<'_>, ImageError> {
    select_within(image, device, &Limits::default())
}

/// [`select`] with limits of one's own.
///
/// # Errors
/// As [`select`].
pub fn select_within<'a>(
    image: &'a [u8],
    device: u32,
    limits: &Limits,
) -> Result<PtxText<'a>, ImageError> {
    select_up_to(image, device, device, limits)
}

/// [`select_within`], of the PTX for architectures up to `newest`; where a device could run none of those,
/// the one for the oldest beyond. For devices that refuse what [`select`] chooses.
///
/// # Errors
/// As [`select`].
pub fn select_up_to<'a>(
    image: &'a [u8],
    device: u32,
    newest: u32,
    limits: &Limits,
) -> Result<PtxText<'a>, ImageError> {
    match classify(image) {
        Some(ImageKind::Ptx) => check(Cow::Borrowed(image), None, device),
        Some(ImageKind::Fatbin) => from_fatbin(image, device, newest, limits),
        Some(ImageKind::Cubin) => Err(ImageError::MachineCodeOnly {
            found: Vec::new(),
            device,
        }),
        Some(ImageKind::Wrapper) | None => Err(ImageError::NotAnImage),
    }
}

/// The architectures of the PTX in an image that a device of this architecture number could run, the
/// newest first. None for what is no fatbin, or a damaged one.
#[must_use]
pub fn architectures(image: &[u8], device: u32) -> Vec<u32> {
    let mut found = BTreeSet::new();
    for entry in fatbin::entries(image) {
        match entry {
            Ok(entry) if entry.kind == EntryKind::Ptx => {
                if runs(entry.arch, entry.reach(), device) {
                    found.insert(entry.arch);
                }
            }
            Ok(_) => {}
            Err(_) => return Vec::new(),
        }
    }
    found.into_iter().rev().collect()
}

fn from_fatbin<'a>(
    image: &'a [u8],
    device: u32,
    newest: u32,
    limits: &Limits,
) -> Result<PtxText<'a>, ImageError> {
    let mut best: Option<FatbinEntry<'a>> = None;
    let (mut text, mut code) = (Vec::new(), Vec::new());
    for entry in fatbin::entries(image) {
        let entry = entry?;
        match entry.kind {
            EntryKind::Ptx => {
                text.push(entry.arch);
                let better = best.is_none_or(|best| match best.arch <= newest {
                    true => entry.arch > best.arch && entry.arch <= newest,
                    false => entry.arch < best.arch,
                });
                if better && runs(entry.arch, entry.reach(), device) {
                    best = Some(entry);
                }
            }
            EntryKind::Elf => code.push(entry.arch),
            EntryKind::Other(_) => {}
        }
    }
    match best {
        Some(entry) => check(entry.payload(limits)?, entry.name, device),
        None if text.is_empty() => Err(ImageError::MachineCodeOnly {
            found: code,
            device,
        }),
        None => Err(ImageError::NoPtxForDevice {
            found: text,
            device,
        }),
    }
}

/// Whether PTX for an architecture runs on a device.
fn runs(arch: u32, reach: Reach, device: u32) -> bool {
    match reach {
        Reach::Newer => arch <= device,
        Reach::Family => arch <= device && arch / 10 == device / 10,
        Reach::Exact => arch == device,
    }
}

/// Looks at a text's head: is it PTX, and for this device?
fn check<'a>(
    bytes: Cow<'a, [u8]>,
    name: Option<&'a str>,
    device: u32,
) -> Result<PtxText<'a>, ImageError> {
    let end = bytes
        .iter()
        .position(|&byte| byte == 0)
        .unwrap_or(bytes.len());
    let text = match bytes {
        Cow::Borrowed(bytes) => std::str::from_utf8(&bytes[..end]).map(Cow::Borrowed),
        Cow::Owned(mut bytes) => {
            bytes.truncate(end);
            String::from_utf8(bytes)
                .map(Cow::Owned)
                .map_err(|error| error.utf8_error())
        }
    };
    let text = text.map_err(|_| ParseError {
        line: 1,
        kind: ErrorKind::NotText,
    })?;
    let (version, target) = header(&text).map_err(|error| match error.kind {
        ErrorKind::Missing(".version") => ImageError::NotAnImage,
        _ => ImageError::InvalidPtx(error),
    })?;
    if version.0 > MAX_PTX_MAJOR {
        return Err(ImageError::Version(version));
    }
    let digits = target.trim_end_matches(['a', 'f']);
    let reach = match target.as_bytes().last() {
        Some(b'a') => Reach::Exact,
        Some(b'f') => Reach::Family,
        _ => Reach::Newer,
    };
    // The header has been parsed, so this is a number; one beyond 32 bits runs nowhere.
    if !runs(digits.parse().unwrap_or(u32::MAX), reach, device) {
        return Err(ImageError::Target {
            target: target.to_owned(),
            device,
        });
    }
    Ok(PtxText { text, name })
}
