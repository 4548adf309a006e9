/* A management library of two devices. FAKE_NVML names a file that has their modes, a line for each change, so
 * that they outlive the process as a card's do. Beside it, `.calls` gets each call with its arguments, and
 * `.refused` has the numbers of the devices whose modes this user may not set. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static unsigned modes[2];
static const char *uuids[2] = {"GPU-00000000-aaaa", "GPU-11111111-bbbb"};

static unsigned number(void *handle) { return (unsigned)((unsigned *)handle - modes); }

static FILE *beside(const char *suffix, const char *how) {
    char path[4096];
    const char *name = getenv("FAKE_NVML");
    if (!name) return NULL;
    snprintf(path, sizeof path, "%s%s", name, suffix);
    return fopen(path, how);
}

static void called(const char *form, ...) {
    FILE *file = beside(".calls", "a");
    va_list arguments;
    if (!file) return;
    va_start(arguments, form);
    vfprintf(file, form, arguments);
    va_end(arguments);
    fputc('\n', file);
    fclose(file);
}

static void load(void) {
    FILE *file = beside("", "r");
    unsigned device, mode;
    if (!file) return;
    while (fscanf(file, "%u %u\n", &device, &mode) == 2) if (device < 2) modes[device] = mode;
    fclose(file);
}

static int refused(unsigned wanted) {
    FILE *file = beside(".refused", "r");
    unsigned device;
    int found = 0;
    if (!file) return 0;
    while (fscanf(file, "%u", &device) == 1) found |= device == wanted;
    fclose(file);
    return found;
}

int nvmlInit_v2(void) {
    called("nvmlInit_v2");
    return getenv("FAKE_NVML") ? 0 : 9;
}
int nvmlShutdown(void) { called("nvmlShutdown"); return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) {
    called("nvmlDeviceGetCount_v2");
    *count = getenv("FAKE_NVML_EMPTY") ? 0 : 2;
    return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    called("nvmlDeviceGetHandleByIndex_v2 %u", index);
    if (index >= 2) return 2;
    *handle = &modes[index];
    return 0;
}
int nvmlDeviceGetUUID(void *handle, char *text, unsigned bytes) {
    const char *uuid = uuids[number(handle)];
    called("nvmlDeviceGetUUID %u", number(handle));
    if (strlen(uuid) >= bytes) return 7;
    strcpy(text, uuid);
    return 0;
}
int nvmlDeviceGetComputeMode(void *handle, unsigned *mode) {
    called("nvmlDeviceGetComputeMode %u", number(handle));
    load();
    *mode = *(unsigned *)handle;
    return 0;
}
int nvmlDeviceSetComputeMode(void *handle, unsigned mode) {
    FILE *file;
    called("nvmlDeviceSetComputeMode %u %u", number(handle), mode);
    if (refused(number(handle))) return 4;
    if (!(file = beside("", "a"))) return 999;
    fprintf(file, "%u %u\n", number(handle), mode);
    fclose(file);
    return 0;
}
const char *nvmlErrorString(int code) {
    return code == 4 ? "Insufficient Permissions" : code == 9 ? "Driver Not Loaded" : "Some Error";
}
