/* SPDX-License-Identifier: Apache-2.0 */
#include "source/mountinfo.h"

#include "base/util.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/sysmacros.h>

void mount_entry_clear(struct mount_entry *m) {
        free(m->root);
        free(m->point);
        free(m->options);
        free(m->type);
        free(m->source);
        free(m->super_options);
        *m = (struct mount_entry){ 0 };
}

bool mount_entry_is_hotset(const struct mount_entry *m) { return strcmp(m->type, "fuse.hotset") == 0; }

static bool is_octal(char c) { return c >= '0' && c <= '7'; }

/* The kernel writes blanks and backslashes as \ooo. */
static char *unescape(const char *s) {
        char *copy = strdup(s), *out = copy;

        if (!copy)
                return NULL;
        while (*s) {
                if (s[0] == '\\' && is_octal(s[1]) && is_octal(s[2]) && is_octal(s[3])) {
                        *out++ = (char)((s[1] - '0') << 6 | (s[2] - '0') << 3 | (s[3] - '0'));
                        s += 4;
                } else {
                        *out++ = *s++;
                }
        }
        *out = '\0';
        return copy;
}

/* 36 35 98:0 /root /point options [tags ...] - type source super_options */
static int parse_line(char *line, struct mount_entry *m) {
        char *field[6], *save = NULL, *word;
        size_t n = 0;

        for (word = strtok_r(line, " \n", &save); word && strcmp(word, "-") != 0; word = strtok_r(NULL, " \n", &save))
                if (n < ARRAY_SIZE(field))
                        field[n++] = word;
        char *type = strtok_r(NULL, " \n", &save), *source = strtok_r(NULL, " \n", &save);
        char *super_options = strtok_r(NULL, " \n", &save);
        if (n < ARRAY_SIZE(field) || !type || sscanf(field[2], "%u:%u", &m->major, &m->minor) != 2)
                return -EBADMSG;
        m->id = atoi(field[0]);
        m->parent = atoi(field[1]);
        m->root = unescape(field[3]);
        m->point = unescape(field[4]);
        m->options = unescape(field[5]);
        m->type = unescape(type);
        m->source = unescape(source ? source : "");
        m->super_options = unescape(super_options ? super_options : "");
        return m->root && m->point && m->options && m->type && m->source && m->super_options ? 0 : -ENOMEM;
}

int mountinfo_each(int (*fn)(struct mount_entry *m, void *ctx), void *ctx) {
        FILE *f = fopen("/proc/self/mountinfo", "re");
        _cleanup_free_ char *line = NULL;
        size_t size = 0;
        int r = 0;

        if (!f)
                return -errno;
        while (r == 0 && getline(&line, &size, f) > 0) {
                struct mount_entry m = { 0 };
                r = parse_line(line, &m);
                if (r == 0)
                        r = fn(&m, ctx);
                else if (r == -EBADMSG)
                        r = 0; /* a line that we do not understand is none of ours */
                mount_entry_clear(&m);
        }
        fclose(f);
        return r;
}

struct find {
        bool (*match)(const struct mount_entry *m, const struct find *f);
        dev_t dev;
        const char *path;
        struct mount_entry best;
};

static int keep_match(struct mount_entry *m, void *ctx) {
        struct find *f = ctx;

        if (!f->match(m, f))
                return 0;
        /* Lines come by number, not by stack: one that was moved on top may be listed before what it covers. */
        if (f->best.point && strcmp(f->best.point, m->point) == 0 && f->best.parent == m->id)
                return 0;
        mount_entry_clear(&f->best);
        f->best = *m;
        *m = (struct mount_entry){ 0 };
        return 0;
}

static int find(struct find *f, struct mount_entry *ret) {
        int r = mountinfo_each(keep_match, f);

        if (r == 0 && f->best.point) {
                *ret = f->best;
                return 0;
        }
        mount_entry_clear(&f->best);
        return r < 0 ? r : -ENOENT;
}

static bool has_dev(const struct mount_entry *m, const struct find *f) {
        return !f->best.point && makedev(m->major, m->minor) == f->dev;
}
static bool has_point(const struct mount_entry *m, const struct find *f) { return strcmp(m->point, f->path) == 0; }
static bool holds_path(const struct mount_entry *m, const struct find *f) {
        size_t n = strlen(m->point);

        if (n == 1)
                n = 0;
        return strncmp(m->point, f->path, n) == 0 && (f->path[n] == '/' || f->path[n] == '\0') &&
               (!f->best.point || n >= (strlen(f->best.point) == 1 ? 0 : strlen(f->best.point)));
}

int mountinfo_find_dev(dev_t dev, struct mount_entry *ret) {
        struct find f = { .match = has_dev, .dev = dev };
        return find(&f, ret);
}
int mountinfo_find_point(const char *point, struct mount_entry *ret) {
        struct find f = { .match = has_point, .path = point };
        return find(&f, ret);
}
int mountinfo_find_path(const char *path, struct mount_entry *ret) {
        struct find f = { .match = holds_path, .path = path };
        return find(&f, ret);
}
