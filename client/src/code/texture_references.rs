//! Texture and surface references of modules: what they are set to, and the object that stands for it.
//!
//! Engines make each reference a variable of 8 bytes that holds a texture or surface object
//! (`ptx::rewrite`). That object is made anew when the program changes a setting (`api::reference`).
//!
//! Owns the settings and the number of that object. Called by `api::reference` alone, which also makes the objects.
//! Must not ask the server.

use std::collections::HashMap;

use cuda_abi::CUresult;
use cuda_abi::types::{CUDA_TEXTURE_DESC, CUaddress_mode, CUarray_format};
use protocol::textures::Resource;

use crate::code::module::Modules;
use crate::handle::{HandleKind, Key, MAX_INDEX};

/// Where a module's reference is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ModuleVariable {
    /// The handle of its module.
    pub module: u64,
    /// The handle of the module's context.
    pub context: u64,
    /// The address of the variable that holds the object.
    pub variable: u64,
}

/// What a reference is set to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Settings {
    /// What is read or written, with the program's own handles.
    pub bound: Option<Resource>,
    /// The elements of linear and pitched memory.
    pub format: CUarray_format,
    pub channels: u32,
    /// How a texture is read.
    pub sampler: CUDA_TEXTURE_DESC,
}

/// A texture or surface reference.
#[derive(Clone, Debug)]
pub(crate) struct Reference {
    /// None for one that the program made, which no kernel reads.
    pub place: Option<ModuleVariable>,
    pub settings: Settings,
    /// The object in its variable, or 0.
    pub object: u64,
}

/// All of the process.
#[derive(Debug, Default)]
pub(crate) struct References {
    last: u64,
    by_handle: HashMap<u64, Reference>,
    /// By module, kind and name.
    by_name: HashMap<(u64, u8, Vec<u8>), u64>,
}

impl Settings {
    fn new() -> Self {
        Self {
            bound: None,
            format: CUarray_format::FLOAT,
            channels: 1,
            sampler: CUDA_TEXTURE_DESC {
                addressMode: [CUaddress_mode::CLAMP; 3],
                ..CUDA_TEXTURE_DESC::default()
            },
        }
    }
}

impl References {
    /// Makes one that is set to nothing.
    pub(crate) fn create(&mut self, kind: HandleKind, place: Option<ModuleVariable>) -> u64 {
        self.last += 1;
        let index = (self.last & u64::from(MAX_INDEX)) as u32;
        let handle = Key::new(index, (self.last >> 24) as u32).handle(kind);
        let reference = Reference {
            place,
            settings: Settings::new(),
            object: 0,
        };
        self.by_handle.insert(handle, reference);
        handle
    }

    /// The handle of a module's reference, which is made when it is asked for first.
    pub(crate) fn named(&mut self, kind: HandleKind, name: &[u8], place: ModuleVariable) -> u64 {
        let key = (place.module, kind as u8, name.to_vec());
        if let Some(known) = self.by_name.get(&key) {
            return *known;
        }
        let handle = self.create(kind, Some(place));
        self.by_name.insert(key, handle);
        handle
    }

    /// The reference of a handle.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_HANDLE for what is none, or whose module is gone.
    pub(crate) fn get(
        &mut self,
        modules: &Modules,
        handle: u64,
        kind: HandleKind,
    ) -> Result<&mut Reference, CUresult> {
        let known = Key::of(handle, kind).and_then(|_| self.by_handle.get_mut(&handle));
        let reference = known.ok_or(CUresult::ERROR_INVALID_HANDLE)?;
        if let Some(place) = reference.place {
            modules.get(place.module)?;
        }
        Ok(reference)
    }

    /// Ends one that the program made.
    pub(crate) fn destroy(&mut self, handle: u64, kind: HandleKind) -> Result<(), CUresult> {
        match self.by_handle.get(&handle) {
            Some(Reference { place: None, .. }) if Key::of(handle, kind).is_some() => {
                self.by_handle.remove(&handle);
                Ok(())
            }
            _ => Err(CUresult::ERROR_INVALID_HANDLE),
        }
    }

    /// Forgets the references of a module that was unloaded; gives the objects that they leave, `true` for
    /// surfaces.
    pub(crate) fn forget(&mut self, module: u64) -> Vec<(u64, bool)> {
        self.by_name.retain(|(of, ..), _| *of != module);
        let mut objects = Vec::new();
        self.by_handle.retain(|handle, reference| {
            let stays = reference.place.is_none_or(|place| place.module != module);
            if !stays && reference.object != 0 {
                let surface = Key::of(*handle, HandleKind::SurfaceReference).is_some();
                objects.push((reference.object, surface));
            }
            stays
        });
        objects
    }
}
