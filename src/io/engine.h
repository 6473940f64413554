/* SPDX-License-Identifier: Apache-2.0 */
/* What the two back ends share: the table of a back end, and the one place where an operation goes on or ends. */
#pragma once

#include "io/io.h"

#include <pthread.h>
#include <stdatomic.h>

struct io_backend_ops {
        const char *name;
        int (*start)(struct io_engine *e);
        void (*submit)(struct io_engine *e, struct io_op *op);
        void (*stop)(struct io_engine *e); /* nothing is in flight any more */
};

struct io_engine {
        const struct io_backend_ops *ops;
        void *state; /* the back end's */
        _Atomic unsigned in_flight;
};

extern const struct io_backend_ops io_uring_backend, io_threads_backend;

/* A transfer of `op` returned `res`: continue it, or end it. */
void io_progress(struct io_engine *e, struct io_op *op, ssize_t res);
