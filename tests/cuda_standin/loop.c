/* Calls a function without arguments over and over, from C: what a call costs is not lost in what Python costs. */
#include <time.h>

double call_many(int (*function)(void), long times) {
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (long i = 0; i < times; i++) function();
    clock_gettime(CLOCK_MONOTONIC, &end);
    return ((double)(end.tv_sec - begin.tv_sec) * 1e9 + (double)(end.tv_nsec - begin.tv_nsec)) / (double)times;
}
