//! Sets of a device's multiprocessors, in the groups in which the driver gives them out.
//!
//! Numbers only. Used by who shares them out and by who makes parts of them; must not know the driver.

use engine::Granularity;

/// Groups that are told apart at most; one more number is for what a split leaves over.
pub(crate) const MOST_GROUPS: u32 = u128::BITS - 1;

/// A set of groups, by their numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct SmSet(u128);

impl SmSet {
    /// So many groups from this one on.
    pub(crate) fn contiguous(first: u32, count: u32) -> Self {
        Self((first..first + count).fold(0, |set, group| set | 1 << group))
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// How many they are.
    pub(crate) fn count(self) -> u32 {
        self.0.count_ones()
    }

    /// Their numbers, from the lowest.
    pub(crate) fn groups(self) -> impl Iterator<Item = u32> {
        (0..u128::BITS).filter(move |group| self.0 >> group & 1 == 1)
    }

    pub(crate) fn is_within(self, other: Self) -> bool {
        self.0 & !other.0 == 0
    }

    /// Those that are in both.
    pub(crate) fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Those that are not in the other.
    pub(crate) fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// So many with the lowest numbers.
    pub(crate) fn lowest(self, count: u32) -> Self {
        let lowest = self.groups().take(count as usize);
        Self(lowest.fold(0, |set, group| set | 1 << group))
    }

    /// So many with the highest numbers; `None` if there are not as many.
    pub(crate) fn highest(self, count: u32) -> Option<Self> {
        let others = self.count().checked_sub(count)?;
        Some(self.without(self.lowest(others)))
    }
}

/// How the driver splits a device: into groups of equal size, and what is left over. One that cannot be
/// split has no groups, and its only place is the empty one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SmTopology {
    pub(crate) groups: u32,
    /// Multiprocessors of each group.
    pub(crate) each: u32,
    /// Multiprocessors that are in no group. They have the number after the last group's.
    pub(crate) left_over: u32,
}

impl SmTopology {
    /// The whole device.
    pub(crate) fn all(self) -> SmSet {
        SmSet::contiguous(0, self.groups + u32::from(self.left_over > 0))
    }

    /// All groups, without what is left over.
    pub(crate) fn whole_groups(self) -> SmSet {
        SmSet::contiguous(0, self.groups)
    }

    pub(crate) fn multiprocessors(self, place: SmSet) -> u32 {
        let groups = place.and(self.whole_groups());
        let left_over = if groups == place { 0 } else { self.left_over };
        groups.count() * self.each + left_over
    }

    /// In which steps multiprocessors are given out: whole groups.
    pub(crate) fn granularity(self) -> Granularity {
        if self.groups == 0 {
            return Granularity::default();
        }
        Granularity {
            step: self.each,
            least: self.each,
            most: self.groups * self.each,
        }
    }

    /// The disjoint, contiguous parts of `count` of an area's groups, and one more at its end if some groups are in none.
    /// The area has as many.
    pub(crate) fn parts(self, area: SmSet, count: u32) -> Vec<SmSet> {
        let mut left = area.and(self.whole_groups());
        let last = left.highest(count);
        let mut parts = Vec::new();
        while left.count() >= count && count > 0 {
            let part = left.lowest(count);
            parts.push(part);
            left = left.without(part);
        }
        if !left.is_empty() {
            parts.extend(last);
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_disjoint_and_cover_all() {
        let split = SmTopology {
            groups: 15,
            each: 8,
            left_over: 12,
        };
        let all = split.all();
        assert_eq!(split.multiprocessors(all), 132);
        assert_eq!(
            split.parts(all, 8),
            [SmSet::contiguous(0, 8), SmSet::contiguous(7, 8)],
            "what is left over is in no part"
        );
        assert_eq!(split.parts(all, 5).len(), 3);
        assert_eq!(split.parts(all, 15), [split.whole_groups()]);
        let odd = SmSet::contiguous(3, 1).0 | SmSet::contiguous(7, 1).0 | SmSet::contiguous(9, 1).0;
        let alone = [3, 7, 9].map(|group| SmSet::contiguous(group, 1));
        assert_eq!(split.parts(SmSet(odd), 1), alone);
        assert_eq!(split.multiprocessors(SmSet::contiguous(14, 2)), 20);
    }

    #[test]
    fn the_highest_and_the_lowest_of_a_place() {
        let place = SmSet::contiguous(2, 5);
        assert_eq!(place.highest(2), Some(SmSet::contiguous(5, 2)));
        assert_eq!(place.highest(6), None);
        assert_eq!(place.lowest(2), SmSet::contiguous(2, 2));
        assert!(place.without(SmSet::contiguous(0, 9)).is_empty());
        assert_eq!(SmSet::contiguous(0, 128).count(), 128);
    }
}
