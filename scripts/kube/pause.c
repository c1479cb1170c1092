// The process that holds a pod's namespaces: it waits, reaps orphans, and ends on SIGTERM or SIGINT.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void reap(int number) {
    (void)number;
    while (waitpid(-1, 0, WNOHANG) > 0) {
    }
}

static void end(int number) {
    (void)number;
    _exit(0);
}

int main(void) {
    signal(SIGCHLD, reap);
    signal(SIGTERM, end);
    signal(SIGINT, end);
    for (;;) {
        pause();
    }
}
