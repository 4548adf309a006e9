//! Any PTX, launched with any addresses: no panic, and nothing changes but the memory that the launch was
//! given. What the bytes are: [`openmps_fuzz::kernels`].
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use openmps_fuzz::kernels::{Memory, OWN, split};
use ptx_vm::{Module, Options};

fuzz_target!(|bytes: &[u8]| {
    let Some((head, text)) = split(bytes) else {
        return;
    };
    let Ok(tree) = ptx::parse_bytes(&text) else {
        return;
    };
    let Ok(module) = Module::load(&tree, &Options::default()) else {
        return;
    };
    let memory = Memory::filled();
    let space = memory.space(&OWN.map(|granule| granule..=granule));
    // All variables stand at the start of its own memory.
    let globals: Arc<[u64]> = vec![memory.granule(OWN[0]); module.globals().len()].into();
    memory.launch(head, &module, &globals, &space);
    memory.assert_whole(&[]);
});
