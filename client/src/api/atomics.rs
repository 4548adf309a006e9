//! Which atomic operations a device does on the host's memory and on another device's, such that the other side's
//! are atomic with them.
//!
//! Owns what is told of each operation. Called by the shells of `exports`. Must not know how devices are linked:
//! attributes and `peer` say that.

use cuda_abi::CUresult;
use cuda_abi::types::{CUatomicOperation, CUdevice, CUdevice_attribute};

use super::Outcome;
use super::peer::reach_each_other;
use crate::pointers::{List, ListOut};
use crate::session::session;

/// CUatomicOperationCapability: of which numbers, whether without a result too, and of how many bits.
const SIGNED: u32 = 1 << 0;
const UNSIGNED: u32 = 1 << 1;
const REDUCTION: u32 = 1 << 2;
const SCALAR_32: u32 = 1 << 3;
const SCALAR_64: u32 = 1 << 4;

/// What PTX has of an operation for all devices that we show, whose scalar forms a link that does atomics does
/// all: `None` for what is no operation. Larger and vector forms are told of no link.
fn forms(operation: CUatomicOperation) -> Option<u32> {
    const BOTH: u32 = SCALAR_32 | SCALAR_64;
    Some(match operation {
        CUatomicOperation::INTEGER_ADD
        | CUatomicOperation::INTEGER_MIN
        | CUatomicOperation::INTEGER_MAX => SIGNED | UNSIGNED | REDUCTION | BOTH,
        CUatomicOperation::INTEGER_INCREMENT | CUatomicOperation::INTEGER_DECREMENT => {
            UNSIGNED | REDUCTION | SCALAR_32
        }
        CUatomicOperation::AND | CUatomicOperation::OR | CUatomicOperation::XOR => {
            SIGNED | UNSIGNED | REDUCTION | BOTH
        }
        CUatomicOperation::EXCHANGE | CUatomicOperation::CAS => SIGNED | UNSIGNED | BOTH,
        CUatomicOperation::FLOAT_ADD => SIGNED | REDUCTION | BOTH,
        // PTX has none of a scalar of 32 or 64 bits.
        CUatomicOperation::FLOAT_MIN | CUatomicOperation::FLOAT_MAX => 0,
        _ => return None,
    })
}

/// Answers for each of the operations asked about.
fn answer(
    capabilities: &ListOut<u32>,
    operations: &List<CUatomicOperation>,
    count: u32,
    atomic: bool,
) -> Outcome {
    let wrong = CUresult::ERROR_INVALID_VALUE;
    if count == 0 || capabilities.is_null() {
        return Err(wrong);
    }
    let operations = operations.get(count)?;
    let forms: Option<Vec<u32>> = operations.into_iter().map(forms).collect();
    let forms = forms.ok_or(wrong)?.into_iter();
    capabilities.set(count, forms.map(|forms| if atomic { forms } else { 0 }))
}

pub(crate) fn cuDeviceGetHostAtomicCapabilities(
    capabilities: ListOut<u32>,
    operations: List<CUatomicOperation>,
    count: u32,
    ordinal: CUdevice,
) -> Outcome {
    let session = session()?;
    let device = session.device(ordinal)?;
    let atomic = device.attribute(CUdevice_attribute::HOST_NATIVE_ATOMIC_SUPPORTED) != 0;
    answer(&capabilities, &operations, count, atomic)
}

pub(crate) fn cuDeviceGetP2PAtomicCapabilities(
    capabilities: ListOut<u32>,
    operations: List<CUatomicOperation>,
    count: u32,
    source: CUdevice,
    destination: CUdevice,
) -> Outcome {
    let session = session()?;
    let (one, other) = (session.device(source)?, session.device(destination)?);
    if source == destination {
        return Err(CUresult::ERROR_INVALID_DEVICE);
    }
    let atomic = reach_each_other(one, other);
    answer(&capabilities, &operations, count, atomic)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::context;

    fn ask(operations: &[CUatomicOperation], device: CUdevice) -> Result<Vec<u32>, CUresult> {
        let mut answers = vec![u32::MAX; operations.len()];
        // SAFETY: both are of as many elements as they say.
        let (room, asked) = unsafe {
            (
                ListOut::new(answers.as_mut_ptr(), answers.len()),
                List::new(operations.as_ptr(), operations.len()),
            )
        };
        let count = operations.len() as u32;
        cuDeviceGetHostAtomicCapabilities(room, asked, count, device).map(|()| answers)
    }

    #[test]
    fn a_link_does_what_its_attribute_says_and_nothing_else_is_an_operation() {
        context(0);
        let all: Vec<_> = (0..13).map(CUatomicOperation).collect();
        assert_eq!(ask(&all, 0), Ok(vec![0; 13]), "attribute 0");
        let told = ask(&all, 1).unwrap();
        assert_eq!(
            told[0],
            SIGNED | UNSIGNED | REDUCTION | SCALAR_32 | SCALAR_64
        );
        assert_eq!(told[9] & REDUCTION, 0, "compare and swap has a result");
        assert_eq!((told[11], told[12]), (0, 0));
        let wrong = Err(CUresult::ERROR_INVALID_VALUE);
        assert_eq!(ask(&[CUatomicOperation(13)], 1), wrong);
        assert_eq!(ask(&[CUatomicOperation(u32::MAX)], 1), wrong);
        assert_eq!(ask(&[], 1), wrong);
        assert_eq!(ask(&all, 2), Err(CUresult::ERROR_INVALID_DEVICE));
    }

    #[test]
    fn no_device_is_its_own_peer() {
        context(0);
        let mut answer = 0;
        let operation = CUatomicOperation::CAS;
        let mut ask = |source, destination| {
            // SAFETY: both are locals of one element, which outlive the call.
            let (room, asked) = unsafe {
                (
                    ListOut::new(&raw mut answer, 1),
                    List::new(&raw const operation, 1),
                )
            };
            cuDeviceGetP2PAtomicCapabilities(room, asked, 1, source, destination)
        };
        assert_eq!(ask(1, 1), Err(CUresult::ERROR_INVALID_DEVICE));
        assert_eq!(ask(0, 2), Err(CUresult::ERROR_INVALID_DEVICE));
        assert_eq!(ask(0, 1), Ok(()));
    }
}
