/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The policy's real half against an array with one entry per 4 KiB block: what is present, pending or pinned after a
 * long random walk through every function of the contract, and that the sink hears of exactly what left.
 *
 * Which ranges deserve to be present is test_policy_rules' matter.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "policy_check.h"

#define BLOCK 4096u
#define FILES 3
#define BLOCKS 400
#define CAPACITY (300u * BLOCK)

struct block {
        enum range_state state;
        unsigned pins;
        uint64_t nonce;
};

static struct range_map maps[FILES];
static struct block model[FILES][BLOCKS];
static struct policy *policy;
static enum range_state expect_lost; /* what the sink may take: PRESENT, or PENDING as well (a cut) */

static struct policy *make(enum policy_kind kind, uint64_t capacity, uint64_t max_ranges, uint64_t overhead) {
        const struct policy_config cfg = {
                .kind = kind,
                .capacity = capacity,
                .range_overhead = overhead,
                .charge_sums = overhead > 0,
                .max_ranges = max_ranges,
        };
        struct policy *p;

        must_eq(policy_new(&cfg, &p), 0);
        for (int i = 0; i < FILES; i++)
                range_map_init(&maps[i], model[i]);
        memset(model, 0, sizeof(model));
        return p;
}

static void sink(void *ctx, struct range_map *m, uint64_t off, uint64_t len) {
        struct block *b = m->owner;

        must_eq(ctx, policy);
        for (uint64_t i = off / BLOCK; i < (off + len) / BLOCK; i++) {
                must(b[i].state == RANGE_PRESENT || (b[i].state == RANGE_PENDING && expect_lost == RANGE_PENDING));
                b[i].state = RANGE_GHOST;
        }
}

/* Evicted for room: never what is pinned. */
static void evicted(void *ctx, struct range_map *m, uint64_t off, uint64_t len) {
        struct block *b = m->owner;

        for (uint64_t i = off / BLOCK; i < (off + len) / BLOCK; i++)
                must_eq(b[i].pins, 0);
        sink(ctx, m, off, len);
}

static const struct range *range_at(int file, uint64_t block) {
        const struct range *r = range_map_find(&maps[file], block * BLOCK);

        return r && r->off <= block * BLOCK ? r : NULL;
}

static void compare(void) {
        for (int f = 0; f < FILES; f++)
                for (uint64_t b = 0; b < BLOCKS; b++) {
                        const struct range *r = range_at(f, b);

                        must_eq(r ? r->state : RANGE_GHOST, model[f][b].state);
                        must_eq(r ? r->pins : 0, model[f][b].pins);
                        if (r && r->state == RANGE_PRESENT)
                                must_eq(r->nonce, model[f][b].nonce);
                }
        policy_check(policy, maps, FILES);
}

/* Newly pending blocks lie in the window, and are as many as was said. */
static void take_marked(int f, uint64_t from, uint64_t to, uint64_t marked) {
        uint64_t found = 0;

        for (uint64_t b = from; b < to; b++) {
                const struct range *r = range_at(f, b);

                if (!r || r->state != RANGE_PENDING || model[f][b].state == RANGE_PENDING)
                        continue;
                must_eq(model[f][b].state, RANGE_GHOST);
                model[f][b].state = RANGE_PENDING;
                found++;
        }
        must_eq(found * BLOCK, marked);
}

static void do_admit(int f, uint64_t from, uint64_t to) {
        uint64_t before = policy->real.charged;

        expect_lost = RANGE_PRESENT;
        take_marked(f, from, to, policy_admit(policy, &maps[f], from * BLOCK, (to - from) * BLOCK, evicted, policy));
        must(policy->real.charged <= policy->real.capacity || policy->real.charged <= before);
}

static void do_fill(int f, uint64_t from, uint64_t to) {
        take_marked(f, from, to, policy_fill(policy, &maps[f], from * BLOCK, (to - from) * BLOCK));
}

static void do_finish(int f, uint64_t from, uint64_t to, bool commit) {
        uint64_t nonce = (uint64_t)rand() % 3;

        for (uint64_t b = from; b < to; b++)
                if (model[f][b].state == RANGE_PENDING) {
                        model[f][b].state = commit ? RANGE_PRESENT : RANGE_GHOST;
                        model[f][b].nonce = nonce;
                }
        if (commit)
                policy_commit(policy, &maps[f], from * BLOCK, (to - from) * BLOCK, nonce);
        else
                policy_abort(policy, &maps[f], from * BLOCK, (to - from) * BLOCK);
}

static void none_left(int f, uint64_t from, uint64_t to, enum range_state least) {
        for (uint64_t b = from; b < to; b++)
                must(model[f][b].state == RANGE_GHOST || model[f][b].state < least);
}

static void do_drop(int f, uint64_t from, uint64_t to) {
        expect_lost = RANGE_PRESENT;
        policy_drop(policy, &maps[f], from * BLOCK, (to - from) * BLOCK, sink, policy);
        none_left(f, from, to, RANGE_PRESENT);
}

static void do_cut(int f, uint64_t from, uint64_t to) {
        expect_lost = RANGE_PENDING;
        policy_cut(policy, &maps[f], from * BLOCK, (to - from) * BLOCK, sink, policy);
        none_left(f, from, to, RANGE_PENDING);
        for (uint64_t b = from; b < to; b++)
                must(!range_at(f, b) || model[f][b].pins > 0);
}

static void do_pin(int f, uint64_t from, uint64_t to, bool pin) {
        for (uint64_t b = from; b < to; b++)
                if (pin)
                        model[f][b].pins++;
                else if (model[f][b].pins > 0)
                        model[f][b].pins--;
        if (pin)
                policy_pin(policy, &maps[f], from * BLOCK, (to - from) * BLOCK);
        else
                policy_unpin(policy, &maps[f], from * BLOCK, (to - from) * BLOCK);
}

static void do_resize(void) {
        static const enum policy_kind kinds[] = { POLICY_AUTO, POLICY_HOTNESS, POLICY_LRU };

        expect_lost = RANGE_PRESENT;
        if (rand() % 2)
                policy_set_kind(policy, kinds[rand() % 3]);
        else {
                policy_set_capacity(policy, (uint64_t)(rand() % 2 ? CAPACITY : CAPACITY / 2));
                if (policy_shrink(policy, evicted, policy))
                        must(policy->real.charged <= policy->real.capacity);
        }
}

static void one_step(void) {
        int f = rand() % FILES;
        uint64_t from = (uint64_t)rand() % BLOCKS, len = 1 + (uint64_t)rand() % (rand() % 8 ? 12 : 80);
        uint64_t to = from + len < BLOCKS ? from + len : BLOCKS;

        switch (rand() % 32) {
        case 0:
                do_drop(f, from, to);
                break;
        case 1:
                do_cut(f, from, to);
                break;
        case 2:
        case 3:
                do_pin(f, from, to, rand() % 2);
                break;
        case 4:
                do_fill(f, from, to);
                break;
        case 5:
                do_resize();
                break;
        case 6:
        case 7:
        case 8:
                do_finish(f, 0, BLOCKS, rand() % 4 > 0);
                break;
        default:
                policy_access(policy, &maps[f], from * BLOCK + (uint64_t)rand() % BLOCK, (to - from - 1) * BLOCK + 1);
                do_admit(f, from, to);
                do_finish(f, from, to, rand() % 8 > 0);
        }
}

static void walk(enum policy_kind kind, uint64_t max_ranges, uint64_t overhead, int steps) {
        policy = make(kind, CAPACITY, max_ranges, overhead);
        for (int i = 0; i < steps; i++) {
                one_step();
                compare();
        }
        expect_lost = RANGE_PENDING;
        for (int f = 0; f < FILES; f++)
                policy_clear_map(policy, &maps[f], sink, policy);
        for (int f = 0; f < FILES; f++)
                none_left(f, 0, BLOCKS, RANGE_PENDING);
        must_eq(policy->real.charged, 0);
        policy = policy_free(policy);
}

START_TEST(random_walk) {
        static const enum policy_kind kinds[] = { POLICY_AUTO, POLICY_HOTNESS, POLICY_LRU };

        srand((unsigned)_i);
        walk(kinds[_i % 3], 0, _i % 2 ? 1000 : 0, 4000);
}
END_TEST

START_TEST(random_walk_at_the_limit) {
        srand(100 + (unsigned)_i);
        walk(POLICY_AUTO, 60, _i % 2 ? 1000 : 0, 4000);
}
END_TEST

int main(void) {
        Suite *s = suite_create("policy");
        TCase *t = tcase_create("walk");
        SRunner *runner;
        int failed;

        tcase_set_timeout(t, 60);
        tcase_add_loop_test(t, random_walk, 0, 6);
        tcase_add_loop_test(t, random_walk_at_the_limit, 0, 4);
        suite_add_tcase(s, t);
        runner = srunner_create(s);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed != 0;
}
