//! What the loader is given to audit programs with, where the device is the software GPU (LD_AUDIT, set by
//! `openmps run`): NVRTC makes PTX where a program has asked it for machine code, and nvJitLink (`jit_link`) too.
//!
//! A program that asks NVRTC for code of the device's own architecture (`sm_121`) gets machine code, which the software
//! GPU cannot run. It looks NVRTC's functions up by dlsym, in a library that it opens by its whole path: no path of
//! libraries and no preloaded function is asked then, but the loader tells its auditors of each symbol that is bound, and
//! they may answer another address (rtld-audit(7)). Here that is: nvrtcCompileProgram compiles for the virtual architecture
//! of the same number, and nvrtcGetCUBIN gives what nvrtcGetPTX would. A driver takes either by the same call.
//!
//! Owns which of NVRTC's functions are bound to what. Called by the loader, then by programs. Must not know CUDA's driver,
//! nor which device there is: whoever sets the variable knows. The loader gives this library a C library of its own.

mod audit;
mod jit_link;
mod options;
mod symbols;

use std::collections::HashSet;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, PoisonError};

use symbols::LinkMap;

/// How many copies of NVRTC may be loaded at once (releases side by side). What is beyond works as without us.
const LIBRARIES: usize = 8;

/// NVRTC_ERROR_INTERNAL_ERROR
const INTERNAL_ERROR: c_int = 11;

/// A copy of NVRTC.
struct Library {
    /// The loader's own record of it; null while no library has this place.
    record: AtomicPtr<LinkMap>,
    /// The functions that programs are given ours for, once they were bound.
    compile: AtomicPtr<c_void>,
    destroy: AtomicPtr<c_void>,
    code: AtomicPtr<c_void>,
    code_size: AtomicPtr<c_void>,
    /// Programs whose machine code is PTX, by their handles.
    turned: Mutex<Option<HashSet<usize>>>,
}

static LOADED: [Library; LIBRARIES] = [const { Library::new() }; LIBRARIES];

type Compile = unsafe extern "C" fn(*mut c_void, c_int, *const *const c_char) -> c_int;
type Destroy = unsafe extern "C" fn(*mut *mut c_void) -> c_int;
type GetText = unsafe extern "C" fn(*mut c_void, *mut c_char) -> c_int;
type GetSize = unsafe extern "C" fn(*mut c_void, *mut usize) -> c_int;

impl Library {
    const fn new() -> Self {
        Self {
            record: AtomicPtr::new(null_mut()),
            compile: AtomicPtr::new(null_mut()),
            destroy: AtomicPtr::new(null_mut()),
            code: AtomicPtr::new(null_mut()),
            code_size: AtomicPtr::new(null_mut()),
            turned: Mutex::new(None),
        }
    }

    fn with_turned<R>(&self, then: impl FnOnce(&mut HashSet<usize>) -> R) -> R {
        let mut turned = self.turned.lock().unwrap_or_else(PoisonError::into_inner);
        then(turned.get_or_insert_default())
    }

    fn is_turned(&self, program: *mut c_void) -> bool {
        self.with_turned(|turned| turned.contains(&program.addr()))
    }

    /// A function of this copy by its name; null if it has none.
    fn function(&self, name: &CStr) -> *mut c_void {
        // SAFETY: the record is of a library that is loaded, since one of its functions is being called.
        unsafe { symbols::find(self.record.load(Ordering::Acquire), name) }
    }

    /// Ours for one of NVRTC's functions, whose address is kept; that address where we have none.
    fn bind<const AT: usize>(&self, name: &[u8], address: *mut c_void) -> *mut c_void {
        let (place, ours) = match name {
            b"nvrtcCompileProgram" => (&self.compile, compile::<AT> as *mut c_void),
            b"nvrtcDestroyProgram" => (&self.destroy, destroy::<AT> as *mut c_void),
            b"nvrtcGetCUBIN" => (&self.code, code::<AT> as *mut c_void),
            b"nvrtcGetCUBINSize" => (&self.code_size, code_size::<AT> as *mut c_void),
            _ => return address,
        };
        place.store(address, Ordering::Release);
        ours
    }
}

/// nvrtcCompileProgram.
///
/// # Safety
/// As NVIDIA's: a program, and so many options.
unsafe extern "C" fn compile<const AT: usize>(
    program: *mut c_void,
    count: c_int,
    options: *const *const c_char,
) -> c_int {
    let library = &LOADED[AT];
    // SAFETY: `bind` has put the function's address there before it gave ours away.
    let theirs: Compile = unsafe { function_at(&library.compile) };
    let given: &[*const c_char] = match usize::try_from(count) {
        // SAFETY: so many options, as the caller promises.
        Ok(count) if count > 0 && !options.is_null() => unsafe {
            std::slice::from_raw_parts(options, count)
        },
        _ => &[],
    };
    let words: Option<Vec<&CStr>> = given
        .iter()
        // SAFETY: not null, so text that ends in NUL, as the caller promises.
        .map(|word| (!word.is_null()).then(|| unsafe { CStr::from_ptr(*word) }))
        .collect();
    let turned: Option<Vec<CString>> = words.as_deref().and_then(options::for_ptx);
    library.with_turned(|programs| match &turned {
        Some(_) => programs.insert(program.addr()),
        None => programs.remove(&program.addr()),
    });
    let Some(turned) = turned else {
        // SAFETY: the caller's own arguments.
        return unsafe { theirs(program, count, options) };
    };
    let words: Vec<*const c_char> = turned.iter().map(|word| word.as_ptr()).collect();
    // SAFETY: the caller's program, with as many options, which live until the call has ended.
    unsafe { theirs(program, count, words.as_ptr()) }
}

/// nvrtcDestroyProgram.
///
/// # Safety
/// As NVIDIA's: a place of a program.
unsafe extern "C" fn destroy<const AT: usize>(program: *mut *mut c_void) -> c_int {
    let library = &LOADED[AT];
    if !program.is_null() {
        // SAFETY: not null, so valid for reads, as the caller promises.
        let handle = unsafe { program.read() };
        library.with_turned(|programs| programs.remove(&handle.addr()));
    }
    // SAFETY: `bind` has put the function's address there; the argument is the caller's own.
    unsafe { function_at::<Destroy>(&library.destroy)(program) }
}

/// nvrtcGetCUBIN: the PTX, where the program was compiled to that in machine code's place.
///
/// # Safety
/// As NVIDIA's: a program, and as many bytes as nvrtcGetCUBINSize has said.
unsafe extern "C" fn code<const AT: usize>(program: *mut c_void, text: *mut c_char) -> c_int {
    let library = &LOADED[AT];
    if !library.is_turned(program) {
        // SAFETY: `bind` has put the function's address there; the arguments are the caller's own.
        return unsafe { function_at::<GetText>(&library.code)(program, text) };
    }
    let theirs = library.function(c"nvrtcGetPTX");
    if theirs.is_null() {
        return INTERNAL_ERROR;
    }
    // SAFETY: NVRTC's function of this name has this type; the buffer has the size that `code_size` told.
    unsafe { std::mem::transmute::<*mut c_void, GetText>(theirs)(program, text) }
}

/// nvrtcGetCUBINSize.
///
/// # Safety
/// As NVIDIA's: a program, and a place for the size.
unsafe extern "C" fn code_size<const AT: usize>(program: *mut c_void, size: *mut usize) -> c_int {
    let library = &LOADED[AT];
    if !library.is_turned(program) {
        // SAFETY: `bind` has put the function's address there; the arguments are the caller's own.
        return unsafe { function_at::<GetSize>(&library.code_size)(program, size) };
    }
    let theirs = library.function(c"nvrtcGetPTXSize");
    if theirs.is_null() {
        return INTERNAL_ERROR;
    }
    // SAFETY: NVRTC's function of this name has this type; the arguments are the caller's own.
    unsafe { std::mem::transmute::<*mut c_void, GetSize>(theirs)(program, size) }
}

/// The function whose address is kept in a place.
///
/// # Safety
/// There is one, and it has the type `F`, a pointer to a function.
unsafe fn function_at<F: Copy>(place: &AtomicPtr<c_void>) -> F {
    let address = place.load(Ordering::Acquire);
    // SAFETY: a pointer to a function of this type, as the caller promises; both are as large as a pointer.
    unsafe { std::mem::transmute_copy::<*mut c_void, F>(&address) }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    /// The last place, which no other test takes.
    const AT: usize = LIBRARIES - 1;

    /// How many options named a virtual architecture.
    static VIRTUAL: AtomicUsize = AtomicUsize::new(0);

    unsafe extern "C" fn their_compile(
        _program: *mut c_void,
        count: c_int,
        options: *const *const c_char,
    ) -> c_int {
        for number in 0..count as usize {
            // SAFETY: so many options, each of which ends in NUL.
            let option = unsafe { CStr::from_ptr(*options.add(number)) };
            if option == c"-arch=compute_121" {
                VIRTUAL.fetch_add(1, Ordering::Relaxed);
            }
        }
        0
    }
    unsafe extern "C" fn their_code_size(_program: *mut c_void, size: *mut usize) -> c_int {
        // SAFETY: the test's own place.
        unsafe { size.write(77) };
        0
    }
    unsafe extern "C" fn their_destroy(_program: *mut *mut c_void) -> c_int {
        0
    }

    #[test]
    fn what_asked_for_machine_code_is_known_until_it_is_destroyed() {
        let library = &LOADED[AT];
        for (name, theirs) in [
            (&b"nvrtcCompileProgram"[..], their_compile as *mut c_void),
            (b"nvrtcGetCUBINSize", their_code_size as *mut c_void),
            (b"nvrtcDestroyProgram", their_destroy as *mut c_void),
        ] {
            assert_ne!(library.bind::<AT>(name, theirs), theirs);
        }
        let mut program = std::ptr::without_provenance_mut::<c_void>(32);
        let real = [c"-DN=1".as_ptr(), c"-arch=sm_121".as_ptr()];
        let virtual_one = [c"-arch=compute_121".as_ptr()];
        let mut size = 0;
        // SAFETY: arguments as a program gives them.
        unsafe {
            assert_eq!(compile::<AT>(program, 2, real.as_ptr()), 0);
            assert!(library.is_turned(program));
            assert_eq!(VIRTUAL.load(Ordering::Relaxed), 1);
            // Compiled again as PTX: its machine code is NVRTC's to give.
            assert_eq!(compile::<AT>(program, 1, virtual_one.as_ptr()), 0);
            assert_eq!(code_size::<AT>(program, &raw mut size), 0);
            assert_eq!((size, library.is_turned(program)), (77, false));
            assert_eq!(compile::<AT>(program, 2, real.as_ptr()), 0);
            assert_eq!(destroy::<AT>(&raw mut program), 0);
        }
        // Another program may have its handle.
        assert!(!library.is_turned(program));
    }
}
