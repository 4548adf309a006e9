//! Forks of a process that has registered memory: the child gets private pages in the place of the window's,
//! before `fork` returns in either.
//!
//! Called by the C library around `fork`, once something is registered. Must not know what it is registered for.

use std::cell::RefCell;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{MutexGuard, Once};
use std::time::Duration;

use super::pieces::make_private_in_child;
use super::{Block, REGISTERED};

/// How long a fork waits for its child to have its pages. A child that is stopped in between is
/// better off with pages that are a little too new than its parent is without going on.
const CHILD_PATIENCE: Duration = Duration::from_secs(10);

unsafe extern "C" {
    /// POSIX.
    fn pthread_atfork(
        prepare: Option<unsafe extern "C" fn()>,
        parent: Option<unsafe extern "C" fn()>,
        child: Option<unsafe extern "C" fn()>,
    ) -> std::ffi::c_int;
}

/// Has forks noticed from now on.
pub(super) fn watch_forks() {
    static NOTICED: Once = Once::new();
    NOTICED.call_once(|| {
        // SAFETY: the three functions live as long as this library, which is never unloaded once it
        // has a session, and keep to what is allowed in them.
        let status =
            unsafe { pthread_atfork(Some(before_fork), Some(parent_of_fork), Some(child_of_fork)) };
        if status != 0 {
            crate::log::log!("pthread_atfork failed with {status}: forked children share registered memory with this process");
        }
    });
}

/// What a fork under way needs on both sides.
struct Fork {
    /// Keeps registrations as they are until the child has its pages.
    _blocks: MutexGuard<'static, Vec<Block>>,
    pages: Vec<(Range<u64>, bool)>,
    /// The child's end of the second is closed when it has its pages, or is gone.
    pipe: Option<(OwnedFd, OwnedFd)>,
}

thread_local! {
    static FORK: RefCell<Option<Fork>> = const { RefCell::new(None) };
}

unsafe extern "C" fn before_fork() {
    let Ok(registered) = REGISTERED.get() else {
        return;
    };
    if !registered.any() {
        return;
    }
    let blocks = registered.blocks();
    let pages = blocks
        .iter()
        .filter(|block| !block.of_file)
        .map(|block| (block.pages.clone(), block.read_only))
        .collect();
    let fork = Fork {
        _blocks: blocks,
        pages,
        pipe: rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).ok(),
    };
    // A thread that is ending forks without our help; nothing can be done for it.
    let _ = FORK.try_with(|place| place.replace(Some(fork)));
}

unsafe extern "C" fn parent_of_fork() {
    let fork = FORK.try_with(|place| place.borrow_mut().take());
    if let Ok(Some(fork)) = fork
        && let Some((ready, childs_end)) = fork.pipe
    {
        drop(childs_end);
        let _ = transport::socket::poll(&[ready.as_fd()], Some(CHILD_PATIENCE));
    }
}

unsafe extern "C" fn child_of_fork() {
    let _ = FORK.try_with(|place| {
        let Some(fork) = place.borrow_mut().take() else {
            return;
        };
        for (pages, read_only) in &fork.pages {
            // SAFETY: the parent held its registrations as they were while this process came to
            // be, so the window's pages are there. A program that unmapped them itself has broken
            // CUDA's rules, and its child is not worse off than it.
            unsafe { make_private_in_child(pages, *read_only) };
        }
        // The session's lock is the parent's; here nobody asks for it any more.
        let _held = std::mem::ManuallyDrop::new(fork._blocks);
        drop(fork.pipe);
    });
}
