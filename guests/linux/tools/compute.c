/* Processor-bound work with few crossings: the part of a run that shows the speed of plain instructions. It prints
   its results, so that two machines can be compared. */
#include "tools.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { SIEVE_LIMIT = 8000000, HASH_BYTES = 32 << 20, SORT_COUNT = 600000, SUM_TERMS = 16000000 };

static uint32_t count_primes(uint8_t *composite, uint32_t limit) {
    uint32_t count = 0;
    for (uint32_t n = 2; n < limit; n++) {
        if (composite[n])
            continue;
        count++;
        for (uint64_t multiple = (uint64_t)n * n; multiple < limit; multiple += n)
            composite[multiple] = 1;
    }
    return count;
}

static uint64_t fnv_1a(uint32_t bytes) {
    uint64_t hash = 0xcbf29ce484222325;
    for (uint32_t i = 0; i < bytes; i++)
        hash = (hash ^ (uint8_t)i) * 0x100000001b3;
    return hash;
}

static int by_value(const void *a, const void *b) {
    uint32_t left = *(const uint32_t *)a, right = *(const uint32_t *)b;
    return (left > right) - (left < right);
}

static uint32_t sorted_median(uint32_t *values, uint32_t count) {
    uint32_t state = 12345;
    for (uint32_t i = 0; i < count; i++)
        values[i] = state = state * 1664525 + 1013904223;
    qsort(values, count, sizeof *values, by_value);
    return values[count / 2];
}

static double basel_sum(uint32_t terms) {
    double sum = 0;
    for (uint32_t i = terms; i; i--)
        sum += 1.0 / ((double)i * (double)i);
    return sum;
}

int compute_main(int argc, char **argv) {
    (void)argc, (void)argv;
    uint8_t *composite = calloc(SIEVE_LIMIT, 1);
    uint32_t *values = malloc(SORT_COUNT * sizeof *values);
    if (!composite || !values) {
        fputs("compute: out of memory\n", stderr);
        return 1;
    }
    printf("primes %u\n", count_primes(composite, SIEVE_LIMIT));
    printf("hash %016lx\n", fnv_1a(HASH_BYTES));
    printf("median %u\n", sorted_median(values, SORT_COUNT));
    printf("sum %.15f\n", basel_sum(SUM_TERMS));
    free(composite);
    free(values);
    return 0;
}
