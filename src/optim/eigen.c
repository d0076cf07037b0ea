/*
 * eigen.c -- eigenvectors by LAPACK's divide and conquer or by Jacobi rotations; orthonormal rows
 * by Householder reflections, LAPACK's or our own.
 *
 * LAPACK is loaded when an op that needs it is prepared.  Most systems provide it as OpenBLAS,
 * which starts threads and allocates memory as soon as it is loaded, and most runs do not need it.
 */
#include "optim/eigen.h"

#include <math.h>
#include <string.h>
#if defined(SNUG_LAPACK)
#include <dlfcn.h>
#include <pthread.h>
#endif

#include "base/text.h"

enum { MAX_SWEEPS = 60, QR_BLOCK = 64 /* workspace columns for LAPACK's blocked QR */ };

/* The workspace of ?syevd with vectors.  Together with an fp64 copy of the matrix and its values it
 * covers our own loops, which need two matrices. */
static size_t real_work_elems(int64_t n)
{
    return 1 + 6 * (size_t)n + 2 * (size_t)n * (size_t)n;
}

static size_t integer_work_elems(int64_t n)
{
    return 3 + 5 * (size_t)n;
}

size_t spectral_work_bytes(int64_t n)
{
    size_t doubles = (size_t)n * (size_t)n + (size_t)n + real_work_elems(n) + QR_BLOCK * (size_t)n;
    return doubles * sizeof(double) + integer_work_elems(n) * sizeof(int);
}

static void widen(int64_t n, const float *from, double *to)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = (double)from[i];
}

static void narrow(int64_t n, const double *from, float *to)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = (float)from[i];
}

/* ---- our own loops --------------------------------------------------------------------------- */

/* Rotates rows and columns p and q of a so that a[p][q] becomes 0; rotates rows p and q of v. */
static void rotate(int64_t n, double *a, double *v, int64_t p, int64_t q)
{
    double theta = (a[q * n + q] - a[p * n + p]) / (2 * a[p * n + q]);
    double tangent = copysign(1, theta) / (fabs(theta) + sqrt(theta * theta + 1));
    double c = 1 / sqrt(tangent * tangent + 1), s = tangent * c;
    for (int64_t k = 0; k < n; k++) {
        double of_p = a[p * n + k], of_q = a[q * n + k], v_p = v[p * n + k], v_q = v[q * n + k];
        a[p * n + k] = c * of_p - s * of_q;
        a[q * n + k] = s * of_p + c * of_q;
        v[p * n + k] = c * v_p - s * v_q;
        v[q * n + k] = s * v_p + c * v_q;
    }
    for (int64_t k = 0; k < n; k++) {
        double of_p = a[k * n + p], of_q = a[k * n + q];
        a[k * n + p] = c * of_p - s * of_q;
        a[k * n + q] = s * of_p + c * of_q;
    }
    a[p * n + q] = a[q * n + p] = 0;
}

/* Cyclic Jacobi: the vectors are written to v, the values to the diagonal of a. */
static bool jacobi(int64_t n, double *a, double *v)
{
    memset(v, 0, (size_t)n * (size_t)n * sizeof *v);
    for (int64_t i = 0; i < n; i++)
        v[i * n + i] = 1;
    for (int sweep = 0; sweep < MAX_SWEEPS; sweep++) {
        double all = 0, off = 0;
        for (int64_t i = 0; i < n * n; i++) {
            all += a[i] * a[i];
            off += i / n != i % n ? a[i] * a[i] : 0;
        }
        if (!isfinite(all))
            return false;
        if (off <= 1e-30 * all)
            return true;
        for (int64_t p = 0; p < n; p++)
            for (int64_t q = p + 1; q < n; q++)
                if (a[p * n + q] != 0)
                    rotate(n, a, v, p, q);
    }
    return false;
}

bool eigen_f64(int64_t n, double *a, double *values, void *work)
{
    double *v = work;
    if (!jacobi(n, a, v))
        return false;
    for (int64_t i = 0; i < n; i++)
        values[i] = a[i * n + i];
    memcpy(a, v, (size_t)n * (size_t)n * sizeof *a);
    return true;
}

static double dot(int64_t n, const double *a, const double *b)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

/* row -= factor (v.row) v */
static void reflect(int64_t n, double factor, const double *v, double *row)
{
    double s = factor * dot(n, v, row);
    for (int64_t i = 0; i < n; i++)
        row[i] -= s * v[i];
}

/* Reflection k zeroes row k after element k.  Its vector is stored in row k from element k on. */
bool orthonormal_f64(int64_t n, double *z, void *work)
{
    double *q = work, *factors = q + n * n;
    for (int64_t k = 0; k < n; k++) {
        double *v = z + k * n + k, size = sqrt(dot(n - k, v, v));
        if (!isfinite(size))
            return false;
        v[0] += copysign(size, v[0]);
        factors[k] = size > 0 ? 2 / dot(n - k, v, v) : 0;
        for (int64_t j = k + 1; j < n; j++)
            reflect(n - k, factors[k], v, z + j * n + k);
    }
    memset(q, 0, (size_t)n * (size_t)n * sizeof *q);
    for (int64_t k = n - 1; k >= 0; k--) {
        q[k * n + k] = 1;
        for (int64_t j = k; j < n; j++)
            reflect(n - k, factors[k], z + k * n + k, q + j * n + k);
    }
    memcpy(z, q, (size_t)n * (size_t)n * sizeof *z);
    return true;
}

static bool own_eigen_f32(int64_t n, float *a, float *values, void *work)
{
    double *wide = work, *wide_values = wide + n * n;
    widen(n * n, a, wide);
    if (!eigen_f64(n, wide, wide_values, wide_values + n))
        return false;
    narrow(n * n, wide, a);
    narrow(n, wide_values, values);
    return true;
}

static bool own_orthonormal_f32(int64_t n, float *z, void *work)
{
    double *wide = work;
    widen(n * n, z, wide);
    if (!orthonormal_f64(n, wide, wide + n * n))
        return false;
    narrow(n * n, wide, z);
    return true;
}

/* ---- LAPACK ---------------------------------------------------------------------------------- */

/* Fortran calling convention: all arguments by address, string lengths last. */
typedef void ssyevd_fn(const char *job, const char *half, const int *n, float *a, const int *lda,
                       float *w, float *work, const int *n_work, int *integers,
                       const int *n_integers, int *info, size_t job_length, size_t half_length);
typedef void dsyevd_fn(const char *job, const char *half, const int *n, double *a, const int *lda,
                       double *w, double *work, const int *n_work, int *integers,
                       const int *n_integers, int *info, size_t job_length, size_t half_length);
typedef void sgeqrf_fn(const int *m, const int *n, float *a, const int *lda, float *tau,
                       float *work, const int *n_work, int *info);
typedef void sorgqr_fn(const int *m, const int *n, const int *k, float *a, const int *lda,
                       const float *tau, float *work, const int *n_work, int *info);
typedef int get_threads_fn(void);
typedef void set_threads_fn(int threads);

static struct lapack {
    const char *name; /* of the library; NULL: not loaded */
    ssyevd_fn *ssyevd;
    dsyevd_fn *dsyevd;
    sgeqrf_fn *sgeqrf;
    sorgqr_fn *sorgqr;
    get_threads_fn *get_threads; /* OpenBLAS only, else NULL */
    set_threads_fn *set_threads;
} lapack;

#if defined(SNUG_LAPACK)
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* memcpy, because ISO C has no cast from a data pointer to a function pointer. */
static bool find(void *library, const char *name, void *function, size_t size)
{
    void *found = dlsym(library, name);
    memcpy(function, &found, size);
    return found != NULL;
}
#define FIND(library, name, function) find(library, name, &(function), sizeof(function))

static void load(void)
{
    static const char *const names[] = {"libopenblas.so.0", "liblapack.so.3"};
    for (int i = 0; i < 2 && lapack.name == NULL; i++) {
        void *library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
        if (library == NULL)
            continue;
        bool is_whole =
            FIND(library, "ssyevd_", lapack.ssyevd) && FIND(library, "dsyevd_", lapack.dsyevd) &&
            FIND(library, "sgeqrf_", lapack.sgeqrf) && FIND(library, "sorgqr_", lapack.sorgqr);
        bool has_threads = FIND(library, "openblas_get_num_threads", lapack.get_threads) &&
                           FIND(library, "openblas_set_num_threads", lapack.set_threads);
        if (!has_threads)
            lapack.get_threads = NULL;
        if (is_whole)
            lapack.name = names[i];
        else
            dlclose(library);
    }
}

void spectral_load(void)
{
    pthread_once(&once, load);
}
#else
void spectral_load(void)
{
}
#endif

/* Sets OpenBLAS's thread count and returns the previous one.  We run it on one thread, so results
 * do not depend on the number of threads. */
static int set_lapack_threads(int threads)
{
    if (lapack.get_threads == NULL)
        return threads;
    int before = lapack.get_threads();
    if (before != threads)
        lapack.set_threads(threads);
    return before;
}

static bool all_finite(int64_t n, const float *x)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += fabs((double)x[i]);
    return isfinite(sum);
}

/* LAPACK is column-major: a symmetric matrix is unchanged by that, and its eigenvectors come out as
 * our rows. */
bool eigen_f32(int64_t n, float *a, float *values, bool quick, bool vectors, void *work)
{
    double *wide = work, *wide_values = wide + n * n, *reals = wide_values + n;
    int *integers = (int *)(void *)(reals + real_work_elems(n));
    int side = (int)n, n_reals = (int)real_work_elems(n), n_integers = (int)integer_work_elems(n);
    int info = 1;
    const char *job = vectors ? "V" : "N";
    if (!all_finite(n * n, a))
        return false;
    if (lapack.name == NULL)
        return own_eigen_f32(n, a, values, work);
    int threads_before = set_lapack_threads(1);
    widen(n * n, a, wide);
    if (quick)
        lapack.ssyevd(job, "L", &side, a, &side, values, (float *)(void *)reals, &n_reals, integers,
                      &n_integers, &info, 1, 1);
    if (info != 0 || !all_finite(n, values) || !all_finite(n * n, a)) {
        lapack.dsyevd(job, "L", &side, wide, &side, wide_values, reals, &n_reals, integers,
                      &n_integers, &info, 1, 1);
        narrow(n * n, wide, a);
        narrow(n, wide_values, values);
    }
    (void)set_lapack_threads(threads_before);
    return info == 0 && all_finite(n, values) && all_finite(n * n, a);
}

bool orthonormal_f32(int64_t n, float *z, void *work)
{
    float *tau = work, *reals = tau + n;
    int side = (int)n, n_reals = (int)(QR_BLOCK * n), info = 0;
    if (!all_finite(n * n, z))
        return false;
    if (lapack.name == NULL)
        return own_orthonormal_f32(n, z, work);
    int threads_before = set_lapack_threads(1);
    lapack.sgeqrf(&side, &side, z, &side, tau, reals, &n_reals, &info);
    if (info == 0)
        lapack.sorgqr(&side, &side, &side, z, &side, tau, reals, &n_reals, &info);
    (void)set_lapack_threads(threads_before);
    return info == 0 && all_finite(n * n, z);
}

void spectral_describe(struct text *out)
{
    spectral_load();
    if (lapack.name != NULL)
        text_add(out, "LAPACK (%s): eigenvectors for shampoo, caspr, soap; one thread\n",
                 lapack.name);
    else
        text_add(out, "without LAPACK: shampoo, caspr and soap use snug's own, slower loops\n");
}
