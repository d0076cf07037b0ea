/*
 * main.c -- finds the command, runs it, and checks that its output was written.
 */
#include "cli/cli.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    bool has_threads; /* computes with several threads */
};

static const struct command commands[] = {
    {"plan", cmd_plan, false},        {"train", cmd_train, true},      {"eval", cmd_eval, true},
    {"generate", cmd_generate, true}, {"inspect", cmd_inspect, false}, {"ops", cmd_ops, false},
    {"fit", cmd_fit, true},           {"bench", cmd_bench, true},      {"data", cmd_data, false},
    {"tokenize", cmd_tokenize, true},
};
enum { N_COMMANDS = sizeof commands / sizeof commands[0] };

/* Prints exactly one line, even if a file name or value contains line breaks. */
static void print_line(const char *format, va_list args)
{
    char line[1024];
    vsnprintf(line, sizeof line, format, args);
    fflush(stdout);
    fprintf(stderr, "snug: %s\n", snug_printable(line));
}

void cli_note(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    print_line(format, args);
    va_end(args);
}

int cli_usage_error(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    print_line(format, args);
    va_end(args);
    return CLI_WRONG_USAGE;
}

int cli_fail(const struct snug_error *err)
{
    if (err->status != SNUG_PEER_FAILED) /* the rank that failed prints the message */
        cli_note("%s", err->message[0] != '\0' ? err->message : snug_status_text(err->status));
    switch (err->status) {
    case SNUG_BAD_ARGUMENT:
        return CLI_WRONG_USAGE;
    case SNUG_OVER_BUDGET:
    case SNUG_NO_DATA:
        return CLI_REFUSED;
    default:
        return CLI_FAILED;
    }
}

int cli_print_text(char *text)
{
    if (text == NULL) {
        cli_note("%s", snug_status_text(SNUG_NO_MEMORY));
        return CLI_FAILED;
    }
    size_t length = strlen(text);
    fputs(text, stdout);
    if (length == 0 || text[length - 1] != '\n')
        putchar('\n');
    snug_free(text);
    return CLI_DONE;
}

/* If a standard stream is closed at start, the next file we open would get its descriptor, and
 * messages would be written into a checkpoint.  /dev/null, opened in the wrong mode, occupies the
 * descriptor and still makes every write (for stdin, every read) fail. */
static void hold_standard_streams(void)
{
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) == -1 && errno == EBADF)
            if (open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY) != fd)
                _exit(CLI_FAILED);
}

static int unknown_command(const char *name)
{
    const char *names[N_COMMANDS + 1] = {"help"};
    for (int i = 0; i < N_COMMANDS; i++)
        names[i + 1] = commands[i].name;
    const char *near = snug_nearest(name, names, N_COMMANDS + 1);
    if (near != NULL)
        return cli_usage_error("there is no command \"%s\"; did you mean %s?", name, near);
    return cli_usage_error("there is no command \"%s\"; snug help lists all commands", name);
}

static int help_command(int argc, char **argv)
{
    if (argc > 2)
        return cli_usage_error("snug help takes one command, not %d", argc - 1);
    const char *name = argc == 2 ? argv[1] : NULL;
    if (name == NULL || strcmp(name, "help") == 0 || strcmp(name, "--help") == 0)
        return help_print(stdout, NULL);
    if (help_has_list(name))
        return cli_print_text(snug_list(name));
    for (int i = 0; i < N_COMMANDS; i++)
        if (strcmp(name, commands[i].name) == 0)
            return help_print(stdout, name);
    return unknown_command(name);
}

static int run(int argc, char **argv)
{
    if (argc == 0) {
        help_usage(stderr);
        return CLI_WRONG_USAGE;
    }
    const char *name = argv[0];
    if (snug_launch_rank() > 0 && strcmp(name, "train") != 0)
        return CLI_DONE; /* under mpirun only rank 0 runs a command, except train */
    if (strcmp(name, "help") == 0 || strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0)
        return help_command(argc, argv);
    if (strcmp(name, "--version") == 0 || strcmp(name, "-V") == 0)
        return cli_print_text(snug_build_info());
    if (name[0] == '-')
        return cli_usage_error("the command comes first: snug COMMAND %s", name);
    for (int i = 0; i < N_COMMANDS; i++)
        if (strcmp(name, commands[i].name) == 0)
            return commands[i].run(argc, argv);
    return unknown_command(name);
}

static bool has_threads(const char *name)
{
    for (int i = 0; i < N_COMMANDS; i++)
        if (strcmp(name, commands[i].name) == 0)
            return commands[i].has_threads;
    return false;
}

int main(int argc, char **argv)
{
    hold_standard_streams();
    if (argc > 1 && has_threads(argv[1]))
        spin_bound(argv);
    signal(SIGXFSZ, SIG_IGN);           /* a write past RLIMIT_FSIZE fails instead */
    json_set_alloc_funcs(malloc, free); /* jansson shares the program's malloc */
    int status = argc > 0 ? run(argc - 1, argv + 1) : CLI_WRONG_USAGE;

    errno = 0;
    bool lost = ferror(stdout) != 0;
    if (fflush(stdout) != 0)
        lost = true;
    if (lost) {
        fprintf(stderr, "snug: cannot write to standard output%s%s\n", errno != 0 ? ": " : "",
                errno != 0 ? strerror(errno) : "");
        if (status == CLI_DONE)
            status = CLI_FAILED;
    }
    return status;
}
