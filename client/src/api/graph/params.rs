//! Parameters of nodes that are there.
//!
//! Asking for them and setting them, in the graph. Those of executable graphs stand in `exec`.
//!
//! Called by the shells of `exports`; `exec` takes the conversion of attributes from here. Must not know how a node
//! is lowered.

use cuda_abi::CUresult;
use cuda_abi::types::{
    CUDA_HOST_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS_v1,
    CUDA_MEM_ALLOC_NODE_PARAMS, CUDA_MEMCPY3D, CUDA_MEMSET_NODE_PARAMS, CUcontext, CUdeviceptr,
    CUevent, CUfunction, CUgraph, CUgraphNode, CUgraphNodeParams, CUkernel, CUkernelNodeAttrID,
    CUkernelNodeAttrValue, CUlaunchAttribute, CUlaunchAttributeID, CUlaunchAttributeValue,
    CUmemLocation,
};

use super::super::Outcome;
use super::described::{DEVICE, MANAGED, PINNED, copy, event, in_context, kernel, set, widened};
use super::graphs;
use super::nodes::generic;
use crate::code::launch::recorded::RecordedLaunch;
use crate::code::launch::{self, LaunchShape};
use crate::context;
use crate::graph::node::{FillNode, HostNode, Payload};
use crate::pointers::{In, Out};
use crate::session::session;

/// The attributes of a kernel node.
pub(super) fn attributes_of(node: CUgraphNode) -> Result<Vec<CUlaunchAttribute>, CUresult> {
    match graphs()?.payload(node.bits())? {
        Payload::Kernel(kernel) => Ok(kernel.attributes),
        _ => Err(CUresult::ERROR_INVALID_VALUE),
    }
}

pub(crate) fn cuGraphNodeSetParams(
    node: CUgraphNode,
    node_params: In<CUgraphNodeParams>,
) -> Outcome {
    let params = node_params.get()?;
    let former = attributes_of(node).unwrap_or_default();
    set(node, generic(&params, None, former)?)
}

pub(crate) fn cuGraphKernelNodeSetParams(
    node: CUgraphNode,
    node_params: In<CUDA_KERNEL_NODE_PARAMS_v1>,
) -> Outcome {
    cuGraphKernelNodeSetParams_v2(node, In::of(&widened(&node_params.get()?)))
}

pub(crate) fn cuGraphKernelNodeSetParams_v2(
    node: CUgraphNode,
    node_params: In<CUDA_KERNEL_NODE_PARAMS>,
) -> Outcome {
    let former = attributes_of(node)?;
    let kernel = kernel(&node_params.get()?, former)?;
    set(node, Payload::Kernel(Box::new(kernel)))
}

/// A kernel node as the program is shown it. The pointers in it are the node's own.
fn described_kernel(kernel: &RecordedLaunch) -> CUDA_KERNEL_NODE_PARAMS {
    let LaunchShape {
        grid,
        block,
        shared,
        ..
    } = kernel.shape;
    CUDA_KERNEL_NODE_PARAMS {
        func: CUfunction::from_bits(kernel.function),
        gridDimX: grid[0],
        gridDimY: grid[1],
        gridDimZ: grid[2],
        blockDimX: block[0],
        blockDimY: block[1],
        blockDimZ: block[2],
        sharedMemBytes: shared,
        kernelParams: kernel.params(),
        extra: std::ptr::null_mut(),
        kern: CUkernel::NULL,
        ctx: CUcontext::NULL,
    }
}

pub(crate) fn cuGraphKernelNodeGetParams(
    node: CUgraphNode,
    node_params: Out<CUDA_KERNEL_NODE_PARAMS_v1>,
) -> Outcome {
    let wide = graphs()?.with_node(node.bits(), |payload| match payload {
        Payload::Kernel(kernel) => Ok(described_kernel(kernel)),
        _ => Err(CUresult::ERROR_INVALID_VALUE),
    })?;
    node_params.set(CUDA_KERNEL_NODE_PARAMS_v1 {
        func: wide.func,
        gridDimX: wide.gridDimX,
        gridDimY: wide.gridDimY,
        gridDimZ: wide.gridDimZ,
        blockDimX: wide.blockDimX,
        blockDimY: wide.blockDimY,
        blockDimZ: wide.blockDimZ,
        sharedMemBytes: wide.sharedMemBytes,
        kernelParams: wide.kernelParams,
        extra: wide.extra,
    })
}

pub(crate) fn cuGraphKernelNodeGetParams_v2(
    node: CUgraphNode,
    node_params: Out<CUDA_KERNEL_NODE_PARAMS>,
) -> Outcome {
    let session = session()?;
    let told = |payload: &mut Payload| {
        let Payload::Kernel(kernel) = payload else {
            return Err(CUresult::ERROR_INVALID_VALUE);
        };
        let mut wide = described_kernel(kernel);
        wide.kern = CUkernel::from_bits(kernel.kernel);
        if session.code.functions.get(kernel.function)?.is_kernel() {
            // Runtimes launch kernels, and look for both here.
            let current = context::usable(session.contexts, kernel.context)?;
            let (function, _) = session.code.in_context(kernel.function, &current)?;
            wide.kern = CUkernel::from_bits(kernel.function);
            wide.func = CUfunction::from_bits(function);
        }
        if !wide.kern.is_null() {
            wide.ctx = CUcontext::from_bits(kernel.context);
        }
        Ok(wide)
    };
    let wide = session.graphs.with_node(node.bits(), told)?;
    node_params.set(wide)
}

pub(crate) fn cuGraphKernelNodeGetAttribute(
    node: CUgraphNode,
    attribute: CUkernelNodeAttrID,
    value: Out<CUkernelNodeAttrValue>,
) -> Outcome {
    let Payload::Kernel(kernel) = graphs()?.payload(node.bits())? else {
        return Err(CUresult::ERROR_INVALID_VALUE);
    };
    value.required()?;
    let set = kernel.attributes.iter().find(|it| it.id == attribute);
    // Zero is what all others are before anybody sets them.
    let mut unset = CUlaunchAttributeValue([0; 64]);
    if attribute == CUlaunchAttributeID::PRIORITY {
        unset.0[..4].copy_from_slice(&kernel.priority.to_ne_bytes());
    }
    value.set(set.map_or(unset, |it| it.value))
}

/// Sets attributes of a kernel node, checked as a launch would.
fn set_attributes(node: CUgraphNode, new: &[CUlaunchAttribute]) -> Outcome {
    let session = session()?;
    session.graphs.with_node(node.bits(), |payload| {
        let Payload::Kernel(kernel) = payload else {
            return Err(CUresult::ERROR_INVALID_VALUE);
        };
        let current = context::usable(session.contexts, kernel.context)?;
        let (_, function) = session.code.in_context(kernel.function, &current)?;
        let mut attributes = kernel.attributes.clone();
        attributes.retain(|old| new.iter().all(|new| new.id != old.id));
        attributes.extend_from_slice(new);
        let asked = launch::read_attributes(
            session.events,
            &current,
            function,
            kernel.shape,
            &attributes,
        )?;
        kernel.shape.cooperative = asked.shape.cooperative;
        kernel.attributes = attributes;
        Ok(())
    })
}

pub(crate) fn cuGraphKernelNodeSetAttribute(
    node: CUgraphNode,
    attribute: CUkernelNodeAttrID,
    value: In<CUkernelNodeAttrValue>,
) -> Outcome {
    let attribute = CUlaunchAttribute {
        id: attribute,
        pad: [0; 4],
        value: value.get()?,
    };
    set_attributes(node, &[attribute])
}

pub(crate) fn cuGraphKernelNodeCopyAttributes(dst: CUgraphNode, src: CUgraphNode) -> Outcome {
    set_attributes(dst, &attributes_of(src)?)
}

pub(crate) fn cuGraphMemcpyNodeGetParams(
    node: CUgraphNode,
    node_params: Out<CUDA_MEMCPY3D>,
) -> Outcome {
    match graphs()?.payload(node.bits())? {
        Payload::Copy(copy) => node_params.set(copy.to_memcpy_3d()),
        _ => Err(CUresult::ERROR_INVALID_VALUE),
    }
}

pub(crate) fn cuGraphMemcpyNodeSetParams(
    node: CUgraphNode,
    node_params: In<CUDA_MEMCPY3D>,
) -> Outcome {
    let params = node_params.get()?;
    let context = match graphs()?.payload(node.bits())? {
        Payload::Copy(copy) => CUcontext::from_bits(copy.context),
        _ => return Err(CUresult::ERROR_INVALID_VALUE),
    };
    set(node, Payload::Copy(Box::new(copy(&params, context)?)))
}

pub(crate) fn cuGraphMemsetNodeGetParams(
    node: CUgraphNode,
    node_params: Out<CUDA_MEMSET_NODE_PARAMS>,
) -> Outcome {
    match graphs()?.payload(node.bits())? {
        Payload::Fill(fill) => node_params.set(fill.to_memset_params()),
        _ => Err(CUresult::ERROR_INVALID_VALUE),
    }
}

pub(crate) fn cuGraphMemsetNodeSetParams(
    node: CUgraphNode,
    node_params: In<CUDA_MEMSET_NODE_PARAMS>,
) -> Outcome {
    let params = node_params.get()?;
    let context = match graphs()?.payload(node.bits())? {
        Payload::Fill(fill) => CUcontext::from_bits(fill.context),
        _ => return Err(CUresult::ERROR_INVALID_VALUE),
    };
    let fill = FillNode::new(session()?.ranges, &params, &in_context(context)?)?;
    set(node, Payload::Fill(fill))
}

pub(crate) fn cuGraphHostNodeGetParams(
    node: CUgraphNode,
    node_params: Out<CUDA_HOST_NODE_PARAMS>,
) -> Outcome {
    match graphs()?.payload(node.bits())? {
        Payload::Host(host) => node_params.set(CUDA_HOST_NODE_PARAMS {
            r#fn: Some(host.function),
            userData: host.data.pointer(),
        }),
        _ => Err(CUresult::ERROR_INVALID_VALUE),
    }
}

pub(crate) fn cuGraphHostNodeSetParams(
    node: CUgraphNode,
    node_params: In<CUDA_HOST_NODE_PARAMS>,
) -> Outcome {
    let params = node_params.get()?;
    // SAFETY: the program promises so of the function that it describes.
    let host = unsafe { HostNode::new(&params)? };
    set(node, Payload::Host(host))
}

pub(crate) fn cuGraphChildGraphNodeGetGraph(node: CUgraphNode, graph: Out<CUgraph>) -> Outcome {
    match graphs()?.payload(node.bits())? {
        Payload::Child(inside) => graph.set(CUgraph::from_bits(inside)),
        _ => Err(CUresult::ERROR_INVALID_VALUE),
    }
}

pub(crate) fn cuGraphEventRecordNodeGetEvent(node: CUgraphNode, event: Out<CUevent>) -> Outcome {
    match graphs()?.payload(node.bits())? {
        Payload::Record(of) => event.set(CUevent::from_bits(of)),
        _ => Err(CUresult::ERROR_INVALID_VALUE),
    }
}

pub(crate) fn cuGraphEventRecordNodeSetEvent(node: CUgraphNode, of: CUevent) -> Outcome {
    set(node, Payload::Record(event(of)?))
}

pub(crate) fn cuGraphEventWaitNodeGetEvent(node: CUgraphNode, event: Out<CUevent>) -> Outcome {
    match graphs()?.payload(node.bits())? {
        Payload::Wait(of) => event.set(CUevent::from_bits(of)),
        _ => Err(CUresult::ERROR_INVALID_VALUE),
    }
}

pub(crate) fn cuGraphEventWaitNodeSetEvent(node: CUgraphNode, of: CUevent) -> Outcome {
    set(node, Payload::Wait(event(of)?))
}

pub(crate) fn cuGraphMemAllocNodeGetParams(
    node: CUgraphNode,
    params: Out<CUDA_MEM_ALLOC_NODE_PARAMS>,
) -> Outcome {
    let session = session()?;
    let Payload::Allocate(made) = session.graphs.payload(node.bits())? else {
        return Err(CUresult::ERROR_INVALID_VALUE);
    };
    let device = session.contexts.get(made.context())?.context.device();
    params.set(CUDA_MEM_ALLOC_NODE_PARAMS {
        allocType: if made.is_managed() { MANAGED } else { PINNED },
        handleTypes: 0,
        location: CUmemLocation {
            r#type: DEVICE,
            id: device,
        },
        win32SecurityAttributes: std::ptr::null_mut(),
        maxSize: 0,
        usage: 0,
        reserved: [0; 54],
        accessDescs: std::ptr::null(),
        accessDescCount: 0,
        bytesize: made.bytes() as usize,
        dptr: made.address(),
    })
}

pub(crate) fn cuGraphMemFreeNodeGetParams(node: CUgraphNode, dptr: Out<CUdeviceptr>) -> Outcome {
    match graphs()?.payload(node.bits())? {
        Payload::Free(address) => dptr.set(address),
        _ => Err(CUresult::ERROR_INVALID_VALUE),
    }
}
