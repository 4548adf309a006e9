//! Parts of a device: green contexts over some of its multiprocessors.
//!
//! The driver splits a device into groups of multiprocessors, and leaves some over (15 of 8, and 12, on an H200;
//! `benches/gpu/parts.cu` finds out). A part is a green context over some of these. Making one waits for all
//! kernels, so all disjoint parts of a size are made when the first of that size is asked for. None is ever
//! ended: the driver keeps the 4 MiB that each takes.
//!
//! Called by who shares devices out, and by streams. Must not know who has which part.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

use cuda_abi::CUresult;
use cuda_abi::types::*;

use crate::driver::Driver;
use crate::partition::sm_set::{MOST_GROUPS, SmSet, SmTopology};
use crate::sync::Handle;

/// CU_DEV_RESOURCE_TYPE_SM
const MULTIPROCESSORS: CUdevResourceType = CUdevResourceType(1);
/// CU_GREEN_CTX_DEFAULT_STREAM, which the driver demands.
const DEFAULT_STREAM: u32 = 1;

/// A device resource in the driver's layout.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(8))]
struct Resource {
    kind: u32,
    padding: [u8; 92],
    multiprocessors: u32,
    rest: [u8; 44],
}

// As a C compiler has it for the headers of CUDA 12.4 to 13.0.
const _: () = assert!(size_of::<Resource>() == 144);

impl Resource {
    const NONE: Self = Self {
        kind: 0,
        padding: [0; 92],
        multiprocessors: 0,
        rest: [0; 44],
    };
}

/// Parts that were made, and the places that they are.
pub(crate) type NewParts = Result<Vec<(SmSet, Arc<GreenContext>)>, CUresult>;

/// How a device is split, and its parts.
#[derive(Debug)]
pub(crate) struct GreenContexts {
    ordinal: i32,
    split: SmTopology,
    /// The groups, and what is left over, if that is something.
    resources: Vec<Resource>,
    whole: Arc<GreenContext>,
    /// All that were made, the whole among them.
    known: Mutex<HashMap<SmSet, Arc<GreenContext>>>,
    /// Held by who makes some, which takes as long as kernels run.
    making: Mutex<()>,
}

/// A green context, or the device's one context, where that is the part.
#[derive(Debug)]
pub(crate) struct GreenContext {
    green: Option<Handle<CUgreenCtx>>,
    /// In which graphs of its kernels are made, if the driver has that.
    home: Option<Handle<CUcontext>>,
}

impl GreenContexts {
    /// Asks the driver how it would split a device whose one context is `whole`. One whose driver or kind
    /// cannot be split has no groups.
    pub(crate) fn new(driver: &Driver, ordinal: i32, whole: Handle<CUcontext>) -> Self {
        let (split, resources) = split(driver, ordinal).unwrap_or_default();
        let whole = Arc::new(GreenContext {
            green: None,
            home: Some(whole),
        });
        Self {
            ordinal,
            known: Mutex::new(HashMap::from([(split.all(), Arc::clone(&whole))])),
            whole,
            split,
            resources,
            making: Mutex::default(),
        }
    }

    /// How the device is split.
    pub(crate) fn split(&self) -> SmTopology {
        self.split
    }

    /// The whole device.
    pub(crate) fn whole(&self) -> Arc<GreenContext> {
        Arc::clone(&self.whole)
    }

    /// The part that is this place, if it was made.
    pub(crate) fn find(&self, place: SmSet) -> Option<Arc<GreenContext>> {
        self.known.lock().get(&place).cloned()
    }

    /// Makes the part that is this place, and with it all that lie beside it if it is one of the disjoint
    /// parts of its size. `while_idle` has the driver make them while no kernel runs.
    ///
    /// # Errors
    /// The driver's status, and those of `while_idle`.
    pub(crate) fn make(
        &self,
        place: SmSet,
        while_idle: impl FnOnce(&dyn Fn(&Driver) -> NewParts) -> NewParts,
    ) -> Result<(), CUresult> {
        let _making = self.making.lock();
        // Somebody may just have made it.
        if self.find(place).is_some() {
            return Ok(());
        }
        let mut places = self.split.parts(self.split.all(), place.count());
        if !places.contains(&place) {
            places = vec![place];
        }
        places.retain(|&place| self.find(place).is_none());
        let made = while_idle(&|driver| {
            let made = places.iter().map(|&place| {
                let part = self.make_one(driver, place)?;
                Ok((place, Arc::new(part)))
            });
            made.collect()
        });
        self.known.lock().extend(made?);
        Ok(())
    }

    fn make_one(&self, driver: &Driver, place: SmSet) -> Result<GreenContext, CUresult> {
        let groups = place.groups();
        let mut resources: Vec<Resource> = groups
            .filter_map(|group| self.resources.get(group as usize))
            .copied()
            .collect();
        let mut description = CUdevResourceDesc::NULL;
        let mut context = CUgreenCtx::NULL;
        // SAFETY: pointers are to locals, the resources in the driver's layout and as many as said.
        unsafe {
            driver.cuDevResourceGenerateDesc(
                &raw mut description,
                resources.as_mut_ptr().cast(),
                resources.len() as u32,
            )?;
            driver.cuGreenCtxCreate(&raw mut context, description, self.ordinal, DEFAULT_STREAM)?;
        }
        let mut home = CUcontext::NULL;
        // SAFETY: the pointer is to a local, and the green context is of just now.
        let has_home = unsafe { driver.cuCtxFromGreenCtx(&raw mut home, context) }.is_ok();
        Ok(GreenContext {
            green: Some(Handle(context)),
            home: has_home.then_some(Handle(home)),
        })
    }
}

impl GreenContext {
    /// The context in which graphs of its kernels are made.
    pub(crate) fn home(&self) -> Option<Handle<CUcontext>> {
        self.home
    }

    /// A stream whose kernels stay in this part. The device's context is current.
    ///
    /// # Errors
    /// The driver's status.
    pub(crate) fn stream(&self, driver: &Driver, priority: i32) -> Result<CUstream, CUresult> {
        let mut stream = CUstream::NULL;
        let made = &raw mut stream;
        // SAFETY: the pointer is to a local; green contexts live as long as the process.
        unsafe {
            match self.green {
                Some(green) => driver.cuGreenCtxStreamCreate(
                    made,
                    green.0,
                    CU_STREAM_NON_BLOCKING,
                    priority,
                )?,
                None => {
                    driver.cuStreamCreateWithPriority(made, CU_STREAM_NON_BLOCKING, priority)?;
                }
            }
        }
        Ok(stream)
    }
}

/// The smallest groups that the driver offers, and what they leave over.
fn split(driver: &Driver, ordinal: i32) -> Result<(SmTopology, Vec<Resource>), CUresult> {
    let mut whole = Resource::NONE;
    let mut left_over = Resource::NONE;
    let mut count = 0;
    // SAFETY: pointers are to locals in the driver's layout; without a result it tells the count.
    unsafe {
        driver.cuDeviceGetDevResource(ordinal, (&raw mut whole).cast(), MULTIPROCESSORS)?;
        driver.cuDevSmResourceSplitByCount(
            std::ptr::null_mut(),
            &raw mut count,
            (&raw const whole).cast(),
            std::ptr::null_mut(),
            0,
            1,
        )?;
    }
    let mut resources = vec![Resource::NONE; count as usize];
    // SAFETY: pointers are to locals in the driver's layout; there is room for `count` resources.
    unsafe {
        driver.cuDevSmResourceSplitByCount(
            resources.as_mut_ptr().cast(),
            &raw mut count,
            (&raw const whole).cast(),
            (&raw mut left_over).cast(),
            0,
            1,
        )?;
    }
    resources.truncate(count as usize);
    let (Some(first), Ok(groups)) = (resources.first(), u32::try_from(resources.len())) else {
        return Ok(Default::default());
    };
    if groups > MOST_GROUPS {
        // No device has as many.
        return Ok(Default::default());
    }
    let split = SmTopology {
        groups,
        each: first.multiprocessors,
        left_over: left_over.multiprocessors,
    };
    if split.left_over > 0 {
        resources.push(left_over);
    }
    Ok((split, resources))
}
