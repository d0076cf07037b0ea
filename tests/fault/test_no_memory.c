/*
 * test_no_memory.c -- every command with its Nth allocation failing, for N = 1, 2, 3, ...
 *
 * The program contains the whole snug command line; each injection is a child process.  Compared
 * with an undisturbed run, a command must either succeed with the same output and files, or fail
 * with status 1 and a message about memory.  It never dies of a signal.  After a failure, a command
 * that only reads has changed nothing, and one that trains can be repeated (with --resume if there
 * is a checkpoint) and then writes the files of the undisturbed run.
 *
 *   test_no_memory              every STRIDE-th allocation: failing alone, then with all later ones
 *   STRIDE=1 test_no_memory     every allocation; ALONE=1: only failing alone
 *   ONLY=eval test_no_memory    commands whose name contains this
 *   test_no_memory --snug ARGS...   snug; allocation NO_MEMORY_AT fails in rank NO_MEMORY_RANK, and
 *                               the number of allocations is written to NO_MEMORY_COUNT
 */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "fault/allocations.h"
#include "fault/trees.h"
#include "support/files.h"
#include "support/signals.h"
#include "support/size.h"
#include "compile/device_rates.h"
#include "exec/backend.h"

int snug_main(int argc, char **argv);

/* How many of each kind. */
#ifdef __SANITIZE_ADDRESS__
enum { SMALL_TRIES = 2, FULL_TRIES = 6 };
#else
enum { SMALL_TRIES = 12, FULL_TRIES = 48 }; /* some 20 s in all on one core */
#endif
enum { MOST_WORDS = 48, CHILD_SECONDS = 100, SHOWN_FAILURES = 8 };

#define TINY "--threads 1 --batch 2 --eval-every -1"
#define TEXT "--threads 1 --batch 2 --seq 8"
static const struct trial {
    const char *name;
    const char *command; /* in a copy of the folder that `prepare` makes */
    const char *again;   /* what repeats it once a checkpoint is in `run` */
} trials[] = {
    {"plan", "plan mlp:4-3-2 --threads 1 --json", NULL},
    {"plan, a table", "plan hf " TEXT " --optimizer muon --zero 1 --ranks 2", NULL},
    {"plan, a budget", "plan tiny " TEXT " --checkpoint auto --memory 80M --each --ranks 2", NULL},
    {"plan, compared", "plan tiny " TEXT " --compare optimizer=sgd;optimizer=adamw", NULL},
    {"plan, a timeline", "plan mlp:4-3-2 --timeline", NULL},
    {"fit", "fit mlp:4-3-2 --threads 1 --memory 100M --json --frontier", NULL},
    {"fit, a table", "fit tiny " TEXT " --memory 100M", NULL},
    {"train", "train mlp:4-3-2 " TINY " --steps 3 --json --quiet", NULL},
    {"train, in words", "train hf text " TEXT " --steps 1 --eval-every -1", NULL},
    {"train, a recipe", "train tiny text --recipe recipe --steps 1 --eval-every -1 --json --quiet",
     NULL},
    {"train, offload",
     "train tiny text " TEXT " --micro-batch 1 --offload states+activations --checkpoint sqrt "
     "--dropout 0.1 --steps 2 --eval-every -1 --json --quiet",
     NULL},
    {"train, in backward",
     "train tiny text " TEXT " --precision bf16 --update in-backward --steps 1 --eval-every 1 "
     "--optimizer adam-8bit --json --quiet",
     NULL},
    {"train, matrices", "train mlp:4-3-2 idx " TINY " --optimizer soap --steps 2 --json --quiet",
     NULL},
    {"train, an adapter",
     "train hf text " TEXT " --lora-from lora/adapter --steps 1 --eval-every -1 --json --quiet",
     NULL},
    {"save", "train mlp:4-3-2 " TINY " --steps 2 --save-every 1 --out run --json --quiet",
     "train mlp:4-3-2 --out run --resume --eval-every -1 --json --quiet"},
    {"save, text",
     "train hf text " TEXT
     " --steps 2 --eval-every 1 --optimizer lawa-ema --out run --json --quiet",
     "train hf --out run --resume --eval-every -1 --json --quiet"},
    {"save, adapters",
     "train hf text " TEXT " --lora 2 --steps 2 --eval-every -1 --out run --json --quiet",
     "train hf --out run --resume --eval-every -1 --json --quiet"},
    {"save over a run", "train mlp:4-3-2 " TINY " --steps 2 --out done", NULL},
    {"resume", "train mlp:4-3-2 --out half --resume --steps 4 --eval-every -1 --json --quiet",
     "train mlp:4-3-2 --out half --resume --steps 4 --eval-every -1 --json --quiet"},
    {"resume, text", "train tiny --out lm --resume --steps 3 --eval-every -1 --json --quiet",
     "train tiny --out lm --resume --steps 3 --eval-every -1 --json --quiet"},
    {"resume, adapters", "train hf --out lora --resume --steps 2 --eval-every -1 --json --quiet",
     "train hf --out lora --resume --steps 2 --eval-every -1 --json --quiet"},
    {"resume, weights",
     "train mlp:4-3-2 --out half --resume-weights-only --optimizer sgd --steps 4 --eval-every -1 "
     "--json --quiet",
     "train mlp:4-3-2 --out half --resume-weights-only --optimizer sgd --steps 4 --eval-every -1 "
     "--json --quiet"},
    {"eval", "eval done --threads 1 --json", NULL},
    {"eval, text", "eval lm text --threads 1 --json", NULL},
    {"eval, adapters", "eval lora --threads 1 --json", NULL},
    {"generate", "generate lm --prompt ab --tokens 4 --seed 3", NULL},
    {"inspect", "inspect done", NULL},
    {"inspect, a file", "inspect lm/model.safetensors", NULL},
    {"inspect, data", "inspect text", NULL},
    {"eval, images", "eval done idx --threads 1 --json", NULL},
    {"plan, a program", "plan tiny " TEXT " --dump optimizer", NULL},
    {"plan, stages", "plan tiny " TEXT " --pipeline 1f1b --stages 1 --ranks 2 --micro-batch 1",
     NULL},
    {"tokenize", "tokenize tokenizer.json --threads 1", NULL},
    {"tokenize, two files", "tokenize gpt2 -0 --threads 1", NULL},
    {"tokenize, decode", "tokenize tokenizer.json --decode", NULL},
    {"data tokenize", "data tokenize text -o shards --tokenizer tokenizer.json --threads 1", NULL},
    {"train, tokenized", "train words text " TEXT " --steps 1 --eval-every -1 --json --quiet",
     NULL},
    {"save, tokenized",
     "train words text " TEXT " --steps 1 --eval-every -1 --out run --json --quiet",
     "train words --out run --resume --eval-every -1 --json --quiet"},
    {"generate, tokenized", "generate words_run --prompt line --tokens 3", NULL},
    {"ops", "ops", NULL},
    {"version", "--version", NULL},
};
enum { N_TRIALS = sizeof trials / sizeof *trials };

struct result {
    int status; /* as of waitpid */
    char *out, *err;
};

/* Lines of words that a clock, or the size of the process, decides. */
static void blot_lines(char *text)
{
    for (char *line = text, *end; *line != '\0'; line = end) {
        end = line + strcspn(line, "\n");
        bool is_blotted = strncmp(line, "runtime ", 8) == 0 ||
                          strncmp(line, "measured peak ", 14) == 0 ||
                          memmem(line, (size_t)(end - line), "/s", 2) != NULL;
        if (is_blotted)
            memset(line, '#', (size_t)(end - line));
        end += *end == '\n';
    }
}

static char work[FILES_PATH_MAX];
static struct allocations *counts;

static int split(const char *command, char *room, char **argv)
{
    char *place = NULL;
    int n = 0;
    strcpy(room, command);
    argv[n++] = "snug";
    for (char *word = strtok_r(room, " ", &place); word != NULL;
         word = strtok_r(NULL, " ", &place)) {
        assert_true(n < MOST_WORDS);
        argv[n++] = word;
    }
    argv[n] = NULL;
    return n;
}

/* What the command reads: the file `input` of its folder, or `input.ids`. */
static bool open_input(const char *command)
{
    bool is_ids = strstr(command, "--decode") != NULL;
    int from = open(files_path(work, is_ids ? "now/input.ids" : "now/input"), O_RDONLY);
    return from < 0 || dup2(from, 0) == 0;
}

/* In the folder `now`, in a child. */
static struct result run(const char *command, long fail_at, bool goes_on)
{
    char room[1024], *argv[MOST_WORDS + 1];
    const char *out = files_path(work, "out"), *err = files_path(work, "err");
    struct result result;
    size_t n_bytes;
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        int to_out = open(out, O_WRONLY | O_CREAT | O_TRUNC, 0666);
        int to_err = open(err, O_WRONLY | O_CREAT | O_TRUNC, 0666);
        int argc = split(command, room, argv);
        if (!open_input(command) || chdir(files_path(work, "now")) != 0 || dup2(to_out, 1) != 1 ||
            dup2(to_err, 2) != 2)
            _exit(99);
        signals_leave_alone();
        alarm(CHILD_SECONDS);
        allocations_arm(counts, fail_at, goes_on);
        exit(snug_main(argc, argv));
    }
    assert_int_equal(waitpid(child, &result.status, 0), child);
    result.out = files_read(out, &n_bytes);
    blot_lines(result.out);
    tree_blot(result.out, n_bytes);
    result.err = files_read(err, &n_bytes);
    return result;
}

static void free_result(struct result *result)
{
    free(result->out);
    free(result->err);
}

static void begin_again(const char *from)
{
    files_remove_dir(files_path(work, "now"));
    tree_copy(files_path(work, from), files_path(work, "now"));
}

static bool has_checkpoint(void)
{
    return access(files_path(work, "now/run/state.json"), F_OK) == 0;
}

static int lines_of(const char *text)
{
    int n = 0;
    for (; *text != '\0'; text++)
        n += *text == '\n';
    return n;
}

static bool says_why(const char *words)
{
    return strcasestr(words, "memory") != NULL || strstr(words, "no scratch") != NULL ||
           strstr(words, "cannot start the") != NULL;
}

/* What is wrong with how it went, or "". */
static const char *verdict(const struct trial *trial, const struct result *whole,
                           const struct result *now)
{
    static char words[1024];
    bool succeeded = now->status == 0;
    if (WIFSIGNALED(now->status)) {
        snprintf(words, sizeof words, "died of signal %d", WTERMSIG(now->status));
        return words;
    }
    if (succeeded && whole->status != 0)
        return "succeeded where it must not";
    if (succeeded && strcmp(now->out, whole->out) != 0)
        return "succeeded with another output";
    if (!succeeded && now->status != whole->status) {
        if (WEXITSTATUS(now->status) != 1)
            return "failed with another status than 1";
        if (!says_why(now->err))
            return "failed and did not speak of memory";
        if (lines_of(now->err) > lines_of(whole->err) + 1)
            return "failed with more than a line";
    }
    if (!succeeded && trial->again != NULL) {
        bool resumes = has_checkpoint() || strstr(trial->command, "--resume") != NULL;
        struct result then = run(resumes ? trial->again : trial->command, 0, false);
        bool repaired = then.status == 0;
        snprintf(words, sizeof words, "cannot be repeated: %.500s", then.err);
        free_result(&then);
        if (!repaired)
            return words;
    }
    const char *to = succeeded || trial->again != NULL ? "after" : "start";
    const char *difference = tree_difference(files_path(work, to), files_path(work, "now"));
    return difference;
}

/* Returns how many checks failed. */
static int try_at(const struct trial *trial, const struct result *whole, long n, bool goes_on,
                  bool shown)
{
    begin_again("start");
    struct result now = run(trial->command, n, goes_on);
    struct allocations at = *counts;
    bool succeeded = now.status == 0;
    const char *wrong = verdict(trial, whole, &now);
    if (*wrong != '\0' && shown) {
        printf("# %s: allocation %ld%s: %s: %s\n", trial->name, n, goes_on ? " and all after" : "",
               succeeded ? "exit 0" : "failed", wrong);
        printf("#     it said: %s\n", now.err);
        allocations_print_place(&at);
    }
    free_result(&now);
    return *wrong != '\0';
}

static void test_trial(void **state)
{
    const struct trial *trial = *state;
    const char *given = getenv("STRIDE");
    int n_wrong = 0;
    long n_tried = 0;
    begin_again("start");
    struct result whole = run(trial->command, 0, false);
    long n_calls = counts->calls;
    files_remove_dir(files_path(work, "after"));
    tree_copy(files_path(work, "now"), files_path(work, "after"));
    begin_again("start");
    struct result twin = run(trial->command, 0, false);
    if (whole.status != 0 && strcmp(trial->name, "save over a run") != 0)
        fail_msg("%s: %s", trial->command, whole.err);
    assert_int_equal(twin.status, whole.status);
    assert_string_equal(twin.out, whole.out);
    assert_string_equal(tree_difference(files_path(work, "after"), files_path(work, "now")), "");
    assert_true(n_calls > 0);

    long stride = given != NULL ? atol(given) : n_calls / sized(SMALL_TRIES, FULL_TRIES) + 1;
    for (int goes_on = 0; goes_on < (getenv("ALONE") == NULL ? 2 : 1); goes_on++)
        for (long n = 1 + (goes_on ? stride / 2 : 0); n <= n_calls; n += stride, n_tried++)
            n_wrong += try_at(trial, &whole, n, goes_on != 0, n_wrong < SHOWN_FAILURES);
    printf("# %-18s %6ld allocations, %6ld injections, %d wrong\n", trial->name, n_calls, n_tried,
           n_wrong);
    free_result(&whole);
    free_result(&twin);
    assert_true(n_tried > 0);
    assert_int_equal(n_wrong, 0);
}

/* ---- the folder that all commands begin with ------------------------------------------------------- */

static void must_run(const char *command)
{
    struct result made = run(command, 0, false);
    if (made.status != 0)
        fail_msg("%s: %s", command, made.err);
    free_result(&made);
}

/* Rates of this machine: a plan without them has other times. */
static void keep_rates(void)
{
    struct snug_error err = {0};
    struct machine_rates *rates = calloc(1, sizeof *rates);
    char *path;
    assert_non_null(rates);
    rates->rates = (struct device_rates){.flops = 1e9, .bytes = 1e9, .curves = rates->curves};
    assert_int_equal(rates_save(1, backend_cpu_isa(), rates, &path, &err), SNUG_OK);
    free(path);
    free(rates);
}

/* Images of 2 x 2 in two classes, as MNIST's are stored. */
static void write_images(void)
{
    static const char *const splits[] = {"train", "t10k"};
    unsigned char images[16 + 8 * 4] = {0, 0, 8, 3, 0, 0, 0, 8, 0, 0, 0, 2, 0, 0, 0, 2};
    unsigned char labels[8 + 8] = {0, 0, 8, 1, 0, 0, 0, 8};
    for (int i = 0; i < 8; i++) {
        labels[8 + i] = (unsigned char)(i % 2);
        memset(images + 16 + 4 * i, 20 * i + 5, 4);
    }
    files_make_subdir(work, "now/idx");
    for (int i = 0; i < 2; i++) {
        char name[64];
        snprintf(name, sizeof name, "now/idx/%s-images-idx3-ubyte", splits[i]);
        files_write(work, name, images, sizeof images);
        snprintf(name, sizeof name, "now/idx/%s-labels-idx1-ubyte", splits[i]);
        files_write(work, name, labels, sizeof labels);
    }
}

/* With texts that the word cache and the windows of long words see, too. */
static void write_tokenizers(const char *text)
{
    size_t n_bytes;
    char *tokenizer = files_read("tests/token/fixtures/metaspace-first.json", &n_bytes);
    files_write(work, "now/tokenizer.json", tokenizer, n_bytes);
    free(tokenizer);
    files_write_text(work, "now/input", text);
    files_write_text(work, "now/input.ids", "3 4 300\n\n400\n");
    files_make_subdir(work, "now/words");
    files_write_text(work, "now/words/config.json",
                     "{\"model_type\": \"gpt2\", \"n_layer\": 1, \"n_head\": 2, \"n_embd\": 8, "
                     "\"n_positions\": 16, \"vocab_size\": 1000}");
    char *gpt2 = files_read("tests/token/fixtures/gpt2.json", &n_bytes);
    files_write(work, "now/words/tokenizer.json", gpt2, n_bytes);
    free(gpt2);
    files_make_subdir(work, "now/gpt2");
    files_write_text(work, "now/gpt2/vocab.json", "{\"a\": 0, \"b\": 1, \"ab\": 2, \"n\": 3}");
    files_write_text(work, "now/gpt2/merges.txt", "a b\n");
}

static int prepare(void **state)
{
    (void)state;
    char text[1600] = "";
    const char *place = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp"; /* saves sync */
    snprintf(work, sizeof work, "%s/snug-test-XXXXXX", place);
    assert_non_null(mkdtemp(work));
    setenv("XDG_CACHE_HOME", files_path(work, "cache"), 1);
    unsetenv("SNUG_DATA");
    keep_rates();
    counts = mmap(NULL, sizeof *counts, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(counts != MAP_FAILED);
    files_make_subdir(work, "now");
    files_make_subdir(work, "now/tiny");
    files_write_text(work, "now/tiny/config.json",
                     "{\"model_type\": \"gpt2\", \"n_layer\": 1, \"n_head\": 2, \"n_embd\": 8, "
                     "\"n_positions\": 16, \"vocab_size\": 256}");
    for (int i = 0; i < 40; i++)
        sprintf(text + strlen(text), "line %d of a text to train on\n", i);
    files_write_text(work, "now/text", text);
    files_write_text(work, "now/recipe", "threads = 1\nbatch = 2\nseq = 8 # short\n");
    write_images();
    write_tokenizers(text);
    must_run("train mlp:4-3-2 " TINY " --steps 2 --out done");
    must_run("train mlp:4-3-2 " TINY " --steps 2 --out half");
    must_run("train tiny text " TEXT " --steps 1 --eval-every -1 --out lm");
    files_make_subdir(work, "now/hf");
    static const char *const parts[] = {"config.json", "model.safetensors"};
    for (int i = 0; i < 2; i++) {
        char from[64];
        size_t n_bytes;
        snprintf(from, sizeof from, "now/lm/%s", parts[i]);
        char *bytes = files_read(files_path(work, from), &n_bytes);
        files_write(files_path(work, "now/hf"), parts[i], bytes, n_bytes);
        free(bytes);
    }
    must_run("train words text " TEXT " --steps 1 --eval-every -1 --out words_run");
    must_run("train hf text " TEXT " --lora 2 --steps 1 --eval-every -1 --out lora");
    tree_copy(files_path(work, "now"), files_path(work, "start"));
    return 0;
}

static int clean_up(void **state)
{
    (void)state;
    files_remove_dir(work);
    return 0;
}

/* ---- as snug, for mpirun ---------------------------------------------------------------------------- */

static long number_of(const char *name)
{
    const char *text = getenv(name);
    return text == NULL ? 0 : atol(text);
}

static void write_count(void)
{
    FILE *file = fopen(getenv("NO_MEMORY_COUNT"), "w");
    if (file != NULL && fprintf(file, "%ld %ld\n", counts->calls, counts->failed) > 0)
        fclose(file);
}

static int as_snug(int argc, char **argv)
{
    static struct allocations own;
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    if (rank == NULL)
        rank = getenv("PMI_RANK");
    counts = &own;
    if (rank == NULL || atol(rank) == number_of("NO_MEMORY_RANK")) {
        if (getenv("NO_MEMORY_COUNT") != NULL)
            atexit(write_count);
        allocations_arm(counts, number_of("NO_MEMORY_AT"), number_of("NO_MEMORY_ON") != 0);
    }
    return snug_main(argc, argv);
}

int main(int argc, char **argv)
{
    if (setenv("OMP_WAIT_POLICY", "passive", 0) != 0) /* else snug sets its own and runs again */
        return 1;
    if (argc > 1 && strcmp(argv[1], "--snug") == 0)
        return as_snug(argc - 1, argv + 1);
    /* One thread: the order of allocations is the same each time.  OpenMP looks when it is loaded. */
    if (getenv("OMP_NUM_THREADS") == NULL && setenv("OMP_NUM_THREADS", "1", 1) == 0)
        execv("/proc/self/exe", argv);
    struct CMUnitTest tests[N_TRIALS];
    const char *only = getenv("ONLY");
    size_t n = 0;
    for (int i = 0; i < N_TRIALS; i++)
        if (only == NULL || strstr(trials[i].name, only) != NULL)
            tests[n++] = (struct CMUnitTest){.name = trials[i].name,
                                             .test_func = test_trial,
                                             .initial_state = (void *)&trials[i]};
    return _cmocka_run_group_tests("no memory", tests, n, prepare, clean_up);
}
