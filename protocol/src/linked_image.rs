//! Our own image form: several images that are to be linked.
//!
//! cuLinkComplete gives a program one of these, and the client makes one of a fatbin wrapper that
//! lists its parts; every way of loading an image takes it. The parts stay as they came, so that one
//! engine can hand them to the driver's linker and another can link their syntax trees. Knows nothing
//! of what is in a part.

use crate::codec::{ByteCodec as _, Damaged, Reader, put_text};

/// The first bytes. No text, ELF file or fatbin begins so.
pub const MAGIC: [u8; 8] = *b"\x9dOMPSLK1";
/// The kind of a part that is what linking the others gives, for the devices that it has code for.
pub const ALREADY_LINKED: u32 = 0x100;
/// Bytes before the first part: the magic, and the number of bytes in all.
pub const HEADER: usize = 16;
/// Parts of one image, at most.
pub const MOST_PARTS: usize = 1 << 16;

/// One part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part<'a> {
    /// What the program said that it is: a `CUjitInputType`, or [`ALREADY_LINKED`].
    pub kind: u32,
    /// Its name in messages.
    pub name: &'a str,
    /// Its bytes.
    pub bytes: &'a [u8],
}

/// Puts parts together.
#[must_use]
pub fn encode<'a>(parts: impl IntoIterator<Item = Part<'a>>) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.extend([0; 8]);
    for part in parts {
        out.extend(part.kind.to_le_bytes());
        put_text(part.name, &mut out);
        out.extend((part.bytes.len() as u64).to_le_bytes());
        out.extend(part.bytes);
    }
    let total = out.len() as u64;
    out[MAGIC.len()..HEADER].copy_from_slice(&total.to_le_bytes());
    out
}

/// Whether bytes begin as such an image.
#[must_use]
pub fn is_linked(image: &[u8]) -> bool {
    image.starts_with(&MAGIC)
}

/// The parts of an image. What follows it is passed over.
///
/// # Errors
/// When it is cut short, has too many parts, or a name that is not UTF-8.
pub fn decode(image: &[u8]) -> Result<Vec<Part<'_>>, Damaged> {
    let mut reader = Reader::new(image);
    if reader.bytes(MAGIC.len())? != MAGIC {
        return Err(Damaged);
    }
    let total = usize::try_from(u64::get(&mut reader)?).map_err(|_| Damaged)?;
    let body = image.get(HEADER..total).ok_or(Damaged)?;
    let mut reader = Reader::new(body);
    let mut parts = Vec::new();
    while !reader.is_empty() {
        let kind = u32::get(&mut reader)?;
        let name = reader.text()?;
        let length = usize::try_from(u64::get(&mut reader)?).map_err(|_| Damaged)?;
        let bytes = reader.bytes(length)?;
        if parts.len() == MOST_PARTS {
            return Err(Damaged);
        }
        parts.push(Part { kind, name, bytes });
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_come_back_and_damage_is_refused() {
        let parts = [
            Part {
                kind: 1,
                name: "first.ptx",
                bytes: b".version 7.0",
            },
            Part {
                kind: 2,
                name: "",
                bytes: b"",
            },
        ];
        let image = encode(parts);
        assert!(is_linked(&image));
        assert_eq!(decode(&image), Ok(parts.to_vec()));
        let longer = [&image[..], b"\0"].concat();
        assert_eq!(decode(&longer), Ok(parts.to_vec()));
        for end in 0..image.len() {
            assert_eq!(decode(&image[..end]), Err(Damaged), "{end}");
        }
        for at in 0..image.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut damaged = image.clone();
                damaged[at] = value;
                let _ = decode(&damaged);
            }
        }
    }
}
