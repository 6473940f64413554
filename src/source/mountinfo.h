/* SPDX-License-Identifier: Apache-2.0 */
/*
 * /proc/self/mountinfo, read without touching any mount: a stat could hang on the very mount that is asked about.
 * Strings are unescaped and owned by the entry.  No locks.
 */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

struct mount_entry {
        int id, parent;
        unsigned major, minor;
        char *root, *point, *options, *type, *source, *super_options;
};
void mount_entry_clear(struct mount_entry *m);
bool mount_entry_is_hotset(const struct mount_entry *m);

/* Calls `fn` for each mount, bottom first; stops at the first result other than 0 and returns it.  `fn` may take
 * strings out of the entry by setting them to NULL. */
int mountinfo_each(int (*fn)(struct mount_entry *m, void *ctx), void *ctx);

/* -ENOENT where there is none.  `point` is an absolute path; the topmost mount there wins. */
int mountinfo_find_dev(dev_t dev, struct mount_entry *ret);
int mountinfo_find_point(const char *point, struct mount_entry *ret);
/* The mount that `path` (absolute, normalised) lies in, by the longest prefix, topmost first. */
int mountinfo_find_path(const char *path, struct mount_entry *ret);
