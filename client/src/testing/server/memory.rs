//! Memory of all kinds: devices' as vectors by address, the host window as it is.
//!
//! Used by the operations of the test server that copy, fill and write; it knows no order of streams.

use cuda_abi::CUresult;
use protocol::operations::Space;

use super::Server;
use crate::testing::{MEMORY, WINDOW};

impl Server<'_> {
    pub(super) fn allocate(&mut self, context: u32, bytes: u64) -> Result<u64, CUresult> {
        let device = self.device_of(context);
        let window = &self.facts[device];
        if self.next[device] + bytes > window.window + MEMORY {
            return Err(CUresult::ERROR_OUT_OF_MEMORY);
        }
        let address = self.next[device];
        self.next[device] = (address + bytes).next_multiple_of(256) + 256;
        self.memory.insert(address, vec![0; bytes as usize]);
        Ok(address)
    }

    pub(super) fn bytes(&mut self, address: u64, count: u64) -> &mut [u8] {
        let (base, content) = self
            .memory
            .range_mut(..=address)
            .next_back()
            .expect("an allocation");
        let at = (address - base) as usize;
        &mut content[at..at + count as usize]
    }

    pub(super) fn is_host(&self, address: u64) -> bool {
        (self.host..self.host + WINDOW).contains(&address)
    }

    pub(super) fn load(&mut self, space: u32, address: u64, count: u64) -> Vec<u8> {
        let mut row = vec![0; count as usize];
        if space == Space::Staging as u32 {
            self.staging.copy_out(address as usize, &mut row);
        } else if self.is_host(address) {
            // SAFETY: the client mapped its host window, in this very process.
            unsafe { std::ptr::copy(address as *const u8, row.as_mut_ptr(), row.len()) };
        } else {
            row.copy_from_slice(self.bytes(address, count));
        }
        row
    }

    pub(super) fn store(&mut self, space: u32, address: u64, row: &[u8]) {
        if space == Space::Staging as u32 {
            self.staging.copy_in(address as usize, row);
        } else if self.is_host(address) {
            // SAFETY: the client mapped its host window, in this very process.
            unsafe { std::ptr::copy(row.as_ptr(), address as *mut u8, row.len()) };
        } else {
            self.bytes(address, row.len() as u64).copy_from_slice(row);
        }
    }
}
