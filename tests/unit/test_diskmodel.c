/* SPDX-License-Identifier: Apache-2.0 */
/* The disk model by itself: a benchmark that stands on it is only as good as its arithmetic. */
#include "../tools/diskmodel.h"

#include <check.h>
#include <errno.h>
#include <stdlib.h>

#define MS UINT64_C(1000000)
#define MiB UINT64_C(1048576)

/* 1 MiB takes 10 ms and a seek 8 ms, so that sums can be read off. */
static struct diskmodel make(unsigned disks) {
        const struct diskmodel_params p = {
                .disks = disks,
                .seek_ns = 8 * MS,
                .rate = 100 * MiB,
                .stripe = MiB,
        };
        struct diskmodel m;

        ck_assert_int_eq(diskmodel_init(&m, &p), 0);
        return m;
}

START_TEST(parameters) {
        struct diskmodel m;
        struct diskmodel_params p = { .disks = 1, .rate = 1, .stripe = 1 };

        ck_assert_int_eq(diskmodel_init(&m, &p), 0);
        p.rate = 0;
        ck_assert_int_eq(diskmodel_init(&m, &p), -EINVAL);
        p.rate = 1;
        p.stripe = 0;
        ck_assert_int_eq(diskmodel_init(&m, &p), -EINVAL);
        p.stripe = 1;
        p.disks = DISKMODEL_MAX_DISKS + 1;
        ck_assert_int_eq(diskmodel_init(&m, &p), -EINVAL);
        p = (struct diskmodel_params){ .disks = 0 };
        ck_assert_int_eq(diskmodel_init(&m, &p), 0);
}
END_TEST

START_TEST(no_disks_no_delay) {
        struct diskmodel m = make(0);

        ck_assert_uint_eq(diskmodel_read(&m, 5, 1, 0, 100 * MiB), 5);
        m.p.latency_ns = 7;
        ck_assert_uint_eq(diskmodel_read(&m, 5, 1, 0, 100 * MiB), 12);
        ck_assert_uint_eq(m.seeks, 0);
        ck_assert_uint_eq(m.busy_ns, 0);
}
END_TEST

START_TEST(one_seek_then_sequential) {
        struct diskmodel m = make(1);

        ck_assert_uint_eq(diskmodel_read(&m, 0, 1, 0, MiB), 18 * MS);
        ck_assert_uint_eq(diskmodel_read(&m, 18 * MS, 1, MiB, MiB), 28 * MS);
        /* The arm waited meanwhile: no seek, and no time that it did not use. */
        ck_assert_uint_eq(diskmodel_read(&m, 100 * MS, 1, 2 * MiB, MiB), 110 * MS);
        ck_assert_uint_eq(m.seeks, 1);
        ck_assert_uint_eq(m.busy_ns, 38 * MS);
}
END_TEST

START_TEST(requests_queue_at_the_arm) {
        struct diskmodel m = make(1);

        ck_assert_uint_eq(diskmodel_read(&m, 0, 1, 0, MiB), 18 * MS);
        ck_assert_uint_eq(diskmodel_read(&m, 0, 1, MiB, MiB), 28 * MS);
        ck_assert_uint_eq(diskmodel_read(&m, 1, 2, 0, MiB), 46 * MS);
        ck_assert_uint_eq(m.seeks, 2);
}
END_TEST

START_TEST(backwards_and_other_files_seek) {
        struct diskmodel m = make(1);

        diskmodel_read(&m, 0, 1, 4 * MiB, MiB);
        diskmodel_read(&m, 0, 1, 4 * MiB, MiB);
        ck_assert_uint_eq(m.seeks, 2);
        diskmodel_read(&m, 0, 2, 5 * MiB, MiB);
        ck_assert_uint_eq(m.seeks, 3);
        diskmodel_read(&m, 0, 1, 5 * MiB, MiB);
        ck_assert_uint_eq(m.seeks, 4);
}
END_TEST

START_TEST(small_skip_costs_its_bytes) {
        struct diskmodel m = make(1);

        diskmodel_read(&m, 0, 1, 0, MiB);
        ck_assert_uint_eq(diskmodel_read(&m, 18 * MS, 1, MiB + MiB / 2, MiB), (18 + 5 + 10) * MS);
        ck_assert_uint_eq(m.seeks, 1);
        /* 2 MiB ahead would take 20 ms to pass: the arm seeks. */
        ck_assert_uint_eq(diskmodel_read(&m, 33 * MS, 1, 4 * MiB + MiB / 2, MiB), (33 + 8 + 10) * MS);
        ck_assert_uint_eq(m.seeks, 2);
}
END_TEST

START_TEST(swapped_neighbours_cost_the_same) {
        struct diskmodel m = make(1);

        diskmodel_read(&m, 0, 1, 0, MiB);
        ck_assert_uint_eq(diskmodel_read(&m, 18 * MS, 1, MiB + MiB / 2, MiB / 2), 28 * MS);
        ck_assert_uint_eq(diskmodel_read(&m, 18 * MS, 1, MiB, MiB / 2), 28 * MS);
        ck_assert_uint_eq(m.seeks, 1);
        ck_assert_uint_eq(m.busy_ns, 28 * MS);
        /* Once: the drive is no cache. */
        diskmodel_read(&m, 28 * MS, 1, MiB, MiB / 2);
        ck_assert_uint_eq(m.seeks, 2);
}
END_TEST

START_TEST(the_rotation_of_a_seek_passes_what_lies_before) {
        struct diskmodel m = make(1);

        /* 4 ms pass over 0.4 MiB. */
        ck_assert_uint_eq(diskmodel_read(&m, 0, 1, MiB, MiB), 18 * MS);
        ck_assert_uint_eq(diskmodel_read(&m, 0, 1, MiB - MiB / 4, MiB / 4), 18 * MS);
        ck_assert_uint_eq(m.seeks, 1);
        diskmodel_read(&m, 0, 1, MiB / 4, MiB / 2);
        ck_assert_uint_eq(m.seeks, 2);
}
END_TEST

START_TEST(a_part_of_what_was_passed_is_not_all) {
        struct diskmodel m = make(1);

        diskmodel_read(&m, 0, 1, 0, MiB);
        diskmodel_read(&m, 0, 1, MiB + MiB / 2, MiB / 2);
        diskmodel_read(&m, 0, 1, MiB, MiB);
        ck_assert_uint_eq(m.seeks, 2);
}
END_TEST

START_TEST(stripes_run_in_parallel) {
        struct diskmodel m = make(4);

        ck_assert_uint_eq(diskmodel_read(&m, 0, 1, 0, 4 * MiB), 18 * MS);
        ck_assert_uint_eq(m.seeks, 4);
        /* The next stripe of the file continues on each disk. */
        ck_assert_uint_eq(diskmodel_read(&m, 18 * MS, 1, 4 * MiB, 8 * MiB), 38 * MS);
        ck_assert_uint_eq(m.seeks, 4);
        ck_assert_uint_eq(m.busy_ns, 4 * 38 * MS);
}
END_TEST

START_TEST(unaligned_reads_touch_the_right_disks) {
        struct diskmodel m = make(2);

        /* Half a unit at the end of one disk's unit, half at the start of the other's. */
        ck_assert_uint_eq(diskmodel_read(&m, 0, 1, MiB / 2, MiB), 13 * MS);
        ck_assert_uint_eq(m.seeks, 2);
        ck_assert_uint_eq(diskmodel_read(&m, 13 * MS, 1, MiB + MiB / 2, MiB), 18 * MS);
        ck_assert_uint_eq(m.seeks, 2);
}
END_TEST

START_TEST(small_files_are_spread) {
        struct diskmodel m = make(4);
        unsigned used = 0;

        for (uint64_t file = 1000; file < 1064; file++)
                diskmodel_read(&m, 0, file, 0, 4096);
        for (unsigned i = 0; i < 4; i++)
                used += m.arms[i].free_at > 0;
        ck_assert_uint_eq(used, 4);
}
END_TEST

START_TEST(latency_is_not_the_arms) {
        struct diskmodel m = make(1);

        m.p.latency_ns = 2 * MS;
        ck_assert_uint_eq(diskmodel_read(&m, 0, 1, 0, MiB), 20 * MS);
        ck_assert_uint_eq(diskmodel_read(&m, 0, 1, MiB, MiB), 30 * MS);
}
END_TEST

START_TEST(reset_keeps_the_arms) {
        struct diskmodel m = make(1);

        diskmodel_read(&m, 0, 1, 0, MiB);
        diskmodel_reset(&m);
        ck_assert_uint_eq(m.seeks, 0);
        ck_assert_uint_eq(diskmodel_read(&m, 0, 1, MiB, MiB), 28 * MS);
        ck_assert_uint_eq(m.seeks, 0);
        ck_assert_uint_eq(m.busy_ns, 10 * MS);
}
END_TEST

int main(void) {
        Suite *s = suite_create("diskmodel");
        TCase *t = tcase_create("model");
        SRunner *r = srunner_create(s);
        int failed;

        suite_add_tcase(s, t);
        tcase_add_test(t, parameters);
        tcase_add_test(t, no_disks_no_delay);
        tcase_add_test(t, one_seek_then_sequential);
        tcase_add_test(t, requests_queue_at_the_arm);
        tcase_add_test(t, backwards_and_other_files_seek);
        tcase_add_test(t, small_skip_costs_its_bytes);
        tcase_add_test(t, swapped_neighbours_cost_the_same);
        tcase_add_test(t, the_rotation_of_a_seek_passes_what_lies_before);
        tcase_add_test(t, a_part_of_what_was_passed_is_not_all);
        tcase_add_test(t, stripes_run_in_parallel);
        tcase_add_test(t, unaligned_reads_touch_the_right_disks);
        tcase_add_test(t, small_files_are_spread);
        tcase_add_test(t, latency_is_not_the_arms);
        tcase_add_test(t, reset_keeps_the_arms);
        srunner_run_all(r, CK_NORMAL);
        failed = srunner_ntests_failed(r);
        srunner_free(r);
        return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
