//! The data of a launch: its attributes, then its parameter block.
//!
//! Owns how the two are laid out behind a launch's record. Called by both engines' launches. Must not know the
//! kernel.

use cuda_abi::CUresult;
use cuda_abi::types::{CUlaunchAttribute, CUlaunchAttributeID, CUlaunchAttributeValue};
use protocol::operations::{LAUNCH_COOPERATIVE, Launch};

/// Bytes of a launch attribute: the id, padding, and a value of 64 bytes.
const ATTRIBUTE_BYTES: usize = size_of::<CUlaunchAttribute>();

/// Whether a launch asks for all its blocks to be resident at once.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE for flags that do not exist.
pub fn is_cooperative(request: &Launch) -> Result<bool, CUresult> {
    if request.flags & !LAUNCH_COOPERATIVE != 0 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    Ok(request.flags & LAUNCH_COOPERATIVE != 0)
}

/// Splits `count` attributes off the front of a launch's data; the rest is the parameter block.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE for data that is too short for them.
pub fn split(
    count: u32,
    data: &[u8],
) -> Result<(impl Iterator<Item = CUlaunchAttribute>, &[u8]), CUresult> {
    let (attributes, parameters) = (count as usize)
        .checked_mul(ATTRIBUTE_BYTES)
        .and_then(|bytes| data.split_at_checked(bytes))
        .ok_or(CUresult::ERROR_INVALID_VALUE)?;
    let (attributes, _) = attributes.as_chunks::<ATTRIBUTE_BYTES>();
    Ok((attributes.iter().map(decode), parameters))
}

fn decode(bytes: &[u8; ATTRIBUTE_BYTES]) -> CUlaunchAttribute {
    let (mut id, mut value) = ([0; 4], [0; 64]);
    id.copy_from_slice(&bytes[..4]);
    value.copy_from_slice(&bytes[ATTRIBUTE_BYTES - 64..]);
    CUlaunchAttribute {
        id: CUlaunchAttributeID(u32::from_le_bytes(id)),
        pad: [0; 4],
        value: CUlaunchAttributeValue(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_split_off_the_front() {
        let mut data = vec![0; 2 * ATTRIBUTE_BYTES];
        data[0] = 7;
        data[8] = 1;
        data[ATTRIBUTE_BYTES] = 9;
        data.extend([5, 6]);
        let (attributes, parameters) = split(2, &data).unwrap_or_else(|_| panic!("long enough"));
        let attributes: Vec<_> = attributes.collect();
        assert_eq!(attributes.len(), 2);
        assert_eq!((attributes[0].id.0, attributes[0].value.0[0]), (7, 1));
        assert_eq!(attributes[1].id.0, 9);
        assert_eq!(parameters, [5, 6]);
        assert!(split(3, &data).is_err());
        assert!(split(u32::MAX, &data).is_err());
    }
}
