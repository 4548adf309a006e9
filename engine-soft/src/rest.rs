//! Whether streams begin anything: not while a server that is about to hand its clients over waits for what they have begun.
//!
//! Owns the word that streams look at before each operation, and knows all streams. Kept with the devices, called by the engine. Must not
//! know what a stream is beyond that.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

/// What carries out operations one after the other.
pub(crate) trait InOrder: std::fmt::Debug + Send + Sync {
    /// Whether it is carrying something out.
    fn has_begun(&self) -> bool;

    /// Begins what was held back.
    fn go_on(self: Arc<Self>);
}

/// Whether streams begin anything.
#[derive(Debug, Default)]
pub(crate) struct Rest {
    is_asked: AtomicBool,
    streams: Mutex<Streams>,
}

#[derive(Debug, Default)]
struct Streams {
    all: Vec<Weak<dyn InOrder>>,
    /// How many there may be before those that are gone are looked for.
    most: usize,
}

impl Rest {
    /// A stream is to be waited for.
    pub(crate) fn add(&self, stream: Weak<dyn InOrder>) {
        let mut streams = self.streams.lock();
        if streams.all.len() >= streams.most {
            streams.all.retain(|stream| stream.strong_count() > 0);
            streams.most = 2 * streams.all.len() + 64;
        }
        streams.all.push(stream);
    }

    /// Whether nothing is to be begun. A stream asks with its state locked, as [`Rest::begin`] looks at it, so that one of the two sees
    /// the other.
    pub(crate) fn is_asked(&self) -> bool {
        self.is_asked.load(Ordering::Relaxed)
    }

    /// Lets streams begin nothing more, and says whether all that they have begun is over.
    pub(crate) fn begin(&self) -> bool {
        self.is_asked.store(true, Ordering::Relaxed);
        self.living().iter().all(|stream| !stream.has_begun())
    }

    /// Lets streams go on.
    pub(crate) fn end(&self) {
        self.is_asked.store(false, Ordering::Relaxed);
        for stream in self.living() {
            stream.go_on();
        }
    }

    fn living(&self) -> Vec<Arc<dyn InOrder>> {
        let streams = self.streams.lock();
        streams.all.iter().filter_map(Weak::upgrade).collect()
    }
}
