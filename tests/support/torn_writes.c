// Preloaded: kills the process in the middle of its n-th write into a store or what lies beside it, TORN_WRITE=n. The
// first half of the bytes is written, as when SIGKILL meets a write between two pages; a store's own log is left alone.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int is_store(int fd) {
    char link[64], name[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, name, sizeof name - 1);
    if (length < 0) {
        return 0;
    }
    name[length] = 0;
    const char *ending = strstr(name, ".duckdb");
    return ending != NULL && strcmp(ending, ".duckdb.wal") != 0;
}

static ssize_t write_half(int fd, const void *bytes, size_t count, off_t offset) {
    static ssize_t (*real)(int, const void *, size_t, off_t);
    static int writes;
    if (real == NULL) {
        real = dlsym(RTLD_NEXT, "pwrite64");
    }
    const char *wanted = getenv("TORN_WRITE");
    if (wanted != NULL && is_store(fd) && ++writes == atoi(wanted)) {
        real(fd, bytes, count / 2, offset);
        kill(getpid(), SIGKILL);
    }
    return real(fd, bytes, count, offset);
}

ssize_t pwrite(int fd, const void *bytes, size_t count, off_t offset) {
    return write_half(fd, bytes, count, offset);
}

ssize_t pwrite64(int fd, const void *bytes, size_t count, off_t offset) {
    return write_half(fd, bytes, count, offset);
}
