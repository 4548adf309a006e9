//! Images of several parts, linked by the driver.
//!
//! The driver follows the tables of what it is given without knowing where it ends, so every part is
//! looked at before, as images are. Called by clients' images. Must not know modules or contexts' work.

use std::ffi::{CStr, CString, c_void};
use std::sync::Arc;

use cuda_abi::CUresult;
use cuda_abi::types::*;
use protocol::linked_image::{self, Part};
use ptx::image::fatbin;
use ptx::rewrite::Rewritten;

use crate::code::loaded::{LoadRequest, Loaded};
use crate::code::refused::Refused;
use crate::code::rewrite::{Changes, rewritten_part};
use crate::code::symbols;
use crate::device::{Device, Turn};
use crate::driver::Driver;

/// Zeroes behind an image: a NUL for PTX, and room for a reader that goes a little too far.
pub(crate) const PADDING: usize = 4096;

/// Bytes of the driver's log that are kept.
const LOG: usize = 16 << 10;

/// What comes of linking.
pub(crate) struct Linked {
    pub(crate) code: Vec<u8>,
    pub(crate) changes: Changes,
}

/// Links the parts of an image, rewritten where that is due.
///
/// # Errors
/// CUDA_ERROR_INVALID_IMAGE for damaged parts, what the linker says, with its log, and CUDA_ERROR_NOT_READY where
/// something must be loaded to find out and it is not the turn now.
pub(crate) fn link(device: &Arc<Device>, image: &[u8], turn: Turn) -> Result<Linked, Refused> {
    let (whole, parts): (Vec<_>, Vec<_>) = decode(image)?
        .into_iter()
        .partition(|part| part.kind == linked_image::ALREADY_LINKED);
    let architecture = device.architecture();
    let rewritten: Vec<Option<Rewritten>> = parts
        .iter()
        .map(|part| rewritten_part(part.bytes, architecture)?.ok())
        .collect();
    if rewritten.iter().all(Option::is_none) {
        for part in whole {
            // A fatbin without entries is what stands where nothing was linked for machines.
            let some = fatbin::entries(part.bytes).next().is_some();
            if some && symbols::variables(part.bytes).is_ok() {
                let bytes = padded(part.bytes);
                let request = LoadRequest {
                    code: &bytes,
                    variables: None,
                    turn,
                };
                let loaded = Loaded::new(device, request);
                if let Err(refused) = &loaded
                    && refused.code == CUresult::ERROR_NOT_READY
                {
                    return Err(CUresult::ERROR_NOT_READY.into());
                }
                if loaded.is_ok() {
                    return Ok(Linked {
                        code: part.bytes.to_vec(),
                        changes: Changes::default(),
                    });
                }
            }
        }
    }
    let mut link = Link::new(device)?;
    let mut changes = Changes::default();
    for (part, rewritten) in parts.iter().zip(&rewritten) {
        match rewritten {
            Some(rewritten) => {
                link.add_one(CUjitInputType::PTX, part.name, rewritten.text.as_bytes())?;
                changes.add(rewritten);
            }
            None => link.add(part)?,
        }
    }
    Ok(Linked {
        code: link.complete()?,
        changes,
    })
}

/// Machine code for PTX text, which is compiled beside running kernels; a module that is loaded from text
/// is compiled while all others wait. `None` if the linker does not take it: the loading says why.
pub(crate) fn compile(device: &Arc<Device>, text: &[u8]) -> Option<Vec<u8>> {
    let mut link = Link::new(device).ok()?;
    link.add_one(CUjitInputType::PTX, "", text).ok()?;
    link.complete().ok()
}

/// The image of a fenced client that is to get fences: itself, or the only part of one that is linked. What calls itself across
/// parts has no fence.
///
/// # Errors
/// CUDA_ERROR_NOT_SUPPORTED for several parts, CUDA_ERROR_INVALID_IMAGE for damaged ones.
pub(crate) fn only_part(image: &[u8]) -> Result<&[u8], Refused> {
    if !linked_image::is_linked(image) {
        return Ok(image);
    }
    let parts = decode(image)?.into_iter();
    let mut parts = parts.filter(|part| part.kind != linked_image::ALREADY_LINKED);
    match (parts.next(), parts.next()) {
        (Some(only), None) => Ok(only.bytes),
        _ => Err(Refused {
            code: CUresult::ERROR_NOT_SUPPORTED,
            log:
                "this client is fenced (isolation): what is linked of several parts has no fence; \
                  build without -rdc=true"
                    .to_owned(),
        }),
    }
}

/// Looks at parts of what will be linked.
///
/// # Errors
/// As [`link()`].
pub(crate) fn check_part(device: &Arc<Device>, image: &[u8]) -> Result<(), Refused> {
    let mut link = Link::new(device)?;
    for part in decode(image)? {
        if part.kind != linked_image::ALREADY_LINKED {
            link.add(&part)?;
        }
    }
    Ok(())
}

fn decode(image: &[u8]) -> Result<Vec<Part<'_>>, Refused> {
    linked_image::decode(image).map_err(|_| Refused::from(CUresult::ERROR_INVALID_IMAGE))
}

/// An image with its padding.
pub(crate) fn padded(bytes: &[u8]) -> Vec<u8> {
    let mut padded = Vec::with_capacity(bytes.len() + PADDING);
    padded.extend_from_slice(bytes);
    padded.resize(bytes.len() + PADDING, 0);
    padded
}

/// What an image with its padding was before.
pub(crate) fn without_padding(padded: &[u8]) -> &[u8] {
    let bytes = padded.len().saturating_sub(PADDING);
    padded.get(..bytes).unwrap_or(padded)
}

/// A link of the driver's; destroyed on drop.
struct Link<'a> {
    device: &'a Arc<Device>,
    driver: &'a Driver,
    state: CUlinkState,
    /// What the driver may read or write until the link is destroyed.
    log: Vec<u8>,
    _options: [CUjit_option; 2],
    _values: Box<[*mut c_void; 2]>,
    inputs: Vec<Vec<u8>>,
}

impl<'a> Link<'a> {
    fn new(device: &'a Arc<Device>) -> Result<Self, Refused> {
        let driver = device.enter()?;
        let mut log = vec![0_u8; LOG];
        let mut options = [
            CUjit_option::ERROR_LOG_BUFFER,
            CUjit_option::ERROR_LOG_BUFFER_SIZE_BYTES,
        ];
        let mut values = Box::new([
            log.as_mut_ptr().cast::<c_void>(),
            std::ptr::without_provenance_mut(LOG - 1),
        ]);
        let mut state = CUlinkState::NULL;
        // SAFETY: the pointers are to locals or to what the link keeps; the options say the log's size.
        device.confirm(unsafe {
            driver.cuLinkCreate_v2(
                options.len() as u32,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
                &raw mut state,
            )
        })?;
        Ok(Self {
            device,
            driver,
            state,
            log,
            _options: options,
            _values: values,
            inputs: Vec::new(),
        })
    }

    fn refused(&self, code: CUresult) -> Refused {
        let text = CStr::from_bytes_until_nul(&self.log).unwrap_or_default();
        if text.is_empty() {
            return Refused::from(code);
        }
        Refused {
            code,
            log: text.to_string_lossy().into_owned(),
        }
    }

    fn add(&mut self, part: &Part<'_>) -> Result<(), Refused> {
        let kind = CUjitInputType(part.kind);
        if matches!(kind, CUjitInputType::OBJECT | CUjitInputType::LIBRARY) {
            for image in fatbin::embedded(part.bytes) {
                self.add_one(CUjitInputType::FATBINARY, part.name, image)?;
            }
            return Ok(());
        }
        self.add_one(kind, part.name, part.bytes)
    }

    fn add_one(&mut self, kind: CUjitInputType, name: &str, bytes: &[u8]) -> Result<(), Refused> {
        symbols::variables(bytes)?;
        let name = CString::new(name).unwrap_or_default();
        // PTX ends in a NUL, which counts; what follows the other forms does no harm.
        let size = bytes.len() + usize::from(kind == CUjitInputType::PTX);
        self.inputs.push(padded(bytes));
        let data = self
            .inputs
            .last_mut()
            .map_or(std::ptr::null_mut(), Vec::as_mut_ptr);
        // SAFETY: the input's tables were found to stay within it; it lives as long as the link, and
        // the name has its NUL.
        let added = unsafe {
            self.driver.cuLinkAddData_v2(
                self.state,
                kind,
                data.cast(),
                size,
                name.as_ptr(),
                0,
                std::ptr::null_mut(),
                std::ptr::null_mut(),
            )
        };
        self.device
            .confirm(added)
            .map_err(|code| self.refused(code))
    }

    fn complete(&mut self) -> Result<Vec<u8>, Refused> {
        let (mut image, mut bytes) = (std::ptr::null_mut(), 0);
        // SAFETY: the pointers are to locals.
        let completed = unsafe {
            self.driver
                .cuLinkComplete(self.state, &raw mut image, &raw mut bytes)
        };
        self.device
            .confirm(completed)
            .map_err(|code| self.refused(code))?;
        if image.is_null() {
            return Err(CUresult::ERROR_UNKNOWN.into());
        }
        // SAFETY: the driver's image of so many bytes lives as long as the link.
        Ok(unsafe { std::slice::from_raw_parts(image.cast::<u8>(), bytes) }.to_vec())
    }
}

impl Drop for Link<'_> {
    fn drop(&mut self) {
        // SAFETY: made in `new`, destroyed once; what it gave was copied.
        let _ = unsafe { self.driver.cuLinkDestroy(self.state) };
    }
}
