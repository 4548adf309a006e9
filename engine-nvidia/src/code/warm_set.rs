//! Which images are kept that no client has at the moment: those used last, within a bound.
//!
//! Images that one client had, and images that several had, have half of the bound each, so that who sends many that
//! nobody else ever has takes the place of others like them. And each client may bring only a part of either half. Owned by
//! `images`. Must not know what an image is.

use std::collections::BTreeMap;

use crate::sync::BoundedCount;

/// What an image counts at least, here and in files, so that there are not too many.
pub(crate) const LEAST: usize = 64 << 10;

/// Clients that have to come, one after another, before everything of a kind that was kept has gone because of them.
const CLIENTS: usize = 2;

/// Whether one client had an image, or several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    Once,
    Again,
}

/// Where an image is in the set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WarmPlace {
    seen: Seen,
    /// Counts up with each image that comes.
    number: u64,
}

/// The images that are kept.
#[derive(Debug)]
pub(crate) struct WarmSet<T> {
    /// Bytes of each half.
    most: usize,
    once: Half<T>,
    again: Half<T>,
    next: u64,
}

#[derive(Debug)]
struct Half<T> {
    by_age: BTreeMap<u64, (T, usize)>,
    bytes: usize,
}

/// What one client may bring to a set.
#[derive(Debug)]
pub(crate) struct WarmShare {
    once: BoundedCount,
    again: BoundedCount,
}

impl WarmShare {
    /// A client's, of a set with this bound.
    pub(crate) fn new(most: usize) -> Self {
        let part = || BoundedCount::of(most / 2 / CLIENTS);
        Self {
            once: part(),
            again: part(),
        }
    }

    /// Takes of it for an image of so many bytes, if there is as much.
    pub(crate) fn try_take(&self, seen: Seen, bytes: usize) -> bool {
        let bytes = bytes.max(LEAST);
        match seen {
            Seen::Once => self.once.try_add(bytes),
            Seen::Again => self.again.try_add(bytes),
        }
    }
}

impl<T> Half<T> {
    const fn new() -> Self {
        Self {
            by_age: BTreeMap::new(),
            bytes: 0,
        }
    }
}

impl<T> WarmSet<T> {
    /// An empty set of so many bytes.
    pub(crate) const fn new(most: usize) -> Self {
        Self {
            most: most / 2,
            once: Half::new(),
            again: Half::new(),
            next: 0,
        }
    }

    fn half(&mut self, seen: Seen) -> &mut Half<T> {
        match seen {
            Seen::Once => &mut self.once,
            Seen::Again => &mut self.again,
        }
    }

    /// Keeps an image of so many bytes, for which those used longest ago go if need be: into `gone`. `None` if it is not kept.
    pub(crate) fn insert(
        &mut self,
        image: T,
        bytes: usize,
        seen: Seen,
        gone: &mut Vec<T>,
    ) -> Option<WarmPlace> {
        let bytes = bytes.max(LEAST);
        if bytes > self.most {
            return None;
        }
        let (most, number) = (self.most, self.next);
        self.next += 1;
        let half = self.half(seen);
        half.bytes += bytes;
        half.by_age.insert(number, (image, bytes));
        while half.bytes > most
            && let Some((_, (image, bytes))) = half.by_age.pop_first()
        {
            half.bytes -= bytes;
            gone.push(image);
        }
        Some(WarmPlace { seen, number })
    }

    /// Whether an image of so many bytes can be kept, and nothing goes for it.
    pub(crate) fn has_room(&self, seen: Seen, bytes: usize) -> bool {
        let half = match seen {
            Seen::Once => &self.once,
            Seen::Again => &self.again,
        };
        half.bytes.saturating_add(bytes.max(LEAST)) <= self.most
    }

    /// Takes an image out, which a client has now.
    pub(crate) fn remove(&mut self, place: WarmPlace) {
        let half = self.half(place.seen);
        if let Some((_, bytes)) = half.by_age.remove(&place.number) {
            half.bytes -= bytes;
        }
    }

    /// Takes all out.
    pub(crate) fn take_all(&mut self) -> Vec<T> {
        let halves = [&mut self.once, &mut self.again].map(|half| {
            half.bytes = 0;
            std::mem::take(&mut half.by_age)
        });
        let all = halves.into_iter().flat_map(BTreeMap::into_values);
        all.map(|(image, _)| image).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: usize = 8 * LEAST;

    fn insert(set: &mut WarmSet<u32>, image: u32, seen: Seen) -> (Option<WarmPlace>, Vec<u32>) {
        let mut gone = Vec::new();
        let place = set.insert(image, 1, seen, &mut gone);
        (place, gone)
    }

    #[test]
    fn those_used_longest_ago_go_first_and_only_for_their_like() {
        let mut set = WarmSet::new(MOST);
        insert(&mut set, 100, Seen::Again);
        let mut places = Vec::new();
        for image in 0..4 {
            let (place, gone) = insert(&mut set, image, Seen::Once);
            assert_eq!(gone, []);
            places.push(place.unwrap());
        }
        // Used again: the second is the oldest.
        set.remove(places[0]);
        insert(&mut set, 0, Seen::Once);
        assert_eq!(insert(&mut set, 4, Seen::Once).1, [1]);
        for image in 5..100 {
            assert_eq!(insert(&mut set, image, Seen::Once).1.len(), 1);
        }
        assert_eq!(set.once.bytes, MOST / 2);
        let mut left = set.take_all();
        left.sort_unstable();
        assert_eq!(left, [96, 97, 98, 99, 100]);
        assert_eq!((set.once.bytes, set.again.bytes), (0, 0));
    }

    #[test]
    fn what_is_larger_than_all_may_be_is_not_kept_and_nothing_goes_for_it() {
        let mut set = WarmSet::new(MOST);
        insert(&mut set, 1, Seen::Once);
        let mut gone = Vec::new();
        let place = set.insert(2, MOST / 2 + 1, Seen::Once, &mut gone);
        assert_eq!((place, &gone[..]), (None, &[][..]));
        let whole = set.insert(3, MOST / 2, Seen::Once, &mut gone);
        assert!(whole.is_some());
        assert_eq!(gone, [1]);
    }

    #[test]
    fn one_client_takes_the_place_of_a_part_only() {
        let share = WarmShare::new(MOST);
        for seen in [Seen::Once, Seen::Again] {
            let taken = (0..100).filter(|_| share.try_take(seen, 1)).count();
            assert_eq!(taken, MOST / 2 / CLIENTS / LEAST);
        }
        assert!(!WarmShare::new(MOST).try_take(Seen::Once, MOST / 2));
    }
}
