/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Run read traces through the policy, without bytes: what would have been hit, and what written.
 *
 *   replay [-s PCT,...] [-p auto,hotness,lru] [-c CHUNK] [-w WINDOW] [-m MAXRANGES] [-g MINGHOSTS] TRACE...
 *
 * A trace is libCacheSim's oracleGeneral: packed 24-byte records (u32 time, u64 id, u32 bytes, i64 next).  Every id
 * becomes a stretch of one invented file per model, at a 4 KiB boundary, disjoint from every other id.  -c cuts reads
 * into pieces as the kernel does; -w reads through windows whose phase is random at every read, so that no two reads
 * are cut alike.  Sizes are percent of the bytes that the trace ever touches.
 *
 * One line per cell: trace, size, policy, byte hit ratio, bytes written per byte read.  Single-threaded; no bound and
 * no floor here, check_targets compares.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/policy.h"

struct __attribute__((packed)) record {
        uint32_t time;
        uint64_t id;
        uint32_t bytes;
        int64_t next;
};

struct read {
        uint32_t file;
        uint32_t bytes;
        uint64_t off;
};

struct trace {
        struct read *reads;
        size_t count;
        uint32_t files;
        double footprint;
};

struct options {
        char sizes[256], policies[64];
        uint64_t chunk, window, max_ranges, min_ghosts;
        bool verbose;
};

struct result {
        double requested, hit, written;
};

#define BLOCK 4096u
#define MODELS 65536u

/* Where an id lies: an open hash table, since ids are sparse. */
struct place {
        uint64_t key; /* id + 1; 0: free */
        uint64_t off;
};

static void die(const char *what, const char *path) {
        fprintf(stderr, "replay: %s: %s: %s\n", path, what, strerror(errno));
        exit(2);
}

static void *need(void *p) {
        if (!p)
                die("memory", "-");
        return p;
}

static struct record *load(const char *path, size_t *ret_count) {
        FILE *f = fopen(path, "rb");
        struct record *recs;
        long size;

        if (!f || fseek(f, 0, SEEK_END) < 0 || (size = ftell(f)) < 0)
                die("cannot read", path);
        rewind(f);
        recs = need(malloc((size_t)size + 1));
        *ret_count = (size_t)size / sizeof(*recs);
        if (fread(recs, sizeof(*recs), *ret_count, f) != *ret_count)
                die("cannot read", path);
        fclose(f);
        return recs;
}

static struct place *lookup(struct place *table, size_t size, uint64_t id) {
        size_t at = (id + 1) * 0x9e3779b97f4a7c15u >> 20 & (size - 1);

        while (table[at].key && table[at].key != id + 1)
                at = (at + 1) & (size - 1);
        return &table[at];
}

/* Lay the ids of each model out in a file of its own, in the order in which they are first read. */
static struct trace lay_out(const struct record *recs, size_t count) {
        struct trace t = { .reads = need(calloc(count, sizeof(*t.reads))), .count = count };
        uint64_t *ends = need(calloc(MODELS, sizeof(*ends)));
        size_t size = 1024;
        struct place *table;

        while (size < count * 2)
                size *= 2;
        table = need(calloc(size, sizeof(*table)));
        for (size_t i = 0; i < count; i++) {
                uint32_t model = (uint32_t)(recs[i].id >> 44) % MODELS;
                struct place *p = lookup(table, size, recs[i].id);

                if (!p->key) {
                        *p = (struct place){ recs[i].id + 1, ends[model] };
                        ends[model] += (recs[i].bytes + BLOCK - 1) / BLOCK * (uint64_t)BLOCK;
                        t.footprint += recs[i].bytes;
                }
                t.reads[i] = (struct read){ model, recs[i].bytes, p->off };
        }
        t.files = MODELS;
        free(table);
        free(ends);
        return t;
}

static void ignore(void *ctx, struct range_map *m, uint64_t off, uint64_t len) {
        (void)ctx, (void)m, (void)off, (void)len;
}

static uint64_t present(const struct range_map *m, uint64_t off, uint64_t end) {
        uint64_t sum = 0, from, to;

        for (; off < end && range_map_present(m, off, end, &from, &to); off = to)
                sum += to - from;
        return sum;
}

/* What the daemon does with one FUSE read. */
static void one_read(struct policy *p, struct range_map *m, uint64_t off, uint64_t len, struct result *res) {
        uint64_t hit = present(m, off, off + len), marked;

        policy_access(p, m, off, len);
        res->requested += (double)len;
        res->hit += (double)hit;
        if (hit == len)
                return;
        marked = policy_admit(p, m, off / BLOCK * BLOCK, off + len - off / BLOCK * BLOCK, ignore, NULL);
        policy_commit(p, m, off / BLOCK * BLOCK, off + len - off / BLOCK * BLOCK, 1);
        res->written += (double)marked;
}

static uint64_t dice(uint64_t *state) {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        return *state;
}

static void play(const struct trace *t, const struct options *o, struct policy *p, struct range_map *maps,
                 struct result *res) {
        uint64_t step = o->chunk ? o->chunk : o->window, seed = 88172645463325252u;

        for (size_t i = 0; i < t->count; i++) {
                const struct read *r = &t->reads[i];
                uint64_t at = 0, first = o->window ? (dice(&seed) % (o->window / BLOCK) + 1) * BLOCK : step;

                while (at < r->bytes) {
                        uint64_t len = step ? (at ? step : first) : r->bytes;

                        if (len > r->bytes - at)
                                len = r->bytes - at;
                        one_read(p, &maps[r->file], r->off + at, len, res);
                        at += len;
                }
        }
}

static int kind_of(const char *name, enum policy_kind *ret) {
        static const char *const names[] = {
                [POLICY_AUTO] = "auto", [POLICY_HOTNESS] = "hotness", [POLICY_LRU] = "lru",
        };

        for (unsigned i = 0; i < sizeof(names) / sizeof(*names); i++)
                if (!strcmp(name, names[i])) {
                        *ret = (enum policy_kind)i;
                        return 0;
                }
        return -EINVAL;
}

static void cell(const char *name, const struct trace *t, const struct options *o, const char *size,
                 const char *policy) {
        struct policy_config cfg = { .capacity = (uint64_t)(t->footprint * atof(size) / 100),
                                     .max_ranges = o->max_ranges, .min_ghosts = o->min_ghosts };
        struct range_map *maps = need(calloc(t->files, sizeof(*maps)));
        clock_t start = clock();
        struct policy_stats st;
        struct result res = { 0 };
        struct policy *p;

        if (kind_of(policy, &cfg.kind) < 0 || policy_new(&cfg, &p) < 0)
                die("no such policy", policy);
        for (uint32_t i = 0; i < t->files; i++)
                range_map_init(&maps[i], NULL);
        play(t, o, p, maps, &res);
        policy_stats(p, &st);
        printf("%s,%s%%,%s,%.4f,%.4f\n", name, size, policy, res.hit / res.requested, res.written / res.requested);
        fflush(stdout);
        if (o->verbose)
                fprintf(stderr, "  %.2f s, %" PRIu64 " present, %" PRIu64 " ghosts\n",
                        (double)(clock() - start) / CLOCKS_PER_SEC, st.present_ranges, st.ghost_ranges);
        for (uint32_t i = 0; i < t->files; i++)
                policy_clear_map(p, &maps[i], ignore, NULL);
        policy_free(p);
        free(maps);
}

static void replay(const char *path, const struct options *o) {
        const char *name = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
        char sizes[sizeof(o->sizes)], policies[sizeof(o->policies)], *s, *q, *save_s, *save_q;
        size_t count;
        struct record *recs = load(path, &count);
        struct trace t = lay_out(recs, count);

        free(recs);
        memcpy(sizes, o->sizes, sizeof(sizes));
        for (s = strtok_r(sizes, ",", &save_s); s; s = strtok_r(NULL, ",", &save_s)) {
                memcpy(policies, o->policies, sizeof(policies));
                for (q = strtok_r(policies, ",", &save_q); q; q = strtok_r(NULL, ",", &save_q))
                        cell(name, &t, o, s, q);
        }
        free(t.reads);
}

int main(int argc, char **argv) {
        struct options o = { .sizes = "5,10,25,50,75", .policies = "auto" };
        int c;

        while ((c = getopt(argc, argv, "s:p:c:w:m:g:v")) != -1) {
                if (c == 's')
                        snprintf(o.sizes, sizeof(o.sizes), "%s", optarg);
                else if (c == 'p')
                        snprintf(o.policies, sizeof(o.policies), "%s", optarg);
                else if (c == 'c')
                        o.chunk = strtoull(optarg, NULL, 0);
                else if (c == 'w')
                        o.window = strtoull(optarg, NULL, 0);
                else if (c == 'm')
                        o.max_ranges = strtoull(optarg, NULL, 0);
                else if (c == 'g')
                        o.min_ghosts = strtoull(optarg, NULL, 0);
                else if (c == 'v')
                        o.verbose = true;
                else
                        return 1;
        }
        if (optind == argc || (o.window && o.window < BLOCK)) {
                fprintf(stderr, "usage: replay [-s PCT,...] [-p POLICY,...] [-c CHUNK | -w WINDOW] [-v] TRACE...\n");
                return 1;
        }
        for (int i = optind; i < argc; i++)
                replay(argv[i], &o);
        return 0;
}
