//! The variables of an image, which the driver does not enumerate: read from PTX text and from the
//! symbol tables of machine code. And whether an image's tables stay within the image, because the
//! driver follows them without knowing where it ends.
//!
//! What is found is a list of candidates; the driver then says which of them it has. Called by images and links. Must
//! not know what the variables are for.
#![forbid(unsafe_code)]

use std::collections::HashSet;

use cuda_abi::CUresult;
use ptx::image::fatbin::{self, EntryKind};
use ptx::image::{ImageKind, Limits, classify};

/// Names taken of one image; a table of more is not a program's.
const MOST_NAMES: usize = 1 << 16;

pub(super) const ELF_HEADER: usize = 64;
pub(super) const SECTION_HEADER: usize = 64;
const PROGRAM_HEADER: usize = 56;
pub(super) const SYMBOL: usize = 24;
pub(super) const SECTION_SYMBOLS: u32 = 2;
pub(super) const SECTION_NO_BITS: u32 = 8;
pub(super) const SYMBOL_OBJECT: u8 = 1;

/// Checks an image's tables and collects the names of what may be its variables.
///
/// # Errors
/// CUDA_ERROR_INVALID_IMAGE for what is no image, or a damaged one.
pub(crate) fn variables(image: &[u8]) -> Result<Vec<String>, CUresult> {
    let mut names = Names::default();
    collect(image, &mut names)?;
    Ok(names.list)
}

/// Names without repetition, in the order in which they were found.
#[derive(Default)]
struct Names {
    list: Vec<String>,
    known: HashSet<String>,
}

fn collect(image: &[u8], names: &mut Names) -> Result<(), CUresult> {
    match classify(image) {
        Some(ImageKind::Ptx) => of_ptx(image, names),
        Some(ImageKind::Cubin) => of_elf(image, names).ok_or(CUresult::ERROR_INVALID_IMAGE)?,
        Some(ImageKind::Fatbin) => {
            for entry in fatbin::entries(image) {
                let entry = entry.map_err(|_| CUresult::ERROR_INVALID_IMAGE)?;
                let payload = entry
                    .payload(&Limits::default())
                    .map_err(|_| CUresult::ERROR_INVALID_IMAGE)?;
                match entry.kind {
                    EntryKind::Ptx => of_ptx(&payload, names),
                    EntryKind::Elf => {
                        of_elf(&payload, names).ok_or(CUresult::ERROR_INVALID_IMAGE)?;
                    }
                    EntryKind::Other(_) => {}
                }
            }
        }
        // A wrapper's pointer means nothing here, and the driver would follow it.
        Some(ImageKind::Wrapper) | None => return Err(CUresult::ERROR_INVALID_IMAGE),
    }
    Ok(())
}

fn add(names: &mut Names, name: &[u8]) {
    if names.list.len() < MOST_NAMES
        && !name.is_empty()
        && let Ok(name) = std::str::from_utf8(name)
        && names.known.insert(name.to_owned())
    {
        names.list.push(name.to_owned());
    }
}

/// Declarations outside of functions that name `.global` or `.const`.
fn of_ptx(text: &[u8], names: &mut Names) {
    let text = text.split(|&byte| byte == 0).next().unwrap_or_default();
    let mut depth = 0_u32;
    let mut declares = false;
    let mut named = false;
    let mut last: &[u8] = b"";
    let mut at = 0;
    while at < text.len() {
        let rest = &text[at..];
        let mut step = 1;
        match rest[0] {
            b'/' if rest.starts_with(b"//") => step = find(rest, b"\n"),
            b'/' if rest.starts_with(b"/*") => step = find(rest, b"*/"),
            b'"' => step = 1 + find(&rest[1..], b"\""),
            b'{' => depth += 1,
            b'}' => {
                depth = depth.saturating_sub(1);
                // A function's body, or an initialiser: what follows is a new statement or a `;`.
                declares = false;
            }
            b';' => {
                if declares && !named && depth == 0 {
                    add(names, last);
                }
                (declares, named) = (false, false);
            }
            b'=' | b'[' | b',' if declares && depth == 0 => {
                if !named {
                    add(names, last);
                }
                // `.global .u32 a, b;` declares two.
                named = rest[0] != b',';
            }
            // Attributes and parameter lists.
            b'(' => step = find(rest, b")"),
            byte if is_word(byte) => {
                step = rest.iter().take_while(|&&byte| is_word(byte)).count();
                let word = &rest[..step];
                match word {
                    b".global" | b".const" if depth == 0 => declares = true,
                    b".func" | b".entry" | b".version" | b".target" | b".address_size"
                    | b".file" => {
                        (declares, named) = (false, false);
                    }
                    _ if word[0] != b'.' => last = word,
                    _ => {}
                }
            }
            _ => {}
        }
        at += step;
    }
}

const fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | b'.' | b'%')
}

/// Bytes up to and including the first `needle`, or all.
fn find(text: &[u8], needle: &[u8]) -> usize {
    text.windows(needle.len())
        .position(|window| window == needle)
        .map_or(text.len(), |at| at + needle.len())
}

/// The symbols of kind object in a 64-bit little-endian ELF file. `None` if a table or a section lies
/// outside of the file.
fn of_elf(file: &[u8], names: &mut Names) -> Option<()> {
    if file.len() < ELF_HEADER || file[4] != 2 || file[5] != 1 {
        return None;
    }
    let program_headers = table(file, 32, 54, PROGRAM_HEADER)?;
    for header in program_headers.chunks_exact(PROGRAM_HEADER) {
        part(file, long(header, 8)?, long(header, 32)?)?;
    }
    let headers = table(file, 40, 58, SECTION_HEADER)?;
    let sections: Vec<&[u8]> = headers.chunks_exact(SECTION_HEADER).collect();
    for section in &sections {
        if word(section, 4)? != SECTION_NO_BITS {
            part(file, long(section, 24)?, long(section, 32)?)?;
        }
    }
    for section in &sections {
        if word(section, 4)? != SECTION_SYMBOLS {
            continue;
        }
        let symbols = part(file, long(section, 24)?, long(section, 32)?)?;
        let strings = sections.get(word(section, 40)? as usize)?;
        let strings = part(file, long(strings, 24)?, long(strings, 32)?)?;
        for symbol in symbols.chunks_exact(SYMBOL) {
            let name = strings.get(word(symbol, 0)? as usize..)?;
            if symbol[4] & 0xf == SYMBOL_OBJECT {
                add(names, name.split(|&byte| byte == 0).next()?);
            }
        }
    }
    Some(())
}

/// The table whose offset stands at `offset_at`, and size and number of entries at `sizes_at`.
pub(super) fn table(file: &[u8], offset_at: usize, sizes_at: usize, entry: usize) -> Option<&[u8]> {
    let offset = long(file, offset_at)?;
    let size = usize::from(half(file, sizes_at)?);
    let count = usize::from(half(file, sizes_at + 2)?);
    if count == 0 {
        return Some(&[]);
    }
    if size != entry {
        return None;
    }
    part(file, offset, (size * count) as u64)
}

pub(super) fn part(file: &[u8], offset: u64, bytes: u64) -> Option<&[u8]> {
    let end = offset.checked_add(bytes)?;
    file.get(usize::try_from(offset).ok()?..usize::try_from(end).ok()?)
}

pub(super) fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

pub(super) fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

pub(super) fn long(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PTX: &str = r#"
//
// .global .u32 commented;
.version 8.0
.target sm_80 /* .const .u32 no; */
.address_size 64
.extern .func vprintf;
.visible .global .align 4 .u32 counter;
.visible .const .align 8 .b8 table[64] = {1, 2, 3};
.global .align 4 .f32 a = 0f3F800000;
.global .u64 pointers[2] = {generic(counter), 5};
.extern .shared .align 16 .b8 dynamic[];
.visible .entry kernel(.param .u64 p) .maxntid 256, 1, 1 {
    .reg .b32 %r<3>;
    .local .align 4 .b8 frame[4];
    .shared .u32 shared;
    ld.global.u32 %r1, [counter];
    ret;
}
.visible .global .attribute(.managed) .align 4 .u32 managed;
.func (.param .b32 result) helper(.param .b32 x) { ret; }
.global .u32 last, second;
"#;

    #[test]
    fn variables_of_ptx() {
        let names = variables(PTX.as_bytes()).unwrap();
        let expected = ["a", "counter", "last", "pointers", "second", "table"];
        for name in expected {
            assert!(
                names.iter().any(|found| found == name),
                "{name} in {names:?}"
            );
        }
        for name in [
            "commented",
            "no",
            "dynamic",
            "shared",
            "frame",
            "kernel",
            "p",
        ] {
            assert!(
                !names.iter().any(|found| found == name),
                "{name} in {names:?}"
            );
        }
    }

    #[test]
    fn managed_variables_of_ptx() {
        assert!(
            variables(PTX.as_bytes())
                .unwrap()
                .contains(&"managed".to_owned())
        );
    }

    /// A file with one symbol table: a kernel and a variable.
    fn elf() -> Vec<u8> {
        let mut file = vec![0; 64 + 3 * 64];
        file[..4].copy_from_slice(b"\x7fELF");
        (file[4], file[5]) = (2, 1);
        file[18..20].copy_from_slice(&190_u16.to_le_bytes());
        file[40..48].copy_from_slice(&64_u64.to_le_bytes());
        file[58..60].copy_from_slice(&64_u16.to_le_bytes());
        file[60..62].copy_from_slice(&3_u16.to_le_bytes());
        let mut section = |index: usize, kind: u32, offset: u64, bytes: u64, link: u32| {
            let at = 64 + index * 64;
            file[at + 4..at + 8].copy_from_slice(&kind.to_le_bytes());
            file[at + 24..at + 32].copy_from_slice(&offset.to_le_bytes());
            file[at + 32..at + 40].copy_from_slice(&bytes.to_le_bytes());
            file[at + 40..at + 44].copy_from_slice(&link.to_le_bytes());
        };
        section(1, 2, 256, 48, 2);
        section(2, 3, 304, 18, 0);
        let mut symbols = vec![0; 48];
        symbols[0] = 1;
        symbols[4] = 0x12;
        symbols[24] = 8;
        symbols[28] = 0x11;
        file.extend(symbols);
        file.extend(b"\0kernel\0variable\0\0");
        file
    }

    #[test]
    fn variables_of_machine_code() {
        assert_eq!(variables(&elf()).unwrap(), ["variable"]);
    }

    #[test]
    fn damage_is_refused_and_never_panics() {
        let whole = elf();
        for end in 0..whole.len() {
            assert_eq!(
                variables(&whole[..end]),
                Err(CUresult::ERROR_INVALID_IMAGE),
                "at {end}"
            );
        }
        for at in 0..whole.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut file = whole.clone();
                file[at] = value;
                let _ = variables(&file);
            }
        }
        assert_eq!(variables(b""), Err(CUresult::ERROR_INVALID_IMAGE));
        let wrapper = 0x4662_43b1_u32.to_le_bytes();
        assert_eq!(variables(&wrapper), Err(CUresult::ERROR_INVALID_IMAGE));
        let _ = variables(b".global .u32 x = {");
        let _ = variables(b".global \"");
    }
}
