//! The program's pointers, as the functions of `api` take them.
//!
//! A C caller promises that a pointer parameter is NULL or leads to what NVML's documentation says, for as
//! long as the call takes. Each type here has the form of the pointer in C, so that the shells of
//! `exports` take them directly; nothing behind the shells sees a raw pointer.
//!
//! Must not know what a parameter means.

use std::ffi::{CStr, c_char};

use cuda_abi::nvml::nvmlReturn_t;

/// Where a value is written, or read and written.
///
/// # Invariant
/// NULL, or valid for a write of `T`; for a read too where the parameter is an input.
#[derive(Debug)]
#[repr(transparent)]
pub struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Refuses NULL, before anything is done.
    pub(crate) const fn required(&self) -> Result<(), nvmlReturn_t> {
        if self.0.is_null() {
            return Err(nvmlReturn_t::ERROR_INVALID_ARGUMENT);
        }
        Ok(())
    }

    /// Writes the value; NULL is an error.
    pub(crate) const fn set(&self, value: T) -> Result<(), nvmlReturn_t>
    where
        T: Copy,
    {
        match self.required() {
            // SAFETY: not NULL, so valid for the write. C does not promise alignment.
            Ok(()) => unsafe { self.0.write_unaligned(value) },
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Reads what the program put there; NULL is an error.
    pub(crate) const fn get(&self) -> Result<T, nvmlReturn_t>
    where
        T: Copy,
    {
        match self.required() {
            // SAFETY: not NULL, so valid for the read: only parameters that are inputs are read.
            Ok(()) => Ok(unsafe { self.0.read_unaligned() }),
            Err(error) => Err(error),
        }
    }

    /// The pointer, for the driver's own library.
    pub(crate) const fn pointer(&self) -> *mut T {
        self.0
    }
}

/// A structure to read.
///
/// # Invariant
/// NULL, or valid for a read of `T`.
#[derive(Debug)]
#[repr(transparent)]
pub struct In<T>(*const T);

impl<T: Copy> In<T> {
    /// Reads it; NULL is an error.
    pub(crate) const fn get(&self) -> Result<T, nvmlReturn_t> {
        if self.0.is_null() {
            return Err(nvmlReturn_t::ERROR_INVALID_ARGUMENT);
        }
        // SAFETY: not NULL, so valid for the read.
        Ok(unsafe { self.0.read_unaligned() })
    }
}

/// Room for elements, as many as another parameter or field says.
///
/// # Invariant
/// NULL, or valid for writes of so many `T`.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct ListOut<T>(*mut T);

impl<T: Copy> ListOut<T> {
    /// Whether there is no room: who asks so wants to know how many elements there are.
    pub(crate) const fn is_null(&self) -> bool {
        self.0.is_null()
    }

    /// Writes the elements, for which `room` says how many there may be.
    ///
    /// # Errors
    /// NVML_ERROR_INSUFFICIENT_SIZE when there are more, NVML_ERROR_INVALID_ARGUMENT for NULL.
    pub(crate) fn set(&self, room: u32, values: &[T]) -> Result<(), nvmlReturn_t> {
        if values.len() > room as usize {
            return Err(nvmlReturn_t::ERROR_INSUFFICIENT_SIZE);
        }
        if values.is_empty() {
            return Ok(());
        }
        if self.0.is_null() {
            return Err(nvmlReturn_t::ERROR_INVALID_ARGUMENT);
        }
        for (at, value) in values.iter().enumerate() {
            // SAFETY: not NULL, so `room` elements can be written, and there are no more than that.
            unsafe { self.0.add(at).write_unaligned(*value) };
        }
        Ok(())
    }
}

/// Room for text, of as many bytes as another parameter says.
///
/// # Invariant
/// NULL, or valid for writes of so many characters.
#[derive(Debug)]
#[repr(transparent)]
pub struct TextOut(*mut c_char);

impl TextOut {
    /// Writes a text with its NUL.
    ///
    /// # Errors
    /// NVML_ERROR_INSUFFICIENT_SIZE when `room` bytes are too few, NVML_ERROR_INVALID_ARGUMENT for NULL.
    pub(crate) fn set(&self, room: u32, text: &str) -> Result<(), nvmlReturn_t> {
        if self.0.is_null() {
            return Err(nvmlReturn_t::ERROR_INVALID_ARGUMENT);
        }
        if text.len() >= room as usize {
            return Err(nvmlReturn_t::ERROR_INSUFFICIENT_SIZE);
        }
        // SAFETY: not NULL, so `room` characters can be written, one more than the text has at least.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr(), self.0.cast(), text.len());
            self.0.add(text.len()).write(0);
        }
        Ok(())
    }

    /// As [`TextOut::set`], but of a text that is too long its beginning; no room at all is an error.
    pub(crate) fn set_beginning(&self, room: u32, text: &str) -> Result<(), nvmlReturn_t> {
        let room = room as usize;
        let most = room.checked_sub(1);
        let most = most.ok_or(nvmlReturn_t::ERROR_INVALID_ARGUMENT)?;
        let text = &text[..text.floor_char_boundary(most)];
        self.set(room as u32, text)
    }

    /// The pointer, for the driver's own library.
    pub(crate) const fn pointer(&self) -> *mut c_char {
        self.0
    }
}

/// Text up to its NUL.
///
/// # Invariant
/// NULL, or text that ends in a NUL and stays as it is during the call.
#[derive(Debug)]
#[repr(transparent)]
pub struct Text(*const c_char);

impl Text {
    /// The text without its NUL. NULL, and what is not UTF-8, are errors.
    pub(crate) fn get(&self) -> Result<&str, nvmlReturn_t> {
        if self.0.is_null() {
            return Err(nvmlReturn_t::ERROR_INVALID_ARGUMENT);
        }
        // SAFETY: not NULL, so text with its NUL, for as long as the call and so `self`.
        let text = unsafe { CStr::from_ptr(self.0) };
        text.to_str()
            .map_err(|_| nvmlReturn_t::ERROR_INVALID_ARGUMENT)
    }
}
