//! Launches that are kept, to be made when a graph runs.
//!
//! Plain data, with what CUDA shows of it. A capture gets one instead of the launch, and `api::graph` makes one of
//! what the program describes; graphs lower it. Posts nothing.

use std::ffi::c_void;

use cuda_abi::types::CUlaunchAttribute;

use super::LaunchShape;
use crate::code::function::Layout;

/// A kernel's launch.
#[derive(Debug)]
pub(crate) struct RecordedLaunch {
    /// The function or kernel that the program named.
    pub function: u64,
    /// The kernel of which it is the function, if the program said so; 0 otherwise.
    pub kernel: u64,
    /// The handle of the context that it runs in.
    pub context: u64,
    pub shape: LaunchShape,
    pub attributes: Vec<CUlaunchAttribute>,
    /// The priority of the stream from which it was captured; 0, the least, for a launch that was described. It is shown
    /// where no attribute says another, and changes nothing: a graph runs with the priority of its launch.
    pub priority: i32,
    /// The parameter block.
    pub block: Box<[u8]>,
    /// Where each parameter is in the block, as addresses, for who asks.
    each: Box<[usize]>,
}

impl RecordedLaunch {
    pub(crate) fn new(
        function: u64,
        context: u64,
        shape: LaunchShape,
        attributes: Vec<CUlaunchAttribute>,
        block: Box<[u8]>,
        layout: &Layout,
    ) -> Self {
        let base = block.as_ptr().expose_provenance();
        let each = layout.params.iter();
        Self {
            each: each.map(|(offset, _)| base + *offset as usize).collect(),
            function,
            kernel: 0,
            context,
            shape,
            attributes,
            priority: 0,
            block,
        }
    }

    /// The pointers to its parameters, which live as long as these parameters are the node's.
    pub(crate) fn params(&self) -> *mut *mut c_void {
        self.each.as_ptr().cast_mut().cast()
    }
}

impl Clone for RecordedLaunch {
    fn clone(&self) -> Self {
        let block = self.block.clone();
        let (before, base) = (
            self.block.as_ptr().addr(),
            block.as_ptr().expose_provenance(),
        );
        Self {
            each: self.each.iter().map(|at| at - before + base).collect(),
            function: self.function,
            kernel: self.kernel,
            context: self.context,
            shape: self.shape,
            attributes: self.attributes.clone(),
            priority: self.priority,
            block,
        }
    }
}
