// needs: plain
// Division and remainder of all integer widths, constants and edges included; high products,
// averages, saturating and multiply-add forms.
#include "check.h"

template <class T> __global__ void divide(const T *x, const T *y, T *quotients, T *rests, T *constants, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    quotients[i] = x[i] / y[i];
    rests[i] = x[i] % y[i];
    constants[i] = T(x[i] / 7 + x[i] % 10 + x[i] / 64 + x[i] % 1000003 + x[i] / T(-3));
}

template <class T> void test(const char *name) {
    Random random(sizeof(T));
    const bool is_signed = T(-1) < T(0);
    const T top = is_signed ? T((T(1) << (sizeof(T) * 8 - 2)) - 1 + (T(1) << (sizeof(T) * 8 - 2))) : T(-1);
    const T bottom = is_signed ? T(-top - 1) : T(0);
    std::vector<T> special = {T(0), T(1), T(2), T(3), T(7), T(10), T(-1), T(-2), T(-7), top, bottom, T(top - 1), T(bottom + 1), T(top / 2), T(top / 3)};
    std::vector<T> x, y;
    for (T a : special)
        for (T b : special) {
            // Undefined, on hosts as on devices.
            if (b == 0 || (is_signed && a == bottom && b == T(-1))) continue;
            x.push_back(a), y.push_back(b);
        }
    for (int i = 0; i < 3000; i++) {
        T a = T(random.wide() >> random.below(64)), b = T(random.wide() >> random.below(64));
        if (b == 0 || b == T(-1)) b = 3;
        x.push_back(a), y.push_back(b);
    }
    int count = int(x.size());
    Array<T> dx(x), dy(y), q(count), r(count), c(count);
    divide<<<blocks(count, 128), 128>>>((const T *)dx, (const T *)dy, (T *)q, (T *)r, (T *)c, count);
    RAN();
    auto hq = q.host(), hr = r.host(), hc = c.host();
    for (int i = 0; i < count; i++) {
        T a = x[i], b = y[i];
        CHECK(hq[i] == T(a / b), "%s %lld / %lld = %lld", name, (long long)a, (long long)b, (long long)hq[i]);
        CHECK(hr[i] == T(a % b), "%s %lld %% %lld = %lld", name, (long long)a, (long long)b, (long long)hr[i]);
        T e = T(a / 7 + a % 10 + a / 64 + a % 1000003 + a / T(-3));
        CHECK(hc[i] == e, "%s constants of %lld: %lld, not %lld", name, (long long)a, (long long)hc[i], (long long)e);
    }
    printf("%s: %016llx\n", name, (unsigned long long)check::hash(hq));
}

__global__ void products(const unsigned *x, const unsigned *y, unsigned long long *out, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    unsigned a = x[i], b = y[i];
    unsigned long long wide = (unsigned long long)a << 32 | b, other = (unsigned long long)b << 32 | a;
    unsigned long long *o = out + i * 8;
    o[0] = __umulhi(a, b);
    o[1] = (unsigned)__mulhi(int(a), int(b));
    o[2] = __umul64hi(wide, other);
    o[3] = (unsigned long long)__mul64hi((long long)wide, (long long)other);
    o[4] = __umul24(a, b);
    o[5] = __usad(a, b, 17) + (unsigned long long)__sad(int(a), int(b), 3u);
    o[6] = __uhadd(a, b) + (unsigned long long)__urhadd(a, b);
    o[7] = (unsigned)__rhadd(int(a), int(b)) + (unsigned long long)(unsigned)__hadd(int(a), int(b));
}

int main() {
    test<int>("int");
    test<unsigned>("unsigned");
    test<long long>("long long");
    test<unsigned long long>("unsigned long long");
    test<short>("short");
    test<unsigned char>("unsigned char");

    Random random(29);
    const int count = 2000;
    std::vector<unsigned> x(count), y(count);
    for (int i = 0; i < count; i++) x[i] = random.bits() >> random.below(32), y[i] = i % 9 ? random.bits() : 0x80000000u;
    Array<unsigned> dx(x), dy(y);
    Array<unsigned long long> out(count * 8);
    products<<<blocks(count, 64), 64>>>(dx, dy, out, count);
    RAN();
    auto got = out.host();
    for (int i = 0; i < count; i++) {
        unsigned a = x[i], b = y[i];
        unsigned long long wide = (unsigned long long)a << 32 | b, other = (unsigned long long)b << 32 | a;
        long long sa = int(a), sb = int(b);
        unsigned long long expected[8] = {
            (unsigned long long)a * b >> 32,
            (unsigned)((sa * sb) >> 32),
            (unsigned long long)((unsigned __int128)wide * other >> 64),
            (unsigned long long)((__int128)(long long)wide * (long long)other >> 64),
            (unsigned)((unsigned long long)(a & 0xffffff) * (b & 0xffffff)),
            (unsigned)((a > b ? a - b : b - a) + 17) + (unsigned long long)(unsigned)((sa > sb ? sa - sb : sb - sa) + 3),
            (((unsigned long long)a + b) >> 1) + (((unsigned long long)a + b + 1) >> 1),
            (unsigned long long)(unsigned)((sa + sb + 1) >> 1) + (unsigned)((sa + sb) >> 1),
        };
        for (int k = 0; k < 8; k++)
            CHECK(got[i * 8 + k] == expected[k], "product %d of %x and %x: %llx, not %llx", k, a, b, got[i * 8 + k], expected[k]);
    }
    return check::pass();
}
