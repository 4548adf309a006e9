//! What is mapped where in this process, as `/proc/self/maps` says.
//!
//! Owns the reading of the kernel's text. Registering memory and finding an image's file call it.
//!
//! Must not know whose the memory is, nor why it is asked for.

use std::ops::Range;

/// One mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MappedArea {
    /// Its addresses.
    pub addresses: Range<u64>,
    pub readable: bool,
    pub writable: bool,
    pub executable: bool,
    /// Changes go to whoever else has it mapped.
    pub shared: bool,
    /// Where in its file it begins.
    pub offset: u64,
    /// Device and inode of its file; none has inode 0.
    pub file: (String, u64),
    /// The file's path, as far as it has one that still leads to something.
    pub path: Option<String>,
    /// The first thread's stack.
    pub stack: bool,
}

/// The mappings that touch some addresses, in order.
pub(crate) fn areas(addresses: &Range<u64>) -> std::io::Result<Vec<MappedArea>> {
    let text = std::fs::read_to_string("/proc/self/maps")?;
    Ok(text
        .lines()
        .filter_map(parse)
        .filter(|area| area.addresses.start < addresses.end && addresses.start < area.addresses.end)
        .collect())
}

/// The path of the file that is mapped at an address.
pub(crate) fn file_at(address: u64) -> Option<String> {
    let text = std::fs::read_to_string("/proc/self/maps").ok()?;
    let holds = |line: &&str| parse(line).is_some_and(|area| area.addresses.contains(&address));
    path(text.lines().find(holds)?).map(str::to_owned)
}

/// The path at the end of a line: what comes after five words, if it is one.
fn path(line: &str) -> Option<&str> {
    let start = line.find('/')?;
    (line[..start].split_ascii_whitespace().count() == 5).then(|| &line[start..])
}

fn parse(line: &str) -> Option<MappedArea> {
    let path = path(line);
    let path = path.filter(|path| !path.ends_with(" (deleted)") && !path.contains("\\012"));
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let permissions = words.next()?.as_bytes();
    let &[r, w, x, s] = permissions else {
        return None;
    };
    let offset = hex(words.next()?)?;
    let device = words.next()?.to_owned();
    let inode = words.next()?.parse().ok()?;
    Some(MappedArea {
        addresses: hex(start)?..hex(end)?,
        readable: r == b'r',
        writable: w == b'w',
        executable: x == b'x',
        shared: s == b's',
        offset,
        file: (device, inode),
        path: path.map(str::to_owned),
        stack: words.next() == Some("[stack]"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_as_the_kernel_writes_them() {
        let line = "7f12a000-7f12c000 rw-s 00003000 00:05 4711   /memfd:a name (deleted)";
        let area = parse(line).unwrap();
        assert_eq!(area.addresses, 0x7f12_a000..0x7f12_c000);
        assert!(area.readable && area.writable && area.shared && !area.executable);
        assert_eq!(
            (area.offset, &area.file),
            (0x3000, &("00:05".to_owned(), 4711))
        );
        assert_eq!(area.path, None);
        let named = "7f12a000-7f12c000 rw-s 00003000 00:05 4711   /dev/shm/a name";
        let named = parse(named).unwrap().path;
        assert_eq!(named.as_deref(), Some("/dev/shm/a name"));
        assert!(
            parse("7ffe0000-7fff0000 rw-p 00000000 00:00 0  [stack]")
                .unwrap()
                .stack
        );
        assert_eq!(path(line), Some("/memfd:a name (deleted)"));
        assert_eq!(
            path("7ffe0000-7fff0000 rw-p 00000000 00:00 0  [stack]"),
            None
        );
        assert_eq!(parse("nonsense"), None);
        assert_eq!(parse(""), None);
    }

    #[test]
    fn this_functions_stack_is_found() {
        let here = 0_u8;
        let address = (&raw const here).addr() as u64;
        let found = areas(&(address..address + 1)).unwrap();
        assert_eq!(found.len(), 1);
        assert!(found[0].readable && found[0].writable && !found[0].shared);
        assert_eq!(file_at(address), None);
        let code = this_functions_stack_is_found as fn() as usize as u64;
        let program = std::env::current_exe().unwrap();
        assert_eq!(file_at(code).as_deref(), program.to_str());
    }
}
