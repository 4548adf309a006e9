//! What a fill must keep to: whole elements, rows that do not overlap, and memory that there is.
//!
//! `api::fill` and graphs check theirs here. Posts nothing.

use cuda_abi::CUresult;
use protocol::operations::Fill;

use super::ranges::{Range, Ranges};

/// Bytes from the first to the last that is filled.
fn span(fill: &Fill) -> Option<u64> {
    let row = fill.width.checked_mul(u64::from(fill.element))?;
    let aligned = fill.pitch.is_multiple_of(u64::from(fill.element));
    if fill.height > 1 && (row > fill.pitch || !aligned) {
        return None;
    }
    fill.pitch.checked_mul(fill.height - 1)?.checked_add(row)
}

/// Checks a fill that is not empty. Gives the range of memory that it is in.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE.
pub(crate) fn check_fill(ranges: &Ranges, fill: &Fill) -> Result<Range, CUresult> {
    let wrong = CUresult::ERROR_INVALID_VALUE;
    if !matches!(fill.element, 1 | 2 | 4) || !fill.to.is_multiple_of(u64::from(fill.element)) {
        return Err(wrong);
    }
    let span = span(fill).ok_or(wrong)?;
    let range = ranges.find(fill.to);
    range.filter(|_| ranges.cover(fill.to, span)).ok_or(wrong)
}

#[cfg(test)]
mod tests {
    use super::{Fill, span};

    #[test]
    fn spans_are_checked() {
        let rows = |pitch, width, height| Fill {
            to: 0,
            pitch,
            value: 0,
            element: 4,
            width,
            height,
        };
        assert_eq!(span(&rows(0, 3, 1)), Some(12));
        assert_eq!(span(&rows(16, 3, 2)), Some(28));
        assert_eq!(span(&rows(8, 3, 2)), None, "rows overlap");
        assert_eq!(span(&rows(18, 3, 2)), None, "rows are not aligned");
        assert_eq!(span(&rows(0, u64::MAX, 1)), None);
        assert_eq!(span(&rows(u64::MAX - 3, 1, 3)), None);
    }
}
