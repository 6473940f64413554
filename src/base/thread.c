/* SPDX-License-Identifier: Apache-2.0 */
#include "base/thread.h"

#include <signal.h>

int thread_start(pthread_t *ret, const char *name, void *(*fn)(void *), void *arg) {
        sigset_t all, old;
        pthread_t t;

        sigfillset(&all);
        pthread_sigmask(SIG_BLOCK, &all, &old);
        int r = pthread_create(&t, NULL, fn, arg);
        pthread_sigmask(SIG_SETMASK, &old, NULL);
        if (r != 0)
                return -r;
        pthread_setname_np(t, name);
        *ret = t;
        return 0;
}
