//! Images and modules: what a program brings to be launched.
//!
//! An image is compiled once for all clients that bring the same bytes; a module is an image in one
//! client's context, with variables of its own. Called by clients' images and objects. Must not know streams; what a
//! kernel's code does is `ptx-vm`'s.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use cuda_abi::types::CUfunction_attribute as Attribute;
use engine::{Bound, CUresult, Charge, CodeSource, Window};
use protocol::image_descriptor::{self, Descriptor};

use crate::block_cost::BlockCost;
use crate::code_files::{CodeFiles, Counts, Digest};
use crate::context::Context;
use crate::image::{self, Compiled, Refused, Workspace};
use crate::memory::ClientMemory;
use crate::multiprocessor::{PORTABLE_CLUSTER, SHARED_BYTES_OPTIN, SHARED_BYTES_PER_BLOCK};
use ptx_vm::{CodeBytes, KeptCode, MAX_CLUSTER};

/// An image, compiled.
#[derive(Debug)]
pub(crate) struct Image {
    pub(crate) module: ptx_vm::Module,
    /// What its blocks take, by kernel.
    pub(crate) costs: Vec<BlockCost>,
    /// The bytes of its descriptor.
    pub(crate) descriptor: Vec<u8>,
    /// What its user should know of how it was taken.
    pub(crate) notes: String,
    /// What of the server's memory is held for it, of that of the client which brought it first.
    _held: Charge,
}

/// A module: an image in a context.
#[derive(Debug)]
pub(crate) struct Module {
    pub(crate) image: Arc<Image>,
    pub(crate) context: Arc<Context>,
    /// Addresses of its variables.
    pub(crate) globals: Arc<[u64]>,
    /// By kernel, what cuFuncSetAttribute set; the default where nothing is noted.
    settings: Mutex<HashMap<u32, Settings>>,
    grids: AtomicU64,
}

/// What cuFuncSetAttribute set of a kernel.
#[derive(Clone, Copy, Debug, Default)]
struct Settings {
    /// Bytes of dynamic shared memory that a launch may ask for.
    dynamic_shared: Option<u32>,
    /// Its clusters may have more blocks than every GPU takes.
    larger_clusters: bool,
    /// Blocks of its clusters in x, y, z; all 0 where nothing is set.
    cluster: [u32; 3],
}

/// The images of all clients, by the digest of their bytes and of how they are compiled.
#[derive(Debug)]
pub(crate) struct ImageCache {
    images: Mutex<HashMap<Digest, Weak<Image>>>,
    /// Where compiled code is kept for later servers.
    files: Option<Arc<CodeFiles>>,
}

impl ImageCache {
    pub(crate) fn new(files: Option<CodeFiles>) -> Self {
        Self {
            images: Mutex::default(),
            files: files.map(Arc::new),
        }
    }

    /// The image of these bytes, unless some client has it already as an earlier server kept it, or compiled. It is compiled
    /// within `held`, which is what may be held for the client; `hold` takes so many bytes of the server's memory for it, as
    /// long as anybody has it. Beside it, where its code came from if no client had it.
    pub(crate) fn load(
        &self,
        bytes: &[u8],
        max_registers: Option<u32>,
        capability: u32,
        held: &Arc<Bound>,
        hold: impl FnOnce(u64) -> Result<Charge, Refused>,
    ) -> Result<(Arc<Image>, Option<CodeSource>), Refused> {
        let options = ptx_vm::Options {
            max_registers,
            ..ptx_vm::Options::default()
        };
        let build = ptx_vm::compiled_for(&options);
        let mut hasher = blake3::Hasher::new();
        hasher.update(&max_registers.unwrap_or(0).to_le_bytes());
        hasher.update(&capability.to_le_bytes());
        hasher.update(build.as_deref().unwrap_or_default());
        let digest = *hasher.update(bytes).finalize().as_bytes();
        if let Some(image) = self.images.lock().get(&digest).and_then(Weak::upgrade) {
            return Ok((image, None));
        }
        // Compiled outside of the lock: other clients' images must not wait for this one.
        let files = self.files.as_ref().filter(|_| build.is_some());
        let (compiled, source) = match files {
            Some(files) => {
                let code = ImageCode {
                    files: Arc::clone(files),
                    digest,
                    max_registers,
                    capability,
                    held: Arc::clone(held),
                    text: OnceLock::new(),
                };
                code.load(bytes)?
            }
            None => {
                let memory = Workspace::new(held);
                let compiled = image::compile(bytes, &options, capability, &memory)?;
                (compiled, CodeSource::Compiler)
            }
        };
        let image = Arc::new(Image::new(compiled, capability, hold)?);
        let mut images = self.images.lock();
        images.retain(|_, image| image.strong_count() > 0);
        images.insert(digest, Arc::downgrade(&image));
        Ok((image, Some(source)))
    }
}

/// The code of an image, in files.
#[derive(Debug)]
struct ImageCode {
    files: Arc<CodeFiles>,
    /// Of the image.
    digest: Digest,
    max_registers: Option<u32>,
    capability: u32,
    /// What may be held for the client that brought it.
    held: Arc<Bound>,
    /// The image's bytes, if it was not compiled here, and what of the server's memory is held for them.
    text: OnceLock<(Box<[u8]>, Charge)>,
}

impl ImageCode {
    /// The image as it was kept, or compiled, and then kept.
    fn load(self, bytes: &[u8]) -> Result<(Compiled, CodeSource), Refused> {
        let kept = self.files.find(&self.digest);
        let mut options = ptx_vm::Options {
            max_registers: self.max_registers,
            ..ptx_vm::Options::default()
        };
        let mut charge = Charge::new(Arc::clone(&self.held));
        let code = Arc::new(self);
        options.kept = Some(Arc::<Self>::clone(&code) as Arc<dyn KeptCode>);
        if let Some(compiled) = kept.and_then(|kept| read_image(&kept, &options))
            && charge.grow(bytes.len() as u64)
        {
            Counts::add(&code.files.counts().images_found);
            let _ = code.text.set((bytes.into(), charge));
            return Ok((compiled, CodeSource::Disk));
        }
        let memory = Workspace::new(&code.held);
        let compiled = image::compile(bytes, &options, code.capability, &memory)?;
        Counts::add(&code.files.counts().images_compiled);
        let mut kept = (compiled.notes.len() as u64).to_le_bytes().to_vec();
        kept.extend(compiled.notes.as_bytes());
        kept.extend(compiled.module.to_kept());
        code.files.keep(&code.digest, &kept);
        Ok((compiled, CodeSource::Compiler))
    }

    fn program(&self, kernel: u32, lanes: u32) -> Digest {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.digest).update(&kernel.to_le_bytes());
        *hasher.update(&lanes.to_le_bytes()).finalize().as_bytes()
    }
}

/// An image as it was kept: the length of its notes, these, the module.
fn read_image(kept: &[u8], options: &ptx_vm::Options) -> Option<Compiled> {
    let (length, rest) = kept.split_first_chunk()?;
    let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
    let (notes, module) = rest.split_at_checked(length)?;
    Some(Compiled {
        notes: String::from_utf8(notes.to_vec()).ok()?,
        module: ptx_vm::Module::from_kept(module, options)?,
    })
}

impl KeptCode for ImageCode {
    fn find(&self, kernel: u32, lanes: u32) -> Option<CodeBytes> {
        let digest = self.program(kernel, lanes);
        let found = self.files.find_in(&digest, CodeBytes::new)?;
        Counts::add(&self.files.counts().kernels_found);
        Some(found)
    }

    fn compiled(&self, kernel: u32, lanes: u32, bytes: Option<&[u8]>) {
        Counts::add(&self.files.counts().kernels_compiled);
        if let Some(bytes) = bytes {
            self.files.keep(&self.program(kernel, lanes), bytes);
        }
    }

    fn compile(&self) -> Option<ptx_vm::Module> {
        let (text, _) = self.text.get()?;
        let options = ptx_vm::Options {
            max_registers: self.max_registers,
            ..ptx_vm::Options::default()
        };
        let memory = Workspace::new(&self.held);
        let compiled = image::compile(text, &options, self.capability, &memory).ok()?;
        Counts::add(&self.files.counts().images_compiled);
        Some(compiled.module)
    }
}

impl Image {
    fn new(
        compiled: Compiled,
        capability: u32,
        hold: impl FnOnce(u64) -> Result<Charge, Refused>,
    ) -> Result<Self, Refused> {
        let Compiled { module, notes } = compiled;
        let kernels = module
            .kernels()
            .iter()
            .map(|kernel| image_descriptor::Kernel {
                name: kernel.name.clone(),
                params: kernel
                    .params
                    .iter()
                    .map(|param| (param.offset, param.size))
                    .collect(),
                max_threads: kernel.max_threads,
                shared_bytes: kernel.shared_bytes,
                const_bytes: kernel.const_bytes,
                local_bytes: kernel.local_bytes,
                registers: kernel.registers,
                ptx_version: kernel.ptx_version,
                binary_version: capability,
                required_cluster: kernel.required_cluster.unwrap_or_default(),
                cluster_must_be_set: kernel.explicit_cluster.into(),
                max_cluster: kernel.max_cluster.unwrap_or_default(),
            });
        let variables = module
            .globals()
            .iter()
            .map(|global| image_descriptor::Variable {
                name: global.name.clone(),
                bytes: global.size,
                managed: global.managed,
                align: global.align,
            });
        let descriptor = Descriptor {
            kernels: kernels.collect(),
            variables: variables.collect(),
            heap: module.uses_heap(),
        }
        .encode();
        let bytes = module.bytes() + (descriptor.len() + notes.len()) as u64;
        Ok(Self {
            _held: hold(bytes)?,
            costs: module
                .kernels()
                .iter()
                .map(|_| BlockCost::default())
                .collect(),
            descriptor,
            notes,
            module,
        })
    }
}

impl Module {
    /// Makes a module: places its variables where `allocate` says and writes their first values, unless their memory has
    /// the values that they are to have.
    ///
    /// # Errors
    /// What `allocate` gives, and CUDA_ERROR_INVALID_VALUE if it gave what is not the client's.
    pub(crate) fn new(
        image: Arc<Image>,
        context: Arc<Context>,
        (memory, has_variables): (&ClientMemory, bool),
        mut allocate: impl FnMut(u64, bool) -> Result<Window, CUresult>,
    ) -> Result<Self, CUresult> {
        let variables = image.module.globals();
        let mut globals = Vec::with_capacity(variables.len());
        for variable in variables {
            // So that the place can be aligned within what is given, whatever that is aligned to.
            let bytes = variable.size.max(1);
            let slack = variable.align.saturating_sub(256);
            let window = allocate(
                bytes
                    .checked_add(slack)
                    .ok_or(CUresult::ERROR_INVALID_VALUE)?,
                variable.managed,
            )?;
            let address = window
                .base
                .checked_next_multiple_of(variable.align.max(1))
                .filter(|&address| window.contains(address, bytes))
                .ok_or(CUresult::ERROR_INVALID_VALUE)?;
            memory.commit_around(window)?;
            globals.push(address);
        }
        let space = &memory.copy_space();
        let unwritten = variables.iter().zip(&globals).filter(|_| !has_variables);
        for (variable, &address) in unwritten {
            let mut bytes = variable.init.clone();
            for relocated in &variable.relocations {
                let target = match relocated.target {
                    Some(index) => *globals.get(index).ok_or(CUresult::ERROR_INVALID_VALUE)?,
                    None => 0,
                };
                let at =
                    usize::try_from(relocated.offset).map_err(|_| CUresult::ERROR_INVALID_VALUE)?;
                let end = at.checked_add(8).ok_or(CUresult::ERROR_INVALID_VALUE)?;
                if end as u64 > variable.size {
                    return Err(CUresult::ERROR_INVALID_VALUE);
                }
                bytes.resize(bytes.len().max(end), 0);
                let value = target.wrapping_add(relocated.addend);
                bytes[at..end].copy_from_slice(&value.to_le_bytes());
            }
            bytes.truncate(usize::try_from(variable.size).unwrap_or(usize::MAX));
            space.write(address, &bytes)?;
            let written = bytes.len() as u64;
            let rest = Window {
                base: address + written,
                bytes: variable.size - written,
            };
            memory.zero(rest)?;
        }
        Ok(Self {
            image,
            context,
            globals: globals.into(),
            settings: Mutex::default(),
            grids: AtomicU64::new(1),
        })
    }

    /// One of its kernels.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_HANDLE for one that is not there.
    pub(crate) fn kernel(&self, kernel: u32) -> Result<&Arc<ptx_vm::Kernel>, CUresult> {
        let kernels = self.image.module.kernels();
        kernels
            .get(kernel as usize)
            .ok_or(CUresult::ERROR_INVALID_HANDLE)
    }

    /// Bytes of dynamic shared memory that a launch of this kernel may ask for.
    pub(crate) fn dynamic_shared_limit(&self, kernel: u32) -> u32 {
        self.settings(kernel).dynamic_shared.unwrap_or_else(|| {
            let fixed = self.image.module.kernels().get(kernel as usize);
            SHARED_BYTES_PER_BLOCK.saturating_sub(fixed.map_or(0, |kernel| kernel.shared_bytes))
        })
    }

    /// Blocks that a cluster of this kernel may have.
    pub(crate) fn most_cluster_blocks(&self, kernel: u32) -> u32 {
        if self.settings(kernel).larger_clusters {
            MAX_CLUSTER
        } else {
            PORTABLE_CLUSTER
        }
    }

    /// The clusters of a launch of this kernel: those that the launch names, else those that were set.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_CLUSTER_SIZE for others than were set.
    pub(crate) fn cluster(
        &self,
        kernel: u32,
        named: Option<[u32; 3]>,
    ) -> Result<Option<[u32; 3]>, CUresult> {
        let set = self.settings(kernel).cluster;
        let set = (set != [0; 3]).then_some(set);
        match (named, set) {
            (Some(named), Some(set)) if named != set => Err(CUresult::ERROR_INVALID_CLUSTER_SIZE),
            _ => Ok(named.or(set)),
        }
    }

    fn settings(&self, kernel: u32) -> Settings {
        self.settings
            .lock()
            .get(&kernel)
            .copied()
            .unwrap_or_default()
    }

    /// Sets an attribute of a kernel.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_HANDLE for a kernel that is not there, CUDA_ERROR_INVALID_VALUE for an
    /// attribute or value that cannot be set, CUDA_ERROR_NOT_PERMITTED for clusters of a kernel that was compiled
    /// for its own.
    pub(crate) fn set(&self, kernel: u32, attribute: u32, value: i32) -> Result<(), CUresult> {
        let facts = self.kernel(kernel)?;
        let invalid = |_| CUresult::ERROR_INVALID_VALUE;
        let mut settings = self.settings.lock();
        let settings = settings.entry(kernel).or_default();
        match Attribute(attribute) {
            Attribute::MAX_DYNAMIC_SHARED_SIZE_BYTES => {
                let bytes = u32::try_from(value).map_err(invalid)?;
                if bytes.saturating_add(facts.shared_bytes) > SHARED_BYTES_OPTIN {
                    return Err(CUresult::ERROR_INVALID_VALUE);
                }
                settings.dynamic_shared = Some(bytes);
            }
            // A hint: there is no cache to carve shared memory out of. -1 is the default.
            Attribute::PREFERRED_SHARED_MEMORY_CARVEOUT if (-1..=100).contains(&value) => {}
            Attribute::NON_PORTABLE_CLUSTER_SIZE_ALLOWED => settings.larger_clusters = value != 0,
            Attribute::CLUSTER_SCHEDULING_POLICY_PREFERENCE => {}
            side @ (Attribute::REQUIRED_CLUSTER_WIDTH
            | Attribute::REQUIRED_CLUSTER_HEIGHT
            | Attribute::REQUIRED_CLUSTER_DEPTH) => {
                if facts.required_cluster.is_some() {
                    return Err(CUresult::ERROR_NOT_PERMITTED);
                }
                let side = side.0 - Attribute::REQUIRED_CLUSTER_WIDTH.0;
                settings.cluster[side as usize] = u32::try_from(value).map_err(invalid)?;
            }
            _ => return Err(CUresult::ERROR_INVALID_VALUE),
        }
        Ok(())
    }

    /// The number of the module's next grid.
    pub(crate) fn next_grid(&self) -> u64 {
        self.grids.fetch_add(1, Ordering::Relaxed)
    }
}
