/* SPDX-License-Identifier: Apache-2.0 */
/* The orders of reading.  See readbench.h. */
#include "readbench.h"

#include <errno.h>
#include <ftw.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "gguf_slices.h"

static int complain(const char *what, int err) {
        fprintf(stderr, "readbench: %s: %s\n", what, strerror(-err));
        return err;
}

static void *grow(void *p, size_t count, size_t size) {
        /* Doubles whenever the count is a power of two. */
        if (count & (count - 1))
                return p;
        p = realloc(p, (count ? 2 * count : 1) * size);
        if (!p) {
                perror("readbench");
                exit(2);
        }
        return p;
}

static void add_range(struct plan *p, unsigned file, uint64_t off, uint64_t len) {
        p->ranges = grow(p->ranges, p->n_ranges, sizeof(*p->ranges));
        p->ranges[p->n_ranges++] = (struct range){ .file = file, .off = off, .len = len };
}

static unsigned add_file(struct plan *p, const char *path) {
        p->files = grow(p->files, p->n_files, sizeof(*p->files));
        p->files[p->n_files] = strdup(path);
        return p->n_files++;
}

/* SplitMix64: small, and the same everywhere. */
static uint64_t next_random(uint64_t *state) {
        uint64_t x = *state += UINT64_C(0x9e3779b97f4a7c15);

        x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
        x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
        return x ^ x >> 31;
}

static double next_fraction(uint64_t *state) { return (double)(next_random(state) >> 11) * 0x1p-53; }

/* ---- front to back ---- */

static struct plan *walked; /* nftw has no argument to pass on */

static int visit(const char *path, const struct stat *st, int type, struct FTW *ftw) {
        (void)ftw;
        if (type == FTW_F && S_ISREG(st->st_mode))
                add_file(walked, path);
        return 0;
}

static int by_name(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

int plan_sequential(struct plan *p, char *const *paths, int n, const struct order *o) {
        struct stat st;

        walked = p;
        for (int i = 0; i < n; i++)
                if (nftw(paths[i], visit, 64, FTW_PHYS) < 0)
                        return complain(paths[i], -errno);
        if (p->n_files > 0)
                qsort(p->files, p->n_files, sizeof(*p->files), by_name);
        for (unsigned i = 0; i < p->n_files; i++) {
                if (stat(p->files[i], &st) < 0)
                        return complain(p->files[i], -errno);
                for (uint64_t off = 0, size = (uint64_t)st.st_size; off < size; off += o->block)
                        add_range(p, i, off, size - off < o->block ? size - off : o->block);
        }
        return 0;
}

/* ---- anywhere ---- */

int plan_random(struct plan *p, const char *path, const struct order *o) {
        uint64_t state = o->seed, off, most;
        struct stat st;

        if (stat(path, &st) < 0)
                return complain(path, -errno);
        add_file(p, path);
        for (uint64_t i = 0; i < o->count && st.st_size > 0; i++) {
                off = next_random(&state) % (uint64_t)st.st_size;
                most = (uint64_t)st.st_size - off;
                most = most < o->max ? most : o->max;
                add_range(p, 0, off, 1 + next_random(&state) % most);
        }
        return 0;
}

/* ---- as a mixture of experts does ---- */

struct bank {
        struct expert_slice *s; /* sorted by layer, expert, offset */
        size_t n;
        unsigned layers, experts;
};

static int by_expert(const void *a, const void *b) {
        const struct expert_slice *x = a, *y = b;

        if (x->layer != y->layer)
                return x->layer < y->layer ? -1 : 1;
        if (x->expert != y->expert)
                return x->expert < y->expert ? -1 : 1;
        return x->off < y->off ? -1 : x->off > y->off;
}

static int read_table(const char *path, struct bank *b) {
        FILE *f = fopen(path, "re");
        struct expert_slice s;
        char line[256];
        unsigned long long off, len;

        if (!f)
                return -errno;
        while (fgets(line, sizeof(line), f))
                if (sscanf(line, "%79s %u %u %llu %llu", s.tensor, &s.layer, &s.expert, &off, &len) == 5) {
                        s.off = off;
                        s.len = len;
                        b->s = grow(b->s, b->n, sizeof(*b->s));
                        b->s[b->n++] = s;
                }
        fclose(f);
        return 0;
}

static int read_bank(const char *model, const char *table, struct bank *b) {
        const int r = table ? read_table(table, b) : gguf_slices(model, &b->s, &b->n);

        if (r < 0)
                return complain(table ? table : model, r);
        for (size_t i = 0; i < b->n; i++) {
                b->layers = b->s[i].layer >= b->layers ? b->s[i].layer + 1 : b->layers;
                b->experts = b->s[i].expert >= b->experts ? b->s[i].expert + 1 : b->experts;
        }
        if (b->n == 0 || b->layers > 1024 || b->experts > 65536) {
                fprintf(stderr, "readbench: %s: no expert slices\n", table ? table : model);
                return -EINVAL;
        }
        qsort(b->s, b->n, sizeof(*b->s), by_expert);
        return 0;
}

/* The popularity of the experts: cumulative weights by rank, and for each layer who has which rank. */
struct routing {
        double *cumulative;
        unsigned *ranked; /* [layer][rank] */
        bool *chosen;     /* this layer, this token */
        bool *seen;       /* [layer][rank]: any token */
};

static struct routing routing_new(const struct bank *b, double skew, uint64_t *state) {
        struct routing r = { .cumulative = calloc(b->experts, sizeof(double)),
                             .ranked = calloc((size_t)b->layers * b->experts, sizeof(unsigned)),
                             .chosen = calloc(b->experts, sizeof(bool)),
                             .seen = calloc((size_t)b->layers * b->experts, sizeof(bool)) };
        double total = 0;

        if (!r.cumulative || !r.ranked || !r.chosen || !r.seen)
                exit(2);
        for (unsigned i = 0; i < b->experts; i++)
                r.cumulative[i] = total += pow(i + 1, -skew);
        for (unsigned l = 0; l < b->layers; l++) {
                unsigned *ranked = r.ranked + (size_t)l * b->experts;

                for (unsigned i = 0; i < b->experts; i++) {
                        const unsigned j = (unsigned)(next_random(state) % (i + 1));

                        ranked[i] = ranked[j];
                        ranked[j] = i;
                }
        }
        return r;
}

static unsigned choose_rank(const struct routing *r, unsigned experts, uint64_t *state) {
        const double x = next_fraction(state) * r->cumulative[experts - 1];
        unsigned lo = 0, hi = experts - 1;

        while (lo < hi) {
                const unsigned mid = (lo + hi) / 2;

                if (r->cumulative[mid] > x)
                        hi = mid;
                else
                        lo = mid + 1;
        }
        return lo;
}

static void read_expert(struct plan *p, const struct bank *b, unsigned layer, unsigned expert) {
        const struct expert_slice key = { .layer = layer, .expert = expert };
        size_t lo = 0, hi = b->n;

        while (lo < hi) {
                const size_t mid = (lo + hi) / 2;

                if (by_expert(&b->s[mid], &key) < 0)
                        lo = mid + 1;
                else
                        hi = mid;
        }
        for (; lo < b->n && b->s[lo].layer == layer && b->s[lo].expert == expert; lo++)
                add_range(p, 0, b->s[lo].off, b->s[lo].len);
}

static void route_layer(struct plan *p, const struct bank *b, struct routing *r, unsigned layer, const struct order *o,
                        uint64_t *state) {
        bool *seen = r->seen + (size_t)layer * b->experts;

        memset(r->chosen, 0, b->experts * sizeof(bool));
        for (unsigned left = o->active < b->experts ? o->active : b->experts; left > 0;) {
                const unsigned rank = choose_rank(r, b->experts, state);

                if (r->chosen[rank])
                        continue;
                r->chosen[rank] = true;
                if (!o->once || !seen[rank])
                        read_expert(p, b, layer, r->ranked[(size_t)layer * b->experts + rank]);
                seen[rank] = true;
                left--;
        }
}

int plan_slices(struct plan *p, const char *path, const struct order *o) {
        uint64_t state = o->seed;
        struct bank b = { 0 };
        struct routing r;
        int err;

        err = read_bank(path, o->slices, &b);
        if (err < 0)
                return err;
        add_file(p, path);
        r = routing_new(&b, o->skew, &state);
        for (unsigned t = 0; t < o->tokens; t++)
                for (unsigned l = 0; l < b.layers; l++)
                        route_layer(p, &b, &r, l, o, &state);
        free(r.cumulative);
        free(r.ranked);
        free(r.chosen);
        free(r.seen);
        free(b.s);
        return 0;
}

/* ---- the size ---- */

static int by_place(const void *a, const void *b) {
        const struct range *x = a, *y = b;

        if (x->file != y->file)
                return x->file < y->file ? -1 : 1;
        return x->off < y->off ? -1 : x->off > y->off;
}

uint64_t plan_distinct_bytes(const struct plan *p) {
        struct range *sorted = malloc((p->n_ranges + 1) * sizeof(*sorted));
        uint64_t n = 0, covered = 0;

        if (!sorted)
                return 0;
        memcpy(sorted, p->ranges, p->n_ranges * sizeof(*sorted));
        qsort(sorted, p->n_ranges, sizeof(*sorted), by_place);
        for (size_t i = 0; i < p->n_ranges; i++) {
                const uint64_t end = sorted[i].off + sorted[i].len;

                if (i == 0 || sorted[i].file != sorted[i - 1].file)
                        covered = 0;
                if (end > covered)
                        n += end - (sorted[i].off > covered ? sorted[i].off : covered);
                covered = end > covered ? end : covered;
        }
        free(sorted);
        return n;
}
