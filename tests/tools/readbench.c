/* SPDX-License-Identifier: Apache-2.0 */
/* The command, the processes and the report.  See readbench.h. */
#include "readbench.h"

#include <getopt.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_PROCS 256
#define MAX_TIMES (16u << 20) /* read times that are kept */

/* What the processes share. */
struct shared {
        pthread_barrier_t start;
        struct result results[MAX_PROCS];
};

struct report {
        const char *order;
        struct way way;
        unsigned procs;
        size_t reads;
        uint64_t bytes, distinct, sum;
        bool agree, failed;
        double seconds, user, sys;
        float p50, p99, max;
};

static void *share(size_t len) {
        void *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

        if (p == MAP_FAILED) {
                perror("readbench");
                exit(2);
        }
        return p;
}

/* ---- the processes ---- */

static void run_child(struct shared *s, unsigned i, const struct plan *p, const struct way *w, float *us) {
        pthread_barrier_wait(&s->start);
        read_plan(p, w, us, &s->results[i]);
        _exit(s->results[i].err ? 2 : 0);
}

/* Without all of them the others would wait at the barrier for ever. */
static void give_up(const pid_t *pids, unsigned n) {
        perror("readbench: fork");
        for (unsigned i = 0; i < n; i++)
                kill(pids[i], SIGKILL);
}

static void run_all(struct shared *s, unsigned procs, const struct plan *p, const struct way *w, float *us) {
        pthread_barrierattr_t attr;
        pid_t pids[MAX_PROCS];

        pthread_barrierattr_init(&attr);
        pthread_barrierattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
        pthread_barrier_init(&s->start, &attr, procs);
        for (unsigned i = 0; i < procs; i++)
                s->results[i].err = -1; /* until it says otherwise: killed by SIGBUS, say */
        for (unsigned i = 0; i < procs; i++) {
                pids[i] = fork();
                if (pids[i] == 0)
                        run_child(s, i, p, w, us ? us + i * p->n_ranges : NULL);
                if (pids[i] < 0) {
                        give_up(pids, i);
                        break;
                }
        }
        while (wait(NULL) > 0)
                ;
}

/* ---- the report ---- */

static int by_value(const void *a, const void *b) {
        const float x = *(const float *)a, y = *(const float *)b;

        return x < y ? -1 : x > y;
}

static void add_times(struct report *r, float *us, size_t n) {
        if (!us || n == 0)
                return;
        qsort(us, n, sizeof(*us), by_value);
        r->p50 = us[n / 2];
        r->p99 = us[n * 99 / 100];
        r->max = us[n - 1];
}

static void add_results(struct report *r, const struct result *results) {
        double start = results[0].start, end = results[0].end;

        r->agree = true;
        r->sum = results[0].sum;
        for (unsigned i = 0; i < r->procs; i++) {
                const struct result *x = &results[i];

                start = x->start < start ? x->start : start;
                end = x->end > end ? x->end : end;
                r->agree = r->agree && x->sum == r->sum;
                r->failed = r->failed || x->err != 0;
                r->bytes += x->bytes;
                r->user += x->user;
                r->sys += x->sys;
        }
        r->seconds = end - start;
}

static double mb_per_s(const struct report *r) { return r->seconds > 0 ? (double)r->bytes / 1e6 / r->seconds : 0; }

static const char *way_name(const struct way *w) { return w->mmap ? "mmap" : w->direct ? "pread O_DIRECT" : "pread"; }

static void print_text(const struct report *r) {
        printf("%s by %s, %u process%s: %zu reads, %.1f MB (%.1f MB distinct) in %.3f s, %.1f MB/s\n", r->order,
               way_name(&r->way), r->procs, r->procs == 1 ? "" : "es", r->reads, (double)r->bytes / 1e6,
               (double)r->distinct / 1e6, r->seconds, mb_per_s(r));
        printf("read: median %.0f us, 99th percentile %.0f us, longest %.0f us; user %.2f s, system %.2f s\n",
               (double)r->p50, (double)r->p99, (double)r->max, r->user, r->sys);
        printf("sum %016" PRIx64 "%s%s\n", r->sum, r->agree ? "" : "  THE PROCESSES DO NOT AGREE",
               r->failed ? "  FAILED" : "");
}

static void print_json(const struct report *r) {
        printf("{\"order\": \"%s\", \"by\": \"%s\", \"direct\": %s, \"procs\": %u, \"reads\": %zu, \"bytes\": %" PRIu64
               ", \"distinct_bytes\": %" PRIu64 ", \"seconds\": %.6f, \"mb_per_s\": %.3f, \"sum\": \"%016" PRIx64
               "\", \"sums_agree\": %s, \"failed\": %s, \"p50_us\": %.1f, \"p99_us\": %.1f, \"max_us\": %.1f, "
               "\"user_s\": %.4f, \"sys_s\": %.4f}\n",
               r->order, r->way.mmap ? "mmap" : "pread", r->way.direct ? "true" : "false", r->procs, r->reads, r->bytes,
               r->distinct, r->seconds, mb_per_s(r), r->sum, r->agree ? "true" : "false", r->failed ? "true" : "false",
               (double)r->p50, (double)r->p99, (double)r->max, r->user, r->sys);
}

static int bench(const struct plan *p, struct report *r, bool json) {
        struct shared *s = share(sizeof(*s));
        const size_t n = p->n_ranges * r->procs;
        float *us = n > 0 && n <= MAX_TIMES ? share(n * sizeof(*us)) : NULL;

        r->reads = n;
        r->distinct = plan_distinct_bytes(p);
        run_all(s, r->procs, p, &r->way, us);
        add_results(r, s->results);
        add_times(r, us, n);
        if (json)
                print_json(r);
        else
                print_text(r);
        return fflush(stdout) != 0 || r->failed || !r->agree ? 2 : 0;
}

/* ---- the command ---- */

static void usage(FILE *f) {
        fputs("usage: readbench seq PATH...  [--block=SIZE]\n"
              "       readbench random FILE  [--count=N] [--max=SIZE] [--seed=N]\n"
              "       readbench slices FILE  [--tokens=N] [--active=N] [--skew=X] [--seed=N] [--once]\n"
              "                              [--slices=TABLE]\n"
              "\n"
              "Read files and trees front to back (1M), a file at random places (1000 reads up to 1M), or the expert\n"
              "slices of a GGUF model as a decoder does (16 tokens, 8 experts per layer, skew 1).\n"
              "--once leaves out what an earlier token read, which a page cache would hold.  --slices takes the\n"
              "table of mkgguf --slices; without it FILE's header is read.\n"
              "\n"
              "  --mmap           through a shared map (default: pread)\n"
              "  --direct         O_DIRECT, ranges widened to 4 KiB\n"
              "  --unaligned=N    the buffer begins N bytes after a page boundary\n"
              "  --procs=N        so many processes, each reads all of it, from one barrier\n"
              "  --json           one line of JSON\n"
              "\n"
              "Exit: 0, 1 usage, 2 an error, a short file, or processes that do not agree on the bytes.\n",
              f);
}

static uint64_t parse_size(const char *s) {
        const char *units = "KMGT", *unit;
        char *end;
        double v = strtod(s, &end);

        if (end != s && *end && (unit = strchr(units, *end)))
                for (end++; unit >= units; unit--)
                        v *= 1024;
        if (end == s || *end || !(v >= 1 && v < 9e18)) {
                fprintf(stderr, "readbench: %s: not a size\n", s);
                exit(1);
        }
        return (uint64_t)v;
}

static unsigned parse_count(const char *s, unsigned most) {
        char *end;
        const unsigned long v = strtoul(s, &end, 10);

        if (end == s || *end || v > most) {
                fprintf(stderr, "readbench: %s: not a number up to %u\n", s, most);
                exit(1);
        }
        return (unsigned)v;
}

static const struct option longs[] = {
        { "block", required_argument, NULL, 'b' },
        { "count", required_argument, NULL, 'c' },
        { "max", required_argument, NULL, 'm' },
        { "tokens", required_argument, NULL, 't' },
        { "active", required_argument, NULL, 'a' },
        { "skew", required_argument, NULL, 'k' },
        { "seed", required_argument, NULL, 's' },
        { "slices", required_argument, NULL, 'l' },
        { "mmap", no_argument, NULL, 'M' },
        { "direct", no_argument, NULL, 'D' },
        { "unaligned", required_argument, NULL, 'u' },
        { "procs", required_argument, NULL, 'p' },
        { "json", no_argument, NULL, 'j' },
        { "help", no_argument, NULL, 'h' },
        { "once", no_argument, NULL, 'o' },
        { NULL, 0, NULL, 0 },
};

static bool take_order(int c, struct order *o) {
        switch (c) {
        case 'b':
                o->block = parse_size(optarg);
                return true;
        case 'c':
                o->count = parse_size(optarg);
                return true;
        case 'm':
                o->max = parse_size(optarg);
                return true;
        case 't':
                o->tokens = parse_count(optarg, 1u << 20);
                return true;
        case 'a':
                o->active = parse_count(optarg, 65536);
                return true;
        case 'o':
                o->once = true;
                return true;
        case 'k':
                o->skew = strtod(optarg, NULL);
                return true;
        case 's':
                o->seed = strtoull(optarg, NULL, 10);
                return true;
        case 'l':
                o->slices = optarg;
                return true;
        default:
                return false;
        }
}

static bool take_way(int c, struct report *r, bool *json) {
        switch (c) {
        case 'M':
                r->way.mmap = true;
                return true;
        case 'D':
                r->way.direct = true;
                return true;
        case 'u':
                r->way.unaligned = parse_count(optarg, 4095);
                return true;
        case 'p':
                r->procs = parse_count(optarg, MAX_PROCS);
                return true;
        case 'j':
                *json = true;
                return true;
        default:
                return false;
        }
}

static int make_plan(struct plan *p, const char *order, char *const *paths, int n, const struct order *o) {
        if (strcmp(order, "seq") == 0)
                return plan_sequential(p, paths, n, o);
        if (strcmp(order, "random") == 0 && n == 1)
                return plan_random(p, paths[0], o);
        if (strcmp(order, "slices") == 0 && n == 1)
                return plan_slices(p, paths[0], o);
        usage(stderr);
        exit(1);
}

int main(int argc, char **argv) {
        struct order o = {
                .block = 1 << 20, .count = 1000, .max = 1 << 20, .tokens = 16, .active = 8, .skew = 1, .seed = 1
        };
        struct report r = { .procs = 1 };
        struct plan p = { 0 };
        bool json = false;
        int c;

        while ((c = getopt_long(argc, argv, "h", longs, NULL)) != -1) {
                if (c == 'h') {
                        usage(stdout);
                        return 0;
                }
                if (!take_order(c, &o) && !take_way(c, &r, &json)) {
                        usage(stderr);
                        return 1;
                }
        }
        if (argc - optind < 2 || r.procs == 0 || (r.way.mmap && r.way.direct)) {
                usage(stderr);
                return 1;
        }
        r.order = argv[optind];
        if (make_plan(&p, r.order, argv + optind + 1, argc - optind - 1, &o) < 0)
                return 2;
        return bench(&p, &r, json);
}
