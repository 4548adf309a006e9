/* NVIDIA's management library, as far as a test of sensors needs it: one card, with the UUID that SENSORS_UUID
 * names, of 42 degrees. */

#include <stdlib.h>
#include <string.h>

static int initialised;
static int card;

unsigned nvmlInit_v2(void) {
    initialised++;
    return 0;
}

unsigned nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    const char *own = getenv("SENSORS_UUID");
    if (!initialised) return 1;
    if (!own || strcmp(uuid, own) != 0) return 6;
    *device = &card;
    return 0;
}

unsigned nvmlDeviceGetTemperature(void *device, unsigned kind, unsigned *value) {
    if (device != &card || kind != 0) return 2;
    *value = 42;
    return 0;
}
