//! Texture and surface references.
//!
//! They show that each change writes an object with all settings, and that what is refused changes nothing.

use cuda_abi::CUresult;
use cuda_abi::types::*;

use crate::api::*;
use crate::pointers::{In, Out};
use crate::testing::*;

const IMAGE: &str = "kernel k 8\nvariable picture$texture 8\nvariable target$surface 8\n\
    variable plain 8\nvariable wide$texture 16\0";

fn texture(module: CUmodule, name: &'static str) -> Result<CUtexref, CUresult> {
    let mut found = CUtexref::NULL;
    cuModuleGetTexRef(out(&mut found), module, text(name)).map(|()| found)
}

fn surface(module: CUmodule, name: &'static str) -> Result<CUsurfref, CUresult> {
    let mut found = CUsurfref::NULL;
    cuModuleGetSurfRef(out(&mut found), module, text(name)).map(|()| found)
}

/// The object that stands in a reference's variable.
fn object(module: CUmodule, variable: &'static str) -> u64 {
    let mut address = 0;
    cuModuleGetGlobal_v2(out(&mut address), Out::null(), module, text(variable)).unwrap();
    u64::from_le_bytes(read(address, 8).try_into().unwrap())
}

fn array() -> CUarray {
    let shape = CUDA_ARRAY3D_DESCRIPTOR {
        Width: 16,
        Height: 8,
        Depth: 0,
        Format: CUarray_format::UNSIGNED_INT8,
        NumChannels: 4,
        Flags: 2,
    };
    let mut made = CUarray::NULL;
    cuArray3DCreate_v2(out(&mut made), In::of(&shape)).unwrap();
    made
}

/// How a texture object is read.
fn sampler(object: u64) -> CUDA_TEXTURE_DESC {
    let mut sampler = CUDA_TEXTURE_DESC::default();
    cuTexObjectGetTextureDesc(out(&mut sampler), object).unwrap();
    sampler
}

#[test]
fn a_module_has_its_references_by_name_and_kind() {
    let mine = context(0);
    let module = load(IMAGE);
    let picture = texture(module, "picture\0").unwrap();
    assert_eq!(texture(module, "picture\0"), Ok(picture));
    assert!(surface(module, "target\0").is_ok());
    for name in ["target\0", "plain\0", "picture$texture\0", "wide\0"] {
        assert_eq!(texture(module, name), Err(CUresult::ERROR_NOT_FOUND));
    }
    assert_eq!(surface(module, "picture\0"), Err(CUresult::ERROR_NOT_FOUND));
    let gone = Err(CUresult::ERROR_INVALID_HANDLE);
    assert_eq!(texture(CUmodule::from_bits(7), "picture\0"), gone);
    assert_ne!(texture(load(IMAGE), "picture\0"), Ok(picture));
    cuModuleUnload(module).unwrap();
    assert_eq!(
        cuTexRefSetFlags(picture, 0),
        Err(CUresult::ERROR_INVALID_HANDLE)
    );
    cuCtxDestroy(mine).unwrap();
}

#[test]
fn each_change_writes_an_object_with_all_settings() {
    let mine = context(0);
    let module = load(IMAGE);
    let picture = texture(module, "picture\0").unwrap();
    cuTexRefSetFilterMode(picture, CUfilter_mode::LINEAR).unwrap();
    assert_eq!(object(module, "picture$texture\0"), 0, "nothing is bound");
    let made = array();
    cuTexRefSetArray(picture, made, 1).unwrap();
    let first = object(module, "picture$texture\0");
    assert_eq!(sampler(first).filterMode, CUfilter_mode::LINEAR);
    assert_eq!(sampler(first).addressMode, [CUaddress_mode::CLAMP; 3]);
    cuTexRefSetAddressMode(picture, 1, CUaddress_mode::WRAP).unwrap();
    cuTexRefSetMipmapLevelClamp(picture, 1.0, 2.0).unwrap();
    cuTexRefSetMipmapLevelBias(picture, 0.5).unwrap();
    cuTexRefSetMipmapFilterMode(picture, CUfilter_mode::LINEAR).unwrap();
    cuTexRefSetMaxAnisotropy(picture, 4).unwrap();
    cuTexRefSetBorderColor(picture, In::of(&[1.0, 2.0, 3.0, 4.0])).unwrap();
    cuTexRefSetFlags(picture, 2).unwrap();
    let last = sampler(object(module, "picture$texture\0"));
    let expected = CUDA_TEXTURE_DESC {
        addressMode: [
            CUaddress_mode::CLAMP,
            CUaddress_mode::WRAP,
            CUaddress_mode::CLAMP,
        ],
        filterMode: CUfilter_mode::LINEAR,
        flags: 2,
        maxAnisotropy: 4,
        mipmapFilterMode: CUfilter_mode::LINEAR,
        mipmapLevelBias: 0.5,
        minMipmapLevelClamp: 1.0,
        maxMipmapLevelClamp: 2.0,
        borderColor: [1.0, 2.0, 3.0, 4.0],
        ..CUDA_TEXTURE_DESC::default()
    };
    assert_eq!(last, expected);
    // The objects of earlier settings are gone.
    let gone = Err(CUresult::ERROR_INVALID_HANDLE);
    assert_eq!(cuTexObjectDestroy(first), gone);

    let (mut least, mut most, mut colour) = (0.0, 0.0, [0.0; 4]);
    cuTexRefGetMipmapLevelClamp(out(&mut least), out(&mut most), picture).unwrap();
    cuTexRefGetBorderColor(out(&mut colour), picture).unwrap();
    assert_eq!((least, most, colour), (1.0, 2.0, [1.0, 2.0, 3.0, 4.0]));
    let (mut format, mut channels) = (CUarray_format::FLOAT, 0);
    cuTexRefGetFormat(out(&mut format), out(&mut channels), picture).unwrap();
    assert_eq!((format, channels), (CUarray_format::UNSIGNED_INT8, 4));

    let target = surface(module, "target\0").unwrap();
    cuSurfRefSetArray(target, made, 0).unwrap();
    let mut bound = CUarray::NULL;
    cuSurfRefGetArray(out(&mut bound), target).unwrap();
    assert_eq!(bound, made);
    let mut resource = CUDA_RESOURCE_DESC::default();
    let painted = object(module, "target$surface\0");
    cuSurfObjectGetResourceDesc(out(&mut resource), painted).unwrap();
    assert_eq!(resource.res[0], made.bits());
    let current = object(module, "picture$texture\0");
    cuModuleUnload(module).unwrap();
    assert_eq!(cuTexObjectDestroy(current), gone, "it goes with its module");
    assert_eq!(cuSurfObjectDestroy(painted), gone);
    cuCtxDestroy(mine).unwrap();
}

#[test]
fn what_is_refused_changes_nothing() {
    let mine = context(0);
    let module = load(IMAGE);
    let picture = texture(module, "picture\0").unwrap();
    let made = array();
    cuTexRefSetArray(picture, made, 1).unwrap();
    let before = object(module, "picture$texture\0");
    let invalid = Err(CUresult::ERROR_INVALID_VALUE);
    assert_eq!(cuTexRefSetArray(picture, made, 2), invalid);
    assert_eq!(
        cuTexRefSetAddressMode(picture, 3, CUaddress_mode::WRAP),
        invalid
    );
    assert_eq!(
        cuTexRefSetAddressMode(picture, -1, CUaddress_mode::WRAP),
        invalid
    );
    assert_eq!(cuTexRefSetFlags(picture, 0x80), invalid);
    assert_eq!(
        cuTexRefSetFormat(picture, CUarray_format::FLOAT, 3),
        invalid
    );
    let memory = allocate(4096).next_multiple_of(512);
    assert_eq!(
        cuTexRefSetAddress_v2(Out::null(), picture, memory + 16, 64),
        invalid
    );
    assert_eq!(
        cuTexRefSetAddress_v2(Out::null(), picture, 0x1000, 64),
        invalid
    );
    let no_handle = Err(CUresult::ERROR_INVALID_HANDLE);
    assert_eq!(
        cuTexRefSetArray(picture, CUarray::from_bits(7), 1),
        no_handle
    );
    assert_eq!(cuTexRefSetFlags(CUtexref::from_bits(7), 0), no_handle);
    assert_eq!(object(module, "picture$texture\0"), before);

    let mut address = 0;
    assert_eq!(cuTexRefGetAddress_v2(out(&mut address), picture), invalid);
    let mut offset = 0;
    cuTexRefSetFormat(picture, CUarray_format::FLOAT, 1).unwrap();
    cuTexRefSetAddress_v2(out(&mut offset), picture, memory + 16, 64).unwrap();
    cuTexRefGetAddress_v2(out(&mut address), picture).unwrap();
    assert_eq!((offset, address), (16, memory));
    cuTexRefSetAddress_v2(Out::null(), picture, 0, 0).unwrap();
    assert_eq!(object(module, "picture$texture\0"), 0, "unbound");

    let other = context(0);
    let elsewhere = Err(CUresult::ERROR_INVALID_CONTEXT);
    assert_eq!(cuTexRefSetFlags(picture, 0), elsewhere);
    cuCtxDestroy(other).unwrap();
    cuCtxDestroy(mine).unwrap();
}

#[test]
fn an_array_has_its_references_format_or_overrides_it() {
    let mine = context(0);
    let module = load(IMAGE);
    let picture = texture(module, "picture\0").unwrap();
    let made = array();
    let invalid = Err(CUresult::ERROR_INVALID_VALUE);
    assert_eq!(cuTexRefSetArray(picture, made, 0), invalid, "of floats");
    assert_eq!(object(module, "picture$texture\0"), 0);
    cuTexRefSetFormat(picture, CUarray_format::UNSIGNED_INT8, 4).unwrap();
    cuTexRefSetArray(picture, made, 0).unwrap();
    let first = object(module, "picture$texture\0");
    assert_ne!(first, 0);
    let shape = CUDA_ARRAY3D_DESCRIPTOR {
        Width: 16,
        Height: 8,
        Depth: 0,
        Format: CUarray_format::FLOAT,
        NumChannels: 1,
        Flags: 0,
    };
    let mut levels = CUmipmappedArray::NULL;
    cuMipmappedArrayCreate(out(&mut levels), In::of(&shape), 2).unwrap();
    assert_eq!(cuTexRefSetMipmappedArray(picture, levels, 0), invalid);
    assert_eq!(object(module, "picture$texture\0"), first);
    cuTexRefSetMipmappedArray(picture, levels, 1).unwrap();
    cuTexRefSetMipmappedArray(picture, levels, 0).unwrap();
    assert_eq!(cuTexRefSetArray(picture, made, 0), invalid);
    cuCtxDestroy(mine).unwrap();
}

#[test]
fn a_reference_of_no_module_only_keeps_its_settings() {
    let mine = context(0);
    let mut own = CUtexref::NULL;
    cuTexRefCreate(out(&mut own)).unwrap();
    cuTexRefSetArray(own, array(), 1).unwrap();
    let mut flags = 0;
    cuTexRefSetFlags(own, 3).unwrap();
    cuTexRefGetFlags(out(&mut flags), own).unwrap();
    assert_eq!(flags, 3);
    let module = load(IMAGE);
    let k = function(module, "k\0");
    assert_eq!(cuParamSetTexRef(k, -1, own), Ok(()));
    let invalid = Err(CUresult::ERROR_INVALID_VALUE);
    assert_eq!(cuParamSetTexRef(k, 0, own), invalid);
    let gone = Err(CUresult::ERROR_INVALID_HANDLE);
    let picture = texture(module, "picture\0").unwrap();
    assert_eq!(cuTexRefDestroy(picture), gone, "it is its module's");
    cuTexRefDestroy(own).unwrap();
    assert_eq!(cuTexRefDestroy(own), gone);
    assert_eq!(cuParamSetTexRef(k, -1, own), gone);
    cuCtxDestroy(mine).unwrap();
}
