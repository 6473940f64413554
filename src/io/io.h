/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Asynchronous reads and writes of whole ranges.
 *
 * An operation ends in exactly one place: its `done`, called once from a thread of the engine with the bytes moved or
 * a negative errno.  Short transfers are continued until the length is met, the file ends or an error comes; an error
 * wins over what was moved before it.  The back end is io_uring, or a pool of pread threads where io_uring is refused
 * (seccomp, sysctl); the callers cannot tell.
 *
 * Threads: io_submit from anywhere; the thread may end before the operation does.  `done` must not block for long: it
 * holds up other completions.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct io_op {
        int fd;
        bool write;
        int flags;  /* RWF_*; dropped where the file does not know them */
        void *buf;  /* owned by the caller, alive until done */
        size_t len; /* bytes */
        uint64_t off;
        void (*done)(struct io_op *op, ssize_t result);

        size_t moved; /* the engine's, as what follows */
        unsigned attempts;
        struct io_op *next;
};

struct io_engine;
enum io_backend { IO_AUTO, IO_URING, IO_THREADS };

int io_engine_new(enum io_backend backend, struct io_engine **ret);
/* Waits for the operations in flight, at most `seconds`; -ETIMEDOUT leaves the engine as it is (its memory with it). */
int io_engine_free(struct io_engine *e, unsigned seconds);
bool io_engine_idle(const struct io_engine *e); /* nothing is in flight */
const char *io_engine_name(const struct io_engine *e);
void io_submit(struct io_engine *e, struct io_op *op);

/* The same, at once, in the calling thread: bytes moved (short only at the end of the file) or a negative errno. */
ssize_t io_read(int fd, void *buf, size_t len, uint64_t off);
ssize_t io_write(int fd, const void *buf, size_t len, uint64_t off);
