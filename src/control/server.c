/* SPDX-License-Identifier: Apache-2.0 */
#include "control/server.h"

#include "base/clock.h"
#include "base/thread.h"
#include "base/util.h"
#include "control/protocol.h"
#include "control/status.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>

enum { REQUEST_SECONDS = 2 };

struct control_server {
        struct control_config cfg;
        char path[CONTROL_PATH_MAX];
        int listener, stop;
        pthread_t thread;
};

static int bind_at(const char *path) {
        struct sockaddr_un sa = { .sun_family = AF_UNIX };
        char folder[CONTROL_PATH_MAX];
        _cleanup_close_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

        if (fd < 0)
                return -errno;
        strcpy(folder, path);
        *strrchr(folder, '/') = '\0';
        if (mkdir(folder, 0755) == 0)
                chmod(folder, 0755); /* whatever the umask */
        strcpy(sa.sun_path, path);
        unlink(path); /* left by a daemon that was killed; the number is ours now */
        if (bind(fd, (struct sockaddr *)&sa, sizeof sa) < 0 || chmod(path, 0666) < 0 || listen(fd, 16) < 0)
                return -errno;
        return take_fd(&fd);
}

static bool send_all(int fd, const char *text, size_t len) {
        while (len > 0) {
                ssize_t n = send(fd, text, len, MSG_NOSIGNAL);
                if (n <= 0)
                        return false;
                text += n;
                len -= (size_t)n;
        }
        return true;
}

static json_t *answer(struct control_server *s, const char *line) {
        json_t *request = json_loads(line, 0, NULL);
        const char *command = json_string_value(json_object_get(request, "command"));
        json_t *reply;

        if (command && strcmp(command, "status") == 0)
                reply = status_to_json(&s->cfg);
        else
                reply = json_pack("{s:s+}", "error", "unknown command: ", command ? command : "none");
        json_decref(request);
        return reply;
}

/* One line, within the time for the whole request, unless we are to stop.  The length, or 0. */
static size_t receive_line(struct control_server *s, int fd, char *line) {
        struct pollfd fds[] = { { .fd = fd, .events = POLLIN }, { .fd = s->stop, .events = POLLIN } };
        int64_t end = monotonic_ns() + REQUEST_SECONDS * 1000000000ll, left;
        size_t len = 0;

        while (!memchr(line, '\n', len)) {
                if (len == CONTROL_REQUEST_MAX || (left = (end - monotonic_ns()) / 1000000) <= 0)
                        return 0;
                if (poll(fds, ARRAY_SIZE(fds), (int)left) <= 0 || fds[1].revents)
                        return 0;
                ssize_t n = recv(fd, line + len, CONTROL_REQUEST_MAX - len, MSG_DONTWAIT);
                if (n <= 0)
                        return 0;
                len += (size_t)n;
        }
        line[len] = '\0';
        return len;
}

static void serve(struct control_server *s, int fd) {
        const struct timeval limit = { .tv_sec = REQUEST_SECONDS };
        _cleanup_free_ char *line = malloc(CONTROL_REQUEST_MAX + 1), *text = NULL;

        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
        if (!line || receive_line(s, fd, line) == 0)
                return;
        json_t *reply = answer(s, line);
        if (reply && (text = json_dumps(reply, JSON_COMPACT)))
                send_all(fd, text, strlen(text));
        json_decref(reply);
}

static void *run(void *arg) {
        struct control_server *s = arg;
        struct pollfd fds[] = { { .fd = s->listener, .events = POLLIN }, { .fd = s->stop, .events = POLLIN } };

        for (;;) {
                if (poll(fds, ARRAY_SIZE(fds), -1) < 0 && errno != EINTR)
                        return NULL;
                if (fds[1].revents)
                        return NULL;
                _cleanup_close_ int fd = fds[0].revents ? accept4(s->listener, NULL, NULL, SOCK_CLOEXEC) : -1;
                if (fd >= 0)
                        serve(s, fd);
        }
}

int control_start(const struct control_config *cfg, struct control_server **ret) {
        struct control_server *s = calloc(1, sizeof *s);
        int r = -ENOENT;

        if (!s)
                return -ENOMEM;
        s->cfg = *cfg;
        s->listener = -1;
        s->stop = eventfd(0, EFD_CLOEXEC);
        for (unsigned nth = 0; s->listener < 0 && control_path(cfg->minor, nth, s->path) == 0; nth++)
                r = s->listener = bind_at(s->path);
        if (s->listener >= 0 && (r = thread_start(&s->thread, "hs-control", run, s)) == 0) {
                *ret = s;
                return 0;
        }
        closep(&s->listener);
        closep(&s->stop);
        free(s);
        return r;
}

struct control_server *control_stop(struct control_server *s) {
        const uint64_t one = 1;

        if (!s)
                return NULL;
        if (write(s->stop, &one, sizeof one) == (ssize_t)sizeof one)
                pthread_join(s->thread, NULL);
        unlink(s->path);
        close(s->listener);
        close(s->stop);
        free(s);
        return NULL;
}
