//! The images of all clients, by content: each once, as long as a client has it, and those used last for longer, so that
//! who comes with the same code finds it loaded.
//!
//! Called by clients that load one. Must not know contexts of clients.

use parking_lot::Mutex;
use std::borrow::Borrow;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, LazyLock, OnceLock, Weak};

use cuda_abi::CUresult;
use engine::Charge;

use crate::code::image::Image;
use crate::code::link;
use crate::code::loaded::Loaded;
use crate::code::prepare::Prepared;
use crate::code::refused::Refused;
use crate::code::room::CodeRoom;
use crate::code::warm_set::{Seen, WarmPlace, WarmSet, WarmShare};
use crate::device::{Device, Turn};

/// What an image is known by. Who is fenced has other code of it than who is not.
#[derive(Clone, Debug)]
pub(crate) struct Content {
    /// As it was sent, with its padding.
    pub(crate) bytes: Arc<[u8]>,
    /// Whether it is for fenced clients.
    pub(crate) fenced: bool,
    /// Of both, found out once: images are long, and who looks for one among all has them locked.
    hash: u64,
}

impl Content {
    /// Of an image as it was sent.
    pub(crate) fn new(image: &[u8], fenced: bool) -> Self {
        Self::of(&Sought::new(image, fenced))
    }

    fn of(sought: &Sought<'_>) -> Self {
        Self {
            bytes: link::padded(sought.image).into(),
            fenced: sought.fenced,
            hash: sought.hash,
        }
    }
}

/// An image as it was sent, to be looked for without a copy of it.
struct Sought<'a> {
    image: &'a [u8],
    fenced: bool,
    hash: u64,
}

impl<'a> Sought<'a> {
    fn new(image: &'a [u8], fenced: bool) -> Self {
        // Keys that no client knows.
        static KEYS: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        let hash = KEYS.hash_one((image, fenced));
        Self {
            image,
            fenced,
            hash,
        }
    }
}

/// What images are found by.
trait Key {
    /// The hash of the others, whether it is for fenced clients, and the image as it was sent.
    fn parts(&self) -> (u64, bool, &[u8]);
}

impl Key for Content {
    fn parts(&self) -> (u64, bool, &[u8]) {
        (self.hash, self.fenced, link::without_padding(&self.bytes))
    }
}

impl Key for Sought<'_> {
    fn parts(&self) -> (u64, bool, &[u8]) {
        (self.hash, self.fenced, self.image)
    }
}

impl PartialEq for dyn Key + '_ {
    fn eq(&self, other: &Self) -> bool {
        self.parts() == other.parts()
    }
}

impl Eq for dyn Key + '_ {}

impl Hash for dyn Key + '_ {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.parts().0);
    }
}

impl<'a> Borrow<dyn Key + 'a> for Content {
    fn borrow(&self) -> &(dyn Key + 'a) {
        self
    }
}

impl PartialEq for Content {
    fn eq(&self, other: &Self) -> bool {
        self.parts() == other.parts()
    }
}

impl Eq for Content {}

impl Hash for Content {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

/// All images.
#[derive(Debug)]
pub(crate) struct Images {
    known: Arc<KnownImages>,
}

#[derive(Debug)]
pub(crate) struct KnownImages {
    room: Arc<CodeRoom>,
    state: Mutex<State>,
    /// Images that the driver is about to load.
    coming: Mutex<HashMap<Content, Weak<Mutex<()>>>>,
    /// Who keeps files and loads ahead, if anybody does.
    ahead: OnceLock<SyncSender<Task>>,
    has_had_clients: AtomicBool,
}

/// What there is to do for who keeps files and loads ahead.
#[derive(Debug)]
pub(crate) enum Task {
    /// A client has come with an image: so many bytes with their padding.
    Keep(Content, Seen),
    /// Nobody has left a module of an image on a device: the next client would wait for one.
    Spare(Weak<Image>, Arc<Device>),
    /// Nothing more.
    End,
}

#[derive(Debug)]
struct State {
    images: HashMap<Content, KnownImage>,
    /// Those that no client has.
    warm: WarmSet<Content>,
}

#[derive(Debug)]
struct KnownImage {
    content: Content,
    image: Arc<Image>,
    /// What clients have it by.
    users: Weak<ClientImage>,
    /// The client that had it last. Another one makes it one that several had.
    last: Weak<WarmShare>,
    seen: Seen,
    /// A client has taken of its share that it is kept when nobody has it.
    is_to_stay: bool,
    place: Option<WarmPlace>,
}

/// An image that clients have.
#[derive(Debug)]
pub(crate) struct ClientImage {
    image: Arc<Image>,
    content: Content,
    known: Arc<KnownImages>,
    /// What of the server's memory is held for it, of that of the client which brought it first.
    _held: Option<Charge>,
}

impl Deref for ClientImage {
    type Target = Image;

    fn deref(&self) -> &Image {
        &self.image
    }
}

impl ClientImage {
    /// A module of this image on a device, that nobody else uses but where all have the same.
    ///
    /// # Errors
    /// The driver's status.
    pub(crate) fn instantiate(&self, device: &Arc<Device>) -> Result<Arc<Loaded>, CUresult> {
        let loaded = self.image.instantiate(device)?;
        if self.image.wants_spare(device) {
            let image = Arc::downgrade(&self.image);
            self.known.tell(Task::Spare(image, Arc::clone(device)));
        }
        Ok(loaded)
    }
}

impl Images {
    /// None yet, of devices of which the smallest has so much memory.
    pub(crate) fn new(memory: u64) -> Self {
        let room = CodeRoom::new(memory);
        let state = State {
            images: HashMap::new(),
            warm: WarmSet::new(room.most()),
        };
        Self {
            known: Arc::new(KnownImages {
                room,
                state: Mutex::new(state),
                coming: Mutex::default(),
                ahead: OnceLock::new(),
                has_had_clients: AtomicBool::new(false),
            }),
        }
    }

    /// What one more client may bring to what is kept.
    pub(crate) fn share(&self) -> Arc<WarmShare> {
        self.known.has_had_clients.store(true, Ordering::Relaxed);
        Arc::new(WarmShare::new(self.known.room.most()))
    }

    /// The image with these bytes, for a client with this share that is fenced or not; the driver is asked only if it is not there. `charge` is
    /// for what is made meanwhile, and for the image as long as any client has it.
    ///
    /// # Errors
    /// Why the driver does not take it, with its log.
    pub(crate) fn load(
        &self,
        device: &Arc<Device>,
        bytes: &[u8],
        fenced: bool,
        (charge, share): (Charge, &Arc<WarmShare>),
    ) -> Result<Arc<ClientImage>, Refused> {
        let sought = Sought::new(bytes, fenced);
        let mut charge = Some(charge);
        if let Some(image) = self.known.give(&sought, &mut charge, share) {
            return Ok(image);
        }
        let content = Content::of(&sought);
        // Not under the lock of all: compiling takes long. Whoever comes meanwhile with the same, as all clients do that another
        // server takes over, waits for what comes of it.
        let turn = self.known.turn(&content);
        let _one = device.gate().lock_for_client(&turn)?;
        if let Some(image) = self.known.give(&content, &mut charge, share) {
            return Ok(image);
        }
        let prepared = Prepared::new(device, &content, bytes.len(), Turn::Wait)?;
        let image = prepared.load(device, &self.known.room, Turn::Wait)?;
        Ok(self.known.add(content, image, &mut charge, share))
    }

    /// All images, for who keeps files and loads ahead, and is told what there is to do from now on.
    pub(crate) fn set_ahead(&self, tasks: SyncSender<Task>) -> Weak<KnownImages> {
        // Set once, by the engine.
        let _ = self.known.ahead.set(tasks);
        Arc::downgrade(&self.known)
    }

    /// What gives up all that no client has, so that its memory can be had. Whether there was anything.
    pub(crate) fn give_up(&self) -> impl Fn() -> bool + Send + Sync + 'static {
        // Devices have this, and images have devices.
        let known = Arc::downgrade(&self.known);
        move || known.upgrade().is_some_and(|known| known.release_unused())
    }
}

impl KnownImages {
    /// Whether a client has come.
    pub(crate) fn has_had_clients(&self) -> bool {
        self.has_had_clients.load(Ordering::Relaxed)
    }

    /// What one at a time has locked that has the driver load an image: a client, or who loads ahead.
    pub(crate) fn turn(&self, content: &Content) -> Arc<Mutex<()>> {
        let mut coming = self.coming.lock();
        coming.retain(|_, turn| turn.strong_count() > 0);
        if let Some(turn) = coming.get(content).and_then(Weak::upgrade) {
            return turn;
        }
        let turn = Arc::default();
        coming.insert(content.clone(), Arc::downgrade(&turn));
        turn
    }

    /// The image with this content, for one more client, if it is there.
    fn give(
        self: &Arc<Self>,
        content: &dyn Key,
        charge: &mut Option<Charge>,
        share: &Arc<WarmShare>,
    ) -> Option<Arc<ClientImage>> {
        let mut state = self.state.lock();
        let State { images, warm } = &mut *state;
        let known = images.get_mut(content)?;
        if known.last.as_ptr() != Arc::as_ptr(share) {
            known.last = Arc::downgrade(share);
            if known.seen == Seen::Once && share.try_take(Seen::Again, known.bytes()) {
                known.seen = Seen::Again;
                known.is_to_stay = true;
                self.tell(Task::Keep(known.content.clone(), Seen::Again));
            }
        }
        if let Some(place) = known.place.take() {
            warm.remove(place);
        }
        Some(known.give(self, charge))
    }

    /// Adds an image, which somebody may just have added too, and gives it to a client.
    fn add(
        self: &Arc<Self>,
        content: Content,
        image: Image,
        charge: &mut Option<Charge>,
        share: &Arc<WarmShare>,
    ) -> Arc<ClientImage> {
        if let Some(there) = self.give(&content, charge, share) {
            return there;
        }
        let mut state = self.state.lock();
        let known = state
            .images
            .entry(content.clone())
            .or_insert_with(|| KnownImage::new(&content, image, Arc::downgrade(share)));
        if share.try_take(Seen::Once, known.bytes()) {
            known.is_to_stay = true;
            self.tell(Task::Keep(content, Seen::Once));
        }
        known.give(self, charge)
    }

    /// The last client that had an image has it no longer.
    fn settle(&self, image: &ClientImage) {
        let mut gone = Vec::new();
        let mut state = self.state.lock();
        let State { images, warm } = &mut *state;
        let Some(known) = images.get_mut(&image.content) else {
            return;
        };
        // Somebody may have come meanwhile.
        if known.users.strong_count() > 0 || known.place.is_some() {
            return;
        }
        if known.is_to_stay {
            let content = image.content.clone();
            known.place = warm.insert(content, known.bytes(), known.seen, &mut gone);
        }
        if known.place.is_none() {
            gone.push(image.content.clone());
        }
        let gone: Vec<_> = gone
            .iter()
            .filter_map(|content| images.remove(content))
            .collect();
        drop(state);
        // What goes with them is not for those who wait for the lock.
        drop(gone);
    }

    /// Tells who keeps files and loads ahead. Who has very much to do is not told everything: a client is not to wait for that.
    fn tell(&self, task: Task) {
        if let Some(ahead) = self.ahead.get() {
            let _ = ahead.try_send(task);
        }
    }

    pub(crate) fn room(&self) -> &Arc<CodeRoom> {
        &self.room
    }

    /// Whether an image of so many bytes is to be loaded ahead: it is not there, and nothing goes for it.
    pub(crate) fn wants(&self, content: &Content, seen: Seen) -> bool {
        let state = self.state.lock();
        !state.images.contains_key(content) && state.warm.has_room(seen, content.bytes.len())
    }

    /// Adds an image that was loaded ahead, if there is still room and nobody has come with it. The image, if it is added.
    pub(crate) fn add_ahead(
        &self,
        content: Content,
        image: Image,
        seen: Seen,
    ) -> Option<Weak<Image>> {
        let mut state = self.state.lock();
        let State { images, warm } = &mut *state;
        let Entry::Vacant(vacant) = images.entry(content) else {
            return None;
        };
        let mut known = KnownImage::new(vacant.key(), image, Weak::new());
        if !warm.has_room(seen, known.bytes()) {
            return None;
        }
        let content = known.content.clone();
        known.place = warm.insert(content, known.bytes(), seen, &mut Vec::new());
        (known.seen, known.is_to_stay) = (seen, true);
        let image = Arc::downgrade(&known.image);
        vacant.insert(known);
        Some(image)
    }

    fn release_unused(&self) -> bool {
        let mut state = self.state.lock();
        let State { images, warm } = &mut *state;
        let warm = warm.take_all();
        let gone: Vec<_> = warm
            .iter()
            .filter_map(|content| images.remove(content))
            .collect();
        let used: Vec<_> = images
            .values()
            .map(|known| Arc::clone(&known.image))
            .collect();
        drop(state);
        let mut any = !gone.is_empty();
        drop(gone);
        for image in used {
            any |= image.drop_spares();
        }
        any
    }
}

impl KnownImage {
    /// One that nobody has yet.
    fn new(content: &Content, image: Image, last: Weak<WarmShare>) -> Self {
        Self {
            content: content.clone(),
            image: Arc::new(image),
            users: Weak::new(),
            last,
            seen: Seen::Once,
            is_to_stay: false,
            place: None,
        }
    }

    /// What it counts where it is kept: of this process' memory, and of a device's.
    fn bytes(&self) -> usize {
        self.content.bytes.len().max(self.image.module_bytes())
    }

    /// What clients have it by: the same for all, or new, with this charge.
    fn give(&mut self, known: &Arc<KnownImages>, charge: &mut Option<Charge>) -> Arc<ClientImage> {
        if let Some(users) = self.users.upgrade() {
            return users;
        }
        let mut held = charge.take();
        if let Some(held) = &mut held {
            held.shrink_to(self.content.bytes.len() as u64);
        }
        let image = Arc::new(ClientImage {
            image: Arc::clone(&self.image),
            content: self.content.clone(),
            known: Arc::clone(known),
            _held: held,
        });
        self.users = Arc::downgrade(&image);
        image
    }
}

impl Drop for ClientImage {
    fn drop(&mut self) {
        self.known.settle(self);
    }
}
