//! What a plugin answers to the kubelet.
//!
//! Called by `plugin` for each request. Must not know sockets, nor when it is made known to the kubelet.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::watch;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::WatchStream;
use tonic::body::Body;
use tonic::codegen::http;
use tonic::server::Grpc;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;
use tower::service_fn;

use super::{Node, PluginShared, Strategy, pods};
use crate::cdi::{self, CdiError, Spec};
use crate::kubernetes::allocations::{AllocationError, Limits};
use crate::kubernetes::container_settings::{environment, mounts};
use crate::kubernetes::extender::{Api, ApiError, Assumed, Share};
use crate::kubernetes::proto::{self, method};
use crate::kubernetes::resources::{DeviceKind, Grant, Resource};

/// Why a container does not get the GPU that a scheduler chose for its pod.
#[derive(Debug, thiserror::Error)]
enum ChoiceError {
    #[error(
        "the scheduler chose GPU {gpu} for pod {namespace}/{pod}, which has no room for {units} units: a pod \
         that it never saw has some of it, or another scheduler placed this one"
    )]
    NoRoom {
        gpu: u32,
        namespace: String,
        pod: String,
        units: usize,
    },
    #[error(
        "the scheduler chose several GPUs for a container of pod {namespace}/{pod}, and a container's \
         memory is on one: take the label aliyun.com/gpu-count off the pod"
    )]
    SeveralGpus { namespace: String, pod: String },
    #[error(
        "no pod of this node for which a GPU was chosen asks for {0} units: let the scheduler ask \
         the extender, or start the plugin without --extender-api"
    )]
    NoPod(usize),
}

/// Why a container does not get what it was granted.
#[derive(Debug, thiserror::Error)]
enum ResponseError {
    /// There is no such resource.
    #[error("{}", .0.message())]
    Resource(Box<Status>),
    #[error("cannot write {}: {source}", path.display())]
    Write {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error(transparent)]
    Specification(#[from] CdiError),
    #[error(transparent)]
    Allocation(#[from] AllocationError),
}

/// The service of one resource.
#[derive(Debug)]
pub struct Service<N> {
    shared: Arc<PluginShared<N>>,
    /// Which resource.
    number: usize,
    health: watch::Receiver<bool>,
}

impl<N> Clone for Service<N> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            number: self.number,
            health: self.health.clone(),
        }
    }
}

fn refused(error: impl std::fmt::Display) -> Status {
    Status::failed_precondition(error.to_string())
}

impl<N: Node> Service<N> {
    /// The service of a resource.
    pub fn new(shared: Arc<PluginShared<N>>, number: usize, health: watch::Receiver<bool>) -> Self {
        Self {
            shared,
            number,
            health,
        }
    }

    /// Answers a request.
    pub async fn answer(
        self,
        request: http::Request<Body>,
    ) -> Result<http::Response<Body>, Infallible> {
        /// Hands a message to a function, and its answer back.
        macro_rules! unary {
            ($asked:ty, $answer:ty, $method:ident) => {{
                let mut grpc = Grpc::new(ProstCodec::<$answer, $asked>::default());
                let answered = service_fn(move |request: Request<$asked>| {
                    let service = self.clone();
                    async move {
                        let answer = service.clone().$method(request.into_inner()).await;
                        if let Err(status) = &answer {
                            service.shared.say(status.message());
                        }
                        answer.map(Response::new)
                    }
                });
                Ok(grpc.unary(answered, request).await)
            }};
        }
        match request.uri().path() {
            method::OPTIONS => unary!(proto::Empty, proto::DevicePluginOptions, options),
            method::PREFERRED => unary!(
                proto::PreferredAllocationRequest,
                proto::PreferredAllocationResponse,
                preferred
            ),
            method::ALLOCATE => {
                unary!(proto::AllocateRequest, proto::AllocateResponse, allocate)
            }
            method::PRE_START => {
                unary!(proto::PreStartContainerRequest, proto::Empty, pre_start)
            }
            method::LIST_AND_WATCH => {
                let mut grpc = Grpc::new(ProstCodec::<_, proto::Empty>::default());
                let listed = service_fn(move |_: Request<proto::Empty>| {
                    let service = self.clone();
                    let lists = WatchStream::new(service.health.clone());
                    let lists = lists.map(move |healthy| service.list(healthy));
                    async move { Ok::<_, Status>(Response::new(lists)) }
                });
                Ok(grpc.server_streaming(listed, request).await)
            }
            other => Ok(Status::unimplemented(format!("no method {other}")).into_http()),
        }
    }

    fn resource(&self) -> Result<&Resource, Status> {
        let resource = self.shared.resources.get(self.number);
        resource.ok_or_else(|| refused("no such resource"))
    }

    async fn options(self, _: proto::Empty) -> Result<proto::DevicePluginOptions, Status> {
        Ok(proto::DevicePluginOptions {
            pre_start_required: self.shared.pre_start(),
            get_preferred_allocation_available: true,
        })
    }

    /// All devices, as healthy as the daemon.
    fn list(&self, healthy: bool) -> Result<proto::ListAndWatchResponse, Status> {
        let health = if healthy {
            proto::HEALTHY
        } else {
            proto::UNHEALTHY
        };
        let devices = self.resource()?.devices.iter().map(|device| {
            let near = device.gpu.and_then(|gpu| *self.shared.numa.get(gpu)?);
            proto::Device {
                id: device.id.clone(),
                health: health.to_owned(),
                topology: near.map(|id| proto::TopologyInfo {
                    nodes: vec![proto::NumaNode { id }],
                }),
            }
        });
        Ok(proto::ListAndWatchResponse {
            devices: devices.collect(),
        })
    }

    async fn preferred(
        self,
        request: proto::PreferredAllocationRequest,
    ) -> Result<proto::PreferredAllocationResponse, Status> {
        let resource = self.resource()?;
        let placement = self.shared.settings.placement;
        let waiting = self.waiting().await?;
        let each = request.container_requests.iter().map(|container| {
            let size = usize::try_from(container.allocation_size).unwrap_or(0);
            let mut free = container.available_device_ids.clone();
            // Where a scheduler has chosen, there is one GPU to choose from. If that has no room,
            // Allocate says so.
            if let Some((_, share)) = self.find(&waiting, size) {
                let is_chosen = |id: &String| self.number_of(resource, id) == share.gpu;
                if free.iter().filter(|id| is_chosen(id)).count() >= size {
                    free.retain(is_chosen);
                }
            }
            proto::DeviceIds {
                device_ids: resource.preferred(
                    &free,
                    &container.must_include_device_ids,
                    size,
                    placement,
                ),
            }
        });
        Ok(proto::PreferredAllocationResponse {
            container_responses: each.collect(),
        })
    }

    async fn allocate(
        self,
        request: proto::AllocateRequest,
    ) -> Result<proto::AllocateResponse, Status> {
        let resource = self.resource()?;
        let each = request.container_requests.iter();
        let grants: Vec<Grant> = each
            .map(|container| resource.grant(&container.device_ids, &self.shared.gpus))
            .collect::<Result<_, _>>()
            .map_err(refused)?;
        let of_request: usize = grants.iter().map(|grant| grant.units).sum();
        let waiting = self.waiting().await?;
        let mut answer = proto::AllocateResponse::default();
        for (container, grant) in request.container_requests.into_iter().zip(grants) {
            let pod = self.chosen(&waiting, &grant).map_err(refused)?;
            let of_pod = pod.as_ref().map(|(pod, _)| pod.units());
            let of_pod = of_pod.unwrap_or(u64::try_from(of_request).unwrap_or(u64::MAX));
            let given = self
                .container_response(container.device_ids, grant, of_pod)
                .await;
            answer.container_responses.push(given.map_err(refused)?);
            if let Some((pod, share)) = pod {
                self.follow(&waiting, pod, share).await.map_err(refused)?;
            }
        }
        Ok(answer)
    }

    /// The pods for which a scheduler has chosen, where there is one that does.
    async fn waiting(&self) -> Result<Vec<Assumed>, Status> {
        let asked = self.shared.api(Api::waiting_pods).await;
        asked.unwrap_or_else(|| Ok(Vec::new())).map_err(refused)
    }

    fn find(&self, waiting: &[Assumed], units: usize) -> Option<(Assumed, Share)> {
        let given = self.shared.given.lock();
        let (pod, share) = given.find(waiting, u64::try_from(units).ok()?)?;
        Some((pod.clone(), share))
    }

    /// The number of the GPU that a device is of.
    fn number_of(&self, resource: &Resource, id: &str) -> Option<u32> {
        let place = resource.device(id).ok()?.gpu?;
        self.shared.gpus.get(place).map(|gpu| gpu.index)
    }

    /// The pod that was meant, which is to have what was chosen for it. On a node with one GPU there is
    /// nothing to choose, and pods that never saw a scheduler that does are welcome.
    fn chosen(
        &self,
        waiting: &[Assumed],
        grant: &Grant,
    ) -> Result<Option<(Assumed, Share)>, ChoiceError> {
        if self.shared.settings.extender.is_none() {
            return Ok(None);
        }
        let numbers = grant
            .gpus
            .iter()
            .filter_map(|&place| self.shared.gpus.get(place));
        let number = numbers.map(|gpu| gpu.index).next();
        match self.find(waiting, grant.units) {
            Some((pod, share)) => match share.gpu {
                Some(_) if share.gpu == number => Ok(Some((pod, share))),
                Some(gpu) => Err(ChoiceError::NoRoom {
                    gpu,
                    namespace: pod.namespace,
                    pod: pod.name,
                    units: grant.units,
                }),
                None => Err(ChoiceError::SeveralGpus {
                    namespace: pod.namespace,
                    pod: pod.name,
                }),
            },
            None if self.shared.gpus.len() == 1 => Ok(None),
            None => Err(ChoiceError::NoPod(grant.units)),
        }
    }

    /// Says that a container has what was chosen; its pod is told when all of them have.
    async fn follow(
        &self,
        waiting: &[Assumed],
        pod: Assumed,
        share: Share,
    ) -> Result<(), ApiError> {
        let is_last = {
            let mut given = self.shared.given.lock();
            given.record(waiting, &pod, share)
        };
        match is_last {
            true => {
                let asked = self.shared.api(move |api| api.mark_assigned(&pod)).await;
                asked.unwrap_or(Ok(()))
            }
            false => Ok(()),
        }
    }

    /// Gives a container what it was granted.
    async fn container_response(
        &self,
        ids: Vec<String>,
        grant: Grant,
        of_pod: u64,
    ) -> Result<proto::ContainerAllocateResponse, ResponseError> {
        let settings = &self.shared.settings;
        let envs = environment(&settings.mode, &grant, of_pod, &self.shared.gpus);
        if grant.gpus.is_empty() {
            // A share alone is a variable; the container's memory brings the rest.
            return Ok(proto::ContainerAllocateResponse {
                envs,
                ..proto::ContainerAllocateResponse::default()
            });
        }
        let limits = Limits {
            memory: grant.memory(&self.shared.gpus),
            percentage: grant.percentage,
        };
        let name = self
            .resource()
            .map_err(|status| ResponseError::Resource(Box::new(status)))?
            .name
            .clone();
        let given = self
            .shared
            .with(move |_, all| all.allocate(&name, &ids, limits));
        let (folder, group) = given.await?;
        let mounts = mounts(&settings.mode, &folder, &settings.library);
        match &settings.strategy {
            Strategy::Mounts => Ok(proto::ContainerAllocateResponse {
                envs,
                mounts: mounts
                    .map(|(host_path, container_path)| proto::Mount {
                        container_path,
                        host_path,
                        read_only: true,
                    })
                    .into(),
                ..proto::ContainerAllocateResponse::default()
            }),
            Strategy::Cdi(folder) => {
                let env = envs.iter().map(|(name, value)| format!("{name}={value}"));
                let spec = Spec::of_one(&group, env.collect(), &mounts);
                self.write(folder, &group, &spec?.json())?;
                Ok(proto::ContainerAllocateResponse {
                    cdi_devices: vec![proto::CdiDevice {
                        name: format!("{}={group}", cdi::KIND),
                    }],
                    ..proto::ContainerAllocateResponse::default()
                })
            }
        }
    }

    /// Writes a specification, so that there is always a whole one.
    fn write(&self, folder: &Path, group: &str, text: &str) -> Result<(), ResponseError> {
        let path = |group: &str, ending| folder.join(format!("openmps-{group}.{ending}"));
        let write = || -> std::io::Result<()> {
            std::fs::create_dir_all(folder)?;
            std::fs::write(path(group, "new"), text)?;
            std::fs::rename(path(group, "new"), path(group, "json"))
        };
        write().map_err(|source| ResponseError::Write {
            path: path(group, "json"),
            source,
        })
    }

    /// A container is about to be started: by now the kubelet says which devices it has of both
    /// resources, and its group gets its part of the compute.
    async fn pre_start(
        self,
        request: proto::PreStartContainerRequest,
    ) -> Result<proto::Empty, Status> {
        if !self.shared.pre_start() {
            return Ok(proto::Empty {});
        }
        let pods = pods(&self.shared.settings.pod_resources).await?;
        let resource = self.resource()?;
        let containers = pods.pod_resources.iter().flat_map(|pod| &pod.containers);
        let of = |container: &proto::ContainerResources, name: &str| -> BTreeSet<String> {
            let devices = container.devices.iter();
            devices
                .filter(|devices| devices.resource_name == name)
                .flat_map(|devices| devices.device_ids.iter().cloned())
                .collect()
        };
        let asked = request.device_ids.first();
        // The last, since pods that have ended may still be named with what they had.
        let found = containers
            .rev()
            .find(|container| asked.is_some_and(|id| of(container, &resource.name).contains(id)));
        let container = found.ok_or_else(|| {
            refused("the kubelet names no container with these devices; it will ask again")
        })?;
        let mut memory = None;
        let mut percentage = None;
        for resource in &self.shared.resources {
            let devices = of(container, &resource.name);
            match resource.kind {
                _ if devices.is_empty() => {}
                DeviceKind::Share => percentage = Some(u32::try_from(devices.len()).unwrap_or(100)),
                _ => memory = Some((resource.name.clone(), devices)),
            }
        }
        let Some((name, devices)) = memory else {
            return Err(refused(format!(
                "container {} asks for a share of a GPU and for none of its memory: ask for \
                 openmps.org/gpu-memory too",
                container.name
            )));
        };
        let percentage = percentage.map(|part| part.min(100));
        let set = self
            .shared
            .with(move |_, all| all.set_percentage(&name, &devices, percentage));
        set.await.map_err(refused)?;
        Ok(proto::Empty {})
    }
}
