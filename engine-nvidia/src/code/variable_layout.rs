//! Which variables machine code has, all of them: the sections that the driver makes memory of, and the symbols that they
//! are made of.
//!
//! A program's variables are in three sections. Where symbols leave nothing of these over but what it takes to align the
//! next, they name all variables. Called when an image is made ready. Must not know modules.
#![forbid(unsafe_code)]

use std::ffi::{CStr, CString};
use std::ops::Range;

use crate::code::symbols::{
    ELF_HEADER, SECTION_HEADER, SECTION_NO_BITS, SECTION_SYMBOLS, SYMBOL, SYMBOL_OBJECT, half,
    long, part, table, word,
};

/// The sections that hold variables: those with first values, those without, and constants, which the host may write.
const VARIABLES: [&[u8]; 3] = [b".nv.global.init", b".nv.global", CONSTANTS];
const CONSTANTS: &[u8] = b".nv.constant3";
/// Sections of what a block has while it runs begin so.
const SHARED: &[u8] = b".nv.shared.";

/// Flags of a section: it can be written, it is in memory.
const WRITABLE: u64 = 1;
pub(super) const IN_MEMORY: u64 = 2;
/// Numbers of sections from here on have meanings of their own.
const RESERVED_SECTIONS: usize = 0xff00;
/// The machine of CUDA's code.
const CUDA_MACHINE: u16 = 190;

/// A section that holds variables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VariableSection {
    /// Which one it is in the file.
    pub(crate) number: usize,
    /// Code reads it without an address.
    pub(crate) is_constant: bool,
    pub(crate) bytes: u64,
    /// What its first byte's address is a multiple of.
    pub(crate) alignment: u64,
    /// Where in the file its first values stand; `None` if they are zeroes.
    pub(crate) contents: Option<Range<usize>>,
    /// Variables in it; at least one.
    pub(crate) symbols: Vec<VariableSymbol>,
}

/// A variable in a section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VariableSymbol {
    pub(crate) name: CString,
    /// From the section's beginning.
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

/// What holds the variables of an ELF file of CUDA's code, by their offsets. `None` for another file, and for one that has
/// something that can be written and is no block's, in any other section or where no symbol leads.
pub(crate) fn variable_sections(file: &[u8]) -> Option<Vec<VariableSection>> {
    if file.len() < ELF_HEADER
        || !file.starts_with(b"\x7fELF\x02\x01")
        || half(file, 18)? != CUDA_MACHINE
    {
        return None;
    }
    let headers = table(file, 40, 58, SECTION_HEADER)?;
    let headers: Vec<&[u8]> = headers.chunks_exact(SECTION_HEADER).collect();
    let names = strings(file, headers.get(usize::from(half(file, 62)?))?)?;
    let mut sections = Vec::with_capacity(headers.len());
    let mut has_symbols = false;
    for (number, header) in headers.iter().enumerate() {
        let name = string(names, word(header, 0)?)?.to_bytes();
        let (flags, bytes) = (long(header, 8)?, long(header, 32)?);
        let is_variables = VARIABLES.contains(&name);
        let is_written = flags & WRITABLE != 0 && flags & IN_MEMORY != 0;
        if is_written && bytes != 0 && !is_variables && !name.starts_with(SHARED) {
            return None;
        }
        let kind = word(header, 4)?;
        has_symbols |= kind == SECTION_SYMBOLS;
        let contents = match is_variables && kind != SECTION_NO_BITS {
            true => {
                let at = long(header, 24)?;
                part(file, at, bytes)?;
                Some(at as usize..(at + bytes) as usize)
            }
            false => None,
        };
        let section = VariableSection {
            number,
            is_constant: name == CONSTANTS,
            bytes,
            alignment: long(header, 48)?,
            contents,
            symbols: Vec::new(),
        };
        sections.push((name, is_variables.then_some(section)));
    }
    for header in &headers {
        if word(header, 4)? != SECTION_SYMBOLS {
            continue;
        }
        let symbols = part(file, long(header, 24)?, long(header, 32)?)?;
        let names = strings(file, headers.get(word(header, 40)? as usize)?)?;
        for symbol in symbols.chunks_exact(SYMBOL) {
            let number = usize::from(half(symbol, 6)?);
            // What is defined elsewhere has no memory here.
            if symbol[4] & 0xf != SYMBOL_OBJECT || number == 0 {
                continue;
            }
            let (name, section) = sections
                .get_mut(number)
                .filter(|_| number < RESERVED_SECTIONS)?;
            let Some(section) = section else {
                if name.starts_with(SHARED) {
                    continue;
                }
                return None;
            };
            let (offset, bytes) = (long(symbol, 8)?, long(symbol, 16)?);
            let end = offset.checked_add(bytes)?;
            if end > section.bytes {
                return None;
            }
            section.symbols.push(VariableSymbol {
                name: string(names, word(symbol, 0)?)?.to_owned(),
                offset,
                bytes,
            });
        }
    }
    let variables = sections.into_iter().filter_map(|(_, section)| section);
    let mut variables: Vec<_> = variables.filter(|section| section.bytes != 0).collect();
    let are_all = variables.iter_mut().all(VariableSection::is_all_told);
    (has_symbols && are_all).then_some(variables)
}

impl VariableSection {
    /// Whether its symbols name all variables in it.
    fn is_all_told(&mut self) -> bool {
        self.symbols.sort_by_key(|symbol| symbol.offset);
        let mut end = 0;
        for symbol in &self.symbols {
            // What is before an offset to align it is less than what it is a multiple of.
            let aligned = symbol.offset & symbol.offset.wrapping_neg();
            if symbol.offset > end && symbol.offset - end >= aligned {
                return false;
            }
            end = end.max(symbol.offset + symbol.bytes);
        }
        // Linkers may align what follows it.
        end == self.bytes || end.checked_next_multiple_of(self.alignment.max(1)) == Some(self.bytes)
    }
}

/// A section of strings.
pub(super) fn strings<'a>(file: &'a [u8], header: &[u8]) -> Option<&'a [u8]> {
    part(file, long(header, 24)?, long(header, 32)?)
}

/// The string at a place.
pub(super) fn string(strings: &[u8], at: u32) -> Option<&CStr> {
    CStr::from_bytes_until_nul(strings.get(at as usize..)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sections by name, flags and size, and symbols by name, section, offset and size.
    type Symbols<'a> = &'a [(&'a str, u16, u64, u64)];

    fn elf(sections: &[(&str, u64, u64)], symbols: Symbols<'_>) -> Vec<u8> {
        let mut strings = vec![0];
        let mut named = |name: &str| {
            let at = strings.len() as u32;
            strings.extend(name.as_bytes());
            strings.push(0);
            at
        };
        let mut table = vec![0; SYMBOL];
        for (name, section, offset, bytes) in symbols {
            table.extend(named(name).to_le_bytes());
            table.extend([SYMBOL_OBJECT, 0]);
            table.extend(section.to_le_bytes());
            table.extend(offset.to_le_bytes());
            table.extend(bytes.to_le_bytes());
        }
        // None, those that were asked for, symbols, strings.
        let count = sections.len() + 3;
        let mut headers = vec![0; SECTION_HEADER * count];
        let mut set = |index: usize, name: u32, kind: u32, flags: u64, at: u64, bytes: u64| {
            let header = &mut headers[index * SECTION_HEADER..][..SECTION_HEADER];
            header[..4].copy_from_slice(&name.to_le_bytes());
            header[4..8].copy_from_slice(&kind.to_le_bytes());
            header[8..16].copy_from_slice(&flags.to_le_bytes());
            header[24..32].copy_from_slice(&at.to_le_bytes());
            header[32..40].copy_from_slice(&bytes.to_le_bytes());
            header[40..44].copy_from_slice(&(count as u32 - 1).to_le_bytes());
            header[48] = 4;
        };
        for (index, (name, flags, bytes)) in sections.iter().enumerate() {
            set(index + 1, named(name), 8, *flags, 0, *bytes);
        }
        let begin = (ELF_HEADER + SECTION_HEADER * count) as u64;
        let length = table.len() as u64;
        set(count - 2, 0, SECTION_SYMBOLS, 0, begin, length);
        let bytes = strings.len() as u64;
        set(count - 1, 0, 3, 0, begin + length, bytes);
        let mut file = vec![0; ELF_HEADER];
        file[..6].copy_from_slice(b"\x7fELF\x02\x01");
        file[18..20].copy_from_slice(&CUDA_MACHINE.to_le_bytes());
        file[40..48].copy_from_slice(&(ELF_HEADER as u64).to_le_bytes());
        file[58..60].copy_from_slice(&(SECTION_HEADER as u16).to_le_bytes());
        file[60..62].copy_from_slice(&(count as u16).to_le_bytes());
        file[62..64].copy_from_slice(&(count as u16 - 1).to_le_bytes());
        file.extend(headers);
        file.extend(table);
        file.extend(strings);
        file
    }

    const WRITTEN: u64 = WRITABLE | IN_MEMORY;

    #[test]
    fn variables_are_told_by_section() {
        let file = elf(
            &[
                (".nv.global", WRITTEN, 112),
                (".nv.constant3", IN_MEMORY, 8),
                (".nv.global.init", WRITTEN, 0),
                (".nv.shared.kernel", WRITTEN, 1024),
                (".text.kernel", IN_MEMORY, 128),
            ],
            &[
                ("aligned", 1, 104, 8),
                ("zeros", 1, 0, 100),
                ("table", 2, 0, 8),
                ("shared", 4, 0, 4),
                ("elsewhere", 0, 0, 4),
            ],
        );
        let sections = variable_sections(&file).unwrap();
        let told: Vec<_> = sections
            .iter()
            .map(|section| (section.bytes, section.symbols[0].name.to_str().unwrap()))
            .collect();
        assert_eq!(told, [(112, "zeros"), (8, "table")]);
        assert_eq!(sections[0].symbols[1].name.to_str().unwrap(), "aligned");
        assert_eq!(variable_sections(b".version 8.0"), None);
    }

    #[test]
    fn what_is_not_told_is_not_taken_for_all() {
        let global = (".nv.global", WRITTEN, 8);
        let known: Symbols<'_> = &[("a", 1, 0, 8)];
        assert!(variable_sections(&elf(&[global], known)).is_some());
        assert_eq!(variable_sections(&elf(&[global], &[])), None, "no symbol");
        // Something before, between or behind them that has no symbol.
        for symbols in [
            &[("a", 1, 4, 4)][..],
            &[("a", 1, 0, 2)],
            &[("a", 1, 0, 1), ("b", 1, 6, 2)],
        ] {
            assert_eq!(variable_sections(&elf(&[global], symbols)), None);
        }
        let padded: Symbols<'_> = &[("a", 1, 0, 5)];
        assert!(variable_sections(&elf(&[global], padded)).is_some());
        let other = (".nv.other", WRITTEN, 8);
        assert_eq!(variable_sections(&elf(&[global, other], known)), None);
        for symbol in [("b", 2, 0, 4), ("b", 0xfff2, 0, 4), ("b", 1, 4, 8)] {
            let symbols = [known[0], symbol];
            let constant = (".nv.constant5", IN_MEMORY, 8);
            let file = elf(&[global, constant], &symbols);
            assert_eq!(variable_sections(&file), None, "{symbol:?}");
        }
        assert_eq!(variable_sections(&elf(&[], &[])), Some(Vec::new()));
        let mut file = elf(&[global], known);
        file[60..62].copy_from_slice(&0_u16.to_le_bytes());
        assert_eq!(variable_sections(&file), None, "no sections");
    }

    #[test]
    fn damage_never_panics() {
        let whole = elf(&[(".nv.global", WRITTEN, 8)], &[("a", 1, 0, 8)]);
        for end in 0..whole.len() {
            let _ = variable_sections(&whole[..end]);
        }
        for at in 0..whole.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut file = whole.clone();
                file[at] = value;
                let _ = variable_sections(&file);
            }
        }
    }
}
