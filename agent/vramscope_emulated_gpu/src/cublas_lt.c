/* libcublasLt: descriptors, and a heuristic that always finds one algorithm which needs no workspace. */
#include "stub.h"

struct heuristic_result {
    uint64_t algorithm[8];
    size_t workspace_bytes;
    int state;
    float waves;
    int reserved[4];
};

CREATE(cublasLtMatmulPreferenceCreate)
DESTROY(cublasLtMatmulPreferenceDestroy)
DESTROY(cublasLtMatmulDescDestroy)
DESTROY(cublasLtMatrixLayoutDestroy)
API cublasLtMatmulDescCreate(H *out, int compute, int scale) {
    *out = calloc(1, 256);
    return 0;
}
API cublasLtMatrixLayoutCreate(H *out, int type, uint64_t rows, uint64_t columns, int64_t leading) {
    *out = calloc(1, 256);
    return 0;
}
EG_API size_t cublasLtGetVersion(void) { return 130100; }
API cublasLtMatmulAlgoGetHeuristic(H handle, H operation, H a, H b, H c, H d, H preference, int wanted,
                                   struct heuristic_result *out, int *found) {
    *found = wanted > 0;
    if (wanted > 0) *out = (struct heuristic_result){.waves = 1};
    return 0;
}
