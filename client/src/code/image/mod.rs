//! Images: device code on its way to the server, and what the server says of it.
//!
//! Owns an image's number at the server, the pieces in which it travels, and what its kernels and variables are
//! called. Called by modules and libraries. Must not know how the server compiles it.

pub(crate) mod find;
pub(crate) mod jit;

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cuda_abi::CUresult;
use protocol::image_descriptor::Descriptor;
use protocol::operations::{
    IMAGE_PART, IMAGE_VERBOSE, ImageDescribe, ImageLoad, ImagePut, ImageUnload, MemInfo,
};

use crate::context;
use crate::os::process_maps::file_at;
use crate::session::connection::Connection;
use find::FoundImage;
use jit::{Jit, NO_IMAGE};

/// Bytes that one record announces.
const PIECE: usize = 1 << 20;

/// Bytes that may be on their way before the server is asked whether it has them.
const WINDOW: usize = 8 << 20;

/// Room for what the server says of an image, at first.
const DESCRIPTION: usize = 64 << 10;

static LAST: AtomicU64 = AtomicU64::new(0);

/// Bytes of what the server says of an image that go to the log.
const MOST_LOG: usize = 4000;

/// An image that the server has.
#[derive(Debug)]
pub(crate) struct Image {
    /// Its number for the server.
    pub number: u64,
    pub descriptor: Descriptor,
    kernels: HashMap<Box<[u8]>, u32>,
    variables: HashMap<Box<[u8]>, usize>,
    /// The kernels' names as C has them, in the order of the image.
    names: Vec<CString>,
}

impl Image {
    /// Loads an image from the program's memory.
    ///
    /// # Errors
    /// What the server says of the image; `jit` then has its log.
    ///
    /// # Safety
    /// As [`find::find`], of where it was found.
    pub(crate) unsafe fn load(
        connection: &'static Connection,
        found: &FoundImage,
        jit: &mut Jit,
    ) -> Result<Arc<Self>, CUresult> {
        // SAFETY: the caller vouches that the program keeps the whole image where it was found during this call.
        let (image, log) = unsafe { Self::load_with(connection, found, jit.options())? };
        let status = image.as_ref().err().copied().unwrap_or(CUresult::SUCCESS);
        jit.write_server_log(status, &log);
        image
    }

    /// Loads an image. What comes beside it is its log.
    ///
    /// # Errors
    /// Outside: the image is not all there, or no server to be asked. Inside: what the server says of the image.
    ///
    /// # Safety
    /// As [`find::find`], of where it was found.
    #[allow(clippy::type_complexity, reason = "two kinds of errors, as said above")]
    pub(crate) unsafe fn load_with(
        connection: &'static Connection,
        found: &FoundImage,
        options: u32,
    ) -> Result<(Result<Arc<Self>, CUresult>, Vec<u8>), CUresult> {
        let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        // From here on the server has it, and is told when this goes.
        let mut image = Self {
            number,
            descriptor: Descriptor::default(),
            kernels: HashMap::new(),
            variables: HashMap::new(),
            names: Vec::new(),
        };
        // SAFETY: the caller vouches that the program keeps the whole image where it was found during this call.
        let (status, descriptor, log) =
            unsafe { request_load(connection, number, found, options)? };
        if status != CUresult::SUCCESS {
            return Ok((Err(status), log));
        }
        image.descriptor = Descriptor::decode(&descriptor).map_err(|error| {
            crate::log::log!("the server's description of an image cannot be read: {error}");
            CUresult::ERROR_UNKNOWN
        })?;
        image.index();
        Ok((Ok(Arc::new(image)), log))
    }

    fn index(&mut self) {
        for (index, kernel) in (0..).zip(&self.descriptor.kernels) {
            self.kernels.insert(kernel.name.as_bytes().into(), index);
            // A name with a NUL inside cannot be asked for; it is shown as far as C would.
            let name = kernel.name.split('\0').next().unwrap_or_default();
            self.names.push(CString::new(name).unwrap_or_default());
        }
        for (at, variable) in self.descriptor.variables.iter().enumerate() {
            self.variables.insert(variable.name.as_bytes().into(), at);
        }
    }

    /// The number of a kernel.
    pub(crate) fn kernel(&self, name: &[u8]) -> Result<u32, CUresult> {
        self.kernels
            .get(name)
            .copied()
            .ok_or(CUresult::ERROR_NOT_FOUND)
    }

    /// Which variable has a name.
    pub(crate) fn variable(&self, name: &[u8]) -> Result<usize, CUresult> {
        self.variables
            .get(name)
            .copied()
            .ok_or(CUresult::ERROR_NOT_FOUND)
    }

    /// A kernel's name, which lives as long as the image.
    pub(crate) fn name(&self, index: u32) -> Result<&CString, CUresult> {
        self.names
            .get(index as usize)
            .ok_or(CUresult::ERROR_INVALID_HANDLE)
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        if let Ok(contexts) = context::contexts() {
            // A server that is gone has forgotten it too.
            let _ = contexts
                .connection
                .post(&ImageUnload { image: self.number });
        }
    }
}

/// Has the server look at an image that will be a part of a link: what it says, and its log.
pub(crate) fn check(
    connection: &'static Connection,
    image: &[u8],
) -> Result<(CUresult, Vec<u8>), CUresult> {
    let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
    // SAFETY: all of it is there.
    let said = unsafe { request_load(connection, number, &FoundImage::of(image), IMAGE_PART) };
    connection.post(&ImageUnload { image: number })?;
    let (status, _, log) = said?;
    Ok((status, log))
}

/// Sends an image to the server: its status, its descriptor and its log.
///
/// # Safety
/// As [`find::find`], of where it was found.
unsafe fn request_load(
    connection: &'static Connection,
    number: u64,
    found: &FoundImage,
    options: u32,
) -> Result<(CUresult, Vec<u8>, Vec<u8>), CUresult> {
    // SAFETY: the caller vouches that the program keeps the whole image where it was found during this call.
    match unsafe { upload(connection, number, found) } {
        // It is not all there.
        Err(code @ CUresult::ERROR_INVALID_IMAGE) => {
            return Ok((code, Vec::new(), NO_IMAGE.to_vec()));
        }
        sent => sent?,
    }
    let room = connection.stage(DESCRIPTION)?;
    // Code is loaded where the thread's context is, which need not be made yet. Without one any device will do.
    let device = context::current_as_it_is()
        .and_then(|current| current.device())
        .map_or(0, |device| device.number);
    let reply = connection.call(&ImageLoad {
        image: number,
        staging: room.offset(),
        capacity: room.len() as u64,
        options,
        device,
    })?;
    let lengths = (reply.fields.descriptor, reply.fields.log);
    let total = lengths
        .0
        .checked_add(lengths.1)
        .and_then(|total| usize::try_from(total).ok())
        .ok_or(CUresult::ERROR_UNKNOWN)?;
    let mut data = reply.data;
    if data.len() < total {
        data = if total <= room.len() {
            let mut staged = vec![0; total];
            room.copy_out(0, &mut staged);
            staged
        } else {
            drop(room);
            describe(connection, number, total)?
        };
    }
    let (descriptor, log) = data
        .split_at_checked(lengths.0 as usize)
        .ok_or(CUresult::ERROR_UNKNOWN)?;
    let log = &log[..log.len().min(lengths.1 as usize)];
    let status = CUresult(reply.fields.status);
    // A program often shows the code alone, or nothing.
    let said = String::from_utf8_lossy(&log[..log.len().min(MOST_LOG)]);
    let said = said.trim_end().replace('\n', "; ");
    if status != CUresult::SUCCESS {
        let file = file_at(found.start().addr() as u64);
        let place = file.map_or_else(String::new, |file| format!(" in {file}"));
        let (bytes, code) = (found.bytes(), status.0);
        crate::log::log!(
            "an image{place}, of {bytes} bytes, was refused with error {code}: {said}"
        );
    } else if !said.is_empty() && options & IMAGE_VERBOSE == 0 {
        crate::log::log!(
            "the server says of an image of {} bytes: {said}",
            found.bytes()
        );
    }
    Ok((status, descriptor.to_vec(), log.to_vec()))
}

/// Sends an image's bytes.
///
/// # Safety
/// As [`find::find`], of where it was found.
unsafe fn upload(
    connection: &'static Connection,
    image: u64,
    found: &FoundImage,
) -> Result<(), CUresult> {
    let total = found.bytes();
    let mut room = vec![0; total.min(PIECE)];
    let mut sent = 0;
    let mut on_the_way = Vec::new();
    while sent < total {
        let piece = &mut room[..PIECE.min(total - sent)];
        // SAFETY: the caller vouches that the program keeps the whole image where it was found during this call.
        unsafe { found.copy_part(sent, piece)? };
        let chunk = connection.stage(piece.len())?;
        chunk.copy_in(0, piece);
        let request = ImagePut {
            image,
            total: total as u64,
            offset: sent as u64,
            staging: chunk.offset(),
            bytes: piece.len() as u64,
        };
        connection.post_staged(&request, piece)?;
        sent += piece.len();
        on_the_way.push(chunk);
        if on_the_way.len() * PIECE >= WINDOW || sent == total {
            // Records are taken in order: with this reply the server has all that went before.
            connection.call(&MemInfo {
                device: connection.devices()[0].number,
            })?;
            on_the_way.clear();
        }
    }
    Ok(())
}

/// Asks again what the server says of an image, with enough room.
fn describe(
    connection: &'static Connection,
    image: u64,
    total: usize,
) -> Result<Vec<u8>, CUresult> {
    let room = connection.stage(total)?;
    let reply = connection.call(&ImageDescribe {
        image,
        staging: room.offset(),
        capacity: room.len() as u64,
    })?;
    if reply.fields.bytes != total as u64 {
        return Err(CUresult::ERROR_UNKNOWN);
    }
    let mut data = vec![0; total];
    room.copy_out(0, &mut data);
    Ok(data)
}
