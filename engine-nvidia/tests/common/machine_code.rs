//! Machine code as the fake driver takes it: a text, and variables in sections.

/// A section of variables: its name, its flags and its bytes, or how many there are if they are zeroes.
#[derive(Clone, Copy)]
pub struct Section<'a> {
    pub name: &'a str,
    pub flags: u64,
    pub bytes: Result<&'a [u8], u64>,
}

/// A variable: its name, its section's number from 1, its offset and its size.
pub type Symbol<'a> = (&'a str, u16, u64, u64);

const HEADER: usize = 64;
const SYMBOL: usize = 24;

/// A word with a variable's address: its section's number from 1, where in that, and the variable's number from 1.
pub type Address = (u32, u64, u64);

/// An ELF file with these sections and symbols.
pub fn elf(text: &str, sections: &[Section<'_>], symbols: &[Symbol<'_>]) -> Vec<u8> {
    elf_with(text, sections, symbols, &[])
}

/// The same, with words that the driver writes addresses to.
pub fn elf_with(
    text: &str,
    sections: &[Section<'_>],
    symbols: &[Symbol<'_>],
    addresses: &[Address],
) -> Vec<u8> {
    let mut strings = vec![0];
    let mut named = |name: &str| {
        let at = strings.len() as u32;
        strings.extend(name.as_bytes());
        strings.push(0);
        at
    };
    // None, the variables, the text, what is said of addresses, symbols, strings.
    let count = sections.len() + addresses.len() + 4;
    let mut file = vec![0; HEADER * (count + 1)];
    let mut headers = Vec::new();
    let mut add =
        |file: &mut Vec<u8>, name: u32, kind: u32, flags: u64, bytes: Result<&[u8], u64>| {
            let at = file.len() as u64;
            file.extend(bytes.unwrap_or_default());
            headers.push((
                name,
                kind,
                flags,
                at,
                bytes.map_or_else(|bytes| bytes, |bytes| bytes.len() as u64),
            ));
        };
    add(&mut file, 0, 0, 0, Ok(&[]));
    for section in sections {
        let kind = if section.bytes.is_ok() { 1 } else { 8 };
        let name = named(section.name);
        add(&mut file, name, kind, section.flags, section.bytes);
    }
    let name = named(".text.poke");
    add(&mut file, name, 1, 2, Ok(format!("{text}\0").as_bytes()));
    let mut table = vec![0; SYMBOL];
    for (name, section, offset, bytes) in symbols {
        table.extend(named(name).to_le_bytes());
        table.extend([1, 0]);
        table.extend(section.to_le_bytes());
        table.extend(offset.to_le_bytes());
        table.extend(bytes.to_le_bytes());
    }
    for (_, at, variable) in addresses {
        // R_CUDA_64, and nothing to add.
        let words = [*at, variable << 32 | 2, 0].map(u64::to_le_bytes);
        add(&mut file, 0, 4, 0, Ok(words.as_flattened()));
    }
    add(&mut file, 0, 2, 0, Ok(&table));
    add(&mut file, 0, 3, 0, Ok(&strings));
    file[..6].copy_from_slice(b"\x7fELF\x02\x01");
    file[18..20].copy_from_slice(&190_u16.to_le_bytes());
    file[40..48].copy_from_slice(&(HEADER as u64).to_le_bytes());
    file[58..60].copy_from_slice(&(HEADER as u16).to_le_bytes());
    file[60..62].copy_from_slice(&(count as u16).to_le_bytes());
    file[62..64].copy_from_slice(&(count as u16 - 1).to_le_bytes());
    for (index, (name, kind, flags, at, bytes)) in headers.into_iter().enumerate() {
        let header = &mut file[HEADER * (index + 1)..][..HEADER];
        header[..4].copy_from_slice(&name.to_le_bytes());
        header[4..8].copy_from_slice(&kind.to_le_bytes());
        header[8..16].copy_from_slice(&flags.to_le_bytes());
        header[24..32].copy_from_slice(&at.to_le_bytes());
        header[32..40].copy_from_slice(&bytes.to_le_bytes());
        let of_addresses = index.checked_sub(sections.len() + 2);
        let (link, info) = match of_addresses.and_then(|which| addresses.get(which)) {
            Some((section, ..)) => (count as u32 - 2, *section),
            None => (count as u32 - 1, 0),
        };
        header[40..44].copy_from_slice(&link.to_le_bytes());
        header[44..48].copy_from_slice(&info.to_le_bytes());
    }
    file
}

/// The word at an address of a module, whoever may ask for it.
pub fn word_of(address: u64) -> u32 {
    // SAFETY: the fake's device memory is this process', and the module is there.
    unsafe { std::ptr::with_exposed_provenance::<u32>(address as usize).read_volatile() }
}

/// Writes a word, as another process may that has the memory.
pub fn set_word(address: u64, value: u32) {
    let word = std::ptr::with_exposed_provenance_mut::<u32>(address as usize);
    // SAFETY: the fake's device memory is this process', and the module is there.
    unsafe { word.write_volatile(value) }
}
