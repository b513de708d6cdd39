/* libnccl: communicators that know their size and rank. Collectives send nothing and take no memory. */
#include "stub.h"

#ifndef NCCL_VERSION /* build.py passes the version that the wheel pins */
#define NCCL_VERSION 22809
#endif

typedef struct {
    char bytes[128];
} unique_id;
typedef struct {
    int ranks, rank;
} communicator;

static int join(communicator **out, int ranks, int rank) {
    *out = malloc(sizeof **out);
    **out = (communicator){ranks, rank};
    return 0;
}
API ncclGetVersion(int *version) {
    *version = NCCL_VERSION;
    return 0;
}
API ncclGetUniqueId(unique_id *id) {
    memset(id, 0, sizeof *id);
    strcpy(id->bytes, "emulated GPU");
    return 0;
}
API ncclCommInitRank(communicator **out, int ranks, unique_id id, int rank) { return join(out, ranks, rank); }
API ncclCommInitRankConfig(communicator **out, int ranks, unique_id id, int rank, H config) {
    return join(out, ranks, rank);
}
API ncclCommInitRankScalable(communicator **out, int ranks, int rank, int ids, unique_id *id, H config) {
    return join(out, ranks, rank);
}
API ncclCommInitAll(communicator **out, int devices, const int *list) {
    for (int i = 0; i < devices; i++) join(out + i, devices, i);
    return 0;
}
API ncclCommSplit(communicator *c, int color, int key, communicator **out, H config) {
    return join(out, c->ranks, c->rank);
}
DESTROY(ncclCommDestroy)
DESTROY(ncclCommAbort)
API ncclCommCount(communicator *c, int *ranks) {
    *ranks = c->ranks;
    return 0;
}
API ncclCommUserRank(communicator *c, int *rank) {
    *rank = c->rank;
    return 0;
}
API ncclCommGetAsyncError(communicator *c, int *error) {
    *error = 0;
    return 0;
}
API ncclCommRegister(communicator *c, H buffer, size_t bytes, H *handle) {
    *handle = NULL;
    return 0;
}

/* It is as if every rank held what this one holds: a broadcast leaves its buffer alone, and a gather repeats it. From
 * PyTorch 2.15 on, a gather into a list is a group of broadcasts, one from each rank. */
static size_t bytes_of(size_t count, int type) {
    static const char type_bytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    return count * (size_t)type_bytes[type];
}
API ncclAllGather(const char *from, char *to, size_t count, int type, communicator *c, H stream) {
    size_t bytes = bytes_of(count, type);
    for (int rank = 0; rank < c->ranks; rank++) eg_copy(to + (size_t)rank * bytes, from, bytes);
    return 0;
}

#define MOST_IN_GROUP 64
static __thread struct {
    int depth, others;
    const char *own; /* what this rank broadcasts; NULL: nothing */
    char *to[MOST_IN_GROUP];
    size_t bytes[MOST_IN_GROUP];
} group;

API ncclBroadcast(const char *from, char *to, size_t count, int type, int root, communicator *c, H stream) {
    if (root == c->rank) {
        eg_copy(to, group.own = from, bytes_of(count, type));
    } else if (group.depth && group.others < MOST_IN_GROUP) {
        group.to[group.others] = to;
        group.bytes[group.others++] = bytes_of(count, type);
    }
    if (!group.depth) group.own = NULL;
    return 0;
}
API ncclGroupStart(void) {
    group.depth++;
    return 0;
}
API ncclGroupEnd(void) {
    if (--group.depth) return 0;
    for (int i = 0; group.own && i < group.others; i++) eg_copy(group.to[i], group.own, group.bytes[i]);
    group.own = NULL;
    group.others = 0;
    return 0;
}
STRING ncclGetErrorString(int code) { return code ? "NCCL error (emulated GPU)" : "no error"; }
STRING ncclGetLastError(H communicator) { return ""; }
