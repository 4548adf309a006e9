//! A client's memory as its operations see it: what an address is, and whether the client has it.
//!
//! Owns the windows, the variables of modules and what was imported. Called by the client and by who plans copies.
//! Must not know streams.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use cuda_abi::CUresult;
use engine::{FurtherWindow, MemoryChunk, MemoryPiece, Observer, Owner, Region, Window};
use protocol::operations::Space;

use crate::device::Device;
use crate::memory::host_window::HostWindow;
use crate::memory::physical_mappings::Physical;
use crate::memory::reach_table::ReachTable;
use crate::memory::shared_block::SharedBlock;
use crate::memory::twin_constants::{TwinConstants, TwinCopy};
use crate::memory::window::DeviceWindow;
use crate::memory::zero_fill::ZeroFillProgress;

/// What kind of memory a range is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoryKind {
    /// That of the GPU of this number: its window, or a module's variable.
    Device(usize),
    /// Page-locked host memory.
    Host,
    /// Staging memory, which is host memory too.
    Staging,
}

/// One client's memory.
#[derive(Debug)]
pub(crate) struct ClientAddressSpace {
    gpus: Vec<Arc<Device>>,
    devices: Vec<DeviceWindow>,
    host: HostWindow,
    staging: HostWindow,
    /// By first address, the bytes and the device of each variable of the client's modules.
    variables: BTreeMap<u64, (u64, usize)>,
    twin_constants: TwinConstants,
    /// Blocks of other clients, by first address, with their devices.
    imports: BTreeMap<u64, (Arc<SharedBlock>, usize)>,
    /// Of a fenced client, what its kernels may reach on each device; of others, nothing.
    tables: Vec<ReachTable>,
}

impl ClientAddressSpace {
    /// Reserves a client's windows.
    ///
    /// # Errors
    /// See [`DeviceWindow::new`].
    pub(crate) fn new(
        devices: &[Arc<Device>],
        windows: &[Window],
        addresses: &Arc<dyn Owner>,
        host: Region,
        staging: Region,
    ) -> Result<Self, CUresult> {
        let first = devices.first().ok_or(CUresult::ERROR_NO_DEVICE)?;
        if windows.len() != devices.len() {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        Ok(Self {
            gpus: devices.to_vec(),
            devices: devices
                .iter()
                .zip(windows)
                .map(|(device, &window)| DeviceWindow::new(device, window, addresses))
                .collect::<Result<_, _>>()?,
            host: HostWindow::new(first, host, addresses),
            staging: HostWindow::new(first, staging, addresses),
            variables: BTreeMap::new(),
            twin_constants: TwinConstants::default(),
            imports: BTreeMap::new(),
            tables: Vec::new(),
        })
    }

    /// The client's device memory is to outlive this process: `observer` is told of its chunks, and these are left of a
    /// former one.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_DEVICE, and as [`DeviceWindow::inherit`].
    pub(crate) fn keep_chunks(
        &mut self,
        observer: &Arc<dyn Observer>,
        chunks: &[MemoryChunk],
    ) -> Result<(), CUresult> {
        for own in &mut self.devices {
            own.keep_chunks(Arc::clone(observer));
        }
        chunks.iter().try_for_each(|chunk| {
            let own = self.devices.get_mut(chunk.device as usize);
            own.ok_or(CUresult::ERROR_INVALID_DEVICE)?.inherit(chunk)
        })
    }

    /// What streams have to wait for before they touch memory.
    pub(crate) fn cleared(&self) -> Vec<Arc<ZeroFillProgress>> {
        self.devices
            .iter()
            .map(|window| Arc::clone(window.cleared()))
            .collect()
    }

    /// The client is fenced: from now on there is a table of what its kernels may reach. `work` is how many of its streams
    /// have some.
    ///
    /// # Errors
    /// CUDA_ERROR_OUT_OF_MEMORY and the like.
    pub(crate) fn fence(&mut self, work: &Arc<AtomicUsize>) -> Result<(), CUresult> {
        for (device, window) in self.gpus.iter().zip(&mut self.devices) {
            window.set_work(Arc::clone(work));
            let (memory, at) = window.create_physical(device.granularity())?;
            self.tables.push(ReachTable::new(memory, at.base));
        }
        Ok(())
    }

    /// What a fenced client's kernels may reach on a device.
    pub(crate) fn table(&self, device: usize) -> Option<&ReachTable> {
        self.tables.get(device)
    }

    /// Has the tables say what is so. Nothing for who is not fenced.
    fn renew_tables(&mut self) -> Result<(), CUresult> {
        let mut tables = std::mem::take(&mut self.tables);
        let mut each = self.gpus.iter().enumerate().zip(&mut tables);
        let renewed = each.try_for_each(|((number, on), table)| {
            let mut windows = self.host.runs();
            for window in &self.devices {
                windows.extend(window.reached(on));
            }
            let blocks = self.imports.values().map(|(block, _)| block);
            let reached = blocks.filter(|block| block.is_reached_by(on));
            windows.extend(reached.map(|block| block.range()));
            let of_device = self.devices.get_mut(number);
            let of_device = of_device.ok_or(CUresult::ERROR_INVALID_DEVICE)?;
            table.renew(windows, |to, bytes| of_device.set(to, bytes))
        });
        self.tables = tables;
        renewed
    }

    /// See [`engine::Client::commit`].
    pub(crate) fn commit(&mut self, range: Window) -> Result<(), CUresult> {
        if self.host.contains(range) {
            self.host.commit(range)?;
        } else {
            let window = self.window_of(range);
            window.ok_or(CUresult::ERROR_INVALID_VALUE)?.commit(range)?;
        }
        let renewed = self.renew_tables();
        renewed.inspect_err(|_| self.decommit(range))
    }

    /// See [`engine::Client::recommit`].
    pub(crate) fn recommit(&mut self, range: Window) -> Result<bool, CUresult> {
        if self.host.contains(range) {
            self.host.recommit(range)?;
        } else {
            let window = self.window_of(range);
            let window = window.ok_or(CUresult::ERROR_INVALID_VALUE)?;
            if !window.recommit(range) {
                return self.commit(range).map(|()| false);
            }
        }
        let renewed = self.renew_tables();
        renewed.inspect_err(|_| self.decommit(range))?;
        Ok(true)
    }

    /// See [`engine::Client::decommit`].
    pub(crate) fn decommit(&mut self, range: Window) {
        if self.host.contains(range) {
            self.host.decommit(range);
        } else if let Some(window) = self.window_of(range) {
            window.decommit(range);
        }
        self.after_taking_back();
    }

    /// Something is the client's no longer. That the tables cannot say so is a fault of the device's, which tells by itself.
    fn after_taking_back(&mut self) {
        let _ = self.renew_tables();
    }

    /// See [`engine::Client::window_add`].
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_DEVICE, CUDA_ERROR_INVALID_VALUE for addresses that the client or somebody
    /// who shares with it has, and as [`DeviceWindow::new`].
    pub(crate) fn add_window(&mut self, further: FurtherWindow) -> Result<(), CUresult> {
        // Its chunks are kept, if at all: there is no file.
        let FurtherWindow {
            device,
            window,
            addresses,
            file: _,
        } = further;
        let invalid = CUresult::ERROR_INVALID_VALUE;
        let end = window.base.checked_add(window.bytes).ok_or(invalid)?;
        let before = self.imports.range(..end).next_back();
        let imported = before.is_some_and(|(_, (block, _))| {
            let range = block.range();
            range.base + range.bytes > window.base
        });
        let host = self.host.window();
        let on_host = host.base < end && window.base < host.base + host.bytes;
        let own = self.devices.iter().any(|own| own.overlaps(window));
        if window.bytes == 0 || imported || on_host || own {
            return Err(invalid);
        }
        let own = self.devices.get_mut(device as usize);
        let own = own.ok_or(CUresult::ERROR_INVALID_DEVICE)?;
        own.add_window(window, &addresses)
    }

    /// See [`engine::Client::window_remove`].
    pub(crate) fn remove_window(&mut self, window: Window) {
        if let Some(own) = self.window_of(window) {
            own.remove_window(window);
        }
    }

    /// See [`engine::Client::host_lend`].
    ///
    /// # Errors
    /// As [`HostWindow::map_external`].
    pub(crate) fn map_external(
        &mut self,
        range: Window,
        memory: Arc<dyn Owner>,
    ) -> Result<(), CUresult> {
        self.host.map_external(range, memory)?;
        let renewed = self.renew_tables();
        renewed.inspect_err(|_| self.unmap_external(range))
    }

    /// See [`engine::Client::host_settle`].
    ///
    /// # Errors
    /// As [`HostWindow::settle`].
    pub(crate) fn settle(&self, range: Window) -> Result<(), CUresult> {
        self.host.settle(range)
    }

    /// See [`engine::Client::host_return`].
    pub(crate) fn unmap_external(&mut self, range: Window) {
        self.host.decommit(range);
        self.after_taking_back();
    }

    /// Gives back what is overdue.
    pub(crate) fn tidy(&mut self) {
        for window in &mut self.devices {
            window.tidy();
        }
    }

    /// Writes a few bytes to what the driver itself allocated on a device, or to variables that lie in the client's memory there,
    /// before all of the client's later work there.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_DEVICE, and the driver's status.
    pub(crate) fn set(&mut self, device: usize, to: u64, bytes: &[u8]) -> Result<(), CUresult> {
        self.device_window(device)?.set(to, bytes)
    }

    /// Zeroes variables that lie in the client's memory on a device, likewise.
    ///
    /// # Errors
    /// As [`ClientAddressSpace::set`].
    pub(crate) fn zero(&mut self, device: usize, range: Window) -> Result<(), CUresult> {
        self.device_window(device)?.zero(range)
    }

    /// Copies a constant from the client's memory on a device to where the driver has it, likewise.
    ///
    /// # Errors
    /// As [`ClientAddressSpace::set`].
    pub(crate) fn copy_constant(
        &mut self,
        device: usize,
        to: u64,
        from: Window,
    ) -> Result<(), CUresult> {
        self.device_window(device)?.copy(to, from)
    }

    fn device_window(&mut self, device: usize) -> Result<&mut DeviceWindow, CUresult> {
        let window = self.devices.get_mut(device);
        window.ok_or(CUresult::ERROR_INVALID_DEVICE)
    }

    /// Has what is written by [`ClientAddressSpace::set`] on a device come after what another client wrote so, `earlier`; gives what
    /// the next one has to come after.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_DEVICE, and the driver's status.
    pub(crate) fn set_after(
        &mut self,
        device: usize,
        earlier: Option<&Arc<ZeroFillProgress>>,
    ) -> Result<Arc<ZeroFillProgress>, CUresult> {
        let window = self.device_window(device)?;
        if let Some(earlier) = earlier {
            window.follow(earlier)?;
        }
        Ok(Arc::clone(window.cleared()))
    }

    /// Gives host memory that a variable was given its first value.
    ///
    /// # Errors
    /// As [`HostWindow::set`].
    pub(crate) fn set_host(&mut self, range: Window, first: &[u8]) -> Result<(), CUresult> {
        self.host.set(range, first)?;
        self.renew_tables()
    }

    /// Adds a variable of a module on a device.
    pub(crate) fn add_variable(&mut self, range: Window, device: usize) {
        self.variables.insert(range.base, (range.bytes, device));
    }

    /// Adds a constant of a module that lies in the client's memory, and that the driver has as well.
    pub(crate) fn add_twin_constant(&mut self, own: Window, drivers: u64) {
        self.twin_constants.add(own, drivers);
    }

    /// What has to be copied when work has written in a range, for code to see what was written.
    pub(crate) fn written_constants(&self, range: Window) -> impl Iterator<Item = TwinCopy> {
        self.twin_constants.written(range)
    }

    /// Forgets a variable.
    pub(crate) fn remove_variable(&mut self, base: u64) {
        self.variables.remove(&base);
        self.twin_constants.remove(base);
    }

    /// The address in this process of a range in a space, and what is there, for work on a device.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE if the client does not have all of it, and
    /// CUDA_ERROR_PEER_ACCESS_UNSUPPORTED if the device cannot reach it.
    pub(crate) fn find(
        &mut self,
        on: usize,
        space: u32,
        at: u64,
        bytes: u64,
    ) -> Result<(u64, MemoryKind), CUresult> {
        match Space::from_number(space) {
            Some(Space::Unified) => {
                let range = Window { base: at, bytes };
                let place = self.unified(range, on)?;
                if let MemoryKind::Device(device) = place
                    && device != on
                {
                    self.let_reach(device, on)?;
                }
                Ok((at, place))
            }
            Some(Space::Staging) => {
                let base = self
                    .staging
                    .window()
                    .base
                    .checked_add(at)
                    .ok_or(CUresult::ERROR_INVALID_VALUE)?;
                let range = Window { base, bytes };
                if !self.staging.contains(range) {
                    return Err(CUresult::ERROR_INVALID_VALUE);
                }
                self.staging.use_staging(range)?;
                Ok((base, MemoryKind::Staging))
            }
            Some(Space::Array) | None => Err(CUresult::ERROR_INVALID_VALUE),
        }
    }

    fn unified(&self, range: Window, on: usize) -> Result<MemoryKind, CUresult> {
        let invalid = CUresult::ERROR_INVALID_VALUE;
        let had = |has: bool, place| has.then_some(place).ok_or(invalid);
        if self.host.contains(range) {
            return had(self.host.has(range), MemoryKind::Host);
        }
        let mut windows = self.devices.iter().enumerate();
        if let Some((device, window)) = windows.find(|(_, window)| window.contains(range)) {
            let on = self.gpus.get(on).ok_or(invalid)?;
            return had(window.has(range, on), MemoryKind::Device(device));
        }
        let import = self.imports.range(..=range.base).next_back();
        if let Some((_, (block, device))) = import
            && block.range().contains(range.base, range.bytes)
        {
            return Ok(MemoryKind::Device(*device));
        }
        let variable = self.variables.range(..=range.base).next_back();
        let (&base, &(bytes, device)) = variable.ok_or(invalid)?;
        let inside = Window { base, bytes }.contains(range.base, range.bytes);
        had(inside, MemoryKind::Device(device))
    }

    /// See [`engine::Client::peer_access`]: of a context on the device of the number `on`.
    ///
    /// # Errors
    /// As [`ClientAddressSpace::let_reach`], and CUDA_ERROR_INVALID_DEVICE for the same device.
    pub(crate) fn peer(&mut self, device: usize, on: usize, enabled: bool) -> Result<(), CUresult> {
        if device >= self.gpus.len() || device == on {
            return Err(CUresult::ERROR_INVALID_DEVICE);
        }
        // Nothing is taken back: kernels that run would fault, and with them everybody's context.
        if enabled {
            self.let_reach(device, on)?;
        }
        Ok(())
    }

    /// Lets a device reach what the client has on another, from now on.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_DEVICE, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED if the devices cannot, and the
    /// driver's status.
    fn let_reach(&mut self, device: usize, on: usize) -> Result<(), CUresult> {
        let nowhere = CUresult::ERROR_INVALID_DEVICE;
        let other = self.gpus.get(on).ok_or(nowhere)?;
        let window = self.devices.get_mut(device).ok_or(nowhere)?;
        if window.peers().iter().any(|peer| Arc::ptr_eq(peer, other)) {
            return Ok(());
        }
        window.enable_access(other)?;
        // For what the driver itself allocates, such as variables.
        other.enable_peer(self.gpus.get(device).ok_or(nowhere)?)?;
        let mut blocks = self.imports.values().filter(|(_, at)| *at == device);
        blocks.try_for_each(|(block, _)| block.reach(other))?;
        self.renew_tables()
    }

    /// The device's windows of which a range is in one.
    fn window_of(&mut self, range: Window) -> Option<&mut DeviceWindow> {
        self.devices
            .iter_mut()
            .find(|window| window.contains(range))
    }

    /// See [`engine::Client::share`].
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for memory that the client does not have.
    pub(crate) fn share(&mut self, range: Window) -> Result<SharedBlock, CUresult> {
        let window = self.window_of(range);
        window.ok_or(CUresult::ERROR_INVALID_VALUE)?.share(range)
    }

    /// See [`engine::Client::import`].
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for what is the client's own or overlaps another block.
    pub(crate) fn import(&mut self, block: &Arc<SharedBlock>) -> Result<(), CUresult> {
        let invalid = CUresult::ERROR_INVALID_VALUE;
        let range = block.range();
        let before = self.imports.range(..range.base + range.bytes).next_back();
        if let Some((_, (other, _))) = before
            && other.range().base + other.range().bytes > range.base
        {
            return match Arc::ptr_eq(other, block) {
                true => Ok(()),
                false => Err(invalid),
            };
        }
        if self.window_of(range).is_some() {
            return Err(invalid);
        }
        let device = block.device().number();
        self.devices.get_mut(device).ok_or(invalid)?.import(block)?;
        self.imports.insert(range.base, (Arc::clone(block), device));
        self.renew_tables()
    }

    /// See [`engine::Client::close`].
    pub(crate) fn close(&mut self, block: &Arc<SharedBlock>) {
        let base = block.range().base;
        if let Some((other, device)) = self.imports.get(&base)
            && Arc::ptr_eq(other, block)
        {
            if let Some(window) = self.devices.get(*device) {
                window.peeks().wait_until_over();
            }
            self.imports.remove(&base);
            self.after_taking_back();
        }
    }

    /// See [`engine::Client::physical_create`].
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_DEVICE, CUDA_ERROR_OUT_OF_MEMORY and the like.
    pub(crate) fn create_physical(
        &mut self,
        device: u32,
        bytes: u64,
    ) -> Result<Physical, CUresult> {
        let window = self.devices.get_mut(device as usize);
        let window = window.ok_or(CUresult::ERROR_INVALID_DEVICE)?;
        window.create_physical(bytes).map(|(physical, _)| physical)
    }

    /// See [`engine::Client::foreign_import`].
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_DEVICE, and as [`DeviceWindow::import_foreign`].
    pub(crate) fn import_foreign(
        &self,
        device: u32,
        piece: &MemoryPiece,
    ) -> Result<Physical, CUresult> {
        let window = self.devices.get(device as usize);
        window
            .ok_or(CUresult::ERROR_INVALID_DEVICE)?
            .import_foreign(piece)
    }

    /// See [`engine::Client::foreign_map`].
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for what cannot be, and the driver's status.
    pub(crate) fn map_foreign(
        &mut self,
        at: Window,
        physical: &Arc<Physical>,
        part: Window,
    ) -> Result<(), CUresult> {
        let window = self.window_of(at);
        let window = window.ok_or(CUresult::ERROR_INVALID_VALUE)?;
        window.map_foreign(at, physical, part)?;
        let renewed = self.renew_tables();
        renewed.inspect_err(|_| self.unmap_physical(at))
    }

    /// See [`engine::Client::physical_map`].
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for what cannot be.
    pub(crate) fn map_physical(
        &mut self,
        at: Window,
        physical: &Arc<Physical>,
        offset: u64,
    ) -> Result<(), CUresult> {
        let window = self.window_of(at);
        let window = window.ok_or(CUresult::ERROR_INVALID_VALUE)?;
        window.map_physical(at, physical, offset)
    }

    /// See [`engine::Client::physical_unmap`].
    pub(crate) fn unmap_physical(&mut self, at: Window) {
        if let Some(window) = self.window_of(at) {
            window.unmap_physical(at);
            self.after_taking_back();
        }
    }

    /// See [`engine::Client::physical_access`].
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE where nothing is mapped, CUDA_ERROR_INVALID_DEVICE, and the driver's
    /// status.
    pub(crate) fn access_physical(
        &mut self,
        at: Window,
        device: u32,
        reaches: bool,
    ) -> Result<(), CUresult> {
        let device = self.gpus.get(device as usize).cloned();
        let device = device.ok_or(CUresult::ERROR_INVALID_DEVICE)?;
        let window = self.window_of(at);
        let window = window.ok_or(CUresult::ERROR_INVALID_VALUE)?;
        window.access_physical(at, &device, reaches)?;
        self.renew_tables()
    }

    /// See [`engine::Client::peek`].
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for what the client does not have, CUDA_ERROR_NOT_READY for what is
    /// not there yet, and the driver's status.
    pub(crate) fn peek(&mut self, address: u64, bytes: u32) -> Result<u64, CUresult> {
        if !matches!(bytes, 4 | 8) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let range = Window {
            base: address,
            bytes: bytes.into(),
        };
        let wrong = CUresult::ERROR_INVALID_VALUE;
        match self.any_device(range)? {
            MemoryKind::Device(device) => self
                .devices
                .get_mut(device)
                .ok_or(wrong)?
                .peek(address, bytes),
            MemoryKind::Host | MemoryKind::Staging => Ok(host_value(range)),
        }
    }

    /// What is at a range, for work on whichever device has it.
    fn any_device(&self, range: Window) -> Result<MemoryKind, CUresult> {
        let mut windows = self.devices.iter();
        let own = windows.position(|window| window.contains(range));
        self.unified(range, own.unwrap_or(0))
    }

    /// Waits until nothing of the client's is being looked at.
    pub(crate) fn wait_for_looks(&self) {
        for window in &self.devices {
            window.peeks().wait_until_over();
        }
    }

    /// Whether nothing of the client's is being looked at.
    pub(crate) fn looks_are_over(&self) -> bool {
        self.devices.iter().all(|window| window.peeks().are_over())
    }

    /// The host window that a place other than the device's is in.
    pub(crate) fn host_of(&self, place: MemoryKind) -> Option<&HostWindow> {
        match place {
            MemoryKind::Device(_) => None,
            MemoryKind::Host => Some(&self.host),
            MemoryKind::Staging => Some(&self.staging),
        }
    }
}

/// The value of 4 or 8 bytes of host memory, which its owner keeps mapped. What is aligned is read at
/// once.
fn host_value(range: Window) -> u64 {
    let Window { base, bytes } = range;
    // SAFETY: the caller found the range to be mapped memory of the client, who may write it at any time,
    // so it is read as one of a processor's words, or bytes, and nothing is concluded from it.
    unsafe {
        if !base.is_multiple_of(bytes) {
            (0..bytes).fold(0, |value, at| {
                value | u64::from(((base + at) as *const u8).read_volatile()) << (8 * at)
            })
        } else if bytes == 4 {
            u64::from((base as *const u32).read_volatile())
        } else {
            (base as *const u64).read_volatile()
        }
    }
}
