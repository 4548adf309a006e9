// The step of examples/nbody/nbody.cu, in OpenCL C: the same tiles, the same order.

#define TILE 256

__kernel __attribute__((reqd_work_group_size(TILE, 1, 1)))
void nbody_step(__global float4 *restrict new_positions, __global const float4 *restrict positions,
          __global float4 *restrict velocities, uint tiles, float dt, float softening_squared)
{
    __local float4 tile[TILE];
    const uint own = get_global_id(0);
    const uint lane = get_local_id(0);
    float4 body = positions[own];
    float ax = 0.0f, ay = 0.0f, az = 0.0f;

    for (uint t = 0; t < tiles; ++t) {
        tile[lane] = positions[t * TILE + lane];
        barrier(CLK_LOCAL_MEM_FENCE);
        for (uint j = 0; j < TILE; ++j) {
            const float4 other = tile[j];
            const float dx = other.x - body.x;
            const float dy = other.y - body.y;
            const float dz = other.z - body.z;
            const float inverse = rsqrt(dx * dx + (dy * dy + (dz * dz + softening_squared)));
            const float pull = other.w * (inverse * inverse * inverse);
            ax += dx * pull;
            ay += dy * pull;
            az += dz * pull;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }

    float4 velocity = velocities[own];
    velocity.x += ax * dt;
    velocity.y += ay * dt;
    velocity.z += az * dt;
    velocities[own] = velocity;
    body.x += velocity.x * dt;
    body.y += velocity.y * dt;
    body.z += velocity.z * dt;
    new_positions[own] = body;
}
