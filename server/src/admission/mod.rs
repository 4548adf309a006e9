//! From a packet of the daemon to a session: limits, memory, an engine's client, a welcome.
//!
//! Called by the main loop for each packet that admits a client. Must not know what operations do.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use cuda_abi::CUresult;
use engine::arena::{EXTENT, HOST_BYTES};
use engine::{Attachment, Engine, Owner, Region, Share, Window};
use protocol::control_messages::{Admit, ClientFields, Membership, NO_PARTITION, Packet, Welcome};
use protocol::device_facts::{
    ALL_MULTIPROCESSORS, COMPUTE_MODE, DeviceFacts, MULTIPROCESSOR_COUNT, MULTIPROCESSOR_STEP,
    MULTIPROCESSORS_PARTED,
};
use protocol::limits;
use transport::memory::{Mapping, Sealed};
use transport::session::{Consumer, ServerEnd, SessionMemory};
use transport::socket::Connection;

use crate::accounts::ClientAccounts;
use crate::admission::compute_mode::ComputeModePolicy;
use crate::admission::groups::{Group, Groups, limits_of};
use crate::event_queue::EventQueue;
use crate::ipc::descriptors::Descriptors;
use crate::ipc::exports::{ExportRegistry, User};
use crate::ipc::imports::SharedObjects;
use crate::log::ClientLog;
use crate::memory::address_account::{AddressAccount, InitialWindows};
use crate::memory::file_receiver::FileReceiver;
use crate::memory::host_budget::HostMemoryBudget;
use crate::memory::quota::{Allowance, Memory};
use crate::memory::registered_files::Files;
use crate::memory::server_budget::ServerMemoryBudget;
use crate::session::observer::{Cancellation, ClientObserver, ServerChannels};
use crate::session::{Partition, Session, SessionParts};

pub mod compute_mode;
pub mod device_list;
pub mod groups;
pub mod session_thread;

/// Why a client gets no session.
#[derive(Debug)]
pub struct Refusal {
    /// What its cuInit returns.
    pub code: CUresult,
    /// Why.
    pub text: String,
}

impl Refusal {
    fn new(code: CUresult, text: impl std::fmt::Display) -> Self {
        Self {
            code,
            text: text.to_string(),
        }
    }
}

/// What sessions are made with.
#[derive(Debug)]
pub struct ServerResources {
    /// What carries out their work.
    pub engine: Arc<dyn Engine>,
    /// For the main thread.
    pub events: Arc<EventQueue>,
    /// What clients share.
    pub exports: Arc<ExportRegistry>,
    /// Descriptors that they were given.
    pub descriptors: Arc<Descriptors>,
    /// What clients may have together.
    pub groups: Groups,
    /// Who may have contexts.
    pub compute_modes: Arc<dyn ComputeModePolicy>,
    /// What host memory they may have together.
    pub host_memory: HostMemoryBudget,
    /// What is held for them of the server's own memory.
    pub server_memory: ServerMemoryBudget,
    /// Who receives the files that they register.
    pub files: Arc<FileReceiver>,
}

/// Memory that an engine works with and that stays mapped as long as somebody has this.
#[derive(Debug)]
struct Mapped(#[expect(dead_code, reason = "kept for its drop")] Arc<Mapping>);

impl Owner for Mapped {}

fn region(mapping: &Arc<Mapping>) -> Region {
    Region {
        window: Window {
            base: mapping.base(),
            bytes: mapping.len() as u64,
        },
        owner: Arc::new(Mapped(mapping.clone())),
    }
}

/// What a client gets of each device.
struct Limits {
    share: Share,
    memory: Vec<u64>,
    /// The part of each device's multiprocessors that the client is told of, in percent.
    told: Vec<f32>,
    /// Of each device, whether it has been reserved for the client and those with it.
    reserved: Vec<bool>,
    /// Whether that is a static partition, within which percentages count for nothing.
    partitioned: bool,
}

impl Limits {
    /// Reads what the daemon passed on. A limit that does not parse or names no device refuses the
    /// client: it would otherwise run without.
    fn read(fields: &ClientFields, devices: &[DeviceFacts]) -> Result<Self, Refusal> {
        let refuse = |error: &dyn std::fmt::Display| {
            Refusal::new(CUresult::ERROR_MPS_CONNECTION_FAILED, error)
        };
        let percentage = match &fields.percentage {
            Some(text) => limits::percentage(text).map_err(|error| refuse(&error))?,
            None => 100.0,
        };
        let priority = match &fields.priority {
            Some(text) => limits::priority(text).map_err(|error| refuse(&error))?,
            None => 0,
        };
        let text = fields.memory_limit.as_deref().unwrap_or("");
        Ok(Self {
            told: vec![percentage; devices.len()],
            reserved: vec![false; devices.len()],
            partitioned: false,
            share: Share {
                percentage,
                priority,
                reserved: false,
            },
            memory: limits_of(devices, text).map_err(|error| refuse(&error))?,
        })
    }
}

/// The groups that bind a client, and how.
#[derive(Debug)]
struct GroupMembership {
    /// By whose limits on memory it is bound.
    group: Option<Arc<Group>>,
    /// Where it may have contexts.
    partition: Partition,
    /// By which group's compute it is bound.
    compute: Option<u32>,
}

impl GroupMembership {
    /// Finds the groups of a client, and narrows its limits by it. Waits until what the daemon told of it
    /// holds, or the client is to end.
    fn find(
        groups: &Groups,
        member: Membership,
        limits: &mut Limits,
        cancellation: &Cancellation,
    ) -> Result<Self, Refusal> {
        let known = |number: Option<u32>| match number {
            None => Ok(None),
            Some(number) => {
                groups.settle(number, || cancellation.ending().is_some());
                let unknown = "the client's group is not known here";
                let code = CUresult::ERROR_MPS_CONNECTION_FAILED;
                let group = groups.find(number);
                let group = group.ok_or_else(|| Refusal::new(code, unknown))?;
                match group.wrong() {
                    Some((code, text)) => Err(Refusal::new(code, text)),
                    None => Ok(Some(group)),
                }
            }
        };
        let group = known(member.group)?;
        let nowhere = member.partition == Some(NO_PARTITION);
        let partition = known(member.partition.filter(|_| !nowhere))?;
        if nowhere {
            limits.told.fill(0.0);
        }
        // In a partition nothing else divides its compute.
        let bound = partition.as_ref().or(group.as_ref());
        let compute = bound.and_then(|group| group.compute());
        if let Some(compute) = compute {
            let percentage = compute.share.percentage;
            for (device, told) in (0..).zip(&mut limits.told) {
                match compute.share.device {
                    None => *told = told.min(percentage),
                    Some(on) if on == device => *told = percentage,
                    Some(_) => *told = 0.0,
                }
            }
            for (device, reserved) in limits.reserved.iter_mut().enumerate() {
                *reserved = compute.share.reserved && compute.share.is_of(device);
            }
            if partition.is_some() {
                limits.partitioned = true;
                limits.share.percentage = 100.0;
            } else if compute.each {
                limits.share.percentage = limits.share.percentage.min(percentage);
            }
        }
        Ok(Self {
            partition: match (&partition, compute) {
                _ if nowhere => Partition::Nowhere,
                (Some(_), Some(compute)) => Partition::On(compute.share.device),
                _ => Partition::Everywhere,
            },
            compute: match (bound, compute) {
                (Some(bound), Some(compute)) if !compute.each => Some(bound.number()),
                _ => None,
            },
            group,
        })
    }
}

/// What the client is told of the devices.
fn facts(
    engine: &dyn Engine,
    windows: &[Window],
    limits: &Limits,
    group: Option<&Group>,
    compute_modes: &dyn ComputeModePolicy,
) -> Vec<DeviceFacts> {
    let mut facts = engine.devices().to_vec();
    for (ordinal, (device, window)) in facts.iter_mut().zip(windows).enumerate() {
        device.window = window.base;
        device.window_bytes = window.bytes;
        let limit = group.map_or(u64::MAX, |group| group.limit(ordinal as u32));
        let limit = limit.min(limits.memory[ordinal]);
        device.total_memory = device.total_memory.min(limit);
        let mode = compute_modes.mode(ordinal as u32).cast_signed();
        if mode != 0
            && let Some(place) = device.attributes.get_mut(COMPUTE_MODE as usize)
        {
            *place = mode;
        }
        if let Some(count) = device.attributes.get_mut(MULTIPROCESSOR_COUNT as usize) {
            let all = (*count).max(0).cast_unsigned();
            let granularity = engine.granularity(ordinal);
            // None at all where it can have no context.
            let granted = match limits.told[ordinal] {
                0.0 => 0,
                part => granularity.granted(all, part),
            };
            // What others have reserved by now it does not get.
            let granted = if limits.reserved[ordinal] {
                granted
            } else {
                granted.min(engine.unreserved(ordinal))
            };
            *count = granted.cast_signed();
            tell(device, MULTIPROCESSOR_STEP, granularity.step);
            let parted = granularity.most.min(i32::MAX.cast_unsigned());
            tell(device, MULTIPROCESSORS_PARTED, parted);
            if !limits.partitioned {
                tell(device, ALL_MULTIPROCESSORS, all);
            }
        }
    }
    facts
}

/// Tells of something that is behind CUDA's attributes.
fn tell(device: &mut DeviceFacts, place: u32, value: u32) {
    let place = place as usize;
    let attributes = &mut device.attributes;
    attributes.resize(attributes.len().max(place + 1), 0);
    attributes[place] = value.cast_signed();
}

/// Whether nothing is to be counted of clients, so that what counting costs can be measured.
fn accounts_are_off() -> bool {
    std::env::var_os("OPENMPS_ACCOUNTS").is_some_and(|how| how == "off")
}

/// Of each device's multiprocessors, how many a client was told of, and how many there are.
fn granted(devices: &[DeviceFacts], told: &[DeviceFacts]) -> Vec<(u32, u32)> {
    let count = |device: &DeviceFacts| {
        let count = device.attribute(MULTIPROCESSOR_COUNT).unwrap_or(0);
        count.max(0).cast_unsigned()
    };
    let each = told.iter().zip(devices);
    each.map(|(told, all)| (count(told), count(all))).collect()
}

/// A session with what it takes to run it. Fields go in order: the engine's client before the
/// memory it works with, and that before its addresses are given to another.
#[derive(Debug)]
pub struct Admitted {
    /// The session.
    pub session: Session,
    /// What it takes records from.
    pub consumer: Consumer,
    _mappings: [Arc<Mapping>; 2],
    _addresses: Arc<InitialWindows>,
}

/// Makes a client's session and welcomes it.
///
/// # Errors
/// What the client is to be told; nothing is left of the attempt.
pub fn admit(
    host: &Arc<ServerResources>,
    admit: &Admit,
    connection: &Arc<Connection>,
    memory: Vec<OwnedFd>,
    name: ClientLog,
    cancellation: &Cancellation,
) -> Result<Admitted, Refusal> {
    let full = |error: &dyn std::fmt::Display| {
        Refusal::new(CUresult::ERROR_MPS_MAX_CLIENTS_REACHED, error)
    };
    let devices = host.engine.devices();
    let mut limits = Limits::read(&admit.client, devices)?;
    let membership = GroupMembership::find(&host.groups, admit.member, &mut limits, cancellation)?;
    let memory = SessionMemory::from_fds(memory, HOST_BYTES).map_err(|error| full(&error))?;
    let mut sizes = vec![EXTENT; devices.len()];
    sizes.push(HOST_BYTES);
    let addresses = InitialWindows::take(&sizes)
        .ok_or_else(|| full(&"no addresses are left for another client"))?;
    let (window, windows) = addresses
        .windows()
        .split_last()
        .ok_or_else(|| full(&"no addresses are left for another client"))?;
    let end = ServerEnd::new(&memory).map_err(|error| full(&error))?;
    let (consumer, publisher) = end.split();
    cancellation.wake_with(publisher.clone());
    let pinned = map_at(&memory.host, window.base).map_err(|error| full(&error))?;
    let staging = Arc::new(Mapping::map(&memory.staging).map_err(|error| full(&error))?);
    let observer = Arc::new(ClientObserver::new(
        publisher,
        admit.session,
        name.clone(),
        ServerChannels {
            engine: host.engine.clone(),
            events: host.events.clone(),
            compute_modes: host.compute_modes.clone(),
        },
    ));
    cancellation.observed_by(observer.clone());
    let held = host
        .server_memory
        .client(membership.group.as_ref().map(|group| group.number()));
    let client = host
        .engine
        .attach(Attachment {
            windows: windows.to_vec(),
            addresses: addresses.clone(),
            host: region(&pinned),
            staging: region(&staging),
            share: limits.share,
            group: membership.compute,
            held: held.clone(),
            observer: observer.clone(),
        })
        .map_err(|code| Refusal::new(code, "the engine takes no more clients"))?;

    let told = facts(
        &*host.engine,
        windows,
        &limits,
        membership.group.as_deref(),
        &*host.compute_modes,
    );
    let welcome = Packet::Welcome(Welcome {
        version: admit.version,
        session: admit.session,
        server_pid: std::process::id().cast_signed(),
        facts: told.clone(),
        host_base: window.base,
        host_bytes: window.bytes,
    });
    let fds = [
        memory.ring.as_fd(),
        memory.status.as_fd(),
        memory.staging.as_fd(),
        memory.host.as_fd(),
    ];
    // If the client is gone already, that is noticed as for any other.
    let _ = connection.try_send(&welcome.encode(), &fds);

    let each = windows.iter().zip(&limits.memory).zip(devices);
    let allowances: Vec<Allowance> = each
        .map(|((&window, &limit), device)| Allowance {
            window,
            limit,
            most: device.total_memory,
        })
        .collect();
    let pinned_allowance = Allowance {
        window: *window,
        limit: window.bytes,
        most: window.bytes,
    };
    let pinned_of_all = host.host_memory.client();
    let account = Memory::new(
        &allowances,
        pinned_allowance,
        membership.group,
        pinned_of_all,
    );
    let granted = granted(devices, &told);
    let may_have: Vec<u32> = granted.iter().map(|&(told, _)| told).collect();
    let counted: &[u32] = if accounts_are_off() { &[] } else { &may_have };
    let accounts = Arc::new(ClientAccounts::new(counted, account.counts()));
    observer.counted_in(accounts.clone());
    cancellation.counted_in(accounts.clone());
    Ok(Admitted {
        session: Session::new(SessionParts {
            client,
            observer,
            memory: account,
            staging: staging.clone(),
            granted,
            accounts,
            devices: told,
            name,
            share: limits.share,
            partition: membership.partition,
            shared_objects: SharedObjects::new(
                host.exports.clone(),
                host.descriptors.clone(),
                connection.clone(),
                User::of(admit.uid, admit.session),
            ),
            addresses: AddressAccount::default(),
            held,
            files: Files::new(
                (connection.clone(), host.files.clone()),
                pinned.clone(),
                memory.host,
            ),
        }),
        consumer,
        _mappings: [pinned, staging],
        _addresses: addresses,
    })
}

fn map_at(memory: &Sealed, address: u64) -> Result<Arc<Mapping>, transport::memory::MemoryError> {
    Mapping::map_at(memory, address).map(Arc::new)
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use super::*;

    fn devices() -> Vec<DeviceFacts> {
        (0..2)
            .map(|index| DeviceFacts {
                name: "a device".into(),
                uuid: [index + 1; 16],
                total_memory: 8 << 30,
                attributes: vec![132; 20],
                ..DeviceFacts::default()
            })
            .collect()
    }

    /// Devices of 132 multiprocessors, shared out one by one. Of the second all but 40 are reserved.
    #[derive(Debug)]
    struct Some132;

    impl Engine for Some132 {
        fn devices(&self) -> &[DeviceFacts] {
            static DEVICES: LazyLock<Vec<DeviceFacts>> = LazyLock::new(devices);
            &DEVICES
        }
        fn lost(&self) -> Option<CUresult> {
            None
        }
        fn unreserved(&self, device: usize) -> u32 {
            [u32::MAX, 40][device]
        }
        fn attach(&self, _: Attachment) -> Result<Box<dyn engine::Client>, CUresult> {
            Err(CUresult::ERROR_NOT_SUPPORTED)
        }
    }

    fn read(percentage: &str, memory: &str) -> Result<Limits, Refusal> {
        let fields = ClientFields {
            percentage: Some(percentage.into()),
            memory_limit: Some(memory.into()),
            ..ClientFields::default()
        };
        Limits::read(&fields, &devices())
    }

    #[test]
    fn limits_are_the_lowest_of_each_device_and_never_lifted() {
        let limits = read("33.3", "0=2G,0=1G,GPU-0202=512M,1=3G").unwrap();
        assert_eq!(limits.memory, [1 << 30, 512 << 20]);
        assert_eq!(limits.share.percentage, 33.3);
    }

    #[test]
    fn a_limit_that_cannot_hold_refuses_the_client() {
        for (percentage, memory) in [
            ("0", ""),
            ("junk", ""),
            ("50", "junk"),
            ("50", "2=1G"),
            ("50", "GPU-=1G"),
            ("50", "GPU-09=1G"),
        ] {
            let refusal = read(percentage, memory).err().unwrap();
            assert_eq!(refusal.code, CUresult::ERROR_MPS_CONNECTION_FAILED);
        }
    }

    #[test]
    fn a_share_is_seen_in_the_number_of_multiprocessors() {
        let windows = [Window {
            base: 1 << 40,
            bytes: EXTENT,
        }; 2];
        for (percentage, count) in [("100", 132), ("33", 43), ("1", 1), ("0.1", 1)] {
            let mut limits = read(percentage, "0=1G,1=100G").unwrap();
            limits.reserved = vec![false, true];
            let told = facts(
                &Some132,
                &windows,
                &limits,
                None,
                &compute_mode::EnforcedByDriver,
            );
            assert_eq!(told[1].attribute(MULTIPROCESSOR_COUNT), Some(count));
            limits.reserved = vec![false; 2];
            let told = facts(
                &Some132,
                &windows,
                &limits,
                None,
                &compute_mode::EnforcedByDriver,
            );
            assert_eq!(told[1].attribute(MULTIPROCESSOR_COUNT), Some(count.min(40)));
            assert_eq!(told[1].total_memory, 8 << 30);
            assert_eq!(told[0].attribute(MULTIPROCESSOR_COUNT), Some(count));
            assert_eq!(told[0].attribute(ALL_MULTIPROCESSORS), Some(132));
            assert_eq!(told[0].total_memory, 1 << 30);
            assert_eq!(told[0].window, 1 << 40);
        }
    }
}
