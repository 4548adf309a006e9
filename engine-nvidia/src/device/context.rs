//! A client's context: which device its work goes to, and whether it still takes any.
//!
//! Owns which part of the device its kernels stay in, and its fault. Called by streams and by the SM allocator.
//! Must not know what its work is.

use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use cuda_abi::CUresult;
use cuda_abi::types::{CUcontext, CUstream};
use engine::{Guilt, Observer};
use protocol::operations::CONTEXT_GREEN;

use crate::device::Device;
use crate::device::duration_table::DurationTable;
use crate::device::fault_record::{FaultRecord, Told};
use crate::device::quiesce::{PATIENCE, Running};
use crate::device::work_signature::WorkSignature;
use crate::driver::Driver;
use crate::partition::green_context::GreenContext;
use crate::sync::Handle;

/// One context of a client. All contexts on a device share the driver's one.
#[derive(Debug)]
pub(crate) struct Context {
    id: u32,
    device: Arc<Device>,
    observer: Arc<dyn Observer>,
    /// What its streams have with the driver.
    running: Arc<Running>,
    durations: DurationTable,
    /// The part of the device that it asked for itself, in millionths; 0 if it did not.
    share: u32,
    /// Its kernels are those of the device's primary context.
    is_green: bool,
    /// The part of the device that its kernels stay in.
    part: Mutex<Arc<GreenContext>>,
    /// Counts changes of the part.
    epoch: AtomicU64,
    /// It was destroyed on request.
    destroyed: AtomicBool,
    /// 0, or what the client was told that its device died of.
    fault: AtomicU32,
    /// Of a fenced client, where its kernels' checks write, and whether the client was told what.
    record: Option<Arc<FaultRecord>>,
    denied: Told,
}

/// One of the driver's streams, as it was made.
pub(crate) struct DriverStream {
    pub(crate) raw: Handle<CUstream>,
    /// Of the context at that time.
    pub(crate) epoch: u64,
    /// The context in which graphs of its kernels are made, if there is one.
    pub(crate) home: Option<Handle<CUcontext>>,
}

impl Context {
    /// A context whose kernels have all of the device. `share` and `flags` are as in
    /// [`ContextCreate`](protocol::operations::ContextCreate).
    pub(crate) fn new(
        id: u32,
        device: Arc<Device>,
        (share, flags): (u32, u32),
        observer: Arc<dyn Observer>,
        record: Option<Arc<FaultRecord>>,
    ) -> Self {
        Self {
            id,
            share,
            is_green: flags & CONTEXT_GREEN != 0,
            part: Mutex::new(device.parts().whole()),
            epoch: AtomicU64::new(0),
            running: device.gate().add_context(&observer),
            durations: DurationTable::default(),
            device,
            observer,
            destroyed: AtomicBool::new(false),
            fault: AtomicU32::new(0),
            record,
            denied: Told::default(),
        }
    }

    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Whether what its kernels were denied is to be looked at when they end.
    pub(crate) fn is_fenced(&self) -> bool {
        self.record.is_some()
    }

    /// Whether it runs the kernels of a context.
    pub(crate) fn runs_kernels_of(&self, other: &Self) -> bool {
        let of_home = self.is_green
            && Arc::ptr_eq(&self.device, &other.device)
            && other.id as usize == self.device.number();
        std::ptr::eq(self, other) || of_home
    }

    /// The per cent of the device that it asked for itself.
    pub(crate) fn percentage(&self) -> f32 {
        match self.share {
            0 => 100.0,
            share => share as f32 / 10_000.0,
        }
    }

    /// From the next operation of each stream on that finds the stream empty, kernels stay in this part.
    pub(crate) fn set_partition(&self, part: Arc<GreenContext>) {
        let mut now = self.part.lock();
        if !Arc::ptr_eq(&now, &part) {
            *now = part;
            self.epoch.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// The same, with the priorities that they have from then on.
    pub(crate) fn remake_streams(&self) {
        self.epoch.fetch_add(1, Ordering::SeqCst);
    }

    /// How often the part or priorities have changed: streams that were made before are to be made again.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::SeqCst)
    }

    /// Makes one of the driver's streams in the part.
    ///
    /// # Errors
    /// The driver's status.
    pub(crate) fn make_stream(
        &self,
        driver: &Driver,
        priority: i32,
    ) -> Result<DriverStream, CUresult> {
        // Of one moment: if the part changes meanwhile, the stream is one of an epoch before.
        let (part, epoch) = {
            let part = self.part.lock();
            (Arc::clone(&part), self.epoch())
        };
        Ok(DriverStream {
            raw: Handle(part.stream(driver, priority)?),
            epoch,
            home: part.home(),
        })
    }

    /// How long its operations take.
    pub(crate) fn durations(&self) -> &DurationTable {
        &self.durations
    }

    /// Counts one more operation that goes to the driver, unless the device's gate is closed. What `goes_on` was begun in part.
    pub(crate) fn pass_gate(&self, goes_on: bool) -> bool {
        self.device.gate().try_pass(&self.running, goes_on)
    }

    /// Tells the gate of operations that passed it, the first of which runs now and each other after those before it, if they
    /// are known to take long.
    pub(crate) fn expect_durations(&self, operations: impl Iterator<Item = WorkSignature>) {
        let means = operations.filter_map(|sort| self.durations.mean(sort));
        let together: Duration = means.sum();
        if together > PATIENCE {
            // Half as much again: a mean of few may be of operations whose ends were seen together.
            self.running
                .expect_duration(together + together / 2 + PATIENCE);
        }
    }

    /// Whether the device's gate is closed for it now.
    pub(crate) fn is_gate_closed(&self) -> bool {
        self.device.gate().is_closed_to(&self.running)
    }

    /// Whether another client is about to load code.
    pub(crate) fn is_load_of_others_expected(&self) -> bool {
        self.device.gate().is_load_of_others_expected(&self.running)
    }

    /// Whether other contexts had work with the driver a moment ago. `now` is of CLOCK_MONOTONIC.
    pub(crate) fn others_run(&self, now: u64) -> bool {
        self.device.gate().others_run(&self.running, now)
    }

    /// Whether other contexts may have work with the driver now.
    pub(crate) fn others_may_run(&self) -> bool {
        self.device.gate().others_may_run(&self.running)
    }

    /// An operation that passed the gate is done.
    pub(crate) fn operation_done(&self) {
        self.running.operation_done();
    }

    /// The client has gone.
    pub(crate) fn abandon(&self) {
        self.running.client_gone();
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
        self.denied.check()
    }

    /// Where the checks of a fenced client's kernels write.
    pub(crate) fn record(&self) -> Option<&Arc<FaultRecord>> {
        self.record.as_ref()
    }

    /// Whether a kernel of it was not let do something. The client is told, once, and from then on it takes no more work;
    /// what the driver has runs to its end.
    ///
    /// # Errors
    /// What it died of.
    pub(crate) fn check_record(&self) -> Result<(), CUresult> {
        let Some(record) = &self.record else {
            return Ok(());
        };
        self.denied.check()?;
        let Some(denied) = record.read() else {
            return Ok(());
        };
        let code = denied.code();
        if self.denied.is_first(code) {
            let text = format!(
                "{denied}, was stopped by its fence: {code}; nobody else on device {} ({}) is concerned",
                self.device.ordinal(),
                self.device.facts().name,
            );
            self.observer.fault(self.id, code, Guilt::Guilty, &text);
        }
        Err(code)
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
    pub(crate) fn fault(&self, code: CUresult, running: &[String]) {
        if self.fault.load(Ordering::Acquire) != 0 {
            return;
        }
        // The driver does not say whose it was.
        let (guilt, running) = match running {
            [] => (Guilt::Innocent, "none".to_owned()),
            names => (Guilt::Suspect, names.join(", ")),
        };
        let text = format!(
            "device {} ({}) died: {code}; the context that all clients of this server have on it is lost; \
             this client's kernels at the time: {running}; {}",
            self.device.ordinal(),
            self.device.facts().name,
            advice(code),
        );
        let first = self
            .fault
            .compare_exchange(0, code.0, Ordering::AcqRel, Ordering::Acquire);
        if first.is_ok() {
            self.observer.fault(self.id, code, guilt, &text);
        }
    }
}

/// What whoever reads of a device's death is to do.
fn advice(code: CUresult) -> &'static str {
    match code {
        CUresult::ERROR_ECC_UNCORRECTABLE => {
            "its memory is damaged: see `nvidia-smi -q -d ECC,ROW_REMAPPER`, then reset the GPU or restart the \
             machine"
        }
        CUresult::ERROR_NVLINK_UNCORRECTABLE => {
            "a link between GPUs has failed: see `nvidia-smi nvlink -e`, then restart the machine"
        }
        CUresult::ERROR_MPS_CONNECTION_FAILED
        | CUresult::ERROR_MPS_RPC_FAILURE
        | CUresult::ERROR_MPS_SERVER_NOT_READY
        | CUresult::ERROR_MPS_CLIENT_TERMINATED => {
            "NVIDIA's MPS beneath this server has ended or been ended, and the contexts of all servers on it with \
             it; `openmps control underlay` says what holds now"
        }
        CUresult::ERROR_ASSERT
        | CUresult::ERROR_HARDWARE_STACK_ERROR
        | CUresult::ERROR_ILLEGAL_ADDRESS
        | CUresult::ERROR_ILLEGAL_INSTRUCTION
        | CUresult::ERROR_INVALID_ADDRESS_SPACE
        | CUresult::ERROR_INVALID_PC
        | CUresult::ERROR_LAUNCH_FAILED
        | CUresult::ERROR_LAUNCH_TIMEOUT
        | CUresult::ERROR_MISALIGNED_ADDRESS => {
            "a kernel did this, and the GPU is well: `compute-sanitizer` finds the place in the program"
        }
        _ => {
            "the GPU or its driver has failed: `dmesg` has an Xid that says why; if `nvidia-smi` does not answer, \
             reset the GPU or restart the machine"
        }
    }
}
