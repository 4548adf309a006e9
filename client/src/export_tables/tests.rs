//! The tables as a runtime uses them: through their slots, with a session behind them.

use std::ffi::c_void;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use cuda_abi::CUresult;
use cuda_abi::types::*;

use super::integrity::{Device, Question, answer};
use super::*;
use crate::api::*;
use crate::params::In;
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
    // SAFETY: takes any numbers.
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
    assert_eq!(slots, [13, 7, 3, storage, 3, 15, 3, 93, 17, 99]);
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
    // SAFETY: as above.
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
