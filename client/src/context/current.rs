//! What is asked of a context that is known to be there: its handle, device, limits, and the context that owns its resources.
//!
//! `Current` is what the rest of the client has of a context; `context_stack` and the registry make it. Called by `api` and by all
//! that post work. Must not know which thread asks.

use super::*;

impl Current {
    /// The connection to the server.
    #[inline(always)]
    pub(crate) fn connection(&self) -> &'static Connection {
        self.contexts.connection
    }

    /// Who has the rest of contexts.
    fn owner(&self) -> Result<&'static dyn Lifecycle, CUresult> {
        let owner = self.contexts.owner.get().copied();
        owner.ok_or(CUresult::ERROR_NOT_INITIALIZED)
    }

    /// Its slot, which is its number for the server.
    pub(crate) fn slot(&self) -> u32 {
        self.key.index()
    }

    pub(crate) fn handle(&self) -> u64 {
        self.key.handle(HandleKind::Context)
    }

    /// The handle of the context whose memory, code and events its streams use.
    #[inline]
    pub(crate) fn resource_context_handle(&self) -> u64 {
        match self.context.home.load(Ordering::Relaxed) {
            0 => self.handle(),
            home => home,
        }
    }

    /// The context whose memory, code and events its streams use, ready for use: itself, but for a
    /// green one.
    ///
    /// # Errors
    /// As [`usable`].
    pub(crate) fn resource_context(&self) -> Result<Self, CUresult> {
        match self.context.is_green() {
            true => usable(self.contexts, self.resource_context_handle()),
            false => Ok(*self),
        }
    }

    /// The handle of a green context.
    pub(crate) fn green_handle(&self) -> u64 {
        self.key.handle(HandleKind::GreenContext)
    }

    /// A number that no other context of the process has or had.
    pub(crate) fn id(&self) -> u64 {
        u64::from(self.key.generation()) << 32 | u64::from(self.slot())
    }

    pub(crate) fn device(&self) -> Result<&'static Device, CUresult> {
        self.connection().device(self.context.device())
    }

    /// Tells the server of it, unless it knows.
    pub(super) fn make(&self, users: &MutexGuard<'_, u32>) -> Result<(), CUresult> {
        let _ = users;
        if self.context.is_made() {
            return Ok(());
        }
        let granted = self.device()?;
        let share = self.share(granted)?;
        let device = granted.number;
        self.connection().post(&ContextCreate {
            context: self.slot(),
            device,
            flags: self.context.flags.load(Ordering::Relaxed)
                | if self.context.is_green() {
                    CONTEXT_GREEN
                } else {
                    0
                },
            share,
        })?;
        if granted.attribute(CUdevice_attribute::COMPUTE_MODE) != 0 {
            // It may well be refused, which is known once the server is past it.
            self.connection().call(&MemInfo { device })?;
            if let Err(refused) = self.connection().check_fault(self.slot()) {
                let context = self.slot();
                self.connection().post(&ContextDestroy { context })?;
                return Err(refused);
            }
        }
        if self.connection().check_fault(self.slot()).is_err() {
            // The slot's last occupant died of a fault. The server has forgotten it once it has come
            // past the creation, which any reply shows.
            self.connection().call(&MemInfo { device })?;
        }
        // What was refused to the slot's last occupant is none of this one's business.
        let refused = self.connection().link().refused(self.slot());
        self.contexts.refused(self.slot(), refused);
        self.owner()?.begins(self);
        self.context.made.store(true, Ordering::Release);
        for limit in TOLD_LIMITS {
            let value = self.context.limits[limit.0 as usize].load(Ordering::Relaxed);
            if value != DEFAULT_LIMITS[limit.0 as usize] {
                self.send_limit(limit, value)?;
            }
        }
        for other in self.owner()?.reached_by_pools(self) {
            self.connection().call(&PeerAccess {
                context: self.slot(),
                device: self.connection().device(other)?.number,
                enabled: 1,
            })?;
        }
        Ok(())
    }

    /// The part of what is granted to the client that it is to have, in millionths; 0 for all.
    fn share(&self, device: &Device) -> Result<u32, CUresult> {
        let granted = device.attribute(CUdevice_attribute::MULTIPROCESSOR_COUNT);
        let Some(granted) = u32::try_from(granted).ok().filter(|granted| *granted > 0) else {
            // The device is partitioned, and no partition is this client's.
            return Err(CUresult::ERROR_INVALID_RESOURCE_CONFIGURATION);
        };
        let place = &self.context.multiprocessors;
        let all = device.attribute(CUdevice_attribute(ALL_MULTIPROCESSORS));
        if let Some(percentage) = thread_percentage::percentage_now()?
            && all > 0
        {
            // Of the whole device, as the client's own percentage is, so that the lowest holds.
            let part = f64::from(all) * f64::from(percentage) / 100.0;
            // A percentage such as 33.3 is no exact number.
            let part = ((part + 1e-4) as u32).max(1);
            let own = place.load(Ordering::Relaxed);
            if self.context.is_primary() || own == 0 || own > part {
                place.store(part, Ordering::Relaxed);
            }
        }
        let asked = u64::from(place.load(Ordering::Relaxed));
        if asked >= u64::from(granted) {
            place.store(0, Ordering::Relaxed);
            return Ok(0);
        }
        Ok((asked * 1_000_000).div_ceil(u64::from(granted)) as u32)
    }

    /// Makes a primary context that was made current before anybody retained it.
    #[cold]
    pub(super) fn make_late(&self) -> Result<(), CUresult> {
        self.make(&self.context.users())
    }

    /// Ends it on the server, once its work is done, and all that was made in it.
    pub(super) fn end(&self, users: &MutexGuard<'_, u32>) -> Result<(), CUresult> {
        let _ = users;
        if !self.context.is_made() {
            return Ok(());
        }
        // What its last work came to is no concern of whoever ends it.
        let _ = self.drain();
        self.context.made.store(false, Ordering::Release);
        *self.heap_bytes() = 0;
        self.context.peers().clear();
        self.owner()?.ends(self);
        self.connection().post(&ContextDestroy {
            context: self.slot(),
        })
    }

    /// Waits for all work of all of its streams that was posted until now.
    ///
    /// # Errors
    /// CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED while one of them is captured, whose capture breaks; and
    /// what became of the work.
    pub(crate) fn drain(&self) -> Result<(), CUresult> {
        self.owner()?.drain(self)
    }

    /// Notes one user more of a primary context, and makes it for the first one.
    pub(crate) fn retain(&self) -> Result<(), CUresult> {
        let mut users = self.context.users();
        self.make(&users)?;
        *users += 1;
        Ok(())
    }

    /// Notes one user less of a context that is no primary one, and says whether it was the last.
    pub(crate) fn detach(&self) -> Result<bool, CUresult> {
        if self.context.is_primary() {
            return self.release().map(|()| false);
        }
        let mut users = self.context.users();
        *users = users.saturating_sub(1);
        Ok(*users == 0)
    }

    /// Notes one user less, and ends the context after the last one.
    pub(crate) fn release(&self) -> Result<(), CUresult> {
        let mut users = self.context.users();
        *users = users
            .checked_sub(1)
            .ok_or(CUresult::ERROR_INVALID_CONTEXT)?;
        if *users > 0 {
            return Ok(());
        }
        let ended = self.end(&users);
        drop(users);
        self.forget_stored();
        ended
    }

    /// Ends a primary context whoever uses it. Its handle stays.
    pub(crate) fn reset(&self) -> Result<(), CUresult> {
        let ended = {
            let mut users = self.context.users();
            *users = 0;
            self.end(&users)
        };
        self.forget_stored();
        ended
    }

    /// Has what runtimes keep with it end. No lock is held.
    pub(super) fn forget_stored(&self) {
        if let Ok(owner) = self.owner() {
            owner.ended(self);
        }
    }
}
