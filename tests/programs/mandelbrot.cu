// needs: plain
// The Mandelbrot set: loops of very different length side by side. Products and sums keep IEEE
// rounding (no fused operations), so the picture equals the host's pixel by pixel.
#include <algorithm>

#include "check.h"

const int width = 96, height = 64, limit = 300;

__global__ void picture(int *steps) {
    int px = blockIdx.x * blockDim.x + threadIdx.x, py = blockIdx.y * blockDim.y + threadIdx.y;
    if (px >= width || py >= height) return;
    float cx = __fadd_rn(-2.25f, __fmul_rn(px, 3.0f / 96)), cy = __fadd_rn(-1.0f, __fmul_rn(py, 2.0f / 64));
    float x = 0, y = 0;
    int n = 0;
    while (n < limit) {
        float xx = __fmul_rn(x, x), yy = __fmul_rn(y, y);
        if (__fadd_rn(xx, yy) > 4) break;
        y = __fadd_rn(__fmul_rn(2, __fmul_rn(x, y)), cy);
        x = __fadd_rn(__fsub_rn(xx, yy), cx);
        n++;
    }
    steps[py * width + px] = n;
}

int main() {
    Array<int> d(width * height);
    picture<<<dim3(blocks(width, 32), blocks(height, 8)), dim3(32, 8)>>>(d);
    RAN();
    auto got = d.host();
    for (int py = 0; py < height; py++)
        for (int px = 0; px < width; px++) {
            volatile float cx = -2.25f + px * (3.0f / 96), cy = -1.0f + py * (2.0f / 64), x = 0, y = 0;
            int n = 0;
            while (n < limit) {
                volatile float xx = x * x, yy = y * y, sum = xx + yy, xy = x * y, twice = 2 * xy, difference = xx - yy;
                if (sum > 4) break;
                y = twice + cy;
                x = difference + cx;
                n++;
            }
            CHECK(got[py * width + px] == n, "pixel %d, %d: %d, not %d", px, py, got[py * width + px], n);
        }
    for (int py = 0; py < height; py += 6) {
        for (int px = 0; px < width; px += 2) putchar(" .:-=+*%@#"[std::min(9, got[py * width + px] / 4)]);
        putchar('\n');
    }
    return check::pass();
}
