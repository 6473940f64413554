/* SPDX-License-Identifier: Apache-2.0 */
#include "store/store.h"

#include "base/util.h"
#include "store/index.h"
#include "store/store_internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>

#define FAIL(r, ...) (snprintf(error, STORE_ERROR_MAX, __VA_ARGS__), (r))

/* The lock file's text is for people only; flock decides, and the kernel drops it with its owner. */
static int take_lock(struct store *s, const char *path, const char *owner, unsigned wait_seconds, char *error) {
        char text[256];

        s->lock = openat(s->dir, "lock", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (s->lock < 0)
                return FAIL(-errno, "cache %s: cannot open its lock: %s", path, strerror(errno));
        for (unsigned i = 0; flock(s->lock, LOCK_EX | LOCK_NB) < 0; i++) {
                if (errno != EWOULDBLOCK)
                        return FAIL(-errno, "cache %s: cannot lock it: %s", path, strerror(errno));
                if (i >= wait_seconds * 20) {
                        ssize_t n = pread(s->lock, text, sizeof text - 1, 0);
                        text[n > 0 ? n : 0] = '\0';
                        text[strcspn(text, "\n")] = '\0';
                        return FAIL(-EBUSY, "cache %s belongs to %s; one cache directory serves one mount, give this "
                                    "one its own (cache=OTHERDIR)", path, *text ? text : "another mount");
                }
                nanosleep(&(struct timespec){ .tv_nsec = 50 * 1000 * 1000 }, NULL);
        }
        int n = snprintf(text, sizeof text, "the mount at %s (pid %d)\n", owner, (int)getpid());
        n = n < (int)sizeof text ? n : (int)sizeof text - 1;
        if (ftruncate(s->lock, 0) < 0 || pwrite(s->lock, text, (size_t)n, 0) != n)
                return FAIL(-EIO, "cache %s: cannot write its lock: no space, or read-only?", path);
        return 0;
}

static int probe_file(struct store *s, void *block) {
        _cleanup_close_ int fd = openat(s->dir, "probe", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_DIRECT, 0600);
        struct stat before, after;

        s->direct = fd >= 0 && pwrite(fd, block, BLOCK, 0) == (ssize_t)BLOCK;
        if (!s->direct) {
                if (fd >= 0)
                        close(take_fd(&fd));
                fd = openat(s->dir, "probe", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
                if (fd < 0)
                        return -errno;
        }
        /* Something large enough to be more than one block of any file system, and on the disk before we look. */
        for (uint64_t off = 0; off < MIB; off += BLOCK)
                if (pwrite(fd, block, BLOCK, (off_t)off) != (ssize_t)BLOCK)
                        return -errno;
        if (fsync(fd) < 0 || fstat(fd, &before) < 0 ||
            fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)MIB) < 0 || fstat(fd, &after) < 0)
                return -errno;
        return after.st_blocks < before.st_blocks ? 0 : -EOPNOTSUPP;
}

/* Can this file system free a range, and read past the page cache?  Found out by doing it. */
static int probe(struct store *s, const char *path, char *error) {
        void *block = NULL;
        int r = posix_memalign(&block, BLOCK, BLOCK) == 0 ? 0 : -ENOMEM;

        if (r == 0) {
                memset(block, 0x5a, BLOCK);
                r = probe_file(s, block);
                unlinkat(s->dir, "probe", 0);
        }
        free(block);
        if (r == -EOPNOTSUPP)
                return FAIL(r, "cache %s: its file system cannot punch holes, so nothing could ever be evicted; use a "
                            "directory on ext4, xfs or btrfs", path);
        return r < 0 ? FAIL(r, "cache %s: cannot write there: %s", path, strerror(-r)) : 0;
}

static int open_folders(struct store *s, const char *path, char *error) {
        struct statvfs sv;

        if (mkdir(path, 0700) < 0 && errno != EEXIST)
                return FAIL(-errno, "cache %s: cannot make the directory: %s", path, strerror(errno));
        s->dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (s->dir < 0)
                return FAIL(-errno, "cache %s: %s", path, strerror(errno));
        if (fstatvfs(s->dir, &sv) < 0)
                return FAIL(-errno, "cache %s: %s", path, strerror(errno));
        s->block_size = (uint32_t)max_u64(sv.f_bsize > 1024 * 1024 ? BLOCK : sv.f_bsize, BLOCK);
        if (mkdirat(s->dir, "mirrors", 0700) < 0 && errno != EEXIST)
                return FAIL(-errno, "cache %s: cannot write there: %s", path, strerror(errno));
        return 0;
}

int store_open(const char *path, const char *owner, unsigned wait_seconds, struct store **ret, char *error) {
        struct store *s = calloc(1, sizeof *s);
        int r;

        if (!s)
                return FAIL(-ENOMEM, "cache %s: out of memory", path);
        s->dir = s->lock = -1;
        if ((r = open_folders(s, path, error)) < 0 || (r = take_lock(s, path, owner, wait_seconds, error)) < 0 ||
            (r = probe(s, path, error)) < 0)
                goto fail;
        if ((r = index_open(s->dir, &s->index, &s->was_clean)) < 0) {
                snprintf(error, STORE_ERROR_MAX, "cache %s: cannot open its index: %s", path, strerror(-r));
                goto fail;
        }
        *ret = s;
        return 0;
fail:
        store_close(s, false);
        return r;
}

struct store *store_close(struct store *s, bool clean) {
        if (!s)
                return NULL;
        index_close(s->index, clean);
        closep(&s->lock);
        closep(&s->dir);
        free(s);
        return NULL;
}

bool store_was_clean(const struct store *s) { return s->was_clean; }
uint32_t store_block_size(const struct store *s) { return s->block_size; }

struct index *store_index(struct store *s) { return s->index; }
int store_reset_index(struct store *s) { return index_reset(s->index, s->dir); }

static DIR *open_dir(int at, const char *name) {
        _cleanup_close_ int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
        DIR *d = fd >= 0 ? fdopendir(fd) : NULL;

        if (d)
                take_fd(&fd);
        return d;
}

static void each_in_folder(DIR *folder, void (*found)(void *ctx, uint64_t id), void *ctx) {
        struct dirent *e;
        uint64_t last = 0;
        char dummy;

        /* A sidecar without its mirror counts too: whoever unlinks an id unlinks both. */
        while ((e = readdir(folder))) {
                uint64_t id;
                if (sscanf(e->d_name, "%16" SCNx64 "%c", &id, &dummy) >= 1 && id != last)
                        found(ctx, last = id);
        }
}

int store_each_mirror(struct store *s, void (*found)(void *ctx, uint64_t id), void *ctx) {
        DIR *top = open_dir(s->dir, "mirrors");
        struct dirent *e;

        if (!top)
                return -errno;
        s->folders = 0;
        while ((e = readdir(top))) {
                DIR *folder = e->d_name[0] != '.' ? open_dir(dirfd(top), e->d_name) : NULL;
                if (!folder)
                        continue;
                s->folders++;
                each_in_folder(folder, found, ctx);
                closedir(folder);
        }
        closedir(top);
        return 0;
}

static uint64_t allocated(int dir, const char *name) {
        struct stat st;
        return fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0 ? (uint64_t)st.st_blocks * 512 : 0;
}

uint64_t store_metadata_used(struct store *s) {
        static const char *const names[] = { "lock", "index.db", "index.db-wal", "index.db-journal", "mirrors" };
        uint64_t bytes = (uint64_t)s->folders * s->block_size + s->block_size; /* and the directory itself */

        for (size_t i = 0; i < ARRAY_SIZE(names); i++)
                bytes += allocated(s->dir, names[i]);
        return bytes;
}

static uint64_t used_below(int at, const char *name, unsigned depth) {
        DIR *d = open_dir(at, name);
        struct dirent *e;
        uint64_t bytes = 0;

        if (!d)
                return 0;
        while ((e = readdir(d))) {
                if (strcmp(e->d_name, "..") == 0)
                        continue;
                bytes += allocated(dirfd(d), e->d_name);
                if (depth > 0 && e->d_name[0] != '.' && e->d_type == DT_DIR)
                        /* the folder counts itself as its own "." */
                        bytes += used_below(dirfd(d), e->d_name, depth - 1) - allocated(dirfd(d), e->d_name);
        }
        closedir(d);
        return bytes;
}

uint64_t store_used(struct store *s) { return used_below(s->dir, ".", 2); }

int store_space(struct store *s, struct store_space *ret) {
        struct statvfs sv;

        if (fstatvfs(s->dir, &sv) < 0)
                return -errno;
        *ret = (struct store_space){
                .total = (uint64_t)sv.f_blocks * sv.f_frsize,
                .available = (uint64_t)sv.f_bavail * sv.f_frsize,
        };
        return 0;
}
