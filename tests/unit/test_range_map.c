/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The range map against an array with one entry per byte of a small file.
 */
#include <check.h>
#include <stdlib.h>

#include "core/range_map.h"
#include "must.h"

#define BYTES 300
#define RANGES 60

static struct range_map map;
static struct range ranges[RANGES];
static struct range *at_byte[BYTES]; /* which range covers it */

static void setup(void) {
        range_map_init(&map, &map);
        for (int i = 0; i < RANGES; i++)
                ranges[i] = (struct range){ 0 };
        for (int i = 0; i < BYTES; i++)
                at_byte[i] = NULL;
}

static void cover(struct range *r, struct range *with) {
        for (uint64_t b = r->off; b < range_end(r); b++)
                at_byte[b] = with;
}

static bool is_free(uint64_t off, uint64_t len) {
        for (uint64_t b = off; b < off + len; b++)
                if (at_byte[b])
                        return false;
        return true;
}

static void insert_or_remove(struct range *r) {
        if (r->map) {
                cover(r, NULL);
                range_map_remove(&map, r);
                return;
        }
        r->len = (uint64_t)(1 + rand() % 12);
        r->off = (uint64_t)rand() % (BYTES - r->len);
        if (!is_free(r->off, r->len))
                return;
        r->state = (enum range_state)(rand() % 3);
        range_map_insert(&map, r);
        cover(r, r);
}

static struct range *slow_find(uint64_t off) {
        for (uint64_t b = off; b < BYTES; b++)
                if (at_byte[b])
                        return at_byte[b];
        return NULL;
}

static bool slow_present(uint64_t b) {
        return at_byte[b] && at_byte[b]->state == RANGE_PRESENT;
}

static void check_present(uint64_t off, uint64_t end) {
        uint64_t from = off, to, got_from = 77, got_to = 78;

        while (from < end && !slow_present(from))
                from++;
        for (to = from; to < end && slow_present(to);)
                to++;
        must_eq(range_map_present(&map, off, end, &got_from, &got_to), from < end);
        must_eq(got_from, from < end ? from : 77);
        must_eq(got_to, from < end ? to : 78);
}

START_TEST(random_walk) {
        srand(3);
        for (int step = 0; step < 20000; step++) {
                uint64_t off = (uint64_t)rand() % BYTES, end = off + (uint64_t)rand() % (BYTES - off + 1);

                insert_or_remove(&ranges[rand() % RANGES]);
                must_eq(range_map_find(&map, off), slow_find(off));
                check_present(off, end);
        }
}
END_TEST

START_TEST(neighbours_in_order) {
        struct range *prev = NULL;

        srand(4);
        for (int step = 0; step < 500; step++)
                insert_or_remove(&ranges[rand() % RANGES]);
        for (struct range *r = range_map_find(&map, 0); r; prev = r, r = range_map_next(r)) {
                must_eq(range_map_prev(r), prev);
                must(!prev || range_end(prev) <= r->off);
        }
        must(prev);
}
END_TEST

START_TEST(empty) {
        uint64_t from = 1, to = 2;

        must_eq(NULL, range_map_find(&map, 0));
        must(!range_map_present(&map, 0, UINT64_MAX, &from, &to));
        must_eq(from, 1);
        must_eq(to, 2);
        must_eq(range_map_present_bytes(&map), 0);
        must_eq(map.owner, &map);
}
END_TEST

int main(void) {
        Suite *s = suite_create("range_map");
        TCase *t = tcase_create("all");
        SRunner *runner;
        int failed;

        tcase_add_checked_fixture(t, setup, NULL);
        tcase_add_test(t, random_walk);
        tcase_add_test(t, neighbours_in_order);
        tcase_add_test(t, empty);
        suite_add_tcase(s, t);
        runner = srunner_create(s);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed != 0;
}
