//! The device plugin: for each resource a socket that the kubelet dials, made known to it and made
//! known again whenever the kubelet has been started anew.
//!
//! Clients are of the daemon's. Nothing here is between them, so this can be ended and started while
//! they run.
//!
//! Called by `openmps kubernetes plugin`, which brings node, settings and the daemon. Must not know what is in an
//! answer: `service` does.

mod service;
mod stop;

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::UnixListenerStream;

use super::allocations::{
    AllocationError, Allocations, BoxError, DeviceHolders, FORGET_AFTER, Groups, Holder,
};
use super::events::{self, ClientFault};
use super::extender::{Api, ApiError, AssignedShares};
use super::kubelet::FixedConnection;
use super::proto;
use super::resources::{Mode, Placement, Resource, ResourceError};
use crate::gpus::Gpu;
use service::Service;
pub use stop::{Stop, Stopper, stop};

/// Between looks at the sockets, and at what is not there yet.
const LOOK: Duration = Duration::from_millis(500);

/// Between looks at who still has devices.
const SWEEP: Duration = Duration::from_secs(10);

/// How long the daemon may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// The name of a kubelet's own socket.
const KUBELET: &str = "kubelet.sock";

/// The daemon of this node, as the plugin needs it.
pub trait Node: Groups + Clone + Sync + 'static {
    /// The devices.
    ///
    /// # Errors
    /// Also while the daemon is not there.
    fn gpus(&mut self) -> Result<Vec<Gpu>, BoxError>;

    /// Whether the daemon answers.
    ///
    /// # Errors
    /// When it does not.
    fn probe(&mut self) -> Result<(), BoxError>;

    /// The last faults of clients, in the order of their numbers.
    ///
    /// # Errors
    /// When the daemon does not answer.
    fn faults(&mut self) -> Result<Vec<ClientFault>, BoxError>;
}

/// How containers are told what they get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// Variables and mounts, which every kubelet knows.
    Mounts,
    /// A CDI device each, in specifications in this folder: for kubelets from 1.28 on.
    Cdi(PathBuf),
}

/// What a plugin is told.
#[derive(Debug)]
pub struct Settings {
    /// Whose resources it offers.
    pub mode: Mode,
    /// On which GPU of several a share is put.
    pub placement: Placement,
    /// How containers are told.
    pub strategy: Strategy,
    /// The kubelet's folder for plugins' sockets.
    pub sockets: PathBuf,
    /// The kubelet's socket that says which pod has what.
    pub pod_resources: PathBuf,
    /// Where allocations are written down.
    pub state: PathBuf,
    /// The host's folder with the client library.
    pub library: PathBuf,
    /// Between looks at the daemon's health.
    pub probe_interval: Duration,
    /// Where gpushare's scheduler extender chooses the GPUs of pods: how its choice is known.
    pub extender: Option<Api>,
    /// What is told to whoever watches.
    pub say: fn(&str),
}

/// Why a plugin cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum PluginError {
    /// There is nothing to offer.
    #[error(transparent)]
    Resource(#[from] ResourceError),
    /// What was written down cannot be used.
    #[error(transparent)]
    State(#[from] AllocationError),
    /// A socket cannot be made.
    #[error("cannot listen on {path}: {source}")]
    Socket {
        /// The socket.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// The daemon has other devices than it had.
    #[error("the daemon has other devices than before")]
    OtherDevices,
    /// No runtime.
    #[error("cannot start: {0}")]
    Runtime(#[source] std::io::Error),
}

/// What all resources have together.
#[derive(Debug)]
struct PluginShared<N> {
    settings: Arc<Settings>,
    gpus: Vec<Gpu>,
    /// NUMA nodes of the GPUs.
    numa: Vec<Option<i64>>,
    resources: Vec<Resource>,
    allocations: Mutex<Allocations<N>>,
    /// What the extender's pods have been given.
    given: Mutex<AssignedShares>,
}

impl<N: Node> PluginShared<N> {
    /// Does something with the allocations, where waiting holds up nobody.
    async fn with<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self, &mut Allocations<N>) -> Result<T, AllocationError> + Send + 'static,
    ) -> Result<T, AllocationError> {
        let shared = Arc::clone(self);
        let done = tokio::task::spawn_blocking(move || {
            let mut all = shared.allocations.lock();
            work(&shared, &mut all)
        });
        done.await
            .map_err(|error| AllocationError::Daemon(error.into()))?
    }

    fn say(&self, text: &str) {
        (self.settings.say)(text);
    }

    /// Asks the API server, where waiting holds up nobody; None where there is no extender.
    async fn api<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&Api) -> Result<T, ApiError> + Send + 'static,
    ) -> Option<Result<T, ApiError>> {
        let api = self.settings.extender.clone()?;
        let asked = tokio::task::spawn_blocking(move || ask(&api)).await;
        Some(asked.unwrap_or_else(|error| Err(ApiError::Thread(error.into()))))
    }

    /// The extender reads from the node's status how many GPUs there are; a kubelet that starts resets
    /// what it does not know.
    async fn count_gpus(&self) {
        let count = self.gpus.len();
        if let Some(Err(error)) = self.api(move |api| api.count(count)).await {
            self.say(&error.to_string());
        }
    }
}

/// Serves until it is stopped.
///
/// # Errors
/// When it cannot begin; what goes wrong later is said and tried again.
pub fn run<N: Node>(settings: Settings, node: N, stop: Stop) -> Result<(), PluginError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(PluginError::Runtime)?;
    let settings = Arc::new(settings);
    let done = loop {
        let served = serve(Arc::clone(&settings), node.clone(), stop.clone());
        match runtime.block_on(served) {
            Err(other @ PluginError::OtherDevices) => (settings.say)(&other.to_string()),
            done => break done,
        }
    };
    // Whoever asks a daemon that hangs is not waited for.
    runtime.shutdown_background();
    done
}

async fn serve<N: Node>(
    settings: Arc<Settings>,
    node: N,
    mut stop: Stop,
) -> Result<(), PluginError> {
    let Some(gpus) = gpus(&settings, &node, &mut stop).await else {
        return Ok(());
    };
    let resources = settings.mode.resources(&gpus)?;
    for resource in &resources {
        (settings.say)(&format!(
            "{} of {}: {} devices of {} GPUs",
            resource.name,
            settings.mode.word(),
            resource.devices.len(),
            gpus.len()
        ));
    }
    let prefix = prefix(settings.mode.word());
    let allocations = Allocations::open(node.clone(), &settings.state, &prefix)?;
    let shared = Arc::new(PluginShared {
        numa: gpus.iter().map(numa).collect(),
        gpus,
        resources,
        allocations: Mutex::new(allocations),
        given: Mutex::default(),
        settings,
    });
    if let Err(error) = shared.with(|_, all| all.reconcile()).await {
        shared.say(&format!("groups of the daemon: {error}"));
    }
    let (healthy, health) = watch::channel(true);
    let mut tasks = tokio::task::JoinSet::new();
    let node_for_faults = node.clone();
    tasks.spawn(watch_health(Arc::clone(&shared), node, healthy));
    tasks.spawn(watch_faults(Arc::clone(&shared), node_for_faults));
    tasks.spawn(watch_pods(Arc::clone(&shared)));
    for number in 0..shared.resources.len() {
        tasks.spawn(offer(Arc::clone(&shared), number, health.clone()));
    }
    let ended = tokio::select! {
        () = stop.wait() => Ok(()),
        Some(ended) = tasks.join_next() => ended.unwrap_or(Ok(())),
    };
    for resource in &shared.resources {
        std::fs::remove_file(shared.settings.sockets.join(&resource.socket)).ok();
    }
    ended
}

/// The GPUs, as soon as the daemon says which there are. It starts a server for each question that no server
/// can answer, so it is asked ever more seldom.
async fn gpus<N: Node>(settings: &Settings, node: &N, stop: &mut Stop) -> Option<Vec<Gpu>> {
    let mut said = String::new();
    let mut pause = LOOK;
    loop {
        let mut node = node.clone();
        let asked = tokio::task::spawn_blocking(move || node.gpus()).await;
        match asked.unwrap_or_else(|error| Err(error.into())) {
            Ok(gpus) => return Some(gpus),
            Err(error) => {
                let error = error.to_string();
                if error != said {
                    (settings.say)(&format!("waiting for the daemon at {error}"));
                    said = error;
                }
            }
        }
        if stop.within(pause).await {
            return None;
        }
        pause = (pause * 2).min(settings.probe_interval.max(LOOK));
    }
}

/// The NUMA node that a GPU is near to, where the kernel says so.
fn numa(gpu: &Gpu) -> Option<i64> {
    let file = format!("/sys/bus/pci/devices/{}/numa_node", gpu.pci.kernel());
    let number: i64 = std::fs::read_to_string(file).ok()?.trim().parse().ok()?;
    (number >= 0).then_some(number)
}

/// Tells the kubelet when the daemon stops answering, and when it answers again.
async fn watch_health<N: Node>(
    shared: Arc<PluginShared<N>>,
    node: N,
    healthy: watch::Sender<bool>,
) -> Result<(), PluginError> {
    loop {
        tokio::time::sleep(shared.settings.probe_interval).await;
        let mut asked = {
            let mut node = node.clone();
            tokio::task::spawn_blocking(move || node.probe())
        };
        let now = match tokio::time::timeout(PATIENCE, &mut asked).await {
            Ok(answer) => answer.unwrap_or_else(|error| Err(error.into())),
            Err(_) => {
                // One that hangs is not asked again before it answers.
                shared.say("the daemon does not answer in time");
                healthy.send_replace(false);
                asked.await.unwrap_or_else(|error| Err(error.into()))
            }
        };
        let before = *healthy.borrow();
        match (&now, before) {
            (Err(error), true) => shared.say(&format!("the daemon does not answer: {error}")),
            (Ok(()), false) => {
                let mut node = node.clone();
                let gpus = tokio::task::spawn_blocking(move || node.gpus()).await;
                match gpus.unwrap_or_else(|error| Err(error.into())) {
                    Ok(gpus) if !same(&gpus, &shared.gpus) => {
                        return Err(PluginError::OtherDevices);
                    }
                    Ok(_) => {}
                    // It will be asked again.
                    Err(_) => continue,
                }
                // Another daemon may know nothing of those that are running.
                if let Err(error) = shared.with(|_, all| all.reconcile()).await {
                    shared.say(&format!("groups of the daemon: {error}"));
                }
                shared.say("the daemon answers again");
            }
            _ => continue,
        }
        healthy.send_replace(now.is_ok());
    }
}

/// Whether devices are those that they were.
fn same(now: &[Gpu], before: &[Gpu]) -> bool {
    let facts = |gpus: &[Gpu]| -> Vec<(String, u64)> {
        gpus.iter()
            .map(|gpu| (gpu.uuid.clone(), gpu.memory))
            .collect()
    };
    facts(now) == facts(before)
}

/// Makes events of the faults that pods' programs have from now on. Where there is no way to the API server, they are
/// said here alone.
async fn watch_faults<N: Node>(shared: Arc<PluginShared<N>>, node: N) -> Result<(), PluginError> {
    let mut seen = None;
    loop {
        let mut node = node.clone();
        let asked = tokio::task::spawn_blocking(move || node.faults()).await;
        // A daemon that does not answer is told of by who watches its health.
        if let Ok(Ok(faults)) = asked {
            let newest = faults.last().map_or(0, |last| last.number);
            let mut later = events::later(faults, seen.replace(newest).unwrap_or(newest));
            later.retain(|fault| fault.pod.is_some());
            for fault in &later {
                let pod = fault.pod.as_deref().unwrap_or_default();
                shared.say(&format!("pod {pod}: {}", fault.message()));
            }
            if !later.is_empty()
                && let Some(Err(error)) = shared.api(move |api| api.report(&later)).await
            {
                shared.say(&format!("no event was made of it: {error}"));
            }
        }
        tokio::time::sleep(shared.settings.probe_interval).await;
    }
}

/// Forgets allocations that no pod has any more.
async fn watch_pods<N: Node>(shared: Arc<PluginShared<N>>) -> Result<(), PluginError> {
    loop {
        tokio::time::sleep(SWEEP).await;
        // A kubelet that does not say is one that is being started.
        let Ok(pods) = pods(&shared.settings.pod_resources).await else {
            continue;
        };
        let held = device_holders(pods);
        let swept = shared.with(move |shared, all| {
            all.sweep(&held, Instant::now(), FORGET_AFTER)?;
            if let Strategy::Cdi(folder) = &shared.settings.strategy {
                remove_specifications(folder, shared.settings.mode.word(), &all.groups());
            }
            Ok(())
        });
        if let Err(error) = swept.await {
            shared.say(&error.to_string());
        }
    }
}

/// Which container has which device.
fn device_holders(pods: proto::ListPodResourcesResponse) -> DeviceHolders {
    let mut held = DeviceHolders::new();
    for pod in pods.pod_resources {
        for container in pod.containers {
            let holder = Holder {
                namespace: pod.namespace.clone(),
                pod: pod.name.clone(),
                container: container.name,
            };
            for devices in container.devices {
                let ids = devices.device_ids.into_iter();
                held.entry(devices.resource_name)
                    .or_default()
                    .extend(ids.map(|id| (id, holder.clone())));
            }
        }
    }
    held
}

/// Removes specifications of groups that are gone.
fn remove_specifications(folder: &Path, word: &str, groups: &BTreeSet<String>) {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name();
        let group = name.to_str().and_then(|name| {
            let group = name.strip_prefix("openmps-")?.strip_suffix(".json")?;
            group.starts_with(&prefix(word)).then_some(group)
        });
        if group.is_some_and(|group| !groups.contains(group)) {
            std::fs::remove_file(entry.path()).ok();
        }
    }
}

/// What the names of a mode's groups begin with.
fn prefix(word: &str) -> String {
    format!("k8s-{word}-")
}

async fn pods(socket: &Path) -> Result<proto::ListPodResourcesResponse, tonic::Status> {
    let mut kubelet = proto::connect(socket).await?;
    proto::call(&mut kubelet, proto::method::LIST_PODS, proto::Empty {}).await
}

/// What tells a file from a later one of the same name.
fn identity(path: &Path) -> Option<(u64, u64, i64, i64)> {
    let facts = std::fs::symlink_metadata(path).ok()?;
    Some((facts.dev(), facts.ino(), facts.ctime(), facts.ctime_nsec()))
}

/// Offers a resource: serves its socket and makes it known, again after each start of the kubelet,
/// which removes all sockets of its folder.
async fn offer<N: Node>(
    shared: Arc<PluginShared<N>>,
    number: usize,
    health: watch::Receiver<bool>,
) -> Result<(), PluginError> {
    let Some(resource) = shared.resources.get(number) else {
        return Ok(());
    };
    let folder = &shared.settings.sockets;
    let (socket, kubelet) = (folder.join(&resource.socket), folder.join(KUBELET));
    loop {
        let mut said = false;
        while identity(&kubelet).is_none() {
            if !said {
                shared.say(&format!("waiting for the kubelet: {}", kubelet.display()));
                said = true;
            }
            tokio::time::sleep(LOOK).await;
        }
        std::fs::remove_file(&socket).ok();
        let failed = |source| PluginError::Socket {
            path: socket.clone(),
            source,
        };
        let listener = match UnixListener::bind(&socket) {
            Ok(listener) => UnixListenerStream::new(listener),
            // The kubelet is making its folder again.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                tokio::time::sleep(LOOK).await;
                continue;
            }
            Err(error) => return Err(failed(error)),
        };
        let ours = identity(&socket);
        let service = Service::new(Arc::clone(&shared), number, health.clone());
        let server = tonic::transport::Server::builder().serve_with_incoming(
            tower::service_fn(move |request| service.clone().answer(request)),
            listener.map(|stream| stream.map(FixedConnection::new)),
        );
        let known = async {
            loop {
                let registered_with = identity(&kubelet);
                if let Err(error) = register(&kubelet, resource, shared.pre_start()).await {
                    shared.say(&format!("{}: {}", resource.name, error.message()));
                } else {
                    shared.say(&format!("{}: known to the kubelet", resource.name));
                    shared.count_gpus().await;
                    while identity(&kubelet) == registered_with && identity(&socket) == ours {
                        tokio::time::sleep(LOOK).await;
                    }
                }
                if identity(&socket) != ours || identity(&kubelet).is_none() {
                    return;
                }
                tokio::time::sleep(LOOK).await;
            }
        };
        tokio::select! {
            () = known => shared.say(&format!("{}: the kubelet was started anew", resource.name)),
            ended = server => if let Err(error) = ended {
                shared.say(&format!("{}: {error}", resource.name));
            },
        }
    }
}

impl<N> PluginShared<N> {
    /// Whether containers' starts matter: where two resources come together.
    fn pre_start(&self) -> bool {
        self.resources.len() > 1
    }
}

async fn register(
    kubelet: &Path,
    resource: &Resource,
    pre_start_required: bool,
) -> Result<(), tonic::Status> {
    let mut peer = proto::connect(kubelet).await?;
    let request = proto::RegisterRequest {
        version: proto::VERSION.to_owned(),
        endpoint: resource.socket.clone(),
        resource_name: resource.name.clone(),
        options: Some(proto::DevicePluginOptions {
            pre_start_required,
            get_preferred_allocation_available: true,
        }),
    };
    let _: proto::Empty = proto::call(&mut peer, proto::method::REGISTER, request).await?;
    Ok(())
}
