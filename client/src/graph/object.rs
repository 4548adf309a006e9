//! User objects: resources of the program that graphs hold, with the function that ends them.
//!
//! Owns the count of who holds each. `api::graph` makes and gives them away, graphs hold them. The program's
//! function is called as a host function is, so it may call nothing of CUDA's.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Mutex, PoisonError};

use cuda_abi::CUresult;

use super::table::Graphs;
use crate::handle::{HandleKind, Key};
use crate::pointers::CallbackData;
use crate::stream::host_function;

/// A user object.
#[derive(Debug, Default)]
pub(super) struct Object {
    held: Mutex<Option<Shares>>,
}

#[derive(Clone, Copy, Debug)]
struct Shares {
    pointer: CallbackData,
    end: unsafe extern "C" fn(*mut c_void),
    /// Shares of the program and of graphs.
    shares: u64,
}

impl Graphs {
    /// Makes a user object with some shares of the program's. Gives its handle.
    pub(crate) fn create_object(
        &self,
        pointer: CallbackData,
        end: unsafe extern "C" fn(*mut c_void),
        shares: u32,
    ) -> Result<u64, CUresult> {
        let held = Shares {
            pointer,
            end,
            shares: u64::from(shares),
        };
        let key = self.objects.insert(
            |_, _| true,
            |_, object| {
                *object.held.lock().unwrap_or_else(PoisonError::into_inner) = Some(held);
            },
        );
        key.map(|key| key.handle(HandleKind::UserObject))
            .ok_or(CUresult::ERROR_OUT_OF_MEMORY)
    }

    /// Adds shares.
    pub(crate) fn retain_object(&self, object: u64, count: u32) -> Result<(), CUresult> {
        let found = Key::of(object, HandleKind::UserObject).and_then(|key| self.objects.get(key));
        let found = found.ok_or(CUresult::ERROR_INVALID_VALUE)?;
        let mut held = found.held.lock().unwrap_or_else(PoisonError::into_inner);
        let held = held.as_mut().ok_or(CUresult::ERROR_INVALID_VALUE)?;
        held.shares += u64::from(count);
        Ok(())
    }

    /// Gives shares back; with the last one the object is ended.
    pub(crate) fn release_object(&self, object: u64, count: u32) -> Result<(), CUresult> {
        let key = Key::of(object, HandleKind::UserObject).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        let found = self.objects.get(key);
        let found = found.ok_or(CUresult::ERROR_INVALID_VALUE)?;
        let last = {
            let mut place = found.held.lock().unwrap_or_else(PoisonError::into_inner);
            let held = place.as_mut().ok_or(CUresult::ERROR_INVALID_VALUE)?;
            held.shares = held
                .shares
                .checked_sub(u64::from(count))
                .ok_or(CUresult::ERROR_INVALID_VALUE)?;
            match held.shares {
                0 => place.take(),
                _ => None,
            }
        };
        if let Some(held) = last {
            if self.objects.remove(key).is_some() {
                self.objects.release(key.index());
            }
            // SAFETY: the program promised that its function may be called with its pointer, once.
            host_function::calling(|| unsafe { (held.end)(held.pointer.pointer()) });
        }
        Ok(())
    }

    /// Gives a graph shares of an object: the program's own, or new ones.
    pub(crate) fn add_user_object(
        &self,
        graph: u64,
        object: u64,
        count: u32,
        moved: bool,
    ) -> Result<(), CUresult> {
        let graph = self.get(graph)?;
        match moved {
            // The program's shares become the graph's; there is nothing to count.
            true => self.retain_object(object, 0)?,
            false => self.retain_object(object, count)?,
        }
        *graph.body().objects.entry(object).or_default() += count;
        Ok(())
    }

    /// Takes shares of an object from a graph.
    pub(crate) fn remove_user_object(
        &self,
        graph: u64,
        object: u64,
        count: u32,
    ) -> Result<(), CUresult> {
        {
            let mut body = self.get(graph)?.body();
            let shares = body.objects.get_mut(&object);
            let shares = shares.ok_or(CUresult::ERROR_INVALID_VALUE)?;
            *shares = shares
                .checked_sub(count)
                .ok_or(CUresult::ERROR_INVALID_VALUE)?;
            if *shares == 0 {
                body.objects.remove(&object);
            }
        }
        self.release_object(object, count)
    }

    /// One more holder for all of a graph's objects.
    pub(super) fn retain_objects(&self, objects: &HashMap<u64, u32>) {
        for (object, count) in objects {
            // A graph holds it, so it is there.
            let _ = self.retain_object(*object, *count);
        }
    }

    /// The objects that a graph and those inside of it hold, with a holder more.
    pub(super) fn retain_objects_of(&self, graph: u64) -> HashMap<u64, u32> {
        let mut objects: HashMap<u64, u32> = HashMap::new();
        let mut left = vec![graph];
        while let Some(graph) = left.pop() {
            let Ok(graph) = self.get(graph) else {
                continue;
            };
            let body = graph.body();
            for (object, count) in &body.objects {
                *objects.entry(*object).or_default() += count;
            }
            for node in body.nodes.values() {
                left.extend_from_slice(node.payload.graphs());
            }
        }
        self.retain_objects(&objects);
        objects
    }

    /// One holder less.
    pub(super) fn release_objects(&self, objects: HashMap<u64, u32>) {
        for (object, count) in objects {
            // It was held until now.
            let _ = self.release_object(object, count);
        }
    }
}
