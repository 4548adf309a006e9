//! The program's pointers, as the functions of `api` take them.
//!
//! A C caller promises that a pointer parameter is NULL or leads to what CUDA says it does. The
//! shells of `exports` state that promise once for each pointer, by making one of these types of it;
//! everything behind them can then ask for NULL and otherwise use it safely. Nothing here is kept
//! beyond the call.
//!
//! Made by the shells of `exports`, and by `export_tables::client_access` for what it asks of `api`. Must not know
//! what a function does with what a pointer leads to.

use std::ffi::{CStr, c_char, c_void};

use cuda_abi::CUresult;

/// Where a value is written, or read and written, or nothing.
#[derive(Debug)]
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    pub(crate) const fn null() -> Self {
        Self(std::ptr::null_mut())
    }

    /// # Safety
    /// NULL, or valid for a write of `T` during the call; for a read too where the parameter is an
    /// input.
    pub(crate) unsafe fn new(pointer: *mut T) -> Self {
        Self(pointer)
    }

    /// Refuses NULL, before anything is done that would have to be undone.
    pub(crate) fn required(&self) -> Result<(), CUresult> {
        if self.0.is_null() {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        Ok(())
    }

    /// Writes the value; NULL is an error.
    pub(crate) fn set(&self, value: T) -> Result<(), CUresult> {
        self.required()?;
        self.set_if(value);
        Ok(())
    }

    /// Writes the value unless the program does not want it.
    pub(crate) fn set_if(&self, value: T) {
        if !self.0.is_null() {
            // SAFETY: not NULL, so valid for the write (`new`). C does not promise alignment.
            unsafe { self.0.write_unaligned(value) };
        }
    }

    /// Reads what the program put there; NULL is an error.
    pub(crate) fn get(&self) -> Result<T, CUresult>
    where
        T: Copy,
    {
        self.required()?;
        // SAFETY: not NULL, so valid for the read (`new`).
        Ok(unsafe { self.0.read_unaligned() })
    }

    /// Where the value goes: for a function that takes a pointer itself.
    pub(crate) fn is_null(&self) -> bool {
        self.0.is_null()
    }
}

/// A structure to read.
#[derive(Debug)]
pub(crate) struct In<T>(*const T);

impl<T: Copy> In<T> {
    /// # Safety
    /// NULL, or valid for a read of `T` during the call.
    pub(crate) unsafe fn new(pointer: *const T) -> Self {
        Self(pointer)
    }

    /// One of ours, for a function that takes the program's.
    pub(crate) fn of(value: &T) -> Self {
        Self(value)
    }

    /// Reads it; NULL is an error.
    pub(crate) fn get(&self) -> Result<T, CUresult> {
        if self.0.is_null() {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        // SAFETY: not NULL, so valid for the read (`new`).
        Ok(unsafe { self.0.read_unaligned() })
    }
}

/// A parameter that says how many elements a list has.
pub(crate) trait Count {
    /// How many it says.
    ///
    /// # Safety
    /// If it is a pointer: NULL, or valid for a read.
    unsafe fn elements(self) -> usize;
}

impl Count for u32 {
    unsafe fn elements(self) -> usize {
        self as usize
    }
}

/// Less than none is none.
impl Count for i32 {
    unsafe fn elements(self) -> usize {
        usize::try_from(self).unwrap_or(0)
    }
}

impl Count for usize {
    unsafe fn elements(self) -> usize {
        self
    }
}

/// Where a function also says how many there are: before the call, for how many there is room.
impl<T: Copy + Count> Count for *mut T {
    unsafe fn elements(self) -> usize {
        if self.is_null() {
            return 0;
        }
        // SAFETY: not NULL, so valid for the read (caller); a number is no pointer.
        unsafe { self.read_unaligned().elements() }
    }
}

/// Elements to read, as many as another parameter says.
#[derive(Debug)]
pub(crate) struct List<T> {
    first: *const T,
    /// How many can be read.
    count: usize,
}

impl<T: Copy> List<T> {
    pub(crate) const fn null() -> Self {
        Self {
            first: std::ptr::null(),
            count: 0,
        }
    }

    /// # Safety
    /// NULL, or valid for reads of `count` `T` during the call.
    pub(crate) unsafe fn new(first: *const T, count: usize) -> Self {
        Self { first, count }
    }

    /// The first `count` elements. NULL is an error unless it is 0, and so are more than there are.
    pub(crate) fn get(&self, count: u32) -> Result<Vec<T>, CUresult> {
        if count == 0 {
            return Ok(Vec::new());
        }
        if self.first.is_null() || count as usize > self.count {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        // SAFETY: not NULL, so `self.count` elements can be read (`new`), which are no fewer.
        Ok((0..count as usize)
            .map(|at| unsafe { self.first.add(at).read_unaligned() })
            .collect())
    }

    /// The pointer, for what has a form of its own.
    pub(crate) fn pointer(&self) -> *const T {
        self.first
    }
}

/// Room for elements, as many as another parameter says.
#[derive(Debug)]
pub(crate) struct ListOut<T> {
    first: *mut T,
    /// How many can be written.
    room: usize,
}

impl<T> ListOut<T> {
    /// # Safety
    /// NULL, or valid for writes of `room` `T` during the call.
    pub(crate) unsafe fn new(first: *mut T, room: usize) -> Self {
        Self { first, room }
    }

    /// Whether the program wants none of them.
    pub(crate) fn is_null(&self) -> bool {
        self.first.is_null()
    }

    /// Writes the first elements, at most `room`, and no more than there is room for.
    pub(crate) fn set(
        &self,
        room: u32,
        values: impl IntoIterator<Item = T>,
    ) -> Result<(), CUresult> {
        if self.first.is_null() {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let room = self.room.min(room as usize);
        for (at, value) in values.into_iter().take(room).enumerate() {
            // SAFETY: not NULL, so `self.room` elements can be written (`new`), of which this is one.
            unsafe { self.first.add(at).write_unaligned(value) };
        }
        Ok(())
    }
}

/// What a pointer becomes of which the table says nothing but its C type (mode `opaque`): the type that a
/// function of `api` takes says what it does with it.
pub(crate) trait FromOpaque<P>: Sized {
    /// # Safety
    /// The program passes what the driver's manual asks for, which each type states.
    unsafe fn from_opaque(pointer: P) -> Self;
}

/// An address of the program's that nothing of ours follows, or a number that travels in a pointer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Address(u64);

impl<T> From<*mut T> for Address {
    fn from(pointer: *mut T) -> Self {
        Self(pointer.addr() as u64)
    }
}

impl<T> FromOpaque<*mut T> for Address {
    unsafe fn from_opaque(pointer: *mut T) -> Self {
        Self::from(pointer)
    }
}

impl Address {
    pub(crate) const fn bits(self) -> u64 {
        self.0
    }

    /// Whether it is NULL.
    pub(crate) const fn is_null(self) -> bool {
        self.0 == 0
    }
}

/// Where a value is read or written whose type another parameter names: an attribute's, or a handle's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Untyped(*mut c_void);

impl FromOpaque<*mut c_void> for Untyped {
    /// # Safety
    /// NULL, or valid during the call for what is asked: a read or a write of the type that is named.
    unsafe fn from_opaque(pointer: *mut c_void) -> Self {
        Self(pointer)
    }
}

impl FromOpaque<*const c_void> for Untyped {
    /// # Safety
    /// NULL, or valid during the call for a read of the type that is named; never written through.
    unsafe fn from_opaque(pointer: *const c_void) -> Self {
        Self(pointer.cast_mut())
    }
}

impl Untyped {
    /// Whether it is NULL.
    pub(crate) const fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// It as a pointer to a value of a type.
    ///
    /// # Safety
    /// The parameter that names the type names this one.
    pub(crate) unsafe fn typed<T>(self) -> Out<T> {
        Out(self.0.cast())
    }
}

/// What a function of the program's is called with. Nothing of ours follows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallbackData(*mut c_void);

// SAFETY: the pointer is only handed to the program's own function, and the program promised that any thread
// may call that with it.
unsafe impl Send for CallbackData {}
// SAFETY: a shared one is only read, and nothing of ours follows its pointer.
unsafe impl Sync for CallbackData {}

impl FromOpaque<*mut c_void> for CallbackData {
    /// # Safety
    /// The function that is given beside it may be called with it, by any thread.
    unsafe fn from_opaque(pointer: *mut c_void) -> Self {
        Self(pointer)
    }
}

impl CallbackData {
    /// The pointer, for the call.
    pub(crate) const fn pointer(self) -> *mut c_void {
        self.0
    }
}

/// Where an image begins, which says itself how long it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ImageStart(*const u8);

impl FromOpaque<*const c_void> for ImageStart {
    /// # Safety
    /// NULL, or the start of a whole image, which stays as it is during the call.
    unsafe fn from_opaque(pointer: *const c_void) -> Self {
        Self(pointer.cast())
    }
}

impl ImageStart {
    /// The first byte.
    pub(crate) const fn pointer(self) -> *const u8 {
        self.0
    }
}

/// One of the two lists in which the parameters of a launch may be given.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ParameterList(*mut *mut c_void);

impl FromOpaque<*mut *mut c_void> for ParameterList {
    /// # Safety
    /// NULL, or a list as CUDA has it for the kernel that is given beside it, during the call.
    unsafe fn from_opaque(pointer: *mut *mut c_void) -> Self {
        Self(pointer)
    }
}

impl ParameterList {
    /// The list's start.
    pub(crate) const fn pointer(self) -> *mut *mut c_void {
        self.0
    }
}

/// Bytes to read, as many as another parameter says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bytes(*const u8);

impl Bytes {
    /// # Safety
    /// NULL, or readable for as many bytes as the parameter that counts them says, during the call.
    pub(crate) unsafe fn new(pointer: *const c_void) -> Self {
        Self(pointer.cast())
    }

    /// The first byte.
    pub(crate) fn pointer(self) -> *const u8 {
        self.0
    }
}

/// Room for bytes, as many as another parameter says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BytesOut(*mut u8);

impl BytesOut {
    /// # Safety
    /// NULL, or writable for as many bytes as the parameter that counts them says, during the call.
    pub(crate) unsafe fn new(pointer: *mut c_void) -> Self {
        Self(pointer.cast())
    }

    /// The first byte.
    pub(crate) fn pointer(self) -> *mut u8 {
        self.0
    }
}

/// Room for text.
#[derive(Debug)]
pub(crate) struct TextOut(*mut c_char);

impl TextOut {
    /// # Safety
    /// NULL, or writable for as many characters as the parameter that counts them says, during the
    /// call.
    pub(crate) unsafe fn new(pointer: *mut c_char) -> Self {
        Self(pointer)
    }

    /// Writes as much of a text as `room` bytes take with its NUL. NULL and no room are errors.
    pub(crate) fn set(&self, room: impl TryInto<usize>, text: &str) -> Result<(), CUresult> {
        let room = room.try_into().unwrap_or(0);
        if self.0.is_null() || room == 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let fits = text.len().min(room - 1);
        // SAFETY: not NULL, so `room` characters can be written (`new`), one more than `fits` at
        // least.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr(), self.0.cast(), fits);
            self.0.add(fits).write(0);
        }
        Ok(())
    }
}

/// Text up to its NUL.
#[derive(Debug)]
pub(crate) struct Text(*const c_char);

impl Text {
    /// # Safety
    /// NULL, or text that ends in a NUL and stays as it is during the call.
    pub(crate) unsafe fn new(pointer: *const c_char) -> Self {
        Self(pointer)
    }

    /// The text without its NUL; NULL is an error.
    pub(crate) fn get(&self) -> Result<&[u8], CUresult> {
        if self.0.is_null() {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        // SAFETY: not NULL, so text with its NUL (`new`), for as long as the call and so `self`.
        Ok(unsafe { CStr::from_ptr(self.0) }.to_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_not_read_or_written_beyond_what_they_were_counted_for() {
        let values = [1_u32, 2, 3];
        // SAFETY: two of the three elements, which outlive the list.
        let list = unsafe { List::new(values.as_ptr(), 2) };
        assert_eq!(list.get(2), Ok(vec![1, 2]));
        assert_eq!(list.get(3), Err(CUresult::ERROR_INVALID_VALUE));
        assert_eq!(List::<u32>::null().get(0), Ok(Vec::new()));
        assert_eq!(
            List::<u32>::null().get(1),
            Err(CUresult::ERROR_INVALID_VALUE)
        );

        let mut room = [0_u32; 3];
        // SAFETY: two of the three elements, which outlive the list.
        let list = unsafe { ListOut::new(room.as_mut_ptr(), 2) };
        assert_eq!(list.set(3, values), Ok(()));
        assert_eq!(room, [1, 2, 0]);
    }

    #[test]
    fn a_count_that_a_pointer_leads_to_is_read_if_there_is_one() {
        let mut count = 5_usize;
        // SAFETY: a local's address, and NULL.
        let counts = unsafe {
            [
                (&raw mut count).elements(),
                std::ptr::null_mut::<u32>().elements(),
                (-1_i32).elements(),
            ]
        };
        assert_eq!(counts, [5, 0, 0]);
    }
}
