//! Arrays, textures and surfaces that the program has made: what they are is told without asking the
//! server, which keeps their memory.
//!
//! Handles are numbers that never come again; objects of a context go with it.
//!
//! Owns arrays and textures by handle. Called by `api::array`, `api::texture`, `api::reference` and copies. Must
//! not know what is in an array, nor where its bytes lie.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cuda_abi::CUresult;
use cuda_abi::types::CUDA_RESOURCE_DESC;
use protocol::arrays::Shape;
use protocol::operations::{ArrayCreate, ArrayDestroy, TextureCreate, TextureDestroy};
use protocol::textures::Spec;

use crate::context::Current;
use crate::handle::{HandleKind, Key, MAX_INDEX};
use crate::session::connection::Connection;

/// An array, or one level of an array that has several.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Array {
    /// Its number for the server.
    pub number: u64,
    /// What it is, with all levels.
    pub shape: Shape,
    /// Which level is meant.
    pub level: u32,
    /// The handle of its context.
    context: u64,
    /// The handle of the array with all levels that it belongs to, or 0.
    whole: u64,
}

/// A texture or surface.
#[derive(Clone, Debug)]
pub(crate) struct Texture {
    /// What it is made of, as the program said.
    pub resource: CUDA_RESOURCE_DESC,
    /// How it is read, and how it sees its resource.
    pub spec: Spec,
}

/// All of the process.
#[derive(Debug, Default)]
pub(crate) struct Arrays {
    state: Mutex<ArrayTable>,
}

#[derive(Debug, Default)]
struct ArrayTable {
    last: u64,
    /// By the handles of arrays and of those with levels; a level has a handle once it was asked for.
    arrays: HashMap<u64, Array>,
    levels: HashMap<(u64, u32), u64>,
    /// By context, kind (`true` for surfaces) and number.
    textures: HashMap<(u64, bool, u64), Arc<Texture>>,
}

impl ArrayTable {
    fn handle(&mut self, kind: HandleKind) -> u64 {
        self.last += 1;
        let index = (self.last & u64::from(MAX_INDEX)) as u32;
        Key::new(index, (self.last >> 24) as u32).handle(kind)
    }
}

impl Arrays {
    fn state(&self) -> MutexGuard<'_, ArrayTable> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes an array in the current context, with one level or with all of them under one handle.
    pub(crate) fn create(
        &self,
        current: &Current,
        shape: Shape,
        kind: HandleKind,
    ) -> Result<u64, CUresult> {
        let handle = self.state().handle(kind);
        current.connection().call(&ArrayCreate {
            array: handle,
            context: current.slot(),
            width: shape.width,
            height: shape.height,
            depth: shape.depth,
            format: shape.format.0,
            channels: shape.channels,
            flags: shape.flags,
            levels: shape.levels,
        })?;
        let array = Array {
            number: handle,
            shape,
            level: 0,
            context: current.handle(),
            whole: 0,
        };
        self.state().arrays.insert(handle, array);
        Ok(handle)
    }

    /// The array of a handle of this kind.
    pub(crate) fn get(&self, handle: u64, kind: HandleKind) -> Result<Array, CUresult> {
        Key::of(handle, kind)
            .and_then(|_| self.state().arrays.get(&handle).copied())
            .ok_or(CUresult::ERROR_INVALID_HANDLE)
    }

    /// The handle of one level.
    pub(crate) fn level(&self, handle: u64, level: u32) -> Result<u64, CUresult> {
        let whole = self.get(handle, HandleKind::Mipmaps)?;
        if level >= whole.shape.levels {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let mut state = self.state();
        if let Some(known) = state.levels.get(&(handle, level)) {
            return Ok(*known);
        }
        let of_level = state.handle(HandleKind::Array);
        let array = Array {
            level,
            whole: handle,
            ..whole
        };
        state.arrays.insert(of_level, array);
        state.levels.insert((handle, level), of_level);
        Ok(of_level)
    }

    /// Ends an array. A level goes with the whole.
    pub(crate) fn destroy(
        &self,
        connection: &Connection,
        handle: u64,
        kind: HandleKind,
    ) -> Result<(), CUresult> {
        let array = self.get(handle, kind)?;
        if array.whole != 0 {
            return Err(CUresult::ERROR_INVALID_HANDLE);
        }
        let mut state = self.state();
        state
            .arrays
            .remove(&handle)
            .ok_or(CUresult::ERROR_INVALID_HANDLE)?;
        state.arrays.retain(|_, array| array.whole != handle);
        state.levels.retain(|(whole, _), _| *whole != handle);
        drop(state);
        connection.post(&ArrayDestroy {
            array: array.number,
        })
    }

    /// Makes a texture or surface in the current context, and gives its number.
    pub(crate) fn create_texture(
        &self,
        current: &Current,
        surface: bool,
        texture: Texture,
    ) -> Result<u64, CUresult> {
        let request = TextureCreate {
            context: current.slot(),
            surface: surface.into(),
        };
        let data = texture.spec.encode();
        let object = current
            .connection()
            .call_with(&request, &data)?
            .fields
            .object;
        let key = (current.handle(), surface, object);
        self.state().textures.insert(key, Arc::new(texture));
        Ok(object)
    }

    /// A texture or surface of the current context.
    pub(crate) fn texture(
        &self,
        current: &Current,
        surface: bool,
        object: u64,
    ) -> Result<Arc<Texture>, CUresult> {
        let key = (current.handle(), surface, object);
        let found = self.state().textures.get(&key).cloned();
        found.ok_or(CUresult::ERROR_INVALID_HANDLE)
    }

    /// Ends a texture or surface.
    pub(crate) fn destroy_texture(
        &self,
        current: &Current,
        surface: bool,
        object: u64,
    ) -> Result<(), CUresult> {
        let key = (current.handle(), surface, object);
        let removed = self.state().textures.remove(&key);
        removed.ok_or(CUresult::ERROR_INVALID_HANDLE)?;
        current.connection().post(&TextureDestroy {
            object,
            surface: surface.into(),
            context: current.slot(),
        })
    }

    /// Forgets what a context had that has ended. The server ended it too.
    pub(crate) fn forget(&self, context: u64) {
        let mut state = self.state();
        let gone: Vec<u64> = state
            .arrays
            .iter()
            .filter(|(_, array)| array.context == context)
            .map(|(handle, _)| *handle)
            .collect();
        for handle in gone {
            state.arrays.remove(&handle);
            state.levels.retain(|(whole, _), _| *whole != handle);
        }
        state.textures.retain(|(of, ..), _| *of != context);
    }
}
