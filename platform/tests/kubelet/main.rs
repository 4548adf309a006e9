//! A kubelet that follows the protocol, and the plugin that talks with it: newer than the one that
//! `cargo xtask kubernetes` runs, and in every state that a real one is hard to bring into.

#![cfg(feature = "kubernetes")]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod extender;

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use platform::gpus::{Gpu, MIB};
use platform::kubernetes::allocations::{BoxError, Groups, Limits};
use platform::kubernetes::events::ClientFault;
use platform::kubernetes::extender::Api;
use platform::kubernetes::memory_unit::MemoryUnit;
use platform::kubernetes::plugin::{self, Node, Settings, Stopper, Strategy};
use platform::kubernetes::proto::{self, method};
use platform::kubernetes::resources::{Mode, Placement};
use platform::kubernetes::sharing::Sharing;
use tokio::net::UnixListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::body::Body;
use tonic::client::Grpc;
use tonic::codegen::http;
use tonic::transport::{Channel, Server};
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;
use tower::service_fn;

const PATIENCE: Duration = Duration::from_secs(30);

/// A daemon: its groups, and whether it answers.
#[derive(Clone, Debug, Default)]
struct Daemon(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    groups: BTreeMap<String, Limits>,
    is_dead: bool,
    /// The number of its first device.
    first: u32,
    faults: Vec<ClientFault>,
    /// How often these were asked for.
    looks: u64,
}

impl Daemon {
    fn groups(&self) -> BTreeMap<String, Limits> {
        self.0.lock().unwrap().groups.clone()
    }

    fn fails(&self, fault: ClientFault) {
        self.0.lock().unwrap().faults.push(fault);
    }

    fn looks(&self) -> u64 {
        self.0.lock().unwrap().looks
    }

    fn answers(&self) -> Result<std::sync::MutexGuard<'_, State>, BoxError> {
        let state = self.0.lock().unwrap();
        if state.is_dead {
            Err("nobody there".into())
        } else {
            Ok(state)
        }
    }
}

impl Groups for Daemon {
    fn add(&mut self, name: &str, limits: &Limits) -> Result<PathBuf, BoxError> {
        self.answers()?
            .groups
            .insert(name.to_owned(), limits.clone());
        Ok(Path::new("/pipe/groups").join(name))
    }

    fn change(&mut self, name: &str, limits: &Limits) -> Result<(), BoxError> {
        self.add(name, limits).map(drop)
    }

    fn remove(&mut self, name: &str) -> Result<(), BoxError> {
        self.answers()?
            .groups
            .remove(name)
            .map(drop)
            .ok_or_else(|| "none".into())
    }

    fn names(&mut self) -> Result<BTreeSet<String>, BoxError> {
        Ok(self.answers()?.groups.keys().cloned().collect())
    }
}

impl Node for Daemon {
    fn gpus(&mut self) -> Result<Vec<Gpu>, BoxError> {
        let first = self.answers()?.first;
        let gpu = |index: u32| Gpu {
            index,
            uuid: format!("GPU-{index}"),
            memory: 4096 * MIB,
            ..Gpu::default()
        };
        Ok(vec![gpu(first), gpu(first + 1)])
    }

    fn probe(&mut self) -> Result<(), BoxError> {
        self.answers().map(drop)
    }

    fn faults(&mut self) -> Result<Vec<ClientFault>, BoxError> {
        let mut state = self.answers()?;
        state.looks += 1;
        Ok(state.faults.clone())
    }
}

/// A folder of a kubelet's, and a plugin in it.
struct Machine {
    folder: tempfile::TempDir,
    daemon: Daemon,
    extender: bool,
    stopper: Option<(Stopper, std::thread::JoinHandle<()>)>,
}

impl Machine {
    fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
            daemon: Daemon::default(),
            extender: false,
            stopper: None,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn start(&mut self, mode: Mode, strategy: Strategy) {
        let settings = Settings {
            mode,
            placement: Placement::Binpack,
            strategy,
            sockets: self.folder.path().to_owned(),
            pod_resources: self.path("pods.sock"),
            state: self.path("allocations.json"),
            library: "/lib/openmps".into(),
            probe_interval: Duration::from_millis(50),
            extender: self.extender.then(|| Api {
                socket: self.path("api.sock"),
                node: "node1".into(),
            }),
            say: |text| println!("plugin: {text}"),
        };
        let (stopper, stop) = plugin::stop();
        let daemon = self.daemon.clone();
        let thread = std::thread::spawn(move || plugin::run(settings, daemon, stop).unwrap());
        self.stopper = Some((stopper, thread));
    }

    fn end(&mut self) {
        if let Some((stopper, thread)) = self.stopper.take() {
            stopper.stop();
            thread.join().unwrap();
        }
    }

    /// A kubelet that starts: it removes all sockets, then listens.
    fn kubelet(&self) -> mpsc::UnboundedReceiver<proto::RegisterRequest> {
        for entry in std::fs::read_dir(self.folder.path()).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|ending| ending == "sock") {
                std::fs::remove_file(path).unwrap();
            }
        }
        let listener = UnixListener::bind(self.path("kubelet.sock")).unwrap();
        let (sender, receiver) = mpsc::unbounded_channel();
        tokio::spawn(serve(listener, move |request: proto::RegisterRequest| {
            sender.send(request).ok();
            proto::Empty {}
        }));
        receiver
    }

    async fn plugin(&self, register: &proto::RegisterRequest) -> Grpc<Channel> {
        proto::connect(&self.path(&register.endpoint))
            .await
            .unwrap()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if let Some((stopper, _)) = &self.stopper {
            stopper.stop();
        }
    }
}

/// Serves one method, whatever its name.
async fn serve<A, B>(listener: UnixListener, answer: impl Fn(A) -> B + Clone + Send + 'static)
where
    A: prost::Message + Default + Send + 'static,
    B: prost::Message + Default + Send + 'static,
{
    let service = service_fn(move |request: http::Request<Body>| {
        let answer = answer.clone();
        async move {
            let mut grpc = tonic::server::Grpc::new(ProstCodec::<B, A>::default());
            let one = service_fn(move |request: Request<A>| {
                let answered = answer(request.into_inner());
                async move { Ok::<_, Status>(Response::new(answered)) }
            });
            Ok::<_, Infallible>(grpc.unary(one, request).await)
        }
    });
    let incoming = UnixListenerStream::new(listener);
    Server::builder()
        .serve_with_incoming(service, incoming)
        .await
        .ok();
}

async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("soon")
}

async fn watch(plugin: &mut Grpc<Channel>) -> Streaming<proto::ListAndWatchResponse> {
    plugin.ready().await.unwrap();
    let path = http::uri::PathAndQuery::from_static(method::LIST_AND_WATCH);
    let codec = ProstCodec::<proto::Empty, proto::ListAndWatchResponse>::default();
    let answer = plugin
        .server_streaming(Request::new(proto::Empty {}), path, codec)
        .await;
    answer.unwrap().into_inner()
}

async fn next(list: &mut Streaming<proto::ListAndWatchResponse>) -> Vec<proto::Device> {
    soon(list.message()).await.unwrap().unwrap().devices
}

async fn allocate(
    plugin: &mut Grpc<Channel>,
    containers: &[&[&str]],
) -> Result<Vec<proto::ContainerAllocateResponse>, Status> {
    let each = containers.iter().map(|ids| proto::DeviceIds {
        device_ids: ids.iter().map(|&id| id.to_owned()).collect(),
    });
    let request = proto::AllocateRequest {
        container_requests: each.collect(),
    };
    let answer = proto::call(plugin, method::ALLOCATE, request).await;
    answer.map(|answer: proto::AllocateResponse| answer.container_responses)
}

/// Which of the devices the plugin would rather have taken.
async fn preferred(
    plugin: &mut Grpc<Channel>,
    available_device_ids: Vec<String>,
    allocation_size: i32,
) -> Vec<String> {
    let request = proto::PreferredAllocationRequest {
        container_requests: vec![proto::ContainerPreferredAllocationRequest {
            available_device_ids,
            must_include_device_ids: Vec::new(),
            allocation_size,
        }],
    };
    let mut answer: proto::PreferredAllocationResponse =
        proto::call(plugin, method::PREFERRED, request)
            .await
            .unwrap();
    answer.container_responses.swap_remove(0).device_ids
}

const ALIYUN: Mode = Mode::Aliyun {
    unit: MemoryUnit::Gib,
};

#[tokio::test]
async fn a_plugin_registers_lists_and_allocates() {
    let mut machine = Machine::new();
    let mut registered = machine.kubelet();
    machine.start(ALIYUN, Strategy::Mounts);
    let register = soon(registered.recv()).await.unwrap();
    assert_eq!(register.version, "v1beta1");
    assert_eq!(register.endpoint, "aliyungpushare.sock");
    assert_eq!(register.resource_name, "aliyun.com/gpu-mem");
    let options = register.options.clone().unwrap();
    assert!(options.get_preferred_allocation_available && !options.pre_start_required);
    let mut plugin = machine.plugin(&register).await;
    let asked = proto::call(&mut plugin, method::OPTIONS, proto::Empty {}).await;
    assert_eq!(asked.map_err(|status| status.to_string()), Ok(options));

    let devices = next(&mut watch(&mut plugin).await).await;
    assert_eq!(devices.len(), 8);
    assert_all(&devices, "Healthy");
    assert_eq!(devices[5].id, "GPU-1-_-1");

    let ids = devices[2..].iter().map(|device| device.id.clone());
    let chosen = preferred(&mut plugin, ids.collect(), 3).await;
    assert!(
        chosen.iter().all(|id| id.starts_with("GPU-1-_-")),
        "{chosen:?}"
    );

    // Two containers of a pod: each has its own group.
    let answers = allocate(&mut plugin, &[&["GPU-1-_-0", "GPU-1-_-1"], &["GPU-1-_-2"]]).await;
    let answers = answers.unwrap();
    let groups = machine.daemon.groups();
    assert_eq!(groups.len(), 2);
    for (answer, size, units) in [(&answers[0], "2048M", "2"), (&answers[1], "1024M", "1")] {
        let mount = |inside: &str| {
            let mut mounts = answer.mounts.iter();
            let mount = mounts.find(|mount| mount.container_path == inside).unwrap();
            assert!(mount.read_only);
            mount.host_path.clone()
        };
        assert_eq!(mount("/usr/local/openmps/lib"), "/lib/openmps");
        let group = mount("/tmp/nvidia-mps")
            .strip_prefix("/pipe/groups/")
            .unwrap()
            .to_owned();
        assert!(group.starts_with("k8s-aliyun-"), "{group}");
        assert_eq!(groups[&group].memory["GPU-1"], size);
        assert_eq!(groups[&group].memory["GPU-0"], "1");
        assert_eq!(answer.envs["NVIDIA_VISIBLE_DEVICES"], "void");
        assert_eq!(answer.envs["ALIYUN_COM_GPU_MEM_IDX"], "1");
        assert_eq!(answer.envs["ALIYUN_COM_GPU_MEM_POD"], "3");
        assert_eq!(answer.envs["ALIYUN_COM_GPU_MEM_CONTAINER"], units);
    }
    for wrong in [&["GPU-0-_-0", "GPU-1-_-3"][..], &["GPU-9-_-0"], &[]] {
        allocate(&mut plugin, &[wrong]).await.unwrap_err();
    }
    assert_eq!(machine.daemon.groups().len(), 2);
    let unknown =
        proto::call::<_, proto::Empty>(&mut plugin, "/v1beta1.DevicePlugin/No", proto::Empty {});
    assert_eq!(
        unknown.await.unwrap_err().code(),
        tonic::Code::Unimplemented
    );
    machine.end();
    assert!(!machine.path("aliyungpushare.sock").exists());
}

fn assert_all(devices: &[proto::Device], health: &str) {
    let other = devices.iter().find(|device| device.health != health);
    assert!(other.is_none() && !devices.is_empty(), "{other:?}");
}

#[tokio::test]
async fn health_is_the_daemons() {
    let mut machine = Machine::new();
    let mut registered = machine.kubelet();
    machine.start(ALIYUN, Strategy::Mounts);
    let mut plugin = machine
        .plugin(&soon(registered.recv()).await.unwrap())
        .await;
    let mut list = watch(&mut plugin).await;
    assert_all(&next(&mut list).await, "Healthy");
    allocate(&mut plugin, &[&["GPU-0-_-0"]]).await.unwrap();
    let groups = machine.daemon.groups();
    machine.daemon.0.lock().unwrap().is_dead = true;
    assert_all(&next(&mut list).await, "Unhealthy");
    let error = allocate(&mut plugin, &[&["GPU-0-_-1"]]).await.unwrap_err();
    assert!(error.message().contains("nobody there"), "{error}");
    // The next daemon knows of no group; it does before devices are healthy again.
    *machine.daemon.0.lock().unwrap() = State::default();
    assert_all(&next(&mut list).await, "Healthy");
    assert_eq!(machine.daemon.groups(), groups);

    // And one with other devices: they are offered in place of those.
    machine.daemon.0.lock().unwrap().is_dead = true;
    assert_all(&next(&mut list).await, "Unhealthy");
    *machine.daemon.0.lock().unwrap() = State {
        first: 5,
        ..State::default()
    };
    let mut plugin = machine
        .plugin(&soon(registered.recv()).await.unwrap())
        .await;
    let devices = next(&mut watch(&mut plugin).await).await;
    assert_eq!((devices[0].id.as_str(), devices.len()), ("GPU-5-_-0", 8));
}

#[tokio::test]
async fn another_kubelet_and_another_plugin_go_on() {
    let mut machine = Machine::new();
    // The plugin is first here, and the daemon last.
    machine.daemon.0.lock().unwrap().is_dead = true;
    machine.start(ALIYUN, Strategy::Mounts);
    let mut registered = machine.kubelet();
    machine.daemon.0.lock().unwrap().is_dead = false;
    let register = soon(registered.recv()).await.unwrap();
    let mut plugin = machine.plugin(&register).await;
    allocate(&mut plugin, &[&["GPU-0-_-0"]]).await.unwrap();
    let groups = machine.daemon.groups();

    let mut registered = machine.kubelet();
    assert_eq!(soon(registered.recv()).await.unwrap(), register);
    let mut plugin = machine.plugin(&register).await;
    assert_eq!(next(&mut watch(&mut plugin).await).await.len(), 8);
    assert_eq!(machine.daemon.groups(), groups);

    machine.end();
    assert_eq!(machine.daemon.groups(), groups, "clients go on");
    machine.start(ALIYUN, Strategy::Mounts);
    assert_eq!(soon(registered.recv()).await.unwrap(), register);
    let mut plugin = machine.plugin(&register).await;
    assert_eq!(machine.daemon.groups(), groups);
    // The same device again: its container is gone.
    allocate(&mut plugin, &[&["GPU-0-_-0"]]).await.unwrap();
    assert_eq!(machine.daemon.groups().len(), 1);
    assert_ne!(machine.daemon.groups(), groups);
}

#[tokio::test]
async fn kubelets_that_know_cdi_get_a_device_of_it() {
    let mut machine = Machine::new();
    let mut registered = machine.kubelet();
    let folder = machine.path("cdi");
    let sharing = Sharing {
        resource: "nvidia.com/gpu.shared".into(),
        replicas: 4,
        only_one: true,
    };
    machine.start(Mode::Nvidia(sharing), Strategy::Cdi(folder.clone()));
    let register = soon(registered.recv()).await.unwrap();
    assert_eq!(register.endpoint, "nvidia-gpu.shared.sock");
    let mut plugin = machine.plugin(&register).await;
    let error = allocate(&mut plugin, &[&["GPU-0::0", "GPU-0::1"]])
        .await
        .unwrap_err();
    assert_eq!(
        error.message(),
        "maximum request size for shared resources is 1; found 2"
    );
    let answer = allocate(&mut plugin, &[&["GPU-1::3"]])
        .await
        .unwrap()
        .remove(0);
    assert!(answer.envs.is_empty() && answer.mounts.is_empty());
    let (group, limits) = machine.daemon.groups().pop_first().unwrap();
    assert_eq!(
        (limits.memory["GPU-1"].as_str(), limits.percentage),
        ("1024M", Some(25))
    );
    assert_eq!(
        answer.cdi_devices[0].name,
        format!("openmps.org/gpu={group}")
    );
    let text = std::fs::read_to_string(folder.join(format!("openmps-{group}.json"))).unwrap();
    let spec: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(spec["kind"], "openmps.org/gpu");
    let edits = &spec["devices"][0]["containerEdits"];
    assert_eq!(
        edits["mounts"][0]["containerPath"],
        "/mps/nvidia.com/gpu.shared/pipe"
    );
    assert!(
        edits["env"]
            .as_array()
            .unwrap()
            .contains(&"NVIDIA_VISIBLE_DEVICES=void".into())
    );
}

#[tokio::test]
async fn memory_and_a_share_of_the_compute_come_together_at_the_start() {
    let mut machine = Machine::new();
    let mut registered = machine.kubelet();
    let pods = Arc::new(Mutex::new(Vec::new()));
    let listener = UnixListener::bind(machine.path("pods.sock")).unwrap();
    let named = Arc::clone(&pods);
    tokio::spawn(serve(listener, move |_: proto::Empty| {
        proto::ListPodResourcesResponse {
            pod_resources: named.lock().unwrap().clone(),
        }
    }));
    machine.start(
        Mode::Openmps {
            unit: MemoryUnit::Mib,
        },
        Strategy::Mounts,
    );
    let mut plugins = BTreeMap::new();
    for _ in 0..2 {
        let register = soon(registered.recv()).await.unwrap();
        assert!(register.options.clone().unwrap().pre_start_required);
        plugins.insert(
            register.resource_name.clone(),
            machine.plugin(&register).await,
        );
    }
    let memory: Vec<String> = (0..100).map(|number| format!("GPU-1-_-{number}")).collect();
    let memory: Vec<&str> = memory.iter().map(String::as_str).collect();
    let share = ["share-0", "share-7"];
    let of_memory = plugins.get_mut("openmps.org/gpu-memory").unwrap();
    let answer = allocate(of_memory, &[&memory]).await.unwrap().remove(0);
    assert_eq!(
        answer.envs["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"],
        "GPU-1=100M"
    );
    let of_share = plugins.get_mut("openmps.org/gpu-share").unwrap();
    let answer = allocate(of_share, &[&share]).await.unwrap().remove(0);
    assert_eq!(answer.envs["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"], "2");
    assert!(answer.mounts.is_empty());

    let ids = |ids: &[&str]| ids.iter().map(|&id| id.to_owned()).collect::<Vec<_>>();
    let request = proto::PreStartContainerRequest {
        device_ids: ids(&share),
    };
    let devices = |name: &str, list: &[&str]| proto::ContainerDevices {
        resource_name: name.to_owned(),
        device_ids: ids(list),
    };
    let pod = |devices: Vec<proto::ContainerDevices>| proto::PodResources {
        name: "pod".into(),
        namespace: "default".into(),
        containers: vec![proto::ContainerResources {
            name: "c".into(),
            devices,
        }],
    };
    // The kubelet does not say yet; then it is a share alone; then both, the memory in two pieces.
    let start = proto::call::<_, proto::Empty>(of_share, method::PRE_START, request.clone());
    assert!(start.await.unwrap_err().message().contains("no container"));
    *pods.lock().unwrap() = vec![pod(vec![devices("openmps.org/gpu-share", &share)])];
    let start = proto::call::<_, proto::Empty>(of_share, method::PRE_START, request.clone());
    assert!(
        start
            .await
            .unwrap_err()
            .message()
            .contains("ask for openmps.org/gpu-memory")
    );
    *pods.lock().unwrap() = vec![pod(vec![
        devices("openmps.org/gpu-memory", &memory[..50]),
        devices("openmps.org/gpu-share", &share),
        devices("openmps.org/gpu-memory", &memory[50..]),
    ])];
    let start = proto::call::<_, proto::Empty>(of_share, method::PRE_START, request);
    start.await.unwrap();
    let limits = machine.daemon.groups().pop_first().unwrap().1;
    assert_eq!(
        (limits.memory["GPU-1"].as_str(), limits.percentage),
        ("100M", Some(2))
    );
}

#[tokio::test]
async fn a_plugin_that_comes_before_the_daemon_waits_for_it() {
    let mut machine = Machine::new();
    machine.daemon.0.lock().unwrap().is_dead = true;
    let mut registered = machine.kubelet();
    machine.start(ALIYUN, Strategy::Mounts);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(registered.try_recv().is_err(), "it offers what nobody has");
    machine.daemon.0.lock().unwrap().is_dead = false;
    let register = soon(registered.recv()).await.unwrap();
    let mut plugin = machine.plugin(&register).await;
    assert_all(&next(&mut watch(&mut plugin).await).await, "Healthy");
}
