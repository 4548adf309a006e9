//! The driver's functions: what a program that links `libcuda.so.1` can call.
//!
//! [`for_each_function!`](crate::for_each_function) is the one table. Exported symbols, answers of
//! `cuGetProcAddress`, the real driver's function pointers, metric labels and `docs/coverage.md`
//! come from it. This module knows nothing of how a function is carried out; what travels between
//! client and server is in `protocol::operations`.

mod rows;

/// Where a function is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// Not built: exported, returns CUDA_ERROR_NOT_SUPPORTED and is counted.
    Absent,
    /// The client asks the server and waits for the reply.
    Call,
    /// The client chooses a handle and tells the server; it cannot fail for reasons that the client
    /// cannot see.
    Create,
    /// By hand: which of the others it is depends on the arguments, or it waits for completion words.
    Custom,
    /// In the client, from what it knows already.
    Local,
    /// The client tells the server and returns; a later error surfaces at the next synchronising
    /// call.
    Post,
}

impl Class {
    /// The word that stands in the table.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::Call => "call",
            Self::Create => "create",
            Self::Custom => "custom",
            Self::Local => "local",
            Self::Post => "post",
        }
    }
}

/// What a call does while streams are captured. From CUDA's documentation, not measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Capture {
    /// Does not concern captures.
    Allowed,
    /// Refused, and ends the capture, where it concerns a captured stream or event: it waits for
    /// one, asks how far one is, or uses the legacy stream.
    Invalidates,
    /// On a captured stream it becomes a node of the graph, or an edge of it, and does not run.
    Node,
    /// Potentially unsafe: refused while a capture is under way whose mode forbids it to the thread.
    Prohibited,
}

/// The same function for programs whose default stream is per thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Twin {
    /// The exported name.
    pub symbol: &'static str,
    /// The suffix that makes it: `_ptds` or `_ptsz`.
    pub suffix: &'static str,
    /// The CUDA version from which `cuGetProcAddress` offers it.
    pub since: u32,
}

/// A parameter of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Its name.
    pub name: &'static str,
    /// Its mode: direction and kind.
    pub mode: &'static str,
    /// Its C type in Rust's words.
    pub c_type: &'static str,
}

/// What the table says of a function.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The function.
    pub function: Function,
    /// Its number, never given to another.
    pub number: u16,
    /// The exported name.
    pub name: &'static str,
    /// Where it is answered.
    pub class: Class,
    /// The CUDA version that introduced this form of it; 0 where `cuGetProcAddress` does not offer
    /// it.
    pub since: u32,
    /// Its twin, if it has one.
    pub twin: Option<Twin>,
    /// What it does during stream capture.
    pub capture: Capture,
    /// What of it is not built, if that is not all of it or nothing.
    pub partial: Option<&'static str>,
    /// Its parameters.
    pub parameters: &'static [Parameter],
}

impl Row {
    /// Whether the function is built.
    #[must_use]
    pub const fn is_built(&self) -> bool {
        !matches!(self.class, Class::Absent)
    }
}

macro_rules! class {
    (absent) => {
        Class::Absent
    };
    (call) => {
        Class::Call
    };
    (create) => {
        Class::Create
    };
    (custom) => {
        Class::Custom
    };
    (local) => {
        Class::Local
    };
    (post) => {
        Class::Post
    };
}

macro_rules! capture {
    (allowed) => {
        Capture::Allowed
    };
    (invalidates) => {
        Capture::Invalidates
    };
    (node) => {
        Capture::Node
    };
    (prohibited) => {
        Capture::Prohibited
    };
}

macro_rules! twin {
    ($name:ident) => {
        None
    };
    ($name:ident $suffix:literal $from:literal) => {
        Some(Twin {
            symbol: concat!(stringify!($name), $suffix),
            suffix: $suffix,
            since: $from,
        })
    };
}

macro_rules! partial {
    () => {
        None
    };
    ($how:literal) => {
        Some($how)
    };
}

macro_rules! c_type_name {
    (cstr()) => {
        "*const c_char"
    };
    (bytes($count:ident)) => {
        "*const c_void"
    };
    (bytes_out($count:ident)) => {
        "*mut c_void"
    };
    (chars_out($count:ident)) => {
        "*mut c_char"
    };
    (val($type:ty)) => {
        stringify!($type)
    };
    (opaque($type:ty)) => {
        stringify!($type)
    };
    (len($type:ty, $of:ident)) => {
        stringify!($type)
    };
    (struct_in($type:ty)) => {
        concat!("*const ", stringify!($type))
    };
    (list($type:ty, $count:ident)) => {
        concat!("*const ", stringify!($type))
    };
    ($mode:ident($type:ty $(, $count:ident)?)) => {
        concat!("*mut ", stringify!($type))
    };
}

macro_rules! table {
    ($(
        $(#[$doc:meta])*
        $class:ident $number:literal since $since:literal $(twin $suffix:literal $from:literal)?
            capture $capture:ident $(partial $how:literal)? =>
            fn $name:ident($($argument:ident: $mode:ident $tokens:tt),*);
    )*) => {
        /// Every function of the driver, by its exported name.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u16)]
        #[allow(non_camel_case_types, reason = "the names are C's")]
        pub enum Function {
            $($(#[$doc])* $name = $number,)*
        }

        /// Every function, in the order of the table.
        pub const ROWS: &[Row] = &[$(Row {
            function: Function::$name,
            number: $number,
            name: stringify!($name),
            class: class!($class),
            since: $since,
            twin: twin!($name $($suffix $from)?),
            capture: capture!($capture),
            partial: partial!($($how)?),
            parameters: &[$(Parameter {
                name: stringify!($argument),
                mode: stringify!($mode),
                c_type: c_type_name!($mode $tokens),
            },)*],
        },)*];
    };
}

crate::for_each_function!(table);

/// Where in [`ROWS`] the row of a number stands; `u16::MAX` where there is none.
const POSITIONS: [u16; NUMBERS] = positions();

/// One more than the greatest number.
const NUMBERS: usize = {
    let mut greatest = 0;
    let mut index = 0;
    while index < ROWS.len() {
        if ROWS[index].number > greatest {
            greatest = ROWS[index].number;
        }
        index += 1;
    }
    greatest as usize + 1
};

const fn positions() -> [u16; NUMBERS] {
    assert!(ROWS.len() < u16::MAX as usize);
    let mut positions = [u16::MAX; NUMBERS];
    let mut index = 0;
    while index < ROWS.len() {
        positions[ROWS[index].number as usize] = index as u16;
        index += 1;
    }
    positions
}

impl Function {
    /// The function with this number, if this build knows it.
    #[must_use]
    pub fn from_number(number: u16) -> Option<Self> {
        let position = *POSITIONS.get(usize::from(number))?;
        ROWS.get(usize::from(position)).map(|row| row.function)
    }

    /// Its number.
    #[must_use]
    pub const fn number(self) -> u16 {
        self as u16
    }

    /// What the table says of it.
    #[must_use]
    pub const fn row(self) -> &'static Row {
        &ROWS[POSITIONS[self as usize] as usize]
    }

    /// Its exported name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.row().name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_lead_back_to_their_rows() {
        for row in ROWS {
            assert_eq!(row.function.number(), row.number);
            assert_eq!(row.function.row().name, row.name);
            assert_eq!(Function::from_number(row.number), Some(row.function));
        }
        assert_eq!(Function::from_number(0), None);
        assert_eq!(Function::from_number(u16::MAX), None);
    }

    #[test]
    fn a_row_says_what_its_macro_says() {
        let row = Function::cuMemcpyHtoD_v2.row();
        assert_eq!(row.class, Class::Custom);
        assert_eq!((row.since, row.capture), (3020, Capture::Invalidates));
        let twin = row.twin.expect("it has one");
        assert_eq!(
            (twin.symbol, twin.suffix, twin.since),
            ("cuMemcpyHtoD_v2_ptds", "_ptds", 7000)
        );
        let parameters: Vec<_> = row
            .parameters
            .iter()
            .map(|p| (p.name, p.mode, p.c_type))
            .collect();
        assert_eq!(
            parameters,
            [
                ("dst_device", "val", "CUdeviceptr"),
                ("src_host", "bytes", "*const c_void"),
                ("byte_count", "len", "usize"),
            ]
        );
    }

    #[test]
    fn lengths_belong_to_parameters_of_the_same_function() {
        for row in ROWS {
            for (index, parameter) in row.parameters.iter().enumerate() {
                let rest = &row.parameters[index + 1..];
                assert!(
                    rest.iter().all(|other| other.name != parameter.name),
                    "{}",
                    row.name
                );
            }
        }
    }
}
