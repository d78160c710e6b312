/* What the stand-ins of NVIDIA's libraries play: a text file that ROOTWALK_CUDA_SCENARIO names. Lines, in order of time;
 * times are seconds after `start`, a CLOCK_MONOTONIC time in ns:
 *
 *   start NS
 *   AT KEY SECONDS
 *
 * KEY is the name of a function: so long each call of it takes, on the host; below 0 it never returns. Or it is what a
 * device does: kernel, copy, transfer (a copy to another device), graph, matmul, collective: so long the device is busy
 * with each that it is given. A wait for a stream, an event or the device ends when the device has done everything. What
 * no line tells takes no time.
 *
 * Another file that is renamed into its place is played from then on.
 */
#ifndef ROOTWALK_SCENARIO_H
#define ROOTWALK_SCENARIO_H

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { MAX_LINES = 1024 };
/* A sleep ends late by about so much: the rest of a wait is spent awake. */
#define AWAKE_S 0.0002

/* Another file is looked for this often. */
#define LOOK_S 0.02

typedef struct { double at, seconds; char key[48]; } Line;
typedef struct { Line lines[MAX_LINES]; int count; double start_s; } Play;

static pthread_mutex_t play_lock = PTHREAD_MUTEX_INITIALIZER;
static Play *play; /* those before it are kept: another thread may be reading them */
static struct timespec play_written; /* of its file: numbers of inodes come again */
static double looked_s;

static double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

static Play *load(const char *path) {
    Play *loaded = calloc(1, sizeof *loaded);
    FILE *file = path ? fopen(path, "r") : NULL;
    char text[256];
    while (file && fgets(text, sizeof text, file) && loaded->count < MAX_LINES) {
        double ns;
        Line *line = &loaded->lines[loaded->count];
        if (sscanf(text, "start %lf", &ns) == 1) loaded->start_s = ns / 1e9;
        else if (sscanf(text, "%lf %47s %lf", &line->at, line->key, &line->seconds) == 3) loaded->count++;
    }
    if (file) fclose(file);
    return loaded;
}

static const Play *playing(double now) {
    pthread_mutex_lock(&play_lock);
    if (!play || now - looked_s > LOOK_S) {
        const char *path = getenv("ROOTWALK_CUDA_SCENARIO");
        struct stat file;
        int is_there = path && !stat(path, &file);
        if (!play || (is_there && memcmp(&file.st_mtim, &play_written, sizeof play_written))) {
            play = load(path);
            if (is_there) play_written = file.st_mtim;
        }
        looked_s = now;
    }
    const Play *chosen = play;
    pthread_mutex_unlock(&play_lock);
    return chosen;
}

/* The value of a key now; 0 where no line tells it. */
static double told(const char *key) {
    double found = 0, now = now_s();
    const Play *chosen = playing(now);
    for (int i = 0; i < chosen->count; i++)
        if (!strcmp(chosen->lines[i].key, key) && chosen->lines[i].at <= now - chosen->start_s)
            found = chosen->lines[i].seconds;
    return found;
}

static void wait_until(double end_s) {
    double left_s;
    while ((left_s = end_s - now_s()) > 0)
        if (left_s > 2 * AWAKE_S) {
            struct timespec rest = {(time_t)(left_s - AWAKE_S), 0};
            rest.tv_nsec = (long)((left_s - AWAKE_S - (double)rest.tv_sec) * 1e9);
            nanosleep(&rest, NULL);
        }
}

/* Spend what a call of a function takes on the host. */
static void take(const char *function) {
    double seconds = told(function);
    while (seconds < 0) pause();
    if (seconds > 0) wait_until(now_s() + seconds);
}

#define TAKE take(__func__)

#endif
