/*
 * gemm_onednn.c -- matmuls with oneDNN, within the planned workspace.
 *
 * Only the brgemm implementations ("brg...") are used: they keep all buffers in the scratchpad,
 * which we own.  The "gemm:jit" ones request no scratchpad and then malloc up to 17 MiB inside each
 * call.  If brgemm is missing (a CPU without AVX-512 on oneDNN 2) or needs more than the bound, our
 * own loops (simd_gemm.c) run in the same workspace.  They also run if ldc > n, which brgemm does
 * not support.
 *
 * The bound per thread follows from the sizes of brgemm's blocks.  It was checked on 7,290 shapes
 * and 1 to 64 threads (all but a few with n >= 4096, k > 50,000 and += keep to it):
 *     A as stored      16 KiB + 512 B x min(k, 512)    a transposed copy of B: 64 columns
 *     A transposed     16 KiB + 1344 B x min(k, 512)   a transposed copy of A: up to 256 rows
 * With A transposed and a long k, brgemm sums over k in parallel, into one copy of C per thread: 37
 * GiB for a 50257 x 3072 gradient on 64 threads.  So k is split into pieces of 512 that are added
 * in order.  The bound depends on this split; its cost was too small to measure.
 *
 * brgemm reads a B that is not transposed in place.  If its rows are a multiple of 4096 bytes
 * apart, but not a power of two (those it copies), they all map to the same lines of the L1 cache:
 * 3072 columns ran at 0.15 TFLOP/s on two cores of a Xeon, others at 0.25 to 0.3.  Such a B is
 * packed with oneDNN's reorder first, one piece of k at a time: 0.21 to 0.27.
 *
 * With registers of 16 floats our own loops run the large matmuls (own_loops_win).  oneDNN gives
 * each thread a fixed share, but the cores of a shared host are not equally fast.  Two cores of a
 * Xeon, GPT-2's matmuls at 4 x 1024, alternating in one run, medians of 5 in GFLOP/s, oneDNN's and
 * ours:
 *     forward 144..222, 181..242           data gradient 204..228, 219..236
 *     weight gradient 205..224, 228..250   head (333 rows) 170..228, 178..264      all 197, 217
 *     forward and data gradient of 256 rows 212, 185 and 168, 187; of 64 rows 186, 141 and 189, 144
 * Packing B costs the same for any number of rows, which is too much for 64.
 *
 * A call still makes 6 or 7 small mallocs (264 bytes in all) for its map of arguments: oneDNN has
 * no entry point without them.  They are freed before it returns.
 *
 * oneDNN 2 does not survive running out of memory.  Either an exception escapes from its C
 * functions and kills the process, or it skips an implementation that it could not create and
 * computes the matmul in another way, with other bits.  So before preparing a matmul we allocate
 * more address space than preparing was seen to take, free it, and only then call oneDNN.  Other
 * threads, and other processes under a shared limit, may still take the memory in between.
 */
#include "cpu/cpu.h"

#if defined(SNUG_ONEDNN)

#include <oneapi/dnnl/dnnl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#if defined(SNUG_OPENMP)
#include <omp.h>
#endif

#include "base/text.h"
#include "cpu/cpu_isa.h"

enum { PIECE_K = 512, LEAST_K = 16 }; /* brgemm pads a short k */

/* Measured: 6.5 MiB for three primitives, most of it code. */
enum { PREPARE_BYTES = 16 << 20 };

/* A primitive with the objects that it is called with.  All zeros if not created. */
struct call {
    dnnl_primitive_t primitive, pack;          /* pack: packs B, or NULL */
    dnnl_memory_t a, b, c, scratch, as_stored; /* as_stored: B before packing */
};

struct gemm {
    struct gemm_shape shape;
    int threads;
    const struct cpu_loops *plain; /* our own loops, or NULL if oneDNN runs it */
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    struct call calls[2][2]; /* [shorter last piece][add] */
};

/* ---- differences between oneDNN 2 and 3 ---------------------------------------------------- */

#if DNNL_VERSION_MAJOR >= 3
typedef dnnl_memory_desc_t matrix_desc;
typedef const_dnnl_memory_desc_t matrix_desc_view;

static dnnl_status_t desc_make(matrix_desc *desc, const dnnl_dims_t dims, const dnnl_dims_t steps)
{
    return dnnl_memory_desc_create_with_strides(desc, 2, dims, dnnl_f32, steps);
}

static dnnl_status_t desc_make_any(matrix_desc *desc, const dnnl_dims_t dims)
{
    return dnnl_memory_desc_create_with_tag(desc, 2, dims, dnnl_f32, dnnl_format_tag_any);
}

static void desc_free(matrix_desc *desc)
{
    if (*desc != NULL)
        dnnl_memory_desc_destroy(*desc);
}

static matrix_desc_view desc_view(const matrix_desc *desc)
{
    return *desc;
}

static dnnl_status_t append_sum(dnnl_post_ops_t ops)
{
    return dnnl_post_ops_append_sum(ops, 1.0f, 0, dnnl_f32);
}

/* Finds the first implementation that `fits`. */
static dnnl_status_t find_implementation(dnnl_engine_t engine, const matrix_desc desc[3],
                                         dnnl_primitive_attr_t attr,
                                         bool (*fits)(const_dnnl_primitive_desc_t, size_t),
                                         size_t bound, dnnl_primitive_desc_t *found)
{
    dnnl_status_t status =
        dnnl_matmul_primitive_desc_create(found, engine, desc[0], desc[1], NULL, desc[2], attr);
    while (status == dnnl_success && !fits(*found, bound))
        status = dnnl_primitive_desc_next_impl(*found);
    return status;
}
#else
typedef dnnl_memory_desc_t matrix_desc;
typedef const dnnl_memory_desc_t *matrix_desc_view;

static dnnl_status_t desc_make(matrix_desc *desc, const dnnl_dims_t dims, const dnnl_dims_t steps)
{
    return dnnl_memory_desc_init_by_strides(desc, 2, dims, dnnl_f32, steps);
}

static dnnl_status_t desc_make_any(matrix_desc *desc, const dnnl_dims_t dims)
{
    return dnnl_memory_desc_init_by_tag(desc, 2, dims, dnnl_f32, dnnl_format_tag_any);
}

static void desc_free(matrix_desc *desc)
{
    (void)desc;
}

static matrix_desc_view desc_view(const matrix_desc *desc)
{
    return desc;
}

static dnnl_status_t append_sum(dnnl_post_ops_t ops)
{
    return dnnl_post_ops_append_sum(ops, 1.0f);
}

static dnnl_status_t find_implementation(dnnl_engine_t engine, const matrix_desc desc[3],
                                         dnnl_primitive_attr_t attr,
                                         bool (*fits)(const_dnnl_primitive_desc_t, size_t),
                                         size_t bound, dnnl_primitive_desc_t *found)
{
    dnnl_matmul_desc_t matmul;
    dnnl_primitive_desc_iterator_t each = NULL;
    dnnl_status_t status = dnnl_matmul_desc_init(&matmul, &desc[0], &desc[1], NULL, &desc[2]);
    if (status == dnnl_success)
        status = dnnl_primitive_desc_iterator_create(&each, &matmul, attr, engine, NULL);
    while (status == dnnl_success) {
        *found = dnnl_primitive_desc_iterator_fetch(each);
        if (*found == NULL) {
            status = dnnl_out_of_memory;
        } else if (fits(*found, bound)) {
            break;
        } else {
            dnnl_primitive_desc_destroy(*found);
            *found = NULL;
            status = dnnl_primitive_desc_iterator_next(each);
        }
    }
    if (each != NULL)
        dnnl_primitive_desc_iterator_destroy(each);
    return status;
}
#endif

/* ---- workspace ----------------------------------------------------------------------------- */

static int64_t piece_k(const struct gemm_shape *shape)
{
    return shape->a_transposed && shape->k > PIECE_K ? PIECE_K : shape->k;
}

/* Packing pays off only from a number of rows of A on. */
static bool packs_b(const struct gemm_shape *shape)
{
    enum { CACHE_WAY_FLOATS = 1024, LEAST_ROWS = 64 };
    bool collides = shape->ldb % CACHE_WAY_FLOATS == 0 && (shape->ldb & (shape->ldb - 1)) != 0;
    return !shape->b_transposed && collides && shape->m >= LEAST_ROWS;
}

/* Bytes of a packed piece of B, rounded up to blocks of 16 x 64. */
static size_t packed_bytes(const struct gemm_shape *shape)
{
    return packs_b(shape) ? f32_bytes((piece_k(shape) + 15) / 16 * 16 * ((shape->n + 63) / 64 * 64))
                          : 0;
}

static size_t brgemm_bound(const struct gemm_shape *shape, int threads)
{
    size_t depth = (size_t)(shape->k < LEAST_K ? LEAST_K : shape->k < PIECE_K ? shape->k : PIECE_K);
    return (size_t)threads * (16384 + depth * (shape->a_transposed ? 1344 : 512));
}

size_t gemm_work_bytes(const struct gemm_shape *shape, int threads)
{
    size_t brgemm = 0;
    work_take(&brgemm, packed_bytes(shape));
    work_take(&brgemm, brgemm_bound(shape, threads));
    size_t plain = gemm_plain_work_bytes(shape, threads);
    return brgemm > plain ? brgemm : plain;
}

/* ---- preparing ----------------------------------------------------------------------------- */

/* If the CPU hides its tile palettes, oneDNN 2.6 crashes with an illegal instruction, so AMX must
 * not be used.  oneDNN accepts the cap only before its first primitive.  Later calls fail, but then
 * an earlier matmul has already set it. */
static void cap_instructions(void)
{
#if defined(__x86_64__)
    if (cpu_hides_tile_palettes())
        (void)dnnl_set_max_cpu_isa(dnnl_cpu_isa_avx512_core_bf16);
#endif
}

static bool brgemm_fits(const_dnnl_primitive_desc_t pd, size_t bound)
{
    const char *name = NULL;
    if (dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, (void *)&name) != dnnl_success)
        return false;
    matrix_desc_view scratch = dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
    return strncmp(name, "brg", 3) == 0 && dnnl_memory_desc_get_size(scratch) <= bound;
}

static dnnl_status_t make_attributes(bool add, dnnl_primitive_attr_t *attr)
{
    dnnl_post_ops_t ops = NULL;
    dnnl_status_t status = dnnl_primitive_attr_create(attr);
    if (status == dnnl_success)
        status = dnnl_primitive_attr_set_scratchpad_mode(*attr, dnnl_scratchpad_mode_user);
    if (status == dnnl_success && add)
        status = dnnl_post_ops_create(&ops);
    if (status == dnnl_success && add)
        status = append_sum(ops);
    if (status == dnnl_success && add)
        status = dnnl_primitive_attr_set_post_ops(*attr, ops);
    if (ops != NULL)
        dnnl_post_ops_destroy(ops);
    return status;
}

static dnnl_status_t make_memories(struct call *call, dnnl_engine_t engine,
                                   dnnl_primitive_desc_t pd)
{
    static const dnnl_query_t queries[4] = {dnnl_query_src_md, dnnl_query_weights_md,
                                            dnnl_query_dst_md, dnnl_query_scratchpad_md};
    dnnl_memory_t *memories[4] = {&call->a, &call->b, &call->c, &call->scratch};
    dnnl_status_t status = dnnl_success;
    for (int i = 0; i < 4 && status == dnnl_success; i++)
        status = dnnl_memory_create(memories[i], dnnl_primitive_desc_query_md(pd, queries[i], 0),
                                    engine, DNNL_MEMORY_NONE);
    return status;
}

/* Creates the reorder from B as stored to the packed format.  Fails unless the packed B fits in
 * `available` bytes and the reorder needs no scratchpad. */
static dnnl_status_t make_pack(struct call *call, dnnl_engine_t engine, matrix_desc_view stored,
                               matrix_desc_view packed, size_t available,
                               dnnl_primitive_attr_t attr)
{
    if (dnnl_memory_desc_get_size(packed) > available)
        return dnnl_unimplemented;
    dnnl_primitive_desc_t pd = NULL;
    dnnl_status_t status =
        dnnl_reorder_primitive_desc_create(&pd, stored, engine, packed, engine, attr);
    if (status == dnnl_success && dnnl_memory_desc_get_size(dnnl_primitive_desc_query_md(
                                      pd, dnnl_query_scratchpad_md, 0)) > 0)
        status = dnnl_unimplemented;
    if (status == dnnl_success)
        status = dnnl_primitive_create(&call->pack, pd);
    if (status == dnnl_success)
        status = dnnl_memory_create(&call->as_stored, stored, engine, DNNL_MEMORY_NONE);
    if (pd != NULL)
        dnnl_primitive_desc_destroy(pd);
    return status;
}

static dnnl_status_t make_call(struct gemm *gemm, int64_t k, bool add, struct call *call)
{
    const struct gemm_shape *s = &gemm->shape;
    const dnnl_dims_t dims[3] = {{s->m, k}, {k, s->n}, {s->m, s->n}};
    const dnnl_dims_t steps[3] = {{s->a_transposed ? 1 : s->lda, s->a_transposed ? s->lda : 1},
                                  {s->b_transposed ? 1 : s->ldb, s->b_transposed ? s->ldb : 1},
                                  {s->ldc, 1}};
    matrix_desc desc[4]; /* A, B, C, and B as stored if it is packed */
    memset(desc, 0, sizeof desc);
    dnnl_primitive_attr_t attr = NULL, plain_attr = NULL;
    dnnl_primitive_desc_t pd = NULL;
    dnnl_status_t status = make_attributes(add, &attr);
    for (int i = 0; i < 3 && status == dnnl_success; i++)
        status = desc_make(&desc[i == 1 && packs_b(s) ? 3 : i], dims[i], steps[i]);
    if (status == dnnl_success && packs_b(s))
        status = desc_make_any(&desc[1], dims[1]);
    if (status == dnnl_success)
        status = find_implementation(gemm->engine, desc, attr, brgemm_fits,
                                     brgemm_bound(s, gemm->threads), &pd);
    if (status == dnnl_success)
        status = dnnl_primitive_create(&call->primitive, pd);
    if (status == dnnl_success)
        status = make_memories(call, gemm->engine, pd);
    if (status == dnnl_success && packs_b(s))
        status = make_attributes(false, &plain_attr);
    if (status == dnnl_success && packs_b(s))
        status = make_pack(call, gemm->engine, desc_view(&desc[3]),
                           dnnl_primitive_desc_query_md(pd, dnnl_query_weights_md, 0),
                           packed_bytes(s), plain_attr);
    if (pd != NULL)
        dnnl_primitive_desc_destroy(pd);
    for (int i = 0; i < 4; i++)
        desc_free(&desc[i]);
    for (int i = 0; i < 2; i++)
        if ((i == 0 ? attr : plain_attr) != NULL)
            dnnl_primitive_attr_destroy(i == 0 ? attr : plain_attr);
    return status;
}

/* With registers of 16 floats our own loops are faster if there are enough rows to pay for packing
 * B.  But their tiles are wide, and a narrow C wastes much of the last one. */
static bool own_loops_win(const struct gemm_shape *shape, const struct cpu_loops *loops)
{
    enum { LANES = 16, LEAST_ROWS = 300 };
    int64_t m = shape->chosen_by_m > 0 ? shape->chosen_by_m : shape->m;
    int64_t n_strips = (shape->n + GEMM_STRIP_COLS - 1) / GEMM_STRIP_COLS;
    bool is_wide = 4 * (n_strips * GEMM_STRIP_COLS - shape->n) <= shape->n;
    return loops->lanes >= LANES && m >= LEAST_ROWS && is_wide;
}

/* Prepares every call that gemm_run can make.  The first piece writes or, if may_add, adds; later
 * pieces add. */
static dnnl_status_t make_calls(struct gemm *gemm)
{
    const struct gemm_shape *s = &gemm->shape;
    int64_t piece = piece_k(s), tail = s->k % piece;
    bool adds = s->may_add || s->k > piece;
    dnnl_status_t status = dnnl_engine_create(&gemm->engine, dnnl_cpu, 0);
    if (status == dnnl_success)
        status = dnnl_stream_create(&gemm->stream, gemm->engine, dnnl_stream_default_flags);
    if (status == dnnl_success)
        status = make_call(gemm, piece, false, &gemm->calls[0][0]);
    if (status == dnnl_success && adds)
        status = make_call(gemm, piece, true, &gemm->calls[0][1]);
    if (status == dnnl_success && tail > 0)
        status = make_call(gemm, tail, true, &gemm->calls[1][1]);
    return status;
}

static void drop_calls(struct gemm *gemm)
{
    for (int i = 0; i < 4; i++) {
        struct call *call = &gemm->calls[i / 2][i % 2];
        dnnl_memory_t memories[5] = {call->a, call->b, call->c, call->scratch, call->as_stored};
        for (int j = 0; j < 5; j++)
            if (memories[j] != NULL)
                dnnl_memory_destroy(memories[j]);
        if (call->primitive != NULL)
            dnnl_primitive_destroy(call->primitive);
        if (call->pack != NULL)
            dnnl_primitive_destroy(call->pack);
        memset(call, 0, sizeof *call);
    }
    if (gemm->stream != NULL)
        dnnl_stream_destroy(gemm->stream);
    if (gemm->engine != NULL)
        dnnl_engine_destroy(gemm->engine);
    gemm->stream = NULL;
    gemm->engine = NULL;
}

/* Probes address space only, without touching the pages. */
static bool has_memory_to_prepare(void)
{
    void *probe = mmap(NULL, PREPARE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return probe != MAP_FAILED && munmap(probe, PREPARE_BYTES) == 0;
}

enum snug_status gemm_prepare(const struct gemm_shape *shape, int threads,
                              const struct cpu_loops *loops, struct gemm **gemm,
                              struct snug_error *err)
{
    struct gemm *prepared = calloc(1, sizeof *prepared);
    *gemm = prepared;
    if (prepared == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "out of memory preparing a matmul");
    prepared->shape = *shape;
    prepared->threads = gemm_threads(shape, threads);
    if (own_loops_win(shape, loops)) {
        prepared->plain = loops;
        return SNUG_OK;
    }
    if (!has_memory_to_prepare()) {
        free(prepared);
        *gemm = NULL;
        return snug_fail(err, SNUG_NO_MEMORY, "too little memory for oneDNN to prepare a matmul");
    }
    cap_instructions();
#if defined(SNUG_OPENMP)
    int threads_before = omp_get_max_threads();
    omp_set_num_threads(prepared->threads); /* oneDNN chooses its blocks for this number now */
#endif
    dnnl_status_t status = make_calls(prepared);
#if defined(SNUG_OPENMP)
    omp_set_num_threads(threads_before);
#endif
    if (status == dnnl_success)
        return SNUG_OK;
    drop_calls(prepared);
    if (status == dnnl_out_of_memory) {
        free(prepared);
        *gemm = NULL;
        return snug_fail(err, SNUG_NO_MEMORY, "oneDNN: out of memory preparing a matmul");
    }
    prepared->plain = loops;
    return SNUG_OK;
}

void gemm_release(struct gemm *gemm)
{
    if (gemm != NULL)
        drop_calls(gemm);
    free(gemm);
}

/* ---- running ------------------------------------------------------------------------------- */

/* oneDNN takes non-const pointers even for inputs. */
static void *writable(const float *data)
{
    union {
        const float *from;
        void *to;
    } both = {data};
    return both.to;
}

static dnnl_status_t execute(dnnl_primitive_t primitive, dnnl_stream_t stream, int n,
                             const dnnl_exec_arg_t args[], void *const data[])
{
    dnnl_status_t status = dnnl_success;
    for (int i = 0; i < n && status == dnnl_success; i++)
        status = dnnl_memory_set_data_handle(args[i].memory, data[i]);
    return status == dnnl_success ? dnnl_primitive_execute(primitive, stream, n, args) : status;
}

/* `packed` is the buffer for a packed B, if B is packed. */
static dnnl_status_t run_call(const struct call *call, dnnl_stream_t stream, const float *a,
                              const float *b, float *c, float *packed, float *scratch)
{
    dnnl_status_t status = dnnl_success;
    if (call->pack != NULL) {
        dnnl_exec_arg_t args[] = {{DNNL_ARG_FROM, call->as_stored}, {DNNL_ARG_TO, call->b}};
        status = execute(call->pack, stream, 2, args, (void *[]){writable(b), packed});
        b = packed;
    }
    dnnl_exec_arg_t args[] = {{DNNL_ARG_SRC, call->a},
                              {DNNL_ARG_WEIGHTS, call->b},
                              {DNNL_ARG_DST, call->c},
                              {DNNL_ARG_SCRATCHPAD, call->scratch}};
    if (status == dnnl_success)
        status = execute(call->primitive, stream, 4, args,
                         (void *[]){writable(a), writable(b), c, scratch});
    return status;
}

enum snug_status gemm_run(const struct gemm *gemm, const float *a, const float *b, float *c,
                          bool add, void *work, struct snug_error *err)
{
    const struct gemm_shape *s = &gemm->shape;
    if (gemm->plain != NULL) {
        gemm->plain->gemm(gemm->threads, s, a, b, c, add, work);
        return SNUG_OK;
    }
    int64_t piece = piece_k(s);
    size_t offset = 0;
    float *packed = work_at(work, work_take(&offset, packed_bytes(s)));
    dnnl_status_t status = dnnl_success;
    for (int64_t at = 0; at < s->k && status == dnnl_success; at += piece) {
        const struct call *call = &gemm->calls[s->k - at < piece][add || at > 0];
        status =
            run_call(call, gemm->stream, a + at * (s->a_transposed ? s->lda : 1),
                     b + at * (s->b_transposed ? 1 : s->ldb), c, packed, work_at(work, offset));
    }
    if (status == dnnl_success)
        status = dnnl_stream_wait(gemm->stream);
    if (status != dnnl_success)
        return snug_fail(err, status == dnnl_out_of_memory ? SNUG_NO_MEMORY : SNUG_UNSUPPORTED,
                         "oneDNN: a matmul of %lld x %lld by %lld x %lld failed with status %d",
                         (long long)s->m, (long long)s->k, (long long)s->k, (long long)s->n,
                         (int)status);
    return SNUG_OK;
}

void gemm_describe(struct text *out)
{
    const dnnl_version_t *version = dnnl_version();
    text_add(out, "oneDNN %d.%d.%d%s\n", version->major, version->minor, version->patch,
             cpu_hides_tile_palettes() ? ", limited to AVX-512 (no AMX tile palettes reported)"
                                       : "");
}

#endif
