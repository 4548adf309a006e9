// All-pairs gravity, one thread for each body, in float and in double.
//
// Every body feels every other:  a_i = sum_j m_j * r_ij / (|r_ij|^2 + softening^2)^(3/2),  G = 1.
// The softening keeps close pairs finite and makes a body's pull on itself zero, so no pair needs a test.
//
// A block stages TILE bodies at a time in shared memory: each position is then read from global
// memory once for each block, not once for each thread.
//
// The velocities stand half a step before the positions (leapfrog): kick them with the whole step's
// acceleration, then drift the positions. The new positions go to a second buffer, because other
// blocks still read the old ones.
//
// nbody.ptx is made from this file, in this folder, by
//   nvcc -ptx -arch=compute_75 -o - nbody.cu | sed '/^\/\//d' | cat -s > nbody.ptx
// (sed drops the compiler's comment banner).

constexpr int TILE = 256; // threads in a block, and bodies in a tile; the host's BLOCK

// Only the root flushes denormals: its argument is at least softening^2, and without the flush the
// hardware spends three more instructions on each pair. The rest stays IEEE.
__device__ __forceinline__ float inverse_root(float x)
{
    float y;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ double inverse_root(double x)
{
    return rsqrt(x);
}

// Position and mass, or velocity and an unused fourth: one vector load each.
template <typename Real> struct Quad;
template <> struct Quad<float> { using Type = float4; };
template <> struct Quad<double> { using Type = double4; };

// positions: of all bodies; velocities: of this device's bodies alone, of which the first has the
// index `first` among all. tiles * TILE is the number of all bodies, gridDim.x * TILE of this device's.
template <typename Real, int UNROLL>
__device__ __forceinline__ void step(typename Quad<Real>::Type *__restrict__ new_positions,
                                     const typename Quad<Real>::Type *__restrict__ positions,
                                     typename Quad<Real>::Type *__restrict__ velocities,
                                     unsigned first, unsigned tiles, Real dt, Real softening_squared)
{
    using Quad4 = typename Quad<Real>::Type;
    __shared__ Quad4 tile[TILE];

    const unsigned own = blockIdx.x * TILE + threadIdx.x;
    Quad4 body = positions[first + own];
    Real ax = 0, ay = 0, az = 0;

    for (unsigned t = 0; t < tiles; ++t) {
        tile[threadIdx.x] = positions[t * TILE + threadIdx.x];
        __syncthreads();
#pragma unroll UNROLL
        for (int j = 0; j < TILE; ++j) {
            const Quad4 other = tile[j];
            const Real dx = other.x - body.x;
            const Real dy = other.y - body.y;
            const Real dz = other.z - body.z;
            const Real inverse = inverse_root(dx * dx + (dy * dy + (dz * dz + softening_squared)));
            const Real pull = other.w * (inverse * inverse * inverse);
            ax += dx * pull;
            ay += dy * pull;
            az += dz * pull;
        }
        __syncthreads();
    }

    Quad4 velocity = velocities[own];
    velocity.x += ax * dt;
    velocity.y += ay * dt;
    velocity.z += az * dt;
    velocities[own] = velocity;
    body.x += velocity.x * dt;
    body.y += velocity.y * dt;
    body.z += velocity.z * dt;
    new_positions[first + own] = body;
}

extern "C" __global__ void __launch_bounds__(TILE)
step_f32(float4 *new_positions, const float4 *positions, float4 *velocities,
         unsigned first, unsigned tiles, float dt, float softening_squared)
{
    step<float, 32>(new_positions, positions, velocities, first, tiles, dt, softening_squared);
}

extern "C" __global__ void __launch_bounds__(TILE)
step_f64(double4 *new_positions, const double4 *positions, double4 *velocities,
         unsigned first, unsigned tiles, double dt, double softening_squared)
{
    step<double, 8>(new_positions, positions, velocities, first, tiles, dt, softening_squared);
}
