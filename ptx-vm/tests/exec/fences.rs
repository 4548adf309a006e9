//! Fenced programs (`ptx::fence`) on the executor, in memory that it would let them reach: what they must not reach is
//! a neighbour's, and the fence alone stands between.

use ptx::fence::{Fault, PAGE, VARIABLE, VARIABLES, Windows, fence};

use crate::gpu::{Args, Gpu};

/// Every address is inside.
const ALL: Windows = Windows {
    base: 0,
    size: !127,
    table: 0,
    count: 0,
    record: 0,
};
const CANARY: u32 = 0xc5c5_c5c5;
/// Bytes of the client's first window.
const OWN: u64 = 4096;
/// Bytes of its second one, behind which the same memory goes on.
const SECOND: u64 = PAGE;

/// A text with fences that let everything through; nothing if it is refused.
pub fn fenced_or_empty(text: &str) -> String {
    let fenced = fence(text, &ALL, &|_| false, ptx::Budget::default());
    fenced.map(|fenced| fenced.text).unwrap_or_default()
}

/// A client with two windows, between and around which neighbours have memory.
struct Client {
    gpu: Gpu,
    own: u64,
    second: u64,
    neighbours: Vec<u64>,
    record: u64,
}

impl Client {
    fn new(text: &str) -> Self {
        let none = Windows { size: 0, ..ALL };
        let fenced = fence(text, &none, &|_| false, ptx::Budget::default())
            .unwrap_or_else(|error| panic!("{error}: {text}"));
        assert!(fenced.checked > 0, "nothing is checked in {text}");
        let mut gpu = Gpu::new(&fenced.text);
        let canaries = [CANARY; OWN as usize / 4];
        let mut neighbours = vec![gpu.upload(&canaries)];
        let own = gpu.upload(&[0_u8; OWN as usize]);
        neighbours.push(gpu.upload(&canaries));
        // All of the granule is there for the executor, and the client has the first page.
        let second = gpu.upload(&[CANARY; 2 * SECOND as usize / 4]);
        gpu.write(second, &[0_u8; SECOND as usize]);
        neighbours.push(second);
        let record = gpu.upload(&[0_u64; 2]);
        // Words of nothing may stand between.
        let table = gpu.upload(&[0, Windows::word(second, SECOND).unwrap(), 0]);
        let windows = Windows {
            base: own,
            size: OWN,
            table,
            count: 3,
            record,
        };
        gpu.write(gpu.global(VARIABLE), &windows.words());
        Self {
            gpu,
            own,
            second,
            neighbours,
            record,
        }
    }

    /// Runs `k`; gives what its fault record says.
    fn run(&self, args: &Args) -> Option<(u32, u64)> {
        self.gpu.write(self.record, &[0_u64; 2]);
        self.gpu.run("k", 1, 1, args);
        let [first, address] = self.gpu.read::<u64>(self.record, 2)[..] else {
            unreachable!()
        };
        (first != 0).then_some((first as u32, address))
    }

    /// Whether nobody's memory was written but the client's.
    fn neighbours_are_whole(&self) -> bool {
        self.neighbours.iter().all(|&start| {
            let beyond = if start == self.second { SECOND } else { 0 };
            let words = self.gpu.read::<u32>(start + beyond, OWN as usize / 4);
            words.iter().all(|&word| word == CANARY)
        })
    }
}

/// A kernel that does this with the address `%a`, then says in memory of the client's that it went on.
fn kernel(form: &str) -> String {
    format!(
        ".version 9.0\n.target sm_90\n.address_size 64\n\
         .visible .entry k(.param .u64 address, .param .u64 out) {{\n\
         .shared .align 16 .b8 tile[256]; .shared .align 8 .b64 bar;\n\
         .reg .b64 %a, %out, %x<4>; .reg .b32 %r<8>, %n; .reg .b16 %h<4>; .reg .f32 %f<4>; .reg .pred %p, %q;\n\
         ld.param.u64 %a, [address]; ld.param.u64 %out, [out];\n\
         mov.u32 %r0, 7; mov.u32 %r1, 7; mov.u32 %r2, 7; mov.u32 %r3, 7; mov.u64 %x0, 7; mov.u64 %x1, 7;\n\
         mov.u16 %h0, 7; mov.f32 %f0, 0f3F800000; mov.u32 %n, 32; setp.eq.u32 %p, %r0, 7; setp.ne.u32 %q, %r0, 7;\n\
         mbarrier.init.shared.b64 [bar], 1;\n\
         {form}\n\
         st.global.u32 [%out], 1;\nst.global.u32 [%out+4], %r0;\nret;\n}}\n"
    )
}

/// Instructions and how many bytes each accesses, with alignment alike.
const FORMS: &[(&str, u64)] = &[
    ("ld.global.u8 %r0, [%a];", 1),
    ("ld.global.u16 %h0, [%a];", 2),
    ("ld.global.u32 %r0, [%a];", 4),
    ("ld.u32 %r0, [%a];", 4),
    ("ld.volatile.global.u32 %r0, [%a];", 4),
    ("ld.relaxed.gpu.global.u32 %r0, [%a];", 4),
    ("ld.acquire.sys.u32 %r0, [%a];", 4),
    ("ld.global.nc.f32 %f0, [%a];", 4),
    (
        "ld.global.nc.L1::no_allocate.L2::128B.v2.u32 {%r0, %r1}, [%a];",
        8,
    ),
    ("ld.global.v4.u32 {%r0, %r1, %r2, %r3}, [%a];", 16),
    ("ld.v2.u64 {%x0, %x1}, [%a];", 16),
    ("ldu.global.u32 %r0, [%a];", 4),
    ("@%p ld.global.u32 %r0, [%a];", 4),
    ("@!%q ld.global.u32 %r0, [%a];", 4),
    ("st.global.u8 [%a], %r0;", 1),
    ("st.global.u32 [%a], %r0;", 4),
    ("st.u64 [%a], %x0;", 8),
    ("st.global.v4.u32 [%a], {%r0, %r1, %r2, %r3};", 16),
    ("st.release.gpu.global.u32 [%a], %r0;", 4),
    ("@%p st.u32 [%a], %r0;", 4),
    ("atom.global.add.u32 %r0, [%a], 1;", 4),
    ("atom.add.u64 %x0, [%a], 1;", 8),
    ("atom.global.cas.b64 %x0, [%a], 0, 1;", 8),
    ("atom.global.exch.b32 %r0, [%a], 5;", 4),
    ("atom.global.add.f32 %f0, [%a], %f0;", 4),
    ("red.global.add.u32 [%a], 1;", 4),
    ("red.max.u64 [%a], 9;", 8),
    ("prefetch.global.L2 [%a];", 1),
    (
        "cp.async.ca.shared.global [tile], [%a], 4; cp.async.wait_all;",
        4,
    ),
    (
        "cp.async.cg.shared.global [tile], [%a], 16; cp.async.wait_all;",
        16,
    ),
    (
        "cp.async.ca.shared.global [tile], [%a], 8, 8; cp.async.wait_all;",
        8,
    ),
    (
        "cp.async.bulk.global.shared::cta.bulk_group [%a], [tile], 32; cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;",
        32,
    ),
    (
        "cp.async.bulk.global.shared::cta.bulk_group [%a], [tile], %n; cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;",
        32,
    ),
    (
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%a], [tile], 32; cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;",
        32,
    ),
    (
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [tile], [%a], 32, [bar];",
        32,
    ),
    ("cp.async.bulk.prefetch.L2.global [%a], 32;", 32),
];

#[test]
fn what_is_inside_goes_on_and_what_is_outside_is_not_made() {
    for &(form, bytes) in FORMS {
        let client = Client::new(&kernel(form));
        let (own, second) = (client.own, client.second);
        let out = own + OWN / 2;
        let align = bytes.min(16);
        let last = SECOND / bytes * bytes - bytes;
        let inside = [own, own + OWN - bytes, second, second + last / 16 * 16];
        for address in inside {
            client.gpu.write(out, &[0_u64]);
            let fault = client.run(&Args::new().ptr(address).ptr(out));
            assert_eq!(
                fault,
                None,
                "{form} at {:+}",
                address.wrapping_sub(own) as i64
            );
            assert_eq!(client.gpu.read::<u32>(out, 1), [1], "{form} did not go on");
        }
        // By one step beyond each end, straddling the end, a neighbour's, far, null, about to wrap.
        let beyond = [
            own - align,
            own + OWN,
            own + OWN - bytes + align,
            second - align,
            (second + SECOND).next_multiple_of(align),
            client.neighbours[0],
            client.neighbours[1] + 64,
            client.record,
            1 << 46,
            0,
            0_u64.wrapping_sub(align),
            i64::MAX as u64 & !(align - 1),
        ];
        let outside = beyond.into_iter().filter(|&at| at != own + OWN - bytes);
        for address in outside {
            client.gpu.write(out, &[0_u64]);
            let fault = client.run(&Args::new().ptr(address).ptr(out));
            assert_eq!(
                fault,
                Some((Fault::Address as u32, address)),
                "{form} at {address:x}, own is {own:x}"
            );
            assert!(client.neighbours_are_whole(), "{form} wrote at {address:x}");
            assert_eq!(client.gpu.read::<u64>(out, 1), [0], "{form} went on");
        }
        if align > 1 {
            for address in [
                own + 1,
                own + OWN - 1,
                own + align / 2,
                client.neighbours[0] + 1,
            ] {
                let fault = client.run(&Args::new().ptr(address).ptr(out));
                assert_eq!(fault, Some((Fault::Misaligned as u32, address)), "{form}");
            }
        }
    }
}

#[test]
fn the_second_window_ends_at_its_last_byte() {
    let client = Client::new(&kernel("st.global.u8 [%a], %r0;"));
    let out = client.own + 64;
    let at = |address| client.run(&Args::new().ptr(address).ptr(out));
    assert_eq!(at(client.second + SECOND - 1), None);
    let next = client.second + SECOND;
    assert_eq!(at(next), Some((Fault::Address as u32, next)));
    let form = "cp.async.bulk.global.shared::cta.bulk_group [%a], [tile], 32; cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;";
    let client = Client::new(&kernel(form));
    let straddles = client.second + SECOND - 16;
    let fault = client.run(&Args::new().ptr(straddles).ptr(out));
    assert_eq!(fault, Some((Fault::Address as u32, straddles)));
    assert!(client.neighbours_are_whole());
}

#[test]
fn offsets_count_and_wrap() {
    for (form, offset) in [
        ("ld.global.u32 %r0, [%a+-4];", -4),
        ("st.global.u32 [%a+4096], %r0;", 4096),
        ("st.global.u32 [%a-8], %r0;", -8),
        ("atom.add.u32 %r0, [%a+2147483644], 1;", 2_147_483_644),
    ] {
        let client = Client::new(&kernel(form));
        let args = Args::new().ptr(client.own).ptr(client.own);
        let place = client.own.wrapping_add_signed(offset);
        assert_eq!(
            client.run(&args),
            Some((Fault::Address as u32, place)),
            "{form}"
        );
        let back = client.own.wrapping_add_signed(-offset);
        let args = Args::new().ptr(back).ptr(client.own + 64);
        assert_eq!(client.run(&args), None, "{form} from {back:x}");
        assert!(client.neighbours_are_whole());
    }
}

#[test]
fn a_guard_that_is_false_needs_no_check() {
    for form in [
        "@%q ld.global.u32 %r0, [%a];",
        "@!%p st.global.u32 [%a], %r0;",
        "@%q trap;",
        "cp.async.ca.shared.global [tile], [%a], 4, 0; cp.async.wait_all;",
        "@%q cp.async.bulk.prefetch.L2.global [%a], 32;",
    ] {
        let client = Client::new(&kernel(form));
        let out = client.own;
        assert_eq!(client.run(&Args::new().ptr(0).ptr(out)), None, "{form}");
        assert_eq!(client.gpu.read::<u32>(out, 2)[0], 1, "{form}");
    }
}

#[test]
fn generic_addresses_of_the_blocks_own_memory_are_let_through() {
    for form in [
        ".reg .b64 %t; .reg .b32 %u; mov.u64 %t, tile; cvta.shared.u64 %t, %t; st.u32 [%t+8], %r0; ld.u32 %r0, [%t+8];",
        "{ .local .align 8 .b8 depot[16]; .reg .b64 %t; mov.u64 %t, depot; cvta.local.u64 %t, %t; st.u32 [%t+8], %r0; ld.u32 %r0, [%t+8]; }",
        ".reg .b64 %t; mov.u64 %t, tile; st.shared.u32 [tile+4], %r0; cvta.shared.u64 %t, %t; atom.add.u32 %r0, [%t+4], 1;",
    ] {
        let client = Client::new(&kernel(form));
        let args = Args::new().ptr(0).ptr(client.own);
        assert_eq!(client.run(&args), None, "{form}");
        assert_eq!(client.gpu.read::<u32>(client.own, 2), [1, 7], "{form}");
    }
}

#[test]
fn a_trap_ends_its_thread_and_is_told() {
    for form in ["trap;", "@%p trap;", "@!%q trap;"] {
        let client = Client::new(&kernel(form));
        let fault = client.run(&Args::new().ptr(0).ptr(client.own));
        assert_eq!(fault, Some((Fault::Trap as u32, 0)), "{form}");
        assert_eq!(client.gpu.read::<u32>(client.own, 1), [0], "{form}");
    }
}

#[test]
fn variables_are_reached_by_name_inside_and_checked_beyond() {
    let text = ".version 9.0\n.target sm_75\n.address_size 64\n.visible .global .align 4 .b32 table[4];\n\
        .visible .entry k(.param .u64 a, .param .u64 o) { .reg .b32 %r<4>; mov.u32 %r0, 3;\n\
        st.global.u32 [table+12], %r0;\nPLACE ret; }";
    let client = Client::new(&text.replace("PLACE", "st.global.u32 [table+16], %r0;"));
    let table = client.gpu.global("table");
    let fault = client.run(&Args::new().ptr(0).ptr(0));
    assert_eq!(fault, Some((Fault::Address as u32, table + 16)));
    assert_eq!(client.gpu.read::<u32>(table, 4), [0, 0, 0, 3]);
}

/// What a kernel does by address with variables of its own, of every linkage that this text decides, and the word behind one.
#[test]
fn variables_are_reached_by_address_and_no_further() {
    let text = ".version 9.0\n.target sm_75\n.address_size 64\n.global .align 4 .b32 hidden[3];\n\
        .visible .global .align 4 .b32 table[4];\n.weak .global .align 8 .b8 bytes[8];\n\
        .visible .entry k(.param .u64 a, .param .u64 o) { .reg .b32 %r<4>; .reg .b64 %a, %x; mov.u32 %r0, 3;\n\
        ld.param.u64 %a, [a]; mov.u64 %x, NAME; add.s64 %x, %x, %a; st.global.u32 [%x], %r0; ret; }";
    for (name, bytes) in [("hidden", 12), ("table", 16), ("bytes", 8)] {
        let client = Client::new(&text.replace("NAME", name));
        let at = client.gpu.global(name);
        for offset in (0..bytes).step_by(4) {
            assert_eq!(
                client.run(&Args::new().u64(offset)),
                None,
                "{name}+{offset}"
            );
            assert_eq!(client.gpu.read::<u32>(at + offset, 1), [3], "{name}");
        }
        for offset in [bytes, 0_u64.wrapping_sub(4)] {
            let fault = client.run(&Args::new().u64(offset));
            let place = at.wrapping_add(offset);
            assert_eq!(fault, Some((Fault::Address as u32, place)), "{name}");
        }
        // The lists that say so are in no window.
        let list = client.gpu.global(VARIABLES);
        let fault = client.run(&Args::new().u64(list.wrapping_sub(at)));
        assert_eq!(fault, Some((Fault::Address as u32, list)));
    }
}

/// A kernel that calls what `%a` points to, or jumps by it.
const CALLS: &str = ".version 9.0\n.target sm_75\n.address_size 64\n\
    .func (.param .b32 r) seven() { .reg .b32 %v; mov.u32 %v, 7; st.param.b32 [r], %v; ret; }\n\
    .func (.param .b32 r) never() { .reg .b32 %v; mov.u32 %v, 8; st.param.b32 [r], %v; ret; }\n\
    .visible .entry k(.param .u64 a, .param .u64 o) { .reg .b32 %r<4>; .reg .b64 %a, %o, %f; .reg .pred %p;\n\
    ld.param.u64 %a, [a]; ld.param.u64 %o, [o]; mov.u64 %f, seven; setp.ne.u64 %p, %a, 0; @%p add.s64 %f, %f, %a;\n\
    { .param .b32 back; PROTO: .callprototype (.param .b32 _) _ ();\n\
    call (back), %f, (), PROTO; ld.param.b32 %r0, [back]; }\n\
    st.global.u32 [%o], %r0; ret; }";

#[test]
fn calls_go_to_functions_whose_addresses_the_text_takes() {
    let client = Client::new(CALLS);
    let out = client.own;
    assert_eq!(client.run(&Args::new().ptr(0).ptr(out)), None);
    assert_eq!(client.gpu.read::<u32>(out, 1), [7]);
    for forged in [1, 8, 16, 1 << 40] {
        let (kind, _) = client.run(&Args::new().ptr(forged).ptr(out)).unwrap();
        assert_eq!(kind, Fault::Target as u32, "{forged}");
    }
}

#[test]
fn branches_go_to_the_labels_of_their_list() {
    let text = ".version 9.0\n.target sm_75\n.address_size 64\n\
        .visible .entry k(.param .u64 a, .param .u64 o) { .reg .b32 %r<4>; .reg .b64 %o; LIST: .branchtargets A, B;\n\
        ld.param.u32 %r1, [a]; ld.param.u64 %o, [o]; mov.u32 %r0, 9; brx.idx %r1, LIST;\n\
        A: mov.u32 %r0, 1; bra END;\nB: mov.u32 %r0, 2;\nEND: st.global.u32 [%o], %r0; ret; }";
    let client = Client::new(text);
    let out = client.own;
    for index in 0..2 {
        assert_eq!(client.run(&Args::new().ptr(index).ptr(out)), None);
        assert_eq!(client.gpu.read::<u32>(out, 1), [index as u32 + 1]);
    }
    for index in [2, 3, 0xffff_ffff] {
        let fault = client.run(&Args::new().ptr(index).ptr(out));
        assert_eq!(fault, Some((Fault::Target as u32, index)));
    }
}
