//! What a context does for its kernels beside memory: the text that they print, until the client takes
//! it, and the device heap. The heap's book-keeping is here, out of kernels' reach; only its bytes are
//! theirs.
//!
//! Called by contexts, and by kernels through their machine. Must not know who reads the text.

use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use engine::Observer;

/// CU_LIMIT_PRINTF_FIFO_SIZE unless it is set.
const FIFO_BYTES: usize = 1 << 20;
/// The most that it can be set to.
const MOST_FIFO_BYTES: u64 = 16 << 20;
/// The most bytes of messages of failed assertions that wait.
const MESSAGE_BYTES: usize = 256 << 10;
/// Bytes that each text is counted with beside its own.
const OVERHEAD: usize = 64;
/// What blocks of the heap are multiples of.
const UNIT: u64 = 64;
/// Live blocks of a heap; further ones are refused, so that the book-keeping stays small.
const MOST_BLOCKS: usize = 1 << 19;

/// Where text is meant to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sink {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Services {
    observer: Arc<dyn Observer>,
    texts: Mutex<Texts>,
    heap: Mutex<Heap>,
    /// Where strings lie in the heap that kernels were given: by error, and whether it is the error's name.
    pub(crate) strings: Mutex<HashMap<(u32, bool), u64>>,
}

/// Text that waits.
#[derive(Debug)]
struct Texts {
    printed: Queue,
    messages: Queue,
    limit: usize,
}

#[derive(Debug, Default)]
struct Queue {
    texts: VecDeque<Vec<u8>>,
    /// Bytes of them, with what each costs.
    bytes: usize,
    /// Bytes of the first one that were taken.
    taken: usize,
}

impl Queue {
    fn push(&mut self, text: Vec<u8>) {
        self.bytes += text.len() + OVERHEAD;
        self.texts.push_back(text);
    }

    fn drop_first(&mut self) {
        if let Some(text) = self.texts.pop_front() {
            self.bytes -= text.len() + OVERHEAD;
            self.taken = 0;
        }
    }

    fn take(&mut self, most: usize, into: &mut Vec<u8>) {
        let end = into.len() + most;
        while let Some(first) = self.texts.front() {
            let rest = &first[self.taken..];
            let room = end - into.len();
            if rest.len() > room {
                into.extend_from_slice(&rest[..room]);
                self.taken += room;
                return;
            }
            into.extend_from_slice(rest);
            self.drop_first();
        }
    }
}

impl Services {
    pub(crate) fn new(observer: Arc<dyn Observer>) -> Self {
        Self {
            observer,
            texts: Mutex::new(Texts {
                printed: Queue::default(),
                messages: Queue::default(),
                limit: FIFO_BYTES,
            }),
            heap: Mutex::default(),
            strings: Mutex::default(),
        }
    }

    /// Sets how many bytes of text wait at most; then the oldest are lost.
    pub(crate) fn set_fifo(&self, bytes: u64) {
        self.texts.lock().limit = bytes.min(MOST_FIFO_BYTES) as usize;
    }

    /// Takes up to `most` bytes of text that waits, all for one sink, and says whether there is more.
    pub(crate) fn take(&self, most: usize, into: &mut Vec<u8>) -> Option<(Sink, bool)> {
        let mut texts = self.texts.lock();
        let sink = if !texts.printed.texts.is_empty() {
            texts.printed.take(most, into);
            Sink::Out
        } else if !texts.messages.texts.is_empty() {
            texts.messages.take(most, into);
            Sink::Err
        } else {
            return None;
        };
        let more = !texts.printed.texts.is_empty() || !texts.messages.texts.is_empty();
        Some((sink, more))
    }

    /// Makes `[base, base + bytes)` the heap, unless memory of the present one is in use.
    pub(crate) fn set_heap(&self, base: u64, bytes: u64) {
        let mut heap = self.heap.lock();
        let start = base.checked_next_multiple_of(UNIT);
        let end = base.checked_add(bytes);
        if let (true, Some(start), Some(end)) = (heap.used.is_empty(), start, end) {
            *heap = Heap {
                top: start.min(end),
                end,
                ..Heap::default()
            };
        }
    }
}

impl ptx_vm::Services for Services {
    fn print(&self, text: Vec<u8>) {
        if text.is_empty() {
            return;
        }
        let mut texts = self.texts.lock();
        texts.printed.push(text);
        while texts.printed.bytes > texts.limit && texts.printed.texts.len() > 1 {
            texts.printed.drop_first();
        }
        drop(texts);
        self.observer.output_ready();
    }

    fn assertion_failed(&self, text: Vec<u8>) {
        let mut texts = self.texts.lock();
        if texts.messages.bytes + text.len() > MESSAGE_BYTES {
            return;
        }
        texts.messages.push(text);
        drop(texts);
        self.observer.output_ready();
    }

    fn allocate(&self, bytes: u64) -> u64 {
        self.heap.lock().allocate(bytes).unwrap_or(0)
    }

    fn free(&self, address: u64) -> bool {
        self.heap.lock().free(address)
    }
}

/// Blocks by size: a freed one serves the next request of its size; joined with its neighbours only when
/// there is no other room.
#[derive(Debug, Default)]
struct Heap {
    /// From here to `end` nothing was ever given.
    top: u64,
    end: u64,
    used: HashMap<u64, u64>,
    free: BTreeMap<u64, Vec<u64>>,
    /// Bytes freed since blocks were last joined.
    freed: u64,
}

impl Heap {
    fn allocate(&mut self, bytes: u64) -> Option<u64> {
        let bytes = bytes.max(1).checked_next_multiple_of(UNIT)?;
        if self.used.len() >= MOST_BLOCKS {
            return None;
        }
        let address = match self.find(bytes) {
            Some(address) => address,
            None if self.freed >= bytes => {
                self.join();
                self.find(bytes)?
            }
            None => return None,
        };
        self.used.insert(address, bytes);
        Some(address)
    }

    fn find(&mut self, bytes: u64) -> Option<u64> {
        if let Some(address) = self.take_free(bytes) {
            return Some(address);
        }
        if bytes <= self.end - self.top {
            self.top += bytes;
            return Some(self.top - bytes);
        }
        let (&larger, _) = self.free.range(bytes..).next()?;
        let address = self.take_free(larger)?;
        self.free
            .entry(larger - bytes)
            .or_default()
            .push(address + bytes);
        Some(address)
    }

    fn take_free(&mut self, bytes: u64) -> Option<u64> {
        let blocks = self.free.get_mut(&bytes)?;
        let address = blocks.pop();
        if blocks.is_empty() {
            self.free.remove(&bytes);
        }
        address
    }

    fn free(&mut self, address: u64) -> bool {
        let Some(bytes) = self.used.remove(&address) else {
            return false;
        };
        self.freed += bytes;
        self.free.entry(bytes).or_default().push(address);
        true
    }

    /// Joins free neighbours.
    fn join(&mut self) {
        self.freed = 0;
        let mut blocks: Vec<(u64, u64)> = std::mem::take(&mut self.free)
            .into_iter()
            .flat_map(|(bytes, addresses)| {
                addresses.into_iter().map(move |address| (address, bytes))
            })
            .collect();
        blocks.sort_unstable();
        let mut joined: Vec<(u64, u64)> = Vec::with_capacity(blocks.len());
        for (address, bytes) in blocks {
            match joined.last_mut() {
                Some(last) if last.0 + last.1 == address => last.1 += bytes,
                _ => joined.push((address, bytes)),
            }
        }
        if let Some(&(address, bytes)) = joined.last()
            && address + bytes == self.top
        {
            self.top = address;
            joined.pop();
        }
        for (address, bytes) in joined {
            self.free.entry(bytes).or_default().push(address);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heap(bytes: u64) -> Heap {
        Heap {
            top: 1 << 20,
            end: (1 << 20) + bytes,
            ..Heap::default()
        }
    }

    #[test]
    fn blocks_are_apart_aligned_and_inside() {
        let mut heap = heap(64 << 10);
        let mut state = 7u64;
        let mut live: Vec<(u64, u64)> = Vec::new();
        for _ in 0..20_000 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let roll = state >> 33;
            if roll.is_multiple_of(2) {
                let bytes = roll / 2 % 3000;
                if let Some(address) = heap.allocate(bytes) {
                    assert_eq!(address % 16, 0);
                    assert!(address >= 1 << 20 && address + bytes <= (1 << 20) + (64 << 10));
                    for &(other, len) in &live {
                        assert!(address + bytes.max(1) <= other || other + len.max(1) <= address);
                    }
                    live.push((address, bytes));
                }
            } else if !live.is_empty() {
                let (address, _) = live.swap_remove(roll as usize / 2 % live.len());
                assert!(heap.free(address));
                assert!(!heap.free(address), "twice");
            }
        }
        for (address, _) in live.drain(..) {
            assert!(heap.free(address));
        }
        assert_eq!(heap.allocate(64 << 10), Some(1 << 20), "nothing is lost");
        assert_eq!(heap.allocate(1), None);
        assert_eq!(heap.allocate(u64::MAX), None);
        assert!(!heap.free(12));
    }

    #[test]
    fn the_oldest_text_makes_room_for_the_newest() {
        let mut queue = Queue::default();
        for text in ["one", "two", "three"] {
            queue.push(text.into());
        }
        let mut out = Vec::new();
        queue.take(4, &mut out);
        assert_eq!(out, b"onet");
        queue.drop_first();
        queue.take(100, &mut out);
        assert_eq!(out, b"onetthree");
        assert_eq!(queue.bytes, 0);
    }
}
