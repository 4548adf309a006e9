//! Random kernels with random addresses: whatever they do, nothing beyond their own memory changes.

use std::fmt::Write;

use ptx_vm::{Module, instructions};

use crate::gpu::{Args, Gpu};

/// A small generator, so that a failure can be repeated from its seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let mixed = (self.0 ^ (self.0 >> 31)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        mixed ^ (mixed >> 29)
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[(self.next() % from.len() as u64) as usize]
    }
}

/// A kernel of random accesses and random arithmetic on its addresses.
fn kernel(random: &mut Random) -> String {
    let mut body = String::new();
    for n in 0..1 + random.next() % 16 {
        let space = random.pick(&["global.", "", "shared.", "local.", "volatile.global.", ""]);
        // The block's own arrays are reached by their names, up to some way beyond their ends.
        let near = random.next() % 80 * 4;
        let (kind, register) =
            [("u8", "%h"), ("u16", "%h"), ("u32", "%r"), ("u64", "%v")][random.next() as usize % 4];
        let address = random.next() % 4;
        let value = random.next() % 4;
        let offset = (random.next() as i16 / 4) & !15;
        let place = match space {
            "shared." => format!("tile+{near}"),
            "local." => format!("own+{near}"),
            _ => format!("%a{address}+{offset}"),
        };
        let guard = random.pick(&["", "", "@%p0 ", "@!%p0 "]);
        let near = random.next() as i8;
        let _ = match random.next() % 14 {
            0 | 1 => writeln!(
                body,
                "{guard}ld.{space}{kind} {register}{value}, [{place}];"
            ),
            2 | 3 => writeln!(
                body,
                "{guard}st.{space}{kind} [{place}], {register}{value};"
            ),
            4 => writeln!(
                body,
                "{guard}st.global.v4.u32 [%a{address}+{offset}], {{%r0, %r1, %r2, %r3}};"
            ),
            5 => writeln!(
                body,
                "{guard}atom.global.add.u32 %r{value}, [%a{address}+{offset}], %r0;"
            ),
            6 => writeln!(body, "{guard}red.add.u64 [%a{address}], %v{value};"),
            7 => writeln!(
                body,
                "{guard}ld.global.v2.u64 {{%v2, %v{value}}}, [%a{address}+{offset}];"
            ),
            8 => writeln!(
                body,
                "{guard}ld.shared.{kind} {register}{value}, [%s{}+{near}];",
                address % 2
            ),
            9 => writeln!(
                body,
                "{guard}st.shared.{kind} [%s{}+{near}], {register}{value};",
                address % 2
            ),
            10 => writeln!(
                body,
                "{guard}red.shared.add.u32 [%s{}+{near}], %r{value};",
                address % 2
            ),
            11 => writeln!(body, "mad.lo.s32 %s1, %r{value}, 8, %s{};", address % 2),
            12 => writeln!(
                body,
                "add.s64 %a{address}, %a{}, %v{value};",
                (address + n) % 4
            ),
            _ => writeln!(body, "mad.lo.s64 %a{address}, %v{value}, 8, %a{address};"),
        };
    }
    format!(
        ".version 7.5\n.target sm_75\n.address_size 64\n\
         .visible .entry wild(.param .u64 p0, .param .u64 p1, .param .u64 p2, .param .u64 p3)\n{{\n\
         .reg .b64 %a<4>; .reg .b64 %v<4>; .reg .b32 %r<5>; .reg .b32 %s<2>; .reg .b16 %h<4>; .reg .pred %p<1>;\n\
         .shared .align 8 .b8 tile[256]; .local .align 8 .b8 own[64];\n\
         ld.param.u64 %a0, [p0];\nld.param.u64 %a1, [p1];\nld.param.u64 %a2, [p2];\nld.param.u64 %a3, [p3];\n\
         mov.u32 %r4, %tid.x;\nsetp.lt.u32 %p0, %r4, 13;\ncvt.u64.u32 %v0, %r4;\n\
         shl.b64 %v1, %v0, 3;\nmov.u64 %v2, %clock64;\nmov.u64 %v3, -8;\n\
         mov.u32 %r0, 7; mov.u32 %r1, %r4; mov.u32 %r2, -1; mov.u32 %r3, 0;\n\
         mov.u16 %h0, 1; mov.u16 %h1, 2; mov.u16 %h2, 3; mov.u16 %h3, 4;\n\
         add.s64 %a0, %a0, %v1;\nshl.b32 %s0, %r4, 2; mov.u32 %s1, 64;\n{body}ret;\n}}\n"
    )
}

#[test]
fn random_kernels_change_nothing_but_their_own_memory() {
    const CANARY: u64 = 0xC0DE_D00D_5EED_F00D;
    const WORDS: usize = 8 << 10;
    let mut random = Random(2026);
    // A neighbour's device memory, memory of this process, and a place on its stack.
    let mut neighbour = Gpu::new(&kernel(&mut random));
    let theirs = neighbour.upload(&vec![CANARY; WORDS]);
    let heap = vec![CANARY; WORDS];
    let stack = [CANARY; 64];
    let (mut ended, mut faulted) = (0, 0);
    for round in 0..1500 {
        let text = kernel(&mut random);
        let mut gpu = Gpu::with(&text, &Default::default(), 16);
        let own = gpu.upload(&vec![0u64; WORDS]);
        // Between its two blocks lies memory of its window that it was not given.
        let hidden = gpu.upload(&vec![CANARY; WORDS]);
        let other = gpu.upload(&vec![0u64; WORDS]);
        gpu.window.set_valid(hidden, WORDS as u64 * 8, false);
        let places = [
            own + 16384,
            own + 32768,
            other + 16384,
            other + 32 * 1024,
            hidden - 8,
            hidden + 64,
            theirs + 128,
            heap.as_ptr() as u64 + 64,
            stack.as_ptr() as u64,
            kernel as *const () as u64,
            gpu.window.base(),
            gpu.window.base() + gpu.window.len() - 8,
            u64::MAX - random.next() % 64,
            random.next() % 4096,
            random.next() >> 16,
            random.next(),
        ];
        // Every other kernel starts from addresses that are its own.
        let reach = if round % 2 == 0 { 3 } else { places.len() };
        let mut args = Args::new();
        for _ in 0..4 {
            args = args.u64(places[random.next() as usize % reach]);
        }
        match gpu.try_run("wild", 2, 48, 0, &args) {
            Ok(_) => ended += 1,
            Err(_) => faulted += 1,
        }
        gpu.window.set_valid(hidden, WORDS as u64 * 8, true);
        let whole = |words: &[u64]| words.iter().all(|word| *word == CANARY);
        assert!(
            whole(&gpu.read::<u64>(hidden, WORDS)),
            "round {round}: what it was not given\n{text}"
        );
        assert!(
            whole(&neighbour.read::<u64>(theirs, WORDS)),
            "round {round}: a neighbour's\n{text}"
        );
        assert!(
            whole(&heap) && whole(&stack),
            "round {round}: the process's own\n{text}"
        );
    }
    // Both kinds occur, or the test tests nothing.
    assert!(
        ended > 20 && faulted > 20,
        "{ended} ended, {faulted} faulted"
    );
}

/// A loop that goes to elements of arrays by indices that it finds in memory.
fn loop_kernel(random: &mut Random) -> String {
    let mut body = String::new();
    for n in 0..1 + random.next() % 5 {
        let (kind, register) =
            [("u8", "%h"), ("u16", "%h"), ("u32", "%r"), ("u64", "%v")][random.next() as usize % 4];
        let index = random.pick(&["%i1", "%i2"]);
        let _ = match random.next() % 3 {
            0 => writeln!(
                body,
                "mul.wide.u32 %x, {index}, {};",
                1 << (random.next() % 4)
            ),
            1 => writeln!(
                body,
                "mul.wide.s32 %x, {index}, {};",
                1 << (random.next() % 4)
            ),
            _ => writeln!(body, "cvt.u64.u32 %x, {index};"),
        };
        let offset = (random.next() as i8 / 4) & !7;
        let guard = random.pick(&["", "", "@%p0 ", "@!%p0 "]);
        let base = 1 + random.next() % 3;
        let _ = writeln!(body, "add.s64 %y{n}, %a{base}, %x;");
        let _ = match random.next() % 3 {
            0 => writeln!(
                body,
                "{guard}st.global.{kind} [%y{n}+{offset}], {register}1;"
            ),
            _ => writeln!(
                body,
                "{guard}ld.global.{kind} {register}1, [%y{n}+{offset}];"
            ),
        };
        let _ = match random.next() % 5 {
            0 => writeln!(body, "add.u32 %i2, %i1, {};", random.next() as i16),
            1 => writeln!(body, "xor.b32 %i2, %i2, %r1;"),
            2 => writeln!(body, "xor.b64 %v1, %v1, %y{n};"),
            _ => Ok(()),
        };
    }
    format!(
        ".version 7.5\n.target sm_75\n.address_size 64\n\
         .visible .entry wild(.param .u64 p0, .param .u64 p1, .param .u64 p2, .param .u64 p3)\n{{\n\
         .reg .b64 %a<4>; .reg .b64 %v<2>; .reg .b64 %x; .reg .b64 %y<6>; .reg .b32 %r<5>; .reg .b32 %i<4>; .reg .b16 %h<2>; .reg .pred %p<2>;\n\
         ld.param.u64 %a0, [p0];\nld.param.u64 %a1, [p1];\nld.param.u64 %a2, [p2];\nld.param.u64 %a3, [p3];\n\
         mov.u32 %r4, %tid.x; mov.u32 %i0, %r4; and.b32 %i3, %r4, 7; mov.u32 %i2, %r4; mov.u32 %r1, 7; mov.u16 %h1, 3; mov.u64 %v1, 5;\n\
         IN:\nmul.wide.u32 %x, %i0, 4; add.s64 %y5, %a0, %x; ld.global.u32 %i1, [%y5]; setp.lt.u32 %p0, %i1, 4096;\n{body}\
         add.u32 %i0, %i0, 48; sub.u32 %i3, %i3, 1; setp.lt.s32 %p1, %i3, 0;\n@!%p1 bra IN;\nst.global.u64 [%a0], %v1;\nret;\n}}\n"
    )
}

#[test]
fn random_loops_change_nothing_but_their_own_memory() {
    const CANARY: u32 = 0x5EED_F00D;
    const WORDS: usize = 16 << 10;
    let mut random = Random(2028);
    let (mut ended, mut faulted) = (0, 0);
    for round in 0..600 {
        let text = loop_kernel(&mut random);
        let mut gpu = Gpu::with(&text, &Default::default(), 16);
        // Indices that lead nowhere in few kernels, in others everywhere.
        let most = [4096, 4096, 1 << 16, u64::from(u32::MAX)][round % 4];
        let own: Vec<u32> = (0..WORDS)
            .map(|_| (random.next() % (most + 1)) as u32)
            .collect();
        let own = gpu.upload(&own);
        let hidden = gpu.upload(&vec![CANARY; WORDS]);
        let other = gpu.upload(&vec![0_u32; WORDS]);
        gpu.window.set_valid(hidden, WORDS as u64 * 4, false);
        let places = [
            own + 16384,
            other + 16384,
            other + 32768,
            own + 32764,
            other - 4,
            hidden + 64,
            other + WORDS as u64 * 4 - 4,
            0,
            u64::MAX - 63,
        ];
        let reach = if round % 2 == 0 { 3 } else { places.len() };
        let mut args = Args::new().u64(own);
        for _ in 0..3 {
            args = args.u64(places[random.next() as usize % reach]);
        }
        match gpu.try_run("wild", 2, 48, 0, &args) {
            Ok(()) => ended += 1,
            Err(_) => faulted += 1,
        }
        gpu.window.set_valid(hidden, WORDS as u64 * 4, true);
        let whole = gpu
            .read::<u32>(hidden, WORDS)
            .iter()
            .all(|word| *word == CANARY);
        assert!(whole, "round {round}: what it was not given\n{text}");
    }
    assert!(
        ended > 20 && faulted > 20,
        "{ended} ended, {faulted} faulted"
    );
}

#[test]
fn kernels_of_any_instructions_change_nothing_but_their_own_memory() {
    const CANARY: u64 = 0xC0DE_D00D_5EED_F00D;
    const WORDS: usize = 8 << 10;
    let mut random = Random(2027);
    let is_built = |form: &String| {
        let text = instructions::head("120a") + &instructions::entry("k", form);
        let tree = ptx::parse(&text);
        tree.is_ok_and(|tree| Module::load(&tree, &Default::default()).is_ok())
    };
    let rows = instructions::rows();
    let forms = rows.iter().flat_map(|row| row.forms());
    // Those with addresses that anything may be in are the ones that could do harm.
    let forms: Vec<String> = forms
        .filter(|form| form.contains('['))
        .filter(is_built)
        .collect();
    let (mut ended, mut faulted) = (0, 0);
    for round in 0..400 {
        let chosen: Vec<String> = (0..6)
            .map(|_| {
                let form = &forms[random.next() as usize % forms.len()];
                // Their own places, or what stands in a register.
                match random.next() % 4 {
                    0 => form.replace("[%g", "[%x9").replace("[%s", "[%x9"),
                    1 => form.replace("[%s", "[%x8"),
                    _ => form.clone(),
                }
            })
            .collect();
        let text = instructions::head("120a") + &instructions::entry("k", &chosen.join("\n"));
        let Ok(tree) = ptx::parse(&text) else {
            continue;
        };
        if Module::load(&tree, &Default::default()).is_err() {
            continue;
        }
        let mut gpu = Gpu::with(&text, &Default::default(), 16);
        gpu.cluster = (round % 3 == 0).then_some([2, 1, 1]);
        let own: Vec<u64> = (0..WORDS)
            .map(|_| random.next() >> (random.next() % 64))
            .collect();
        let own = gpu.upload(&own);
        let hidden = gpu.upload(&vec![CANARY; WORDS]);
        gpu.window.set_valid(hidden, WORDS as u64 * 8, false);
        match gpu.try_run("k", 2, 32, 0, &Args::new().ptr(own)) {
            Ok(()) => ended += 1,
            Err(_) => faulted += 1,
        }
        gpu.window.set_valid(hidden, WORDS as u64 * 8, true);
        let whole = gpu
            .read::<u64>(hidden, WORDS)
            .iter()
            .all(|word| *word == CANARY);
        assert!(whole, "round {round}: what it was not given\n{text}");
    }
    assert!(
        ended > 20 && faulted > 20,
        "{ended} ended, {faulted} faulted"
    );
}
