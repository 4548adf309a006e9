// needs: plain
// Kernel parameters: structs of over 1 KiB and of 4 KB, copied at the launch (the caller changes
// them right after), alignment of mixed scalars, and no parameters at all.
#include "check.h"

struct Table {
    int values[300];
    char name[13];
    double scale;
};
struct Full {
    unsigned char bytes[4060];
};
struct alignas(16) Aligned {
    float x, y, z;
};
__device__ int called;

__global__ void table(Table t, int *out) { out[threadIdx.x] = int(t.values[threadIdx.x] * t.scale) + t.name[threadIdx.x % 13]; }
__global__ void full(const Full f, unsigned *out) {
    unsigned sum = 0;
    for (int i = threadIdx.x; i < 4060; i += 32) sum += f.bytes[i] * (i + 1);
    atomicAdd(out, sum);
}
__global__ void mixed(char a, double b, short c, Aligned d, bool e, long long f, char g, float2 h, double *out) {
    out[0] = a, out[1] = b, out[2] = c, out[3] = d.x + d.y + d.z, out[4] = e, out[5] = double(f), out[6] = g, out[7] = h.x * h.y;
}
__global__ void none() { called++; }

int main() {
    Table t;
    for (int i = 0; i < 300; i++) t.values[i] = i * i;
    memcpy(t.name, "parameter no", 13);
    t.scale = 0.5;
    Array<int> out(300), later(300);
    table<<<1, 300>>>(t, out);
    t.values[7] = -1;
    t.scale = 2;
    table<<<1, 300>>>(t, later);
    RAN();
    auto got = out.host(), next = later.host();
    for (int i = 0; i < 300; i++) {
        CHECK(got[i] == int(i * i * 0.5) + "parameter no"[i % 13], "first, %d: %d", i, got[i]);
        CHECK(next[i] == (i == 7 ? -2 : i * i * 2) + "parameter no"[i % 13], "second, %d: %d", i, next[i]);
    }
    Full f;
    unsigned sum = 0;
    for (int i = 0; i < 4060; i++) sum += (f.bytes[i] = (unsigned char)(i * 89 >> 3)) * (i + 1);
    Array<unsigned> total(1);
    total.clear();
    full<<<1, 32>>>(f, total);
    RAN();
    CHECK(total.host()[0] == sum, "%u, not %u", total.host()[0], sum);
    Array<double> values(8);
    mixed<<<1, 1>>>(-5, 1.25, -300, {1, 2, 4}, true, 1ll << 40, 'x', {1.5f, 8}, values);
    RAN();
    auto v = values.host();
    double expected[8] = {-5, 1.25, -300, 7, 1, 1099511627776.0, 'x', 12};
    for (int i = 0; i < 8; i++) CHECK(v[i] == expected[i], "parameter %d is %g, not %g", i, v[i], expected[i]);
    for (int i = 0; i < 5; i++) none<<<1, 1>>>();
    RAN();
    int calls;
    OK(cudaMemcpyFromSymbol(&calls, called, sizeof calls));
    CHECK(calls == 5, "%d calls", calls);
    printf("%u\n", sum);
    return check::pass();
}
