/* SPDX-License-Identifier: Apache-2.0 */
#include "base/util.h"
#include "control/protocol.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

int control_path(unsigned minor, unsigned nth, char ret[CONTROL_PATH_MAX]) {
        const char *own = getenv("XDG_RUNTIME_DIR");
        int n = -1;

        if (nth == 0)
                n = snprintf(ret, CONTROL_PATH_MAX, "/run/hotset/%u.sock", minor);
        else if (nth == 1 && own && own[0] == '/')
                n = snprintf(ret, CONTROL_PATH_MAX, "%s/hotset/%u.sock", own, minor);
        return n < 0 ? -ENOENT : n >= CONTROL_PATH_MAX ? -ENAMETOOLONG : 0;
}

static int connect_to(unsigned minor, unsigned seconds) {
        const struct timeval limit = { .tv_sec = seconds };
        struct sockaddr_un sa = { .sun_family = AF_UNIX };
        int r = -ENOENT;

        for (unsigned nth = 0; control_path(minor, nth, sa.sun_path) == 0; nth++) {
                _cleanup_close_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
                if (fd < 0)
                        return -errno;
                setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
                setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
                if (connect(fd, (struct sockaddr *)&sa, sizeof sa) == 0)
                        return take_fd(&fd);
                if (r == -ENOENT)
                        r = -errno;
        }
        return r;
}

static size_t receive(void *buffer, size_t size, void *data) {
        ssize_t n = recv(*(int *)data, buffer, size, 0);
        return n < 0 ? (size_t)-1 : (size_t)n;
}

int control_call(unsigned minor, const json_t *request, unsigned seconds, json_t **ret) {
        _cleanup_free_ char *text = json_dumps(request, JSON_COMPACT);
        _cleanup_close_ int fd = connect_to(minor, seconds);
        json_error_t error;

        if (fd < 0)
                return fd;
        if (!text)
                return -ENOMEM;
        size_t len = strlen(text);
        text[len] = '\n'; /* in place of the terminator */
        if (send(fd, text, len + 1, MSG_NOSIGNAL) != (ssize_t)len + 1)
                return -errno;
        json_t *answer = json_load_callback(receive, &fd, 0, &error);
        if (!answer)
                return errno == EAGAIN ? -ETIMEDOUT : -EPROTO;
        *ret = answer;
        return 0;
}
