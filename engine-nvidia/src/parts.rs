//! Parts of a device: green contexts over some of its multiprocessors, for clients with a percentage.
//!
//! The driver splits a device into groups of multiprocessors (of eight on compute capability 9). A part is
//! a green context over some groups; whoever asks for so many gets the part whose groups the fewest others
//! use. Making one waits for all kernels, so all disjoint parts of a size are made when the first of that
//! size is asked for, and none is ever given back: there are few sizes, and a part takes a few MiB.
//!
//! Called by clients, when they are attached or their share changes, and by their streams. Must not know
//! who they are.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use cuda_abi::CUresult;
use cuda_abi::types::*;
use engine::Granularity;

use crate::device::Device;
use crate::driver::Driver;
use crate::sync::{Handle, lock};

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

/// How a device is split, and its parts.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    groups: Vec<Resource>,
    /// By the numbers of their groups.
    known: Mutex<HashMap<Vec<usize>, Arc<Part>>>,
    /// Held by who makes some, which takes as long as kernels run.
    making: Mutex<()>,
}

/// A green context.
#[derive(Debug)]
pub(crate) struct Part {
    context: Handle<CUgreenCtx>,
    /// It in the form in which graphs are made in it, if the driver has that.
    home: Option<Handle<CUcontext>>,
    groups: Vec<usize>,
}

impl Parts {
    /// Asks the driver how it would split a device. One whose driver or kind cannot be split has no
    /// groups.
    pub(crate) fn new(driver: &Driver, ordinal: i32) -> Self {
        Self {
            groups: split(driver, ordinal).unwrap_or_default(),
            known: Mutex::default(),
            making: Mutex::default(),
        }
    }

    /// In which steps multiprocessors are given out: whole groups.
    pub(crate) fn granularity(&self) -> Granularity {
        match self.groups.first() {
            Some(&Resource {
                multiprocessors, ..
            }) => Granularity {
                step: multiprocessors,
                least: multiprocessors,
            },
            None => Granularity::default(),
        }
    }

    /// The multiprocessors of a part.
    pub(crate) fn multiprocessors(&self, part: &Part) -> u32 {
        let counts = part
            .groups
            .iter()
            .map(|&at| self.groups[at].multiprocessors);
        counts.sum()
    }

    /// A part of at most so many multiprocessors, and of one group at least; `within` another if there is
    /// one. `None` if that is all of the device, or if it cannot be split.
    ///
    /// # Errors
    /// The driver's status.
    pub(crate) fn take(
        &self,
        device: &Device,
        multiprocessors: u32,
        within: Option<&Part>,
    ) -> Result<Option<Arc<Part>>, CUresult> {
        let all: Vec<usize> = (0..self.groups.len()).collect();
        let all = within.map_or(&all[..], |part| &part.groups);
        let each = self.granularity().step.max(1);
        let count = (multiprocessors / each).max(1) as usize;
        if count >= all.len() {
            return Ok(within.and_then(|part| lock(&self.known).get(&part.groups).cloned()));
        }
        let places = places(all, count);
        if !self.are_known(&places) {
            let _making = lock(&self.making);
            // Somebody may just have made them.
            if !self.are_known(&places) {
                self.make_all(device, &places)?;
            }
        }
        let known = lock(&self.known);
        // What is held beside the one in `known` is used.
        let mut users = vec![0; self.groups.len()];
        for part in known.values() {
            for &group in &part.groups {
                users[group] += Arc::strong_count(part) - 1;
            }
        }
        let used = |place: &&Vec<usize>| place.iter().map(|&group| users[group]).sum::<usize>();
        let least = places.iter().min_by_key(used);
        Ok(least.and_then(|place| known.get(place)).cloned())
    }

    fn are_known(&self, places: &[Vec<usize>]) -> bool {
        let known = lock(&self.known);
        places.iter().all(|place| known.contains_key(place))
    }

    /// Makes the parts of these places that there are not, while nobody else makes any.
    fn make_all(&self, device: &Device, places: &[Vec<usize>]) -> Result<(), CUresult> {
        let missing: Vec<_> = {
            let known = lock(&self.known);
            let missing = places.iter().filter(|place| !known.contains_key(*place));
            missing.collect()
        };
        let driver = device.enter()?;
        let made = device.alone(|| {
            let made = missing.iter().map(|&place| {
                let part = self.make(driver, device, place)?;
                Ok((place.clone(), Arc::new(part)))
            });
            made.collect::<Result<Vec<_>, CUresult>>()
        });
        lock(&self.known).extend(device.confirm(made)?);
        Ok(())
    }

    fn make(&self, driver: &Driver, device: &Device, groups: &[usize]) -> Result<Part, CUresult> {
        let mut resources: Vec<Resource> = groups.iter().map(|&at| self.groups[at]).collect();
        let mut description = CUdevResourceDesc::NULL;
        let mut context = CUgreenCtx::NULL;
        // SAFETY: pointers are to locals, the resources in the driver's layout and as many as said.
        unsafe {
            driver.cuDevResourceGenerateDesc(
                &raw mut description,
                resources.as_mut_ptr().cast(),
                resources.len() as u32,
            )?;
            driver.cuGreenCtxCreate(
                &raw mut context,
                description,
                device.ordinal(),
                DEFAULT_STREAM,
            )?;
        }
        let mut home = CUcontext::NULL;
        // SAFETY: the pointer is to a local, and the green context is of just now.
        let has_home = unsafe { driver.cuCtxFromGreenCtx(&raw mut home, context) }.is_ok();
        Ok(Part {
            context: Handle(context),
            home: has_home.then_some(Handle(home)),
            groups: groups.to_vec(),
        })
    }
}

impl Part {
    /// The context in which graphs of its kernels are made.
    pub(crate) fn home(&self) -> Option<Handle<CUcontext>> {
        self.home
    }

    /// A stream whose kernels stay in this part.
    ///
    /// # Errors
    /// The driver's status.
    pub(crate) fn stream(&self, driver: &Driver, priority: i32) -> Result<CUstream, CUresult> {
        let mut stream = CUstream::NULL;
        // SAFETY: the pointer is to a local; the green context lives as long as the process.
        unsafe {
            driver.cuGreenCtxStreamCreate(
                &raw mut stream,
                self.context.0,
                CU_STREAM_NON_BLOCKING,
                priority,
            )?;
        }
        Ok(stream)
    }
}

/// The disjoint runs of `count` groups, and one more at the end if some groups are in none.
fn places(groups: &[usize], count: usize) -> Vec<Vec<usize>> {
    let mut places: Vec<Vec<usize>> = groups.chunks_exact(count).map(<[usize]>::to_vec).collect();
    if !groups.len().is_multiple_of(count) {
        places.push(groups[groups.len() - count..].to_vec());
    }
    places
}

/// The smallest groups that the driver offers.
fn split(driver: &Driver, ordinal: i32) -> Result<Vec<Resource>, CUresult> {
    let mut whole = Resource::NONE;
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
    let mut groups = vec![Resource::NONE; count as usize];
    // SAFETY: as above; there is room for as many as said.
    unsafe {
        driver.cuDevSmResourceSplitByCount(
            groups.as_mut_ptr().cast(),
            &raw mut count,
            (&raw const whole).cast(),
            std::ptr::null_mut(),
            0,
            1,
        )?;
    }
    groups.truncate(count as usize);
    Ok(groups)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_disjoint_and_cover_all() {
        let all: Vec<usize> = (0..16).collect();
        assert_eq!(places(&all, 8), [all[..8].to_vec(), all[8..].to_vec()]);
        let fives = places(&all, 5);
        assert_eq!(fives.len(), 4);
        assert_eq!(fives[3], [11, 12, 13, 14, 15]);
        assert_eq!(places(&all, 16), [all]);
        assert_eq!(places(&[3, 7, 9], 1), [[3], [7], [9]]);
    }
}
