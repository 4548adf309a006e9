//! What a fenced client's kernels on one device may reach, as their checks read it: a table in memory of the device that is
//! none of the client's. `ptx::fence` has its form.
//!
//! Owns the table. Kept true by the client's address space whenever what the client has changes; modules hold where it is.
//! Kernels may read it meanwhile: each of its words is written at once, what is new before what goes. Must not know
//! what the windows are of.

use std::collections::HashSet;

use cuda_abi::CUresult;
use engine::Window;
use ptx::fence::Windows;

use crate::memory::physical_mappings::Physical;

/// Windows of a client on one device beyond which it gets no more memory: a check looks at one after another.
const MOST_WINDOWS: usize = 1 << 12;

/// See the module.
#[derive(Debug)]
pub(crate) struct ReachTable {
    /// Zeroed when it came, which is a table of nothing.
    _memory: Physical,
    address: u64,
    /// What was written.
    words: Vec<u64>,
    /// The same, in order, those side by side as one.
    windows: Vec<Window>,
}

impl ReachTable {
    /// A table of nothing, in memory of its own with room for all that there may be, at an address.
    pub(crate) const fn new(memory: Physical, address: u64) -> Self {
        Self {
            _memory: memory,
            address,
            words: Vec::new(),
            windows: Vec::new(),
        }
    }

    /// Where it is.
    pub(crate) const fn address(&self) -> u64 {
        self.address
    }

    /// How many words of it there are.
    pub(crate) const fn count(&self) -> u64 {
        self.words.len() as u64
    }

    /// The largest window; or what there is from an address on.
    pub(crate) fn window_from(&self, base: Option<u64>) -> Window {
        let windows = self.windows.iter();
        let Some(base) = base else {
            let largest = windows.max_by_key(|window| window.bytes).copied();
            return largest.unwrap_or(Window { base: 0, bytes: 0 });
        };
        let mut around = windows.filter(|window| window.contains(base, 1));
        let end = around.next().map_or(base, |it| it.base + it.bytes);
        Window {
            base,
            bytes: end - base,
        }
    }

    /// Has it say just these windows, which do not overlap. `write` writes to memory of the device, one after the other.
    ///
    /// # Errors
    /// CUDA_ERROR_OUT_OF_MEMORY for more windows than there may be, and then it is as it was; what `write` says.
    pub(crate) fn renew(
        &mut self,
        windows: Vec<Window>,
        mut write: impl FnMut(u64, &[u8]) -> Result<(), CUresult>,
    ) -> Result<(), CUresult> {
        let windows = merged(windows);
        if windows == self.windows {
            return Ok(());
        }
        let words = windows
            .iter()
            .map(|window| Windows::word(window.base, window.bytes));
        let wanted: HashSet<u64> = words
            .collect::<Option<_>>()
            .ok_or(CUresult::ERROR_INVALID_VALUE)?;
        let there: HashSet<u64> = self.words.iter().copied().collect();
        let mut added: Vec<u64> = wanted.difference(&there).copied().collect();
        let (mut changed, mut gone) = (Vec::new(), Vec::new());
        for (at, &word) in self.words.iter().enumerate() {
            if word == 0 || wanted.contains(&word) {
                continue;
            }
            let begins_there = |new: &u64| Windows::base_of(*new) == Windows::base_of(word);
            match added.iter().position(begins_there) {
                Some(new) => changed.push((at, added.swap_remove(new))),
                None => gone.push((at, 0)),
            }
        }
        let is_free = |at: &usize| self.words.get(*at).is_none_or(|&word| word == 0);
        let free = (0..MOST_WINDOWS).filter(is_free);
        let mut writes: Vec<(usize, u64)> = free.zip(added.iter().copied()).collect();
        if writes.len() < added.len() {
            return Err(CUresult::ERROR_OUT_OF_MEMORY);
        }
        writes.extend(changed);
        writes.extend(gone);
        for (at, word) in writes {
            write(self.address() + 8 * at as u64, &word.to_le_bytes())?;
            if at >= self.words.len() {
                self.words.resize(at + 1, 0);
            }
            self.words[at] = word;
        }
        self.windows = windows;
        Ok(())
    }
}

/// Windows in order, those side by side as one.
fn merged(mut windows: Vec<Window>) -> Vec<Window> {
    windows.sort_by_key(|window| window.base);
    let mut all: Vec<Window> = Vec::with_capacity(windows.len());
    for window in windows {
        match all.last_mut() {
            Some(last) if last.base + last.bytes == window.base => last.bytes += window.bytes,
            _ => all.push(window),
        }
    }
    all
}
