/*
 * weight_average.cu -- averages of the weights, for evaluation: one pass over the stored copies.
 *
 * Whether this step stores a copy, and in which slot, is known only to the scalar table: the first
 * thread of a block reads it and shares it with the others.
 */
#include "cuda/optim/weight_average.h"
#include "cuda/kernels/device.h"
#include "optim/average.h"

enum { BLOCK = 256 };

KERNEL clock_of_average(struct average_job job)
{
    average_clock(job.average, job.options, job.scalars);
}

/* The eight elements of a thread, and whether they can be moved as one aligned pack. */
struct packed {
    int64_t at;
    int count;
    bool whole;
};

DEVICE struct packed packed_of(int64_t n, bool aligned)
{
    struct packed p;
    p.at = thread_index() * PACK;
    p.count = n - p.at < PACK ? (int)(n - p.at) : PACK;
    p.whole = aligned && p.count == PACK;
    return p;
}

DEVICE void read_pack(const struct packed *p, struct cuda_array from, int64_t first, float x[PACK])
{
    if (p->whole)
        pack_load(from.dtype, from.data, first + p->at, x);
    else
        pack_load_part(from.dtype, from.data, first + p->at, p->count, x);
}

DEVICE void write_pack(const struct packed *p, struct cuda_array to, int64_t first,
                       const float x[PACK])
{
    if (p->whole)
        pack_store(to.dtype, to.data, first + p->at, x);
    else
        pack_store_part(to.dtype, to.data, first + p->at, p->count, x);
}

KERNEL keep_average(struct average_job job, bool aligned, struct cuda_array w,
                    struct cuda_array kept)
{
    SHARED struct average_change change;
    if (job.scalars[SCALAR_keeps] == 0.0)
        return;
    if (threadIdx.x == 0)
        change = average_change(job.average, job.options, job.n_copies, job.scalars);
    __syncthreads();
    struct packed p = packed_of(job.n, aligned);
    if (p.at >= job.n)
        return;
    float x[PACK], old[PACK] = {0};
    const float of_weight = (float)change.of_weight, of_kept = (float)change.of_kept;
    read_pack(&p, w, 0, x);
    if (of_kept > 0)
        read_pack(&p, kept, change.copy * job.n, old);
    for (int i = 0; i < PACK; i++)
        x[i] = of_weight * x[i] + of_kept * old[i];
    write_pack(&p, kept, change.copy * job.n, x);
}

KERNEL average_of(struct average_job job, bool aligned, struct cuda_array w, struct cuda_array kept,
                  struct cuda_array y)
{
    SHARED struct average_mix mix;
    if (threadIdx.x == 0)
        mix = average_mix(job.average, job.options, job.n_copies, job.scalars);
    __syncthreads();
    struct packed p = packed_of(job.n, aligned);
    if (p.at >= job.n)
        return;
    float x[PACK], sum[PACK] = {0};
    for (int64_t copy = 0; copy < mix.n_copies; copy++) {
        read_pack(&p, kept, copy * job.n, x);
        for (int i = 0; i < PACK; i++)
            sum[i] += x[i];
    }
    const float of_weight = (float)mix.of_weight, of_kept = (float)mix.of_kept;
    read_pack(&p, w, 0, x);
    for (int i = 0; i < PACK; i++)
        x[i] = of_weight * x[i] + of_kept * sum[i];
    write_pack(&p, y, 0, x);
}

static bool is_aligned(const struct average_job *job, struct cuda_array kept)
{
    return pack_aligned(kept.data) && (job->n_copies == 1 || job->n % PACK == 0);
}

static unsigned grid(const struct average_job *job)
{
    return grid_of((job->n + PACK - 1) / PACK, BLOCK);
}

int cuda_average_clock(const struct average_job *job, void *stream)
{
    return launch(clock_of_average, 1, 1, 0, stream, *job);
}

int cuda_average_keep(const struct average_job *job, struct cuda_array w, struct cuda_array kept,
                      void *stream)
{
    return launch(keep_average, grid(job), BLOCK, 0, stream, *job,
                  is_aligned(job, kept) && pack_aligned(w.data), w, kept);
}

int cuda_average(const struct average_job *job, struct cuda_array w, struct cuda_array kept,
                 struct cuda_array y, void *stream)
{
    return launch(average_of, grid(job), BLOCK, 0, stream, *job,
                  is_aligned(job, kept) && pack_aligned(w.data) && pack_aligned(y.data), w, kept,
                  y);
}
