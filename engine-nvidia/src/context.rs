//! A client's context: which device its work goes to, and whether it still takes any.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use cuda_abi::CUresult;
use engine::Observer;

use crate::device::Device;
use crate::gate::Running;

/// One context of a client. All contexts on a device share the driver's one.
#[derive(Debug)]
pub(crate) struct Context {
    id: u32,
    device: Arc<Device>,
    observer: Arc<dyn Observer>,
    /// What its streams have with the driver.
    running: Arc<Running>,
    /// It was destroyed on request.
    destroyed: AtomicBool,
    /// 0, or what the client was told that its device died of.
    fault: AtomicU32,
}

impl Context {
    pub(crate) fn new(id: u32, device: Arc<Device>, observer: Arc<dyn Observer>) -> Self {
        Self {
            id,
            running: device.gate().join(),
            device,
            observer,
            destroyed: AtomicBool::new(false),
            fault: AtomicU32::new(0),
        }
    }

    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Counts one more operation that goes to the driver, unless the device's gate is closed.
    pub(crate) fn pass_gate(&self) -> bool {
        self.device.gate().pass(&self.running)
    }

    /// An operation that passed the gate is done.
    pub(crate) fn leave(&self) {
        self.running.leave();
    }

    /// Whether it takes work.
    ///
    /// # Errors
    /// Why not.
    pub(crate) fn check(&self) -> Result<(), CUresult> {
        self.device.check()?;
        if self.destroyed.load(Ordering::Acquire) {
            return Err(CUresult::ERROR_CONTEXT_IS_DESTROYED);
        }
        Ok(())
    }

    /// Whether what the driver has of it can still complete. The client is told of a fault before its
    /// work is reported as failed.
    ///
    /// # Errors
    /// What it died of.
    pub(crate) fn check_told(&self) -> Result<(), CUresult> {
        if self.destroyed.load(Ordering::Acquire) {
            return self.device.check();
        }
        match self.fault.load(Ordering::Acquire) {
            0 => Ok(()),
            code => Err(CUresult(code)),
        }
    }

    /// Ends it on request.
    pub(crate) fn destroy(&self) {
        self.destroyed.store(true, Ordering::Release);
    }

    /// Tells the client, once, that its device has died. `running` are the kernels that it had on it.
    pub(crate) fn fault(&self, code: CUresult, running: &str) {
        if self.fault.load(Ordering::Acquire) != 0 {
            return;
        }
        let text = format!(
            "device {} ({}) died: {code}; every client of this server on it has lost its context; \
             this client's kernels at the time: {running}",
            self.device.ordinal(),
            self.device.facts().name,
        );
        let first = self
            .fault
            .compare_exchange(0, code.0, Ordering::AcqRel, Ordering::Acquire);
        if first.is_ok() {
            self.observer.fault(self.id, code, &text);
        }
    }
}
