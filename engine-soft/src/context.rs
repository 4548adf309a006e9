//! A context: what dies together when a kernel faults.
//!
//! Owns the fault, and what a kernel of the context is granted. Called by streams and grids. Must not know what
//! they run.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use engine::{CUresult, Guilt, Observer};
use protocol::limits;

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
    /// What its kernels print, and their heap: of a green context its device's primary one's.
    pub(crate) services: Arc<Services>,
    /// Its kernels are those of the device's primary context.
    is_green: bool,
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
            is_green: false,
        }
    }

    /// Makes it a green context, with the kernels of its device's primary one.
    pub(crate) fn of_home(self, home: &Self) -> Self {
        Self {
            services: Arc::clone(&home.services),
            peers: AtomicU32::new(home.peers.load(Ordering::Relaxed)),
            is_green: true,
            ..self
        }
    }

    /// Whether it runs the kernels of a context.
    pub(crate) fn runs_kernels_of(&self, other: &Self) -> bool {
        let of_home = self.is_green && other.device == self.device && other.id == self.device;
        std::ptr::eq(self, other) || of_home
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
        let text = format!("{text}. No other client is affected.");
        self.observer.fault(self.id, code, Guilt::Guilty, &text);
        code
    }

    /// A kernel has run for longer than its client's may.
    pub(crate) fn overran(&self, kernel: &str, ran: Duration, limit: Duration) {
        let limit = limits::kernel_time_text(limit);
        let ran = ran.as_secs_f64();
        let text =
            format!("kernel {kernel} ran for {ran:.3} s, and its client's may run for {limit}");
        let _ = self.fault(CUresult::ERROR_LAUNCH_TIMEOUT, &text);
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
