//! The contexts of the session by handle, device and kind: finding, making and ending them.
//!
//! Owns the order in which a context enters the table and leaves it. `api` calls it through the session.
//! What is told to the server of a context is the context's own business (`super`).

use std::sync::atomic::Ordering;

use cuda_abi::CUresult;
use cuda_abi::types::CUdevice;

use super::{Context, Contexts, Current, pop, top};
use crate::handle::{HandleKind, Key};

impl Contexts {
    /// The context of a handle, made or not, healthy or not.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_CONTEXT for what names no context that is alive.
    #[inline(always)]
    pub(crate) fn get(&'static self, handle: u64) -> Result<Current, CUresult> {
        let found =
            Key::of(handle, HandleKind::Context).and_then(|key| Some((key, self.table.get(key)?)));
        let (key, context) = found.ok_or(CUresult::ERROR_INVALID_CONTEXT)?;
        Ok(Current {
            contexts: self,
            context,
            key,
        })
    }

    /// The contexts on a device that the server has.
    pub(crate) fn on_device(&'static self, ordinal: CUdevice) -> Vec<Current> {
        let live = self.table.live();
        live.filter(|(_, context)| context.device() == ordinal && context.is_made())
            .map(|(key, context)| Current {
                contexts: self,
                context,
                key,
            })
            .collect()
    }

    /// The primary context of a device.
    pub(crate) fn primary(&'static self, ordinal: CUdevice) -> Result<Current, CUresult> {
        let number = self.connection.device(ordinal)?.number;
        let key = self.table.current_key(number);
        self.get(
            key.ok_or(CUresult::ERROR_INVALID_DEVICE)?
                .handle(HandleKind::Context),
        )
    }

    /// The context of a green context's handle.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_CONTEXT for what names none that is alive.
    pub(crate) fn green(&'static self, handle: u64) -> Result<Current, CUresult> {
        let key =
            Key::of(handle, HandleKind::GreenContext).ok_or(CUresult::ERROR_INVALID_CONTEXT)?;
        self.get(key.handle(HandleKind::Context))
            .ok()
            .filter(|current| current.context.is_green())
            .ok_or(CUresult::ERROR_INVALID_CONTEXT)
    }

    /// Makes a green context on a device, which uses its primary one: so many multiprocessors, the
    /// first of them by its place among the client's.
    pub(crate) fn create_green(
        &'static self,
        ordinal: CUdevice,
        first: u32,
        multiprocessors: u32,
    ) -> Result<Current, CUresult> {
        let primary = self.primary(ordinal)?;
        primary.retain()?;
        let home = primary.handle();
        let made = self.new_context(ordinal, 0, multiprocessors, |context| {
            context.home.store(home, Ordering::Relaxed);
            context.first.store(first, Ordering::Relaxed);
        });
        if made.is_err() {
            primary.release()?;
        }
        made
    }

    /// Ends a green context.
    pub(crate) fn destroy_green(&'static self, handle: u64) -> Result<(), CUresult> {
        let current = self.green(handle)?;
        let primary = self.get(current.resource_context_handle())?;
        let ended = self.remove_context(&current);
        primary.release()?;
        ended
    }

    /// Makes a context of its own on a device.
    pub(crate) fn create(
        &'static self,
        ordinal: CUdevice,
        flags: u32,
        multiprocessors: u32,
    ) -> Result<Current, CUresult> {
        self.new_context(ordinal, flags, multiprocessors, |_| {})
    }

    fn new_context(
        &'static self,
        ordinal: CUdevice,
        flags: u32,
        multiprocessors: u32,
        and: impl FnOnce(&Context),
    ) -> Result<Current, CUresult> {
        self.connection.device(ordinal)?;
        let table = &self.table;
        let key = table
            .insert(
                |_, _| true,
                |_, context| {
                    context.fill(ordinal, flags);
                    let place = &context.multiprocessors;
                    place.store(multiprocessors, Ordering::Relaxed);
                    and(context);
                },
            )
            .ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
        let current = self.get(key.handle(HandleKind::Context))?;
        let mut users = current.context.users();
        *users = 1;
        if let Err(error) = current.make(&users) {
            table.remove(key);
            table.release(key.index());
            return Err(error);
        }
        drop(users);
        Ok(current)
    }

    /// Ends a context that is no primary one.
    pub(crate) fn destroy(&'static self, handle: u64) -> Result<(), CUresult> {
        let current = self.get(handle)?;
        if current.context.is_primary() || current.context.is_green() {
            return Err(CUresult::ERROR_INVALID_CONTEXT);
        }
        self.remove_context(&current)
    }

    fn remove_context(&'static self, current: &Current) -> Result<(), CUresult> {
        let table = &self.table;
        let handle = current.handle();
        let ended = {
            let mut users = current.context.users();
            *users = 0;
            let ended = current.end(&users);
            // Of several threads that destroy it only one is told that it did.
            table
                .remove(current.key)
                .ok_or(CUresult::ERROR_INVALID_CONTEXT)?;
            ended
        };
        current.forget_stored();
        table.release(current.slot());
        if top() == handle {
            pop()?;
        }
        ended
    }
}
