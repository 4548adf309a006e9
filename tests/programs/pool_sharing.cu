// needs: ipc
// A memory pool of two processes: the pool as a descriptor, its allocation by a token; batches of boxes and of
// managed ranges.
#include <cstring>
#include <sys/prctl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "driver.h"

__global__ void twice(unsigned *p, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) p[i] *= 2;
}

const int count = 250;

struct Offer {
    int fd;
    cudaMemPoolPtrExportData token;
};

// A message with a descriptor, there or back.
static bool carry(int socket, Offer &offer, bool there) {
    char control[CMSG_SPACE(sizeof(int))] = {};
    iovec part = {&offer.token, sizeof offer.token};
    msghdr message = {};
    message.msg_iov = &part, message.msg_iovlen = 1;
    message.msg_control = control, message.msg_controllen = sizeof control;
    if (!there && recvmsg(socket, &message, MSG_WAITALL) != sizeof offer.token) return false;
    if (there) {
        cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET, header->cmsg_type = SCM_RIGHTS, header->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(header), &offer.fd, sizeof(int));
        return sendmsg(socket, &message, 0) == sizeof offer.token;
    }
    cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (header) memcpy(&offer.fd, CMSG_DATA(header), sizeof(int));
    return header;
}

static int child(int socket) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    Offer offer;
    CHECK(carry(socket, offer, false), "no pool came");
    OK(cudaFree(nullptr));
    cudaMemPool_t pool;
    OK(cudaMemPoolImportFromShareableHandle(&pool, (void *)(long)offer.fd, cudaMemHandleTypePosixFileDescriptor, 0));
    unsigned *p;
    OK(cudaMemPoolImportPointer((void **)&p, pool, &offer.token));
    unsigned values[count];
    OK(cudaMemcpy(values, p, sizeof values, cudaMemcpyDeviceToHost));
    for (int i = 0; i < count; i++) CHECK(values[i] == 0xabcdu, "%u", values[i]);
    twice<<<1, 256>>>(p, count);
    OK(cudaDeviceSynchronize());
    // Its memory and settings are where it was made.
    void *none;
    int value;
    CHECK(cudaMallocFromPoolAsync(&none, 64, pool, 0) == cudaErrorInvalidValue, "memory of another process's pool");
    CHECK(cudaMemPoolTrimTo(pool, 0) == cudaErrorInvalidValue, "another process's pool is trimmed");
    CHECK(cudaMemPoolGetAttribute(pool, cudaMemPoolReuseFollowEventDependencies, &value) == cudaErrorInvalidValue, "asked");
    cudaMemPoolPtrExportData token;
    CHECK(cudaMemPoolExportPointer(&token, p) == cudaErrorInvalidValue, "given on");
    memset(&token, 1, sizeof token);
    CHECK(cudaMemPoolImportPointer((void **)&none, pool, &token) == cudaErrorInvalidValue, "a forged token");
    cudaGetLastError();
    OK(cudaFreeAsync(p, 0));
    OK(cudaMemPoolDestroy(pool));
    CHECK(write(socket, "x", 1) == 1, "the other process is gone");
    return 0;
}

static void share(int socket) {
    cudaMemPoolProps properties = {};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location.type = cudaMemLocationTypeDevice;
    cudaMemPool_t plain, pool;
    OK(cudaMemPoolCreate(&plain, &properties));
    properties.handleTypes = cudaMemHandleTypePosixFileDescriptor;
    OK(cudaMemPoolCreate(&pool, &properties));
    Offer offer;
    auto exported = [&](cudaMemPool_t from, unsigned flags) {
        return cudaMemPoolExportToShareableHandle(&offer.fd, from, cudaMemHandleTypePosixFileDescriptor, flags);
    };
    CHECK(exported(plain, 0) == cudaErrorInvalidValue, "one that was not made for it");
    CHECK(exported(pool, 1) == cudaErrorInvalidValue, "flags");
    OK(exported(pool, 0));
    unsigned *p, *own;
    OK(cudaMallocFromPoolAsync((void **)&p, count * 4, pool, 0));
    OK(cudaMallocFromPoolAsync((void **)&own, count * 4, plain, 0));
    CHECK(cudaMemPoolExportPointer(&offer.token, own) == cudaErrorInvalidValue, "of a pool that is not shared");
    CHECK(cudaMemPoolExportPointer(&offer.token, p + 4) == cudaErrorInvalidValue, "inside of an allocation");
    cudaGetLastError();
    OK(cudaMemPoolExportPointer(&offer.token, p));
    unsigned values[count];
    for (unsigned &value : values) value = 0xabcd;
    OK(cudaMemcpy(p, values, sizeof values, cudaMemcpyHostToDevice));
    CHECK(carry(socket, offer, true), "the other process is gone");
    char done;
    CHECK(read(socket, &done, 1) == 1, "the other process is gone");
    OK(cudaMemcpy(values, p, sizeof values, cudaMemcpyDeviceToHost));
    for (unsigned value : values) CHECK(value == 2 * 0xabcdu, "%u", value);
    OK(cudaFreeAsync(p, 0));
    OK(cudaFreeAsync(own, 0));
    OK(cudaMemPoolDestroy(pool));
    OK(cudaMemPoolDestroy(plain));
}

static void batches() {
    cudaStream_t stream;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    unsigned char *from, *to, *managed, *device;
    OK(cudaMalloc((void **)&from, 4096));
    OK(cudaMalloc((void **)&to, 4096));
    OK(cudaMalloc((void **)&device, 1 << 20));
    OK(cudaMallocManaged((void **)&managed, 1 << 20));
    unsigned char content[4096], copied[4096];
    for (int i = 0; i < 4096; i++) content[i] = i % 251;
    OK(cudaMemcpy(from, content, sizeof content, cudaMemcpyHostToDevice));
    OK(cudaMemset(to, 0, 4096));
    OK(cudaDeviceSynchronize());
    CUDA_MEMCPY3D_BATCH_OP copy;
    memset(&copy, 0, sizeof copy);
    copy.src.type = copy.dst.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
    copy.src.op.ptr.ptr = (CUdeviceptr)from, copy.src.op.ptr.rowLength = 16, copy.src.op.ptr.layerHeight = 8;
    copy.dst.op.ptr.ptr = (CUdeviceptr)to;
    copy.extent.width = 10, copy.extent.height = 4, copy.extent.depth = 2;
    copy.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    CUDA_MEMCPY3D_BATCH_OP list[2] = {copy, copy};
    list[1].dst.op.ptr.ptr += 1000;
    list[1].extent.depth = 1;
    CU(cuMemcpy3DBatchAsync, 2, list, 0, stream);
    OK(cudaStreamSynchronize(stream));
    OK(cudaMemcpy(copied, to, sizeof copied, cudaMemcpyDeviceToHost));
    for (int z = 0; z < 2; z++)
        for (int y = 0; y < 4; y++)
            for (int x = 0; x < 10; x++) {
                unsigned char expected = content[(z * 8 + y) * 16 + x];
                CHECK(copied[(z * 4 + y) * 10 + x] == expected, "at %d %d %d", x, y, z);
                CHECK(z || copied[1000 + y * 10 + x] == expected, "second, at %d %d", x, y);
            }
    CHECK(copied[80] == 0 && copied[1040] == 0, "too much was copied");
    auto boxes = DRIVER(cuMemcpy3DBatchAsync);
    CHECK(boxes(0, list, 0, stream) == CUDA_ERROR_INVALID_VALUE, "none");
    CHECK(boxes(1, list, 1, stream) == CUDA_ERROR_INVALID_VALUE, "flags");
    CHECK(boxes(1, list, 0, nullptr) == CUDA_ERROR_INVALID_VALUE, "the legacy stream");
    list[0].src.op.ptr.rowLength = 8;
    CHECK(boxes(1, list, 0, stream) == CUDA_ERROR_INVALID_VALUE, "rows shorter than what is copied");

    auto prefetch = DRIVER(cuMemPrefetchBatchAsync);
    auto discard = DRIVER(cuMemDiscardBatchAsync);
    CUdeviceptr ranges[2] = {(CUdeviceptr)managed, (CUdeviceptr)managed + (1 << 19)}, plain = (CUdeviceptr)device;
    size_t sizes[2] = {1 << 19, 1 << 19}, first = 0, second = 1;
    CUmemLocation place = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
    CHECK(prefetch(ranges, sizes, 2, &place, &first, 1, 0, stream) == CUDA_SUCCESS, "prefetch");
    CHECK(prefetch(&plain, sizes, 1, &place, &first, 1, 0, stream) == CUDA_ERROR_INVALID_VALUE, "device memory");
    CHECK(prefetch(ranges, sizes, 2, &place, &second, 1, 0, stream) == CUDA_ERROR_INVALID_VALUE, "from the second on");
    CHECK(prefetch(ranges, sizes, 2, &place, &first, 1, 0, nullptr) == CUDA_ERROR_INVALID_VALUE, "the legacy stream");
    CHECK(discard(ranges, sizes, 2, 0, stream) == CUDA_SUCCESS, "discard");
    CHECK(discard(&plain, sizes, 1, 0, stream) == CUDA_ERROR_INVALID_VALUE, "device memory");
    CHECK(discard(ranges, sizes, 2, 1, stream) == CUDA_ERROR_INVALID_VALUE, "flags");
    CU(cuMemDiscardAndPrefetchBatchAsync, ranges, sizes, 2, &place, &first, 1, 0, stream);
    OK(cudaStreamSynchronize(stream));
}

int main() {
    // The other process begins before this one has anything of CUDA.
    int sockets[2];
    CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, sockets), "socketpair");
    pid_t pid = fork();
    if (pid == 0) _exit(child(sockets[1]));
    share(sockets[0]);
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && status == 0, "the other process: %#x", status);
    batches();
    printf("done\n");
    return check::pass();
}
