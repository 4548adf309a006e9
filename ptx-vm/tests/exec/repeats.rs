//! Random kernels that are cut off and done again: where `ptx::pointers` and the blocks of their pointers say that they can be,
//! what is left is what one run leaves.

use std::collections::BTreeSet;
use std::fmt::Write;

use ptx_vm::{Cluster, Outcome};

use crate::gpu::{Args, Gpu};

const WORDS: usize = 128;

/// A small generator, so that a failure can be repeated from its seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % bound
    }
}

/// What a statement makes.
enum Made {
    Pointer,
    Number,
    Nothing,
}

/// A kernel that goes three times through statements, each of which makes new registers of older ones.
fn kernel(random: &mut Random) -> String {
    let mut body = String::new();
    // Pointers and numbers that there are.
    let (mut pointers, mut numbers) = (5, 3);
    for _ in 0..2 + random.below(7) {
        // Mostly what was made last.
        let a = match random.below(3) {
            0 => random.below(pointers),
            _ => pointers - 1,
        };
        let b = random.below(pointers);
        let v = match random.below(3) {
            0 => random.below(numbers),
            _ => numbers - 1,
        };
        let w = random.below(numbers);
        let [to, offset] = [3 + random.below(2), random.below(2) * 8];
        let guard = ["", "@%p "][random.below(2) as usize];
        let (p, n) = (pointers, numbers);
        let (text, made) = match random.below(30) {
            0..5 => (
                format!("{guard}st.global.u64 [%a{a}+{offset}], %v{v};"),
                Made::Nothing,
            ),
            5..8 => (
                format!("ld.global.u64 %t, [%a{b}+{offset}]; mad.lo.u64 %v{n}, %t, 5, 3;"),
                Made::Number,
            ),
            8 => (format!("min.u64 %a{p}, %a{a}, %a{b};"), Made::Pointer),
            9 => (format!("max.u64 %a{p}, %a{a}, %a{b};"), Made::Pointer),
            10 => (
                format!("mov.b64 {{%l, %h}}, %a{a}; mov.b64 %a{p}, {{%l, %h}};"),
                Made::Pointer,
            ),
            11 => (
                format!(
                    "{{ .reg .b32 %x, %y, %z; mov.b64 {{%x, %y}}, %a{a}; mov.b64 {{%z, %y}}, %a{b}; selp.b32 %x, %x, %z, %p; \
                     mov.b64 %a{p}, {{%x, %y}}; }}"
                ),
                Made::Pointer,
            ),
            12 => (
                format!(
                    "{{ .reg .b32 %x, %y; mov.b64 {{%x, %y}}, %a{a}; shfl.sync.bfly.b32 %x, %x, 1, 31, -1; \
                     shfl.sync.bfly.b32 %y, %y, 1, 31, -1; mov.b64 %a{p}, {{%x, %y}}; }}"
                ),
                Made::Pointer,
            ),
            13 => (
                format!("st.shared.u64 [%mine], %a{a}; ld.shared.u64 %a{p}, [%mine];"),
                Made::Pointer,
            ),
            14 => (
                format!("st.local.u64 [own], %a{a}; ld.local.u64 %a{p}, [own];"),
                Made::Pointer,
            ),
            15 => (
                format!("st.global.u64 [%a{b}+504], %a{a}; ld.global.u64 %a{p}, [%a{b}+504];"),
                Made::Pointer,
            ),
            16 | 17 => (
                format!("and.b64 %t, %v{v}, 8; add.u64 %a{p}, %a{a}, %t;"),
                Made::Pointer,
            ),
            18 => (
                format!("ld.param.u64 %a{p}, [s+{}];", random.below(2) * 8),
                Made::Pointer,
            ),
            19 => (
                format!("ld.param.v2.u64 {{%a{p}, %t}}, [s];"),
                Made::Pointer,
            ),
            20 => (format!("setp.lt.u64 %p, %v{v}, %v{w};"), Made::Nothing),
            21 => (
                format!("atom.global.add.u64 %v{n}, [%a{a}+{offset}], 1;"),
                Made::Number,
            ),
            22 => (format!("mov.u64 %a{to}, %a{b};"), Made::Nothing),
            23 => (format!("mad.lo.u64 %v{n}, %v{v}, 5, %v{w};"), Made::Number),
            _ => (format!("selp.b64 %a{p}, %a{a}, %a{b}, %p;"), Made::Pointer),
        };
        writeln!(body, "{text}").expect("text");
        match made {
            Made::Pointer => pointers += 1,
            Made::Number => numbers += 1,
            Made::Nothing => {}
        }
    }
    format!(
        ".version 7.5\n.target sm_75\n.address_size 64\n\
         .visible .entry k(.param .u64 p0, .param .u64 p1, .param .u64 p2, .param .align 8 .b8 s[16])\n{{\n\
         .reg .b64 %a<40>; .reg .b64 %v<40>; .reg .b64 %t; .reg .b32 %r<3>; .reg .b32 %mine, %l, %h; .reg .pred %p; .reg .pred %q;\n\
         .shared .align 8 .b8 tile[256]; .local .align 8 .b8 own[8];\n\
         ld.param.u64 %a0, [p0]; ld.param.u64 %a1, [p1]; ld.param.u64 %a2, [p2]; mov.u64 %a3, %a0; mov.u64 %a4, %a0;\n\
         mov.u32 %r0, %tid.x; cvt.u64.u32 %v0, %r0; mov.u64 %v1, 77; mov.u64 %v2, 3; setp.lt.u32 %p, %r0, 3;\n\
         mov.u32 %r2, tile; mad.lo.u32 %mine, %r0, 8, %r2; mov.u32 %r1, 0;\nMORE:\n{body}\
         add.u32 %r1, %r1, 1; setp.lt.u32 %q, %r1, 3; @%q bra MORE;\nret;\n}}\n"
    )
}

/// Whether a kernel can be done again that has these parameters, the blocks being of so many bytes.
fn is_repeatable(text: &str, parameters: &[u64], blocks: &[u64], bytes: u64) -> bool {
    let module = ptx::parse(text).expect("PTX");
    let Ok(found) = ptx::pointers::pointers(&module, "k") else {
        return false;
    };
    let words: Vec<u8> = parameters.iter().flat_map(|it| it.to_le_bytes()).collect();
    let touched = |places: &BTreeSet<ptx::pointers::Place>| -> BTreeSet<u64> {
        let offsets = places.iter().flat_map(|place| &place.offsets);
        let values = offsets.map(|&at| {
            let bytes = words[at as usize..].first_chunk().expect("a parameter");
            u64::from_le_bytes(*bytes)
        });
        let block = |value: u64| blocks.iter().find(|&&it| (it..it + bytes).contains(&value));
        values.filter_map(|value| block(value).copied()).collect()
    };
    touched(&found.reads).is_disjoint(&touched(&found.writes))
}

#[test]
fn what_can_be_done_again_leaves_what_one_run_leaves() {
    let mut random = Random(19);
    let (mut repeated, mut different) = (0, 0);
    for round in 0..4000 {
        let text = kernel(&mut random);
        let mut gpu = Gpu::with(&text, &Default::default(), 16);
        let first: Vec<u64> = (0..WORDS as u64).map(|at| at * 3 + 1).collect();
        let blocks: Vec<u64> = (0..8).map(|_| gpu.upload(&first)).collect();
        let parameters: Vec<u64> = (0..5)
            .map(|_| blocks[random.below(8) as usize] + random.below(2) * 8)
            .collect();
        let args = parameters
            .iter()
            .fold(Args::new(), |args, &it| args.u64(it));
        let reset = || blocks.iter().for_each(|&block| gpu.write(block, &first));
        let look = || {
            blocks
                .iter()
                .map(|&block| gpu.read::<u64>(block, WORDS))
                .collect::<Vec<_>>()
        };
        if gpu.try_run("k", 1, 32, 0, &args).is_err() {
            continue;
        }
        let once = look();
        // Cut off after some instructions, and done again.
        reset();
        let launch = gpu.launch("k", 1, 32, 0, &args);
        let mut cluster = Cluster::new(launch, 0, 0).expect("a cluster");
        let outcome = cluster.run(1 + random.below(60));
        let is_cut_off = matches!(outcome, Outcome::Yielded | Outcome::Waits);
        let is_whole = gpu.try_run("k", 1, 32, 0, &args).is_ok() && look() == once;
        if is_repeatable(&text, &parameters, &blocks, 8 * WORDS as u64) {
            assert!(is_whole, "round {round}: {parameters:x?}\n{text}");
            repeated += u64::from(is_cut_off && once.iter().any(|block| *block != first));
        }
        different += u64::from(!is_whole);
    }
    // Both kinds occur, or the test tests nothing.
    assert!(
        repeated > 100 && different > 100,
        "{repeated} repeated, {different} different"
    );
}
