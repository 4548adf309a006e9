//! A context: what dies together when a kernel faults.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use engine::{CUresult, Observer};

use crate::services::Services;

/// One context of a client.
#[derive(Debug)]
pub(crate) struct Context {
    /// Its id, which the client chose.
    pub(crate) id: u32,
    /// The device that it is on.
    pub(crate) device: u32,
    /// Percent of the device that it has at most.
    pub(crate) part: f32,
    /// Other devices whose memory its kernels may touch, as bits.
    pub(crate) peers: AtomicU32,
    /// Ends the context's running grids.
    pub(crate) cancel: Arc<AtomicBool>,
    /// 0, or why every operation fails.
    code: AtomicU32,
    observer: Arc<dyn Observer>,
    /// What its kernels print, and their heap.
    pub(crate) services: Arc<Services>,
}

impl Context {
    pub(crate) fn new(id: u32, device: u32, part: f32, observer: Arc<dyn Observer>) -> Self {
        Self {
            id,
            device,
            part,
            peers: AtomicU32::new(0),
            cancel: Arc::default(),
            code: AtomicU32::new(0),
            services: Arc::new(Services::new(Arc::clone(&observer))),
            observer,
        }
    }

    /// Whether operations can still be carried out.
    ///
    /// # Errors
    /// What the context died of.
    pub(crate) fn check(&self) -> Result<(), CUresult> {
        match self.code.load(Ordering::Acquire) {
            0 => Ok(()),
            code => Err(CUresult(code)),
        }
    }

    /// Kills the context: its grids are cancelled, and all that it was yet to do fails with `code`.
    /// The first death counts, and is what is given back.
    pub(crate) fn fault(&self, code: CUresult, text: &str) -> CUresult {
        let first = self
            .code
            .compare_exchange(0, code.0, Ordering::AcqRel, Ordering::Acquire);
        if let Err(earlier) = first {
            return CUresult(earlier);
        }
        self.cancel.store(true, Ordering::Relaxed);
        self.observer.fault(self.id, code, text);
        code
    }

    /// Ends the context on request: running work is cancelled and nobody is told of a fault.
    pub(crate) fn destroy(&self) {
        let _ = self.code.compare_exchange(
            0,
            CUresult::ERROR_CONTEXT_IS_DESTROYED.0,
            Ordering::AcqRel,
            Ordering::Acquire,
        );
        self.cancel.store(true, Ordering::Relaxed);
    }

    /// What cancelled work gives.
    pub(crate) fn cancelled(&self) -> CUresult {
        self.check()
            .err()
            .unwrap_or(CUresult::ERROR_CONTEXT_IS_DESTROYED)
    }
}
