//! A pool's blocks: given out, taken back, given out again, and sent back to the server.
//!
//! Owns the rules by which a free block may be used again. `api` and graphs allocate and free through
//! it; contexts that end have theirs forgotten. It knows no attributes of pools and no other processes.

use std::sync::Arc;

use cuda_abi::CUresult;
use protocol::operations::MemFree;

use super::{Free, Pool, PoolBlock, PoolState, Pools, Settings};
use crate::memory::ranges::Range;
use crate::session::connection::Connection;
use crate::stream::StreamTarget;

/// Blocks begin at multiples of this many bytes.
const ALIGNMENT: u64 = 512;

/// Bytes by which a block may be too large for what it is given out for, beyond twice its size.
const SLACK: u64 = 64 << 10;

impl Pools {
    /// Takes memory for work in a stream.
    ///
    /// # Errors
    /// CUDA_ERROR_OUT_OF_MEMORY
    pub(crate) fn allocate(
        &self,
        target: &StreamTarget,
        handle: u64,
        bytes: u64,
    ) -> Result<u64, CUresult> {
        let none = CUresult::ERROR_OUT_OF_MEMORY;
        let pool = self.get(handle)?;
        pool.own()?;
        let asked = bytes;
        let bytes = bytes.checked_next_multiple_of(ALIGNMENT).ok_or(none)?;
        // Memory belongs to a context of the pool's device.
        let owner = match target.current.context.device() == pool.device {
            true => target.current.resource_context()?,
            false => {
                let contexts = target.current.contexts;
                crate::context::usable(contexts, contexts.primary(pool.device)?.handle())?
            }
        };
        if let Some(address) = self.reuse(target, &pool, bytes, asked) {
            return Ok(address);
        }
        {
            let state = pool.state();
            let after = state.reserved.checked_add(bytes).ok_or(none)?;
            if state.settings.most != 0 && after > state.settings.most {
                return Err(none);
            }
        }
        let address = self.allocate_device_memory(&owner, bytes)?;
        let mut state = pool.state();
        state.reserved += bytes;
        state.reserved_high = state.reserved_high.max(state.reserved);
        let context = owner.handle();
        let given = PoolBlock {
            bytes,
            asked,
            context,
            exported: false,
        };
        state.in_use.insert(address, given);
        state.add_used(asked);
        Ok(address)
    }

    /// Gives a free block out again: the smallest that is large enough and that may be used.
    fn reuse(&self, target: &StreamTarget, pool: &Pool, bytes: u64, asked: u64) -> Option<u64> {
        if !self.waits.any_free_block() {
            return None;
        }
        let connection = target.current.connection();
        let mut state = pool.state();
        let Settings {
            follow_events,
            opportunistic,
            ..
        } = state.settings;
        let most = bytes.saturating_mul(2).saturating_add(SLACK);
        let usable = |block: &Free| {
            block.stream == target.stream.id()
                || (opportunistic && connection.reached(block.slot, block.sequence))
                || (follow_events
                    && self
                        .waits
                        .has_waited(target.slot, block.slot, block.sequence))
        };
        let (at, _) = state
            .free
            .iter()
            .enumerate()
            .filter(|(_, block)| (bytes..=most).contains(&block.bytes) && usable(block))
            .min_by_key(|(_, block)| block.bytes)?;
        let block = state.free.swap_remove(at);
        self.waits.remove_free_blocks(1);
        let given = PoolBlock {
            bytes: block.bytes,
            asked,
            context: block.context,
            exported: false,
        };
        state.in_use.insert(block.address, given);
        state.add_used(asked);
        Some(block.address)
    }

    /// Takes memory back that was freed in a stream.
    pub(crate) fn free(&self, target: &StreamTarget, range: &Range) -> Result<(), CUresult> {
        let connection = target.current.connection();
        let pool = self.get(range.pool)?;
        let mut state = pool.state();
        let given = state.in_use.remove(&range.base);
        let given = given.ok_or(CUresult::ERROR_INVALID_VALUE)?;
        state.used -= given.asked;
        if state.ended || given.exported {
            state.reserved -= given.bytes;
            drop(state);
            self.end_if_empty(range.pool, &pool);
            // The server keeps it until all work posted before is done.
            return connection.post(&MemFree {
                address: range.base,
            });
        }
        self.waits.add_free_blocks(1);
        state.free.push(Free {
            address: range.base,
            bytes: given.bytes,
            context: given.context,
            slot: target.slot,
            stream: target.stream.id(),
            sequence: target.stream.posted(),
        });
        Ok(())
    }

    /// Notes that other processes may have an allocation.
    pub(crate) fn mark_exported(&self, range: &Range) -> Result<(), CUresult> {
        let pool = self.get(range.pool)?;
        let mut state = pool.state();
        let given = state.in_use.get_mut(&range.base);
        given.ok_or(CUresult::ERROR_INVALID_VALUE)?.exported = true;
        Ok(())
    }

    /// The ordinals of devices whose pools' memory another device may reach.
    pub(crate) fn reached_from(&self, device: i32) -> Vec<i32> {
        let mut reached: Vec<i32> = self
            .all()
            .iter()
            .filter(|pool| pool.state().peers.contains(&device))
            .map(|pool| pool.device)
            .collect();
        reached.sort_unstable();
        reached.dedup();
        reached
    }

    /// Notes that an allocation goes back to the server by another way.
    pub(crate) fn forget_allocation(&self, range: &Range) {
        if range.pool == 0 {
            return;
        }
        if let Ok(pool) = self.get(range.pool) {
            let mut state = pool.state();
            if let Some(given) = state.in_use.remove(&range.base) {
                state.used -= given.asked;
                state.reserved -= given.bytes;
            }
            drop(state);
            self.end_if_empty(range.pool, &pool);
        }
    }

    pub(super) fn all(&self) -> Vec<Arc<Pool>> {
        self.table
            .live()
            .filter_map(|(_, place)| place.get())
            .collect()
    }

    /// The program has synchronised: pools give back what they hold beyond their thresholds.
    #[inline]
    pub(crate) fn trim_after_synchronization(&self, connection: &Connection) {
        if self.waits.any_free_block() {
            self.release_excess(connection);
        }
    }

    #[cold]
    fn release_excess(&self, connection: &Connection) {
        for pool in self.all() {
            let threshold = pool.settings().threshold;
            // A server that is gone has taken all of it with it.
            let _ = self.trim(connection, &pool, threshold);
        }
    }

    /// Gives back what no work uses, until the pool has no more than `keep` bytes.
    pub(crate) fn trim(
        &self,
        connection: &Connection,
        pool: &Pool,
        keep: u64,
    ) -> Result<(), CUresult> {
        let mut gone = Vec::new();
        {
            let mut state = pool.state();
            let PoolState { free, reserved, .. } = &mut *state;
            free.retain(|block| {
                let goes = *reserved > keep && connection.reached(block.slot, block.sequence);
                if goes {
                    *reserved -= block.bytes;
                    gone.push(block.address);
                }
                !goes
            });
        }
        self.send_back(connection, &gone)
    }

    /// Gives back all that is free, whether work still uses it or not: the server waits for that.
    pub(super) fn release_all(&self, connection: &Connection, pool: &Pool) {
        let gone: Vec<u64> = {
            let mut state = pool.state();
            let free = std::mem::take(&mut state.free);
            state.reserved -= free.iter().map(|block| block.bytes).sum::<u64>();
            free.iter().map(|block| block.address).collect()
        };
        let _ = self.send_back(connection, &gone);
    }

    fn send_back(&self, connection: &Connection, blocks: &[u64]) -> Result<(), CUresult> {
        self.waits.remove_free_blocks(blocks.len());
        blocks
            .iter()
            .try_for_each(|&address| connection.post(&MemFree { address }))
    }

    /// Forgets what the server frees with a context that ends.
    pub(crate) fn forget_context(&self, context: u64) {
        for pool in self.all() {
            let mut state = pool.state();
            let PoolState {
                free,
                in_use,
                used,
                reserved,
                ..
            } = &mut *state;
            free.retain(|block| {
                let goes = block.context == context;
                if goes {
                    *reserved -= block.bytes;
                    self.waits.remove_free_blocks(1);
                }
                !goes
            });
            in_use.retain(|_, block| {
                let goes = block.context == context;
                if goes {
                    *reserved -= block.bytes;
                    *used -= block.asked;
                }
                !goes
            });
        }
    }
}
