//! Every way to device memory, and the quota that all of them are held to.

use tests::cuda::{Code, Driver, Handle};

use crate::{Array2d, Array3d, Functions, MIB, NULL, OUT_OF_MEMORY, PROPERTIES, ok};

/// A kernel that allocates.
const MALLOC: &str = "
    .version 7.5
    .target sm_75
    .address_size 64
    .extern .func (.param .b64 address) malloc (.param .b64 bytes);
    .visible .entry allocate(.param .u64 out)
    {
        .reg .b64 %d<3>;
        .param .b64 bytes;
        .param .b64 address;
        mov.u64 %d1, 1024;
        st.param.b64 [bytes], %d1;
        call (address), malloc, (bytes);
        ld.param.b64 %d1, [address];
        ld.param.u64 %d2, [out];
        st.global.u64 [%d2], %d1;
        ret;
    }
";

/// A way to take memory and to give it back.
type Path<'a> = (
    &'static str,
    &'a dyn Fn(usize) -> Result<u64, Code>,
    &'a dyn Fn(u64) -> Result<(), Code>,
);

/// Every way to device memory obeys the quota, which is 64 MiB, alone and after each other way.
pub fn quota() -> Result<(), Code> {
    let driver = Driver::ready();
    let more = Functions::open();
    assert_eq!(driver.memory()?.1, 64 * MIB, "the quota is what is seen");
    let take = |alloc: &dyn Fn(*mut u64) -> Code| {
        let mut address = 0;
        ok(alloc(&raw mut address)).map(|()| address)
    };
    // SAFETY: what is released is this program's own, and nothing uses it any more.
    let release = |address| unsafe { driver.mem_free(address) };
    let plain = |bytes| driver.alloc(bytes);
    let pitch = |bytes: usize| {
        let (mut address, mut width) = (0, 0);
        // SAFETY: the out pointer is a local's; what is pointed to lives for the call.
        let code =
            unsafe { (more.pitch)(&raw mut address, &raw mut width, 1 << 16, bytes >> 16, 4) };
        ok(code).map(|()| address)
    };
    // SAFETY: the out pointer is a local's; what is pointed to lives for the call.
    let managed = |bytes| take(&|out| unsafe { (more.managed)(out, bytes, 1) });
    // SAFETY: the out pointer is a local's; what is pointed to lives for the call.
    let pool = |bytes| take(&|out| unsafe { (more.pool_alloc)(out, bytes, NULL) });
    // SAFETY: what is released is this program's own, and nothing uses it any more.
    let pool_free = |address| unsafe { ok((more.pool_free)(address, NULL)) };
    let properties = PROPERTIES.as_ptr();
    // SAFETY: the out pointer is a local's; what is pointed to lives for the call.
    let physical = |bytes| take(&|out| unsafe { (more.create)(out, bytes, properties, 0) });
    // SAFETY: what is released is this program's own, and nothing uses it any more.
    let physical_free = |handle| unsafe { ok((more.release)(handle)) };
    let module = |bytes: usize| {
        let text = format!(
            ".version 7.5\n.target sm_75\n.address_size 64\n.visible .global .align 8 .b8 room[{bytes}];\n"
        );
        driver.module(&text).map(|module| module as u64)
    };
    let managed_module = |bytes: usize| {
        let text = format!(
            ".version 7.5\n.target sm_75\n.address_size 64\n\
             .visible .global .attribute(.managed) .align 8 .b8 room[{bytes}];\n"
        );
        driver.module(&text).map(|module| module as u64)
    };
    // SAFETY: what is released is this program's own, and nothing uses it any more.
    let unload = |module: u64| unsafe { driver.module_unload(module as Handle) };
    let own_pool = {
        // CUmemPoolProps: pinned memory of device 0.
        let properties = [1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        // SAFETY: the out pointer is a local's; what is pointed to lives for the call.
        take(&|out| unsafe { (more.pool_create)(out, &raw const properties) })?
    };
    let from_pool =
        // SAFETY: the out pointer is a local's; what is pointed to lives for the call.
        |bytes| take(&|out| unsafe { (more.alloc_from_pool)(out, bytes, own_pool, NULL) });
    let array = |bytes: usize| {
        let (width, height) = (1024, bytes >> 12);
        let made = Array2d {
            width,
            height,
            format: 1,
            channels: 4,
        };
        // SAFETY: the out pointer is a local's; what is pointed to lives for the call.
        take(&|out| unsafe { (more.array_create)(out, &raw const made) })
    };
    let volume = |bytes: usize| Array3d {
        width: 128,
        height: 128,
        depth: bytes >> 16,
        format: 1,
        channels: 4,
        flags: 0,
    };
    let array_3d = |bytes| {
        let made = volume(bytes);
        // SAFETY: the out pointer is a local's; what is pointed to lives for the call.
        take(&|out| unsafe { (more.array_create_3d)(out, &raw const made) })
    };
    // SAFETY: what is released is this program's own, and nothing uses it any more.
    let array_free = |array| unsafe { ok((more.array_destroy)(array)) };
    let mipmapped = |bytes| {
        let made = volume(bytes);
        // SAFETY: the out pointer is a local's; what is pointed to lives for the call.
        take(&|out| unsafe { (more.mipmapped_create)(out, &raw const made, 1) })
    };
    // SAFETY: what is released is this program's own, and nothing uses it any more.
    let mipmapped_free = |array| unsafe { ok((more.mipmapped_destroy)(array)) };
    let stream = driver.stream(1)?;
    let graph = |bytes| {
        let (mut graph, mut exec) = (NULL, NULL);
        // SAFETY: the out pointers are locals'; the stream is this program's own.
        let address = unsafe {
            driver.stream_begin_capture(stream, 0)?;
            let address = take(&|out| (more.pool_alloc)(out, bytes, stream));
            driver.stream_end_capture(stream, &raw mut graph)?;
            let address = address?;
            let made = driver.graph_instantiate(&raw mut exec, graph, 0);
            let launched = made.and_then(|()| driver.graph_launch(exec, stream));
            if made.is_ok() {
                ok((more.exec_destroy)(exec))?;
            }
            ok((more.graph_destroy)(graph))?;
            launched.map(|()| address)
        };
        driver.synchronize()?;
        address
    };
    let library = |bytes: usize| {
        let text = format!(
            ".version 7.5\n.target sm_75\n.address_size 64\n.visible .global .align 8 .b8 room[{bytes}];\n\0"
        );
        let null = std::ptr::null();
        let library = take(&|out| {
            // SAFETY: the out pointer is a local's; the text is a C string; there are no options.
            unsafe { (more.library_load)(out, text.as_ptr().cast(), null, null, 0, null, null, 0) }
        })?;
        // SAFETY: the out pointer is a local's; what is pointed to lives for the call.
        let module = take(&|out| unsafe { (more.library_module)(out, library) });
        // SAFETY: what is released is this program's own, and nothing uses it any more.
        module.map(|_| library).inspect_err(|_| unsafe {
            (more.library_unload)(library);
        })
    };
    // SAFETY: what is released is this program's own, and nothing uses it any more.
    let library_free = |library| unsafe { ok((more.library_unload)(library)) };
    let paths: [Path<'_>; 13] = [
        ("plain", &plain, &release),
        ("pitch", &pitch, &release),
        ("managed", &managed, &release),
        ("pool", &pool, &pool_free),
        ("physical", &physical, &physical_free),
        ("module", &module, &unload),
        ("managed module", &managed_module, &unload),
        ("own pool", &from_pool, &pool_free),
        ("array", &array, &array_free),
        ("array of three dimensions", &array_3d, &array_free),
        ("mipmapped array", &mipmapped, &mipmapped_free),
        ("graph", &graph, &release),
        ("library", &library, &library_free),
    ];
    for (name, take, give_back) in paths {
        let first = take(40 * MIB).unwrap_or_else(|code| panic!("{name}: {code}"));
        for (other, take, _) in paths {
            assert_eq!(take(32 * MIB), Err(OUT_OF_MEMORY), "{other} after {name}");
        }
        // What remains is there, by the same way.
        let second = take(16 * MIB).unwrap_or_else(|code| panic!("{name} again: {code}"));
        give_back(second)?;
        give_back(first)?;
        driver.synchronize()?;
    }
    // SAFETY: what is released is this program's own, and nothing uses it any more.
    unsafe { ok((more.pool_destroy)(own_pool))? };
    // What kernels allocate is the heap's, which is taken when a module needs it.
    let heap = |limit: usize| {
        const CU_LIMIT_MALLOC_HEAP_SIZE: u32 = 2;
        // SAFETY: cuCtxSetLimit takes two numbers.
        unsafe { ok((more.set_limit)(CU_LIMIT_MALLOC_HEAP_SIZE, limit)) }?;
        driver.module(MALLOC)
    };
    let most = driver.alloc(40 * MIB)?;
    assert_eq!(heap(32 * MIB).err(), Some(OUT_OF_MEMORY), "a heap");
    release(most)?;
    driver.synchronize()?;
    assert_eq!(driver.memory()?.0, 64 * MIB, "everything came back");
    // Memory of the host is not the device's, however it is locked.
    let all = driver.alloc(63 * MIB)?;
    let mut own = vec![1_u8; 8 * MIB];
    // SAFETY: the vector is this program's own, and registered no longer than it lives.
    unsafe {
        ok((more.register)(own.as_mut_ptr().cast(), own.len(), 0))?;
        ok((more.unregister)(own.as_mut_ptr().cast()))?;
        // But it has a bound: the client's window of page-locked memory.
        let huge = 33 << 30;
        let none = libc::mmap(
            std::ptr::null_mut(),
            huge,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        );
        assert_ne!(none, libc::MAP_FAILED);
        assert_eq!((more.register)(none, huge, 0), OUT_OF_MEMORY);
        libc::munmap(none, huge);
        driver.mem_free(all)?;
    }
    driver.synchronize()?;
    assert_eq!(driver.memory()?.0, 64 * MIB, "everything came back");
    Ok(())
}
