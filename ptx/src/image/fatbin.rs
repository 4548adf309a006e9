//! The fatbin container: its entries and their compression.
//!
//! Layout, as read from the files that nvcc writes (all little-endian): a header of 16 bytes (magic,
//! version, header size, size of what follows), then entries, each a header of 64 bytes or more and a
//! padded payload. Knows nothing of devices or of PTX's grammar.

use std::borrow::Cow;

use lz4_flex::block::decompress_into;
use ruzstd::decoding::FrameDecoder;
use thiserror::Error;

use super::{FATBIN_MAGIC, Limits};

const CONTAINER_HEADER: usize = 16;
const ENTRY_HEADER: usize = 64;
/// Compressed payloads below this may expand to this much whatever their ratio.
const FREE_EXPANSION: u64 = 1 << 20;
/// zstd frames may ask for a window this large even if their content is smaller.
const LEAST_ZSTD_WINDOW: u64 = 8 << 20;

const FLAG_LZ4: u64 = 0x2000;
const FLAG_ZSTD: u64 = 0x8000;
const FLAG_ARCH_SPECIFIC: u64 = 0x10_0000;
const FLAG_FAMILY_SPECIFIC: u64 = 0x20_0000;

/// What is wrong with a container.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Damage {
    /// The container or an entry ends beyond the bytes given.
    #[error("the fatbin is cut off")]
    Truncated,
    /// A header field has a value that no writer writes.
    #[error("the fatbin's {0} is wrong")]
    Header(&'static str),
    /// A payload that says it expands to more than it can.
    #[error("a fatbin entry of {compressed} bytes claims to expand to {expanded}")]
    TooLarge {
        /// Bytes as stored.
        compressed: u64,
        /// Bytes that it claims to become.
        expanded: u64,
    },
    /// A payload that expands to more than is wanted.
    #[error(
        "a fatbin entry of {compressed} bytes expands to {expanded}, more than there is room for"
    )]
    NoRoom {
        /// Bytes as stored.
        compressed: u64,
        /// Bytes that it would become.
        expanded: u64,
    },
    /// A payload that does not decompress to exactly what its header says.
    #[error("a fatbin entry does not decompress")]
    Compression,
}

/// What an entry holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// PTX text.
    Ptx,
    /// Machine code of one NVIDIA architecture.
    Elf,
    /// Something else, by its number: link-time IR and the like.
    Other(u16),
}

/// On which devices an entry's PTX runs, beside its own architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// All newer ones.
    Newer,
    /// Newer ones of the same major version (`compute_100f`).
    Family,
    /// None (`compute_90a`).
    Exact,
}

/// One entry of a fatbin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FatbinEntry<'a> {
    /// What it holds.
    pub kind: EntryKind,
    /// Architecture number: 90 for `sm_90`.
    pub arch: u32,
    /// Major and minor; of the PTX language for PTX, of the ABI for machine code.
    pub version: (u16, u16),
    /// All flags as stored; `0x1` 64-bit, `0x2` with debug information.
    pub flags: u64,
    /// The source file's name, if stored.
    pub name: Option<&'a str>,
    payload: &'a [u8],
    expanded: u64,
}

impl<'a> FatbinEntry<'a> {
    /// On which devices its PTX runs.
    #[must_use]
    pub fn reach(&self) -> Reach {
        if self.flags & FLAG_ARCH_SPECIFIC != 0 {
            Reach::Exact
        } else if self.flags & FLAG_FAMILY_SPECIFIC != 0 {
            Reach::Family
        } else {
            Reach::Newer
        }
    }

    /// The payload, decompressed if it is compressed.
    ///
    /// # Errors
    /// A payload beyond `limits`, or one that is not what its header says.
    pub fn payload(&self, limits: &Limits) -> Result<Cow<'a, [u8]>, Damage> {
        let zstd = self.flags & FLAG_ZSTD != 0;
        if !zstd && self.flags & FLAG_LZ4 == 0 {
            return Ok(Cow::Borrowed(self.payload));
        }
        let (compressed, expanded) = (self.payload.len() as u64, self.expanded);
        let most = compressed
            .saturating_mul(limits.max_ratio)
            .max(FREE_EXPANSION);
        if expanded > most {
            return Err(Damage::TooLarge {
                compressed,
                expanded,
            });
        }
        let size = usize::try_from(expanded)
            .ok()
            .filter(|_| expanded <= limits.max_bytes)
            .ok_or(Damage::NoRoom {
                compressed,
                expanded,
            })?;
        let mut bytes = vec![0; size];
        let written = if zstd {
            let mut decoder = FrameDecoder::new();
            decoder.set_max_window_size(expanded.max(LEAST_ZSTD_WINDOW));
            decoder
                .decode_all(self.payload, &mut bytes)
                .map_err(|_| Damage::Compression)?
        } else {
            decompress_into(self.payload, &mut bytes).map_err(|_| Damage::Compression)?
        };
        if written != size {
            return Err(Damage::Compression);
        }
        Ok(Cow::Owned(bytes))
    }
}

/// The entries of a fatbin, and of those that directly follow it.
///
/// Ends after the first damage it finds.
#[derive(Clone, Debug)]
pub struct Entries<'a> {
    /// What follows the current container.
    rest: &'a [u8],
    /// What is left of the current container.
    container: &'a [u8],
}

/// Walks a fatbin's entries.
#[must_use]
pub fn entries(image: &[u8]) -> Entries<'_> {
    Entries {
        rest: image,
        container: &[],
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = Result<FatbinEntry<'a>, Damage>;

    fn next(&mut self) -> Option<Self::Item> {
        let entry = self.advance().transpose();
        if let Some(Err(_)) = entry {
            *self = Self {
                rest: &[],
                container: &[],
            };
        }
        entry
    }
}

impl<'a> Entries<'a> {
    fn advance(&mut self) -> Result<Option<FatbinEntry<'a>>, Damage> {
        while self.container.is_empty() {
            if !self.rest.starts_with(&FATBIN_MAGIC.to_le_bytes()) {
                return Ok(None);
            }
            (self.container, self.rest) = container(self.rest)?;
        }
        let (entry, rest) = entry(self.container)?;
        self.container = rest;
        Ok(Some(entry))
    }
}

/// The fatbins that lie in a host object file or an archive of such: found by their headers, since what
/// holds them may be any of a dozen formats.
pub fn embedded(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let magic = FATBIN_MAGIC.to_le_bytes();
    let mut at = 0;
    std::iter::from_fn(move || {
        while let Some(rest) = bytes.get(at..) {
            // Members of archives begin at even places.
            let step = rest
                .windows(magic.len())
                .step_by(2)
                .position(|word| word == magic)?;
            let start = at + 2 * step;
            let image = &bytes[start..];
            match container(image) {
                Ok((content, _)) => {
                    let header = usize::from(u16_at(image, 6).unwrap_or(0));
                    at = (start + header + content.len()).next_multiple_of(2);
                    return Some(&image[..header + content.len()]);
                }
                Err(_) => at = start + 2,
            }
        }
        None
    })
}

/// A container's entries, and what follows it.
fn container(image: &[u8]) -> Result<(&[u8], &[u8]), Damage> {
    let (version, header) = (u16_at(image, 4)?, u16_at(image, 6)?);
    if version != 1 {
        return Err(Damage::Header("version"));
    }
    let header = usize::from(header);
    if header < CONTAINER_HEADER {
        return Err(Damage::Header("header size"));
    }
    let size = usize::try_from(u64_at(image, 8)?).map_err(|_| Damage::Truncated)?;
    let image = image.get(header..).ok_or(Damage::Truncated)?;
    image.split_at_checked(size).ok_or(Damage::Truncated)
}

/// The first entry of a container, and what follows it.
fn entry(bytes: &[u8]) -> Result<(FatbinEntry<'_>, &[u8]), Damage> {
    let size = |at| u32_at(bytes, at).map(|size| usize::try_from(size).unwrap_or(usize::MAX));
    let header_size = size(4)?;
    if header_size < ENTRY_HEADER {
        return Err(Damage::Header("entry header size"));
    }
    let payload_size = usize::try_from(u64_at(bytes, 8)?).map_err(|_| Damage::Truncated)?;
    let header = bytes.get(..header_size).ok_or(Damage::Truncated)?;
    let (payload, rest) = bytes[header_size..]
        .split_at_checked(payload_size)
        .ok_or(Damage::Truncated)?;
    // 0 means that nothing is compressed and all of the payload counts.
    let payload = match size(16)? {
        0 => payload,
        compressed => payload
            .get(..compressed)
            .ok_or(Damage::Header("compressed size"))?,
    };
    let (name_at, name_size) = (size(32)?, size(36)?);
    let name = (name_at >= ENTRY_HEADER && name_size > 0)
        .then(|| header.get(name_at..)?.get(..name_size))
        .flatten()
        .and_then(|name| std::str::from_utf8(name).ok());
    let entry = FatbinEntry {
        kind: match u16_at(header, 0)? {
            1 => EntryKind::Ptx,
            2 => EntryKind::Elf,
            other => EntryKind::Other(other),
        },
        arch: u32_at(header, 28)?,
        version: (u16_at(header, 26)?, u16_at(header, 24)?),
        flags: u64_at(header, 40)?,
        name,
        payload,
        expanded: u64_at(header, 56)?,
    };
    Ok((entry, rest))
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N], Damage> {
    let field = bytes.get(at..).and_then(|rest| rest.first_chunk());
    field.copied().ok_or(Damage::Truncated)
}

fn u16_at(bytes: &[u8], at: usize) -> Result<u16, Damage> {
    array(bytes, at).map(u16::from_le_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Result<u32, Damage> {
    array(bytes, at).map(u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Result<u64, Damage> {
    array(bytes, at).map(u64::from_le_bytes)
}
