/* SPDX-License-Identifier: Apache-2.0 */
#include "source/paths.h"

#include "base/sys.h"
#include "base/util.h"
#include "source/mountinfo.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

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
                if (fd >= 0 || (errno != ENOENT && errno != ENOTDIR) || slash == copy)
                        return fd;
                *slash = '\0';
        }
}

/* By parents, which sees through links. */
static bool climbs_to(int start, const struct stat *target) {
        _cleanup_close_ int fd = fcntl(start, F_DUPFD_CLOEXEC, 3);
        struct stat st, up;

        if (fd < 0 || fstat(fd, &st) < 0)
                return false;
        while (!same_file(&st, target)) {
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

/* Where a path lies inside its file system, whatever part of that is mounted where. */
struct fs_place {
        unsigned major, minor;
        char *path;
};
static bool fs_place_of(const char *path, struct fs_place *ret) {
        struct mount_entry m;
        size_t skip;

        if (mountinfo_find_path(path, &m) < 0)
                return false;
        skip = strcmp(m.point, "/") == 0 ? 0 : strlen(m.point);
        *ret = (struct fs_place){ .major = m.major, .minor = m.minor };
        if (asprintf(&ret->path, "%s%s", strcmp(m.root, "/") == 0 ? "" : m.root, path + skip) < 0)
                ret->path = NULL;
        mount_entry_clear(&m);
        return ret->path;
}

static bool is_prefix(const char *dir, const char *path) {
        size_t n = strlen(dir);

        while (n > 0 && dir[n - 1] == '/')
                n--;
        return strncmp(dir, path, n) == 0 && (path[n] == '/' || path[n] == '\0');
}

/* By places in the file system, which sees through bind mounts. */
static bool same_fs_below(const char *path, const char *dir) {
        struct fs_place p = { 0 }, d = { 0 };
        bool below = fs_place_of(path, &p) && fs_place_of(dir, &d) && p.major == d.major && p.minor == d.minor &&
                     is_prefix(d.path, p.path);

        free(p.path);
        free(d.path);
        return below;
}

/* The image behind a loop device, or NULL. */
static char *loop_image(dev_t dev) {
        char path[64], *image = NULL;
        size_t size = 0;
        ssize_t n = -1;

        snprintf(path, sizeof path, "/sys/dev/block/%u:%u/loop/backing_file", major(dev), minor(dev));
        FILE *f = fopen(path, "re");
        if (f) {
                n = getline(&image, &size, f);
                fclose(f);
        }
        if (n <= 1) {
                free(image);
                return NULL;
        }
        image[n - 1] = '\0'; /* the line's end */
        return image;
}

static bool is_below(const char *path, const char *dir, const struct stat *target, unsigned depth) {
        _cleanup_close_ int fd = open_nearest(path);
        _cleanup_free_ char *real = NULL, *image = NULL;
        struct stat st;

        if (fd < 0 || fstat(fd, &st) < 0)
                return false;
        real = realpath(path_of_fd(fd).text, NULL);
        if (climbs_to(fd, target) || (real && same_fs_below(real, dir)))
                return true;
        image = depth > 0 ? loop_image(st.st_dev) : NULL;
        return image && is_below(image, dir, target, depth - 1);
}

bool path_is_below(const char *path, const char *dir, int dir_fd) {
        struct stat target;

        return fstat(dir_fd, &target) == 0 && is_below(path, dir, &target, 8);
}
