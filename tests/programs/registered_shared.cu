// needs: mapped
// Registration of memory that is shared already: memfds, /dev/shm, deleted and regular files, parts of them,
// with other mappings and other processes that see what kernels write.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

const size_t PAGE = 4096, INTS = PAGE / sizeof(int);

__global__ void add(int *p, int count, int value) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) p[i] += value;
}

static int *map(int fd, size_t bytes, size_t offset = 0, int access = PROT_READ | PROT_WRITE) {
    void *p = mmap(nullptr, bytes, access, MAP_SHARED, fd, off_t(offset));
    CHECK(p != MAP_FAILED, "mmap of %zu bytes", bytes);
    return static_cast<int *>(p);
}

static int memory(size_t bytes) {
    int fd = memfd_create("shared", MFD_CLOEXEC);
    CHECK(fd >= 0 && !ftruncate(fd, off_t(bytes)), "memfd");
    return fd;
}

static int *on_device(void *host) {
    int *device;
    OK(cudaHostGetDevicePointer((void **)&device, host, 0));
    return device;
}

static void bump(int *host, int count, int value) {
    add<<<blocks(count, 128), 128>>>(on_device(host), count, value);
    RAN();
}

static void expect(const int *p, int count, int value, const char *what) {
    for (int i = 0; i < count; i++) CHECK(p[i] == value, "%s: %d is %d, not %d", what, i, p[i], value);
}

// Registered whole, seen at both mappings, copied both ways. Which files on disks can be registered is up to their file system.
static void whole(int fd, const char *what, bool may_be_refused = false) {
    const int count = 64 * INTS;
    int *one = map(fd, count * sizeof(int)), *other = map(fd, count * sizeof(int));
    for (int i = 0; i < count; i++) one[i] = 5;
    cudaError_t status = cudaHostRegister(one, count * sizeof(int), cudaHostRegisterMapped);
    if (may_be_refused && status == cudaErrorInvalidValue) {
        cudaGetLastError();
        munmap(one, count * sizeof(int));
        munmap(other, count * sizeof(int));
        printf("%s\n", what);
        return;
    }
    OK(status);
    bump(one, count, 2);
    expect(one, count, 7, what);
    expect(other, count, 7, what);
    for (int i = 0; i < count; i++) other[i] = 1;
    Array<int> array(count);
    OK(cudaMemcpy(array, one, array.bytes(), cudaMemcpyHostToDevice));
    add<<<blocks(count, 128), 128>>>(array, count, 10);
    OK(cudaMemcpyAsync(one, array, array.bytes(), cudaMemcpyDeviceToHost));
    RAN();
    expect(other, count, 11, what);
    OK(cudaMemset(on_device(one), 0, array.bytes()));
    OK(cudaDeviceSynchronize());
    expect(other, count, 0, what);
    cudaPointerAttributes attributes;
    OK(cudaPointerGetAttributes(&attributes, one));
    CHECK(attributes.type == cudaMemoryTypeHost && attributes.hostPointer == one, "type %d", attributes.type);
    FAILS(cudaHostRegister(one, PAGE, 0), cudaErrorHostMemoryAlreadyRegistered);
    cudaGetLastError();
    OK(cudaHostUnregister(one));
    // It is as it was, and still shared.
    one[3] = 33;
    CHECK(other[3] == 33, "%s: %d", what, other[3]);
    FAILS(cudaHostUnregister(one), cudaErrorHostMemoryNotRegistered);
    cudaGetLastError();
    // And may be registered again.
    OK(cudaHostRegister(one, count * sizeof(int), 0));
    bump(one, 4, 1);
    CHECK(other[3] == 34, "%s: %d", what, other[3]);
    OK(cudaHostUnregister(one));
    munmap(one, count * sizeof(int));
    munmap(other, count * sizeof(int));
    printf("%s\n", what);
}

static void parts() {
    int fd = memory(16 * PAGE);
    int *all = map(fd, 16 * PAGE), *window = map(fd, 4 * PAGE, 8 * PAGE);
    // Bytes in the middle of pages, two of them in one page, at an offset of the file.
    int *first = window + 100, *second = window + 500;
    OK(cudaHostRegister(first, 100 * sizeof(int), 0));
    OK(cudaHostRegister(second, 3 * PAGE, 0));
    bump(first, 100, 3);
    bump(second, 100, 4);
    const int *there = all + 8 * INTS;
    CHECK(there[99] == 0 && there[100] == 3 && there[199] == 3 && there[200] == 0, "the first part");
    CHECK(there[499] == 0 && there[500] == 4 && there[599] == 4 && there[600] == 0, "the second part");
    // The same page again, by its other address.
    OK(cudaHostRegister(all + 8 * INTS, PAGE, 0));
    bump(all + 8 * INTS, INTS, 1);
    CHECK(first[0] == 4 && second[0] == 5 && window[0] == 1, "%d %d", first[0], second[0]);
    OK(cudaHostUnregister(first));
    bump(second, 1, 1);
    CHECK(window[500] == 6 && window[100] == 4, "%d %d", window[500], window[100]);
    OK(cudaHostUnregister(all + 8 * INTS));
    OK(cudaHostUnregister(second));
    munmap(all, 16 * PAGE);
    munmap(window, 4 * PAGE);
    close(fd);
    printf("parts\n");
}

// A worker that came by fork writes, as data loaders' do; kernels read, and the other way round.
static void workers() {
    int fd = memory(8 * PAGE);
    int *data = map(fd, 8 * PAGE);
    OK(cudaHostRegister(data, 8 * PAGE, 0));
    for (int round = 1; round <= 3; round++) {
        pid_t child = fork();
        if (child == 0) {
            for (size_t i = 0; i < 8 * INTS; i++) data[i] = data[i] * 2 + 1;
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0, "the worker ended with %d", status);
        bump(data, 8 * INTS, 1);
    }
    // ((0*2+1+1)*2+1+1)*2+1+1
    expect(data, 8 * INTS, 14, "workers");
    OK(cudaHostUnregister(data));
    munmap(data, 8 * PAGE);
    close(fd);
    printf("workers\n");
}

int main() {
    OK(cudaFree(nullptr));
    int fd = memory(64 * PAGE);
    whole(fd, "memfd");
    close(fd);

    char name[64];
    snprintf(name, sizeof name, "/dev/shm/registered-%d", int(getpid()));
    fd = open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
    CHECK(fd >= 0 && !ftruncate(fd, 64 * PAGE), "%s", name);
    whole(fd, "/dev/shm");
    // As NCCL has it: by name, the descriptor closed.
    int *by_name = map(fd, PAGE);
    close(fd);
    OK(cudaHostRegister(by_name, PAGE, 0));
    bump(by_name, INTS, 9);
    CHECK(by_name[INTS - 1] == 9, "%d", by_name[INTS - 1]);
    OK(cudaHostUnregister(by_name));
    munmap(by_name, PAGE);
    // As PyTorch has it: without a name, the descriptor kept.
    fd = open(name, O_RDWR);
    unlink(name);
    whole(fd, "deleted");
    close(fd);

    // On a disk, where there is one: in containers the file may be of an overlay.
    snprintf(name, sizeof name, "/var/tmp/registered-%d", int(getpid()));
    fd = open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
    struct statfs kind;
    if (fd >= 0 && !ftruncate(fd, 64 * PAGE) && !fstatfs(fd, &kind) && (kind.f_type == 0xef53 || kind.f_type == 0x58465342))
        whole(fd, "a file", true);
    else
        printf("a file\n");
    unlink(name);
    close(fd);

    parts();
    workers();

    // What ends before its registration does.
    fd = memory(4 * PAGE);
    int *gone = map(fd, 4 * PAGE);
    close(fd);
    (void)gone;
    munmap(gone, 4 * PAGE);
    FAILS(cudaHostRegister(gone, 4 * PAGE, 0), cudaErrorInvalidValue);
    cudaGetLastError();
    return check::pass();
}
