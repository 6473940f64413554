/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The policy's promises one by one: each test is a sentence of policy.h or of the reasons in core/.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "policy_check.h"

#define BLOCK 4096u
#define MiB (1u << 20)

static struct range_map map;
static struct policy *policy;
static uint64_t lost_bytes;

static void lost(void *ctx, struct range_map *m, uint64_t off, uint64_t len) {
        ck_assert_ptr_eq(ctx, &lost_bytes);
        ck_assert_ptr_eq(m, &map);
        (void)off;
        lost_bytes += len;
}

static void make(const struct policy_config *cfg) {
        ck_assert_int_eq(policy_new(cfg, &policy), 0);
        range_map_init(&map, NULL);
        lost_bytes = 0;
}

static void teardown(void) {
        policy_check(policy, &map, 1);
        policy_clear_map(policy, &map, lost, &lost_bytes);
        ck_assert_uint_eq(policy->known.count, 0);
        policy = policy_free(policy);
}

/* A read as the daemon does it; returns the bytes of it that were present. */
static uint64_t do_read(uint64_t off, uint64_t len) {
        uint64_t hit = 0, from, to, end = off + len, start = off / BLOCK * BLOCK;

        for (uint64_t at = off; at < end && range_map_present(&map, at, end, &from, &to); at = to)
                hit += to - from;
        policy_access(policy, &map, off, len);
        if (hit < len) {
                policy_admit(policy, &map, start, end - start, lost, &lost_bytes);
                policy_commit(policy, &map, start, end - start, 1);
        }
        ck_assert_uint_le(policy->real.charged, policy->real.capacity);
        return hit;
}

static uint64_t known_ranges(void) {
        uint64_t n = 0;

        for (struct range *r = range_map_find(&map, 0); r; r = range_map_next(r))
                n++;
        return n;
}

START_TEST(a_loop_keeps_a_fixed_part) {
        uint64_t hit = 0;

        make(&(struct policy_config){ .kind = POLICY_HOTNESS, .capacity = 40 * MiB });
        for (int round = 0; round < 10; round++)
                for (uint64_t i = 0; i < 100; i++)
                        hit += do_read(i * MiB, MiB);
        ck_assert_uint_eq(hit, 9ull * 40 * MiB);
        ck_assert_uint_eq(lost_bytes, 0);
}
END_TEST

START_TEST(lru_gets_nothing_from_a_loop) {
        make(&(struct policy_config){ .kind = POLICY_LRU, .capacity = 40 * MiB });
        for (int round = 0; round < 3; round++)
                for (uint64_t i = 0; i < 100; i++)
                        ck_assert_uint_eq(do_read(i * MiB, MiB), 0);
        ck_assert_int_eq(policy_active(policy), POLICY_LRU);

        struct policy_stats ps; /* and after the first round, all that comes had to go before */
        policy_stats(policy, &ps);
        ck_assert_uint_eq(ps.readmitted_bytes, 200ull * MiB);
}
END_TEST

START_TEST(no_budget_admits_nothing) {
        make(&(struct policy_config){ .kind = (enum policy_kind)_i, .capacity = 0 });
        for (uint64_t i = 0; i < 1000; i++)
                ck_assert_uint_eq(do_read(i % 10 * MiB, MiB), 0);
        ck_assert_uint_eq(policy_fill(policy, &map, 0, MiB), 0);
        ck_assert_uint_eq(policy->real.charged, 0);
}
END_TEST

START_TEST(too_large_is_declined_and_harms_nothing) {
        make(&(struct policy_config){ .kind = (enum policy_kind)_i, .capacity = 4 * MiB });
        for (uint64_t i = 0; i < 4; i++)
                do_read(i * MiB, MiB);
        for (int n = 0; n < 20; n++)
                ck_assert_uint_eq(do_read(100 * MiB, 5 * MiB), 0);
        for (uint64_t i = 0; i < 4; i++)
                ck_assert_uint_eq(do_read(i * MiB, MiB), MiB);
}
END_TEST

START_TEST(an_exact_repeat_is_one_range) {
        make(&(struct policy_config){ .kind = POLICY_AUTO, .capacity = 4 * MiB });
        for (int n = 0; n < 10; n++)
                do_read(12345, 54321);
        ck_assert_uint_eq(known_ranges(), 1);
        ck_assert_uint_eq(range_map_present_bytes(&map), 66666 - 12288);
}
END_TEST

START_TEST(the_last_block_ends_with_the_file) {
        make(&(struct policy_config){ .kind = POLICY_AUTO, .capacity = 4 * MiB });
        ck_assert_uint_eq(do_read(0, 70000), 0);
        ck_assert_uint_eq(range_map_present_bytes(&map), 70000);
        ck_assert_uint_eq(do_read(0, 70000), 70000);
        ck_assert_uint_eq(do_read(65536, 70000 - 65536), 70000 - 65536);
        ck_assert_uint_eq(known_ranges(), 1);
        ck_assert_uint_eq(range_map_present_bytes(&map), 70000);
}
END_TEST

/* Many small reads inside large extents must be able to push out what is read less. */
START_TEST(small_reads_heat_a_large_range) {
        uint64_t hit = 0;

        make(&(struct policy_config){ .kind = POLICY_HOTNESS, .capacity = 8 * MiB });
        for (uint64_t i = 0; i < 16; i++)
                do_read(i * MiB, MiB);
        srand(5);
        for (int n = 0; n < 40000; n++)
                hit += do_read(12ull * MiB + (uint64_t)(rand() % 512) * BLOCK, BLOCK);
        ck_assert_uint_gt(hit, 35000ull * BLOCK);
}
END_TEST

START_TEST(dropped_bytes_keep_their_heat) {
        make(&(struct policy_config){ .kind = POLICY_HOTNESS, .capacity = 4 * MiB });
        for (uint64_t i = 0; i < 8; i++)
                do_read(i % 4 * MiB, MiB);
        policy_drop(policy, &map, MiB, MiB, lost, &lost_bytes);
        ck_assert_uint_eq(lost_bytes, MiB);
        ck_assert_uint_eq(do_read(9 * MiB, MiB), 0); /* a first-timer does not take the place */
        ck_assert_uint_eq(do_read(MiB, MiB), 0);
        ck_assert_uint_eq(do_read(MiB, MiB), MiB);
}
END_TEST

START_TEST(a_cut_is_exact) {
        uint64_t from, to;

        make(&(struct policy_config){ .kind = POLICY_AUTO, .capacity = 4 * MiB });
        do_read(0, MiB);
        policy_cut(policy, &map, 10000, 1, lost, &lost_bytes);
        ck_assert_uint_eq(lost_bytes, 1);
        ck_assert(range_map_present(&map, 0, MiB, &from, &to));
        ck_assert_uint_eq(to, 10000);
        ck_assert(range_map_present(&map, 10000, MiB, &from, &to));
        ck_assert_uint_eq(from, 10001);
        ck_assert_uint_eq(to, MiB);
}
END_TEST

START_TEST(pinned_bytes_stay) {
        make(&(struct policy_config){ .kind = (enum policy_kind)_i, .capacity = 8 * MiB });
        policy_pin(policy, &map, 0, 3 * MiB);
        ck_assert_uint_eq(do_read(MiB, MiB), 0);
        for (int n = 0; n < 200; n++)
                do_read((uint64_t)(n % 20 + 3) * MiB, MiB);
        ck_assert_uint_eq(do_read(MiB, MiB), MiB);
        ck_assert_uint_eq(do_read(0, MiB), 0); /* pinned before it was present: it enters the full cache */
        ck_assert_uint_eq(do_read(0, MiB), MiB);
        policy_set_capacity(policy, MiB);
        ck_assert(!policy_shrink(policy, lost, &lost_bytes));
        ck_assert_uint_eq(range_map_present_bytes(&map), 2 * MiB);
        policy_unpin(policy, &map, 0, 3 * MiB);
        ck_assert(policy_shrink(policy, lost, &lost_bytes));
        ck_assert_uint_eq(range_map_present_bytes(&map), MiB);
}
END_TEST

START_TEST(a_restart_keeps_order_and_age) {
        struct range_heat heat[4], after;
        struct range *r;

        make(&(struct policy_config){ .kind = POLICY_AUTO, .capacity = 4 * MiB });
        for (int n = 0; n < 4; n++)
                for (uint64_t i = 0; i < 4; i++)
                        if (n < (int)i + 1)
                                do_read(i * MiB, MiB);
        for (uint64_t i = 0; i < 4; i++)
                heat[i] = policy_export(policy, range_map_find(&map, i * MiB));
        teardown();

        make(&(struct policy_config){ .kind = POLICY_AUTO, .capacity = 4 * MiB });
        for (uint64_t i = 4; i-- > 0;)
                ck_assert_int_eq(policy_restore(policy, &map, i * MiB, MiB, 7, heat[i], false), 0);
        for (uint64_t i = 0; i < 4; i++) {
                r = range_map_find(&map, i * MiB);
                after = policy_export(policy, r);
                ck_assert_double_eq_tol(after.heat, heat[i].heat, 1e-9);
                ck_assert_uint_eq(after.age, heat[i].age);
                ck_assert_uint_eq(r->nonce, 7);
        }
        ck_assert_int_eq(policy_restore(policy, &map, 2 * MiB + 5, 1, 7, heat[0], false), -EEXIST);
        ck_assert_int_eq(policy_restore(policy, &map, 9 * MiB, BLOCK, 7, heat[0], false), -ENOSPC);
}
END_TEST

START_TEST(damaged_heat_is_no_heat) {
        static const double wild[] = { NAN, INFINITY, -INFINITY, 1e300, -1e300 };

        make(&(struct policy_config){ .kind = POLICY_AUTO, .capacity = 5 * MiB });
        for (uint64_t i = 0; i < 5; i++)
                ck_assert_int_eq(0, policy_restore(policy, &map, i * MiB, MiB, 1,
                                                   (struct range_heat){ wild[i], UINT64_MAX }, false));
        ck_assert_int_eq(policy_restore(policy, &map, UINT64_MAX - 10, 100, 1, (struct range_heat){ 0 }, false), -EINVAL);
        for (int n = 0; n < 200; n++)
                do_read((uint64_t)(n % 20) * MiB, MiB);
        for (struct range *r = range_map_find(&map, 0); r; r = range_map_next(r))
                ck_assert(isfinite(policy_export(policy, r).heat));
}
END_TEST

START_TEST(a_new_budget_keeps_the_heat) {
        struct range_heat before, after;

        make(&(struct policy_config){ .kind = POLICY_HOTNESS, .capacity = 8 * MiB });
        for (int n = 0; n < 30; n++)
                do_read((uint64_t)(n % 8) * MiB, MiB);
        before = policy_export(policy, range_map_find(&map, 3 * MiB));
        policy_set_capacity(policy, 800 * MiB);
        after = policy_export(policy, range_map_find(&map, 3 * MiB));
        ck_assert_double_eq(before.heat, after.heat);
}
END_TEST

START_TEST(warming_takes_free_room_only) {
        make(&(struct policy_config){ .kind = (enum policy_kind)_i, .capacity = 4 * MiB });
        do_read(0, 3 * MiB);
        ck_assert_uint_eq(policy_fill(policy, &map, 10 * MiB, MiB), MiB);
        policy_commit(policy, &map, 10 * MiB, MiB, 1);
        ck_assert_uint_eq(policy_fill(policy, &map, 20 * MiB, MiB), 0);
        ck_assert_uint_eq(policy->clock, 3 * MiB);
        ck_assert_uint_eq(lost_bytes, 0);
        ck_assert_uint_eq(do_read(10 * MiB, MiB), MiB);
}
END_TEST

START_TEST(the_last_range_of_a_map_and_wild_offsets) {
        make(&(struct policy_config){ .kind = POLICY_AUTO, .capacity = 4 * MiB });
        policy_access(policy, &map, UINT64_MAX - 5, 100);
        policy_access(policy, &map, INT64_MAX - 100000, 200000);
        policy_access(policy, &map, 0, 0);
        policy_cut(policy, &map, 5, UINT64_MAX, lost, &lost_bytes);
        ck_assert_uint_eq(known_ranges(), 0);
}
END_TEST

/* 4 KiB reads of a file front to back must not grow the daemon: neighbours merge, and what is present stays. */
START_TEST(small_reads_merge_at_the_limit) {
        uint64_t hit = 0;

        make(&(struct policy_config){
                .kind = POLICY_AUTO, .capacity = 64 * MiB, .max_ranges = 1000, .min_ghosts = 100 });
        for (int round = 0; round < 2; round++)
                for (uint64_t i = 0; i < 8192; i++)
                        hit += do_read(i * BLOCK, BLOCK);
        ck_assert_uint_le(policy->known.count, 1000);
        ck_assert_uint_gt(hit, 8192ull * BLOCK / 10 * 9);
}
END_TEST

/* Names run out before bytes do: what comes later must still be able to get in. */
START_TEST(a_cache_full_of_tiny_ranges_still_learns) {
        make(&(struct policy_config){
                .kind = (enum policy_kind)_i, .capacity = 64 * MiB, .max_ranges = 1000, .min_ghosts = 100 });
        for (uint64_t i = 0; i < 5000; i++)
                do_read(i * 7919 % 5000 * 2 * BLOCK, BLOCK);
        ck_assert_uint_le(policy->known.count, 1000);
        for (int n = 0; n < 20; n++)
                for (uint64_t i = 0; i < 8; i++)
                        do_read((100 + i) * MiB, MiB);
        for (uint64_t i = 0; i < 8; i++)
                ck_assert_uint_eq(do_read((100 + i) * MiB, MiB), MiB);
        ck_assert_uint_le(policy->known.count, 1000);
}
END_TEST

/* Exact cuts of large ranges are not born as new ranges; the limit holds for them as well. */
START_TEST(the_limit_holds_for_parts) {
        make(&(struct policy_config){
                .kind = POLICY_AUTO, .capacity = 64 * MiB, .max_ranges = 1000, .min_ghosts = 100 });
        for (uint64_t i = 0; i < 512; i++)
                policy_access(policy, &map, i * MiB, MiB);
        policy_pin(policy, &map, 600 * MiB, 16 * MiB);
        srand(6);
        for (int n = 0; n < 20000; n++) {
                do_read((uint64_t)(rand() % (512 * 256)) * BLOCK, BLOCK);
                do_read(600ull * MiB + (uint64_t)(rand() % (16 * 256)) * BLOCK, BLOCK);
        }
        ck_assert_uint_le(policy->known.count, 2000);
}
END_TEST

/* The good bytes of [0, 8 MiB), one digit a mebibyte: all of it, part of it, nothing. */
static void good_is(const char *want) {
        for (uint64_t i = 0; i < 8; i++) {
                uint64_t good = range_map_good_to(&map, i * MiB, (i + 1) * MiB) - i * MiB;
                ck_assert_int_eq(good == MiB ? '1' : good > 0 ? '+' : '0', want[i]);
        }
}

static void fill_eight(void) {
        make(&(struct policy_config){ .kind = POLICY_HOTNESS, .capacity = 40 * MiB });
        for (uint64_t i = 0; i < 8; i++)
                do_read(i * MiB, MiB);
        good_is("11111111");
}

START_TEST(what_is_in_doubt_is_present_but_not_good_until_it_is_trusted) {
        uint64_t from, to;

        fill_eight();
        policy_doubt(policy, &map);
        good_is("00000000");
        ck_assert(range_map_present(&map, 0, UINT64_MAX, &from, &to));
        ck_assert_uint_eq(to - from, 8 * MiB);
        policy_trust(policy, &map, 2 * MiB, 3 * MiB);
        good_is("00111000");
        policy_trust(policy, &map, 6 * MiB, BLOCK);
        good_is("001110+0");
        policy_doubt(policy, &map);
        good_is("00000000");
        ck_assert_uint_eq(lost_bytes, 0);
}
END_TEST

START_TEST(what_comes_anew_is_good_beside_what_is_in_doubt) {
        fill_eight();
        policy_doubt(policy, &map);
        policy_cut(policy, &map, 3 * MiB, MiB, lost, &lost_bytes);
        do_read(3 * MiB, MiB);
        good_is("00010000");
        policy_drop(policy, &map, 5 * MiB, MiB, lost, &lost_bytes);
        do_read(5 * MiB, MiB);
        good_is("00010100");
}
END_TEST

START_TEST(doubt_survives_merging_and_splitting) {
        make(&(struct policy_config){ .kind = POLICY_HOTNESS, .capacity = 64 * MiB, .max_ranges = 64 });
        for (uint64_t i = 0; i < 40; i++)
                do_read(i * BLOCK, BLOCK);
        policy_doubt(policy, &map);
        policy_trust(policy, &map, 10 * BLOCK, 10 * BLOCK);
        for (uint64_t i = 0; i < 2000; i++) /* the hand goes round and merges */
                policy_access(policy, &map, (i % 40) * BLOCK, BLOCK);
        for (uint64_t i = 0; i < 40; i++)
                ck_assert_int_eq(range_map_good_to(&map, i * BLOCK, (i + 1) * BLOCK) == (i + 1) * BLOCK, i >= 10 && i < 20);
}
END_TEST

START_TEST(doubt_comes_back_with_a_restart) {
        make(&(struct policy_config){ .kind = POLICY_HOTNESS, .capacity = 40 * MiB });
        for (uint64_t i = 0; i < 8; i++)
                ck_assert_int_eq(policy_restore(policy, &map, i * MiB, MiB, 7, (struct range_heat){ 0 }, i % 2), 0);
        good_is("10101010");
}
END_TEST

int main(void) {
        Suite *s = suite_create("policy_cases");
        TCase *t = tcase_create("all");
        SRunner *runner;
        int failed;

        tcase_add_checked_fixture(t, NULL, teardown);
        tcase_add_test(t, what_is_in_doubt_is_present_but_not_good_until_it_is_trusted);
        tcase_add_test(t, what_comes_anew_is_good_beside_what_is_in_doubt);
        tcase_add_test(t, doubt_survives_merging_and_splitting);
        tcase_add_test(t, doubt_comes_back_with_a_restart);
        tcase_add_test(t, a_loop_keeps_a_fixed_part);
        tcase_add_test(t, lru_gets_nothing_from_a_loop);
        tcase_add_loop_test(t, no_budget_admits_nothing, POLICY_AUTO, POLICY_LRU + 1);
        tcase_add_loop_test(t, too_large_is_declined_and_harms_nothing, POLICY_AUTO, POLICY_LRU + 1);
        tcase_add_test(t, an_exact_repeat_is_one_range);
        tcase_add_test(t, the_last_block_ends_with_the_file);
        tcase_add_test(t, small_reads_heat_a_large_range);
        tcase_add_test(t, dropped_bytes_keep_their_heat);
        tcase_add_test(t, a_cut_is_exact);
        tcase_add_loop_test(t, pinned_bytes_stay, POLICY_AUTO, POLICY_LRU + 1);
        tcase_add_test(t, a_restart_keeps_order_and_age);
        tcase_add_test(t, damaged_heat_is_no_heat);
        tcase_add_test(t, a_new_budget_keeps_the_heat);
        tcase_add_loop_test(t, warming_takes_free_room_only, POLICY_AUTO, POLICY_LRU + 1);
        tcase_add_test(t, the_last_range_of_a_map_and_wild_offsets);
        tcase_add_test(t, small_reads_merge_at_the_limit);
        tcase_add_loop_test(t, a_cache_full_of_tiny_ranges_still_learns, POLICY_AUTO, POLICY_LRU + 1);
        tcase_add_test(t, the_limit_holds_for_parts);
        suite_add_tcase(s, t);
        runner = srunner_create(s);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed != 0;
}
