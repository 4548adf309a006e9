//! Matrices of bytes, and of elements of four and six bits, that a warp loads and stores: against where the elements go, one
//! by one.

use crate::gpu::{Args, Gpu};

const HEAD: &str = ".version 9.0\n.target sm_120a\n.address_size 64\n";

/// Runs a warp: what it has in 512 bytes of shared memory, 16 of each lane, an instruction on registers 1 to 4 and a lane's
/// own row, `%row`; the registers and the shared memory that come back.
fn run(instruction: &str, registers: &[u32], shared: &[u8]) -> (Vec<u32>, Vec<u8>) {
    let mut gpu = Gpu::new(&format!(
        "{HEAD}.visible .entry k(.param .u64 registers, .param .u64 memory) {{\n\
         .shared .align 16 .b8 tile[512];\n\
         .reg .b64 %x<3>; .reg .b32 %r<9>, %t, %row;\n\
         ld.param.u64 %x1, [registers]; ld.param.u64 %x2, [memory];\n\
         mov.u32 %t, %tid.x; mul.wide.u32 %x0, %t, 16; add.s64 %x1, %x1, %x0; add.s64 %x2, %x2, %x0;\n\
         mov.u32 %row, tile; mad.lo.u32 %row, %t, 16, %row;\n\
         ld.global.v4.b32 {{%r5, %r6, %r7, %r8}}, [%x2]; st.shared.v4.b32 [%row], {{%r5, %r6, %r7, %r8}};\n\
         ld.global.v4.b32 {{%r1, %r2, %r3, %r4}}, [%x1];\n\
         bar.sync 0; {instruction} bar.sync 0;\n\
         st.global.v4.b32 [%x1], {{%r1, %r2, %r3, %r4}};\n\
         ld.shared.v4.b32 {{%r5, %r6, %r7, %r8}}, [%row]; st.global.v4.b32 [%x2], {{%r5, %r6, %r7, %r8}};\n\
         ret; }}\n"
    ));
    let (at_registers, at_shared) = (gpu.upload(registers), gpu.upload(shared));
    gpu.run("k", 1, 32, &Args::new().ptr(at_registers).ptr(at_shared));
    (gpu.read(at_registers, 128), gpu.read(at_shared, 512))
}

fn names(count: usize) -> String {
    let all: Vec<String> = (1..=count).map(|at| format!("%r{at}")).collect();
    all.join(", ")
}

/// Bytes that look random.
fn noise() -> Vec<u8> {
    (0..512_u32)
        .map(|at| (at.wrapping_mul(0x9e37_79b9) >> 11) as u8)
        .collect()
}

/// The element of a row of 16, each of so many bits, bit by bit.
fn element(row: &[u8], column: usize, bits: usize) -> u8 {
    let bit = |at: usize| row[at / 8] >> (at % 8) & 1;
    (0..bits).fold(0, |sum, at| sum | bit(bits * column + at) << at)
}

#[test]
fn matrices_of_bytes_come_and_go_turned_or_not() {
    let memory = noise();
    let registers: Vec<u32> = (0..128)
        .map(|at: u32| at.wrapping_mul(0x85eb_ca6b))
        .collect();
    let byte = |registers: &[u32], lane: usize, register: usize, byte: usize| {
        registers[4 * lane + register].to_le_bytes()[byte]
    };
    for (packing, bits) in [("b8", 8), ("b8x16.b6x16_p32", 6), ("b8x16.b4x16_p64", 4)] {
        // Sixteen rows, turned: a lane has elements of one column and the one eight further.
        for count in [1, 2] {
            let instruction = format!(
                "ldmatrix.sync.aligned.m16n16.x{count}.trans.shared.{packing} {{{}}}, [%row];",
                names(2 * count)
            );
            let (got, kept) = run(&instruction, &registers, &memory);
            assert_eq!(kept, memory);
            for at in 0..256 * count {
                let (matrix, row, column) = (at / 256, at / 16 % 16, at % 16);
                let lane = 4 * (column % 8) + row / 4;
                let register = 2 * matrix + row / 2 % 2;
                let wanted = element(&memory[16 * (16 * matrix + row)..], column, bits);
                let got = byte(&got, lane, register, row % 2 + column / 8 * 2);
                assert_eq!(got, wanted, "{instruction} row {row}, column {column}");
            }
            // Registers that it does not name stay.
            assert!(count == 2 || got[2] == registers[2]);
        }
        if bits == 8 {
            continue;
        }
        for count in [1, 2, 4] {
            let instruction = format!(
                "ldmatrix.sync.aligned.m8n16.x{count}.shared.{packing} {{{}}}, [%row];",
                names(count)
            );
            let (got, _) = run(&instruction, &registers, &memory);
            for at in 0..128 * count {
                let (matrix, row, column) = (at / 128, at / 16 % 8, at % 16);
                let wanted = element(&memory[16 * (8 * matrix + row)..], column, bits);
                let got = byte(&got, 4 * row + column / 4, matrix, column % 4);
                assert_eq!(got, wanted, "{instruction} row {row}, column {column}");
            }
        }
    }
    for count in [1, 2, 4] {
        let instruction = format!(
            "stmatrix.sync.aligned.m16n8.x{count}.trans.shared.b8 [%row], {{{}}};",
            names(count)
        );
        let (_, got) = run(&instruction, &registers, &memory);
        for at in 0..512 {
            let (matrix, row, column) = (at / 128, at / 16 % 8, at % 16);
            // What is sixteen rows of eight in the registers is eight rows of sixteen in memory.
            let wanted = match matrix < count {
                true => byte(
                    &registers,
                    4 * (column % 8) + row / 2,
                    matrix,
                    row % 2 + column / 8 * 2,
                ),
                false => memory[at],
            };
            assert_eq!(got[at], wanted, "{instruction} row {row}, column {column}");
        }
    }
    for wrong in [
        "ldmatrix.sync.aligned.m16n16.x4.trans.shared.b8 {%r1, %r2, %r3, %r4}, [%row];",
        "ldmatrix.sync.aligned.m16n16.x1.shared.b8 {%r1, %r2}, [%row];",
        "ldmatrix.sync.aligned.m8n16.x1.shared.b8 {%r1}, [%row];",
        "stmatrix.sync.aligned.m16n8.x1.shared.b8 [%row], {%r1};",
    ] {
        let text = format!("{HEAD}.visible .entry k() {{ .reg .b32 %r<9>, %row; {wrong} ret; }}\n");
        let module = ptx::parse(&text).unwrap();
        assert!(
            ptx_vm::Module::load(&module, &ptx_vm::Options::default()).is_err(),
            "{wrong}"
        );
    }
}
