//! The variables of one module that lie in its client's memory, as `moved_variables` says how.
//!
//! Owns where their block is while the module is loaded, and gives them their first values, unless the block has been another
//! server's and holds what they are to hold. Called by modules. Must not know how a file names its variables.

use std::sync::Arc;

use cuda_abi::CUresult;
use engine::{Observer, Window};

use crate::code::image::Image;
use crate::code::loaded::{LoadRequest, Loaded};
use crate::code::moved_variables::MovedVariables;
use crate::code::symbols;
use crate::device::Turn;
use crate::device::context::Context;
use crate::memory::address_space::ClientAddressSpace;

/// What addresses that an observer gives are aligned to at least.
const ALIGNED: u64 = 256;

/// See the module.
pub(crate) struct OwnVariables<'a> {
    image: &'a Image,
    moved: &'a MovedVariables,
    /// The block.
    base: u64,
}

/// A constant in the client's memory, and where the driver has the one that code reads.
pub(crate) type TwinConstant = (Window, u64);

impl<'a> OwnVariables<'a> {
    /// Takes a block for the variables of a module of an image. `None` if they cannot lie there.
    ///
    /// # Errors
    /// CUDA_ERROR_OUT_OF_MEMORY.
    pub(crate) fn place(
        context: &Context,
        image: &'a Image,
        observer: &dyn Observer,
    ) -> Result<Option<Self>, CUresult> {
        let Some((moved, _)) = image.moved() else {
            return Ok(None);
        };
        let size = (moved.bytes(), moved.alignment());
        let base = variable_memory(context, observer, size, false)?;
        Ok(Some(Self { image, moved, base }))
    }

    /// The variables of a module of an image in a block that was taken for them. `None` if they cannot lie there.
    pub(crate) fn at(image: &'a Image, base: u64) -> Option<Self> {
        let (moved, _) = image.moved()?;
        Some(Self { image, moved, base })
    }

    /// The block.
    pub(crate) fn base(&self) -> u64 {
        self.base
    }

    /// Whether there are any of which there are two.
    pub(crate) fn has_constants(&self) -> bool {
        let mut variables = self.moved.variables().iter();
        variables.any(|variable| variable.is_constant)
    }

    /// The image's machine code for that block.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_IMAGE for a file whose sections overlap.
    pub(crate) fn file(&self) -> Result<Vec<u8>, CUresult> {
        let file = self.moved.file_at(self.image.code(), self.base);
        // The driver follows its tables.
        symbols::variables(&file)?;
        Ok(file)
    }

    /// The driver's module of that file.
    ///
    /// # Errors
    /// The driver's status.
    pub(crate) fn load(&self, context: &Context, file: &[u8]) -> Result<Arc<Loaded>, CUresult> {
        let request = LoadRequest {
            code: file,
            variables: None,
            turn: Turn::Wait,
        };
        let loaded = Loaded::new(context.device(), request).map_err(|refused| refused.code)?;
        Ok(Arc::new(loaded))
    }

    /// Whether the driver's module is this one's alone.
    pub(crate) fn has_addresses(&self) -> bool {
        self.moved.has_addresses()
    }

    /// Where they are, in the order in which the client is told of them.
    pub(crate) fn windows(&self) -> impl Iterator<Item = Window> {
        self.moved.variables().iter().map(|variable| Window {
            base: self.base + variable.offset,
            bytes: variable.bytes,
        })
    }

    /// Gives them their values, before the client's later work, unless these `are_written` in the block. Those of which there are two
    /// the caller makes the same then.
    ///
    /// # Errors
    /// The driver's status.
    pub(crate) fn set(
        &self,
        context: &Context,
        (loaded, file): (&Loaded, &[u8]),
        memory: &mut ClientAddressSpace,
        are_written: bool,
    ) -> Result<Vec<TwinConstant>, CUresult> {
        let device = context.device().number();
        let sections = self.moved.sections().iter().filter(|_| !are_written);
        for section in sections {
            let base = self.base + section.offset;
            match &section.contents {
                Some(contents) => {
                    let values = file.get(contents.clone());
                    let values = values.ok_or(CUresult::ERROR_INVALID_IMAGE)?;
                    memory.set(device, base, values)?;
                }
                None => {
                    let bytes = section.bytes;
                    memory.zero(device, Window { base, bytes })?;
                }
            }
        }
        let mut twins = Vec::new();
        for (variable, own) in self.moved.variables().iter().zip(self.windows()) {
            if !variable.is_constant {
                continue;
            }
            let (drivers, bytes) = loaded.variable(&variable.c_name)?;
            if bytes != own.bytes {
                return Err(CUresult::ERROR_INVALID_IMAGE);
            }
            twins.push((own, drivers));
        }
        Ok(twins)
    }
}

/// Where so many bytes for variables lie that begin at a multiple of the second number, in the memory that a client's session gives.
///
/// # Errors
/// CUDA_ERROR_OUT_OF_MEMORY; CUDA_ERROR_INVALID_VALUE for an alignment that is absurd.
pub(crate) fn variable_memory(
    context: &Context,
    observer: &dyn Observer,
    (bytes, alignment): (u64, u64),
    is_managed: bool,
) -> Result<u64, CUresult> {
    let wrong = CUresult::ERROR_INVALID_VALUE;
    let bytes = bytes.max(1);
    let slack = alignment.saturating_sub(ALIGNED);
    let room = bytes.checked_add(slack).ok_or(wrong)?;
    let given = observer.allocate(context.id(), room, is_managed)?;
    given
        .base
        .checked_next_multiple_of(alignment.max(1))
        .filter(|&base| given.contains(base, bytes))
        .ok_or(wrong)
}
