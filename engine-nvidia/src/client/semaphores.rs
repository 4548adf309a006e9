//! A client's semaphores of other interfaces: taking them in, waits for them, and letting them go.
//!
//! A wait is given to the driver in a stream that has nothing else in it, behind it a word is written, and whoever asks
//! looks at the word: the client's own stream is held meanwhile by the session, so that no other stream stands behind
//! a wait of which nobody knows when it ends. Signals are operations of the client's own streams.
//!
//! Called by the client's operations. Must not know which streams are held, nor why a client may have a semaphore.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use cuda_abi::types::{CU_STREAM_NON_BLOCKING, CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS, CUstream};
use engine::CUresult;
use protocol::operations::{At, SemaphoreImport, SemaphoreSignal, SemaphoreWait};

use super::{MOST_OBJECTS, NvidiaClient};
use crate::device::fence::{Fence, has_reached};
use crate::submit::command::CommandKind;
use crate::submit::semaphore::{Semaphore, Signal};
use crate::sync::Handle;

/// Waits of one client that the driver has at a time. What is more begins when one of them is over.
const MOST_WAITS: usize = 64;

/// A client's semaphores.
#[derive(Debug, Default)]
pub(super) struct Semaphores {
    /// By the client's handle.
    imported: HashMap<u64, Arc<Semaphore>>,
    /// By the place in the client's stream.
    waits: HashMap<At, PendingWait>,
}

/// A wait that the driver has.
#[derive(Debug)]
struct PendingWait {
    stream: Handle<CUstream>,
    done: Fence,
    fence_value: u32,
    semaphore: Arc<Semaphore>,
}

impl Semaphores {
    fn get(&self, semaphore: u64) -> Result<&Arc<Semaphore>, CUresult> {
        let found = self.imported.get(&semaphore);
        found.ok_or(CUresult::ERROR_INVALID_HANDLE)
    }

    /// As [`engine::Client::semaphore_wait`].
    pub(super) fn wait(&mut self, at: At, request: &SemaphoreWait) -> Result<(), CUresult> {
        if !self.waits.contains_key(&at) {
            if self.waits.len() >= MOST_WAITS {
                return Err(CUresult::ERROR_NOT_READY);
            }
            let semaphore = Arc::clone(self.get(request.semaphore)?);
            let wait = PendingWait::begin(semaphore, request.value)?;
            self.waits.insert(at, wait);
        }
        let wait = self.waits.get(&at).ok_or(CUresult::ERROR_UNKNOWN)?;
        wait.semaphore.device().check()?;
        if !has_reached(wait.done.load(), wait.fence_value) {
            return Err(CUresult::ERROR_NOT_READY);
        }
        if let Some(wait) = self.waits.remove(&at) {
            wait.end();
        }
        Ok(())
    }

    /// As [`engine::Client::semaphore_destroy`].
    pub(super) fn destroy(&mut self, semaphore: u64) {
        self.imported.remove(&semaphore);
    }
}

impl PendingWait {
    fn begin(semaphore: Arc<Semaphore>, value: u64) -> Result<Self, CUresult> {
        let device = Arc::clone(semaphore.device());
        let driver = device.enter()?;
        let done = Fence::new(&device)?;
        // Whoever had the word before left a number in it.
        let fence_value = done.load().wrapping_add(1);
        let mut stream = CUstream::NULL;
        // SAFETY: the pointer is to a local.
        let made = unsafe { driver.cuStreamCreate(&raw mut stream, CU_STREAM_NON_BLOCKING) };
        device.confirm(made)?;
        let params = CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS {
            value,
            nvSciSync: 0,
            key: 0,
            timeoutMs: 0,
            padding: 0,
            reserved0: [0; 10],
            flags: 0,
            reserved1: [0; 16],
        };
        let raw = semaphore.raw();
        // SAFETY: one semaphore with its parameters, which the driver copies; the semaphore lives until the wait is
        // over, by what is made of it here.
        let waits = unsafe {
            driver.cuWaitExternalSemaphoresAsync(&raw const raw, &raw const params, 1, stream)
        };
        if let Err(code) = waits {
            // SAFETY: ours, and nothing is in it.
            let _ = unsafe { driver.cuStreamDestroy_v2(stream) };
            return device.confirm(Err(code));
        }
        let wait = Self {
            stream: Handle(stream),
            done,
            fence_value,
            semaphore,
        };
        // SAFETY: the word is kept until the stream has come to it: `Drop`.
        let written =
            unsafe { driver.cuStreamWriteValue32_v2(stream, wait.done.address(), fence_value, 0) };
        device.confirm(written)?;
        Ok(wait)
    }

    /// Gives back what a wait that is over had.
    fn end(self) {
        if let Ok(driver) = self.semaphore.device().enter() {
            // SAFETY: ours, and nothing is in it any more.
            let _ = unsafe { driver.cuStreamDestroy_v2(self.stream.raw()) };
        }
    }
}

impl NvidiaClient {
    /// See [`engine::Client::semaphore_import`].
    pub(super) fn import_semaphore(
        &mut self,
        request: &SemaphoreImport,
        descriptor: OwnedFd,
    ) -> Result<(), CUresult> {
        let context = Arc::clone(self.context(request.context)?);
        context.check()?;
        let imported = &mut self.semaphores.imported;
        if imported.contains_key(&request.semaphore) {
            return Err(CUresult::ERROR_INVALID_HANDLE);
        }
        if imported.len() >= MOST_OBJECTS {
            return Err(CUresult::ERROR_OUT_OF_MEMORY);
        }
        let semaphore = Semaphore::import(context.device(), request.kind, descriptor)?;
        imported.insert(request.semaphore, Arc::new(semaphore));
        Ok(())
    }

    /// Posts a signal.
    pub(super) fn signal_semaphore(
        &mut self,
        at: At,
        request: &SemaphoreSignal,
    ) -> Result<(), CUresult> {
        let semaphore = self.semaphores.get(request.semaphore);
        let signal = semaphore.map(|semaphore| Signal {
            semaphore: Arc::clone(semaphore),
            value: request.value,
        });
        self.post(at, signal.map(CommandKind::Signal))
    }
}
