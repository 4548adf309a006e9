//! The messages of the device plugin interface (package `v1beta1`) and of pod resources (package `v1`),
//! by their numbers, and how they are sent.
//!
//! Used by `plugin` and its `service`. Must not know what a device is.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};
use tonic_prost::ProstCodec;

/// The version of the interface.
pub const VERSION: &str = "v1beta1";

/// A device that can be given.
pub const HEALTHY: &str = "Healthy";

/// A device that cannot.
pub const UNHEALTHY: &str = "Unhealthy";

/// Methods, as gRPC names them.
pub mod method {
    /// Of the kubelet: a plugin makes itself known.
    pub const REGISTER: &str = "/v1beta1.Registration/Register";
    /// What the plugin can do.
    pub const OPTIONS: &str = "/v1beta1.DevicePlugin/GetDevicePluginOptions";
    /// All devices, again at every change.
    pub const LIST_AND_WATCH: &str = "/v1beta1.DevicePlugin/ListAndWatch";
    /// Which devices a container should have.
    pub const PREFERRED: &str = "/v1beta1.DevicePlugin/GetPreferredAllocation";
    /// Devices are given to a container.
    pub const ALLOCATE: &str = "/v1beta1.DevicePlugin/Allocate";
    /// A container is about to be started.
    pub const PRE_START: &str = "/v1beta1.DevicePlugin/PreStartContainer";
    /// Of the kubelet: which container has which devices.
    pub const LIST_PODS: &str = "/v1.PodResourcesLister/List";
}

/// How long a kubelet may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Bytes of the longest answer that is read: a node's pods with all their devices.
const LONGEST: usize = 64 << 20;

/// A connection to a socket.
///
/// # Errors
/// When nobody is there.
pub async fn connect(socket: &Path) -> Result<Grpc<Channel>, Status> {
    let failed = |error: &dyn std::fmt::Display| {
        Status::unavailable(format!("{}: {error}", socket.display()))
    };
    let endpoint = Endpoint::from_shared(format!("unix:{}", socket.display()))
        .map_err(|error| failed(&error))?
        .connect_timeout(PATIENCE);
    let channel = endpoint.connect().await.map_err(|error| failed(&error))?;
    Ok(Grpc::new(channel).max_decoding_message_size(LONGEST))
}

/// Calls a method and waits for its answer.
///
/// # Errors
/// The status, and when there is no answer.
pub async fn call<Asked, Answer>(
    peer: &mut Grpc<Channel>,
    method: &'static str,
    message: Asked,
) -> Result<Answer, Status>
where
    Asked: prost::Message + Send + Sync + 'static,
    Answer: prost::Message + Default + Send + Sync + 'static,
{
    let answer = async {
        let ready = peer.ready().await;
        ready.map_err(|error| Status::unavailable(error.to_string()))?;
        let path = PathAndQuery::from_static(method);
        let codec = ProstCodec::<Asked, Answer>::default();
        peer.unary(Request::new(message), path, codec).await
    };
    let answer = tokio::time::timeout(PATIENCE, answer).await;
    let answer = answer.map_err(|_| Status::deadline_exceeded("no answer"))??;
    Ok(answer.into_inner())
}

/// Nothing.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Empty {}

/// A plugin makes itself known.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RegisterRequest {
    /// [`VERSION`]
    #[prost(string, tag = "1")]
    pub version: String,
    /// The file name of its socket.
    #[prost(string, tag = "2")]
    pub endpoint: String,
    /// What it offers.
    #[prost(string, tag = "3")]
    pub resource_name: String,
    /// What it can do.
    #[prost(message, optional, tag = "4")]
    pub options: Option<DevicePluginOptions>,
}

/// What a plugin can do.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DevicePluginOptions {
    /// Whether it wants to be asked before a container starts.
    #[prost(bool, tag = "1")]
    pub pre_start_required: bool,
    /// Whether it has preferences.
    #[prost(bool, tag = "2")]
    pub get_preferred_allocation_available: bool,
}

/// All devices of a plugin.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ListAndWatchResponse {
    /// They.
    #[prost(message, repeated, tag = "1")]
    pub devices: Vec<Device>,
}

/// A device.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Device {
    /// Its id.
    #[prost(string, tag = "1")]
    pub id: String,
    /// [`HEALTHY`] or [`UNHEALTHY`].
    #[prost(string, tag = "2")]
    pub health: String,
    /// Where it is.
    #[prost(message, optional, tag = "3")]
    pub topology: Option<TopologyInfo>,
}

/// Where a device is.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TopologyInfo {
    /// NUMA nodes that it is near to.
    #[prost(message, repeated, tag = "1")]
    pub nodes: Vec<NumaNode>,
}

/// A NUMA node.
#[derive(Clone, PartialEq, prost::Message)]
pub struct NumaNode {
    /// Its number.
    #[prost(int64, tag = "1")]
    pub id: i64,
}

/// Which devices should containers have?
#[derive(Clone, PartialEq, prost::Message)]
pub struct PreferredAllocationRequest {
    /// For each container.
    #[prost(message, repeated, tag = "1")]
    pub container_requests: Vec<ContainerPreferredAllocationRequest>,
}

/// Which devices should a container have?
#[derive(Clone, PartialEq, prost::Message)]
pub struct ContainerPreferredAllocationRequest {
    /// Those that are free.
    #[prost(string, repeated, tag = "1")]
    pub available_device_ids: Vec<String>,
    /// Those that it has in any case.
    #[prost(string, repeated, tag = "2")]
    pub must_include_device_ids: Vec<String>,
    /// How many.
    #[prost(int32, tag = "3")]
    pub allocation_size: i32,
}

/// Which devices containers should have.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PreferredAllocationResponse {
    /// For each container.
    #[prost(message, repeated, tag = "1")]
    pub container_responses: Vec<DeviceIds>,
}

/// Ids of devices; as an answer about a container's.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DeviceIds {
    /// They.
    #[prost(string, repeated, tag = "1")]
    pub device_ids: Vec<String>,
}

/// Devices are given to containers.
#[derive(Clone, PartialEq, prost::Message)]
pub struct AllocateRequest {
    /// To each container.
    #[prost(message, repeated, tag = "1")]
    pub container_requests: Vec<DeviceIds>,
}

/// What containers need for their devices.
#[derive(Clone, PartialEq, prost::Message)]
pub struct AllocateResponse {
    /// Each.
    #[prost(message, repeated, tag = "1")]
    pub container_responses: Vec<ContainerAllocateResponse>,
}

/// What a container needs for its devices.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ContainerAllocateResponse {
    /// Variables.
    #[prost(btree_map = "string, string", tag = "1")]
    pub envs: BTreeMap<String, String>,
    /// Mounts.
    #[prost(message, repeated, tag = "2")]
    pub mounts: Vec<Mount>,
    /// Annotations for the container's runtime.
    #[prost(btree_map = "string, string", tag = "4")]
    pub annotations: BTreeMap<String, String>,
    /// Devices of CDI, which kubelets from 1.28 on know.
    #[prost(message, repeated, tag = "5")]
    pub cdi_devices: Vec<CdiDevice>,
}

/// A mount.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Mount {
    /// Where the container has it.
    #[prost(string, tag = "1")]
    pub container_path: String,
    /// Where the host has it.
    #[prost(string, tag = "2")]
    pub host_path: String,
    /// Whether it cannot be written to.
    #[prost(bool, tag = "3")]
    pub read_only: bool,
}

/// A device of CDI.
#[derive(Clone, PartialEq, prost::Message)]
pub struct CdiDevice {
    /// `vendor/class=name`
    #[prost(string, tag = "1")]
    pub name: String,
}

/// A container with these devices is about to be started.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PreStartContainerRequest {
    /// Their ids.
    #[prost(string, repeated, tag = "1")]
    pub device_ids: Vec<String>,
}

/// Which pod has what.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ListPodResourcesResponse {
    /// Each pod.
    #[prost(message, repeated, tag = "1")]
    pub pod_resources: Vec<PodResources>,
}

/// What a pod has.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PodResources {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its namespace.
    #[prost(string, tag = "2")]
    pub namespace: String,
    /// Its containers.
    #[prost(message, repeated, tag = "3")]
    pub containers: Vec<ContainerResources>,
}

/// What a container has.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ContainerResources {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Devices of each resource; a resource may be there more than once.
    #[prost(message, repeated, tag = "2")]
    pub devices: Vec<ContainerDevices>,
}

/// A container's devices of a resource.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ContainerDevices {
    /// The resource.
    #[prost(string, tag = "1")]
    pub resource_name: String,
    /// Their ids.
    #[prost(string, repeated, tag = "2")]
    pub device_ids: Vec<String>,
}
