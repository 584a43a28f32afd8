// What keeps a Pod's namespaces while its containers come and go: it waits to be told to end. Where containers share its process
// namespace it is process 1 there, and reaps every process that lost its parent.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void end(int signal) { _exit(0); }

static void bury(int signal) {
    while (waitpid(-1, 0, WNOHANG) > 0) {
    }
}

int main(void) {
    signal(SIGINT, end);
    signal(SIGTERM, end);
    signal(SIGCHLD, bury);
    for (;;) {
        pause();
    }
}
