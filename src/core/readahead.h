/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which of the kernel's readahead is worth a read of the source.
 *
 * A buffered read that is larger than the readahead window makes the kernel ask for one or two windows behind it, and a
 * mapped slice for one.  Of a source with seeks and little bandwidth that would be up to twice what the program wanted.
 * So a window that nobody has shown to want is *refused*: the kernel forgets that request, and the reader who gets
 * there asks for the one page that it needs (a *probe*).  That is proof, and it is granted the next stretch at once.
 *
 *   reads      [ run: asked for, in order )[ refused ... )
 *   probe                                  [p]
 *   then       [ run                         )[ grant )[ refused )
 *
 * What may be read on suspicion is a twentieth of what the run has proven: so the source is never asked for more than
 * 1.05 times what was read, and a long run soon reads whole windows.  Three things need no suspicion: what costs the
 * source nothing (present, or under way), a file read from its beginning (whole-file readers), and readers who never
 * probe what was refused (they prefetch on purpose: readahead(2), MADV_WILLNEED).  And the expert slices of a model
 * are alike: what two earlier runs had as their length is granted up to there.
 *
 * A wrong guess costs time, never bytes: a refused window costs its reader a probe and a second request, an answered
 * one costs the source a window.  Requests of one page are never refused.
 *
 * Pure; the caller's lock.  Offsets and lengths are bytes; requests begin at a page, which is a block here: its owner
 * does not ask on a kernel with other pages.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define READAHEAD_RUNS 32

struct readahead_run {
        uint64_t start, end; /* what was read, in order; end 0: a free entry */
        uint64_t refused;    /* [end, refused): the kernel has empty pages there, or none; `end`: nothing was refused */
        uint64_t used;       /* when, counted in reads */
        uint64_t last;       /* length of the last request of several pages */
        unsigned refusals;   /* since the last answer */
        bool sure;
};

/* One open file's; all zeros at first. */
struct readahead {
        struct readahead_run runs[READAHEAD_RUNS];
        uint64_t reads;
        uint64_t window; /* set by the owner: the mount's */
};

/* What the cache knows, asked under the same lock. */
struct readahead_view {
        /* Bytes of [off, end) that are neither present nor under way. */
        uint64_t (*missing)(void *ctx, uint64_t off, uint64_t end);
        /* How far it is present or under way from `off` on; `off` if it is not. */
        uint64_t (*ready_to)(void *ctx, uint64_t off, uint64_t end);
        void *ctx;
};

struct readahead_verdict {
        bool refuse;
        uint64_t drop_off, drop_end; /* the kernel is to forget these empty pages, so that it asks for them as one */
        uint64_t want_off, want_end; /* worth beginning to read now */
};

/* A buffered request for [off, end). */
struct readahead_verdict readahead_judge(struct readahead *ra, uint64_t off, uint64_t end,
                                         const struct readahead_view *v);
/* Takes one refused stretch off the list, for the last closer to drop; false: there is none. */
bool readahead_take_refused(struct readahead *ra, uint64_t *ret_off, uint64_t *ret_end);
