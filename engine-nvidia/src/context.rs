//! A client's context: which device its work goes to, and whether it still takes any.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use cuda_abi::CUresult;
use engine::Observer;

use crate::device::Device;

/// One context of a client. All contexts on a device share the driver's one.
#[derive(Debug)]
pub(crate) struct Context {
    id: u32,
    device: Arc<Device>,
    observer: Arc<dyn Observer>,
    /// 0, or why it takes no work.
    code: AtomicU32,
}

impl Context {
    pub(crate) fn new(id: u32, device: Arc<Device>, observer: Arc<dyn Observer>) -> Self {
        Self {
            id,
            device,
            observer,
            code: AtomicU32::new(0),
        }
    }

    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Whether it takes work.
    ///
    /// # Errors
    /// Why not.
    pub(crate) fn check(&self) -> Result<(), CUresult> {
        match self.code.load(Ordering::Acquire) {
            0 => self.device.check(),
            code => Err(CUresult(code)),
        }
    }

    /// Ends it on request.
    pub(crate) fn destroy(&self) {
        self.end(CUresult::ERROR_CONTEXT_IS_DESTROYED);
    }

    /// Tells the client, once, that its device has died.
    pub(crate) fn fault(&self, code: CUresult) {
        if self.end(code) {
            let text = format!(
                "device {} ({}) died: {code}; every client of this server on it has lost its context",
                self.device.ordinal(),
                self.device.facts().name,
            );
            self.observer.fault(self.id, code, &text);
        }
    }

    fn end(&self, code: CUresult) -> bool {
        self.code
            .compare_exchange(0, code.0, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }
}
