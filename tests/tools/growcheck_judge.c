/* SPDX-License-Identifier: Apache-2.0 */
/* See growcheck.h, and there what the log allows. */
#include "growcheck.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { PRINTED = 12, NEAR = 100 }; /* states that an old end is looked for in */
enum { HAS_BYTE = 1, IS_ZERO = 2 };

const char *const method_names[METHODS] = { "read", "pread", "mmap", "sendfile" };

static void allow(struct reading *r, uint32_t off, uint32_t end, uint8_t bit) {
        for (uint32_t o = off; o < end; o++)
                r->may[o] |= bit;
}

static void allow_states(struct reading *r) {
        memset(r->may, 0, sizeof r->may);
        for (uint32_t i = r->first; i <= r->last; i++) {
                const struct state *s = &r->file->states[i];
                allow(r, 0, s->hole_off, HAS_BYTE);
                allow(r, s->hole_off, s->hole_end, IS_ZERO);
                allow(r, s->hole_end, s->size, HAS_BYTE);
                if (i > r->first && s->cut != NO_CUT)
                        allow(r, s->cut, BUFFER, IS_ZERO);
        }
}

/* `at`: the offset where it went wrong; the sizes that the reader may have met, the last of many. */
static bool complain(const struct reading *r, const char *what, uint32_t at) {
        uint32_t old = r->last, from = r->last - r->first > 6 ? r->last - 6 : r->first;

        while (old > 0 && r->file->states[old].size != at)
                old--;
        old = old + NEAR > r->first ? old : 0;
        shared->at_old_end += old > 0;
        if (shared->printed++ >= PRINTED)
                return false;
        printf("WRONG reader %u, %s by %s: %s", r->reader, r->path, method_names[r->method], what);
        if (old > 0)
                printf("; %u was the end after step %u", at, old);
        printf("; it met steps %u to %u, sizes", r->first, r->last);
        for (uint32_t i = from; i <= r->last; i++)
                printf(" %u%s", r->file->states[i].size, r->file->states[i].cut != NO_CUT ? "(cut)" : "");
        printf("\n");
        fflush(stdout);
        return false;
}

static bool judge_size(const struct reading *r, const char *what, uint32_t size) {
        uint32_t least = UINT32_MAX, most = 0;
        char text[160];

        for (uint32_t i = r->first; i <= r->last; i++) {
                uint32_t s = r->file->states[i].size;
                least = s < least ? s : least;
                most = s > most ? s : most;
        }
        if (size >= least && size <= most)
                return true;
        snprintf(text, sizeof text, "%s %u, the log allows %u to %u", what, size, least, most);
        return complain(r, text, size);
}

static bool complain_of_byte(const struct reading *r, uint32_t at) {
        uint32_t end = at;
        char text[240], hex[49] = "";

        while (end < r->n && r->bytes[end] == 0)
                end++;
        for (uint32_t i = 0; i < 16 && at + i < r->n; i++)
                sprintf(hex + 3 * i, "%02x ", r->bytes[at + i]);
        snprintf(text, sizeof text, "byte %u of %u is %02x, the log allows %s%02x%s; from there %s(%u zeros%s)", at, r->n,
                 r->bytes[at], r->may[at] == IS_ZERO ? "only 0, not " : "", r->file->byte[at],
                 r->may[at] == (HAS_BYTE | IS_ZERO) ? " and 0" : "", hex, end - at,
                 end == at ? "" : end % PAGE == 0 ? " to the page's end" : end == r->n ? " to the end" : "");
        return complain(r, text, at);
}

static bool judge_bytes(struct reading *r) {
        allow_states(r);
        for (uint32_t o = 0; o < r->n; o++) {
                int is = (r->bytes[o] == r->file->byte[o] ? HAS_BYTE : 0) | (r->bytes[o] == 0 ? IS_ZERO : 0);
                if (!(is & r->may[o]))
                        return complain_of_byte(r, o);
        }
        return true;
}

void judge(struct reading *r) {
        r->last = r->file->begun;
        bool stat_good = judge_size(r, "fstat says", r->stat_size);
        /* Whoever maps what fstat says cannot know better. */
        bool end_good = (r->method == BY_MMAP && !stat_good) ||
                        judge_size(r, r->bus ? "SIGBUS on the page at" : "it ends at", r->n);
        bool bytes_good = judge_bytes(r);

        shared->reads[r->method]++;
        shared->wrong[r->method] += !end_good || !bytes_good;
        shared->wrong_fstats += !stat_good;
}

void complain_of_call(const struct reading *r, const char *call) {
        shared->failed++;
        if (shared->printed++ < PRINTED)
                printf("WRONG reader %u, %s: %s: %s\n", r->reader, r->path, call, strerror(errno));
        fflush(stdout);
}

void judge_stat(struct reading *r, uint32_t size, bool exact) {
        r->last = r->file->begun;
        shared->stats++;
        shared->wrong_stats += exact && !judge_size(r, "stat by name says", size);
}
