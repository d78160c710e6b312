/* A stand-in for NVIDIA's management library (libnvidia-ml.so.1), for tests on machines without a GPU. It is no driver:
 * it plays a scenario, a text file that ROOTWALK_NVML_SCENARIO names, through NVML's own functions and structures as
 * nvidia-ml-py declares them. Lines, in order of time; times are seconds after `start`, a CLOCK_MONOTONIC time in ns:
 *
 *   start NS
 *   AT DEVICE set KEY VALUE      a value; one that was never set is NOT_SUPPORTED
 *   AT DEVICE rate KEY PER_S     it grows from now on
 *   AT DEVICE text KEY WORD      name, uuid, bus
 *   AT DEVICE fail FUNCTION CODE an error from now on; 0 ends it, -1 never returns; FUNCTION "all" is every one
 *   AT DEVICE process PID BYTES  a process that computes; 0 bytes: it has ended
 *   AT DEVICE xid CODE           the driver reports an error
 *
 * DEVICE -1 is the library itself: `set count`, `text driver`, `fail nvmlInitWithFlags 9`.
 *
 * Another file that is renamed into its place is played from then on. For one thread.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, TOO_SMALL = 7, TIMED_OUT = 10, LOST = 15 };
enum { MAX_LINES = 8192, MAX_DEVICES = 64 };

/* Lines of one device are a list, and keys are compared by hash first: a benchmark measures the reader, not this. */
typedef struct Line Line;
struct Line { double at; int device; char what[12], key[64], word[64]; double value; uint32_t hash; Line *next; };
typedef struct { int number; } Device;

static Line lines[MAX_LINES];
static Line *first[MAX_DEVICES + 1]; /* the library's own at 0 */
static int line_count, next_xid;
static double start_s;
static struct timespec written; /* the scenario: numbers of inodes come again */
static Device devices[MAX_DEVICES];

static double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9 - start_s;
}

static uint32_t hash(const char *word) {
    uint32_t sum = 2166136261u; /* FNV-1a */
    while (*word) sum = (sum ^ (unsigned char)*word++) * 16777619u;
    return sum;
}

static void load(void) {
    const char *path = getenv("ROOTWALK_NVML_SCENARIO");
    FILE *file = path ? fopen(path, "r") : NULL;
    struct stat about;
    char text[256];
    Line **last[MAX_DEVICES + 1];
    if (file && !fstat(fileno(file), &about)) written = about.st_mtim;
    line_count = next_xid = 0;
    for (int i = 0; i < MAX_DEVICES; i++) devices[i].number = i;
    for (int i = 0; i <= MAX_DEVICES; i++) first[i] = NULL, last[i] = &first[i];
    while (file && fgets(text, sizeof text, file) && line_count < MAX_LINES) {
        double ns;
        Line *line = &lines[line_count];
        memset(line, 0, sizeof *line);
        if (sscanf(text, "start %lf", &ns) == 1) start_s = ns / 1e9;
        else if (sscanf(text, "%lf %d %11s %63s %63s", &line->at, &line->device, line->what, line->key, line->word) >= 4) {
            if (line->device < -1 || line->device >= MAX_DEVICES) continue;
            line->value = atof(line->word);
            line->hash = hash(line->key);
            *last[line->device + 1] = line;
            last[line->device + 1] = &line->next;
            line_count++;
        }
    }
    if (file) fclose(file);
    while (next_xid < line_count && lines[next_xid].at <= now_s()) next_xid++; /* events are told from now on */
}

/* Each line of a device up to a time. */
#define FOR_LINES(line, device, now) for (const Line *line = first[(device) + 1]; line && line->at <= now; line = line->next)

static int is_it(const Line *line, const char *what, const char *key, uint32_t key_hash) {
    return line->hash == key_hash && !strcmp(line->what, what) && !strcmp(line->key, key);
}

static void look_for_another(void) {
    const char *path = getenv("ROOTWALK_NVML_SCENARIO");
    struct stat about;
    if (path && !stat(path, &about) && memcmp(&about.st_mtim, &written, sizeof written)) load();
}

/* What a call of a function about a device returns; it does not return from -1. */
static int enter(int device, const char *function) {
    look_for_another();
    double now = now_s();
    uint32_t of_function = hash(function), of_all = hash("all");
    int code = OK;
    FOR_LINES(line, device, now)
        if (is_it(line, "fail", function, of_function) || is_it(line, "fail", "all", of_all)) code = (int)line->value;
    while (code == -1) pause();
    return code;
}

static int value_of(int device, const char *key, double *value) {
    double now = now_s(), base = 0, rate = 0, since = 0;
    uint32_t of_key = hash(key);
    int is_known = 0;
    FOR_LINES(line, device, now) {
        if (is_it(line, "set", key, of_key)) base = line->value, rate = 0, is_known = 1;
        else if (is_it(line, "rate", key, of_key)) base += rate * (line->at - since), rate = line->value, is_known = 1;
        else continue;
        since = line->at;
    }
    *value = base + rate * (now - since);
    return is_known ? OK : NOT_SUPPORTED;
}

static int text_of(int device, const char *key, char *text, unsigned size) {
    int code = NOT_SUPPORTED;
    double now = now_s();
    uint32_t of_key = hash(key);
    FOR_LINES(line, device, now)
        if (is_it(line, "text", key, of_key)) snprintf(text, size, "%s", line->word), code = OK;
    return code;
}

static int number(Device *device, const char *function, const char *key, double *value) {
    int code = device ? enter(device->number, function) : INVALID;
    return code ? code : value_of(device->number, key, value);
}

static int number_by(Device *device, const char *function, const char *key, unsigned which, double *value) {
    char name[64];
    snprintf(name, sizeof name, "%s.%u", key, which);
    return number(device, function, name, value);
}

#define UINT(function, key) \
    int function(Device *device, unsigned *result) { \
        double value; \
        int code = number(device, #function, key, &value); \
        if (!code) *result = (unsigned)value; \
        return code; \
    }
#define UINT_BY(function, key) \
    int function(Device *device, unsigned which, unsigned *result) { \
        double value; \
        int code = number_by(device, #function, key, which, &value); \
        if (!code) *result = (unsigned)value; \
        return code; \
    }
#define ULONG(function, key) \
    int function(Device *device, unsigned long long *result) { \
        double value; \
        int code = number(device, #function, key, &value); \
        if (!code) *result = (unsigned long long)value; \
        return code; \
    }
#define MODE(function, key) \
    int function(Device *device, unsigned *now, unsigned *later) { \
        double value; \
        int code = number(device, #function, key, &value); \
        if (!code) *now = *later = (unsigned)value; \
        return code; \
    }

UINT(nvmlDeviceGetPowerUsage, "power_mw")
UINT(nvmlDeviceGetEnforcedPowerLimit, "power_limit_mw")
UINT(nvmlDeviceGetCurrPcieLinkGeneration, "pcie_generation")
UINT(nvmlDeviceGetCurrPcieLinkWidth, "pcie_width")
UINT(nvmlDeviceGetMaxPcieLinkGeneration, "pcie_max_generation")
UINT(nvmlDeviceGetMaxPcieLinkWidth, "pcie_max_width")
UINT(nvmlDeviceGetPcieReplayCounter, "pcie_replays")
UINT(nvmlDeviceGetPersistenceMode, "persistence")
UINT(nvmlDeviceGetVirtualizationMode, "virtualization")
UINT_BY(nvmlDeviceGetClockInfo, "clock")
UINT_BY(nvmlDeviceGetMaxClockInfo, "max_clock")
UINT_BY(nvmlDeviceGetTemperature, "temperature")
UINT_BY(nvmlDeviceGetTemperatureThreshold, "threshold")
UINT_BY(nvmlDeviceGetNvLinkState, "nvlink_state")
ULONG(nvmlDeviceGetTotalEnergyConsumption, "energy_mj")
ULONG(nvmlDeviceGetCurrentClocksEventReasons, "reasons")
MODE(nvmlDeviceGetMigMode, "mig")
MODE(nvmlDeviceGetEccMode, "ecc")
MODE(nvmlDeviceGetEncoderUtilization, "encoder")
MODE(nvmlDeviceGetDecoderUtilization, "decoder")

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    load();
    return enter(-1, "nvmlInitWithFlags");
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

int nvmlShutdown(void) { return enter(-1, "nvmlShutdown"); }

int nvmlSystemGetDriverVersion(char *version, unsigned size) {
    int code = enter(-1, "nvmlSystemGetDriverVersion");
    return code ? code : text_of(-1, "driver", version, size);
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    double value = 0;
    int code = enter(-1, "nvmlDeviceGetCount_v2");
    if (!code) value_of(-1, "count", &value), *count = (unsigned)value;
    return code;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **device) {
    double count = 0;
    value_of(-1, "count", &count);
    if (index >= count || index >= MAX_DEVICES) return INVALID;
    *device = &devices[index];
    return enter((int)index, "nvmlDeviceGetHandleByIndex_v2");
}

int nvmlDeviceGetUUID(Device *device, char *uuid, unsigned size) {
    int code = enter(device->number, "nvmlDeviceGetUUID");
    return code ? code : text_of(device->number, "uuid", uuid, size);
}

int nvmlDeviceGetName(Device *device, char *name, unsigned size) {
    int code = enter(device->number, "nvmlDeviceGetName");
    return code ? code : text_of(device->number, "name", name, size);
}

typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } PciInfo;

int nvmlDeviceGetPciInfo_v3(Device *device, PciInfo *info) {
    int code = enter(device->number, "nvmlDeviceGetPciInfo_v3");
    memset(info, 0, sizeof *info);
    return code ? code : text_of(device->number, "bus", info->bus_id, sizeof info->bus_id);
}

int nvmlDeviceGetUtilizationRates(Device *device, unsigned *rates) {
    double gpu = 0, memory = 0;
    int code = number(device, "nvmlDeviceGetUtilizationRates", "utilization", &gpu);
    if (!code) value_of(device->number, "memory_utilization", &memory), rates[0] = (unsigned)gpu, rates[1] = (unsigned)memory;
    return code;
}

int nvmlDeviceGetMemoryInfo(Device *device, unsigned long long *memory) {
    double total = 0, used = 0;
    int code = number(device, "nvmlDeviceGetMemoryInfo", "memory_total", &total);
    if (code) return code;
    value_of(device->number, "memory_used", &used);
    memory[0] = (unsigned long long)total, memory[1] = (unsigned long long)(total - used), memory[2] = (unsigned long long)used;
    return OK;
}

int nvmlDeviceGetViolationStatus(Device *device, unsigned policy, unsigned long long *times) {
    double value;
    int code = number_by(device, "nvmlDeviceGetViolationStatus", "violation", policy, &value);
    if (!code) times[0] = (unsigned long long)(now_s() * 1e9), times[1] = (unsigned long long)value;
    return code;
}

int nvmlDeviceGetTotalEccErrors(Device *device, unsigned type, unsigned counter, unsigned long long *count) {
    double value;
    int code = number_by(device, "nvmlDeviceGetTotalEccErrors", counter ? "ecc_aggregate" : "ecc_volatile", type, &value);
    if (!code) *count = (unsigned long long)value;
    return code;
}

int nvmlDeviceGetMemoryErrorCounter(Device *device, unsigned type, unsigned counter, unsigned where, unsigned long long *count) {
    double value;
    char key[64];
    snprintf(key, sizeof key, "%s.%u", type ? "ecc_uncorrected" : "ecc_corrected", where);
    (void)counter;
    int code = number(device, "nvmlDeviceGetMemoryErrorCounter", key, &value);
    if (!code) *count = (unsigned long long)value;
    return code;
}

int nvmlDeviceGetRemappedRows(Device *device, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
    unsigned *results[] = {corrected, uncorrected, pending, failed};
    for (unsigned i = 0; i < 4; i++) {
        double value;
        int code = number_by(device, "nvmlDeviceGetRemappedRows", "remapped", i, &value);
        if (code) return code;
        *results[i] = (unsigned)value;
    }
    return OK;
}

int nvmlDeviceGetP2PStatus(Device *device, Device *other, unsigned what, unsigned *status) {
    double value;
    int code = number_by(device, "nvmlDeviceGetP2PStatus", "peer", (unsigned)other->number, &value);
    (void)what;
    if (!code) *status = (unsigned)value;
    return code;
}

typedef struct {
    uint32_t field, scope;
    int64_t timestamp, latency_us;
    uint32_t type, code;
    union { double d; unsigned u; unsigned long long ull; } value;
} FieldValue;

/* Keys "field.ID.SCOPE", where the scope is a link, all of them (4294967295) or 0. What fits 32 bits is written as such, as
 * drivers do: the other half of the value keeps what the caller had there. */
int nvmlDeviceGetFieldValues(Device *device, int count, FieldValue *values) {
    int code = enter(device->number, "nvmlDeviceGetFieldValues");
    for (int i = 0; !code && i < count; i++) {
        char key[64];
        double value;
        snprintf(key, sizeof key, "field.%u.%u", values[i].field, values[i].scope);
        values[i].code = (uint32_t)value_of(device->number, key, &value);
        if (values[i].code) continue;
        values[i].type = value < 4294967296.0 ? 1 : 3;
        if (values[i].type == 1) values[i].value.u = (unsigned)value;
        else values[i].value.ull = (unsigned long long)value;
    }
    return code;
}

typedef struct { unsigned pid; unsigned long long bytes; unsigned instance, compute_instance; } Process;

int nvmlDeviceGetComputeRunningProcesses_v3(Device *device, unsigned *count, Process *processes) {
    double now = now_s();
    unsigned found = 0;
    Process all[256];
    int code = enter(device->number, "nvmlDeviceGetComputeRunningProcesses_v3");
    if (code) return code;
    FOR_LINES(line, device->number, now) {
        if (strcmp(line->what, "process")) continue;
        unsigned pid = (unsigned)atoi(line->key), at = 0;
        while (at < found && all[at].pid != pid) at++;
        if (line->value <= 0) { if (at < found) all[at] = all[--found]; continue; }
        if (at == found && found < 256) found++;
        all[at] = (Process){pid, (unsigned long long)line->value, ~0u, ~0u};
    }
    unsigned room = *count;
    *count = found;
    if (found > room) return TOO_SMALL;
    if (found) memcpy(processes, all, found * sizeof *all);
    return OK;
}

typedef struct { Device *device; unsigned long long type, data; unsigned instance, compute_instance; } Event;

int nvmlEventSetCreate(void **set) { *set = &next_xid; return enter(-1, "nvmlEventSetCreate"); }

int nvmlEventSetFree(void *set) { (void)set; return OK; }

int nvmlDeviceRegisterEvents(Device *device, unsigned long long types, void *set) {
    (void)types, (void)set;
    return enter(device->number, "nvmlDeviceRegisterEvents");
}

int nvmlEventSetWait_v2(void *set, Event *event, unsigned timeout_ms) {
    double now = now_s();
    (void)set, (void)timeout_ms;
    int code = enter(-1, "nvmlEventSetWait_v2");
    if (code) return code;
    for (; next_xid < line_count && lines[next_xid].at <= now; next_xid++) {
        Line *line = &lines[next_xid];
        if (strcmp(line->what, "xid")) continue;
        next_xid++;
        *event = (Event){&devices[line->device], 8, (unsigned long long)atoi(line->key), ~0u, ~0u};
        return OK;
    }
    return TIMED_OUT;
}
