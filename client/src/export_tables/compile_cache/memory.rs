//! Entries of the compile cache in memory: the ones used last, up to a number of bytes.
//!
//! Called by the compile cache with its lock held. Must not know what a key or an entry means, nor that there are
//! files.

use std::collections::HashMap;

use super::{Content, Key};

/// What an entry costs beyond its key and its content.
const OVERHEAD: usize = 128;

/// What NVRTC has compiled in this process, up to a number of bytes: the least recently used entry goes first.
pub(super) struct CachedEntries {
    entries: HashMap<Key, CachedContent>,
    /// What they cost.
    bytes: usize,
    /// What they may cost.
    limit: usize,
    /// How often entries were used.
    uses: u64,
}

struct CachedContent {
    content: Content,
    /// Which use was the last.
    used: u64,
}

impl CachedEntries {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            entries: HashMap::new(),
            bytes: 0,
            limit,
            uses: 0,
        }
    }

    pub(super) fn get(&mut self, key: &Key) -> Option<Content> {
        let kept = self.entries.get_mut(key)?;
        self.uses += 1;
        kept.used = self.uses;
        Some(kept.content.clone())
    }

    /// Keeps an entry, and of the others those used last that fit beside it.
    pub(super) fn put(&mut self, key: &Key, content: &Content) {
        self.remove(key);
        let bytes = cost(key, content);
        if bytes > self.limit {
            return;
        }
        while self.bytes + bytes > self.limit {
            let oldest = self.entries.iter().min_by_key(|(_, kept)| kept.used);
            let Some(oldest) = oldest.map(|(key, _)| key.clone()) else {
                break;
            };
            self.remove(&oldest);
        }
        self.uses += 1;
        self.bytes += bytes;
        let kept = CachedContent {
            content: content.clone(),
            used: self.uses,
        };
        self.entries.insert(key.clone(), kept);
    }

    fn remove(&mut self, key: &Key) {
        if let Some(kept) = self.entries.remove(key) {
            self.bytes -= cost(key, &kept.content);
        }
    }
}

fn cost(key: &Key, content: &Content) -> usize {
    key.len() + content.len() + OVERHEAD
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(number: u8) -> (Key, Content) {
        ([number; 100].into(), [number; 772].into())
    }

    #[test]
    fn the_entries_used_last_are_kept_within_the_limit() {
        let mut memory = CachedEntries::new(3000);
        for number in 0..3 {
            let (key, content) = entry(number);
            memory.put(&key, &content);
        }
        assert!(memory.get(&entry(0).0).is_some());
        let (key, content) = entry(3);
        memory.put(&key, &content);
        memory.put(&key, &content);
        let held = [0, 1, 2, 3].map(|number| memory.get(&entry(number).0));
        let is = |number| Some(entry(number).1);
        assert_eq!(held, [is(0), None, is(2), is(3)]);
        assert_eq!(memory.bytes, 3000);
    }

    #[test]
    fn what_is_larger_than_the_limit_takes_no_other_entrys_place() {
        let mut memory = CachedEntries::new(1500);
        let (key, content) = entry(1);
        memory.put(&key, &content);
        memory.put(&entry(2).0, &[2; 1300].into());
        assert_eq!(memory.get(&entry(2).0), None);
        assert_eq!(memory.get(&key), Some(content));
        // And what is replaced by such is not found any more.
        memory.put(&key, &[1; 1300].into());
        assert_eq!(memory.get(&key), None);
        assert_eq!(memory.bytes, 0);
    }
}
