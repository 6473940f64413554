/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mount options: parsed from the comma-separated words of -o and fstab, printed for --help.
 *
 * Words that belong to mount(8) and init systems (nofail, noauto, user, _netdev, x-*, comment=...) are accepted and
 * remembered only where they change what we do.  A backslash escapes a comma.  No locks: parsed before any thread.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum opt_mode { MODE_PROD, MODE_SHADOW, MODE_OFF };
enum opt_policy { OPT_POLICY_AUTO, OPT_POLICY_HOTNESS, OPT_POLICY_LRU };
enum opt_admit { ADMIT_FREE, ADMIT_SECOND };
enum opt_verify { VERIFY_ALWAYS, VERIFY_FIRST, VERIFY_OFF };
enum opt_onoff { OPT_OFF, OPT_ON };

struct reserve {
        uint64_t bytes;
        double percent; /* of the file system; used where it is not 0 */
};
struct globs {
        char **pattern;
        size_t count;
};

struct options {
        char *cache;
        uint64_t size, min_size, write_rate, readahead;
        struct reserve reserve;
        int mode, policy, admit, verify, promote, log;
        struct globs include, exclude;
        double attr_timeout; /* seconds */
        bool ro, nofail;     /* generic words that change what we do */
        bool noexec, nosuid, nodev;
};

int options_init(struct options *o); /* the defaults */
void options_clear(struct options *o);
/* -EINVAL with a sentence in `error`: what is wrong, and the nearest option. */
int options_parse(struct options *o, const char *words, char *error, size_t error_size);
void options_help(FILE *f);
const char *options_name(const char *option, int value); /* the word of an enum's value, e.g. ("mode", MODE_OFF) */
/* True where the file at `path` (relative to the mount) may be cached. */
bool options_path_wanted(const struct options *o, const char *path);

/* "1.5G", "64KiB", "4096": bytes, binary units.  -EINVAL, -ERANGE. */
int parse_size(const char *text, uint64_t *ret);
