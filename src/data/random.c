/*
 * random.c -- random samples, for measuring speed and memory without data.
 *
 * A sample is a pure function of (seed, split, position).  One Philox value keys the sample and a
 * cheap counter hash generates its elements, so filling a batch of images costs little compared
 * with the step being measured.  All arithmetic is on integers up to the last conversion, so every
 * machine generates the same samples.
 */
#include "data/source.h"

#include <stdlib.h>

#include "base/counter_random.h"
#include "base/rng.h"

enum { N_TRAIN = 65536, N_HELD_OUT = 1024 }; /* an arbitrary epoch length */

static int32_t below(uint64_t bits, int64_t n) /* uniform in 0..n-1; n fits in 31 bits */
{
    return (int32_t)((bits >> 32) * (uint64_t)n >> 32);
}

/* Approximately normal: a sum of eight uniform values, scaled to mean 0 and deviation 1. */
static float approx_normal(uint64_t key, uint64_t index)
{
    uint64_t a = counter_hash(key, 2 * index), b = counter_hash(key, 2 * index + 1);
    uint64_t lanes = 0x0000ffff0000ffffu;
    uint64_t pairs = (a & lanes) + ((a >> 16) & lanes) + (b & lanes) + ((b >> 16) & lanes);
    int32_t sum = (int32_t)(uint32_t)((pairs >> 32) + (pairs & 0xffffffffu));
    /* eight values of 0..65535: mean 4 x 65535, deviation sqrt(8 / 12) x 65536 */
    return (float)(sum - 4 * 65535) * (float)(1.0 / (65536.0 * 0.81649658092772603));
}

static enum snug_status fill(struct data *data, enum data_split split, int64_t position,
                             void *input, void *target, struct snug_error *err)
{
    const struct data_request *request = &data->request;
    uint64_t stream = rng_hash_string(split == DATA_TRAIN ? "random train" : "random held out");
    if (split == DATA_HELD_OUT)
        position %= N_HELD_OUT;
    uint64_t key = rng_u64(request->seed, stream, (uint64_t)position);
    uint64_t n = (uint64_t)request->sample_elems;
    int32_t *tokens = input, *class_target = target;
    float *elems = input, *real_target = target;
    (void)err;
    if (request->target == DATA_TARGET_TOKENS) {
        for (uint64_t i = 0; i < n; i++)
            tokens[i] = below(counter_hash(key, i), request->n_classes);
        for (uint64_t i = 0; i < n; i++)
            class_target[i] =
                i + 1 < n ? tokens[i + 1] : below(counter_hash(key, n), request->n_classes);
        return SNUG_OK;
    }
    uint64_t target_key = counter_hash(key, UINT64_MAX / 2);
    for (uint64_t i = 0; i < n; i++)
        elems[i] = approx_normal(key, i);
    if (request->target == DATA_TARGET_CLASS)
        class_target[0] = below(target_key, request->n_classes);
    else
        for (uint64_t i = 0; i < (uint64_t)request->target_elems; i++)
            real_target[i] = approx_normal(target_key, i);
    return SNUG_OK;
}

static void close_random(struct data *data)
{
    free(data);
}

enum snug_status source_open_random(const struct data_request *request, struct data **data,
                                    struct snug_error *err)
{
    *data = malloc(sizeof **data);
    if (*data == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "data \"random\": out of memory");
    **data = (struct data){.fill = fill,
                           .close = close_random,
                           .request = *request,
                           .kind = "random",
                           .n_samples = {N_TRAIN, N_HELD_OUT},
                           .fingerprint = rng_hash_string("random")};
    (*data)->request.spec = NULL;
    return SNUG_OK;
}
