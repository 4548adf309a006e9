// Runs the cases that ptx-vm/tests/exec/recorded.rs writes on an NVIDIA GPU, from the folder that has them: for each its
// module, entry, status, the hash of what it leaves in its buffer, and some of the words that have changed.
//
// cc -O1 -o runner runner.c -ldl -lpthread
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
typedef int CUresult; typedef void *H; typedef unsigned long long D;
static CUresult (*cuInit)(unsigned), (*cuDeviceGet)(int *, int), (*cuDevicePrimaryCtxRetain)(H *, int), (*cuCtxSetCurrent)(H),
    (*cuModuleLoadData)(H *, const void *), (*cuModuleGetFunction)(H *, H, const char *), (*cuMemAlloc)(D *, size_t),
    (*cuMemcpyHtoD)(D, const void *, size_t), (*cuMemcpyDtoH)(void *, D, size_t), (*cuCtxSynchronize)(void),
    (*cuLaunchKernel)(H, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, H, void **, void **);
struct Case { char module[32], entry[16], input[16], floats[8]; int threads; uint32_t hash; int status; char *detail; };
static struct Case *cases; static int count; static H context;
static int next_case; static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char *slurp(const char *name, const char *ext, size_t *len) {
    char path[64]; snprintf(path, sizeof path, "%s.%s", name, ext);
    FILE *f = fopen(path, "rb"); if (!f) { perror(path); exit(1); }
    fseek(f, 0, SEEK_END); long n = ftell(f); rewind(f);
    char *b = malloc(n + 1); if (fread(b, 1, n, f) != (size_t)n) exit(1); b[n] = 0; fclose(f); if (len) *len = n; return b;
}
static uint64_t one(uint64_t word, int bits, uint64_t infinite) {
    uint64_t amount = ~0ull >> (65 - bits);
    for (int at = 0; at < 64; at += bits) if ((word >> at & amount) > infinite) word = (word | amount << at) & ~(1ull << (at + bits - 1));
    return word;
}
static uint64_t one_nan(uint64_t word, const char *floats) {
    for (; *floats; floats++) {
        if (*floats == 'd') word = one(word, 64, 0x7ff0000000000000);
        if (*floats == 's') word = one(word, 32, 0x7f800000);
        if (*floats == 'h') word = one(word, 16, 0x7c00);
        if (*floats == 'b') word = one(word, 16, 0x7f80);
    }
    return word;
}
static void *work(void *_) {
    (void)_; cuCtxSetCurrent(context); D buffer; cuMemAlloc(&buffer, 65536);
    for (;;) {
        pthread_mutex_lock(&lock); int i = next_case, j = i;
        while (j < count && !strcmp(cases[j].module, cases[i].module)) j++;
        next_case = j; pthread_mutex_unlock(&lock);
        if (i >= count) return 0;
        char *text = slurp(cases[i].module, "ptx", 0); H module = 0; int r = cuModuleLoadData(&module, text);
        for (; i < j; i++) {
            struct Case *c = &cases[i]; c->status = r; if (r) continue;
            H f; size_t n; char *in = slurp(c->input, "in", &n); size_t bytes = c->threads * 512; char *out = malloc(bytes);
            c->status = cuModuleGetFunction(&f, module, c->entry);
            if (!c->status) c->status = cuMemcpyHtoD(buffer, in, bytes);
            void *args[] = {&buffer};
            if (!c->status) c->status = cuLaunchKernel(f, 1, 1, 1, c->threads, 1, 1, 0, 0, args, 0);
            if (!c->status) c->status = cuCtxSynchronize();
            if (!c->status) c->status = cuMemcpyDtoH(out, buffer, bytes);
            for (size_t w = 0; w < bytes / 8; w++) { uint64_t v; memcpy(&v, out + 8 * w, 8); v = one_nan(v, c->floats); memcpy(out + 8 * w, &v, 8); }
            uint32_t h = 0x811c9dc5;
            for (size_t k = 0; k < bytes; k++) h = (h ^ (unsigned char)out[k]) * 0x01000193;
            c->hash = h; size_t cap = 1 << 16, at = 0; c->detail = malloc(cap);
            int most = c->module[0] == 'm' ? 5 : 4;
            for (int lane = 0; lane < c->threads; lane++) if (c->module[0] != 'm' || lane < 9 || lane % 8 == 7) for (int w = 0, shown = 0; w < 64 && shown < most && at + 64 < cap; w++) {
                uint64_t a, b; memcpy(&a, in + lane * 512 + w * 8, 8); memcpy(&b, out + lane * 512 + w * 8, 8);
                if (a != b) shown++, at += sprintf(c->detail + at, " %d.%d=%llx", lane, w, (unsigned long long)b);
            }
            c->detail[at] = 0; free(in); free(out);
        }
        free(text);
    }
}
#define GET(f, n) if (!(*(void **)&f = dlsym(lib, n))) { fprintf(stderr, "no %s\n", n); return 1; }
int main(void) {
    void *lib = dlopen("libcuda.so.1", RTLD_NOW); if (!lib) { fprintf(stderr, "%s\n", dlerror()); return 1; }
    GET(cuInit, "cuInit") GET(cuDeviceGet, "cuDeviceGet") GET(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain") GET(cuCtxSetCurrent, "cuCtxSetCurrent")
    GET(cuModuleLoadData, "cuModuleLoadData") GET(cuModuleGetFunction, "cuModuleGetFunction") GET(cuMemAlloc, "cuMemAlloc_v2")
    GET(cuMemcpyHtoD, "cuMemcpyHtoD_v2") GET(cuMemcpyDtoH, "cuMemcpyDtoH_v2") GET(cuCtxSynchronize, "cuCtxSynchronize") GET(cuLaunchKernel, "cuLaunchKernel")
    int device; if (cuInit(0) || cuDeviceGet(&device, 0) || cuDevicePrimaryCtxRetain(&context, device)) { fprintf(stderr, "no device\n"); return 1; }
    char *text = slurp("cases", "txt", 0); cases = calloc(8192, sizeof *cases);
    for (char *l = strtok(text, "\n"); l; l = strtok(0, "\n")) {
        struct Case *c = &cases[count]; if (sscanf(l, "%31s %15s %d %15s %7s", c->module, c->entry, &c->threads, c->input, c->floats) == 5) count++;
    }
    pthread_t t[12]; for (int i = 0; i < 12; i++) pthread_create(&t[i], 0, work, 0);
    for (int i = 0; i < 12; i++) pthread_join(t[i], 0);
    for (int i = 0; i < count; i++) printf("%s %s %d %08x%s\n", cases[i].module, cases[i].entry, cases[i].status, cases[i].hash, cases[i].detail ? cases[i].detail : "");
    return 0;
}
