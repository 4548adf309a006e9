//! Links under way: the inputs that a program has added, and what linking them gave.
//!
//! Inputs are kept here; the server looks at each one when it comes, so that what is wrong with it is
//! told at once, and links all of them when the program completes the link. What the program then gets
//! is an image of our own form, which holds the inputs (`protocol::linked_image`).
//!
//! Called by `api::link` alone. Must not know what is in an input, nor load what comes out: that is an image as any
//! other.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cuda_abi::CUresult;
use protocol::linked_image::{self, Part};

use crate::code::image::find::FoundImage;
use crate::code::image::jit::Jit;
use crate::code::image::{Image, check};
use crate::handle::{HandleKind, Key, MAX_INDEX};
use crate::session::connection::Connection;

/// Bytes of inputs that one link may have: what a server takes.
const MOST_BYTES: usize = 1 << 30;

/// One link.
#[derive(Debug)]
pub(crate) struct Link {
    parts: Vec<Input>,
    bytes: usize,
    jit: Jit,
    info: Vec<u8>,
    errors: Vec<u8>,
    /// The image, and what keeps it compiled on the server.
    done: Option<(Vec<u8>, Arc<Image>)>,
}

#[derive(Debug)]
struct Input {
    kind: u32,
    name: String,
    bytes: Vec<u8>,
}

// SAFETY: what keeps it from being sent by itself are the addresses of the program's log buffers, which
// the program promises to be valid, from whatever thread it calls, until it destroys the link.
unsafe impl Send for Link {}

/// All links of the process.
#[derive(Debug, Default)]
pub(crate) struct Links {
    state: Mutex<LinkTable>,
}

#[derive(Debug, Default)]
struct LinkTable {
    last: u64,
    links: HashMap<u64, Arc<Mutex<Link>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Links {
    /// Begins a link, and gives its handle.
    pub(crate) fn create(&self, jit: Jit) -> u64 {
        let mut state = lock(&self.state);
        state.last += 1;
        let index = (state.last & u64::from(MAX_INDEX)) as u32;
        let handle = Key::new(index, (state.last >> 24) as u32).handle(HandleKind::Link);
        let link = Link {
            parts: Vec::new(),
            bytes: 0,
            jit,
            info: Vec::new(),
            errors: Vec::new(),
            done: None,
        };
        state.links.insert(handle, Arc::new(Mutex::new(link)));
        handle
    }

    fn get(&self, handle: u64) -> Result<Arc<Mutex<Link>>, CUresult> {
        let found = lock(&self.state).links.get(&handle).cloned();
        found.ok_or(CUresult::ERROR_INVALID_HANDLE)
    }

    /// Adds an input.
    ///
    /// # Errors
    /// What the server says of it; the link's log then tells why.
    pub(crate) fn add(
        &self,
        connection: &'static Connection,
        handle: u64,
        kind: u32,
        name: &[u8],
        bytes: &[u8],
    ) -> Result<(), CUresult> {
        let link = self.get(handle)?;
        let mut link = lock(&link);
        if link.done.is_some() {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        if bytes.len() > MOST_BYTES - link.bytes {
            return Err(CUresult::ERROR_OUT_OF_MEMORY);
        }
        let name = String::from_utf8_lossy(name).into_owned();
        let name = if name.is_empty() {
            format!("input {}", link.parts.len() + 1)
        } else {
            name
        };
        // What an earlier link gave is its inputs again.
        let added: Vec<Input> = if linked_image::is_linked(bytes) {
            let parts = linked_image::decode(bytes).map_err(|_| CUresult::ERROR_INVALID_IMAGE)?;
            let own = parts.into_iter().map(|part| Input {
                kind: part.kind,
                name: format!("{name}: {}", part.name),
                bytes: part.bytes.to_vec(),
            });
            own.collect()
        } else {
            vec![Input {
                kind,
                name,
                bytes: bytes.to_vec(),
            }]
        };
        let image = encode(&added);
        let (status, log) = check(connection, &image)?;
        link.write_log(status, &log);
        status.ok()?;
        link.bytes += bytes.len();
        link.parts.extend(added);
        Ok(())
    }

    /// Links the inputs and gives the image, which lives as long as the link.
    ///
    /// # Errors
    /// What the server says of the whole.
    pub(crate) fn complete(
        &self,
        connection: &'static Connection,
        handle: u64,
    ) -> Result<(*const u8, usize), CUresult> {
        let link = self.get(handle)?;
        let mut link = lock(&link);
        if link.done.is_none() {
            if link.parts.is_empty() {
                return Err(CUresult::ERROR_INVALID_VALUE);
            }
            let bytes = encode(&link.parts);
            let options = link.jit.options();
            // SAFETY: all of it is there.
            let (image, log) =
                unsafe { Image::load_with(connection, &FoundImage::of(&bytes), options)? };
            let status = image.as_ref().err().copied().unwrap_or(CUresult::SUCCESS);
            link.write_log(status, &log);
            link.done = Some((bytes, image?));
        }
        let (bytes, _) = link.done.as_ref().ok_or(CUresult::ERROR_UNKNOWN)?;
        Ok((bytes.as_ptr(), bytes.len()))
    }

    /// Forgets a link.
    pub(crate) fn destroy(&self, handle: u64) -> Result<(), CUresult> {
        let removed = lock(&self.state).links.remove(&handle);
        removed.map(drop).ok_or(CUresult::ERROR_INVALID_HANDLE)
    }
}

impl Link {
    /// Adds to the program's logs.
    fn write_log(&mut self, status: CUresult, log: &[u8]) {
        if status == CUresult::SUCCESS {
            self.info.extend_from_slice(log);
        } else {
            self.errors.extend_from_slice(log);
        }
        self.jit.write_logs(&self.info, &self.errors);
    }
}

fn encode(inputs: &[Input]) -> Vec<u8> {
    linked_image::encode(inputs.iter().map(|input| Part {
        kind: input.kind,
        name: &input.name,
        bytes: &input.bytes,
    }))
}
