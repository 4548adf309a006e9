//! From a packet of the daemon to a session: memory, an engine's client, a welcome. Limits are `client_limits`'.
//!
//! Called by the main loop for each packet that admits a client. Must not know what operations do.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use cuda_abi::CUresult;
use engine::arena::{EXTENT, HOST_BYTES};
use engine::{Attachment, Bound, Engine, MemoryChunk, MemoryKeeping, Owner, Region, Window};
use protocol::control_messages::{Admit, Packet, Welcome};
use transport::memory::{Mapping, MemoryError, Sealed};
use transport::session::{Consumer, Former, STATUS_BYTES, ServerEnd, SessionMemory};
use transport::socket::Connection;

use crate::accounts::ClientAccounts;
use crate::admission::client_limits::{
    GroupMembership, Limits, facts_for_client, multiprocessor_counts,
};
use crate::admission::compute_mode::ComputeModePolicy;
use crate::admission::groups::Groups;
use crate::event_queue::EventQueue;
use crate::ipc::blocks::SharedBlocks;
use crate::ipc::descriptors::Descriptors;
use crate::ipc::elsewhere::{OtherServers, SeekElsewhere};
use crate::ipc::event_links::EventLinks;
use crate::ipc::events::SharedEvents;
use crate::ipc::exports::{ExportRegistry, User, UserExports};
use crate::ipc::for_others::ExportsForOthers;
use crate::log::ClientLog;
use crate::memory::address_account::InitialWindows;
use crate::memory::client_memory::{Allowance, ClientMemory};
use crate::memory::file_receiver::FileReceiver;
use crate::memory::further_windows::{FurtherWindows, InheritedWindows, Told};
use crate::memory::host_budget::HostMemoryBudget;
use crate::memory::registered_files::RegisteredFiles;
use crate::memory::server_budget::ServerMemoryBudget;
use crate::memory::virtual_memory::VirtualMemory;
use crate::session::kernel_time::ClientKernelTime;
use crate::session::observer::{Cancellation, ClientObserver, ServerChannels};
use crate::session::{Session, SessionParts};

mod client_limits;
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
    /// The user's other servers, if there may be any.
    pub other_servers: Option<Arc<OtherServers>>,
    /// What is exported for those.
    pub for_others: ExportsForOthers,
    /// Events that are shared with those.
    pub event_links: Arc<EventLinks>,
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
    /// There is one session at most, ever.
    pub serves_one: bool,
}

/// Memory that an engine works with and that stays mapped as long as somebody has this.
#[derive(Debug)]
struct MappingOwner(#[expect(dead_code, reason = "kept for its drop")] Arc<Mapping>);

impl Owner for MappingOwner {}

fn region(mapping: &Arc<Mapping>) -> Region {
    Region {
        window: Window {
            base: mapping.base(),
            bytes: mapping.len() as u64,
        },
        owner: Arc::new(MappingOwner(mapping.clone())),
    }
}

/// Whether nothing is to be counted of clients, so that what counting costs can be measured.
fn accounts_are_off() -> bool {
    std::env::var_os("OPENMPS_ACCOUNTS").is_some_and(|how| how == "off")
}

/// A session with what it takes to run it. Fields go in order: the engine's client before the
/// memory it works with, and that before its addresses are given to another.
#[derive(Debug)]
pub struct Admitted {
    /// The session.
    pub session: Session,
    /// What it takes records from.
    pub consumer: Consumer,
    /// How far its former server was with it, if it had one.
    pub former: Option<Former>,
    /// What may be held for it of the server's memory.
    pub held: Arc<Bound>,
    /// Where its windows begin, if another server may take it over.
    pub bases: Vec<u64>,
    _mappings: [Arc<Mapping>; 2],
    _addresses: Arc<InitialWindows>,
}

/// The memory that a client was handed over with.
#[derive(Debug)]
pub struct HandedMemory {
    /// What it shares with its server, as [`Admit`] says.
    pub descriptors: Vec<OwnedFd>,
    /// The addresses that it had in its former server, if nobody has them here.
    pub claimed: Option<Arc<InitialWindows>>,
    /// What its former server has left of its device memory.
    pub chunks: Vec<MemoryChunk>,
    /// The windows that it had there beside its first ones.
    pub windows: InheritedWindows,
}

/// Of how many bytes a client's windows are at first: one on each device, and that of page-locked memory.
fn window_sizes(devices: usize) -> Vec<u64> {
    let mut sizes = vec![EXTENT; devices];
    sizes.push(HOST_BYTES);
    sizes
}

/// Takes the addresses that a session had in its former server. To be called in the order in which clients are handed over: a new
/// one that is handed over later, and is sooner to begin, would else be given them.
#[must_use]
pub fn claim_addresses(host: &ServerResources, bases: &[u64]) -> Option<Arc<InitialWindows>> {
    let sizes = window_sizes(host.engine.devices().len());
    if sizes.len() != bases.len() {
        return None;
    }
    let windows = bases.iter().zip(sizes);
    let windows = windows.map(|(&base, bytes)| Window { base, bytes });
    InitialWindows::allocate_at(windows.collect())
}

/// Makes a client's session and welcomes it.
///
/// # Errors
/// What the client is to be told; nothing is left of the attempt.
pub fn admit(
    host: &Arc<ServerResources>,
    admit: &Admit,
    connection: &Arc<Connection>,
    memory: HandedMemory,
    name: ClientLog,
    cancellation: &Cancellation,
) -> Result<Admitted, Refusal> {
    let full = |error: &dyn std::fmt::Display| {
        Refusal::new(CUresult::ERROR_MPS_MAX_CLIENTS_REACHED, error)
    };
    let devices = host.engine.devices();
    let mut limits = Limits::read(&admit.client, devices)?;
    let membership = GroupMembership::find(&host.groups, admit.member, &mut limits, cancellation)?;
    let HandedMemory {
        descriptors,
        claimed,
        chunks,
        windows: inherited,
    } = memory;
    let (memory, kept) = KeptMemory::split(descriptors, admit).map_err(|error| full(&error))?;
    let memory = SessionMemory::from_fds(memory, HOST_BYTES).map_err(|error| full(&error))?;
    let keeping = host.engine.keeping();
    let is_kept = kept.files.len() == devices.len() && keeping != MemoryKeeping::None;
    let sizes = window_sizes(devices.len());
    let addresses = match (&kept.status, is_kept) {
        (None, _) => InitialWindows::allocate(&sizes)
            .ok_or_else(|| full(&"no addresses are left for another client"))?,
        (Some(_), true) if sizes.len() == admit.bases.len() => {
            claimed.ok_or_else(|| full(&"its addresses in its former server are another's here"))?
        }
        (Some(_), _) => return Err(full(&"its former server had other devices")),
    };
    let in_files = keeping == MemoryKeeping::Files;
    let (account, further) = inherited.take(in_files).map_err(|error| full(&error))?;
    let further_windows: Vec<(u32, Window)> = further
        .iter()
        .map(|further| (further.device, further.window))
        .collect();
    let bases: Vec<u64> = addresses
        .windows()
        .iter()
        .map(|window| window.base)
        .collect();
    let (window, windows) = addresses
        .windows()
        .split_last()
        .ok_or_else(|| full(&"no addresses are left for another client"))?;
    let end = ServerEnd::new(&memory).map_err(|error| full(&error))?;
    if is_kept {
        end.set_kept(&memory).map_err(|error| full(&error))?;
    }
    let (consumer, publisher, former) = match &kept.status {
        None => {
            let (consumer, publisher) = end.split();
            (consumer, publisher, None)
        }
        Some(status) => {
            let taken = end
                .take_over(status, admit.takeover)
                .map_err(|error| full(&error))?;
            (taken.0, taken.1, Some(taken.2))
        }
    };
    cancellation.wake_with(publisher.clone());
    let (status, words) = publisher.device_completions();
    let completions = Region {
        window: Window {
            base: status.base() + words.start as u64,
            bytes: words.len() as u64,
        },
        owner: Arc::new(MappingOwner(status)),
    };
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
        ClientKernelTime::new(
            limits.kernel_time,
            membership
                .group
                .as_ref()
                .map(|group| group.kernel_time.clone()),
        ),
        (is_kept, former.is_some()),
    ));
    cancellation.set_observer(observer.clone());
    let held = host
        .server_memory
        .client(membership.group.as_ref().map(|group| group.number()));
    let client = host
        .engine
        .attach(Attachment {
            windows: windows.to_vec(),
            kept: match keeping {
                MemoryKeeping::Files if is_kept => {
                    let files = kept.files.into_iter().map(OwnedFd::from);
                    engine::KeptMemory::Files(files.collect())
                }
                MemoryKeeping::Chunks if is_kept => engine::KeptMemory::Chunks(chunks),
                _ => engine::KeptMemory::None,
            },
            further,
            addresses: addresses.clone(),
            host: region(&pinned),
            staging: region(&staging),
            // What another server is to go on with is over when this one has seen it, and no sooner.
            completions: (!is_kept).then_some(completions),
            share: limits.share,
            group: membership.compute,
            fenced: limits.fenced,
            held: held.clone(),
            observer: observer.clone(),
        })
        .map_err(|code| Refusal::new(code, "the engine takes no more clients"))?;

    if let Some(work) = client.work_in_flight() {
        observer.set_work(work);
    }
    let told = facts_for_client(
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
    if former.is_some() {
        observer.publisher.call_over();
    }

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
    let mut memory_of_client = ClientMemory::new(
        &allowances,
        pinned_allowance,
        membership.group,
        pinned_of_all,
    );
    for (device, window) in further_windows {
        memory_of_client.add_window(device, window);
    }
    let granted = multiprocessor_counts(devices, &told);
    let may_have: Vec<u32> = granted.iter().map(|&(told, _)| told).collect();
    let counted: &[u32] = if accounts_are_off() { &[] } else { &may_have };
    let accounts = Arc::new(ClientAccounts::new(counted, memory_of_client.counts()));
    observer.set_accounts(accounts.clone());
    cancellation.set_accounts(accounts.clone());
    let user = User::of(admit.uid, admit.session);
    let user_exports = UserExports {
        registry: host.exports.clone(),
        elsewhere: match (&host.other_servers, user) {
            (Some(servers), User::Known(uid)) => {
                Some(Arc::new(SeekElsewhere::new(servers.clone(), uid)))
            }
            _ => None,
        },
        user,
        log: name.clone(),
    };
    Ok(Admitted {
        session: Session::new(SessionParts {
            client,
            observer,
            memory: memory_of_client,
            staging: staging.clone(),
            granted,
            accounts,
            devices: told,
            log: name,
            share: limits.share,
            partition: membership.partition,
            is_alone: host.serves_one,
            shared_blocks: SharedBlocks::new(user_exports.clone()),
            shared_events: SharedEvents::new(
                user_exports.clone(),
                host.event_links.clone(),
                held.clone(),
            ),
            virtual_memory: VirtualMemory::new(
                user_exports,
                host.descriptors.clone(),
                connection.clone(),
            ),
            addresses: FurtherWindows {
                account,
                told: is_kept.then(|| Told {
                    session: admit.session,
                    events: host.events.clone(),
                    in_files,
                }),
            },
            server_memory: held.clone(),
            files: RegisteredFiles::new(
                (connection.clone(), host.files.clone()),
                pinned.clone(),
                memory.host,
            ),
        }),
        consumer,
        held,
        former,
        bases: if is_kept { bases } else { Vec::new() },
        _mappings: [pinned, staging],
        _addresses: addresses,
    })
}

/// What came beside a session's own memory, for a server that may take it over, or does.
struct KeptMemory {
    /// What its windows' memory is to lie in.
    files: Vec<Sealed>,
    /// Its status in its former server.
    status: Option<Sealed>,
}

impl KeptMemory {
    /// Takes it from what came, and leaves the session's own.
    fn split(mut memory: Vec<OwnedFd>, admit: &Admit) -> Result<(Vec<OwnedFd>, Self), MemoryError> {
        let status = match admit.bases.is_empty() {
            true => None,
            false => {
                let fd = memory.pop().ok_or(MemoryError::NotSealed)?;
                Some(Sealed::from_fd(fd, STATUS_BYTES as u64)?)
            }
        };
        let own = memory.len().checked_sub(admit.files as usize);
        let files = memory.split_off(own.ok_or(MemoryError::NotSealed)?);
        let files = files.into_iter().map(|fd| Sealed::from_fd(fd, EXTENT));
        let files = files.collect::<Result<_, _>>()?;
        Ok((memory, Self { files, status }))
    }
}

fn map_at(memory: &Sealed, address: u64) -> Result<Arc<Mapping>, MemoryError> {
    Mapping::map_at(memory, address).map(Arc::new)
}
