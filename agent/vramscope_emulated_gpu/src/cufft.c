/* libcufft: plans that need no work area. */
#include "stub.h"

API cufftCreate(int *plan) {
    *plan = 1;
    return 0;
}
API cufftDestroy(int plan) { return 0; }
API cufftSetAutoAllocation(int plan, int on) { return 0; }
API cufftSetStream(int plan, H stream) { return 0; }
API cufftSetWorkArea(int plan, H area) { return 0; }
API cufftXtExec(int plan, H in, H out, int direction) { return 0; }
API cufftXtMakePlanMany(int plan, int rank, H n, H in_embed, int64_t in_stride, int64_t in_distance,
                        int in_type, H out_embed, int64_t out_stride, int64_t out_distance, int out_type,
                        int64_t batch, size_t *work_bytes, int execution_type) {
    *work_bytes = 0;
    return 0;
}
