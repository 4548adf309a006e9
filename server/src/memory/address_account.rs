//! The addresses of this process at which clients' memory lies: who has which.
//!
//! What a client has is counted until nobody uses it any more, which for memory that others share or
//! that work still runs on is after the client gave it back. Knows nothing of what lies there.

use std::sync::{Arc, LazyLock};

use engine::arena::Arena;
use engine::{Owner, Window};
use parking_lot::{Mutex, MutexGuard};

/// Windows that a client may have beside its first ones: each costs the server a mapping and, on the
/// software GPU, a descriptor.
const MOST_WINDOWS: usize = 256;

fn arena() -> MutexGuard<'static, Arena> {
    static ARENA: LazyLock<Mutex<Arena>> = LazyLock::new(Mutex::default);
    ARENA.lock()
}

/// The windows that a client begins with, given back when dropped.
#[derive(Debug)]
pub struct InitialWindows(Vec<Window>);

impl InitialWindows {
    /// Takes windows of so many bytes, if there are as many addresses.
    #[must_use]
    pub fn allocate(sizes: &[u64]) -> Option<Arc<Self>> {
        arena().allocate(sizes).map(Self).map(Arc::new)
    }

    /// Takes these very windows, if they are made of extents and nobody has them.
    #[must_use]
    pub fn allocate_at(windows: Vec<Window>) -> Option<Arc<Self>> {
        let taken = arena().allocate_at(&windows);
        taken.then(|| Arc::new(Self(windows)))
    }

    /// The windows.
    #[must_use]
    pub fn windows(&self) -> &[Window] {
        &self.0
    }
}

impl Owner for InitialWindows {}

impl Drop for InitialWindows {
    fn drop(&mut self) {
        let mut arena = arena();
        for window in &self.0 {
            arena.release(window);
        }
    }
}

/// What one client has beside its first windows.
#[derive(Clone, Debug, Default)]
pub struct AddressAccount(Arc<Mutex<ExtraWindows>>);

#[derive(Debug, Default)]
struct ExtraWindows {
    bytes: u64,
    windows: usize,
}

/// A further window, given back when dropped.
#[derive(Debug)]
pub struct ExtraWindow {
    window: Window,
    account: AddressAccount,
}

impl AddressAccount {
    /// Takes a window of at least so many bytes, if the client may have as many.
    #[must_use]
    pub fn allocate(&self, bytes: u64) -> Option<Arc<ExtraWindow>> {
        let mut grown = self.0.lock();
        if grown.windows >= MOST_WINDOWS {
            return None;
        }
        let window = arena().grow(grown.bytes, bytes)?;
        Some(self.take(&mut grown, window))
    }

    /// Takes this very window, which the client had in a former server, if it is made of extents and nobody has it.
    #[must_use]
    pub fn allocate_at(&self, window: Window) -> Option<Arc<ExtraWindow>> {
        let mut grown = self.0.lock();
        if grown.windows >= MOST_WINDOWS || !arena().allocate_at(&[window]) {
            return None;
        }
        Some(self.take(&mut grown, window))
    }

    /// Counts a window that was taken.
    fn take(&self, grown: &mut ExtraWindows, window: Window) -> Arc<ExtraWindow> {
        grown.bytes += window.bytes;
        grown.windows += 1;
        Arc::new(ExtraWindow {
            window,
            account: self.clone(),
        })
    }
}

impl ExtraWindow {
    /// Its addresses.
    #[must_use]
    pub const fn window(&self) -> Window {
        self.window
    }
}

impl Owner for ExtraWindow {}

impl Drop for ExtraWindow {
    fn drop(&mut self) {
        arena().release(&self.window);
        let mut grown = self.account.0.lock();
        grown.bytes -= self.window.bytes;
        grown.windows -= 1;
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Held by tests of which addresses are free: they are the whole process'.
    pub(in crate::memory) static ADDRESSES: Mutex<()> = Mutex::new(());

    #[test]
    fn a_client_has_only_so_many_windows_and_gets_back_what_it_gave() {
        let _alone = ADDRESSES.lock();
        let account = AddressAccount::default();
        let mut windows: Vec<_> = std::iter::from_fn(|| account.allocate(1)).collect();
        assert_eq!(windows.len(), MOST_WINDOWS);
        assert!(
            AddressAccount::default().allocate(1).is_some(),
            "another client"
        );
        let last = windows.pop();
        let held = last.clone();
        drop(last);
        assert!(account.allocate(1).is_none(), "somebody still uses it");
        drop(held);
        assert!(account.allocate(1).is_some());
    }
}
