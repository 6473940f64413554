/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fault.h"

#include "base/util.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

static const char *const names[FAULT_POINTS] = {
        [FAULT_SOURCE_READ] = "source_read", [FAULT_MIRROR_READ] = "mirror_read",
        [FAULT_MIRROR_WRITE] = "mirror_write", [FAULT_MIRROR_PUNCH] = "mirror_punch",
        [FAULT_SUMS_READ] = "sums_read", [FAULT_SUMS_WRITE] = "sums_write",
        [FAULT_INDEX_COMMIT] = "index_commit", [FAULT_BUFFER] = "buffer",
};
static const struct {
        const char *name;
        int value;
} actions[] = { { "EIO", EIO }, { "ENOSPC", ENOSPC }, { "ENOMEM", ENOMEM }, { "EROFS", EROFS }, { "kill", 0 } };

static struct {
        bool set;
        int error; /* 0: kill */
        unsigned long first, count;
        _Atomic unsigned long calls;
} points[FAULT_POINTS];
bool fault_armed;

static int find_point(const char *name) {
        for (int i = 0; i < FAULT_POINTS; i++)
                if (strcmp(names[i], name) == 0)
                        return i;
        return -ENOENT;
}

static int arm(const char *name, const char *action, unsigned long first, unsigned long count) {
        int p = find_point(name);

        for (size_t a = 0; p >= 0 && a < ARRAY_SIZE(actions); a++)
                if (strcmp(actions[a].name, action) == 0) {
                        points[p].error = actions[a].value;
                        points[p].first = first;
                        points[p].count = count;
                        points[p].set = true;
                        return 0;
                }
        return -EINVAL;
}

int fault_setup(const char *spec, const char **ret_bad) {
        while (spec && *spec) {
                char name[32], action[16];
                unsigned long first = 1, count = 0;
                int n = sscanf(spec, "%31[a-z_]=%15[A-Za-z]@%lux%lu", name, action, &first, &count);

                if (n < 2 || arm(name, action, first, count) < 0) {
                        *ret_bad = spec;
                        return -EINVAL;
                }
                fault_armed = true;
                spec = strchr(spec, ',');
                spec = spec ? spec + 1 : NULL;
        }
        return 0;
}

int fault_check_slow(enum fault_point p) {
        if (!points[p].set)
                return 0;

        unsigned long call = ++points[p].calls;
        if (call < points[p].first || (points[p].count && call >= points[p].first + points[p].count))
                return 0;
        if (points[p].error == 0)
                raise(SIGKILL);
        return -points[p].error;
}
