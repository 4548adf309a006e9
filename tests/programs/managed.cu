// needs: managed
// Managed memory: one pointer on host and device, __managed__ variables, structures with pointers,
// prefetch and advice, a C++ object with a managed new.
#include "check.h"

__managed__ int counter = 3;
__managed__ double table[16];

struct Managed {
    static void *operator new(size_t bytes) {
        void *p;
        OK(cudaMallocManaged(&p, bytes));
        return p;
    }
    static void operator delete(void *p) { OK(cudaFree(p)); }
};
struct List : Managed {
    int value;
    List *next;
    List(int v, List *n) : value(v), next(n) {}
};

__global__ void walk(List *list) {
    for (; list; list = list->next) {
        list->value *= 2;
        atomicAdd(&counter, 1);
    }
}
__global__ void square(double *p, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) p[i] = p[i] * p[i] + table[i % 16];
}

int main() {
    List *list = nullptr;
    for (int i = 0; i < 20; i++) list = new List(i, list);
    walk<<<1, 1>>>(list);
    RAN();
    CHECK(counter == 23, "the counter is %d", counter);
    for (int i = 19; i >= 0; i--) {
        CHECK(list->value == 2 * i, "item %d is %d", i, list->value);
        List *next = list->next;
        delete list;
        list = next;
    }
    const int count = 50000;
    double *data;
    OK(cudaMallocManaged(&data, count * sizeof(double)));
    for (int i = 0; i < count; i++) data[i] = i % 100;
    for (int i = 0; i < 16; i++) table[i] = i * 0.5;
    cudaMemLocation device = {cudaMemLocationTypeDevice, 0}, host = {cudaMemLocationTypeHost, 0};
    OK(cudaMemAdvise(data, count * sizeof(double), cudaMemAdviseSetPreferredLocation, device));
    OK(cudaMemPrefetchAsync(data, count * sizeof(double), device, 0, 0));
    square<<<blocks(count, 256), 256>>>(data, count);
    OK(cudaMemPrefetchAsync(data, count * sizeof(double), host, 0, 0));
    RAN();
    for (int i = 0; i < count; i++) CHECK(data[i] == double(i % 100) * (i % 100) + i % 16 * 0.5, "element %d is %g", i, data[i]);
    std::vector<double> copy(count);
    OK(cudaMemcpy(copy.data(), data, count * sizeof(double), cudaMemcpyDefault));
    CHECK(!memcmp(copy.data(), data, count * sizeof(double)), "a copy differs");
    OK(cudaMemset(data, 0, count * sizeof(double)));
    OK(cudaDeviceSynchronize());
    CHECK(data[count - 1] == 0, "%g", data[count - 1]);
    cudaPointerAttributes attributes;
    OK(cudaPointerGetAttributes(&attributes, data));
    CHECK(attributes.type == cudaMemoryTypeManaged && attributes.hostPointer == attributes.devicePointer, "type %d", attributes.type);
    OK(cudaFree(data));
    printf("counter %d\n", counter);
    return check::pass();
}
