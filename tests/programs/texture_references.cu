// needs: jit
// Texture and surface references of modules: what a kernel reads is what they were set to when it was
// launched. No compiler of CUDA 12 or later makes them, so the PTX is written here.
#include <string>

#include "driver.h"

const char *text = R"(
.version 7.0
.target sm_75
.address_size 64
.global .texref picture;
.global .texref row;
.visible .global .surfref target;

.visible .entry look(.param .u64 out, .param .f32 x, .param .f32 y) {
    .reg .b64 %rd<2>;
    .reg .f32 %f<7>;
    .reg .b32 %r<2>;
    ld.param.u64 %rd1, [out];
    ld.param.f32 %f1, [x];
    ld.param.f32 %f2, [y];
    tex.2d.v4.f32.f32 {%f3, %f4, %f5, %f6}, [picture, {%f1, %f2}];
    txq.width.b32 %r1, [picture];
    st.global.f32 [%rd1], %f3;
    st.global.u32 [%rd1+4], %r1;
    ret;
}

.visible .entry fetch(.param .u64 out, .param .u32 at) {
    .reg .b64 %rd<2>;
    .reg .b32 %r<6>;
    ld.param.u64 %rd1, [out];
    ld.param.u32 %r1, [at];
    tex.1d.v4.u32.s32 {%r2, %r3, %r4, %r5}, [row, {%r1}];
    st.global.u32 [%rd1], %r2;
    ret;
}

.visible .entry paint(.param .u32 value) {
    .reg .b32 %r<4>;
    ld.param.u32 %r1, [value];
    mov.u32 %r2, %tid.x;
    shl.b32 %r3, %r2, 2;
    add.u32 %r1, %r1, %r2;
    sust.b.2d.b32.trap [target, {%r3, %r2}], {%r1};
    ret;
}

.visible .entry paced(.param .u64 out, .param .u64 flag) {
    .reg .b64 %rd<3>;
    .reg .f32 %f<6>;
    .reg .b32 %r<2>;
    .reg .pred %p1;
    ld.param.u64 %rd1, [out];
    ld.param.u64 %rd2, [flag];
    mov.u32 %r1, 0;
wait:
    add.u32 %r1, %r1, 1;
    setp.lt.u32 %p1, %r1, 200000;
    @%p1 bra wait;
    mov.f32 %f1, 0f3f000000;
    tex.2d.v4.f32.f32 {%f2, %f3, %f4, %f5}, [picture, {%f1, %f1}];
    st.global.f32 [%rd1], %f2;
    ret;
}
)";

struct Seen {
    float value;
    unsigned width;
};

static Seen *out;

template <class... Arguments> static Seen run(CUmodule module, const char *kernel, Arguments... arguments) {
    CUfunction function;
    CU(cuModuleGetFunction, &function, module, kernel);
    void *parameters[] = {&arguments...};
    CU(cuLaunchKernel, function, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr);
    Seen seen;
    OK(cudaMemcpy(&seen, out, sizeof seen, cudaMemcpyDeviceToHost));
    return seen;
}

// An array of floats, `base` and up.
static CUarray filled(size_t width, size_t height, float base) {
    CUDA_ARRAY3D_DESCRIPTOR shape = {width, height, 0, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_SURFACE_LDST};
    CUarray array;
    CU(cuArray3DCreate, &array, &shape);
    std::vector<float> values(width * height);
    for (size_t i = 0; i < values.size(); i++) values[i] = base + i;
    CUDA_MEMCPY2D copy = {};
    copy.srcMemoryType = CU_MEMORYTYPE_HOST;
    copy.srcHost = values.data();
    copy.srcPitch = width * 4;
    copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
    copy.dstArray = array;
    copy.WidthInBytes = width * 4;
    copy.Height = height;
    CU(cuMemcpy2D, &copy);
    return array;
}

int main() {
    OK(cudaMalloc((void **)&out, 64));
    CUmodule module;
    CU(cuModuleLoadData, &module, text);
    CUtexref picture, row, again;
    CUsurfref target;
    CU(cuModuleGetTexRef, &picture, module, "picture");
    CU(cuModuleGetTexRef, &again, module, "picture");
    CU(cuModuleGetTexRef, &row, module, "row");
    CU(cuModuleGetSurfRef, &target, module, "target");
    CHECK(picture == again && picture != row, "a name has one reference");
    CUsurfref none;
    CHECK(DRIVER(cuModuleGetTexRef)(&again, module, "target") == CUDA_ERROR_NOT_FOUND, "a surface");
    CHECK(DRIVER(cuModuleGetSurfRef)(&none, module, "picture") == CUDA_ERROR_NOT_FOUND, "a texture");

    // An array, and settings one after another.
    CUarray first = filled(8, 4, 0), second = filled(16, 16, 1000);
    CU(cuTexRefSetArray, picture, first, CU_TRSA_OVERRIDE_FORMAT);
    Seen seen = run(module, "look", out, 2.5f, 1.5f);
    CHECK(seen.value == 10 && seen.width == 8, "%g %u", seen.value, seen.width);
    seen = run(module, "look", out, 3.0f, 1.5f);
    CHECK(seen.value == 11, "the nearest: %g", seen.value);
    CU(cuTexRefSetFilterMode, picture, CU_TR_FILTER_MODE_LINEAR);
    seen = run(module, "look", out, 3.0f, 1.5f);
    CHECK(seen.value == 10.5f, "between two: %g", seen.value);
    CU(cuTexRefSetFilterMode, picture, CU_TR_FILTER_MODE_POINT);
    CU(cuTexRefSetFlags, picture, CU_TRSF_NORMALIZED_COORDINATES);
    CU(cuTexRefSetAddressMode, picture, 0, CU_TR_ADDRESS_MODE_WRAP);
    CU(cuTexRefSetAddressMode, picture, 1, CU_TR_ADDRESS_MODE_WRAP);
    seen = run(module, "look", out, 1.0625f, 2.0f);
    CHECK(seen.value == 0, "around the edge: %g", seen.value);
    CUaddress_mode mode;
    CU(cuTexRefGetAddressMode, &mode, picture, 1);
    CHECK(mode == CU_TR_ADDRESS_MODE_WRAP, "%d", int(mode));
    unsigned flags;
    CU(cuTexRefGetFlags, &flags, picture);
    CHECK(flags == CU_TRSF_NORMALIZED_COORDINATES, "%u", flags);
    CU(cuTexRefSetFlags, picture, 0);

    // What is launched reads what was set then, though another array is set while it runs.
    CUfunction paced;
    CU(cuModuleGetFunction, &paced, module, "paced");
    CUdeviceptr place = (CUdeviceptr)out, unused = 0;
    void *parameters[] = {&place, &unused};
    CU(cuLaunchKernel, paced, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr);
    CU(cuTexRefSetArray, picture, second, CU_TRSA_OVERRIDE_FORMAT);
    OK(cudaMemcpy(&seen, out, sizeof seen, cudaMemcpyDeviceToHost));
    CHECK(seen.value == 0, "set later: %g", seen.value);
    seen = run(module, "look", out, 0.5f, 1.5f);
    CHECK(seen.value == 1016 && seen.width == 16, "%g %u", seen.value, seen.width);
    CUarray array;
    CU(cuTexRefGetArray, &array, picture);
    CHECK(array == second, "the array that was set");

    // Linear memory, from a place on that no texture begins at.
    unsigned *memory, got;
    OK(cudaMalloc((void **)&memory, 4096));
    std::vector<unsigned> numbers(1024);
    for (unsigned i = 0; i < 1024; i++) numbers[i] = i * 3;
    OK(cudaMemcpy(memory, numbers.data(), 4096, cudaMemcpyHostToDevice));
    CU(cuTexRefSetFormat, row, CU_AD_FORMAT_UNSIGNED_INT32, 1);
    CU(cuTexRefSetFlags, row, CU_TRSF_READ_AS_INTEGER);
    size_t offset = 99;
    CU(cuTexRefSetAddress, &offset, row, (CUdeviceptr)memory, 4096);
    CHECK(offset == 0, "%zu", offset);
    run(module, "fetch", out, 100u);
    OK(cudaMemcpy(&got, out, 4, cudaMemcpyDeviceToHost));
    CHECK(got == 300, "%u", got);
    CU(cuTexRefSetAddress, &offset, row, (CUdeviceptr)(memory + 10), 400);
    run(module, "fetch", out, unsigned(offset / 4) + 5);
    OK(cudaMemcpy(&got, out, 4, cudaMemcpyDeviceToHost));
    CHECK(got == 45, "%u behind %zu", got, offset);
    CHECK(DRIVER(cuTexRefSetAddress)(nullptr, row, (CUdeviceptr)(memory + 10), 400) == CUDA_ERROR_INVALID_VALUE,
          "an offset that nobody is told");

    // A surface.
    CU(cuSurfRefSetArray, target, second, 0);
    run(module, "paint", 0x42280000u);
    seen = run(module, "look", out, 0.5f, 0.5f);
    CHECK(seen.value == 42, "%g", seen.value);

    // An array of the reference's own format needs no flag.
    CU(cuTexRefSetArray, picture, first, 0);
    seen = run(module, "look", out, 1.5f, 0.5f);
    CHECK(seen.value == 1, "%g", seen.value);

    // What is refused changes nothing.
    CU(cuTexRefSetArray, picture, second, CU_TRSA_OVERRIDE_FORMAT);
    CHECK(DRIVER(cuTexRefSetAddressMode)(picture, 3, CU_TR_ADDRESS_MODE_WRAP) == CUDA_ERROR_INVALID_VALUE, "dimension");
    seen = run(module, "look", out, 1.5f, 0.5f);
    CHECK(seen.value == 1001, "%g", seen.value);

    CUtexref own;
    CU(cuTexRefCreate, &own);
    CU(cuTexRefSetFilterMode, own, CU_TR_FILTER_MODE_LINEAR);
    CUfilter_mode filter;
    CU(cuTexRefGetFilterMode, &filter, own);
    CHECK(filter == CU_TR_FILTER_MODE_LINEAR, "%d", int(filter));
    CU(cuTexRefDestroy, own);
    CU(cuModuleUnload, module);
    puts("PASS");
}
