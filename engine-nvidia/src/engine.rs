//! The engine: the driver, its devices, and the clients that attach.
//!
//! Owns what all clients share: devices, images, the poller, the SM allocator. Called by the server when it starts
//! and when a client attaches. Must not know what clients do.

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cuda_abi::CUresult;
use engine::{
    Attachment, Client, Engine, ExportedMemory, Granularity, GroupShare, MemoryHandle,
    MemoryKeeping,
};
use protocol::device_facts::{ABILITIES, DeviceFacts, REACHES_PEERS};

use crate::client::NvidiaClient;
use crate::code::images::Images;
use crate::code::load_ahead::LoadAhead;
use crate::device::Device;
use crate::driver::environment;
use crate::driver::locate;
use crate::driver::{Driver, OpenError};
use crate::memory::physical_mappings::Physical;
use crate::memory::shared_block::SharedBlock;
use crate::partition::allocator::SmAllocator;
use crate::submit::batch_supply::BatchSupply;
use crate::submit::poller::Poller;

/// NVIDIA GPUs, by way of the real driver.
#[derive(Debug)]
pub struct NvidiaEngine {
    shared: Arc<SharedEngine>,
    driver: Arc<Driver>,
}

/// What clients have of the engine.
#[derive(Debug)]
pub(crate) struct SharedEngine {
    /// First: it uses all the rest.
    ahead: OnceLock<LoadAhead>,
    pub(crate) devices: Vec<Arc<Device>>,
    /// As devices.
    pub(crate) supplies: Vec<Arc<BatchSupply>>,
    pub(crate) images: Images,
    pub(crate) poller: Poller,
    pub(crate) shares: Arc<SmAllocator>,
    facts: Vec<DeviceFacts>,
}

/// What clients are told of the devices. Peers are all or none: of one that reaches only some others,
/// there is no way to tell.
fn facts(devices: &[Arc<Device>]) -> Vec<DeviceFacts> {
    let mut facts: Vec<_> = devices
        .iter()
        .map(|device| device.facts().clone())
        .collect();
    let reaches_all = |one: &Arc<Device>| {
        let mut others = devices.iter().filter(|other| !Arc::ptr_eq(one, other));
        others.all(|other| one.can_reach(other))
    };
    if devices.iter().all(reaches_all) {
        for facts in &mut facts {
            if let Some(abilities) = facts.attributes.get_mut(ABILITIES as usize) {
                *abilities |= REACHES_PEERS;
            }
        }
    }
    facts
}

/// Opens the driver that OPENMPS_DRIVER names, or the one in the usual places.
fn open_driver() -> Result<Driver, OpenError> {
    // Where there is no driver, nothing need be prepared to find that out.
    let tried = locate::candidates();
    if !tried.iter().any(|path| path.exists()) {
        return Err(OpenError::NoDriver { tried });
    }
    environment::check()?;
    let driver = Driver::open(tried)?;
    // A driver that finds no MPS says nothing and goes on without, on devices that others chose.
    if environment::is_under_mps() && driver.is_under_mps() == Some(false) {
        return Err(OpenError::NoMps);
    }
    Ok(driver)
}

impl NvidiaEngine {
    /// Opens the driver that OPENMPS_DRIVER names, or the one in the usual places, and takes the
    /// primary context of each device. A process does this once.
    ///
    /// # Errors
    /// See [`OpenError`]: no driver, one that is too old or is our own client library, an environment
    /// without the settings of [`ENVIRONMENT`](crate::ENVIRONMENT), or a call of the driver that failed.
    pub fn open() -> Result<Self, OpenError> {
        Self::over(open_driver()?)
    }

    /// As [`NvidiaEngine::open`], with the driver at this absolute path.
    ///
    /// # Errors
    /// As [`NvidiaEngine::open`].
    pub fn open_at(path: &Path) -> Result<Self, OpenError> {
        environment::check()?;
        Self::over(Driver::open_at(path)?)
    }

    /// What the devices are of the driver that [`NvidiaEngine::open`] would take. Takes nothing of them, so
    /// that it can be asked beside others' contexts.
    ///
    /// # Errors
    /// As [`NvidiaEngine::open`].
    pub fn installed_devices() -> Result<Vec<DeviceFacts>, OpenError> {
        let driver = open_driver()?;
        (0..driver.count_devices()?)
            .map(|ordinal| {
                crate::driver::facts::of(&driver, ordinal)
                    .map_err(OpenError::of("reading the device's facts"))
            })
            .collect()
    }

    fn over(driver: Driver) -> Result<Self, OpenError> {
        let driver = Arc::new(driver);
        let devices = (0..driver.count_devices()?)
            .map(|ordinal| Device::new(&driver, ordinal))
            .collect::<Result<Vec<_>, _>>()?;
        let memory = devices.iter().map(|device| device.facts().total_memory);
        let images = Images::new(memory.min().unwrap_or_default());
        for device in &devices {
            device.set_reserve(images.give_up());
        }
        let poller = Poller::start(devices.clone())
            .map_err(|_| OpenError::of("starting a thread")(CUresult::ERROR_OPERATING_SYSTEM))?;
        Ok(Self {
            shared: Arc::new(SharedEngine {
                ahead: OnceLock::new(),
                facts: facts(&devices),
                shares: SmAllocator::new(devices.clone(), Arc::clone(poller.waker())),
                supplies: devices.iter().map(BatchSupply::new).collect(),
                devices,
                images,
                poller,
            }),
            driver,
        })
    }

    /// Sets how long kernels of clients that have gone may take to their end before their device counts as
    /// stuck; 30 s unless this is called.
    pub fn set_grace(&self, grace: Duration) {
        for device in &self.shared.devices {
            device.gate().set_grace(grace);
        }
    }

    /// From now on code that clients come with is loaded ahead for the next, while devices have nothing to do; and, if there is a
    /// folder, kept there for later servers of the same user. `say` is told what the server's log should have. To be called
    /// once.
    ///
    /// # Errors
    /// When the system gives no thread for it.
    pub fn load_ahead(
        &self,
        folder: Option<&Path>,
        say: impl Fn(&str) + Send + 'static,
    ) -> std::io::Result<()> {
        if let [device, others @ ..] = &self.shared.devices[..] {
            let images = &self.shared.images;
            let ahead = LoadAhead::start(images, device, others, folder, Box::new(say))?;
            // Nobody else sets it.
            let _ = self.shared.ahead.set(ahead);
        }
        Ok(())
    }

    /// What clients that have gone have left on the first device of which `is_it` holds, in words.
    fn left_on(&self, is_it: impl Fn(&Device) -> bool) -> Option<String> {
        let mut devices = self.shared.devices.iter();
        let device = devices.find(|device| device.check().is_ok() && is_it(device))?;
        let clients = self.shared.poller.clients();
        let left: Vec<String> = clients
            .iter()
            .flat_map(|client| client.abandoned_kernels())
            .collect();
        let running = match &left[..] {
            [] => "something other than a kernel".to_owned(),
            names => names.join(", "),
        };
        let (ordinal, name) = (device.ordinal(), &device.facts().name);
        Some(format!("{running} on device {ordinal} ({name})"))
    }

    /// The CUDA version that the driver is for: 1000 × major + 10 × minor.
    #[must_use]
    pub fn driver_version(&self) -> i32 {
        self.driver.version()
    }

    /// The driver library's path.
    #[must_use]
    pub fn driver_path(&self) -> &Path {
        self.driver.path()
    }
}

impl Engine for NvidiaEngine {
    fn devices(&self) -> &[DeviceFacts] {
        &self.shared.facts
    }

    fn lost(&self) -> Option<CUresult> {
        let mut devices = self.shared.devices.iter();
        devices.find_map(|device| device.probe().err())
    }

    fn keeping(&self) -> MemoryKeeping {
        MemoryKeeping::Chunks
    }

    fn free_of_all(&self, device: usize) -> Option<u64> {
        let device = self.shared.devices.get(device)?;
        Some(device.free_memory())
    }

    fn hung_work(&self) -> Option<String> {
        self.left_on(|device| device.gate().is_stuck())
    }

    fn left_work(&self, gone_for: Duration) -> Option<String> {
        self.left_on(|device| device.gate().is_left_with_work(gone_for))
    }

    fn rest(&self) -> bool {
        let close = |device: &Arc<Device>| device.gate().rest();
        // All of them are closed, whatever the first ones have.
        self.shared.devices.iter().map(close).for_each(drop);
        // In this order: nothing is begun in part any more, and the last part of what was counts as running until it is done.
        let clients = self.shared.poller.clients();
        !clients.iter().any(|client| client.is_amid()) && self.shared.devices.iter().all(close)
    }

    fn end_rest(&self) {
        for device in &self.shared.devices {
            device.gate().end_rest();
        }
    }

    /// As the driver splits the device for green contexts: groups of eight on compute capability 9.
    fn granularity(&self, device: usize) -> Granularity {
        let device = self.shared.devices.get(device);
        device.map_or_else(Granularity::default, |device| {
            device.parts().split().granularity()
        })
    }

    fn unreserved(&self, device: usize) -> u32 {
        self.shared.shares.unreserved(device)
    }

    fn set_group(&self, group: u32, share: Option<GroupShare>) -> Result<(), CUresult> {
        self.shared.shares.set_group(group, share)
    }

    fn export_memory(
        &self,
        memory: &MemoryHandle,
        within: Duration,
    ) -> Result<ExportedMemory, CUresult> {
        match (memory.get::<SharedBlock>(), memory.get::<Physical>()) {
            (Some(block), _) => block.export(within),
            (_, Some(physical)) => physical.export(within),
            (None, None) => Err(CUresult::ERROR_INVALID_VALUE),
        }
    }

    fn attach(&self, attachment: Attachment) -> Result<Box<dyn Client>, CUresult> {
        Ok(Box::new(NvidiaClient::new(&self.shared, attachment)?))
    }
}
