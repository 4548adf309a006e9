//! How long a client's kernels may run: its own limit and its group's, of which the shorter one holds.
//!
//! Set by admission, by changes and with groups; read by the engine's threads. Must not know how a kernel is ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A limit that may be changed while others read it.
#[derive(Debug)]
pub struct KernelTime(AtomicU64);

/// In place of milliseconds: there is no limit.
const UNLIMITED: u64 = u64::MAX;

impl KernelTime {
    /// Sets a limit, or none.
    pub fn set(&self, limit: Option<Duration>) {
        let millis = limit.and_then(|limit| u64::try_from(limit.as_millis()).ok());
        self.0.store(millis.unwrap_or(UNLIMITED), Ordering::Relaxed);
    }

    /// The limit, if there is one.
    #[must_use]
    pub fn get(&self) -> Option<Duration> {
        match self.0.load(Ordering::Relaxed) {
            UNLIMITED => None,
            millis => Some(Duration::from_millis(millis)),
        }
    }
}

impl Default for KernelTime {
    /// None.
    fn default() -> Self {
        Self(AtomicU64::new(UNLIMITED))
    }
}

/// What holds for a client.
#[derive(Debug, Default)]
pub struct ClientKernelTime {
    own: KernelTime,
    group: Option<Arc<KernelTime>>,
}

impl ClientKernelTime {
    /// That of a client with this limit of its own, in a group with that one.
    #[must_use]
    pub fn new(own: Option<Duration>, group: Option<Arc<KernelTime>>) -> Self {
        let all = Self {
            own: KernelTime::default(),
            group,
        };
        all.set_own(own);
        all
    }

    /// Sets the client's own.
    pub fn set_own(&self, limit: Option<Duration>) {
        self.own.set(limit);
    }

    /// What holds now.
    #[must_use]
    pub fn limit(&self) -> Option<Duration> {
        let group = self.group.as_ref().and_then(|group| group.get());
        match (self.own.get(), group) {
            (Some(own), Some(group)) => Some(own.min(group)),
            (own, group) => own.or(group),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shorter_limit_holds_as_it_is_now() {
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        let group = Arc::new(KernelTime::default());
        let client = ClientKernelTime::new(None, Some(group.clone()));
        assert_eq!(client.limit(), None);
        group.set(seconds(5));
        assert_eq!(client.limit(), seconds(5));
        client.set_own(seconds(3));
        assert_eq!(client.limit(), seconds(3));
        client.set_own(seconds(9));
        assert_eq!(client.limit(), seconds(5));
        group.set(None);
        assert_eq!(client.limit(), seconds(9));
        assert_eq!(ClientKernelTime::new(seconds(2), None).limit(), seconds(2));
    }
}
