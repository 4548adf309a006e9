//! What a client is shown of an image once it is loaded: its kernels and its variables.
//!
//! With it the client answers cuModuleGetFunction, cuModuleGetGlobal, parameter and attribute
//! questions without asking again, and lays out parameter blocks. Engines write it, the session
//! passes it on unread.
//!
//! Must not know code: here are names, sizes and attributes.

use crate::codec::{ByteCodec as _, Damaged, Reader, message};
use crate::operations::ImageLoadReply;
use cuda_abi::CUresult;

message! {
    /// An image's kernels and variables.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct Descriptor {
        /// Kernels in the order of the image; a kernel's index is its number in a launch.
        pub kernels: Vec<Kernel>,
        /// Variables of module scope in `.global` and `.const`, in the order of the image.
        pub variables: Vec<Variable>,
        /// Whether its kernels take memory from a heap that the client is to give their context.
        pub heap: bool,
    }

    /// What a driver tells of a kernel.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct Kernel {
        /// Its name.
        pub name: String,
        /// Offset and size in bytes of each parameter in the parameter block.
        pub params: Vec<(u32, u32)>,
        /// CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK.
        pub max_threads: u32,
        /// CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: static shared memory.
        pub shared_bytes: u32,
        /// CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES.
        pub const_bytes: u32,
        /// CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES a thread.
        pub local_bytes: u32,
        /// CU_FUNC_ATTRIBUTE_NUM_REGS.
        pub registers: u32,
        /// CU_FUNC_ATTRIBUTE_PTX_VERSION: ten times the major plus the minor architecture number.
        pub ptx_version: u32,
        /// CU_FUNC_ATTRIBUTE_BINARY_VERSION.
        pub binary_version: u32,
        /// CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH and the two after it: blocks of the clusters that it was compiled for, in
        /// x, y, z; zeroes if it was not compiled for any.
        pub required_cluster: [u32; 3],
        /// CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET: whether a launch without a cluster size is an error; 0 or 1.
        pub cluster_must_be_set: u32,
        /// The most blocks of its clusters, as `.maxclusterrank` says; 0 if nothing is said, or the driver keeps it to itself.
        pub max_cluster: u32,
    }

    /// A variable of module scope.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct Variable {
        /// Its name.
        pub name: String,
        /// Bytes that it takes.
        pub bytes: u64,
        /// Whether it is managed memory.
        pub managed: bool,
        /// Bytes of which its address is a multiple. 0 if it lies in device memory that the engine takes by itself; the others' the
        /// session gives, for each module.
        pub align: u64,
    }
}

impl ImageLoadReply {
    /// Writes what follows the fields: the encoded descriptor, which an image that was refused has not,
    /// and what was remarked on it. Gives the fields that say how long each is.
    pub fn written(status: CUresult, descriptor: &[u8], log: &[u8], reply: &mut Vec<u8>) -> Self {
        reply.extend_from_slice(descriptor);
        reply.extend_from_slice(log);
        Self {
            status: status.0,
            descriptor: descriptor.len() as u64,
            log: log.len() as u64,
        }
    }
}

impl Descriptor {
    /// The bytes of this descriptor.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.put(&mut out);
        out
    }

    /// Reads a descriptor.
    ///
    /// # Errors
    /// When it ends early or a name is not UTF-8.
    pub fn decode(bytes: &[u8]) -> Result<Self, Damaged> {
        Self::get(&mut Reader::new(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Descriptor {
        Descriptor {
            kernels: vec![Kernel {
                name: "saxpy".into(),
                params: vec![(0, 4), (8, 8), (16, 8)],
                max_threads: 1024,
                shared_bytes: 48,
                const_bytes: 4,
                local_bytes: 16,
                registers: 32,
                ptx_version: 75,
                binary_version: 121,
                required_cluster: [4, 2, 1],
                cluster_must_be_set: 1,
                max_cluster: 8,
            }],
            variables: vec![Variable {
                name: "table".into(),
                bytes: 1 << 33,
                managed: true,
                align: 4096,
            }],
            heap: true,
        }
    }

    #[test]
    fn decoding_undoes_encoding() {
        assert_eq!(Descriptor::decode(&example().encode()), Ok(example()));
    }

    #[test]
    fn every_truncation_is_refused() {
        let bytes = example().encode();
        for end in 0..bytes.len() {
            assert_eq!(Descriptor::decode(&bytes[..end]), Err(Damaged), "at {end}");
        }
    }

    #[test]
    fn a_huge_count_costs_nothing() {
        assert_eq!(Descriptor::decode(&u32::MAX.to_le_bytes()), Err(Damaged));
    }
}
