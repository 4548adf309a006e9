//! Textures and surfaces, from PTX: what there is to be asked, what is written in which format, and how
//! wrong numbers end.

use std::sync::Arc;

use ptx_vm::{Edge, FaultKind, Format, Level, Source, Surface, Texels, Texture};

use crate::gpu::{Args, Gpu};

const PTX: &str = r#"
.version 8.0
.target sm_75
.address_size 64
.visible .entry ask(.param .u64 texture, .param .u64 surface, .param .u64 out) {
    .reg .b32 %r<9>; .reg .b64 %d<4>;
    ld.param.u64 %d1, [texture];
    ld.param.u64 %d2, [surface];
    ld.param.u64 %d3, [out];
    txq.width.b32 %r1, [%d1];
    txq.height.b32 %r2, [%d1];
    txq.channel_order.b32 %r3, [%d1];
    txq.channel_data_type.b32 %r4, [%d1];
    txq.normalized_coords.b32 %r5, [%d1];
    suq.width.b32 %r6, [%d2];
    suq.channel_data_type.b32 %r7, [%d2];
    st.global.v4.b32 [%d3], {%r1, %r2, %r3, %r4};
    st.global.v2.b32 [%d3+16], {%r5, %r6};
    st.global.b32 [%d3+24], %r7;
    ret;
}
.visible .entry read(.param .u64 texture, .param .u64 out) {
    .reg .b32 %r<3>; .reg .f32 %f<6>; .reg .b64 %d<5>; .reg .pred %p, %q;
    ld.param.u64 %d1, [texture];
    ld.param.u64 %d2, [out];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %d3, %r1, 4;
    add.s64 %d4, %d2, %d3;
    mov.f32 %f1, 0f00000000;
    and.b32 %r2, %r1, 1;
    setp.eq.u32 %q, %r2, 0;
    @%q tex.1d.v4.f32.s32 {%f1, _, _, %f2}|%p, [%d1, {%r1}];
    st.global.f32 [%d4], %f1;
    ret;
}
.visible .entry put(.param .u64 surface, .param .u32 from) {
    .reg .b32 %r<4>; .reg .b64 %d<2>;
    ld.param.u64 %d1, [surface];
    ld.param.u32 %r2, [from];
    mov.u32 %r1, %tid.x;
    add.u32 %r1, %r1, %r2;
    mul.lo.u32 %r3, %r1, 100;
    sust.p.1d.v2.b32.trap [%d1, {%r1}], {%r3, %r1};
    ret;
}
.visible .entry peek(.param .u64 surface, .param .u32 x) {
    .reg .b32 %r<3>; .reg .b64 %d<2>;
    ld.param.u64 %d1, [surface];
    ld.param.u32 %r1, [x];
    suld.b.1d.b32.trap {%r2}, [%d1, {%r1}];
    ret;
}
"#;

fn array(bytes: u64, sides: [u64; 3]) -> (Arc<Texels>, Level) {
    let texels = Arc::new(Texels::new(bytes).unwrap());
    (texels, Level { sides, offset: 0 })
}

fn texture(source: Source, format: Format) -> Texture {
    Texture {
        source,
        format,
        channels: 2,
        edges: [Edge::Clamp; 3],
        linear: false,
        linear_levels: false,
        normalized: true,
        fractions: false,
        srgb: false,
        bias: 0.0,
        detail: [0.0; 2],
        border: [0.0; 4],
        layers: [0, 1],
    }
}

#[test]
fn objects_tell_of_themselves() {
    let mut gpu = Gpu::new(PTX);
    let out = gpu.alloc_bytes(64);
    let (texels, level) = array(13 * 5 * 4, [13, 5, 1]);
    let source = Source::Array(Arc::clone(&texels), vec![level]);
    let asked = gpu.textures.add_texture(texture(source, Format::S16));
    let surface = gpu.textures.add_surface(Surface {
        texels,
        level,
        format: Format::S16,
        channels: 2,
    });
    gpu.run("ask", 1, 1, &Args::new().ptr(asked).ptr(surface).ptr(out));
    let answers = [13, 5, 0x10b2, 0x10d8, 1, 13, 0x10d8];
    assert_eq!(gpu.read::<u32>(out, 7), answers);
}

#[test]
fn lanes_without_the_guard_keep_what_they_had() {
    let mut gpu = Gpu::new(PTX);
    let values: Vec<f32> = (0..128).map(|value| value as f32 + 1.0).collect();
    let memory = gpu.upload(&values);
    let out = gpu.alloc_bytes(400);
    let source = Source::Memory {
        base: memory,
        pitch: 0,
        sides: [64, 1],
        run: true,
    };
    let read = gpu.textures.add_texture(texture(source, Format::F32));
    gpu.run("read", 1, 100, &Args::new().ptr(read).ptr(out));
    for (lane, value) in gpu.read::<f32>(out, 100).into_iter().enumerate() {
        // Beyond the end of linear memory there is nothing.
        let there = lane % 2 == 0 && lane < 64;
        let expected = if there { values[2 * lane] } else { 0.0 };
        assert_eq!(value, expected, "lane {lane}");
    }
}

#[test]
fn elements_are_written_in_the_surfaces_format() {
    let mut gpu = Gpu::new(PTX);
    let out = gpu.alloc_bytes(64);
    let (texels, level) = array(8 * 2, [8, 1, 1]);
    let surface = gpu.textures.add_surface(Surface {
        texels: Arc::clone(&texels),
        level,
        format: Format::U8,
        channels: 2,
    });
    gpu.run("put", 1, 8, &Args::new().ptr(surface).u32(0));
    let source = Source::Array(texels, vec![level]);
    let seen = gpu.textures.add_texture(texture(source, Format::U8));
    gpu.run("read", 1, 8, &Args::new().ptr(seen).ptr(out));
    // Elements 0, 2, 4 and 6, as far as a byte goes.
    let values = gpu.read::<u32>(out, 8);
    assert_eq!(values, [0, 0, 200, 0, 255, 0, 255, 0]);
    // A ninth element is not there.
    let fault = gpu.try_run("put", 1, 8, 0, &Args::new().ptr(surface).u32(1));
    let fault = fault.expect_err("a fault");
    assert_eq!((fault.kind, fault.thread), (FaultKind::Trap, [7, 0, 0]));
}

#[test]
fn wrong_numbers_and_places_are_faults() {
    let mut gpu = Gpu::new(PTX);
    let out = gpu.alloc_bytes(400);
    let read = |gpu: &Gpu, number: u64| {
        let args = Args::new().ptr(number).ptr(out);
        let fault = gpu.try_run("read", 1, 32, 0, &args).expect_err("a fault");
        (fault.kind, fault.address)
    };
    for number in [0, 1, 77, u64::MAX, out] {
        assert_eq!(read(&gpu, number), (FaultKind::IllegalAddress, number));
    }
    // A texture of memory that the client does not have any more.
    let nowhere = gpu.window.base() + gpu.window.len() - 4096;
    let source = Source::Memory {
        base: nowhere,
        pitch: 0,
        sides: [64, 1],
        run: true,
    };
    let lost = gpu.textures.add_texture(texture(source, Format::F32));
    assert_eq!(read(&gpu, lost), (FaultKind::IllegalAddress, nowhere));
    assert!(gpu.textures.remove_texture(lost));
    assert_eq!(read(&gpu, lost), (FaultKind::IllegalAddress, lost));

    let (texels, level) = array(64, [16, 1, 1]);
    let surface = gpu.textures.add_surface(Surface {
        texels,
        level,
        format: Format::U8,
        channels: 4,
    });
    let peek = |x: u32| {
        let args = Args::new().ptr(surface).u32(x);
        gpu.try_run("peek", 1, 1, 0, &args)
            .err()
            .map(|fault| fault.kind)
    };
    assert_eq!(peek(60), None);
    for (x, kind) in [
        (64, FaultKind::Trap),
        (u32::MAX - 3, FaultKind::Trap),
        (i32::MAX.unsigned_abs() - 3, FaultKind::Trap),
        (2, FaultKind::MisalignedAddress),
    ] {
        assert_eq!(peek(x), Some(kind), "{x}");
    }
}
