/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The policy: which ranges deserve to be in the cache.
 *
 * Idea.  Per file a range map: disjoint known ranges, each with a heat.  A
 * *shadow* is a cache of names: it says which known ranges it would hold within
 * the budget.  The real cache follows one shadow lazily: a miss is admitted iff
 * the followed shadow holds its range, and what that shadow does not hold is
 * evicted first, oldest first.  So there is one way in and one way out whatever
 * the policy is; `lru` and `hotness` follow one fixed shadow, `auto` follows
 * the leader of a contest.
 *
 * Pure: no I/O, threads, clock or randomness; memory only through
 * malloc/free.  Time is the number of bytes requested (policy_access).
 *
 * Threads: none of its own.  One policy and all its maps belong to one lock,
 * which the caller holds around every call.
 *
 * Units: offsets, lengths and budgets are bytes.  Errors: negative errno.
 * Where memory runs out, a range is forgotten (a future miss), never invented.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/range_map.h"

enum policy_kind { POLICY_AUTO, POLICY_HOTNESS, POLICY_LRU };

struct policy_config {
        enum policy_kind kind;
        uint64_t capacity;       /* bytes that present and pending ranges may be charged */
        uint64_t range_overhead; /* bytes charged for a present range beside its length (0 in replay) */
        bool charge_sums;        /* charge len/512 for the checksum sidecar */
        uint64_t max_ranges;     /* known ranges, ghosts included; 0: the default (POLICY_MAX_RANGES) */
        uint64_t min_ghosts;     /* 0: the default (POLICY_MIN_GHOSTS) */
};

#define POLICY_MAX_RANGES 1048576u
#define POLICY_MIN_GHOSTS 262144u

struct policy;

/* Told of every stretch of real bytes that leaves the cache, once it is a ghost or unknown.  The bytes are in the
 * mirror of `map->owner` at [off, off+len); the sink must not call the policy. */
typedef void (*policy_sink)(void *ctx, struct range_map *map, uint64_t off, uint64_t len);

int policy_new(const struct policy_config *cfg, struct policy **ret);
struct policy *policy_free(struct policy *p); /* maps must have been cleared; returns NULL */

/* Budget and kind may change at run time; nothing present is touched until policy_shrink or the next admission. */
void policy_set_capacity(struct policy *p, uint64_t bytes);
void policy_set_kind(struct policy *p, enum policy_kind kind);
enum policy_kind policy_active(const struct policy *p); /* the followed shadow's: HOTNESS or LRU */

/* One read of [off, off+len) through the mount: advances time by len, credits heat, lets the shadows decide.
 * Unknown parts become known ranges.  Bytes need not be aligned. */
void policy_access(struct policy *p, struct range_map *m, uint64_t off, uint64_t len);

/* After a source read of [off, off+len) (4 KiB aligned, or ending at the file's end): mark what may enter as
 * RANGE_PENDING, exactly those bytes, and evict for it what the followed shadow does not hold.  Parts already
 * present or pending are left alone.  Returns the bytes marked; what is not marked is declined.
 * Every pending byte must later meet policy_commit, policy_abort or policy_cut. */
uint64_t policy_admit(struct policy *p, struct range_map *m, uint64_t off, uint64_t len, policy_sink evicted,
                      void *ctx);
void policy_commit(struct policy *p, struct range_map *m, uint64_t off, uint64_t len, uint64_t nonce);
void policy_abort(struct policy *p, struct range_map *m, uint64_t off, uint64_t len);

/* The bytes are gone or doubted, their heat stays (corrupt block, `hotset drop`): present becomes ghost. */
void policy_drop(struct policy *p, struct range_map *m, uint64_t off, uint64_t len, policy_sink dropped, void *ctx);
/* All that is present in the map becomes suspect: it keeps its room and its heat, and is not served before its bytes
 * were compared with the source's and trusted again.  Cheap where it is in doubt already. */
void policy_doubt(struct policy *p, struct range_map *m);
void policy_trust(struct policy *p, struct range_map *m, uint64_t off, uint64_t len);
/* The bytes have changed (write, truncate, new identity): present, pending and ghosts in [off, off+len) are
 * forgotten, exactly there.  The sink hears of present and pending parts. */
void policy_cut(struct policy *p, struct range_map *m, uint64_t off, uint64_t len, policy_sink cut, void *ctx);
/* Forget a map whole, its pins too, before its owner goes away. */
void policy_clear_map(struct policy *p, struct range_map *m, policy_sink cut, void *ctx);
/* For warming and filling: like policy_admit, but without an access, for unknown parts too, and only into free room
 * (nothing is evicted for it).  The shadows take it in as a range that was used once, now, where they have room. */
uint64_t policy_fill(struct policy *p, struct range_map *m, uint64_t off, uint64_t len);
/* Evict until the charge fits the capacity: first what the followed shadow does not hold, then the coldest.
 * Pinned ranges stay.  Returns true if it fits now. */
bool policy_shrink(struct policy *p, policy_sink evicted, void *ctx);

/* Pins count; a pinned present range is no victim.  (Promotion, pins and leases use this.)  They belong to the bytes,
 * whether these are known, present or neither, and stay through drop and cut until the unpin of the same bytes.
 * Pinned bytes stand outside the contest: they may enter whenever they fit, and what they are charged is missing from
 * every shadow's budget. */
void policy_pin(struct policy *p, struct range_map *m, uint64_t off, uint64_t len);
void policy_unpin(struct policy *p, struct range_map *m, uint64_t off, uint64_t len);

/* What a restart keeps.  Heat and age are relative to the clock, so that they mean the same under another one. */
struct range_heat {
        double heat;   /* S - t/h, never above a few tens; -inf: nothing known */
        uint64_t age;  /* t - last, bytes */
};
struct range_heat policy_export(const struct policy *p, const struct range *r);
/* Enter [off, off+len) as present (charged) with that heat.  -EEXIST if it overlaps something known, -ENOSPC if it
 * does not fit the capacity, -ENOMEM.  Call in any order, before the first access. */
int policy_restore(struct policy *p, struct range_map *m, uint64_t off, uint64_t len, uint64_t nonce,
                   struct range_heat heat, bool suspect);

/* Charged bytes of present and pending ranges, and counts for status. */
struct policy_stats {
        uint64_t charged, present_bytes, present_ranges, ghost_ranges, clock;
        uint64_t pinned; /* the part of charged that is pinned */
        uint64_t readmitted_bytes;      /* committed, and had been evicted before */
        uint64_t shadow_hit_bytes, shadow_admitted_bytes; /* what the followed shadow would have hit and written */
};
void policy_stats(const struct policy *p, struct policy_stats *ret);
