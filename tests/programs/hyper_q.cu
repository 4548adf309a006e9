// needs: plain
// Hyper-Q: kernels of many streams, of many threads and of many processes are on one device at once.
// Without arguments it proves that with kernels that wait for each other, whatever the time takes.
//
// `hyper_q measure FILE [COUNT [CHAIN [MICROSECONDS]]]` records it instead (docs/hyper-q.md): COUNT lanes
// (streams, threads or processes), each with a chain of kernels, and for each kernel the SM that it was
// on and when it began and ended, once for each of some values of CUDA_DEVICE_MAX_CONNECTIONS.
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include "check.h"

struct Span {
    unsigned sm;
    unsigned long long begin, end;
};

__device__ unsigned long long now() {
    unsigned long long time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    return time;
}

// Stays on the device for a while and says where and when.
__global__ void stay(Span *span, unsigned long long nanoseconds) {
    unsigned long long begin = now(), end;
    do {
        __nanosleep(2000);
        end = now();
    } while (end - begin < nanoseconds);
    asm volatile("mov.u32 %0, %%smid;" : "=r"(span->sm));
    span->begin = begin, span->end = end;
}

// Ends when as many kernels as that are here; gives up after half a minute.
__global__ void meet(unsigned *here, unsigned all) {
    atomicAdd(here, 1);
    unsigned long long begin = now();
    while (*(volatile unsigned *)here < all && now() - begin < 30000000000ull) __nanosleep(2000);
    if (*(volatile unsigned *)here < all) atomicAdd(here, 1u << 16);
}

// Says that it is here, and ends when told.
__global__ void wait(volatile unsigned *flags) {
    flags[0] = 1;
    unsigned long long begin = now();
    while (!flags[1] && now() - begin < 30000000000ull) __nanosleep(2000);
    flags[2] = flags[1];
}

// This program again, with its standard input and output in our hands.
struct Child {
    pid_t pid;
    FILE *to, *from;

    Child(std::vector<std::string> words, const char *connections) {
        int in[2], out[2];
        CHECK(!pipe(in) && !pipe(out), "no pipes");
        std::vector<char *> arguments{(char *)"hyper_q"};
        for (auto &word : words) arguments.push_back((char *)word.c_str());
        arguments.push_back(nullptr);
        pid = fork();
        if (pid == 0) {
            if (connections) setenv("CUDA_DEVICE_MAX_CONNECTIONS", connections, 1);
            dup2(in[0], 0), dup2(out[1], 1);
            // Others' ends too: a child that kept them would hide the end of a file.
            for (int fd = 3; fd < 1024; fd++) close(fd);
            execv("/proc/self/exe", arguments.data());
            _exit(99);
        }
        close(in[0]), close(out[1]);
        to = fdopen(in[1], "w"), from = fdopen(out[0], "r");
    }
    std::string line() {
        char text[200];
        return fgets(text, sizeof text, from) ? text : "";
    }
    void say(const char *text) { fputs(text, to), fflush(to); }
    void end() {
        int status = -1;
        fclose(to), fclose(from);
        waitpid(pid, &status, 0);
        CHECK(status == 0, "a child ended with %d", status);
    }
};

static std::vector<cudaStream_t> new_streams(int count) {
    std::vector<cudaStream_t> streams(count);
    for (auto &stream : streams) OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return streams;
}

static void wait_for_go() {
    char text[10];
    printf("ready\n"), fflush(stdout);
    CHECK(fgets(text, sizeof text, stdin), "nobody says go");
}

// A child of the proof: a kernel that is here until the parent knows that all are.
static int present() {
    Array<unsigned> flags(3);
    flags.clear();
    unsigned *pinned;
    OK(cudaMallocHost(&pinned, sizeof *pinned));
    auto streams = new_streams(2);
    OK(cudaDeviceSynchronize());
    wait<<<1, 1, 0, streams[0]>>>(flags);
    OK(cudaGetLastError());
    for (*pinned = 0; !*pinned; OK(cudaStreamSynchronize(streams[1])))
        OK(cudaMemcpyAsync(pinned, flags, sizeof *pinned, cudaMemcpyDeviceToHost, streams[1]));
    wait_for_go();
    OK(cudaMemcpyAsync(flags + 1, pinned, sizeof *pinned, cudaMemcpyHostToDevice, streams[1]));
    OK(cudaStreamSynchronize(streams[0]));
    return flags.host()[2] == 1 ? 0 : 1;
}

static int prove() {
    const int streams = 8, processes = 4;
    Array<unsigned> here(1);
    here.clear();
    auto lanes = new_streams(streams);
    OK(cudaDeviceSynchronize());
    for (auto &stream : lanes) meet<<<1, 1, 0, stream>>>(here, streams);
    RAN();
    printf("streams: %u of %d kernels met\n", here.host()[0], streams);
    CHECK(here.host()[0] == streams, "%x", here.host()[0]);

    here.clear();
    OK(cudaDeviceSynchronize());
    std::vector<std::thread> threads;
    for (auto &stream : lanes)
        threads.emplace_back([&] {
            meet<<<1, 1, 0, stream>>>(here, streams);
            OK(cudaStreamSynchronize(stream));
        });
    for (auto &thread : threads) thread.join();
    printf("threads: %u of %d kernels met\n", here.host()[0], streams);
    CHECK(here.host()[0] == streams, "%x", here.host()[0]);

    std::vector<Child> children;
    for (int i = 0; i < processes; i++) children.emplace_back(std::vector<std::string>{"present"}, nullptr);
    for (auto &child : children) CHECK(child.line() == "ready\n", "a child's kernel is not there");
    for (auto &child : children) child.say("go\n");
    for (auto &child : children) child.end();
    printf("processes: %d kernels were there at once\n", processes);
    return check::pass();
}

// A child of the measurement: `count` streams, of one thread each or all of one.
static int lanes(bool threads, int count, int chain, unsigned long long nanoseconds) {
    Array<Span> spans(count * chain);
    auto streams = new_streams(count);
    auto issue = [&](int lane) {
        for (int k = 0; k < chain; k++) stay<<<1, 1, 0, streams[lane]>>>(spans + lane * chain + k, nanoseconds);
        OK(cudaGetLastError());
    };
    issue(0); // loads the kernel
    OK(cudaDeviceSynchronize());
    wait_for_go();
    std::vector<std::thread> started;
    for (int lane = 0; lane < count; lane++)
        if (threads) started.emplace_back(issue, lane);
        else issue(lane);
    for (auto &thread : started) thread.join();
    OK(cudaDeviceSynchronize());
    for (auto &span : spans.host()) printf("%u,%llu,%llu\n", span.sm, span.begin, span.end);
    return 0;
}

static void record(FILE *file, const char *kind, const char *connections, std::vector<Child> children, int chain) {
    for (auto &child : children) CHECK(child.line() == "ready\n", "a child is not ready");
    for (auto &child : children) child.say("go\n");
    int row = 0;
    for (auto &child : children) {
        for (std::string line; !(line = child.line()).empty(); row++)
            fprintf(file, "%s,%s,%d,%d,%s", kind, connections ? connections : "default", row / chain, row % chain, line.c_str());
        child.end();
    }
    fflush(file);
}

static int measure(const char *path, int count, int chain, int microseconds) {
    FILE *file = fopen(path, "w");
    CHECK(file, "cannot write %s", path);
    fprintf(file, "kind,connections,lane,kernel,sm,begin,end\n");
    auto start = [&](const char *kind, int lanes, const char *connections) {
        std::vector<std::string> words{kind, std::to_string(lanes), std::to_string(chain), std::to_string(microseconds)};
        return Child(words, connections);
    };
    for (const char *connections : {"1", "2", "4", "8", "16", "32"})
        record(file, "streams", connections, {start("streams", count, connections)}, chain);
    record(file, "threads", "32", {start("threads", count, "32")}, chain);
    std::vector<Child> children;
    for (int i = 0; i < count; i++) children.push_back(start("streams", 1, nullptr));
    record(file, "processes", nullptr, children, chain);
    fclose(file);
    return 0;
}

int main(int words, char **word) {
    std::string what = words > 1 ? word[1] : "";
    auto number = [&](int i, int otherwise) { return words > i ? atoi(word[i]) : otherwise; };
    if (what == "present") return present();
    if (what == "streams" || what == "threads") return lanes(what == "threads", number(2, 1), number(3, 1), number(4, 1) * 1000ull);
    if (what == "measure" && words > 2) return measure(word[2], number(3, 16), number(4, 3), number(5, 1000));
    return prove();
}
