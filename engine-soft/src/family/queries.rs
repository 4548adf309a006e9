//! What device code asks the device runtime of devices, kernels and errors.
//!
//! Called for the grid's threads. Must not know launches or streams.

use std::sync::Arc;

use cuda_abi::types::CUdevice_attribute;
use ptx_vm::{Kernel, MOST_WRITTEN, REGISTERS_PER_SM, Reply, Services};

use super::Family;
use super::errors::{
    self, Called, INVALID_DEVICE, INVALID_FUNCTION, INVALID_VALUE, NO_MEMORY, NOT_SUPPORTED,
};
use crate::grid::Place;
use crate::memory;
use crate::multiprocessor::{
    BLOCKS_PER_SM, RESERVED_SHARED_BYTES, SHARED_BYTES_PER_SM, THREADS_PER_SM,
};

const WARP: u32 = 32;

impl Family {
    /// The number of this grid's device. Of several, the program may number them in its own order, which is not
    /// known here.
    pub(super) fn device(&self) -> Reply {
        match self.place.client.facts.len() {
            1 => Reply::written(&0_u32.to_le_bytes()),
            _ => Reply::Status(NOT_SUPPORTED),
        }
    }

    /// An attribute of this grid's own device.
    pub(super) fn attribute(&self, attribute: u32, device: u32) -> Reply {
        let Place {
            context,
            client,
            sms,
            ..
        } = &self.place;
        let facts = client.facts.get(device as usize);
        let Some(facts) = facts.filter(|_| device == context.device) else {
            return Reply::Status(INVALID_DEVICE);
        };
        let value = match CUdevice_attribute(attribute) {
            CUdevice_attribute::MULTIPROCESSOR_COUNT => i32::try_from(*sms).ok(),
            _ => facts.attribute(attribute),
        };
        value.map_or(Reply::Status(INVALID_VALUE), |value| {
            Reply::written(&value.to_le_bytes())
        })
    }

    pub(super) fn kernel(&self, address: u64) -> Called<(u32, &Arc<Kernel>)> {
        let module = &self.place.module;
        let number = module.image.module.kernel_at(address);
        let number = number.ok_or(INVALID_FUNCTION)?;
        let kernel = module.kernel(number).map_err(|_| INVALID_FUNCTION)?;
        Ok((number, kernel))
    }

    /// A kernel's facts as the first members of CUDA's cudaFuncAttributes, which are the same in all versions.
    pub(super) fn kernel_facts(&self, address: u64) -> Called<[u8; MOST_WRITTEN]> {
        let (number, kernel) = self.kernel(address)?;
        let capability = |attribute: CUdevice_attribute| {
            let facts = self
                .place
                .client
                .facts
                .get(self.place.context.device as usize);
            facts
                .and_then(|facts| facts.attribute(attribute.0))
                .unwrap_or(0)
        };
        let binary = 10 * capability(CUdevice_attribute::COMPUTE_CAPABILITY_MAJOR)
            + capability(CUdevice_attribute::COMPUTE_CAPABILITY_MINOR);
        let long = [kernel.shared_bytes, kernel.const_bytes, kernel.local_bytes].map(u64::from);
        let short = [
            kernel.max_threads,
            kernel.registers,
            kernel.ptx_version,
            binary.cast_unsigned(),
            0,
            self.place.module.dynamic_shared_limit(number),
            // No preference.
            u32::MAX,
        ];
        let mut facts = [0; MOST_WRITTEN];
        let bytes = long.iter().flat_map(|value| value.to_le_bytes());
        let bytes = bytes.chain(short.iter().flat_map(|value| value.to_le_bytes()));
        facts
            .iter_mut()
            .zip(bytes)
            .for_each(|(to, byte)| *to = byte);
        Ok(facts)
    }

    /// Blocks of a kernel that a multiprocessor holds.
    pub(super) fn occupancy(&self, address: u64, threads: u32, shared: u64) -> Called<u32> {
        let (_, kernel) = self.kernel(address)?;
        if threads == 0 || threads > kernel.max_threads {
            return Ok(0);
        }
        let warps = threads.div_ceil(WARP);
        let shared = shared
            .saturating_add((kernel.shared_bytes + RESERVED_SHARED_BYTES).into())
            .checked_next_multiple_of(128)
            .unwrap_or(u64::MAX);
        let registers = (kernel.registers * WARP).next_multiple_of(256) * warps;
        let blocks = BLOCKS_PER_SM
            .min(THREADS_PER_SM / (warps * WARP))
            .min(REGISTERS_PER_SM / registers.max(1));
        Ok(u64::from(blocks).min(u64::from(SHARED_BYTES_PER_SM) / shared) as u32)
    }

    /// A string in the device heap, where threads can read it. Each is made once.
    pub(super) fn error_text(&self, error: u32, name: bool) -> Called<u64> {
        let Place {
            context, client, ..
        } = &self.place;
        let mut texts = context.services.strings.lock();
        // Numbers that are no errors have one text.
        let text = errors::text(error, name);
        let known = errors::is_known(error);
        let key = (if known { error } else { u32::MAX }, name);
        if let Some(&address) = texts.get(&key) {
            return Ok(address);
        }
        let bytes = [text.as_bytes(), &[0]].concat();
        let address = context.services.allocate(bytes.len() as u64);
        if address == 0 {
            return Err(NO_MEMORY);
        }
        if memory::read(&client.spaces).write(address, &bytes).is_err() {
            self.free(address);
            return Err(NO_MEMORY);
        }
        texts.insert(key, address);
        Ok(address)
    }
}
