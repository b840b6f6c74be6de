/* The map in which launches look up kernels: against a plain model, and with concurrent readers and writers. */
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>

#include "../../shim/backends/amd/source.h"
#include "check.h"

void (*pasta_tapped)(const pasta_header *);

static uint64_t state;

static uint64_t below(uint64_t end) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state * UINT64_C(0x2545f4914f6cdd1d) % end;
}

static pasta_amd_map map;

/* ---- against a model: puts, takes and drops, few keys so that gaps close over each other ---- */

enum { KEYS = 300, STEPS = 200000 };
static uint64_t model[KEYS]; /* value + 1; 0: not there */

static uint64_t key_of(uint64_t number) { return number * UINT64_C(0x10001) ^ (number & 1 ? UINT64_MAX - 1 : 0); }

static void check_all(void) {
    for (uint64_t k = 0; k < KEYS; k++) {
        uint64_t value;
        bool found = pasta_amd_get(&map, key_of(k), &value);
        CHECK(found == (model[k] != 0));
        CHECK(!found || value == model[k] - 1);
    }
}

static void against_model(void) {
    for (int step = 0; step < STEPS; step++) {
        uint64_t k = below(KEYS), value = below(50), was;
        switch (below(8)) {
        case 0: case 1: case 2:
            CHECK(pasta_amd_put(&map, key_of(k), value));
            model[k] = value + 1;
            break;
        case 3: case 4: case 5:
            CHECK(pasta_amd_take(&map, key_of(k), &was) == (model[k] != 0));
            CHECK(!model[k] || was == model[k] - 1);
            model[k] = 0;
            break;
        case 6:
            if (below(10)) break;
            pasta_amd_drop(&map, value);
            for (uint64_t i = 0; i < KEYS; i++)
                if (model[i] == value + 1) model[i] = 0;
            break;
        default:
            CHECK(pasta_amd_get(&map, key_of(k), &was) == (model[k] != 0));
            break;
        }
        if (step % 1000 == 0) check_all();
    }
    check_all();
}

/* ---- concurrent readers and writers: permanent keys are always found, others never with a wrong value ---- */

enum { STAY = 120, COME = 140, READERS = 2, ROUNDS = 100000 };
static uint64_t written; /* rounds of the writer */

static uint64_t value_of(uint64_t key) { return key * UINT64_C(0x9e3779b97f4a7c15) ^ 5; }

static void *read_all(void *unused) {
    (void)unused;
    uint64_t number = 1, value;
    while (PASTA_LOAD(written) < ROUNDS) {
        number = number * UINT64_C(6364136223846793005) + 1442695040888963407u;
        uint64_t stays = 1 + (number >> 33) % STAY, comes = 1000 + (number >> 33) % COME;
        CHECK(pasta_amd_get(&map, stays, &value) && value == value_of(stays));
        if (pasta_amd_get(&map, comes, &value)) CHECK(value == value_of(comes));
    }
    return NULL;
}

static void beside_writers(void) {
    pthread_t readers[READERS];
    for (uint64_t k = 1; k <= STAY; k++) CHECK(pasta_amd_put(&map, k, value_of(k)));
    for (int i = 0; i < READERS; i++) CHECK(pthread_create(&readers[i], NULL, read_all, NULL) == 0);
    for (uint64_t round = 0; round < ROUNDS; round++) {
        uint64_t key = 1000 + below(COME), value;
        /* it grows at first, then insertions and removals balance */
        if (below(round < ROUNDS / 2 ? 4 : 2)) CHECK(pasta_amd_put(&map, key, value_of(key)));
        else pasta_amd_take(&map, key, &value);
        PASTA_STORE(written, round + 1);
    }
    for (int i = 0; i < READERS; i++) CHECK(pthread_join(readers[i], NULL) == 0);
}

int main(int count, char **words) {
    CHECK(count == 3);
    state = strtoull(words[2], NULL, 10) * 2 + 1;
    if (words[1][0] == 'm') against_model();
    else beside_writers();
    return 0;
}
