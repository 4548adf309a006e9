//! Nodes that signal semaphores of other interfaces, and nodes that wait for them.
//!
//! Owns the four functions of both kinds. Called by the shells of `exports`, and by `nodes` for generic descriptions.
//! Must not judge a semaphore: `semaphore` does, as for streams.

use std::sync::Arc;

use cuda_abi::CUresult;
use cuda_abi::types::{
    CUDA_EXT_SEM_SIGNAL_NODE_PARAMS, CUDA_EXT_SEM_WAIT_NODE_PARAMS, CUexternalSemaphore, CUgraph,
    CUgraphExec, CUgraphNode,
};

use super::super::Outcome;
use super::super::semaphore::checked;
use super::described::{add, set};
use super::{after, graphs};
use crate::context::current;
use crate::graph::node::Payload;
use crate::graph::semaphores::Described;
use crate::pointers::{In, List, Out};
use crate::session::session;

macro_rules! nodes {
    ($($made:ident $kind:ident $params:ident: $add:ident $get:ident $set:ident $exec_set:ident;)*) => {$(
        /// What the program describes, checked.
        pub(super) fn $made(described: &$params) -> Result<Payload, CUresult> {
            let count = described.numExtSems;
            let handles: List<CUexternalSemaphore> =
                // SAFETY: the program promises as many semaphores as it says.
                unsafe { List::new(described.extSemArray, count as usize) };
            // SAFETY: and as many parameters.
            let params = unsafe { List::new(described.paramsArray, count as usize) };
            let params = Described::$kind(params.get(count)?.into());
            let made = checked(current()?.handle(), &handles.get(count)?, params)?;
            Ok(Payload::Semaphores(Arc::new(made)))
        }

        pub(crate) fn $add(
            graph_node: Out<CUgraphNode>,
            graph: CUgraph,
            dependencies: List<CUgraphNode>,
            num_dependencies: usize,
            node_params: In<$params>,
        ) -> Outcome {
            let after = after(&dependencies, num_dependencies)?;
            let params = node_params.get()?;
            add(&graph_node, graph, &after, || $made(&params))
        }

        pub(crate) fn $get(node: CUgraphNode, params: Out<$params>) -> Outcome {
            let Payload::Semaphores(made) = graphs()?.payload(node.bits())? else {
                return Err(CUresult::ERROR_INVALID_VALUE);
            };
            let Described::$kind(described) = &made.params else {
                return Err(CUresult::ERROR_INVALID_VALUE);
            };
            // The node's own, as long as these parameters are.
            params.set($params {
                extSemArray: made.handles.as_ptr().cast_mut().cast(),
                paramsArray: described.as_ptr(),
                numExtSems: made.handles.len() as u32,
            })
        }

        pub(crate) fn $set(node: CUgraphNode, node_params: In<$params>) -> Outcome {
            set(node, $made(&node_params.get()?)?)
        }

        pub(crate) fn $exec_set(
            graph_exec: CUgraphExec,
            node: CUgraphNode,
            node_params: In<$params>,
        ) -> Outcome {
            let exec = session()?.execs.get(graph_exec.bits())?;
            exec.set(node.bits(), $made(&node_params.get()?)?)
        }
    )*};
}

nodes! {
    signal_node Signal CUDA_EXT_SEM_SIGNAL_NODE_PARAMS:
        cuGraphAddExternalSemaphoresSignalNode cuGraphExternalSemaphoresSignalNodeGetParams
        cuGraphExternalSemaphoresSignalNodeSetParams
        cuGraphExecExternalSemaphoresSignalNodeSetParams;
    wait_node Wait CUDA_EXT_SEM_WAIT_NODE_PARAMS:
        cuGraphAddExternalSemaphoresWaitNode cuGraphExternalSemaphoresWaitNodeGetParams
        cuGraphExternalSemaphoresWaitNodeSetParams cuGraphExecExternalSemaphoresWaitNodeSetParams;
}
