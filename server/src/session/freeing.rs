//! What a session frees, and when: memory, modules, arrays, contexts, mappings and what it has of others go once no work
//! of the client uses them any more, and what others use of its own once they do not.
//!
//! Called by the session's operations, which take a thing out of its table at once, and by its loop. Everything that
//! gives memory back goes through here. Must not know when work is complete: `stream_scheduler` says that.

use engine::Window;
use protocol::operations::{ContextDestroy, ModuleUnload};
use transport::ring::Record;

use crate::memory::backing::ClientBacking;
use crate::memory::client_memory::MemoryBlock;
use crate::session::{DeferredAction, Session};

impl Session {
    /// Defers an action until all work taken before it is complete, or does it now.
    pub(crate) fn defer(&mut self, action: DeferredAction) {
        if let Some(action) = self.scheduler.defer(action, &self.observer.progress) {
            // No call comes back: those are only ever put behind others.
            let _ = self.do_deferred(action);
        }
    }

    /// Does an action that is due. Gives back a call that is to be carried out again.
    pub(super) fn do_deferred(&mut self, action: DeferredAction) -> Option<Record> {
        match action {
            DeferredAction::Free(block) => self.free_block(block),
            DeferredAction::Unload(module) => self.unload_module(module),
            DeferredAction::EndArray(array, charge) => {
                charge.destroy(array, &mut self.memory, &mut *self.client);
            }
            DeferredAction::EndTexture(request) => {
                let _ = self.client.texture_destroy(&request, &[]);
            }
            DeferredAction::EndContext(context) => self.end_context(context),
            DeferredAction::Withdraw(base) => {
                if self.virtual_memory.withdraw(base, &mut *self.client) {
                    self.defer(DeferredAction::Unmap(base));
                }
            }
            DeferredAction::Unmap(base) => {
                let (client, memory) = (&mut *self.client, &mut self.memory);
                self.virtual_memory.end_unmap(base, client, memory);
            }
            DeferredAction::Unreserve(device, at) => self.unreserve(device, at),
            DeferredAction::CloseImport(address) => {
                let closed = self.shared_blocks.close_import(address, &mut *self.client);
                if let Some(block) = closed {
                    self.defer(DeferredAction::EndImport(block));
                }
            }
            DeferredAction::EndImport(block) => block.end(&mut *self.client, &mut self.memory),
            DeferredAction::EndSemaphore(semaphore) => self.client.semaphore_destroy(semaphore),
            DeferredAction::CloseEvent(slot) => self.shared_events.close(slot, &self.observer),
            DeferredAction::Retry(record) => return Some(record),
        }
        None
    }

    /// Frees a block that nothing of this client uses any more. If others use it, that waits.
    pub(super) fn free_block(&mut self, block: MemoryBlock) {
        self.unmap_file(block.start());
        self.return_host(block.start());
        if let Some(block) = self.shared_blocks.keep_if_used(block) {
            self.return_block(&block);
        }
    }

    /// Gives a block back that nobody uses any more.
    fn return_block(&mut self, block: &MemoryBlock) {
        let mut backing = ClientBacking(&mut *self.client, &self.addresses);
        self.memory.release(block, &mut backing);
    }

    /// Unloads a module that nothing uses any more, with the memory of its variables.
    fn unload_module(&mut self, module: u64) {
        let _ = self.client.module_unload(&ModuleUnload { module }, &[]);
        for address in self.modules.remove(module, &mut self.memory) {
            if let Some(block) = self.memory.remove(address, true) {
                self.free_block(block);
            }
        }
    }

    /// Ends a context that nothing uses any more.
    fn end_context(&mut self, context: u32) {
        let _ = self
            .client
            .context_destroy(&ContextDestroy { context }, &[]);
        self.modules.forget_context(context, &mut self.memory);
        self.arrays.forget_context(context, &mut self.memory);
        for block in self.memory.remove_context(context) {
            self.free_block(block);
        }
        self.scheduler.context_destroyed(context);
        if let Some(place) = self.contexts.get_mut(context as usize) {
            *place = None;
        }
        self.ending_contexts &= !(1 << context);
    }

    /// Gives addresses back, or puts that behind what is still to be unmapped there.
    pub(super) fn unreserve(&mut self, device: u32, at: Window) {
        if self.virtual_memory.is_unmapping_in(at) {
            self.defer(DeferredAction::Unreserve(device, at));
        } else {
            self.memory.unreserve(device, at.base, at.bytes);
        }
    }

    /// Frees what this client has freed before and others do not use any more, and completes the records of shared
    /// events that their streams have passed.
    pub(super) fn free_unused_by_others(&mut self) {
        self.shared_events.complete_passed(&self.observer.progress);
        for block in self.shared_blocks.remove_unused() {
            self.return_block(&block);
        }
        self.virtual_memory.uncharge_returned(&mut self.memory);
    }
}

impl Drop for Session {
    /// What others still use of this client's memory counts for its group until they have left it.
    fn drop(&mut self) {
        self.shared_blocks.pass_to_group(&mut self.memory);
        self.virtual_memory
            .pass_to_group(&mut self.memory, &self.log);
    }
}
