//! Launches that kernels have made and that have not begun, and their grids that have: how many of each a client has.
//!
//! Owns the counts and the grids that wait for their turn. Called by grids that launch others. Must not know what
//! a grid is.

use parking_lot::Mutex;
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

/// CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT unless it is set.
const PENDING: u64 = 2048;
/// The most that it can be set to.
const MOST_PENDING: u64 = 1 << 16;
/// Grids launched by kernels that are under way at once; the others wait. As many as a GPU has.
const RESIDENT: u64 = 128;

/// Streams, events, records of events and waits for them that a client's grids may have together.
const MOST_OBJECTS: u64 = 1 << 16;

/// Something that begins when it is its turn.
pub(crate) trait Begin: Send + fmt::Debug {
    /// Begins. No lock is held.
    fn begin(self: Box<Self>);
}

/// See the module.
#[derive(Debug)]
pub(crate) struct LaunchPool {
    state: Mutex<PoolState>,
}

#[derive(Debug)]
struct PoolState {
    limit: u64,
    pending: u64,
    resident: u64,
    /// Of the resident grids: those with a block that waits for room.
    blocked: u64,
    ready: VecDeque<Box<dyn Begin>>,
    objects: u64,
    closed: bool,
}

/// Room for one launch that has not begun.
#[derive(Debug)]
pub(crate) struct Slot {
    pool: Arc<LaunchPool>,
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.pool.state.lock().pending -= 1;
    }
}

/// Room for one object of a grid's.
#[derive(Debug)]
pub(crate) struct Object {
    pool: Arc<LaunchPool>,
}

impl Drop for Object {
    fn drop(&mut self) {
        self.pool.state.lock().objects -= 1;
    }
}

impl LaunchPool {
    pub(crate) fn new() -> Self {
        Self {
            state: Mutex::new(PoolState {
                limit: PENDING,
                pending: 0,
                resident: 0,
                blocked: 0,
                ready: VecDeque::new(),
                objects: 0,
                closed: false,
            }),
        }
    }

    /// Sets how many launches may be pending.
    pub(crate) fn set_limit(&self, limit: u64) {
        self.state.lock().limit = limit.min(MOST_PENDING);
    }

    /// Takes room for as many of `launches` launches as there is, each of which becomes a [`Slot`]. `None`: there is
    /// too little, and a grid is under way whose end will make some.
    pub(crate) fn reserve(&self, launches: u64) -> Option<u64> {
        let mut state = self.state.lock();
        let room = state.limit.saturating_sub(state.pending);
        if room < launches && state.resident > state.blocked {
            return None;
        }
        let granted = room.min(launches);
        state.pending += granted;
        Some(granted)
    }

    /// A launch's part of what was reserved.
    pub(crate) fn slot(self: &Arc<Self>) -> Slot {
        Slot {
            pool: Arc::clone(self),
        }
    }

    /// Room for one object more, if there is any.
    pub(crate) fn object(self: &Arc<Self>) -> Option<Object> {
        let mut state = self.state.lock();
        if state.objects >= MOST_OBJECTS {
            return None;
        }
        state.objects += 1;
        Some(Object {
            pool: Arc::clone(self),
        })
    }

    /// Begins a grid, now or when it is its turn.
    pub(crate) fn submit(&self, grid: Box<dyn Begin>) {
        let mut state = self.state.lock();
        if state.closed {
            drop(state);
            return;
        }
        if state.resident >= RESIDENT {
            state.ready.push_back(grid);
            return;
        }
        state.resident += 1;
        drop(state);
        grid.begin();
    }

    /// A grid that had begun is no longer under way: the next one begins.
    pub(crate) fn ended(&self) {
        let mut state = self.state.lock();
        let Some(next) = state.ready.pop_front() else {
            state.resident -= 1;
            return;
        };
        drop(state);
        next.begin();
    }

    /// A resident grid has its first block that waits for room, or none any more.
    pub(crate) fn set_blocked(&self, blocked: bool) {
        let mut state = self.state.lock();
        match blocked {
            true => state.blocked += 1,
            false => state.blocked -= 1,
        }
    }

    /// Drops what waits, for good: the client is going.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        let ready = std::mem::take(&mut state.ready);
        drop(state);
        drop(ready);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[derive(Debug)]
    struct Counted(Arc<AtomicU64>);

    impl Begin for Counted {
        fn begin(self: Box<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn so_many_are_under_way_and_the_rest_wait_for_their_turn() {
        let (pool, begun) = (LaunchPool::new(), Arc::new(AtomicU64::new(0)));
        for _ in 0..RESIDENT + 5 {
            pool.submit(Box::new(Counted(Arc::clone(&begun))));
        }
        assert_eq!(begun.load(Ordering::Relaxed), RESIDENT);
        for _ in 0..RESIDENT + 5 {
            pool.ended();
        }
        assert_eq!(begun.load(Ordering::Relaxed), RESIDENT + 5);
        assert_eq!(pool.state.lock().resident, 0);
        pool.close();
        pool.submit(Box::new(Counted(Arc::clone(&begun))));
        assert_eq!(begun.load(Ordering::Relaxed), RESIDENT + 5);
    }

    #[test]
    fn who_finds_no_room_waits_only_for_grids_that_do_not_wait_themselves() {
        let (pool, begun) = (Arc::new(LaunchPool::new()), Arc::default());
        pool.set_limit(4);
        assert_eq!(pool.reserve(3), Some(3));
        let slots: Vec<Slot> = (0..3).map(|_| pool.slot()).collect();
        assert_eq!(pool.reserve(2), Some(1), "nobody will make room");
        pool.submit(Box::new(Counted(begun)));
        assert_eq!(pool.reserve(1), None, "a grid is under way");
        pool.set_blocked(true);
        assert_eq!(pool.reserve(1), Some(0), "it waits for room itself");
        drop(slots);
        assert_eq!(pool.reserve(3), Some(3));
    }
}
