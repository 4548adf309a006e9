//! The engine: sets the devices up and attaches clients to them.
//!
//! Owns the devices. Called by the server when it starts and when a client attaches. Must not know what clients do.

use std::sync::Arc;

use engine::plan::checks;
use engine::{Attachment, Bound, CUresult, Client, Engine, GroupShare, MemoryKeeping, arena};
use protocol::device_facts::DeviceFacts;

use crate::client::SoftClient;
use crate::code_files::CodeFiles;
use crate::device::{CAPABILITIES, Config, Devices, device_facts};
use crate::module::ImageCache;
use crate::scheduler::WorkerPool;

/// The software GPU.
#[derive(Debug)]
pub struct SoftEngine {
    devices: Arc<Devices>,
}

impl SoftEngine {
    /// Sets a software GPU up.
    ///
    /// # Errors
    /// If the configuration makes no sense or the system gives no threads.
    pub fn new(config: &Config) -> std::io::Result<Self> {
        let all: Vec<u32> = (0..config.devices).collect();
        Self::with_numbers(config, &all, None)
    }

    /// As [`SoftEngine::new`], but of the devices that there are only those with these numbers, in this
    /// order. What tells them apart, UUID and place on the bus, is what it is where all are there. Compiled code is kept
    /// in `code`.
    ///
    /// # Errors
    /// As [`SoftEngine::new`], and if there is no device with one of the numbers, or no number.
    pub fn with_numbers(
        config: &Config,
        numbers: &[u32],
        code: Option<CodeFiles>,
    ) -> std::io::Result<Self> {
        let memory = config.memory / arena::GRANULE * arena::GRANULE;
        if !(1..=8).contains(&config.devices) || config.workers == 0 || memory == 0 {
            return Err(std::io::Error::new(
                std::io::ErrorKind::InvalidInput,
                "a software GPU needs 1 to 8 devices, some memory and at least one worker",
            ));
        }
        if !CAPABILITIES.contains(&config.capability) {
            return Err(std::io::Error::new(
                std::io::ErrorKind::InvalidInput,
                format!("{} is no compute capability of a device", config.capability),
            ));
        }
        if numbers.is_empty() || numbers.iter().any(|number| *number >= config.devices) {
            return Err(std::io::Error::new(
                std::io::ErrorKind::InvalidInput,
                format!("{} devices have no numbers {numbers:?}", config.devices),
            ));
        }
        let numbers = numbers.iter();
        let machine = Arc::new(Bound::new(config.machine));
        Ok(Self {
            devices: Arc::new(Devices {
                budgets: numbers
                    .clone()
                    .map(|_| Arc::new(Bound::within(&machine, memory)))
                    .collect(),
                machine,
                images: ImageCache::new(code),
                pool: WorkerPool::new(config.workers)?,
                rest: Arc::default(),
                capability: config.capability,
                facts: numbers
                    .map(|&number| device_facts(number, memory, config))
                    .collect(),
            }),
        })
    }
}

impl Engine for SoftEngine {
    fn keeping(&self) -> MemoryKeeping {
        MemoryKeeping::Files
    }

    fn begins_one_at_a_time(&self) -> bool {
        true
    }

    fn rest(&self) -> bool {
        self.devices.rest.begin()
    }

    fn end_rest(&self) {
        self.devices.rest.end();
    }

    fn lost(&self) -> Option<CUresult> {
        // A fault ends one client's context here, never the device.
        None
    }

    fn devices(&self) -> &[DeviceFacts] {
        &self.devices.facts
    }

    fn machine_memory(&self) -> Option<&Arc<Bound>> {
        Some(&self.devices.machine)
    }

    fn attach(&self, attachment: Attachment) -> Result<Box<dyn Client>, CUresult> {
        Ok(Box::new(SoftClient::new(&self.devices, attachment)?))
    }

    fn set_group(&self, group: u32, share: Option<GroupShare>) -> Result<(), CUresult> {
        if let Some(share) = share {
            checks::percentage(share.percentage)?;
        }
        self.devices.pool.scheduler().set_group(group, share)
    }
}

#[cfg(test)]
mod tests {
    use cuda_abi::types::{CUdevice_attribute as Attribute, DEVICE_ATTRIBUTES};

    use super::*;

    #[test]
    fn devices_can_be_told_apart_and_stay_the_same() {
        let config = Config {
            devices: 2,
            memory: (1 << 30) + 1,
            workers: 3,
            capability: 90,
            ..Config::default()
        };
        let engine = SoftEngine::new(&config).unwrap();
        let [first, second] = engine.devices() else {
            panic!("two devices");
        };
        assert_ne!(first.uuid, second.uuid);
        let place = |facts: &DeviceFacts| {
            [
                Attribute::PCI_DOMAIN_ID,
                Attribute::PCI_BUS_ID,
                Attribute::PCI_DEVICE_ID,
            ]
            .map(|attribute| facts.attribute(attribute.0))
        };
        assert_ne!(place(first), place(second));
        assert_eq!(first.total_memory, 1 << 30);
        let count = first.attribute(Attribute::MULTIPROCESSOR_COUNT.0);
        assert_eq!(count, Some(3));
        let major = first.attribute(Attribute::COMPUTE_CAPABILITY_MAJOR.0);
        let minor = first.attribute(Attribute::COMPUTE_CAPABILITY_MINOR.0);
        assert_eq!((major, minor), (Some(9), Some(0)));
        for (attribute, name) in DEVICE_ATTRIBUTES {
            assert!(first.attribute(attribute.0).is_some(), "{name}");
        }
        let again = SoftEngine::new(&config).unwrap();
        assert_eq!(again.devices(), engine.devices());
    }

    #[test]
    fn managed_memory_may_be_used_by_host_and_kernels_at_the_same_time() {
        let engine = SoftEngine::new(&Config::default()).unwrap();
        for attribute in [
            Attribute::MANAGED_MEMORY,
            Attribute::CONCURRENT_MANAGED_ACCESS,
            Attribute::HOST_NATIVE_ATOMIC_SUPPORTED,
        ] {
            assert_eq!(engine.devices()[0].attribute(attribute.0), Some(1));
        }
    }

    #[test]
    fn a_configuration_without_sense_is_refused() {
        let good = Config::default();
        for bad in [
            Config { devices: 0, ..good },
            Config { devices: 9, ..good },
            Config {
                memory: 4096,
                ..good
            },
            Config { workers: 0, ..good },
            Config {
                capability: 91,
                ..good
            },
        ] {
            assert!(SoftEngine::new(&bad).is_err(), "{bad:?}");
        }
        assert!(SoftEngine::new(&good).is_ok());
    }
}
