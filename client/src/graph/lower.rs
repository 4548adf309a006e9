//! From what a node does to what is put into streams for it.
//!
//! The schedule calls it once for each node when a graph is instantiated or a node changed, so that a launch has
//! nothing left to translate. It knows neither graph streams nor launches.

use std::sync::Arc;

use cuda_abi::CUresult;
use transport::session::EncodedRequest;

use super::batch::Operation;
use super::branch::Branch;
use super::node::Payload;
use super::pinned::Pinned;
use super::step::Step;
use super::table::Graphs;
use crate::code::launch;
use crate::code::launch::recorded::RecordedLaunch;
use crate::context;
use crate::memory::copy;
use crate::memory::copy::recorded::RecordedCopy;
use crate::memory::copy::sides::{CopySide, Location};
use crate::stream::host_function::{HostCall, InternalWork};

/// What a node puts into its stream. Child graphs are taken apart elsewhere. `depth` is how many
/// conditional nodes it stands inside of.
///
/// # Errors
/// Those of the node's parameters where they no longer hold: dead kernels, contexts and events.
pub(super) fn lower(
    graphs: &'static Graphs,
    payload: &Payload,
    depth: usize,
) -> Result<Vec<Step>, CUresult> {
    Ok(match payload {
        Payload::Empty | Payload::Child(_) => Vec::new(),
        Payload::Kernel(kernel) => lower_kernel(graphs, kernel)?,
        Payload::Copy(copy) => lower_copy(graphs, copy)?,
        Payload::Fill(fill) => vec![Step::Post(Arc::new(EncodedRequest::new(&fill.fill, &[])))],
        Payload::Host(host) => vec![Step::Call(HostCall::Function {
            function: host.function,
            data: host.data,
        })],
        Payload::Record(event) => vec![Step::Record(*event)],
        Payload::Wait(event) => vec![Step::Wait(*event)],
        Payload::Allocate(allocation) => vec![Step::Allocate(Arc::clone(allocation))],
        Payload::Free(address) => vec![Step::Free(*address)],
        Payload::Encoded { written, .. } => vec![Step::Post(Arc::clone(written))],
        Payload::Batch(batch) => {
            let written = batch
                .operations
                .iter()
                .filter_map(Operation::encoded_request);
            written.map(|it| Step::Post(Arc::new(it))).collect()
        }
        Payload::Semaphores(semaphores) => {
            let written = semaphores.encoded_requests();
            written.map(|it| Step::Post(Arc::new(it))).collect()
        }
        Payload::Conditional(node) => vec![Step::Branch(Branch::new(graphs, node, depth)?)],
    })
}

fn lower_kernel(graphs: &'static Graphs, kernel: &RecordedLaunch) -> Result<Vec<Step>, CUresult> {
    let current = context::usable(graphs.streams.contexts, kernel.context)?;
    let (_, function) = graphs.code.in_context(kernel.function, &current)?;
    let asked = launch::read_attributes(
        graphs.events,
        &current,
        function,
        kernel.shape,
        &kernel.attributes,
    )?;
    launch::check_is_said(function, asked.cluster)?;
    let request = launch::request(function, &asked.shape, asked.count());
    // Whenever it is launched: who records it then does not come here.
    launch::record_facts(graphs.code, function);
    let written = EncodedRequest::new(&request, &[&asked.raw, &kernel.block]);
    let mut steps = vec![Step::Post(Arc::new(written))];
    steps.extend(
        asked
            .events
            .into_iter()
            .map(|event| Step::Record(event.bits())),
    );
    Ok(steps)
}

/// A copy that a thread of ours makes, between memory of the program and memory of the program or
/// page-locked memory of ours.
#[derive(Debug)]
struct HostCopy {
    copy: RecordedCopy,
    to: *mut u8,
    from: *mut u8,
    _buffer: Option<Arc<Pinned>>,
}

// SAFETY: the program promised that any thread may use its memory when the graph runs; the other pointer
// leads to page-locked memory of ours.
unsafe impl Send for HostCopy {}
// SAFETY: a shared `HostCopy` is never changed; what its pointers lead to is the program's to keep in order.
unsafe impl Sync for HostCopy {}

impl InternalWork for HostCopy {
    fn run(&self) {
        let (copy, extent) = (&self.copy, &self.copy.extent);
        // SAFETY: the program promised memory for the extent at its own addresses while the graph
        // runs; the buffer is as large as the extent and lives as long as this.
        unsafe { copy::copy_here(self.to, &copy.to, self.from, &copy.from, extent) };
    }
}

fn lower_copy(graphs: &'static Graphs, node: &RecordedCopy) -> Result<Vec<Step>, CUresult> {
    let extent = node.extent;
    if extent.width == 0 || extent.height == 0 || extent.depth == 0 {
        return Ok(Vec::new());
    }
    let post =
        |to: &CopySide, from: &CopySide| Step::Post(Arc::new(copy::encode_copy(to, from, &extent)));
    let (to, from) = match (node.to.place, node.from.place) {
        (Location::Program(to), Location::Program(from)) => (to, from),
        (Location::Program(_), _) | (_, Location::Program(_)) => {
            let bytes = extent
                .width
                .checked_mul(extent.height)
                .and_then(|bytes| bytes.checked_mul(extent.depth))
                .ok_or(CUresult::ERROR_INVALID_VALUE)?;
            let current = context::usable(graphs.streams.contexts, node.context)?;
            let buffer = Arc::new(Pinned::new(&current, bytes)?);
            let pointer = buffer.pointer();
            let staged = CopySide {
                place: Location::Pinned(buffer.address()),
                pitch: extent.width,
                slice: extent.width * extent.height,
            };
            let here = |copy: RecordedCopy, to, from| {
                Step::Call(HostCall::Internal(Arc::new(HostCopy {
                    copy,
                    to,
                    from,
                    _buffer: Some(Arc::clone(&buffer)),
                })))
            };
            return Ok(match (node.to.place, node.from.place) {
                (Location::Program(to), _) => {
                    let copy = RecordedCopy {
                        from: staged,
                        ..node.clone()
                    };
                    vec![post(&staged, &node.from), here(copy, to, pointer)]
                }
                (_, Location::Program(from)) => {
                    let copy = RecordedCopy {
                        to: staged,
                        ..node.clone()
                    };
                    vec![here(copy, pointer, from), post(&node.to, &staged)]
                }
                _ => Vec::new(),
            });
        }
        _ => return Ok(vec![post(&node.to, &node.from)]),
    };
    Ok(vec![Step::Call(HostCall::Internal(Arc::new(HostCopy {
        copy: node.clone(),
        to,
        from,
        _buffer: None,
    })))])
}
