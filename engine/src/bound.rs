//! Bounds on what clients take of something, one within another, and who has taken what.
//!
//! A client's bound lies within its group's, that within the server's: what is taken of one is taken of
//! all that it lies within, or of none. Knows nothing of what is bounded.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A part of a whole, as `(3, 4)` is three quarters.
#[must_use]
pub const fn part(whole: u64, (part, of): (u64, u64)) -> u64 {
    (whole / of).saturating_mul(part)
}

/// So much may be taken, and so much is.
#[derive(Debug)]
pub struct Bound {
    most: u64,
    taken: AtomicU64,
    within: Option<Arc<Self>>,
}

impl Bound {
    /// One that lies within no other.
    #[must_use]
    pub const fn new(most: u64) -> Self {
        Self {
            most,
            taken: AtomicU64::new(0),
            within: None,
        }
    }

    /// One that lies within another.
    #[must_use]
    pub fn within(outer: &Arc<Self>, most: u64) -> Self {
        Self {
            within: Some(Arc::clone(outer)),
            ..Self::new(most)
        }
    }

    /// What may be taken of it at most.
    #[must_use]
    pub const fn limit(&self) -> u64 {
        self.most
    }

    /// What is taken.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// What can be taken.
    #[must_use]
    pub fn remaining(&self) -> u64 {
        let own = self.most.saturating_sub(self.taken());
        let outer = self
            .within
            .as_ref()
            .map_or(u64::MAX, |outer| outer.remaining());
        own.min(outer)
    }

    /// Takes something, if there is as much here and in all that this lies within. Says whether.
    #[must_use]
    pub fn charge(&self, amount: u64) -> bool {
        let add = |taken: u64| taken.checked_add(amount).filter(|&all| all <= self.most);
        let order = Ordering::Relaxed;
        if self.taken.fetch_update(order, order, add).is_err() {
            return false;
        }
        let fits = self
            .within
            .as_ref()
            .is_none_or(|outer| outer.charge(amount));
        if !fits {
            self.taken.fetch_sub(amount, order);
        }
        fits
    }

    /// Gives back what was taken.
    pub fn uncharge(&self, amount: u64) {
        self.taken.fetch_sub(amount, Ordering::Relaxed);
        if let Some(outer) = &self.within {
            outer.uncharge(amount);
        }
    }
}

/// What somebody has taken of a bound. It is given back when this is dropped.
#[derive(Debug)]
pub struct Charge {
    bound: Arc<Bound>,
    amount: u64,
}

impl Charge {
    /// Nothing yet.
    #[must_use]
    pub const fn new(bound: Arc<Bound>) -> Self {
        Self { bound, amount: 0 }
    }

    /// How much it is.
    #[must_use]
    pub const fn amount(&self) -> u64 {
        self.amount
    }

    /// Takes more. Says whether there is as much; if not, nothing has changed.
    #[must_use]
    pub fn grow(&mut self, amount: u64) -> bool {
        let fits = self.bound.charge(amount);
        if fits {
            self.amount += amount;
        }
        fits
    }

    /// Gives back what is beyond an amount.
    pub fn shrink_to(&mut self, amount: u64) {
        if let Some(beyond) = self.amount.checked_sub(amount) {
            self.bound.uncharge(beyond);
            self.amount = amount;
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_is_taken_of_all_that_a_bound_lies_within_or_of_none() {
        let server = Arc::new(Bound::new(100));
        let group = Arc::new(Bound::within(&server, 60));
        let [one, two] = [(); 2].map(|()| Arc::new(Bound::within(&group, 50)));
        let other = Arc::new(Bound::within(&server, 50));
        assert!(one.charge(40) && !one.charge(11), "beyond its own");
        assert!(!two.charge(21), "beyond the group's");
        assert_eq!((two.taken(), group.taken(), server.taken()), (0, 40, 40));
        assert!(two.charge(20) && other.charge(40) && !other.charge(1));
        assert_eq!((two.remaining(), other.remaining()), (0, 0));
        assert_eq!(other.taken(), 40, "nothing is left of what was refused");
        one.uncharge(40);
        assert_eq!(
            (one.remaining(), two.remaining(), other.remaining()),
            (40, 30, 10)
        );
        assert!(!one.charge(u64::MAX));
    }

    #[test]
    fn a_charge_is_given_back_however_it_ends() {
        let bound = Arc::new(Bound::new(100));
        let mut charge = Charge::new(bound.clone());
        assert!(charge.grow(60) && charge.grow(40) && !charge.grow(1));
        charge.shrink_to(30);
        charge.shrink_to(50);
        assert_eq!((charge.amount(), bound.taken()), (30, 30));
        drop(charge);
        assert_eq!(bound.taken(), 0);
    }
}
