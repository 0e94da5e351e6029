/* The small operations of a layer that torch has no fused kernel for, on the CPU.

   Compiled once for the machine it runs on by ../native.py, which also says when it is not used.
   Every function exists for float (f32) and for bfloat16 (bf16); sums are in float. Sizes count
   elements. No function writes outside its outputs. */

#include "lanes.h"

/* x / rms(x) * weight; the sum of the squares of x is known. */
INLINE void scale_row(const void *x, const void *weight, void *out, int64_t dim, lanes squares,
                      float eps, enum type type) {
    float scale = 1.0f / sqrtf(sum_of(squares) / (float)dim + eps);
    for (int64_t d = 0; d < dim; d += WIDTH) {
        int64_t left = dim - d;
        store(out, d, left, load(x, d, left, type) * scale * load(weight, d, left, type), type);
    }
}

INLINE void rms_norm_row(const void *x, const void *weight, void *out, int64_t dim, float eps,
                         enum type type) {
    lanes squares = {};
    for (int64_t d = 0; d < dim; d += WIDTH) {
        lanes value = load(x, d, dim - d, type);
        squares += value * value;
    }
    scale_row(x, weight, out, dim, squares, eps, type);
}

INLINE void add_rms_norm_row(void *stream, const void *change, const void *weight, void *out,
                             int64_t dim, float eps, enum type type) {
    lanes squares = {};
    for (int64_t d = 0; d < dim; d += WIDTH) {
        int64_t left = dim - d;
        lanes sum = load(stream, d, left, type) + load(change, d, left, type);
        sum = as_stored(sum, type);
        store(stream, d, left, sum, type);
        squares += sum * sum;
    }
    scale_row(stream, weight, out, dim, squares, eps, type);
}

INLINE void silu_mul_row(const void *gate_up, void *out, int64_t inner, enum type type) {
    for (int64_t d = 0; d < inner; d += WIDTH) {
        int64_t left = inner - d;
        lanes gate = load(gate_up, d, left, type), up = load(gate_up, inner + d, left, type);
        store(out, d, left, gate / (1.0f + exponential(-gate)) * up, type);
    }
}

/* Pairs of neighbours, each turned by its (cos, sin). */
INLINE void rotate_row(void *row, const float *turn, int64_t heads, int64_t dim, enum type type) {
    const lanes sign = {-1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1};
    for (int64_t d = 0; d < dim; d += WIDTH) {
        int64_t left = dim - d;
        lanes both = load(turn, d, left, F32);
        lanes cosine = __builtin_shufflevector(both, both, 0, 0, 2, 2, 4, 4, 6, 6, 8, 8, 10, 10,
                                               12, 12, 14, 14);
        lanes sine = __builtin_shufflevector(both, both, 1, 1, 3, 3, 5, 5, 7, 7, 9, 9, 11, 11, 13,
                                             13, 15, 15);
        for (int64_t h = 0; h < heads; h++) {
            lanes x = load(row, h * dim + d, left, type);
            lanes swapped = __builtin_shufflevector(x, x, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13,
                                                    12, 15, 14);
            store(row, h * dim + d, left, x * cosine + swapped * (sine * sign), type);
        }
    }
}

#define KERNELS(NAME, TYPE)                                                                        \
                                                                                                   \
    /* out[rows, dim] = x / rms(x) * weight[dim]; x and out have rows of dim. */                   \
    void rms_norm_##NAME(const void *x, const void *weight, void *out, int64_t rows, int64_t dim,  \
                         float eps, int threads) {                                                 \
        _Pragma("omp parallel for num_threads(threads) if (rows * dim > SERIAL_BELOW)")            \
        for (int64_t i = 0; i < rows; i++)                                                         \
            rms_norm_row(element(x, i * dim, TYPE), weight, target(out, i * dim, TYPE), dim, eps,  \
                         TYPE);                                                                    \
    }                                                                                              \
                                                                                                   \
    /* stream += change, then out = rms_norm(stream). */                                           \
    void add_rms_norm_##NAME(void *stream, const void *change, const void *weight, void *out,      \
                             int64_t rows, int64_t dim, float eps, int threads) {                  \
        _Pragma("omp parallel for num_threads(threads) if (rows * dim > SERIAL_BELOW)")            \
        for (int64_t i = 0; i < rows; i++)                                                         \
            add_rms_norm_row(target(stream, i * dim, TYPE), element(change, i * dim, TYPE),        \
                             weight, target(out, i * dim, TYPE), dim, eps, TYPE);                  \
    }                                                                                              \
                                                                                                   \
    /* out[rows, inner] = silu(gate) * up, of gate_up[rows, 2 * inner]. */                         \
    void silu_mul_##NAME(const void *gate_up, void *out, int64_t rows, int64_t inner,              \
                         int threads) {                                                            \
        _Pragma("omp parallel for num_threads(threads) if (rows * inner > SERIAL_BELOW)")          \
        for (int64_t i = 0; i < rows; i++)                                                         \
            silu_mul_row(element(gate_up, 2 * i * inner, TYPE), target(out, i * inner, TYPE),      \
                         inner, TYPE);                                                             \
    }                                                                                              \
                                                                                                   \
    /* Rotates q and k of qkv[rows, heads + 2 * kv_heads, dim] in place, neighbours together, by   \
       rotation[rows, dim / 2] (cos, sin), and copies k and v to their slots: slot s of the keys   \
       is at keys + s * kv_heads * dim, of the values the same from values. */                     \
    void rotate_and_store_##NAME(void *qkv, const float *rotation, void *keys, void *values,       \
                                 const int64_t *slots, int64_t rows, int64_t heads,                \
                                 int64_t kv_heads, int64_t dim, int threads) {                     \
        int64_t width = (heads + 2 * kv_heads) * dim, kept = kv_heads * dim;                       \
        size_t bytes = (size_t)kept * size_of(TYPE);                                               \
        _Pragma("omp parallel for num_threads(threads) if (rows * width > SERIAL_BELOW)")          \
        for (int64_t i = 0; i < rows; i++) {                                                       \
            void *row = target(qkv, i * width, TYPE);                                              \
            rotate_row(row, rotation + i * dim, heads + kv_heads, dim, TYPE);                      \
            memcpy(target(keys, slots[i] * kept, TYPE), element(row, heads * dim, TYPE), bytes);   \
            memcpy(target(values, slots[i] * kept, TYPE),                                          \
                   element(row, heads * dim + kept, TYPE), bytes);                                 \
        }                                                                                          \
    }

KERNELS(f32, F32)
KERNELS(bf16, BF16)
