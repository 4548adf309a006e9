// needs: managed
// Managed memory as the buffer of read(2), write(2), fread and pread.
#include <fcntl.h>
#include <unistd.h>

#include "check.h"

__global__ void flip(unsigned char *p, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) p[i] = ~p[i];
}

int main() {
    const int count = 100001;
    unsigned char *data;
    OK(cudaMallocManaged(&data, count));
    char name[] = "/tmp/managed-io-XXXXXX";
    int file = mkstemp(name);
    CHECK(file >= 0, "mkstemp");
    std::vector<unsigned char> bytes(count);
    for (int i = 0; i < count; i++) bytes[i] = (unsigned char)(i * 7 >> 2);
    CHECK(write(file, bytes.data(), count) == count, "write");
    flip<<<blocks(count, 256), 256>>>(data, count); // the pages are the device's
    RAN();
    CHECK(pread(file, data, count, 0) == count, "pread into managed memory");
    flip<<<blocks(count, 256), 256>>>(data, count);
    RAN();
    CHECK(pwrite(file, data, count, 0) == count, "pwrite from managed memory");
    FILE *again = fopen(name, "rb");
    CHECK(again && fread(data, 1, count, again) == size_t(count), "fread into managed memory");
    fclose(again);
    for (int i = 0; i < count; i++) CHECK(data[i] == (unsigned char)~bytes[i], "byte %d is %d", i, data[i]);
    close(file);
    unlink(name);
    OK(cudaFree(data));
    printf("%d bytes out and in\n", count);
    return check::pass();
}
