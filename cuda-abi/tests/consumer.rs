//! A consumer as `engine-nvidia` has one: the real driver's functions as a struct of pointers.

#![allow(non_snake_case, reason = "the names are C's")]

use cuda_abi::types::*;

macro_rules! pointers {
    ($(
        $(#[$doc:meta])*
        $class:ident $number:literal since $since:literal $(twin $suffix:literal $from:literal)?
            capture $capture:ident $(partial $how:literal)? =>
            fn $name:ident($($argument:ident: $mode:ident $tokens:tt),*);
    )*) => {
        /// The functions of a driver; `None` where it has no such symbol.
        #[allow(dead_code, reason = "the test asks only some")]
        struct Driver {
            $(
                $(#[$doc])*
                $name: Option<unsafe extern "C" fn($(cuda_abi::c_type!($mode $tokens)),*) -> CUresult>,
            )*
        }

        impl Driver {
            /// Resolves every symbol by `find`, which gives addresses.
            fn symbols(mut find: impl FnMut(&'static str) -> bool) -> usize {
                [$(find(stringify!($name))),*].into_iter().filter(|found| *found).count()
            }
        }
    };
}

cuda_abi::for_each_function!(pointers);

unsafe extern "C" fn memcpy_htod(_: CUdeviceptr, _: *const c_void, _: usize) -> CUresult {
    CUresult::SUCCESS
}

unsafe extern "C" fn elapsed(_: *mut f32, _: CUevent, _: CUevent) -> CUresult {
    CUresult::SUCCESS
}

#[allow(clippy::too_many_arguments, reason = "C's signature")]
unsafe extern "C" fn launch(
    _: CUfunction,
    _: u32,
    _: u32,
    _: u32,
    _: u32,
    _: u32,
    _: u32,
    _: u32,
    _: CUstream,
    _: *mut *mut c_void,
    _: *mut *mut c_void,
) -> CUresult {
    CUresult::SUCCESS
}

/// Type-checks some signatures that were written by hand from the header.
fn check_signatures(driver: &mut Driver) {
    driver.cuMemcpyHtoD_v2 = Some(memcpy_htod);
    driver.cuEventElapsedTime = Some(elapsed);
    driver.cuEventElapsedTime_v2 = Some(elapsed);
    driver.cuLaunchKernel = Some(launch);
}

#[test]
fn a_field_for_every_function() {
    let _ = check_signatures;
    assert_eq!(
        size_of::<Driver>(),
        cuda_abi::functions::ROWS.len() * size_of::<usize>()
    );
    let mut asked = Vec::new();
    let found = Driver::symbols(|name| {
        asked.push(name);
        true
    });
    assert_eq!(found, asked.len());
    assert!(
        asked
            .iter()
            .copied()
            .eq(cuda_abi::functions::ROWS.iter().map(|row| row.name))
    );
}
