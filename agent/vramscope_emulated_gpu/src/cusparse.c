/* libcusparse: handles, and products of a sparse and a dense operand, whose results have known sizes. What
 * they need as workspace is not documented: 0 here, and counted as calls. Other products are generated stubs
 * that refuse: their result's size would be read. */
#include "stub.h"

CREATE(cusparseCreate)
DESTROY(cusparseDestroy)
API cusparseSetStream(H handle, H stream) { return 0; }
API cusparseSetPointerMode(H handle, int mode) { return 0; }
STRING cusparseGetErrorString(int code) { return code ? "not supported by the emulated GPU" : "success"; }

CREATE(cusparseCreateCsr)
CREATE(cusparseCreateCoo)
CREATE(cusparseCreateDnMat)
CREATE(cusparseCreateDnVec)
DESTROY(cusparseDestroySpMat)
DESTROY(cusparseDestroyDnMat)
DESTROY(cusparseDestroyDnVec)
API cusparseCsrSetStridedBatch(H matrix, int count, int64_t offsets, int64_t columns) { return 0; }
API cusparseDnMatSetStridedBatch(H matrix, int count, int64_t stride) { return 0; }
API cusparseXcoo2csr(H handle, const int *rows, int entries, int row_count, int *starts, int base) {
    return 0;
}

static int sized(size_t *bytes) {
    *bytes = 0;
    return 0;
}
static int multiplied(void) {
    eg_count_sparse_product();
    return 0;
}
API cusparseSpMM_bufferSize(H handle, int of_a, int of_b, const void *alpha, H a, H b, const void *beta, H c,
                            int type, int algorithm, size_t *bytes) {
    return sized(bytes);
}
API cusparseSpMM(H handle, int of_a, int of_b, const void *alpha, H a, H b, const void *beta, H c, int type,
                 int algorithm, void *workspace) {
    return multiplied();
}
API cusparseSpMV_bufferSize(H handle, int of_a, const void *alpha, H a, H x, const void *beta, H y, int type,
                            int algorithm, size_t *bytes) {
    return sized(bytes);
}
API cusparseSpMV(H handle, int of_a, const void *alpha, H a, H x, const void *beta, H y, int type,
                 int algorithm, void *workspace) {
    return multiplied();
}
