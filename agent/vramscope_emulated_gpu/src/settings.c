/* The environment variables EMULATED_GPU_<NAME>. The README lists them all. */
#include "emulated_gpu.h"
#include <stdio.h>
#include <stdlib.h>

const char *eg_setting(const char *name) {
    char variable[64];
    snprintf(variable, sizeof variable, "EMULATED_GPU_%s", name);
    const char *text = getenv(variable);
    return text && *text ? text : NULL;
}

long eg_setting_number(const char *name, long otherwise) {
    const char *text = eg_setting(name);
    return text ? strtol(text, NULL, 0) : otherwise;
}

size_t eg_setting_bytes(const char *name, size_t otherwise) {
    const char *text = eg_setting(name);
    if (!text) return otherwise;
    char *unit;
    double bytes = strtod(text, &unit);
    const char *units = "kmgt";
    for (int i = 0; units[i]; i++)
        if ((*unit | 32) == units[i]) bytes *= (double)((size_t)1 << 10 * (i + 1));
    return (size_t)bytes;
}
