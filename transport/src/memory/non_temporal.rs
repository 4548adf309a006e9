//! Non-temporal copies: stores that go past the processor's caches. An ordinary store first fetches the line that it
//! overwrites, so that a copy of more than the caches hold moves three bytes for each.
//!
//! The client copies long results out of staging memory so. Must not know whose memory it is: callers have checked
//! both sides.

/// Bytes of a cache line, which is written as a whole.
const LINE: usize = 64;

/// Copies `bytes` bytes; later stores of this thread are not seen before they are.
///
/// # Safety
/// `from` is readable and `to` is writable for `bytes` bytes. Others may write `from` meanwhile: then the
/// bytes are of several moments.
pub(super) unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) {
    let head = to.align_offset(LINE).min(bytes);
    let lines = (bytes - head) / LINE * LINE;
    let tail = head + lines;
    // SAFETY: the three runs are one after the other in the caller's bytes; the middle one begins at a
    // line and has whole lines.
    unsafe {
        std::ptr::copy(from, to, head);
        copy_lines(from.add(head), to.add(head), lines);
        std::ptr::copy(from.add(tail), to.add(tail), bytes - tail);
    }
}

/// Copies whole lines.
///
/// # Safety
/// As [`copy`]; `to` and `bytes` are multiples of a line.
// Miri has no such stores, but looks at the three runs.
#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe fn copy_lines(from: *const u8, to: *mut u8, bytes: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    for at in (0..bytes).step_by(LINE) {
        // SAFETY: the line is in the caller's bytes, and at the target it is aligned. Every x86-64
        // processor has these instructions.
        unsafe {
            let from = from.add(at).cast::<__m128i>();
            let to = to.add(at).cast::<__m128i>();
            let line = [0, 1, 2, 3].map(|part| _mm_loadu_si128(from.add(part)));
            for (part, value) in line.into_iter().enumerate() {
                _mm_stream_si128(to.add(part), value);
            }
        }
    }
    // SAFETY: a fence has no operands; SSE is part of x86-64.
    unsafe { _mm_sfence() };
}

/// Copies whole lines.
///
/// # Safety
/// As [`copy`].
#[cfg(any(not(target_arch = "x86_64"), miri))]
unsafe fn copy_lines(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: the caller keeps that `from` may be read and `to` written for `bytes` bytes.
    unsafe { std::ptr::copy(from, to, bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_arrives_and_no_other_changes() {
        let from: Vec<u8> = (0..1000_u32).map(|at| (at * 7 % 251) as u8).collect();
        for start in [0, 1, 15, 16, 63, 64] {
            for bytes in [0, 1, 63, 64, 65, 128, 200, 777] {
                let mut to = vec![255_u8; 1000];
                // SAFETY: both arrays are longer than what is copied from these places on.
                unsafe { copy(from[3..].as_ptr(), to[start..].as_mut_ptr(), bytes) };
                assert_eq!(to[start..start + bytes], from[3..3 + bytes]);
                assert!(to[..start].iter().all(|&byte| byte == 255));
                assert!(to[start + bytes..].iter().all(|&byte| byte == 255));
            }
        }
    }
}
