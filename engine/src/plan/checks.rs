//! Checks of single values that clients and administrators give.
//!
//! Called by engines when they are given such a value, and by `openmps doctor`. Must not know what for.

use cuda_abi::CUresult;

/// Checks an active thread percentage: above 0, and up to 100.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE, for what is no number as well.
pub fn percentage(percentage: f32) -> Result<(), CUresult> {
    if percentage > 0.0 && percentage <= 100.0 {
        Ok(())
    } else {
        Err(CUresult::ERROR_INVALID_VALUE)
    }
}

#[cfg(test)]
mod tests {
    use super::percentage;

    #[test]
    fn a_percentage_is_above_0_and_up_to_100() {
        for good in [f32::MIN_POSITIVE, 0.5, 100.0] {
            assert_eq!(percentage(good), Ok(()), "{good}");
        }
        for bad in [0.0, -1.0, 100.1, f32::NAN, f32::INFINITY] {
            assert!(percentage(bad).is_err(), "{bad}");
        }
    }
}
