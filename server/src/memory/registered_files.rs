//! Files of the client's that it has registered: memfds, what lies in /dev/shm, files of local disks. The
//! program goes on using its own mapping; the server maps the same part of the file over addresses of the
//! client's host window, where devices reach it as they reach page-locked memory.
//!
//! A descriptor comes over the session's socket, just before the request that names it, and is received by whom
//! [`FileReceiver`] says. What a file may be, and what happens when it is cut short, is `transport`'s ([`Overlay`]);
//! that the context then fails is ours. Knows nothing of what the bytes are.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use cuda_abi::CUresult;
use cuda_abi::types::CUdevice_attribute;
use engine::Window;
use engine::arena::GRANULE;
use protocol::operations::{FILE_READ_ONLY, FileMap};
use transport::memory::{Mapping, MemoryError, Overlay, Sealed, page_of};
use transport::socket::Connection;

use crate::memory::backing::ClientBacking;
use crate::memory::file_receiver::{FileReceiver, NoFile};
use crate::memory::mapped_file::{FreeAddresses, MappedFile};
use crate::session::Session;

/// Files that a client can have mapped.
const MOST: usize = 1024;

/// Files of a client's that may have been sent and not answered, each of which the receiver goes on having.
const UNANSWERED: u32 = 4;

/// A client's files.
#[derive(Debug)]
pub struct Files {
    connection: Arc<Connection>,
    receiver: Arc<FileReceiver>,
    unanswered: u32,
    window: Arc<Mapping>,
    memory: Arc<Sealed>,
    /// By first address.
    mapped: BTreeMap<u64, Arc<MappedFile>>,
    free: FreeAddresses,
}

impl Files {
    /// None yet. `window` is the mapping of all of `memory`, the client's page-locked memory.
    pub fn new(
        (connection, receiver): (Arc<Connection>, Arc<FileReceiver>),
        window: Arc<Mapping>,
        memory: Sealed,
    ) -> Self {
        Self {
            connection,
            receiver,
            unanswered: 0,
            window,
            memory: Arc::new(memory),
            mapped: BTreeMap::new(),
            free: FreeAddresses::default(),
        }
    }
}

impl Session {
    /// Maps part of the file whose descriptor came last.
    pub(crate) fn map_file(&mut self, request: &FileMap) -> Result<u64, CUresult> {
        // First, so that it is not taken for the next request's.
        let file = self.receive_file()?;
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
        let window = self.files.window.len() as u64;
        if request.bytes == 0 || request.bytes > window || request.flags & !FILE_READ_ONLY != 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        if self.files.mapped.len() >= MOST {
            self.error_line(&format!(
                "no more than {MOST} files can be registered at a time"
            ));
            return Err(CUresult::ERROR_OUT_OF_MEMORY);
        }
        let page = page_of(&file).map_err(|error| self.unsuitable(&error))?;
        let mut free = std::mem::take(&mut *self.files.free.lock());
        free.drain(..)
            .for_each(|range| self.memory.return_addresses(range));
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
        let files = &self.files;
        let overlay = Overlay::map(
            (&files.window, &files.memory),
            (range.base - files.window.base()) as usize,
            file.as_fd(),
            request.offset,
            request.bytes as usize,
            read_only,
        );
        let overlay = overlay.map_err(|error| {
            self.memory.return_addresses(range);
            self.unsuitable(&error)
        })?;
        let lent = Arc::new(MappedFile::new(overlay, range, self.files.free.clone()));
        self.client.host_lend(range, lent.clone())?;
        self.observer.files.add(&lent, request.context);
        self.files.mapped.insert(range.base, lent);
        Ok(())
    }

    /// Takes the descriptor that the client has sent.
    fn receive_file(&mut self) -> Result<OwnedFd, CUresult> {
        let refused = match self.files.receiver.receive(&self.files.connection) {
            Ok(file) => return Ok(file),
            Err(refused) => refused,
        };
        match refused {
            NoFile::NoDescriptor => {
                self.error_line("the server has no descriptor left for a file to be registered");
                Err(CUresult::ERROR_OUT_OF_MEMORY)
            }
            NoFile::Unsuitable(why) => {
                self.error_line(&format!("a file cannot be registered: {why}"));
                Err(CUresult::ERROR_NOT_SUPPORTED)
            }
            NoFile::NotAnswering if self.files.unanswered < UNANSWERED => {
                self.files.unanswered += 1;
                self.error_line("a file cannot be registered: its file system does not answer");
                Err(CUresult::ERROR_NOT_SUPPORTED)
            }
            NoFile::NotAnswering => {
                self.broken = Some(format!(
                    "more than {UNANSWERED} files were to be mapped whose file systems do not answer"
                ));
                Err(CUresult::ERROR_INVALID_VALUE)
            }
            // The file stays in the socket, and would be taken for the next one.
            NoFile::NoReceiver => {
                self.broken = Some("a file was to be mapped that nobody could receive".to_owned());
                Err(CUresult::ERROR_OPERATING_SYSTEM)
            }
            NoFile::NotSent => {
                self.broken = Some("a file was to be mapped and none was sent".to_owned());
                Err(CUresult::ERROR_INVALID_VALUE)
            }
        }
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
    pub(crate) fn unmap_file(&mut self, address: u64) {
        if let Some(lent) = self.files.mapped.remove(&address) {
            self.client.host_return(lent.range());
        }
    }
}
