//! A client's arrays, textures and surfaces: what they take of its quota, and their end in the order
//! of its work. What they are is the engine's business.

use std::collections::{HashMap, HashSet};

use cuda_abi::CUresult;
use cuda_abi::arrays::Shape;
use cuda_abi::operations::{
    ArrayCreate, ArrayCreateReply, ArrayDestroy, TextureCreate, TextureCreateReply, TextureDestroy,
};

use crate::session::{Action, Session};

/// Arrays that a client may have.
const MAX_ARRAYS: usize = 1 << 14;

/// Textures and surfaces that a client may have. Engines have bounds of their own, but forget those
/// whose array has ended.
const MAX_TEXTURES: usize = 1 << 18;

/// A client's arrays, by its handles.
#[derive(Debug, Default)]
pub struct Arrays {
    arrays: HashMap<u64, Charge>,
    /// Textures (false) and surfaces (true) by context and number, but those that are ending.
    textures: HashSet<(u32, bool, u64)>,
}

/// What an array takes of its client's quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charge {
    context: u32,
    device: u32,
    bytes: u64,
}

impl Session {
    /// Makes an array, if the quota allows it.
    pub(crate) fn make_array(
        &mut self,
        request: &ArrayCreate,
        reply: &mut Vec<u8>,
    ) -> Result<ArrayCreateReply, CUresult> {
        let device = self.device_of(request.context)?;
        let known = &self.arrays.arrays;
        if known.len() >= MAX_ARRAYS || known.contains_key(&request.array) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let bytes = Shape::of(request)?.bytes();
        self.memory.charge(device, bytes)?;
        let made = self.client.array_create(request, &[], reply);
        if made.is_err() {
            self.memory.uncharge(device, bytes);
            return made;
        }
        let charge = Charge {
            context: request.context,
            device,
            bytes,
        };
        self.arrays.arrays.insert(request.array, charge);
        made
    }

    /// Ends an array once nothing uses it any more.
    pub(crate) fn end_array_later(&mut self, request: &ArrayDestroy) -> Result<(), CUresult> {
        let charge = self.arrays.arrays.remove(&request.array);
        let charge = charge.ok_or(CUresult::ERROR_INVALID_HANDLE)?;
        self.defer(Action::EndArray(request.array, charge));
        Ok(())
    }

    /// Ends an array that nothing uses any more.
    pub(crate) fn end_array(&mut self, array: u64, charge: Charge) {
        let _ = self.client.array_destroy(&ArrayDestroy { array }, &[]);
        self.memory.uncharge(charge.device, charge.bytes);
    }

    /// Makes a texture or surface.
    pub(crate) fn make_texture(
        &mut self,
        request: &TextureCreate,
        data: &[u8],
        reply: &mut Vec<u8>,
    ) -> Result<TextureCreateReply, CUresult> {
        self.device_of(request.context)?;
        if self.arrays.textures.len() >= MAX_TEXTURES {
            return Err(CUresult::ERROR_OUT_OF_MEMORY);
        }
        let made = self.client.texture_create(request, data, reply)?;
        let key = (request.context, request.surface != 0, made.object);
        self.arrays.textures.insert(key);
        Ok(made)
    }

    /// Ends a texture or surface once nothing uses it any more.
    pub(crate) fn end_texture_later(&mut self, request: &TextureDestroy) -> Result<(), CUresult> {
        let key = (request.context, request.surface != 0, request.object);
        if !self.arrays.textures.remove(&key) {
            return Err(CUresult::ERROR_INVALID_HANDLE);
        }
        self.defer(Action::EndTexture(*request));
        Ok(())
    }

    /// Ends a texture or surface that nothing uses any more.
    pub(crate) fn end_texture(&mut self, request: TextureDestroy) {
        let _ = self.client.texture_destroy(&request, &[]);
    }

    /// Forgets the arrays of a context that has ended in the engine.
    pub(crate) fn forget_arrays(&mut self, context: u32) {
        self.arrays.textures.retain(|(of, ..)| *of != context);
        let memory = &mut self.memory;
        self.arrays.arrays.retain(|_, charge| {
            if charge.context == context {
                memory.uncharge(charge.device, charge.bytes);
            }
            charge.context != context
        });
    }
}
