/* SPDX-License-Identifier: Apache-2.0 */
/* One process's way through the plan.  See readbench.h. */
#include "readbench.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096u

struct reader {
        const struct way *way;
        int fd;
        unsigned file; /* that fd is of */
        unsigned char *map;
        size_t map_len;
        unsigned char *buf; /* of buf_len and two pages */
        size_t buf_len;
};

static double now(void) {
        struct timespec t;

        clock_gettime(CLOCK_MONOTONIC, &t);
        return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/*
 * Linear in each byte, with a weight that its position decides: the parts of a word add up to the word, so it does not
 * matter where a range is cut, and exchanged or shifted blocks change the sum.
 */
static uint64_t sum_bytes(const unsigned char *p, uint64_t len, uint64_t off) {
        uint64_t sum = 0, word;

        for (; len > 0 && off % 8 != 0; len--, off++)
                sum += ((uint64_t)*p++ << 8 * (off % 8)) * (off / 8 * 2 + 1);
        for (; len >= 8; len -= 8, off += 8, p += 8) {
                memcpy(&word, p, 8);
                sum += word * (off / 8 * 2 + 1);
        }
        for (; len > 0; len--, off++)
                sum += ((uint64_t)*p++ << 8 * (off % 8)) * (off / 8 * 2 + 1);
        return sum;
}

static void reader_close(struct reader *r) {
        if (r->map)
                munmap(r->map, r->map_len);
        if (r->fd >= 0)
                close(r->fd);
        r->map = NULL;
        r->fd = -1;
}

static int reader_open(struct reader *r, const struct plan *p, unsigned file) {
        struct stat st;

        if (r->fd >= 0 && r->file == file)
                return 0;
        reader_close(r);
        r->fd = open(p->files[file], O_RDONLY | O_CLOEXEC | (r->way->direct ? O_DIRECT : 0));
        if (r->fd < 0)
                return -errno;
        r->file = file;
        if (!r->way->mmap)
                return 0;
        if (fstat(r->fd, &st) < 0)
                return -errno;
        r->map_len = (size_t)st.st_size;
        r->map = mmap(NULL, r->map_len, PROT_READ, MAP_SHARED, r->fd, 0);
        if (r->map != MAP_FAILED)
                return 0;
        r->map = NULL;
        return -errno;
}

/* All of it, or -ENODATA where the file ends before it should. */
static int read_all(int fd, unsigned char *buf, size_t need, size_t len, uint64_t off) {
        size_t got = 0;

        while (got < need) {
                const ssize_t n = pread(fd, buf + got, len - got, (off_t)(off + got));

                if (n == 0)
                        return -ENODATA;
                if (n < 0 && errno != EINTR)
                        return -errno;
                got += n < 0 ? 0 : (size_t)n;
        }
        return 0;
}

/* Files are told apart in the sum by their place in the plan. */
static int read_range(struct reader *r, const struct range *g, uint64_t *sum) {
        const uint64_t head = r->way->direct ? g->off % PAGE : 0;
        uint64_t len = head + g->len;
        int err;

        if (r->way->mmap) {
                if (g->off + g->len > r->map_len)
                        return -ENODATA;
                *sum += sum_bytes(r->map + g->off, g->len, g->off) * (2 * g->file + 1);
                return 0;
        }
        if (r->way->direct)
                len = (len + PAGE - 1) / PAGE * PAGE;
        err = read_all(r->fd, r->buf, head + g->len, len, g->off - head);
        if (err == 0)
                *sum += sum_bytes(r->buf + head, g->len, g->off) * (2 * g->file + 1);
        return err;
}

static int reader_init(struct reader *r, const struct plan *p, const struct way *w) {
        uint64_t longest = 0;

        *r = (struct reader){ .way = w, .fd = -1 };
        for (size_t i = 0; i < p->n_ranges; i++)
                longest = p->ranges[i].len > longest ? p->ranges[i].len : longest;
        r->buf_len = (size_t)longest + 4 * PAGE;
        r->buf = mmap(NULL, r->buf_len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
        if (r->buf == MAP_FAILED)
                return -ENOMEM;
        r->buf += w->unaligned % PAGE;
        return 0;
}

static double seconds(const struct timeval *t) { return (double)t->tv_sec + (double)t->tv_usec * 1e-6; }

static void run(struct reader *r, const struct plan *p, float *us, struct result *ret) {
        for (size_t i = 0; i < p->n_ranges && ret->err == 0; i++) {
                const struct range *g = &p->ranges[i];
                const double t = us ? now() : 0;

                ret->err = reader_open(r, p, g->file);
                if (ret->err == 0)
                        ret->err = read_range(r, g, &ret->sum);
                if (us)
                        us[i] = (float)((now() - t) * 1e6);
                if (ret->err == 0)
                        ret->bytes += g->len;
                else
                        fprintf(stderr, "readbench: %s: %llu+%llu: %s\n", p->files[g->file], (unsigned long long)g->off,
                                (unsigned long long)g->len, strerror(-ret->err));
        }
}

void read_plan(const struct plan *p, const struct way *w, float *us, struct result *ret) {
        struct rusage before, after;
        struct reader r;

        *ret = (struct result){ .err = reader_init(&r, p, w) };
        getrusage(RUSAGE_SELF, &before);
        ret->start = now();
        if (ret->err == 0)
                run(&r, p, us, ret);
        reader_close(&r);
        ret->end = now();
        getrusage(RUSAGE_SELF, &after);
        ret->user = seconds(&after.ru_utime) - seconds(&before.ru_utime);
        ret->sys = seconds(&after.ru_stime) - seconds(&before.ru_stime);
}
