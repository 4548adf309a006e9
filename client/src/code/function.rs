//! Kernels: what a launch needs to know of one, without a lock.
//!
//! A function belongs to a module and so to a context; a kernel belongs to a library and to none.
//! Programs pass either where the other is declared, so both are one kind of handle.
//!
//! Owns the table of functions and each one's cached facts. Modules and libraries fill it; `code::launch`,
//! `api::function`, `api::library` and occupancy look into it. Must not know streams, nor what a launch is.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use cuda_abi::CUresult;
use cuda_abi::types::{CUdevice_attribute, CUfunction_attribute};
use protocol::image_descriptor::Kernel;
use protocol::operations::{CONTEXT_SLOTS, FunctionSet};

use crate::code::legacy_launch::PreparedLaunches;
use crate::context::Current;
use crate::handle::object_table::Slots;
use crate::handle::{HandleKind, Key};
use crate::session::connection::Connection;

/// Attributes that a kernel has, by their numbers.
pub(super) const ATTRIBUTES: usize = 16;

/// How the parameters of a kernel lie in its parameter block.
///
/// Kept for the life of the process, so that a launch can read one without a lock; equal ones are
/// one, and there are few different ones.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct Layout {
    /// Offset and size of each parameter, in bytes.
    pub params: Box<[(u32, u32)]>,
    /// Bytes of the block.
    pub bytes: u32,
}

/// The longest parameter block that CUDA allows.
pub(crate) const MOST_PARAM_BYTES: u32 = 32764;

/// What a launch or a question needs of a kernel. All of it is atomics, see [`Slots`].
#[derive(Debug, Default)]
pub(crate) struct Function {
    /// The handle of the module or of the library.
    owner: AtomicU64,
    /// The module's number for the server; 0 for a library's kernel.
    module: AtomicU64,
    /// The handle of the context; 0 for a library's kernel.
    context: AtomicU64,
    /// Its number in its image.
    index: AtomicU32,
    layout: AtomicPtr<Layout>,
    attributes: [AtomicI32; ATTRIBUTES],
    /// Whether its clusters are those that it was compiled for, and so not to be set.
    has_own_cluster: AtomicBool,
    /// The most blocks of its clusters; 0 if nothing is known of it.
    max_cluster: AtomicU32,
    /// For a library's kernel, the handle of its function in each context that has used it.
    in_contexts: [AtomicU64; CONTEXT_SLOTS as usize],
}

/// All functions and kernels of the process.
#[derive(Debug)]
pub(crate) struct Functions {
    connection: &'static Connection,
    table: Slots<Function>,
    layouts: Mutex<HashSet<&'static Layout>>,
    /// What old-style launches are prepared for.
    pub prepared: PreparedLaunches,
}

impl Function {
    /// Of a library's kernel: where the handle of its function in a context is.
    pub(super) fn place_in(&self, current: &Current) -> &AtomicU64 {
        // The context whose code a context uses.
        let home = Key::of(current.resource_context_handle(), HandleKind::Context);
        &self.in_contexts[home.map_or(0, Key::index) as usize]
    }

    /// The handle of its module, or of its library.
    pub(crate) fn owner(&self) -> u64 {
        self.owner.load(Ordering::Relaxed)
    }

    /// Whether it is a library's kernel rather than a module's function.
    pub(crate) fn is_kernel(&self) -> bool {
        Key::of(self.owner(), HandleKind::Library).is_some()
    }

    /// Its module's number for the server.
    pub(crate) fn module(&self) -> u64 {
        self.module.load(Ordering::Relaxed)
    }

    /// The handle of its context.
    pub(crate) fn context(&self) -> u64 {
        self.context.load(Ordering::Relaxed)
    }

    /// Its number in its image.
    pub(crate) fn index(&self) -> u32 {
        self.index.load(Ordering::Relaxed)
    }

    /// How its parameters lie.
    pub(crate) fn layout(&self) -> Option<&'static Layout> {
        // SAFETY: the pointer is null or came from a leaked box in `Functions::layout`.
        unsafe { self.layout.load(Ordering::Relaxed).as_ref() }
    }

    /// An attribute's value.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for an attribute that CUDA does not have.
    #[inline]
    pub(crate) fn attribute(&self, attribute: CUfunction_attribute) -> Result<i32, CUresult> {
        self.attributes
            .get(attribute.0 as usize)
            .map(|value| value.load(Ordering::Relaxed))
            .ok_or(CUresult::ERROR_INVALID_VALUE)
    }

    /// The clusters that it wants, blocks in x, y, z. Whoever sets them sets one side after the other, so that some may be 0:
    /// no launch has such.
    #[inline]
    pub(crate) fn required_cluster(&self) -> Option<[u32; 3]> {
        let first = CUfunction_attribute::REQUIRED_CLUSTER_WIDTH.0 as usize;
        let sides = [0, 1, 2].map(|side| {
            self.attributes[first + side]
                .load(Ordering::Relaxed)
                .cast_unsigned()
        });
        (sides != [0; 3]).then_some(sides)
    }

    /// The most blocks that its clusters may have, as far as that is known.
    pub(crate) fn most_cluster_blocks(&self) -> u32 {
        match self.max_cluster.load(Ordering::Relaxed) {
            0 => u32::MAX,
            most => most,
        }
    }

    fn set(&self, attribute: CUfunction_attribute, value: i32) {
        if let Some(place) = self.attributes.get(attribute.0 as usize) {
            place.store(value, Ordering::Relaxed);
        }
    }
}

/// The attributes that a program may set, with the values that they may have.
fn settable(
    connection: &Connection,
    function: &Function,
    attribute: CUfunction_attribute,
    value: i32,
) -> Result<(), CUresult> {
    let fits = match attribute {
        CUfunction_attribute::MAX_DYNAMIC_SHARED_SIZE_BYTES => {
            let statically = function.attribute(CUfunction_attribute::SHARED_SIZE_BYTES)?;
            let most = connection.devices().iter().map(|device| {
                device.attribute(CUdevice_attribute::MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)
            });
            (0..=most.max().unwrap_or(0) - statically).contains(&value)
        }
        CUfunction_attribute::PREFERRED_SHARED_MEMORY_CARVEOUT => (-1..=100).contains(&value),
        CUfunction_attribute::REQUIRED_CLUSTER_WIDTH
        | CUfunction_attribute::REQUIRED_CLUSTER_HEIGHT
        | CUfunction_attribute::REQUIRED_CLUSTER_DEPTH => {
            if function.has_own_cluster.load(Ordering::Relaxed) {
                return Err(CUresult::ERROR_NOT_PERMITTED);
            }
            value >= 0
        }
        CUfunction_attribute::NON_PORTABLE_CLUSTER_SIZE_ALLOWED => (0..=1).contains(&value),
        CUfunction_attribute::CLUSTER_SCHEDULING_POLICY_PREFERENCE => (0..=2).contains(&value),
        _ => false,
    };
    if fits {
        Ok(())
    } else {
        Err(CUresult::ERROR_INVALID_VALUE)
    }
}

impl Functions {
    pub(crate) fn new(connection: &'static Connection) -> Self {
        Self {
            connection,
            table: Slots::new(0, u32::MAX),
            layouts: Mutex::new(HashSet::new()),
            prepared: PreparedLaunches::default(),
        }
    }

    /// The one layout like the kernel's.
    fn layout(&self, kernel: &Kernel) -> Result<&'static Layout, CUresult> {
        let mut bytes = 0;
        for (offset, size) in &kernel.params {
            let end = offset
                .checked_add(*size)
                .filter(|end| *end <= MOST_PARAM_BYTES);
            bytes = bytes.max(end.ok_or(CUresult::ERROR_INVALID_IMAGE)?);
        }
        let layout = Layout {
            params: kernel.params.clone().into_boxed_slice(),
            bytes,
        };
        let mut layouts = self.layouts.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(match layouts.get(&layout) {
            Some(known) => known,
            None => {
                let kept: &'static Layout = Box::leak(Box::new(layout));
                layouts.insert(kept);
                kept
            }
        })
    }

    /// Makes a handle for a kernel of an image.
    ///
    /// `module` is its module's number and `context` its context's handle, both 0 for the kernel of
    /// a library.
    pub(crate) fn create(
        &self,
        owner: u64,
        module: u64,
        context: u64,
        index: u32,
        kernel: &Kernel,
    ) -> Result<Key, CUresult> {
        let layout = self.layout(kernel)?;
        let block = self.connection.devices().first().map_or(0, |device| {
            device.attribute(CUdevice_attribute::MAX_SHARED_MEMORY_PER_BLOCK)
        });
        let known = |value: u32| i32::try_from(value).unwrap_or(i32::MAX);
        let attributes = [
            known(kernel.max_threads),
            known(kernel.shared_bytes),
            known(kernel.const_bytes),
            known(kernel.local_bytes),
            known(kernel.registers),
            known(kernel.ptx_version),
            known(kernel.binary_version),
            0,                                                       // CACHE_MODE_CA
            block.saturating_sub(known(kernel.shared_bytes)).max(0), // MAX_DYNAMIC_SHARED_SIZE_BYTES
            -1, // PREFERRED_SHARED_MEMORY_CARVEOUT
            known(kernel.cluster_must_be_set),
            known(kernel.required_cluster[0]),
            known(kernel.required_cluster[1]),
            known(kernel.required_cluster[2]),
            0, // NON_PORTABLE_CLUSTER_SIZE_ALLOWED
            0, // CLUSTER_SCHEDULING_POLICY_PREFERENCE
        ];
        let has_own_cluster = kernel.required_cluster != [0; 3];
        self.table
            .insert(
                |_, _| true,
                |_, function| {
                    function.owner.store(owner, Ordering::Relaxed);
                    function.module.store(module, Ordering::Relaxed);
                    function.context.store(context, Ordering::Relaxed);
                    function.index.store(index, Ordering::Relaxed);
                    function
                        .layout
                        .store(std::ptr::from_ref(layout).cast_mut(), Ordering::Relaxed);
                    for (place, value) in function.attributes.iter().zip(attributes) {
                        place.store(value, Ordering::Relaxed);
                    }
                    function
                        .has_own_cluster
                        .store(has_own_cluster, Ordering::Relaxed);
                    function
                        .max_cluster
                        .store(kernel.max_cluster, Ordering::Relaxed);
                    for handle in &function.in_contexts {
                        handle.store(0, Ordering::Relaxed);
                    }
                },
            )
            .ok_or(CUresult::ERROR_OUT_OF_MEMORY)
    }

    /// Ends a handle.
    pub(crate) fn destroy(&self, key: Key) {
        if self.table.remove(key).is_some() {
            self.prepared.forget(key);
            self.table.release(key.index());
        }
    }

    /// The function or kernel of a handle.
    #[inline]
    pub(crate) fn get(&self, handle: u64) -> Result<&Function, CUresult> {
        Key::of(handle, HandleKind::Function)
            .and_then(|key| self.table.get(key))
            .ok_or(CUresult::ERROR_INVALID_HANDLE)
    }

    /// Sets an attribute of a function, or of a library's kernel wherever it is used.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for attributes and values that cannot be set, CUDA_ERROR_NOT_PERMITTED for clusters of a kernel that
    /// was compiled for its own.
    pub(crate) fn set(
        &self,
        handle: u64,
        attribute: CUfunction_attribute,
        value: i32,
    ) -> Result<(), CUresult> {
        let function = self.get(handle)?;
        settable(self.connection, function, attribute, value)?;
        if function.attribute(attribute)? == value {
            return Ok(()); // Libraries set the same value before every launch.
        }
        function.set(attribute, value);
        if function.module() != 0 {
            return self.connection.post(&FunctionSet {
                module: function.module(),
                kernel: function.index(),
                attribute: attribute.0,
                value,
            });
        }
        for place in &function.in_contexts {
            let handle = place.load(Ordering::Acquire);
            if self.get(handle).is_ok() {
                self.set(handle, attribute, value)?;
            }
        }
        Ok(())
    }
}
