/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checksums of mirror blocks: whatever is not exactly what was written, where and when it was written, shows.
 */
#include <stdlib.h>
#include <string.h>

#include "core/blocksum.h"
#include "must.h"

#define BLOCK 4096u
#define BLOCKS 5
#define NONCE 0x123456789abcdef0ull
#define OFF (77ull * BLOCK)

static unsigned char data[BLOCKS * BLOCK];
static uint64_t sums[BLOCKS + 1];

static void setup(void) {
        srand(21);
        for (size_t i = 0; i < sizeof data; i++)
                data[i] = (unsigned char)rand();
        blocksum_compute(data, sizeof data, OFF, NONCE, sums);
}

static ptrdiff_t verify(size_t len) { return blocksum_verify(data, len, OFF, NONCE, sums); }

START_TEST(what_was_written_verifies) {
        ck_assert_int_eq(verify(sizeof data), -1);
}
END_TEST

START_TEST(each_block_verifies_alone) {
        for (size_t i = 0; i < BLOCKS; i++)
                ck_assert_int_eq(blocksum_verify(data + i * BLOCK, BLOCK, OFF + i * BLOCK, NONCE, sums + i), -1);
}
END_TEST

START_TEST(any_flipped_bit_of_a_block_shows) {
        for (size_t bit = 0; bit < 8 * BLOCK; bit++) {
                data[bit / 8] ^= (unsigned char)(1u << bit % 8);
                must_eq(verify(BLOCK), 0);
                data[bit / 8] ^= (unsigned char)(1u << bit % 8);
        }
        must_eq(verify(BLOCK), -1);
}
END_TEST

START_TEST(any_flipped_bit_of_a_sum_shows) {
        for (unsigned bit = 0; bit < 64; bit++) {
                sums[2] ^= 1ull << bit;
                must_eq(verify(sizeof data), 2);
                sums[2] ^= 1ull << bit;
        }
}
END_TEST

START_TEST(the_first_bad_block_is_named) {
        data[4 * BLOCK] ^= 1;
        ck_assert_int_eq(verify(sizeof data), 4);
        data[3 * BLOCK - 1] ^= 1;
        ck_assert_int_eq(verify(sizeof data), 2);
}
END_TEST

START_TEST(another_nonce_does_not_verify) {
        for (unsigned bit = 0; bit < 64; bit++)
                must_eq(blocksum_verify(data, BLOCK, OFF, NONCE ^ 1ull << bit, sums), 0);
        must_eq(blocksum_verify(data, BLOCK, OFF, 0, sums), 0);
}
END_TEST

START_TEST(another_offset_does_not_verify) {
        for (uint64_t other = 0; other < 1000; other++)
                must_eq(blocksum_verify(data, BLOCK, other * BLOCK, NONCE, sums), other == 77 ? -1 : 0);
        must_eq(blocksum_verify(data, BLOCK, OFF + (1ull << 44), NONCE, sums), 0);
}
END_TEST

START_TEST(swapped_blocks_do_not_verify) {
        unsigned char keep[BLOCK];
        uint64_t sum = sums[1];

        memcpy(keep, data, BLOCK);
        memcpy(data, data + BLOCK, BLOCK);
        memcpy(data + BLOCK, keep, BLOCK);
        ck_assert_int_eq(verify(sizeof data), 0);
        sums[1] = sums[0]; /* not even with their sums */
        sums[0] = sum;
        ck_assert_int_eq(verify(sizeof data), 0);
}
END_TEST

START_TEST(equal_blocks_have_different_sums) {
        memset(data, 0, sizeof data);
        blocksum_compute(data, sizeof data, 0, 0, sums);
        for (size_t i = 0; i < BLOCKS; i++)
                for (size_t k = 0; k < i; k++)
                        ck_assert_uint_ne(sums[i], sums[k]);
}
END_TEST

/* What a mirror shows where nothing was written: zeros, and zeros for their sums. */
START_TEST(a_hole_does_not_verify) {
        memset(data, 0, sizeof data);
        memset(sums, 0, sizeof sums);
        for (uint64_t off = 0; off < 10000; off++)
                must_eq(blocksum_verify(data, BLOCK, off * BLOCK, 0, sums), 0);
}
END_TEST

START_TEST(a_tail_is_summed_over_the_bytes_that_it_has) {
        const size_t len = 2 * BLOCK + 1000;

        blocksum_compute(data, len, OFF, NONCE, sums);
        memset(data + len, 0, sizeof data - len);
        ck_assert_int_eq(verify(len), -1);
        data[len - 1] ^= 1;
        ck_assert_int_eq(verify(len), 2);
}
END_TEST

START_TEST(a_tail_is_not_the_block_filled_up_with_zeros) {
        memset(data + 1000, 0, BLOCK - 1000);
        blocksum_compute(data, 1000, OFF, NONCE, sums);
        ck_assert_int_eq(verify(1000), -1);
        ck_assert_int_eq(verify(1001), 0);
        ck_assert_int_eq(verify(999), 0);
        ck_assert_int_eq(verify(BLOCK), 0);
}
END_TEST

START_TEST(a_length_has_one_sum_per_block_begun) {
        ck_assert_uint_eq(blocksum_count(0), 0);
        ck_assert_uint_eq(blocksum_count(1), 1);
        ck_assert_uint_eq(blocksum_count(BLOCK), 1);
        ck_assert_uint_eq(blocksum_count(BLOCK + 1), 2);
}
END_TEST

START_TEST(no_more_sums_are_written_than_counted) {
        for (size_t len = 0; len <= sizeof data; len += 512) {
                memset(sums, 0, sizeof sums);
                blocksum_compute(data, len, OFF, NONCE, sums);
                for (size_t i = 0; i <= BLOCKS; i++)
                        ck_assert_int_eq(sums[i] != 0, i < blocksum_count(len));
        }
}
END_TEST

int main(void) {
        Suite *s = suite_create("blocksum");
        TCase *t = tcase_create("all");
        SRunner *runner;
        int failed;

        tcase_add_checked_fixture(t, setup, NULL);
        tcase_set_timeout(t, 60);
        tcase_add_test(t, what_was_written_verifies);
        tcase_add_test(t, each_block_verifies_alone);
        tcase_add_test(t, any_flipped_bit_of_a_block_shows);
        tcase_add_test(t, any_flipped_bit_of_a_sum_shows);
        tcase_add_test(t, the_first_bad_block_is_named);
        tcase_add_test(t, another_nonce_does_not_verify);
        tcase_add_test(t, another_offset_does_not_verify);
        tcase_add_test(t, swapped_blocks_do_not_verify);
        tcase_add_test(t, equal_blocks_have_different_sums);
        tcase_add_test(t, a_hole_does_not_verify);
        tcase_add_test(t, a_tail_is_summed_over_the_bytes_that_it_has);
        tcase_add_test(t, a_tail_is_not_the_block_filled_up_with_zeros);
        tcase_add_test(t, a_length_has_one_sum_per_block_begun);
        tcase_add_test(t, no_more_sums_are_written_than_counted);
        suite_add_tcase(s, t);
        runner = srunner_create(s);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed != 0;
}
