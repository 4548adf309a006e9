//! The log of failed calls as a program reads it.
//!
//! They show that each failed call is a message, told to the program's functions too, and what is refused.

use std::ffi::{CStr, c_char, c_void};
use std::sync::Mutex;

use cuda_abi::types::*;

use crate::api::*;
use crate::pointers::{Text, TextOut};
use crate::testing::*;

const WRONG: Outcome = Err(CUresult::ERROR_INVALID_VALUE);

static TOLD: Mutex<Vec<(u32, String)>> = Mutex::new(Vec::new());

unsafe extern "C" fn tell(data: *mut c_void, level: u32, message: *mut c_char, length: usize) {
    assert_eq!(data as usize, 0x77);
    // SAFETY: a message is text with its NUL.
    let text = unsafe { CStr::from_ptr(message) }.to_str().unwrap();
    assert_eq!(text.len(), length);
    TOLD.lock().unwrap().push((level, text.to_owned()));
    // What fails here is told to nobody, or it would never end. Other tests' calls fail meanwhile.
    if text == SAID {
        fails();
    }
}

/// A call that fails, with a number that no other test's calls fail with.
fn fails() {
    let function = cuda_abi::functions::Function::cuLogsCurrent;
    let status = crate::exports::guarded(function, || Err(CUresult(77)));
    assert_eq!(status, CUresult(77));
}

const SAID: &str = "Returning 77 (unknown) from cuLogsCurrent";

fn told() -> usize {
    let told = TOLD.lock().unwrap();
    told.iter()
        .filter(|(level, text)| *level == 0 && text == SAID)
        .count()
}

#[test]
fn each_failed_call_is_a_message() {
    let mut at = 0;
    assert_eq!(cuLogsCurrent(out(&mut at), 1), WRONG);
    cuLogsCurrent(out(&mut at), 0).unwrap();
    let begin = at;
    // The function takes it as a number.
    let data = || data_of_call(std::ptr::without_provenance_mut(0x77));
    let mut handle = CUlogsCallbackHandle::NULL;
    assert_eq!(
        cuLogsRegisterCallback(None, data(), out(&mut handle)),
        WRONG
    );
    cuLogsRegisterCallback(Some(tell), data(), out(&mut handle)).unwrap();
    fails();
    assert_eq!(told(), 1);
    cuLogsUnregisterCallback(handle).unwrap();
    assert_eq!(cuLogsUnregisterCallback(handle), WRONG);
    fails();
    assert_eq!(told(), 1);

    let dump = |at: &mut u32, room: usize| {
        let mut buffer = vec![c_char::MAX; room.max(1)];
        let mut size = room;
        // SAFETY: as many characters as the size says.
        let text = unsafe { TextOut::new(buffer.as_mut_ptr()) };
        cuLogsDumpToMemory(out(at), text, out(&mut size), 0)?;
        assert_eq!(buffer[size], 0);
        let bytes: Vec<u8> = buffer[..size].iter().map(|c| c.cast_unsigned()).collect();
        Ok(String::from_utf8(bytes).unwrap())
    };
    let said = |text: &str| {
        text.lines()
            .filter(|line| line.ends_with(&format!("[E] {SAID}")))
            .count()
    };
    for room in [0, 1, 20] {
        assert_eq!(dump(&mut at, room), Err(CUresult::ERROR_INVALID_VALUE));
        assert_eq!(at, begin);
    }
    // One in the function, too.
    assert_eq!(said(&dump(&mut at, 30_000).unwrap()), 3);
    assert!(at.wrapping_sub(begin) >= 3);
    assert_eq!(said(&dump(&mut at, 30_000).unwrap()), 0);

    let folder = tempfile::tempdir().unwrap();
    let path = std::ffi::CString::new(folder.path().join("log").to_str().unwrap()).unwrap();
    // SAFETY: both are text that lives as long as the calls.
    let (path, nowhere) = unsafe {
        (
            Text::new(path.as_ptr()),
            Text::new(c"/proc/nowhere/log".as_ptr()),
        )
    };
    at = begin;
    cuLogsDumpToFile(out(&mut at), path, 0).unwrap();
    assert_eq!(
        said(&std::fs::read_to_string(folder.path().join("log")).unwrap()),
        3
    );
    at = begin;
    assert_eq!(cuLogsDumpToFile(out(&mut at), nowhere, 0), WRONG);
    assert_eq!(at, begin);
}
