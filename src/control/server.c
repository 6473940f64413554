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
#include <sys/un.h>

enum { REQUEST_SECONDS = 2, CLIENTS = 16, FIRST_CLIENT = 2 };

/* One at the socket: its request so far, or what is left of the answer. */
struct client {
        int fd; /* -1: nobody */
        int64_t until; /* monotonic ns; then it is sent away */
        char *text;
        size_t len, sent;
        bool answered;
};

struct control_server {
        struct control_config cfg;
        char path[CONTROL_PATH_MAX];
        int listener, stop;
        pthread_t thread;
        struct client clients[CLIENTS];
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

static void client_leave(struct client *c) {
        closep(&c->fd);
        free(c->text);
        *c = (struct client){ .fd = -1 };
}

/* A seat, if need be that of whoever has been silent the longest. */
static struct client *client_seat(struct control_server *s) {
        struct client *oldest = &s->clients[0];

        for (size_t i = 0; i < CLIENTS; i++) {
                if (s->clients[i].fd < 0)
                        return &s->clients[i];
                if (s->clients[i].until < oldest->until)
                        oldest = &s->clients[i];
        }
        client_leave(oldest);
        return oldest;
}

static void client_come(struct control_server *s) {
        int fd = accept4(s->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

        if (fd < 0)
                return;
        struct client *c = client_seat(s);
        *c = (struct client){ .fd = fd, .until = monotonic_ns() + REQUEST_SECONDS * 1000000000ll,
                              .text = malloc(CONTROL_REQUEST_MAX + 1) };
        if (!c->text)
                client_leave(c);
}

static void client_answer(struct control_server *s, struct client *c) {
        c->text[c->len] = '\0';
        json_t *reply = answer(s, c->text);
        free(c->text);
        c->text = reply ? json_dumps(reply, JSON_COMPACT) : NULL;
        c->len = c->text ? strlen(c->text) : 0;
        c->answered = true;
        json_decref(reply);
}

static void client_hear(struct control_server *s, struct client *c) {
        ssize_t n = recv(c->fd, c->text + c->len, CONTROL_REQUEST_MAX - c->len, 0);

        if (n <= 0) {
                client_leave(c);
                return;
        }
        c->len += (size_t)n;
        if (memchr(c->text + c->len - n, '\n', (size_t)n))
                client_answer(s, c);
        else if (c->len == CONTROL_REQUEST_MAX)
                client_leave(c);
}

static void client_tell(struct client *c) {
        ssize_t n = send(c->fd, c->text + c->sent, c->len - c->sent, MSG_NOSIGNAL);

        if (n > 0)
                c->sent += (size_t)n;
        if (n <= 0 || c->sent == c->len)
                client_leave(c);
}

static void serve_clients(struct control_server *s, const struct pollfd *fds) {
        int64_t now = monotonic_ns();

        for (size_t i = 0; i < CLIENTS; i++) {
                struct client *c = &s->clients[i];
                if (c->fd < 0)
                        continue;
                if (fds[i].revents && c->answered)
                        client_tell(c);
                else if (fds[i].revents)
                        client_hear(s, c);
                else if (now > c->until)
                        client_leave(c);
        }
}

static void *run(void *arg) {
        struct control_server *s = arg;
        struct pollfd fds[FIRST_CLIENT + CLIENTS] = { { .fd = s->listener, .events = POLLIN },
                                                      { .fd = s->stop, .events = POLLIN } };

        for (;;) {
                bool any = false;
                for (size_t i = 0; i < CLIENTS; i++) {
                        const struct client *c = &s->clients[i];
                        fds[FIRST_CLIENT + i] = (struct pollfd){ .fd = c->fd, .events = c->answered ? POLLOUT : POLLIN };
                        any |= c->fd >= 0;
                }
                int n = poll(fds, ARRAY_SIZE(fds), any ? 100 : -1);
                if (n < 0 && errno == EINTR)
                        continue;
                if (n < 0 || fds[1].revents)
                        return NULL;
                serve_clients(s, fds + FIRST_CLIENT);
                if (fds[0].revents)
                        client_come(s);
        }
}

int control_start(const struct control_config *cfg, struct control_server **ret) {
        struct control_server *s = calloc(1, sizeof *s);
        int r = -ENOENT;

        if (!s)
                return -ENOMEM;
        s->cfg = *cfg;
        s->listener = -1;
        for (size_t i = 0; i < CLIENTS; i++)
                s->clients[i].fd = -1;
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
        for (size_t i = 0; i < CLIENTS; i++)
                client_leave(&s->clients[i]);
        unlink(s->path);
        close(s->listener);
        close(s->stop);
        free(s);
        return NULL;
}
