//! What a client's kernels print, and the messages of their failed assertions.
//!
//! The driver would write it to this process' own output. So an image that comes with PTX gets our own
//! `vprintf` and `__assertfail` (`crate::code::rewrite`), which write records to a ring of their module
//! ([`Ring`]). What sees completions takes the records; the text is made of them by who asks for it, which
//! is the client's own session: a format may make much text of few bytes.
//!
//! Called by modules, by whoever sees completions, and by sessions that want the text. Must not know what it is used
//! for.

mod ring;
#[cfg(test)]
mod tests;

use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};

use engine::format::{self, Arguments};
use protocol::operations::{OUTPUT_STDERR, OUTPUT_STDOUT};
use ptx::rewrite::Redirect;

use ring::{FAILED, PRINTED};
pub(crate) use ring::{Record, Ring};

/// What stands before the first of [`REDIRECTS`] in a module.
pub(crate) const PRELUDE: &str = include_str!("ring.ptx");
/// The variable in which a module finds its ring, and counts: 16 bytes.
pub(crate) const RING: &std::ffi::CStr = c"openmps$ring";
/// What kernels call in the stead of the driver's functions.
pub(crate) const REDIRECTS: &[Redirect<'_>] = &[
    Redirect {
        from: "vprintf",
        to: "openmps$vprintf",
        definition: include_str!("vprintf.ptx"),
        keep: false,
    },
    Redirect {
        from: "__assertfail",
        to: "openmps$assertfail",
        definition: include_str!("assertfail.ptx"),
        keep: true,
    },
];

/// CU_LIMIT_PRINTF_FIFO_SIZE unless it is set, and bytes of a ring at least.
const FIFO_BYTES: usize = 1 << 20;
/// The most that it can be set to.
const MOST_FIFO_BYTES: usize = 16 << 20;
/// Bytes of all rings of a client; further modules print nothing.
const MOST_RING_BYTES: usize = 64 << 20;
/// Bytes that each record is counted with beside its own.
const OVERHEAD: usize = 64;

/// Records of a client that wait to be taken.
#[derive(Debug)]
pub(crate) struct Output {
    state: Mutex<OutputQueue>,
    /// Bytes of the client's rings.
    rings: AtomicUsize,
}

#[derive(Debug)]
struct OutputQueue {
    records: VecDeque<Record>,
    /// Bytes of them, with what each costs.
    bytes: usize,
    limit: usize,
    /// Text of a record that was taken, and what of it is left.
    text: Vec<u8>,
    sink: u32,
}

impl Record {
    fn cost(&self) -> usize {
        8 * self.words.len() + OVERHEAD
    }

    /// Its bytes.
    fn bytes(&self) -> Vec<u8> {
        self.words
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect()
    }

    /// The text that it stands for, and where that belongs.
    fn text(&self) -> Option<(u32, Vec<u8>)> {
        let bytes = self.bytes();
        match self.kind {
            PRINTED => printed(&bytes).map(|text| (OUTPUT_STDOUT, text)),
            FAILED => failed(&bytes).map(|text| (OUTPUT_STDERR, text)),
            _ => None,
        }
    }
}

impl Default for Output {
    fn default() -> Self {
        Self {
            state: Mutex::new(OutputQueue {
                records: VecDeque::new(),
                bytes: 0,
                limit: FIFO_BYTES,
                text: Vec::new(),
                sink: OUTPUT_STDOUT,
            }),
            rings: AtomicUsize::new(0),
        }
    }
}

impl Output {
    /// Sets how many bytes of records wait at most; then the oldest are lost. Rings of modules that are
    /// loaded from now on are as large.
    pub(crate) fn set_limit(&self, bytes: u64) {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        self.state.lock().limit = bytes.min(MOST_FIFO_BYTES);
    }

    /// Bytes that one more module's ring may have, if it may have one; to be given back by
    /// [`Output::ring_freed`].
    pub(crate) fn ring_bytes(&self) -> Option<usize> {
        let bytes = self
            .state
            .lock()
            .limit
            .max(FIFO_BYTES)
            .next_multiple_of(4096);
        let taken = self
            .rings
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |all| {
                Some(all + bytes).filter(|&all| all <= MOST_RING_BYTES)
            });
        taken.ok().map(|_| bytes)
    }

    /// A ring of so many bytes is no more.
    pub(crate) fn ring_freed(&self, bytes: usize) {
        self.rings.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Takes what is in a ring. Whether there was anything.
    pub(crate) fn drain(&self, ring: &Ring) -> bool {
        let mut any = false;
        ring.read(|record| {
            self.push(record);
            any = true;
        });
        any
    }

    fn push(&self, record: Record) {
        let mut state = self.state.lock();
        state.bytes += record.cost();
        state.records.push_back(record);
        while state.bytes > state.limit
            && state.records.len() > 1
            && let Some(lost) = state.records.pop_front()
        {
            state.bytes -= lost.cost();
        }
    }

    /// Takes up to `most` bytes of text, all for one place (OUTPUT_STDOUT, …).
    pub(crate) fn take_text(&self, most: usize, into: &mut Vec<u8>) -> Option<u32> {
        let mut state = self.state.lock();
        while state.text.is_empty() {
            let record = state.records.pop_front()?;
            state.bytes -= record.cost();
            // What makes no sense says nothing.
            if let Some((sink, text)) = record.text() {
                (state.sink, state.text) = (sink, text);
            }
        }
        let most = most.min(state.text.len());
        into.extend(state.text.drain(..most));
        Some(state.sink)
    }
}

/// A number of 4 bytes at a place.
fn number(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes(bytes.try_into().ok()?))
}

/// The string at a place, and where the next one is.
fn string(bytes: &[u8], at: usize) -> Option<(&[u8], usize)> {
    let length = bytes.get(at..at.checked_add(8)?)?;
    let length = usize::try_from(u64::from_le_bytes(length.try_into().ok()?)).ok()?;
    let start = at + 8;
    let string = bytes.get(start..start.checked_add(length)?)?;
    Some((string, start + length.next_multiple_of(8)))
}

/// A printing thread's arguments.
struct ArgumentReader<'a> {
    values: &'a [u8],
    at: usize,
    strings: &'a [u8],
    next_string: usize,
}

impl Arguments for ArgumentReader<'_> {
    fn next(&mut self, bytes: usize) -> Option<u64> {
        let at = self.at.next_multiple_of(bytes);
        let value = self.values.get(at..at + bytes)?;
        self.at = at + bytes;
        let mut wide = [0; 8];
        wide.get_mut(..bytes)?.copy_from_slice(value);
        Some(u64::from_le_bytes(wide))
    }

    fn string(&mut self, _: u64, most: usize) -> Option<Vec<u8>> {
        let (string, next) = string(self.strings, self.next_string)?;
        self.next_string = next;
        Some(string[..most.min(string.len())].to_vec())
    }
}

/// See `vprintf.ptx`; `bytes` begin behind the record's first word.
fn printed(bytes: &[u8]) -> Option<Vec<u8>> {
    let (format, values) = (number(bytes, 0)? as usize, number(bytes, 4)? as usize);
    let rest = bytes.get(8..)?;
    let text = rest.get(..format)?;
    let rest = rest.get(format.next_multiple_of(8)..)?;
    let mut given = ArgumentReader {
        values: rest.get(..values)?,
        at: 0,
        strings: rest.get(values.next_multiple_of(8)..)?,
        next_string: 0,
    };
    format::format(text, &mut given).map(|(text, _)| text)
}

/// See `assertfail.ptx`; `bytes` begin behind the record's first word.
fn failed(bytes: &[u8]) -> Option<Vec<u8>> {
    let at = |place| number(bytes, place);
    let text = |place| {
        let (string, _) = string(bytes, place)?;
        Some(String::from_utf8_lossy(string).into_owned())
    };
    let message = format::assertion(
        &text(40)?,
        (&text(560)?, at(8)?),
        &text(1080)?,
        [at(12)?, at(16)?, at(20)?],
        [at(24)?, at(28)?, at(32)?],
    );
    Some(message.into_bytes())
}
