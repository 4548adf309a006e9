/* A driver of our own making, for tests on machines without a GPU: one device whose memory is the
 * process's, streams that do their work at once, or, while they are held, when they are let go. It has
 * no compiler: an image that begins with ".version" has the kernels that its text names, which do
 * nothing; one of machine code has such a text somewhere, and the variables that its symbols name. Compiled by the tests, with
 *   VERSION      what cuDriverGetVersion says;
 *   DEVICES      how many there are, 1 unless it says so;
 *   MARK         text in the file's read-only data;
 *   APART        variables of machine code have places of their own;
 *   REFUSED      images with this in their text are refused;
 *   LOCAL        bytes of a thread's local memory of a kernel that is called deep;
 *   THREADS      that a multiprocessor can have, more than a thousand unless it says so;
 *   SPINNING     1 if kernels spin from the beginning;
 *   HELD         a file: while it is there, kernels that spin do not end, and when it is gone they do;
 *   STALLED      a file: while it is there, copies wait, and what is behind them;
 *   DEATH        a file: once it is there, the device is dead of 700, if it says a process's number for that one;
 *   TOTAL        bytes of memory that there are said to be;
 *   OTHERS       bytes of it that other processes have;
 *   MPS          it is a client of the MPS in CUDA_MPS_PIPE_DIRECTORY, if one listens there, as
 *                tests/src/bin/nvidia_mps.rs does; 0 if it never says that it is one;
 *   OUTSIDE      a file that it does not start if it can open;
 *   CACHE        a file that it does not start if it cannot make;
 *   LOCK         a file that it writes to whose pthread_mutex_lock it has;
 *   ATTRIBUTES   launches can have attributes;
 *   NOT_A_DRIVER leaves everything out.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#ifndef DEVICES
#define DEVICES 1
#endif

#ifdef MARK
const char mark[] = MARK;
#endif

#ifdef NOT_A_DRIVER
int nothing(void) { return 0; }
#else

typedef int R;
typedef uint64_t P;
enum { OK, INVALID_VALUE, OUT_OF_MEMORY, OPERATING_SYSTEM = 304, NOT_FOUND = 500, NOT_READY = 600, PTX = 218 };

#ifdef LOCK
__attribute__((constructor)) static void whose_lock(void) {
    Dl_info found;
    FILE *file = fopen(LOCK, "w");
    if (file && dladdr((void *)pthread_mutex_lock, &found)) fputs(found.dli_fname, file);
    if (file) fclose(file);
}
#endif

static int mps = -1; /* the connection to NVIDIA's MPS */
static R ask_mps(const char *what) {
#ifdef MPS
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    const char *pipe = getenv("CUDA_MPS_PIPE_DIRECTORY");
    int code = 805, fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    snprintf(at.sun_path, sizeof at.sun_path, "%s/control", pipe ? pipe : "");
    if (connect(fd, (struct sockaddr *)&at, sizeof at)) {
        close(fd);
        return OK; /* nobody is there: it goes on without, as NVIDIA's */
    }
    if (mps < 0) mps = fd;
    if (send(fd, what, strlen(what), MSG_NOSIGNAL) < 0 || recv(fd, &code, sizeof code, 0) <= 0) return 805;
    if (mps != fd) close(fd);
    return code;
#else
    (void)what;
    return OK;
#endif
}
/* A context ends with the MPS that it is on. */
static int mps_is_lost(void) {
    struct pollfd at = {.fd = mps};
    return mps >= 0 && poll(&at, 1, 0) == 1;
}

static pthread_mutex_t big = PTHREAD_MUTEX_INITIALIZER;
static int death;      /* what contexts died of, those of one device or of all */
static int dead = -1;
static __thread int current; /* device of the thread's context */
static int sticky(void) { return dead < 0 || dead == current ? death : 0; }
static int held;       /* streams do nothing */
#ifndef SPINNING
#define SPINNING 0
#endif
static int spinning = SPINNING; /* kernels that are told to spin, or called k, do not end */
static int attributes; /* how many device attributes are known */
#ifndef TOTAL
#define TOTAL (1ull << 32)
#endif
static size_t total = TOTAL;
static _Atomic size_t taken;
static _Atomic int live_streams, live_modules, live_registrations, live_events;

/* One operation of a stream. */
struct op {
    struct op *next;
    int kind; /* 0 move, 1 fill, 2 word, 3 call, 4 event, 5 spin, 6 nothing, 7 semaphore's signal, 8 wait for it */
    P to, from;
    size_t width, height, depth, to_pitch, from_pitch, to_slice, from_slice;
    uint32_t value;
    int element;
    void (*call)(void *);
    void *data, *kept;
};
struct stream { struct op *first, **last; long part; };
struct event { double at; int recorded, passed; };
struct semaphore { unsigned kind; P value; }; /* of a timeline; of others 1 once signalled, 0 once waited for */
static double now;
static int signalled; /* a semaphore, for which other streams may wait */

static void run(struct op *o) {
    switch (o->kind) {
    case 0:
        for (size_t z = 0; z < o->depth; z++)
            for (size_t y = 0; y < o->height; y++)
                memmove((char *)o->to + z * o->to_slice + y * o->to_pitch,
                        (char *)o->from + z * o->from_slice + y * o->from_pitch, o->width);
        break;
    case 1:
        for (size_t y = 0; y < o->height; y++)
            for (size_t x = 0; x < o->width; x++)
                memcpy((char *)o->to + y * o->to_pitch + x * o->element, &o->value, o->element);
        break;
    case 2:
        __atomic_store_n((uint32_t *)o->to, o->value, __ATOMIC_RELEASE);
        if (o->from) __atomic_store_n((uint64_t *)o->from, o->width, __ATOMIC_RELEASE);
        break;
    case 3: o->call(o->data); break;
    case 4: ((struct event *)o->data)->passed = 1; ((struct event *)o->data)->at = now += 0.25; break;
    case 7: ((struct semaphore *)o->data)->value = o->from; signalled = 1; break;
    case 8: if (((struct semaphore *)o->data)->kind == 1) ((struct semaphore *)o->data)->value = 0; break;
    }
    free(o->kept);
    free(o);
}
static int ending; /* so many kernels that spin end all the same */
static int spins(void) {
#ifdef HELD
    if (access(HELD, F_OK)) return 0;
#endif
    return spinning;
}
static int stalled(struct op *o) {
#ifdef STALLED
    return !o->kind && !access(STALLED, F_OK);
#else
    return 0;
#endif
}
static int waits(struct op *o) { return stalled(o) ||  o->kind == 8 && ((struct semaphore *)o->data)->value < o->from; }
static void drain(struct stream *s) {
    while (!held && !death && s->first && !(s->first->kind == 5 && !ending && spins()) && !waits(s->first)) {
        struct op *o = s->first;
        if (o->kind == 5 && ending) ending--;
        if (!(s->first = o->next)) s->last = &s->first;
        run(o);
    }
}
/* Calls until one finds no memory; 0 when all do. */
static int fail_in;
static R scarce(void) {
    return __atomic_load_n(&fail_in, __ATOMIC_SEQ_CST) > 0 && !__atomic_sub_fetch(&fail_in, 1, __ATOMIC_SEQ_CST) ? OUT_OF_MEMORY : OK;
}
/* Sets them, and gives how many were left. */
int fake_fail(int calls) { return __atomic_exchange_n(&fail_in, calls, __ATOMIC_SEQ_CST); }

static struct stream *streams[4096];
static void drain_all(void) {
    do {
        signalled = 0;
        for (int i = 0; i < 4096; i++)
            if (streams[i]) drain(streams[i]);
    } while (signalled);
}
static R push(struct stream *s, struct op o) {
    pthread_mutex_lock(&big);
    R r = sticky() ? sticky() : scarce();
    if (!r) {
        struct op *kept = malloc(sizeof o);
        *kept = o;
        kept->next = 0;
        *s->last = kept;
        s->last = &kept->next;
        drain(s);
        if (signalled) drain_all();
    }
    pthread_mutex_unlock(&big);
    return r;
}

/* The tables of mappings and registrations change in one thread at a time; what holds them takes big, never the other way about. */
static pthread_mutex_t tables = PTHREAD_MUTEX_INITIALIZER;
static void let_tables_go(int *held) { pthread_mutex_unlock(&tables); }
#define HOLD_TABLES __attribute__((cleanup(let_tables_go), unused)) int tables_held = pthread_mutex_lock(&tables)

/* Calls for which the real driver would have waited for kernels, with its lock held. */
static _Atomic long stalls;
static void waits_for_all(void) {
    pthread_mutex_lock(&big);
    for (int i = 0; i < 4096; i++)
        if (streams[i] && streams[i]->first) {
            stalls++;
            break;
        }
    pthread_mutex_unlock(&big);
}

/* The groups of multiprocessors of the stream of the last launch, or of its graph's context; 0 for all. */
static long last_part;
static long multiprocessors(long part) {
    long count = part >> 8 & 1 ? 56 : 0; /* what the split leaves over */
    for (int i = 0; i < 8; i++) count += part >> i & 1 ? 120 : 0;
    return count;
}
static _Atomic int live_semaphores;
static _Atomic int live_graphs, launched_graphs, launched_alone;
static _Atomic long node_attributes;
static _Atomic int changed_nodes;
static _Atomic int stale_nodes; /* that were changed after their function had gone */

/* What tests turn. */
static void turn(int *what, int on) {
    pthread_mutex_lock(&big);
    *what = on;
    drain_all();
    pthread_mutex_unlock(&big);
}
void fake_hold(int on) { turn(&held, on); }
/* So many modules may still be loaded; -1 for any number. Who loads more waits in that call. */
static _Atomic int loads_left = -1;
void fake_hold_loads(int left) { loads_left = left; }
static int load_goes_on(void) {
    int left = loads_left;
    return left < 0 || left > 0 && __atomic_compare_exchange_n((int *)&loads_left, &left, left - 1, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}
void fake_spin(int on) { turn(&spinning, on); }
void fake_end(int count) { turn(&ending, count); }
void fake_die(int code) { death = code; }
void fake_die_of(int device) { dead = device; }
static _Atomic long signatures; /* words that streams were asked to write */
static _Atomic long loads;      /* modules that were loaded */
long fake_count(int what) {
    switch (what) {
    case 0: return live_streams;
    case 1: return live_modules;
    case 2: return live_registrations;
    case 3: return live_events;
    case 4: return (long)taken;
    case 5: return stalls;
    case 6: return multiprocessors(last_part);
    case 7: {
        long queued = 0;
        for (int i = 0; i < 4096; i++)
            if (streams[i])
                for (struct op *o = streams[i]->first; o; o = o->next) queued++;
        return queued;
    }
    case 8: return live_graphs;
    case 9: return launched_graphs;
    case 10: return launched_alone;
    case 11: return stale_nodes;
    case 12: return last_part;
    case 13: return signatures;
    case 14: return changed_nodes;
    case 15: return loads;
    case 16: return fail_in;
    case 17: return live_semaphores;
    case 18: return node_attributes;
    }
    return -1;
}

R cuInit(unsigned flags) {
#ifdef OUTSIDE
    if (open(OUTSIDE, O_RDONLY) >= 0) return OPERATING_SYSTEM;
#endif
#ifdef CACHE
    if (open(CACHE, O_WRONLY | O_CREAT, 0600) < 0) return OPERATING_SYSTEM;
#endif
    return ask_mps("client init");
}
R cuDriverGetVersion(int *v) { *v = VERSION; return OK; }
R cuDeviceGetCount(int *n) { *n = DEVICES; return OK; }
R cuDeviceCanAccessPeer(int *can, int a, int b) { *can = a != b; return OK; }
R cuDeviceGetName(char *name, int n, int d) { snprintf(name, n, "Fake GPU"); return OK; }
R cuDeviceGetUuid_v2(unsigned char *u, int d) { for (int i = 0; i < 16; i++) u[i] = i; return OK; }
R cuDeviceTotalMem_v2(size_t *n, int d) { *n = total; return OK; }
R cuDeviceGetAttribute(int *v, unsigned a, int d) {
    attributes = 119; /* as a driver older than the table */
#ifdef MPS
    if (a == 133) return *v = MPS && mps >= 0, OK;
#endif
    if (a > attributes) return INVALID_VALUE;
#ifdef THREADS
    if (a == 39) return *v = THREADS, OK;
#endif
    *v = 1000 + a;
    return OK;
}
static __thread long current_part; /* its groups of multiprocessors, if it is a green one; 0 for all */
R cuDevicePrimaryCtxRetain(void **c, int d) {
    *c = (void *)(0x1000 + (P)d);
    return mps >= 0 ? ask_mps("client context") : OK;
}
R cuDevicePrimaryCtxRelease_v2(int d) { return OK; }
R cuCtxSetCurrent(void *c) {
    int primary = (P)c >= 0x1000 && (P)c < 0x1000 + DEVICES;
    current_part = primary || !c ? 0 : *(long *)c;
    if (primary) current = (P)c - 0x1000;
    return OK;
}
R cuCtxEnablePeerAccess(void *c, unsigned f) { return (P)c - 0x1000 == current ? 101 : OK; }
R cuCtxGetStreamPriorityRange(int *l, int *g) { *l = 0; *g = -5; return OK; }
#ifndef OTHERS
#define OTHERS 0
#endif
R cuMemGetInfo_v2(size_t *f, size_t *t) { *f = total - OTHERS - taken; *t = total; return sticky(); }

R cuStreamCreateWithPriority(struct stream **s, unsigned f, int p) {
    if (scarce()) return OUT_OF_MEMORY;
    if (f != 1 || p > 0 || p < -5) return INVALID_VALUE;
    *s = malloc(sizeof **s);
    (*s)->first = 0;
    (*s)->part = 0;
    (*s)->last = &(*s)->first;
    pthread_mutex_lock(&big);
    for (int i = 0; i < 4096; i++)
        if (!streams[i]) { streams[i] = *s; break; }
    live_streams++;
    pthread_mutex_unlock(&big);
    return sticky();
}

#ifdef GREEN
/* A device of 1016 multiprocessors, as its attribute says, in groups of 120. */
struct resource { unsigned kind; char padding[92]; unsigned count; int group; char rest[40]; };
R cuDeviceGetDevResource(int d, struct resource *r, unsigned kind) { r->kind = kind; r->count = 1016; return OK; }
R cuDevSmResourceSplitByCount(struct resource *r, unsigned *n, struct resource *all, struct resource *rest, unsigned f, unsigned least) {
    if (!r) return *n = 8, OK;
    for (unsigned i = 0; i < *n; i++) r[i].kind = 1, r[i].count = 120, r[i].group = i;
    if (rest) rest->kind = 1, rest->count = 56, rest->group = 8;
    return OK;
}
R cuDevResourceGenerateDesc(long **d, struct resource *r, unsigned n) {
    *d = calloc(1, sizeof **d);
    for (unsigned i = 0; i < n; i++) **d |= 1L << r[i].group;
    return OK;
}
R cuGreenCtxCreate(long **g, long *d, int device, unsigned f) { if (scarce()) return OUT_OF_MEMORY; waits_for_all(); *g = d; return f == 1 ? OK : INVALID_VALUE; }
R cuCtxFromGreenCtx(void **c, long *g) { *c = g; return OK; }
R cuGreenCtxStreamCreate(struct stream **s, long *g, unsigned f, int p) {
    R r = cuStreamCreateWithPriority(s, f, p);
    if (!r) (*s)->part = *g;
    return r;
}
#endif
R cuStreamCreate(struct stream **s, unsigned f) { return cuStreamCreateWithPriority(s, f, 0); }
R cuStreamDestroy_v2(struct stream *s) {
    pthread_mutex_lock(&big);
    for (int i = 0; i < 4096; i++)
        if (streams[i] == s) streams[i] = 0;
    live_streams--;
    pthread_mutex_unlock(&big);
    free(s);
    return OK;
}
#ifdef DEATH
static int has_died(void) {
    FILE *file = fopen(DEATH, "r");
    int pid = 0, said = file ? fscanf(file, "%d", &pid) : 0;
    if (file) fclose(file);
    return file && (said != 1 || pid == getpid());
}
#endif
R cuStreamQuery(struct stream *s) {
#if defined(HELD) || defined(STALLED)
    pthread_mutex_lock(&big);
    drain_all();
    pthread_mutex_unlock(&big);
#endif
#ifdef DEATH
    if (!sticky() && has_died()) death = 700;
#endif
    if (!sticky() && mps_is_lost()) death = 806;
    return sticky() ? sticky() : s->first ? NOT_READY : OK;
}
R cuStreamSynchronize(struct stream *s) { return sticky(); }
R cuStreamWaitEvent(struct stream *s, void *e, unsigned f) { return sticky(); }
R cuStreamWriteValue32_v2(struct stream *s, P to, uint32_t v, unsigned f) {
    signatures++;
    return push(s, (struct op){.kind = 2, .to = to, .value = v});
}
/* Semaphores of another interface, which is whoever calls fake_signal. */
struct semaphore_handle { unsigned kind; P handle[2]; unsigned flags, reserved[16]; };
struct semaphore_params { P value, other[8]; unsigned flags, reserved[16]; };
static struct semaphore *last_semaphore;
R cuImportExternalSemaphore(struct semaphore **s, const struct semaphore_handle *d) {
    if (d->flags || (d->kind != 1 && d->kind != 9) || fcntl((int)d->handle[0], F_GETFD) < 0) return INVALID_VALUE;
    close((int)d->handle[0]);
    *s = last_semaphore = calloc(1, sizeof **s);
    (*s)->kind = d->kind;
    live_semaphores++;
    return sticky();
}
R cuDestroyExternalSemaphore(struct semaphore *s) { live_semaphores--; free(s); return OK; }
R cuSignalExternalSemaphoresAsync(struct semaphore *const *s, const struct semaphore_params *p, unsigned n, struct stream *stream) {
    if (n != 1 || p->flags) return INVALID_VALUE;
    return push(stream, (struct op){.kind = 7, .data = *s, .from = (*s)->kind == 1 ? 1 : p->value});
}
R cuWaitExternalSemaphoresAsync(struct semaphore *const *s, const struct semaphore_params *p, unsigned n, struct stream *stream) {
    if (n != 1 || p->flags) return INVALID_VALUE;
    return push(stream, (struct op){.kind = 8, .data = *s, .from = (*s)->kind == 1 ? 1 : p->value});
}
void fake_signal(int value) {
    int ignored = 0;
    pthread_mutex_lock(&big);
    last_semaphore->value = value;
    pthread_mutex_unlock(&big);
    turn(&ignored, 0);
}
R cuLaunchHostFunc(struct stream *s, void (*f)(void *), void *d) {
    return push(s, (struct op){.kind = 3, .call = f, .data = d});
}
R cuEventCreate(struct event **e, unsigned f) { if (scarce()) return OUT_OF_MEMORY; *e = calloc(1, sizeof **e); live_events++; return sticky(); }
R cuEventDestroy_v2(struct event *e) { live_events--; free(e); return OK; }
R cuEventRecord(struct event *e, struct stream *s) {
    struct event before = *e;
    e->recorded = 1;
    e->passed = 0;
    R r = push(s, (struct op){.kind = 4, .data = e});
    if (r) *e = before;
    return r;
}
R cuEventQuery(struct event *e) { return sticky() ? sticky() : e->recorded && !e->passed ? NOT_READY : OK; }
R cuEventElapsedTime(float *ms, struct event *a, struct event *b) { *ms = b->at - a->at; return sticky(); }

R cuMemHostAlloc(void **p, size_t n, unsigned f) { if (scarce()) return OUT_OF_MEMORY; *p = aligned_alloc(4096, n); return *p ? OK : OUT_OF_MEMORY; }
R cuMemFreeHost(void *p) { free(p); return OK; }
/* Registrations as first address and size, so that copies over two of them can be refused. */
static P registered[4096][2];
R cuMemHostRegister_v2(void *p, size_t n, unsigned f) {
    if (scarce()) return OUT_OF_MEMORY;
    HOLD_TABLES;
    for (int i = 0; i < 4096; i++)
        if (registered[i][1] && registered[i][0] < (P)p + n && (P)p < registered[i][0] + registered[i][1]) return 712;
    for (int i = 0; i < 4096; i++)
        if (!registered[i][1]) {
            registered[i][0] = (P)p;
            registered[i][1] = n;
            live_registrations++;
            return sticky();
        }
    return OUT_OF_MEMORY;
}
R cuMemHostUnregister(void *p) {
    waits_for_all();
    HOLD_TABLES;
    for (int i = 0; i < 4096; i++)
        if (registered[i][1] && registered[i][0] == (P)p) {
            registered[i][1] = 0;
            live_registrations--;
            return OK;
        }
    return 713;
}
R cuMemGetAllocationGranularity(size_t *n, void *p, unsigned o) { *n = 2 << 20; return OK; }
R cuMemAddressReserve(P *at, size_t n, size_t a, P want, uint64_t f) {
    if (scarce()) return OUT_OF_MEMORY;
    static _Atomic P next = 0x300000000000;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, anywhere = !want;
    void *p;
    do { /* anywhere is at a multiple of the granularity, where no other fake in this process has something */
        if (anywhere) want = atomic_fetch_add(&next, n);
        p = mmap((void *)want, n, PROT_NONE, anywhere ? flags | MAP_FIXED_NOREPLACE : flags, -1, 0);
    } while (anywhere && p == MAP_FAILED && errno == EEXIST);
    *at = (P)p;
    return p == MAP_FAILED ? OUT_OF_MEMORY : OK;
}
R cuMemAddressFree(P at, size_t n) { return munmap((void *)at, n) ? INVALID_VALUE : OK; }
/* Physical memory is a file; it is there until it is released and mapped nowhere. */
struct physical { int file; size_t bytes; int users; };
static struct { P at; size_t bytes; struct physical *what; unsigned devices; } mappings[4096];
static void leave(struct physical *what) {
    if (--what->users) return;
    taken -= what->bytes;
    close(what->file);
    free(what);
}
R cuMemCreate(struct physical **h, size_t n, void *p, uint64_t f) {
    if (scarce()) return OUT_OF_MEMORY;
    if (n % (2 << 20) || !n) return INVALID_VALUE;
    if (taken + n > total) return OUT_OF_MEMORY;
    taken += n;
    *h = malloc(sizeof **h);
    **h = (struct physical){memfd_create("physical", 0), n, 1};
    if (ftruncate((*h)->file, n)) return OUT_OF_MEMORY;
    /* Fresh physical memory holds what others left. */
    char old[4096];
    memset(old, 0xa5, sizeof old);
    for (size_t at = 0; at < n && at < 4 << 20; at += sizeof old)
        if (pwrite((*h)->file, old, sizeof old, at) != sizeof old) return OUT_OF_MEMORY;
    return sticky();
}
R cuMemExportToShareableHandle(int *file, struct physical *h, unsigned kind, uint64_t f) {
    if (kind != 1 || f) return INVALID_VALUE;
    *file = fcntl(h->file, F_DUPFD_CLOEXEC, 0);
    return *file < 0 ? OPERATING_SYSTEM : sticky();
}
R cuMemImportFromShareableHandle(struct physical **h, void *file, unsigned kind) {
    int number = fcntl((int)(intptr_t)file, F_DUPFD_CLOEXEC, 0);
    off_t n = number < 0 ? 0 : lseek(number, 0, SEEK_END);
    if (kind != 1 || n <= 0 || n % (2 << 20)) return INVALID_VALUE;
    taken += n;
    *h = malloc(sizeof **h);
    **h = (struct physical){number, n, 1};
    return sticky();
}
R cuMemRelease(struct physical *h) { HOLD_TABLES; leave(h); return OK; }
R cuMemMap(P at, size_t n, size_t o, struct physical *h, uint64_t f) {
    if (scarce()) return OUT_OF_MEMORY;
    HOLD_TABLES;
    if (at % (2 << 20) || n % (2 << 20) || o % (2 << 20) || o + n > h->bytes) return INVALID_VALUE;
    int free = -1;
    for (int i = 0; i < 4096; i++) {
        if (mappings[i].bytes && mappings[i].at < at + n && at < mappings[i].at + mappings[i].bytes) return INVALID_VALUE;
        if (!mappings[i].bytes) free = i;
    }
    if (free < 0) return OUT_OF_MEMORY;
    void *p = mmap((void *)at, n, PROT_NONE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, h->file, o);
    if (p == MAP_FAILED) return OUT_OF_MEMORY;
    mappings[free].at = at;
    mappings[free].bytes = n;
    mappings[free].what = h;
    mappings[free].devices = 0;
    h->users++;
    return OK;
}
R cuMemSetAccess(P at, size_t n, int *d, size_t c) {
    if (scarce()) return OUT_OF_MEMORY;
    HOLD_TABLES;
    for (int i = 0; i < 4096; i++)
        if (mappings[i].bytes == n && mappings[i].at == at) {
            mappings[i].devices = d[2] ? mappings[i].devices | 1u << d[1] : mappings[i].devices & ~(1u << d[1]);
            return mprotect((void *)at, n, mappings[i].devices ? PROT_READ | PROT_WRITE : PROT_NONE) ? INVALID_VALUE : OK;
        }
    return INVALID_VALUE;
}
R cuMemUnmap(P at, size_t n) {
    HOLD_TABLES;
    for (int i = 0; i < 4096; i++)
        if (mappings[i].bytes == n && mappings[i].at == at) {
            mappings[i].bytes = 0;
            leave(mappings[i].what);
            void *p = mmap((void *)at, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
            return p == MAP_FAILED ? INVALID_VALUE : OK;
        }
    return INVALID_VALUE;
}

/* Arrays hold nothing, but take room. */
struct array { size_t bytes; };
struct array_shape { size_t width, height, depth; unsigned format, channels, flags; };
R cuArray3DCreate_v2(struct array **a, struct array_shape *s) {
    if (scarce()) return OUT_OF_MEMORY;
    *a = malloc(sizeof **a);
    (*a)->bytes = s->width * (s->height ? s->height : 1) * (s->depth ? s->depth : 1) * 4;
    taken += (*a)->bytes;
    return sticky();
}
R cuArrayDestroy(struct array *a) { waits_for_all(); taken -= a->bytes; free(a); return OK; }
R cuMemcpy3D_v2(void *copy) { return scarce() ? OUT_OF_MEMORY : sticky(); }

static R whole(P at, size_t n) { /* a host range lies in one registration, or in none */
    HOLD_TABLES;
    for (int i = 0; i < 4096; i++)
        if (registered[i][1] && at < registered[i][0] + registered[i][1] && registered[i][0] < at + n)
            return registered[i][0] <= at && at + n <= registered[i][0] + registered[i][1] ? OK : INVALID_VALUE;
    for (int i = 0; i < 4096; i++) /* and the current device reaches what is mapped */
        if (mappings[i].bytes && at < mappings[i].at + mappings[i].bytes && mappings[i].at < at + n && !(mappings[i].devices >> current & 1))
            return 700;
    return OK;
}
R cuMemcpyAsync(P to, P from, size_t n, struct stream *s) {
    if (whole(to, n) || whole(from, n)) return INVALID_VALUE;
    return push(s, (struct op){.to = to, .from = from, .width = n, .height = 1, .depth = 1});
}
R cuMemcpyDtoH_v2(void *to, P from, size_t n) {
    if (scarce()) return OUT_OF_MEMORY;
    memcpy(to, (void *)from, n);
    return sticky();
}
R cuMemcpyDtoHAsync_v2(void *to, P from, size_t n, struct stream *s) { return cuMemcpyAsync((P)to, from, n, s); }
R cuMemcpyHtoDAsync_v2(P to, void *from, size_t n, struct stream *s) {
    void *kept = malloc(n);
    memcpy(kept, from, n);
    return push(s, (struct op){.to = to, .from = (P)kept, .width = n, .height = 1, .depth = 1, .kept = kept});
}
struct box {
    size_t sx, sy, sz, sl; unsigned st; P sh, sd, sa, r0; size_t sp, shh;
    size_t dx, dy, dz, dl; unsigned dt; P dh, dd, da, r1; size_t dp, dhh;
    size_t w, h, d;
};
R cuMemcpy3DAsync_v2(struct box *b, struct stream *s) {
    if (b->st != 4 || b->dt != 4 || b->w > b->sp || b->w > b->dp || b->h > b->shh || b->h > b->dhh) return INVALID_VALUE;
    size_t ss = b->sp * b->shh, ds = b->dp * b->dhh;
    if (whole(b->sd, (b->d - 1) * ss + (b->h - 1) * b->sp + b->w) || whole(b->dd, (b->d - 1) * ds + (b->h - 1) * b->dp + b->w))
        return INVALID_VALUE;
    return push(s, (struct op){.to = b->dd, .from = b->sd, .width = b->w, .height = b->h, .depth = b->d,
                               .to_pitch = b->dp, .from_pitch = b->sp, .to_slice = ds, .from_slice = ss});
}
static R set(P to, size_t pitch, uint32_t v, int e, size_t w, size_t h, struct stream *s) {
    return push(s, (struct op){.kind = 1, .to = to, .to_pitch = pitch, .value = v, .element = e, .width = w, .height = h});
}
R cuMemsetD8Async(P to, unsigned char v, size_t n, struct stream *s) {
    if (v) return set(to, 0, v, 1, n, 1, s);
    /* Clearing of large ranges: whole pages are dropped, as the tests commit more than there is. */
    if (!held && n >= 1 << 20 && to % 4096 == 0) madvise((void *)to, n & ~4095ull, MADV_REMOVE);
    else return set(to, 0, v, 1, n, 1, s);
    return set(to + (n & ~4095ull), 0, v, 1, n & 4095, 1, s);
}
R cuMemsetD16Async(P to, uint16_t v, size_t n, struct stream *s) { return set(to, 0, v, 2, n, 1, s); }
R cuMemsetD32Async(P to, uint32_t v, size_t n, struct stream *s) { return set(to, 0, v, 4, n, 1, s); }
R cuMemsetD2D8Async(P to, size_t p, unsigned char v, size_t w, size_t h, struct stream *s) { return set(to, p, v, 1, w, h, s); }
R cuMemsetD2D16Async(P to, size_t p, uint16_t v, size_t w, size_t h, struct stream *s) { return set(to, p, v, 2, w, h, s); }
R cuMemsetD2D32Async(P to, size_t p, uint32_t v, size_t w, size_t h, struct stream *s) { return set(to, p, v, 4, w, h, s); }

/* A tensor map is what it was made of: which function, address, last dimension, stride and side, and the rest. */
static R map_of(uint64_t *m, uint64_t kind, unsigned t, unsigned r, void *a, uint64_t *d, uint64_t *s, uint64_t side, unsigned *e, uint64_t rest) {
    if ((uintptr_t)m % 64 || t == 8 /* as if this one had no doubles */) return INVALID_VALUE;
    uint64_t made[16] = {kind, (P)a, t, r, d[r - 1], r > 1 ? s[r - 2] : 0, side, e[r - 1], rest};
    memcpy(m, made, sizeof made);
    return sticky();
}
R cuTensorMapEncodeTiled(void *m, unsigned t, unsigned r, void *a, uint64_t *d, uint64_t *s, unsigned *b, unsigned *e, unsigned i, unsigned w, unsigned l, unsigned f) {
    return map_of(m, 0, t, r, a, d, s, b[r - 1], e, i << 12 | w << 8 | l << 4 | f);
}
R cuTensorMapEncodeIm2col(void *m, unsigned t, unsigned r, void *a, uint64_t *d, uint64_t *s, int *lo, int *hi, unsigned c, unsigned p, unsigned *e, unsigned i, unsigned w, unsigned l, unsigned f) {
    return map_of(m, 1, t, r, a, d, s, lo[r - 3] * 1000 + hi[r - 3], e, (uint64_t)c << 32 | p << 16 | i << 12 | w << 8 | l << 4 | f);
}
R cuTensorMapEncodeIm2colWide(void *m, unsigned t, unsigned r, void *a, uint64_t *d, uint64_t *s, int lo, int hi, unsigned c, unsigned p, unsigned *e, unsigned i, unsigned mode, unsigned w, unsigned l, unsigned f) {
    return map_of(m, 2 + mode, t, r, a, d, s, lo * 1000 + hi, e, (uint64_t)c << 32 | p << 16 | i << 12 | w << 8 | l << 4 | f);
}
R cuTensorMapReplaceAddress(uint64_t *m, void *a) { m[1] = (P)a; return (uintptr_t)m % 64 || m[0] > 3 ? INVALID_VALUE : OK; }

struct module { char name[64]; long variable[8], fence[5], list[64]; char *text, *code; char *sections[16]; unsigned apart; int gone; };
/* Reads machine code: gives the text in it, and makes memory of the sections that hold variables. */
static const char *of_elf(struct module *m, const char *image) {
    const Elf64_Ehdr *file = (void *)image;
    const Elf64_Shdr *section = (void *)(image + file->e_shoff);
    size_t end = file->e_shoff + file->e_shnum * sizeof *section;
    const char *names = image + section[file->e_shstrndx].sh_offset;
    for (int i = 0; i < file->e_shnum && i < 16; i++) {
        const char *name = names + section[i].sh_name;
        const char *at = image + section[i].sh_offset;
        int filled = section[i].sh_type != SHT_NOBITS;
        if (filled && section[i].sh_offset + section[i].sh_size > end) end = section[i].sh_offset + section[i].sh_size;
        if (strncmp(name, ".nv.global", 10) && strcmp(name, ".nv.constant3")) continue;
        m->sections[i] = calloc(1, section[i].sh_size + 65536);
        if (filled) memcpy(m->sections[i], at, section[i].sh_size);
    }
    memcpy(m->code = malloc(end), image, end);
    return memmem(image, end, ".version", 8);
}
static struct module *last_module; /* that was loaded, and has a client's text */
const char *fake_text(void) { return last_module->text; }
const char *fake_code(void) { return last_module->code; }
P fake_fence(void) { return (P)last_module->fence; }
P fake_list(void) { return (P)last_module->list; }
R cuModuleLoadDataEx(struct module **m, const char *image, unsigned n, unsigned *options, void **values) {
    if (scarce()) return OUT_OF_MEMORY;
    const char *entry = 0, *text = image;
    waits_for_all();
    loads++;
    while (!load_goes_on()) usleep(100);
    *m = calloc(1, sizeof **m);
    if (!strncmp(image, ELFMAG, 4)) text = of_elf(*m, image);
    if (!text || strncmp(text, ".version", 8) || !(entry = strstr(text, ".entry "))) {
        for (unsigned i = 0; i < n; i++)
            if (options[i] == 5) strcpy(values[i], "no kernel in line 1");
        free(*m);
        return PTX;
    }
#ifdef REFUSED
    if (strstr(text, REFUSED)) return PTX;
#endif
    sscanf(entry, ".entry %63[a-z_]", (*m)->name);
    (*m)->text = strdup(text);
    if (!strstr(text, "openmps_mark")) last_module = *m;
    live_modules += !strstr(text, "openmps_mark"); /* which goes with the context */
    return sticky();
}
R cuModuleLoadData(struct module **m, const char *image) { return cuModuleLoadDataEx(m, image, 0, 0, 0); }
/* What it was stays, so that a graph can tell that it has a function that is gone. */
R cuModuleUnload(struct module *m) { waits_for_all(); m->gone = 1; live_modules--; return OK; }
R cuModuleGetFunctionCount(unsigned *n, struct module *m) { *n = 1; return OK; }
R cuModuleEnumerateFunctions(void **f, unsigned n, struct module *m) { f[0] = m; return OK; }
R cuModuleGetFunction(void **f, struct module *m, const char *name) { *f = m; return strcmp(name, m->name) ? NOT_FOUND : OK; }
#ifdef APART
/* Variables have places of their own, behind their section. */
static P place_apart(struct module *m, const Elf64_Sym *symbol, size_t number) {
    P apart = 4096 * (1 + number);
    char *at = m->sections[symbol->st_shndx] + symbol->st_value;
    if (!(m->apart >> number & 1)) memcpy(at + apart, at, symbol->st_size);
    m->apart |= 1 << number;
    return apart;
}
#endif
/* A symbol that is called hidden is found by nobody. */
static R of_symbol(P *at, size_t *n, struct module *m, const char *name) {
    const Elf64_Ehdr *file = (void *)m->code;
    const Elf64_Shdr *section = (void *)(m->code + file->e_shoff);
    for (int i = 0; i < file->e_shnum; i++) {
        if (section[i].sh_type != SHT_SYMTAB) continue;
        const Elf64_Sym *symbol = (void *)(m->code + section[i].sh_offset);
        const char *names = m->code + section[section[i].sh_link].sh_offset;
        for (size_t j = 0; j < section[i].sh_size / sizeof *symbol; j++)
            if (!strcmp(names + symbol[j].st_name, name) && strcmp(name, "hidden") && symbol[j].st_shndx < 16 && m->sections[symbol[j].st_shndx]) {
                *at = (P)m->sections[symbol[j].st_shndx] + symbol[j].st_value;
#ifdef APART
                *at += place_apart(m, symbol + j, j);
#endif
                *n = symbol[j].st_size;
                return OK;
            }
    }
    return NOT_FOUND;
}
R cuModuleGetGlobal_v2(P *at, size_t *n, struct module *m, const char *name) {
    if (m->code) return of_symbol(at, n, m, name);
    /* Of what the engine adds to a text, each variable is the end of the room, and references are before that. */
    int there = strstr(m->text, name) != 0, fence = there && !strcmp(name, "openmps$fence"), list = there && !strcmp(name, "openmps$fence_variables");
    if (fence || list) return *at = (P)(fence ? m->fence : m->list), *n = fence ? sizeof m->fence : sizeof m->list, OK;
    int added = there && strstr(name, "openmps");
    int reference = there && (strstr(name, "$texture") || strstr(name, "$surface"));
    if (!added && !reference && strcmp(name, "room")) return NOT_FOUND;
    *at = (P)(m->variable + (added ? 6 : reference ? 5 : 0));
    *n = added ? 16 : reference ? 8 : sizeof m->variable;
    return OK;
}
P fake_variable(const char *name) { P at = 0; size_t n; cuModuleGetGlobal_v2(&at, &n, last_module, name); return at; }
R cuFuncGetName(const char **name, struct module *f) { *name = f->name; return OK; }
#ifdef FUNC_SET_ATTRIBUTE
/* What was last set, of any function. */
static int set_last[32];
R cuFuncSetAttribute(void *f, unsigned a, int v) { return a < 32 ? set_last[a] = v, OK : INVALID_VALUE; }
int fake_attribute(unsigned a) { return set_last[a]; }
#endif
#ifndef LOCAL
#define LOCAL 13
#endif
static int is_k(struct module *m) { return !strcmp(m->name, "k"); }
static int has_clusters(struct module *m) { return !is_k(m) && strcmp(m->name, "set"); }
static int local_bytes(struct module *m) { return strstr(m->name, "deep") ? LOCAL : 13; }
R cuFuncGetAttribute(int *v, unsigned a, void *f) {
#ifdef FUNC_SET_ATTRIBUTE
    if (a < 32 && set_last[a]) return *v = set_last[a], OK;
#endif
    /* Its clusters are of 2 blocks, and 10 says that a launch has to have some; k and set have none. */
    if (a >= 10 && a <= 13) return *v = !has_clusters(f) ? 0 : a == 11 ? 2 : 1, OK;
    *v = a == 3 ? local_bytes(f) : a == 0 && is_k(f) ? 1024 : 10 + a;
    return OK;
}
/* As many clusters as the grid has blocks, less the first attribute's first number; the largest has 16. */
struct config { unsigned grid[3], block[3], shared; void *stream; struct { unsigned id, pad, value[16]; } *attributes; unsigned count; };
R cuOccupancyMaxActiveClusters(int *n, void *f, const struct config *c) {
    if (!c->count || c->attributes->id != 4) return INVALID_VALUE;
    *n = c->grid[0] - c->attributes->value[0];
    return OK;
}
R cuOccupancyMaxPotentialClusterSize(int *n, void *f, const struct config *c) { *n = 16; return OK; }
R cuFuncGetParamInfo(void *f, size_t i, size_t *o, size_t *n) {
    if (i > 1 || is_k(f)) return INVALID_VALUE;
    *o = 8 * i;
    *n = i ? 4 : 8;
    return OK;
}
/* A kernel writes its second parameter to the address that its first one is; if that is none, it spins, or does nothing if the second one is 0.
   The one called openmps_mark writes its fourth to where the third one is then, unless that is nowhere. */
static R kernel(struct op *o, struct module *f, unsigned gx, unsigned bx, void **params, void **extra) {
    if (!gx || bx > 1024) return INVALID_VALUE;
    *o = (struct op){.kind = 2};
    if (extra) {
        if (*(size_t *)extra[3] != 12) return INVALID_VALUE;
        memcpy(&o->to, extra[1], 8);
        memcpy(&o->value, (char *)extra[1] + 8, 4);
    } else {
        memcpy(&o->to, params[0], 8);
        memcpy(&o->value, params[1], 4);
        if (!strcmp(f->name, "openmps_mark")) memcpy(&o->from, params[2], 8), memcpy(&o->width, params[3], 8);
    }
    if (!o->to) o->kind = o->value ? 5 : 6;
    return OK;
}
R cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                 unsigned shared, struct stream *s, void **params, void **extra) {
    struct op o = {.kind = 5};
    R r = is_k(f) ? OK : kernel(&o, f, gx, bx, params, extra);
    if (r) return r;
    last_part = s->part;
    launched_alone++;
    static int most_local = 1024;
    if (local_bytes(f) > most_local) waits_for_all(), most_local = local_bytes(f);
    return push(s, o);
}

#ifdef ATTRIBUTES
R cuLaunchKernelEx(const struct config *c, void *f, void **params, void **extra) {
    return cuLaunchKernel(f, c->grid[0], c->grid[1], c->grid[2], c->block[0], c->block[1], c->block[2], c->shared, c->stream, params, extra);
}
#endif

/* Graphs are chains of kernels, and run in the context that was current when they were made. Making an executable may wait in the real driver. */
enum { MOST = 160 };
struct graph { int count; long part; struct op kernels[MOST]; struct module *first[MOST], *now[MOST]; };
struct node_params { void *f; unsigned gx, gy, gz, bx, by, bz, shared; void **params, **extra, *kern, *context; };
R cuGraphCreate(struct graph **g, unsigned f) {
    if (scarce()) return OUT_OF_MEMORY;
    *g = calloc(1, sizeof **g);
    live_graphs++;
    return sticky();
}
R cuGraphAddKernelNode_v2(P *node, struct graph *g, P *before, size_t n, struct node_params *p) {
    if (scarce()) return OUT_OF_MEMORY;
    if (g->count == MOST || n != (g->count ? 1 : 0) || (n && *before != (P)g->count)) return INVALID_VALUE;
    g->part = current_part;
    R r = kernel(&g->kernels[g->count], p->f, p->gx, p->bx, p->params, p->extra);
    g->first[g->count] = g->now[g->count] = p->f;
    if (!r) *node = ++g->count;
    return r;
}
/* Not how threads wait, nor what is an edge; of others the sum of the values is kept. */
R cuGraphKernelNodeSetAttribute(P node, unsigned id, const unsigned *value) {
    if (!node || id == 3 || id == 6) return INVALID_VALUE;
    node_attributes += value[0];
    return OK;
}
R cuGraphInstantiateWithFlags(struct graph **e, struct graph *g, uint64_t f) {
    if (scarce()) return OUT_OF_MEMORY;
    waits_for_all();
    *e = malloc(sizeof **e);
    **e = *g;
    live_graphs++;
    return sticky();
}
R cuGraphExecKernelNodeSetParams_v2(struct graph *e, P node, struct node_params *p) {
    if (scarce()) return OUT_OF_MEMORY;
    if (e->part != current_part || !node || node > (P)e->count) return INVALID_VALUE;
    changed_nodes++;
    stale_nodes += e->first[node - 1]->gone || e->now[node - 1]->gone;
    e->now[node - 1] = p->f;
    return kernel(&e->kernels[node - 1], p->f, p->gx, p->bx, p->params, p->extra);
}
R cuGraphLaunch(struct graph *e, struct stream *s) {
    if (scarce()) return OUT_OF_MEMORY;
    last_part = e->part;
    launched_graphs++;
    for (int i = 0; i < e->count; i++) {
        int before = fail_in;
        fail_in = 0; /* it takes all, or nothing */
        R r = push(s, e->kernels[i]);
        fail_in = before;
        if (r) return r;
    }
    return OK;
}
R cuGraphExecDestroy(struct graph *e) { live_graphs--; free(e); return OK; }
R cuGraphDestroy(struct graph *g) { live_graphs--; free(g); return OK; }
#endif
