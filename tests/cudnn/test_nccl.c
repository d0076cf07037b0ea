/*
 * test_nccl.c -- our nccl.h against NCCL's own header and library, if they are installed.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#if __has_include(<nccl.h>)
#include <nccl.h>
#define HAS_HEADER
#endif

#include "cuda/nccl.h"

#if defined(HAS_HEADER)
_Static_assert(sizeof(ncclUniqueId) == sizeof(struct nccl_id), "the id");
_Static_assert((int)ncclSuccess == (int)NCCL_SUCCESS &&
                   (int)ncclInProgress == (int)NCCL_IN_PROGRESS,
               "results");
_Static_assert((int)ncclSum == (int)NCCL_SUM, "the sum");
_Static_assert((int)ncclInt8 == (int)NCCL_INT8 && (int)ncclFloat16 == (int)NCCL_F16 &&
                   (int)ncclFloat32 == (int)NCCL_F32 && (int)ncclFloat64 == (int)NCCL_F64 &&
                   (int)ncclBfloat16 == (int)NCCL_BF16,
               "types");

/* Enums are passed as the int that they are: with that said, the arguments have to be the header's. */
_Static_assert(sizeof(ncclResult_t) == sizeof(int) && sizeof(ncclDataType_t) == sizeof(int) &&
                   sizeof(ncclRedOp_t) == sizeof(int),
               "enums");
#define EXPECT(name, ...) \
    _Static_assert(       \
        __builtin_types_compatible_p(__typeof__(&(name)), ncclResult_t (*)(__VA_ARGS__)), #name)
EXPECT(ncclGetVersion, int *);
EXPECT(ncclGetUniqueId, ncclUniqueId *);
EXPECT(ncclCommInitRank, ncclComm_t *, int, ncclUniqueId, int);
EXPECT(ncclCommDestroy, ncclComm_t);
EXPECT(ncclCommAbort, ncclComm_t);
EXPECT(ncclCommGetAsyncError, ncclComm_t, ncclResult_t *);
EXPECT(ncclGroupStart, void);
EXPECT(ncclGroupEnd, void);
EXPECT(ncclAllReduce, const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t,
       cudaStream_t);
EXPECT(ncclReduce, const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, int, ncclComm_t,
       cudaStream_t);
EXPECT(ncclReduceScatter, const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t,
       cudaStream_t);
EXPECT(ncclBroadcast, const void *, void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t);
EXPECT(ncclAllGather, const void *, void *, size_t, ncclDataType_t, ncclComm_t, cudaStream_t);
EXPECT(ncclSend, const void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t);
EXPECT(ncclRecv, void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t);
#endif

static void test_is_found_or_said_to_be_missing(void **state)
{
    (void)state;
    char why[DEVICE_TEXT_MAX] = "";
    const struct nccl_calls *calls = nccl_find(why);
    int version = 0;
    if (calls == NULL) {
        print_message("without NCCL: %s\n", why);
        assert_true(why[0] != '\0');
        return;
    }
    assert_int_equal(calls->get_version(&version), NCCL_SUCCESS);
    assert_true(version >= 21000 && version < 30000);
    print_message("NCCL %d\n", version);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_is_found_or_said_to_be_missing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
