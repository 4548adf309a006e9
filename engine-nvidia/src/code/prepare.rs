//! What becomes of an image, as a client sends it, before the driver gets it: linked, rewritten, compiled.
//!
//! Called by who keeps images. Must not know what modules are used for.

use std::sync::Arc;

use cuda_abi::CUresult;
use protocol::linked_image;
use ptx::image::fatbin::{EntryKind, entries};
use ptx::image::{ImageKind, Limits, classify};

use crate::code::image::Image;
use crate::code::images::Content;
use crate::code::link;
use crate::code::refused::Refused;
use crate::code::rewrite::{self, Changes};
use crate::code::room::CodeRoom;
use crate::code::symbols;
use crate::code::variable_layout::{VariableSection, variable_sections};
use crate::device::{Device, Turn};

/// An image as the driver gets it.
#[derive(Debug)]
pub(crate) struct Prepared {
    /// With its padding.
    pub(crate) code: Arc<[u8]>,
    /// What may be its variables.
    pub(crate) names: Vec<String>,
    pub(crate) changes: Changes,
    /// Where the variables are, if that is told of all of them.
    pub(crate) sections: Option<Vec<VariableSection>>,
    /// What the driver gets if it refuses the code that was chosen of it.
    whole: Arc<[u8]>,
    /// Why what might have helped could not be done.
    not_rewritten: Option<String>,
}

impl Prepared {
    /// Makes the first `bytes` of what a client sent ready for a device.
    ///
    /// # Errors
    /// Why it cannot be, with the log of who says so; CUDA_ERROR_NOT_READY where it is not the turn now.
    pub(crate) fn new(
        device: &Arc<Device>,
        content: &Content,
        bytes: usize,
        turn: Turn,
    ) -> Result<Self, Refused> {
        device.gate().expect_load();
        let padded = &content.bytes;
        let bytes = padded.get(..bytes).unwrap_or(padded);
        if content.fenced {
            let part = link::only_part(bytes)?;
            let (text, changes) = rewrite::fenced(part, device.architecture())?;
            return Self::of_text(device, text, changes);
        }
        if linked_image::is_linked(bytes) {
            let linked = link::link(device, bytes, turn)?;
            let names = symbols::variables(&linked.code)?;
            let whole = link::padded(&linked.code).into();
            return Ok(Self::of(device, &linked.code, whole, names, linked.changes));
        }
        let architecture = device.architecture();
        let names = symbols::variables(bytes)?;
        let mut changes = Changes::default();
        let rewritten = match rewrite::rewritten(bytes, architecture) {
            Some(Ok(rewritten)) => {
                changes.add(&rewritten);
                return Self::of_text(device, rewritten.text, changes);
            }
            not_rewritten => not_rewritten.and_then(Result::err),
        };
        if rewrite::sets_conditions(bytes, architecture) {
            return Err(Refused {
                code: CUresult::ERROR_NOT_SUPPORTED,
                log: "machine code that calls cudaGraphSetConditional: conditional nodes need PTX here; \
                      build with -gencode arch=compute_XX,code=compute_XX and without -rdc=true"
                    .to_owned(),
            });
        }
        Ok(Self {
            not_rewritten: rewritten.map(|why| why.to_string()),
            ..Self::of(device, bytes, Arc::clone(padded), names, changes)
        })
    }

    /// A text that was made of an image: it is this that is loaded, and references have other names in it.
    fn of_text(device: &Arc<Device>, text: String, changes: Changes) -> Result<Self, Refused> {
        let text = text.into_bytes();
        let names = symbols::variables(&text)?;
        let whole = link::padded(&text).into();
        Ok(Self::of(device, &text, whole, names, changes))
    }

    /// `whole` is the image with its padding.
    fn of(
        device: &Arc<Device>,
        image: &[u8],
        whole: Arc<[u8]>,
        names: Vec<String>,
        changes: Changes,
    ) -> Self {
        let machine_code = match classify(image) {
            Some(ImageKind::Ptx) => link::compile(device, image),
            Some(ImageKind::Fatbin) => machine_code(image, device.architecture()),
            _ => None,
        };
        let sections = variable_sections(machine_code.as_deref().unwrap_or(image));
        let code = machine_code.map_or_else(
            || Arc::clone(&whole),
            |machine_code| link::padded(&machine_code).into(),
        );
        Self {
            code,
            names,
            changes,
            sections,
            whole,
            not_rewritten: None,
        }
    }

    /// Loads it.
    ///
    /// # Errors
    /// As [`Image::new`].
    pub(crate) fn load(
        &self,
        device: &Arc<Device>,
        room: &Arc<CodeRoom>,
        turn: Turn,
    ) -> Result<Image, Refused> {
        let loaded = Image::new(device, self, room, turn).or_else(|refused| {
            // The driver knows better than we which of a fatbin's codes it takes.
            if Arc::ptr_eq(&self.code, &self.whole)
                || device.check().is_err()
                || is_no_answer(refused.code)
            {
                return Err(refused);
            }
            let whole = Self {
                code: Arc::clone(&self.whole),
                names: self.names.clone(),
                changes: self.changes.clone(),
                sections: None,
                whole: Arc::clone(&self.whole),
                not_rewritten: None,
            };
            Image::new(device, &whole, room, turn)
        });
        loaded.map_err(|refused| match &self.not_rewritten {
            // Why what might have helped did not.
            Some(why) => Refused {
                log: format!(
                    "{}; the image's PTX cannot be rewritten: {why}",
                    refused.log
                ),
                ..refused
            },
            None => refused,
        })
    }
}

/// Whether the driver was not asked, or could not say.
fn is_no_answer(code: CUresult) -> bool {
    matches!(
        code,
        CUresult::ERROR_NOT_READY
            | CUresult::ERROR_DEVICE_UNAVAILABLE
            | CUresult::ERROR_OUT_OF_MEMORY
    )
}

/// The machine code of a fatbin that a device of this architecture runs, if there is just one.
fn machine_code(fatbin: &[u8], architecture: u32) -> Option<Vec<u8>> {
    let runs = entries(fatbin).flatten().filter(|entry| {
        entry.kind == EntryKind::Elf
            && entry.arch / 10 == architecture / 10
            && entry.arch <= architecture
    });
    let mut runs = runs.take(2);
    match (runs.next(), runs.next()) {
        (Some(only), None) => only
            .payload(&Limits::default())
            .ok()
            .map(std::borrow::Cow::into_owned),
        _ => None,
    }
}
