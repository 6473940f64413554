/* SPDX-License-Identifier: Apache-2.0 */
/* hotset status: asks the daemons.  Finds mounts in mountinfo alone, so a hung mount cannot hang it. */
#include "base/util.h"
#include "cli/cli.h"
#include "control/protocol.h"
#include "control/status.h"
#include "source/mountinfo.h"
#include "source/paths.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <string.h>

static int ask(const struct mount_entry *m, json_t **ret) {
        json_t *request = json_pack("{s:s}", "command", "status");
        int r = control_call(m->minor, request, 5, ret);

        json_decref(request);
        return r;
}

static int no_answer(const struct mount_entry *m, int r) {
        return cli_fail(EXIT_SYSTEM, "%s: its daemon does not answer (%s); 'umount %s' and mount again if it has died",
                        m->point, strerror(-r), m->point);
}

static void print(json_t *status, bool json) {
        if (json) {
                json_dumpf(status, stdout, JSON_INDENT(2));
                putchar('\n');
        } else {
                status_print(stdout, status);
        }
}

static int find_mount(const char *path, struct mount_entry *ret) {
        _cleanup_free_ char *absolute = NULL, *real = NULL;

        if (path_normalise(path, &absolute) < 0)
                return -ENOMEM;
        if (mountinfo_find_path(absolute, ret) == 0) {
                if (mount_entry_is_hotset(ret))
                        return 0;
                mount_entry_clear(ret);
        }
        /* By its text it lies outside of every mount of ours, so following its links touches none before the last. */
        if (!(real = realpath(path, NULL)) || mountinfo_find_path(real, ret) < 0)
                return -ENOENT;
        if (mount_entry_is_hotset(ret))
                return 0;
        mount_entry_clear(ret);
        return -ENOENT;
}

static int status_of(const char *path, bool json) {
        struct mount_entry m;
        json_t *status = NULL;

        if (find_mount(path, &m) < 0)
                return cli_fail(EXIT_SYSTEM, "%s is not in a hotset mount; 'hotset status' lists them", path);
        int r = ask(&m, &status);
        int code = r < 0 ? no_answer(&m, r) : 0;
        if (code == 0)
                print(status, json);
        json_decref(status);
        mount_entry_clear(&m);
        return code;
}

struct all {
        json_t *answers;
        int code;
};

static int collect(struct mount_entry *m, void *ctx) {
        struct all *all = ctx;
        json_t *status = NULL;

        if (!mount_entry_is_hotset(m))
                return 0;
        int r = ask(m, &status);
        if (r < 0)
                all->code = no_answer(m, r);
        else
                json_array_append_new(all->answers, status);
        return 0;
}

static int status_of_all(bool json) {
        struct all all = { .answers = json_array() };
        size_t i;
        json_t *status;

        int r = mountinfo_each(collect, &all);
        if (r < 0)
                all.code = cli_fail(EXIT_SYSTEM, "cannot read /proc/self/mountinfo: %s", strerror(-r));
        if (json) {
                print(all.answers, true);
        } else {
                json_array_foreach(all.answers, i, status)
                        print(status, false);
                if (json_array_size(all.answers) == 0 && all.code == 0)
                        puts("no hotset mounts");
        }
        json_decref(all.answers);
        return all.code;
}

int cmd_status(int argc, char **argv) {
        static const struct option longs[] = { { "json", no_argument, NULL, 'j' }, { "help", no_argument, NULL, 'h' }, { 0 } };
        bool json = false;
        int opt;

        while ((opt = getopt_long(argc, argv, "h", longs, NULL)) != -1)
                switch (opt) {
                case 'j': json = true; break;
                case 'h':
                        puts("usage: hotset status [MOUNTPOINT] [--json]\n\n"
                             "One mount (any path inside it will do), or all of them.  --json prints one object, or an\n"
                             "array of them; hotset(8) explains the fields.  Exits 2 where a daemon does not answer.");
                        return 0;
                default: return cli_fail(EXIT_USAGE, "see 'hotset status --help'");
                }
        if (argc - optind > 1)
                return cli_fail(EXIT_USAGE, "status takes one mount point or none; see 'hotset status --help'");
        return argc > optind ? status_of(argv[optind], json) : status_of_all(json);
}
