/* What the stand-ins of NVIDIA's libraries play: a text file that ROOTWALK_CUDA_SCENARIO names. Lines, in order of time;
 * times are seconds after `start`, a CLOCK_MONOTONIC time in ns:
 *
 *   start NS
 *   AT KEY SECONDS
 *
 * KEY is the name of a function: so long each call of it takes, on the host; below 0 it never returns. Or it is what a
 * device does: kernel, copy, graph, matmul, collective: so long the device is busy with each that it is given. A wait
 * for a stream, an event or the device ends when the device has done everything. What no line tells takes no time.
 */
#ifndef ROOTWALK_SCENARIO_H
#define ROOTWALK_SCENARIO_H

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MAX_LINES = 1024 };
/* A sleep ends late by about so much: the rest of a wait is spent awake. */
#define AWAKE_S 0.0002

typedef struct { double at, seconds; char key[48]; } Line;

static Line lines[MAX_LINES];
static int line_count;
static double start_s;
static pthread_once_t is_loaded = PTHREAD_ONCE_INIT;

static double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

static void load(void) {
    const char *path = getenv("ROOTWALK_CUDA_SCENARIO");
    FILE *file = path ? fopen(path, "r") : NULL;
    char text[256];
    while (file && fgets(text, sizeof text, file) && line_count < MAX_LINES) {
        double ns;
        Line *line = &lines[line_count];
        if (sscanf(text, "start %lf", &ns) == 1) start_s = ns / 1e9;
        else if (sscanf(text, "%lf %47s %lf", &line->at, line->key, &line->seconds) == 3) line_count++;
    }
    if (file) fclose(file);
}

/* The value of a key now; 0 where no line tells it. */
static double told(const char *key) {
    double found = 0;
    pthread_once(&is_loaded, load);
    for (int i = 0; i < line_count; i++)
        if (!strcmp(lines[i].key, key) && lines[i].at <= now_s() - start_s) found = lines[i].seconds;
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
