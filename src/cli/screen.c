/*
 * screen.c -- terminal capabilities and human-readable numbers.
 */
#include "cli/cli.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { COLUMNS_MOST = 80 };

bool screen_is_live(FILE *stream)
{
    const char *term = getenv("TERM");
    /* mpirun gives its processes a pseudo-terminal and forwards their output */
    return snug_launch_rank() < 0 && isatty(fileno(stream)) && term != NULL &&
           strcmp(term, "dumb") != 0;
}

bool screen_has_color(FILE *stream)
{
    const char *no_color = getenv("NO_COLOR");
    return screen_is_live(stream) && (no_color == NULL || no_color[0] == '\0');
}

int screen_columns(FILE *stream)
{
    struct winsize size;
    if (ioctl(fileno(stream), TIOCGWINSZ, &size) != 0 || size.ws_col == 0 ||
        size.ws_col > COLUMNS_MOST)
        return COLUMNS_MOST;
    return size.ws_col;
}

/* Length of the UTF-8 character with this first byte; 1 if it is not a valid first byte. */
static int utf8_bytes(unsigned char first)
{
    return first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : first >= 0xC2 ? 2 : 1;
}

static void write_byte(struct screen_text *text, unsigned char c)
{
    bool continues = text->n > 0 && (c & 0xC0) == 0x80;
    if (text->n > 0 && !continues)
        screen_end(text);
    if (c == '\n' || c == '\t') {
        putc(c, text->to);
        return;
    }
    text->held[text->n++] = (char)c;
    text->held[text->n] = '\0';
    if (text->n == utf8_bytes((unsigned char)text->held[0]))
        screen_end(text);
}

void screen_write(struct screen_text *text, const char *bytes, size_t length)
{
    if (!isatty(fileno(text->to)))
        fwrite(bytes, 1, length, text->to);
    else
        for (size_t i = 0; i < length; i++)
            write_byte(text, (unsigned char)bytes[i]);
}

void screen_end(struct screen_text *text)
{
    fputs(snug_printable(text->held), text->to);
    text->held[0] = '\0';
    text->n = 0;
}

const char *number_count(int64_t n, char out[NUMBER_MAX])
{
    char digits[NUMBER_MAX];
    int length = snprintf(digits, sizeof digits, "%lld", (long long)n);
    char *to = out;
    for (int i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0)
            *to++ = ',';
        *to++ = digits[i];
    }
    *to = '\0';
    return out;
}

const char *number_size(int64_t bytes, char out[NUMBER_MAX])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double value = (double)bytes;
    int unit = 0;
    while (value >= 1000 && unit < 6) {
        value /= 1024;
        unit++;
    }
    int decimals = unit == 0 || value >= 100 ? 0 : value < 10 ? 2 : 1;
    snprintf(out, NUMBER_MAX, "%.*f %s", decimals, value, units[unit]);
    return out;
}

const char *number_rate(double per_second, char out[NUMBER_MAX])
{
    if (per_second >= 100 && per_second < 9e15)
        return number_count(llround(per_second), out);
    snprintf(out, NUMBER_MAX, "%.3g", per_second);
    return out;
}

const char *number_loss(double loss, char out[NUMBER_MAX])
{
    snprintf(out, NUMBER_MAX, fabs(loss) < 1e4 ? "%.4f" : "%.4g", loss);
    return out;
}

const char *number_duration(double seconds, char out[NUMBER_MAX])
{
    long long whole = seconds < 9e15 ? llround(seconds) : 0;
    if (whole < 60)
        snprintf(out, NUMBER_MAX, "%llds", whole);
    else if (whole < 3600)
        snprintf(out, NUMBER_MAX, "%lldm%02llds", whole / 60, whole % 60);
    else if (whole < 100 * 3600)
        snprintf(out, NUMBER_MAX, "%lldh%02lldm", whole / 3600, whole / 60 % 60);
    else
        snprintf(out, NUMBER_MAX, "%lldd%02lldh", whole / 86400, whole / 3600 % 24);
    return out;
}

void json_number(FILE *to, const char *key, double value, const char *after)
{
    if (isfinite(value))
        fprintf(to, "\"%s\": %.9g%s", key, value, after);
    else
        fprintf(to, "\"%s\": null%s", key, after); /* JSON has no NaN */
}

void json_text(FILE *to, const char *key, const char *text, const char *after)
{
    fprintf(to, "\"%s\": \"", key);
    for (; *text != '\0'; text++) {
        if (*text == '"' || *text == '\\')
            putc('\\', to);
        putc((unsigned char)*text < ' ' ? ' ' : *text, to);
    }
    fprintf(to, "\"%s", after);
}
