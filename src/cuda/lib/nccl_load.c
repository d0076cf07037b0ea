/*
 * nccl_load.c -- looks for NCCL on this machine, once.
 */
#include "cuda/nccl.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

/* Where each name goes; the list is the same as that of struct nccl_calls. */
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

static void say(char why[DEVICE_TEXT_MAX], const char *text)
{
    snprintf(why, DEVICE_TEXT_MAX, "%.90s", text == NULL ? "it does not load" : text);
}

static bool load(struct nccl_calls *calls, char why[DEVICE_TEXT_MAX])
{
    void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    void *symbol;
    if (library == NULL) {
        say(why, dlerror());
        return false;
    }
#define TAKE(member, name)           \
    symbol = dlsym(library, name);   \
    if (symbol == NULL) {            \
        say(why, "it has no " name); \
        return false;                \
    }                                \
    memcpy(&calls->member, &symbol, sizeof symbol);
    NCCL_NAMES(TAKE)
#undef TAKE
    return true;
}

/* One library a process, and one thread that asks first. */
const struct nccl_calls *nccl_find(char why[DEVICE_TEXT_MAX])
{
    static struct nccl_calls calls;
    static bool is_loaded;
    if (!is_loaded)
        is_loaded = load(&calls, why);
    return is_loaded ? &calls : NULL;
}
