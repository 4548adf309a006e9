// needs: plain
// Virtual functions of objects made on the device, with inheritance two deep and a pure base.
#include <new>

#include "check.h"

struct Shape {
    __device__ virtual float area() const = 0;
    __device__ virtual int corners() const { return 0; }
};
struct Circle : Shape {
    float radius;
    __device__ Circle(float r) : radius(r) {}
    __device__ float area() const override { return 3.0f * radius * radius; }
};
struct Box : Shape {
    float width, height;
    __device__ Box(float w, float h) : width(w), height(h) {}
    __device__ float area() const override { return width * height; }
    __device__ int corners() const override { return 4; }
};
struct Square : Box {
    __device__ Square(float side) : Box(side, side) {}
    __device__ int corners() const override { return Box::corners() + 100; }
};

union Room {
    Circle circle;
    Box box;
    Square square;
    __device__ Room() {}
};

__global__ void make(unsigned char *rooms, Shape **shapes, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    void *room = rooms + i * sizeof(Room);
    if (i % 3 == 0) shapes[i] = new (room) Circle(float(i % 10));
    else if (i % 3 == 1) shapes[i] = new (room) Box(float(i % 8), 2);
    else shapes[i] = new (room) Square(float(i % 6));
}

__global__ void ask(Shape **shapes, float *areas, int *corners, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    areas[i] = shapes[i]->area();
    corners[i] = shapes[i]->corners();
}

int main() {
    const int count = 500;
    Array<unsigned char> rooms(count * sizeof(Room));
    Array<Shape *> shapes(count);
    Array<float> areas(count);
    Array<int> corners(count);
    make<<<4, 128>>>(rooms, shapes, count);
    ask<<<4, 128>>>(shapes, areas, corners, count);
    RAN();
    auto a = areas.host();
    auto c = corners.host();
    for (int i = 0; i < count; i++) {
        float area = i % 3 == 0 ? 3.0f * (i % 10) * (i % 10) : i % 3 == 1 ? 2.0f * (i % 8) : float((i % 6) * (i % 6));
        CHECK(a[i] == area && c[i] == (i % 3 == 0 ? 0 : i % 3 == 1 ? 4 : 104), "shape %d: area %g, %d corners", i, a[i], c[i]);
    }
    printf("%d shapes\n", count);
    return check::pass();
}
