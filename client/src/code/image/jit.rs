//! The options of loading an image: above all, where the program wants the compiler's log.
//!
//! Owns the reading of the program's two arrays of options, and the writing of logs to where they say.
//! The loading of modules and libraries and links call it. It sees no image.

use std::ffi::c_void;
use std::time::Instant;

use cuda_abi::CUresult;
use cuda_abi::types::CUjit_option;
use protocol::operations::{IMAGE_REGISTERS_SHIFT, IMAGE_VERBOSE};

/// What a program is told of bytes that are no image, or not all of one.
pub(super) const NO_IMAGE: &[u8] = b"error: the bytes are no CUDA image\n";

/// More options than there are kinds of them.
const MOST: u32 = 256;

/// The greatest CU_JIT_OPTIMIZATION_LEVEL.
const MOST_OPTIMISATION: u32 = 4;

/// The last option of CUDA 13.
const LAST_OPTION: u32 = 35;

/// A buffer of the program for a log, and the option that says and is told its size.
#[derive(Debug, Default)]
struct Log {
    buffer: Option<*mut u8>,
    /// Where the option's value lies, and what it was.
    size: Option<(*mut *mut c_void, u32)>,
}

/// Options as a program gave them.
#[derive(Debug)]
pub(crate) struct Jit {
    info: Log,
    error: Log,
    wall_time: Option<*mut *mut c_void>,
    verbose: bool,
    /// The most registers of a thread, or 0.
    registers: u32,
    begin: Instant,
}

impl Jit {
    /// No options.
    pub(crate) fn none() -> Self {
        Self {
            info: Log::default(),
            error: Log::default(),
            wall_time: None,
            verbose: false,
            registers: 0,
            begin: Instant::now(),
        }
    }

    /// Reads a program's options. Those that steer the compiler are hints; the server is told of what
    /// it can do something with ([`Jit::options`]).
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for options without their arrays.
    ///
    /// # Safety
    /// `options` and `values` each have `count` entries, the values are writable as CUDA has it, and
    /// log buffers have the sizes that the options beside them say, until this is dropped.
    pub(crate) unsafe fn read(
        count: u32,
        options: *const CUjit_option,
        values: *const *mut c_void,
    ) -> Result<Self, CUresult> {
        let mut jit = Self::none();
        if count == 0 {
            return Ok(jit);
        }
        if options.is_null() || values.is_null() || count > MOST {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        for at in 0..count as usize {
            // SAFETY: the caller vouches for `count` entries in both.
            let (option, place) = unsafe { (*options.add(at), values.add(at).cast_mut()) };
            // SAFETY: `place` is one of the `count` entries of `values`, which the caller vouches for.
            let value = unsafe { *place };
            let log = match option {
                CUjit_option::INFO_LOG_BUFFER | CUjit_option::INFO_LOG_BUFFER_SIZE_BYTES => {
                    &mut jit.info
                }
                CUjit_option::ERROR_LOG_BUFFER | CUjit_option::ERROR_LOG_BUFFER_SIZE_BYTES => {
                    &mut jit.error
                }
                CUjit_option::WALL_TIME => {
                    jit.wall_time = Some(place);
                    continue;
                }
                CUjit_option::LOG_VERBOSE => {
                    jit.verbose = value.addr() as u32 != 0;
                    continue;
                }
                CUjit_option::MAX_REGISTERS => {
                    jit.registers = (value.addr() as u32).min(0xff);
                    continue;
                }
                CUjit_option::OPTIMIZATION_LEVEL if value.addr() as u32 > MOST_OPTIMISATION => {
                    return Err(CUresult::ERROR_INVALID_VALUE);
                }
                option if option.0 > LAST_OPTION => return Err(CUresult::ERROR_INVALID_VALUE),
                _ => continue,
            };
            match option {
                CUjit_option::INFO_LOG_BUFFER | CUjit_option::ERROR_LOG_BUFFER => {
                    log.buffer = Some(value.cast()).filter(|buffer: &*mut u8| !buffer.is_null());
                }
                // An unsigned int, passed where a pointer would be.
                _ => log.size = Some((place, value.addr() as u32)),
            }
        }
        Ok(jit)
    }

    /// The options as the server is sent them.
    pub(crate) fn options(&self) -> u32 {
        let verbose = if self.verbose { IMAGE_VERBOSE } else { 0 };
        verbose | self.registers << IMAGE_REGISTERS_SHIFT
    }

    /// Tells the program of what is no image at all.
    pub(crate) fn log_no_image(&self, code: CUresult) {
        if code == CUresult::ERROR_INVALID_IMAGE {
            self.write_logs(b"", NO_IMAGE);
        }
    }

    /// Hands the server's log to the program: to the error log if the image failed.
    pub(crate) fn write_server_log(&mut self, status: CUresult, text: &[u8]) {
        if status == CUresult::SUCCESS {
            self.write_logs(text, b"");
        } else {
            self.write_logs(b"", text);
        }
    }

    /// Hands both logs to the program.
    pub(crate) fn write_logs(&self, info: &[u8], errors: &[u8]) {
        self.info.write(info);
        self.error.write(errors);
        if let Some(place) = self.wall_time {
            let milliseconds = self.begin.elapsed().as_secs_f32() * 1e3;
            // SAFETY: the option's value is writable (`read`), and takes a float in its first half.
            unsafe { place.cast::<f32>().write(milliseconds) };
        }
    }
}

impl Log {
    /// Writes as much of a text as fits, with its NUL, and tells how much that is.
    fn write(&self, text: &[u8]) {
        let Some((place, size)) = self.size else {
            return; // Without a size there is no telling how much fits.
        };
        let fits = text.len().min((size as usize).saturating_sub(1));
        let mut written = 0;
        if let Some(buffer) = self.buffer
            && size > 0
        {
            // SAFETY: the buffer has `size` bytes (`read`), of which the text takes at most all but
            // one.
            unsafe {
                std::ptr::copy_nonoverlapping(text.as_ptr(), buffer, fits);
                buffer.add(fits).write(0);
            }
            written = if fits > 0 { fits + 1 } else { 0 };
        }
        // SAFETY: the option's value is writable (`read`).
        unsafe { place.write(std::ptr::without_provenance_mut(written)) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_are_cut_to_the_buffer_and_told_by_length() {
        let mut errors = [0xff_u8; 8];
        let mut infos = [0xff_u8; 8];
        let options = [
            CUjit_option::ERROR_LOG_BUFFER,
            CUjit_option::ERROR_LOG_BUFFER_SIZE_BYTES,
            CUjit_option::MAX_REGISTERS,
            CUjit_option::INFO_LOG_BUFFER_SIZE_BYTES,
            CUjit_option::INFO_LOG_BUFFER,
        ];
        let mut values: [*mut c_void; 5] = [
            errors.as_mut_ptr().cast(),
            std::ptr::without_provenance_mut(6),
            std::ptr::without_provenance_mut(32),
            std::ptr::without_provenance_mut(8),
            infos.as_mut_ptr().cast(),
        ];
        // SAFETY: both arrays have five entries, and the buffers at least the sizes that are said.
        let mut jit = unsafe { Jit::read(5, options.as_ptr(), values.as_mut_ptr()) }.unwrap();
        jit.write_server_log(CUresult::ERROR_INVALID_PTX, b"line 7: no");
        assert_eq!(&errors, b"line \0\xff\xff");
        assert_eq!(values[1].addr(), 6);
        assert_eq!((infos[0], values[3].addr()), (0, 0));
    }

    #[test]
    fn options_without_their_arrays_are_refused() {
        // SAFETY: null is refused before it is read.
        let read = unsafe { Jit::read(1, std::ptr::null(), std::ptr::null()) };
        assert_eq!(read.unwrap_err(), CUresult::ERROR_INVALID_VALUE);
        // SAFETY: without options there are no arrays.
        assert!(unsafe { Jit::read(0, std::ptr::null(), std::ptr::null()) }.is_ok());
    }
}
