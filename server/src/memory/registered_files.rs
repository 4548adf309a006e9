//! Files of the client's that it has registered: memfds, what lies in /dev/shm, files of local disks. The
//! program goes on using its own mapping; the server maps the same part of the file over addresses of the
//! client's host window, where devices reach it as they reach page-locked memory.
//!
//! A descriptor comes over the session's socket, just before the request that names it, and is received by whom
//! [`FileReceiver`] says. What a file may be, and what happens when it is cut short, is `transport`'s ([`Overlay`]).
//! Called by `session::file_operations`. Must not know contexts, quotas or what the bytes are.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use engine::Window;
use protocol::operations::FileMap;
use transport::memory::{Mapping, MemoryError, Overlay, Sealed};
use transport::socket::Connection;

use crate::memory::client_pages::Reserved;
use crate::memory::file_receiver::{FileReceiver, NoFile};
use crate::memory::mapped_file::{FreeAddresses, MappedFile};

/// Files that a client can have mapped.
pub(crate) const MOST: usize = 1024;

/// Files of a client's that may have been sent and not answered, each of which the receiver goes on having.
const UNANSWERED: u32 = 4;

/// A client's files.
#[derive(Debug)]
pub struct RegisteredFiles {
    connection: Arc<Connection>,
    receiver: Arc<FileReceiver>,
    unanswered: u32,
    pub(super) window: Arc<Mapping>,
    pub(super) memory: Arc<Sealed>,
    /// By first address.
    mapped: BTreeMap<u64, Arc<MappedFile>>,
    /// Addresses for pages of the client's, by the first.
    pub(super) reserved: BTreeMap<u64, Reserved>,
    pub(super) free: FreeAddresses,
}

impl RegisteredFiles {
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
            reserved: BTreeMap::new(),
            free: FreeAddresses::default(),
        }
    }

    /// Bytes of the client's host window: more can be mapped of no file.
    pub(crate) fn window_bytes(&self) -> u64 {
        self.window.len() as u64
    }

    /// Whether no further file can be mapped.
    pub(crate) fn is_full(&self) -> bool {
        self.mapped.len() >= MOST
    }

    /// Takes the descriptor that the client has sent with such a packet.
    pub(crate) fn receive(&mut self, packet: &[u8]) -> Result<OwnedFd, NotReceived> {
        let refused = match self.receiver.receive(packet, &self.connection) {
            Ok(file) => return Ok(file),
            Err(refused) => refused,
        };
        Err(match refused {
            NoFile::NoDescriptor => NotReceived::NoDescriptor,
            NoFile::Unsuitable(why) => NotReceived::Unsuitable(why),
            NoFile::NotAnswering if self.unanswered < UNANSWERED => {
                self.unanswered += 1;
                NotReceived::Unsuitable("its file system does not answer".to_owned())
            }
            NoFile::NotAnswering => NotReceived::RuleBroken(format!(
                "more than {UNANSWERED} files were to be mapped whose file systems do not answer"
            )),
            NoFile::NoReceiver => NotReceived::NoReceiver,
            NoFile::NotSent => {
                NotReceived::RuleBroken("a file was to be mapped and none was sent".to_owned())
            }
        })
    }

    /// Address ranges whose files are not mapped any more, to be given back.
    pub(crate) fn take_free_addresses(&self) -> Vec<Window> {
        std::mem::take(&mut *self.free.lock())
    }

    /// Maps part of a file over addresses of the window.
    pub(crate) fn map(
        &self,
        request: &FileMap,
        file: &OwnedFd,
        range: Window,
        read_only: bool,
    ) -> Result<Arc<MappedFile>, MemoryError> {
        let overlay = Overlay::map(
            (&self.window, &self.memory),
            (range.base - self.window.base()) as usize,
            file.as_fd(),
            request.offset,
            request.bytes as usize,
            read_only,
        )?;
        Ok(Arc::new(MappedFile::new(overlay, range, self.free.clone())))
    }

    /// Keeps a mapped file until [`RegisteredFiles::remove`].
    pub(crate) fn insert(&mut self, base: u64, file: Arc<MappedFile>) {
        self.mapped.insert(base, file);
    }

    /// Forgets the file that is mapped from an address on, if one is.
    pub(crate) fn remove(&mut self, base: u64) -> Option<Arc<MappedFile>> {
        self.mapped.remove(&base)
    }
}

/// Why there is no descriptor of a file to be mapped.
pub(crate) enum NotReceived {
    /// The server has none left.
    NoDescriptor,
    /// The file cannot be mapped, and why.
    Unsuitable(String),
    /// Nobody can receive it: it stays in the socket, and would be taken for the next one.
    NoReceiver,
    /// The client broke the rule that is named.
    RuleBroken(String),
}
