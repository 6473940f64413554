/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mirrors in a store of their own: what was written comes back and verifies, nothing else does, and space is given
 * back to the block.  What is on the disk is asked of the file system (SEEK_DATA), beside the code under test.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "must.h"
#include "store/mirror.h"
#include "store/store_internal.h"
#include "temp_dir.h"

#define BLOCK 4096ull
#define ID 0xab00000000000017ull
#define BLOCKS 600ull /* more than one sidecar block, more than one batch of sums */
#define TAIL 1000ull
#define SIZE (BLOCKS * BLOCK + TAIL)
#define NONCE 99ull

static struct store *store;
static struct mirror *mirror;
static unsigned char *buf, *content;
static char cache_path[300];

static void open_store(void) {
        char error[STORE_ERROR_MAX] = "";
        int r = store_open(cache_path, "/mount/point", 0, &store, error);

        ck_assert_msg(r == 0, "%d: %s", r, error);
}

static void setup(void) {
        temp_dir_empty();
        snprintf(cache_path, sizeof cache_path, "%s/cache", temp_dir);
        open_store();
        ck_assert_int_eq(mirror_open(store, ID, SIZE, true, &mirror), 0);
        ck_assert_int_eq(posix_memalign((void **)&buf, BLOCK, (BLOCKS + 1) * BLOCK), 0);
        content = malloc((BLOCKS + 1) * BLOCK);
        srand(51);
        for (size_t i = 0; i < (BLOCKS + 1) * BLOCK; i++)
                content[i] = (unsigned char)(1 + rand() % 255);
}

static void teardown(void) {
        mirror = mirror_unref(mirror);
        store = store_close(store, true);
        free(buf);
        free(content);
}

/* The same bytes at the same place, as the source would have them. */
static int write_stretch(uint64_t off, uint64_t len, uint64_t nonce) {
        memcpy(buf, content + off, len);
        return mirror_write(mirror, buf, len, off, nonce);
}

static void put(uint64_t off, uint64_t len) { ck_assert_int_eq(write_stretch(off, len, NONCE), 0); }

static void get(uint64_t off, uint64_t len) {
        memset(buf, 0xcc, (BLOCKS + 1) * BLOCK);
        ck_assert_int_eq(mirror_read(mirror, buf, len, off), 0);
}

static int verify(uint64_t off, uint64_t len, struct bad_stretch *bad) {
        *bad = (struct bad_stretch){ 0 };
        return mirror_verify(mirror, buf, len, off, NONCE, bad);
}

static bool verifies(uint64_t off, uint64_t len) {
        struct bad_stretch bad;

        get(off, len);
        return verify(off, len, &bad) == 0;
}

static void must_be_bad(uint64_t off, uint64_t len, uint64_t bad_off, uint64_t bad_len) {
        struct bad_stretch bad;

        get(off, len);
        ck_assert_int_eq(verify(off, len, &bad), -EBADMSG);
        ck_assert_uint_eq(bad.off, bad_off);
        ck_assert_uint_eq(bad.len, bad_len);
}

static int open_part(const char *suffix) {
        char path[MIRROR_PATH_MAX];

        mirror_path(path, ID, suffix);
        return openat(store->dir, path, O_RDWR);
}

static void flip(const char *suffix, uint64_t at) {
        unsigned char c;
        int fd = open_part(suffix);

        ck_assert_int_eq(pread(fd, &c, 1, (off_t)at), 1);
        c ^= 0x10;
        ck_assert_int_eq(pwrite(fd, &c, 1, (off_t)at), 1);
        close(fd);
}

static void cut_short(const char *suffix, uint64_t size) {
        int fd = open_part(suffix);

        ck_assert_int_eq(ftruncate(fd, (off_t)size), 0);
        close(fd);
}

static uint64_t size_of(const char *suffix) {
        struct stat st = { 0 };
        int fd = open_part(suffix);

        ck_assert_int_eq(fstat(fd, &st), 0);
        close(fd);
        return (uint64_t)st.st_size;
}

/* Which blocks of the file take space. */
static void look(const char *suffix, bool *ret, uint64_t blocks) {
        int fd = open_part(suffix);

        memset(ret, 0, blocks * sizeof *ret);
        for (off_t off = 0, end; (off = lseek(fd, off, SEEK_DATA)) >= 0; off = end) {
                end = lseek(fd, off, SEEK_HOLE);
                for (uint64_t b = (uint64_t)off / BLOCK; b * BLOCK < (uint64_t)end; b++)
                        ret[b] = true;
        }
        close(fd);
}

static uint64_t blocks_taken(const char *suffix) {
        static bool taken[BLOCKS + 1];
        uint64_t n = 0;

        look(suffix, taken, BLOCKS + 1);
        for (size_t i = 0; i < BLOCKS + 1; i++)
                n += taken[i];
        return n;
}

START_TEST(a_new_mirror_is_as_long_as_its_file_and_takes_nothing) {
        ck_assert_uint_eq(size_of(""), SIZE);
        ck_assert_uint_eq(size_of(".sum"), (BLOCKS + 1) * 8);
        ck_assert_uint_eq(blocks_taken("") + blocks_taken(".sum"), 0);
}
END_TEST

START_TEST(one_that_was_never_made_is_not_there) {
        struct mirror *other = NULL;

        ck_assert_int_eq(mirror_open(store, ID + 1, SIZE, false, &other), -ENOENT);
        ck_assert_ptr_null(other);
        ck_assert_ptr_null(mirror_unref(NULL));
}
END_TEST

START_TEST(what_was_written_comes_back_and_verifies) {
        put(5 * BLOCK, 10 * BLOCK);
        get(5 * BLOCK, 10 * BLOCK);
        ck_assert_mem_eq(buf, content + 5 * BLOCK, 10 * BLOCK);
        ck_assert(verifies(5 * BLOCK, 10 * BLOCK));
        ck_assert(verifies(9 * BLOCK, BLOCK));
}
END_TEST

START_TEST(only_what_was_written_takes_space) {
        static bool taken[BLOCKS + 1];

        put(5 * BLOCK, 10 * BLOCK);
        look("", taken, BLOCKS + 1);
        for (size_t b = 0; b < BLOCKS + 1; b++)
                ck_assert_int_eq(taken[b], b >= 5 && b < 15);
}
END_TEST

START_TEST(all_of_it_at_once_is_whole) {
        put(0, SIZE);
        get(0, SIZE);
        ck_assert_mem_eq(buf, content, SIZE);
        ck_assert(verifies(0, SIZE));
        for (uint64_t b = 255; b < 262; b++) /* the borders of the batches of sums */
                ck_assert(verifies(b * BLOCK, BLOCK));
}
END_TEST

START_TEST(the_tail_comes_back_and_does_not_lengthen_the_mirror) {
        put(SIZE - TAIL - BLOCK, BLOCK + TAIL);
        ck_assert_uint_eq(size_of(""), SIZE);
        get(SIZE - TAIL, TAIL);
        ck_assert_mem_eq(buf, content + SIZE - TAIL, TAIL);
        ck_assert(verifies(SIZE - TAIL, TAIL));
        ck_assert(verifies(SIZE - TAIL - BLOCK, BLOCK + TAIL));
}
END_TEST

START_TEST(a_mirror_smaller_than_a_block_works) {
        struct bad_stretch bad;

        mirror_unref(mirror);
        ck_assert_int_eq(mirror_open(store, 5, 1, true, &mirror), 0);
        put(0, 1);
        get(0, 1);
        ck_assert_uint_eq(buf[0], content[0]);
        ck_assert_int_eq(verify(0, 1, &bad), 0);
        buf[0] ^= 1;
        ck_assert_int_eq(verify(0, 1, &bad), -EBADMSG);
        ck_assert_uint_eq(bad.len, 1);
}
END_TEST

START_TEST(what_was_never_written_does_not_verify) {
        put(0, 4 * BLOCK);
        must_be_bad(0, 6 * BLOCK, 4 * BLOCK, 2 * BLOCK);
        must_be_bad(100 * BLOCK, BLOCK, 100 * BLOCK, BLOCK);
        must_be_bad(SIZE - TAIL, TAIL, SIZE - TAIL, TAIL);
}
END_TEST

START_TEST(another_nonce_does_not_verify) {
        struct bad_stretch bad = { 0 };

        put(0, 4 * BLOCK);
        get(0, 4 * BLOCK);
        ck_assert_int_eq(mirror_verify(mirror, buf, 4 * BLOCK, 0, NONCE + 1, &bad), -EBADMSG);
        ck_assert_uint_eq(bad.off, 0);
        ck_assert_uint_eq(bad.len, 4 * BLOCK);
}
END_TEST

START_TEST(a_range_written_again_has_its_new_nonce_only) {
        struct bad_stretch bad;

        ck_assert_int_eq(write_stretch(0, 4 * BLOCK, NONCE + 1), 0);
        put(BLOCK, BLOCK);
        ck_assert(verifies(BLOCK, BLOCK));
        get(0, 4 * BLOCK);
        ck_assert_int_eq(mirror_verify(mirror, buf, 4 * BLOCK, 0, NONCE + 1, &bad), -EBADMSG);
        ck_assert_uint_eq(bad.off, BLOCK);
        ck_assert_uint_eq(bad.len, BLOCK);
}
END_TEST

START_TEST(zeros_stay_a_hole_and_verify) {
        memset(content + 10 * BLOCK, 0, 20 * BLOCK);
        put(10 * BLOCK, 20 * BLOCK);
        ck_assert_uint_eq(blocks_taken(""), 0);
        get(10 * BLOCK, 20 * BLOCK);
        ck_assert_mem_eq(buf, content + 10 * BLOCK, 20 * BLOCK);
        ck_assert(verifies(10 * BLOCK, 20 * BLOCK));
}
END_TEST

START_TEST(a_tail_of_zeros_stays_a_hole_and_verifies) {
        memset(content + SIZE - TAIL, 0, TAIL);
        put(SIZE - TAIL, TAIL);
        ck_assert_uint_eq(blocks_taken(""), 0);
        ck_assert(verifies(SIZE - TAIL, TAIL));
}
END_TEST

START_TEST(one_byte_at_either_end_makes_it_no_zeros) {
        memset(content, 0, 8 * BLOCK);
        content[0] = content[8 * BLOCK - 1] = 1;
        put(0, 4 * BLOCK);
        put(4 * BLOCK, 4 * BLOCK);
        get(0, 8 * BLOCK);
        ck_assert_mem_eq(buf, content, 8 * BLOCK);
        ck_assert(verifies(0, 8 * BLOCK));
}
END_TEST

/* What others wrote there before must not be taken for the zeros. */
START_TEST(zeros_over_old_bytes_are_right_or_do_not_verify) {
        put(0, 4 * BLOCK);
        memset(content, 0, 4 * BLOCK);
        put(0, 4 * BLOCK);
        if (verifies(0, 4 * BLOCK))
                ck_assert_mem_eq(buf, content, 4 * BLOCK);
}
END_TEST

START_TEST(a_punched_range_is_free_and_does_not_verify) {
        static bool taken[BLOCKS + 1];

        put(0, 20 * BLOCK);
        ck_assert_int_eq(mirror_punch(mirror, 5 * BLOCK, 3 * BLOCK), 0);
        look("", taken, BLOCKS + 1);
        for (size_t b = 0; b < BLOCKS + 1; b++)
                ck_assert_int_eq(taken[b], b < 20 && (b < 5 || b >= 8));
        must_be_bad(0, 20 * BLOCK, 5 * BLOCK, 3 * BLOCK);
        ck_assert(verifies(0, 5 * BLOCK));
        ck_assert(verifies(8 * BLOCK, 12 * BLOCK));
        ck_assert_uint_eq(size_of(""), SIZE);
}
END_TEST

START_TEST(a_punched_tail_is_free_and_the_size_stays) {
        put(SIZE - TAIL - BLOCK, BLOCK + TAIL);
        ck_assert_int_eq(mirror_punch(mirror, SIZE - TAIL, TAIL), 0);
        ck_assert_uint_eq(blocks_taken(""), 1);
        ck_assert_uint_eq(size_of(""), SIZE);
        must_be_bad(SIZE - TAIL - BLOCK, BLOCK + TAIL, SIZE - TAIL, TAIL);
}
END_TEST

START_TEST(a_punched_range_can_be_written_again) {
        put(0, 20 * BLOCK);
        ck_assert_int_eq(mirror_punch(mirror, 0, 20 * BLOCK), 0);
        ck_assert_uint_eq(blocks_taken(""), 0);
        put(4 * BLOCK, 4 * BLOCK);
        ck_assert(verifies(4 * BLOCK, 4 * BLOCK));
}
END_TEST

START_TEST(punched_sums_take_their_span_and_no_more) {
        put(0, SIZE);
        ck_assert_uint_eq(blocks_taken(".sum"), 2);
        ck_assert_int_eq(mirror_punch_sums(mirror, MIRROR_SUMS_SPAN - BLOCK), 0);
        ck_assert_uint_eq(blocks_taken(".sum"), 1);
        must_be_bad(0, SIZE, 0, MIRROR_SUMS_SPAN);
        ck_assert(verifies(MIRROR_SUMS_SPAN, SIZE - MIRROR_SUMS_SPAN));
}
END_TEST

START_TEST(a_flipped_byte_is_found_to_the_block) {
        put(0, SIZE);
        flip("", 77 * BLOCK + 4095);
        must_be_bad(0, SIZE, 77 * BLOCK, BLOCK);
        must_be_bad(70 * BLOCK, 10 * BLOCK, 77 * BLOCK, BLOCK);
        ck_assert(verifies(0, 77 * BLOCK));
        ck_assert(verifies(78 * BLOCK, SIZE - 78 * BLOCK));
}
END_TEST

START_TEST(a_flipped_sum_is_found_to_the_block) {
        put(0, SIZE);
        flip(".sum", 8 * 300 + 3);
        must_be_bad(0, SIZE, 300 * BLOCK, BLOCK);
}
END_TEST

START_TEST(a_bad_stretch_goes_from_the_first_bad_block_to_the_last) {
        put(0, SIZE);
        flip("", 20 * BLOCK);
        flip("", 257 * BLOCK);
        flip("", 500 * BLOCK + 7);
        must_be_bad(0, SIZE, 20 * BLOCK, 481 * BLOCK);
        must_be_bad(21 * BLOCK, 400 * BLOCK, 257 * BLOCK, BLOCK);
}
END_TEST

START_TEST(a_bad_tail_ends_with_the_file) {
        put(0, SIZE);
        flip("", SIZE - 1);
        must_be_bad(SIZE - TAIL - 2 * BLOCK, 2 * BLOCK + TAIL, SIZE - TAIL, TAIL);
        flip("", 10 * BLOCK);
        must_be_bad(0, SIZE, 10 * BLOCK, SIZE - 10 * BLOCK);
}
END_TEST

START_TEST(random_flips_are_found_exactly) {
        put(0, SIZE);
        srand(52);
        for (int round = 0; round < 100; round++) {
                uint64_t from = (uint64_t)rand() % BLOCKS, to = from + 1 + (uint64_t)rand() % (BLOCKS - from + 1);
                uint64_t off = from * BLOCK, end = to > BLOCKS ? SIZE : to * BLOCK, first = UINT64_MAX, last = 0;
                struct bad_stretch bad;
                get(off, end - off);
                for (int n = 1 + rand() % 4; n > 0; n--) {
                        uint64_t at = (uint64_t)rand() % (end - off), block = (off + at) / BLOCK;
                        buf[at] = (unsigned char)(content[off + at] ^ 4);
                        first = block < first ? block : first;
                        last = block > last ? block : last;
                }
                ck_assert_int_eq(verify(off, end - off, &bad), -EBADMSG);
                ck_assert_uint_eq(bad.off, first * BLOCK);
                ck_assert_uint_eq(bad.off + bad.len, last == BLOCKS ? SIZE : (last + 1) * BLOCK);
        }
}
END_TEST

START_TEST(a_mirror_cut_short_under_us_is_short_or_does_not_verify) {
        struct bad_stretch bad;

        put(0, SIZE);
        cut_short("", 10 * BLOCK);
        ck_assert_int_eq(mirror_read(mirror, buf, 20 * BLOCK, 0), -ENODATA);
        ck_assert(verifies(0, 10 * BLOCK));
        cut_short(".sum", 8 * 5);
        get(0, 10 * BLOCK);
        ck_assert_int_eq(verify(0, 10 * BLOCK, &bad), -ENODATA);
        ck_assert_uint_eq(bad.off, 0);
        ck_assert_uint_eq(bad.len, 10 * BLOCK);
}
END_TEST

START_TEST(a_mirror_cut_short_while_closed_verifies_up_to_there) {
        put(0, SIZE);
        cut_short("", 10 * BLOCK);
        mirror_unref(mirror);
        ck_assert_int_eq(mirror_open(store, ID, SIZE, false, &mirror), 0);
        ck_assert_uint_eq(size_of(""), SIZE);
        must_be_bad(0, SIZE, 10 * BLOCK, SIZE - 10 * BLOCK);
}
END_TEST

START_TEST(a_mirror_is_still_there_when_the_store_is_opened_again) {
        put(0, SIZE);
        mirror = mirror_unref(mirror);
        store = store_close(store, true);
        open_store();
        ck_assert(store_was_clean(store));
        ck_assert_int_eq(mirror_open(store, ID, SIZE, false, &mirror), 0);
        get(0, SIZE);
        ck_assert_mem_eq(buf, content, SIZE);
        ck_assert(verifies(0, SIZE));
}
END_TEST

START_TEST(a_store_left_in_disorder_says_so) {
        mirror = mirror_unref(mirror);
        store = store_close(store, false);
        open_store();
        ck_assert(!store_was_clean(store));
}
END_TEST

START_TEST(a_second_owner_is_refused_and_told_by_whom) {
        char error[STORE_ERROR_MAX] = "";
        struct store *second = NULL;

        ck_assert_int_eq(store_open(cache_path, "/other", 0, &second, error), -EBUSY);
        ck_assert_ptr_null(second);
        ck_assert_ptr_nonnull(strstr(error, "/mount/point"));
}
END_TEST

static void sum_ids(void *ctx, uint64_t id) { *(uint64_t *)ctx += id; }

START_TEST(every_mirror_is_found_and_an_unlinked_one_is_not) {
        struct mirror *other;
        uint64_t sum = 0;

        ck_assert_int_eq(mirror_open(store, 7, 10, true, &other), 0);
        mirror_unref(other);
        ck_assert_int_eq(store_each_mirror(store, sum_ids, &sum), 0);
        ck_assert_uint_eq(sum, ID + 7);
        mirror_unlink(store, 7);
        sum = 0;
        ck_assert_int_eq(store_each_mirror(store, sum_ids, &sum), 0);
        ck_assert_uint_eq(sum, ID);
}
END_TEST

START_TEST(who_holds_a_mirror_reads_it_after_it_was_unlinked) {
        put(0, 4 * BLOCK);
        mirror_ref(mirror);
        mirror_unlink(store, ID);
        mirror_unref(mirror);
        ck_assert(verifies(0, 4 * BLOCK));
        ck_assert_mem_eq(buf, content, 4 * BLOCK);
}
END_TEST

START_TEST(what_a_mirror_takes_is_counted_as_used) {
        uint64_t before = store_used(store), metadata = store_metadata_used(store);

        ck_assert_uint_eq(before, metadata);
        put(0, 100 * BLOCK);
        ck_assert_uint_ge(store_used(store), before + 100 * BLOCK);
        ck_assert_uint_eq(store_metadata_used(store), metadata);
}
END_TEST

/* ---- reconcile ---- */

static bool claimed[BLOCKS + 1];

static bool next_claim(void *ctx, uint64_t off, uint64_t *ret_off, uint64_t *ret_end) {
        uint64_t b = off / BLOCK, end;

        must(ctx == claimed);
        while (b <= BLOCKS && !claimed[b])
                b++;
        for (end = b; end <= BLOCKS && claimed[end];)
                end++;
        if (b > BLOCKS || off >= SIZE)
                return false;
        *ret_off = b * BLOCK;
        *ret_end = end > BLOCKS ? SIZE : end * BLOCK;
        return true;
}

static void claim(uint64_t from, uint64_t to) {
        for (uint64_t b = from; b < to; b++)
                claimed[b] = true;
}

static void claim_nothing(void) { memset(claimed, 0, sizeof claimed); }

static void reconcile(void) { ck_assert_int_eq(mirror_reconcile(mirror, next_claim, claimed), 0); }

/* The data of each block and the sums of each span are there just where `written` and the claims say so. */
static void must_be_what_is_claimed(const bool *written) {
        static bool taken[BLOCKS + 1], sums[2];
        const uint64_t span = MIRROR_SUMS_SPAN / BLOCK;
        bool any[2] = { false };

        look("", taken, BLOCKS + 1);
        look(".sum", sums, 2);
        for (uint64_t b = 0; b <= BLOCKS; b++) {
                must_eq(taken[b], written[b] && claimed[b]);
                any[b / span] |= claimed[b];
        }
        must_eq(sums[0], any[0]);
        must_eq(sums[1], any[1]);
}

START_TEST(what_nobody_claims_is_freed_with_its_sums) {
        claim_nothing();
        put(0, SIZE);
        reconcile();
        ck_assert_uint_eq(blocks_taken("") + blocks_taken(".sum"), 0);
        ck_assert_uint_eq(size_of(""), SIZE);
}
END_TEST

START_TEST(what_is_claimed_whole_stays_whole) {
        claim_nothing();
        claim(0, BLOCKS + 1);
        put(0, SIZE);
        reconcile();
        ck_assert_uint_eq(blocks_taken(""), BLOCKS + 1);
        ck_assert(verifies(0, SIZE));
}
END_TEST

START_TEST(an_empty_mirror_has_nothing_to_free) {
        claim_nothing();
        claim(3, 9);
        reconcile();
        ck_assert_uint_eq(blocks_taken("") + blocks_taken(".sum"), 0);
}
END_TEST

START_TEST(one_claimed_block_keeps_itself_and_the_sums_of_its_span) {
        claim_nothing();
        claim(550, 551);
        put(0, SIZE);
        reconcile();
        ck_assert_uint_eq(blocks_taken(""), 1);
        ck_assert_uint_eq(blocks_taken(".sum"), 1);
        ck_assert(verifies(550 * BLOCK, BLOCK));
}
END_TEST

START_TEST(the_claimed_tail_stays) {
        claim_nothing();
        claim(BLOCKS, BLOCKS + 1);
        put(0, SIZE);
        reconcile();
        ck_assert_uint_eq(blocks_taken(""), 1);
        ck_assert(verifies(SIZE - TAIL, TAIL));
}
END_TEST

START_TEST(random_claims_free_exactly_the_rest) {
        static bool written[BLOCKS + 1];

        srand(53);
        for (int round = 0; round < 40; round++) {
                ck_assert_int_eq(mirror_punch(mirror, 0, SIZE), 0);
                put(0, SIZE); /* every sum */
                memset(written, true, sizeof written);
                claim_nothing();
                for (int n = rand() % 12; n > 0; n--) {
                        uint64_t b = (uint64_t)rand() % BLOCKS, len = 1 + (uint64_t)rand() % 60, off = b * BLOCK;
                        len = len > BLOCKS + 1 - b ? BLOCKS + 1 - b : len;
                        if (n % 2) {
                                claim(b, b + len);
                                continue;
                        }
                        ck_assert_int_eq(mirror_punch(mirror, off, len * BLOCK), 0);
                        memset(written + b, false, len);
                }
                reconcile();
                must_be_what_is_claimed(written);
                for (uint64_t b = 0; b < BLOCKS; b++)
                        must_eq(verifies(b * BLOCK, BLOCK), written[b] && claimed[b]);
        }
}
END_TEST

int main(void) {
        Suite *s = suite_create("mirror");
        TCase *t = tcase_create("all");

        tcase_add_checked_fixture(t, setup, teardown);
        tcase_set_timeout(t, 60);
        tcase_add_test(t, a_new_mirror_is_as_long_as_its_file_and_takes_nothing);
        tcase_add_test(t, one_that_was_never_made_is_not_there);
        tcase_add_test(t, what_was_written_comes_back_and_verifies);
        tcase_add_test(t, only_what_was_written_takes_space);
        tcase_add_test(t, all_of_it_at_once_is_whole);
        tcase_add_test(t, the_tail_comes_back_and_does_not_lengthen_the_mirror);
        tcase_add_test(t, a_mirror_smaller_than_a_block_works);
        tcase_add_test(t, what_was_never_written_does_not_verify);
        tcase_add_test(t, another_nonce_does_not_verify);
        tcase_add_test(t, a_range_written_again_has_its_new_nonce_only);
        tcase_add_test(t, zeros_stay_a_hole_and_verify);
        tcase_add_test(t, a_tail_of_zeros_stays_a_hole_and_verifies);
        tcase_add_test(t, one_byte_at_either_end_makes_it_no_zeros);
        tcase_add_test(t, zeros_over_old_bytes_are_right_or_do_not_verify);
        tcase_add_test(t, a_punched_range_is_free_and_does_not_verify);
        tcase_add_test(t, a_punched_tail_is_free_and_the_size_stays);
        tcase_add_test(t, a_punched_range_can_be_written_again);
        tcase_add_test(t, punched_sums_take_their_span_and_no_more);
        tcase_add_test(t, a_flipped_byte_is_found_to_the_block);
        tcase_add_test(t, a_flipped_sum_is_found_to_the_block);
        tcase_add_test(t, a_bad_stretch_goes_from_the_first_bad_block_to_the_last);
        tcase_add_test(t, a_bad_tail_ends_with_the_file);
        tcase_add_test(t, random_flips_are_found_exactly);
        tcase_add_test(t, a_mirror_cut_short_under_us_is_short_or_does_not_verify);
        tcase_add_test(t, a_mirror_cut_short_while_closed_verifies_up_to_there);
        tcase_add_test(t, a_mirror_is_still_there_when_the_store_is_opened_again);
        tcase_add_test(t, a_store_left_in_disorder_says_so);
        tcase_add_test(t, a_second_owner_is_refused_and_told_by_whom);
        tcase_add_test(t, every_mirror_is_found_and_an_unlinked_one_is_not);
        tcase_add_test(t, who_holds_a_mirror_reads_it_after_it_was_unlinked);
        tcase_add_test(t, what_a_mirror_takes_is_counted_as_used);
        tcase_add_test(t, what_nobody_claims_is_freed_with_its_sums);
        tcase_add_test(t, what_is_claimed_whole_stays_whole);
        tcase_add_test(t, an_empty_mirror_has_nothing_to_free);
        tcase_add_test(t, one_claimed_block_keeps_itself_and_the_sums_of_its_span);
        tcase_add_test(t, the_claimed_tail_stays);
        tcase_add_test(t, random_claims_free_exactly_the_rest);
        suite_add_tcase(s, t);
        return temp_dir_run(s);
}
