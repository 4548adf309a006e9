//! The connection to the server: requests and their replies, how far the work of streams has come, the
//! devices, and the addresses that are the server's.
//!
//! Made once, by `attach`, and never freed. All parts of the library send through it. It must not know what
//! they keep: no table of the program's objects is reached from here.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use cuda_abi::CUresult;
use cuda_abi::types::CUdevice;
use protocol::device_facts::{ARENA, DeviceFacts};
use protocol::operations::{Object, Request, WindowOf, WindowOfReply};
use transport::memory::{Mapping, Sealed};
use transport::session::{ClientEnd, EncodedRequest, Reply};

use super::address_windows::Windows;
use super::kernel_output::Output;
use super::staging_reclaim::Staged;
use crate::recorder::state;

/// How long a process that ends, or a thread of it, tries to tell the server so.
pub(crate) const LAST_WORD: Duration = Duration::from_secs(1);

/// This process's end of the session.
#[derive(Debug)]
pub(crate) struct Connection {
    link: ClientEnd,
    /// Set once the session was found over; from then on everything gives the error of that.
    closed: AtomicBool,
    /// The devices that this program may see, by its ordinals.
    devices: Vec<Device>,
    /// Addresses of page-locked host memory.
    host: Range<u64>,
    /// The memory that lies there.
    host_memory: Sealed,
    /// Addresses of device memory.
    windows: Windows,
    pub(super) staged: Staged,
    pub(super) output: Output,
    /// Whoever sends a descriptor has this until it is answered: the server takes them in order.
    descriptors: Mutex<()>,
    /// Keeps the host window mapped.
    _host: Mapping,
}

/// A device as the program sees it.
#[derive(Debug)]
pub(crate) struct Device {
    /// Its number for the server, which is also the slot of its primary context.
    pub number: u32,
    /// What there is to know of it.
    pub facts: DeviceFacts,
}

impl Device {
    /// An attribute's value, 0 where the server does not tell it.
    pub(crate) fn attribute(&self, attribute: cuda_abi::types::CUdevice_attribute) -> i32 {
        self.facts.attribute(attribute.0).unwrap_or(0)
    }
}

impl Connection {
    /// The connection over an open link.
    pub(crate) fn new(
        link: ClientEnd,
        devices: Vec<Device>,
        host: Range<u64>,
        host_mapping: Mapping,
        host_memory: Sealed,
        windows: Windows,
    ) -> Self {
        Self {
            link,
            closed: AtomicBool::new(false),
            devices,
            host,
            host_memory,
            windows,
            staged: Staged::default(),
            output: Output::default(),
            descriptors: Mutex::default(),
            _host: host_mapping,
        }
    }

    /// Checks that host memory which the server gave lies in the window that is mapped here.
    ///
    /// # Errors
    /// CUDA_ERROR_UNKNOWN if it does not, with a line in the log.
    pub(crate) fn check_in_host_window(&self, base: u64, bytes: u64) -> Result<(), CUresult> {
        let end = base.checked_add(bytes);
        if self.host.contains(&base) && end.is_some_and(|end| end <= self.host.end) {
            return Ok(());
        }
        crate::log::log!(
            "host memory that the server gave at {base:#x} is refused: it is outside of the window"
        );
        Err(CUresult::ERROR_UNKNOWN)
    }

    /// Makes sure that an address of device memory that the server gave can be nothing of the program's:
    /// that its window is reserved here.
    ///
    /// # Errors
    /// CUDA_ERROR_OUT_OF_MEMORY when it cannot be, and as [`Connection::call`].
    pub(crate) fn reserve_around(&self, address: u64) -> Result<(), CUresult> {
        // What lies elsewhere is the driver's own, such as variables of modules.
        if self.windows.contain(address)
            || self.host.contains(&address)
            || !ARENA.contains(&address)
        {
            return Ok(());
        }
        let WindowOfReply { base, bytes } = self.call(&WindowOf { address })?.fields;
        self.windows.add(base, bytes).map_err(|error| {
            crate::log::log!(
                "no device memory at {base:#x}, where {bytes} bytes of addresses are needed: \
                 {error} (see ulimit -v)"
            );
            CUresult::ERROR_OUT_OF_MEMORY
        })
    }

    /// Whether an address lies in the window of page-locked host memory, given out or not.
    pub(crate) fn is_in_host_window(&self, address: u64) -> bool {
        self.host.contains(&address)
    }

    /// Whether an address lies in a window of device memory, given out or not.
    pub(crate) fn is_in_device_window(&self, address: u64) -> bool {
        self.windows.contain(address)
    }

    /// The memory that is mapped at the host window's addresses.
    pub(crate) fn host_memory(&self) -> BorrowedFd<'_> {
        self.host_memory.as_fd()
    }

    /// Where in that memory an address of the host window lies.
    pub(crate) fn host_offset(&self, address: u64) -> u64 {
        address - self.host.start
    }

    /// The devices that this program may see, by its ordinals. There is one at least.
    pub(crate) fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// The ordinal of the device of which something is true.
    pub(crate) fn ordinal_where(&self, is: impl Fn(&Device) -> bool) -> Option<CUdevice> {
        let ordinal = self.devices.iter().position(is)?;
        i32::try_from(ordinal).ok()
    }

    /// The device with this ordinal.
    pub(crate) fn device(&self, ordinal: i32) -> Result<&Device, CUresult> {
        usize::try_from(ordinal)
            .ok()
            .and_then(|ordinal| self.devices.get(ordinal))
            .ok_or(CUresult::ERROR_INVALID_DEVICE)
    }

    /// The transport.
    pub(crate) fn link(&self) -> &ClientEnd {
        &self.link
    }

    /// Remembers that the session is over, and gives the error for it: MPS_CLIENT_TERMINATED when
    /// the operator ended it, LAUNCH_TIMEOUT when a kernel ran for longer than it may, else MPS_RPC_FAILURE.
    #[cold]
    fn lost(&self) -> CUresult {
        let code = match self.link.closed() {
            Some(
                code @ (CUresult::ERROR_MPS_CLIENT_TERMINATED | CUresult::ERROR_LAUNCH_TIMEOUT),
            ) => code,
            _ => CUresult::ERROR_MPS_RPC_FAILURE,
        };
        if !self.closed.swap(true, Ordering::Relaxed) {
            crate::log::log!(
                "the session is over ({}): every call fails from here on",
                code.0
            );
        }
        code
    }

    /// Whether the server is still there, as far as is known without asking.
    #[inline]
    pub(crate) fn check_open(&self) -> Result<(), CUresult> {
        if self.is_over() {
            return Err(self.lost());
        }
        if self.link.recording() != 0 && !state::is_on() {
            state::request_start();
        }
        Ok(())
    }

    #[inline]
    fn is_over(&self) -> bool {
        // The second is a word that the server writes once, at the end: reading it costs nothing.
        self.closed.load(Ordering::Relaxed) || self.link.closed().is_some()
    }

    /// Looks whether the server is still there; for loops of queries that would never wait.
    pub(crate) fn check_alive(&self) -> Result<(), CUresult> {
        self.check_open()?;
        if self.link.is_alive() {
            Ok(())
        } else {
            Err(self.lost())
        }
    }

    /// Sends a request that has no reply and no place in a stream.
    pub(crate) fn post<R: Request>(&self, request: &R) -> Result<(), CUresult> {
        self.post_with(request, &[])
    }

    /// Sends a request with data that has no reply and no place in a stream.
    pub(crate) fn post_with<R: Request>(&self, request: &R, data: &[u8]) -> Result<(), CUresult> {
        self.check_open()?;
        self.link
            .post(0, 0, request, &[data])
            .map_err(|_| self.lost())
    }

    /// Sends a request whose data is in staging memory now.
    pub(crate) fn post_staged<R: Request>(
        &self,
        request: &R,
        staged: &[u8],
    ) -> Result<(), CUresult> {
        self.check_open()?;
        self.link
            .post_staged(request, staged)
            .map_err(|_| self.lost())
    }

    /// Keeps what was answered at length to the call that made an object, for another server.
    pub(crate) fn keep_answer(&self, object: Object, data: &[u8]) {
        self.link.keep_answer(object, data);
    }

    /// Sends a request and waits for its reply. An error in the reply is an error here.
    pub(crate) fn call<R: Request>(&self, request: &R) -> Result<Reply<R::Reply>, CUresult> {
        self.call_with(request, &[])
    }

    /// A call with data.
    pub(crate) fn call_with<R: Request>(
        &self,
        request: &R,
        data: &[u8],
    ) -> Result<Reply<R::Reply>, CUresult> {
        self.check_open()?;
        let reply = self.link.call(request, &[data]).map_err(|_| self.lost())?;
        reply.status.ok()?;
        Ok(reply)
    }

    /// Sends a descriptor in such a packet, and then the request that is about it, and waits for its reply.
    pub(crate) fn call_with_descriptor<R: Request>(
        &self,
        packet: &[u8],
        descriptor: BorrowedFd<'_>,
        request: &R,
    ) -> Result<Reply<R::Reply>, CUresult> {
        let _one = self
            .descriptors
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let sent = self.link.connection().send(packet, &[descriptor]);
        sent.map_err(|error| {
            crate::log::log!("a descriptor cannot be sent to the server: {error}");
            CUresult::ERROR_MPS_RPC_FAILURE
        })?;
        self.call(request)
    }

    /// Waits until a stream may take one record more; whoever holds its guard does so.
    #[inline]
    pub(crate) fn wait_for_depth(&self, slot: u32, sequence: u64) -> Result<(), CUresult> {
        self.link
            .wait_for_depth(slot, sequence)
            .map_err(|_| self.lost())
    }

    /// Sends a request to its place in a stream whose guard the caller holds.
    #[inline]
    pub(crate) fn post_at<R: Request>(
        &self,
        slot: u32,
        sequence: u64,
        request: &R,
        data: &[&[u8]],
    ) -> Result<(), CUresult> {
        self.link
            .post(slot, sequence, request, data)
            .map_err(|_| self.lost())
    }

    /// As [`Connection::post_at`], of a request that was written down before.
    pub(crate) fn post_encoded_at(
        &self,
        slot: u32,
        sequence: u64,
        written: &EncodedRequest,
    ) -> Result<(), CUresult> {
        self.link
            .post_encoded(slot, sequence, written)
            .map_err(|_| self.lost())
    }

    /// Whether a stream has reached `sequence`.
    pub(crate) fn reached(&self, slot: u32, sequence: u64) -> bool {
        self.link.has_reached(slot, sequence)
    }

    /// Waits until a stream has reached `sequence`.
    pub(crate) fn wait(&self, slot: u32, sequence: u64) -> Result<(), CUresult> {
        if !self.reached(slot, sequence) {
            self.check_open()?;
            self.link.wait(slot, sequence).map_err(|_| self.lost())?;
        }
        // Every call that waits for work is one at which CUDA shows what kernels have printed.
        self.print_kernel_output();
        Ok(())
    }

    /// The error that a context died of, if it did.
    #[inline]
    pub(crate) fn check_fault(&self, context: u32) -> Result<(), CUresult> {
        self.link.fault(context).ok()
    }
}
