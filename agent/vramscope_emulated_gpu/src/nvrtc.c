/* libnvrtc: compiles every program to nothing. */
#include "stub.h"

API nvrtcVersion(int *major, int *minor) {
    *major = 13;
    *minor = 0;
    return 0;
}
API nvrtcCreateProgram(H *program, const char *source, const char *name, int count, H headers, H names) {
    *program = calloc(1, 64);
    return 0;
}
API nvrtcDestroyProgram(H *program) {
    free(*program);
    *program = NULL;
    return 0;
}
#define EMPTY_TEXT(kind)                                                                                     \
    API nvrtcGet##kind##Size(H program, size_t *bytes) {                                                     \
        *bytes = 1;                                                                                          \
        return 0;                                                                                            \
    }                                                                                                        \
    API nvrtcGet##kind(H program, char *out) {                                                               \
        *out = 0;                                                                                            \
        return 0;                                                                                            \
    }
EMPTY_TEXT(PTX)
EMPTY_TEXT(CUBIN)
EMPTY_TEXT(ProgramLog)
API nvrtcGetLoweredName(H program, const char *name, const char **lowered) {
    *lowered = name;
    return 0;
}
STRING nvrtcGetErrorString(int code) { return code ? "NVRTC error (emulated GPU)" : "NVRTC_SUCCESS"; }
