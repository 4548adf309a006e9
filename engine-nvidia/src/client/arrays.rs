//! A client's arrays, and the textures and surfaces over them.
//!
//! Called by the operations in `client`. Must not know how the driver is asked to copy or sample, which is `submit`'s.

use std::sync::Arc;

use engine::CUresult;
use protocol::operations::{self, At};
use protocol::textures::Spec;

use super::{MOST_OBJECTS, NvidiaClient};
use crate::submit::array::{self, Array, Texture};
use crate::submit::command::CommandKind;

impl NvidiaClient {
    /// Makes an array.
    pub(super) fn create_array(
        &mut self,
        request: &operations::ArrayCreate,
    ) -> Result<operations::ArrayCreateReply, CUresult> {
        let context = Arc::clone(self.context(request.context)?);
        context.check()?;
        if self.arrays.contains_key(&request.array) || self.arrays.len() >= MOST_OBJECTS {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let array = Array::new(&context, request)?;
        let bytes = array.bytes();
        self.arrays.insert(request.array, Arc::new(array));
        Ok(operations::ArrayCreateReply { bytes })
    }

    /// Ends an array with its textures.
    pub(super) fn destroy_array(&mut self, array: u64) -> Result<(), CUresult> {
        let array = self.arrays.remove(&array);
        let array = array.ok_or(CUresult::ERROR_INVALID_HANDLE)?;
        // Its memory is free from here on, so nothing may keep it but copies that wait.
        self.textures.retain(|_, texture| !texture.is_of(&array));
        Ok(())
    }

    /// Posts a copy from or to an array.
    pub(super) fn copy_array(
        &mut self,
        at: At,
        request: &operations::ArrayCopy,
    ) -> Result<(), CUresult> {
        let on = self.device_of(at)?;
        let arrays = &self.arrays;
        let find = |array: u64| {
            arrays
                .get(&array)
                .cloned()
                .ok_or(CUresult::ERROR_INVALID_HANDLE)
        };
        let planned = array::plan(&mut self.memory, on, request, find);
        self.post(at, planned.map(CommandKind::steps))
    }

    /// Makes a texture or surface over an array or linear memory.
    pub(super) fn create_texture(
        &mut self,
        request: &operations::TextureCreate,
        data: &[u8],
    ) -> Result<operations::TextureCreateReply, CUresult> {
        let spec = Spec::decode(data)?;
        let context = Arc::clone(self.context(request.context)?);
        context.check()?;
        if self.textures.len() >= MOST_OBJECTS {
            return Err(CUresult::ERROR_OUT_OF_MEMORY);
        }
        let arrays = &self.arrays;
        let find = |array: u64| {
            arrays
                .get(&array)
                .filter(|array| Arc::ptr_eq(array.context().device(), context.device()))
                .cloned()
                .ok_or(CUresult::ERROR_INVALID_HANDLE)
        };
        let surface = request.surface != 0;
        let texture = Texture::new(&context, &mut self.memory, &spec, surface, find)?;
        let object = texture.object();
        self.textures
            .insert((request.context, surface, object), texture);
        Ok(operations::TextureCreateReply { object })
    }
}
