//! What all blocks of a grid share, as operations see it: sizes, parameters, memory, and whom to ask.
//!
//! [`super::Launch`] makes it. It knows neither kernels nor their code.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::device_runtime::DeviceRuntime;
use super::memory::AddressSpace;
use super::reach::Readable;
use super::regs::Bytes;
use super::services::Services;
use super::texture::Textures;

/// Bytes in which a cooperative grid's blocks meet: the compiler's code uses the first few words.
pub(crate) const MEETING_BYTES: usize = 256;
/// Bytes of shared memory of each block that are the system's; code of cooperative groups uses them.
pub(crate) const RESERVED_SHARED: u32 = 1024;

/// See the module.
#[derive(Debug)]
pub(crate) struct Grid {
    /// Blocks in x, y, z.
    pub(crate) size: [u32; 3],
    /// Threads of a block in x, y, z.
    pub(crate) block: [u32; 3],
    /// Blocks of a cluster in x, y, z, which divide the grid's.
    pub(crate) cluster: [u32; 3],
    /// The launch or the kernel names clusters; else each block is one by itself.
    pub(crate) has_clusters: bool,
    /// Bytes of a block's shared memory that the kernel declares.
    pub(crate) static_shared: u32,
    /// Bytes of it that the launch adds.
    pub(crate) dynamic_shared: u32,
    /// The kernel uses the system's part of shared memory.
    pub(crate) has_reserved_shared: bool,
    pub(crate) params: Bytes,
    /// Bytes of `params` that the kernel has.
    pub(crate) param_bytes: u32,
    pub(crate) globals: Arc<[u64]>,
    /// Where the module's constants lie and their bytes, ascending; empty if the kernel does not ask.
    pub(crate) constants: Vec<(u64, u64)>,
    pub(crate) memory: Arc<AddressSpace>,
    /// What its blocks have found that they may read of it.
    pub(crate) readable: Readable,
    pub(crate) textures: Arc<Textures>,
    /// Set to end the grid.
    pub(crate) cancel: Arc<AtomicBool>,
    /// What `%gridid` reads.
    pub(crate) id: u64,
    /// What `%current_graph_exec` reads.
    pub(crate) graph: u64,
    /// What `%nsmid` reads.
    pub(crate) sm_count: u32,
    pub(crate) services: Arc<dyn Services>,
    /// Who launches for its kernel.
    pub(crate) runtime: Option<Arc<dyn DeviceRuntime>>,
    /// Where a cooperative grid's blocks meet, zeroed.
    pub(crate) meeting: Bytes,
    pub(crate) cooperative: bool,
}

/// A block's place in its cluster.
#[derive(Debug)]
pub(crate) struct ClusterPlace<'a> {
    pub(crate) rank: u32,
    /// The shared memory of each of the cluster's blocks, by rank.
    pub(crate) shared: &'a [Bytes],
}

impl Grid {
    /// Clusters in x, y, z.
    pub(crate) fn clusters(&self) -> [u32; 3] {
        std::array::from_fn(|axis| self.size[axis] / self.cluster[axis])
    }

    /// The place after a block's in a grid without clusters, x fastest; `None` after the last one. It comes for each block, and
    /// divisions by what a grid's sides are take longer than many a block.
    pub(crate) fn following(&self, [x, y, z]: [u32; 3]) -> Option<[u32; 3]> {
        let size = self.size;
        if x + 1 < size[0] {
            Some([x + 1, y, z])
        } else if y + 1 < size[1] {
            Some([0, y + 1, z])
        } else {
            (z + 1 < size[2]).then_some([0, 0, z + 1])
        }
    }

    /// Blocks of a cluster.
    pub(crate) fn cluster_blocks(&self) -> u32 {
        self.cluster.iter().product()
    }

    /// Threads of a block.
    pub(crate) fn threads(&self) -> u32 {
        self.block.iter().product()
    }

    /// Where the system's part of a block's shared memory begins, if the kernel uses it.
    pub(crate) fn reserved_shared(&self) -> u32 {
        (self.static_shared + self.dynamic_shared).next_multiple_of(16)
    }

    /// Bytes of a block's shared memory, with the system's part.
    pub(crate) fn shared(&self) -> u32 {
        if self.has_reserved_shared {
            self.reserved_shared() + RESERVED_SHARED
        } else {
            self.static_shared + self.dynamic_shared
        }
    }
}
