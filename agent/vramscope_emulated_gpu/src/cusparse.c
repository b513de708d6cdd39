/* libcusparse: handles. Every product is a generated stub that refuses: its result's size would be read. */
#include "stub.h"

CREATE(cusparseCreate)
DESTROY(cusparseDestroy)
API cusparseSetStream(H handle, H stream) { return 0; }
API cusparseSetPointerMode(H handle, int mode) { return 0; }
STRING cusparseGetErrorString(int code) { return code ? "not supported by the emulated GPU" : "success"; }
