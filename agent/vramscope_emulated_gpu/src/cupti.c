/* libcupti: a profiler with nothing to report. */
#include "stub.h"

API cuptiGetVersion(uint32_t *version) {
    *version = 130000;
    return 0;
}
API cuptiSubscribe(H *subscriber, H callback, H user) {
    *subscriber = (H)1;
    return 0;
}
API cuptiActivityGetNextRecord(H buffer, size_t bytes, H *record) {
    *record = NULL;
    return 12; /* no more records */
}
API cuptiActivityGetNumDroppedRecords(H context, uint32_t stream, size_t *count) {
    *count = 0;
    return 0;
}
API cuptiActivityPopExternalCorrelationId(int kind, uint64_t *id) {
    if (id) *id = 0;
    return 0;
}
API cuptiGetResultString(int code, const char **text) {
    *text = code ? "CUPTI error (emulated GPU)" : "CUPTI_SUCCESS";
    return 0;
}
