//! Captures of streams.
//!
//! Owns the checks and the shapes of answers, a version each. Called by the shells of `exports`. What a capture
//! makes of operations it must not know: `graph::capture` does.

use cuda_abi::CUresult;
use cuda_abi::types::{
    CUgraph, CUgraphEdgeData, CUgraphNode, CUstream, CUstreamCaptureMode, CUstreamCaptureStatus,
};

use super::Outcome;
use super::graph::edges_from;
use crate::graph::capture::{self, CaptureInfo};
use crate::pointers::{List, Out};
use crate::session::session;
use crate::stream::capture::{BESIDE, CAPTURED};
use crate::stream::{self, StreamTarget};

pub(crate) fn cuStreamBeginCapture(stream: CUstream) -> Outcome {
    cuStreamBeginCapture_v2(stream, CUstreamCaptureMode::GLOBAL)
}

pub(crate) fn cuStreamBeginCapture_v2(stream: CUstream, mode: CUstreamCaptureMode) -> Outcome {
    let target = stream::target(stream)?;
    session()?.captures.begin(&target, mode, None)
}

pub(crate) fn cuStreamBeginCaptureToGraph(
    stream: CUstream,
    graph: CUgraph,
    dependencies: List<CUgraphNode>,
    dependency_data: List<CUgraphEdgeData>,
    num_dependencies: usize,
    mode: CUstreamCaptureMode,
) -> Outcome {
    let target = stream::target(stream)?;
    let graphs = &session()?.graphs;
    graphs.get(graph.bits())?;
    let frontier = edges_from(&dependencies, &dependency_data, num_dependencies)?;
    let nodes: Vec<u64> = frontier.iter().map(|(node, _)| *node).collect();
    graphs.serials(graph.bits(), &nodes)?;
    session()?
        .captures
        .begin(&target, mode, Some((graph.bits(), frontier)))
}

pub(crate) fn cuStreamEndCapture(stream: CUstream, graph: Out<CUgraph>) -> Outcome {
    let target = stream::target(stream)?;
    let ended = session()?.captures.end(&target);
    // Without a place for it the graph is lost, but the capture is over.
    graph.set_if(CUgraph::from_bits(*ended.as_ref().unwrap_or(&0)));
    ended?;
    graph.required()
}

/// What is known of a stream's capture.
///
/// # Errors
/// CUDA_ERROR_STREAM_CAPTURE_IMPLICIT for a legacy stream beside a captured one; unlike its use, the
/// question breaks nothing.
fn info(target: &StreamTarget) -> Result<Option<CaptureInfo>, CUresult> {
    let mode_bits = target.stream.mode_bits();
    if mode_bits & BESIDE != 0 {
        return Err(CUresult::ERROR_STREAM_CAPTURE_IMPLICIT);
    }
    if mode_bits & CAPTURED == 0 {
        return Ok(None);
    }
    let capture = capture::current_capture(target)?;
    Ok(capture.and_then(|capture| capture.info(target)))
}

fn status(info: Option<&CaptureInfo>) -> CUstreamCaptureStatus {
    match info {
        None => CUstreamCaptureStatus::NONE,
        Some(info) if info.broken => CUstreamCaptureStatus::INVALIDATED,
        Some(_) => CUstreamCaptureStatus::ACTIVE,
    }
}

pub(crate) fn cuStreamIsCapturing(stream: CUstream, out: Out<CUstreamCaptureStatus>) -> Outcome {
    let target = stream::target(stream)?;
    out.required()?;
    out.set(status(info(&target)?.as_ref()))
}

pub(crate) fn cuStreamGetCaptureInfo(
    stream: CUstream,
    out: Out<CUstreamCaptureStatus>,
    id: Out<u64>,
) -> Outcome {
    let (graph, dependencies, count) = (Out::null(), Out::null(), Out::null());
    cuStreamGetCaptureInfo_v2(stream, out, id, graph, dependencies, count)
}

pub(crate) fn cuStreamGetCaptureInfo_v2(
    stream: CUstream,
    out: Out<CUstreamCaptureStatus>,
    id: Out<u64>,
    graph: Out<CUgraph>,
    dependencies: Out<*const CUgraphNode>,
    num_dependencies: Out<usize>,
) -> Outcome {
    let (edges, count) = (Out::null(), num_dependencies);
    cuStreamGetCaptureInfo_v3(stream, out, id, graph, dependencies, edges, count)
}

pub(crate) fn cuStreamGetCaptureInfo_v3(
    stream: CUstream,
    out: Out<CUstreamCaptureStatus>,
    id: Out<u64>,
    graph: Out<CUgraph>,
    dependencies: Out<*const CUgraphNode>,
    edge_data: Out<*const CUgraphEdgeData>,
    num_dependencies: Out<usize>,
) -> Outcome {
    let target = stream::target(stream)?;
    out.required()?;
    let info = info(&target)?;
    if let Some(info) = &info {
        if info.annotated && !dependencies.is_null() && edge_data.is_null() {
            return Err(CUresult::ERROR_LOSSY_QUERY);
        }
        id.set_if(info.id);
        graph.set_if(CUgraph::from_bits(info.graph));
        dependencies.set_if(info.nodes);
        edge_data.set_if(info.edges);
        num_dependencies.set_if(info.count);
    }
    out.set(status(info.as_ref()))
}

pub(crate) fn cuStreamUpdateCaptureDependencies(
    stream: CUstream,
    dependencies: List<CUgraphNode>,
    num_dependencies: usize,
    flags: u32,
) -> Outcome {
    let (plain, count) = (List::null(), num_dependencies);
    cuStreamUpdateCaptureDependencies_v2(stream, dependencies, plain, count, flags)
}

pub(crate) fn cuStreamUpdateCaptureDependencies_v2(
    stream: CUstream,
    dependencies: List<CUgraphNode>,
    dependency_data: List<CUgraphEdgeData>,
    num_dependencies: usize,
    flags: u32,
) -> Outcome {
    let frontier = edges_from(&dependencies, &dependency_data, num_dependencies)?;
    let target = stream::target(stream)?;
    if flags > 1 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    match capture::current_capture(&target)? {
        Some(capture) => capture.update(&target, frontier, flags == 1),
        None => Err(CUresult::ERROR_ILLEGAL_STATE),
    }
}

pub(crate) fn cuThreadExchangeStreamCaptureMode(mode: Out<CUstreamCaptureMode>) -> Outcome {
    session()?;
    let wanted = mode.get()?;
    if wanted > CUstreamCaptureMode::RELAXED {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    mode.set(capture::exchange_mode(wanted))
}
