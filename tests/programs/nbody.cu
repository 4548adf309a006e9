// needs: plain
// n-body by tiles in shared memory, a few steps, against the host in double.
#include <algorithm>

#include "check.h"

const int tile = 64;

__global__ void step(const float4 *in, float4 *out, float4 *velocities, int count, float dt) {
    __shared__ float4 others[tile];
    int i = blockIdx.x * tile + threadIdx.x;
    float4 me = in[i];
    float3 pull = {0, 0, 0};
    for (int base = 0; base < count; base += tile) {
        others[threadIdx.x] = in[base + threadIdx.x];
        __syncthreads();
#pragma unroll 8
        for (int k = 0; k < tile; k++) {
            float4 o = others[k];
            float x = o.x - me.x, y = o.y - me.y, z = o.z - me.z;
            float inverse = rsqrtf(x * x + y * y + z * z + 0.01f), strength = o.w * inverse * inverse * inverse;
            pull.x += x * strength, pull.y += y * strength, pull.z += z * strength;
        }
        __syncthreads();
    }
    float4 v = velocities[i];
    v.x += pull.x * dt, v.y += pull.y * dt, v.z += pull.z * dt;
    velocities[i] = v;
    out[i] = make_float4(me.x + v.x * dt, me.y + v.y * dt, me.z + v.z * dt, me.w);
}

int main() {
    const int count = 512, steps = 5;
    const float dt = 0.01f;
    Random random(65);
    std::vector<float4> bodies(count);
    for (auto &b : bodies) b = make_float4(random.between(-1, 1), random.between(-1, 1), random.between(-1, 1), random.between(0.1, 1) / count);
    struct Body {
        double p[3], v[3], mass;
    };
    std::vector<Body> exact(count);
    for (int i = 0; i < count; i++) exact[i] = {{bodies[i].x, bodies[i].y, bodies[i].z}, {0, 0, 0}, bodies[i].w};
    Array<float4> a(bodies), b(count), v(count);
    v.clear();
    float4 *from = a, *to = b;
    for (int s = 0; s < steps; s++) {
        step<<<count / tile, tile>>>(from, to, v, count, dt);
        std::swap(from, to);
        auto next = exact;
        for (int i = 0; i < count; i++) {
            for (int j = 0; j < count; j++) {
                double r[3], square = 0.01f;
                for (int c = 0; c < 3; c++) r[c] = exact[j].p[c] - exact[i].p[c], square += r[c] * r[c];
                for (int c = 0; c < 3; c++) next[i].v[c] += dt * r[c] * exact[j].mass / (square * std::sqrt(square));
            }
            for (int c = 0; c < 3; c++) next[i].p[c] += next[i].v[c] * dt;
        }
        exact = next;
    }
    RAN();
    std::vector<float4> got(count);
    OK(cudaMemcpy(got.data(), from, count * sizeof(float4), cudaMemcpyDeviceToHost));
    double worst = 0;
    for (int i = 0; i < count; i++)
        worst = std::max({worst, std::fabs(got[i].x - exact[i].p[0]), std::fabs(got[i].y - exact[i].p[1]), std::fabs(got[i].z - exact[i].p[2])});
    CHECK(worst < 1e-5, "largest error %g", worst);
    printf("%d bodies, %d steps\n", count, steps);
    return check::pass();
}
