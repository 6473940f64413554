/* SPDX-License-Identifier: Apache-2.0 */
#include "config/options.h"

#include "base/util.h"
#include "config/glob.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <string.h>

/* The words of each enum, in the order of its values. */
static const char *const words_mode[] = { "prod", "shadow", "off", NULL };
static const char *const words_policy[] = { "auto", "hotness", "lru", NULL };
static const char *const words_admit[] = { "free", "second", NULL };
static const char *const words_verify[] = { "always", "first", "off", NULL };
static const char *const words_onoff[] = { "off", "on", NULL };
static const char *const words_log[] = { "error", "warn", "info", "debug", NULL };

enum option_type {
        STRING, SIZE, RESERVE, SECONDS, GLOBS,
        ENUM_mode, ENUM_policy, ENUM_admit, ENUM_verify, ENUM_onoff, ENUM_log,
};
static const char *const *const enum_words[] = {
        [ENUM_mode] = words_mode,     [ENUM_policy] = words_policy, [ENUM_admit] = words_admit,
        [ENUM_verify] = words_verify, [ENUM_onoff] = words_onoff,   [ENUM_log] = words_log,
};

static const struct option_def {
        const char *name, *initial, *value, *doc;
        enum option_type type;
        size_t offset;
} defs[] = {
#define OPTION(field, kind, def, val, text) { #field, def, val, text, kind, offsetof(struct options, field) },
#include "config/options.def"
#undef OPTION
};

/* What mount(8), systemd and libmount add to a line; none of it changes what we do. */
static const char *const ignored_words[] = {
        "defaults", "auto",  "noauto",     "user",       "users",      "nouser",  "owner",     "group",
        "_netdev",  "async", "sync",       "dirsync",    "atime",      "noatime", "relatime",  "norelatime",
        "nodiratime", "diratime", "strictatime", "nostrictatime", "lazytime", "nolazytime", "iversion", "noiversion",
        "mand",     "nomand", "loud", "silent", "exec", "suid", "dev", "fail", "bootwait", "nobootwait",
        "allow_other", "default_permissions", NULL,
};
static const char *const ignored_prefixes[] = { "x-", "X-", "comment=", "context=", "fscontext=", "defcontext=",
                                                "rootcontext=", NULL };

int parse_size(const char *text, uint64_t *ret) {
        static const char units[] = "KMGT";
        char *end;

        if (!(*text >= '0' && *text <= '9') && *text != '.')
                return -EINVAL;
        double v = strtod(text, &end);
        if (end == text || !isfinite(v) || strpbrk(text, "xXpPeE"))
                return -EINVAL;
        const char *u = isalpha((unsigned char)*end) ? strchr(units, toupper((unsigned char)*end)) : NULL;
        if (u) {
                v *= pow(1024, (double)(u - units + 1));
                end++;
                if (strcmp(end, "iB") == 0)
                        end += 2;
        }
        if (strcmp(end, "B") == 0)
                end++;
        if (*end)
                return -EINVAL;
        if (v >= 9.2e18)
                return -ERANGE;
        *ret = (uint64_t)v;
        return 0;
}

/* A decimal number and nothing else, as strtod alone would not have it. */
static bool is_decimal(const char *text) { return text[strspn(text, "0123456789.")] == '\0'; }

static int set_reserve(struct reserve *r, const char *text) {
        char *end;
        double pct = strtod(text, &end);

        if (end != text && strcmp(end, "%") == 0 && strspn(text, "0123456789.") == (size_t)(end - text)) {
                if (!(pct >= 0 && pct < 100))
                        return -ERANGE;
                *r = (struct reserve){ .percent = pct };
                return 0;
        }
        *r = (struct reserve){ 0 };
        return parse_size(text, &r->bytes);
}

static int set_seconds(double *ret, const char *text) {
        char *end;
        double v = strtod(text, &end);

        if (end == text || *end || !is_decimal(text) || !(v >= 0 && v <= 86400))
                return -EINVAL;
        *ret = v;
        return 0;
}

static int set_enum(int *ret, const char *const *words, const char *text) {
        for (int i = 0; words[i]; i++)
                if (strcmp(words[i], text) == 0) {
                        *ret = i;
                        return 0;
                }
        return -EINVAL;
}

static int add_glob(struct globs *g, const char *text) {
        char **grown = realloc(g->pattern, (g->count + 1) * sizeof *grown);
        if (!grown)
                return -ENOMEM;
        g->pattern = grown;
        if (!(grown[g->count] = strdup(text)))
                return -ENOMEM;
        g->count++;
        return 0;
}

static int set_value(struct options *o, const struct option_def *d, const char *text) {
        void *field = (char *)o + d->offset;

        switch (d->type) {
        case STRING: {
                char *copy = strdup(text);
                if (!copy)
                        return -ENOMEM;
                free(*(char **)field);
                *(char **)field = copy;
                return 0;
        }
        case SIZE: return parse_size(text, field);
        case RESERVE: return set_reserve(field, text);
        case SECONDS: return set_seconds(field, text);
        case GLOBS: return add_glob(field, text);
        default: return set_enum(field, enum_words[d->type], text);
        }
}

static const struct option_def *find_def(const char *name, size_t len) {
        for (size_t i = 0; i < ARRAY_SIZE(defs); i++)
                if (strlen(defs[i].name) == len && memcmp(defs[i].name, name, len) == 0)
                        return &defs[i];
        return NULL;
}

static bool is_generic(const char *word) {
        for (size_t i = 0; ignored_words[i]; i++)
                if (strcmp(ignored_words[i], word) == 0)
                        return true;
        for (size_t i = 0; ignored_prefixes[i]; i++)
                if (strncmp(ignored_prefixes[i], word, strlen(ignored_prefixes[i])) == 0)
                        return true;
        return false;
}

static bool set_flag(struct options *o, const char *word) {
        const struct {
                const char *word;
                bool *flag, value;
        } flags[] = {
                { "ro", &o->ro, true },         { "rw", &o->ro, false },       { "nofail", &o->nofail, true },
                { "noexec", &o->noexec, true }, { "nosuid", &o->nosuid, true }, { "nodev", &o->nodev, true },
        };

        for (size_t i = 0; i < ARRAY_SIZE(flags); i++)
                if (strcmp(flags[i].word, word) == 0) {
                        *flags[i].flag = flags[i].value;
                        return true;
                }
        return false;
}

/* Levenshtein distance of two short words, for "did you mean". */
static size_t edit_distance(const char *a, const char *b) {
        size_t la = strlen(a), lb = strlen(b), row[32];

        if (lb + 1 > ARRAY_SIZE(row))
                return SIZE_MAX;
        for (size_t j = 0; j <= lb; j++)
                row[j] = j;
        for (size_t i = 1; i <= la; i++) {
                size_t diagonal = row[0];
                row[0] = i;
                for (size_t j = 1; j <= lb; j++) {
                        size_t above = row[j], change = diagonal + (a[i - 1] != b[j - 1]);
                        size_t step = (above < row[j - 1] ? above : row[j - 1]) + 1;
                        row[j] = change < step ? change : step;
                        diagonal = above;
                }
        }
        return row[lb];
}

static const char *nearest(const char *name) {
        size_t best = SIZE_MAX;
        const char *found = defs[0].name;

        for (size_t i = 0; i < ARRAY_SIZE(defs); i++) {
                size_t d = edit_distance(name, defs[i].name);
                if (d < best) {
                        best = d;
                        found = defs[i].name;
                }
        }
        return found;
}

static int parse_word(struct options *o, char *word, char *error, size_t error_size) {
        size_t name_len = strcspn(word, "=");
        const struct option_def *d = find_def(word, name_len);

        if (d && word[name_len] == '=') {
                int r = word[name_len + 1] ? set_value(o, d, word + name_len + 1) : -EINVAL;
                if (r < 0)
                        snprintf(error, error_size, "option %s: '%s' is not %s", d->name, word + name_len + 1,
                                 r == -ENOMEM ? "stored: out of memory" : d->value);
                return r;
        }
        if (d) {
                snprintf(error, error_size, "option %s needs a value: %s=%s", d->name, d->name, d->value);
                return -EINVAL;
        }
        if (set_flag(o, word) || is_generic(word))
                return 0;
        word[name_len] = '\0';
        snprintf(error, error_size, "unknown option '%s'; did you mean '%s'? ('hotset mount --help' lists all)", word,
                 nearest(word));
        return -EINVAL;
}

int options_parse(struct options *o, const char *words, char *error, size_t error_size) {
        _cleanup_free_ char *copy = strdup(words);
        char *in = copy;

        if (!copy)
                return -ENOMEM;
        while (*in) {
                char *word = in, *out = in;
                while (*in && *in != ',') {
                        if (*in == '\\' && in[1])
                                in++;
                        *out++ = *in++;
                }
                if (*in)
                        in++;
                *out = '\0';
                int r = *word ? parse_word(o, word, error, error_size) : 0;
                if (r < 0)
                        return r;
        }
        return 0;
}

int options_init(struct options *o) {
        *o = (struct options){ 0 };
        for (size_t i = 0; i < ARRAY_SIZE(defs); i++) {
                int r = defs[i].initial ? set_value(o, &defs[i], defs[i].initial) : 0;
                if (r < 0)
                        return r;
        }
        return 0;
}

static void globs_clear(struct globs *g) {
        for (size_t i = 0; i < g->count; i++)
                free(g->pattern[i]);
        free(g->pattern);
        *g = (struct globs){ 0 };
}

void options_clear(struct options *o) {
        free(o->cache);
        o->cache = NULL;
        globs_clear(&o->include);
        globs_clear(&o->exclude);
}

void options_help(FILE *f) {
        for (size_t i = 0; i < ARRAY_SIZE(defs); i++) {
                fprintf(f, "  %s=%s%*s%s", defs[i].name, defs[i].value,
                        (int)(30 - strlen(defs[i].name) - strlen(defs[i].value)), "", defs[i].doc);
                if (defs[i].initial)
                        fprintf(f, " (default %s)", defs[i].initial);
                fputc('\n', f);
        }
        fprintf(f, "  %-30s %s\n", "ro, rw", "read-only, or writable where the source is (default rw)");
        fprintf(f, "  %-30s %s\n", "nofail", "where the cache cannot be used, mount without one and warn");
}

const char *options_name(const char *option, int value) {
        const struct option_def *d = find_def(option, strlen(option));

        return d && d->type >= ENUM_mode ? enum_words[d->type][value] : "";
}

static bool any_glob(const struct globs *g, const char *path) {
        for (size_t i = 0; i < g->count; i++)
                if (glob_match(g->pattern[i], path))
                        return true;
        return false;
}

bool options_path_wanted(const struct options *o, const char *path) {
        return (o->include.count == 0 || any_glob(&o->include, path)) && !any_glob(&o->exclude, path);
}
