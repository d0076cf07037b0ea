/*
 * matrix.cu -- what the optimizers that work on whole matrices do between products.
 */
#include "cuda/device.h"
#include "cuda/matrix.h"
#include "ir/program.h"

/* ---- muon ------------------------------------------------------------------------------------ */

struct muon_mix {
    float clip, keep, rest;
};

DEVICE struct muon_mix muon_mix(double mu, const double *scalars)
{
    struct muon_mix mix = {(float)scalars[SCALAR_clip], (float)mu, (float)(1 - mu)};
    return mix;
}

DEVICE float muon_u(const struct muon_mix *mix, float g, float m)
{
    return mix->rest * g + mix->keep * m;
}

KERNEL muon_momentum(double mu, const double *scalars, int64_t n, struct cuda_array g, float *m,
                     double *parts)
{
    if (scalars[SCALAR_skip] != 0.0)
        return;
    const struct muon_mix mix = muon_mix(mu, scalars);
    double squares = 0.0;
    EACH_OF(part_of(n))
    {
        float now = load(g.dtype, g.data, i) * mix.clip;
        m[i] = mix.keep * m[i] + mix.rest * now;
        double u = (double)muon_u(&mix, now, m[i]);
        squares += u * u;
    }
    squares = block_sum(squares);
    if (threadIdx.x == 0)
        parts[blockIdx.x] = squares;
}

KERNEL muon_begin(double mu, const double *scalars, int64_t n, struct cuda_array g, const float *m,
                  const double *parts, uint16_t *x)
{
    if (scalars[SCALAR_skip] != 0.0)
        return;
    const struct muon_mix mix = muon_mix(mu, scalars);
    const float factor = (float)(1 / fmax(sqrt(sum_parts(parts, parts_count(n), 1)), 1e-7));
    EACH_OF(part_of(n))
    {
        float now = load(g.dtype, g.data, i) * mix.clip;
        x[i] = to_bf16(factor * muon_u(&mix, now, m[i]));
    }
}

KERNEL muon_end(const double *scalars, int64_t n, const uint16_t *x, struct cuda_array u)
{
    bool skip = scalars[SCALAR_skip] != 0.0;
    EACH_OF(part_of(n))
    store(u.dtype, u.data, i, skip ? 0.0f : bf16_to_f32(x[i]));
}

int cuda_muon_momentum(double mu, const double *scalars, int64_t n, struct cuda_array g, float *m,
                       double *parts, void *stream)
{
    return launch(muon_momentum, (unsigned)parts_count(n), PART_BLOCK, 0, stream, mu, scalars, n, g,
                  m, parts);
}

int cuda_muon_begin(double mu, const double *scalars, int64_t n, struct cuda_array g,
                    const float *m, const double *parts, uint16_t *x, void *stream)
{
    return launch(muon_begin, (unsigned)parts_count(n), PART_BLOCK, 0, stream, mu, scalars, n, g, m,
                  parts, x);
}

int cuda_muon_end(const double *scalars, int64_t n, const uint16_t *x, struct cuda_array u,
                  void *stream)
{
    return launch(muon_end, (unsigned)parts_count(n), PART_BLOCK, 0, stream, scalars, n, x, u);
}
