/* SPDX-License-Identifier: Apache-2.0 */
#include "temp_dir.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

char temp_dir[200];

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at) {
        (void)st;
        (void)type;
        if (at->level > 0)
                remove(path);
        return 0;
}

void temp_dir_empty(void) { nftw(temp_dir, remove_one, 16, FTW_DEPTH | FTW_PHYS); }

static void temp_dir_make(void) {
        const char *base = getenv("TMPDIR");

        snprintf(temp_dir, sizeof temp_dir, "%s/hotset-unit-XXXXXX", base && *base ? base : "/tmp");
        if (!mkdtemp(temp_dir)) {
                perror(temp_dir);
                exit(99);
        }
}

int temp_dir_run(Suite *s) {
        SRunner *runner = srunner_create(s);
        int failed;

        temp_dir_make();
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        temp_dir_empty();
        rmdir(temp_dir);
        return failed != 0;
}
