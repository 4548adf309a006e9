//! How many blocks of a kernel run on a multiprocessor at once: arithmetic on cached facts.
//!
//! `api::occupancy` and launches ask it. It posts nothing, and knows no stream.

use cuda_abi::CUresult;
use cuda_abi::types::{CUdevice_attribute, CUfunction_attribute};

use crate::code::function::Function;
use crate::session::connection::Device;

/// Registers are given to warps in groups of this many.
const REGISTER_GROUP: i64 = 256;

/// Shared memory is given to blocks in multiples of this many bytes.
const SHARED_GROUP: i64 = 128;

/// What a kernel takes and a multiprocessor has.
struct Facts {
    threads_most: i64,
    warp: i64,
    registers: i64,
    shared: i64,
    reserved: i64,
    blocks: i64,
    threads: i64,
    kernel_registers: i64,
    kernel_shared: i64,
}

impl Facts {
    fn new(device: &Device, function: &Function) -> Result<Self, CUresult> {
        let of_device = |attribute| i64::from(device.attribute(attribute));
        let of_kernel = |attribute| function.attribute(attribute).map(i64::from);
        Ok(Self {
            threads_most: of_kernel(CUfunction_attribute::MAX_THREADS_PER_BLOCK)?
                .min(of_device(CUdevice_attribute::MAX_THREADS_PER_BLOCK)),
            warp: of_device(CUdevice_attribute::WARP_SIZE).max(1),
            registers: of_device(CUdevice_attribute::MAX_REGISTERS_PER_MULTIPROCESSOR),
            shared: of_device(CUdevice_attribute::MAX_SHARED_MEMORY_PER_MULTIPROCESSOR),
            reserved: of_device(CUdevice_attribute::RESERVED_SHARED_MEMORY_PER_BLOCK),
            blocks: of_device(CUdevice_attribute::MAX_BLOCKS_PER_MULTIPROCESSOR),
            threads: of_device(CUdevice_attribute::MAX_THREADS_PER_MULTIPROCESSOR),
            kernel_registers: of_kernel(CUfunction_attribute::NUM_REGS)?,
            kernel_shared: of_kernel(CUfunction_attribute::SHARED_SIZE_BYTES)?,
        })
    }

    fn warps(&self, threads: i64) -> i64 {
        threads.next_multiple_of_group(self.warp) / self.warp
    }

    /// Blocks that fit, leaving shared memory aside.
    fn without_shared(&self, threads: i64) -> i64 {
        let warps = self.warps(threads);
        let by_threads = self.threads / (warps * self.warp);
        let a_warp = (self.kernel_registers * self.warp).next_multiple_of_group(REGISTER_GROUP);
        let by_registers = match a_warp * warps {
            0 => i64::MAX,
            needed => self.registers / needed,
        };
        self.blocks.min(by_threads).min(by_registers)
    }

    /// Blocks that fit.
    fn blocks(&self, threads: i64, dynamic: i64) -> i64 {
        if threads <= 0 || threads > self.threads_most {
            return 0;
        }
        let needed = self
            .kernel_shared
            .saturating_add(self.reserved)
            .saturating_add(dynamic)
            .next_multiple_of_group(SHARED_GROUP);
        let by_shared = match needed {
            0 => i64::MAX,
            needed => self.shared / needed,
        };
        self.without_shared(threads).min(by_shared)
    }
}

trait Groups {
    fn next_multiple_of_group(self, group: i64) -> i64;
}

impl Groups for i64 {
    fn next_multiple_of_group(self, group: i64) -> i64 {
        self.saturating_add(group - 1) / group * group
    }
}

/// Blocks of `threads` threads and `dynamic` bytes of dynamic shared memory that run at once on a
/// multiprocessor.
pub(crate) fn blocks_per_multiprocessor(
    device: &Device,
    function: &Function,
    threads: u32,
    dynamic: usize,
) -> Result<i32, CUresult> {
    let facts = Facts::new(device, function)?;
    let dynamic = i64::try_from(dynamic).unwrap_or(i64::MAX);
    Ok(i32::try_from(facts.blocks(i64::from(threads), dynamic)).unwrap_or(0))
}

/// The block size up to `limit` that keeps most threads running, and the fewest blocks that fill the
/// device with it. `dynamic` tells the dynamic shared memory that a block of so many threads takes.
pub(crate) fn best_block(
    device: &Device,
    function: &Function,
    limit: i32,
    dynamic: impl Fn(i32) -> usize,
) -> Result<(i32, i32), CUresult> {
    let facts = Facts::new(device, function)?;
    let most = match limit {
        0 => facts.threads_most,
        limit => facts.threads_most.min(i64::from(limit)),
    };
    let (mut best, mut best_blocks) = (0, 0);
    // From the largest size, which wins among equals, down by whole warps.
    let mut size = most;
    while size > 0 {
        let bytes = i64::try_from(dynamic(size as i32)).unwrap_or(i64::MAX);
        let blocks = facts.blocks(size, bytes);
        if blocks * size > best_blocks * best {
            (best, best_blocks) = (size, blocks);
        }
        size = (size - 1) / facts.warp * facts.warp;
    }
    let all = best_blocks * i64::from(device.attribute(CUdevice_attribute::MULTIPROCESSOR_COUNT));
    Ok((i32::try_from(all).unwrap_or(i32::MAX), best as i32))
}

/// Bytes of dynamic shared memory that each block may take, so that `blocks` of `threads` threads
/// still run at once on a multiprocessor.
pub(crate) fn available_shared(
    device: &Device,
    function: &Function,
    blocks: i32,
    threads: i32,
) -> Result<usize, CUresult> {
    let facts = Facts::new(device, function)?;
    let (blocks, threads) = (i64::from(blocks), i64::from(threads));
    if blocks <= 0
        || threads <= 0
        || threads > facts.threads_most
        || blocks > facts.without_shared(threads)
    {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let each = facts.shared / blocks / SHARED_GROUP * SHARED_GROUP;
    let most = i64::from(device.attribute(CUdevice_attribute::MAX_SHARED_MEMORY_PER_BLOCK_OPTIN));
    let free = (each - facts.reserved).min(most) - facts.kernel_shared;
    Ok(usize::try_from(free).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(kernel_registers: i64, kernel_shared: i64) -> Facts {
        Facts {
            threads_most: 1024,
            warp: 32,
            registers: 65536,
            shared: 233_472,
            reserved: 1024,
            blocks: 32,
            threads: 2048,
            kernel_registers,
            kernel_shared,
        }
    }

    #[test]
    fn the_scarcest_thing_decides() {
        assert_eq!(facts(16, 0).blocks(1024, 0), 2, "threads");
        assert_eq!(facts(16, 0).blocks(32, 0), 32, "blocks");
        assert_eq!(facts(255, 0).blocks(256, 0), 1, "registers");
        assert_eq!(facts(16, 48 << 10).blocks(64, 0), 4, "static shared memory");
        assert_eq!(
            facts(16, 0).blocks(64, 100 << 10),
            2,
            "dynamic shared memory"
        );
        assert_eq!(facts(16, 0).blocks(1025, 0), 0);
        assert_eq!(facts(16, 0).blocks(32, i64::MAX), 0);
    }
}
