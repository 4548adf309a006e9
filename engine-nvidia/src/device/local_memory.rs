//! How much local memory a device keeps for kernels: as much for each thread that can be on it at once as
//! the neediest kernel took that ever ran. It is the context's, whose kernels are all clients'.
//!
//! The driver takes more when a kernel is launched that needs more, and then waits for all that run, with
//! the context's lock held. So a kernel of our own is launched before, while nothing runs, that does
//! nothing and needs as much.
//!
//! Owned by the device, which has it grow before a client launches a kernel that needs more. Must not know which kernels those are.

use std::ffi::{CString, c_void};
use std::sync::atomic::{AtomicU64, Ordering};

use cuda_abi::CUresult;
use cuda_abi::types::*;

use crate::driver::Driver;

/// Bytes of a thread that there are from the beginning: the driver's own limit of the stack.
const AT_FIRST: u64 = 1 << 10;

/// Bytes of a thread are taken in multiples of this.
const STEP: u64 = 512;

/// The part of a device's memory that may be taken so: one in so many.
const PART: u64 = 8;

/// The local memory of one device.
#[derive(Debug)]
pub(crate) struct LocalMemory {
    /// Bytes of each thread.
    taken: AtomicU64,
}

impl Default for LocalMemory {
    fn default() -> Self {
        Self {
            taken: AtomicU64::new(AT_FIRST),
        }
    }
}

impl LocalMemory {
    /// Whether a thread can have so many bytes without anybody's waiting.
    pub(crate) fn has(&self, bytes: u64) -> bool {
        bytes <= self.taken.load(Ordering::Acquire)
    }

    /// Whether so many threads may have so many bytes each of a device with this much memory.
    pub(crate) fn is_within_bound(bytes: u64, threads: u64, total_memory: u64) -> bool {
        Self::of_all(bytes, threads) <= total_memory / PART
    }

    /// Bytes that it takes for so many threads to have so many each.
    pub(crate) fn of_all(bytes: u64, threads: u64) -> u64 {
        bytes.next_multiple_of(STEP).saturating_mul(threads)
    }

    /// Takes as much as lets each thread have so many bytes. Nothing else runs on the device, whose context is
    /// current; `stream` is one of it.
    ///
    /// # Errors
    /// The driver's status.
    pub(crate) fn reserve(
        &self,
        driver: &Driver,
        stream: CUstream,
        bytes: u64,
    ) -> Result<(), CUresult> {
        let bytes = bytes.next_multiple_of(STEP);
        // Somebody may just have taken it.
        if self.has(bytes) {
            return Ok(());
        }
        launch(driver, stream, bytes)?;
        self.taken.fetch_max(bytes, Ordering::AcqRel);
        Ok(())
    }
}

/// A kernel of so many bytes of local memory that does nothing, as the driver's compiler cannot know.
fn text(bytes: u64) -> CString {
    let text = format!(
        ".version 6.0\n.target sm_70\n.address_size 64\n\
         .visible .entry deep(.param .u64 at, .param .u32 index)\n\
         {{\n\
         .local .align 8 .b8 room[{bytes}];\n\
         .reg .b64 %d<4>;\n\
         .reg .b32 %r<3>;\n\
         .reg .pred %p<2>;\n\
         ld.param.u32 %r1, [index];\n\
         setp.eq.u32 %p1, %r1, 0;\n\
         @%p1 bra done;\n\
         ld.param.u64 %d1, [at];\n\
         mov.u64 %d2, room;\n\
         cvt.u64.u32 %d3, %r1;\n\
         add.u64 %d3, %d2, %d3;\n\
         st.local.u32 [%d3], %r1;\n\
         ld.local.u32 %r2, [%d2];\n\
         st.global.u32 [%d1], %r2;\n\
         done:\n\
         ret;\n\
         }}\n"
    );
    CString::new(text).unwrap_or_default()
}

fn launch(driver: &Driver, stream: CUstream, bytes: u64) -> Result<(), CUresult> {
    let (module, function) = driver.load_own(&text(bytes), c"deep")?;
    let (mut at, mut index) = (0_u64, 0_u32);
    let mut parameters: [*mut c_void; 2] = [(&raw mut at).cast(), (&raw mut index).cast()];
    // SAFETY: the pointers are to locals; the parameters are those of the kernel, which follows no address
    // if the second is 0.
    let launched = unsafe {
        driver
            .cuLaunchKernel(
                function,
                1,
                1,
                1,
                1,
                1,
                1,
                0,
                stream,
                parameters.as_mut_ptr(),
                std::ptr::null_mut(),
            )
            .and_then(|()| driver.cuStreamSynchronize(stream))
    };
    // SAFETY: loaded above, and its kernel has ended; the caller sees to it that nothing else runs.
    let unloaded = unsafe { driver.cuModuleUnload(module) };
    launched.and(unloaded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_is_a_program() {
        let text = text(4096).into_string().unwrap();
        let parsed = ptx::parse(&text);
        assert!(parsed.is_ok(), "{parsed:?}");
        assert!(text.contains("room[4096]"));
    }
}
