/*
 * test_fetch.c -- downloads from a server of our own, which breaks off, starts over and lies.
 *
 * The server is a child of the test: it serves one file of made-up bytes, with ranges or without, and
 * counts what it was asked for.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <arpa/inet.h>
#include <cmocka.h>

#include "base/md5.h"
#include "data/fetch.h"
#include "support/files.h"

enum { N_BYTES = 50000 };

struct server {
    pid_t child;
    char url[64];
    struct record { /* shared with the child */
        int n_requests, n_bytes_sent;
        long last_range;                    /* where the last request began; -1: at no range */
        int breaks_after, has_ranges, lies; /* breaks_after 0: never */
        char redirect[100];                 /* where to, instead of an answer; "": nowhere */
    } * record;
};

static unsigned char byte_at(int i)
{
    return (unsigned char)(i * 7 + i / 256);
}

/* ---- md5 ---------------------------------------------------------------------------------- */

static void md5_of(const void *bytes, size_t n, size_t step, char text[MD5_TEXT_MAX])
{
    struct md5 md5;
    md5_begin(&md5);
    for (size_t at = 0; at < n; at += step)
        md5_add(&md5, (const char *)bytes + at, n - at < step ? n - at : step);
    md5_end(&md5, text);
}

static void test_md5_of_the_rfc(void **state)
{
    static const char *const rows[][2] = {
        {"", "d41d8cd98f00b204e9800998ecf8427e"},
        {"a", "0cc175b9c0f1b6a831c399e269772661"},
        {"abc", "900150983cd24fb0d6963f7d28e17f72"},
        {"message digest", "f96b697d7cb7938d525a2f31aaf161d0"},
        {"abcdefghijklmnopqrstuvwxyz", "c3fcd3d76192e4007dfb496cca67e13b"},
        {"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789",
         "d174ab98d277d9f5a5611c2c9f419d9f"},
        {"12345678901234567890123456789012345678901234567890123456789012345678901234567890",
         "57edf4a22be3c955ac49da2e2107b67a"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (size_t step = 1; step < 90; step += 11) {
            char text[MD5_TEXT_MAX];
            md5_of(rows[i][0], strlen(rows[i][0]), step, text);
            assert_string_equal(text, rows[i][1]);
        }
}

/* ---- the server --------------------------------------------------------------------------- */

static void send_all(int to, const void *bytes, size_t n)
{
    for (ssize_t sent; n > 0; bytes = (const char *)bytes + sent, n -= (size_t)sent)
        if ((sent = send(to, bytes, n, MSG_NOSIGNAL)) <= 0)
            return;
}

static void answer(int to, struct record *record)
{
    char request[4096] = "", head[200];
    size_t length = 0;
    while (strstr(request, "\r\n\r\n") == NULL && length + 1 < sizeof request) {
        ssize_t n = recv(to, request + length, sizeof request - 1 - length, 0);
        if (n <= 0)
            return;
        length += (size_t)n;
        request[length] = '\0';
    }
    const char *range = strstr(request, "Range: bytes=");
    long begin = range == NULL ? 0 : atol(range + strlen("Range: bytes="));
    record->n_requests++;
    record->last_range = range == NULL ? -1 : begin;
    if (strncmp(request, "GET /some.bin ", 14) != 0) {
        snprintf(head, sizeof head, "HTTP/1.1 404 no\r\nContent-Length: 0\r\n\r\n");
        send_all(to, head, strlen(head));
        return;
    }
    if (record->redirect[0] != '\0') {
        snprintf(head, sizeof head,
                 "HTTP/1.1 302 there\r\nContent-Length: 0\r\nLocation: %s\r\n\r\n",
                 record->redirect);
        record->redirect[0] = '\0'; /* the second time it is served */
        send_all(to, head, strlen(head));
        return;
    }
    begin = record->has_ranges ? begin : 0;
    snprintf(head, sizeof head, "HTTP/1.1 %s\r\nContent-Length: %ld\r\n",
             begin > 0 ? "206 part" : "200 OK", N_BYTES - begin);
    send_all(to, head, strlen(head));
    snprintf(head, sizeof head, "Content-Range: bytes %ld-%d/%d\r\n\r\n", begin, N_BYTES - 1,
             N_BYTES);
    send_all(to, begin > 0 ? head : "\r\n", begin > 0 ? strlen(head) : 2);
    unsigned char bytes[N_BYTES];
    int n = 0, most = record->breaks_after > 0 ? record->breaks_after : N_BYTES;
    for (int i = (int)begin; i < N_BYTES && n < most; i++)
        bytes[n++] = (unsigned char)(byte_at(i) + (record->lies && i == 40000));
    send_all(to, bytes, (size_t)n);
    record->n_bytes_sent += n;
}

static void serve(int listener, struct record *record)
{
    alarm(60); /* it must not outlive a test that failed */
    for (;;) {
        int to = accept(listener, NULL, NULL);
        if (to < 0)
            _exit(1);
        answer(to, record);
        shutdown(to, SHUT_WR);
        close(to);
    }
}

static void start(struct server *server)
{
    struct sockaddr_in place = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof place;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&place, sizeof place), 0);
    assert_int_equal(listen(listener, 8), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&place, &length), 0);
    snprintf(server->url, sizeof server->url, "http://127.0.0.1:%d", ntohs(place.sin_port));
    server->record = mmap(NULL, sizeof *server->record, PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(server->record != MAP_FAILED);
    *server->record = (struct record){.has_ranges = 1};
    server->child = fork();
    assert_true(server->child >= 0);
    if (server->child == 0)
        serve(listener, server->record);
    close(listener);
}

static void stop(struct server *server)
{
    kill(server->child, SIGKILL);
    waitpid(server->child, NULL, 0);
    munmap(server->record, sizeof *server->record);
}

/* ---- downloads ---------------------------------------------------------------------------- */

static void note(const char *line, void *user)
{
    char *said = user;
    size_t used = strlen(said);
    snprintf(said + used, 2000 - used, "%s\n", line);
}

struct attempt {
    struct server server;
    char dir[FILES_PATH_MAX], md5[MD5_TEXT_MAX], said[2000];
    struct fetch_set set;
    struct snug_error err;
};

static void begin(struct attempt *a)
{
    unsigned char bytes[N_BYTES];
    for (int i = 0; i < N_BYTES; i++)
        bytes[i] = byte_at(i);
    *a = (struct attempt){0};
    md5_of(bytes, N_BYTES, N_BYTES, a->md5);
    a->set = (struct fetch_set){
        "some", "some bytes", "http://127.0.0.1:9", {{"some.bin", a->md5}}, NULL};
    files_make_dir(a->dir);
    start(&a->server);
}

static void end(struct attempt *a)
{
    stop(&a->server);
    files_remove_dir(a->dir);
}

static enum snug_status fetch(struct attempt *a)
{
    a->said[0] = '\0';
    a->server.record->n_requests = 0;
    return fetch_set_to(&a->set, files_path(a->dir, "deep/er"), a->server.url, note, a->said,
                        &a->err);
}

static void must_say(const struct attempt *a, const char *words)
{
    if (strstr(a->said, words) == NULL && strstr(a->err.message, words) == NULL)
        fail_msg("\"%s\" is not in:\n%s%s", words, a->said, a->err.message);
}

static void must_be_whole(const struct attempt *a)
{
    size_t n;
    char *bytes = files_read(files_path(a->dir, "deep/er/some.bin"), &n);
    assert_int_equal(n, N_BYTES);
    for (int i = 0; i < N_BYTES; i++)
        assert_int_equal((unsigned char)bytes[i], byte_at(i));
    free(bytes);
    assert_int_not_equal(access(files_path(a->dir, "deep/er/some.bin.part"), F_OK), 0);
}

static void test_whole_and_again(void **state)
{
    struct attempt a;
    (void)state;
    begin(&a);
    if (fetch(&a) != SNUG_OK)
        fail_msg("%s", a.err.message);
    must_say(&a, "some.bin: downloading\nsome.bin: 48.8 KiB, md5 as published\nsome: complete");
    must_be_whole(&a);
    assert_int_equal(fetch(&a), SNUG_OK);
    assert_int_equal(a.server.record->n_requests, 0);
    must_say(&a, "some.bin: there already");
    end(&a);
}

static void test_goes_on_after_a_break(void **state)
{
    struct attempt a;
    (void)state;
    begin(&a);
    a.server.record->breaks_after = 20000;
    assert_int_equal(fetch(&a), SNUG_BAD_FILE);
    must_say(&a, "get some.bin from http://127.0.0.1:");
    assert_int_not_equal(access(files_path(a.dir, "deep/er/some.bin"), F_OK), 0);
    assert_int_equal(access(files_path(a.dir, "deep/er/some.bin.part"), F_OK), 0);
    assert_null(strchr(a.err.message, '\n'));
    a.server.record->breaks_after = 0;
    a.server.record->n_bytes_sent = 0;
    if (fetch(&a) != SNUG_OK)
        fail_msg("%s", a.err.message);
    must_say(&a, "some.bin: going on after 19.5 KiB");
    assert_int_equal(a.server.record->last_range, 20000);
    assert_int_equal(a.server.record->n_bytes_sent, N_BYTES - 20000);
    must_be_whole(&a);
    end(&a);
}

/* What is there is of another file, or the server knows no ranges: all of it is taken anew. */
static void test_starts_over(void **state)
{
    (void)state;
    for (int has_ranges = 0; has_ranges < 2; has_ranges++) {
        struct attempt a;
        begin(&a);
        a.server.record->has_ranges = has_ranges;
        files_make_subdir(a.dir, "deep");
        files_make_subdir(a.dir, "deep/er");
        files_write_text(a.dir, "deep/er/some.bin.part", "something else");
        if (fetch(&a) != SNUG_OK)
            fail_msg("%s", a.err.message);
        assert_int_equal(a.server.record->n_requests, 2);
        assert_int_equal(a.server.record->last_range, -1);
        must_be_whole(&a);
        end(&a);
    }
}

static void test_a_part_that_is_whole_needs_no_download(void **state)
{
    struct attempt a;
    (void)state;
    begin(&a);
    assert_int_equal(fetch(&a), SNUG_OK);
    assert_int_equal(
        rename(files_path(a.dir, "deep/er/some.bin"), files_path(a.dir, "deep/er/some.bin.part")),
        0);
    assert_int_equal(fetch(&a), SNUG_OK);
    assert_int_equal(a.server.record->n_requests, 0);
    must_be_whole(&a);
    end(&a);
}

static void test_what_is_wrong_is_not_kept(void **state)
{
    struct attempt a;
    (void)state;
    begin(&a);
    a.server.record->lies = 1;
    assert_int_equal(fetch(&a), SNUG_BAD_FILE);
    must_say(&a, "does not have the published md5");
    assert_int_not_equal(access(files_path(a.dir, "deep/er/some.bin"), F_OK), 0);
    assert_int_not_equal(access(files_path(a.dir, "deep/er/some.bin.part"), F_OK), 0);
    a.set.files[0].name = "other.bin";
    assert_int_equal(fetch(&a), SNUG_BAD_FILE);
    must_say(&a, "404");
    end(&a);
}

static void test_without_curl(void **state)
{
    struct attempt a;
    char *path = strdup(getenv("PATH"));
    (void)state;
    begin(&a);
    setenv("PATH", "/nonexistent", 1);
    assert_int_equal(fetch(&a), SNUG_BAD_FILE);
    setenv("PATH", path, 1);
    must_say(&a, "the program curl: No such file");
    must_say(&a, "get some.bin from");
    free(path);
    end(&a);
}

/* A program may be started so: the end of a child cannot be waited for. */
static void test_where_children_are_ignored(void **state)
{
    struct attempt a;
    (void)state;
    begin(&a);
    a.server.record->breaks_after = 20000;
    signal(SIGCHLD, SIG_IGN);
    enum snug_status status = fetch(&a);
    signal(SIGCHLD, SIG_DFL);
    assert_int_equal(status, SNUG_BAD_FILE);
    must_say(&a, "the program curl: no word of its end: No child processes");
    end(&a);
}

static void test_an_archive_is_unpacked(void **state)
{
    struct attempt a;
    char command[3 * FILES_PATH_MAX], md5[MD5_TEXT_MAX];
    size_t n;
    (void)state;
    begin(&a);
    files_make_subdir(a.dir, "inside");
    files_write_text(a.dir, "inside/data.txt", "hello");
    files_make_subdir(a.dir, "deep");
    files_make_subdir(a.dir, "deep/er");
    snprintf(command, sizeof command, "tar -czf %s/deep/er/set.tar.gz -C %s inside", a.dir, a.dir);
    assert_int_equal(system(command), 0);
    char *bytes = files_read(files_path(a.dir, "deep/er/set.tar.gz"), &n);
    md5_of(bytes, n, n, md5);
    free(bytes);
    a.set = (struct fetch_set){"some", "some bytes", "nowhere", {{"set.tar.gz", md5}}, "inside"};
    for (int again = 0; again < 2; again++) {
        if (fetch(&a) != SNUG_OK)
            fail_msg("%s", a.err.message);
        must_say(&a, again ? "inside: unpacked already" : "set.tar.gz: unpacked to inside");
        bytes = files_read(files_path(a.dir, "deep/er/inside/data.txt"), &n);
        assert_string_equal(bytes, "hello");
        free(bytes);
    }
    end(&a);
}

/* The folder is relative, and its name is what tar takes for that of another machine.  The archive has
 * more in it than it should, and `more` leads out of the folder or stands beside it. */
static enum snug_status unpack_with(struct attempt *a, const char *more)
{
    char command[3 * FILES_PATH_MAX], md5[MD5_TEXT_MAX], *before = getcwd(NULL, 0);
    size_t n;
    files_make_subdir(a->dir, "inside");
    files_write_text(a->dir, "inside/data.txt", "hello");
    files_write_text(a->dir, "outside.txt", "not to be unpacked");
    files_make_subdir(a->dir, "host:er");
    snprintf(command, sizeof command,
             "cd %s && tar --force-local -czPf host:er/set.tar.gz inside %s", a->dir, more);
    assert_int_equal(system(command), 0);
    char *bytes = files_read(files_path(a->dir, "host:er/set.tar.gz"), &n);
    md5_of(bytes, n, n, md5);
    free(bytes);
    assert_int_equal(unlink(files_path(a->dir, "outside.txt")), 0);
    a->set = (struct fetch_set){"some", "some bytes", "nowhere", {{"set.tar.gz", md5}}, "inside"};
    assert_int_equal(chdir(a->dir), 0);
    enum snug_status status =
        fetch_set_to(&a->set, "host:er", a->server.url, note, a->said, &a->err);
    assert_int_equal(chdir(before), 0);
    free(before);
    assert_int_not_equal(access(files_path(a->dir, "host:er/outside.txt"), F_OK), 0);
    assert_int_not_equal(access(files_path(a->dir, "outside.txt"), F_OK), 0);
    return status;
}

static void test_an_archive_in_a_folder_with_a_colon(void **state)
{
    struct attempt a;
    (void)state;
    begin(&a);
    if (unpack_with(&a, "outside.txt") != SNUG_OK)
        fail_msg("%s", a.err.message);
    assert_int_equal(access(files_path(a.dir, "host:er/inside/data.txt"), F_OK), 0);
    assert_int_not_equal(access(files_path(a.dir, "host:er/.unpacking"), F_OK), 0);
    end(&a);
    begin(&a);
    assert_int_equal(unpack_with(&a, "inside/../outside.txt"), SNUG_BAD_FILE);
    must_say(&a, "cannot unpack it");
    end(&a);
}

/* ---- addresses ----------------------------------------------------------------------------- */

/* A curl of our own notes how it was called; "" if it was not. */
static char *call_of(struct attempt *a, const char *from, enum snug_status *status)
{
    char *path = strdup(getenv("PATH")), *call, script[FILES_PATH_MAX + 100];
    size_t n;
    files_make_subdir(a->dir, "programs");
    snprintf(script, sizeof script, "#!/bin/sh\nprintf '<%%s>' \"$@\" >%s\nexit 1\n",
             files_path(a->dir, "call"));
    files_write_text(a->dir, "programs/curl", script);
    assert_int_equal(chmod(files_path(a->dir, "programs/curl"), 0755), 0);
    files_write_text(a->dir, "call", "");
    setenv("PATH", files_path(a->dir, "programs"), 1);
    *status = fetch_set_to(&a->set, files_path(a->dir, "got"), from, note, a->said, &a->err);
    setenv("PATH", path, 1);
    free(path);
    call = files_read(files_path(a->dir, "call"), &n);
    return call;
}

static void test_addresses_that_are_refused(void **state)
{
    static const char *const rows[] = {
        "-K/etc/curlrc",
        "",
        "nowhere",
        "/some/folder",
        "file:///etc",
        "ftp://127.0.0.1/",
        "https:",
        "https:///some.bin",
        "https://example.org/a b",
        "https://example.org/\n-K",
        "http://example.org",
        "http://10.0.0.1",
        "http://127.0.0.1.example.org",
        "http://127.1",
        "http://127.0.0.1@example.org/",
        "http://localhost:80@example.org/",
        "http://localhost.example.org",
        "http://[::1].example.org",
        "http://[::1",
        "http://127.0.0.1:9#@example.org",
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct attempt a;
        enum snug_status status;
        begin(&a);
        char *call = call_of(&a, rows[i], &status);
        if (status != SNUG_BAD_ARGUMENT || call[0] != '\0')
            fail_msg("\"%s\" was taken: %d, curl %s", rows[i], (int)status, call);
        must_say(&a, "is no address to download from: write https://");
        assert_int_not_equal(access(files_path(a.dir, "got"), F_OK), 0);
        free(call);
        end(&a);
    }
}

static void test_how_curl_is_called(void **state)
{
    static const char *const rows[][3] = {
        {"https://example.org/set", "<--proto><=https><--proto-redir><=https>",
         "<--url><https://example.org/set/some.bin>"},
        {"http://127.0.0.1:9", "<--proto><=http,https><--proto-redir><=https>",
         "<--url><http://127.0.0.1:9/some.bin>"},
        {"http://localhost/x", "<--proto><=http,https><--proto-redir><=https>",
         "<--url><http://localhost/x/some.bin>"},
        {"http://[::1]:9", "<--proto><=http,https><--proto-redir><=https>",
         "<--url><http://[::1]:9/some.bin>"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct attempt a;
        enum snug_status status;
        begin(&a);
        char *call = call_of(&a, rows[i][0], &status);
        assert_int_equal(status, SNUG_BAD_FILE);
        if (strstr(call, rows[i][1]) == NULL || strstr(call, rows[i][2]) == NULL)
            fail_msg("curl was called with %s", call);
        free(call);
        end(&a);
    }
}

static void test_published_addresses(void **state)
{
    static const char *const names[] = {"fashion-mnist", "cifar-10"};
    (void)state;
    for (int i = 0; i < 2; i++)
        assert_int_equal(strncmp(fetch_find(names[i], NULL)->from, "https://", 8), 0);
}

static void test_redirects_to_plain_http_are_refused(void **state)
{
    struct attempt a;
    (void)state;
    begin(&a);
    snprintf(a.server.record->redirect, sizeof a.server.record->redirect, "%s/some.bin",
             a.server.url);
    assert_int_equal(fetch(&a), SNUG_BAD_FILE);
    must_say(&a, "rotocol");
    assert_int_equal(a.server.record->n_requests, 1);
    assert_int_not_equal(access(files_path(a.dir, "deep/er/some.bin"), F_OK), 0);
    end(&a);
}

static void test_a_planted_link_is_not_written_through(void **state)
{
    struct attempt a;
    char victim[FILES_PATH_MAX];
    size_t n;
    (void)state;
    begin(&a);
    files_make_subdir(a.dir, "deep");
    files_make_subdir(a.dir, "deep/er");
    files_write_text(a.dir, "victim", "");
    snprintf(victim, sizeof victim, "%s", files_path(a.dir, "victim"));
    assert_int_equal(symlink(victim, files_path(a.dir, "deep/er/some.bin.part")), 0);
    if (fetch(&a) != SNUG_OK)
        fail_msg("%s", a.err.message);
    must_be_whole(&a);
    free(files_read(victim, &n));
    assert_int_equal(n, 0);
    end(&a);
}

static void test_names(void **state)
{
    struct snug_error err = {0};
    (void)state;
    assert_non_null(fetch_find("fashion-mnist", &err));
    assert_non_null(fetch_find("cifar-10", &err));
    assert_null(fetch_find("imagenet", &err));
    assert_non_null(strstr(err.message, "there are: fashion-mnist, cifar-10"));
}

int main(void)
{
    const struct CMUnitTest plain[] = {
        cmocka_unit_test(test_md5_of_the_rfc),
        cmocka_unit_test(test_without_curl),
        cmocka_unit_test(test_an_archive_is_unpacked),
        cmocka_unit_test(test_an_archive_in_a_folder_with_a_colon),
        cmocka_unit_test(test_addresses_that_are_refused),
        cmocka_unit_test(test_how_curl_is_called),
        cmocka_unit_test(test_published_addresses),
        cmocka_unit_test(test_names),
    };
    const struct CMUnitTest with_curl[] = {
        cmocka_unit_test(test_where_children_are_ignored),
        cmocka_unit_test(test_whole_and_again),
        cmocka_unit_test(test_redirects_to_plain_http_are_refused),
        cmocka_unit_test(test_a_planted_link_is_not_written_through),
        cmocka_unit_test(test_goes_on_after_a_break),
        cmocka_unit_test(test_starts_over),
        cmocka_unit_test(test_a_part_that_is_whole_needs_no_download),
        cmocka_unit_test(test_what_is_wrong_is_not_kept),
    };
    int n_failed = cmocka_run_group_tests(plain, NULL, NULL);
    unsetenv("http_proxy");
    if (system("curl --version >/dev/null 2>&1") != 0)
        return puts("downloads are skipped: there is no curl here"), n_failed;
    return n_failed + cmocka_run_group_tests(with_curl, NULL, NULL);
}
