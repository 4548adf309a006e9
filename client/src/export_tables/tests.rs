//! The tables as a runtime uses them: through their slots, with a session behind them.

use std::ffi::c_void;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use cuda_abi::CUresult;
use cuda_abi::types::*;

use super::integrity::{Device, Question, answer};
use super::*;
use crate::api::*;
use crate::exports::entry_points::cuGetExportTable;
use crate::pointers::In;
use crate::testing::{context, load, out, start};

/// The table that cuGetExportTable gives.
fn table(uuid: Uuid) -> Result<*const *const c_void, CUresult> {
    let mut table = std::ptr::dangling();
    // SAFETY: the UUID outlives the call.
    let id = unsafe { In::new(&CUuuid(uuid.to_be_bytes())) };
    let given = cuGetExportTable(out(&mut table), id);
    assert_eq!(given.is_err(), table.is_null());
    given.map(|()| table.cast())
}

/// A slot's function.
macro_rules! slot {
    ($name:expr, $slot:literal, $type:ty) => {{
        let table = table(SERVED[$name as usize].0).unwrap();
        // SAFETY: the slot holds a function with this signature, and every table has 128 slots.
        unsafe { std::mem::transmute::<*const c_void, $type>(*table.add($slot)) }
    }};
}

type Put =
    unsafe extern "C" fn(CUcontext, *mut c_void, *mut c_void, Option<Destructor>) -> CUresult;
type Delete = unsafe extern "C" fn(CUcontext, *mut c_void) -> CUresult;
type Get = unsafe extern "C" fn(*mut *mut c_void, CUcontext, *mut c_void) -> CUresult;
type Destructor = unsafe extern "C" fn(CUcontext, *mut c_void, *mut c_void);

fn pointer(number: usize) -> *mut c_void {
    std::ptr::without_provenance_mut(number)
}

fn put(context: CUcontext, key: usize, value: usize, destructor: Option<Destructor>) -> CUresult {
    let put = slot!(Name::ContextLocalStorage, 0, Put);
    // SAFETY: the destructors of these tests take anything.
    unsafe { put(context, pointer(key), pointer(value), destructor) }
}

fn delete(context: CUcontext, key: usize) -> CUresult {
    let delete = slot!(Name::ContextLocalStorage, 1, Delete);
    // SAFETY: the slot takes a key of any value and does not follow it.
    unsafe { delete(context, pointer(key)) }
}

fn get(context: CUcontext, key: usize) -> Result<usize, CUresult> {
    let mut value = pointer(0);
    let get = slot!(Name::ContextLocalStorage, 2, Get);
    // SAFETY: the value is valid for a write.
    let got = unsafe { get(&raw mut value, context, pointer(key)) };
    got.ok().map(|()| value.addr())
}

#[test]
fn tables_are_found_by_the_bytes_of_their_uuid() {
    let interface = [
        0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a, 0x89, 0x87, 0xd9, 0x39, 0x12, 0xfd, 0x9d,
        0xf9,
    ];
    assert_eq!(super::get(&interface), Some(CUDART_INTERFACE.address()));
    for (uuid, served) in &SERVED {
        assert_eq!(table(*uuid), Ok(served.address().cast()));
    }
    for (uuid, _) in &REFUSED {
        assert_eq!(table(*uuid), Err(CUresult::ERROR_INVALID_VALUE));
    }
    assert_eq!(table(0), Err(CUresult::ERROR_INVALID_VALUE));
}

#[test]
fn tables_stand_in_the_order_of_their_names_and_say_their_true_sizes() {
    let slots = SERVED.map(|(_, table)| table.get(0).addr() / 8);
    let storage = (storage::put as *const c_void).addr() / 8;
    // The sizes that driver 580 has.
    assert_eq!(slots, [13, 7, 3, storage, 3, 15, 3, 93, 17, 99, 7]);
    for (at, name) in Name::ALL.into_iter().enumerate() {
        assert_eq!(name as usize, at);
    }
}

#[test]
fn the_primary_context_has_its_handle_before_anybody_retains_it() {
    start();
    let primary = slot!(
        Name::CudartInterface,
        2,
        unsafe extern "C" fn(*mut CUcontext, CUdevice) -> CUresult
    );
    let (mut early, mut retained) = (CUcontext::NULL, CUcontext::NULL);
    // SAFETY: the handle is valid for a write.
    unsafe {
        assert_eq!(primary(&raw mut early, 0), CUresult::SUCCESS);
        assert_eq!(
            primary(&raw mut retained, 2),
            CUresult::ERROR_INVALID_DEVICE
        );
    }
    cuCtxSetCurrent(early).unwrap();
    cuDevicePrimaryCtxRetain(out(&mut retained), 0).unwrap();
    assert_eq!(early, retained);
    let current = slot!(
        Name::ToolsTls,
        2,
        unsafe extern "C" fn(*mut CUcontext) -> CUresult
    );
    let mut seen = CUcontext::NULL;
    // SAFETY: the handle is valid for a write.
    assert_eq!(unsafe { current(&raw mut seen) }, CUresult::SUCCESS);
    assert_eq!(seen, early);
    cuCtxSetCurrent(CUcontext::NULL).unwrap();
}

#[test]
fn the_self_test_agrees_with_what_the_public_interface_says() {
    start();
    let check = slot!(
        Name::IntegrityCheck,
        1,
        unsafe extern "C" fn(u32, u64, *mut [u8; 16]) -> CUresult
    );
    let mut given = [0; 16];
    // SAFETY: the digest is valid for a write.
    let checked = unsafe { check(13002, 1_700_000_000, &raw mut given) };
    assert_eq!(checked, CUresult::SUCCESS);
    // As a runtime does it.
    let mut driver_version = 0;
    cuDriverGetVersion(out(&mut driver_version)).unwrap();
    let devices = (0..2).map(|device| {
        let mut uuid = CUuuid([0; 16]);
        cuDeviceGetUuid(out(&mut uuid), device).unwrap();
        let attribute = |number| {
            let mut value = -1;
            cuDeviceGetAttribute(out(&mut value), CUdevice_attribute(number), device).unwrap();
            value
        };
        Device {
            uuid: uuid.0,
            pci_domain: attribute(50),
            pci_bus: attribute(33),
            pci_device: attribute(34),
        }
    });
    let integrity_check = table(SERVED[Name::IntegrityCheck as usize].0).unwrap();
    let question = Question {
        driver_version,
        version: 13002,
        pid: std::process::id(),
        thread: entries::thread(),
        cudart_interface: table(SERVED[0].0).unwrap().addr() as u64,
        integrity_check: integrity_check.addr() as u64,
        function: (check as *const c_void).addr() as u64,
        unix_seconds: 1_700_000_000,
    };
    assert_eq!(given, answer(&question, devices));
}

#[test]
fn stored_values_belong_to_a_context_and_a_key() {
    let first = context(0);
    let second = context(0);
    assert_eq!(get(first, 16), Err(CUresult::ERROR_INVALID_HANDLE));
    assert_eq!(put(first, 16, 1, None), CUresult::SUCCESS);
    assert_eq!(put(CUcontext::NULL, 16, 2, None), CUresult::SUCCESS);
    assert_eq!(put(second, 32, 3, None), CUresult::SUCCESS);
    assert_eq!(
        (get(first, 16), get(second, 16), get(second, 32)),
        (Ok(1), Ok(2), Ok(3))
    );
    assert_eq!(
        get(CUcontext::NULL, 16),
        Ok(2),
        "null is the current context"
    );
    assert_eq!(put(second, 16, 4, None), CUresult::SUCCESS);
    assert_eq!(get(CUcontext::NULL, 16), Ok(4));
    assert_eq!(delete(CUcontext::NULL, 16), CUresult::SUCCESS);
    assert_eq!(delete(second, 16), CUresult::ERROR_INVALID_HANDLE);
    assert_eq!(get(second, 16), Err(CUresult::ERROR_INVALID_HANDLE));
    assert_eq!(get(first, 16), Ok(1));
    let elsewhere = std::thread::spawn(|| {
        assert_eq!(
            put(CUcontext::NULL, 16, 5, None),
            CUresult::ERROR_INVALID_CONTEXT
        );
        get(CUcontext::NULL, 16)
    });
    assert_eq!(
        elsewhere.join().unwrap(),
        Err(CUresult::ERROR_INVALID_CONTEXT)
    );
    cuCtxDestroy(second).unwrap();
    cuCtxDestroy(first).unwrap();
    assert_eq!(get(first, 16), Err(CUresult::ERROR_INVALID_CONTEXT));
    assert_eq!(put(first, 16, 1, None), CUresult::ERROR_INVALID_CONTEXT);
}

#[test]
fn more_values_than_the_cache_holds_are_all_found() {
    let mine = context(0);
    for key in 1..5000 {
        assert_eq!(put(mine, key * 64, key, None), CUresult::SUCCESS);
    }
    for key in 1..5000 {
        assert_eq!(get(mine, key * 64), Ok(key));
    }
    cuCtxDestroy(mine).unwrap();
    for key in 1..5000 {
        assert_eq!(get(mine, key * 64), Err(CUresult::ERROR_INVALID_CONTEXT));
    }
}

/// What destructors were told, of contexts that only the tests below end.
static DESTROYED: Mutex<Vec<(u64, usize, usize)>> = Mutex::new(Vec::new());

extern "C" fn note(context: CUcontext, key: *mut c_void, value: *mut c_void) {
    // A runtime may call anything here, storage and contexts among it.
    assert!(get(context, key.addr()).is_err());
    assert!(put(CUcontext::NULL, 16, 1, None) != CUresult::ERROR_UNKNOWN);
    let mut other = CUcontext::NULL;
    cuCtxCreate(out(&mut other), 0, 0).unwrap();
    cuCtxDestroy(other).unwrap();
    let destroyed = (context.bits(), key.addr(), value.addr());
    DESTROYED.lock().unwrap().push(destroyed);
}

fn destroyed(context: CUcontext) -> Vec<(usize, usize)> {
    let all = DESTROYED.lock().unwrap();
    let of_context = all.iter().filter(|(bits, ..)| *bits == context.bits());
    of_context.map(|&(_, key, value)| (key, value)).collect()
}

#[test]
fn destructors_run_once_when_their_context_is_destroyed() {
    let mine = context(1);
    for (key, destructor) in [
        (16, Some(note as Destructor)),
        (32, None),
        (48, Some(note)),
        (64, Some(note)),
    ] {
        assert_eq!(put(mine, key, key + 1, destructor), CUresult::SUCCESS);
    }
    assert_eq!(delete(mine, 48), CUresult::SUCCESS, "and this one's never");
    assert_eq!(destroyed(mine), []);
    cuCtxDestroy(mine).unwrap();
    assert_eq!(destroyed(mine), [(16, 17), (64, 65)]);
    assert_eq!(cuCtxDestroy(mine), Err(CUresult::ERROR_INVALID_CONTEXT));
    assert_eq!(destroyed(mine).len(), 2);
}

#[test]
fn functions_of_a_module_are_shown_one_by_one() {
    static SEEN: AtomicU32 = AtomicU32::new(0);
    extern "C" fn see(user: *mut c_void, function: CUfunction) {
        assert_eq!(user.addr(), 77);
        let mut threads = 0;
        let attribute = CUfunction_attribute::MAX_THREADS_PER_BLOCK;
        cuFuncGetAttribute(out(&mut threads), attribute, function).unwrap();
        assert_eq!(threads, 512);
        SEEN.fetch_add(1, Ordering::Relaxed);
    }
    type ForEach = unsafe extern "C" fn(CUcontext, CUmodule, *const c_void, *mut c_void) -> i32;
    let mine = context(0);
    let module = load("kernel one 8\nkernel two 4 4\nvariable three 4\0");
    let for_each = slot!(Name::T_6E163FBE, 7, ForEach);
    let see = see as *const c_void;
    // SAFETY: the callback takes these; null is none.
    unsafe {
        assert_eq!(for_each(mine, module, see, pointer(77)), 1);
        assert_eq!(SEEN.load(Ordering::Relaxed), 2);
        assert_eq!(for_each(mine, module, std::ptr::null(), pointer(77)), 0);
        assert_eq!(for_each(mine, CUmodule::from_bits(7), see, pointer(77)), 0);
    }
    cuCtxDestroy(mine).unwrap();
}

#[test]
fn images_load_into_the_current_context_by_slot() {
    type Load = unsafe extern "C" fn(*mut CUmodule, *const c_void, u64, u64, u64) -> CUresult;
    let mine = context(0);
    let mut module = CUmodule::NULL;
    let image = c"kernel axpy 8".as_ptr().cast();
    let load = slot!(Name::CudartInterface, 6, Load);
    // SAFETY: the module is valid for a write, the image is whole.
    let loaded = unsafe { load(&raw mut module, image, 0, 0, 0) };
    assert_eq!(loaded, CUresult::SUCCESS);
    crate::testing::function(module, "axpy\0");
    cuCtxDestroy(mine).unwrap();
    // SAFETY: the module is valid for a write, the image is whole.
    let loaded = unsafe { load(&raw mut module, image, 0, 0, 0) };
    assert_eq!(loaded, CUresult::ERROR_INVALID_CONTEXT);
}

#[test]
fn contexts_have_numbers_of_their_own() {
    type Id = unsafe extern "C" fn(CUcontext, *mut u64) -> CUresult;
    let (first, second) = (context(0), context(0));
    let number = |context| {
        let mut number = u64::MAX;
        let id = slot!(Name::T_21318C60, 4, Id);
        // SAFETY: the number is valid for a write.
        let told = unsafe { id(context, &raw mut number) };
        told.ok().map(|()| number)
    };
    assert_eq!(number(CUcontext::NULL), Ok(0));
    // Streams are told apart by objects, whose numbers are those of the public function.
    type Object = unsafe extern "C" fn(CUcontext, CUstream, *mut u64) -> CUresult;
    type StreamId = unsafe extern "C" fn(CUcontext, u64, *mut u64) -> CUresult;
    let mine = {
        let mut stream = CUstream::NULL;
        cuStreamCreate(out(&mut stream), 0).unwrap();
        stream
    };
    let stream_number = |context, stream| {
        let (mut object, mut number) = (0, 0);
        let object_of = slot!(Name::T_21318C60, 51, Object);
        let id_of = slot!(Name::T_21318C60, 39, StreamId);
        // SAFETY: both numbers are valid for a write.
        unsafe {
            object_of(context, stream, &raw mut object).ok()?;
            id_of(context, object, &raw mut number).ok()?;
        }
        Ok::<_, CUresult>(number)
    };
    for stream in [CUstream::NULL, mine] {
        let mut public = 0;
        cuStreamGetId(stream, out(&mut public)).unwrap();
        assert_eq!(stream_number(second, stream), Ok(public));
    }
    assert_ne!(
        stream_number(second, mine),
        stream_number(second, CUstream::NULL)
    );
    assert_eq!(
        stream_number(first, mine),
        Err(CUresult::ERROR_INVALID_HANDLE)
    );
    cuStreamDestroy(mine).unwrap();
    assert_ne!(number(first), Ok(0));
    assert_ne!(number(first), number(second));
    assert_eq!(number(first), number(first));
    cuCtxDestroy(second).unwrap();
    assert!(number(second).is_err());
    cuCtxDestroy(first).unwrap();
}

/// What the compile cache's slots are to NVRTC.
mod compile_cache {
    use super::*;
    use std::ffi::{CStr, c_char};

    type Open = unsafe extern "C" fn(
        *mut *mut c_void,
        u32,
        *const c_void,
        usize,
        *const c_char,
        *const c_char,
        *const c_char,
        u32,
        u32,
    ) -> CUresult;
    type Query = unsafe extern "C" fn(*mut c_void, u32, *mut *mut c_void, *mut u32) -> CUresult;
    type Store = unsafe extern "C" fn(*mut c_void, u32, *const c_void, u32) -> CUresult;
    type Done = unsafe extern "C" fn(*mut c_void) -> CUresult;

    fn open(kind: u32, data: &[u8], options: &CStr, architecture: u32) -> *mut c_void {
        let mut entry = std::ptr::null_mut();
        let open = slot!(Name::CompileCache, 1, Open);
        let (flavour, build) = (c"HOST64".as_ptr(), c"Aug 20 2025".as_ptr());
        let (bytes, length) = (data.as_ptr().cast(), data.len());
        let options = options.as_ptr();
        // SAFETY: the entry is valid for a write, the data and the texts are whole.
        let opened = unsafe {
            let entry = &raw mut entry;
            open(
                entry,
                kind,
                bytes,
                length,
                options,
                flavour,
                build,
                architecture,
                0,
            )
        };
        assert_eq!(opened, CUresult::SUCCESS);
        entry
    }

    fn close(entry: *mut c_void) {
        let close = slot!(Name::CompileCache, 2, Done);
        // SAFETY: the entry is open, and not used again.
        assert_eq!(unsafe { close(entry) }, CUresult::SUCCESS);
    }

    fn store(entry: *mut c_void, content: &[u8]) -> CUresult {
        let store = slot!(Name::CompileCache, 4, Store);
        // SAFETY: the entry is open, the content is whole.
        unsafe { store(entry, 0, content.as_ptr().cast(), content.len() as u32) }
    }

    fn query(entry: *mut c_void) -> Result<Vec<u8>, CUresult> {
        let (mut data, mut bytes) = (std::ptr::null_mut(), 0);
        let query = slot!(Name::CompileCache, 3, Query);
        let free = slot!(Name::CompileCache, 6, Done);
        // SAFETY: the entry is open, both results are valid for writes; what is given has that many
        // bytes and is freed once.
        unsafe {
            query(entry, 0, &raw mut data, &raw mut bytes).ok()?;
            let content = std::slice::from_raw_parts(data.cast(), bytes as usize).to_vec();
            assert_eq!(free(data), CUresult::SUCCESS);
            Ok(content)
        }
    }

    #[test]
    fn what_was_stored_is_found_under_the_same_name_alone() {
        let entry = open(2, b"a program", c"-O3", 90);
        assert_eq!(query(entry), Err(CUresult::ERROR_NOT_FOUND));
        assert_eq!(store(entry, b"its PTX"), CUresult::SUCCESS);
        assert_eq!(query(entry).unwrap(), b"its PTX");
        close(entry);
        let again = open(2, b"a program", c"-O3", 90);
        assert_eq!(query(again).unwrap(), b"its PTX");
        assert_eq!(store(again, b"another"), CUresult::SUCCESS);
        assert_eq!(query(again).unwrap(), b"another");
        close(again);
        for other in [
            open(3, b"a program", c"-O3", 90),
            open(2, b"a program!", c"-O3", 90),
            open(2, b"a program", c"-O2", 90),
            open(2, b"a program", c"-O3", 80),
        ] {
            assert_eq!(query(other), Err(CUresult::ERROR_NOT_FOUND));
            close(other);
        }
    }

    /// The machine code of a program, after its PTX has been stored, as NVRTC does it.
    fn machine_code_after(ptx: &[u8], options: &CStr) -> *mut c_void {
        let entry = open(2, b"another program", options, 90);
        assert_eq!(store(entry, ptx), CUresult::SUCCESS);
        close(entry);
        open(1, b"another program", c"-arch=sm_90", 90)
    }

    #[test]
    fn machine_code_is_found_for_the_same_ptx_alone() {
        let plain = machine_code_after(b"PTX", c"-ftz=0");
        assert_eq!(store(plain, b"code"), CUresult::SUCCESS);
        close(plain);
        // Its name is the same, but it is made of other PTX.
        let flushed = machine_code_after(b"PTX.ftz", c"-ftz=1");
        assert_eq!(query(flushed), Err(CUresult::ERROR_NOT_FOUND));
        close(flushed);
        let again = machine_code_after(b"PTX", c"-ftz=0");
        assert_eq!(query(again).unwrap(), b"code");
        close(again);
        // Found is as good as stored.
        let ptx = open(2, b"another program", c"-ftz=0", 90);
        assert_eq!(query(ptx).unwrap(), b"PTX");
        close(ptx);
        let found = open(1, b"another program", c"-arch=sm_90", 90);
        assert_eq!(query(found).unwrap(), b"code");
        close(found);
    }

    #[test]
    fn machine_code_whose_ptx_is_not_known_is_not_kept() {
        let unknown = || open(1, b"a third program", c"-arch=sm_90", 90);
        let entry = unknown();
        assert_eq!(store(entry, b"code"), CUresult::SUCCESS);
        assert_eq!(query(entry), Err(CUresult::ERROR_NOT_FOUND));
        close(entry);
        // Nor is that of another program than the one whose PTX was the last.
        let ptx = open(2, b"not the third program", c"-ftz=0", 90);
        assert_eq!(store(ptx, b"PTX"), CUresult::SUCCESS);
        close(ptx);
        let entry = unknown();
        assert_eq!(store(entry, b"code"), CUresult::SUCCESS);
        assert_eq!(query(entry), Err(CUresult::ERROR_NOT_FOUND));
        close(entry);
    }

    #[test]
    fn null_empty_and_unknown_parameters_are_refused() {
        let refused = CUresult::ERROR_INVALID_VALUE;
        let open_slot = slot!(Name::CompileCache, 1, Open);
        let query_slot = slot!(Name::CompileCache, 3, Query);
        let store_slot = slot!(Name::CompileCache, 4, Store);
        let close_slot = slot!(Name::CompileCache, 2, Done);
        let free_slot = slot!(Name::CompileCache, 6, Done);
        let none = std::ptr::null_mut();
        let (mut entry, mut data, mut bytes) = (none, none, 0);
        let text = std::ptr::null();
        let mine = open(2, b"", c"", 0);
        // SAFETY: null is allowed everywhere, the rest is valid for writes.
        unsafe {
            let (entry, data, bytes) = (&raw mut entry, &raw mut data, &raw mut bytes);
            let opened = open_slot(std::ptr::null_mut(), 2, none, 0, text, text, text, 90, 0);
            assert_eq!(opened, refused);
            let opened = open_slot(entry, 2, none, 1, text, text, text, 90, 0);
            assert_eq!(opened, refused);
            let opened = open_slot(entry, 2, none, 0, text, text, text, 90, 1);
            assert_eq!(opened, CUresult::ERROR_NOT_SUPPORTED);
            assert!(entry.read().is_null());
            assert_eq!(query_slot(none, 0, data, bytes), refused);
            assert_eq!(query_slot(mine, 0, std::ptr::null_mut(), bytes), refused);
            assert_eq!(query_slot(mine, 0, data, std::ptr::null_mut()), refused);
            let queried = query_slot(mine, 1, data, bytes);
            assert_eq!(queried, CUresult::ERROR_NOT_SUPPORTED);
            assert_eq!(store_slot(none, 0, text.cast(), 0), refused);
            assert_eq!(store_slot(mine, 0, text.cast(), 1), refused);
            assert_eq!(store_slot(mine, 0, text.cast(), 0), refused);
            assert_eq!(close_slot(none), refused);
            assert_eq!(free_slot(none), CUresult::SUCCESS);
        }
        assert_eq!(query(mine), Err(CUresult::ERROR_NOT_FOUND));
        close(mine);
    }
}
