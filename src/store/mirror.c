/* SPDX-License-Identifier: Apache-2.0 */
#include "store/mirror.h"

#include "base/fault.h"
#include "base/util.h"
#include "core/blocksum.h"
#include "io/io.h"
#include "store/store_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { SUMS_AT_ONCE = 258 }; /* 1 MiB and a block at each end */

struct mirror {
        int fd, sums_fd;
        uint64_t size; /* of the source file */
        _Atomic unsigned refs;
};

void mirror_path(char path[MIRROR_PATH_MAX], uint64_t id, const char *suffix) {
        snprintf(path, MIRROR_PATH_MAX, "mirrors/%02x/%016" PRIx64 "%s", (unsigned)(id >> 56), id, suffix);
}

static int open_part(struct store *s, uint64_t id, const char *suffix, int flags, uint64_t size) {
        char path[MIRROR_PATH_MAX];
        struct stat st;

        mirror_path(path, id, suffix);
        _cleanup_close_ int fd = openat(s->dir, path, flags | O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd < 0)
                return -errno;
        if (fstat(fd, &st) < 0)
                return -errno;
        if (!S_ISREG(st.st_mode))
                return -EINVAL;
        /* The full size at once: nothing is ever appended, so no file system preallocates behind the end.  A mirror
         * that somebody cut short gets zeros, which do not verify. */
        if ((uint64_t)st.st_size != size && ftruncate(fd, (off_t)size) < 0)
                return -errno;
        return take_fd(&fd);
}

static void make_folder(struct store *s, uint64_t id) {
        char path[MIRROR_PATH_MAX];

        snprintf(path, sizeof path, "mirrors/%02x", (unsigned)(id >> 56));
        mkdirat(s->dir, path, 0700); /* what is wrong with it shows when the file is made */
}

int mirror_open(struct store *s, uint64_t id, uint64_t size, bool create, struct mirror **ret) {
        int flags = create ? O_CREAT : 0, direct = s->direct ? O_DIRECT : 0;

        if (create)
                make_folder(s, id);
        _cleanup_close_ int fd = open_part(s, id, "", flags | direct, size);
        if (fd < 0)
                return fd;
        _cleanup_close_ int sums_fd = open_part(s, id, ".sum", flags, blocksum_count(size) * sizeof(uint64_t));
        if (sums_fd < 0)
                return sums_fd;

        struct mirror *m = malloc(sizeof *m);
        if (!m)
                return -ENOMEM;
        *m = (struct mirror){ .fd = take_fd(&fd), .sums_fd = take_fd(&sums_fd), .size = size, .refs = 1 };
        *ret = m;
        return 0;
}

struct mirror *mirror_ref(struct mirror *m) {
        m->refs++;
        return m;
}

struct mirror *mirror_unref(struct mirror *m) {
        if (m && --m->refs == 0) {
                close(m->fd);
                close(m->sums_fd);
                free(m);
        }
        return NULL;
}

int mirror_read(struct mirror *m, void *buf, size_t len, uint64_t off) {
        int r = fault_check(FAULT_MIRROR_READ);

        if (r < 0)
                return r;
        ssize_t n = io_read(m->fd, buf, block_up(len), off);
        if (n < 0)
                return (int)n;
        return (size_t)n < len ? -ENODATA : 0;
}

void mirror_prepare_read(struct mirror *m, struct io_op *op, void *buf, size_t len, uint64_t off) {
        *op = (struct io_op){ .fd = m->fd, .buf = buf, .len = block_up(len), .off = off };
}

/* Widens `bad` by the blocks of [off, off+len) that do not match. */
static void find_bad(const char *buf, size_t len, uint64_t off, uint64_t nonce, const uint64_t *sums, struct bad_stretch *bad) {
        ptrdiff_t at;

        for (size_t done = 0; done < len; done += (size_t)(at + 1) * BLOCK) {
                at = blocksum_verify(buf + done, len - done, off + done, nonce, sums + done / BLOCK);
                if (at < 0)
                        return;
                uint64_t start = off + done + (uint64_t)at * BLOCK, end = min_u64(start + BLOCK, off + len);
                if (bad->len == 0)
                        bad->off = start;
                bad->len = end - bad->off;
        }
}

int mirror_verify(struct mirror *m, const void *buf, size_t len, uint64_t off, uint64_t nonce, struct bad_stretch *ret_bad) {
        struct bad_stretch bad = { 0 };
        uint64_t sums[SUMS_AT_ONCE];
        int r = fault_check(FAULT_SUMS_READ);

        for (size_t at = 0, part; r == 0 && at < len; at += part) {
                part = min_u64(len - at, (uint64_t)SUMS_AT_ONCE * BLOCK);
                size_t bytes = blocksum_count(part) * sizeof *sums;
                ssize_t n = io_read(m->sums_fd, sums, bytes, (off + at) / BLOCK * sizeof *sums);
                if (n != (ssize_t)bytes)
                        r = n < 0 ? (int)n : -ENODATA;
                else
                        find_bad((const char *)buf + at, part, off + at, nonce, sums, &bad);
        }
        if (r == 0 && bad.len == 0)
                return 0;
        *ret_bad = r == 0 ? bad : (struct bad_stretch){ off, len };
        return r == 0 ? -EBADMSG : r;
}

static bool all_zero(const unsigned char *p, size_t len) {
        /* Most data shows itself in its first word; the comparison with itself, shifted, does the rest at full speed. */
        return len == 0 || (p[0] == 0 && memcmp(p, p + 1, len - 1) == 0);
}

static int write_data(struct mirror *m, void *buf, size_t len, uint64_t off) {
        size_t full = block_up(len);
        int r = fault_check(FAULT_MIRROR_WRITE);

        if (r < 0 || all_zero(buf, len))
                return r;
        memset((char *)buf + len, 0, full - len);
        ssize_t n = io_write(m->fd, buf, full, off);
        if (n < 0)
                return (int)n;
        /* O_DIRECT writes whole blocks; the mirror must end where the source does. */
        if (off + full > m->size && ftruncate(m->fd, (off_t)m->size) < 0)
                return -errno;
        return 0;
}

int mirror_write(struct mirror *m, void *buf, size_t len, uint64_t off, uint64_t nonce) {
        uint64_t sums[SUMS_AT_ONCE];
        int r = write_data(m, buf, len, off);

        for (size_t at = 0; r == 0 && at < len;) {
                size_t part = min_u64(len - at, (uint64_t)SUMS_AT_ONCE * BLOCK);
                blocksum_compute((char *)buf + at, part, off + at, nonce, sums);
                if ((r = fault_check(FAULT_SUMS_WRITE)) < 0)
                        return r;
                ssize_t n = io_write(m->sums_fd, sums, blocksum_count(part) * sizeof *sums,
                                     (off + at) / BLOCK * sizeof *sums);
                r = n < 0 ? (int)n : 0;
                at += part;
        }
        return r;
}

static int punch(int fd, uint64_t off, uint64_t len) {
        int r = fault_check(FAULT_MIRROR_PUNCH);

        if (r == 0 && fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)off, (off_t)len) < 0)
                r = -errno;
        return r;
}

int mirror_punch(struct mirror *m, uint64_t off, uint64_t len) { return punch(m->fd, off, block_up(len)); }

int mirror_punch_sums(struct mirror *m, uint64_t off) { return punch(m->sums_fd, off / MIRROR_SUMS_SPAN * BLOCK, BLOCK); }

/* The data stretches of a file, one after the other; false at the end, or where it cannot tell. */
static bool next_data(int fd, off_t from, off_t *ret_off, off_t *ret_end) {
        off_t off = lseek(fd, from, SEEK_DATA), end = off >= 0 ? lseek(fd, off, SEEK_HOLE) : -1;

        if (end < 0)
                return false;
        *ret_off = off;
        *ret_end = end;
        return true;
}

static int reconcile_data(struct mirror *m, mirror_claim next, void *ctx) {
        off_t off = 0, end = 0;
        int r = 0;

        while (r == 0 && next_data(m->fd, end, &off, &end))
                for (uint64_t at = (uint64_t)off, start, stop; r == 0 && at < (uint64_t)end; at = stop) {
                        if (!next(ctx, at, &start, &stop))
                                start = stop = (uint64_t)end;
                        if (start > at)
                                r = mirror_punch(m, at, min_u64(start, (uint64_t)end) - at);
                }
        return r;
}

static int reconcile_sums(struct mirror *m, mirror_claim next, void *ctx) {
        off_t off = 0, end = 0;
        int r = 0;

        while (r == 0 && next_data(m->sums_fd, end, &off, &end))
                for (uint64_t at = block_down((uint64_t)off); r == 0 && at < (uint64_t)end; at += BLOCK) {
                        uint64_t span = at / BLOCK * MIRROR_SUMS_SPAN, start, stop;
                        if (!next(ctx, span, &start, &stop) || start >= span + MIRROR_SUMS_SPAN)
                                r = mirror_punch_sums(m, span);
                }
        return r;
}

int mirror_reconcile(struct mirror *m, mirror_claim next, void *ctx) {
        int r = reconcile_data(m, next, ctx);
        return r < 0 ? r : reconcile_sums(m, next, ctx);
}

void mirror_unlink(struct store *s, uint64_t id) {
        char path[MIRROR_PATH_MAX];

        mirror_path(path, id, "");
        unlinkat(s->dir, path, 0);
        mirror_path(path, id, ".sum");
        unlinkat(s->dir, path, 0);
}
