//! Where an image that a program hands over begins and ends.
//!
//! A program gives an address and nothing else; what lies there says how long it is: a fatbin and
//! its wrapper, an ELF file, what a link gave, or text up to its NUL. A
//! wrapper that lists its parts becomes an image of all of them here. Knows nothing of
//! what is inside, which only the server reads.
//!
//! What a damaged image says of its length may lead anywhere, so before anything is read the kernel is
//! asked whether it is there: a damaged image is an error and not the program's end.

use cuda_abi::CUresult;
use cuda_abi::types::CUjitInputType;
use protocol::linked_image;
use rustix::io::Errno;
use rustix::mm::Advice;

/// Magic of a fatbin's wrapper.
const WRAPPER: u32 = 0x4662_43b1;
/// Magic of a fatbin.
const FATBIN: u32 = 0xba55_ed50;
/// Bytes of a fatbin's header, after which its size counts.
const FATBIN_HEADER: u64 = 16;
/// Magic of an ELF file.
const ELF: [u8; 4] = *b"\x7fELF";
/// Bytes of a 64-bit ELF header.
const ELF_HEADER: usize = 64;
/// No real image is larger; a size beyond it is damage.
const MOST: u64 = 2 << 30;

/// Bytes that text is looked through for its end at once.
const STEP: usize = 16 << 10;

/// The smallest pages that processors have.
const PAGE: usize = 4096;

/// Parts of a wrapper that lists what was linked; a list of more has no end.
const MOST_PARTS: usize = 4096;

/// Memory that holds an image.
#[derive(Debug)]
pub(crate) struct FoundImage {
    /// Its first byte.
    pub start: *const u8,
    /// Bytes.
    pub bytes: usize,
    /// The memory, where it is not the program's.
    _made: Option<Vec<u8>>,
}

impl FoundImage {
    /// An image in memory of the program's.
    pub(crate) fn of(start: *const u8, bytes: usize) -> Self {
        Self {
            start,
            bytes,
            _made: None,
        }
    }

    fn made(image: Vec<u8>) -> Self {
        Self {
            start: image.as_ptr(),
            bytes: image.len(),
            _made: Some(image),
        }
    }
}

/// Whether bytes begin as a fatbin's wrapper.
pub(crate) fn is_wrapper(bytes: &[u8]) -> bool {
    bytes.len() >= 24 && bytes.starts_with(&WRAPPER.to_le_bytes())
}

/// Reads a value of the program's memory, which need not be aligned.
///
/// # Safety
/// `at` points to readable memory that holds a `T`, for which any bits will do.
unsafe fn peek<T: Copy>(at: *const u8) -> T {
    // SAFETY: the caller vouches for the memory; unaligned reads ask no more.
    unsafe { at.cast::<T>().read_unaligned() }
}

/// Finds the image at an address.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE for NULL, CUDA_ERROR_INVALID_IMAGE for what is no image.
///
/// # Safety
/// `start` points to a whole image of one of the forms above, as CUDA requires of the program.
pub(crate) unsafe fn find(start: *const u8) -> Result<FoundImage, CUresult> {
    if start.is_null() {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    readable(start, 1)?;
    // SAFETY: the first byte exists; the shortest text is its NUL alone. The further bytes of a
    // magic are read only once the ones before fit.
    unsafe {
        match *start {
            0x7f if (1..4).all(|at| *start.add(at) == ELF[at]) => elf(start),
            0x9d if (1..linked_image::MAGIC.len())
                .all(|at| *start.add(at) == linked_image::MAGIC[at]) =>
            {
                readable(start, linked_image::HEADER as u64)?;
                let total = peek::<u64>(start.add(linked_image::MAGIC.len()));
                bounded(start, total.max(linked_image::HEADER as u64))
            }
            0xb1 | 0x50 => match peek::<u32>(start) {
                WRAPPER => wrapper(start),
                FATBIN => fatbin(start),
                _ => Err(CUresult::ERROR_INVALID_IMAGE),
            },
            first if first.is_ascii_graphic() || first.is_ascii_whitespace() => text(start),
            _ => Err(CUresult::ERROR_INVALID_IMAGE),
        }
    }
}

/// # Safety
/// As [`find`], with a wrapper's magic at `start`.
unsafe fn wrapper(start: *const u8) -> Result<FoundImage, CUresult> {
    readable(start, 24)?;
    // SAFETY: a wrapper has 24 bytes: magic, version, and two pointers.
    let (version, data) = unsafe { (peek::<u32>(start.add(4)), peek::<*const u8>(start.add(8))) };
    if !matches!(version, 1 | 2) || data.is_null() {
        return Err(CUresult::ERROR_INVALID_IMAGE);
    }
    // SAFETY: the pointer leads to a fatbin.
    let whole = unsafe { wrapped(data)? };
    if version == 1 {
        return Ok(whole);
    }
    // Version 2 also lists what was linked; the first pointer is the result of linking them, for the
    // devices that there was machine code for.
    // SAFETY: the wrapper's 24 bytes are readable, and the second pointer takes the last eight.
    let list = unsafe { peek::<*const *const u8>(start.add(16)) };
    let mut parts = Vec::new();
    while !list.is_null() {
        let entry = list.wrapping_add(parts.len()).cast();
        readable(entry, 8)?;
        // SAFETY: the list ends in a null pointer, which is what ends the loop.
        let part = unsafe { peek::<*const u8>(entry) };
        if part.is_null() {
            break;
        }
        if parts.len() == MOST_PARTS {
            return Err(CUresult::ERROR_INVALID_IMAGE);
        }
        // SAFETY: each entry leads to a fatbin.
        parts.push(unsafe { wrapped(part)? });
    }
    if parts.is_empty() {
        return Ok(whole);
    }
    // SAFETY: the parts are whole fatbins of the program's, by what it promises of the wrapper.
    let bytes =
        |found: &FoundImage| unsafe { std::slice::from_raw_parts(found.start, found.bytes) };
    let names: Vec<String> = (1..=parts.len()).map(|at| format!("object {at}")).collect();
    let linked = linked_image::Part {
        kind: linked_image::ALREADY_LINKED,
        name: "linked",
        bytes: bytes(&whole),
    };
    let each = parts
        .iter()
        .zip(&names)
        .map(|(part, name)| linked_image::Part {
            kind: CUjitInputType::FATBINARY.0,
            name,
            bytes: bytes(part),
        });
    Ok(FoundImage::made(linked_image::encode(
        std::iter::once(linked).chain(each),
    )))
}

/// # Safety
/// `data` points to a fatbin, or to something whose first word shows that it is none.
unsafe fn wrapped(data: *const u8) -> Result<FoundImage, CUresult> {
    readable(data, FATBIN_HEADER)?;
    // SAFETY: the first word is readable; if it is a fatbin's, a whole fatbin is there, as the caller promises.
    unsafe {
        if peek::<u32>(data) == FATBIN {
            fatbin(data)
        } else {
            Err(CUresult::ERROR_INVALID_IMAGE)
        }
    }
}

fn bounded(start: *const u8, bytes: u64) -> Result<FoundImage, CUresult> {
    readable(start, bytes)?;
    Ok(FoundImage::of(start, bytes as usize))
}

/// Checks that memory of the program's can be read, where the kernel can tell (Linux 5.14).
fn readable(start: *const u8, bytes: u64) -> Result<(), CUresult> {
    if bytes > MOST {
        return Err(CUresult::ERROR_INVALID_IMAGE);
    }
    let into_page = start.addr() % PAGE;
    let first = start.wrapping_sub(into_page).cast_mut();
    let whole = (into_page + bytes as usize).next_multiple_of(PAGE);
    // SAFETY: the advice has pages brought in, which are read anyway, and changes nothing.
    let asked = unsafe { rustix::mm::madvise(first.cast(), whole, Advice::LinuxPopulateRead) };
    match asked {
        // Nothing is there, or nothing that may be read.
        Err(Errno::NOMEM | Errno::FAULT) => Err(CUresult::ERROR_INVALID_IMAGE),
        // Older kernels and strange mappings: what the program promised must do.
        _ => Ok(()),
    }
}

/// # Safety
/// As [`find`], with a fatbin's magic at `start`.
unsafe fn fatbin(start: *const u8) -> Result<FoundImage, CUresult> {
    readable(start, FATBIN_HEADER)?;
    // SAFETY: the header has 16 bytes, of which the last 8 say what follows.
    let rest = unsafe { peek::<u64>(start.add(8)) };
    bounded(start, rest.saturating_add(FATBIN_HEADER))
}

/// # Safety
/// As [`find`], with text at `start`.
unsafe fn text(start: *const u8) -> Result<FoundImage, CUresult> {
    // To the ends of pages, beyond which there may be nothing.
    let mut length = STEP - start.addr() % PAGE;
    loop {
        // Where it is not readable to there, its end may still be before.
        let known = match readable(start, length as u64) {
            Ok(()) => length,
            Err(_) => readable_pages(start, length)?,
        };
        // SAFETY: so many bytes can be read.
        let bytes = unsafe { std::slice::from_raw_parts(start, known) };
        if let Ok(text) = std::ffi::CStr::from_bytes_until_nul(bytes) {
            // The NUL is part of the image, so that the server sees where it ends.
            return bounded(start, text.to_bytes_with_nul().len() as u64);
        }
        if known < length {
            return Err(CUresult::ERROR_INVALID_IMAGE);
        }
        length *= 2;
    }
}

/// How many of some bytes can be read, in whole pages; at least the first.
fn readable_pages(start: *const u8, bytes: usize) -> Result<usize, CUresult> {
    let mut known = PAGE - start.addr() % PAGE;
    readable(start, known as u64)?;
    while known < bytes && readable(start.wrapping_add(known), PAGE as u64).is_ok() {
        known += PAGE;
    }
    Ok(known)
}

/// # Safety
/// As [`find`], with an ELF magic at `start`.
unsafe fn elf(start: *const u8) -> Result<FoundImage, CUresult> {
    readable(start, ELF_HEADER as u64)?;
    // SAFETY: a 64-bit ELF file begins with its header of 64 bytes; others are refused by byte 4.
    let header = unsafe {
        if *start.add(4) != 2 {
            return Err(CUresult::ERROR_INVALID_IMAGE);
        }
        peek::<[u8; ELF_HEADER]>(start)
    };
    let half = |at: usize| u64::from(u16::from_le_bytes([header[at], header[at + 1]]));
    let long = |at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&header[at..at + 8]);
        u64::from_le_bytes(bytes)
    };
    let (segments, sections) = (long(32), long(40));
    let (segment_size, segment_count) = (half(54), half(56));
    let (section_size, section_count) = (half(58), half(60));
    let segments_end = segments.saturating_add(segment_size * segment_count);
    let sections_end = sections.saturating_add(section_size * section_count);
    let mut end = (ELF_HEADER as u64).max(segments_end).max(sections_end);
    if end > MOST
        || (segment_count > 0 && segment_size < 56)
        || (section_count > 0 && section_size < 64)
    {
        return Err(CUresult::ERROR_INVALID_IMAGE);
    }
    // The tables lie within `end`.
    readable(start, end)?;
    for index in 0..section_count {
        // SAFETY: the header says that its table of sections lies here.
        let (kind, offset, size) = unsafe {
            let section = start.add((sections + index * section_size) as usize);
            (
                peek::<u32>(section.add(4)),
                peek::<u64>(section.add(24)),
                peek::<u64>(section.add(32)),
            )
        };
        // Sections without content in the file: SHT_NULL and SHT_NOBITS.
        if !matches!(kind, 0 | 8) {
            end = end.max(offset.saturating_add(size));
        }
    }
    for index in 0..segment_count {
        // SAFETY: the header says that its table of segments lies here.
        let (offset, size) = unsafe {
            let segment = start.add((segments + index * segment_size) as usize);
            (peek::<u64>(segment.add(8)), peek::<u64>(segment.add(32)))
        };
        end = end.max(offset.saturating_add(size));
    }
    bounded(start, end)
}

/// Checks that a file's content is a whole image: what [`find`] would read lies inside of it.
///
/// # Errors
/// CUDA_ERROR_INVALID_IMAGE when it is none, or is cut short.
pub(crate) fn check_file(content: &[u8]) -> Result<(), CUresult> {
    let long = |at: usize| {
        let bytes = content.get(at..at + 8)?;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    };
    match content {
        [0x50, 0xed, 0x55, 0xba, ..] => match long(8) {
            Some(rest) if rest.saturating_add(FATBIN_HEADER) <= content.len() as u64 => Ok(()),
            _ => Err(CUresult::ERROR_INVALID_IMAGE),
        },
        [0x7f, b'E', b'L', b'F', ..] if content.len() >= ELF_HEADER => Ok(()),
        _ if linked_image::is_linked(content) => match linked_image::decode(content) {
            Ok(_) => Ok(()),
            Err(_) => Err(CUresult::ERROR_INVALID_IMAGE),
        },
        [first, ..] if first.is_ascii_graphic() || first.is_ascii_whitespace() => {
            std::str::from_utf8(content)
                .map(drop)
                .map_err(|_| CUresult::ERROR_INVALID_IMAGE)
        }
        _ => Err(CUresult::ERROR_INVALID_IMAGE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn length(image: &[u8]) -> Result<usize, CUresult> {
        // SAFETY: every image below is whole, or refused by what it begins with.
        unsafe { find(image.as_ptr()).map(|found| found.bytes) }
    }

    fn a_fatbin(rest: u64) -> Vec<u8> {
        let mut image = FATBIN.to_le_bytes().to_vec();
        image.extend([1, 0, 16, 0]);
        image.extend(rest.to_le_bytes());
        image.resize(16 + rest.min(64) as usize, 0);
        image
    }

    #[test]
    fn text_ends_at_its_nul() {
        assert_eq!(length(b"\n.version 7.0\n\0rest"), Ok(15));
    }

    #[test]
    fn a_fatbin_says_its_length_and_a_wrapper_leads_to_it() {
        let fatbin = a_fatbin(32);
        assert_eq!(length(&fatbin), Ok(48));
        for (version, expected) in [
            (1, Ok(48)),
            (2, Ok(48)),
            (3, Err(CUresult::ERROR_INVALID_IMAGE)),
        ] {
            let mut wrapper = WRAPPER.to_le_bytes().to_vec();
            wrapper.extend(u32::to_le_bytes(version));
            wrapper.extend((fatbin.as_ptr() as u64).to_le_bytes());
            wrapper.extend([0; 8]);
            assert_eq!(length(&wrapper), expected);
        }
        assert_eq!(
            length(&a_fatbin(u64::MAX)),
            Err(CUresult::ERROR_INVALID_IMAGE)
        );
    }

    #[test]
    fn a_wrapper_that_lists_its_parts_becomes_an_image_of_them() {
        let (whole, first, second) = (a_fatbin(0), a_fatbin(32), a_fatbin(16));
        let list = [first.as_ptr(), second.as_ptr(), std::ptr::null()];
        let mut wrapper = WRAPPER.to_le_bytes().to_vec();
        wrapper.extend(u32::to_le_bytes(2));
        wrapper.extend((whole.as_ptr() as u64).to_le_bytes());
        wrapper.extend((list.as_ptr() as u64).to_le_bytes());
        // SAFETY: all that it leads to is whole and lives until the end of the test.
        let found = unsafe { find(wrapper.as_ptr()) }.unwrap();
        let image = found._made.as_ref().unwrap();
        assert_eq!(length(image), Ok(image.len()), "it is an image itself");
        let parts = linked_image::decode(image).unwrap();
        let bytes: Vec<_> = parts.iter().map(|part| part.bytes).collect();
        assert_eq!(bytes, [&whole[..], &first[..], &second[..]]);
        assert_eq!(parts[0].kind, linked_image::ALREADY_LINKED);
        assert_eq!(check_file(image), Ok(()));
        assert!(check_file(&image[..image.len() - 1]).is_err());
    }

    #[test]
    fn an_elf_file_ends_where_its_last_part_does() {
        let mut image = vec![0_u8; 64 + 2 * 64 + 40];
        image[..4].copy_from_slice(&ELF);
        image[4] = 2;
        image[40..48].copy_from_slice(&64_u64.to_le_bytes()); // sections
        image[58] = 64;
        image[60] = 2;
        let section = 64 + 64;
        image[section + 4] = 1; // SHT_PROGBITS
        image[section + 24..section + 32].copy_from_slice(&192_u64.to_le_bytes());
        image[section + 32..section + 40].copy_from_slice(&40_u64.to_le_bytes());
        assert_eq!(length(&image), Ok(232));
        image[4] = 1;
        assert_eq!(length(&image), Err(CUresult::ERROR_INVALID_IMAGE));
    }

    #[test]
    fn what_is_no_image_is_refused() {
        for image in [
            &b"\x01\x02\x03\x04"[..],
            b"\0",
            b"\x7fELX",
            b"\xb1\0\0\0",
            b"\x50\xed\x55\0",
        ] {
            assert_eq!(
                length(image),
                Err(CUresult::ERROR_INVALID_IMAGE),
                "{image:?}"
            );
            assert_eq!(
                check_file(image),
                Err(CUresult::ERROR_INVALID_IMAGE),
                "{image:?}"
            );
        }
        // SAFETY: NULL is refused before it is read.
        let null = unsafe { find(std::ptr::null()) };
        assert_eq!(null.unwrap_err(), CUresult::ERROR_INVALID_VALUE);
    }

    #[test]
    fn what_leads_to_memory_that_is_not_there_is_refused() {
        // A page, and nothing behind it.
        let size = 2 * PAGE;
        let protection = rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE;
        let flags = rustix::mm::MapFlags::PRIVATE;
        // SAFETY: new memory of this test's own, of which nothing uses the second page.
        let page = unsafe {
            let null = std::ptr::null_mut();
            let base = rustix::mm::mmap_anonymous(null, size, protection, flags).unwrap();
            rustix::mm::munmap(base.byte_add(PAGE), PAGE).unwrap();
            std::slice::from_raw_parts_mut(base.cast::<u8>(), PAGE)
        };
        let invalid = Err(CUresult::ERROR_INVALID_IMAGE);
        // Text without an end, and with one in the last byte.
        page.fill(b'x');
        assert_eq!(length(page), invalid);
        assert_eq!(length(&page[PAGE - 3..]), invalid);
        page[PAGE - 1] = 0;
        assert_eq!(length(page), Ok(PAGE));
        // Sizes that lead out of it.
        let mut put = |image: &[u8]| page[..image.len()].copy_from_slice(image);
        put(&a_fatbin(PAGE as u64 - 16)[..16]);
        assert_eq!(length(page), Ok(PAGE));
        page[8..16].copy_from_slice(&(1_u64 << 20).to_le_bytes());
        assert_eq!(length(page), invalid);
        let fatbin = page.as_ptr() as u64;
        let mut linked = linked_image::MAGIC.to_vec();
        linked.extend((1_u64 << 20).to_le_bytes());
        page[..16].copy_from_slice(&linked);
        assert_eq!(length(page), invalid);
        page.fill(0);
        page[..5].copy_from_slice(b"\x7fELF\x02");
        page[40..48].copy_from_slice(&(PAGE as u64).to_le_bytes());
        page[58..62].copy_from_slice(&[64, 0, 2, 0]);
        assert_eq!(length(page), invalid);
        // Pointers that do.
        for (data, list) in [(fatbin + PAGE as u64, 0), (0x10, 0), (fatbin, 0x10)] {
            page.fill(0);
            page[..16].copy_from_slice(&a_fatbin(0));
            let mut wrapper = WRAPPER.to_le_bytes().to_vec();
            wrapper.extend(u32::to_le_bytes(2));
            wrapper.extend(u64::to_le_bytes(data));
            wrapper.extend(u64::to_le_bytes(list));
            assert_eq!(length(&wrapper), invalid, "{data:#x}, {list:#x}");
        }
    }

    #[test]
    fn a_file_that_is_cut_short_is_refused() {
        let fatbin = a_fatbin(32);
        assert_eq!(check_file(&fatbin), Ok(()));
        assert_eq!(
            check_file(&fatbin[..47]),
            Err(CUresult::ERROR_INVALID_IMAGE)
        );
        assert_eq!(
            check_file(&fatbin[..10]),
            Err(CUresult::ERROR_INVALID_IMAGE)
        );
        assert_eq!(check_file(b""), Err(CUresult::ERROR_INVALID_IMAGE));
    }
}
