/* SPDX-License-Identifier: Apache-2.0 */
/*
 * readbench: read in a given order, say how long it took and what the bytes were.
 *
 *        readbench.c        the command, the processes, the report
 *        readbench_plan.c   which ranges, in which order: the same arguments give the same plan
 *        readbench_read.c   one process's way through the plan
 *
 * The sum of the bytes does not depend on the order or on how ranges are cut, so that the same bytes give the same sum
 * by whatever way they were read.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct range {
        unsigned file; /* index into plan.files */
        uint64_t off, len;
};

struct plan {
        char **files;
        unsigned n_files;
        struct range *ranges;
        size_t n_ranges;
};

struct order {
        uint64_t block;  /* sequential: bytes per read */
        uint64_t count;  /* random: how many reads */
        uint64_t max;    /* random: longest read */
        unsigned tokens; /* slices */
        unsigned active; /* slices: experts per layer and token */
        bool once;       /* slices: leave out what an earlier token read */
        double skew;     /* slices: the n-th popular expert is chosen with weight n^-skew */
        uint64_t seed;
        const char *slices; /* table of slices (mkgguf --slices); NULL: from the file's header */
};

/* All return 0 or -errno, and say what is wrong. */
int plan_sequential(struct plan *p, char *const *paths, int n, const struct order *o); /* files and whole trees */
int plan_random(struct plan *p, const char *path, const struct order *o);
int plan_slices(struct plan *p, const char *path, const struct order *o);
uint64_t plan_distinct_bytes(const struct plan *p);

struct way {
        bool mmap, direct;
        unsigned unaligned; /* the buffer's distance from a page boundary */
};

struct result {
        uint64_t bytes, sum;
        double start, end; /* seconds of the monotonic clock */
        double user, sys;
        int err; /* -errno */
};

/* `us`, if not NULL, takes each read's time in microseconds. */
void read_plan(const struct plan *p, const struct way *w, float *us, struct result *ret);
