//! What a client's modules have in common: how much code they may have, and where what their kernels print goes.
//!
//! Made by the client, kept by its modules, which tell it when kernels may have printed. Must not know what launches them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cuda_abi::CUresult;
use engine::Observer;

use crate::code::budget::{CodeBudget, CodeCharge};
use crate::code::output::{Output, Ring};

/// The part of a client that its modules share.
#[derive(Debug)]
pub(crate) struct ClientCode {
    observer: Arc<dyn Observer>,
    budget: Arc<CodeBudget>,
    output: Output,
    /// The client is going: nothing is reported any more.
    closed: AtomicBool,
}

impl ClientCode {
    /// No code yet, on any of so many devices.
    pub(crate) fn new(observer: Arc<dyn Observer>, devices: usize) -> Self {
        Self {
            observer,
            budget: CodeBudget::new(devices),
            output: Output::default(),
            closed: AtomicBool::new(false),
        }
    }

    /// Who gives managed variables their memory, and is told of output.
    pub(crate) fn observer(&self) -> &dyn Observer {
        &*self.observer
    }

    /// What its kernels have printed.
    pub(crate) fn output(&self) -> &Output {
        &self.output
    }

    /// Counts the code of one module more.
    ///
    /// # Errors
    /// CUDA_ERROR_OUT_OF_MEMORY beyond the bound.
    pub(crate) fn charge(&self, device: usize, bytes: usize) -> Result<CodeCharge, CUresult> {
        self.budget.charge(device, bytes)
    }

    /// Takes what kernels have printed into a module's ring, and tells the client.
    pub(crate) fn drain(&self, ring: &Ring) {
        if self.output.drain(ring) && !self.closed.load(Ordering::Acquire) {
            self.observer.output_ready();
        }
    }

    /// Reports nothing from now on.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }
}
