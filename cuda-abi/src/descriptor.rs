//! What a client is told of an image once it is loaded: its kernels and its variables.
//!
//! With it the client answers cuModuleGetFunction, cuModuleGetGlobal, parameter and attribute
//! questions without asking again, and lays out parameter blocks. The form is little-endian 32- and
//! 64-bit words with counts before lists and lengths before names; every count is checked against
//! the bytes that are left, so that a damaged descriptor costs no memory.

use crate::CUresult;
use crate::operations::ImageLoadReply;
use crate::words::{Damaged, Reader, put, put_name};

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
    /// Bytes of which its address is a multiple; 0 says nothing.
    pub align: u64,
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
        put(&mut out, self.kernels.len());
        for kernel in &self.kernels {
            put_name(&mut out, &kernel.name);
            put(&mut out, kernel.params.len());
            for (offset, size) in &kernel.params {
                out.extend(offset.to_le_bytes());
                out.extend(size.to_le_bytes());
            }
            for fact in [
                kernel.max_threads,
                kernel.shared_bytes,
                kernel.const_bytes,
                kernel.local_bytes,
                kernel.registers,
                kernel.ptx_version,
                kernel.binary_version,
            ] {
                out.extend(fact.to_le_bytes());
            }
        }
        put(&mut out, self.variables.len());
        for variable in &self.variables {
            put_name(&mut out, &variable.name);
            out.extend(variable.bytes.to_le_bytes());
            out.extend(u32::from(variable.managed).to_le_bytes());
            out.extend(variable.align.to_le_bytes());
        }
        put(&mut out, self.heap.into());
        out
    }

    /// Reads a descriptor.
    ///
    /// # Errors
    /// When it ends early or a name is not UTF-8.
    pub fn decode(bytes: &[u8]) -> Result<Self, Damaged> {
        let mut reader = Reader::new(bytes);
        let mut descriptor = Self::default();
        // The smallest kernel takes 36 bytes and the smallest variable 24, a parameter 8: a count
        // beyond what is left ends in an error at the first missing item, having kept only real ones.
        for _ in 0..reader.word()? {
            let name = reader.name()?;
            let mut params = Vec::new();
            for _ in 0..reader.word()? {
                params.push((reader.word()?, reader.word()?));
            }
            descriptor.kernels.push(Kernel {
                name,
                params,
                max_threads: reader.word()?,
                shared_bytes: reader.word()?,
                const_bytes: reader.word()?,
                local_bytes: reader.word()?,
                registers: reader.word()?,
                ptx_version: reader.word()?,
                binary_version: reader.word()?,
            });
        }
        for _ in 0..reader.word()? {
            descriptor.variables.push(Variable {
                name: reader.name()?,
                bytes: reader.long()?,
                managed: reader.word()? != 0,
                align: reader.long()?,
            });
        }
        descriptor.heap = reader.word()? != 0;
        Ok(descriptor)
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
