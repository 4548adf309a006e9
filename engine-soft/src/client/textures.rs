//! Arrays, textures and surfaces by their handles.
//!
//! Called by the operations in `client`. Must not know how a texture is read: `ptx_vm` does that.

use std::sync::Arc;

use engine::CUresult;
use protocol::operations::{self, At, Space};
use protocol::textures::{Resource, Spec};

use super::objects::{MOST_OBJECTS, Objects, TextureOwner};
use crate::array::{self, Array};
use crate::copy::ArrayTransfer;
use crate::device::Devices;
use crate::stream::Operation;

impl Objects {
    /// See [`engine::Client::array_create`].
    pub(super) fn make_array(
        &mut self,
        devices: &Devices,
        request: &operations::ArrayCreate,
    ) -> Result<operations::ArrayCreateReply, CUresult> {
        let context = Arc::clone(self.context(request.context)?);
        context.check()?;
        if self.arrays.contains_key(&request.array) || self.arrays.len() >= MOST_OBJECTS {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let budget = devices
            .budgets
            .get(context.device as usize)
            .ok_or(CUresult::ERROR_INVALID_DEVICE)?;
        let array = Array::new(request, context, budget)?;
        let bytes = array.shape.bytes();
        self.arrays.insert(request.array, Arc::new(array));
        Ok(operations::ArrayCreateReply { bytes })
    }

    /// See [`engine::Client::array_destroy`].
    pub(super) fn end_array(&mut self, array: u64) -> Result<(), CUresult> {
        let removed = self.arrays.remove(&array);
        removed.ok_or(CUresult::ERROR_INVALID_HANDLE)?;
        // Its memory is free from here on, so nothing may keep it; copies under way do until they end.
        self.remove_textures(|owner| owner.array == Some(array));
        Ok(())
    }

    /// See [`engine::Client::array_copy`].
    pub(super) fn copy_array(
        &self,
        at: At,
        request: &operations::ArrayCopy,
    ) -> Result<(), CUresult> {
        let stream = self.stream(at.stream)?;
        let find = |space: u32, array: u64| match Space::from_number(space) {
            Some(Space::Array) => self
                .arrays
                .get(&array)
                .map(|array| Some(Arc::clone(array)))
                .ok_or(CUresult::ERROR_INVALID_HANDLE),
            _ => Ok(None),
        };
        let sides = find(request.to_space, request.to)
            .and_then(|to| Ok((to, find(request.from_space, request.from)?)));
        let operation = match sides {
            Ok((to, from)) => Operation::ArrayCopy(Box::new(ArrayTransfer {
                request: *request,
                to,
                from,
            })),
            Err(code) => Operation::Refused(code),
        };
        stream.post(at.sequence, operation)
    }

    /// See [`engine::Client::texture_create`].
    pub(super) fn make_texture(
        &mut self,
        request: &operations::TextureCreate,
        data: &[u8],
    ) -> Result<operations::TextureCreateReply, CUresult> {
        let spec = Spec::decode(data)?;
        let context = Arc::clone(self.context(request.context)?);
        context.check()?;
        if self.texture_owners.len() >= MOST_OBJECTS {
            return Err(CUresult::ERROR_OUT_OF_MEMORY);
        }
        let find = |array: u64| {
            self.arrays
                .get(&array)
                .filter(|array| array.context.device == context.device)
                .cloned()
                .ok_or(CUresult::ERROR_INVALID_HANDLE)
        };
        let surface = request.surface != 0;
        let object = if surface {
            self.textures.add_surface(array::surface(&spec, &find)?)
        } else {
            self.textures.add_texture(array::texture(&spec, &find)?)
        };
        let array = match spec.resource {
            Resource::Array(array) | Resource::Mipmapped(array) => Some(array),
            Resource::Linear { .. } | Resource::Pitched { .. } => None,
        };
        let owner = TextureOwner {
            context: request.context,
            array,
        };
        self.texture_owners.insert((object, surface), owner);
        Ok(operations::TextureCreateReply { object })
    }

    /// See [`engine::Client::texture_destroy`].
    pub(super) fn end_texture(&mut self, object: u64, surface: bool) -> Result<(), CUresult> {
        self.texture_owners.remove(&(object, surface));
        if remove_texture(&self.textures, object, surface) {
            Ok(())
        } else {
            Err(CUresult::ERROR_INVALID_HANDLE)
        }
    }

    /// Takes out all textures and surfaces of some owners.
    pub(super) fn remove_textures(&mut self, goes: impl Fn(&TextureOwner) -> bool) {
        let textures = &self.textures;
        self.texture_owners.retain(|&(object, surface), owner| {
            let gone = goes(owner);
            if gone {
                remove_texture(textures, object, surface);
            }
            !gone
        });
    }
}

fn remove_texture(textures: &ptx_vm::Textures, object: u64, surface: bool) -> bool {
    if surface {
        textures.remove_surface(object)
    } else {
        textures.remove_texture(object)
    }
}
