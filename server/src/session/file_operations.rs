//! Operations on files that the client registers: mapping part of one over addresses of its host window, and ending that.
//!
//! Called by `dispatch` and `freeing`. What is mapped is owned by `memory::registered_files`; here are the checks of
//! the request, the client's addresses and what is said of a refusal. Must not know how a descriptor comes.

use std::os::fd::OwnedFd;

use cuda_abi::CUresult;
use cuda_abi::types::CUdevice_attribute;
use engine::Window;
use engine::arena::GRANULE;
use protocol::operations::{FILE_PACKET, FILE_READ_ONLY, FileMap};
use transport::memory::{MemoryError, page_of};

use super::Session;
use crate::memory::backing::ClientBacking;
use crate::memory::registered_files::{MOST, NotReceived};

impl Session {
    /// Maps part of the file whose descriptor came last.
    pub(super) fn map_file(&mut self, request: &FileMap) -> Result<u64, CUresult> {
        // First, so that it is not taken for the next request's.
        let file = self.receive_descriptor(FILE_PACKET)?;
        self.device_of(request.context)?;
        let read_only = request.flags & FILE_READ_ONLY != 0;
        let supported = CUdevice_attribute::READ_ONLY_HOST_REGISTER_SUPPORTED.0;
        if read_only
            && self
                .devices
                .iter()
                .any(|device| device.attribute(supported) != Some(1))
        {
            return Err(CUresult::ERROR_NOT_SUPPORTED);
        }
        let window = self.files.window_bytes();
        if request.bytes == 0 || request.bytes > window || request.flags & !FILE_READ_ONLY != 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        if self.files.is_full() {
            self.error_line(&format!(
                "no more than {MOST} files can be registered at a time"
            ));
            return Err(CUresult::ERROR_OUT_OF_MEMORY);
        }
        let page = page_of(&file).map_err(|error| self.unsuitable(&error))?;
        self.return_free_addresses();
        let bytes = request.bytes.next_multiple_of(GRANULE);
        let mut committer = ClientBacking(&mut *self.client, &self.addresses);
        let align = page.max(GRANULE);
        let base = self
            .memory
            .allocate_addresses(request.context, bytes, align, &mut committer)?;
        let lent = self.lend(request, &file, Window { base, bytes }, read_only);
        if lent.is_err()
            && let Some(block) = self.memory.remove(base, false)
        {
            self.memory.release(
                &block,
                &mut ClientBacking(&mut *self.client, &self.addresses),
            );
        }
        lent.map(|()| base)
    }

    fn lend(
        &mut self,
        request: &FileMap,
        file: &OwnedFd,
        range: Window,
        read_only: bool,
    ) -> Result<(), CUresult> {
        let mapped = self.files.map(request, file, range, read_only);
        let mapped = mapped.map_err(|error| {
            self.memory.return_addresses(range);
            self.unsuitable(&error)
        })?;
        self.client.host_lend(range, mapped.clone())?;
        self.observer.files.add(&mapped, request.context);
        self.files.insert(range.base, mapped);
        Ok(())
    }

    /// Gives addresses back to the client's window from which files and pages have gone since.
    pub(super) fn return_free_addresses(&mut self) {
        for range in self.files.take_free_addresses() {
            self.memory.return_addresses(range);
        }
    }

    /// Takes the descriptor that the client has sent with such a packet.
    pub(super) fn receive_descriptor(&mut self, packet: &[u8]) -> Result<OwnedFd, CUresult> {
        self.files.receive(packet).map_err(|refused| match refused {
            NotReceived::NoDescriptor => {
                self.error_line("the server has no descriptor left for a file to be registered");
                CUresult::ERROR_OUT_OF_MEMORY
            }
            NotReceived::Unsuitable(why) => {
                self.error_line(&format!("a descriptor is of no use: {why}"));
                CUresult::ERROR_NOT_SUPPORTED
            }
            NotReceived::NoReceiver => {
                self.broken = Some("a file was to be mapped that nobody could receive".to_owned());
                CUresult::ERROR_OPERATING_SYSTEM
            }
            NotReceived::RuleBroken(rule) => {
                self.broken = Some(rule);
                CUresult::ERROR_INVALID_VALUE
            }
        })
    }

    /// Says why a file cannot be mapped.
    fn unsuitable(&mut self, error: &MemoryError) -> CUresult {
        self.error_line(&format!("a file cannot be registered: {error}"));
        match error {
            MemoryError::System(..) => CUresult::ERROR_OUT_OF_MEMORY,
            _ => CUresult::ERROR_NOT_SUPPORTED,
        }
    }

    /// Ends what is mapped from an address on, if something is. Nothing uses it any more.
    pub(super) fn unmap_file(&mut self, address: u64) {
        if let Some(mapped) = self.files.remove(address) {
            self.client.host_return(mapped.range());
        }
    }
}
