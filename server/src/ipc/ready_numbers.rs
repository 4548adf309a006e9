//! What of all that an epoll instance watches has something to tell, by the numbers under which it is watched.
//!
//! Called by who watches descriptors of others. Must not know what they are of.

use std::os::fd::OwnedFd;

use rustix::event::epoll;
use rustix::time::Timespec;

/// The numbers, of some at a time; none when there is nothing. Does not wait.
pub(super) fn ready_numbers(epoll: &OwnedFd) -> Vec<u64> {
    let mut events = Vec::with_capacity(64);
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let spare = rustix::buffer::spare_capacity(&mut events);
    if epoll::wait(epoll, spare, Some(&now)).is_err() {
        return Vec::new();
    }
    let numbers = events.iter().map(|event: &epoll::Event| {
        let data = event.data;
        data.u64()
    });
    numbers.collect()
}
