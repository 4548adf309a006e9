//! Loads every file of a folder as an image, bare and in wrappers, and says how many were loaded and how
//! many refused with a word of why. Any other end of a load is this program's too.

use tests::cuda::{Code, Driver};
use tests::program::{finish, say};

fn main() {
    finish(images(&std::env::args().nth(1).expect("a folder")));
}

fn images(folder: &str) -> Result<(), Code> {
    // INVALID_IMAGE, NO_BINARY_FOR_GPU, INVALID_PTX, UNSUPPORTED_PTX_VERSION, and NOT_SUPPORTED of what
    // says that it is something else to link.
    const REFUSALS: [Code; 5] = [200, 209, 218, 222, 801];
    const WRAPPER: u64 = 0x4662_43b1;
    let driver = Driver::ready();
    let (mut loaded, mut refused) = (0, 0);
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let mut bytes = std::fs::read(&path).expect("a file");
        bytes.extend([0; 64]);
        let data = bytes.as_ptr().addr() as u64;
        let parts = [data, data, 0];
        let wrapper = |version: u64, list: u64| {
            [WRAPPER | version << 32, data, list]
                .map(u64::to_le_bytes)
                .concat()
        };
        let first = wrapper(1, 0);
        let second = wrapper(2, parts.as_ptr().addr() as u64);
        for (form, image) in [
            ("bare", &bytes),
            ("version 1", &first),
            ("version 2", &second),
        ] {
            match driver.module_with_log(image) {
                Ok(module) => {
                    loaded += 1;
                    // SAFETY: a module of this program's own.
                    unsafe { driver.module_unload(module)? };
                }
                Err((code, log)) if REFUSALS.contains(&code) && !log.is_empty() => refused += 1,
                Err((code, log)) => panic!("{}, {form}: {code} {log}", path.display()),
            }
        }
    }
    say(&format!("{loaded} loaded, {refused} refused"));
    Ok(())
}
