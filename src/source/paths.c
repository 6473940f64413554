/* SPDX-License-Identifier: Apache-2.0 */
#include "source/paths.h"

#include "base/util.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

int path_normalise(const char *path, char **ret) {
        _cleanup_free_ char *cwd = path[0] == '/' ? strdup("") : getcwd(NULL, 0);
        char *out, *end, *save = NULL;
        _cleanup_free_ char *copy = strdup(path);

        if (!cwd || !copy)
                return cwd ? -ENOMEM : -errno;
        if (!(out = malloc(strlen(cwd) + strlen(path) + 3)))
                return -ENOMEM;
        end = stpcpy(out, strcmp(cwd, "/") == 0 ? "" : cwd);
        for (char *word = strtok_r(copy, "/", &save); word; word = strtok_r(NULL, "/", &save)) {
                if (strcmp(word, ".") == 0)
                        continue;
                if (strcmp(word, "..") == 0) {
                        while (end > out && *--end != '/')
                                ;
                } else {
                        *end++ = '/';
                        end = stpcpy(end, word);
                }
                *end = '\0';
        }
        if (end == out)
                strcpy(out, "/");
        *ret = out;
        return 0;
}

static bool same_file(const struct stat *a, const struct stat *b) {
        return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

/* The nearest directory on `path` that exists; the cache directory itself may not be there yet. */
static int open_nearest(const char *path) {
        _cleanup_free_ char *copy = NULL;

        if (path_normalise(path, &copy) < 0)
                return -1;
        for (;;) {
                int fd = open(copy, O_PATH | O_DIRECTORY | O_CLOEXEC);
                char *slash = strrchr(copy, '/');
                if (fd >= 0 || errno != ENOENT || slash == copy)
                        return fd;
                *slash = '\0';
        }
}

bool path_is_below(const char *path, int dir) {
        _cleanup_close_ int fd = open_nearest(path);
        struct stat target, st, up;

        if (fd < 0 || fstat(dir, &target) < 0 || fstat(fd, &st) < 0)
                return false;
        while (!same_file(&st, &target)) {
                int parent = openat(fd, "..", O_PATH | O_DIRECTORY | O_CLOEXEC);
                if (parent < 0 || fstat(parent, &up) < 0 || same_file(&up, &st)) {
                        closep(&parent);
                        return false;
                }
                close(fd);
                fd = parent;
                st = up;
        }
        return true;
}
