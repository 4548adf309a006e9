// needs: plain
// The first CUDA program: c = a + b, with a tail that does not fill its block.
#include "check.h"

__global__ void add(const float *a, const float *b, float *c, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) c[i] = a[i] + b[i];
}

int main() {
    const int count = 100003;
    Random random;
    std::vector<float> a(count), b(count);
    for (int i = 0; i < count; i++) {
        a[i] = float(random.between(-1, 1));
        b[i] = float(random.between(-1, 1));
    }
    Array<float> da(a), db(b), dc(count);
    add<<<blocks(count, 256), 256>>>(da, db, dc, count);
    RAN();
    auto c = dc.host();
    for (int i = 0; i < count; i++)
        CHECK(c[i] == a[i] + b[i], "element %d is %g, not %g", i, c[i], a[i] + b[i]);
    printf("%d sums, hash %016llx\n", count, (unsigned long long)check::hash(c));
    return check::pass();
}
