/*
 * fetch.c -- download a data set with curl and verify it.
 *
 * Only https is allowed, also for redirects; plain http only to this machine, for the tests.  User
 * input can never become an option of curl or a remote host name for tar.
 *
 * A file is downloaded as NAME.part and renamed to NAME once its md5 is the published one, so a
 * file called NAME is complete.  An interrupted download resumes; if the resumed file does not
 * match, it is downloaded once more from the start.  An archive is unpacked into a temporary folder
 * and then moved into place.
 */
#include "data/fetch.h"

#include <errno.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <arpa/inet.h>

#include "base/cache.h"
#include "base/fd.h"
#include "base/md5.h"
#include "base/text.h"

extern char **environ;

static const struct fetch_set sets[] = {
    {"fashion-mnist",
     "70,000 images of 1 x 28 x 28, 10 classes; 30 MB",
     /* the publisher's repository, because the address in its README is plain http */
     "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
     {{"train-images-idx3-ubyte.gz", "8d4fb7e6c68d591d4c3dfef9ec88bf0d"},
      {"train-labels-idx1-ubyte.gz", "25c81989df183df01b3e8a0aad5dffbe"},
      {"t10k-images-idx3-ubyte.gz", "bef4ecab320f06d8554ea6380940ec79"},
      {"t10k-labels-idx1-ubyte.gz", "bb300cfdad3c16e7a12a480ee83cd310"}},
     NULL},
    {"cifar-10",
     "60,000 images of 3 x 32 x 32, 10 classes; 170 MB, 354 MB on disk",
     "https://www.cs.toronto.edu/~kriz",
     {{"cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"}},
     "cifar-10-batches-bin"},
};
enum { N_SETS = (int)(sizeof sets / sizeof *sets) };

static const struct fetch_set *find(const char *name)
{
    for (int i = 0; i < N_SETS; i++)
        if (strcmp(sets[i].name, name) == 0)
            return &sets[i];
    return NULL;
}

int fetch_knows(const char *name)
{
    return find(name) != NULL;
}

void fetch_list(struct text *out)
{
    for (int i = 0; i < N_SETS; i++)
        text_add(out, "%-14s %s\n", sets[i].name, sets[i].about);
}

const struct fetch_set *fetch_find(const char *name, struct snug_error *err)
{
    const struct fetch_set *set = find(name);
    if (set == NULL)
        snug_fail(err, SNUG_BAD_ARGUMENT, "unknown data set \"%.60s\"; available: %s, %s", name,
                  sets[0].name, sets[1].name);
    return set;
}

struct fetch {
    const struct fetch_set *set;
    const char *folder, *from;
    snug_say_fn *say;
    void *user;
    struct snug_error *err;
};

static void say(const struct fetch *f, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static void say(const struct fetch *f, const char *format, ...)
{
    char line[600];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    snug_printable(line);
    if (f->say != NULL)
        f->say(line, f->user);
}

static enum snug_status no_memory(const struct fetch *f)
{
    return snug_fail(f->err, SNUG_NO_MEMORY, "%s: out of memory", f->set->name);
}

/* Fails with `what` and tells how to get the files by hand. */
static enum snug_status fail_by_hand(const struct fetch *f, const char *what)
{
    struct text names = {0};
    for (int i = 0; i < FETCH_FILES_MAX && f->set->files[i].name != NULL; i++)
        text_add(&names, "%s%s", i > 0 ? ", " : "", f->set->files[i].name);
    enum snug_status status =
        snug_fail(f->err, SNUG_BAD_FILE, "%s: %.120s; download %s from %s and put %s into %s",
                  f->set->name, what, names.data == NULL ? "its files" : names.data, f->from,
                  f->set->unpacks_to == NULL ? "them" : "its contents", f->folder);
    text_free(&names);
    return status;
}

/* ---- programs ---------------------------------------------------------------------------- */

/* Reads to the end and keeps as much of the first line as fits in `words`. */
static void read_line(int fd, char *words, size_t n_words)
{
    char chunk[256] = "";
    size_t length = 0;
    for (ssize_t n; (n = read(fd, chunk, sizeof chunk)) > 0;) {
        size_t space = n_words - 1 - length, taken = (size_t)n < space ? (size_t)n : space;
        memcpy(words + length, chunk, taken);
        length += taken;
    }
    words[length] = '\0';
    words[strcspn(words, "\n")] = '\0';
}

/* The exit status, or -1 if a signal killed it or the status is unknown (SIGCHLD is ignored). */
static int wait_for(pid_t child, const char *program, char *words, size_t n_words)
{
    int state = 0;
    pid_t ended;
    do
        ended = waitpid(child, &state, 0);
    while (ended < 0 && errno == EINTR);
    if (ended < 0)
        return snprintf(words, n_words, "the program %s: no exit status: %s", program,
                        strerror(errno)),
               -1;
    return WIFEXITED(state) ? WEXITSTATUS(state) : -1;
}

/* Runs a program and waits for it.  `words` receives the first line of its standard error. */
static int run_program(char *const argv[], char *words, size_t n_words)
{
    int ends[2], exit_status = -1;
    pid_t child;
    posix_spawn_file_actions_t actions;
    words[0] = '\0';
    if (pipe(ends) != 0)
        return snprintf(words, n_words, "%s: %s", argv[0], strerror(errno)), -1;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", 0, 0);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
    posix_spawn_file_actions_addclose(&actions, ends[0]);
    posix_spawn_file_actions_addclose(&actions, ends[1]);
    int reason = posix_spawnp(&child, argv[0], &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    if (reason != 0) {
        snprintf(words, n_words, "the program %s: %s", argv[0], strerror(reason));
    } else {
        read_line(ends[0], words, n_words);
        exit_status = wait_for(child, argv[0], words, n_words);
    }
    close(ends[0]);
    return exit_status;
}

/* A path that a program cannot mistake for an option or for "host:path".  The caller frees it. */
static char *plain_path(const char *path)
{
    struct text plain = {0};
    text_add(&plain, "%s%s", path[0] == '/' ? "" : "./", path);
    return text_take(&plain);
}

static int run_curl(const char *url, const char *path, char *words, size_t n_words)
{
    bool is_https = strncasecmp(url, "https:", 6) == 0;
    char *argv[] = {"curl",
                    "--proto",
                    is_https ? "=https" : "=http,https",
                    "--proto-redir",
                    "=https",
                    "--max-redirs",
                    "10",
                    "--globoff",
                    "--fail",
                    "--location",
                    "--silent",
                    "--show-error",
                    "--connect-timeout",
                    "30",
                    "--speed-limit",
                    "1",
                    "--speed-time",
                    "60",
                    "--continue-at",
                    "-",
                    "--output",
                    (char *)path,
                    "--url",
                    (char *)url,
                    NULL};
    return run_program(argv, words, n_words);
}

/* ---- addresses ---------------------------------------------------------------------------- */

/* Exactly "127.x.x.x", "localhost" or "[::1]", not just a prefix of the name. */
static bool is_this_machine(const char *host, size_t length)
{
    char name[64];
    struct in_addr address;
    if (length >= sizeof name)
        return false;
    snprintf(name, sizeof name, "%.*s", (int)length, host);
    return strcmp(name, "localhost") == 0 || strcmp(name, "[::1]") == 0 ||
           (inet_pton(AF_INET, name, &address) == 1 && ntohl(address.s_addr) >> 24 == 127);
}

/* https://..., or http://HOST[:PORT][/...] if HOST is this machine. */
static bool is_safe_address(const char *url)
{
    for (const char *c = url; *c != '\0'; c++)
        if ((unsigned char)*c <= ' ' || *c == 0x7F)
            return false;
    if (strncasecmp(url, "https://", 8) == 0)
        return url[8] != '\0' && url[8] != '/';
    if (strncasecmp(url, "http://", 7) != 0)
        return false;
    const char *host = url + 7;
    size_t length = strcspn(host, host[0] == '[' ? "/?#" : ":/?#");
    const char *bracket = host[0] == '[' ? memchr(host, ']', length) : NULL;
    if (bracket != NULL)
        length = (size_t)(bracket - host) + 1;
    const char *rest = host + length;
    if (*rest == ':')
        rest += 1 + strspn(rest + 1, "0123456789");
    return is_this_machine(host, length) && (*rest == '\0' || *rest == '/');
}

static enum snug_status check_address(const char *url, struct snug_error *err)
{
    if (is_safe_address(url))
        return SNUG_OK;
    return snug_fail(err, SNUG_BAD_ARGUMENT,
                     "\"%.200s\" is not a valid download address: use https://HOST/FOLDER (plain "
                     "http only for this machine: http://127.0.0.1:8000)",
                     url);
}

/* ---- files ------------------------------------------------------------------------------- */

/* mkdir -p */
static enum snug_status make_folder(const struct fetch *f, const char *folder)
{
    if (folder[0] == '\0')
        return snug_fail(f->err, SNUG_BAD_ARGUMENT, "the folder name is empty");
    char *path = strdup(folder);
    if (path == NULL)
        return no_memory(f);
    enum snug_status status = SNUG_OK;
    for (char *at = path + 1; status == SNUG_OK; at++) {
        char kept = *at;
        if (kept != '/' && kept != '\0')
            continue;
        *at = '\0';
        if (mkdir(path, 0777) != 0 && errno != EEXIST)
            status = snug_fail(f->err, SNUG_BAD_FILE, "%s: cannot create this folder: %s", path,
                               strerror(errno));
        *at = kept;
        if (kept == '\0')
            break;
    }
    free(path);
    return status;
}

static int64_t size_of(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 ? (int64_t)info.st_size : -1;
}

/* Does the file exist and have this md5? */
static enum snug_status matches(const char *path, const char *md5, bool *fits,
                                struct snug_error *err)
{
    enum { CHUNK_BYTES = 1 << 16 };
    unsigned char chunk[CHUNK_BYTES];
    char found[MD5_TEXT_MAX];
    struct md5 sum;
    int fd;
    int64_t n_bytes;
    *fits = false;
    if (access(path, F_OK) != 0)
        return SNUG_OK;
    TRY(fd_open_read(path, &fd, &n_bytes, err));
    md5_begin(&sum);
    enum snug_status status = SNUG_OK;
    for (int64_t at = 0, n; at < n_bytes && status == SNUG_OK; at += n) {
        n = n_bytes - at < CHUNK_BYTES ? n_bytes - at : CHUNK_BYTES;
        status = fd_read_at(fd, path, chunk, n, at, err);
        md5_add(&sum, chunk, (size_t)n);
    }
    close(fd);
    md5_end(&sum, found);
    *fits = status == SNUG_OK && strcmp(found, md5) == 0;
    return status;
}

/* Runs curl once to download the rest of `part`.  Sets *fits if it is now complete and verified. */
static enum snug_status download(const struct fetch *f, const char *name, const char *md5,
                                 const char *part, bool *fits)
{
    char words[200], size[TEXT_SIZE_MAX];
    int64_t before = size_of(part);
    char *url = path_join(f->from, name, "");
    if (url == NULL)
        return no_memory(f);
    if (before > 0)
        say(f, "%s: resuming after %s", name, text_size(before, size));
    else
        say(f, "%s: downloading", name);
    char *output = plain_path(part);
    struct stat info;
    if (lstat(part, &info) == 0 && !S_ISREG(info.st_mode))
        unlink(part); /* do not write through a link that somebody planted */
    int exit_status = output == NULL ? -1 : run_curl(url, output, words, sizeof words);
    free(url);
    if (output == NULL)
        return no_memory(f);
    free(output);
    TRY(matches(part, md5, fits, f->err));
    if (*fits)
        return SNUG_OK;
    bool was_started = before > 0, is_whole = exit_status == 0;
    enum { HTTP_ERROR = 22, RANGE_ERROR = 33 };
    if (was_started && (is_whole || exit_status == HTTP_ERROR || exit_status == RANGE_ERROR)) {
        unlink(part); /* the old part belongs to another file: start over */
        return SNUG_OK;
    }
    if (!is_whole)
        return fail_by_hand(f, words[0] != '\0' ? words : "curl failed");
    unlink(part);
    return fail_by_hand(f, "the download does not have the published md5");
}

static enum snug_status fetch_file(const struct fetch *f, const char *name, const char *md5)
{
    char size[TEXT_SIZE_MAX];
    char *path = path_join(f->folder, name, ""), *part = path_join(f->folder, name, ".part");
    bool fits = false;
    enum snug_status status = path == NULL || part == NULL ? no_memory(f) : SNUG_OK;
    if (status == SNUG_OK)
        status = matches(path, md5, &fits, f->err);
    if (status == SNUG_OK && fits) {
        say(f, "%s: already downloaded, md5 verified", name);
        goto done;
    }
    if (status == SNUG_OK && access(path, F_OK) == 0)
        say(f, "%s: the existing file does not have the published md5: replacing it", name);
    if (status == SNUG_OK)
        status = matches(part, md5, &fits, f->err);
    for (int attempt = 0; attempt < 2 && status == SNUG_OK && !fits; attempt++)
        status = download(f, name, md5, part, &fits);
    if (status == SNUG_OK && !fits)
        status = fail_by_hand(f, "the download does not have the published md5");
    if (status == SNUG_OK && rename(part, path) != 0)
        status = snug_fail(f->err, SNUG_BAD_FILE, "%s: cannot rename: %s", part, strerror(errno));
    if (status == SNUG_OK)
        say(f, "%s: %s, md5 verified", name, text_size(size_of(path), size));
done:
    free(path);
    free(part);
    return status;
}

/* Creates the folder to unpack in.  Refuses a symbolic link. */
static enum snug_status make_unpack_folder(const struct fetch *f, const char *place)
{
    struct stat info;
    if (lstat(place, &info) == 0 && S_ISLNK(info.st_mode))
        return snug_fail(f->err, SNUG_BAD_FILE,
                         "%s: snug does not unpack into a symbolic link: remove it", place);
    return make_folder(f, place);
}

/* Extracts only the folder that the archive is known to contain. */
static enum snug_status run_tar(const struct fetch *f, const char *archive, const char *place)
{
    char words[200];
    char *from = plain_path(archive), *to = plain_path(place);
    char *argv[] = {"tar", "-xzf", from, "-C", to, (char *)f->set->unpacks_to, NULL};
    enum snug_status status = SNUG_OK;
    if (from == NULL || to == NULL)
        status = no_memory(f);
    else if (run_program(argv, words, sizeof words) != 0)
        status = snug_fail(f->err, SNUG_BAD_FILE, "%s: cannot unpack: %s", archive, words);
    free(from);
    free(to);
    return status;
}

/* Unpacks into a temporary folder first, so that a folder with the final name is complete. */
static enum snug_status unpack(const struct fetch *f)
{
    const char *name = f->set->files[0].name;
    char *archive = path_join(f->folder, name, ""), *place = path_join(f->folder, ".unpacking", "");
    char *from = place == NULL ? NULL : path_join(place, f->set->unpacks_to, "");
    char *to = path_join(f->folder, f->set->unpacks_to, "");
    enum snug_status status = SNUG_OK;
    if (archive == NULL || from == NULL || to == NULL) {
        status = no_memory(f);
    } else if (access(to, F_OK) == 0) {
        say(f, "%s: already unpacked", f->set->unpacks_to);
    } else {
        status = make_unpack_folder(f, place);
        if (status == SNUG_OK)
            status = run_tar(f, archive, place);
        if (status == SNUG_OK && rename(from, to) != 0)
            status =
                snug_fail(f->err, SNUG_BAD_FILE, "%s: cannot rename: %s", from, strerror(errno));
        if (status == SNUG_OK)
            say(f, "%s: unpacked to %s", name, f->set->unpacks_to);
        rmdir(place);
    }
    free(archive);
    free(place);
    free(from);
    free(to);
    return status;
}

/* $SNUG_DATA/NAME or NAME in the cache, where data_open looks for it.  The caller frees it.  NULL
 * if out of memory. */
static char *default_folder(const char *name)
{
    const char *data = getenv("SNUG_DATA");
    char *parent = NULL;
    if (data != NULL && *data != '\0')
        parent = strdup(data);
    else if (cache_folder(&parent, NULL) == SNUG_OK && parent == NULL)
        parent = strdup(".");
    char *folder = parent == NULL ? NULL : path_join(parent, name, "");
    free(parent);
    return folder;
}

enum snug_status fetch_set_to(const struct fetch_set *set, const char *folder, const char *from,
                              snug_say_fn *say_line, void *user, struct snug_error *err)
{
    TRY(check_address(from == NULL ? set->from : from, err));
    char *own = folder == NULL ? default_folder(set->name) : strdup(folder);
    struct fetch f = {set, own, from == NULL ? set->from : from, say_line, user, err};
    if (own == NULL)
        return no_memory(&f);
    enum snug_status status = make_folder(&f, own);
    if (status == SNUG_OK)
        say(&f, "%s: from %s to %s", set->name, f.from, own);
    for (int i = 0; i < FETCH_FILES_MAX && set->files[i].name != NULL && status == SNUG_OK; i++)
        status = fetch_file(&f, set->files[i].name, set->files[i].md5);
    if (status == SNUG_OK && set->unpacks_to != NULL)
        status = unpack(&f);
    if (status == SNUG_OK)
        say(&f, "%s: complete in %s", set->name, own);
    free(own);
    return status;
}
