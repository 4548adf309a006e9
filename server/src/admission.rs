//! From a packet of the daemon to a session: limits, memory, an engine's client, a welcome.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use cuda_abi::CUresult;
use cuda_abi::facts::{DeviceFacts, MULTIPROCESSOR_COUNT};
use cuda_abi::limits;
use engine::arena::{Arena, EXTENT};
use engine::{Attachment, Engine, Owner, Region, Share, Window};
use transport::handshake::{Admit, ClientFields, Packet, Welcome};
use transport::memory::{Mapping, Sealed};
use transport::session::{Consumer, ServerEnd, SessionMemory};
use transport::socket::Connection;

use crate::commons::Commons;
use crate::log::Named;
use crate::memory::{Allowance, Memory};
use crate::news::Board;
use crate::observer::{Ender, Shared};
use crate::session::{Parts, Session};
use crate::sharing::Sharing;

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
pub struct Host {
    /// What carries out their work.
    pub engine: Arc<dyn Engine>,
    /// For the main thread.
    pub news: Board,
    /// What clients share.
    pub sharing: Arc<Sharing>,
}

/// The addresses of this process that clients' memory lies at.
fn arena() -> MutexGuard<'static, Arena> {
    static ARENA: LazyLock<Mutex<Arena>> = LazyLock::new(Mutex::default);
    ARENA.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Extents of the arena, given back when dropped.
#[derive(Debug)]
struct Extents(Vec<Window>);

impl Extents {
    fn take(count: usize) -> Option<Arc<Self>> {
        arena().take(count).map(Self).map(Arc::new)
    }
}

impl Owner for Extents {}

impl Drop for Extents {
    fn drop(&mut self) {
        arena().give_back(&self.0);
    }
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
        let mut memory: Vec<u64> = devices
            .iter()
            .map(|device| device.total_memory.min(EXTENT))
            .collect();
        let text = fields.memory_limit.as_deref().unwrap_or("");
        for limit in limits::memory_limits(text).map_err(|error| refuse(&error))? {
            let device = find(devices, &limit.device).ok_or_else(|| {
                refuse(&format_args!(
                    "memory limit for device {}, which there is not or more than one",
                    limit.device
                ))
            })?;
            memory[device] = memory[device].min(limit.bytes);
        }
        Ok(Self {
            share: Share {
                percentage,
                priority,
                reserved: false,
            },
            memory,
        })
    }
}

/// The device with an ordinal, or a UUID that begins so.
fn find(devices: &[DeviceFacts], name: &str) -> Option<usize> {
    if let Ok(ordinal) = name.parse::<usize>() {
        return (ordinal < devices.len()).then_some(ordinal);
    }
    let mut found = (0..devices.len()).filter(|&index| {
        let uuid = crate::run::uuid(&devices[index].uuid);
        uuid.to_ascii_lowercase()
            .starts_with(&name.to_ascii_lowercase())
    });
    found.next().filter(|_| found.next().is_none())
}

/// What the client is told of the devices.
fn facts(engine: &dyn Engine, windows: &[Window], limits: &Limits) -> Vec<DeviceFacts> {
    let mut facts = engine.devices().to_vec();
    let each = facts.iter_mut().zip(windows).zip(&limits.memory);
    for (ordinal, ((device, window), memory)) in each.enumerate() {
        device.window = window.base;
        device.window_bytes = window.bytes;
        device.total_memory = *memory;
        if let Some(count) = device.attributes.get_mut(MULTIPROCESSOR_COUNT as usize) {
            let all = (*count).max(0).cast_unsigned();
            let granularity = engine.granularity(ordinal);
            let granted = granularity.granted(all, limits.share.percentage);
            *count = granted.cast_signed();
        }
    }
    facts
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
    _extents: Arc<Extents>,
}

/// Makes a client's session and welcomes it.
///
/// # Errors
/// What the client is to be told; nothing is left of the attempt.
pub fn admit(
    host: &Arc<Host>,
    admit: &Admit,
    connection: &Connection,
    memory: Vec<OwnedFd>,
    name: Named,
    ender: &Ender,
) -> Result<Admitted, Refusal> {
    let full = |error: &dyn std::fmt::Display| {
        Refusal::new(CUresult::ERROR_MPS_MAX_CLIENTS_REACHED, error)
    };
    let devices = host.engine.devices();
    let limits = Limits::read(&admit.client, devices)?;
    let memory = SessionMemory::from_fds(memory, EXTENT).map_err(|error| full(&error))?;
    let extents = Extents::take(devices.len() + 1)
        .ok_or_else(|| full(&"no addresses are left for another client"))?;
    let (window, windows) = extents
        .0
        .split_last()
        .ok_or_else(|| full(&"no addresses are left for another client"))?;
    let end = ServerEnd::new(&memory).map_err(|error| full(&error))?;
    let (consumer, publisher) = end.split();
    ender.wake_with(publisher.clone());
    let pinned = map_at(&memory.host, window.base).map_err(|error| full(&error))?;
    let staging = Arc::new(Mapping::map(&memory.staging).map_err(|error| full(&error))?);
    let shared = Arc::new(Shared::new(
        publisher,
        admit.session,
        name.clone(),
        host.clone(),
    ));
    let client = host
        .engine
        .attach(Attachment {
            windows: windows.to_vec(),
            addresses: extents.clone(),
            host: region(&pinned),
            staging: region(&staging),
            share: limits.share,
            group: None,
            observer: shared.clone(),
        })
        .map_err(|code| Refusal::new(code, "the engine takes no more clients"))?;

    let told = facts(&*host.engine, windows, &limits);
    let welcome = Packet::Welcome(Welcome {
        version: admit.version,
        session: admit.session,
        server_pid: std::process::id().cast_signed(),
        facts: DeviceFacts::encode_all(&told),
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

    let allowances: Vec<Allowance> = windows
        .iter()
        .zip(&limits.memory)
        .map(|(&window, &limit)| Allowance { window, limit })
        .collect();
    let pinned_allowance = Allowance {
        window: *window,
        limit: window.bytes,
    };
    Ok(Admitted {
        session: Session::new(Parts {
            client,
            shared,
            memory: Memory::new(&allowances, pinned_allowance),
            staging: staging.clone(),
            devices: told,
            name,
            commons: Commons::new(host.sharing.clone(), admit.uid),
        }),
        consumer,
        _mappings: [pinned, staging],
        _extents: extents,
    })
}

fn map_at(memory: &Sealed, address: u64) -> Result<Arc<Mapping>, transport::memory::MemoryError> {
    Mapping::map_at(memory, address).map(Arc::new)
}

#[cfg(test)]
mod tests {
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

    /// Devices of 132 multiprocessors, shared out one by one.
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
        assert_eq!(read("100", "0=100G").unwrap().memory[0], 8 << 30);
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
            let told = facts(&Some132, &windows, &read(percentage, "0=1G").unwrap());
            assert_eq!(told[0].attribute(MULTIPROCESSOR_COUNT), Some(count));
            assert_eq!(told[0].total_memory, 1 << 30);
            assert_eq!(told[0].window, 1 << 40);
        }
    }
}
