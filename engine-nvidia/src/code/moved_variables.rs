//! Machine code whose variables lie where we say, so that their memory can outlive this process: the driver's own does not.
//!
//! Code finds its variables by words with their addresses, in tables of constants and in the first values of other variables.
//! The file says of each such word whose address it is (a relocation), and the driver writes it there when it has placed the
//! variable. Here the words are written beforehand, and nothing is left for the driver to do. Constants are read by code without
//! an address as well, where the driver has them: there are two of each, and whoever writes one writes both
//! (`memory::twin_constants`).
//!
//! Called when an image is made ready, and for each module of who keeps its variables. Must not know clients. The kinds of
//! relocations are those that nvcc 12.9 and 13.0 and the libraries of that time were seen to have; a file with another one
//! is left as it is.
#![forbid(unsafe_code)]

use std::collections::HashSet;
use std::ffi::CString;
use std::ops::Range;

use crate::code::rewrite::is_added;
use crate::code::symbols::{
    ELF_HEADER, SECTION_HEADER, SECTION_NO_BITS, SYMBOL, half, long, part, table, word,
};
use crate::code::variable_layout::{IN_MEMORY, VariableSection, string, strings};

/// Sections of relocations, with and without what is to be added.
const WITH_ADDEND: u32 = 4;
const WITHOUT_ADDEND: u32 = 9;

/// Kinds of relocations: none, an address, a generic address, and an address' lower and upper half in an instruction.
const NONE: u64 = 0;
const ADDRESS: u64 = 2;
const GENERIC_ADDRESS: u64 = 4;
const LOWER_HALF: u64 = 56;
const UPPER_HALF: u64 = 57;
/// Where in an instruction such a half stands.
const HALF_AT: u64 = 4;

/// Where words with addresses may stand, by how the names of their sections begin, and where halves.
const HOLDERS: [&[u8]; 2] = [b".nv.constant", b".nv.global.init"];
const CODE: &[u8] = b".text.";

/// Bytes of a module's variables beyond which they stay the driver's, which has memory for them in any case, and
/// that is counted for nobody.
const MOST_BYTES: u64 = 4 << 20;
/// Words with addresses in one file.
const MOST_WORDS: usize = 1 << 16;

/// Where the variables of a file's modules lie in a block of memory, and what has to be said in the file where that is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MovedVariables {
    sections: Vec<MovedSection>,
    variables: Vec<MovedVariable>,
    words: Vec<AddressWord>,
    bytes: u64,
    alignment: u64,
}

/// A section of variables in the block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MovedSection {
    /// From the block's beginning.
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    /// Where in the file its first values stand; `None` if they are zeroes.
    pub(crate) contents: Option<Range<usize>>,
}

/// A variable of the program's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MovedVariable {
    pub(crate) name: String,
    /// The same, for the driver.
    pub(crate) c_name: CString,
    /// From the block's beginning.
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    /// Code also reads it where the driver has it.
    pub(crate) is_constant: bool,
}

/// What of an address stands somewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    All,
    LowerHalf,
    UpperHalf,
}

/// A word of a file with a variable's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AddressWord {
    /// Where it stands in the file.
    at: usize,
    part: Part,
    /// Where the file says that, and with what kind.
    kind_at: usize,
    /// What is there: the symbol's number, above the kind.
    symbol: u64,
    /// The address, from the block's beginning.
    target: u64,
}

impl MovedVariables {
    /// Of an ELF file with these sections of variables. `None` if there are none, if there is too much, or if not all that
    /// names their addresses is understood.
    pub(crate) fn new(file: &[u8], sections: &[VariableSection]) -> Option<Self> {
        let mut moved = Self {
            sections: Vec::new(),
            variables: Vec::new(),
            words: Vec::new(),
            bytes: 0,
            alignment: 1,
        };
        let mut constants = HashSet::new();
        for section in sections {
            let alignment = section.alignment.max(1);
            let offset = moved.bytes.checked_next_multiple_of(alignment)?;
            moved.bytes = offset.checked_add(section.bytes)?;
            moved.alignment = moved.alignment.max(alignment);
            moved.sections.push(MovedSection {
                offset,
                bytes: section.bytes,
                contents: section.contents.clone(),
            });
            for symbol in &section.symbols {
                // What was added the driver keeps.
                if is_added(symbol.name.to_bytes()) {
                    continue;
                }
                // The driver finds one of those with one name.
                if section.is_constant && !constants.insert(&symbol.name) {
                    return None;
                }
                moved.variables.push(MovedVariable {
                    name: symbol.name.to_str().ok()?.to_owned(),
                    c_name: symbol.name.clone(),
                    offset: offset + symbol.offset,
                    bytes: symbol.bytes,
                    is_constant: section.is_constant,
                });
            }
        }
        let is_sound = moved.bytes <= MOST_BYTES && moved.alignment.is_power_of_two();
        if moved.variables.is_empty() || !is_sound {
            return None;
        }
        moved.find_words(file, sections)?;
        Some(moved)
    }

    /// Finds all that names the address of something in these sections.
    fn find_words(&mut self, file: &[u8], sections: &[VariableSection]) -> Option<()> {
        if file.len() < ELF_HEADER {
            return None;
        }
        let headers = table(file, 40, 58, SECTION_HEADER)?;
        let headers: Vec<&[u8]> = headers.chunks_exact(SECTION_HEADER).collect();
        let names = strings(file, headers.get(usize::from(half(file, 62)?))?)?;
        for header in &headers {
            let kind = word(header, 4)?;
            let entry = match kind {
                WITH_ADDEND => 24,
                WITHOUT_ADDEND => 16,
                _ => continue,
            };
            let holder = headers.get(word(header, 44)? as usize)?;
            if long(holder, 8)? & IN_MEMORY == 0 {
                // For debuggers.
                continue;
            }
            let name = string(names, word(holder, 0)?)?.to_bytes();
            let (begin, size) = (long(holder, 24)?, long(holder, 32)?);
            let symbols = headers.get(word(header, 40)? as usize)?;
            let symbol_names = strings(file, headers.get(word(symbols, 40)? as usize)?)?;
            let symbols = part(file, long(symbols, 24)?, long(symbols, 32)?)?;
            let list_at = long(header, 24)?;
            let list = part(file, list_at, long(header, 32)?)?;
            for (index, relocation) in list.chunks_exact(entry).enumerate() {
                let (offset, info) = (long(relocation, 0)?, long(relocation, 8)?);
                let symbol = symbols.chunks_exact(SYMBOL).nth((info >> 32) as usize)?;
                let home = usize::from(half(symbol, 6)?);
                let Some(which) = sections.iter().position(|section| section.number == home) else {
                    continue;
                };
                if is_added(string(symbol_names, word(symbol, 0)?)?.to_bytes()) {
                    continue;
                }
                let is_held = HOLDERS.iter().any(|holder| name.starts_with(holder));
                let is_code = name.starts_with(CODE) && kind == WITH_ADDEND;
                let part_of = match info & u64::from(u32::MAX) {
                    ADDRESS | GENERIC_ADDRESS if is_held => Part::All,
                    LOWER_HALF if is_code => Part::LowerHalf,
                    UPPER_HALF if is_code => Part::UpperHalf,
                    _ => return None,
                };
                let fits = offset.checked_add(8).is_some_and(|end| end <= size);
                let is_there = word(holder, 4)? != SECTION_NO_BITS;
                if !fits || !is_there || self.words.len() >= MOST_WORDS {
                    return None;
                }
                let at = begin.checked_add(offset)?;
                let before = part(file, at, 8)?;
                let addend = match kind {
                    WITH_ADDEND => long(relocation, 16)?,
                    _ => long(before, 0)?,
                };
                let target = self.sections.get(which)?.offset;
                let target = target.wrapping_add(long(symbol, 8)?);
                let half_at = if part_of == Part::All { 0 } else { HALF_AT };
                self.words.push(AddressWord {
                    at: (at + half_at) as usize,
                    part: part_of,
                    kind_at: list_at as usize + index * entry + 8,
                    symbol: info & !u64::from(u32::MAX),
                    target: target.wrapping_add(addend),
                });
            }
        }
        Some(())
    }

    /// Bytes of the block.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What the block's first address is a multiple of.
    pub(crate) fn alignment(&self) -> u64 {
        self.alignment
    }

    pub(crate) fn sections(&self) -> &[MovedSection] {
        &self.sections
    }

    pub(crate) fn variables(&self) -> &[MovedVariable] {
        &self.variables
    }

    /// Whether code of it says where its block is, and so is one module's alone.
    pub(crate) fn has_addresses(&self) -> bool {
        !self.words.is_empty()
    }

    /// The file, of which this was made, for modules whose block is at `base`. If its sections overlap, its tables may be anything
    /// then.
    pub(crate) fn file_at(&self, file: &[u8], base: u64) -> Vec<u8> {
        let mut moved = file.to_vec();
        let mut set = |at: usize, value: &[u8]| {
            // All were found within the file.
            if let Some(bytes) = moved.get_mut(at..at + value.len()) {
                bytes.copy_from_slice(value);
            }
        };
        for word in &self.words {
            let address = base.wrapping_add(word.target).to_le_bytes();
            set(
                word.at,
                match word.part {
                    Part::All => &address,
                    Part::LowerHalf => &address[..4],
                    Part::UpperHalf => &address[4..],
                },
            );
            set(word.kind_at, &(word.symbol | NONE).to_le_bytes());
        }
        moved
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::code::variable_layout::variable_sections;

    /// A relocation: its section's number, and where in that, whose address, of what kind, with what added.
    type Relocation = (u32, u64, u64, u64, u64);

    /// Numbers of the sections of [`file`].
    const INIT: u32 = 1;
    const TABLE: u32 = 4;
    const TEXT: u32 = 5;
    const DEBUG: u32 = 6;

    /// Machine code with variables `a` and `b` in .nv.global.init, `zeroes` in .nv.global, `constant` and one of ours, the symbols
    /// 1 to 5; .nv.constant4 has 16 bytes of ones.
    fn file(relocations: &[Relocation], addend: bool) -> Vec<u8> {
        let sections: [(&str, u32, u64, &[u8], u64); 6] = [
            (".nv.global.init", 1, 3, &[7; 16], 16),
            (".nv.global", 8, 3, &[], 24),
            (".nv.constant3", 1, 2, &[3; 8], 8),
            (".nv.constant4", 1, 2, &[0xff; 16], 16),
            (".text.kernel", 1, 6, &[0; 16], 16),
            (".debug_info", 1, 0, &[0; 16], 16),
        ];
        let symbols: [(&str, u16, u64, u64); 5] = [
            ("a", 1, 0, 8),
            ("b", 1, 8, 8),
            ("zeroes", 2, 0, 24),
            ("constant", 3, 0, 4),
            ("openmps$ring", 3, 4, 4),
        ];
        let mut strings = vec![0];
        let mut named = |name: &str| {
            let at = strings.len() as u32;
            strings.extend(name.as_bytes());
            strings.push(0);
            at
        };
        let lists = [1, 2, 3, 4, 5, 6].map(|target| {
            let of_target = relocations.iter().filter(|one| one.0 == target);
            let mut list = Vec::new();
            for &(_, offset, symbol, kind, added) in of_target {
                list.extend(offset.to_le_bytes());
                list.extend((symbol << 32 | kind).to_le_bytes());
                if addend {
                    list.extend(added.to_le_bytes());
                }
            }
            (target, list)
        });
        let mut table = vec![0; SYMBOL];
        for (name, home, offset, bytes) in symbols {
            table.extend(named(name).to_le_bytes());
            table.extend([1, 0]);
            table.extend(home.to_le_bytes());
            table.extend(offset.to_le_bytes());
            table.extend(bytes.to_le_bytes());
        }
        // None, those, relocations of each, symbols, strings.
        let count = 1 + sections.len() + lists.len() + 2;
        let (symbols_at, strings_at) = (count as u32 - 2, count as u32 - 1);
        let mut headers = vec![0; SECTION_HEADER];
        let mut body: Vec<u8> = Vec::new();
        let begin = (ELF_HEADER + SECTION_HEADER * count) as u64;
        let mut add = |header: [u32; 4], flags: u64, bytes: &[u8], size: u64| {
            let [name, kind, link, info] = header;
            let mut entry = vec![0; SECTION_HEADER];
            entry[..4].copy_from_slice(&name.to_le_bytes());
            entry[4..8].copy_from_slice(&kind.to_le_bytes());
            entry[8..16].copy_from_slice(&flags.to_le_bytes());
            entry[24..32].copy_from_slice(&(begin + body.len() as u64).to_le_bytes());
            entry[32..40].copy_from_slice(&size.to_le_bytes());
            entry[40..44].copy_from_slice(&link.to_le_bytes());
            entry[44..48].copy_from_slice(&info.to_le_bytes());
            entry[48] = 8;
            headers.extend(entry);
            body.extend(bytes);
        };
        for (name, kind, flags, bytes, size) in sections {
            add([named(name), kind, 0, 0], flags, bytes, size);
        }
        let kind = if addend { WITH_ADDEND } else { WITHOUT_ADDEND };
        for (target, list) in &lists {
            add([0, kind, symbols_at, *target], 0, list, list.len() as u64);
        }
        add([0, 2, strings_at, 0], 0, &table, table.len() as u64);
        add([0, 3, 0, 0], 0, &strings, strings.len() as u64);
        let mut file = vec![0; ELF_HEADER];
        file[..6].copy_from_slice(b"\x7fELF\x02\x01");
        file[18..20].copy_from_slice(&190_u16.to_le_bytes());
        file[40..48].copy_from_slice(&(ELF_HEADER as u64).to_le_bytes());
        file[58..60].copy_from_slice(&(SECTION_HEADER as u16).to_le_bytes());
        file[60..62].copy_from_slice(&(count as u16).to_le_bytes());
        file[62..64].copy_from_slice(&(count as u16 - 1).to_le_bytes());
        file.extend(headers);
        file.extend(body);
        file
    }

    fn moved(file: &[u8]) -> Option<MovedVariables> {
        MovedVariables::new(file, &variable_sections(file)?)
    }

    /// The words of a section of a file.
    fn words(file: &[u8], number: u32) -> Vec<u64> {
        let header = &file[ELF_HEADER + SECTION_HEADER * number as usize..];
        let bytes = part(file, long(header, 24).unwrap(), long(header, 32).unwrap());
        let (words, _) = bytes.unwrap().as_chunks::<8>();
        words.iter().map(|word| u64::from_le_bytes(*word)).collect()
    }

    /// Kinds of all relocations that a file has for a section.
    fn kinds(file: &[u8], number: u32) -> Vec<u64> {
        let list = words(file, 6 + number);
        list.chunks(3).map(|entry| entry[1] & 0xff).collect()
    }

    #[test]
    fn addresses_are_written_where_the_driver_would_write_them() {
        let relocations = [
            (TABLE, 0, 2, 2, 4),
            (TABLE, 8, 3, 2, 0),
            (INIT, 8, 4, 4, 1),
            (DEBUG, 0, 1, 99, 0),
        ];
        let file = file(&relocations, true);
        let moved = moved(&file).unwrap();
        let told = moved.variables().iter();
        let places: Vec<(&str, u64, u64, bool)> = told
            .map(|one| (&*one.name, one.offset, one.bytes, one.is_constant))
            .collect();
        let all = [
            ("a", 0, 8, false),
            ("b", 8, 8, false),
            ("zeroes", 16, 24, false),
            ("constant", 40, 4, true),
        ];
        assert_eq!(places, all);
        assert_eq!((moved.bytes(), moved.alignment()), (48, 8));
        assert!(moved.has_addresses());
        let at = moved.file_at(&file, 0x1000);
        assert_eq!(words(&at, TABLE), [0x1000 + 8 + 4, 0x1000 + 16]);
        let values = moved.sections()[0].contents.clone().unwrap();
        assert_eq!(values.len(), 16);
        assert_eq!(
            at[values.start + 8..values.end],
            u64::to_le_bytes(0x1000 + 40 + 1)
        );
        assert_eq!(at[values.start..][..8], [7; 8]);
        assert_eq!((kinds(&at, TABLE), kinds(&at, INIT)), (vec![0, 0], vec![0]));
        assert_eq!(kinds(&at, DEBUG), [99], "of what is not in memory");
        assert_eq!(words(&at, 6 + TABLE)[1] >> 32, 2, "the symbol stays");
    }

    #[test]
    fn what_is_added_may_stand_in_the_word() {
        let file = file(&[(TABLE, 0, 1, 2, 0), (INIT, 0, 1, 2, 0)], false);
        let moved = moved(&file).unwrap();
        let at = moved.file_at(&file, 0x1000);
        assert_eq!(words(&at, TABLE)[0], 0xfff, "less one");
        let values = moved.sections()[0].contents.clone().unwrap();
        assert_eq!(at[values][..8], u64::to_le_bytes(0x0707_0707_0707_1707));
    }

    #[test]
    fn instructions_have_halves_of_addresses() {
        let relocations = [(TEXT, 0, 2, LOWER_HALF, 4), (TEXT, 8, 2, UPPER_HALF, 4)];
        let whole = file(&relocations, true);
        let known = moved(&whole).unwrap();
        let at = known.file_at(&whole, 0x7f_1234_5000);
        assert_eq!(words(&at, TEXT), [0x1234_500c << 32, 0x7f << 32]);
        assert_eq!(kinds(&at, TEXT), [0, 0]);
        for wrong in [
            (TEXT, 9, 2, LOWER_HALF, 0),
            (TABLE, 0, 2, LOWER_HALF, 0),
            (TEXT, 0, 2, ADDRESS, 0),
        ] {
            assert_eq!(moved(&file(&[wrong], true)), None, "{wrong:?}");
        }
        assert_eq!(moved(&file(&relocations, false)), None, "added to what");
    }

    #[test]
    fn what_is_ours_stays_the_drivers() {
        let file = file(&[(TABLE, 0, 5, 2, 0)], true);
        let moved = moved(&file).unwrap();
        assert!(!moved.has_addresses());
        assert_eq!(
            words(&moved.file_at(&file, 0x1000), TABLE),
            words(&file, TABLE)
        );
    }

    #[test]
    fn what_is_not_understood_is_not_moved() {
        for relocation in [
            // In code, of another kind, and beyond the section.
            (TEXT, 0, 1, 2, 0),
            (TABLE, 0, 1, 56, 0),
            (TABLE, 12, 1, 2, 0),
            (TABLE, u64::MAX, 1, 2, 0),
            // Of no symbol that there is, and in a section that is not in the file.
            (TABLE, 0, 9, 2, 0),
            (2, 0, 1, 2, 0),
        ] {
            assert_eq!(moved(&file(&[relocation], true)), None, "{relocation:?}");
        }
        assert!(
            moved(&file(&[(TABLE, 0, 0, 2, 0)], true)).is_some(),
            "of nothing"
        );
    }

    #[test]
    fn damage_never_panics() {
        let whole = file(&[(TABLE, 0, 2, 2, 4), (INIT, 8, 4, 4, 1)], true);
        let sections = variable_sections(&whole).unwrap();
        for end in 0..whole.len() {
            let _ = MovedVariables::new(&whole[..end], &sections);
        }
        for at in 0..whole.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut file = whole.clone();
                file[at] = value;
                if let Some(moved) = MovedVariables::new(&file, &sections).or_else(|| moved(&file))
                {
                    let _ = moved.file_at(&file, u64::MAX);
                }
            }
        }
    }
}
