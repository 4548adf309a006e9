//! A client's arrays, textures and surfaces: which there are, and what they take of its quota.
//!
//! Sessions call it, and say when the work that uses an object is over. What an object is made of is the
//! engine's business; knows neither streams nor sessions.

use std::collections::{HashMap, HashSet};

use cuda_abi::CUresult;
use engine::Client;
use protocol::arrays::Shape;
use protocol::operations::{
    ArrayCreate, ArrayCreateReply, ArrayDestroy, TextureCreate, TextureCreateReply, TextureDestroy,
};

use crate::memory::client_memory::ClientMemory;

/// Arrays that a client may have.
const MAX_ARRAYS: usize = 1 << 14;

/// Textures and surfaces that a client may have. Engines have bounds of their own, but forget those
/// whose array has ended.
const MAX_TEXTURES: usize = 1 << 18;

/// A client's arrays, by its handles.
#[derive(Debug, Default)]
pub struct Arrays {
    arrays: HashMap<u64, ArrayCharge>,
    /// Textures (false) and surfaces (true) by context and number, but those that are ending.
    textures: HashSet<(u32, bool, u64)>,
}

/// What an array takes of its client's quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArrayCharge {
    context: u32,
    device: u32,
    bytes: u64,
}

impl Arrays {
    /// Creates an array on a device, if the quota allows it.
    ///
    /// # Errors
    /// When the handle is in use, there are too many, or quota or engine refuse it.
    pub fn create(
        &mut self,
        request: &ArrayCreate,
        device: u32,
        memory: &mut ClientMemory,
        client: &mut dyn Client,
        reply: &mut Vec<u8>,
    ) -> Result<ArrayCreateReply, CUresult> {
        if self.arrays.len() >= MAX_ARRAYS || self.arrays.contains_key(&request.array) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let bytes = Shape::of(request)?.bytes();
        memory.charge(device, bytes)?;
        let created = client.array_create(request, &[], reply);
        if created.is_err() {
            memory.uncharge(device, bytes);
            return created;
        }
        let charge = ArrayCharge {
            context: request.context,
            device,
            bytes,
        };
        self.arrays.insert(request.array, charge);
        created
    }

    /// Takes an array's handle from the client. The array itself is destroyed, with what is returned,
    /// once no work uses it any more.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_HANDLE` when there is no such array.
    pub fn remove(&mut self, array: u64) -> Result<ArrayCharge, CUresult> {
        let charge = self.arrays.remove(&array);
        charge.ok_or(CUresult::ERROR_INVALID_HANDLE)
    }

    /// Creates a texture or surface.
    ///
    /// # Errors
    /// When there are too many, or the engine refuses it.
    pub fn create_texture(
        &mut self,
        request: &TextureCreate,
        data: &[u8],
        client: &mut dyn Client,
        reply: &mut Vec<u8>,
    ) -> Result<TextureCreateReply, CUresult> {
        if self.textures.len() >= MAX_TEXTURES {
            return Err(CUresult::ERROR_OUT_OF_MEMORY);
        }
        let created = client.texture_create(request, data, reply)?;
        let key = (request.context, request.surface != 0, created.object);
        self.textures.insert(key);
        Ok(created)
    }

    /// Takes the handle of a texture or surface from the client.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_HANDLE` when there is no such object.
    pub fn remove_texture(&mut self, request: &TextureDestroy) -> Result<(), CUresult> {
        let key = (request.context, request.surface != 0, request.object);
        match self.textures.remove(&key) {
            true => Ok(()),
            false => Err(CUresult::ERROR_INVALID_HANDLE),
        }
    }

    /// Forgets the objects of a context that the engine has destroyed with it.
    pub fn forget_context(&mut self, context: u32, memory: &mut ClientMemory) {
        self.textures.retain(|(of, ..)| *of != context);
        self.arrays.retain(|_, charge| {
            if charge.context == context {
                memory.uncharge(charge.device, charge.bytes);
            }
            charge.context != context
        });
    }
}

impl ArrayCharge {
    /// Destroys the array that no work uses any more, and gives back what it took of the quota.
    pub fn destroy(self, array: u64, memory: &mut ClientMemory, client: &mut dyn Client) {
        let _ = client.array_destroy(&ArrayDestroy { array }, &[]);
        memory.uncharge(self.device, self.bytes);
    }
}
