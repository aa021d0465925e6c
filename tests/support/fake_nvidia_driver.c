/* Stands in for NVIDIA's management library.

   Each call reads the file that FAKE_GPUS names anew, so that a test changes the devices of a
   process that runs. Its lines:

     init CODE                      what nvmlInit_v2 returns; at -1 it hangs, at -2 it aborts
     driver VERSION
     cuda NUMBER                    13000 is CUDA 13.0, 0 is a driver without libcuda
     card UUID CODE BYTES MAJOR MINOR DIVIDED NAME
     mig UUID CODE BYTES NAME       a device of the last card
     mode NUMBER                    the compute mode of all cards: 3 is for one process each

   CODE is 0, or the error with which the device answers: 15 is a card that is lost. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST = 32, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, LIBRARY_NOT_FOUND = 12 };

struct device {
    char uuid[96], name[96];
    int code, major, minor, divided, card;
    unsigned long long bytes;
};

static int init, cuda, mode, found;
static char driver[96];
static struct device devices[MOST];

static void look(void) {
    const char *path = getenv("FAKE_GPUS");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[512];
    int cards = 0;
    init = 9, cuda = 13000, mode = 0, found = 0;
    strcpy(driver, "580.65.06");
    if (!file) return;
    init = 0;
    while (fgets(line, sizeof line, file) && found < MOST) {
        struct device *next = &devices[found];
        memset(next, 0, sizeof *next);
        if (sscanf(line, "card %95s %d %llu %d %d %d %95[^\n]", next->uuid, &next->code,
                   &next->bytes, &next->major, &next->minor, &next->divided, next->name) == 7)
            cards++, next->card = -1, found++;
        else if (sscanf(line, "mig %95s %d %llu %95[^\n]", next->uuid, &next->code, &next->bytes,
                        next->name) == 4)
            next->card = cards - 1, found++;
        else if (sscanf(line, "init %d", &init) != 1 && sscanf(line, "cuda %d", &cuda) != 1 &&
                 sscanf(line, "mode %d", &mode) != 1)
            sscanf(line, "driver %95s", driver);
    }
    fclose(file);
}

/* A handle is the place of a device in the file, and one more. */
static int find(void *handle, struct device **device) {
    size_t place = (size_t)handle;
    look();
    if (place < 1 || place > (size_t)found) return 15;
    *device = &devices[place - 1];
    return (*device)->code;
}

static int number(int card, unsigned index, void **handle) {
    unsigned seen = 0;
    for (int place = 0; place < found; place++)
        if (devices[place].card == card && seen++ == index) {
            *handle = (void *)(size_t)(place + 1);
            return 0;
        }
    return NOT_FOUND;
}

static int copy(char *target, unsigned length, const char *text) {
    return snprintf(target, length, "%s", text) < (int)length ? 0 : 7;
}

int nvmlInit_v2(void) {
    look();
    if (init == -2) abort();
    while (init == -1) pause();
    return init;
}
int nvmlShutdown(void) { return 0; }

int nvmlSystemGetDriverVersion(char *text, unsigned length) {
    return look(), copy(text, length, driver);
}

int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    look();
    *version = cuda;
    return cuda ? 0 : LIBRARY_NOT_FOUND;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    look();
    *count = 0;
    for (int place = 0; place < found; place++) *count += devices[place].card < 0;
    return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    look();
    return number(-1, index, handle);
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    look();
    for (int place = 0; place < found; place++)
        if (!strcmp(devices[place].uuid, uuid)) {
            *handle = (void *)(size_t)(place + 1);
            return 0;
        }
    return NOT_FOUND;
}

int nvmlDeviceGetMigMode(void *handle, unsigned *mode, unsigned *pending) {
    struct device *device;
    int code = find(handle, &device);
    if (code) return code;
    *mode = *pending = device->divided;
    return 0;
}

int nvmlDeviceGetMaxMigDeviceCount(void *handle, unsigned *count) {
    struct device *device;
    *count = 7;
    return find(handle, &device);
}

int nvmlDeviceGetMigDeviceHandleByIndex(void *handle, unsigned index, void **part) {
    struct device *card;
    int code = find(handle, &card), before = 0;
    if (code) return code;
    for (int place = 0; place < (int)(card - devices); place++) before += devices[place].card < 0;
    return number(before, index, part);
}

int nvmlDeviceGetUUID(void *handle, char *text, unsigned length) {
    struct device *device;
    int code = find(handle, &device);
    return code ? code : copy(text, length, device->uuid);
}

int nvmlDeviceGetName(void *handle, char *text, unsigned length) {
    struct device *device;
    int code = find(handle, &device);
    return code ? code : copy(text, length, device->name);
}

int nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor) {
    struct device *device;
    int code = find(handle, &device);
    if (code) return code;
    if (device->card >= 0) return INVALID;
    *major = device->major, *minor = device->minor;
    return 0;
}

int nvmlDeviceGetComputeMode(void *handle, unsigned *answer) {
    struct device *device;
    int code = find(handle, &device);
    *answer = mode;
    return code ? code : device->card >= 0 ? NOT_SUPPORTED : 0;
}

int nvmlDeviceGetMemoryInfo(void *handle, unsigned long long memory[3]) {
    struct device *device;
    int code = find(handle, &device);
    if (code) return code;
    memory[0] = device->bytes, memory[1] = device->bytes / 4 * 3, memory[2] = device->bytes / 4;
    return 0;
}

int nvmlDeviceGetUtilizationRates(void *handle, unsigned rates[2]) {
    struct device *device;
    int code = find(handle, &device);
    if (code) return code;
    if (device->card >= 0) return NOT_SUPPORTED;
    rates[0] = 37, rates[1] = 12;
    return 0;
}

int nvmlDeviceGetPowerUsage(void *handle, unsigned *milliwatts) {
    struct device *device;
    int code = find(handle, &device);
    *milliwatts = 312500;
    return code ? code : device->card >= 0 ? NOT_SUPPORTED : 0;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(void *handle, unsigned long long *reasons) {
    struct device *device;
    int code = find(handle, &device);
    *reasons = 0x4 | 0x20 | 0x1; /* power cap, thermal, and idle, which is no throttling */
    return code ? code : device->card >= 0 ? NOT_SUPPORTED : 0;
}

int nvmlDeviceGetTotalEccErrors(void *handle, int kind, int since, unsigned long long *errors) {
    struct device *device;
    int code = find(handle, &device);
    *errors = kind ? 1 : 7;
    return code ? code : device->card >= 0 || since != 0 ? NOT_SUPPORTED : 0;
}
