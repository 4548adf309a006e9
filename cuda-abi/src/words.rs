//! Little-endian words, counts and names: the form of what a server tells of devices and images.
//!
//! Counts are never trusted: a reader takes from the bytes that are left, and ends when they do.

/// The bytes end early, or a name is not UTF-8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damaged;

impl core::fmt::Display for Damaged {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("facts end early or hold a damaged name")
    }
}

impl core::error::Error for Damaged {}

pub(crate) fn put(out: &mut Vec<u8>, count: usize) {
    // Images are smaller than 4 GiB, and so are the counts of what is in them.
    out.extend(u32::try_from(count).unwrap_or(u32::MAX).to_le_bytes());
}

pub(crate) fn put_name(out: &mut Vec<u8>, name: &str) {
    put(out, name.len());
    out.extend(name.as_bytes());
}

/// Takes words and names from the front of some bytes.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(rest: &'a [u8]) -> Self {
        Self { rest }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(crate) fn take(&mut self, count: usize) -> Result<&'a [u8], Damaged> {
        let (head, tail) = self.rest.split_at_checked(count).ok_or(Damaged)?;
        self.rest = tail;
        Ok(head)
    }

    pub(crate) fn word(&mut self) -> Result<u32, Damaged> {
        let bytes = self.take(4)?;
        Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    pub(crate) fn long(&mut self) -> Result<u64, Damaged> {
        Ok(u64::from(self.word()?) | u64::from(self.word()?) << 32)
    }

    pub(crate) fn name(&mut self) -> Result<String, Damaged> {
        let count = self.word()? as usize;
        let bytes = self.take(count)?;
        Ok(core::str::from_utf8(bytes).map_err(|_| Damaged)?.to_owned())
    }
}
