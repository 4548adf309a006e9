//! The kernel that writes completion words behind the launches of a batch.
//!
//! Owned by the device, in whose context it is; batches make a node of it. Must not know what goes before it.

use std::ffi::CStr;

use cuda_abi::types::CUfunction;

use crate::driver::Driver;
use crate::sync::Handle;

/// What writes the fence value, and then, where the client is told too, how far the stream is. Behind a fence at the scope of the system: whoever
/// reads either sees everything that the kernels before have written.
const SIGNAL_KERNEL: &CStr = c".version 6.0\n.target sm_70\n.address_size 64\n\
.visible .entry openmps_mark(.param .u64 word, .param .u32 ticket, .param .u64 client, .param .u64 sequence) {\n\
.reg .b64 %rd<4>;\n.reg .b32 %r<2>;\n.reg .pred %p<2>;\n\
ld.param.u64 %rd1, [word];\nld.param.u32 %r1, [ticket];\n\
ld.param.u64 %rd2, [client];\nld.param.u64 %rd3, [sequence];\n\
setp.eq.u64 %p1, %rd2, 0;\n\
fence.acq_rel.sys;\n\
st.relaxed.sys.global.u32 [%rd1], %r1;\n\
@%p1 bra done;\n\
st.relaxed.sys.global.u64 [%rd2], %rd3;\n\
done:\nret;\n}\n";

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
