/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine's promise, with both back ends: every operation ends once, with all its bytes, whoever submitted it and
 * whatever became of that thread.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "io/io.h"
#include "temp_dir.h"

enum { OPS = 2000, LEN = 64 * 1024, ROUNDS = 5 };

static const enum io_backend backends[] = { IO_URING, IO_THREADS };

static struct io_engine *engine;
static struct io_op ops[OPS];
static char *buffers;
static _Atomic unsigned ended, wrong;
static _Atomic ssize_t wrong_result;

static void read_done(struct io_op *op, ssize_t result) {
        if (result != (ssize_t)op->len) {
                wrong_result = result;
                wrong++;
        }
        ended++;
}

static void *submit_all(void *unused) {
        (void)unused;
        for (unsigned i = 0; i < OPS; i++)
                io_submit(engine, &ops[i]);
        return NULL;
}

static int file_of_numbers(void) {
        char path[300];

        snprintf(path, sizeof path, "%s/file", temp_dir);
        int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        ck_assert_int_ge(fd, 0);
        for (unsigned i = 0; i < OPS; i++) {
                memset(buffers, (int)(i % 251), LEN);
                ck_assert_int_eq(io_write(fd, buffers, LEN, (uint64_t)i * LEN), LEN);
        }
        return fd;
}

static void wait_for_all(void) {
        for (unsigned i = 0; ended < OPS && i < 3000; i++)
                nanosleep(&(struct timespec){ .tv_nsec = 10 * 1000 * 1000 }, NULL);
        ck_assert_uint_eq(ended, OPS);
}

/* The kernel cancels what a thread asked of io_uring when that thread ends; nobody here asked for that. */
START_TEST(the_thread_that_asked_ends) {
        pthread_t thread;

        buffers = malloc((size_t)OPS * LEN);
        ck_assert_ptr_nonnull(buffers);
        int fd = file_of_numbers();
        if (io_engine_new(backends[_i], &engine) < 0) {
                fprintf(stderr, "no io_uring here: not tried\n");
                ck_assert_int_eq(backends[_i], IO_URING);
                goto out;
        }
        for (unsigned round = 0; round < ROUNDS; round++) {
                memset(buffers, 0xff, (size_t)OPS * LEN);
                ended = wrong = 0;
                for (unsigned i = 0; i < OPS; i++)
                        ops[i] = (struct io_op){ .fd = fd,
                                                 .buf = buffers + (size_t)i * LEN,
                                                 .len = LEN,
                                                 .off = (uint64_t)i * LEN,
                                                 .done = read_done };
                ck_assert_int_eq(pthread_create(&thread, NULL, submit_all, NULL), 0);
                ck_assert_int_eq(pthread_join(thread, NULL), 0);
                wait_for_all();
                ck_assert_msg(wrong == 0, "%u of %d reads, the last with %zd", wrong, OPS, wrong_result);
                for (unsigned i = 0; i < OPS; i++)
                        ck_assert_int_eq((unsigned char)buffers[(size_t)i * LEN + i % LEN], i % 251);
        }
        ck_assert_int_eq(io_engine_free(engine, 10), 0);
out:
        close(fd);
        free(buffers);
}
END_TEST

int main(void) {
        Suite *s = suite_create("engine");
        TCase *t = tcase_create("threads");

        tcase_set_timeout(t, 60);
        tcase_add_checked_fixture(t, temp_dir_empty, NULL);
        tcase_add_loop_test(t, the_thread_that_asked_ends, 0, sizeof backends / sizeof *backends);
        suite_add_tcase(s, t);
        return temp_dir_run(s);
}
