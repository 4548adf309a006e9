//! Counts what of a client is still mapped, so that its end can wait for the last piece of work.
//!
//! Called by memory that is mapped and unmapped, and by the client's end. Must not know what is mapped.

use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Mapped {
    count: Mutex<usize>,
    none: Condvar,
}

impl Mapped {
    /// Counts one more, for as long as the ticket lives.
    pub(super) fn ticket(self: &Arc<Self>) -> Ticket {
        *self.count.lock() += 1;
        Ticket(Arc::clone(self))
    }

    /// Waits until nothing is mapped any more.
    pub(crate) fn wait_until_none(&self) {
        let mut count = self.count.lock();
        while *count != 0 {
            self.none.wait(&mut count);
        }
    }
}

/// One thing that [`Mapped`] counts.
#[derive(Debug)]
pub(super) struct Ticket(Arc<Mapped>);

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut count = self.0.count.lock();
        *count -= 1;
        if *count == 0 {
            self.0.none.notify_all();
        }
    }
}
