/*
 * backend.h -- what a device must offer: a table of kernels, and memory to put a plan in.
 *
 * A kernel is asked three times: when planned, how much workspace it wants (a function of shapes
 * and of the declared device, nothing else); before the first step, to prepare (make JIT code,
 * library handles; may allocate); in a step, to run (may not allocate).
 */
#ifndef SNUG_EXEC_BACKEND_H
#define SNUG_EXEC_BACKEND_H

#include "ir/kernel_choice.h"
#include "ir/program.h"

struct cpu_isa;
struct device; /* a device that is open: its streams, the handles of its libraries */

struct device_facts { /* declared, so that a plan can be made anywhere */
    int threads;
    bool reference_only; /* plain loops for every op */
    /* The CPU's instructions, found when a step is compiled; NULL: by whoever needs them (cpu/cpu_isa.h). */
    const struct cpu_isa *isa;
    /* Of the rows that can run an op, the one that books least: for a program that is to fit a given arena. */
    bool least_workspace;
    bool nondeterministic; /* the order of sums may change from run to run, if that is faster */
    /* Where an offload pool that is a file is made; NULL: the system's folder for temporary files. */
    const char *pool_folder;
    /* What backend->open gave, for prepare and run; NULL while planning, and on the CPU. */
    struct device *device;
    struct comm *comm;          /* the ranks that this one runs with; NULL: it is alone, or plans */
    struct comm *const *groups; /* of them, by enum collective_group; NULL: all is the only one */
    int first_micro; /* what is random counts micro-batches over all ranks: the number of the first here */
};

/* Memory outside the device, for tensors that are offloaded.  Any thread may call. */
struct offload_pool {
    enum snug_status (*read)(struct offload_pool *pool, int64_t at, void *to, int64_t n_bytes,
                             struct snug_error *err);
    enum snug_status (*write)(struct offload_pool *pool, int64_t at, const void *from,
                              int64_t n_bytes, struct snug_error *err);
    void (*close)(struct offload_pool *pool);
};

struct comm;

/* Carries out an op together with the other ranks. */
struct kernel_call;
struct collective_runner {
    enum snug_status (*run)(struct collective_runner *collective_runner,
                            const struct kernel_call *call, struct snug_error *err);
};

struct operand {
    void *data;                  /* NULL: left out, or stored */
    const struct tensor *tensor; /* NULL: left out */
    int64_t pool_offset;         /* its place in the offload pool */
    /* Of a part, or of a copy in staging: whose numbers these are, and where in it they begin, so
     * that random numbers do not depend on where a tensor lies.  NULL: its own. */
    const char *whole_name;
    int64_t whole_from;
};

static inline const char *operand_name(const struct operand *x)
{
    return x->whole_name != NULL ? x->whole_name : x->tensor->name;
}

struct kernel_call {
    const struct op *op;
    const struct device_facts *facts;
    struct operand in[MAX_INPUTS], out[MAX_OUTPUTS];
    void *work;     /* as many bytes as workspace_bytes said, 64-byte aligned; NULL if it said 0 */
    void *prepared; /* what prepare made */
    bool add;       /* outputs that accumulate: += (true) or = (false) */
    /* Which micro-batch of the step, from 0.  On a GPU a recorded run is recomputed for another one,
     * so kernels read scalars[SCALAR_micro] instead, and add op->micro. */
    int micro;
    void *stream;                                /* of the device; NULL on the CPU */
    struct offload_pool *pool;                   /* NULL: nothing is offloaded */
    struct collective_runner *collective_runner; /* NULL: there are no other ranks */
};

/* For kernels of update: are the rule's states there? */
static inline enum snug_status update_check_states(const struct kernel_call *call, int n_states,
                                                   struct snug_error *err)
{
    for (int j = 0; j < n_states; j++)
        if (update_n_states(call->op) != n_states || call->in[UPDATE_STATES + 2 * j].data == NULL)
            return snug_fail(err, SNUG_BAD_PROGRAM, "update of \"%s\": the rule has %d states",
                             call->in[UPDATE_WEIGHT].tensor->name, n_states);
    return SNUG_OK;
}

struct kernel {
    enum op_kind kind;
    const char *name; /* of the row: "reference", "avx512", "onednn"... */
    /* NULL: every case of the op. */
    bool (*supports)(const struct program *prog, const struct op *op);
    size_t (*workspace_bytes)(const struct program *prog, const struct op *op,
                              const struct device_facts *facts); /* NULL: none */
    /* May output 0 lie on no input, though the op allows it?  NULL: it may. */
    bool (*no_alias)(const struct program *prog, const struct op *op);
    /* Of an op that may sum the columns of output 0 besides (dsum), and here does: is that nearly
     * free?  NULL: it is not. */
    bool (*sums_columns)(const struct program *prog, const struct op *op);
    enum snug_status (*prepare)(const struct program *prog, const struct op *op,
                                const struct device_facts *facts, void **prepared,
                                struct snug_error *err); /* NULL: nothing to prepare */
    void (*release)(void *prepared);
    enum snug_status (*run)(const struct kernel_call *call, struct snug_error *err);
    /* NULL: one call at a time.  Else the first of n calls of this row, one after another in the program,
     * with as many of the next as go together with it: *n_run in all. */
    enum snug_status (*run_several)(const struct kernel_call *calls, int n, int *n_run,
                                    struct snug_error *err);
};

typedef const struct kernel *kernels_fn(int *n_rows); /* a family of rows */

/* The kernels of a backend are numbered from 1, through all its families.  Kernel `number`; NULL: there is none. */
static inline const struct kernel *kernels_at(kernels_fn *const *families, int n_families,
                                              int number)
{
    int left = number - 1;
    for (int f = 0; f < n_families && left >= 0; f++) {
        int n_rows = 0;
        const struct kernel *rows = families[f](&n_rows);
        if (left < n_rows)
            return &rows[left];
        left -= n_rows;
    }
    return NULL;
}

/* The number of the first kernel of the kind in families [begin, end), or 0; prog NULL: whatever it supports. */
static inline int kernels_find(kernels_fn *const *families, int begin, int end,
                               const struct program *prog, const struct op *op, enum op_kind kind)
{
    int n_before = 0;
    for (int f = 0; f < end; f++) {
        int n_rows = 0;
        const struct kernel *rows = families[f](&n_rows);
        for (int i = 0; f >= begin && i < n_rows; i++)
            if (rows[i].kind == kind &&
                (prog == NULL || rows[i].supports == NULL || rows[i].supports(prog, op)))
                return n_before + i + 1;
        n_before += n_rows;
    }
    return 0;
}

struct run_modes { /* what run_begin found in the calling thread, for run_end to give back */
    int threads;
    bool dynamic_threads;
    unsigned float_mode;
};

struct device_limits { /* what the device can do at best, per second */
    double f32_flops;
    double bf16_flops; /* of tile instructions; 0: none, matmuls widen to fp32 */
    /* copy, update in place: read and written bytes together; update spares what a store to other
     * lines costs, and no op can do better */
    double read_bytes, copy_bytes, update_bytes;
};

/* What a device may know that lets ranks exchange without the host: NCCL.  Every rank has a device of its
 * own then.  Work is put on the stream of the call, like a kernel's. */
struct direct; /* the ranks, from device to device */
enum { DIRECT_ID_BYTES = 128, DEVICE_TEXT_MAX = 96 };
struct direct_hooks {
    /* Is it there?  What it is ("NCCL 2.27.3"), or why not. */
    bool (*find)(char text[DEVICE_TEXT_MAX]);
    /* Made by one rank, known to all before any of them opens. */
    enum snug_status (*make_id)(unsigned char id[DIRECT_ID_BYTES], struct snug_error *err);
    enum snug_status (*open)(struct device *device, const unsigned char id[DIRECT_ID_BYTES],
                             int rank, int n_ranks, struct direct **direct, struct snug_error *err);
    /* all_reduce, reduce_scatter, all_gather; work_bytes: of call->work, the same on all ranks */
    enum snug_status (*run)(struct direct *direct, const struct kernel_call *call,
                            int64_t work_bytes, struct snug_error *err);
    /* Bytes to one rank and from another, at once; a size of 0: not that way. */
    enum snug_status (*pass)(struct direct *direct, int to, const void *out, int64_t out_bytes,
                             int from, void *in, int64_t in_bytes, void *stream,
                             struct snug_error *err);
    /* Has something failed that was put on a stream?  Does not wait. */
    enum snug_status (*check)(struct direct *direct, struct snug_error *err);
    /* What is under way ends, done or not, and nothing follows; from then on only close may be called. */
    void (*abort)(struct direct *direct);
    void (*close)(struct direct *direct); /* after all recordings with collectives are freed */
};

struct recording; /* a section's work on all streams, to be done again */

/* Of a backend whose memory is not the host's: only its kernels and copies touch the arena.  Work is put
 * on streams and done in their order; events order them. */
struct device_hooks {
    int (*count)(void); /* of this process; 0: none, and open says why */
    enum snug_status (*open)(int number, struct device **device, struct snug_error *err);
    void (*close)(struct device *device);
    /* Its name, and where it sits in its machine: the same text in every process. */
    void (*identify)(struct device *device, char name[DEVICE_TEXT_MAX],
                     char place[DEVICE_TEXT_MAX]);
    int (*number)(struct device *device);   /* as it was opened */
    void (*use)(struct device *device);     /* what the calling thread does is for this one */
    void *(*stream)(struct device *device); /* of kernels */
    void *(*copy_stream)(
        struct device *device); /* of copies from the offload pool, and of collectives */
    /* of copies to the offload pool, and of what is sent to the next rank and the one before */
    void *(*evict_stream)(struct device *device);
    void *(*far_stream)(struct device *device); /* of what is sent further */
    /* All work of the streams is done; a failure of any of it is reported here at the latest. */
    enum snug_status (*synchronize)(struct device *device, struct snug_error *err);
    /* Whether it is; does not wait. */
    enum snug_status (*is_done)(struct device *device, bool *done, struct snug_error *err);

    /* Host memory that copies are fast from and to; NULL: there is no more. */
    void *(*alloc_host)(size_t bytes);
    void (*release_host)(void *block);
    /* Put on the stream of kernels; the host's side is alloc_host's, and in use until then. */
    enum snug_status (*push)(struct device *device, void *to, const void *from, int64_t n_bytes,
                             struct snug_error *err);
    enum snug_status (*pull)(struct device *device, void *to, const void *from, int64_t n_bytes,
                             struct snug_error *err);
    enum snug_status (*clear)(struct device *device, void *to, int64_t n_bytes,
                              struct snug_error *err);
    /* Put on the stream of copies, for collectives through the host: either way; to += from, both of the
     * device; and the host waits for all of them. */
    enum snug_status (*copy)(struct device *device, void *to, const void *from, int64_t n_bytes,
                             struct snug_error *err);
    enum snug_status (*add)(struct device *device, enum dtype dtype, void *to, const void *from,
                            int64_t n_elems, struct snug_error *err);
    enum snug_status (*finish_copies)(struct device *device, struct snug_error *err);
    enum snug_status (*set_scalar)(struct device *device, double *at, double value,
                                   struct snug_error *err);
    /* At once, from any memory of the host and from any of its threads. */
    enum snug_status (*read)(struct device *device, const void *from, void *to, int64_t n_bytes,
                             struct snug_error *err);
    enum snug_status (*write)(struct device *device, void *to, const void *from, int64_t n_bytes,
                              struct snug_error *err);

    enum snug_status (*event_make)(void **event, struct snug_error *err);
    void (*event_free)(void *event);
    enum snug_status (*event_record)(void *event, void *stream, struct snug_error *err);
    enum snug_status (*event_wait)(void *stream, void *event, struct snug_error *err);
    enum snug_status (*event_finish)(void *event, struct snug_error *err); /* the host waits */
    enum snug_status (*event_is_done)(void *event, bool *done, struct snug_error *err);
    double (*event_seconds)(void *begin, void *end); /* both are done */

    /* What is put on the streams in between is kept, not done. */
    enum snug_status (*record_begin)(struct device *device, struct snug_error *err);
    enum snug_status (*record_end)(struct device *device, struct recording **recording,
                                   struct snug_error *err);
    enum snug_status (*replay)(struct device *device, struct recording *recording,
                               struct snug_error *err);
    void (*recording_free)(struct recording *recording);

    int64_t (*used_bytes)(void); /* of the device's memory, by everybody */
    const struct direct_hooks *direct;
    int64_t (*memory_bytes)(int number); /* all that a device has, without opening it; 0: unknown */
};

struct backend {
    const char *version; /* of a plugin, as it was built: first, so that others can read it */
    const char *name;
    int alignment; /* of every tensor in the arena, bytes */
    /* The number of the kernel that runs this op, from 1 and the same in the library and in a plugin of the same
     * version; 0 if the backend has none.  Asked when a step is compiled, and kept in the op. */
    int (*choose)(const struct program *prog, const struct op *op,
                  const struct device_facts *facts);
    void *(*alloc)(size_t bytes); /* the arena; untouched pages, NULL on failure */
    void (*release)(void *block, size_t bytes);
    const struct device_hooks *hooks; /* NULL: the arena is memory of the host */
    const char *pool_place;           /* where an offload pool lies, in a few words */
    /* an offload pool whose bytes are 0 and are there: what cannot be had is refused now, not later. */
    enum snug_status (*open_pool)(const struct device_facts *facts, int64_t n_bytes,
                                  struct offload_pool **pool, struct snug_error *err);
    /* Around every run of kernels: thread count and float modes are set for it, and are the
     * caller's again after it. */
    struct run_modes (*run_begin)(const struct device_facts *facts);
    void (*run_end)(const struct device_facts *facts, const struct run_modes *modes);
    /* Measures for about a second; allocates.  False: out of memory. */
    bool (*measure)(const struct device_facts *facts, struct device_limits *limits);
    const struct kernel *(*kernel)(int number); /* as choose counts; NULL: there is none */
};

/* The kernel that a backend chooses for an op; NULL if it has none. */
static inline const struct kernel *backend_choose(const struct backend *backend,
                                                  const struct program *prog, const struct op *op,
                                                  const struct device_facts *facts)
{
    return backend->kernel(backend->choose(prog, op, facts));
}

/* The same, and what the kernel asks of a plan. */
static inline struct kernel_choice backend_choice(const struct backend *backend,
                                                  const struct program *prog, const struct op *op,
                                                  const struct device_facts *facts)
{
    struct kernel_choice choice = {backend->choose(prog, op, facts), 0, false};
    const struct kernel *kernel = backend->kernel(choice.kernel);
    if (kernel != NULL && kernel->workspace_bytes != NULL)
        choice.workspace_bytes = kernel->workspace_bytes(prog, op, facts);
    if (kernel != NULL && kernel->no_alias != NULL)
        choice.no_alias = kernel->no_alias(prog, op);
    return choice;
}

const struct backend *backend_cpu(void);

/* The CUDA backend as far as a plan needs it: its kernels, alignment.  alloc is NULL: exec/plugin.h has the one
 * that runs. */
const struct backend *backend_cuda_table(void);
const char *backend_cuda_kernels(enum op_kind kind); /* for `snug ops` */

/* For `snug ops`: the names of all rows of a kind, comma separated, reference excluded. */
const char *backend_cpu_simd_kernels(enum op_kind kind);
bool backend_cpu_has_reference(enum op_kind kind);
/* One line a library: "oneDNN 2.6.3 (avx512 cap)", "OpenMP 4.5", "isa avx512"... */
struct text;
void backend_cpu_describe(struct text *out);
/* Which instructions kernels are to use: what the CPU has and SNUG_CPU_LEVEL allows. */
const struct cpu_isa *backend_cpu_isa(void);
/* The same in words, for what is kept about them: "v4", "v4 and amx". */
void backend_cpu_level(struct text *out);

#endif
