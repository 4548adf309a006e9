//! The addresses of this process at which clients' memory lies: who has which.
//!
//! What a client has is counted until nobody uses it any more, which for memory that others share or
//! that work still runs on is after the client gave it back. Knows nothing of what lies there.

use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use engine::arena::Arena;
use engine::{Owner, Window};

/// Windows that a client may have beside its first ones: each costs the server a mapping and, on the
/// software GPU, a descriptor.
const MOST_WINDOWS: usize = 256;

fn arena() -> MutexGuard<'static, Arena> {
    static ARENA: LazyLock<Mutex<Arena>> = LazyLock::new(Mutex::default);
    ARENA.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The windows that a client begins with, given back when dropped.
#[derive(Debug)]
pub struct First(Vec<Window>);

impl First {
    /// Takes windows of so many bytes, if there are as many addresses.
    #[must_use]
    pub fn take(sizes: &[u64]) -> Option<Arc<Self>> {
        arena().take(sizes).map(Self).map(Arc::new)
    }

    /// The windows.
    #[must_use]
    pub fn windows(&self) -> &[Window] {
        &self.0
    }
}

impl Owner for First {}

impl Drop for First {
    fn drop(&mut self) {
        let mut arena = arena();
        for window in &self.0 {
            arena.give_back(window);
        }
    }
}

/// What one client has beside its first windows.
#[derive(Clone, Debug, Default)]
pub struct Account(Arc<Mutex<Grown>>);

#[derive(Debug, Default)]
struct Grown {
    bytes: u64,
    windows: usize,
}

/// A further window, given back when dropped.
#[derive(Debug)]
pub struct Further {
    window: Window,
    account: Account,
}

impl Account {
    fn lock(&self) -> MutexGuard<'_, Grown> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a window of at least so many bytes, if the client may have as many.
    #[must_use]
    pub fn take(&self, bytes: u64) -> Option<Arc<Further>> {
        let mut grown = self.lock();
        if grown.windows >= MOST_WINDOWS {
            return None;
        }
        let window = arena().grow(grown.bytes, bytes)?;
        grown.bytes += window.bytes;
        grown.windows += 1;
        Some(Arc::new(Further {
            window,
            account: self.clone(),
        }))
    }
}

impl Further {
    /// Its addresses.
    #[must_use]
    pub const fn window(&self) -> Window {
        self.window
    }
}

impl Owner for Further {}

impl Drop for Further {
    fn drop(&mut self) {
        arena().give_back(&self.window);
        let mut grown = self.account.lock();
        grown.bytes -= self.window.bytes;
        grown.windows -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_has_only_so_many_windows_and_gets_back_what_it_gave() {
        let account = Account::default();
        let mut windows: Vec<_> = std::iter::from_fn(|| account.take(1)).collect();
        assert_eq!(windows.len(), MOST_WINDOWS);
        assert!(Account::default().take(1).is_some(), "another client");
        let last = windows.pop();
        let held = last.clone();
        drop(last);
        assert!(account.take(1).is_none(), "somebody still uses it");
        drop(held);
        assert!(account.take(1).is_some());
    }
}
