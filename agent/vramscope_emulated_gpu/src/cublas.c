/* libcublas: handles and their modes. Every product is a generated stub that succeeds. */
#include "stub.h"

static __thread int math_mode, pointer_mode;

CREATE(cublasCreate_v2)
DESTROY(cublasDestroy_v2)
API cublasGetMathMode(H handle, int *mode) {
    *mode = math_mode;
    return 0;
}
API cublasSetMathMode(H handle, int mode) {
    math_mode = mode;
    return 0;
}
API cublasGetPointerMode_v2(H handle, int *mode) {
    *mode = pointer_mode;
    return 0;
}
API cublasSetPointerMode_v2(H handle, int mode) {
    pointer_mode = mode;
    return 0;
}
