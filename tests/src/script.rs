//! Calls of the driver as lines of text, as `tests/calls/wrong_arguments.txt` explains them: any
//! function with any arguments, without a signature for each.
//!
//! Called by the program `calls`. Must not know what a call should return.

use std::collections::HashMap;
use std::ffi::CString;

use cuda_abi::CUresult;
use libloading::os::unix::{Library, RTLD_NOW};

/// Bytes of each buffer that a line can name.
const BYTES: usize = 1 << 16;

/// Most arguments of a call.
const ARGUMENTS: usize = 14;

/// An entry point, whatever its arguments: on x86-64 a caller may pass more than a function reads, and
/// integers and pointers are passed alike.
type Entry = unsafe extern "C" fn(
    u64,
    u64,
    u64,
    u64,
    u64,
    u64,
    u64,
    u64,
    u64,
    u64,
    u64,
    u64,
    u64,
    u64,
) -> u32;

/// The driver, and the names that a line may use.
#[derive(Debug)]
pub struct State {
    library: Library,
    values: HashMap<String, u64>,
    /// Keeps what pointers lead to.
    memory: Vec<Box<[u64]>>,
}

impl State {
    /// Opens the driver, makes a context, and everything in it that a line may name. `image` is PTX with
    /// the kernels `nothing` and `small`.
    ///
    /// # Panics
    /// When there is no driver or it does not do that.
    pub fn new(image: &str) -> Self {
        // SAFETY: loading a CUDA driver library runs no code that asks anything of its loader.
        let library = unsafe { Library::open(Some("libcuda.so.1"), RTLD_NOW) };
        let mut state = Self {
            library: library.expect("libcuda.so.1 is on the path"),
            values: HashMap::new(),
            memory: Vec::new(),
        };
        let image = CString::new(image).expect("no NUL in it");
        let bytes = image.as_bytes_with_nul();
        state.name("image_bytes", bytes.len() as u64);
        let image = state.keep(bytes);
        state.name("image", image);
        for buffer in ["heap", "out"] {
            let at = state.keep(&vec![0; BYTES]);
            state.name(buffer, at);
        }
        for line in [
            "cuInit 0",
            "cuDevicePrimaryCtxRetain &primary 0",
            "cuCtxCreate_v2 &ctx 0 0",
            "cuMemAlloc_v2 &dptr 65536",
            "cuMemHostAlloc &host 65536 0",
            "cuStreamCreate &stream 1",
            "cuEventCreate &event 0",
            "cuEventRecord event stream",
            "cuModuleLoadData &module image",
            "cuModuleGetFunction &nothing module \"nothing\"",
            "cuModuleGetFunction &small module \"small\"",
        ] {
            let codes = state.line(line);
            assert!(codes == "SUCCESS", "{line}: {codes}");
        }
        state
    }

    /// Gives a value a name, for lines.
    pub fn name(&mut self, name: &str, value: u64) {
        self.values.insert(name.to_owned(), value);
    }

    /// The address of a copy of bytes that lives as long as this.
    fn keep(&mut self, bytes: &[u8]) -> u64 {
        let mut words = vec![0_u64; bytes.len().div_ceil(8) + 1].into_boxed_slice();
        for (word, chunk) in words.iter_mut().zip(bytes.chunks(8)) {
            let mut whole = [0; 8];
            whole[..chunk.len()].copy_from_slice(chunk);
            *word = u64::from_le_bytes(whole);
        }
        let at = words.as_mut_ptr().expose_provenance() as u64;
        self.memory.push(words);
        at
    }

    /// Makes the calls of a line, and gives the names of what they returned.
    ///
    /// # Panics
    /// When the line cannot be read.
    pub fn line(&mut self, calls: &str) -> String {
        let codes: Vec<String> = calls.split(';').map(|call| self.call(call)).collect();
        codes.join(" ")
    }

    fn call(&mut self, call: &str) -> String {
        let words = words(call);
        let (name, rest) = words.split_first().expect("a call has a name");
        let mut arguments = [0_u64; ARGUMENTS];
        let mut results = Vec::new();
        for (argument, word) in arguments.iter_mut().zip(rest) {
            *argument = match word.strip_prefix('&') {
                Some(variable) => {
                    let at = self.keep(&[0; 8]);
                    results.push((variable.to_owned(), at));
                    at
                }
                None => self.value(word),
            };
        }
        let symbol = format!("{name}\0");
        // SAFETY: every cu… symbol is a function that takes integers and pointers and returns a code.
        let Ok(entry) = (unsafe { self.library.get::<Entry>(symbol.as_bytes()) }) else {
            return "no such function".into();
        };
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n] = arguments;
        // SAFETY: wrong arguments are what the file is for, and this process is made to be spent.
        let code = unsafe { entry(a, b, c, d, e, f, g, h, i, j, k, l, m, n) };
        for (variable, at) in results {
            let place = std::ptr::with_exposed_provenance::<u64>(at as usize);
            // SAFETY: `at` is a word of `memory`, which the call may have written and nobody else does.
            let value = unsafe { place.read() };
            self.values.insert(variable, value);
        }
        match cuda_abi::errors::name(CUresult(code)) {
            Some("CUDA_SUCCESS") => "SUCCESS".into(),
            Some(name) => name.trim_start_matches("CUDA_ERROR_").into(),
            None => code.to_string(),
        }
    }

    fn value(&mut self, word: &str) -> u64 {
        if let Some(text) = word.strip_prefix('"') {
            let text = CString::new(text.trim_end_matches('"')).expect("no NUL in it");
            return self.keep(text.as_bytes_with_nul());
        }
        if let Some(fields) = word.strip_prefix('{') {
            let bytes = self.structure(fields.trim_end_matches('}'));
            return self.keep(&bytes);
        }
        if let Some((base, offset)) = word.split_once('+') {
            return self.value(base).wrapping_add(self.value(offset));
        }
        if let Some(digits) = word.strip_prefix("0x") {
            return u64::from_str_radix(digits, 16).expect("hexadecimal digits");
        }
        if let Ok(number) = word.parse::<i128>() {
            return number as u64;
        }
        match word {
            "NULL" => 0,
            _ => *self
                .values
                .get(word)
                .unwrap_or_else(|| panic!("nothing is called {word:?}")),
        }
    }

    /// A struct from `bits:value,…`, each field at a multiple of its size as C has it; `bits*count:value`
    /// repeats one.
    fn structure(&mut self, fields: &str) -> Vec<u8> {
        let mut bytes = Vec::new();
        for field in fields.split(',').filter(|field| !field.is_empty()) {
            let (kind, value) = field.split_once(':').expect("bits:value");
            let (bits, count) = kind.split_once('*').unwrap_or((kind, "1"));
            let size = bits.parse::<usize>().expect("bits") / 8;
            let value = self.value(value).to_le_bytes();
            for _ in 0..count.parse().expect("a count") {
                bytes.resize(bytes.len().next_multiple_of(size), 0);
                bytes.extend(&value[..size]);
            }
        }
        bytes.resize(bytes.len().max(512), 0);
        bytes
    }
}

/// The words of a call. Blanks in quotes belong to the word.
fn words(call: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut rest = call.trim_start();
    while !rest.is_empty() {
        let end = match rest.strip_prefix('"').and_then(|text| text.find('"')) {
            Some(quote) => quote + 2,
            None => rest.find(char::is_whitespace).unwrap_or(rest.len()),
        };
        words.push(rest[..end].to_owned());
        rest = rest[end..].trim_start();
    }
    words
}
