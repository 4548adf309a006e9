//! What a session does with images: pieces come out of staging memory, whole images go to the engine, and
//! what the engine says of them goes back by way of staging.
//!
//! `dispatch` calls it. Which images there are is `code::images`'. Must not know the order of work or what an image
//! is made of.

use cuda_abi::CUresult;
use protocol::operations::{
    IMAGE_PART, ImageDescribe, ImageDescribeReply, ImageLoad, ImageLoadReply, ImagePut, ImageUnload,
};
use transport::session::REPLY_DATA;

use transport::session::journal::Entry;

use crate::code::images::EngineVariables;
use crate::session::Session;

/// What is said of an image whose variables are beyond the quota.
const NO_ROOM: &[u8] = b"its variables are more than is left of the client's memory";

/// What is said of an image for which the server has no memory.
const NOT_HELD: &[u8] =
    b"the server holds no more for this client: OPENMPS_SERVER_MEMORY in the daemon's environment says how much \
      it holds for all";

/// Bytes of a compiler's log that go to the server's.
const MOST_LOG: usize = 1000;

impl Session {
    /// Takes a piece of an image out of staging memory.
    pub(crate) fn add_image_piece(&mut self, request: &ImagePut) -> Result<(), CUresult> {
        let staging = &self.staging;
        let length = staging.len() as u64;
        let end = request.staging.checked_add(request.bytes);
        if end.is_none_or(|end| end > length) {
            self.broken = Some("an image's piece lies outside of staging memory".into());
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        self.images.add_piece(
            request.image,
            request.total,
            request.offset,
            request.bytes,
            &mut |into| staging.copy_out(request.staging as usize, into),
        )
    }

    /// Takes a piece of an image that did not come through staging memory.
    pub(crate) fn add_image_bytes(
        &mut self,
        request: &ImagePut,
        entry: &Entry,
    ) -> Result<(), CUresult> {
        if request.bytes != entry.staged_bytes() {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let (image, total, offset) = (request.image, request.total, request.offset);
        let read = &mut |into: &mut [u8]| entry.copy_staged(into);
        self.images
            .add_piece(image, total, offset, request.bytes, read)
    }

    /// Gives an image to the engine, and notes what it says of it.
    pub(crate) fn load_image(
        &mut self,
        request: &ImageLoad,
        reply: &mut Vec<u8>,
    ) -> Result<ImageLoadReply, CUresult> {
        let image = request.image;
        if request.device as usize >= self.devices.len() {
            // The client was told which devices there are.
            self.images.remove(image);
            return Err(CUresult::ERROR_INVALID_DEVICE);
        }
        // Of what is to be linked with others the engine keeps nothing.
        let kept = request.options & IMAGE_PART == 0;
        let mut fields = match self.images.remove_bytes(image) {
            Err(code @ CUresult::ERROR_OUT_OF_MEMORY) => {
                self.images.remove(image);
                ImageLoadReply::written(code, &[], NOT_HELD, reply)
            }
            taken => {
                let loaded = self.client.image_load(request, &taken?, reply);
                loaded.inspect_err(|_| {
                    self.images.remove(image);
                })?
            }
        };
        let said = self
            .images
            .set_engine_reply(image, reply.clone(), fields.descriptor);
        let counted = match said {
            Err(code) => Err((code, NOT_HELD)),
            Ok(()) if fields.status == 0 && kept => self
                .count_unused(image, request.device)
                .map_err(|code| (code, NO_ROOM)),
            Ok(()) => Ok(()),
        };
        if let Err((code, why)) = counted {
            if fields.status == 0 && kept {
                let _ = self.client.image_unload(&ImageUnload { image }, &[]);
            }
            reply.clear();
            fields = ImageLoadReply::written(code, &[], why, reply);
            // Short enough to be kept in any case; if not, it is not said again.
            let _ = self.images.set_engine_reply(image, reply.clone(), 0);
        }
        if fields.status != 0 {
            // A program often shows the code alone.
            let log = reply.get(fields.descriptor as usize..).unwrap_or(&[]);
            let log = String::from_utf8_lossy(&log[..log.len().min(MOST_LOG)]);
            let log = log.trim_end().replace('\n', "; ");
            self.error_line(&format!(
                "an image was refused with error {}: {log}",
                fields.status
            ));
        }
        self.move_reply_to_staging(request.staging, request.capacity, reply);
        Ok(fields)
    }

    /// Counts the variables of the module that an engine has of an image before anybody loads one.
    fn count_unused(&mut self, image: u64, device: u32) -> Result<(), CUresult> {
        // If that is absurd, no module is loaded.
        let bytes = self
            .images
            .variables(image)
            .map_or(0, |needed| needed.in_engine);
        self.memory.charge(device, bytes)?;
        self.images
            .set_unused_charge(image, EngineVariables { device, bytes });
        Ok(())
    }

    /// Ends an image.
    pub(crate) fn unload_image(&mut self, request: &ImageUnload) {
        let unused = self
            .images
            .set_unused_charge(request.image, EngineVariables::default());
        if self.images.remove(request.image) {
            // The engine knows it only if it took it; either way it is gone.
            let _ = self.client.image_unload(request, &[]);
        }
        self.memory.uncharge(unused.device, unused.bytes);
    }

    /// Says again what the engine said of an image.
    pub(crate) fn describe_image(
        &self,
        request: &ImageDescribe,
    ) -> Result<ImageDescribeReply, CUresult> {
        let said = self.images.engine_reply(request.image);
        let said = said.ok_or(CUresult::ERROR_INVALID_HANDLE)?;
        if !self.to_staging(request.staging, request.capacity, said) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        Ok(ImageDescribeReply {
            bytes: said.len() as u64,
        })
    }

    /// Copies bytes into the client's staging memory, if they lie in it.
    fn to_staging(&self, at: u64, capacity: u64, bytes: &[u8]) -> bool {
        let length = self.staging.len() as u64;
        let fits = bytes.len() as u64 <= capacity
            && at
                .checked_add(bytes.len() as u64)
                .is_some_and(|end| end <= length);
        if fits {
            self.staging.copy_in(at as usize, bytes);
        }
        fits
    }

    /// Sends a long reply by way of staging; a short one stays where it is. What fits nowhere is not
    /// sent, and the client asks again.
    pub(crate) fn move_reply_to_staging(&self, staging: u64, capacity: u64, reply: &mut Vec<u8>) {
        if reply.len() > REPLY_DATA {
            self.to_staging(staging, capacity, reply);
            reply.clear();
        }
    }
}
