/* SPDX-License-Identifier: Apache-2.0 */
#include "store/store.h"

#include "base/util.h"
#include "store/index.h"
#include "store/mirror.h"
#include "store/store_internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>

#define FAIL(r, ...) (snprintf(error, STORE_ERROR_MAX, __VA_ARGS__), (r))

/* The lock file holds one block of text: who the owner is, or that the last one left in order.  It is overwritten in
 * place, so that a full disk cannot keep us from saying either. */
#define LOCK_TEXT 512
static const char clean_text[] = "left in order\n";

static int write_lock_text(struct store *s, const char *fmt, ...) {
        char text[LOCK_TEXT] = { 0 };
        va_list ap;

        va_start(ap, fmt);
        vsnprintf(text, sizeof text, fmt, ap);
        va_end(ap);
        return pwrite(s->lock, text, sizeof text, 0) == (ssize_t)sizeof text ? 0 : -EIO;
}

static void read_lock_text(struct store *s, char text[LOCK_TEXT]) {
        ssize_t n = pread(s->lock, text, LOCK_TEXT - 1, 0);
        text[n > 0 ? n : 0] = '\0';
}

/* flock decides, and the kernel drops it with its owner. */
static int take_lock(struct store *s, const char *path, const char *owner, unsigned wait_seconds, char *error) {
        char text[LOCK_TEXT];

        s->lock = openat(s->dir, "lock", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (s->lock < 0)
                return FAIL(-errno, "cache %s: cannot open its lock: %s", path, strerror(errno));
        for (unsigned i = 0; flock(s->lock, LOCK_EX | LOCK_NB) < 0; i++) {
                if (errno != EWOULDBLOCK)
                        return FAIL(-errno, "cache %s: cannot lock it: %s", path, strerror(errno));
                if (i >= wait_seconds * 20) {
                        read_lock_text(s, text);
                        text[strcspn(text, "\n")] = '\0';
                        return FAIL(-EBUSY, "cache %s belongs to %.256s; one cache directory serves one mount, give this "
                                    "one its own (cache=OTHERDIR)", path, *text ? text : "another mount");
                }
                nanosleep(&(struct timespec){ .tv_nsec = 50 * 1000 * 1000 }, NULL);
        }
        read_lock_text(s, text);
        s->was_clean = strcmp(text, clean_text) == 0;
        if (write_lock_text(s, "the mount at %s (pid %d)\n", owner, (int)getpid()) < 0 && s->was_clean)
                return FAIL(-EIO, "cache %s: cannot write its lock: a read-only or failing disk?", path);
        fdatasync(s->lock); /* after a loss of power it must not say "left in order" of what came since */
        return 0;
}

#define PROBE_BYTES (128 * KIB)

static int probe_file(struct store *s, void *block) {
        _cleanup_close_ int fd = openat(s->dir, "probe", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_DIRECT, 0600);
        struct stat before, after;

        /* A full disk refuses the write, not O_DIRECT. */
        s->direct = fd >= 0 && (pwrite(fd, block, BLOCK, 0) == (ssize_t)BLOCK || errno == ENOSPC);
        if (!s->direct) {
                if (fd >= 0)
                        close(take_fd(&fd));
                fd = openat(s->dir, "probe", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
                if (fd < 0)
                        return -errno;
        }
        /* Something large enough to be more than one block of any file system, and on the disk before we look. */
        for (uint64_t off = 0; off < PROBE_BYTES; off += BLOCK)
                if (pwrite(fd, block, BLOCK, (off_t)off) != (ssize_t)BLOCK)
                        return -errno;
        if (fsync(fd) < 0 || fstat(fd, &before) < 0 ||
            fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)PROBE_BYTES) < 0 || fstat(fd, &after) < 0)
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
        if (r == -ENOSPC || r == -EDQUOT)
                return 0; /* nothing to be found out, and nothing to be admitted, until there is room */
        return r < 0 ? FAIL(r, "cache %s: cannot write there: %s", path, strerror(-r)) : 0;
}

static int open_folders(struct store *s, const char *path, char *error) {
        struct statvfs sv;
        struct stat st;

        if (mkdir(path, 0700) < 0 && errno != EEXIST)
                return FAIL(-errno, "cache %s: cannot make the directory: %s%s", path, strerror(errno),
                            errno == ENOENT ? " (its parent is missing; make that first)" : "");
        s->dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (s->dir < 0)
                return FAIL(-errno, "cache %s: %s", path, strerror(errno));
        if (fstatvfs(s->dir, &sv) < 0 || fstat(s->dir, &st) < 0)
                return FAIL(-errno, "cache %s: %s", path, strerror(errno));
        if (st.st_uid != geteuid() || (st.st_mode & (S_IWGRP | S_IWOTH)))
                return FAIL(-EPERM, "cache %s can be changed by others; make it a directory of its own: chown %u and chmod "
                            "700 it", path, (unsigned)geteuid());
        s->block_size = (uint32_t)max_u64(sv.f_bsize > 1024 * 1024 ? BLOCK : sv.f_bsize, BLOCK);
        if (mkdirat(s->dir, "mirrors", 0700) < 0 && errno != EEXIST)
                return FAIL(-errno, "cache %s: cannot write there: %s", path, strerror(errno));
        return 0;
}

static void unlink_found(void *ctx, uint64_t id) { mirror_unlink(ctx, id); }

/* Where not even the index can be opened (a full disk has no room for its log), the cache begins empty, which makes
 * room. */
static int open_index(struct store *s) {
        bool fresh = false;
        int r = index_open(s->dir, &s->index, &fresh);

        if (r == -ENOSPC || r == -EIO) {
                store_each_mirror(s, unlink_found, s);
                index_delete(s->dir);
                r = index_open(s->dir, &s->index, &fresh);
        }
        s->was_clean = s->was_clean && !fresh;
        return r;
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
        if ((r = open_index(s)) < 0) {
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
        index_close(s->index);
        if (clean)
                write_lock_text(s, clean_text);
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
        while ((e = readdir(top))) {
                DIR *folder = e->d_name[0] != '.' ? open_dir(dirfd(top), e->d_name) : NULL;
                if (!folder)
                        continue;
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
        uint64_t bytes = allocated(s->dir, ".");
        char folder[16];

        for (size_t i = 0; i < ARRAY_SIZE(names); i++)
                bytes += allocated(s->dir, names[i]);
        for (unsigned i = 0; i < 256; i++) {
                snprintf(folder, sizeof folder, "mirrors/%02x", i);
                bytes += allocated(s->dir, folder);
        }
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
