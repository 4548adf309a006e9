//! Tensor maps that were made before: programs describe the same tensors again for each launch.
//!
//! Owns so many maps, by what describes them. Called by `api::tensor_map` only. Must not know what is in a map: the
//! server's engine makes it.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use cuda_abi::CUresult;
use cuda_abi::types::CUtensorMap;
use protocol::operations::TensorMapEncode;
use protocol::tensor_maps::{BYTES, Spec};

use crate::session::connection::Connection;

/// As many are kept; then all are forgotten.
const MOST: usize = 1024;

/// The maps, by device and description. A map depends on nothing else.
#[derive(Debug, Default)]
pub(crate) struct TensorMaps {
    known: Mutex<HashMap<(u32, Spec), CUtensorMap>>,
}

/// A descriptor from the bytes of a reply.
///
/// # Errors
/// CUDA_ERROR_MPS_RPC_FAILURE if the server gave something else.
pub(crate) fn of_reply(bytes: &[u8]) -> Result<CUtensorMap, CUresult> {
    let (words, rest) = bytes.as_chunks::<8>();
    let words = <[[u8; 8]; BYTES / 8]>::try_from(words).ok();
    let words = words.filter(|_| rest.is_empty());
    Ok(CUtensorMap {
        opaque: words
            .ok_or(CUresult::ERROR_MPS_RPC_FAILURE)?
            .map(u64::from_le_bytes),
    })
}

impl TensorMaps {
    /// The descriptor of a tensor on a device.
    ///
    /// # Errors
    /// What the device's driver says of it.
    pub(crate) fn encode(
        &self,
        connection: &Connection,
        device: u32,
        spec: &Spec,
    ) -> Result<CUtensorMap, CUresult> {
        let known = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(map) = known().get(&(device, *spec)) {
            return Ok(*map);
        }
        let reply = connection.call_with(&TensorMapEncode { device }, &spec.encode())?;
        let map = of_reply(&reply.data)?;
        let mut known = known();
        if known.len() >= MOST {
            known.clear();
        }
        known.insert((device, *spec), map);
        Ok(map)
    }
}
