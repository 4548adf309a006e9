//! From what a node does to what is put into streams for it.

use std::sync::Arc;

use cuda_abi::CUresult;
use cuda_abi::operations::{HostAlloc, HostFree};
use transport::session::Written;

use super::batch::Operation;
use super::conditional::Branch;
use super::memory::Allocation;
use super::node::{CopyNode, Kernel, Payload};
use crate::context::{self, Current};
use crate::copy::{self, Place, Side};
use crate::host::{Call, Ours};
use crate::launch;
use crate::session::Session;

/// Something to put into a stream.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// A request, written down.
    Post(Arc<Written>),
    /// A call in this process.
    Call(Call),
    /// The record of the event of this handle.
    Record(u64),
    /// A wait for the event of this handle.
    Wait(u64),
    /// Nothing; but memory is the program's from here on.
    Allocate(Arc<Allocation>),
    /// Nothing; but memory is the program's no more.
    Free(u64),
    /// The graph that a value chooses.
    Branch(Arc<Branch>),
}

/// What a node puts into its stream. Child graphs are taken apart elsewhere. `depth` is how many
/// conditional nodes it stands inside of.
///
/// # Errors
/// Those of the node's parameters where they no longer hold: dead kernels, contexts and events.
pub(super) fn lower(
    session: &'static Session,
    payload: &Payload,
    depth: usize,
) -> Result<Vec<Step>, CUresult> {
    Ok(match payload {
        Payload::Empty | Payload::Child(_) => Vec::new(),
        Payload::Kernel(kernel) => lower_kernel(session, kernel)?,
        Payload::Copy(copy) => lower_copy(session, copy)?,
        Payload::Fill(fill) => vec![Step::Post(Arc::new(Written::new(&fill.fill, &[])))],
        Payload::Host(host) => vec![Step::Call(Call::Function {
            function: host.function,
            data: host.data,
        })],
        Payload::Record(event) => vec![Step::Record(*event)],
        Payload::Wait(event) => vec![Step::Wait(*event)],
        Payload::Allocate(allocation) => vec![Step::Allocate(Arc::clone(allocation))],
        Payload::Free(address) => vec![Step::Free(*address)],
        Payload::Written { written, .. } => vec![Step::Post(Arc::clone(written))],
        Payload::Batch(batch) => {
            let written = batch.operations.iter().filter_map(Operation::written);
            written.map(|it| Step::Post(Arc::new(it))).collect()
        }
        Payload::Conditional(node) => vec![Step::Branch(Branch::new(session, node, depth)?)],
    })
}

fn lower_kernel(session: &'static Session, kernel: &Kernel) -> Result<Vec<Step>, CUresult> {
    let current = context::usable(session, kernel.context)?;
    let (_, function) = session.functions.in_context(kernel.function, &current)?;
    let asked = launch::asked(&current, function, kernel.shape, &kernel.attributes)?;
    let request = launch::request(function, &asked.shape, asked.count());
    let written = Written::new(&request, &[&asked.raw, &kernel.block]);
    let mut steps = vec![Step::Post(Arc::new(written))];
    steps.extend(
        asked
            .events
            .into_iter()
            .map(|event| Step::Record(event.bits())),
    );
    Ok(steps)
}

/// Page-locked memory of ours.
#[derive(Debug)]
pub(super) struct Pinned {
    session: &'static Session,
    address: u64,
}

impl Pinned {
    pub(super) fn new(current: &Current, bytes: u64) -> Result<Self, CUresult> {
        let session = current.session;
        let reply = session.call(&HostAlloc {
            context: current.slot(),
            bytes,
            flags: 0,
        })?;
        let pinned = Self {
            session,
            address: reply.fields.address,
        };
        session.check_in_host_window(pinned.address, bytes)?;
        Ok(pinned)
    }

    /// Where it is, for devices and for this process.
    pub(super) fn address(&self) -> u64 {
        self.address
    }

    /// Where it is.
    pub(super) fn pointer(&self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.address as usize)
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // The server frees it once all that was posted before is done, our own calls among it.
        let address = self.address;
        let _ = self.session.post(&HostFree { address });
    }
}

/// A copy that a thread of ours makes, between memory of the program and memory of the program or
/// page-locked memory of ours.
#[derive(Debug)]
struct Here {
    copy: CopyNode,
    to: *mut u8,
    from: *mut u8,
    _buffer: Option<Arc<Pinned>>,
}

// SAFETY: as `CopyNode`'s; the other pointer leads to page-locked memory of ours.
unsafe impl Send for Here {}
// SAFETY: as above; a shared one is only read.
unsafe impl Sync for Here {}

impl Ours for Here {
    fn run(&self) {
        let (copy, extent) = (&self.copy, &self.copy.extent);
        // SAFETY: the program promised memory for the extent at its own addresses while the graph
        // runs; the buffer is as large as the extent and lives as long as this.
        unsafe { copy::copy_here(self.to, &copy.to, self.from, &copy.from, extent) };
    }
}

fn lower_copy(session: &'static Session, node: &CopyNode) -> Result<Vec<Step>, CUresult> {
    let extent = node.extent;
    if extent.width == 0 || extent.height == 0 || extent.depth == 0 {
        return Ok(Vec::new());
    }
    let post = |to: &Side, from: &Side| Step::Post(Arc::new(copy::written(to, from, &extent)));
    let (to, from) = match (node.to.place, node.from.place) {
        (Place::Program(to), Place::Program(from)) => (to, from),
        (Place::Program(_), _) | (_, Place::Program(_)) => {
            let bytes = extent
                .width
                .checked_mul(extent.height)
                .and_then(|bytes| bytes.checked_mul(extent.depth))
                .ok_or(CUresult::ERROR_INVALID_VALUE)?;
            let current = context::usable(session, node.context)?;
            let buffer = Arc::new(Pinned::new(&current, bytes)?);
            let pointer = buffer.pointer();
            let staged = Side {
                place: Place::Pinned(buffer.address),
                pitch: extent.width,
                slice: extent.width * extent.height,
            };
            let here = |copy: CopyNode, to, from| {
                Step::Call(Call::Ours(Arc::new(Here {
                    copy,
                    to,
                    from,
                    _buffer: Some(Arc::clone(&buffer)),
                })))
            };
            return Ok(match (node.to.place, node.from.place) {
                (Place::Program(to), _) => {
                    let copy = CopyNode {
                        from: staged,
                        ..node.clone()
                    };
                    vec![post(&staged, &node.from), here(copy, to, pointer)]
                }
                (_, Place::Program(from)) => {
                    let copy = CopyNode {
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
    Ok(vec![Step::Call(Call::Ours(Arc::new(Here {
        copy: node.clone(),
        to,
        from,
        _buffer: None,
    })))])
}
