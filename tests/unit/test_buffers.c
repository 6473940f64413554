/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The buffer pool: how much it may hold, what it gives again, and what it gives back.
 */
#include <check.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/buffers.h"
#include "must.h"

#define KiB 1024u
#define MiB (1024u * KiB)
#define MANY 600

static struct buffer_pool *pool;
static void *bufs[MANY];

static void make(size_t bound) { ck_assert_int_eq(buffer_pool_new(bound, &pool), 0); }

static void teardown(void) { pool = buffer_pool_free(pool); }

/* As many as it gives. */
static size_t take_all(size_t size) {
        size_t n = 0;

        while (n < MANY && (bufs[n] = buffer_get(pool, size)))
                n++;
        return n;
}

static void put_all(size_t n, size_t size) {
        for (size_t i = 0; i < n; i++)
                buffer_put(pool, bufs[i], size);
}

START_TEST(a_new_pool_holds_nothing) {
        make(MiB);
        ck_assert_uint_eq(buffer_pool_held(pool), 0);
}
END_TEST

START_TEST(a_buffer_is_aligned_and_as_long_as_asked) {
        make(8 * MiB);
        for (size_t size = 1; size <= BUFFER_LARGEST; size = size * 2 + 1) {
                unsigned char *b = buffer_get(pool, size);
                ck_assert_ptr_nonnull(b);
                ck_assert_uint_eq((uintptr_t)b % 4096, 0);
                memset(b, 0x5a, size);
                buffer_put(pool, b, size);
        }
}
END_TEST

START_TEST(a_size_costs_the_next_power_of_two) {
        static const struct {
                size_t size, held;
        } sizes[] = { { 1, 4 * KiB }, { 4 * KiB, 4 * KiB }, { 4 * KiB + 1, 8 * KiB }, { 100 * KiB, 128 * KiB },
                      { 512 * KiB + 1, MiB }, { MiB, MiB }, { MiB + 1, 2 * MiB }, { 2 * MiB, 2 * MiB } };

        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
                make(8 * MiB);
                void *b = buffer_get(pool, sizes[i].size);
                ck_assert_uint_eq(buffer_pool_held(pool), sizes[i].held);
                ck_assert_uint_eq(buffer_room(sizes[i].size), sizes[i].held);
                buffer_put(pool, b, sizes[i].size);
                teardown();
        }
}
END_TEST

START_TEST(the_bound_is_reached_and_not_passed) {
        make(MiB);
        size_t n = take_all(64 * KiB);
        ck_assert_uint_eq(n, 16);
        ck_assert_uint_eq(buffer_pool_held(pool), MiB);
        ck_assert_ptr_null(buffer_get(pool, 1));
        put_all(n, 64 * KiB);
}
END_TEST

START_TEST(a_bound_between_two_sizes_is_not_passed) {
        make(MiB + 4 * KiB);
        size_t n = take_all(MiB);
        ck_assert_uint_eq(n, 1);
        void *small = buffer_get(pool, 4 * KiB);
        ck_assert_ptr_nonnull(small);
        ck_assert_ptr_null(buffer_get(pool, 4 * KiB));
        buffer_put(pool, small, 4 * KiB);
        put_all(n, MiB);
}
END_TEST

START_TEST(no_bound_gives_nothing) {
        make(0);
        ck_assert_ptr_null(buffer_get(pool, 1));
        ck_assert_uint_eq(buffer_pool_held(pool), 0);
}
END_TEST

START_TEST(larger_than_the_largest_is_null_whatever_the_bound) {
        make(64 * MiB);
        ck_assert_ptr_null(buffer_get(pool, BUFFER_LARGEST + 1));
        ck_assert_ptr_null(buffer_get(pool, 16 * MiB));
        ck_assert_uint_eq(buffer_pool_held(pool), 0);
}
END_TEST

START_TEST(a_refusal_takes_nothing_from_the_bound) {
        make(MiB);
        void *b = buffer_get(pool, 512 * KiB + 1);
        for (int i = 0; i < 100; i++)
                ck_assert_ptr_null(buffer_get(pool, 4 * KiB));
        buffer_put(pool, b, 512 * KiB + 1);
        ck_assert_uint_eq(buffer_pool_held(pool), MiB);
        ck_assert_ptr_nonnull(b = buffer_get(pool, MiB));
        buffer_put(pool, b, MiB);
}
END_TEST

START_TEST(idle_buffers_count_as_held) {
        make(MiB);
        size_t n = take_all(128 * KiB);
        put_all(n, 128 * KiB);
        ck_assert_uint_eq(buffer_pool_held(pool), MiB);
}
END_TEST

START_TEST(what_came_back_is_given_again) {
        make(MiB);
        void *b = buffer_get(pool, 16 * KiB);
        buffer_put(pool, b, 16 * KiB);
        ck_assert_ptr_eq(buffer_get(pool, 12 * KiB + 1), b);
        ck_assert_uint_eq(buffer_pool_held(pool), 16 * KiB);
        buffer_put(pool, b, 12 * KiB + 1);
}
END_TEST

START_TEST(a_small_one_makes_an_idle_large_one_go) {
        make(MiB);
        buffer_put(pool, buffer_get(pool, MiB), MiB);
        void *b = buffer_get(pool, 4 * KiB);
        ck_assert_ptr_nonnull(b);
        ck_assert_uint_eq(buffer_pool_held(pool), 4 * KiB);
        buffer_put(pool, b, 4 * KiB);
}
END_TEST

START_TEST(a_large_one_makes_idle_small_ones_go) {
        make(MiB);
        size_t n = take_all(4 * KiB);
        ck_assert_uint_eq(n, 256);
        put_all(n, 4 * KiB);
        void *b = buffer_get(pool, MiB);
        ck_assert_ptr_nonnull(b);
        ck_assert_uint_eq(buffer_pool_held(pool), MiB);
        buffer_put(pool, b, MiB);
}
END_TEST

START_TEST(no_more_goes_than_has_to) {
        make(MiB);
        size_t n = take_all(256 * KiB);
        ck_assert_uint_eq(n, 4);
        put_all(n, 256 * KiB);
        void *b = buffer_get(pool, 64 * KiB);
        ck_assert_ptr_nonnull(b);
        ck_assert_uint_eq(buffer_pool_held(pool), 3 * 256 * KiB + 64 * KiB);
        buffer_put(pool, b, 64 * KiB);
}
END_TEST

START_TEST(what_is_in_use_never_goes) {
        make(MiB);
        size_t n = take_all(64 * KiB);
        memset(bufs[0], 0x77, 64 * KiB);
        for (size_t i = 1; i < n; i++)
                buffer_put(pool, bufs[i], 64 * KiB);
        ck_assert_ptr_null(buffer_get(pool, MiB));
        for (size_t i = 0; i < 64 * KiB; i++)
                must_eq(((unsigned char *)bufs[0])[i], 0x77);
        buffer_put(pool, bufs[0], 64 * KiB);
}
END_TEST

START_TEST(null_is_put_back_without_harm) {
        make(MiB);
        buffer_put(pool, NULL, 4 * KiB);
        ck_assert_uint_eq(buffer_pool_held(pool), 0);
        ck_assert_ptr_null(buffer_pool_free(NULL));
}
END_TEST

/* What a buffer carries through the walk, at both ends. */
static void mark(size_t i, size_t size) {
        unsigned char *b = bufs[i];

        b[0] = b[size - 1] = (unsigned char)i;
}

START_TEST(a_random_walk_keeps_the_bound_and_every_byte) {
        size_t size[MANY] = { 0 }, in_use = 0;

        make(4 * MiB);
        memset(bufs, 0, sizeof bufs);
        srand(31);
        for (int step = 0; step < 100000; step++) {
                size_t i = (size_t)rand() % MANY;
                if (bufs[i]) {
                        must_eq(((unsigned char *)bufs[i])[0], (unsigned char)i);
                        must_eq(((unsigned char *)bufs[i])[size[i] - 1], (unsigned char)i);
                        buffer_put(pool, bufs[i], size[i]);
                        in_use -= size[i];
                        bufs[i] = NULL;
                } else {
                        size[i] = 2 + (size_t)rand() % (BUFFER_LARGEST >> rand() % 10);
                        if ((bufs[i] = buffer_get(pool, size[i]))) {
                                in_use += size[i];
                                mark(i, size[i]);
                        }
                }
                must(buffer_pool_held(pool) <= 4 * MiB);
                must(in_use <= buffer_pool_held(pool));
        }
        for (size_t i = 0; i < MANY; i++)
                buffer_put(pool, bufs[i], size[i]);
}
END_TEST

static void *take_and_put(void *seed) {
        unsigned state = *(unsigned *)seed;

        for (int i = 0; i < 20000; i++) {
                size_t size = 1 + (size_t)rand_r(&state) % (BUFFER_LARGEST >> rand_r(&state) % 10);
                unsigned *b = buffer_get(pool, size);
                if (b) {
                        *b = state;
                        if (*(volatile unsigned *)b != state)
                                return seed;
                }
                buffer_put(pool, b, size);
                if (buffer_pool_held(pool) > 2 * MiB)
                        return seed;
        }
        return NULL;
}

START_TEST(threads_do_not_get_each_others) {
        pthread_t threads[4];
        unsigned seeds[4] = { 1, 2, 3, 4 };

        make(2 * MiB);
        for (int i = 0; i < 4; i++)
                ck_assert_int_eq(pthread_create(&threads[i], NULL, take_and_put, &seeds[i]), 0);
        for (int i = 0; i < 4; i++) {
                void *bad;
                pthread_join(threads[i], &bad);
                ck_assert_ptr_null(bad);
        }
}
END_TEST

int main(void) {
        Suite *s = suite_create("buffers");
        TCase *t = tcase_create("all");
        SRunner *runner;
        int failed;

        tcase_add_checked_fixture(t, NULL, teardown);
        tcase_set_timeout(t, 60);
        tcase_add_test(t, a_new_pool_holds_nothing);
        tcase_add_test(t, a_buffer_is_aligned_and_as_long_as_asked);
        tcase_add_test(t, a_size_costs_the_next_power_of_two);
        tcase_add_test(t, the_bound_is_reached_and_not_passed);
        tcase_add_test(t, a_bound_between_two_sizes_is_not_passed);
        tcase_add_test(t, no_bound_gives_nothing);
        tcase_add_test(t, larger_than_the_largest_is_null_whatever_the_bound);
        tcase_add_test(t, a_refusal_takes_nothing_from_the_bound);
        tcase_add_test(t, idle_buffers_count_as_held);
        tcase_add_test(t, what_came_back_is_given_again);
        tcase_add_test(t, a_small_one_makes_an_idle_large_one_go);
        tcase_add_test(t, a_large_one_makes_idle_small_ones_go);
        tcase_add_test(t, no_more_goes_than_has_to);
        tcase_add_test(t, what_is_in_use_never_goes);
        tcase_add_test(t, null_is_put_back_without_harm);
        tcase_add_test(t, a_random_walk_keeps_the_bound_and_every_byte);
        tcase_add_test(t, threads_do_not_get_each_others);
        suite_add_tcase(s, t);
        runner = srunner_create(s);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed != 0;
}
