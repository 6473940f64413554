/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What growcheck's writers and readers share, and the judge of what was read.
 *
 * The log.  A file has one writer, and its log is the list of its states.  A step is announced (`begun`) before the
 * writer calls the kernel, and ended (`done`) when that has returned.  Who reads `done` before it opens and `begun`
 * after its last byte has every state that it may have met: from `done` (what had ended must be seen) to `begun`.
 * The byte at an offset is always the same, and never 0.  So over these states:
 *   - the end of a reading lies between the smallest and the largest size;
 *   - the file's byte may be read where some state has it;
 *   - 0 may be read in a hole of some state, or behind a cut that was made meanwhile (not one that had ended: a file
 *     that only grows from there on shows its bytes or ends before them);
 *   - SIGBUS may come on a page that lies behind the end in some state.
 */
#pragma once

#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define PAGE 4096u
#define MAX_SIZE (768u << 10)
#define BUFFER (MAX_SIZE + PAGE) /* room for what no log allows */
#define STATES (1u << 18)        /* a writer stops there */
#define NO_CUT UINT32_MAX

struct state {
        uint32_t size, cut;          /* cut: the step was a truncation to that size */
        uint32_t hole_off, hole_end; /* one at a time */
};
struct file {
        _Atomic uint32_t begun, done;
        uint8_t byte[MAX_SIZE];
        struct state states[STATES];
};

enum method { BY_READ, BY_PREAD, BY_MMAP, BY_SENDFILE, METHODS };
extern const char *const method_names[METHODS];

struct reading {
        const struct file *file;
        char path[PATH_MAX];
        unsigned reader;
        enum method method;
        uint32_t first, last;  /* states */
        uint32_t stat_size, n; /* fstat's answer; where it ended */
        bool bus;
        uint8_t bytes[BUFFER], may[BUFFER];
};

struct shared {
        _Atomic bool stop;
        _Atomic unsigned printed, reads[METHODS], wrong[METHODS], wrong_fstats, stats, wrong_stats, failed, at_old_end;
};
extern struct shared *shared;

/* Says what went wrong, for the first few times. */
void complain_of_call(const struct reading *r, const char *call);
/* What was read since `first`: counted, judged, and complained of. */
void judge(struct reading *r);
/* What stat said since `first`; `exact`: it must be true, as nobody caches it. */
void judge_stat(struct reading *r, uint32_t size, bool exact);
