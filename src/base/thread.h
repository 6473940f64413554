/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads of the daemon: all signals blocked (they belong to the main thread), a name for ps(1) and perf(1).
 */
#pragma once

#include <pthread.h>

int thread_start(pthread_t *ret, const char *name, void *(*fn)(void *), void *arg);
