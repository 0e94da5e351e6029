/* The parts of a decode step that torch has no fused kernel for, on the CPU.

   Compiled once for the machine it runs on by native.py, which also says when it is not used.
   Every function exists for float (f32) and for bfloat16 (bf16); sums are in float. Sizes count
   elements. No function allocates memory that it does not free, or writes outside its outputs. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#define SERIAL_BELOW 16384 /* elements; starting the threads costs more than the work */

INLINE float load_f32(const float *p) { return *p; }
INLINE void store_f32(float *p, float x) { *p = x; }

INLINE float load_bf16(const uint16_t *p) {
    uint32_t bits = (uint32_t)*p << 16;
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

INLINE void store_bf16(uint16_t *p, float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    uint32_t quiet = (bits >> 16) | 0x40; /* rounding could carry a NaN into an infinity */
    *p = (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded);
}

/* e^x in plain arithmetic, so that loops over it become vectors; relative error about 1e-7. */
INLINE float exponential(float x) {
    x = x < -87.0f ? -87.0f : x;
    x = x > 88.0f ? 88.0f : x;
    float n = rintf(x * 1.44269504089f);
    float r = x - n * 0.693359375f + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    int32_t scale = ((int32_t)n + 127) << 23;
    float two_to_n;
    memcpy(&two_to_n, &scale, 4);
    return p * two_to_n;
}

/* scores[length], changed in place to weights that add up to 1. */
INLINE void softmax(float *scores, int64_t length) {
    float peak = scores[0];
    for (int64_t t = 1; t < length; t++) peak = scores[t] > peak ? scores[t] : peak;
    float sum = 0.0f;
    for (int64_t t = 0; t < length; t++) {
        scores[t] = exponential(scores[t] - peak);
        sum += scores[t];
    }
    for (int64_t t = 0; t < length; t++) scores[t] /= sum;
}

#define KERNELS(T, NAME)                                                                           \
                                                                                                   \
    /* out[rows, dim] = x / rms(x) * weight[dim]; x and out have rows of dim. */                   \
    void rms_norm_##NAME(const T *x, const T *weight, T *out, int64_t rows, int64_t dim,           \
                         float eps, int threads) {                                                 \
        _Pragma("omp parallel for num_threads(threads) if (rows * dim > SERIAL_BELOW)")            \
        for (int64_t i = 0; i < rows; i++) {                                                       \
            const T *in = x + i * dim;                                                             \
            float sum = 0.0f;                                                                      \
            for (int64_t d = 0; d < dim; d++) sum += load_##NAME(in + d) * load_##NAME(in + d);    \
            float scale = 1.0f / sqrtf(sum / (float)dim + eps);                                    \
            for (int64_t d = 0; d < dim; d++)                                                      \
                store_##NAME(out + i * dim + d,                                                    \
                             load_##NAME(in + d) * scale * load_##NAME(weight + d));               \
        }                                                                                          \
    }                                                                                              \
                                                                                                   \
    /* stream += change, then out = rms_norm(stream). */                                           \
    void add_rms_norm_##NAME(T *stream, const T *change, const T *weight, T *out, int64_t rows,    \
                             int64_t dim, float eps, int threads) {                                \
        _Pragma("omp parallel for num_threads(threads) if (rows * dim > SERIAL_BELOW)")            \
        for (int64_t i = 0; i < rows; i++) {                                                       \
            T *x = stream + i * dim;                                                               \
            float sum = 0.0f;                                                                      \
            for (int64_t d = 0; d < dim; d++) {                                                    \
                store_##NAME(x + d, load_##NAME(x + d) + load_##NAME(change + i * dim + d));       \
                sum += load_##NAME(x + d) * load_##NAME(x + d);                                    \
            }                                                                                      \
            float scale = 1.0f / sqrtf(sum / (float)dim + eps);                                    \
            for (int64_t d = 0; d < dim; d++)                                                      \
                store_##NAME(out + i * dim + d,                                                    \
                             load_##NAME(x + d) * scale * load_##NAME(weight + d));                \
        }                                                                                          \
    }                                                                                              \
                                                                                                   \
    /* out[rows, inner] = silu(gate) * up, of gate_up[rows, 2 * inner]. */                         \
    void silu_mul_##NAME(const T *gate_up, T *out, int64_t rows, int64_t inner, int threads) {     \
        _Pragma("omp parallel for num_threads(threads) if (rows * inner > SERIAL_BELOW)")          \
        for (int64_t i = 0; i < rows; i++) {                                                       \
            const T *gate = gate_up + 2 * i * inner, *up = gate + inner;                           \
            for (int64_t d = 0; d < inner; d++) {                                                  \
                float g = load_##NAME(gate + d);                                                   \
                store_##NAME(out + i * inner + d,                                                  \
                             g / (1.0f + exponential(-g)) * load_##NAME(up + d));                  \
            }                                                                                      \
        }                                                                                          \
    }                                                                                              \
                                                                                                   \
    /* Rotates q and k of qkv[rows, heads + 2 * kv_heads, dim] in place, neighbours together, by   \
       rotation[rows, dim / 2] (cos, sin), and copies k and v to their slots: slot s of the keys   \
       is at keys + s * kv_heads * dim, of the values the same from values. */                     \
    void rotate_and_store_##NAME(T *qkv, const float *rotation, T *keys, T *values,                \
                                 const int64_t *slots, int64_t rows, int64_t heads,                \
                                 int64_t kv_heads, int64_t dim, int threads) {                     \
        int64_t width = (heads + 2 * kv_heads) * dim, kept = kv_heads * dim;                       \
        _Pragma("omp parallel for num_threads(threads) if (rows * width > SERIAL_BELOW)")          \
        for (int64_t i = 0; i < rows; i++) {                                                       \
            T *row = qkv + i * width;                                                              \
            const float *turn = rotation + i * dim;                                                \
            for (int64_t h = 0; h < heads + kv_heads; h++) {                                       \
                T *head = row + h * dim;                                                           \
                for (int64_t d = 0; d < dim; d += 2) {                                             \
                    float a = load_##NAME(head + d), b = load_##NAME(head + d + 1);                \
                    float cosine = turn[d], sine = turn[d + 1];                                    \
                    store_##NAME(head + d, a * cosine - b * sine);                                 \
                    store_##NAME(head + d + 1, a * sine + b * cosine);                             \
                }                                                                                  \
            }                                                                                      \
            memcpy(keys + slots[i] * kept, row + heads * dim, kept * sizeof(T));                   \
            memcpy(values + slots[i] * kept, row + heads * dim + kept, kept * sizeof(T));          \
        }                                                                                          \
    }                                                                                              \
                                                                                                   \
    /* Heads first..last of one request: q and out are its [heads, dim]. */                        \
    INLINE void attend_##NAME(const T *q, const T *keys, const T *values, const int64_t *table,    \
                              T *out, float *scratch, int64_t length, int64_t block_size,          \
                              int64_t first, int64_t last, int64_t shared, int64_t kv_heads,       \
                              int64_t dim, float scale) {                                          \
        int64_t rows = (last - first) * shared;                                                    \
        float *queries = scratch, *sums = queries + rows * dim, *vector = sums + rows * dim;       \
        float *scores = vector + dim;                                                              \
        for (int64_t d = 0; d < rows * dim; d++) {                                                 \
            queries[d] = load_##NAME(q + first * shared * dim + d) * scale;                        \
            sums[d] = 0.0f;                                                                        \
        }                                                                                          \
        for (int64_t t = 0; t < length; t++) {                                                     \
            int64_t slot = table[t / block_size] * block_size + t % block_size;                    \
            for (int64_t h = first; h < last; h++) {                                               \
                const T *key = keys + (slot * kv_heads + h) * dim;                                 \
                for (int64_t d = 0; d < dim; d++) vector[d] = load_##NAME(key + d);                \
                for (int64_t g = 0; g < shared; g++) {                                             \
                    const float *query = queries + ((h - first) * shared + g) * dim;               \
                    float dot = 0.0f;                                                              \
                    for (int64_t d = 0; d < dim; d++) dot += query[d] * vector[d];                 \
                    scores[((h - first) * shared + g) * length + t] = dot;                         \
                }                                                                                  \
            }                                                                                      \
        }                                                                                          \
        for (int64_t r = 0; r < rows; r++) softmax(scores + r * length, length);                   \
        for (int64_t t = 0; t < length; t++) {                                                     \
            int64_t slot = table[t / block_size] * block_size + t % block_size;                    \
            for (int64_t h = first; h < last; h++) {                                               \
                const T *value = values + (slot * kv_heads + h) * dim;                             \
                for (int64_t d = 0; d < dim; d++) vector[d] = load_##NAME(value + d);              \
                for (int64_t g = 0; g < shared; g++) {                                             \
                    int64_t row = (h - first) * shared + g;                                        \
                    float weight = scores[row * length + t];                                       \
                    for (int64_t d = 0; d < dim; d++) sums[row * dim + d] += weight * vector[d];   \
                }                                                                                  \
            }                                                                                      \
        }                                                                                          \
        for (int64_t d = 0; d < rows * dim; d++)                                                   \
            store_##NAME(out + first * shared * dim + d, sums[d]);                                 \
    }                                                                                              \
                                                                                                   \
    /* One query a request: row rows[i] of q (stride elements apart) and of out [heads, dim]       \
       attends to lengths[i] tokens, in the blocks that tables[i, width] lists. 0 if there is no   \
       memory for the scores; then out is undefined. */                                            \
    int decode_attention_##NAME(const T *q, int64_t stride, const T *keys, const T *values,        \
                                const int64_t *rows, const int64_t *tables, const int64_t *lengths,\
                                T *out, int64_t count, int64_t width, int64_t block_size,          \
                                int64_t heads, int64_t kv_heads, int64_t dim, float scale,         \
                                int threads) {                                                     \
        int64_t shared = heads / kv_heads;                                                         \
        int64_t at_once = count >= 2 * threads ? kv_heads : 1; /* few requests: share out heads */ \
        int64_t parts = kv_heads / at_once;                                                        \
        int failed = 0;                                                                            \
        _Pragma("omp parallel for schedule(dynamic, 1) num_threads(threads)")                      \
        for (int64_t task = 0; task < count * parts; task++) {                                     \
            int64_t i = task / parts, first = task % parts * at_once;                              \
            int64_t needed = at_once * shared * (2 * dim + lengths[i]) + dim;                      \
            float *scratch = malloc(needed * sizeof(float));                                       \
            if (!scratch) {                                                                        \
                failed = 1;                                                                        \
                continue;                                                                          \
            }                                                                                      \
            const T *query = q + rows[i] * stride;                                                 \
            const int64_t *table = tables + i * width;                                             \
            T *to = out + rows[i] * heads * dim;                                                   \
            /* A constant head size lets the compiler keep whole rows in registers. */             \
            if (dim == 64)                                                                         \
                attend_##NAME(query, keys, values, table, to, scratch, lengths[i], block_size,     \
                              first, first + at_once, shared, kv_heads, 64, scale);                \
            else if (dim == 128)                                                                   \
                attend_##NAME(query, keys, values, table, to, scratch, lengths[i], block_size,     \
                              first, first + at_once, shared, kv_heads, 128, scale);               \
            else                                                                                   \
                attend_##NAME(query, keys, values, table, to, scratch, lengths[i], block_size,     \
                              first, first + at_once, shared, kv_heads, dim, scale);               \
            free(scratch);                                                                         \
        }                                                                                          \
        return !failed;                                                                            \
    }

KERNELS(float, f32)
KERNELS(uint16_t, bf16)
