/* SPDX-License-Identifier: Apache-2.0 */
/*
 * generate VERSION TEMPLATE PAGE: a manual page from its template.  @VERSION@ is replaced wherever it stands; a line
 * @OPTIONS@ or @COUNTERS@ becomes the list of all of them, from the tables that the program itself is made of.
 * A table that the template does not use, or a placeholder that is unknown, is an error.
 */
#include <ctype.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
        const char *name, *initial, *value, *doc;
} options[] = {
#define OPTION(field, kind, def, val, text) { #field, def, val, text },
#include "config/options.def"
#undef OPTION
};

static const struct {
        const char *name, *doc;
} counters[] = {
#define COUNTER(name, doc) { #name, doc },
#include "cache/counters.def"
#undef COUNTER
};

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* What roff would take for its own, or turn into other characters than the ones that a terminal has. */
static void put_escaped(FILE *f, const char *s) {
        for (; *s; s++)
                switch (*s) {
                case '\\': fputs("\\e", f); break;
                case '-': fputs("\\-", f); break;
                case '~': fputs("\\(ti", f); break;
                case '^': fputs("\\(ha", f); break;
                case '`': fputs("\\(ga", f); break;
                default: fputc(*s, f);
                }
}

/* A line of text: a control character in front would make it a request. */
static void put_text(FILE *f, const char *s) {
        if (*s == '.' || *s == '\'')
                fputs("\\&", f);
        put_escaped(f, s);
}

/* "SIZE|PCT%" are things to fill in, "on|off" are words to write. */
static void put_value(FILE *f, const char *value) {
        while (*value) {
                char word[64];
                size_t len = strcspn(value, "|");

                if (len >= sizeof word)
                        len = sizeof word - 1;
                memcpy(word, value, len);
                word[len] = '\0';
                fputs(isupper((unsigned char)*word) ? "\\fI" : "\\fB", f);
                put_escaped(f, word);
                fputs("\\fR", f);
                value += len;
                if (*value == '|')
                        fputc(*value++, f);
        }
}

static void put_options(FILE *f) {
        for (size_t i = 0; i < COUNT(options); i++) {
                fputs(".TP\n\\fB", f);
                put_escaped(f, options[i].name);
                fputs("=\\fR", f);
                put_value(f, options[i].value);
                fputc('\n', f);
                put_text(f, options[i].doc);
                if (options[i].initial) {
                        fputs(" (default ", f);
                        put_escaped(f, options[i].initial);
                        fputc(')', f);
                }
                fputs(".\n", f);
        }
}

static void put_counters(FILE *f) {
        for (size_t i = 0; i < COUNT(counters); i++) {
                fputs(".TP\n\\fB", f);
                put_escaped(f, counters[i].name);
                fputs("\\fR\n", f);
                put_text(f, counters[i].doc);
                fputs(".\n", f);
        }
}

static void put_line(FILE *f, const char *line, const char *version) {
        static const char place[] = "@VERSION@";
        const char *at;

        while ((at = strstr(line, place))) {
                fwrite(line, 1, (size_t)(at - line), f);
                put_escaped(f, version);
                line = at + sizeof place - 1;
        }
        fputs(line, f);
}

static bool fill_in(FILE *in, FILE *out, const char *version) {
        struct {
                const char *line;
                void (*put)(FILE *f);
                bool used;
        } lists[] = { { "@OPTIONS@\n", put_options, false }, { "@COUNTERS@\n", put_counters, false } };
        char *line = NULL;
        size_t size = 0;
        bool good = true;

        while (getline(&line, &size, in) > 0) {
                bool done = false;
                for (size_t i = 0; i < COUNT(lists); i++)
                        if (strcmp(line, lists[i].line) == 0) {
                                lists[i].put(out);
                                lists[i].used = done = true;
                        }
                if (!done && line[0] == '@') {
                        fprintf(stderr, "generate: unknown placeholder: %s", line);
                        good = false;
                }
                if (!done)
                        put_line(out, line, version);
        }
        free(line);
        for (size_t i = 0; i < COUNT(lists); i++)
                if (!lists[i].used) {
                        fprintf(stderr, "generate: the template has no line %s", lists[i].line);
                        good = false;
                }
        return good && !ferror(in);
}

int main(int argc, char **argv) {
        if (argc != 4) {
                fputs("usage: generate VERSION TEMPLATE PAGE\n", stderr);
                return 1;
        }
        FILE *in = fopen(argv[2], "r"), *out = in ? fopen(argv[3], "w") : NULL;
        if (!out) {
                fprintf(stderr, "generate: cannot open %s: %s\n", argv[in ? 3 : 2], strerror(errno));
                return 1;
        }
        bool good = fill_in(in, out, argv[1]);
        fclose(in);
        if (fclose(out) != 0 || !good) {
                remove(argv[3]);
                return 1;
        }
        return 0;
}
