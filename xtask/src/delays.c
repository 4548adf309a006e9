/* Delays where threads meet, by chance: after a word to another thread, when a thread begins, where it is asked what time it is. Preloaded
   into test programs and into what these start, so that threads come in orders in which they seldom do otherwise. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* One delay in so many calls; the longest, in nanoseconds. */
enum { WAKES = 20, UNLOCKS = 2000, TIMES = 3000, BEGINNINGS = 2, LONGEST = 12000000 };

#define REAL(name) ({ static __typeof__(&name) real; if (!real) *(void **)&real = dlsym(RTLD_NEXT, #name); real; })

static uint64_t draw(void) {
    static __thread uint64_t state;
    if (!state) {
        struct timespec now;
        REAL(clock_gettime)(CLOCK_MONOTONIC, &now);
        state = ((uint64_t)now.tv_nsec << 32 ^ (uintptr_t)&state) | 1;
    }
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}

static void delay(unsigned one_in) {
    int error = errno;
    uint64_t number = draw();
    if (number % one_in == 0) nanosleep(&(struct timespec){.tv_nsec = (number >> 20) % LONGEST}, 0);
    errno = error;
}

/* Rust's locks and threads that wait are futexes, by this function. */
long syscall(long number, ...) {
    va_list arguments;
    va_start(arguments, number);
    long word[6];
    for (int i = 0; i < 6; i++) word[i] = va_arg(arguments, long);
    va_end(arguments);
    long result = REAL(syscall)(number, word[0], word[1], word[2], word[3], word[4], word[5]);
    if (number == SYS_futex) delay(WAKES);
    return result;
}

int pthread_mutex_unlock(pthread_mutex_t *mutex) {
    int result = REAL(pthread_mutex_unlock)(mutex);
    delay(UNLOCKS);
    return result;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int result = REAL(clock_gettime)(clock, now);
    delay(TIMES);
    return result;
}

struct beginning {
    void *(*function)(void *);
    void *argument;
};

static void *begin(void *given) {
    struct beginning beginning = *(struct beginning *)given;
    free(given);
    delay(BEGINNINGS);
    return beginning.function(beginning.argument);
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*function)(void *), void *argument) {
    struct beginning *beginning = malloc(sizeof *beginning);
    if (!beginning) return EAGAIN;
    *beginning = (struct beginning){function, argument};
    int result = REAL(pthread_create)(thread, attributes, begin, beginning);
    if (result) free(beginning);
    return result;
}
