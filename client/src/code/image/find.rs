//! Where an image that a program hands over begins and ends.
//!
//! A program gives an address and nothing else; what lies there says how long it is: a fatbin and
//! its wrapper, an ELF file, what a link gave, or text up to its NUL. A
//! wrapper that lists its parts becomes an image of all of them here. Knows nothing of
//! what is inside, which only the server reads.
//!
//! What a damaged image says of its length may lead anywhere, so whatever is read is read through the kernel
//! (`os::program_memory`): a damaged image is an error and not the program's end.

use cuda_abi::CUresult;
use cuda_abi::types::CUjitInputType;
use protocol::linked_image;

use crate::os::program_memory;

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

/// Memory that holds an image, or what is damaged so that there is less than it says.
#[derive(Debug)]
pub(crate) struct FoundImage {
    start: *const u8,
    bytes: usize,
    /// The memory, where it is not the program's.
    _made: Option<Vec<u8>>,
}

impl FoundImage {
    /// An image whose end is known.
    pub(crate) fn of(image: &[u8]) -> Self {
        Self {
            start: image.as_ptr(),
            bytes: image.len(),
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

    /// Bytes that it says it has.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Its first byte.
    pub(crate) fn start(&self) -> *const u8 {
        self.start
    }

    /// Copies a part of it, from its byte `at` on.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_IMAGE when it is not all there.
    ///
    /// # Safety
    /// As [`find`], of where it was found.
    pub(crate) unsafe fn copy_part(&self, at: usize, into: &mut [u8]) -> Result<(), CUresult> {
        // SAFETY: the program promises that the image is whole, which the caller passes on.
        unsafe { read(self.start.wrapping_add(at), into) }
    }

    /// Copies all of it.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_IMAGE when it is not all there.
    ///
    /// # Safety
    /// As [`find`], of where it was found.
    pub(crate) unsafe fn copy(&self) -> Result<Vec<u8>, CUresult> {
        // SAFETY: the program promises that the image is whole, which the caller passes on.
        unsafe { copy(self.start, self.bytes) }
    }
}

/// Whether bytes begin as a fatbin's wrapper.
pub(crate) fn is_wrapper(bytes: &[u8]) -> bool {
    bytes.len() >= 24 && bytes.starts_with(&WRAPPER.to_le_bytes())
}

/// Reads memory of the program's.
///
/// # Safety
/// As [`program_memory::read`].
unsafe fn read(from: *const u8, into: &mut [u8]) -> Result<(), CUresult> {
    // SAFETY: the program promises that the image is whole, which the caller passes on.
    unsafe { program_memory::read(from, into) }.map_err(|_| CUresult::ERROR_INVALID_IMAGE)
}

/// Copies memory of the program's.
///
/// # Safety
/// As [`program_memory::read`].
unsafe fn copy(from: *const u8, bytes: usize) -> Result<Vec<u8>, CUresult> {
    let mut copied = vec![0; bytes];
    // SAFETY: the program promises that the image is whole, which the caller passes on.
    unsafe { read(from, &mut copied)? };
    Ok(copied)
}

/// Copies the first bytes of something.
///
/// # Safety
/// As [`program_memory::read`].
unsafe fn head<const N: usize>(from: *const u8) -> Result<[u8; N], CUresult> {
    let mut bytes = [0; N];
    // SAFETY: the program promises that the image is whole, which the caller passes on.
    unsafe { read(from, &mut bytes)? };
    Ok(bytes)
}

fn long(bytes: &[u8], at: usize) -> u64 {
    let mut value = [0; 8];
    value.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(value)
}

fn word(bytes: &[u8], at: usize) -> u32 {
    let mut value = [0; 4];
    value.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(value)
}

fn half(bytes: &[u8], at: usize) -> u64 {
    u64::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]))
}

/// An address that stands in memory of the program's.
fn pointer(bytes: &[u8], at: usize) -> *const u8 {
    std::ptr::with_exposed_provenance(long(bytes, at) as usize)
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
    // SAFETY: the first byte exists; the shortest text is its NUL alone. The further bytes of a
    // magic are read only once the first is that of one.
    unsafe {
        let [first] = head(start)?;
        match first {
            0x7f if head(start)? == ELF => elf(start),
            0x9d if head(start)? == linked_image::MAGIC => {
                let header = head::<{ linked_image::HEADER }>(start)?;
                let total = long(&header, linked_image::MAGIC.len());
                bounded(start, total.max(linked_image::HEADER as u64))
            }
            0xb1 | 0x50 => match u32::from_le_bytes(head(start)?) {
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
    // SAFETY: a wrapper has 24 bytes: magic, version, and two pointers.
    let header = unsafe { head::<24>(start)? };
    let (version, data) = (word(&header, 4), pointer(&header, 8));
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
    let list = pointer(&header, 16).cast::<*const u8>();
    let mut parts = Vec::new();
    while !list.is_null() {
        // SAFETY: the list ends in a null pointer, which is what ends the loop.
        let entry = unsafe { head::<8>(list.wrapping_add(parts.len()).cast())? };
        let part = pointer(&entry, 0);
        if part.is_null() {
            break;
        }
        if parts.len() == MOST_PARTS {
            return Err(CUresult::ERROR_INVALID_IMAGE);
        }
        // SAFETY: each entry leads to a fatbin.
        parts.push(unsafe { wrapped(part)?.copy()? });
    }
    if parts.is_empty() {
        return Ok(whole);
    }
    // SAFETY: the program's wrapper leads to a whole fatbin.
    let whole = unsafe { whole.copy()? };
    let names: Vec<String> = (1..=parts.len()).map(|at| format!("object {at}")).collect();
    let linked = linked_image::Part {
        kind: linked_image::ALREADY_LINKED,
        name: "linked",
        bytes: &whole,
    };
    let each = parts
        .iter()
        .zip(&names)
        .map(|(part, name)| linked_image::Part {
            kind: CUjitInputType::FATBINARY.0,
            name,
            bytes: part,
        });
    Ok(FoundImage::made(linked_image::encode(
        std::iter::once(linked).chain(each),
    )))
}

/// # Safety
/// `data` points to a fatbin, or to something whose first word shows that it is none.
unsafe fn wrapped(data: *const u8) -> Result<FoundImage, CUresult> {
    // SAFETY: the first word is readable; if it is a fatbin's, a whole fatbin is there, as the caller promises.
    unsafe {
        match u32::from_le_bytes(head(data)?) {
            FATBIN => fatbin(data),
            _ => Err(CUresult::ERROR_INVALID_IMAGE),
        }
    }
}

/// An image of which its last byte at least is there.
///
/// # Safety
/// As [`find`].
unsafe fn bounded(start: *const u8, bytes: u64) -> Result<FoundImage, CUresult> {
    if bytes > MOST {
        return Err(CUresult::ERROR_INVALID_IMAGE);
    }
    let bytes = bytes as usize;
    // SAFETY: the program promises that the image is whole, which the caller passes on.
    unsafe { head::<1>(start.wrapping_add(bytes.saturating_sub(1)))? };
    Ok(FoundImage {
        start,
        bytes,
        _made: None,
    })
}

/// # Safety
/// As [`find`], with a fatbin's magic at `start`.
unsafe fn fatbin(start: *const u8) -> Result<FoundImage, CUresult> {
    // SAFETY: the header has 16 bytes, of which the last 8 say what follows.
    unsafe {
        let header = head::<{ FATBIN_HEADER as usize }>(start)?;
        bounded(start, long(&header, 8).saturating_add(FATBIN_HEADER))
    }
}

/// # Safety
/// As [`find`], with text at `start`.
unsafe fn text(start: *const u8) -> Result<FoundImage, CUresult> {
    // To the ends of pages, beyond which there may be nothing.
    let mut step = vec![0; STEP];
    let mut known = 0;
    let mut length = STEP - start.addr() % PAGE;
    while known as u64 <= MOST {
        let bytes = &mut step[..length];
        // SAFETY: the program promises that an image is here; where text ends before the memory does, its pages are tried one by one.
        let is_there = unsafe { read(start.wrapping_add(known), bytes) };
        if is_there.is_err() && length > PAGE {
            length = PAGE - start.wrapping_add(known).addr() % PAGE;
            continue;
        }
        is_there?;
        if let Some(end) = bytes.iter().position(|&byte| byte == 0) {
            // The NUL is part of the image, so that the server sees where it ends.
            // SAFETY: the program promises that the image is whole, which the caller passes on.
            return unsafe { bounded(start, (known + end) as u64 + 1) };
        }
        known += length;
        length = length.next_multiple_of(PAGE);
    }
    Err(CUresult::ERROR_INVALID_IMAGE)
}

/// # Safety
/// As [`find`], with an ELF magic at `start`.
unsafe fn elf(start: *const u8) -> Result<FoundImage, CUresult> {
    // A 64-bit ELF file begins with its header of 64 bytes; others are refused by byte 4.
    // SAFETY: the program promises that the image is whole, which the caller passes on.
    let header = unsafe {
        if head::<5>(start)?[4] != 2 {
            return Err(CUresult::ERROR_INVALID_IMAGE);
        }
        head::<ELF_HEADER>(start)?
    };
    let mut end = ELF_HEADER as u64;
    // Where a table lies, how large its entries are and at least must be, how many there are, and an entry's kind of what has
    // content in the file, where that begins and how long it is.
    let segments = (long(&header, 32), half(&header, 54), 56, half(&header, 56));
    let sections = (long(&header, 40), half(&header, 58), 64, half(&header, 60));
    let of_segment = |entry: &[u8]| Some((long(entry, 8), long(entry, 32)));
    // Sections without content in the file: SHT_NULL and SHT_NOBITS.
    let of_section = |entry: &[u8]| {
        (!matches!(word(entry, 4), 0 | 8)).then(|| (long(entry, 24), long(entry, 32)))
    };
    type Extent = fn(&[u8]) -> Option<(u64, u64)>;
    for ((table, size, least, count), extent) in [
        (segments, of_segment as Extent),
        (sections, of_section as Extent),
    ] {
        if count == 0 {
            continue;
        }
        let after = table.saturating_add(size * count);
        if size < least || after > MOST {
            return Err(CUresult::ERROR_INVALID_IMAGE);
        }
        // SAFETY: the header says that a table lies here.
        let entries = unsafe { copy(start.wrapping_add(table as usize), (size * count) as usize)? };
        let extents = entries.chunks_exact(size as usize).filter_map(extent);
        let ends = extents.map(|(offset, size)| offset.saturating_add(size));
        end = ends.fold(end.max(after), u64::max);
    }
    // SAFETY: the program promises that the image is whole, which the caller passes on.
    unsafe { bounded(start, end) }
}

/// Checks that a file's content is a whole image: what [`find`] would read lies inside of it.
///
/// # Errors
/// CUDA_ERROR_INVALID_IMAGE when it is none, or is cut short.
pub(crate) fn check_file(content: &[u8]) -> Result<(), CUresult> {
    match content {
        [0x50, 0xed, 0x55, 0xba, ..] => {
            let is_whole = content.len() as u64 >= FATBIN_HEADER
                && long(content, 8).saturating_add(FATBIN_HEADER) <= content.len() as u64;
            is_whole.then_some(()).ok_or(CUresult::ERROR_INVALID_IMAGE)
        }
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
        unsafe { find(image.as_ptr())?.copy().map(|found| found.len()) }
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
        // What was there when it was found, and is gone when it is read.
        page[..16].copy_from_slice(&a_fatbin(64)[..16]);
        // SAFETY: of a length that is not true nothing is read but through the kernel.
        let found = unsafe { find(page.as_ptr()) }.unwrap();
        let nobody = rustix::mm::MprotectFlags::empty();
        // SAFETY: nothing uses the page any more.
        unsafe { rustix::mm::mprotect(page.as_mut_ptr().cast(), PAGE, nobody).unwrap() };
        // SAFETY: the kernel reads it, and says that it is not there.
        assert_eq!(unsafe { found.copy() }, Err(CUresult::ERROR_INVALID_IMAGE));
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
