//! The thread that loads code ahead: images that clients of earlier servers had, from files, when the server starts; and a
//! module for the next client, when the last that nobody had was taken. And that keeps the files.
//!
//! It loads only while a device has had nothing to do for a moment, and for half of the time at most. Started by the
//! engine, told by `images` what there is to do. Must not know clients.

use std::collections::{HashSet, VecDeque};
use std::fmt::{Debug, Formatter};
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cuda_abi::CUresult;

use crate::code::image::Image;
use crate::code::images::{Content, Images, KnownImages, Task};
use crate::code::link;
use crate::code::prepare::Prepared;
use crate::code::refused::Refused;
use crate::code::warm_files::{WarmFile, WarmFiles};
use crate::code::warm_set::Seen;
use crate::device::{Device, Turn};

/// What waits to be done; of more it is not told.
const MOST_TASKS: usize = 1024;
/// The least and the longest time between two tries to load.
const SHORTEST: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_millis(200);
/// A device has nothing to do if it had nothing each time of so many, with so much time between.
const LOOKS: u32 = 5;
const BETWEEN_LOOKS: Duration = Duration::from_millis(2);
/// A server that waits for its first client looks for new files this often: others may have clients.
const BETWEEN_LISTS: Duration = Duration::from_secs(2);
/// How long files are still written when the server ends.
const AT_THE_END: Duration = Duration::from_secs(1);

/// Who is told what the server's log should have.
pub(crate) type Say = Box<dyn Fn(&str) + Send>;

/// The thread; ends when this is dropped.
#[derive(Debug)]
pub(crate) struct LoadAhead {
    tasks: SyncSender<Task>,
    thread: Option<JoinHandle<()>>,
}

impl LoadAhead {
    /// Starts the thread, which loads on all devices what there is in a folder's files, and keeps new ones there.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub(crate) fn start(
        images: &Images,
        device: &Arc<Device>,
        others: &[Arc<Device>],
        folder: Option<&Path>,
        say: Say,
    ) -> std::io::Result<Self> {
        let (tell, tasks) = sync_channel(MOST_TASKS);
        let files = folder.and_then(|folder| {
            let opened = WarmFiles::open(folder);
            let opened = opened.inspect_err(|error| {
                let folder = folder.display();
                say(&format!(
                    "Code is not kept for later servers in {folder}: {error}"
                ));
            });
            opened.ok()
        });
        let mut thread = Thread {
            images: images.set_ahead(tell.clone()),
            device: Arc::clone(device),
            others: others.to_vec(),
            files,
            say,
            ahead: VecDeque::new(),
            listed: HashSet::new(),
            next: None,
            spares: VecDeque::new(),
            has_complained: false,
        };
        let thread = std::thread::Builder::new()
            .name("nvidia-ahead".into())
            .spawn(move || thread.run(&tasks))?;
        Ok(Self {
            tasks: tell,
            thread: Some(thread),
        })
    }
}

impl Drop for LoadAhead {
    fn drop(&mut self) {
        // Who has so much to do that this is one too many comes to it in a moment.
        while let Err(std::sync::mpsc::TrySendError::Full(_)) = self.tasks.try_send(Task::End) {
            std::thread::sleep(SHORTEST);
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// An image from a file, ready to be loaded.
struct Next {
    file: WarmFile,
    content: Content,
    prepared: Prepared,
}

struct Thread {
    images: Weak<KnownImages>,
    /// Where images are loaded first.
    device: Arc<Device>,
    others: Vec<Arc<Device>>,
    files: Option<WarmFiles>,
    say: Say,
    /// Files whose images are to be loaded.
    ahead: VecDeque<WarmFile>,
    /// Names of all that were found.
    listed: HashSet<String>,
    next: Option<Next>,
    /// Images of which there is no module on a device, or none that nobody has.
    spares: VecDeque<(Weak<Image>, Arc<Device>)>,
    has_complained: bool,
}

impl Debug for Thread {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Thread").finish_non_exhaustive()
    }
}

impl Thread {
    fn run(&mut self, tasks: &Receiver<Task>) {
        self.list();
        let mut pause = SHORTEST;
        loop {
            let wants = self.next.is_some() || !self.ahead.is_empty() || !self.spares.is_empty();
            let task = match wants {
                true => tasks.recv_timeout(pause),
                false if self.stands_by() => tasks.recv_timeout(BETWEEN_LISTS),
                false => tasks.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match task {
                Ok(Task::Keep(content, seen)) => self.keep(&content, seen),
                Ok(Task::Spare(image, device)) => {
                    if self.spares.len() < MOST_TASKS {
                        self.spares.push_back((image, device));
                    }
                    pause = SHORTEST;
                }
                Ok(Task::End) | Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) if !wants => self.list(),
                Err(RecvTimeoutError::Timeout) => {
                    let began = Instant::now();
                    pause = match self.load_something() {
                        true => began.elapsed().max(SHORTEST),
                        false => (pause * 2).min(LONGEST),
                    };
                }
            }
        }
        let until = Instant::now() + AT_THE_END;
        while Instant::now() < until
            && let Ok(task) = tasks.try_recv()
        {
            if let Task::Keep(content, seen) = task {
                self.keep(&content, seen);
            }
        }
    }

    /// Whether no client has come yet, and what others' bring is kept.
    fn stands_by(&self) -> bool {
        let images = self.images.upgrade();
        self.files.is_some() && images.is_some_and(|images| !images.has_had_clients())
    }

    /// Has what is new among the files loaded.
    fn list(&mut self) {
        let Some(files) = &self.files else { return };
        let mut set_aside = 0;
        match files.list(&mut set_aside) {
            Ok(all) => {
                let new = all.into_iter();
                let new = new.filter(|file| self.listed.insert(file.name().to_owned()));
                self.ahead = new.collect();
            }
            Err(error) => self.complain(&error),
        }
        if set_aside > 0 {
            (self.say)(&format!(
                "Code kept for later servers: {set_aside} images are given up, which servers did not survive loading"
            ));
        }
    }

    fn complain(&mut self, error: &std::io::Error) {
        if let Some(files) = &self.files
            && !std::mem::replace(&mut self.has_complained, true)
        {
            let folder = files.folder().display();
            (self.say)(&format!(
                "Code is not kept for later servers in {folder}: {error}"
            ));
        }
    }

    fn keep(&mut self, content: &Content, seen: Seen) {
        // Files have images as they were sent, and a later server loads them for who is not fenced.
        let Some(files) = self.files.as_ref().filter(|_| !content.fenced) else {
            return;
        };
        let image = link::without_padding(&content.bytes);
        if let Err(error) = files.keep(image, seen) {
            self.complain(&error);
        }
    }

    /// Loads one thing, if a device has nothing to do. Whether there is something to be done at once.
    fn load_something(&mut self) -> bool {
        while let Some((image, device)) = self.spares.pop_front() {
            let Some(wanted) = image.upgrade() else {
                continue;
            };
            if !is_quiet(&device) || wanted.load_spare(&device) == Err(CUresult::ERROR_NOT_READY) {
                drop(wanted);
                self.spares.push_back((image, device));
                return false;
            }
            return true;
        }
        let Some(images) = self.images.upgrade() else {
            return false;
        };
        if !is_quiet(&self.device) {
            return false;
        }
        if self.next.is_none() {
            self.next = self.prepare(&images);
        }
        let (Some(next), Some(files)) = (self.next.take(), &self.files) else {
            return true;
        };
        // Who comes with it meanwhile waits for what comes of this, and whoever has come with it has it without this.
        let turn = images.turn(&next.content);
        let Some(_one) = turn.try_lock() else {
            return true;
        };
        if !images.wants(&next.content, next.file.seen) || !files.set_aside(&next.file) {
            return true;
        }
        match next
            .prepared
            .load(&self.device, images.room(), Turn::IfIdle)
        {
            Ok(image) => {
                files.put_back(&next.file);
                // Who launches such a kernel would wait as for a load. If it is not taken now, it is then.
                let kernels = image.descriptor().kernels.iter();
                let local = kernels.map(|kernel| kernel.local_bytes).max();
                let most = images.room().most() as u64;
                let local = local.unwrap_or_default().into();
                let _ = self.device.reserve_local_memory_ahead(local, most);
                if let Some(image) = images.add_ahead(next.content, image, next.file.seen) {
                    let elsewhere = self.others.iter();
                    let elsewhere =
                        elsewhere.map(|device| (Weak::clone(&image), Arc::clone(device)));
                    self.spares.extend(elsewhere);
                }
            }
            Err(refused) => return self.refused(&refused, next),
        }
        true
    }

    /// Reads the next file whose image is wanted, and makes it ready.
    fn prepare(&mut self, images: &KnownImages) -> Option<Next> {
        let files = self.files.as_ref()?;
        let file = self.ahead.pop_front()?;
        let Some(image) = files.read(&file) else {
            (self.say)(&format!(
                "Code kept for later servers: {} is damaged or gone, and is ignored",
                files.folder().join(file.name()).display()
            ));
            return None;
        };
        let content = Content::new(&image, false);
        if !images.wants(&content, file.seen) {
            return None;
        }
        match Prepared::new(&self.device, &content, image.len(), Turn::IfIdle) {
            Ok(prepared) => Some(Next {
                file,
                content,
                prepared,
            }),
            Err(refused) if refused.code == CUresult::ERROR_NOT_READY => {
                self.ahead.push_front(file);
                None
            }
            // A client that comes with it is told why.
            Err(_) => {
                files.remove(&file);
                None
            }
        }
    }

    /// An image was not loaded. Whether there is something to be done at once.
    fn refused(&mut self, refused: &Refused, next: Next) -> bool {
        let Some(files) = &self.files else {
            return false;
        };
        if self.device.check().is_err() || refused.code == CUresult::ERROR_OUT_OF_MEMORY {
            files.put_back(&next.file);
            self.ahead.clear();
        } else if refused.code == CUresult::ERROR_NOT_READY {
            files.put_back(&next.file);
            self.next = Some(next);
        } else {
            files.remove_aside(&next.file);
            return true;
        }
        false
    }
}

/// Whether a device has nothing to do, and has had nothing for a moment.
fn is_quiet(device: &Device) -> bool {
    let gate = device.gate();
    if !gate.has_contexts() {
        return true;
    }
    (0..LOOKS).all(|look| {
        if look > 0 {
            std::thread::sleep(BETWEEN_LOOKS);
        }
        !gate.anything_runs()
    })
}
