/* Calls a function over and over, from C: what a call costs is not lost in what Python costs. */
#include <stddef.h>
#include <time.h>

typedef int AllReduce(const void *from, void *to, size_t count, int type, int op, void *communicator, void *stream);

static double since_ns(struct timespec begin) {
    struct timespec end;
    clock_gettime(CLOCK_MONOTONIC, &end);
    return (double)(end.tv_sec - begin.tv_sec) * 1e9 + (double)(end.tv_nsec - begin.tv_nsec);
}

double call_many(int (*function)(void), long times) {
    struct timespec begin;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (long i = 0; i < times; i++) function();
    return since_ns(begin) / (double)times;
}

double reduce_many(AllReduce *function, void *communicator, long times) {
    struct timespec begin;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (long i = 0; i < times; i++) function(NULL, NULL, 1, 7, 0, communicator, NULL);
    return since_ns(begin) / (double)times;
}
