/*
 * simd_matrix.c -- the matrix optimizers in fp32, on prepared matmuls (gemm.h).
 *
 * The matmuls have a few shapes that follow from the shape of the weight.  All are prepared before
 * the first step and looked up by shape when run.  On a CPU with tiles (gemm_bf16.h), matmuls of
 * values that are already rounded to bf16 run on 16-bit copies.  Sums are fp32 in either case.
 */
#include <stdlib.h>

#include "cpu/cpu_isa.h"
#include "cpu/simd/simd_common.h"
#include "cpu/gemm/gemm_bf16.h"

#define MATRIX_REAL float
#define REAL_DTYPE  DTYPE_f32

static void read_reals(const struct operand *x, int64_t at, int64_t n, float *to)
{
    load_f32(x->tensor->dtype, x->data, at, n, to);
}

static void write_reals(const struct operand *x, int64_t at, int64_t n, const float *from)
{
    store_f32(x->tensor->dtype, x->data, at, n, from);
}

static inline float round_bf16(float x)
{
    uint32_t bits = float_bits(x);
    uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
    rounded = (bits & 0x7fffffffu) > 0x7f800000u ? bits | 0x400000u : rounded;
    return bits_float(rounded & 0xffff0000u);
}

#define root_of     sqrtf
#define eigen       eigen_f32
#define orthonormal orthonormal_f32

#include "cpu/matrix/cpu_matrix_tools.h"

/* ---- matmuls -------------------------------------------------------------------------------- */

struct gemms {
    struct factors_list list;
    struct gemm *made[MOST_GEMMS];
    const struct cpu_loops *loops;
    gemm_bf16_fn *gemm_bf16; /* NULL without tiles */
};

static struct gemm_shape shape_of(const struct factors *f)
{
    return (struct gemm_shape){.m = f->m,
                               .n = f->n,
                               .k = f->k,
                               .a_transposed = f->transposed == A_TRANSPOSED,
                               .b_transposed = f->transposed == B_TRANSPOSED,
                               .lda = f->transposed == A_TRANSPOSED ? f->m : f->k,
                               .ldb = f->transposed == B_TRANSPOSED ? f->k : f->n,
                               .ldc = f->n};
}

static enum snug_status multiply(const struct tools *t, const struct factors *f, const float *a,
                                 const float *b, float *c)
{
    const struct gemms *gemms = t->call->prepared;
    int at = factors_find(&gemms->list, f);
    if (at < 0)
        return snug_fail(
            t->err, SNUG_BAD_PROGRAM, "%s: no matmul of %lld x %lld x %lld was prepared",
            op_infos[t->call->op->kind].name, (long long)f->m, (long long)f->k, (long long)f->n);
    return gemm_run(gemms->made[at], a, b, c, false, work_at(t->call->work, t->after), t->err);
}

/* Workspace of a tiled matmul: the 16-bit copies of both operands, then that of the gemm. */
static size_t gemm_bf16_bytes(const struct factors *f, int threads, size_t *b, size_t *work)
{
    struct gemm_shape shape = shape_of(f);
    size_t total = 0;
    work_take(&total, (size_t)(f->m * f->k) * sizeof(uint16_t));
    *b = work_take(&total, (size_t)(f->k * f->n) * sizeof(uint16_t));
    *work = work_take(&total, gemm_bf16_plan(&shape, threads).total);
    return total;
}

/* A matmul of operands whose values are already rounded to bf16. */
static enum snug_status multiply_bf16(const struct tools *t, const struct factors *f,
                                      const float *a, const float *b, float *c)
{
    const struct gemms *gemms = t->call->prepared;
    size_t at_b, at_work;
    if (gemms->gemm_bf16 == NULL)
        return multiply(t, f, a, b, c);
    (void)gemm_bf16_bytes(f, t->threads, &at_b, &at_work);
    char *work = (char *)t->call->work + t->after;
    struct span to_a = {DTYPE_bf16, work, 0}, to_b = {DTYPE_bf16, work + at_b, 0};
    gemms->loops->narrow(t->threads, to_a, f->m * f->k, a, false);
    if (b != a)
        gemms->loops->narrow(t->threads, to_b, f->k * f->n, b, false);
    struct gemm_bf16_out out = {.how = FINISH_store, .pitch = f->n, .y = {DTYPE_f32, c, 0}};
    struct gemm_shape shape = shape_of(f);
    gemms->gemm_bf16(t->threads, &shape, to_a.data, b != a ? to_b.data : to_a.data, &out,
                     work + at_work);
    return SNUG_OK;
}

/* ---- the ops --------------------------------------------------------------------------------- */

#include "cpu/matrix/matrix_ops.h"

/* The most workspace that any of these matmuls needs. */
static size_t gemms_bytes(const struct factors_list *list, int threads)
{
    size_t most = 0;
    for (int i = 0; i < list->n; i++) {
        struct gemm_shape shape = shape_of(&list->at[i]);
        size_t bytes = gemm_work_bytes(&shape, threads);
        most = bytes > most ? bytes : most;
    }
    return most;
}

static struct factors_list muon_gemms(const struct muon_layout *l)
{
    struct factors_list list = {0};
    factors_add(&list, &l->gram);
    factors_add(&list, &l->square);
    factors_add(&list, &l->times);
    return list;
}

static struct factors_list gemms_of_blocks(const struct blocks_layout *l)
{
    struct factors_list list = {0};
    blocks_gemms(&l->w, &list);
    return list;
}

static struct factors_list soap_gemms(const struct soap_layout *l)
{
    struct factors_list list = {0};
    factors_add_sides(&list, l->rows, l->cols, l->rotates_left, l->rotates_right);
    return list;
}

static size_t orthogonalize_workspace(const struct program *prog, const struct op *op,
                                      const struct device_facts *facts)
{
    struct muon_layout l = planned_muon(prog, op);
    struct factors_list list = muon_gemms(&l);
    size_t most = gemms_bytes(&list, facts->threads), b, work;
    for (int i = 0; i < list.n; i++) {
        size_t bytes = gemm_bf16_bytes(&list.at[i], facts->threads, &b, &work);
        most = bytes > most ? bytes : most;
    }
    return l.total + most;
}

static size_t blocks_workspace(const struct program *prog, const struct op *op,
                               const struct device_facts *facts)
{
    struct blocks_layout l = planned_blocks(prog, op);
    struct factors_list list = gemms_of_blocks(&l);
    return l.total + gemms_bytes(&list, facts->threads);
}

static size_t soap_workspace(const struct program *prog, const struct op *op,
                             const struct device_facts *facts)
{
    struct soap_layout l = planned_soap(prog, op);
    struct factors_list list = soap_gemms(&l);
    return l.total + gemms_bytes(&list, facts->threads);
}

static void release(void *prepared)
{
    struct gemms *p = prepared;
    for (int i = 0; p != NULL && i < p->list.n; i++)
        gemm_release(p->made[i]);
    free(p);
}

/* Prepares the matmuls, unless tiles run them. */
static enum snug_status prepare_gemms(const struct op *op, const struct factors_list *list,
                                      const struct device_facts *facts, gemm_bf16_fn *gemm_bf16,
                                      void **prepared, struct snug_error *err)
{
    struct gemms *p = calloc(1, sizeof *p);
    if (p == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "%s: out of memory preparing the op",
                         op_infos[op->kind].name);
    p->list = *list;
    p->loops = facts->isa->loops;
    p->gemm_bf16 = gemm_bf16;
    enum snug_status status = SNUG_OK;
    for (int i = 0; i < p->list.n && gemm_bf16 == NULL && status == SNUG_OK; i++) {
        struct gemm_shape shape = shape_of(&p->list.at[i]);
        status = gemm_prepare(&shape, facts->threads, p->loops, &p->made[i], err);
    }
    if (status == SNUG_OK)
        *prepared = p;
    else
        release(p);
    return status;
}

static enum snug_status prepare_orthogonalize(const struct program *prog, const struct op *op,
                                              const struct device_facts *facts, void **prepared,
                                              struct snug_error *err)
{
    struct muon_layout l = planned_muon(prog, op);
    struct factors_list list = muon_gemms(&l);
    return prepare_gemms(op, &list, facts, facts->isa->gemm_bf16, prepared, err);
}

static enum snug_status prepare_blocks(const struct program *prog, const struct op *op,
                                       const struct device_facts *facts, void **prepared,
                                       struct snug_error *err)
{
    struct blocks_layout l = planned_blocks(prog, op);
    struct factors_list list = gemms_of_blocks(&l);
    spectral_load();
    return prepare_gemms(op, &list, facts, NULL, prepared, err);
}

static enum snug_status prepare_soap(const struct program *prog, const struct op *op,
                                     const struct device_facts *facts, void **prepared,
                                     struct snug_error *err)
{
    struct soap_layout l = planned_soap(prog, op);
    struct factors_list list = soap_gemms(&l);
    spectral_load();
    return prepare_gemms(op, &list, facts, NULL, prepared, err);
}

static bool fits(const struct program *prog, const struct op *op)
{
    return floats_fit(prog, op, 1u << MATRIX_SCALARS, 0, 0);
}

static enum snug_status run_orthogonalize(const struct kernel_call *call, struct snug_error *err)
{
    struct tools t = {.call = call, .threads = call->facts->threads, .err = err};
    return step_orthogonalize(&t);
}

static enum snug_status run_blocks(const struct kernel_call *call, struct snug_error *err)
{
    struct tools t = {.call = call, .threads = call->facts->threads, .err = err};
    return step_blocks(&t);
}

static enum snug_status run_soap(const struct kernel_call *call, struct snug_error *err)
{
    struct tools t = {.call = call, .threads = call->facts->threads, .err = err};
    return step_soap(&t);
}

static const struct kernel kernels[] = {
#define KERNEL(op_kind, family)                                                                 \
    {                                                                                           \
        .kind = OP_##op_kind, .name = KERNEL_NAME, .supports = fits,                            \
        .workspace_bytes = family##_workspace, .prepare = prepare_##family, .release = release, \
        .run = run_##family                                                                     \
    }
    KERNEL(orthogonalize, orthogonalize),
    KERNEL(shampoo, blocks),
    KERNEL(caspr, blocks),
    KERNEL(soap, soap),
#undef KERNEL
};

const struct kernel *LEVEL(simd_matrix_kernels)(int *n_kernels)
{
    *n_kernels = (int)(sizeof kernels / sizeof *kernels);
    return kernels;
}
