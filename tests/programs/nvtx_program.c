/* A program annotated with NVTX; prints the levels that its calls return. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef REAL_NVTX
#include <nvtx3/nvToolsExt.h>
#else
#include "nvtx_fake.h"
#endif

static nvtxEventAttributes_t attributes(void) {
    nvtxEventAttributes_t a;
    memset(&a, 0, sizeof a);
    a.version = NVTX_VERSION;
    a.size = sizeof a;
    return a;
}

static void nested(void) {
    printf("%d", nvtxRangePushA("outer"));
    printf(" %d", nvtxRangePushW(L"gr\u00f6\u00dfe \u20ac \U0001f600"));
    nvtxEventAttributes_t a = attributes();
    a.colorType = NVTX_COLOR_ARGB;
    a.color = 0xff76b900;
    a.messageType = NVTX_MESSAGE_TYPE_ASCII;
    a.message.ascii = "colored";
    printf(" %d", nvtxRangePushEx(&a));
    int third = nvtxRangePop(), second = nvtxRangePop(), first = nvtxRangePop(), none = nvtxRangePop();
    printf(" | %d %d %d %s\n", third, second, first, none < 0 ? "negative" : "WRONG");
}

static void in_domain(void) {
    nvtxDomainHandle_t domain = nvtxDomainCreateA("library"), again = nvtxDomainCreateA("library");
    nvtxEventAttributes_t a = attributes();
    a.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
    a.message.registered = nvtxDomainRegisterStringA(domain, "registered");
    printf("%d", nvtxRangePushA("default domain"));
    printf(" %d", nvtxDomainRangePushEx(domain, &a));
    printf(" %d", nvtxDomainRangePushEx(again, &a));
    int inner = nvtxDomainRangePop(again), outer = nvtxDomainRangePop(domain), ours = nvtxRangePop();
    printf(" | %d %d %d\n", inner, outer, ours);
    nvtxRangeId_t id = nvtxDomainRangeStartEx(domain, &a), other = nvtxRangeStartA("process");
    printf("%s\n", id && other && id != other ? "distinct ids" : "WRONG");
    nvtxDomainRangeEnd(domain, id);
    nvtxRangeEnd(other);
    nvtxDomainMarkEx(domain, &a);
    a.messageType = NVTX_MESSAGE_TYPE_UNICODE;
    a.message.unicode = L"wide";
    nvtxDomainMarkEx(domain, &a);
    a.size = 16; /* of some version that has no message there */
    nvtxDomainMarkEx(domain, &a);

    fflush(stdout);
    if (!fork()) { /* domains and registered strings are inherited; their ids are not */
        nvtxMarkA("of the child");
        a.size = sizeof a;
        a.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
        a.message.registered = nvtxDomainRegisterStringA(domain, "registered");
        nvtxDomainMarkEx(domain, &a);
        _exit(0);
    }
    wait(NULL);
}

static void *on_thread(void *unused) {
    printf("%d", nvtxRangePushA("thread"));
    printf(" | %d\n", nvtxRangePop());
    return unused;
}

int main(void) {
    pthread_t thread;
    nested();
    in_domain();
    printf("%d\n", nvtxRangePushA("open"));
    pthread_create(&thread, NULL, on_thread, NULL);
    pthread_join(thread, NULL);
    nvtxMarkA("mark");
    nvtxMarkW(L"wide mark");
    return 0;
}
