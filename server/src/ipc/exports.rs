//! What clients of this server share: blocks of device memory, physical memory and events, each found
//! by a token that nobody can guess. What nobody shares here may be found at another server of the user's (`elsewhere`).
//!
//! A token belongs to a user: another user's client finds nothing by it, whoever gave it the token.
//! What is shared lives until the last who uses it is gone, whoever made it.
//!
//! Knows nothing of sessions but how to wake one.

use std::collections::HashMap;
use std::io::Read;
use std::sync::{Arc, OnceLock, Weak};

use cuda_abi::CUresult;
use engine::{MemoryHandle, Window};
use parking_lot::Mutex;

use crate::admission::groups::GroupCharge;
use crate::ipc::descriptors::OrphanedMemory;
use crate::ipc::elsewhere::{ForeignObject, Lease, SeekElsewhere};
use crate::ipc::shared_event::SharedEvent;
use crate::log::ClientLog;
use crate::session::observer::ClientObserver;

/// 256 random bits.
pub type Token = [u64; 4];

/// Whose a client is: its user's, or its own alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum User {
    /// By number.
    Known(u32),
    /// The kernel has no number for it here: it stands for everybody who is in a user namespace of somebody
    /// else's, so that clients that have it in common have nothing else. By session.
    Nobody(u64),
}

impl User {
    /// The user of a session whose peer has this number.
    #[must_use]
    pub fn of(uid: u32, session: u64) -> Self {
        match uid == transport::socket::overflow_uid() {
            true => Self::Nobody(session),
            false => Self::Known(uid),
        }
    }
}

impl std::fmt::Display for User {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Known(uid) => uid.fmt(f),
            Self::Nobody(_) => f.write_str("nobody"),
        }
    }
}

/// Something that a token names.
#[derive(Clone, Debug)]
pub enum ExportedObject {
    /// A block of device memory.
    Block(Arc<SharedBlock>),
    /// Physical memory.
    Physical(Arc<PhysicalMemory>),
    /// An event.
    Event(Arc<SharedEvent>),
}

/// What a server's clients share.
#[derive(Debug, Default)]
pub struct ExportRegistry {
    objects: Mutex<HashMap<Token, (User, ExportedObject)>>,
}

/// Keeps a token valid.
#[derive(Debug)]
pub struct Export {
    token: Token,
    sharing: Weak<ExportRegistry>,
}

impl Export {
    /// The token.
    #[must_use]
    pub const fn token(&self) -> Token {
        self.token
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        if let Some(sharing) = self.sharing.upgrade() {
            let gone = sharing.objects.lock().remove(&self.token);
            // Not while the lock is held: what goes may wake somebody.
            drop(gone);
        }
    }
}

impl ExportRegistry {
    /// Offers something to the clients of a user.
    ///
    /// # Errors
    /// CUDA_ERROR_OPERATING_SYSTEM when the system has no random bits.
    pub fn offer(self: &Arc<Self>, user: User, object: ExportedObject) -> Result<Export, CUresult> {
        let mut bytes = [0; 32];
        std::fs::File::open("/dev/urandom")
            .and_then(|mut source| source.read_exact(&mut bytes))
            .map_err(|_| CUresult::ERROR_OPERATING_SYSTEM)?;
        let mut token = [0; 4];
        for (word, bytes) in token.iter_mut().zip(bytes.as_chunks().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        self.objects.lock().insert(token, (user, object));
        Ok(Export {
            token,
            sharing: Arc::downgrade(self),
        })
    }

    /// What a token names to the clients of a user.
    #[must_use]
    pub fn find(&self, user: User, token: &Token) -> Option<ExportedObject> {
        let objects = self.objects.lock();
        let (owner, object) = objects.get(token)?;
        (*owner == user).then(|| object.clone())
    }
}

/// The registry, as the clients of one user see it.
#[derive(Clone, Debug)]
pub struct UserExports {
    /// All exports of the server.
    pub registry: Arc<ExportRegistry>,
    /// The user.
    pub user: User,
    /// How the client's other servers are asked, if there may be any.
    pub elsewhere: Option<Arc<SeekElsewhere>>,
    /// The client, for log lines.
    pub log: ClientLog,
}

/// What was found by a token.
#[derive(Debug)]
pub enum Found {
    /// A client of this server shares it.
    Here(ExportedObject),
    /// A client of another server does.
    Elsewhere(ForeignObject),
}

impl UserExports {
    /// Offers something to the user's other clients.
    ///
    /// # Errors
    /// See [`ExportRegistry::offer`].
    pub fn offer(&self, object: ExportedObject) -> Result<Export, CUresult> {
        self.registry.offer(self.user, object)
    }

    /// What one of the user's clients offers by this token, here or elsewhere. May wait for other servers.
    ///
    /// # Errors
    /// As [`SeekElsewhere::seek`].
    pub fn find(&self, token: &Token) -> Result<Option<Found>, CUresult> {
        let here = self.registry.find(self.user, token).map(Found::Here);
        let found = match (here, &self.elsewhere) {
            (None, Some(elsewhere)) => elsewhere.seek(*token)?.map(Found::Elsewhere),
            (here, _) => here,
        };
        if found.is_none() {
            // The client knows no more than that the handle is wrong.
            self.log.line(
                "it opens memory or an event that no client of its user shares, or not with clients of other contexts",
            );
        }
        Ok(found)
    }
}

/// A block of a client's device memory that others may use.
#[derive(Debug)]
pub struct SharedBlock {
    /// The session that it belongs to.
    pub session: u64,
    /// Its device.
    pub device: u32,
    /// Its addresses.
    pub range: Window,
    /// Keeps its memory.
    pub held: MemoryHandle,
    owner: Arc<ClientObserver>,
    users: Mutex<Users>,
    /// What it counts for its owner's group when the owner does not count it any more.
    group_charge: OnceLock<GroupCharge>,
}

#[derive(Debug, Default)]
struct Users {
    count: u32,
    /// The owner has freed it: nobody new may use it.
    closed: bool,
}

/// A client's use of another's block.
#[derive(Debug)]
pub struct Import(Arc<SharedBlock>);

impl SharedBlock {
    /// A block that nobody else uses yet.
    #[must_use]
    pub fn new(
        session: u64,
        device: u32,
        range: Window,
        held: MemoryHandle,
        owner: Arc<ClientObserver>,
    ) -> Self {
        Self {
            session,
            device,
            range,
            held,
            owner,
            users: Mutex::default(),
            group_charge: OnceLock::new(),
        }
    }

    /// Its owner ends, and with it its own count.
    pub fn set_group_charge(&self, kept: Option<GroupCharge>) {
        if let Some(kept) = kept {
            let _ = self.group_charge.set(kept);
        }
    }

    /// Uses it.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_HANDLE when its owner has freed it.
    pub fn import(self: &Arc<Self>) -> Result<Import, CUresult> {
        let mut users = self.users.lock();
        if users.closed {
            return Err(CUresult::ERROR_INVALID_HANDLE);
        }
        users.count = users
            .count
            .checked_add(1)
            .ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
        Ok(Import(self.clone()))
    }

    /// Whether nobody uses it.
    #[must_use]
    pub fn is_unused(&self) -> bool {
        self.users.lock().count == 0
    }

    /// Its owner has freed it. Says whether nobody uses it any more; if somebody does, the owner is
    /// woken when the last of them is gone.
    #[must_use]
    pub fn close(&self) -> bool {
        let mut users = self.users.lock();
        users.closed = true;
        users.count == 0
    }
}

impl Import {
    /// The block.
    #[must_use]
    pub fn block(&self) -> &SharedBlock {
        &self.0
    }
}

impl Drop for Import {
    fn drop(&mut self) {
        let mut users = self.0.users.lock();
        users.count -= 1;
        if users.count == 0 && users.closed {
            self.0.owner.wake();
        }
    }
}

/// Physical memory without an address.
#[derive(Debug)]
pub struct PhysicalMemory {
    /// The memory.
    pub held: MemoryHandle,
    /// What it counts for its allocator's group when the allocator is gone.
    pub group_charge: OnceLock<GroupCharge>,
    /// Or for its user; nothing if the user has too much so already, and descriptors do not hold it.
    pub orphan: OnceLock<Option<OrphanedMemory>>,
    /// What it is, and counts for its allocator. Last, so that the memory is free by the time that it may be
    /// allocated anew.
    pub charge: PhysicalCharge,
}

impl PhysicalMemory {
    /// Memory that was just made, or had from another server.
    #[must_use]
    pub const fn new(held: MemoryHandle, charge: PhysicalCharge) -> Self {
        Self {
            held,
            group_charge: OnceLock::new(),
            orphan: OnceLock::new(),
            charge,
        }
    }
}

/// What physical memory counts for its allocator until the last who has it lets go.
#[derive(Debug)]
pub struct PhysicalCharge {
    /// Its device.
    pub device: u32,
    /// Its size.
    pub bytes: u64,
    /// Whom it counts for.
    pub payer: Payer,
}

/// Whom physical memory counts for.
#[derive(Debug)]
pub enum Payer {
    /// A client of this server's, which allocated it.
    Client {
        /// Where it learns that the memory counts no more.
        returned: Arc<Returned>,
        /// The client.
        owner: Arc<ClientObserver>,
    },
    /// A client of another server, which knows by this how long it does.
    Elsewhere(#[expect(dead_code, reason = "kept for its drop")] Lease),
}

impl PhysicalCharge {
    /// The session whose it is; none of this server's is 0.
    #[must_use]
    pub fn session(&self) -> u64 {
        match &self.payer {
            Payer::Client { owner, .. } => owner.session(),
            Payer::Elsewhere(_) => 0,
        }
    }
}

impl Drop for PhysicalCharge {
    fn drop(&mut self) {
        if let Payer::Client { returned, owner } = &self.payer {
            returned.0.lock().push((self.device, self.bytes));
            owner.wake();
        }
    }
}

/// Devices and bytes of a client's physical memory that nobody has any more.
#[derive(Debug, Default)]
pub struct Returned(Mutex<Vec<(u32, u64)>>);

impl Returned {
    /// Takes them.
    #[must_use]
    pub fn drain(&self) -> Vec<(u32, u64)> {
        std::mem::take(&mut *self.0.lock())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_names_one_thing_to_one_user_while_it_is_offered() {
        let sharing = Arc::new(ExportRegistry::default());
        let event = ExportedObject::Event(Arc::default());
        let (owner, another) = (User::Known(1000), User::Known(1001));
        let first = sharing.offer(owner, event.clone()).unwrap();
        let second = sharing.offer(owner, event).unwrap();
        assert_ne!(first.token(), second.token());
        assert!(sharing.find(owner, &first.token()).is_some());
        assert!(
            sharing.find(another, &first.token()).is_none(),
            "another user"
        );
        assert!(sharing.find(owner, &[0; 4]).is_none());
        let token = first.token();
        drop(first);
        assert!(sharing.find(owner, &token).is_none());
        assert!(sharing.find(owner, &second.token()).is_some());
    }

    #[test]
    fn those_whom_the_kernel_does_not_know_here_have_nothing_in_common() {
        let overflow = transport::socket::overflow_uid();
        let [one, other] = [1, 2].map(|session| User::of(overflow, session));
        let sharing = Arc::new(ExportRegistry::default());
        let offer = sharing
            .offer(one, ExportedObject::Event(Arc::default()))
            .unwrap();
        assert!(sharing.find(one, &offer.token()).is_some(), "its own");
        assert!(sharing.find(other, &offer.token()).is_none());
        assert_eq!(User::of(1000, 1), User::of(1000, 2));
    }
}
