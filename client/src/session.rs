//! This process's session with its server: the one state that the library has.
//!
//! [`session`] gives it, or says why there is none: cuInit has not succeeded, or this process is a
//! fork's child of one in which it has. The session is made once and never freed, because entry
//! points are called until the process is gone.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use std::sync::{Mutex, MutexGuard, PoisonError};

use cuda_abi::CUresult;
use cuda_abi::facts::{ARENA, DeviceFacts};
use cuda_abi::operations::{Request, WindowOf, WindowOfReply};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use transport::memory::{Mapping, Sealed};
use transport::session::{ClientEnd, Reply, Written};

use crate::array::Arrays;
use crate::context::Contexts;
use crate::event::Events;
use crate::external::Externals;
use crate::function::Functions;
use crate::graph::Graphs;
use crate::host::Callers;
use crate::link::Links;
use crate::managed;
use crate::memory::Ranges;
use crate::module::{Libraries, Modules};
use crate::output::Output;
use crate::pool::Pools;
use crate::references::References;
use crate::registered::Registered;
use crate::staging::Staged;
use crate::stream::Streams;
use crate::tensor_map::TensorMaps;
use crate::virtual_memory::VirtualMemory;
use crate::windows::Windows;

/// Where the address of the session is: on a page that the kernel wipes in a fork's child, so that
/// the child finds null there without asking anybody. Null itself before the first cuInit.
static PAGE: AtomicPtr<AtomicPtr<Session>> = AtomicPtr::new(std::ptr::null_mut());

/// Set once the process has begun to end.
static LEFT: AtomicBool = AtomicBool::new(false);

/// All that belongs to one attachment.
#[derive(Debug)]
pub(crate) struct Session {
    link: ClientEnd,
    /// Set once the session was found over; from then on everything gives the error of that.
    closed: AtomicBool,
    /// The devices that this program may see, by its ordinals.
    pub devices: Vec<Device>,
    /// Addresses of page-locked host memory.
    pub host: std::ops::Range<u64>,
    /// The memory that lies there.
    pub host_memory: Sealed,
    pub contexts: Contexts,
    pub streams: Streams,
    pub events: Events,
    pub modules: Modules,
    pub libraries: Libraries,
    pub functions: Functions,
    pub arrays: Arrays,
    pub references: Mutex<References>,
    pub links: Links,
    pub ranges: Ranges,
    pub staged: Staged,
    pub output: Output,
    pub callers: Callers,
    pub graphs: Graphs,
    pub registered: Registered,
    pub advice: managed::Advice,
    pub pools: Pools,
    pub virtual_memory: VirtualMemory,
    pub externals: Externals,
    pub tensor_maps: TensorMaps,
    /// Other processes' memory that is open, by address, and how often.
    imports: Mutex<BTreeMap<u64, u32>>,
    /// Set once any was; read without the lock by copies.
    any_imports: AtomicBool,
    /// Addresses of device memory.
    pub windows: Windows,
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

/// The session of this process.
///
/// # Errors
/// CUDA_ERROR_NOT_INITIALIZED before cuInit has succeeded, and in a fork's child of a process in
/// which it has; CUDA_ERROR_DEINITIALIZED once the process ends.
#[inline]
pub(crate) fn session() -> Result<&'static Session, CUresult> {
    let page = PAGE.load(Ordering::Acquire);
    if page.is_null() {
        return Err(CUresult::ERROR_NOT_INITIALIZED);
    }
    // SAFETY: PAGE is null or points to the page that `publish` made, which is never unmapped; zeroed
    // by a fork it holds a null pointer, else what `publish` wrote.
    let session = unsafe { &*page }.load(Ordering::Acquire);
    // SAFETY: the pointer is null or comes from a leaked box, so it is valid for ever.
    unsafe { session.as_ref() }.ok_or_else(|| {
        if LEFT.load(Ordering::Relaxed) {
            CUresult::ERROR_DEINITIALIZED
        } else {
            CUresult::ERROR_NOT_INITIALIZED
        }
    })
}

/// Takes the session out of reach, because the process ends, and gives it for a last word.
pub(crate) fn withdraw() -> Option<&'static Session> {
    let session = session().ok()?;
    LEFT.store(true, Ordering::Relaxed);
    let page = PAGE.load(Ordering::Acquire);
    // SAFETY: as in `session`, which has just found a session on the page.
    unsafe { &*page }.store(std::ptr::null_mut(), Ordering::Release);
    Some(session)
}

/// Whether cuInit succeeded in this process or in the one that it was forked from.
pub(crate) fn was_published() -> bool {
    !PAGE.load(Ordering::Acquire).is_null()
}

/// Makes a session this process's. To be called once; the caller holds the lock of cuInit.
///
/// # Errors
/// CUDA_ERROR_OUT_OF_MEMORY when the page cannot be made.
pub(crate) fn publish(session: Session) -> Result<(), CUresult> {
    let bytes = rustix::param::page_size();
    // SAFETY: a new anonymous mapping at an address of the kernel's choice touches nothing of ours.
    let page = unsafe {
        rustix::mm::mmap_anonymous(
            std::ptr::null_mut(),
            bytes,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE,
        )
    }
    .map_err(|_| CUresult::ERROR_OUT_OF_MEMORY)?;
    // SAFETY: the range is the mapping made above; wiping it in children is its purpose.
    unsafe { rustix::mm::madvise(page, bytes, Advice::LinuxWipeOnFork) }
        .map_err(|_| CUresult::ERROR_OPERATING_SYSTEM)?;
    let page = page.cast::<AtomicPtr<Session>>();
    // SAFETY: the page is ours, zeroed (a null pointer) and aligned.
    unsafe { &*page }.store(Box::into_raw(Box::new(session)), Ordering::Release);
    PAGE.store(page, Ordering::Release);
    Ok(())
}

impl Session {
    /// A session over an open link.
    pub(crate) fn new(
        link: ClientEnd,
        devices: Vec<Device>,
        all_devices: u32,
        host: std::ops::Range<u64>,
        host_mapping: Mapping,
        host_memory: Sealed,
        windows: Windows,
    ) -> Self {
        let pools = Pools::new(&devices);
        Self {
            link,
            closed: AtomicBool::new(false),
            contexts: Contexts::new(&devices, all_devices),
            devices,
            host,
            host_memory,
            streams: Streams::new(),
            events: Events::new(),
            modules: Modules::new(),
            libraries: Libraries::new(),
            functions: Functions::new(),
            arrays: Arrays::default(),
            references: Mutex::default(),
            links: Links::default(),
            ranges: Ranges::default(),
            staged: Staged::default(),
            output: Output::default(),
            callers: Callers::default(),
            graphs: Graphs::new(),
            registered: Registered::default(),
            advice: managed::Advice::default(),
            pools,
            virtual_memory: VirtualMemory::default(),
            externals: Externals::default(),
            tensor_maps: TensorMaps::default(),
            imports: Mutex::default(),
            any_imports: AtomicBool::new(false),
            windows,
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
        crate::log::log!("the server gave host memory at {base:#x}, outside of the window");
        Err(CUresult::ERROR_UNKNOWN)
    }

    /// Makes sure that an address of device memory that the server gave can be nothing of the program's:
    /// that its window is reserved here.
    ///
    /// # Errors
    /// CUDA_ERROR_OUT_OF_MEMORY when it cannot be, and as [`Session::call`].
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

    /// The device with this ordinal.
    pub(crate) fn device(&self, ordinal: i32) -> Result<&Device, CUresult> {
        usize::try_from(ordinal)
            .ok()
            .and_then(|ordinal| self.devices.get(ordinal))
            .ok_or(CUresult::ERROR_INVALID_DEVICE)
    }

    /// Other processes' memory that is open, by address, and how often.
    pub(crate) fn imports(&self) -> MutexGuard<'_, BTreeMap<u64, u32>> {
        self.imports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds other processes' memory that is open now to what [`Session::imports`] gave.
    pub(crate) fn add_import(&self, imports: &mut BTreeMap<u64, u32>, address: u64) {
        imports.insert(address, 1);
        self.any_imports.store(true, Ordering::Relaxed);
    }

    /// Whether any other process's memory is open, or was.
    pub(crate) fn has_imports(&self) -> bool {
        self.any_imports.load(Ordering::Relaxed)
    }

    /// The transport.
    pub(crate) fn link(&self) -> &ClientEnd {
        &self.link
    }

    /// Remembers that the session is over, and gives the error for it: MPS_CLIENT_TERMINATED when
    /// the operator ended it, else MPS_RPC_FAILURE.
    #[cold]
    fn lost(&self) -> CUresult {
        let code = match self.link.closed() {
            Some(CUresult::ERROR_MPS_CLIENT_TERMINATED) => CUresult::ERROR_MPS_CLIENT_TERMINATED,
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

    /// The same with data.
    pub(crate) fn post_with<R: Request>(&self, request: &R, data: &[u8]) -> Result<(), CUresult> {
        self.check_open()?;
        self.link
            .post(0, 0, request, &[data])
            .map_err(|_| self.lost())
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

    /// Waits until a stream may take one record more; whoever has it in hand does so.
    #[inline]
    pub(crate) fn wait_for_depth(&self, slot: u32, sequence: u64) -> Result<(), CUresult> {
        self.link
            .wait_for_depth(slot, sequence)
            .map_err(|_| self.lost())
    }

    /// Sends a request to its place in a stream that the caller has in hand.
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

    /// As [`Session::post_at`], of a request that was written down before.
    pub(crate) fn post_written_at(
        &self,
        slot: u32,
        sequence: u64,
        written: &Written,
    ) -> Result<(), CUresult> {
        self.link
            .post_written(slot, sequence, written)
            .map_err(|_| self.lost())
    }

    /// Whether a stream has come as far as `sequence`.
    pub(crate) fn reached(&self, slot: u32, sequence: u64) -> bool {
        self.link.completed(slot) >= sequence
    }

    /// Waits until a stream has come as far as `sequence`.
    pub(crate) fn wait(&self, slot: u32, sequence: u64) -> Result<(), CUresult> {
        if !self.reached(slot, sequence) {
            self.check_open()?;
            self.link.wait(slot, sequence).map_err(|_| self.lost())?;
        }
        // Every call that waits for work is one at which CUDA shows what kernels have printed.
        self.show_output();
        Ok(())
    }

    /// What became of a context's work: the error that it died of, or, once, the error of the last
    /// operation that was refused.
    pub(crate) fn outcome(&self, context: u32) -> Result<(), CUresult> {
        self.check_fault(context)?;
        let refused = self.link.refused(context);
        match self.contexts.refused(context, refused) {
            true => CUresult(refused & 0xffff).ok(),
            false => Ok(()),
        }
    }

    /// The error that a context died of, if it did.
    #[inline]
    pub(crate) fn check_fault(&self, context: u32) -> Result<(), CUresult> {
        self.link.fault(context).ok()
    }
}
