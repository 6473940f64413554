/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The index: what was written comes back, a segment is replaced as a whole, and a damaged database is a smaller or an
 * empty one, never a wrong one.
 */
#include <errno.h>
#include <fcntl.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "must.h"
#include "store/index.h"
#include "temp_dir.h"

#define MANY 600
#define BLOCK 4096ull

static int dir;
static struct index *ix;
static bool fresh;

/* What a load brought. */
static struct {
        struct index_file files[MANY];
        struct {
                uint64_t id;
                struct index_extent e;
        } extents[MANY];
        size_t file_count, extent_count, files_after_extents;
        uint64_t bad;
} got;

static void setup(void) {
        temp_dir_empty();
        dir = open(temp_dir, O_RDONLY | O_DIRECTORY);
        ck_assert_int_ge(dir, 0);
        ck_assert_int_eq(index_open(dir, &ix, &fresh), 0);
}

static void teardown(void) {
        ix = index_close(ix);
        close(dir);
}

static void reopen(void) {
        ix = index_close(ix);
        ck_assert_int_eq(index_open(dir, &ix, &fresh), 0);
}

static void got_file(void *ctx, const struct index_file *f) {
        must(ctx == &got && got.file_count < MANY);
        got.files_after_extents += got.extent_count > 0;
        got.files[got.file_count++] = *f;
}

static void got_extent(void *ctx, uint64_t id, const struct index_extent *e) {
        must(ctx == &got && got.extent_count < MANY);
        got.extents[got.extent_count].id = id;
        got.extents[got.extent_count++].e = *e;
}

static int load(void) {
        const struct index_reader reader = { got_file, got_extent, &got };

        memset(&got, 0, sizeof got);
        return index_load(ix, &reader, &got.bad);
}

static void load_all(void) {
        ck_assert_int_eq(load(), 0);
        ck_assert_uint_eq(got.bad, 0);
        ck_assert_uint_eq(got.files_after_extents, 0);
}

/* Values that fill every field to its last bit. */
static struct index_file some_file(uint64_t id) {
        return (struct index_file){ .id = id,
                                    .identity.key = { ~id, id << 32, id * 0x9e3779b97f4a7c15ull },
                                    .identity.version = { id * 1000, (int64_t)~id, (int64_t)(id ^ 1ull << 63) } };
}

static struct index_extent some_extent(uint64_t block, uint64_t nonce) {
        return (struct index_extent){ .off = block * BLOCK, .len = BLOCK, .nonce = nonce, .heat = -0.1 * (double)block,
                                      .age = block << 40 };
}

static void put_file(uint64_t id) {
        struct index_file f = some_file(id);

        ck_assert_int_eq(index_put_file(ix, &f), 0);
}

/* Blocks [from, to) of the segment. */
static void put_extents(uint64_t id, uint64_t segment, uint64_t from, uint64_t to, uint64_t nonce) {
        struct index_extent rows[MANY];

        for (uint64_t i = from; i < to; i++)
                rows[i - from] = some_extent(segment * (INDEX_SEGMENT / BLOCK) + i, nonce);
        ck_assert_int_eq(index_put_segment(ix, id, segment, rows, to - from), 0);
}

static void begin(void) { ck_assert_int_eq(index_begin(ix), 0); }
static void commit(void) { ck_assert_int_eq(index_commit(ix), 0); }

static bool same_file(const struct index_file *a, const struct index_file *b) {
        return a->id == b->id && file_key_cmp(&a->identity.key, &b->identity.key) == 0 &&
               file_version_equal(&a->identity.version, &b->identity.version);
}

static bool same_extent(const struct index_extent *a, const struct index_extent *b) {
        return a->off == b->off && a->len == b->len && a->nonce == b->nonce;
}

START_TEST(a_new_one_is_fresh_and_empty) {
        ck_assert(fresh);
        load_all();
        ck_assert_uint_eq(got.file_count + got.extent_count, 0);
}
END_TEST

START_TEST(one_that_was_there_is_not_fresh) {
        reopen();
        ck_assert(!fresh);
}
END_TEST

START_TEST(nobody_else_may_read_it) {
        struct stat st;

        ck_assert_int_eq(fstatat(dir, "index.db", &st, 0), 0);
        ck_assert_uint_eq(st.st_mode & 077, 0);
}
END_TEST

START_TEST(a_file_comes_back_with_every_bit) {
        static const uint64_t ids[] = { 1, INT64_MAX, 1ull << 63, UINT64_MAX };

        begin();
        for (size_t i = 0; i < 4; i++)
                put_file(ids[i]);
        commit();
        reopen();
        load_all();
        ck_assert_uint_eq(got.file_count, 4);
        for (size_t i = 0; i < 4; i++) {
                struct index_file want = some_file(got.files[i].id);
                ck_assert(same_file(&got.files[i], &want));
        }
}
END_TEST

START_TEST(an_extent_comes_back_with_its_heat_and_age) {
        const struct index_extent put = { .off = 3 * INDEX_SEGMENT + BLOCK, .len = 777, .nonce = UINT64_MAX,
                                          .heat = -1234.56789e-30, .age = 1ull << 62, .suspect = true };

        begin();
        put_file(9);
        ck_assert_int_eq(index_put_segment(ix, 9, 3, &put, 1), 0);
        commit();
        reopen();
        load_all();
        ck_assert_uint_eq(got.extent_count, 1);
        ck_assert_uint_eq(got.extents[0].id, 9);
        ck_assert(same_extent(&got.extents[0].e, &put));
        ck_assert(got.extents[0].e.heat == put.heat);
        ck_assert_uint_eq(got.extents[0].e.age, put.age);
        ck_assert(got.extents[0].e.suspect);
}
END_TEST

START_TEST(a_file_put_again_is_replaced) {
        struct index_file f = some_file(5);

        begin();
        put_file(5);
        f.identity.version.size = 42;
        ck_assert_int_eq(index_put_file(ix, &f), 0);
        commit();
        load_all();
        ck_assert_uint_eq(got.file_count, 1);
        ck_assert_uint_eq(got.files[0].identity.version.size, 42);
}
END_TEST

START_TEST(a_segment_put_again_is_replaced_as_a_whole) {
        begin();
        put_extents(1, 0, 0, 100, 1);
        commit();
        begin();
        put_extents(1, 0, 50, 53, 2);
        commit();
        load_all();
        ck_assert_uint_eq(got.extent_count, 3);
        for (size_t i = 0; i < 3; i++)
                ck_assert_uint_eq(got.extents[i].e.nonce, 2);
}
END_TEST

START_TEST(a_segment_put_with_no_rows_is_empty) {
        begin();
        put_extents(1, 0, 0, 10, 1);
        ck_assert_int_eq(index_put_segment(ix, 1, 0, NULL, 0), 0);
        commit();
        load_all();
        ck_assert_uint_eq(got.extent_count, 0);
}
END_TEST

START_TEST(a_segment_leaves_its_neighbours_and_other_files_alone) {
        const uint64_t last = INDEX_SEGMENT / BLOCK - 1;

        begin();
        put_extents(1, 4, last, last + 1, 1);
        put_extents(1, 5, 0, 1, 1);
        put_extents(1, 5, last, last + 1, 1); /* replaces the line before */
        put_extents(1, 6, 0, 1, 1);
        put_extents(2, 5, 0, 1, 1);
        ck_assert_int_eq(index_put_segment(ix, 1, 5, NULL, 0), 0);
        commit();
        load_all();
        ck_assert_uint_eq(got.extent_count, 3);
        for (size_t i = 0; i < 3; i++)
                ck_assert(got.extents[i].id == 2 || got.extents[i].e.off / INDEX_SEGMENT != 5);
}
END_TEST

START_TEST(a_deleted_file_takes_its_extents_with_it) {
        begin();
        for (uint64_t id = 1; id <= 3; id++) {
                put_file(id);
                put_extents(id, 0, 0, 5, id);
                put_extents(id, 7, 0, 5, id);
        }
        ck_assert_int_eq(index_delete_file(ix, 2), 0);
        commit();
        reopen();
        load_all();
        ck_assert_uint_eq(got.file_count, 2);
        ck_assert_uint_eq(got.extent_count, 20);
        for (size_t i = 0; i < got.file_count; i++)
                ck_assert_uint_ne(got.files[i].id, 2);
        for (size_t i = 0; i < got.extent_count; i++)
                ck_assert_uint_ne(got.extents[i].id, 2);
}
END_TEST

START_TEST(deleting_what_is_not_there_is_no_error) {
        begin();
        ck_assert_int_eq(index_delete_file(ix, 12345), 0);
        commit();
}
END_TEST

START_TEST(a_batch_rolled_back_leaves_nothing) {
        begin();
        put_file(1);
        commit();
        begin();
        put_file(2);
        put_extents(2, 0, 0, 5, 1);
        ck_assert_int_eq(index_delete_file(ix, 1), 0);
        index_rollback(ix);
        load_all();
        ck_assert_uint_eq(got.file_count, 1);
        ck_assert_uint_eq(got.files[0].id, 1);
        ck_assert_uint_eq(got.extent_count, 0);
}
END_TEST

START_TEST(a_batch_never_committed_is_not_there_afterwards) {
        begin();
        put_file(1);
        reopen();
        load_all();
        ck_assert_uint_eq(got.file_count, 0);
}
END_TEST

START_TEST(the_log_is_empty_after_a_commit) {
        struct stat st;

        begin();
        put_extents(1, 0, 0, 500, 1);
        commit();
        if (fstatat(dir, "index.db-wal", &st, 0) == 0)
                ck_assert_int_eq(st.st_size, 0);
}
END_TEST

START_TEST(a_reset_makes_it_empty_fresh_and_usable) {
        begin();
        put_file(1);
        put_extents(1, 0, 0, 5, 1);
        commit();
        ck_assert_int_eq(index_reset(ix, dir), 0);
        load_all();
        ck_assert_uint_eq(got.file_count + got.extent_count, 0);
        begin();
        put_file(2);
        commit();
        reopen();
        ck_assert(!fresh);
        load_all();
        ck_assert_uint_eq(got.file_count, 1);
        ck_assert_uint_eq(got.files[0].id, 2);
}
END_TEST

START_TEST(after_a_delete_it_is_fresh) {
        begin();
        put_file(1);
        commit();
        ix = index_close(ix);
        index_delete(dir);
        ck_assert_int_lt(faccessat(dir, "index.db", F_OK, 0), 0);
        ck_assert_int_eq(index_open(dir, &ix, &fresh), 0);
        ck_assert(fresh);
        load_all();
        ck_assert_uint_eq(got.file_count, 0);
}
END_TEST

static void put_text(const char *name, const char *text, size_t len) {
        int fd = openat(dir, name, O_WRONLY | O_CREAT | O_TRUNC, 0600);

        ck_assert_int_eq(write(fd, text, len), (ssize_t)len);
        close(fd);
}

START_TEST(what_is_no_database_is_replaced_by_a_fresh_one) {
        char junk[10000];

        memset(junk, 'j', sizeof junk);
        ix = index_close(ix);
        put_text("index.db", junk, sizeof junk);
        ck_assert_int_eq(index_open(dir, &ix, &fresh), 0);
        ck_assert(fresh);
        load_all();
}
END_TEST

START_TEST(an_empty_file_is_a_fresh_one) {
        ix = index_close(ix);
        put_text("index.db", "", 0);
        ck_assert_int_eq(index_open(dir, &ix, &fresh), 0);
        ck_assert(fresh);
}
END_TEST

START_TEST(a_folder_or_a_link_in_its_place_is_replaced) {
        ix = index_close(ix);
        index_delete(dir);
        ck_assert_int_eq(mkdirat(dir, "index.db", 0700), 0);
        ck_assert_int_eq(index_open(dir, &ix, &fresh), 0);
        ck_assert(fresh);
        ix = index_close(ix);
        index_delete(dir);
        put_text("elsewhere", "mine", 4);
        ck_assert_int_eq(symlinkat("elsewhere", dir, "index.db"), 0);
        ck_assert_int_eq(index_open(dir, &ix, &fresh), 0);
        ck_assert(fresh);
        struct stat st;
        ck_assert_int_eq(fstatat(dir, "elsewhere", &st, 0), 0);
        ck_assert_int_eq(st.st_size, 4);
}
END_TEST

START_TEST(the_index_of_another_version_is_replaced) {
        unsigned char version[4] = { 0, 0, 0, 99 };

        begin();
        put_file(1);
        commit();
        ix = index_close(ix);
        int fd = openat(dir, "index.db", O_WRONLY);
        ck_assert_int_eq(pwrite(fd, version, 4, 60), 4);
        close(fd);
        ck_assert_int_eq(index_open(dir, &ix, &fresh), 0);
        ck_assert(fresh);
        load_all();
        ck_assert_uint_eq(got.file_count, 0);
}
END_TEST

/* ---- damage ---- */

#define FILES 60
#define PER_FILE 8
static char *image;
static size_t image_size;

static void make_image(void) {
        struct stat st;

        begin();
        for (uint64_t id = 1; id <= FILES; id++) {
                put_file(id);
                put_extents(id, id % 3, 0, PER_FILE, 1000 + id);
        }
        commit();
        ix = index_close(ix);
        int fd = openat(dir, "index.db", O_RDONLY);
        ck_assert_int_eq(fstat(fd, &st), 0);
        image_size = (size_t)st.st_size;
        image = malloc(image_size);
        ck_assert_int_eq(read(fd, image, image_size), st.st_size);
        close(fd);
}

/* Rows that were written, and no others. */
static void check_got(void) {
        for (size_t i = 0; i < got.file_count; i++) {
                uint64_t id = got.files[i].id;
                must(id >= 1 && id <= FILES);
                struct index_file want = some_file(id);
                must(same_file(&got.files[i], &want));
        }
        for (size_t i = 0; i < got.extent_count; i++) {
                uint64_t id = got.extents[i].id, block = got.extents[i].e.off / BLOCK % (INDEX_SEGMENT / BLOCK);
                must(id >= 1 && id <= FILES && block < PER_FILE);
                struct index_extent want = some_extent(id % 3 * (INDEX_SEGMENT / BLOCK) + block, 1000 + id);
                must(same_extent(&got.extents[i].e, &want));
        }
}

/* 0 or -EBADMSG, and what came before an -EBADMSG was written too. */
static void open_and_load_damaged(void) {
        int r = index_open(dir, &ix, &fresh);

        ck_assert_msg(r == 0, "open: %d", r);
        r = load();
        ck_assert_msg(r == 0 || r == -EBADMSG, "load: %d", r);
        check_got();
        if (fresh)
                ck_assert_uint_eq(got.file_count + got.extent_count, 0);
        if (r == -EBADMSG)
                ck_assert_int_eq(index_reset(ix, dir), 0);
}

/* Whatever was damaged: a row can be written, at the latest into the empty one that -EBADMSG asks for. */
static int write_one(void) {
        struct index_file f = some_file(FILES + 1);
        struct index_extent e = some_extent(0, 7);
        int r = index_begin(ix);

        if (r == 0)
                r = index_put_file(ix, &f);
        if (r == 0)
                r = index_put_segment(ix, f.id, 0, &e, 1);
        if (r == 0)
                return index_commit(ix);
        index_rollback(ix);
        return r;
}

static void must_be_usable(void) {
        int r = write_one();

        ck_assert_msg(r == 0 || r == -EBADMSG, "write: %d", r);
        if (r == -EBADMSG) {
                ck_assert_int_eq(index_reset(ix, dir), 0);
                ck_assert_int_eq(write_one(), 0);
        }
        ix = index_close(ix);
        index_delete(dir);
}

/* Not byte 18, by which the header says that it must not be written to: SQLite obeys, and nothing looks damaged. */
static size_t some_position(void) {
        size_t at = (size_t)rand() % image_size;

        return at == 18 ? 19 : at;
}

START_TEST(flipped_bytes_lose_rows_and_make_none_up) {
        make_image();
        for (unsigned seed = 0; seed < 200; seed++) {
                char *damaged = malloc(image_size);
                memcpy(damaged, image, image_size);
                srand(seed);
                for (int n = 1 + rand() % 20; n > 0; n--)
                        damaged[some_position()] ^= (char)(1 + rand() % 255);
                put_text("index.db", damaged, image_size);
                free(damaged);
                open_and_load_damaged();
                must_be_usable();
        }
        free(image);
        ck_assert_int_eq(index_open(dir, &ix, &fresh), 0);
}
END_TEST

/* What SQLite cannot see: the row is in order, but it is not the one that was written. */
START_TEST(a_row_that_does_not_verify_is_counted_and_the_others_come_back) {
        static const struct {
                const char *sql;
                size_t files, extents;
        } changes[] = {
                { "UPDATE files SET id = 1000 WHERE id = 7", 1, 0 },
                { "UPDATE files SET fs = fs + 1 WHERE id = 7", 1, 0 },
                { "UPDATE files SET inode = inode + 1 WHERE id IN (7, 8)", 2, 0 },
                { "UPDATE files SET path = path + 1 WHERE id = 7", 1, 0 },
                { "UPDATE files SET size = size + 1 WHERE id = 7", 1, 0 },
                { "UPDATE files SET mtime = mtime + 1 WHERE id = 7", 1, 0 },
                { "UPDATE files SET ctime = ctime + 1 WHERE id = 7", 1, 0 },
                { "UPDATE files SET sum = sum + 1 WHERE id = 7", 1, 0 },
                { "UPDATE files SET size = 'x'", FILES, 0 },
                { "UPDATE extents SET file = 1000 WHERE file = 7", 0, PER_FILE },
                { "UPDATE extents SET off = off - 1 WHERE file = 7", 0, PER_FILE },
                { "UPDATE extents SET len = len * 2 WHERE file = 7", 0, PER_FILE },
                { "UPDATE extents SET nonce = nonce + 1 WHERE file = 7", 0, PER_FILE },
                { "UPDATE extents SET sum = sum + 1 WHERE file = 7", 0, PER_FILE },
                { "UPDATE extents SET nonce = x'00'", 0, FILES *PER_FILE },
        };

        make_image();
        for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
                char path[300];
                sqlite3 *db;
                put_text("index.db", image, image_size);
                snprintf(path, sizeof path, "%s/index.db", temp_dir);
                ck_assert_int_eq(sqlite3_open(path, &db), SQLITE_OK);
                ck_assert_int_eq(sqlite3_exec(db, changes[i].sql, NULL, NULL, NULL), SQLITE_OK);
                sqlite3_close(db);
                ck_assert_int_eq(index_open(dir, &ix, &fresh), 0);
                ck_assert_int_eq(load(), 0);
                check_got();
                ck_assert_uint_eq(got.bad, changes[i].files + changes[i].extents);
                ck_assert_uint_eq(got.file_count, FILES - changes[i].files);
                ck_assert_uint_eq(got.extent_count, FILES * PER_FILE - changes[i].extents);
                must_be_usable();
        }
        free(image);
        ck_assert_int_eq(index_open(dir, &ix, &fresh), 0);
}
END_TEST

START_TEST(an_index_cut_short_loses_rows_and_makes_none_up) {
        make_image();
        for (size_t len = 0; len < image_size; len += 1000) {
                put_text("index.db", image, len);
                open_and_load_damaged();
                must_be_usable();
        }
        free(image);
        ck_assert_int_eq(index_open(dir, &ix, &fresh), 0);
}
END_TEST

START_TEST(a_page_of_zeros_loses_rows_and_makes_none_up) {
        make_image();
        for (size_t page = 0; page < image_size / 4096; page++) {
                char *damaged = malloc(image_size);
                memcpy(damaged, image, image_size);
                memset(damaged + page * 4096, 0, 4096);
                put_text("index.db", damaged, image_size);
                free(damaged);
                open_and_load_damaged();
                must_be_usable();
        }
        free(image);
        ck_assert_int_eq(index_open(dir, &ix, &fresh), 0);
}
END_TEST

START_TEST(a_log_of_junk_makes_no_rows_up) {
        char junk[20000];

        make_image();
        for (unsigned seed = 0; seed < 20; seed++) {
                srand(seed);
                for (size_t i = 0; i < sizeof junk; i++)
                        junk[i] = (char)rand();
                put_text("index.db", image, image_size);
                put_text("index.db-wal", junk, sizeof junk);
                open_and_load_damaged();
                must_be_usable();
        }
        free(image);
        ck_assert_int_eq(index_open(dir, &ix, &fresh), 0);
}
END_TEST

/* One bit after the other of the header, but for byte 18 (see above): SQLite believes most of it. */
START_TEST(a_flipped_bit_of_the_header_leaves_it_usable) {
        make_image();
        for (unsigned bit = 0; bit < 800; bit++) {
                if (bit / 8 == 18)
                        continue;
                image[bit / 8] ^= (char)(1 << bit % 8);
                put_text("index.db", image, image_size);
                image[bit / 8] ^= (char)(1 << bit % 8);
                int r = index_open(dir, &ix, &fresh);
                ck_assert_msg(r == 0, "open with bit %u of byte %u flipped: %d", bit % 8, bit / 8, r);
                r = load();
                ck_assert_msg(r == 0 || r == -EBADMSG, "load with bit %u of byte %u flipped: %d", bit % 8, bit / 8, r);
                check_got();
                r = r == 0 ? write_one() : r;
                ck_assert_msg(r == 0 || r == -EBADMSG, "write with bit %u of byte %u flipped: %d", bit % 8, bit / 8, r);
                if (r == -EBADMSG)
                        ck_assert_int_eq(index_reset(ix, dir), 0);
                must_be_usable();
        }
        free(image);
        ck_assert_int_eq(index_open(dir, &ix, &fresh), 0);
}
END_TEST

int main(void) {
        Suite *s = suite_create("index");
        TCase *t = tcase_create("all");

        tcase_add_checked_fixture(t, setup, teardown);
        tcase_set_timeout(t, 100);
        tcase_add_test(t, a_new_one_is_fresh_and_empty);
        tcase_add_test(t, one_that_was_there_is_not_fresh);
        tcase_add_test(t, nobody_else_may_read_it);
        tcase_add_test(t, a_file_comes_back_with_every_bit);
        tcase_add_test(t, an_extent_comes_back_with_its_heat_and_age);
        tcase_add_test(t, a_file_put_again_is_replaced);
        tcase_add_test(t, a_segment_put_again_is_replaced_as_a_whole);
        tcase_add_test(t, a_segment_put_with_no_rows_is_empty);
        tcase_add_test(t, a_segment_leaves_its_neighbours_and_other_files_alone);
        tcase_add_test(t, a_deleted_file_takes_its_extents_with_it);
        tcase_add_test(t, deleting_what_is_not_there_is_no_error);
        tcase_add_test(t, a_batch_rolled_back_leaves_nothing);
        tcase_add_test(t, a_batch_never_committed_is_not_there_afterwards);
        tcase_add_test(t, the_log_is_empty_after_a_commit);
        tcase_add_test(t, a_reset_makes_it_empty_fresh_and_usable);
        tcase_add_test(t, after_a_delete_it_is_fresh);
        tcase_add_test(t, what_is_no_database_is_replaced_by_a_fresh_one);
        tcase_add_test(t, an_empty_file_is_a_fresh_one);
        tcase_add_test(t, a_folder_or_a_link_in_its_place_is_replaced);
        tcase_add_test(t, the_index_of_another_version_is_replaced);
        tcase_add_test(t, flipped_bytes_lose_rows_and_make_none_up);
        tcase_add_test(t, a_row_that_does_not_verify_is_counted_and_the_others_come_back);
        tcase_add_test(t, an_index_cut_short_loses_rows_and_makes_none_up);
        tcase_add_test(t, a_page_of_zeros_loses_rows_and_makes_none_up);
        tcase_add_test(t, a_log_of_junk_makes_no_rows_up);
        tcase_add_test(t, a_flipped_bit_of_the_header_leaves_it_usable);
        suite_add_tcase(s, t);
        return temp_dir_run(s);
}
