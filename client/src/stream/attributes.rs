//! Attributes of a stream: kept as the program sets them, and checked as CUDA checks them.
//!
//! `api::stream` sets and asks them. It posts nothing.

use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use cuda_abi::CUresult;
use cuda_abi::types::{CUlaunchAttributeID, CUlaunchAttributeValue};

use super::attribute_values::{check_value, word};
use crate::session::connection::Device;

/// The lowest priority that a stream can have.
pub(crate) const LEAST_PRIORITY: i32 = 0;
/// The highest one; smaller numbers are more urgent.
pub(crate) const GREATEST_PRIORITY: i32 = -5;

/// What a stream keeps beside its priority.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamAttributes {
    window: CUlaunchAttributeValue,
    /// CUsynchronizationPolicy; -1 where nobody set it.
    policy: i32,
    domain: u32,
    domains: [u8; 2],
}

/// A stream's attributes.
#[derive(Debug, Default)]
pub(crate) struct Attributes(Mutex<StreamAttributes>);

impl Default for StreamAttributes {
    fn default() -> Self {
        Self {
            window: CUlaunchAttributeValue([0; 64]),
            policy: -1,
            domain: 0,
            domains: [0, 1],
        }
    }
}

/// A value that begins with these bytes.
fn value(bytes: &[u8]) -> CUlaunchAttributeValue {
    let mut all = [0; 64];
    all[..bytes.len()].copy_from_slice(bytes);
    CUlaunchAttributeValue(all)
}

impl Attributes {
    fn lock(&self) -> MutexGuard<'_, StreamAttributes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes them those of a new stream.
    pub(super) fn reset(&self) {
        *self.lock() = StreamAttributes::default();
    }

    /// Takes those of another stream.
    pub(crate) fn copy(&self, from: &Self) {
        let from = *from.lock();
        *self.lock() = from;
    }

    /// An attribute's value.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for one that streams do not have.
    pub(crate) fn get(
        &self,
        priority: &AtomicI32,
        attribute: CUlaunchAttributeID,
    ) -> Result<CUlaunchAttributeValue, CUresult> {
        let own = *self.lock();
        Ok(match attribute {
            CUlaunchAttributeID::ACCESS_POLICY_WINDOW => own.window,
            CUlaunchAttributeID::SYNCHRONIZATION_POLICY => value(&own.policy.to_ne_bytes()),
            CUlaunchAttributeID::PRIORITY => value(&priority.load(Ordering::Relaxed).to_ne_bytes()),
            CUlaunchAttributeID::MEM_SYNC_DOMAIN => value(&own.domain.to_ne_bytes()),
            CUlaunchAttributeID::MEM_SYNC_DOMAIN_MAP => value(&own.domains),
            _ => return Err(CUresult::ERROR_INVALID_VALUE),
        })
    }

    /// Sets an attribute.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for one that streams do not have, and for a value that it cannot have.
    pub(crate) fn set(
        &self,
        priority: &AtomicI32,
        device: &Device,
        attribute: CUlaunchAttributeID,
        value: &CUlaunchAttributeValue,
    ) -> Result<(), CUresult> {
        let word = word(value, 0);
        let mut own = self.lock();
        match attribute {
            CUlaunchAttributeID::SYNCHRONIZATION_POLICY if (1..=4).contains(&word) => {
                own.policy = word.cast_signed();
            }
            CUlaunchAttributeID::PRIORITY => {
                let wanted = word.cast_signed();
                let wanted = wanted.clamp(GREATEST_PRIORITY, LEAST_PRIORITY);
                priority.store(wanted, Ordering::Relaxed);
            }
            CUlaunchAttributeID::ACCESS_POLICY_WINDOW
            | CUlaunchAttributeID::MEM_SYNC_DOMAIN
            | CUlaunchAttributeID::MEM_SYNC_DOMAIN_MAP => {
                check_value(device, attribute, value)?;
                match attribute {
                    CUlaunchAttributeID::ACCESS_POLICY_WINDOW => own.window = *value,
                    CUlaunchAttributeID::MEM_SYNC_DOMAIN => own.domain = word,
                    _ => own.domains = [value.0[0], value.0[1]],
                }
            }
            _ => return Err(CUresult::ERROR_INVALID_VALUE),
        }
        Ok(())
    }
}
