/*
 * nccl_load.c -- loads NCCL at run time, once.
 */
#include "cuda/nccl.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

/* The NCCL function of each member of struct nccl_calls, in its order. */
#define NCCL_NAMES(X)                       \
    X(get_version, "ncclGetVersion")        \
    X(get_id, "ncclGetUniqueId")            \
    X(init_rank, "ncclCommInitRank")        \
    X(destroy, "ncclCommDestroy")           \
    X(abort, "ncclCommAbort")               \
    X(async_error, "ncclCommGetAsyncError") \
    X(error_text, "ncclGetErrorString")     \
    X(last_error, "ncclGetLastError")       \
    X(group_start, "ncclGroupStart")        \
    X(group_end, "ncclGroupEnd")            \
    X(all_reduce, "ncclAllReduce")          \
    X(reduce, "ncclReduce")                 \
    X(reduce_scatter, "ncclReduceScatter")  \
    X(broadcast, "ncclBroadcast")           \
    X(all_gather, "ncclAllGather")          \
    X(send, "ncclSend")                     \
    X(recv, "ncclRecv")

static void set_reason(char why[DEVICE_TEXT_MAX], const char *text)
{
    snprintf(why, DEVICE_TEXT_MAX, "%.90s", text == NULL ? "libnccl.so.2 does not load" : text);
}

static bool load(struct nccl_calls *calls, char why[DEVICE_TEXT_MAX])
{
    void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    void *symbol;
    if (library == NULL) {
        set_reason(why, dlerror());
        return false;
    }
#define TAKE(member, name)                           \
    symbol = dlsym(library, name);                   \
    if (symbol == NULL) {                            \
        set_reason(why, "libnccl.so.2 lacks " name); \
        return false;                                \
    }                                                \
    memcpy(&calls->member, &symbol, sizeof symbol);
    NCCL_NAMES(TAKE)
#undef TAKE
    return true;
}

/* Not thread-safe: one thread makes the first call. */
const struct nccl_calls *nccl_find(char why[DEVICE_TEXT_MAX])
{
    static struct nccl_calls calls;
    static bool is_loaded;
    if (!is_loaded)
        is_loaded = load(&calls, why);
    return is_loaded ? &calls : NULL;
}
