//! What the launch functions before CUDA 4 prepare call by call, and launch from: a block's shape, its
//! dynamic shared memory, and a parameter block. A function keeps it until it is changed.
//!
//! Called by `api::old_launch`. Must not launch: what is prepared goes the way of any launch.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cuda_abi::CUresult;

use crate::code::function::MOST_PARAM_BYTES;
use crate::handle::Key;

/// What a function was prepared for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Prepared {
    /// Threads of a block.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub shared: u32,
    /// Bytes of the parameter block.
    pub size: u32,
    /// What was written into it so far.
    params: Vec<u8>,
}

/// The functions that were prepared.
#[derive(Debug, Default)]
pub(crate) struct PreparedLaunches {
    by_function: Mutex<HashMap<Key, Prepared>>,
}

impl Default for Prepared {
    fn default() -> Self {
        Self {
            block: [1; 3],
            shared: 0,
            size: 0,
            params: Vec::new(),
        }
    }
}

impl Prepared {
    /// Writes a parameter's bytes.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for a place beyond the longest parameter block.
    pub(crate) fn write(&mut self, offset: i32, bytes: &[u8]) -> Result<(), CUresult> {
        let wrong = CUresult::ERROR_INVALID_VALUE;
        let start = usize::try_from(offset).map_err(|_| wrong)?;
        let end = start
            .checked_add(bytes.len())
            .filter(|end| *end <= MOST_PARAM_BYTES as usize)
            .ok_or(wrong)?;
        if self.params.len() < end {
            self.params.resize(end, 0);
        }
        self.params[start..end].copy_from_slice(bytes);
        Ok(())
    }

    /// The parameter block, of the size that was set and at least as long as the kernel's; what was
    /// never written is zero.
    pub(crate) fn block_of_params(&self, least: u32) -> Vec<u8> {
        let mut block = self.params.clone();
        block.resize(self.size.max(least) as usize, 0);
        block
    }
}

impl PreparedLaunches {
    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Prepared>> {
        self.by_function
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes what a function is prepared for.
    pub(crate) fn change<T>(&self, function: Key, change: impl FnOnce(&mut Prepared) -> T) -> T {
        change(self.lock().entry(function).or_default())
    }

    /// What a function is prepared for.
    pub(crate) fn of(&self, function: Key) -> Prepared {
        self.lock().get(&function).cloned().unwrap_or_default()
    }

    /// Forgets a function that has ended.
    pub(crate) fn forget(&self, function: Key) {
        self.lock().remove(&function);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_written_where_they_belong_and_no_further() {
        let mut prepared = Prepared::default();
        prepared.write(4, &[1, 2]).unwrap();
        prepared.write(1, &[9]).unwrap();
        prepared.size = 8;
        assert_eq!(prepared.block_of_params(0), [0, 9, 0, 0, 1, 2, 0, 0]);
        prepared.size = 5;
        assert_eq!(prepared.block_of_params(4), [0, 9, 0, 0, 1]);
        assert_eq!(prepared.block_of_params(7), [0, 9, 0, 0, 1, 2, 0]);
        let last = MOST_PARAM_BYTES as i32;
        assert_eq!(prepared.write(last - 1, &[1]), Ok(()));
        for offset in [-1, last, i32::MAX] {
            let refused = prepared.write(offset, &[1]);
            assert_eq!(refused, Err(CUresult::ERROR_INVALID_VALUE));
        }
    }
}
