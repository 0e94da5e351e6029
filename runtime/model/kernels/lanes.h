/* Sixteen numbers at a time, as floats, from and to float or bfloat16 in memory.

   Vector types of the compiler, not of one processor: where registers are narrower it uses more
   of them. Every function here is inlined, and its `type` is a constant to the compiler. Sizes
   and positions count elements; `left` is how many elements there are from there on, so that the
   last lanes of a row may be fewer than sixteen: those beyond it load as 0 and are not stored. */

#ifndef KVPROOF_LANES_H
#define KVPROOF_LANES_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifdef __AVX512BW__
#include <immintrin.h>
#endif

#define INLINE static inline __attribute__((always_inline))
#define WIDTH 16
#define SERIAL_BELOW 16384 /* elements; starting the threads costs more than the work */

enum type { F32, BF16 };

typedef float lanes __attribute__((vector_size(64)));
typedef int32_t int_lanes __attribute__((vector_size(64)));
typedef uint32_t bit_lanes __attribute__((vector_size(64)));
typedef uint16_t half_lanes __attribute__((vector_size(32)));

INLINE int64_t at_most(int64_t a, int64_t b) { return a < b ? a : b; }
INLINE size_t size_of(enum type type) { return type == F32 ? 4 : 2; }

/* Element `at` of an array. */
INLINE const char *element(const void *p, int64_t at, enum type type) {
    return (const char *)p + at * (int64_t)size_of(type);
}
INLINE char *target(void *p, int64_t at, enum type type) {
    return (char *)p + at * (int64_t)size_of(type);
}

INLINE lanes everywhere(float x) { return x - (lanes){}; }

INLINE lanes choose(int_lanes where, lanes yes, lanes no) {
    return (lanes)(((int_lanes)yes & where) | ((int_lanes)no & ~where));
}

#ifdef __AVX512BW__ /* the compiler's own way takes a branch and two halves */

INLINE __mmask16 first_of(int64_t left) {
    return left >= WIDTH ? 0xffff : (__mmask16)((1u << left) - 1);
}

INLINE lanes widened(half_lanes half) {
    return (lanes)_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)half), 16);
}

INLINE lanes load(const void *p, int64_t at, int64_t left, enum type type) {
    const char *from = element(p, at, type);
    if (type == F32) return (lanes)_mm512_maskz_loadu_ps(first_of(left), from);
    return widened((half_lanes)_mm256_maskz_loadu_epi16(first_of(left), from));
}

#else

INLINE lanes widened(half_lanes half) {
    return (lanes)(__builtin_convertvector(half, bit_lanes) << 16);
}

INLINE lanes load(const void *p, int64_t at, int64_t left, enum type type) {
    size_t bytes = (size_t)at_most(left, WIDTH) * size_of(type);
    lanes x = {};
    half_lanes half = {};
    if (type == F32)
        memcpy(&x, element(p, at, type), bytes);
    else
        memcpy(&half, element(p, at, type), bytes);
    return type == F32 ? x : widened(half);
}

#endif

/* To the nearest bfloat16, ties to even. */
INLINE half_lanes rounded(lanes x) {
#ifdef __AVX512BF16__
    return (half_lanes)_mm512_cvtneps_pbh((__m512)x);
#else
    bit_lanes bits = (bit_lanes)x;
    bit_lanes nearest = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    bit_lanes quiet = (bits >> 16) | 0x40; /* rounding could carry a NaN into an infinity */
    bit_lanes is_nan = (bit_lanes)((bits & 0x7fffffff) > 0x7f800000);
    return __builtin_convertvector((quiet & is_nan) | (nearest & ~is_nan), half_lanes);
#endif
}

INLINE void store(void *p, int64_t at, int64_t left, lanes x, enum type type) {
    char *to = target(p, at, type);
#ifdef __AVX512BW__
    if (type == F32)
        _mm512_mask_storeu_ps(to, first_of(left), (__m512)x);
    else
        _mm256_mask_storeu_epi16(to, first_of(left), (__m256i)rounded(x));
#else
    size_t bytes = (size_t)at_most(left, WIDTH) * size_of(type);
    half_lanes half = rounded(x);
    memcpy(to, type == F32 ? (const void *)&x : (const void *)&half, bytes);
#endif
}

/* What a store and a load make of it. */
INLINE lanes as_stored(lanes x, enum type type) {
    return type == F32 ? x : widened(rounded(x));
}

INLINE float sum_of(lanes x) {
    float all[WIDTH];
    memcpy(all, &x, sizeof all);
    for (int step = WIDTH / 2; step; step /= 2)
        for (int i = 0; i < step; i++) all[i] += all[i + step];
    return all[0];
}

INLINE float largest_of(lanes x) {
    float all[WIDTH];
    memcpy(all, &x, sizeof all);
    for (int step = WIDTH / 2; step; step /= 2)
        for (int i = 0; i < step; i++) all[i] = all[i] > all[i + step] ? all[i] : all[i + step];
    return all[0];
}

/* e^x; relative error about 1e-7; NaN stays NaN. */
INLINE lanes exponential(lanes x) {
    x = choose(x < -87.0f, everywhere(-87.0f), x);
    x = choose(x > 88.0f, everywhere(88.0f), x);
    /* To the nearest integer: what is cut off is positive. */
    int_lanes n = __builtin_convertvector(x * 1.44269504089f + 128.5f, int_lanes) - 128;
    lanes whole = __builtin_convertvector(n, lanes);
    lanes r = x - whole * 0.693359375f + whole * 2.12194440e-4f;
    lanes p = everywhere(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    return p * (lanes)(((bit_lanes)n + 127) << 23);
}

#endif
