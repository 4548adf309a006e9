// needs: plain
// Loads and stores of 2, 4, 8 and 16 bytes through every kind of pointer: global, shared, local,
// constant and generic ones chosen at run time; isGlobal, isShared and the like agree.
#include "check.h"

__constant__ float4 table[4];

template <class T> __global__ void copy(const T *in, T *out, int count) {
    for (int i = threadIdx.x; i < count; i += blockDim.x) out[count - 1 - i] = in[i];
}

__global__ void generic(const float4 *in, float4 *out, unsigned *kinds) {
    __shared__ float4 s[32];
    float4 local[4];
    int i = threadIdx.x;
    s[i] = make_float4(i, i + 1, i + 2, i + 3);
    for (int k = 0; k < 4; k++) local[k] = make_float4(-i, -k, i * k, 1);
    __syncthreads();
    const float4 *p = i % 4 == 0 ? &in[i] : i % 4 == 1 ? &s[31 - i] : i % 4 == 2 ? &local[i % 3] : &table[i / 4 % 4];
    float4 v = *p;
    out[i] = make_float4(v.w, v.z, v.y, v.x);
    kinds[i] = __isGlobal(p) | __isShared(p) << 1 | __isLocal(p) << 2 | __isConstant(p) << 3;
}

__global__ void through(const int *in, int *out) {
    int i = threadIdx.x;
    int a = __ldg(in + i), b = __ldcs(in + i), c = __ldcg(in + i), d = __ldcv(in + i);
    __stcs(out + 4 * i, a);
    __stcg(out + 4 * i + 1, b + 1);
    __stwt(out + 4 * i + 2, c + 2);
    out[4 * i + 3] = d + 3;
}

template <class T> void test(const char *name) {
    const int count = 100;
    std::vector<T> values(count);
    for (size_t i = 0; i < count * sizeof(T); i++) reinterpret_cast<unsigned char *>(values.data())[i] = (unsigned char)(i * 37);
    Array<T> in(values), out(count);
    copy<<<1, 32>>>((const T *)in, (T *)out, count);
    RAN();
    auto got = out.host();
    for (int i = 0; i < count; i++) CHECK(!memcmp(&got[count - 1 - i], &values[i], sizeof(T)), "%s, element %d", name, i);
}

struct Odd {
    unsigned char bytes[7];
};

int main() {
    test<char2>("char2"), test<uchar4>("uchar4"), test<short2>("short2"), test<short4>("short4"), test<int2>("int2");
    test<int3>("int3"), test<int4>("int4"), test<longlong2>("longlong2"), test<double2>("double2"), test<Odd>("Odd");
    float4 constants[4];
    for (int i = 0; i < 4; i++) constants[i] = make_float4(i * 10, i * 10 + 1, 7, 8);
    OK(cudaMemcpyToSymbol(table, constants, sizeof constants));
    std::vector<float4> values(32);
    for (int i = 0; i < 32; i++) values[i] = make_float4(i * 0.5f, i, 2 * i, 3 * i);
    Array<float4> in(values), out(32);
    Array<unsigned> kinds(32);
    generic<<<1, 32>>>(in, out, kinds);
    RAN();
    auto got = out.host();
    auto k = kinds.host();
    for (int i = 0; i < 32; i++) {
        int j = 31 - i, m = i % 3;
        float4 e = i % 4 == 0 ? values[i] : i % 4 == 1 ? make_float4(j, j + 1, j + 2, j + 3) : i % 4 == 2 ? make_float4(-i, -m, i * m, 1) : constants[i / 4 % 4];
        CHECK(got[i].x == e.w && got[i].y == e.z && got[i].z == e.y && got[i].w == e.x, "lane %d: %g %g %g %g", i, got[i].x, got[i].y, got[i].z, got[i].w);
        CHECK(k[i] == 1u << i % 4, "lane %d: kinds %x", i, k[i]);
    }
    std::vector<int> numbers(64);
    for (int i = 0; i < 64; i++) numbers[i] = i * 1000;
    Array<int> dnumbers(numbers), four(256);
    through<<<1, 64>>>(dnumbers, four);
    RAN();
    auto f = four.host();
    for (int i = 0; i < 256; i++) CHECK(f[i] == i / 4 * 1000 + i % 4, "cached %d: %d", i, f[i]);
    printf("ten types, four spaces\n");
    return check::pass();
}
