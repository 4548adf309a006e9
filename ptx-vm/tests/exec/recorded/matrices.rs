//! Kernels that multiply matrices of small whole numbers, whose sums are exact in every type, with all ways in which
//! matrices lie in registers and in shared memory.

use std::fmt::Write;

use half::f16;

use super::{WORDS, mix};

/// The most threads of a case.
pub const MOST_THREADS: u32 = 128;
/// Which word of a thread has metadata of sparse matrices; from the next one on is what its part of shared memory holds.
const METADATA: u64 = 31;

/// What the words of an input are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    Any,
    F16,
    Bf16,
    Tf32,
    E4m3,
    E5m2,
    F64,
    Bits,
}

impl Values {
    pub fn name(self) -> &'static str {
        match self {
            Self::Any => "random",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Tf32 => "tf32",
            Self::E4m3 => "e4m3",
            Self::E5m2 => "e5m2",
            Self::F64 => "f64",
            Self::Bits => "bits",
        }
    }

    fn of(name: &str) -> Self {
        let all = [
            Self::F16,
            Self::Bf16,
            Self::Tf32,
            Self::E4m3,
            Self::E5m2,
            Self::F64,
        ];
        all.into_iter()
            .find(|values| values.name() == name)
            .unwrap_or(Self::Bits)
    }

    /// 32 bits of small whole numbers.
    fn encode(self, random: u64) -> u32 {
        let value = |at: u32| small(random >> (7 * at) & 0x7f);
        let half = |at: u32| u32::from(f16::from_f32(value(at)).to_bits());
        let bytes = |f: &dyn Fn(u32) -> u32| (0..4).fold(0, |word, at| word | f(at) << (8 * at));
        match self {
            Self::F16 => half(0) | half(1) << 16,
            Self::Bf16 => value(0).to_bits() >> 16 | value(1).to_bits() >> 16 << 16,
            Self::Tf32 => value(0).to_bits(),
            Self::E4m3 => bytes(&|at| {
                let (sign, amount) = (half(at) >> 8 & 0x80, half(at) & 0x7fff);
                sign | if amount == 0 {
                    0
                } else {
                    (amount >> 7) - (8 << 3)
                }
            }),
            Self::E5m2 => bytes(&|at| half(at) >> 8),
            Self::Any | Self::F64 | Self::Bits => random as u32,
        }
    }
}

fn small(random: u64) -> f32 {
    (random % 9) as f32 - 4.0
}

/// Eight groups' metadata: which two of four, or which one of two that are twice as large.
fn metadata(random: u64, large: bool) -> u64 {
    const PAIRS: [u64; 6] = [0b0100, 0b1000, 0b1100, 0b1001, 0b1101, 0b1110];
    (0..8).fold(0, |word, at| {
        let group = if large {
            [0b0100, 0b1110][(random >> at & 1) as usize]
        } else {
            PAIRS[((random >> (3 * at)) % 6) as usize]
        };
        word | group << (4 * at)
    })
}

/// A word of an input: elements in the lower half, a float in the upper.
pub fn word(values: Values, index: u64) -> u64 {
    let random = mix(index + 1_000_003);
    let at = index % WORDS;
    match values {
        Values::F64 if at < METADATA => f64::from(small(random & 0xff)).to_bits(),
        Values::Bits if at < METADATA => random,
        values if at < METADATA => {
            u64::from(values.encode(random)) | u64::from(small(random >> 32 & 0xff).to_bits()) << 32
        }
        _ if at == METADATA => metadata(random, false) | metadata(random >> 24, true) << 32,
        Values::F64 => random,
        values => u64::from(values.encode(random)) | u64::from(values.encode(random >> 32)) << 32,
    }
}

/// A kernel's body and the registers that it starts with.
pub struct Kernel {
    pub values: Values,
    pub threads: u32,
    pub what: String,
    body: String,
    /// Class and number of each register, and where it comes from in a thread's part of the buffer; as many of the first ones
    /// as are stored, in words from the first on.
    loads: Vec<(char, usize, usize)>,
    /// Which of them are stored, and in which word.
    stores: Vec<(char, usize, usize)>,
    shared: bool,
}

impl Kernel {
    pub fn entry(&self, name: &str) -> String {
        let mut text = format!(
            ".visible .entry {name}(.param .u64 buffer) {{\n.reg .b64 %base, %s, %z, %x<40>; .reg .b32 %t, %y<4>, %r<40>; .reg .pred %p<4>;\n\
             ld.param.u64 %base, [buffer]; mov.u32 %t, %tid.x; mul.wide.u32 %z, %t, 512; add.s64 %base, %base, %z;\n"
        );
        if self.shared {
            text += ".shared .align 1024 .b8 slots[32768];\nmul.wide.u32 %z, %t, 256; mov.u64 %s, slots; add.s64 %s, %s, %z;\n";
            for at in (0..256).step_by(16) {
                writeln!(
                    text,
                    "ld.global.v4.b32 {{%y0, %y1, %y2, %y3}}, [%base+{}]; st.shared.v4.b32 [%s+{at}], {{%y0, %y1, %y2, %y3}};",
                    256 + at
                )
                .unwrap();
            }
            text += "fence.proxy.async; bar.sync 0;\n";
        }
        let bits = |class: char| if class == 'r' { 32 } else { 64 };
        for &(class, number, at) in &self.loads {
            writeln!(
                text,
                "ld.global.b{} %{class}{number}, [%base+{at}];",
                bits(class)
            )
            .unwrap();
        }
        text += &self.body;
        for &(class, number, at) in &self.stores {
            writeln!(
                text,
                "st.global.b{} [%base+{at}], %{class}{number};",
                bits(class)
            )
            .unwrap();
        }
        text + "ret;\n}\n"
    }
}

fn vector(count: usize, first: usize, class: char) -> String {
    let all: Vec<String> = (first..first + count)
        .map(|number| format!("%{class}{number}"))
        .collect();
    format!("{{{}}}", all.join(", "))
}

/// A product of a warp: how many registers hold each of its matrices, from which numbers on.
fn warp(
    form: &str,
    counts: [usize; 3],
    firsts: [usize; 4],
    class: char,
    sums: &str,
    kind: &str,
) -> Kernel {
    let [lefts, rights, many] = counts;
    let [d, a, b, c] = firsts;
    let lists = [
        vector(many, d, class),
        vector(lefts, a, class),
        vector(rights, b, class),
        vector(many, c, class),
    ];
    let selector = form.split_once(' ').map(|(_, selector)| selector);
    let words = form.split(' ').next().unwrap_or(form);
    let mut body = format!("{words} {}", lists.join(", "));
    if let Some(selector) = selector {
        write!(body, ", %r17, {selector}").unwrap();
    }
    body += ";\n";
    let mut numbers: Vec<usize> = [(d, many), (a, lefts), (b, rights), (c, many)]
        .into_iter()
        .flat_map(|(first, count)| first..first + count)
        .chain(selector.map(|_| 17))
        .collect();
    numbers.sort_unstable();
    let large = kind == "tf32";
    let (mut loads, mut stores) = (Vec::new(), Vec::new());
    for (index, &number) in numbers.iter().enumerate() {
        let upper = sums == "f32" && (c..c + many).contains(&number);
        let mut at = 8 * index + if upper { 4 } else { 0 };
        if selector.is_some() && number == 17 {
            at = 8 * METADATA as usize + if large { 4 } else { 0 };
        }
        loads.push((class, number, at));
        stores.push((class, number, 8 * index));
    }
    Kernel {
        values: Values::of(kind),
        threads: 32,
        what: body.trim_end().to_owned(),
        body,
        loads,
        stores,
        shared: false,
    }
}

fn dense(shape: &str, sums: &str, kind: &str, counts: [usize; 3]) -> Kernel {
    let form = format!("mma.sync.aligned.{shape}.row.col.{sums}.{kind}.{kind}.{sums}");
    warp(&form, counts, [1, 5, 9, 13], 'r', sums, kind)
}

fn doubles(shape: &str, counts: [usize; 3]) -> Kernel {
    let form = format!("mma.sync.aligned.{shape}.row.col.f64.f64.f64.f64");
    warp(&form, counts, [1, 5, 13, 17], 'x', "f64", "f64")
}

/// One for each selector.
fn sparse(
    shape: &str,
    sums: &str,
    (left, right): (&str, &str),
    counts: [usize; 3],
    selectors: &[usize],
) -> Vec<Kernel> {
    let one = |selector: &usize| {
        let form = format!(
            "mma.sp::ordered_metadata.sync.aligned.{shape}.row.col.{sums}.{left}.{right}.{sums} {selector}"
        );
        let mut kernel = warp(&form, counts, [1, 5, 9, 13], 'r', sums, left);
        // As they were recorded.
        kernel.what = kernel.body.trim_end().to_owned();
        kernel
    };
    selectors.iter().map(one).collect()
}

/// A product of a warpgroup.
#[derive(Clone, Copy)]
struct Group<'a> {
    columns: usize,
    depth: usize,
    sums: &'a str,
    kinds: (&'a str, &'a str),
    /// Bytes of a swizzled row, of each matrix.
    swizzles: [usize; 2],
    turned: [usize; 2],
    in_registers: bool,
    adds: bool,
    signs: [i32; 2],
    /// Where in the swizzled pattern it begins.
    start: usize,
    selector: Option<usize>,
}

impl<'a> Group<'a> {
    fn new(
        columns: usize,
        depth: usize,
        sums: &'a str,
        kinds: (&'a str, &'a str),
        swizzle: usize,
    ) -> Self {
        Self {
            columns,
            depth,
            sums,
            kinds,
            swizzles: [swizzle; 2],
            turned: [0; 2],
            in_registers: false,
            adds: true,
            signs: [1; 2],
            start: 0,
            selector: None,
        }
    }

    /// A matrix descriptor in a register: leading and stride offsets are as its parts follow each other.
    fn descriptor(self, register: &str, side: usize) -> String {
        let swizzle = self.swizzles[side];
        let long = side == 1 && self.selector.is_some();
        let (leading, stride) = match (self.turned[side], swizzle) {
            (0, 0) if long => (128, 512),
            (_, 0) => (128, 256),
            (0, width) => (16, 8 * width),
            (_, width) => (16 * width, 8 * width),
        };
        let code: u64 = match swizzle {
            0 => 0,
            128 => 1,
            64 => 2,
            _ => 3,
        };
        let bits = (leading as u64 >> 4) << 16 | (stride as u64 >> 4) << 32 | code << 62;
        let place = 16384 * side + self.start;
        format!(
            "mov.u64 %{register}, slots; add.s64 %{register}, %{register}, {place}; shr.u64 %{register}, %{register}, 4; and.b64 %{register}, %{register}, 0x3fff; or.b64 %{register}, %{register}, {bits:#x};\n"
        )
    }

    fn kernel(self) -> Kernel {
        let (left, right) = self.kinds;
        let many = self.columns / 8 * if self.sums == "f16" { 2 } else { 4 };
        let mut body = String::new();
        if !self.in_registers {
            body += &self.descriptor("x1", 0);
        }
        body += &self.descriptor("x2", 1);
        writeln!(
            body,
            "setp.eq.u32 %p1, {}, 1;\nwgmma.fence.sync.aligned;",
            u32::from(self.adds)
        )
        .unwrap();
        let mut operands = vec![vector(many, 1, 'r')];
        operands.push(if self.in_registers {
            vector(4, 33, 'r')
        } else {
            "%x1".into()
        });
        operands.push("%x2".into());
        if let Some(selector) = self.selector {
            operands.extend(["%r37".into(), selector.to_string()]);
        }
        operands.push("%p1".into());
        if Values::of(left) != Values::Bits {
            operands.extend(self.signs.map(|sign| sign.to_string()));
        }
        if matches!(left, "f16" | "bf16") {
            let skipped = usize::from(self.in_registers);
            operands.extend(self.turned[skipped..].iter().map(usize::to_string));
        }
        let sparse = if self.selector.is_some() { ".sp" } else { "" };
        let bits = if left == "b1" { ".and.popc" } else { "" };
        let form = format!(
            "wgmma.mma_async{sparse}.sync.aligned.m64n{}k{}.{}.{left}.{right}{bits} {};",
            self.columns,
            self.depth,
            self.sums,
            operands.join(", ")
        );
        body += &form;
        body += "\nwgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n";
        let upper = if self.sums == "f32" { 4 } else { 0 };
        let mut loads: Vec<_> = (0..many)
            .map(|at| ('r', 1 + at, 8 * (at % 31) + upper))
            .collect();
        if self.in_registers {
            loads.extend((0..4).map(|at| ('r', 33 + at, 8 * (at + 20))));
        }
        loads.push((
            'r',
            37,
            8 * METADATA as usize + if left == "tf32" { 4 } else { 0 },
        ));
        let [a, b] = self.swizzles;
        let [ta, tb] = self.turned;
        Kernel {
            values: Values::of(left),
            threads: MOST_THREADS,
            what: format!(
                "{form} a {a} {ta} b {b} {tb} +{}{}",
                self.start,
                if self.adds { "" } else { " from zero" }
            ),
            body,
            loads,
            stores: (0..many).map(|at| ('r', 1 + at, 8 * at)).collect(),
            shared: true,
        }
    }
}

fn groups() -> Vec<Kernel> {
    let mut all = Vec::new();
    let f16 = ("f16", "f16");
    let bf16 = ("bf16", "bf16");
    for swizzle in [0, 32, 64, 128] {
        for turned in [[0, 0], [0, 1], [1, 0], [1, 1]] {
            all.push(Group {
                turned,
                ..Group::new(16, 16, "f32", f16, swizzle)
            });
        }
    }
    all.push(Group::new(64, 16, "f32", f16, 128));
    all.push(Group {
        swizzles: [128, 64],
        ..Group::new(8, 16, "f16", f16, 0)
    });
    all.push(Group {
        turned: [0, 1],
        ..Group::new(64, 16, "f32", bf16, 128)
    });
    all.push(Group {
        start: 32,
        ..Group::new(64, 16, "f32", f16, 128)
    });
    all.push(Group {
        start: 32,
        ..Group::new(32, 16, "f32", f16, 64)
    });
    all.push(Group {
        swizzles: [0, 128],
        in_registers: true,
        ..Group::new(24, 16, "f32", f16, 0)
    });
    all.push(Group {
        swizzles: [0, 64],
        turned: [0, 1],
        in_registers: true,
        signs: [-1, 1],
        ..Group::new(16, 16, "f32", bf16, 0)
    });
    all.push(Group {
        adds: false,
        ..Group::new(16, 16, "f32", f16, 32)
    });
    all.push(Group {
        signs: [1, -1],
        ..Group::new(16, 16, "f16", f16, 32)
    });
    all.push(Group {
        signs: [-1, -1],
        ..Group::new(16, 16, "f32", f16, 32)
    });
    for swizzle in [0, 128] {
        let tf32 = ("tf32", "tf32");
        all.push(Group::new(16, 8, "f32", tf32, swizzle));
        all.push(Group {
            swizzles: [0, swizzle],
            in_registers: true,
            signs: [1, -1],
            ..Group::new(24, 8, "f32", tf32, 0)
        });
        for kind in ["e4m3", "e5m2"] {
            all.push(Group {
                signs: [1, -1],
                ..Group::new(16, 32, "f32", (kind, kind), swizzle)
            });
            // What stands in registers for bytes are no whole numbers as halves.
            all.push(Group {
                adds: false,
                ..Group::new(16, 32, "f16", (kind, kind), swizzle)
            });
        }
        for kinds in [("s8", "s8"), ("u8", "s8"), ("s8", "u8"), ("u8", "u8")] {
            all.push(Group::new(16, 32, "s32", kinds, swizzle));
        }
        all.push(Group::new(16, 256, "s32", ("b1", "b1"), swizzle));
        all.push(Group {
            swizzles: [0, swizzle],
            in_registers: true,
            ..Group::new(16, 32, "s32", ("s8", "s8"), 0)
        });
    }
    for selector in [0, 1] {
        let selector = Some(selector);
        all.push(Group {
            selector,
            ..Group::new(16, 32, "f32", f16, 64)
        });
        all.push(Group {
            selector,
            swizzles: [32, 128],
            in_registers: true,
            ..Group::new(16, 32, "f32", f16, 0)
        });
        all.push(Group {
            selector,
            swizzles: [128, 0],
            ..Group::new(16, 32, "f32", bf16, 0)
        });
    }
    let selector = Some(0);
    all.push(Group {
        selector,
        swizzles: [32, 64],
        ..Group::new(16, 64, "s32", ("s8", "s8"), 0)
    });
    all.push(Group {
        selector,
        swizzles: [32, 64],
        in_registers: true,
        ..Group::new(16, 64, "f32", ("e4m3", "e4m3"), 0)
    });
    all.into_iter().map(Group::kernel).collect()
}

/// Names, targets and kernels of modules.
pub fn all() -> Vec<(&'static str, &'static str, Vec<Kernel>)> {
    let mut ampere = Vec::new();
    for kind in ["f16", "bf16"] {
        ampere.push(dense("m16n8k8", "f32", kind, [2, 1, 4]));
        ampere.push(dense("m16n8k16", "f32", kind, [4, 2, 4]));
    }
    ampere.push(dense("m16n8k8", "f16", "f16", [2, 1, 2]));
    ampere.push(dense("m16n8k16", "f16", "f16", [4, 2, 2]));
    ampere.push(dense("m16n8k4", "f32", "tf32", [2, 1, 4]));
    ampere.push(dense("m16n8k8", "f32", "tf32", [4, 2, 4]));
    ampere.push(doubles("m8n8k4", [1, 1, 2]));
    for kind in ["f16", "bf16"] {
        ampere.extend(sparse(
            "m16n8k16",
            "f32",
            (kind, kind),
            [2, 2, 4],
            &[0, 1, 2, 3],
        ));
        ampere.extend(sparse("m16n8k32", "f32", (kind, kind), [4, 4, 4], &[0, 1]));
    }
    ampere.extend(sparse(
        "m16n8k16",
        "f16",
        ("f16", "f16"),
        [2, 2, 2],
        &[0, 3],
    ));
    ampere.extend(sparse(
        "m16n8k32",
        "f16",
        ("f16", "f16"),
        [4, 4, 2],
        &[0, 1],
    ));
    ampere.extend(sparse(
        "m16n8k8",
        "f32",
        ("tf32", "tf32"),
        [2, 2, 4],
        &[0, 1, 2, 3],
    ));
    ampere.extend(sparse(
        "m16n8k16",
        "f32",
        ("tf32", "tf32"),
        [4, 4, 4],
        &[0, 1],
    ));
    for kinds in [("s8", "s8"), ("u8", "s8"), ("u8", "u8")] {
        ampere.extend(sparse("m16n8k32", "s32", kinds, [2, 2, 4], &[0, 1]));
        ampere.extend(sparse("m16n8k64", "s32", kinds, [4, 4, 4], &[0]));
    }
    for kinds in [("s4", "s4"), ("u4", "s4")] {
        ampere.extend(sparse("m16n8k64", "s32", kinds, [2, 2, 4], &[0, 1]));
        ampere.extend(sparse("m16n8k128", "s32", kinds, [4, 4, 4], &[0]));
    }
    let mut ada = Vec::new();
    for kind in ["e4m3", "e5m2"] {
        ada.push(dense("m16n8k32", "f32", kind, [4, 2, 4]));
        ada.push(dense("m16n8k16", "f32", kind, [2, 1, 4]));
    }
    for kind in ["e4m3", "e5m2"] {
        ada.extend(sparse("m16n8k64", "f32", (kind, kind), [4, 4, 4], &[0]));
    }
    let hopper = vec![
        doubles("m16n8k4", [2, 1, 4]),
        doubles("m16n8k8", [4, 2, 4]),
        doubles("m16n8k16", [8, 4, 4]),
    ];
    vec![
        ("x80", "80", ampere),
        ("x89", "89", ada),
        ("x90", "90", hopper),
        ("w90a", "90a", groups()),
    ]
}
