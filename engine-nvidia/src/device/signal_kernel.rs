//! The kernel that writes a completion word behind the launches of a batch.
//!
//! Owned by the device, in whose context it is; batches make a node of it. Must not know what goes before it.

use std::ffi::CStr;

use cuda_abi::types::CUfunction;

use crate::driver::Driver;
use crate::sync::Handle;

/// What writes the word. Release at the scope of the system: whoever reads the fence value sees everything
/// that the kernels before have written.
const SIGNAL_KERNEL: &CStr = c".version 6.0\n.target sm_70\n.address_size 64\n\
.visible .entry openmps_mark(.param .u64 word, .param .u32 ticket) {\n\
.reg .b64 %rd<2>;\n.reg .b32 %r<2>;\n\
ld.param.u64 %rd1, [word];\nld.param.u32 %r1, [ticket];\n\
st.release.sys.global.u32 [%rd1], %r1;\nret;\n}\n";

/// The kernel that ends batches, loaded in a device's context.
#[derive(Debug)]
pub(crate) struct SignalKernel(Handle<CUfunction>);

impl SignalKernel {
    /// Loads it in the current context. `None` if the driver does not take it: then there are no batches.
    pub(crate) fn load(driver: &Driver) -> Option<Self> {
        // The module goes with the context.
        let (_, function) = driver.load_own(SIGNAL_KERNEL, c"openmps_mark").ok()?;
        Some(Self(Handle(function)))
    }

    /// Its function, which lives as long as the context.
    pub(crate) fn function(&self) -> CUfunction {
        self.0.0
    }
}
