/*
 * cli.h -- shared by all commands.
 *
 * The program is a thin layer over include/snug.h: it parses the command line, calls the library
 * and prints.  Results go to standard output; an error is one line on standard error.
 */
#ifndef SNUG_CLI_CLI_H
#define SNUG_CLI_CLI_H

#include <stdbool.h>
#include <stdio.h>

#include "snug.h"

enum cli_exit {
    CLI_DONE = 0,
    CLI_FAILED = 1,
    CLI_WRONG_USAGE = 2,
    CLI_REFUSED = 3,  /* before the first step: over budget, disk too full, too little data */
    CLI_STOPPED = 130 /* interrupted without saving; 128 + SIGINT, as in shells */
};

/* ---- main.c: errors ---- */

/* Both print "snug: ..." on standard error and return the exit status for the error. */
int cli_fail(const struct snug_error *err);
int cli_usage_error(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Prints a note on standard error in the same form. */
void cli_note(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Prints and frees a text from the library; NULL means out of memory.  Returns an exit status. */
int cli_print_text(char *text);

/* ---- args.c: parsing the command line of one command ---- */

enum flag_kind { FLAG_SWITCH, FLAG_COUNT, FLAG_REAL, FLAG_TEXT };

struct flag {
    const char *name; /* without dashes */
    enum flag_kind kind;
    void *value;  /* bool, int64_t, double or const char *, by kind; unchanged if not given */
    double least; /* minimum of a count or a real */
    char letter;  /* it may also be written as -o or -0; '\0': it has no letter */
    bool given;
};

enum { ARGS_POSITIONAL_MOST = 256 };

struct args {
    const char *command;
    const char *operand_names; /* for messages: "MODEL [DATA]" */
    int least_operands, most_operands;
    struct flag *flags;
    int n_flags;
    bool takes_recipe;
    /* filled by args_parse: */
    const char *operands[ARGS_POSITIONAL_MOST];
    int n_operands;
    snug_recipe *recipe; /* NULL unless takes_recipe */
    int exit_status;     /* when args_parse returns false */
};

/* argv[0] is the command.  Returns false after printing help or an error; then return
 * args->exit_status.  Call args_free in either case. */
bool args_parse(struct args *args, int argc, char **argv);
void args_free(struct args *args);
bool args_given(const struct args *args, const char *flag_name);

/* ---- suggest.c ---- */

struct foreign_flag { /* a flag of another training program */
    const char *typed, *flag, *instead;
};
const struct foreign_flag *suggest_foreign(const char *typed); /* NULL: unknown */

/* ---- help.c ---- */

int help_print(FILE *to, const char *command); /* NULL: the overview; returns an exit status */
bool help_has_list(const char *name);          /* is it a list of snug_list? */
void help_usage(FILE *to);                     /* two lines */

/* ---- screen.c: terminals and number formats ---- */

bool screen_is_live(FILE *stream); /* is it a terminal that can redraw a line? */
bool screen_has_color(FILE *stream);
int screen_columns(FILE *stream); /* at most 80 */
/* Output of a language model, byte by byte.  On a terminal, control characters except newline and
 * tab become '?', and the bytes of a UTF-8 character are buffered until it is complete. */
struct screen_text {
    FILE *to;
    char held[8];
    int n; /* bytes in held */
};
void screen_write(struct screen_text *text, const char *bytes, size_t length);
void screen_end(struct screen_text *text); /* flushes the buffered bytes */

/* Counts and sizes must be at least 0. */
enum { NUMBER_MAX = 40 };
const char *number_count(int64_t n, char out[NUMBER_MAX]);         /* "1,234,567" */
const char *number_size(int64_t bytes, char out[NUMBER_MAX]);      /* "1.15 GiB" */
const char *number_rate(double per_second, char out[NUMBER_MAX]);  /* "12,345" or "3.2" */
const char *number_loss(double loss, char out[NUMBER_MAX]);        /* "3.2101" */
const char *number_duration(double seconds, char out[NUMBER_MAX]); /* "4m12s" */
void json_number(FILE *to, const char *key, double value, const char *after);
void json_text(FILE *to, const char *key, const char *text, const char *after);

/* ---- interrupt.c ---- */

/* Installs the handlers: the first SIGINT or SIGTERM requests a stop, the second kills; SIGHUP
 * requests a stop. */
void interrupt_watch(void);
bool interrupt_asked(void);
/* If a step is still running that many seconds after the signal, the program prints the message of
 * interrupt_begin_step (one line, or "" for none) on standard error and exits with CLI_STOPPED. */
void interrupt_set_grace(int seconds);
void interrupt_begin_step(const char *message);
void interrupt_end_step(void);

/* ---- spin.c ---- */

/* Limits how long idle OpenMP threads spin, unless the user's environment sets a limit.  Call it
 * first: it may exec the program again. */
void spin_bound(char **argv);

/* ---- commands: argv[0] is the command; each returns an exit status ---- */

int cmd_plan(int argc, char **argv);
int cmd_fit(int argc, char **argv);
int cmd_train(int argc, char **argv);
int cmd_eval(int argc, char **argv);
int cmd_generate(int argc, char **argv);
int cmd_inspect(int argc, char **argv);
int cmd_ops(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_data(int argc, char **argv);
int cmd_tokenize(int argc, char **argv);

#endif
