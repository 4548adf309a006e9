//! Graphs in the DOT language.
//!
//! Owns the text, for cuGraphDebugDotPrint alone. Changes nothing and knows no file.

use std::fmt::Write;
use std::path::Path;

use cuda_abi::CUresult;

use super::node::Payload;
use super::semaphores::Described;
use super::table::Graphs;

/// Print everything.
const VERBOSE: u32 = 1;
/// Print parameters of kernels, copies, fills, host functions, events, allocations and frees.
const PARAMETERS: u32 = 1 << 2 | 1 << 3 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 11 | 1 << 12;
/// Print handles.
const HANDLES: u32 = 1 << 10;

/// The name of a kind of node, as CUDA prints it.
fn name(payload: &Payload) -> &'static str {
    match payload {
        Payload::Empty => "EMPTY",
        Payload::Kernel(_) => "KERNEL",
        Payload::Copy(_) => "MEMCPY",
        Payload::Fill(_) => "MEMSET",
        Payload::Host(_) => "HOST",
        Payload::Child(_) => "GRAPH",
        Payload::Record(_) => "EVENT_RECORD",
        Payload::Wait(_) => "WAIT_EVENT",
        Payload::Allocate(_) => "MEM_ALLOC",
        Payload::Free(_) => "MEM_FREE",
        Payload::Batch(_) => "BATCH_MEM_OP",
        Payload::Semaphores(it) => match it.params {
            Described::Signal(_) => "EXT_SEMAS_SIGNAL",
            Described::Wait(_) => "EXT_SEMAS_WAIT",
        },
        Payload::Conditional(_) => "CONDITIONAL",
        Payload::Encoded { .. } => "OTHER",
    }
}

/// What a node is called: a kernel by its name, others by their kind.
fn called(graphs: &Graphs, payload: &Payload) -> String {
    let known = |function| graphs.code.kernel_name(function);
    match payload {
        Payload::Kernel(kernel) => {
            known(kernel.function).unwrap_or_else(|| name(payload).to_owned())
        }
        _ => name(payload).to_owned(),
    }
}

fn parameters(payload: &Payload) -> String {
    match payload {
        Payload::Kernel(kernel) => format!(
            "function {:#x}\\ngrid {:?}\\nblock {:?}\\nshared {}",
            kernel.function, kernel.shape.grid, kernel.shape.block, kernel.shape.shared
        ),
        Payload::Copy(copy) => {
            let extent = &copy.extent;
            format!("{} x {} x {}", extent.width, extent.height, extent.depth)
        }
        Payload::Fill(node) => format!(
            "{:#x} with {:#x}, {} x {}",
            node.fill.to, node.fill.value, node.fill.width, node.fill.height
        ),
        Payload::Host(host) => format!("{:#x}", host.function as usize),
        Payload::Record(event) | Payload::Wait(event) => format!("event {event:#x}"),
        Payload::Allocate(it) => format!("{} bytes at {:#x}", it.bytes(), it.address()),
        Payload::Free(address) => format!("{address:#x}"),
        Payload::Batch(batch) => format!("{} operations", batch.operations.len()),
        Payload::Semaphores(it) => format!("{} semaphores", it.handles.len()),
        Payload::Conditional(node) => format!("{:?}\\nhandle {:#x}", node.kind, node.handle.name()),
        Payload::Empty | Payload::Child(_) | Payload::Encoded { .. } => String::new(),
    }
}

/// Writes a graph to a file in the DOT language.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE for a handle that names none, CUDA_ERROR_OPERATING_SYSTEM for a file that
/// cannot be written.
pub(crate) fn print(graphs: &Graphs, graph: u64, path: &Path, flags: u32) -> Result<(), CUresult> {
    let text = text(graphs, graph, flags)?;
    std::fs::write(path, text).map_err(|_| CUresult::ERROR_OPERATING_SYSTEM)
}

/// A graph's text, with those of the graphs inside of it.
fn text(graphs: &Graphs, graph: u64, flags: u32) -> Result<String, CUresult> {
    graphs.get(graph)?;
    let mut text = String::from("digraph dot {\n");
    let mut left = vec![(graph, 0_u32)];
    let mut count = 0;
    while let Some((graph, number)) = left.pop() {
        let _ = writeln!(
            text,
            "subgraph cluster_{number} {{\nlabel=\"graph_{number}\""
        );
        let body = graphs.get(graph)?.body();
        for (serial, node) in &body.nodes {
            let mut label = format!("{serial}\\n{}", called(graphs, &node.payload));
            if flags & (VERBOSE | PARAMETERS) != 0 {
                label.push_str("\\n");
                label.push_str(&parameters(&node.payload));
            }
            if flags & (VERBOSE | HANDLES) != 0 {
                let _ = write!(label, "\\n{:#x}", node.handle);
            }
            for inside in node.payload.graphs() {
                count += 1;
                let _ = write!(label, "\\ngraph_{count}");
                left.push((*inside, count));
            }
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "\"graph_{number}_node_{serial}\" [shape=\"box\" label=\"{label}\"]"
            );
        }
        for (from, to, _) in body.edges() {
            let _ = writeln!(
                text,
                "\"graph_{number}_node_{from}\" -> \"graph_{number}_node_{to}\""
            );
        }
        text.push_str("}\n");
    }
    text.push_str("}\n");
    Ok(text)
}
