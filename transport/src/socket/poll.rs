//! Waiting for several descriptors at once, with a bound.
//!
//! For who has few of them and no event loop; the daemon and servers have their own. Must not know what the
//! descriptors are.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;

use super::error::SocketError;

/// Waits until at least one descriptor is readable or at its end, or `most` is over (`None`: never),
/// and says which ones are.
///
/// # Errors
/// When the kernel refuses.
pub fn poll(fds: &[BorrowedFd<'_>], most: Option<Duration>) -> Result<Vec<bool>, SocketError> {
    let mut asked: Vec<_> = fds
        .iter()
        .map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN))
        .collect();
    let deadline = most.map(|most| std::time::Instant::now() + most);
    loop {
        let left = deadline.map(|deadline| {
            let left = deadline.saturating_duration_since(std::time::Instant::now());
            rustix::time::Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: i64::from(left.subsec_nanos()),
            }
        });
        match rustix::event::poll(&mut asked, left.as_ref()) {
            Ok(_) => return Ok(asked.iter().map(|fd| !fd.revents().is_empty()).collect()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(SocketError::System("wait for descriptors", errno)),
        }
    }
}
